"""Work of the kernels of a GPU from the framework operator that launched them: FLOPs, bytes and the formula.

The operators record the shapes of their inputs alone. Outputs follow from them where the operator says how; where they
do not, the bytes of the inputs stand as a lower bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ascend_perf.ops import formulas
from ascend_perf.ops.formulas import NOTHING, Amount, conv_flops, per_element
from ascend_perf.ops.shapes import BYTES_OF, Shape, plain_dtype, split_dtypes, unit_dtype

MAX_ARGUMENTS: Final = 2000
"""Longer lists of arguments are not read. Status: assumed."""

ARGUMENTS_OF: Final = ("conv", "attention", "attn", "mha")
"""Operators whose scalar arguments are needed have one of these in their names."""


_PRODUCTS: Final = {
    "mm": 0, "bmm": 0, "linear": 0, "matmul": 0, "_scaled_mm": 0, "_grouped_mm": 0, "_int_mm": 0, "addmm": 1,
    "baddbmm": 1, "_addmm_activation": 1,
}  # fmt: skip
"""Place of the first operand of the product."""
def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_UNARY: Final = _names(
    "abs neg exp exp2 expm1 log log2 log1p log10 sqrt rsqrt square reciprocal sin cos tan tanh sigmoid relu relu6 "
    "gelu silu mish elu selu leaky_relu hardtanh hardswish hardsigmoid softplus clamp clamp_min clamp_max erf "
    "floor ceil round trunc sign logical_not bitwise_not isnan isinf isfinite threshold dropout native_dropout "
    "sgn erfinv logit log_sigmoid_forward nan_to_num frac"
)
_BINARY: Final = _names(
    "add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 eq ne lt le "
    "gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor masked_fill gelu_backward "
    "silu_backward tanh_backward sigmoid_backward threshold_backward hardtanh_backward hardswish_backward "
    "leaky_relu_backward softplus_backward elu_backward native_dropout_backward masked_scale log_sigmoid_backward "
    "hardsigmoid_backward lerp mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss "
    "l1_loss huber_loss glu"
)
_TERNARY: Final = _names(
    "where addcmul addcdiv mse_loss_backward binary_cross_entropy_backward smooth_l1_loss_backward"
)
_ARITY: Final = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2), **dict.fromkeys(_TERNARY, 3)}
_COMPARISONS: Final = _names(
    "eq ne lt le gt ge logical_not logical_and logical_or logical_xor isnan isinf isfinite"
)
_REDUCTIONS: Final = _names(
    "sum mean prod max min amax amin argmax argmin any all var std var_mean std_mean norm linalg_vector_norm "
    "logsumexp aminmax nansum count_nonzero _local_scalar_dense"
)
_SCANS: Final = _names(
    "cumsum cumprod logcumsumexp"
)
_COPIES: Final = _names(
    "copy_ clone contiguous _to_copy to repeat roll flip"
)
_FILLS: Final = _names(
    "fill_ zero_ zeros_like ones_like full_like"
)
_GATHERS: Final = _names(
    "index_select embedding"
)
_NORMS: Final = _names(
    "native_layer_norm layer_norm native_group_norm group_norm native_batch_norm cudnn_batch_norm "
    "miopen_batch_norm batch_norm _native_batch_norm_legit rms_norm _fused_rms_norm batch_norm_elemt "
    "_batch_norm_with_update rmsnorm rms_norm_fwd"
)
_NORMS_BACKWARD: Final = _names(
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward cudnn_batch_norm_backward "
    "miopen_batch_norm_backward batch_norm_backward _fused_rms_norm_backward"
)
_POOLS: Final = _names(
    "max_pool2d_with_indices max_pool2d avg_pool2d avg_pool3d max_pool3d_with_indices _adaptive_avg_pool2d "
    "adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d"
)
_LOSSES: Final = _names(
    "nll_loss_forward nll_loss2d_forward nll_loss kl_div"
)


class _Conv(NamedTuple):
    """Places of the arguments of a convolution."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None = None


