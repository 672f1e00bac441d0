"""Devices beside the run: use, power, energy, temperature, frequency, memory by phase and over profiled steps."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.device.integration import Integral, integrate
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL, Bools, Floats, Table
from ascend_perf.model.tables import STEPS, TELEMETRY
from ascend_perf.plugins import columns_of, job_analyzer

NAME: Final = "telemetry"
STEP_ROWS: Final = "steps of the profile"
MAX_DEVICES: Final = 64
MAX_PHASES: Final = 16
"""Further ones are none of a run of ours."""


@job_analyzer(
    name=NAME, needs=(TELEMETRY,), order=47, section="timeline", reads=columns_of(TELEMETRY, STEPS)
)
def telemetry(run: Run) -> Result:
    """What each device told in each phase of the run, and over the steps of the profile, on the same clock.

    Energy is the integral of sampled power by the trapezoid rule, without gaps; a mean is the integral by the covered
    time. Use that read 0 under a profiler is no sample.

    Reads:
        telemetry: time_ns, device, phase, use_ratio, invalid, power_w, temperature_c, frequency_hz,
        rated_frequency_hz, memory_used_bytes; steps: start_ns, dur_ns.
    """
    metrics: list[Metric] = []
    rows: list[dict[str, object]] = []
    window = _profiled(run)
    left = 0
    for trace in run.traces:
        if trace.has(TELEMETRY):
            rows += _rows(trace[TELEMETRY], window)
            left += max(0, len(trace[TELEMETRY].text("device").compact().values) - MAX_DEVICES)
    measured = [row for row in rows if row["phase"] == "measured" and row["energy"] is not None]
    for row in measured[:MAX_DEVICES]:
        name = str(row["device"])
        metrics.append(Metric(name=f"energy_{name}", value=_number(row["energy"]), unit="joule", better="lower"))
        metrics.append(Metric(name=f"power_mean_{name}", value=_number(row["power"]), unit="watt", better="lower"))
    return Result(metrics=tuple(metrics), tables=(_table(rows, left),))


def _profiled(run: Run) -> tuple[int, int] | None:
    """From the first to the last step of the traces, in Unix time."""
    starts, ends = [], []
    for trace in run.traces:
        if trace.has(STEPS):
            start, dur = trace[STEPS].ints("start_ns"), trace[STEPS].ints("dur_ns")
            known = (start != NULL) & (dur != NULL)
            if known.any():
                starts.append(trace.meta.clock_base_ns + int(start[known].min()))
                ends.append(trace.meta.clock_base_ns + int((start[known] + dur[known]).max()))
    return (min(starts), max(ends)) if starts else None


def _rows(table: Table, window: tuple[int, int] | None) -> list[dict[str, object]]:
    devices = table.text("device")
    rows = []
    for device in devices.compact().values[:MAX_DEVICES]:
        own = table.select(devices.equals(device))
        time, phases = own.ints("time_ns"), own.text("phase")
        for phase in phases.compact().values[:MAX_PHASES]:
            inside = phases.equals(phase)
            if phase and inside.any():
                rows.append(_row(own, device, phase, inside, (int(time[inside].min()), int(time[inside].max()))))
        if window is not None:
            inside = (time >= window[0]) & (time <= window[1])
            if inside.any():
                rows.append(_row(own, device, STEP_ROWS, inside, window))
    return rows


def _row(own: Table, device: str, phase: str, inside: Bools, span: tuple[int, int]) -> dict[str, object]:
    """Figures of one device over a span; `inside` tells which of its rows lie there."""
    times = own.ints("time_ns")

    def whole(name: str) -> Integral:
        return integrate(times.tolist(), own.floats(name), *span)

    def extreme(name: str, least: bool = False) -> float | None:
        values = own.floats(name)[inside]
        values = values[np.isfinite(values)]
        return None if not len(values) else float(values.min() if least else values.max())

    power = whole("power_w")
    use = own.floats("use_ratio")[inside]
    memory = own.ints("memory_used_bytes")[inside]
    memory = memory[memory != NULL]
    hidden = sum(bool(text) for text in own.text("invalid").take(np.flatnonzero(inside)).to_list())
    return {
        "device": device, "phase": phase, "samples": int(inside.sum()), "span": span[1] - span[0],
        "covered": power.covered_ratio if power.covered_ns else None,
        "energy": power.value if power.covered_ns else None, "power": power.mean,
        "use": whole("use_ratio").mean if np.isfinite(use).sum() > 1 else extreme("use_ratio"),
        "invalid": hidden, "temperature": extreme("temperature_c"),
        "frequency": extreme("frequency_hz", least=True), "rated": extreme("rated_frequency_hz"),
        "memory": int(memory.max()) if len(memory) else None,
    }  # fmt: skip


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _floats(rows: list[dict[str, object]], name: str) -> Floats:
    return np.array([math.nan if (value := _number(row[name])) is None else value for row in rows], np.float64)


def _table(rows: list[dict[str, object]], left: int) -> ResultTable:
    hidden = sum(int(_number(row["invalid"]) or 0) for row in rows if row["phase"] != STEP_ROWS)
    note = None
    if hidden:
        note = Words(
            f"{hidden} samples of use read 0 because a profiler ran; they are left out",
            f"{hidden} 个利用率样本因采集期间读数为 0 而剔除",
        )
    if left:
        more = f"{left} further devices are not shown", f"另有 {left} 个设备未列出"
        note = Words(*more) if note is None else Words(f"{note.en}; {more[0]}", f"{note.zh}；{more[1]}")
    return result_table(
        "telemetry",
        Words("Devices beside the run, by phase", "运行期间的设备监测（按阶段）"),
        (
            Col("device", "Device", "设备", [str(row["device"]) for row in rows]),
            Col("stage", "Phase", "阶段", [str(row["phase"]) for row in rows]),
            Col("samples", "Samples", "样本数", _floats(rows, "samples"), "count"),
            Col("span_ns", "Time", "时长", _floats(rows, "span"), "ns"),
            Col("covered_ratio", "Covered by power samples", "功耗样本覆盖", _floats(rows, "covered"), "ratio"),
            Col("energy_j", "Energy", "能耗", _floats(rows, "energy"), "joule"),
            Col("power_w", "Mean power", "平均功耗", _floats(rows, "power"), "watt"),
            Col("use_ratio", "Use (share of time with work)", "利用率（时间占比）", _floats(rows, "use"), "ratio"),
            Col("temperature_c", "Highest temperature", "最高温度", _floats(rows, "temperature"), "celsius"),
            Col("frequency_hz", "Lowest frequency", "最低频率", _floats(rows, "frequency"), "hertz"),
            Col("rated_frequency_hz", "Rated frequency", "额定频率", _floats(rows, "rated"), "hertz"),
            Col("memory_bytes", "Most memory in use", "内存占用峰值", _floats(rows, "memory"), "bytes"),
        ),
        note=note,
    )
