"""Nodes of ONNX as maps of pictures: each function takes what is known of the input and gives it of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ascend_perf.atc.graph import Graph, attributes
from ascend_perf.atc.picture import FLOAT16, FLOATS, INT32, INT64, RANGES, Floats, Left, Picture
from ascend_perf.model.finding import Words
from ascend_perf.ops.aipp import MAX_FP16

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A node with its inputs: pictures where they are such, constants where they are such."""

    node: Any
    opset: int
    pictures: tuple[Picture | None, ...]
    constants: tuple[Array | None, ...]
    settings: Mapping[str, Any]

    @property
    def picture(self) -> Picture:
        """The only picture among the inputs.

        Raises:
            Left: there are several, or an input is neither picture nor constant.
        """
        found = [each for each in self.pictures if each is not None]
        if len(found) > 1:
            raise Left(Words("combines two tensors that come from pictures", "组合了两个来自图像的张量"))
        for name, picture, constant in zip(self.node.input, self.pictures, self.constants, strict=True):
            if name and picture is None and constant is None:
                raise Left(
                    Words("takes a value that depends on the data", "使用了随数据变化的值"), "host"
                )
        return found[0]

    def first(self) -> Picture:
        """The first input.

        Raises:
            Left: it is no picture.
        """
        picture = self.picture
        if self.pictures[0] is None:
            raise Left(Words("the picture is not its first input", "图像不是其第一个输入"))
        return picture

    def value(self, position: int, name: str) -> Array | None:
        """A parameter, which by the version of the operator is an input or an attribute."""
        if len(self.constants) > position:
            return self.constants[position]
        found = self.settings.get(name)
        return None if found is None else np.asarray(found)

    def whole(self, position: int, name: str) -> list[int] | None:
        """A parameter of whole numbers."""
        found = self.value(position, name)
        return None if found is None else [int(each) for each in np.ravel(found)]


Result = Picture | list[Picture]


def step(graph: Graph, index: int, known: Mapping[str, Picture]) -> list[Picture]:
    """What is known of the outputs of a node that takes pictures.

    Raises:
        Left: AIPP has no such operation, or not with these parameters.
    """
    node = graph.nodes[index]
    call = Call(
        node=node,
        opset=graph.opset,
        pictures=tuple(known.get(name) for name in node.input),
        constants=tuple(graph.constants.get(name) for name in node.input),
        settings=attributes(node),
    )
    operation = _OPERATIONS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if operation is None:
        raise _foreign(call)
    try:
        made = operation(call)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, AttributeError) as error:
        raise Left(Words("its parameters cannot be read", "其参数无法解析")) from error
    return made if isinstance(made, list) else [made]


# --- numbers ---------------------------------------------------------------------------------------------------------


def _identity(call: Call) -> Picture:
    return call.first()


def _dropout(call: Call) -> Picture:
    picture = call.first()
    training = call.value(2, "training_mode")
    if training is not None and bool(np.any(training)):
        raise Left(Words("drops values at random", "随机丢弃数值"), "host")
    return picture


def _cast(call: Call) -> Picture:
    picture, kind = call.first(), int(call.settings["to"])
    if kind in FLOATS:
        if kind == FLOAT16 and (picture.size > MAX_FP16).any():
            raise Left(Words("the values leave the range of fp16", "数值超出 fp16 范围"))
        made = replace(picture, elem_type=kind)
        if kind == FLOAT16:
            made = replace(made, error=made.error + 2.0**-11 * made.size)
        return made
    if kind in RANGES:
        low, high = picture.bounds
        least, most = RANGES[kind]
        if not picture.is_whole or (picture.error > 0).any():
            raise Left(
                Words("cuts fractions off: rounded values are not what AIPP makes", "截断小数：AIPP 不产生取整后的值")
            )
        if (low < least).any() or (high > most).any():
            raise Left(Words("the values leave the range of its type", "数值超出其类型的范围"))
        return replace(picture, elem_type=kind)
    raise Left(
        Words("casts to a type that AIPP does not make (it makes fp16)", "转换为 AIPP 不产生的类型（AIPP 输出 fp16）")
    )


