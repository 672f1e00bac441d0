"""The preprocessing at the head of a graph: how far it is arithmetic that AIPP has, and AIPP's description of it.

The graph is read once from the front: of each tensor made from a picture it is known which pixels it holds and as what
numbers (`picture.py`). The deepest tensor through which all of the picture goes, and which AIPP can make, is the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from ascend_perf.atc.graph import Graph, Input
from ascend_perf.atc.operations import ABSORBABLE, step
from ascend_perf.atc.picture import (
    FLOAT,
    FLOAT16,
    FLOATS,
    RANGES,
    ROUNDING,
    UINT8,
    Floats,
    Left,
    Picture,
    Taker,
    Window,
)
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words
from ascend_perf.ops.aipp import JPEG_TO_RGB, MAX_FP16, VIDEO_TO_RGB, AippConfig, ColourConversion, InputFormat

Values = Literal["auto", "pixels", "unit"]
Source = Literal["rgb", "yuv420sp-jpeg", "yuv420sp-video"]

MAX_CUTS: Final = 256
"""Tensors that are tried as the cut, from the deepest. Status: assumed."""
MAX_LISTED: Final = 50
"""Nodes that are listed of one kind."""
MAX_MIN_ERROR: Final = 0.25
"""Levels of a pixel that fp16 may move `min_chn` by: half the distance of neighbours up to 1024. Status: assumed."""
NORMAL_FP16: Final = 2.0**-14
"""Smallest number that fp16 holds with all its digits."""
UNIT_MEAN: Final = 1.5
PIXEL_MEAN: Final = 4.0
PIXEL_SCALE: Final = 0.05
"""A float input holds values 0..1 when the mean that is subtracted is below the first; pixels when it is above the
second, or when nothing is subtracted and the scale is below the third. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the host does to pixels of a float input before the model: `(pixel / 255 - mean) / std`, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node by name, with what is said about it."""

    name: str
    kind: str
    why: Words | None = None
    """Why AIPP cannot take it over."""
    taker: Taker = "model"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where AIPP ends and the model begins."""

    tensor: str
    picture: Picture
    config: AippConfig
    nodes: frozenset[int]
    """Nodes that are no longer needed for this input."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What was found at one input of the graph."""

    input: Input
    position: int
    """Among the inputs."""
    first: Picture | None
    """What the input holds; None when it takes no pictures, or it is not known what numbers it takes."""
    values: Literal["uint8", "pixels", "unit", "normalised"] | None
    is_assumed: bool
    """Whether `values` was concluded from the constants of the graph."""
    cut: Cut | None
    refusal: Words | None
    """Why there is no cut."""
    absorbed: tuple[Node, ...]
    left: tuple[Node, ...]
    """Nodes that take pictures, and that AIPP cannot take over."""
    behind: tuple[Node, ...]
    """Nodes behind a resize that AIPP could take over if DVPP did the resize."""
    lost: tuple[Words, ...]
    """Why deeper tensors are not the cut."""


def find_heads(
    graph: Graph,
    *,
    values: Values = "auto",
    layout: Literal["auto", "NCHW", "NHWC"] = "auto",
    source: Source = "rgb",
    host: Host | None = None,
    only: str | None = None,
) -> list[Head]:
    """What AIPP can take over at each input that takes pictures.

    Args:
        graph: constants are folded on the way (the graph changes).
        values: what a float input holds.
        layout: of the inputs.
        source: what the caller of the .om will give.
        host: what the host does before the model now.
        only: name of the one input to look at.

    Raises:
        UsageError: `only` is no input; `host` does not fit.
    """
    if only is not None and only not in {each.name for each in graph.inputs}:
        raise UsageError(
            f"the model has no input {only[:80]}", hint=f"inputs: {', '.join(each.name for each in graph.inputs)}"
        )
    chosen = [
        (position, each)
        for position, each in enumerate(graph.inputs)
        if only in (None, each.name) and _takes_pictures(each)
    ]
    heads = []
    for position, each in chosen:
        first = _first(each, layout, host)
        if isinstance(first, Words):
            heads.append(_refused(each, position, first))
            continue
        known, left = _spread(graph, first)
        kind: Literal["uint8", "pixels", "unit", "normalised"] | None = "uint8"
        is_assumed = False
        if host is not None:
            kind = "normalised"
        elif each.elem_type in FLOATS:
            kind = _values_of(known) if values == "auto" else values
            is_assumed = values == "auto"
            if kind == "unit":
                factor = np.full(len(first.channels), 1 / 255)
                first = replace(first, scale=factor, error=np.full(len(factor), ROUNDING[each.elem_type]))
                known, left = _spread(graph, first)
        elif each.elem_type != UINT8:
            kind = "pixels"
        if kind is None:
            why = Words(
                "it cannot be told whether the float input holds pixels 0..255 or values 0..1",
                "无法判断浮点输入是 0..255 的像素还是 0..1 的值",
            )
            heads.append(_refused(each, position, why))
            continue
        heads.append(_head(graph, each, position, first, kind, is_assumed, source, known, left))
    return heads


