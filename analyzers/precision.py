"""What a run's own figures say: overflow (Q-01), equal runs that differ (Q-02), drops (Q-03), a faulty card (Q-05)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._precision_events import Event, Kind, events_of, events_table, series_table
from ascend_perf.analyzers._precision_hints import float_status, setting, vendor_of
from ascend_perf.analyzers._precision_pairs import compared
from ascend_perf.analyzers._precision_ranks import one_card
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._series import (
    SKIPPED_LEAST,
    SKIPPED_RATIO,
    ScaleStory,
    Series,
    scale_story,
    series_of,
    skipped_after,
    swings,
)
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import KERNELS, TRAINING_SERIES
from ascend_perf.plugins import NoData, columns_of, job_analyzer
from ascend_perf.units import counted, format_ratio

NAME: Final = "precision"

NO_SERIES: Final = Words(
    "no losses of the run: put its log beside the profile (output of Megatron or MindSpeed-LLM, trainer_state.json, or "
    "JSON lines or CSV with step and loss)",
    "没有训练曲线：请将训练日志放在 profile 旁（Megatron 或 MindSpeed-LLM 的输出、trainer_state.json，"
    "或含 step 与 loss 的 JSON Lines、CSV）",
)
NO_TRAINING: Final = Words(
    "the workload wrote no losses; where it trains, put its log beside the profile",
    "该负载没有写出损失；若是训练，请将其日志放在 profile 旁",
)
LASTING_ROWS: Final = 10
"""NaN in so many rows up to the end is no passing event. Status: assumed."""
LEAST_SWINGS: Final = 3
"""Swings from which a loss oscillates. Status: assumed."""
_ROWS: Final = ("Q-01", "Q-02", "Q-03", "Q-05")

READS: Final = columns_of(TRAINING_SERIES) | {KERNELS.name: frozenset({"name", "hf32_eligible"})}


@job_analyzer(name=NAME, needs=(), order=240, section="more", reads=READS)
def precision(run: Run) -> Result:
    """Report overflow, runs and ranks whose losses differ, and NaN or spikes that come from one card alone.

    Reads:
        training_series; kernels (checks of overflow, HF32, approximations) and meta.environment as circumstances.

    Returns:
        Findings Q-01, Q-02, Q-03 and Q-05, all without a share: they are about correctness. Tables `training-series`
        and `training-events`.

    Raises:
        NoData: the run has no table at all.
    """
    if not any(len(table) for trace in run.traces for table in trace.tables.values()):
        raise NoData(Words("not in this data: training_series", "数据中没有：training_series"))
    every = [series for series in series_of(run) if len(series)]
    if not every:
        reason = NO_SERIES if run.manifest is None else NO_TRAINING
        return Result(judged=tuple(Judged(code=code, verdict="not_judged", reason=reason) for code in _ROWS))
    events = [event for series in every for event in events_of(series)]
    card, card_judged = one_card(run, every, events)
    explained = {id(event) for event in events if card is not None and event.series.rank in card.ranks}
    findings = [] if card is None else [card]
    judged = [card_judged]
    for found, verdict in (_overflow(run, every, events, explained), *compared(run, every, _oscillation(run, every))):
        findings += found
        judged.append(verdict)
    tables = [series_table(every)]
    if events:
        tables.append(events_table(events))
    return Result(
        findings=tuple(findings), metrics=tuple(_metrics(every)), tables=tuple(tables), judged=tuple(judged)
    )  # fmt: skip


# ---- Q-01 ------------------------------------------------------------------------------------------------------------


def _overflow(
    run: Run, every: Sequence[Series], events: Sequence[Event], explained: set[int]
) -> tuple[list[Finding], Judged]:
    code = "Q-01"
    stories = [(series, scale_story(series)) for series in every]
    found = [
        made
        for made in (
            _falling(run, stories),
            _skipping(run, every),
            _not_finite(run, every, [event for event in events if id(event) not in explained]),
        )
        if made is not None
    ]
    if found:
        return found[:1], Judged(code=code, verdict="found")
    rows = sum(len(series) for series in every)
    if not any(np.isfinite(s.loss).any() or s.loss_bad.any() or np.isfinite(s.grad).any() for s in every):
        reason = Words("the series holds neither losses nor gradient norms", "曲线中既没有 loss 也没有梯度范数")
        return [], Judged(code=code, verdict="not_judged", reason=reason)
    if scaled := [story for _, story in stories if story is not None]:
        if all(story.settled is None for story in scaled):
            reason = Words(
                f"the loss scale has not settled within {rows} rows; a longer log is needed",
                f"Loss Scale 在 {rows} 行内尚未稳定，需要更长的日志",
            )
            return [], Judged(code=code, verdict="not_judged", reason=reason)
        told = Words("the loss scale settles", "Loss Scale 已稳定")
    else:
        told = Words("no dynamic loss scale", "没有动态 Loss Scale")
    reason = Words(f"{rows} rows without NaN; {told.en}", f"{rows} 行中没有 NaN；{told.zh}")
    return [], Judged(code=code, verdict="clean", reason=reason)


def _falling(run: Run, stories: Sequence[tuple[Series, ScaleStory | None]]) -> Finding | None:
    falling = [(series, story) for series, story in stories if story is not None and story.keeps_falling]
    if not falling:
        return None
    series, story = max(falling, key=lambda item: item[1].halvings)
    rows = np.flatnonzero(np.isfinite(series.scale) & (series.scale > 0))
    start = int(rows[0]) if story.settled is None else story.settled
    first, last = float(series.scale[start]), float(series.scale[rows[-1]])
    skipped, span = skipped_after(series)
    since = int(series.step[start])
    was, now = f"{first:.9g}", f"{last:.9g}"
    return finding(
        "Q-01", analyzer=NAME, trace_rank=None, ranks=_ranks(item[0] for item in falling), share_ratio=None,
        vendor=vendor_of(run), subject="overflow", severity=Severity.CRITICAL,
        title=Words(
            f"The loss scale falls from {was} to {now} between steps {since} and "
            f"{int(series.step[rows[-1]])}" + (", its floor" if story.is_at_floor else "") + _skips(skipped, span)[0],
            f"Loss Scale 从第 {since} 步的 {was} 降到第 {int(series.step[rows[-1]])} 步的 "
            f"{now}" + ("，已到下限" if story.is_at_floor else "") + _skips(skipped, span)[1],
        ),
        evidence=[
            Evidence(name=Words("loss scale at the end", "末尾的 Loss Scale"), value=last, where=_at(series, rows[-1])),
            Evidence(
                name=Words("halvings since it had settled", "稳定后的净减半次数")
                if story.settled is not None
                else Words("halvings; it never settled", "净减半次数（从未稳定）"),
                value=story.halvings, where=_at(series, start),
            ),
            *_circumstances(run, skipped),
        ],
        formula="log2(loss scale once settled / loss scale at the end)",
    )  # fmt: skip


def _skips(skipped: int, span: int) -> tuple[str, str]:
    if skipped < 1 or span < 1:
        return ("", "")
    return (
        f"; {counted(skipped, 'update was', 'updates were')} skipped ({format_ratio(skipped / span)})",
        f"；跳过 {skipped} 次更新（{format_ratio(skipped / span)}）",
    )


def _skipping(run: Run, every: Sequence[Series]) -> Finding | None:
    """Updates that are skipped again and again though the scale keeps its place."""
    counts = [(series, *skipped_after(series)) for series in every]
    over = [item for item in counts if item[1] >= SKIPPED_LEAST and item[1] > SKIPPED_RATIO.value * item[2]]
    if not over:
        return None
    series, skipped, span = max(over, key=lambda item: item[1] / item[2])
    rows = np.flatnonzero((series.skipped != NULL) & (series.skipped > 0))
    return finding(
        "Q-01", analyzer=NAME, trace_rank=None, ranks=_ranks(item[0] for item in over), share_ratio=None,
        vendor=vendor_of(run), subject="overflow", severity=Severity.HIGH,
        title=Words(
            f"{skipped} of {span} updates were skipped ({format_ratio(skipped / span)})",
            f"{span} 步中跳过 {skipped} 次更新（{format_ratio(skipped / span)}）",
        ),
        evidence=[
            Evidence(
                name=Words("skipped updates", "跳过的更新"), value=skipped, unit="count", where=_at(series, rows[-1])
            ),
            *_circumstances(run, 0),
        ],
        formula="skipped updates / steps, once the loss scale has settled",
    )  # fmt: skip


def _not_finite(run: Run, every: Sequence[Series], events: Sequence[Event]) -> Finding | None:
    bad = [event for event in events if event.kind in (Kind.LOSS, Kind.GRADIENT)]
    if not bad:
        return None
    first = min(bad, key=lambda event: event.step)
    lasting = [event for event in bad if event.rows >= LASTING_ROWS and not event.is_over]
    worst = min(lasting, key=lambda event: event.step) if lasting else first
    what = Words("loss", "loss") if worst.kind is Kind.LOSS else Words("gradient norm", "梯度范数")
    ranks = sorted({event.series.rank for event in bad if event.series.rank is not None})
    total = sum(event.rows for event in bad)
    if lasting:
        title = Words(
            f"The {what.en} is NaN or infinite from step {worst.step} to the end",
            f"自第 {worst.step} 步起{what.zh}一直为 NaN 或 Inf",
        )
    else:
        title = Words(
            f"NaN or infinity in {counted(total, 'row', 'rows')} of the log, first in the {what.en} of step "
            f"{worst.step}",
            f"日志中 {total} 行出现 NaN 或 Inf，首次为第 {worst.step} 步的{what.zh}",
        )
    return finding(
        "Q-01", analyzer=NAME, trace_rank=None, ranks=ranks, share_ratio=None, vendor=vendor_of(run),
        subject="overflow", severity=Severity.CRITICAL if lasting else Severity.HIGH, title=title,
        evidence=[
            Evidence(
                name=Words("rows with NaN or infinity", "含 NaN 或 Inf 的行"), value=total, unit="count",
                where=_at(worst.series, worst.row),
            ),
            *_circumstances(run, 0),
        ],
    )  # fmt: skip


def _circumstances(run: Run, skipped: int) -> Iterator[Evidence]:
    if skipped:
        said = Words("skipped updates", "跳过的更新")
        yield Evidence(name=said, value=skipped, unit="count", where="training_series")
    yield setting(run, "INF_NAN_MODE_ENABLE")
    yield from float_status(run)


# ---- oscillation -----------------------------------------------------------------------------------------------


def _oscillation(run: Run, every: Sequence[Series]) -> Finding | None:
    told = [(series, *swings(series.loss)) for series in every]
    swinging = [item for item in told if item[1] >= LEAST_SWINGS]
    if not swinging:
        return None
    series, count, rise = max(swinging, key=lambda item: item[1])
    rates = series.rate[np.isfinite(series.rate)]
    return finding(
        "Q-02", analyzer=NAME, trace_rank=None, ranks=_ranks(item[0] for item in swinging), share_ratio=None,
        vendor=vendor_of(run), subject="oscillation", severity=Severity.MEDIUM,
        title=Words(
            f"The loss oscillates: its smoothed curve rises by {format_ratio(rise)} and falls again {count} times",
            f"loss 震荡：平滑后的曲线上升 {format_ratio(rise)} 后回落，共 {count} 次",
        ),
        evidence=[
            Evidence(name=Words("swings", "震荡次数"), value=count, unit="count", where=_at(series, 0)),
            Evidence(name=Words("median rise", "上升幅度中位数"), value=rise, unit="ratio", where=_at(series, 0)),
            Evidence(
                name=Words("largest learning rate", "最大学习率"), value=float(rates.max()) if len(rates) else None,
                where="training_series",
            ),
        ],
        formula="rises and falls of the median over 11 rows of ln(loss) by 10 % and three times the noise",
    )  # fmt: skip


# ---- common ----------------------------------------------------------------------------------------------------------


def _ranks(every: Iterable[Series]) -> tuple[int, ...]:
    return tuple(sorted({series.rank for series in every if series.rank is not None}))


def _at(series: Series, row: int) -> str:
    return f"{series.name}, step {int(series.step[row])}"


def _metrics(every: Sequence[Series]) -> Iterator[Metric]:
    """The last loss of the run; of the first series, where there are several."""
    losses = every[0].loss[np.isfinite(every[0].loss)]
    if len(losses):
        yield Metric(name="last_loss", value=float(losses[-1]), unit="none", better="lower")
        skipped = every[0].skipped[every[0].skipped != NULL]
        if len(skipped):
            yield Metric(name="skipped_updates", value=int(skipped.sum()), unit="count", better="lower")

