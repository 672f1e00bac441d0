"""Figures of a training run from its log: by our readers, or by regular expressions of the user's own.

A file of expressions (YAML):

    lines:                                  # the first that matches a line counts
      - 'step (?P<step>\\d+)/\\d+ loss=(?P<loss>\\S+) (?P<tokens_per_s>[\\d.]+) tok/s'
      - 'eval @ (?P<step>\\d+): (?P<eval_loss>\\S+)'
    names: {speed: tokens_per_s}            # optional: what a group of another name stands for
    factors: {took: 1e6}                    # optional: what a number is multiplied by
    rank: 3                                 # optional: of a file that does not name it

Names are those that our readers know (`ALIASES`); others are kept as figures of the log without a meaning of ours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ascend_perf.collectors._patience import patience
from ascend_perf.errors import InputError, first_line
from ascend_perf.model.finding import Metric
from ascend_perf.model.table import NULL, Kind, Table
from ascend_perf.model.tables import TRAINING_SERIES
from ascend_perf.parsers._training_series import Rows, figure_of, number, rank_of_path
from ascend_perf.parsers.discover import find_units, parsers
from ascend_perf.parsers.training_log import log_lines
from ascend_perf.units import Better, Unit

MAX_CONFIG_BYTES: Final = 1 << 20
MAX_EXPRESSIONS: Final = 100
MAX_RANK: Final = 1 << 24
"""Ranks of a job. Status: assumed."""
SKIPPED: Final = 5
"""First logged iterations that means leave out: they compile. Status: assumed."""
UNITS: Final[Mapping[str, tuple[Unit, Better]]] = {
    "loss": ("none", "lower"), "learning_rate": ("none", "none"), "grad_norm": ("none", "none"),
    "loss_scale": ("none", "none"), "skipped": ("count", "lower"), "nan_iterations": ("count", "lower"),
    "iteration_ns": ("ns", "lower"), "items_per_s": ("items_per_s", "higher"),
    "flops_per_s": ("flops_per_s", "higher"), "eval_loss": ("none", "lower"), "accuracy": ("ratio", "higher"),
}  # fmt: skip
_LAST: Final = frozenset({"loss", "learning_rate", "loss_scale", "eval_loss", "accuracy"})
"""Figures whose last value is what counts; of others it is the mean."""
_KEYS: Final = frozenset({"lines", "names", "factors", "rank"})


@dataclass(frozen=True, kw_only=True)
class Expressions:
    """What a file of expressions says."""

    lines: tuple[re.Pattern[str], ...]
    names: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The series of a log, and those of its figures that have no meaning of ours."""

    table: Table
    own: Mapping[str, Sequence[tuple[int | None, float]]]
    """Step and value by name."""
    lines: int
    """Lines of the log that gave a figure; rows where one of our readers read it."""
    reader: str
    name: str = ""
    """The file that was read, of a folder that holds several."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Lines, or values, that could not be used, by reason."""


def expressions_of(path: Path) -> Expressions:
    """The expressions of a file.

    Raises:
        InputError: it cannot be read, or says something that we do not know.
    """
    import yaml

    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{path.name} is too large for a file of expressions")
        made = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check the path") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, a date that is none
        raise InputError(f"{path.name} is no YAML: {first_line(error)}") from error
    return checked_expressions(made, path.name)


def checked_expressions(made: object, label: str) -> Expressions:
    """Expressions of the document of a file.

    Raises:
        InputError: as `expressions_of`.
    """
    if not isinstance(made, dict) or not isinstance(made.get("lines"), list) or not made["lines"]:
        hint = r"- 'step (?P<step>\d+) loss (?P<loss>\S+)'"
        raise InputError(f"{label}: `lines` must be a list of expressions", hint=hint)
    if unknown := sorted(str(key) for key in made.keys() - _KEYS):
        raise InputError(f"{label}: no key {unknown[0]!r}", hint=f"keys: {', '.join(sorted(_KEYS))}")
    if len(made["lines"]) > MAX_EXPRESSIONS:
        raise InputError(f"{label}: more than {MAX_EXPRESSIONS} expressions")
    patterns = []
    for text in made["lines"]:
        try:
            pattern = re.compile(str(text))
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"{label}: {str(text)[:80]!r} is no regular expression: {error}") from error
        if not pattern.groupindex:
            raise InputError(f"{label}: {text!r} names no group", hint=r"write (?P<loss>\S+)")
        patterns.append(pattern)
    groups = {name for pattern in patterns for name in pattern.groupindex}
    names, factors = _mapping(made, "names", label), _mapping(made, "factors", label)
    for key, said in (("names", names), ("factors", factors)):
        if strange := sorted(said.keys() - groups):
            raise InputError(f"{label}: {key}: no expression has a group {strange[0]!r}")
    numbers = {name: number(str(value)) for name, value in factors.items()}
    if bad := [name for name, value in numbers.items() if value is None or not math.isfinite(value)]:
        raise InputError(f"{label}: the factor of {bad[0]!r} is no number")
    rank = made.get("rank")
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < MAX_RANK):
        raise InputError(f"{label}: `rank` must be a whole number from 0 to {MAX_RANK - 1}")
    return Expressions(
        lines=tuple(patterns), names={name: str(value) for name, value in names.items()},
        factors={name: value for name, value in numbers.items() if value is not None}, rank=rank,
    )  # fmt: skip


def _mapping(made: Mapping[str, Any], key: str, label: str) -> dict[str, Any]:
    value = made.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{label}: `{key}` must be a mapping")
    return {str(name): item for name, item in value.items()}


