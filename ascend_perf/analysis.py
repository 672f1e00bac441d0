"""What the analyzers said of a run, and the ways to see it: report files, figures, a notebook's cell, lines of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.errors import UsageError, not_writable
from ascend_perf.model.finding import Finding, Metric, Outcome, Words
from ascend_perf.model.run import Run
from ascend_perf.units import counted, format_bound

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd
    import plotly.graph_objects as go

    from ascend_perf.analyzers._thresholds import Override
    from ascend_perf.reports.palette import Theme
    from ascend_perf.reports.payload import Payload, RankSummary

FORMATS: Final = ("html", "json", "md")
"""What can be written."""

Lang = Literal["en", "zh"]
Progress = Callable[[str], None]


def _silent(_: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Analysis:
    """What the analyzers said of a run: outcomes in the order of the report, findings merged over ranks and ranked.

    A notebook shows it as a short view of the report; `print` writes that as text.
    """

    run: Run
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    metrics: tuple[Metric, ...] = ()
    summaries: tuple[RankSummary, ...] | None = None
    """Facts and totals per trace, where the traces do not hold all of their tables any more (`analyze_paths`)."""
    overrides: tuple[Override, ...] = ()
    """Thresholds for which the user stated other values."""
    lang: Lang = "en"
    """Language of the view, the figures and the report, unless they are asked for in another."""

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

    def figure(
        self, name: str, *, rank: int | None = None, lang: Lang | None = None, theme: Theme = "light"
    ) -> go.Figure:
        """A chart of the report as a plotly figure, of the first rank that has it when `rank` is None.

        Raises:
            KeyError: there is no such figure, or the profile does not hold what it needs.
        """
        from ascend_perf.reports import figures

        return figures.figure(self._payload(lang), name, rank=rank, lang=lang or self.lang, theme=theme)

    def figures(
        self, *, rank: int | None = None, lang: Lang | None = None, theme: Theme = "light"
    ) -> dict[str, go.Figure]:
        """Every chart of the report that the profile has data for, by name and in the report's order."""
        from ascend_perf.reports import figures

        return figures.figures(self._payload(lang), rank=rank, lang=lang or self.lang, theme=theme)

    def report(self, out: str | Path, *, lang: Lang | None = None, force: bool = False) -> Path:
        """Write the full page and return its path.

        Args:
            out: a file that ends in `.html`, `.json` or `.md` (and is written as that), or a folder for `report.html`.
            lang: language in which the page opens, and that of the other formats.
            force: overwrite what is there.

        Raises:
            UsageError: the file exists and `force` is not given, or it cannot be written.
        """
        out = Path(out)
        kind = out.suffix.removeprefix(".")
        path = out if kind in FORMATS and not out.is_dir() else out / "report.html"
        if path.exists() and not force:
            raise UsageError(f"{path} exists", hint="force=True overwrites it")
        write(self, {path.suffix.removeprefix("."): path}, lang=lang or self.lang)
        return path

    def _payload(self, lang: Lang | None = None) -> Payload:
        return payload_of(self, lang or self.lang)

    def _repr_html_(self) -> str:
        from ascend_perf.reports.notebook import cell_html

        return cell_html(self._payload())

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """For IPython: HTML for notebooks, text for its terminal."""
        made = {"text/html": self._repr_html_, "text/plain": self.__str__}
        return {
            mime: show() for mime, show in made.items()
            if (not include or mime in include) and mime not in (exclude or ())
        }  # fmt: skip

    def __str__(self) -> str:
        from ascend_perf.reports.notebook import cell_text

        return cell_text(self._payload())

    def __repr__(self) -> str:
        found, ranks = counted(len(self.findings), "finding"), counted(len(self.run.traces), "rank")
        return f"<Analysis of {self.run.label!r}: {found} in {ranks}>"


