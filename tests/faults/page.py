"""The page docs/evaluation.md, made from the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tests.faults.evaluate import ALL_KINDS, FIRST, GAIN_TOLERANCE, Score, details, summary, table
from tests.faults.kinds import FEW_MICRO
from tests.faults.known import KNOWN_GAINS, KNOWN_MISSES, KNOWN_NOISE, KNOWN_WEAK
from tests.faults.planting import STRENGTHS

if TYPE_CHECKING:
    from tests.faults.advisor import Advice

_HEAD: Final = """# Evaluation

What the analysis finds of faults that we planted ourselves. This page is made by
`python -m tests.faults.evaluate --markdown docs/evaluation.md`; `make eval` prints the same figures.

The jobs of the first tables are **simulated** (faults in recorded jobs follow further down): a generator
(`tests/faults`) runs programs of a language model or a convolutional network on a model of hosts, devices and links,
and writes what happened in the export format of torch_npu (text, with counters, host calls, collectives and memory).
It is written from the format reference and shares no code with the analyzers. Each fault is planted alone; its true
cost is the step of the job with the fault less the step of its healthy twin. So the figures say how well known faults
are told from a profile, not how often they occur in real jobs, and a real profile has several faults at once.

Strengths: {strengths} of the step with the fault. Kinds that are not a matter
of time (settings, memory) have three strengths of their own; fewer micro-batches: {micro}.

## Figures reached

| Figure | Asked | Reached | Of it unseen sizes |
|---|---|---|---|
{summary}

{jobs} jobs with a fault and {healthy} healthy ones ({seeds}).
While thresholds and formulas were worked on, jobs of the usual size were looked at (seed 1); the last column is of
jobs with other numbers of layers and tokens (seeds 2 and up). Those were looked at once before: it added one true
consequence (M-01 of `experts-one-by-one`) and no change of an analyzer.

