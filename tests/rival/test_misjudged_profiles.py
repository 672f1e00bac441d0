"""Sections 1 and 2 of the study: profiles that the incumbent misreads, and what they really say.

Rows that other tests hold (checked by test_index):

| section, row | what goes wrong there | test |
|---|---|---|
| 1, text level1 | waiting reported as transfer | tests/analyzers/test_communication.py::test_the_straggler_of_the_alexnet_job_is_named_from_one_rank |
| 1, level0 | - | tests/analyzers/test_communication.py::test_level_0_text_cannot_tell_waiting_from_transfer |
| 1, cause | smallest wait of the planes | tests/analyzers/test_communication.py::test_the_late_peer_is_named_by_the_union_of_its_waits |
| 1, cause | only ranks with files are compared | tests/analyzers/test_many_ranks.py::test_two_of_eight_ranks_name_the_straggler_whose_files_are_not_there |
| 2.1, empty directory | "no suggestions", status 0 | tests/cli/test_bad_input.py::test_directory_of_other_things |
| 2.1, empty directory | the same | tests/cli/test_bad_input.py::test_empty_directory |
| 2.1.1, opening | an empty page | tests/reports/test_browser.py::test_it_opens_on_the_answer |
| 2.1.1, print | only titles | tests/reports/test_browser.py::test_print_opens_everything_and_hides_the_controls |
| 2.1.1, links | none to evidence | tests/reports/test_browser.py::test_evidence_leads_into_the_timeline |
| 2.1.1, sort, search | none | tests/reports/test_browser.py::test_a_table_sorts_both_ways_and_keeps_unknown_last |
| 2.1.1, columns of gain | empty | tests/reports/test_json_report.py::test_findings_keep_their_order_their_bound_and_their_evidence |
| 2.1.1, formats differ | findings missing in one | tests/reports/test_payload.py::test_figures_hold_the_same_numbers_as_the_page |
| 2.1.2, 2 | 19 compilations unseen | tests/analyzers/test_host_dispatch.py::test_nineteen_compilations_of_the_alexnet_step_are_found_by_their_cost |
| 2.1.2, 2 | counted, not timed | tests/analyzers/test_host_dispatch.py::test_compilation_counts_by_its_cost_and_not_by_its_number |
| 2.1.2, 3 | windows overlap | tests/analyzers/test_sequences.py::test_sequences_never_claim_a_kernel_twice |
| 2.1.2, 8 | the label "dynamic" | tests/analyzers/test_dynamic_shape.py::test_the_dynamic_state_alone_is_no_evidence |
| 2.1.2, 10 | spread within the noise | tests/analyzers/test_links.py::test_real_jobs_have_no_slow_link |
| 2.1.2, 11 | a share of calls called one of volume | tests/analyzers/test_communication.py::test_small_packets_weigh_by_time_and_not_by_number |
| 2.1.2, 12 | alignment without impact | tests/analyzers/test_communication.py::test_unaligned_transfers_weigh_by_their_union |
| 2.1.2, 15 | findings that more steps switch on | tests/faults/test_properties.py::test_steps_repeated_twenty_times_give_the_same_findings |
| 2.2, x400 | memory by busy microsecond | tests/test_intervals.py::test_union_holds_the_same_instants_once |
| 2.2, rounding | whole microseconds | tests/parsers/test_kineto.py::test_unions_equal_decimal_arithmetic_to_the_last_digit |
"""  # noqa: E501

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ascend_perf import intervals
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.model.tables import COMM_OPS, KERNELS
from ascend_perf.pipeline import load
from tests.rival._said import Row, analysis_of, codes, findings, number, rows, verdicts

ALEXNET = "ascend-pytorch"
QWEN = "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2"


