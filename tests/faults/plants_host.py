"""Faults of the host, the input and the memory."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.machine import Copy, Host, Instruction, Job, Kernel, Op, Sync
from tests.faults.model import vector
from tests.faults.planting import Plant, Strength, added, at_start, spread


def slow_dispatch(job: Job, target: int, strength: Strength) -> None:
    """Many small operators whose dispatch takes longer than their run."""
    count = 60
    op = Op(name="aten::mul", kernels=(vector("Mul", (256, 256), name="aclnnMul_MulAiCore_Mul"),),
            host_ns=target // count + 6_000, tag="small")  # fmt: skip
    # In one run behind a point at which the host had to wait, else the queue would hide it.
    for steps in job.programs.values():
        for step in steps:
            step[2:2] = [op] * count


def fast_dispatch(job: Job, target: int, strength: Strength) -> None:
    count = 60
    op = Op(name="aten::mul", kernels=(vector("Mul", (256, 256), name="aclnnMul_MulAiCore_Mul"),),
            host_ns=4_000, queue_ns=2_000, tag="small")  # fmt: skip
    for steps in job.programs.values():
        for step in steps:
            step[2:2] = [op] * count


def python_between(job: Job, target: int, strength: Strength) -> None:
    at_start(job, lambda: [Host(kind="python", dur_ns=target)])


def after_step(job: Job, target: int, strength: Strength) -> None:
    """Logging, metrics, a checkpoint: behind the last task of the step."""
    for steps in job.programs.values():
        for step in steps:
            step.append(Host(kind="python", dur_ns=target))


def syncing(owner: str, api: str = "aclrtSynchronizeStreamWithTimeout", before: tuple[Instruction, ...] = ()) -> Plant:
    def plant(job: Job, target: int, strength: Strength) -> None:
        count = 8
        spread(job, count, lambda _: [*before, Sync(owner=owner, api=api, then_ns=max(0, target // count - 45_000))])

    return plant


def to_cpu(job: Job, target: int, strength: Strength) -> None:
    """Tensors read by `.cpu()`: blocking copies to the host, which then works on them."""
    count = 8
    each = target // count
    spread(
        job, count,
        lambda _: [Copy(kind="D2H", size=64_000, dur_ns=6_000, is_blocking=True),
                   Host(kind="python", dur_ns=max(0, each - 50_000))],
    )  # fmt: skip


def launch_blocking(job: Job, target: int, strength: Strength) -> None:
    ops = sum(isinstance(item, Op) and bool(item.kernels) for item in job.programs[0][0])
    job.is_blocking = True
    job.environment["ASCEND_LAUNCH_BLOCKING"] = "1"
    job.map_ops(lambda op: replace(op, host_ns=max(2_000, target // ops - 8_000)))


def compiling(job: Job, target: int, strength: Strength) -> None:
    count = 10
    at_start(
        job, lambda: [
            Op(name=f"aten::op{index}", api="AscendCL@aclopCompileAndExecute", api_ns=target // count, host_ns=6_000,
               kernels=(vector("Add", (64, 64), name="Add"),))
            for index in range(count)
        ],
    )  # fmt: skip


def collecting(job: Job, target: int, strength: Strength, ranks: tuple[int, ...] | None = None) -> None:
    at_start(job, lambda: [Host(kind="gc", name="GC", dur_ns=target)], ranks)


def verbose_log(job: Job, target: int, strength: Strength) -> None:
    job.environment["ASCEND_GLOBAL_LOG_LEVEL"] = {"weak": "2", "medium": "1", "strong": "0"}[strength]
    ops = sum(isinstance(item, Op) for item in job.programs[0][0])
    busy = sum(k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels)
    job.map_ops(lambda op: replace(op, host_ns=(busy + target) // ops))


def slow_queue(job: Job, target: int, strength: Strength) -> None:
    """The second launch stage (dequeue thread) is the bottleneck."""
    kernels = sum(len(item.kernels) for item in job.programs[0][0] if isinstance(item, Op))
    busy = sum(k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels)
    job.map_ops(lambda op: replace(op, queue_ns=(busy + target) // kernels))


def at_the_roof(job: Job, target: int, strength: Strength) -> None:
    """Additional kernels near the memory rate, apart from each other."""

    def made(dur: int) -> tuple[Kernel, ...]:
        rows = round(dur * 1600 * 0.78 / (2 * 2 * 4096))
        kernel = vector("GatherV2", (rows, 4096), name="aclnnIndexSelect_GatherV2AiCore_GatherV2")
        return (kernel.longer(1.0, dur_ns=dur, mte2=0.93, mte3=0.8, vec=0.1),)

    added(made, "aten::index_select", count=12)(job, target, strength)


def slow_loader(job: Job, target: int, strength: Strength, ranks: tuple[int, ...] | None = None) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for rank, steps in job.programs.items():
        if ranks is None or rank in ranks:
            for step in steps:
                step[0] = Host(kind="op", name=name, dur_ns=target + 50_000)


def many_copies(job: Job, target: int, strength: Strength) -> None:
    """A batch copied tensor by tensor from pageable memory, each copy blocking."""
    count = 16
    each = target // count
    copy = Copy(
        kind="H2D", size=max(4_096, round((each - 25_000) * 2.5)), dur_ns=max(3_000, each - 22_000), is_blocking=True
    )
    at_start(job, lambda: [copy] * count)


def driver_memory(job: Job, target: int, strength: Strength) -> None:
    at_start(
        job,
        lambda: [
            Host(kind="call", name="AscendCL@aclrtFreePhysical", dur_ns=target * 2 // 5),
            Host(kind="call", name="AscendCL@aclrtMallocPhysical", dur_ns=target * 3 // 5),
        ],
    )


def fragmented(job: Job, target: int, strength: Strength) -> None:
    job.memory_gap_mib = {"weak": 8_000.0, "medium": 14_000.0, "strong": 26_000.0}[strength]


def leaking(job: Job, target: int, strength: Strength) -> None:
    job.memory_growth_mib = {"weak": 16.0, "medium": 64.0, "strong": 512.0}[strength]


def static_memory(job: Job, target: int, strength: Strength) -> None:
    """Weights, gradients and optimizer states that fill the card."""
    job.memory_base_mib = {"weak": 48_000.0, "medium": 50_500.0, "strong": 53_000.0}[strength]


def workspace(job: Job, target: int, strength: Strength) -> None:
    """Workspaces of operators, held by the second launch stage."""
    job.memory_workspace_mib = {"weak": 4_000.0, "medium": 6_000.0, "strong": 12_000.0}[strength]


def preprocess_host(job: Job, target: int, strength: Strength) -> None:
    at_start(
        job,
        lambda: [
            Host(kind="op", name="preprocess::decode", dur_ns=target * 6 // 10),
            Host(kind="op", name="preprocess::resize", dur_ns=target * 2 // 10),
            Host(kind="op", name="preprocess::normalize", dur_ns=target * 2 // 10),
        ],
    )


def preprocess_device(job: Job, target: int, strength: Strength) -> None:
    shape = (64, 3, 224, 224)
    names = (("Cast", "aten::to"), ("Mul", "aten::mul"), ("Add", "aten::add"), ("TransData", "npu::format"))
    for steps in job.programs.values():
        for step in steps:
            step[1:1] = [
                Op(name=name, tag="pre", kernels=(vector(t, shape, name=f"aclnn{t}_{t}AiCore_{t}").longer(
                    1.0, dur_ns=target // 4, in_format="NCHW"),))
                for t, name in names
            ]  # fmt: skip
