"""Damage that leaves a file well formed and makes its values odd: whole columns and fields get other meanings.

Times in the year 10^9, times that are all the same, durations below zero, steps that overlap, thousands of streams and
groups, names of 100 kB, ranks that disagree about their job.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

HUGE: Final = (10**3, 10**6, 10**9, 10**12, 10**18)
ODD_WORDS: Final = (
    "n" * 100_000, "\u202egnirts\u202c", "a\x00b", "\u200f\u0627\u0628", "²", "-", "0", "\u4e2d" * 300, "<b>&\"'</b>",
    "a\nb\rc\u2028d", "hcom_allReduce__0_0_0", "MatMul", "ProfilerStep#1", "N/A",
)  # fmt: skip
MANY: Final = 3000
"""Rows of a table that was made large. Rare: most cases must be quick."""

_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")

Change = Callable[[int, float], float]
"""The new value of a number, from its place in the column and the old one."""


def _change(rng: random.Random) -> tuple[str, Change]:
    """One change for all numbers of a column."""
    by = rng.choice(HUGE)
    kept: dict[str, float] = {}
    ways: dict[str, Change] = {
        f"times {by}": lambda _, value: value * by,
        f"plus {by}": lambda _, value: value + by,
        "below zero": lambda _, value: -abs(value) - 1,
        "zero": lambda *_: 0,
        "one": lambda *_: 1,
        "all the same": lambda _, value: kept.setdefault("first", value),
        "rising": lambda place, _: place,
        "falling": lambda place, _: 10**9 - place,
        "far apart": lambda place, value: value + (place % 2) * by,
        "half missing": lambda place, value: value if place % 2 else 0,
        "tiny": lambda _, value: value / 1e6,
        "at random": lambda *_: rng.choice((0, 1, -1, 0.5, 2**31, 2**53, 1e15)),
    }
    name = rng.choice(sorted(ways))
    return name, ways[name]


def _words(rng: random.Random) -> tuple[str, Callable[[int, str], str]]:
    """One change for all texts of a column."""
    word = rng.choice(ODD_WORDS)
    ways: dict[str, Callable[[int, str], str]] = {
        "one word": lambda *_: word,
        "each its own": lambda place, value: f"{value[:40]}_{place}",
        "some odd": lambda place, value: value if place % 7 else word,
        "two": lambda place, _: ("a", "b")[place % 2],
        "longer": lambda _, value: value + word,
        "upper case": lambda _, value: value.upper(),
        "number": lambda place, _: str(place),
    }
    name = rng.choice(sorted(ways))
    return f"{name} {word[:8]!r}", ways[name]


def _as_text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def csv_columns(path: Path, rng: random.Random) -> str:
    """A column of a table changed, or its rows repeated with other times."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    column = rng.randrange(len(rows[0]))
    cells = [row for row in rows[1:] if len(row) > column]
    if rng.random() < 0.08:
        count = max(1, MANY // max(1, len(rows)))
        what, change = _change(rng)
        more = [list(row) for _ in range(count) for row in rows[1:]]
        for place, row in enumerate(more):
            if len(row) > column:
                number = _is_number(row[column])
                row[column] = _as_text(change(place, float(row[column]))) if number else f"{row[column][:50]}_{place}"
        rows += more
        what = f"{count} times, {what}"
    elif any(_is_number(row[column]) for row in cells):
        what, change = _change(rng)
        for place, row in enumerate(cells):
            if _is_number(row[column]):
                row[column] = _as_text(change(place, float(row[column])))
    else:
        what, rename = _words(rng)
        for place, row in enumerate(cells):
            row[column] = rename(place, row[column])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    path.write_text(out.getvalue(), "utf-8", newline="")
    return f"{rows[0][column][:40]}: {what}"


def json_values(path: Path, rng: random.Random) -> str:
    """All values of one key changed wherever it stands, or the list of events made long."""
    root: object = json.loads(path.read_text("utf-8"))
    holders: dict[str, list[dict[str, object]]] = {}
    lists: list[list[object]] = []
    _collect(root, holders, lists)
    if lists and rng.random() < 0.08:
        events = max(lists, key=len)
        what = _longer(events, rng)
    elif holders:
        key = rng.choice(sorted(holders))
        own = holders[key]
        if rng.random() < 0.3:  # only those of one kind, the others keep what they say
            kind = rng.choice(own).get("cat")
            own = [holder for holder in own if holder.get("cat") == kind]
        what = f"{key[:40]}: {_changed(key, own, rng)}"
    else:
        what = "nothing to change"
    path.write_text(json.dumps(root), "utf-8")
    return what


def _collect(root: object, holders: dict[str, list[dict[str, object]]], lists: list[list[object]]) -> None:
    left = [root]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                holders.setdefault(key, []).append(node)
                left.append(value)
        elif isinstance(node, list):
            if node and all(isinstance(item, dict) for item in node):
                lists.append(node)
            left += node


def _changed(key: str, holders: list[dict[str, object]], rng: random.Random) -> str:
    what, change = _change(rng)
    word, rename = _words(rng)
    for place, holder in enumerate(holders):
        value = holder[key]
        if isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, int | float):
            holder[key] = change(place, value)
        elif isinstance(value, str) and _is_number(value):
            holder[key] = _as_text(change(place, float(value)))
        elif isinstance(value, str):
            holder[key] = rename(place, value)
        elif isinstance(value, list) and value:
            holder[key] = rng.choice((value * 2000, value[:1], value[::-1], [*value, *value], list(range(5000))))
        elif isinstance(value, dict):
            holder[key] = rng.choice(({}, {f"{key}_{n}": value for n in range(20)}))
    return f"{what} / {word}"


