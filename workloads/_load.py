"""Load for any server with OpenAI's completions: what is asked, when, and the raw stamps of what comes back.

    closed    N clients, each sends its next request when it has its answer
    poisson   requests arrive at a rate, whether or not the server keeps up
    replay    requests arrive when a recorded trace says

In the open modes latency counts from the scheduled arrival, not from when the request was sent: a client that falls
behind cannot hide it (no coordinated omission). Figures are made of the stamps in `_load_figures.py`.

    python -m ascend_perf.workloads._load < requests.jsonl      one line of JSON per round in, one out
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.workloads._server_errors import reason_of, said_in
from ascend_perf.workloads._spec import at_least

if TYPE_CHECKING:
    import aiohttp

MAX_EVENT_BYTES: Final = 16 << 20
"""A server that sends more without the end of a line is cut off."""
MAX_TRACE_ROWS: Final = 1_000_000
PROBE_S: Final = 0.01
"""Period of the timer whose delay tells whether the client itself keeps up."""
_TEXT: Final = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said what"
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A group of settings (see `_spec.Workload`): what is asked of a server."""

    mode: Literal["closed", "poisson", "replay"] = "closed"
    clients: int = 8
    """closed: requests in flight at most."""
    rate_per_s: float = 4.0
    """poisson: mean arrivals per second."""
    requests: int = 64
    """Of one round; replay: at most so many of the trace."""
    warmup_requests: int = 0
    """Sent before the round, one client each, and left out of the figures."""
    prompt_tokens: int = 128
    output_tokens: int = 64
    length_spread: float = 0.0
    """Lengths are uniform within this share of the two above."""
    prompt_as: Literal["characters", "words", "token_ids"] = "characters"
    """What a token of a synthetic prompt is written as: exact with the byte tokenizer of llm-serve are characters; an
    English word is about one token elsewhere; token_ids are exact everywhere, but only on the endpoint completions."""
    prompt_vocabulary: int = 256
    """token_ids: numbers below this one."""
    endpoint: Literal["completions", "chat"] = "completions"
    stream: bool = True
    ignore_eos: bool = True
    """Ask for answers of full length (vLLM, SGLang and MindIE know the field; others ignore or refuse it)."""
    temperature: float = 0.0
    request_timeout_s: float = 600.0
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    """Limits that a request must keep to count in the goodput; None: no limit."""

    def __post_init__(self) -> None:
        at_least(self, 1, "clients", "requests", "prompt_tokens", "output_tokens", "prompt_vocabulary")
        at_least(self, 0, "warmup_requests", "temperature")
        if not 0 < self.rate_per_s < float("inf"):
            raise ValueError(f"rate_per_s must be more than 0, got {self.rate_per_s}")
        if not 0 <= self.length_spread < 1:
            raise ValueError(f"length_spread must be 0 or more and less than 1, got {self.length_spread}")
        if not 0 < self.request_timeout_s < float("inf"):
            raise ValueError(f"request_timeout_s must be more than 0, got {self.request_timeout_s}")
        for name in ("slo_ttft_ms", "slo_tpot_ms"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")
        if self.prompt_as == "token_ids" and self.endpoint == "chat":
            raise ValueError("prompt_as token_ids is for the endpoint completions: a chat takes text only")

    @property
    def is_open(self) -> bool:
        """Whether requests arrive by a schedule."""
        return self.mode != "closed"


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """A request of a recorded trace. `prompt` None: synthetic."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A request that will be sent."""

    arrival_ns: int | None
    """After the start of the round; None in a closed loop."""
    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int


@dataclass(kw_only=True)
class Record:
    """What happened to a request; times of the monotonic clock in ns."""

    planned_prompt_tokens: int
    planned_output_tokens: int
    scheduled_ns: int | None = None
    sent_ns: int = 0
    stamps_ns: list[int] = field(default_factory=list)
    """When each piece of the answer that holds a token was read."""
    end_ns: int = 0
    prompt_tokens: int | None = None
    """As the server counted; None: it did not say."""
    output_tokens: int | None = None
    error: str | None = None
    """connect, timeout, disconnected, http_429 ..., truncated, not_json, server_error, empty."""
    said: str = ""
    """What the server said of the error, one line: for the terminal alone, as it may quote what was asked."""

    @property
    def begin_ns(self) -> int:
        """From when its latencies count."""
        return self.sent_ns if self.scheduled_ns is None else self.scheduled_ns


@dataclass(frozen=True, kw_only=True)
class Round:
    """The records of one round, and how the client itself fared."""

    records: list[Record]
    start_ns: int
    cpu_ns: int
    wall_ns: int
    probe_delays_ns: list[int]
    """By how much a timer of `PROBE_S` came late."""
    warmup_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server and how it is asked."""

    url: str
    """Base of the API, with or without /v1."""
    model: str
    api_key: str | None = None
    verify_tls: bool = True

    @property
    def base(self) -> str:
        """The URL up to /v1."""
        return self.url.rstrip("/").removesuffix("/v1")


def read_trace(path: Path) -> list[TraceRow]:
    """A recorded trace, a JSON object per line, in the order of arrival.

    Fields: `arrival` in seconds or `timestamp` in ms (Mooncake's trace); `prompt_tokens` or `input_length`;
    `output_tokens` or `output_length`; or `prompt`, the text itself. Without arrivals all arrive at once.

    Raises:
        InputError: the file cannot be read, is empty, or a line lacks a field or holds no number there.
    """
    try:
        with path.open("rb") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from error
    if not lines or len(lines) > MAX_TRACE_ROWS:
        raise InputError(f"{path.name} holds {len(lines)} requests; expected 1 to {MAX_TRACE_ROWS}")
    rows = []
    for number, line in lines:
        try:
            rows.append(_trace_row(json.loads(line)))
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            reason = str(error)[:200] if type(error) is ValueError else "no JSON object of numbers"
            raise InputError(
                f"{path.name} line {number}: {reason}",
                hint='example: {"arrival": 0.25, "prompt_tokens": 512, "output_tokens": 128}',
            ) from error
    first = min(row.arrival_ns for row in rows)
    return sorted(
        (TraceRow(**{**asdict(row), "arrival_ns": row.arrival_ns - first}) for row in rows), key=lambda r: r.arrival_ns
    )


def _trace_row(record: Mapping[str, object]) -> TraceRow:
    def number(names: Mapping[str, float], least: int) -> int | None:
        for name, scale in names.items():
            if (value := record.get(name)) is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e12:
                    raise ValueError(f"{name} must be a number of {least} or more")
                return round(value * scale)
        return None

    prompt = record.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise ValueError("prompt must be text")
    prompt_tokens = number({"prompt_tokens": 1, "input_length": 1}, 1)
    output_tokens = number({"output_tokens": 1, "output_length": 1}, 1)
    if prompt_tokens is None:
        if prompt is None:
            raise ValueError("prompt_tokens is missing")
        prompt_tokens = len(prompt)
    if output_tokens is None:
        raise ValueError("output_tokens is missing")
    arrival = number({"arrival": 1e9, "timestamp": 1e6}, 0)
    return TraceRow(
        arrival_ns=arrival or 0, prompt_tokens=prompt_tokens, output_tokens=output_tokens, prompt=prompt
    )


def plan_requests(load: Load, seed: int, trace: Sequence[TraceRow] | None = None) -> list[Planned]:
    """The requests of a round: by the seed alone, and the trace.

    A trace gives lengths and prompts in every mode, again from its first row when it is shorter than the round;
    arrivals only when it is replayed, once.

    Raises:
        ValueError: a replay without a trace.
    """
    if load.mode == "replay" and not trace:
        raise ValueError("mode replay needs a trace: name its jsonl file")
    count = load.requests if load.mode != "replay" or trace is None else min(load.requests, len(trace))
    arrivals: Sequence[int | None] = [None] * count
    if load.mode == "poisson":
        arrivals = arrivals_ns(load.rate_per_s, count, seed)
    draws = np.random.default_rng((seed, 1))
    words = random.Random(seed)
    planned = []
    for index in range(count):
        row = trace[index % len(trace)] if trace else None
        prompt_tokens = _length(load.prompt_tokens, load.length_spread, draws) if row is None else row.prompt_tokens
        output_tokens = _length(load.output_tokens, load.length_spread, draws) if row is None else row.output_tokens
        text = None if row is None else row.prompt
        planned.append(
            Planned(
                arrival_ns=row.arrival_ns if row is not None and load.mode == "replay" else arrivals[index],
                prompt=_prompt(load, prompt_tokens, words) if text is None else text,
                prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            )
        )  # fmt: skip
    return planned


def arrivals_ns(rate_per_s: float, count: int, seed: int) -> list[int]:
    """Arrivals of a Poisson process: sums of exponential gaps with mean 1 / rate."""
    gaps_s = np.random.default_rng((seed, 0)).exponential(1 / rate_per_s, count)
    return [round(value) for value in (np.cumsum(gaps_s) * 1e9).tolist()]


def _length(mean: int, spread: float, draws: np.random.Generator) -> int:
    least, most = max(1, round(mean * (1 - spread))), max(1, round(mean * (1 + spread)))
    return int(draws.integers(least, most + 1))


def _prompt(load: Load, tokens: int, words: random.Random) -> str | list[int]:
    if load.prompt_as == "token_ids":
        return [words.randrange(load.prompt_vocabulary) for _ in range(tokens)]
    if load.prompt_as == "words":
        return " ".join(words.choices(_TEXT.split(), k=tokens))
    text = " ".join(words.choices(_TEXT.split(), k=tokens // 2 + 1))
    while len(text) < tokens:
        text += " " + words.choice(_TEXT.split())
    return text[:tokens]


async def run_round(
    target: Target, load: Load, planned: Sequence[Planned], warmup: Sequence[Planned] = ()
) -> Round:
    """Send the warm-up, then the planned requests, and wait for all answers. Errors are in the records."""
    import aiohttp

    headers = {"content-type": "application/json", "accept": "text/event-stream" if load.stream else "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    # One connection per request in flight, whatever their number; proxies of the environment are not used.
    # Idle ones are closed before uvicorn does it (after 5 s), which would meet a request on its way.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4, ssl=target.verify_tls)
    timeout = aiohttp.ClientTimeout(total=load.request_timeout_s)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, auto_decompress=False, read_bufsize=1 << 20
    ) as session:
        first = await asyncio.gather(*(_asked(session, target, load, request, None) for request in warmup))
        delays: list[int] = []
        probe = asyncio.ensure_future(_probe(delays))
        cpu_ns, start_ns = time.process_time_ns(), time.monotonic_ns()
        send = _open_loop if load.is_open else _closed_loop
        records = await send(session, target, load, planned, start_ns)
        wall_ns, cpu_ns = time.monotonic_ns() - start_ns, time.process_time_ns() - cpu_ns
        probe.cancel()
    return Round(
        records=records, start_ns=start_ns, cpu_ns=cpu_ns, wall_ns=wall_ns, probe_delays_ns=delays,
        warmup_errors=sum(record.error is not None for record in first),
    )  # fmt: skip


async def _probe(delays_ns: list[int]) -> None:
    while True:
        before = time.monotonic_ns()
        await asyncio.sleep(PROBE_S)
        delays_ns.append(time.monotonic_ns() - before - round(PROBE_S * 1e9))


async def _closed_loop(
    session: aiohttp.ClientSession, target: Target, load: Load, planned: Sequence[Planned], start_ns: int
) -> list[Record]:
    left = iter(enumerate(planned))
    records: dict[int, Record] = {}

    async def client() -> None:
        for index, request in left:  # shared: each takes the next
            records[index] = await _asked(session, target, load, request, None)

    await asyncio.gather(*(client() for _ in range(min(load.clients, len(planned)))))
    return [records[index] for index in range(len(planned))]


async def _open_loop(
    session: aiohttp.ClientSession, target: Target, load: Load, planned: Sequence[Planned], start_ns: int
) -> list[Record]:
    tasks = []
    for request in planned:
        scheduled_ns = start_ns + (request.arrival_ns or 0)
        while (wait_ns := scheduled_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(wait_ns / 1e9)
        tasks.append(asyncio.ensure_future(_asked(session, target, load, request, scheduled_ns)))
    return list(await asyncio.gather(*tasks))


def request_body(target: Target, load: Load, request: Planned) -> dict[str, object]:
    """The JSON of a request."""
    body: dict[str, object] = {
        "model": target.model, "max_tokens": request.output_tokens, "temperature": load.temperature,
        "stream": load.stream,
    }  # fmt: skip
    if load.stream:
        body["stream_options"] = {"include_usage": True}
    if load.ignore_eos:
        body["ignore_eos"] = True
    if load.endpoint == "chat":
        return {**body, "messages": [{"role": "user", "content": request.prompt}]}
    return {**body, "prompt": request.prompt}


async def _asked(
    session: aiohttp.ClientSession, target: Target, load: Load, request: Planned, scheduled_ns: int | None
) -> Record:
    """Send one request and read its answer to the end."""
    import aiohttp

    record = Record(
        planned_prompt_tokens=request.prompt_tokens, planned_output_tokens=request.output_tokens,
        scheduled_ns=scheduled_ns,
    )  # fmt: skip
    path = "/v1/chat/completions" if load.endpoint == "chat" else "/v1/completions"
    data = json.dumps(request_body(target, load, request)).encode()
    record.sent_ns = time.monotonic_ns()
    try:
        # Redirects are not followed: the load goes to the server that was named.
        async with session.post(target.base + path, data=data, allow_redirects=False) as response:
            if response.status >= 300:
                record.error, record.said = f"http_{response.status}", said_in(await response.read())
            elif load.stream:
                await _read_stream(response, load, record)
            else:
                _read_whole(await response.read(), record)
    except (asyncio.TimeoutError, TimeoutError):
        record.error = "timeout"
    except aiohttp.ClientConnectorError:
        record.error = "connect"
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionError):
        record.error = "disconnected"
    except aiohttp.ClientError:
        record.error = "protocol"
    record.end_ns = time.monotonic_ns()
    return record


async def _read_stream(response: aiohttp.ClientResponse, load: Load, record: Record) -> None:
    buffer, is_done = b"", False
    async for part in response.content.iter_any():
        now_ns = time.monotonic_ns()
        *lines, buffer = (buffer + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                is_done |= _take_event(line[5:].strip(), load, record, now_ns)
        if len(buffer) > MAX_EVENT_BYTES:
            record.error = "not_json"
        if record.error:
            return
    if not is_done:
        record.error = "truncated"
    elif not record.stamps_ns:
        record.error = "empty"


def _take_event(data: bytes, load: Load, record: Record, now_ns: int) -> bool:
    """Read one event; whether it says that the answer is complete."""
    if data == b"[DONE]":
        return True
    try:
        event = json.loads(data)
        if event.get("error") is not None:
            record.error, record.said = "server_error", said_in(data)
            return False
        _take_usage(event, record)
        is_done = False
        for choice in (event.get("choices") or ())[:1]:
            is_done = choice.get("finish_reason") is not None
            if load.endpoint == "chat":
                delta = choice.get("delta") or {}
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
                # The first event of a chat brings the role and no token; later ones may bring half a character.
                has_token = bool(text) or ("role" not in delta and "content" in delta and not is_done)
            else:
                has_token = bool(choice.get("text")) or not is_done
            if has_token:
                record.stamps_ns.append(now_ns)
        return is_done
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        record.error = "not_json"
        return False


def _read_whole(data: bytes, record: Record) -> None:
    try:
        answer = json.loads(data)
        _take_usage(answer, record)
        if not answer["choices"]:
            record.error = "empty"
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        record.error = "not_json"


def _take_usage(event: Mapping[str, object], record: Record) -> None:
    usage = event.get("usage")
    if isinstance(usage, dict):
        for name, ours in (("prompt_tokens", "prompt_tokens"), ("completion_tokens", "output_tokens")):
            if type(value := usage.get(name)) is int and 0 <= value < 1 << 40:
                setattr(record, ours, value)


async def first_model(target: Target) -> str:
    """The first model that the server names.

    Raises:
        InputError: it cannot be reached, or names none.
    """
    import aiohttp

    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), headers=headers) as session,
            session.get(f"{target.base}/v1/models", ssl=target.verify_tls, allow_redirects=False) as response,
        ):
            body = await response.read()
            if response.status >= 300:
                hint = "check the URL, or name the model with --model"
                if response.status in (401, 403):
                    hint = "give the key in the variable that --api-key-env names"
                raise InputError(f"/v1/models of the server answers {response.status}: {said_in(body)}", hint=hint)
            return str(json.loads(body)["data"][0]["id"])
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise InputError(f"the server cannot be reached: {reason_of(error)}", hint="check the URL") from error
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise InputError("the server names no model at /v1/models", hint="name it with --model") from error


def main() -> None:
    """Rounds for a workload: each line of standard input asks for one, each line of standard output is its `Round`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, meant for the workload, which ends us
    trace: Sequence[TraceRow] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        load, seed = Load(**asked["load"]), int(asked["seed"])
        if trace is None and asked["trace"] is not None:
            trace = read_trace(Path(asked["trace"]))
        planned = plan_requests(load, seed, trace)
        round_ = asyncio.run(run_round(Target(**asked["target"]), load, planned, warmup_of(load, seed, trace)))
        sys.stdout.write(json.dumps(asdict(round_)) + "\n")
        sys.stdout.flush()


def warmup_of(load: Load, seed: int, trace: Sequence[TraceRow] | None = None) -> list[Planned]:
    """The requests of the warm-up: of the planned lengths (of a trace, its first ones), with other prompts."""
    if not load.warmup_requests:
        return []
    values = {**asdict(load), "mode": "closed", "requests": load.warmup_requests}
    return plan_requests(Load(**values), seed + (1 << 32), trace)


def round_from(values: Mapping[str, object]) -> Round:
    """The `Round` that `main` wrote."""
    records = values["records"]
    assert isinstance(records, list)
    return Round(**{**values, "records": [Record(**record) for record in records]})  # type: ignore[arg-type]  # ours


if __name__ == "__main__":
    main()
