"""llm-serve: a language model behind HTTP, with continuous batching, and the clients that load it.

    client process: requests -> HTTP -> queue -> [admit -> prefill -> decode] -> tokens -> HTTP -> stamps

One step is one round of load: all its requests, from the first to the last answer. The model runs in the thread that
steps, where the profiler sees it; the HTTP server has a thread, the clients a process of their own, so that their clock
is not that of a busy server. The parts: `_serving.py` (model and server), `_batching.py` (what runs when), `_load.py`
(clients), `_load_figures.py` (latencies). Read top to bottom: settings, work, one round, figures.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Final

from ascend_perf.errors import MachineError, UsageError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _load_figures
from ascend_perf.workloads._batching import Counts
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._load import Load, Planned, Record, Round, plan_requests, read_trace, round_from
from ascend_perf.workloads._model_shape import ModelShape, forward_flops, parameter_count
from ascend_perf.workloads._serving import ServeSettings, check_vocabulary, predicted, serve
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Value, workload

MODEL_NAME: Final = "llm-serve"
CLIENT_END_S: Final = 10.0
"""What the client's process has to end when nothing is asked of it any more."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model, the server's sizes, and the load of one round."""

    model: ModelShape = field(default_factory=ModelShape)
    operators: FusedSettings = field(default_factory=FusedSettings)
    server: ServeSettings = field(default_factory=ServeSettings)
    load: Load = field(default_factory=Load)

    def __post_init__(self) -> None:
        check_vocabulary(self.model)
        if not self.load.ignore_eos:
            raise ValueError("ignore_eos stays true here: throughput counts the planned tokens")
        if self.load.mode != "replay":
            most = math.ceil((self.load.prompt_tokens + self.load.output_tokens) * (1 + self.load.length_spread))
            if most > min(self.server.max_context, self.server.cache_tokens):
                raise ValueError(
                    f"requests of {most} tokens do not fit: max_context is {self.server.max_context}, "
                    f"cache_tokens {self.server.cache_tokens}"
                )


def request_flops(shape: ModelShape, prompt: int, output: int) -> int:
    """Model FLOPs of a request: its prompt in one forward with one row of logits, then each token but the last."""
    answer = sum(forward_flops(shape, 1, prompt + count) for count in range(1, output))
    return forward_flops(shape, prompt, prompt, output_tokens=1) + answer


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Weights and cache, by formula.

    Raises:
        ValueError: more than one process.
    """
    if world_size != 1:
        raise ValueError(f"llm-serve runs in 1 process, not {world_size}")
    return predicted(config.model, config.server, target)


