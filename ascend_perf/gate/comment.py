"""The comment of a merge request in Markdown, and annotations in the log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from ascend_perf.errors import not_obeyed
from ascend_perf.gate import texts
from ascend_perf.gate.outcome import Explanation, Row, SideFacts, Verdict
from ascend_perf.gate.texts import Lang, markdown, say
from ascend_perf.model.finding import Words
from ascend_perf.units import format_ns, significant

MARKER: Final = "<!-- ascend-perf-gate -->"
"""First line of the comment: by it a recipe finds the comment of the last run and replaces it."""
MAX_ROWS: Final = 40
"""Rows of a table; more are counted. Comments of GitHub end at 65 536 characters."""
MAX_BYTES: Final = 60_000
MAX_ANNOTATIONS: Final = 10
"""GitHub shows ten errors and ten warnings of a step."""
MAX_DETAILS: Final = 12
SIDES: Final[tuple[Literal["base", "head"], ...]] = ("base", "head")

_URL: Final = re.compile(r"https?://[^\s()<>\[\]\"'`|\\]+")

_WORDS: Final = {
    "base": Words("base", "BASE"),
    "head": Words("head", "HEAD"),
    "machine": Words("machine", "机器"),
    "launches": Words("launches", "启动次数"),
    "benchmark": Words("benchmark", "基准"),
    "figure": Words("figure", "指标"),
    "outcome": Words("outcome", "结论"),
    "change": Words("change", "变化"),
    "interval": Words("interval", "置信区间"),
    "why": Words("why", "原因"),
    "unchanged": Words("without change", "无变化"),
    "report": Words("Full report", "完整报告"),
    "warn_only": Words("Warnings only: this does not fail the build.", "仅警告：不会使构建失败。"),
    "details": Words("What differs", "差异"),
    "more": Words("more rows, see the full report", "行未列出，见完整报告"),
    "node": Words("node", "节点"),
    "time": Words("time", "时间"),
    "calls": Words("calls", "次数"),
    "explained": Words("Where the time of a step grew", "单步时间增长之处"),
    "unknown": Words("unknown", "未知"),
    "cut": Words("(cut: the comment was too long; see the JSON)", "（内容过长已截断，详见 JSON）"),
    "p": Words("Mann-Whitney over launches", "按启动的 Mann-Whitney 检验"),
}


def comment(verdict: Verdict, lang: Lang = "en") -> str:
    """The one comment: verdict, where it comes from, rows that changed, what explains them; the rest folded."""
    parts = [MARKER, f"### {_icon(verdict)} {say(texts.VERDICTS[verdict.outcome], lang)}", _origin(verdict, lang)]
    if verdict.warn_only and verdict.outcome != "pass":
        parts.append(f"_{say(_WORDS['warn_only'], lang)}_")
    changed = [row for row in verdict.rows if row.outcome != "pass"]
    if changed:
        parts.append(_table(changed, lang))
    parts += [_explained(one, lang) for one in verdict.explanations]
    if differences := [row for row in changed if row.details]:
        blocks = [_details(row, lang) for row in differences[:MAX_ROWS]]
        parts.append(_folded(say(_WORDS["details"], lang), "\n\n".join(blocks)))
    if unchanged := [row for row in verdict.rows if row.outcome == "pass"]:
        parts.append(_folded(f"{len(unchanged)} {say(_WORDS['unchanged'], lang)}", _table(unchanged, lang)))
    parts += [f"- {markdown(say(note, lang), 1000)}" for note in verdict.notes]
    if _URL.fullmatch(verdict.html_url):
        parts.append(f"[{say(_WORDS['report'], lang)}]({verdict.html_url})")
    return _cut("\n\n".join(parts) + "\n", lang)


def _icon(verdict: Verdict) -> str:
    return {"pass": "✅", "regression": "❌", "inconclusive": "❔", "not_comparable": "⚠️"}[verdict.outcome]


def _origin(verdict: Verdict, lang: Lang) -> str:
    facts, colon = verdict.head.fingerprint, texts.COLONS[lang]
    chip, count = facts.get("chip"), facts.get("chip_count")
    named = [] if chip is None else [str(chip) if count is None else f"{count} x {chip}"]
    named += [
        f"{label} {facts[name]}" for name, label in
        (("cann", "CANN"), ("cuda", "CUDA"), ("torch", "torch"), ("torch_npu", "torch_npu"))
        if facts.get(name) is not None
    ]  # fmt: skip
    lines = [
        f"**{say(_WORDS['base'], lang)}** {_commit(verdict.base, lang)} → "
        f"**{say(_WORDS['head'], lang)}** {_commit(verdict.head, lang)}",
        f"{say(_WORDS['machine'], lang)}{colon}{markdown(', '.join(named)) or say(_WORDS['unknown'], lang)} · "
        f"{say(_WORDS['launches'], lang)}{colon}{_numbers(verdict.base)} + {_numbers(verdict.head)} · "
        f"{say(_WORDS['interval'], lang)}{colon}{significant(verdict.confidence * 100)} %",
    ]
    return "  \n".join(lines)


def _commit(side: SideFacts, lang: Lang) -> str:
    commit = markdown(side.commit[:12]) if side.commit else say(_WORDS["unknown"], lang)
    branch = f" ({markdown(side.branch, 80)})" if side.branch else ""
    return f"{commit}{branch}"


def _numbers(side: SideFacts) -> str:
    if not side.launches:
        return "0"
    low, high = side.launches[0], side.launches[-1]
    return str(low) if low == high else f"{low}–{high}"


def _table(rows: Sequence[Row], lang: Lang) -> str:
    heads = ("benchmark", "figure", "outcome", "base", "head", "change", "interval", "why")
    lines = [f"| {' | '.join(say(_WORDS[name], lang) for name in heads)} |",
             "| --- | --- | --- | ---: | ---: | ---: | --- | --- |"]  # fmt: skip
    for row in rows[:MAX_ROWS]:
        why = markdown(say(row.reason, lang), 1000)
        if row.rank_test is not None and row.outcome in ("regression", "inconclusive", "warning", "improved"):
            test = f"{say(_WORDS['p'], lang)}{texts.COLONS[lang]}p {significant(row.rank_test.p_value, 2)}"
            why = texts.bracketed(why, Words(test, test), lang)
        cells = (
            markdown(row.benchmark, 120) or "—", markdown(row.name, 80),
            f"**{say(texts.OUTCOMES[row.outcome], lang)}**",
            texts.figure(row, "base", lang), texts.figure(row, "head", lang),
            texts.of_both(texts.change(row), row, lang), texts.of_both(texts.interval(row), row, lang), why,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if len(rows) > MAX_ROWS:
        lines.append(f"| {len(rows) - MAX_ROWS} {say(_WORDS['more'], lang)} | | | | | | | |")
    return "\n".join(lines)


def _explained(one: Explanation, lang: Lang) -> str:
    title = f"**{say(_WORDS['explained'], lang)}{texts.COLONS[lang]}{markdown(one.benchmark, 120)}**"
    if one.missing is not None:
        return f"{title}\n\n{markdown(say(one.missing, lang), 1000)}"
    heads = [
        say(_WORDS["node"], lang),
        *(texts.bracketed(say(_WORDS[side], lang), texts.simulated(one, side), lang) for side in SIDES),
        *(texts.bracketed(say(_WORDS[name], lang), texts.simulated(one), lang) for name in ("change", "calls")),
    ]
    lines = [title, "", f"| {' | '.join(heads)} |", "| --- | ---: | ---: | ---: | ---: |"]
    for node in one.nodes:
        sign = "+" if node.delta_ns >= 0 else "-"
        calls = [significant(count) for count in (node.base_count, node.head_count)]
        lines.append(
            f"| {markdown(node.name, 200)} | {format_ns(node.base_ns)} | {format_ns(node.head_ns)} "
            f"| {sign}{format_ns(abs(node.delta_ns))} | {calls[0] if calls[0] == calls[1] else ' → '.join(calls)} |"
        )
    return "\n".join(lines)


def _details(row: Row, lang: Lang) -> str:
    lines = [texts.clean(line, 200) for line in row.details[:MAX_DETAILS]]
    if len(row.details) > MAX_DETAILS:
        lines.append(f"... {len(row.details) - MAX_DETAILS}")
    # Four spaces make code that no text inside can end; a fence could be closed by one.
    code = "\n".join(f"    {line}" for line in lines)
    about = texts.bracketed(texts.title(row, lang), texts.simulated(row), lang)
    return f"{markdown(about)}\n\n{code}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _cut(text: str, lang: Lang) -> str:
    if len(text.encode("utf-8")) <= MAX_BYTES:
        return text
    kept: list[str] = []
    size = opened = 0
    for line in text.split("\n"):
        size += len(line.encode("utf-8")) + 1
        if size > MAX_BYTES - 200:
            break
        opened += line.startswith("<details>") - line.startswith("</details>")
        kept.append(line)
    return "\n".join([*kept, *["", "</details>"] * opened, "", say(_WORDS["cut"], lang), ""])


def log_annotations(verdict: Verdict, where: str, lang: Lang = "en") -> str:
    """Workflow commands that GitHub shows at the files of a pull request; at most ten of each level."""
    lines = []
    for level, outcomes in (("error", ("regression", "not_comparable")), ("warning", ("inconclusive", "warning"))):
        rows = [row for row in verdict.rows if row.outcome in outcomes]
        for row in rows[:MAX_ANNOTATIONS]:
            title, message = texts.title(row, lang), texts.message(row, lang)
            lines.append(f"::{'warning' if verdict.warn_only else level} file={_property(where)},line=1,"
                         f"title={_property(title)}::{_data(message)}")  # fmt: skip
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(verdict: Verdict, lang: Lang = "en") -> str:
    """The verdict for a terminal: one line for each row that changed."""
    lines = [say(texts.VERDICTS[verdict.outcome], lang)]
    for row in verdict.rows:
        if row.outcome != "pass":
            lines.append(f"  {texts.title(row, lang)}{texts.SEMICOLONS[lang]}{texts.message(row, lang)}")
            lines += [f"      {texts.clean(line, 160)}" for line in row.details[:5]]
    for one in verdict.explanations:
        about = texts.bracketed(texts.clean(one.benchmark), texts.simulated(one), lang)
        lines.append(f"  {say(_WORDS['explained'], lang)}{texts.COLONS[lang]}{about}")
        if one.missing is not None:
            lines.append(f"      {say(one.missing, lang)}")
        lines += [
            f"      {'+' if node.delta_ns >= 0 else '-'}{format_ns(abs(node.delta_ns))}  {texts.clean(node.name, 160)}"
            for node in one.nodes
        ]
    if passed := len(verdict.having("pass")):
        lines.append(f"  {passed} {say(_WORDS['unchanged'], lang)}")
    lines += [f"  {say(note, lang)}" for note in verdict.notes]
    return not_obeyed("\n".join(lines))
