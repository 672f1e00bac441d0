"""AIPP, the image preprocessing that ATC compiles into an offline model (.om), as a description and as arithmetic.

    uint8, NHWC -> channel swap -> crop -> colour conversion -> (x - mean - min) x var_reci in fp16 -> pad -> fp16, NCHW

The order is the device's own: a preprocessing in another order fits only where it can be written in this one.

Source:
    ATC guide, static AIPP: order of operations, ranges and types of the constants, colour matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

# B images, C channels, H height, W width

MAX_SOURCE_PX: Final = 4096
MAX_START_PX: Final = 4095
MAX_OUTPUT_WIDTH_PX: Final = 4096
MAX_PADDING_PX: Final = 32
MAX_FP16: Final = 65504.0

InputFormat = Literal["RGB888_U8", "YUV400_U8", "YUV420SP_U8"]
CHANNELS: Final[dict[str, int]] = {"RGB888_U8": 3, "YUV400_U8": 1, "YUV420SP_U8": 3}

Matrix = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]


@dataclass(frozen=True, kw_only=True)
class ColourConversion:
    """From YUV to RGB: `(matrix x (yuv - input_bias)) >> 8`, cut to 0..255."""

    matrix: Matrix
    input_bias: tuple[int, int, int]

    @property
    def reversed(self) -> ColourConversion:
        """The same to BGR. `rbuv_swap_switch` would swap U and V instead."""
        first, second, third = self.matrix
        return ColourConversion(matrix=(third, second, first), input_bias=self.input_bias)


JPEG_TO_RGB: Final = ColourConversion(
    matrix=((256, 0, 359), (256, -88, -183), (256, 454, 0)), input_bias=(0, 128, 128)
)
"""Pictures that DVPP decoded from JPEG."""
VIDEO_TO_RGB: Final = ColourConversion(
    matrix=((298, 0, 409), (298, -100, -208), (298, 516, 0)), input_bias=(16, 128, 128)
)
"""BT.601, narrow range: standard-definition video."""


@dataclass(frozen=True, kw_only=True)
class AippConfig:
    """One `aipp_op`, its fields named as in the file.

    The constants are held as the device holds them: `mean_chn` whole numbers 0..255, `min_chn` and `var_reci_chn` fp16.

    Raises:
        ValueError: a value is outside of what ATC takes.
    """

    src_image_size_w: int
    src_image_size_h: int
    input_format: InputFormat = "RGB888_U8"
    crop: bool = False
    load_start_pos_w: int = 0
    load_start_pos_h: int = 0
    crop_size_w: int = 0
    crop_size_h: int = 0
    csc: ColourConversion | None = None
    rbuv_swap_switch: bool = False
    mean_chn: tuple[int, ...] = (0, 0, 0)
    min_chn: tuple[float, ...] = (0.0, 0.0, 0.0)
    var_reci_chn: tuple[float, ...] = (1.0, 1.0, 1.0)
    padding: bool = False
    left_padding_size: int = 0
    right_padding_size: int = 0
    top_padding_size: int = 0
    bottom_padding_size: int = 0
    padding_value: float = 0.0
    related_input_rank: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.src_image_size_w <= MAX_SOURCE_PX or not 1 <= self.src_image_size_h <= MAX_SOURCE_PX:
            raise ValueError(
                f"AIPP takes pictures of 2 to {MAX_SOURCE_PX} by 1 to {MAX_SOURCE_PX} pixels, "
                f"got {self.src_image_size_w} x {self.src_image_size_h}"
            )
        is_yuv = self.input_format == "YUV420SP_U8"
        if is_yuv and (self.src_image_size_w % 2 or self.src_image_size_h % 2):
            raise ValueError(
                f"YUV420SP_U8 needs even sizes, got {self.src_image_size_w} x {self.src_image_size_h}"
            )
        for start, size, source in (
            (self.load_start_pos_w, self.crop_size_w, self.src_image_size_w),
            (self.load_start_pos_h, self.crop_size_h, self.src_image_size_h),
        ):
            if self.crop and not (0 <= start <= MAX_START_PX and size >= 1 and start + size <= source):
                raise ValueError(f"AIPP cannot cut {size} pixels from position {start} of {source}")
            if self.crop and is_yuv and start % 2:
                raise ValueError(f"YUV420SP_U8 needs even crop positions, got {start}")
        if self.csc is not None and not is_yuv:
            raise ValueError(f"a conversion from YUV needs YUV420SP_U8, got {self.input_format}")
        self._check_constants()
        sizes = (self.left_padding_size, self.right_padding_size, self.top_padding_size, self.bottom_padding_size)
        if any(not 0 <= size <= MAX_PADDING_PX for size in sizes):
            raise ValueError(f"AIPP pads 0 to {MAX_PADDING_PX} pixels on a side, got {max(sizes, key=abs)}")
        if self.output_size[1] > MAX_OUTPUT_WIDTH_PX:
            raise ValueError(f"AIPP makes at most {MAX_OUTPUT_WIDTH_PX} pixels in width, got {self.output_size[1]}")

    def _check_constants(self) -> None:
        for name in ("mean_chn", "min_chn", "var_reci_chn"):
            if len(getattr(self, name)) != self.channels:
                raise ValueError(f"{self.input_format} needs {self.channels} values of {name}")
        if any(not 0 <= value <= 255 for value in self.mean_chn):
            raise ValueError(f"mean_chn must be 0 to 255, got {self.mean_chn}")
        values = np.array((*self.min_chn, *self.var_reci_chn, self.padding_value))
        if not (np.abs(values) <= MAX_FP16).all():  # not a number fails too
            raise ValueError("min_chn, var_reci_chn and padding_value must be numbers of fp16")

    @property
    def channels(self) -> int:
        """Of what the model gets."""
        return CHANNELS[self.input_format]

    @property
    def kept_size(self) -> tuple[int, int]:
        """Height and width of what is left of the picture, without padding."""
        if self.crop:
            return self.crop_size_h, self.crop_size_w
        return self.src_image_size_h, self.src_image_size_w

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of what the model gets."""
        height, width = self.kept_size
        if not self.padding:
            return height, width
        return (
            height + self.top_padding_size + self.bottom_padding_size,
            width + self.left_padding_size + self.right_padding_size,
        )

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Of one picture as the caller of the .om gives it."""
        if self.input_format == "YUV420SP_U8":
            return self.src_image_size_h * 3 // 2, self.src_image_size_w
        return self.src_image_size_h, self.src_image_size_w, self.channels

    def text(self) -> str:
        """The file for `atc --insert_op_conf`."""
        lines = [
            "aipp_mode: static",
            f"related_input_rank: {self.related_input_rank}",
            f"input_format: {self.input_format}",
            f"src_image_size_w: {self.src_image_size_w}",
            f"src_image_size_h: {self.src_image_size_h}",
            f"crop: {_word(self.crop)}",
        ]
        if self.crop:
            lines += [
                f"load_start_pos_w: {self.load_start_pos_w}",
                f"load_start_pos_h: {self.load_start_pos_h}",
                f"crop_size_w: {self.crop_size_w}",
                f"crop_size_h: {self.crop_size_h}",
            ]
        lines += [
            f"csc_switch: {_word(self.csc is not None)}",
            f"rbuv_swap_switch: {_word(self.rbuv_swap_switch)}",
        ]
        if self.csc is not None:
            lines += [
                f"matrix_r{row}c{column}: {value}"
                for row, values in enumerate(self.csc.matrix)
                for column, value in enumerate(values)
            ]
            lines += [f"input_bias_{channel}: {value}" for channel, value in enumerate(self.csc.input_bias)]
        lines += [f"mean_chn_{channel}: {value}" for channel, value in enumerate(self.mean_chn)]
        lines += [f"min_chn_{channel}: {value:.9g}" for channel, value in enumerate(self.min_chn)]
        lines += [f"var_reci_chn_{channel}: {value:.9g}" for channel, value in enumerate(self.var_reci_chn)]
        if self.padding:
            lines.append("padding: true")
            lines += [
                f"{side}_padding_size: {getattr(self, f'{side}_padding_size')}"
                for side in ("left", "right", "top", "bottom")
            ]
            lines.append(f"padding_value: {self.padding_value:.9g}")
        return "aipp_op {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"

    def emulate(self, pixels_BHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
        """What the device computes from pictures, B x C x H x W: each operation rounded to fp16.

        Args:
            pixels_BHWC: of YUV420SP_U8 without C: H rows of Y, then H/2 rows of U and V by turns.

        Raises:
            ValueError: the pictures are not those that the file describes.
        """
        expected = self.source_shape
        if pixels_BHWC.dtype != np.uint8 or pixels_BHWC.shape[1:] != expected:
            raise ValueError(f"expected uint8 pictures of {expected}, got {pixels_BHWC.dtype} {pixels_BHWC.shape[1:]}")
        if self.input_format == "YUV420SP_U8":
            pixels_BHWC = yuv444_of(pixels_BHWC, swap=self.rbuv_swap_switch)
        elif self.rbuv_swap_switch:
            pixels_BHWC = pixels_BHWC[..., ::-1]
        if self.crop:
            down = slice(self.load_start_pos_h, self.load_start_pos_h + self.crop_size_h)
            across = slice(self.load_start_pos_w, self.load_start_pos_w + self.crop_size_w)
            pixels_BHWC = pixels_BHWC[:, down, across]
        if self.csc is not None:
            shifted = pixels_BHWC.astype(np.int32) - np.array(self.csc.input_bias, np.int32)
            made = (shifted @ np.array(self.csc.matrix, np.int32).T) >> 8
            pixels_BHWC = np.clip(made, 0, 255).astype(np.uint8)
        mean, low, scale = (np.array(each, np.float16) for each in (self.mean_chn, self.min_chn, self.var_reci_chn))
        x_BHWC = (pixels_BHWC.astype(np.float16) - mean - low) * scale
        if self.padding:
            sides = (
                (0, 0), (self.top_padding_size, self.bottom_padding_size),
                (self.left_padding_size, self.right_padding_size), (0, 0),
            )  # fmt: skip
            x_BHWC = np.pad(x_BHWC, sides, constant_values=np.float16(self.padding_value))
        return np.ascontiguousarray(x_BHWC.transpose(0, 3, 1, 2))


def yuv444_of(planes_BPW: npt.NDArray[np.uint8], *, swap: bool = False) -> npt.NDArray[np.uint8]:
    """Y, U and V of each pixel, B x H x W x 3, of pictures in YUV420SP (NV12; NV21 with `swap`).

    Four neighbours share their U and V.
    """
    height = planes_BPW.shape[1] * 2 // 3
    luma, chroma = planes_BPW[:, :height, :, None], planes_BPW[:, height:]
    chroma = chroma.reshape(len(planes_BPW), height // 2, -1, 2)
    chroma = chroma[..., ::-1] if swap else chroma
    return np.concatenate([luma, chroma.repeat(2, axis=1).repeat(2, axis=2)], axis=-1)


def normalising(
    *,
    source_px: tuple[int, int],
    crop_px: int | None,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> AippConfig:
    """The description of `ToTensor` and `Normalize(mean, std)` of torchvision over the middle of a picture.

    Args:
        source_px: height and width of the pictures.
        crop_px: side of the square in the middle; None: the whole picture.
        mean, std: per channel, of values 0..1.

    Source:
        (x / 255 - mean) / std = (x - 255 mean) x 1 / (255 std): min_chn = 255 mean, var_reci_chn = 1 / (255 std).
        mean_chn would do as well, but holds whole numbers only.
    """
    height, width = source_px
    cut: dict[str, Any] = {}
    if crop_px is not None:
        cut = {
            "crop": True, "crop_size_w": crop_px, "crop_size_h": crop_px,
            "load_start_pos_w": (width - crop_px) // 2, "load_start_pos_h": (height - crop_px) // 2,
        }  # fmt: skip
    red, green, blue = (255 * value for value in mean)
    r, g, b = (1 / (255 * value) for value in std)
    return AippConfig(
        src_image_size_w=width, src_image_size_h=height, min_chn=(red, green, blue), var_reci_chn=(r, g, b), **cut
    )  # fmt: skip


def _word(value: bool) -> str:
    return "true" if value else "false"
