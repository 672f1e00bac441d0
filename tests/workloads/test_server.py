"""The HTTP server over a stand-in for the model: answers, refusals, clients that leave, and the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.errors import MachineError
from ascend_perf.workloads._batching import Batcher, Limits
from tests.workloads._slots import SlotRunner, alone

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

LIMITS = Limits(blocks=64, block_tokens=4, max_batch=8, max_queue=64, max_context=100, prefill_tokens=64)


@dataclass
class Running:
    """A server whose batcher runs in a thread."""

    batcher: Batcher
    server: Any
    port: int
    stop: threading.Event
    thread: threading.Thread
    given_up: int | None = None

    def end(self, limit_s: float = 10.0) -> int:
        """Shut down from the batcher's place; the requests that were given up."""
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.given_up is None:
            self.given_up = self.server.shut_down(limit_s)
        return self.given_up

    def post(self, body: object, path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def send(self, body: object, path: str = "/v1/completions") -> socket.socket:
        """A request whose answer is not read."""
        data = json.dumps(body).encode()
        wire = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        wire.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return wire


@contextlib.contextmanager
def serving(limits: Limits = LIMITS, pause_s: float = 0.0) -> Iterator[Running]:
    from ascend_perf.workloads._server import HttpServer, Service

    service = Service("m", 300)
    batcher = service.batcher = Batcher(SlotRunner(pause_s=pause_s), limits, service.deliver)
    server = HttpServer(service)
    server.start()
    stop = threading.Event()
    thread = threading.Thread(target=batcher.run, args=(stop.is_set,))
    thread.start()
    running = Running(batcher, server, int(server.url.rsplit(":", 1)[1]), stop, thread)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as one:
        yield one


def until(condition: Any, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def events_of(wire: socket.socket) -> list[str]:
    """Data of the server-sent events, to the end of the answer."""
    answer = http.client.HTTPResponse(wire)
    answer.begin()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.read().decode().split("\n\n")
    assert blocks[-1] == "" and all(block.startswith("data: ") for block in blocks[:-1])
    return [block.removeprefix("data: ") for block in blocks[:-1]]


def test_a_completion_is_that_of_the_model_and_its_tokens_are_counted(running: Running) -> None:
    status, answer = running.post({"model": "m", "prompt": "hello", "max_tokens": 6, "temperature": 0})

    assert status == 200
    assert answer["object"] == "text_completion" and answer["model"] == "m" and answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["text"] == text_of(alone(b"hello", 6))
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_equal_seeds_sample_equal_answers(running: Running) -> None:
    texts = [
        running.post({"model": "m", "prompt": [7], "max_tokens": 6, "seed": seed})[1]["choices"][0]["text"]
        for seed in (3, 3, 4)
    ]

    assert texts[0] == texts[1] == text_of(alone([7], 6, seed=3)) != texts[2]


def test_a_stream_brings_one_event_per_token(running: Running) -> None:
    body = {"model": "m", "prompt": [1, 2], "max_tokens": 9, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    with running.send(body) as wire:
        *chunks, usage, done = events_of(wire)

    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert len(parsed) == 9
    assert "".join(chunk["choices"][0]["text"] for chunk in parsed) == text_of(alone([1, 2], 9))
    assert [chunk["choices"][0]["finish_reason"] for chunk in parsed] == [None] * 8 + ["length"]
    assert {chunk["id"] for chunk in parsed} == {json.loads(usage)["id"]}
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}


def test_a_chat_streams_deltas_after_the_role(running: Running) -> None:
    prompt = b"user: hi\nassistant:"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    with running.send({**body, "stream": True}, "/v1/chat/completions") as wire:
        first, *chunks, done = events_of(wire)

    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(first)["object"] == "chat.completion.chunk"
    assert "".join(json.loads(c)["choices"][0]["delta"]["content"] for c in chunks) == text_of(alone(prompt, 5))
    assert done == "[DONE]"
    status, whole = running.post(body, "/v1/chat/completions")
    assert status == 200
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text_of(alone(prompt, 5))}


def test_a_chat_without_a_limit_fills_the_context(running: Running) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    _, answer = running.post(body, "/v1/chat/completions")

    assert answer["usage"]["total_tokens"] == LIMITS.max_context


def test_a_stop_string_ends_the_answer_before_it(running: Running) -> None:
    # A text whose first bytes are plain letters, so that a stop string can be cut from it.
    seed = next(n for n in range(1 << 16) if all(32 < token < 127 for token in alone([n % 256, n // 256], 3)))
    prompt = [seed % 256, seed // 256]
    text = text_of(alone(prompt, 3))
    _, answer = running.post({"model": "m", "prompt": prompt, "max_tokens": 3, "temperature": 0, "stop": text[1]})

    assert answer["choices"][0]["text"] == text[: text.index(text[1])]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == text.index(text[1]) + 1


def test_models_and_health(running: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models")
        models = json.loads(connection.getresponse().read())
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read())

    assert [model["id"] for model in models["data"]] == ["m"]
    assert models["data"][0]["max_model_len"] == 100
    assert health == {"status": "ok", "running": 0, "waiting": 0}


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "code"),
    [
        ({"model": "x", "prompt": "a"}, "/v1/completions", {}, 404, "model_not_found"),
        ({"model": "m", "prompt": "a" * 95}, "/v1/completions", {}, 400, "context_length_exceeded"),
        ({"model": "m", "prompt": "a", "max_tokens": 1 << 29}, "/v1/completions", {}, 400, "context_length_exceeded"),
        ({"model": "m", "messages": [{"role": "user", "content": "a" * 200}]}, "/v1/chat/completions", {}, 400,
         "context_length_exceeded"),
        ({"model": "m", "prompt": "a"}, "/v1/completions", {"content-type": "text/plain"}, 415, None),
        ({"model": "m", "prompt": "a"}, "/v1/nothing", {}, 404, None),
        ({"model": "m", "prompt": "a"}, "/v1/models", {}, 405, None),
        (b"x" * ((8 << 20) + 1), "/v1/completions", {}, 413, None),
        (b"{", "/v1/completions", {}, 400, None),
    ],
)  # fmt: skip
def test_refusals_are_said_as_the_api_says_them(
    running: Running, body: object, path: str, headers: dict[str, str], status: int, code: str | None
) -> None:
    said, answer = running.post(body, path, **headers)

    assert said == status
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = ("model", "prompt", "messages", "max_tokens", "temperature", "stop", "seed", "n", "top_p", "stream_options")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(_NAMES), _JSON),
    st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
    st.booleans(),
)
def test_no_body_makes_a_server_error(running: Running, fields: dict[str, Any], path: str, is_whole: bool) -> None:
    start = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "c"}], "max_tokens": 2}
    status, answer = running.post({**(start if is_whole else {}), **fields}, path)

    assert status == 200 or (400 <= status < 500 and answer["error"]["message"])


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff" * 100, b'{"model":"m","prompt":"\\ud800"}', b"", b"null"])
def test_hostile_bytes_make_no_server_error(running: Running, data: bytes) -> None:
    status, answer = running.post(data)

    assert status == 400 and answer["error"]["message"]


