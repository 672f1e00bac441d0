"""The decoder of the language-model workloads in plain torch: norms, rotary embedding, attention, gated MLP.

    tokens -> embedding -> [norm -> attention -> add -> norm -> mlp -> add] x layers -> norm -> output -> logits

One class serves training, pipeline stages and generation. Attention and MLP of a block are chosen by the shape; heads
are counted from what the projections give, so that a tensor-parallel cut of the weights needs no other code.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    from ascend_perf.workloads._fused import Fused

# B batch, T tokens, S keys (T without a cache), W width, H heads, G key-value heads, D head width, K hidden,
# V vocabulary, P pairs of channels

Recompute = Literal["none", "selective", "full"]
INIT_STD = 0.02
_ZERO = ("bias", "lora_b")  # ends of names of weights that start at zero
_BLOCK_VALUES = 1 << 22  # values of a weight that are drawn from one random stream, rounded to rows


class Cache(Protocol):
    """Keys and values of earlier tokens, by layer."""

    def update(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the new tokens; what attention looks at: k_BGSD and v_BGSD."""


Core = Callable[..., Tensor]
"""`core(q_BHTD, k_BGTD, v_BGTD, *, mask_B1TS=None, ends=None, scale=None) -> y_BHTD`: the products of attention and
the softmax between them, as `Fused.attention` does. Without mask and ends it is causal. Context parallelism puts its
own here."""


