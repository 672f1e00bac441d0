"""The timeline in headless Chromium: window, search, statistics, saved trace, launches, findings, many intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from ascend_perf.analyzers.counters import counters
from ascend_perf.analyzers.timeline import timeline
from ascend_perf.model.finding import Evidence, Finding, Outcome, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS, RUNTIME_CALLS, STEPS
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import Payload, build
from tests.conftest import build_table
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

BASE: Final = 1_700_000_000_000_000_000
EVIL: Final = "<img src=x onerror=alert(1)>;</script>"
SPAN: Final = 1_000_000
SHIFT: Final = 8
"""Modifier of the DevTools protocol."""

KERNEL_ROWS: Final = [("MatMulV2", 100_000 + 10_000 * i, 6_000) for i in range(20)] + [
    ("Add", 400_000 + 2_000 * i, 500) for i in range(50)
]
"""Name, start after the beginning of the step, length: all on stream 2."""


def sample(rank: int = 0) -> Trace:
    """A step of 1 ms: 70 kernels, a collective that waits in between, copies, calls of the host, a counter."""
    def call(name: str, start: int, dur: int, key: str = "name") -> dict[str, object]:
        return {key: name, "start_ns": BASE + start, "dur_ns": dur, "thread": 7}

    kernels = [
        {"name": name, "start_ns": BASE + start, "dur_ns": dur, "stream": 2, "input_shapes": "8,8;8,8",
         "launch_start_ns": BASE + start - 50_000}
        for name, start, dur in KERNEL_ROWS
    ]  # fmt: skip
    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 3, "start_ns": BASE, "dur_ns": SPAN}],
        "kernels": kernels,
        "host_ops": [call("aten::mm", 0, 300_000), call("aten::add", 300_000, 200_000), call(EVIL, 900_000, 50_000)],
        "host_events": [
            {**call("Enqueue@mm", 1_000, 40_000), "kind": "enqueue"},
            {**call("Dequeue@mm", 45_000, 5_000), "kind": "dequeue", "thread": 8},
        ],
        "runtime_calls": [
            {**call("aclnnMatmul", 50_000 + 10_000 * i, 3_000, "api"), "thread": 8} for i in range(20)
        ] + [{**call("aclnnAdd", 350_000, 100_000, "api"), "thread": 8}],
        "copies": [{"start_ns": BASE + 20_000, "dur_ns": 30_000, "kind": "H2D", "stream": 5}],
        "comm_ops": [
            {"start_ns": BASE + 600_000, "dur_ns": 200_000, "name": "hcom_allReduce__1_0", "group_label": "dp"}
        ],
        "comm_tasks": [
            {"start_ns": BASE + 600_000, "dur_ns": 120_000, "kind": "Notify_Wait", "comm_op": 0, "plane": 0},
            {"start_ns": BASE + 720_000, "dur_ns": 80_000, "kind": "Memcpy", "comm_op": 0, "plane": 0},
        ],
        "counters": [
            {"time_ns": BASE + 10_000 * i, "counter": "AI Core Freq", "unit": "MHz", "value": 1800.0 - 1000 * (i >= 50)}
            for i in range(100)
        ],
    }  # fmt: skip
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(label=f"r{rank}", rank=rank))


def finding(severity: Severity, start: int, end: int, title: str) -> Finding:
    return Finding(
        code="N-05", analyzer="communication", title=Words(title, f"{title} 中文"), severity=severity, share_ratio=0.2,
        subject=title, evidence=(Evidence(name=Words("wait", "等待"), value=1),), remedies=(),
        cause=Words("c", "原因"), bands=((BASE + start, BASE + end),),
    )  # fmt: skip


def payload(ranks: int = 1) -> Payload:
    run = Run(traces=tuple(sample(rank) for rank in range(ranks)))
    found = (
        finding(Severity.CRITICAL, 600_000, 720_000, f"waits {EVIL}"),
        finding(Severity.LOW, 410_000, 420_000, "small kernels"),
    )
    outcomes: list[Outcome] = []
    for at, trace in enumerate(run.traces):
        outcomes += [replace(item.run_on_trace(trace), trace_index=at) for item in (timeline, counters)]
        outcomes.append(Outcome(analyzer="communication", status="done", rank=at, findings=found, trace_index=at))
    return build(run, outcomes, found, lang="en")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeline") / "report.html"
    write_html(payload(2), path)
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The report at its timeline, at 1280 px in light colours; afterwards nothing may have gone wrong."""
    browser.messages.clear()
    browser.requests.clear()
    browser.size(1280, 1000)
    browser.prefer("light")
    start(browser, report)
    yield browser
    # Reading pixels back is what these tests do, not the page.
    assert [said for said in browser.messages if "willReadFrequently" not in said] == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "about", "blob"}