def _takes_pictures(each: Input) -> bool:
    if each.elem_type not in FLOATS and each.elem_type not in RANGES:
        return False
    if len(each.shape) == 4:
        return each.shape[1] in (1, 3, 4) or each.shape[3] in (1, 3, 4)
    return len(each.shape) == 3 and (each.shape[0] in (1, 3, 4) or each.shape[2] in (1, 3, 4))


def _first(each: Input, layout: str, host: Host | None) -> Picture | Words:
    """What an input holds, were its values pixels; or why that cannot be said."""
    if any(size is None for size in each.shape):
        said = ",".join("?" if size is None else str(size) for size in each.shape)
        return Words(
            f"its shape is open ({said}): static AIPP needs every size, give --input-shape",
            f"其 shape 不固定（{said}）：静态 AIPP 要求全部维度，请给出 --input-shape",
        )
    shape = tuple(size for size in each.shape if size is not None)
    rank = len(shape)
    front, back = (shape[rank - 3], shape[-1])
    if layout == "auto":
        if front in (1, 3, 4) and back in (1, 3, 4) and front != back:
            # Three channels are a picture, one or four may be a size.
            layout = "NCHW" if front == 3 else "NHWC" if back == 3 else "auto"
        elif front in (1, 3, 4) and back not in (1, 3, 4):
            layout = "NCHW"
        elif back in (1, 3, 4) and front not in (1, 3, 4):
            layout = "NHWC"
        if layout == "auto":
            return Words("its layout cannot be told, give --layout", "无法判断其数据排布，请给出 --layout")
    axes = layout[-rank:] if rank == 3 and layout == "NCHW" else ("HWC" if rank == 3 else layout)
    sizes = dict(zip(axes, shape, strict=True))
    count = sizes["C"]
    if count == 4:
        return Words(
            "four channels need XRGB8888_U8; what AIPP does with the fourth is not settled here",
            "四通道需 XRGB8888_U8；AIPP 对第四通道的处理在此未确认",
        )
    if count not in (1, 3):
        return Words(f"AIPP takes pictures of 1 or 3 channels, not {count}", f"AIPP 只接受 1 或 3 通道，实际为 {count}")
    scale, shift = np.ones(count), np.zeros(count)
    error = np.zeros(count)
    if host is not None:
        if each.elem_type not in FLOATS:
            raise UsageError(
                f"the input {each.name} takes whole numbers: --mean and --std are for float inputs",
                hint="leave them out: what the graph itself subtracts is found",
            )
        if len(host.mean) != count or len(host.std) != count:
            raise UsageError(f"the input {each.name} has {count} channels: --mean and --std need as many values")
        scale = 1 / (255 * np.array(host.std))
        shift = -np.array(host.mean) / np.array(host.std)
        size = 255 * np.abs(scale) + 2 * np.abs(shift)
        error = (4 * ROUNDING[FLOAT] + ROUNDING[each.elem_type]) * size
    return Picture(
        source=each.name, axes=axes, batch=sizes.get("N", 1), channels=tuple(range(count)), scale=scale, shift=shift,
        rows=Window(start=0, size=sizes["H"]), columns=Window(start=0, size=sizes["W"]), margin=None,
        elem_type=each.elem_type, error=error,
    )  # fmt: skip


def _spread(graph: Graph, first: Picture) -> tuple[dict[str, Picture], dict[int, Left]]:
    """What is known of each tensor that is made from the picture, and the nodes at which knowledge ends."""
    known = {first.source: first}
    left: dict[int, Left] = {}
    for index, node in enumerate(graph.nodes):
        if index in graph.folded:
            continue
        if not any(name in known for name in node.input):
            graph.fold(index)
            continue
        if node.op_type == "Shape" and node.input[0] in known and not node.attribute:
            graph.set_constant(index, np.array(known[node.input[0]].shape, np.int64))
            continue
        try:
            made = step(graph, index, known)
        except Left as error:
            left[index] = error
            continue
        known.update(zip((name for name in node.output if name), made, strict=False))
    return known, left


