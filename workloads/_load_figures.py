"""Figures of a round of load, and the JSON in which they are kept.

    ttft   first token read, less begin          tpot   (last token - first token) / (tokens - 1), of two tokens or more
    itl    between two pieces of a stream        e2e    last token read, less begin (without a stream: answer read)

`begin` is the scheduled arrival in the open modes, the sending in a closed loop. The keys of the JSON are those of
`vllm bench serve`, so that readers of its results read ours; what is ours alone comes beside them.

Source:
    vLLM, vllm/benchmarks/serve.py, for keys and definitions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ascend_perf.model.finding import Words
from ascend_perf.units import format_ratio
from ascend_perf.workloads._load import Load, Record, Round

FORMAT: Final = "ascend-perf-load/1"
PERCENTILES: Final = (50, 90, 95, 99)
LAG_SHARE: Final = 0.05
"""Client delays from this share of the median TTFT on (99th percentile) are noted. Status: assumed."""
LAG_FLOOR_NS: Final = 5_000_000
"""Smaller delays are never noted: timers of the loop are no better. Status: assumed."""
BUSY_RATIO: Final = 0.9
"""A client that uses this share of a core has no time left to read on time. Status: assumed."""

DEFINITIONS: Final[Mapping[str, str]] = {
    "begin": "scheduled arrival (poisson, replay) or sending (closed)",
    "ttft": "first token read less begin; s in ttfts, ms in the figures",
    "tpot": "(last token read - first token read) / (output tokens - 1), requests of two tokens or more",
    "itl": "time between two pieces of a stream; a piece may hold several tokens",
    "e2el": "last token read less begin; without a stream, answer read less begin",
    "duration": "from the first begin to the end of the last answer, s",
    "request_throughput": "completed requests by duration",
    "request_goodput": "completed requests that kept every limit, by duration; null without limits",
    "percentiles": "linear between values, over completed requests without warm-up",
    "start_times": "begin of each request after the first begin, s",
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Latencies of the completed requests in ns, and what was served."""

    latencies_ns: Mapping[str, Sequence[int]]
    """ttft, tpot, itl, e2e."""
    duration_ns: int
    completed: int
    failed: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    good: int | None
    """Completed requests that kept the limits; None: there are none."""
    uncounted: int
    """Completed requests whose tokens the server did not count: pieces were counted instead."""
    most_in_flight: int


def output_tokens(record: Record) -> int:
    """Tokens of the answer, as the server counted; pieces where it did not."""
    return len(record.stamps_ns) if record.output_tokens is None else record.output_tokens


def ttft_ns(record: Record) -> int | None:
    """None without a stream."""
    return record.stamps_ns[0] - record.begin_ns if record.stamps_ns else None


def tpot_ns(record: Record) -> float | None:
    """None for less than two tokens, or two pieces."""
    tokens = output_tokens(record)
    if tokens < 2 or len(record.stamps_ns) < 2:
        return None
    return (record.stamps_ns[-1] - record.stamps_ns[0]) / (tokens - 1)


def e2e_ns(record: Record) -> int:
    """Of the last token, which comes before the end of the stream."""
    return (record.stamps_ns[-1] if record.stamps_ns else record.end_ns) - record.begin_ns


def figures_of(load: Load, records: Sequence[Record]) -> Figures:
    """The figures of a round, or of several one after the other (their duration is then the caller's to sum)."""
    completed = [record for record in records if record.error is None]
    ttfts = [value for value in map(ttft_ns, completed) if value is not None]
    tpots = [round(value) for value in map(tpot_ns, completed) if value is not None]
    gaps = [later - earlier for record in completed for earlier, later in pairwise(record.stamps_ns)]
    has_limits = load.slo_ttft_ms is not None or load.slo_tpot_ms is not None
    return Figures(
        latencies_ns={"ttft": ttfts, "tpot": tpots, "itl": gaps, "e2e": [e2e_ns(record) for record in completed]},
        duration_ns=_duration_ns(records),
        completed=len(completed),
        failed=dict(sorted(Counter(record.error for record in records if record.error is not None).items())),
        input_tokens=sum(_input_tokens(record) for record in completed),
        output_tokens=sum(map(output_tokens, completed)),
        good=sum(is_good(load, record) for record in completed) if has_limits else None,
        uncounted=sum(record.output_tokens is None for record in completed),
        most_in_flight=_most_in_flight(records),
    )


def is_good(load: Load, record: Record) -> bool:
    """Whether a completed request kept every limit that is set; one token has no time per token to exceed."""
    first, each = ttft_ns(record), tpot_ns(record)
    if load.slo_ttft_ms is not None and (e2e_ns(record) if first is None else first) > load.slo_ttft_ms * 1e6:
        return False
    return load.slo_tpot_ms is None or each is None or each <= load.slo_tpot_ms * 1e6


def _input_tokens(record: Record) -> int:
    return record.planned_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens


def _duration_ns(records: Sequence[Record]) -> int:
    if not records:
        return 0
    return max(record.end_ns for record in records) - min(record.begin_ns for record in records)


