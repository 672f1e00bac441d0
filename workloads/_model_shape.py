"""The shape of a decoder language model: the settings that decide its weights, and what follows from them.

Dense (Llama, Qwen), mixture of experts and multi-head latent attention (DeepSeek) are one shape with parts left out.
Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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


# What a training step holds


@dataclass(frozen=True, kw_only=True)
class Held:
    """How a training step holds its tensors: what decides the bytes of activations beside the shape.

    Autocast over fp32 weights is `value_bytes=2, residual_bytes=4`; all in one type has both alike.
    """

    batch: int
    tokens: int
    """Of a sequence on this rank: context parallelism divides it."""
    recompute: Literal["none", "selective", "full"] = "none"
    value_bytes: int = 4
    """Of a value that products take and give."""
    residual_bytes: int = 4
    """Of a value of the stream to which layers add."""
    fused: frozenset[str] = frozenset()
    """Operators of torch_npu (`_fused.OPERATORS`), which keep other tensors than plain torch does."""
    tensor_ranks: int = 1
    sequence_parallel: bool = False
    expert_ranks: int = 1

    @property
    def autocast(self) -> bool:
        """Products take another type than the stream has: each makes a copy of its input and of its weight."""
        return self.value_bytes != self.residual_bytes

    @property
    def norm_rows(self) -> int:
        """Tokens of all sequences that the norms of this rank see."""
        return self.batch * self.tokens // (self.tensor_ranks if self.sequence_parallel else 1)

    def input_copies(self, products: int) -> int:
        """Copies of the input of so many products that are kept: each casts its own, but tensor parallelism casts it
        once, before it is sent."""
        return products if self.autocast and self.tensor_ranks == 1 else 1


def held_as(
    *, batch: int, tokens: int, dtype: str, weights: str = "fp32", recompute: Literal["none", "selective", "full"],
    fused: frozenset[str] = frozenset(), tensor_ranks: int = 1, sequence_parallel: bool = False,
    expert_ranks: int = 1,
) -> Held:  # fmt: skip
    """`Held` by the words of the settings: `dtype` fp32, bf16 or fp16 of products, `weights` fp32 or bf16."""
    return Held(
        batch=batch, tokens=tokens, recompute=recompute, value_bytes=VALUE_BYTES[dtype],
        residual_bytes=VALUE_BYTES[weights], fused=fused, tensor_ranks=tensor_ranks,
        sequence_parallel=sequence_parallel, expert_ranks=expert_ranks,
    )  # fmt: skip


VALUE_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


def layer_activation_bytes(shape: ModelShape, layer: int, held: Held) -> int:
    """Bytes that one layer keeps for the backward pass, each storage once; see docs/formulas.md for the derivation."""
    rows = held.batch * held.tokens
    if held.recompute == "full":
        return held.norm_rows * shape.width * held.residual_bytes
    norms = held.norm_rows * 2 * _norm_bytes(shape.width, held.residual_bytes, held)
    attention = rows * _attention_bytes(shape, held)
    if has_experts(shape, layer):  # tensor ranks route tokens of their own
        mlp = held.norm_rows * _experts_bytes(shape, held) + held.batch * shape.experts * 4
    else:
        mlp = rows * _mlp_bytes(shape, held)
    copies = 0
    if held.autocast:
        copies += weight_copy_values(shape, layer, held) * held.value_bytes
    if held.value_bytes != 4:
        copies += 4 * held.tokens * _rope_width(shape) * held.value_bytes  # cosine and sine, for queries and for keys
    return norms + attention + mlp + copies


def _norm_bytes(values: int, value_bytes: int, held: Held) -> int:
    """RMSNorm of one token: its input and 1 / root mean square; in parts the input and the normalised one in fp32."""
    return values * (value_bytes if "rms_norm" in held.fused else 8) + 4


def _rope_width(shape: ModelShape) -> int:
    return shape.rope_width if shape.attention == "mla" else shape.key_width


def _attention_bytes(shape: ModelShape, held: Held) -> int:
    """Input of the products, q, k, v, result, and the logarithm of each softmax's sum (not with selective).

    torch_npu's operators keep what they turn (rotary), the result in the order of heads beside the one in the order of
    tokens, and maximum and sum of each softmax, eight times over (attention).
    """
    value, ranks = held.value_bytes, held.tensor_ranks
    heads, groups = shape.heads // ranks, max(1, shape.kv_heads // ranks)
    inputs = shape.width * value * held.input_copies(2 if shape.attention == "mla" else 3)
    is_flash, is_kept = "attention" in held.fused, held.recompute != "selective"
    sums = heads * (2 * 8 * 4 if is_flash else 4) if is_kept else 0
    if shape.attention == "mla":
        return inputs + _latent_bytes(shape, held) + sums
    width = shape.key_width
    norms = turned = by_head = 0
    if shape.qk_norm:
        norms = (heads + groups) * _norm_bytes(width, value, held)
    if "rotary" in held.fused:
        turned = (heads + groups) * width * value
    if is_flash and is_kept:
        by_head = heads * width * value
    return inputs + 2 * (heads + groups) * width * value + sums + norms + turned + by_head


def _latent_bytes(shape: ModelShape, held: Held) -> int:
    """MLA beside its input: the compressed ones with their norms, q, k, the expanded ones of which v is a part, and the
    result, by head for the core (not with selective) and by token for the product behind it.

    torch_npu's rotary embedding keeps q as it was, its attention v and the result as wide as keys.
    """
    value, heads = held.value_bytes, shape.heads // held.tensor_ranks
    results = 1 if held.recompute == "selective" else 2
    width, expanded = shape.key_width, shape.nope_width + shape.value_width
    products = 2 * width + expanded + results * shape.value_width
    if "rotary" in held.fused:
        products += width
    if "attention" in held.fused and results == 2 and shape.value_width < width:
        products += 2 * width - expanded - shape.value_width
    products *= heads
    norms = _norm_bytes(shape.kv_rank, value, held) + shape.kv_rank * value
    if "rms_norm" in held.fused or value == 4:
        norms += shape.rope_width * value  # lies in one tensor with what the norm keeps
    if shape.q_rank is not None:
        norms += _norm_bytes(shape.q_rank, value, held) + shape.q_rank * value
    return products * value + norms


def _mlp_bytes(shape: ModelShape, held: Held) -> int:
    """Input of gate and up, their results, silu(gate), and the product that down takes."""
    inputs = shape.width * held.value_bytes * held.input_copies(2)
    return inputs + _hidden_bytes(held) * shape.hidden // held.tensor_ranks


def _experts_bytes(shape: ModelShape, held: Held) -> int:
    """The same for router and experts of one token: one input for all, then for each choice the sorted row, what the
    expert keeps and its result. Scores twice (weights, balance), choices, weights and places of rows."""
    value, k = held.value_bytes, shape.experts_per_token
    router = 8 * shape.experts + 4 + k * (28 + value)
    routed = k * (2 * shape.width * value + _hidden_bytes(held) * shape.expert_hidden)
    return shape.width * value + router + routed + _hidden_bytes(held) * shape.shared_experts * shape.expert_hidden


def _hidden_bytes(held: Held) -> int:
    return (3 if "swiglu" in held.fused else 4) * held.value_bytes


def weight_copy_values(shape: ModelShape, layer: int, held: Held) -> int:
    """Values of a layer's matrices on one rank, of which autocast keeps a copy in the type of the products."""
    norms = 2 * shape.key_width if shape.qk_norm and shape.attention == "gqa" else 0
    norms += _attention_vectors(shape) if shape.attention == "mla" else 0
    attention, mlp = _attention_matrices(shape) + norms, mlp_parameters(shape, layer)
    if not has_experts(shape, layer):
        return (attention + mlp) // held.tensor_ranks
    elsewhere = shape.experts - shape.experts // held.expert_ranks
    return attention // held.tensor_ranks + mlp - elsewhere * expert_parameters(shape)


