"""The lines of a training run in the page: one per series, in pieces where it begins again, none for a constant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_perf import pipeline
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


def test_each_series_is_a_line(tmp_path: Path) -> None:
    for name, steps in {"a": [*range(1, 61)], "b": [*range(1, 41), *range(30, 61)]}.items():
        rows = [{"step": step, "loss": 10 / step, "grad_norm": 1.0, "loss_scale": 2.0 ** (step % 3)} for step in steps]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline.report([tmp_path], out=tmp_path / "out", formats=["html"])

    program = chromium()
    assert program is not None
    with Browser(program, tmp_path / "profile") as page:
        page.size(1280, 900)
        page.open(tmp_path / "out" / "report.html")
        page.run("document.getElementById('section-more').scrollIntoView()")
        page.settle()
        figures = page.run(
            "Array.from(document.querySelectorAll('#section-more figure')).map(f => [f.dataset.chart, "
            "Array.from(f.querySelectorAll('.draw path.line')).map(p => [p.getAttribute('d').split('M').length - 1, "
            "p.getAttribute('d').split(/[ML]/).length - 1])])"
        )
        # The constant gradient norm is no chart. Pieces and points of each line: the second begins again at step 30.
        assert figures == [["loss", [[1, 60], [2, 71]]], ["loss_scale", [[1, 60], [2, 71]]]]
        assert page.run("document.querySelectorAll('#section-more figure .key').length") == 4
        place = "document.querySelector('#section-more svg[role]').getBoundingClientRect()"
        box = page.run(f"(r => [r.left + r.width / 2, r.top + 60])({place})")
        page.mouse("mouseMoved", *box)
        page.settle()
        tip = page.run("document.querySelector('.tip').textContent")
        assert "a.jsonl" in tip and "b.jsonl" in tip and "Step" in tip
        assert page.messages == []
