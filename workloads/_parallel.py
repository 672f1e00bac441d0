"""A decoder spread over the ranks of a job, and one training step of it: what a layout (`_layout.py`) does.

    parallelise: build the stages of this rank on no device -> cut over tensor, expert, context -> shard (FSDP2)
                 -> draw the weights that are held here -> wrap (DDP)
    a step:      forward_backward(micro-batches) -> clip_grad_norm_ -> the optimizer of the caller

One process is the layout with one rank on each axis: the same code without any group. Weights are drawn by their full
name, the loss is the sum over all tokens by their number, so every layout computes what one process does, up to the
order of sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from ascend_perf.errors import MachineError
from ascend_perf.workloads import _schedule
from ascend_perf.workloads._context import cut_over_context_axis, own_tokens
from ascend_perf.workloads._decoder import Decoder, materialise
from ascend_perf.workloads._layout import Axes, Layout, stages_of
from ascend_perf.workloads._pipeline import Pipeline
from ascend_perf.workloads._process_groups import Groups, make_groups
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads._tensor_parallel import (
    Cut,
    cut_over_tensor_axis,
    needs_sum_over_tensor_axis,
    vocabulary_loss,
)
from ascend_perf.workloads._text_data import IGNORED, Batch

# B batch, T tokens, W width, V vocabulary, N tokens of all rows


class MakePart(Protocol):
    """How a part of the model is built; called under `torch.device("meta")`."""

    def __call__(self, layers: range, has_embedding: bool, has_output: bool) -> Decoder: ...


class RoutedLayer(Protocol):
    """What a layer with routed experts offers (`_moe.py`), so that they can be shared out over ranks."""

    experts: nn.Module
    """All weights of the routed experts, and nothing else: along the first axis of each, one after the other."""
    expert_group: dist.ProcessGroup | None
    """Set here: the ranks that share out the experts, in order, each with an equal part; None: all are here."""


SummedLoss = Callable[[Tensor, Tensor], Tensor]
"""`(logits_NV, targets_N) -> sum over the targets that are not IGNORED`."""


@dataclass(kw_only=True)
class Parallel:
    """This rank's part of a training job; made by `parallelise`."""

    groups: Groups
    model: nn.ModuleList
    """Stages of this rank, under no wrapper: for the optimizer and for state."""
    wrapped: list[Any]
    """The same, as they are called: under DDP, or sharded by FSDP2."""
    names: dict[str, nn.Parameter]
    """Full name in the whole model -> what this rank holds of it."""
    cuts: dict[str, Cut]
    partial: list[nn.Parameter]
    """Whole on every tensor rank, with a part of the gradient on each."""
    shared_out: list[str]
    """Names of the weights of experts that are shared out over the expert axis."""
    is_sharded: bool
    layout: Layout
    loss_of: SummedLoss
    autocast: torch.dtype | None
    activation_dtype: torch.dtype
    all_count: bool
    device: torch.device

    @property
    def data_rank(self) -> int:
        """Which share of the data this rank loads, of `data_ranks`."""
        return self.groups.place[1]

    @property
    def data_ranks(self) -> int:
        """Shares of the data."""
        return self.groups.axes.data

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that speaks for the job."""
        return self.groups.rank == 0

    # One step

    def forward_backward(self, batches: Sequence[Batch], *, loss_scale: float = 1.0) -> Tensor:
        """Mean loss per counted token over all micro-batches and data ranks, on every rank; gradients are added up.

        Args:
            loss_scale: gradients come out multiplied by it (fp16); the loss that is returned does not.
        """
        number = self._counted_tokens(batches)
        self._weigh_balance(loss_scale / len(batches))
        # DDP and FSDP divide by the ranks they sum over.
        weight = loss_scale * self.groups.axes.replicas / number
        if self.groups.axes.pipeline > 1:
            total = self._through_pipeline(batches, weight)
        else:
            total = self._through_model(batches, weight)
        self._finish_gradients()
        return self._over_job(total) / number

    def _through_model(self, batches: Sequence[Batch], weight: Tensor | float) -> Tensor:
        total = torch.zeros((), device=self.device)
        (model,) = self.wrapped
        for number, batch in enumerate(batches):
            is_last = number == len(batches) - 1
            with _no_sync(model, not is_last):
                with record_function("forward"):
                    loss = self._forward(model, batch, batch.tokens_BT, is_first=True, is_last=True)
                with record_function("backward"):
                    (loss * weight).backward()
            total += loss.detach()
        return total

    def _through_pipeline(self, batches: Sequence[Batch], weight: Tensor | float) -> Tensor:
        total = torch.zeros((), device=self.device)
        axes, slots = self.groups.axes, len(self.wrapped)
        rank = self.groups.place[0]
        rows, tokens = batches[0].tokens_BT.shape
        tokens //= axes.context * (axes.tensor if self.layout.sequence_parallel else 1)
        pipeline = Pipeline(
            rank=rank, ranks=axes.pipeline, slots=slots, peers=self.groups.peers, groups=self.groups.channels,
            size=(rows, tokens, self.model[0].shape.width), dtype=self.activation_dtype, device=self.device,
        )  # fmt: skip

        def forward(slot: int, micro: int, x_BTW: Tensor | None) -> Tensor:
            nonlocal total
            is_last = pipeline.stage(slot) == axes.pipeline * slots - 1
            x = batches[micro].tokens_BT if x_BTW is None else x_BTW
            with record_function("forward"), _no_sync(self.wrapped[slot], True):
                output = self._forward(self.wrapped[slot], batches[micro], x, is_first=x_BTW is None, is_last=is_last)
            if is_last:
                total += output.detach()
            return output

        def backward(slot: int, micro: int, output: Tensor, gradient: Tensor | None, is_last: bool) -> None:
            with record_function("backward"), _synced_at_last(self.wrapped[slot], output, is_last):
                if gradient is None:
                    (output * weight).backward()
                else:
                    output.backward(gradient)

        if slots > 1:
            actions = _schedule.interleaved(rank, axes.pipeline, slots, len(batches))
        else:
            actions = _schedule.one_forward_one_backward(rank, axes.pipeline, len(batches))
        pipeline.run(actions, forward, backward)
        return total

    def _forward(self, model: Any, batch: Batch, x: Tensor, *, is_first: bool, is_last: bool) -> Tensor:
        """Activations, or the summed loss of this rank's tokens."""
        context = self.groups["context"]
        # The tables of the rotary embedding are for the tokens that attention sees, not for those of x.
        positions_BT = batch.positions_BT
        if positions_BT is None:
            positions_BT = torch.arange(batch.tokens_BT.shape[1], device=self.device).unsqueeze(0)
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            made = model(
                own_tokens(x, context) if is_first else x,
                positions_BT=own_tokens(positions_BT, context), segments_BT=batch.segments_BT, ends=batch.ends,
            )  # fmt: skip
            if not is_last:
                return made
            targets_N = own_tokens(batch.targets_BT, context).flatten()
            tensor = self.groups["tensor"]
            if tensor is None:
                return self.loss_of(made.flatten(0, 1), targets_N)
            return vocabulary_loss(made.flatten(0, 1), targets_N, tensor)

    def _counted_tokens(self, batches: Sequence[Batch]) -> Tensor | int:
        """Targets of all micro-batches and data ranks that count in the loss."""
        if self.all_count:
            return sum(batch.targets_BT.numel() for batch in batches) * self.data_ranks
        number = torch.stack([(batch.targets_BT != IGNORED).sum() for batch in batches]).sum().float()
        data = self.groups["data"]
        if data is not None:
            dist.all_reduce(number, group=data)
        return number.clamp_(min=1)

    def _over_job(self, total: Tensor) -> Tensor:
        """Sum over the ranks of what the last stage of each data and context rank has, once."""
        axes = self.groups.axes
        if axes.world_size == 1:
            return total
        pipeline, _, _, tensor = self.groups.place
        if pipeline < axes.pipeline - 1 or tensor > 0:
            total = torch.zeros_like(total)
        dist.all_reduce(total)
        return total

    # Gradients

    def _weigh_balance(self, weight: float) -> None:
        """Tell layers with a loss of their own (the balance of a router) by what to multiply it, before its gradient is
        averaged over replicas: it is the mean over micro-batches, and over tensor ranks where each has its tokens."""
        ranks = self.groups.axes.tensor if self.layout.sequence_parallel else 1
        for module in self.model.modules():
            if hasattr(module, "balance_weight"):
                module.balance_weight = weight / ranks

    def _finish_gradients(self) -> None:
        """What neither DDP nor FSDP does: experts over their own replicas, and parts of sums over the tensor axis."""
        experts = [_local(weight.grad) for name in self.shared_out if (weight := self.names[name]).grad is not None]
        if experts:
            # The tokens of all ranks came here already: their number divides once more than the replicas of an expert.
            axes, group = self.groups.axes, self.groups["expert replica"]
            if group is not None and not self.is_sharded:
                _sum_in_one(experts, group)
            torch._foreach_div_(experts, axes.expert if self.is_sharded else axes.replicas)
        partial = [_local(weight.grad) for weight in self.partial if weight.grad is not None]
        if partial and (tensor := self.groups["tensor"]) is not None:
            _sum_in_one(partial, tensor)

    def clip_grad_norm_(self, max_norm: float, *, loss_scale: float = 1.0) -> Tensor:
        """Norm (order 2) of the whole model's gradient, the same on every rank, before it is clipped to `max_norm`.

        Each rank sums the squares of what it holds, by the number of ranks that hold the same; one sum over the job
        then counts every gradient once, whatever is cut, sharded or repeated. Gradients are divided by `loss_scale`
        as well; the norm is not finite when any gradient is not.
        """
        by_copies: dict[int, list[Tensor]] = {}
        for name, weight in self.names.items():
            if weight.grad is not None:
                by_copies.setdefault(self._copies(name), []).append(_local(weight.grad))
        total = torch.zeros((), device=self.device)
        for copies, gradients in by_copies.items():
            norms = torch._foreach_norm(gradients)
            total += torch.stack([norm.float() for norm in norms]).square().sum() / copies
        if self.groups.axes.world_size > 1:
            dist.all_reduce(total)
        norm = total.sqrt() / loss_scale
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0) / loss_scale
        for gradients in by_copies.values():
            torch._foreach_mul_(gradients, factor)
        return norm

    def _copies(self, name: str) -> int:
        """Ranks of the job that hold the same gradient values as this one for a weight."""
        axes = self.groups.axes
        is_expert = name in self.shared_out
        replicas = 1 if self.is_sharded else axes.replicas // (axes.expert if is_expert else 1)
        return replicas * (axes.tensor if is_expert or name not in self.cuts else 1)


