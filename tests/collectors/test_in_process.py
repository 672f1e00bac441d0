"""Recording inside a process: when it begins and ends, what it writes, and that it never ends the program."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.collectors import _activation, _other_profilers, _recorders, in_process
from ascend_perf.collectors.in_process import Session, Settings, read_settings
from ascend_perf.errors import AscendPerfError, InputError, MachineError, UsageError
from tests.collectors import _fake_torch_npu


class Stand:
    """A recorder that notes what is asked of it."""

    device, backend, notes, said = "cpu", "torch", (), ()

    def __init__(self, target: Path, log: list[str], size: int = 10) -> None:
        self.target, self.log, self.size = target, log, size
        log.append("start")

    def step(self) -> None:
        self.log.append("step")

    def stop(self) -> list[Path]:
        self.log.append("stop")
        self.target.write_bytes(b"x" * self.size)
        return [self.target]

    def abandon(self) -> None:
        self.log.append("abandon")

    def size_bytes(self) -> int:
        return 0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the stand-in recorders were asked, with the number of each cycle in the name of its file."""
    said: list[str] = []

    def start(*, folder: Path, rank: int, cycle: int, **rest: object) -> Stand:
        return Stand(folder / f"rank{rank}-{cycle}", said)

    monkeypatch.setattr(_recorders, "start", start)
    return said


def told(folder: Path, event: str) -> list[dict[str, Any]]:
    path = folder / "collect" / f"told-{os.getpid()}.jsonl"
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == event]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    skip=st.integers(0, 4), warmup=st.integers(1, 2), active=st.integers(1, 3), wait=st.integers(0, 2),
    repeat=st.integers(0, 3), steps=st.integers(0, 25),
)  # fmt: skip
def test_steps_are_recorded_as_the_schedule_says(
    log: list[str], tmp_path_factory: pytest.TempPathFactory, skip: int, warmup: int, active: int, wait: int,
    repeat: int, steps: int,
) -> None:  # fmt: skip
    log.clear()
    folder = tmp_path_factory.mktemp("run")
    session = Session(Settings(
        folder=str(folder), skip=skip, warmup=warmup, active=active, wait=wait, repeat=repeat
    ))  # fmt: skip
    session.begin()
    recorded_at = []
    for number in range(1, steps + 1):
        if session.is_recording:
            recorded_at.append(number)
        session.step()
    session.close()

    # By hand: which steps run under a profiler, step by step.
    expected: list[int] = []
    whole, at = 0, skip + 1
    while repeat == 0 or whole < repeat:
        span = list(range(at, at + warmup + active))
        expected += [number for number in span if number <= steps]
        if span[-1] > steps:
            break
        whole += 1
        at = span[-1] + 1 + wait
    assert recorded_at == expected
    assert told(folder, "end")[0]["steps"] == steps
    written = told(folder, "written")
    assert [one["steps"] for one in written[:whole]] == [active] * whole
    assert [one["is_whole"] for one in written] == [True] * whole + [False] * (len(written) - whole)
    assert all(one["steps"] for one in written)  # a recording without one whole step is none


@pytest.mark.parametrize(("is_orderly", "kept"), [(True, []), (False, ["rank0-0"])])
def test_the_part_of_a_step_in_which_a_program_failed_is_kept(
    log: list[str], tmp_path: Path, is_orderly: bool, kept: list[str]
) -> None:
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=3))
    session.step()
    session.step()  # warm-up is over, the first recorded step has begun
    session.close(is_orderly=is_orderly)
    assert [path.name for path in (tmp_path / "trace").iterdir()] == kept


def test_times_are_kept_apart(log: list[str], tmp_path: Path) -> None:
    session = Session(Settings(folder=str(tmp_path), skip=4, warmup=2, active=3))
    for _ in range(20):
        session.step()
    session.close()

    # Intervals end at steps 2..20: 2 to 4 before, 5 and 6 warm up, 7 to 9 recorded, 10 to 20 after.
    assert {kind: len(times) for kind, times in session.times.items()} == {"before": 3, "recorded": 3, "after": 11}
    assert told(tmp_path, "start")[0]["step"] == 4


