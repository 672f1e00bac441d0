"""Communication kernels of Kineto traces: which kernels they are, which collective, group and size they carry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from ascend_perf.model.table import NULL, Text, Values

_COMMUNICATION: Final = re.compile(r"nccl|rccl|hccl|oneccl|mscclkernel", re.IGNORECASE)
"""Every generation of names holds the library's name: ncclKernel_, ncclDevKernel_, ncclSymkDevKernel_, any case."""

_OPS: Final = (
    (re.compile(r"all_?reduce", re.IGNORECASE), "allReduce"),
    (re.compile(r"all_?gather", re.IGNORECASE), "allGather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduceScatter"),
    (re.compile(r"all_?to_?all_?v", re.IGNORECASE), "alltoallv"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "alltoall"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"send_?recv", re.IGNORECASE), "sendRecv"),
    (re.compile(r"\bsend\b|_send", re.IGNORECASE), "send"),
    (re.compile(r"\brecv\b|_recv", re.IGNORECASE), "receive"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
    (re.compile(r"barrier", re.IGNORECASE), "barrier"),
    (re.compile(r"scatter", re.IGNORECASE), "scatter"),
    (re.compile(r"gather", re.IGNORECASE), "gather"),
)

_DTYPE_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2, "bfloat16": 2, "short": 2,
    "float": 4, "int": 4, "long": 8, "double": 8,
}  # fmt: skip


class CommArgs(msgspec.Struct, gc=False):
    """Arguments that newer PyTorch records with a collective's kernel."""

    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    description: str | None = msgspec.field(name="Process Group Description", default=None)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    elements_in: int | None = msgspec.field(name="In msg nelems", default=None)
    elements_out: int | None = msgspec.field(name="Out msg nelems", default=None)


@lru_cache(maxsize=65536)
def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return bool(_COMMUNICATION.search(kernel))


def collective_of(text: str) -> str | None:
    """The collective that a kernel name or a `Collective name` stands for, None when it does not tell."""
    for pattern, op in _OPS:
        if pattern.search(text):
            return op
    return None


def group_label(description: object) -> str | None:
    """A group's logical name; the defaults that say nothing are unknown."""
    if not isinstance(description, str) or description in ("", "undefined"):
        return None
    return description


def columns(names: Text, args: Sequence[CommArgs]) -> dict[str, Values]:
    """Columns op, group, group_label, group_size, index_in_group, size_bytes and dtype.

    Args:
        names: kernel names, rows in order of start.
        args: the kernels' arguments, same rows.
    """
    by_name = names.relabel(collective_of).to_list()
    by_args = Text.of([a.collective for a in args]).relabel(collective_of).to_list()
    groups = Text.of([a.group for a in args])
    return {
        "op": Text.of([a or b or "other" for a, b in zip(by_args, by_name, strict=True)]),
        "group": groups,
        "group_label": Text.of([group_label(a.description) for a in args]),
        "group_size": np.array([a.group_size if a.group_size else NULL for a in args], np.int64),
        "index_in_group": _ordinals(groups),
        "size_bytes": np.array([_size(a) for a in args], np.int64),
        "dtype": Text.of([a.dtype for a in args]),
    }


def _ordinals(groups: Text) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Running number of each row in its group; unknown where the group is."""
    result = np.full(len(groups), NULL, np.int64)
    for code in range(len(groups.values)):
        rows = np.flatnonzero(groups.codes == code)
        result[rows] = np.arange(len(rows))
    return result


def _size(args: CommArgs) -> int:
    """Message size in bytes: the larger of input and output (all-gather counts its output)."""
    width = _DTYPE_BYTES.get((args.dtype or "").lower())
    counts = [n for n in (args.elements_in, args.elements_out) if n is not None and n >= 0]
    return NULL if width is None or not counts else max(counts) * width
