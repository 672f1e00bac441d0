"""What commands print while and after they work: progress on a terminal only, figures with their units."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.errors import UsageError
from ascend_perf.units import format_quantity, format_ratio, significant

if TYPE_CHECKING:
    from ascend_perf.bench.launch import Notice
    from ascend_perf.bench.prediction import Forecast
    from ascend_perf.collectors.devices import SeenDevice
    from ascend_perf.model.finding import Metric
    from ascend_perf.model.run import Manifest

FORMATS: Final = ("html", "json", "md")
REFRESH_PER_S: Final = 2
"""Slow on purpose: the display shares the processor with the workload that is being measured."""

_PHASES: Final = {
    "en": {
        "start": "starting the process of the workload",
        "build": "building model and data",
        "warmup": "warm-up, {steps} steps",
        "measured": "measuring, {steps} steps without the profiler",
        "profiler_warmup": "warming up the profiler",
        "profiled": "profiling, {steps} steps",
        "export": "writing the trace",
        "checkpoint": "writing the checkpoint",
    },
    "zh": {
        "start": "正在启动负载进程",
        "build": "正在构建模型和数据",
        "warmup": "预热，{steps} 步",
        "measured": "计时，{steps} 步（不采集）",
        "profiler_warmup": "正在预热 Profiler",
        "profiled": "采集，{steps} 步",
        "export": "正在写出 trace",
        "checkpoint": "正在写出 checkpoint",
    },
}
READING: Final = {"en": "reading the trace", "zh": "正在读取 trace"}
_DEVICE: Final = {
    "en": {"device": "device: {}", "unnamed": "name unknown", "cores": "{} cores"},
    "zh": {"device": "设备：{}", "unnamed": "名称未知", "cores": "{} 核"},
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
def progress(lang: Literal["en", "zh"] = "en") -> Iterator[Callable[[Notice], None]]:
    """Shows the phases of a run; device, prediction and warnings are always printed (to standard error)."""
    phases = _PHASES[lang]
    with working(phases["start"]) as update:

        def on_notice(notice: Notice) -> None:
            if notice.device is not None:
                click.echo(_DEVICE[lang]["device"].format(device_words(notice.device, lang)), err=True)
            elif notice.forecast is not None:
                click.echo(forecast_words(notice.forecast, lang), err=True)
            elif notice.warning is not None:
                click.echo(f"ascend-perf: {notice.warning.zh if lang == 'zh' else notice.warning.en}", err=True)
            elif notice.line is not None:
                from ascend_perf.reports.phrases import spoken

                click.echo(f"ascend-perf: {spoken(notice.line, lang)}", err=True)
            elif notice.folder is not None:
                click.echo(f"ascend-perf: {_FORECAST[lang]['left'].format(notice.folder)}", err=True)
            elif notice.phase in phases:
                update(phases[notice.phase].format(steps=notice.steps))

        yield on_notice


def device_words(device: SeenDevice, lang: Literal["en", "zh"] = "en") -> str:
    """One device in a line: cpu · AMD EPYC · 2 cores · 23.5 GiB."""
    words = _DEVICE[lang]
    facts = [device.torch_name, device.name or words["unnamed"]]
    if device.cores is not None:
        facts.append(words["cores"].format(device.cores))
    if device.memory_bytes is not None:
        facts.append(format_quantity(device.memory_bytes, "bytes"))
    return " · ".join(facts)


_FORECAST: Final = {
    "en": {
        "title": "modelled, for the rank that needs most of {}:",
        "memory": "memory",
        "peak": "peak",
        "of_device": "{} of {} on the device",
        "traffic": "communication per step, {} axis",
        "calls": "{} in {} calls",
        "left": "what there is of the run, with the reason: {}",
    },
    "zh": {
        "title": "建模值（{} 卡中需求最大的一卡）：",
        "memory": "内存",
        "peak": "峰值",
        "of_device": "{}，设备共 {}",
        "traffic": "每步通信，{} 轴",
        "calls": "{}，{} 次调用",
        "left": "本次运行已有的内容及原因：{}",
    },
}


def forecast_words(forecast: Forecast, lang: Literal["en", "zh"] = "en") -> str:
    """The prediction of a run as a small table: memory by component against the device's, communication per step."""
    from ascend_perf.bench.config_diff import figure_words

    words = _FORECAST[lang]
    rows = [
        (words["memory"], part if lang == "en" else figure_words(f"memory_{part}").zh, format_quantity(count, "bytes"))
        for part, count in forecast.prediction.memory_bytes.items()
    ]
    if rows:
        total, there = (format_quantity(count, "bytes") for count in (forecast.rank_bytes, forecast.device_bytes))
        if forecast.sharing_ranks > 1:
            total = f"{forecast.sharing_ranks} x {total}"
        said = total if forecast.device_bytes is None else words["of_device"].format(total, there)
        rows.append((words["memory"], words["peak"], said))
    rows += [
        (words["traffic"].format(part.axis), part.collective,
         words["calls"].format(format_quantity(part.bytes_per_step, "bytes"), part.calls_per_step))
        for part in forecast.prediction.traffic
    ]  # fmt: skip
    title = words["title"].format(forecast.world_size)
    return "\n".join([title, columns(rows, indent="  ")]) if rows else title


