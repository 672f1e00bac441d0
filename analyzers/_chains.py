"""Chains of element-wise kernels on a stream that hand a tensor of one shape from one to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._steps import membership
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.ops.classify import KernelClass
from ascend_perf.ops.flops import parse_shapes
from ascend_perf.ops.host_work import elementwise_output

LOADS_MIN_RATIO: Final = threshold("C-06", "min_moving_pipe_ratio")
"""The vendor's other limit, a sum of vec, MTE2 and MTE3 above 0.9, says nothing: pipes of one kernel overlap."""
MOVING_MIN_RATIO: Final = threshold("C-06", "min_moving_time_ratio")

_CHAINED: Final = frozenset({KernelClass.ELEMENTWISE.value, KernelClass.CAST.value})


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Kernels of all chains, chain after chain; arrays of shape (kernels in chains,) but `firsts` (chains,)."""

    rows: Ints
    """Rows of the kernel table."""
    firsts: Ints
    """Where each chain begins in `rows`."""
    lengths: Ints
    saved_ns: Floats
    """(k - 1) / k of the time of each chain of k kernels."""

    def __len__(self) -> int:
        return len(self.firsts)


def chains_of(time: KernelTime, classes: Text, claimed: Bools) -> Chains:
    """Maximal runs of two or more element-wise kernels with equal shapes, neighbours on one stream of one step.

    Args:
        time: the kernels of a rank.
        classes: class of each kernel.
        claimed: kernels that other rows claim; they end a chain.

    Reads:
        kernels: start_ns, dur_ns, stream, input_shapes, output_shapes, aiv pipe ratios; host_ops: name, input_shapes
        (GPU kernels, which record no shapes themselves).
    """
    kernels = time.trace[KERNELS]
    steps = membership(time.trace, kernels, time.windows)
    inputs, outputs = operands(time)
    handed = outputs.relabel(_first_shape)
    both = Text.concat([handed, inputs.relabel(_widest_shape)])
    gives, takes = both.codes[: len(kernels)], both.codes[len(kernels) :]
    usable = (steps >= 0) & (kernels.ints("start_ns") != NULL)
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((kernels.ints("start_ns")[rows], kernels.ints("stream")[rows], steps[rows]))]
    member = (classes.isin(_CHAINED) & ~claimed & (gives >= 0) & (gives == takes))[rows]
    if not len(rows) or not member.any():
        return _none()
    stream = kernels.ints("stream")[rows]
    joined = np.zeros(len(rows), bool)
    joined[1:] = member[1:] & member[:-1] & (stream[1:] == stream[:-1]) & (steps[rows][1:] == steps[rows][:-1])
    joined[1:] &= gives[rows][:-1] == takes[rows][1:]
    heads = np.flatnonzero(member & ~joined)
    chain = np.cumsum(member & ~joined) - 1
    lengths = np.bincount(chain[member], minlength=len(heads))
    duration = time.duration[rows].astype(float)
    total = np.bincount(chain[member], duration[member], len(heads))
    moving = np.bincount(chain[member], (duration * _moves(time)[rows])[member], len(heads))
    kept = (lengths >= 2) & (total > 0) & (moving >= MOVING_MIN_RATIO.value * total)
    if not kept.any():
        return _none()
    taken = member & kept[chain]
    lengths = lengths[kept]
    return Chains(
        rows=rows[taken], firsts=np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
        lengths=lengths.astype(np.int64), saved_ns=total[kept] * (lengths - 1) / lengths,
    )  # fmt: skip


def operands(time: KernelTime) -> tuple[Text, Text]:
    """Shapes of the inputs and of the output of each kernel; unknown for GPU kernels that do not work alone.

    Those of a GPU are its operator's, for element-wise operators that launched one kernel: the output follows from
    broadcasting.
    """
    kernels, ops = time.trace[KERNELS], time.trace[HOST_OPS]
    if kernels.has("input_shapes") or not len(ops):
        return kernels.text("input_shapes"), kernels.text("output_shapes")
    op = kernels.ints("host_op")
    usable = (op != NULL) & (op >= 0) & (op < len(ops))
    launched = np.bincount(op[usable], minlength=len(ops))
    at = np.where(usable, op, 0)
    usable &= launched[at] == 1
    names, shapes = ops.text("name"), ops.text("input_shapes")
    # Each distinct pair of name and shapes once.
    pair = names.codes[at].astype(np.int64) * (len(shapes.values) + 1) + shapes.codes[at]
    _, first, index = np.unique(pair, return_index=True, return_inverse=True)
    given: list[str | None] = []
    for row in at[first].tolist():
        out = elementwise_output(names[row] or "", parse_shapes(shapes[row] or ""))
        given.append(None if out is None else ",".join(map(str, out)))
    output = Text.of(given)
    codes = np.where(usable, output.codes[index.reshape(-1)], -1).astype(np.int32)
    inputs = np.where(codes >= 0, shapes.codes[at], -1).astype(np.int32)
    return Text(inputs, shapes.values), Text(codes, output.values)


def has_counters(time: KernelTime) -> bool:
    """Whether pipe ratios of vector kernels are in the data."""
    return time.trace[KERNELS].has("aiv_mte2_ratio") or time.trace[KERNELS].has("aiv_mte3_ratio")


def _moves(time: KernelTime) -> Floats:
    """1 for kernels that move data most of the time; without any counters every element-wise kernel counts as one."""
    kernels = time.trace[KERNELS]
    if not has_counters(time):
        return np.ones(len(kernels))
    with np.errstate(invalid="ignore"):
        loads = np.fmax(kernels.floats("aiv_mte2_ratio"), kernels.floats("aiv_mte3_ratio"))
        return (loads >= LOADS_MIN_RATIO.value).astype(float)


def _first_shape(text: str) -> str | None:
    shapes = parse_shapes(text)
    return ",".join(map(str, shapes[0])) if shapes and shapes[0] else None


def _widest_shape(text: str) -> str | None:
    """The input with the most elements: scalars and vectors that are broadcast do not change the traffic much."""
    shapes = [shape for shape in parse_shapes(text) if shape]
    return ",".join(map(str, max(shapes, key=math.prod))) if shapes else None


def _none() -> Chains:
    empty = np.empty(0, np.int64)
    return Chains(rows=empty, firsts=empty, lengths=empty, saved_ns=np.empty(0))
