"""Virtual NPUs for a run: set up before it, what their record tells after it, the profile that is made of it.

What is real there: the operators that the library launched with their shapes and streams, the host's times, the memory
of the allocator, groups and sizes of collectives. What is modelled: every duration on the device and every counter.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ascend_perf.bench.figures import RankJson, Said, slowest
from ascend_perf.bench.traffic import CountedTraffic
from ascend_perf.collectors import one_rank, step_marks
from ascend_perf.collectors import virtual_npu as virtual_npu
from ascend_perf.collectors.collect_plan import Here
from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.collectors.environment import SIMULATED_FILE, masked
from ascend_perf.collectors.in_process import LAUNCHERS
from ascend_perf.collectors.virtual_npu.cost import cost_lines
from ascend_perf.errors import AscendPerfError, InputError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.model.run import Fact
from ascend_perf.op_streams import write_op_stream
from ascend_perf.units import format_quantity
from ascend_perf.workloads import _spec

if TYPE_CHECKING:
    from ascend_perf.collectors.virtual_npu.record import Record

DEVICE: Final = "virtual-npu"
"""What `--device` calls it."""
RECORD_FOLDER: Final = "record-SIMULATED"
"""Of the run directory."""
SIMULATED: Final = Words(
    "simulated: no step ran on an NPU. Real are the operators launched, shapes, host times, allocator and collectives; "
    "modelled are all times on the device, and with them throughput and step time",
    "仿真数据：没有任何 step 在 NPU 上执行。真实的部分：下发的算子、形状、主机时间、内存分配、集合通信；"
    "建模的部分：设备上的全部耗时，以及由此得到的吞吐和单步耗时",
)
NO_VALUES: Final = (
    "a virtual NPU computes nothing: there is no loss, no accuracy and nothing else that follows from values"
)
NO_PROFILE: Final = "no profile: with --clock modelled the device has times that the host's records do not share"
OWN_PROFILES: Final = (
    "profiles that the program made itself hold the host's part alone: their files of facts say now that they are "
    "simulated"
)
_ELSEWHERE: Final = re.compile(rb"^(R\t\d+\tinit\t)/[^\t\n]*?(\d+_\d+_ascend_pt)$", re.MULTILINE)
COLLECTIVES: Final = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AlltoAll": "all_to_all",
    "AlltoAllV": "all_to_all", "AlltoAllVC": "all_to_all", "Broadcast": "broadcast", "Send": "send",
    "Reduce": "reduce", "Scatter": "scatter",
}  # fmt: skip
"""Calls of HCCL by the names that `workloads._spec.Traffic` has for them. Recv is the other end of a send."""
WHOLE_SNAPSHOT: Final = (
    "no whole step was seen before recording began: it holds everything from start to end"
)
MAX_UNCLASSED: Final = 12
"""Operators of no class that are named."""
HCCL_BYTES: Final = 400 << 20
"""That HCCL takes for a group: twice HCCL_BUFFSIZE, which is 200 MiB where nothing is set. Of a job, at least once."""
ALLOCATED_RATIO: Final = 1.01
"""What the allocator hands out by what tensors ask for, in models that fill a device. Status: assumed."""
MAX_CHOICES: Final = 4
"""Settings that would fit which are named."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """How many processes of a job run, and how many ranks it has."""

    settings: virtual_npu.VirtualNpu
    processes: int
    """On this machine; 1 with a larger world stands for all ranks."""

    @property
    def is_alone(self) -> bool:
        """Whether one process stands for all ranks."""
        return self.processes == 1 and self.settings.world_size > 1


def job_of(settings: virtual_npu.VirtualNpu, nproc: int | None, nodes: int, min_ranks: int = 1) -> Job:
    """The job that the options ask for.

    Args:
        settings: its `world_size` is 1 where the user gave none.
        nproc: processes that really run; None: one, which stands for all ranks.
        min_ranks: of the workload.

    Raises:
        UsageError: the options do not fit each other.
    """
    if nodes > 1:
        raise UsageError("virtual NPUs are on one machine", hint="leave --nnodes out; --world-size 64 is eight nodes")
    world = settings.world_size if settings.world_size > 1 else max(nproc or 1, min_ranks)
    if nproc is not None and nproc > 1 and nproc != world:
        raise UsageError(
            f"--nproc {nproc} of --world-size {world}: either all ranks run, or one stands for all",
            hint=f"leave --nproc out, or give --nproc {world}",
        )
    return Job(settings=replace(settings, world_size=world), processes=nproc if nproc and nproc > 1 else 1)


class VirtualDevices:
    """The virtual NPUs of one run.

    Args:
        folder: the run directory; gets the folder of the record.
        say: told what the set-up does.
        python: interpreter of the processes.

    Raises:
        MachineError: they cannot be set up; the hint names the cure.
        UsageError: the chip is not one that the model knows.
    """

    def __init__(
        self, job: Job, folder: Path, *, say: Callable[[str], None] = lambda text: None, python: str = sys.executable
    ) -> None:
        self.job, self.settings = job, job.settings
        self._lines = cost_lines(self.settings)  # first: a chip that is not known costs no set-up
        self.prepared = virtual_npu.prepare(self.settings, say, python=python)
        self.record_folder = (folder / RECORD_FOLDER).resolve()
        self.record_folder.mkdir()
        self._variables: dict[str, str] = {}
        if mark := os.environ.get(SIMULATED_FILE):
            with contextlib.suppress(OSError):
                Path(mark).touch()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` and what makes a process see the virtual devices."""
        job = self.job
        self._variables = virtual_npu.variables(
            self.settings, self.prepared, self.record_folder, cost_lines=self._lines, base=base,
            processes=None if job.is_alone else job.processes,
        )  # fmt: skip
        alone = one_rank.variables(self.settings.world_size, self.settings.ranks_per_node) if job.is_alone else {}
        return {**base, **self._variables, **alone}

    def name(self, device: SeenDevice) -> SeenDevice:
        """The device under the name that says what it is."""
        return replace(device, name=self.settings.device_name)

    def records(self) -> list[Record]:
        """What the processes of the job recorded, by rank; they have ended.

        Raises:
            InputError: a record is damaged.
        """
        from ascend_perf.collectors.virtual_npu.record import read_folder

        # Where they met: a file with holes, as large as it could ever become.
        (self.record_folder / virtual_npu.MEET_FILE).unlink(missing_ok=True)
        return read_folder(self.record_folder)

    def export(self, traces: Path, records: Sequence[Record]) -> tuple[str, ...]:
        """Make profiles of the raw data in a folder of traces; returns what could not be done.

        With the modelled clock there is no profile: the raw data, which nothing fits, are removed.
        """
        from ascend_perf.collectors.virtual_npu.export import export

        if not any(traces.glob("*_ascend_pt")):
            return ()
        if self.settings.clock == "modelled":
            for folder in traces.glob("*_ascend_pt"):
                shutil.rmtree(folder)
            return (NO_PROFILE,)
        variables = {name: value for name, value in os.environ.items() if name != one_rank.VARIABLE} | self._variables
        problems: list[AscendPerfError] = []
        try:
            export(
                records, traces, variables, python=self.prepared.python, soc=self.settings.soc,
                on_problem=problems.append,
            )  # fmt: skip
        except AscendPerfError as error:
            problems.append(error)
        return tuple(
            masked(f"no profile: {error.what}" + (f" (hint: {error.hint})" if error.hint else "")) for error in problems
        )

    def mark_own_profiles(self, records: Sequence[Record]) -> tuple[str, ...]:
        """Say of profiles that the program made by itself, elsewhere, that they are simulated; returns what to know."""
        from ascend_perf.collectors.virtual_npu.export import mark_profile, profile_folders

        marked = 0
        for folder in profile_folders(records):
            if not folder.is_relative_to(self.record_folder.parent) and folder.is_dir():
                mark_profile(folder)
                marked += 1
        return (OWN_PROFILES,) if marked else ()

    def clean(self) -> None:
        """Take paths of this machine out of the folder of the record: run directories are handed on."""
        (self.record_folder / virtual_npu.CONFIG_FILE).unlink(missing_ok=True)
        here = f"{self.record_folder.parent}{os.sep}".encode()
        for path in self.record_folder.glob("*.vnpu"):
            content = path.read_bytes()
            # The profiler's own name of a folder begins with that of the host, where none was given.
            cleaned = _ELSEWHERE.sub(rb"\1\2", content.replace(here, b""))
            if cleaned != content:
                path.write_bytes(cleaned)

    @property
    def versions(self) -> dict[str, str]:
        """Of the packages that run on them."""
        return {"torch": self.prepared.torch_version, "torch_npu": self.prepared.torch_npu_version}

    def files(self) -> tuple[str, ...]:
        """Files of the record, relative to the run directory."""
        return tuple(f"{RECORD_FOLDER}/{path.name}" for path in sorted(self.record_folder.glob("*.vnpu")))


