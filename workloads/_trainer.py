"""One optimizer step and what goes on from step to step: see `_training.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ascend_perf.model.finding import Metric
from ascend_perf.workloads._decoder import Decoder
from ascend_perf.workloads._distributed_optimizer import Shares
from ascend_perf.workloads._fused import Fused, FusedSettings
from ascend_perf.workloads._layout import Layout, check
from ascend_perf.workloads._loss_scale import LossScale
from ascend_perf.workloads._measured_memory import SavedTensors, local_bytes
from ascend_perf.workloads._model_shape import ModelShape, parameter_count
from ascend_perf.workloads._parallel import Parallel, parallelise
from ascend_perf.workloads._spec import Place, Program
from ascend_perf.workloads._text_data import IGNORED, Batches, Rows
from ascend_perf.workloads._training import Dtype, Training, matmul_dtype
from ascend_perf.workloads._virtual import computes_nothing

# N tokens of all rows, V vocabulary

BETAS: Final = (0.9, 0.95)
LORA_NAMES: Final = ("lora_a", "lora_b")
TORCH_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """State of a training: weights, optimizer, schedule, loss scale, place in the data.

    Args:
        dtype: of the matrix products; with fp16 the loss is scaled.
    """

    def __init__(
        self, job: Parallel, training: Training, batches: Batches, *, place: Place, fused: Fused, dtype: Dtype
    ) -> None:
        self.job, self.training, self.batches, self.place, self.fused = job, training, batches, place, fused
        self.dtype = dtype
        self.scale = LossScale(training.loss_scale, training.loss_scale_steps) if dtype == "fp16" else None
        self.trained = {name: weight for name, weight in job.names.items() if weight.requires_grad}
        replicas = job.groups["replica"]
        self.shares = None
        if training.distributed_optimizer and replicas is not None:
            self.shares = Shares(list(self.trained.values()), replicas)
        self.owned = {
            name: weight for name, weight in self.trained.items() if self.shares is None or self.shares.is_mine(weight)
        }
        self.optimizer = fused.adamw(
            decay_groups(self.owned.values(), training.weight_decay), lr=training.learning_rate_at(0), betas=BETAS,
            sharded=replicas is not None,
        )  # fmt: skip
        self.steps_done = 0
        # Kept on the device: reading them in the step would make the host wait.
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.scales: list[float] = []
        self.rates: list[float] = []
        self._memory: dict[str, int] = {}
        if place.resume is not None:
            # Imported late: torch.distributed.checkpoint takes a second to import.
            from ascend_perf.workloads import _checkpoints

            _checkpoints.load(self, place.resume)

    def step(self) -> None:
        """One optimizer step over `accumulate` micro-batches of every data rank."""
        if self._memory:
            self._step()
        else:
            with SavedTensors() as saved:
                self._step()
            self._memory["activations"] = saved.peak_bytes
        every = self.training.checkpoint_every
        if every and self.place.checkpoints is not None and self.steps_done % every == 0:
            self.save(self.place.checkpoints / f"step-{self.steps_done:06d}")

    def _step(self) -> None:
        with record_function("data::batch"):
            there = [self.batches.batch_at(self.steps_done, micro) for micro in range(self.training.accumulate)]
        with record_function("data::copy"):
            batches = [batch.to(self.place.device) for batch in there]
        scale = 1.0 if self.scale is None else self.scale.value
        self.losses.append(self.job.forward_backward(batches, loss_scale=scale).detach())
        with record_function("optimizer"):
            self._update(scale)
        self.steps_done += 1

    def _update(self, scale: float) -> None:
        rate = self.training.learning_rate_at(self.steps_done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.rates.append(rate)
        norm = self.job.clip_grad_norm_(self.training.max_grad_norm, loss_scale=scale).detach()
        self.norms.append(norm)
        # In fp32 and bf16 the host does not look at the norm: it would wait for the device.
        is_good = self.scale is None or bool(torch.isfinite(norm)) or computes_nothing(self.place.kind)
        if is_good:
            self.optimizer.step()
            if self.shares is not None:
                self.shares.exchange()
        if self.scale is not None:
            self.scales.append(scale)
            self.scale.update(is_good)
        if "gradients" not in self._memory:
            self._memory["gradients"] = sum(local_bytes(weight.grad) for weight in self.trained.values())
        self.fused.zero_grad(self.optimizer)
        if self.shares is not None:  # the optimizer knows this rank's share only
            for weight in self.trained.values():
                weight.grad = None

    def memory_bytes(self) -> dict[str, int]:
        """Bytes on this rank, each storage once: weights and optimizer now, gradients and activations of a step."""
        state = [value for kept in self.optimizer.state.values() for value in kept.values() if torch.is_tensor(value)]
        return {
            "weights": sum(map(local_bytes, self.job.names.values())),
            "gradients": self._memory.get("gradients", 0),
            "optimizer": sum(local_bytes(value) for value in state),
            "activations": self._memory.get("activations", 0),
        }

    def series(self) -> Mapping[str, Sequence[float]]:
        """Loss, norm of the gradients and learning rate of each step, in fp16 the loss scale as well."""
        made = {
            "loss": [float(loss) for loss in self.losses], "grad_norm": [float(norm) for norm in self.norms],
            "learning_rate": self.rates,
        }  # fmt: skip
        return made if self.scale is None else {**made, "loss_scale": self.scales}

    def save(self, folder: Path) -> None:
        """Write the state into a folder, on all ranks together."""
        from ascend_perf.workloads import _checkpoints

        with record_function("checkpoint"):
            _checkpoints.save(self, folder)


def decay_groups(weights: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameters for an optimizer: matrices with weight decay, norms and biases without."""
    weights = list(weights)
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_trainer(
    shape: ModelShape, training: Training, layout: Layout, operators: FusedSettings, *, place: Place, seed: int,
    rows: Rows, segments: bool, all_count: bool, adapt: Callable[[Decoder], None] | None = None,
    start_from: str | None = None,
) -> Trainer:  # fmt: skip
    """A decoder of that shape, spread over the job and ready to train.

    Args:
        rows: where the data come from.
        segments: several texts lie in a row, which must not see each other.
        all_count: every token has a target that counts.
        adapt: changes a part of the model, on the meta device, before it gets weights (LoRA).
        start_from: folder of a saved state whose weights are taken in place of drawn ones.
    """
    axes = check(
        layout, shape, world_size=place.world_size, tokens=training.tokens, accumulate=training.accumulate
    )
    torch.manual_seed(seed)
    dtype = matmul_dtype(training, place)
    fused = Fused(operators, place.kind, training=True)

    def make_part(layers: range, has_embedding: bool, has_output: bool) -> Decoder:
        part = Decoder(
            shape, fused=fused, recompute=training.recompute, layers=layers, has_embedding=has_embedding,
            has_output=has_output,
        )  # fmt: skip
        if adapt is not None:
            adapt(part)
        return part

    def loss(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        return fused.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="sum")

    job = parallelise(
        make_part, layout=layout, axes=axes, place=place, layers=shape.layers, seed=seed, loss=loss,
        weights=torch.bfloat16 if training.weights == "bf16" else torch.float32, matmul=TORCH_DTYPES[dtype],
        all_count=all_count,
    )  # fmt: skip
    if start_from is not None:
        from ascend_perf.workloads import _checkpoints

        base = {name: weight for name, weight in job.names.items() if not name.endswith(LORA_NAMES)}
        _checkpoints.load_weights(base, job.cuts, Path(start_from))
    batches = Batches(
        rows, batch=training.batch, accumulate=training.accumulate, data_rank=job.data_rank,
        data_ranks=job.data_ranks, segments=segments, pin=place.kind != "cpu",
    )  # fmt: skip
    return Trainer(job, training, batches, place=place, fused=fused, dtype=dtype)


def training_program(
    trainer: Trainer, shape: ModelShape, *, flops: int | None = None, hardware_flops: int | None = None,
    metrics: Callable[[], Sequence[Metric]] = tuple, parameters: int | None = None,
) -> Program:  # fmt: skip
    """The program of a trainer; sizes are those of the whole job, by formula where nothing else is given."""
    training, ranks = trainer.training, trainer.job.data_ranks
    return Program(
        step=trainer.step,
        item="tokens",
        items_per_step=training.tokens_per_step(ranks),
        flops_per_step=training.model_flops(shape, ranks) if flops is None else flops,
        hardware_flops_per_step=training.hardware_flops(shape, ranks) if hardware_flops is None else hardware_flops,
        dtype=trainer.dtype,
        parameters=parameter_count(shape) if parameters is None else parameters,
        value_name="loss",
        last_value=lambda: float(trainer.losses[-1]),
        series=trainer.series,
        memory_bytes=trainer.memory_bytes,
        metrics=metrics,
        tables=lambda: {"fused_operators": trainer.fused.rows()},
        save=trainer.save,
        model=trainer.job.model[0] if len(trainer.job.model) == 1 else None,
        gradient_scale=lambda: 1.0 if trainer.scale is None else trainer.scale.value,
    )
