"""Keys and values that a decoder keeps of the tokens it has seen: growing, of fixed size, or in blocks.

Attention calls `cache.update(layer, *new_BGTD)` with what it keeps of its T new tokens and gets the same tensors for
all S tokens that may matter. What is kept is attention's matter: rotated keys and values of G heads, or (mla) the
compressed row and the rotary key of one. Whoever calls the model says to the cache what comes (`begin...`, `view`) and
gives the model the cache's `mask_B1TS` of what a new token may look at; None: all up to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_perf.workloads._model_shape import ModelShape

# B batch, G key-value heads, T new tokens, S tokens in the cache, D width of what is kept, N slots of all blocks

Parts = tuple[tuple[int, int], ...]
"""Heads and width of each tensor that a layer keeps."""


def cache_parts(shape: ModelShape) -> Parts:
    """What a layer of that shape keeps of a token."""
    if shape.attention == "mla":
        return (1, shape.kv_rank), (1, shape.rope_width)
    return (shape.kv_heads, shape.key_width), (shape.kv_heads, shape.key_width)


class DynamicCache:
    """Grows with each forward: its memory is what is needed, its shapes change from step to step."""

    def __init__(self, is_real_BT: Tensor | None = None) -> None:
        """`is_real_BT`: which tokens of the first forward are no padding; None: all."""
        self.mask_B1TS: Tensor | None = None
        self._is_real_BS = is_real_BT
        self._parts: dict[int, tuple[Tensor, ...]] = {}
        self._length = 0

    def begin(self, tokens: int) -> None:
        """Get ready for a forward of that many new tokens; with several, the cache must be empty."""
        before, self._length = self._length, self._length + tokens
        if tokens > 1 and before:
            raise ValueError("a cache that holds tokens is extended by one at a time")
        if before == 0:
            self.mask_B1TS = None if self._is_real_BS is None else _causal(self._is_real_BS)
            return
        if self._is_real_BS is not None:
            self._is_real_BS = torch.nn.functional.pad(self._is_real_BS, (0, tokens), value=True)
            self.mask_B1TS = self._is_real_BS[:, None, None, :]

    def update(self, layer: int, *new_BGTD: Tensor) -> tuple[Tensor, ...]:
        """Keep the new tokens of a layer; returns all of it."""
        kept = self._parts.get(layer)
        every = new_BGTD if kept is None else tuple(map(_joined, kept, new_BGTD))
        self._parts[layer] = every
        return every

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(_bytes(parts) for parts in self._parts.values())


class StaticCache:
    """Memory and shapes fixed from the start, as a graph of the device needs them.

    Decoding attends over the whole capacity behind a mask: it reads `capacity` tokens, however few are held.
    """

    def __init__(
        self, parts: Parts, *, layers: int, batch: int, capacity: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.mask_B1TS: Tensor | None = None
        self.capacity = capacity
        self._layers = [
            tuple(torch.zeros(batch, heads, capacity, width, dtype=dtype, device=device) for heads, width in parts)
            for _ in range(layers)
        ]
        self._columns_S = torch.arange(capacity, device=device)
        self._is_real_BS = torch.ones(batch, capacity, dtype=torch.bool, device=device)
        self._at_T = self._columns_S[:0]
        self._is_first = True

    def begin_prompt(self, tokens: int, is_real_BT: Tensor | None = None) -> None:
        """Forget everything; the next forward brings the first tokens, of which `is_real_BT` are no padding."""
        if tokens > self.capacity:
            raise ValueError(f"{tokens} tokens do not fit into a cache of {self.capacity}")
        self._is_real_BS.fill_(True)
        self._is_first = True
        self._at_T = self._columns_S[:tokens]
        self.mask_B1TS = None
        if is_real_BT is not None:
            self._is_real_BS[:, :tokens] = is_real_BT
            self.mask_B1TS = _causal(is_real_BT)

    def begin_token(self, at_1: Tensor) -> None:
        """The next forward brings the token of column `at_1`, a tensor on the device: no shape depends on it."""
        self._is_first = False
        self._at_T = at_1
        self.mask_B1TS = (self._is_real_BS & (self._columns_S <= at_1))[:, None, None, :]

    def update(self, layer: int, *new_BGTD: Tensor) -> tuple[Tensor, ...]:
        """Keep the new tokens. The first ones look at themselves only: they come back as they are."""
        kept = self._layers[layer]
        for kept_BGSD, part_BGTD in zip(kept, new_BGTD, strict=True):
            kept_BGSD.index_copy_(2, self._at_T, part_BGTD.to(kept_BGSD.dtype))
        return new_BGTD if self._is_first else kept

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole capacity."""
        return sum(map(_bytes, self._layers))