def test_only_wanted_ranks_record(log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, expected in (("3", []), ("7", ["start", "step", "step", "stop"])):
        log.clear()
        monkeypatch.setenv("RANK", rank)
        session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=1, ranks=(7, 9)))
        for _ in range(5):
            session.step()
        assert log == expected
    assert [one["rank"] for one in told(tmp_path, "not wanted")] == [3]


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"RANK": "5"}, 5), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({"SLURM_PROCID": "9"}, 9), ({"RANK": "x"}, 0)],
)
def test_the_rank_is_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: int
) -> None:
    for name in in_process.RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert in_process.rank_here() == rank


def test_a_full_disk_ends_recording_and_not_the_program(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Stand) -> list[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Stand, "stop", stop)
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=1, repeat=0))
    for _ in range(9):
        session.step()
    session.close()

    assert [one["what"] for one in told(tmp_path, "problem")] == ["the disk is full: the trace could not be written"]
    assert log.count("start") == 1  # it does not try again


def test_recording_does_not_begin_on_a_disk_that_is_almost_full(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("", (), {"free": 5 << 20})())
    session = Session(Settings(folder=str(tmp_path), skip=1))
    session.step()
    assert log == []
    assert "only 5 MiB are free" in told(tmp_path, "problem")[0]["what"]


def test_a_trace_beyond_the_limit_is_not_kept(log: list[str], tmp_path: Path) -> None:
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=1, storage_limit_bytes=9))
    for _ in range(4):
        session.step()
    assert not list((tmp_path / "trace").iterdir())
    assert "more than the limit" in told(tmp_path, "problem")[0]["what"]


def test_raw_data_beyond_the_limit_end_recording_at_a_step(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([50, 150, 250])
    monkeypatch.setattr(Stand, "size_bytes", lambda self: next(sizes))
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=10, storage_limit_bytes=100))
    for _ in range(6):
        session.step()
    assert log == ["start", "step", "step", "stop"]
    assert told(tmp_path, "problem")[0]["what"] == "the storage limit was reached after 1 recorded steps"
    assert told(tmp_path, "written")[0]["steps"] == 1


def test_a_stop_file_ends_recording_at_the_next_step(log: list[str], tmp_path: Path) -> None:
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=10))
    session.step()
    session.step()
    (tmp_path / "collect" / in_process.STOP_FILE).touch()
    session.step()
    session.step()
    assert log == ["start", "step", "step", "stop"]


def test_a_profiler_that_raises_is_given_up_and_the_program_goes_on(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Stand) -> None:
        raise RuntimeError("Profiler is already enabled on this thread")

    monkeypatch.setattr(Stand, "step", step)
    session = Session(Settings(folder=str(tmp_path), skip=1))
    for _ in range(4):
        session.step()
    assert log == ["start", "abandon"]
    assert told(tmp_path, "problem")[0]["what"] == "the program records itself with a profiler of its own"


def test_settings_survive_their_file(tmp_path: Path) -> None:
    wanted = Settings(folder="/x", options={"with_stack": True}, ranks=(1, 2), duration_s=3.5, step_of="data")
    (tmp_path / "s.json").write_text(wanted.to_json())
    assert read_settings(tmp_path / "s.json") == wanted
    for text in ("", "[]", "{}", '{"ranks": null, "wrong": 1}'):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(InputError, match="names no settings of ours"):
            read_settings(tmp_path / "s.json")


