"""resnet50-infer: FLOPs by hand and as published, preprocessing that does what its name says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.resnet50_infer import (
    MEAN_RGB,
    STD_RGB,
    Config,
    decode,
    image_flops,
    normalise,
    resize,
    resnet50_infer,
    synthetic_jpegs,
)

SMALL = Config(batch=2, image_width_px=64, image_height_px=48, distinct_images=3, crop_px=32, base_width=4, classes=10)


def test_flops_of_the_published_net() -> None:
    # 4,089,184,256 multiply-adds: the figure that FLOP counters print for ResNet-50 v1.5 at 224 x 224.
    assert image_flops(Config()) == 2 * 4_089_184_256


def test_flops_of_a_narrow_net_by_hand() -> None:
    # 32 x 32 pixels; stem to 16 x 16, pooled to 8 x 8; stages at 8, 4, 2, 1; widths 4, 8, 16, 32 (outputs x 4).
    stem = 3 * 4 * 49 * 256
    first = (4 * 4 + 9 * 4 * 4 + 4 * 16 + 4 * 16) * 64 + 2 * (16 * 4 + 9 * 4 * 4 + 4 * 16) * 64
    second = 16 * 8 * 64 + (9 * 8 * 8 + 8 * 32 + 16 * 32) * 16 + 3 * (32 * 8 + 9 * 8 * 8 + 8 * 32) * 16
    third = 32 * 16 * 16 + (9 * 16 * 16 + 16 * 64 + 32 * 64) * 4 + 5 * (64 * 16 + 9 * 16 * 16 + 16 * 64) * 4
    fourth = 64 * 32 * 4 + (9 * 32 * 32 + 32 * 128 + 64 * 128) * 1 + 2 * (128 * 32 + 9 * 32 * 32 + 32 * 128) * 1
    assert image_flops(SMALL) == 2 * (stem + first + second + third + fourth + 128 * 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch must be 1 or more"),
        ({"crop_px": 31}, "crop_px must be 32 or more"),
        ({"jpeg_quality": 101}, "jpeg_quality must be 1 to 100"),
        ({"image_width_px": 8}, "image_width_px must be 16 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]  # one field each


@pytest.mark.torch
def test_the_images_are_jpeg_files_that_depend_on_the_seed() -> None:
    pytest.importorskip("PIL")
    files = synthetic_jpegs(SMALL, 1)

    assert len(files) == 3
    assert all(data.startswith(b"\xff\xd8\xff") for data in files)
    assert files == synthetic_jpegs(SMALL, 1)
    assert files != synthetic_jpegs(SMALL, 2)
    assert [picture.size for picture in decode(files)] == [(64, 48)] * 3


@pytest.mark.torch
def test_an_image_takes_as_many_bytes_as_a_photograph() -> None:
    pytest.importorskip("PIL")
    (data,) = synthetic_jpegs(replace(Config(), distinct_images=1), 0)

    bits_per_pixel = len(data) * 8 / (500 * 375)
    assert 2 < bits_per_pixel < 8  # ImageNet: about 110 kB, 4.7 bits a pixel


@pytest.mark.torch
def test_resizing_keeps_the_middle_square() -> None:
    image = pytest.importorskip("PIL.Image")
    # Left quarter black, middle half white, right quarter black; 2:1, so the square is the middle half.
    pixels = np.zeros((256, 512, 3), np.uint8)
    pixels[:, 128:384] = 255

    (square,) = resize([image.fromarray(pixels)], 224)

    assert square.size == (224, 224)
    assert np.asarray(square).min() == 255


@pytest.mark.torch
def test_normalising_by_hand() -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")

    batch = normalise([image.new("RGB", (3, 2), (255, 0, 51))])

    assert tuple(batch.shape) == (1, 3, 2, 3)
    expected = [(value - mean) / std for value, mean, std in zip((1, 0, 0.2), MEAN_RGB, STD_RGB, strict=True)]
    assert batch[0, :, 1, 2].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.torch
def test_the_net_has_the_published_parameters_and_the_counted_flops() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from ascend_perf.workloads._resnet import ResNet50

    with torch.device("meta"):
        published = ResNet50(width=64, classes=1000)
    assert sum(weight.numel() for weight in published.parameters()) == 25_557_032  # model card of torchvision

    narrow = ResNet50(width=4, classes=10).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        narrow(torch.zeros((2, 3, 32, 32)))
    assert counter.get_total_flops() == 2 * image_flops(SMALL)


@pytest.mark.torch
def test_a_step_walks_through_the_images_and_repeats_with_the_seed() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    values = []
    for seed in (3, 3, 4):
        program = resnet50_infer.build(SMALL, Place(), seed)
        for _ in range(3):
            program.step()
            values.append(program.last_value())

    assert values[0:3] == values[3:6]
    assert values[0] != values[1]  # images 0, 1 and then 2, 0
    assert values[6] != values[0]
    assert all(np.isfinite(values))


@pytest.mark.torch
def test_channels_last_and_bf16_run() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    program = resnet50_infer.build(replace(SMALL, channels_last=True, dtype="bf16"), Place(), 0)

    program.step()

    assert program.dtype == "bf16"
    assert np.isfinite(program.last_value())