def _values_of(known: dict[str, Picture]) -> Literal["pixels", "unit"] | None:
    """What a float input holds, by the mean that is subtracted deepest in the graph."""
    last = list(known.values())[-1]
    if not last.scale.all():
        return None
    mean = float(np.max(np.abs(last.shift / last.scale)))
    if mean == 0:
        return "pixels" if (np.abs(last.scale) < PIXEL_SCALE).all() else None
    return "unit" if mean <= UNIT_MEAN else "pixels" if mean >= PIXEL_MEAN else None


def _head(
    graph: Graph,
    each: Input,
    position: int,
    first: Picture,
    values: Literal["uint8", "pixels", "unit", "normalised"],
    is_assumed: bool,
    source: Source,
    known: dict[str, Picture],
    left: dict[int, Left],
) -> Head:
    cut, lost = None, []
    tried = 0
    for tensor in reversed(list(known)):
        tried += 1
        if tried > MAX_CUTS:
            break
        picture = known[tensor]
        try:
            if tensor in graph.outputs:
                raise Left(Words(
                    f"{tensor[:80]} is an output: behind the preprocessing there is no model",
                    f"{tensor[:80]} 是输出：预处理之后没有模型",
                ))  # fmt: skip
            if not graph.is_gate(each.name, tensor):
                continue
            config = config_of(picture, first, position, source)
        except Left as error:
            if error.why not in lost:
                lost.append(error.why)
            if tensor in graph.outputs:
                break
            continue
        cut = Cut(
            tensor=tensor, picture=picture, config=config,
            nodes=frozenset(graph.needed([tensor], frozenset({each.name}))),
        )  # fmt: skip
        break
    absorbed = () if cut is None else tuple(_node(graph, index) for index in sorted(cut.nodes))
    refusal = None
    if cut is None:
        stops = [stop.why for stop in left.values()]
        refusal = (lost or stops or [Words("nothing uses the input", "该输入未被使用")])[0]
    behind = _behind(graph, left)
    remaining = [replace(_node(graph, index), why=stop.why, taker=stop.taker) for index, stop in left.items()]
    return Head(
        input=each, position=position, first=first, values=values, is_assumed=is_assumed, cut=cut, refusal=refusal,
        absorbed=absorbed[:MAX_LISTED], lost=tuple(lost), behind=behind,
        left=tuple(remaining[:MAX_LISTED]),
    )  # fmt: skip


def _behind(graph: Graph, left: dict[int, Left]) -> tuple[Node, ...]:
    """Absorbable nodes that follow a node that DVPP could do, one after another."""
    found: dict[int, Node] = {}
    for index, stop in left.items():
        if stop.taker != "DVPP":
            continue
        open_nodes = [index]
        while open_nodes and len(found) < MAX_LISTED:
            current = open_nodes.pop()
            for name in graph.nodes[current].output:
                for follower in graph.consumers.get(name, ()):
                    if graph.nodes[follower].op_type in ABSORBABLE and follower not in found:
                        found[follower] = _node(graph, follower)
                        open_nodes.append(follower)
    return tuple(found[index] for index in sorted(found))


def config_of(picture: Picture, first: Picture, position: int, source: Source) -> AippConfig:
    """AIPP's description of a tensor.

    Args:
        picture: the tensor, NCHW or NHWC.
        first: the input of the graph.
        position: of that input.
        source: what the caller of the .om gives.

    Raises:
        Left: AIPP cannot make it.
    """
    if picture.elem_type not in (FLOAT, FLOAT16):
        raise Left(Words(
            "AIPP makes fp16: a tensor of whole numbers or of fp64 cannot be its output",
            "AIPP 输出 fp16，不能产生整数或 fp64 张量",
        ))  # fmt: skip
    if picture.axes not in ("NCHW", "NHWC"):
        raise Left(Words(
            f"AIPP makes NCHW: the axes {picture.axes} are not those of a batch of pictures",
            f"AIPP 输出 NCHW：维度 {picture.axes} 不是一批图像",
        ))  # fmt: skip
    count = len(first.channels)
    forward = tuple(range(count))
    is_reversed = picture.channels == forward[::-1] and count > 1
    if picture.channels != forward and not is_reversed:
        order = ", ".join(map(str, picture.channels[:8]))
        raise Left(Words(
            f"AIPP can only swap the first and the last channel, the graph takes {order}",
            f"AIPP 只能交换首尾通道，而图中的通道顺序为 {order}",
        ))  # fmt: skip
    conversion = _conversion(source, count, is_reversed)
    mean, low, scale = _constants(picture)
    rows, columns = picture.rows, picture.columns
    form: InputFormat = "YUV400_U8" if count == 1 else "RGB888_U8" if conversion is None else "YUV420SP_U8"
    is_cut = (rows.size, columns.size) != (first.rows.size, first.columns.size)
    try:
        return AippConfig(
            src_image_size_w=first.columns.size,
            src_image_size_h=first.rows.size,
            input_format=form,
            crop=is_cut,
            load_start_pos_w=columns.start if is_cut else 0,
            load_start_pos_h=rows.start if is_cut else 0,
            crop_size_w=columns.size if is_cut else 0,
            crop_size_h=rows.size if is_cut else 0,
            csc=conversion,
            rbuv_swap_switch=is_reversed and conversion is None,
            mean_chn=mean,
            min_chn=low,
            var_reci_chn=scale,
            padding=picture.margin is not None,
            left_padding_size=columns.before,
            right_padding_size=columns.after,
            top_padding_size=rows.before,
            bottom_padding_size=rows.after,
            padding_value=_margin(picture),
            related_input_rank=position,
        )
    except ValueError as error:
        # The checks of the description name sizes and limits, and are written in English.
        raise Left(Words(str(error), f"超出 AIPP 限制：{error}")) from error


