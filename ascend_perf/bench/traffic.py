"""What one rank sent through collectives in its profiled steps, counted from the `c10d` operators of its own trace.

The size of a call is defined as in `workloads._spec.Traffic`: the input tensor's, of all_gather the output tensor's.
Lists of tensors carry no dtype there; it is taken from what the backend did with as many elements (gloo writes a range
with dtype for each call, NCCL puts it into its kernels), and a call for which that is not unique is counted as unknown.

Source: names and arguments of the operators in traces of torch 2.13 over gloo, and torch/csrc/distributed/c10d/Ops.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

import msgspec
import numpy as np

from ascend_perf.ops.shapes import BYTES_OF, plain_dtype
from ascend_perf.parsers._events import EventFile
from ascend_perf.parsers._kineto_events import Columns


@dataclass(frozen=True)
class _Call:
    """How a `c10d` operator states what it moves."""

    collective: str
    argument: int
    """Place of the tensor (or of the list of tensors) that gives the size."""
    per_rank: bool = False
    """The size is that of this tensor times the ranks of the group: the others are in nested lists, without shapes."""


_CALLS: Final = {
    "allreduce_": _Call("all_reduce", 0),
    "allreduce_coalesced_": _Call("all_reduce", 0),
    "_allgather_base_": _Call("all_gather", 0),
    "allgather_": _Call("all_gather", 1, per_rank=True),
    "allgather_into_tensor_coalesced_": _Call("all_gather", 0),
    "_reduce_scatter_base_": _Call("reduce_scatter", 1),
    "reduce_scatter_": _Call("reduce_scatter", 0, per_rank=True),
    "reduce_scatter_tensor_coalesced_": _Call("reduce_scatter", 1),
    "alltoall_base_": _Call("all_to_all", 1),
    "alltoall_": _Call("all_to_all", 1),
    "broadcast_": _Call("broadcast", 0),
    "send": _Call("send", 0),
    "reduce_": _Call("reduce", 0),
    "gather_": _Call("gather", 1),
}
"""By name without `c10d::`. `recv_` is the other end of a send, and `barrier` carries nothing."""


class Counted(TypedDict):
    """Calls of one collective."""

    collective: str
    bytes_per_step: float
    calls_per_step: float


class CountedTraffic(TypedDict):
    """All collectives by name; `unknown_calls_per_step` are those of unknown size, which are in no sum."""

    collectives: list[Counted]
    unknown_calls_per_step: float


def of_trace(path: Path, steps: int) -> CountedTraffic | None:
    """Count the calls in a Kineto trace that holds `steps` steps. None for another kind of trace: its operators tell
    no sizes.

    Raises:
        InputError: the trace cannot be read.
    """
    if path.is_dir():
        return None
    columns = Columns(EventFile(path))
    columns.read()
    names = columns.names.values
    shapes, types = (_decoded(columns.shapes.values), _decoded(columns.types.values))
    wanted = [code for code, name in enumerate(names) if name.startswith(("c10d::", "gloo:"))]
    codes = np.stack([columns.host.ints(column) for column in ("name", "shapes", "types")], axis=1)
    kinds, counts = np.unique(codes[np.isin(codes[:, 0], wanted)], axis=0, return_counts=True)
    rows = [
        (names[name], shapes[shape], types[kind], count)
        for (name, shape, kind), count in zip(kinds.tolist(), counts.tolist(), strict=True)
    ]
    size = _group_size(columns.file.facts())
    dtypes = _dtypes_by_elements(rows)
    for args in columns.comm_args:
        for elements in (args.elements_in, args.elements_out):
            if args.dtype and elements:
                dtypes.setdefault(elements, set()).add(plain_dtype(args.dtype))
    sums: dict[str, list[int]] = {}
    unsure: dict[tuple[str, int], int] = {}
    unknown = 0
    for name, dims, kind, count in rows:
        call = _CALLS.get(name.removeprefix("c10d::"))
        if call is None:
            continue
        bytes_of_one = _size(call, dims, kind, dtypes, size)
        if bytes_of_one is None:
            elements = _elements_of_one(call, dims, kind)
            if elements is None:
                unknown += count
            else:
                unsure[call.collective, elements] = unsure.get((call.collective, elements), 0) + count
            continue
        total = sums.setdefault(call.collective, [0, 0])
        total[0] += count * bytes_of_one
        total[1] += count
    backend = _bytes_by_backend(rows)
    for key, count in unsure.items():
        moved, calls = backend.get(key, (None, 0))
        if moved is None or calls != count:
            unknown += count
            continue
        total = sums.setdefault(key[0], [0, 0])
        total[0] += moved
        total[1] += count
    collectives = [
        Counted(collective=name, bytes_per_step=moved / steps, calls_per_step=calls / steps)
        for name, (moved, calls) in sorted(sums.items())
    ]
    return CountedTraffic(collectives=collectives, unknown_calls_per_step=unknown / steps)


def busiest(traffic: Sequence[CountedTraffic]) -> CountedTraffic:
    """The one that moves most bytes."""
    return max(traffic, key=lambda one: sum(part["bytes_per_step"] for part in one["collectives"]))


def _decoded(texts: Sequence[str]) -> list[list[object]]:
    """Arguments of operators from their JSON; [] where there is none."""
    found = []
    for text in texts:
        try:
            value = msgspec.json.decode(text) if text else []
        except (msgspec.DecodeError, RecursionError):
            value = []
        found.append(value if isinstance(value, list) else [])
    return found


def _dtypes_by_elements(rows: Sequence[tuple[str, list[object], list[object], int]]) -> dict[int, set[str]]:
    """Dtypes in which the backend moved tensors of so many elements."""
    found: dict[int, set[str]] = {}
    for name, dims, kinds, _ in rows:
        for shape, kind in zip(dims, kinds, strict=False):
            if name.startswith("gloo:") and isinstance(kind, str) and (elements := _elements(shape)) is not None:
                found.setdefault(elements, set()).add(plain_dtype(kind))
    return found


def _bytes_by_backend(
    rows: Sequence[tuple[str, list[object], list[object], int]],
) -> dict[tuple[str, int], tuple[int | None, int]]:
    """Collective and elements -> bytes and calls by gloo's own ranges, which tell each call's dtype.

    Where calls of as many elements have several dtypes, their sum is known when gloo saw as many calls. None: a dtype
    of unknown size is among them.
    """
    found: dict[tuple[str, int], tuple[int | None, int]] = {}
    for name, dims, kinds, count in rows:
        if not name.startswith("gloo:") or len(dims) != 1 or len(kinds) != 1:
            continue
        elements = _elements(dims[0])
        if elements is None:
            continue
        width = BYTES_OF.get(plain_dtype(str(kinds[0])))
        key = name.removeprefix("gloo:"), elements
        moved, calls = found.get(key, (0, 0))
        moved = None if moved is None or width is None else moved + int(count * elements * width)
        found[key] = moved, calls + count
    return found


def _elements_of_one(call: _Call, dims: Sequence[object], kinds: Sequence[object]) -> int | None:
    """Elements of the only tensor in the list that gives a call's size; None where it is not one."""
    if call.argument >= min(len(dims), len(kinds)) or kinds[call.argument] != "TensorList" or call.per_rank:
        return None
    shapes = dims[call.argument]
    return _elements(shapes[0]) if isinstance(shapes, list) and len(shapes) == 1 else None


