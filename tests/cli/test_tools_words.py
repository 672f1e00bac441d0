"""aipp, doctor, hccl-log, read-log: input that they cannot use is refused without a traceback, in both languages."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.cli.collect import plan_words
from ascend_perf.collectors import log_figures
from ascend_perf.collectors.collect_plan import CollectRequest, Here, make_plan
from ascend_perf.reports.phrases import phrase
from tests._support import Said
from tests.conftest import ROOT
from tests.reports.test_phrases import Fields, texts_of

Command = Callable[..., Said]

PACKAGE = ROOT / "ascend_perf"
MODULES = [
    *sorted((PACKAGE / "atc").glob("*.py")),
    *(PACKAGE / name for name in ("cli/aipp.py", "cli/doctor.py", "cli/hccl_log.py", "cli/read_log.py",
                                  "cli/_show.py", "bench/workload_aipp.py")),
    *(ROOT / "collectors" / f"{name}.py" for name in ("doctor", "hccl_log", "log_figures", "npu_exporter")),
]  # fmt: skip
ERRORS: Fields = dict.fromkeys(("UsageError", "InputError", "MachineError"), (("what", 0), ("hint", None)))
EXAMPLES = r"ascend-perf |--mean \d|--input-shape \"|like \"|- 'step"
"""Hints that are a command or a line to write: they are the same in both languages."""


def test_what_the_tools_refuse_is_said_in_chinese() -> None:
    texts = {text for text in texts_of(MODULES, ERRORS) if re.search("[a-z]{2}", text)}
    wanted = {text for text in texts if not re.match(EXAMPLES, text) and text != "7 is not in 7"}

    assert len(wanted) > 80
    assert {text for text in wanted if not re.search(r"[\u4e00-\u9fff]", phrase(text).zh)} == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("out/x cannot be written: No such file or directory\n  hint: choose another -o",
         "无法写入 out/x：文件或目录不存在（提示：用 -o 换一个目录）"),
        ("atc takes no chip '910C'\n  hint: 910C is a market name; the chip is called Ascend910_9392 or the like "
         "(npu-smi info -t board)",
         "atc 不支持芯片 '910C'（提示：910C 是市场名称；芯片名形如 Ascend910_9392（npu-smi info -t board））"),
        ("net.onnx is not in out", "out 中没有 net.onnx"),
        ("cannot use a.log: File name too long", "无法使用 a.log：文件名过长"),
        ("the command cannot be started: train.py: Permission denied", "命令无法启动：train.py：没有权限"),
        ("atc failed: it ended with code 3", "atc 失败：以退出码 3 结束"),
        ("atc tells of success, but there is no new net.aipp.om", "atc 报告成功，但没有新的 net.aipp.om"),
        ("t.log: 3 lines match, none has a number", "t.log：3 行匹配，但都没有数值"),
    ],
)  # fmt: skip
def test_parts_stand_at_their_place(text: str, words: str) -> None:
    assert phrase(text).zh == words


@pytest.mark.parametrize(
    "words", [("read-log",), ("hccl-log",), ("analyze",), ("aipp", "--soc", "Ascend910B2")], ids=lambda words: words[0]
)
def test_a_name_that_no_file_can_have_is_bad_input(command: Command, words: tuple[str, ...]) -> None:
    said = command(*words, "x" * 300)

    assert said.code == 3, said
    assert "Traceback" not in said.err
    assert "File name too long" in said.err
    assert "hint: " in said.err


@pytest.mark.parametrize(
    ("number", "code", "said", "zh"),
    [
        (errno.ENOSPC, 3, "cannot use out.jsonl: No space left on device", "磁盘空间不足"),
        (errno.EROFS, 3, "cannot use out.jsonl: Read-only file system", "文件系统只读"),
        (errno.ENXIO, 70, "this is a bug of ours", ""),
    ],
)
def test_what_the_system_refuses_is_told_and_what_is_no_ones_fault_is_a_bug(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, said: str, zh: str
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "x", str(tmp_path / "out.jsonl"))

    monkeypatch.setattr(log_figures, "read", refuse)
    got = command("read-log", tmp_path / "t.log")
    assert (got.code, said in got.err) == (code, True), got
    assert zh in command("read-log", tmp_path / "t.log", "--lang", "zh").err


def test_a_series_that_cannot_be_written_is_wrong_usage(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    said = command("read-log", tmp_path / "t.jsonl", "-o", tmp_path / "none" / "out.jsonl")

    assert said.code == 2, said
    assert "cannot be written: No such file or directory" in said.err


def test_lines_that_were_not_used_and_the_file_of_a_folder_are_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "lines.yaml").write_text(r"lines: ['step (?P<step>\S+) loss (?P<loss>\S+)']")
    (tmp_path / "t.log").write_text("step -1 loss 9\nstep 1e300 loss 8\nstep 3 loss 7\n")
    words = ("read-log", tmp_path / "t.log", "--config", tmp_path / "lines.yaml")

    assert "not used: 2 x row without a readable step" in command(*words).out
    assert "未使用：2 x 步数无法读取的行" in command(*words, "--lang", "zh").out
    body = json.loads(command(*words, "--format", "json").out)
    assert (body["file"], body["rows"], body["dropped"]) == ("t.log", 1, {"row without a readable step": 2})

    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "one.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert "2 rows (training_metrics, one.jsonl)" in command("read-log", folder).out


def test_a_time_limit_that_no_timer_takes_is_refused(command: Command) -> None:
    said = command("hccl-test", "--dry-run", "--timeout", "99999999999")
    assert (said.code, "604800" in said.err) == (2, True)


def test_a_plan_is_shown_in_chinese(tmp_path: Path) -> None:
    request = CollectRequest(command=("python", "train.py"), ranks=(0, 2), repeat=3, wait=4)
    lines = plan_words(make_plan(request, Here(variables={}, has_npu=False), tmp_path), "zh").splitlines()

    assert lines[0] == "采集器    torch（看不到昇腾 NPU（没有 /dev/davinci*））"
    assert "采集      Rank 0,2：跳过 5 个 step，预热 1 个，采集 3 个，共 3 次，间隔 4 个（step 的划分：auto）" in lines
    assert [line for line in lines if not re.match(r"[\u4e00-\u9fff]", line)] == []
