"""The process of one rank of a workload: builds it, measures it, and tells the parent in lines of JSON.

    python -m ascend_perf.bench.child FOLDER

FOLDER holds request.json; messages are appended to rank<N>.jsonl in it. The workload has a process of its own, so that
its memory, its threads and its interpreter lock are not shared with the progress display, the telemetry and the report.
Messages are written between phases only, never between measured steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from ascend_perf.bench import settled, traffic
from ascend_perf.bench.agent import die_with_parent
from ascend_perf.bench.results import FOLDER as RESULTS_FOLDER
from ascend_perf.collectors import devices, energy, environment, one_rank, step_marks, torch_profiler
from ascend_perf.errors import AscendPerfError, InputError, MachineError, UsageError
from ascend_perf.workloads import _spec
from ascend_perf.workloads._auto_dtype import has_bf16
from ascend_perf.workloads._virtual import computes_nothing, has_modelled_clock

Send = Callable[[Mapping[str, object]], None]

BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
CHECKPOINT_FOLDER: Final = "checkpoint"
LOST_S: Final = 1.0
"""A rank that lost its peer waits so long before it ends: torchrun then sees first who failed. Status: assumed."""

_LOST: Final = re.compile(r"Connection (?:closed|reset|refused)|Broken pipe|remote process|peer", re.IGNORECASE)


class Stopped(BaseException):
    """SIGTERM or SIGINT reached this process."""


class Stop:
    """Makes an exception of the first SIGTERM or SIGINT; later ones are ignored, so that closing is not cut short."""

    def __init__(self) -> None:
        self.is_requested = False
        self._is_held = False
        self._pid = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a process forked from this one, such as a worker of a loader
            os._exit(128 + number)
        if self.is_requested:
            return
        self.is_requested = True
        if not self._is_held:
            raise Stopped

    def hold(self) -> None:
        """From now on a signal waits for `release`: the trace is being written."""
        self._is_held = True

    def release(self) -> None:
        """Obey the signal that waits.

        Raises:
            Stopped: there was one.
        """
        self._is_held = False
        if self.is_requested:
            raise Stopped


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """Place of this process in the job, as torchrun says it."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int

    @classmethod
    def of(cls, variables: Mapping[str, str], request: Mapping[str, Any]) -> _Rank:
        if request["world_size"] == 1:
            return cls(rank=0, world_size=1, local_rank=0, local_size=1)
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
        rank, world_size, local_rank, local_size = (int(variables[name]) for name in names)
        return cls(rank=rank, world_size=world_size, local_rank=local_rank, local_size=local_size)


def main(folder: Path) -> int:
    """Run the request of the folder; the exit code is that of the error, which was sent before."""
    request = json.loads((folder / "request.json").read_text("utf-8"))
    rank = _Rank.of(os.environ, request)
    die_with_parent()
    times = torch_profiler.Times()
    with open(folder / f"rank{rank.rank}.jsonl", "a", encoding="utf-8") as file:
        send = _sender(file)
        stop = Stop()
        send({"event": "hello", "pid": os.getpid()})
        try:
            with ExitStack() as closing:
                _run(request, rank, send, stop, times, closing)
        except BaseException as error:
            is_stop, told = stop.is_requested, _told(error)
            stop.is_requested = True  # from here on signals are ignored
            send({"event": "stopped" if is_stop else "error", **told, "times": asdict(times)})
            if told["kind"] == "lost" and not is_stop:
                time.sleep(LOST_S)
            sys.stderr.flush()
            os._exit(143 if is_stop else int(str(told["exit_code"])))  # collectives in flight would hang an orderly end
        send({"event": "end"})
    _leave(rank)
    return 0


