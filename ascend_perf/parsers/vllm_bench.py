"""Results of `vllm bench serve --save-result`: the figures of a benchmark, and its requests with `--save-detailed`;
of `vllm bench throughput` and `vllm bench latency` (`--output-json`): their figures.

Texts of prompts and answers, names of models and addresses are not carried over. Times of arrival are not in the file.

Source: vLLM, vllm/benchmarks/serve.py (keys of the result); format reference, collectors 7.3. No real output was at
hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.trace import Check, Dropped, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

_T = TypeVar("_T")

NAME: Final = "vllm_bench"
PRODUCER: Final = "vllm bench serve"
MAX_BYTES: Final = 1 << 30
"""A result beyond this is refused. Status: assumed; answers of 100 000 requests take some 100 MB."""
MAX_RESULTS: Final = 1000
"""Results of one file (`--append-result`). Status: assumed."""

TOLERANCE_RATIO: Final = 0.001
"""Figures that we compute from the requests agree with the printed ones to this. Status: assumed."""

_KEYS: Final = (
    (b'"request_throughput"', b'"completed"', b'"duration"'),
    (b'"elapsed_time"', b'"num_requests"', b'"tokens_per_second"'),
    (b'"avg_latency"', b'"latencies"', b'"percentiles"'),
)
"""Keys of serve, throughput and latency."""
_MARKS: Final = frozenset({"request_throughput", "tokens_per_second", "avg_latency"})
_FIGURE: Final = re.compile(
    r"(?:mean|median|std|p\d{1,2}(?:\.\d+)?)_(?:ttft|tpot|itl|e2el)_ms|(?:request|output|total_token)_(?:throughput|goodput)"
    r"|duration|completed|failed|total_(?:input|output)_tokens|num_prompts|max_concurren(?:cy|t_requests)"
    r"|max_output_tokens_per_s|elapsed_time|num_requests|total_num_tokens|(?:requests|tokens)_per_second|avg_latency"
)
_PERCENT: Final = re.compile(r"\d{1,2}(?:\.\d+)?|100", re.ASCII)
_NOT_JSON: Final = re.compile(rb"(?<=[:\[,\s])(?:-?Infinity|NaN)(?=[,\]}\s])")


class _Result(msgspec.Struct):
    """The arrays of a result, one entry per request; other keys are passed over."""

    ttfts: list[float | None] | None = None
    itls: list[list[float]] | None = None
    input_lens: list[int | None] | None = None
    output_lens: list[int | None] | None = None
    errors: list[str | None] | None = None


def is_result(entry: FileEntry) -> bool:
    """Whether a file is a result of the benchmark: by its keys."""
    head = entry.head
    if head.lstrip()[:1] != b"{" or b"\0" in head[:1024]:
        return False
    return any(all(key in head for key in keys) for keys in _KEYS)


def find(folder: Folder) -> list[Unit]:
    """Each result file is a unit of its own."""
    return [
        Unit(parser=NAME, label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if entry.path.suffix in (".json", ".jsonl") and is_result(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """A trace for each result of the file; it belongs to no rank.

    Raises:
        InputError: the file is too large, or holds no result.
    """
    path = unit.files[0]
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{unit.label} is larger than {MAX_BYTES >> 30} GiB, which no result of a benchmark is")
    results, damaged = _documents(b"".join(files.blocks(path)))
    if not results:
        raise InputError(f"{unit.label}: no result of a benchmark can be read", hint="run the benchmark again")
    return [_trace(unit, path, text, damaged if at == 0 else 0, at, len(results)) for at, text in enumerate(results)]


def _documents(text: bytes) -> tuple[list[bytes], int]:
    """The results of a file: one, or one per line; and the number of lines that hold none."""
    text = text.removeprefix(b"\xef\xbb\xbf").strip()
    if _figures(text) is not None:
        return [text], 0
    lines = [line for line in text.split(b"\n") if line.strip()]
    good = [line for line in lines if _figures(line) is not None]
    return good[:MAX_RESULTS], len(lines) - min(len(good), MAX_RESULTS)


def _decoded(text: bytes, kind: type[_T]) -> _T | None:
    for attempt in (text, _NOT_JSON.sub(b"null", text)):
        try:
            return msgspec.json.decode(attempt, type=kind, strict=False)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError):
            continue
    return None


def _figures(text: bytes) -> dict[str, float] | None:
    """Figures by name; None when the text is no result."""
    raw = _decoded(text, dict[str, msgspec.Raw])
    if raw is None or _MARKS.isdisjoint(raw):
        return None
    found = {}
    for name, value in raw.items():
        if _FIGURE.fullmatch(name) and len(bytes(value)) < 64:
            try:
                number = float(bytes(value))
            except ValueError:
                continue
            if np.isfinite(number):
                found[name] = number
    # Seconds by percent, {"10": 1.23}; the text writes them as numbers or as words.
    percentiles = _decoded(bytes(raw["percentiles"]), dict[str, float]) if "percentiles" in raw else None
    for percent, seconds in (percentiles or {}).items():
        if _PERCENT.fullmatch(percent) and np.isfinite(seconds):
            found[f"p{percent}_latency"] = seconds
    return found


def _trace(unit: Unit, path: Path, text: bytes, damaged: int, at: int, count: int) -> Trace:
    figures = _figures(text) or {}
    result = _decoded(text, _Result) or _Result()
    requests, dropped = _requests(result)
    if damaged:
        dropped = (*dropped, Dropped(reason="row that cannot be read", count=damaged))
    tables = {
        t.SERVICE_FIGURES.name: Table(
            t.SERVICE_FIGURES,
            {"name": Text.of(list(figures)), "value": np.array(list(figures.values()), np.float64)},
        )
    }
    missing = [Missing(what="batches of the service", remedy="collect with msServiceProfiler on the server")]
    if len(requests):
        tables[t.REQUESTS.name] = requests
    else:
        missing.append(
            Missing(what="requests of the service", remedy="run the benchmark with --save-result --save-detailed")
        )
    label = unit.label if count == 1 else f"{unit.label}#{at + 1}"
    meta = Meta(
        label=label,
        settings=ProfilerSettings(producer=PRODUCER),
        sources=(
            Source(
                path=label, format=NAME, rows=len(requests) or len(figures), size_bytes=path.stat().st_size,
                dropped=dropped,
            ),
        ),
        missing=tuple(missing),
        checks=_checks(requests, figures),
    )  # fmt: skip
    return Trace(tables, meta)


def _requests(result: _Result) -> tuple[Table, tuple[Dropped, ...]]:
    """One row per answered request: the whole time is the first token's plus all times between tokens."""
    first = _ns(result.ttfts or [])
    count = len(first)
    if not count:
        return Table.empty(t.REQUESTS), ()
    between = result.itls or []
    further = _ns([sum(gaps) for gaps in between[:count]])
    if len(further) < count:
        further = np.append(further, np.full(count - len(further), NULL, np.int64))
    errors = result.errors or []
    failed: Bools = np.array([bool(errors[i]) if i < len(errors) else False for i in range(count)], bool)
    failed |= first <= 0  # an answer that never came has a time of 0
    table = Table(
        t.REQUESTS,
        {
            "request": Text.of([str(i) for i in range(count)]),
            "first_token_ns": first,
            "execution_ns": np.where(further == NULL, NULL, first + np.where(further == NULL, 0, further)),
            "input_tokens": _counts(result.input_lens, count),
            "output_tokens": _counts(result.output_lens, count),
        },
    )
    dropped = (Dropped(reason="request that failed", count=int(failed.sum())),) if failed.any() else ()
    return table.select(~failed), dropped


