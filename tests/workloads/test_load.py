"""The load generator: what is asked and when, what it makes of what comes back, and what it cannot be told."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.cli.load import first_said, summary
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.parsers.discover import find_units, parsers
from ascend_perf.workloads import _load_figures as figures_module
from ascend_perf.workloads._load import (
    Load,
    Planned,
    Record,
    Round,
    Target,
    TraceRow,
    arrivals_ns,
    first_model,
    plan_requests,
    read_trace,
    request_body,
    round_from,
    run_round,
    warmup_of,
)
from ascend_perf.workloads._load_figures import figures_of, notes_of, result_of
from ascend_perf.workloads._server_errors import said_in

MS = 1_000_000


# What is asked, and when


def test_poisson_arrivals_are_sums_of_exponential_gaps_by_the_seed() -> None:
    gaps = np.random.default_rng((7, 0)).exponential(0.25, 5)
    expected, total = [], 0.0
    for gap in gaps:
        total += gap
        expected.append(round(total * 1e9))

    assert arrivals_ns(4.0, 5, 7) == expected
    assert arrivals_ns(4.0, 5, 8) != expected


def test_poisson_gaps_have_the_mean_and_the_spread_of_the_exponential() -> None:
    arrivals = arrivals_ns(50.0, 20_000, 0)
    gaps = np.diff([0, *arrivals]) / 1e9

    # Standard errors of 20 000 gaps: mean 0.02 / sqrt(20 000) = 0.00014, so four of them are 2.8 %.
    assert gaps.mean() == pytest.approx(0.02, rel=0.028)
    assert gaps.std() == pytest.approx(0.02, rel=0.06)
    # Kolmogorov's distance at 1 ‰ is 1.95 / sqrt(n).
    ranks = np.arange(1, 20_001) / 20_000
    assert np.abs(ranks - (1 - np.exp(-np.sort(gaps) / 0.02))).max() < 1.95 / math.sqrt(20_000)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.9), st.integers(0, 99))
def test_lengths_and_prompts_are_as_planned(prompt: int, output: int, spread: float, seed: int) -> None:
    load = Load(requests=9, prompt_tokens=prompt, output_tokens=output, length_spread=spread)
    planned = plan_requests(load, seed)

    assert planned == plan_requests(load, seed)
    for request in planned:
        assert max(1, round(prompt * (1 - spread))) <= request.prompt_tokens <= round(prompt * (1 + spread))
        assert max(1, round(output * (1 - spread))) <= request.output_tokens <= round(output * (1 + spread))
        assert len(request.prompt) == request.prompt_tokens  # a character is a token of the byte tokenizer
        assert request.arrival_ns is None


def test_prompts_as_words_and_as_tokens() -> None:
    words = plan_requests(Load(prompt_as="words", prompt_tokens=30, requests=2), 0)
    tokens = plan_requests(Load(prompt_as="token_ids", prompt_tokens=500, prompt_vocabulary=3, requests=2), 0)

    assert [len(str(request.prompt).split()) for request in words] == [30, 30]
    assert {token for request in tokens for token in request.prompt} == {0, 1, 2}
    assert [len(request.prompt) for request in tokens] == [500, 500]


def test_a_trace_is_replayed_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival": 12.5, "prompt_tokens": 3, "output_tokens": 4}\n\n'
        '{"timestamp": 12250, "input_length": 5, "output_length": 6}\n'
        '{"arrival": 13, "prompt": "hello", "output_tokens": 2}\n'
    )
    trace = read_trace(path)

    assert trace == [
        TraceRow(arrival_ns=0, prompt_tokens=5, output_tokens=6),
        TraceRow(arrival_ns=250 * MS, prompt_tokens=3, output_tokens=4),
        TraceRow(arrival_ns=750 * MS, prompt_tokens=5, output_tokens=2, prompt="hello"),
    ]
    replayed = plan_requests(Load(mode="replay", requests=9), 0, trace)
    assert [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in replayed] == [
        (0, 5, 6), (250 * MS, 3, 4), (750 * MS, 5, 2)
    ]  # fmt: skip
    assert replayed[2].prompt == "hello"
    # In another mode the trace gives prompts and lengths, over and over.
    closed = plan_requests(Load(requests=4), 0, trace)
    assert [(r.arrival_ns, r.prompt_tokens) for r in closed] == [(None, 5), (None, 3), (None, 5), (None, 5)]
    with pytest.raises(ValueError, match="needs a trace"):
        plan_requests(Load(mode="replay"), 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ("[1]", "line 1: no JSON object"),
        ('{"prompt_tokens": 3}', "output_tokens is missing"),
        ('{"output_tokens": 3}', "prompt_tokens is missing"),
        ('{"prompt_tokens": 0, "output_tokens": 3}', "prompt_tokens must be a number of 1 or more"),
        ('{"prompt_tokens": true, "output_tokens": 3}', "prompt_tokens must be"),
        ('{"prompt_tokens": 1, "output_tokens": "3"}', "output_tokens must be"),
        ('{"arrival": -1, "prompt_tokens": 1, "output_tokens": 3}', "arrival must be a number of 0 or more"),
        ('{"arrival": NaN, "prompt_tokens": 1, "output_tokens": 3}', "arrival must be"),
        ('{"prompt": 5, "output_tokens": 3}', "prompt must be text"),
        ("[" * 100_000, "line 1"),
        ("", "holds 0 requests"),
    ],
)
def test_traces_that_cannot_be_used_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")

    with pytest.raises(InputError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients must be 1"),
        ({"rate_per_s": 0.0}, "rate_per_s must be more than 0"),
        ({"rate_per_s": float("inf")}, "rate_per_s must be more than 0"),
        ({"length_spread": 1.0}, "length_spread must be"),
        ({"request_timeout_s": 0.0}, "request_timeout_s"),
        ({"slo_ttft_ms": 0.0}, "slo_ttft_ms"),
        ({"prompt_as": "token_ids", "endpoint": "chat"}, "a chat takes text only"),
    ],
)
def test_loads_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Load(**change)


def test_the_body_of_a_request() -> None:
    planned = Planned(arrival_ns=None, prompt="p", prompt_tokens=1, output_tokens=5)
    target = Target(url="http://x/v1/", model="m")

    assert target.base == "http://x"
    assert request_body(target, Load(), planned) == {
        "model": "m", "prompt": "p", "max_tokens": 5, "temperature": 0.0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert request_body(target, Load(endpoint="chat", stream=False, ignore_eos=False, temperature=0.5), planned) == {
        "model": "m", "messages": [{"role": "user", "content": "p"}], "max_tokens": 5, "temperature": 0.5,
        "stream": False,
    }  # fmt: skip


# Figures


def record(
    sent: int, stamps: Sequence[int], *, end: int | None = None, scheduled: int | None = None, **more: Any
) -> Record:
    """Times in ms."""
    return Record(
        planned_prompt_tokens=4, planned_output_tokens=len(stamps), sent_ns=sent * MS,
        stamps_ns=[stamp * MS for stamp in stamps], end_ns=(max([sent, *stamps]) if end is None else end) * MS,
        scheduled_ns=None if scheduled is None else scheduled * MS, **more,
    )  # fmt: skip


def round_of(records: list[Record], **more: Any) -> Round:
    return Round(**{"records": records, "start_ns": 0, "cpu_ns": 0, "wall_ns": MS, "probe_delays_ns": [], **more})


def test_figures_by_hand() -> None:
    load = Load(slo_ttft_ms=25.0, slo_tpot_ms=10.0)
    records = [
        record(100, [120, 130, 140], prompt_tokens=4, output_tokens=3),  # ttft 20, tpot 10, e2e 40: good
        record(110, [140, 145, 150], prompt_tokens=5, output_tokens=3),  # ttft 30: late
        record(120, [140, 160], prompt_tokens=6, output_tokens=5),  # ttft 20, tpot 20 / 4 = 5: good, two pieces
        record(130, [150], prompt_tokens=7, output_tokens=1),  # ttft 20, no tpot: good
        record(140, [150], end=300, error="truncated"),
    ]
    figures = figures_of(load, records)

    assert figures.latencies_ns == {
        "ttft": [20 * MS, 30 * MS, 20 * MS, 20 * MS],
        "tpot": [10 * MS, 5 * MS, 5 * MS],
        "itl": [10 * MS, 10 * MS, 5 * MS, 5 * MS, 20 * MS],
        "e2e": [40 * MS, 40 * MS, 40 * MS, 20 * MS],
    }
    assert (figures.completed, figures.failed, figures.good) == (4, {"truncated": 1}, 3)
    assert (figures.input_tokens, figures.output_tokens, figures.uncounted) == (22, 12, 0)
    assert figures.duration_ns == 200 * MS  # 100 to 300
    # At 141: sent 100 (ends 140), 110, 120, 130, 140: the first has ended just when the last was sent.
    assert figures.most_in_flight == 4


def test_latency_counts_from_the_scheduled_arrival() -> None:
    figures = figures_of(Load(mode="poisson"), [record(150, [160, 170], scheduled=100, output_tokens=2)])

    assert figures.latencies_ns["ttft"] == [60 * MS]
    assert figures.latencies_ns["e2e"] == [70 * MS]
    assert figures.duration_ns == 70 * MS


def test_pieces_count_where_the_server_does_not() -> None:
    round_ = round_of([record(0, [1, 2, 3])])
    figures = figures_of(Load(), round_.records)

    assert (figures.output_tokens, figures.input_tokens, figures.uncounted) == (3, 4, 1)
    assert "did not count the tokens of 1" in notes_of(Load(), round_, figures)[0].en


def test_an_overloaded_client_says_so() -> None:
    late = round_of([record(108, [208], scheduled=100, output_tokens=1)] * 3, cpu_ns=95, wall_ns=100)
    fine = round_of([record(103, [208], scheduled=100, output_tokens=1)] * 3, probe_delays_ns=[MS] * 9)
    for one, words in ((late, ["sent its requests 8 ms late", "used 95 % of a core"]), (fine, [])):
        notes = notes_of(Load(mode="poisson"), one, figures_of(Load(mode="poisson"), one.records))
        assert len(notes) == len(words)
        assert all(word in note.en for word, note in zip(words, notes, strict=True))


_RECORDS = st.lists(
    st.tuples(st.integers(0, 500), st.lists(st.integers(0, 50), min_size=1, max_size=5), st.booleans()), min_size=1,
    max_size=20,
)  # fmt: skip


@settings(deadline=None)
@given(_RECORDS)
def test_percentiles_are_those_of_the_raw_stamps(made: list[tuple[int, list[int], bool]]) -> None:
    records = []
    for sent, gaps, is_lost in made:
        stamps = [sent + sum(gaps[: n + 1]) for n in range(len(gaps))]
        lost: dict[str, Any] = {"error": "timeout"} if is_lost else {}
        records.append(record(sent, stamps, output_tokens=len(stamps), **lost))
    result = result_of(Load(), round_of(records), model="m", created="now", seed=0)

    kept = [(sent, gaps) for sent, gaps, is_lost in made if not is_lost]
    expected_by_key: dict[str, list[float]] = {
        "ttft": [gaps[0] for _, gaps in kept],
        "tpot": [sum(gaps[1:]) / (len(gaps) - 1) for _, gaps in kept if len(gaps) > 1],
        "itl": [gap for _, gaps in kept for gap in gaps[1:]],
        "e2el": [sum(gaps) for _, gaps in kept],
    }
    for key, values in expected_by_key.items():
        if not values:
            assert result[f"mean_{key}_ms"] is None
            continue
        assert result[f"mean_{key}_ms"] == pytest.approx(statistics.fmean(values), abs=1e-5)
        assert result[f"median_{key}_ms"] == pytest.approx(statistics.median(values), abs=1e-5)
        for percent in (90, 95, 99):
            ordered, place = sorted(values), (len(values) - 1) * percent / 100
            low = ordered[math.floor(place)]
            expected = low + (ordered[math.ceil(place)] - low) * (place - math.floor(place))
            assert result[f"p{percent}_{key}_ms"] == pytest.approx(expected, abs=1e-5)
    assert result["completed"] == len(kept) and result["failed"] == len(made) - len(kept)
    json.dumps(result, allow_nan=False)


def test_readers_of_benchmarks_read_the_result(tmp_path: Path) -> None:
    records = [
        record(0, [20, 30, 40], prompt_tokens=4, output_tokens=3),
        record(10, [50, 60], prompt_tokens=5, output_tokens=2),
        record(20, [], end=30, error="http_429"),
    ]
    result = result_of(Load(slo_ttft_ms=30.0), round_of(records), model="secret", created="now", seed=0)
    path = tmp_path / "load.json"
    path.write_text(json.dumps(result))
    (unit,), _ = find_units(path)
    (trace,) = parsers()[unit.parser].parse(unit)

    assert unit.parser == "vllm_bench"
    table = trace[t.REQUESTS]
    assert table.ints("first_token_ns").tolist() == [20 * MS, 40 * MS]
    assert table.ints("execution_ns").tolist() == [40 * MS, 50 * MS]
    assert table.ints("output_tokens").tolist() == [3, 2]
    assert all(check.holds for check in trace.meta.checks) and trace.meta.checks
    figures = trace[t.SERVICE_FIGURES]
    values = dict(zip(figures.text("name").to_list(), figures.floats("value").tolist(), strict=True))
    assert values["request_throughput"] == pytest.approx(2 / 0.06)
    assert values["request_goodput"] == pytest.approx(1 / 0.06)
    assert (values["completed"], values["failed"]) == (2, 1)


# Against servers that behave and that do not

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def rounds(handler: Handler, load: Load, planned: Sequence[Planned], warmup: Sequence[Planned] = ()) -> Round:
    """A round against a server that answers each request, already read, by the handler."""
    pytest.importorskip("aiohttp")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(size)
                await handler(reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> Round:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await run_round(Target(url=url, model="m", api_key="k"), load, planned, warmup)

    return asyncio.run(run())


def answer(*events: object, status: int = 200, is_done: bool = True, length: int | None = None) -> bytes:
    parts = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]
    body = "".join([*parts, *(["data: [DONE]\n\n"] if is_done else [])]).encode()
    head = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def token(text: str = "x", reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def replies(data: bytes, *, then_close: bool = False) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            await writer.drain()
            writer.close()

    return handler


LOAD = Load(requests=2, clients=1, prompt_tokens=4, output_tokens=2, request_timeout_s=20.0)
USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}


def test_a_stream_is_read_token_by_token() -> None:
    one = rounds(replies(answer(token(), token("", "length"), USAGE)), LOAD, plan_requests(LOAD, 0))

    for made in one.records:
        assert made.error is None
        # The last event brought no text, only the reason: it is no token.
        assert len(made.stamps_ns) == 1
        assert (made.prompt_tokens, made.output_tokens) == (4, 2)
        assert one.start_ns <= made.sent_ns <= made.stamps_ns[0] <= made.end_ns
    assert one.records[0].end_ns <= one.records[1].sent_ns  # one client


def test_a_chat_counts_contents_and_thoughts_but_not_the_role() -> None:
    deltas: list[dict[str, object]] = [
        {"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "a"}, {"content": ""}, {},
    ]  # fmt: skip
    events = [
        {"choices": [{"delta": delta, "finish_reason": "stop" if not delta else None}], "usage": None}
        for delta in deltas
    ]
    load = replace(LOAD, endpoint="chat")
    one = rounds(replies(answer(*events)), load, plan_requests(load, 0))

    assert [len(made.stamps_ns) for made in one.records] == [3, 3]  # half a character is a token too
    assert [made.error for made in one.records] == [None, None]


def test_a_whole_answer_has_an_end_and_counts_only() -> None:
    load = replace(LOAD, stream=False)
    body = json.dumps({**token(), **{"usage": USAGE["usage"]}}).encode()
    data = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    one = rounds(replies(data), load, plan_requests(load, 0))
    result = result_of(load, one, model="m", created="now", seed=0)

    assert [made.output_tokens for made in one.records] == [2, 2]
    assert result["mean_ttft_ms"] is None and result["completed"] == 2
    assert result["median_e2el_ms"] == statistics.median((m.end_ns - m.sent_ns) / MS for m in one.records)
    assert "ttfts" not in result


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (answer(status=429), "http_429"),
        (answer(status=503), "http_503"),
        (answer(token(), is_done=False), "truncated"),
        (answer(), "empty"),
        (answer("{"), "not_json"),
        (answer("[1]"), "not_json"),
        (answer({"choices": 5}), "not_json"),
        (answer({"error": {"message": "no"}}), "server_error"),
        (answer(token(), length=10_000), "disconnected"),
        (b"", "disconnected"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "protocol"),
    ],
)
def test_errors_by_kind(data: bytes, kind: str) -> None:
    one = rounds(replies(data, then_close=True), LOAD, plan_requests(LOAD, 0))

    assert [made.error for made in one.records] == [kind, kind]


def test_a_stream_that_ends_by_its_reason_is_complete() -> None:
    one = rounds(replies(answer(token("x", "stop"), is_done=False)), LOAD, plan_requests(LOAD, 0))

    assert [(made.error, len(made.stamps_ns)) for made in one.records] == [(None, 1)] * 2


def test_a_server_that_is_silent_or_not_there() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    load = replace(LOAD, request_timeout_s=0.1)
    one = rounds(silent, load, plan_requests(load, 0))
    assert [made.error for made in one.records] == ["timeout", "timeout"]

    target = Target(url="http://127.0.0.1:9", model="m")  # the port of `discard`, where nobody listens
    nobody = asyncio.run(run_round(target, LOAD, plan_requests(LOAD, 0)))
    assert [made.error for made in nobody.records] == ["connect", "connect"]
    with pytest.raises(InputError, match="cannot be reached"):
        asyncio.run(first_model(target))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too long", "type": "x"}}', "too long"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [1, 2]}', '{"detail": [1, 2]}'),
        (b"[1]", "[1]"),
        (b"", ""),
        (b"502 Bad Gateway\r\n\x1b[31mred\x00", "502 Bad Gateway [31mred"),
        (b"\xff" + b"a" * 5000, "\ufffd" + "a" * 199 + "..."),
        (b"[" * 100_000, "[" * 200 + "..."),
    ],
)
def test_what_a_server_says_of_an_error_is_one_plain_line(body: bytes, said: str) -> None:
    assert said_in(body) == said


def test_the_server_is_quoted_in_the_terminal_and_not_in_the_result() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error": {"message": "a prompt of 300 tokens"}}'
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    one = rounds(refuses, LOAD, plan_requests(LOAD, 0))
    shown = summary(LOAD, figures_of(LOAD, one.records), [], "en", first_said(one))

    assert "http_400: a prompt of 300 tokens" in shown
    result = result_of(LOAD, one, model="m", created="now", seed=0)
    assert "a prompt of 300" not in json.dumps(result) and result["errors_by_kind"] == {"http_400": 2}


def test_a_redirect_is_not_followed() -> None:
    """The load goes to the server that was named, and so does its key."""
    arrived = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        arrived.append(port)
        writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:%d/x\r\n"
                     b"content-length: 0\r\n\r\n" % port)  # fmt: skip

    one = rounds(elsewhere, LOAD, plan_requests(LOAD, 0))
    assert [made.error for made in one.records] == ["http_307", "http_307"]
    assert len(arrived) == 2


def test_why_no_model_is_named() -> None:
    async def asked(handler: Handler) -> str:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(InputError) as caught:
                await first_model(Target(url=f"http://127.0.0.1:{port}", model=""))
            return caught.value.what

    def answers(text: bytes) -> Handler:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(text)
            writer.close()

        return handler

    no_key = b'HTTP/1.1 401 x\r\ncontent-length: 22\r\n\r\n{"detail": "no token"}'
    assert asyncio.run(asked(answers(no_key))) == "/v1/models of the server answers 401: no token"
    assert "does not speak HTTP" in asyncio.run(asked(answers(b"SSH-2.0-x\r\n")))
    nobody = Target(url="http://127.0.0.1:9", model="")
    with pytest.raises(InputError, match="cannot be reached: Connection refused"):
        asyncio.run(first_model(nobody))


def test_the_warmup_of_a_trace_has_its_lengths() -> None:
    load = Load(mode="replay", requests=2, warmup_requests=3, prompt_tokens=500, output_tokens=300)
    trace = [TraceRow(arrival_ns=n, prompt_tokens=5 + n, output_tokens=2 + n) for n in range(2)]
    lengths = [(one.prompt_tokens, one.output_tokens) for one in warmup_of(load, 0, trace)]
    assert lengths == [(5, 2), (6, 3), (5, 2)]
    assert all(one.arrival_ns is None for one in warmup_of(load, 0, trace))


def test_an_open_loop_sends_on_time_though_the_server_stalls() -> None:
    """Ten arrivals within 45 ms at a server that answers nothing before 0.3 s: none waits for another."""
    release: dict[str, float] = {}

    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        release.setdefault("at", loop.time() + 0.3)
        await asyncio.sleep(max(0, release["at"] - loop.time()))
        writer.write(answer(token(), USAGE))

    load = Load(mode="replay", requests=10)
    trace = [TraceRow(arrival_ns=5 * MS * n, prompt_tokens=1, output_tokens=2) for n in range(10)]
    one = rounds(stalls, load, plan_requests(load, 0, trace))
    figures = figures_of(load, one.records)

    assert figures.completed == 10
    assert [made.scheduled_ns for made in one.records] == [one.start_ns + 5 * MS * n for n in range(10)]
    assert all(made.sent_ns >= (made.scheduled_ns or 0) for made in one.records)
    assert figures.most_in_flight == 10
    # All are answered together: the later one arrived, the shorter it waited. A closed loop would show one long wait.
    waits = figures.latencies_ns["ttft"]
    assert min(waits) >= 250 * MS - 45 * MS


def test_clients_of_a_closed_loop_are_as_many_as_asked() -> None:
    now, most = 0, 0

    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        writer.write(answer(token(), USAGE))

    load = replace(LOAD, requests=12, clients=3, warmup_requests=2)
    one = rounds(counts, load, plan_requests(load, 0), warmup_of(load, 0))

    assert most == 3
    assert len(one.records) == 12 and one.warmup_errors == 0
    assert figures_of(load, one.records).most_in_flight == 3


def test_a_round_survives_its_way_between_processes() -> None:
    from dataclasses import asdict

    one = round_of([record(0, [1, 2], scheduled=0, output_tokens=2), record(3, [], error="timeout")])

    assert round_from(json.loads(json.dumps(asdict(one)))) == one


def test_definitions_name_every_latency() -> None:
    assert {"ttft", "tpot", "itl", "e2el", "duration", "request_goodput"} <= set(figures_module.DEFINITIONS)
