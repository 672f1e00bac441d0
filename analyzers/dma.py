"""What moves data: the load and store pipes of the cores, the copies by direction, format conversions. Row D-02."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import host_span, union_of
from ascend_perf.analyzers._kernels import KernelTime, group_kernels
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import StepWindows, step_windows, unions_by_step
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers._utilisation import CUBE_PIPES, VECTOR_PIPES
from ascend_perf.model.finding import Claim, Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.flops import work_of
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns, format_quantity, format_ratio

ANALYZER: Final = "dma"

SMALL_COPY_BYTES: Final = threshold("D-02", "small_copy_bytes")
EXPOSED_MIN_RATIO: Final = threshold("D-02", "min_exposed_ratio")

_KINDS: Final = ("H2D", "D2H", "D2D", "P2P", "H2H", "MEMSET")
_BLOCKING: Final = frozenset(
    {
        "aclrtMemcpy",
        "rtMemcpy",
        "cudaMemcpy",
        "hipMemcpy",
        "hipMemcpyWithStream",
        "cudaMemcpy2D",
        "hipMemcpyDtoH",
        "hipMemcpyHtoD",
    }
)
"""Copy calls that return only when the copy is done."""

NO_COPIES: Final = Words(
    "no copies in this data: profile with profiler_level=torch_npu.profiler.ProfilerLevel.Level2 (NPU) or "
    "activities including the device (GPU)",
    "数据中没有拷贝：NPU 请以 profiler_level=torch_npu.profiler.ProfilerLevel.Level2 采集，"
    "GPU 请在 activities 中包含设备",
)


_NO_DEVICE: Final = Words("no device in this data: nothing is copied", "数据中没有加速设备，不存在设备拷贝")


@analyzer(name=ANALYZER, needs=(), order=50, section="dma")
def dma(trace: Trace) -> Result:
    """Busy time of the data pipes, copies by direction with their rate, format-conversion traffic.

    Reads:
        kernels: dur_ns, pipe ratios, shapes, dtypes, formats; copies; comm_ops.
    """
    kernels, copies = trace[KERNELS], trace[COPIES]
    tables = [*_pipes(kernels), *_copy_table(trace), *_conversions(trace)]
    if not tables and not len(copies):
        raise NoData(_NO_DEVICE if trace.meta.device.kind == "cpu" else NO_COPIES)
    outcomes = tuple(_host_to_device(trace))
    return Result(
        findings=tuple(item for item in outcomes if isinstance(item, Finding)),
        metrics=_metrics(trace),
        tables=tuple(tables),
        judged=tuple(item for item in outcomes if isinstance(item, Judged)),
    )


_PIPE_WORDS: Final[dict[str, tuple[str, str]]] = {
    "aic_mac_ratio": ("cube: MAC", "Cube：MAC"),
    "aic_mte1_ratio": ("cube: MTE1 (L1 to L0)", "Cube：MTE1（L1 到 L0）"),
    "aic_mte2_ratio": ("cube: MTE2 (memory to L1)", "Cube：MTE2（内存到 L1）"),
    "aic_fixpipe_ratio": ("cube: fixpipe (L0C to memory)", "Cube：fixpipe（L0C 到内存）"),
    "aic_scalar_ratio": ("cube: scalar", "Cube：scalar"),
    "aiv_vec_ratio": ("vector: VEC", "Vector：VEC"),
    "aiv_mte2_ratio": ("vector: MTE2 (memory to UB)", "Vector：MTE2（内存到 UB）"),
    "aiv_mte3_ratio": ("vector: MTE3 (UB to memory)", "Vector：MTE3（UB 到内存）"),
    "aiv_scalar_ratio": ("vector: scalar", "Vector：scalar"),
}


def _pipes(kernels: Table) -> Iterator[ResultTable]:
    """Busy time of each pipe over the kernels of its core type: ratio x duration. Pipes overlap in time."""
    core = kernels.text("core")
    duration = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns"))
    cube, vector = core.isin(["AIC", "MIX_AIC", "MIX_AIV"]), core.isin(["AIV", "MIX_AIV", "MIX_AIC"])
    names: list[str] = []
    busy: list[float] = []
    share: list[float] = []
    time: list[int] = []
    for pipe in (*CUBE_PIPES, *VECTOR_PIPES):
        ratio = kernels.floats(pipe)
        rows = (cube if pipe.startswith("aic") else vector) & ~np.isnan(ratio)
        spent = int(duration[rows].sum())
        if not spent:
            continue
        names.append(pipe)
        time.append(spent)
        busy.append(float((ratio[rows] * duration[rows]).sum()))
        share.append(busy[-1] / spent)
    if not names:
        return
    yield result_table(
        "dma",
        Words("Busy time of the pipes", "各流水的繁忙时间"),
        [
            Col("pipe", "Pipe", "流水", [_PIPE_WORDS[name][0] for name in names]),
            Col("busy_ns", "Busy", "繁忙时间", busy, "ns"),
            Col("share_ratio", "Share of these kernels", "占此类算子耗时", share, "ratio"),
            Col("time_ns", "Time of these kernels", "此类算子耗时", time, "ns"),
        ],
        Words(
            "Pipes work at the same time: their shares do not add up to 100 %.", "各流水并行工作，占比之和不为 100 %。"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Copies:
    table: Table
    windows: StepWindows
    duration: Ints
    size: Ints
    busy: list[intervals.IntervalSet]
    """Kernels and collectives per step: copies behind them cost nothing."""

    def exposed_ns(self, trace: Trace, rows: Bools) -> int:
        """Time of the steps in which one of the copies runs and nothing computes or communicates."""
        unions = unions_by_step(trace, self.table, rows, self.windows)
        return sum(intervals.total(intervals.difference(u, b)) for u, b in zip(unions, self.busy, strict=True))


def _copies(trace: Trace) -> _Copies:
    windows = step_windows(trace)
    copies = trace[COPIES]
    kernels = unions_by_step(trace, trace[KERNELS], windows=windows)
    calls = unions_by_step(trace, trace[COMM_OPS], windows=windows)
    return _Copies(
        table=copies,
        windows=windows,
        duration=np.where(copies.ints("dur_ns") == NULL, 0, copies.ints("dur_ns")),
        size=copies.ints("size_bytes"),
        busy=[intervals.union(a, b) for a, b in zip(kernels, calls, strict=True)],
    )


def _copy_table(trace: Trace) -> Iterator[ResultTable]:
    if not len(trace[COPIES]):
        return
    data = _copies(trace)
    kinds = data.table.text("kind")
    rows_of = [(kind, kinds.equals(kind)) for kind in _KINDS]
    rows_of.append(("unknown", kinds.codes < 0))
    rows_of = [(kind, rows) for kind, rows in rows_of if rows.any()]
    columns: dict[str, list[float | int | None]] = {
        name: [] for name in ("count", "size", "time", "exposed", "rate", "median", "small")
    }
    for _, rows in rows_of:
        sized = rows & (data.size != NULL)
        total, spent = int(data.size[sized].sum()), int(data.duration[sized].sum())
        columns["count"].append(int(rows.sum()))
        columns["size"].append(total if sized.any() else None)
        columns["time"].append(int(data.duration[rows].sum()))
        columns["exposed"].append(data.exposed_ns(trace, rows))
        columns["rate"].append(total / spent * 1e9 if spent and total else None)
        columns["median"].append(float(np.median(data.size[sized])) if sized.any() else None)
        columns["small"].append(int((data.size[sized] < SMALL_COPY_BYTES.value).sum()) if sized.any() else None)
    yield result_table(
        "copies",
        Words("Copies by direction", "按方向的拷贝"),
        [
            Col("kind", "Direction", "方向", [kind for kind, _ in rows_of]),
            Col("count", "Count", "次数", columns["count"], "count"),
            Col("size_bytes", "Size", "数据量", columns["size"], "bytes"),
            Col("time_ns", "Time (sum)", "耗时（合计）", columns["time"], "ns"),
            Col("exposed_ns", "Not overlapped, in steps", "step 内未被掩盖", columns["exposed"], "ns"),
            Col("bytes_per_s", "Achieved rate", "实际带宽", columns["rate"], "bytes_per_s"),
            Col("median_bytes", "Median size", "单次中位数", columns["median"], "bytes"),
            Col("small_count", "Below 64 KiB", "小于 64 KiB 的次数", columns["small"], "count"),
        ],
        Words(
            "Not overlapped: no kernel and no collective runs at that time.",
            "未被掩盖：同一时刻没有 Kernel 或集合通信在执行。",
        ),
    )


def _conversions(trace: Trace) -> Iterator[ResultTable]:
    """Format conversions and casts with the bytes they read and write."""
    kernels = trace[KERNELS]
    if not kernels.has("input_shapes"):
        return
    moves = kernel_classes(kernels).isin(
        [KernelClass.FORMAT.value, KernelClass.CAST.value, KernelClass.TRANSPOSE.value, KernelClass.COPY.value]
    )
    picked = kernels.select(np.flatnonzero(moves))
    if not len(picked):
        return
    keys = ("op_type", "input_formats", "output_formats", "input_dtypes", "output_dtypes")
    groups = group_kernels(picked, [picked.text(name).codes for name in keys])
    size = work_of(picked).bytes
    total = np.bincount(groups.of, np.nan_to_num(size), len(groups.count))
    unknown = np.bincount(groups.of, np.isnan(size), len(groups.count)) > 0
    total = np.where(unknown, np.nan, total)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(groups.total_ns > 0, total / groups.total_ns * 1e9, np.nan)

    def pair(name: str) -> list[str | None]:
        left = picked.text(f"input_{name}").take(groups.first).to_list()
        right = picked.text(f"output_{name}").take(groups.first).to_list()
        return [
            None if a is None or b is None else f"{a.split(';')[0]} -> {b}" for a, b in zip(left, right, strict=True)
        ]

    yield result_table(
        "conversions",
        Words("Conversions and copies by kernels", "由算子完成的转换与拷贝"),
        [
            Col("op_type", "Type", "类型", picked.text("op_type").take(groups.first)),
            Col("formats", "Formats", "格式", pair("formats")),
            Col("dtypes", "Dtypes", "数据类型", pair("dtypes")),
            Col("count", "Count", "次数", groups.count, "count"),
            Col("time_ns", "Time", "耗时", groups.total_ns, "ns"),
            Col("size_bytes", "Read and written", "读写量", total, "bytes"),
            Col("bytes_per_s", "Achieved rate", "实际带宽", rate, "bytes_per_s"),
        ],
        Words("Bytes from shapes, each operand once.", "字节数由 Shape 计算，每个操作数计一次。"),
    )


def _host_to_device(trace: Trace) -> Iterator[Finding | Judged]:
    """D-02: copies from the host that nothing overlaps."""
    if not len(trace[COPIES]):
        if trace.meta.device.kind != "cpu":
            yield Judged(code="D-02", verdict="not_judged", reason=NO_COPIES)
        return
    data = _copies(trace)
    rows = data.table.text("kind").equals("H2D")
    # Ascend's steps begin with their first kernel: the copies of the batch lie in front of it.
    span = host_span(trace, data.windows)
    busy = intervals.union(*(union_of(table, _all(table)) for table in (trace[KERNELS], trace[COMM_OPS])))
    union = span.clip(union_of(data.table, rows))
    alone = intervals.difference(union, busy) if rows.any() else intervals.EMPTY
    exposed = intervals.total(alone)
    share = min(1.0, exposed / span.step_ns) if len(data.windows) and span.step_ns > 0 else None
    if share is None or share < EXPOSED_MIN_RATIO.value:
        of = format_ratio(share or 0.0)
        yield Judged(
            code="D-02",
            verdict="clean",
            reason=Words(
                f"host-to-device copies that nothing overlaps: {of} of the step", f"未被掩盖的 H2D 拷贝：占单步 {of}"
            ),
        )
        return
    starts = data.table.ints("start_ns")
    steps = intervals.merged(span.starts, span.ends)
    reaches = intervals.covered(steps, starts, np.maximum(starts, data.table.ends_ns())) > 0
    # Also those that began before a step and reach into it: their time there is part of what is claimed.
    inside = rows & (starts != NULL) & (intervals.contains(steps, starts) | reaches)
    claim = Claim(rank=trace.meta.rank, where=alone, gain_ns=exposed, whole_ns=span.step_ns)
    yield _copy_finding(trace, data, inside, claim, share)
    yield Judged(code="D-02", verdict="found")


def _all(table: Table) -> Bools:
    return np.ones(len(table), bool)


def _copy_finding(trace: Trace, data: _Copies, inside: Bools, claim: Claim, share: float) -> Finding:
    steps, exposed = max(1, len(data.windows)), claim.gain_ns
    count = int(inside.sum()) / steps
    sized = inside & (data.size != NULL)
    row = int(np.flatnonzero(inside)[np.argmax(data.duration[inside])])
    start = int(data.table.ints("start_ns")[row])
    evidence = [
        Evidence(
            name=Words("host-to-device copies, time per step not overlapped", "H2D 拷贝，每步未被掩盖的时间"),
            value=exposed / steps,
            unit="ns",
            where=f"copies: {int(inside.sum())} rows in {steps} step(s), minus kernels and collectives",
        ),
        Evidence(name=Words("copies per step", "每步拷贝次数"), value=count, unit="count", where="copies"),
        Evidence(
            name=Words("longest of them", "其中最长的一次"),
            value=int(data.duration[row]),
            unit="ns",
            where=f"copies: {data.table.text('name')[row] or 'H2D'}, {format_quantity(_size(data, row), 'bytes')}",
            start_ns=None if start == NULL else start,
        ),
    ]
    spent = int(data.duration[sized].sum())
    if sized.any() and spent:
        evidence += [
            Evidence(
                name=Words("achieved rate", "实际带宽"),
                value=int(data.size[sized].sum()) / spent * 1e9,
                unit="bytes_per_s",
                where="copies: size / time",
            ),
            Evidence(
                name=Words("copies below 64 KiB", "小于 64 KiB 的拷贝"),
                value=int((data.size[sized] < SMALL_COPY_BYTES.value).sum()),
                unit="count",
                where="copies.size_bytes",
            ),
        ]
    evidence += _how(data, inside)
    spent_words = format_ns(exposed / steps)
    return finding(
        "D-02",
        analyzer=ANALYZER,
        trace_rank=trace.meta.rank,
        title=Words(
            f"{count:.4g} host-to-device copies per step keep the device waiting for {spent_words} "
            f"({format_ratio(share)} of the step) while nothing else runs.",
            f"每步 {count:.4g} 次 H2D 拷贝使设备等待 {spent_words}（占单步 {format_ratio(share)}），"
            "期间没有其他任务执行。",
        ),
        share_ratio=share,
        claims=(claim,),
        evidence=evidence,
        vendor=trace.meta.device.kind,
        formula="union(H2D copies) minus kernels and collectives / step, with what lies before its first task",
    )


def _size(data: _Copies, row: int) -> int | None:
    return None if data.size[row] == NULL else int(data.size[row])


def _how(data: _Copies, rows: Bools) -> list[Evidence]:
    """Whether the copies block the host or come from pageable memory, where the trace tells."""
    made = []
    apis = data.table.text("api")
    blocking = rows & apis.isin(_BLOCKING)
    if blocking.any():
        api = apis[int(np.flatnonzero(blocking)[0])]
        made.append(
            Evidence(
                name=Words("issued by a blocking call", "由阻塞接口发起"),
                value=int(blocking.sum()),
                unit="count",
                where=f"copies.api: {api}",
            )
        )
    pageable = rows & data.table.text("name").flags(lambda name: "pageable" in name.lower())
    if pageable.any():
        made.append(
            Evidence(
                name=Words("from pageable memory", "来自可分页内存"),
                value=int(pageable.sum()),
                unit="count",
                where="copies.name",
            )
        )
    return made


def _metrics(trace: Trace) -> tuple[Metric, ...]:
    kernels = KernelTime.of(trace)
    rows = kernel_classes(trace[KERNELS]).equals(KernelClass.FORMAT.value)
    share = kernels.kernel_share(rows) if len(trace[KERNELS]) else None
    if share is None:
        return ()
    return (Metric(name="format_conversion_share", value=share, unit="ratio", better="lower", rank=trace.meta.rank),)
