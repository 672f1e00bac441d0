"""Decode steps of a language model and offline models: dispatch, memory, sampling, loading (V-01, V-02, V-05, V-08).

Only a trace of a device is looked at; what a service's own tables tell is in `serving`.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._decode import (
    MIN_EXECUTIONS,
    MIN_PER_EXECUTION,
    Decode,
    ModelCalls,
    decode_of,
    is_limited,
    is_reloaded,
    launching_idle,
    model_calls,
    trains,
)
from ascend_perf.analyzers._decode_roofline import MIN_KNOWN_RATIO, Reads, reads_of
from ascend_perf.analyzers._idle import Idle, Span, idle_of
from ascend_perf.analyzers._kernels import kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import bracket, per_step, share_of
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers.host_dispatch import launch_blocking
from ascend_perf.device.specs import spec_for
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import EXPORTED_APIS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, computes, kernel_classes
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import counted, format_ns, format_quantity, format_ratio

NAME: Final = "decode"

MIN_FLOOR_RATIO: Final = threshold("V-02", "min_floor_ratio")
MAX_MAC_RATIO: Final = threshold("V-02", "max_mac_ratio")
MIN_SAMPLER_RATIO: Final = threshold("V-05", "min_sampler_ratio")
MIN_LOAD_RATIO: Final = threshold("V-08", "min_share_ratio")
MAX_BANDS: Final = 12
MAX_ROWS: Final = 200
"""Steps listed in the table."""

_SAMPLER: Final = re.compile(
    r"sort|top_?k|top_?p|arg_?max|multinomial|softmax|cumsum|exponential|random|sampl|gumbel", re.IGNORECASE
)
_LOAD_API: Final = re.compile(r"aclmdlLoad", re.IGNORECASE)
_EXECUTE_API: Final = re.compile(r"aclmdlExecute", re.IGNORECASE)
_ALLOCATE_API: Final = re.compile(r"aclrtMalloc(?!Host)", re.IGNORECASE)

_TOLD: Final = {
    "range": Words("by ranges of the serving framework", "依据推理框架的区间标记"),
    "attention": Words("by their attention kernels", "依据注意力算子"),
    "products": Words("by the rows of their matrix products", "依据矩阵乘的行数"),
}
NO_DECODE: Final = Words(
    "no step of the trace can be told to be a decode step (no language model, or prefill): profile steps of decoding, "
    "with a range that names them (record_function(\"decode\"))",
    "无法识别出 Decode 步（非语言模型，或为 Prefill）：请采集 Decode 阶段，并用区间标记（record_function(\"decode\")）",
)


@analyzer(name=NAME, needs=(), order=84, section="host", needs_measured=("V-02",))
def decode(trace: Trace) -> Result:
    """Report decode steps that dispatch or memory limits, slow sampling, and models that are loaded per request.

    Reads:
        what `decode_of`, `idle_of` and `reads_of` read; runtime_calls: start_ns, dur_ns, api; exported_apis: api,
        count, total_ns.

    Returns:
        V-01: idle time inside decode steps in which the host launches; V-02: half of the time of the products (what
        int8 weights would leave); V-05: kernels behind the last product; V-08: calls that load or allocate. Row H-01
        leaves out what V-01 and V-08 claim.
    """
    calls = model_calls(trace)
    has_models = calls is not None or bool(
        trace[EXPORTED_APIS].text("api").flags(lambda api: bool(_EXECUTE_API.search(api))).any()
    )
    if not len(trace[KERNELS]) and not has_models:
        raise NoData(Words("no kernels, and no calls of an offline model", "没有 Kernel，也没有离线模型的调用"))
    if trains(trace):
        raise NoData(Words("training: it has no decode steps", "训练任务：没有 Decode 步"))
    findings: list[Finding] = []
    judged: list[Judged] = []
    tables: list[ResultTable] = []
    metrics: list[Metric] = []

    def say(verdict: tuple[Finding | None, Judged]) -> None:
        if verdict[0] is not None:
            findings.append(verdict[0])
        judged.append(verdict[1])

    steps = decode_of(trace)
    if steps is None:
        judged += [Judged(code=code, verdict="not_judged", reason=NO_DECODE) for code in ("V-01", "V-02", "V-05")]
    else:
        idle = idle_of(trace)
        spec = spec_for(trace.meta.device)
        reads = reads_of(trace, steps, None if spec is None else spec.matrix_peak("bf16") or spec.matrix_peak("fp16"))
        sampler = _sampler_rows(trace, steps)
        say(_dispatch(trace, steps, idle))
        say(_roof(trace, steps, reads, None if spec is None else spec.memory_bytes_per_s.value))
        say(_sampler(trace, steps, sampler))
        tables.append(_table(trace, steps, idle, reads, sampler))
        metrics += _metrics(trace, steps, idle, reads)
    say(_loading(trace, calls))
    return Result(
        findings=tuple(findings), judged=tuple(judged), tables=tuple(t for t in tables if len(t)),
        metrics=tuple(metrics),
    )  # fmt: skip


def _whole(trace: Trace, steps: Decode, idle: Idle | None) -> Span:
    """What shares are of: the steps of the trace; where it has none, the decode steps."""
    if idle is not None and len(step_windows(trace)) and int(step_windows(trace).ids[0]) != NULL:
        return idle.span
    return Span(starts=steps.starts, ends=steps.ends, step_ids=steps.step_ids)


def _step(steps: Decode, share_ratio: float | None = None) -> Words:
    length = format_ns(steps.step_ns / steps.steps)
    if steps.steps == 1:
        return Words(f"the {length} decode step{bracket(share_ratio)}", f"{length} 的 Decode 步")
    average = bracket(share_ratio, f"average of {steps.steps}")
    return Words(f"the {length} decode step{average}", f"平均 {length} 的 Decode 步（共 {steps.steps} 步）")


# ---- V-01 ------------------------------------------------------------------------------------------------------------


def _dispatch(trace: Trace, steps: Decode, idle: Idle | None) -> tuple[Finding | None, Judged]:
    if idle is None:
        reason = Words("no device task lies in a step", "step 内没有设备任务")
        return None, Judged(code="V-01", verdict="not_judged", reason=reason)
    gaps = intervals.intersection(idle.gaps, steps.windows)
    busy = 1 - intervals.total(gaps) / steps.step_ns
    if launch_blocking(trace, idle):
        reason = Words(
            "launches are blocking (row H-04): every gap follows from that",
            "下发为阻塞模式（见 H-04），所有空闲均由其引起",
        )
        return None, Judged(code="V-01", verdict="clean", reason=reason)
    lost = launching_idle(trace, steps, idle)
    graph = _graph_words(steps)
    if not is_limited(steps, lost):
        waits = format_ratio(intervals.total(lost) / steps.step_ns)
        reason = Words(
            f"the device is busy {format_ratio(busy)} of {counted(steps.steps, 'decode step')} and waits {waits} for "
            f"launches; {graph.en}",
            f"{steps.steps} 个 Decode 步中设备忙碌 {format_ratio(busy)}，等待下发 {waits}；{graph.zh}",
        )
        return None, Judged(code="V-01", verdict="clean", reason=reason)
    whole = _whole(trace, steps, idle)
    spent = intervals.total(lost)
    share = share_of(whole, spent)
    step = _step(steps)
    found = finding(
        "V-01", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=share,
        subject="dispatch", where=lost, whole_ns=whole.step_ns,
        title=Words(
            f"The device is busy {format_ratio(busy)} of {step.en}: it waits {per_step(steps, spent)} for launches; "
            f"{graph.en}",
            f"{step.zh}中设备忙碌 {format_ratio(busy)}：等待下发 {per_step(steps, spent)}；{graph.zh}",
        ),
        evidence=[
            Evidence(
                name=Words("busy share of the decode steps", "Decode 步忙碌占比"), value=busy, unit="ratio",
                where=f"{counted(steps.steps, 'decode step')}, told {_TOLD[steps.by].en}",
            ),
            Evidence(
                name=Words("idle while the host launches, per decode step", "Host 下发期间的空闲（每 Decode 步）"),
                value=spent / steps.steps, unit="ns",
                where="gaps of the whole device inside the decode steps, without those of rows D-01, H-05, H-06, "
                "H-07 and K-04",
            ),
            Evidence(
                name=Words("kernels per decode step", "每 Decode 步的 Kernel 数"),
                value=_kernels_per_step(trace, steps), unit="count", where="kernels whose start lies in a decode step",
            ),
            Evidence(
                name=Words("launches of captured graphs", "图下发次数"), value=steps.graph_launches, unit="count",
                where="runtime_calls: graph launches of the decode steps",
            ),
        ],
        bands=_bands(lost), step_ids=steps.step_ids,
        formula="idle time of the device inside decode steps while the host launches (union) / length of the steps; "
        "not part of H-01",
        cause=None if not steps.has_graph else Words(
            "A captured graph is replayed, and yet the host is what the device waits for: work around the graph "
            "(inputs, sampling) is launched kernel by kernel, or only parts of the step are captured.",
            "已使用图重放，设备仍在等待 Host：图外的工作（输入准备、采样）逐个下发，或仅部分被捕获。",
        ),
    )  # fmt: skip
    return found, Judged(code="V-01", verdict="found")


def _graph_words(steps: Decode) -> Words:
    if steps.has_graph:
        return Words("a captured graph is replayed", "已使用图重放")
    return Words("no captured graph is replayed", "未使用图重放")


def _kernels_per_step(trace: Trace, steps: Decode) -> float:
    return float((steps.holds(trace[KERNELS]) >= 0).sum()) / steps.steps


def _bands(union: IntervalSet) -> tuple[tuple[int, int], ...]:
    top = np.sort(np.argsort(union.starts - union.ends, kind="stable")[:MAX_BANDS])
    return tuple(zip(union.starts[top].tolist(), union.ends[top].tolist(), strict=True))


# ---- V-02 ------------------------------------------------------------------------------------------------------------


def _roof(
    trace: Trace, steps: Decode, reads: Reads, bytes_per_s: float | None
) -> tuple[Finding | None, Judged]:
    reason = None
    if reads.known_ratio < MIN_KNOWN_RATIO:
        reason = Words(
            "the shapes of the products are not in this data (record_shapes=True and Level1; replayed graphs record "
            "none: profile a step without the graph)",
            "数据中没有矩阵乘的形状（需 record_shapes=True 与 Level1；图重放不记录形状，请采集一次不使用图的步）",
        )
    elif bytes_per_s is None:
        reason = Words("the memory rate of this device is not known", "该设备的访存带宽未知")
    elif reads.mac_ratio is None:
        reason = Words(
            "neither MAC counters nor the peak of this device are known: profile with "
            "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization",
            "既无 MAC 计数器，也不知该设备的算力峰值：请以 "
            "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization 采集",
        )
    if reason is not None or bytes_per_s is None or reads.mac_ratio is None:
        return None, Judged(code="V-02", verdict="not_judged", reason=reason)
    floor = (reads.weight_bytes + reads.cache_bytes) / bytes_per_s * 1e9
    ratio = floor / steps.step_ns
    told = Words(
        f"reading the weights takes at least {format_ratio(ratio)} of the decode steps, MAC units busy "
        f"{format_ratio(reads.mac_ratio)}",
        f"读取权重至少占 Decode 步的 {format_ratio(ratio)}，MAC 占比 {format_ratio(reads.mac_ratio)}",
    )
    if ratio < MIN_FLOOR_RATIO.value or reads.mac_ratio >= MAX_MAC_RATIO.value:
        return None, Judged(code="V-02", verdict="clean", reason=told)
    kernels = trace[KERNELS]
    union = intervals.merged(kernels.ints("start_ns")[reads.products], kernels.ends_ns()[reads.products])
    union = intervals.intersection(union, steps.windows)
    spent = intervals.total(union)
    whole = _whole(trace, steps, idle_of(trace))
    share = share_of(whole, spent / 2)
    step = _step(steps)
    size = format_quantity(reads.weight_bytes / steps.steps, "bytes")
    rate = format_quantity(bytes_per_s, "bytes_per_s")
    types = "/".join(reads.dtypes[:2])
    longest = int(np.argmax(np.where(reads.products, kernels.ints("dur_ns"), -1)))
    found = finding(
        "V-02", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=share,
        subject="weights", where=union, whole_ns=whole.step_ns,
        title=Words(
            f"Each decode step reads {size} of weights ({types}) for {counted(reads.rows, 'token')}: at {rate} that "
            f"is {format_ratio(ratio)} of {step.en}, and the MAC units are busy {format_ratio(reads.mac_ratio)}",
            f"每个 Decode 步为 {reads.rows} 个 token 读取 {size} 权重（{types}）：按 {rate} 计占{step.zh}的 "
            f"{format_ratio(ratio)}，MAC 占比仅 {format_ratio(reads.mac_ratio)}",
        ),
        evidence=[
            Evidence(
                name=Words("weights read, per decode step", "每 Decode 步读取的权重"),
                value=reads.weight_bytes / steps.steps, unit="bytes",
                where=f"second operands of {counted(int(reads.products.sum()) / steps.steps, 'product')} per step; "
                f"{kernel_place(kernels, longest)}",
            ),
            Evidence(
                name=Words("least time to read them, per decode step", "读取所需的最短时间（每 Decode 步）"),
                value=floor / steps.steps, unit="ns", where=f"bytes / {rate}; keys and values count where shapes tell",
            ),
            Evidence(
                name=Words("MAC ratio of the products", "矩阵乘的 MAC 占比"), value=reads.mac_ratio, unit="ratio",
                where="aic_mac_ratio weighted by time, else FLOPs / time / peak",
            ),
            Evidence(
                name=Words("tokens of a step", "每步 token 数"), value=reads.rows, unit="count",
                where="rows of the median product",
            ),
        ],
        bands=_bands(union), step_ids=steps.step_ids,
        formula="half of union(products with a weight) / step: what weights of half the bytes would leave at most",
    )  # fmt: skip
    return found, Judged(code="V-02", verdict="found")


# ---- V-05 ------------------------------------------------------------------------------------------------------------


def _sampler_rows(trace: Trace, steps: Decode) -> Bools | None:
    """Kernels behind the last product of each decode step, where one of them samples; None without products."""
    kernels = trace[KERNELS]
    start, end = kernels.ints("start_ns"), kernels.ends_ns()
    of = steps.holds(kernels)
    is_product = kernel_classes(kernels).equals(KernelClass.MATMUL.value) & (of >= 0) & (end != NULL)
    if not is_product.any():
        return None
    last = np.full(steps.steps, np.iinfo(np.int64).min)
    np.maximum.at(last, of[is_product], end[is_product])
    behind = (of >= 0) & computes(kernels) & (start >= last[np.clip(of, 0, None)])
    behind &= last[np.clip(of, 0, None)] != np.iinfo(np.int64).min
    samples = behind & (
        kernels.text("op_type").flags(lambda name: bool(_SAMPLER.search(name)))
        | kernels.text("name").flags(lambda name: bool(_SAMPLER.search(name[:512])))
    )
    has_sampler = np.zeros(steps.steps, bool)
    has_sampler[of[samples]] = True
    rows: Bools = behind & has_sampler[np.clip(of, 0, None)]
    return rows


def _sampler(trace: Trace, steps: Decode, rows: Bools | None) -> tuple[Finding | None, Judged]:
    if rows is None or not rows.any():
        reason = Words(
            "no sampling kernel lies behind the last product of the decode steps: sampling is elsewhere, or not in "
            "this data",
            "Decode 步最后一个矩阵乘之后没有采样算子：采样在别处进行，或不在数据中",
        )
        return None, Judged(code="V-05", verdict="not_judged", reason=reason)
    kernels = trace[KERNELS]
    union = intervals.intersection(
        intervals.merged(kernels.ints("start_ns")[rows], kernels.ends_ns()[rows]), steps.windows
    )
    spent = intervals.total(union)
    ratio = spent / steps.step_ns
    if ratio < MIN_SAMPLER_RATIO.value:
        reason = Words(
            f"sampling takes {format_ratio(ratio)} of the decode steps", f"采样占 Decode 步的 {format_ratio(ratio)}"
        )
        return None, Judged(code="V-05", verdict="clean", reason=reason)
    whole = _whole(trace, steps, idle_of(trace))
    duration = np.where(rows, kernels.ints("dur_ns"), -1)
    longest = int(np.argmax(duration))
    step = _step(steps, ratio)
    label = kernels.text("op_type")[longest] or (kernels.text("name")[longest] or "?")[:60]
    found = finding(
        "V-05", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind,
        share_ratio=share_of(whole, spent), subject="sampler", where=union, whole_ns=whole.step_ns,
        title=Words(
            f"Sampling takes {per_step(steps, spent)} of {step.en}, most of it in {label}",
            f"采样占{step.zh}的 {per_step(steps, spent)}（{format_ratio(ratio)}），主要为 {label}",
        ),
        evidence=[
            Evidence(
                name=Words("kernels behind the last product, per step", "最后一个矩阵乘之后的算子（每步）"),
                value=int(rows.sum()) / steps.steps, unit="count", where="kernels, to the end of the step",
            ),
            Evidence(
                name=Words("their time, per decode step (union)", "其耗时（每 Decode 步，并集）"),
                value=spent / steps.steps, unit="ns", where="union of these kernels",
            ),
            Evidence(
                name=Words("longest of them", "其中最长的一个"), value=int(duration[longest]), unit="ns",
                where=kernel_place(kernels, longest), start_ns=int(kernels.ints("start_ns")[longest]),
            ),
        ],
        bands=_bands(union), step_ids=steps.step_ids,
        formula="union(kernels behind the last product of each decode step) / length of the steps",
    )  # fmt: skip
    return found, Judged(code="V-05", verdict="found")


# ---- V-08 ------------------------------------------------------------------------------------------------------------


def _loading(trace: Trace, calls: ModelCalls | None) -> tuple[Finding | None, Judged]:
    if calls is None:
        return _exported_loading(trace)
    if calls.executions < MIN_EXECUTIONS.value:
        reason = Words(
            f"only {counted(calls.executions, 'execution')} of the model: profile several requests",
            f"模型仅执行 {calls.executions} 次：请采集多个请求",
        )
        return None, Judged(code="V-08", verdict="not_judged", reason=reason)
    if not is_reloaded(calls):
        reason = Words(
            f"{counted(calls.loads, 'load')} and {counted(calls.allocations, 'memory call')} in "
            f"{counted(calls.executions, 'execution')}",
            f"{calls.executions} 次执行中有 {calls.loads} 次加载、{calls.allocations} 次内存申请或释放",
        )
        return None, Judged(code="V-08", verdict="clean", reason=reason)
    length = calls.window[1] - calls.window[0]
    spent = intervals.total(calls.spent)
    names = sorted(calls.counts, key=lambda name: -calls.counts[name])
    found = _loading_finding(
        trace, share=min(1.0, spent / length), loads=calls.loads, allocations=calls.allocations,
        executions=calls.executions, spent=spent, where=calls.spent, whole_ns=length,
        evidence=[
            Evidence(
                name=Words(f"calls of {name}", f"{name} 调用次数"), value=calls.counts[name], unit="count",
                where=f"runtime_calls after the first of {counted(calls.executions, 'execution')} of the model",
            )
            for name in names[:4]
        ],
        formula="union(calls that load a model or take memory after its first execution) / time from the first to the "
        "last execution",
    )  # fmt: skip
    return found, Judged(code="V-08", verdict="found")


def _exported_loading(trace: Trace) -> tuple[Finding | None, Judged]:
    """From the exporter's sums, which hold no times: the first load is the start of the service."""
    table = trace[EXPORTED_APIS]
    apis, count, total = table.text("api"), table.ints("count"), table.ints("total_ns")

    def summed(pattern: re.Pattern[str]) -> tuple[int, int]:
        rows = apis.flags(lambda api: bool(pattern.search(api))) & (count > 0)
        return int(count[rows].sum()), int(np.where(total[rows] == NULL, 0, total[rows]).sum())

    executions, execution_ns = summed(_EXECUTE_API)
    if not executions:
        reason = Words(
            "no aclmdlExecute in this data: no offline model runs, or its calls were not recorded (msprof "
            "--ascendcl=on)",
            "数据中没有 aclmdlExecute：未运行离线模型，或未采集接口调用（msprof --ascendcl=on）",
        )
        return None, Judged(code="V-08", verdict="not_judged", reason=reason)
    loads, load_ns = summed(_LOAD_API)
    allocations, allocation_ns = summed(_ALLOCATE_API)
    if executions < MIN_EXECUTIONS.value:
        reason = Words(
            f"only {counted(executions, 'execution')} of the model: profile several requests",
            f"模型仅执行 {executions} 次：请采集多个请求",
        )
        return None, Judged(code="V-08", verdict="not_judged", reason=reason)
    least = MIN_PER_EXECUTION.value * (executions - 1)
    spent = (load_ns if loads - 1 >= least else 0) + (allocation_ns if allocations - 1 >= least else 0)
    share = spent / (spent + execution_ns) if spent + execution_ns else 0.0
    if not spent or share < MIN_LOAD_RATIO.value:
        reason = Words(
            f"{counted(loads, 'load')} and {counted(allocations, 'memory call')} in {counted(executions, 'execution')}",
            f"{executions} 次执行中有 {loads} 次加载、{allocations} 次内存申请或释放",
        )
        return None, Judged(code="V-08", verdict="clean", reason=reason)
    found = _loading_finding(
        trace, share=share, loads=loads, allocations=allocations,
        executions=executions, spent=spent, where=EMPTY, whole_ns=0,
        evidence=[
            Evidence(
                name=Words("loads of a model", "模型加载次数"), value=loads, unit="count",
                where=f"exported_apis: {format_ns(load_ns)} in total",
            ),
            Evidence(
                name=Words("executions of a model", "模型执行次数"), value=executions, unit="count",
                where=f"exported_apis: {format_ns(execution_ns)} in total",
            ),
        ],
        formula="time of aclmdlLoad and aclrtMalloc / (the same + time of aclmdlExecute), sums of the exporter",
    )  # fmt: skip
    return found, Judged(code="V-08", verdict="found")


