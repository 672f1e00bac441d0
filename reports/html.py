"""`report.html`: one file that needs nothing else. The page is drawn by small scripts from the embedded document."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from ascend_perf.reports.page import page
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.texts import Json, Lang, safe, said, script_json
from ascend_perf.reports.verdict import verdict

SCRIPTS: Final = (
    "core.js", "format.js", "head.js", "columns.js", "table.js", "charts.js", "scatter.js", "composition.js",
    "series.js", "counters.js", "lanes.js", "timeline_paint.js", "timeline_panel.js", "timeline_input.js",
    "timeline_marks.js", "timeline_search.js", "timeline.js", "flame.js", "findings.js", "job.js", "strip.js",
    "sections.js", "page.js",
)  # fmt: skip
"""Modules of the page in the order in which they are run; each adds to the global `AP`."""

MAX_TITLE: Final = 200
"""Characters of the input's name in the title of the window, as in the page (`short`)."""


def write_html(payload: Payload, path: Path) -> None:
    """Write the page. An existing file is replaced; whether that is wanted, the caller has asked."""
    path.write_text(render(payload), "utf-8", newline="\n")


def render(payload: Payload) -> str:
    """The page as text."""
    answer = verdict(payload)
    lang = payload.lang
    return embedded(
        page(payload), lang=lang, label=safe(payload.label, MAX_TITLE), lead=said(answer.lead, lang),
        main=said(answer.main, lang), items=[said(finding.title, lang) for finding in payload.findings],
        scripts=SCRIPTS, styles=("report.css",),
    )  # fmt: skip


def embedded(
    document: Mapping[str, Json], *, lang: Lang, label: str, lead: str, main: str, items: Sequence[str],
    scripts: Sequence[str], styles: Sequence[str],
) -> str:  # fmt: skip
    """A page of one file: style, scripts and the document that they draw.

    Args:
        document: what the scripts draw; embedded as JSON.
        lang: language of the texts that are there without scripts.
        label: name of the input in the title of the window.
        lead: how the answer begins.
        main: the answer.
        items: its points.
        scripts: files of `assets`, in the order in which they are run.
        styles: files of `assets`.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.from_string(_part("templates", "report.html.j2"))
    script = "\n".join(_part("assets", name) for name in scripts)
    return template.render(
        lang="zh-CN" if lang == "zh" else "en",
        label=label,
        lead=lead,
        main=main,
        findings=items,
        style="\n".join(_part("assets", name) for name in styles),
        script=script,
        policy=_policy(script),
        document=script_json(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
    )


def _part(folder: str, name: str) -> str:
    return (files("ascend_perf.reports") / folder / name).read_text("utf-8")


def _policy(script: str) -> str:
    """Content security policy: nothing is fetched, and only our own script runs, whatever a trace has in its names."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
