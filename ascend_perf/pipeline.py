"""From input to report, one function per arrow: `load` (files to traces), `analyze` (traces to findings), `report`.

This is also the public Python API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.errors import InputError, UsageError
from ascend_perf.findings import all_findings
from ascend_perf.model.finding import Finding, Metric, Outcome, Words
from ascend_perf.model.run import Manifest, Run, ordered
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS, STEPS
from ascend_perf.model.trace import Source, Trace
from ascend_perf.units import format_bound

if TYPE_CHECKING:
    import pandas as pd

    from ascend_perf.analyzers._rules_file import Rules
    from ascend_perf.analyzers._thresholds import Override
    from ascend_perf.parsers._source import Unit

MAX_WORLD: Final = 1 << 20
"""A job has no more ranks than this. Status: assumed."""

FORMATS: Final = ("html", "json", "md")
"""What `report` can write."""

Lang = Literal["en", "zh"]
Progress = Callable[[str], None]


def _silent(_: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the analyzers said of a run: outcomes in the order of the report, findings merged over ranks and ranked."""

    run: Run
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    metrics: tuple[Metric, ...] = ()
    overrides: tuple[Override, ...] = ()
    """Thresholds for which the user stated other values."""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Analyzers that crashed; the others' results stand."""
        return tuple(o for o in self.outcomes if o.status == "failed")

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the analyzers that `only` left out: their rows are not judged."""
        return tuple(o.analyzer for o in self.outcomes if o.status == "left_out")

    def table(self, name: str, rank: int | None = None) -> pd.DataFrame:
        """A result table by name (of a rank, or of the first that has it) as a DataFrame.

        Raises:
            KeyError: no analyzer made such a table.
        """
        import pandas as pd

        for outcome in self.outcomes:
            if rank is not None and outcome.rank != rank:
                continue
            for table in outcome.tables:
                if table.name == name:
                    frame: pd.DataFrame = pd.DataFrame(
                        {c.name: list(d) for c, d in zip(table.columns, table.data, strict=True)}
                    )
                    return frame
        known = sorted({table.name for outcome in self.outcomes for table in outcome.tables})
        raise KeyError(f"no result table {name!r}; there are {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """Where the report lies, and what it says in a few lines."""

    analysis: Analysis
    paths: dict[str, Path] = field(default_factory=dict)
    summary: str = ""


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
    from ascend_perf.parsers._parallel import jobs_of, parse_units, workers_for
    from ascend_perf.parsers.discover import broken_parsers, find_units, parsers

    jobs = jobs_of(jobs)

    given = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    paths = list({p.resolve(): p for p in reversed(given)}.values())[::-1]
    if not paths:
        raise UsageError("no path given")
    traces: list[Trace] = []
    skipped: list[Source] = []
    errors: list[InputError] = []
    known = parsers()
    manifest: Manifest | None = None
    for root in paths:
        units, problems = find_units(root)
        skipped += problems
        manifest = manifest or _manifest_of(root)
        outcomes = parse_units(units, known, workers=workers_for(units, jobs), progress=progress)
        for unit, outcome in zip(units, outcomes, strict=True):
            label = unit.label if len(paths) == 1 else f"{root.name}/{unit.label}"
            if not isinstance(outcome, InputError) and not any(_has_rows(trace) for trace in outcome):
                outcome = InputError(
                    f"{unit.label} holds no rows: every table in it is empty",
                    hint="the profile was not recorded, or not exported to its end",
                )
            if isinstance(outcome, InputError):
                skipped.append(Source(path=label, format=unit.parser, problem=_without_folder(outcome.what, unit)))
                errors.append(outcome)
            else:
                traces += [_labelled(trace, label) for trace in outcome]
    if not traces:
        raise errors[0]
    origins = {trace.meta.data_origin for trace in traces}
    if manifest is not None and manifest.data_origin == "simulated" and origins == {"measured"}:
        traces = [t.replace(meta=replace(t.meta, data_origin="simulated")) for t in traces]
    return Run(
        traces=ordered(traces), label=", ".join(p.name or str(p) for p in paths), manifest=manifest,
        skipped=tuple(skipped), broken_readers=broken_parsers(),
    )  # fmt: skip


def _without_folder(text: str, unit: Unit) -> str:
    """A reader's message without the place of the file: reports do not tell where it lies."""
    text = text.removeprefix(f"{unit.label}: ")
    for path in unit.files:
        text = text.replace(str(path), path.name)
    return text


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
    unknown = sum(trace.meta.rank is None for trace in run.traces)
    if unknown and len(run.traces) > 1:
        said.append(f"{unknown} of {len(run.traces)} traces do not tell their rank and are not compared")
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


