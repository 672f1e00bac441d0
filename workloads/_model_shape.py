"""The shape of a decoder language model: the settings that decide its weights, and what follows from them.

Dense (Llama, Qwen), mixture of experts and multi-head latent attention (DeepSeek) are one shape with parts left out.
Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ascend_perf.workloads._spec import at_least


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A group of settings (see `_spec.Workload`): sizes of a decoder. Attention `gqa` ignores the widths of `mla`."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_width: int | None = None
    """Width of a head; None: width / heads."""
    hidden: int = 704
    """Inner width of the dense gated MLP."""
    vocabulary: int = 8192
    tied: bool = False
    """The output layer is the embedding table."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k, as in Qwen3."""
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5
    attention: Literal["gqa", "mla"] = "gqa"
    q_rank: int | None = None
    """mla: width of the compressed query; None: the query is not compressed."""
    kv_rank: int = 512
    """mla: width of the compressed key and value, which the cache holds."""
    nope_width: int = 128
    """mla: width of a head's part without position."""
    rope_width: int = 64
    """mla: width of a head's part with position; the key's is shared by all heads."""
    value_width: int = 128
    """mla: width of a head's value."""
    experts: int = 0
    """Routed experts of a layer; 0: the model is dense."""
    experts_per_token: int = 2
    shared_experts: int = 0
    """Experts that every token passes, each `expert_hidden` wide."""
    expert_hidden: int = 128
    dense_layers: int = 0
    """The first layers that keep the dense MLP in a model with experts."""

    def __post_init__(self) -> None:
        at_least(self, 1, "layers", "width", "heads", "kv_heads", "hidden")
        at_least(self, 0, "experts", "shared_experts", "dense_layers")
        at_least(self, 2, "vocabulary")
        if self.attention == "gqa":
            self._check_gqa()
        else:
            at_least(self, 1, "kv_rank", "nope_width", "rope_width", "value_width")
            if self.rope_width % 2:
                raise ValueError(f"rope_width is {self.rope_width}; rotary embedding needs an even width")
        if self.experts:
            at_least(self, 1, "experts_per_token", "expert_hidden")
            if self.experts_per_token > self.experts:
                raise ValueError(f"experts_per_token {self.experts_per_token} is more than the {self.experts} experts")
            if self.dense_layers > self.layers:
                raise ValueError(f"dense_layers {self.dense_layers} is more than the {self.layers} layers")

    def _check_gqa(self) -> None:
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads")
        if self.key_width % 2:
            raise ValueError(f"a head is {self.key_width} wide; rotary embedding needs an even width")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into {self.kv_heads} kv_heads")

    @property
    def key_width(self) -> int:
        """Width of a query's or key's head, in which attention compares."""
        if self.attention == "mla":
            return self.nope_width + self.rope_width
        return self.head_width if self.head_width is not None else self.width // self.heads

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0
