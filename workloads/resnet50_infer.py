"""resnet50-infer: classify JPEG images with ResNet-50, preprocessed on the host or on the device.

    host:   decode -> resize and crop -> normalise -> copy fp32 -> inference
    graph:  decode -> resize and crop -> copy uint8 -> normalise on the device -> inference
    aipp:   (decoded before) -> copy uint8 -> what AIPP of an offline model computes -> inference

The net is in `_resnet.py`, pictures are in `_images.py`, AIPP is in `ascend_perf/ops/aipp.py`. AIPP itself runs only in
offline models (.om); here torch's kernels compute the same values, on an NPU too. DVPP, which decodes, is not used: in
the mode `aipp` the pictures are decoded by Pillow before the run. Read top to bottom: settings, prediction, one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ascend_perf.model.finding import Words
from ascend_perf.ops.aipp import AippConfig, normalising
from ascend_perf.workloads import _images, _resnet_shape
from ascend_perf.workloads._model_shape import VALUE_BYTES
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Value, at_least, workload

if TYPE_CHECKING:
    import torch

# B images, C channels, H height, W width, K classes


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
    """Pictures that are made, or taken from `--data`; steps walk through them again and again."""
    crop_px: int = 224
    base_width: int = 64
    classes: int = 1000
    preprocess: Literal["host", "graph", "aipp"] = "host"
    """Where pixels are cast, normalised and transposed."""
    decode: Literal["auto", "step", "before"] = "auto"
    """When pictures are decoded and resized: in each step, or before the first; auto: before with aipp, else in it."""
    aipp_crop: bool = True
    """AIPP mode: the host sends 256 x 256 (of a crop of 224), AIPP cuts out the middle; false: the host cuts it."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    channels_last: bool = False
    export_onnx: bool = False
    """Leave model.onnx, aipp.cfg and the ATC command in the run directory."""
    onnx_dynamic_batch: bool = False
    soc_version: str = "Ascend910B2"
    """For the ATC command: "Ascend" and the name that `npu-smi info` shows."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "distinct_images", "base_width", "classes", "jpeg_quality")
        at_least(self, 16, "image_width_px", "image_height_px")
        at_least(self, 32, "crop_px")
        if self.jpeg_quality > 100:
            raise ValueError(f"jpeg_quality must be 1 to 100, got {self.jpeg_quality}")
        if self.preprocess == "aipp":
            aipp_config(self)
            if self.onnx_dynamic_batch:
                raise ValueError("onnx_dynamic_batch: static AIPP takes inputs of one shape; use host or graph")

    @property
    def decodes_before(self) -> bool:
        """Whether steps start from decoded pictures."""
        return self.decode == "before" or (self.decode == "auto" and self.preprocess == "aipp")

    def dtype_on(self, kind: str) -> Literal["fp32", "bf16", "fp16"]:
        """Of the net on a device of that kind."""
        return self.dtype if self.dtype != "auto" else ("fp32" if kind == "cpu" else "fp16")

    @property
    def sent_px(self) -> int:
        """Side of the squares that the host gives to the device."""
        whole = self.preprocess == "aipp" and self.aipp_crop
        return _images.source_px(self.crop_px) if whole else self.crop_px


def aipp_config(config: Config) -> AippConfig:
    """What AIPP has to do in the mode `aipp`."""
    return normalising(
        source_px=(config.sent_px, config.sent_px), crop_px=config.crop_px if config.aipp_crop else None,
        mean=_images.MEAN_RGB, std=_images.STD_RGB,
    )  # fmt: skip


def image_flops(config: Config) -> int:
    """Model FLOPs of one image; see `_resnet_shape.image_flops`."""
    return _resnet_shape.image_flops(crop_px=config.crop_px, width=config.base_width, classes=config.classes)


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory of one rank; ranks do not talk to each other, each classifies its own images."""
    value_bytes = VALUE_BYTES[config.dtype_on(target.kind)]
    return Prediction(
        memory_bytes={
            "weights": _resnet_shape.weight_bytes(
                width=config.base_width, classes=config.classes, bytes_per_value=value_bytes
            ),
            "activations": _resnet_shape.inference_bytes(
                crop_px=config.crop_px, width=config.base_width, batch=config.batch, bytes_per_value=value_bytes
            ),
        }
    )  # fmt: skip


def _files(config: Config, place: Place, seed: int) -> _images.Pictures:
    """The pictures of all ranks, by the seed or from the user's folder."""
    if place.data is None:
        files = _images.synthetic_jpegs(
            count=config.distinct_images, width_px=config.image_width_px, height_px=config.image_height_px,
            quality=config.jpeg_quality, seed=seed,
        )  # fmt: skip
        return _images.Pictures(files=files, labels=[0] * len(files))
    found = _images.found_pictures(place.data)[: config.distinct_images]
    named = _images.Pictures(files=found, labels=[0] * len(found), root=place.data)
    every = range(len(found))
    return _images.Pictures(
        files=[named.read(index) for index in every], labels=named.labels,
        names=[named.name_of(index) for index in every],
    )  # fmt: skip