def _add(call: Call) -> Picture:
    picture, value = _with_constant(call)
    return _linear(picture, np.ones_like(value), value)


def _sub(call: Call) -> Picture:
    picture, value = _with_constant(call)
    one = np.ones_like(value)
    return _linear(picture, one, -value) if call.pictures[0] is not None else _linear(picture, -one, value)


def _mul(call: Call) -> Picture:
    picture, value = _with_constant(call)
    return _linear(picture, value, np.zeros_like(value))


def _div(call: Call) -> Picture:
    picture, value = _with_constant(call)
    if call.pictures[0] is None:
        raise Left(Words("divides by the picture", "以图像作除数"), "host")
    if picture.elem_type not in FLOATS:
        raise Left(Words("divides whole numbers, which cuts fractions off", "整数除法会截断小数"), "host")
    if not value.all():
        raise Left(Words("divides by zero", "除数为零"))
    return _linear(picture, 1 / value, np.zeros_like(value))


def _neg(call: Call) -> Picture:
    picture = call.first()
    one = np.ones(len(picture.channels))
    return _linear(picture, -one, 0 * one)


def _with_constant(call: Call) -> tuple[Picture, Floats]:
    picture = call.picture
    constant = next((each for each in call.constants if each is not None), None)
    if constant is None:
        raise Left(Words("combines two tensors that come from pictures", "组合了两个来自图像的张量"))
    return picture, picture.per_channel(constant)


def _linear(picture: Picture, factor: Floats, summand: Floats) -> Picture:
    if picture.elem_type in FLOATS:
        return picture.scaled(factor, summand)
    if picture.elem_type not in (INT32, INT64):
        raise Left(Words(
            "computes with small whole numbers, which wrap around; cast first", "在小整数类型上计算会回绕；应先转换类型"
        ), "host")  # fmt: skip
    made = picture.scaled(factor, summand)
    low, high = made.bounds
    least, most = RANGES[INT32]
    if (low < least).any() or (high > most).any():
        raise Left(Words("the values leave the range of its type", "数值超出其类型的范围"))
    return made


def _batch_norm(call: Call) -> Picture:
    """(x - mean) / sqrt(variance + epsilon) x scale + bias, with constants."""
    picture = call.first()
    if call.settings.get("training_mode"):
        raise Left(Words("takes mean and variance from the batch itself", "均值与方差取自当前 batch"), "host")
    if len(picture.axes) < 2 or picture.axes[1] != "C":
        raise Left(Words("normalises an axis that is not the channels", "归一化的维度不是通道"))
    count = len(picture.channels)
    scale, bias, mean, variance = (_exactly(constant, count) for constant in call.constants[1:5])
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + float(call.settings.get("epsilon", 1e-5)))
    if not np.isfinite(factor).all():
        raise Left(Words("its variance is not positive", "其方差不为正"))
    made = picture.scaled(factor, bias - mean * factor, roundings=8)
    # Subtracting the mean first cancels; factor x mean is what may be rounded.
    extra = 8 * 2.0**-24 * np.abs(mean * factor)
    return replace(made, error=made.error + extra)


def _exactly(constant: Array | None, count: int) -> Floats:
    if constant is None or constant.size != count:
        raise Left(Words("its constants do not fit the channels", "其常量与通道数不符"))
    return np.asarray(constant, np.float64).reshape(-1)


def _clip(call: Call) -> Picture:
    picture = call.first()
    low, high = picture.bounds
    for position, name in ((1, "min"), (2, "max")):
        limit = call.value(position, name)
        if limit is None:
            continue
        bound = float(np.ravel(limit)[0])
        slack = picture.error + 1e-6 * picture.size
        if (low < bound - slack).any() if name == "min" else (high > bound + slack).any():
            raise Left(Words("clips values", "截断数值范围（Clip）"))
    return picture


# --- order of axes and channels --------------------------------------------------------------------------------------