Precision counts findings of severity medium and above; a true consequence of the fault (a late rank's own data loader)
is no false finding. "First {first}": the cause is among the first {first} findings. "Gain error": predicted over
planted time, median of the three strengths; within {tolerance:.0%} counts as right. "Ranks": the finding names exactly
the ranks of the cause.

## By kind

{table}

Where two rows are named, either is right: what was planted fits both, and the profile does not tell them apart.
{notes}

## What was missed, wrong or off by more than the tolerance

{details}

`MISS`: not found. `LATE`: found, but behind the first {first}. `GAIN`: bound off by more than {tolerance:.0%}. `FALSE`:
a finding that is not true of the job. `RANKS`: other ranks named.

## Known limits

{known}
{advisor}{real}
Not planted yet: exports as databases, more than two faults in one job, and rows that need files that the generator does
not write (Level2 AI CPU tables, counters of links and of memory).
"""


_BESIDE: Final = """
## Beside the advisor of msprof-analyze

The advisor (`msprof-analyze advisor all`, 26.2.0, in an environment of its own) on one job of each kind and strength.
Its issues name no rows and no gain; `tests/faults/advisor.py` says which rows each of them may speak of, in its favour
where in doubt, and counts an issue as right however general its words are.

| Figure, {jobs} jobs with a fault and {healthy} healthy ones | ascend-perf | advisor |
|---|---|---|
| planted cause found | {recall} | {advisor_recall} |
| among the first {first} | {first3} | {advisor_first3} |
| what is said is true of the job | {precision} | {advisor_precision} |
| said of a healthy job, mean | {noise} | {advisor_noise} |

Jobs on which the advisor gave no answer: {problems}. By kind: place of the right answer in the list for weak, medium
and strong faults (—: not found), and the advisor's issues per job about other rows.

| kind | rows | ascend-perf | advisor | its other issues |
|---|---|---|---|---|
{table}
"""


def page(
    scores: Sequence[Score], controls: Sequence[tuple[str, tuple[str, ...]]], advisor: str = "", real: str = ""
) -> str:
    """The page as Markdown; `advisor`: what `beside` made of the same jobs; `real`: what `planted_into_real` did."""
    # Healthy jobs come with all seeds of one name after the other.
    names = [name for name, _ in controls]
    other = [control for place, control in enumerate(controls) if control[0] in names[:place]]
    notes = [f"- `{kind.name}`: {kind.note}" for kind in ALL_KINDS if kind.note]
    missed = list(dict.fromkeys(f"- {' '.join(line.split())[:200]}" for line in details(scores, controls)))
    known = [
        f"- `{name}` ({what}): {why}."
        for what, reasons in (
            ("not reached", KNOWN_MISSES),
            ("missed when weak", KNOWN_WEAK),
            ("gain", KNOWN_GAINS),
            ("healthy job", KNOWN_NOISE),
        )
        for name, why in reasons.items()
    ]
    return _HEAD.format(
        strengths=", ".join(f"{name} {share:.0%}" for name, share in STRENGTHS.items()),
        micro=", ".join(f"{name} {count}" for name, count in FEW_MICRO.items()),
        summary="\n".join(
            f"| {name} | {asked} | {reached} | {unseen} |"
            for (name, asked, reached), (_, _, unseen) in zip(
                summary(scores, controls), summary([s for s in scores if s.truth.seed > 1], other), strict=True
            )
        ),
        jobs=len(scores),
        healthy=len(controls),
        seeds="; ".join(_strengths_of(scores, seed) for seed in sorted({s.truth.seed for s in scores})),
        first=FIRST,
        tolerance=GAIN_TOLERANCE,
        table="\n".join(table(scores, is_markdown=True)),
        notes="\n" + "\n".join(notes) if notes else "",
        details="\n".join(missed) or "Nothing.",
        known="\n".join(known) or "None.",
        advisor=advisor,
        real=real,
    )


def _strengths_of(scores: Sequence[Score], seed: int) -> str:
    seen = {s.truth.strength for s in scores if s.truth.seed == seed}
    return f"seed {seed}: {', '.join(name for name in STRENGTHS if name in seen)}"


def beside(
    scores: Sequence[Score],
    controls: Sequence[tuple[str, tuple[str, ...]]],
    planted: Sequence[Advice],
    healthy: Sequence[Advice],
) -> str:
    """The advisor of msprof-analyze on the same jobs (of seed 1), as a section of the page."""
    asked = {advice.kind for advice in planted}
    ours = {(s.truth.kind, s.truth.strength): s for s in scores if s.truth.seed == 1 and s.truth.kind in asked}
    rows = []
    for kind in ALL_KINDS:
        own = [advice for advice in planted if advice.kind == kind.name]
        if not own:
            continue
        places = [ours[kind.name, a.strength].place for a in own if (kind.name, a.strength) in ours]
        rows.append(
            f"| {kind.name} | {' '.join(sorted(kind.codes))} | {_strengths(own, places)} | "
            f"{_strengths(own, [a.place for a in own])} | {sum(len(a.false) for a in own) / len(own):.3g} |"
        )
    first = sum(1 for a in planted if a.place is not None and a.place <= FIRST)
    found = sum(1 for a in planted if a.place is not None)
    said = sum(len(a.issues) for a in planted)
    false = sum(len(a.false) for a in planted)
    problems = sum(1 for a in (*planted, *healthy) if a.problem)
    mine = list(ours.values())
    right, wrong = sum(s.right for s in mine), sum(len(s.false) for s in mine)
    named = {advice.kind for advice in healthy}
    quiet = {name: said for name, said in controls if name in named}
    return _BESIDE.format(
        jobs=len(planted), healthy=len(healthy),
        recall=f"{sum(s.is_found for s in mine) / max(1, len(mine)):.1%}",
        advisor_recall=f"{found / max(1, len(planted)):.1%}",
        first3=f"{sum(s.place is not None and s.place <= FIRST for s in mine) / max(1, len(mine)):.1%}",
        advisor_first3=f"{first / max(1, len(planted)):.1%}", first=FIRST,
        precision=f"{right / max(1, right + wrong):.1%}", advisor_precision=f"{1 - false / max(1, said):.1%}",
        noise=f"{sum(map(len, quiet.values())) / max(1, len(quiet)):.3g}",
        advisor_noise=f"{sum(len(a.issues) for a in healthy) / max(1, len(healthy)):.3g}", problems=problems,
        table="\n".join(rows),
    )  # fmt: skip


def _strengths(own: Sequence[Advice], places: Sequence[int | None]) -> str:
    return " ".join(
        f"{a.strength[0]}:{'—' if place is None else place}" for a, place in zip(own, places, strict=True)
    )  # fmt: skip
