"""The table of faults planted into real profiles, and their section of docs/evaluation.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from tests.faults.evaluate import FIRST, GAIN_TOLERANCE
from tests.faults.known import REAL_FALSE, REAL_GAINS, REAL_MISSES
from tests.faults.planting import STRENGTHS
from tests.faults.real import REAL_KINDS, RealScore

_NAMES: Final = (
    ("text/level1", "AlexNet (L1)"), ("text/level2", "AlexNet (L2)"), ("qwen3", "Qwen3"), ("h100", "LLM on H100"),
    ("v100", "ResNet50 on V100"),
)  # fmt: skip

_SECTION: Final = """
## Faults planted into real profiles

Simulated jobs are tidy; recorded ones are not. Here the same kinds of faults are planted into profiles that were really
recorded (`python -m tests.faults.evaluate --real`): time is inserted at chosen instants by a map that grows with time,
on every thread, stream and communication plane, so that what spans an instant gets longer and what lies behind it
moves; operators, calls, kernels, copies and transfers are put into the new time; and everything that the export derives
(step times, statistics of operators and calls, collectives, links, the overlap analysis) is computed anew. On unedited
profiles that computation gives the producer's own figures, and a separate check finds no contradiction between the
files before or after an edit. The profiles are not part of this repository.

A recorded job has findings of its own, so the figures are of differences to the unedited profile. Found: a finding of
the row appears or becomes one of medium severity, or the time it claims grows by the planted time within
{tolerance:.0%}. False: another row's finding of medium severity or above that appears, or grows by a fifth of the
planted time and 3 % of the step. "First {first}" counts among what is new or grew. Two names with a plus: two faults in
one job, each of the given strength; both have to be found.

| Figure | Asked | Reached |
|---|---|---|
{summary}

{jobs} edited profiles of five recorded jobs: two runs of a data-parallel AlexNet (ranks 0 and 1 of 8; profiler levels 1
and 2), Qwen3 0.6B on a pipeline of two stages with two replicas (no timelines; two of four ranks with summaries alone),
a language model on an H100 and ResNet50 on a V100. Strengths as above, of the step with the fault. While this was
written, the run with level 1 was looked at; the one with level 2 was edited the same way and looked at once.

{table}

{notes}

What was missed, false or off by more than the tolerance:

{details}

Known limits:

{known}
"""


def _named(source: str) -> str:
    return next(name for part, name in _NAMES if part in source)


def _percent(flags: Sequence[bool], digits: int = 0) -> str:
    return f"{sum(flags) / len(flags):.{digits}%}" if flags else "—"


def _precision(scores: Sequence[RealScore], digits: int = 0) -> str:
    right, false = sum(s.right for s in scores), sum(len(s.false) for s in scores)
    return f"{right / (right + false):.{digits}%}" if right + false else "—"


def _told(scores: Sequence[RealScore]) -> list[RealScore]:
    """Those of which a row speaks."""
    spoken = {kind.name for kind in REAL_KINDS if kind.codes}
    return [s for s in scores if s.kind in spoken]


def real_table(scores: Sequence[RealScore], *, is_markdown: bool) -> list[str]:
    """One line per kind."""
    header = ("kind", "profile", "rows", *STRENGTHS, "precision", f"first {FIRST}", "gain error", "ranks")
    rows: list[tuple[str, ...]] = []
    for kind in REAL_KINDS:
        own = [s for s in scores if s.kind == kind.name]
        if not own:
            continue
        told = own if kind.codes else []
        errors = [s.gain_error for s in told if s.gain_error is not None]
        rows.append((
            kind.name, ", ".join(_named(source) for source in kind.sources),
            " ".join(sorted(kind.codes | kind.second)) or "none",
            *(_percent([s.is_found for s in told if s.strength == strength]) for strength in STRENGTHS),
            _precision(own), _percent([s.place is not None and s.place <= FIRST for s in told]),
            f"{statistics.median(errors):+.0%}" if errors else "—",
            _percent([s.names_ranks for s in told if s.is_found]) if kind.ranks else "—",
        ))  # fmt: skip
    if is_markdown:
        return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]


def real_summary(scores: Sequence[RealScore]) -> list[tuple[str, str, str]]:
    """Figure, what was asked, what was reached."""
    told = _told(scores)
    placed = [s.place is not None and s.place <= FIRST for s in told]
    errors = [abs(s.gain_error) <= GAIN_TOLERANCE for s in told if s.is_found and s.gain_error is not None]
    named = {kind.name for kind in REAL_KINDS if kind.ranks}
    return [
        ("recall at medium and strong", "95 %", _percent([s.is_found for s in told if s.strength != "weak"], 1)),
        ("recall at weak", "80 %", _percent([s.is_found for s in told if s.strength == "weak"], 1)),
        ("precision, medium severity and above, new or grown", "95 %", _precision(scores, 1)),
        ("planted cause among the first three that are new or grew", "95 %", _percent(placed, 1)),
        ("growth within 20 % of the planted time", "90 %", _percent(errors, 1)),
        ("ranks of the cause named", "—", _percent([s.names_ranks for s in told if s.is_found and s.kind in named], 1)),
    ]


def real_details(scores: Sequence[RealScore]) -> list[str]:
    """What went wrong, one line each."""
    lines = []
    kinds = {kind.name: kind for kind in REAL_KINDS}
    for s in scores:
        name = f"{s.kind}/{s.strength}, {_named(s.source)}"
        if not s.is_found:
            lines.append(f"MISS  {name}: expected {' and '.join(sorted(kinds[s.kind].codes | kinds[s.kind].second))}")
        elif s.place is not None and s.place > FIRST:
            lines.append(f"LATE  {name}: place {s.place}")
        if s.is_found and s.gain_error is not None and abs(s.gain_error) > GAIN_TOLERANCE:
            lines.append(f"GAIN  {name}: {s.gain_error:+.0%} (planted {s.planted_ns / s.step_ns:.1%} of the step)")
        if s.is_found and not s.names_ranks:
            lines.append(f"RANKS {name}: expected {kinds[s.kind].ranks}")
        lines += [f"FALSE {name}: {text}" for text in s.false]
        lines += [f"FAILED {name}: {text}" for text in dict.fromkeys(s.failed)]
    return lines


def planted_into_real(scores: Sequence[RealScore]) -> str:
    """The section of the page."""
    known = [
        f"- `{name}` ({what}): {why}."
        for what, reasons in (("missed when weak", REAL_MISSES), ("false finding", REAL_FALSE), ("gain", REAL_GAINS))
        for name, why in reasons.items()
    ]
    return _SECTION.format(
        tolerance=GAIN_TOLERANCE, first=FIRST, jobs=len(scores),
        summary="\n".join(f"| {name} | {asked} | {reached} |" for name, asked, reached in real_summary(scores)),
        table="\n".join(real_table(scores, is_markdown=True)),
        notes="\n".join(f"- `{kind.name}`: {kind.note}." for kind in REAL_KINDS if kind.note),
        details="\n".join(f"- {' '.join(line.split())[:200]}" for line in real_details(scores)) or "Nothing.",
        known="\n".join(known) or "None.",
    )  # fmt: skip