_CONVOLUTIONS: Final = {
    "convolution": _Conv(3, 4, 5, 6), "_convolution": _Conv(3, 4, 5, 6), "convolution_overrideable": _Conv(3, 4, 5, 6),
    "cudnn_convolution": _Conv(3, 2, 4), "miopen_convolution": _Conv(4, 3, 5), "conv1d": _Conv(3, 4, 5),
    "conv2d": _Conv(3, 4, 5), "conv3d": _Conv(3, 4, 5), "_conv_depthwise2d": _Conv(4, 5, 6),
    "miopen_depthwise_convolution": _Conv(4, 3, 5), "cudnn_convolution_relu": _Conv(3, 4, 5),
}  # fmt: skip


class _Fused(NamedTuple):
    """A fused attention operator: where its operands are, which layout they have, and where it says what it masks."""

    query: int
    heads_first: bool
    causal: int
    backward: bool = False


_ATTENTION: Final = {
    "_flash_attention_forward": _Fused(0, False, 8),
    "_flash_attention_backward": _Fused(1, False, 11, True),
    "_efficient_attention_forward": _Fused(0, False, 9),
    "_efficient_attention_backward": _Fused(1, False, 14, True),
    "_scaled_dot_product_flash_attention": _Fused(0, True, 4),
    "_scaled_dot_product_flash_attention_backward": _Fused(1, True, 11, True),
    "_scaled_dot_product_efficient_attention": _Fused(0, True, 6),
    "_scaled_dot_product_efficient_attention_backward": _Fused(1, True, 11, True),
    "_scaled_dot_product_cudnn_attention": _Fused(0, True, 6),
    "_scaled_dot_product_cudnn_attention_backward": _Fused(1, True, 14, True),
    "_flash_attn_forward": _Fused(0, False, 5),
    "_flash_attn_backward": _Fused(1, False, 11, True),
}
"""Source: signatures in native_functions.yaml of PyTorch 2.x and in flash_attn_interface.py; layout [B, H, S, D] or
[B, S, H, D]."""


@dataclass
class ConvSizes:
    """Sizes of convolutions that old traces leave open, from other calls of the same layers.

    A forward call without its arguments has no output; a backward call that names sizes as numbers has no input or
    filter. The forward call has both of these, and the backward calls the gradient of the output. Where two layers
    could be meant the size stays unknown.
    """

    filters: dict[tuple[Shape, int], set[Shape]] = field(default_factory=dict)
    outputs: dict[tuple[Shape, int], set[Shape]] = field(default_factory=dict)
    """By shape of the input and output channels: gradients that backward calls of the filter have."""

    def learn(self, name: str, inputs: Sequence[Shape], arguments: str) -> None:
        """Take note of one call."""
        short = _short(name)
        if short in _CONVOLUTIONS and len(inputs) > 1 and len(inputs[1]) > 2:
            self.filters.setdefault((inputs[0], inputs[1][0]), set()).add(inputs[1])
        elif short == "cudnn_convolution_backward_weight" and len(inputs) > 2 and len(inputs[1]) > 2:
            self.outputs.setdefault((inputs[2], inputs[1][1]), set()).add(inputs[1])

    def output(self, image: Shape, weight: Shape) -> Shape | None:
        """Output of a convolution."""
        if self.filters.get((image, weight[0])) != {weight}:
            return None
        return _only(self.outputs.get((image, weight[0])))

    def weight(self, image: Shape, gradient: Shape) -> Shape | None:
        """Filter of a backward call of the filter."""
        return _only(self.filters.get((image, gradient[1])))


def host_work(
    name: str, inputs: Sequence[Shape], dtypes: str, arguments: str, sizes: ConvSizes
) -> tuple[Amount, str | None]:
    """Work of one call of an operator, and the dtype in which its units compute.

    Args:
        name: operator, such as `aten::mm`.
        inputs: shapes of its inputs; () for scalars, lists and what is not recorded.
        dtypes: their dtypes, separated by `;`.
        arguments: its arguments as a JSON list of texts, empty where unknown.
        sizes: what other calls tell of convolutions.
    """
    call = _Call(_short(name), tuple(inputs), tuple(split_dtypes(dtypes)), _arguments(arguments))
    dtype = next((unit for at in range(len(call.inputs)) if (unit := unit_dtype(call.dtype(at))) is not None), None)
    if not call.inputs or any(dim < 0 for shape in call.inputs for dim in shape):
        return NOTHING, None
    if call.name in _PRODUCTS:
        first = _PRODUCTS[call.name]
        return _product(call, first), unit_dtype(call.dtype(first))
    if call.name in _CONVOLUTIONS or "convolution_backward" in call.name:
        return _convolution(call, sizes), dtype
    if call.name in _ATTENTION:
        return _attention(call, _ATTENTION[call.name]), dtype
    return _vector(call), dtype


