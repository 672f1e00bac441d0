"""ResNet-50 in plain torch (the "v1.5" form: the 3x3 convolution of a bottleneck carries the stride)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ascend_perf.workloads._resnet_shape import EXPANSION, STAGE_BLOCKS

# B images, C channels, H height, W width, K classes


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """1x1 down, 3x3, 1x1 up, added to the input (projected where the shape changes)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * EXPANSION
        self.conv1, self.norm1 = nn.Conv2d(channels_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Features after the block."""
        y_BCHW = F.relu(self.norm1(self.conv1(x_BCHW)))
        y_BCHW = F.relu(self.norm2(self.conv2(y_BCHW)))
        y_BCHW = self.norm3(self.conv3(y_BCHW))
        return F.relu(y_BCHW + self.shortcut(x_BCHW))


class ResNet50(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Stem, four stages of bottlenecks, average, classifier. `width` 64 is the published net.

    With `zero_residual` a block starts as the identity, its last norm scaling by zero, which makes training steadier.
    Source: Goyal et al., 2017, section 5.1.
    """

    def __init__(self, *, width: int, classes: int, zero_residual: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        blocks: list[Bottleneck] = []
        channels = width
        for stage, count in enumerate(STAGE_BLOCKS):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if zero_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.norm3.weight)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits B x K."""
        x_BCHW = F.relu(self.stem_norm(self.stem(x_BCHW)))
        x_BCHW = F.max_pool2d(x_BCHW, 3, stride=2, padding=1)
        x_BC = self.blocks(x_BCHW).mean((2, 3))
        return self.classifier(x_BC)