def start(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.run("sessionStorage.clear()")
    browser.open(path, "#section-timeline")
    browser.settle()


def window(page: Browser) -> tuple[float, float]:
    page.settle()
    low, high = page.run("[AP.timelineNow().view.from, AP.timelineNow().view.to]")
    return float(low), float(high)


def box(page: Browser) -> tuple[float, float, float, float]:
    """Left, top, width of the canvas in the window, and where its lanes begin."""
    left, top, width = page.run(
        "(r => [r.left, r.top, r.width])(document.querySelector('.timeline canvas').getBoundingClientRect())"
    )
    first = page.run("AP.timelineNow().left()")
    return float(left), float(top), float(width), float(first)


def x_of(page: Browser, ns: float) -> float:
    """Place of an instant in the window of the browser."""
    left, _, width, first = box(page)
    low, high = window(page)
    return left + first + (ns - low) / (high - low) * (width - first)


def place(page: Browser, name: str, number: int = 0) -> tuple[float, float]:
    """Middle of the interval of a name in the window of the browser."""
    left, top, _, _ = box(page)
    found = page.run(
        f"(m => AP.timelineNow().place(Array.from(m.s.keys()).filter(i => m.name(i) === {json.dumps(name)})[{number}]))"
        "(AP.timelineNow().model)"
    )
    return left + found["x"], top + found["y"]


def drag(page: Browser, x0: float, y0: float, x1: float, y1: float, modifiers: int = 0) -> None:
    half = ((x0 + x1) / 2, (y0 + y1) / 2)
    for kind, (x, y) in (("Pressed", (x0, y0)), ("Moved", half), ("Moved", (x1, y1)), ("Released", (x1, y1))):
        page.call(
            "Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, button="left", buttons=int(kind != "Released"),
            clickCount=1, modifiers=modifiers,
        )  # fmt: skip
    page.settle()


def click(page: Browser, x: float, y: float) -> None:
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, pressed=True)
    page.mouse("mouseReleased", x, y)
    page.settle()


def focus(page: Browser) -> None:
    page.run("document.querySelector('.timeline canvas').focus({preventScroll: true})")


def texts(page: Browser, selector: str) -> list[str]:
    found: list[str] = page.run(
        f"Array.from(document.querySelectorAll({json.dumps(selector)})).map(n => n.textContent)"
    )
    return [text.replace("\u00a0", " ").replace("\u202f", " ") for text in found]


def test_the_window_follows_keys_wheel_and_drag(page: Browser) -> None:
    assert window(page) == (0, SPAN)  # the step, not only where something happens
    focus(page)

    page.key("+")
    assert window(page) == (200_000, 800_000)
    page.key("ArrowRight")
    assert window(page) == (320_000, 920_000)
    page.key("Home")
    assert window(page) == (0, SPAN)
    page.key("ArrowLeft")
    assert window(page) == (0, SPAN)  # there is nothing before the step

    x, y = x_of(page, 250_000), box(page)[1] + 60
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-400)
    factor = 1.0015**-400
    low, high = window(page)
    assert high - low == pytest.approx(SPAN * factor, rel=1e-6)
    assert low + (high - low) / 4 == pytest.approx(250_000, abs=1500)  # what was under the pointer stays there

    page.key("0")
    drag(page, x_of(page, 300_000), y, x_of(page, 500_000), y)
    low, high = window(page)
    assert (low, high) == pytest.approx((300_000, 500_000), abs=1500)

    drag(page, x_of(page, 400_000), box(page)[1] + 8, x_of(page, 450_000), box(page)[1] + 8)  # on the axis
    assert window(page) == pytest.approx((low - 50_000, high - 50_000), abs=1500)


