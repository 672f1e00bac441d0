"""The whole way: torch_npu trains on virtual NPUs under its profiler, its own analysis makes profiles, we read them.

Expected values come from the lines of the records, read here anew. Set ASCEND_PERF_MSPROF_ANALYZE to the msprof-analyze
command of an environment of its own to have it read the profiles, too.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf import pipeline
from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, variables
from ascend_perf.collectors.virtual_npu.cost import cost_lines
from ascend_perf.collectors.virtual_npu.export import Exported, export
from ascend_perf.collectors.virtual_npu.record import read_folder
from ascend_perf.device.specs import spec_for
from ascend_perf.model import tables as t
from ascend_perf.model.finding import Finding
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from tests._virtual_npu import ready_npu

pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = Path(__file__).with_name("_profiled_job.py")
STEPS = 2
MSPROF_ANALYZE = "ASCEND_PERF_MSPROF_ANALYZE"


@pytest.fixture(scope="module")
def ready() -> Prepared:
    return ready_npu()


@dataclass(frozen=True, kw_only=True)
class Job:
    """Processes that ran, and their profiles by rank."""

    folder: Path
    exported: list[Exported]

    def record(self, rank: int) -> list[list[str]]:
        """Lines of a rank's record as fields."""
        (path,) = (self.folder / "record").glob(f"rank{rank}.*.vnpu")
        return [line.split("\t") for line in path.read_text().splitlines()]


