"""Faults of jobs of several ranks: late ranks, communication, pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.faults.machine import Collective, Host, Instruction, Job, Join, Op, Sync
from tests.faults.planting import Strength, at_start, spread
from tests.faults.plants_host import collecting, slow_loader

LATE: Final = 2
"""Rank that is late, in jobs of four or eight."""


def late_loader(job: Job, target: int, strength: Strength) -> None:
    slow_loader(job, target, strength, (LATE,))


def late_gc(job: Job, target: int, strength: Strength) -> None:
    collecting(job, target, strength, (LATE,))


def late_python(job: Job, target: int, strength: Strength) -> None:
    at_start(job, lambda: [Host(kind="python", dur_ns=target)], (LATE,))


def late_sync(job: Job, target: int, strength: Strength) -> None:
    count = 8
    spread(job, count, lambda _: [Sync(owner="aten::_local_scalar_dense", then_ns=max(0, target // count - 45_000))],
            (LATE,))  # fmt: skip


def late_compute(job: Job, target: int, strength: Strength) -> None:
    """More work on one rank: longer sequences."""
    busy = sum(k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels)
    factor = 1 + target / busy
    job.map_ops(lambda op: replace(op, kernels=tuple(k.heavier(factor) for k in op.kernels)), (LATE,))


def slow_clock(job: Job, target: int, strength: Strength, ranks: tuple[int, ...] = (LATE,)) -> None:
    """A core clock below the rated one; what is bound by it takes longer."""
    for rank in ranks:
        busy = sum(k.dur_ns for item in job.programs[rank][0] if isinstance(item, Op) for k in item.kernels if k.mac)
        job.frequency_hz[rank] = round(1800 / (1 + target / busy)) * 1_000_000


def throttled(job: Job, target: int, strength: Strength) -> None:
    """The clock of a card falls after its first step and stays low; the target is the mean over the steps."""
    steps = len(job.programs[0])
    slow_clock(job, target * steps // (steps - 1), strength, (0,))
    job.throttled_from = 1


def hidden_late(job: Job, target: int, strength: Strength) -> None:
    late_python(job, target, strength)
    job.hidden = frozenset({LATE})


def late_first_stage(job: Job, target: int, strength: Strength) -> None:
    """A rank of the first stage begins late; its whole pipeline is late with it."""
    at_start(job, lambda: [Host(kind="python", dur_ns=target)], (0,))


def two_late(job: Job, target: int, strength: Strength) -> None:
    at_start(job, lambda: [Host(kind="python", dur_ns=target)], (2, 5))


def no_overlap(job: Job, target: int, strength: Strength) -> None:
    """Gradient buckets that the next work waits for, of a size that takes the target."""
    calls = sum(isinstance(item, Collective) for item in job.programs[0][0])
    size = round(target / calls / 2 * 24 * job.world)
    size -= size % (512 * job.world)
    _changed_calls(job, lambda call: replace(call, size=size, is_blocking=True))


def _changed_calls(job: Job, change: Callable[[Collective], Collective]) -> None:
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [change(item) if isinstance(item, Collective) else item for item in step]


def no_calls(job: Job, target: int, strength: Strength) -> None:
    """All communication hidden: the step as if there were none."""
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [item for item in step if not isinstance(item, Collective)]


def reduce_at_end(job: Job, target: int, strength: Strength) -> None:
    """All gradients in one call behind the last backward kernel."""
    size = round(target / 2 * 24 * job.world)
    size -= size % (512 * job.world)
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            made: list[Instruction] = []
            for item in step:
                if isinstance(item, Collective):
                    continue
                if isinstance(item, Join):
                    made.append(Collective(group="group_name_0", op="allReduce", size=size))
                made.append(item)
            steps[number] = made


PACKET: Final = 32 * 1024
"""Bytes of a small packet."""


def _packets(target: int) -> int:
    return max(1, round(target / (2 * 4_000 + 4_000)))


def _before_join(job: Job, added: list[Instruction]) -> None:
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [new for item in step for new in ((*added, item) if isinstance(item, Join) else (item,))]


def small_packets(job: Job, target: int, strength: Strength) -> None:
    """Gradients reduced tensor by tensor behind the backward: each call pays its start."""
    call = Collective(group="group_name_0", op="allReduce", size=PACKET * job.world)
    _before_join(job, [call] * _packets(target))


def one_packet(job: Job, target: int, strength: Strength) -> None:
    size = PACKET * job.world * _packets(target)
    _before_join(job, [Collective(group="group_name_0", op="allReduce", size=size)])


def _buckets(job: Job, target: int, *, is_aligned: bool) -> None:
    """Calls that are waited for; all but the first of a step at an odd size and half of the rate."""
    calls = sum(isinstance(item, Collective) for item in job.programs[0][0]) - 1
    size = round(target / calls / 2 * 24 * job.world)
    size -= size % (512 * job.world)
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            made: list[Instruction] = []
            seen = 0
            for item in step:
                if isinstance(item, Collective):
                    is_odd = seen > 0 and not is_aligned
                    new = replace(item, size=size, is_blocking=True)
                    made.append(replace(new, size=size + 68 * job.world, slowdown=2.0) if is_odd else new)
                    seen += 1
                else:
                    made.append(item)
            steps[number] = made


def unaligned(job: Job, target: int, strength: Strength) -> None:
    """Buffers at odd sizes: transfers run at half of their rate, and nothing hides them."""
    _buckets(job, target, is_aligned=False)


def aligned_twin(job: Job, target: int, strength: Strength) -> None:
    _buckets(job, target, is_aligned=True)


def slow_link(job: Job, target: int, strength: Strength) -> None:
    """One link of the mesh runs slower; the collectives over it are exposed by what it costs."""
    calls = [item for item in job.programs[0][0] if isinstance(item, Collective)]
    needed = sum(2 * c.size / job.world / 24 for c in calls)
    job.link_factor[1, 2] = needed / (needed + target)


def exposed_base(job: Job, target: int, strength: Strength) -> None:
    _changed_calls(job, lambda call: replace(call, is_blocking=True))


def slow_exposed_link(job: Job, target: int, strength: Strength) -> None:
    exposed_base(job, target, strength)
    slow_link(job, target, strength)


def rdma_stall(job: Job, target: int, strength: Strength) -> None:
    """Retransmissions: each transfer over RoCE takes seconds."""
    job.rdma_stall_ns = {"weak": 4_100_000_000, "medium": 4_600_000_000, "strong": 8_000_000_000}[strength]
    for steps in job.programs.values():
        for step in steps:
            first = next(place for place, item in enumerate(step) if isinstance(item, Collective))
            step[:] = [item for place, item in enumerate(step) if place == first or not isinstance(item, Collective)]


def tensor_exchanges(job: Job, target: int, strength: Strength) -> None:
    no_overlap(job, target, strength)


def fixed_algorithm(job: Job, target: int, strength: Strength) -> None:
    job.environment["HCCL_ALGO"] = "level0:NA;level1:ring"


def uneven_stage(job: Job, target: int, strength: Strength) -> None:
    """The last stage has more to compute: the other waits for it."""
    last = tuple(rank for rank in job.programs if rank >= job.world // 2)
    busy = sum(k.dur_ns for item in job.programs[last[0]][0] if isinstance(item, Op) for k in item.kernels)
    factor = 1 + target / busy
    job.map_ops(lambda op: replace(op, kernels=tuple(k.heavier(factor) for k in op.kernels)), last)


def even_stages(job: Job, target: int, strength: Strength) -> None:
    """The same work, shared evenly."""
    busy = sum(k.dur_ns for item in job.programs[job.world - 1][0] if isinstance(item, Op) for k in item.kernels)
    factor = 1 + target / busy / 2
    job.map_ops(lambda op: replace(op, kernels=tuple(k.heavier(factor) for k in op.kernels)))


def nothing(job: Job, target: int, strength: Strength) -> None:
    """No fault."""
