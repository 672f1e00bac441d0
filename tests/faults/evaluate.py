"""Plants every kind of fault in every strength, runs the analysis, and says how well it did.

`make eval` prints the table; `--markdown PATH` writes docs/evaluation.md; `--quick` looks at medium strength only;
`--real` plants into recorded jobs instead (with `--markdown`: as well, as a section of the page).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ascend_perf.model.finding import Finding, Severity
from ascend_perf.pipeline import analyze
from tests.faults import model
from tests.faults.kinds import CONTROLS, FEW_MICRO, KINDS
from tests.faults.machine import Job, Recording, simulate
from tests.faults.planting import STRENGTHS, Kind, Strength, rows
from tests.faults.plants_ranks import nothing
from tests.faults.writer import write_job

GRADES: Final = frozenset({Severity.CRITICAL, Severity.HIGH, Severity.MEDIUM})
"""Severities that count for precision."""
FIRST: Final = 3
"""The cause should be among so many findings."""
GAIN_TOLERANCE: Final = 0.20

MICRO_KIND: Final = Kind(
    name="micro-batches-few", make=model.pipeline, plant=nothing, codes=rows("L-01"), ranks=(0, 1, 2, 3),
    note="10, 6 and 2 micro-batches on 2 stages",
)  # fmt: skip
ALL_KINDS: Final = (*KINDS, MICRO_KIND)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What was planted."""

    kind: str
    strength: str
    seed: int
    codes: tuple[str, ...]
    also: tuple[str, ...]
    ranks: tuple[int, ...]
    affected_ranks: tuple[int, ...]
    is_split: bool
    planted_ns: float | None
    """Time per step that would be gained without the fault; None where the fault is no matter of time."""
    step_ns: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one job was judged."""

    truth: Truth
    is_found: bool
    place: int | None
    """Place of the first right finding, from 1."""
    names_ranks: bool
    gain_error: float | None
    """Predicted over planted time, less 1."""
    right: int
    false: tuple[str, ...]
    """Findings of medium severity and above that are not true of the job."""
    failed: tuple[str, ...] = field(default=())


def mean_step(recordings: dict[int, Recording]) -> float:
    """Length of a step, mean over ranks."""
    return statistics.fmean(recording.step_ns for recording in recordings.values())


def build(kind: Kind, strength: Strength, seed: int) -> tuple[Job, dict[int, Recording], Truth]:
    """A job with a fault, what happened in it, and the truth."""
    if kind.served is not None:
        job, share = kind.served(seed, strength)
        # Shares of services are of what their row names: the whole is 1 s here.
        planted = share * 1e9 if kind.has_gain else None
        return job, {}, _truth(kind, strength, seed, planted, 1e9)
    clean = kind.make(seed)
    if kind.name == MICRO_KIND.name:
        clean = model.pipeline(seed, micro=FEW_MICRO[strength])
        recordings = simulate(clean)
        step = mean_step(recordings)
        share = 1 / (FEW_MICRO[strength] + 1)
        return clean, recordings, _truth(kind, strength, seed, share * step, step)
    before = mean_step(simulate(clean))
    share = STRENGTHS[strength]
    target = round(share / (1 - share) * before)
    if kind.twin is not None:
        twin = kind.make(seed)
        kind.twin(twin, target, strength)
        before = mean_step(simulate(twin))
    job = kind.make(seed)
    kind.plant(job, target, strength)
    recordings = simulate(job)
    step = mean_step(recordings)
    return (
        job,
        recordings,
        _truth(kind, strength, seed, (step - before) * kind.gain_part if kind.has_gain else None, step),
    )


def _truth(kind: Kind, strength: str, seed: int, planted: float | None, step: float) -> Truth:
    return Truth(
        kind=kind.name, strength=strength, seed=seed, codes=tuple(sorted(kind.codes)), also=tuple(sorted(kind.also)),
        ranks=kind.ranks, affected_ranks=kind.affected, is_split=kind.is_split, planted_ns=planted, step_ns=step,
    )  # fmt: skip


def plant(kind: Kind, strength: Strength, seed: int, folder: Path) -> Truth:
    """Writes a job with a fault, and the truth beside it."""
    job, recordings, truth = build(kind, strength, seed)
    write_job(job, recordings, folder)
    return truth


def _blames_others(found: Finding, truth: Truth) -> bool:
    """Whether a finding of a late rank names only ranks that are held up themselves."""
    return bool(truth.affected_ranks and found.code in truth.codes and found.ranks) and not (
        set(found.ranks) & set(truth.ranks)
    )


def score(truth: Truth, findings: Sequence[Finding], failed: Iterable[str] = ()) -> Score:
    """Judges the findings of a job."""
    right = [(place, f) for place, f in enumerate(findings, 1) if f.code in truth.codes]
    graded = [f for f in findings if f.severity in GRADES]
    false = tuple(
        f"{f.code} {f.severity.value} {f.title.en}"
        for f in graded
        if f.code not in {*truth.codes, *truth.also} or _blames_others(f, truth)
    )
    error = None
    if right and truth.planted_ns and truth.planted_ns > 0:
        shares = [f.share_ratio for _, f in right if f.share_ratio is not None]
        if shares:
            # Rows that name the same time from two sides: the nearest counts.
            predicted = [sum(shares)] if truth.is_split else shares
            errors = [share * truth.step_ns / truth.planted_ns - 1 for share in predicted]
            error = min(errors, key=abs)
    named = any(set(f.ranks) == set(truth.ranks) for _, f in right) or (
        len(truth.ranks) <= 1 and bool(right) and not truth.affected_ranks
    )
    return Score(
        truth=truth, is_found=bool(right), place=right[0][0] if right else None, names_ranks=named, gain_error=error,
        right=len(graded) - len(false), false=false, failed=tuple(failed),
    )  # fmt: skip


def run(kind: Kind, strength: Strength, seed: int) -> Score:
    """Plants, analyses, judges."""
    with tempfile.TemporaryDirectory() as folder:
        truth = plant(kind, strength, seed, Path(folder))
        analysis = analyze(Path(folder))
        return score(truth, analysis.findings, [o.analyzer for o in analysis.failed])


def run_control(name: str, seed: int) -> tuple[str, tuple[str, ...]]:
    """Findings of medium severity and above on a healthy job."""
    with tempfile.TemporaryDirectory() as folder:
        job = CONTROLS[name](seed)
        write_job(job, simulate(job), Path(folder))
        analysis = analyze(Path(folder))
        said = [f"{f.code} {f.severity.value} {f.title.en}" for f in analysis.findings if f.severity in GRADES]
        return name, (*said, *(f"FAILED {o.analyzer}" for o in analysis.failed))


def _run(task: tuple[str, Strength, int]) -> Score:
    name, strength, seed = task
    return run(next(kind for kind in ALL_KINDS if kind.name == name), strength, seed)


def _run_control(task: tuple[str, int]) -> tuple[str, tuple[str, ...]]:
    return run_control(*task)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Figures over many jobs; None where nothing could be counted."""

    jobs: int
    recall: float | None
    precision: float | None
    first: float | None
    gain: float | None
    ranks: float | None

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Totals:
        """Of some scores."""
        right, false = sum(s.right for s in scores), sum(len(s.false) for s in scores)
        found = [s for s in scores if s.is_found]
        errors = [abs(s.gain_error) for s in found if s.gain_error is not None]
        return cls(
            jobs=len(scores), recall=_mean([s.is_found for s in scores]),
            precision=right / (right + false) if right + false else None,
            first=_mean([s.place is not None and s.place <= FIRST for s in scores]),
            gain=_mean([error <= GAIN_TOLERANCE for error in errors]), ranks=_mean([s.names_ranks for s in found]),
        )  # fmt: skip


