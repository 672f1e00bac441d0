"""Serve a language model of random weights over HTTP, with OpenAI's completions."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from types import FrameType

import click

from ascend_perf.errors import MachineError, first_line


@click.command("serve")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads llm-serve`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--model-config", type=click.Path(path_type=Path), help="Take the shape of a Hugging Face config.json."
)
@click.option("--device", type=click.Choice(["auto", "npu", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the weights.")
def command(
    preset: str, overrides: tuple[str, ...], model_config: Path | None, device: str, host: str, port: int, seed: int
) -> None:
    """Serve a model until SIGTERM or Ctrl+C: to try `ascend-perf load`, or to measure a device under load.

    Weights are random, a token is a byte: answers are noise, their cost is that of a model of this shape. On SIGTERM no
    more requests are taken, and those in flight are answered within drain_s; a second signal ends at once.

    \b
    ascend-perf serve --preset 0.6b --port 8000
    ascend-perf load http://127.0.0.1:8000 --prompt-as characters
    """
    from ascend_perf.collectors import devices
    from ascend_perf.workloads import _spec
    from ascend_perf.workloads.llm_serve import MODEL_NAME, Config

    absent = [name for name in ("torch", "fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if absent:
        hint = 'pip install "ascend-perf[torch,serve]"'
        raise MachineError(f"ascend-perf serve needs {', '.join(absent)}, not installed here", hint=hint)
    workload = _spec.find_workload("llm-serve")
    between = None
    if model_config is not None:
        from ascend_perf.bench import before

        between, notes = before.model_settings(model_config, workload)
        for note in notes:
            click.echo(f"--model-config: {note.en}", err=True)
    config = workload.settings(preset, overrides, between=between).config
    assert isinstance(config, Config)
    if device == "cpu":
        os.environ.setdefault(devices.AUTOLOAD, "0")
    chosen = devices.choose(device, devices.seen_here())
    from ascend_perf.workloads._serving import serve

    place = _spec.Place(device=chosen.torch_name)
    signals: list[int] = []

    def arrived(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, arrived)
    try:
        served = serve(
            config.model, config.server, config.operators, place, seed, model_name=MODEL_NAME, host=host, port=port
        )
        click.echo(f"{MODEL_NAME} {preset} on {chosen.torch_name} in {served.dtype}: {served.server.url}")
        served.batcher.run(lambda: bool(signals))
        left = served.server.shut_down(config.server.drain_s)
    except RuntimeError as error:
        if "out of memory" not in str(error) and "not enough memory" not in str(error):
            raise
        hint = "choose a smaller preset, or smaller --set cache_tokens and --set prefill_tokens"
        raise MachineError(first_line(error), hint=hint) from error
    click.echo(f"ended; {left} requests were given up" if left else "ended; every request was answered")
