"""Plotly figures hold the figures of the page: each against an independent computation from its table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import analysis, pipeline
from ascend_perf.model.finding import Cell, Outcome, ResultColumn, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports import _plots_kernels, _plots_ranks, _plots_time, build, figures
from ascend_perf.reports._plots import NotInData, label
from ascend_perf.reports.bars import bars
from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.palette import category, palette, shades
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.sections import SECTION_OF_TABLE
from ascend_perf.units import Unit
from tests.reports import _sample_tables, _samples
from tests.reports._sample_tables import HOSTILE

ASSETS = Path(figures.__file__).parent / "assets"
MS = 1e6


def table_of(name: str, units: Mapping[str, Unit], rows: Sequence[Sequence[Cell]]) -> ResultTable:
    """A table whose columns are called by their names."""
    return ResultTable(
        name=name,
        title=Words(f"Table {name}", f"表 {name}"),
        columns=tuple(ResultColumn(name=n, title=Words(n, f"中 {n}"), unit=u) for n, u in units.items()),
        data=tuple(tuple(row[at] for row in rows) for at in range(len(units))),
    )


def with_tables(*tables: ResultTable, rank: int | None = 0, job: bool = False) -> Payload:
    """A payload of one outcome."""
    outcome = Outcome(
        analyzer="a", status="done", rank=None if job else rank, scope="job" if job else "rank", tables=tables
    )
    return build(Run(traces=(Trace(meta=Meta(rank=rank)),)), [outcome], [], lang="en")


# ---- all of them ---------------------------------------------------------------------------------------------------


def test_every_chart_of_the_page_has_its_figures() -> None:
    drawn = {
        "roofline": {"roofline"},
        "memory": {"memory"},
        "heat": {"comm-waits", "comm-links", "link-matrix", "rank-waits"},
        "strip": {"rank-strip"},
        "counters": {"counters"},
        "timeline": {"timeline"},
        "sizes": {"size-bandwidth"},
        "composition": {"critical-path", "job-critical-path", "idle-causes"},
    }
    named = set(re.findall(r'"data-chart": "([\w-]+)"', "".join(p.read_text("utf-8") for p in ASSETS.glob("*.js"))))
    flames = {name for name in SECTION_OF_TABLE if name.startswith("flame-")}
    series = re.findall(r'"(\w+)"', re.findall(r"FIGURES = \[(.*?)\]", (ASSETS / "series.js").read_text("utf-8"))[0])

    assert named - set(drawn) == set()  # a new chart of the page: give it a figure, and a line here
    assert set().union(*drawn.values()) <= set(figures.FIGURES)
    assert flames <= set(figures.FIGURES)
    assert series == ["loss", "grad_norm", "loss_scale"]
    assert {"loss", "gradient-norm", "loss-scale", "step-bar"} <= set(figures.FIGURES)


def test_only_what_is_in_the_data_is_drawn() -> None:
    made = figures.figures(_samples.payload())

    assert set(made) == {
        "step-bar", "timeline", "op-types", "roofline", "comm-waits", "comm-links", "memory", "rank-strip",
    }  # fmt: skip
    assert list(made) == [name for name in figures.FIGURES if name in made]


def test_an_unknown_figure_and_a_missing_one_say_what_there_is() -> None:
    payload = _samples.payload()

    with pytest.raises(KeyError, match=r"no figure 'rooflines'; there are step-bar, timeline"):
        figures.figure(payload, "rooflines")
    with pytest.raises(NotInData, match=r"'loss' is not in this data: no table 'training-series'"):
        figures.figure(payload, "loss")
    with pytest.raises(NotInData, match="no table 'memory-timeline' of rank 7"):
        figures.figure(payload, "memory", rank=7)


def test_a_table_without_the_column_it_needs_is_not_drawn() -> None:
    table = table_of("roofline", {"name": "none", "achieved_flops_per_s": "flops_per_s"}, [["a", 1.0]])

    with pytest.raises(NotInData, match="'roofline' has no column 'intensity_flops_per_byte'"):
        figures.figure(with_tables(table), "roofline")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_those_of_the_style_sheet(theme: str) -> None:
    sheet = (ASSETS / "report.css").read_text("utf-8")
    head = ":root {" if theme == "light" else ':root[data-theme="dark"] {'
    block = sheet.split(head, 1)[1].split("}", 1)[0]
    colours = palette("light" if theme == "light" else "dark")

    for name in ("page", "text", "k-computing", "k-transfer", "k-wait", "k-copy", "k-idle", "k-host", "heat-orange"):
        assert f"--{name}: {colours[name]};" in block
    assert len(colours) == len(re.findall(r"--[\w-]+: #[0-9a-f]{6};", block))


def test_names_of_a_trace_are_no_markup_in_any_figure() -> None:
    said = "".join(figure.to_json() for figure in figures.figures(_samples.payload()).values())

    assert "alert(" in said  # the hostile names are there
    assert "<script" not in said and "<img" not in said and "\\u003cscript" not in said
    assert label("<b>&amp;") == "&lt;b&gt;&amp;amp;"
    assert len(label("x" * 1000)) == 121


# ---- the step ------------------------------------------------------------------------------------------------------


def test_the_step_bar_has_the_parts_and_colours_of_the_page() -> None:
    payload = _samples.payload()
    figure = figures.figure(payload, "step-bar")

    by_name = {trace.name: trace for trace in figure.data}
    assert by_name["Cube"].x == pytest.approx((2.805855, 2.805855))
    assert by_name["Cube"].y == ("Rank 0", "Rank 1")
    assert [sum(trace.x[rank] for trace in figure.data) for rank in (0, 1)] == pytest.approx(
        [_sample_tables.STEP_NS / MS, (_sample_tables.STEP_NS - 4669) / MS]
    )
    first = bars(payload)[0]
    assert [trace.marker.color for trace in figure.data] == [
        category(part.kind, shade) for part, shade in zip(first.parts, shades(first), strict=True)
    ]
    hatched = [trace for trace in figure.data if trace.marker.pattern.shape == "/"]
    assert [trace.marker.color for trace in hatched] == [palette()["k-wait"]]


def test_idle_causes_are_sorted_and_add_up() -> None:
    rows: list[list[Cell]] = [["nothing", 6_000_000], ["dispatch", 2_000_000], ["copy", 0]]
    payload = with_tables(table_of("idle-causes", {"cause": "none", "total_ns": "ns"}, rows))

    (trace,) = figures.figure(payload, "idle-causes").data

    assert list(trace.x) == [2.0, 6.0]
    assert [text.replace("\u2009", " ") for text in trace.text] == ["25 %", "75 %"]


def test_the_critical_path_is_coloured_by_what_it_is() -> None:
    rows: list[list[Cell]] = [
        ["collective wait", None, 70_000_000, 0.7], ["computing", "matmul", 20_000_000, 0.2],
        ["host dispatch", None, 10_000_000, 0.1],
    ]  # fmt: skip
    units: dict[str, Unit] = {"component": "none", "class": "none", "time_ns": "ns", "share_ratio": "ratio"}

    (trace,) = figures.figure(with_tables(table_of("critical-path", units, rows)), "critical-path").data
    (job,) = figures.figure(with_tables(table_of("job-critical-path", units, rows), job=True), "job-critical-path").data

    assert list(trace.x) == [70.0, 20.0, 10.0]
    assert list(trace.marker.color) == [palette()[name] for name in ("k-wait", "k-computing", "k-host")]
    assert list(trace.marker.pattern.shape) == ["/", "", ""]
    assert trace.y[1].endswith(")") and "(" in trace.y[1]  # the class of the kernels
    assert list(job.x) == list(trace.x)


def test_every_part_of_a_critical_path_has_a_kind() -> None:
    from ascend_perf.analyzers._path_elements import HOST, KINDS
    from ascend_perf.reports.parts import path_kind

    kinds = {kind.value: path_kind(kind.value) for kind in KINDS}

    assert [value for value, kind in kinds.items() if kind == "other"] == []
    assert {value for value, kind in kinds.items() if kind == "host"} == {kind.value for kind in HOST}


# ---- time ----------------------------------------------------------------------------------------------------------


def test_the_timeline_holds_every_interval_from_the_start_of_the_step() -> None:
    payload = _samples.payload()
    table = next(table for rank, table in payload.tables("timeline") if rank == 0)

    figure = figures.figure(payload, "timeline", rank=0)

    assert len(table) < _plots_time.MAX_INTERVALS
    assert sum(len(trace.x) for trace in figure.data) == len(table)
    drawn = sorted((base, length) for trace in figure.data for base, length in zip(trace.base, trace.x, strict=True))
    known = sorted(
        ((start - _sample_tables.START_NS) / MS, length / MS)
        for start, length in zip(table.column("start_ns"), table.column("dur_ns"), strict=True)
        if isinstance(start, int) and isinstance(length, int)
    )
    assert [start for start, _ in drawn] == pytest.approx([start for start, _ in known])
    assert [length for _, length in drawn] == pytest.approx([length for _, length in known])
    assert {trace.marker.color for trace in figure.data if trace.name == "Wait"} <= {palette()["k-wait"]}
    assert list(figure.layout.yaxis.categoryarray) == list(dict.fromkeys(table.column("lane")))


def test_a_long_timeline_is_merged_and_says_so() -> None:
    events = 4 * _plots_time.MAX_INTERVALS
    payload = with_tables(_sample_tables.timeline(0, events))

    figure = figures.figure(payload, "timeline")

    kept = sum(len(trace.x) for trace in figure.data)
    assert kept <= 1.5 * _plots_time.MAX_INTERVALS
    assert f"({kept} / {len(_sample_tables.timeline(0, events))})" in figure.layout.title.text


def test_memory_is_steps_in_gib() -> None:
    figure = figures.figure(_samples.payload(), "memory", rank=0)

    first = figure.data[0]
    assert (first.name, first.x[0], first.y[0]) == ("PTA, allocated", 0, 300 / 1024)
    assert first.line.shape == "hv" and figure.data[1].line.dash == "dash"
    assert first.x[100] == pytest.approx(100 * _sample_tables.STEP_NS // 400 / MS)
    assert [len(trace.x) for trace in figure.data] == [400, 400, 100, 100]


SERIES: dict[str, Unit] = {"step": "count", "series": "none", "loss": "none", "loss_scale": "none"}


def test_a_restart_of_the_training_is_a_line_of_its_own() -> None:
    rows: list[list[Cell]] = [
        [1, "a", 9.0, 1024.0], [2, "a", 8.0, 1024.0], [2, "a", 8.5, 1024.0], [3, "a", 7.0, 1024.0],
        [1, "b", -1.0, None],
    ]  # fmt: skip
    payload = with_tables(table_of("training-series", SERIES, rows), job=True)

    figure = figures.figure(payload, "loss")

    first, second = figure.data
    assert list(first.x) == [1, 2, None, 2, 3] and list(first.y) == [9, 8, None, 8.5, 7]
    assert not second.y  # below zero: no place on a logarithmic axis
    assert figure.layout.yaxis.type == "log"
    with pytest.raises(NotInData, match="never changes"):
        figures.figure(payload, "loss-scale")
    with pytest.raises(NotInData, match="never changes, or is not in this data"):
        figures.figure(payload, "gradient-norm")


def test_counters_have_a_mean_inside_of_their_range_on_one_clock() -> None:
    units: dict[str, Unit] = {
        "counter": "none", "unit": "none", "start_ns": "none", "dur_ns": "ns", "mean": "none", "least": "none",
        "most": "none", "computing_ratio": "ratio",
    }  # fmt: skip
    rows: list[list[Cell]] = [
        ["HBM", "bytes_per_s", 1_000_000, 2_000_000, 2e9, 1e9, 3e9, 0.25],
        ["HBM", "bytes_per_s", 3_000_000, 2_000_000, 4e9, 4e9, 4e9, 1.0],
        ["dead", "count", 1_000_000, 2_000_000, 0, 0, 0, 0.25],
        ["dead", "count", 3_000_000, 2_000_000, 0, 0, 0, 1.0],
        ["one", "count", 1_000_000, 2_000_000, 5, 5, 5, 0.25],
    ]

    figure = figures.figure(with_tables(table_of("counter-timeline", units, rows)), "counters")

    busy, least, most, mean = figure.data
    assert list(mean.x) == [1.0, 3.0]  # centres of [0, 2) and [2, 4) ms from the first sample
    assert (list(least.y), list(mean.y), list(most.y)) == ([1e9, 4e9], [2e9, 4e9], [3e9, 4e9])
    assert list(busy.y) == [0.25, 1.0]
    assert figure.layout.yaxis2.ticktext == ("0", "4 GB/s")


# ---- operators -----------------------------------------------------------------------------------------------------


def test_operator_types_come_with_their_cumulative_share() -> None:
    figure = figures.figure(_samples.payload(), "op-types", rank=0)

    bar, line = figure.data
    times = [1_959_079, 1_423_202, 921_498, 723_434, 204_002]
    assert list(bar.y) == pytest.approx([time / MS for time in times])
    assert list(line.y) == pytest.approx([sum(times[: i + 1]) / sum(times) for i in range(5)])
    assert line.y[-1] == 1


def test_many_operator_types_end_in_one_bar_for_the_rest() -> None:
    rows: list[list[Cell]] = [[f"Op{i}", 1_000_000 * (40 - i)] for i in range(40)]
    payload = with_tables(table_of("op-types", {"op_type": "none", "total_ns": "ns"}, rows))

    bar, line = figures.figure(payload, "op-types").data

    assert len(bar.x) == _plots_kernels.MAX_TYPES + 1 and bar.x[-1] == "Others (15)"
    assert bar.y[-1] == pytest.approx(sum(range(1, 16)))
    assert line.y[-1] == pytest.approx(1)


@pytest.mark.parametrize(("name", "column"), [("roofline-classes", "class"), ("mac", "op_type")])
def test_wasted_time_and_the_rest_add_up_to_the_time(name: str, column: str) -> None:
    rows: list[list[Cell]] = [["X", 4_000_000, 1_000_000], ["Y", 9_000_000, 8_000_000], ["X", 2_000_000, 500_000],
                              ["Z", 7_000_000, None]]  # fmt: skip
    payload = with_tables(table_of(name, {column: "none", "time_ns": "ns", "wasted_ns": "ns"}, rows))

    wasted, used = figures.figure(payload, "wasted-time").data

    assert list(wasted.y) == ["Y", "X"]  # the most wasted first; no roof, no bar
    assert list(wasted.x) == [8.0, 1.5] and list(used.x) == [1.0, 4.5]


def test_the_roofline_has_the_kernels_and_the_roofs_up_to_the_ridge() -> None:
    payload = _samples.payload()
    table = next(table for rank, table in payload.tables("roofline") if rank == 0)

    kernels, cube, vector, memory = figures.figure(payload, "roofline").data

    assert list(kernels.x) == list(table.column("intensity_flops_per_byte"))
    assert list(kernels.y) == list(table.column("achieved_flops_per_s"))
    assert kernels.marker.symbol.count("circle-open") == 30  # vector kernels are hollow
    times = [time for time in table.column("time_ns") if isinstance(time, int)]
    at = times.index(max(times))
    assert kernels.marker.size[at] == _plots_kernels.MAX_MARK_PX
    assert kernels.marker.size[0] == pytest.approx(max(5, 32 * (times[0] / max(times)) ** 0.5))
    assert list(cube.y) == [88.5e12] * 2 and list(vector.y) == [11.1e12] * 2
    assert list(memory.y) == pytest.approx([1.6e12 * x for x in memory.x])


FLAME_UNITS: dict[str, Unit] = {
    "parent": "none", "name": "none", "self_ns": "ns", "total_ns": "ns", "count": "count", "class": "none"
}  # fmt: skip


def test_a_flame_graph_is_an_icicle_whose_frames_hold_their_callees() -> None:
    rows: list[list[Cell]] = [
        [None, "thread 7", 1_000_000, 10_000_000, 1, "thread"], [0, HOSTILE, 4_000_000, 6_000_000, 3, "op"],
        [None, "thread 8", 5_000_000, 5_000_000, 1, "thread"], [0, "", 3_000_000, 3_000_000, 12, "rest"],
        [1, "k", 2_000_000, 2_000_000, 9, "kernel"],
    ]  # fmt: skip
    payload = with_tables(table_of("flame-host", FLAME_UNITS, rows))

    (trace,) = figures.figure(payload, "flame-host").data

    assert list(trace.parents) == ["", "all", "0", "all", "0", "1"]
    assert list(trace.values) == [15.0, 10.0, 6.0, 5.0, 3.0, 2.0]
    assert trace.labels[0] == "all" and trace.labels[4] == "(12 smaller)"
    assert trace.marker.colors[1:] == tuple(
        category(*_plots_kernels.FLAME[name]) for name in ("thread", "op", "thread", "rest", "kernel")
    )
    inside: dict[str, float] = {}
    for parent, value in zip(trace.parents[1:], trace.values[1:], strict=True):
        inside[parent] = inside.get(parent, 0) + value
    held = dict(zip(trace.ids, trace.values, strict=True))
    assert all(held[parent] >= sum_of for parent, sum_of in inside.items())


def test_every_class_of_a_frame_has_the_colour_of_the_page() -> None:
    script = (ASSETS / "flame.js").read_text("utf-8")
    body = re.findall(r"FILL = \{(.*?)\};", script, re.DOTALL)[0]
    page = {name: fill for name, fill in re.findall(r'(\w+): "([\w-]+)"', body) if name != "all"}

    assert {
        name: kind if not shade else f"{kind}-{shade}" for name, (kind, shade) in _plots_kernels.FLAME.items()
    } == page


# ---- ranks ---------------------------------------------------------------------------------------------------------


def test_a_heat_map_adds_averages_or_takes_the_lowest() -> None:
    rows: list[list[Cell]] = [[0, 1, 2.0], [0, 1, 4.0], [10, 0, 6.0], [2, 2, 100.0], [3, None, 5.0], [3, 0, None]]
    table = table_of("t", {"a": "none", "b": "none", "v": "none"}, rows)

    down, across, grid = _plots_ranks.matrix(table, "a", "b", "v", sum, square=True)
    assert down == across == [0, 1, 2, 10]
    assert grid[0][1] == 6.0 and grid[3][0] == 6.0 and grid[2][2] == 100.0 and grid[1] == [None] * 4
    _, _, lowest = _plots_ranks.matrix(table, "a", "b", "v", min, square=False)
    assert lowest[0][1] == 2.0
    down, across, means = _plots_ranks.matrix(
        table, "a", "b", "v", lambda values: sum(values) / len(values), square=False, itself=False
    )
    assert (down, across) == ([0, 10], [0, 1]) and means == [[None, 3.0], [6.0, None]]


cell = st.tuples(st.integers(0, 12), st.integers(0, 12), st.floats(0, 1e9))


@given(st.lists(cell, min_size=2, max_size=40))
def test_no_value_of_a_heat_map_is_lost(found: list[tuple[int, int, float]]) -> None:
    table = table_of("t", {"a": "none", "b": "none", "v": "ns"}, [list(row) for row in found])
    ranks = {rank for row in found for rank in row[:2]}
    if len(ranks) ** 2 < 2:
        with pytest.raises(NotInData):
            _plots_ranks.matrix(table, "a", "b", "v", sum, square=True)
        return

    down, across, grid = _plots_ranks.matrix(table, "a", "b", "v", sum, square=True)

    assert down == across == sorted(ranks)
    assert sum(value for line in grid for value in line if value is not None) == pytest.approx(
        sum(value for _, _, value in found)
    )


def test_waits_and_links_are_drawn_as_in_the_page() -> None:
    payload = _samples.payload()

    (waits,) = figures.figure(payload, "comm-waits", rank=0).data
    (links,) = figures.figure(payload, "comm-links", rank=0).data

    assert (list(waits.y), list(waits.x)) == (["0", "1"], ["1", "3", "5"])
    assert [list(line) for line in waits.z] == [[400_000, 2_200_000, 94_600_000], [None, None, 90_100_000]]
    assert links.z[2][5] == 6.2e9 + 2e8 and links.z[2][2] is None
    assert waits.colorscale[1][1] == palette()["heat-orange"] and links.colorscale[1][1] == palette()["heat-teal"]
    assert (waits.zmin, waits.zmax) == (0, 94_600_000)


def test_rank_waits_and_the_link_matrix_belong_to_the_job() -> None:
    waits = table_of(
        "rank-waits", {"waiter": "none", "late": "none", "exposed_ns": "ns"}, [[0, 5, 7.0e6], [1, 5, 6.0e6]]
    )
    links = table_of("link-matrix", {"src": "none", "dst": "none", "ratio": "ratio"},
                     [[0, 1, 0.9], [0, 1, 0.5], [1, 0, 1.0]])  # fmt: skip
    payload = with_tables(waits, links, job=True)

    (heat,) = figures.figure(payload, "rank-waits", rank=3).data
    (ratio,) = figures.figure(payload, "link-matrix").data

    assert list(heat.x) == list(heat.y) == ["0", "1", "5"] and heat.z[0][2] == 7.0e6
    assert [list(line) for line in ratio.z] == [[None, 0.5], [1.0, None]]
    assert (ratio.zmin, ratio.zmax) == (0.5, 1) and ratio.colorscale[0][1] == palette()["heat-orange"]


def test_groups_are_waiting_transfer_and_the_rest() -> None:
    units: dict[str, Unit] = {"group": "none", "ranks": "none", "total_ns": "ns", "wait_ns": "ns", "transit_ns": "ns"}
    rows: list[list[Cell]] = [["dp", "0-7", 10_000_000, 7_000_000, 2_000_000], ["tp", None, 5_000_000, None, None]]

    waits, moves, rest = figures.figure(with_tables(table_of("comm-groups", units, rows)), "comm-groups").data

    assert list(waits.y) == ["dp [0-7]", "tp"]
    assert (list(waits.x), list(moves.x), list(rest.x)) == ([7.0, None], [2.0, None], [1.0, 5.0])


def test_collectives_are_size_against_bandwidth_under_the_peak_of_their_link() -> None:
    units: dict[str, Unit] = {
        "op": "none", "transport": "none", "size_bytes": "bytes", "total_ns": "ns", "bus_bytes_per_s": "bytes_per_s",
        "peak_bytes_per_s": "bytes_per_s", "peak_ratio": "ratio",
    }  # fmt: skip
    rows: list[list[Cell]] = [
        ["allReduce", "HCCS", 4096, 400, 1e9, 1.96e11, 0.005], ["send", "RDMA", 8192, 100, 2e9, None, None],
        ["allGather", "HCCS", 1 << 20, 100, 9.8e10, 1.96e11, 0.5], ["send", None, 64, 400, 1e6, None, None],
        ["send", "HCCS", 0, 5, 1e9, 1.96e11, None], ["send", "HCCS", 64, 5, None, 1.96e11, None],
    ]  # fmt: skip

    figure = figures.figure(with_tables(table_of("size-bandwidth", units, rows)), "size-bandwidth")

    first, second, third, ceiling = figure.data
    assert (first.name, list(first.x), list(first.y)) == ("HCCS", [4096, 1 << 20], [1e9, 9.8e10])
    assert [(second.name, list(second.x)), third.name] == [("RDMA", [8192]), "link not in this data"]
    assert list(first.marker.size) == [36, 18]  # area by time: a quarter of it is half of the diameter
    assert len({trace.marker.symbol for trace in (first, second, third)}) == 3
    assert first.customdata[1][3].replace("\u2009", " ") == ", 50 %"
    assert (list(ceiling.x), list(ceiling.y)) == ([64, 1 << 20], [1.96e11, 1.96e11])
    assert ceiling.name == "HCCS: vendor peak 196 GB/s"


def test_the_strip_shades_within_a_row_and_marks_what_stands_out() -> None:
    def steps(rank: int) -> ResultTable:
        computing = 1_000_000 + 1_000 * rank + (500_000 if rank == 5 else 0)
        rows: list[list[Cell]] = [["cube", computing], ["comm-wait", 2_000_000], ["free", 100_000 - 1_000 * rank]]
        return table_of("step-bar", {"component": "none", "time_ns": "ns"}, rows)

    outcomes = [Outcome(analyzer="a", status="done", rank=rank, tables=(steps(rank),)) for rank in range(8)]
    traces = tuple(Trace(meta=Meta(rank=rank)) for rank in range(8))
    payload = build(Run(traces=traces), outcomes, [], lang="en")

    (trace,) = figures.figure(payload, "rank-strip").data

    assert list(trace.x) == [f"Rank {rank}" for rank in range(8)]
    assert list(trace.y) == ["Step", "Computing", "Exposed wait", "Idle"]
    # Computing: 1.000 to 1.505 ms; rank 2 is 2 us above the lowest. Idle spreads over 7 us of 3.1 ms: under 5 %.
    assert trace.z[1][0] == 0 and trace.z[1][5] == 1 and trace.z[1][2] == pytest.approx(2_000 / 505_000)
    assert trace.z[3][0] == pytest.approx(7_000 / (0.05 * 3_100_000))
    assert list(trace.z[2]) == [0] * 8
    assert [[text.startswith("◆") for text in row] for row in trace.text[:2]] == [[rank == 5 for rank in range(8)]] * 2
    assert not any(text.startswith("◆") for row in trace.text[2:] for text in row)


def test_one_rank_has_no_strip() -> None:
    payload = with_tables(_sample_tables.bar(0))

    with pytest.raises(NotInData, match="fewer than two ranks"):
        figures.figure(payload, "rank-strip")


# ---- real profiles -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alexnet(traces: Path) -> analysis.Analysis:
    return pipeline.analyze(traces / "ascend-pytorch/text/level1")


def test_a_real_profile_has_nearly_all_figures(alexnet: analysis.Analysis) -> None:
    made = alexnet.figures()

    assert set(figures.FIGURES) - set(made) == {"loss", "gradient-norm", "loss-scale"}
    # Computing + exposed communication + idle is the step: 136 581.009 us of rank 0 (exact span of the trace).
    assert sum(trace.x[0] for trace in made["step-bar"].data) == pytest.approx(136.581009, abs=1e-6)
    # Sum of the compute kernels of rank 0 in kernel_details.csv: 8873.737 us.
    assert sum(made["op-types"].data[0].y) == pytest.approx(8.873737, abs=1e-6)
    assert sum(made["critical-path"].data[0].x) == pytest.approx(136.581009, abs=1e-5)
    # Peak that the PyTorch allocator had reserved in the window: 1452 MiB.
    pta = next(trace for trace in made["memory"].data if trace.name == "PTA, reserved")
    assert max(value for value in pta.y if value is not None) == 1452 / 1024
    assert sum(made["idle-causes"].data[0].x) == pytest.approx(
        alexnet.table("idle-causes", rank=0)["total_ns"].sum() / MS
    )


def test_figures_speak_the_language_that_they_are_asked_for(alexnet: analysis.Analysis) -> None:
    assert alexnet.figure("memory", lang="zh").layout.title.text != alexnet.figure("memory").layout.title.text
    chinese = dataclasses.replace(alexnet, lang="zh")
    assert chinese.figure("step-bar").layout.title.text == catalogue("zh")["ui.where"]
    assert chinese.figure("step-bar", lang="en").layout.title.text == "Where the step goes"


def test_dark_figures_have_the_dark_page(alexnet: analysis.Analysis) -> None:
    assert alexnet.figure("op-types", theme="dark").layout.paper_bgcolor == palette("dark")["page"]
    assert alexnet.figure("op-types", theme="dark").data[0].marker.color == palette("dark")["k-computing"]
