"""A small simulator of a training or inference job: hosts that launch, devices that compute, links that carry.

It knows nothing of the analyzers. Each rank runs a program of instructions; collectives meet at the arrival of the last
member. Times are whole nanoseconds, and equal inputs give equal jobs.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

FREQUENCY_HZ: Final = 1_800_000_000
CUBE_CORES: Final = 20
VECTOR_CORES: Final = 40
PEAK_FLOPS: Final = FREQUENCY_HZ * CUBE_CORES * 8192
"""fp16 and bf16: 16 x 16 x 16 multiply-adds per cycle and core. Source: format reference, section 5.4."""
HBM_BYTES_PER_NS: Final = 1600.0
HCCS_BYTES_PER_NS: Final = 24.0
RDMA_BYTES_PER_NS: Final = 18.0
RANKS_PER_NODE: Final = 8
LAUNCH_NS: Final = 3_000
"""From the end of a launch call to the start of the task on an idle device."""
COMPUTE_STREAM: Final = 2


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A task of the device's cores, with the counters that PipeUtilization gives."""

    op_type: str
    core: str
    dur_ns: int
    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dtype: str = "DT_BF16"
    out_dtype: str = ""
    """Type of the outputs where it is another one."""
    in_format: str = "ND"
    out_format: str = "ND"
    blocks: int = CUBE_CORES
    mix_blocks: int = 0
    hf32: str = "NO"
    state: str = "dynamic"
    mac: float = 0.0
    mte1: float = 0.0
    mte2: float = 0.0
    fixpipe: float = 0.0
    scalar: float = 0.05
    vec: float = 0.0
    mte3: float = 0.0
    cube: float = 0.0
    """Share of the cube cores that the kernel occupies over its time."""

    def heavier(self, factor: float) -> Kernel:
        """The kernel with more rows in its first tensor and its outputs, and as much longer."""

        def more(shape: str) -> str:
            first, comma, rest = shape.partition(",")
            return f"{round(int(first) * factor)}{comma}{rest}" if shape else shape

        inputs = tuple(more(s) if i == 0 or s == self.inputs[0] else s for i, s in enumerate(self.inputs))
        return self.longer(factor, inputs=inputs, outputs=tuple(map(more, self.outputs)))

    def longer(self, factor: float, **changes: object) -> Kernel:
        """The kernel at another duration."""
        return replace(self, **{"dur_ns": round(self.dur_ns * factor), **changes})  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Op:
    """A framework operator: host time on the main thread, then its kernels through the task queue."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    host_ns: int = 18_000
    queue_ns: int = 8_000
    """Time of the second stage (dequeue thread) per kernel."""
    tag: str = ""
    """What part of the program it is: fwd, bwd, opt."""
    api: str = ""
    """A CANN call of the second stage before the launch, as long as `api_ns`."""
    api_ns: int = 0
    layer: int = -1


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy between host and device; a blocking one holds the host until it is done."""

    kind: str
    size: int
    dur_ns: int
    is_blocking: bool = False
    host_ns: int = 12_000


@dataclass(frozen=True, kw_only=True)
class Sync:
    """The host waits until the device is idle, then does something else for a while that nothing records."""

    api: str = "aclrtSynchronizeStreamWithTimeout"
    owner: str = ""
    then_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Host:
    """Work of the main thread that launches nothing: kind python (not recorded), op, call (CANN) or gc."""

    kind: str
    name: str = ""
    dur_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A call of the communication library; `size` is the whole message of a rank in bytes."""

    group: str
    op: str
    size: int
    is_blocking: bool = False
    """The compute stream waits for it at once."""
    peer: int | None = None
    """Global rank of the other end of a send or receive."""
    dtype: str = "BFP16"
    packets: int = 1
    """Parts that each transfer is cut into."""
    slowdown: float = 1.0
    tag: str = ""
    """Name by which an `Await` waits for it."""
    issue_ns: int = 15_000
    """Host time of the call that issues its tasks."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """The compute stream waits for all collectives that were issued."""


@dataclass(frozen=True, kw_only=True)
class Await:
    """The compute stream waits for one collective."""

    tag: str


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Begins a range of the host (Optimizer.step)."""

    name: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Ends the innermost range."""


Instruction = Op | Copy | Sync | Host | Collective | Join | Await | Begin | End


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communicator."""

    name: str
    label: str
    ranks: tuple[int, ...]


