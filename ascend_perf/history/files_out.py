"""What leaves a history: values as rows, result files as they came, baselines, and reports for the pages."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from ascend_perf.errors import InputError
from ascend_perf.history.reduced import digest
from ascend_perf.history.store import Filter, Store, StoredSet
from ascend_perf.model.trend import TrendBook
from ascend_perf.result_files import FILE_NAME, write_text

COLUMNS: Final = (
    "suite", "branch", "commit", "created", "machine", "benchmark", "work", "metric", "unit", "better", "value",
    "low", "high", "runs", "simulated", "result_set", "series",
)  # fmt: skip
"""Columns of exported rows; one row for each metric of each benchmark of each result."""

REPORT: Final = "report.html"
REPORTS_FOLDER: Final = "reports"
MAX_REPORT_BYTES: Final = 32 << 20
"""A larger report is not copied beside the pages. Ours stay under 8 MB. Status: assumed."""

Form = Literal["csv", "json", "parquet"]
Row = dict[str, str | int | float | bool | None]


def rows(store: Store, wanted: Filter) -> Iterator[Row]:
    """All values that a filter means, series by series in the order of time."""
    series = store.series(wanted)
    points = store.points([one.id for one in series])
    sets = store.sets_by_id([int(at) for one in points.values() for at in one.result_set])
    for one in series:
        key, its = one.key, points.get(one.id)
        for place in range(0 if its is None else len(its)):
            assert its is not None
            result = sets.get(int(its.result_set[place]))
            if result is None or (wanted.commit is not None and not (result.commit or "").startswith(wanted.commit)):
                continue
            yield {
                "suite": key.suite, "branch": key.branch, "commit": result.commit, "created": result.created,
                "machine": key.machine, "benchmark": key.benchmark, "work": key.work, "metric": key.metric,
                "unit": key.unit, "better": key.better, "value": float(its.value[place]),
                "low": float(its.low[place]), "high": float(its.high[place]), "runs": int(its.launches[place]),
                "simulated": key.is_simulated, "result_set": result.id, "series": one.id,
            }  # fmt: skip


def write_rows(store: Store, wanted: Filter, path: Path, form: Form) -> int:
    """Write all values to a file; returns their number.

    Raises:
        InputError: it cannot be written.
    """
    made = list(rows(store, wanted))
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: [row[name] for row in made] for name in COLUMNS})
        try:
            pq.write_table(table, path)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    elif form == "json":
        write_text(path, json.dumps(made, ensure_ascii=False, indent=1) + "\n")
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in made)
        write_text(path, text.getvalue())
    return len(made)


def _cell(value: str | int | float | bool | None) -> str | int | float | bool | None:
    # A spreadsheet would run a text that begins so as a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def write_result_files(store: Store, wanted: Filter, folder: Path) -> list[Path]:
    """Write result files as they were added, each into a folder of its own; adding those makes the same history."""
    written = []
    for one in reversed(store.sets(wanted)):
        place = folder / f"{one.id:06d}"
        place.mkdir(parents=True, exist_ok=True)
        written.append(write_baseline(store, one, place / FILE_NAME))
    return written


def write_baseline(store: Store, one: StoredSet, path: Path) -> Path:
    """Write a stored result file, and beside it the snapshots of operators that it names."""
    text = store.document(one.id).decode("utf-8-sig")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, content in store.attachments(one.id).items():
            target = path.parent / name
            # Checked when the file was added; a database may be written by others.
            if not target.resolve().is_relative_to(path.parent.resolve()):
                raise InputError(f"the snapshot {name[:200]} of result {one.id} does not lie beside its file")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be written: {error.strerror or error}") from None
    write_text(path, text)
    return path


def copy_reports(store: Store, book: TrendBook, folder: Path, newest: int) -> dict[int, dict[str, str]]:
    """Copy reports of runs beside the pages: of the newest results, and of those on both sides of open changes.

    Returns:
        By result and benchmark the path of the copy, relative to `folder`. Reports that are no longer there (or lie
        on another machine) are left out.
    """
    order = sorted(book.results.values(), key=lambda one: (one.at_s, one.id))
    wanted = {one.id for one in order[max(0, len(order) - newest) :]} if newest else set()
    if newest:
        for trend in book.trends:
            for change in trend.changes:
                if change.state == "open":
                    wanted |= {trend.results[change.place - 1], trend.results[change.place]}
    sets = store.sets_by_id(sorted(wanted))
    copied: dict[int, dict[str, str]] = {}
    for identifier, one in sets.items():
        for benchmark, source in _reports_of(store, one).items():
            name = f"{REPORTS_FOLDER}/{identifier}-{digest(benchmark, 12)}.html"
            (folder / REPORTS_FOLDER).mkdir(exist_ok=True)
            try:
                shutil.copyfile(source, folder / name)
            except OSError:
                continue
            copied.setdefault(identifier, {})[benchmark] = name
    return copied


def _reports_of(store: Store, one: StoredSet) -> dict[str, Path]:
    """By benchmark the report of its last complete run that is still where it was."""
    base = Path(one.folder)
    if not base.is_dir():
        return {}
    document: Mapping[str, list[Mapping[str, object]]] = json.loads(store.document(one.id))
    found = {}
    for benchmark in document["benchmarks"]:
        launches = benchmark["launches"]
        assert isinstance(launches, list)
        for launch in launches:
            folder = launch.get("folder")
            if launch.get("status") != "complete" or not isinstance(folder, str):
                continue
            path = base / folder / REPORT
            try:
                is_ours = path.resolve().is_relative_to(base.resolve()) and path.is_file()
                if is_ours and path.stat().st_size <= MAX_REPORT_BYTES:
                    found[str(benchmark["name"])] = path
            except (OSError, ValueError):
                continue
    return found
