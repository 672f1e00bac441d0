"""What kind of work a kernel does, read from its op type (Ascend) or its name (CUDA, ROCm, Triton)."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from ascend_perf.model.table import Bools, Table, Text


class KernelClass(Enum):
    """Kind of work of a kernel."""

    MATMUL = "matmul"
    CONV = "conv"
    ATTENTION = "attention"
    NORM = "norm"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CAST = "cast"
    TRANSPOSE = "transpose"
    FORMAT = "format"
    OPTIMIZER = "optimizer"
    INDEX = "index"
    COPY = "copy"
    FILL = "fill"
    RANDOM = "random"
    POOLING = "pooling"
    LOSS = "loss"
    SORT = "sort"
    ROPE = "rope"
    QUANT = "quant"
    COMMUNICATION = "communication"
    OTHER = "other"


_SIDE_KERNELS: Final = ("AicpuKernel", "AivKernel")
"""Ends of the names of kernels that wait for and move data beside the fused operator that computes."""


def _rule(kind: KernelClass, *patterns: str) -> tuple[KernelClass, re.Pattern[str]]:
    return kind, re.compile("|".join(patterns), re.IGNORECASE)


# The first rule that fits decides, so a rule may rely on the ones above it.
_ASCEND: Final = (
    _rule(KernelClass.COMMUNICATION, "^hcom_|^hccl", "allreduce|allgather|reducescatter|alltoall|broadcast_$"),
    _rule(KernelClass.FORMAT, "^transdata"),
    _rule(KernelClass.ATTENTION, "attention|flashmla|pagedattn|^mla"),
    _rule(KernelClass.ROPE, "rotary|rope"),
    _rule(
        KernelClass.OPTIMIZER,
        "^apply(adam|momentum|sgd|rmsprop|ada|ftrl|grad|lamb|power|keras)|^sgd$|adamw?(v2)?$",
    ),
    _rule(KernelClass.CONV, "conv[23]?d|^conv|depthwise|deformable"),
    _rule(KernelClass.MATMUL, "matmul|gemm|^linear|^ffn|groupedmm"),
    _rule(KernelClass.QUANT, "^(ascend)?(anti|de|dynamic|re)?quant"),
    _rule(KernelClass.LOSS, "loss|crossentropy"),
    _rule(KernelClass.SOFTMAX, "softmax"),
    _rule(KernelClass.NORM, "(layer|batch|group|rms|instance|weight)norm|^bn(training|infer|_)"),
    _rule(KernelClass.POOLING, "pool"),
    _rule(KernelClass.RANDOM, "^dsa|random|genbitmask|genmask|multinomial|bernoulli|stateless"),
    _rule(KernelClass.CAST, "^cast"),
    _rule(KernelClass.TRANSPOSE, "^transpose|^permute|^confusiontranspose|^asstrided|^viewcopy"),
    _rule(KernelClass.COPY, "^tensormove|^memcpy|^identity|^contiguous|^inplacecopy|^copy|^foreachcopy"),
    _rule(KernelClass.FILL, "^(zeros|ones)like|^fill|^memset|^range$|^eye$|^arange|^tri[lu]|^linspace"),
    _rule(KernelClass.SORT, "^sort|topk|argsort|unique|histogram|bincount"),
    _rule(
        KernelClass.INDEX,
        "gather|scatter|index|embedding|nonzero|onehot|maskedselect|^slice|stridedslice|^concat|^split",
        "^pack|^unpack|^tile|^pad|^mirrorpad|^reverse|^roll|^repeat|^stack|moe",
    ),
    _rule(
        KernelClass.REDUCTION,
        "^reduce|^arg(max|min)|lpnorm|norm(reduce|update)|cumsum|^bnreduce|^foreachnorm|^accumulate",
    ),
    _rule(KernelClass.COPY, "^broadcastto|^expand"),
    _rule(
        KernelClass.ELEMENTWISE,
        "^foreach",
        "^(a?cos|a?sin|tan|a?tanh|abs|add|addn|adds|addc[a-z]+|sub|subs|mul|muls|div|realdiv|divs|rdiv|pow|pows",
        "square|sqrt|rsqrt|reciprocal|exp|expm1|log|log1p|neg|sign|floor[a-z]*|ceil|round|mod|relu[0-9]?",
        "leakyrelu|gelu|fastgelu|quickgelu|silu|swish|swiglu|geglu|sigmoid|softplus|elu|selu|hard[a-z]+",
        "clip[a-z]*|clamp[a-z]*|maximum|minimum|greater[a-z]*|less[a-z]*|equal|notequal|logical[a-z]*",
        "bitwise[a-z]*|select[a-z]*|where|masked[a-z]+|dropoutdomask|isfinite|isinf|isnan|lerp|erf[a-z]*"
        "|axpy[a-z]*|fused[a-z]*mul[a-z]*|bias[a-z]*|threshold[a-z]*)(v[0-9])?(grad[a-z0-9]*)?d?$",
    ),
)
_GPU: Final = (
    _rule(
        KernelClass.COMMUNICATION,
        "nccl|rccl|all_?reduce_kernel|cross_device_reduce|multimem|(one|two)_?shot_all",
    ),
    _rule(
        KernelClass.ATTENTION,
        "fmha|flash_?(fwd|bwd|attn|attention|mla)|attention|attn_(fwd|bwd)|paged_?att|flashinfer|_attn_",
    ),
    _rule(
        KernelClass.CONV,
        "convolve|conv[123]?d|scudnn|hcudnn|dgrad|wgrad|winograd|implicit_gemm|im2col|col2im|miopen.*conv",
        "igemm_|fprop|naive_conv|conv_depthwise|fft2d|computeb?offsets",
    ),
    _rule(KernelClass.FORMAT, "nchwtonhwc|nhwctonchw|tensortransform|batched_transpose"),
    _rule(KernelClass.INDEX, "embedding"),
    _rule(KernelClass.OPTIMIZER, "multi_tensor_apply|adam|fused_?sgd|lamb(stage|_|functor)|optimizer"),
    _rule(KernelClass.QUANT, "(?<!norm_)quantiz|dynamic_.*quant|per_token_quant|dequant"),
    _rule(
        KernelClass.MATMUL,
        "(?<!fb)gemm|gemv|matmul|cijk_|^mm_|_mm_|nvjet|splitk|magma|cutlass::kernel|cublaslt|epilogue::impl|wvsplitk",
    ),
    _rule(KernelClass.LOSS, "nll_?(loss|criterion)|cross_entropy|mse_loss|bce|loss_?(forward|backward)"),
    _rule(KernelClass.SOFTMAX, "softmax"),
    _rule(
        KernelClass.NORM,
        "(layer|rms|batch|group|instance)_?norm|^(void )?(cudnn::)?bn_|::bn_|rowwisemoments|gammabeta",
        "computeinternalgradients|norm_(fwd|bwd)",
    ),
    _rule(KernelClass.ROPE, "rotary|rope"),
    _rule(KernelClass.RANDOM, "distribution_|dropout|philox|random|curand|bernoulli"),
    _rule(KernelClass.SORT, "sort|topk|histogram|unique|bitonic|DeviceSelect"),
    _rule(
        KernelClass.INDEX,
        "index|indices|gather|scatter|catarray|slice|permute_pooled|permute_2d|bucketize|cat_|concat|nonzero",
        "masked_select|kvcache|reshape_and_cache",
    ),
    _rule(KernelClass.POOLING, "pool"),
    _rule(KernelClass.FILL, "fillfunctor|fill_|memset|arange|zero_"),
    _rule(KernelClass.CAST, "to_copy|_cast|castkernel|convert_fp|float16_copy_kernel"),
    _rule(KernelClass.COPY, "direct_copy|copy_kernel|memcpy|copybuffer"),
    _rule(KernelClass.TRANSPOSE, "transpose|permute"),
    _rule(
        KernelClass.REDUCTION,
        "reduce_|devicereduce|devicescan|reduction|cumsum|triton_(red|per)_|argm(ax|in)|scan",
    ),
    _rule(
        KernelClass.ELEMENTWISE,
        "elementwise|pointwise|triton_poi|triton__|functor|act_and_mul|silu|gelu|relu|activation|sigmoid",
        "op_?tensor|tensorop|scalepackedtensor",
    ),
)


MAX_NAME: Final = 512
"""Names are looked at up to here: template arguments of a kernel can run to many thousand characters."""


@lru_cache(maxsize=8192)
def ascend_class(op_type: str) -> KernelClass:
    """Class of an Ascend op type such as `MatMulV3` or `FlashAttentionScoreGrad`."""
    return _first(_ASCEND, op_type)


@lru_cache(maxsize=8192)
def gpu_class(name: str) -> KernelClass:
    """Class of a CUDA, ROCm or Triton kernel by its name, mangled or not."""
    return _first(_GPU, name)


def kernel_classes(kernels: Table) -> Text:
    """Class of each kernel (values of `KernelClass`); each distinct name is looked at once.

    Reads:
        kernels: op_type, name, core. The op type decides where it is known; a name of the form
        `aclnnX_Kernel_Type` or `Type_12` stands in for it; GPU and CPU kernels go by name.
    """
    core, types, names = kernels.text("core"), kernels.text("op_type"), kernels.text("name")
    is_gpu = core.equals("SM")
    if is_gpu.all():
        return names.relabel(lambda value: gpu_class(value).value)
    by_type = types.relabel(lambda value: ascend_class(value).value)
    if (types.codes >= 0).all() and not is_gpu.any():
        return by_type
    # Level0 profiles have no op types; the last part of an aclnn name is the type.
    by_name = names.relabel(lambda value: _class_of_name(value).value)
    by_gpu_name = names.relabel(lambda value: gpu_class(value).value) if is_gpu.any() else by_name
    return _choose(_choose(by_type, by_name, types.codes >= 0), by_gpu_name, ~is_gpu)


def computes(kernels: Table) -> Bools:
    """Kernels that count as computing: all but the side kernels by which fused operators (MC2) communicate.

    Source:
        Format reference, 2.6: the exporter leaves them out of Computing.
    """
    return ~kernels.text("name").flags(lambda name: name.endswith(_SIDE_KERNELS))


def op_type_of_name(name: str) -> str:
    """The op type in an Ascend kernel name: `MatMulV3` of `aclnnMatmul_MatMulV3Common_MatMulV3`."""
    parts = [part for part in name.split("_") if part and not part.isdigit()]
    if not parts:
        return name
    return parts[-1] if name.startswith("aclnn") or parts[0] == "trans" else parts[0] if len(parts) == 1 else name


def _class_of_name(name: str) -> KernelClass:
    found = ascend_class(op_type_of_name(name))
    return gpu_class(name) if found is KernelClass.OTHER else found


def _first(rules: tuple[tuple[KernelClass, re.Pattern[str]], ...], text: str) -> KernelClass:
    text = text[:MAX_NAME]
    return next((kind for kind, pattern in rules if pattern.search(text)), KernelClass.OTHER)


def _choose(first: Text, second: Text, use_first: Bools) -> Text:
    """Rows of `first` where `use_first`, else of `second`, under one dictionary."""
    if use_first.all():
        return first
    if not use_first.any():
        return second
    both = Text.concat([first, second])
    codes = both.codes[: len(first)].copy()
    codes[~use_first] = both.codes[len(first) :][~use_first]
    return Text(codes, both.values)