@workload(
    name="resnet50-infer",
    about=Words(
        "image classification with ResNet-50: JPEG decode, resize and normalise on the host, in the graph or as AIPP",
        "ResNet-50 图像分类推理：JPEG 解码、缩放，归一化位于主机侧、图内或 AIPP",
    ),
    config=Config,
    takes=("data",),
    needs=("PIL",),
    predict=predict,
)
def resnet50_infer(config: Config, place: Place, seed: int) -> Program:
    """The inference step on `device`; weights and images depend on the seed alone."""
    import torch
    from torch import nn
    from torch.profiler import record_function

    from ascend_perf.workloads import _preprocessing
    from ascend_perf.workloads._resnet import ResNet50

    device = place.device
    torch.manual_seed(seed)
    dtype = config.dtype_on(place.kind)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    torch.backends.cudnn.allow_tf32 = False
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    net = ResNet50(width=config.base_width, classes=config.classes).eval()
    net = net.to(device=device, dtype=torch_dtype, memory_format=layout)
    head: Any = nn.Identity()
    if config.preprocess == "graph":
        head = _preprocessing.Normalise(mean=_images.MEAN_RGB, std=_images.STD_RGB, dtype=torch_dtype).to(device)
    elif config.preprocess == "aipp":
        head = _preprocessing.Aipp(aipp_config(config), dtype=torch_dtype).to(device)

    pictures = _files(config, place, seed)
    count = len(pictures.files)
    ready: list[Any] = []
    if config.decodes_before:
        for index in range(count):
            whole = _images.decode_one(pictures.read(index), pictures.name_of(index))
            ready += _images.resize([whole], config.crop_px, keep_px=config.sent_px)
    surest: list[torch.Tensor] = []
    position = config.batch * place.rank

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def step() -> None:
        nonlocal position
        chosen = [(position + index) % count for index in range(config.batch)]
        position += config.batch * place.world_size
        if ready:
            squares = [ready[index] for index in chosen]
        else:
            with record_function("preprocess::decode"):
                squares = [_images.decode_one(pictures.read(index), pictures.name_of(index)) for index in chosen]
            with record_function("preprocess::resize"):
                squares = _images.resize(squares, config.crop_px, keep_px=config.sent_px)
        if config.preprocess == "host":
            with record_function("preprocess::normalise"):
                x = _images.normalise(_images.as_pixels(squares))
            with record_function("preprocess::copy"):
                x = x.to(device=device, dtype=torch_dtype, memory_format=layout)
        else:
            with record_function("preprocess::copy"):
                x = torch.from_numpy(_images.as_pixels(squares)).to(device)
        with record_function("inference"):
            x_BCHW = x if config.preprocess == "host" else head(x).contiguous(memory_format=layout)
            logits_BK = net(x_BCHW)
            surest[:] = [logits_BK.float().log_softmax(-1).max(-1).values.mean()]

    made: list[str] = []
    if config.export_onnx:
        made = _export(config, place, net)
    weights = [*net.parameters(), *net.buffers()]
    return Program(
        step=step,
        item="images",
        items_per_step=config.batch * place.world_size,
        flops_per_step=image_flops(config) * config.batch * place.world_size,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in net.parameters()),
        value_name="mean_log_probability",
        last_value=lambda: float(surest[-1]),
        memory_bytes=lambda: {"weights": sum(weight.numel() * weight.element_size() for weight in weights)},
        model=net,
        tables=lambda: {"preprocessing": stages(config), "export": [{"file": name} for name in made]},
    )


def _export(config: Config, place: Place, net: Any) -> list[str]:
    """Files for ATC in the run directory; rank 0 writes them."""
    from ascend_perf.errors import UsageError
    from ascend_perf.workloads import _onnx

    if place.results is None:
        raise UsageError("export_onnx writes into the run directory", hint="use it with `ascend-perf run`")
    if place.rank != 0:
        return []
    return list(
        _onnx.export(
            net, place.results, batch=config.batch, dynamic_batch=config.onnx_dynamic_batch, crop_px=config.crop_px,
            pixels=(_images.MEAN_RGB, _images.STD_RGB) if config.preprocess == "graph" else None,
            aipp=aipp_config(config) if config.preprocess == "aipp" else None, soc_version=config.soc_version,
            precision={"fp32": "origin", "bf16": "mixed_bfloat16", "fp16": "fp16", "auto": "fp16"}[config.dtype],
        )
    )  # fmt: skip


def stages(config: Config) -> list[dict[str, Value]]:
    """What happens to a picture, where, and by what: a row per stage."""
    before = "before the run" if config.decodes_before else "in the step"
    on_host = {"host": "torch on the host", "graph": "first operations of the graph", "aipp": "AIPP emulated by torch"}
    where = "host" if config.preprocess == "host" else "device"
    sent = config.sent_px**2 * 3 * (4 if config.preprocess == "host" else 1)
    return [
        {"stage": "decode", "where": "host", "by": "Pillow", "when": before, "bytes_per_image": None},
        {"stage": "resize and crop", "where": "host", "by": "Pillow", "when": before, "bytes_per_image": None},
        {"stage": "normalise", "where": where, "by": on_host[config.preprocess], "when": "in the step",
         "bytes_per_image": None},
        {"stage": "copy", "where": "host to device", "by": "torch", "when": "in the step", "bytes_per_image": sent},
    ]  # fmt: skip
