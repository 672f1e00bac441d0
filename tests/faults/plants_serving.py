"""Faults of inference: decoding on one card (by the simulator of jobs), and services (by their own simulator).

Rows of group V begin at shares of their own (a decode step that is busy for less than 0.7), so their strengths do too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tests.faults.machine import (
    CUBE_CORES,
    HBM_BYTES_PER_NS,
    PEAK_FLOPS,
    VECTOR_CORES,
    Copy,
    Host,
    Instruction,
    Job,
    Kernel,
    Op,
    Sync,
)
from tests.faults.model import FFN, HEADS, HIDDEN, conv, matmul, vector
from tests.faults.planting import Served, Strength
from tests.faults.service import Outcome, Service, asks, longer, serve, tables

VOCAB: Final = 32_000
LONG_TOKENS: Final = 8_000
IDLE: Final[dict[Strength, float]] = {"weak": 0.36, "medium": 0.5, "strong": 0.7}
"""Idle share of the decode steps: row V-01 begins at 0.3."""
SAMPLER: Final[dict[Strength, float]] = {"weak": 0.07, "medium": 0.15, "strong": 0.35}
Outcomes = list[Outcome]
Pair = tuple[list[Service], list[Service]]
STAGE: Final[dict[Strength, float]] = {"weak": 0.13, "medium": 0.25, "strong": 0.45}


# ---- decoding on one card --------------------------------------------------------------------------------------------


def product(rows: int, n: int, k: int, *, dtype: str = "DT_BF16") -> Kernel:
    """A product: as long as its weight takes at 0.85 of the memory rate, or its FLOPs at 0.87 of the peak."""
    width = 1 if dtype == "INT8" else 2
    read = k * n * width / (HBM_BYTES_PER_NS * 0.85)
    compute = 2 * rows * n * k / (PEAK_FLOPS * 0.87 * (2 if dtype == "INT8" else 1)) * 1e9
    dur = round(max(read, compute))
    mac = 2 * rows * n * k / (PEAK_FLOPS * (2 if dtype == "INT8" else 1)) / (dur / 1e9)
    return matmul(
        rows, n, k, name="aclnnMatmul_MatMulV2_MatMulV2", op_type="MatMulV2", dur_ns=dur, mac=mac, mte1=0.5,
        mte2=min(0.93, read / dur), cube=0.95, inputs=(f"{rows},{k}", f"{k},{n}"), outputs=(f"{rows},{n}",),
    ).longer(1.0, dtype=dtype)  # fmt: skip


def paged_attention(batch: int, context: int) -> Kernel:
    """Attention of one query per sequence over a paged cache."""
    dur = max(9_000, round(batch * context * HIDDEN * 2 * 2 / (HBM_BYTES_PER_NS * 0.7)))
    pool = f"4096,128,{HEADS},{HIDDEN // HEADS}"
    return Kernel(
        op_type="PagedAttention", core="MIX_AIC", dur_ns=dur, name="aclnnPagedAttention_PagedAttention_PagedAttention",
        inputs=(f"{batch},{HEADS},{HIDDEN // HEADS}", pool, pool), outputs=(f"{batch},{HEADS},{HIDDEN // HEADS}",),
        blocks=CUBE_CORES, mix_blocks=VECTOR_CORES, mac=0.12, mte1=0.3, mte2=0.82, vec=0.4, mte3=0.2, cube=0.8,
    )  # fmt: skip


def decode_layer(batch: int, number: int, *, dtype: str = "DT_BF16", context: int = 256) -> list[Instruction]:
    """A decoder layer with fused operators, one token per sequence."""
    x = (batch, HIDDEN)

    def op(name: str, *kernels: Kernel) -> Op:
        return Op(name=name, kernels=kernels, host_ns=5_000, queue_ns=3_000, tag="fwd", layer=number)

    return [
        op("npu::npu_add_rms_norm", vector("AddRmsNorm", x, reads=2, writes=2)),
        op("aten::matmul", product(batch, 3 * HIDDEN, HIDDEN, dtype=dtype)),
        op("npu::npu_rotary_mul", vector("RotaryMul", x, reads=2, writes=1, vec=0.55)),
        op("atb::_npu_paged_attention", paged_attention(batch, context)),
        op("aten::matmul", product(batch, HIDDEN, HIDDEN, dtype=dtype)),
        op("npu::npu_add_rms_norm", vector("AddRmsNorm", x, reads=2, writes=2)),
        op("aten::matmul", product(batch, 2 * FFN, HIDDEN, dtype=dtype)),
        op("npu::npu_swiglu", vector("SwiGlu", (batch, FFN), reads=2, writes=1, vec=0.5)),
        op("aten::matmul", product(batch, HIDDEN, FFN, dtype=dtype)),
    ]


def decoding(
    seed: int, *, batch: int = 512, layers: int = 6, steps: int = 6, dtype: str = "DT_BF16", context: int = 256
) -> Job:
    """Decoding of a language model with a batch at which its products are bound by the MAC units."""
    layers += (seed - 1) % 3
    step: list[Instruction] = [Host(kind="python", dur_ns=20_000), Copy(kind="H2D", size=batch * 8, dur_ns=2_000)]
    for number in range(layers):
        step += decode_layer(batch, number, dtype=dtype, context=context)
    step += [
        Op(name="aten::matmul", kernels=(product(batch, VOCAB, HIDDEN),), host_ns=5_000, queue_ns=3_000, tag="head"),
        Op(name="aten::argmax", host_ns=5_000, queue_ns=3_000, tag="sample",
           kernels=(vector("ArgMaxV2", (batch, VOCAB), writes=0, name="aclnnArgMax_ArgMaxV2_ArgMaxV2"),)),
        Copy(kind="D2H", size=batch * 8, dur_ns=2_000),
        Sync(owner="aten::_local_scalar_dense"),
    ]  # fmt: skip
    return Job(world=1, groups={}, programs={0: [list(step) for _ in range(steps)]}, seed=seed)


def small_batch(seed: int) -> Job:
    """Decoding of few sequences, dispatched fast: each product reads its weight for 16 tokens."""
    return decoding(seed, batch=16)


def slow_launches(job: Job, target: int, strength: Strength) -> None:
    """Each operator takes so long to dispatch that the device waits for the next one."""
    kernels = sum(k.dur_ns for item in job.programs[0][0] if isinstance(item, Op) for k in item.kernels)
    count = sum(isinstance(item, Op) for item in job.programs[0][0])
    wall = kernels / (1 - IDLE[strength])
    job.map_ops(lambda op: replace(op, host_ns=round(wall / count)))


def quantised(job: Job, target: int, strength: Strength) -> None:
    """The healthy twin of small batches: weights of half the bytes."""
    job.map_ops(
        lambda op: replace(op, kernels=tuple(_halved(k) if k.op_type == "MatMulV2" else k for k in op.kernels))
    )


def _halved(kernel: Kernel) -> Kernel:
    return kernel.longer(0.5, dtype="INT8")


def fewer_rows(job: Job, target: int, strength: Strength) -> None:
    """Nothing to change: the batch is small from the start."""


def full_sort_sampler(job: Job, target: int, strength: Strength) -> None:
    """Sampling that sorts the whole vocabulary, kernel by kernel."""
    part = SAMPLER[strength] / (1 - SAMPLER[strength])
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            kernels = sum(k.dur_ns for item in step if isinstance(item, Op) for k in item.kernels)
            spent = part * kernels
            lots = (("Sort", 0.6), ("SoftmaxV2", 0.12), ("Cumsum", 0.16), ("MaskedFill", 0.06), ("Multinomial", 0.06))
            made = [
                Op(
                    name=f"aten::{kind.lower()}", host_ns=5_000, queue_ns=3_000, tag="sample",
                    kernels=(vector(kind, (512, VOCAB), dtype="FLOAT", name=f"aclnn{kind}_{kind}_{kind}", vec=0.88,
                                    mte2=0.3, mte3=0.2)
                             .longer(1.0, dur_ns=round(spent * share)),),
                )
                for kind, share in lots
            ]  # fmt: skip
            place = next(i for i, item in enumerate(step) if isinstance(item, Op) and item.tag == "sample")
            steps[number] = [*step[:place], *made, *step[place:]]


def offline(seed: int, *, steps: int = 8, batch: int = 64) -> Job:
    """An offline model that is resident: each step is a request."""
    step: list[Instruction] = [Copy(kind="H2D", size=batch * 3 * 224 * 224, dur_ns=20_000)]
    step.append(Host(kind="call", name="AscendCL@aclmdlExecuteAsync", dur_ns=30_000))
    for _ in range(6 + seed % 3):
        step.append(Op(name="Conv2D", kernels=(conv(batch, 256, 28),), host_ns=4_000, queue_ns=2_500, tag="fwd"))
    step += [Copy(kind="D2H", size=batch * 8, dur_ns=5_000), Sync()]
    return Job(world=1, groups={}, programs={0: [list(step) for _ in range(steps)]}, seed=seed)


def loading_per_request(job: Job, target: int, strength: Strength) -> None:
    """The model is loaded and freed for each request, and memory taken for it."""
    for steps in job.programs.values():
        for step in steps:
            step[0:0] = [
                Host(kind="call", name="AscendCL@aclrtMalloc", dur_ns=target // 10),
                Host(kind="call", name="AscendCL@aclmdlLoadFromFileWithMem", dur_ns=target * 7 // 10),
            ]
            step += [Host(kind="call", name="AscendCL@aclmdlUnload", dur_ns=target * 2 // 10)]


# ---- services --------------------------------------------------------------------------------------------------------


def service_job(outcomes: Sequence[Outcome], seed: int) -> Job:
    """A job of which nothing is there but the tables of its services; several have folders of their own.

    Jobs of every other seed are written as an older release writes them.
    """
    files: dict[str, str] = {}
    for number, outcome in enumerate(outcomes):
        files |= tables(outcome, "service" if len(outcomes) == 1 else f"instance{number}", is_old=seed % 2 == 0)
    return Job(world=1, groups={}, programs={}, seed=seed, files=files)


def served(
    plant: Callable[[int, Strength], Pair], lost: Callable[[Outcomes, Outcomes], float], *, is_told_by_old: bool = True
) -> Served:
    """A fault of services as `evaluate` asks for it.

    Args:
        plant: services with the fault, and the same without.
        lost: share of what the row divides by, from both outcomes.
        is_told_by_old: older releases write what tells it (they write no stages and no DP ranks).
    """

    def made(seed: int, strength: Strength) -> tuple[Job, float]:
        faulty, healthy = ([serve(service) for service in services] for services in plant(seed, strength))
        return service_job(faulty, seed if is_told_by_old else 1), lost(faulty, healthy)

    return made


def chat(seed: int, **changes: object) -> Service:
    """A healthy service: short prompts, blocks to spare."""
    usual = Service(asks=tuple(asks(seed)), seed=seed)
    return replace(usual, **changes)  # type: ignore[arg-type]


def _relative(measure: Callable[[Outcome], int]) -> Callable[[Outcomes, Outcomes], float]:
    def lost(faulty: Outcomes, healthy: Outcomes) -> float:
        before, after = sum(map(measure, healthy)), sum(map(measure, faulty))
        return (after - before) / after

    return lost


def long_prompts(seed: int, strength: Strength) -> Pair:
    """Long prompts among short ones, prefilled in one go beside the decodes of the others."""
    every = {"weak": 24, "medium": 12, "strong": 5}[strength]
    service = chat(seed)
    return [longer(service, every, LONG_TOKENS)], [service]


def held_up(faulty: Outcomes, healthy: Outcomes) -> float:
    """What the prefills of the long prompts add to the executions, of their time."""
    added = executing = 0
    for outcome in faulty:
        prompts = [done.ask.prompt for done in outcome.requests]
        executing += outcome.executing_ns
        added += outcome.service.prefill_ns * sum(
            prompts[number] for batch in outcome.batches for number, made in batch.members
            if made == 0 and prompts[number] >= LONG_TOKENS and len(batch.members) > 1
        )  # fmt: skip
    return added / executing


def few_blocks(seed: int, strength: Strength) -> Pair:
    """A pool of blocks that is full most of the time."""
    blocks = {"weak": 58, "medium": 50, "strong": 42}[strength]
    return [chat(seed, blocks=blocks)], [chat(seed)]


def serial_tokenizer(seed: int, strength: Strength) -> Pair:
    """The tokenizer runs in the engine's loop."""
    healthy = chat(seed)
    share = STAGE[strength]
    spent = share / (1 - share) * serve(healthy).busy_ns / len(healthy.asks)
    return [chat(seed, tokenize_ns=round(spent), is_serial=True)], [chat(seed, tokenize_ns=1_000, is_serial=True)]


