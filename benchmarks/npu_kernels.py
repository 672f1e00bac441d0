"""Kernels of real profiles as work for the cost model of the virtual NPU: which profiles, which chips, which calls.

A call is an op type with its shapes and dtypes; its real time is the median over its repetitions.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.collectors.virtual_npu._cost_native import ACL_DTYPES, Work
from ascend_perf.collectors.virtual_npu.cost import CostModel
from ascend_perf.device.specs import DeviceSpec, device_specs, spec_for
from ascend_perf.model.trace import Device
from ascend_perf.ops.classify import KernelClass, ascend_class
from ascend_perf.ops.kernel_work import kernel_work
from ascend_perf.ops.shapes import BYTES_OF, Shape, parse_shapes, plain_dtype
from ascend_perf.parsers._ascend_kernels import read_kernels

COMPRESSED_MASK: Final = (2048, 2048)


@dataclass(frozen=True, kw_only=True)
class KernelSet:
    """One file of kernels, and the chip that made it."""

    name: str
    path: str
    device: str
    """Id in the device table, or `b4-1650`: see `spec_of`."""
    fits: bool = False
    """Whether constants are fitted on it."""
    also: tuple[str, ...] = ()
    """Classes of which a constant comes from this set, though the others do not."""
    source: str = ""
    """Its key among the sources of cost_model.yaml."""
    repeats: bool = False
    """Whether it shows the same model on the same chip as a set that is fitted: its errors are no independent proof."""


_QWEN: Final = "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_{}_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"
_ALEXNET: Final = "ascend-pytorch/text/level{}/rank{}_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"
SETS: Final = (
    KernelSet(name="qwen-r0", path=_QWEN.format(0), device="b4-1650", source="qwen", fits=True),
    KernelSet(name="qwen-r2", path=_QWEN.format(2), device="b4-1650", repeats=True),
    KernelSet(name="alexnet-l1r0", path=_ALEXNET.format(1, 0), device="ascend-910b2", source="alexnet", fits=True),
    KernelSet(name="alexnet-l2r1", path=_ALEXNET.format(2, 1), device="ascend-910b2", repeats=True),
    KernelSet(
        name="gpt3-2023", path="msprof-cli/op_summary_1.csv", device="ascend-910b1", also=("attention",), source="gpt3"
    ),
    KernelSet(
        name="gpt-2023", path="kernel-details/kernel_details_2023_arithmetic_gpt.csv", device="ascend-910b1"
    ),
    KernelSet(name="llm-2025", path="kernel-details/kernel_details_2025_pipe_llm_29rows.csv", device="ascend-910b3"),
)

@dataclass(frozen=True, kw_only=True)
class Call:
    """One distinct call: what it is, its work, how often it came and its median time."""

    set_name: str
    op_type: str
    class_name: str
    text: str
    work: Work
    count: int
    ns: float


def traces_folder() -> Path | None:
    """Where the real profiles are; None when they are not at hand."""
    named = os.environ.get("ASCEND_PERF_TRACES")
    folder = Path(named) if named else Path(__file__).resolve().parent.parent.parent / "shared" / "traces"
    return folder if folder.is_dir() else None


def spec_of(device: str) -> DeviceSpec:
    """The chip of a set.

    `b4-1650`: 20 cube and 40 vector cores at 1650 MHz follow from the counters of the profile; memory and L2 are those
    of Ascend910B4, whose 800 GB/s its pure writes reach (794 GB/s). Inferred.
    """
    if device != "b4-1650":
        return device_specs()[device]
    derived = spec_for(Device(kind="npu", name=None, cube_cores=20, vector_cores=40, frequency_hz=1_650_000_000))
    assert derived is not None
    like = device_specs()["ascend-910b4"]
    return replace(
        derived, memory_bytes_per_s=like.memory_bytes_per_s, l2_bytes=like.l2_bytes, memory_bytes=like.memory_bytes,
        links_bytes_per_s=like.links_bytes_per_s,
    )  # fmt: skip


def read_calls(folder: Path, kernel_set: KernelSet, model: CostModel) -> tuple[list[Call], int]:
    """Distinct calls of a set, and how many kernels are left out: no type, impossible shapes, or no known work."""
    kernels = read_kernels(folder / kernel_set.path).kernels
    columns = (
        "op_type", "core", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes",
        "output_formats",
    )  # fmt: skip
    texts = [kernels.text(name) for name in columns]
    rows: dict[tuple[str, ...], list[float]] = defaultdict(list)
    durations = kernels.ints("dur_ns")
    for at in range(len(kernels)):
        rows[tuple(text[at] or "" for text in texts)].append(float(durations[at]))
    calls, left_out = [], 0
    for key, times in rows.items():
        call = _call(kernel_set.name, key, times, model)
        if call is None:
            left_out += len(times)
        else:
            calls.append(call)
    return calls, left_out


def _call(set_name: str, key: tuple[str, ...], times: Sequence[float], model: CostModel) -> Call | None:
    op_type, core, shapes_in, types_in, formats_in, shapes_out, types_out, formats_out = key
    is_bare_memset = op_type == "MemSet" and not parse_shapes(shapes_out)
    if not op_type or op_type == "0" or is_bare_memset:
        return None
    class_name = "ai_cpu" if core == "AICPU" else model.class_of(op_type) or "other"
    inputs, outputs = parse_shapes(shapes_in), parse_shapes(shapes_out)
    if shapes_in and not inputs and shapes_in not in ("N/A", '""'):
        return None
    types, formats = (types_in.split(";"), types_out.split(";")), (formats_in.split(";"), formats_out.split(";"))
    work = work_of_kernel(op_type, inputs, outputs, types, formats)
    if work is None:
        return None
    return Call(
        set_name=set_name, op_type=op_type, class_name=class_name, text=f"{shapes_in} -> {shapes_out} {types_in}",
        work=work, count=len(times), ns=float(np.median(times)),
    )  # fmt: skip


def work_of_kernel(
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: tuple[Sequence[str], Sequence[str]],
    formats: tuple[Sequence[str], Sequence[str]],
) -> Work | None:
    """Work of a kernel from what its row records; None where the bytes or the pairs of attention are not known."""
    kind = ascend_class(op_type)
    amount = kernel_work(kind, op_type, inputs, outputs, types, formats)
    dtype = next((ACL_DTYPES[plain_dtype(name)] for name in types[0] if plain_dtype(name) in _REAL), 0)
    size = bytes_of_kernel(kind, op_type, inputs, outputs, types, amount.bytes)
    elements = float(max((math.prod(shape) for shape in (*inputs, *outputs) if shape), default=1))
    work = Work(dtype=dtype, flops=0.0 if math.isnan(amount.flops) else amount.flops, bytes=size, elements=elements)
    if kind is KernelClass.MATMUL:
        return _product(replace(work, elements=0.0), inputs, outputs, types, formats)
    if kind is KernelClass.CONV:
        return _convolution(replace(work, elements=0.0), op_type, inputs, outputs)
    if re.match("Gather|Index|Embedding|StridedSlice|Slice", op_type):
        return replace(work, elements=_indices(op_type, inputs, types[0]))
    if kind is KernelClass.ATTENTION:
        return _attention(work, op_type, inputs, outputs, types)
    return work


def bytes_of_kernel(
    kind: KernelClass,
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: tuple[Sequence[str], Sequence[str]],
    counted: float,
) -> float:
    """Bytes as the rules of cost.c count them: `counted` (ops/kernel_work.py), but for four cases.

    What is only written counts once; values put by index count, not their target, and gradients of an embedding three
    times; and where one operand is undefined (an output that nobody asked for), the others still count.
    """
    read = [_size(shape, name) for shape, name in zip(inputs, types[0], strict=False)]
    written = [_size(shape, name) for shape, name in zip(outputs, types[1], strict=False)]
    if kind is KernelClass.FILL and not op_type.startswith("Tri"):
        return math.fsum(written)
    if op_type.startswith("IndexPut"):
        return math.fsum(read[1:]) + max(read[1:], default=0.0)
    if op_type.startswith("EmbeddingDenseGrad"):
        # The table that it adds to was cleared by a kernel before.
        return math.fsum(read) + 2 * read[0]
    return math.fsum([*read, *written]) if math.isnan(counted) else counted


def _size(shape: Shape, dtype: str) -> float:
    return math.prod(shape) * BYTES_OF.get(plain_dtype(dtype), 0.0) if shape else 0.0


_REAL: Final = frozenset({"float", "float32", "float16", "bf16", "bfloat16"})


def _indices(op_type: str, inputs: Sequence[Shape], types: Sequence[str]) -> float:
    """Indices of a gather or scatter: the largest operand of whole numbers behind the first."""
    if "Slice" in op_type:
        return 0.0
    rest = zip(inputs[1:], types[1:], strict=False)
    return float(max((math.prod(s) for s, name in rest if plain_dtype(name) in ("int32", "int64")), default=0))


def _convolution(work: Work, op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Work | None:
    """Storage shapes (N, C1, H, W, C0) and (C1*kh*kw, N1, 16, C0): (positions x taps) by (taps x channels)."""
    is_backward = "Backprop" in op_type
    if len(inputs) < (3 if is_backward else 2) or not outputs:
        return None
    result = inputs[2] if is_backward else outputs[0]
    weight = outputs[0] if "BackpropFilter" in op_type else inputs[1]
    if len(result) != 5 or len(weight) != 4:
        return None
    positions = result[0] * result[2] * result[3]
    channels, taps = weight[1] * weight[2], weight[0] * weight[3]
    return replace(
        work, m=float(positions), n=float(channels), k=float(taps), batch=1.0, flops=2.0 * positions * channels * taps
    )  # fmt: skip


def _product(
    work: Work,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: tuple[Sequence[str], Sequence[str]],
    formats: tuple[Sequence[str], Sequence[str]],
) -> Work | None:
    if len(inputs) < 2 or not outputs or work.flops <= 0:
        return None
    a, b = (_plain(shape, formats[0][at]) for at, shape in enumerate(inputs[:2]))
    c = _plain(outputs[0], formats[1][0])
    batch = math.prod(c[:-2]) if len(a) > 2 and len(b) > 2 else 1
    m, n = math.prod(c) // batch // c[-1], c[-1]
    k = round(work.flops / (2 * batch * m * n))
    # (k, m) and (k, n): neither operand has the summed dimension last. A square operand cannot be told: taken as not.
    both_outer = a[-2:] == (k, m) and k != m and b[-2:] == (k, n) and k != n
    written = _size(outputs[0], types[1][0])
    return replace(
        work, batch=float(batch), m=float(m), n=float(n), k=float(k), both_outer=both_outer, written=written
    )  # fmt: skip


def _plain(shape: Shape, layout: str) -> Shape:
    if "FRACTAL_NZ" in layout and len(shape) >= 4:
        *batch, n1, m1, m0, n0 = shape
        return (*batch, m1 * m0, n1 * n0)
    return shape


def _attention(
    work: Work,
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: tuple[Sequence[str], Sequence[str]],
) -> Work | None:
    """Pairs from the statistics of the softmax: (batch, heads, length, 8), or that many values in one dimension.

    A mask of 2048 x 2048 is a causal one, compressed. A mask of queries x keys is taken as causal too: the row does not
    tell, but where counters are at hand the cube cores multiplied for half of the square (llm-2025: 129 us of MAC time
    at 294.9 TFLOPS are 38 GFLOP; half of the square are 34.4, all of it 68.7).
    """
    query, key = inputs[0], inputs[1]
    if len(query) != 3 or len(key) != 3:
        return None
    length, batch, width = query
    keys = key[0]
    statistic = next((s for s in (*inputs[3:], *outputs) if len(s) == 4 and s[-1] == 8), None)
    flat = next((s[0] for s in outputs if len(s) == 1), 0)
    heads = statistic[1] if statistic else flat // (length * batch * 8)
    if heads < 1 or width % heads or (statistic and statistic[::2] != (batch, length)):
        return None
    rest = [(s, plain_dtype(name)) for s, name in zip(inputs[3:], types[0][3:], strict=False)]
    masks = [s for s, name in rest if len(s) >= 2 and name in ("bool", "uint8")]
    is_causal = any(s[-2:] in (COMPRESSED_MASK, (length, keys)) for s in masks)
    packed = [s for s, name in rest if len(s) == 1 and name == "uint8"]
    biases = [s for s, _ in rest if len(s) == 4 and s[-1] == keys and s[-1] != 8]
    pairs = batch * heads * length * keys / (2 if is_causal else 1)
    flops = 4 * pairs * (width // heads) * (2.5 if "Grad" in op_type else 1)
    return replace(work, pairs=float(pairs), flops=flops, extras=float(len(packed) + len(biases)), elements=0.0)
