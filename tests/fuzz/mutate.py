"""Damage of every kind: to bytes, lines, cells, JSON values, databases and folders. One seed gives one damage."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.fuzz import meanings
from tests.fuzz.seeds import RULES

ODD_TEXT: Final = (
    "", " ", "0", "-1", "1", "N/A", "NaN", "nan", "inf", "-inf", "1e999", "-1e308", "1e-320", "0x10", "1_000", "1,5",
    "١", "²", "9" * 5000, "9" * 19, "9" * 40, "-" + "9" * 25, "1.7976931348623157e308",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "0.0000000000000000001",
    "true", "None", "null", "[]", "{}", "\x00", "\ufeff",
    "\ud83d\ude00", "a" * 5000, '"', "'", "\t", ";",
    "n" * 100_000, "\u202egnp.\u202c", "a\x00b", "\ud800",
    "</script>", "../../etc/passwd", "hcom_allReduce__1_2", "=1+1", "%s%n", "{0}",
)  # fmt: skip
ODD_JSON: Final[tuple[object, ...]] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30,
    float("nan"), float("inf"), [], {}, [[]], [None], {"": None}, *ODD_TEXT,
)  # fmt: skip
ODD_CELLS: Final[tuple[object, ...]] = (
    None, 0, -1, 1, 1.5, 1e308, 2**31, 2**63 - 1, -(2**63), float("inf"), b"\xff\x00", b"", *ODD_TEXT,
)  # fmt: skip
ODD_BYTES: Final = (
    b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b"\r\n", b"\\",
    b"\\u12", b"NaN", b"-", b"1e999", b"[" * 3000, b'{"a":' * 3000, b"null",
    b"\x1f\x8b\x08", b"SQLite format 3\x00", b"#", b"//",
)  # fmt: skip
MAX_DAMAGES: Final = 4


def damage(folder: Path, rng: random.Random) -> list[str]:
    """Damage some of the files below a folder; what was done, in words."""
    done = []
    for _ in range(rng.randint(1, MAX_DAMAGES)):
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("unaging"))
        if not files:
            break
        path = rng.choice(files)
        if (folder / RULES) in files and rng.random() < 0.7:
            path = folder / RULES
        elif len(files) > 1 and rng.random() < 0.1:
            path.unlink()  # first of all, what is left is what analyzers have to do without
            done.append(f"{path.name}: removed")
            continue
        try:
            what = rng.choice(_ways(path))(path, rng)
        except _BEYOND:
            what = _bytes(path, rng)  # damaged beyond that way already
        done.append(f"{path.name}: {what}")
    return done


_Way = Callable[[Path, random.Random], str]
_BEYOND: Final = (
    UnicodeError, ValueError, IndexError, KeyError, TypeError, sqlite3.Error, RecursionError, OSError, EOFError,
    zlib.error,
)  # fmt: skip


def _ways(path: Path) -> Sequence[_Way]:
    """What can be done to a file, the more usual ones several times."""
    if path.suffix in (".db", ".sqlite"):
        return [_database] * 4 + [meanings.database] * 4 + [_bytes, _file]
    if path.suffix == ".gz":
        return [_inside] * 7 + [_bytes, _file]
    if path.suffix == ".yaml":
        return [_bytes, _lines] + [meanings.limits] * 8
    own: dict[str, Sequence[_Way]] = {
        ".jsonl": [_json_line] * 6 + [meanings.numbers] * 2,
        ".json": [_json] * 4 + [meanings.json_values] * 4,
        ".csv": [_cells] * 4 + [meanings.csv_columns] * 4,
    }
    return [_bytes, _bytes, _lines, _lines, _file, *own.get(path.suffix, [meanings.numbers] * 4)]


def _inside(path: Path, rng: random.Random) -> str:
    """Damage to what a gzip file holds; the file itself stays one."""
    inner = path.with_suffix("")
    inner.write_bytes(gzip.decompress(path.read_bytes()))
    try:
        what = rng.choice([way for way in _ways(inner) if way is not _file])(inner, rng)
        path.write_bytes(gzip.compress(inner.read_bytes(), 1))
    finally:
        inner.unlink()
    return f"inside: {what}"


def _bytes(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    at = rng.randint(0, len(data))
    length = min(rng.choice((1, 1, 4, 64, 4096)), len(data) - at)
    way = rng.choice(("cut", "flip", "drop", "double", "insert", "replace"))
    if way == "cut":
        data = data[:at]
    elif way == "flip":
        data = data[:at] + bytes(b ^ rng.randrange(1, 256) for b in data[at : at + length]) + data[at + length :]
    elif way == "drop":
        data = data[:at] + data[at + length :]
    elif way == "double":
        data = data[: at + length] + data[at:]
    else:
        data = data[:at] + rng.choice(ODD_BYTES) + data[at if way == "insert" else at + length :]
    path.write_bytes(data)
    return f"{way} {length} bytes at {at}"


def _lines(path: Path, rng: random.Random) -> str:
    lines = path.read_bytes().split(b"\n")
    at = rng.randrange(len(lines))
    way = rng.choice(("drop", "double", "swap", "header again", "shuffle", "many"))
    if way == "drop":
        del lines[at]
    elif way == "double":
        lines.insert(at, lines[at])
    elif way == "swap":
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif way == "header again":
        lines.insert(at, lines[0])
    elif way == "shuffle":
        rng.shuffle(lines)
    else:
        lines[at:at] = [lines[at]] * 200
    path.write_bytes(b"\n".join(lines))
    return f"{way} line {at}"


def _cells(path: Path, rng: random.Random) -> str:
    rows = [line.split(",") for line in path.read_text("utf-8").split("\n")]
    at = rng.randrange(max(1, len(rows) - 1))
    column = rng.randrange(max(1, len(rows[0])))
    way = rng.choice(("cell", "cell", "column", "drop column", "rename", "double column", "move column", "short row"))
    value = rng.choice(ODD_TEXT)
    for number, row in enumerate(rows):
        if len(row) <= column:
            continue
        if (way == "cell" and number == at) or (way == "column" and number) or (way == "rename" and not number):
            row[column] = value
        elif way == "drop column":
            del row[column]
        elif way == "double column":
            row.insert(column, row[column])
        elif way == "move column":
            row.append(row.pop(column))
        elif way == "short row" and number == at:
            del row[column:]
    path.write_text("\n".join(",".join(row) for row in rows), "utf-8", errors="surrogatepass")
    return f"{way} {column} of row {at}: {value[:20]!r}"


def _json(path: Path, rng: random.Random) -> str:
    root: object = json.loads(path.read_text("utf-8"))
    place: list[object] = []
    parent, key, node = None, None, root
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.8):
        parent = node
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
        place.append(key)
    way = rng.choice(("replace", "replace", "drop", "double", "wrap", "rename"))
    value = rng.choice(ODD_JSON)
    if isinstance(parent, dict):
        if way == "drop":
            del parent[key]
        elif way == "rename":
            parent[rng.choice(ODD_TEXT)] = parent.pop(key)
        else:
            parent[key] = [node] if way == "wrap" else [node, node] if way == "double" else value
    elif isinstance(parent, list):
        assert isinstance(key, int)
        if way == "drop":
            del parent[key]
        elif way == "double":
            parent[key:key] = [node] * rng.choice((1, 100))
        else:
            parent[key] = {"a": node} if way == "wrap" else value
    else:
        root = value
    path.write_text(json.dumps(root), "utf-8")
    return f"{way} {place}: {str(value)[:20]!r}"


def _json_line(path: Path, rng: random.Random) -> str:
    """Damage to one line of JSON lines, or the same change of meaning in each of them."""
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    inner = path.with_suffix(".json")
    at = rng.randrange(len(lines))
    try:
        if rng.random() < 0.5:
            inner.write_text(lines[at], "utf-8")
            what = f"line {at}: {_json(inner, rng)}"
            lines[at] = inner.read_text("utf-8")
        else:
            inner.write_text(json.dumps([json.loads(line) for line in lines]), "utf-8")
            what = meanings.json_values(inner, rng)
            lines = [json.dumps(line) for line in json.loads(inner.read_text("utf-8"))]
    finally:
        inner.unlink()
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return what


def _database(path: Path, rng: random.Random) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = sorted(row[0] for row in connection.execute("select name from sqlite_master where type = 'table'"))
        table = f'"{rng.choice(tables)}"'
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        column = f'"{rng.choice(columns)}"'
        way = rng.choice(("cell", "cell", "column", "drop table", "drop column", "rename", "empty", "double", "view"))
        value = rng.choice(ODD_CELLS)
        if way == "cell":
            ids = [row[0] for row in connection.execute(f"select rowid from {table}")]
            where = f" where rowid = {rng.choice(ids)}" if ids else ""
            connection.execute(f"update {table} set {column} = ?{where}", (value,))
        elif way == "column":
            connection.execute(f"update {table} set {column} = ?", (value,))
        elif way == "drop table":
            connection.execute(f"drop table {table}")
        elif way == "drop column":
            connection.execute(f"alter table {table} drop column {column}")
        elif way == "rename":
            connection.execute(f'alter table {table} rename column {column} to "odd"')
        elif way == "empty":
            connection.execute(f"delete from {table}")
        elif way == "double":
            connection.execute(f"insert into {table} select * from {table}")
        else:
            connection.execute(f'alter table {table} rename to "kept"')
            connection.execute(f'create view {table} as select * from "kept", "kept" as b')
    return f"{way} {table}.{column}: {str(value)[:20]!r}"


def _file(path: Path, rng: random.Random) -> str:
    ways: dict[str, Callable[[], object]] = {
        "remove": path.unlink,
        "empty": lambda: path.write_bytes(b""),
        "noise": lambda: path.write_bytes(rng.randbytes(rng.choice((1, 100, 5000)))),
        "folder": lambda: _replaced(path, path.mkdir),
        "link to itself": lambda: _replaced(path, lambda: path.symlink_to(path)),
        "gzip": lambda: path.write_bytes(gzip.compress(path.read_bytes())),
        "copy": lambda: shutil.copy(path, path.with_name("copy_" + path.name)),
        "exchange": lambda: _exchange(path, rng.choice(sorted(p for p in path.parent.iterdir() if p.is_file()))),
    }
    way = rng.choice(sorted(ways))
    ways[way]()
    return way


def _replaced(path: Path, make: Callable[[], object]) -> None:
    path.unlink()
    make()


def _exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
