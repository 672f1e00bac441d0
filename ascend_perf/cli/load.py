"""Load a server with OpenAI's completions and measure latencies and throughput."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import click

from ascend_perf.errors import InputError, MachineError, UsageError

if TYPE_CHECKING:
    from ascend_perf.workloads._load import Load, Planned, Round, Target
    from ascend_perf.workloads._load_figures import Figures

INSTALL: Final = 'pip install "ascend-perf[serve]"'


@click.command("load")
@click.argument("url")
@click.option("--model", help="Name of the model.  [default: the first that the server lists]")
@click.option(
    "--mode",
    type=click.Choice(["closed", "poisson", "replay"]),
    default="closed",
    show_default=True,
    help="closed: clients that wait for answers; poisson: random arrivals at a rate; replay: arrivals of a trace.",
)
@click.option("--clients", default=8, show_default=True, help="closed: requests in flight.")
@click.option("--rate", default=4.0, show_default=True, help="poisson: mean arrivals per second.")
@click.option("--requests", default=64, show_default=True, help="Requests that are measured.")
@click.option("--warmup", default=4, show_default=True, help="Requests before, at once, that do not count.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Requests as jsonl: arrival (s), prompt_tokens, output_tokens, or prompt. Other modes pass over arrivals.",
)
@click.option("--prompt-tokens", default=128, show_default=True, help="Length of synthetic prompts.")
@click.option("--output-tokens", default=64, show_default=True, help="Length of answers.")
@click.option("--spread", default=0.0, show_default=True, help="Lengths are uniform within this share, 0 to 1.")
@click.option(
    "--prompt-as",
    type=click.Choice(["words", "characters", "token_ids"]),
    default="words",
    show_default=True,
    help="What a token of a synthetic prompt is written as; characters are exact for `ascend-perf serve`.",
)
@click.option("--prompt-vocabulary", default=1000, show_default=True, help="token_ids: numbers below this one.")
@click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option("--no-stream", is_flag=True, help="Ask for whole answers: E2E only, no TTFT, TPOT and ITL.")
@click.option("--no-ignore-eos", is_flag=True, help="Do not ask for full length: for servers that refuse `ignore_eos`.")
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds until a request counts as failed.")
@click.option("--slo-ttft-ms", type=float, help="Limit of the TTFT for the goodput.")
@click.option("--slo-tpot-ms", type=float, help="Limit of the TPOT for the goodput.")
@click.option("--seed", default=0, show_default=True, help="Decides prompts, lengths and arrivals.")
@click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, help="Variable that holds the key, if there is one."
)
@click.option("--insecure", is_flag=True, help="Do not verify the server's certificate.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File of the result.  [default: load-TIMESTAMP.json]"
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(url: str, output: Path | None, force: bool, lang: Literal["en", "zh"], **options: Any) -> None:
    """Load the server at URL with requests and measure what its clients see.

    Works with any server that has OpenAI's completions or chat completions (vLLM, MindIE, SGLang, `ascend-perf serve`).
    In the modes poisson and replay latency counts from the scheduled arrival, also when the client sent late. The
    result has the keys of `vllm bench serve`, and `ascend-perf analyze` reads it.

    \b
    ascend-perf load http://127.0.0.1:8000 --clients 32 --requests 500
    ascend-perf load http://127.0.0.1:8000 --mode poisson --rate 8 --slo-ttft-ms 500 --slo-tpot-ms 50
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise MachineError("ascend-perf load needs aiohttp, not installed here", hint=INSTALL)
    import asyncio

    from ascend_perf.workloads import _load, _load_figures

    now = datetime.now().astimezone()
    path = output or Path(f"load-{now:%Y%m%d-%H%M%S}.json")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="choose another -o, or replace it with --force")
    target, load, seed = _target(url, options), _load_of(options), options["seed"]
    trace = None if options["trace"] is None else _load.read_trace(options["trace"])
    try:
        planned = _load.plan_requests(load, seed, trace)
    except ValueError as error:
        raise UsageError(str(error), hint="--trace FILE") from error
    round_, model = asyncio.run(_measured(target, load, planned, _load.warmup_of(load, seed, trace)))
    result = _load_figures.result_of(load, round_, model=model, created=now.isoformat(timespec="seconds"), seed=seed)
    try:
        path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="choose another -o") from error
    figures = _load_figures.figures_of(load, round_.records)
    notes = _load_figures.notes_of(load, round_, figures)
    click.echo(summary(load, figures, [getattr(note, lang) for note in notes], lang, first_said(round_)))
    click.echo(str(path))
    if not figures.completed:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in figures.failed.items())
        raise InputError(f"no request was answered: {kinds}", hint="check the URL, --model and --endpoint")