class _Call(NamedTuple):
    name: str
    inputs: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    arguments: tuple[str, ...]

    def dtype(self, at: int) -> str:
        return self.dtypes[at] if at < len(self.dtypes) else ""

    def shape(self, at: int) -> Shape:
        return self.inputs[at] if at < len(self.inputs) else ()

    def width(self, at: int) -> float:
        """Bytes of an element, NaN where the dtype is not known."""
        return BYTES_OF.get(plain_dtype(self.dtype(at)), math.nan)

    def size(self, at: int) -> float:
        """Bytes of an input; those without a shape count nothing."""
        shape = self.shape(at)
        return math.prod(shape) * self.width(at) if shape else 0.0

    def tensors(self) -> list[int]:
        """Places of the inputs that are tensors of some dimension."""
        return [at for at, shape in enumerate(self.inputs) if shape]


def _product(call: _Call, first: int) -> Amount:
    a, b = call.shape(first), call.shape(first + 1)
    if len(a) < 2 or len(b) < 2 or min(*a, *b) < 1:
        return NOTHING
    width = call.width(first)
    if call.name == "linear":
        m, k, n, batch, fits = math.prod(a[:-1]), a[-1], b[0], 1, b[-1] == a[-1]
    elif call.name == "_grouped_mm":
        # (M, K) x (E, K, N): every token meets the weights of one expert.
        if len(a) != 2 or len(b) != 3 or b[1] != a[1]:
            return NOTHING
        size = width * (math.prod(a) + math.prod(b) + a[0] * b[2])
        return Amount(2.0 * a[0] * a[1] * b[2], size, "grouped-matmul")
    else:
        m, k, n, fits = a[-2], a[-1], b[-1], b[-2] == a[-1]
        batch = math.prod(a[:-2])
        if len(b) == 2 and len(a) > 2:
            m, batch = m * batch, 1
        elif math.prod(b[:-2]) != batch:
            return NOTHING
    if not fits:
        return Amount(math.nan, math.nan, "")
    out = BYTES_OF["bf16"] if width < BYTES_OF["bf16"] else width
    size = width * batch * (m * k + k * n) + out * batch * m * n
    return Amount(2.0 * batch * m * n * k, size, "batched-matmul" if batch > 1 else "matmul")


def _convolution(call: _Call, sizes: ConvSizes) -> Amount:
    if call.name in _CONVOLUTIONS:
        image, weight = call.shape(0), call.shape(1)
        out = _conv_output(call, image, weight, _CONVOLUTIONS[call.name])
        if out is None and len(weight) > 2:
            out = sizes.output(image, weight)
        if out is None or len(weight) < 3:
            return NOTHING
        size = call.size(0) + call.size(1) + math.prod(out) * call.width(0)
        return Amount(conv_flops(math.prod(out), math.prod(weight), out[1]), size, "conv")
    if call.name == "convolution_backward":
        gradient, image, weight = call.shape(0), call.shape(1), call.shape(2)
        if min(len(gradient), len(weight), len(image)) < 3 or _flag(call, 7):
            return NOTHING
        mask = _list(call, 10)
        wanted = [bool(flag) for flag in mask] if len(mask) == 3 else [True, True, False]
        one = conv_flops(math.prod(gradient), math.prod(weight), gradient[1])
        # Each gradient reads dY and the other operand, and writes its own.
        size = sum(wanted[:2]) * (call.size(0) + call.size(1) + call.size(2))
        return Amount(one * sum(wanted[:2]), size, "conv-backward")
    if call.name == "cudnn_convolution_backward_input":
        gradient, weight = call.shape(1), call.shape(2)
        if min(len(gradient), len(weight)) < 3:
            return NOTHING
        size = call.size(1) + call.size(2)
        return Amount(conv_flops(math.prod(gradient), math.prod(weight), gradient[1]), size, "conv-backward")
    if call.name == "cudnn_convolution_backward_weight":
        gradient, image = call.shape(1), call.shape(2)
        if min(len(gradient), len(image)) < 3:
            return NOTHING
        size, filter_ = call.size(1) + call.size(2), sizes.weight(image, gradient)
        if filter_ is None:
            return Amount(math.nan, size, "conv-backward")
        size += math.prod(filter_) * call.width(1)
        return Amount(conv_flops(math.prod(gradient), math.prod(filter_), gradient[1]), size, "conv-backward")
    return NOTHING


