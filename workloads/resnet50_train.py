"""resnet50-train: ResNet-50 in training from JPEG files, on one rank or many (data parallel).

    workers:        read -> decode -> random crop, mirror
    for each step:  wait for the workers -> copy -> normalise -> forward -> loss -> backward -> SGD

The net is in `_resnet.py`, pictures are in `_images.py`, workers in `_image_loader.py`, the step in `_classifying.py`.
Read top to bottom: settings, prediction, build.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _fused, _gradient_traffic, _images, _resnet_shape
from ascend_perf.workloads._model_shape import VALUE_BYTES
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Traffic, at_least, workload
from ascend_perf.workloads._virtual import computes_nothing

# B images, C channels, H height, W width, K classes


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the images, of the net and of one step. `batch` is that of one rank.

    `dtype` auto is bf16 where the device multiplies it, else fp16 with a scaled loss; on a CPU without bf16 units fp32.
    """

    batch: int = 32
    image_width_px: int = 500
    image_height_px: int = 375
    jpeg_quality: int = 90
    distinct_images: int = 256
    """Synthetic pictures to train on."""
    held_out_images: int = 64
    """Pictures that accuracy is taken from, at most."""
    crop_px: int = 224
    base_width: int = 64
    classes: int = 1000
    preprocess: Literal["host", "graph"] = "host"
    """Where pixels are normalised: by the workers (fp32 is copied), or on the device (uint8 is copied)."""
    workers: int = 4
    """Processes per rank that decode; 0: the step itself does."""
    prefetch: int = 2
    """Batches per worker that are made ahead."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    channels_last: bool = False
    sync_batch_norm: bool = False
    """Mean and variance of the norms over all ranks, not of each rank's own images."""
    fused_optimizer: Literal["auto", "on", "off"] = "auto"
    """One kernel for the update of all weights; auto: on an accelerator."""
    learning_rate: float = 0.1
    learning_rate_warmup: int = 5
    """Steps over which the rate rises to `learning_rate`."""
    learning_rate_steps: int = 1000
    """Step at which the rate has fallen to nothing, along a cosine."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    """Of matrices and kernels; norms and biases have none."""
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "distinct_images", "held_out_images", "base_width", "jpeg_quality", "prefetch")
        at_least(self, 1, "learning_rate_steps")
        at_least(self, 2, "classes")
        at_least(self, 0, "workers", "learning_rate_warmup", "learning_rate", "momentum", "weight_decay")
        at_least(self, 16, "image_width_px", "image_height_px")
        at_least(self, 32, "crop_px")
        if self.jpeg_quality > 100:
            raise ValueError(f"jpeg_quality must be 1 to 100, got {self.jpeg_quality}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be 0 to below 1, got {self.label_smoothing}")


def image_flops(config: Config) -> int:
    """Model FLOPs of one image, forward and backward; see `_resnet_shape.image_train_flops`."""
    return _resnet_shape.image_train_flops(crop_px=config.crop_px, width=config.base_width, classes=config.classes)


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory of one rank, traffic of its data axis. Weights, gradients and momentum are fp32."""
    if config.sync_batch_norm and world_size == 1:
        raise ValueError("sync_batch_norm needs more than one process: --nproc 2")
    sizes = _resnet_shape.tensor_sizes(width=config.base_width, classes=config.classes)
    traffic = list(_gradient_traffic.gradient_traffic(sizes, world_size=world_size, numbers=2))
    channels = _resnet_shape.norm_channels(width=config.base_width)
    if config.sync_batch_norm:
        traffic += [
            Traffic(axis="data", collective="all_gather", calls_per_step=len(channels),
                    bytes_per_step=sum(4 * world_size * (2 * count + 1) for count in channels)),
            Traffic(axis="data", collective="all_reduce", calls_per_step=len(channels),
                    bytes_per_step=sum(4 * 2 * count for count in channels)),
        ]  # fmt: skip
    return Prediction(
        memory_bytes={
            "weights": _resnet_shape.weight_bytes(width=config.base_width, classes=config.classes),
            "gradients": 4 * sum(sizes),
            "optimizer": 4 * sum(sizes) if config.momentum else 0,
            "activations": _resnet_shape.saved_bytes(
                crop_px=config.crop_px, width=config.base_width, classes=config.classes, batch=config.batch,
                bytes_per_value=VALUE_BYTES[target.auto_dtype("fp16") if config.dtype == "auto" else config.dtype],
            ),
        },
        traffic=tuple(traffic),
    )  # fmt: skip


