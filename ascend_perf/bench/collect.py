"""`ascend-perf collect`: run a user's command under a profiler and leave a run directory.

The run directory has a manifest from its first moment on: whatever ends us or the command, `ascend-perf analyze` reads
it and says how it ended. The words of the tools are not believed; what lies on disk is.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from ascend_perf import manifest as manifests
from ascend_perf.bench import before, collected, command, overhead, virtual
from ascend_perf.bench._collect_words import masked_command, name_of, plain
from ascend_perf.bench.folder import RunFolder, free_room
from ascend_perf.bench.watch import Watch
from ascend_perf.collectors import (
    _idle_memory,
    _step_times,
    device_telemetry,
    devices,
    in_process,
    msprof,
    npu_analysis,
    step_marks,
    telemetry,
)
from ascend_perf.collectors.collect_plan import SETTINGS_FILE, CollectRequest, Here, Plan, facts_here, make_plan
from ascend_perf.collectors.environment import environment, masked, versions
from ascend_perf.errors import MachineError
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Fact, Manifest

TELEMETRY_FILE: Final = "telemetry.csv"
COLLECTED_FILE: Final = "collected.json"
EXPORT_TIMEOUT_S: Final = 3600
"""An export that takes longer hangs. Status: assumed."""
MIN_FREE_BYTES: Final = 1 << 30
"""A run is not started with less free disk. Status: assumed."""
LOW_BYTES: Final = in_process.MIN_FREE_BYTES
"""Recording is ended with less free disk."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

