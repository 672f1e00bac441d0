"""Samples over time as counter tracks: memory, device counters, and what an inference service counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ascend_perf.model.finding import Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Kind, Table, Text
from ascend_perf.model.tables import COUNTERS, KV_CACHE, MEMORY, MODULE_MEMORY, QUEUE_STATES
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._pieces import coded, decimal, filled, joined, json_text, picked, whole
from ascend_perf.reports.exports._slices import FAR_NS, Plan


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Samples of one table: their times on the common clock, the track of each, and its series."""

    table: str
    rows: Ints
    times: Ints
    label: Text
    """Name of the counter track, per row of the table."""
    series: tuple[tuple[str, Ints | Floats], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def names(self, at: Ints) -> pa.Array:
        """`"name":"..."` of some samples."""
        used, words = coded(self.label, lambda value: f'"name":{json_text(value)}')
        return picked(used.codes[self.rows[at]].astype(np.int64), words).fill_null(f'"name":{json_text("?")}')

    def values(self, at: Ints) -> pa.Array:
        """The known values of some samples as members, each with a comma before it."""
        rows = self.rows[at]
        parts = []
        for key, values in self.series:
            mine = values[rows]
            text = decimal(mine) if mine.dtype == np.float64 else whole(mine)  # type: ignore[arg-type]
            parts.append(joined(f',"{key}":', text))
        return filled(*parts)


def counters_of(plan: Plan, trace: Trace) -> list[Counters]:
    """The counter tracks of a trace. Samples without a time or without a value are left out and counted."""
    made = [
        _of_memory(plan, trace[MEMORY], Words("memory {}", "内存 {}"),
                   ("allocated_bytes", "reserved_bytes", "active_bytes")),
        _of_memory(plan, trace[MODULE_MEMORY], Words("driver memory {}", "驱动内存 {}"), ("reserved_bytes",)),
        _samples(plan, trace[COUNTERS], _with_unit(trace[COUNTERS]), ("value",)),
        _samples(plan, trace[KV_CACHE], _constant(trace[KV_CACHE], plan.said(Words("KV cache", "KV Cache"))),
                 ("free_blocks", "total_blocks", "usage_ratio")),
        _samples(plan, trace[QUEUE_STATES],
                 _constant(trace[QUEUE_STATES], plan.said(Words("queued requests", "排队请求"))),
                 ("waiting", "running", "swapped")),
    ]  # fmt: skip
    return [counters for counters in made if len(counters)]


def _of_memory(plan: Plan, table: Table, name: Words, series: tuple[str, ...]) -> Counters:
    template = plan.said(name)
    return _samples(plan, table, table.text("component").relabel(lambda part: template.replace("{}", part)), series)


def _constant(table: Table, name: str) -> Text:
    return Text.full(len(table), name)


def _with_unit(table: Table) -> Text:
    """Name of each counter with its unit, by which two counters of one name differ."""
    name, unit = table.text("counter"), table.text("unit")
    pairs, index = np.unique(np.stack((name.codes, unit.codes)), axis=1, return_inverse=True)
    words = []
    for what, of in pairs.T.tolist():
        shown = name.values[what] if what >= 0 else "?"
        words.append(f"{shown} ({unit.values[of]})" if of >= 0 and unit.values[of] else shown)
    text = Text.of(words)
    return Text(text.codes[index.reshape(-1)], text.values)


def _samples(plan: Plan, table: Table, label: Text, names: tuple[str, ...]) -> Counters:
    times = table.ints("time_ns")
    timed: Bools = (times != NULL) & (np.abs(times) < FAR_NS)
    series: list[tuple[str, Ints | Floats]] = []
    has_value = np.zeros(len(table), bool)
    for name in names:
        if table.has(name):
            if table.spec.column(name).kind is Kind.FLOAT:
                floats = table.floats(name)
                series.append((name, floats))
                has_value |= np.isfinite(floats)
            else:
                ints = table.ints(name)
                series.append((name, ints))
                has_value |= ints != NULL
    lost = int(len(table) - (timed & has_value).sum())
    if lost:
        plan.left_out[table.spec.name] = lost
    rows = np.flatnonzero(timed & has_value & plan.drawn(times, times))
    return Counters(
        table=table.spec.name, rows=rows, times=times[rows] - plan.shift_ns, label=label, series=tuple(series)
    )  # fmt: skip
