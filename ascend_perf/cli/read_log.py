"""Read throughput, loss and gradient norm from a training log, by our readers or by your expressions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ascend_perf.cli import _show
from ascend_perf.errors import not_writable
from ascend_perf.units import format_quantity


@click.command("read-log")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="YAML",
    help="Regular expressions whose named groups are the figures.  [default: our readers]",
)  # fmt: skip
@click.option(
    "--skip", default=5, show_default=True, type=click.IntRange(min=0),
    help="First logged iterations that means leave out.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the series there as JSON lines, which `ascend-perf analyze` reads.",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(log: Path, config: Path | None, skip: int, output: Path | None, form: str, lang: str) -> None:
    """Read the figures of LOG: Megatron-LM and MindSpeed-LLM, MindFormers, Trainer's state, JSON lines, CSV; any other
    with --config, a YAML file of regular expressions.

    Exit codes: 0 figures were read; 2 wrong usage; 3 the log or the expressions cannot be used.

    \b
    ascend-perf read-log train.log
    ascend-perf read-log own.log --config lines.yaml -o training.jsonl
    """
    from ascend_perf.collectors import log_figures

    expressions = None if config is None else log_figures.expressions_of(config)
    figures = log_figures.read(log, expressions)
    metrics = log_figures.metrics_of(figures, skip=skip)
    if output is not None:
        try:
            log_figures.write_jsonl(output, figures)
        except OSError as error:
            raise not_writable(output, error) from error
    if form == "json":
        rows = [{"name": one.name, "value": one.value, "unit": one.unit, "better": one.better} for one in metrics]
        body = {"schema_version": 1, "reader": figures.reader, "file": figures.name or log.name,
                "rows": len(figures.table), "dropped": dict(figures.dropped), "metrics": rows}  # fmt: skip
        click.echo(json.dumps(body, indent=1, ensure_ascii=False))
        return
    from ascend_perf.reports.phrases import spoken

    is_chinese = lang == "zh"
    source = ("，" if is_chinese else ", ").join(filter(None, (figures.reader, figures.name)))
    click.echo(("{} 行数据（{}）" if is_chinese else "{} rows ({})").format(len(figures.table), source))
    for reason, count in figures.dropped.items():
        what = spoken(reason, "zh" if is_chinese else "en")
        click.echo(f"  未使用：{count} x {what}" if is_chinese else f"  not used: {count} x {what}")
    if metrics:
        click.echo(_show.columns([(one.name, format_quantity(one.value, one.unit)) for one in metrics], "  "))
