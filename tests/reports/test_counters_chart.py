"""Device counters in the page: a small chart for each, with what the device did above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf import pipeline
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


def test_each_counter_is_a_line_within_its_range(traces: Path, tmp_path: Path) -> None:
    pipeline.report([traces / "ascend-pytorch/db/level1/rank0_ascend_pt"], out=tmp_path / "out", formats=["html"])

    program = chromium()
    assert program is not None
    with Browser(program, tmp_path / "profile") as page:
        page.size(1280, 900)
        page.open(tmp_path / "out" / "report.html")
        page.run("document.querySelector('[data-chart=counters]').scrollIntoView()")
        page.settle()
        chart = "document.querySelector('[data-chart=counters]')"
        lines, ranges, strips = page.run(
            f"['path.line', 'path.range', 'rect.share'].map(q => {chart}.querySelectorAll(q).length)"
        )
        # Frequency, three of HBM, two of the cache, memory of the device.
        assert (lines, ranges) == (7, 7)
        assert strips > 0
        names = page.run(f"Array.from({chart}.querySelectorAll('text.tick')).map(t => t.textContent)")
        assert "HBM/Read + Write" in names and "1.8\u00a0GHz" in names
        # Every point of a mean lies inside of the drawing.
        inside = page.run(
            f"(() => {{ const svg = {chart}.querySelector('svg');"
            "const w = +svg.getAttribute('width'), t = +svg.getAttribute('height');"
            "return Array.from(svg.querySelectorAll('path.line')).every(p => p.getAttribute('d').slice(1).split('L')"
            ".every(q => { const [x, y] = q.split(' ').map(Number); "
            "return x >= 0 && x <= w && y >= 0 && y <= t; })); })()"
        )
        assert inside is True
        place = f"{chart}.querySelector('svg[role]').getBoundingClientRect()"
        box = page.run(f"(r => [r.left + r.width / 2, r.top + 60])({place})")
        page.mouse("mouseMoved", *box)
        page.settle()
        tip = page.run("document.querySelector('.tip').textContent")
        assert "AI Core Freq" in tip and "1.8\u00a0GHz" in tip
        assert page.messages == []
