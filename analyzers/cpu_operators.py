"""What the operators of a CPU run say: casts and copies (C-10)."""

from __future__ import annotations

from ascend_perf.analyzers import _operator_findings as rows_of
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.model.finding import Finding, Judged, Result, Words
from ascend_perf.model.tables import HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import kernel_classes
from ascend_perf.ops.cpu_ops import operators_as_kernels
from ascend_perf.plugins import NoData, analyzer


@analyzer(name="cpu-operators", needs=[HOST_OPS], order=31, section="operators")
def cpu_operators(trace: Trace) -> Result:
    """Judge the operators of a model that runs on the CPU by the rules that hold for kernels.

    Reads:
        host_ops: start_ns, dur_ns, name, thread, input_shapes, input_dtypes.
    """
    if trace.meta.device.kind != "cpu" or len(trace[KERNELS]) or len(trace[RUNTIME_CALLS]):
        return Result()  # the model runs on a device: its kernels are judged
    kernels = operators_as_kernels(trace[HOST_OPS])
    if not len(kernels):
        raise NoData(Words("no operator that computes", "没有执行计算的算子"))
    time = KernelTime.of(trace.replace(tables={KERNELS.name: kernels}))
    said = list(rows_of.casts_and_copies(time, kernel_classes(kernels)))
    return Result(
        findings=tuple(item for item in said if isinstance(item, Finding)),
        judged=tuple(item for item in said if isinstance(item, Judged)),
    )
