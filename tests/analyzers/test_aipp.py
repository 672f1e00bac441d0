"""Preprocessing of image models: stages, who could take them over, and when the question does not arise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.aipp import aipp
from ascend_perf.model.finding import ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
CPU = Meta(device=Device(kind="cpu"))
STEPS = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}, {"step_id": 2, "start_ns": 1000, "dur_ns": 1000}]
CONV = {"start_ns": 900, "dur_ns": 10, "name": "aten::convolution", "thread": 1}


def _range(start: int, dur: int, name: str) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": name, "kind": "user", "thread": 1}


def _by_stage(table: ResultTable, column: str) -> dict[object, object]:
    return dict(zip(table.column("stage"), table.column(column), strict=True))


def test_stages_of_the_host_are_summed_per_step_and_bounded(make_trace: Make) -> None:
    trace = make_trace(
        meta=CPU,
        steps=STEPS,
        host_ops=[CONV],
        host_events=[
            _range(0, 200, "preprocess::decode"),
            _range(200, 100, "preprocess::normalise"),
            _range(300, 50, "preprocess::copy"),
            _range(400, 500, "inference"),
            _range(1000, 400, "preprocess::decode"),
        ],
    )

    outcome = aipp.run_on_trace(trace)

    (table,) = outcome.tables
    assert _by_stage(table, "time_ns") == {"decode": 300, "normalise": 50, "copy": 25}
    assert _by_stage(table, "taken_by") == {"decode": "DVPP", "normalise": "AIPP", "copy": "none"}
    (finding,) = outcome.findings
    assert finding.code == "D-03"
    assert finding.share_ratio == 0.35  # decode and normalise, 700 of 2000; the copy stays
    metrics = {metric.name: metric.value for metric in outcome.metrics}
    assert metrics["preprocessing_share"] == 0.375
    assert metrics["aipp_dvpp_bound"] == pytest.approx(1 / 0.65)


def test_what_the_device_hides_does_not_count(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(device=Device(kind="gpu")),
        steps=STEPS[:1],
        host_events=[_range(0, 500, "preprocess::decode")],
        kernels=[{"start_ns": 100, "dur_ns": 350, "name": "implicit_convolve_sgemm", "core": "SM"}],
    )

    outcome = aipp.run_on_trace(trace)

    (table,) = outcome.tables
    assert _by_stage(table, "time_ns") == {"decode": 500}
    assert _by_stage(table, "exposed_ns") == {"decode": 150}
    assert not outcome.findings  # 15 % of the step
    assert [judged.verdict for judged in outcome.judged] == ["clean"]


def test_kernels_in_front_of_the_first_convolution_are_preprocessing(make_trace: Make) -> None:
    kernel = {"name": "k", "core": "AIV"}
    trace = make_trace(
        meta=Meta(device=Device(kind="npu")),
        steps=STEPS[:1],
        kernels=[
            kernel | {"start_ns": 0, "dur_ns": 40, "op_type": "Cast"},
            kernel | {"start_ns": 40, "dur_ns": 60, "op_type": "TransData"},
            kernel | {"start_ns": 100, "dur_ns": 50, "op_type": "MatMulV2"},  # not preparing an image
            kernel | {"start_ns": 200, "dur_ns": 100, "op_type": "Conv2D", "core": "AIC"},
            kernel | {"start_ns": 300, "dur_ns": 60, "op_type": "TransData"},  # behind the convolution
        ],
    )

    (finding,) = aipp.run_on_trace(trace).findings

    assert finding.share_ratio == 0.1


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"host_ops": [{"start_ns": 0, "dur_ns": 9, "name": "aten::mm", "thread": 1}]}, "no images"),
        (
            {
                "host_ops": [CONV, {"start_ns": 950, "dur_ns": 9, "name": "ConvolutionBackward0", "thread": 1}],
                "host_events": [_range(0, 900, "preprocess::decode")],
            },
            "training",
        ),
    ],
)
def test_text_models_and_training_are_not_asked(
    make_trace: Make, tables: dict[str, list[dict[str, object]]], why: str
) -> None:
    outcome = aipp.run_on_trace(make_trace(meta=CPU, steps=STEPS, **tables))

    (judged,) = outcome.judged
    assert judged.verdict == "clean"
    assert judged.reason is not None
    assert judged.reason.en.startswith("not applicable")
    assert why in judged.reason.en
    assert not outcome.tables


def test_the_wait_for_a_data_loader_is_no_finding_of_its_own(make_trace: Make) -> None:
    # What it does inside is not told: that is row D-01.
    trace = make_trace(
        meta=CPU,
        steps=STEPS,
        host_ops=[CONV],
        host_events=[
            {"start_ns": 0, "dur_ns": 1500, "name": "enumerate(DataLoader)#x", "kind": "dataloader", "thread": 1},
            _range(1500, 100, "preprocess::decode"),
        ],
    )

    outcome = aipp.run_on_trace(trace)

    (table,) = outcome.tables
    assert _by_stage(table, "taken_by") == {"dataloader": "not known", "decode": "DVPP"}
    assert not outcome.findings


def test_an_image_model_without_marks_is_not_judged(make_trace: Make) -> None:
    (judged,) = aipp.run_on_trace(make_trace(meta=CPU, steps=STEPS, host_ops=[CONV])).judged

    assert judged.verdict == "not_judged"
    assert judged.reason is not None
    assert "record_function" in judged.reason.en


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("ascend-pytorch/text/level2/rank0_ascend_pt", "not applicable: this is a training step"),
        ("kineto/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "not applicable: the model takes no images"),
        ("kineto/v100/resnet50_num_workers_0.json.gz", "not applicable: this is a training step"),
        ("kineto/h100/Falconsai_nsfw_image_detection__1016002.json.gz", "preprocessing:"),
    ],
)
def test_real_traces_are_told_apart(traces: Path, name: str, start: str) -> None:
    (trace,) = pipeline.load(traces / name).traces

    (judged,) = aipp.run_on_trace(trace).judged

    assert judged.verdict == "clean"
    assert judged.reason is not None
    assert judged.reason.en.startswith(start)
