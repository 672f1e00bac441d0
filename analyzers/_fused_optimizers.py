"""The fused counterpart of the optimizer that a trace names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from ascend_perf.model.finding import Remedy, Words
from ascend_perf.ops.fusions import document

_CLASS: Final = re.compile(r"^Optimizer\.step#(\w+)\.step")
_NPU_CALL: Final = "torch_npu.optim.NpuFusedAdamW("
_TORCH_CALL: Final = "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"


def class_of(name: str) -> str | None:
    """`SGD` of the range `Optimizer.step#SGD.step`, None when the name tells no class."""
    found = _CLASS.match(name)
    return None if found is None else found[1]


def remedies_for_class(remedies: Sequence[Remedy], optimizer: str | None) -> tuple[Remedy, ...]:
    """The remedies of row C-14 with the counterpart of the optimizer in use instead of AdamW's.

    Where there is none the remedy says so, instead of naming a class that does not exist.
    """
    if optimizer is None:
        return tuple(remedies)
    data = document("optimizers")
    npu = cast("dict[str, str]", data["npu"])
    made = []
    for remedy in remedies:
        if remedy.code.startswith(_NPU_CALL):
            made.append(_on_npu(remedy, npu.get(optimizer), optimizer))
        elif remedy.code == _TORCH_CALL and optimizer in cast("list[str]", data["torch"]):
            way = "fused" if optimizer in cast("list[str]", data["torch_fused"]) else "foreach"
            made.append(replace(remedy, code=f"torch.optim.{optimizer}(model.parameters(), lr=lr, {way}=True)"))
        else:
            made.append(remedy)
    return tuple(made)


def _on_npu(remedy: Remedy, fused: str | None, optimizer: str) -> Remedy:
    if fused is not None:
        return replace(remedy, code=f"torch_npu.optim.{fused}(model.parameters(), lr=lr)")
    names = _names()
    return Remedy(
        text=Words(
            f"torch_npu has no fused {optimizer}: use one that it has ({', '.join(names)}), if the training allows it.",
            f"torch_npu 没有融合的 {optimizer}：在训练允许时改用其支持的优化器（{'、'.join(names)}）。",
        )
    )


def _names() -> list[str]:
    return list(cast("dict[str, str]", document("optimizers")["npu"]))
