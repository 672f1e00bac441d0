"""Frequency of the AI cores while kernels run, against what the device is rated for (P-01, P-02)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._kernels import MAX_BANDS, STEP_MIN_RATIO, KernelTime
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import unions_by_step
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.specs import device_specs, spec_for
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table
from ascend_perf.model.tables import COUNTERS, KERNELS
from ascend_perf.model.trace import Device, Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_quantity, format_range, format_ratio

NAME: Final = "frequency"
COUNTER: Final = "AI Core Freq"
MAX_DROP_RATIO: Final = threshold("P-01", "max_drop_ratio")
IDLE_HERTZ: Final = threshold("P-02", "idle_hertz")
IDLE_BUSY_RATIO: Final = threshold("P-02", "max_busy_ratio")
SAME_RATIO: Final = 0.02
"""Frequencies this close are the same. Status: assumed (as the reader's tolerance)."""
MIN_KERNEL_NS: Final = threshold("P-01", "min_kernel_ns")
MIN_KERNELS: Final = threshold("P-01", "min_kernels")

_HERTZ_OF: Final = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
NO_COUNTER: Final = Words(
    "no AI Core Freq counter in this data: export the timeline (trace_view.json or the database) of a profile with "
    "profiler_level=torch_npu.profiler.ProfilerLevel.Level1 on Atlas A2/A3",
    "数据中没有 AI Core Freq 计数器：请在 Atlas A2/A3 上以 profiler_level=torch_npu.profiler.ProfilerLevel.Level1 "
    "采集并导出时间线（trace_view.json 或数据库）",
)


class Reference(NamedTuple):
    """The frequency to hold samples against, and where it comes from."""

    hertz: float
    basis: Words


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """Times of constant frequency inside the capture; arrays of one length, in order of time."""

    starts: Ints
    ends: Ints
    hertz: Floats
    busy_ns: Ints
    """Time of the steps in which a kernel runs."""
    step_ns: Ints
    """Time inside steps."""

    def ns(self, rows: Bools) -> int:
        """Kernel time of some stretches."""
        return int(self.busy_ns[rows].sum())


@analyzer(name=NAME, needs=(KERNELS,), order=45, section="mac", needs_measured=("P-01", "P-02"))
def frequency(trace: Trace) -> Result:
    """Report kernels that run while the cores are clocked below the reference of the device.

    The reference is the rated frequency of the device where the trace names it, the frequency by which the exporter
    turned cycles into time, or the highest sample, whichever is highest; never a constant. Where the trace names no
    device and the highest sample is no part's rated frequency, it is that of the next part with as many cores.

    Reads:
        counters: AI Core Freq; kernels: start_ns, dur_ns, block_num, core, cycles and core times; meta.device.

    Returns:
        P-01 with the time that the drop costs at most, busy time * (1 - f / reference), over the steps; P-02 where the
        cores are at their idle frequency because the device idles.
    """
    if trace.meta.device.kind in ("gpu", "cpu"):
        return Result()  # their traces hold no frequency
    samples = _samples(trace[COUNTERS])
    if samples is None:
        return _not_judged(NO_COUNTER)
    time = KernelTime.of(trace)
    at, hertz = samples
    found = _stretches(time, at, hertz)
    if not len(found.starts) or time.whole_ns <= 0:
        reason = Words("no kernel runs while the frequency is sampled", "频率采样期间没有 Kernel 执行")
        return _not_judged(reason)
    reference = reference_of(trace, float(hertz.max()))
    low = found.hertz < (1 - MAX_DROP_RATIO.value) * reference.hertz
    with np.errstate(divide="ignore", invalid="ignore"):
        idles = (found.hertz <= IDLE_HERTZ.value) & (found.busy_ns < IDLE_BUSY_RATIO.value * found.step_ns)
    made, verdicts = [], []
    outcomes = {"P-01": _drop(time, found, low & ~idles, reference), "P-02": _idle(time, found, low & idles)}
    for code, outcome in outcomes.items():
        if isinstance(outcome, Finding):
            made.append(outcome)
        verdicts.append(
            Judged(code=code, verdict="found") if isinstance(outcome, Finding)
            else Judged(code=code, verdict="clean", reason=outcome)
        )  # fmt: skip
    busy = int(found.busy_ns.sum())
    mean = float((found.hertz * found.busy_ns).sum() / busy) if busy else None
    metric = Metric(name="ai_core_frequency", value=mean, unit="hertz", better="higher", rank=trace.meta.rank)
    return Result(
        findings=tuple(made), metrics=() if mean is None else (metric,), tables=(_table(found, reference),),
        judged=tuple(verdicts),
    )  # fmt: skip


def _not_judged(reason: Words) -> Result:
    return Result(judged=tuple(Judged(code=code, verdict="not_judged", reason=reason) for code in ("P-01", "P-02")))


def reference_of(trace: Trace, highest_hertz: float) -> Reference:
    """The frequency that the device should reach.

    Args:
        trace: the rank.
        highest_hertz: highest sample of the counter.
    """
    candidates = [Reference(highest_hertz, Words("highest sample of the capture", "采集期间的最高采样值"))]
    by_cycles = _by_cycles(trace[KERNELS])
    if by_cycles is not None:
        candidates.append(Reference(by_cycles, Words("cycles over core time of the kernels", "算子周期数与核时间之比")))
    device = trace.meta.device
    if device.frequency_hz is not None:
        basis = Words("frequency of the device by its own profile", "profile 给出的设备频率")
        candidates.append(Reference(float(device.frequency_hz), basis))
    rated = _rated(device) or _next_rated(device, max(c.hertz for c in candidates))
    if rated is not None:
        candidates.append(rated)
    return max(candidates, key=lambda candidate: candidate.hertz)


def _rated(device: Device) -> Reference | None:
    """The rated frequency of a named device; core counts and clocks derived from this trace do not name one."""
    spec = device_specs().get(device.spec or "")
    if spec is None and device.name:
        spec = spec_for(Device(kind="npu", name=device.name))
    if spec is None or spec.frequency_hz is None:
        return None
    return Reference(float(spec.frequency_hz), Words(f"rated frequency of {spec.name}", f"{spec.name} 的额定频率"))


def _next_rated(device: Device, hertz: float) -> Reference | None:
    """The lowest rated frequency above one that no part with as many cores runs at.

    A part at its rated frequency cannot be told from another that is throttled to the same one: then None.
    """
    rated = sorted(
        {
            spec.frequency_hz
            for spec in device_specs().values()
            if spec.kind == "npu" and spec.frequency_hz and device.cube_cores and spec.cube_cores == device.cube_cores
        }
    )
    if any(abs(hertz - value) <= SAME_RATIO * value for value in rated):
        return None
    above = next((value for value in rated if value > hertz), None)
    if above is None:
        return None
    return Reference(
        float(above),
        Words(f"inferred: no part with {device.cube_cores} cube cores is rated lower and above this frequency",
              f"推断：{device.cube_cores} 个 Cube 核的型号中高于该频率的最低额定值"),
    )  # fmt: skip


def _by_cycles(kernels: Table) -> float | None:
    """Cycles per core time and block of long kernels, None when too few tell.

    With more blocks than cores a core runs several, and the quotient is a fraction: the upper quantile counts.

    Source:
        format reference, section 5.4.
    """
    found = []
    for core, name in (("AIC", "aic"), ("AIV", "aiv")):
        cycles, spent, blocks = (
            kernels.ints(column) for column in (f"{name}_total_cycles", f"{name}_time_ns", "block_num")
        )
        rows = kernels.text("core").equals(core) & (cycles > 0) & (spent > 0) & (blocks > 0)
        rows &= kernels.ints("dur_ns") >= MIN_KERNEL_NS.value
        if int(rows.sum()) >= MIN_KERNELS.value:
            found.append(float(np.quantile(cycles[rows] / spent[rows] / blocks[rows] * 1e9, 0.9)))
    return round(max(found) / 1e6) * 1e6 if found else None


def _samples(counters: Table) -> tuple[Ints, Floats] | None:
    """Times and frequencies in Hz, in order of time; None when there are none."""
    unit = counters.text("unit").numbers(lambda name: _HERTZ_OF.get(name, np.nan))
    # The track is in MHz where it does not say so (format reference, 2.3).
    at = counters.ints("time_ns")
    with np.errstate(invalid="ignore", over="ignore"):
        hertz = counters.floats("value") * np.where(counters.text("unit").codes < 0, 1e6, unit)
        usable = (at != NULL) & (hertz > 0) & np.isfinite(hertz)
        rows = np.flatnonzero(counters.text("counter").equals(COUNTER) & usable)
    if not len(rows):
        return None
    rows = rows[np.argsort(at[rows], kind="stable")]
    return at[rows], hertz[rows]


def _stretches(time: KernelTime, at: Ints, hertz: Floats) -> Stretches:
    """A sample holds until the next one, the last until the end of the steps; before the first nothing is known."""
    last = int(time.windows.ends.max()) if len(time.windows) else int(at[-1])
    ends = np.append(at[1:], max(last, int(at[-1])))
    keep = ends > at
    starts, ends, hertz = at[keep], ends[keep], hertz[keep]
    busy = _joined(unions_by_step(time.trace, time.trace[KERNELS], windows=time.windows))
    steps = intervals.merged(time.windows.starts, time.windows.ends)
    busy_ns, step_ns = intervals.covered(busy, starts, ends), intervals.covered(steps, starts, ends)
    inside = step_ns > 0
    return Stretches(
        starts=starts[inside], ends=ends[inside], hertz=hertz[inside], busy_ns=busy_ns[inside], step_ns=step_ns[inside]
    )  # fmt: skip


def _joined(unions: list[IntervalSet]) -> IntervalSet:
    return intervals.union(*unions)


def _running(time: KernelTime, found: Stretches, rows: Bools) -> IntervalSet:
    """When kernels run in some of the stretches."""
    busy = _joined(unions_by_step(time.trace, time.trace[KERNELS], windows=time.windows))
    return intervals.intersection(intervals.merged(found.starts[rows], found.ends[rows]), busy)


def _drop(time: KernelTime, found: Stretches, rows: Bools, reference: Reference) -> Finding | Words:
    """P-01, or why there is none."""
    spent = found.ns(rows)
    lost = float((found.busy_ns[rows] * (1 - found.hertz[rows] / reference.hertz)).sum())
    share = min(1.0, lost / time.whole_ns)
    if share < STEP_MIN_RATIO.value:
        return Words(
            f"kernels run at {_span(found.hertz[found.busy_ns > 0])}; reference {_hz(reference.hertz)} "
            f"({reference.basis.en})",
            f"算子执行期间频率为 {_span(found.hertz[found.busy_ns > 0])}；参考值 {_hz(reference.hertz)}"
            f"（{reference.basis.zh}）",
        )
    mean = float((found.hertz[rows] * found.busy_ns[rows]).sum() / spent)
    least = np.flatnonzero(rows)[int(np.argmin(found.hertz[rows]))]
    busy = int(found.busy_ns.sum())
    return finding(
        "P-01", analyzer=NAME, trace_rank=time.trace.meta.rank, vendor=time.trace.meta.device.kind, share_ratio=share,
        where=_running(time, found, rows), whole_ns=time.whole_ns,
        title=Words(
            f"The AI cores run at {_hz(mean)} on average, {format_ratio(1 - mean / reference.hertz)} below "
            f"{_hz(reference.hertz)} ({reference.basis.en}), in {format_ratio(spent / busy)} of the kernel time",
            f"AI Core 平均频率 {_hz(mean)}，比 {_hz(reference.hertz)}（{reference.basis.zh}）低 "
            f"{format_ratio(1 - mean / reference.hertz)}，占算子执行时间的 {format_ratio(spent / busy)}",
        ),
        evidence=[
            Evidence(
                name=Words("lowest frequency while kernels run", "算子执行期间的最低频率"),
                value=float(found.hertz[least]), unit="hertz", where=f"counters: {COUNTER}",
                start_ns=int(found.starts[least]),
            ),
            Evidence(
                name=Words("reference", "参考频率"), value=reference.hertz, unit="hertz", where=reference.basis.en,
            ),
            Evidence(
                name=Words("kernel time at the low frequency, per step", "低频期间的算子执行时间（每步）"),
                value=spent / time.steps, unit="ns", where="union of kernels in these stretches",
            ),
        ],
        bands=_bands(found, rows), formula="sum(kernel time * (1 - frequency / reference)) / steps: the most that "
        "kernels bound by the cores can lose",
    )  # fmt: skip


def _idle(time: KernelTime, found: Stretches, rows: Bools) -> Finding | Words:
    """P-02, or why there is none."""
    spent = int(found.step_ns[rows].sum())
    if spent < STEP_MIN_RATIO.value * time.whole_ns:
        return Words(
            f"the cores never fall to {_hz(IDLE_HERTZ.value)} in idle time of a step",
            f"step 内空闲时频率未降到 {_hz(IDLE_HERTZ.value)}",
        )
    first = int(np.flatnonzero(rows)[0])
    return finding(
        "P-02", analyzer=NAME, trace_rank=time.trace.meta.rank, vendor=time.trace.meta.device.kind, share_ratio=None,
        title=Words(
            f"The cores fall to {_hz(float(found.hertz[rows].min()))} for {format_ns(spent / time.steps)} of a step "
            f"in which kernels run {format_ratio(found.ns(rows) / spent)} of the time: they follow the idle device",
            f"每步有 {format_ns(spent / time.steps)} 频率降到 {_hz(float(found.hertz[rows].min()))}，期间算子仅执行 "
            f"{format_ratio(found.ns(rows) / spent)} 的时间：降频由设备空闲引起",
        ),
        evidence=[
            Evidence(
                name=Words("first stretch at the idle frequency", "首个空闲频率区段"),
                value=int(found.ends[first] - found.starts[first]), unit="ns", where=f"counters: {COUNTER}",
                start_ns=int(found.starts[first]),
            )
        ],
        bands=_bands(found, rows), formula="no gain of its own: see the rows of idle time",
    )  # fmt: skip


def _bands(found: Stretches, rows: Bools) -> tuple[tuple[int, int], ...]:
    picked = np.flatnonzero(rows)
    picked = np.sort(picked[np.argsort(-found.busy_ns[picked], kind="stable")[:MAX_BANDS]])
    return tuple((int(found.starts[i]), int(found.ends[i])) for i in picked)


def _table(found: Stretches, reference: Reference) -> ResultTable:
    values, of = np.unique(found.hertz, return_inverse=True)
    busy = np.bincount(of, found.busy_ns, len(values))
    inside = np.bincount(of, found.step_ns, len(values))
    return result_table(
        "frequency",
        Words("AI Core frequency in the steps", "step 内的 AI Core 频率"),
        [
            Col("hertz", "Frequency", "频率", values[::-1], "hertz"),
            Col("busy_ns", "Kernels run", "算子执行", busy[::-1], "ns"),
            Col("idle_ns", "No kernel", "无算子", (inside - busy)[::-1], "ns"),
            Col("ratio", "Of the reference", "与参考频率之比", values[::-1] / reference.hertz, "ratio"),
        ],
        Words(f"Reference {_hz(reference.hertz)}: {reference.basis.en}.",
              f"参考频率 {_hz(reference.hertz)}：{reference.basis.zh}。"),
    )  # fmt: skip


def _hz(value: float) -> str:
    return format_quantity(value, "hertz")


def _span(values: Floats) -> str:
    if not len(values):
        return "—"
    low, high = float(values.min()), float(values.max())
    return format_range(_hz(low), _hz(high))
