"""Kinds of the arguments of aclnn operators: `signatures.csv`, made by docs/make_signatures.py."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "signatures.csv"

KINDS: Final[Mapping[str, str]] = {
    "t": "aclTensor", "l": "aclTensorList", "s": "aclScalar", "z": "aclScalarList", "i": "aclIntArray",
    "f": "aclFloatArray", "b": "aclBoolArray", "c": "char *", "n": "64-bit integer", "m": "32-bit integer or enum",
    "y": "bool or 8-bit integer", "d": "double", "e": "float",
}  # fmt: skip
"""Letters of a signature. Workspace size and executor, the last two arguments of each operator, have none."""

EVIDENCE: Final[Mapping[str, str]] = {
    "call": "types at the calls in torch_npu's library",
    "source": "call in the public source of op-plugin",
    "header": "declaration in a public CANN operator repository",
    "observed": "a call that was watched at run time",
}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One row: `kinds` has a letter per argument."""

    operator: str
    kinds: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """All rows, and the torch_npu versions whose calls they were checked with."""

    rows: Mapping[str, Signature]
    versions: tuple[str, ...]


@lru_cache(maxsize=1)
def table() -> Table:
    """The table, read once."""
    return parse(FILE.read_text("utf-8"))


def parse(text: str) -> Table:
    """A table from its text: comment lines, a header, rows. ValueError for what is not such a table."""
    versions: tuple[str, ...] = ()
    lines = []
    for line in text.splitlines():
        if line.startswith("# torch_npu:"):
            versions = tuple(line.partition(":")[2].split())
        elif not line.startswith("#"):
            lines.append(line)
    rows: dict[str, Signature] = {}
    for row in csv.DictReader(lines):
        operator, kinds, evidence = row["operator"], row["kinds"], tuple(row["evidence"].split("+"))
        if not set(kinds) <= set(KINDS) or not set(evidence) <= set(EVIDENCE) or operator in rows:
            raise ValueError(f"row {operator} is wrong")
        rows[operator] = Signature(operator=operator, kinds=kinds, evidence=evidence)
    return Table(rows=rows, versions=versions)
