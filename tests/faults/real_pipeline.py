"""Faults planted into a recorded pipeline of two stages (Qwen3 0.6B, four ranks; no traces, two ranks without rows).

Time is inserted into the last stage while the first waits for it in `batchSendRecv`, once per micro-batch, so that the
first stage waits as much longer and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults.real_derive import entries
from tests.faults.real_parts import compute_rows
from tests.faults.real_text import (
    Cut,
    RealProfile,
    RealRank,
    Row,
    is_kernel,
    more_work,
    number,
    to_ns,
    waiting_for_memory,
)  # fmt: skip

LAST: Final = (2, 3)
MARGIN: Final = 2_000_000
WAITED: Final = "hcom_batchSendRecv"


def _calls(rank: RealRank) -> list[tuple[str, int, int]]:
    made = []
    for op, entry in entries(rank):
        info = entry["Communication Time Info"]
        start = round(info["Start Timestamp(us)"] * 1000)
        made.append((op, start, start + round(info["Elapse Time(ms)"] * 1e6)))
    return sorted(made, key=lambda call: call[1])


def _windows(profile: RealProfile) -> list[tuple[int, int]]:
    """Times in which the first stage waits and no collective runs in the last, in ns: the latter part of each wait."""
    first = [sorted((c for c in _calls(rank) if c[0].startswith(WAITED)), key=lambda c: c[1] - c[2])[:2]
             for rank in profile.ranks if rank.rank not in LAST]  # fmt: skip
    made = []
    for both in zip(*(sorted(calls, key=lambda c: c[1]) for calls in first), strict=True):
        start, end = max(c[1] for c in both), min(c[2] for c in both)
        calls = [call for rank in profile.ranks if rank.rank in LAST for call in _calls(rank)]
        busy = [(s, e) for _, s, e in calls if s < end and e > start]
        inner = [e for _, e in busy if e < (start + end) // 2 + (end - start) // 4]
        ends = [s for s, e in busy if s > max(inner, default=start)]
        made.append((max([start, *inner]) + MARGIN, min([end, *ends]) - MARGIN))
    return made


Counters = Callable[[Row, float], None]
Plant = Callable[[RealProfile, int], float]


def planted(meant: Callable[[Row], bool], counters: Counters | None, column: str) -> Plant:
    """Kernels of the last stage get longer in proportion, or time comes in front of them where `column` is Free."""

    def plant(profile: RealProfile, target: int) -> float:
        windows = _windows(profile)
        model = next(rank for rank in profile.ranks if rank.rank == LAST[0])
        rows = [[r for r in compute_rows(model, *window) if meant(r)] for window in windows]
        whole = sum(to_ns(r["Duration(us)"]) for part in rows for r in part)
        grown = [[target * to_ns(r["Duration(us)"]) // whole for r in part] for part in rows]
        for rank in profile.ranks:
            if rank is model:
                _into(rank, [r for part in rows for r in part], [a for part in grown for a in part], counters, column)
                continue
            cuts = []
            for window, amounts in zip(windows, grown, strict=True):
                time = window[1] - MARGIN // 2
                cuts.append(Cut(amount=sum(amounts), host=time, device=time))
            rank.insert(cuts)
            if rank.rank in LAST:
                rank.inserted[column] = sum(cut.amount for cut in cuts)
        return sum(map(sum, grown))

    return plant


def _into(rank: RealRank, rows: list[Row], grown: list[int], counters: Counters | None, column: str) -> None:
    cuts = []
    before = [to_ns(row["Duration(us)"]) for row in rows]
    for row, amount in zip(rows, grown, strict=True):
        start = to_ns(row["Start Time(us)"])
        time = start if column == "Free" else start + to_ns(row["Duration(us)"]) // 2
        cuts.append(Cut(amount=amount, host=time, device=time))
    rank.insert(cuts)
    for row, amount, dur in zip(rows, grown, before, strict=True):
        if counters and amount:
            counters(row, (dur + amount) / dur)


def _is_product(row: Row) -> bool:
    return row["Type"].startswith("MatMul") and (number(row["aicore_time(us)"]) or 0) > 20


def _from_memory(row: Row, factor: float) -> None:
    waiting_for_memory(row, "aic_mte2")


uneven_stage = planted(is_kernel, more_work, "Computing")
stalled_products = planted(_is_product, None, "Computing")
memory_bound_products = planted(_is_product, _from_memory, "Computing")
gaps = planted(lambda row: to_ns(row["Duration(us)"]) >= 100_000, None, "Free")
