"""Puts the files of one rank together: reads each on its own, joins them, says what is missing and what disagrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table, TableSpec
from ascend_perf.model.trace import Check, Dropped, Group, Meta, Source, Trace
from ascend_perf.parsers import _ascend_calls as calls
from ascend_perf.parsers import _ascend_comm as comm
from ascend_perf.parsers import _ascend_meta as meta
from ascend_perf.parsers import _ascend_tables as small
from ascend_perf.parsers._ascend_checks import cross_checks, missing_data, same_calls, same_rows
from ascend_perf.parsers._ascend_csv import CsvFile, read_csv
from ascend_perf.parsers._ascend_db import Database, read_database
from ascend_perf.parsers._ascend_files import Kind
from ascend_perf.parsers._ascend_kernels import KernelRows, completed, read_kernels, same_capture
from ascend_perf.parsers._ascend_steps import NO_HOST_STEPS, assign_steps, step_table
from ascend_perf.parsers._ascend_timeline import Timeline
from ascend_perf.parsers._ascend_trace import read_trace_view
from ascend_perf.parsers._python_frames import SHORT_CALLS


@dataclass
class RankFiles:
    """The files of one rank by kind; `label` names the rank's folder without host names."""

    label: str
    by_kind: dict[Kind, Path] = field(default_factory=dict)
    unusable: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, path: Path, kind: Kind | None, *, size: int = 1) -> None:
        """Take a file; None is one without content, or of which only the name is that of a profile's file."""
        if kind is None:
            self.unusable.append((path, EMPTY_FILE if size == 0 else UNKNOWN_CONTENT))
        elif kind in self.by_kind:
            self.unusable.append((path, f"a second {kind.value}: only the first was read"))
        else:
            self.by_kind[kind] = path


_SMALL: Final[dict[Kind, tuple[TableSpec, Callable[[Path], tuple[CsvFile, Table]]]]] = {
    Kind.STEP_TRACE: (t.EXPORTED_STEPS, small.read_step_trace),
    Kind.OP_STATISTIC: (t.EXPORTED_OPS, small.read_op_statistic),
    Kind.API_STATISTIC: (t.EXPORTED_APIS, small.read_api_statistic),
    Kind.MEMORY_RECORD: (t.MEMORY, small.read_memory_record),
    Kind.OPERATOR_MEMORY: (t.MEMORY_BLOCKS, small.read_operator_memory),
    Kind.MODULE_MEMORY: (t.MODULE_MEMORY, small.read_module_memory),
}


def read_rank(files: RankFiles) -> list[Trace]:
    """The trace of the rank.

    Raises:
        InputError: no file could be read; the message is that of the first.
    """
    return _Rank(files).read()


