"""The job at a glance, for reports of several ranks: what was seen of it, its layout, who waits for whom, the strip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ascend_perf.model.finding import Cell, ResultTable, Words
from ascend_perf.reports.bars import Bar, Kind, stages
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.odd import Score, scores
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.shown import LONGER_RATIO
from ascend_perf.reports.verdict import Fact, ranges
from ascend_perf.units import format_quantity

MIN_SHARE_RATIO: Final = 0.01
"""Waiting below this share of the step is said to be negligible. Status: assumed."""
MIN_ROOT_RATIO: Final = 0.5
"""A rank behind the late one is named from this part of the waiting on. Status: assumed."""
MAX_NAMED: Final = 4
"""Odd ranks that are named one by one."""
MAX_MISSING: Final = 1 << 20
"""Ranks of a job that are listed as missing at most are those below this. Status: assumed."""

_UNSPLIT: Final = frozenset({"communication", "exposed", "bubble"})
"""Parts of a bar that hold waiting and transfer together."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of all ranks of the strip."""

    key: str
    label: Words
    kind: Kind
    times_ns: tuple[float | None, ...]
    scores: tuple[Score | None, ...]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Ranks against components; the steps are those that the bars show."""

    ranks: tuple[int, ...]
    stages: tuple[int | None, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What is said of the job before anything else. `waits` is None where the data do not tell who waits for whom."""

    facts: tuple[Fact, ...]
    waits: Words | None
    strip: Strip | None


def overview(payload: Payload, made: Sequence[Bar]) -> Overview | None:
    """The job at a glance; None for a single rank."""
    if len({rank.rank for rank in payload.ranks}) < 2:
        return None
    strip = strip_of(payload, made)
    facts = [*_seen(payload), *_layout(payload)]
    if strip is not None:
        facts += [*_slowest(strip), _odd(strip)]
    return Overview(facts=tuple(facts), waits=waits(payload, made), strip=strip)


# ---- the strip -------------------------------------------------------------------------------------------------------


def strip_of(payload: Payload, made: Sequence[Bar]) -> Strip | None:
    """Step, computing, exposed communication (its wait and transfer where told apart), copies, idle of each rank.

    Scores compare the ranks of a stage. None with fewer than two ranks whose step is known.
    """
    by_rank = {bar.rank: bar for bar in made if bar.rank is not None}
    ranks = sorted(by_rank)
    if len(ranks) < 2:
        return None
    stage_of = stages(payload)
    groups = [stage_of.get(rank) for rank in ranks]
    shown = [by_rank[rank] for rank in ranks]
    apart = [not any(part.key in _UNSPLIT for part in bar.parts) for bar in shown]
    least = MIN_SHARE_RATIO * median(bar.total_ns for bar in shown)
    kinds: tuple[tuple[str, Kind, list[float | None]], ...] = (
        ("step", "other", [bar.total_ns for bar in shown]),
        ("computing", "computing", [bar.kind_ns("computing") for bar in shown]),
        ("exposed", "transfer", [bar.kind_ns("wait") + bar.kind_ns("transfer") for bar in shown]),
        ("wait", "wait", [bar.kind_ns("wait") if told else None for bar, told in zip(shown, apart, strict=True)]),
        (
            "transfer", "transfer",
            [bar.kind_ns("transfer") if told else None for bar, told in zip(shown, apart, strict=True)],
        ),
        ("copy", "copy", [bar.kind_ns("copy") for bar in shown]),
        ("idle", "idle", [bar.kind_ns("idle") + bar.kind_ns("host") for bar in shown]),
    )  # fmt: skip
    rows = tuple(
        Row(
            key=key, label=words(f"strip.{key}"), kind=kind, times_ns=tuple(times),
            scores=scores(times, groups, least),
        )
        for key, kind, times in kinds
        if any(times) and not (key == "exposed" and all(apart))
    )  # fmt: skip
    known = [stage if isinstance(stage, int) else None for stage in groups]
    return Strip(ranks=tuple(ranks), stages=tuple(known), rows=rows)