class RMSNorm(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Scale to a root mean square of one, then by a learnt weight."""

    def __init__(self, width: int, epsilon: float, fused: Fused) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon, self.fused = epsilon, fused

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Normalised input."""
        return self.fused.rms_norm(x_BTW, self.weight, self.epsilon)


class Attention(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Causal attention in which H query heads share G key-value heads.

    `core` may be replaced (see `Core`); `recompute_core` runs it again in the backward pass instead of keeping what it
    saves.
    """

    def __init__(self, shape: ModelShape, *, layer: int, fused: Fused, recompute_core: bool = False) -> None:
        super().__init__()
        self.layer, self.fused, self.head_width = layer, fused, shape.key_width
        self.core: Core = fused.attention
        self.recompute_core = recompute_core
        q_width, kv_width = shape.heads * self.head_width, shape.kv_heads * self.head_width
        self.q = nn.Linear(shape.width, q_width, bias=shape.qkv_bias)
        self.k = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.v = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.out = nn.Linear(q_width, shape.width, bias=False)
        self.q_norm = RMSNorm(self.head_width, shape.norm_epsilon, fused) if shape.qk_norm else None
        self.k_norm = RMSNorm(self.head_width, shape.norm_epsilon, fused) if shape.qk_norm else None

    def forward(
        self, x_BTW: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor, mask_B1TS: Tensor | None = None,
        cache: Cache | None = None, ends: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Mixed values; the arguments are those of `Decoder.forward`."""
        q_BTHD, k_BTGD, v_BTGD = (self._heads(project(x_BTW)) for project in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHD, k_BTGD = self.q_norm(q_BTHD), self.k_norm(k_BTGD)
        q_BHTD = self.fused.rotary(q_BTHD.transpose(1, 2), cos_B1TD, sin_B1TD)
        k_BGTD = self.fused.rotary(k_BTGD.transpose(1, 2), cos_B1TD, sin_B1TD)
        v_BGTD = v_BTGD.transpose(1, 2)
        if cache is not None:
            k_BGTD, v_BGTD = cache.update(self.layer, k_BGTD, v_BGTD)
        core = recomputed(self.core) if self.recompute_core and torch.is_grad_enabled() else self.core
        y_BHTD = core(q_BHTD, k_BGTD, v_BGTD, mask_B1TS=mask_B1TS, ends=ends)
        return self.out(y_BHTD.transpose(1, 2).flatten(2))

    def _heads(self, x_BTX: Tensor) -> Tensor:
        """Split the last axis into those heads that this rank holds."""
        return x_BTX.unflatten(-1, (-1, self.head_width))


def recomputed(core: Core) -> Core:
    """The same attention, run again in the backward pass instead of keeping what it saves."""
    return functools.partial(checkpoint, core, use_reentrant=False)


class SwiGLU(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Gated MLP: down(silu(gate(x)) x up(x))."""

    def __init__(self, width: int, hidden: int, fused: Fused) -> None:
        super().__init__()
        self.fused = fused
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Transformed tokens."""
        return self.down(self.fused.swiglu(self.gate(x_BTW), self.up(x_BTW)))


def make_attention(shape: ModelShape, layer: int, fused: Fused, recompute_core: bool) -> nn.Module:
    """The attention of a block, as the shape wants it."""
    if shape.attention == "mla":
        from ascend_perf.workloads._mla import LatentAttention

        return LatentAttention(shape, layer=layer, fused=fused, recompute_core=recompute_core)
    return Attention(shape, layer=layer, fused=fused, recompute_core=recompute_core)


def make_mlp(shape: ModelShape, layer: int, fused: Fused) -> nn.Module:
    """The MLP of a block: dense, or experts behind a router."""
    if shape.experts and layer >= shape.dense_layers:
        from ascend_perf.workloads._moe import MixtureOfExperts

        return MixtureOfExperts(shape, layer=layer, fused=fused)
    return SwiGLU(shape.width, shape.hidden, fused)


class Block(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Attention and MLP, each normalised before and added after."""

    def __init__(self, shape: ModelShape, *, layer: int, fused: Fused, recompute: Recompute = "none") -> None:
        super().__init__()
        self.recompute, self.fused = recompute, fused
        self.attention_norm = RMSNorm(shape.width, shape.norm_epsilon, fused)
        self.attention = make_attention(shape, layer, fused, recompute == "selective")
        self.mlp_norm = RMSNorm(shape.width, shape.norm_epsilon, fused)
        self.mlp = make_mlp(shape, layer, fused)

    def forward(
        self, x_BTW: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor, mask_B1TS: Tensor | None = None,
        cache: Cache | None = None, ends: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Tokens after the block."""
        # Here and not around the block: hooks of FSDP on the block must not run again.
        if self.recompute == "full" and torch.is_grad_enabled():
            return checkpoint(self._pass, x_BTW, cos_B1TD, sin_B1TD, mask_B1TS, None, ends, use_reentrant=False)
        return self._pass(x_BTW, cos_B1TD, sin_B1TD, mask_B1TS, cache, ends)

    def _pass(
        self, x_BTW: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor, mask_B1TS: Tensor | None, cache: Cache | None,
        ends: Sequence[int] | None,
    ) -> Tensor:  # fmt: skip
        mixed_BTW = self.attention(self.attention_norm(x_BTW), cos_B1TD, sin_B1TD, mask_B1TS, cache, ends)
        if self.fused.uses("add_rms_norm"):  # in inference: it has no gradient
            norm = self.mlp_norm
            normed_BTW, x_BTW = self.fused.add_rms_norm(mixed_BTW, x_BTW, norm.weight, norm.epsilon)
        else:
            x_BTW = x_BTW + mixed_BTW
            normed_BTW = self.mlp_norm(x_BTW)
        return x_BTW + self.mlp(normed_BTW)


class Decoder(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Embedding, blocks, norm, output layer; or the part of them that is one stage of a pipeline.

    Args:
        layers: the blocks of this stage, by their index in the whole model; None: all.
        has_embedding: tokens come in; else the activations of the stage before.
        has_output: logits go out; else activations.

    Weights are not initialised here: build under `torch.device("meta")` and call `materialise`.
    """

    def __init__(
        self, shape: ModelShape, *, fused: Fused, recompute: Recompute = "none", layers: range | None = None,
        has_embedding: bool = True, has_output: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape, self.fused = shape, fused
        self.embedding = nn.Embedding(shape.vocabulary, shape.width) if has_embedding else None
        self.blocks = nn.ModuleDict({
            str(layer): Block(shape, layer=layer, fused=fused, recompute=recompute)
            for layer in (range(shape.layers) if layers is None else layers)
        })  # fmt: skip
        self.norm = RMSNorm(shape.width, shape.norm_epsilon, fused) if has_output else None
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False) if has_output else None
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the output layer use the embedding table where the shape says so and both are here."""
        if self.shape.tied and self.embedding is not None and self.output is not None:
            self.output.weight = self.embedding.weight

    def forward(
        self, x: Tensor, *, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None,
        ends: Sequence[int] | None = None, mask_B1TS: Tensor | None = None, cache: Cache | None = None,
        logits_at_B: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits for the token after each position, or the activations for the next stage.

        Args:
            x: tokens_BT, or x_BTW from the stage before.
            positions_BT: place of each token in its own text, for the rotary embedding; None: 0, 1, 2 ...
            segments_BT: number of the text that each token belongs to, when several are packed into a row: a token
                sees only earlier ones of its own text.
            ends: given with segments, on the host, for the fused operator: where each text ends, counted over all rows.
            mask_B1TS: True where a token may look. Needed with a cache, whose keys are more than the tokens; else
                None for causal attention.
            logits_at_B: the one position in each row whose logits are wanted; None: all.
        """
        cos_B1TD, sin_B1TD = self.rotary_tables(x.shape[1], positions_BT, x.device)
        if not self.fused.uses("attention"):
            ends = None  # plain torch would make the mask again in every layer
        if segments_BT is not None and ends is None:
            mask_B1TS = packed_mask(segments_BT)
        x_BTW = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            x_BTW = block(x_BTW, cos_B1TD, sin_B1TD, mask_B1TS, cache, ends)
        if self.output is None or self.norm is None:
            return x_BTW
        if logits_at_B is not None:
            x_BTW = x_BTW[torch.arange(len(x_BTW), device=x_BTW.device), logits_at_B].unsqueeze(1)
        return self.output(self.norm(x_BTW))

    def rotary_tables(self, tokens: int, positions_BT: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine, B x 1 x T x D in fp32 (B is 1 without positions), for `rotary`."""
        width = self.shape.rope_width if self.shape.attention == "mla" else self.shape.key_width
        if positions_BT is None:
            positions_BT = torch.arange(tokens, device=device).unsqueeze(0)
        return rotary_tables(positions_BT, width, self.shape.rope_base)


def rotary_tables(positions_BT: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, B x 1 x T x D, of position x base^(-2 i / D) for each pair of channels (i, i + D/2)."""
    pair_P = torch.arange(0, head_width, 2, device=positions_BT.device, dtype=torch.float32)
    angle_B1TP = positions_BT[:, None, :, None].float() * base ** (-pair_P / head_width)
    angle_B1TD = torch.cat((angle_B1TP, angle_B1TP), dim=-1)
    return angle_B1TD.cos(), angle_B1TD.sin()


def packed_mask(segments_BT: Tensor) -> Tensor:
    """B x 1 x T x T: True where a token and a not later one belong to the same text."""
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    return same_BTT.tril().unsqueeze(1)


class Cut(Protocol):
    """Which part of a whole weight a module holds: the `index`-th of `count` equal pieces along `axis`."""

    @property
    def axis(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...


def materialise(
    model: nn.Module, *, seed: int, device: str | torch.device, dtype: torch.dtype = torch.float32, prefix: str = "",
    cuts: Mapping[str, Cut] | None = None,
) -> None:  # fmt: skip
    """Give a model that was built on the meta device its weights, each drawn from the seed and its own full name.

    So every stage, every shard and every layout starts from the same values, whatever the device; of a sharded weight
    (DTensor) only the rows of this rank are drawn. Matrices are normal with `INIT_STD`; norms are one, biases and
    buffers zero.

    Args:
        prefix: what comes before a parameter's name in the whole model, for a part of it.
        cuts: by name, weights of which the model holds a part only (tensor parallelism).
    """
    model.to_empty(device=device)
    model.to(dtype)
    for module in model.modules():
        for name in getattr(module, "keeps_fp32", ()) if dtype != torch.float32 else ():
            setattr(module, name, nn.Parameter(getattr(module, name).float()))
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()
    for name, weight in model.named_parameters():
        initialise(weight, prefix + name, seed, (cuts or {}).get(name))
    for buffer in model.buffers():
        buffer.zero_()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
def initialise(weight: Tensor, name: str, seed: int, cut: Cut | None = None) -> None:
    """Fill a weight, or this rank's part of it, with the values that belong to the seed and the name."""
    local, offsets = local_part(weight)
    if computes_nothing(local.device.type):
        return  # gigabytes of random numbers would be drawn and copied for nothing
    if name.endswith(_ZERO):
        local.zero_()
    elif weight.dim() < 2:
        local.fill_(1.0)
    elif local.numel():
        size = list(weight.shape)
        if cut is not None:
            offsets[cut.axis] += cut.index * size[cut.axis]
            size[cut.axis] *= cut.count
        spans = [slice(start, start + length) for start, length in zip(offsets, local.shape, strict=True)]
        rows, spans[0] = spans[0], slice(None)
        local.copy_(_drawn(name, seed, size, rows)[tuple(spans)])


def local_part(weight: Tensor) -> tuple[Tensor, list[int]]:
    """Values of this rank, and where they start in the whole weight."""
    chunks = getattr(weight, "__create_chunk_list__", None)  # how torch.distributed.checkpoint asks a DTensor
    if chunks is None:
        return weight, [0] * weight.dim()
    parts = chunks()
    local = weight.to_local()
    return local, list(parts[0].offsets) if parts else [0] * weight.dim()


def _drawn(name: str, seed: int, size: Sequence[int], rows: slice) -> Tensor:
    """Rows of a normal weight in fp32 on the CPU; equal for every way of asking."""
    block = max(1, _BLOCK_VALUES // math.prod(size[1:]))
    first, last = rows.start // block, (rows.stop - 1) // block
    parts = []
    for number in range(first, last + 1):
        digest = hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest()
        random = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        part = torch.empty((min(block, size[0] - number * block), *size[1:]))
        parts.append(part.normal_(std=INIT_STD, generator=random))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole[rows.start - first * block : rows.stop - first * block]


def attentions(model: nn.Module) -> Iterator[nn.Module]:
    """The attention modules of a model, in order: those with a `core`."""
    return (module for module in model.modules() if hasattr(module, "core"))
