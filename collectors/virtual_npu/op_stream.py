"""A record as a snapshot of operators (`ascend_perf.op_streams`), and what differs between two of them.

    aclnnMatmul(bf16[4096,4096], bf16[4096,11008]) -> bf16[4096,11008]
    aclnnInplaceCopy(f32[4096], bf16[4096]) -> f32[4096]
    HcclAllReduce(bf16[16777216], ranks=8)
    copy.h2d(bytes=32768)
    wait.stream()

Operators, collectives, copies and waits in the order in which the process gave them to the device; a tensor that is not
contiguous has its strides (`bf16[8,4]@1,8`), one in an internal format its name (`bf16[..]:FRACTAL_NZ`). Other
arguments stand in their order, without those that differ from run to run (seeds, pointers, polling of events). What the
memory did is in the head of the snapshot, since it is no operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf.collectors.virtual_npu._export_capture import last_list_of, tensor_of
from ascend_perf.collectors.virtual_npu.kernels import Tensor, kernel_table
from ascend_perf.collectors.virtual_npu.record import COPY_KINDS, WAIT_KINDS, Record
from ascend_perf.model.run import Fact
from ascend_perf.op_streams import OpStream, counted
from ascend_perf.parsers._ascend_db import DATA_TYPES as HCCL_TYPES

MODE: Final = "virtual-npu"

Kind = Literal["operators", "shapes", "collectives", "copies", "waits", "memory"]

_SHORT: Final = {
    "FLOAT": "f32", "FLOAT16": "f16", "DT_BF16": "bf16", "DOUBLE": "f64", "INT8": "i8", "INT16": "i16",
    "INT32": "i32", "INT64": "i64", "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64", "BOOL": "b8",
    "COMPLEX64": "c64", "COMPLEX128": "c128",
}  # fmt: skip
"""As the dispatch recorder spells them (collectors/op_recorder.py)."""
_HCCL_SHORT: Final = {
    "INT8": "i8", "INT16": "i16", "INT32": "i32", "FP16": "f16", "FP32": "f32", "INT64": "i64", "UINT64": "u64",
    "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "FP64": "f64", "BFP16": "bf16",
}  # fmt: skip
_RANDOM: Final = (
    "Dropout", "Normal", "Uniform", "Random", "Randperm", "Multinomial", "Bernoulli", "Exponential", "Noise",
)  # fmt: skip
"""Operators with these words take a seed and an offset."""
MAX_VALUES: Final = 16
"""Numbers of an array that are written."""


def op_stream(
    record: Record,
    *,
    workload: str,
    preset: str | None = None,
    settings: Mapping[str, Fact] | None = None,
    facts: Mapping[str, str] | None = None,
    between: tuple[int, int] | None = None,
) -> OpStream:
    """The snapshot of a record, or of a part of it.

    Args:
        record: of one process.
        workload: its name.
        preset: its preset.
        settings: of the workload.
        facts: further lines of the head (versions).
        between: first and last instant of the step on the record's clock; everything when None.
    """
    begin, end = between or (-(2**62), 2**62)
    lines: list[tuple[int, str]] = []
    written = {number: _line(kind, name, body) for number, (kind, name, body) in record.definitions.items()}
    sizes = {number: size for number, (_, size, _, _) in record.groups.items()}

    def rows(table: str, by: str, *columns: str) -> list[tuple[int, ...]]:
        given = record.tables[table]
        picked = np.flatnonzero((given[by] >= begin) & (given[by] <= end))
        return list(zip(*(given[name][picked].tolist() for name in columns), strict=True))

    launches = rows("K", "host_ns", "seq", "def")
    collectives = rows("C", "host_ns", "seq", "def", "comm")
    copies = rows("P", "host_ns", "seq", "kind", "bytes")
    waits = [row for row in rows("Y", "begin_ns", "seq", "kind") if WAIT_KINDS[row[1]] != "query"]
    lines += [(seq, written[number]) for seq, number in launches]
    lines += [(seq, f"{written[number][:-1]}, ranks={sizes.get(comm, 0)})") for seq, number, comm in collectives]
    lines += [(seq, f"copy.{COPY_KINDS[kind]}(bytes={size})") for seq, kind, size in copies]
    lines += [(seq, f"wait.{WAIT_KINDS[kind]}()") for seq, kind in waits]
    stream = tuple(line for _, line in sorted(lines, key=lambda line: line[0]))
    return OpStream(
        workload=workload, preset=preset, world_size=int(record.header.get("world_size", 1)), mode=MODE,
        facts={
            "device": f"{record.header.get('soc', '')} (virtual)", "rank": record.header.get("rank", "0"),
            "launches": str(len(launches)), "collectives": str(len(collectives)), "copies": str(len(copies)),
            "waits": str(len(waits)), **_memory(record, begin, end), **(facts or {}),
        },
        settings=settings or {}, totals=counted(stream), stream=stream,
    )  # fmt: skip


def _memory(record: Record, begin: int, end: int) -> dict[str, str]:
    table = record.tables["M"]
    before = table["used_bytes"][table["time_ns"] < begin]
    inside = (table["time_ns"] >= begin) & (table["time_ns"] <= end)
    used = np.concatenate((before[-1:], table["used_bytes"][inside]))
    delta = table["delta_bytes"][inside]
    return {
        "memory_peak_bytes": str(int(used.max(initial=0))),
        "memory_segments": str(int((delta > 0).sum())),
        "memory_segment_bytes": str(int(delta[delta > 0].sum())),
    }


# ---- one call as text --------------------------------------------------------------------------------------------


def _line(kind: str, name: str, body: Mapping[str, object]) -> str:
    if kind != "op":
        dtype = body.get("dtype")
        word = HCCL_TYPES.get(dtype, "") if isinstance(dtype, int) else ""
        peer = body.get("peer")
        told = f", peer={peer}" if isinstance(peer, int) and peer >= 0 else ""
        return f"{name}({_HCCL_SHORT.get(word, word.lower() or 'unknown')}[{body.get('count', 0)}]{told})"
    arguments = body.get("args")
    listed = arguments if isinstance(arguments, (list, tuple)) else ()
    every = [tensor for one in listed for tensor in _of(one)]
    count = kernel_table().results(name, len(every), last_list_of(listed))
    left = len(every) - count
    is_random = any(word in name for word in _RANDOM)
    operands: list[str] = []
    for one in listed:
        tensors = _of(one)
        if tensors:
            # Results at the end of the arguments stand behind the arrow; a list that is partly one stays whole.
            if left > 0:
                text = ", ".join(map(_tensor, tensors))
                operands.append(text if _is(one, "t") else f"[{text}]")
            left -= len(tensors)
        # A list that is absent comes as null or, with TASK_QUEUE_ENABLE=2, as one without tensors.
        elif not _is(one, "l") and (text := _value(one, is_random)):
            operands.append(text)
    results = every[-count:] if count else every[:1]
    return f"{name}({', '.join(operands)}) -> {', '.join(map(_tensor, results)) or '()'}"


def _is(argument: object, kind: str) -> bool:
    return isinstance(argument, (list, tuple)) and bool(argument) and argument[0] == kind


def _of(argument: object) -> list[Tensor]:
    if isinstance(argument, (list, tuple)) and argument:
        if argument[0] == "t":
            return [tensor_of(argument)]
        if argument[0] == "l":
            return [tensor_of(part) for part in argument[1]]
    return []


def _tensor(tensor: Tensor) -> str:
    text = f"{_SHORT.get(tensor.dtype, tensor.dtype.lower())}[{','.join(map(str, tensor.shape))}]"
    if not tensor.is_contiguous and tensor.strides is not None:
        text += f"@{','.join(map(str, tensor.strides))}"
    return text if tensor.format.startswith(("N", "H")) else f"{text}:{tensor.format}"


def _value(argument: object, is_random: bool) -> str:
    """A plain argument; empty for one that is absent, or may be a seed."""
    if not isinstance(argument, (list, tuple)) or len(argument) < 2 or (is_random and argument[0] in "nd"):
        return ""
    value = argument[-1]
    if isinstance(value, (list, tuple)):
        more = ",..." if len(value) > MAX_VALUES else ""
        return f"[{','.join(_number(one) for one in value[:MAX_VALUES])}{more}]"
    if isinstance(value, str):
        return value if value.isprintable() and len(value) <= 40 else ""
    return _number(value)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- what differs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which two snapshots differ."""

    kind: Kind
    name: str
    """The operator or the call; for shapes the two forms joined by an arrow; for memory the figure."""
    a: int
    b: int