def parallelise(
    make_part: MakePart, *, layout: Layout, axes: Axes, place: Place, layers: int, seed: int, loss: SummedLoss,
    weights: torch.dtype = torch.float32, matmul: torch.dtype = torch.float32, all_count: bool = True,
) -> Parallel:  # fmt: skip
    """This rank's part of a model of `layers` layers, its weights drawn from the seed.

    Args:
        make_part: builds the stages.
        axes: what `_layout.check` gave.
        loss: used where the vocabulary is whole on a rank.
        weights: type of the weights. Where `matmul` is narrower, the products run in that: by autocast, or with FSDP by
            a mixed-precision policy (weights are gathered in `matmul`, gradients reduced in fp32).
        all_count: no target is ever IGNORED; else the counted ones are summed over the data axis in each step.

    Raises:
        MachineError: this torch has no FSDP2.
    """
    is_sharded = layout.data_parallel == "fsdp" and axes.replicas > 1
    if is_sharded:
        _fsdp()  # before anything is built
    device = torch.device(place.device)
    groups = make_groups(axes, layout, place)
    stages = stages_of(layout, layers)
    numbers = range(groups.place[0], len(stages), axes.pipeline)
    parts: list[Decoder] = []
    cuts: dict[str, Cut] = {}
    partial_names: list[str] = []
    shared_out: list[str] = []
    for number in numbers:
        with torch.device("meta"):
            part = make_part(stages[number], number == 0, number == len(stages) - 1).to(weights)
        if (tensor := groups["tensor"]) is not None:
            own = cut_over_tensor_axis(part, tensor, sequence_parallel=layout.sequence_parallel)
            cuts |= own
            partial_names += needs_sum_over_tensor_axis(part, own, sequence_parallel=layout.sequence_parallel)
        if (context := groups["context"]) is not None:
            cut_over_context_axis(part, context)
        if (expert := groups["expert"]) is not None:
            own = share_out_experts(part, expert)
            cuts |= own
            shared_out += own
        parts.append(part)
    if is_sharded:
        for part in parts:
            _shard(part, groups, weights, matmul, keep=axes.pipeline > 1)
    for part in parts:
        materialise(part, seed=seed, device=device, dtype=weights, cuts=cuts)
    names = {name: weight for part in parts for name, weight in part.named_parameters()}
    wrapped: list[Any] = list(parts)
    if axes.replicas > 1 and not is_sharded:
        wrapped = [_ddp(part, groups, ignored=shared_out) for part in parts]
    narrow = matmul != weights
    return Parallel(
        groups=groups, model=nn.ModuleList(parts), wrapped=wrapped, names=names, cuts=cuts,
        partial=[names[name] for name in partial_names], shared_out=shared_out, is_sharded=is_sharded, layout=layout,
        loss_of=loss, autocast=matmul if narrow and not is_sharded else None,
        activation_dtype=matmul if is_sharded else weights, all_count=all_count, device=device,
    )  # fmt: skip


