"""CPU time, throughput and peak memory of `ascend-perf analyze --format json` on large traces.

    python benchmarks/bench_analyze.py [--megabytes 125 250 500] [--traces FOLDER]

Two inputs: the largest real Kineto trace of the collection (55.6 MB of JSON), and a trace_view.json that is a real one
repeated in time until it has the wanted size (steps, time stamps, flow and connection ids stay unique). Where the
collection is not at hand, both are generated. Everything is measured in one run, each command in a fresh process;
CPU seconds are user + system of that process and its children. `json.load` of the same file is shown beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
OWLV2 = "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz"
TRACE_VIEW = "ascend-pytorch/text/level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    exit_code: int


def measure(command: list[str]) -> Cost:
    """Run a command and return its cost, children included."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return Cost(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.perf_counter() - start,
        peak_bytes=usage.ru_maxrss * 1024,
        exit_code=os.waitstatus_to_exitcode(status),
    )


def repeated(events: list[dict[str, Any]], megabytes: float, path: Path) -> None:
    """Write a trace_view.json of about the wanted size: `events` again and again, later in time, with fresh ids."""
    stamps = [float(e["ts"]) for e in events if "ts" in e]
    period_us = int(max(stamps) - min(stamps)) + 1000
    encode = msgspec.json.Encoder().encode
    with open(path, "wb") as file:
        file.write(b"[")
        copy = 0
        while file.tell() < megabytes * 1e6:
            for event in moved(events, copy, period_us):
                file.write(b"," if file.tell() > 1 else b"")
                file.write(encode(event))
            copy += 1
        file.write(b"]")


def moved(events: list[dict[str, Any]], copy: int, period_us: int) -> Iterator[dict[str, Any]]:
    """The events, `copy` periods later."""
    shift_us = copy * period_us
    for event in events:
        if event["ph"] == "M":
            if copy == 0:
                yield event
            continue
        new = dict(event)
        whole, _, fraction = str(event["ts"]).partition(".")
        new["ts"] = f"{int(whole) + shift_us}.{fraction or '000'}"
        if "id" in event:
            number = int(event["id"])
            number += shift_us * 1000 if event.get("cat") == "async_npu" else copy * 1_000_000_000
            new["id"] = str(number) if isinstance(event["id"], str) else number
        name = event["name"]
        if name.startswith("ProfilerStep#"):
            new["name"] = f"ProfilerStep#{int(name.split('#')[1]) + copy}"
        if isinstance(args := event.get("args"), dict) and "connection_id" in args:
            new["args"] = {**args, "connection_id": int(args["connection_id"]) + copy * 1_000_000_000}
        yield new


def generated_events() -> list[dict[str, Any]]:
    """A step of a synthetic Ascend profile: host ops with stacks, launches, kernels; for machines without real ones."""
    stack = ";\r\n".join(f"/opt/model/layer_{n}.py({n}): forward" for n in range(30))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "Python"}},
        {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"ph": "X", "name": "ProfilerStep#1", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": "1780000000000000.000",
         "dur": 50_000, "args": {}},
    ]  # fmt: skip
    for n in range(2000):
        at = 1780000000000000 + 20 * n
        flow = {"name": "torch_to_npu", "cat": "async_npu", "id": (at + 5) * 1000}
        events += [
            {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": f"{at}.000", "dur": 9,
             "args": {"Sequence number": n, "Fwd thread id": 0, "Call stack": stack}},
            {"ph": "s", **flow, "pid": 1, "tid": 1, "ts": f"{at}.500"},
            {"ph": "f", "bp": "e", **flow, "pid": 2, "tid": 2, "ts": f"{at + 5}.000"},
            {"ph": "X", "name": "Add", "pid": 2, "tid": 2, "ts": f"{at + 5}.000", "dur": 12.5,
             "args": {"Model Id": 0, "Task Type": "AI_VECTOR_CORE", "Stream Id": 2, "Task Id": n, "connection_id": n}},
        ]  # fmt: skip
    return events


def row(label: str, size_bytes: int, cost: Cost) -> str:
    """A line of the result table."""
    state = "" if cost.exit_code == 0 else f"  exit code {cost.exit_code}"
    return (
        f"{label:<44} {size_bytes / 1e6:>7.1f} MB {cost.cpu_s:>7.2f} CPU s {size_bytes / 1e6 / cost.cpu_s:>7.1f} MB/s"
        f" {cost.peak_bytes / 1e6:>7.0f} MB peak {cost.peak_bytes / size_bytes:>5.2f}x file{state}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[125, 250, 500])
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path(os.environ.get("ASCEND_PERF_TRACES") or ROOT.parent / "shared" / "traces"),
        help="folder of real profiles",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        owlv2 = options.traces / OWLV2
        if owlv2.is_file():
            plain = folder / "owlv2.json"
            plain.write_bytes(gzip.decompress(owlv2.read_bytes()))
            run("Kineto, H100 owlv2, .json.gz", owlv2, plain.stat().st_size, folder)
            run("Kineto, H100 owlv2, .json", plain, plain.stat().st_size, folder)
        source = options.traces / TRACE_VIEW
        events = json.loads(source.read_bytes()) if source.is_file() else generated_events()
        kind = "real, repeated" if source.is_file() else "generated"
        costs = []
        for megabytes in options.megabytes:
            path = folder / "trace_view.json"
            repeated(events, megabytes, path)
            costs.append((path.stat().st_size, run(f"trace_view.json ({kind})", path, path.stat().st_size, folder)))
            path.unlink()
        if len(costs) > 1:
            (small, first), (large, last) = costs[0], costs[-1]
            cpu, peak = last.cpu_s / first.cpu_s, last.peak_bytes / first.peak_bytes
            print(f"size x{large / small:.2f}: CPU x{cpu:.2f}, peak x{peak:.2f}")


def run(label: str, path: Path, size_bytes: int, folder: Path) -> Cost:
    """Measure our command and `json.load` on the same file."""
    out = folder / f"out-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "ascend_perf", "analyze", str(path), "--format", "json", "-o", str(out)]
    cost = measure(command)
    print(row(label, size_bytes, cost), flush=True)
    if size_bytes < 100e6:
        loader = "import gzip,json,sys;p=sys.argv[1];json.load((gzip.open if p.endswith('gz') else open)(p))"
        print(
            row(
                "  json.load of the same, for comparison",
                size_bytes,
                measure([sys.executable, "-c", loader, str(path)]),
            )
        )
    return cost


if __name__ == "__main__":
    main()