def _ns(seconds: list[float | None]) -> Ints:
    values = np.array([np.nan if value is None else value for value in seconds], np.float64)
    usable = np.isfinite(values) & (values >= 0) & (values < 1e9)
    return np.where(usable, np.rint(np.where(usable, values, 0) * 1e9), NULL).astype(np.int64)


def _counts(values: list[int | None] | None, count: int) -> Ints:
    known = [NULL if value is None or not 0 <= value < 1 << 60 else value for value in (values or [])[:count]]
    return np.array([*known, *[NULL] * (count - len(known))], np.int64)


def _checks(requests: Table, figures: dict[str, float]) -> tuple[Check, ...]:
    """The median and the mean time to the first token: from the requests, and as printed."""
    first = requests.ints("first_token_ns")
    if not len(first):
        return ()
    checks = []
    for name, ours in (("median_ttft_ms", float(np.median(first)) / 1e6), ("mean_ttft_ms", float(first.mean()) / 1e6)):
        if name in figures:
            checks.append(
                Check(
                    name="time to the first token from requests and as printed", ours=ours, theirs=figures[name],
                    unit="ms", tolerance=TOLERANCE_RATIO * ours, where=name,
                )
            )  # fmt: skip
    return tuple(checks)


PARSER: Final = Parser(name=NAME, order=46, find=find, parse=parse)
