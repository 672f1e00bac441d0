"""The order in which a pipeline rank works: 1F1B, and 1F1B interleaved over several stages a rank.

    rank 0 of 2, 4 micro-batches:  F0 F1 B0 F2 B1 F3 B2 B3
    rank 1 of 2:                   F0 B0 F1 B1 F2 B2 F3 B3

Nothing here imports torch.

Source:
    Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Action:
    """Forward or backward pass of one micro-batch through one of this rank's stages (`slot` counts them from 0)."""

    kind: Literal["forward", "backward"]
    slot: int
    micro: int


def one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """1F1B: as many micro-batches under way as there are ranks from this one to the end, never more."""
    return _alternating(
        [("forward", 0, micro) for micro in range(micro_batches)],
        [("backward", 0, micro) for micro in range(micro_batches)],
        ahead=min(ranks - 1 - rank, micro_batches),
    )


def interleaved(rank: int, ranks: int, slots: int, micro_batches: int) -> list[Action]:
    """1F1B over `slots` stages a rank, in rounds of `ranks` micro-batches through each of them.

    Raises:
        ValueError: the micro-batches do not divide into rounds.
    """
    if micro_batches % ranks:
        raise ValueError(f"{micro_batches} micro-batches do not divide into rounds of {ranks}")
    order = [
        (slot, turn * ranks + place)
        for turn in range(micro_batches // ranks) for slot in range(slots) for place in range(ranks)
    ]  # fmt: skip
    return _alternating(
        [("forward", slot, micro) for slot, micro in order],
        [("backward", slots - 1 - slot, micro) for slot, micro in order],
        ahead=min(2 * (ranks - 1 - rank) + (slots - 1) * ranks, len(order)),
    )


_Step = tuple[Literal["forward", "backward"], int, int]


def _alternating(forwards: list[_Step], backwards: list[_Step], ahead: int) -> list[Action]:
    """`ahead` forward passes, then one of each in turn, then the backward passes that are left."""
    order = forwards[:ahead]
    for number in range(len(forwards) - ahead):
        order += [forwards[ahead + number], backwards[number]]
    order += backwards[len(forwards) - ahead :]
    return [Action(*step) for step in order]


def most_under_way(actions: list[Action]) -> int:
    """Most micro-batches, over all slots, whose activations a rank keeps at one time."""
    most = held = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most
