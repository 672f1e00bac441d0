"""From input to report, one function per arrow: `load` (files to traces), `analyze` (traces to findings), `report`.

This is also the public Python API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ascend_perf.analysis import FORMATS as FORMATS
from ascend_perf.analysis import Analysis as Analysis
from ascend_perf.analysis import Lang
from ascend_perf.analysis import summary as summary
from ascend_perf.analysis import write as write
from ascend_perf.analysis import write_rank_pages as write_rank_pages
from ascend_perf.errors import InputError, UsageError, not_writable
from ascend_perf.findings import all_findings
from ascend_perf.model.finding import Outcome, Words
from ascend_perf.model.once import sharing
from ascend_perf.model.run import Manifest, Run, ordered
from ascend_perf.model.tables import BESIDE
from ascend_perf.model.trace import Meta, Source, Trace

if TYPE_CHECKING:

    from ascend_perf.analyzers._choice import Choice
    from ascend_perf.analyzers._rules_file import Rules
    from ascend_perf.parsers._source import Unit
    from ascend_perf.reports.payload import RankSummary

MAX_WORLD: Final = 1 << 20
"""A job has no more ranks than this. Status: assumed."""

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """Where the report lies, and what it says in a few lines."""

    analysis: Analysis
    paths: dict[str, Path] = field(default_factory=dict)
    summary: str = ""
    rank_pages: tuple[Path, ...] = ()
    """Pages of single ranks, where they were asked for."""


def load(path: str | Path | Sequence[str | Path], *, progress: Progress = _silent, jobs: int | None = None) -> Run:
    """Every rank found at a path (a file, a profile's directory, or a folder of many), or at several paths.

    Files that cannot be used are listed in `Run.skipped`; the others are read.

    Args:
        path: where to look.
        progress: told what is being read.
        jobs: processes that read; 1 reads in this one. None: `ASCEND_PERF_JOBS`, else as many as pay.

    Raises:
        InputError: a path is missing, or nothing below it can be read.
        UsageError: `jobs` is no positive number.
    """
    from ascend_perf.parsers._parallel import jobs_of

    return _load(_found(path), progress, jobs_of(jobs))


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What lies at the paths that were given."""

    label: str
    units: tuple[Unit, ...]
    labels: tuple[str, ...]
    problems: tuple[Source, ...]
    manifest: Manifest | None
    broken: Mapping[str, str]
    """Readers that could not be loaded, with the reason."""


def _found(path: str | Path | Sequence[str | Path]) -> _Found:
    from ascend_perf.parsers.discover import broken_parsers, find_units

    given = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    paths = list({p.resolve(): p for p in reversed(given)}.values())[::-1]
    if not paths:
        raise UsageError("no path given")
    units: list[Unit] = []
    labels: list[str] = []
    problems: list[Source] = []
    manifest: Manifest | None = None
    for root in paths:
        own = _manifest_of(root)
        try:
            here, unusable = find_units(root)
        except InputError:
            if own is None or not _may_lack_traces(own) or not root.is_dir():
                raise
            here, unusable = [], []
        units += here
        labels += [unit.label if len(paths) == 1 else f"{root.name}/{unit.label}" for unit in here]
        problems += unusable
        manifest = manifest or own
    return _Found(
        label=", ".join(p.name or str(p) for p in paths), units=tuple(units), labels=tuple(labels),
        problems=tuple(problems), manifest=manifest, broken=broken_parsers(),
    )  # fmt: skip


def _load(found: _Found, progress: Progress, jobs: int | None) -> Run:
    from ascend_perf import by_rank
    from ascend_perf.parsers._parallel import parse_units, workers_for
    from ascend_perf.parsers._with_series import joined
    from ascend_perf.parsers.discover import parsers

    traces: list[Trace] = []
    skipped = list(found.problems)
    errors: list[InputError] = []
    outcomes = parse_units(found.units, parsers(), workers=workers_for(found.units, jobs), progress=progress)
    for unit, label, parsed in zip(found.units, found.labels, outcomes, strict=True):
        outcome = by_rank.traces_of(unit, parsed, label)
        if isinstance(outcome, InputError):
            skipped.append(by_rank.skipped(unit, label, outcome))
            errors.append(outcome)
        else:
            traces += outcome
    if not traces:
        return _without_traces(found, skipped, errors)
    return _run(found, joined(traces), skipped)


def _may_lack_traces(manifest: Manifest) -> bool:
    """Whether a run ended before it left a trace, or had none to leave: that of a virtual NPU with a modelled clock."""
    return manifest.status != "complete" or (manifest.data_origin == "simulated" and not manifest.files.get("trace"))


def _without_traces(found: _Found, skipped: Sequence[Source], errors: Sequence[InputError]) -> Run:
    """The run of ours that left no trace: one trace without tables, so that the report says why.

    Raises:
        InputError: it is no such run.
    """
    if found.manifest is None or not _may_lack_traces(found.manifest):
        raise errors[0]
    return _run(found, [Trace(meta=Meta(label=found.label))], skipped)


def _run(found: _Found, traces: Sequence[Trace], skipped: Sequence[Source]) -> Run:
    """The run of these traces, which are all simulated where the manifest says so; what a reader must know of the run
    is among the warnings of the first."""
    if found.manifest is not None and traces:
        first, *others = traces
        told = _told(found.manifest)
        traces = [first.replace(meta=replace(first.meta, warnings=(*told, *first.meta.warnings))), *others]
        traces = [_with_facts_of(trace, found.manifest) for trace in traces]
    origins = {trace.meta.data_origin for trace in traces}
    if found.manifest is not None and found.manifest.data_origin == "simulated" and origins == {"measured"}:
        traces = [t.replace(meta=replace(t.meta, data_origin="simulated")) for t in traces]
    return Run(
        traces=ordered(traces), label=found.label, manifest=found.manifest, skipped=tuple(skipped),
        broken_readers=found.broken,
    )  # fmt: skip


def _with_facts_of(trace: Trace, manifest: Manifest) -> Trace:
    """With what the manifest of a run knows and a profile does not: the size of an NPU's memory, how it measured."""
    size, device = manifest.device_facts.get("memory_bytes"), trace.meta.device
    if isinstance(size, int) and device.memory_bytes is None and device.kind != "cpu":
        device = replace(device, memory_bytes=size)
    return trace.replace(meta=replace(
        trace.meta, device=device, waits_each_step=bool(manifest.timings_ns.get("profiled"))
    ))  # fmt: skip


def _told(manifest: Manifest) -> tuple[str, ...]:
    """That a run of ours did not come to its end, and its notes."""
    if manifest.status == "complete":
        return manifest.notes
    how = "was interrupted" if manifest.status == "interrupted" else "failed"
    return (f"the run {how}: {manifest.problem or 'the reason was not recorded'}", *manifest.notes)


def notices(run: Run) -> list[str]:
    """What to know of the ranks that were read before believing a comparison of them."""
    from ascend_perf.analyzers._communication import ranks_words

    labels: dict[int, list[str]] = {}
    for trace in run.traces:
        if trace.meta.rank is not None:
            labels.setdefault(trace.meta.rank, []).append(trace.meta.label)
    said = [
        f"rank {rank} was read {len(names)} times ({', '.join(names[:4])}); comparisons of ranks use the first"
        for rank, names in labels.items()
        if len(names) > 1
    ]
    if run.manifest is not None and run.manifest.status != "complete":
        said.insert(0, _told(run.manifest)[0])
    profiles = [trace for trace in run.traces if not BESIDE.issuperset(trace.tables)]
    unknown = sum(trace.meta.rank is None for trace in profiles)
    if unknown and len(profiles) > 1:
        said.append(f"{unknown} of {len(profiles)} traces do not tell their rank and are not compared")
    said += [
        f"the reader {name} could not be loaded, its files were not recognised: {why}"
        for name, why in run.broken_readers.items()
    ]
    worlds = sorted({t.meta.world_size for t in run.traces if t.meta.world_size is not None})
    if len(worlds) > 1:
        said.append(f"the traces state different numbers of ranks ({', '.join(map(str, worlds))}): different jobs?")
    elif worlds and 1 < len(labels) < worlds[0]:
        missing = [rank for rank in range(min(worlds[0], MAX_WORLD)) if rank not in labels]
        said.append(f"{len(labels)} of {worlds[0]} ranks were read; not there: {ranks_words(missing).en}")
    return said


def _manifest_of(root: Path) -> Manifest | None:
    """The manifest of a run directory, None where there is none."""
    from ascend_perf.manifest import read_manifest

    for folder in (root, root.parent, root.parent.parent):
        candidate = folder / "manifest.json"
        if candidate.is_file():
            try:
                return read_manifest(candidate)
            except InputError:
                return None
    return None


def select(run: Run, *, ranks: Sequence[int] = (), steps: Sequence[int] = ()) -> Run:
    """The run with only some ranks and steps.

    Raises:
        UsageError: a rank or a step is not in the data.
    """
    from ascend_perf import by_rank

    traces = list(run.traces)
    if ranks:
        _check_ranks(ranks, run.ranks)
        traces = [trace for trace in traces if trace.meta.rank in set(ranks)]
    if steps:
        _check_steps(steps, [by_rank.step_ids(trace) for trace in traces])
        traces = [by_rank.only_steps(trace, set(steps)) for trace in traces]
    return replace(run, traces=tuple(traces))


def _check_ranks(wanted: Sequence[int], seen: Sequence[int | None]) -> None:
    there = [rank for rank in seen if rank is not None]
    absent = [rank for rank in wanted if rank not in there]
    if absent:
        raise UsageError(
            f"rank {absent[0]} is not in the data; it has {', '.join(map(str, there)) or 'no rank numbers'}"
        )


def _check_steps(wanted: Sequence[int], seen: Sequence[Sequence[int]]) -> None:
    there = sorted({step for steps in seen for step in steps})
    absent = [step for step in wanted if step not in there]
    if absent:
        raise UsageError(
            f"step {absent[0]} is not in the data; it has {', '.join(map(str, there)) or 'no step numbers'}"
        )


def analyze(
    run: Run | str | Path, *, only: Sequence[str] = (), rules: Rules | None = None, lang: Lang = "en",
    progress: Progress = _silent, ceilings: str | Path | None = None,
) -> Analysis:  # fmt: skip
    """The outcomes of all analyzers on a run (or on what lies at a path).

    Args:
        run: traces, or where they lie.
        only: names of the analyzers to run; the others are left out, and their rows are not judged. Empty: all.
        rules: other values for thresholds of the troubleshooting table, as a YAML file or as a mapping
            `{"C-14": {"min_share_ratio": 0.08}}`. They hold for this call.
        lang: language of what the analysis shows of itself in a notebook, of its figures and its report.
        progress: told what is being done.
        ceilings: a run directory of `micro`: the roofline shows what it measured beside the vendor's peaks.

    Raises:
        UsageError: no analyzer has a name of `only`, or `rules` are wrong.
        InputError: a path was given and nothing at it can be read.
    """
    from ascend_perf.analyzers._choice import choice_of

    choice = choice_of(only, rules, ceilings)
    if not isinstance(run, Run):
        run = load(run, progress=progress)
    return replace(_analyze(run, choice, progress), lang=lang)


def _analyze(run: Run, choice: Choice, progress: Progress) -> Analysis:
    from ascend_perf.plugins import load_analyzers

    parts = [part for name, part in load_analyzers().parts.items() if part.scope == "rank" and choice.takes(name)]
    rank_outcomes: dict[str, list[Outcome]] = {part.name: [] for part in parts}
    for index, trace in enumerate(run.traces):
        with choice.applied(), sharing():
            for part in parts:
                progress(f"analyzing: {part.name}")
                rank_outcomes[part.name].append(replace(part.run_on_trace(trace), trace_index=index))
    return _analysis(run, rank_outcomes, choice, progress)


def _analysis(
    run: Run, rank_outcomes: Mapping[str, Sequence[Outcome]], choice: Choice, progress: Progress,
    summaries: tuple[RankSummary, ...] | None = None,
) -> Analysis:  # fmt: skip
    """The analysis of a run whose ranks are analyzed: the job analyzers, all findings, all metrics."""
    from ascend_perf.plugins import load_analyzers

    found = load_analyzers()
    outcomes: list[Outcome] = []
    with choice.applied():
        for name, part in found.parts.items():
            if not choice.takes(name):
                outcomes.append(choice.left_out(part))
            elif part.scope == "job":
                progress(f"analyzing: {name}")
                outcomes.append(part.run_on_run(run))
            else:
                outcomes += rank_outcomes.get(name, (_not_loaded(name),))
    for name, why in found.broken.items():
        outcomes.append(Outcome(analyzer=name, status="failed", reason=Words(why, why), scope="job"))
    outcomes = [choice.unjudged(o) if o.status == "failed" else o for o in outcomes]
    findings = all_findings(outcomes)
    metrics = tuple(m for o in outcomes for m in o.metrics) + (run.manifest.metrics if run.manifest else ())
    return Analysis(
        run=run, outcomes=tuple(outcomes), findings=findings, metrics=metrics, summaries=summaries,
        overrides=choice.overrides,
    )  # fmt: skip


def _not_loaded(name: str) -> Outcome:
    """For an analyzer that is here but was in no process that read ranks: it could not be imported there."""
    why = Words("it could not be loaded in the processes that analyze ranks", "分析各卡的进程未能加载该分析项")
    return Outcome(analyzer=name, status="failed", reason=why)


def analyze_paths(
    paths: Sequence[str | Path],
    *,
    ranks: Sequence[int] = (),
    steps: Sequence[int] = (),
    only: Sequence[str] = (),
    rules: Rules | None = None,
    progress: Progress = _silent,
    jobs: int | None = None,
    ceilings: str | Path | None = None,
) -> Analysis:
    """The analysis of what lies at some paths, rank by rank: each is analyzed where it is read, and then cut down.

    The traces of `Analysis.run` hold what job analyzers read; to read another column of them is an error. The outcomes
    are those of `analyze(select(load(paths)))`. `jobs` as in `load`; the processes analyze too. `only`, `rules` and
    `ceilings` as in `analyze`.

    Raises:
        UsageError: a rank or a step is not in the data; `only` or `rules` are wrong.
        InputError: nothing can be read.
    """
    from ascend_perf import by_rank
    from ascend_perf.analyzers._choice import choice_of
    from ascend_perf.parsers._parallel import jobs_of

    jobs, choice = jobs_of(jobs), choice_of(only, rules, ceilings)
    found = _found(paths)
    if len(found.units) < 2:
        return _analyze(select(_load(found, progress, jobs), ranks=ranks, steps=steps), choice, progress)
    tasks = [
        by_rank.Task(unit=unit, label=label, ranks=tuple(ranks), steps=tuple(steps), choice=choice)
        for unit, label in zip(found.units, found.labels, strict=True)
    ]
    gathered = by_rank.gather(tasks, jobs=jobs, progress=progress)
    pieces = sorted(gathered.pieces, key=lambda p: (p.trace.meta.rank is None, p.trace.meta.rank or 0))
    if not pieces:
        run = _without_traces(found, [*found.problems, *gathered.skipped], gathered.errors)
        return _analyze(run, choice, progress)
    if ranks:
        _check_ranks(ranks, [piece.trace.meta.rank for piece in pieces])
        pieces = [piece for piece in pieces if piece.trace.meta.rank in set(ranks)]
    if steps:
        _check_steps(steps, [piece.steps for piece in pieces])
    traces = by_rank.shared_groups([piece.trace for piece in pieces])
    run = _run(found, traces, [*found.problems, *gathered.skipped])
    outcomes: dict[str, list[Outcome]] = {}
    for index, piece in enumerate(pieces):
        for outcome in piece.outcomes:
            outcomes.setdefault(outcome.analyzer, []).append(replace(outcome, trace_index=index))
    summaries = tuple(
        replace(piece.summary, meta=trace.meta)
        for piece, trace in zip(pieces, run.traces, strict=True)
        if piece.summary is not None
    )
    return _analysis(run, outcomes, choice, progress, summaries)


def report(
    paths: Sequence[Path] | Run,
    *,
    out: Path,
    formats: Sequence[str] = FORMATS,
    lang: Lang = "en",
    force: bool = False,
    ranks: Sequence[int] = (),
    steps: Sequence[int] = (),
    only: Sequence[str] = (),
    rules: Rules | None = None,
    progress: Progress = _silent,
    jobs: int | None = None,
    all_ranks: bool = False,
    ceilings: str | Path | None = None,
) -> ReportResult:
    """Load, analyze and write a report into the folder `out`. `jobs` as in `load`; `only`, `rules` and `ceilings` as in
    `analyze`.

    With `all_ranks` a page of each rank is written as well, `ranks/rank-00017.html`, linked with `report.html`.

    Raises:
        UsageError: `out` is no folder or holds a report already and `force` is not given; unknown format or rank;
            `only` or `rules` are wrong; `all_ranks` without the format html.
        InputError: nothing can be read.
    """
    from ascend_perf.reports import rank_pages

    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"unknown report format {', '.join(unknown) or '(none)'}; there are {', '.join(FORMATS)}")
    if all_ranks and "html" not in formats:
        raise UsageError("pages of all ranks belong to report.html", hint="add html to --format, or drop --all-ranks")
    targets = {name: out / f"report.{name}" for name in FORMATS if name in formats}
    pages = out / rank_pages.FOLDER if all_ranks else None
    if _is_there(out) and not out.is_dir():
        raise UsageError(f"{out} is a file, expected a folder for the report", hint="choose another -o")
    taken = [path for path in targets.values() if _is_there(path)]
    if pages is not None:
        if _is_there(pages) and not pages.is_dir():
            raise UsageError(f"{pages} is a file, expected a folder for the pages", hint="choose another -o")
        taken += rank_pages.pages_in(pages)
    if taken and not force:
        raise UsageError(f"{taken[0]} exists", hint="add --force to overwrite it, or choose another folder with -o")
    analysis = (
        analyze(select(paths, ranks=ranks, steps=steps), only=only, rules=rules, progress=progress, ceilings=ceilings)
        if isinstance(paths, Run)
        else analyze_paths(
            paths, ranks=ranks, steps=steps, only=only, rules=rules, progress=progress, jobs=jobs, ceilings=ceilings
        )
    )
    return ReportResult(
        analysis=analysis, paths=write(analysis, targets, lang=lang, progress=progress, has_rank_pages=all_ranks),
        summary=summary(analysis, lang),
        rank_pages=() if pages is None else write_rank_pages(analysis, pages, lang=lang, progress=progress, jobs=jobs),
    )  # fmt: skip


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise not_writable(path, error) from None