def summary_of(manifest: Manifest, lang: Literal["en", "zh"] = "en") -> str:
    """The figures of a run in a few lines."""
    values = {metric.name: metric for metric in manifest.metrics}
    words = _SUMMARY[lang]

    def shown(name: str) -> str:
        metric = values.get(name)
        is_known = metric is not None and metric.value is not None
        return format_quantity(metric.value, metric.unit) if metric and is_known else words["unknown"]

    rate = next((metric for metric in manifest.metrics if metric.unit == "items_per_s"), None)
    lines = [f"{manifest.workload} {manifest.preset} · {manifest.device} · {manifest.device_facts.get('name')}"]
    if manifest.data_origin == "simulated":
        lines[0] += f" · {words['simulated']}"
    if manifest.status != "complete":
        lines[0] += f" · {words[manifest.status]}"
    if rate is not None and rate.value is not None:
        said = f"{significant(rate.value)} {rate.name.removesuffix('_per_s')}/s"
        share = values.get(f"{rate.name}_per_device")
        world = manifest.device_facts.get("world_size")
        if share is not None and share.value is not None and isinstance(world, int) and world > 1:
            said = words["per_device"].format(said, world, significant(share.value))
        lines.append(words["throughput"].format(said))
    lines.append(words["step"].format(shown("step_time_median"), shown("step_count"), shown("step_time_iqr")))
    mfu = f"MFU {shown('mfu')}" if "mfu" in values else words["no_peak"]
    if "hfu" in values and values["hfu"].value != values["mfu"].value:
        mfu = f"{mfu}, HFU {shown('hfu')}"
    work = values.get("model_flops_per_step")
    if work is None or work.value != 0:  # collectives compute nothing
        lines.append(words["model"].format(shown("model_flops_per_s"), manifest.device_facts.get("dtype"), mfu))
    if "peak_device_memory" in values:
        lines.append(words["device_memory"].format(shown("peak_device_memory")))
    lines.append(words["host_memory"].format(shown("peak_rss")))
    if "communication_per_step" in values:
        lines.append(words["communication"].format(shown("communication_per_step")))
    lines += (words["latency"].format(f"{name} {said}") for name, said in _latencies(manifest.metrics))
    if "energy" in values:
        per_joule = next(metric for metric in manifest.metrics if metric.name.endswith("_per_joule"))
        items = f"{significant(per_joule.value or 0)} {per_joule.name.removesuffix('_per_joule')}/J"
        lines.append(words["energy"].format(shown("energy"), shown("power_mean"), items))
    if own := _own_figures(manifest.metrics):
        lines.append(words["own"].format(" · ".join(own)))
    if "profiler_overhead" in values:
        lines.append(words["profiler"].format(_overhead_words(values, words)))
    if manifest.notes:
        from ascend_perf.reports.phrases import spoken

        lines += [words["note"].format(plain(spoken(note, lang))) for note in manifest.notes]
    return "\n".join(lines)