# ---- torch_npu ------------------------------------------------------------------------------------------------------


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs a generation of the stand-in: npu("7.0", "2.5.1") -> its profiler module."""
    before = {name for name in sys.modules if name.startswith("torch_npu")}
    assert not before

    def install(generation: str, version: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(_fake_torch_npu.install(tmp_path / "site", generation, version)))
        return importlib.import_module("torch_npu.profiler")

    yield install
    for name in [name for name in sys.modules if name.startswith("torch_npu")]:
        del sys.modules[name]


def start_npu(folder: Path, **given: Any) -> _recorders.Recorder:
    folder.mkdir(exist_ok=True)
    wanted = {"backend": "torch-npu", "device": "npu:0", "folder": folder, "rank": 3, "cycle": 0, "level": "standard",
              "options": {}, "schedule": (1, 2), **given}  # fmt: skip
    return _recorders.start(**wanted)


@pytest.mark.parametrize(
    ("generation", "version", "absent"),
    [
        ("5.0", "2.1.0", {"export_type", "gc_detect_threshold", "mstx", "sys_io", "sys_interconnection"}),
        ("7.0", "2.5.1", {"sys_io", "sys_interconnection"}),
        ("26.1", "2.7.1.post8", set()),
    ],
)
def test_each_generation_gets_what_it_knows_and_nothing_is_dropped_in_silence(
    npu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], generation: str, version: str, absent: set[str]
) -> None:
    module = npu(generation, version)

    recorder = start_npu(tmp_path / "trace", level="deep")

    (made,) = module.CALLS
    config = made.given["experimental_config"]
    assert config.profiler_level is module.ProfilerLevel.Level2
    assert config.aic_metrics is module.AiCMetrics.PipeUtilization
    assert config.data_simplification is False
    assert {name for note in recorder.notes for name in absent if name in note} == absent
    if generation == "7.0":
        assert config.msprof_tx is True  # the old name of mstx
    if generation == "26.1":
        assert (config.mstx, config.sys_io, config.gc_detect_threshold) == (True, True, 1.0)
    assert made.given["activities"] == [module.ProfilerActivity.CPU, module.ProfilerActivity.NPU]
    assert (made.handler.folder, made.handler.worker, made.handler.analyse) == (str(tmp_path / "trace"), "rank3", False)
    assert recorder.said == []  # no warning: every value was one that it takes
    assert "WARNING" not in capsys.readouterr().out


def test_raw_data_are_left_for_a_process_of_their_own(npu: Any, tmp_path: Path) -> None:
    npu("26.1", "2.7.1.post8")
    recorder = start_npu(tmp_path / "trace")
    for _ in range(3):
        recorder.step()

    (path,) = recorder.stop()

    assert path.name == "rank3_20260407101532881_ascend_pt"
    assert recorder.size_bytes() == 302
    assert not (path / "ASCEND_PROFILER_OUTPUT").exists()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((2, 1), ["profiler starts", "step", "wait", "step", "step"]),
        ((0, 2), ["wait", "profiler starts", "step", "step", "step"]),
        (None, ["wait", "profiler starts", "step", "step", "step"]),
    ],
)
def test_the_device_has_done_all_earlier_steps_when_recording_begins(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: tuple[int, int] | None, expected: list[str]
) -> None:
    module = npu("26.1", "2.7.1.post8")
    order: list[str] = []
    device = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: order.append("wait"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=device))
    monkeypatch.setattr(module.profile, "start", lambda _: order.append("profiler starts"))
    monkeypatch.setattr(module.profile, "step", lambda _: order.append("step"))

    recorder = start_npu(tmp_path / "trace", schedule=schedule)
    for _ in range(3):
        recorder.step()

    assert order == expected


@pytest.mark.parametrize("schedule", [None, (1, 2)])
def test_the_end_of_a_recording_without_steps_is_no_warning(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: tuple[int, int] | None
) -> None:
    module = npu("26.1", "2.7.1.post8")
    ends = (
        "Incorrect schedule: Stop profiler while current state is RECORD which may result in incomplete parsed data."
    )
    write = module.profile._write

    def stop(profiler: Any) -> None:  # as torch_npu 2.13 does
        print(f"[2026-04-07 10:15:32] [WARNING] [1] profiler.py: {ends}")
        write(profiler)

    monkeypatch.setattr(module.profile, "stop", stop)
    recorder = start_npu(tmp_path / "trace", schedule=schedule)

    recorder.stop()

    assert recorder.said == ([] if schedule is None else [ends])


def test_a_device_that_the_program_has_not_begun_to_use_is_not_begun_by_a_recording(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu("26.1", "2.7.1.post8")
    waits: list[None] = []
    device = SimpleNamespace(is_initialized=lambda: False, synchronize=lambda: waits.append(None))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=device))

    start_npu(tmp_path / "trace", schedule=None)

    assert not waits


def test_silence_is_not_taken_for_success_and_its_lines_are_heard(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    npu("26.1", "2.7.1.post8")
    monkeypatch.setenv("FAKE_NPU_SILENT", "1")
    recorder = start_npu(tmp_path / "trace")
    for _ in range(3):
        recorder.step()
    with pytest.raises(MachineError, match="left no raw data: Failed to start profiler"):
        recorder.stop()
    assert "profiler.py: Failed to start profiler" in capsys.readouterr().out  # it is printed as ever


def test_a_profiler_under_msprof_is_refused(npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu("26.1", "2.7.1.post8")
    monkeypatch.setenv("PROFILER_SAMPLECONFIG", "{}")
    with pytest.raises(MachineError, match=r"two profilers selected \(msprof, torch_npu\)"):
        start_npu(tmp_path / "trace")


def own_profiler(module: Any, folder: Path) -> Any:
    """What a program that profiles itself builds."""
    return module.profile(on_trace_ready=module.tensorboard_trace_handler(str(folder), worker_name="theirs"))


def test_a_profiler_of_torch_npu_that_the_program_starts_goes_first(npu: Any, tmp_path: Path) -> None:
    module = npu("26.1", "2.7.1.post8")
    _other_profilers.watch_npu()  # as collect's hook does once torch_npu is imported
    theirs = own_profiler(module, tmp_path / "theirs")
    theirs.start()
    with pytest.raises(MachineError, match="records itself with a profiler of its own"):
        start_npu(tmp_path / "trace")
    theirs.stop()

    recorder = start_npu(tmp_path / "trace")  # theirs has ended
    recorder.step()
    second = own_profiler(module, tmp_path / "second")
    second.start()  # begins while ours records

    for call in (recorder.step, recorder.stop):
        with pytest.raises(MachineError, match="records itself with a profiler of its own"):
            call()
    recorder.abandon()
    assert list((tmp_path / "trace").iterdir()) == []
    second.stop()
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["theirs_20260407101532881_ascend_pt"]


@pytest.mark.parametrize(
    ("visible", "name"), [(None, "npu:1"), ("4,6", "npu:6"), ("4", "npu:1")], ids=["all", "chosen", "too few"]
)
def test_a_recording_names_its_npu_by_the_number_of_the_machine(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str
) -> None:
    npu("26.1", "2.7.1.post8")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=SimpleNamespace(current_device=lambda: 1)))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert start_npu(tmp_path / "trace").device == name


def test_starts_of_our_own_are_no_other_profiler(npu: Any, tmp_path: Path) -> None:
    npu("26.1", "2.7.1.post8")
    for number in range(2):  # two recordings, one after the other
        recorder = start_npu(tmp_path / f"trace{number}")
        for _ in range(3):
            recorder.step()
        assert not _other_profilers.is_npu_on()
        assert len(recorder.stop()) == 1


@pytest.mark.parametrize("is_before", [True, False], ids=["imported before", "imported after"])
def test_the_hook_hears_of_torch_npu_whenever_it_is_imported(
    npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    monkeypatch.syspath_prepend(str(_fake_torch_npu.install(tmp_path / "site")))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(_activation, "session", object())  # of this process: nothing is to be recorded here
    (tmp_path / "settings.json").write_text(Settings(folder=str(tmp_path)).to_json())
    if is_before:
        importlib.import_module("torch_npu")
    _activation.activate(str(tmp_path / "settings.json"))
    module: Any = importlib.import_module("torch_npu.profiler")

    theirs = own_profiler(module, tmp_path / "theirs")
    theirs.start()
    assert _other_profilers.is_npu_on()
    theirs.stop()
    assert not _other_profilers.is_npu_on()


def test_an_option_that_this_build_lacks_is_refused_when_it_was_asked_for(npu: Any, tmp_path: Path) -> None:
    npu("7.0", "2.7.1.post8")  # the package says 26.1.0, and has the fields of 7.0
    with pytest.raises(MachineError, match="this torch_npu has no sys_io=True"):
        start_npu(tmp_path / "trace", options={"sys_io": True})
    with pytest.raises(MachineError, match="this torch_npu has no aic_metrics=L2Cache"):
        start_npu(tmp_path / "trace", options={"aic_metrics": "L2Cache"})
    with pytest.raises(UsageError, match="has no option 'profiler_lvl'"):
        start_npu(tmp_path / "trace", options={"profiler_lvl": "Level1"})


@pytest.mark.torch
def test_a_program_that_does_not_use_the_npu_is_told_so(npu: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    npu("26.1", "2.7.1.post8")
    with pytest.raises(MachineError, match="torch-npu records an NPU, this process uses cpu"):
        start_npu(tmp_path / "trace", device="auto")


@pytest.mark.torch
def test_torch_alone_records_the_host_of_an_npu_and_says_so(npu: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    npu("26.1", "2.7.1.post8")
    recorder = start_npu(tmp_path / "trace", backend="torch")
    recorder.abandon()
    assert (recorder.backend, recorder.device) == ("torch", "cpu")
    assert recorder.notes == (_recorders.NPU_LEFT_OUT,)
    assert list((tmp_path / "trace").iterdir()) == []


def test_a_duration_ends_recording_at_a_step(log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(in_process.time, "monotonic", lambda: clock[0])  # type: ignore[attr-defined]  # its own clock
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=1000, delay_s=5, duration_s=10))
    for _ in range(12):
        clock[0] += 2
        session.step()
    # Steps end at 102, 104 ...: delay over at 106, started there; 116 ends it, five steps later.
    assert log == ["start", *["step"] * 5, "stop"]
    assert told(tmp_path, "written")[0]["steps"] == 4


# ---- torch ----------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_torch_records_the_wanted_steps_into_a_trace_without_private_words(tmp_path: Path) -> None:
    import gzip

    torch = pytest.importorskip("torch")
    session = Session(Settings(folder=str(tmp_path), skip=2, warmup=1, active=2, level="quick"))
    for _ in range(8):
        torch.randn(4, 4) @ torch.randn(4, 4)
        session.step()
    session.close()

    assert [path.name for path in session.written] == ["rank0.pt.trace.json.gz"]
    document = json.loads(gzip.decompress(session.written[0].read_bytes()))
    steps = {event["name"] for event in document["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#1", "ProfilerStep#2"}  # step 0 warms the profiler up
    assert document["host_name"] == ""
    assert sum(event.get("name") == "aten::matmul" for event in document["traceEvents"]) == 2


@pytest.mark.torch
def test_a_recording_that_the_end_cuts_short_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=50))
    for _ in range(5):
        session.step()
    session.close()

    assert [path.name for path in session.written] == ["rank0.pt.trace.json.gz"]
    assert (told(tmp_path, "written")[0]["steps"], told(tmp_path, "written")[0]["is_whole"]) == (3, False)


@pytest.mark.torch
def test_a_trace_that_could_not_be_written_whole_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")

    def cut(self: object, path: str) -> None:
        Path(path).write_text('{"traceEvents": [')  # what a full disk leaves; the profiler says nothing

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", cut)
    session = Session(Settings(folder=str(tmp_path), skip=1, warmup=1, active=1))
    for _ in range(5):
        session.step()

    assert told(tmp_path, "problem")[0]["what"] == "the disk is full: the trace could not be written"
    assert list((tmp_path / "trace").iterdir()) == []


def test_errors_are_explained() -> None:
    assert _recorders.explained(MachineError("a", hint="b")) == ("a", "b")
    assert _recorders.explained(ValueError("x\ny"))[0] == "the profiler failed: ValueError: x"
    assert issubclass(MachineError, AscendPerfError)
