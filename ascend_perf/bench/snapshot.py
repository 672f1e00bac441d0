"""Snapshot of the operators of one step of a workload, on tensors without values where the workload allows it.

The work is done by a process of its own: `python -m ascend_perf.bench.snapshot`, a request as JSON on its standard
input, the answer as the last line of its output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.bench import before
from ascend_perf.bench.prediction import predicted
from ascend_perf.collectors.devices import safe_path
from ascend_perf.errors import InputError, MachineError, UsageError
from ascend_perf.op_streams import OpStream, counted, read_op_stream, write_op_stream
from ascend_perf.workloads import _spec

Mode = Literal["auto", "fake", "real"]

TIMEOUT_S: Final = 1800.0
"""A snapshot that takes longer is given up. Status: assumed."""
MAX_REAL_BYTES: Final = 2 << 30
"""`auto` takes real tensors only for a model that needs less, by its own prediction. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to record."""

    workload: str
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    mode: Mode = "auto"
    data: Path | None = None
    variables: tuple[str, ...] = ()
    """`KEY=VALUE` for the process that records."""
    world_size: int = 1
    """Processes of the job; the first is recorded, the others are not started."""


def take(request: Request, path: Path, *, timeout_s: float = TIMEOUT_S) -> OpStream:
    """Record one step and write it to `path`; returns what was written.

    `auto` tries tensors without values first, then real ones, if the model is small. Of several processes the first is
    recorded, with torch's process group `fake`, which sends nothing: what it receives is not what others computed.
    torch's DistributedDataParallel looks at the memory of tensors, which those without values lack.

    Raises:
        UsageError: no such workload, preset or setting, or a layout that does not fit on so many processes.
        MachineError: torch or another package is absent.
        InputError: the workload cannot be recorded, with the reason.
    """
    workload = _spec.find_workload(request.workload)
    settings = workload.settings(request.preset, request.overrides)
    if workload.min_ranks > request.world_size:
        raise UsageError(f"{workload.name} needs {workload.min_ranks} processes or more",
                         hint=f"add --nproc {workload.min_ranks}")  # fmt: skip
    prediction = predicted(workload, settings, request.world_size, _spec.Target(kind="cpu"))
    before.check_packages(workload)
    if request.data is not None and not request.data.exists():
        raise InputError(f"--data {request.data}: there is nothing", hint="check the path")
    modes = ["fake", "real"] if request.mode == "auto" else [request.mode]
    reasons: list[str] = []
    for mode in modes:
        if mode == "real" and request.mode == "auto" and prediction is not None:
            needed = prediction.peak_bytes
            if needed > MAX_REAL_BYTES:
                reasons.append(f"real: it needs {needed} bytes, ask for it with --mode real")
                continue
        reason = _child(request, settings.as_dict(), mode, path, timeout_s)
        if not reason:
            return read_op_stream(path)
        reasons.append(f"{mode}: {reason}")
    raise InputError(f"the operators of {request.workload} cannot be recorded: {'; '.join(reasons)}",
                     hint="choose a smaller preset, or --mode real")  # fmt: skip


def _child(request: Request, settings: Mapping[str, object], mode: str, path: Path, timeout_s: float) -> str:
    """Record in a process of its own; the reason where it did not work."""
    body = {
        "workload": request.workload, "preset": request.preset, "settings": settings, "mode": mode,
        "world_size": request.world_size, "path": str(path.resolve()),
        "data": None if request.data is None else str(request.data.resolve()),
    }  # fmt: skip
    # One thread: how operators are split among threads must not change what is recorded.
    variables = dict(text.partition("=")[::2] for text in request.variables)
    environment = {**os.environ, **safe_path(), **variables, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ascend_perf.bench.snapshot"], input=json.dumps(body), env=environment,
            capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done within {timeout_s:g} s"
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        problem = str(answer["problem"])
    except (ValueError, IndexError, KeyError, TypeError):
        return f"the process ended with code {done.returncode}"
    if answer.get("kind") == "usage":
        raise UsageError(problem)
    if answer.get("kind") == "machine":
        raise MachineError(problem)
    return problem


def _record(request: Mapping[str, Any]) -> None:
    """Build, warm up by one step, record the next, write."""
    import torch

    from ascend_perf.collectors import alone_on_cpu
    from ascend_perf.collectors.op_recorder import fake_tensors, record

    workload = _spec.find_workload(request["workload"])
    settings = workload.from_dict(request["settings"])
    data = None if request["data"] is None else Path(request["data"])
    is_fake = request["mode"] == "fake"
    with tempfile.TemporaryDirectory() as folder:
        place = _spec.Place(data=data, results=Path(folder), world_size=request["world_size"])
        if place.world_size > 1:
            alone_on_cpu.join(place.world_size)
        with fake_tensors() if is_fake else nullcontext():
            program = workload.build(settings.config, place, settings.plan.seed)
            try:
                # What an optimizer makes on its first step is no part of a step, nor are the buckets that torch's data
                # parallelism arranges anew before the second.
                for _ in range(1 if place.world_size == 1 else 2):
                    program.step()
                stream = record(program.step)
            finally:
                program.close()
    write_op_stream(
        Path(request["path"]),
        OpStream(
            workload=workload.name, preset=request["preset"], mode=request["mode"], world_size=place.world_size,
            facts={"torch": str(torch.__version__)},
            # How often steps are measured does not change one.
            settings={**_spec.values_of(settings.config), "seed": settings.plan.seed},
            totals=counted(stream), stream=tuple(stream),
        ),
    )  # fmt: skip


def main() -> int:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")  # of torch, about addresses of tensors without values
    kind, problem = "other", ""
    try:
        _record(request)
    except UsageError as error:
        kind, problem = "usage", error.what
    except MachineError as error:
        kind, problem = "machine", error.what
    except Exception as error:  # any workload, any reason: the answer says which
        lines = str(error).splitlines()
        problem = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
    print("\n" + json.dumps({"kind": kind, "problem": problem}), flush=True)
    return 0


if __name__ == "__main__":
    main()
    os._exit(0)  # workers of loaders that were left half made must not hold us up
