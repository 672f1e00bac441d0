"""resnet50-train: FLOPs and memory as counted by torch, learning, ranks, workers, state, mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._spec import Place, Program, find_workload
from ascend_perf.workloads.resnet50_train import Config, image_flops, predict, resnet50_train
from tests.workloads._ranks import run_ranks

SMALL = Config(
    batch=4, image_width_px=48, image_height_px=36, distinct_images=24, held_out_images=8, crop_px=32, base_width=4,
    classes=4, workers=0, dtype="fp32", learning_rate=0.05, learning_rate_warmup=2, learning_rate_steps=100,
)  # fmt: skip


@pytest.fixture
def built() -> Iterator[Any]:
    """Builds programs and closes them at the end."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    programs: list[Program] = []

    def build(config: Config, place: Place = Place()) -> Program:  # noqa: B008  # frozen
        programs.append(resnet50_train.build(config, place, 0))
        return programs[-1]

    yield build
    for program in programs:
        program.close()


def steps(program: Program, count: int) -> list[float]:
    for _ in range(count):
        program.step()
    return list(program.series()["loss"])


def metric(program: Program, name: str) -> float:
    (value,) = (item.value for item in program.metrics() if item.name == name)
    assert isinstance(value, (int, float))
    return float(value)


def save_pictures(folder: Path, classes: int = 2, count: int = 12) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for index in range(count):
            colour = (200 * label, 10 * index, 50)
            image.new("RGB", (40, 40), colour).save(folder / f"class{label}" / f"{index:02}.jpg")


def test_flops_of_the_published_net() -> None:
    # Forward 2 x 4,089,184,256 (see test_resnet50_infer); the stem's 2 x 3 x 64 x 49 x 112^2 has no input gradient.
    assert image_flops(Config()) == 3 * 2 * 4_089_184_256 - 2 * 3 * 64 * 49 * 112**2


@pytest.mark.torch
def test_torch_counts_the_same_flops(built: Any) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    program = built(SMALL)

    with FlopCounterMode(display=False) as counter:
        program.model(torch.zeros((3, 3, 32, 32))).sum().backward()

    assert counter.get_total_flops() == 3 * image_flops(SMALL)
    assert program.flops_per_step == 4 * image_flops(SMALL)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_predicted_memory_is_what_the_tensors_take(built: Any, dtype: Any) -> None:
    config = replace(SMALL, dtype=dtype, batch=8)
    program = built(config)
    program.step()

    measured, predicted = dict(program.memory_bytes()), predict(config, 1, target_here("cpu")).memory_bytes
    for name in ("weights", "gradients", "optimizer"):
        assert measured[name] == predicted[name]
    assert measured["activations"] == pytest.approx(predicted["activations"], rel=0.005 if dtype == "fp32" else 0.05)


@pytest.mark.torch
def test_the_first_losses_are_these_and_the_classes_are_learnt(built: Any) -> None:
    settings = find_workload("resnet50-train").settings("tiny", ["workers=0"])
    program = built(settings.config)

    losses = steps(program, settings.plan.warmup_steps + settings.plan.measured_steps)

    # Golden on CPU in fp32; ln 4 = 1.386 is chance. Sums in another order soon tell in a net with batch norms.
    assert losses[:3] == pytest.approx([1.25390, 1.17824, 0.99371], rel=1e-2)
    assert np.mean(losses[-5:]) < 0.75  # 0.37 at best: labels are smoothed by a tenth
    assert metric(program, "accuracy") >= 0.75


