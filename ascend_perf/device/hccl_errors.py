"""Error codes and failure phases of HCCL: what they mean, and what to do.

The facts are data (`specs/hccl_errors.yaml`), read once and only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ascend_perf.model.finding import Words

_FILE: Final = Path(__file__).parent / "specs" / "hccl_errors.yaml"


@dataclass(frozen=True, kw_only=True)
class ErrorCode:
    """One code."""

    code: str
    about: Words
    cure: Words


def error_code(code: str) -> ErrorCode | None:
    """What a code means; None for one that is not in the table."""
    entry = _table()["codes"].get(code)
    if entry is None:
        return None
    return ErrorCode(code=code, about=_words(entry["about"]), cure=_words(entry["cure"]))


def known_codes() -> tuple[str, ...]:
    """Codes of the table, in its order."""
    return tuple(_table()["codes"])


def phase_about(reason: str) -> Words | None:
    """What the second word of `[InitGroupStage][...]` and its like means."""
    entry = _table()["phases"].get(reason)
    return None if entry is None else _words(entry)


def known_phases() -> tuple[str, ...]:
    """Reasons of the table, in its order."""
    return tuple(_table()["phases"])


def _words(entry: dict[str, str]) -> Words:
    return Words(entry["en"], entry["zh"])


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(_FILE.read_text("utf-8"))
    assert isinstance(table, dict)
    return table
