"""Faults of a mixture of experts, of synchronised batch norms and of collectives that the host issues slowly."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.faults.machine import Collective, Instruction, Job, Kernel, Op
from tests.faults.model import EXPERTS, vector
from tests.faults.planting import Strength
from tests.faults.plants_ranks import LATE

IS_GROUPED: Final = "GroupedMatmul"


def _grouped_ns(job: Job) -> int:
    return sum(
        k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels if k.op_type == IS_GROUPED
    )


def _with_load(job: Job, factor: float, ranks: tuple[int, ...]) -> None:
    def change(op: Op) -> Op:
        if not any(k.op_type == IS_GROUPED for k in op.kernels):
            return op
        return replace(op, kernels=tuple(k.heavier(factor) for k in op.kernels))

    job.map_ops(change, ranks)


def uneven_experts(job: Job, target: int, strength: Strength) -> None:
    """One rank gets more tokens; the target is what that costs against an even load."""
    more = target * job.world / (job.world - 1)
    _with_load(job, 1 + more / _grouped_ns(job), (LATE,))


def even_experts(job: Job, target: int, strength: Strength) -> None:
    """The same tokens, shared evenly."""
    more = target / (job.world - 1)
    _with_load(job, 1 + more / _grouped_ns(job), tuple(range(job.world)))


def expert_loop(job: Job, target: int, strength: Strength) -> None:
    """Each expert by a product of its own, of few tokens: short, and bound by loading its weights."""
    factor = 1 + target / _grouped_ns(job)

    def change(op: Op) -> Op | list[Instruction]:
        grouped = next((k for k in op.kernels if k.op_type == IS_GROUPED), None)
        if grouped is None:
            return op
        rows, k = map(int, grouped.inputs[0].split(","))
        n = int(grouped.outputs[0].split(",")[1])
        made: list[Instruction] = []
        for expert in range(EXPERTS):
            part = (2 * expert + 4.5) / (EXPERTS * (EXPERTS + 3.5))
            tokens = max(8, round(rows * part))
            # The product with most tokens runs as well as the grouped kernel, those with few are bound by the weights.
            share = (
                1.0
                if expert == EXPERTS - 1
                else 1 + (factor - 1) / (1 - (2 * EXPERTS + 2.5) / (EXPERTS * (EXPERTS + 3.5)))
            )
            kernel = replace(
                grouped,
                op_type="MatMulV3",
                core="AI_CORE",
                mix_blocks=0,
                name="aclnnMm_MatMulV3Common_MatMulV3",
                inputs=(f"{tokens},{k}", f"{k},{n}"),
                outputs=(f"{tokens},{n}",),
                dur_ns=round(grouped.dur_ns * part * share),
                mac=grouped.mac / share,
                mte2=min(0.94, grouped.mte2 * (0.9 + 0.1 * share)),
            )
            made.append(Op(name="aten::mm", kernels=(kernel,), tag="moe"))
        return made

    job.map_ops(change)


def exposed_exchange(job: Job, target: int, strength: Strength) -> None:
    """Larger exchanges of tokens, that nothing hides."""
    calls = [item for item in job.programs[0][0] if isinstance(item, Collective)]
    size = round(target / len(calls) * 24 * job.world)
    size -= size % (512 * job.world)
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [replace(i, size=size) if isinstance(i, Collective) else i for i in step]


def separate_permutation(job: Job, target: int, strength: Strength) -> None:
    """Sorting, gathering and scaling of tokens by kernels of their own around the experts' products."""
    places = sum(
        isinstance(item, Op) and any(k.op_type.startswith("Moe") for k in item.kernels) for item in job.programs[0][0]
    )
    types = (("Sort", 0.2), ("GatherV2", 0.3), ("IndexSelect", 0.3), ("ScatterElementsV2", 0.2))

    def kernel(op_type: str, dur: int) -> Kernel:
        rows = max(64, round(dur * 1600 * 0.58 / (4 * 4096)))
        return vector(op_type, (rows, 4096), name=f"aclnn{op_type}_{op_type}").longer(1.0, dur_ns=dur)

    def change(op: Op) -> Op | list[Instruction]:
        if not any(k.op_type.startswith("Moe") for k in op.kernels):
            return op
        added: list[Instruction] = [
            Op(name=f"aten::{t.lower()}", kernels=(kernel(t, round(target / places * part)),), tag="moe")
            for t, part in types
        ]
        return [op, *added]

    job.map_ops(change)


def batch_norms(job: Job, target: int, strength: Strength) -> None:
    """Statistics of each batch norm exchanged in the forward: many small calls that the next kernel waits for."""
    each = 2 * 4_000 + 20_000
    count = max(24, round(target / each))
    call = Collective(group="group_name_0", op="allReduce", size=2048 * job.world, is_blocking=True)
    gather = Op(
        name="aten::batch_norm_gather_stats_with_counts",
        kernels=(vector("SyncBatchNormGatherStatsWithCounts", (512, 64)),),
        host_ns=9_000,
        tag="bn",
    )
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            made: list[Instruction] = []
            is_done = False
            for item in step:
                made.append(item)
                if not is_done and isinstance(item, Op) and item.tag == "fwd":
                    made += [call, gather] * count
                    is_done = True
            steps[number] = made


def without_exchange(job: Job, target: int, strength: Strength) -> None:
    """The same batch norms with the statistics of each rank alone."""
    batch_norms(job, target, strength)
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [
                item
                for place, item in enumerate(step)
                if not (
                    isinstance(item, Collective) and isinstance(step[place + 1], Op) and _is_gather(step[place + 1])
                )
            ]


def _is_gather(item: Instruction) -> bool:
    return isinstance(item, Op) and item.tag == "bn"


def slow_issue(job: Job, target: int, strength: Strength) -> None:
    """The host takes long to issue each collective, which the device waits for."""
    calls = sum(isinstance(item, Collective) for item in job.programs[0][0])
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [
                replace(i, issue_ns=target // calls + _lead(job), is_blocking=True) if isinstance(i, Collective) else i
                for i in step
            ]


def quick_issue(job: Job, target: int, strength: Strength) -> None:
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            steps[number] = [replace(i, is_blocking=True) if isinstance(i, Collective) else i for i in step]


def _lead(job: Job) -> int:
    """How far the host runs ahead of the device at a collective, mean: that much of a slow call is hidden."""
    busy = sum(k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels)
    calls = sum(isinstance(item, Collective) for item in job.programs[0][0])
    return round((busy + 3_000_000) / calls)
