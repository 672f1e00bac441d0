"""A device that is busy and still reaches little of its peak (C-01)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import idle_of, no_idle_words
from ascend_perf.analyzers._kernels import PIPES, KernelTime, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers._utilisation import Utilisation, utilisation_of
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, Words
from ascend_perf.model.table import Bools
from ascend_perf.model.tables import HOST_EVENTS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ratio

NAME: Final = "compute-efficiency"
CODE: Final = "C-01"

FREE_MAX_RATIO: Final = threshold("C-01", "max_free_ratio")
COMPUTING_MIN_RATIO: Final = threshold("C-01", "min_computing_ratio")
MFU_MIN_RATIO: Final = threshold("C-01", "min_mfu_ratio")
COVERED_MIN_RATIO: Final = threshold("C-01", "min_covered_ratio")

MAX_WORD: Final = 400
"""Names are looked at up to here. Status: assumed."""

_BACKWARD: Final = re.compile(r"Grad|backward|wgrad|dgrad|_bwd|^ApplyAdam|multi_tensor_apply")
_CORES: Final = (
    (("AIC", "MIX_AIC"), Words("cube kernels", "Cube 算子")),
    (("AIV", "MIX_AIV"), Words("vector kernels", "Vector 算子")),
    (("AICPU",), Words("AI CPU kernels", "AI CPU 算子")),
)
_NO_PEAK: Final = Words(
    "the utilisation of the matrix kernels is not known: the device's peak, or shapes, or counters are missing",
    "矩阵算子的利用率未知：缺少设备峰值、Shape 或计数器",
)


@dataclass(frozen=True, kw_only=True)
class _Efficiency:
    free_ratio: float
    computing_ratio: float
    mfu_ratio: float | None
    """FLOPs of the matrix kernels over what the device could do in the whole step; None when it is not known."""


@analyzer(name=NAME, needs=(KERNELS,), order=41, section="mac", needs_measured=("C-01",))
def compute_efficiency(trace: Trace) -> Result:
    """Report a training step that is busy computing and reaches less than 30 % of the peak.

    MFU here counts the work of all matrix kernels (recomputation included) over the whole step, so that of the model
    is at most this.

    Reads:
        kernels, comm_ops, copies: start_ns, dur_ns; kernels: core, shapes, dtypes, counters; host_events: optimizer.

    Returns:
        Finding C-01 without a share: it names the class of kernels to look at, and the rows of that class (C-02 to
        C-14, M-01) count the time.
    """
    if trace.meta.device.kind == "cpu":
        return Result()  # the peak of a CPU is not known
    idle = idle_of(trace)
    time = KernelTime.of(trace)
    if idle is None or time.whole_ns <= 0:
        reason = no_idle_words(trace)
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
    use = utilisation_of(trace)
    every = np.ones(len(time.duration), bool)
    found = _Efficiency(
        free_ratio=intervals.total(idle.gaps) / time.whole_ns, computing_ratio=time.union_ns(every) / time.whole_ns,
        mfu_ratio=_mfu(time, use),
    )  # fmt: skip
    metric = Metric(
        name="step_matrix_utilisation", value=found.mfu_ratio, unit="ratio", better="higher", rank=trace.meta.rank
    )
    metrics = () if found.mfu_ratio is None else (metric,)
    verdict, why = _verdict(trace, found)
    if verdict != "found":
        return Result(metrics=metrics, judged=(Judged(code=CODE, verdict=verdict, reason=why),))
    return Result(
        findings=(_finding(time, use, found),), metrics=metrics, judged=(Judged(code=CODE, verdict="found"),)
    )  # fmt: skip


def _verdict(trace: Trace, found: _Efficiency) -> tuple[Literal["found", "clean", "not_judged"], Words | None]:
    if found.free_ratio >= FREE_MAX_RATIO.value or found.computing_ratio < COMPUTING_MIN_RATIO.value:
        return "clean", Words(
            f"the device computes {format_ratio(found.computing_ratio)} of the step and idles "
            f"{format_ratio(found.free_ratio)}: other rows come first",
            f"计算占单步 {format_ratio(found.computing_ratio)}，空闲占 {format_ratio(found.free_ratio)}："
            "应先看其他条目",
        )
    if not _is_training(trace):
        return "not_judged", Words(
            "no backward kernels and no optimizer: the limit holds for training",
            "没有反向算子与优化器：该阈值仅适用于训练",
        )
    if found.mfu_ratio is None:
        return "not_judged", PIPES if trace.meta.device.kind == "npu" else _NO_PEAK
    if found.mfu_ratio >= MFU_MIN_RATIO.value:
        return "clean", Words(
            f"the matrix units reach {format_ratio(found.mfu_ratio)} of their peak over the step",
            f"矩阵单元在整个单步内达到峰值的 {format_ratio(found.mfu_ratio)}",
        )
    return "found", None


def _mfu(time: KernelTime, use: Utilisation) -> float | None:
    """Time of the matrix kernels at peak rate, over the step; None when too little of it is known.

    Kernel MFU is efficiency over the kernel's time, so that MFU * time is the time that its work needs at the peak.
    """
    matrix = use.is_cube & time.inside & (use.duration > 0)
    whole = float(use.duration[matrix].sum())
    if not whole:
        # Without core types (Level0) or on a GPU it may only be that none was recognised.
        return 0.0 if time.trace[KERNELS].has("core") and time.trace.meta.device.kind == "npu" else None
    known = matrix & ~np.isnan(use.mfu)
    if float(use.duration[known].sum()) < COVERED_MIN_RATIO.value * whole:
        return None
    return min(1.0, float((use.duration[known] * use.mfu[known]).sum()) / time.whole_ns)


def _is_training(trace: Trace) -> bool:
    """Whether the steps hold an optimizer or backward kernels."""
    if trace[HOST_EVENTS].text("kind").equals("optimizer").any():
        return True
    kernels = trace[KERNELS]
    texts = (kernels.text("op_type"), kernels.text("name"))
    return any(bool(text.flags(lambda word: bool(_BACKWARD.search(word[:MAX_WORD]))).any()) for text in texts)


def _finding(time: KernelTime, use: Utilisation, found: _Efficiency) -> Finding:
    mfu = found.mfu_ratio or 0.0
    kernels = time.trace[KERNELS]
    classes = _classes(time, use)
    wasted = {name.en: _wasted_ns(use, rows) for name, rows in classes}
    chief, rows = max(classes, key=lambda item: wasted[item[0].en])
    step = step_words(_Steps(time))
    row = time.longest(rows)
    shares = [(name, time.kernel_share(mask)) for name, mask in classes]
    return finding(
        CODE, analyzer=NAME, trace_rank=time.trace.meta.rank, vendor=time.trace.meta.device.kind, share_ratio=None,
        title=Words(
            f"The device is busy ({format_ratio(found.free_ratio)} idle), but its matrix units reach "
            f"{format_ratio(mfu)} of their peak over {step.en}; most of the rest is time of {chief.en} "
            f"({format_ratio(time.kernel_share(rows))} of kernel time)",
            f"{step.zh} 设备忙碌（空闲 {format_ratio(found.free_ratio)}），但矩阵单元仅达到峰值的 {format_ratio(mfu)}；"
            f"其余主要是 {chief.zh}的耗时（占 Kernel 总耗时 {format_ratio(time.kernel_share(rows))}）",
        ),
        evidence=[
            Evidence(
                name=Words("matrix work at peak rate, of the step", "矩阵计算按峰值所需时间占单步"), value=mfu,
                unit="ratio", where="sum of kernel MFU x duration over the matrix kernels / steps; the MFU of the "
                "model is at most this",
            ),
            *(
                Evidence(
                    name=Words(f"{name.en}, share of kernel time", f"{name.zh}占 Kernel 总耗时"), value=share,
                    unit="ratio", where="kernels: sum of durations by core",
                )
                for name, share in shares
            ),
            Evidence(
                name=Words("longest of the largest class", "最大一类中最长的算子"), value=int(time.duration[row]),
                unit="ns", where=kernel_place(kernels, row),
            ),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="sum(kernel MFU * duration) / steps; the time itself is counted by the rows of the classes",
    )  # fmt: skip


def _classes(time: KernelTime, use: Utilisation) -> list[tuple[Words, Bools]]:
    """Classes of kernels that take time."""
    if time.trace.meta.device.kind == "npu":
        core = time.trace[KERNELS].text("core")
        found = [(name, core.isin(cores)) for cores, name in _CORES]
    else:
        found = [(Words("matrix kernels", "矩阵算子"), use.is_cube), (Words("other kernels", "其他算子"), ~use.is_cube)]
    return [(name, rows & time.inside) for name, rows in found if (rows & time.inside).any()]


def _wasted_ns(use: Utilisation, rows: Bools) -> float:
    """Time of some kernels that is no matrix work at peak rate."""
    return float((use.duration[rows] * (1 - np.where(use.is_cube, np.nan_to_num(use.mfu), 0.0)[rows])).sum())


class _Steps:
    """The steps of a rank as `step_words` wants them."""

    def __init__(self, time: KernelTime) -> None:
        self.step_ns = time.whole_ns
        self.steps = time.steps
