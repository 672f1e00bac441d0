"""Keep results over months, find what changed and when, and show it as a static site."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from ascend_perf.cli import _show
from ascend_perf.errors import AscendPerfError, InputError, MachineError, UsageError, not_obeyed
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.history.store import Filter, Store
    from ascend_perf.model.trend import Change, Trend, TrendBook

Lang = Literal["en", "zh"]
_Command = TypeVar("_Command", bound=Callable[..., Any])

MAX_ROWS: Final = 200
"""Values of a result that are printed; `export` writes all."""

_SAY: Final = {
    "en": {
        "heads": ("result", "time", "suite", "branch", "commit", "machine", "benchmarks", "runs"),
        "more": "{} more; --limit shows them",
        "none": "no results",
        "failed": "{} ({} failed)",
        "added": "{}: added as result {}",
        "present": "{}: is there already, as result {}",
        "replaced": "{}: took the place of result {}",
        "values": ("benchmark", "metric", "value", "runs"),
        "no_changes": "no change point in {} trends",
        "worse": "regression",
        "better": "improvement",
        "changed": "change",
        "open": "open",
        "accepted": "accepted",
        "dismissed": "dismissed",
        "also": "also different: {}",
        "said": "{} by {}, {}",
        "prune": "would remove {} of {} results; --yes removes them",
        "pruned": "removed {} of {} results",
        "rows": "{}: {} values",
        "files": "{}: {} result files",
        "pages": "{} trends on {} pages, {} reports copied",
        "baseline": "result {} of {} ({}), {} runs",
        "decided": "{} of series {} is {}",
        "simulated": "simulated",
    },
    "zh": {
        "heads": ("结果", "时间", "套件", "分支", "提交", "机器", "基准测试", "运行"),
        "more": "另有 {} 条，可用 --limit 显示",
        "none": "没有结果",
        "failed": "{}（{} 次失败）",
        "added": "{}：已添加为结果 {}",
        "present": "{}：已存在，即结果 {}",
        "replaced": "{}：已替换结果 {}",
        "values": ("基准测试", "指标", "数值", "运行"),
        "no_changes": "{} 条趋势中没有变化点",
        "worse": "性能劣化",
        "better": "改善",
        "changed": "变化",
        "open": "未处理",
        "accepted": "已接受",
        "dismissed": "已排除",
        "also": "同时改变：{}",
        "said": "{}：{}，{}",
        "prune": "将删除 {} 条结果（共 {} 条）；加 --yes 执行",
        "pruned": "已删除 {} 条结果（共 {} 条）",
        "rows": "{}：{} 个数值",
        "files": "{}：{} 个结果文件",
        "pages": "{} 条趋势，{} 个页面，复制了 {} 份报告",
        "baseline": "结果 {}：{}（{}），{} 次运行",
        "decided": "序列 {1} 的 {0}：{2}",
        "simulated": "仿真",
    },
}  # fmt: skip


@click.group("history")
@click.option("--db", metavar="HISTORY", help="A file (SQLite), or postgresql://USER@HOST/DATABASE. "
              "[default: ASCEND_PERF_HISTORY, else ascend-perf-history.sqlite in the working directory]")  # fmt: skip
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.pass_context
def command(context: click.Context, db: str | None, lang: Lang) -> None:
    """Keep result files of `bench` over months, and find in them what changed and when.

    \b
    ascend-perf history add results.json
    ascend-perf history changes
    ascend-perf history baseline --suite nightly --branch main -o base.json
    ascend-perf history site -o public
    """
    context.obj = (db, lang)


def _filtered(function: _Command) -> _Command:
    for names, text in reversed([
        (("--suite",), "Only results of this suite."),
        (("--branch",), "Only results of this branch."),
        (("--machine",), "Only results of this machine: the first characters of its key."),
        (("--commit",), "Only results of this commit: its first characters."),
    ]):  # fmt: skip
        function = click.option(*names, help=text)(function)
    return function


def _picked(function: _Command) -> _Command:
    for names, text in reversed([
        (("--benchmark",), "Only benchmarks with this in their name."),
        (("--metric",), "Only this metric."),
    ]):  # fmt: skip
        function = click.option(*names, help=text)(function)
    return function


@command.command("add")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--simulated", is_flag=True, help="Keep simulated figures too; they are marked wherever they are shown.")
@click.option("--replace", is_flag=True, help="Replace a result of the same suite, branch, time, commit and machine "
              "that has other content: a suite that was resumed.")  # fmt: skip
@click.option("--git", "checkout", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A checkout: the place of a result in its trends is the time of its commit there, so that old "
              "commits may be measured later.")  # fmt: skip
@click.option("--report-url", help="Where the report of these results is to be seen (http or https).")
@click.pass_obj
def add(
    settings: tuple[str | None, Lang],
    files: tuple[Path, ...],
    simulated: bool,
    replace: bool,
    checkout: Path | None,
    report_url: str | None,
) -> None:
    """Add result files, or folders that hold one as results.json. A file that is there already changes nothing.

    Each file is committed by itself: what was reported as added stays, whatever happens to the rest.
    """
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.trends import is_web
    from ascend_perf.result_files import read_results

    say = _SAY[settings[1]]
    if report_url is not None and not is_web(report_url):
        raise UsageError("--report-url is no http or https address")
    problems: list[AscendPerfError] = []
    with _store(settings[0]) as store:
        for path in files:
            try:
                at_s = None if checkout is None else _commit_time(checkout, read_results(path).commit, path)
                done = store.add(path, allow_simulated=simulated, replace_other=replace, at_s=at_s,
                                 report_url=report_url)  # fmt: skip
            except InputError as error:
                problems.append(error)
                if len(files) > 1:
                    click.echo(f"ascend-perf: {spoken(str(error), settings[1])}", err=True)
                continue
            click.echo(str(say[done.state]).format(path.name, done.id))
            for note in done.notes:
                click.echo(f"ascend-perf: {spoken(note, settings[1])}", err=True)
    if problems:
        if len(files) == 1:
            raise problems[0]
        raise InputError(f"{len(problems)} of {len(files)} files were not added", hint="the reasons are above")


@command.command("list")
@_filtered
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Show so many, the newest first.")
@click.pass_obj
def list_(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    limit: int,
) -> None:
    """List results, the newest first."""
    say = _SAY[settings[1]]
    wanted = _filter(suite=suite, branch=branch, machine=machine, commit=commit)
    with _store(settings[0], must_exist=True) as store:
        found, total = store.sets(wanted, limit=limit), store.count(wanted)
    if not found:
        click.echo(say["none"])
        return
    rows: list[Sequence[str]] = [say["heads"]]
    for one in found:
        runs = str(one.launches) if not one.failed else str(say["failed"]).format(one.launches, one.failed)
        rows.append(
            (str(one.id), one.created, one.suite, one.branch or "—", (one.commit or "—")[:12], one.machine,
             str(one.benchmarks), f"{runs} {say['simulated']}" if one.is_simulated else runs)
        )  # fmt: skip
    click.echo(_table(rows))
    if total > len(found):
        click.echo(str(say["more"]).format(total - len(found)))


@command.command("show")
@click.argument("result", type=int)
@_picked
@click.pass_obj
def show(settings: tuple[str | None, Lang], result: int, benchmark: str | None, metric: str | None) -> None:
    """Show one RESULT, by its number: the machine, and every value with the range of its runs."""
    say = _SAY[settings[1]]
    with _store(settings[0], must_exist=True) as store:
        one, values = store.result_set(result), store.values(result)
    facts = [str(one.id), one.created, one.suite, one.branch or "—", one.commit or "—", one.machine,
             str(one.benchmarks), str(one.launches)]  # fmt: skip
    pairs = [*zip(say["heads"], facts, strict=True)]
    pairs += [(name, str(value)) for name, value in one.fingerprint.items() if value is not None]
    click.echo(_table(pairs) + "\n")
    rows: list[Sequence[str]] = [say["values"]]
    for series, value in values:
        key = series.key
        if (benchmark and benchmark not in key.benchmark) or (metric and metric != key.metric):
            continue
        text = format_quantity(value.value, key.unit)
        if value.low < value.high:
            text += f" ({format_quantity(value.low, key.unit)} – {format_quantity(value.high, key.unit)})"
        rows.append((key.benchmark, key.metric, text, str(value.launches)))
    click.echo(_table(rows[: MAX_ROWS + 1]))
    if len(rows) > MAX_ROWS + 1:
        click.echo(f"… {len(rows) - MAX_ROWS - 1}")


@command.command("baseline")
@_filtered
@click.option("--like", type=click.Path(path_type=Path), metavar="FILE",
              help="A result file: suite and machine must be those of this one; its commit does not count.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.pass_obj
def baseline(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    like: Path | None,
    output: Path,
    force: bool,
) -> None:
    """Write the result file that a gate should compare with: the newest one without a failed run.

    \b
    ascend-perf history baseline --branch main --like head/results.json -o base/results.json
    ascend-perf gate base/results.json head/results.json
    """
    from ascend_perf.history.files_out import write_baseline
    from ascend_perf.result_files import read_results

    if output.is_dir():
        output = output / "results.json"
    if output.exists() and not force:
        raise UsageError(f"{output} is there already", hint="--force replaces it")
    head = None if like is None else read_results(like)
    if suite is None and head is not None:
        suite = head.suite
    wanted = _filter(suite=suite, branch=branch, machine=machine, commit=commit)
    with _store(settings[0], must_exist=True) as store:
        if commit is not None and (named := store.sets(wanted)):
            # A commit that was asked for by name is taken even where some of its runs failed.
            measured = [one for one in named if not one.is_simulated]
            if measured and all(one.failed for one in measured):
                one = measured[0]
            else:
                one = store.baseline(wanted, None if head is None else head.fingerprint)
        else:
            one = store.baseline(
                wanted, None if head is None else head.fingerprint, not_commit=None if head is None else head.commit
            )
        write_baseline(store, one, output)
    say = str(_SAY[settings[1]]["baseline"])
    click.echo(say.format(one.id, _show.plain(one.suite), (one.commit or one.created)[:25], one.launches), err=True)
    click.echo(output)


@command.command("changes")
@_filtered
@_picked
@click.option("--all", "everything", is_flag=True, help="Accepted and dismissed changes too.")
@click.option("--last", type=click.IntRange(2), help="Look at so many newest values of each trend.  [default: all]")
@click.option("--fail", is_flag=True, help="Exit with 1 when there is a regression that nobody has decided on.")
@click.pass_obj
def changes(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    benchmark: str | None,
    metric: str | None,
    everything: bool,
    last: int | None,
    fail: bool,
) -> None:
    """Find change points: which figure changed, by how much, since which commit.

    Each has a name, SERIES@RESULT, for `accept` and `dismiss`. With --commit: those that begin with its results.
    """
    lang, say = settings[1], _SAY[settings[1]]
    wanted = _filter(suite=suite, branch=branch, machine=machine, benchmark=benchmark, metric=metric)
    from ascend_perf.history.trends import trends_of
    from ascend_perf.reports.trends import open_changes

    with _store(settings[0], must_exist=True) as store:
        book = trends_of(store, wanted, last=last)
    found = open_changes(book)
    if everything:
        found += [(trend, change) for trend in book.trends for change in trend.changes if change.state != "open"]
    if commit is not None:
        found = [(trend, change) for trend, change in found
                 if (book.results[trend.results[change.place]].commit or "").startswith(commit)]  # fmt: skip
    for trend, change in found:
        click.echo(_change_lines(book, trend, change, lang))
    if not found:
        click.echo(str(say["no_changes"]).format(len(book.trends)))
    if fail and any(change.state == "open" and change.direction == "worse" for _, change in found):
        raise click.exceptions.Exit(1)


@command.command("accept")
@click.argument("change", metavar="SERIES@RESULT")
@click.option("--owner", required=True, help="Who says so.")
@click.option("--note", default="", help="Why: an issue, a trade-off.")
@click.pass_obj
def accept(settings: tuple[str | None, Lang], change: str, owner: str, note: str) -> None:
    """Accept a change: from that result on the new level is the normal one."""
    _decide(settings, change, "accepted", owner, note)


@command.command("dismiss")
@click.argument("change", metavar="SERIES@RESULT")
@click.option("--owner", required=True, help="Who says so.")
@click.option("--note", default="", help="Why: a machine that was disturbed.")
@click.pass_obj
def dismiss(settings: tuple[str | None, Lang], change: str, owner: str, note: str) -> None:
    """Say that a change point is none: it is no longer reported."""
    _decide(settings, change, "dismissed", owner, note)


@command.command("reopen")
@click.argument("change", metavar="SERIES@RESULT")
@click.pass_obj
def reopen(settings: tuple[str | None, Lang], change: str) -> None:
    """Forget what was said of a change."""
    series, result = _change_id(change)
    with _store(settings[0], must_exist=True) as store:
        if not store.undecide(series, result):
            raise UsageError(f"nothing was said of {change}", hint="`ascend-perf history changes --all` shows what was")
    click.echo(str(_SAY[settings[1]]["decided"]).format(result, series, _SAY[settings[1]]["open"]))


@command.command("prune")
@_filtered
@click.option("--older-than", type=click.IntRange(1), metavar="DAYS", help="Results older than so many days.")
@click.option("--keep", type=click.IntRange(1), metavar="N",
              help="Not the newest N of each suite, branch and machine.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do it. Without, it is only said what would be removed.")
@click.pass_obj
def prune(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    older_than: int | None,
    keep: int | None,
    yes: bool,
) -> None:
    """Remove old results. Those at which a decided change begins are kept."""
    if older_than is None and keep is None:
        raise UsageError("say which results may go", hint="--older-than DAYS, --keep N, or both")
    wanted = _filter(suite=suite, branch=branch, machine=machine, commit=commit)
    before = None if older_than is None else (datetime.now(timezone.utc) - timedelta(days=older_than)).timestamp()
    with _store(settings[0], must_exist=True) as store:
        found, total = store.prunable(wanted, before_s=before, keep=keep), store.count()
        if yes:
            store.remove([one.id for one in found])
    click.echo(str(_SAY[settings[1]]["pruned" if yes else "prune"]).format(len(found), total))


@command.command("export")
@_filtered
@_picked
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True,
              help="A file that ends in .csv, .json or .parquet: the values as rows. A folder: the result files as "
              "they were added.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.pass_obj
def export(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    benchmark: str | None,
    metric: str | None,
    output: Path,
    force: bool,
) -> None:
    """Write values, or all result files, for other programs or another history."""
    from ascend_perf.history.files_out import write_result_files, write_rows

    say = _SAY[settings[1]]
    wanted = _filter(suite=suite, branch=branch, machine=machine, commit=commit, benchmark=benchmark, metric=metric)
    form = output.suffix.removeprefix(".").lower()
    if form and form not in ("csv", "json", "parquet"):
        raise UsageError(f"{output.name} has an ending that we do not write", hint=".csv, .json, .parquet, or a folder")
    if (output.exists() if form else output.is_dir() and any(output.iterdir())) and not force:
        raise UsageError(f"{output} is there already", hint="--force replaces it")
    with _store(settings[0], must_exist=True) as store:
        if not form:
            click.echo(str(say["files"]).format(output, len(write_result_files(store, wanted, output))))
        else:
            kind: Literal["csv", "json", "parquet"] = (
                "csv" if form == "csv" else "json" if form == "json" else "parquet"
            )
            click.echo(str(say["rows"]).format(output, write_rows(store, wanted, output, kind)))


@command.command("site")
@_filtered
@_picked
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--last", type=click.IntRange(2), default=500, show_default=True,
              help="Show so many newest values of each trend.")  # fmt: skip
@click.option("--reports", type=click.IntRange(0), default=20, show_default=True,
              help="Copy the reports of so many newest results, and those beside open changes; 0 copies none.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the pages that are there.")
@click.pass_obj
def site(
    settings: tuple[str | None, Lang],
    suite: str | None,
    branch: str | None,
    machine: str | None,
    commit: str | None,
    benchmark: str | None,
    metric: str | None,
    output: Path,
    last: int,
    reports: int,
    force: bool,
) -> None:
    """Write a static site: trends, change points, links to reports. Any web server can serve it, and none is needed."""
    from ascend_perf import __version__
    from ascend_perf.history.files_out import copy_reports
    from ascend_perf.history.trends import trends_of, with_reports
    from ascend_perf.reports.trends import FOLDER, INDEX, write_site

    if commit is not None:
        raise UsageError("a site shows trends over all commits", hint="leave out --commit")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", hint="-o names a folder")
    if output.is_dir() and any(output.iterdir()):
        if not force:
            raise UsageError(f"{output} is not empty", hint="--force replaces our pages in it")
        if not (output / INDEX).is_file():
            raise UsageError(f"{output} holds something else than such a site", hint="name another folder")
    wanted = _filter(suite=suite, branch=branch, machine=machine, benchmark=benchmark, metric=metric)
    with _store(settings[0], must_exist=True) as store:
        book = trends_of(store, wanted, last=last)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{output} cannot be written: {error.strerror or error}") from None
        copied = copy_reports(store, book, output, reports)
    before = {path for path in (output / FOLDER).glob("*.html") if re.fullmatch(r"[0-9a-f]{16}\.html", path.name)}
    pages = write_site(with_reports(book, copied), output, version=__version__, lang=settings[1])
    for stale in before - set(pages):
        stale.unlink()
    count = sum(map(len, copied.values()))
    click.echo(str(_SAY[settings[1]]["pages"]).format(len(book.trends), len(pages), count), err=True)
    click.echo(pages[0])


def _set(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """What follows the subcommand takes the place of what the group was told."""
    if value is not None:
        db, lang = context.obj
        context.obj = (value, lang) if option.name == "db" else (db, value)


# `history add --db X` is what people type first: each subcommand takes the options of the group as well.
for _one in command.commands.values():
    _one.params += [
        click.Option(["--db"], metavar="HISTORY", expose_value=False, callback=_set,
                     help="As before the subcommand: a file, or postgresql://USER@HOST/DATABASE."),
        click.Option(["--lang"], type=click.Choice(["en", "zh"]), expose_value=False, callback=_set,
                     help="As before the subcommand."),
    ]  # fmt: skip


@contextmanager
def _store(db: str | None, *, must_exist: bool = False) -> Iterator[Store]:
    try:
        from ascend_perf.history.database import Database
        from ascend_perf.history.store import Store
    except ImportError as error:
        raise MachineError(
            f"a history needs the package {error.name}", hint="pip install 'ascend-perf[history]'"
        ) from None
    database = Database(db, must_exist=must_exist)
    try:
        yield Store(database)
    finally:
        database.close()


def _filter(**values: str | None) -> Filter:
    from ascend_perf.history.store import Filter

    return Filter(**values)


def _decide(settings: tuple[str | None, Lang], change: str, verdict: Literal["accepted", "dismissed"], owner: str,
            note: str) -> None:  # fmt: skip
    series, result = _change_id(change)
    if not owner.strip():
        raise UsageError("a decision needs an owner", hint="--owner NAME")
    with _store(settings[0], must_exist=True) as store:
        store.decide(series, result, verdict, owner.strip(), note.strip())
    click.echo(str(_SAY[settings[1]]["decided"]).format(result, series, _SAY[settings[1]][verdict]))


def _change_id(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})@(\d{1,9})", text)
    if found is None:
        raise UsageError(f"{text!r} names no change", hint="SERIES@RESULT, as `ascend-perf history changes` prints it")
    return int(found[1]), int(found[2])


def _change_lines(book: TrendBook, trend: Trend, change: Change, lang: Lang) -> str:
    from ascend_perf.reports.trends import change_sentence, place_words

    say = _SAY[lang]
    lines = [
        f"{change.id}  {say[change.direction]}  {getattr(change_sentence(book, trend, change), lang)}",
        f"  {trend.suite} · {trend.branch or '—'} · {trend.machine}",
        f"  {getattr(place_words(book, trend, change), lang)}",
    ]
    if change.facts:
        facts = ", ".join(f"{name} {old} → {new}" for name, old, new in change.facts)
        lines.append("  " + str(say["also"]).format(facts))
    if change.state != "open":
        lines.append("  " + str(say["said"]).format(say[change.state], change.owner, change.note or "—"))
    return not_obeyed("\n".join(_show.plain(line) for line in lines))


def _table(rows: Sequence[Sequence[str]]) -> str:
    return not_obeyed(_show.columns([[_show.plain(cell) for cell in row] for row in rows])) if rows else ""


def _commit_time(checkout: Path, commit: str | None, path: Path) -> float:
    """Time of a commit in a checkout, in seconds since 1970."""
    if commit is None or not re.fullmatch(r"[0-9a-fA-F]{7,64}", commit):
        raise InputError(f"{path.name} names no commit that git could find", hint="leave out --git")
    asked = ["git", "-C", str(checkout), "show", "--no-patch", "--format=%ct", f"{commit}^{{commit}}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise MachineError("git cannot be run", hint="install git, or leave out --git") from None
    if done.returncode or not done.stdout.strip().isdigit():
        raise InputError(f"the commit {commit[:12]} of {path.name} is not in {checkout.name}", hint="git fetch")
    return float(done.stdout.strip())
