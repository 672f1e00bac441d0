"""Proof by numbers: the original graph against AIPP's arithmetic and the stripped model, on random uint8 pictures.

    pixels -> original graph -> tensor at the cut, outputs
    pixels -> AIPP in numpy  -> tensor at the cut -> stripped model -> outputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ascend_perf.atc.graph import Graph, Input
from ascend_perf.atc.picture import FLOAT, FLOAT16, FLOATS, Floats
from ascend_perf.atc.preprocessing import Cut, Head, Host
from ascend_perf.atc.strip import part
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.ops.aipp import AippConfig, yuv444_of

# B images, C channels, H height, W width

MAX_TENSOR_BYTES: Final = 1 << 30
"""Largest batch of pictures as fp32 that the proof makes. Status: assumed."""
MAX_SAME_RATIO: Final = 1e-5
"""What the outputs of the stripped model may differ by, relative to the largest, when it gets the original's own
tensor: another order of the same fp32 sums. Status: assumed."""
CSC_LEVELS: Final = 2.0
"""Levels of a pixel by which the conversion from YUV may differ from the exact one: one that `>> 8` cuts off, half of
one by which the exact one is rounded, half of one for the rounded matrix."""
MAX_SAME_FP16_RATIO: Final = 2.0**-10
"""The same for a cut in fp16: onnxruntime computes fp16 in fp32 and rounds at other places when the graph is cut."""
_CONVERSIONS: Final = {
    0: ((1, 0, 1.402), (1, -0.344136, -0.714136), (1, 1.772, 0)),
    16: ((1.164383, 0, 1.596027), (1.164383, -0.391762, -0.812968), (1.164383, 2.017232, 0)),
}
"""YUV to RGB by the bias of Y: JPEG (JFIF 1.02), and BT.601 of narrow range."""

Pixels = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class AtCut:
    """The original's tensor at the cut of one input against AIPP's."""

    input: str
    worst: float
    bound: float
    """Largest difference that fp16 and the graph's own rounding can make, of the channel of `worst`."""
    is_within: bool
    values_seen: int
    """Of the 256 values of a pixel."""


@dataclass(frozen=True, kw_only=True)
class AtOutput:
    """An output of the original against the stripped model's. Ratios are of the largest value of the output."""

    output: str
    same: float
    """With the original's own tensor at the cut: what taking the nodes out changes."""
    same_allowed: float
    worst: float
    """With AIPP's tensor: largest difference."""
    typical: float
    """With AIPP's tensor: root mean square of the difference by that of the output."""
    is_within: bool
    is_whole: bool = False
    """Whether the output is of whole numbers (classes); the figures are then shares of the values that change."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was compared."""

    pictures: int
    seed: int
    tolerance: float
    """For `AtOutput.typical`."""
    cuts: tuple[AtCut, ...]
    outputs: tuple[AtOutput, ...]
    not_run: Words | None
    """Why the outputs were not compared."""

    @property
    def holds(self) -> bool:
        """Whether everything was compared and agrees."""
        every = (*(each.is_within for each in self.cuts), *(each.is_within for each in self.outputs))
        return self.not_run is None and bool(every) and all(every)


def prove(
    graph: Graph, heads: Sequence[Head], model: Any, *, host: Host | None, rounds: int, seed: int, tolerance: float
) -> Proof:
    """Compare the original with AIPP and the stripped model.

    Args:
        graph: of the original.
        heads: those with a cut.
        model: the stripped model.
        host: what the host does to a float input.
        rounds: batches of random pictures; in one more, every channel has every value.
        seed: of the pictures.
        tolerance: of the outputs, see `AtOutput.typical`.

    Raises:
        MachineError: onnxruntime is not installed.
        UsageError: the batch is too large to be computed here.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MachineError(
            "the proof runs the model with onnxruntime, not installed here", hint="pip install 'ascend-perf[onnx]'"
        ) from error
    del onnxruntime
    for each in graph.inputs:
        size = 4 * float(np.prod([float(value or 1) for value in each.shape]))
        if size > MAX_TENSOR_BYTES:
            raise UsageError(
                f"the input {each.name[:80]} takes {size / (1 << 30):.3g} GiB at once, too much for the proof",
                hint="give a smaller batch with --input-shape",
            )
    random = np.random.default_rng(seed)
    batches = [_batch(graph, heads, random, host, every_value=number == rounds) for number in range(rounds + 1)]
    cuts = []
    at_cut: list[dict[str, Array]] = [{} for _ in batches]
    outputs: list[AtOutput] = []
    not_run: Words | None = None
    try:
        for head in heads:
            made, found = _at_cut(graph, head, batches)
            cuts.append(made)
            for each_batch, value in zip(at_cut, found, strict=True):
                each_batch[head.input.name] = value
        outputs = _at_outputs(graph, heads, model, batches, at_cut, tolerance)
    except _NotRun as error:
        not_run = _not_run(error)
    return Proof(
        pictures=sum(len(batch.pixels[heads[0].input.name]) for batch in batches), seed=seed, tolerance=tolerance,
        cuts=tuple(cuts), outputs=tuple(outputs), not_run=not_run,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Pictures as the caller of the .om gives them, and as the original model takes them."""

    pixels: dict[str, Pixels]
    feed: dict[str, Array]