class _Rank:
    """The state of reading one rank."""

    def __init__(self, files: RankFiles) -> None:
        self.files = files
        self.facts = meta.Facts()
        self.tables: dict[str, Table] = {}
        self.sources: list[Source] = []
        self.warnings: list[str] = []
        self.checks: list[Check] = []
        self.figures = comm.CommFigures()
        self.errors: list[InputError] = []
        self.kernel_rows: KernelRows | None = None
        self.read_data = 0
        self.timeline: Timeline | None = None
        self.database: Database | None = None
        self.host_steps = NO_HOST_STEPS
        self.groups: tuple[Group, ...] = ()
        self.exact = True
        """Whether the starts of the collectives are exact."""

    def read(self) -> list[Trace]:
        for path, problem in self.files.unusable:
            self._source(path, "", problem=problem)
        self._each(Kind.INFO, lambda path: meta.read_info(path, self.facts))
        self._each(Kind.METADATA, lambda path: meta.read_metadata(path, self.facts))
        self._each(Kind.PROFILER_DB, self._read_database)
        self._each(Kind.KERNELS, self._read_kernels)
        for kind, (spec, reader) in _SMALL.items():
            self._each(kind, lambda path, s=spec, r=reader, k=kind: self._read_small(path, s, r, k))  # type: ignore[misc]
        self._each(Kind.TRACE_VIEW, self._read_trace_view)
        self._each(Kind.OPERATORS, self._read_operators)
        self._each(Kind.L2_CACHE, self._read_l2_cache)
        self._each(Kind.ANALYSIS_DB, self._read_analysis)
        self._each(Kind.COMMUNICATION, self._read_communication)
        self._each(Kind.MATRIX, self._read_matrix)
        if not self.read_data:
            raise self.errors[0] if self.errors else InputError(f"{self.files.label}: nothing to read")
        return self._traces()

    # ---- files ----------------------------------------------------------------------------------------------------

    def _each(self, kind: Kind, read: Callable[[Path], None]) -> None:
        """Read the file of a kind; a problem in it is noted and does not touch the others."""
        path = self.files.by_kind.get(kind)
        if path is None:
            return
        try:
            read(path)
        except InputError as error:
            self.errors.append(error)
            self._source(path, kind.value, problem=error.what.replace(str(path), path.name))

    def _source(
        self,
        path: Path,
        form: str,
        *,
        rows: int = 0,
        dropped: tuple[Dropped, ...] = (),
        problem: str | None = None,
    ) -> None:
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        self.sources.append(
            Source(
                path=self._place(path),
                format=form,
                rows=rows,
                size_bytes=size,
                dropped=dropped,
                problem=problem,
                is_held_elsewhere=problem == IN_DATABASE,
            )
        )

    def _place(self, path: Path) -> str:
        """A file relative to the user's input; the label of a unit of one file is that file."""
        label = self.files.label
        return label if label.rpartition("/")[2] == path.name else f"{label}/{path.name}"

    def _used(self, path: Path, kind: Kind, rows: int, dropped: tuple[Dropped, ...] = ()) -> None:
        lost = sum(reason.count for reason in dropped if reason.reason != SHORT_CALLS)
        if lost > MAX_LOST_RATIO * max(rows, 1):
            self.warnings.append(f"{path.name}: {lost} of {rows} rows cannot be used: sums are too low")
        self._source(path, kind.value, rows=rows, dropped=dropped)
        self.read_data += 1

    def _read_database(self, path: Path) -> None:
        found = read_database(path, self.facts)
        self.database = found
        self.tables.update({name: table for name, table in found.tables.items() if len(table)})
        self.warnings += found.warnings
        dropped = tuple(Dropped(reason=reason, count=count) for reason, count in found.dropped.items())
        self._used(path, Kind.PROFILER_DB, found.rows, dropped)

    def _read_analysis(self, path: Path) -> None:
        exported, rows = comm.read_analysis_db(path, self.figures)
        if len(exported):
            # Not quantised, unlike step_trace_time.csv.
            self.tables["exported_steps"] = exported
        self._used(path, Kind.ANALYSIS_DB, rows)

    def _read_kernels(self, path: Path) -> None:
        rows = read_kernels(path)
        self.kernel_rows = rows
        self.warnings += rows.warnings
        ours = self.tables.get("kernels")
        if ours is not None and not same_capture(ours, rows.kernels):
            self._source(path, Kind.KERNELS.value, rows=rows.rows, problem=OTHER_CAPTURE)
            return
        self._used(path, Kind.KERNELS, rows.rows, rows.dropped)
        # With both exports of one capture the database counts, the text fills in what it lacks: never both together.
        for name, table in (("kernels", rows.kernels), ("comm_ops", rows.comm)):
            ours = self.tables.get(name)
            if ours is None:
                self.tables[name] = table
                continue
            self.checks.append(same_rows(name, ours, table))
            self.tables[name] = completed(ours, table)

    def _read_trace_view(self, path: Path) -> None:
        if "kernels" in self.tables and "host_ops" in self.tables:
            self._source(path, Kind.TRACE_VIEW.value, problem=IN_DATABASE)
            return
        trace = read_trace_view(path)
        problems = list(trace.file.problems)
        if not trace.file.events:
            problems.append("the file holds no events: no data was written")
        if trace.odd_args:
            problems.append(f"{trace.odd_args} events have args that are not what the format says; they were ignored")
        self.facts.set_origin(trace.data_origin)
        timeline = Timeline(trace)
        self.timeline = timeline
        for spec, table in (
            (t.HOST_OPS, timeline.host_ops()),
            (t.HOST_EVENTS, timeline.host_events()),
            (t.PYTHON_CALLS, timeline.python_calls()),
            (t.RUNTIME_CALLS, timeline.runtime_calls()),
            (t.COPIES, timeline.copies()),
            (t.OVERLAP, timeline.overlap()),
            (t.COUNTERS, timeline.counters()),
        ):
            self.tables[spec.name] = table
        dropped = tuple(Dropped(reason=reason, count=count) for reason, count in sorted(trace.file.dropped.items()))
        self._source(
            path,
            Kind.TRACE_VIEW.value,
            rows=trace.file.events,
            dropped=dropped,
            problem="; ".join(problems) or None,
        )
        self.read_data += bool(trace.file.events)

    def _read_small(
        self, path: Path, spec: TableSpec, reader: Callable[[Path], tuple[CsvFile, Table]], kind: Kind
    ) -> None:
        if spec.name in self.tables:
            self._source(path, kind.value, problem=IN_DATABASE)
            return
        file, table = reader(path)
        self.tables[spec.name] = table
        dropped = file.dropped
        if lost := file.rows - len(table):
            dropped = (*dropped, Dropped(reason="row without its key or time", count=lost))
        self._used(path, kind, file.rows, dropped)

    def _read_operators(self, path: Path) -> None:
        # Host and device sums per call, without times: the rows are counted, the calls come from the trace.
        file = read_csv(path, skip=("Input Shapes", "Call Stack"))
        self._used(path, Kind.OPERATORS, file.rows, file.dropped)

    def _read_l2_cache(self, path: Path) -> None:
        file, ratios = small.read_l2_cache(path)
        if "kernels" in self.tables:
            self.tables["kernels"] = small.with_l2_cache(self.tables["kernels"], ratios)
        self._used(path, Kind.L2_CACHE, file.rows, file.dropped)

    def _read_communication(self, path: Path) -> None:
        figures = comm.CommFigures()
        rows = comm.read_communication(path, figures)
        self._used(path, Kind.COMMUNICATION, rows)
        if self.figures.calls:
            self.checks.append(same_calls(self.figures, figures))
        # Each may leave out calls: the fuller one is used, the other one for what that lacks altogether.
        is_fuller = len(figures.calls) > len(self.figures.calls)
        fuller, other = (figures, self.figures) if is_fuller else (self.figures, figures)
        self.figures.calls, self.figures.transfers, self.figures.packets = (
            fuller.calls,
            fuller.transfers or other.transfers,
            fuller.packets or other.packets,
        )

    def _read_matrix(self, path: Path) -> None:
        figures = comm.CommFigures()
        self._used(path, Kind.MATRIX, comm.read_matrix(path, figures))
        self.figures.links = self.figures.links or figures.links

    # ---- joining --------------------------------------------------------------------------------------------------

    def _traces(self) -> list[Trace]:
        """One trace; one per device when the files mix several (PROF exports without a rank)."""
        self._join()
        devices = self._devices()
        if len(devices) < 2:
            return [self._trace(self.tables, devices[0] if devices else None, self.files.label)]
        self.facts.rank = None
        self.warnings.append(f"the files mix {len(devices)} devices, which name no rank: each is a trace of its own")
        return [
            self._trace(self._of_device(device), device, f"{self.files.label} (device {device})") for device in devices
        ]

    def _join(self) -> None:
        """Kernels and collectives with their links, steps and groups; the tables then are complete."""
        kernels = self.tables.get("kernels", Table.empty(t.KERNELS))
        comm_ops = self.tables.get("comm_ops", Table.empty(t.COMM_OPS))
        timeline = self.timeline
        if timeline is not None:
            kernels = timeline.linked_kernels(kernels if len(kernels) else timeline.kernels())
            comm_ops = timeline.linked_comm(comm_ops if len(comm_ops) else timeline.comm_ops())
            self.host_steps = timeline.host_steps()
            launched = timeline.npu.times_of
            launches = (launched(kernels.ints("start_ns")), launched(comm_ops.ints("start_ns")))
        elif self.database is not None:
            self.host_steps = self.database.host_steps
            launches = self.database.launches
        else:
            launches = (np.empty(0, np.int64), np.empty(0, np.int64))
        if not (kernels.has("step_id") or comm_ops.has("step_id")):
            fitting = (_fitting(launches[0], kernels), _fitting(launches[1], comm_ops))
            kernels, comm_ops = assign_steps(kernels, comm_ops, self.host_steps, fitting)
        if not len(comm_ops) and self.figures.calls:
            comm_ops = calls.calls_of_figures(self.figures)
            self.exact = False
            self.warnings.append(calls.APPROXIMATE)
        comm_ops, self.groups = calls.with_figures(comm_ops, self.figures, self.facts.groups)
        if count := int(calls.left_out(comm_ops, self.figures).sum()):
            self.warnings.append(
                f"{count} of {len(comm_ops)} collectives have no communication figures (sizes, transit and wait times):"
                " the exporter leaves out what starts outside of its steps"
            )
        self.tables["kernels"], self.tables["comm_ops"] = kernels, comm_ops
        if timeline is not None and self.exact:
            self.tables["comm_tasks"], lost = timeline.comm_tasks(comm_ops)
            if lost:
                self.warnings.append(f"{lost} HCCL tasks lie outside of every collective of their group: not used")
        named = {group.hash_id or group.name: group for group in self.groups}
        self.tables.update(comm.figure_tables(self.figures, named))

    def _device_columns(self) -> tuple[Ints, Ints]:
        """Device of each kernel and collective, as the file they come from says it."""
        for origin in (self.database, self.kernel_rows):
            if origin is not None and len(origin.device_of_kernel) == len(self.tables["kernels"]):
                return origin.device_of_kernel, _fitting(origin.device_of_comm, self.tables["comm_ops"])
        if self.timeline is not None and self.database is None and self.kernel_rows is None:
            kernel_device = _fitting(self.timeline.device_of_kernel(), self.tables["kernels"])
            return kernel_device, _fitting(self.timeline.device_of_comm(), self.tables["comm_ops"])
        return _fitting(np.empty(0, np.int64), self.tables["kernels"]), _fitting(
            np.empty(0, np.int64), self.tables["comm_ops"]
        )

    def _devices(self) -> list[int]:
        kernel_device, _ = self._device_columns()
        devices: list[int] = np.unique(kernel_device[kernel_device != NULL]).tolist()
        return devices

    def _of_device(self, device: int) -> dict[str, Table]:
        """The tables with the rows of one device only; tables of the host stay whole."""
        kernel_device, comm_device = self._device_columns()
        tables = dict(self.tables)
        tables["kernels"] = tables["kernels"].select(kernel_device == device)
        rows = np.flatnonzero(comm_device == device)
        tables["comm_ops"] = tables["comm_ops"].select(rows)
        tasks = tables.get("comm_tasks")
        if tasks is not None and len(tasks):
            place = np.full(len(comm_device) + 1, -1, np.int64)
            place[rows] = np.arange(len(rows))
            owner = place[tasks.ints("comm_op")]
            tables["comm_tasks"] = tasks.select(owner >= 0).with_columns({"comm_op": owner[owner >= 0]})
        exported = tables.get("exported_steps")
        if exported is not None and exported.has("device"):
            tables["exported_steps"] = exported.select(exported.ints("device") == device)
        return tables

    def _trace(self, tables: dict[str, Table], device_id: int | None, label: str) -> Trace:
        kernels, comm_ops = tables["kernels"], tables["comm_ops"]
        timed = comm_ops if self.exact else Table.empty(t.COMM_OPS)
        tables["steps"] = step_table(kernels, timed, self.host_steps, _span(tables.get("host_ops")))
        facts = self.facts
        device = meta.derive_device(facts, kernels, self._counter_hz())
        warnings = [*facts.warnings, *self.warnings]
        if self.database is not None and not kernels.has("cube_utilization_ratio"):
            tables["kernels"] = meta.with_cube_utilization(kernels, device)
            if tables["kernels"].has("cube_utilization_ratio"):
                warnings.append(COMPUTED_UTILIZATION)
        settings = facts.settings
        for origin in (self.kernel_rows, self.database):
            if settings.generation is None and origin is not None:
                settings = replace(settings, generation=origin.generation)
        return Trace(
            {name: table for name, table in tables.items() if len(table)},
            Meta(
                label=label,
                rank=facts.rank,
                world_size=facts.world_size,
                device=replace(device, device_id=facts.device_id if device_id is None else device_id),
                groups=self.groups,
                parallel=facts.parallel,
                versions=facts.versions,
                environment=facts.environment,
                settings=settings,
                data_origin=facts.data_origin,
                sources=tuple(self.sources),
                missing=missing_data(tables, facts, has_timeline="host_ops" in tables),
                checks=(*self.checks, *cross_checks(tables, self.figures)),
                warnings=tuple(warnings),
            ),
        )

    def _counter_hz(self) -> int | None:
        """The AI Core Freq counter, when it did not change."""
        counters = self.tables.get("counters")
        if counters is None:
            return None
        rows = counters.text("counter").equals("AI Core Freq")
        return meta.constant_frequency([value * 1e6 for value in counters.floats("value")[rows].tolist()])


MAX_LOST_RATIO: Final = 0.01
"""A larger share of unusable rows is worth a warning. Source: format reference, 11.9."""

EMPTY_FILE: Final = "the file is empty: no data was written"
UNKNOWN_CONTENT: Final = "not read: its content is not what a file of this name holds"
COMPUTED_UTILIZATION: Final = (
    "databases hold no cube_utilization: it was computed as aic_total_cycles / (frequency x cores x duration)"
)
OTHER_CAPTURE: Final = "not used: none of its kernels is in the database beside it, so it is of another capture"
IN_DATABASE: Final = "not read: the database of the same capture holds these data"


def _fitting(column: Ints, table: Table) -> Ints:
    """A column when it belongs to the rows of a table, else all unknown."""
    return column if len(column) == len(table) else np.full(len(table), NULL, np.int64)


def _span(table: Table | None) -> tuple[int, int] | None:
    """First start and last end of a table."""
    if table is None or not len(table):
        return None
    return int(table.ints("start_ns").min()), int(table.ends_ns().max())
