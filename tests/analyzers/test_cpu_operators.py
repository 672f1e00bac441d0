"""cpu-operators: rules of kernels applied to the operators of a CPU run."""

from __future__ import annotations

from collections.abc import Callable

from ascend_perf.analyzers.cpu_operators import cpu_operators
from ascend_perf.model.trace import Device, Meta, Trace

CPU = Meta(rank=0, device=Device(kind="cpu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]


def run_of(names: list[str], dur: int) -> list[dict[str, object]]:
    return [{"name": name, "start_ns": n * dur, "dur_ns": dur, "thread": 1} for n, name in enumerate(names)]


def test_copies_are_reported(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(meta=CPU, steps=STEP, host_ops=run_of([*["aten::copy_"] * 3, *["aten::mm"] * 7] * 10, 10))

    outcome = cpu_operators.run_on_trace(trace)

    (finding,) = outcome.findings
    assert (finding.code, finding.subject, finding.share_ratio) == ("C-10", "layout", 0.3)


def test_copies_and_casts_have_causes_and_remedies_of_their_own(make_trace: Callable[..., Trace]) -> None:
    """What helps against casts is not said of copies, and the other way round; what helps both is said of both."""
    rows = run_of(["aten::copy_", "aten::copy_", "aten::mm"], 100)
    rows[1]["input_dtypes"] = "float;c10::BFloat16"
    outcome = cpu_operators.run_on_trace(make_trace(meta=CPU, steps=STEP, host_ops=rows))

    cast, layout = (next(found for found in outcome.findings if found.subject == name) for name in ("cast", "layout"))
    codes = {found.subject: [remedy.code for remedy in found.remedies] for found in (cast, layout)}
    assert codes == {
        "cast": [
            "model = model.to(torch.bfloat16)", "model = torch.compile(model)",
            "lscpu | grep -o -E 'amx_bf16|avx512_bf16'",
        ],
        "layout": ["k = k.transpose(1, 2).contiguous()", "", "model = torch.compile(model)"],
    }
    assert "Autocast" in cast.cause.en and "Autocast" not in layout.cause.en


def test_a_device_trace_is_not_judged_by_its_host(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        meta=CPU, steps=STEP, host_ops=run_of(["aten::mm"], 10), kernels=[{"name": "k", "start_ns": 1, "dur_ns": 2}]
    )
    outcome = cpu_operators.run_on_trace(trace)
    assert (outcome.findings, outcome.judged) == ((), ())
