"""What ascend-perf itself says, as slices: findings where they lie, and the critical path of each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ascend_perf.analyzers._path_build import rank_path
from ascend_perf.analyzers._path_elements import KINDS
from ascend_perf.analyzers._path_walk import paths_of
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers.critical_path import MAX_STEPS, NAME
from ascend_perf.model.finding import Finding, Words
from ascend_perf.model.table import Text
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.exports._pieces import float_member, int_member, longest, text_member
from ascend_perf.reports.exports._slices import Layer, Plan
from ascend_perf.reports.phrases import spoken
from ascend_perf.reports.texts import Lang, said

Windows = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """A finding in one language, as texts of one line or a few."""

    number: int
    code: str
    severity: str
    title: str
    ranks: tuple[int, ...]
    affected_ranks: tuple[int, ...]
    share_ratio: float | None
    bound_speedup: float | None
    cause: str
    remedy: str


def finding_texts(request: Request) -> list[FindingText]:
    """The findings of the report, in its order and with its numbers."""
    return [_text(number, finding, request.lang) for number, finding in enumerate(request.findings, 1)]


def _text(number: int, finding: Finding, lang: Lang) -> FindingText:
    remedies = [said(r.text, lang) + (f"\n{r.code}" if r.code else "") for r in finding.remedies]
    return FindingText(
        number=number, code=finding.code, severity=finding.severity.value, title=said(finding.title, lang),
        ranks=finding.ranks, affected_ranks=finding.affected_ranks, share_ratio=finding.share_ratio,
        bound_speedup=finding.bound_speedup, cause=said(finding.cause, lang), remedy="\n".join(remedies),
    )  # fmt: skip


def finding_windows(request: Request, place: int) -> Iterator[tuple[int, Windows]]:
    """Place of each finding that lies on one trace (by its place in the run), and its windows on the trace's clock.

    Those that the report marks: of a rank's finding the rank's own, of the job's the job's on each rank that it is
    about. Without marks the intervals that the finding claims.
    """
    rank = request.run.traces[place].meta.rank
    known = {trace.meta.rank for trace in request.run.traces}
    same: dict[tuple[str, str], list[tuple[int | None, Finding]]] = {}
    for outcome in request.outcomes:
        for found in outcome.findings if outcome.scope == "rank" else ():
            same.setdefault((found.code, found.subject), []).append((outcome.trace_index, found))
    for number, finding in enumerate(request.findings):
        of_ranks = same.get((finding.code, finding.subject))
        if of_ranks:
            mine = [found for index, found in of_ranks if index == place]
        else:
            about = [r for r in (*finding.affected_ranks, *finding.ranks) if r in known]
            mine = [finding] if rank in about or (not about and place == 0) else []
        windows = [window for found in mine for window in found.bands]
        if not windows:
            claims = [c.where for found in mine for c in found.claims if c.rank == rank]
            windows = [pair for w in claims for pair in zip(w.starts.tolist(), w.ends.tolist(), strict=True)]
        if windows:
            yield number, sorted(set(windows))


def draw_findings(plan: Plan, request: Request, place: int) -> None:
    """The findings of one trace, each with its code, title, share of the step, cause and remedies."""
    texts = finding_texts(request)
    marks = [(n, start, end) for n, windows in finding_windows(request, place) for start, end in windows]
    if not marks:
        return
    number, starts, ends = (np.array(column, np.int64) for column in zip(*marks, strict=True))
    rows = plan.usable("findings", starts, ends)
    if not len(rows):
        return
    codes = number.astype(np.int32)
    columns = {
        "code": [t.code for t in texts], "severity": [t.severity for t in texts], "title": [t.title for t in texts],
        "cause": [t.cause for t in texts], "remedy": [t.remedy for t in texts],
    }  # fmt: skip
    shares = np.array([np.nan if t.share_ratio is None else t.share_ratio for t in texts])
    bounds = np.array([np.nan if t.bound_speedup is None else t.bound_speedup for t in texts])
    members = [int_member("finding", number + 1)]
    members += [text_member(key, Text(codes, values)) for key, values in columns.items()]
    members += [float_member("share_ratio", shares[number]), float_member("bound_speedup", bounds[number])]
    track = plan.track("findings", lambda: Words("ascend-perf findings", "ascend-perf 问题"))
    plan.layers.append(
        Layer(
            name="findings", category="finding", rows=rows, starts=starts[rows] - plan.shift_ns,
            ends=ends[rows] - plan.shift_ns, track=np.full(len(rows), track, np.int64),
            label=Text(codes, [f"{t.number}. [{t.code}] {t.title}" for t in texts]), members=members,
            row_bytes=sum(longest(values) for values in columns.values()) * 2, lane=np.zeros(len(rows), np.int64),
        )
    )  # fmt: skip


def draw_path(plan: Plan, request: Request, place: int) -> None:
    """The critical path of each step, where the analyzer found one: an unbroken chain from the step's start to its end.

    As the analyzer does, at most `MAX_STEPS` steps are followed.
    """
    done = any(o.analyzer == NAME and o.trace_index == place and o.status == "done" for o in request.outcomes)
    if not done:
        return
    trace = request.run.traces[place]
    windows = step_windows(trace)
    path = rank_path(trace)
    which = np.unique(np.linspace(0, len(windows) - 1, min(len(windows), MAX_STEPS)).astype(np.int64)).tolist()
    pieces = paths_of(path, windows, which)
    starts = np.concatenate([piece.starts for piece in pieces])
    ends = np.concatenate([piece.ends for piece in pieces])
    element = np.concatenate([piece.element for piece in pieces])
    rows = plan.usable("critical path", starts, ends)
    if not len(rows):
        return
    elements = path.elements
    kinds = [spoken(KINDS[code].value, plan.lang) for code in elements.kinds]
    names = [f"{kind}: {name}" if name else kind for kind, name in zip(kinds, elements.names, strict=True)]
    codes = element.astype(np.int32)
    track = plan.track("path", lambda: Words("critical path", "关键路径"))
    plan.layers.append(
        Layer(
            name="critical_path", category="critical_path", rows=rows, starts=starts[rows] - plan.shift_ns,
            ends=ends[rows] - plan.shift_ns, track=np.full(len(rows), track, np.int64), label=Text(codes, names),
            members=[text_member("kind", Text(codes, kinds)),
                     text_member("class", Text(codes, elements.classes).relabel(lambda word: word or None))],
            row_bytes=200, lane=np.zeros(len(rows), np.int64),
        )
    )  # fmt: skip
