"""Run a workload, profile it and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ascend_perf.cli import _show


@click.command("run")
@click.argument("workload")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads WORKLOAD`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--device",
    type=click.Choice(["auto", "npu", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="auto takes the first that is there of npu, cuda, cpu.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="Run directory.  [default: runs/WORKLOAD-PRESET-TIMESTAMP]",
)
@click.option("--force", is_flag=True, help="Replace a run directory that is there.")
@click.option("--with-stack", is_flag=True, help="Record Python call stacks: a larger trace, a slower profiled part.")
@click.option("--no-report", is_flag=True, help="Measure only; the run directory can be analysed later.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
@click.option(
    "--format", "formats", default="html,json,md", show_default=True, help="Reports to write, separated by commas."
)
def command(
    workload: str,
    preset: str,
    overrides: tuple[str, ...],
    device: str,
    folder: Path | None,
    force: bool,
    with_stack: bool,
    no_report: bool,
    lang: Literal["en", "zh"],
    formats: str,
) -> None:
    """Run WORKLOAD, profile it and write a report.

    Steps are first timed alone, then under the profiler; throughput comes from the first. Everything that was
    measured is in the run directory, which `ascend-perf analyze` reads again on any machine.

    \b
    ascend-perf run llm-pretrain
    ascend-perf run resnet50-infer --preset small --set batch=16 --device cuda
    """
    from ascend_perf.bench.launch import Request, launch

    chosen_formats = _show.formats_of(formats)
    request = Request(workload=workload, preset=preset, overrides=overrides, device=device, with_stack=with_stack)
    with _show.progress() as on_notice:
        where, manifest = launch(request, folder=folder, force=force, on_notice=on_notice)
    click.echo(_show.summary_of(manifest, lang))
    if no_report:
        click.echo(str(where))
        return
    from ascend_perf import pipeline

    with _show.working("reading the trace") as update:
        result = pipeline.report(
            [where], out=where / "report", formats=chosen_formats, lang=lang, force=True, progress=update
        )
    click.echo(result.summary)
    click.echo(str(result.paths[chosen_formats[0]]))
