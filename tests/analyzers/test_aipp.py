"""Preprocessing of image models: stages, who could take them over, and when the question does not arise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers._python_stages import stage_of
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
    # Cast and TransData, 100 of 1000: 1 / (1 - 0.1) = 1.11; the command that moves it is named with both.
    (named,) = [each for each in finding.evidence if "ascend-perf aipp MODEL.onnx --soc" in each.name.en]
    assert named.value == 0.1
    assert named.name.en.endswith("at most 1.11x")
    assert "1.11 倍" in named.name.zh
    assert any("ascend-perf aipp MODEL.onnx --soc" in remedy.code for remedy in finding.remedies)


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


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("PIL/Image.py(2215): resize", "resize"),
        ("PIL/Image.py(900): convert", "colour"),
        ("<built-in method decode of ImagingDecoder object>", "decode"),
        ("torchvision/transforms/functional.py(138): to_tensor", "layout"),
        ("torchvision/transforms/v2/functional/_misc.py(10): normalize", "normalize"),
        ("torchvision/io/image.py(240): decode_image", "decode"),
        ("cv2/__init__.py(10): imread", "decode"),
        ("transformers/image_processing_utils.py(47): rescale", "rescale"),
        ("transformers/models/owlv2/image_processing_owlv2.py(301): resize", "resize"),
        ("transformers/models/owlv2/image_processing_owlv2.py(270): pad", "pad"),
        ("transformers/models/owlv2/image_processing_owlv2.py(368): preprocess", "other preprocessing"),
        ("transformers/models/owlv2/image_processing_owlv2.py(503): post_process_object_detection", None),
        ("transformers/models/owlv2/modeling_owlv2.py(410): forward", None),
        ("numpy/core/fromnumeric.py(53): resize", None),
        ("main.py(3): resize", None),
        ("<built-in method item of Tensor object>", None),
    ],
)
def test_stages_are_told_by_library_and_function(name: str, stage: str | None) -> None:
    assert stage_of(name) == stage


def test_python_calls_of_image_libraries_are_stages(make_trace: Make) -> None:
    def call(start: int, dur: int, name: str, thread: int = 1) -> dict[str, object]:
        return {"start_ns": start, "dur_ns": dur, "name": name, "thread": thread}

    folder = "transformers/models/x/image_processing_x.py"
    trace = make_trace(
        steps=[{"step_id": 0, "start_ns": 0, "dur_ns": 1000}],
        host_ops=[{"start_ns": 900, "dur_ns": 1, "name": "aten::conv2d"}],
        host_events=[{"start_ns": 0, "dur_ns": 600, "name": "DataLoader.__next__", "kind": "dataloader"}],
        # The device works from 550 on: what it hides does not count.
        kernels=[{"start_ns": 550, "dur_ns": 450, "name": "k"}],
        python_calls=[
            call(50, 530, f"{folder}(1): preprocess"),
            call(100, 200, f"{folder}(2): resize"),
            call(120, 30, "transformers/image_transforms.py(3): to_pil_image"),  # a part of resizing
            call(160, 90, "scipy/ndimage/_interpolation.py(4): zoom"),
            call(300, 100, "transformers/image_transforms.py(5): normalize"),
            call(500, 80, "transformers/image_transforms.py(6): center_crop"),
        ],
    )

    outcome = aipp.run_on_trace(trace)

    (table,) = outcome.tables
    cells = zip(*(table.column(name) for name in ("time_ns", "exposed_ns", "taken_by")), strict=True)
    rows = dict(zip(table.column("stage"), cells, strict=True))
    assert rows == {
        "resize": (200.0, 200.0, "DVPP"),
        "normalize": (100.0, 100.0, "AIPP"),
        "crop": (80.0, 50.0, "DVPP"),  # the last 30 ns are hidden
        "other preprocessing": (150.0, 150.0, "not known"),  # 530 less 200, 100 and 80
        "dataloader": (70.0, 50.0, "not known"),  # 600 less the 530; 20 of it hidden
    }
    (found,) = outcome.findings
    assert found.share_ratio == pytest.approx(0.35)
    told = next(e for e in found.evidence if e.name.en == "Python calls that take most of it")
    # Own time within the 530 ns: preprocess 150, normalize 100, zoom 90.
    assert told.value == (
        "image_processing_x.py(1): preprocess 28 %, image_transforms.py(5): normalize 19 %, "
        "_interpolation.py(4): zoom 17 %"
    )


def test_marks_of_the_user_come_before_python_calls(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 0, "start_ns": 0, "dur_ns": 1000}],
        host_ops=[{"start_ns": 900, "dur_ns": 1, "name": "aten::conv2d"}],
        host_events=[{"start_ns": 0, "dur_ns": 600, "name": "preprocess::resize", "kind": "user"}],
        python_calls=[{"start_ns": 0, "dur_ns": 500, "name": "PIL/Image.py(1): resize", "thread": 1}],
    )

    (table,) = aipp.run_on_trace(trace).tables

    assert table.column("stage") == ("resize",)
    assert table.column("time_ns") == (600.0,)


@pytest.mark.parametrize(
    ("path", "stage", "share"),
    [
        ("kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", "resize", 539.302419 / 1211.182252),
        ("kineto/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz", "normalize", 106.418293 / 382.535558),
    ],
)
def test_image_processors_of_real_pipelines(traces: Path, path: str, stage: str, share: float) -> None:
    outcome = aipp.run_on_trace(pipeline.load(traces / path).traces[0])

    (found,) = outcome.findings
    assert found.code == "D-03"
    (table,) = outcome.tables
    at = table.column("stage").index(stage)
    assert table.column("share_ratio")[at] == pytest.approx(share, rel=1e-6)
    assert f"most of it in {stage}" in found.title.en