def facts_of(job: Job) -> dict[str, Fact]:
    """What of the devices goes into a manifest."""
    settings = job.settings
    link, node_link = settings.links()
    return {
        "soc": settings.soc, "clock": settings.clock, "ranks_per_node": settings.ranks_per_node,
        "memory_bytes": settings.memory_bytes, "processes": job.processes, "link_bytes_per_s": link,
        "node_link_bytes_per_s": node_link,
    }  # fmt: skip


def facts_with(here: Here, job: Job) -> Here:
    """The facts of this machine as a plan for virtual devices takes them.

    Raises:
        UsageError: the devices have no times that a profile could hold.
    """
    if job.settings.clock == "modelled":
        raise UsageError("--clock modelled has no profile to collect", hint="leave --clock out")
    # The wheel is the one of torch's release, whatever lies in this environment.
    version = None if here.torch_version is None else here.torch_version.partition("+")[0]
    return replace(
        here, has_npu=True, has_cann=True, msprof=None, torch_npu_version=version, is_virtual=True
    )  # fmt: skip


def launched(command: Sequence[str]) -> int | None:
    """Processes that a command with a launcher starts on this machine; None without one, or where it does not tell."""
    is_launcher = any(Path(word).name in LAUNCHERS for word in command[:1]) or any(
        word in ("torch.distributed.run", "torch.distributed.launch") for word in command[:4]
    )
    if not is_launcher:
        return None
    text = " ".join(command)
    found = re.search(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)[= ](\d{1,5})(?=\s|$)", text)
    return int(found[1]) if found else None


