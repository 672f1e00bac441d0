"""A rank of a pipeline at work: takes activations and gradients from its neighbours, in the order of `_schedule.py`.

    F: receive activations -> stage -> send activations        B: receive gradients -> backward -> send gradients

Own sends and receives in place of torch.distributed.pipelining: they are what `_traffic.py` counts with every release
of torch, and they leave the data-parallel wrappers of a stage to the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ascend_perf.workloads._schedule import Action

# B batch, T tokens of this rank, W width

Channel = tuple[Literal["forward", "backward"], bool]
"""Direction, and whether it is the step from the last rank of the pipeline round to the first, or back."""


def channels(slots: int) -> list[Channel]:
    """Every way that messages take: each needs a process group of its own.

    Within one, both neighbours send and receive in the same order. In one group for both directions they would not, and
    a backend that runs a group's messages in order (nccl, hccl) would wait for ever.
    """
    wraps = (False, True) if slots > 1 else (False,)
    return [(direction, wrap) for wrap in wraps for direction in ("forward", "backward")]


def connect(
    peers: Sequence[int], rank: int, groups: Mapping[Channel, dist.ProcessGroup], device: str
) -> None:
    """Send one value over every way, one way after the other, all ranks together.

    nccl and hccl make the connection of a pair at its first message, and wait for the other side. In a step the first
    rank waits for a gradient before it sends the activations that lead to it: without this it would wait for ever.
    """
    last = len(peers) - 1
    for (direction, wraps), group in groups.items():
        step = 1 if direction == "forward" else -1
        first, end = (0, last) if direction == "forward" else (last, 0)
        value = torch.zeros(1, device=device)
        receives, sends = (rank == first, rank == end) if wraps else (rank != first, rank != end)
        if receives:
            dist.recv(value, peers[(rank - step) % len(peers)], group=group)
        if sends:
            dist.send(value, peers[(rank + step) % len(peers)], group=group)


Forward = Callable[[int, int, "Tensor | None"], Tensor]
"""`(slot, micro, x_BTW or None for the first stage) -> activations, or the loss for the last stage`."""
Backward = Callable[[int, int, Tensor, "Tensor | None", bool], None]
"""`(slot, micro, output, its gradient or None for the last stage, whether the slot's last micro-batch)`."""


@dataclass(kw_only=True)
class Pipeline:
    """One rank of a pipeline of `ranks` ranks with `slots` stages each; stage s lies on rank s modulo `ranks`."""

    rank: int
    ranks: int
    slots: int
    peers: Sequence[int]
    """Global rank of each rank of the pipeline."""
    groups: dict[Channel, dist.ProcessGroup]
    size: tuple[int, int, int]
    """Of the activations between stages: B x T x W."""
    dtype: torch.dtype
    device: torch.device
    _sent: dict[Action, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    _incoming: deque[tuple[Action, Tensor, dist.Work]] = field(default_factory=deque)

    def run(self, actions: Sequence[Action], forward: Forward, backward: Backward) -> None:
        """Do the actions of one step. `forward` and `backward` do the work, messages are sent and received here."""
        under_way: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        left = {slot: sum(action.kind == "backward" and action.slot == slot for action in actions)
                for slot in range(self.slots)}  # fmt: skip
        ahead = deque(action for action in actions if self._source(action) is not None)
        self._expect(ahead)
        for action in actions:
            received = self._take(action, ahead) if self._source(action) is not None else None
            key = (action.slot, action.micro)
            if action.kind == "forward":
                if received is not None:
                    received.requires_grad_()
                output = forward(action.slot, action.micro, received)
                under_way[key] = received, output
                self._send(action, output.detach())
            else:
                given, output = under_way.pop(key)
                self._forget(Action("forward", *key))
                left[action.slot] -= 1
                backward(action.slot, action.micro, output, received, left[action.slot] == 0)
                if given is not None:
                    assert given.grad is not None
                    self._send(action, given.grad)
        for action in list(self._sent):
            self._forget(action)

    def stage(self, slot: int) -> int:
        """Number of a slot's stage in the whole model."""
        return slot * self.ranks + self.rank

    def _source(self, action: Action) -> int | None:
        """Rank of the pipeline from which the input of an action comes; None: it has none."""
        stage = self.stage(action.slot)
        if action.kind == "forward":
            return (self.rank - 1) % self.ranks if stage > 0 else None
        return (self.rank + 1) % self.ranks if stage < self.ranks * self.slots - 1 else None

    def _expect(self, ahead: deque[Action]) -> None:
        """Start to receive the next input, while the stage works on the one before."""
        if not ahead:
            return
        action = ahead.popleft()
        source = self._source(action)
        assert source is not None
        wraps = self.rank == (0 if action.kind == "forward" else self.ranks - 1)
        buffer = torch.empty(self.size, dtype=self.dtype, device=self.device)
        work = dist.irecv(buffer, self.peers[source], group=self.groups[action.kind, wraps])
        assert work is not None
        self._incoming.append((action, buffer, work))

    def _take(self, action: Action, ahead: deque[Action]) -> Tensor:
        wanted, buffer, work = self._incoming.popleft()
        assert wanted == action
        work.wait()
        self._expect(ahead)
        return buffer

    def _send(self, action: Action, x_BTW: Tensor) -> None:
        is_forward = action.kind == "forward"
        if is_forward and self.stage(action.slot) == self.ranks * self.slots - 1:
            return
        target = (self.rank + (1 if is_forward else -1)) % self.ranks
        wraps = self.rank == (self.ranks - 1 if is_forward else 0)
        x_BTW = x_BTW.contiguous()
        work = dist.isend(x_BTW, self.peers[target], group=self.groups[action.kind, wraps])
        assert work is not None
        for done in [other for other, (earlier, _) in self._sent.items() if earlier.is_completed()]:
            self._forget(done)
        self._sent[action] = work, x_BTW

    def _forget(self, action: Action) -> None:
        """Let go of what was sent. Activations whose gradient is here have arrived: this does not wait for them."""
        if action in self._sent:
            work, _ = self._sent.pop(action)
            work.wait()
