"""Wall time, CPU time and memory of `ascend-perf analyze` on a job of many ranks, against their limits.

    python benchmarks/bench_job.py [FOLDER] [--gb 2] [--ranks 64] [--light] [--jobs N] [--rounds 1]

Without a folder a job is generated (benchmarks/make_job.py) and removed again. The command runs as a user runs it, in
a process of its own. Memory is the proportional set size (PSS) of it and all its children together, sampled every
fifth of a second: pages that processes share count once. The planted late rank must be among the findings (N-05), so
that a fast wrong answer is no success; the exit code is 1 when it is not, or when a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.make_job import layout_of, make  # noqa: E402

MAX_WALL_S: Final = 180.0
MAX_BYTES: Final = 4_000_000_000
MAX_PAGE_BYTES: Final = 3_000_000
EVERY_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the command and its children took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    processes: int
    """Most at one time."""
    exit_code: int


def measure(command: list[str], log: Path) -> Cost:
    """Run a command, its output in a file, and sample the memory of its process tree."""
    start = time.perf_counter()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        root = psutil.Process(process.pid)
        peak = most = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            sizes = _sizes(root)
            peak, most = max(peak, sum(sizes)), max(most, len(sizes))
            time.sleep(EVERY_S)
    return Cost(
        wall_s=time.perf_counter() - start, cpu_s=usage.ru_utime + usage.ru_stime, peak_bytes=peak, processes=most,
        exit_code=os.waitstatus_to_exitcode(status),
    )  # fmt: skip


def _sizes(root: psutil.Process) -> list[int]:
    """PSS of a process and its descendants; those that end meanwhile are left out."""
    sizes = []
    try:
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
    for process in family:
        try:
            sizes.append(int(process.memory_full_info().pss))
        except psutil.Error:
            continue
    return sizes


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def judged(label: str, value: float, limit: float, unit: str) -> bool:
    """Print a figure beside its limit; whether it is kept."""
    print(f"  {label:<34} {value:>9.1f} {unit:<3} {value / limit:>6.2f} of the limit ({limit:g} {unit})")
    return value <= limit


def run(folder: Path, late: int | None, jobs: int | None) -> bool:
    """One measurement; whether the answer is right and within the limits."""
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch) / "report", Path(scratch) / "log"
        command = [sys.executable, "-m", "ascend_perf", "analyze", str(folder), "-o", str(out)]
        cost = measure(command if jobs is None else [*command, "--jobs", str(jobs)], log)
        if cost.exit_code:
            print(log.read_text()[-2000:])
            print(f"  exit code {cost.exit_code}")
            return False
        report = json.loads((out / "report.json").read_bytes())
        sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    print(f"  ranks in the report {len(report['ranks'])}, processes at one time {cost.processes}")
    kept = judged("wall time", cost.wall_s, MAX_WALL_S, "s")
    print(f"  {'CPU time, all processes':<34} {cost.cpu_s:>9.1f} s")
    kept &= judged("peak memory (PSS), all processes", cost.peak_bytes / 1e6, MAX_BYTES / 1e6, "MB")
    kept &= judged("report.html", sizes["report.html"] / 1e6, MAX_PAGE_BYTES / 1e6, "MB")
    print("  " + ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items() if name != "report.html"))
    named = [f for f in report["findings"] if f["code"] == "N-05" and f["ranks"] == [late]]
    for finding in named[:1]:
        print(f"  {finding['title']}")
    if late is not None and not named:
        print(f"  rank {late} is late and no N-05 names it")
        return False
    return kept


def main() -> None:
    """Print the figures of each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="what make_job.py wrote (with the same --ranks)")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder
        if folder is None:
            folder = Path(scratch) / "job"
            make(folder, ranks=options.ranks, total_bytes=round(options.gb * 1e9), light=options.light)
        size = size_of(folder)
        print(f"{options.ranks} ranks, {size / 1e9:.2f} GB, {size / options.ranks / 1e6:.1f} MB per rank")
        late = layout_of(options.ranks).late
        good = [run(folder, late, options.jobs) for _ in range(options.rounds)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