def _most_in_flight(records: Sequence[Record]) -> int:
    changes = sorted([(r.sent_ns, 1) for r in records] + [(r.end_ns, -1) for r in records])
    return int(np.cumsum([change for _, change in changes]).max(initial=0)) if changes else 0


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between values; None of none."""
    return float(np.percentile(np.asarray(values, np.float64), percent)) if len(values) else None


def notes_of(load: Load, round_: Round, figures: Figures) -> list[Words]:
    """What a reader must know before using the figures."""
    notes = []
    sent_late = [r.sent_ns - r.scheduled_ns for r in round_.records if r.scheduled_ns is not None]
    ttft = percentile(figures.latencies_ns["ttft"] or figures.latencies_ns["e2e"], 50) or 0.0
    limit_ns = max(LAG_FLOOR_NS, LAG_SHARE * ttft)
    for delays, what in (
        (sent_late, Words("sent its requests {:.0f} ms late", "发送请求晚了 {:.0f} ms")),
        (round_.probe_delays_ns, Words("read {:.0f} ms late", "读取晚了 {:.0f} ms")),
    ):
        late = percentile(delays, 99)
        if late is not None and late > limit_ns:
            en, zh = what.en.format(late / 1e6), what.zh.format(late / 1e6)
            notes.append(Words(
                f"the client was overloaded: it {en} (99th percentile); the server may be better than these figures",
                f"客户端过载：{zh}（P99）；服务端的实际表现可能优于这些数据",
            ))  # fmt: skip
    if round_.wall_ns and round_.cpu_ns > BUSY_RATIO * round_.wall_ns:
        share = round_.cpu_ns / round_.wall_ns
        notes.append(Words(
            f"the client used {format_ratio(share)} of a core: use several clients on several cores, or a lower rate",
            f"客户端占用了一个核的 {format_ratio(share)}：请用多个客户端分摊到多个核，或降低请求速率",
        ))  # fmt: skip
    if round_.warmup_errors:
        notes.append(Words(f"{round_.warmup_errors} requests of the warm-up failed",
                           f"预热请求中有 {round_.warmup_errors} 个失败"))  # fmt: skip
    if figures.uncounted:
        notes.append(Words(
            f"the server did not count the tokens of {figures.uncounted} answers: their pieces were counted instead",
            f"服务端未给出 {figures.uncounted} 个回答的 token 数：改为统计流式分块数",
        ))  # fmt: skip
    return notes


def result_of(load: Load, round_: Round, *, model: str, created: str, seed: int) -> dict[str, object]:
    """The result as JSON. It names neither the server's address nor what was asked and answered."""
    records, figures = round_.records, figures_of(load, round_.records)
    seconds = figures.duration_ns / 1e9
    first_ns = min((record.begin_ns for record in records), default=0)

    def rate(amount: float | None) -> float | None:
        return None if amount is None or not seconds else amount / seconds

    result: dict[str, object] = {
        "format": FORMAT,
        "date": created,
        "endpoint_type": "openai-chat" if load.endpoint == "chat" else "openai",
        "model_id": model,
        "num_prompts": len(records),
        "request_rate": load.rate_per_s if load.mode == "poisson" else "inf" if load.mode == "closed" else "trace",
        "max_concurrency": None if load.is_open else load.clients,
        "duration": seconds,
        "completed": figures.completed,
        "failed": len(records) - figures.completed,
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "request_throughput": rate(figures.completed),
        "request_goodput": rate(figures.good),
        "output_throughput": rate(figures.output_tokens),
        "total_token_throughput": rate(figures.input_tokens + figures.output_tokens),
        "max_concurrent_requests": figures.most_in_flight,
    }
    for name, key in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        result |= _spread_ms(key, figures.latencies_ns[name])
    late = [(record.sent_ns - record.scheduled_ns) for record in records if record.scheduled_ns is not None]
    return result | {
        "errors_by_kind": dict(figures.failed),
        "load": {**asdict(load), "seed": seed},
        "client": {
            "cpu_ratio": round_.cpu_ns / round_.wall_ns if round_.wall_ns else None,
            "p99_sent_late_ms": _ms(percentile(late, 99)),
            "p99_read_late_ms": _ms(percentile(round_.probe_delays_ns, 99)),
        },
        "notes": [note.en for note in notes_of(load, round_, figures)],
        "definitions": dict(DEFINITIONS),
        "start_times": [(record.begin_ns - first_ns) / 1e9 for record in records],
        "input_lens": [_input_tokens(record) for record in records],
        "output_lens": [output_tokens(record) for record in records],
        **(_streamed(records) if load.stream else {}),
        "e2els": [None if record.error else e2e_ns(record) / 1e9 for record in records],
        "errors": [record.error or "" for record in records],
    }


def _streamed(records: Sequence[Record]) -> dict[str, object]:
    return {
        "ttfts": [0.0 if record.error else (ttft_ns(record) or 0) / 1e9 for record in records],
        "itls": [[(later - earlier) / 1e9 for earlier, later in pairwise(record.stamps_ns)] for record in records],
    }


def _spread_ms(key: str, values_ns: Sequence[float]) -> dict[str, float | None]:
    values = np.asarray(values_ns, np.float64) / 1e6
    known = len(values) > 0
    return {
        f"mean_{key}_ms": float(values.mean()) if known else None,
        f"median_{key}_ms": float(np.median(values)) if known else None,
        f"std_{key}_ms": float(values.std()) if known else None,
        **{f"p{percent}_{key}_ms": _ms(percentile(values_ns, percent)) for percent in PERCENTILES},
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None or not math.isfinite(value_ns) else value_ns / 1e6