class PagedCache:
    """Blocks of slots that sequences take and give back; block 0 takes what padding leaves.

    Attention reads copies of a sequence's blocks (a gather), the reference for kernels that follow the block table.
    """

    def __init__(
        self, parts: Parts, *, layers: int, blocks: int, block_tokens: int, dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:  # fmt: skip
        self.block_tokens = block_tokens
        self.device = device
        self._layers = [
            tuple(torch.zeros((blocks + 1) * block_tokens, *part, dtype=dtype, device=device) for part in parts)
            for _ in range(layers)
        ]

    def view(self, tables: Sequence[Sequence[int]], starts: Sequence[int], counts: Sequence[int]) -> PagedView:
        """The cache as one forward sees it.

        Args:
            tables: blocks of each row's sequence (from 1 on), enough for `start + count` tokens.
            starts: tokens that each sequence holds already.
            counts: new tokens of each row; shorter rows are padded at the right.
        """
        T = max(counts)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        blocks = max(-(-end // self.block_tokens) for end in ends)
        rows = [[*table[:blocks], *[0] * (blocks - len(table))] for table in tables]
        table_BK = torch.tensor(rows, device=self.device)
        inside = torch.arange(self.block_tokens, device=self.device)
        slots_BS = (table_BK[:, :, None] * self.block_tokens + inside).flatten(1)
        start_B1 = torch.tensor(starts, device=self.device)[:, None]
        count_B1 = torch.tensor(counts, device=self.device)[:, None]
        offset_T = torch.arange(T, device=self.device)
        is_new_BT = offset_T < count_B1
        position_BT = start_B1 + torch.minimum(offset_T, count_B1 - 1)
        # Padding goes to block 0; attention never looks at it, since the mask ends at a row's own tokens.
        inside_T = torch.fmod(offset_T, self.block_tokens)  # torch_npu has warnings to give for %
        target_BT = torch.where(is_new_BT, slots_BS.gather(1, position_BT), inside_T)
        column_S = torch.arange(slots_BS.shape[1], device=self.device)
        mask_B1TS = (column_S <= position_BT[:, :, None])[:, None]
        return PagedView(self._layers, slots_BS, target_BT, position_BT, mask_B1TS)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(map(_bytes, self._layers))


class PagedView:
    """The blocks of the sequences of one forward."""

    def __init__(
        self, layers: Sequence[tuple[Tensor, ...]], slots_BS: Tensor, target_BT: Tensor, position_BT: Tensor,
        mask_B1TS: Tensor,
    ) -> None:  # fmt: skip
        self.position_BT = position_BT
        self.mask_B1TS: Tensor | None = mask_B1TS
        self._layers, self._slots_BS, self._target_BT = layers, slots_BS, target_BT

    def update(self, layer: int, *new_BGTD: Tensor) -> tuple[Tensor, ...]:
        """Write the new tokens into their slots and read the slots of each sequence."""
        every = []
        for kept_NGD, part_BGTD in zip(self._layers[layer], new_BGTD, strict=True):
            new_BTGD = part_BGTD.transpose(1, 2).to(kept_NGD.dtype)
            kept_NGD.index_copy_(0, self._target_BT.flatten(), new_BTGD.flatten(0, 1))
            every.append(kept_NGD[self._slots_BS].transpose(1, 2))
        return tuple(every)


def _causal(is_real_BT: Tensor) -> Tensor:
    """Each token looks at the real ones up to itself, and at itself: the row of a padding is not empty."""
    column_T = torch.arange(is_real_BT.shape[1], device=is_real_BT.device)
    is_up_to_TT = column_T <= column_T[:, None]
    is_self_TT = column_T == column_T[:, None]
    return ((is_real_BT[:, None, :] & is_up_to_TT) | is_self_TT)[:, None]


def _joined(kept_BGSD: Tensor, new_BGTD: Tensor) -> Tensor:
    return torch.cat((kept_BGSD, new_BGTD), dim=2)


def _bytes(parts: Sequence[Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in parts)
