"""Decode steps: how they are told, and rows V-01, V-02, V-05 and V-08 against hand arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.analyzers._decode import decode_of, model_calls, range_kind
from ascend_perf.analyzers.decode import decode
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.analyzers.sequences import sequences
from ascend_perf.analyzers.task_queue import task_queue
from ascend_perf.model.finding import Outcome
from ascend_perf.model.tables import COPIES, KERNELS
from ascend_perf.model.trace import Device, Meta, Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
Rows = list[dict[str, object]]
NPU = Meta(rank=0, device=Device(kind="npu"))
B3 = Meta(rank=0, device=Device(kind="npu", name="Ascend910B3"))
ATTENTION = {"op_type": "PagedAttention", "name": "PagedAttention", "core": "MIX_AIC"}


def kernel(start: int, dur: int, op_type: str = "Add", **more: object) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": op_type, "op_type": op_type, "stream": 1, "core": "AIC"} | more


def steps_of(count: int, length: int, *, distance: int | None = None) -> Rows:
    return [{"step_id": i, "start_ns": i * (distance or length), "dur_ns": length} for i in range(count)]


def host_bound(count: int = 3, *, busy: int = 4_000, gap: int = 6_000, kernels: int = 10) -> tuple[Rows, Rows]:
    """Steps of kernels that each wait for their launch, which ends 1 us before they start."""
    rows: Rows = []
    length = kernels * busy + (kernels - 1) * gap
    for step in range(count):
        for at in range(kernels):
            start = step * length + at * (busy + gap)
            launch = {"launch_start_ns": start - 2_000, "launch_end_ns": start - 1_000}
            rows.append(kernel(start, busy, f"K{at}") | (ATTENTION if at == 3 else {}) | launch)
    return rows, steps_of(count, length)


def judged(outcome: Outcome) -> dict[str, str]:
    return {item.code: item.verdict for item in outcome.judged}


# ---- which steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", "decode"),
        ("execute_15360_context_15(sq15360)_generation_0(sq0)", "prefill"),
        ("execute_64_context_2(sq32)_generation_32(sq32)", "mixed"),
        ("execute_0_context_0(x)_generation_0(x)", None),
        ("step[DECODE bs=32]", "decode"),
        ("step[EXTEND bs=15 toks=15360]", "prefill"),
        ("step[MIXED bs=4]", "mixed"),
        ("decode", "decode"),
        ("prefill_3", "prefill"),
        ("model.prefill and decode", "mixed"),
        ("aten::decoder_layer", None),
        ("ProfilerStep#3", None),
    ],
)
def test_ranges_of_serving_frameworks(name: str, kind: str | None) -> None:
    assert range_kind(name) == kind


@pytest.mark.parametrize(
    ("op_type", "query", "rows", "expected"),
    [
        ("PagedAttention", "8,32,128", 8, True),
        ("IncreFlashAttention", "8,1,4096", 8, True),
        ("PromptFlashAttention", "1,512,4096", 512, False),
        ("FlashAttentionScore", "1,512,4096", 512, False),
        ("FusedInferAttentionScore", "8,1,4096", 8, True),
        ("FusedInferAttentionScore", "8,32,1,128", 8, True),
        ("FusedInferAttentionScore", "8,32,700,128", 5600, False),
        # T,N,D tells nothing: the products decide.
        ("FusedInferAttentionScore", "16,32,128", 16, True),
        ("FusedInferAttentionScore", "4096,32,128", 4096, False),
        ("SoftmaxV2", "8,32,128", 8, False),
    ],
)
def test_attention_tells_decode_from_prefill(
    make_trace: Make, op_type: str, query: str, rows: int, expected: bool
) -> None:
    kernels = [
        kernel(0, 1000, "MatMulV2", input_shapes=f"{rows},4096;4096,4096", input_dtypes="DT_BF16;DT_BF16"),
        kernel(1000, 1000, op_type, input_shapes=query, core="MIX_AIC"),
    ]
    found = decode_of(make_trace(meta=NPU, steps=steps_of(1, 2000), kernels=kernels))
    assert (found is not None) == expected


@pytest.mark.parametrize("op_type", ["FlashAttentionScoreGrad", "ApplyAdamWV2", "LayerNormGrad"])
def test_training_has_no_decode_steps(make_trace: Make, op_type: str) -> None:
    rows, steps = host_bound()
    trace = make_trace(meta=NPU, steps=steps, kernels=[*rows, kernel(5, 5, op_type)])
    assert decode_of(trace) is None
    assert decode.run_on_trace(trace).status == "no_data"


def test_ranges_cut_a_capture_without_steps(make_trace: Make) -> None:
    kernels = [
        kernel(1_000, 500, launch_start_ns=10, launch_end_ns=20),
        kernel(2_000, 700, launch_start_ns=30, launch_end_ns=40),
        kernel(9_000, 100, launch_start_ns=110, launch_end_ns=120),
    ]
    events = [
        {"start_ns": 0, "dur_ns": 50, "name": "step[DECODE bs=4]", "kind": "user"},
        {"start_ns": 100, "dur_ns": 50, "name": "step[EXTEND bs=4]", "kind": "user"},
        {"start_ns": 12, "dur_ns": 5, "name": "decode", "kind": "user"},
    ]
    found = decode_of(make_trace(meta=NPU, kernels=kernels, host_events=events))
    assert found is not None
    assert (found.starts.tolist(), found.ends.tolist(), found.prefills) == ([1_000], [2_700], 1)


# ---- V-01 ------------------------------------------------------------------------------------------------------------


def test_idle_time_of_decode_steps_is_v01_and_not_h01(make_trace: Make) -> None:
    rows, steps = host_bound()
    trace = make_trace(meta=NPU, steps=steps, kernels=rows)

    outcome = decode.run_on_trace(trace)

    (found,) = outcome.findings
    # Nine gaps of 6 us in a step of 94 us.
    assert found.code == "V-01"
    assert found.share_ratio == pytest.approx(54 / 94)
    assert found.evidence[0].value == pytest.approx(40 / 94)
    assert "no captured graph" in found.title.en
    for other in (host_dispatch, sequences):
        assert not other.run_on_trace(trace).findings
    judgement = next(item for item in host_dispatch.run_on_trace(trace).judged if item.code == "H-01")
    assert judgement.reason is not None and "V-01" in judgement.reason.en


def test_steps_that_are_busy_enough_are_clean_and_h01_keeps_their_idle_time(make_trace: Make) -> None:
    rows, steps = host_bound(busy=16_000, gap=4_000)
    trace = make_trace(meta=NPU, steps=steps, kernels=rows)

    assert judged(decode.run_on_trace(trace))["V-01"] == "clean"
    shares = [f.share_ratio or 0 for a in (host_dispatch, sequences) for f in a.run_on_trace(trace).findings]
    assert sum(shares) == pytest.approx(36 / 196)


def test_gaps_inside_a_replayed_graph_are_not_the_hosts(make_trace: Make) -> None:
    rows, steps = host_bound()
    early = [row | {"launch_start_ns": -500, "launch_end_ns": -400, "model_id": 7} for row in rows]

    outcome = decode.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=early))

    assert not outcome.findings
    reason = next(item.reason for item in outcome.judged if item.code == "V-01")
    assert reason is not None and "a captured graph is replayed" in reason.en


def test_kernels_of_a_graph_need_no_launches(make_trace: Make) -> None:
    rows, steps = host_bound()
    replayed = [{k: v for k, v in row.items() if not k.startswith("launch")} | {"model_id": 7} for row in rows]
    # Half of each step is in one graph, half in another: what lies between the two is the host's.
    parts = [row | {"model_id": 7 if at % 10 < 5 else 8} for at, row in enumerate(replayed)]

    for kernels, waits in ((replayed, "waits 0 % for"), (parts, "waits 6.4 % for")):
        outcome = decode.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=kernels))
        assert not outcome.findings
        reason = next(item.reason for item in outcome.judged if item.code == "V-01")
        assert reason is not None and waits in reason.en


def test_a_capture_without_steps_is_cut_where_the_service_waits(make_trace: Make) -> None:
    rows, _ = host_bound(1)
    later = [row | {name: int(str(row[name])) + 5_000_000 for name in row if name.endswith("_ns") and name != "dur_ns"}
             for row in rows]  # fmt: skip
    trace = make_trace(meta=NPU, kernels=[*rows, *later])

    found = decode_of(trace)

    assert found is not None
    assert found.starts.tolist() == [0, 5_000_000]
    assert found.ends.tolist() == [94_000, 5_094_000]
    (finding,) = decode.run_on_trace(trace).findings
    assert finding.share_ratio == pytest.approx(54 / 94)


def test_time_that_other_causes_explain_is_not_dispatch(make_trace: Make) -> None:
    rows, steps = host_bound()
    # The collector runs in every gap: all idle time is H-07's.
    collected = [{"start_ns": 0, "dur_ns": 300_000, "name": "gc", "kind": "gc"}]
    outcome = decode.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=rows, host_events=collected))
    reason = next(item.reason for item in outcome.judged if item.code == "V-01")
    # What follows a launch (1 us before each kernel) is the device's wait for it.
    assert reason is not None and "waits 9.6 % for launches" in reason.en


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 30_000), st.integers(1, 20_000), st.sampled_from("ABC")), min_size=8, max_size=60
    ),
    st.integers(1, 4),
)  # fmt: skip
def test_no_idle_time_is_claimed_twice(parts: list[tuple[int, int, str]], count: int) -> None:
    rows: Rows = []
    at = 0
    for number, (gap, dur, kind) in enumerate(parts):
        at += gap
        launch = {"launch_start_ns": at - min(gap, 900), "launch_end_ns": at - min(gap, 400)}
        rows.append(kernel(at, dur, kind) | (ATTENTION if number % 8 == 0 else {}) | launch)
        at += dur
    edges = np.linspace(0, at, count + 1).astype(int).tolist()
    steps = [{"step_id": i, "start_ns": a, "dur_ns": b - a} for i, (a, b) in enumerate(itertools.pairwise(edges))]
    tables = {"steps": build_table("steps", steps), "kernels": build_table("kernels", rows)}
    trace = Trace(tables, NPU)

    busy = sum(dur for _, dur, _ in parts)
    claimed = sum(
        finding.share_ratio or 0.0
        for analyzer in (decode, host_dispatch, sequences, task_queue)
        for finding in analyzer.run_on_trace(trace).findings
        if finding.code in ("V-01", "H-01", "H-02", "H-03", "N-12")
    )

    assert claimed <= (at - busy) / at + 1e-9


# ---- V-02 ------------------------------------------------------------------------------------------------------------


def products(rows: int, dur: int, mac: float, *, dtype: str = "DT_BF16") -> tuple[Rows, Rows]:
    """One step: attention of 10 us, then two products with a weight of 4096 x 8192, back to back."""
    made = [kernel(0, 10_000) | ATTENTION]
    for at in range(2):
        made.append(
            kernel(
                10_000 + at * dur, dur, "MatMulV2", input_shapes=f"{rows},4096;4096,8192",
                input_dtypes=f"DT_BF16;{dtype}", output_shapes=f"{rows},8192", output_dtypes="DT_BF16",
                aic_mac_ratio=mac,
            )
        )  # fmt: skip
    return made, steps_of(1, 10_000 + 2 * dur)


def test_weights_that_are_read_at_the_memory_rate(make_trace: Make) -> None:
    rows, steps = products(16, 50_000, 0.07)

    outcome = decode.run_on_trace(make_trace(meta=B3, steps=steps, kernels=rows))

    (found,) = outcome.findings
    assert found.code == "V-02"
    # 2 x 4096 x 8192 x 2 bytes at 1.6 TB/s are 83.9 us of 110.
    assert found.evidence[0].value == 2 * 4096 * 8192 * 2
    assert found.evidence[1].value == pytest.approx(2 * 4096 * 8192 * 2 / 1600)
    assert found.evidence[2].value == pytest.approx(0.07)
    assert found.evidence[3].value == 16
    assert found.share_ratio == pytest.approx(100_000 / 110_000 / 2)


@pytest.mark.parametrize(
    ("dur", "mac", "dtype", "verdict"),
    [
        (50_000, 0.19, "DT_BF16", "found"),
        (50_000, 0.20, "DT_BF16", "clean"),
        # 83.9 us of at most 167.8 us: from a half on.
        (78_800, 0.1, "DT_BF16", "found"),
        (79_000, 0.1, "DT_BF16", "clean"),
        (36_000, 0.1, "INT8", "found"),
        (38_000, 0.1, "INT8", "clean"),
    ],
)
def test_borders_of_v02(make_trace: Make, dur: int, mac: float, dtype: str, verdict: str) -> None:
    rows, steps = products(16, dur, mac, dtype=dtype)
    assert judged(decode.run_on_trace(make_trace(meta=B3, steps=steps, kernels=rows)))["V-02"] == verdict


def test_v02_says_what_it_lacks(make_trace: Make) -> None:
    rows, steps = products(16, 50_000, 0.07)
    bare = [{k: v for k, v in row.items() if not k.startswith(("input", "output"))} for row in rows]
    for meta, kernels, word in ((B3, bare, "shapes"), (NPU, rows, "memory rate")):
        outcome = decode.run_on_trace(make_trace(meta=meta, steps=steps, kernels=kernels))
        item = next(item for item in outcome.judged if item.code == "V-02")
        assert item.verdict == "not_judged" and item.reason is not None and word in item.reason.en


def test_a_batch_of_matrices_and_experts_are_no_weights(make_trace: Make) -> None:
    rows, steps = products(16, 50_000, 0.07)
    shapes = {"input_shapes": "32,16,128;32,128,128", "op_type": "BatchMatMulV2", "name": "BatchMatMulV2"}
    outcome = decode.run_on_trace(make_trace(meta=B3, steps=steps, kernels=[rows[0], *(r | shapes for r in rows[1:])]))
    assert judged(outcome)["V-02"] == "not_judged"


# ---- V-05 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dur", "verdict"), [(4_800, "clean"), (5_400, "found")])
def test_kernels_behind_the_last_product_are_the_sampler(make_trace: Make, dur: int, verdict: str) -> None:
    rows, _ = products(16, 40_000, 0.5)
    part = dur // 3
    tail = [kernel(90_000 + at * part, part, kind) for at, kind in enumerate(("Sort", "Gather", "Multinomial"))]
    tail.append(kernel(99_000, 1_000, "Cast", stream=2))
    trace = make_trace(meta=B3, steps=steps_of(1, 120_000), kernels=[*rows, *tail])

    outcome = decode.run_on_trace(trace)

    # 5 % of 120 us are 6 us; the cast on the other stream counts as well.
    assert judged(outcome)["V-05"] == verdict
    if verdict == "found":
        found = next(f for f in outcome.findings if f.code == "V-05")
        assert found.share_ratio == pytest.approx((dur + 1_000) / 120_000)
        assert found.subject == "sampler"


def test_kernels_that_do_not_sample_are_no_sampler(make_trace: Make) -> None:
    rows, _ = products(16, 40_000, 0.5)
    trace = make_trace(meta=B3, steps=steps_of(1, 120_000), kernels=[*rows, kernel(90_000, 20_000, "Cast")])
    assert judged(decode.run_on_trace(trace))["V-05"] == "not_judged"


# ---- V-08 ------------------------------------------------------------------------------------------------------------


def calls(loads: int, *, executions: int = 5, took: int = 400) -> Rows:
    """A load at the start; then executions of 100 every 1000, with so many loads between them."""
    rows: Rows = [{"start_ns": 0, "dur_ns": 500, "api": "AscendCL@aclmdlLoadFromFile", "layer": "acl"}]
    for at in range(executions):
        start = 1_000 + 1_000 * at
        rows.append({"start_ns": start, "dur_ns": 100, "api": "AscendCL@aclmdlExecute", "layer": "acl"})
        if at < loads:
            rows.append({"start_ns": start + 200, "dur_ns": took, "api": "AscendCL@aclmdlLoadFromFile", "layer": "acl"})
    return rows


@pytest.mark.parametrize(
    ("loads", "took", "verdict"),
    [(0, 400, "clean"), (1, 400, "clean"), (2, 400, "found"), (4, 400, "found"), (4, 30, "clean")],
)
def test_models_that_are_loaded_per_request(make_trace: Make, loads: int, took: int, verdict: str) -> None:
    outcome = decode.run_on_trace(make_trace(meta=NPU, runtime_calls=calls(loads, took=took)))

    assert judged(outcome)["V-08"] == verdict
    if verdict == "found":
        (found,) = outcome.findings
        # From the first execution (1000) to the end of the last (5100).
        assert found.share_ratio == pytest.approx(loads * took / 4_100)


def test_the_first_load_is_the_start_of_the_service(make_trace: Make) -> None:
    found = model_calls(make_trace(meta=NPU, runtime_calls=calls(2)))
    assert found is not None and (found.loads, found.executions) == (2, 5)


def test_sums_of_the_exporter_tell_it_too(make_trace: Make) -> None:
    def run(loads: int) -> Outcome:
        apis = [
            {"api": "aclmdlExecute", "layer": "acl", "count": 10, "total_ns": 60_000, "max_ns": 6_000},
            {"api": "aclmdlLoadFromFileWithMem", "layer": "acl", "count": loads, "total_ns": 40_000, "max_ns": 6_000},
        ]
        return decode.run_on_trace(make_trace(meta=NPU, exported_apis=apis))

    assert judged(run(1))["V-08"] == "clean"
    (found,) = run(10).findings
    assert found.share_ratio == pytest.approx(0.4)


def test_loading_is_not_idle_time_of_h01(make_trace: Make) -> None:
    kernels = [kernel(1_000_000 * at, 100_000) for at in range(6)]
    loads = [
        {"start_ns": 1_000_000 * at + dt, "dur_ns": dur, "api": api, "layer": "acl"}
        for at in range(6)
        for dt, dur, api in ((-20_000, 10_000, "aclmdlExecute"), (200_000, 700_000, "aclmdlLoadFromFile"))
    ]
    trace = make_trace(meta=NPU, steps=steps_of(1, 5_100_000), kernels=kernels, runtime_calls=loads)

    shares = {f.code: f.share_ratio or 0 for a in (decode, host_dispatch) for f in a.run_on_trace(trace).findings}

    idle = 5 * 900_000 / 5_100_000
    assert shares["V-08"] > 0.6
    assert shares["H-01"] == pytest.approx(idle - 5 * 700_000 / 5_100_000)


# ---- real traces -----------------------------------------------------------------------------------------------------


def real(path: Path) -> tuple[Trace, Outcome]:
    (trace,) = pipeline.load(path).traces
    return trace, decode.run_on_trace(trace)


def busy_ratio(trace: Trace, low: int, high: int) -> float:
    """By a walk over the sorted tasks."""
    spans = sorted(
        (start, end)
        for spec in (KERNELS, COPIES)
        for start, end in zip(trace[spec].ints("start_ns").tolist(), trace[spec].ends_ns().tolist(), strict=True)
    )
    total, reached = 0, low
    for start, end in spans:
        total += max(0, min(end, high) - max(start, reached))
        reached = max(reached, min(end, high))
    return total / (high - low)


def test_a_decode_step_of_vllm_in_a_graph(traces: Path) -> None:
    trace, outcome = real(traces / "kineto/inference-mi300/vllm_decode_full_graph_execution.json.gz")

    steps = decode_of(trace)
    assert steps is not None and (steps.steps, steps.by, steps.graph_launches) == (1, "range", 1)
    metrics = {metric.name: metric.value for metric in outcome.metrics}
    assert metrics["decode_busy_ratio"] == pytest.approx(busy_ratio(trace, int(steps.starts[0]), int(steps.ends[0])))
    assert not outcome.findings
    assert judged(outcome) == {"V-01": "clean", "V-02": "not_judged", "V-05": "not_judged", "V-08": "not_judged"}


def test_a_decode_step_of_sglang_waits_for_work_that_was_launched(traces: Path) -> None:
    # The device idles 98 % of it, but its next task had been launched: the capture begins behind another step.
    trace, outcome = real(traces / "kineto/inference-mi300/sglang_Qwen3-8B_decode.json.gz")

    steps = decode_of(trace)
    assert steps is not None and steps.graph_launches == 1
    assert not outcome.findings
    assert judged(outcome)["V-01"] == "clean"


@pytest.mark.parametrize(
    "name",
    [
        "inference-mi300/sglang_Qwen3-8B_prefilldecode.json.gz",
        "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    ],
)
def test_prefills_and_other_models_have_no_decode_steps(traces: Path, name: str) -> None:
    trace, outcome = real(traces / "kineto" / name)
    assert decode_of(trace) is None
    assert not outcome.findings and "clean" not in judged(outcome).values()
