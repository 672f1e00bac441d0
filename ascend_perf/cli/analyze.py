"""Find the bottlenecks in a profile and write a report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

import click

from ascend_perf.cli._progress import spinner
from ascend_perf.units import counted

_WORDS: Final = {
    "en": {
        "notice": "{}",
        "not_read": "not read: {}: {}",
        "problem": "{}: {}",
        "left_out": "{} analyzers left out by --only: their rows are not judged",
        "override": "{} of {} is {:.12g} (default {:.12g})",
        "pages": "{} ({})",
        "failed": "{} failed: a bug of ours, the rest of the report stands. Please report it: {}",
    },
    "zh": {
        "notice": "{}",
        "not_read": "未读取：{}：{}",
        "problem": "{}：{}",
        "left_out": "--only 排除了 {} 个分析器：其对应条目未作判断",
        "override": "{1} 的 {0} 为 {2:.12g}（默认 {3:.12g}）",
        "pages": "{}（{}）",
        "failed": "{} 失败：这是本工具的缺陷，报告其余部分有效。请反馈：{}",
    },
}


@click.command("analyze")
# click's own check of permissions would end as wrong usage (2); an input that may not be read is unusable (3).
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="PATH...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the report. [default: <input>-report]")
@click.option("--force", is_flag=True, help="Overwrite a report that is there.")
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the report."
)
@click.option("--format", "formats", default="html,json,md", show_default=True, help="Formats, separated by commas.")
@click.option("--rank", "ranks", type=int, multiple=True, help="Only this rank (may be given several times).")
@click.option("--step", "steps", type=int, multiple=True, help="Only this step (may be given several times).")
@click.option(
    "--all-ranks", is_flag=True, help="Write a page of each rank too, ranks/rank-00017.html, linked with report.html."
)
@click.option("--only", multiple=True, metavar="NAME", help="Run only this analyzer (may be given several times).")
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="YAML file with other thresholds, such as `C-14: {min_share_ratio: 0.08}` (see `ascend-perf explain C-14`).",
)
@click.option(
    "--ceilings",
    type=click.Path(path_type=Path),
    help="Run directory of the workload `micro`: what this device reached, drawn in the roofline beside its peaks.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes that read and analyze ranks; 1: one rank after the other. [default: ASCEND_PERF_JOBS, else as many "
    "as pay]",
)
def command(
    paths: tuple[Path, ...],
    out: Path | None,
    force: bool,
    lang: Literal["en", "zh"],
    formats: str,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
    all_ranks: bool,
    only: tuple[str, ...],
    rules: Path | None,
    ceilings: Path | None,
    jobs: int | None,
) -> None:
    """Find the bottlenecks in a profile and write a report.

    PATH is a trace file, a *_ascend_pt directory, a run directory, or a folder that holds many of them.

    Exit codes: 0 the report is written, whatever it found; 2 wrong usage; 3 nothing usable to read; 70 the report is
    written, but one of our analyzers failed.
    """
    from ascend_perf import pipeline
    from ascend_perf.cli import EXIT_BUG, ISSUES
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.texts import safe

    words = _WORDS[lang]

    def tell(key: str, *parts: object) -> None:
        click.echo(f"ascend-perf: {words[key].format(*parts)}", err=True)

    folder = out or Path(f"{_name_of(paths[0])}-report")
    with spinner() as progress:
        result = pipeline.report(
            paths,
            out=folder,
            formats=[f.strip() for f in formats.split(",") if f.strip()],
            lang=lang,
            force=force,
            ranks=ranks,
            steps=steps,
            only=only,
            rules=rules,
            ceilings=ceilings,
            progress=progress,
            jobs=jobs,
            all_ranks=all_ranks,
        )
    run = result.analysis.run
    for skipped in run.skipped:
        tell("not_read", safe(skipped.path), safe(spoken(skipped.problem or "", lang)))
    for notice in pipeline.notices(run):
        tell("notice", spoken(notice, lang))
    if left_out := result.analysis.left_out:
        tell("left_out", len(left_out))
    for item in result.analysis.overrides:
        tell("override", item.name, item.code, item.given, item.default)
    for trace in run.traces:
        for source in trace.meta.sources:
            if source.problem:
                tell("problem", source.path, spoken(source.problem, lang))
    click.echo(result.summary)
    for path in result.paths.values():
        click.echo(path)
    if result.rank_pages:
        count = len(result.rank_pages)
        pages = f"{count} 个页面" if lang == "zh" else counted(count, "page")
        click.echo(words["pages"].format(result.rank_pages[0].parent, pages))
    if failed := sorted({outcome.analyzer for outcome in result.analysis.failed}):
        tell("failed", ", ".join(failed), ISSUES)
        raise click.exceptions.Exit(EXIT_BUG)


def _name_of(path: Path) -> str:
    """A folder name from the input's: the directory's own name, or the file's without its suffixes."""
    from ascend_perf.reports.texts import safe

    name = path.resolve().name
    for suffix in (".gz", ".json", ".trace", ".pt", ".csv", ".db"):
        name = name.removesuffix(suffix)
    # A name of ours is one that can be read: no control characters, nothing that turns the direction of writing.
    return re.sub(r"[\ufffd\n\r\t]", "_", safe(name, 200)) or "profile"
