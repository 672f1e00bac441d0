"""What collection costs: steps of a loop without us, with the hook alone, and under each level of the profiler.

    python benchmarks/bench_collect.py [--rounds 3] [--steps 40] [--width 128]

The program is examples/own_loop.py on the CPU. Per round each kind of run is made once, in turn, so that a change of the
machine meets all alike; each run is a process of its own. Step times are told by a counter in the program's own
`optimizer.step`, which is the same in all runs: medians over the steps behind the tenth, and for the levels over the
recorded ones. `command` is the whole command, from its start to its end.

A ratio is the median over the rounds of (this kind / without us) of the same round.
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
            times.append(time.perf_counter_ns())
            return result
    torch.optim.AdamW = Told
begin()
atexit.register(lambda: open(os.environ["BENCH_TIMES"], "w").write(json.dumps(times)))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Measured:
    """One run: median step behind the skipped ones, median recorded step, and the whole command."""

    step_ms: float
    recorded_ms: float | None
    wall_s: float
    trace_bytes: int


def run(kind: str, folder: Path, steps: int, width: int, active: int) -> Measured:
    """Run the loop once. `kind` is alone, hook, or a level."""
    target, script = folder / f"{kind}.json", folder / "timed.py"
    script.write_text(TIMED)
    words = [sys.executable, str(script), str(ROOT / "examples" / "own_loop.py"), "--steps", str(steps)]
    words += ["--width", str(width)]
    if kind != "alone":
        options = ["--level", "standard" if kind == "hook" else kind, "--skip", "1000000" if kind == "hook" else str(SKIP)]
        collect = [sys.executable, "-m", "ascend_perf", "collect", "--with", "torch", "--no-report", "--force"]
        words = [*collect, "-o", str(folder / "run"), *options, "--steps", str(active), "--", *words]
    before = time.perf_counter()
    subprocess.run(
        words, env={**os.environ, "BENCH_TIMES": str(target)}, check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wall_s = time.perf_counter() - before
    ends = json.loads(target.read_text())
    spans = [(later - earlier) / 1e6 for earlier, later in zip(ends, ends[1:], strict=False)]  # span i: step i + 2
    traces = list((folder / "run" / "trace").glob("*")) if kind not in ("alone", "hook") else []
    recorded = None
    if kind in LEVELS:
        # Step SKIP + 1 warms up; the active ones follow. The export is in none of them: it comes after the last.
        recorded = statistics.median(spans[SKIP : SKIP + active])
        spans = spans[SKIP + active + 1 :]  # afterwards, without the one that waits for the export
    else:
        spans = spans[SKIP:]
    return Measured(
        step_ms=statistics.median(spans), recorded_ms=recorded, wall_s=wall_s,
        trace_bytes=sum(path.stat().st_size for path in traces),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of ascend-perf collect on the CPU.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--active", type=int, default=5)
    arguments = parser.parse_args()
    kinds = ("alone", "hook", *LEVELS)
    found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(arguments.rounds):
            for kind in kinds:
                measured = run(kind, Path(name), arguments.steps, arguments.width, arguments.active)
                found[kind].append(measured)
    print(f"{arguments.rounds} rounds of {arguments.steps} steps, width {arguments.width}, load {os.getloadavg()[0]:.1f}")
    print(f"{'run':10} {'step':>9} {'ratio':>7} {'recorded':>9} {'ratio':>7} {'command':>9} {'trace':>9}")
    for kind in kinds:
        rows, base = found[kind], found["alone"]
        step = statistics.median(row.step_ms for row in rows)
        ratio = statistics.median(row.step_ms / own.step_ms for row, own in zip(rows, base, strict=True))
        line = f"{kind:10} {step:6.2f} ms {ratio:6.2f}x"
        if kind in LEVELS:
            times = [row.recorded_ms or 0 for row in rows]
            ratios = statistics.median(row / own.step_ms for row, own in zip(times, base, strict=True))
            line += f" {statistics.median(times):6.2f} ms {ratios:6.2f}x"
        else:
            line += " " * 18
        line += f" {statistics.median(row.wall_s for row in rows):7.2f} s"
        line += f" {statistics.median(row.trace_bytes for row in rows) / 1e6:6.2f} MB" if kind in LEVELS else ""
        print(line)


if __name__ == "__main__":
    main()
