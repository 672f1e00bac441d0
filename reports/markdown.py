"""`report.md`: the short report for a terminal, a merge request or a mail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ascend_perf.model.finding import Cell, Evidence, Finding, Words
from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.judged import judged_rows
from ascend_perf.reports.payload import Payload, StepRow
from ascend_perf.reports.phrases import spoken
from ascend_perf.reports.quality import quality_tables
from ascend_perf.reports.texts import markdown, markdown_code, said
from ascend_perf.reports.verdict import added, all_together, facts, gain, ranges, spread, verdict
from ascend_perf.units import Unit, format_quantity

STEP_COLUMNS: Final = (
    "span_us", "computing_us", "communication_not_overlapped_us", "overlapped_us", "free_us", "bubble_us",
    "preparing_us",
)  # fmt: skip
"""Figures of the step table, in this order."""

MAX_STEP_ROWS: Final = 40
"""Rows of the step table; the rest is in report.json."""

MAX_EVIDENCE: Final = 6
"""Evidence rows per finding; the rest is in report.json."""


def write_markdown(payload: Payload, path: Path) -> None:
    """Write `report.md`. An existing file is replaced; whether that is wanted, the caller has asked."""
    path.write_text(text(payload), "utf-8", newline="\n")


def text(payload: Payload) -> str:
    """The report as Markdown in the payload's language: verdict, findings, steps, data quality."""
    writer = _Writer(payload)
    return "\n".join((*writer.verdict(), *writer.findings(), *writer.judged(), *writer.steps(), *writer.quality()))


