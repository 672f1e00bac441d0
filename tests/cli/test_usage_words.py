"""Errors of usage in both languages: click's own messages, whatever its version says."""

from __future__ import annotations

import re
import sys
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.cli import _usage
from ascend_perf.cli._usage import language
from tests._support import Said


@pytest.mark.parametrize(
    ("words", "lang"),
    [
        ((), "en"), (("collect", "--lang", "zh"), "zh"), (("collect", "--lang=zh", "--", "python"), "zh"),
        (("collect", "--lang", "zh", "--lang", "en"), "en"), (("collect", "--lang"), "en"),
        (("collect", "--lang", "fr"), "en"), (("collect", "--", "python", "--lang", "zh"), "en"),  # the program's own
    ],
)  # fmt: skip
def test_the_language_is_that_of_the_words(words: tuple[str, ...], lang: str) -> None:
    assert language(words) == lang


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("aipp", "m.onnx"), "缺少选项 '--soc'。"),
        (("aipp", "m.onnx", "--soc"), "选项 '--soc' 需要一个值。"),
        (("collect", "--stepz", "3", "--", "python"), "没有选项 "),
        (("collect", "--stepz", "3", "--", "python"), "是否指 "),
        (("collect", "--with", "msprofx", "--", "python"), "'--with' 的值无效：'msprofx' 不在可选值 'auto', 'msprof'"),
        (("collect", "--steps", "0", "--", "python"), "'--steps' 的值无效：0 不在范围 x>=1 内。"),
        (("collect", "--steps", "many", "--", "python"), "'--steps' 的值无效：'many' 不是整数。"),
        (("collect", "--force=yes", "--", "python"), "选项 '--force' 不带值。"),
        (("hccl-test", "all_reduce", "again"), "多余的参数（again）"),
        (("hccl-test", "--hostfile", "/no/such"), "'--hostfile' 的值无效：文件 '/no/such' 不存在。"),
        (("doctor", "--format", "xml"), "'--format' 的值无效：'xml' 不在可选值 'text', 'json' 之中。"),
        (("read-log",), "缺少参数 "),
        (("hccl-log", "--nope"), "没有选项 "),
    ],
)
def test_messages_of_click_for_the_collectors(command: Any, words: tuple[str, ...], said: str) -> None:
    at = words.index("--") if "--" in words else len(words)
    lang = ("--lang", "zh")
    # An option without its value would take ours for it: the language stands before it then.
    chinese: Said = command(words[0], *lang, *words[1:at], *words[at:])
    english: Said = command(*words)

    assert (chinese.code, english.code) == (2, 2)
    assert said in chinese.err
    assert re.search(r"Usage|Error|Invalid|Missing|No such", chinese.err) is None
    assert "Error: " in english.err
    # For some errors click does not know the command, and shows the error alone.
    assert len(chinese.err.splitlines()) == len(english.err.splitlines())
    if english.err.startswith(f"Usage: ascend-perf {words[0]} [OPTIONS]"):
        assert chinese.err.startswith(f"用法：ascend-perf {words[0]} [OPTIONS]")
        assert f"可用 'ascend-perf {words[0]} --help' 查看帮助。" in chinese.err


def test_english_is_what_click_itself_shows(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from ascend_perf.cli import cli

    said: Said = command("collect", "--with", "msprofx")
    with pytest.raises(click.UsageError) as caught:
        cli(["collect", "--with", "msprofx"], standalone_mode=False, prog_name="ascend-perf")
    caught.value.show()
    own = capsys.readouterr().err.replace(" -h' for help", " --help' for help")  # click 8.1 names the short one
    assert said.err == own


@pytest.mark.parametrize(
    ("message", "said"),
    [
        # click 8.1 and 8.5 spell them in their own ways.
        ("No such option: --stepz Did you mean --steps?", "没有选项 --stepz。是否指 --steps？"),
        ("No such option: --st (Possible options: --step-of, --steps)", "没有选项 --st。是否指 --step-of, --steps？"),
        ("No such option '--stepz'. Did you mean '--steps'?", "没有选项 '--stepz'。是否指 '--steps'？"),
        ("No such option '--st'. (Did you mean one of: '--a', '--b'?)", "没有选项 '--st'。是否指 '--a', '--b'？"),
        ("No such option: -q", "没有选项 -q。"),
        ("No such command 'colect'.", "没有命令 'colect'。"),
        ("Missing command.", "缺少命令。"),
        ("Missing option '--kind'. Choose from:\n\ta,\n\tb", "缺少选项 '--kind'。可选：\n\ta,\n\tb"),
        ("Got unexpected extra arguments (a b)", "多余的参数（a b）"),
        ("Option '--x' requires 2 arguments.", "选项 '--x' 需要 2 个值。"),
        ("Could not open file 'a': No such file or directory", "无法打开文件 'a'：No such file or directory"),
        ("Invalid value: 3", "值无效：3"),
        ("something that a later click says", "something that a later click says"),
    ],
)
def test_messages_of_any_version(message: str, said: str) -> None:
    assert _usage._chinese(message) == said


@given(st.text())
def test_no_message_makes_it_fail(message: str) -> None:
    assert isinstance(_usage._chinese(message), str)


def test_our_own_errors_are_said_in_chinese_where_the_words_are_there(command: Any) -> None:
    said: Said = command("collect", "--with", "msprof", "--lang", "zh", "--", sys.executable)
    assert said.code == 4
    assert said.err.startswith("ascend-perf: 未找到 msprof")
    assert "\n  提示：" in said.err