def differences(a: OpStream, b: OpStream) -> tuple[Difference, ...]:
    """What differs between two snapshots of this mode, by kind: the largest changes of each first.

    An operator that lost as many calls with some operands as it got with others counts as other shapes.
    """
    only_a, only_b = Counter(a.totals), Counter(b.totals)
    gone, new = only_a - only_b, only_b - only_a
    found: list[Difference] = []
    by_name: dict[str, list[str]] = {}
    for line in new:
        by_name.setdefault(_name(line), []).append(line)
    for line, count in sorted(gone.items()):
        partner = next((other for other in by_name.get(_name(line), ()) if new[other] == count), None)
        if partner is not None and _kind(line) == "operators":
            by_name[_name(line)].remove(partner)
            del new[partner]
            found.append(Difference(kind="shapes", name=f"{line}  =>  {partner}", a=count, b=count))
        else:
            found.append(Difference(kind=_kind(line), name=line, a=a.totals[line], b=b.totals.get(line, 0)))
    found += [
        Difference(kind=_kind(line), name=line, a=a.totals.get(line, 0), b=b.totals[line]) for line in sorted(new)
    ]
    # A line of which both have some came once, from the side that has more.
    for name in ("memory_peak_bytes", "memory_segments", "memory_segment_bytes"):
        left, right = (int(one.facts.get(name, "0") or 0) for one in (a, b))
        if left != right:
            found.append(Difference(kind="memory", name=name, a=left, b=right))
    return tuple(sorted(found, key=lambda one: (_ORDER.index(one.kind), -abs(one.b - one.a), one.name)))


_ORDER: Final[Sequence[Kind]] = ("operators", "shapes", "collectives", "copies", "waits", "memory")


def _name(line: str) -> str:
    return line.partition("(")[0]


def _kind(line: str) -> Kind:
    if line.startswith("Hccl"):
        return "collectives"
    return "copies" if line.startswith("copy.") else "waits" if line.startswith("wait.") else "operators"