def _conv_output(call: _Call, image: Shape, weight: Shape, places: _Conv) -> Shape | None:
    """Shape of the output from strides, padding and dilation; None without them, or for transposed convolutions."""
    if len(image) != len(weight) or len(image) < 3 or not call.arguments:
        return None
    if places.transposed is not None and _flag(call, places.transposed):
        return None
    dims = len(image) - 2
    lists = []
    for place, default in ((places.stride, 1), (places.padding, 0), (places.dilation, 1)):
        values = _list(call, place) or [default]
        values = values * dims if len(values) == 1 else values
        if len(values) != dims or not all(isinstance(v, int) and 0 <= v < 1 << 20 for v in values):
            return None
        lists.append(values)
    stride, padding, dilation = lists
    spatial = [
        (image[2 + d] + 2 * padding[d] - dilation[d] * (weight[2 + d] - 1) - 1) // max(1, stride[d]) + 1
        for d in range(dims)
    ]
    return (image[0], weight[0], *spatial) if min(spatial) > 0 else None


def _attention(call: _Call, places: _Fused) -> Amount:
    at = places.query
    query, key, value = (call.shape(at + offset) for offset in range(3))
    width = call.width(at)
    tensors = math.prod(query) + math.prod(key) + math.prod(value)
    # Q, K, V and O; the backward pass reads them with dO, and writes dQ, dK and dV.
    size = width * (2 * tensors + 2 * math.prod(query) if places.backward else tensors + math.prod(query))
    # Without the argument half is counted: a causal mask needs no less.
    told = call.arguments[places.causal].strip().lower() if places.causal < len(call.arguments) else ""
    causal = told not in ("false", "0")
    if len(query) == 3 and len(key) == 3:
        lengths = [shape[0] - 1 for shape in call.inputs[at + 3 :] if len(shape) == 1 and shape[0] > 1]
        if not lengths or query[0] != key[0]:
            return Amount(math.nan, size, "")
        return formulas.packed_attention(
            tokens=query[0], sequences=min(lengths), heads=query[1], width=query[2], causal=causal,
            backward=places.backward, size=size,
        )  # fmt: skip
    if len(query) != 4 or len(key) != 4 or min(*query, *key) < 1:
        return NOTHING
    head, length = (1, 2) if places.heads_first else (2, 1)
    return formulas.attention(
        batch=query[0], heads=query[head], queries=query[length], keys=key[length], width=query[3], causal=causal,
        backward=places.backward, size=size,
    )  # fmt: skip


def _vector(call: _Call) -> Amount:
    name, tensors = call.name, call.tensors()
    plain = name[:-1] if name.endswith("_") and name != "_" else name
    if name.startswith("triton_"):
        if not tensors:
            return NOTHING
        most = max(math.prod(call.shape(at)) for at in tensors)
        return Amount(float(most), sum(call.size(at) for at in tensors), "fused-elementwise")
    if name in _FILLS or plain in ("fill", "zero"):
        return Amount(0.0, call.size(0), "fill") if call.shape(0) else NOTHING
    if name in _COPIES:
        if not tensors:
            return NOTHING
        if name == "copy_":
            # The source may be a row that is repeated.
            return Amount(0.0, call.size(0) + call.size(1), "move")
        return Amount(0.0, 2 * call.size(0), "move")
    if plain in _ARITY:
        return _elementwise(call, plain, _ARITY[plain])
    elements = math.prod(call.shape(0)) if call.shape(0) else 0
    if not elements:
        return NOTHING
    if name in ("_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"):
        return Amount(float(per_element("softmax") * elements), 2 * call.size(0), "softmax")
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        return Amount(float(per_element("softmax-backward") * elements), 3 * call.size(0), "softmax-backward")
    if name in _NORMS or name in ("add_rmsnorm", "fused_add_rmsnorm"):
        return _norm(call, elements)
    if name in _NORMS_BACKWARD:
        return Amount(float(per_element("norm-backward") * elements), 3 * call.size(0), "norm-backward")
    if plain in _REDUCTIONS:
        return Amount(float(elements), call.size(0), "reduction")
    if plain in _SCANS:
        return Amount(float(elements), 2 * call.size(0), "reduction")
    if name in _POOLS:
        return Amount(float(elements), call.size(0), "pooling")
    if name in _LOSSES:
        return Amount(float(elements), call.size(0), "loss")
    if name in _GATHERS:
        return _gather(call)
    if name == "gather" and call.shape(2):
        rows = math.prod(call.shape(2))
        return Amount(0.0, 2 * rows * call.width(0), "gather")  # indexes may be one row that is repeated
    if name in ("silu_and_mul", "gelu_and_mul") and len(tensors) > 1:
        least = min(math.prod(call.shape(at)) for at in tensors)
        return Amount(float(least), call.size(0) + call.size(1), "elementwise")
    return NOTHING