def _run(
    request: Mapping[str, Any], rank: _Rank, send: Send, stop: Stop, times: torch_profiler.Times, closing: ExitStack
) -> None:
    workload = _spec.find_workload(request["workload"])
    settings = workload.from_dict(request["settings"])
    for option in ("data", "resume"):
        if request[option] is not None and option not in workload.takes:
            raise UsageError(f"{workload.name} takes no --{option}", hint=f"leave --{option} out")
    inventory = devices.seen_here()
    device = _device(request["device"], inventory, rank)
    send({
        "event": "device", "device": asdict(device), "problems": list(inventory.problems),
        "has_bf16": has_bf16(device.type),
    })  # fmt: skip
    _join(device, rank)
    checkpoints = Path(request["folder"]) / CHECKPOINT_FOLDER if request["save"] else None
    place = _spec.Place(
        device=device.torch_name, rank=rank.rank, world_size=rank.world_size, local_rank=rank.local_rank,
        data=_path(request["data"]), checkpoints=checkpoints, resume=_path(request["resume"]),
        results=Path(request["folder"]) / RESULTS_FOLDER,
    )  # fmt: skip
    is_virtual = computes_nothing(device.type)
    send({"event": "phase", "phase": "build", "steps": 0})
    program = workload.build(settings.config, place, settings.plan.seed)
    closing.callback(program.close)
    send({"event": "program", "program": _sizes(program)})
    if checkpoints is not None and program.save is None:
        raise UsageError(f"{workload.name} has no state to save", hint="leave --save-checkpoint out")
    results: dict[str, Any] = {}
    meter = _meter(device)
    marks = step_marks.Marks(is_virtual)

    def start_measuring() -> None:
        if is_virtual and rank.world_size > 1 and one_rank.is_alone() and has_modelled_clock():
            settled.settle(program.memory_bytes(), settled.requested_on_npu, program.step)
        program.start_measuring()
        results["joules"] = _joules(meter)

    def after_measuring() -> None:
        marks.end()
        before, after = results.pop("joules"), _joules(meter)
        results["device_joules"] = None if before is None or after is None else after - before
        results.update(_results(program))

    def on_phase(phase: str, steps: int) -> None:
        if phase == "export":
            stop.hold()
        marks.begin(phase)
        send({"event": "phase", "phase": phase, "steps": steps})

    trace_folder = Path(request["folder"]) / request["trace_folder"]
    measurement = torch_profiler.collect(
        marks.around(program.step),
        # What a virtual NPU gives back is no result.
        last_value=(lambda: math.nan) if is_virtual else program.last_value,
        device=device.torch_name,
        folder=trace_folder,
        warmup_steps=settings.plan.warmup_steps,
        measured_steps=settings.plan.measured_steps,
        profiled_steps=settings.plan.profiled_steps,
        options=torch_profiler.Options(with_stack=bool(request["with_stack"])),
        on_phase=on_phase,
        rank=rank.rank,
        times=times,
        start_measuring=start_measuring,
        after_measuring=after_measuring,
    )
    stop.release()
    if checkpoints is not None and program.save is not None:
        send({"event": "phase", "phase": "checkpoint", "steps": 0})
        checkpoints.mkdir(parents=True, exist_ok=True)
        program.save(checkpoints)
    if rank.world_size > 1:
        with contextlib.suppress(InputError):  # then it was not counted: the run is not lost for it
            results["traffic"] = traffic.of_trace(trace_folder / measurement.trace_name, settings.plan.profiled_steps)
    told = asdict(measurement)
    if is_virtual:
        told["last_value"] = None
    mine = {
        "rank": rank.rank,
        "measurement": told,
        "traffic": results.pop("traffic", None),
        **{name: results.pop(name) for name in ("memory", "latencies", "device_joules")},
    }
    ranks = _gathered(mine, rank)
    series = {} if is_virtual else {name: list(values) for name, values in program.series().items()}
    if rank.local_rank == 0:
        send({
            "event": "result",
            "ranks": ranks,
            "series": series,
            **results,
            "threads": _threads(),
            "versions": {**environment.versions(), **environment.backend_versions()},
            "environment": environment.environment(),
        })  # fmt: skip
    closing.close()


def _meter(device: devices.SeenDevice) -> energy.GpuMeter | None:
    """The energy counter of a CUDA device; None where there is none."""
    if device.type != "cuda":
        return None
    import torch

    facts = torch.cuda.get_device_properties(device.index)
    try:
        address = f"{facts.pci_domain_id:08x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
        return energy.GpuMeter(address)
    except (AttributeError, OSError):  # an older torch, or no NVML
        return None


def _joules(meter: energy.GpuMeter | None) -> float | None:
    try:
        return None if meter is None else meter.joules()
    except OSError:
        return None


