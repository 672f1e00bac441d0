"""Tables of a run as CSV files under results/ of its directory."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = "results"
Rows = Sequence[Mapping[str, str | int | float | bool | None]]
_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def write_tables(folder: Path, tables: Mapping[str, Rows]) -> tuple[str, ...]:
    """Write each table as results/<name>.csv; an unknown value is an empty cell. Empty tables are left out.

    Returns:
        Paths relative to the run directory, in order of the names.

    Raises:
        ValueError: a name is no plain word (lower case letters, digits, `_` and `-`).
    """
    written = []
    for name, rows in sorted(tables.items()):
        if not _SAFE.fullmatch(name):
            raise ValueError(f"a table needs a name of lower case letters, digits, _ and -, got {name!r}")
        if not rows:
            continue
        (folder / FOLDER).mkdir(exist_ok=True)
        path = f"{FOLDER}/{name}.csv"
        with open(folder / path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
        written.append(path)
    return tuple(written)
