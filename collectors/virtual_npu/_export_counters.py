"""PMU columns of the kernels, modelled from the parts of their time in the record.

A core is at work for the kernel's time without its fixed part; cycles are that time at the rated clock on every block.
The cube is busy for as long as the operator's FLOPs take at the rated rate of the cores that run it (so that cycles,
ratio and rate give back the FLOPs), the vector unit and the transfers for what the cost model says. Scalar unit, MTE1
and instruction cache are not modelled: their cells are N/A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.collectors.virtual_npu._export_tasks import KernelKind, Tasks, us
from ascend_perf.device.specs import CUBE_FLOP_PER_CYCLE
from ascend_perf.model.table import Floats, Ints

COLUMNS: Final = (
    "aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_scalar_time(us)",
    "aic_scalar_ratio", "aic_mte1_time(us)", "aic_mte1_ratio", "aic_mte2_time(us)", "aic_mte2_ratio",
    "aic_fixpipe_time(us)", "aic_fixpipe_ratio", "aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles",
    "aiv_vec_time(us)", "aiv_vec_ratio", "aiv_scalar_time(us)", "aiv_scalar_ratio", "aiv_mte2_time(us)",
    "aiv_mte2_ratio", "aiv_mte3_time(us)", "aiv_mte3_ratio", "aiv_icache_miss_rate", "cube_utilization(%)",
)  # fmt: skip
"""PipeUtilization of A2 and A3, in their order. Source: format reference, 5.2."""

_RATES: Final = {"FLOAT": "fp32", "FLOAT16": "fp16", "DT_BF16": "bf16", "INT8": "int8"}
_CUBE: Final = ("AI_CORE", "MIX_AIC")
_VECTOR: Final = ("AI_VECTOR_CORE", "MIX_AIV")


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What the counters need of the chip."""

    cube_cores: int
    vector_cores: int
    frequency_hz: int


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters of each kernel, arrays of shape (n,); a core type that a kernel does not use has zeros."""

    has_any: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """False for AI CPU and DSA kernels, which have no counters."""
    aic_ns: Ints
    aic_cycles: Ints
    mac_ns: Ints
    aic_read_ns: Ints
    aic_write_ns: Ints
    aiv_ns: Ints
    aiv_cycles: Ints
    vec_ns: Ints
    aiv_read_ns: Ints
    aiv_write_ns: Ints
    cube_utilization: Floats
    """Percent."""


def counters_of(tasks: Tasks, chip: Chip) -> Counters:
    """The counters of all kernels of a capture."""
    rows = [_of_kind(kind, chip) for kind in tasks.kinds]
    table = np.array(rows, np.float64).reshape(-1, 7)[tasks.kernels["kind"]]
    fixed, mac, vec, read, write, aic_blocks, aiv_blocks = table.T
    dur = tasks.kernels["end"] - tasks.kernels["start"]
    core = np.maximum(dur - np.round(fixed).astype(np.int64), np.minimum(dur, 1))

    def busy(ns: Floats, of: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
        result: Ints = np.where(of, np.minimum(np.round(ns).astype(np.int64), core), 0)
        return result

    on_cube, on_vector = aic_blocks > 0, aiv_blocks > 0
    # The transfers of a fused kernel are those of its leading core.
    leads = on_vector & ~on_cube
    cycles = core * chip.frequency_hz / 1e9
    aic_cycles = np.where(on_cube, np.round(cycles * aic_blocks), 0).astype(np.int64)
    return Counters(
        has_any=on_cube | on_vector, aic_ns=np.where(on_cube, core, 0), aic_cycles=aic_cycles,
        mac_ns=busy(mac, on_cube), aic_read_ns=busy(read, on_cube), aic_write_ns=busy(write, on_cube),
        aiv_ns=np.where(on_vector, core, 0),
        aiv_cycles=np.where(on_vector, np.round(cycles * aiv_blocks), 0).astype(np.int64),
        vec_ns=busy(vec, on_vector), aiv_read_ns=busy(read, leads), aiv_write_ns=busy(write, leads),
        cube_utilization=100 * aic_cycles / np.maximum(chip.frequency_hz * chip.cube_cores * dur / 1e9, 1e-9),
    )  # fmt: skip


def _of_kind(kind: KernelKind, chip: Chip) -> tuple[float, ...]:
    """Fixed, cube, vector, read and write time in ns, blocks on cube and on vector cores."""
    call, core, share = kind.call, kind.kernel.core, kind.share
    on_cube, on_vector = core in _CUBE, core in _VECTOR or core == "MIX_AIC"
    rate = CUBE_FLOP_PER_CYCLE[_RATES.get(call.tensors[0].dtype if call.tensors else "", "fp16")]
    by_flops = call.flops / (rate * kind.blocks * chip.frequency_hz) * 1e9 if kind.blocks else 0.0
    mac = by_flops if call.flops > 0 and call.cube_ns > 0 else call.cube_ns
    read, put = (sum(tensor.nbytes for tensor in side) for side in (kind.inputs, kind.outputs))
    written = put / (read + put) if read + put else 1 / 3
    return (
        call.fixed_ns * share, mac * share, call.vector_ns * share, call.memory_ns * share * (1 - written),
        call.memory_ns * share * written, kind.blocks if on_cube else 0,
        (kind.mix_blocks if core == "MIX_AIC" else kind.blocks) if on_vector else 0,
    )  # fmt: skip


def cells(counters: Counters) -> list[list[str]]:
    """The columns of each kernel as text; N/A where nothing is modelled."""
    none = ["N/A"] * len(COLUMNS)
    c = counters
    pairs = (
        (c.aic_ns, c.aic_cycles, (c.mac_ns, None, None, c.aic_read_ns, c.aic_write_ns)),
        (c.aiv_ns, c.aiv_cycles, (c.vec_ns, None, c.aiv_read_ns, c.aiv_write_ns)),
    )  # fmt: skip
    columns: list[list[str]] = []
    for core, cycles, parts in pairs:
        columns += [_us(core), [str(value) for value in cycles.tolist()]]
        for part in parts:
            if part is None:
                columns += [["N/A"] * len(core)] * 2
            else:
                columns += [_us(part), [f"{v:.3f}" for v in (part / np.maximum(core, 1)).tolist()]]
        columns.append(["N/A"] * len(core))
    columns.append([f"{value:.3f}" for value in c.cube_utilization.tolist()])
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [row if has else none for row, has in zip(rows, c.has_any.tolist(), strict=True)]


def named_values(counters: Counters) -> tuple[tuple[str, Ints | Floats], ...]:
    """Names and values of the counters in a database: times in ns, ratios unrounded (format reference, 3.2)."""
    c = counters
    aic, aiv = np.maximum(c.aic_ns, 1), np.maximum(c.aiv_ns, 1)
    return (
        ("aic_total_time", c.aic_ns), ("aic_total_cycles", c.aic_cycles), ("aic_mac_time", c.mac_ns),
        ("aic_mac_ratio", c.mac_ns / aic), ("aic_mte2_time", c.aic_read_ns), ("aic_mte2_ratio", c.aic_read_ns / aic),
        ("aic_fixpipe_time", c.aic_write_ns), ("aic_fixpipe_ratio", c.aic_write_ns / aic),
        ("aiv_total_time", c.aiv_ns), ("aiv_total_cycles", c.aiv_cycles), ("aiv_vec_time", c.vec_ns),
        ("aiv_vec_ratio", c.vec_ns / aiv), ("aiv_mte2_time", c.aiv_read_ns), ("aiv_mte2_ratio", c.aiv_read_ns / aiv),
        ("aiv_mte3_time", c.aiv_write_ns), ("aiv_mte3_ratio", c.aiv_write_ns / aiv),
    )  # fmt: skip


def _us(ns: Ints) -> list[str]:
    return [us(value) for value in ns.tolist()]