def test_two_fingers_zoom_and_one_moves(page: Browser) -> None:
    y = box(page)[1] + 60

    def touch(kind: str, *points: float) -> None:
        fingers = [{"x": x, "y": y, "id": i} for i, x in enumerate(points)]
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)

    a, b = x_of(page, 400_000), x_of(page, 600_000)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    touch("touchStart", a)
    touch("touchStart", a, b)
    touch("touchMove", a - (b - a) / 2, b + (b - a) / 2)
    touch("touchEnd")
    low, high = window(page)
    assert high - low == pytest.approx(SPAN / 2, rel=0.02)
    assert (low + high) / 2 == pytest.approx(500_000, abs=10_000)

    x = x_of(page, 500_000)
    touch("touchStart", x)
    touch("touchMove", x - 60)
    touch("touchMove", x - 120)
    touch("touchEnd")
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)
    _, _, width, first = box(page)
    moved = 120 / (width - first) * (high - low)
    assert window(page)[0] == pytest.approx(low + moved, rel=0.05)


def test_search_counts_sums_and_steps_through_what_it_finds(page: Browser) -> None:
    page.run(
        "var i = document.querySelector('.timeline input[type=search]'); i.focus();"
        "i.value = 'matmulv2'; i.dispatchEvent(new Event('input'))"
    )
    page.settle()

    mine = [row for row in KERNEL_ROWS if row[0] == "MatMulV2"]
    total_us = sum(row[2] for row in mine) / 1000
    assert texts(page, ".timeline .table-head output") == [f"{len(mine)} found, {total_us:.0f} us in all"]

    page.key("Enter")
    page.key("Enter")
    page.settle()
    assert texts(page, ".timeline .table-head output")[0].startswith("2 / 20 found")
    pinned = texts(page, ".timeline-pin")[0]
    assert "MatMulV2" in pinned
    assert "6 us · +110 us · 6 000 ns from +110 000 ns" in pinned.replace("\u2009", " ")
    assert "8,8;8,8" in pinned
    page.run("document.querySelectorAll('.timeline .table-head .tools button[aria-label]')[4].click()")  # previous
    page.settle()
    assert texts(page, ".timeline .table-head output")[0].startswith("1 / 20 found")


def union(parts: list[tuple[int, int]]) -> int:
    return len({ns for start, end in parts for ns in range(start, end)})


