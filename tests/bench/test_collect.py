"""`ascend-perf collect` with a stand-in for msprof: every trap of the format reference, and what the run says of it.

The programs use no torch; `tests/bench/test_collect_torch.py` has those that do.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf import manifest as manifest_files
from ascend_perf.bench import collect as bench
from ascend_perf.bench import command, watch
from ascend_perf.bench import folder as folders
from ascend_perf.bench._collect_words import name_of
from ascend_perf.bench.collect import Collected, collect
from ascend_perf.bench.folder import RunFolder
from ascend_perf.collectors import _msprof_options, msprof
from ascend_perf.collectors.collect_plan import CollectRequest, Here, make_plan
from ascend_perf.errors import InputError, MachineError, UsageError
from ascend_perf.manifest import read_manifest
from ascend_perf.model.run import Manifest
from tests.collectors import _ascend_tree, _fake_msprof
from tests.collectors._npu_smi_texts import A2

PROGRAM = """
import os, sys, time
from pathlib import Path
npu, (code, processes, words) = Path(os.environ["FAKE_NPU"]), sys.argv[1:4]
for number, word in enumerate(words.split(",") if int(processes) else ()):
    (npu / f"{number}.process").write_text(word)
print("step 1 loss 9.81")
sys.exit(int(code))
"""

Run = Callable[..., Collected]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(code, processes words, **request) records the program under the stand-in."""
    npu = tmp_path / "npu"
    npu.mkdir()
    binary = _fake_msprof.install(tmp_path)
    monkeypatch.setenv("FAKE_NPU", str(npu))
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)  # then every call has its harmless error line
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 0)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)

    def record(
        code: int = 0, processes: str = "ok", *, words: tuple[str, ...] | None = None, **given: Any
    ) -> Collected:
        count = len(processes.split(",")) if processes else 0
        own = (sys.executable, str(program), str(code), str(count), processes)
        here = Here(variables=dict(os.environ), has_npu=True, msprof=binary)
        wanted = CollectRequest(command=own if words is None else words, collector="msprof", **given)
        return collect(wanted, folder=tmp_path / "run", force=True, here=here)

    return record


def calls(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "npu" / "calls.jsonl").read_text().splitlines()]


def noted(done: Collected, words: str) -> bool:
    return any(words in note for note in done.manifest.notes)


