"""Flame graphs in headless Chromium: places of frames, zoom, search, keyboard, folded stacks, phone and print."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.analyzers.flame import flame
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.exports.folded import write_folded
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from tests.conftest import build_table
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

EVIL = "<img src=x onerror=alert(1)>;</script>"


def sample(rank: int = 0) -> Trace:
    """1 ms of the device: 600 us in Block_0, 300 us in Block_1, 100 us in no module."""
    def call(name: str, start: int, end: int) -> dict[str, object]:
        return {"name": name, "start_ns": start * 1000, "dur_ns": (end - start) * 1000, "thread": 7}

    def task(name: str, start: int, dur: int, op: int) -> dict[str, object]:
        return {"name": name, "start_ns": start * 1000, "dur_ns": dur * 1000, "host_op": op}

    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": 0, "dur_ns": 4_000_000}],
        "python_calls": [
            call("train.py(3): main", 0, 2000), call("nn.Module: Net_0", 0, 2000), call("net.py(9): forward", 0, 2000),
            call("nn.Module: Block_0", 0, 800), call("nn.Module: Block_1", 900, 1300),
        ],
        "host_ops": [call("aten::mm", 100, 500), call("aten::mm", 900, 1000), call(EVIL, 3000, 3100)],
        "kernels": [task("gemm", 0, 600, 0), task("gemm", 700, 250, 1), task("other", 1500, 100, 2)],
        "comm_ops": [{**task("hcom_allReduce__1_0_1", 1000, 50, 1), "op": "allReduce"}],
    }  # fmt: skip
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(label=f"r{rank}", rank=rank))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    traces = (sample(0), sample(1))
    outcomes = [replace(flame.run_on_trace(trace), trace_index=i) for i, trace in enumerate(traces)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(build(Run(traces=traces), outcomes, [], lang="en"), path)
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The report, freshly opened at 1280 px in light colours; afterwards nothing may have gone wrong."""
    browser.messages.clear()
    browser.requests.clear()
    browser.size(1280, 900)
    browser.prefer("light")
    browser.open(report)
    browser.run("sessionStorage.clear()")
    browser.open(report)
    yield browser
    # Reading pixels back is what these tests do, not the page.
    assert [said for said in browser.messages if "willReadFrequently" not in said] == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "about"}


DEVICE = "#section-operators .flame"
HOST = "#section-host .flame"


def text(page: Browser, selector: str) -> str:
    found: str = page.run(f"document.querySelector({json.dumps(selector)}).textContent")
    return found.replace("\u00a0", " ").replace("\u202f", " ")


