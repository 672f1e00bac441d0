"""How tokens find their experts: settings of a router, what a capacity costs, and what the load of the experts says.

Nothing here imports torch; the layer is in `_moe.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ascend_perf.model.finding import Metric
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import VALUE_BYTES, ModelShape, expert_parameters
from ascend_perf.workloads._spec import Traffic, Value, at_least
from ascend_perf.workloads._training import Training

COUNT_BYTES: Final = 8


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A group of settings (see `_spec.Workload`): how a router chooses, weighs and balances.

    Mixtral and Qwen3: softmax, weights that sum to one. DeepSeek-V2: softmax, weights as they are. DeepSeek-V3:
    sigmoid, a bias in place of a large auxiliary loss, weights that sum to `weight_scale`, experts in groups.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    """The weights of a token's experts sum to one, before `weight_scale`."""
    weight_scale: float = 1.0
    expert_groups: int = 1
    """Experts lie in so many groups, and a token chooses from the best `expert_groups_kept` of them only."""
    expert_groups_kept: int = 1
    balance_loss: float = 0.001
    """Factor of the auxiliary loss that balances experts within each row of tokens; 0: none."""
    bias_rate: float = 0.0
    """After each step an expert's score gets this much more for the choice where it had less than the mean load, and as
    much less where it had more; 0: no bias."""
    capacity_factor: float = 0.0
    """An expert takes this many times the mean load from each rank's micro-batch and drops what is above, in tensors of
    fixed size that do not wait for the router; 0: no token is dropped."""

    def __post_init__(self) -> None:
        at_least(self, 1, "expert_groups", "expert_groups_kept")
        at_least(self, 0, "balance_loss", "bias_rate", "capacity_factor")
        for name in ("weight_scale", "balance_loss", "bias_rate", "capacity_factor"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        if self.weight_scale <= 0:
            raise ValueError(f"weight_scale must be above 0, got {self.weight_scale}")
        if self.expert_groups_kept > self.expert_groups:
            raise ValueError(
                f"expert_groups_kept {self.expert_groups_kept} is more than the {self.expert_groups} expert_groups"
            )

    def check(self, shape: ModelShape) -> None:
        """Raises:
        ValueError: the model has no layer with experts, or the groups do not fit its experts.
        """
        if not shape.moe_layers:
            raise ValueError("the model has no layer with experts: set experts (llm-pretrain trains dense models)")
        if shape.experts % self.expert_groups:
            valid = ", ".join(str(count) for count in range(1, shape.experts + 1) if shape.experts % count == 0)
            raise ValueError(
                f"expert_groups {self.expert_groups} does not divide {shape.experts} experts; valid here: {valid}"
            )
        allowed = shape.experts // self.expert_groups * self.expert_groups_kept
        if shape.experts_per_token > allowed:
            raise ValueError(
                f"experts_per_token {shape.experts_per_token} is more than the {allowed} experts of "
                f"expert_groups_kept {self.expert_groups_kept}"
            )

    def slots(self, shape: ModelShape, tokens: int) -> int:
        """Tokens that an expert takes at most from `tokens` tokens of a rank; 0 without a capacity."""
        if not self.capacity_factor:
            return 0
        return max(1, math.ceil(self.capacity_factor * tokens * shape.experts_per_token / shape.experts))


def routed_tokens(training: Training, layout: Layout) -> int:
    """Tokens of a micro-batch that one rank routes."""
    ranks = layout.context_ranks * (layout.tensor_ranks if layout.sequence_parallel else 1)
    return training.batch * training.tokens // ranks


def padded_flops(
    shape: ModelShape, routing: Routing, training: Training, layout: Layout, data_ranks: int
) -> int:
    """Work of a step of the whole job on slots beyond, or short of, one for each token and choice (a capacity)."""
    tokens = routed_tokens(training, layout)
    slots = routing.slots(shape, tokens)
    if not slots:
        return 0
    more = shape.experts * slots - tokens * shape.experts_per_token
    passes = 4 if training.recompute == "full" else 3
    ranks = training.batch * training.tokens // tokens * data_ranks
    return passes * 2 * expert_parameters(shape) * more * shape.moe_layers * training.accumulate * ranks


def adjusted_traffic(
    traffic: Sequence[Traffic], shape: ModelShape, routing: Routing, training: Training, layout: Layout,
    world_size: int,
) -> tuple[Traffic, ...]:  # fmt: skip
    """What a job with this router sends, from what one without capacity and bias does (`_traffic.predict`).

    A capacity sends full slots in place of rows and tells no counts; then the bytes are exact, not a mean. The bias
    sums the load of all layers over the job once a step.
    """
    told = [_with_slots(one, shape, routing, training, layout) if one.axis == "expert" else one for one in traffic]
    if not routing.bias_rate or world_size == 1:
        return tuple(told)
    size = shape.moe_layers * shape.experts * COUNT_BYTES
    return tuple(
        replace(one, bytes_per_step=one.bytes_per_step + size, calls_per_step=one.calls_per_step + 1)
        if (one.axis, one.collective) == ("job", "all_reduce") else one
        for one in told
    )  # fmt: skip


def _with_slots(
    one: Traffic, shape: ModelShape, routing: Routing, training: Training, layout: Layout
) -> Traffic:
    tokens = routed_tokens(training, layout)
    slots = routing.slots(shape, tokens)
    if not slots:
        return one
    again = 1 if training.recompute == "full" else 0
    moves, counts = 4 + 2 * again, 1 + again
    times = one.calls_per_step // (moves + counts)
    rows_bytes = one.bytes_per_step - times * counts * shape.experts * COUNT_BYTES
    row_bytes = rows_bytes // (times * moves * tokens * shape.experts_per_token)
    assert row_bytes in {shape.width * size for size in VALUE_BYTES.values()}
    size = times * moves * shape.experts * slots * row_bytes
    return replace(one, bytes_per_step=size, calls_per_step=times * moves)


# What the load says


@dataclass(frozen=True, kw_only=True)
class LayerLoad:
    """What the router of one layer chose, over all micro-batches and ranks of the measured steps."""

    layer: int
    chosen_E: Sequence[int]
    """(token, choice) pairs by expert, dropped ones among them."""
    dropped: int = 0
    fullest: int = 0
    """Sum over calls of the pairs of that call's fullest expert."""

    @property
    def total(self) -> int:
        """All pairs."""
        return sum(self.chosen_E)

    @property
    def imbalance(self) -> float:
        """Pairs of the fullest expert by those of the mean one; 1 is balance."""
        return max(self.chosen_E) * len(self.chosen_E) / self.total

    @property
    def call_imbalance(self) -> float:
        """The same within a micro-batch of one rank, the mean over them."""
        return self.fullest * len(self.chosen_E) / self.total

    @property
    def entropy(self) -> float:
        """Entropy of the load by that of an even one: 1 is balance, 0 one expert for all."""
        if len(self.chosen_E) == 1:
            return 1.0
        shares = [count / self.total for count in self.chosen_E if count]
        return -sum(share * math.log(share) for share in shares) / math.log(len(self.chosen_E)) + 0.0

    def rank_imbalance(self, ranks: int) -> float:
        """Pairs that go to the fullest of `ranks` ranks with equal parts of the experts, by those of the mean one."""
        each = len(self.chosen_E) // ranks
        loads = [sum(self.chosen_E[start : start + each]) for start in range(0, len(self.chosen_E), each)]
        return max(loads) * ranks / self.total


def load_metrics(loads: Sequence[LayerLoad], expert_ranks: int, balance: float | None) -> tuple[Metric, ...]:
    """Means over layers, and the worst layer; nothing before the first step.

    Args:
        balance: mean auxiliary loss of a layer, 1 in balance; None where there is none.
    """
    loads = [load for load in loads if load.total]
    if not loads:
        return ()
    count = len(loads)
    total, dropped = sum(load.total for load in loads), sum(load.dropped for load in loads)

    def times(name: str, value: float) -> Metric:
        return Metric(name=name, value=value, unit="x", better="lower")

    metrics = [
        times("router_imbalance", sum(load.imbalance for load in loads) / count),
        times("router_imbalance_worst_layer", max(load.imbalance for load in loads)),
        times("router_imbalance_per_call", sum(load.call_imbalance for load in loads) / count),
        Metric(
            name="router_load_entropy", value=sum(load.entropy for load in loads) / count, unit="ratio", better="higher"
        ),
        Metric(name="router_dropped_tokens", value=float(dropped), unit="count", better="lower"),
        Metric(name="router_dropped_ratio", value=dropped / total, unit="ratio", better="lower"),
    ]  # fmt: skip
    if expert_ranks > 1:
        metrics.append(times("expert_rank_imbalance", sum(load.rank_imbalance(expert_ranks) for load in loads) / count))
    if balance is not None:
        metrics.append(Metric(name="router_balance_loss", value=balance, unit="none", better="lower"))
    return tuple(metrics)


def load_rows(loads: Sequence[LayerLoad], expert_ranks: int) -> Iterator[Mapping[str, Value]]:
    """A row for each expert of each layer: how many (token, choice) pairs it got, and that by the mean of its layer."""
    for load in loads:
        count, total = len(load.chosen_E), load.total
        for expert, chosen in enumerate(load.chosen_E):
            yield {
                "layer": load.layer, "expert": expert, "expert_rank": expert * expert_ranks // count, "tokens": chosen,
                "load": chosen * count / total if total else None,
            }  # fmt: skip