def _row(strip: Strip, key: str) -> Row | None:
    return next((row for row in strip.rows if row.key == key), None)


# ---- facts -----------------------------------------------------------------------------------------------------------


def _fact(key: str, value: Words) -> Fact:
    return Fact(label=words(f"job.{key}"), value=value)


def _seen(payload: Payload) -> Iterator[Fact]:
    seen = {rank.rank for rank in payload.ranks if rank.rank is not None}
    unknown = sum(rank.rank is None for rank in payload.ranks)
    world = max((rank.meta.world_size for rank in payload.ranks if rank.meta.world_size), default=None)
    if world is None:
        yield _fact("seen", words("job.seen_only", seen=len(seen) + unknown))
        return
    missing = [rank for rank in range(min(world, MAX_MISSING)) if rank not in seen]
    if missing and not unknown:
        yield _fact("seen", words("job.seen_part", seen=len(seen), world=world, missing=_some(missing)))
    else:
        yield _fact("seen", words("job.seen_of", seen=len(seen) + unknown, world=world))


def _some(ranks: Sequence[int]) -> str:
    """Ranges of ranks, the first of very many."""
    text = ranges(ranks).split(", ")
    return ", ".join(text) if len(text) <= 2 * MAX_NAMED else ", ".join(text[: 2 * MAX_NAMED]) + " …"


def _layout(payload: Payload) -> Iterator[Fact]:
    table = next((table for _, table in payload.tables("job-layout")), None)
    if table is None:
        return
    sizes = [(str(row["parallel"]), row["size"], str(row["parallel_from"])) for row in _rows(table)]
    shown = [item for item in sizes if item[1] != 1] or sizes[:1]
    text = " × ".join(f"{kind.upper()} {size}" for kind, size, _ in shown)
    sources = dict.fromkeys(source for _, _, source in shown)
    said = [phrase(source, "parallel_from") for source in sources]
    yield _fact(
        "layout",
        Words(f"{text} ({', '.join(w.en for w in said)})", f"{text}（{'、'.join(w.zh for w in said)}）"),
    )


def _slowest(strip: Strip) -> Iterator[Fact]:
    for key in ("step", "computing"):
        row = _row(strip, key)
        if row is None:
            continue
        times = [time or 0.0 for time in row.times_ns]
        most, usual = max(times), median(times)
        rank = strip.ranks[times.index(most)]
        values = {"rank": rank, "time": format_quantity(most, "ns"), "usual": format_quantity(usual, "ns")}
        alike = most <= (1 + LONGER_RATIO) * usual
        yield _fact(f"most_{key}", words("job.alike" if alike else "job.most", **values))


def _odd(strip: Strip) -> Fact:
    """Ranks with a figure that stands out, those that differ most first."""
    found: dict[int, tuple[float, Words]] = {}
    compared = False
    for row in strip.rows:
        for rank, time, score in zip(strip.ranks, row.times_ns, row.scores, strict=True):
            compared |= score is not None
            if score is None or time is None or not score.is_odd:
                continue
            off = time - score.usual
            if rank not in found or abs(off) > abs(found[rank][0]):
                found[rank] = off, row.label
    if not compared:
        return _fact("odd", words("job.odd_unknown"))
    if not found:
        return _fact("odd", words("job.odd_none"))
    order = sorted(found, key=lambda rank: -abs(found[rank][0]))
    parts = [
        words("job.odd_rank", rank=rank, what=found[rank][1], off=_signed(found[rank][0])) for rank in order[:MAX_NAMED]
    ]
    rest = len(order) - len(parts)
    if rest:
        parts.append(words("job.odd_more", count=rest))
    return _fact("odd", Words("; ".join(p.en for p in parts), "；".join(p.zh for p in parts)))


def _signed(time_ns: float) -> str:
    return ("+" if time_ns > 0 else "−") + format_quantity(abs(time_ns), "ns")


# ---- who waits for whom ----------------------------------------------------------------------------------------------