def click(page: Browser, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")
    page.settle()


def point(page: Browser, share: float, level: int, *, figure: str = DEVICE) -> tuple[float, float]:
    """A place in the window: `share` of the width from the left, in the middle of a level."""
    page.run(f"document.querySelector('{figure} canvas').scrollIntoView({{block: 'center'}})")
    page.settle()
    box = page.run(
        f"(r => [r.left, r.top, r.width])(document.querySelector('{figure} canvas').getBoundingClientRect())"
    )
    return box[0] + box[2] * share, box[1] + 20 * level + 10


def hover(page: Browser, share: float, level: int, *, figure: str = DEVICE) -> list[str]:
    page.mouse("mouseMoved", *point(page, share, level, figure=figure))
    page.settle()
    lines: list[str] = page.run("Array.from(document.querySelector('.tip').children).map(n => n.textContent)")
    return [line.replace("\u00a0", " ").replace("\u202f", " ") for line in lines]


def press(page: Browser, share: float, level: int, *, figure: str = DEVICE) -> None:
    x, y = point(page, share, level, figure=figure)
    page.mouse("mousePressed", x, y, pressed=True)
    page.mouse("mouseReleased", x, y)
    page.settle()


def find(page: Browser, words: str) -> str:
    page.run(
        f"var i = document.querySelector('{DEVICE} input[type=search]');"
        f"i.value = {json.dumps(words)}; i.dispatchEvent(new Event('input'))"
    )
    return text(page, f"{DEVICE} .tools output")


def colour(page: Browser, share: float, level: int) -> str:
    """Colour of the canvas 2 px below the top of a frame, as #rrggbb."""
    script = (
        f"(c => Array.from(c.getContext('2d').getImageData(Math.floor(c.width * {share}), {20 * level + 2}, 1, 1).data)"
        f".slice(0, 3).map(v => v.toString(16).padStart(2, '0')).join(''))(document.querySelector('{DEVICE} canvas'))"
    )
    return f"#{page.run(script)}"


def test_each_graph_is_in_its_section_with_its_switch(page: Browser) -> None:
    assert text(page, f"{DEVICE} h3") == "Flame graph of the device by module · Rank 0"
    assert text(page, f"{HOST} h3") == "Flame graph of the host · Rank 0"
    switch = page.run(f"Array.from(document.querySelectorAll('{DEVICE} .switch button')).map(b => b.textContent)")
    assert switch == ["By module", "By Python stack", "By operator"]
    assert page.run("document.querySelectorAll('figure.table[data-table^=flame]').length") == 0


def test_hovering_tells_exact_time_and_share(page: Browser) -> None:
    # By module: all (1000 us) > Net_0 (900) > Block_0 (600), Block_1 (300) > aten::mm > gemm, hcom_allReduce.
    assert hover(page, 0.5, 0)[:2] == ["all", "1 ms (100 % of all)"]
    assert hover(page, 0.3, 2) == ["Block_0", "600 us (60 % of all)", "module · 1×"]
    assert hover(page, 0.95, 1) == [EVIL, "100 us (10 % of all)", "operator · 1×"]
    assert hover(page, 0.87, 4) == ["hcom_allReduce", "50 us (5 % of all)", "communication · 1×"]


def test_colours_mean_what_they_mean_everywhere(page: Browser) -> None:
    point(page, 0.5, 1)
    variables = page.run(
        "(s => ['--k-computing', '--k-transfer', '--k-host'].map(n => s.getPropertyValue(n).trim()))"
        "(getComputedStyle(document.documentElement))"
    )

    assert colour(page, 0.58, 4) == variables[0]  # gemm of Block_0
    assert colour(page, 0.88, 4) == variables[1]  # the all-reduce
    assert colour(page, 0.59, 2) == variables[2]  # Block_0


def test_a_click_zooms_in_and_the_way_back_is_shown(page: Browser) -> None:
    press(page, 0.7, 2)  # Block_1, from 60 % to 90 %

    assert hover(page, 0.5, 0)[:2] == ["Block_1", "300 us (30 % of all)"]
    assert hover(page, 0.9, 2)[1] == "50 us (5 % of all) · 17 % of what is shown"
    crumbs = page.run(f"Array.from(document.querySelectorAll('{DEVICE} .crumbs .link')).map(n => n.textContent)")
    assert crumbs == ["all", "Net_0", "Block_1"]

    press(page, 0.5, 0)  # the top frame leads back to its caller
    assert hover(page, 0.5, 0)[0] == "Net_0"
    click(page, f"{DEVICE} .crumbs .quiet")
    assert hover(page, 0.5, 0)[0] == "all"


def test_search_sums_the_outermost_matches_and_dims_the_others(page: Browser) -> None:
    before = colour(page, 0.95, 1)

    assert find(page, "BLOCK") == "2 frames, 900 us (90 %)"
    assert colour(page, 0.95, 1) != before
    assert find(page, "mm") == "4 frames, 900 us (90 %)"  # aten::mm and the gemm below it: counted once
    assert find(page, "gemm") == "2 frames, 850 us (85 %)"
    assert find(page, "nothing of it") == "0 frames, 0 ns (0 %)"
    assert find(page, "") == ""
    assert colour(page, 0.95, 1) == before


def test_everything_can_be_done_by_keyboard(page: Browser) -> None:
    says = f"{DEVICE} .flame-says"
    point(page, 0.5, 0)
    page.run(f"document.querySelector('{DEVICE} canvas').focus({{preventScroll: true}})")

    said = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "Enter", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.key(key)
        page.settle()
        said.append(text(page, says).partition(" — ")[0])
    assert [said[i] for i in (0, 1, 2, 3)] == ["all", "Net_0", "Block_0", "Block_1"]
    assert said[5:] == ["Block_1", "aten::mm", "gemm"]
    page.key("Escape")
    page.settle()
    assert text(page, f"{DEVICE} .crumbs").startswith("all 1 ms")


def test_straight_chains_are_one_frame_until_unfolded(page: Browser) -> None:
    click(page, f"{DEVICE} [data-value='device-stack']")

    folded = hover(page, 0.5, 1)
    click(page, f"{DEVICE} [data-value='fold']")
    unfolded = hover(page, 0.5, 1)

    assert folded == [
        "net.py(9): forward", "3 frames in a straight line: train.py(3): main › Net_0", "900 us (90 % of all)",
        "Python · 3×",
    ]  # fmt: skip
    assert unfolded[:2] == ["train.py(3): main", "900 us (90 % of all)"]


def test_layers_can_be_merged(page: Browser) -> None:
    click(page, f"{DEVICE} [data-value='merge']")

    assert hover(page, 0.5, 1)[0] == "Block ×2"  # Net > Block is a straight chain now
    assert hover(page, 0.5, 3) == ["gemm", "850 us (85 % of all)", "kernel · 2×"]


def test_folded_stacks_are_those_of_the_command(page: Browser) -> None:
    page.run("AP.copy = function (text) { window.copied = text; }")

    for view in ("device-module", "device-stack", "device-op"):
        click(page, f"{DEVICE} [data-value='{view}']")
        buttons = f"Array.from(document.querySelectorAll('{DEVICE} button'))"
        page.run(f"{buttons}.find(b => /Copy/.test(b.textContent)).click()")
        target = io.BytesIO()
        write_folded(Request(run=Run(traces=(sample(),)), view=view), target)
        assert sorted(page.run("window.copied").splitlines()) == sorted(target.getvalue().decode().splitlines())


def test_frames_are_there_as_a_table_too(page: Browser) -> None:
    page.run(f"document.querySelector('{DEVICE} details.frames').open = true")
    page.settle()

    rows = page.run(
        f"Array.from(document.querySelectorAll('{DEVICE} .frames tbody tr')).map(r => "
        "Array.from(r.children).map(c => c.textContent))"
    )
    assert rows[0][:2] == ["gemm", "kernel"]
    by_name = {row[0]: row[2:] for row in rows}
    assert by_name["gemm"] == ["850.0", "85", "850.0", "2"]
    assert by_name["aten::mm"] == ["0", "0", "900.0", "3"]  # us, share in %, total in us, tasks
    assert EVIL in by_name
    assert page.run("document.querySelectorAll('main img, main script').length") == 0


def test_the_host_has_its_own_graph(page: Browser) -> None:
    # 2100 us of thread 7: 2000 in main > Net_0 > forward, 100 in an operator.
    assert hover(page, 0.97, 2, figure=HOST) == [EVIL, "100 us (4.8 % of all)", "operator · 1×"]
    assert hover(page, 0.4, 2, figure=HOST) == [
        "net.py(9): forward", "3 frames in a straight line: train.py(3): main › Net_0", "2 ms (95 % of all)",
        "of its own: 800 us (38 %)", "Python · 1×",
    ]  # fmt: skip
    press(page, 0.2, 3, figure=HOST)
    crumbs = page.run(f"Array.from(document.querySelectorAll('{HOST} .crumbs .link')).map(n => n.textContent)")
    assert crumbs == ["all", "Net_0", "net.py(9): forward", "Block_0"]


def test_the_choice_of_view_survives_a_reload(page: Browser, report: Path) -> None:
    click(page, f"{DEVICE} [data-value='device-op']")

    page.open(report)

    assert text(page, f"{DEVICE} h3").startswith("Flame graph of the device by operator")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_chinese_on_a_phone_nothing_sticks_out(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    page.size(390, 844, phone=True)
    click(page, "[data-value='zh']")

    assert page.run("document.documentElement.scrollWidth") <= 390
    assert text(page, f"{DEVICE} h3") == "Device 火焰图（按模块） · Rank 0"
    assert page.run(f"document.querySelector('{DEVICE} canvas').width") <= 390
    assert hover(page, 0.3, 2)[1:] == ["600 us（占全部的 60 %）", "模块 · 1 次"]


def test_print_shows_the_graph_in_light_colours_without_controls(page: Browser) -> None:
    page.prefer("dark", "print")
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.settle()

    light = page.run("getComputedStyle(document.documentElement).getPropertyValue('--k-host').trim()")
    assert light == "#7652b3"
    assert colour(page, 0.59, 2) == light
    hidden = f"Array.from(document.querySelectorAll('{DEVICE} input, {DEVICE} button')).every(n => !n.offsetParent)"
    assert page.run(hidden)
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.prefer("light")


def test_five_thousand_frames_draw_within_a_frame_budget_of_nodes(page: Browser, tmp_path: Path) -> None:
    # No test asserts on time: what is drawn is bounded by pixels, which is what keeps it fast.
    calls = [{"name": f"op{i}", "start_ns": i * 1000, "dur_ns": 900, "thread": 1} for i in range(4900)]
    trace = Trace({"host_ops": build_table("host_ops", calls)}, Meta(label="many", rank=0))
    outcome = replace(flame.run_on_trace(trace), trace_index=0)
    path = tmp_path / "report.html"
    write_html(build(Run(traces=(trace,)), [outcome], [], lang="en"), path)
    page.open(path)
    page.run(
        "window.rects = 0; var f = CanvasRenderingContext2D.prototype.fillRect;"
        "CanvasRenderingContext2D.prototype.fillRect = function () { window.rects++; f.apply(this, arguments); };"
        "AP.redrawFlames(); CanvasRenderingContext2D.prototype.fillRect = f"
    )

    assert 0 < page.run("window.rects") < 3000
