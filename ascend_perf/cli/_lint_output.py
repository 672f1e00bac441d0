"""Problems of lint-npu as text, JSON, SARIF 2.1.0 and commands of GitHub's log."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from ascend_perf import __version__
from ascend_perf.errors import not_obeyed
from ascend_perf.reports.phrases import spoken

if TYPE_CHECKING:
    from ascend_perf.collectors.virtual_npu.contract import Problem
    from ascend_perf.model.finding import Words

Lang = Literal["en", "zh"]
_WORDS: Final = {
    "en": {
        "error": "error", "warning": "warning", "note": "note", "unread": "not checked",
        "sum": "{errors} errors, {warnings} warnings, {notes} notes in {files} files (torch_npu {version})",
    },
    "zh": {
        "error": "错误", "warning": "警告", "note": "提示", "unread": "未检查",
        "sum": "{files} 个文件：{errors} 个错误，{warnings} 个警告，{notes} 个提示（torch_npu {version}）",
    },
}  # fmt: skip
PAGE: Final = "https://github.com/ascend-perf/ascend-perf"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One file: what was found, or why it could not be checked."""

    path: str
    problems: tuple[Problem, ...] = ()
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All files, and the wheel that they were held against."""

    files: Sequence[Checked]
    torch_npu: str

    def count(self, level: str) -> int:
        """Problems of a level."""
        return sum(one.level == level for file in self.files for one in file.problems)

    @property
    def is_partly_unread(self) -> bool:
        """Whether a file could not be checked."""
        return any(file.unread for file in self.files)


def as_text(report: Report, lang: Lang) -> str:
    """`file:line:column: error: message [rule]`, what to do below it, and the sum."""
    words = _WORDS[lang]
    lines = []
    for file in report.files:
        path = plain(file.path)
        for one in file.problems:
            said = f"{words[one.level]}: {plain(_in(one.said, lang))} [{one.rule}]"
            lines.append(f"{path}:{one.line}:{one.column}: {said}")
            if one.cure is not None:
                lines.append(f"    -> {plain(_in(one.cure, lang))}")
        if file.unread:
            lines.append(f"{words['unread']}: {plain(spoken(file.unread, lang))}")
    lines.append(words["sum"].format(
        errors=report.count("error"), warnings=report.count("warning"), notes=report.count("note"),
        files=len(report.files), version=report.torch_npu,
    ))  # fmt: skip
    return not_obeyed("\n".join(lines))


def as_json(report: Report) -> str:
    """Everything, in both languages."""
    body = {
        "schema_version": 1, "torch_npu": report.torch_npu,
        "counts": {level: report.count(level) for level in ("error", "warning", "note")},
        "files": [
            {
                "path": file.path, "unread": file.unread or None,
                "problems": [
                    {
                        "rule": one.rule, "level": one.level, "line": one.line, "column": one.column,
                        "said": _both(one.said), "cure": None if one.cure is None else _both(one.cure),
                    }
                    for one in file.problems
                ],
            }
            for file in report.files
        ],
    }  # fmt: skip
    return json.dumps(body, indent=1, ensure_ascii=False)


def as_sarif(report: Report, lang: Lang) -> str:
    """SARIF 2.1.0, as code scanning takes it."""
    from ascend_perf.collectors.virtual_npu.contract import RULES

    numbers = {rule: index for index, rule in enumerate(RULES)}
    results: list[dict[str, Any]] = []
    for file in report.files:
        for one in file.problems:
            cure = "" if one.cure is None else f" {_in(one.cure, lang)}"
            key = "\0".join((file.path, one.rule, one.said.en))
            region = {"startLine": one.line, "startColumn": one.column}
            results.append({
                "ruleId": f"lint-npu/{one.rule}", "ruleIndex": numbers[one.rule], "level": one.level,
                "message": {"text": f"{plain(_in(one.said, lang))}.{plain(cure)}"},
                "locations": [{"physicalLocation": {"artifactLocation": _location(file.path), "region": region}}],
                "partialFingerprints": {"ascendPerfLintNpu/v1": hashlib.sha256(key.encode()).hexdigest()[:40]},
            })  # fmt: skip
    notices = [
        {"level": "error", "message": {"text": plain(spoken(file.unread, lang))},
         "locations": [{"physicalLocation": {"artifactLocation": _location(file.path)}}]}
        for file in report.files if file.unread
    ]  # fmt: skip
    rules = [
        {"id": f"lint-npu/{rule}", "shortDescription": {"text": _in(words, lang)}, "helpUri": PAGE}
        for rule, words in RULES.items()
    ]
    driver = {"name": "ascend-perf lint-npu", "version": __version__, "informationUri": PAGE, "rules": rules}
    run = {
        "tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results,
        "invocations": [{"executionSuccessful": not notices, "toolExecutionNotifications": notices}],
    }  # fmt: skip
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def as_github(report: Report, lang: Lang) -> str:
    """Commands that GitHub shows as annotations of the changed lines."""
    lines = []
    for file in report.files:
        for one in file.problems:
            kind = "notice" if one.level == "note" else one.level
            cure = "" if one.cure is None else f". {_in(one.cure, lang)}"
            where = f"file={_property(file.path)},line={one.line},col={one.column},title=lint-npu {one.rule}"
            lines.append(f"::{kind} {where}::{_data(plain(_in(one.said, lang) + cure))}")
        if file.unread:
            unread = _data(plain(spoken(file.unread, lang)))
            lines.append(f"::error file={_property(file.path)},title=lint-npu::{unread}")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Without what a terminal obeys; on one line."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "\ufffd", text)


def _in(words: Words, lang: Lang) -> str:
    return words.zh if lang == "zh" else words.en


def _both(words: Words) -> dict[str, str]:
    return {"en": words.en, "zh": words.zh}


def _location(path: str) -> dict[str, str]:
    uri = quote(path.replace("\\", "/").removeprefix("./"), safe="/._-~")
    return {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