def slow_scheduler(seed: int, strength: Strength) -> Pair:
    """A scheduler in Python that takes long for each batch."""
    share = STAGE[strength]
    return [chat(seed, schedule_ns=round(22_000_000 * share / (1 - share)))], [chat(seed, schedule_ns=1_000)]


def slow_preprocessing(seed: int, strength: Strength) -> Pair:
    """A tokenizer in a process of its own that takes long for each request: the first token waits for it."""
    spent = {"weak": 120_000_000, "medium": 250_000_000, "strong": 600_000_000}[strength]
    return [chat(seed, tokenize_ns=spent)], [chat(seed)]


def slow_link(seed: int, strength: Strength) -> Pair:
    """KV caches travel over a slow path, behind the prefill."""
    per_token = {"weak": 25_000, "medium": 80_000, "strong": 400_000}[strength]
    return [chat(seed, transfer_ns=per_token)], [chat(seed, transfer_ns=1_500, overlap=0.9)]


def transfer_share(faulty: Outcomes, healthy: Outcomes) -> float:
    """What the transfers add to the time to the first decode."""

    def behind(outcomes: Outcomes) -> tuple[int, int]:
        late = whole = 0
        for done in (done for outcome in outcomes for done in outcome.requests):
            assert done.transfer is not None
            late += done.transfer[1] - done.prefill_end
            whole += done.transfer[1] - done.ask.arrival
        return late, whole

    (late, whole), (usual, _) = behind(faulty), behind(healthy)
    return (late - usual) / whole