def _mean(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def evaluate(
    seeds: Sequence[int], strengths: Sequence[Strength], kinds: Sequence[str], workers: int
) -> tuple[list[Score], list[tuple[str, tuple[str, ...]]]]:
    """All scores, and what was said of the healthy jobs."""
    tasks = [(kind.name, strength, seed) for kind in ALL_KINDS for strength in strengths for seed in seeds
             if not kinds or kind.name in kinds]  # fmt: skip
    controls = [(name, seed) for name in CONTROLS for seed in seeds if not kinds or name in kinds]
    if workers <= 1:
        return [_run(task) for task in tasks], [_run_control(task) for task in controls]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_run, tasks, chunksize=4)), list(pool.map(_run_control, controls))


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.0%}"


def _exact(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"


def table(scores: Sequence[Score], *, is_markdown: bool) -> list[str]:
    """One line per kind."""
    header = ("kind", "rows", "weak", "medium", "strong", "precision", "first 3", "gain error", "ranks")
    rows: list[tuple[str, ...]] = []
    for kind in ALL_KINDS:
        own = [s for s in scores if s.truth.kind == kind.name]
        if not own:
            continue
        totals = Totals.of(own)
        errors = [s.gain_error for s in own if s.gain_error is not None]
        rows.append((
            kind.name, " ".join(sorted(kind.codes)),
            *(_percent(Totals.of([s for s in own if s.truth.strength == strength]).recall) for strength in STRENGTHS),
            _percent(totals.precision), _percent(totals.first),
            "—" if not errors else f"{statistics.median(errors):+.0%}",
            _percent(totals.ranks),
        ))  # fmt: skip
    if is_markdown:
        return [
            f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)
        ]  # fmt: skip
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]


