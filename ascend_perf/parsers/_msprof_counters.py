"""Tables of hardware counters in exports of msprof, as counters: hbm, ddr, llc, hccs, pcie, nic, roce and others.

Most of them are sums over the whole capture without a time; nic and roce are samples. Units stay as the file has them,
as in the counters of a trace.

Source: format reference, sections 1.9 and 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.parsers._ascend_csv import CsvFile
from ascend_perf.parsers._ascend_kernels import plausible
from ascend_perf.parsers._numbers import MAX_BYTES, wholes

KIB: Final = 1024.0


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a table becomes counters: `{title} {labels}/{column}`, one row per number.

    `labels` are the columns that tell the rows of one time apart; `values` the columns of numbers, all when empty.
    """

    title: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    host: bool = False


FORMS: Final = {
    "hbm": Form(title="HBM", labels=("Metric",), values=("Read(MB/s)", "Write(MB/s)")),
    "ddr": Form(title="DDR", labels=("Metric",), values=("Read(MB/s)", "Write(MB/s)")),
    "llc_read_write": Form(title="LLC", labels=("Mode", "Task"), values=("Hit Rate(%)", "Throughput(MB/s)")),
    "llc_aicpu": Form(title="LLC AI CPU"),
    "llc_ctrlcpu": Form(title="LLC control CPU"),
    "llc_bandwidth": Form(title="LLC bandwidth"),
    "hccs": Form(title="HCCS", labels=("Mode",), values=("Max", "Min", "Average")),
    "pcie": Form(title="PCIe", labels=("Mode",), values=("Min", "Max", "Avg")),
    "nic": Form(title="NIC", labels=("funcId",)),
    "roce": Form(title="RoCE", labels=("funcId",)),
    "dvpp": Form(title="DVPP", labels=("Dvpp Id", "Engine Type", "Engine ID")),
    "ai_core_utilization": Form(title="AI Core", labels=("Core ID",)),
    "ai_vector_core_utilization": Form(title="AI Vector Core", labels=("Core ID",)),
    "cpu_usage": Form(title="CPU", labels=("Cpu Type",), host=True),
    "process_cpu_usage": Form(title="process", labels=("PID",), values=("CPU(%)",), host=True),
    "host_cpu_usage": Form(title="host CPU", host=True),
    "host_mem_usage": Form(title="host memory", host=True),
    "host_disk_usage": Form(title="host disk", host=True),
    "host_network_usage": Form(title="host network", host=True),
}
"""Tables by base name. Names of processes and of network cards are not carried over."""

TIME_NAMES: Final = ("Timestamp(us)", "timestamp(us)")
_NOT_VALUES: Final = frozenset({"Device_id", "Device Id", "Device ID", *TIME_NAMES, "funcId", "Name", "Netcard"})
_UNIT: Final = re.compile(r"^(.*?)\(([^()]*)\)$")
_UNITS: Final = {"%": ("ratio", 0.01), "KB": ("bytes", KIB), "kB": ("bytes", KIB), "KB/s": ("bytes/s", KIB)}


def unit_of(name: str) -> tuple[str, str | None, float]:
    """Name of a column without its unit, the unit, and the factor to it: ratios for %, bytes for KB."""
    match = _UNIT.match(name)
    if match is None:
        return name, None, 1.0
    unit, factor = _UNITS.get(match[2], (match[2], 1.0))
    return match[1].strip(), unit, factor


def counters_of(file: CsvFile, form: Form) -> Table:
    """The numbers of a table as counters; what is no number is left out. Without a time column the time is unknown."""
    stamp = file.name(*TIME_NAMES)
    time = np.full(file.rows, NULL, np.int64) if stamp is None else plausible(file.scaled(3, stamp))
    label, unit_in_label = _labels(file, form)
    parts = []
    for column in form.values or _number_columns(file, form):
        if file.name(column) is None:
            continue
        word, unit, factor = unit_of(column)
        values = file.floats(column) * factor
        keep = ~np.isnan(values) & ((time != NULL) | (stamp is None))
        own_unit = Text.full(file.rows, unit) if unit is not None or unit_in_label is None else unit_in_label
        parts.append(_rows(time[keep], label.take(keep), word, own_unit.take(keep), values[keep]))
    return Table.concat(t.COUNTERS, parts).sorted_by("time_ns")


def _rows(time: Ints, label: Text, word: str, unit: Text, values: Floats) -> Table:
    return Table(
        t.COUNTERS,
        {
            "time_ns": time,
            "counter": label.compact().relabel(lambda title: f"{title}/{word}"),
            "unit": unit.compact(),
            "value": values,
        },
    )


def _number_columns(file: CsvFile, form: Form) -> tuple[str, ...]:
    return tuple(name for name in file.names if name and name not in _NOT_VALUES and name not in form.labels)


def _labels(file: CsvFile, form: Form) -> tuple[Text, Text | None]:
    """`{title} {label}` of each row, and the unit where the label holds it (`Tx(MB/s)`)."""
    columns = [file.text(name) for name in form.labels if file.name(name) is not None]
    if not columns:
        return Text.full(file.rows, form.title), None
    if form.labels == ("funcId",) and len(columns[0].compact().values) < 2:
        return Text.full(file.rows, form.title), None
    words = [_joined(form.title, row) for row in zip(*(column.to_list() for column in columns), strict=True)]
    text = Text.of(words)
    plain = text.relabel(lambda word: unit_of(word)[0])
    units = text.relabel(lambda word: unit_of(word)[1])
    return plain, units if units.values else None


def _joined(title: str, words: Sequence[str | None]) -> str:
    return " ".join((title, *(word for word in words if word)))


def npu_memory_of(file: CsvFile) -> tuple[Table, Table]:
    """npu_mem: what the process holds as memory, what the whole device holds as counters."""
    time = plausible(file.scaled(3, "timestamp(us)"))
    event = file.text("event")
    total = file.floats("memory(KB)")
    parts = np.stack((file.floats("ddr(KB)"), file.floats("hbm(KB)")))
    split = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    total = np.where(np.isnan(total), split, total) * KIB
    usable = (time != NULL) & ~np.isnan(total) & (total >= 0) & (total <= MAX_BYTES)
    app, device = usable & event.equals("app"), usable & event.equals("device")
    memory = Table(
        t.MEMORY,
        {
            "time_ns": time[app],
            "component": Text.full(int(app.sum()), "APP"),
            "reserved_bytes": wholes(total[app]),
        },
    )
    counters = Table(
        t.COUNTERS,
        {
            "time_ns": time[device],
            "counter": Text.full(int(device.sum()), "Device/Memory"),
            "unit": Text.full(int(device.sum()), "bytes"),
            "value": total[device],
        },
    )
    return memory.sorted_by("time_ns"), counters.sorted_by("time_ns")
