"""What FSDP holds beside its shards on a rank of a pipeline, from layer to layer.

    first forward pass of a stage: gather a unit into one buffer, copy it out into its weights, and keep them
    -> backward passes but the last: add up whole gradients
    -> last backward pass: give up a layer's weights, reduce its gradients from one buffer, keep this rank's part

The embedding, the last norm and the output layer are one unit, gathered first and reduced last. Order and lifetimes are
those of FSDP2 (`torch/distributed/fsdp/_fully_shard`) under `_parallel._synced_at_last`, seen in the history of
torch_npu's allocator. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ascend_perf.workloads._schedule import Action


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Bytes of the weights that are gathered together."""

    gathered: int = 0
    """The weights, and gradients as they are made: in the type of the products."""
    reduced: int = 0
    """Whole gradients in the type in which they are reduced."""
    shard: int = 0
    """This rank's part of the gradients."""
    last: int = 0
    """Of `gathered`, the last weight."""

    def __add__(self, other: Unit) -> Unit:
        """Both together; the last weight is the other's."""
        return Unit(
            gathered=self.gathered + other.gathered, reduced=self.reduced + other.reduced,
            shard=self.shard + other.shard, last=other.last,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayerBytes(Unit):
    """A layer of one micro-batch."""

    kept: int
    """Activations from its forward to its backward pass."""
    forward: int = 0
    """Beside them in its MLP's forward pass."""
    backward: int = 0
    """Beside them in its MLP's backward pass, where there is most."""
    matrix: int = 0
    """Gradient of its first matrix, the last one that is made: for a moment it is there twice."""


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """A stage of one micro-batch."""

    layers: Sequence[LayerBytes]
    ends: Unit = field(default_factory=Unit)
    """Embedding, last norm, output layer."""
    is_first: bool
    is_last: bool
    stream: int
    """What comes from a neighbour or goes to one, and its gradient: as large as the stream between layers."""
    kept: int = 0
    """Activations outside the layers; of them `output` belong to last norm, output layer and loss."""
    output: int = 0
    loss_forward: int = 0
    """Beside what is kept."""
    loss_backward: int = 0
    """Beside what is kept, in the backward pass of the loss and of the output layer."""
    table: int = 0
    """Gradient of the embedding (first stage: made last) or of the output layer (last stage: made first), in the type
    of the products. Both are reduced last."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """In the order in which they are gathered."""
        return (self.ends, *self.layers)

    @property
    def gathered(self) -> int:
        """All weights of the stage."""
        return sum(unit.gathered for unit in self.units)

    @property
    def reduced(self) -> int:
        """Gradients of the stage, not reduced yet."""
        return sum(unit.reduced for unit in self.units)

    @property
    def result(self) -> int:
        """What goes to the next stage. A pipeline keeps it to the backward pass."""
        return 0 if self.is_last else self.stream

    @property
    def all_kept(self) -> int:
        """Of a micro-batch under way."""
        return self.kept + sum(layer.kept for layer in self.layers) + self.result

    def receives(self, kind: Literal["forward", "backward"]) -> bool:
        """Whether a pass begins with what comes from a neighbour."""
        return not (self.is_first if kind == "forward" else self.is_last)


def most_in_passes(stages: Sequence[StageBytes], actions: Sequence[Action], *, is_narrow: bool) -> int:
    """Most bytes in the passes of a step, beside weights and moments.

    Args:
        stages: of the rank, by slot.
        actions: in their order.
        is_narrow: gradients are made in a narrower type than they are reduced in, and then added up in that.
    """
    left = [sum(action.kind == "backward" and action.slot == slot for action in actions) for slot in range(len(stages))]
    micro = list(left)
    stays = [0] * len(stages)
    """Weights, whole gradients or shards of each stage, between passes."""
    most = kept = 0
    comes = [stages[action.slot].receives(action.kind) for action in actions]
    for number, action in enumerate(actions):
        slot, stage = action.slot, stages[action.slot]
        ahead = stage.stream * any(comes[number + 1 :])  # the next input is received meanwhile
        others = kept + sum(stays) - stays[slot] + ahead
        if action.kind == "forward":
            if stays[slot]:
                most = max(most, others + stays[slot] + _again(stage))
            else:
                most = max(most, others + _gathering(stage))
                stays[slot] = stage.gathered
            kept += stage.all_kept
            continue
        is_first = left[slot] == micro[slot]
        left[slot] -= 1
        one = _Backward(stage, is_first=is_first, reduces=not left[slot], is_narrow=is_narrow)
        most = max(most, others - stage.all_kept + one.most)
        kept -= stage.all_kept
        stays[slot] = one.stays
    return most


def _again(stage: StageBytes) -> int:
    """Most in a forward pass whose weights are here, beside what stays."""
    work = stage.layers[-1].forward - stage.output - stage.result if stage.layers else 0
    return stage.all_kept + max(stage.loss_forward, work)


def _gathering(stage: StageBytes) -> int:
    """Most in the first forward pass of a stage."""
    kept, gathered, before, most = stage.kept - stage.output, 0, 0, 0
    for unit in stage.units:
        # Copied out of its buffer, while that of the unit before it is still there.
        gathered += unit.gathered
        most = max(most, gathered + unit.gathered + before + kept)
        before = unit.gathered
        if isinstance(unit, LayerBytes):
            kept += unit.kept
            most = max(most, gathered + unit.gathered + kept + unit.forward)
    return max(most, gathered + kept + stage.output + stage.result + stage.loss_forward)


class _Backward:
    """A backward pass of a stage, from its loss to its embedding.

    Args:
        is_first: there are no gradients yet.
        reduces: the last one.
    """

    def __init__(self, stage: StageBytes, *, is_first: bool, reduces: bool, is_narrow: bool) -> None:
        self.kept, self.gathered = stage.all_kept, stage.gathered
        self.whole = 0 if is_first else stage.reduced
        """Gradients that wait to be reduced."""
        self.passing_by = self.shards = 0
        """Buffer of the gradients on their way to their shards; shards."""
        self.made = stage.result  # the gradient that came for it
        self.most = 0
        self._see(stage.loss_backward)
        if stage.is_last and (is_first or is_narrow):
            self.made = stage.table
        self.kept -= stage.output
        for layer in reversed(stage.layers):
            self._see(layer.backward)
            self.kept -= layer.kept
            # Added to those that are there: in the same type one by one, else all together when the layer is done.
            made = layer.gathered if is_first or is_narrow else 0
            self._see(made + layer.matrix + 3 * stage.stream)  # its input, and two gradients
            if reduces:
                self._reduce(layer, is_first=is_first)
            elif is_first:
                self.whole += layer.reduced
        self._see(stage.table * stage.is_first)
        if stage.is_last:
            self.made = 0
        if reduces:
            self._reduce(stage.ends, is_first=is_first)
        else:
            if is_first:
                self.whole += stage.ends.reduced
            self._see(stage.ends.gathered if is_narrow else 0)
        self.stays = self.gathered + self.whole + self.shards
        """Bytes of the stage behind the pass."""

    @property
    def _now(self) -> int:
        return self.gathered + self.whole + self.shards + self.passing_by + self.kept

    def _see(self, more: int) -> None:
        self.most = max(self.most, self._now + self.made + more)

    def _reduce(self, unit: Unit, *, is_first: bool) -> None:
        self.gathered -= unit.gathered
        self.passing_by = unit.reduced  # that of the layer before is gone
        self._see(unit.gathered if is_first else 0)  # gradients, until they are copied into it
        if not is_first:
            self.whole -= unit.reduced
        self.shards += unit.shard
        # FSDP2 (torch 2.6 to 2.13) has the last of them in hand until it returns.
        self._see(unit.last if is_first else unit.last * unit.reduced // max(1, unit.gathered))