def run(folder: Path, ready: Prepared, world: int, *words: str, **more: str) -> Job:
    """Train in `world` processes, then export."""
    (folder / "record").mkdir(parents=True)
    settings = VirtualNpu(world_size=world)
    base = variables(
        settings, ready, folder / "record", processes=world if world > 1 else None, cost_lines=cost_lines(settings)
    )
    command = [sys.executable, str(JOB), str(folder / "traces"), str(folder / "store"), str(STEPS), *words]
    children = []
    for rank in range(world):
        own = {**os.environ, **base, **more}
        if world > 1:
            own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        children.append(
            subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    told = [child.communicate(timeout=900)[0] for child in children]
    assert [child.returncode for child in children] == [0] * world, "\n".join(told)[-3000:]
    found = export(read_folder(folder / "record"), folder / "traces", base)
    return Job(folder=folder, exported=found)


@pytest.fixture(scope="module")
def two(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two ranks; each step reads the loss back."""
    return run(tmp_path_factory.mktemp("two"), ready, 2, "item")


@pytest.fixture(scope="module")
def blocking(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One rank whose launches wait for their tasks."""
    return run(tmp_path_factory.mktemp("one"), ready, 1, ASCEND_LAUNCH_BLOCKING="1")


@pytest.fixture(params=["both", "text", "database"])
def form(request: pytest.FixtureRequest) -> str:
    """Which of the two exports is there."""
    return str(request.param)


def moved(profile: Exported, place: Path, form: str) -> Path:
    """A profile as somebody takes it home, with one of the two forms of its result."""
    target = place / "taken" / profile.folder.name
    shutil.copytree(profile.folder, target)
    shutil.rmtree(next(target.glob("PROF_*")))
    for path in (target / "ASCEND_PROFILER_OUTPUT").iterdir():
        if form != "both" and (path.suffix == ".db") != (form == "database"):
            path.unlink()
    return target


def read(path: Path) -> Trace:
    """The one trace of a folder."""
    (trace,) = pipeline.load(path).traces
    return trace


# ---- what the record says ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Of one capture, times in ns since the epoch."""

    kernels: list[tuple[int, int]]
    collectives: list[tuple[int, int, int]]
    """Arrival, start and end."""
    memory: list[int]
    own_memory: list[int]
    """Without what the runtime itself takes (buffers of collectives): what the allocator of PyTorch asked for."""


def expected(rows: list[list[str]]) -> Expected:
    """From the lines of a record: what was launched between start and stop of the profiler."""
    head = {row[1]: row[2] for row in rows if row[0] == "H"}
    offset = int(head["start_realtime_ns"]) - int(head["start_raw_ns"])
    (start,) = [int(row[1]) for row in rows if row[0] == "R" and row[2] == "start"]
    (stop,) = [int(row[1]) for row in rows if row[0] == "R" and row[2] == "stop"]
    kernels = [
        (int(row[7]) + offset, int(row[8]) + offset)
        for row in rows if row[0] == "K" and start <= int(row[5]) <= stop
    ]  # fmt: skip
    collectives = [
        (int(row[6]) + offset, int(row[7]) + offset, int(row[8]) + offset)
        for row in rows if row[0] == "C" and start <= int(row[5]) <= stop
    ]  # fmt: skip
    own, memory, own_memory = 0, list[int](), list[int]()
    for row in rows:
        if row[0] == "M" and int(row[1]) <= stop:
            own += int(row[2]) if row[4] != "0" else 0
            if int(row[1]) < start:
                memory, own_memory = [], []
            memory.append(int(row[3]))
            own_memory.append(own)
    return Expected(kernels=sorted(kernels), collectives=sorted(collectives), memory=memory, own_memory=own_memory)


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without overlaps, by sorting and joining."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def length(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


# ---- tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_device_time_is_that_of_the_record(two: Job, rank: int, form: str, tmp_path: Path) -> None:
    trace = read(moved(two.exported[rank], tmp_path, form))
    wanted = expected(two.record(rank))
    kernels, comm = trace[t.KERNELS], trace[t.COMM_OPS]
    spans = list(zip(kernels.ints("start_ns").tolist(), kernels.ends_ns().tolist(), strict=True))
    assert len(wanted.kernels) > 40
    assert length(spans) == length(wanted.kernels)
    assert union(spans) == union(wanted.kernels)
    assert sorted(zip(comm.ints("start_ns").tolist(), comm.ends_ns().tolist(), strict=True)) == [
        (arrive, end) for arrive, _, end in wanted.collectives
    ]
    assert trace.meta.data_origin == "simulated"
    assert trace.meta.rank == rank
    assert trace.meta.world_size == 2
    if form != "text":
        spec = spec_for(trace.meta.device)
        assert spec is not None
        assert spec.id == "ascend-910b2"
    # The steps of analysis.db are other ones: torch_npu takes what was launched inside of the host's step for it, and
    # its task queue launches the last operators of a step after that.
    known = {"computing"} if form != "text" else set[str]()
    assert [check for check in trace.meta.checks if not check.holds and check.name not in known] == []
    assert "sums are too low" not in " ".join(trace.meta.warnings)
    # Each kernel of a step knows the operator that launched it.
    in_step = kernels.ints("step_id") != NULL
    assert in_step.sum() > 40
    assert (kernels.ints("host_op")[in_step] != NULL).all()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_split_of_the_steps_is_that_of_the_record(two: Job, rank: int) -> None:
    profile = two.exported[rank]
    trace = read(profile.folder)
    wanted = expected(two.record(rank))
    steps = trace[t.STEPS]
    windows = {
        step: (start, start + dur)
        for step, start, dur in zip(*(steps.ints(n).tolist() for n in ("step_id", "start_ns", "dur_ns")), strict=True)
    }
    with open(profile.folder / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(windows) == STEPS
    for row in rows:
        start, end = windows[int(row["Step"])]
        computing = union([span for span in wanted.kernels if start <= span[0] < end])
        talking = union([(arrive, last) for arrive, _, last in wanted.collectives if start <= arrive < end])
        split = {
            "Computing": length(computing), "Communication": length(talking),
            "Communication(Not Overlapped)": length(minus(talking, computing)),
            "Free": end - start - length(union(computing + talking)), "Bubble": 0,
        }  # fmt: skip
        # The file holds sums of floats in us: to the nanosecond they are exact.
        assert {name: round(float(row[name]) * 1000) for name in split} == split
        # This is a difference of epochs as floats, each kept to a quarter of a microsecond.
        assert abs(float(row["Stage"]) * 1000 - (end - start)) <= 500


def minus(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Parts of `a` outside of `b`; both are unions."""
    result = []
    for start, end in a:
        at = start
        for first, last in b:
            if last <= at or first >= end:
                continue
            if first > at:
                result.append((at, first))
            at = max(at, last)
        if at < end:
            result.append((at, end))
    return result


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_is_that_of_the_record(two: Job, rank: int, form: str, tmp_path: Path) -> None:
    memory = read(moved(two.exported[rank], tmp_path, form))[t.MEMORY]
    wanted = expected(two.record(rank))
    reserved = memory.ints("reserved_bytes")
    assert reserved[memory.text("component").equals("APP")].max() == max(wanted.memory)
    assert reserved[memory.text("component").equals("PTA")].max() == max(wanted.own_memory)
    assert max(wanted.memory) > max(wanted.own_memory) > 1 << 20


def test_ranks_meet_in_their_collectives(two: Job) -> None:
    both = [expected(two.record(rank)).collectives for rank in range(2)]
    tables = []
    for profile in two.exported:
        output = profile.folder / "ASCEND_PROFILER_OUTPUT"
        steps = json.loads((output / "communication.json").read_text())
        tables.append({
            name: call["Communication Time Info"] for step in steps.values()
            for name, call in step["collective"].items() if "@" in name
        })  # fmt: skip
    shared = tables[0].keys() & tables[1].keys()
    assert len(shared) >= STEPS
    for name in shared:
        waits = [table[name]["Synchronization Time(ms)"] for table in tables]
        transits = [table[name]["Transit Time(ms)"] for table in tables]
        assert min(waits) == 0  # the last one waits for nobody
        assert transits[0] == transits[1] > 0
    for rank, table in enumerate(tables):
        lengths = {round(info["Elapse Time(ms)"] * 1e6) for info in table.values()}
        assert lengths <= {end - arrive for arrive, _, end in both[rank]}


def finding(folder: Path, code: str) -> Finding:
    found = pipeline.analyze(pipeline.load(folder)).findings
    (one,) = [finding for finding in found if finding.code == code]
    return one


def test_reading_the_loss_back_is_found_on_its_line(two: Job) -> None:
    line = next(number for number, text in enumerate(JOB.read_text().splitlines(), 1) if "# THE LINE" in text)
    evidence = {one.name.en: one.value for one in finding(two.exported[0].folder, "H-05").evidence}
    told = str(evidence["line of Python that synchronises most"])
    assert told.startswith(f"{JOB.name}({line}): main (aten::item, ")


def test_blocking_launches_are_found(blocking: Job) -> None:
    (profile,) = blocking.exported
    evidence = {one.name.en: one.value for one in finding(profile.folder, "H-04").evidence}
    assert evidence["ASCEND_LAUNCH_BLOCKING"] == "1"
    # Not by the variable alone: the device really was waited for after each launch.
    assert evidence["launches that a synchronisation follows at once"] == 1.0
    # In one process a rank is none of a job.
    assert (profile.folder / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler.db").exists()


def test_the_report_says_that_it_is_simulated(two: Job, tmp_path: Path) -> None:
    places = [moved(profile, tmp_path / str(profile.rank), "both") for profile in two.exported]
    pipeline.report(places, out=tmp_path / "report", formats=("json",))
    assert json.loads((tmp_path / "report" / "report.json").read_text())["data_origin"] == "simulated"


def test_nothing_names_the_machine(two: Job) -> None:
    """Beside the folder's name, which is torch_npu's own."""
    host = os.uname().nodename
    (prof,) = two.exported[0].folder.glob("PROF_*")
    texts = [path.read_text("utf-8", "replace") for path in prof.rglob("*") if path.is_file()]
    assert len(texts) > 6
    assert not [text for text in texts if f'"{host}"' in text]


@pytest.mark.skipif(not os.environ.get(MSPROF_ANALYZE), reason=f"{MSPROF_ANALYZE} names no msprof-analyze")
def test_msprof_analyze_reads_it(two: Job, tmp_path: Path) -> None:
    command = [os.environ[MSPROF_ANALYZE], "advisor", "all", "-d", str(two.exported[0].folder), "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0
    # One of its own queries needs SQLite 3.44 (ORDER BY inside of GROUP_CONCAT), which Python may not have.
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
    assert not [line for line in errors if "db_stack_finder" not in line]
    assert list(tmp_path.rglob("*.html"))


def test_values_of_the_counters_are_in_their_bounds(two: Job) -> None:
    kernels = read(two.exported[0].folder)[t.KERNELS]
    for name in ("aic_mac_ratio", "aic_mte2_ratio", "aiv_vec_ratio", "aiv_mte2_ratio", "cube_utilization_ratio"):
        values: Any = kernels.floats(name)
        known = values[~np.isnan(values)]
        assert len(known)
        assert ((known >= 0) & (known <= 1)).all()
