"""Output of hccl_test (all_reduce_test and its sisters): what collectives take by message size, as comm_bench.

The tools print neither their name nor the number of ranks: both come from a command line in the same text, or from the
name of the file; else they are unknown.

Source: format reference, section 6.4. No real output was at hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table, Text
from ascend_perf.model.trace import Check, Device, Dropped, Meta, ProfilerSettings, Source, Trace
from ascend_perf.parsers._numbers import whole
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "hccl_test"
MAX_BYTES: Final = 64 << 20
"""A text beyond this is refused. Status: assumed; real ones have a few kB."""

RATE_TOLERANCE_RATIO: Final = 0.01
"""Size / time and the printed bandwidth agree to this: times have two decimals. Status: assumed."""
MIN_CHECKED_NS: Final = 10_000
"""Shorter times are too coarse for that check. Status: assumed."""

_HEADER: Final = re.compile(r"data_size\(Bytes\):?\s*\|\s*a\w*g_time\(us\):?\s*\|\s*alg_bandwidth\(GB/s\)")
_ROW: Final = re.compile(
    r"\b(\d{1,18})\s*\|\s*(\d{1,12}(?:\.\d+)?)\s*\|\s*(\d{1,12}(?:\.\d+)?(?:[eE][+-]?\d)?)\s*\|\s*(\w+)?\s*$"
)
_TEST: Final = re.compile(
    r"(all_reduce|all_gather_?v|all_gather|reduce_scatter_?v|reduce_scatter|reduce|broadcast|scatter|alltoallvc|alltoallv"
    r"|alltoall)_test"
)
_OPS: Final = {
    "all_reduce": "allReduce", "all_gather": "allGather", "all_gather_v": "allGather", "all_gatherv": "allGather",
    "reduce_scatter": "reduceScatter",
    "reduce_scatter_v": "reduceScatter",
        "reduce_scatterv": "reduceScatter", "reduce": "reduce", "broadcast": "broadcast", "scatter": "scatter",
    "alltoall": "alltoall", "alltoallv": "alltoallv", "alltoallvc": "alltoallv",
}  # fmt: skip
_RANKS: Final = re.compile(r"(?:^|\s)-(?:n|np)\s+(\d{1,7})(?=\s|$)")
_PER_NODE: Final = re.compile(r"(?:^|\s)(?:-p|--npus)\s+(\d{1,4})(?=\s|$)")
_DTYPE: Final = re.compile(r"(?:^|\s)(?:-d|--datatype)\s+(\w{2,12})(?=\s|$)")
_ITERATIONS: Final = re.compile(r"iters is (\d{1,17})(?!\d)")
_RANK_FAILED: Final = re.compile(r"local rank_id (\d{1,7}), check result failed")
_OVERFLOW: Final = re.compile(r"calculation result overflows")


@dataclass
class _Test:
    """What is known of the test whose rows follow."""

    op: str | None = None
    ranks: int | None = None
    dtype: str | None = None
    iterations: int | None = None


@dataclass
class _Output:
    """Everything that one text says."""

    rows: list[tuple[_Test, int, int, float, str | None]] = field(default_factory=list)
    failed_ranks: set[int] = field(default_factory=set)
    overflow: bool = False
    odd: int = 0


def is_output(entry: FileEntry) -> bool:
    """Whether a file is an output of hccl_test: by its table's header."""
    head = entry.head
    if b"alg_bandwidth" not in head or b"\0" in head[:1024]:
        return False
    return bool(_HEADER.search(head.decode("utf-8", "replace")))


