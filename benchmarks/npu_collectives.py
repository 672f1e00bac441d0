"""Collectives of real profiles beside the virtual NPU's model of them.

A collective takes as long as on the rank that comes last: the least time over its ranks. Only those whose ranks are all
kept tell it for sure; where ranks are missing it is an upper bound.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from ascend_perf.collectors.virtual_npu._cost_native import NativeCost

JOBS: Final = (
    ("qwen-comm", "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_*_ascend_pt/*/communication.json", None),
    ("alexnet-l1", "ascend-pytorch/text/level1/rank*_ascend_pt/*/communication.json", 8),
    ("alexnet-l2", "ascend-pytorch/text/level2/rank*_ascend_pt/*/communication.json", 8),
)
"""Name, files, and ranks of the groups (None: those of the files that know the group)."""
OPS: Final = {
    "allReduce": "AllReduce", "allGather": "AllGather", "reduceScatter": "ReduceScatter",
    "batchSendRecv": "BatchSendRecv",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective: bytes as `vn_cost_collective` counts them, and the least time over the ranks that are kept."""

    job: str
    op: str
    ranks: int
    size: float
    ns: float


def read_collectives(folder: Path) -> list[Collective]:
    """Collectives that moved data over HCCS."""
    found = []
    for job, pattern, size_of_group in JOBS:
        seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for path in sorted(folder.glob(pattern)):
            for name, elapse_ms, moved in _rows(path):
                seen[name].append((elapse_ms, moved))
        for name, rows in seen.items():
            op = OPS.get(re.sub(r"hcom_(\w+?)__.*", r"\1", name), "")
            ranks, moved = size_of_group or len(rows), max(size for _, size in rows)
            if op and moved > 0 and ranks > 1:
                least = min(elapse for elapse, _ in rows)
                found.append(Collective(job=job, op=op, ranks=ranks, size=_size(op, moved, ranks), ns=least * 1e6))
    return found


def _rows(path: Path) -> Iterator[tuple[str, float, float]]:
    document = cast("dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]", json.loads(path.read_text("utf-8")))
    for kinds in document.values():
        for ops in kinds.values():
            for name, op in ops.items():
                if name.startswith("hcom_"):
                    hccs = cast("dict[str, float]", op["Communication Bandwidth Info"]["HCCS"])
                    yield name, op["Communication Time Info"]["Elapse Time(ms)"], hccs["Transit Size(MB)"] * 1e6


def _size(op: str, moved: float, ranks: int) -> float:
    """Bytes of a call from those that one rank moved over its links in all."""
    if op == "AllReduce":
        return moved * ranks / (2 * (ranks - 1))
    return moved if op == "BatchSendRecv" else moved / (ranks - 1)


def show_collectives(folder: Path, native: NativeCost) -> None:
    """Print every collective, real and modelled; the model's table must be of a chip with links."""
    for row in sorted(read_collectives(folder), key=lambda row: (row.job, row.op, row.size)):
        modelled = native.collective(row.op, row.size, row.ranks, 8).ns
        print(
            f"{row.job:12} {row.op:14} {row.ranks} ranks {row.size / 1e6:12.6f} MB  real {row.ns / 1e3:11.2f} us"
            f"  model {modelled / 1e3:11.2f} us  {modelled / row.ns:6.2f}"
        )