def _conversion(source: Source, channels: int, is_reversed: bool) -> ColourConversion | None:
    if source == "rgb":
        return None
    if channels != 3:
        raise Left(Words("YUV420SP makes three channels, the model takes one", "YUV420SP 产生三通道，而模型为单通道"))
    conversion = JPEG_TO_RGB if source == "yuv420sp-jpeg" else VIDEO_TO_RGB
    return conversion.reversed if is_reversed else conversion


def _constants(picture: Picture) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """mean_chn, min_chn and var_reci_chn: scale x pixel + shift = (pixel - mean - min) x var_reci."""
    if not picture.scale.all():
        raise Left(Words("a channel is constant: its scale is zero", "某通道的缩放系数为零"))
    if (picture.size > MAX_FP16).any():
        raise Left(Words("the values leave the range of fp16", "数值超出 fp16 范围"))
    if (np.abs(picture.scale) < NORMAL_FP16).any():
        raise Left(Words(
            "a scale is so small that fp16 loses its digits (below 6.1e-5)",
            "缩放系数过小，fp16 无法保持精度（小于 6.1e-5）",
        ))  # fmt: skip
    offset = -picture.shift / picture.scale + 0.0  # no minus zero
    with np.errstate(over="ignore"):
        moved = np.abs(offset.astype(np.float16).astype(np.float64) - offset)
    if not (moved <= MAX_MIN_ERROR).all():
        raise Left(Words(
            "an offset is so large that fp16 rounds it by more than a quarter of a pixel's level",
            "偏移量过大，fp16 舍入误差超过四分之一灰阶",
        ))  # fmt: skip
    nearest = np.rint(offset)
    if (np.abs(offset - nearest) <= 1e-5).all() and ((nearest >= 0) & (nearest <= 255)).all() and nearest.any():
        return tuple(int(each) for each in nearest), (0.0,) * len(offset), _plain(picture.scale)
    return (0,) * len(offset), _plain(offset), _plain(picture.scale)


def _plain(values: Floats) -> tuple[float, ...]:
    return tuple(float(each) for each in values)


def _margin(picture: Picture) -> float:
    """The one value that AIPP pads with, after its normalisation.

    Raises:
        Left: the channels need different values (`cpadding_value` is reserved).
    """
    if picture.margin is None:
        return 0.0
    value = float(np.mean(picture.margin))
    # Half a step of fp16 at the largest value, or the graph's own rounding.
    slack = np.maximum(picture.error, 2.0**-11 * np.abs(picture.margin))
    if (np.abs(picture.margin - value) > slack).any():
        said = ", ".join(f"{each:.4g}" for each in picture.margin)
        raise Left(Words(
            f"pads before it normalises: the margin becomes {said}, AIPP pads all channels with one value, after it",
            f"先补边后归一化：边缘值变为 {said}，而 AIPP 在归一化之后以同一值补齐所有通道",
        ))  # fmt: skip
    return value


def _node(graph: Graph, index: int) -> Node:
    node = graph.nodes[index]
    return Node(name=(node.name or (node.output[0] if node.output else ""))[:80], kind=node.op_type[:40])


def _refused(each: Input, position: int, why: Words) -> Head:
    return Head(
        input=each, position=position, first=None, values=None, is_assumed=False, cut=None, refusal=why, absorbed=(),
        left=(), behind=(), lost=(),
    )  # fmt: skip
