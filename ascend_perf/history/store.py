"""What is kept in a history and asked of it: result files, series of values, decisions about change points."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from ascend_perf.errors import InputError, UsageError
from ascend_perf.history.database import Database
from ascend_perf.history.reduced import (
    SeriesKey,
    Value,
    digest,
    identity_of,
    machine_of,
    seconds_of,
    text_of,
    values_of,
)
from ascend_perf.history.schema import ATTACHMENTS, DECISIONS, POINTS, RESULT_SETS, SERIES
from ascend_perf.model.result import MUST_AGREE, ResultSet
from ascend_perf.model.run import Fact
from ascend_perf.result_files import FILE_NAME, read_results
from ascend_perf.units import Better, Unit

MAX_ATTACHMENT_BYTES: Final = 64 << 20
"""A larger snapshot of operators is left out; the file is kept without it. Status: assumed."""
CHUNK: Final = 500
"""Values in one statement: SQLite once allowed 999."""

RECENT: Final = 200
"""Newest results that are looked at first for a baseline; older ones only where none of these fits."""

Verdict = Literal["accepted", "dismissed"]
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which results are meant; None means all."""

    suite: str | None = None
    branch: str | None = None
    machine: str | None = None
    """First characters of its key."""
    commit: str | None = None
    """First characters."""
    benchmark: str | None = None
    """A part of the name."""
    metric: str | None = None
    """The whole name."""


ALL: Final = Filter()


@dataclass(frozen=True, kw_only=True)
class StoredSet:
    """A result file in the history."""

    id: int
    suite: str
    branch: str
    commit: str | None
    created: str
    at_s: float
    machine: str
    fingerprint: Mapping[str, Fact]
    benchmarks: int
    launches: int
    failed: int
    is_simulated: bool
    folder: str
    report_url: str | None


@dataclass(frozen=True, kw_only=True)
class Series:
    """A series of values; `key` names it."""

    id: int
    key: SeriesKey