def find(folder: Folder) -> list[Unit]:
    """Each output of the folder is a unit of its own."""
    return [
        Unit(parser="hccl_test", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if is_output(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The trace of one output; it belongs to no rank.

    Raises:
        InputError: no row of the table can be read.
    """
    path = unit.files[0]
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{unit.label} is larger than {MAX_BYTES >> 20} MiB, which no output of hccl_test is")
    text = b"".join(files.blocks(path)).decode("utf-8", "replace")
    output = _read(text, _of_name(path))
    if not output.rows:
        raise InputError(
            f"{unit.label}: the table of hccl_test has no rows", hint="run the test again, or copy its whole output"
        )
    return [Trace({"comm_bench": _table(output)}, _meta(unit, path, output))]


def rows_of(text: str) -> list[tuple[int, int, float, str | None]]:
    """Size in bytes, time in ns, algorithm bandwidth in bytes/s and check of each row of one test's output."""
    return [(size, time_ns, rate, check) for _, size, time_ns, rate, check in _read(text, _Test()).rows]


def _of_name(path: Path) -> _Test:
    match = _TEST.search(path.name)
    return _Test(op=_OPS[match[1]]) if match else _Test()


def _read(text: str, named: _Test) -> _Output:
    output = _Output()
    test = named
    inside = False
    for line in text.splitlines():
        if _HEADER.search(line):
            inside = True
            continue
        if match := _RANK_FAILED.search(line):
            output.failed_ranks.add(int(match[1]))  # repeats the row of a rank that is not the root
            continue
        if row := _ROW.search(line):
            if inside:
                size, time, rate, check = row[1], float(row[2]), float(row[3]), row[4]
                word = None if check is None or check.upper() == "NULL" else check.lower()
                output.rows.append((test, whole(float(size)), whole(time * 1000), float(np.rint(rate * 1e9)), word))
            continue
        if inside and line.count("|") >= 3:
            output.odd += 1  # a row into which MPI mixed the output of another rank
        if match := _TEST.search(line):
            # A command line begins another test.
            dtype = _DTYPE.search(line)
            ranks = _RANKS.search(line[: match.start()])
            per_node = _PER_NODE.search(line[match.end() :])
            count = int(ranks[1]) if ranks else int(per_node[1]) if per_node and "mpirun" not in line else None
            test = _Test(op=_OPS[match[1]], ranks=count or None, dtype=dtype[1] if dtype else None)
            inside = False
        elif match := _ITERATIONS.search(line):
            test = _Test(test.op, test.ranks, test.dtype, int(match[1]))
            inside = False
        output.overflow |= bool(_OVERFLOW.search(line))
    return output


def _table(output: _Output) -> Table:
    tests = [row[0] for row in output.rows]
    return Table(
        t.COMM_BENCH,
        {
            "op": Text.of([test.op or "other" for test in tests]),
            "size_bytes": np.array([row[1] for row in output.rows], np.int64),
            "time_ns": np.array([row[2] for row in output.rows], np.int64),
            "algorithm_bytes_per_s": np.array([row[3] for row in output.rows], np.float64),
            "check": Text.of([row[4] for row in output.rows]),
            "ranks": np.array([test.ranks or NULL for test in tests], np.int64),
            "dtype": Text.of([test.dtype for test in tests]),
            "iterations": np.array([test.iterations or NULL for test in tests], np.int64),
        },
    )


def _meta(unit: Unit, path: Path, output: _Output) -> Meta:
    warnings = []
    failed = sum(row[4] == "failed" for row in output.rows)
    if failed:
        warnings.append(f"{failed} of {len(output.rows)} messages came out wrong: the results of the check failed")
    if output.failed_ranks:
        warnings.append(f"ranks whose check failed: {', '.join(map(str, sorted(output.failed_ranks)[:16]))}")
    if output.overflow:
        warnings.append("results overflowed in some tests: their values were not verified")
    if any(row[0].op is None for row in output.rows):
        warnings.append("the text does not tell which test ran: keep its command line, or name the file after it")
    dropped = (Dropped(reason="row that cannot be read", count=output.odd),) if output.odd else ()
    return Meta(
        label=unit.label,
        device=Device(vendor="Huawei", kind="npu"),
        settings=ProfilerSettings(producer=PRODUCER),
        sources=(
            Source(
                path=unit.label, format="hccl_test", rows=len(output.rows), size_bytes=path.stat().st_size,
                dropped=dropped,
            ),
        ),
        checks=_checks(output),
        warnings=tuple(warnings),
    )  # fmt: skip


def _checks(output: _Output) -> tuple[Check, ...]:
    """Bandwidth = size / time, for the largest message that was measured long enough."""
    usable = [row for row in output.rows if row[2] >= MIN_CHECKED_NS and row[3] > 0]
    if not usable:
        return ()
    _, size, time, rate, _ = max(usable, key=lambda row: row[1])
    ours = size / time
    return (
        Check(
            name="algorithm bandwidth is size over time", ours=ours, theirs=rate / 1e9, unit="GB/s",
            tolerance=RATE_TOLERANCE_RATIO * ours, where=f"message of {size} bytes",
        ),
    )  # fmt: skip


PARSER: Final = Parser(name="hccl_test", order=40, find=find, parse=parse)
