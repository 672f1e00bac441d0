"""Profiles whose every text field holds something hostile behind its own text, so that readers still know it."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.fuzz.seeds import SEEDS

TEXTS: Final = (
    "<script>window.hacked = 1</script>", "</script><img src=x onerror='window.hacked = 2'>", "\"'`' onload=\"x",
    "nul\x00 bell\x07 escape\x1b[31m", "\u202eoverride\u2066 isolate", "\u200fmark\u061c", "\u05e9\u05dc\u05d5\u05dd 5",
    "\U0001f680 \u4e2d\u6587", "[link](javascript:window.hacked=3) | **bold** `code`", "{{ 7 * 7 }} ${7*7} {% raw %}",
)  # fmt: skip
LONG: Final = "L" * 100_000
"""A name of 100 kB, in few places only: the files stay small."""

_PLAIN: Final = re.compile(r"[-+.\d\s:;,eE]*|N/A|NaN|true|false", re.IGNORECASE)
_FIXED: Final = frozenset({"ph", "cat", "bp", "s", "id", "ts", "dur", "level", "rank", "schemaVersion"})


STEP: Final = "ProfilerStep#"


def write(kind: str, folder: Path) -> Path:
    """A profile of a kind of `tests.fuzz.seeds`, its texts made hostile, those of metadata and steps too."""
    folder.mkdir()
    SEEDS[kind](folder)
    texts = itertools.cycle((*TEXTS * 5, LONG))
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            document = _walked(json.loads(path.read_text("utf-8")), texts)
            events = document.get("traceEvents") if isinstance(document, dict) else document
            if isinstance(events, list) and events and "ph" in events[0]:
                events += _strangers(events)
            path.write_text(json.dumps(document), "utf-8")
        elif path.suffix == ".csv":
            _csv(path, texts)
        elif path.suffix == ".db":
            _database(path, texts)
    return folder


def _strangers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Processes and threads that no reader knows, named and labelled by each of the texts, and steps named so."""
    at = next(event["ts"] for event in events if event.get("ph") == "X")
    made: list[dict[str, Any]] = []
    for number, text in enumerate((*TEXTS, LONG)):
        pid = 90_000 + number
        made += [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": text}},
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": text}},
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": 1, "args": {"name": text}},
            {"ph": "M", "name": text, "pid": pid, "tid": 1, "args": {"name": text}},
            {"ph": "X", "name": text, "cat": "user_annotation", "pid": pid, "tid": 1, "ts": at, "dur": 1,
             "args": {text: text}},
            {"ph": "X", "name": f"{STEP}{number + 50}{text}", "cat": "user_annotation", "pid": pid, "tid": 1,
             "ts": at, "dur": 1},
        ]  # fmt: skip
    return made


def _spoilt(text: str, texts: Iterator[str]) -> str:
    return text if _PLAIN.fullmatch(text) or text.startswith(STEP) else text + next(texts)


def _walked(node: Any, texts: Iterator[str], key: str = "") -> Any:
    if isinstance(node, dict):
        if node.get("ph") == "M":
            # What a process is, readers know by its name alone: the names of strangers are hostile.
            args = {k: v if k == "name" else _walked(v, texts, k) for k, v in node.get("args", {}).items()}
            return node | {"args": args}
        return {k: _walked(v, texts, k) for k, v in node.items()}
    if isinstance(node, list):
        return [_walked(item, texts, key) for item in node]
    return _spoilt(node, texts) if isinstance(node, str) and key not in _FIXED else node


def _csv(path: Path, texts: Iterator[str]) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    # Columns that decide what a row is keep their text in two of three rows.
    named = {i for i, name in enumerate(head) if "name" in name.lower()}
    for number, row in enumerate(rows):
        for i, cell in enumerate(row):
            if i in named or number % 3 == 0:
                row[i] = _spoilt(cell, texts)
    with path.open("w", encoding="utf-8", newline="") as file:
        if sys.version_info >= (3, 11):
            csv.writer(file).writerows([head, *rows])
        else:  # writes no NUL
            for row in [head, *rows]:
                file.write(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\r\n")


def _database(path: Path, texts: Iterator[str]) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in names:
            columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                found = base.execute(
                    f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\''
                ).fetchall()
                changed = [(_spoilt(text, texts), row) for row, text in found]
                base.executemany(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', changed)
