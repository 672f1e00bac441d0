"""Programs of healthy jobs: a language model in training (one card, data parallel, pipeline) and inference.

Durations follow from shapes and the device: products from 2 M N K at a usual efficiency, vector kernels from their
bytes at a usual part of the memory rate. So a healthy job keeps its pipes busy and its device fed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tests.faults.machine import (
    CUBE_CORES,
    HBM_BYTES_PER_NS,
    PEAK_FLOPS,
    VECTOR_CORES,
    Await,
    Begin,
    Collective,
    Copy,
    End,
    Group,
    Host,
    Instruction,
    Job,
    Join,
    Kernel,
    Op,
    Sync,
)

HIDDEN: Final = 4096
FFN: Final = 11008
HEADS: Final = 32
MIB: Final = 1 << 20


def sizes(seed: int, layers: int, tokens: int) -> tuple[int, int]:
    """Layers and tokens of a job: the usual ones for seed 1, others for every other seed."""
    if seed == 1:
        return layers, tokens
    rng = random.Random(seed)
    return max(2, layers + rng.choice((-1, 0, 1, 2))), round(tokens * rng.choice((0.5, 0.75, 1.0, 1.5, 2.0)))


def matmul(m: int, n: int, k: int, *, dtype: str = "DT_BF16", **changes: object) -> Kernel:
    """A product at 0.90 of the MAC units on 0.95 of the time of all cores."""
    mac, cube = 0.90, 0.95
    rate = PEAK_FLOPS * mac * cube / (4 if dtype == "FLOAT" else 1)
    kernel = Kernel(
        op_type="MatMulV3", core="AI_CORE", dur_ns=round(2 * m * n * k / rate * 1e9),
        name="aclnnMatmul_MatMulV3Common_MatMulV3", inputs=(f"{m},{k}", f"{k},{n}"), outputs=(f"{m},{n}",),
        dtype=dtype, mac=mac, mte1=0.55, mte2=0.78, fixpipe=0.22, cube=cube,
    )  # fmt: skip
    return kernel.longer(1.0, **changes)


def vector(
    op_type: str, shape: Sequence[int], *, reads: int = 1, writes: int = 1, width: int = 2, rate: float = 0.58,
    dtype: str = "DT_BF16", name: str = "", **changes: object,
) -> Kernel:  # fmt: skip
    """A vector kernel that moves `reads + writes` tensors at a part of the memory rate."""
    count = 1
    for size in shape:
        count *= size
    text = ",".join(map(str, shape))
    kernel = Kernel(
        op_type=op_type, core="AI_VECTOR_CORE", name=name,
        dur_ns=max(2_000, round(count * width * (reads + writes) / (HBM_BYTES_PER_NS * rate))),
        inputs=(text,) * reads, outputs=(text,) * writes, dtype=dtype, blocks=VECTOR_CORES, vec=0.34, mte2=0.86,
        mte3=0.48,
    )  # fmt: skip
    return kernel.longer(1.0, **changes)


def attention(tokens: int, *, backward: bool = False, head_dim: int = HIDDEN // HEADS) -> Kernel:
    """Fused attention with a causal mask."""
    flops = 2 * 2 * tokens * tokens * HIDDEN * (2.5 if backward else 1.0) / 2
    mac, cube = 0.84, 0.75
    shape = f"1,{tokens},{HIDDEN}"
    kind = "FlashAttentionScoreGrad" if backward else "FlashAttentionScore"
    return Kernel(
        op_type=kind, core="MIX_AIC", dur_ns=round(flops / (PEAK_FLOPS * mac * cube) * 1e9),
        name=f"aclnn{kind}_{kind}_{kind}", inputs=(shape,) * 3, outputs=(shape,), blocks=CUBE_CORES,
        mix_blocks=VECTOR_CORES, mac=mac, mte1=0.5, mte2=0.55, fixpipe=0.45, vec=0.6, mte3=0.3, cube=cube,
    )  # fmt: skip


def layer(tokens: int, number: int = 0) -> list[Instruction]:
    """Forward of a decoder layer with fused operators."""
    x = (tokens, HIDDEN)

    def op(name: str, *kernels: Kernel) -> Op:
        return Op(name=name, kernels=kernels, tag="fwd", layer=number)

    return [
        op("npu::npu_rms_norm", vector("RmsNorm", x)),
        op("aten::matmul", matmul(tokens, 3 * HIDDEN, HIDDEN)),
        op("npu::npu_rotary_mul", vector("RotaryMul", x, reads=2, writes=1, vec=0.55)),
        op("npu::npu_fusion_attention", attention(tokens)),
        op("aten::matmul", matmul(tokens, HIDDEN, HIDDEN)),
        op("npu::npu_add_rms_norm", vector("AddRmsNorm", x, reads=2, writes=2)),
        op("aten::matmul", matmul(tokens, 2 * FFN, HIDDEN)),
        op("npu::npu_swiglu", vector("SwiGlu", (tokens, FFN), reads=2, writes=1, vec=0.5)),
        op("aten::matmul", matmul(tokens, HIDDEN, FFN)),
    ]


def layer_backward(tokens: int, number: int = 0) -> list[Instruction]:
    """Backward of a decoder layer: two products for each of the forward."""
    x = (tokens, HIDDEN)

    def op(name: str, *kernels: Kernel) -> Op:
        return Op(name=name, kernels=kernels, tag="bwd", layer=number)

    return [
        op("MmBackward0", matmul(tokens, FFN, HIDDEN), matmul(FFN, HIDDEN, tokens)),
        op("SwigluBackward0", vector("SwiGluGrad", (tokens, FFN), reads=3, writes=2, vec=0.5)),
        op("MmBackward0", matmul(tokens, HIDDEN, 2 * FFN), matmul(HIDDEN, 2 * FFN, tokens)),
        op("NpuRmsNormBackward0", vector("RmsNormGrad", x, reads=3, writes=1)),
        op("MmBackward0", matmul(tokens, HIDDEN, HIDDEN), matmul(HIDDEN, HIDDEN, tokens)),
        op("NpuFusionAttentionBackward0", attention(tokens, backward=True)),
        op("NpuRotaryMulBackward0", vector("RotaryMulGrad", x, reads=2, writes=1, vec=0.55)),
        op("MmBackward0", matmul(tokens, HIDDEN, 3 * HIDDEN), matmul(HIDDEN, 3 * HIDDEN, tokens)),
    ]


def optimizer() -> list[Instruction]:
    """A fused optimizer over few large buffers."""
    update = Kernel(
        op_type="ApplyAdamWV2", core="AI_VECTOR_CORE", dur_ns=240_000,
        name="aclnnApplyAdamWV2_ApplyAdamWV2_ApplyAdamWV2",
        dtype="FLOAT", blocks=VECTOR_CORES, vec=0.5, mte2=0.88, mte3=0.6,
    )  # fmt: skip
    return [
        Begin(name="Optimizer.step#NpuFusedAdamW.step"),
        *(Op(name="npu::npu_apply_adam_w", kernels=(update,), tag="opt") for _ in range(2)),
        End(),
    ]


def head() -> list[Instruction]:
    """What a step begins with: a batch that is ready, and its copy to the device."""
    return [
        Host(kind="op", name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", dur_ns=50_000),
        Copy(kind="H2D", size=16_384, dur_ns=6_000),
    ]


def logging() -> list[Instruction]:
    """The loss is read at the end of each step."""
    return [Copy(kind="D2H", size=4, dur_ns=2_000), Sync(owner="aten::_local_scalar_dense")]


def loss(tokens: int) -> list[Instruction]:
    """Head of the model and loss, forward and backward."""
    vocab = 16_384
    return [
        Op(name="aten::matmul", kernels=(matmul(tokens, vocab, HIDDEN),), tag="fwd"),
        Op(name="aten::cross_entropy_loss", kernels=(vector("CrossEntropyLoss", (tokens, vocab)),), tag="fwd"),
        Op(name="MmBackward0", kernels=(matmul(tokens, HIDDEN, vocab), matmul(HIDDEN, vocab, tokens)), tag="bwd"),
    ]


def card(seed: int, *, steps: int = 4, layers: int = 3, tokens: int = 2048) -> Job:
    """Training on one card, without any collective."""
    layers, tokens = sizes(seed, layers, tokens)
    step: list[Instruction] = [
        *head(),
        *(item for number in range(layers) for item in layer(tokens, number)),
        *loss(tokens),
        *(item for number in reversed(range(layers)) for item in layer_backward(tokens, number)),
        *optimizer(),
        *logging(),
    ]
    return Job(world=1, groups={}, programs={0: [list(step) for _ in range(steps)]}, seed=seed)


def data_parallel(
    seed: int, *, ranks: int = 4, steps: int = 4, layers: int = 3, tokens: int = 2048, is_overlapped: bool = True,
) -> Job:  # fmt: skip
    """Training with data parallelism: a gradient bucket per layer, reduced beside the rest of the backward."""
    layers, tokens = sizes(seed, layers, tokens)
    group = Group(name="group_name_0", label="dp", ranks=tuple(range(ranks)))

    def bucket(mib: int) -> Collective:
        return Collective(group=group.name, op="allReduce", size=mib * ranks * MIB, is_blocking=not is_overlapped)

    step: list[Instruction] = [
        *head(),
        *(item for number in range(layers) for item in layer(tokens, number)),
        *loss(tokens),
    ]
    for number in reversed(range(layers)):
        step += layer_backward(tokens, number)
        step.append(bucket(32 if number else 4))
    step += [Join(), *optimizer(), *logging()]
    return Job(
        world=ranks, groups={group.name: group}, seed=seed,
        programs={rank: [list(step) for _ in range(steps)] for rank in range(ranks)},
        parallel={"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "data_parallel_size": ranks},
    )  # fmt: skip


def tensor_parallel(
    seed: int, *, ranks: int = 4, steps: int = 4, layers: int = 3, tokens: int = 2048, mib: int = 1
) -> Job:
    """Training with tensor parallelism: two exchanges per layer and direction, which nothing hides.

    Args:
        seed: of the job.
        ranks: of the group.
        steps: recorded.
        layers: of the model.
        tokens: of a batch.
        mib: size of each exchange, per rank of the group.
    """
    layers, tokens = sizes(seed, layers, tokens)
    group = Group(name="group_name_0", label="tp", ranks=tuple(range(ranks)))
    exchange = Collective(group=group.name, op="allReduce", size=mib * ranks * MIB, is_blocking=True)
    step: list[Instruction] = [*head()]
    for number in range(layers):
        ops = layer(tokens, number)
        step += [*ops[:5], exchange, *ops[5:], exchange]
    step += loss(tokens)
    for number in reversed(range(layers)):
        ops = layer_backward(tokens, number)
        step += [*ops[:3], exchange, *ops[3:], exchange]
    step += [*optimizer(), *logging()]
    return Job(
        world=ranks, groups={group.name: group}, seed=seed,
        programs={rank: [list(step) for _ in range(steps)] for rank in range(ranks)},
        parallel={"tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": 1, "data_parallel_size": 1},
    )  # fmt: skip


def pipeline(
    seed: int, *, stages: int = 2, replicas: int = 2, micro: int = 14, steps: int = 3, tokens: int = 1024,
    extra_layers: dict[int, int] | None = None,
) -> Job:  # fmt: skip
    """Training with a pipeline (all forwards, then all backwards) and data parallelism over its replicas."""
    world = stages * replicas
    groups = {"group_name_0": Group(name="group_name_0", label="default_group", ranks=tuple(range(world)))}
    for stage in range(stages):
        ranks = tuple(range(stage * replicas, (stage + 1) * replicas))
        groups[f"group_name_{10 + stage}"] = Group(name=f"group_name_{10 + stage}", label="dp_cp", ranks=ranks)
    for replica in range(replicas):
        ranks = tuple(range(replica, world, replicas))
        groups[f"group_name_{40 + replica}"] = Group(name=f"group_name_{40 + replica}", label="pp", ranks=ranks)
    programs = {}
    size = tokens * HIDDEN * 2
    for rank in range(world):
        stage, replica = divmod(rank, replicas)
        layers = 1 + (extra_layers or {}).get(stage, 0)
        pipe = f"group_name_{40 + replica}"

        def receive(peer_stage: int, number: int, *, pipe: str = pipe, replica: int = replica) -> list[Instruction]:
            if not 0 <= peer_stage < stages or number >= micro:
                return []
            peer = peer_stage * replicas + replica
            tag = f"{peer_stage}/{number}"
            return [Collective(group=pipe, op="receive", size=size, peer=peer, tag=tag)]

        def send(peer_stage: int, *, pipe: str = pipe, replica: int = replica) -> list[Instruction]:
            if not 0 <= peer_stage < stages:
                return []
            return [Collective(group=pipe, op="send", size=size, peer=peer_stage * replicas + replica)]

        step: list[Instruction] = [*head()]
        for direction, build in ((1, layer), (-1, layer_backward)):
            source, target = stage - direction, stage + direction
            step += receive(source, 0)
            for number in range(micro):
                # The next input is posted ahead, so that its transfer runs beside this one's work.
                step += receive(source, number + 1)
                if 0 <= source < stages:
                    step.append(Await(tag=f"{source}/{number}"))
                for place in range(layers):
                    step += build(tokens, place)
                step += send(target)
        if replicas > 1:
            step.append(
                Collective(group=f"group_name_{10 + stage}", op="allReduce", size=4 * replicas * MIB, is_blocking=True)
            )
        step += [*optimizer(), *logging()]
        programs[rank] = [list(step) for _ in range(steps)]
    return Job(
        world=world, groups=groups, programs=programs, seed=seed, has_pipeline=True,
        parallel={
            "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": stages, "data_parallel_size": replicas
        },
    )  # fmt: skip


def conv(batch: int, channels: int, size: int, *, inner: int = 0) -> Kernel:
    """A 3 x 3 convolution with as many output as input channels."""
    inner = inner or channels
    flops = 2 * batch * size * size * channels * inner * 9
    mac, cube = 0.88, 0.9
    return Kernel(
        op_type="Conv2D", core="AI_CORE", dur_ns=round(flops / (PEAK_FLOPS * mac * cube) * 1e9),
        name="aclnnConvolution_Conv2d_Conv2D", dtype="FLOAT16",
        inputs=(f"{batch},{inner},{size},{size}", f"{channels},{inner},3,3"),
        outputs=(f"{batch},{channels},{size},{size}",), in_format="NCHW", out_format="NCHW", mac=mac, mte1=0.6,
        mte2=0.7, fixpipe=0.3, cube=cube,
    )  # fmt: skip


def images(seed: int, *, steps: int = 6, batch: int = 64) -> Job:
    """Inference of a convolutional network: each step is a batch of images that are ready."""
    stages = [conv(batch, 256, 56), conv(batch, 256, 28), conv(batch, 512, 28), conv(batch, 512, 14)]
    step: list[Instruction] = [Copy(kind="H2D", size=batch * 3 * 224 * 224, dur_ns=40_000)]
    for kernel in stages:
        for _ in range(3):
            step.append(Op(name="aten::conv2d", kernels=(kernel,), tag="fwd"))
    step += [
        Op(name="aten::adaptive_avg_pool2d", kernels=(vector("ReduceMean", (batch, 512, 14, 14)),), tag="fwd"),
        Op(
            name="aten::linear", kernels=(matmul(batch, 1024, 512, name="aclnnAddmm_MatMulCommon_MatMulV2"),), tag="fwd"
        ),
        Copy(kind="D2H", size=batch * 8, dur_ns=5_000),
        Sync(owner="aten::copy_"),
    ]
    return Job(world=1, groups={}, programs={0: [list(step) for _ in range(steps)]}, seed=seed)


def decode(seed: int, *, steps: int = 8, layers: int = 8, batch: int = 512) -> Job:
    """Decoding of a language model: short products, graph replay, so that the host is fast."""
    step: list[Instruction] = [Host(kind="python", dur_ns=20_000)]
    for number in range(layers):
        step += [
            Op(name=op.name, kernels=op.kernels, host_ns=4_000, queue_ns=2_500, tag="fwd", layer=number)
            for op in layer(batch, number)
            if isinstance(op, Op)
        ]
    step += [Copy(kind="D2H", size=batch * 4, dur_ns=2_000), Sync(owner="aten::_local_scalar_dense")]
    return Job(world=1, groups={}, programs={0: [list(step) for _ in range(steps)]}, seed=seed)


EXPERTS: Final = 8
"""Experts of a rank."""
EXPERT_FFN: Final = 2816


def grouped(tokens: int, n: int, k: int, **changes: object) -> Kernel:
    """The products of all experts of a rank in one kernel."""
    kernel = matmul(tokens, n, k).longer(
        1.0,
        op_type="GroupedMatmul",
        core="MIX_AIC",
        name="aclnnGroupedMatmulV4_GroupedMatmul_GroupedMatmul",
        inputs=(f"{tokens},{k}", f"{EXPERTS},{k},{n}"),
        outputs=(f"{tokens},{n}",),
        mix_blocks=VECTOR_CORES,
    )
    return kernel.longer(1.0, **changes)


def experts(tokens: int) -> list[Op]:
    """Forward or backward of the experts of one layer."""
    return [
        Op(name="npu::npu_grouped_matmul", kernels=(grouped(tokens, 2 * EXPERT_FFN, HIDDEN),), tag="moe"),
        Op(name="npu::npu_swiglu", kernels=(vector("SwiGlu", (tokens, EXPERT_FFN), reads=2, vec=0.5),), tag="moe"),
        Op(name="npu::npu_grouped_matmul", kernels=(grouped(tokens, HIDDEN, EXPERT_FFN),), tag="moe"),
    ]


def mixture(seed: int, *, ranks: int = 4, steps: int = 3, layers: int = 3, tokens: int = 4096, kib: int = 512) -> Job:
    """Training of a mixture of experts: tokens go to the ranks of their experts and back, twice per layer.

    Args:
        seed: of the job.
        ranks: of the expert parallel group.
        steps: recorded.
        layers: of the model.
        tokens: of a rank.
        kib: what each rank sends to each other one in an exchange.
    """
    layers, tokens = sizes(seed, layers, tokens)
    group = Group(name="group_name_0", label="ep", ranks=tuple(range(ranks)))
    exchange = Collective(group=group.name, op="alltoallv", size=kib * 1024 * ranks, is_blocking=True)

    def route(name: str) -> Op:
        return Op(name=f"npu::{name}", kernels=(vector(name, (tokens, HIDDEN // 4)),), tag="moe")

    step: list[Instruction] = [*head()]
    for number in range(layers):
        step += layer(tokens // 2, number)[:6]
        step += [route("MoeGatingTopKSoftmax"), exchange, *experts(tokens), exchange, route("MoeFinalizeRouting")]
    step += loss(tokens // 2)
    for number in reversed(range(layers)):
        step += [exchange, *experts(tokens), *experts(tokens), exchange, *layer_backward(tokens // 2, number)[3:]]
    step += [*optimizer(), *logging()]
    return Job(
        world=ranks,
        groups={group.name: group},
        seed=seed,
        programs={rank: [list(step) for _ in range(steps)] for rank in range(ranks)},
        parallel={"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "data_parallel_size": ranks},
    )
