"""Find parts: our own by scan of their folder, others by entry point. A part that fails to import is an outcome."""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Final, Generic, Literal, TypeVar

from ascend_perf.model.finding import Judged, Outcome, Result, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import TableSpec
from ascend_perf.model.trace import Trace

_T = TypeVar("_T")

_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^/\s'\"()]+/)+")

Reads = Mapping[str, frozenset[str]]
"""Columns by name of their table."""


def columns_of(*specs: TableSpec) -> dict[str, frozenset[str]]:
    """All columns of some tables, as a job analyzer's `reads`."""
    return {spec.name: frozenset(column.name for column in spec.columns) for spec in specs}


MODELLED: Final = Words(
    "the data are simulated and counters, rates and times on the device are modelled: they tell what the cost model "
    "assumes, not how well the program uses a device",
    "数据为仿真结果，计数器、速率和设备耗时均为建模值：只反映代价模型的假设，不反映程序对设备的利用情况",
)
"""Why a row that needs measured data is not judged on simulated ones."""


@dataclass(frozen=True, kw_only=True)
class Analyzer:
    """A named pure function from a trace (or a run, scope "job") to a `Result`, and the tables it needs.

    `section` is the section of the report for what it says (reports/sections.py), `order` its place there. A rank
    analyzer runs once per trace, a job analyzer once per run.
    """

    name: str
    needs: tuple[TableSpec, ...]
    scope: Literal["rank", "job"]
    order: int
    section: str = "more"
    on_trace: Callable[[Trace], Result] | None = None
    on_run: Callable[[Run], Result] | None = None
    reads: Reads | None = None
    """Of a job analyzer: the columns that it reads, by table. None: any, so the traces of all ranks are kept whole."""
    needs_measured: frozenset[str] = frozenset()
    """Rows that rest on counters, rates or times that simulated data have from a cost model: they are not judged there.
    `C-05/pipe` is the findings of that row with that subject alone. Tables and metrics stay: the report says of each
    page that they are simulated."""

    def run_on_trace(self, trace: Trace) -> Outcome:
        """The outcome on one rank; never raises, and never reports missing tables as a clean bill."""
        assert self.on_trace is not None
        on_trace = self.on_trace
        if absent := trace.absent(self.needs):
            return _no_data(self.name, ", ".join(absent), trace.meta.rank, "rank")
        outcome = _guarded(self.name, lambda: on_trace(trace), trace.meta.rank, "rank")
        return self._believable(outcome, trace.meta.data_origin == "simulated")

    def run_on_run(self, run: Run) -> Outcome:
        """The outcome on the whole job; a table is there when any rank has it."""
        assert self.on_run is not None
        on_run = self.on_run
        absent = [spec.name for spec in self.needs if not any(trace.has(spec) for trace in run.traces)]
        if absent:
            return _no_data(self.name, ", ".join(absent), None, "job")
        outcome = _guarded(self.name, lambda: on_run(run), None, "job")
        return self._believable(outcome, any(trace.meta.data_origin == "simulated" for trace in run.traces))

    def _believable(self, outcome: Outcome, is_simulated: bool) -> Outcome:
        """The outcome without what simulated data cannot tell; those rows are not judged, and say why."""
        if not is_simulated or not self.needs_measured:
            return outcome
        kept = tuple(
            found for found in outcome.findings
            if self.needs_measured.isdisjoint({found.code, f"{found.code}/{found.subject}"})
        )  # fmt: skip
        left = {found.code for found in kept}
        # A row of which a part is left has its own reason where it could not be judged; of a whole row another reason
        # (a counter that was not collected) would send the user to collect what is modelled as well.
        parts = {row.split("/")[0] for row in self.needs_measured if "/" in row}
        judged = tuple(
            Judged(code=one.code, verdict="not_judged", reason=MODELLED)
            if one.code not in left and (
                one.code in self.needs_measured or (one.code in parts and one.verdict != "not_judged")
            ) else one
            for one in outcome.judged
        )  # fmt: skip
        told = left | {one.code for one in judged}
        lost = dict.fromkeys(found.code for found in outcome.findings if found.code not in told)
        unsaid = (Judged(code=code, verdict="not_judged", reason=MODELLED) for code in lost)
        return replace(outcome, findings=kept, judged=(*judged, *unsaid))


class NoData(Exception):
    """Raised by an analyzer that finds out late that the trace does not hold what it needs."""

    def __init__(self, reason: Words) -> None:
        super().__init__(reason.en)
        self.reason = reason


def _no_data(name: str, tables: str, rank: int | None, scope: Literal["rank", "job"]) -> Outcome:
    reason = Words(f"not in this data: {tables}", f"数据中没有：{tables}")
    return Outcome(analyzer=name, status="no_data", rank=rank, reason=reason, scope=scope)