# ---- section 1: the late rank ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank", "late", "by_peer_ms"),
    [
        ("text/level1", 0, 5, {5: 101.7, 1: 5.7, 4: 4.8}),
        ("text/level1", 1, 5, {5: 96.1}),
        ("db/level1", 0, 6, {6: 97.7, 7: 13.4, 5: 11.0}),
        ("db/level1", 1, 6, {6: 94.1}),
    ],
)
def test_the_late_rank_and_the_waiting_for_each_peer(
    traces: Path, name: str, rank: int, late: int, by_peer_ms: dict[int, float]
) -> None:
    """Section 1, table of runs: peers by the time of the Notify_Wait tasks, within the rounding of the study."""
    analysis = analysis_of(traces / ALEXNET / name)
    waits = {row["peer"]: number(row["wait_ns"]) / 1e6 for row in rows(analysis.outcomes, "comm-waits", rank)}

    for peer, expected in by_peer_ms.items():
        assert waits[peer] == pytest.approx(expected, abs=0.06), peer
    others = [ms for peer, ms in waits.items() if peer not in by_peer_ms]
    assert max(others) < (0.3 if name == "text/level1" else min(by_peer_ms.values()))
    (found,) = findings(analysis, "N-05")
    assert (found.ranks, found.affected_ranks) == ((late,), (0, 1))
    # The answer stands on top, and as more than a colour of low priority.
    assert analysis.findings[0] is found
    assert found.severity.value == "critical"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "late"), [("text/level1", 5), ("db/level1", 6)])
def test_one_rank_alone_names_the_late_rank(traces: Path, name: str, late: int, rank: int) -> None:
    """Section 1, use: solved from one rank's data; section 8, 1."""
    analysis = analysis_of(traces / ALEXNET / name / f"rank{rank}_ascend_pt")

    (found,) = findings(analysis, "N-05")
    assert (found.ranks, found.affected_ranks) == ((late,), (rank,))


@pytest.mark.parametrize("name", ["text/level0", "db/level0"])
def test_level0_cannot_name_a_late_rank_and_is_not_called_clean(traces: Path, name: str) -> None:
    """Section 1, last row of the runs: without sub-tasks it is undecidable, which is not "no slow rank"."""
    analysis = analysis_of(traces / ALEXNET / name)

    assert verdicts(analysis, "N-05") == {"not_judged"}
    assert findings(analysis, "N-05") == []
    # What is certain is said: the exposed communication.
    (exposed,) = findings(analysis, "N-01")
    assert exposed.share_ratio == pytest.approx({"text/level0": 0.7012, "db/level0": 0.7167}[name], abs=5e-4)


def test_two_stragglers_in_the_study_end_together_on_both_ranks(traces: Path) -> None:
    """Section 1, strength of the evidence: the long waits of both ranks end 7 us (db: 15 us) apart."""
    for name, apart_us in (("text/level1", 7), ("db/level1", 15)):
        analysis = analysis_of(traces / ALEXNET / name)
        ends = []
        for rank in (0, 1):
            row = rows(analysis.outcomes, "comm-waits", rank)[0]
            ends.append(number(row["longest_start_ns"]) + number(row["longest_ns"]))
        assert abs(ends[0] - ends[1]) / 1000 == pytest.approx(apart_us, abs=1)


# ---- section 2.1: inputs on which the incumbent ends without a report ------------------------------------------------


@pytest.mark.parametrize("name", ["text/level0", "db/level0", "db/level2", "text/level2", QWEN.split("/", 1)[1]])
def test_inputs_on_which_the_incumbent_fails_are_analyzed(traces: Path, name: str) -> None:
    """Section 2.1: Level0 as a database, four ranks of which only sums are there, one rank without a trace."""
    analysis = analysis_of(traces / ALEXNET / name)

    assert analysis.failed == ()
    assert analysis.findings
    # The overall split is there for each rank with its own source.
    for trace in analysis.run.traces:
        assert rows(analysis.outcomes, "steps", trace.meta.rank)


def test_text_files_beside_a_database_of_sums_are_one_profile(traces: Path) -> None:
    """Section 2.1, partial copy: csv files and analysis.db of one rank are neither two ranks nor added up."""
    run = load(traces / QWEN / "rank_0_ascend_pt")

    (trace,) = run.traces
    assert trace.meta.rank == 0
    assert len(trace[KERNELS]) == 2448
    assert len(trace[COMM_OPS]) == 15
    (step,) = rows(analysis_of(traces / QWEN).outcomes, "steps", 0)
    assert step["computing_us"] == pytest.approx(231290.10)
    assert step["communication_not_overlapped_us"] == pytest.approx(420174.26)
    assert step["free_us"] == pytest.approx(158558.00)