@pytest.mark.torch
def test_where_pixels_are_normalised_does_not_change_the_loss(built: Any) -> None:
    host = steps(built(SMALL), 3)
    graph = steps(built(replace(SMALL, preprocess="graph")), 3)

    assert graph == pytest.approx(host, rel=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("change", [{"dtype": "fp16"}, {"dtype": "bf16", "channels_last": True}])
def test_half_precision_learns_and_says_its_scale(built: Any, change: dict[str, Any]) -> None:
    program = built(replace(SMALL, **change))
    losses = steps(program, 3)

    assert np.isfinite(losses).all()
    assert losses[0] == pytest.approx(steps(built(SMALL), 1)[0], rel=0.05)
    assert ("loss_scale" in program.series()) == (change["dtype"] == "fp16")
    assert program.gradient_scale() == (program.series()["loss_scale"][-1] if change["dtype"] == "fp16" else 1.0)


@pytest.mark.torch
def test_the_rate_rises_and_falls_along_a_cosine(built: Any) -> None:
    program = built(replace(SMALL, learning_rate=0.08, learning_rate_warmup=2, learning_rate_steps=6))
    steps(program, 7)

    # Two steps up, then cos^2 of 0, 1/8, 1/4, 3/8, 1/2 of a turn's half: 1, 0.854, 0.5, 0.146, 0.
    expected = [0.04, 0.08, 0.08, 0.08 * 0.853553, 0.04, 0.08 * 0.146447, 0.0]
    assert program.series()["learning_rate"] == pytest.approx(expected, abs=1e-7)


@pytest.mark.torch
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(built: Any, tmp_path: Path) -> None:
    straight = steps(built(SMALL), 5)
    first = built(SMALL)
    steps(first, 2)
    first.save(tmp_path)

    resumed = built(SMALL, Place(resume=tmp_path))

    assert steps(resumed, 3) == straight[2:]
    with pytest.raises(InputError, match="is the state of another model"):
        built(replace(SMALL, base_width=8), Place(resume=tmp_path))


@pytest.mark.torch
def test_the_wait_for_data_is_measured_and_marked(built: Any) -> None:
    import torch

    program = built(SMALL)
    program.step()
    program.start_measuring()
    started = time.perf_counter_ns()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            program.step()
    took_ns = time.perf_counter_ns() - started

    marked = {event.key: event for event in profiler.key_averages()}
    assert {"data::wait", "data::copy", "forward", "backward", "optimizer"} <= set(marked)
    assert marked["data::wait"].count == 3
    assert 0 < metric(program, "data_wait_per_step") * 3 < took_ns
    assert 0 < metric(program, "data_wait_ratio") < 1


def train_on_rank(config: Config, count: int) -> dict[str, Any]:
    import torch.distributed as dist

    program = resnet50_train.build(config, Place(rank=dist.get_rank(), world_size=dist.get_world_size()), 0)
    losses = steps(program, count)
    assert program.model is not None
    state = {name: value.clone() for name, value in program.model.state_dict().items()}  # type: ignore[attr-defined]
    return {"losses": losses, "state": state, "items": program.items_per_step, "norm": one_norm(dist.get_rank())}


def one_norm(rank: int) -> list[Any]:
    """Of a synchronised norm on this rank's half of six pictures: result, gradients, running statistics."""
    import torch

    from ascend_perf.workloads._sync_norm import SyncBatchNorm2d

    x_BCHW, dy_BCHW = (part.chunk(2)[rank] for part in norm_data())
    return norm_results(SyncBatchNorm2d(norm_of_three(torch)), x_BCHW.clone(), dy_BCHW)


def norm_of_three(torch: Any) -> Any:
    norm = torch.nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.5, -2.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.0, 3.0]))
    return norm


def norm_data() -> tuple[Any, Any]:
    import torch

    random = torch.Generator().manual_seed(0)
    x_BCHW = 5 * torch.randn((6, 3, 4, 4), generator=random) + torch.tensor([0.0, 100.0, -3.0])[:, None, None]
    return x_BCHW, torch.randn((6, 3, 4, 4), generator=random)


def norm_results(norm: Any, x_BCHW: Any, dy_BCHW: Any) -> list[Any]:
    x_BCHW.requires_grad_()
    y_BCHW = norm(x_BCHW)
    y_BCHW.backward(dy_BCHW)
    parts = (y_BCHW, x_BCHW.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var)
    return [part.detach().clone() for part in parts]


@pytest.mark.torch
def test_two_ranks_with_synchronised_norms_are_one_with_the_batch_of_both(built: Any) -> None:
    import torch

    alone = built(SMALL)
    expected = steps(alone, 4)

    first, second = run_ranks(train_on_rank, 2, replace(SMALL, batch=2, sync_batch_norm=True), 4)

    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(expected, rel=2e-3)
    assert first["items"] == alone.items_per_step
    state = alone.model.state_dict()
    for name in ("stem_norm.running_mean", "stem_norm.running_var", "blocks.0.norm2.running_var", "stem.weight"):
        torch.testing.assert_close(first["state"][name], state[name], rtol=5e-3, atol=1e-3)
        assert torch.equal(first["state"][name], second["state"][name])

    # One norm alone: torch's own over all six pictures. Gradients of weights are each rank's share.
    y, dx, dweight, dbias, mean, variance = norm_results(norm_of_three(torch), *norm_data())
    close = torch.testing.assert_close
    close(torch.cat((first["norm"][0], second["norm"][0])), y, rtol=1e-5, atol=1e-4)
    close(torch.cat((first["norm"][1], second["norm"][1])), dx, rtol=1e-4, atol=1e-5)
    close(first["norm"][2] + second["norm"][2], dweight, rtol=1e-4, atol=1e-4)
    close(first["norm"][3] + second["norm"][3], dbias, rtol=1e-4, atol=1e-4)
    close(first["norm"][4], mean)
    close(first["norm"][5], variance)


