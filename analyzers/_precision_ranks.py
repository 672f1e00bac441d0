"""One card that computes wrong (Q-05): NaN or spikes that come again and again on one rank alone.

An event of one rank is its own when no other rank has one at the same steps. With n own events over R ranks, the chance
that some rank has k of them or more is at most

    R * P(Binomial(n, 1/R) >= k)

when they fall on the ranks by chance, as events of data do. Below `CHANCE_MAX` the rank is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Final

from ascend_perf.analyzers._precision_events import Event, Kind
from ascend_perf.analyzers._precision_hints import setting, vendor_of
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._series import Series
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.run import Run
from ascend_perf.units import counted, format_ratio

CODE: Final = "Q-05"
CHANCE_MAX: Final = threshold("Q-05", "max_chance_ratio")
"""Chance above which a rank is not named."""
COUNTED: Final = frozenset({Kind.LOSS, Kind.GRADIENT, Kind.LOSS_SPIKE, Kind.GRADIENT_SPIKE})


def one_card(run: Run, every: Sequence[Series], events: Sequence[Event]) -> tuple[Finding | None, Judged]:
    """The finding about a single rank, and the verdict."""
    ranks = sorted({series.rank for series in every if series.rank is not None})
    odd = [event for event in events if event.kind in COUNTED]
    if len(ranks) < 2:
        seen = counted(len(odd), "spike or NaN", "spikes or NaN") if odd else "no spike"
        seen_zh = f"{len(odd)} 次尖峰或 NaN" if odd else "没有尖峰"
        return None, Judged(
            code=CODE, verdict="not_judged",
            reason=Words(
                f"{seen} in the series of the whole job; which card it is needs losses or gradient norms of each rank "
                "(one log per rank, named rank_N)",
                f"整个任务的曲线中有{seen_zh}；要定位到卡，需要各 Rank 的 loss 或梯度范数"
                "（每个 Rank 一份日志，文件名含 rank_N）",
            ),
        )  # fmt: skip
    own = _own(odd)
    counts = Counter(event.series.rank for event in own)
    if not counts:
        return None, _clean(len(odd), len(ranks))
    rank, count = min(counts.items(), key=lambda item: (-item[1], str(item[0])))
    chance = min(1.0, len(ranks) * tail(len(own), 1 / len(ranks), count))
    if chance > CHANCE_MAX.value or rank is None:
        return None, _clean(len(odd), len(ranks))
    mine = [event for event in own if event.series.rank == rank]
    steps = [event.step for event in mine]
    shown = ", ".join(map(str, steps[:6])) + (" ..." if len(steps) > 6 else "")
    found = finding(
        CODE, analyzer="precision", trace_rank=None, ranks=(rank,), affected_ranks=tuple(ranks), share_ratio=None,
        vendor=vendor_of(run), subject="one card",
        title=Words(
            f"Rank {rank} has {count} of the {len(own)} NaN or spikes that hit only one of {len(ranks)} ranks "
            f"(steps {shown})",
            f"{len(ranks)} 个 Rank 中只影响单卡的 {len(own)} 次 NaN 或尖峰有 {count} 次出现在 Rank {rank}"
            f"（第 {shown} 步）",
        ),
        evidence=[
            Evidence(
                name=Words("events of this rank alone", "该 Rank 独有的异常"), value=count, unit="count",
                where=f"{mine[0].series.name}, step {steps[0]}",
            ),
            Evidence(
                name=Words("chance, if they fell on the ranks at random", "随机分布时的概率上限"),
                value=chance, unit="ratio", where="training_series",
            ),
            setting(run, "NPU_ASD_CONFIG"), setting(run, "NPU_ASD_ENABLE"),
        ],
        formula="ranks x P(Binomial(events, 1 / ranks) >= events of the rank)",
    )  # fmt: skip
    return found, Judged(code=CODE, verdict="found")


def _own(events: Sequence[Event]) -> list[Event]:
    """Events that no other rank shares, one per rank and step; those of a gradient and its loss are one."""
    taken: dict[int, set[int | None]] = {}
    for event in events:
        for step in range(event.step, event.step + min(event.rows, 2)):
            taken.setdefault(step, set()).add(event.series.rank)
    own: dict[tuple[int | None, int], Event] = {}
    last: dict[int | None, int] = {}
    for event in sorted(events, key=lambda event: event.step):
        rank = event.series.rank
        alone = taken[event.step] == {rank}
        if alone and event.step - last.get(rank, -10) > 1:
            own[rank, event.step] = event
        last[rank] = event.step
    return list(own.values())


def tail(count: int, chance: float, least: int) -> float:
    """P(Binomial(count, chance) >= least)."""
    return float(sum(comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(least, count + 1)))


def _clean(events: int, ranks: int) -> Judged:
    told = counted(events, "NaN or spike", "NaN or spikes")
    return Judged(
        code=CODE, verdict="clean",
        reason=Words(
            f"{told} on {ranks} ranks; no rank stands out (chance above {format_ratio(CHANCE_MAX.value)})",
            f"{ranks} 个 Rank 上共 {events} 次 NaN 或尖峰；没有突出的 Rank"
            f"（随机概率高于 {format_ratio(CHANCE_MAX.value)}）",
        ),
    )  # fmt: skip