def _transpose(call: Call) -> Picture:
    picture = call.first()
    order = call.settings.get("perm") or list(range(len(picture.axes)))[::-1]
    if sorted(order) != list(range(len(picture.axes))):
        raise Left(Words("its order of axes does not fit", "其维度顺序不合法"))
    return replace(picture, axes="".join(picture.axes[axis] for axis in order))


def _axis(picture: Picture, axis: int, rank: int | None = None) -> int:
    rank = len(picture.axes) if rank is None else rank
    if not -rank <= axis < rank:
        raise Left(Words("its axis is outside of the tensor", "其维度超出张量"))
    return axis % rank


def _gather(call: Call) -> Picture:
    picture = call.first()
    where = _axis(picture, int(call.settings.get("axis", 0)))
    raw = call.constants[1]
    if raw is None or raw.ndim > 1:
        raise Left(Words("gathers with indices that are not a list", "索引不是一维列表"))
    axis, size = picture.axes[where], picture.shape[where]
    indices = [int(each) + (size if each < 0 else 0) for each in np.ravel(raw)]
    if any(not 0 <= each < size for each in indices) or not indices:
        raise Left(Words("its indices are outside of the tensor", "其索引超出张量"))
    if axis == "C":
        made = picture.picked(indices)
    elif indices == list(range(indices[0], indices[0] + len(indices))):
        made = picture.cut(axis, indices[0], indices[0] + len(indices))
    else:
        raise Left(Words("takes rows or columns out of order", "以非连续顺序取行或列"), "host")
    if raw.ndim:
        return made
    if axis in "HW":
        raise Left(Words("takes a single row or column", "只取单行或单列"))
    return replace(made, axes=made.axes.replace(axis, ""))


def _slice(call: Call) -> Picture:
    picture = call.first()
    starts, ends = call.whole(1, "starts"), call.whole(2, "ends")
    if starts is None or ends is None or len(starts) != len(ends):
        raise Left(Words("its parameters cannot be read", "其参数无法解析"))
    axes = call.whole(3, "axes")
    steps = call.whole(4, "steps")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for first, end, number, stride in zip(starts, ends, axes, steps, strict=True):
        where = _axis(picture, number)
        axis, size = picture.axes[where], picture.shape[where]
        taken = range(size)[slice(first, end, stride)]
        if not len(taken):
            raise Left(Words("nothing of the picture is left", "图像已不剩任何像素"))
        if axis == "C":
            picture = picture.picked(list(taken))
        elif stride == 1:
            picture = picture.cut(axis, taken[0], taken[-1] + 1)
        elif stride < 0 and axis in "HW":
            raise Left(Words("flips the picture", "翻转图像"), "host")
        else:
            raise Left(Words("takes every n-th row or column: a resize", "隔行或隔列取样：等同于缩放"), "DVPP")
    return picture


