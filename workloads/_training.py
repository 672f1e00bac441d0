"""What the workloads that train share: settings, one optimizer step, loss scaling, checkpoints, measured memory.

    zero -> [batch -> copy -> forward -> loss -> backward] x accumulate -> norm, clip -> AdamW -> learning rate

The loss of a step is the mean over all targets of all its rows, on all ranks: how the rows are spread over
micro-batches and ranks changes nothing but rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape, recomputed_flops, train_flops
from ascend_perf.workloads._spec import Place, at_least

Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A group of settings (see `_spec.Workload`): one optimizer step.

    `dtype` is the type of the matrix products (autocast over fp32 weights), or with `weights: bf16` of the weights as
    well: 16 bytes per parameter with AdamW in fp32, 8 in bf16.
    """

    tokens: int = 256
    """Of a row."""
    batch: int = 2
    """Rows of a micro-batch on each data rank."""
    accumulate: int = 2
    """Micro-batches of a step on each data rank."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    weights: Literal["fp32", "bf16"] = "fp32"
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward computes again in place of keeping it: the core of attention, or every layer."""
    distributed_optimizer: bool = False
    """Each data rank holds the optimizer's state of its part of the weights only (ZeRO stage 1)."""
    learning_rate: float = 3e-4
    learning_rate_warmup: int = 0
    """Steps in which it grows from nothing."""
    learning_rate_decay: int = 0
    """Steps after that in which it falls along a cosine to a tenth; 0: it stays."""
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    loss_scale: float = 65536.0
    """fp16: factor of the loss at the start, halved on overflow and doubled after `loss_scale_steps` good steps."""
    loss_scale_steps: int = 2000
    checkpoint_every: int = 0
    """Steps between saved states, where the run has a folder for them; 0: none but at the end."""

    def __post_init__(self) -> None:
        at_least(self, 1, "tokens", "batch", "accumulate", "loss_scale_steps")
        at_least(self, 0, "learning_rate_warmup", "learning_rate_decay", "checkpoint_every", "weight_decay")
        for name in ("learning_rate", "max_grad_norm", "loss_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if self.weights == "bf16" and self.dtype in ("fp32", "fp16"):
            raise ValueError(f"weights: bf16 cannot be multiplied in dtype: {self.dtype}")

    def check_layout(self, layout: Layout) -> None:
        """Refuse settings that no layout of the job can do together.

        Raises:
            ValueError: the distributed optimizer is wanted where FSDP shards the optimizer already.
        """
        if self.distributed_optimizer and layout.data_parallel == "fsdp":
            raise ValueError("distributed_optimizer is for data_parallel ddp; fsdp cuts the optimizer's state already")
        if self.distributed_optimizer and layout.expert_ranks > 1:
            raise ValueError("distributed_optimizer needs expert_ranks 1: data ranks hold different experts")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: linear warm-up, then a cosine down to a tenth."""
        if step < self.learning_rate_warmup:
            return self.learning_rate * (step + 1) / self.learning_rate_warmup
        if not self.learning_rate_decay:
            return self.learning_rate
        done = min(1.0, (step - self.learning_rate_warmup) / self.learning_rate_decay)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))

    def tokens_per_step(self, data_ranks: int = 1) -> int:
        """Positions that one step of the whole job computes, padding included."""
        return self.batch * self.tokens * self.accumulate * data_ranks

    def model_flops(self, shape: ModelShape, data_ranks: int = 1) -> int:
        """Model work of one step of the whole job, multiply and add counted as two.

        Per token 6 N + 6 L H (K + V) T: forward takes 2 FLOPs for each of the N matmul weights and 2 T a head for each
        of K and V, the widths of a head's key and value; backward twice as much. The causal mask and the borders of
        packed texts are not subtracted; recomputation, softmax, norms and the optimizer do not count.

        Source:
            PaLM (Chowdhery et al., 2022), appendix B.
        """
        return train_flops(shape, self.tokens) * self.batch * self.accumulate * data_ranks

    def hardware_flops(self, shape: ModelShape, data_ranks: int = 1) -> int:
        """Work of one step that is executed: model work and what backward computes again."""
        again = recomputed_flops(shape, self.tokens, self.recompute)
        return self.model_flops(shape, data_ranks) + again * self.batch * self.accumulate * data_ranks


def matmul_dtype(training: Training, place: Place) -> Dtype:
    """The type that `auto` stands for: bf16 where the device multiplies it natively, else fp32."""
    if training.weights == "bf16":
        return "bf16"
    return target_here(place.kind).auto_dtype() if training.dtype == "auto" else training.dtype