class Client:
    """The process of the load generator: it gets a round as a line of JSON, and answers with one."""

    def __init__(self, load: Load, url: str, trace: str | None) -> None:
        self._asked = {"load": asdict(load), "trace": trace, "target": {"url": url, "model": MODEL_NAME}}
        # The clients do not need the model's threads, and must not take its cores.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ascend_perf.workloads._load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def begin(self, seed: int) -> Answer:
        """Start a round; its records come when it is over."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then the answer is empty, which is told there
            self._process.stdin.write(json.dumps({**self._asked, "seed": seed}) + "\n")
            self._process.stdin.flush()
        return Answer(self._process.stdout)

    def end(self) -> None:
        """Ask for nothing more, and see that the process ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(CLIENT_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Answer:
    """A line that a thread of its own waits for, while the model works."""

    def __init__(self, lines: IO[str]) -> None:
        self._line = ""
        self._lines = lines
        self._thread = threading.Thread(target=self._read, name="load-answer", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed at the end of an interrupted round
            self._line = self._lines.readline()

    def is_there(self) -> bool:
        """Whether the round is over, or the client has died."""
        return not self._thread.is_alive()

    def round(self) -> Round:
        """The round.

        Raises:
            MachineError: the client's process has ended.
        """
        if not self._line:
            raise MachineError("the process of the load generator has ended", hint="its last words are above")
        return round_from(json.loads(self._line))


@workload(
    name="llm-serve",
    about=Words(
        "language model behind an OpenAI-compatible HTTP server with continuous batching, under generated load",
        "OpenAI 兼容 HTTP 服务中的语言模型（连续批处理），由负载生成器施压",
    ),
    config=Config,
    takes=("data",),
    needs=("fastapi", "uvicorn", "aiohttp"),
    predict=predict,
)
def llm_serve(config: Config, place: Place, seed: int) -> Program:
    """Server and client, ready for rounds; weights, prompts, lengths and arrivals depend on the seed alone."""
    if place.world_size != 1:
        raise UsageError(f"llm-serve runs in one process, not {place.world_size}", hint="leave --nproc out")
    trace = None if place.data is None else read_trace(place.data)
    try:
        planned = plan_requests(config.load, seed, trace)
    except ValueError as error:
        raise UsageError(f"llm-serve: {error}", hint="name it with --data") from error
    _check_fit(config, planned)
    # A trace of another tokenizer's lengths is replayed in ours: prompts as characters are exact.
    served = serve(config.model, config.server, config.operators, place, seed, model_name=MODEL_NAME)
    client = Client(config.load, served.server.url, None if place.data is None else str(place.data))
    batcher, rounds = served.batcher, list[Round]()

    def step() -> None:
        # Every round has the same requests, so that steps can be compared.
        answer = client.begin(seed)
        batcher.run(answer.is_there)
        rounds.append(answer.round())
        if not _completed(rounds[-1].records):
            raise MachineError(f"no request was answered: {rounds[-1].records[0].error}")

    def forget() -> None:
        rounds.clear()
        batcher.reset_counts()

    def close() -> None:
        try:
            served.server.shut_down(config.server.drain_s)
        finally:
            client.end()

    return Program(
        step=step,
        item="tokens",
        items_per_step=sum(request.output_tokens for request in planned),
        flops_per_step=sum(request_flops(config.model, p.prompt_tokens, p.output_tokens) for p in planned),
        dtype=served.dtype,
        parameters=parameter_count(config.model),
        # Not of the answers: their rounding depends on which requests happened to run together.
        value_name="completed_requests",
        last_value=lambda: float(_completed(rounds[-1].records)),
        memory_bytes=lambda: {"weights": served.weight_bytes, "cache": served.cache_bytes},
        latencies_ns=lambda: _load_figures.figures_of(config.load, _records(rounds)).latencies_ns,
        metrics=lambda: _metrics(config.load, rounds, batcher.counts),
        tables=lambda: {"requests": _rows(rounds), "fused_operators": served.fused.rows()},
        start_measuring=forget,
        close=close,
    )


def _check_fit(config: Config, planned: Sequence[Planned]) -> None:
    most = max(request.prompt_tokens + request.output_tokens for request in planned)
    limit = min(config.server.max_context, config.server.cache_tokens)
    if most > limit:
        raise UsageError(
            f"llm-serve: the longest request of the trace has {most} tokens, the server takes {limit}",
            hint=f"set max_context and cache_tokens to {most} or more",
        )


def _records(rounds: Sequence[Round]) -> list[Record]:
    return [record for one in rounds for record in one.records]


def _completed(records: Sequence[Record]) -> int:
    return sum(record.error is None for record in records)


def _metrics(load: Load, rounds: Sequence[Round], counts: Counts) -> Sequence[Metric]:
    """Figures of the measured rounds: what the clients saw, then how the server's batches were filled.

    Rates are sums over rounds by the sum of their durations; between rounds nothing is asked.
    """
    each = [_load_figures.figures_of(load, one.records) for one in rounds]
    seconds = sum(figures.duration_ns for figures in each) / 1e9
    if not seconds:
        return ()
    good = None if each[0].good is None else sum(figures.good or 0 for figures in each)
    completed, total = sum(figures.completed for figures in each), len(_records(rounds))
    late = [record.sent_ns - record.scheduled_ns for record in _records(rounds) if record.scheduled_ns is not None]
    late += [delay for one in rounds for delay in one.probe_delays_ns]
    waits = counts.queue_wait_ns
    metrics = [
        Metric(name="request_throughput", value=completed / seconds, unit="items_per_s", better="higher"),
        Metric(name="output_token_throughput", value=sum(f.output_tokens for f in each) / seconds,
               unit="items_per_s", better="higher"),
        Metric(name="failed_requests", value=total - completed, unit="count", better="lower"),
        Metric(name="queue_wait_median", value=statistics.median(waits) if waits else None, unit="ns", better="lower"),
        Metric(name="batch_mean", value=counts.rows / counts.steps if counts.steps else None, unit="none",
               better="higher"),
        Metric(name="batch_peak", value=counts.peak_batch, unit="count", better="none"),
        Metric(name="cache_blocks_peak", value=counts.peak_blocks, unit="count", better="none"),
        Metric(name="client_late_p99", value=_load_figures.percentile(late, 99), unit="ns", better="lower"),
    ]  # fmt: skip
    if good is not None:
        metrics += [
            Metric(name="goodput", value=good / seconds, unit="items_per_s", better="higher"),
            Metric(name="slo_met", value=good / total, unit="ratio", better="higher"),
        ]
    return metrics


def _rows(rounds: Sequence[Round]) -> Sequence[Mapping[str, Value]]:
    """One row per request: times in ns after the start of its round."""
    return [
        {
            "round": number,
            "begin_ns": record.begin_ns - one.start_ns,
            "sent_ns": record.sent_ns - one.start_ns,
            "first_token_ns": record.stamps_ns[0] - one.start_ns if record.stamps_ns else None,
            "last_token_ns": record.stamps_ns[-1] - one.start_ns if record.stamps_ns else None,
            "end_ns": record.end_ns - one.start_ns,
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "error": record.error,
        }
        for number, one in enumerate(rounds, 1)
        for record in one.records
    ]
