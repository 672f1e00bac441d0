"""The command lines of msprof, and what its words and its folders mean."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors import msprof
from ascend_perf.errors import UsageError
from tests.collectors import _fake_msprof
from tests.parsers._msprof_profile import PROF, Prof, summary_row

TREE = "PROF_{:06d}_20260407101532881_00412207KQMBRACD"


def fake(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The stand-in, and variables that lead to it."""
    npu = tmp_path / "npu"
    npu.mkdir()
    binary = _fake_msprof.install(tmp_path)
    path = f"{binary.parent}:{os.environ['PATH']}"
    return binary, {"PATH": path, "FAKE_NPU": str(npu), "ASCEND_TOOLKIT_HOME": "/cann"}


def test_the_command_line_is_made_of_equal_signs_and_begins_with_dashes() -> None:
    words = msprof.collect_command(
        "/cann/msprof", output="/runs/x/trace", options={"task-time": "l1", "aicpu": "on"}, script="/runs/x/run.sh",
        storage_limit_mb=2000, delay_s=30, duration_s=60,
    )  # fmt: skip

    assert words == (
        "/cann/msprof", "--output=/runs/x/trace", "--task-time=l1", "--aicpu=on", "--storage-limit=2000MB",
        "--delay=30", "--duration=60", "sh", "/runs/x/run.sh",
    )  # fmt: skip


def test_offline_command_lines() -> None:
    assert msprof.export_command("msprof", "/x/PROF_1") == ("msprof", "--export=on", "--output=/x/PROF_1")
    assert msprof.export_command("msprof", "/x/P", "/py")[-1] == "--python-path=/py"
    assert msprof.analyze_command("msprof", "/x/P") == (
        "msprof", "--analyze=on", "--output=/x/P", "--rule=communication,communication_matrix"
    )  # fmt: skip


def test_the_script_keeps_every_word_and_the_exit_code(tmp_path: Path) -> None:
    code = tmp_path / "exit code"
    script = tmp_path / "run.sh"
    program = "import sys, json, os; print(json.dumps([sys.argv[1:], os.umask(0)])); sys.exit(7)"
    words = ["", "two words", "it's", "$HOME", "-x=\"1\"", ""]
    script.write_text(msprof.script_text(["python3", "-c", program, *words], str(code), 0o077))

    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)

    assert json.loads(done.stdout) == [words, 0o077]
    assert done.returncode == 7
    assert msprof.exit_code_of(code) == 7


def test_the_exit_code_of_a_program_that_was_killed_is_that_of_a_shell(tmp_path: Path) -> None:
    script, code = tmp_path / "run.sh", tmp_path / "code"
    script.write_text(msprof.script_text(["sh", "-c", "kill -9 $$"], str(code), 0o022))
    subprocess.run(["sh", str(script)], check=False, capture_output=True)
    assert msprof.exit_code_of(code) == 137


@pytest.mark.parametrize("text", ["", "abc", "1234", "-1", "7 7"])
def test_a_code_that_is_none_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "code").write_text(text)
    assert msprof.exit_code_of(tmp_path / "code") is None
    assert msprof.exit_code_of(tmp_path / "absent") is None


def test_msprof_is_found_on_the_path_and_below_cann(tmp_path: Path) -> None:
    binary, variables = fake(tmp_path)
    assert msprof.find_msprof(variables, []) == binary
    cann = tmp_path / "cann"
    assert msprof.find_msprof({"PATH": ""}, [cann]) is None
    (cann / msprof.IN_CANN).parent.mkdir(parents=True)
    (cann / msprof.IN_CANN).write_text("")
    assert msprof.find_msprof({"PATH": ""}, [cann]) is None  # it may not be run
    (cann / msprof.IN_CANN).chmod(0o755)
    assert msprof.find_msprof({"PATH": ""}, [cann]) == cann / msprof.IN_CANN


def test_help_counts_whatever_it_ends_with(tmp_path: Path) -> None:
    binary, variables = fake(tmp_path)  # its --help ends with 255
    text = msprof.help_text(binary, variables)
    assert text is not None and "--aic-metrics" in text
    assert msprof.help_text(Path("/bin/true"), variables) is None
    assert msprof.help_text(tmp_path / "absent", variables) is None


@pytest.mark.parametrize("letter", ["'", '"', "%", "&", ";", "$", "|", "<", "`", "\n", "\\"])
def test_letters_that_output_does_not_take_are_refused(letter: str) -> None:
    with pytest.raises(UsageError, match="in the path of its output"):
        msprof.check_output(Path(f"/data/a{letter}b"))


def test_plain_folders_are_taken() -> None:
    msprof.check_output(Path("/data/run 7/prof-1_x"))