def _split(call: Call) -> list[Picture]:
    picture = call.first()
    where = _axis(picture, int(call.settings.get("axis", 0)))
    axis, size, count = picture.axes[where], picture.shape[where], len(call.node.output)
    parts = call.whole(1, "split")
    if parts is None:
        each = -(-size // count)
        parts = [min(each, size - position * each) for position in range(count)]
    if len(parts) != count or sum(parts) != size or min(parts) < 1:
        raise Left(Words("its parts do not add up to the tensor", "各部分之和与张量不符"))
    ends = np.cumsum(parts).tolist()
    return [picture.cut(axis, end - part, end) for part, end in zip(parts, ends, strict=True)]


def _concat(call: Call) -> Picture:
    pictures = [each for each in call.pictures if each is not None]
    if len(pictures) != len(call.pictures):
        raise Left(Words("joins the picture with something else", "将图像与其他数据拼接"))
    first = pictures[0]
    where = _axis(first, int(call.settings["axis"]))
    if first.axes[where] != "C":
        raise Left(Words("joins pictures along an axis that is not the channels", "沿通道以外的维度拼接"))
    for other in pictures[1:]:
        same = (other.source, other.axes, other.rows, other.columns, other.elem_type, other.margin is None)
        if same != (first.source, first.axes, first.rows, first.columns, first.elem_type, first.margin is None):
            raise Left(Words("joins different parts of pictures", "拼接了图像的不同部分"))
    margins = [each.margin for each in pictures if each.margin is not None]
    return replace(
        first,
        channels=tuple(channel for each in pictures for channel in each.channels),
        scale=np.concatenate([each.scale for each in pictures]),
        shift=np.concatenate([each.shift for each in pictures]),
        margin=np.concatenate(margins) if margins else None,
        error=np.concatenate([each.error for each in pictures]),
    )


def _unsqueeze(call: Call) -> Picture:
    picture = call.first()
    places = call.whole(1, "axes") or []
    rank = len(picture.axes) + len(places)
    if rank > 4:
        raise Left(Words("gives the tensor more than four dimensions", "张量超过四维"))
    axes = picture.axes
    for place in sorted(_axis(picture, each, rank) for each in places):
        absent = [axis for axis in "CN" if axis not in axes]
        if not absent:
            raise Left(Words("gives the tensor more than four dimensions", "张量超过四维"))
        axes = axes[:place] + absent[0] + axes[place:]
    return replace(picture, axes=axes)


def _squeeze(call: Call) -> Picture:
    picture = call.first()
    places = call.whole(1, "axes")
    if places is None:
        places = [position for position, size in enumerate(picture.shape) if size == 1]
    gone = {_axis(picture, each) for each in places}
    for place in gone:
        if picture.shape[place] != 1 or picture.axes[place] in "HW":
            raise Left(Words("removes an axis of the picture", "去掉了图像的维度"))
    return replace(picture, axes="".join(axis for place, axis in enumerate(picture.axes) if place not in gone))


def _reshape(call: Call) -> Picture:
    """Only one that changes nothing, or that puts the axis of the batch in front."""
    picture = call.first()
    wanted = call.whole(1, "shape")
    if wanted is None or wanted.count(-1) > 1:
        raise Left(Words("its parameters cannot be read", "其参数无法解析"))
    zero_copies = not call.settings.get("allowzero")
    sizes = [picture.shape[at] if size == 0 and zero_copies else size for at, size in enumerate(wanted)]
    whole = int(np.prod(picture.shape))
    if -1 in sizes:
        known = -int(np.prod(sizes))
        sizes[sizes.index(-1)] = whole // known if known > 0 and whole % known == 0 else -1
    if tuple(sizes) == picture.shape:
        return picture
    if "N" not in picture.axes and tuple(sizes) == (1, *picture.shape):
        return replace(picture, axes=f"N{picture.axes}")
    raise Left(Words("rearranges the pixels", "重排像素（Reshape）"))


# --- margin ----------------------------------------------------------------------------------------------------------


def _pad(call: Call) -> Picture:
    picture = call.first()
    mode = str(call.settings.get("mode", "constant"))
    if mode != "constant":
        raise Left(Words(
            f"pads with values of the picture ({mode[:20]})", f"以图像自身的值补边（{mode[:20]}）"
        ), "host")  # fmt: skip
    sizes = call.whole(1, "pads")
    axes = call.whole(3, "axes")
    places = list(range(len(picture.axes))) if axes is None else [_axis(picture, each) for each in axes]
    if sizes is None or len(sizes) != 2 * len(places):
        raise Left(Words("its parameters cannot be read", "其参数无法解析"))
    given = call.value(2, "value")
    value = 0.0 if given is None or not given.size else float(np.ravel(given)[0])
    if not np.isfinite(value):
        raise Left(Words("its constant is no number", "其常量不是有限数值"))
    before = dict.fromkeys("NCHW", 0)
    after = dict(before)
    for place, low, high in zip(places, sizes[: len(places)], sizes[len(places) :], strict=True):
        before[picture.axes[place]], after[picture.axes[place]] = low, high
    if any(part[axis] for part in (before, after) for axis in "NC"):
        raise Left(Words("pads channels or the batch", "对通道或 batch 补边"))
    return picture.padded(before, after, value)


def _resize(call: Call) -> Picture:
    picture = call.first()
    scales, sizes = call.value(2 if call.opset >= 11 else 1, "scales"), call.whole(3, "sizes")
    unchanged = (sizes is not None and tuple(sizes) == picture.shape) or (
        sizes is None and scales is not None and scales.size == len(picture.axes) and bool((scales == 1).all())
    )
    if unchanged:
        return picture
    raise Left(
        Words("resizes: AIPP cannot (its `resize` is reserved)", "缩放：AIPP 不支持（`resize` 为保留字段）"), "DVPP"
    )


_OPERATIONS: Final[dict[str, Callable[[Call], Result]]] = {
    "Identity": _identity, "Dropout": _dropout, "Cast": _cast, "Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div,
    "Neg": _neg, "BatchNormalization": _batch_norm, "Clip": _clip, "Transpose": _transpose, "Gather": _gather,
    "Slice": _slice, "Split": _split, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Reshape": _reshape, "Pad": _pad, "Resize": _resize, "Upsample": _resize,
}  # fmt: skip
ABSORBABLE: Final = frozenset(_OPERATIONS) - {"Resize", "Upsample"}
"""Operators that AIPP may take over, with the right parameters."""

_STATISTICS: Final = frozenset({
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2",
    "InstanceNormalization", "LayerNormalization", "GroupNormalization", "MeanVarianceNormalization",
    "LpNormalization", "Softmax", "RMSNormalization",
})  # fmt: skip
_RANDOM: Final = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})
_SAMPLED: Final = frozenset({"GridSample", "RoiAlign", "MaxRoiPool", "AffineGrid", "CropAndResize"})
_NETWORK: Final = frozenset({
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MatMul", "Gemm", "MaxPool", "AveragePool", "Relu",
    "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "GlobalAveragePool", "GlobalMaxPool", "Flatten", "QuantizeLinear",
    "DepthToSpace", "SpaceToDepth", "LRN",
})  # fmt: skip


