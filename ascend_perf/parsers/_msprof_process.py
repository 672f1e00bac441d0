"""Reads the exports of one PROF directory, which is one process of msprof, and tells the rows of its devices apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table
from ascend_perf.model.trace import Dropped, Source
from ascend_perf.parsers import _ascend_comm as comm
from ascend_perf.parsers import _ascend_meta as meta
from ascend_perf.parsers import _msprof_tasks as tasks
from ascend_perf.parsers._ascend_csv import CsvFile, read_csv
from ascend_perf.parsers._ascend_db import Database, read_database
from ascend_perf.parsers._ascend_files import Kind, database
from ascend_perf.parsers._ascend_kernels import NUMBER_COLUMNS
from ascend_perf.parsers._ascend_rank import IN_DATABASE, MAX_LOST_RATIO
from ascend_perf.parsers._ascend_sqlite import int_columns
from ascend_perf.parsers._ascend_trace import TraceFile, read_slice, read_trace_view
from ascend_perf.parsers._msprof_counters import FORMS
from ascend_perf.parsers._msprof_facts import ProcessFacts
from ascend_perf.parsers._msprof_files import Inputs, Part, place_in
from ascend_perf.parsers._msprof_trace import devices_of, of_device

HOST_TABLES: Final = frozenset({"api_statistic", "os_runtime_statistic", "msprof_tx", "fusion_op", "static_op_mem"})
"""Tables about the host: their rows come with each device."""

DEVICE_NAMES: Final = ("Device_id", "Device Id", "Device ID")
_NUMBERS: Final = frozenset(
    {*NUMBER_COLUMNS, *tasks.TASK_NUMBERS, "Timestamp(us)", "timestamp(us)", "Allocation Time(us)"}
)
MADE_OF_TASKS: Final = ("op_summary", "task_time", "step_trace")
"""Tables whose devices ran something; others may list devices that were only watched."""

_TRACE: Final = "msprof.json"
_DATABASE: Final = "msprof.db"

NO_TABLE: Final = "row of a table that no analysis reads yet"
MIXED: Final = (
    "the export names no devices, but {count} were recorded: their kernels cannot be told apart; a newer msprof names"
    " them"
)


@dataclass
class _Rows:
    """The cells of one table and the device of each row, `NULL` where the file does not tell."""

    file: CsvFile
    device: Ints
    paths: list[Path]
    sizes: list[int] = field(default_factory=list)
    """Rows of each path."""


class Process:
    """The state of reading one process."""

    def __init__(self, label: str, inputs: Inputs, facts: ProcessFacts) -> None:
        self.label = label
        self.inputs = inputs
        self.facts = facts
        self.tables: dict[str, _Rows] = {}
        self.traces: dict[int | None, TraceFile] = {}
        """By device where each has a trace of its own (old layout), else one under None."""
        self.databases: dict[int | None, Database] = {}
        self.figures = comm.CommFigures()
        self.exported = Table.empty(t.EXPORTED_STEPS)
        self.sources: list[Source] = []
        self.warnings: list[str] = []
        self.errors: list[InputError] = []
        self.dropped: dict[str, list[Dropped]] = {}
        """Rows lost by table, apart from those that reading it lost."""
        self.devices: list[int] = []
        self._facts: dict[int | None, meta.Facts] = {}

    def read(self) -> None:
        """Read every file.

        Raises:
            InputError: no file could be read; the message is that of the first.
        """
        for path, problem in (*self.inputs.left, *self.facts.problems):
            self._source(path, "", problem=problem)
        for base, parts in self.inputs.tables.items():
            self._read_table(base, parts)
        self._read_figures()
        in_databases = self._read_databases()
        if not (self.databases and any(db.tables.get("runtime_calls") for db in self.databases.values())):
            self._each(self.inputs.traces, self._read_trace)
        else:
            for part in self.inputs.traces:
                self._source(part.path, _TRACE, problem=IN_DATABASE)
        if not (self.tables or self.databases or self.traces or self.figures.calls or len(self.exported)):
            raise self.errors[0] if self.errors else InputError(f"{self.label}: nothing to read")
        self.devices = self._devices(in_databases)
        if len(self.facts.devices) > 1 and not self.devices:
            self.warnings.append(MIXED.format(count=len(self.facts.devices)))

    # ---- files ----------------------------------------------------------------------------------------------------

    def _each(self, parts: Iterable[Part], read: Callable[[Part], None]) -> None:
        """Read files; a problem in one is noted and does not touch the others."""
        for part in parts:
            try:
                read(part)
            except InputError as error:
                self._failed(part.path, part.base, error)

    def _failed(self, path: Path, form: str, error: InputError) -> None:
        self.errors.append(error)
        self._source(path, form, problem=error.what.replace(str(path), path.name))

    def _source(
        self, path: Path, form: str, *, rows: int = 0, dropped: tuple[Dropped, ...] = (), problem: str | None = None
    ) -> None:
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        place = place_in(self.label, path)
        self.sources.append(
            Source(
                path=place, format=form, rows=rows, size_bytes=size, dropped=dropped, problem=problem,
                is_held_elsewhere=problem == IN_DATABASE,
            )
        )
        lost = sum(reason.count for reason in dropped if reason.reason != NO_TABLE)
        if lost > MAX_LOST_RATIO * max(rows, 1):
            self.warnings.append(f"{path.name}: {lost} of {rows} rows cannot be used: sums are too low")

    def _read_table(self, base: str, parts: list[Part]) -> None:
        files: list[CsvFile] = []
        devices: list[Ints] = []
        paths: list[Path] = []

        def read(part: Part) -> None:
            file = read_csv(part.path, numbers=tuple(_NUMBERS))
            device = file.ids(*DEVICE_NAMES)
            if part.device is not None and not (device != NULL).any():
                device = np.full(file.rows, part.device, np.int64)
            files.append(file)
            devices.append(device)
            paths.append(part.path)

        self._each(parts, read)
        if files:
            self.tables[base] = _Rows(
                CsvFile.joined(files), np.concatenate(devices), paths, [file.rows for file in files]
            )

    def name_tables(self) -> None:
        """List the tables that were read, with the rows that were not used: at the end, when all are known."""
        for base, rows in self.tables.items():
            merged: dict[str, int] = {}
            for reason in (*rows.file.dropped, *self.dropped.get(base, [])):
                merged[reason.reason] = merged.get(reason.reason, 0) + reason.count
            for place, (path, count) in enumerate(zip(rows.paths, rows.sizes, strict=True)):
                # Of a table in slices the first is listed with what the whole table lost.
                lost = tuple(Dropped(reason=r, count=c) for r, c in merged.items()) if place == 0 else ()
                self._source(path, base, rows=count if len(rows.paths) > 1 else rows.file.rows, dropped=lost)

    def drop(self, base: str, dropped: Iterable[Dropped]) -> None:
        """Count rows of a table that were not used."""
        self.dropped.setdefault(base, []).extend(dropped)

    def _read_trace(self, part: Part) -> None:
        """A trace, or a further slice of one."""
        known = self.traces.get(part.device)
        if known is None:
            trace = read_trace_view(part.path)
            file = trace.file
            if file.events:
                self.traces[part.device] = trace
        else:
            trace, file = known, read_slice(known, part.path)
        problems = list(file.problems)
        if not file.events:
            problems.append("the file holds no events: no data was written")
        if trace.odd_args:
            problems.append(f"{trace.odd_args} events have args that are not what the format says; they were ignored")
            trace.odd_args = 0
        dropped = tuple(Dropped(reason=reason, count=count) for reason, count in file.dropped.items())
        self._source(part.path, _TRACE, rows=file.events, dropped=dropped, problem="; ".join(problems) or None)

    def trace_of(self, device: int | None) -> TraceFile | None:
        """The trace of a device: its own, or its part of the trace of all."""
        own = self.traces.get(device)
        if own is None and device is None and len(self.traces) == 1:
            own = next(iter(self.traces.values()))
        if own is not None and (device is not None or len(self.devices) < 2):
            return own
        whole = self.traces.get(None)
        if whole is None or device is None or len(self.devices) < 2:
            return whole
        return of_device(whole, device, self.devices)

    def _read_databases(self) -> list[int]:
        """Read the newest database, once per device; the devices that it names."""
        found: list[int] = []
        for part in self.inputs.databases:
            try:
                if self.databases:
                    self._source(part.path, _DATABASE, problem="a further database: only the first was read")
                    continue
                with database(part.path) as connection:
                    device = int_columns(connection, "TASK", "deviceId")["deviceId"]
                found = np.unique(device[device >= 0]).tolist()
                numbers: list[int | None] = [*found] if found else [None]
                read = {
                    number: read_database(
                        part.path, self.facts_of(number, len(found)), device=number if len(found) > 1 else None
                    )
                    for number in numbers
                }
            except InputError as error:
                self._failed(part.path, _DATABASE, error)
                continue
            self.databases = read
            self.warnings += list(dict.fromkeys(itertools.chain(*(db.warnings for db in read.values()))))
            lost: dict[str, int] = {}
            for reason, count in itertools.chain(*(db.dropped.items() for db in read.values())):
                lost[reason] = lost.get(reason, 0) + count
            dropped = tuple(Dropped(reason=reason, count=count) for reason, count in lost.items())
            self._source(part.path, _DATABASE, rows=sum(db.rows for db in read.values()), dropped=dropped)
        return found

    def _read_figures(self) -> None:
        """The output of `msprof --analyze=on`."""
        for kind in (Kind.ANALYSIS_DB, Kind.COMMUNICATION, Kind.MATRIX):
            path = self.inputs.figures.get(kind)
            if path is None:
                continue
            own = comm.CommFigures()
            try:
                if kind is Kind.ANALYSIS_DB:
                    self.exported, rows = comm.read_analysis_db(path, own)
                else:
                    rows = (comm.read_communication if kind is Kind.COMMUNICATION else comm.read_matrix)(path, own)
            except InputError as error:
                self._failed(path, kind.value, error)
                continue
            # The database and the JSON hold the same figures: the first that has them counts.
            if not self.figures.calls:
                self.figures.calls, self.figures.transfers, self.figures.packets = (
                    own.calls,
                    own.transfers,
                    own.packets,
                )
            self.figures.links = self.figures.links or own.links
            self._source(path, kind.value, rows=rows)

    # ---- devices --------------------------------------------------------------------------------------------------

    def facts_of(self, device: int | None, count: int) -> meta.Facts:
        """The facts of one of `count` devices; its database adds to them."""
        if device not in self._facts:
            self._facts[device] = self.facts.of(device, count)
        return self._facts[device]

    def _devices(self, in_databases: list[int]) -> list[int]:
        """The devices that ran something; where no file tells, those that were watched."""
        running = {*in_databases, *self._table_devices(MADE_OF_TASKS)}
        for device, trace in self.traces.items():
            running.update(devices_of(trace, sorted(running)) if device is None else [device])
        if not running and len(self.exported):
            stated = self.exported.ints("device")
            running.update(np.unique(stated[stated != NULL]).tolist())
        return sorted(running or self._table_devices(tuple(self.tables)))

    def _table_devices(self, bases: tuple[str, ...]) -> set[int]:
        found: set[int] = set()
        for base in bases:
            rows = self.tables.get(base)
            if rows is not None:
                found.update(np.unique(rows.device[rows.device != NULL]).tolist())
        return found

    def only_device(self) -> int | None:
        """The device of a process whose exports name none: the one of its files of facts."""
        return next(iter(self.facts.devices)) if len(self.facts.devices) == 1 else None

    def cells(self, base: str, device: int | None) -> CsvFile | None:
        """The rows of one device of a table."""
        rows = self.tables.get(base)
        if rows is None:
            return None
        form = FORMS.get(base)
        of_host = base in HOST_TABLES or (form is not None and form.host)
        if device is None or of_host or not (rows.device != NULL).any():
            return rows.file
        mine = rows.device == device
        nobodys = rows.device == NULL
        if len(self.devices) < 2:
            mine |= nobodys
        elif nobodys.any() and device == self.devices[0]:
            self.drop(base, (Dropped(reason="row without a device", count=int(nobodys.sum())),))
        return rows.file.select(mine)