def ends_activation_bytes(shape: ModelShape, held: Held, *, embedding: bool = True, output: bool = True) -> int:
    """Bytes kept outside the layers: the tokens' numbers, and last norm, output layer and loss.

    Of the loss it is log-softmax in fp32 and the targets. While its backward runs, two more fp32 values per logit and
    the logits themselves are there for a moment.
    """
    rows = held.batch * held.tokens
    total = 8 * rows if embedding else 0
    if held.value_bytes == 4 or held.recompute == "full":
        total += 2 * held.tokens * _rope_width(shape) * 4  # cosine and sine, shared by all layers
    if output:
        vocabulary = shape.vocabulary // held.tensor_ranks
        total += held.norm_rows * _norm_bytes(shape.width, held.residual_bytes, held)
        total += rows * (shape.width * held.value_bytes + vocabulary * 4 + 8)
        total += vocabulary * shape.width * held.value_bytes if held.autocast else 0
    return total


def memory_prediction(
    shape: ModelShape, held: Held, *, weights: str = "fp32", parameters: int | None = None,
    trained: int | None = None, shards: int = 1, layers: range | None = None, embedding: bool = True,
    output: bool = True, in_flight: int = 1,
) -> dict[str, int]:  # fmt: skip
    """Bytes on one rank at the end of the forward pass, when most is held, by component. A model, not a measurement.

    Args:
        weights: fp32 or bf16, the type in which weights, gradients and both moments of AdamW are held.
        parameters: weights on this rank; None: of `layers` with the ends that this rank has.
        trained: how many of them are trained; None: all.
        shards: ranks over which weights, gradients and moments are cut (FSDP).
        layers: layers of this rank; None: all.
        in_flight: micro-batches whose activations are held at once (a pipeline's stages).
    """
    chosen = range(shape.layers) if layers is None else layers
    if parameters is None:
        parameters = sum(layer_parameters(shape, layer) for layer in chosen)
        parameters += embedding_parameters(shape) if embedding else 0
        parameters += shape.width + output_parameters(shape) if output else 0
        parameters += embedding_parameters(shape) if output and shape.tied and not embedding else 0
    trained = parameters if trained is None else trained
    value = VALUE_BYTES[weights]
    activations = sum(layer_activation_bytes(shape, layer, held) for layer in chosen)
    activations += ends_activation_bytes(shape, held, embedding=embedding, output=output)
    return {
        "weights": -(-parameters // shards) * value,
        "gradients": -(-trained // shards) * value,
        "optimizer": -(-trained // shards) * value * 2,
        "activations": activations * in_flight,
    }


def recomputed_flops(shape: ModelShape, tokens: int, recompute: Literal["none", "selective", "full"]) -> int:
    """Work that the backward pass does again in one sequence: all layers' forward, or the products of attention.

    torch's checkpoint stops when it has what backward needs: a dense layer's last product (down) is not done again.
    """
    attention = 2 * shape.layers * shape.heads * (shape.key_width + shape.value_head_width) * tokens * tokens
    if recompute == "selective":
        return attention
    if recompute == "none":
        return 0
    down = 2 * (shape.layers - shape.moe_layers) * shape.width * shape.hidden * tokens
    return forward_flops(shape, tokens, tokens, output_tokens=0) - down