def _loading_finding(
    trace: Trace, *, share: float, loads: int, allocations: int, executions: int, spent: int,
    where: IntervalSet, whole_ns: int, evidence: list[Evidence], formula: str,
) -> Finding:  # fmt: skip
    return finding(
        "V-08", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=share,
        subject="model", evidence=evidence, formula=formula, bands=_bands(where),
        where=where if whole_ns else None, whole_ns=whole_ns or None,
        title=Words(
            f"{counted(loads, 'load')} of a model and {counted(allocations, 'memory call')} in "
            f"{counted(executions, 'execution')}: they take {format_ns(spent)} ({format_ratio(share)})",
            f"{executions} 次执行中有 {loads} 次模型加载、{allocations} 次内存申请或释放：共耗时 {format_ns(spent)}"
            f"（{format_ratio(share)}）",
        ),
    )  # fmt: skip


# ---- what is told in any case ----------------------------------------------------------------------------------------


def _table(trace: Trace, steps: Decode, idle: Idle | None, reads: Reads, sampler: Bools | None) -> ResultTable:
    kernels = trace[KERNELS]
    of = steps.holds(kernels)
    starts, ends = steps.starts[:MAX_ROWS], steps.ends[:MAX_ROWS]
    shown = len(starts)
    gaps = np.full(shown, np.nan) if idle is None else intervals.covered(idle.gaps, starts, ends).astype(np.float64)

    def time_of(rows: Bools) -> list[float]:
        union = intervals.merged(kernels.ints("start_ns")[rows], kernels.ends_ns()[rows])
        return [float(value) for value in intervals.covered(union, starts, ends)]

    attention = kernel_classes(kernels).equals(KernelClass.ATTENTION.value) & (of >= 0)
    nothing = np.zeros(len(kernels), bool)
    return result_table(
        "decode-steps",
        Words("Decode steps", "Decode 步"),
        (
            Col("step_id", "Step", "步", list(steps.step_ids[:MAX_ROWS])),
            Col("wall_ns", "Length", "时长", ends - starts, "ns"),
            Col("busy_ratio", "Busy", "忙碌占比", 1 - gaps / (ends - starts), "ratio"),
            Col("kernels", "Kernels", "Kernel 数", np.bincount(of[of >= 0], minlength=steps.steps)[:shown], "count"),
            Col("product_ns", "Products with a weight", "带权重的矩阵乘", time_of(reads.products), "ns"),
            Col("attention_ns", "Attention", "注意力", time_of(attention), "ns"),
            Col("sampler_ns", "Sampling", "采样", time_of(nothing if sampler is None else sampler), "ns"),
        ),
        note=Words(
            f"{counted(steps.steps, 'decode step')}, told {_TOLD[steps.by].en}, beside "
            f"{counted(steps.prefills, 'prefill')}; {_graph_words(steps).en}.",
            f"共 {steps.steps} 个 Decode 步（{_TOLD[steps.by].zh}），另有 {steps.prefills} 个 Prefill；"
            f"{_graph_words(steps).zh}。",
        ),
    )  # fmt: skip


def _metrics(trace: Trace, steps: Decode, idle: Idle | None, reads: Reads) -> list[Metric]:
    rank = trace.meta.rank
    metrics = [
        Metric(
            name="decode_step_ns", value=float(np.median(steps.ends - steps.starts)), unit="ns", better="lower",
            rank=rank,
        )
    ]  # fmt: skip
    if idle is not None:
        gaps = intervals.total(intervals.intersection(idle.gaps, steps.windows))
        metrics.append(
            Metric(name="decode_busy_ratio", value=1 - gaps / steps.step_ns, unit="ratio", better="higher", rank=rank)
        )
    if reads.weight_bytes and reads.known_ratio >= MIN_KNOWN_RATIO:
        metrics.append(
            Metric(
                name="decode_weight_bytes_per_step", value=reads.weight_bytes / steps.steps, unit="bytes",
                better="none", rank=rank,
            )
        )  # fmt: skip
    return metrics

