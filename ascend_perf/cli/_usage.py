"""Errors of usage in the language that the command line asks for: click's own messages know English alone.

The language is taken from the words themselves (`--lang zh`), since a wrong command line is not parsed to its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import click

Lang = Literal["en", "zh"]

_NUMBERS: Final = {"integer": "整数", "float": "数", "integer range": "整数", "float range": "数", "int": "整数"}
_KINDS: Final = {
    "File": "文件", "Directory": "目录", "Path": "路径", "file": "文件", "directory": "目录", "path": "路径",
}  # fmt: skip
_TYPES: Final = {"option": "选项", "argument": "参数", "parameter": "参数"}
_STATES: Final = {
    "does not exist": "不存在", "is a file": "是文件", "is a directory": "是目录", "is not readable": "不可读",
    "is not writable": "不可写", "is not executable": "不可执行",
}  # fmt: skip
_CHOOSE: Final = re.compile(r"\s*Choose from:\s*(.*)", re.DOTALL)
_MEANT: Final = re.compile(r"\s*(?:\(Possible options: (.+)\)|\(?Did you mean (?:one of: )?(.+?)\?\)?)$", re.DOTALL)


def language(words: Sequence[str]) -> Lang:
    """The language that a command line asks for; the last one counts. English where it asks for none that we have."""
    found = "en"
    options = list(words[: words.index("--")] if "--" in words else words)
    for place, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name == "--lang":
            found = value if equals else next(iter(options[place + 1 : place + 2]), "en")
    return "zh" if found == "zh" else "en"


def shown(error: click.ClickException, lang: Lang) -> str:
    """An error as click shows it: the form of the command, where help is, what is wrong."""
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    lines = []
    if context is not None:
        usage = context.get_usage()
        help_names = context.command.get_help_option_names(context)
        if lang == "zh":
            usage = re.sub(r"^Usage: ", "用法：", usage)
        lines.append(usage)
        if help_names and context.command.get_help_option(context) is not None:
            call = f"{context.command_path} {max(help_names, key=len)}"
            lines.append(f"可用 '{call}' 查看帮助。" if lang == "zh" else f"Try '{call}' for help.")
        lines.append("")
    lines.append(f"错误：{_chinese(message)}" if lang == "zh" else f"Error: {message}")
    return "\n".join(lines)


def _chinese(message: str) -> str:
    """A message of click in Chinese; one that we do not know stays as it is."""
    for pattern, say in _SAID:
        if (found := pattern.fullmatch(message)) is not None:
            return say(*(part or "" for part in found.groups()))
    return message


def _missing(kind: str, name: str, rest: str) -> str:
    said = f"缺少{_TYPES.get(kind, kind)}{f' {name}' if name else ''}。"
    if (found := _CHOOSE.fullmatch(rest)) is not None:
        return said + "可选：\n\t" + found[1].strip()
    return said + rest


def _no_such(what: str, name: str, rest: str) -> str:
    said = f"没有{'命令' if what == 'command' else '选项'} {name}。"
    found = _MEANT.fullmatch(rest)
    return f"{said}是否指 {found[1] or found[2]}？" if found is not None else said


def _value(name: str, rest: str) -> str:
    return f"{name} 的值无效：{_chinese(rest)}" if name else f"值无效：{_chinese(rest)}"


_SAID: Final = tuple(
    (re.compile(pattern, re.DOTALL), say)
    for pattern, say in (
        (r"Missing (option|argument|parameter)(?: ([^\n]*?))?\.(.*)", _missing),
        (r"No such (option|command):? (\S+?)\.?(\s.*)?", _no_such),
        (r"Invalid value(?: for (.+?))?: (.*)", _value),
        (r"(.+) is not one of (.+?)\.?", lambda value, names: f"{value} 不在可选值 {names} 之中。"),
        (r"(.+) is not '(.+)'\.", lambda value, name: f"{value} 不是 '{name}'。"),
        (r"(.+) is not in the range (.+?)\.", lambda value, limits: f"{value} 不在范围 {limits} 内。"),
        (r"(.+) is not a valid (.+?)\.(?: .*)?", lambda value, kind: f"{value} 不是{_NUMBERS.get(kind, f' {kind}')}。"),
        (
            rf"({'|'.join(_KINDS)}) (.+) ({'|'.join(_STATES)})\.",
            lambda kind, name, state: f"{_KINDS[kind]} {name} {_STATES[state]}。",
        ),
        (r"Option (.+) requires an argument\.", lambda name: f"选项 {name} 需要一个值。"),
        (r"Option (.+) requires (\d+) arguments\.", lambda name, count: f"选项 {name} 需要 {count} 个值。"),
        (r"Option (.+) does not take a value\.", lambda name: f"选项 {name} 不带值。"),
        (r"Got unexpected extra arguments? \((.*)\)", lambda words: f"多余的参数（{words}）"),
        (r"Missing command\.", lambda: "缺少命令。"),
        (r"Could not open file (.+): (.*)", lambda name, why: f"无法打开文件 {name}：{why}"),
    )
)  # fmt: skip
