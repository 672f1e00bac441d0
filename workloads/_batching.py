"""Continuous batching: requests join and leave the running batch between steps of the model.

    queue -> admit while blocks of the cache are free -> prefill a chunk of the new -> one token for each that runs

A request is admitted only when blocks for its prompt and its longest answer are free, so that nothing that runs is ever
put aside; the price is blocks that a shorter answer leaves unused. Nothing here imports torch: the model is a `Runner`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

IDLE_S: Final = 0.05
"""A batcher that has nothing to do looks at its end condition this often at least."""

Reason = Literal["stop", "length", "cancelled", "error"]


class QueueFull(Exception):
    """As many requests wait as may."""


class Draining(Exception):
    """The batcher takes no new requests any more."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy. `top_k` 0: all."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(eq=False, kw_only=True)
class Request:
    """One text to go on with, and how far it has come."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    should_stop: Callable[[int], bool] = lambda token: False
    """Told each token of the answer once, in order; True ends the request with it."""
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    """Tokens whose keys and values are in the cache."""
    output: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    is_cancelled: bool = False
    submitted_ns: int = 0
    admitted_ns: int = 0
    _draws: random.Random | None = None

    def draw(self) -> float:
        """The number in [0, 1) that chooses the next token: of this request's seed alone, whatever runs beside it."""
        if self._draws is None:
            self._draws = random.Random(self.sampling.seed)
        return self._draws.random()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request's part of a step of the model."""

    tokens: Sequence[int]
    start: int
    """Tokens of the request that the cache holds already."""
    blocks: Sequence[int]
    sampling: Sampling
    draw: float


class Runner(Protocol):
    """The model and its cache."""

    def run(self, rows: Sequence[Row]) -> list[tuple[int, float]]:
        """Feed each row's tokens; the token after the last of each, and its log probability."""


