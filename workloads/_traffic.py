"""What a layout sends and what it holds on each rank, by formula, before the run. Derivation: docs/layouts.md.

Sizes are those of `_spec.Traffic`: the input of a call, of all_gather the output. Every term is exact, so tests compare
it with the calls of a run. Nothing here imports torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._gradient_traffic import bucket_count
from ascend_perf.workloads._job import FP32_BYTES, Job
from ascend_perf.workloads._layout import Layout, check, stages_of
from ascend_perf.workloads._model_shape import ModelShape, has_experts
from ascend_perf.workloads._rank_memory import rank_memory, step_peak_bytes, with_temporaries
from ascend_perf.workloads._rank_weights import RankWeight, owners, rank_weights
from ascend_perf.workloads._spec import NPU, Prediction, Target, Traffic
from ascend_perf.workloads._training import Training

Call = tuple[str, str, int, int]
"""Axis, collective, bytes, calls."""

COUNT_BYTES = 8


def predict(
    shape: ModelShape, layout: Layout, training: Training, world_size: int, *, target: Target = NPU,
    operators: FusedSettings | None = None, all_count: bool = True,
) -> Prediction:  # fmt: skip
    """Memory of the rank that holds most, and traffic of the rank that sends most.

    Args:
        operators: which of torch_npu's an NPU runs; None: as where nothing is said.

    Raises:
        ValueError: the layout does not fit the model or the world; the text names the valid choices.
    """
    axes = check(layout, shape, world_size=world_size, tokens=training.tokens, accumulate=training.accumulate)
    dtype = target.auto_dtype() if training.dtype == "auto" else training.dtype
    job = Job(
        shape=shape, layout=layout, training=training, axes=axes, all_count=all_count, target=target,
        dtype="bf16" if training.weights == "bf16" else dtype,
        operators=FusedSettings() if operators is None else operators,
    )  # fmt: skip
    stage_ranks = world_size // axes.pipeline
    ranks = [stage * stage_ranks for stage in range(axes.pipeline)]
    # Replica 0 holds as much as any other, but for the share of the distributed optimizer.
    holders = [first + _fullest_replica(job, first) * axes.tensor for first in ranks]
    fullest = max(holders, key=lambda rank: step_peak_bytes(job, rank))
    peak = step_peak_bytes(job, fullest)
    memory = with_temporaries(rank_memory(job, fullest), peak)
    traffic = max((rank_traffic(job, rank) for rank in ranks), key=lambda sent: sum(one.bytes_per_step for one in sent))
    return Prediction(memory_bytes=memory, traffic=traffic, step_peak_bytes=peak)


def _fullest_replica(job: Job, first: int) -> int:
    """Of the replicas of a stage, that whose optimizer updates most; the first of equal ones."""
    if not job.training.distributed_optimizer:
        return 0
    sizes = [weight.values for weight in rank_weights(job.shape, job.layout, job.axes, job.axes.place(first)[0])]
    updated: dict[int, int] = defaultdict(int)
    for size, owner in zip(sizes, owners(sizes, job.axes.replicas), strict=True):
        updated[owner] += size
    return min(updated, key=lambda replica: (-updated[replica], replica))


def rank_traffic(job: Job, rank: int) -> tuple[Traffic, ...]:
    """What one rank sends in one step, from the third on, by axis and collective."""
    place = job.axes.place(rank)
    weights = rank_weights(job.shape, job.layout, job.axes, place[0])
    total: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for axis, collective, size, calls in _calls(job, rank, weights):
        total[axis, collective][0] += size
        total[axis, collective][1] += calls
    return tuple(
        Traffic(axis=axis, collective=collective, bytes_per_step=size, calls_per_step=calls)
        for (axis, collective), (size, calls) in sorted(total.items()) if calls
    )  # fmt: skip


def _calls(job: Job, rank: int, weights: list[RankWeight]) -> Iterator[Call]:
    if job.axes.world_size == 1:
        return
    layers = [layer for stage in job.own_stages(rank) for layer in stages_of(job.layout, job.shape.layers)[stage]]
    yield "job", "all_reduce", 2 * FP32_BYTES, 2  # the loss, and the norm of the gradient
    if not job.all_count and job.axes.data > 1:
        yield "data", "all_reduce", FP32_BYTES, 1
    if job.axes.replicas > 1:
        yield from _sharded_calls(job, weights) if job.is_sharded else _ddp_calls(job, weights)
        if job.training.distributed_optimizer:
            sizes = [weight.values for weight in weights]
            yield "data", "broadcast", sum(sizes) * job.weight_bytes, len(set(owners(sizes, job.axes.replicas)))
    if job.axes.tensor > 1:
        routed = sum(has_experts(job.shape, layer) for layer in layers)
        for axis, collective, size, calls in _tensor_calls(job, rank, len(layers) - routed, routed):
            yield axis, collective, size * job.training.accumulate, calls * job.training.accumulate
        yield from _partial_gradients(job, rank, weights)
    if job.axes.context > 1:
        for axis, collective, size, calls in _context_calls(job):
            times = job.training.accumulate * len(layers)
            yield axis, collective, size * times, calls * times
    if job.axes.expert > 1:
        for axis, collective, size, calls in _expert_calls(job):
            times = job.training.accumulate * sum(has_experts(job.shape, layer) for layer in layers)
            yield axis, collective, size * times, calls * times
    if job.axes.pipeline > 1:
        yield from _pipeline_calls(job, rank)


def _ddp_calls(job: Job, weights: list[RankWeight]) -> Iterator[Call]:
    """Gradients once a step, in DDP's buckets, or a pipeline's stage in one; those of experts in one by themselves."""
    experts = sum(weight.values for weight in weights if weight.is_shared_out)
    if experts and job.axes.replicas > job.axes.expert:
        yield "data", "all_reduce", experts * job.weight_bytes, 1
    for stage in sorted({weight.stage for weight in weights}):
        own = [weight for weight in weights if weight.stage == stage and not weight.is_shared_out]
        sizes = [weight.values * job.weight_bytes for weight in own]
        yield "data", "all_reduce", sum(sizes), 1 if job.axes.pipeline > 1 else bucket_count(sizes[::-1])


def _sharded_calls(job: Job, weights: list[RankWeight]) -> Iterator[Call]:
    """FSDP2's units: each layer, and what lies outside the layers of a stage.

    Each micro-batch gathers a layer for its forward and again for its backward pass, the rest once, and reduces all. In
    a pipeline each unit is gathered once a step and reduced once.
    """
    is_pipeline = job.axes.pipeline > 1
    units: dict[tuple[int, int | None, bool], int] = defaultdict(int)
    for weight in weights:
        if (ranks := weight.replicas(job.axes)) > 1:
            units[weight.stage, weight.layer, weight.is_shared_out] += weight.padded_values(ranks)
    for (_, layer, _), values in units.items():
        times = 1 if is_pipeline else job.training.accumulate
        gathers = times if is_pipeline or layer is None else 2 * times
        yield "data", "all_gather", gathers * values * job.product_bytes, gathers
        yield "data", "reduce_scatter", times * values * job.reduced_bytes, times


def _tensor_calls(job: Job, rank: int, dense: int, routed: int) -> Iterator[Call]:
    """One micro-batch: two brackets (attention, MLP) in a dense layer, one in a layer with experts, which work on each
    rank's own tokens; half a one at each end of the model.

    Full recomputation runs a layer's forward pass again, up to the last tensor that is saved: without the collective
    behind a dense layer's MLP.
    """
    stages, own = len(stages_of(job.layout, job.shape.layers)), job.own_stages(rank)
    size = job.row_tokens * job.shape.width
    product, stream = size * job.product_bytes, size * job.stream_bytes
    is_full = job.training.recompute == "full"
    has_embedding, has_output = 0 in own, stages - 1 in own
    if job.layout.sequence_parallel:
        gathers = scatters = 4 * dense + 2 * routed
        if is_full:
            gathers, scatters = gathers + 2 * dense + routed, scatters + dense + routed
        gathers, scatters = gathers + has_output, scatters + has_output
        yield "tensor", "all_gather", gathers * product, gathers
        yield "tensor", "reduce_scatter", scatters * product, scatters
        if has_embedding:
            yield "tensor", "reduce_scatter", stream, 1
            yield "tensor", "all_gather", stream, 1
    else:
        sums = (5 if is_full else 4) * dense + has_output  # with experts there is sequence parallelism
        yield "tensor", "all_reduce", sums * product, sums
        if has_embedding:
            yield "tensor", "all_reduce", stream, 1
    if has_output:
        yield "tensor", "all_reduce", 3 * FP32_BYTES * job.row_tokens, 2  # largest logit; sum and target's logit


def _partial_gradients(job: Job, rank: int, weights: list[RankWeight]) -> Iterator[Call]:
    partial = sum(job.held_values(rank, weight) for weight in weights if weight.is_partial)
    if partial:
        yield "tensor", "all_reduce", partial * job.weight_bytes, 1


def _context_calls(job: Job) -> Iterator[Call]:
    """One layer and micro-batch: q, k, v before the core and its result after it, there and back.

    Full recomputation sends all four again; selective q, k and v: it ends with the core, behind which nothing is saved.
    """
    shape = job.shape
    groups = shape.heads if shape.attention == "mla" else shape.kv_heads
    keys = (shape.heads + groups) * shape.key_width
    values, result = groups * shape.value_head_width, shape.heads * shape.value_head_width
    inputs = 2 if job.training.recompute == "none" else 3
    results = 3 if job.training.recompute == "full" else 2
    per_token = inputs * (keys + values) + results * result
    size = job.row_tokens * per_token // job.axes.tensor * job.product_bytes
    yield "context", "all_to_all", size, 3 * inputs + results


def _expert_calls(job: Job) -> Iterator[Call]:
    """One layer and micro-batch: rows to the ranks of their experts and back, and the same in the backward pass.

    What a rank sends is exact. What it sends back is what it was sent: as much on the mean of the ranks, which is what
    is counted here; a router without balance makes it more on some. Before it, ranks tell each other how many rows.
    """
    tokens = job.row_tokens // (job.axes.tensor if job.layout.sequence_parallel else 1)
    rows = tokens * job.shape.experts_per_token * job.shape.width * job.product_bytes
    again = 1 if job.training.recompute == "full" else 0
    yield "expert", "all_to_all", (4 + 2 * again) * rows, 4 + 2 * again
    yield "expert", "all_to_all", (1 + again) * job.shape.experts * COUNT_BYTES, 1 + again


def _pipeline_calls(job: Job, rank: int) -> Iterator[Call]:
    """One message to the next stage and one to the stage before, per micro-batch and stage of this rank."""
    stages = len(stages_of(job.layout, job.shape.layers))
    messages = sum((stage < stages - 1) + (stage > 0) for stage in job.own_stages(rank)) * job.training.accumulate
    tokens = job.row_tokens // (job.axes.tensor if job.layout.sequence_parallel else 1)
    yield "pipeline", "send", messages * tokens * job.shape.width * job.stream_bytes, messages
