"""Services: latency against brute force, and rows V-03 to V-07 against hand arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.analyzers.serving import serving
from ascend_perf.model.finding import Finding, Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Meta, Trace
from tests._support import Said
from tests.conftest import build_table
from tests.faults import plants_serving as plants
from tests.faults.service import serve, tables

Rows = list[dict[str, object]]
MS = 1_000_000
NPU = Meta(device=Device(kind="npu"))


def service(**rows: Rows) -> Trace:
    return Trace({name: build_table(name, items) for name, items in rows.items() if items}, NPU)


def run(*traces: Trace) -> Outcome:
    return serving.run_on_run(Run(traces=traces))


def verdict(outcome: Outcome, code: str) -> str:
    """Found if any says so, as in the report."""
    said = {item.verdict for item in outcome.judged if item.code == code}
    return next(word for word in ("found", "clean", "not_judged") if word in said)


def only(outcome: Outcome, code: str) -> Finding:
    (found,) = (finding for finding in outcome.findings if finding.code == code)
    return found


def request(name: int, start: int = 0, **more: object) -> dict[str, object]:
    return {"request": str(name), "start_ns": start} | more


def execute(start: int, dur: int, **more: object) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "phase": "execute"} | more


# ---- latency ---------------------------------------------------------------------------------------------------------


def test_no_service_is_no_data() -> None:
    assert run(Trace({}, NPU)).status == "no_data"


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(0, 10**8), st.integers(1, 400)),
        min_size=1, max_size=40,
    )
)  # fmt: skip
def test_figures_against_brute_force(parts: list[tuple[int, int, int, int]]) -> None:
    rows = [
        request(i, start, execution_ns=first + further * (tokens - 1), first_token_ns=first, output_tokens=tokens)
        for i, (start, first, further, tokens) in enumerate(parts)
    ]

    metrics = {metric.name: metric.value for metric in run(service(requests=rows)).metrics}

    ttft = sorted(first for _, first, _, _ in parts)
    assert metrics["ttft_p50_ns"] == pytest.approx(float(np.median(ttft)))
    tpot = [further for _, _, further, tokens in parts if tokens > 1]
    assert metrics.get("tpot_p50_ns") == (pytest.approx(float(np.median(tpot))) if tpot else None)
    ends = [start + first + further * (tokens - 1) for start, first, further, tokens in parts]
    span = max(ends) - min(start for start, *_ in parts)
    assert metrics["request_throughput"] == pytest.approx(len(parts) / span * 1e9)
    assert metrics["output_token_throughput"] == pytest.approx(sum(p[3] for p in parts) / span * 1e9)


def test_unknown_figures_are_left_out() -> None:
    outcome = run(service(requests=[request(1, input_tokens=5)]))
    assert outcome.metrics == ()
    assert {table.name for table in outcome.tables} == {"serving-instances"}
    assert {item.verdict for item in outcome.judged} == {"not_judged"}


# ---- V-03 ------------------------------------------------------------------------------------------------------------


def batches_of(shapes: Sequence[tuple[int, Sequence[int]]]) -> Trace:
    """One execution per entry: its time in ms and the prompts of its requests, all in decoding at iteration 0 or 5."""
    batches, items, requests = [], [], []
    for at, (took, prompts) in enumerate(shapes):
        batches.append(execute(at * 1_000 * MS, took * MS, size=len(prompts)))
        for place, prompt in enumerate(prompts):
            name = f"{at}-{place}"
            requests.append({"request": name, "input_tokens": prompt})
            items.append({"batch": at, "request": name, "iteration": 0 if place == 0 else 5})
    return service(batches=batches, batch_requests=items, requests=requests)


def test_long_requests_hold_up_short_ones() -> None:
    outcome = run(batches_of([(30, (100, 120))] * 6 + [(180, (4000, 59))] * 3))

    found = only(outcome, "V-03")
    # Three batches of 150 ms beyond the others, of 6 x 30 + 3 x 180 ms.
    assert found.share_ratio == pytest.approx(450 / 720)
    assert found.evidence[0].value == 3
    assert found.evidence[1].value == pytest.approx(4000 / 64)
    assert found.evidence[2].value == 30 * MS


@pytest.mark.parametrize(
    ("took", "prompts", "count", "expected"),
    [
        (180, (4000, 59), 3, "found"),
        (180, (4000, 59), 2, "clean"),  # no habit
        (180, (1024, 59), 3, "clean"),  # 16 times, not more
        (180, (1025, 59), 3, "found"),
        (100, (4000, 59), 3, "clean"),  # not above 100 ms
        (101, (4000, 59), 3, "found"),
    ],
)
def test_borders_of_v03(took: int, prompts: tuple[int, ...], count: int, expected: str) -> None:
    outcome = run(batches_of([(30, (100, 120))] * 6 + [(took, prompts)] * count))
    assert verdict(outcome, "V-03") == expected


def test_slow_batches_where_all_are_slow_are_no_fault_of_lengths() -> None:
    outcome = run(batches_of([(90, (100, 120))] * 6 + [(180, (4000, 59))] * 3))
    assert verdict(outcome, "V-03") == "clean"


def test_lengths_come_from_the_scheduling_where_the_execution_lists_none() -> None:
    batches: Rows = []
    items: Rows = []
    for at in range(9):
        slow = at >= 6
        batches.append({"start_ns": at * 1_000 * MS, "dur_ns": MS, "phase": "schedule"})
        batches.append(execute(at * 1_000 * MS + MS, (180 if slow else 30) * MS))
        items += [
            {"batch": 2 * at, "request": "long" if slow else "a", "iteration": 0},
            {"batch": 2 * at, "request": "b", "iteration": 9},
        ]
    requests = [request(0, input_tokens=100) | {"request": name, "input_tokens": size}
                for name, size in (("long", 4000), ("a", 100), ("b", 90))]  # fmt: skip
    outcome = run(service(batches=batches, batch_requests=items, requests=requests))
    assert only(outcome, "V-03").evidence[1].value == pytest.approx(4000 / 99)


def test_without_lengths_v03_is_not_judged() -> None:
    outcome = run(service(batches=[execute(0, 200 * MS, size=3)]))
    assert verdict(outcome, "V-03") == "not_judged"


# ---- V-04 ------------------------------------------------------------------------------------------------------------


def pool(free: Sequence[int], waits: Sequence[tuple[int, int]], *, total: int = 100) -> Trace:
    """Free blocks each second; requests that arrive at a second and wait for some ms, of 1 s each."""
    cache = [
        {"time_ns": at * 1_000 * MS, "name": "AppendSlot", "total_blocks": total, "free_blocks": value}
        for at, value in enumerate(free)
    ]
    requests = [
        request(i, at * 1_000 * MS, queue_wait_ns=wait * MS, execution_ns=1_000 * MS)
        for i, (at, wait) in enumerate(waits)
    ]
    return service(kv_cache=cache, requests=requests)


def test_waiting_while_the_cache_is_full() -> None:
    # Full from second 2 to 5; the first request waits outside of it.
    outcome = run(pool([90, 50, 2, 1, 0, 60, 90], [(0, 500), (2, 400), (4, 1_500)]))

    found = only(outcome, "V-04")
    assert found.evidence[0].value == pytest.approx(3 / 6)
    # 400 ms, and of 1500 ms the first 1000.
    assert found.share_ratio == pytest.approx((400 + 1_000) / 3_000)


@pytest.mark.parametrize(
    ("free", "waits", "expected"),
    [
        ([90, 50, 3, 3, 60, 90], [(2, 900)], "clean"),  # 3 % are not 2 %
        ([90, 50, 2, 3, 60, 90], [(2, 900)], "found"),
        ([90, 50, 2, 3, 60, 90], [(2, 40)], "clean"),  # 4 % of the time
        ([90, 50, 2, 3, 60, 90], [(0, 900)], "clean"),  # waits while blocks are free
    ],
)
def test_borders_of_v04(free: list[int], waits: list[tuple[int, int]], expected: str) -> None:
    assert verdict(run(pool(free, waits)), "V-04") == expected


def test_a_pool_with_fewer_free_blocks_than_a_request_takes_is_full() -> None:
    trace = pool([90, 8, 8, 8, 60, 90], [(1, 900)])
    assert verdict(run(trace), "V-04") == "clean"
    cache = [
        {"time_ns": at * 1_000 * MS, "name": "Allocate", "total_blocks": 100, "free_blocks": value,
         "allocated_blocks": 20}
        for at, value in enumerate([90, 8, 8, 8, 60, 90])
    ]  # fmt: skip
    assert verdict(run(trace.replace(tables={"kv_cache": build_table("kv_cache", cache)})), "V-04") == "found"


def test_without_a_total_the_most_free_blocks_stand_for_it() -> None:
    trace = pool([100, 50, 1, 1, 60, 90], [(2, 900)])
    cache = [
        {"time_ns": at * 1_000 * MS, "name": "x", "free_blocks": value}
        for at, value in enumerate([100, 50, 1, 1, 60, 90])
    ]
    assert verdict(run(trace.replace(tables={"kv_cache": build_table("kv_cache", cache)})), "V-04") == "found"


# ---- V-05 ------------------------------------------------------------------------------------------------------------


def span(name: str, start: int, dur: int) -> dict[str, object]:
    return {"name": name, "start_ns": start * MS, "dur_ns": dur * MS}


def test_a_stage_that_no_execution_hides() -> None:
    batches = [execute(at * 100 * MS, 50 * MS) for at in range(4)]
    spans = [span("tokenize", at * 100 + 40, 30) for at in range(4)] + [span("detokenize", 0, 40)]

    found = only(run(service(batches=batches, service_spans=spans)), "V-05")

    # 20 of each 30 ms lie behind the execution of 50.
    assert found.subject == "tokenize"
    assert found.share_ratio == pytest.approx(80 / 280)


@pytest.mark.parametrize(("dur", "expected"), [(5, "clean"), (6, "found")])
def test_a_tenth_of_the_time_is_the_border(dur: int, expected: str) -> None:
    trace = service(batches=[execute(0, 50 * MS)], service_spans=[span("schedule", 50, dur)])
    assert verdict(run(trace), "V-05") == expected


@pytest.mark.parametrize(("dur", "expected"), [(2, "clean"), (3, "found")])
def test_sampling_inside_an_execution_counts_from_a_twentieth(dur: int, expected: str) -> None:
    trace = service(
        batches=[execute(at * 50 * MS, 50 * MS) for at in range(4)],
        service_spans=[span("sample", at * 50 + 45, dur) for at in range(4)],
    )
    outcome = run(trace)
    assert verdict(outcome, "V-05") == expected
    if expected == "found":
        assert only(outcome, "V-05").share_ratio == pytest.approx(3 / 50)


def first_tokens(rest: int, *, chunks: int = 1) -> Trace:
    """Ten requests whose first token takes 20 ms of queue, 80 ms of prefill in chunks, and a rest."""
    batches: Rows = []
    items: Rows = []
    requests: Rows = []
    for at in range(10):
        start = at * 10_000 * MS
        first = (20 + 80 + rest) * MS
        requests.append(
            request(at, start, queue_wait_ns=20 * MS, first_token_ns=first, execution_ns=first + 200 * MS)
        )
        for chunk in range(chunks):
            items.append({"batch": len(batches), "request": str(at), "iteration": chunk})
            batches.append(execute(start + (20 + chunk * 80 // chunks) * MS, 80 * MS // chunks))
        items.append({"batch": len(batches), "request": str(at), "iteration": chunks})
        batches.append(execute(start + first + MS, 30 * MS))
    return service(batches=batches, batch_requests=items, requests=requests)


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_first_token_that_waits_for_neither_queue_nor_prefill(chunks: int) -> None:
    found = only(run(first_tokens(101, chunks=chunks)), "V-05")
    assert found.subject == "first token"
    assert found.share_ratio == pytest.approx(101 / (20 + 80 + 101 + 200))


def test_a_first_token_that_the_prefill_explains_is_none() -> None:
    assert not run(first_tokens(99)).findings


# ---- V-06 ------------------------------------------------------------------------------------------------------------


def transfers(times: Sequence[tuple[int, int]], *, ahead: int = 0, ttft: int = 100) -> Trace:
    """(tokens, ms) of transfers that begin so many ms before the end of a prefill 100 ms after the arrival."""
    rows = [
        {
            "start_ns": (at * 10_000 + ttft - ahead) * MS, "dur_ns": took * MS, "request": str(at), "tokens": tokens,
            "arrival_ns": at * 10_000 * MS, "prefill_end_ns": (at * 10_000 + ttft) * MS,
        }
        for at, (tokens, took) in enumerate(times)
    ]  # fmt: skip
    return service(kv_transfers=rows)


GROWING = [(100 * n, 10 * n) for n in range(1, 10)]


def test_transfers_that_grow_with_the_sequence() -> None:
    found = only(run(transfers(GROWING)), "V-06")

    total = sum(10 * n for n in range(1, 10))
    assert found.share_ratio == pytest.approx(total / (900 + total))
    # 0.1 ms per token: 2.5 MB at 25 GB/s.
    assert found.evidence[0].value == pytest.approx(0.1 * MS)
    assert found.evidence[1].value == pytest.approx(0.1e-3 * 25e9)


def test_what_the_prefill_hides_does_not_count() -> None:
    found = only(run(transfers(GROWING, ahead=5)), "V-06")
    behind = sum(10 * n - 5 for n in range(1, 10))
    assert found.share_ratio == pytest.approx(behind / (900 + behind))
    assert verdict(run(transfers(GROWING, ahead=90)), "V-06") == "clean"


def test_transfers_that_do_not_grow_or_are_few() -> None:
    assert verdict(run(transfers([(100 * n, 50 - (n % 2)) for n in range(1, 12)])), "V-06") == "clean"
    assert verdict(run(transfers(GROWING[:7])), "V-06") == "not_judged"
    assert verdict(run(transfers([(100, 10 * n) for n in range(1, 12)])), "V-06") == "not_judged"


# ---- V-07 ------------------------------------------------------------------------------------------------------------


def loads(*per_unit: int, at: int = 0, count: int = 40, kind: str = "mixed", dp: bool = False) -> list[Trace]:
    """Instances (or DP ranks of one) whose executions hold so many requests each."""
    rows = [
        [
            execute((at + n) * 100 * MS, 50 * MS, size=size, kind=kind, card=str(unit))
            | ({"dp_rank": str(unit)} if dp else {})
            for n in range(count)
        ]
        for unit, size in enumerate(per_unit)
    ]
    return [service(batches=[row for own in rows for row in own])] if dp else [service(batches=own) for own in rows]


@pytest.mark.parametrize("dp", [False, True])
def test_load_that_one_of_three_carries(dp: bool) -> None:
    found = only(run(*loads(30, 20, 10, dp=dp)), "V-07")
    assert found.share_ratio == pytest.approx(1 - 20 / 30)
    assert found.evidence[0].value == 30 * 40
    assert found.subject == ("dp 1" if dp else "instances")


@pytest.mark.parametrize(("sizes", "expected"), [((11, 9), "clean"), ((112, 88), "found"), ((10, 10), "clean")])
def test_a_fifth_is_the_border(sizes: tuple[int, int], expected: str) -> None:
    assert verdict(run(*loads(*sizes)), "V-07") == expected


def test_instances_of_other_roles_or_times_are_no_peers() -> None:
    prefill, decode = loads(30, kind="prefill")[0], loads(10, kind="decode")[0]
    assert verdict(run(prefill, decode), "V-07") == "not_judged"
    early, late = loads(30)[0], loads(10, at=1_000)[0]
    outcome = run(early, late)
    assert verdict(outcome, "V-07") == "not_judged"
    assert any("different times" in item.reason.en for item in outcome.judged if item.reason is not None)


def test_load_that_swings_from_one_to_the_other_is_not_uneven() -> None:
    rows = [
        [execute(n * 100 * MS, 50 * MS, size=30 if (n // 10 + unit) % 2 else 10) for n in range(80)]
        for unit in range(2)
    ]
    assert verdict(run(*(service(batches=own) for own in rows)), "V-07") == "clean"


def test_forwards_tell_the_load_where_executions_name_no_rank() -> None:
    rows = [execute(n * 100 * MS, 50 * MS) for n in range(40)]
    rows += [
        {"start_ns": n * 100 * MS, "dur_ns": (40 if rank else 20) * MS, "phase": "forward", "dp_rank": str(rank)}
        for n in range(40) for rank in range(2)
    ]  # fmt: skip
    assert only(run(service(batches=rows)), "V-07").share_ratio == pytest.approx(1 - 30 / 40)


# ---- whole services --------------------------------------------------------------------------------------------------


def test_cards_of_one_rank_count_once() -> None:
    """A batch runs on every card of its rank at the same time."""
    single = batches_of([(30, (100, 120))] * 6 + [(180, (4000, 59))] * 3)
    table = single.tables["batches"]
    two = service(
        batches=[
            execute(int(start), int(dur), card=str(card))
            for card in range(2)
            for start, dur in zip(table.ints("start_ns"), table.ints("dur_ns"), strict=True)
        ],
    )
    both = single.replace(tables={"batches": two.tables["batches"]})
    assert only(run(both), "V-03").share_ratio == pytest.approx(450 / 720)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_healthy_services_have_no_finding(tmp_path: Path, seed: int) -> None:
    job = plants.healthy_services(3, transfer_ns=1_500, overlap=0.9)(seed)
    for name, text in job.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    analysis = pipeline.analyze(pipeline.load(tmp_path))
    assert not analysis.findings and not analysis.failed


def test_the_report_of_a_service(tmp_path: Path, command: Callable[..., Said]) -> None:
    for name, text in tables(serve(plants.few_blocks(1, "medium")[0][0])).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    said = command("analyze", tmp_path / "service", "-o", tmp_path / "report", "--format", "html", "--lang", "zh")

    assert said.code == 0, said.err
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    for words in ("KV Cache 有", "首 Token 时延（TTFT）", "Prefill 与 Decode 混合"):
        assert words in page
    assert "node-a" not in page