def python_of(command: Sequence[str]) -> str:
    """The interpreter that a command will start, as far as it can be told: torchrun's is the one beside it."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return sys.executable
    if re.fullmatch(r"python[\d.]*", Path(program).name):
        return program
    beside = Path(program).with_name("python")
    return str(beside) if Path(program).name in LAUNCHERS and beside.exists() else (
        sys.executable
    )


def write_snapshot(
    path: Path, records: Sequence[Record], *, workload: str, facts: Mapping[str, str], preset: str | None = None,
    config: Mapping[str, Fact] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Write the operators of the first marked step of the first rank; returns what to know of it.

    The first, since some operands follow the number of the step (the bias correction of Adam).
    """
    from ascend_perf.collectors.virtual_npu.op_stream import op_stream

    if not records:
        return ("no snapshot: the processes left no record",)
    first = min(records, key=lambda record: record.rank)
    windows = step_windows(first)
    stream = op_stream(
        first, workload=workload, preset=preset, settings=config, facts=facts,
        between=(windows[0][0], windows[0][1] - 1) if windows else None,
    )  # fmt: skip
    try:
        write_op_stream(path, stream)
    except InputError as error:
        return (f"no snapshot: {error.what}",)
    return () if windows else (WHOLE_SNAPSHOT,)


def without_class(records: Sequence[Record]) -> tuple[str, ...]:
    """The operators that the cost model does not know, as a note; none where it knows all."""
    launches: dict[str, int] = {}
    for record in records:
        for name, count in record.launches_without_class().items():
            launches[name] = launches.get(name, 0) + count
    if not launches:
        return ()
    most = sorted(launches, key=lambda name: (-launches[name], name))
    named = ", ".join(f"{name} ({launches[name]})" for name in most[:MAX_UNCLASSED])
    rest = f", +{len(most) - MAX_UNCLASSED}" if len(most) > MAX_UNCLASSED else ""
    return (f"operators without a class of their own in the cost model, with launches: {named}{rest}",)


def step_windows(record: Record) -> list[tuple[int, int]]:
    """Begin and end of the measured steps of our own harness, ns of the record's clock; none in other records."""
    times = [(time, text) for time, _, text, _ in record.marks if text in (step_marks.BEGIN, step_marks.END)]
    return [(begin, end) for (begin, text), (end, _) in itertools.pairwise(times) if text == step_marks.BEGIN]


def traffic_of(record: Record) -> CountedTraffic | None:
    """What the rank of a record sent in a measured step, the mean over them; None without steps.

    Sizes are those of `workloads._spec.Traffic`: the record has of an all_gather what one rank gives, of a
    reduce_scatter what one rank gets.
    """
    windows = step_windows(record)
    if not windows:
        return None
    table = record.tables["C"]
    inside = (table["host_ns"] >= windows[0][0]) & (table["host_ns"] < windows[-1][1])
    pairs, counts = np.unique(
        np.stack([table["def"][inside], table["comm"][inside]], axis=1), axis=0, return_counts=True
    )  # fmt: skip
    sums: dict[str, list[int]] = {}
    for (definition, group), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        _, name, body = record.definitions[definition]
        collective = COLLECTIVES.get(name.removeprefix("Hccl"))
        if collective is None:
            continue
        ranks = record.groups[group][1] if collective in ("all_gather", "reduce_scatter") else 1
        size = body.get("bytes")
        total = sums.setdefault(collective, [0, 0])
        total[0] += (size if isinstance(size, int) else 0) * ranks * count
        total[1] += count
    return CountedTraffic(
        collectives=[
            {"collective": name, "bytes_per_step": moved / len(windows), "calls_per_step": calls / len(windows)}
            for name, (moved, calls) in sorted(sums.items())
        ],
        unknown_calls_per_step=0,
    )  # fmt: skip


