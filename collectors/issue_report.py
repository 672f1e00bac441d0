"""A report of an issue as Markdown: environment, steps, the start of a log, what was expected; private data masked.

Masked are user names, host names, addresses of networks and of mail, folders, serial numbers, and what looks like a
secret. Nothing is sent anywhere: the file is for the user to read, correct and post.
"""

from __future__ import annotations

import re
from typing import Final

from ascend_perf.collectors.doctor import Diagnosis
from ascend_perf.collectors.private_data import Masks

_WORDS: Final = {
    "en": {
        "title": "# What went wrong (one line)", "environment": "## Environment", "lines": "## What doctor says",
        "steps": "## Steps", "log": "## First {} lines of the log", "expected": "## Expected",
        "no_steps": "1. <the command that shows it>", "no_log": "<the first 50 lines of the log>",
        "no_expected": "<what you expected instead>",
        "masked": "User names, host names, addresses, folders, serial numbers and secrets were masked: read it through "
                  "before you post it.",
        "variable": "variable", "cure": "cure", "version": "version of",
    },
    "zh": {
        "title": "# 问题概述（一句话）", "environment": "## 环境", "lines": "## doctor 的结论",
        "steps": "## 复现步骤", "log": "## 日志前 {} 行", "expected": "## 期望结果",
        "no_steps": "1. <能复现问题的命令>", "no_log": "<日志前 50 行>", "no_expected": "<期望的结果>",
        "masked": "用户名、主机名、地址、目录、序列号和密钥已屏蔽：发布前请通读一遍。",
        "variable": "变量", "cure": "处理", "version": "版本",
    },
}  # fmt: skip


def report(
    diagnosis: Diagnosis, masks: Masks, *, lang: str = "en", steps: str = "", expected: str = "", log: str | None = None
) -> str:
    """The template, filled with what is known.

    Args:
        diagnosis: what doctor found.
        masks: go over every text.
        lang: en or zh.
        steps: what was done, as the user tells it.
        expected: what should have happened.
        log: the lines of a log that are shown.
    """
    words = _WORDS[lang]
    parts = [words["title"], "", f"> {words['masked']}", "", words["environment"], ""]
    parts += [f"* {name} {masks.of(value)}" for name, value in diagnosis.facts.items()]
    parts += [f"* `{name}={masks.of(value)}`" for name, value in diagnosis.environment.items()]
    parts += ["", words["lines"], ""]
    for line in diagnosis.lines:
        said = line.said.zh if lang == "zh" else line.said.en
        tag = "absent" if line.level == "ok" and line.status == "missing" else line.level
        parts.append(f"* {tag}: {line.name}: {masks.of(said)}")
    parts += ["", words["steps"], "", masks.of(steps) or words["no_steps"], ""]
    shown = words["no_log"] if log is None else masks.of(log)
    # A fence that is longer than any in the log keeps the log inside.
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", shown))])
    count = 50 if log is None else len(log.splitlines())
    parts += [words["log"].format(count), "", f"{fence}text", shown, fence, ""]
    parts += [words["expected"], "", masks.of(expected) or words["no_expected"], ""]
    return "\n".join(parts)