def _batch(
    graph: Graph, heads: Sequence[Head], random: np.random.Generator, host: Host | None, *, every_value: bool
) -> _Batch:
    cut_of = {head.input.name: head for head in heads}
    pixels, feed = {}, {}
    for each in graph.inputs:
        head = cut_of.get(each.name)
        if head is None or head.cut is None or head.first is None:
            feed[each.name] = _anything(each, random)
            continue
        config = head.cut.config
        shape = (head.first.batch, *config.source_shape)
        made = random.integers(0, 256, shape, np.uint8)
        if every_value and config.input_format != "YUV420SP_U8":
            made = _every_value(made, config, random)
        pixels[each.name] = made
        feed[each.name] = _as_input(_rgb_of(made, config), head, host)
    return _Batch(pixels=pixels, feed=feed)


def _every_value(pixels: Pixels, config: AippConfig, random: np.random.Generator) -> Pixels:
    """The same with all values of a pixel where AIPP looks, in an order of its own per channel."""
    height, width = config.kept_size
    top, left = (config.load_start_pos_h, config.load_start_pos_w) if config.crop else (0, 0)
    count = len(pixels) * height * width
    for channel in range(config.channels):
        values = np.resize(random.permutation(256).astype(np.uint8), count).reshape(len(pixels), height, width)
        pixels[:, top : top + height, left : left + width, channel] = values
    return pixels


def _rgb_of(pixels: Pixels, config: AippConfig) -> Pixels:
    """The pictures as the original model knows them: of YUV those in RGB, converted exactly and rounded."""
    if config.input_format != "YUV420SP_U8" or config.csc is None:
        return pixels
    matrix = np.array(_CONVERSIONS[config.csc.input_bias[0]])
    made = (yuv444_of(pixels).astype(np.float64) - np.array(config.csc.input_bias)) @ matrix.T
    return np.asarray(np.clip(np.rint(made), 0, 255), np.uint8)


def _as_input(pixels_BHWC: Pixels, head: Head, host: Host | None) -> Array:
    """Pictures as the original model takes them now."""
    import onnx

    assert head.first is not None
    values: Array = pixels_BHWC.astype(np.float32)
    if head.values == "normalised" and host is not None:
        values = (values / np.float32(255) - np.array(host.mean, np.float32)) / np.array(host.std, np.float32)
    elif head.values == "unit":
        values = values / np.float32(255)
    values = values.astype(onnx.helper.tensor_dtype_to_np_dtype(head.input.elem_type))
    order = ["NHWC".index(axis) for axis in ("N" + head.first.axes if "N" not in head.first.axes else head.first.axes)]
    turned = np.ascontiguousarray(values.transpose(order))
    return turned if "N" in head.first.axes else turned[0]


def _anything(each: Input, random: np.random.Generator) -> Array:
    """Values for an input that takes no pictures."""
    import onnx

    shape = tuple(size or 1 for size in each.shape)
    kind = onnx.helper.tensor_dtype_to_np_dtype(each.elem_type)
    if each.elem_type in FLOATS:
        return np.asarray(random.standard_normal(shape)).astype(kind)
    return np.zeros(shape, kind)


def _at_cut(graph: Graph, head: Head, batches: Sequence[_Batch]) -> tuple[AtCut, list[Array]]:
    cut = head.cut
    assert cut is not None
    name = head.input.name
    if cut.tensor == name:
        found = [batch.feed[name] for batch in batches]
    else:
        found = [
            values[0] for values in _run(part(graph, [cut.tensor], name), [{name: b.feed[name]} for b in batches])
        ]
    bounds = cut_bounds(cut)
    worst, limit, is_within = 0.0, float(bounds.max()), True
    seen: set[int] = set()
    for batch, tensor in zip(batches, found, strict=True):
        made = cut.config.emulate(batch.pixels[name]).astype(np.float64)
        original = np.asarray(tensor, np.float64)
        if cut.picture.axes == "NHWC":
            original = original.transpose(0, 3, 1, 2)
        if original.shape != made.shape:
            return AtCut(input=name, worst=float("inf"), bound=limit, is_within=False, values_seen=0), found
        difference = np.abs(original - made)
        difference = np.where(np.isfinite(difference), difference, np.inf).max(axis=(0, 2, 3))
        is_within = is_within and bool((difference <= bounds).all())
        channel = int(np.argmax(difference / bounds))
        if difference[channel] >= worst:
            worst, limit = float(difference[channel]), float(bounds[channel])
        seen |= set(np.unique(batch.pixels[name]).tolist())
    return AtCut(input=name, worst=worst, bound=limit, is_within=is_within, values_seen=len(seen)), found