def read(path: Path, expressions: Expressions | None) -> Figures:
    """The figures of a log.

    Args:
        path: the log.
        expressions: the user's; None takes our readers.

    Raises:
        InputError: nothing was found, or an expression takes too long.
    """
    if expressions is None:
        return _by_readers(path)
    rows = Rows(rank=rank_of_path(path) if expressions.rank is None else expressions.rank)
    own: dict[str, list[tuple[int | None, float]]] = {}
    hits, counted = 0, 0
    if not path.is_file():
        raise InputError(f"{path} is no file", hint="check the path")
    with patience() as watched:
        for line in watched.of(log_lines(path)):
            found = next((match for pattern in expressions.lines if (match := pattern.search(line))), None)
            if found is None:
                continue
            hits += 1
            values = {
                expressions.names.get(name, name): _scaled(text, expressions.factors.get(name, 1.0))
                for name, text in found.groupdict().items() if text is not None
            }  # fmt: skip
            step = next((value for name, value in values.items() if _is_step(name)), None)
            if step is None:
                # A log without steps counts its own lines with figures of ours.
                step = float(counted + 1)
                values["step"] = step
            counted += rows.add(values)
            at = int(step) if isinstance(step, float) and math.isfinite(step) else None
            for name, value in values.items():
                if figure_of(name) is None and isinstance(value, float):
                    own.setdefault(name, []).append((at, value))
    if not rows.rows and not own:
        looked = f"{hits} lines match, none has a number" if hits else "no line matches an expression"
        raise InputError(f"{path.name}: {looked}", hint="try one line at a time in Python's re.search")
    return Figures(table=rows.table(), own=own, lines=hits, reader="expressions", dropped=rows.dropped)


def _is_step(name: str) -> bool:
    figure = figure_of(name)
    return figure is not None and figure.column == "step"


def _scaled(text: str, factor: float) -> float | str:
    value = number(text.replace(",", ""))
    return text if value is None else value * factor


def _by_readers(path: Path) -> Figures:
    units, _ = find_units(path)
    known = parsers()
    for unit in units:
        for trace in known[unit.parser].parse(unit):
            if trace.has(TRAINING_SERIES):
                table = trace[TRAINING_SERIES]
                return Figures(
                    table=table, own={}, lines=len(table), reader=unit.parser,
                    name=unit.label if path.is_dir() else "",
                    dropped={one.reason: one.count for source in trace.meta.sources for one in source.dropped},
                )  # fmt: skip
    raise InputError(
        f"{path.name} is no log of training that we know", hint="name its lines with --config, see docs/logs.md"
    )


def metrics_of(figures: Figures, *, skip: int = SKIPPED) -> tuple[Metric, ...]:
    """A metric of each figure: the last value where that counts (loss), else the mean.

    Means leave the first `skip` logged iterations out, if more than twice as many are there.
    """
    table = figures.table
    metrics = []
    for column in TRAINING_SERIES.columns:
        if column.name not in UNITS:
            continue
        values = _values(table, column.name)
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        unit, better = UNITS[column.name]
        if column.name in _LAST:
            metrics.append(Metric(name=f"{column.name}_last", value=float(known[-1]), unit=unit, better=better))
        elif column.name in ("skipped", "nan_iterations"):
            metrics.append(Metric(name=column.name, value=float(known.sum()), unit=unit, better=better))
        else:
            used = _used(known, skip)
            metrics.append(Metric(name=f"{column.name}_mean", value=float(used.mean()), unit=unit, better=better))
            metrics.append(
                Metric(name=f"{column.name}_median", value=float(np.median(used)), unit=unit, better=better)
            )
    for name in ("loss", "grad_norm"):
        odd = int(table.bools(f"{name}_nonfinite").sum()) if len(table) else 0
        if odd:
            metrics.append(Metric(name=f"{name}_nonfinite", value=odd, unit="count", better="lower"))
    for name, pairs in figures.own.items():
        finite = np.array([value for _, value in pairs if math.isfinite(value)], np.float64)
        if len(finite):
            metrics.append(
                Metric(name=f"{name}_mean", value=float(_used(finite, skip).mean()), unit="none", better="none")
            )
    return tuple(metrics)


def _used(values: np.ndarray[Any, np.dtype[np.float64]], skip: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return values[skip:] if len(values) > 2 * skip else values


def _values(table: Table, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if TRAINING_SERIES.column(name).kind is Kind.INT:
        whole = table.ints(name)
        return np.where(whole == NULL, np.nan, whole.astype(np.float64))
    return table.floats(name).astype(np.float64)


def write_jsonl(path: Path, figures: Figures) -> int:
    """Write the series as JSON lines, which `ascend-perf analyze` reads; returns their number."""
    table = figures.table
    own: dict[int, dict[str, float]] = {}
    for name, pairs in figures.own.items():
        for step, value in pairs:
            if step is not None and math.isfinite(value):
                own.setdefault(step, {})[name] = value
    columns = {name: _values(table, name) for name in (*UNITS, "rank", "time_ns")}
    nonfinite = {name: table.bools(f"{name}_nonfinite") for name in ("loss", "grad_norm")}
    steps = table.ints("step").tolist()
    with open(path, "w", encoding="utf-8") as file:
        for at, step in enumerate(steps):
            row: dict[str, object] = {"step": step}
            for name, values in columns.items():
                if math.isfinite(values[at]):
                    is_whole = TRAINING_SERIES.column(name).kind is Kind.INT
                    row[name] = int(table.ints(name)[at]) if is_whole else float(values[at])
                elif name in nonfinite and nonfinite[name][at]:
                    row[name] = "nan"
            file.write(json.dumps({**own.get(step, {}), **row}) + "\n")
    return len(steps)
