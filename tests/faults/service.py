"""A small simulator of an inference service, and the tables that the service profiler writes of it.

It knows nothing of the reader and the analyzers. A scheduler admits requests while blocks of the KV cache are free and
builds batches; a card executes them; CPU stages lie before, between and behind. With split instances the KV cache of a
request travels before its first decode. Times are whole nanoseconds.

Source of the columns: msServiceProfiler, docs/zh/msserviceprofiler_serving_tuning_instruct.md; units of older releases:
parsing results of CANN 8.1.RC1.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Final

EPOCH_NS: Final = 1_780_000_000_000_000_000
BLOCK_TOKENS: Final = 128
ZONE: Final = timezone(timedelta(hours=8))
"""The profiler writes date texts in local time."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request as its client sends it."""

    arrival: int
    prompt: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Service:
    """How an instance works."""

    asks: tuple[Ask, ...]
    seed: int = 1
    blocks: int = 4096
    max_batch: int = 24
    dp: int = 1
    skew: float = 0.0
    """Part of the requests that go to DP rank 0 beside its even share."""
    base_ns: int = 18_000_000
    """Time of an execution whatever it holds: the weights are read."""
    prefill_ns: int = 20_000
    """Per token of a prompt."""
    context_ns: int = 150
    """Per token of context in decoding."""
    schedule_ns: int = 900_000
    tokenize_ns: int = 1_500_000
    sample_ns: int = 400_000
    """Part of an execution."""
    detokenize_ns: int = 120_000
    is_serial: bool = False
    """The tokenizer runs in the engine's own loop: nothing executes meanwhile."""
    transfer_ns: int = 0
    """Per token, of the KV cache on its way to the decode instance; 0: not split."""
    transfer_fixed_ns: int = 300_000
    overlap: float = 0.0
    """Part of a transfer that the prefill hides."""