class _Writer:
    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.lang = payload.lang
        self.texts = catalogue(payload.lang)
        self.colon = self.texts["ui.colon"]
        self.span = spread(payload.figures("span_us"))

    def _say(self, words: Words) -> str:
        return markdown(said(words, self.lang))

    def verdict(self) -> list[str]:
        answer = verdict(self.payload)
        lines = [f"# {self._say(answer.lead)}", "", f"**{self._say(answer.main)}**"]
        if self.payload.data_origin == "simulated":
            banner = f"**{self.texts['origin.simulated']}**{self.colon}{self.texts['origin.banner']}"
            lines = [f"> {banner}", "", *lines]
        if answer.gain is not None:
            lines += ["", self._say(answer.gain)]
        badge = self.texts[f"origin.{self.payload.data_origin}"]
        lines += ["", f"- {self.texts['md.origin']}{self.colon}{badge}"]
        lines += [f"- {self._say(fact.label)}{self.colon}{self._say(fact.value)}" for fact in facts(self.payload)]
        return [*lines, ""]

    def findings(self) -> list[str]:
        lines = [f"## {self.texts['ui.first']}", ""]
        if not self.payload.findings:
            return [*lines, self._say(verdict(self.payload).main), ""]
        for number, finding in enumerate(self.payload.findings, 1):
            lines += self._finding(number, finding)
        whole = all_together(self.payload.findings)
        return [*lines, self._say(whole), ""] if whole else lines

    def _finding(self, number: int, finding: Finding) -> list[str]:
        severity = self.texts[f"severity.{finding.severity.value}"]
        about = f"`{finding.code}` · {severity}{self._ranks(finding)}"
        lines = [f"### {number}. {self._say(finding.title)}", "", about, ""]
        bound = gain(finding, self.span)
        beyond = added(finding)
        extra = f" {self._say(beyond)}" if beyond else ""
        lines += [f"**{self._say(bound)}**{extra}" if bound else self.texts["gain.unknown"], ""]
        lines += [f"{self.texts['ui.why']}{self.colon}{self._say(finding.cause)}", ""]
        if finding.confirm is not None:
            lines += [f"{self.texts['ui.confirm']}{self.colon}{self._say(finding.confirm)}", ""]
        lines += [f"{self.texts['ui.evidence']}{self.colon.rstrip()}", ""]
        lines += [f"- {self._evidence(item)}" for item in finding.evidence[:MAX_EVIDENCE]]
        more = len(finding.evidence) - MAX_EVIDENCE
        if more > 0:
            lines.append(f"- {self.texts['md.more_evidence'].format(count=more)}")
        lines += ["", f"{self.texts['ui.remedy']}{self.colon.rstrip()}", ""]
        for step, remedy in enumerate(finding.remedies, 1):
            lines.append(f"{step}. {self._say(remedy.text)}")
            if remedy.code:
                lines += ["", *(f"   {line}" for line in markdown_code(remedy.code).split("\n")), ""]
        based = " · ".join(markdown(spoken(part, self.lang)) for part in (finding.formula, finding.source) if part)
        return [*lines, "", f"{self.texts['ui.based_on']}{self.colon}{based}", ""] if based else [*lines, ""]

    def _ranks(self, finding: Finding) -> str:
        said_ranks = ""
        if finding.ranks:
            said_ranks += " · " + self.texts["ui.cause_on"].format(ranks=ranges(finding.ranks))
        if finding.affected_ranks and finding.affected_ranks != finding.ranks:
            said_ranks += " · " + self.texts["ui.lost_on"].format(ranks=ranges(finding.affected_ranks))
        return said_ranks

    def _evidence(self, item: Evidence) -> str:
        where = f" — {markdown(spoken(item.where, self.lang))}" if item.where else ""
        return f"{self._say(item.name)}{self.colon}{self._cell(item.value, item.unit)}{where}"

    def _cell(self, value: Cell, unit: Unit) -> str:
        if isinstance(value, bool) or value is None:
            return self.texts["ui.unknown"] if value is None else str(value)
        return markdown(value) if isinstance(value, str) else format_quantity(value, unit)

    def judged(self) -> list[str]:
        rows = judged_rows(self.payload)
        clean = [row.code for row in rows if row.verdict == "clean"]
        unjudged = [row for row in rows if row.verdict == "not_judged"]
        lines = []
        if clean:
            lines += [f"{self.texts['ui.clean']}{self.colon}{self.texts['ui.comma'].join(clean)}", ""]
        if unjudged:
            lines += [f"{self.texts['ui.not_judged']}{self.colon.rstrip()}", ""]
            none_given = self.texts["reason.none_given"]
            for row in unjudged:
                rule = self.payload.rules.get(row.code)
                name = row.code if rule is None else f"{row.code} ({self._say(rule)})"
                lines.append(f"- {name}{self.colon}{self._say(row.reason) if row.reason else none_given}")
            lines.append("")
        return lines

    def steps(self) -> list[str]:
        rows = [(rank.rank, step) for rank in self.payload.ranks for step in rank.steps if _is_known(step)]
        lines = [f"## {self.texts['section.steps']}", ""]
        if not rows:
            why = "verdict.steps_left_out" if self.payload.has_left_out("step-breakdown") else "reason.steps"
            return [*lines, self.texts[why], ""]
        titles = [self.texts["column.rank"], self.texts["column.step_id"]]
        titles += [self.texts[f"column.{name}"] for name in STEP_COLUMNS]
        lines += [_row(titles), _row(["---:"] * len(titles))]
        for rank, step in rows[:MAX_STEP_ROWS]:
            figures = [format_quantity(getattr(step, name), "us") for name in STEP_COLUMNS]
            lines.append(_row([_id(rank), _id(step.step_id), *figures]))
        if len(rows) > MAX_STEP_ROWS:
            lines += ["", self.texts["md.more_steps"].format(count=len(rows) - MAX_STEP_ROWS)]
        return [*lines, ""]

    def quality(self) -> list[str]:
        lines = [f"## {self.texts['section.quality']}", ""]
        for table in quality_tables(self.payload, self.lang):
            lines += [f"### {self._say(table.title)}", "", _row([self._say(column.title) for column in table.columns])]
            lines.append(_row(["---" if c.unit == "none" else "---:" for c in table.columns]))
            columns = [
                [self._cell(cell, column.unit) if cell is not None else "" for cell in cells]
                for column, cells in zip(table.columns, table.data, strict=True)
            ]
            lines += [_row(list(cells)) for cells in zip(*columns, strict=True)]
            lines.append("")
        return lines


def _is_known(step: StepRow) -> bool:
    return any(getattr(step, name) is not None for name in STEP_COLUMNS)


def _id(value: int | None) -> str:
    return "—" if value is None else str(value)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
