"""resnet50-infer: classify JPEG images with ResNet-50, preprocessing on the host.

    for each step: decode -> resize and crop -> normalise -> copy -> inference

The net is in `_resnet.py`. Read top to bottom: sizes, model FLOPs, images, preprocessing, one step.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ascend_perf.model.finding import Words
from ascend_perf.workloads._spec import Place, Program, at_least, workload

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

# B images, C channels, H height, W width

STAGE_BLOCKS: Final = (3, 4, 6, 3)
MEAN_RGB: Final = (0.485, 0.456, 0.406)
STD_RGB: Final = (0.229, 0.224, 0.225)
"""Channel statistics of ImageNet for values 0..1. Source: the reference training code of torchvision."""
RESIZE_RATIO: Final = 256 / 224
"""The short side is resized to this multiple of the crop. Source: the evaluation protocol of ResNet on ImageNet."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the images, of the net and of one step.

    `dtype` auto is fp16 on an NPU or GPU and fp32 on a CPU; fp32 means fp32, TF32 convolutions are turned off.
    """

    batch: int = 4
    image_width_px: int = 500
    image_height_px: int = 375
    jpeg_quality: int = 90
    distinct_images: int = 32
    crop_px: int = 224
    base_width: int = 64
    classes: int = 1000
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    channels_last: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "distinct_images", "base_width", "classes", "jpeg_quality")
        at_least(self, 16, "image_width_px", "image_height_px")
        at_least(self, 32, "crop_px")
        if self.jpeg_quality > 100:
            raise ValueError(f"jpeg_quality must be 1 to 100, got {self.jpeg_quality}")


def image_flops(config: Config) -> int:
    """Model FLOPs of one image, multiply and add counted as two: convolutions and the classifier.

    A convolution takes 2 x C_in x C_out x k^2 per pixel of its output. Norms, activations, pooling and the host's
    preprocessing do not count. For the published net (width 64, 224 x 224, 1000 classes) this is 8.178 GFLOP, the
    4.09 G multiply-adds of the literature.
    """
    width = config.base_width

    def halved(side: int) -> int:
        return (side + 1) // 2  # a kernel of 1, 3 or 7 with stride 2 and padding (k - 1) / 2

    side = halved(config.crop_px)
    multiply_adds = 3 * width * 7 * 7 * side**2
    side = halved(side)  # max pooling
    channels = width
    for stage, count in enumerate(STAGE_BLOCKS):
        inner, outer = width << stage, (width << stage) * 4
        for index in range(count):
            side_in = side
            if stage > 0 and index == 0:
                side = halved(side)
            multiply_adds += channels * inner * side_in**2  # 1x1
            multiply_adds += inner * inner * 9 * side**2  # 3x3, carries the stride
            multiply_adds += inner * outer * side**2  # 1x1
            if index == 0:
                multiply_adds += channels * outer * side**2  # projection of the input
            channels = outer
    multiply_adds += channels * config.classes
    return 2 * multiply_adds


def synthetic_jpegs(config: Config, seed: int) -> list[bytes]:
    """JPEG files in memory: noise of four scales, so that size and decode time come near those of photographs."""
    from PIL import Image

    random = np.random.default_rng(seed)
    size = (config.image_width_px, config.image_height_px)
    files = []
    for _ in range(config.distinct_images):
        picture_HWC = np.zeros((size[1], size[0], 3), np.float32)
        for cells, weight in ((4, 0.4), (16, 0.25), (64, 0.15), (256, 0.2)):
            coarse = random.integers(0, 256, (cells * 3 // 4, cells, 3), np.uint8)
            layer = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
            picture_HWC += weight * np.asarray(layer, np.float32)
        buffer = io.BytesIO()
        Image.fromarray(picture_HWC.astype(np.uint8)).save(buffer, "JPEG", quality=config.jpeg_quality)
        files.append(buffer.getvalue())
    return files


def decode(files: Sequence[bytes]) -> list[Image]:
    """Pictures in RGB."""
    from PIL import Image

    return [Image.open(io.BytesIO(data)).convert("RGB") for data in files]


def resize(pictures: Sequence[Image], crop_px: int) -> list[Image]:
    """Short side to 256/224 of the crop, bilinear, then the square in the middle."""
    from PIL import Image

    cropped = []
    short_px = round(crop_px * RESIZE_RATIO)
    for picture in pictures:
        scale = short_px / min(picture.size)
        width, height = (round(side * scale) for side in picture.size)
        left, top = (width - crop_px) // 2, (height - crop_px) // 2
        scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
        cropped.append(scaled.crop((left, top, left + crop_px, top + crop_px)))
    return cropped


def normalise(pictures: Sequence[Image]) -> torch.Tensor:
    """Batch B x C x H x W in fp32, mean 0 and deviation 1 per channel over ImageNet."""
    import torch

    x_BHWC = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).float() / 255
    x_BHWC = (x_BHWC - torch.tensor(MEAN_RGB)) / torch.tensor(STD_RGB)
    return x_BHWC.permute(0, 3, 1, 2).contiguous()


@workload(
    name="resnet50-infer",
    about=Words(
        "image classification with ResNet-50: JPEG decode, resize and normalise on the host, then inference",
        "ResNet-50 图像分类推理：主机侧 JPEG 解码、缩放、归一化，然后推理",
    ),
    config=Config,
    needs=("PIL",),
)
def resnet50_infer(config: Config, place: Place, seed: int) -> Program:
    """The inference step on `device`; weights and images depend on the seed alone."""
    import torch
    from torch.profiler import record_function

    from ascend_perf.workloads._resnet import ResNet50

    device = place.device
    torch.manual_seed(seed)
    dtype = config.dtype if config.dtype != "auto" else ("fp32" if device == "cpu" else "fp16")
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    torch.backends.cudnn.allow_tf32 = False
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    model = ResNet50(width=config.base_width, classes=config.classes).eval()
    model = model.to(device=device, dtype=torch_dtype, memory_format=layout)
    files = synthetic_jpegs(config, seed)
    surest: list[torch.Tensor] = []
    position = 0

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def step() -> None:
        nonlocal position
        chosen = [files[(position + index) % len(files)] for index in range(config.batch)]
        position += config.batch
        with record_function("preprocess::decode"):
            pictures = decode(chosen)
        with record_function("preprocess::resize"):
            pictures = resize(pictures, config.crop_px)
        with record_function("preprocess::normalise"):
            x_BCHW = normalise(pictures)
        with record_function("preprocess::copy"):
            x_BCHW = x_BCHW.to(device=device, dtype=torch_dtype, memory_format=layout)
        with record_function("inference"):
            logits_BK = model(x_BCHW)
            surest[:] = [logits_BK.float().log_softmax(-1).max(-1).values.mean()]

    return Program(
        step=step,
        item="images",
        items_per_step=config.batch,
        flops_per_step=image_flops(config) * config.batch,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in model.parameters()),
        value_name="mean_log_probability",
        last_value=lambda: float(surest[-1]),
    )