@dataclass(frozen=True, kw_only=True)
class Points:
    """The values of one series in the order of time; arrays of shape (N,)."""

    result_set: NDArray[np.int64]
    at_s: NDArray[np.float64]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    launches: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What somebody said of the change point of a series that begins with a result set."""

    series: int
    result_set: int
    verdict: Verdict
    owner: str
    note: str
    decided: str


@dataclass(frozen=True, kw_only=True)
class Added:
    """What became of a file: added, there already (nothing changed), or put in the place of an older state of it."""

    id: int
    state: Literal["added", "present", "replaced"]
    notes: tuple[str, ...] = ()


class Store:
    """A history. Every method is a transaction of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # ---- adding -----------------------------------------------------------------------------------------------------

    def add(
        self,
        path: Path,
        *,
        allow_simulated: bool = False,
        replace_other: bool = False,
        at_s: float | None = None,
        report_url: str | None = None,
    ) -> Added:
        """Keep a result file, or find that it is kept already.

        Args:
            path: a result file, or the folder that has it.
            allow_simulated: keep figures that were not measured, too.
            replace_other: put it in the place of a file of the same suite, branch, time, commit and machine that has
                other content (a suite that was resumed).
            at_s: its place in the trends, in seconds since 1970; the time when the suite began otherwise.
            report_url: where its report is to be seen.

        Raises:
            InputError: it cannot be read, is simulated, or another content of it is kept.
        """
        results = read_results(path)
        file = path / FILE_NAME if path.is_dir() else path
        document = file.read_bytes()
        is_simulated = any(benchmark.data_origin == "simulated" for benchmark in results.benchmarks)
        if is_simulated and not allow_simulated:
            raise InputError(f"{file.name} holds simulated figures", hint="--simulated keeps them, marked as such")
        attachments, notes = _attachments(results, file.parent)
        row = _row(results, document, is_simulated, str(file.parent.resolve()), at_s, report_url)
        values = values_of(results)
        with self.database.writing() as connection:
            insert = _insert(connection, RESULT_SETS).values(row).on_conflict_do_nothing()
            identifier = connection.execute(insert.returning(RESULT_SETS.c.id)).scalar()
            state: Literal["added", "replaced"] = "added"
            if identifier is None:
                same = RESULT_SETS.c.identity == row["identity"]
                there = connection.execute(
                    sa.select(RESULT_SETS.c.id, RESULT_SETS.c.content).where(same).with_for_update()
                ).one()
                if there.content == row["content"]:
                    return Added(id=there.id, state="present")
                if not replace_other:
                    raise InputError(
                        f"{file.name} has other content than the result set {there.id}, which has the same suite, "
                        "branch, time, commit and machine",
                        hint="--replace puts it in its place, as when `bench` went on with a suite",
                    )
                identifier, state = there.id, "replaced"
                connection.execute(sa.update(RESULT_SETS).where(RESULT_SETS.c.id == identifier).values(row))
                for table in (POINTS, ATTACHMENTS):
                    connection.execute(sa.delete(table).where(table.c.result_set_id == identifier))
            series = _series_ids(connection, list(values))
            points = [_point(series[key.identity], identifier, value) for key, value in values.items()]
            if points:
                connection.execute(sa.insert(POINTS), points)
            if attachments:
                rows = [{"result_set_id": identifier, "path": name, "content": zlib.compress(content)}
                        for name, content in attachments.items()]  # fmt: skip
                connection.execute(sa.insert(ATTACHMENTS), rows)
        return Added(id=identifier, state=state, notes=notes)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def sets(self, wanted: Filter = ALL, *, limit: int | None = None) -> list[StoredSet]:
        """Result sets, the newest first."""
        query = sa.select(*_SET_COLUMNS).where(*_set_conditions(wanted))
        query = query.order_by(RESULT_SETS.c.at_s.desc(), RESULT_SETS.c.id.desc()).limit(limit)
        with self.database.reading() as connection:
            return [_stored(row._mapping) for row in connection.execute(query)]

    def count(self, wanted: Filter = ALL) -> int:
        """Number of result sets."""
        query = sa.select(sa.func.count()).select_from(RESULT_SETS).where(*_set_conditions(wanted))
        with self.database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def sets_by_id(self, identifiers: Sequence[int]) -> dict[int, StoredSet]:
        """Some result sets."""
        found = {}
        with self.database.reading() as connection:
            for part in _chunks(sorted(set(identifiers))):
                query = sa.select(*_SET_COLUMNS).where(RESULT_SETS.c.id.in_(part))
                found.update({row.id: _stored(row._mapping) for row in connection.execute(query)})
        return found

    def result_set(self, identifier: int) -> StoredSet:
        """One of them.

        Raises:
            UsageError: there is none of that number.
        """
        found = self.sets_by_id([identifier])
        if identifier not in found:
            raise UsageError(f"there is no result set {identifier}", hint="`ascend-perf history list` shows them")
        return found[identifier]

    def values(self, identifier: int) -> list[tuple[Series, Value]]:
        """All values of a result set, by benchmark and metric."""
        query = (
            sa.select(*SERIES.c, POINTS.c.value, POINTS.c.low, POINTS.c.high, POINTS.c.launches)
            .join(POINTS, POINTS.c.series_id == SERIES.c.id)
            .where(POINTS.c.result_set_id == identifier)
            .order_by(SERIES.c.benchmark, SERIES.c.metric, SERIES.c.id)
        )
        with self.database.reading() as connection:
            return [
                (_series(row._mapping), Value(value=row.value, low=row.low, high=row.high, launches=row.launches))
                for row in connection.execute(query)
            ]

    def series(self, wanted: Filter = ALL) -> list[Series]:
        """Series by suite, branch, machine, benchmark and metric. The commit of the filter means nothing here."""
        c = SERIES.c
        query = sa.select(*c).where(*_common_conditions(SERIES, wanted))
        if wanted.benchmark is not None:
            query = query.where(c.benchmark.contains(text_of(wanted.benchmark), autoescape=True))
        if wanted.metric is not None:
            query = query.where(c.metric == text_of(wanted.metric))
        with self.database.reading() as connection:
            found = [_series(row._mapping) for row in connection.execute(query)]
        # Sorted here: two databases sort texts in two ways.
        return sorted(found, key=lambda one: (one.key.suite, one.key.branch, one.key.machine, one.key.benchmark,
                                              one.key.metric, one.id))  # fmt: skip

    def points(self, series: Sequence[int], *, last: int | None = None) -> dict[int, Points]:
        """The values of series in the order of time.

        Args:
            series: their ids.
            last: only so many of the newest values of each.
        """
        c = POINTS.c
        columns = (c.series_id, c.result_set_id, c.value, c.low, c.high, c.launches)
        with self.database.reading() as connection:
            cells = [
                cell
                for part in _chunks(sorted(set(series)))
                for row in connection.execute(sa.select(*columns).where(c.series_id.in_(part)))
                for cell in row
            ]
            if not cells:
                return {}
            table = np.array(cells, np.float64).reshape(-1, len(columns))
            # Asked for apart, from an index: a join would look up every value's result among the documents.
            ends = int(table[:, 1].min()), int(table[:, 1].max())
            query = sa.select(RESULT_SETS.c.id, RESULT_SETS.c.at_s).where(RESULT_SETS.c.id.between(*ends))
            known = [cell for row in connection.execute(query.order_by(RESULT_SETS.c.id)) for cell in row]
        if not known:
            return {}
        times = np.array(known, np.float64).reshape(-1, 2)
        place = np.minimum(np.searchsorted(times[:, 0], table[:, 1]), len(times) - 1)
        is_there = times[place, 0] == table[:, 1]  # a result may have been removed between the two questions
        return _columns(np.column_stack([table[:, :2], times[place, 1], table[:, 2:]])[is_there], last)

    def document(self, identifier: int) -> bytes:
        """The result file as it was added."""
        query = sa.select(RESULT_SETS.c.document).where(RESULT_SETS.c.id == identifier)
        with self.database.reading() as connection:
            content = connection.execute(query).scalar()
        if content is None:
            raise UsageError(f"there is no result set {identifier}", hint="`ascend-perf history list` shows them")
        return zlib.decompress(content)

    def attachments(self, identifier: int) -> dict[str, bytes]:
        """Snapshots of operators that belong to a result file, by their path beside it."""
        query = sa.select(ATTACHMENTS.c.path, ATTACHMENTS.c.content).where(ATTACHMENTS.c.result_set_id == identifier)
        with self.database.reading() as connection:
            return {row.path: zlib.decompress(row.content) for row in connection.execute(query)}

    # ---- baseline ---------------------------------------------------------------------------------------------------

    def baseline(
        self, wanted: Filter, like: Mapping[str, Fact] | None = None, *, not_commit: str | None = None
    ) -> StoredSet:
        """The newest measured result set without a failed run that a gate may compare with.

        Args:
            wanted: suite, branch, and what else is asked for.
            like: fingerprint of the machine on which the other side is measured; facts that both know must agree.
            not_commit: a commit that does not count: the one that is to be judged.

        Raises:
            InputError: there is none; the message says what is missing.
        """
        for limit in (RECENT, None):
            found = self.sets(wanted, limit=limit)
            candidates = [one for one in found if not one.is_simulated and one.commit != (not_commit or 0)]
            alike = [one for one in candidates if like is None or not disagreeing(one.fingerprint, like)]
            for one in alike:
                if one.launches and not one.failed:
                    return one
            if len(found) < RECENT:
                break  # these were all
        if not candidates:
            raise InputError(
                f"the history {self.database.name} has no measured result of {_said(wanted)}",
                hint="`ascend-perf history list` shows what there is; add one with `ascend-perf history add`",
            )
        if not alike:
            names = ", ".join(disagreeing(candidates[0].fingerprint, like or {}))
            raise InputError(
                f"no result of {_said(wanted)} is from a machine like this one; the newest differs in: {names}",
                hint="run the suite on the base commit on this machine, and add its result",
            )
        raise InputError(
            f"each of {len(alike)} results of {_said(wanted)} has runs that failed",
            hint="`ascend-perf history list` shows them; name a --commit to take one all the same",
        )

    # ---- deciding, removing -----------------------------------------------------------------------------------------

    def decide(self, series: int, result_set: int, verdict: Verdict, owner: str, note: str) -> None:
        """Keep what somebody says of a change point; an earlier decision is replaced.

        Raises:
            UsageError: the series has no such value.
        """
        known = sa.select(sa.func.count()).select_from(POINTS).where(
            POINTS.c.series_id == series, POINTS.c.result_set_id == result_set
        )  # fmt: skip
        values = {"verdict": verdict, "owner": text_of(owner), "note": text_of(note), "decided": _now()}
        with self.database.writing() as connection:
            if not connection.execute(known).scalar_one():
                raise UsageError(
                    f"the series {series} has no value of the result set {result_set}",
                    hint="`ascend-perf history changes` shows the change points, each as SERIES@RESULT",
                )
            insert = _insert(connection, DECISIONS).values(series_id=series, result_set_id=result_set, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["series_id", "result_set_id"], set_=values))

    def undecide(self, series: int, result_set: int) -> bool:
        """Forget a decision; whether there was one."""
        where = (DECISIONS.c.series_id == series, DECISIONS.c.result_set_id == result_set)
        with self.database.writing() as connection:
            return connection.execute(sa.delete(DECISIONS).where(*where)).rowcount > 0

    def decisions(self) -> list[Decision]:
        """All of them."""
        with self.database.reading() as connection:
            return [
                Decision(series=row.series_id, result_set=row.result_set_id, verdict=row.verdict, owner=row.owner,
                         note=row.note, decided=row.decided)
                for row in connection.execute(sa.select(DECISIONS).order_by(DECISIONS.c.id))
            ]  # fmt: skip

    def prunable(self, wanted: Filter, *, before_s: float | None = None, keep: int | None = None) -> list[StoredSet]:
        """Result sets that may go: older than a time, and not among the newest of their suite, branch and machine.

        Those at which a decided change point begins stay.
        """
        decided = {decision.result_set for decision in self.decisions()}
        seen: dict[tuple[str, str, str], int] = {}
        found = []
        for one in self.sets(wanted):
            place = seen[one.suite, one.branch, one.machine] = seen.get((one.suite, one.branch, one.machine), 0) + 1
            is_old = before_s is None or one.at_s < before_s
            if is_old and (keep is None or place > keep) and one.id not in decided:
                found.append(one)
        return found

    def remove(self, identifiers: Sequence[int]) -> None:
        """Remove result sets with their values, and series that have none left."""
        with self.database.writing() as connection:
            for part in _chunks(list(identifiers)):
                connection.execute(sa.delete(RESULT_SETS).where(RESULT_SETS.c.id.in_(part)))
            empty = ~sa.exists().where(POINTS.c.series_id == SERIES.c.id)
            connection.execute(sa.delete(SERIES).where(empty))


