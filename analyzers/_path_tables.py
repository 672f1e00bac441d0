"""Tables of the critical path: what it consists of, what lies on it, what has room, and what changes would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._path_elements import DEVICE, HOST, KINDS, Elements, Kind
from ascend_perf.analyzers._path_graph import NEVER, Part
from ascend_perf.analyzers._path_walk import Path
from ascend_perf.analyzers._path_whatif import WhatIf
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import Ints
from ascend_perf.units import format_ns, format_ratio

MAX_ELEMENTS: Final = 60
"""Elements of the path that are listed, the longest first."""
MAX_SLACK_ROWS: Final = 60
"""Types of tasks whose room is listed, the longest total first."""

_ORDER: Final = {kind: place for place, kind in enumerate((
    Kind.COMPUTE, Kind.COMM_TRANSFER, Kind.COMM, Kind.COMM_WAIT, Kind.COPY, Kind.LAUNCH, Kind.DISPATCH, Kind.PYTHON,
    Kind.DATALOADER, Kind.SYNC, Kind.UNRECORDED, Kind.GAP, Kind.EVENT, Kind.BEFORE, Kind.UNKNOWN,
))}  # fmt: skip
"""Order of the components in tables."""


def composition(elements: Elements, shown: Path, paths: Sequence[Path], note: Words) -> ResultTable:
    """What the path of the representative step consists of, and the mean over the steps; adds up to the step."""
    count = len(elements)
    keys = sorted(
        {(elements.kinds[at], elements.classes[at]) for at in range(count)},
        key=lambda key: (_ORDER[KINDS[key[0]]], key[1]),
    )
    index = {key: at for at, key in enumerate(keys)}
    of = np.array([index[elements.kinds[at], elements.classes[at]] for at in range(count)], np.int64)

    def per_key(path: Path) -> Ints:
        return np.bincount(of[path.element], weights=path.lengths, minlength=len(keys)).astype(np.int64)

    mine = per_key(shown)
    every = sum((per_key(path) for path in paths), np.zeros(len(keys), np.int64))
    length, whole = shown.end_ns - shown.start_ns, sum(path.end_ns - path.start_ns for path in paths)
    rows = [at for at in range(len(keys)) if every[at] or mine[at]]
    rows.sort(key=lambda at: -int(mine[at]))
    return result_table(
        "critical-path",
        Words("Critical path of the step", "单步的关键路径"),
        (
            Col("component", "Part of the path", "路径组成", [KINDS[keys[at][0]].value for at in rows]),
            Col("class", "Class", "类别", [keys[at][1] or None for at in rows]),
            Col("time_ns", "Time on the path", "路径上的时间", [int(mine[at]) for at in rows], "ns"),
            Col("share_ratio", "Share of the step", "占单步", [_share(mine[at], length) for at in rows], "ratio"),
            Col("mean_ns", "Mean over all steps", "各步平均", [every[at] / max(1, len(paths)) for at in rows], "ns"),
            Col("mean_share_ratio", "Share of all steps", "占全部 step", [_share(every[at], whole) for at in rows],
                "ratio"),
        ),
        note=note,
    )  # fmt: skip


def per_step(elements: Elements, paths: Sequence[Path], ids: Sequence[int | None]) -> ResultTable:
    """The path of each step by kind."""
    kinds = elements.kind_codes()
    sums = [np.bincount(kinds[path.element], weights=path.lengths, minlength=len(KINDS)) for path in paths]

    def column(*wanted: Kind) -> list[int]:
        return [int(sum(row[KINDS.index(kind)] for kind in wanted)) for row in sums]

    groups: tuple[tuple[str, str, str, tuple[Kind, ...]], ...] = (
        ("computing_ns", "Computing", "计算", (Kind.COMPUTE,)),
        ("transfer_ns", "Collectives: transfer", "集合通信：传输", (Kind.COMM_TRANSFER,)),
        ("wait_ns", "Collectives: waiting", "集合通信：等待", (Kind.COMM_WAIT,)),
        ("collective_ns", "Collectives: not told apart", "集合通信：未区分", (Kind.COMM,)),
        ("copy_ns", "Copies", "拷贝", (Kind.COPY,)),
        ("launch_ns", "Launch delay", "下发时延", (Kind.LAUNCH,)),
        ("host_ns", "Host", "Host", tuple(kind for kind in KINDS if kind in HOST)),
        ("gap_ns", "Gaps between tasks", "任务间隙", (Kind.GAP, Kind.EVENT)),
        ("unknown_ns", "Idle, cause unknown", "空闲，原因未知", (Kind.UNKNOWN,)),
    )
    columns = [(name, en, zh, column(*wanted)) for name, en, zh, wanted in groups]
    return result_table(
        "critical-path-steps",
        Words("Critical path of each step", "各步的关键路径"),
        (
            Col("step_id", "Step", "Step", list(ids)),
            Col("span_ns", "Step time", "单步耗时", [path.end_ns - path.start_ns for path in paths], "ns"),
            *(Col(name, en, zh, cells, "ns") for name, en, zh, cells in columns if any(cells)),
        ),
        note=Words("The parts of a row add up to the step.", "每行各部分之和等于该步耗时。"),
    )


def top_elements(elements: Elements, part: Part, shown: Path) -> ResultTable:
    """What lies on the path longest, against all of its time in the step."""
    count = len(elements)
    graph = part.graph
    on = shown.by_element(count)
    pieces = np.bincount(shown.element, minlength=count)
    total = np.bincount(graph.element, weights=graph.own, minlength=count).astype(np.int64)
    calls = np.bincount(graph.element[graph.own > 0], minlength=count)
    total, calls = np.maximum(total, on), np.maximum(calls, pieces)
    rows = [at for at in np.argsort(-on, kind="stable").tolist() if on[at] > 0][:MAX_ELEMENTS]
    length = shown.end_ns - shown.start_ns
    return result_table(
        "critical-path-elements",
        Words("What lies on the critical path", "关键路径上的内容"),
        (
            Col("component", "Part of the path", "路径组成", [KINDS[elements.kinds[at]].value for at in rows]),
            Col("name", "Name", "名称", [elements.names[at] or None for at in rows]),
            Col("time_ns", "Time on the path", "路径上的时间", [int(on[at]) for at in rows], "ns"),
            Col("share_ratio", "Share of the step", "占单步", [_share(on[at], length) for at in rows], "ratio"),
            Col("total_ns", "All of its time", "总时间", [int(total[at]) for at in rows], "ns"),
            Col("on_path_ratio", "On the path, of its own time", "自身时间中在路径上的占比",
                [_share(on[at], int(total[at])) for at in rows], "ratio"),
            Col("pieces", "Pieces on the path", "路径上的片段", [int(pieces[at]) for at in rows], "count"),
            Col("count", "Pieces in the step", "step 内的片段", [int(calls[at]) for at in rows], "count"),
        ),
        note=Words(
            "Representative step. Time beside the path hides behind other work: saving it does not shorten the step.",
            "代表 step。不在路径上的时间被其他工作掩盖，缩短它不会缩短单步。",
        ),
    )  # fmt: skip


def slack_table(elements: Elements, part: Part, shown: Path, slack: Ints) -> ResultTable:
    """How much longer tasks may get before the step does, by type."""
    graph = part.graph
    kinds = elements.kind_codes()
    device = np.isin(kinds, [KINDS.index(kind) for kind in DEVICE])
    rows = np.flatnonzero((graph.task >= 0) & device[graph.element] & (graph.own > 0))
    on = shown.by_element(len(elements))
    found = []
    for number in np.unique(graph.element[rows]).tolist():
        mine = rows[graph.element[rows] == number]
        room = slack[mine]
        known = room[room < -NEVER]
        found.append(
            (
                number, len(mine), int(graph.own[mine].sum()), int((room == 0).sum()),
                int(known.min()) if len(known) else None, float(np.median(known)) if len(known) else None,
            )
        )  # fmt: skip
    found = sorted(found, key=lambda row: (-row[2], row[0]))[:MAX_SLACK_ROWS]
    return result_table(
        "critical-path-slack",
        Words("Room before the step gets longer", "不延长单步的余量"),
        (
            Col("component", "Part", "类别", [KINDS[elements.kinds[row[0]]].value for row in found]),
            Col("name", "Name", "名称", [elements.names[row[0]] or None for row in found]),
            Col("count", "Tasks", "任务数", [row[1] for row in found], "count"),
            Col("total_ns", "Total", "总时间", [row[2] for row in found], "ns"),
            Col("time_ns", "On the path", "路径上的时间", [int(on[row[0]]) for row in found], "ns"),
            Col("critical", "Tasks without room", "无余量的任务", [row[3] for row in found], "count"),
            Col("slack_min_ns", "Room, least", "余量（最小）", [row[4] for row in found], "ns"),
            Col("slack_median_ns", "Room, median", "余量（中位数）", [row[5] for row in found], "ns"),
        ),
        note=Words(
            "Room is how much longer one task may get, all else as it is, before the step ends later (modelled).",
            "余量指其他不变时单个任务可延长多少而不推迟该步结束（模型推算）。",
        ),
    )


def what_if_table(result: WhatIf) -> ResultTable:
    """The step with each change, the largest gain first."""
    rows = sorted(result.outcomes, key=lambda row: (-row.gain_ns, -row.saved_ns, row.key, row.name))
    replay = result.replay_ns
    error = result.replay_ns - result.measured_ns
    en = (
        f"Modelled, not measured: the step's graph is replayed with other durations, order and dependencies as they "
        f"were. The replay without a change takes {format_ns(replay)}"
    )
    zh = f"模型推算，非实测：在依赖与顺序不变的前提下，以修改后的时长重放该 step。不做修改的重放为 {format_ns(replay)}"
    if error:
        share = format_ratio(abs(error) / max(1, result.measured_ns))
        en += f", {share} off the measured {format_ns(result.measured_ns)}; gains are against the replay"
        zh += f"，与实测 {format_ns(result.measured_ns)} 相差 {share}；收益以重放为基准"
    else:
        en += ", which is what was measured"
        zh += "，与实测一致"
    en += ". Gains are upper bounds and must not be added up; time that hides behind other work gains nothing."
    zh += "。收益为上限，不可相加；被掩盖的时间没有收益。"
    if result.left_out:
        en += f" {result.left_out} more changes were not tried on a step of this size."
        zh += f"该 step 规模较大，另有 {result.left_out} 项修改未推算。"
    return result_table(
        "critical-path-what-if",
        Words("What a change would give at most", "各项修改的收益上限"),
        (
            Col("kind", "Change", "修改", [row.key for row in rows]),
            Col("name", "Of", "对象", [row.name or None for row in rows]),
            Col("step_ns", "Step time (modelled)", "单步耗时（推算）", [row.step_ns for row in rows], "ns"),
            Col("gain_ns", "Gain, at most", "收益上限", [row.gain_ns for row in rows], "ns"),
            Col("gain_ratio", "Gain of the step, at most", "占单步的收益上限",
                [_share(row.gain_ns, replay) for row in rows], "ratio"),
            Col("saved_ns", "Time taken away, also where it hides", "被削减的时间（含被掩盖的）",
                [row.saved_ns for row in rows], "ns"),
        ),
        note=Words(en, zh),
    )  # fmt: skip


def _share(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None
