"""training.jsonl of a run directory: what each step of a training workload gave, a JSON object per line."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ascend_perf.bench.figures import MeasuredJson


def write_series(path: Path, series: Mapping[str, Sequence[float]], measurement: MeasuredJson) -> None:
    """Write `series` (name to a value per step) with the number, phase and time of each step.

    The steps are those of `collectors.torch_profiler.collect`: warm-up, measured, one of the profiler's own warm-up
    whose time is not known, profiled. Values that are not finite are written as text, since JSON has no such numbers.
    """
    steps = list(_steps(measurement))
    columns = {name: [*values[: len(steps)]] for name, values in series.items()}
    with open(path, "w", encoding="utf-8") as file:
        for number, (phase, time_ns) in enumerate(steps, 1):
            row: dict[str, object] = {"step": number, "phase": phase}
            if time_ns is not None:
                row["iteration_ns"] = time_ns
            for name, values in columns.items():
                if number <= len(values):
                    row[name] = _number(values[number - 1])
            file.write(json.dumps(row, allow_nan=False) + "\n")


def _steps(measurement: MeasuredJson) -> Iterator[tuple[str, int | None]]:
    return itertools.chain(
        (("warmup", time) for time in measurement["warmup_ns"]),
        (("measured", time) for time in measurement["measured_ns"]),
        (("profiler_warmup", None),),
        (("profiled", time) for time in measurement["profiled_ns"]),
    )


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
