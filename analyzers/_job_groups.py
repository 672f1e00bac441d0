"""Communication groups of a job by what they are for: how many, how large, how fast against their links."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._group_kinds import GroupKind, group_kinds
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words

_ORDER: Final[tuple[GroupKind | None, ...]] = ("tp", "cp", "ep", "dp", "pp", None)


@dataclass(frozen=True, kw_only=True)
class GroupOp:
    """One op in one group of a job."""

    kind: GroupKind | None
    is_inferred: bool
    op: str
    ranks: tuple[int, ...]
    """Ranks seen, in ascending order."""
    size: int | None
    count: int
    time_ns: float
    """Of the rank that spends most, per step."""
    skew_ns: float
    """Median time from the first to the last arrival."""
    bus_bytes_per_s: float | None
    transport: str | None
    peak_ratio: float | None


class Kinds:
    """What each group of a job's collectives is for; the groups of a rank are looked at once."""

    def __init__(self, calls: Collectives) -> None:
        self._calls = calls
        self._known: dict[int, dict[str | None, tuple[GroupKind, bool]]] = {}

    def of(self, call: int) -> tuple[GroupKind | None, bool]:
        """Kind of the group of a collective (None where nothing tells it), and whether it is inferred."""
        member = int(self._calls.heads[call])
        at = int(self._calls.place[member])
        view = self._calls.views[at]
        if at not in self._known:
            self._known[at] = group_kinds(view.trace)
        name = view.calls.table.text("group")[int(self._calls.row[member])]
        return self._known[at].get(name, (None, False))


def groups_by_kind(rows: Sequence[GroupOp]) -> ResultTable:
    """One row per kind and op: groups of a kind do the same work, so the slowest of them can be named.

    Args:
        rows: every op of every group.
    """
    together: dict[tuple[GroupKind | None, str], list[GroupOp]] = {}
    for row in rows:
        together.setdefault((row.kind, row.op), []).append(row)
    found = sorted(together.items(), key=lambda item: (_ORDER.index(item[0][0]), -max(r.time_ns for r in item[1])))
    parts = [part for _, part in found]
    rated = [sorted((r for r in part if r.bus_bytes_per_s is not None), key=_rate) for part in parts]
    shares = [[r.peak_ratio for r in part if r.peak_ratio is not None] for part in parts]
    return result_table(
        "job-groups",
        Words("Communication groups by kind", "各类通信域"),
        (
            Col("parallel", "Parallelism", "并行方式", [part[0].kind for part in parts]),
            Col("parallel_from", "Known from", "来源", [_source(part[0]) for part in parts]),
            Col("op", "Op", "通信算子", [part[0].op for part in parts]),
            Col("groups", "Groups", "通信域数", [len({r.ranks for r in part}) for part in parts], "count"),
            Col("group_size", "Size of the group", "通信域大小", [_sizes(part) for part in parts]),
            Col("count", "Collectives", "次数", [sum(r.count for r in part) for part in parts], "count"),
            Col(
                "time_ns", "Per step, longest rank", "每步耗时（最长的卡）",
                [max(r.time_ns for r in part) for part in parts], "ns",
            ),
            Col(
                "skew_ns", "Arrival skew, median", "到达时间差（中位数）",
                [median(r.skew_ns for r in part) for part in parts], "ns",
            ),
            Col(
                "bus_bytes_per_s", "Bus bandwidth, median", "总线带宽（中位数）",
                [median(_rate(r) for r in part) if part else None for part in rated], "bytes_per_s",
            ),
            Col(
                "lowest_bytes_per_s", "Lowest", "最低", [_rate(part[0]) if part else None for part in rated],
                "bytes_per_s",
            ),
            Col(
                "lowest_ranks", "Ranks of the lowest", "最低者的 Rank",
                [listed(part[0].ranks) if len(part) > 1 else None for part in rated],
            ),
            Col("transport", "Transport", "传输方式", [_same([r.transport for r in part]) for part in parts]),
            Col(
                "peak_ratio", "Share of the link peak", "占链路峰值", [median(s) if s else None for s in shares],
                "ratio",
            ),
        ),
        note=Words(
            "Groups of one kind taken together. The bandwidth is that of the true transfer, once all ranks are there; "
            "the share of the peak is against what the device table gives for links of this transport.",
            "同类通信域合并统计。带宽按所有卡到齐之后的实际传输计算；峰值占比相对于器件表中该传输方式的链路峰值。",
        ),
    )  # fmt: skip


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks as readers see them: ranges, and the first, the second and the last of many that are equally spaced."""
    spaces = {after - before for before, after in itertools.pairwise(ranks)}
    if len(ranks) > 4 and len(spaces) == 1 and spaces != {1}:
        return f"{ranks[0]}, {ranks[1]} … {ranks[-1]}"
    return ranks_words(ranks).zh.removeprefix("Rank ")


def _rate(row: GroupOp) -> float:
    return row.bus_bytes_per_s or 0.0


def _source(row: GroupOp) -> str | None:
    return None if row.kind is None else "inferred" if row.is_inferred else "named"


def _sizes(part: Sequence[GroupOp]) -> str | None:
    sizes = sorted({r.size for r in part if r.size is not None})
    if not sizes:
        return None
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"


def _same(names: Sequence[str | None]) -> str | None:
    known = list(dict.fromkeys(name for name in names if name is not None))
    return ", ".join(known) or None
