"""What readers of a training run's own figures share: names of the figures, numbers as logged, and the table.

A figure is found by its name without regard to case, signs between words and a leading `train_`, `training_`,
`metrics_` or `trainer_`: `train/loss`, `Train-Loss` and `loss` are one. `ALIASES` lists the names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Kind, Table, Values
from ascend_perf.model.trace import Dropped, Meta, ProfilerSettings, Source, Trace

MAX_ROWS: Final = 1_000_000
"""Further rows of one file are counted and left out. Status: assumed; a run of months logs fewer."""
MAX_BYTES: Final = 1 << 30
"""A file beyond this is refused. Status: assumed."""
MAX_STEP: Final = 1 << 53
_KEYS: Final = frozenset({"step", "rank", "time_ns"})
_MAX_NUMBER: Final = 64
"""Characters of a number. Status: assumed."""

TOO_MANY: Final = "row beyond the first million"
NO_STEP: Final = "row without a readable step"
ODD_VALUE: Final = "value that is no number"


class Figure(NamedTuple):
    """A column of the table, and what a logged number is multiplied by."""

    column: str
    factor: float = 1.0


def _all(column: str, names: str, factor: float = 1.0) -> dict[str, Figure]:
    return {name: Figure(column, factor) for name in names.split()}


ALIASES: Final[dict[str, Figure]] = {
    **_all("step", "step steps iteration iterations iter global_step globalstep current_step"),
    **_all("loss", "loss lm_loss total_loss mean_loss loss_train lm_loss_train ce_loss"),
    **_all("learning_rate", "learning_rate lr"),
    **_all("grad_norm", "grad_norm gradnorm gradient_norm global_grad_norm total_grad_norm global_norm gnorm"),
    **_all("loss_scale", "loss_scale loss_scaler grad_scale scaling_sens amp_scale"),
    **_all("skipped", "skipped skipped_iterations skipped_steps number_of_skipped_iterations overflow overflow_cond"),
    **_all("nan_iterations", "nan_iterations number_of_nan_iterations"),
    **_all("iteration_ns", "elapsed_time_per_iteration_ms iteration_time_ms step_time_ms per_step_time_ms", 1e6),
    **_all("iteration_ns", "elapsed_time_per_iteration_s iteration_time_s step_time_s iteration_time step_time", 1e9),
    **_all("iteration_ns", "iteration_ns"),
    **_all("items_per_s", "items_per_s tokens_per_s tokens_s tokens_per_second samples_per_second samples_per_s"),
    **_all("items_per_s", "tokens_sec_gpu tokens_per_gpu_tokens_s_gpu"),
    **_all("flops_per_s", "throughput_per_gpu_tflop_s_gpu throughput_per_npu_tflop_s_npu tflops", 1e12),
    **_all("eval_loss", "eval_loss val_loss valid_loss validation_loss test_loss"),
    **_all("accuracy", "accuracy acc eval_accuracy val_accuracy test_accuracy"),
    **_all("rank", "rank global_rank"),
}
"""Names as `plain` writes them, and the column that each fills."""

TRAINED: Final = frozenset({"loss", "grad_norm", "loss_scale"})
"""A file whose rows have a step and one of these is a training series."""

_PREFIX: Final = re.compile(r"^(?:train|training|metrics|trainer)_(?=.)")
_RANK_NAME: Final = re.compile(r"(?:^|[^a-z])rank[_\-.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TORCHRUN_NAME: Final = re.compile(r"(?:stdout|stderr)\.log")


@lru_cache(maxsize=4096)
def figure_of(name: str) -> Figure | None:
    """The figure that a name in a file stands for, None when it is none of ours."""
    words = plain(name)
    return ALIASES.get(words) or ALIASES.get(_PREFIX.sub("", words))


def plain(name: str) -> str:
    """A name in lower case with one `_` for what is no letter and no digit."""
    return re.sub(r"[^a-z0-9]+", "_", name[:200].lower()).strip("_")


def number(value: object) -> float | None:
    """A logged number, NaN and infinity too; None when it is none."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        text = value.strip().strip("[]")
        if len(text) > _MAX_NUMBER or "_" in text:
            return None
        if text.lower() in ("true", "false"):
            return float(text.lower() == "true")
        value = text
    elif not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def rank_of_path(path: Path) -> int | None:
    """The rank that a file's name, or the name of its folder, gives: rank_3.log, rank3/loss.csv, 3/stdout.log."""
    for name in (path.name, path.parent.name):
        if match := _RANK_NAME.search(name):
            return int(match[1])
    if _TORCHRUN_NAME.fullmatch(path.name) and path.parent.name.isdecimal() and len(path.parent.name) <= 6:
        return int(path.parent.name)
    return None


