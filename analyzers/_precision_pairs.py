"""Two runs beside each other: equal ones whose losses differ (Q-02), and a drop against a reference (Q-03).

Compared are series of one rank (or of the whole job) from two files, at the steps that both have:

    deviation = ln(loss of the run / loss of the reference)

They differ where the deviation is above `DIFFER_RATIO`. The difference is systematic when its mean over the last
quarter is above `DROP_RATIO` and three standard errors, from the means of 8 blocks (values of near steps are alike).
Runs whose learning rates or logged arguments differ are no equal runs, and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._precision_hints import reduced_precision, setting, vendor_of
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._series import Series
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import Floats, Ints
from ascend_perf.units import format_ratio

DIFFER_RATIO: Final = threshold("Q-02", "min_differ_ratio")
"""Smaller deviations are rounding of the log, or of sums in another order."""
DROP_RATIO: Final = threshold("Q-03", "min_drop_ratio")
"""Deviation of a metric from which it has dropped."""
LEAST_STEPS: Final = 20
"""Common steps without which nothing is said. Status: assumed."""
TAIL_STEPS: Final = 16
BLOCKS: Final = 8
STANDARD_ERRORS: Final = 3.0
"""Mean deviation in standard errors from which it is systematic. Status: assumed."""
RATE_RATIO: Final = 1e-3
"""Learning rates that differ by more are different. Status: assumed."""
MAX_PAIRS: Final = 64

Verdict = tuple[list[Finding], Judged]

ONE_RUN: Final = Words(
    "one run only: give the log of a second, equal run (same seed and data) as well",
    "只有一次运行：请同时给出另一次相同配置运行（相同种子与数据）的日志",
)
NO_REFERENCE: Final = Words(
    "one run only: give the log of a reference run (fp32, a GPU, or before the change) as well",
    "只有一次运行：请同时给出参考运行（fp32、GPU 或修改之前）的日志",
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run and its reference at their common steps."""

    run: Series
    reference: Series
    steps: Ints
    deviation: Floats
    """ln(loss of the run / loss of the reference)."""
    unequal: Words | None
    """What shows that they were not set up alike."""

    @property
    def first(self) -> int | None:
        """Index of the first step at which they differ."""
        rows = np.flatnonzero(np.abs(self.deviation) > DIFFER_RATIO.value)
        return int(rows[0]) if len(rows) else None

    def tail(self) -> tuple[float, float]:
        """Mean deviation over the last quarter and its standard error."""
        values = self.deviation[-max(len(self.deviation) // 4, min(len(self.deviation), TAIL_STEPS)) :]
        means = np.array([block.mean() for block in np.array_split(values, BLOCKS)])
        return float(values.mean()), float(means.std(ddof=1) / np.sqrt(BLOCKS))

    @property
    def is_systematic(self) -> bool:
        """Whether the run ends above or below its reference by more than chance and `DROP_RATIO`."""
        mean, error = self.tail()
        return abs(mean) > DROP_RATIO.value and abs(mean) > STANDARD_ERRORS * error

    @property
    def is_worse(self) -> bool:
        """Whether the run ends above its reference; without a named reference either may be the run."""
        return self.tail()[0] > 0 or not self.reference.is_reference


def compared(run: Run, every: Sequence[Series], oscillation: Finding | None) -> tuple[Verdict, Verdict]:
    """The verdicts on Q-02 and Q-03. An oscillation of one run is Q-02 as well."""
    swinging = [] if oscillation is None else [oscillation]
    pairs = list(_pairs(every))
    metrics = [made for pair in pairs if (made := _metric_drop(run, pair)) is not None]
    if not pairs:
        return _ended(swinging, "Q-02", ONE_RUN), ([], Judged(code="Q-03", verdict="not_judged", reason=NO_REFERENCE))
    usable = [pair for pair in pairs if pair.unequal is None and len(pair.steps) >= LEAST_STEPS]
    if not usable:
        reason = pairs[0].unequal or Words(
            f"the runs have {len(pairs[0].steps)} common steps with a loss; {LEAST_STEPS} are needed",
            f"两次运行只有 {len(pairs[0].steps)} 个共同的 loss 步，至少需要 {LEAST_STEPS} 步",
        )
        found = metrics[:1]
        third = Judged(code="Q-03", verdict="found") if found else _unknown("Q-03", reason)
        return _ended(swinging, "Q-02", reason), (found, third)
    dropped = [pair for pair in usable if pair.is_systematic and pair.is_worse]
    differing = [pair for pair in usable if pair.first is not None and pair not in dropped]
    worst = max((float(np.abs(pair.deviation).max()) for pair in usable), default=0.0)
    return (
        _second(run, differing, swinging, usable, bool(dropped), worst),
        _third(run, dropped, metrics, usable),
    )


def _second(
    run: Run, differing: Sequence[Pair], swinging: list[Finding], usable: Sequence[Pair], dropped: bool, worst: float
) -> Verdict:
    if differing:
        pair = max(differing, key=lambda item: float(np.abs(item.deviation).max()))
        return [_differs(run, pair), *swinging], Judged(code="Q-02", verdict="found")
    if swinging:
        return swinging, Judged(code="Q-02", verdict="found")
    if dropped:
        reason = Words(
            "the runs differ systematically (row Q-03); whether they were meant to be equal is not in the logs",
            "两次运行存在系统性偏差（见 Q-03）；日志中无法得知二者是否应当相同",
        )
        return [], _unknown("Q-02", reason)
    steps = max(len(pair.steps) for pair in usable)
    reason = Words(
        f"equal within {format_ratio(worst)} over {steps} common steps",
        f"{steps} 个共同步内偏差不超过 {format_ratio(worst)}",
    )
    return [], Judged(code="Q-02", verdict="clean", reason=reason)


def _third(run: Run, dropped: Sequence[Pair], metrics: Sequence[Finding], usable: Sequence[Pair]) -> Verdict:
    if dropped:
        pair = max(dropped, key=lambda item: abs(item.tail()[0]))
        return [_drop(run, pair)], Judged(code="Q-03", verdict="found")
    if metrics:
        return [metrics[0]], Judged(code="Q-03", verdict="found")
    mean = max(abs(pair.tail()[0]) for pair in usable)
    reason = Words(
        f"mean deviation of the loss in the last quarter {format_ratio(mean)}, or within its chance",
        f"末四分之一步的 loss 平均偏差为 {format_ratio(mean)}，或在随机波动之内",
    )
    return [], Judged(code="Q-03", verdict="clean", reason=reason)


def _ended(found: list[Finding], code: str, reason: Words) -> Verdict:
    return found, Judged(code=code, verdict="found") if found else _unknown(code, reason)


def _unknown(code: str, reason: Words) -> Judged:
    return Judged(code=code, verdict="not_judged", reason=reason)


def _pairs(every: Sequence[Series]) -> Iterator[Pair]:
    """Series of one rank from different files, each with the one that is named a reference, else with the first."""
    by_rank: dict[int | None, list[Series]] = {}
    for series in every:
        by_rank.setdefault(series.rank, []).append(series)
    count = 0
    for members in by_rank.values():
        reference = next((series for series in members if series.is_reference), members[0])
        for series in members:
            if series is reference or count >= MAX_PAIRS:
                continue
            count += 1
            steps, deviation = common(series.by_step(series.loss), reference.by_step(reference.loss))
            yield Pair(
                run=series, reference=reference, steps=steps, deviation=deviation, unequal=_unequal(series, reference)
            )


def common(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> tuple[Ints, Floats]:
    """Steps that both have, and ln(one / other) there; steps where a value is not above zero are left out."""
    steps, first, second = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    a, b = one[1][first], other[1][second]
    usable = (a > 0) & (b > 0)
    return steps[usable], np.log(a[usable] / b[usable])


def _unequal(run: Series, reference: Series) -> Words | None:
    steps, ratio = common(run.by_step(run.rate), reference.by_step(reference.rate))
    other = np.flatnonzero(np.abs(ratio) > RATE_RATIO)
    if len(other):
        at = int(steps[other[0]])
        return Words(
            f"no equal runs: the learning rates differ from step {at} on", f"并非相同配置：学习率自第 {at} 步起不同"
        )
    mine, theirs = run.trace.meta.environment, reference.trace.meta.environment
    names = sorted(
        name for name in mine.keys() & theirs.keys()
        if name.startswith("--") and name not in ("--bf16", "--fp16") and mine[name] != theirs[name]
    )  # fmt: skip
    if names:
        listed = ", ".join(names[:4])
        return Words(f"no equal runs: {listed} differ", f"并非相同配置：{listed} 不同")
    return None


def _differs(run: Run, pair: Pair) -> Finding:
    first = pair.first
    assert first is not None
    largest = int(np.argmax(np.abs(pair.deviation)))
    mean, _ = pair.tail()
    step, most = int(pair.steps[first]), float(np.expm1(abs(pair.deviation[largest])))
    at_once = first == 0
    return finding(
        "Q-02", analyzer="precision", trace_rank=None, ranks=() if pair.run.rank is None else (pair.run.rank,),
        share_ratio=None, vendor=vendor_of(run), subject="two runs",
        title=Words(
            f"The losses of two runs differ from step {step} on, by up to {format_ratio(most)}"
            + ("; they differ from the first common step, before reductions can matter" if at_once else ""),
            f"两次运行的 loss 自第 {step} 步起不一致，最大相差 {format_ratio(most)}"
            + ("；首个共同步即不同，与归约顺序无关" if at_once else ""),
        ),
        cause=Words(
            "The runs differ before the first update: initial weights, seed or data order.",
            "首次更新之前已不同：初始权重、随机种子或数据顺序不同。",
        )
        if at_once
        else None,
        evidence=[
            Evidence(
                name=Words("largest deviation", "最大偏差"), value=most, unit="ratio",
                where=f"{pair.run.name} against {pair.reference.name}, step {int(pair.steps[largest])}",
            ),
            Evidence(
                name=Words("mean deviation in the last quarter", "末四分之一步的平均偏差"), value=float(np.expm1(mean)),
                unit="ratio", where=f"{len(pair.steps)} common steps",
            ),
            *(setting(run, name) for name in ("HCCL_DETERMINISTIC", "--npu-deterministic", "--seed")),
        ],
        formula="|loss of the run / loss of the other - 1| at common steps",
    )  # fmt: skip


def _drop(run: Run, pair: Pair) -> Finding:
    mean, error = pair.tail()
    is_higher = mean > 0
    low, high = (pair.reference.name, pair.run.name) if is_higher else (pair.run.name, pair.reference.name)
    ratio = float(np.expm1(abs(mean)))
    return finding(
        "Q-03", analyzer="precision", trace_rank=None, ranks=() if pair.run.rank is None else (pair.run.rank,),
        share_ratio=None, vendor=vendor_of(run), subject="loss",
        title=Words(
            f"The loss of {high} ends {format_ratio(ratio)} above that of {low}",
            f"{high} 的 loss 最终比 {low} 高 {format_ratio(ratio)}",
        ),
        evidence=[
            Evidence(
                name=Words("mean deviation in the last quarter", "末四分之一步的平均偏差"), value=ratio, unit="ratio",
                where=f"{len(pair.steps)} common steps",
            ),
            Evidence(
                name=Words("its standard error", "其标准误差"), value=error, unit="ratio", where="means of 8 blocks"
            ),
            *reduced_precision(run),
            *(setting(run, name) for name in ("--bf16", "--fp16")),
        ],
        formula="mean of ln(loss / loss of the reference) over the last quarter of the common steps",
    )  # fmt: skip


def _metric_drop(run: Run, pair: Pair) -> Finding | None:
    """The last validation loss or accuracy that both runs have."""
    known = (("eval_loss", "validation loss", "验证 loss", 1), ("accuracy", "accuracy", "准确率", -1))
    for name, en, zh, sign in known:
        steps, ratio = common(
            pair.run.by_step(getattr(pair.run, name)), pair.reference.by_step(getattr(pair.reference, name))
        )
        if not len(steps):
            continue
        worse = float(np.expm1(abs(ratio[-1])))
        if worse <= DROP_RATIO.value or (sign * ratio[-1] < 0 and pair.reference.is_reference):
            continue
        is_run = sign * ratio[-1] > 0
        behind, ahead = (pair.run.name, pair.reference.name) if is_run else (pair.reference.name, pair.run.name)
        step = int(steps[-1])
        return finding(
            "Q-03", analyzer="precision", trace_rank=None, ranks=(), share_ratio=None, vendor=vendor_of(run),
            subject=name,
            title=Words(
                f"The {en} of {behind} is {format_ratio(worse)} worse than that of {ahead} at step {step}",
                f"第 {step} 步，{behind} 的{zh}比 {ahead} 差 {format_ratio(worse)}",
            ),
            evidence=[
                Evidence(
                    name=Words("deviation", "偏差"), value=worse, unit="ratio", where=f"{pair.run.name}, step {step}"
                ),
                *reduced_precision(run),
            ],
            formula="|value / value of the reference - 1| at the last common step",
        )  # fmt: skip
    return None
