"""Records of a virtual NPU as text, written without torch_npu: what the native library writes, line by line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RAW0 = 5_000_000_000_000
EPOCH0 = 1_780_000_000_123_456_789
"""The same moment on CLOCK_MONOTONIC_RAW and since the epoch."""
OFFSET = EPOCH0 - RAW0
MAIN, QUEUE, PID = 4711, 4712, 4700
COST = ("flops", "bytes", "cube_ns", "vector_ns", "memory_ns", "fixed_ns")


def t(dtype: int, shape: list[int], strides: list[int] | None = None, layout: int = 2) -> list[Any]:
    """A tensor argument; dtype is an aclDataType: 0 float, 1 half, 9 int64, 27 bfloat16."""
    return ["t", dtype, layout, shape, strides]


@dataclass
class RecordText:
    """A record in the making. Times are ns after the start of the record."""

    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 8
    clock: str = "wall"
    soc: str = "Ascend910B2"
    lines: list[str] = field(default_factory=list)
    seq: int = 0
    definitions: dict[tuple[str, str], int] = field(default_factory=dict)

    def put(self, *fields: object) -> None:
        """A line."""
        self.lines.append("\t".join(map(str, fields)))

    def next(self) -> int:
        """The number of the next thing that is launched."""
        self.seq += 1
        return self.seq

    def define(self, kind: str, name: str, body: dict[str, Any]) -> int:
        """Number of a distinct call; its line comes before its first use."""
        key = (name, json.dumps(body))
        if key not in self.definitions:
            self.definitions[key] = len(self.definitions)
            self.put("D", self.definitions[key], kind, name, key[1])
        return self.definitions[key]

    def kernel(
        self, name: str, args: list[Any], host: int, start: int, dur: int, *, stream: int = 3, **cost: float
    ) -> None:
        """A launch of an operator; cost: flops, cube_ns, vector_ns, memory_ns, fixed_ns."""
        parts = {part: cost.get(part, 0) for part in COST}
        number = self.define("op", name, {"args": args, "class": "any", "ns": dur, **parts})
        self.put("K", self.next(), number, stream, QUEUE, RAW0 + host, RAW0 + host + 3000, RAW0 + start,
                 RAW0 + start + dur)  # fmt: skip

    def group(self, number: int, name: str, size: int, rank: int, ranks: list[int] | None = None) -> None:
        """A communicator."""
        self.put("G", number, name, size, rank, "null" if ranks is None else json.dumps(ranks))

    def collective(
        self, name: str, count: int, host: int, arrive: int, start: int, end: int, *, comm: int = 0, index: int = 0,
        stream: int = 7, dtype: int = 11, size: int = 2, peer: int | None = None,
    ) -> None:  # fmt: skip
        """A call of HCCL; dtype is a HcclDataType, 11 bfloat16."""
        body = {"count": count, "dtype": dtype, "bytes": count * size, "op": 0, "root": None, "peer": peer}
        number = self.define("comm", f"Hccl{name}", body)
        self.put("C", self.next(), number, stream, QUEUE, *(RAW0 + time for time in (host, arrive, start, end)), comm,
                 index)  # fmt: skip

    def copy(
        self, kind: str, size: int, host: int, start: int, end: int, *, stream: int = 3, blocking: int = 0
    ) -> None:
        """A copy or a set."""
        self.put("P", self.next(), kind, size, stream, MAIN if blocking else QUEUE,
                 *(RAW0 + time for time in (host, start, end)), blocking)  # fmt: skip

    def wait(self, kind: str, begin: int, end: int) -> None:
        """A call of the main thread that waits."""
        self.put("Y", self.next(), kind, 3, MAIN, RAW0 + begin, RAW0 + end)

    def memory(self, time: int, delta: int, used: int) -> None:
        """A change of the memory in use."""
        self.put("M", RAW0 + time, delta, used, 0x7F0000000000 + time, 0)

    def profiler(self, time: int, event: str, detail: str = "") -> None:
        """A call of the profiler's interface."""
        self.put("R", RAW0 + time, event, detail)

    def write(self, folder: Path, *, is_truncated: bool = False) -> Path:
        """The record as a file of a folder."""
        head = {
            "version": 1, "data_origin": "simulated", "soc": self.soc, "device": self.rank % self.ranks_per_node,
            "world_size": self.world_size, "rank": self.rank, "ranks_per_node": self.ranks_per_node, "processes": 1,
            "pid": PID + self.rank, "clock": self.clock, "start_raw_ns": RAW0, "start_realtime_ns": EPOCH0,
            "hbm_bytes": 64 << 30, "host_launch_ns": 2000, "launch_latency_ns": 3000, "library": "none",
        }  # fmt: skip
        lines = ["\t".join(("H", name, str(value))) for name, value in head.items()] + self.lines
        if not is_truncated:
            lines.append(f"Z\t{len(lines) + 1}\t0")
        path = folder / f"rank{self.rank}.{PID + self.rank}.vnpu"
        path.write_text("".join(line + "\n" for line in lines))
        return path


BF16, F32, I64 = 27, 0, 9


def small_job(rank: int = 0, world_size: int = 8) -> RecordText:
    """Two steps: a matmul beside an all-reduce, a norm, a pool of several kernels, a copy to the host."""
    text = RecordText(rank=rank, world_size=world_size)
    text.group(0, "group_of_all", world_size, rank, list(range(world_size)))
    text.memory(10, 2 << 20, 2 << 20)
    text.profiler(500, "init", f"/somewhere/host_{PID + rank}_20260101000000000_ascend_pt")
    # Before the capture: of none of its tables.
    text.kernel("aclnnInplaceOne", [t(F32, [512])], 600, 4000, 2000, vector_ns=100, memory_ns=500, fixed_ns=1500)
    text.profiler(1_000_000, "start")
    for step in range(2):
        at = 2_000_000 + step * 1_000_000
        text.kernel(
            "aclnnMatmul", [t(BF16, [4096, 4096])] * 3, at, at + 5000, 400_001,
            flops=2 * 4096**3, cube_ns=390_000, memory_ns=70_000, fixed_ns=1500,
        )  # fmt: skip
        text.collective("AllReduce", 8_194_000, at + 2000, at + 6000, at + 106_000, at + 500_007, index=step)
        text.kernel(
            "aclnnRmsNorm", [t(BF16, [4096, 4096]), t(BF16, [4096]), t(BF16, [4096, 4096]), t(F32, [4096, 1])],
            at + 4000, at + 405_001, 50_003, vector_ns=20_000, memory_ns=48_000, fixed_ns=1500,
        )  # fmt: skip
        text.memory(at + 4500, 4 << 20, (2 + 4) << 20)
        text.kernel(
            "aclnnMaxPool2dWithMask", [t(F32, [8, 64, 56, 56]), t(F32, [8, 64, 28, 28]), t(2, [8, 64, 28, 28])],
            at + 6000, at + 600_000, 10_003, vector_ns=5000, memory_ns=8000, fixed_ns=1500,
        )  # fmt: skip
        text.memory(at + 6500, -(4 << 20), 2 << 20)
        text.copy("d2h", 4, at + 8000, at + 620_000, at + 629_000)
        text.wait("stream", at + 9000, at + 630_000)
    text.profiler(4_000_000, "stop")
    text.kernel("aclnnInplaceOne", [t(F32, [512])], 4_100_000, 4_104_000, 2000)
    text.profiler(4_200_000, "finalize")
    return text