def _sizes(program: _spec.Program) -> dict[str, object]:
    return {
        "item": program.item,
        "items_per_step": program.items_per_step,
        "flops_per_step": program.flops_per_step,
        "hardware_flops_per_step": program.hardware_flops_per_step,
        "dtype": program.dtype,
        "parameters": program.parameters,
        "value_name": program.value_name,
    }


def _results(program: _spec.Program) -> dict[str, Any]:
    """What the program has to tell of the measured steps, as JSON has it."""
    return {
        "memory": dict(program.memory_bytes()),
        "latencies": {name: [int(value) for value in values] for name, values in program.latencies_ns().items()},
        "metrics": [asdict(metric) for metric in program.metrics()],
        "tables": {name: [dict(row) for row in rows] for name, rows in program.tables().items()},
    }


def _device(requested: str, inventory: devices.Inventory, rank: _Rank) -> devices.SeenDevice:
    """The device of this rank: the one chosen, for local rank 0; its neighbours for the others.

    Raises:
        MachineError: it is not there, or there are fewer than processes.
    """
    first = devices.choose(requested, inventory)
    if first.type == "cpu" or rank.local_size == 1:
        return first
    alike = [device for device in inventory.devices if device.type == first.type]
    if len(alike) < rank.local_size:
        raise MachineError(
            f"--nproc {rank.local_size} needs that many {first.type} devices, there are {len(alike)} here",
            hint=f"use --nproc {len(alike)}, or --device cpu",
        )
    return alike[rank.local_rank]


def _join(device: devices.SeenDevice, rank: _Rank) -> None:
    """Take the device, share the cores of the host, and join the job."""
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).set_device(device.torch_name)
    if rank.world_size == 1:
        return
    import torch.distributed as dist

    if device.type == "cpu":
        torch.set_num_threads(max(1, (device.cores or 1) // rank.local_size))
    if one_rank.is_alone():
        one_rank.install()
    dist.init_process_group(BACKENDS[device.type])


def _leave(rank: _Rank) -> None:
    """Leave the job. Everything was told: what fails from here on, or as the interpreter ends, loses nothing."""
    if rank.world_size > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _gathered(mine: dict[str, Any], rank: _Rank) -> list[dict[str, Any]]:
    """`mine` of all ranks, in order."""
    if rank.world_size == 1 or one_rank.is_alone():
        return [mine]
    import torch.distributed as dist

    everyone: list[Any] = [None] * rank.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def _sender(file: IO[str]) -> Send:
    def send(message: Mapping[str, object]) -> None:
        file.write(json.dumps({**message, "time_ns": time.time_ns()}, default=_plain) + "\n")
        file.flush()

    return send


def _plain(value: Any) -> object:
    """A number of numpy or torch as JSON has it."""
    return value.item()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _told(error: BaseException) -> dict[str, object]:
    """An error as a message: `known` ones have what, hint and exit_code; `lost` is the end of another rank's."""
    if isinstance(error, Stopped):
        return {"kind": "known", "what": "stopped", "hint": "", "exit_code": 143}
    if isinstance(error, AscendPerfError):
        return {"kind": "known", "what": error.what, "hint": error.hint, "exit_code": error.exit_code}
    if isinstance(error, ModuleNotFoundError):
        what = f"the Python package {error.name} is not installed"
        return {"kind": "known", "what": what, "hint": devices.INSTALL_TORCH, "exit_code": MachineError.exit_code}
    if (short := _out_of_memory(error)) is not None:
        hint = "choose a smaller preset, or a smaller batch with --set batch=..."
        return {"kind": "known", "what": short, "hint": hint, "exit_code": MachineError.exit_code}
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
    lines = "".join(traceback.format_exception(error)).splitlines()
    kind = "lost" if isinstance(error, RuntimeError) and _LOST.search(str(error)) else "bug"
    what = f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
    return {"kind": kind, "what": what, "hint": "", "exit_code": 70, "lines": lines[-20:]}


def _out_of_memory(error: BaseException) -> str | None:
    """First line of an out-of-memory error, None for any other."""
    text = str(error)
    is_memory = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (
            type(error).__name__ == "OutOfMemoryError"
            or any(words in text for words in ("not enough memory", "out of memory", "can't allocate memory"))
        )
    )
    return (text.splitlines()[0][:300] if text else "out of memory") if is_memory else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