def test_a_full_queue_answers_429_and_what_waits_is_answered() -> None:
    with serving(replace(LIMITS, max_batch=1, max_queue=2), pause_s=0.02) as one:
        body = {"model": "m", "prompt": [1], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        wires = [one.send(body)]
        until(lambda: one.batcher.running == 1)
        wires += [one.send(body) for _ in range(2)]
        until(lambda: one.batcher.waiting == 2)
        status, answer = one.post(body)

        assert (status, answer["error"]["code"]) == (429, "queue_full")
        for wire in wires:
            with wire:
                whole = http.client.HTTPResponse(wire)
                whole.begin()
                assert json.loads(whole.read())["choices"][0]["text"] == text_of(alone([1], 40))


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_its_place(is_stream: bool) -> None:
    with serving(replace(LIMITS, max_batch=1), pause_s=0.01) as one:
        wire = one.send({"model": "m", "prompt": [1], "max_tokens": 99, "stream": is_stream, "ignore_eos": True})
        until(lambda: one.batcher.running == 1)
        waiting = one.send({"model": "m", "prompt": [2], "max_tokens": 2})
        until(lambda: one.batcher.waiting == 1)
        waiting.close()  # one that waits is given up as well
        wire.close()
        until(lambda: one.batcher.counts.cancelled == 2)

        assert (one.batcher.running, one.batcher.waiting) == (0, 0)
        assert one.batcher.pool.free == LIMITS.blocks
        assert one.batcher.counts.output_tokens < 99


def test_the_end_answers_what_is_in_flight_and_takes_nothing_more() -> None:
    with serving(replace(LIMITS, max_batch=2), pause_s=0.01) as one:
        bodies = [
            {"model": "m", "prompt": [n], "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stream": n % 2 == 0}
            for n in range(5)
        ]
        idle = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        wires = [one.send(body) for body in bodies]
        until(lambda: one.batcher.running + one.batcher.waiting == 5)

        assert one.end(limit_s=60) == 0
        for number, wire in enumerate(wires):
            with wire:
                if number % 2 == 0:
                    *chunks, done = events_of(wire)
                    assert done == "[DONE]"
                    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
                else:
                    whole = http.client.HTTPResponse(wire)
                    whole.begin()
                    text = json.loads(whole.read())["choices"][0]["text"]
                assert text == text_of(alone([number], 30))
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", one.port), timeout=5)
        idle.close()


def test_what_is_not_answered_in_time_is_told() -> None:
    with serving(replace(LIMITS, max_batch=1), pause_s=0.05) as one:
        body = {"model": "m", "prompt": [1], "max_tokens": 99, "ignore_eos": True}
        stream, whole, waiting = one.send({**body, "stream": True}), one.send(body), one.send(body)
        until(lambda: one.batcher.running + one.batcher.waiting == 3)

        assert one.end(limit_s=0.2) == 3
        with stream:
            *_, last = events_of(stream)
            assert "before the answer was complete" in json.loads(last)["error"]["message"]
        for wire in (whole, waiting):
            with wire:
                answer = http.client.HTTPResponse(wire)
                answer.begin()
                assert answer.status == 503
                assert json.loads(answer.read())["error"]["type"] == "server_error"


def test_a_draining_server_refuses_new_requests_on_old_connections() -> None:
    with serving() as one:
        one.batcher.drain()
        status, answer = one.post({"model": "m", "prompt": [1]})

        assert (status, answer["error"]["code"]) == (503, "draining")


def test_a_taken_port_is_said() -> None:
    from ascend_perf.workloads._server import HttpServer, Service

    with serving() as one, pytest.raises(MachineError, match=f"cannot listen at 127.0.0.1 port {one.port}"):
        HttpServer(Service("m", 300), port=one.port)


def test_a_model_that_fails_is_told_and_the_end_is_clean() -> None:
    from ascend_perf.workloads._server import HttpServer, Service

    class Broken:
        def run(self, rows: object) -> list[tuple[int, float]]:
            raise RuntimeError("no memory")

    service = Service("m", 300)
    batcher = service.batcher = Batcher(Broken(), LIMITS, service.deliver)
    server = HttpServer(service)
    server.start()
    one = Running(batcher, server, int(server.url.rsplit(":", 1)[1]), threading.Event(), threading.Thread())
    with one.send({"model": "m", "prompt": "a"}) as first, one.send({"model": "m", "prompt": "b"}) as second:
        until(lambda: batcher.waiting == 2)
        with pytest.raises(RuntimeError, match="no memory"):
            server.shut_down(10)
        for wire in (first, second):
            answer = http.client.HTTPResponse(wire)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["error"]["message"]) == (500, "the model failed")


def test_what_is_no_http_is_refused(running: Running) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as wire:
            wire.sendall(data + b"\r\n\r\n")
            assert wire.recv(100).startswith(b"HTTP/1.1 400")
    assert running.post({"model": "m", "prompt": "a", "max_tokens": 1})[0] == 200