def test_prof_folders_are_found_by_their_name(tmp_path: Path) -> None:
    names = [TREE.format(number) for number in (2, 1)]
    for name in (*names, "PROF_1", "PROF_000001_2026_x", "OPPROF_20260407101532_ABC"):
        (tmp_path / name).mkdir()
    (tmp_path / TREE.format(3)).touch()  # a file
    assert [path.name for path in msprof.prof_folders(tmp_path)] == sorted(names)
    assert msprof.prof_folders(tmp_path / "absent") == ()


def test_the_state_of_a_folder_is_what_lies_in_it(tmp_path: Path) -> None:
    prof = Prof(tmp_path, PROF).raw(0, 3)
    state = msprof.state_of(prof.path)
    assert (state.devices, state.host, state.exported, state.has_timeline) == (2, True, False, False)

    empty = prof.path / msprof.EXPORT_FOLDER / "op_summary_20260528.csv"
    empty.parent.mkdir()
    empty.touch()
    assert not msprof.state_of(prof.path).exported  # an empty table is none

    prof.summary([summary_row(0)])
    prof.json([])
    assert msprof.state_of(prof.path).exported
    assert msprof.state_of(prof.path).has_timeline


def test_level_l0_leaves_task_times_and_a_database_counts_as_well(tmp_path: Path) -> None:
    first, second = Prof(tmp_path, TREE.format(1)), Prof(tmp_path, TREE.format(2))
    first.csv("task_time", ["kernel_name", "kernel_type", "task_time(us)"], [["a", "b", "1"]])
    (second.path / "msprof_20260407.db").write_bytes(b"SQLite")
    assert msprof.state_of(first.path).exported
    assert msprof.state_of(second.path).exported


def test_each_folder_is_exported_by_itself_and_judged_by_its_files(tmp_path: Path) -> None:
    binary, variables = fake(tmp_path)
    done, good, bad, host = (Prof(tmp_path / "out", TREE.format(number)) for number in range(1, 5))
    for prof in (done, good, bad):
        prof.raw(0)
    done.summary([summary_row(0)])
    (bad.path / "bad").touch()
    (host.path / "host" / "data").mkdir(parents=True)

    def run(words: object) -> str:
        return subprocess.run(words, env=variables, capture_output=True, text=True, check=False).stdout  # type: ignore[call-overload,no-any-return]  # words of a command

    results = [msprof.export(prof.path, str(binary), run) for prof in (done, good, bad, host)]

    assert [result.status for result in results] == ["by msprof", "exported", "failed", "no device data"]
    assert results[2].problem.startswith("Analysis script permission denied")
    calls = [json.loads(line)["words"] for line in (tmp_path / "npu" / "calls.jsonl").read_text().splitlines()]
    assert calls == [["--export=on", f"--output={prof.path}"] for prof in (good, bad)]


def test_messages_are_told_by_their_level_and_the_harmless_one_is_left_out() -> None:
    text = (
        "[ERROR] Cannot find msopprof, Maybe you shoule source set_env.sh in advance.\n[INFO] Start profiling....\n"
        "step 1 loss 9.81\n[WARNING] No analysis script found in /x\n[ERROR] Start profiling failed\n"
    )
    assert msprof.messages(text, "ERROR") == ("Start profiling failed",)
    assert msprof.messages(text, "WARNING", "ERROR") == ("No analysis script found in /x", "Start profiling failed")
    assert msprof.reason(text) == "Start profiling failed"
    assert msprof.reason("[WARNING] a\n[WARNING] b\n") == "b"
    assert msprof.reason("no such file\n") == "no such file"
    assert msprof.reason("") == ""
    assert msprof.messages("/x/msprof: unrecognized option '--sys-lp'\n", "ERROR") == (
        "unrecognized option '--sys-lp'",
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Failed to find profiling data, please check that the application", "aclInit"),
        ("Init platform by driver failed!", "npu-smi info"),
        ("unrecognized option '--x'", "leave it out"),
        ("Argument --aicpu: invalid value: true. Please input 'on' or 'off'.", "correct that --option"),
        ("Argument --aic-freq: expected one argument", "correct that --option"),
        ("No analysis script found in /x", "install the CANN toolkit"),
        ("Analysis script permission denied /x", "chmod"),
        ("Not in host side, analysis is not supported", "copy the PROF directory"),
        ("Start profiling failed", "plog"),
        ("Running profiling failed. Please check log for more info.", "plog"),
        ("error while loading shared libraries: libascendcl.so", "set_env.sh"),
    ],
)
def test_every_message_of_the_reference_has_a_cure(message: str, words: str) -> None:
    assert words in msprof.cure(message)


def test_words_that_nobody_knows_have_no_cure() -> None:
    assert msprof.cure("something new") == ""


@given(st.text())
def test_whatever_a_tool_prints_is_read(text: str) -> None:
    assert isinstance(msprof.reason(text), str)
    assert isinstance(msprof.cure(text), str)