def test_versions_are_those_of_the_trace(traces: Path) -> None:
    """Section 2.1.1: the incumbent prints its defaults (CANN 8.0.0, torch 2.1.0) as facts; section 8, 7."""
    qwen = load(traces / QWEN / "rank_0_ascend_pt").traces[0].meta.versions
    alexnet = load(traces / ALEXNET / "text/level1/rank0_ascend_pt").traces[0].meta.versions

    assert qwen["cann"] == "8.3.RC1"
    assert qwen["torch_npu"].startswith("2.7.1")
    assert "cann" not in alexnet and "torch_npu" not in alexnet  # not in those files: unknown, never a default


# ---- section 2.1.2: the fifteen rows ---------------------------------------------------------------------------------


def test_row_1_the_step_is_waiting_and_not_transfer(traces: Path) -> None:
    """2.1.2, row 1: wait 0 and transmit 102 ms there; about 98 ms wait and 3.7 ms transfer in truth."""
    analysis = analysis_of(traces / ALEXNET / "text/level1")

    bar = {row["component"]: number(row["time_ns"]) / 1e6 for row in rows(analysis.outcomes, "step-bar", 0)}
    assert bar["comm-wait"] == pytest.approx(97.98, abs=0.02)
    assert bar["comm-transfer"] == pytest.approx(101.963 - 97.977, abs=0.01)
    (found,) = findings(analysis, "N-05")
    assert "3.683 ms" in found.title.en


@pytest.mark.parametrize(
    ("name", "ms"), [("text/level1", (14.0, 16.5)), ("text/level2", (14.0, 16.5)), ("db/level1", (27.5, 27.7))]
)
def test_row_2_nineteen_compilations_are_a_finding(traces: Path, name: str, ms: tuple[float, float]) -> None:
    """2.1.2, row 2: below the count of 20 nothing is said there, though they take up to a fifth of the step."""
    (found,) = findings(analysis_of(traces / ALEXNET / name), "H-06")

    assert found.title.en.startswith("19 just-in-time compilations")
    spent = next(e for e in found.evidence if "host time of compilations" in e.name.en)
    assert ms[0] <= number(spent.value) / 1e6 <= ms[1]
    assert found.severity.value in ("medium", "high")


def test_row_3_savings_of_sequences_are_unions_within_the_step(traces: Path) -> None:
    """2.1.2, row 3: 75 overlapping windows there claim 2943 ms of an 810 ms step."""
    analysis = analysis_of(traces / QWEN)

    found = [f for f in analysis.findings if f.analyzer in ("sequences", "fusion", "vector-chains", "optimizer")]
    assert found
    assert all(f.share_ratio is not None and 0 < f.share_ratio < 0.2 for f in found)
    # Kernels of a sequence are kernels of the trace: what all sequences run together is at most the kernel time.
    for rank, kernel_ns in ((0, 231_290_100), (2, 400_448_260)):
        busy = sum(number(row["busy_ns"]) for row in rows(analysis.outcomes, "sequences", rank))
        assert busy <= kernel_ns
        wall = sum(number(row["wall_ns"]) for row in rows(analysis.outcomes, "sequences", rank))
        assert wall <= 810_022_360


def test_row_4_kernels_of_no_weight_are_no_finding(traces: Path) -> None:
    """2.1.2, row 4: Mul[128], Add[128], Adds[4096] and Muls[1024] are 0.02 % of the kernel time together."""
    analysis = analysis_of(traces / QWEN)

    kernels = analysis.run.traces[0][KERNELS]
    types, shapes = kernels.text("op_type"), kernels.text("input_shapes")
    tiny = sum(
        (types.equals(op_type) & shapes.flags(lambda text, size=size: text.split(";")[0] == size))  # type: ignore[misc]
        for op_type, size in (("Mul", "128"), ("Add", "128"), ("Adds", "4096"), ("Muls", "1024"))
    )
    spent = kernels.ints("dur_ns")[np.asarray(tiny, bool)]
    assert len(spent) and spent.sum() < 0.001 * kernels.ints("dur_ns").sum()
    # No evidence of a finding about pipes names one; the table ranks by time that is wasted, not by a gap of ratios.
    for found in findings(analysis, "C-03") + findings(analysis, "C-02"):
        assert not any(re.search(r"pipes of (Mul|Muls|Add|Adds)\b", e.name.en) for e in found.evidence)
    wasted = [row["wasted_ns"] for row in rows(analysis.outcomes, "mac", 0) if row["wasted_ns"] is not None]
    assert wasted == sorted(wasted, key=number, reverse=True)


