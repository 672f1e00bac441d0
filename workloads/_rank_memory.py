"""What a rank holds in a training step, by formula: components, and the moment at which most is there.

    forward: what is kept grows -> loss, the widest moment of it -> backward: gradients grow as what is kept goes
    -> optimizer: its temporary tensors beside weights, gradients and moments

Derivation and measured errors: docs/layouts.md. Nothing here imports torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from ascend_perf.workloads._fused import COMPRESSED_MASK_SIZE
from ascend_perf.workloads._job import FP32_BYTES, Job
from ascend_perf.workloads._layout import stages_of
from ascend_perf.workloads._model_shape import (
    Held,
    ends_activation_bytes,
    expert_parameters,
    has_experts,
    held_as,
    layer_activation_bytes,
    weight_copy_values,
)
from ascend_perf.workloads._rank_weights import owners, rank_weights
from ascend_perf.workloads._sharded_stages import LayerBytes, StageBytes, Unit, most_in_passes


def rank_memory(job: Job, rank: int) -> dict[str, int]:
    """Most bytes of each component on one rank: weights, gradients, optimizer, activations; with FSDP `gathered`.

    Weights, gradients and both moments of AdamW are exact sums over what the rank keeps and updates. Activations are
    those of `_model_shape` for each layer and end, for each micro-batch under way. `gathered` is what FSDP holds beside
    its shards: the weights outside the layers and of two layers, one at work and the next one, or in a pipeline all
    weights and, with several micro-batches, their gradients.
    """
    return _Moments(job, rank).components()


def step_peak_bytes(job: Job, rank: int) -> int:
    """Most bytes that tensors take at one time in a step, from the second on."""
    moments = _Moments(job, rank)
    return max(moments.passes(), moments.update())


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage of the pipeline on the rank, of one micro-batch."""

    layers: range
    is_first: bool
    is_last: bool
    kept: int
    """Activations at the end of the forward pass."""
    output: int
    """Of them, those of last norm, output layer and loss."""


