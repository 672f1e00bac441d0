"""axe-core in the page of a headless browser: what it finds, boiled down to lines that say where."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.reports._browser import Browser


def axe_script() -> Path | None:
    """The script of axe-core as the package `axe-core-python` carries it; None without that package."""
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "axe.min.js"
    return path if path.is_file() else None


def load(page: Browser, script: Path) -> None:
    """Put axe-core into the page; evaluated by the debugger, so that the page's own policy need not allow it."""
    page.run(script.read_text("utf-8") + "\n;typeof axe.run")


def violations(page: Browser, impacts: tuple[str, ...] = ("serious", "critical")) -> list[str]:
    """Violations of these impacts in the page: rule, number of places, the first of them."""
    script = f"""axe.run(document, {{resultTypes: ["violations"]}}).then(result => result.violations
      .filter(v => {json.dumps(impacts)}.includes(v.impact))
      .map(v => ({{id: v.id, impact: v.impact, count: v.nodes.length, nodes: v.nodes.slice(0, 3).map(n =>
        n.target.join(" ") + ": " + n.html.slice(0, 120) + " " + [...n.any, ...n.all, ...n.none].map(c => c.message)
          .join("; ").slice(0, 200))}})))"""
    found: list[dict[str, Any]] = page.run(script)
    return [f"{v['id']} ({v['impact']}, {v['count']}x): " + " | ".join(v["nodes"]) for v in found]