def test_statistics_of_a_selection_are_those_of_the_intervals(page: Browser) -> None:
    top, bottom = place(page, "Add")[1] - 7, place(page, "hcom_allReduce__1_0")[1] + 4
    drag(page, x_of(page, 250_000), top, x_of(page, 700_000), bottom, SHIFT)

    said = page.run("AP.timelineNow().chosen()")
    low, high = said["start"], said["end"]
    assert (low, high) == pytest.approx((250_000, 700_000), abs=1500)

    def inside(rows: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        return [(n, max(s, low), min(s + d, high)) for n, s, d in rows if s < high and s + d > low]

    expected = {
        "computing": inside(KERNEL_ROWS), "transfer": inside([("hcom_allReduce__1_0", 600_000, 200_000)]),
        "wait": inside([("Notify_Wait", 600_000, 120_000)]),
    }  # fmt: skip
    made = {item["type"]: item for item in said["classes"]}
    assert set(made) == set(expected)  # copies lie before, the host's lanes are not selected
    for kind, parts in expected.items():
        assert made[kind]["count"] == len(parts)
        assert made[kind]["sum"] == sum(end - start for _, start, end in parts)
        assert made[kind]["union"] == union([part[1:] for part in parts])
        assert made[kind]["gap"] == high - low - made[kind]["union"]
    whole = union([part[1:] for kind in ("computing", "transfer") for part in expected[kind]])
    assert said["device"] == {"union": whole, "gap": high - low - whole}
    assert texts(page, "[data-stats='classes'] tbody th") == [
        "Computing", "Communication, with its waits", "of it waiting for a peer", "Computing or communication",
    ]  # fmt: skip
    assert texts(page, "[data-stats='classes'] tbody tr")[0].startswith("Computing5555 us")  # 55 of them, 55 us
    names = texts(page, "[data-stats='names'] tbody th")
    assert names == ["hcom_allReduce__1_0", "Notify_Wait", "MatMulV2", "Add"]

    page.key("Escape")
    focus(page)
    page.key("s")  # the whole window: hosts too
    page.settle()
    kinds = [item["type"] for item in page.run("AP.timelineNow().chosen()")["classes"]]
    assert kinds == ["host", "computing", "transfer", "wait", "copy"]


def test_the_saved_trace_holds_the_intervals_of_the_window(page: Browser) -> None:
    page.run("AP.offer = (name, text) => { window.saved = [name, text]; }")
    page.run("AP.timelineNow().window(150000, 650000)")
    page.settle()
    page.run("document.querySelector(\".timeline [data-value='save']\").click()")

    name, text = page.run("window.saved")
    document = json.loads(text)
    low, high = window(page)
    table = next(t for t in timeline.run_on_trace(sample()).tables if t.name == "timeline")
    cells = zip(*(table.column(n) for n in ("lane", "kind", "name", "start_ns", "dur_ns")), strict=True)
    expected = sorted(
        (str(lane), str(kind), str(label), (int(str(s)) - BASE) / 1000, int(str(d)) / 1000)
        for lane, kind, label, s, d in cells
        if int(str(s)) - BASE <= high and int(str(s)) + int(str(d)) - BASE >= low
    )
    events = document["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    made = sorted(
        (threads[e["pid"], e["tid"]], e["cat"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"
    )
    assert name == "timeline-rank0.json"
    assert made == expected
    matmul = next(e for e in events if e["name"] == "MatMulV2")
    assert matmul["args"] == {"shapes": "8,8;8,8", "launch_us": matmul["ts"] - 50}
    lanes = {name: track for track, name in threads.items()}
    arrows = [
        (e["id"], e["ph"], (e["pid"], e["tid"]), e["ts"]) for e in events if e["name"] == "launch" and e["ph"] in "sf"
    ]
    inside = [start for _, start, length in KERNEL_ROWS if start + length >= low and low <= start - 50_000 <= high]
    host, device = lanes["Runtime API, thread 8"], lanes["Stream 2"]
    assert sorted(arrow[1:] for arrow in arrows) == sorted(
        [("s", host, (start - 50_000) / 1000) for start in inside] + [("f", device, start / 1000) for start in inside]
    )
    assert sorted(a[0] for a in arrows if a[1] == "s") == sorted(a[0] for a in arrows if a[1] == "f")
    groups = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert groups == {
        "Host", "Dispatch queue", "Device streams", "Copies", "Communication", "Communication planes", "Counters",
    }  # fmt: skip
    samples = [e for e in events if e["ph"] == "C"]
    assert {e["args"]["value"] for e in samples} == {1.8e9, 8e8}


def test_a_pinned_kernel_shows_what_launched_it_and_a_call_what_it_launched(page: Browser) -> None:
    click(page, *place(page, "MatMulV2", 3))

    pinned = texts(page, ".timeline-pin")[0]
    assert "launched 50 us before its start" in pinned
    assert "launched by aclnnMatmul" in pinned
    assert texts(page, ".timeline-panel")[0].endswith("Zoom to itZoom to launch and taskClose")  # in no finding
    click(page, *place(page, "aclnnAdd"))
    launched = sum(350_000 <= start - 50_000 < 450_000 for _, start, _ in KERNEL_ROWS)
    assert f"launched {min(launched, 40)}+ tasks" in texts(page, ".timeline-pin")[0]
    focus(page)
    page.key("Escape")
    page.settle()
    assert texts(page, ".timeline-pin") == []


def test_findings_are_bands_with_marks_that_lead_to_their_cards(page: Browser) -> None:
    assert [text.split(" ")[0] for text in texts(page, ".timeline-bands a")] == ["▲▲", "●"]
    assert EVIL in texts(page, ".timeline-bands a")[0]
    assert page.run("document.querySelectorAll('.timeline img').length") == 0
    page.run("AP.timelineNow().window(0, 500000)")
    page.settle()
    assert len(texts(page, ".timeline-bands a")) == 1  # those of the window

    click(page, x_of(page, 410_000) + 6, box(page)[1] + 27)

    assert page.run("location.hash") == "#finding-2"
    focus(page)


def test_findings_that_are_not_said_below_the_timeline_are_counted(page: Browser) -> None:
    """Ten findings: eight, and how many more; nine stand whole, where a line of its own would say no less."""
    page.run("AP.data.findings.push(...Array.from({ length: 8 }, () => AP.data.findings[1])); AP.render()")
    page.settle()

    assert len(texts(page, ".timeline-bands a")) == 9
    assert texts(page, ".timeline-bands a")[-1] == "2 more findings"
    page.run("AP.data.findings.pop(); AP.render()")
    page.settle()
    assert len(texts(page, ".timeline-bands a")) == 9
    assert "more" not in texts(page, ".timeline-bands a")[-1]


def test_a_link_opens_a_window_of_a_rank(page: Browser, report: Path) -> None:
    page.open(report, "#timeline=1,100000,350000")
    page.settle()

    assert page.run("AP.state.rank") == 1
    assert window(page) == (100_000, 350_000)
    assert 0 <= page.run("document.getElementById('section-timeline').getBoundingClientRect().top") < 200
    for wrong in ("timeline=1,x", "timeline=7,0,100", "timeline"):
        assert page.run(f"AP.followTimeline('{wrong}')") is False


KEPT = """new Promise(done => (function look() {
  if (Object.values(sessionStorage).some(kept => kept.includes('350000'))) done();
  else setTimeout(look, 20);
})())"""
"""The window of the timeline is kept a moment after it stands still."""


def test_groups_close_by_keyboard_and_window_and_groups_survive_a_reload(page: Browser, report: Path) -> None:
    before = page.run("document.querySelector('.timeline canvas').offsetHeight")
    page.run("AP.timelineNow().window(100000, 350000); document.querySelector(\"[data-group='host']\").focus()")
    page.run("document.activeElement.click()")
    page.settle()

    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "false"
    assert texts(page, "[data-group='host']") == ["▸ Host (2)"]
    assert page.run("document.querySelector('.timeline canvas').offsetHeight") < before
    page.run(KEPT)
    for _ in range(5):  # a browser that is busy hands the storage of a page late to the next one
        page.open(report)
        if texts(page, "[data-group='host']") == ["▸ Host (2)"]:
            break
    assert texts(page, "[data-group='host']") == ["▸ Host (2)"]
    assert window(page) == (100_000, 350_000)


def test_lanes_have_their_places_and_waits_lie_in_their_collective(page: Browser) -> None:
    assert texts(page, ".timeline-group") == [
        "▾ Host", "▾ Dispatch queue", "▾ Device streams", "▾ Copies", "▾ Communication", "▾ Communication planes",
        "▾ Counters",
    ]  # fmt: skip
    lanes = page.run("AP.timelineNow().model.lanes.filter(l => !l.hidden).map(l => l.name)")
    assert lanes == [
        "Host thread 7", "Runtime API, thread 8", "Enqueue, thread 7", "Dequeue, thread 8", "Stream 2",
        "Copies, stream 5", "Communication dp", "Plane 0, dp",
    ]  # fmt: skip
    left, top, _, _ = box(page)
    y = place(page, "hcom_allReduce__1_0")[1]
    page.mouse("mouseMoved", x_of(page, 660_000), y)
    page.settle()
    assert "Notify_Wait" in texts(page, ".tip")[0]
    page.mouse("mouseMoved", x_of(page, 760_000), y)
    page.settle()
    assert texts(page, ".tip")[0].startswith("hcom_allReduce__1_0200 us")
    hatched, solid = (
        page.run(
            f"""(function (x, y) {{
              const c = document.querySelector('.timeline canvas'), k = window.devicePixelRatio;
              const d = c.getContext('2d').getImageData((x - 6) * k, (y - 3) * k, 12, 6).data;
              const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 3).join());
              return seen.size;
            }})({x_of(page, at) - left}, {y - top})"""
        )
        for at in (690_000, 760_000)
    )
    assert hatched > 3
    assert solid == 1


def test_chinese_and_print(page: Browser) -> None:
    page.run("document.querySelector(\"[data-value='zh']\").click()")
    page.settle()
    assert texts(page, ".timeline-group")[:3] == ["▾ Host", "▾ 下发队列", "▾ 设备流"]
    assert "所有区间均逐一绘制" in "".join(texts(page, ".timeline .table-foot"))
    page.prefer("dark", "print")
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run("getComputedStyle(document.querySelector('.timeline .tools')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('.timeline canvas')).display") == "block"
    assert page.run("getComputedStyle(document.querySelector('.timeline-group')).display") != "none"
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.prefer("light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(page: Browser, report: Path, scheme: str) -> None:
    page.prefer(scheme)
    page.size(390, 844, phone=True)
    page.open(report, "#section-timeline")
    page.settle()

    assert page.run("document.documentElement.scrollWidth") <= 390
    focus(page)
    page.key("s")
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 390


# ---- a million intervals --------------------------------------------------------------------------------------------

MILLION: Final = 1_000_000


def million() -> Trace:
    """Half of them kernels on four streams, the rest calls of the host on two lanes."""
    rng = np.random.default_rng(7)
    kernels, ops = MILLION // 2, MILLION // 4
    gaps, lengths = rng.integers(0, 900, kernels), rng.integers(200, 3000, kernels)
    starts = np.cumsum(gaps + np.concatenate(([0], lengths[:-1])))
    span = int(starts[-1] + lengths[-1])

    def on_host(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        at = np.sort(np.random.default_rng(seed).choice(span - 10_000, ops, replace=False)).astype(np.int64)
        return at, np.maximum(1, np.diff(np.append(at, span)) * 7 // 10)

    names = [f"aclnnKernel_{i}" for i in range(300)]
    codes = rng.integers(0, len(names), kernels).astype(np.int32)
    op_start, op_dur = on_host(1)
    call_start, call_dur = on_host(2)
    host = Text(rng.integers(0, 80, ops).astype(np.int32), [f"aten::op_{i}" for i in range(80)])
    api = Text(rng.integers(0, 9, ops).astype(np.int32), [f"aclrtCall{i}" for i in range(9)])
    thread = np.full(ops, 7)
    return Trace(
        {
            "steps": Table(
                STEPS,
                {"step_id": np.array([1]), "start_ns": np.array([BASE]), "dur_ns": np.array([span])},
            ),
            "kernels": Table(
                KERNELS,
                {
                    "start_ns": starts + BASE, "dur_ns": lengths, "name": Text(codes, names),
                    "stream": rng.integers(0, 4, kernels), "launch_start_ns": starts + BASE - 50_000,
                },
            ),
            "host_ops": Table(
                HOST_OPS, {"start_ns": op_start + BASE, "dur_ns": op_dur, "name": host, "thread": thread}
            ),
            "runtime_calls": Table(
                RUNTIME_CALLS, {"start_ns": call_start + BASE, "dur_ns": call_dur, "api": api, "thread": thread}
            ),
        },
        Meta(rank=0),
    )  # fmt: skip


def test_a_million_intervals_stay_smooth_and_small(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = million()
    outcome = timeline.run_on_trace(trace)
    made = build(Run(traces=(trace,)), [replace(outcome, trace_index=0)], [], lang="en")
    path = tmp_path / "report.html"
    write_html(made, path)
    table = next(t for t in outcome.tables if t.name == "timeline")
    browser.messages.clear()
    browser.size(1280, 900)
    browser.open(path, "#section-timeline")

    embedded = browser.run(
        "JSON.stringify(AP.data.tables.find(t => t.name === 'timeline').columns.map(c => [c.texts, c.packed])).length"
    )
    assert embedded < 1_000_000
    assert browser.run("AP.timelineNow().model.total") == sum(int(str(n)) for n in table.column("count")) == MILLION
    times = browser.run("""new Promise(done => {
      const canvas = document.querySelector('.timeline canvas'), long = [], drawn = [];
      canvas.focus({ preventScroll: true });
      new PerformanceObserver(l => l.getEntries().forEach(e => long.push(e.duration)))
        .observe({ entryTypes: ['longtask'] });
      const keys = [];
      for (let i = 0; i < 24; i++) keys.push('+', 'ArrowRight');
      for (let i = 0; i < 24; i++) keys.push('-');
      let k = 0;
      (function step() {
        if (k === keys.length) return setTimeout(() => done({ long: long, drawn: drawn, built: canvas.builtMs }), 300);
        canvas.dispatchEvent(new KeyboardEvent('keydown', { key: keys[k++], bubbles: true }));
        requestAnimationFrame(() => requestAnimationFrame(() => { drawn.push(canvas.drawMs); step(); }));
      })();
    })""")
    with capsys.disabled():
        print(
            f"\na million intervals: {embedded / 1e3:.0f} kB, built in {times['built']:.0f} ms, drawn in at most "
            f"{max(times['drawn']):.1f} ms, long tasks while zooming: {times['long']}"
        )
    assert len(times["drawn"]) == 72
    assert max(times["drawn"]) < 5_000  # a picture is a matter of pixels: a loop over all would take far longer

    # Where nothing is merged, the intervals are those of the trace; elsewhere it is said how many are merged.
    browser.run("document.querySelector(\"[data-value='exact']\").click()")
    browser.settle()
    low, high = browser.run("[AP.timelineNow().view.from, AP.timelineNow().view.to]")
    shown = browser.run("""((m, view) => Array.from(m.s.keys())
      .filter(i => m.rawKind(i) === 'compute' && m.s[i] >= view.from && m.e[i] <= view.to)
      .map(i => [m.name(i), m.s[i], m.e[i] - m.s[i]]))(AP.timelineNow().model, AP.timelineNow().view)""")
    kernels = trace[KERNELS]
    starts = kernels.ints("start_ns") - BASE
    inside = np.flatnonzero((starts >= low) & (kernels.ends_ns() - BASE <= high))
    names, lengths = kernels.text("name"), kernels.ints("dur_ns")
    real = sorted((str(names[i]), int(starts[i]), int(lengths[i])) for i in inside.tolist())
    assert len(real) > 1000
    assert sorted(tuple(item) for item in shown) == real
    assert "every interval of this window is exact" in texts(browser, ".timeline .table-foot")[0]

    browser.run("AP.timelineNow().window(0, 2000000)")
    browser.settle()
    assert "the others are merged into runs" in texts(browser, ".timeline .table-foot")[0]
    run = browser.run(
        "(m => Array.from(m.s.keys()).find(i => m.count[i] > 1 && m.rawKind(i) === 'compute'))(AP.timelineNow().model)"
    )
    browser.run(f"(now => now.pin({{ lane: now.model.lanes[now.model.lane[{run}]], id: {run} }}))(AP.timelineNow())")
    count, length = int(str(table.column("count")[run])), int(str(table.column("dur_ns")[run]))
    assert texts(browser, ".timeline-pin strong")[0].startswith(f"{count} intervals in ")
    assert f"{length / 1000:.4g}" in texts(browser, ".timeline-pin strong")[0]

    document = json.loads(browser.run("AP.lanes.trace(AP.timelineNow().model, 0, 2000000)"))
    merged = [e for e in document["traceEvents"] if e["ph"] == "X" and e["args"].get("merged")]
    assert merged
    assert all(e["name"].startswith(f"[merged] {e['args']['intervals']} x ") for e in merged)
    assert browser.messages == []