def uneven_ranks(seed: int, strength: Strength) -> Pair:
    """Four DP ranks; a part of all requests sticks to the first."""
    skew = {"weak": 0.05, "medium": 0.3, "strong": 0.6}[strength]
    made = tuple(asks(seed, 240, gap_ns=18_000_000))
    return [chat(seed, asks=made, dp=4, skew=skew)], [chat(seed, asks=made, dp=4)]


def uneven_instances(seed: int, strength: Strength) -> Pair:
    """Three instances; the router sends more to the first."""
    extra = {"weak": 1.5, "medium": 2.0, "strong": 4.0}[strength]
    even = [chat(seed * 10 + number) for number in range(3)]
    return [chat(seed * 10, asks=tuple(asks(seed * 10, round(90 * extra), gap_ns=round(60_000_000 / extra)))),
            *even[1:]], even  # fmt: skip


def load_share(faulty: Outcomes, healthy: Outcomes) -> float:
    """What the fullest DP rank or instance carries beyond the mean."""
    if len(faulty) > 1:
        loads = [outcome.load_of(0) for outcome in faulty]
    else:
        loads = [faulty[0].load_of(rank) for rank in range(faulty[0].service.dp)]
    return 1 - sum(loads) / len(loads) / max(loads)


def healthy_services(count: int, **changes: object) -> Callable[[int], Job]:
    """Services without a fault, for the controls."""

    def made(seed: int) -> Job:
        return service_job([serve(chat(seed * 10 + number, **changes)) for number in range(count)], seed)

    return made


def healthy_ranks(seed: int) -> Job:
    """A service of four DP ranks with even load."""
    return service_job([serve(chat(seed, asks=tuple(asks(seed, 240, gap_ns=18_000_000)), dp=4))], seed)


LATENCY: Final = _relative(lambda outcome: outcome.latency_ns)


def spent_in(stage: str) -> Callable[[Outcomes, Outcomes], float]:
    """A stage of the engine's own loop, as a part of the time in which the engine works."""

    def lost(faulty: Outcomes, healthy: Outcomes) -> float:
        spent = sum(_stage_ns(outcome, stage) for outcome in faulty)
        return spent / sum(outcome.busy_ns for outcome in faulty)

    return lost


def _stage_ns(outcome: Outcome, stage: str) -> int:
    if stage == "schedule":
        return sum(end - start for start, end in (batch.schedule for batch in outcome.batches))
    return sum(end - start for name, start, end in outcome.spans if name == stage)