@pytest.mark.torch
@pytest.mark.slow
def test_without_them_each_rank_normalises_by_its_own_pictures(built: Any) -> None:
    import torch

    first, second = run_ranks(train_on_rank, 2, replace(SMALL, batch=2), 3)

    assert first["losses"] == second["losses"]
    assert torch.equal(first["state"]["stem.weight"], second["state"]["stem.weight"])
    assert not torch.equal(first["state"]["stem_norm.running_mean"], second["state"]["stem_norm.running_mean"])
    with pytest.raises(ValueError, match="sync_batch_norm needs more than one process"):
        predict(replace(SMALL, sync_batch_norm=True), 1)


def test_the_traffic_of_the_published_net() -> None:
    (gradients,) = predict(Config(), 8).traffic
    assert gradients.bytes_per_step == 4 * 25_557_032 + 8

    traffic = predict(Config(sync_batch_norm=True), 8).traffic
    # 53 norms of 26,560 channels: forward gathers mean, variance and a count of each of 8 ranks, backward sums two.
    assert [(item.collective, item.bytes_per_step, item.calls_per_step) for item in traffic[1:]] == [
        ("all_gather", 8 * 4 * (2 * 26_560 + 53), 53),
        ("all_reduce", 4 * 2 * 26_560, 53),
    ]


@pytest.mark.torch
def test_workers_give_the_same_batches_and_end_when_closed(built: Any) -> None:
    psutil = pytest.importorskip("psutil")
    expected = steps(built(SMALL), 3)
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    program = resnet50_train.build(replace(SMALL, workers=2), Place(), 0)
    try:
        assert steps(program, 3) == expected
        assert workers(psutil.Process(), before) == 2
    finally:
        program.close()
        program.close()

    assert workers(psutil.Process(), before) == 0


def workers(process: Any, before: set[int]) -> int:
    """Processes that a fork server of `process` started."""
    return sum(
        parent.pid not in before or child.pid not in before
        for parent in process.children()
        for child in parent.children()
    )


ORPHANS = """
import sys
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.resnet50_train import Config, resnet50_train

if __name__ == "__main__":
    config = Config(
        batch=4, image_width_px=48, image_height_px=36, distinct_images=24, held_out_images=8, crop_px=32,
        base_width=4, classes=4, workers=2, dtype="fp32",
    )
    program = resnet50_train.build(config, Place(), 0)
    program.step()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("torch")
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS, "utf-8")
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3  # the fork server and two workers
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()

    _, alive = psutil.wait_procs(children, timeout=60)
    for child in alive:
        child.kill()
    assert alive == []


@pytest.mark.torch
def test_pictures_of_a_folder(built: Any, tmp_path: Path) -> None:
    save_pictures(tmp_path)

    program = built(SMALL, Place(data=tmp_path))
    assert np.isfinite(steps(program, 2)).all()
    assert 0 <= metric(program, "accuracy") <= 1

    with pytest.raises(InputError, match="22 pictures to train on are fewer than one step takes: batch 32 on 1 ranks"):
        built(replace(SMALL, batch=32), Place(data=tmp_path))
    save_pictures(tmp_path / "more", classes=5)
    with pytest.raises(InputError) as caught:
        built(SMALL, Place(data=tmp_path / "more"))
    assert caught.value.what == "more has 5 classes, the net 4"
    assert caught.value.hint == "use --set classes=5"


@pytest.mark.torch
@pytest.mark.parametrize("count", [0, 2])
def test_a_broken_picture_is_named_whoever_decodes_it(built: Any, tmp_path: Path, count: int) -> None:
    save_pictures(tmp_path, count=2)
    broken = tmp_path / "class1" / "00.jpg"
    broken.write_bytes(broken.read_bytes()[:300])

    program = built(replace(SMALL, workers=count), Place(data=tmp_path))
    with pytest.raises(InputError) as caught:
        steps(program, 1)  # four pictures, all of them in the batch
    assert caught.value.what.startswith("class1/00.jpg is ")
    assert caught.value.hint == "remove it from the folder"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 1}, "classes must be 2 or more"),
        ({"workers": -1}, "workers must be 0 or more"),
        ({"label_smoothing": 1.0}, "label_smoothing must be 0 to below 1"),
        ({"jpeg_quality": 101}, "jpeg_quality must be 1 to 100"),
        ({"learning_rate": -0.1}, "learning_rate must be 0 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)