_SIGNALS: Final = {2: "Ctrl-C", 15: "SIGTERM", 1: "SIGHUP (the terminal was closed)"}


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What became of a run."""

    folder: Path
    manifest: Manifest
    code: int
    """Exit code of the command itself."""
    hint: str = ""
    """What to do about `manifest.problem`."""
    has_trace: bool


def default_folder(command_words: Sequence[str], now: datetime) -> Path:
    """runs/collect-<program>-<timestamp> under the current directory."""
    return Path("runs") / f"collect-{name_of(command_words)}-{now:%Y%m%d-%H%M%S}"


def collect(
    request: CollectRequest, *, folder: Path | None = None, force: bool = False, here: Here | None = None,
    job: virtual.Job | None = None, snapshot: Path | None = None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> Collected:  # fmt: skip
    """Run the command to its end, then export and analyze what was recorded.

    Args:
        request: what to record.
        folder: the run directory; None makes runs/collect-<program>-<timestamp>.
        force: replace a run directory that is there.
        here: facts about this machine; None: they are gathered.
        job: the command runs on virtual NPUs.
        snapshot: with `job`, file for the operators of a step before recording begins.
        on_notice: told what to know before and while it runs.

    Raises:
        UsageError: the command or an option cannot work, or the folder is taken.
        MachineError: a collector is not here, another profiler is in the way, or the disk is too full.
    """
    now = datetime.now().astimezone()
    here = facts_here() if here is None else here
    before.refuse_virtual(here.variables)
    if job is not None:
        here = virtual.facts_with(here, job)
    where = RunFolder(folder or default_folder(request.command or ("command",), now), force)
    umask = os.umask(0o022)
    os.umask(umask)
    target = where.path.resolve()
    plan = make_plan(request, here, target, umask=umask)
    _check_disk(target, request, on_notice)
    for text in ((f"collector: {plan.collector} ({plan.why})",) if plan.why else ()) + plan.notes:
        on_notice(text)
    with where:
        attempt = _Attempt(request, plan, here, now, where.path.resolve(), on_notice, job, snapshot)
        attempt.prepare(umask)
        try:
            attempt.run()
            attempt.finish()
        except KeyboardInterrupt:
            attempt.interrupted("stopped by Ctrl-C while the profile was exported")
        except OSError as error:
            attempt.ran_full(error)
        attempt.write_telemetry()
        manifest = attempt.manifest()
        try:
            attempt.clean()
            manifests.write_manifest(where.path, manifest)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            on_notice("the disk is full: manifest.json holds only what was known before the command ran")
        if manifest.status == "complete":
            where.done()
            path = where.path
        else:
            path = where.left()
        return Collected(
            folder=path, manifest=manifest, code=attempt.code, hint=attempt.hint, has_trace=attempt.has_trace
        )


def _check_disk(target: Path, request: CollectRequest, on_notice: Callable[[str], None]) -> None:
    place = next(parent for parent in (target, *target.parents) if parent.exists())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < MIN_FREE_BYTES:
        raise MachineError(
            f"only {free_bytes >> 20} MiB are free on the disk of the run directory",
            hint="free space, or choose another -o",
        )
    limit = request.storage_limit_bytes
    if limit is not None and limit > free_bytes:
        on_notice(f"the storage limit is larger than what is free on the disk ({free_bytes >> 20} MiB)")


class _Attempt:
    """One run, and what is known of it so far."""

    def __init__(
        self, request: CollectRequest, plan: Plan, here: Here, now: datetime, folder: Path,
        on_notice: Callable[[str], None], job: virtual.Job | None = None, snapshot: Path | None = None,
    ) -> None:  # fmt: skip
        self._request, self._plan, self._here, self._now, self._folder = request, plan, here, now, folder
        self._on_notice = on_notice
        self._told = folder / in_process.TOLD_FOLDER
        self._trace = folder / in_process.TRACE_FOLDER
        self._environment = plan.environment(here.variables)
        self._job, self._snapshot = job, snapshot
        self._virtual: virtual.VirtualDevices | None = None
        self._ended: command.Ended | None = None
        self._processes: list[collected.Process] = []
        self._notes: list[str] = list(plan.notes)
        self._exports: list[msprof.Exported] = []
        self._samples: Sequence[telemetry.Sample] = ()
        self._costs: Sequence[telemetry.Cost] = ()
        self._device_samples: Sequence[device_telemetry.DeviceSample] = ()
        self._idle_bytes: dict[str, int] = {}
        self._alone: overhead.Alone | None = None
        self._lines = overhead.StepLines()
        self._umask = 0o022
        self._wall_ns: int | None = None
        self._began_ns = 0
        self._stopped = ""
        self._problem = ""
        self._has_low_disk = False
        self.hint = ""
        self.code = 1
        self.has_trace = False

    # ---- before ------------------------------------------------------------------------------------------------------

    def prepare(self, umask: int) -> None:
        """Make the folders, and a manifest that holds if nothing else is ever written."""
        self._trace.mkdir()
        self._told.mkdir()
        self._umask = umask
        settings = self._plan.settings or self._plan.timing
        if settings is not None:
            (self._told / SETTINGS_FILE).write_text(settings.to_json(), "utf-8")
        if self._plan.script is not None:
            (self._told / msprof.SCRIPT).write_text(self._plan.script, "utf-8")
        self._stopped = "`ascend-perf collect` was ended before the command was (killed?)"
        manifests.write_manifest(self._folder, self.manifest())
        self._stopped = ""
        if self._job is not None:
            self._virtual = virtual.VirtualDevices(
                self._job, self._folder, say=self._on_notice, python=virtual.python_of(self._request.command)
            )
            self._environment = self._virtual.environment(self._environment)
            if self._snapshot is not None:
                self._environment[step_marks.VARIABLE] = "1"
            self._notes += [virtual.SIMULATED.en, virtual.NO_VALUES]  # a program prints its zeros all the same

    # ---- the command -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the command; without the collector first, where that is to be compared."""
        is_msprof = self._plan.collector == "msprof"
        measures = self._request.measures_overhead
        if measures and not self._run_alone():
            return
        self._began_ns = time.time_ns()
        with ExitStack() as stack:
            watch = Watch(self._plan.collector, self._told, stack, self.tick_disk, has_devices=self._job is None)
            self._ended = command.run_command(
                self._plan.words, self._environment, tick=watch.tick, keeps_output=is_msprof or measures,
                umask=0o027 if is_msprof else -1, on_output=self._lines.take,
            )
        self._wall_ns = msprof.wall_ns_of(self._told) if is_msprof else time.time_ns() - self._began_ns
        self._samples, self._device_samples = watch.samplers.samples, watch.samplers.device_samples
        self._costs, self._idle_bytes = watch.samplers.costs, watch.idle_bytes
        self._notes += watch.samplers.device_problems
        ended = self._ended
        code = ended.code
        if is_msprof and not ended.problem:
            code = msprof.exit_code_of(self._told / msprof.EXIT_FILE)
        if ended.signals:
            self._stopped = f"stopped by {_SIGNALS.get(ended.signals[0], 'a signal')}"
        if ended.problem:
            self.code, self._problem = ended.code or 1, ended.problem
            self.hint = "check the command behind --"
        elif code is None:
            self._lost_program(ended)
        else:
            self.code = code
            if code and not self._stopped:
                self._problem = _code_words(code)

    def _run_alone(self) -> bool:
        """Run the command without the collector; whether to go on with it."""
        self._on_notice("the command runs without the collector first, to compare")
        self._alone = overhead.run_alone(
            self._plan, self._request.command, self._environment, self._folder, self.tick_disk, umask=self._umask
        )
        self._notes += self._alone.notes
        if not (signals := self._alone.signals):
            return True
        self._stopped, self.code = f"stopped by {_SIGNALS.get(signals[0], 'a signal')}", 128 + signals[0]
        return False

    def _lost_program(self, ended: command.Ended) -> None:
        """msprof has ended without a word of the program's own end."""
        words = msprof.reason(ended.output)
        if ended.code and ended.code >= 128 and ended.code not in msprof.OWN_CODES:
            self.code, self._problem = ended.code, f"msprof was ended: {_code_words(ended.code)}"
        elif msprof.prof_folders(self._trace):
            self.code = 137
            self._problem = "the program's shell was killed: its exit code is not known"
        else:
            self.code = MachineError.exit_code
            self._problem = f"msprof did not start the program: {masked(words) or 'it said nothing'}"
            self.hint = msprof.cure(words) or "look into ~/ascend/log/debug/plog"

    def tick_disk(self) -> None:
        """End recording before the disk is full."""
        free_bytes = shutil.disk_usage(self._folder).free
        if free_bytes < LOW_BYTES and not self._has_low_disk:
            self._has_low_disk = True
            note = f"only {free_bytes >> 20} MiB were left on the disk: recording was ended"
            if self._plan.collector == "msprof":
                note = f"only {free_bytes >> 20} MiB were left on the disk: msprof stops writing without a word"
            self._notes.append(note)
            self._on_notice(note)
            with suppress(OSError):  # no room for it: those who look for it find no room either
                (self._told / in_process.STOP_FILE).touch()

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Export and parse, each place by itself; find out what there is and why something is not."""
        if self._ended is None or self._ended.problem:
            return
        if self._plan.collector == "msprof":
            self._finish_msprof()
        else:
            self._finish_in_process()
        self.has_trace = self._has_traces()
        self._note_drift()
        if not self.has_trace and not self._problem and not self._stopped:
            self._problem = "nothing was recorded"

    def interrupted(self, problem: str) -> None:
        """We were told to stop while we finished."""
        self._stopped = self._stopped or problem
        self.has_trace = self._has_traces()

    def ran_full(self, error: OSError) -> None:
        """What we had to write afterwards had no room; other errors are bugs of ours and go on."""
        if error.errno not in _FULL:
            raise error
        self._problem = self._problem or "the disk is full: what was recorded could not be exported to its end"
        self.hint = self.hint or "free disk space, or write to another disk"
        self.has_trace = self._has_traces()

    def _finish_msprof(self) -> None:
        assert self._here.msprof is not None and self._ended is not None
        program, said = str(self._here.msprof), self._ended.output
        folders = msprof.prof_folders(self._trace)
        for folder in folders:
            self._on_notice(f"export: {folder.name}")
            result = msprof.export(folder, program, self._quietly, python=self._request.python)
            self._exports.append(result)
            if result.status == "failed":
                note, cure = f"{folder.name} could not be exported: {result.problem}", msprof.cure(result.problem)
                self._notes.append(masked(note) + (f" (hint: {cure})" if cure else ""))
            elif result.status == "no device data":
                self._notes.append(f"{folder.name} holds no data of a device: {result.problem}")
            elif len(folders) > 1:
                self._analyze_communication(program, folder)
        limit = self._request.storage_limit_bytes
        if limit is not None and self._raw_bytes() >= 0.95 * limit:
            self._notes.append("the storage limit was reached: msprof has dropped the oldest data")
        for warning in msprof.messages(said, "WARNING"):
            if not re.search(r"exception has occurred in process App|stop singal", warning):
                self._notes.append(masked(f"msprof warned: {warning}"))
        if not folders and not self._problem:
            self._nothing_of_msprof(said)
        elif folders and all(one.status == "failed" for one in self._exports):
            first = self._exports[0].problem
            self._problem = self._problem or f"no PROF directory could be exported: {masked(first)}"
            self.hint = msprof.cure(first) or "msprof --export=on --output=PROF on a machine with CANN"

    def _nothing_of_msprof(self, said: str) -> None:
        errors = msprof.messages(said, "ERROR")
        if self._request.delay_s is not None and not errors:
            delay_s = self._request.delay_s
            self._problem = f"msprof left nothing: the program had ended before --delay {delay_s} was over"
            self.hint = "take a smaller --delay"
            return
        words = masked(errors[0]) if errors else "it left no PROF directory, and said nothing"
        self._problem = self._problem or f"msprof collected nothing: {words}"
        self.hint = msprof.cure(words) or "does the program use the NPU? look into ~/ascend/log/debug/plog"

    def _analyze_communication(self, program: str, folder: Path) -> None:
        if not msprof.state_of(folder).devices:
            self._notes.append(f"{folder.name}: {msprof.RAW_GONE}")
            return
        said = self._quietly(msprof.analyze_command(program, str(folder)))
        if not any((folder / "analyze").glob("communication*")):
            self._notes.append(masked(
                f"{folder.name}: no sums of its communication: {msprof.reason(said) or 'msprof said nothing'}"
            ))  # fmt: skip

    def _finish_in_process(self) -> None:
        settings = self._plan.settings
        assert settings is not None
        self._processes = collected.processes_of(self._told)
        if self._virtual is not None:
            self._export(self._virtual)
        else:
            self._parse_npu()
        self._notes += collected.notes_of(self._processes)
        if not any(self._trace.iterdir()) and not self._problem:
            has_python = (self._told / in_process.SEEN_FILE).exists()
            problem, self.hint = collected.why_nothing(self._processes, settings, has_python)
            if not self._stopped:
                self._problem = masked(problem)
            else:
                self._notes.append(masked(problem))

    def _export(self, devices: virtual.VirtualDevices) -> None:
        """Make profiles and the snapshot of what the virtual devices recorded."""
        self._on_notice("making the profile of the virtual NPU")
        records = devices.records()
        self._notes += devices.export(self._trace, records)
        self._notes += devices.mark_own_profiles(records)
        self._notes += virtual.without_class(records)
        if self._snapshot is not None:
            self._notes += virtual.write_snapshot(
                self._snapshot, records, workload=name_of(self._request.command), facts=devices.versions
            )  # fmt: skip
        devices.clean()

    def _parse_npu(self) -> None:
        """Parse raw data of torch_npu: one process each, at most half the cores at once."""
        python = {path: one.executable for one in self._processes for path in one.written}
        raw = sorted(path for path in self._trace.glob("*_ascend_pt") if not npu_analysis.is_parsed(path))
        if not raw:
            return
        self._on_notice(f"parsing {len(raw)} profile(s) of torch_npu")

        def parse(folder: Path) -> str:
            name = f"{in_process.TRACE_FOLDER}/{folder.name}"
            words = npu_analysis.command(folder, python.get(name) or "python3")
            return self._quietly(words)

        version = self._here.torch_npu_version
        for folder in raw:
            if count := npu_analysis.too_many_devices(folder, version):
                self._notes.append(
                    f"{folder.name}: one process with {count} devices: torch_npu {version} does not record them "
                    "reliably (hint: one process for each device, or torch_npu 2.6.0)"
                )
        with ThreadPoolExecutor(max(1, (devices.usable_cores() or 2) // 2)) as pool:
            for folder, said in zip(raw, pool.map(parse, raw), strict=True):
                if not npu_analysis.is_parsed(folder):
                    what, hint = npu_analysis.problem_of(said)
                    note = masked(f"{folder.name} could not be parsed: {what}")
                    self._notes.append(note + (f" (hint: {hint})" if hint else ""))
                elif npu_analysis.NO_MSPROF in said:
                    what, hint = npu_analysis.problem_of(said)
                    self._notes.append(f"{folder.name}: {what} (hint: {hint})")

    def _quietly(self, words: Sequence[str]) -> str:
        own = (in_process.VARIABLE, "PYTHONUNBUFFERED")
        variables = {name: value for name, value in self._environment.items() if name not in own}
        return command.run_quietly(words, variables, timeout_s=EXPORT_TIMEOUT_S)

    def _has_traces(self) -> bool:
        if self._plan.collector == "msprof":
            return any(msprof.state_of(folder).exported for folder in msprof.prof_folders(self._trace))
        return any(
            npu_analysis.is_parsed(path) if path.is_dir() else path.name.endswith(".json.gz")
            for path in self._trace.iterdir()
        )

    def _raw_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._trace.glob("PROF_*/*/data/*") if path.is_file())

    # ---- the run directory -------------------------------------------------------------------------------------------

    def write_telemetry(self) -> None:
        """Write the samples; where the disk is full, say so in their place."""
        free_room(self._folder)
        try:
            self._write_samples()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            for name in (TELEMETRY_FILE, device_telemetry.FILE_NAME):
                (self._folder / name).unlink(missing_ok=True)
            self._samples, self._device_samples = (), ()
            self._notes.append("the disk is full: the samples of telemetry could not be written")

    def _write_samples(self) -> None:
        phases = self._phases()
        if self._samples:
            samples = [replace(sample, phase=_phase_at(sample.time_ns, phases)) for sample in self._samples]
            telemetry.write_samples(self._folder / TELEMETRY_FILE, samples)
        if self._device_samples:
            samples_of_devices = device_telemetry.relabelled(
                (*(self._alone.device_samples if self._alone else ()), *self._device_samples), phases
            )
            if self.has_trace and self._plan.collector != "torch":
                samples_of_devices = device_telemetry.without_dead(samples_of_devices)
            device_telemetry.write_device_samples(self._folder / device_telemetry.FILE_NAME, samples_of_devices)

    def clean(self) -> None:
        """Write what was told as one file without private words, and remove the working files, which hold them."""
        body = {
            "collector": self._plan.collector,
            "command": masked_command(self._request.command),
            "options": {name: plain(value) for name, value in self._plan.options.items()},
            "exit_code": self.code,
            "exports": [
                {"name": one.name, "status": one.status, "problem": masked(one.problem)} for one in self._exports
            ],
            "processes": [
                {
                    "rank": one.rank, "device": one.device, "first_step": one.first_step, "steps": one.steps,
                    "recorded": one.recorded, "written": one.written,
                    "problems": [masked(what) for what, _ in one.problems],
                }
                for one in self._processes
            ],
        }  # fmt: skip
        for path in self._told.iterdir():
            path.unlink()
        (self._told / COLLECTED_FILE).write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def _phases(self) -> list[tuple[int, str]]:
        """When the profiler was on: all the time under msprof, else as the first process that recorded tells."""
        first = [] if self._alone is None else [(self._alone.began_ns, overhead.PHASE), (self._began_ns, "start")]
        if self._plan.collector == "msprof":
            return [*first, (self._began_ns, "profiled")]
        return first + next((one.phases for one in self._processes if one.phases), [])

    def _note_drift(self) -> None:
        if self._alone is None or not self._alone.is_timed:
            return
        drift = overhead.drift_of(self._alone.timed, overhead.timed(self._told, self._lines, self._wall_ns))
        if drift is not None and abs(drift) > overhead.LARGE_DRIFT:
            self._notes.append(
                f"steps without the collector took {1 + drift:.2f} times as long in the second run as in the first: "
                "the overhead is doubtful (hint: measure again on a quiet machine)"
            )

    def _compared(self) -> tuple[tuple[Metric, ...], overhead.Basis | None]:
        """Figures of the steps without the collector, and its cost, of the run without it and this one."""
        if self._alone is None or not self._alone.is_timed or self._problem or self._stopped or self._ended is None:
            return (), None
        return overhead.metrics_of(
            self._alone.timed, overhead.timed(self._told, self._lines, self._wall_ns),
            is_msprof=self._plan.collector == "msprof", began_ns=self._began_ns, delay_s=self._request.delay_s,
            duration_s=self._request.duration_s,
        )  # fmt: skip

    def _device_words(self) -> tuple[str, ...]:
        if self._job is None:
            return "--with", self._plan.collector
        return "--device", virtual.DEVICE, *virtual.words_of(self._job.settings)

    def manifest(self) -> Manifest:
        """The manifest of what is known now."""
        request, plan = self._request, self._plan
        traces = sorted(path.name for path in self._trace.iterdir())
        metrics: tuple[Metric, ...] = ()
        if times := collected.times_of(self._processes):
            metrics = _step_times.metrics_of(_step_times.slowest(times))
        compared, basis = self._compared()
        metrics = compared if basis in ("steps", "lines") else (*metrics, *compared)
        status: Literal["complete", "interrupted", "failed"] = "complete"
        if self._stopped:
            status = "interrupted"
        elif self._problem:
            status = "failed"
        device = next((one.device for one in self._processes if one.device), "")
        kind = device.split(":")[0] if device else "npu" if plan.collector != "torch" else "cpu"
        facts: dict[str, Fact] = {}
        if kind == "cpu":
            seen = devices.cpu()
            facts = {"index": 0, "name": seen.name, "memory_bytes": seen.memory_bytes, "cores": seen.cores}
        if self._job is not None:
            settings = self._job.settings
            facts |= {"name": settings.device_name, "world_size": settings.world_size}
            facts |= virtual.facts_of(self._job)
        recorded = [one for one in self._processes if one.written]
        if recorded:
            facts["recorded_ranks"] = len({one.rank for one in recorded})
        return Manifest(
            workload=name_of(request.command),
            preset=request.level,
            device=kind,
            device_facts=facts,
            data_origin="measured" if self._job is None else "simulated",
            created=self._now.isoformat(timespec="seconds"),
            config={
                "collector": plan.collector, "level": request.level, "exit_code": self.code,
                **{f"option.{name}": plain(value) for name, value in plan.options.items()},
                **({} if plan.settings is None else {
                    "skip": plan.settings.skip, "warmup": plan.settings.warmup, "active": plan.settings.active,
                    "repeat": plan.settings.repeat, "step_of": plan.settings.step_of,
                }),
                "delay_s": request.delay_s, "duration_s": request.duration_s,
                "storage_limit_bytes": request.storage_limit_bytes,
                **({} if basis is None else {"overhead_basis": basis}),
            },
            command=("ascend-perf", "collect", *self._device_words(), "--level", request.level, "--",
                     *masked_command(request.command)),
            versions={
                **versions(), **({"cann": self._here.cann_version} if self._here.cann_version else {}),
                **({} if self._virtual is None else self._virtual.versions),
            },
            environment=environment(self._environment),
            metrics=(
                *metrics, *_idle_memory.metrics_of(self._device_samples, self._idle_bytes),
                *telemetry.cost_metrics(self._costs),
            ),
            files={
                **({"trace": tuple(f"{in_process.TRACE_FOLDER}/{name}" for name in traces)} if traces else {}),
                **({"telemetry": (TELEMETRY_FILE,)} if self._samples else {}),
                **({"device_telemetry": (device_telemetry.FILE_NAME,)} if self._device_samples else {}),
                **({"record": self._virtual.files()} if self._virtual else {}),
                "collected": (f"{in_process.TOLD_FOLDER}/{COLLECTED_FILE}",),
            },
            notes=tuple(dict.fromkeys(self._notes)),
            status=status,
            problem=self._stopped or self._problem,
        )  # fmt: skip


def _phase_at(time_ns: int, phases: Sequence[tuple[int, str]]) -> str:
    return next((name for begin, name in reversed(phases) if begin <= time_ns), "start")


def _code_words(code: int) -> str:
    # Signals end at 64: what is above is a code of the program itself (`exit(-1)` is 255).
    if 128 < code <= 192:
        killed = " (the memory of the machine, or of its container, was used up?)" if code == 137 else ""
        return f"the command was ended by signal {code - 128}{killed}"
    return f"the command ended with code {code}"