_SET_COLUMNS: Final = tuple(column for column in RESULT_SETS.c if column.name not in ("document", "content"))


def disagreeing(one: Mapping[str, Fact], other: Mapping[str, Fact]) -> list[str]:
    """Facts that both fingerprints know and that differ."""
    return [
        name for name in MUST_AGREE
        if one.get(name) is not None and other.get(name) is not None and one[name] != other[name]
    ]  # fmt: skip


def _said(wanted: Filter) -> str:
    parts = [f"{name} {value!r}" for name in ("suite", "branch", "commit", "machine")
             if (value := getattr(wanted, name)) is not None]  # fmt: skip
    return ", ".join(parts) or "any suite"


def _row(
    results: ResultSet, document: bytes, is_simulated: bool, folder: str, at_s: float | None, report_url: str | None
) -> dict[str, object]:
    launches = [launch for benchmark in results.benchmarks for launch in benchmark.launches]
    return {
        "identity": identity_of(results),
        "content": digest(json.loads(document.decode("utf-8-sig"))),
        "suite": text_of(results.suite),
        "branch": text_of(results.branch or ""),
        "commit_id": None if results.commit is None else text_of(results.commit),
        "created": text_of(results.created),
        "at_s": seconds_of(results.created) if at_s is None else at_s,
        "machine": machine_of(results.fingerprint),
        "fingerprint": json.dumps(dict(results.fingerprint)),
        "tool_version": text_of(results.tool_version),
        "benchmarks": len(results.benchmarks),
        "launches": len(launches),
        "failed": sum(launch.status != "complete" for launch in launches),
        "is_simulated": is_simulated,
        "folder": folder.encode("utf-8", "replace").decode(),
        "report_url": report_url,
        "document": zlib.compress(document),
        "added": _now(),
    }


