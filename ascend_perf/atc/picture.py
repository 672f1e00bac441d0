"""What is known of a tensor made from a picture: which pixels it holds where, and as what numbers.

Every value of such a tensor is `scale x pixel + shift`, with one scale and one shift per channel, pixels 0..255; around
the pixels there may be a margin with one value per channel. A node maps such a tensor to another one, or says why not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ascend_perf.model.finding import Words

# C channels

Floats = npt.NDArray[np.float64]
Taker = Literal["DVPP", "host", "model"]
"""Who does what AIPP cannot do: the hardware for pictures, the host, or the model as it does now."""

MAX_PIXEL: Final = 255

# Numbers of onnx.TensorProto.DataType, which are fixed by the format.
FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16 = (
    1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 16,
)  # fmt: skip
FLOATS: Final = frozenset({FLOAT, FLOAT16, DOUBLE})
RANGES: Final = {
    UINT8: (0, 255), INT8: (-128, 127), UINT16: (0, 65535), INT16: (-32768, 32767), INT32: (-(1 << 31), (1 << 31) - 1),
    INT64: (-(1 << 53), 1 << 53), UINT32: (0, (1 << 32) - 1), UINT64: (0, 1 << 53),
}  # fmt: skip
"""Whole numbers that the types hold; of the largest, what fp64 holds too."""
ROUNDING: Final = {FLOAT: 2.0**-24, FLOAT16: 2.0**-11, DOUBLE: 2.0**-53}
"""Largest relative error of one operation."""


class Left(Exception):
    """A node that AIPP cannot take over: why, and who could do it."""

    def __init__(self, why: Words, taker: Taker = "model") -> None:
        super().__init__(why.en)
        self.why = why
        self.taker = taker


@dataclass(frozen=True, kw_only=True)
class Window:
    """One axis: `size` pixels of the source from `start`, between `before` and `after` cells of margin."""

    start: int
    size: int
    before: int = 0
    after: int = 0

    @property
    def total(self) -> int:
        """Cells of the axis."""
        return self.before + self.size + self.after

    def cut(self, first: int, end: int) -> Window:
        """Cells `first` to `end` of the axis.

        Raises:
            Left: none of them is of the picture.
        """
        low, high = max(first, self.before), min(end, self.before + self.size)
        if low >= high:
            raise Left(Words("nothing of the picture is left", "图像已不剩任何像素"))
        return Window(start=self.start + low - self.before, size=high - low, before=low - first, after=end - high)

    def widened(self, before: int, after: int) -> Window:
        """With a margin added; a negative one cuts."""
        kept = self.cut(max(0, -before), self.total - max(0, -after))
        return replace(kept, before=kept.before + max(0, before), after=kept.after + max(0, after))

    @property
    def has_margin(self) -> bool:
        """Whether anything is beside the pixels."""
        return bool(self.before or self.after)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A tensor of pictures. Axes are a subset of N, C, H and W in the tensor's order."""

    source: str
    """Input of the graph that it is made from."""
    axes: str
    batch: int
    channels: tuple[int, ...]
    """Of the source, in the tensor's order."""
    scale: Floats
    shift: Floats
    rows: Window
    columns: Window
    margin: Floats | None
    """Value beside the pixels, per channel; None where there is none."""
    elem_type: int
    error: Floats
    """How far the graph's own arithmetic may be off from scale and shift, per channel, to first order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        sizes = {"N": self.batch, "C": len(self.channels), "H": self.rows.total, "W": self.columns.total}
        return tuple(sizes[axis] for axis in self.axes)

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Smallest and largest value that a channel can have."""
        ends = [self.shift, self.scale * MAX_PIXEL + self.shift]
        if self.margin is not None:
            ends.append(self.margin)
        return np.min(ends, axis=0), np.max(ends, axis=0)

    @property
    def size(self) -> Floats:
        """Largest absolute value of a channel."""
        return np.asarray(np.max(np.abs(self.bounds), axis=0), np.float64)

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        parts = [self.scale, self.shift, *([] if self.margin is None else [self.margin])]
        return all(bool((part == np.rint(part)).all()) for part in parts)

    def scaled(self, factor: Floats, summand: Floats, *, roundings: float = 1) -> Picture:
        """`factor x value + summand`, per channel."""
        made = replace(
            self,
            scale=self.scale * factor,
            shift=self.shift * factor + summand,
            margin=None if self.margin is None else self.margin * factor + summand,
        )
        if not (np.isfinite(made.scale).all() and np.isfinite(made.shift).all()):
            raise Left(Words("the values leave the range of numbers", "数值超出可表示范围"))
        own = roundings * ROUNDING.get(self.elem_type, 0.0)
        return replace(made, error=np.abs(factor) * self.error + own * np.maximum(made.size, np.abs(summand)))

    def picked(self, indices: list[int]) -> Picture:
        """Some channels in an order of their own."""
        return replace(
            self,
            channels=tuple(self.channels[index] for index in indices),
            scale=self.scale[indices],
            shift=self.shift[indices],
            margin=None if self.margin is None else self.margin[indices],
            error=self.error[indices],
        )

    def cut(self, axis: str, first: int, end: int) -> Picture:
        """Cells `first` to `end` along an axis."""
        if axis == "C":
            return self.picked(list(range(first, end)))
        if axis == "H":
            return replace(self, rows=self.rows.cut(first, end)).tidied()
        if axis == "W":
            return replace(self, columns=self.columns.cut(first, end)).tidied()
        if (first, end) == (0, self.batch):
            return self
        raise Left(Words("takes single pictures out of the batch", "从 batch 中取出部分图像"))

    def padded(self, before: dict[str, int], after: dict[str, int], value: float) -> Picture:
        """With a margin of one value."""
        made = replace(
            self,
            rows=self.rows.widened(before["H"], after["H"]),
            columns=self.columns.widened(before["W"], after["W"]),
        )
        grows = max(before["H"], after["H"], before["W"], after["W"]) > 0
        if not grows:
            return made.tidied()
        margin = np.full(len(self.channels), float(value))
        if self.margin is not None and not np.array_equal(self.margin, margin):
            raise Left(Words("pads a second time with another value", "再次补边且填充值不同"))
        return replace(made, margin=margin)

    def tidied(self) -> Picture:
        """Without a value of the margin where there is no margin."""
        return self if self.rows.has_margin or self.columns.has_margin else replace(self, margin=None)

    def per_channel(self, constant: npt.NDArray[Any]) -> Floats:
        """A constant that is added or multiplied, as one value per channel.

        Raises:
            Left: it differs from pixel to pixel, or makes the tensor larger.
        """
        if constant.dtype.kind not in "fiub" or not np.isfinite(constant.astype(np.float64)).all():
            raise Left(Words("its constant is no number", "其常量不是有限数值"))
        sizes = self.shape
        if constant.ndim > len(sizes):
            raise Left(Words("its constant gives the tensor more dimensions", "其常量会增加张量维数"))
        values = constant.astype(np.float64).reshape((1,) * (len(sizes) - constant.ndim) + constant.shape)
        for position, (axis, size) in enumerate(zip(self.axes, sizes, strict=True)):
            if values.shape[position] not in (1, size):
                raise Left(Words("its constant does not fit the picture", "其常量与图像形状不符"))
            if axis == "C":
                continue
            first = values.take([0], axis=position)
            if not (values == first).all():
                why = Words("its constant differs from pixel to pixel (a mean image)", "其常量逐像素不同（均值图）")
                raise Left(why, "host")
            values = first
        return np.array(np.broadcast_to(values.reshape(-1), (len(self.channels),)), np.float64)
