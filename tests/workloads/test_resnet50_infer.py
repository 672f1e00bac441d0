"""resnet50-infer: FLOPs by hand and as published, preprocessing that does what its name says."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.workloads import _resnet_shape
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._images import MEAN_RGB, STD_RGB, as_pixels, decode, normalise, resize, synthetic_jpegs
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.resnet50_infer import Config, aipp_config, image_flops, predict, resnet50_infer, stages

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
        ({"preprocess": "aipp", "crop_px": 4000}, "AIPP takes pictures of 2 to 4096"),
        ({"preprocess": "aipp", "onnx_dynamic_batch": True}, "static AIPP takes inputs of one shape"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]  # one field each


@pytest.mark.torch
def test_the_images_are_jpeg_files_that_depend_on_the_seed() -> None:
    pytest.importorskip("PIL")
    files = synthetic_jpegs(count=3, width_px=64, height_px=48, quality=90, seed=1)

    assert len(files) == 3
    assert all(data.startswith(b"\xff\xd8\xff") for data in files)
    assert files == synthetic_jpegs(count=3, width_px=64, height_px=48, quality=90, seed=1)
    assert files != synthetic_jpegs(count=3, width_px=64, height_px=48, quality=90, seed=2)
    assert [picture.size for picture in decode(files)] == [(64, 48)] * 3


@pytest.mark.torch
def test_an_image_takes_as_many_bytes_as_a_photograph() -> None:
    pytest.importorskip("PIL")
    (data,) = synthetic_jpegs(count=1, width_px=500, height_px=375, quality=90, seed=0)

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

    batch = normalise(as_pixels([image.new("RGB", (3, 2), (255, 0, 51))]))

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
    weights = [weight.numel() for weight in published.parameters()]
    assert sum(weights) == 25_557_032  # model card of torchvision
    assert _resnet_shape.tensor_sizes(width=64, classes=1000) == weights
    held = sum(tensor.numel() * tensor.element_size() for tensor in (*published.parameters(), *published.buffers()))
    assert _resnet_shape.weight_bytes(width=64, classes=1000) == held

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


@pytest.mark.torch
def test_the_three_ways_of_preprocessing_agree() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    made = {}
    for way in ("host", "graph", "aipp"):
        program = resnet50_infer.build(replace(SMALL, preprocess=way), Place(), 0)
        seen: list[object] = []
        handle = program.model.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))  # type: ignore[attr-defined]
        program.step()
        handle.remove()
        made[way] = seen[0]

    # The same pixels; fp32 rounds differently when divided or multiplied, AIPP computes in fp16 (see test_aipp).
    torch.testing.assert_close(made["graph"], made["host"], rtol=0, atol=2e-6)
    torch.testing.assert_close(made["aipp"], made["host"], rtol=0, atol=3e-3)
    assert not torch.equal(made["aipp"], made["host"])


@pytest.mark.torch
@pytest.mark.parametrize("crops", [True, False])
def test_aipp_gets_uint8_and_gives_what_its_file_says(crops: bool) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    config = replace(SMALL, preprocess="aipp", aipp_crop=crops, decode="step")
    program = resnet50_infer.build(config, Place(), 0)
    seen: list[object] = []
    program.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy()))  # type: ignore[attr-defined]

    program.step()

    files = synthetic_jpegs(count=3, width_px=64, height_px=48, quality=90, seed=0)
    side = 37 if crops else 32  # 32 x 256 / 224 = 36.6
    pixels = as_pixels(resize(decode(files[:2]), 32, keep_px=side))
    assert pixels.shape == (2, side, side, 3)
    assert np.array_equal(np.asarray(seen[0]), aipp_config(config).emulate(pixels).astype(np.float32))


@pytest.mark.torch
def test_stages_in_the_step_depend_on_the_way() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")

    def ranges(config: Config) -> set[str]:
        program = resnet50_infer.build(config, Place(), 0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            program.step()
        return {event.key for event in profiler.key_averages() if "::" in event.key and "aten" not in event.key}

    decoded = {"preprocess::decode", "preprocess::resize"}
    assert ranges(SMALL) == {*decoded, "preprocess::normalise", "preprocess::copy"}
    assert ranges(replace(SMALL, preprocess="graph")) == {*decoded, "preprocess::copy"}
    assert ranges(replace(SMALL, preprocess="aipp")) == {"preprocess::copy"}


def test_the_table_of_stages_says_that_aipp_is_emulated_and_what_is_copied() -> None:
    by_stage = {row["stage"]: row for row in stages(Config(preprocess="aipp"))}
    assert by_stage["normalise"]["by"] == "AIPP emulated by torch"
    assert (by_stage["decode"]["by"], by_stage["decode"]["when"]) == ("Pillow", "before the run")
    assert by_stage["copy"]["bytes_per_image"] == 256 * 256 * 3
    assert stages(Config())[-1]["bytes_per_image"] == 224 * 224 * 3 * 4


@pytest.mark.torch
def test_the_predicted_memory_is_that_of_the_tensors() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    config = replace(SMALL, dtype="fp32", crop_px=64, base_width=8)
    program = resnet50_infer.build(config, Place(), 0)

    assert dict(program.memory_bytes())["weights"] == predict(config, 1, target_here("cpu")).memory_bytes["weights"]

    from torch.utils._python_dispatch import TorchDispatchMode

    # Independent: storages that operators made, as many as are alive at once, by weak references.
    alive: dict[int, int] = {}
    most = 0

    class Count(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
        def __torch_dispatch__(self, call: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
            nonlocal most
            made = call(*given, **(named or {}))
            for tensor in made if isinstance(made, (tuple, list)) else (made,):
                if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                    storage = tensor.untyped_storage()
                    if storage._cdata not in alive:
                        alive[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, alive.pop, storage._cdata, None)
            most = max(most, sum(alive.values()))
            return made

    x_BCHW = torch.zeros((2, 3, 64, 64))
    with torch.no_grad(), Count():
        program.model(x_BCHW)  # type: ignore[operator]
    predicted = predict(config, 1, target_here("cpu")).memory_bytes["activations"]
    # At the end of the second block: the input, the pooled stem, and four times 32 x 16^2 values; fp32, two pictures.
    assert predicted == 4 * 2 * (3 * 64**2 + 8 * 16**2 + 4 * 32 * 16**2)
    assert most + x_BCHW.nbytes == predicted


@pytest.mark.torch
def test_pictures_of_a_folder_are_classified_and_broken_ones_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path
    for index in range(3):
        image.new("RGB", (40, 50), (index, 0, 0)).save(folder / f"{index}.jpg")

    program = resnet50_infer.build(SMALL, Place(data=folder), 0)
    program.step()
    assert np.isfinite(program.last_value())

    (folder / "1.jpg").write_bytes(b"\xff\xd8\xff broken")
    with pytest.raises(InputError, match=r"^1\.jpg is"):
        resnet50_infer.build(SMALL, Place(data=folder), 0).step()
    with pytest.raises(InputError, match="no folder of pictures"):
        resnet50_infer.build(SMALL, Place(data=folder / "none"), 0)


@pytest.mark.torch
def test_ranks_take_turns_through_the_pictures() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    config = replace(SMALL, batch=1, preprocess="graph")

    def inputs(place: Place, steps: int) -> list[object]:
        program, seen = resnet50_infer.build(config, place, 0), list[object]()
        program.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))  # type: ignore[attr-defined]
        for _ in range(steps):
            program.step()
        return seen

    alone = inputs(Place(), 4)
    second = inputs(Place(rank=1, world_size=2), 2)

    assert all(torch.equal(a, b) for a, b in zip(second, (alone[1], alone[3]), strict=True))


@pytest.mark.torch
@pytest.mark.slow
def test_the_report_finds_preprocessing_on_the_host_and_not_in_aipp(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    import json

    from ascend_perf import pipeline
    from ascend_perf.bench.launch import Request, launch

    sizes = ("image_width_px=1920", "image_height_px=1080", "distinct_images=2", "base_width=4", "measured_steps=2")
    codes = {}
    for way in ("host", "aipp"):
        request = Request(
            workload="resnet50-infer", overrides=(*sizes, f"preprocess={way}", "warmup_steps=1"), device="cpu"
        )  # fmt: skip
        where, _ = launch(request, folder=tmp_path / way)
        made = pipeline.report([where], out=tmp_path / f"{way}-report", formats=("json",))
        document = json.loads(made.paths["json"].read_text("utf-8"))
        codes[way] = {found["code"] for found in document["findings"]}

    assert "D-03" in codes["host"]
    assert "D-03" not in codes["aipp"]
