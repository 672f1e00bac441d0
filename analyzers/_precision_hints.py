"""Circumstances beside a finding about precision: settings, kernels that check for overflow, reduced precision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ascend_perf.analyzers._rules import Vendor
from ascend_perf.model.finding import Evidence, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import Bools
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace

_STATUS: Final = re.compile(r"NPU(?:Get|Clear|Alloc)FloatStatus|IsFinite", re.IGNORECASE)
_FAST_GELU: Final = re.compile(r"FastGelu", re.IGNORECASE)
_CONVOLUTION: Final = re.compile(r"Conv(?:olution|[123]D|Transpose)", re.IGNORECASE)
NOT_RECORDED: Final = "not recorded"


def vendor_of(run: Run) -> Vendor | None:
    """The kind of device that the traces with kernels name; None where they differ or do not tell."""
    kinds = {trace.meta.device.kind for trace in run.traces if trace.meta.device.kind is not None}
    if run.manifest is not None and not kinds:
        kinds = {"gpu"} if run.manifest.device == "cuda" else {run.manifest.device} & {"npu", "cpu"}  # type: ignore[assignment]
    return kinds.pop() if len(kinds) == 1 else None


def setting(run: Run, name: str) -> Evidence:
    """The value of a variable or argument as far as any trace or the manifest tells it."""
    values = {trace.meta.environment[name] for trace in run.traces if name in trace.meta.environment}
    if run.manifest is not None and name in run.manifest.environment:
        values.add(run.manifest.environment[name])
    said = ", ".join(sorted(values)[:4]) or NOT_RECORDED
    return Evidence(name=Words(name, name), value=said, where="environment")


def float_status(run: Run) -> Iterator[Evidence]:
    """Kernels that ask the device for overflows: the way of saturating devices, or of a scaler."""
    count = sum(int(_kernels(trace, _STATUS).sum()) for trace in run.traces if trace.has(KERNELS))
    if count:
        yield Evidence(
            name=Words("kernels that check for overflow", "溢出检测 Kernel"), value=count, unit="count",
            where="kernels: NPUGetFloatStatus, NPUClearFloatStatus, IsFinite",
        )  # fmt: skip


def reduced_precision(run: Run) -> Iterator[Evidence]:
    """What computes in another precision or by another formula than the reference may: hints, no proof."""
    with_kernels = [trace for trace in run.traces if trace.has(KERNELS)]
    hf32 = sum(
        int((_kernels(trace, _CONVOLUTION) & trace[KERNELS].text("hf32_eligible").equals("YES")).sum())
        for trace in with_kernels
    )
    if hf32:
        yield Evidence(
            name=Words("convolutions that may run in HF32", "可用 HF32 的卷积"), value=hf32, unit="count",
            where="kernels.hf32_eligible",
        )  # fmt: skip
    gelu = sum(int(_kernels(trace, _FAST_GELU).sum()) for trace in with_kernels)
    if gelu:
        yield Evidence(
            name=Words("FastGelu kernels: another formula than GELU", "FastGelu Kernel：与 GELU 公式不同"), value=gelu,
            unit="count", where="kernels",
        )  # fmt: skip
    mode = setting(run, "INF_NAN_MODE_ENABLE")
    if mode.value == "0":
        yield mode


def _kernels(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Kernels by name: names of Ascend hold the type of the operator."""
    return trace[KERNELS].text("name").flags(lambda name: bool(pattern.search(name[:200])))
