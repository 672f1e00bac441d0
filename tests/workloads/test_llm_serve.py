"""llm-serve: server, batcher and clients together; a hundred clients, none lost, answers as if alone."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.errors import UsageError
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._load import Load, Planned, Target, plan_requests, read_trace, run_round
from ascend_perf.workloads._load_figures import figures_of, percentile
from ascend_perf.workloads._model_shape import ModelShape, cache_bytes_per_token, forward_flops, parameter_count
from ascend_perf.workloads._serving import ServeSettings, serve
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.llm_serve import Config, llm_serve, predict, request_flops
from tests.workloads._threads import one_thread as one_thread

torch = pytest.importorskip("torch")
for package in ("fastapi", "uvicorn", "aiohttp"):
    pytest.importorskip(package)
pytestmark = pytest.mark.torch

SHAPE = ModelShape(layers=2, width=32, heads=4, kv_heads=2, hidden=48, vocabulary=300)
SERVER = ServeSettings(
    max_batch=16, max_queue=128, max_context=64, prefill_tokens=64, block_tokens=4, cache_tokens=400, dtype="fp32"
)
LOAD = Load(clients=3, requests=6, prompt_tokens=9, output_tokens=5, length_spread=0.5)
CONFIG = Config(model=SHAPE, server=SERVER, load=LOAD)


@pytest.fixture
def served() -> Iterator[Any]:
    from ascend_perf.workloads._fused import FusedSettings

    one = serve(SHAPE, SERVER, FusedSettings(), Place(), 3, model_name="m")
    stop = threading.Event()
    thread = threading.Thread(target=one.batcher.run, args=(stop.is_set,))
    thread.start()
    yield one
    stop.set()
    thread.join(30)
    assert one.server.shut_down(10) == 0


async def texts_of(target: Target, planned: list[Planned]) -> list[dict[str, Any]]:
    """Whole answers to all prompts at once."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(request: Planned) -> dict[str, Any]:
            body = {"model": "m", "prompt": request.prompt, "max_tokens": request.output_tokens, "temperature": 0,
                    "ignore_eos": True}  # fmt: skip
            async with session.post(target.base + "/v1/completions", json=body) as response:
                assert response.status == 200
                return dict(await response.json())

        return list(await asyncio.gather(*(one(request) for request in planned)))


def test_a_hundred_clients_are_all_answered_and_both_sides_count_the_same(served: Any) -> None:
    load = Load(clients=100, requests=250, prompt_tokens=12, output_tokens=6, length_spread=0.5)
    planned = plan_requests(load, 1)
    round_ = asyncio.run(run_round(Target(url=served.server.url, model="m"), load, planned))
    figures, counts = figures_of(load, round_.records), served.batcher.counts

    assert (figures.completed, figures.failed) == (250, {})
    assert figures.most_in_flight == 100
    assert [record.output_tokens for record in round_.records] == [request.output_tokens for request in planned]
    assert [record.prompt_tokens for record in round_.records] == [request.prompt_tokens for request in planned]
    assert all(len(record.stamps_ns) == record.output_tokens for record in round_.records)
    assert (counts.finished, counts.cancelled, counts.refused) == (250, 0, 0)
    assert counts.output_tokens == sum(request.output_tokens for request in planned)
    assert counts.prefill_tokens == sum(request.prompt_tokens for request in planned)
    assert counts.peak_batch == 16  # the batch was full, the others waited
    assert served.batcher.pool.free == SERVER.blocks
    # The percentiles are those of the client's own stamps, computed here in another way.
    first = sorted(record.stamps_ns[0] - record.sent_ns for record in round_.records)
    each = sorted((r.stamps_ns[-1] - r.stamps_ns[0]) / (len(r.stamps_ns) - 1) for r in round_.records)
    for values, name in ((first, "ttft"), (each, "tpot")):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        for percent in (50, 90, 95, 99):
            assert percentile(figures.latencies_ns[name], percent) == pytest.approx(cuts[percent - 1], abs=1)
    # The server cannot have been faster than its own waiting in the queue.
    assert max(figures.latencies_ns["ttft"]) >= max(counts.queue_wait_ns)