def payload_of(analysis: Analysis, lang: Lang) -> Payload:
    """What the writers and figures are made from."""
    from ascend_perf.analyzers._rules import rule, rule_codes
    from ascend_perf.reports.payload import build

    return build(
        analysis.run, analysis.outcomes, analysis.findings, lang=lang,
        rules={code: rule(code).title for code in rule_codes()}, summaries=analysis.summaries,
        overrides=analysis.overrides,
    )  # fmt: skip


def write(
    analysis: Analysis, targets: dict[str, Path], *, lang: Lang = "en", progress: Progress = _silent,
    has_rank_pages: bool = False,
) -> dict[str, Path]:  # fmt: skip
    """Write the report in each format of `targets` (format to path) and return what was written.

    With `has_rank_pages` the page links to those of `write_rank_pages`.
    """
    payload = payload_of(analysis, lang)
    if has_rank_pages:
        from ascend_perf.reports.rank_pages import linked

        payload = linked(payload)
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
            raise not_writable(path, error) from None
    return targets


def write_rank_pages(
    analysis: Analysis, folder: Path, *, lang: Lang = "en", progress: Progress = _silent, jobs: int | None = None
) -> tuple[Path, ...]:
    """Write a page of each rank into `folder`, which lies beside `report.html`. `jobs` as in `pipeline.load`."""
    from ascend_perf.parsers._parallel import jobs_of
    from ascend_perf.reports import rank_pages

    try:
        return rank_pages.write_rank_pages(
            payload_of(analysis, lang), folder, jobs=jobs_of(jobs), progress=progress
        )
    except OSError as error:
        raise not_writable(folder, error) from None


SIMULATED: Final = Words(
    "  SIMULATED: nothing ran on an NPU; times on the device and counters are modelled",
    "  仿真数据：没有任何计算在 NPU 上执行；设备耗时与计数器均为建模值",
)


MAX_TITLE: Final = 600
"""Letters of a finding's title on the terminal."""


def summary(analysis: Analysis, lang: Lang = "en", count: int = 3) -> str:
    """The top findings in a few lines of plain text, for the terminal. That data are simulated comes first."""
    lines = []
    if analysis.run.is_simulated:
        lines.append(SIMULATED.zh if lang == "zh" else SIMULATED.en)
    from ascend_perf.reports.texts import safe
    from ascend_perf.reports.verdict import measures_machine, served

    if (machine := measures_machine(analysis.run.manifest)) is not None:
        lines.append(f"  {machine.zh if lang == 'zh' else machine.en}")
    count_before = len(lines)
    for number, finding in enumerate(analysis.findings[:count], 1):
        title = finding.title.zh if lang == "zh" else finding.title.en
        bound = finding.bound_speedup
        most = (
            ""
            if bound is None
            else (f"（理论上限 {format_bound(bound)} 倍）" if lang == "zh" else f" (at most {format_bound(bound)}x)")
        )
        lines.append(f"  {number}. [{finding.code}] {safe(title, MAX_TITLE)}{most}")
    if len(lines) == count_before:
        seen = served([metric for outcome in analysis.outcomes for metric in outcome.metrics])
        if seen is not None:
            lines.append(f"  {seen.zh if lang == 'zh' else seen.en}")
        clean = len({j.code for o in analysis.outcomes for j in o.judged if j.verdict == "clean"})
        if clean:
            lines.append(
                f"  已检查的 {clean} 行未发现问题；无法判断的行见报告。" if lang == "zh"
                else f"  no finding in the {counted(clean, 'row')} that could be judged; the report lists the others"
            )  # fmt: skip
        else:
            lines.append(
                "  根据该数据无法作出任何判断；缺少的内容见报告。" if lang == "zh"
                else "  nothing could be judged from this data; the report says what is missing"
            )  # fmt: skip
    for outcome in analysis.failed:
        lines.append(f"  ! {outcome.analyzer} failed: {outcome.reason.en if outcome.reason else ''}")
    return "\n".join(lines)
