"""Predictions beside what was measured, and the device that they are made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_perf.bench.prediction import compare, metrics_of, note_of, predicted, target_of
from ascend_perf.device.specs import device_specs
from ascend_perf.workloads._spec import NPU, Prediction, Target, find_workload


def test_a_predicted_peak_is_held_against_the_allocator() -> None:
    """Components have their peaks at different times: the peak of the step is not their sum."""
    prediction = Prediction(memory_bytes={"weights": 4, "temporary": 9}, step_peak_bytes=10)

    rows = compare(prediction, {"weights": 4}, None, device_peak_bytes=11)

    assert [(row.part, row.predicted_bytes, row.measured_bytes) for row in rows] == [
        ("weights", 4, 4), ("temporary", 9, None), ("peak", 10, 11)
    ]  # fmt: skip
    assert note_of(rows) == "measured by predicted: memory weights 1; memory peak 1.1"
    (total,) = (metric.value for metric in metrics_of(prediction) if metric.name == "predicted_memory")
    assert total == 10
    # Not measured (a CPU), or not predicted as a peak: no such row.
    assert [row.part for row in compare(prediction, {"weights": 4}, None)] == ["weights", "temporary"]
    whole = Prediction(memory_bytes={"weights": 4})
    assert [row.part for row in compare(whole, {"weights": 4}, None, device_peak_bytes=11)] == ["weights"]


def test_the_target_of_a_chip() -> None:
    """The first generation, of the 910 and the 310, has no bf16; a chip without a row is taken to have it."""
    specs = device_specs()
    with_units = {name for name, spec in specs.items() if target_of(spec).has_bf16}
    assert {name for name, spec in specs.items() if spec.matrix_peak("bf16") is None} == specs.keys() - with_units
    assert target_of(None) == NPU


@pytest.mark.parametrize("name", ["llm-pretrain", "moe-pretrain", "full-finetune", "lora-finetune", "llm-generate",
                                  "llm-serve", "bert-clue", "resnet50-train"])  # fmt: skip
def test_auto_is_predicted_as_the_device_runs_it(name: str) -> None:
    """Of every workload with such a setting: as the type that is named, which on a CPU without bf16 is fp32."""
    workload = find_workload(name)

    def of(dtype: str, target: Target) -> Prediction | None:
        return predicted(workload, workload.settings("tiny", [f"dtype={dtype}"]), workload.min_ranks, target)

    for kind in ("npu", "cuda", "cpu"):
        native = Target(kind=kind)
        without = replace(native, has_bf16=False)
        assert of("auto", native) == of("bf16", native) != of("fp32", native)
        classifies = name in ("bert-clue", "resnet50-train")
        assert of("auto", without) == of("fp16" if classifies and kind != "cpu" else "fp32", without)


def test_a_net_that_classifies_pictures_runs_in_fp16_but_on_a_cpu() -> None:
    workload = find_workload("resnet50-infer")
    auto, fp16, fp32 = (workload.settings("tiny", [f"dtype={dtype}"]) for dtype in ("auto", "fp16", "fp32"))
    for kind, same in (("npu", fp16), ("cuda", fp16), ("cpu", fp32)):
        target = Target(kind=kind)  # type: ignore[arg-type]
        assert predicted(workload, auto, 1, target) == predicted(workload, same, 1, target)
