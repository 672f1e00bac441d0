"""Load on a server that is already running, as a benchmark of a suite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ascend_perf.bench.scenario import run_load
from ascend_perf.bench.suite import run_suite
from ascend_perf.bench.suite_file import Served
from ascend_perf.errors import InputError, MachineError
from ascend_perf.workloads._load import Load

pytest.importorskip("aiohttp", reason="load needs aiohttp")


class _Answers(BaseHTTPRequestHandler):
    """Two tokens for each request; what is asked for as model `broken` fails."""

    protocol_version = "HTTP/1.1"

    def _send(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "first"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] == "broken" or self.headers.get("authorization") == "Bearer wrong":
            self._send(500, {"error": {"message": "out of order"}})
            return
        events = [
            {"choices": [{"text": "a", "finish_reason": None}]},
            {"choices": [{"text": "b", "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        ]  # fmt: skip
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._send(200, lines.encode(), "text/event-stream")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_measured_in_rounds(address: str, tmp_path: Path) -> None:
    text = (
        f"runs: 2\nbenchmarks: [{{name: chat, server: '{address}', load: {{requests: 6, clients: 2, prompt_tokens: 3, "
        "output_tokens: 2}}]"
    )

    (chat,) = run_suite(text, "s.yaml", tmp_path, tmp_path / "out", machine=lambda device: {"kind": "cpu"}).benchmarks

    assert [run.status for run in chat.launches] == ["complete", "complete"], chat.launches
    for run in chat.launches:
        values = {metric.name: metric.value for metric in run.metrics}
        assert (values["failed_requests"], len(run.samples_ns["e2e"]), len(run.samples_ns["ttft"])) == (0, 6, 6)
        # Two tokens of each of six requests, in the same time.
        assert values["tokens_per_s"] == pytest.approx(2 * (values["requests_per_s"] or 0))
        assert "ttft_p50" in values
        assert run.folder is not None and (tmp_path / "out" / run.folder / "load.json").is_file()
    assert (chat.config["requests"], chat.config["model"]) == (6, None)
    # The address of the server is in no result.
    assert address.rsplit("/", 1)[1] not in (tmp_path / "out" / "results.json").read_text("utf-8")


def test_a_server_that_fails_or_is_not_there_is_told(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(requests=2, clients=1, prompt_tokens=3, output_tokens=2)
    with pytest.raises(InputError, match="the server completed no request: 2 http_500"):
        run_load(Served(url=address, load=load, model="broken"), tmp_path)
    with pytest.raises(MachineError, match="the variable NO_SUCH_KEY is not set"):
        run_load(Served(url=address, load=load, api_key_env="NO_SUCH_KEY"), tmp_path)
    monkeypatch.setenv("A_KEY", "wrong")
    with pytest.raises(InputError, match="2 http_500"):
        run_load(Served(url=address, load=load, model="m", api_key_env="A_KEY"), tmp_path)
    with pytest.raises(InputError, match="cannot be reached"):
        run_load(Served(url="http://127.0.0.1:9", load=load), tmp_path)