def _norm(call: _Call, elements: int) -> Amount:
    """A normalisation reads its input and writes as much; those with several large operands name the outputs too."""
    large = [at for at in call.tensors() if math.prod(call.shape(at)) == elements]
    parameters = sum(call.size(at) for at in call.tensors() if math.prod(call.shape(at)) < elements)
    size = call.size(0) * max(2, len(large)) + parameters
    return Amount(float(per_element("norm") * elements), size, "norm")


def _gather(call: _Call) -> Amount:
    """Rows of a table: as many as there are indexes; `index_select` has them in third place."""
    place = 2 if call.name == "index_select" else 1
    table, index = call.shape(0), call.shape(place)
    if not index:
        return NOTHING
    if call.name == "index_select":
        dim = int(call.arguments[1]) if len(call.arguments) > 1 and call.arguments[1].lstrip("-").isdigit() else 0
        one = math.prod(table) // max(1, table[dim % len(table)])
    else:
        one = math.prod(table[1:])
    return Amount(0.0, 2 * math.prod(index) * one * call.width(0) + call.size(place), "gather")


def _elementwise(call: _Call, name: str, arity: int) -> Amount:
    """Operands broadcast against each other; an operand beyond the arity is the output itself."""
    used = [at for at in call.tensors() if at < arity]
    if not used:
        return NOTHING
    shape = _broadcast([call.shape(at) for at in used])
    if shape is None:
        return NOTHING
    elements = math.prod(shape)
    # Masks (bool) come beside the data: the widest operand gives the dtype of the result.
    out = 1.0 if name in _COMPARISONS else max((call.width(at) for at in used), default=math.nan)
    if any(math.isnan(call.width(at)) for at in used):
        out = math.nan
    return Amount(float(elements), sum(call.size(at) for at in used) + elements * out, "elementwise")


def elementwise_output(name: str, inputs: Sequence[Shape]) -> Shape | None:
    """Shape of what an element-wise operator gives, or a copy; None for other operators and for scalars."""
    short = _short(name)
    plain = short[:-1] if short.endswith("_") else short
    arity = 1 if short == "copy_" else _ARITY.get(plain)
    if arity is None or plain == "glu":
        return None
    shapes = [shape for shape in inputs[:arity] if shape]
    return (_broadcast(shapes) or None) if shapes else None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    rank = max(len(shape) for shape in shapes)
    result = []
    for place in range(rank):
        dims = {shape[place - rank + len(shape)] for shape in shapes if place - rank + len(shape) >= 0} - {1}
        if len(dims) > 1:
            return None
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def _short(name: str) -> str:
    return name.rsplit("::", 1)[-1]


def _only(shapes: set[Shape] | None) -> Shape | None:
    return next(iter(shapes)) if shapes is not None and len(shapes) == 1 else None


def _arguments(text: str) -> tuple[str, ...]:
    if not text or len(text) > MAX_ARGUMENTS:
        return ()
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


def _list(call: _Call, place: int) -> list[int]:
    text = call.arguments[place].strip() if place < len(call.arguments) else ""
    words = text.strip("[]").replace(" ", "").split(",") if text else []
    named = {"true": 1, "false": 0}
    try:
        return [named[word.lower()] if word.lower() in named else int(word) for word in words if word]
    except ValueError:
        return []


def _flag(call: _Call, place: int) -> bool:
    return place < len(call.arguments) and call.arguments[place].strip().lower() in ("true", "1")