def _has_rows(trace: Trace) -> bool:
    return any(len(table) for table in trace.tables.values())


def _labelled(trace: Trace, label: str) -> Trace:
    return trace if trace.meta.label else trace.replace(meta=replace(trace.meta, label=label))


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
    traces = list(run.traces)
    if ranks:
        there = [r for r in run.ranks if r is not None]
        absent = [r for r in ranks if r not in there]
        if absent:
            raise UsageError(
                f"rank {absent[0]} is not in the data; it has {', '.join(map(str, there)) or 'no rank numbers'}"
            )
        traces = [trace for trace in traces if trace.meta.rank in set(ranks)]
    if steps:
        seen = sorted({int(s) for trace in traces for s in trace[STEPS].ints("step_id") if s != NULL})
        absent = [s for s in steps if s not in seen]
        if absent:
            raise UsageError(
                f"step {absent[0]} is not in the data; it has {', '.join(map(str, seen)) or 'no step numbers'}"
            )
        traces = [_only_steps(trace, set(steps)) for trace in traces]
    return replace(run, traces=tuple(traces))


def _only_steps(trace: Trace, wanted: set[int]) -> Trace:
    import numpy as np

    from ascend_perf.model.tables import EXPORTED_STEPS

    tables = {}
    for spec in (STEPS, KERNELS, COMM_OPS, COPIES, EXPORTED_STEPS):
        table = trace[spec]
        if len(table) and table.has("step_id"):
            keep = np.isin(table.ints("step_id"), list(wanted))
            tables[spec.name] = table.select(keep)
            if spec is COMM_OPS and not keep.all():
                tables["comm_tasks"] = _follow(trace, keep)
    return trace.replace(tables=tables)


def _follow(trace: Trace, mask: Bools) -> Table:
    """Sub-tasks of the kept communication ops, with their row numbers adjusted."""
    import numpy as np

    from ascend_perf.model.tables import COMM_TASKS

    number = np.cumsum(mask) - 1
    tasks = trace[COMM_TASKS]
    rows = tasks.ints("comm_op")
    keep = mask[rows] if len(rows) else np.zeros(0, bool)
    return tasks.select(keep).with_columns({"comm_op": number[rows[keep]].astype(np.int64)})