@dataclass
class Done:
    """A request and what became of it."""

    number: int
    ask: Ask
    rank: int = 0
    ready: int = 0
    """Tokenised and in the queue."""
    admitted: int = 0
    first: int = 0
    end: int = 0
    made: int = 0
    is_tokenized: bool = False
    transfer: tuple[int, int] | None = None
    prefill_end: int = 0

    @property
    def blocks(self) -> int:
        """Blocks that the finished sequence takes; they are reserved at admission."""
        return -(-(self.ask.prompt + self.ask.output) // BLOCK_TOKENS)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A scheduling and the execution behind it."""

    rank: int
    schedule: tuple[int, int]
    execution: tuple[int, int]
    members: tuple[tuple[int, int], ...]
    """Number of the request, and tokens that it had made before."""
    prefill_tokens: int
    free_before: int
    free_after: int


@dataclass
class Outcome:
    """All that happened in one instance."""

    service: Service
    requests: list[Done] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    cache: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    """Time, method, request, free blocks before and after."""
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    states: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def executing_ns(self) -> int:
        """Sum of the executions."""
        return sum(end - start for start, end in (batch.execution for batch in self.batches))

    @property
    def waiting_ns(self) -> int:
        """Sum of the requests' times in the queue."""
        return sum(done.admitted - done.ready for done in self.requests)

    @property
    def latency_ns(self) -> int:
        """Sum of the requests' times from arrival to end."""
        return sum(done.end - done.ask.arrival for done in self.requests)

    @property
    def busy_ns(self) -> int:
        """Time in which the instance schedules, tokenises in its loop, or executes."""
        pieces = [piece for batch in self.batches for piece in (batch.schedule, batch.execution)]
        pieces += [(start, end) for name, start, end in self.spans if name != "sample"]
        pieces.sort()
        total, reached = 0, 0
        for start, end in pieces:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return total

    def load_of(self, rank: int) -> int:
        """Tokens of the sequences in the batches of a DP rank."""
        prompts = {done.number: done.ask.prompt for done in self.requests}
        return sum(
            prompts[number] + made for batch in self.batches if batch.rank == rank for number, made in batch.members
        )


def asks(seed: int, count: int = 90, *, gap_ns: int = 60_000_000, prompt: int = 320, output: int = 40) -> list[Ask]:
    """Requests that come at random, with prompts and outputs around usual lengths."""
    rng = random.Random(seed * 31 + 7)
    at = EPOCH_NS
    made = []
    for _ in range(count):
        at += round(rng.expovariate(1 / gap_ns))
        made.append(
            Ask(arrival=at, prompt=round(prompt * rng.uniform(0.6, 1.7)), output=round(output * rng.uniform(0.6, 1.4)))
        )
    return made


def serve(service: Service) -> Outcome:
    """Runs a service until all requests are answered."""
    outcome = Outcome(service=service)
    rng = random.Random(service.seed * 101 + 3)
    for number, ask in enumerate(service.asks):
        rank = 0 if service.dp == 1 or rng.random() < service.skew else number % service.dp
        ready = ask.arrival + (0 if service.is_serial else service.tokenize_ns)
        outcome.requests.append(
            Done(number=number, ask=ask, rank=rank, ready=ready, is_tokenized=not service.is_serial)
        )
    for rank in range(service.dp):
        _Engine(service, outcome, rank).run()
    if not service.is_serial:
        outcome.spans += [("tokenize", d.ask.arrival, d.ask.arrival + service.tokenize_ns) for d in outcome.requests]
    outcome.batches.sort(key=lambda batch: batch.schedule[0])
    outcome.cache.sort()
    return outcome


class _Engine:
    """One DP rank: its queue, its blocks, its loop."""

    def __init__(self, service: Service, outcome: Outcome, rank: int) -> None:
        self.service, self.outcome, self.rank = service, outcome, rank
        self.rng = random.Random(service.seed * 977 + rank)
        self.queue = [done for done in outcome.requests if done.rank == rank]
        self.running: list[Done] = []
        self.free = service.blocks
        self.now = EPOCH_NS

    def run(self) -> None:
        service = self.service
        while self.queue or self.running:
            if not self.running and not any(done.ready <= self.now for done in self.queue):
                self.now = max(self.now, min(done.ready for done in self.queue))
            before = self.free
            self.tokenize()
            begin = self.now
            self.now += round(service.schedule_ns * self.rng.uniform(0.9, 1.1))
            self.admit(begin)
            if not self.running:
                continue
            self.execute(begin, self.now, before)

    def tokenize(self) -> None:
        """The loop tokenises what came since, one request after the other; only then are they in the queue."""
        for done in self.queue:
            if not done.is_tokenized and done.ready <= self.now:
                self.outcome.spans.append(("tokenize", self.now, self.now + self.service.tokenize_ns))
                self.now += self.service.tokenize_ns
                done.is_tokenized, done.ready = True, self.now

    def admit(self, begin: int) -> None:
        waiting = [done for done in self.queue if done.is_tokenized and done.ready <= begin]
        for done in waiting:
            if done.blocks > self.free or len(self.running) >= self.service.max_batch:
                break
            self.queue.remove(done)
            self.outcome.cache.append((self.now, "Allocate", done.number, self.free, self.free - done.blocks))
            self.free -= done.blocks
            done.admitted = self.now
            self.running.append(done)
        left = sum(done.ready <= begin for done in self.queue)
        self.outcome.states.append((self.now, left, len(self.running)))

    def execute(self, begin: int, start: int, before: int) -> None:
        service = self.service
        fresh = [done for done in self.running if done.made == 0]
        prefill = sum(done.ask.prompt for done in fresh)
        context = sum(done.ask.prompt + done.made for done in self.running if done.made)
        took = round(
            (service.base_ns + prefill * service.prefill_ns + context * service.context_ns + service.sample_ns)
            * self.rng.uniform(0.98, 1.02)
        )
        end = start + took
        self.outcome.spans.append(("sample", end - service.sample_ns, end))
        self.outcome.batches.append(
            Batch(
                rank=self.rank, schedule=(begin, start), execution=(start, end),
                members=tuple((done.number, done.made) for done in self.running), prefill_tokens=prefill,
                free_before=before, free_after=self.free,
            )
        )  # fmt: skip
        self.now = end
        for done in list(self.running):
            done.made += 1
            if done.made == 1:
                done.first = end + service.detokenize_ns
                done.prefill_end = end
                self.send(done)
            if done.made >= done.ask.output:
                done.end = end + service.detokenize_ns
                self.running.remove(done)
                self.outcome.cache.append((end, "Free", done.number, self.free, self.free + done.blocks))
                self.free += done.blocks

    def send(self, done: Done) -> None:
        """The KV cache travels; nothing here waits for it, the decode instance does."""
        service = self.service
        if not service.transfer_ns:
            return
        took = round(
            (service.transfer_fixed_ns + done.ask.prompt * service.transfer_ns) * self.rng.uniform(0.97, 1.03)
        )
        start = done.prefill_end - round(took * service.overlap)
        done.transfer = (start, start + took)


# ---- what the profiler writes ----------------------------------------------------------------------------------------


Files = dict[str, str]
"""Path below the job's folder, and text."""


def tables(outcome: Outcome, folder: str = "service", *, is_old: bool = False) -> Files:
    """The tables of one instance.

    Args:
        outcome: what happened.
        folder: where they lie.
        is_old: units and columns as CANN 8.1.RC1 wrote them.
    """
    made = (_old if is_old else _new)(outcome)
    return {f"{folder}/{name}": text for name, text in {**made, **_transfers(outcome)}.items()}


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def _stamp(ns: int) -> str:
    """Time stamps of the profiler are cut to ms."""
    return str(ns // 1_000_000)


def _date(ns: int) -> str:
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, ZONE):%Y-%m-%d %H:%M:%S}.{rest // 1000:06d}"


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        text = str(value)
        return f'"{text}"' if "," in text else text

    lines = [",".join(header), *(",".join(map(cell, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def _kind(batch: Batch) -> str:
    fresh = any(made == 0 for _, made in batch.members)
    old = any(made > 0 for _, made in batch.members)
    return "Prefill,Decode" if fresh and old else "Prefill" if fresh else "Decode"


def _list(batch: Batch) -> str:
    return "[" + ", ".join(f"{{'rid': '{number}', 'iter': {made}}}" for number, made in batch.members) + "]"


def _new(outcome: Outcome) -> Files:
    made: Files = {}
    service = outcome.service
    has_ranks = service.dp > 1
    header = (
        "name", "res_list", "start_datetime", "end_datetime", "during_time(ms)", "batch_type", "prof_id", "batch_size",
        "prefill_batch_size", "decode_batch_size", "total_blocks", "used_blocks", "free_blocks", "blocks_allocated",
        "blocks_freed", "kvcache_usage_rate", "prefill_scheduled_tokens", "decode_scheduled_tokens",
        "total_scheduled_tokens", "dp_rank", "start_time(ms)", "end_time(ms)",
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for batch in outcome.batches:
        fresh = sum(made == 0 for _, made in batch.members)
        used = service.blocks - batch.free_after
        blocks = (
            service.blocks, used, batch.free_after, max(0, batch.free_before - batch.free_after),
            max(0, batch.free_after - batch.free_before), round(used / service.blocks, 4),
        )  # fmt: skip
        decodes = len(batch.members) - fresh
        tokens = (batch.prefill_tokens, decodes, batch.prefill_tokens + decodes)
        for name, (start, end) in (("batchFrameworkProcessing", batch.schedule), ("modelExec", batch.execution)):
            rows.append((
                name, _list(batch), _date(start), _date(end), _ms(end - start), _kind(batch), batch.rank,
                len(batch.members), fresh, decodes, *(blocks if name != "modelExec" else ("",) * 6), *tokens,
                batch.rank if has_ranks else "<NA>", _stamp(start), _stamp(end),
            ))  # fmt: skip
    made["batch.csv"] = _csv(header, rows)
    made["request.csv"] = _csv(
        ("http_rid", "start_datetime", "recv_token_size", "reply_token_size", "execution_time(ms)",
         "queue_wait_time(ms)", "first_token_latency(ms)", "cache_hit_rate", "start_time(ms)"),
        [
            (d.number, _date(d.ask.arrival), d.ask.prompt, d.ask.output, _ms(d.end - d.ask.arrival),
             _ms(d.admitted - d.ready), _ms(d.first - d.ask.arrival), 0.0, _stamp(d.ask.arrival))
            for d in outcome.requests
        ],
    )  # fmt: skip
    made["kvcache.csv"] = _csv(
        ("rid", "name", "start_time", "total_blocks", "used_blocks", "free_blocks", "blocks_allocated", "blocks_freed",
         "device_kvcache_left", "kvcache_usage_rate"),
        [
            (number, name, _date(at), service.blocks, service.blocks - after, after, max(0, before - after),
             max(0, after - before), "", round(1 - after / service.blocks, 4))
            for at, name, number, before, after in outcome.cache
        ],
    )  # fmt: skip
    made["request_status.csv"] = _csv(
        ("hostuid", "pid", "start_datetime", "relative_timestamp(ms)", "waiting", "running", "swapped",
         "timestamp(ms)"),
        [("h1", 77, _date(at), _ms(at - EPOCH_NS), waiting, running, 0, _stamp(at))
         for at, waiting, running in outcome.states],
    )  # fmt: skip
    for name in sorted({name for name, _, _ in outcome.spans}):
        made[f"span_info/{name}.csv"] = _csv(
            ("span_name", "start_datetime", "end_datetime", "during_time(ms)", "hostname", "pid"),
            [(name, _date(start), _date(end), _ms(end - start), "node-a", 77)
             for kind, start, end in outcome.spans if kind == name],
        )  # fmt: skip
    return made


def _old(outcome: Outcome) -> Files:
    made: Files = {}

    def us(ns: int) -> int:
        return ns // 1000

    rows: list[tuple[object, ...]] = []
    for batch in outcome.batches:
        for name, (start, end) in (("BatchSchedule", batch.schedule), ("modelExec", batch.execution)):
            rows.append(
                (name, _list(batch), us(start), us(end), len(batch.members), _kind(batch), us(end) - us(start))
            )
    made["batch.csv"] = _csv(
        ("name", "res_list", "start_time(microsecond)", "end_time(microsecond)", "batch_size", "batch_type",
         "during_time(microsecond)"),
        rows,
    )  # fmt: skip
    made["request.csv"] = _csv(
        ("http_rid", "start_time_httpReq(microsecond)", "recv_token_size", "reply_token_size",
         "execution_time(microsecond)", "queue_wait_time(microsecond)", "first_token_latency(microsecond)"),
        [
            (d.number, us(d.ask.arrival), d.ask.prompt, d.ask.output, us(d.end - d.ask.arrival),
             us(d.admitted - d.ready), us(d.first - d.ask.arrival))
            for d in outcome.requests
        ],
    )  # fmt: skip
    made["kvcache.csv"] = _csv(
        ("domain", "rid", "start_time(microsecond)", "end_time(microsecond)", "name", "device_kvcache_left",
         "during_time(microsecond)"),
        [("KVCache", number, us(at), us(at) + 3, name, after, 3) for at, name, number, _, after in outcome.cache],
    )  # fmt: skip
    return made


def _transfers(outcome: Outcome) -> Files:
    moved = [(done, done.transfer) for done in outcome.requests if done.transfer is not None]
    if not moved:
        return {}
    made: Files = {}
    made["pd_split_kvcache.csv"] = _csv(
        ("domain", "rank", "rid", "block_tables", "seq_len", "during_time(ms)", "start_datetime(ms)",
         "end_datetime(ms)", "start_time(ms)", "end_time(ms)"),
        [
            ("PullKVCache", done.rank, done.number, list(range(-(-done.ask.prompt // BLOCK_TOKENS))), done.ask.prompt,
             _ms(end - start), _date(start)[:-3], _date(end)[:-3], _stamp(start), _stamp(end))
            for done, (start, end) in moved
        ],
    )  # fmt: skip
    made["pd_split_communication.csv"] = _csv(
        ("rid", "http_req_time(ms)", "send_request_time(ms)", "send_request_succ_time(ms)", "prefill_res_time(ms)",
         "request_end_time(ms)"),
        [
            (done.number, _stamp(done.ask.arrival), _stamp(done.ready), _stamp(done.ready + 1_000_000),
             _stamp(done.prefill_end), _stamp(done.end))
            for done, _ in moved
        ],
    )  # fmt: skip
    return made


def longer(service: Service, every: int, prompt: int) -> Service:
    """The service with a long prompt in place of each so many-th request."""
    made = [
        replace(ask, prompt=prompt) if number % every == every - 1 else ask for number, ask in enumerate(service.asks)
    ]
    return replace(service, asks=tuple(made))
