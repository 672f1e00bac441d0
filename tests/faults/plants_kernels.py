"""Faults of the kernels: what runs on the device, and how well."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from tests.faults.machine import HBM_BYTES_PER_NS, PEAK_FLOPS, Begin, Instruction, Job, Kernel, Op
from tests.faults.model import HEADS, HIDDEN, matmul, vector
from tests.faults.planting import Plant, Strength, added, is_product, stretched, vector_of
from tests.faults.plants_host import compiling


def operand_bound(job: Job, target: int, strength: Strength) -> None:
    stretched(job, target, is_product,
               lambda k, f: k.longer(f, mac=0.9 / f, mte2=0.97, mte1=0.3, fixpipe=0.1), 2.0)  # fmt: skip


def idle_pipes_cube(job: Job, target: int, strength: Strength) -> None:
    stretched(job, target, is_product,
               lambda k, f: k.longer(f, mac=0.9 / f, mte2=0.78 / f, mte1=0.55 / f, fixpipe=0.22 / f), 2.0)  # fmt: skip


def tail_blocks(job: Job, target: int, strength: Strength) -> None:
    """21 blocks on 20 cores: two waves, the second with one block."""
    stretched(job, target, is_product, lambda k, f: k.longer(f, blocks=21, cube=k.cube / f), 40 / 21)


def on_ai_cpu(op_type: str, dtype: str) -> Plant:
    return added(
        lambda dur: (
            Kernel(op_type=op_type, core="AI_CPU", dur_ns=dur, name=f"aclnn{op_type}_{op_type}", dtype=dtype,
                   inputs=("2048,64", "2048,64"), outputs=("2048,64",)),
        ),
        f"aten::{op_type.lower()}", count=8,
    )  # fmt: skip


def trans_data(job: Job, target: int, strength: Strength) -> None:
    added(
        lambda dur: (
            vector_of("TransData", dur // 2, in_format="ND", out_format="FRACTAL_NZ"),
            vector_of("TransData", dur // 2, in_format="FRACTAL_NZ", out_format="ND"),
        ),
        "npu::npu_format_cast", count=12,
    )(job, target, strength)  # fmt: skip


def full_fp32(job: Job, target: int, strength: Strength) -> None:
    stretched(job, target, is_product, lambda k, f: k.longer(f, dtype="FLOAT"), 4.0)


SCORE_NS: Final = 7 * HEADS * 2 / (HBM_BYTES_PER_NS * 0.58)
"""Time per S x S of the vector kernels on the scores: scale 2, mask 3 and softmax 2 tensors of all heads."""
PRODUCT_NS: Final = 2 * 2 * HIDDEN / (PEAK_FLOPS * 0.5) * 1e9
"""Time per S x S of the two products."""
FUSED_NS: Final = 2 * HIDDEN / (PEAK_FLOPS * 0.84 * 0.75) * 1e9 * 2 / 2
"""Time per S x S of the fused operator, which skips half of the blocks."""


def _length(job: Job, target: int) -> int:
    """Sequence length at which unfused attention costs the target more than fused."""
    layers = sum(
        any(k.op_type == "FlashAttentionScore" for k in item.kernels)
        for item in job.programs[0][0]
        if isinstance(item, Op)
    )
    square: float = target / layers / (SCORE_NS + PRODUCT_NS - FUSED_NS)
    return round(math.sqrt(square))


def unfused_attention(job: Job, target: int, strength: Strength) -> None:
    """The scores go through memory: product, scale, mask, softmax, product instead of the fused operator."""
    length = _length(job, target)
    square = length * length
    shape = (HEADS, length, length)
    product = matmul(64, 64, 64).longer(
        1.0,
        op_type="BatchMatMulV2",
        name="aclnnBatchMatMul_BatchMatMulV2_BatchMatMulV2",
        dur_ns=round(PRODUCT_NS * square / 2),
        inputs=(f"{HEADS},{length},128", f"{HEADS},128,{length}"),
        outputs=(f"{HEADS},{length},{length}",),
        mac=0.55,
        mte2=0.85,
    )

    def change(op: Op) -> Op | list[Instruction]:
        if not any(k.op_type == "FlashAttentionScore" for k in op.kernels):
            return op
        kernels = [product]
        for op_type, reads in (("Muls", 1), ("Add", 2), ("SoftmaxV2", 1)):
            kernels.append(vector(op_type, shape, reads=reads, name=f"aclnn{op_type}_{op_type}"))
        kernels.append(product)
        return [Op(name=f"aten::{k.op_type.lower()}", kernels=(k,), tag="fwd", layer=op.layer) for k in kernels]

    job.map_ops(change)


def fused_attention(job: Job, target: int, strength: Strength) -> None:
    """The fused operator at the same length."""
    dur = round(FUSED_NS * _length(job, target) ** 2)

    def change(op: Op) -> Op:
        if not any(k.op_type == "FlashAttentionScore" for k in op.kernels):
            return op
        return replace(op, kernels=tuple(k.longer(1.0, dur_ns=dur) for k in op.kernels))

    job.map_ops(change)


def _moving(op_type: str, dur: int, rows: int, width: int, passes: int) -> Kernel:
    """A vector kernel that reads and writes `passes` bf16 tensors of (rows, width) in all: one is two halves."""
    whole, half = f"{rows},{width}", f"{rows},{width // 2}"
    inputs, outputs = ((whole,) * (passes - 1), (whole,)) if passes > 1 else ((half,), (half,))
    return vector_of(op_type, dur, inputs=inputs, outputs=outputs)


def _passes(
    sequence: tuple[tuple[str, int], ...], fused_passes: int, replaced: str, width: int = HIDDEN
) -> tuple[Plant, Plant]:
    """Small kernels in place of a fused one, and the twin that keeps it.

    All are bound by memory: a kernel takes as long as the tensors that it reads and writes (`sequence` says how many),
    the fused one only reads its inputs and writes its output.

    Args:
        sequence: op types with the tensors that each moves.
        fused_passes: tensors that the fused kernel moves.
        replaced: op type of the fused kernel.
        width: last axis of the tensors.
    """
    whole = sum(passes for _, passes in sequence)

    def planted(job: Job, target: int, *, is_fused: bool) -> None:
        count = sum(
            any(k.op_type == replaced for k in item.kernels) for item in job.programs[0][0] if isinstance(item, Op)
        )
        unit = target / count / (whole - fused_passes)

        def change(op: Op) -> Op | list[Instruction]:
            if not any(k.op_type == replaced for k in op.kernels):
                return op
            if is_fused:
                kernel = op.kernels[0].longer(1.0, dur_ns=round(unit * fused_passes))
                return replace(op, kernels=(kernel,))
            rows = max(64, round(unit * HBM_BYTES_PER_NS * 0.58 / (2 * width)))
            return [
                Op(
                    name=f"aten::{t.lower()}",
                    kernels=(_moving(t, round(unit * passes), rows, width, passes),),
                    tag="fwd",
                    layer=op.layer,
                )
                for t, passes in sequence
            ]

        job.map_ops(change)

    return (
        lambda job, target, strength: planted(job, target, is_fused=False),
        lambda job, target, strength: planted(job, target, is_fused=True),
    )


RMS: Final = _passes((("Pows", 2), ("ReduceMean", 1), ("Add", 1), ("Rsqrt", 1), ("Mul", 2), ("Mul", 2)), 2, "RmsNorm")
ROTARY: Final = _passes(
    (("Mul", 2), ("Slice", 1), ("Neg", 1), ("ConcatD", 2), ("Mul", 2), ("Add", 3)), 2, "RotaryMul", HIDDEN // HEADS
)
SWIGLU: Final = _passes((("Swish", 2), ("Mul", 3)), 3, "SwiGlu")


def loop_optimizer(job: Job, target: int, strength: Strength) -> None:
    """One set of kernels per parameter instead of a fused update."""
    types = ("Mul", "Add", "Mul", "Addcmul", "Sqrt", "Addcdiv")
    count = 20
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            made: list[Instruction] = []
            for item in step:
                if isinstance(item, Op) and item.tag == "opt":
                    continue
                if isinstance(item, Begin):
                    whole = target + 480_000
                    made.append(Begin(name="Optimizer.step#AdamW.step"))
                    made += [
                        Op(name=f"aten::{t.lower()}_", host_ns=5_000, queue_ns=3_000, tag="opt",
                           kernels=(vector_of(t, whole // (count * len(types))),))
                        for _ in range(count) for t in types
                    ]  # fmt: skip
                else:
                    made.append(item)
            steps[number] = made


def _attention_of(job: Job, target: int, saved: float, *, is_twin: bool, **changes: object) -> None:
    """Attention kernels of a length of which `saved` can go, together the target; the twin has the rest."""
    flash = frozenset({"FlashAttentionScore", "FlashAttentionScoreGrad"})
    ops = [item for item in job.programs[0][0] if isinstance(item, Op)]
    dur = target / saved / sum(k.op_type in flash for op in ops for k in op.kernels)

    def change(op: Op) -> Op:
        return replace(
            op,
            kernels=tuple(
                k.longer(1.0, dur_ns=round(dur * (1 - saved)))
                if k.op_type in flash and is_twin
                else k.longer(1.0, **{"dur_ns": round(dur), **changes})
                if k.op_type in flash
                else k
                for k in op.kernels
            ),
        )

    job.map_ops(change)


PADDED_HEAD: Final = 72
"""A head size that the kernel pads to 128."""


def padded_attention(job: Job, target: int, strength: Strength) -> None:
    """Attention with a head size that is padded: the cube multiplies zeros."""
    heads = f"1,{HEADS},2048,{PADDED_HEAD}"
    _attention_of(job, target, 1 - PADDED_HEAD / 128, is_twin=False, inputs=(heads,) * 3, outputs=(heads,))


def full_attention(job: Job, target: int, strength: Strength) -> None:
    _attention_of(job, target, 1 - PADDED_HEAD / 128, is_twin=True)


def vector_attention(job: Job, target: int, strength: Strength) -> None:
    """Attention whose softmax, not its products, sets the time."""
    _attention_of(job, target, 0.55, is_twin=False, mac=0.45, vec=0.9, mte1=0.25, mte2=0.4, fixpipe=0.3)


def cube_attention(job: Job, target: int, strength: Strength) -> None:
    _attention_of(job, target, 0.55, is_twin=True)


def changing_shapes(job: Job, target: int, strength: Strength) -> None:
    """A new sequence length in every step, and a compilation for it."""
    for steps in job.programs.values():
        for number, step in enumerate(steps):
            made: list[Instruction] = []
            for item in step:
                if isinstance(item, Op):
                    kernels = tuple(k.heavier(1 + 0.02 * number).longer(1.0, dur_ns=k.dur_ns) for k in item.kernels)
                    made.append(replace(item, kernels=kernels))
                else:
                    made.append(item)
            steps[number] = made
    compiling(job, target, strength)
