"""cpu-operators: rules of kernels applied to the operators of a CPU run."""

from __future__ import annotations

from collections.abc import Callable

from ascend_perf.analyzers.cpu_operators import cpu_operators
from ascend_perf.model.trace import Device, Meta, Trace

CPU = Meta(rank=0, device=Device(kind="cpu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]


def run_of(names: list[str], dur: int) -> list[dict[str, object]]:
    return [{"name": name, "start_ns": n * dur, "dur_ns": dur, "thread": 1} for n, name in enumerate(names)]


def test_rms_norm_that_is_not_fused(make_trace: Callable[..., Trace]) -> None:
    norm = ["aten::pow", "aten::mean", "aten::add", "aten::rsqrt", "aten::mul", "aten::mul"]
    trace = make_trace(meta=CPU, steps=STEP, host_ops=run_of([*norm, "aten::mm"] * 10, 10))

    outcome = cpu_operators.run_on_trace(trace)

    (finding,) = [f for f in outcome.findings if f.code == "C-13"]
    # ten norms of six operators of 10 ns: 600 of 1000 ns, of which a fused one still needs its longest sixth
    assert finding.share_ratio == 0.6 * 5 / 6
    assert "10 times per step" in finding.title.en and "operators" in finding.title.en
    assert any("F.rms_norm" in remedy.code for remedy in finding.remedies)
    assert not any("torch_npu" in remedy.code for remedy in finding.remedies)


def test_a_device_trace_is_not_judged_by_its_host(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        meta=CPU, steps=STEP, host_ops=run_of(["aten::mm"], 10), kernels=[{"name": "k", "start_ns": 1, "dur_ns": 2}]
    )
    outcome = cpu_operators.run_on_trace(trace)
    assert (outcome.findings, outcome.judged) == ((), ())