async def _measured(
    target: Target, load: Load, planned: list[Planned], warmup: list[Planned]
) -> tuple[Round, str]:
    from dataclasses import replace

    from ascend_perf.workloads import _load

    model = target.model or await _load.first_model(target)
    named = replace(target, model=model)
    return await _load.run_round(named, load, planned, warmup), model


def _target(url: str, options: dict[str, Any]) -> Target:
    from ascend_perf.workloads._load import Target

    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a server", hint="example: http://127.0.0.1:8000")
    key = os.environ.get(options["api_key_env"]) or None
    return Target(url=url, model=options["model"] or "", api_key=key, verify_tls=not options["insecure"])


def _load_of(options: dict[str, Any]) -> Load:
    from ascend_perf.workloads._load import Load

    try:
        return Load(
            mode=options["mode"], clients=options["clients"], rate_per_s=options["rate"], requests=options["requests"],
            warmup_requests=options["warmup"], prompt_tokens=options["prompt_tokens"],
            output_tokens=options["output_tokens"], length_spread=options["spread"], prompt_as=options["prompt_as"],
            prompt_vocabulary=options["prompt_vocabulary"], endpoint=options["endpoint"],
            stream=not options["no_stream"], ignore_eos=not options["no_ignore_eos"],
            temperature=options["temperature"], request_timeout_s=options["timeout"],
            slo_ttft_ms=options["slo_ttft_ms"], slo_tpot_ms=options["slo_tpot_ms"],
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from error


def first_said(round_: Round) -> dict[str, str]:
    """What the server said of the first error of each kind."""
    said: dict[str, str] = {}
    for record in round_.records:
        if record.error is not None and record.said:
            said.setdefault(record.error, record.said)
    return said


def summary(
    load: Load, figures: Figures, notes: list[str], lang: Literal["en", "zh"], said: Mapping[str, str] | None = None
) -> str:
    """The figures in a few lines; `said` is what the server said of an error of each kind."""
    from ascend_perf.units import format_quantity, format_ratio, significant
    from ascend_perf.workloads._load_figures import PERCENTILES, percentile

    words = _WORDS[lang]
    total, seconds = figures.completed + sum(figures.failed.values()), figures.duration_ns / 1e9

    def rate(amount: int) -> str:
        return f"{significant(amount / seconds)}/s" if seconds else "—"

    lines = [
        words["head"].format(load.mode, total, figures.most_in_flight, format_quantity(figures.duration_ns, "ns")),
        words["requests"].format(rate(figures.completed)),
        words["tokens"].format(rate(figures.output_tokens), rate(figures.input_tokens)),
    ]
    for name, key in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E")):
        if values := figures.latencies_ns[name]:
            cells = (f"p{p} {format_quantity(percentile(values, p), 'ns')}" for p in PERCENTILES)
            lines.append(f"  {key:<13}" + " · ".join(cells))
    if figures.good is not None and total:
        lines.append(words["goodput"].format(rate(figures.good), format_ratio(figures.good / total)))
    if figures.failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in figures.failed.items())
        lines.append(words["failed"].format(sum(figures.failed.values()), kinds))
        lines += [words["said"].format(kind, text) for kind, text in (said or {}).items()]
    return "\n".join([*lines, *(words["note"].format(note) for note in notes)])


_WORDS: Final = {
    "en": {
        "head": "load {} · {} requests · at most {} in flight · {}",
        "requests": "  requests     {}",
        "tokens": "  tokens       {} out, {} in",
        "goodput": "  goodput      {}; {} of the requests kept the limits",
        "failed": "  failed       {}: {}",
        "said": "               {}: {}",
        "note": "  note         {}",
    },
    "zh": {
        "head": "负载 {} · {} 个请求 · 最多 {} 个并发 · {}",
        "requests": "  请求吞吐     {}",
        "tokens": "  token 吞吐   输出 {}，输入 {}",
        "goodput": "  有效吞吐     {}；{} 的请求满足时延上限",
        "failed": "  失败         {}：{}",
        "said": "               {}：{}",
        "note": "  说明         {}",
    },
}