def test_answers_under_load_are_those_given_alone(served: Any) -> None:
    load = Load(requests=24, prompt_tokens=12, output_tokens=10, length_spread=0.9)
    planned, target = plan_requests(load, 2), Target(url=served.server.url, model="m")
    together = asyncio.run(texts_of(target, planned))
    alone = [asyncio.run(texts_of(target, [request]))[0] for request in planned]

    assert [answer["choices"] for answer in together] == [answer["choices"] for answer in alone]
    assert served.batcher.counts.peak_batch > 8
    assert len({answer["choices"][0]["text"] for answer in alone}) > 1


def test_work_of_a_request_by_hand() -> None:
    # 4 prompt tokens with one row of logits, then two tokens with 5 and 6 in sight.
    expected = forward_flops(SHAPE, 4, 4, output_tokens=1) + forward_flops(SHAPE, 1, 5) + forward_flops(SHAPE, 1, 6)

    assert request_flops(SHAPE, 4, 3) == expected


@pytest.mark.parametrize("mode", ["closed", "poisson", "replay"])
def test_the_program_runs_rounds_of_load(mode: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"arrival": 0.01 * n, "prompt_tokens": 3 + n, "output_tokens": 2 + n} for n in range(4)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    load = replace(LOAD, mode=mode, rate_per_s=200.0, slo_ttft_ms=60_000.0)
    is_replay = mode == "replay"
    planned = plan_requests(load, 5, read_trace(trace) if is_replay else None)
    program = llm_serve.build(replace(CONFIG, load=load), Place(data=trace if is_replay else None), 5)
    try:
        program.step()
        program.start_measuring()
        program.step()
        program.step()
        count = len(planned)
        assert count == (4 if is_replay else 6)
        assert program.last_value() == count
        assert program.items_per_step == sum(request.output_tokens for request in planned)
        assert program.flops_per_step == sum(
            request_flops(SHAPE, request.prompt_tokens, request.output_tokens) for request in planned
        )
        latencies = program.latencies_ns()
        assert [len(latencies[name]) for name in ("ttft", "e2e")] == [2 * count, 2 * count]
        assert len(latencies["itl"]) == 2 * (program.items_per_step - count)
        metrics = {metric.name: metric.value for metric in program.metrics()}
        assert metrics["failed_requests"] == 0
        assert metrics["slo_met"] == 1.0
        assert metrics["goodput"] == metrics["request_throughput"]
        table = program.tables()["requests"]
        assert [row["output_tokens"] for row in table] == 2 * [request.output_tokens for request in planned]
        assert {row["round"] for row in table} == {1, 2}
        if mode != "closed":
            assert [row["begin_ns"] for row in table] == 2 * [request.arrival_ns for request in planned]
        assert dict(program.memory_bytes()) == {
            "weights": parameter_count(SHAPE) * 4,
            "cache": 404 * cache_bytes_per_token(SHAPE, 4),  # 100 blocks of 4, and the spare one
        }
        assert dict(predict(CONFIG, 1, target_here("cpu")).memory_bytes) == dict(program.memory_bytes())
    finally:
        program.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load": replace(LOAD, prompt_tokens=60)}, "do not fit: max_context is 64"),
        ({"load": replace(LOAD, ignore_eos=False)}, "ignore_eos stays true"),
        ({"model": replace(SHAPE, vocabulary=200)}, "vocabulary must be 258 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tokens": 500}, "less than one block"),
        ({"max_context": 1}, "max_context must be 2"),
        ({"drain_s": float("inf")}, "drain_s"),
    ],
)
def test_servers_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SERVER, **change)


def test_a_replay_needs_its_trace_and_one_that_fits(tmp_path: Path) -> None:
    replay = replace(CONFIG, load=replace(LOAD, mode="replay"))
    with pytest.raises(UsageError, match="needs a trace"):
        llm_serve.build(replay, Place(), 0)
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_tokens": 100, "output_tokens": 1}')
    with pytest.raises(UsageError, match="the longest request of the trace has 101 tokens, the server takes 64"):
        llm_serve.build(replay, Place(data=trace), 0)


def test_every_preset_is_sound() -> None:
    for name in llm_serve.presets():
        config = llm_serve.settings(name).config
        assert isinstance(config, Config)
        assert predict(config, 1).memory_bytes["cache"] > 0
    with pytest.raises(ValueError, match="runs in 1 process"):
        predict(CONFIG, 2)
