"""The process of a workload: builds it, measures it, and tells the parent in lines of JSON on standard output.

    python -m ascend_perf.bench.child < request.json

The workload has a process of its own, so that its memory, its threads and its interpreter lock are not shared with the
progress display, the telemetry and the report. Lines are written between phases only, never between measured steps.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from ascend_perf.collectors import devices, environment, torch_profiler
from ascend_perf.errors import AscendPerfError, MachineError
from ascend_perf.workloads import _spec

Send = Callable[[Mapping[str, object]], None]


def main() -> int:
    """Run the request on standard input; the exit code is that of the error, which was sent before."""
    send = _channel()
    request = json.load(sys.stdin)
    try:
        _run(request, send)
    except AscendPerfError as error:
        send({"event": "error", "what": error.what, "hint": error.hint, "exit_code": error.exit_code})
        return error.exit_code
    except RuntimeError as error:
        if (short := _out_of_memory(error)) is None:
            raise
        hint = "choose a smaller preset, or a smaller batch with --set batch=..."
        send({"event": "error", "what": short, "hint": hint, "exit_code": MachineError.exit_code})
        return MachineError.exit_code
    return 0


def _run(request: dict[str, object], send: Send) -> None:
    workload = _spec.find_workload(str(request["workload"]))
    values = request["settings"]
    assert isinstance(values, dict)
    settings = workload.from_dict(values)
    inventory = devices.seen_here()
    device = devices.choose(str(request["device"]), inventory)
    send({"event": "device", "device": asdict(device), "problems": list(inventory.problems)})
    send({"event": "phase", "phase": "build", "steps": 0})
    program = workload.build(settings.config, _spec.Place(device=device.torch_name), settings.plan.seed)
    measurement = torch_profiler.collect(
        program.step,
        last_value=program.last_value,
        device=device.torch_name,
        folder=Path(str(request["trace_folder"])),
        warmup_steps=settings.plan.warmup_steps,
        measured_steps=settings.plan.measured_steps,
        profiled_steps=settings.plan.profiled_steps,
        options=torch_profiler.Options(with_stack=bool(request["with_stack"])),
        on_phase=lambda phase, steps: send({"event": "phase", "phase": phase, "steps": steps}),
    )
    send({
        "event": "result",
        "measurement": asdict(measurement),
        "series": {name: list(values) for name, values in program.series().items()},
        "program": {
            "item": program.item,
            "items_per_step": program.items_per_step,
            "flops_per_step": program.flops_per_step,
            "dtype": program.dtype,
            "parameters": program.parameters,
            "value_name": program.value_name,
        },
        "threads": _threads(),
        "versions": {**environment.versions(), **environment.backend_versions()},
        "environment": environment.environment(),
    })  # fmt: skip


def _channel() -> Send:
    """Keep standard output for our lines; what libraries print there goes to standard error (Kineto does print)."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, object]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    return send


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _out_of_memory(error: RuntimeError) -> str | None:
    """First line of an out-of-memory error, None for any other."""
    text = str(error)
    is_memory = type(error).__name__ == "OutOfMemoryError" or "not enough memory" in text or "out of memory" in text
    return text.splitlines()[0][:300] if is_memory else None


if __name__ == "__main__":
    sys.exit(main())
