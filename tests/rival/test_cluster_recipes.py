"""Section 4 of the study and the defects of the vendor's tools (troubleshooting table, section 6).

Rows that other tests hold (checked by test_index):

| section, row | what goes wrong there | test |
|---|---|---|
| 4, slow_rank | impossible for two to three ranks | tests/analyzers/test_many_ranks.py::test_two_three_and_four_ranks_are_enough |
| 4, slow_rank | two stragglers of eight mask each other | tests/analyzers/test_many_ranks.py::test_stragglers_of_eight_do_not_mask_each_other |
| 4, slow_rank | votes without weight | tests/analyzers/test_ranks.py::test_who_is_late_by_turns_is_not_blamed |
| 4, slow_rank | all ranks' files | tests/analyzers/test_many_ranks.py::test_a_late_rank_that_is_not_there_is_told_by_all_who_wait |
| 4, slow_rank | principle: the last waits least | tests/analyzers/test_ranks.py::test_the_rank_that_joins_last_has_the_shortest_call |
| 4, slow_link | eleven samples | tests/analyzers/test_links.py::test_a_link_below_its_peers_is_named_with_both_ends_and_what_it_costs |
| 4, slow_link | clock and skew | tests/analyzers/test_collectives.py::test_skew_transfer_and_the_last_rank_do_not_depend_on_the_clocks |
| 4, communication_bottleneck | missing ranks | tests/analyzers/test_many_ranks.py::test_collectives_that_all_take_equally_long_are_not_called_clean |
| 4, communication_bottleneck | launches | tests/analyzers/test_collective_launch.py::test_idle_time_while_hccl_issues_the_collective_is_its_own_row |
| 4, communication_bottleneck | causes | tests/analyzers/test_inherited.py::test_the_report_blames_the_cause_and_not_the_rank_in_between |
| 4, free_analysis | top ten only | tests/analyzers/test_host_dispatch.py::test_causes_share_out_the_gaps_without_rest_or_overlap |
| 4, free_analysis | no stack | tests/analyzers/test_host_dispatch.py::test_the_python_call_in_the_longest_gap_is_named |
| 4, freq_analysis | 1800 MHz only | tests/analyzers/test_frequency.py::test_a_constant_frequency_of_an_unnamed_device_is_no_drop |
| 4, freq_analysis | - | tests/analyzers/test_frequency.py::test_a_named_device_is_held_against_its_own_rate |
| 4, ep_load_balance | - | tests/analyzers/test_experts.py::test_the_fullest_rank_of_a_group_is_named |
| 4, ep_load_balance | groups | tests/analyzers/test_experts.py::test_even_loads_are_clean_and_groups_are_not_mixed |
| 4, computational_op_masking | by kind of group | tests/analyzers/test_exposed.py::test_each_kind_of_group_is_a_row_and_the_rest_stays_with_n_01 |
| 4, computational_op_masking | needs names | tests/analyzers/test_exposed.py::test_kinds_are_inferred_from_sizes_and_members_and_marked_so |
| 4, cluster_time_summary | - | tests/analyzers/test_step_breakdown.py::test_a_step_splits_into_parts_that_add_up |
| 4, operator_mfu | needs instrumentation | tests/analyzers/test_mac_utilisation.py::test_counters_agree_with_shapes_on_the_real_set |
| 4, operator_mfu | the peak of fp16 for fp32 | tests/analyzers/test_mac_utilisation.py::test_the_rate_by_counters_uses_the_factor_of_the_dtype |
| 4, operator_mfu | 25 cores | tests/parsers/test_msprof.py::test_an_unusable_core_does_not_count |
| 4, pp_chart | instrumented runs only | tests/analyzers/test_ranks.py::test_qwen3_names_the_imbalance_and_the_waiting_ranks |
| 4, module statistics | instrumented runs only | tests/analyzers/test_flame.py::test_device_time_lies_under_the_module_the_stack_and_the_operators_that_launched_it |
| 4, cann_api_sum | quartiles of quartiles | tests/analyzers/test_host_operators.py::test_times_are_per_step |
| 4, hccl_sum, compute_op_sum | - | tests/analyzers/test_operators.py::test_tables_sort_by_time_and_add_up |
| 4, cluster folders | text and database | tests/parsers/test_cluster_output.py::test_text_and_database_of_one_job_say_the_same |
| 6, cube check | the wrong limit | tests/rival/test_advisor_rules.py::test_pairs_of_mac_and_mte2 |
| 6, 18 GB/s | of the 910A | tests/analyzers/test_contention.py::test_four_fifths_of_the_rate_are_allowed |
| 6, misspelt HCCL_RDMA_TC | never shown | tests/rival/test_advisor_rules.py::test_variables_without_evidence_of_harm_are_no_finding |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.analyzers.communication import communication
from ascend_perf.analyzers.frequency import frequency
from ascend_perf.analyzers.links import links
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.device.specs import device_specs
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.ops.flops import work_of
from ascend_perf.pipeline import analyze
from tests.faults import model
from tests.faults.evaluate import GRADES
from tests.faults.kinds import KINDS
from tests.faults.machine import simulate
from tests.faults.writer import write_job
from tests.rival._said import analysis_of, findings, number, rows, said, verdicts

Make = Callable[..., Trace]
MS = 1_000_000
US = 1_000


def mesh(make_trace: Make, waits: Sequence[tuple[int, int]], *, peers: int = 7) -> Trace:
    """One all-reduce of 80 ms over `peers` planes; `waits` are (peer, ms) of the planes that wait at all."""
    of = dict(waits)
    tasks: list[dict[str, object]] = []
    for plane, peer in enumerate(range(1, peers + 1)):
        start = 10 * MS
        if peer in of:
            tasks.append(
                {"start_ns": start, "dur_ns": of[peer] * MS, "kind": "Notify_Wait", "comm_op": 0, "plane": plane,
                 "src": 0, "dst": peer}
            )  # fmt: skip
            start += of[peer] * MS
        tasks.append(
            {"start_ns": 88 * MS, "dur_ns": 2 * MS, "kind": "Memcpy", "comm_op": 0, "plane": plane, "src": 0,
             "dst": peer, "transport": "SDMA", "link": "HCCS", "size_bytes": 32 << 20}
        )  # fmt: skip
    group = Group(name="g", ranks=tuple(range(peers + 1)))
    return make_trace(
        meta=Meta(rank=0, world_size=peers + 1, device=Device(kind="npu"), groups=(group,)),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}],
        kernels=[{"start_ns": 0, "dur_ns": 10 * MS, "name": "k", "op_type": "Add"}],
        comm_ops=[
            {"start_ns": 10 * MS, "dur_ns": 80 * MS, "name": "c", "op": "allReduce", "group": "g",
             "group_size": peers + 1}
        ],
        comm_tasks=tasks,
    )  # fmt: skip


@pytest.mark.parametrize("late", range(1, 8))
def test_waiting_in_a_mesh_is_not_the_smallest_of_its_planes(make_trace: Make, late: int) -> None:
    """1, cause and 4, cluster_time_summary: one idle plane of seven makes the waiting zero there."""
    outcome = communication.run_on_trace(mesh(make_trace, [(late, 78)]))

    (found,), _ = said(outcome, "N-05")
    assert (found.ranks, found.affected_ranks) == ((late,), (0,))
    assert found.share_ratio == pytest.approx(0.78)
    (call,) = rows([outcome], "comm-ops")
    assert call["wait_ns"] == 78 * MS


def test_waiting_on_several_planes_does_not_add_up(make_trace: Make) -> None:
    """1: waits on several peers run in parallel: 78 and 20 and 5 ms are 78 ms together."""
    outcome = communication.run_on_trace(mesh(make_trace, [(5, 78), (1, 20), (4, 5)]))

    found, _ = said(outcome, "N-05")
    assert [f.ranks for f in found] == [(5,)]
    assert found[0].share_ratio == pytest.approx(0.78)
    (call,) = rows([outcome], "comm-ops")
    assert call["wait_ns"] == 78 * MS


@pytest.mark.parametrize("present", [(0, 1, 3), (0, 3), (3,)])
def test_ranks_without_files_hide_no_late_rank(tmp_path: Path, present: tuple[int, ...]) -> None:
    """4, slow_rank and communication_bottleneck: a late rank whose files are missing is invisible there."""
    kind = next(kind for kind in KINDS if kind.name == "late-python")
    job = kind.make(1)
    for programs in job.programs.values():
        del programs[2:]
    kind.plant(job, 5 * MS, "medium")
    job.hidden = frozenset(set(range(4)) - set(present))
    write_job(job, simulate(job), tmp_path)

    found = findings(analyze(tmp_path), "N-05")

    assert {rank for f in found for rank in f.ranks} == {2}
    assert {rank for f in found for rank in f.affected_ranks} == set(present)


def test_a_slow_link_is_found_among_three_samples(make_trace: Make) -> None:
    """4, slow_link: z > 3 cannot be reached with fewer than eleven values."""
    rates = {1: 20.0, 2: 20.1, 3: 19.9, 4: 8.0}
    group = Group(name="g", ranks=(0, 1, 2, 3, 4))
    tasks = [
        {"start_ns": (call * 20 + 1) * MS, "dur_ns": round((64 << 20) / rate), "kind": "Memcpy", "comm_op": call,
         "plane": plane, "src": 0, "dst": peer, "transport": "SDMA", "link": "HCCS", "size_bytes": 64 << 20}
        for call in range(3) for plane, (peer, rate) in enumerate(rates.items())
    ]  # fmt: skip
    trace = make_trace(
        meta=Meta(rank=0, world_size=5, device=Device(kind="npu"), groups=(group,)),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 60 * MS}],
        kernels=[{"start_ns": 0, "dur_ns": MS, "name": "k", "op_type": "Add"}],
        comm_ops=[
            {"start_ns": (call * 20 + 1) * MS, "dur_ns": 9 * MS, "name": f"c{call}", "op": "allReduce", "group": "g"}
            for call in range(3)
        ],
        comm_tasks=tasks,
    )  # fmt: skip

    found, judged = said(links.run_on_run(Run(traces=(trace,))), "N-06")
    assert judged == {"found"}
    assert "0" in found[0].title.en and "4" in found[0].title.en
    assert 4 in found[0].ranks or 0 in found[0].ranks


@pytest.mark.parametrize(
    "spec", sorted({s.id for s in device_specs().values() if s.kind == "npu" and s.frequency_hz}), ids=str
)
def test_the_rated_frequency_of_no_part_is_abnormal(make_trace: Make, spec: str) -> None:
    """4, freq_analysis and 6: anything but 1800 (and 800) MHz is abnormal there; 910B1 has 1850, 910B4 1500."""
    part = device_specs()[spec]
    assert part.frequency_hz is not None
    device = Device(kind="npu", spec=spec, cube_cores=part.cube_cores, frequency_hz=part.frequency_hz)

    def judged(mhz: float) -> set[str]:
        trace = make_trace(
            meta=Meta(rank=0, device=device), steps=[{"step_id": 1, "start_ns": 0, "dur_ns": MS}],
            kernels=[{"start_ns": 0, "dur_ns": MS, "name": "k", "core": "AIC"}],
            counters=[{"time_ns": 0, "counter": "AI Core Freq", "unit": "MHz", "value": mhz}],
        )  # fmt: skip
        return said(frequency.run_on_trace(trace), "P-01")[1]

    assert judged(part.frequency_hz / 1e6) == {"clean"}
    assert judged(part.frequency_hz / 1e6 * 0.9) == {"found"}  # throttled by a tenth


def test_two_known_clocks_are_in_the_device_table() -> None:
    """6: the parts that the defect names."""
    clocks = {spec.id: spec.frequency_hz for spec in device_specs().values()}
    assert clocks["ascend-910b1"] == 1_850_000_000
    assert clocks["ascend-910b4"] == 1_500_000_000


def test_work_of_an_operator_counts_once_over_its_kernels(make_trace: Make) -> None:
    """4, operator_mfu: every kernel inside of a range gets its full FLOPs there."""
    host = {"start_ns": 0, "dur_ns": 1, "thread": 1}
    gemm = {"start_ns": 0, "core": "SM", "name": "ampere_bf16_s16816gemm_128x64_splitK"}
    trace = make_trace(
        meta=Meta(rank=0, device=Device(kind="gpu")),
        host_ops=[
            host | {"name": "aten::mm", "input_shapes": "4,6;6,5", "input_dtypes": "c10::BFloat16;c10::BFloat16"}
        ],
        kernels=[
            gemm | {"host_op": 0, "dur_ns": 30},
            gemm | {"host_op": 0, "dur_ns": 10},
            {"start_ns": 0, "dur_ns": 5, "core": "SM", "name": "void splitKreduce_kernel<32>", "host_op": 0},
        ],
    )  # fmt: skip

    flops = work_of(trace[KERNELS], trace[HOST_OPS]).flops
    assert np.nansum(flops) == pytest.approx(2 * 4 * 6 * 5)  # once, never twice


def test_npu_products_have_the_flops_of_their_own_shapes(make_trace: Make) -> None:
    """4, operator_mfu: three kernels of one module are their three products, whatever encloses them."""
    row = {
        "start_ns": 0, "dur_ns": 10, "name": "m", "op_type": "MatMulV3", "core": "AIC", "host_op": 0,
        "input_dtypes": "DT_BF16;DT_BF16", "output_dtypes": "DT_BF16",
    }  # fmt: skip
    shapes = [("4,6;6,5", "4,5"), ("4,6;6,5", "4,5"), ("8,6;6,5", "8,5")]
    trace = make_trace(
        meta=Meta(rank=0, device=Device(kind="npu")),
        host_ops=[{"start_ns": 0, "dur_ns": 1, "thread": 1, "name": "MLP", "input_shapes": "4,6;6,5"}],
        kernels=[row | {"input_shapes": inputs, "output_shapes": outputs} for inputs, outputs in shapes],
    )

    assert work_of(trace[KERNELS], trace[HOST_OPS]).flops.tolist() == [240.0, 240.0, 480.0]


def test_cores_that_are_usable_are_those_of_the_counters(traces: Path) -> None:
    """6: 25 cores of info.json overstate the peak; the AlexNet device has 24 by its own cycles."""
    device = analysis_of(traces / "ascend-pytorch/text/level1").run.traces[0].meta.device
    assert (device.cube_cores, device.frequency_hz) == (24, 1_800_000_000)


def test_a_healthy_job_of_every_size_has_no_slow_rank(tmp_path: Path) -> None:
    """4, slow_rank: with few ranks there is always an extreme one; it must matter to be named."""
    for world in (2, 3, 4):
        job = model.data_parallel(world, ranks=world, steps=2, layers=2)
        write_job(job, simulate(job), tmp_path / str(world))
        analysis = analyze(tmp_path / str(world))
        assert verdicts(analysis, "N-05") == {"clean"}
        assert not [f for f in analysis.findings if f.severity in GRADES]


def test_the_pipeline_of_the_real_job_waits_for_its_second_stage(traces: Path) -> None:
    """4, pp_chart and 7, 14: waits and peers of batch send and receive, without instrumentation."""
    analysis = analysis_of(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2")

    (bubble,) = findings(analysis, "L-01")
    assert (bubble.ranks, bubble.affected_ranks) == ((2, 3), (0, 1))
    assert "batchSendRecv" in bubble.title.en
    (uneven,) = findings(analysis, "L-02")
    assert "1.73x" in uneven.title.en
    call = next(row for row in rows(analysis.outcomes, "comm-ops", 0) if row["op"] == "batchSendRecv")
    assert number(call["transit_ns"]) == 802_380
    assert number(call["wait_ns"]) / 1e6 == pytest.approx(313, abs=0.1)


def test_overlap_of_groups_counts_once(make_trace: Make) -> None:
    """5, overlap of groups: two groups that communicate at once are not exposed twice."""
    trace = mesh(make_trace, [])
    calls = trace[COMM_OPS]
    assert (calls.ints("start_ns") != NULL).all()
    both = make_trace(
        meta=replace(trace.meta, groups=(Group(name="a", ranks=(0, 1)), Group(name="b", ranks=(0, 2)))),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}],
        kernels=[{"start_ns": 0, "dur_ns": 10 * MS, "name": "k", "op_type": "Add"}],
        comm_ops=[
            {"start_ns": 20 * MS, "dur_ns": 40 * MS, "name": "x", "op": "allReduce", "group": "a"},
            {"start_ns": 30 * MS, "dur_ns": 40 * MS, "name": "y", "op": "allReduce", "group": "b"},
        ],
    )
    outcome = communication.run_on_trace(both)

    assert {m.name: m.value for m in outcome.metrics}["communication_exposed_ratio"] == pytest.approx(0.5)
    assert sum(f.share_ratio or 0 for f in outcome.findings) <= 0.5 + 1e-9


def test_one_rank_alone_is_not_compared(make_trace: Make) -> None:
    """4: a comparison of ranks on one rank is no data, not "no slow rank"."""
    outcome = ranks.run_on_run(Run(traces=(mesh(make_trace, []),)))
    assert outcome.status == "no_data" or {j.verdict for j in outcome.judged if j.code == "N-05"} <= {"not_judged"}
