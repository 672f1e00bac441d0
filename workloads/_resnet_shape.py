"""ResNet-50 in numbers: its convolutions, and from them weights, FLOPs and memory. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

STAGE_BLOCKS: Final = (3, 4, 6, 3)
EXPANSION: Final = 4
STEM_KERNEL: Final = 7


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """One convolution without bias, followed by a batch norm. `side_in` and `side` are in pixels."""

    channels_in: int
    channels: int
    kernel: int
    side_in: int
    side: int
    role: Literal["stem", "inner", "last", "shortcut"]
    """last: its norm is added to the shortcut before the activation; shortcut: the projection of a block's input."""

    @property
    def weights(self) -> int:
        """Weights of the convolution alone."""
        return self.channels_in * self.channels * self.kernel**2

    @property
    def values(self) -> int:
        """Values of its output for one image."""
        return self.channels * self.side**2


def halved(side: int) -> int:
    """Output side of a kernel of 1, 3 or 7 with stride 2 and padding (k - 1) / 2."""
    return (side + 1) // 2


def convolutions(*, crop_px: int, width: int) -> Iterator[Convolution]:
    """The convolutions of the "v1.5" net in the order of execution; `width` 64 is the published net.

    Source:
        He et al., 2015, table 1; the 3x3 convolution carries the stride, as in torchvision.
    """
    side = halved(crop_px)
    yield Convolution(
        channels_in=3, channels=width, kernel=STEM_KERNEL, side_in=crop_px, side=side, role="stem"
    )  # fmt: skip
    side, channels = halved(side), width
    for stage, count in enumerate(STAGE_BLOCKS):
        inner, outer = width << stage, (width << stage) * EXPANSION
        for index in range(count):
            side_in = side
            if stage > 0 and index == 0:
                side = halved(side)
            yield Convolution(
                channels_in=channels, channels=inner, kernel=1, side_in=side_in, side=side_in, role="inner"
            )  # fmt: skip
            yield Convolution(channels_in=inner, channels=inner, kernel=3, side_in=side_in, side=side, role="inner")
            yield Convolution(channels_in=inner, channels=outer, kernel=1, side_in=side, side=side, role="last")
            if index == 0:
                yield Convolution(
                    channels_in=channels, channels=outer, kernel=1, side_in=side_in, side=side, role="shortcut"
                )  # fmt: skip
            channels = outer


def image_flops(*, crop_px: int, width: int, classes: int) -> int:
    """Model FLOPs of one image forward, multiply and add counted as two: convolutions and the classifier.

    A convolution takes 2 x C_in x C_out x k^2 per pixel of its output. Norms, activations, pooling and preprocessing
    do not count. For the published net (width 64, 224 x 224, 1000 classes) this is 8.178 GFLOP, the 4.09 G
    multiply-adds of the literature.
    """
    parts = convolutions(crop_px=crop_px, width=width)
    return 2 * (sum(part.weights * part.side**2 for part in parts) + _features(width) * classes)


def image_train_flops(*, crop_px: int, width: int, classes: int) -> int:
    """Model FLOPs of one image in training: three times forward, less the gradient of the image, which nobody needs."""
    stem = next(convolutions(crop_px=crop_px, width=width))
    return 3 * image_flops(crop_px=crop_px, width=width, classes=classes) - 2 * stem.weights * stem.side**2


def tensor_sizes(*, width: int, classes: int) -> list[int]:
    """Values of each trained tensor in the order in which the module registers them.

    25,557,032 in all for the published net, the figure of torchvision's model card.
    """
    sizes: list[int] = []
    for part in convolutions(crop_px=224, width=width):
        sizes += [part.weights, part.channels, part.channels]  # weight and bias of the norm
    return [*sizes, _features(width) * classes, classes]


def norm_channels(*, width: int) -> list[int]:
    """Channels of each batch norm, in the order of execution."""
    return [part.channels for part in convolutions(crop_px=224, width=width)]


def weight_bytes(*, width: int, classes: int, bytes_per_value: int = 4) -> int:
    """Weights and the running statistics of the norms (mean and variance, and a count in int64 each)."""
    channels = norm_channels(width=width)
    return (sum(tensor_sizes(width=width, classes=classes)) + 2 * sum(channels)) * bytes_per_value + 8 * len(channels)


def saved_bytes(*, crop_px: int, width: int, classes: int, batch: int, bytes_per_value: int) -> int:
    """Bytes that forward keeps for backward: what autograd holds beside the weights.

    Kept are the input of each convolution, the input of each norm with its mean and inverse deviation in fp32, the
    output of each activation (the next convolution's input: one tensor), the input and the int64 indices of pooling,
    the features and the logits' log-probabilities. Under autocast (2 bytes a value) the cast weights are kept as well.
    """
    parts = list(convolutions(crop_px=crop_px, width=width))
    stem = parts[0]
    values, statistics = 3 * crop_px**2, 0
    for part in parts:
        statistics += 2 * part.channels
        values += part.values  # input of the norm
        if part.role != "shortcut":
            values += part.values  # output of the activation
    pooled = stem.channels * halved(stem.side) ** 2
    features = _features(width)
    per_image = (values + pooled + features) * bytes_per_value + 8 * pooled + 4 * classes
    cast = 0
    if bytes_per_value == 2:
        cast = 2 * (sum(part.weights for part in parts) + features * classes)
    return batch * per_image + 4 * statistics + cast


def inference_bytes(*, crop_px: int, width: int, batch: int, bytes_per_value: int) -> int:
    """Most bytes of activations that are alive at once without gradients, as `_resnet.py` runs: eager, not in place.

    The input and the pooled stem are alive throughout. In a block its input x is, beside it in turn: two outputs of the
    first convolution's size (an operator's input and output), the first activation and two of the second's, the second
    and two of the third's, and three of the third's (main branch, sum, and shortcut or result).
    """
    parts = list(convolutions(crop_px=crop_px, width=width))
    stem = parts[0]
    pooled = stem.channels * halved(stem.side) ** 2
    most = max(2 * stem.values, stem.values + pooled)
    trio: list[Convolution] = []
    for part in parts[1:]:
        if part.role == "shortcut":
            continue
        trio.append(part)
        if part.role == "last":
            first, second, third = (conv.values for conv in trio)
            entered = trio[0].channels_in * trio[0].side_in ** 2
            beside = max(2 * first, first + 2 * second, second + 2 * third, 3 * third)
            most = max(most, pooled + entered + beside)
            trio = []
    return (3 * crop_px**2 + most) * batch * bytes_per_value


def _features(width: int) -> int:
    return (width << (len(STAGE_BLOCKS) - 1)) * EXPANSION