def analyze(
    run: Run | str | Path, *, only: Sequence[str] = (), rules: Rules | None = None, progress: Progress = _silent
) -> Analysis:
    """The outcomes of all analyzers on a run (or on what lies at a path).

    Args:
        run: traces, or where they lie.
        only: names of the analyzers to run; the others are left out, and their rows are not judged. Empty: all.
        rules: other values for thresholds of the troubleshooting table, as a YAML file or as a mapping
            `{"C-14": {"min_share_ratio": 0.08}}`. They hold for this call.
        progress: told what is being done.

    Raises:
        UsageError: no analyzer has a name of `only`, or `rules` are wrong.
        InputError: a path was given and nothing at it can be read.
    """
    from ascend_perf.analyzers._choice import choice_of
    from ascend_perf.analyzers._thresholds import overridden
    from ascend_perf.plugins import load_analyzers

    choice = choice_of(only, rules)
    if not isinstance(run, Run):
        run = load(run, progress=progress)
    found = load_analyzers()
    outcomes: list[Outcome] = []
    with overridden(choice.overrides):
        for name, part in found.parts.items():
            if not choice.takes(name):
                outcomes.append(choice.left_out(part))
                continue
            progress(f"analyzing: {name}")
            if part.scope == "job":
                outcomes.append(part.run_on_run(run))
            else:
                outcomes += [replace(part.run_on_trace(t), trace_index=index) for index, t in enumerate(run.traces)]
    for name, why in found.broken.items():
        outcomes.append(Outcome(analyzer=name, status="failed", reason=Words(why, why), scope="job"))
    findings = all_findings(outcomes)
    metrics = tuple(m for o in outcomes for m in o.metrics) + (run.manifest.metrics if run.manifest else ())
    return Analysis(
        run=run, outcomes=tuple(outcomes), findings=findings, metrics=metrics, overrides=choice.overrides
    )  # fmt: skip


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
) -> ReportResult:
    """Load, analyze and write a report into the folder `out`. `jobs` as in `load`, `only` and `rules` as in `analyze`.

    Raises:
        UsageError: `out` is no folder or holds a report already and `force` is not given; unknown format or rank;
            `only` or `rules` are wrong.
        InputError: nothing can be read.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"unknown report format {', '.join(unknown) or '(none)'}; there are {', '.join(FORMATS)}")
    targets = {name: out / f"report.{name}" for name in FORMATS if name in formats}
    if _is_there(out) and not out.is_dir():
        raise UsageError(f"{out} is a file, expected a folder for the report", hint="choose another -o")
    taken = [path for path in targets.values() if _is_there(path)]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists", hint="add --force to overwrite it, or choose another folder with -o")
    from ascend_perf.analyzers._choice import choice_of

    choice_of(only, rules)  # what is wrong is said before anything is read
    run = paths if isinstance(paths, Run) else load(list(paths), progress=progress, jobs=jobs)
    analysis = analyze(select(run, ranks=ranks, steps=steps), only=only, rules=rules, progress=progress)
    return ReportResult(
        analysis=analysis, paths=write(analysis, targets, lang=lang, progress=progress), summary=summary(analysis, lang)
    )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror or error}", hint="choose another -o")


def write(
    analysis: Analysis, targets: dict[str, Path], *, lang: Lang = "en", progress: Progress = _silent
) -> dict[str, Path]:
    """Write the report in each format of `targets` (format to path) and return what was written."""
    from ascend_perf.analyzers._rules import rule, rule_codes
    from ascend_perf.reports.payload import build

    rules = {code: rule(code).title for code in rule_codes()}
    payload = build(
        analysis.run, analysis.outcomes, analysis.findings, lang=lang, rules=rules, overrides=analysis.overrides
    )  # fmt: skip
    for name, path in targets.items():
        progress(f"writing {path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "json":
                from ascend_perf.reports.json_report import write_json

                write_json(payload, path)
            elif name == "md":
                from ascend_perf.reports.markdown import write_markdown

                write_markdown(payload, path)
            else:
                from ascend_perf.reports.html import write_html

                write_html(payload, path)
        except OSError as error:
            raise _not_writable(path, error) from None
    return targets


def summary(analysis: Analysis, lang: Lang = "en", count: int = 3) -> str:
    """The top findings in a few lines of plain text, for the terminal."""
    lines = []
    for number, finding in enumerate(analysis.findings[:count], 1):
        title = finding.title.zh if lang == "zh" else finding.title.en
        bound = finding.bound_speedup
        most = (
            ""
            if bound is None
            else (f"（理论上限 {format_bound(bound)} 倍）" if lang == "zh" else f" (at most {format_bound(bound)}x)")
        )
        lines.append(f"  {number}. [{finding.code}] {title}{most}")
    if not lines:
        judged = sum(1 for o in analysis.outcomes if o.status == "done")
        lines.append(
            f"  {judged} 个分析项未发现问题；无法判断的项见报告。" if lang == "zh"
            else f"  no finding from {judged} analyses; the report lists what could not be judged"
        )  # fmt: skip
    for outcome in analysis.failed:
        lines.append(f"  ! {outcome.analyzer} failed: {outcome.reason.en if outcome.reason else ''}")
    return "\n".join(lines)
