"""Preprocessing as the first operations of a model: uint8 pictures come in, the net's input goes out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ascend_perf.ops.aipp import AippConfig

# B images, C channels, H height, W width


class Normalise(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Cast, subtract the mean, scale and change the layout, in fp32; then the type of the net."""

    def __init__(self, *, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("mean_C", 255 * torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("scale_C", 1 / (255 * torch.tensor(std, dtype=torch.float32)), persistent=False)

    def forward(self, pixels_BHWC: Tensor) -> Tensor:
        """B x C x H x W; contiguous in the layout that the pixels came in (channels last)."""
        x_BHWC = (pixels_BHWC.float() - self.mean_C) * self.scale_C
        return x_BHWC.permute(0, 3, 1, 2).to(self.dtype)


class Aipp(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """What AIPP of an offline model computes, bit for bit as `AippConfig.emulate`, with torch's kernels."""

    def __init__(self, config: AippConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        if config.input_format != "RGB888_U8" or config.padding:
            raise ValueError("only RGB888_U8 without padding is computed with torch")
        self.config, self.dtype = config, dtype
        for name in ("mean_chn", "min_chn", "var_reci_chn"):
            self.register_buffer(name, torch.tensor(getattr(config, name), dtype=torch.float16), persistent=False)

    def forward(self, pixels_BHWC: Tensor) -> Tensor:
        """B x C x H x W."""
        config = self.config
        if config.rbuv_swap_switch:
            pixels_BHWC = pixels_BHWC.flip(-1)
        if config.crop:
            top, left = config.load_start_pos_h, config.load_start_pos_w
            pixels_BHWC = pixels_BHWC[:, top : top + config.crop_size_h, left : left + config.crop_size_w]
        x_BHWC = (pixels_BHWC.half() - self.mean_chn - self.min_chn) * self.var_reci_chn
        return x_BHWC.permute(0, 3, 1, 2).to(self.dtype)