@dataclass
class Job:
    """A whole job: programs per rank and step, and the state of machines."""

    world: int
    groups: dict[str, Group]
    programs: dict[int, list[list[Instruction]]]
    seed: int
    parallel: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    link_factor: dict[tuple[int, int], float] = field(default_factory=dict)
    """Speed of a link as a part of its usual speed."""
    frequency_hz: dict[int, int] = field(default_factory=dict)
    """Ranks whose AI Core runs slower than rated."""
    throttled_from: int = 0
    """Steps before this one run at the rated frequency."""
    host_factor: float = 1.0
    is_blocking: bool = False
    """ASCEND_LAUNCH_BLOCKING=1."""
    hidden: frozenset[int] = frozenset()
    """Ranks whose files are not there."""
    memory_base_mib: float = 21_000.0
    memory_workspace_mib: float = 0.0
    memory_gap_mib: float = 0.0
    memory_growth_mib: float = 0.0
    memory_swing_mib: dict[int, float] = field(default_factory=dict)
    """What a rank allocates and frees again in a step, where that is not the usual."""
    files: dict[str, str] = field(default_factory=dict)
    """Logs that lie beside the profiles: path and text."""
    has_gc: bool = True
    first_step: int = 12
    has_pipeline: bool = False
    rdma_stall_ns: int = 0

    def frequency_of(self, rank: int, step: int) -> int:
        """Frequency of the AI Core of a rank in the step with this place."""
        return FREQUENCY_HZ if step < self.throttled_from else self.frequency_hz.get(rank, FREQUENCY_HZ)

    def map_ops(self, change: object, ranks: tuple[int, ...] | None = None) -> None:
        """Replaces each Op by `change(op)`: an Op, or a list of instructions."""
        assert callable(change)
        for rank, steps in self.programs.items():
            if ranks is not None and rank not in ranks:
                continue
            for number, step in enumerate(steps):
                made: list[Instruction] = []
                for item in step:
                    new = change(item) if isinstance(item, Op) else item
                    made += new if isinstance(new, list) else [new]
                steps[number] = made


# ---- what was recorded -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Something on a host thread."""

    kind: str
    name: str
    start: int
    end: int
    thread: int
    connection: int = -1


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of the device."""

    kernel: Kernel | None
    name: str
    start: int
    dur: int
    stream: int
    connection: int
    host_ts: int
    copy: Copy | None = None


@dataclass(frozen=True, kw_only=True)
class SubTask:
    """A part of a collective on one plane."""

    name: str
    plane: int
    start: int
    dur: int
    src: int
    dst: int
    transport: str
    link: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective as one rank saw it."""

    name: str
    op: str
    group: Group
    start: int
    dur: int
    connection: int
    host_ts: int
    size: int
    dtype: str
    tasks: tuple[SubTask, ...]


@dataclass
class Recording:
    """All that happened on one rank."""

    rank: int
    slices: list[Slice] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """Number, start and end on the host."""

    @property
    def step_ns(self) -> float:
        """Length of a step of the host, mean."""
        return sum(end - start for _, start, end in self.steps) / max(1, len(self.steps))


@dataclass(frozen=True, kw_only=True)
class _Arrival:
    rank: int
    time: int
    item: Collective
    index: int
    key: tuple[object, ...]
    members: tuple[int, ...]


_Result = tuple[int, tuple[SubTask, ...]]
_Program = Generator[_Arrival, _Result, None]

EPOCH_NS: Final = 1_780_000_000_000_000_000


def simulate(job: Job) -> dict[int, Recording]:
    """Runs a job to its end."""
    recordings = {rank: Recording(rank=rank) for rank in job.programs}
    runs: dict[int, _Program] = {rank: _Rank(job, recordings[rank]).run() for rank in job.programs}
    waiting: dict[tuple[object, ...], dict[int, _Arrival]] = {}
    ready: list[tuple[int, _Result | None]] = [(rank, None) for rank in runs]
    rng = random.Random(job.seed * 7919 + 5)
    while ready:
        rank, result = ready.pop()
        try:
            arrival = next(runs[rank]) if result is None else runs[rank].send(result)
        except StopIteration:
            continue
        there = waiting.setdefault(arrival.key, {})
        there[rank] = arrival
        if len(there) == len(arrival.members):
            del waiting[arrival.key]
            ready += _meet(job, there, rng)
    if waiting:
        raise ValueError(f"the job hangs in {sorted(map(str, waiting))[:3]}")
    return recordings


