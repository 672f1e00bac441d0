"""AIPP, the image preprocessing that ATC compiles into an offline model (.om), as a description and as arithmetic.

    uint8 pixels, NHWC  ->  channel swap -> crop -> (x - mean - min) x var_reci in fp16  ->  fp16, NCHW

Supported are RGB888_U8 pictures without colour conversion and padding: all that a JPEG classified in RGB needs.

Source:
    ATC guide, static AIPP: order of operations, ranges and types of the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

# B images, H height, W width, C channels

MAX_SOURCE_PX: Final = 4096
MAX_START_PX: Final = 4095


@dataclass(frozen=True, kw_only=True)
class AippConfig:
    """One `aipp_op` for an input of three channels, its fields named as in the file.

    The constants are held as the device holds them: `mean_chn` whole numbers 0..255, `min_chn` and `var_reci_chn` fp16.

    Raises:
        ValueError: a value is outside of what ATC takes.
    """

    src_image_size_w: int
    src_image_size_h: int
    input_format: Literal["RGB888_U8"] = "RGB888_U8"
    crop: bool = False
    load_start_pos_w: int = 0
    load_start_pos_h: int = 0
    crop_size_w: int = 0
    crop_size_h: int = 0
    csc_switch: Literal[False] = False
    rbuv_swap_switch: bool = False
    mean_chn: tuple[int, int, int] = (0, 0, 0)
    min_chn: tuple[float, float, float] = (0.0, 0.0, 0.0)
    var_reci_chn: tuple[float, float, float] = (1.0, 1.0, 1.0)
    related_input_rank: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.src_image_size_w <= MAX_SOURCE_PX or not 1 <= self.src_image_size_h <= MAX_SOURCE_PX:
            raise ValueError(
                f"AIPP takes pictures of 2 to {MAX_SOURCE_PX} by 1 to {MAX_SOURCE_PX} pixels, "
                f"got {self.src_image_size_w} x {self.src_image_size_h}"
            )
        for start, size, source in (
            (self.load_start_pos_w, self.crop_size_w, self.src_image_size_w),
            (self.load_start_pos_h, self.crop_size_h, self.src_image_size_h),
        ):
            if self.crop and not (0 <= start <= MAX_START_PX and size >= 1 and start + size <= source):
                raise ValueError(f"AIPP cannot cut {size} pixels from position {start} of {source}")
        if any(not 0 <= value <= 255 for value in self.mean_chn):
            raise ValueError(f"mean_chn must be 0 to 255, got {self.mean_chn}")
        if not np.isfinite(np.array((*self.min_chn, *self.var_reci_chn), np.float16)).all():
            raise ValueError("min_chn and var_reci_chn must be numbers of fp16")

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of what the model gets."""
        if self.crop:
            return self.crop_size_h, self.crop_size_w
        return self.src_image_size_h, self.src_image_size_w

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
        lines += [f"csc_switch: {_word(self.csc_switch)}", f"rbuv_swap_switch: {_word(self.rbuv_swap_switch)}"]
        lines += [f"mean_chn_{channel}: {value}" for channel, value in enumerate(self.mean_chn)]
        lines += [f"min_chn_{channel}: {value:.9g}" for channel, value in enumerate(self.min_chn)]
        lines += [f"var_reci_chn_{channel}: {value:.9g}" for channel, value in enumerate(self.var_reci_chn)]
        return "aipp_op {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"

    def emulate(self, pixels_BHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
        """What the device computes from pictures, B x C x H x W: each operation rounded to fp16.

        Raises:
            ValueError: the pictures are not those that the file describes.
        """
        expected = (self.src_image_size_h, self.src_image_size_w, 3)
        if pixels_BHWC.dtype != np.uint8 or pixels_BHWC.shape[1:] != expected:
            raise ValueError(f"expected uint8 pictures of {expected}, got {pixels_BHWC.dtype} {pixels_BHWC.shape[1:]}")
        if self.rbuv_swap_switch:
            pixels_BHWC = pixels_BHWC[..., ::-1]
        if self.crop:
            down = slice(self.load_start_pos_h, self.load_start_pos_h + self.crop_size_h)
            across = slice(self.load_start_pos_w, self.load_start_pos_w + self.crop_size_w)
            pixels_BHWC = pixels_BHWC[:, down, across]
        mean, low, scale = (np.array(each, np.float16) for each in (self.mean_chn, self.min_chn, self.var_reci_chn))
        x_BHWC = (pixels_BHWC.astype(np.float16) - mean - low) * scale
        return np.ascontiguousarray(x_BHWC.transpose(0, 3, 1, 2))


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
