"""Small trainings under layouts, as the tests want them; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, Literal

from ascend_perf.workloads._layout import Axes, Layout, check
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._training import Training

SHAPE: Final = ModelShape(
    layers=4, width=32, heads=4, kv_heads=4, hidden=48, vocabulary=64, qk_norm=True, qkv_bias=True
)
EXPERTS: Final = ModelShape(
    layers=3, width=32, heads=4, kv_heads=4, hidden=48, vocabulary=64, experts=4, experts_per_token=2, shared_experts=1,
    expert_hidden=24, dense_layers=1,
)
LATENT_EXPERTS: Final = replace(
    EXPERTS, attention="mla", q_rank=16, kv_rank=12, nope_width=8, rope_width=4, value_width=8
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training of a few steps."""

    layout: Layout
    shape: ModelShape
    training: Training
    rows: int = 8
    """Of a micro-batch, over all data ranks."""
    steps: int = 3
    dtype: str = "fp32"
    packed: bool = False
    """Two texts in a row, and some targets that do not count."""
    balance_loss: float = 0.0
    """Factor of the auxiliary loss of routers."""

    def axes(self, world_size: int) -> Axes:
        """Of the job."""
        return check(
            self.layout, self.shape, world_size=world_size, tokens=self.training.tokens,
            accumulate=self.training.accumulate,
        )  # fmt: skip


@dataclass(kw_only=True)
class Outcome:
    """What one rank saw."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Collective -> bytes and calls of the last step."""
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Weight -> its size on this rank, before FSDP shards it."""
    local_values: int = 0
    activation_bytes: int = 0
    """Most that was saved for the backward pass at one time, in the last step."""
    updated_values: int = 0
    """Of weights that this rank's optimizer updates."""


def every_layout(
    world_size: int, shape: ModelShape = SHAPE, tokens: int = 16, accumulate: int = 2
) -> dict[str, Layout]:
    """All that fit, by a name that tells the axes."""
    counts = [count for count in range(1, world_size + 1) if world_size % count == 0]
    schedules: list[tuple[Literal["1f1b", "interleaved"], int]] = [("1f1b", 1), ("interleaved", 2)]
    sharding: list[Literal["ddp", "fsdp"]] = ["ddp", "fsdp"]
    found: dict[str, Layout] = {}
    for p, c, t, e, cut, kind, (schedule, each) in product(
        counts, counts, counts, counts, (False, True), sharding, schedules
    ):
        try:
            layout = Layout(
                data_parallel=kind, tensor_ranks=t, sequence_parallel=cut, pipeline_ranks=p, pipeline_schedule=schedule,
                pipeline_stages_per_rank=each, context_ranks=c, expert_ranks=e,
            )  # fmt: skip
            axes = check(layout, shape, world_size=world_size, tokens=tokens, accumulate=accumulate)
        except ValueError:
            continue
        if kind == "fsdp" and axes.replicas == 1:
            continue  # the same as ddp: there is nothing to shard over
        parts = {"dp": axes.data, "pp" if each == 1 else "vpp": p, "cp": c, "sp" if cut else "tp": t, "ep": e}
        name = "-".join(f"{axis}{ranks}" for axis, ranks in parts.items() if ranks > 1)
        found[name + ("-fsdp" if kind == "fsdp" else "")] = layout
    return found
