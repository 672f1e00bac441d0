"""`ascend-perf serve` and `ascend-perf load` as a user meets them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SMALL = [
    word
    for text in ("layers=1", "width=16", "heads=2", "kv_heads=1", "hidden=16", "vocabulary=258", "dtype=fp32",
                 "clients=1", "requests=1", "prompt_tokens=4", "output_tokens=4")
    for word in ("--set", text)
]  # fmt: skip


def ascend_perf(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_perf", *words]
    environment = {**os.environ, "OPENAI_API_KEY": ""}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False, env=environment
    )


LARGE = ("--set", "max_context=700", "--set", "cache_tokens=700")


@contextlib.contextmanager
def server(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own and its URL."""
    for package in ("torch", "fastapi", "uvicorn", "aiohttp"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "ascend_perf", "serve", "--port", "0", "--device", "cpu", *SMALL, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield process, found[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.torch
def test_a_server_is_loaded_its_result_analysed_and_its_end_waits_for_answers(tmp_path: Path) -> None:
    with server(*LARGE) as (process, url):
        words = ("--requests", "12", "--clients", "3", "--warmup", "1", "--prompt-as", "characters",
                 "--prompt-tokens", "20", "--output-tokens", "6", "--slo-ttft-ms", "60000")  # fmt: skip
        closed = ascend_perf("load", url, *words, "-o", "closed.json", cwd=tmp_path)
        chat = ascend_perf(
            "load", url, *words, "--mode", "poisson", "--rate", "100", "--endpoint", "chat", "--lang", "zh",
            cwd=tmp_path,
        )  # fmt: skip
        analysed = ascend_perf("analyze", "closed.json", "--format", "json", "-o", "report", cwd=tmp_path)
        with in_flight(url) as wire:
            process.send_signal(signal.SIGTERM)
            answer = http.client.HTTPResponse(wire)
            answer.begin()
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 600
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "ended; every request was answered\n"

    assert closed.returncode == chat.returncode == analysed.returncode == 0, closed.stderr + chat.stderr
    result = json.loads((tmp_path / "closed.json").read_text("utf-8"))
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (12, 0, 72)
    assert result["input_lens"] == [20] * 12 and result["output_lens"] == [6] * 12
    assert result["model_id"] == "llm-serve"
    assert result["request_goodput"] == result["request_throughput"]
    assert url.removeprefix("http://") not in json.dumps(result)
    assert closed.stdout.splitlines()[-1] == "closed.json"
    assert "TTFT" in closed.stdout and "100 % of the requests kept the limits" in closed.stdout
    assert "12 个请求" in chat.stdout
    assert re.fullmatch(r"load-\d{8}-\d{6}\.json", chat.stdout.splitlines()[-1])
    report = json.loads((tmp_path / "report/report.json").read_text("utf-8"))
    metrics = {metric["name"]: metric["value"] for metric in report["metrics"]}
    assert metrics["ttft_p50_ns"] == pytest.approx(result["median_ttft_ms"] * 1e6)
    assert metrics["request_throughput"] == pytest.approx(result["request_throughput"])


@pytest.mark.torch
@pytest.mark.slow
def test_a_second_signal_ends_at_once() -> None:
    with server(*LARGE) as (process, url), in_flight(url):
        process.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(url))
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 130


@contextlib.contextmanager
def in_flight(url: str) -> Iterator[socket.socket]:
    """A long request that the model works on."""
    body = json.dumps({"model": "llm-serve", "prompt": "a", "max_tokens": 600, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(address_of(url), timeout=120) as wire:
        wire.sendall(head.encode() + body)
        until(lambda: health(url)["running"] == 1)
        yield wire


def address_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def health(url: str) -> dict[str, int]:
    connection = http.client.HTTPConnection(*address_of(url), timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return dict(json.loads(connection.getresponse().read()))


def is_listening(url: str) -> bool:
    try:
        socket.create_connection(address_of(url), timeout=60).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["load"], 2, "Missing argument 'URL'"),
        (["load", "ftp://x"], 2, "'ftp://x' is no address of a server"),
        (["load", "http://"], 2, "is no address of a server"),
        (["load", "http://127.0.0.1:99999"], 2, "is no address of a server"),
        (["load", "http://127.0.0.1:9", "--mode", "replay"], 2, "mode replay needs a trace"),
        (["load", "http://127.0.0.1:9", "--mode", "replay", "--trace", "absent.jsonl"], 3, "cannot be read"),
        (["load", "http://127.0.0.1:9", "--clients", "0"], 2, "clients must be 1 or more"),
        (["load", "http://127.0.0.1:9", "--prompt-as", "token_ids", "--endpoint", "chat"], 2, "takes text only"),
        (["load", "http://127.0.0.1:9"], 3, "the server cannot be reached"),
        (["serve", "--preset", "huge"], 2, "llm-serve has no preset 'huge'"),
        (["serve", "--set", "max_bach=3"], 2, "did you mean 'max_batch'?"),
    ],
)
def test_mistakes_end_with_a_message(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    for package in ("torch", "fastapi", "uvicorn", "aiohttp"):
        pytest.importorskip(package)
    done = ascend_perf(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_model_asks_for_and_the_server_does_not_do_is_said(tmp_path: Path) -> None:
    for package in ("torch", "fastapi", "uvicorn"):
        pytest.importorskip(package)
    model = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "mlp_bias": True,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "vocab_size": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(model))
    done = ascend_perf("serve", "--model-config", "config.json", "--set", "max_bach=3", cwd=tmp_path)

    assert done.returncode == 2 and "did you mean 'max_batch'?" in done.stderr
    assert "--model-config: mlp_bias: the MLP is run without bias" in done.stderr.splitlines()


def test_a_load_that_nobody_answers_is_kept_and_fails(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    done = ascend_perf("load", "http://127.0.0.1:9", "--model", "m", "--requests", "3", "-o", "r.json", cwd=tmp_path)

    assert done.returncode == 3
    assert "no request was answered: connect (3)" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["errors_by_kind"] == {"connect": 3}
    again = ascend_perf("load", "http://127.0.0.1:9", "--model", "m", "-o", "r.json", cwd=tmp_path)
    assert again.returncode == 2 and "r.json exists" in again.stderr
