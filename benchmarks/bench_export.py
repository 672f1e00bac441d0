"""Throughput and peak memory of `ascend-perf export`, without reading and analyzing.

    python benchmarks/bench_export.py [PATH] [--events 1000000] [--formats perfetto perfetto.gz csv parquet]

Input: a profile, or a generated one of about the wanted number of events: operators that nest on two threads, runtime
calls, kernels on two streams with shapes and counters, memory samples. Each format is written three times to a
temporary file; the best time counts. An event of `perfetto` is one of the file (arrows and names too), of a table one
row. Peak memory is that of the whole process, the trace itself included, and printed after each format.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ascend_perf import pipeline
from ascend_perf.model.run import Run
from ascend_perf.model.table import Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS, MEMORY, RUNTIME_CALLS
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.exports._exporter import Request, exporters

FORMATS = ("perfetto", "perfetto.gz", "csv", "parquet")


def generated(events: int) -> Trace:
    """A trace of about so many rows: of each launch an operator in an operator, a runtime call, a kernel."""
    count = max(1, events * 2 // 9)
    random = np.random.default_rng(1)
    start = 1_700_000_000_000_000_000 + np.arange(count, dtype=np.int64) * 10_000
    thread = np.arange(count, dtype=np.int64) % 2
    names = [f"aten::operator_{i}" for i in range(300)]
    code = random.integers(0, 300, count)
    shapes = Text((code % 97).astype(np.int32), [f"{i + 1},1024,{64 * i + 64};{64 * i + 64},4096" for i in range(97)])
    both = np.repeat(start, 2) + np.tile([0, 500], count)
    ops = Table(HOST_OPS, {
        "start_ns": both, "dur_ns": np.tile([8_000, 7_000], count), "thread": np.repeat(thread, 2),
        "name": Text(np.repeat(code, 2).astype(np.int32), names),
    })  # fmt: skip
    ids = np.arange(count, dtype=np.int64)
    calls = Table(RUNTIME_CALLS, {
        "start_ns": start + 1_000, "dur_ns": np.full(count, 3_000), "thread": thread, "correlation": ids,
        "api": Text.full(count, "aclnnLaunchKernel"),
    })  # fmt: skip
    kernels = Table(KERNELS, {
        "start_ns": start + 20_000, "dur_ns": random.integers(1_000, 9_500, count), "stream": thread,
        "name": Text(code.astype(np.int32), [f"kernel_{i}_AscendC" for i in range(300)]),
        "op_type": Text((code % 40).astype(np.int32), [f"OpType{i}" for i in range(40)]),
        "input_shapes": shapes, "output_shapes": shapes, "correlation": ids, "launch_start_ns": start + 1_000,
        "aic_mac_ratio": random.random(count).round(3), "aiv_vec_ratio": random.random(count).round(3),
        "cube_utilization_ratio": random.random(count).round(5),
    })  # fmt: skip
    samples = Table(MEMORY, {
        "time_ns": start[::2], "component": Text.full(len(start[::2]), "PTA"),
        "allocated_bytes": random.integers(1, 1 << 35, len(start[::2])),
    })  # fmt: skip
    return Trace({t.spec.name: t for t in (ops, calls, kernels, samples)}, Meta(rank=0, label="generated"))


def write_once(name: str, run: Run, folder: Path) -> tuple[int, int]:
    """Write a format once; events (0: rows of tables) and bytes."""
    exporter = exporters().parts[name.removesuffix(".gz")]
    target = folder / f"out.{name}"
    request = Request(run=run, name=target.name)
    if exporter.write_folder is not None:
        target.mkdir()
        exporter.write_folder(request, target)
        return 0, sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    with open(target, "wb") as file:
        exporter.write(request, file)
    if name.endswith(".gz"):
        return 0, target.stat().st_size
    with open(target, "rb") as file:
        return sum(line.count(b'"ph":"') for line in file), target.stat().st_size


def best_of(times: int, call: Callable[[Path], tuple[int, int]]) -> tuple[float, float, int, int]:
    """Least wall and CPU time in s of some calls, and what they gave."""
    walls, cpus, given = [], [], (0, 0)
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            given = call(Path(folder))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus), *given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="*", default=FORMATS, choices=FORMATS)
    options = parser.parse_args()
    run = pipeline.load(options.path) if options.path else Run(traces=(generated(options.events),))
    rows = sum(len(table) for trace in run.traces for table in trace.tables.values())
    print(f"{rows} rows; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB before")
    print("format          events  wall s   cpu s   events/s       MB    MB/s  peak MiB")
    drawn = rows
    for name in options.formats:
        wall, cpu, events, size = best_of(3, lambda folder, name=name: write_once(name, run, folder))  # type: ignore[misc]
        drawn = events or (drawn if name.endswith(".gz") else rows)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name:<12} {drawn:>9} {wall:>7.2f} {cpu:>7.2f} {drawn / wall:>10.0f} {size / 1e6:>8.1f} "
            f"{size / 1e6 / wall:>7.1f} {peak:>9.0f}"
        )


if __name__ == "__main__":
    main()
