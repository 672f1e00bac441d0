"""SQLite tables as numpy columns: one pass per table, columns by name, absent ones unknown."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Floats, Ints, Text

BATCH_ROWS: Final = 1 << 16
"""Rows fetched at a time: they are Python tuples until they are converted."""


def columns_of(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Names of the columns of a table; empty when there is no such table."""
    return frozenset(row[1] for row in connection.execute(f'pragma table_info("{table}")'))


def int_columns(connection: sqlite3.Connection, table: str, *names: str) -> dict[str, Ints]:
    """Int columns of a table by name; absent columns and null cells are `NULL`. Text is cast (it holds digits)."""
    known = columns_of(connection, table)
    rows = _matrix(connection, table, [n for n in names if n in known], "integer", str(NULL), np.dtype(np.int64))
    length = _length(rows, connection, table, known)
    return {n: rows[n] if n in rows else np.full(length, NULL, np.int64) for n in names}


def float_columns(connection: sqlite3.Connection, table: str, *names: str) -> dict[str, Floats]:
    """Float columns of a table by name; absent columns and null cells are NaN."""
    known = columns_of(connection, table)
    # SQLite has no NaN: an infinity that no measurement holds stands for null.
    rows = _matrix(connection, table, [n for n in names if n in known], "real", "-9e999", np.dtype(np.float64))
    length = _length(rows, connection, table, known)
    result = {n: rows[n] if n in rows else np.full(length, np.nan) for n in names}
    return {n: np.where(np.isinf(values), np.nan, values) for n, values in result.items()}


def _length(
    rows: Mapping[str, NDArray[np.int64] | NDArray[np.float64]],
    connection: sqlite3.Connection,
    table: str,
    known: frozenset[str],
) -> int:
    if rows:
        return len(next(iter(rows.values())))
    return int(connection.execute(f'select count(*) from "{table}"').fetchone()[0]) if known else 0


def _matrix(
    connection: sqlite3.Connection,
    table: str,
    names: list[str],
    kind: str,
    null: str,
    dtype: np.dtype[np.int64] | np.dtype[np.float64],
) -> dict[str, NDArray[np.int64]]:
    if not names:
        return {}
    picked = ", ".join(f'ifnull(cast("{name}" as {kind}), {null})' for name in names)
    cursor = connection.execute(f'select {picked} from "{table}"')
    parts = []
    while batch := cursor.fetchmany(BATCH_ROWS):
        parts.append(np.array(batch, dtype).reshape(-1, len(names)))
    whole = np.concatenate(parts) if parts else np.empty((0, len(names)), dtype)
    return {name: np.ascontiguousarray(whole[:, place]) for place, name in enumerate(names)}


def only_device(connection: sqlite3.Connection, device: int) -> None:
    """Let the connection see the rows of one device only: views of the tables' names hide the tables.

    Rows without a device are seen too. Tables that name tasks or calls and no device follow their tasks.
    """
    tables = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
    known = {table: columns_of(connection, table) for table in tables if '"' not in table}
    mine = f"(deviceId = {int(device)} or deviceId is null)"
    tasks = f"select globalTaskId from main.TASK where {mine}"
    for table, columns in known.items():
        if "deviceId" in columns:
            test = mine
        elif "globalTaskId" in columns and "deviceId" in known.get("TASK", ()):
            test = f"globalTaskId in ({tasks})"
        elif table == "COMMUNICATION_OP" and "deviceId" in known.get("TASK", ()):
            # Schema 1.0.0 knows no device of a call: it is where its sub-tasks or its launch's tasks ran.
            ways = [f"connectionId in (select connectionId from main.TASK where {mine})"]
            if "opId" in known.get("COMMUNICATION_TASK_INFO", ()):
                info = f"select opId from main.COMMUNICATION_TASK_INFO where globalTaskId in ({tasks})"
                ways.append(f"opId in ({info})")
            test = f"({' or '.join(ways)})"
        else:
            continue
        connection.execute(f'create temp view "{table}" as select * from main."{table}" where {test}')


class Strings:
    """STRING_IDS, or another table of that form: ids to text."""

    def __init__(self, connection: sqlite3.Connection, table: str = "STRING_IDS") -> None:
        rows: list[tuple[int, object]] = []
        if columns_of(connection, table):
            rows = connection.execute(
                f"select id, value from \"{table}\" where typeof(id) = 'integer' order by id"
            ).fetchall()
        self.ids = np.array([row[0] for row in rows], np.int64)
        self.values = ["" if row[1] is None else str(row[1]) for row in rows]

    def text(self, ids: Ints) -> Text:
        """Text column of a column of ids; ids that are not in the table, "N/A" and empty text are unknown."""
        codes = look_up(self.ids, ids)
        return Text(codes.astype(np.int32), self.values).relabel(lambda word: None if word in _UNKNOWN else word)

    def id_of(self, word: str) -> int | None:
        """The first id of a text."""
        return int(self.ids[self.values.index(word)]) if word in self.values else None


_UNKNOWN: Final = frozenset({"", "N/A", "NA"})


def look_up(sorted_ids: Ints, wanted: Ints) -> Ints:
    """Place of each wanted id in a sorted column, -1 where it is not there; an unknown id is nowhere."""
    if not len(sorted_ids):
        return np.full(len(wanted), -1, np.int64)
    place = np.clip(np.searchsorted(sorted_ids, wanted), 0, len(sorted_ids) - 1)
    return np.where((sorted_ids[place] == wanted) & (wanted != NULL), place, -1).astype(np.int64)


def first_rows(ids: Ints, wanted: Ints) -> Ints:
    """First row with each wanted id in an unsorted column, -1 where there is none."""
    order = np.argsort(ids, kind="stable")
    place = look_up(ids[order], wanted)
    found: Ints = np.where(place >= 0, order[np.clip(place, 0, None)] if len(order) else -1, -1).astype(np.int64)
    return found


def enum_text(connection: sqlite3.Connection, table: str, fallback: Mapping[int, str], values: Ints) -> Text:
    """A column of enumeration values as text: by the file's own table, else by the documented list."""
    names = dict(fallback)
    if columns_of(connection, table):
        listed = connection.execute(f"select id, name from \"{table}\" where typeof(id) = 'integer'")
        names = {row[0]: row[1] for row in listed}
    ids = sorted(names)
    codes = look_up(np.array(ids, np.int64), values)
    return Text(codes.astype(np.int32), [str(names[i]) for i in ids])
