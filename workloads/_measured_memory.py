"""Bytes that a training step really holds, counted over the tensors themselves."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn


def local_bytes(values: Tensor | None) -> int:
    """Bytes of a tensor on this rank; of a sharded one, those of its part."""
    if values is None:
        return 0
    local = values.to_local() if hasattr(values, "to_local") else values
    return int(local.numel()) * int(local.element_size())


class SavedTensors:
    """While it is open, counts what autograd keeps for the backward pass.

    Each storage counts once and whole, as long as one saved tensor of it lives; weights do not count, but copies of
    them in another type (autocast) do. `peak_bytes` is the most that was kept at one time. What
    `torch.utils.checkpoint` keeps for a part that is computed again is its inputs; what the part keeps while it runs
    again is not seen.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._holders: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, values: Tensor) -> Any:
        if _is_weight(values):
            return values
        local = values.to_local() if hasattr(values, "to_local") else values
        try:
            storage = local.untyped_storage()
            size = storage.nbytes()
            key = storage.data_ptr()
        except (NotImplementedError, RuntimeError):  # a tensor without memory of its own (meta, fake)
            return values
        if not size:
            return values
        return _Held(self, values.detach(), key, size)

    @staticmethod
    def _unpack(packed: Any) -> Tensor:
        return packed.values if isinstance(packed, _Held) else packed

    def _add(self, key: int, size: int) -> None:
        count = self._holders.get(key, 0)
        self._holders[key] = count + 1
        if not count:
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self.live_bytes -= size


class _Held:
    """A saved tensor; its storage is free for the next when the last of these is gone."""

    def __init__(self, owner: SavedTensors, values: Tensor, key: int, size: int) -> None:
        self.owner, self.values, self.key, self.size = owner, values, key, size
        owner._add(key, size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # at the end of the interpreter
            self.owner._remove(self.key, self.size)


def _is_weight(values: Tensor) -> bool:
    base = getattr(values, "_base", None)
    return isinstance(values, nn.Parameter) or isinstance(base, nn.Parameter)
