"""Puts the exports of one process of msprof together: a trace for each of its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import Check, Dropped, Group, Meta, Trace
from ascend_perf.parsers import _ascend_calls as calls
from ascend_perf.parsers import _ascend_comm as comm
from ascend_perf.parsers import _ascend_meta as meta
from ascend_perf.parsers import _ascend_tables as small
from ascend_perf.parsers import _msprof_tasks as tasks
from ascend_perf.parsers._ascend_checks import cross_checks, same_rows
from ascend_perf.parsers._ascend_csv import CsvFile
from ascend_perf.parsers._ascend_kernels import KernelRows, completed, kernels_of, same_capture
from ascend_perf.parsers._ascend_rank import COMPUTED_UTILIZATION
from ascend_perf.parsers._ascend_steps import NO_HOST_STEPS, step_table
from ascend_perf.parsers._ascend_timeline import Timeline
from ascend_perf.parsers._msprof_counters import FORMS, counters_of, npu_memory_of
from ascend_perf.parsers._msprof_facts import ProcessFacts
from ascend_perf.parsers._msprof_files import Inputs
from ascend_perf.parsers._msprof_missing import missing_data
from ascend_perf.parsers._msprof_process import HOST_TABLES, MADE_OF_TASKS, NO_TABLE, Process
from ascend_perf.parsers._msprof_trace import marks_of

OTHER_CAPTURE: Final = "tables and database share no kernel: they are of two captures, and each is a trace of its own"


def read_process(label: str, inputs: Inputs, facts: ProcessFacts) -> list[Trace]:
    """A trace for each device of the process.

    Args:
        label: of the PROF directory, without names of hosts.
        inputs: its files.
        facts: what its files of facts say.

    Raises:
        InputError: no file could be read; the message is that of the first.
    """
    traces, agree = _read(label, inputs, facts)
    if agree:
        return traces
    tables = replace(inputs, databases=[], left=[])
    databases = replace(inputs, tables={}, traces=[], figures={})
    return [
        trace.replace(meta=replace(trace.meta, warnings=(*trace.meta.warnings, OTHER_CAPTURE)))
        for own in (databases, tables)
        for trace in _read(label, own, facts)[0]
    ]


def _read(label: str, inputs: Inputs, facts: ProcessFacts) -> tuple[list[Trace], bool]:
    """The traces, and whether tables and database are of one capture."""
    process = Process(label, inputs, facts)
    process.read()
    several = len(process.devices) > 1
    devices: list[int | None] = [*process.devices] if process.devices else [process.only_device()]
    parts = [_DeviceTrace(process, device) for device in devices]
    found = [part.trace(f"{label} (device {part.device})" if several else label) for part in parts]
    process.name_tables()
    return [_with_sources(trace, process) for trace in found], all(part.one_capture for part in parts)


def _with_sources(trace: Trace, process: Process) -> Trace:
    """The trace with the files of the process, which are known when all devices have been put together."""
    warnings = tuple(dict.fromkeys((*trace.meta.warnings, *process.warnings)))
    return trace.replace(meta=replace(trace.meta, sources=tuple(process.sources), warnings=warnings))


class _DeviceTrace:
    """The state of putting together one device."""

    def __init__(self, process: Process, device: int | None) -> None:
        self.process = process
        self.device = device
        self.facts = process.facts_of(device, len(process.devices))
        self.tables: dict[str, Table] = {}
        self.warnings: list[str] = []
        self.checks: list[Check] = []
        self.database = process.databases.get(device) or process.databases.get(None)
        trace = process.trace_of(device)
        self.timeline = None if trace is None else Timeline(trace)
        self.kernel_rows: KernelRows | None = None
        self.steps = Table.empty(t.STEPS)
        self.groups: tuple[Group, ...] = ()
        self.exact = True
        """Whether the starts of the collectives are exact."""
        self.one_capture = True
        """Whether op_summary and the database share kernels."""

    def _cells(self, base: str) -> CsvFile | None:
        return self.process.cells(base, self.device)

    def _drop(self, base: str, dropped: Iterable[Dropped]) -> None:
        """Count rows that were not used; those of the host once, not once per device."""
        if base not in HOST_TABLES or self.device in (None, *self.process.devices[:1]):
            self.process.drop(base, dropped)

    def trace(self, label: str) -> Trace:
        if self.database is not None:
            self.tables.update({name: table for name, table in self.database.tables.items() if len(table)})
        self._kernels()
        self._tasks()
        self._from_timeline()
        self._iterations()
        self._comm()
        self._memory_and_sums()
        self._counters()
        for base in tasks.JOINED:
            self._join(base)
        return self._made(label)

    def _put(self, name: str, table: Table) -> None:
        """Take a table where no better source has given it."""
        if len(table) and name not in self.tables:
            self.tables[name] = table

    def _kernels(self) -> None:
        file = self._cells("op_summary")
        if file is None:
            return
        rows = kernels_of(file)
        self._drop("op_summary", rows.dropped[len(file.dropped) :])
        self.warnings += rows.warnings
        ours = self.tables.get("kernels")
        if ours is not None and not same_capture(ours, rows.kernels):
            self.one_capture = False
            return
        self.kernel_rows = rows
        for name, table in (("kernels", rows.kernels), ("comm_ops", rows.comm)):
            ours = self.tables.get(name)
            if ours is None:
                self._put(name, table)
                continue
            where = "sum of durations in the database against op_summary"
            self.checks.append(replace(same_rows(name, ours, table), where=where))
            self.tables[name] = completed(ours, table)

    def _tasks(self) -> None:
        """task_time: what op_summary lacks (copies; engines with --task-time=l0), or everything without it."""
        file = self._cells("task_time")
        if file is None:
            return
        kernels, calls_of_tasks, copies, dropped = tasks.tasks_of(file)
        self._drop("task_time", dropped)
        ours = self.tables.get("kernels")
        if ours is None:
            self._put("kernels", kernels)
        elif same_capture(ours, kernels):
            self.tables["kernels"] = completed(ours, kernels)
        self._put("comm_ops", calls_of_tasks)
        if self.timeline is None:
            self._put("copies", copies)

    def _from_timeline(self) -> None:
        timeline = self.timeline
        if timeline is None:
            return
        for spec, table in (
            (t.KERNELS, timeline.kernels()),
            (t.COMM_OPS, timeline.comm_ops()),
            (t.RUNTIME_CALLS, timeline.runtime_calls()),
            (t.HOST_OPS, timeline.host_ops()),
            (t.HOST_EVENTS, timeline.host_events()),
            (t.HOST_EVENTS, marks_of(timeline.trace)),
            (t.COPIES, timeline.copies()),
            (t.OVERLAP, timeline.overlap()),
            (t.COUNTERS, timeline.counters()),
        ):
            self._put(spec.name, table)
        for name, linked in (("kernels", timeline.linked_kernels), ("comm_ops", timeline.linked_comm)):
            if name in self.tables:
                self.tables[name] = linked(self.tables[name])

    def _iterations(self) -> None:
        file = self._cells("step_trace")
        if file is None:
            return
        steps, model, warnings, dropped = tasks.iterations_of(file)
        self._drop("step_trace", dropped)
        self.warnings += warnings
        reduces = tasks.reduces_of(file)
        if len(reduces) and "comm_ops" not in self.tables and not self.process.figures.calls:
            self._put("comm_ops", reduces)
            self.warnings.append(tasks.REDUCE_STAGES)
        if not len(steps):
            return
        self.steps = steps
        for name in ("kernels", "comm_ops"):
            if name in self.tables:
                self.tables[name] = tasks.in_iterations(self.tables[name], steps, model)

    def _comm(self) -> None:
        figures = self.process.figures
        own = self.tables.get("comm_ops", Table.empty(t.COMM_OPS))
        if not len(own) and figures.calls and len(self.process.devices) < 2:
            own = calls.calls_of_figures(figures)
            self.exact = False
            self.warnings.append(calls.APPROXIMATE)
        own, self.groups = calls.with_figures(own, figures, self.facts.groups)
        self.tables["comm_ops"] = own
        if self.timeline is not None and self.exact and "comm_tasks" not in self.tables:
            found, lost = self.timeline.comm_tasks(own)
            self._put("comm_tasks", found)
            if lost:
                self.warnings.append(f"{lost} HCCL tasks lie outside of every collective of their group: not used")
        named = {group.hash_id or group.name: group for group in self.groups}
        for name, table in comm.figure_tables(figures, named).items():
            self._put(name, table)

    def _memory_and_sums(self) -> None:
        readers: tuple[tuple[str, str, Callable[[CsvFile], Table]], ...] = (
            ("memory_record", "memory", small.memory_record_of),
            ("operator_memory", "memory_blocks", small.operator_memory_of),
            ("npu_module_mem", "module_memory", small.module_memory_of),
            ("op_statistic", "exported_ops", small.op_statistic_of),
            ("api_statistic", "exported_apis", small.api_statistic_of),
        )
        for base, name, reader in readers:
            file = self._cells(base)
            if file is None:
                continue
            table = reader(file)
            if lost := file.rows - len(table):
                self._drop(base, (Dropped(reason="row without its key or time", count=lost),))
            self._put(name, table)
        if (file := self._cells("msprof_tx")) is not None and "host_events" not in self.tables:
            events, dropped = tasks.marks_of(file)
            self._drop("msprof_tx", dropped)
            self._put("host_events", events)
        if (file := self._cells("os_runtime_statistic")) is not None:
            known = self.tables.get("exported_apis", Table.empty(t.EXPORTED_APIS))
            self.tables["exported_apis"] = Table.concat(t.EXPORTED_APIS, [known, tasks.os_calls_of(file)])
        if (file := self._cells("npu_mem")) is not None:
            memory, device = npu_memory_of(file)
            if lost := file.rows - len(memory) - len(device):
                self._drop("npu_mem", (Dropped(reason="row without its key or time", count=lost),))
            known = self.tables.get("memory", Table.empty(t.MEMORY))
            if not known.text("component").equals("APP").any():
                self.tables["memory"] = Table.concat(t.MEMORY, [known, memory]).sorted_by("time_ns")
            self._add_counters(device, "Device/")
        exported = self.process.exported
        if len(exported):
            own = exported.ints("device")
            mine = exported.select((own == self.device) | (own == NULL)) if self.device is not None else exported
            self._put("exported_steps", mine)

    def _add_counters(self, counters: Table, title: str) -> None:
        """Add counters where no source with more detail has some of that title."""
        known = self.tables.get("counters", Table.empty(t.COUNTERS))
        if len(counters) and not known.text("counter").flags(lambda word: word.startswith(title)).any():
            self.tables["counters"] = Table.concat(t.COUNTERS, [known, counters]).sorted_by("time_ns")

    def _counters(self) -> None:
        for base in self.process.tables:
            file = self._cells(base)
            form = FORMS.get(base)
            if file is None:
                continue
            if form is not None:
                self._add_counters(counters_of(file, form), form.title)
            elif base not in _TAKEN:
                self._drop(base, (Dropped(reason=NO_TABLE, count=file.rows),))

    def _join(self, base: str) -> None:
        file = self._cells(base)
        if file is None:
            return
        kernels = self.tables.get("kernels", Table.empty(t.KERNELS))
        kernels, lost = tasks.joined_to(kernels, file, base)
        if lost:
            self._drop(base, (Dropped(reason="row of a task that is not among the kernels", count=lost),))
        if len(kernels):
            self.tables["kernels"] = kernels

    def _made(self, label: str) -> Trace:
        tables, facts = self.tables, self.facts
        kernels = tables.setdefault("kernels", Table.empty(t.KERNELS))
        comm_ops = tables["comm_ops"]
        steps = self.steps
        host_steps = self.database.host_steps if self.database is not None else NO_HOST_STEPS
        if not len(steps):
            timed = comm_ops if self.exact else Table.empty(t.COMM_OPS)
            steps = step_table(kernels, timed, host_steps, None)
        tables["steps"] = steps
        device = meta.derive_device(facts, kernels, self._counter_hz())
        if not kernels.has("cube_utilization_ratio"):
            tables["kernels"] = meta.with_cube_utilization(kernels, device)
            if tables["kernels"].has("cube_utilization_ratio"):
                self.warnings.append(COMPUTED_UTILIZATION.replace("databases hold", "the export holds"))
        settings = facts.settings
        for origin in (self.kernel_rows, self.database):
            if settings.generation is None and origin is not None:
                settings = replace(settings, generation=origin.generation)
        # The exporter does not say whose figures they are where a process has several devices.
        figures = self.process.figures if len(self.process.devices) < 2 else comm.CommFigures()
        checks = (*self.checks, *cross_checks(tables, figures), *self._comm_count())
        self._add_comm_sums()
        return Trace(
            {name: table for name, table in tables.items() if len(table)},
            Meta(
                label=label,
                rank=facts.rank,
                world_size=facts.world_size,
                device=replace(device, device_id=facts.device_id if self.device is None else self.device),
                groups=self.groups,
                versions=facts.versions,
                environment=facts.environment,
                settings=settings,
                data_origin=facts.data_origin,
                missing=missing_data(tables, self.process.facts),
                checks=checks,
                warnings=tuple(dict.fromkeys((*facts.warnings, *self.process.warnings, *self.warnings))),
            ),
        )

    def _add_comm_sums(self) -> None:
        file = self._cells("communication_statistic")
        if file is not None:
            known = self.tables.get("exported_ops", Table.empty(t.EXPORTED_OPS))
            self.tables["exported_ops"] = Table.concat(t.EXPORTED_OPS, [known, tasks.comm_statistic_of(file)])

    def _comm_count(self) -> tuple[Check, ...]:
        file, comm_ops = self._cells("communication_statistic"), self.tables["comm_ops"]
        if file is None or not len(comm_ops):
            return ()
        counted = tasks.comm_statistic_of(file).ints("count")
        return (
            Check(
                name="collective count",
                ours=float(len(comm_ops)),
                theirs=float(counted[counted != NULL].sum()),
                unit="count",
                tolerance=0.0,
                where="collectives against communication_statistic",
            ),
        )

    def _counter_hz(self) -> int | None:
        counters = self.tables.get("counters")
        if counters is None:
            return None
        rows = counters.text("counter").equals("AI Core Freq")
        return meta.constant_frequency((counters.floats("value")[rows] * 1e6).tolist())


_TAKEN: Final = frozenset(
    {
        *MADE_OF_TASKS, *tasks.JOINED, "op_statistic", "communication_statistic", "api_statistic", "memory_record",
        "operator_memory", "npu_mem", "npu_module_mem", "msprof_tx", "os_runtime_statistic",
    }
)  # fmt: skip
"""Tables that have a reader of their own."""
