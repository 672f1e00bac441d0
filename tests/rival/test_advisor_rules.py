"""Section 3 of the study: the advisor's triggers. Where one is sound we fire on the same input; where not, we do not.

Rows that other tests hold (checked by test_index):

| section, row | what goes wrong there | test |
|---|---|---|
| 3, slow rank | no rank is named | tests/analyzers/test_ranks.py::test_a_rank_that_computes_longer_than_its_equals_is_late |
| 3, slow rank | within the scatter | tests/analyzers/test_ranks.py::test_ranks_within_five_percent_are_equals |
| 3, slow link | always printed | tests/analyzers/test_links.py::test_rates_within_five_percent_are_equal |
| 3, slow link | no view by link | tests/analyzers/test_links.py::test_a_link_below_its_peers_is_named_with_both_ends_and_what_it_costs |
| 3, slow link | sizes are mixed | tests/analyzers/test_links.py::test_what_is_of_another_kind_is_not_compared |
| 3, overall summary | - | tests/analyzers/test_step_breakdown.py::test_text_exports_agree_with_the_reference |
| 3, overall summary | free time only in "minimal" profiles | tests/analyzers/test_host_dispatch.py::test_level_0_text_cannot_judge_compilation |
| 3, environment | - | tests/analyzers/test_host_dispatch.py::test_launch_blocking_is_seen_in_the_environment_and_in_the_calls |
| 3, environment | - | tests/analyzers/test_host_dispatch.py::test_a_chatty_log_is_remarked |
| 3, dynamic shape | the label | tests/analyzers/test_dynamic_shape.py::test_the_dynamic_state_alone_is_no_evidence |
| 3, dynamic shape | - | tests/analyzers/test_dynamic_shape.py::test_a_new_length_in_every_step_is_found |
| 3, AICPU | - | tests/analyzers/test_operators.py::test_ai_cpu_kernels_above_twenty_microseconds_are_found |
| 3, no bound | - | tests/analyzers/test_mac_utilisation.py::test_long_kernels_with_no_busy_pipe_are_weighted_by_their_idle_part |
| 3, no bound | the wrong column | tests/analyzers/test_mac_utilisation.py::test_vector_kernels_are_read_from_the_vector_columns |
| 3, block dim | no weight | tests/analyzers/test_operators.py::test_blocks_that_do_not_fill_the_last_wave_are_weighted_by_their_loss |
| 3, block dim | skipped silently | tests/analyzers/test_operators.py::test_without_core_counts_blocks_are_not_judged |
| 3, graph fusion | needs a dump | tests/analyzers/test_fusion.py::test_an_llm_with_separate_kernels_shows_its_sequences |
| 3, frequency | needs info.json | tests/analyzers/test_frequency.py::test_time_lost_is_busy_time_below_the_highest_frequency |
| 3, cube | assumes 2 bytes | tests/ops/test_flops.py::test_shapes_are_read_in_both_spellings |
| 3, cube | fp32 against the peak of fp16 | tests/analyzers/test_mac_utilisation.py::test_the_rate_by_counters_uses_the_factor_of_the_dtype |
| 3, FA | lengths below 100 | tests/analyzers/test_attention.py::test_sizes_follow_from_dimensions |
| 3, FA | - | tests/analyzers/test_attention.py::test_padded_attention_is_found_with_its_bound |
| 3, FA | mislabelled pipes | tests/analyzers/test_attention.py::test_the_busiest_pipe_bounds_when_it_is_not_the_cube |
| 3, sync stream | stalls of copies and .item() unseen | tests/analyzers/test_host_dispatch.py::test_a_call_that_drains_the_queue_owns_the_gap_behind_it |
| 3, sync stream | the same | tests/analyzers/test_host_dispatch.py::test_a_blocking_copy_to_the_host_synchronises |
| 3, SyncBatchNorm | count only | tests/analyzers/test_exposed.py::test_many_synchronised_batch_norms_take_their_calls_from_the_general_row |
| 3, SyncBatchNorm | - | tests/analyzers/test_exposed.py::test_twenty_synchronised_batch_norms_are_allowed |
| 3, dataloader | overlap with the device | tests/analyzers/test_host_dispatch.py::test_the_data_loader_counts_only_while_the_device_idles |
| 3, dataloader | the length of the step | tests/analyzers/test_host_dispatch.py::test_a_short_fetch_counts_in_a_short_step |
| 3, GC | - | tests/analyzers/test_host_dispatch.py::test_garbage_collection_is_found_from_one_millisecond |
| 3, memory operators | - | tests/analyzers/test_host_dispatch.py::test_driver_memory_calls_inside_the_step_are_found |
| 3, affinity API | threads | tests/ops/test_find_fusions.py::test_threads_do_not_mix |
| 3, affinity API | data flow | tests/analyzers/test_fusion.py::test_transposes_count_only_where_one_takes_what_the_other_wrote |
| 3, affinity API | shapes | tests/analyzers/test_fusion.py::test_tensors_of_another_size_are_no_gate |
| 3, affinity API | no cost | tests/analyzers/test_fusion.py::test_without_shapes_a_sequence_gains_all_but_its_longest_kernel |
| 3, affinity API | optimizers | tests/analyzers/test_optimizer.py::test_the_counterpart_of_the_optimizer_in_use_is_named |
| 3, fusible sequence | windows overlap | tests/analyzers/test_sequences.py::test_sequences_never_claim_a_kernel_twice |
| 3, fusible sequence | - | tests/analyzers/test_sequences.py::test_the_unit_of_a_loop_is_found_once_and_its_gaps_are_the_gain |
| 3, packet | count only | tests/analyzers/test_communication.py::test_small_packets_weigh_by_time_and_not_by_number |
| 3, packet | - | tests/analyzers/test_communication.py::test_small_messages_at_the_rate_of_the_link_are_no_finding |
| 3, retransmission | - | tests/analyzers/test_collectives.py::test_a_transfer_of_seconds_on_all_ranks_was_sent_again |
| 3, contention | fixed 18 GB/s | tests/analyzers/test_contention.py::test_four_fifths_of_the_rate_are_allowed |
| 3, contention | - | tests/analyzers/test_contention.py::test_transfers_that_a_product_slows_cost_the_difference |
| 3, byte alignment | no impact | tests/analyzers/test_communication_traffic.py::test_unaligned_transfers_lose_what_aligned_ones_are_faster |
| 3, missing: roofline | - | tests/analyzers/test_mac_utilisation.py::test_the_roofline_states_its_coverage_and_roofs_their_basis |
| 3, missing: memory rate | - | tests/analyzers/test_memory_counters.py::test_a_kernel_that_loads_all_the_time_at_a_low_rate_is_found |
| 3, missing: MoE | - | tests/analyzers/test_experts.py::test_the_fullest_rank_of_a_group_is_named |
| 3, missing: bubbles | - | tests/analyzers/test_ranks.py::test_the_slow_stage_and_the_ranks_that_wait_for_it_are_named |
| 3, missing: launches | - | tests/analyzers/test_host_dispatch.py::test_launch_statistics_clamp_and_count_what_the_clocks_get_wrong |
| 3, missing: waits of streams | - | tests/analyzers/test_critical_path.py::test_a_kernel_that_starts_when_another_stream_is_done_waited_for_it |
| 3, missing: preprocessing | - | tests/analyzers/test_aipp.py::test_stages_of_the_host_are_summed_per_step_and_bounded |
| 3, missing: inference | - | tests/analyzers/test_decode.py::test_idle_time_of_decode_steps_is_v01_and_not_h01 |
| 3, missing: memory | - | tests/analyzers/test_memory.py::test_the_gap_is_measured_against_device_memory_where_that_is_known |
| 3, missing: telemetry | - | tests/reports/test_real_profiles.py::test_unknown_is_null_and_parts_fit_into_their_step |
| 3, missing: saving | - | tests/test_gains.py::test_the_same_time_counts_once |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.analyzers._attention import attention_of
from ascend_perf.analyzers._rules import rule
from ascend_perf.analyzers.attention import attention
from ascend_perf.analyzers.communication import communication
from ascend_perf.analyzers.fusion import fusion
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.analyzers.operators import operators
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import analyze
from tests.faults import model
from tests.faults.evaluate import GRADES
from tests.faults.kinds import KINDS
from tests.faults.machine import Job, simulate
from tests.faults.writer import write_job
from tests.rival._said import codes, findings, number, rows, said, verdicts

Make = Callable[..., Trace]
Row = dict[str, object]
MS = 1_000_000
US = 1_000
NPU = Meta(rank=0, device=Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_500_000_000))


def step(length: int) -> list[Row]:
    return [{"step_id": 1, "start_ns": 0, "dur_ns": length}]


def kernel(start: int, dur: int, op_type: str = "Add", core: str = "AIV", **more: object) -> Row:
    return {
        "start_ns": start, "dur_ns": dur, "name": f"aclnn{op_type}", "op_type": op_type, "core": core, "stream": 2,
    } | more  # fmt: skip


def product(start: int, dur: int, mac: float, mte2: float, **more: object) -> Row:
    return kernel(
        start, dur, "MatMulV3", "AIC", input_shapes="4096,4096;4096,4096", output_shapes="4096,4096",
        input_dtypes="DT_BF16;DT_BF16", output_dtypes="DT_BF16", aic_mac_ratio=mac, aic_mte2_ratio=mte2,
        aic_mte1_ratio=0.3, aic_fixpipe_ratio=0.05, aic_scalar_ratio=0.05,
    ) | more  # fmt: skip


def written(job: Job, folder: Path) -> Path:
    write_job(job, simulate(job), folder)
    return folder


def planted(name: str, *, seed: int = 1, strength_ns: int = 3 * MS) -> Job:
    kind = next(kind for kind in KINDS if kind.name == name)
    job = kind.make(seed)
    for programs in job.programs.values():
        del programs[2:]
    kind.plant(job, strength_ns, "medium")
    return job


# ---- slow rank, choice of rank ---------------------------------------------------------------------------------------


def test_one_slow_rank_is_one_finding_and_names_the_rank(tmp_path: Path) -> None:
    """3, slow rank: computing and communication spread by the same fault, which shows twice and names nobody."""
    analysis = analyze(written(planted("late-compute", strength_ns=6 * MS), tmp_path))

    (late,) = findings(analysis, "N-05")
    assert (late.ranks, late.affected_ranks) == ((2,), (0, 1, 3))
    # What the others wait is not told a second time, as their slow communication.
    assert not [f for f in analysis.findings if f.code in ("N-01", "N-10") and f.severity in GRADES]


def test_steps_that_differ_alike_on_all_ranks_are_no_slow_rank(make_trace: Make) -> None:
    """3, slow rank: the spread there is taken over pairs of step and rank, so a longer step looks like a slow rank."""

    def rank(number: int) -> Trace:
        starts, lengths = (0, 100 * MS), (100 * MS, 150 * MS)  # the second step takes half as long again on all ranks
        return make_trace(
            meta=Meta(rank=number, world_size=4, device=Device(kind="npu")),
            steps=[
                {"step_id": n, "start_ns": s, "dur_ns": d}
                for n, (s, d) in enumerate(zip(starts, lengths, strict=True))
            ],
            kernels=[
                {"start_ns": s, "dur_ns": d - 10 * MS, "name": "k", "op_type": "Add", "step_id": n}
                for n, (s, d) in enumerate(zip(starts, lengths, strict=True))
            ],
            comm_ops=[
                {"start_ns": s + d - 10 * MS, "dur_ns": MS, "name": f"c{n}", "op": "allReduce", "group": "g",
                 "index_in_group": n, "step_id": n}
                for n, (s, d) in enumerate(zip(starts, lengths, strict=True))
            ],
        )  # fmt: skip

    found, _ = said(ranks.run_on_run(Run(traces=tuple(rank(n) for n in range(4)))), "N-05")
    assert found == []


def test_every_rank_is_looked_at(tmp_path: Path) -> None:
    """3, choice of rank: only the extreme rank is analyzed there; a fault of another one stays unseen."""
    job = model.data_parallel(1, ranks=2, steps=2, layers=2)
    kind = next(kind for kind in KINDS if kind.name == "aicpu-index")
    kind.plant(job, 3 * MS, "medium")
    clean = model.data_parallel(1, ranks=2, steps=2, layers=2)
    job.programs[0] = clean.programs[0]  # the fault is on rank 1 alone
    analysis = analyze(written(job, tmp_path))

    ran = {(o.analyzer, o.rank) for o in analysis.outcomes if o.scope == "rank"}
    assert {name for name, rank in ran if rank == 0} == {name for name, rank in ran if rank == 1}
    (found,) = findings(analysis, "C-07")
    assert found.ranks == (1,)


# ---- environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {"HCCL_RDMA_TC": "132"},
        {"HCCL_RDMA_SL": "4"},
        {"ACLNN_CACHE_LIMIT": "100"},
        {"HOST_CACHE_CAPACITY": "0"},
        {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:256"},
        {"ASCEND_LAUNCH_BLOCKING": "0"},
        {"ASCEND_GLOBAL_LOG_LEVEL": "3"},
        {"HCCL_ALGO": ""},
        {},
    ],
    ids=str,
)
def test_variables_without_evidence_of_harm_are_no_finding(tmp_path: Path, environment: dict[str, str]) -> None:
    """3, environment: caches that are not set are flagged on every job there, and HCCL variables for being set."""
    job = model.data_parallel(1, ranks=2, steps=2, layers=2)
    job.environment.update(environment)
    analysis = analyze(written(job, tmp_path))

    assert not [f for f in analysis.findings if f.severity in GRADES]
    assert not codes(analysis) & {"H-04", "H-09", "N-08", "K-01"}
    # What is set is in the report all the same (the incumbent misspells one name and never shows it).
    shown = {name: value for name, value in environment.items() if value}
    assert shown.items() <= dict(analysis.run.traces[0].meta.environment).items()


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "H-04"),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "1"}, "H-09"),
        ({"HCCL_ALGO": "level0:ring"}, "N-08"),
    ],
)
def test_variables_that_do_harm_are_found(tmp_path: Path, environment: dict[str, str], code: str) -> None:
    """3, environment: the sound half. A forced algorithm is a remark of low severity without a claim."""
    job = model.data_parallel(1, ranks=2, steps=2, layers=2)
    job.environment.update(environment)
    analysis = analyze(written(job, tmp_path))

    (found,) = findings(analysis, code)
    assert next(iter(environment.values())) in found.title.en + "".join(str(e.value) for e in found.evidence)
    if code == "N-08":
        assert (found.severity.value, found.share_ratio) == ("low", None)


def test_remedies_name_the_variables_that_the_incumbent_lacks() -> None:
    """3, environment: TASK_QUEUE_ENABLE, CPU_AFFINITY_CONF, HCCL_BUFFSIZE, HCCL_OP_EXPANSION_MODE are missing."""
    told = {
        code: "\n".join(remedy.code + remedy.text.en for remedy in rule(code).remedies)
        for code in ("H-01", "H-02", "H-08", "K-06", "N-12", "K-01")
    }

    assert "TASK_QUEUE_ENABLE=2" in told["H-01"] and "CPU_AFFINITY_CONF" in told["H-01"]
    assert "CPU_AFFINITY_CONF" in told["H-08"]
    assert "HCCL_BUFFSIZE" in told["K-06"]
    assert "HCCL_OP_EXPANSION_MODE" in told["N-12"]
    # Caches and the allocator are remedies of rows that have evidence.
    assert "expandable_segments:True" in told["K-01"]


# ---- dynamic shape, AI CPU -------------------------------------------------------------------------------------------


def test_the_label_of_kernels_changes_no_other_check(tmp_path: Path) -> None:
    """3, dynamic shape: the label disables the checks of pipes and of blocks there."""
    said_of: dict[str, dict[tuple[str, str], float | None]] = {}
    for state in ("static", "dynamic"):
        job = planted("tail-blocks")
        job.map_ops(
            lambda op, state=state: replace(op, kernels=tuple(replace(k, state=state) for k in op.kernels))
        )
        analysis = analyze(written(job, tmp_path / state))
        said_of[state] = {(f.code, f.subject): f.share_ratio for f in analysis.findings}
        assert verdicts(analysis, "C-03") <= {"clean", "found"}

    assert said_of["static"] == said_of["dynamic"]
    assert "C-04" in {code for code, _ in said_of["dynamic"]}


@pytest.mark.parametrize(
    ("on_cpu_us", "step_ms", "verdict"),
    [
        (15, 10, "clean"),  # below 20 us itself, whatever else runs long
        (19, 10, "clean"),
        (500, 10, "found"),
        (21, 1000, "clean"),  # long enough, but 0.002 % of the step
    ],
)
def test_ai_cpu_kernels_are_judged_by_their_own_time(
    make_trace: Make, on_cpu_us: int, step_ms: int, verdict: str
) -> None:
    """3, AICPU: there the longest kernel of any type must reach 20 us, which a product always does."""
    trace = make_trace(
        meta=NPU, steps=step(step_ms * MS),
        kernels=[kernel(0, 5 * MS, "MatMulV3", "AIC"), kernel(6 * MS, on_cpu_us * US, "Index", "AICPU")],
    )  # fmt: skip

    found, judged = said(operators.run_on_trace(trace), "C-07")
    assert judged == {verdict}
    if found:
        assert found[0].share_ratio == pytest.approx(on_cpu_us * US / (step_ms * MS))


@pytest.mark.parametrize("cann", ["7.0.0", "8.0.RC1", "8.0.RC2", "8.0.RC3", "8.0.0", "8.3.RC1", "9.1.0", None])
def test_ai_cpu_kernels_are_found_on_every_version(make_trace: Make, cann: str | None) -> None:
    """3, AICPU: the rules about data types are empty for CANN 8.0.RC2 and 8.0.0, the default there."""
    versions = {} if cann is None else {"cann": cann}
    trace = make_trace(
        meta=replace(NPU, versions=versions), steps=step(10 * MS),
        kernels=[kernel(0, MS, "Mul", "AICPU", input_dtypes="DOUBLE;DOUBLE", input_shapes="64;64")],
    )  # fmt: skip

    (found,), judged = said(operators.run_on_trace(trace), "C-07")
    assert judged == {"found"}
    assert found.share_ratio == 0.1
    # The data type is in the evidence, and what to do about it in the remedies.
    assert any("DOUBLE" in str(e.value) for e in found.evidence)
    assert "float64" in found.cause.en
    assert found.remedies[0].text.en.startswith("Cast the inputs to")


# ---- pipes -----------------------------------------------------------------------------------------------------------


def test_the_first_kernel_of_the_file_does_not_decide_for_all(make_trace: Make) -> None:
    """3, no bound: the whole check depends on the columns of the first kernel there."""
    without = kernel(0, 100 * US, "Index", "AICPU")
    idle = product(200 * US, 200 * US, 0.3, 0.4)
    for order in ([without, idle], [idle, without]):
        (found,), _ = said(
            mac_utilisation.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=order)), "C-03"
        )
        assert found.share_ratio == pytest.approx(0.2 * (1 - 0.4))


@pytest.mark.parametrize(
    ("pipes", "expected"),
    [
        # Vector, load and store overlap: their sum of 0.95 bounds nothing, each is idle for 60 % of the time or more.
        ({"aiv_vec_ratio": 0.35, "aiv_mte2_ratio": 0.35, "aiv_mte3_ratio": 0.25}, ("latency-bound", 0.65)),
        ({"aiv_vec_ratio": 0.60, "aiv_mte2_ratio": 0.20, "aiv_mte3_ratio": 0.15}, ("mixed", 0.40)),
        ({"aiv_vec_ratio": 0.85, "aiv_mte2_ratio": 0.03, "aiv_mte3_ratio": 0.01}, ("vector-bound", None)),
        ({"aiv_vec_ratio": 0.10, "aiv_mte2_ratio": 0.95, "aiv_mte3_ratio": 0.30}, ("MTE-bound", None)),
    ],
)
def test_the_sum_of_pipes_that_overlap_is_no_bound(
    make_trace: Make, pipes: dict[str, float], expected: tuple[str, float | None]
) -> None:
    """3, vector: bound there from a sum of 0.90, and a "space" that is a difference of ratios."""
    trace = make_trace(
        meta=NPU, steps=step(MS),
        kernels=[
            kernel(0, 500 * US, "Add", aiv_scalar_ratio=0.02, aic_mac_ratio=0.0, aic_mte2_ratio=0.0) | dict(pipes)
        ],
    )  # fmt: skip
    outcome = mac_utilisation.run_on_trace(trace)

    (row,) = rows([outcome], "mac")
    found, judged = said(outcome, "C-03")
    assert row["bound"] == expected[0]
    assert judged == ({"clean"} if expected[1] is None else {"found"})
    assert [f.share_ratio for f in found] == ([] if expected[1] is None else [pytest.approx(0.5 * expected[1])])


@pytest.mark.parametrize(
    ("mac", "mte2", "bound", "room"),
    [
        (0.94, 0.30, "MAC-bound", None),  # 65 % there
        (0.30, 0.30, "latency-bound", 0.70),  # 65 % there
        (0.79, 0.05, "mixed", 0.21),  # 90 % there
        (0.82, 0.40, "MAC-bound", None),  # 15 % there: between the limits of MAC and of MTE2
        (0.60, 0.96, "MTE-bound", 0.40),
    ],
)
def test_pairs_of_mac_and_mte2(make_trace: Make, mac: float, mte2: float, bound: str, room: float | None) -> None:
    """2.1.2, row 5 and 3, cube: the "space" there is the gap of the least used unit and says nothing."""
    outcome = mac_utilisation.run_on_trace(
        make_trace(meta=NPU, steps=step(MS), kernels=[product(0, 400 * US, mac, mte2)])
    )

    (row,) = rows([outcome], "mac")
    assert row["bound"] == bound
    claimed = [f.share_ratio for f in outcome.findings if f.code in ("C-02", "C-03")]
    assert claimed == ([] if room is None else [pytest.approx(0.4 * room)])


@pytest.mark.parametrize(
    ("op_type", "core"),
    [("MatMulV3", "MIX_AIC"), ("GroupedMatmul", "MIX_AIC"), ("Conv2D", "AIC"), ("BatchMatMulV2", "AIC")],
)
def test_products_on_mixed_cores_convolutions_and_grouped_products_count(
    make_trace: Make, op_type: str, core: str
) -> None:
    """3, cube: only matmul kernels of task type AI_CORE are looked at there."""
    slow = product(0, 400 * US, 0.5, 0.97) | {"op_type": op_type, "core": core, "name": op_type}
    (found,), _ = said(mac_utilisation.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=[slow])), "C-02")

    assert found.share_ratio == pytest.approx(0.4 * 0.5)


@pytest.mark.parametrize(("dtype", "width"), [("FLOAT", 128), ("FLOAT", 384), ("DT_BF16", 256), ("DT_BF16", 4097)])
def test_an_inner_axis_alone_is_no_finding(make_trace: Make, dtype: str, width: int) -> None:
    """3, cube: 256 elements for fp32 and bf16 alike; a product that keeps the cube busy is well whatever its axis."""
    fast = product(0, 400 * US, 0.9, 0.5) | {
        "input_shapes": f"65536,{width};{width},65536", "input_dtypes": f"{dtype};{dtype}", "hf32_eligible": "YES",
    }  # fmt: skip
    outcome = mac_utilisation.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=[fast]))

    assert outcome.findings == ()
    # Where loading limits a product the row speaks of bytes, so that each data type has its own multiple.
    assert "512 bytes (256 elements of 16-bit types, 128 of fp32)" in rule("C-02").cause.en


@pytest.mark.parametrize(
    ("op_type", "shapes", "outputs"),
    [
        ("FlashAttentionScore", "1,16,96,80;1,16,96,80;1,16,96,80", "1,16,96,8"),  # a length below 100
        ("PromptFlashAttention", "1,16,96,80;1,16,96,80;1,16,96,80", "1,16,96,8"),
        ("FusedInferAttentionScore", "1,16,96,80;1,16,96,80;1,16,96,80", "1,16,96,8"),
        ("IncreFlashAttention", "1,16,1,80;1,16,96,80;1,16,96,80", "1,16,1,8"),
    ],
)
def test_short_sequences_and_attention_of_inference_are_judged(
    make_trace: Make, op_type: str, shapes: str, outputs: str
) -> None:
    """3, FA: two digits are taken for two dimensions there, and inference kernels are not covered."""
    rows_ = [kernel(0, 500 * US, op_type, "MIX_AIC", input_shapes=shapes, output_shapes=outputs)]
    trace = make_trace(meta=NPU, steps=step(MS), kernels=rows_)

    # Heads of 80 fill 80 of 128; lengths of 96 fill 96 of 128, but one query of a decode step is no padding.
    useful = 80 / 128 if op_type.startswith("Incre") else 80 / 128 * (96 / 128) ** 2
    assert attention_of(trace[KERNELS]).padding[0] == pytest.approx(1 - useful)
    (found,), _ = said(attention.run_on_trace(trace), "C-05")
    assert found.share_ratio == pytest.approx(0.5 * (1 - useful))


def test_heads_of_64_and_lengths_of_128_are_aligned(make_trace: Make) -> None:
    """3, FA: heads must divide by 128 there, though blocks of 64 are filled by heads of 64."""
    row = kernel(
        0, 500 * US, "FlashAttentionScore", "MIX_AIC", input_shapes="1,16,128,64;1,16,128,64;1,16,128,64",
        output_shapes="1,16,128,8", aic_mac_ratio=0.8, aic_mte2_ratio=0.3, aiv_vec_ratio=0.4, aic_fixpipe_ratio=0.2,
    )  # fmt: skip
    _, judged = said(attention.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=[row])), "C-05")

    assert judged == {"clean"}


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_blocks_of_kernels_without_weight_are_no_finding(make_trace: Make) -> None:
    """3, block dim: no filter by duration there."""
    short = [kernel(n * 10 * US, US, "MatMulV3", "AIC", block_num=13) for n in range(3)]
    whole = kernel(200 * US, 700 * US, "MatMulV3", "AIC", block_num=20, input_shapes="1")
    _, judged = said(operators.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=[*short, whole])), "C-04")
    assert judged == {"clean"}

    long = kernel(0, 500 * US, "MatMulV3", "AIC", block_num=13)
    (found,), _ = said(operators.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=[long])), "C-04")
    assert found.share_ratio == pytest.approx(0.5 * (1 - 13 / 20))


def test_blocks_are_judged_without_the_raw_folder(traces: Path) -> None:
    """3, block dim and frequency: info.json of the raw folder is needed there, which exports do not hold."""
    for name in ("text/level1", "db/level1"):
        analysis = analyze(traces / "ascend-pytorch" / name / "rank0_ascend_pt")
        assert verdicts(analysis, "C-04") == {"found"}
        assert "24 cores" in findings(analysis, "C-04")[0].title.en
        assert verdicts(analysis, "P-01") == {"clean"}


# ---- host ------------------------------------------------------------------------------------------------------------


def call(api: str, start: int, dur: int, thread: int = 1) -> Row:
    return {"api": api, "start_ns": start, "dur_ns": dur, "thread": thread}


@pytest.mark.parametrize("count", [1, 19, 20, 57])
def test_compilations_weigh_by_their_time_whatever_their_number(make_trace: Make, count: int) -> None:
    """3, dispatch: 20 calls are a finding there and 19 are none, whatever they cost."""
    length = 19_000_020 // count
    calls = [call("aclopCompileAndExecute", n * length, length) for n in range(count)]
    trace = make_trace(
        meta=NPU, steps=step(100 * MS), kernels=[kernel(0, 100 * MS)], runtime_calls=calls
    )

    (found,), judged = said(host_dispatch.run_on_trace(trace), "H-06")
    assert judged == {"found"}
    assert found.share_ratio == pytest.approx(0.19, abs=1e-4)


def test_many_cheap_compilations_are_no_finding(make_trace: Make) -> None:
    """3, dispatch: 40 calls of 10 us in a step of 100 ms."""
    calls = [call("aclopCompileAndExecute", n * MS, 10 * US) for n in range(40)]
    trace = make_trace(meta=NPU, steps=step(100 * MS), kernels=[kernel(0, 100 * MS)], runtime_calls=calls)

    assert said(host_dispatch.run_on_trace(trace), "H-06") == ([], {"clean"})


@pytest.mark.parametrize(
    ("spent", "length", "verdict"),
    [(10 * MS, 10_000 * MS, "clean"), (MS, 10 * MS, "found"), (MS // 10, 10 * MS, "clean")],
)
def test_memory_calls_weigh_by_the_step(make_trace: Make, spent: int, length: int, verdict: str) -> None:
    """3, memory operators: 10 ms are a finding there in a step of any length, 1 ms of a step of 10 ms is none."""
    trace = make_trace(
        meta=NPU, steps=step(length), kernels=[kernel(0, length)], runtime_calls=[call("aclrtFreePhysical", 0, spent)]
    )

    found, judged = said(host_dispatch.run_on_trace(trace), "K-04")
    assert judged == {verdict}
    assert [f.share_ratio for f in found] == ([spent / length] if verdict == "found" else [])


def test_a_long_fetch_that_the_device_does_not_wait_for_is_no_finding(make_trace: Make) -> None:
    """3, dataloader: one event of 10 ms is a finding there, though batches are fetched ahead."""
    loader = [{"kind": "dataloader", "name": "next", "start_ns": 0, "dur_ns": 15 * MS, "thread": 1}]

    def judged(busy_until: int) -> tuple[set[str], list[float | None]]:
        trace = make_trace(
            meta=NPU, steps=step(100 * MS), kernels=[kernel(100 * MS - busy_until, busy_until)], host_events=loader
        )
        found, verdict = said(host_dispatch.run_on_trace(trace), "D-01")
        return verdict, [f.share_ratio for f in found]

    assert judged(100 * MS) == ({"clean"}, [])  # the device works meanwhile
    assert judged(88 * MS) == ({"found"}, [0.12])  # the device begins at 12 ms: 12 of the 15 ms are waiting


def test_a_gap_without_calls_is_not_conjectured_to_be_garbage_collection(make_trace: Make) -> None:
    """3, conjectured GC: 300 ms in which the host calls nothing may be a checkpoint, evaluation or waiting for data."""
    trace = make_trace(
        meta=NPU, steps=step(400 * MS), kernels=[kernel(0, 50 * MS), kernel(350 * MS, 50 * MS)],
        runtime_calls=[call("aclnnAdd", 0, MS), call("aclnnAdd", 349 * MS, MS)],
    )  # fmt: skip
    outcome = host_dispatch.run_on_trace(trace)

    assert said(outcome, "H-07") == ([], {"not_judged"})
    (free,), _ = said(outcome, "H-01")
    assert free.share_ratio == pytest.approx(0.75)
    assert "no host event" in free.title.en


def test_hidden_batch_norm_exchanges_are_no_finding(make_trace: Make) -> None:
    """3, SyncBatchNorm: 20 events are a finding there though computing hides them all."""
    meta = Meta(rank=0, world_size=2, device=Device(kind="npu"), groups=(Group(name="g", ranks=(0, 1)),))
    trace = make_trace(
        meta=meta, steps=step(100 * MS), kernels=[kernel(0, 100 * MS)],
        comm_ops=[
            {"start_ns": n * MS, "dur_ns": 20 * US, "name": f"c{n}", "op": "allGather", "group": "g"} for n in range(60)
        ],
        host_ops=[
            {"start_ns": n * MS, "dur_ns": 30 * US, "name": "SyncBatchNorm", "thread": 1} for n in range(60)
        ],
    )  # fmt: skip

    assert not [f for f in communication.run_on_trace(trace).findings if f.code in ("N-11", "N-01")]


# ---- fused operators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cann", ["8.0.RC1", "8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1", "8.3.RC1", "8.5.0", "9.1.0"])
def test_fused_operators_are_known_for_every_version(make_trace: Make, cann: str) -> None:
    """3, affinity API: no rules for CANN 8.0.RC1 and RC2, and none after 8.0.0 and torch 2.1.0."""
    chain = [("Pows", 10), ("ReduceMean", 5), ("Adds", 5), ("Rsqrt", 5), ("Mul", 10), ("Mul", 15)]
    layers: list[Row] = []
    for layer in range(4):
        at = layer * 200 * US
        for op_type, dur in chain:
            layers.append(kernel(at, dur * US, op_type))
            at += dur * US
    meta = replace(NPU, versions={"cann": cann, "torch_npu": "2.7.1" if cann[0] == "9" else "2.1.0.post6"})
    outcome = fusion.run_on_trace(make_trace(meta=meta, steps=step(MS), kernels=layers))

    (found,), judged = said(outcome, "C-13")
    assert judged == {"found"}
    assert any("npu_rms_norm" in remedy.code + remedy.text.en for remedy in found.remedies)
    assert found.share_ratio is not None and 0 < found.share_ratio <= 0.2


def test_a_chain_of_elementwise_kernels_is_no_matrix_product(make_trace: Make) -> None:
    """3, affinity API: mul-mul-add over a flat list of names proposes addmm there."""
    layers: list[Row] = []
    for n in range(8):
        layers += [kernel(n * 100 * US + at * 20 * US, 20 * US, kind) for at, kind in enumerate(("Mul", "Mul", "Add"))]
    ops = [
        {"start_ns": n * 100, "dur_ns": 50, "name": name, "thread": 1, "input_shapes": "[[64, 64], [64, 64]]"}
        for n, name in enumerate(["aten::mul", "aten::mul", "aten::add"] * 8)
    ]
    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=layers, host_ops=ops))

    told = str([[column.title.en for column in table.columns] + list(map(str, table.data)) for table in outcome.tables])
    assert "addmm" not in told.lower() and "matmul" not in told.lower()
    assert not [f for f in outcome.findings if "addmm" in str(f.remedies).lower()]


def test_softmax_is_fused_with_what_comes_before_it(make_trace: Make) -> None:
    """3, affinity API: scaled masked softmax is looked for with scale and mask behind the softmax there."""

    def found(order: tuple[str, ...]) -> set[str]:
        layers: list[Row] = []
        for n in range(4):
            layers += [kernel(n * 200 * US + at * 20 * US, 20 * US, kind) for at, kind in enumerate((*order, "Gelu"))]
        outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=step(MS), kernels=layers))
        return {str(row["fusion"]) for row in _table(outcome, "fusion-candidates")}

    before, behind = found(("Muls", "MaskedFill", "SoftmaxV2")), found(("SoftmaxV2", "Muls", "MaskedFill"))
    assert "scaled-masked-softmax" in before
    assert "scaled-masked-softmax" not in behind


def _table(outcome: Outcome, name: str) -> list[Row]:
    return rows([outcome], name) if any(table.name == name for table in outcome.tables) else []


# ---- communication ---------------------------------------------------------------------------------------------------


def ring(make_trace: Make, tasks: list[Row], exposed: int = 40 * MS) -> Trace:
    meta = Meta(rank=0, world_size=2, device=Device(kind="npu"), groups=(Group(name="g", ranks=(0, 1)),))
    return make_trace(
        meta=meta, steps=step(100 * MS), kernels=[kernel(0, 50 * MS)],
        comm_ops=[
            {"start_ns": 50 * MS, "dur_ns": exposed, "name": "c", "op": "allReduce", "group": "g", "group_size": 2}
        ],
        comm_tasks=[
            {"kind": "Memcpy", "comm_op": 0, "plane": 0, "src": 0, "dst": 1, "transport": "SDMA", "link": "HCCS"} | task
            for task in tasks
        ],
    )  # fmt: skip


@pytest.mark.parametrize(("dur", "verdict"), [(200 * US, "clean"), (20 * MS, "found")])
def test_alignment_weighs_by_the_time_of_the_transfers(make_trace: Make, dur: int, verdict: str) -> None:
    """3, byte alignment: the fact is right, the impact is not weighed there."""
    trace = ring(make_trace, [{"start_ns": 50 * MS, "dur_ns": dur, "size_bytes": 1_000_001}])

    found, judged = said(communication.run_on_trace(trace), "N-03")
    assert judged == {verdict}
    assert [f.share_ratio for f in found] == ([dur / (100 * MS)] if verdict == "found" else [])


@pytest.mark.parametrize("size", [512, 4096, 1 << 20])
def test_aligned_transfers_are_clean(make_trace: Make, size: int) -> None:
    """3, byte alignment: multiples of 512 bytes."""
    trace = ring(make_trace, [{"start_ns": 50 * MS, "dur_ns": 20 * MS, "size_bytes": size}])

    assert said(communication.run_on_trace(trace), "N-03") == ([], {"clean"})


def test_what_each_finding_claims_is_at_most_the_step(traces: Path) -> None:
    """3, missing: any expected saving; 8, 2: a union of intervals, never above the step, with evidence and place."""
    for name in ("text/level1", "db/level1", "qwen3-0.6b-pp2-dp2-level2"):
        for found in analyze(traces / "ascend-pytorch" / name).findings:
            assert found.evidence and found.remedies
            assert found.share_ratio is None or 0 < found.share_ratio < 1
            if found.share_ratio is not None:
                assert found.formula, found.code
                for claim in found.claims:
                    assert number(claim.gain_ns) <= claim.whole_ns
