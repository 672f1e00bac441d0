"""What the rooflines of two machines let expect of the same work: how much longer it may take on the second.

For work whose FLOPs and bytes are known, expected ratio = floor on B / floor on A, floor = max(FLOPs / peak, bytes /
memory rate). Where they are not known, the ratio of the peaks (products, convolutions, attention) or of the memory
rates (all else) stands in, and is called assumed. Peaks are those of data sheets, so that both machines reach less; the
ratio assumes that they fall short alike.

Source:
    rivals-and-methods, methods 5.4 and 5.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._flame_tree import CODE
from ascend_perf.analyzers._utilisation import Utilisation, peaks_of, utilisation_of
from ascend_perf.compare.work_tree import WorkTree
from ascend_perf.device.roofline import floor_ns
from ascend_perf.device.specs import DeviceSpec, spec_for
from ascend_perf.model.table import Bools, Floats, Ints, Text
from ascend_perf.model.trace import Trace

MIN_KNOWN_RATIO: Final = 0.5
"""The work of a row is taken as known from this share of its time. Status: assumed."""

BASES: Final = ("work", "peak (assumed)", "memory rate (assumed)", "")
"""What the expected ratio of a row rests on."""

_MATRIX: Final = ("matmul", "conv", "attention")
_UNEXPECTED: Final = ("communication", "other")


@dataclass(frozen=True, kw_only=True)
class TaskWork:
    """Of each task of a tree, shape (m,): its class, and the least time that its work needs on each machine in ns."""

    classes: Text
    on_a: Floats
    on_b: Floats
    is_known: Bools
    dtype: Text


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Of each row: expected time on B over time on A (NaN where nothing tells), and its basis as a place in `BASES`."""

    ratio: Floats
    basis: Ints


def task_work(trace: Trace, tree: WorkTree, spec_a: DeviceSpec | None, spec_b: DeviceSpec | None) -> TaskWork:
    """Classes and floors of the tasks of one side on the machines of both."""
    use = utilisation_of(trace)
    count = len(tree.tasks.dur_ns)
    is_kernel = tree.tasks.kind == CODE["kernel"]
    rows = tree.tasks.row[is_kernel]
    codes = np.full(count, -1, np.int64)
    values = [*use.classes.values, "communication", "copy"]
    codes[is_kernel] = use.classes.codes[rows]
    codes[tree.tasks.kind == CODE["communication"]] = len(use.classes.values)
    codes[tree.tasks.kind == CODE["copy"]] = len(use.classes.values) + 1
    floors = []
    for spec in (spec_a, spec_b):
        floor = np.full(count, np.nan)
        if spec is not None:
            floor[is_kernel] = _floors(use, spec)[rows]
        floors.append(floor)
    dtype = np.full(count, -1, np.int32)
    dtype[is_kernel] = use.dtype.codes[rows]
    known = (floors[0] > 0) & (floors[1] > 0)
    return TaskWork(
        classes=Text.concat([Text(codes.astype(np.int32), values)]), on_a=floors[0], on_b=floors[1], is_known=known,
        dtype=Text(dtype, use.dtype.values),
    )  # fmt: skip


def _floors(use: Utilisation, spec: DeviceSpec) -> Floats:
    peak = peaks_of(use.dtype, use.is_cube, spec)
    rate = spec.memory_bytes_per_s.value
    floor = floor_ns(use.work.flops, use.work.bytes, peak, rate)
    # The floor of a kernel that is bound by memory is not known by its FLOPs alone, that of a product is.
    no_bytes = np.isnan(use.work.bytes) | (rate is None)
    no_flops = np.isnan(use.work.flops) | np.isnan(peak)
    return np.where(use.is_cube, np.where(no_flops, np.nan, floor), np.where(no_bytes, np.nan, floor))


def expected_of(
    rows: Ints, tree: WorkTree, work: TaskWork, count: int, spec_a: DeviceSpec | None, spec_b: DeviceSpec | None
) -> Expected:
    """The expected ratio of each row from the tasks of one side.

    Args:
        rows: row of each task, shape (m,).
        tree: the tree of the tasks.
        work: of the tasks.
        count: number of rows.
        spec_a: machine of A.
        spec_b: machine of B.
    """
    duration = tree.tasks.dur_ns.astype(float)
    whole = np.bincount(rows, duration, count)
    known = np.bincount(rows[work.is_known], duration[work.is_known], count)
    least = [np.bincount(rows[work.is_known], on[work.is_known], count) for on in (work.on_a, work.on_b)]
    with np.errstate(divide="ignore", invalid="ignore"):
        by_work = np.where((known >= MIN_KNOWN_RATIO * whole) & (known > 0), least[1] / least[0], np.nan)
    main = main_class(rows, tree, work, count)
    matrix, memory = _peak_ratio(work, spec_a, spec_b), _memory_ratio(spec_a, spec_b)
    is_matrix, no_guess = main.isin(_MATRIX), main.isin(_UNEXPECTED) | (main.codes < 0)
    is_copy = np.bincount(rows[tree.tasks.kind == CODE["copy"]], minlength=count) > 0
    guess = np.where(is_matrix, matrix, np.where(no_guess | is_copy, np.nan, memory))
    ratio = np.where(np.isnan(by_work), guess, by_work)
    basis = np.where(~np.isnan(by_work), 0, np.where(np.isnan(guess), 3, np.where(is_matrix, 1, 2)))
    return Expected(ratio=ratio, basis=basis.astype(np.int64))


def main_class(rows: Ints, tree: WorkTree, work: TaskWork, count: int) -> Text:
    """The class with most time of each row, unknown for rows without tasks."""
    kinds = len(work.classes.values)
    if not kinds or not len(rows):
        return Text.full(count, None)
    known = work.classes.codes >= 0
    table = np.bincount(
        rows[known] * kinds + work.classes.codes[known], tree.tasks.dur_ns[known].astype(float), count * kinds
    ).reshape(count, kinds)
    return Text(np.where(table.max(1) > 0, table.argmax(1), -1).astype(np.int32), work.classes.values)


def _peak_ratio(work: TaskWork, spec_a: DeviceSpec | None, spec_b: DeviceSpec | None) -> float:
    """Peak of A over that of B in the type that most products of the step have."""
    if spec_a is None or spec_b is None:
        return float("nan")
    counts = np.bincount(work.dtype.codes[work.dtype.codes >= 0], minlength=len(work.dtype.values))
    for code in np.argsort(-counts, kind="stable").tolist():
        name = work.dtype.values[code]
        a, b = spec_a.matrix_peak(name), spec_b.matrix_peak(name)
        if counts[code] and a and b:
            return a / b
    return float("nan")


def _memory_ratio(spec_a: DeviceSpec | None, spec_b: DeviceSpec | None) -> float:
    a = spec_a.memory_bytes_per_s.value if spec_a else None
    b = spec_b.memory_bytes_per_s.value if spec_b else None
    return a / b if a and b else float("nan")


def machine_of(trace: Trace) -> DeviceSpec | None:
    """The machine of a trace as far as it is known."""
    return spec_for(trace.meta.device)

