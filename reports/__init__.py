"""From outcomes to pages: payload, HTML, Markdown, JSON."""

from __future__ import annotations

from ascend_perf.reports.html import write_html
from ascend_perf.reports.json_report import write_json
from ascend_perf.reports.markdown import write_markdown
from ascend_perf.reports.payload import Payload, build

__all__ = ["Payload", "build", "write_html", "write_json", "write_markdown"]
