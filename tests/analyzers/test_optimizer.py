"""C-14: an optimizer that runs parameter by parameter, and three that must not be reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers._fused_optimizers import class_of, remedies_for_class
from ascend_perf.analyzers._rules import Vendor, remedies_for
from ascend_perf.analyzers.optimizer import optimizer
from ascend_perf.model.trace import Device, Meta, Trace

STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 10_000}]
RANGE = [{"name": "Optimizer.step#AdamW.step", "kind": "optimizer", "start_ns": 5_000, "dur_ns": 2_000, "thread": 1}]


def kernels(count: int, dur: int, name: str = "Mul") -> list[dict[str, object]]:
    """Kernels launched inside the phase that run one after the other from 6000 on."""
    return [
        {
            "name": name,
            "start_ns": 6_000 + n * dur,
            "dur_ns": dur,
            "launch_start_ns": 5_000 + n,
            "launch_end_ns": 5_001 + n,
        }
        for n in range(count)
    ]


def test_hundreds_of_small_kernels_are_found(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        steps=STEP, host_events=RANGE, kernels=kernels(150, 10), meta=Meta(rank=3, device=Device(kind="npu"))
    )

    outcome = optimizer.run_on_trace(trace)

    (finding,) = outcome.findings
    assert finding.code == "C-14"
    assert finding.share_ratio == 0.15  # 150 kernels x 10 ns of 10,000 ns
    assert finding.ranks == (3,)
    assert [e.value for e in finding.evidence] == [1500, 150, 10]
    assert "150 small calls" in finding.title.en
    assert any("NpuFusedAdamW" in r.code for r in finding.remedies)


def test_few_calls_small_share_and_fused_kernels_are_clean(make_trace: Callable[..., Trace]) -> None:
    for case in (kernels(50, 30), kernels(150, 2), kernels(150, 10, "multi_tensor_apply FusedAdamMathFunctor")):
        outcome = optimizer.run_on_trace(make_trace(steps=STEP, host_events=RANGE, kernels=case))
        assert outcome.findings == ()
        assert [j.verdict for j in outcome.judged] == ["clean"]


def test_on_a_cpu_the_phase_itself_counts(make_trace: Callable[..., Trace]) -> None:
    ops = [{"name": "aten::mul_", "start_ns": 5_000 + n, "dur_ns": 1, "thread": 1} for n in range(200)]
    trace = make_trace(steps=STEP, host_events=RANGE, host_ops=ops, meta=Meta(device=Device(kind="cpu")))

    (finding,) = optimizer.run_on_trace(trace).findings

    assert finding.share_ratio == 0.2  # 2,000 of 10,000 ns


def test_inference_is_no_data(make_trace: Callable[..., Trace]) -> None:
    events = [{"name": "preprocess", "kind": "user", "start_ns": 1, "dur_ns": 2}]
    assert optimizer.run_on_trace(make_trace(steps=STEP, host_events=events)).status == "no_data"


def test_what_the_backward_had_queued_is_not_the_optimizers(make_trace: Callable[..., Trace]) -> None:
    """The launching thread runs behind: a backward kernel launched inside of the phase belongs to its operator."""
    ops = [{"name": "MmBackward0", "start_ns": 4_000, "dur_ns": 10, "thread": 1}]
    ops += [{"name": "aten::mul_", "start_ns": 5_000 + n, "dur_ns": 1, "thread": 1} for n in range(150)]
    product = {"name": "MatMul", "start_ns": 5_200, "dur_ns": 700, "launch_start_ns": 5_002, "launch_end_ns": 5_003}
    rows = [{**product, "host_op": 0}, *({**row, "host_op": n + 1} for n, row in enumerate(kernels(150, 10)))]
    trace = make_trace(steps=STEP, host_events=RANGE, host_ops=ops, kernels=rows)

    (finding,) = optimizer.run_on_trace(trace).findings

    assert finding.share_ratio == 0.15  # without the 700 ns of the product


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("SGD", "npu", "torch_npu.optim.NpuFusedSGD(model.parameters(), lr=lr)"),
        ("Lamb", "npu", "torch_npu.optim.NpuFusedLamb(model.parameters(), lr=lr)"),
        ("Rprop", "npu", ""),
        ("Adagrad", "gpu", "torch.optim.Adagrad(model.parameters(), lr=lr, fused=True)"),
        ("NAdam", "gpu", "torch.optim.NAdam(model.parameters(), lr=lr, foreach=True)"),
        ("MyOwn", "gpu", "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"),
    ],
)
def test_the_counterpart_of_the_optimizer_in_use_is_named(name: str, kind: Vendor, code: str) -> None:
    assert class_of(f"Optimizer.step#{name}.step") == name

    made = remedies_for_class(remedies_for("C-14", kind), name)

    assert made[0].code == code
    assert ("has no fused Rprop" in made[0].text.en) == (name == "Rprop")
    assert remedies_for_class(remedies_for("C-14", kind), None) == remedies_for("C-14", kind)