def _fsdp() -> tuple[Any, Any]:
    """FSDP2's `fully_shard` and `MixedPrecisionPolicy`.

    Raises:
        MachineError: this torch has none of that name: 2.5 and older.
    """
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise MachineError(
            f"data_parallel fsdp needs torch 2.6 or newer, here is {torch.__version__}",
            hint="--set data_parallel=ddp, or install a newer torch",
        ) from error
    return fully_shard, MixedPrecisionPolicy


def _shard(part: Decoder, groups: Groups, weights: torch.dtype, matmul: torch.dtype, *, keep: bool) -> None:
    """FSDP2 over the replica axis: one unit for each block, one for embedding, norm and output together.

    Args:
        keep: blocks stay gathered from the first forward pass of a step to its last backward pass, as a pipeline needs:
            else each micro-batch would gather them twice while others are under way.
    """
    fully_shard, MixedPrecisionPolicy = _fsdp()
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # the rotary tables stay fp32
    if matmul != weights:
        policy = MixedPrecisionPolicy(param_dtype=matmul, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = groups.meshes["replica"]
    if groups["expert"] is not None:
        for layer in routed_layers(part):
            fully_shard(
                layer.experts, mesh=groups.meshes["expert replica"], mp_policy=policy, reshard_after_forward=not keep
            )  # fmt: skip
    for block in part.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not keep)
    fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def routed_layers(part: nn.Module) -> list[RoutedLayer]:
    """Layers with routed experts."""
    return [module for module in part.modules() if hasattr(module, "expert_group")]


