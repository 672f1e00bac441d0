"""What `dtype: auto` stands for on the device of this process. A prediction asks `_spec.Target` the same."""

from __future__ import annotations

from typing import Literal, cast

from ascend_perf.workloads._spec import Target


def target_here(kind: str) -> Target:
    """The device of that kind (cpu, cuda, npu) in this process, as predictions know it."""
    return Target(kind=cast(Literal["npu", "cuda", "cpu"], kind), has_bf16=has_bf16(kind))


def has_bf16(kind: str) -> bool:
    """Whether the device multiplies bf16 natively."""
    import torch

    if kind == "cpu":
        # No public question exists. Without AVX512_BF16 or AMX, bf16 on the CPU is emulated and slower than fp32.
        questions = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        return any(question is not None and question() for question in questions)
    question = getattr(getattr(torch, kind), "is_bf16_supported", None)
    if question is None:
        return False
    try:
        return bool(question(including_emulation=False))  # a V100 says yes otherwise, and emulates it
    except TypeError:  # an older torch or torch_npu, which counts native units alone
        return bool(question())
