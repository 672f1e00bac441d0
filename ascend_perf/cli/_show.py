"""What commands print while and after they work: progress on a terminal only, figures with their units."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ascend_perf.errors import UsageError
from ascend_perf.units import format_quantity, format_ratio, significant

if TYPE_CHECKING:
    from ascend_perf.bench.launch import Notice
    from ascend_perf.collectors.devices import SeenDevice
    from ascend_perf.model.finding import Metric
    from ascend_perf.model.run import Manifest

FORMATS: Final = ("html", "json", "md")
REFRESH_PER_S: Final = 2
"""Slow on purpose: the display shares the processor with the workload that is being measured."""

_PHASES: Final = {
    "start": "starting the process of the workload",
    "build": "building model and data",
    "warmup": "warm-up, {steps} steps",
    "measured": "measuring, {steps} steps without the profiler",
    "profiler_warmup": "warming up the profiler",
    "profiled": "profiling, {steps} steps",
    "export": "writing the trace",
}


def formats_of(text: str) -> tuple[str, ...]:
    """Report formats from `html,json`, without repetition.

    Raises:
        UsageError: one of them is unknown, or none is given.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in FORMATS]
    if unknown or not names:
        seen = f"unknown report format {unknown[0]!r}" if unknown else "no report format given"
        raise UsageError(seen, hint=f"formats: {', '.join(FORMATS)}")
    return names


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner with the seconds so far, on a terminal only; gives a function that changes its text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, refresh_per_second=REFRESH_PER_S) as bar:
        task = bar.add_task(text, total=None)
        yield lambda text: bar.update(task, description=text)


@contextmanager
def progress() -> Iterator[Callable[[Notice], None]]:
    """Shows the phases of a run; the chosen device is always printed (to standard error)."""
    with working(_PHASES["start"]) as update:

        def on_notice(notice: Notice) -> None:
            if notice.device is not None:
                click.echo(f"device: {device_words(notice.device)}", err=True)
            elif notice.phase in _PHASES:
                update(_PHASES[notice.phase].format(steps=notice.steps))

        yield on_notice


def device_words(device: SeenDevice) -> str:
    """One device in a line: cpu · AMD EPYC · 2 cores · 23.5 GiB."""
    facts = [device.torch_name, device.name or "name unknown"]
    if device.cores is not None:
        facts.append(f"{device.cores} cores")
    if device.memory_bytes is not None:
        facts.append(format_quantity(device.memory_bytes, "bytes"))
    return " · ".join(facts)


def summary_of(manifest: Manifest) -> str:
    """The figures of a run in a few lines."""
    values = {metric.name: metric for metric in manifest.metrics}

    def shown(name: str) -> str:
        metric = values.get(name)
        return "unknown" if metric is None else format_quantity(metric.value, metric.unit)

    rate = next((metric for metric in manifest.metrics if metric.unit == "items_per_s"), None)
    count, spread = values["step_count"].value, values["step_time_iqr"].value
    lines = [f"{manifest.workload} {manifest.preset} on {manifest.device} ({manifest.device_facts.get('name')})"]
    if rate is not None and rate.value is not None:
        lines.append(f"  throughput   {significant(rate.value)} {rate.name.removesuffix('_per_s')}/s")
    within = "" if spread is None else f", middle half within {shown('step_time_iqr')}"
    lines.append(f"  step         {shown('step_time_median')} median of {count:.0f}{within}")
    mfu = f", MFU {shown('mfu')}" if "mfu" in values else ", MFU unknown: no peak of this device is known"
    lines.append(f"  model        {shown('model_flops_per_s')} in {manifest.device_facts.get('dtype')}{mfu}")
    if "peak_device_memory" in values:
        lines.append(f"  memory       {shown('peak_device_memory')} at most on the device")
    lines.append(f"  host memory  {shown('peak_rss')} at most")
    lines.append(f"  profiler     {_overhead_words(values)}; not in the figures above")
    lines += [f"  note         {note}" for note in manifest.notes]
    return "\n".join(lines)


def _overhead_words(values: Mapping[str, Metric]) -> str:
    overhead, step, spread = (values[name].value for name in ("profiler_overhead", "step_time_median", "step_time_iqr"))
    if overhead is None:
        return "overhead unknown"
    if step is not None and spread is not None and abs(overhead) <= spread / step:
        return f"steps {format_ratio(overhead)} longer, within their spread"
    return f"steps {format_ratio(overhead)} longer"


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows as aligned text, the last cell free."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(indent + "  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