def share_out_experts(part: nn.Module, group: dist.ProcessGroup) -> dict[str, Cut]:
    """Keep this rank's experts of every layer of a model on the meta device; how each of their weights is cut."""
    index, count = dist.get_rank(group), dist.get_world_size(group)
    for layer in routed_layers(part):
        layer.expert_group = group
        for path, module in layer.experts.named_modules():
            for name, whole in module.named_parameters(recurse=False):
                size = whole.shape[0] // count, *whole.shape[1:]
                setattr(layer.experts.get_submodule(path), name, nn.Parameter(whole.new_empty(size)))
    cut = Cut(axis=0, index=index, count=count)
    ours = {id(weight) for layer in routed_layers(part) for weight in layer.experts.parameters()}
    return {name: cut for name, weight in part.named_parameters() if id(weight) in ours}


def _ddp(part: Decoder, groups: Groups, ignored: Sequence[str]) -> nn.Module:
    """DDP over the replica axis; weights are equal already, and no buffer is ever sent."""
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(part, ignored)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # from torch 2.13
    off = {name: False for name in (buffers, "init_sync") if name in known}  # torch 2.5 has no init_sync
    return DistributedDataParallel(part, process_group=groups["replica"], gradient_as_bucket_view=True, **off)


def _no_sync(model: Any, skip: bool) -> contextlib.AbstractContextManager[None]:
    """DDP: leave gradients of this pass on the rank. FSDP reduces those of every micro-batch, so that they stay cut."""
    return model.no_sync() if skip and hasattr(model, "no_sync") else contextlib.nullcontext()


@contextlib.contextmanager
def _synced_at_last(model: Any, output: Tensor, is_last: bool) -> Iterator[None]:
    """Reduce gradients in the last backward pass of a pipeline stage only."""
    if hasattr(model, "no_sync"):
        if is_last:
            # All forward passes ran under no_sync, which leaves this out; torch.distributed.pipelining does the same.
            model.reducer.prepare_for_backward([output])
            yield
        else:
            with model.no_sync():
                yield
        return
    if hasattr(model, "set_is_last_backward"):
        model.set_is_last_backward(is_last)
        model.set_reshard_after_backward(is_last)
        model.set_requires_gradient_sync(is_last)
    yield


def _local(x: Tensor) -> Tensor:
    """The values that lie on this rank."""
    to_local = getattr(x, "to_local", None)
    return x if to_local is None else to_local()


def _sum_in_one(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum each over the group, in place, with one message."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    torch._foreach_copy_(gradients, _like(flat, gradients))


def _like(flat: Tensor, shapes: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view_as(shape) for part, shape in zip(parts, shapes, strict=True)]
