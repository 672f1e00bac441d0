"""Run a workload and leave a run directory: start its processes, sample them, write the manifest.

Whatever happens once the workload is known leaves a run directory that `ascend-perf analyze` reads: a run that failed
or was interrupted has a manifest that says why, and what there is of it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf import manifest as manifests
from ascend_perf.bench import before, failures, figures, results, series, virtual
from ascend_perf.bench import prediction as predictions
from ascend_perf.bench.child import CHECKPOINT_FOLDER
from ascend_perf.bench.folder import RunFolder, free_room
from ascend_perf.bench.job import Heard, Message, run_job
from ascend_perf.bench.job import Ranks as Ranks
from ascend_perf.bench.library_warnings import notes_of
from ascend_perf.bench.prediction import Forecast
from ascend_perf.bench.said import rank_row, said_of
from ascend_perf.bench.samplers import Samplers
from ascend_perf.bench.traffic import busiest
from ascend_perf.collectors import device_telemetry, devices, energy, telemetry
from ascend_perf.collectors.environment import masked
from ascend_perf.errors import (
    AscendPerfError,
    InputError,
    Interrupted,
    MachineError,
    Terminated,
    UsageError,
    first_line,
)
from ascend_perf.model.finding import Words
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.workloads import _spec

if TYPE_CHECKING:
    from ascend_perf.collectors.virtual_npu.record import Record

TRACE_FOLDER: Final = "trace"
TELEMETRY_FILE: Final = "telemetry.csv"
SERIES_FILE: Final = "training.jsonl"
KILLED: Final = "killed before it could say more, or still running"
"""The problem of a run as long as nothing else is written."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run, where and how."""

    workload: str
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    with_stack: bool = False
    ranks: Ranks = field(default_factory=Ranks)
    data: Path | None = None
    """File or folder of real data."""
    model_config: Path | None = None
    """A config.json of Hugging Face: the shape of the model."""
    save_checkpoint: bool = False
    resume: Path | None = None
    """A run directory with a checkpoint, or the checkpoint itself."""
    variables: tuple[str, ...] = ()
    """`KEY=VALUE` for the processes; they win over the preset's."""
    npu_exporter: str | None = None
    """Address of an npu-exporter that is asked instead of npu-smi."""
    virtual: virtual.Job | None = None
    """The job on virtual NPUs; `device` is then `virtual-npu`, `ranks` the processes that run."""
    snapshot: Path | None = None
    """File for the operators of a measured step; on virtual NPUs only."""

    @property
    def world_size(self) -> int:
        """Ranks of the job, those among them for which another stands."""
        return self.ranks.world_size if self.virtual is None else self.virtual.settings.world_size


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Progress: a phase begins (`steps` 0 where it has none), the device has been chosen, or something is to be told:
    a `forecast` before the run, a `warning`, a `line` about the set-up, or the `folder` of a run that did not come to
    its end."""

    phase: str
    steps: int = 0
    device: devices.SeenDevice | None = None
    forecast: Forecast | None = None
    warning: Words | None = None
    line: str | None = None
    folder: Path | None = None


def default_folder(request: Request, now: datetime) -> Path:
    """runs/<workload>-<preset>-<timestamp> under the current directory."""
    preset = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in request.preset)[:40]
    return Path("runs") / f"{request.workload}-{preset}-{now:%Y%m%d-%H%M%S}"


def launch(
    request: Request,
    *,
    folder: Path | None = None,
    force: bool = False,
    on_notice: Callable[[Notice], None] = lambda notice: None,
) -> tuple[Path, Manifest]:
    """Run the workload in processes of its own; returns the run directory and its manifest.

    Args:
        folder: the run directory; None makes runs/<workload>-<preset>-<timestamp>.
        force: replace a run directory that is there; a complete one is only replaced by a complete one.
        on_notice: told when a phase begins, and what to know before and after the run.

    Raises:
        UsageError: no such workload, preset or setting, or the folder is taken.
        MachineError: torch or another package is absent, the device is not there, or its memory is too small.
        Interrupted: SIGINT or SIGTERM reached us.
    """
    now = datetime.now().astimezone()
    workload = _spec.find_workload(request.workload)
    with RunFolder(folder or default_folder(request, now), force) as where, terminated():
        attempt = _Attempt(request, workload, now, where.path, on_notice)
        try:
            # What is left of a run whose command is killed at once says at least what it was.
            manifests.write_manifest(where.path, attempt.manifest("interrupted", KILLED))
            attempt.run()
            manifest = attempt.manifest("complete", "")
        except (Exception, KeyboardInterrupt) as error:
            is_stop = isinstance(error, (Interrupted, KeyboardInterrupt))
            manifest = attempt.manifest("interrupted" if is_stop else "failed", _problem(error))
            free_room(where.path)
            manifests.write_manifest(where.path, manifest)
            on_notice(Notice(phase="left", folder=where.left()))
            raise
        free_room(where.path)
        manifests.write_manifest(where.path, manifest)
        where.done()
        return where.path, manifest


class _Attempt:
    """One run, and what is known of it so far."""

    def __init__(
        self, request: Request, workload: _spec.Workload, now: datetime, folder: Path,
        on_notice: Callable[[Notice], None],
    ) -> None:  # fmt: skip
        self._request, self._workload, self._now, self._folder = request, workload, now, folder
        self._on_notice = on_notice
        self._settings: _spec.Settings | None = None
        self._prediction: _spec.Prediction | None = None
        self._said = figures.Said()
        self._energy: figures.Energy | None = None
        self._costs: tuple[telemetry.Cost, ...] = ()
        self._notes: list[str] = []
        self._files: dict[str, tuple[str, ...]] = {}
        self._virtual: virtual.VirtualDevices | None = None

    def run(self) -> None:
        """Check, start, hear, and write what was measured.

        Raises:
            as `launch`.
        """
        request = self._request
        between = None
        if request.model_config is not None:
            between, lacks = before.model_settings(request.model_config, self._workload)
            for note in lacks:
                self._warn(note)
        self._settings = settings = self._workload.settings(request.preset, request.overrides, between=between)
        self._prediction = predictions.predicted(self._workload, settings, request.world_size)
        data, resume = _checked_path(request.data, "--data"), _checkpoint_of(request.resume)
        before.check_packages(self._workload)
        preset = self._workload.presets()[request.preset]
        environment, doubts = before.environment_of(
            request.device, request.ranks, request.variables, preset.environment
        )
        for doubt in doubts:
            self._warn(doubt)
        if request.virtual is not None:
            if request.save_checkpoint or resume is not None:
                raise UsageError("a virtual NPU has no state to save or go on from", hint=virtual.NO_VALUES)
            self._virtual = virtual.VirtualDevices(request.virtual, self._folder, say=self._say)
            environment = self._virtual.environment(environment)
        (self._folder / TRACE_FOLDER).mkdir()
        body = {
            "workload": request.workload,
            "settings": settings.as_dict(),
            "device": request.device if self._virtual is None else "npu",
            "with_stack": request.with_stack,
            "world_size": request.world_size,
            "folder": str(self._folder.resolve()),
            "trace_folder": TRACE_FOLDER,
            "data": data,
            "resume": resume,
            "save": request.save_checkpoint,
        }
        self._on_notice(Notice(phase="start"))
        with ExitStack() as stack:
            meter = stack.enter_context(energy.PackageMeter())
            sampling = _Sampling(stack, request.npu_exporter, has_devices=self._virtual is None)

            def on_message(message: Message) -> None:
                sampling.hear(message)
                self._tell(message)

            heard = run_job(body, request.ranks, environment, on_message)
        self._keep(heard, sampling, meter, environment)
        if (error := failures.error_of(heard, request.ranks)) is not None:
            raise error if self._virtual is None else self._explained(error)

    def _tell(self, message: Message) -> None:
        if message["event"] == "phase":
            self._on_notice(Notice(phase=message["phase"], steps=message["steps"]))
        elif message["event"] == "device":
            device = devices.SeenDevice(**message["device"])
            if self._virtual is not None:
                device = self._virtual.name(device)
            self._on_notice(Notice(phase="device", device=device))
            if self._prediction is not None and self._settings is not None:
                target = _spec.Target(kind=device.type, has_bf16=message["has_bf16"])
                world = self._request.world_size
                self._prediction = predictions.predicted(self._workload, self._settings, world, target)
            if self._prediction is not None:
                ranks = self._request.ranks
                forecast = Forecast(
                    prediction=self._prediction, world_size=self._request.world_size, device_bytes=device.memory_bytes,
                    sharing_ranks=ranks.per_node if device.type == "cpu" else 1,
                )  # fmt: skip
                self._on_notice(Notice(phase="forecast", forecast=forecast))
                if forecast.is_too_large:
                    self._warn(predictions.warning_of(forecast))

    def _say(self, line: str) -> None:
        self._on_notice(Notice(phase="set-up", line=line))

    def _explained(self, error: Exception) -> Exception:
        """An error with what would fit, where the memory of the virtual device was too small."""
        assert self._virtual is not None and self._settings is not None
        if not isinstance(error, MachineError) or "out of memory" not in error.what:
            return error
        there, world = self._virtual.settings.memory_bytes, self._request.world_size
        target = predictions.target_of(self._virtual.settings.spec)
        choices = virtual.choices_that_fit(self._workload, self._settings, world, there, target)
        words = virtual.fitting_words(choices, world, there)
        self._notes.append(words)
        return MachineError(error.what, hint=words)

    def _warn(self, warning: Words) -> None:
        self._notes.append(warning.en)
        self._on_notice(Notice(phase="warning", warning=warning))

    def _keep(
        self, heard: Heard, sampling: _Sampling, meter: energy.PackageMeter, environment: Mapping[str, str]
    ) -> None:
        """Write all parts of the run directory but the manifest."""
        said = self._said = said_of(heard)
        if self._virtual is not None:
            records = self._virtual.records()
            said = self._said = virtual.completed(said, records, self._virtual.settings.clock)
            self._notes += [virtual.SIMULATED.en, virtual.NO_VALUES, *virtual.without_class(records)]
            if said.ranks:
                self._notes += self._virtual.export(self._folder / TRACE_FOLDER, records)
                self._notes += self._snapshot_of(records)
            self._virtual.clean()
            self._files["record"] = self._virtual.files()
        self._notes += said.problems
        self._notes += notes_of(heard.warnings)
        traces = sorted(path.name for path in (self._folder / TRACE_FOLDER).iterdir())
        if traces:
            self._files["trace"] = tuple(f"{TRACE_FOLDER}/{name}" for name in traces)
        if sampling.samplers.samples:
            telemetry.write_samples(self._folder / TELEMETRY_FILE, sampling.samplers.samples)
            self._files["telemetry"] = (TELEMETRY_FILE,)
        elif not telemetry.is_available():
            self._notes.append("no telemetry: psutil is not installed")
        self._notes += sampling.samplers.device_problems
        self._costs = tuple(sampling.samplers.costs)
        first = self._request.ranks.here[0]
        phases = [(int(told["time_ns"]), str(told["phase"])) for told in heard.of("phase") if told["rank"] == first]
        device_samples = device_telemetry.relabelled(sampling.samplers.device_samples, phases)
        if device_samples:
            device_telemetry.write_device_samples(self._folder / device_telemetry.FILE_NAME, device_samples)
            self._files["device_telemetry"] = (device_telemetry.FILE_NAME,)
        if said.series and said.measurement is not None:
            series.write_series(self._folder / SERIES_FILE, said.series, said.measurement)
            self._files["series"] = (SERIES_FILE,)
        if (self._folder / CHECKPOINT_FOLDER).is_dir() and heard.last("result") is not None:
            self._files["checkpoint"] = (CHECKPOINT_FOLDER,)
        tables = dict(said.tables)
        if said.ranks and len(said.ranks) > 1:
            tables["ranks"] = [rank_row(rank) for rank in said.ranks]
        if said.ranks and self._prediction is not None:
            counted = [rank["traffic"] for rank in said.ranks if rank["traffic"] is not None]
            rows = predictions.compare(
                self._prediction, figures.most_memory(said.ranks), busiest(counted) if counted else None,
                device_peak_bytes=None if said.measurement is None else said.measurement["peak_device_bytes"],
            )  # fmt: skip
            tables["prediction"] = predictions.table_of(rows)
        tables.setdefault("latencies", [
            {"name": name, "rank": rank["rank"], "ns": value}
            for rank in said.ranks for name, values in rank["latencies"].items() for value in values
        ])  # fmt: skip
        results.write_tables(self._folder, tables)
        if (self._folder / results.FOLDER).is_dir():
            left = sorted(path.name for path in (self._folder / results.FOLDER).iterdir())
            self._files["results"] = tuple(f"{results.FOLDER}/{name}" for name in left)
        if said.ranks and self._virtual is None:
            self._energy = self._energy_of(meter, device_samples, environment)

    def _snapshot_of(self, records: Sequence[Record]) -> tuple[str, ...]:
        request, settings = self._request, self._settings
        if request.snapshot is None or self._virtual is None or settings is None:
            return ()
        return virtual.write_snapshot(
            request.snapshot, records, workload=request.workload, preset=request.preset, facts=self._virtual.versions,
            # How often steps are measured does not change one, but its number does.
            config={
                **_spec.values_of(settings.config), "seed": settings.plan.seed,
                "warmup_steps": settings.plan.warmup_steps,
            },
        )  # fmt: skip

    def _energy_of(
        self, meter: energy.PackageMeter, samples: Sequence[device_telemetry.DeviceSample],
        environment: Mapping[str, str],
    ) -> figures.Energy | None:  # fmt: skip
        """Energy over the measured steps: of the devices, on a CPU of the processor packages."""
        said = self._said
        assert said.measurement is not None and said.device is not None
        if said.device.type != "cpu":
            joules = [rank["device_joules"] for rank in said.ranks]
            known = [one for one in joules if one is not None]
            if len(known) == len(joules):
                counted = f"{len(known)} {said.device.type} devices, without the host"
                return figures.Energy(joules=sum(known), counted=counted)
            used = [
                f"{said.device.type}{device_telemetry.visible(environment, index)}"
                for index in range(self._request.ranks.per_node)
            ]
            window = said.measurement["measured_from_ns"], said.measurement["measured_to_ns"]
            found, note = device_telemetry.energy_of_devices(samples, used, *window)
            if found is not None and self._request.ranks.nodes == 1:
                return figures.Energy(joules=found, counted=note)
            self._notes.append(note if found is None else "no energy: the devices of the other nodes are not sampled")
            return None
        if not meter.is_there:
            self._notes.append("no energy: counters of the processor packages (RAPL) are not there or may not be read")
            return None
        if self._request.ranks.nodes > 1:
            self._notes.append("no energy: the processor packages of the other nodes are not read")
            return None
        total = meter.joules(said.measurement["measured_from_ns"], said.measurement["measured_to_ns"])
        if total is None:
            self._notes.append("no energy: the measured steps took less than a second, or the counters were not read")
            return None
        return figures.Energy(joules=total, counted="the processor packages, other work on them included")

    def manifest(self, status: Literal["complete", "interrupted", "failed"], problem: str) -> Manifest:
        """The manifest of what is known now."""
        request, said = self._request, self._said
        metrics, notes = figures.all_metrics(
            said, world_size=request.world_size, prediction=self._prediction, energy=self._energy
        )
        if status != "complete":
            notes = (*notes, *self._lacking())
        device, timed = said.device, said.measurement
        return Manifest(
            workload=request.workload,
            preset=request.preset,
            device="npu" if request.virtual else request.device if device is None else device.type,
            device_facts=self._facts(),
            data_origin="measured" if request.virtual is None else "simulated",
            created=self._now.isoformat(timespec="seconds"),
            config={} if self._settings is None else self._settings.as_dict(),
            command=command_of(request),
            versions=said.versions,
            environment=said.environment,
            metrics=(*metrics, *telemetry.cost_metrics(self._costs)),
            timings_ns={} if timed is None else {
                "warmup": tuple(timed["warmup_ns"]),
                "measured": tuple(timed["measured_ns"]),
                "profiled": tuple(timed["profiled_ns"]),
            },
            seed=None if self._settings is None else self._settings.plan.seed,
            files=self._files,
            notes=(*self._notes, *notes),
            status=status,
            problem=problem,
        )  # fmt: skip

    def _facts(self) -> dict[str, Fact]:
        said, ranks = self._said, self._request.ranks
        facts: dict[str, Fact] = {}
        if said.device is not None:
            facts |= {
                "index": said.device.index, "name": said.device.name, "memory_bytes": said.device.memory_bytes,
                "cores": said.device.cores,
            }  # fmt: skip
        if (job := self._request.virtual) is not None:
            facts |= {"name": job.settings.device_name, **virtual.facts_of(job)}
        if said.threads is not None:
            facts["host_threads"] = said.threads
        if said.program is not None:
            facts["dtype"] = said.program["dtype"]
        return {**facts, "world_size": self._request.world_size, "nodes": ranks.nodes, "node_rank": ranks.node_rank}

    def _lacking(self) -> list[str]:
        """What a run that did not come to its end lacks."""
        plan = None if self._settings is None else self._settings.plan
        timed = self._said.measurement
        lacking = []
        for phase, planned in (
            ("measured", plan.measured_steps if plan else 0), ("profiled", plan.profiled_steps if plan else 0)
        ):  # fmt: skip
            done = 0 if timed is None else len(timed["measured_ns" if phase == "measured" else "profiled_ns"])
            if done < planned:
                lacking.append(f"the run ended early: {done} of {planned} {phase} steps were done")
        if "trace" not in self._files:
            lacking.append("no trace: the run ended before the profiler wrote one")
        return lacking


class _Sampling:
    """Telemetry of the first rank, from its first word on, and of the devices once their kind is known."""

    def __init__(self, stack: ExitStack, npu_exporter: str | None = None, *, has_devices: bool = True) -> None:
        self.samplers = Samplers(stack)
        self._has_devices = has_devices
        self._npu_exporter = npu_exporter

    def hear(self, message: Message) -> None:
        """Start with the process, and go on to the next phase with it."""
        if message["event"] == "hello" and telemetry.is_available():
            import psutil

            with suppress(psutil.Error):  # it has ended already
                self.samplers.sample_process(message["pid"])
        elif message["event"] == "device" and self._has_devices and not self.samplers.has_devices:
            self.samplers.sample_devices(message["device"]["type"], exporter=self._npu_exporter)
        elif message["event"] == "phase":
            self.samplers.go_on(message["phase"])


def _problem(error: BaseException) -> str:
    if isinstance(error, AscendPerfError):
        return masked(error.what)
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    return masked(first_line(error))


@contextmanager
def terminated() -> Iterator[None]:
    """SIGTERM is an exception here, as Ctrl-C is."""

    def arrived(number: int, frame: FrameType | None) -> None:
        raise Terminated("stopped by SIGTERM")

    try:
        before = signal.signal(signal.SIGTERM, arrived)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checked_path(path: Path | None, option: str) -> str | None:
    """The absolute path as text.

    Raises:
        InputError: there is nothing.
    """
    if path is None:
        return None
    if not path.exists():
        raise InputError(f"{option} {path}: there is nothing", hint="check the path")
    return str(path.resolve())


def _checkpoint_of(resume: Path | None) -> str | None:
    """The folder with the state to go on from.

    Raises:
        InputError: there is none.
    """
    if resume is not None and resume.name == manifests.FILE_NAME and resume.is_file():
        raise InputError(
            f"--resume {resume}: this is the manifest of a run, not the run", hint=f"--resume {resume.parent}"
        )
    if resume is not None and (resume / manifests.FILE_NAME).exists():
        if not (resume / CHECKPOINT_FOLDER).is_dir():
            raise InputError(f"{resume} has no checkpoint", hint="run it with --save-checkpoint")
        resume = resume / CHECKPOINT_FOLDER
    return _checked_path(resume, "--resume")


def command_of(request: Request) -> tuple[str, ...]:
    """Words of the command that repeats the run; files by their last name."""
    words = ["ascend-perf", "run", request.workload, "--preset", request.preset, "--device", request.device]
    for text in request.overrides:
        words += ["--set", text]
    files = {"--data": request.data, "--model-config": request.model_config, "--resume": request.resume}
    for option, path in files.items():
        if path is not None:
            words += [option, path.name]
    for text in request.variables:
        words += ["--env", masked(text)]
    ranks = request.ranks
    if request.virtual is not None:
        words += virtual.words_of(request.virtual.settings)
    if ranks.world_size > 1:
        words += ["--nproc", str(ranks.per_node)]
    if ranks.nodes > 1:
        words += ["--nnodes", str(ranks.nodes), "--node-rank", str(ranks.node_rank)]
    return (
        *words, *(["--save-checkpoint"] if request.save_checkpoint else []),
        *(["--with-stack"] if request.with_stack else []),
    )  # fmt: skip
