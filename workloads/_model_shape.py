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

    @property
    def value_head_width(self) -> int:
        """Width of a head of the values, which attention mixes."""
        return self.value_width if self.attention == "mla" else self.key_width


# What a shape weighs


def attention_parameters(shape: ModelShape) -> int:
    """Weights of the attention of one layer, its inner norms and biases included, the norm before it not."""
    return _attention_matrices(shape) + _attention_vectors(shape)


def mlp_parameters(shape: ModelShape, layer: int) -> int:
    """Weights of the MLP, or of router and all experts, of one layer."""
    if not has_experts(shape, layer):
        return 3 * shape.width * shape.hidden
    experts = (shape.experts + shape.shared_experts) * expert_parameters(shape)
    return experts + shape.width * shape.experts


def expert_parameters(shape: ModelShape) -> int:
    """Weights of one expert: gate, up and down."""
    return 3 * shape.width * shape.expert_hidden


def layer_parameters(shape: ModelShape, layer: int) -> int:
    """Weights of one layer with its two norms."""
    return attention_parameters(shape) + mlp_parameters(shape, layer) + 2 * shape.width


def embedding_parameters(shape: ModelShape) -> int:
    """Weights of the embedding table. A tied output layer has no others."""
    return shape.vocabulary * shape.width


def output_parameters(shape: ModelShape) -> int:
    """Weights of the output layer alone; 0 when it is the embedding table."""
    return 0 if shape.tied else shape.vocabulary * shape.width


def parameter_count(shape: ModelShape) -> int:
    """All weights of the model, each once."""
    layers = sum(layer_parameters(shape, layer) for layer in range(shape.layers))
    return embedding_parameters(shape) + layers + shape.width + output_parameters(shape)


def active_parameter_count(shape: ModelShape) -> int:
    """Weights less the routed experts that a token does not pass. The embedding table counts whole, as in the figures
    that Mixtral's and Qwen's authors publish; DeepSeek's leave it out."""
    unused = shape.experts - shape.experts_per_token if shape.experts else 0
    return parameter_count(shape) - shape.moe_layers * unused * expert_parameters(shape)


def matmul_parameters(shape: ModelShape) -> int:
    """Weights that one token is multiplied with: no embedding table (a look-up), norms or biases, of the routed experts
    those it passes, and the output layer, also where that is the embedding table."""
    total = shape.vocabulary * shape.width
    for layer in range(shape.layers):
        total += layer_matmul_parameters(shape, layer)
    return total


def layer_matmul_parameters(shape: ModelShape, layer: int) -> int:
    """The part of `matmul_parameters` that lies in one layer."""
    if not has_experts(shape, layer):
        return _attention_matrices(shape) + 3 * shape.width * shape.hidden
    passed = shape.experts_per_token + shape.shared_experts
    return _attention_matrices(shape) + passed * expert_parameters(shape) + shape.width * shape.experts


def has_experts(shape: ModelShape, layer: int) -> bool:
    """Whether the layer (from 0) has routed experts in place of the dense MLP."""
    return shape.experts > 0 and layer >= shape.dense_layers


def _attention_matrices(shape: ModelShape) -> int:
    width, heads = shape.width, shape.heads
    out = heads * shape.value_head_width * width
    if shape.attention == "gqa":
        return width * (heads + 2 * shape.kv_heads) * shape.key_width + out
    query = heads * shape.key_width
    query = width * query if shape.q_rank is None else shape.q_rank * (width + query)
    compressed = width * (shape.kv_rank + shape.rope_width)
    return query + compressed + shape.kv_rank * heads * (shape.nope_width + shape.value_width) + out


def _attention_vectors(shape: ModelShape) -> int:
    if shape.attention == "mla":
        return shape.kv_rank + (shape.q_rank or 0)
    biases = (shape.heads + 2 * shape.kv_heads) * shape.key_width if shape.qkv_bias else 0
    return biases + (2 * shape.key_width if shape.qk_norm else 0)


# What a step works


def forward_flops(shape: ModelShape, tokens: int, context: int, *, output_tokens: int | None = None) -> int:
    """Work of one forward pass of one sequence: `tokens` new tokens, each looking at `context` keys.

    A multiplication and an addition count two. The causal mask is not subtracted (PaLM's convention), norms, rotary
    embedding, softmax and activations do not count. `output_tokens`: how many tokens get logits; None: all.
    MLA is counted uncompressed: key and value of the new tokens only are expanded from the cache.
    """
    attention = 2 * shape.layers * shape.heads * (shape.key_width + shape.value_head_width) * tokens * context
    output = shape.vocabulary * shape.width
    with_output = tokens if output_tokens is None else output_tokens
    return 2 * (matmul_parameters(shape) - output) * tokens + attention + 2 * output * with_output


def train_flops(shape: ModelShape, tokens: int) -> int:
    """Model work of forward and backward of one sequence: backward is two products for each of forward's."""
    return 3 * forward_flops(shape, tokens, tokens)


def cache_bytes_per_token(shape: ModelShape, bytes_per_value: int) -> int:
    """Key-value cache of one token over all layers: G heads of key and value, or MLA's compressed ones."""
    if shape.attention == "mla":
        return shape.layers * (shape.kv_rank + shape.rope_width) * bytes_per_value
    return 2 * shape.layers * shape.kv_heads * shape.key_width * bytes_per_value
