"""What collection costs: steps of a loop without us, with the hook alone, and under each level of the profiler.

    python benchmarks/bench_collect.py [--rounds 3] [--steps 60] [--width 128] [--threads 1]

The program is examples/own_loop.py on the CPU, timed by a counter in its own `optimizer.step`, which is the same in all
runs. Each run is a process of its own; per round each kind of run is made once, in turn.

    wall       median time of a step without the profiler: behind the first ten, of a level also behind its recording
    cpu        the same in CPU time of the process, which other work on the machine changes less
    recorded   median CPU time of a step under the profiler; its ratio is to the steps of the same run: the median of
               the rounds, with the smallest and the largest
    export     wall time of the step that waits for the trace to be written, less a step
    command    wall time of the whole command

The hook itself is also timed alone: a step that is not recorded, in a loop that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEVELS = ("quick", "standard", "deep")
SKIP = 10

TIMED = """
import atexit, json, os, runpy, sys, time
times = []
def begin():
    import torch
    class Told(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            result = super().step(*args, **kwargs)
            times.append((time.perf_counter_ns(), time.process_time_ns()))
            return result
    torch.optim.AdamW = Told
begin()
atexit.register(lambda: open(os.environ["BENCH_TIMES"], "w").write(json.dumps(times)))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Measured:
    """One run of the loop."""

    wall_ms: float
    cpu_ms: float
    recorded_ms: float | None
    export_ms: float | None
    wall_s: float
    trace_bytes: int


def run(kind: str, folder: Path, arguments: argparse.Namespace) -> Measured:
    """Run the loop once. `kind` is alone, hook, or a level."""
    target, script, active = folder / f"{kind}.json", folder / "timed.py", arguments.active
    script.write_text(TIMED)
    words = [sys.executable, str(script), str(ROOT / "examples" / "own_loop.py"), "--steps", str(arguments.steps)]
    words += ["--width", str(arguments.width)]
    if kind != "alone":
        level, skip = ("standard", 1_000_000) if kind == "hook" else (kind, SKIP)
        options = ["--level", level, "--skip", str(skip), "--steps", str(active)]
        collect = [sys.executable, "-m", "ascend_perf", "collect", "--with", "torch", "--no-report", "--force"]
        words = [*collect, "-o", str(folder / "run"), *options, "--", *words]
    environment = {**os.environ, "BENCH_TIMES": str(target), "OMP_NUM_THREADS": str(arguments.threads)}
    before = time.perf_counter()
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall_s = time.perf_counter() - before
    ends = json.loads(target.read_text())
    walls, cpus = ([(later[k] - earlier[k]) / 1e6 for earlier, later in pairwise(ends)] for k in (0, 1))
    # Span i is step i + 2.
    if kind not in LEVELS:
        return Measured(statistics.median(walls[SKIP:]), statistics.median(cpus[SKIP:]), None, None, wall_s, 0)
    # The counter stands inside of our wrapper: the span behind step n holds what we do at its end. Step SKIP + 1 warms
    # up (its span also starts the profiler), the next ones are recorded, and the span behind the last one exports.
    wall_ms = statistics.median(walls[SKIP + active + 1 :])
    traces = (folder / "run" / "trace").glob("*")
    return Measured(
        wall_ms=wall_ms, cpu_ms=statistics.median(cpus[SKIP + active + 1 :]),
        recorded_ms=statistics.median(cpus[SKIP : SKIP + active]), export_ms=walls[SKIP + active] - wall_ms,
        wall_s=wall_s, trace_bytes=sum(path.stat().st_size for path in traces),
    )  # fmt: skip


def idle_ns(folder: Path, calls: int = 200_000) -> float:
    """Time of one step that is not recorded."""
    from ascend_perf.collectors.in_process import Session, Settings

    session = Session(Settings(folder=str(folder), skip=1_000_000_000))
    before = time.perf_counter_ns()
    for _ in range(calls):
        session.step()
    return (time.perf_counter_ns() - before) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of ascend-perf collect on the CPU.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--active", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    kinds = ("alone", "hook", *LEVELS)
    found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        print(f"a step that is not recorded costs {idle_ns(Path(name)) / 1e3:.2f} us")
        for _ in range(arguments.rounds):
            for kind in kinds:
                found[kind].append(run(kind, Path(name), arguments))
    load = os.getloadavg()[0]
    print(f"{arguments.rounds} rounds of {arguments.steps} steps, width {arguments.width}, load {load:.1f}")
    print(f"{'run':10}{'wall':>10}{'cpu':>10}{'recorded':>12}{'ratio':>21}{'export':>11}{'command':>10}{'trace':>10}")
    for kind in kinds:
        rows = found[kind]
        line = f"{kind:10}{statistics.median(row.wall_ms for row in rows):7.2f} ms"
        line += f"{statistics.median(row.cpu_ms for row in rows):7.2f} ms"
        if kind in LEVELS:
            times = [row.recorded_ms or 0 for row in rows]
            ratios = sorted(row / own.cpu_ms for row, own in zip(times, rows, strict=True))
            line += f"{statistics.median(times):9.2f} ms"
            line += f"{statistics.median(ratios):7.2f}x ({ratios[0]:.2f}..{ratios[-1]:.2f})"
            line += f"{statistics.median(row.export_ms or 0 for row in rows):8.0f} ms"
        else:
            line += " " * 44
        line += f"{statistics.median(row.wall_s for row in rows):8.1f} s"
        if kind in LEVELS:
            line += f"{statistics.median(row.trace_bytes for row in rows) / 1e6:7.2f} MB"
        print(line)


if __name__ == "__main__":
    main()