def _guarded(name: str, call: Callable[[], Result], rank: int | None, scope: Literal["rank", "job"]) -> Outcome:
    try:
        result = call()
    except NoData as error:
        return Outcome(analyzer=name, status="no_data", rank=rank, reason=error.reason, scope=scope)
    except Exception as error:  # one broken analyzer must not hide the others
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        text = f"{type(error).__name__}: {error} ({at})"
        return Outcome(analyzer=name, status="failed", rank=rank, reason=Words(text, text), scope=scope)
    return Outcome(
        analyzer=name,
        status="done",
        rank=rank,
        findings=result.findings,
        metrics=result.metrics,
        tables=result.tables,
        judged=result.judged,
        held_up=result.held_up,
        scope=scope,
    )


def analyzer(
    *, name: str, needs: Sequence[TableSpec], order: int, section: str = "more", needs_measured: Sequence[str] = ()
) -> Callable[[Callable[[Trace], Result]], Analyzer]:
    """Turn a function of one trace into an `Analyzer`.

    Name in `needs_measured` the rows that it must not judge from simulated data (see `Analyzer.needs_measured`).
    """

    def wrap(function: Callable[[Trace], Result]) -> Analyzer:
        return Analyzer(
            name=name, needs=tuple(needs), scope="rank", order=order, section=section, on_trace=function,
            needs_measured=frozenset(needs_measured),
        )  # fmt: skip

    return wrap


def job_analyzer(
    *, name: str, needs: Sequence[TableSpec], order: int, section: str = "more", reads: Reads | None = None,
    needs_measured: Sequence[str] = (),
) -> Callable[[Callable[[Run], Result]], Analyzer]:  # fmt: skip
    """Turn a function of the whole run into an `Analyzer`.

    Say in `reads` what it reads of each rank: of a large job only that is kept. To read another column is an error
    then; without `reads` the traces stay whole. `needs_measured` as in `analyzer`; one simulated rank is enough.
    """

    def wrap(function: Callable[[Run], Result]) -> Analyzer:
        return Analyzer(
            name=name, needs=tuple(needs), scope="job", order=order, section=section, on_run=function, reads=reads,
            needs_measured=frozenset(needs_measured),
        )  # fmt: skip

    return wrap


def _why(error: Exception) -> str:
    """What an import failed of, without the folders of this machine: it stands in reports."""
    return f"{type(error).__name__}: {_FOLDERS.sub('', str(error))}"


@dataclass(frozen=True, kw_only=True)
class Found(Generic[_T]):
    """Parts by name, and the modules or entry points that could not be imported with the reason."""

    parts: dict[str, _T]
    broken: dict[str, str]


@cache
def _installed(part: str) -> EntryPoints:
    """Entry points of a part: looked for once, since that reads a file of each package."""
    return entry_points(group=f"ascend_perf.{part}")


def load_parts(part: str, kind: type[_T], name_of: Callable[[_T], str]) -> Found[_T]:
    """Every instance of `kind` at module level of `ascend_perf.<part>`, then of the entry points of that part.

    Raises:
        ValueError: two parts of our own share a name.
    """
    package = importlib.import_module(f"ascend_perf.{part}")
    parts: dict[str, _T] = {}
    broken: dict[str, str] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        if info.name.startswith("_"):
            continue
        try:
            module = importlib.import_module(f"{package.__name__}.{info.name}")
        except Exception as error:  # a part that cannot be imported is reported, the others work
            broken[info.name] = _why(error)
            continue
        for value in vars(module).values():
            if isinstance(value, kind):
                known = parts.setdefault(name_of(value), value)
                if known is not value:
                    raise ValueError(f"two {part} are named {name_of(value)!r}")
    for point in sorted(_installed(part), key=lambda p: p.name):
        try:
            value = point.load()
        except Exception as error:  # see above
            broken[point.name] = _why(error)
            continue
        if not isinstance(value, kind):
            broken[point.name] = f"is a {type(value).__name__}, not a {kind.__name__}"
        elif name_of(value) in parts:
            broken[point.name] = f"the name {name_of(value)!r} is taken"
        else:
            parts[name_of(value)] = value
    return Found(parts=parts, broken=broken)


def load_analyzers() -> Found[Analyzer]:
    """Every analyzer by name, in the order of the report."""
    found = load_parts("analyzers", Analyzer, lambda part: part.name)
    ordered = dict(sorted(found.parts.items(), key=lambda item: (item[1].order, item[0])))
    return Found(parts=ordered, broken=found.broken)