def _link(src: int, dst: int) -> tuple[str, str, float]:
    if src // RANKS_PER_NODE == dst // RANKS_PER_NODE:
        return "SDMA", "HCCS", HCCS_BYTES_PER_NS
    return "RDMA", "ROCE", RDMA_BYTES_PER_NS


def _meet(job: Job, there: Mapping[int, _Arrival], rng: random.Random) -> list[tuple[int, _Result]]:
    """End and sub-tasks of a collective on each member: full mesh, one plane per peer.

    A transfer with a peer begins when both have arrived; allReduce has a second phase that begins when all of the first
    is done. Each plane then waits for the main plane (a local notify).
    """
    some = next(iter(there.values()))
    item = some.item
    members = some.members
    local = {rank: place for place, rank in enumerate(job.groups[item.group].ranks)}
    is_p2p = item.op in ("send", "receive")
    phases = 2 if item.op == "allReduce" else 1
    part = item.size if is_p2p else item.size // len(members)
    jitter = {pair: 1 + rng.uniform(-0.006, 0.006) for pair in ((a, b) for a in members for b in members)}

    def spent(a: int, b: int) -> int:
        speed = _link(a, b)[2] * job.link_factor.get((a, b), job.link_factor.get((b, a), 1.0))
        overhead = 4_000 * item.packets
        return (
            round(part / speed * jitter[a, b] * item.slowdown)
            + overhead
            + (job.rdma_stall_ns if _link(a, b)[0] == "RDMA" else 0)
        )

    begin = {(a, b): max(there[a].time, there[b].time) + 2_000 for a in members for b in members if a != b}
    borders = [0]
    for phase in range(phases):
        starts = {pair: at if phase == 0 else borders[-1] + 1_000 for pair, at in begin.items()}
        borders.append(max(starts[pair] + spent(*pair) for pair in starts))
    end = borders[-1] + 2_000
    results = []
    for rank, arrival in there.items():
        tasks = []
        for plane, peer in enumerate(other for other in members if other != rank):
            transport, link, _ = _link(rank, peer)
            src, dst = local[rank], local[peer]
            at = arrival.time + 500
            tasks.append(_task("Notify_Record", plane, at, 40, src, dst, transport, "INVALID_TYPE"))
            for phase in range(phases):
                move = begin[rank, peer] if phase == 0 else borders[phase] + 1_000
                wait_from = at + 60 if phase == 0 else borders[phase]
                tasks.append(
                    _task("Notify_Wait", plane, wait_from, move - wait_from, src, dst, "LOCAL", "INVALID_TYPE")
                )
                long = spent(rank, peer)
                kind = (
                    "RDMASend"
                    if transport == "RDMA"
                    else "Reduce_Inline"
                    if "educe" in item.op and not phase
                    else "Memcpy"
                )
                if item.op == "receive":
                    # The sender writes: the receiver sees its wait for the data and a copy out of the buffer.
                    kind = "Memcpy"
                for piece in range(item.packets):
                    piece_ns = long // item.packets
                    tasks.append(
                        _task(kind, plane, move + piece * piece_ns, piece_ns - 20, src, dst, transport, link,
                              part // item.packets)
                    )  # fmt: skip
                done = move + long
                if done + 200 < borders[phase + 1]:
                    tasks.append(
                        _task(
                            "Notify_Wait", plane, done, borders[phase + 1] - done, src, 4294967295, "LOCAL", "ON_CHIP"
                        )
                    )
        results.append((rank, (end, tuple(tasks))))
    return results


def _task(
    name: str, plane: int, start: int, dur: int, src: int, dst: int, transport: str, link: str, size: int = 0
) -> SubTask:
    return SubTask(
        name=name, plane=plane, start=start, dur=max(20, dur), src=src, dst=dst, transport=transport, link=link,
        size=size,
    )  # fmt: skip


class _Rank:
    """One process: main thread, second launch stage, streams of the device."""

    def __init__(self, job: Job, recording: Recording) -> None:
        self.job, self.out = job, recording
        self.rng = random.Random(job.seed * 1000 + recording.rank)
        self.now = EPOCH_NS + self.rng.randrange(50_000)
        self.queue = self.now
        self.free: dict[int, int] = {}
        self.pending = 0
        """Latest end of an issued collective."""
        self.done: dict[str, int] = {}
        self.connection = 100
        self.counts: dict[tuple[object, ...], int] = {}
        self.main = 4000 + recording.rank
        self.second = 5000 + recording.rank
        self.ranges: list[tuple[str, int]] = []
        self.step = 0

    def run(self) -> _Program:
        for number, program in enumerate(self.job.programs[self.out.rank]):
            self.step = number
            start = self.now
            for item in program:
                if isinstance(item, Collective):
                    yield from self.collective(item)
                else:
                    self.do(item)
            self.out.steps.append((self.job.first_step + number, start, self.now))
            self.now += 5_000

    def host(self, ns: int) -> int:
        return max(500, round(ns * self.job.host_factor * (1 + self.rng.uniform(-0.1, 0.1))))

    def slice(self, kind: str, name: str, start: int, end: int, thread: int, connection: int = -1) -> None:
        self.out.slices.append(Slice(kind=kind, name=name, start=start, end=end, thread=thread, connection=connection))

    def do(self, item: Instruction) -> None:
        if isinstance(item, Op):
            self.op(item)
        elif isinstance(item, Copy):
            self.copy(item)
        elif isinstance(item, Sync):
            self.sync(item)
        elif isinstance(item, Host):
            begin = self.now
            self.now += item.dur_ns
            if item.kind != "python":
                self.slice(item.kind, item.name, begin, self.now, self.main)
        elif isinstance(item, Join):
            self.free[COMPUTE_STREAM] = max(self.free.get(COMPUTE_STREAM, 0), self.pending)
        elif isinstance(item, Await):
            self.free[COMPUTE_STREAM] = max(self.free.get(COMPUTE_STREAM, 0), self.done.pop(item.tag))
        elif isinstance(item, Begin):
            self.ranges.append((item.name, self.now))
        elif isinstance(item, End):
            name, begin = self.ranges.pop()
            self.slice("op", name, begin, self.now, self.main)

    def op(self, item: Op) -> None:
        begin = self.now
        end = begin + self.host(item.host_ns)
        self.now = end
        if not item.kernels and not item.api_ns:
            self.slice("op", item.name, begin, end, self.main)
            return
        if self.job.is_blocking:
            at = begin + 2_000
            thread = self.main
        else:
            self.connection += 1
            self.slice("enqueue", f"Enqueue@{item.name}", end - 1_500, end - 500, self.main, self.connection)
            at = max(self.queue, end - 400) + 500
            thread = self.second
        opened = at
        queue_id = self.connection
        if item.api_ns:
            self.slice("call", item.api, at + 200, at + 200 + item.api_ns, thread)
            at += 400 + item.api_ns
        for kernel in item.kernels:
            self.connection += 1
            launch_end = at + self.host(item.queue_ns)
            self.slice("call", "Node@launch", at, launch_end, thread, self.connection)
            start = max(launch_end + LAUNCH_NS, self.free.get(COMPUTE_STREAM, 0) + 20)
            factor = FREQUENCY_HZ / self.job.frequency_of(self.out.rank, self.step)
            # What a core computes scales with its clock, what memory delivers does not.
            stretch = factor if kernel.mac else 1.0
            dur = max(900, round(kernel.dur_ns * stretch * (1 + self.rng.uniform(-0.004, 0.004))))
            self.out.tasks.append(
                Task(
                    kernel=kernel, name=kernel.name or f"aclnn{kernel.op_type}_{kernel.op_type}AiCore_{kernel.op_type}",
                    start=start, dur=dur, stream=COMPUTE_STREAM, connection=self.connection, host_ts=begin,
                )
            )  # fmt: skip
            self.free[COMPUTE_STREAM] = start + dur
            at = launch_end + 300
            if self.job.is_blocking:
                done = start + dur + 2_000
                self.slice("call", "AscendCL@aclrtSynchronizeStream", at, done, thread)
                at = done + 300
        if self.job.is_blocking:
            self.now = max(end, at)
        else:
            self.queue = at
            self.slice("dequeue", f"Dequeue@{item.name}", opened, at, thread, queue_id)
        self.slice("op", item.name, begin, self.now, self.main)

    def copy(self, item: Copy) -> None:
        begin = self.now
        self.connection += 1
        direction = "host_to_device" if item.kind == "H2D" else "device_to_host"
        api = "aclrtMemcpy" if item.is_blocking else "aclrtMemcpyAsync"
        # A blocking copy waits until the second stage has launched what was queued before.
        called = max(begin + self.host(item.host_ns), self.queue + 200 if item.is_blocking else 0)
        start = max(called + 3_000 + LAUNCH_NS, self.free.get(COMPUTE_STREAM, 0) + 20)
        end = start + item.dur_ns
        self.out.tasks.append(
            Task(
                kernel=None, name="MEMCPY_ASYNC", start=start, dur=item.dur_ns, stream=COMPUTE_STREAM,
                connection=self.connection, host_ts=begin, copy=item,
            )
        )  # fmt: skip
        self.free[COMPUTE_STREAM] = end
        self.now = end + 2_000 if item.is_blocking else called + 4_000
        self.slice("call", f"AscendCL@{api}", called, self.now - 500, self.main, self.connection)
        self.slice("op", f"acl_memcpy_{direction}", called - 1_000, self.now - 300, self.main)
        self.slice("op", "aten::copy_", begin, self.now, self.main)

    def sync(self, item: Sync) -> None:
        begin = self.now
        self.now += self.host(4_000)
        done = max(self.now + 1_000, self.queue, *self.free.values(), self.pending) + 2_000
        self.slice("call", f"AscendCL@{item.api}", self.now, done, self.main)
        self.now = done + 1_000
        if item.owner:
            self.slice("op", item.owner, begin, self.now, self.main)
        self.now += item.then_ns

    def collective(self, item: Collective) -> _Program:
        group = self.job.groups[item.group]
        begin = self.now
        self.now += self.host(25_000)
        self.connection += 1
        at = max(self.queue, self.now) + 500
        called = at + self.host(item.issue_ns)
        self.queue = called + 300
        self.slice("op", f"c10d::{item.op.lower()}_", begin, self.now, self.main)
        self.slice("call", f"Communication@hcom_{item.op}_", at, called, self.second, self.connection)
        stream = 10 + sorted(self.job.groups).index(item.group)
        # What it sends comes from the compute stream; a receive needs nothing and may be posted ahead.
        arrival = max(called + LAUNCH_NS, self.free.get(stream, 0) + 50)
        if item.op != "receive":
            arrival = max(arrival, self.free.get(COMPUTE_STREAM, 0) + 200)
        rank = self.out.rank
        pair: tuple[int, ...] = ()
        members: tuple[int, ...]
        if item.peer is None:
            members = group.ranks
        else:
            members = (min(rank, item.peer), max(rank, item.peer))
            pair = (item.peer, rank) if item.op == "receive" else (rank, item.peer)
        ordinal = (item.group, pair)
        number = self.counts[ordinal] = self.counts.get(ordinal, -1) + 1
        place = self.counts["index", item.group] = self.counts.get(("index", item.group), -1) + 1
        end, tasks = yield _Arrival(
            rank=rank, time=arrival, item=item, index=number, key=(item.group, pair, number), members=members
        )
        suffix = int(group_hash(group.name)) % 1000
        self.out.calls.append(
            Call(
                name=f"hcom_{item.op}__{suffix:03d}_{place}_1", op=item.op, group=group, start=arrival,
                dur=end - arrival, connection=self.connection, host_ts=begin, size=item.size, dtype=item.dtype,
                tasks=tasks,
            )
        )  # fmt: skip
        self.free[stream] = end
        self.pending = max(self.pending, end)
        if item.tag:
            self.done[item.tag] = end
        if item.is_blocking:
            self.free[COMPUTE_STREAM] = max(self.free.get(COMPUTE_STREAM, 0), end)


def group_hash(name: str) -> str:
    """The id of a communicator in communication.json. Source: format reference, section 1.3."""
    h0 = h1 = 0
    for byte in name.encode():
        h0 = (h0 * 29 + byte) & 0xFFFFFFFF
        h1 = (h1 * 131 + byte) & 0xFFFFFFFF
    return str(h0 << 32 | h1)