def _longer(events: list[object], rng: random.Random) -> str:
    count = max(1, MANY // len(events))
    key = rng.choice(("ts", "tid", "pid", "name", "dur", "correlation", "step"))
    by = rng.choice((0, 1, 1000, 10**9))
    more: list[object] = []
    for place in range(count):
        for event in events:
            assert isinstance(event, dict)
            old = event.get(key)
            new: object = f"{old}_{place}"
            if not isinstance(old, str):
                new = old + by * place if isinstance(old, int | float) else old
            more.append({**event, key: new} if key in event else event)
    events += more
    return f"{count} times, {key} plus {by}"


def database(path: Path, rng: random.Random) -> str:
    """A column of a table changed, or its rows repeated."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = sorted(row[0] for row in connection.execute("select name from sqlite_master where type = 'table'"))
        table = f'"{rng.choice(tables)}"'
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        column = f'"{rng.choice(columns)}"'
        if rng.random() < 0.08:
            rows = connection.execute(f"select count(*) from {table}").fetchone()[0]
            count = MANY // max(1, rows)
            shifted = ", ".join(f"{name} + k" if name == column else name for name in (f'"{c}"' for c in columns))
            connection.execute(
                f"insert into {table} with recursive n(k) as "
                f"(select 1 union all select k + 1 from n where k < {count}) select {shifted} from {table}, n"
            )
            return f"{table}.{column}: {count} times"
        rows = connection.execute(f"select rowid, {column} from {table}").fetchall()
        what, change = _change(rng)
        word, rename = _words(rng)
        values: list[tuple[object, int]] = []
        for place, (ident, value) in enumerate(rows):
            new: object = value
            if isinstance(value, int | float):
                new = change(place, value)
                new = int(new) if isinstance(value, int) and abs(new) < 2**63 else float(new)
            elif isinstance(value, str):
                new = rename(place, value)
            values.append((new, ident))
        connection.executemany(f"update {table} set {column} = ? where rowid = ?", values)
    return f"{table}.{column}: {what} / {word}"


def numbers(path: Path, rng: random.Random) -> str:
    """Numbers of a text changed: of all lines the one at some place, or one anywhere."""
    lines = path.read_text("utf-8").split("\n")
    if rng.random() < 0.2:
        lines *= 1 + 300 // max(1, len(lines))
    place = rng.randrange(12)
    what, change = _change(rng)
    only = rng.random() < 0.3
    chosen = rng.randrange(len(lines))
    for at, line in enumerate(lines):
        found = list(_NUMBER.finditer(line))
        if (only and at != chosen) or not found:
            continue
        match = found[place % len(found)]
        lines[at] = f"{line[: match.start()]}{_as_text(change(at, float(match[0])))}{line[match.end() :]}"
    path.write_text("\n".join(lines), "utf-8")
    return f"number {place}: {what}{f' in line {chosen}' if only else ''}"


def limits(path: Path, rng: random.Random) -> str:
    """Thresholds of a user at the ends of what may be stated."""
    lines = path.read_text("utf-8").split("\n")
    part = rng.choice((0.01, 0.1, 1.0))
    count = 0
    for at, line in enumerate(lines):
        name, colon, value = line.partition(": ")
        if not (colon and _is_number(value) and rng.random() < part):
            continue
        values = ("0", "1", "1e-12", "0.5") if name.endswith("ratio") else ("1", "2", "1000000000000")
        lines[at] = f"{name}: {rng.choice(values)}"
        count += 1
    path.write_text("\n".join(lines), "utf-8")
    return f"{count} thresholds"