def _foreign(call: Call) -> Left:
    """Why a node is not one of AIPP's operations."""
    kind = call.node.op_type
    if call.node.domain not in ("", "ai.onnx"):
        domain = call.node.domain[:40]
        return Left(Words(
            f"is an operator of {domain}, which is not known here", f"是 {domain} 的算子，此处未知"
        ))  # fmt: skip
    if kind in ("Conv", "MatMul") and _mixes_channels(call):
        return Left(Words(
            "mixes the channels of pixels: a colour conversion, or already the net; AIPP's own gives whole numbers",
            "混合像素通道：颜色转换或网络本体；AIPP 的色域转换只输出整数",
        ))  # fmt: skip
    if kind in _NETWORK:
        return Left(Words("the net begins here", "网络从此处开始"))
    if kind in _STATISTICS:
        return Left(Words(
            "depends on the data: AIPP's constants are fixed when the model is built",
            "随数据变化：AIPP 的常量在模型转换时固定",
        ), "host")  # fmt: skip
    if kind in _RANDOM:
        return Left(Words("is random", "带随机性"), "host")
    if kind in _SAMPLED:
        why = Words("samples the picture elsewhere, as a resize or a rotation does", "对图像重新采样（缩放或旋转）")
        return Left(why, "DVPP")
    if kind in ("If", "Loop", "Scan"):
        return Left(Words("decides or repeats while it runs", "运行时分支或循环"))
    return Left(Words("is no operation of AIPP", "不是 AIPP 的操作"))


def _mixes_channels(call: Call) -> bool:
    """Whether a matrix over the channels alone is applied."""
    weight = call.constants[1] if len(call.constants) > 1 else None
    if weight is None:
        return False
    if call.node.op_type == "MatMul":
        return weight.ndim == 2 and max(weight.shape) <= 4
    return weight.ndim == 4 and weight.shape[2:] == (1, 1) and weight.shape[0] <= 4