def test_row_5_products_at_the_cube_s_limit_are_no_room(traces: Path) -> None:
    """2.1.2, row 5: kernels with a MAC ratio of 0.82-0.86 count as 15 % improvable there."""
    analysis = analysis_of(traces / QWEN / "rank_0_ascend_pt")
    kernels = analysis.run.traces[0][KERNELS]
    mac = kernels.floats("aic_mac_ratio")

    high = kernels.text("op_type").flags(lambda name: "MatMul" in name) & (mac >= 0.82) & (mac <= 0.86)
    assert high.sum() >= 28
    for code in ("C-02", "C-03"):
        for found in findings(analysis, code):
            (claim,) = found.claims
            claimed = claim.where
            starts, ends = kernels.ints("start_ns")[high], kernels.ends_ns()[high]
            assert intervals.covered(claimed, starts, ends).sum() == 0


def test_row_6_the_largest_product_is_seen_on_a_mixed_core(traces: Path) -> None:
    """2.1.2, row 6: MatMulV3 [4096,151936]x[151936,1024] runs as MIX_AIC and is not mentioned there."""
    analysis = analysis_of(traces / QWEN)

    place = [
        (at, row) for at, row in enumerate(rows(analysis.outcomes, "mac", 2))
        if row["shapes"] == "4096,151936;151936,1024" and row["core"] == "MIX_AIC"
    ]  # fmt: skip
    ((at, row),) = place
    assert at < 3  # by wasted time
    assert number(row["time_ns"]) / 1e6 == pytest.approx(36.8, abs=0.05)
    assert number(row["mac_ratio"]) == pytest.approx(0.27, abs=0.005)
    assert row["bound"] == "latency-bound"
    on_rank_2 = [f for f in findings(analysis, "C-03") if 2 in f.ranks]
    assert any("MatMulV3" in str(e.name.en) or "MatMulV3" in str(e.where) for f in on_rank_2 for e in f.evidence)


def test_row_7_vector_kernels_are_judged_by_their_own_pipes(traces: Path) -> None:
    """2.1.2, row 7: ForeachAddList loads at 0.97-0.99 of its time; there the cube's column (0) is read."""
    outcome = mac_utilisation.run_on_trace(load(traces / ALEXNET / "db/level1/rank0_ascend_pt").traces[0])

    listed = [row for row in _rows_of(outcome.tables, "mac") if row["op_type"] == "ForeachAddList"]
    assert listed
    busy = [row for row in listed if number(row["time_ns"]) > 500_000]
    assert busy
    for row in busy:
        assert 0.97 <= number(row["busiest_pipe_ratio"]) <= 1.0
        assert row["bound"] == "MTE-bound"
    (no_pipe,) = [f for f in outcome.findings if f.code == "C-03"]
    assert not any("ForeachAddList" in e.name.en for e in no_pipe.evidence)


@pytest.mark.parametrize("name", ["text/level1", "text/level2", "db/level1", QWEN.split("/", 1)[1]])
def test_row_8_kernels_labelled_dynamic_are_no_dynamic_shapes(traces: Path, name: str) -> None:
    """2.1.2, row 8: the label is how binary kernels are marked; it must not suppress other checks either."""
    analysis = analysis_of(traces / ALEXNET / name)

    assert "C-08" not in codes(analysis)
    for code in ("C-03", "C-04"):  # the checks that it suppresses there
        assert verdicts(analysis, code) <= {"found", "clean"} or name.startswith("qwen")


def test_row_9_sizes_and_times_of_transports_are_not_doubled(traces: Path) -> None:
    """2.1.2, row 9: 855.19 MB in 54.63 ms there, with the total added to its parts; section 2.1 of the formats."""
    for rank, ms in ((0, 27.315706), (1, 27.583971)):
        (row,) = rows(analysis_of(traces / ALEXNET / "text/level1").outcomes, "comm-transports", rank)
        assert number(row["size_bytes"]) == pytest.approx(427.596096e6)
        assert number(row["time_ns"]) == pytest.approx(ms * 1e6)