@dataclass
class Rows:
    """The rows of one file on their way into the table."""

    rank: int | None = None
    """Of rows that do not name one."""
    rows: list[dict[str, float]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count rows or values that are not used."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def add(self, values: Mapping[str, object], *, time_ns: int | None = None, rank: int | None = None) -> bool:
        """Take the figures of one row; names that are none of ours are passed over. False when none was taken."""
        row: dict[str, float] = {}
        for name, value in values.items():
            figure = figure_of(name)
            if figure is None or value is None or value == "":
                continue
            found = number(value)
            if found is None:
                self.drop(ODD_VALUE)
            elif figure.column not in row:  # the first name that stands for a figure counts
                row[figure.column] = found * figure.factor
        return self.take(row, time_ns=time_ns, rank=rank)

    def take(self, row: dict[str, float], *, time_ns: int | None = None, rank: int | None = None) -> bool:
        """Take one row of figures by column."""
        step = row.get("step")
        if len(row) < 2:
            return False
        if step is None or not (0 <= step < MAX_STEP and step == int(step)):
            self.drop(NO_STEP)
            return False
        if len(self.rows) >= MAX_ROWS:
            self.drop(TOO_MANY)
            return False
        if time_ns is not None:
            row["time_ns"] = time_ns  # an int, which a float could not hold
        if rank is not None:
            row["rank"] = rank
        elif self.rank is not None:
            row.setdefault("rank", self.rank)
        last = self.rows[-1] if self.rows else {}
        if last.get("step") == step and last.get("rank") == row.get("rank") and not (row.keys() & last) - _KEYS:
            last.update(row)  # some write one line for each figure of a step
        else:
            self.rows.append(row)
        return True

    def is_trained(self) -> bool:
        """Whether at least one row has a figure of training."""
        return any(not TRAINED.isdisjoint(row) for row in self.rows)

    def table(self) -> Table:
        """The rows as a table, in the order of the file."""
        columns: dict[str, Values] = {}
        names = dict.fromkeys(name for row in self.rows for name in row)
        for name in names:
            cells = [row.get(name) for row in self.rows]
            if t.TRAINING_SERIES.column(name).kind is Kind.INT:
                columns[name] = np.array([_whole(cell) for cell in cells], np.int64)
                continue
            floats = np.array([math.nan if cell is None else cell for cell in cells], np.float64)
            if name in ("loss", "grad_norm"):
                given = np.array([cell is not None for cell in cells], bool)
                columns[f"{name}_nonfinite"] = given & ~np.isfinite(floats)
            columns[name] = np.where(np.isfinite(floats), floats, np.nan)
        return Table(t.TRAINING_SERIES, columns)


def _whole(cell: float | None) -> int:
    if cell is None or not math.isfinite(cell) or abs(cell) >= 2.0**62:
        return NULL
    return cell if isinstance(cell, int) else round(cell)


def trace_of(
    rows: Rows, *, label: str, path: Path, form: str, producer: str, environment: Mapping[str, str] | None = None
) -> Trace:
    """The trace of one file; it belongs to no rank, since it may lie beside the profile of one.

    Raises:
        InputError: no row has a loss, a gradient norm or a loss scale.
    """
    if not rows.is_trained():
        raise InputError(f"{label}: no row with a step and a loss, a gradient norm or a loss scale")
    dropped = tuple(Dropped(reason=reason, count=count) for reason, count in rows.dropped.items())
    source = Source(path=label, format=form, rows=len(rows.rows), size_bytes=path.stat().st_size, dropped=dropped)
    meta = Meta(
        label=label, environment=dict(environment or {}), settings=ProfilerSettings(producer=producer),
        sources=(source,),
    )  # fmt: skip
    return Trace({t.TRAINING_SERIES.name: rows.table()}, meta)


def checked_size(path: Path, label: str) -> None:
    """Refuse a file that is too large.

    Raises:
        InputError: it is.
    """
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{label} is larger than {MAX_BYTES >> 30} GiB, which no log of a training run is")