_SUMMARY: Final = {
    "en": {
        "unknown": "unknown",
        "throughput": "  throughput   {}",
        "step": "  step         median {} of {}, middle half within {}",
        "model": "  model        {} in {}, {}",
        "no_peak": "MFU unknown: no peak of this device is known",
        "device_memory": "  memory       {} at most on the device",
        "host_memory": "  host memory  {} at most",
        "communication": "  sent         {} a step, by the rank that sends most",
        "latency": "  latency      {}",
        "energy": "  energy       {} over the measured steps, {} on average, {}",
        "own": "  figures      {}",
        "per_device": "{} on {} devices, {} on each",
        "simulated": "SIMULATED",
        "failed": "failed",
        "interrupted": "interrupted",
        "profiler": "  profiler     {}; the figures above are without it",
        "overhead": "makes steps {} longer",
        "no_overhead": "changes steps less than they vary",
        "disturbed": "unknown, the steps without it were slower",
        "note": "  note         {}",
    },
    "zh": {
        "unknown": "未知",
        "throughput": "  吞吐        {}",
        "step": "  单步耗时    中位数 {}（{} 步），中间一半的宽度 {}",
        "model": "  模型算力    {}（{}），{}",
        "no_peak": "MFU 未知：没有该设备的峰值数据",
        "device_memory": "  设备内存    峰值 {}",
        "host_memory": "  主机内存    峰值 {}",
        "communication": "  通信量      每步 {}（发送最多的一卡）",
        "latency": "  时延        {}",
        "energy": "  能耗        计时步共 {}，平均 {}，{}",
        "own": "  结果        {}",
        "per_device": "{}（{} 卡，每卡 {}）",
        "simulated": "仿真数据",
        "failed": "失败",
        "interrupted": "已中断",
        "profiler": "  采集开销    {}；以上数据均在未采集时测得",
        "overhead": "单步增加 {}",
        "no_overhead": "小于单步耗时自身的波动",
        "disturbed": "未知，未采集的 step 反而更慢",
        "note": "  说明        {}",
    },
}


_LATENCY: Final = re.compile(r"(.+)_(p50|p90|p95|p99)")
_COMMON: Final = re.compile(
    r"step_.*|(?:model|hardware)_flops_.*|parameters|(?:profiler|telemetry)_overhead|[mh]fu|peak_.*|memory_.*|predicted_.*"
    r"|communication_per_step|energy|power_mean|.*_per_joule|.*_per_s(?:_per_device)?|.*_(?:p50|p90|p95|p99|mean)"
)
"""Names of figures that every workload has, or that have a line of their own."""
MAX_OWN: Final = 8
"""Figures of the workload itself that the summary shows."""


def _latencies(metrics: Sequence[Metric]) -> list[tuple[str, str]]:
    """Each kind of latency with its percentiles in a line."""
    said: dict[str, list[str]] = {}
    for metric in metrics:
        if (found := _LATENCY.fullmatch(metric.name)) and metric.unit == "ns":
            said.setdefault(found[1], []).append(f"{found[2]} {format_quantity(metric.value, 'ns')}")
    return [(name, ", ".join(parts)) for name, parts in said.items()]


def _own_figures(metrics: Sequence[Metric]) -> list[str]:
    """What only this workload has: loss, accuracy, bandwidths."""
    own = [metric for metric in metrics if not _COMMON.fullmatch(metric.name) and metric.value is not None]
    return [f"{metric.name} {format_quantity(metric.value, metric.unit)}" for metric in own[:MAX_OWN]]


def _overhead_words(values: Mapping[str, Metric], words: Mapping[str, str]) -> str:
    from ascend_perf.reports.overhead import judged

    known = {name: metric.value for name, metric in values.items() if metric.value is not None}
    judgement = judged(known)
    if judgement == "figure":
        return words["overhead"].format(format_ratio(known["profiler_overhead"]))
    return words["no_overhead" if judgement == "noise" else judgement]


def plain(text: str) -> str:
    """A text on one line, without characters that a terminal obeys."""
    return "".join(character if character.isprintable() else " " for character in text)


def aloud(update: Callable[[str], None], lang: Literal["en", "zh"] = "en") -> Callable[[str], None]:
    """For lines about a set-up: on a terminal they are the spinner's text, else each is printed."""
    from ascend_perf.reports.phrases import spoken

    def say(line: str) -> None:
        said = spoken(line, lang)
        update(said)
        if not sys.stderr.isatty():
            click.echo(f"ascend-perf: {said}", err=True)

    return say


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows as aligned text, the last cell free."""
    widths = [max(_width(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False)]
        lines.append(indent + "  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Columns of a terminal that a text takes: Chinese letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