def _size(
    call: _Call, dims: Sequence[object], kinds: Sequence[object], dtypes: Mapping[int, set[str]], group: int | None
) -> int | None:
    """Bytes of one call; None when its shape, its dtype or the size of its group is not told."""
    if call.argument >= min(len(dims), len(kinds)) or (call.per_rank and group is None):
        return None
    kind, value = kinds[call.argument], dims[call.argument]
    is_list = kind == "TensorList"
    shapes = value if is_list and isinstance(value, list) else [value]
    counts = [_elements(shape) for shape in shapes]
    if not counts or not all(isinstance(count, int) for count in counts):
        return None
    others = _tensors(dims, kinds)  # of all_gather the backend states the input
    total = 0
    for place, count in enumerate(counts):
        assert count is not None
        names = [str(kind)] if not is_list else sorted(
            dtypes.get(count, set()) or set().union(*(dtypes.get(n, set()) for n in others.get(place, ())))
        )  # fmt: skip
        widths = {BYTES_OF.get(plain_dtype(name)) for name in names}
        width = widths.pop() if len(widths) == 1 else None
        if width is None:
            return None
        total += int(count * width)
    return total * (group if call.per_rank and group is not None else 1)


def _tensors(dims: Sequence[object], kinds: Sequence[object]) -> dict[int, list[int]]:
    """Elements of the tensors at each place of the lists of a call."""
    found: dict[int, list[int]] = {}
    for value, kind in zip(dims, kinds, strict=False):
        if kind == "TensorList" and isinstance(value, list):
            for place, shape in enumerate(value):
                if (count := _elements(shape)) is not None:
                    found.setdefault(place, []).append(count)
    return found


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or not all(isinstance(dim, int) and dim >= 0 for dim in shape):
        return None
    return math.prod(shape)


def _group_size(facts: Mapping[str, msgspec.Raw]) -> int | None:
    """Ranks of a process group where all groups of the job have as many."""
    try:
        info = msgspec.json.decode(facts["distributedInfo"])
        sizes = {group["pg_size"] for group in info["pg_config"]}
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