def pictures(config: Config, place: Place, seed: int) -> tuple[_images.Pictures, _images.Pictures]:
    """Pictures to train on and pictures held out, the same on every rank.

    Raises:
        InputError: the folder has no pictures, too few, or more classes than the net.
    """
    if place.data is None:
        made = [
            _images.synthetic_classes(
                count=count, classes=config.classes, width_px=config.image_width_px, height_px=config.image_height_px,
                quality=config.jpeg_quality, seed=part_seed,
            )
            for count, part_seed in ((config.distinct_images, 2 * seed), (config.held_out_images, 2 * seed + 1))
        ]  # fmt: skip
        return made[0], made[1]
    train, held_out, names = _images.labelled_folder(place.data)
    if len(names) > config.classes:
        raise InputError(
            f"{place.data.name} has {len(names)} classes, the net {config.classes}",
            hint=f"use --set classes={len(names)}",
        )
    # Sorted by class: every n-th, so that all classes are among them.
    every = max(1, len(held_out.files) // config.held_out_images)
    rows = range(0, len(held_out.files), every)[: config.held_out_images]
    return train, _images.Pictures(
        files=[held_out.files[row] for row in rows], labels=[held_out.labels[row] for row in rows], root=held_out.root
    )


@workload(
    name="resnet50-train",
    about=Words(
        "ResNet-50 in training: JPEG decode and augmentation in worker processes, DDP, SGD, mixed precision",
        "ResNet-50 训练：工作进程解码 JPEG 并增强、DDP、SGD、混合精度",
    ),
    config=Config,
    needs=("PIL",),
    predict=predict,
)
def resnet50_train(config: Config, place: Place, seed: int) -> Program:
    """The training step on `device`; weights, pictures and their crops depend on the seed alone."""
    import torch
    from torch import nn
    from torch.profiler import record_function

    from ascend_perf.workloads import _classifying, _image_loader, _preprocessing, _sync_norm
    from ascend_perf.workloads._resnet import ResNet50

    kind = place.kind
    train, held_out = pictures(config, place, seed)
    if len(train.files) < config.batch * place.world_size:
        raise InputError(
            f"{len(train.files)} pictures to train on are fewer than one step takes: "
            f"batch {config.batch} on {place.world_size} ranks",
            hint="use a smaller --set batch=..., or more pictures",
        )
    torch.manual_seed(seed)
    torch.backends.cudnn.allow_tf32 = False
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    net: nn.Module = ResNet50(width=config.base_width, classes=config.classes, zero_residual=True)
    net = net.to(device=place.device, memory_format=layout)
    if config.sync_batch_norm:
        if place.world_size == 1:
            raise ValueError("sync_batch_norm needs more than one process: --nproc 2")
        net = _sync_norm.synchronised(net, kind)
    dtype = _classifying.training_dtype(config.dtype, kind)
    training = _classifying.Training(
        net, place, dtype=dtype, optimizer=_optimizer(config, net, kind), label_smoothing=config.label_smoothing,
        rate=lambda step: _classifying.rate_factor(
            step, warmup=config.learning_rate_warmup, total=config.learning_rate_steps, shape="cosine"
        ),
    )  # fmt: skip
    if place.resume is not None:
        training.resume(place.resume)
    normalised = _preprocessing.Normalise(mean=_images.MEAN_RGB, std=_images.STD_RGB, dtype=torch.float32)
    normalised = normalised.to(place.device)
    loader = _image_loader.ImageLoader(
        train, batch=config.batch, ranks=place.world_size, rank=place.rank, crop_px=config.crop_px, seed=seed,
        workers=config.workers, prefetch=config.prefetch, on_host=config.preprocess == "host",
        pin_memory=kind == "cuda", start=training.steps_done,
    )  # fmt: skip
    waits_ns: list[int] = []
    starts_ns: list[int] = []

    def step() -> None:
        starts_ns.append(time.perf_counter_ns())
        with record_function("data::wait"):
            x, labels_B = loader.next()
        waits_ns.append(time.perf_counter_ns() - starts_ns[-1])
        with record_function("data::copy"):
            x, labels_B = x.to(place.device, non_blocking=True), labels_B.to(place.device, non_blocking=True)
        if config.preprocess == "graph":
            with record_function("data::normalise"):
                x = normalised(x)
        training.step((x.contiguous(memory_format=layout),), labels_B)

    def start_measuring() -> None:
        waits_ns.clear()
        starts_ns.clear()

    def accuracy() -> float:
        batches = []
        for at in range(0, len(held_out.files), config.batch):
            indices = range(at, min(at + config.batch, len(held_out.files)))
            whole = [_images.decode_one(held_out.read(index), held_out.name_of(index)) for index in indices]
            x_BCHW = _images.normalise(_images.as_pixels(_images.resize(whole, config.crop_px)))
            labels_B = torch.tensor([held_out.labels[index] for index in indices])
            x_BCHW = x_BCHW.to(place.device, memory_format=layout)
            batches.append(((x_BCHW,), labels_B.to(place.device)))
        return training.evaluate(batches)

    def metrics() -> list[Metric]:
        found = []
        if not computes_nothing(kind):
            found.append(Metric(name="accuracy", value=accuracy(), unit="ratio", better="higher"))
        wait_ns = sum(waits_ns) / max(1, len(waits_ns))
        found.append(Metric(name="data_wait_per_step", value=wait_ns, unit="ns", better="lower"))
        if len(starts_ns) > 1:
            # From start to start: the last step is left out, since its end is not seen here.
            share = sum(waits_ns[:-1]) / (starts_ns[-1] - starts_ns[0])
            found.append(Metric(name="data_wait_ratio", value=share, unit="ratio", better="lower"))
        return found

    return Program(
        step=step,
        item="images",
        items_per_step=config.batch * place.world_size,
        flops_per_step=image_flops(config) * config.batch * place.world_size,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in net.parameters()),
        value_name="loss",
        last_value=training.last_loss,
        series=training.series,
        memory_bytes=training.memory_bytes,
        metrics=metrics,
        start_measuring=start_measuring,
        save=training.save,
        model=net,
        gradient_scale=training.gradient_scale,
        close=loader.close,
    )


def _optimizer(config: Config, net: Any, kind: str) -> Any:
    """SGD with momentum; on an NPU the one of torch_npu that updates all weights at once, where it is wanted."""
    import torch

    weights = list(net.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    if kind == "npu" and config.fused_optimizer != "off":
        import torch_npu

        _fused.quiet_about_storage()
        return torch_npu.optim.NpuFusedSGD(groups, lr=config.learning_rate, momentum=config.momentum)
    fused = config.fused_optimizer == "on" or (config.fused_optimizer == "auto" and kind == "cuda")
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=fused or None)
