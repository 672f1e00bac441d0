"""Figures of the history: how change points are found in simulated series, and how fast 100,000 results are asked for.

python -m benchmarks.bench_history               both
python -m benchmarks.bench_history --trials 50   fewer series
python -m benchmarks.bench_history --db URL      the results in PostgreSQL (a database that may be filled)
python -m benchmarks.bench_history --postgres    the same, in a server of its own on the loopback interface
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ascend_perf.history.database import Database
from ascend_perf.history.edivisive import Floats, find_steps
from ascend_perf.history.store import Filter, Store
from ascend_perf.history.trends import trends_of
from ascend_perf.result_files import write_results
from tests.history import _postgres, _samples
from tests.history._series import BEFORE, stable, stepped

NAMES = 50
FILES = 2000
"""50 benchmarks in each of 2,000 files: 100,000 results of a benchmark, with four metrics each."""


@dataclass(frozen=True)
class Rates:
    """What the search for change points did with simulated series."""

    spread: float
    size: float
    false_per_100: float
    """Change points in stable series of 100 values, looked at once."""
    false_per_100_nightly: float
    """The same when each series is looked at after every new value, and every point ever reported counts."""
    found_ratio: float
    """Share of steps that are found at their place, within two values, with at most eight values behind it."""
    median_delay: float


def rates(spread: float, size: float, trials: int, seed: int, nightly: int) -> Rates:
    """Simulated rates; the same seed gives the same."""
    random = np.random.default_rng(seed)
    false = sum(len(find_steps(stable(random, 100, spread))) for _ in range(trials)) / trials
    reported = sum(_ever_reported(stable(random, 100, spread)) for _ in range(nightly))
    delays = [delay for _ in range(trials) if (delay := _delay(stepped(random, spread, size, 8))) is not None]
    return Rates(
        spread, size, false, reported / max(nightly, 1), len(delays) / trials,
        float(np.median(delays)) if delays else math.nan,
    )  # fmt: skip


def _ever_reported(logs: Floats) -> int:
    seen: set[int] = set()
    for count in range(8, len(logs) + 1):
        for step in find_steps(logs[:count]):
            if all(abs(step.index - other) > 4 for other in seen):
                seen.add(step.index)
    return len(seen)


def _delay(logs: Floats) -> int | None:
    """Values behind the step when it is found first."""
    for count in range(BEFORE + 1, len(logs) + 1):
        if any(abs(step.index - BEFORE) <= 2 for step in find_steps(logs[:count])):
            return count - BEFORE
    return None


def _timed(name: str, ask: Callable[[], object]) -> None:
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        ask()
        best = min(best, time.perf_counter() - start)
    print(f"  {name:<64} {best * 1e3:8.1f} ms", flush=True)


def queries(url: str | None) -> None:
    """Fill a history with 100,000 results and time what is asked of it."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Database(url or str(Path(folder) / "history.sqlite")))
        names = [f"workload-{number % 10}/preset-{number // 10}/npu/8" for number in range(NAMES)]
        file = Path(folder) / "results.json"
        start = time.perf_counter()
        for number in range(FILES):
            one = _samples.results(number, (1e8 * random.lognormal(0, 0.01, 1)).tolist(), names=names[:1])
            benchmarks = tuple(replace(one.benchmarks[0], name=name) for name in names)
            write_results(file, replace(one, benchmarks=benchmarks))
            store.add(file)
        took = time.perf_counter() - start
        print(f"{FILES * NAMES:,} results of a benchmark in {FILES:,} files added in {took:.0f} s "
              f"({took / FILES * 1e3:.0f} ms a file)")  # fmt: skip
        series = store.series(Filter(benchmark=names[7], metric="step_time_median"))
        _timed("the 20 newest result sets", lambda: store.sets(limit=20))
        _timed("all series of a suite", lambda: store.series(Filter(suite="nightly")))
        _timed("one trend of 2,000 values", lambda: store.points([series[0].id]))
        _timed("the newest value of all: 500 values of 50 trends", lambda: store.points(
            [one.id for one in store.series(Filter(metric="step_time_median"))], last=500))  # fmt: skip
        _timed("a baseline", lambda: store.baseline(Filter(suite="nightly", branch="main"), _samples.MACHINE))
        _timed("100,000 values of one metric", lambda: store.points(
            [one.id for one in store.series(Filter(metric="step_time_median"))]))  # fmt: skip
        _timed("change points of one trend of 2,000 values", lambda: trends_of(
            store, Filter(benchmark=names[7], metric="step_time_median")))  # fmt: skip
        store.database.close()


def main() -> int:
    """Print all figures; exit code 1 when the rates are not what docs/history.md promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--nightly", type=int, default=60)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--db")
    where.add_argument("--postgres", action="store_true")
    parser.add_argument("--only", choices=["rates", "queries"])
    chosen = parser.parse_args()
    code = 0
    if chosen.only != "queries":
        made = []
        print("log-normal values, 5 % of them slow by 5 to 30 %; steps behind 60 values, at most 8 values of the step")
        print("spread  step   false/100  false/100 nightly  found  median delay")
        for spread in (0.005, 0.01, 0.02, 0.03):
            for size in (0.03, 0.05, 0.10):
                one = rates(spread, size, chosen.trials, 1, chosen.nightly if size == 0.05 else 0)
                made.append(one)
                nightly = f"{one.false_per_100_nightly:.3f}" if size == 0.05 else ""
                print(f"{spread:6.1%} {size:5.0%} {one.false_per_100:11.3f} {nightly:>18} {one.found_ratio:6.0%} "
                      f"{one.median_delay:13.0f}", flush=True)  # fmt: skip
        false = max(max(one.false_per_100, one.false_per_100_nightly) for one in made)
        found = min(one.found_ratio for one in made if one.size == 0.05 and one.spread <= 0.01)
        print(f"\nat most {false:.3f} false points per 100 stable values; a step of 5 % is found within 8 values "
              f"in at least {found:.0%} where values scatter by 1 % or less")  # fmt: skip
        code = 0 if false <= 0.1 and found >= 0.90 else 1
    if chosen.only != "rates":
        if not chosen.postgres:
            queries(chosen.db)
        elif (folder := _postgres.programs()) is None:
            parser.error("PostgreSQL is not installed (Debian: apt-get install postgresql)")
        else:
            with _postgres.server(folder) as url:
                queries(f"{url}/postgres")
    return code


if __name__ == "__main__":
    sys.exit(main())