def cut_bounds(cut: Cut) -> Floats:
    """How far AIPP in fp16 and the original may be apart at the cut, per channel.

    Source:
        Three roundings to fp16 (unit 2^-11) of (x - mean - min) x var_reci, the two constants rounded before, to first
        order; and what the original's own type rounds.
    """
    config, picture, unit = cut.config, cut.picture, 2.0**-11
    low, scale = np.array(config.min_chn), np.array(config.var_reci_chn)
    low_error = np.abs(low.astype(np.float16).astype(np.float64) - low)
    scale_error = np.abs(scale.astype(np.float16).astype(np.float64) - scale)
    offset = np.array(config.mean_chn) + low
    furthest = np.maximum(np.abs(offset), np.abs(255 - offset))
    centred = low_error + unit * (furthest + low_error)
    if config.csc is not None:
        centred = centred + CSC_LEVELS
    made = np.abs(scale) * centred + scale_error * (furthest + centred)
    made = made + unit * (picture.size + made) + 2.0**-24
    return np.asarray(1.01 * (made + picture.error), np.float64)


def _at_outputs(
    graph: Graph, heads: Sequence[Head], model: Any, batches: Sequence[_Batch], at_cut: Sequence[Mapping[str, Array]],
    tolerance: float,
) -> list[AtOutput]:  # fmt: skip
    originals = _run(graph.model, [batch.feed for batch in batches])
    same_feeds = [{**batch.feed, **_turned(heads, found)} for batch, found in zip(batches, at_cut, strict=True)]
    exact = _run(model, same_feeds)
    emulated = _run(model, [{**batch.feed, **_emulated(heads, batch)} for batch in batches])
    has_fp16 = any(head.cut is not None and head.cut.picture.elem_type == FLOAT16 for head in heads)
    allowed = MAX_SAME_FP16_RATIO if has_fp16 else MAX_SAME_RATIO
    made = []
    for position, name in enumerate(graph.outputs):
        original, same, other = (
            np.concatenate([np.ravel(run[position]) for run in runs]) for runs in (originals, exact, emulated)
        )
        made.append(_compared(name, original, same, other, allowed, tolerance))
    return made


def _compared(
    name: str, original: Array, same: Array, other: Array, allowed: float, tolerance: float
) -> AtOutput:  # fmt: skip
    if original.dtype.kind != "f":
        # Classes and the like: they may tip at a tie, so that only the nodes taken out are judged.
        changed = float(np.mean(original != same)) if original.size else 0.0
        tipped = float(np.mean(original != other)) if original.size else 0.0
        return AtOutput(
            output=name, same=changed, same_allowed=0, worst=tipped, typical=tipped, is_within=changed == 0,
            is_whole=True,
        )  # fmt: skip
    values = original.astype(np.float64)
    if not original.size or not np.isfinite(values).all():
        worst = 0.0 if not original.size else float("inf")
        return AtOutput(
            output=name, same=worst, same_allowed=allowed, worst=worst, typical=worst, is_within=not original.size
        )
    largest = float(np.abs(values).max()) or 1.0
    length = float(np.sqrt(np.mean(values**2))) or 1.0

    def off(run: Array) -> Floats:
        difference = np.abs(run.astype(np.float64) - values)
        return np.where(np.isfinite(difference), difference, np.inf)

    same_ratio, difference = float(off(same).max()) / largest, off(other)
    typical = float(np.sqrt(np.mean(difference**2))) / length
    return AtOutput(
        output=name, same=same_ratio, same_allowed=allowed, worst=float(difference.max()) / largest, typical=typical,
        is_within=same_ratio <= allowed and typical <= tolerance,
    )  # fmt: skip


def _turned(heads: Sequence[Head], found: Mapping[str, Array]) -> dict[str, Array]:
    """The original's own tensors at the cuts as the stripped model takes them."""
    made = {}
    for head in heads:
        assert head.cut is not None
        value = found[head.input.name]
        made[head.input.name] = (
            np.ascontiguousarray(value.transpose(0, 3, 1, 2)) if head.cut.picture.axes == "NHWC" else value
        )
    return made


def _emulated(heads: Sequence[Head], batch: _Batch) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for head in heads:
        assert head.cut is not None
        value = head.cut.config.emulate(batch.pixels[head.input.name])
        made[head.input.name] = value.astype(np.float32) if head.cut.picture.elem_type == FLOAT else value
    return made


class _NotRun(Exception):
    """onnxruntime refused a model, or failed while it ran."""


def _not_run(error: _NotRun) -> Words:
    return Words(f"onnxruntime does not run the model: {error}", f"onnxruntime 无法运行该模型：{error}")


def _run(model: Any, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    """The outputs for each of several inputs, every operation as the graph has it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), sess_options=options, providers=["CPUExecutionProvider"]
        )
        wanted = {each.name for each in session.get_inputs()}
        return [session.run(None, {name: value for name, value in feed.items() if name in wanted}) for feed in feeds]
    except Exception as error:  # onnxruntime has a class per status code, all of them straight under Exception
        said = str(error).strip().splitlines()
        raise _NotRun(said[0][:300] if said else type(error).__name__) from error
