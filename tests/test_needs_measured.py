"""Rows that rest on counters, rates or device times are not judged on simulated data; all others are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ascend_perf.analysis import Analysis
from ascend_perf.analyzers._rules import rule_codes
from ascend_perf.analyzers.attention import attention
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.analyzers.operators import operators
from ascend_perf.model.finding import Evidence, Finding, Judged, Outcome, Result, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import DataOrigin, Device, Meta, Trace
from ascend_perf.plugins import MODELLED, Analyzer, analyzer, job_analyzer, load_analyzers
from ascend_perf.reports.judged import judged_rows

MakeTrace = Callable[..., Trace]

MODELLED_ROWS = {
    "C-01", "C-02", "C-03", "C-04", "C-05/pipe", "M-01", "M-02", "M-03", "M-04", "N-02", "N-03", "N-04", "N-06", "N-07",
    "P-01", "P-02", "E-01", "V-02",
}  # fmt: skip
"""What the virtual NPU models: pipes, blocks and cycles, caches, clock, packets and rates of links, load of experts."""
REAL_ROWS = {
    # Host, launches and what it does meanwhile.
    "H-01", "H-02", "H-03", "H-04", "H-05", "H-06", "H-07", "H-08", "H-09", "D-01", "D-02", "D-03", "N-12", "V-01",
    "V-05", "V-08",
    # Operators: which, of what type and shape, in which order.
    "C-06", "C-07", "C-08", "C-09", "C-10", "C-11", "C-12", "C-13", "C-14", "E-02", "E-04",
    # Collectives: which, how many, on which group; where the program puts them.
    "N-01", "N-05", "N-08", "N-09", "N-10", "N-11", "E-03", "L-01", "L-02",
    # The allocator; losses, logs and services, which no virtual NPU writes.
    "K-01", "K-02", "K-03", "K-04", "K-05", "K-06", "K-07", "Q-01", "Q-02", "Q-03", "Q-04", "Q-05", "V-03", "V-04",
    "V-06", "V-07",
}  # fmt: skip


def test_every_row_is_either_judged_from_real_things_or_needs_measured_data() -> None:
    said = {row for item in load_analyzers().parts.values() for row in item.needs_measured}
    assert said == MODELLED_ROWS
    # A new row must be put into one of the two.
    assert REAL_ROWS | {row.split("/")[0] for row in MODELLED_ROWS} == set(rule_codes())


def finding(code: str, subject: str = "") -> Finding:
    return Finding(
        code=code, analyzer="x", title=Words("t", "题"), severity=Severity.LOW, share_ratio=0.1, subject=subject,
        evidence=(Evidence(name=Words("n", "名"), value=1),), remedies=(), cause=Words("c", "因"),
    )  # fmt: skip


RESULT = Result(
    findings=(finding("C-03"), finding("C-05", "pipe"), finding("C-05", "padding"), finding("C-09")),
    judged=(
        Judged(code="C-03", verdict="found"), Judged(code="C-05", verdict="found"),
        Judged(code="C-09", verdict="found"),
        Judged(code="M-03", verdict="not_judged", reason=Words("collect them", "请采集")),
        Judged(code="M-04", verdict="clean"), Judged(code="C-10", verdict="clean"),
    ),
)  # fmt: skip
NEEDS = ("C-03", "C-05/pipe", "M-03", "M-04")


@analyzer(name="x", needs=(KERNELS,), order=1, needs_measured=NEEDS)
def of_rank(trace: Trace) -> Result:
    return RESULT


@job_analyzer(name="y", needs=(KERNELS,), order=1, needs_measured=NEEDS)
def of_job(run: Run) -> Result:
    return RESULT


def trace_of(make_trace: MakeTrace, origin: DataOrigin) -> Trace:
    return make_trace(meta=Meta(rank=0, data_origin=origin), kernels=[{"start_ns": 0, "dur_ns": 1, "name": "k"}])


def outcome_of(item: Analyzer, *traces: Trace) -> Outcome:
    return item.run_on_trace(*traces) if item.scope == "rank" else item.run_on_run(Run(traces=traces))


@pytest.mark.parametrize("item", [of_rank, of_job], ids=["rank", "job"])
def test_simulated_rows_are_withheld_and_say_why(make_trace: MakeTrace, item: Analyzer) -> None:
    measured = outcome_of(item, trace_of(make_trace, "measured"))
    assert (measured.findings, measured.judged) == (RESULT.findings, RESULT.judged)

    simulated = outcome_of(item, trace_of(make_trace, "simulated"))
    assert [(f.code, f.subject) for f in simulated.findings] == [("C-05", "padding"), ("C-09", "")]
    assert {j.code: (j.verdict, j.reason) for j in simulated.judged} == {
        "C-03": ("not_judged", MODELLED), "C-05": ("found", None), "C-09": ("found", None),
        "M-03": ("not_judged", MODELLED), "M-04": ("not_judged", MODELLED), "C-10": ("clean", None),
    }  # fmt: skip


def test_one_simulated_rank_makes_the_comparison_of_ranks_modelled(make_trace: MakeTrace) -> None:
    outcome = of_job.run_on_run(Run(traces=(trace_of(make_trace, "measured"), trace_of(make_trace, "simulated"))))
    assert "C-03" not in {f.code for f in outcome.findings}


def test_a_finding_that_is_nowhere_judged_is_named_nevertheless(make_trace: MakeTrace) -> None:
    @analyzer(name="z", needs=(KERNELS,), order=1, needs_measured=("C-03", "C-05/pipe"))
    def silent(trace: Trace) -> Result:
        return Result(findings=(finding("C-03"), finding("C-03", "b"), finding("C-05", "pipe")))

    outcome = silent.run_on_trace(trace_of(make_trace, "simulated"))
    assert outcome.findings == ()
    assert [(j.code, j.verdict, j.reason) for j in outcome.judged] == [
        ("C-03", "not_judged", MODELLED), ("C-05", "not_judged", MODELLED),
    ]  # fmt: skip


def test_own_reason_of_a_row_that_is_modelled_in_part_stands(make_trace: MakeTrace) -> None:
    reason = Words("no shapes", "没有 Shape")

    @analyzer(name="z", needs=(KERNELS,), order=1, needs_measured=("C-05/pipe",))
    def partly(trace: Trace) -> Result:
        return Result(judged=(Judged(code="C-05", verdict="not_judged", reason=reason),))

    (judged,) = partly.run_on_trace(trace_of(make_trace, "simulated")).judged
    assert judged.reason == reason


def busy(make_trace: MakeTrace, origin: DataOrigin) -> Trace:
    """Long kernels with idle pipes, attention bound by vector and one with a padded head, and casts."""
    pipes = {"aic_mac_ratio": 0.3, "aic_mte2_ratio": 0.3, "aic_fixpipe_ratio": 0.1, "aiv_vec_ratio": 0.9}
    query = "1,32,4096,{0};1,32,4096,{0};1,32,4096,{0}"
    kernels = [
        {"op_type": "MatMulV3", "core": "AIC", "aic_mac_ratio": 0.3, "aic_mte2_ratio": 0.3, "block_num": 13,
         "input_shapes": "64,64;64,64"},
        {"op_type": "FlashAttentionScore", "core": "MIX_AIC", **pipes, "input_shapes": query.format(128)},
        {"op_type": "FlashAttentionScore", "core": "MIX_AIC", "aic_mac_ratio": 0.95, "input_shapes": query.format(72)},
        {"op_type": "Cast", "core": "AIV", "input_shapes": "64,64", "aiv_vec_ratio": 0.2},
    ]  # fmt: skip
    return make_trace(
        meta=Meta(rank=0, data_origin=origin, device=Device(kind="npu", name="Ascend910B3")),
        kernels=[
            {"start_ns": at * 1_000_000, "dur_ns": 1_000_000, "name": k["op_type"], "stream": 0, **k}
            for at, k in enumerate(kernels)
        ],
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 4_000_000}],
    )  # fmt: skip


def test_the_report_of_simulated_data_lists_the_rows_among_those_not_judged(make_trace: MakeTrace) -> None:
    from ascend_perf.analysis import payload_of
    from ascend_perf.findings import all_findings

    def analyzed(origin: DataOrigin) -> tuple[set[tuple[str, str]], Analysis]:
        trace = busy(make_trace, origin)
        outcomes = tuple(
            replace(item.run_on_trace(trace), trace_index=0) for item in (mac_utilisation, attention, operators)
        )
        assert {o.status for o in outcomes} == {"done"}
        findings = all_findings(outcomes)
        made = Analysis(run=Run(traces=(trace,)), outcomes=outcomes, findings=findings)
        return {(f.code, f.subject if f.code == "C-05" else "") for f in findings}, made

    measured, _ = analyzed("measured")
    assert {("C-03", ""), ("C-05", "pipe"), ("C-05", "padding"), ("C-10", "")} <= measured

    simulated, analysis = analyzed("simulated")
    assert simulated == {(c, s) for c, s in measured if c not in {"C-02", "C-03", "C-04", "M-01"} and s != "pipe"}
    rows = {row.code: row for row in judged_rows(payload_of(analysis, "en"))}
    assert {code for code, row in rows.items() if row.reason == MODELLED} == {"C-02", "C-03", "C-04", "M-01"}
    assert rows["C-05"].verdict == rows["C-10"].verdict == "found"
    # Figures stay, in a report that says of itself that it is simulated.
    assert {t.name for o in analysis.outcomes for t in o.tables} >= {"mac", "top-kernels"}