class _Moments:
    """Bytes of one rank at the moments of a step that can be the peak."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.axes, self.shape = job.axes, job.shape
        self.weights = rank_weights(job.shape, job.layout, job.axes, job.axes.place(rank)[0])
        self.held = _held(job)
        self.value, self.row_tokens = job.product_bytes, job.row_tokens
        self.slope = job.weight_bytes if self.held.autocast else self.value
        """Of a value of a matrix, beside what is kept, when its gradient is made: with autocast it is turned into the
        type of the weight, when the copy of the weight is gone."""
        self.stages = [self._stage(stage) for stage in job.own_stages(rank)]

    # Components

    @cached_property
    def values(self) -> int:
        """Weights that the rank keeps."""
        return sum(self.job.held_values(self.rank, weight) for weight in self.weights)

    @cached_property
    def updated(self) -> int:
        """Weights that its optimizer updates."""
        if not self.job.training.distributed_optimizer:
            return self.values
        _, data, context, _ = self.axes.place(self.rank)
        sizes = [weight.values for weight in self.weights]
        shares = zip(sizes, owners(sizes, self.axes.replicas), strict=True)
        return sum(size for size, owner in shares if owner == data * self.axes.context + context)

    def components(self) -> dict[str, int]:
        """See `rank_memory`."""
        width = self.job.weight_bytes
        held = {
            "weights": self.values * width,
            "gradients": self.values * width,
            "optimizer": 2 * self.updated * width,
            "activations": self._most_kept(),
        }
        if self.job.is_sharded:
            held["gathered"] = self._gathered()
        return held

    def _most_kept(self) -> int:
        most = now = 0
        for action in self.job.actions(self.rank):
            now += self.stages[action.slot].kept * (1 if action.kind == "forward" else -1)
            most = max(most, now)
        return most

    def _gathered(self) -> int:
        units = self._units()
        if self.axes.pipeline > 1:
            # One micro-batch is reduced at once, layer by layer; gradients of several wait for the last.
            waiting = self.job.reduced_bytes if self.job.training.accumulate > 1 else 0
            return sum(units.values()) * (self.value + waiting)
        outside = units.pop(None, 0)
        return (outside + sum(sorted(units.values())[-2:])) * self.value

    def _units(self) -> dict[int | None, int]:
        """Values of the weights that FSDP gathers together, by layer."""
        units: dict[int | None, int] = defaultdict(int)
        for weight in self.weights:
            units[weight.layer] += weight.padded_values(weight.replicas(self.axes))
        return units

    def _stage(self, number: int) -> _Stage:
        job, held = self.job, self.held
        stages = stages_of(job.layout, self.shape.layers)
        is_first, is_last = number == 0, number == len(stages) - 1
        # Besides what one process keeps: with tensor parallelism which tokens and targets belong to this rank's part of
        # the vocabulary, a byte each.
        marks = self.row_tokens if self.axes.tensor > 1 else 0
        ends = ends_activation_bytes(self.shape, held, embedding=is_first, output=is_last) + marks * is_first
        without = ends_activation_bytes(self.shape, held, embedding=is_first, output=False) + marks * is_first
        kept = sum(map(self._kept_of, stages[number]))
        return _Stage(
            layers=stages[number], is_first=is_first, is_last=is_last, kept=kept + ends + 2 * marks * is_last,
            output=ends - without + 2 * marks * is_last,
        )  # fmt: skip

    def _kept_of(self, layer: int) -> int:
        """Activations of a layer. With context parallelism also the result of the core before it is sent back, which
        torch_npu's attention keeps beside the one by tokens in any case."""
        sent = 0
        is_kept = self.job.training.recompute == "none" and "attention" not in self.held.fused
        if self.axes.context > 1 and is_kept:
            sent = self.row_tokens * self.shape.heads * self.shape.value_head_width // self.axes.tensor * self.value
        return layer_activation_bytes(self.shape, layer, self.held) + sent

    # Moments

    @cached_property
    def always(self) -> int:
        """Weights, moments and what else stays from step to step."""
        job = self.job
        total = (self.values + 2 * self.updated) * job.weight_bytes
        if job.is_packed:
            total += self.values * job.weight_bytes  # the buffer of gradients
        elif self.is_bucketed:
            total += self._bucket_values() * job.weight_bytes
        if "attention" in job.fused:
            total += COMPRESSED_MASK_SIZE**2
        return total

    @property
    def is_bucketed(self) -> bool:
        """Whether DDP has gradients in its buckets, which it never frees."""
        return self.axes.replicas > 1 and not self.job.is_sharded

    def _bucket_values(self) -> int:
        return sum(weight.values for weight in self.weights if not weight.is_shared_out)

    def _fresh(self, stage: int) -> int:
        """Bytes of gradients that stay behind a stage's backward pass and were not there before it."""
        job = self.job
        own = [weight for weight in self.weights if weight.stage == stage]
        if job.is_packed:
            return 0
        if self.is_bucketed:
            # Without a sum over ranks (all but the last micro-batch) gradients lie outside of the buckets.
            outside = own if job.training.accumulate > 1 else [weight for weight in own if weight.is_shared_out]
            return sum(weight.values for weight in outside) * job.weight_bytes
        return sum(job.held_values(self.rank, weight) for weight in own) * job.weight_bytes

    def passes(self) -> int:
        """Most during the forward and backward passes."""
        if self.job.is_sharded and self.axes.pipeline > 1:
            stages_held = [self._sharded_stage(stage, one) for stage, one in zip(
                self.job.own_stages(self.rank), self.stages, strict=True)]  # fmt: skip
            is_narrow = self.value != self.job.reduced_bytes
            return self.always + most_in_passes(stages_held, self.job.actions(self.rank), is_narrow=is_narrow)
        stages = list(self.job.own_stages(self.rank))
        gradients = [0] * len(stages)
        most = kept = 0
        for action in self.job.actions(self.rank):
            stage = self.stages[action.slot]
            now = self.always + kept + sum(gradients)
            if action.kind == "forward":
                kept += stage.kept
                most = max(most, now + stage.kept + self._forward_extra(stage))
            else:
                most = max(most, now + self._backward_extra(stage, is_first=not gradients[action.slot]))
                kept -= stage.kept
                gradients[action.slot] = self._fresh(stages[action.slot])
                now = self.always + kept + sum(gradients)
                most = max(most, now + self._last_extra(stage))
        return most

    def _sharded_stage(self, number: int, stage: _Stage) -> StageBytes:
        """A stage as FSDP holds it in a pipeline."""
        units: dict[int | None, Unit] = defaultdict(Unit)
        for weight in self.weights:
            if weight.stage == number:
                whole = weight.padded_values(weight.replicas(self.axes))
                units[weight.layer] += Unit(
                    gathered=whole * self.value, reduced=whole * self.job.reduced_bytes,
                    shard=self.job.held_values(self.rank, weight) * self.job.weight_bytes, last=whole * self.value,
                )
        has_table = stage.is_first or stage.is_last
        layers = [
            LayerBytes(
                **asdict(units[layer]), kept=self._kept_of(layer), forward=2 * width + self._stream() if width else 0,
                backward=self._recomputed(layer) + self._layer_work(layer) - gone, matrix=self._first_matrix(),
            )
            for layer in stage.layers for width, gone in [self._gate_bytes(layer)]
        ]  # fmt: skip
        return StageBytes(
            layers=layers, ends=units[None], is_first=stage.is_first, is_last=stage.is_last, stream=self._stream(),
            kept=stage.kept - sum(layer.kept for layer in layers), output=stage.output,
            loss_forward=self._loss_forward() if stage.is_last else 0,
            loss_backward=max(self._loss_extras()) if stage.is_last else 0,
            table=self._vocabulary() * self.shape.width * self.value if has_table else 0,
        )  # fmt: skip

    def _stream(self) -> int:
        """One tensor between two layers."""
        return self.held.norm_rows * self.shape.width * self.held.residual_bytes

    def update(self) -> int:
        """Most in the optimizer, and in what is sent before and after it."""
        job, width = self.job, self.job.weight_bytes
        gradients = 0
        if not job.is_packed:
            outside = [weight for weight in self.weights if weight.is_shared_out or not self.is_bucketed]
            gradients = sum(job.held_values(self.rank, weight) for weight in outside) * width
        return self.always + gradients + max(self._optimizer_temporaries(), self._messages(), self._exchanged())

    def _messages(self) -> int:
        """Gradients that are summed in one message each: of shared-out experts, of weights whole on tensor ranks."""
        job = self.job
        partial = sum(job.held_values(self.rank, weight) for weight in self.weights if weight.is_partial)
        experts = 0
        if self.is_bucketed and self.axes.replicas > self.axes.expert:
            experts = sum(weight.values for weight in self.weights if weight.is_shared_out)
        return max(partial, experts) * job.weight_bytes

    def _optimizer_temporaries(self) -> int:
        """AdamW's root of the second moment: of all weights at once in torch's foreach form, and once more, divided, in
        torch_npu's packed one. torch's fused form has none."""
        job = self.job
        is_fused = job.operators.overrides().get("adamw", job.operators.fused) != "off"
        if job.target.kind != "npu" and is_fused:
            return 0
        times = 2 if job.is_packed else 1
        if job.target.kind == "cpu":  # one weight after the other
            return max(job.held_values(self.rank, weight) for weight in self.weights) * job.weight_bytes
        return times * self.updated * job.weight_bytes

    def _exchanged(self) -> int:
        """The distributed optimizer's message of one rank's weights, and the one before it."""
        if not self.job.training.distributed_optimizer or self.axes.replicas == 1:
            return 0
        sizes = [weight.values for weight in self.weights]
        parts: dict[int, int] = defaultdict(int)
        for size, owner in zip(sizes, owners(sizes, self.axes.replicas), strict=True):
            parts[owner] += size
        return sum(sorted(parts.values())[-2:]) * self.job.weight_bytes

    # What lives for a moment

    def _forward_extra(self, stage: _Stage) -> int:
        """Beside what is kept, at the end of a forward pass: logits, copies of weights, gathered weights."""
        copies = 0
        if self.held.autocast and self.job.training.recompute == "full":
            # Autocast's cache: one copy of each matrix until the end. Those of routed experts are made outside of it.
            copies = sum(weight_copy_values(self.shape, layer, self.held) for layer in stage.layers)
            routed = sum(has_experts(self.shape, layer) for layer in stage.layers)
            copies -= routed * (self.shape.experts // self.axes.expert) * expert_parameters(self.shape)
        gathered = self._gathered_at_work(stage)
        loss = self._loss_forward() if stage.is_last else 0
        layer = gathered.layers - stage.output
        return copies * self.value + gathered.outside + max(loss, layer)

    def _backward_extra(self, stage: _Stage, *, is_first: bool) -> int:
        """Beside what is kept and gradients that were there before, in a backward pass.

        Args:
            is_first: there were none, they grow.
        """
        gathered = self._gathered_at_work(stage)
        loss, output = self._loss_extras() if stage.is_last else (0, 0)
        # At the last layer: what belongs to the output is gone.
        work = max((self._recomputed(layer) + self._layer_work(layer) for layer in stage.layers), default=0)
        last = self._kept_of(stage.layers[-1]) if stage.layers else 0
        layer = work + gathered.layers
        if len(stage.layers) > 1 and gathered.reduced:
            # At the one before it: the gradients of the last one are on their way, its activations are gone.
            grown = gathered.shard if is_first else 0
            slopes = gathered.layers + gathered.slopes
            layer = max(layer, layer + gathered.reduced - last + grown, slopes - 2 * last + grown)
        elif gathered.reduced:
            layer = max(layer, gathered.slopes - last)
        return gathered.outside + max(loss, output, layer + gathered.table - stage.output)

    def _loss_forward(self) -> int:
        """Logits and their copies in the forward pass of the loss."""
        return self.row_tokens * self._vocabulary() * (self.value + self._logit_copies())

    def _loss_extras(self) -> tuple[int, int]:
        """Beside what is kept: in the backward pass of the loss, and in that of the output layer."""
        logits = self.row_tokens * self._vocabulary()
        table = self._vocabulary() * self.shape.width
        made, turned = (logits + table) * self.value, table * self.slope
        return logits * self._loss_slopes(), max(made, turned) - logits * FP32_BYTES  # log-softmax is gone

    def _last_extra(self, stage: _Stage) -> int:
        """At the end of a backward pass: the gradient of the embedding table; with FSDP, what it reduces last."""
        job = self.job
        if job.is_sharded:
            outside = self._units().get(None, 0)
            return outside * (self.value + job.reduced_bytes)
        if stage.is_first and (job.training.accumulate > 1 or self.is_bucketed):
            return self._vocabulary() * self.shape.width * job.weight_bytes
        return 0

    def _vocabulary(self) -> int:
        return self.shape.vocabulary // self.axes.tensor

    def _logit_copies(self) -> int:
        """Bytes of a logit beside the logit itself: in fp32, and with cut logits less the largest."""
        in_fp32 = FP32_BYTES if self.value != FP32_BYTES else 0
        return in_fp32 + (FP32_BYTES if self.axes.tensor > 1 else 0)

    def _loss_slopes(self) -> int:
        """Bytes of a logit in the loss's backward pass."""
        if self.axes.tensor > 1:
            return 2 * FP32_BYTES + (self.value if self.value != FP32_BYTES else 0)
        return FP32_BYTES if "cross_entropy" in self.job.fused else 2 * FP32_BYTES

    def _recomputed(self, layer: int) -> int:
        """Activations of a layer that full recomputation makes again, beside its input."""
        if self.job.training.recompute != "full":
            return 0
        whole = replace(self.held, recompute="none")
        return layer_activation_bytes(self.shape, layer, whole) - layer_activation_bytes(self.shape, layer, self.held)

    def _layer_work(self, layer: int) -> int:
        """Gradients inside a layer's MLP, and that of its largest matrix."""
        shape, value, t = self.shape, self.value, self.axes.tensor
        stream = self._stream()
        stream += self.row_tokens * shape.width * value if self.held.autocast else 0
        if has_experts(shape, layer):
            rows = self.held.norm_rows * shape.experts_per_token
            matrix = shape.experts // self.axes.expert * shape.expert_hidden * shape.width
            return stream + rows * (shape.width + 3 * shape.expert_hidden) * value + matrix * self.slope
        hidden = shape.hidden // t
        return stream + self.row_tokens * 3 * hidden * value + shape.width * hidden * self.slope

    def _gate_bytes(self, layer: int) -> tuple[int, int]:
        """As wide as a dense MLP: gate, as large as up, which torch_npu's operator takes in one tensor beside what the
        forward pass keeps; and its result, which is gone before the gradients of both are there."""
        if has_experts(self.shape, layer) or "swiglu" not in self.job.fused:
            return 0, 0
        width = self.row_tokens * self.shape.hidden // self.axes.tensor * self.value
        return 0 if self.job.training.recompute == "full" else width, width

    def _first_matrix(self) -> int:
        """The gradient of attention's first product."""
        shape = self.shape
        width = shape.q_rank or shape.kv_rank if shape.attention == "mla" else 0
        return shape.width * (width or shape.heads * shape.key_width // self.axes.tensor) * self.value

    def _gathered_at_work(self, stage: _Stage) -> _Gathered:
        if not self.job.is_sharded:
            return _Gathered()
        units = self._units()
        outside = units.pop(None, 0)
        largest = max(units.values(), default=0)
        table = self._vocabulary() * self.shape.width if stage.is_last else 0
        reduced = largest * self.job.reduced_bytes
        return _Gathered(
            outside=outside * self.value, layers=2 * largest * self.value, reduced=reduced,
            slopes=largest * self.value + reduced, shard=largest // self.axes.replicas * self.job.weight_bytes,
            table=table * self.value,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Gathered:
    """Bytes that FSDP holds beside its shards."""

    outside: int = 0
    """Weights outside the layers: from the forward pass to the end of the backward pass."""
    layers: int = 0
    """Weights of the layer at work and of the next."""
    reduced: int = 0
    """Whole gradients of a layer, on their way to their shards."""
    slopes: int = 0
    """The same, and those of the next layer as it made them."""
    shard: int = 0
    """This rank's part of the gradients of a layer."""
    table: int = 0
    """Gradient of the output layer, until all layers are done."""


def _held(job: Job) -> Held:
    training, axes = job.training, job.axes
    return held_as(
        batch=training.batch, tokens=training.tokens // axes.context, dtype=job.dtype,
        weights=job.dtype if job.is_sharded else training.weights, recompute=training.recompute, fused=job.fused,
        tensor_ranks=axes.tensor, sequence_parallel=job.layout.sequence_parallel, expert_ranks=axes.expert,
    )  # fmt: skip


def with_temporaries(components: Mapping[str, int], peak_bytes: int) -> dict[str, int]:
    """Components with `temporary`: what the peak holds beyond them."""
    return {**components, "temporary": max(0, peak_bytes - sum(components.values()))}
