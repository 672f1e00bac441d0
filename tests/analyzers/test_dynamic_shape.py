"""Shapes that change from step to step (C-08)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ascend_perf.analyzers.dynamic_shape import dynamic_shape
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Rows = list[dict[str, object]]
NPU = Meta(rank=0, device=Device(kind="npu"))


def _steps(count: int) -> Rows:
    return [{"step_id": i, "start_ns": i * 1_000, "dur_ns": 1_000} for i in range(count)]


def _kernels(lengths: Sequence[int], **more: object) -> Rows:
    """Per step one product of the given length (600 ns) and one optimizer kernel of constant shape (200 ns)."""
    rows: Rows = []
    for i, length in enumerate(lengths):
        rows.append(
            {"start_ns": i * 1_000, "dur_ns": 600, "name": "mm", "op_type": "MatMulV3", "input_shapes": f"{length},64"}
        )
        rows.append(
            {"start_ns": i * 1_000 + 600, "dur_ns": 200, "name": "a", "op_type": "ApplyAdamW", "input_shapes": "64,64"}
        )
    return [row | more for row in rows]


def _judge(make_trace: Make, lengths: Sequence[int], **more: object) -> Outcome:
    return dynamic_shape.run_on_trace(
        make_trace(meta=NPU, steps=_steps(len(lengths)), kernels=_kernels(lengths, **more))
    )


def _verdict(outcome: Outcome) -> list[tuple[str, str]]:
    return [(row.code, row.verdict) for row in outcome.judged]


def test_a_new_length_in_every_step_is_found(make_trace: Make) -> None:
    outcome = _judge(make_trace, (100, 101, 102, 103))

    (found,) = outcome.findings
    assert (found.code, found.share_ratio) == ("C-08", None)
    assert found.evidence[0].value == pytest.approx(600 / 800)
    assert found.evidence[1].value == 4
    assert found.step_ids == (1, 2, 3)
    assert outcome.tables[0].column("op_type") == ("MatMulV3",)


def test_compilations_are_named(make_trace: Make) -> None:
    calls = [
        {"start_ns": i * 1_000, "dur_ns": 100, "api": "AscendCL@aclopCompileAndExecute", "layer": "acl"}
        for i in range(4)
    ]
    outcome = dynamic_shape.run_on_trace(
        make_trace(meta=NPU, steps=_steps(4), kernels=_kernels((1, 2, 3, 4)), runtime_calls=calls)
    )

    assert "4 compilations take 100 ns per step" in outcome.findings[0].title.en


@pytest.mark.parametrize(
    "lengths",
    [
        (128, 128, 128, 128, 128, 100),  # a partial last batch once
        (128, 256, 128, 256, 128, 256),  # two buckets, known after the second step
    ],
)
def test_what_settles_is_clean(make_trace: Make, lengths: tuple[int, ...]) -> None:
    assert _verdict(_judge(make_trace, lengths)) == [("C-08", "clean")]


def test_the_dynamic_state_alone_is_no_evidence(make_trace: Make) -> None:
    outcome = _judge(make_trace, (128, 128, 128, 128), op_state="dynamic")

    assert _verdict(outcome) == [("C-08", "clean")]


def test_two_steps_tell_no_trend(make_trace: Make) -> None:
    assert _verdict(_judge(make_trace, (100, 101))) == [("C-08", "not_judged")]


def test_operators_of_the_host_stand_in_for_kernels_without_shapes(make_trace: Make) -> None:
    ops = [
        {"start_ns": i * 1_000, "dur_ns": 10, "name": "aten::mm", "input_shapes": f"[[{i}, 64], [64, 64]]", "thread": 1}
        for i in range(1, 5)
    ]
    kernels = [{"start_ns": 0, "dur_ns": 10, "name": "gemm"}]
    gpu = Meta(rank=0, device=Device(kind="gpu"))
    outcome = dynamic_shape.run_on_trace(make_trace(meta=gpu, steps=_steps(5), kernels=kernels, host_ops=ops))

    assert [found.code for found in outcome.findings] == ["C-08"]


def test_without_shapes_nothing_is_judged(make_trace: Make) -> None:
    kernels = [{"start_ns": i * 1_000, "dur_ns": 10, "name": "k"} for i in range(4)]
    outcome = dynamic_shape.run_on_trace(make_trace(meta=NPU, steps=_steps(4), kernels=kernels))

    assert _verdict(outcome) == [("C-08", "not_judged")]