def completed(said: Said, records: Sequence[Record], clock: str) -> Said:
    """What the processes told, with what only the record knows: what was sent and, with the modelled clock, how long
    steps took."""
    by_rank = {record.rank: record for record in records}
    ranks: list[RankJson] = []
    for rank in said.ranks:
        record = by_rank.get(rank["rank"])
        if record is not None:
            rank = {**rank, "traffic": traffic_of(record)}
            if clock == "modelled":
                times = [end - begin for begin, end in step_windows(record)]
                rank["measurement"] = {
                    **rank["measurement"], "warmup_ns": [], "profiled_ns": [], "measured_ns": times
                }  # fmt: skip
        ranks.append(rank)
    if not ranks:
        return said
    return replace(said, ranks=tuple(ranks), measurement=slowest([rank["measurement"] for rank in ranks]))


def choices_that_fit(
    workload: _spec.Workload, settings: _spec.Settings, world_size: int, memory_bytes: int,
    target: _spec.Target = _spec.NPU,
) -> list[tuple[int, dict[str, _spec.Value], int]]:
    """Changes of layout and recomputation with which the modelled memory fits a device: those that change least first.

    Returns:
        World size, changed settings and modelled bytes of the rank that needs most.
    """
    if workload.predict is None:
        return []
    names, now = workload.fields().keys(), settings.as_dict()
    options: dict[str, tuple[_spec.Value, ...]] = {
        "data_parallel": ("fsdp",), "recompute": ("selective", "full"), "distributed_optimizer": (True,),
        "tensor_ranks": (2, 4, 8), "weights": ("bf16",),
    }  # fmt: skip
    axes = [
        [(name, value) for value in (None, *values) if value is None or value != now[name]]
        for name, values in options.items() if name in names
    ]  # fmt: skip
    worlds = [world_size] if world_size > 1 else [1, 2, 4, 8, 16, 32, 64]
    tried: dict[int, list[tuple[int, dict[str, _spec.Value]]]] = {}
    for world, chosen in itertools.product(worlds, itertools.product(*axes)):
        changes: dict[str, _spec.Value] = {name: value for name, value in chosen if value is not None}
        tried.setdefault(len(changes) + (world != world_size), []).append((world, changes))
    found: list[tuple[int, dict[str, _spec.Value], int]] = []
    for number in sorted(tried):
        fitting = []
        for world, changes in tried[number]:
            try:
                config = workload.from_dict({**now, **changes}).config
                needed = workload.predict(config, world, target).peak_bytes
            except (UsageError, ValueError):  # it does not fit the model or the world
                continue
            if needed * ALLOCATED_RATIO + (HCCL_BYTES if world > 1 else 0) <= memory_bytes:
                fitting.append((world, changes, needed))
        found += sorted(fitting, key=lambda one: (one[0], one[2]))
        if len(found) >= MAX_CHOICES:
            break
    return found[:MAX_CHOICES]


def fitting_words(
    choices: Sequence[tuple[int, Mapping[str, _spec.Value], int]], world_size: int, memory_bytes: int
) -> str:
    """What would fit, as options of the command, with the modelled memory of each. A choice without a change is left
    out: it is what has just run out of memory, whatever the formula says of it."""
    there = format_quantity(memory_bytes, "bytes")
    choices = [one for one in choices if one[1] or one[0] != world_size]
    if not choices:
        return f"no layout of this model was found that fits {there}, by the modelled memory"
    said = []
    for world, changes, needed in choices:
        words = [f"--world-size {world}"] if world != world_size else []
        words += [f"--set {name}={_spec.text_of(value)}" for name, value in changes.items()]
        said.append(f"{' '.join(words)} ({format_quantity(needed, 'bytes')})")
    return f"what would fit {there}, by the modelled memory: {'; '.join(said)}"


def words_of(settings: virtual_npu.VirtualNpu) -> list[str]:
    """The options of a command that ask for these devices; a wheel by its name."""
    default = virtual_npu.VirtualNpu()
    words = ["--soc", settings.soc, "--world-size", str(settings.world_size)]
    for option, value, usual in (
        ("--ranks-per-node", settings.ranks_per_node, default.ranks_per_node),
        ("--hbm", None if settings.hbm_bytes is None else f"{settings.hbm_bytes}B", None),
        ("--link-speed", _rate(settings.link_bytes_per_s), None),
        ("--node-link-speed", _rate(settings.node_link_bytes_per_s), None),
        ("--clock", settings.clock, default.clock),
        ("--wheel", None if settings.wheel is None else settings.wheel.name, None),
    ):
        if value != usual:
            words += [option, str(value)]
    return words


def _rate(bytes_per_s: float | None) -> str | None:
    return None if bytes_per_s is None else f"{bytes_per_s:g}B/s"