@dataclass(frozen=True)
class Event:
    """What happened to a request: a token, its end, or both."""

    request: Request
    token: int | None
    reason: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes of a batcher."""

    blocks: int
    block_tokens: int
    max_batch: int
    max_queue: int
    max_context: int
    """Tokens of prompt and answer together."""
    prefill_tokens: int
    """Tokens of prompts in one step: long prompts are cut, so that those that run do not wait long."""


@dataclass
class Counts:
    """What a batcher has done; times by the monotonic clock."""

    steps: int = 0
    rows: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    peak_batch: int = 0
    peak_blocks: int = 0
    peak_queue: int = 0
    queue_wait_ns: list[int] = field(default_factory=list)


class BlockPool:
    """Numbers of free blocks, from 1 on (block 0 is the cache's own)."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks, 0, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """That many blocks, or None and nothing taken."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give(self, blocks: Sequence[int]) -> None:
        """Take blocks back."""
        self._free.extend(blocks)


class Batcher:
    """Runs requests through a model. One thread calls `run`; any thread may submit and cancel.

    Args:
        deliver: told what happened, once per step, from the thread that runs.
    """

    def __init__(self, runner: Runner, limits: Limits, deliver: Callable[[Sequence[Event]], None]) -> None:
        self.limits, self.counts = limits, Counts()
        self.pool = BlockPool(limits.blocks)
        self._runner, self._deliver = runner, deliver
        self._changed = threading.Condition()
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._is_draining = False

    def blocks_for(self, prompt: int, max_tokens: int) -> int:
        """Blocks that a request holds while it runs. The last token is never fed."""
        return -(-(prompt + max_tokens - 1) // self.limits.block_tokens)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: it can never be run: empty, or larger than the context or the whole cache.
            QueueFull: try again later.
            Draining: the batcher is about to end.
        """
        prompt, limits = len(request.prompt), self.limits
        if prompt < 1 or request.max_tokens < 1:
            raise ValueError("a request needs a prompt and one token of answer at least")
        if prompt + request.max_tokens > limits.max_context:
            raise ValueError(
                f"a prompt of {prompt} tokens and an answer of {request.max_tokens} are more than "
                f"the context of {limits.max_context}"
            )
        if self.blocks_for(prompt, request.max_tokens) > limits.blocks:
            raise ValueError(f"the cache of {limits.blocks * limits.block_tokens} tokens cannot hold the request")
        with self._changed:
            if self._is_draining:
                raise Draining
            if len(self._queue) >= limits.max_queue:
                self.counts.refused += 1
                raise QueueFull
            request.submitted_ns = time.monotonic_ns()
            self._queue.append(request)
            self.counts.peak_queue = max(self.counts.peak_queue, len(self._queue))
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Give up a request; its blocks are free before the next step. Of no effect on one that has ended."""
        with self._changed:
            request.is_cancelled = True
            self._changed.notify()

    def drain(self) -> None:
        """Take no more requests; those that are here go on."""
        with self._changed:
            self._is_draining = True
            self._changed.notify()

    def wake(self) -> None:
        """Have `run` look at its end condition."""
        with self._changed:
            self._changed.notify()

    def reset_counts(self) -> None:
        """Forget what was counted so far."""
        with self._changed:
            self.counts = Counts()

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._is_draining

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    def run(self, until: Callable[[], bool]) -> None:
        """Work until the condition holds; it is asked between steps, and now and then when there is nothing to do."""
        while not until():
            with self._changed:
                if not self._queue and not self._running:
                    self._changed.wait(IDLE_S)
            self.step()

    def end(self) -> None:
        """Give up everything that is left."""
        with self._changed:
            for request in (*self._queue, *self._running):
                request.is_cancelled = True
        self.step()

    def step(self) -> None:
        """Drop what was cancelled, admit, prefill a chunk, and give each running request one more token."""
        events = self._drop_cancelled()
        self._admit()
        with self._failing(events):
            for rows in (self._prefills(), self._decodes()):
                if rows:
                    self._feed(rows, events)
        if events:
            self._deliver(events)

    def _drop_cancelled(self) -> list[Event]:
        with self._changed:
            gone = [request for request in (*self._queue, *self._running) if request.is_cancelled]
            if gone:
                self._queue = deque(request for request in self._queue if not request.is_cancelled)
                self._running = [request for request in self._running if not request.is_cancelled]
                self.counts.cancelled += len(gone)
                for request in gone:
                    self._give_back(request)
        return [Event(request, None, "cancelled") for request in gone]

    def _admit(self) -> None:
        """First come, first served: a large request at the head waits, and those behind it too, so it never starves."""
        with self._changed:
            while self._queue and len(self._running) < self.limits.max_batch:
                request = self._queue[0]
                blocks = self.pool.take(self.blocks_for(len(request.prompt), request.max_tokens))
                if blocks is None:
                    break
                self._queue.popleft()
                request.blocks, request.admitted_ns = blocks, time.monotonic_ns()
                self._running.append(request)
                self.counts.queue_wait_ns.append(request.admitted_ns - request.submitted_ns)
            self.counts.peak_batch = max(self.counts.peak_batch, len(self._running))
            self.counts.peak_blocks = max(self.counts.peak_blocks, self.pool.blocks - self.pool.free)

    def _prefills(self) -> list[tuple[Request, Sequence[int]]]:
        """Chunks of prompts, oldest request first. Rows are padded to the longest, so the budget counts the padding."""
        rows: list[tuple[Request, Sequence[int]]] = []
        longest, budget = 0, self.limits.prefill_tokens
        for request in self._running:
            left = len(request.prompt) - request.fed
            if left <= 0:
                continue
            chunk = min(left, budget)
            if rows and max(longest, chunk) * (len(rows) + 1) > budget:
                break
            rows.append((request, request.prompt[request.fed : request.fed + chunk]))
            longest = max(longest, chunk)
        return rows

    def _decodes(self) -> list[tuple[Request, Sequence[int]]]:
        return [(request, request.output[-1:]) for request in self._running if request.output]

    def _feed(self, rows: Sequence[tuple[Request, Sequence[int]]], events: list[Event]) -> None:
        made = self._runner.run([
            Row(
                tokens=tokens, start=request.fed, blocks=request.blocks, sampling=request.sampling,
                draw=request.draw() if self._ends_prompt(request, tokens) and request.sampling.temperature else 0.0,
            )
            for request, tokens in rows
        ])  # fmt: skip
        self.counts.steps += 1
        self.counts.rows += len(rows)
        ended = set()
        for (request, tokens), (token, log_probability) in zip(rows, made, strict=True):
            is_answer = self._ends_prompt(request, tokens)
            request.fed += len(tokens)
            if not request.output:
                self.counts.prefill_tokens += len(tokens)
            if not is_answer:
                continue
            request.output.append(token)
            request.log_probabilities.append(log_probability)
            self.counts.output_tokens += 1
            reason: Reason | None = None
            if request.should_stop(token):
                reason = "stop"
            elif len(request.output) >= request.max_tokens:
                reason = "length"
            events.append(Event(request, token, reason))
            if reason is not None:
                ended.add(id(request))
        with self._changed:
            self.counts.finished += len(ended)
            for request in self._running:
                if id(request) in ended:
                    self._give_back(request)
            self._running = [request for request in self._running if id(request) not in ended]

    @staticmethod
    def _ends_prompt(request: Request, tokens: Sequence[int]) -> bool:
        return request.fed + len(tokens) >= len(request.prompt)

    def _give_back(self, request: Request) -> None:
        self.pool.give(request.blocks)
        request.blocks = []

    @contextmanager
    def _failing(self, events: list[Event]) -> Iterator[None]:
        """When the model fails, every request that runs is told, then the error goes on.

        A signal is no failure of the model: what was fed but not answered is fed again, to the same slots.
        """
        try:
            yield
        except Exception:
            with self._changed:
                for request in self._running:
                    self._give_back(request)
                    events.append(Event(request, None, "error"))
                self._running = []
            self._deliver(events)
            raise
