"""Element-wise chains with equal shapes (C-06)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.vector_chains import vector_chains
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]


def _kernels(*types: str, dur: int = 100_000, **more: object) -> list[dict[str, object]]:
    return [
        {
            "start_ns": at * (dur + 1_000), "dur_ns": dur, "name": kind, "op_type": kind, "core": "AIV", "stream": 1,
            "input_shapes": "64,1024;64,1024", "output_shapes": "64,1024", "aiv_vec_ratio": 0.2, "aiv_mte2_ratio": 0.8,
            "aiv_mte3_ratio": 0.5,
        } | more
        for at, kind in enumerate(types)
    ]  # fmt: skip


def test_three_kernels_in_a_row_save_two_thirds(make_trace: Make) -> None:
    outcome = vector_chains.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=_kernels("Mul", "Add", "Sub")))

    (found,) = outcome.findings
    assert found.code == "C-06"
    assert found.share_ratio == pytest.approx(0.3 * 2 / 3)
    assert outcome.tables[0].column("types") == ("Mul - Add - Sub",)
    assert outcome.tables[0].column("saved_ns") == (200_000.0,)


def test_figures_per_step_do_not_grow_with_the_number_of_steps(make_trace: Make) -> None:
    steps = [{"step_id": i, "start_ns": i * 1_000_000, "dur_ns": 1_000_000} for i in range(20)]
    kernels = [
        row | {"start_ns": int(str(row["start_ns"])) + i * 1_000_000}
        for i in range(20)
        for row in _kernels("Mul", "Add", "Sub")
    ]

    (found,) = vector_chains.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=kernels)).findings

    assert found.share_ratio == pytest.approx(0.2)
    assert "(1 times per step, 3 kernels)" in found.title.en


@pytest.mark.parametrize(
    "kernels",
    [
        _kernels("Mul"),
        _kernels("Mul", "MatMulV3", "Add"),  # a product between them
        [*_kernels("Mul"), *_kernels("Add", input_shapes="8,8", output_shapes="8,8", start_ns=101_000)],
        [*_kernels("Mul"), *_kernels("Add", stream=2, start_ns=101_000)],
        # Pipes overlap: vec 0.6 + mte2 0.4 + mte3 0.4 is no limit.
        _kernels("Mul", "Add", aiv_vec_ratio=0.6, aiv_mte2_ratio=0.4, aiv_mte3_ratio=0.4),
        _kernels("Mul", "Add", dur=500),  # 0.05 % of the step
        _kernels("ApplyAdamW", "ApplyAdamW"),
    ],
)
def test_what_is_no_chain_is_clean(make_trace: Make, kernels: list[dict[str, object]]) -> None:
    outcome = vector_chains.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels))

    assert not outcome.findings
    assert [(row.code, row.verdict) for row in outcome.judged] == [("C-06", "clean")]


def test_kernels_of_the_optimizer_are_left_to_their_own_row(make_trace: Make) -> None:
    kernels = _kernels("Mul", "Add", "Sub", launch_start_ns=500)
    phase = [{"start_ns": 0, "dur_ns": 1_000, "name": "Optimizer.step#SGD.step", "kind": "optimizer"}]

    outcome = vector_chains.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels, host_events=phase))

    assert not outcome.findings


def test_unfused_norms_are_left_to_their_own_row(make_trace: Make) -> None:
    norm = ("Pows", "ReduceMean", "Adds", "Rsqrt", "Mul", "Mul")
    outcome = vector_chains.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=_kernels(*norm, *norm, dur=50_000)))

    assert not outcome.findings


def test_without_shapes_nothing_is_judged(make_trace: Make) -> None:
    bare = {"start_ns": 0, "dur_ns": 5, "name": "Mul"}
    outcome = vector_chains.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[bare]))

    assert [(row.code, row.verdict) for row in outcome.judged] == [("C-06", "not_judged")]


GPU = Meta(rank=0, device=Device(kind="gpu"))


def _gpu(make_trace: Make, ops: list[tuple[str, str]], kernels: list[int]) -> Trace:
    return make_trace(
        meta=GPU, steps=STEP,
        host_ops=[
            {"start_ns": i, "dur_ns": 1, "name": name, "input_shapes": shapes} for i, (name, shapes) in enumerate(ops)
        ],
        kernels=[
            {"start_ns": at * 101_000, "dur_ns": 100_000, "name": "vectorized_elementwise_kernel", "core": "SM",
             "stream": 7, "host_op": op}
            for at, op in enumerate(kernels)
        ],
    )  # fmt: skip


QUICK_GELU = [("aten::mul", "5,8;"), ("aten::sigmoid", "5,8"), ("aten::mul", "5,8;5,8")]


def test_kernels_of_a_gpu_have_the_shapes_of_their_operators(make_trace: Make) -> None:
    outcome = vector_chains.run_on_trace(_gpu(make_trace, QUICK_GELU, [0, 1, 2]))

    (found,) = outcome.findings
    assert found.share_ratio == pytest.approx(0.3 * 2 / 3)
    (table,) = outcome.tables
    assert table.column("types") == ("aten::mul - aten::sigmoid - aten::mul",)
    assert table.column("shapes") == ("5,8",)


@pytest.mark.parametrize(
    ("ops", "kernels"),
    [
        ([("aten::mul", "5,8;"), ("aten::sigmoid", "5,9")], [0, 1]),
        ([("aten::mul", "5,8;"), ("aten::mm", "5,8;8,8")], [0, 1]),
        # Two kernels of one operator: which hands on what is not known.
        ([("aten::mul", "5,8;")], [0, 0]),
        ([("aten::add", "5,8;3")], [0, 0]),
    ],
)
def test_other_kernels_of_a_gpu_are_no_chain(
    make_trace: Make, ops: list[tuple[str, str]], kernels: list[int]
) -> None:
    outcome = vector_chains.run_on_trace(_gpu(make_trace, ops, kernels))

    assert [judged.verdict for judged in outcome.judged] == ["clean"]


def test_without_shapes_a_gpu_is_not_judged(make_trace: Make) -> None:
    trace = make_trace(
        meta=GPU, steps=STEP, host_ops=[{"start_ns": 0, "dur_ns": 1, "name": "aten::mul"}],
        kernels=[{"start_ns": 0, "dur_ns": 100_000, "name": "k", "core": "SM", "host_op": 0}],
    )  # fmt: skip

    (judged,) = vector_chains.run_on_trace(trace).judged

    assert judged.verdict == "not_judged" and judged.reason is not None and "record_shapes" in judged.reason.en