def summary(scores: Sequence[Score], controls: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, str, str]]:
    """Figure, what was asked, what was reached."""
    some = [s for s in scores if s.truth.strength != "weak"]
    weak = [s for s in scores if s.truth.strength == "weak"]
    noisy = [name for name, said in controls if said]
    every = Totals.of(scores)
    return [
        ("recall at medium and strong", "95 %", _exact(Totals.of(some).recall)),
        ("recall at weak", "80 %", _exact(Totals.of(weak).recall)),
        ("precision, medium severity and above", "95 %", _exact(every.precision)),
        ("planted cause among the first three findings", "95 %", _exact(every.first)),
        ("predicted bound within 20 % of the planted time", "90 %", _exact(every.gain)),
        ("ranks of the cause named exactly", "—", _exact(every.ranks)),
        ("healthy jobs with a finding of medium severity or above", "0", f"{len(noisy)} of {len(controls)}"),
    ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=1, help="jobs per kind and strength; from the second on their sizes differ"
    )
    parser.add_argument("--quick", action="store_true", help="medium strength only")
    parser.add_argument("--kind", action="append", default=[], help="only this kind or control (repeatable)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--markdown", type=Path, help="write the results into this page")
    parser.add_argument("--json", type=Path, help="write all scores")
    parser.add_argument("--write", type=Path, help="write the jobs and their truth below this folder, and stop")
    parser.add_argument("--advisor", type=Path, help="command of an installed msprof-analyze: its advisor beside ours")
    parser.add_argument("--real", action="store_true", help="plant into the recorded jobs of ASCEND_PERF_TRACES")
    parser.add_argument("--verbose", action="store_true", help="list misses, false findings and large errors")
    args = parser.parse_args()
    strengths: list[Strength] = ["medium"] if args.quick else list(STRENGTHS)
    if args.write is not None:
        _write_all(args.write, strengths, args.kind)
        return 0
    if args.real and args.markdown is None:
        return _real(strengths, args)
    scores, controls = evaluate(range(1, args.seeds + 1), strengths, args.kind, args.workers)
    print("\n".join(table(scores, is_markdown=False)))
    print()
    for name, asked, reached in summary(scores, controls):
        print(f"{name}: {reached} (asked: {asked})")
    if args.verbose:
        print("\n".join(details(scores, controls)))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(s) for s in scores], indent=1))
    from tests.faults.page import beside, page

    advisor = ""
    if args.advisor is not None:
        from tests.faults.advisor import advices

        planted, healthy = advices(args.advisor, strengths, args.kind, args.workers)
        advisor = beside(scores, controls, planted, healthy)
        print(f"\n{advisor}")
    if args.markdown is not None:
        real = ""
        if args.real:
            from tests.faults.real import evaluate_real
            from tests.faults.real_page import planted_into_real

            real = planted_into_real(evaluate_real(strengths, (), args.workers))
        args.markdown.write_text(page(scores, controls, advisor, real))
    return 0


def _real(strengths: Sequence[Strength], args: argparse.Namespace) -> int:
    from tests.faults.real import evaluate_real
    from tests.faults.real_page import real_details, real_summary, real_table

    scores = evaluate_real(strengths, args.kind, args.workers)
    print("\n".join(real_table(scores, is_markdown=False)))
    print()
    for name, asked, reached in real_summary(scores):
        print(f"{name}: {reached} (asked: {asked})")
    if args.verbose:
        print("\n".join(real_details(scores)))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(s) for s in scores], indent=1))
    return 0


def details(scores: Sequence[Score], controls: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """What went wrong, one line each."""
    lines = []
    for s in scores:
        name = f"{s.truth.kind}/{s.truth.strength}"
        if not s.is_found:
            lines.append(f"MISS  {name}: expected {' or '.join(s.truth.codes)}")
        elif s.place is not None and s.place > FIRST:
            lines.append(f"LATE  {name}: place {s.place}")
        if s.gain_error is not None and abs(s.gain_error) > GAIN_TOLERANCE:
            planted = (s.truth.planted_ns or 0) / s.truth.step_ns
            lines.append(f"GAIN  {name}: {s.gain_error:+.0%} (planted {planted:.1%} of the step)")
        if s.is_found and not s.names_ranks:
            lines.append(f"RANKS {name}: expected {s.truth.ranks}")
        lines += [f"FALSE {name}: {text}" for text in s.false]
        lines += [f"FAILED {name}: {text}" for text in s.failed]
    lines += [f"NOISE {name}: {text}" for name, said in controls for text in said]
    return lines


def _write_all(folder: Path, strengths: Sequence[Strength], kinds: Sequence[str]) -> None:
    for kind in ALL_KINDS:
        if kinds and kind.name not in kinds:
            continue
        for strength in strengths:
            place = folder / f"{kind.name}-{strength}"
            truth = plant(kind, strength, 1, place)
            (place / "truth.json").write_text(json.dumps(asdict(truth), indent=1))


if __name__ == "__main__":
    sys.exit(main())