def _attachments(results: ResultSet, folder: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Snapshots of operators that lie beside the file; `read_results` has checked that they lie inside its folder."""
    found, notes = {}, []
    for name in dict.fromkeys(one.op_stream for one in results.benchmarks if one.op_stream is not None):
        path = folder / name
        try:
            if path.stat().st_size > MAX_ATTACHMENT_BYTES:
                notes.append(f"the snapshot of operators {name[:200]} is too large, and not kept")
            elif len(name) > MAX_PATH or not path.resolve().is_relative_to(folder.resolve()):
                notes.append(f"the snapshot of operators {name[:200]} does not lie beside the file, and is not kept")
            else:
                found[name] = path.read_bytes()
        except (OSError, ValueError):
            notes.append(f"the snapshot of operators {name[:200]} cannot be read, and is not kept")
    return found, tuple(notes)


MAX_PATH: Final = 400
"""Characters of the path of a snapshot: the width of its column."""


def _series_ids(connection: sa.Connection, keys: Sequence[SeriesKey]) -> dict[str, int]:
    """Ids of series by their identity; those that are new are made. Keys come sorted, so that writers cannot block."""
    found: dict[str, int] = {}
    for part in _chunks(keys):
        wanted = [key.identity for key in part]
        query = sa.select(SERIES.c.identity, SERIES.c.id).where(SERIES.c.identity.in_(wanted))
        found.update({row.identity: row.id for row in connection.execute(query)})
        new = [_series_row(key) for key in part if key.identity not in found]
        if new:
            connection.execute(_insert(connection, SERIES).on_conflict_do_nothing(), new)
            found.update({row.identity: row.id for row in connection.execute(query)})
    return found


def _series_row(key: SeriesKey) -> dict[str, object]:
    row: dict[str, object] = {"identity": key.identity}
    for name in key.__dataclass_fields__:
        value = getattr(key, name)
        row[name] = text_of(value) if isinstance(value, str) else value
    return row


def _point(series: int, result_set: int, value: Value) -> dict[str, object]:
    return {"series_id": series, "result_set_id": result_set, "value": value.value, "low": value.low,
            "high": value.high, "launches": value.launches}  # fmt: skip


def _insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    # Both have ON CONFLICT, in one form; SQLAlchemy has it apart for each of them.
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _chunks(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]


def _common_conditions(table: sa.Table, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.suite is not None:
        conditions.append(table.c.suite == text_of(wanted.suite))
    if wanted.branch is not None:
        conditions.append(table.c.branch == text_of(wanted.branch))
    if wanted.machine is not None:
        conditions.append(table.c.machine.startswith(text_of(wanted.machine), autoescape=True))
    return conditions


def _set_conditions(wanted: Filter) -> list[sa.ColumnElement[bool]]:
    conditions = _common_conditions(RESULT_SETS, wanted)
    if wanted.commit is not None:
        conditions.append(RESULT_SETS.c.commit_id.startswith(text_of(wanted.commit), autoescape=True))
    return conditions


def _stored(row: sa.RowMapping) -> StoredSet:
    return StoredSet(
        id=row["id"], suite=row["suite"], branch=row["branch"], commit=row["commit_id"], created=row["created"],
        at_s=row["at_s"],
        machine=row["machine"], fingerprint=json.loads(row["fingerprint"]), benchmarks=row["benchmarks"],
        launches=row["launches"], failed=row["failed"], is_simulated=row["is_simulated"], folder=row["folder"],
        report_url=row["report_url"],
    )  # fmt: skip


def _series(row: sa.RowMapping) -> Series:
    key = SeriesKey(
        suite=row["suite"], branch=row["branch"], machine=row["machine"], benchmark=row["benchmark"], work=row["work"],
        metric=row["metric"], unit=cast(Unit, row["unit"]), better=cast(Better, row["better"]),
        is_exact=row["is_exact"], is_simulated=row["is_simulated"],
    )  # fmt: skip
    return Series(id=row["id"], key=key)


def _columns(rows: NDArray[np.float64], last: int | None) -> dict[int, Points]:
    """Rows of (series, result set, time, value, low, high, launches) as one `Points` per series."""
    if not len(rows):
        return {}
    rows = rows[np.lexsort((rows[:, 1], rows[:, 2], rows[:, 0]))]
    starts = np.flatnonzero(np.diff(rows[:, 0], prepend=np.nan))
    found = {}
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        part = rows[max(start, end - last) if last is not None else start : end]
        found[int(part[0, 0])] = Points(
            result_set=part[:, 1].astype(np.int64), at_s=part[:, 2], value=part[:, 3], low=part[:, 4],
            high=part[:, 5], launches=part[:, 6].astype(np.int64),
        )  # fmt: skip
    return found


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