def test_a_good_run(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run()

    assert (done.code, done.manifest.status, done.has_trace) == (0, "complete", True)
    assert done.folder == tmp_path / "run"
    assert read_manifest(tmp_path / "run").files["trace"] == ("trace/PROF_000001_20260407101532881_00004813KQMBRACD",)
    assert "step 1 loss 9.81" in capfd.readouterr().out  # its output is shown
    (call,) = calls(tmp_path)
    assert call["words"][0] == f"--output={tmp_path}/run/trace"
    assert call["words"][-2:] == ["sh", f"{tmp_path}/run/collect/run.sh"]
    assert all(word.startswith("--") and "=" in word for word in call["words"][:-2])
    assert "ASCEND_PERF_COLLECT" not in call["variables"]
    # The working files hold folders and words of the command: they are gone.
    assert sorted(path.name for path in (tmp_path / "run" / "collect").iterdir()) == ["collected.json"]
    assert str(tmp_path) not in (tmp_path / "run" / "manifest.json").read_text()
    assert str(tmp_path) not in (tmp_path / "run" / "collect" / "collected.json").read_text()


@pytest.mark.parametrize("code", [1, 2, 70])
def test_msprof_ends_with_0_when_the_program_failed_and_we_with_its_own_code(run: Run, code: int) -> None:
    done = run(code)

    assert done.code == code
    assert (done.manifest.status, done.manifest.problem) == ("failed", f"the command ended with code {code}")
    assert done.manifest.config["exit_code"] == code
    assert done.has_trace  # what was recorded is still of use
    # The text of msprof is misleading ("No such file or directory" for code 2): it is not repeated.
    assert not noted(done, "exception has occurred")


def test_a_program_that_was_killed_has_the_code_of_a_shell(run: Run, tmp_path: Path) -> None:
    killed = tmp_path / "killed.sh"
    killed.write_text('echo ok > "$FAKE_NPU/0.process"\nkill -9 $$\n')

    done = run(words=("sh", str(killed)))

    assert done.code == 137
    assert "ended by signal 9 (the memory of the machine" in done.manifest.problem
    assert done.has_trace


def test_no_data_is_said_with_its_cure_and_the_code_stays_the_programs(run: Run) -> None:
    done = run(0, "")  # msprof ends with 255

    assert done.code == 0
    assert done.manifest.status == "failed"
    assert "msprof collected nothing: Failed to find profiling data" in done.manifest.problem
    assert "aclInit" in done.hint
    assert not done.has_trace


def test_a_delay_longer_than_the_program_is_silent_and_said_by_us(run: Run) -> None:
    done = run(delay_s=101)
    assert done.code == 0
    assert "before --delay 101 was over" in done.manifest.problem
    assert done.hint == "take a smaller --delay"


def test_the_export_stops_at_the_first_rank_and_goes_on_with_us(run: Run, tmp_path: Path) -> None:
    done = run(0, "ok,bad,ok,host,ok")

    exports = json.loads((done.folder / "collect" / "collected.json").read_text())["exports"]
    assert [one["status"] for one in exports] == ["by msprof", "failed", "exported", "no device data", "exported"]
    assert done.code == 0
    assert done.has_trace
    failed = exports[1]["name"]
    assert noted(done, f"{failed} could not be exported: Analysis script permission denied")
    assert noted(done, "chmod")
    offline = [call["words"] for call in calls(tmp_path)[1:]]
    names = [one["name"] for one in exports]
    analyze = "--rule=communication,communication_matrix"
    output = [f"--output={done.folder}/trace/{name}" for name in names]
    assert offline == [
        ["--analyze=on", output[0], analyze],
        ["--export=on", output[1]],
        ["--export=on", output[2]], ["--analyze=on", output[2], analyze],
        ["--export=on", output[4]], ["--analyze=on", output[4], analyze],
    ]  # fmt: skip


def test_no_folder_that_can_be_exported_is_a_failed_run_with_the_cure(run: Run) -> None:
    done = run(0, "bad,bad")
    assert done.manifest.status == "failed"
    assert done.manifest.problem.startswith("no PROF directory could be exported")
    assert "chmod" in done.hint
    assert (done.folder / "manifest.json").is_file()


def test_an_option_that_this_msprof_lacks_ends_before_the_program_and_is_said(run: Run) -> None:
    done = run(options={"npu-events": "HA:0x1"})  # the stand-in does not know it, and its help was not asked

    assert done.code == MachineError.exit_code
    assert "msprof did not start the program: unrecognized option '--npu-events'" in done.manifest.problem
    assert "leave it out" in done.hint
    assert done.manifest.status == "failed"


@pytest.mark.parametrize(
    ("machine", "problem", "hint"),
    [
        ("no-driver", "msprof did not start the program: Init platform by driver failed!", "npu-smi info"),
        ("busy", "msprof did not start the program: Start profiling failed", "is another profiler using the device?"),
    ],
)
def test_a_start_that_fails_is_msprofs_and_not_the_programs(
    run: Run, tmp_path: Path, machine: str, problem: str, hint: str
) -> None:
    (tmp_path / "npu" / machine).touch()
    done = run()
    assert (done.code, done.manifest.status) == (MachineError.exit_code, "failed")
    assert done.manifest.problem == problem
    assert hint in done.hint
    assert not (tmp_path / "npu" / "0.process").exists()  # the program was not started


def test_system_mode_in_a_slice_of_an_npu_ends_with_254_which_is_no_signal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We never ask for system mode; a script of a site in the place of msprof could."""
    (tmp_path / "npu" / "slice").touch()

    def system(*given: Any, **named: Any) -> Any:
        plan = make_plan(*given, **named)
        return replace(plan, words=(*plan.words[:2], "--sys-devices=all", "--sys-period=10"))

    monkeypatch.setattr(bench, "make_plan", system)
    done = run()
    assert done.code == MachineError.exit_code
    assert "msprof did not start the program: System profiling isn't supported in container" in done.manifest.problem
    assert done.hint == "record on the host, or without --option sys-..."


def test_an_option_that_msprof_calls_useless_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_msprof_options, "_check_pairs", lambda options: None)  # our own check of it comes first
    done = run(options={"aic-freq": "50"})
    assert done.manifest.status == "complete"
    assert noted(done, "msprof warned: The argument --aic-freq is useless when --aic-mode is not sample-based")


def test_an_export_that_cleared_the_raw_data_has_no_sums_of_communication(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = msprof.export_command
    monkeypatch.setattr(msprof, "export_command", lambda *given: (*made(*given), "--clear=on"))  # we never ask for it
    done = run(0, "ok,bad,ok")
    third = "PROF_000003_20260407101532881_00004815KQMBRACD"
    assert noted(done, f"{third}: its raw data are gone (exported with --clear=on?)")
    analyzed = [call["words"][1] for call in calls(tmp_path) if call["words"][0] == "--analyze=on"]
    assert analyzed == [f"--output={done.folder}/trace/PROF_000001_20260407101532881_00004813KQMBRACD"]


def test_msprof_is_given_no_link_in_the_path_of_its_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk", target_is_directory=True)

    done = run()

    assert done.folder == tmp_path / "disk"
    assert calls(tmp_path)[0]["words"][0] == f"--output={tmp_path}/disk/trace"
    assert (tmp_path / "run").is_symlink()
    assert read_manifest(tmp_path / "run").status == "complete"
    assert run().folder == tmp_path / "disk"  # replaced: still behind the link


def test_no_link_stands_in_the_path_above_the_run_directory(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "disk", target_is_directory=True)
    monkeypatch.setattr(bench, "RunFolder", lambda folder, force: RunFolder(tmp_path / "way" / "run", force))

    run()

    assert calls(tmp_path)[0]["words"][0] == f"--output={tmp_path}/disk/run/trace"


def test_a_folder_that_links_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")

    with pytest.raises((UsageError, InputError), match=r"link to itself|cannot be made"):
        RunFolder(tmp_path / "run", force=False).__enter__()


def test_what_the_memory_held_before_the_start_stands_in_the_manifest(run: Run, tmp_path: Path) -> None:
    _ascend_tree.npu_smi(tmp_path / "bin", _ascend_tree.Install(chips=A2[:1]))
    found = {metric.name: metric.value for metric in run().manifest.metrics}
    assert found["idle_device_memory"] == 46530 << 20  # of the summary, which tells MB
    # What the run held above it are whole percents of the endless table, if one came in time.
    above = round(0.71 * (65536 << 20)) - (46530 << 20)
    assert found.get("device_memory_above_idle", above) == above


def test_empty_words_and_words_with_blanks_reach_the_program(run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    text = f"import json, sys; open({str(seen)!r}, 'w').write(json.dumps(sys.argv[1:]))"

    run(words=(sys.executable, "-c", text, "", "two words", "--x", ""))

    assert json.loads(seen.read_text()) == ["", "two words", "--x", ""]


def test_a_program_whose_name_begins_with_op_is_recorded(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "opt_bench"
    program.write_text("#!/bin/sh\necho ok > $FAKE_NPU/0.process\n")
    program.chmod(0o755)
    assert run(words=(str(program),)).has_trace


def test_masks_of_permissions_are_msprofs_own_and_the_program_has_its_own(run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "mask"
    before = os.umask(0o002)
    try:
        run(words=("sh", "-c", f"umask > {seen}; echo ok > $FAKE_NPU/0.process"))
    finally:
        os.umask(before)
    assert int(seen.read_text(), 8) == 0o002
    assert calls(tmp_path)[0]["mask"] == 0o027  # a wider one is documented as too wide
    assert (tmp_path / "run" / "trace").stat().st_mode & 0o777 in (0o775, 0o755)


def test_the_program_sees_that_it_is_recorded(run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    run(words=("sh", "-c", f"echo $PROFILER_SAMPLECONFIG > {seen}"))
    assert json.loads(seen.read_text())["task-time"] == "l1"


def test_secrets_of_the_command_are_masked(run: Run) -> None:
    done = run(words=("sh", "-c", "exit 0", "--api-key", "s3cret", "--hf-token=s3cret", "--data", "/home/ann/data"))
    text = (done.folder / "manifest.json").read_text() + (done.folder / "collect" / "collected.json").read_text()
    assert "s3cret" not in text
    assert "/home/ann" not in text
    assert done.manifest.command[-5:] == ("--api-key", "<secret>", "--hf-token=<secret>", "--data", "data")


def test_a_storage_limit_that_was_reached_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench._Attempt, "_raw_bytes", lambda self: 199 * 10**6)
    assert noted(run(storage_limit_bytes=200 * 10**6), "the storage limit was reached: msprof has dropped the oldest")


def test_a_disk_that_fills_up_is_said(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(watch, "LOOK_EVERY", 1)
    monkeypatch.setattr(bench, "LOW_BYTES", 1 << 60)
    done = run(words=("sh", "-c", "sleep 1; echo ok > $FAKE_NPU/0.process"))
    assert noted(done, "msprof stops writing without a word")


def full(*given: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_room_for_the_manifest_is_kept_while_the_program_runs(run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    kept = tmp_path / "run" / folders.RESERVE_FILE
    done = run(words=("sh", "-c", f"wc -c < {kept} > {seen}; echo ok > $FAKE_NPU/0.process"))

    assert int(seen.read_text()) == folders.RESERVE_BYTES
    assert sorted(path.name for path in (done.folder / "collect").iterdir()) == ["collected.json"]


def test_samples_that_found_no_room_are_left_out_and_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: bench._Attempt) -> None:
        assert not (self._folder / folders.RESERVE_FILE).exists()  # the room is free for them and for the manifest
        (self._folder / bench.TELEMETRY_FILE).write_text("time_ns,")
        full()

    monkeypatch.setattr(bench._Attempt, "_write_samples", half)
    done = run()

    assert noted(done, "the disk is full: the samples of telemetry could not be written")
    assert "telemetry" not in done.manifest.files
    assert not (done.folder / bench.TELEMETRY_FILE).exists()
    assert read_manifest(done.folder).status == "complete"


def test_an_export_that_found_no_room_leaves_a_run_directory_that_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench._Attempt, "_finish_msprof", full)
    done = run()

    found = read_manifest(done.folder)
    assert (found.status, found.problem) == (
        "failed", "the disk is full: what was recorded could not be exported to its end",
    )  # fmt: skip
    assert done.hint == "free disk space, or write to another disk"
    monkeypatch.setattr(bench._Attempt, "_finish_msprof", lambda self: Path("/none/none").read_text())
    with pytest.raises(FileNotFoundError):  # a bug of ours stays one
        run()


def test_a_manifest_that_found_no_room_leaves_that_of_the_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write = manifest_files.write_manifest
    written: list[Path] = []

    def once(folder: Path, manifest: Manifest) -> Path:
        if written:
            full()
        written.append(folder)
        return write(folder, manifest)

    monkeypatch.setattr(manifest_files, "write_manifest", once)
    assert run().code == 0
    found = read_manifest(tmp_path / "run")
    assert (found.status, "was ended before the command was" in str(found.problem)) == ("interrupted", True)
    assert msprof.prof_folders(tmp_path / "run" / "trace") != ()


def test_a_run_does_not_start_on_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(MachineError, match="MiB are free on the disk"):
        run()
    assert not (tmp_path / "run").exists()


def test_a_command_that_is_not_there(run: Run, tmp_path: Path) -> None:
    wanted = CollectRequest(command=("no-such-program",), collector="torch")
    done = collect(wanted, folder=tmp_path / "other", here=Here(variables=dict(os.environ), has_npu=False))
    assert done.code == 127
    assert done.manifest.problem == "the command cannot be started: no-such-program: No such file or directory"


def test_a_folder_that_is_taken_is_left(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    wanted = CollectRequest(command=("true",), collector="torch")
    with pytest.raises(UsageError, match="exists"):
        collect(wanted, folder=tmp_path / "mine", here=Here(variables={}, has_npu=False))


# ---- signals --------------------------------------------------------------------------------------------------------


def after(seconds: float, condition: Callable[[], bool], number: int, times: int = 1) -> threading.Thread:
    """Send a signal to this process once something is there."""

    def send() -> None:
        deadline = time.monotonic() + 30
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(times):
            time.sleep(seconds)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


SLEEPS = """
import os, pathlib, time
pathlib.Path(os.environ["FAKE_NPU"], "0.process").write_text("ok")
time.sleep(60)
"""


def test_ctrl_c_reaches_the_program_once_and_what_was_recorded_is_exported(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "sleeps.py"
    program.write_text(SLEEPS)
    thread = after(0.3, (tmp_path / "npu" / "0.process").exists, signal.SIGINT)

    done = run(words=(sys.executable, str(program)))
    thread.join()

    assert done.code == 130
    assert (done.manifest.status, done.manifest.problem) == ("interrupted", "stopped by Ctrl-C")
    assert done.has_trace
    assert read_manifest(done.folder).status == "interrupted"


def test_a_signal_that_does_not_end_is_the_programs_own_business(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGUSR1, lambda n, f: (pathlib.Path({str(seen)!r}).write_text('usr1'), sys.exit(3)))\n"
        f"pathlib.Path({str(tmp_path / 'there')!r}).touch()\ntime.sleep(60)\n"
    )
    thread = after(0.2, (tmp_path / "there").exists, signal.SIGUSR1)

    ended = command.run_command([sys.executable, "-c", text], os.environ)
    thread.join()

    assert (ended.code, ended.signals, seen.read_text()) == (3, (), "usr1")


def test_a_mistake_of_ours_while_we_listen_does_not_stop_the_program() -> None:
    def fails(block: bytes) -> None:
        raise ValueError

    text = "print('x' * 300_000)"  # more than a pipe holds
    ended = command.run_command([sys.executable, "-c", text], os.environ, keeps_output=True, on_output=fails)
    assert ended.code == 0
    assert ended.output.endswith("x\n")


def test_a_program_that_ignores_ctrl_c_is_ended_by_the_third(tmp_path: Path) -> None:
    text = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'there')!r}).touch()\ntime.sleep(60)\n"
    )
    thread = after(0.4, (tmp_path / "there").exists, signal.SIGINT, times=3)

    ended = command.run_command([sys.executable, "-c", text], os.environ)
    thread.join()

    assert ended.code == 137
    assert ended.signals == (signal.SIGINT,) * 3


def test_a_collect_that_is_killed_leaves_a_run_directory_that_says_so(tmp_path: Path) -> None:
    script = (
        "from ascend_perf.bench.collect import collect\n"
        "from ascend_perf.collectors.collect_plan import CollectRequest, Here\nfrom pathlib import Path\n"
        f"collect(CollectRequest(command=('sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 60'), collector='torch'),\n"
        f"        folder=Path({str(tmp_path / 'run')!r}),\n"
        "        here=Here(variables={'PATH': '/usr/bin:/bin'}, has_npu=False))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    os.kill(int(pid.read_text()), signal.SIGKILL)

    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "interrupted"
    assert "was ended before the command was" in manifest.problem


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "a/train.py", "x"), "train.py"), (("torchrun", "--nproc", "2", "my loop.py"), "my-loop.py"),
        (("python", "-m", "pkg.train"), "pkg.train"), (("bash", "run.sh"), "run.sh"), (("./bench",), "bench"),
        (("/",), "command"),
    ],
)  # fmt: skip
def test_a_run_is_named_after_its_program(words: tuple[str, ...], name: str) -> None:
    assert name_of(words) == name