def waits(payload: Payload, made: Sequence[Bar]) -> Words | None:
    """Who waits for whom in a sentence or two, from the job's tables; None where they do not tell."""
    if not made:
        return None
    step = median(bar.total_ns for bar in made)
    said = [text for text in (_in_pipeline(payload, step), _in_collectives(payload, step)) if text is not None]
    return Words(" ".join(text.en for text in said), "".join(text.zh for text in said)) if said else None


def _in_pipeline(payload: Payload, step: float) -> Words | None:
    """The stage that waits longest in the pipeline, where that is notable."""
    table = next((table for _, table in payload.tables("job-stages")), None)
    known = [
        (float(time), row["stage"])
        for row in (() if table is None else _rows(table))
        if isinstance(time := row["pipeline_wait_ns"], int | float)
    ]
    time, stage = max(known, key=lambda item: item[0], default=(0.0, None))
    if time < MIN_SHARE_RATIO * step:
        return None
    return words(
        "job.waits_stage", stage=stage, time=format_quantity(time, "ns"), share=_share(time, step)
    )  # fmt: skip


def _in_collectives(payload: Payload, step: float) -> Words | None:
    """Each rank waits longest for one; of those the one that costs most is named."""
    table = next((table for _, table in payload.tables("rank-waits")), None)
    if table is None:
        return None
    worst = _worst(table)
    most = max(worst.items(), key=lambda item: (item[1][0], -item[0]), default=None)
    if most is None:
        return words("job.waits_none")
    waiter, (time, late) = most
    if time < MIN_SHARE_RATIO * step:
        return words("job.waits_little", time=format_quantity(time, "ns"), waiter=waiter, late=late)
    waiters: dict[int, list[int]] = {}
    lost: dict[int, float] = {}
    for rank, (time, late) in worst.items():
        if time >= MIN_SHARE_RATIO * step:
            waiters.setdefault(late, []).append(rank)
            lost[late] = lost.get(late, 0.0) + time
    late = max(lost, key=lambda rank: (lost[rank], -rank))
    own = waiters[late]
    time = max(worst[rank][0] for rank in own)
    said = words(
        "job.waits_one" if len(own) == 1 else "job.waits", late=late, waiter=own[0], count=len(own),
        time=format_quantity(time, "ns"), share=_share(time, step),
    )  # fmt: skip
    others = sorted(set(waiters) - {late})
    if not others:
        return said
    count = sum(len(waiters[rank]) for rank in others)
    key = "job.waits_other" if count == 1 else "job.waits_others"
    more = words(key, ranks=_some(others), count=count, waiter=waiters[others[0]][0])
    return Words(f"{said.en} {more.en}", f"{said.zh}{more.zh}")


def _worst(table: ResultTable) -> dict[int, tuple[float, int]]:
    """For each waiting rank its longest exposed waiting, and whom it is for.

    That is who made the late one late, where it is known for most of the waiting and is not the waiter itself.
    """
    worst: dict[int, tuple[float, int]] = {}
    for row in _rows(table):
        waiter, late, root, part, exposed = (
            row[name] for name in ("waiter", "late", "root", "root_ratio", "exposed_ns")
        )  # fmt: skip
        if not isinstance(waiter, int) or not isinstance(late, int) or not isinstance(exposed, int | float):
            continue
        if isinstance(root, int) and root != waiter and isinstance(part, int | float) and part >= MIN_ROOT_RATIO:
            late = root
        if exposed > worst.get(waiter, (0.0, 0))[0]:
            worst[waiter] = float(exposed), late
    return worst


def _share(time: float, step: float) -> str:
    return format_quantity(min(1.0, time / step), "ratio")


def _rows(table: ResultTable) -> Iterator[Mapping[str, Cell]]:
    names = [column.name for column in table.columns]
    for cells in zip(*table.data, strict=True):
        yield _Known(zip(names, cells, strict=True))


class _Known(dict[str, Cell]):
    """Cells by column; a column that is not there is unknown."""

    def __missing__(self, key: str) -> Cell:
        return None
