"""Instants per second of the critical path: building the graph, walking all steps, room, and replays of changes.

    python benchmarks/bench_critical_path.py [--kernels 5000 20000 80000] [--traces FOLDER]

Inputs: generated steps of one host thread that launches kernels on three streams, with a synchronisation now and then;
and the largest real Kineto trace where the collection is at hand. Nothing is written; times are wall clock of one run
in one process, the best of three.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ascend_perf import pipeline
from ascend_perf.analyzers._path_build import path_graph
from ascend_perf.analyzers._path_graph import slack_of
from ascend_perf.analyzers._path_walk import paths_of
from ascend_perf.analyzers._path_whatif import what_if
from ascend_perf.analyzers._steps import representative, step_windows
from ascend_perf.analyzers.critical_path import part_of_step
from ascend_perf.model.table import NULL, Ints, Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS, RUNTIME_CALLS, STEPS
from ascend_perf.model.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
OWLV2 = "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz"
REPEATS = 3


def generated(kernels: int) -> Trace:
    """A step of so many kernels: each an operator with a launch; 12 types on 3 streams; every 500th is waited for."""
    rng = random.Random(7)
    now, free = 0, [0, 0, 0]
    ops: list[tuple[int, int]] = []
    calls: list[tuple[int, int]] = []
    tasks: list[tuple[int, int, int, int, int, int]] = []
    waits: list[tuple[int, int]] = []
    for number in range(kernels):
        begin = now
        now += rng.randrange(2_000, 12_000)
        launch = now
        now += rng.randrange(3_000, 8_000)
        stream = number % 3
        start = max(now + 4_000, free[stream] + 1_000)
        free[stream] = start + rng.randrange(2_000, 60_000)
        calls.append((launch, now - launch))
        tasks.append((start, free[stream] - start, stream, launch, now, number))
        ops.append((begin, now - begin))
        if number % 500 == 499:
            done = max(now, *free) + 5_000
            waits.append((now, done - now))
            now = done
    end = max(now, *free)
    names = [f"Type{number % 12}" for number in range(kernels)]
    columns = [np.array(column, np.int64) for column in zip(*tasks, strict=True)]
    apis = np.array(calls + waits, np.int64)
    table = {
        "steps": Table(STEPS, {"step_id": _ints([1]), "start_ns": _ints([0]), "dur_ns": _ints([end])}),
        "kernels": Table(
            KERNELS,
            {
                "start_ns": columns[0], "dur_ns": columns[1], "stream": columns[2], "launch_start_ns": columns[3],
                "launch_end_ns": columns[4], "correlation": columns[5], "name": Text.of(names),
                "op_type": Text.of(names),
            },
        ),
        "host_ops": Table(
            HOST_OPS,
            {
                "start_ns": _ints([o[0] for o in ops]), "dur_ns": _ints([o[1] for o in ops]),
                "name": Text.of([f"aten::{name.lower()}" for name in names]), "thread": np.ones(kernels, np.int64),
            },
        ),
        "runtime_calls": Table(
            RUNTIME_CALLS,
            {
                "start_ns": apis[:, 0], "dur_ns": apis[:, 1], "thread": np.ones(len(apis), np.int64),
                "api": Text.of(["cudaLaunchKernel"] * kernels + ["cudaDeviceSynchronize"] * len(waits)),
                "correlation": np.concatenate((np.arange(kernels), np.full(len(waits), NULL))),
            },
        ),
    }  # fmt: skip
    return Trace(table)


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def best(call: Callable[[], object]) -> float:
    """Shortest of a few runs, s."""
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent)


def report(label: str, trace: Trace) -> None:
    """Print one line per part of the work."""
    windows = step_windows(trace)
    shown = representative(trace, windows) or 0
    path = path_graph(trace)
    part = part_of_step(path, windows, shown)
    ideal = np.full(max(1, len(path.tasks)), NULL, np.int64)
    size, instants = len(path.graph), len(part.graph)
    changes = len(what_if(part, path.elements, ideal).outcomes)
    print(f"{label}: {size} instants, {len(path.graph.cross)} cross edges, {len(path.tasks)} tasks")
    for what, count, spent in (
        ("build the graph", size, best(lambda: path_graph(trace))),
        ("walk all steps", size, best(lambda: paths_of(path, windows, list(range(len(windows)))))),
        ("room of a step", instants, best(lambda: slack_of(part))),
        (
            f"{changes + 1} replays of a step",
            instants * (changes + 1),
            best(lambda: what_if(part, path.elements, ideal)),
        ),
    ):
        print(f"  {what:<24} {spent * 1e3:>9.1f} ms {count / max(spent, 1e-9):>14,.0f} instants/s", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=[5_000, 20_000, 80_000])
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path(os.environ.get("ASCEND_PERF_TRACES") or ROOT.parent / "shared" / "traces"),
        help="folder of real profiles",
    )
    options = parser.parse_args()
    for kernels in options.kernels:
        report(f"generated step of {kernels} kernels", generated(kernels))
    owlv2 = options.traces / OWLV2
    if owlv2.is_file():
        report("Kineto, H100 owlv2", pipeline.load(owlv2).traces[0])


if __name__ == "__main__":
    main()