def test_row_10_transports_that_are_not_used_are_not_listed(traces: Path) -> None:
    """2.1.2, row 10: RDMA with zeros on a job of one node; a spread of 0.15 of 15.6 GB/s between ranks."""
    analysis = analysis_of(traces / ALEXNET / "text/level1")

    for rank in (0, 1):
        assert [row["transport"] for row in rows(analysis.outcomes, "comm-transports", rank)] == ["HCCS"]
    assert verdicts(analysis, "N-06") == {"clean"}


@pytest.mark.parametrize("name", ["text/level1", "db/level1", QWEN.split("/", 1)[1]])
def test_row_11_small_calls_that_take_no_time_are_no_finding(traces: Path, name: str) -> None:
    """2.1.2, row 11: three of ten calls below 16 MB take 0.8 ms of 420 ms."""
    analysis = analysis_of(traces / ALEXNET / name)

    assert verdicts(analysis, "N-02") == {"clean"}


def test_row_12_unaligned_transfers_of_no_weight_are_no_finding(traces: Path) -> None:
    """2.1.2, row 12: two operators with 0.24 and 0.16 ms of a 137 ms step."""
    for name in ("text/level1", "text/level2", "db/level1"):
        analysis = analysis_of(traces / ALEXNET / name)
        assert verdicts(analysis, "N-03") == {"clean"}


@pytest.mark.parametrize("level", [1, 2])
def test_row_13_text_and_database_of_like_runs_give_the_same_findings(traces: Path, level: int) -> None:
    """2.1.2, row 13: finding lists differ there by the format of the export (see also test_exports_agree)."""
    text = analysis_of(traces / ALEXNET / f"text/level{level}")
    database = analysis_of(traces / ALEXNET / f"db/level{level}")

    assert sorted(f.code for f in text.findings) == sorted(f.code for f in database.findings)
    for code in ("C-07", "C-08", "N-02", "N-03", "K-04", "H-05", "C-12", "C-13"):
        assert verdicts(text, code) == verdicts(database, code), code


def test_row_14_the_bandwidth_of_a_database_is_not_zero(traces: Path) -> None:
    """2.1.2, row 14: 0.000 GB/s from a database, 15.65 GB/s from text; each is bytes over time of its own run."""
    (text,) = rows(analysis_of(traces / ALEXNET / "text/level1").outcomes, "comm-transports", 0)
    (database,) = rows(analysis_of(traces / ALEXNET / "db/level1").outcomes, "comm-transports", 0)

    assert number(text["bytes_per_s"]) / 1e9 == pytest.approx(15.6539, abs=1e-4)
    assert number(database["size_bytes"]) == number(text["size_bytes"])
    assert number(database["bytes_per_s"]) == pytest.approx(
        number(database["size_bytes"]) / number(database["time_ns"]) * 1e9
    )
    assert 14e9 < number(database["bytes_per_s"]) < 16e9


# ---- section 2.2: GPU time by unions ---------------------------------------------------------------------------------


def test_busy_time_of_a_gpu_is_a_union_whatever_the_trace_lasts(traces: Path) -> None:
    """Section 2.2: busy time there has one key per microsecond; the union of the Qwen trace is known exactly."""
    trace = load(traces / "kineto/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz").traces[0]
    kernels = trace[KERNELS]

    busy = intervals.merged(kernels.ints("start_ns"), kernels.ends_ns())
    assert intervals.total(busy) / 1000 == pytest.approx(45432.706, abs=0.02)
    # Ten thousand times as long: as many intervals, and ten thousand times the time.
    start = kernels.ints("start_ns") - kernels.ints("start_ns").min()
    long = intervals.merged(start * 10_000, start * 10_000 + kernels.ints("dur_ns") * 10_000)
    assert len(long.starts) == len(busy.starts)
    assert intervals.total(long) == 10_000 * intervals.total(busy)


def _rows_of(tables: object, name: str) -> list[Row]:
    from ascend_perf.model.finding import Outcome

    return rows([Outcome(analyzer="-", status="done", tables=tables)], name)  # type: ignore[arg-type]
