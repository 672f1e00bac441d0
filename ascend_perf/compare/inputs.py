"""What is compared: a result file, a run directory or a trace, each with what must be known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ascend_perf.device.specs import DeviceSpec, device_specs, spec_for
from ascend_perf.model.comparison import SideKind
from ascend_perf.model.result import Benchmark, ResultSet
from ascend_perf.model.run import Fact, Run
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Device, Trace


@dataclass(frozen=True, kw_only=True)
class Input:
    """One side; exactly one of `results` and `run` is there."""

    label: str
    results: ResultSet | None = None
    run: Run | None = None

    def __post_init__(self) -> None:
        if (self.results is None) == (self.run is None):
            raise ValueError("an input is a result file or a run")

    @property
    def kind(self) -> SideKind:
        """What it is."""
        if self.results is not None:
            return "results"
        return "run" if self.run is not None and self.run.manifest is not None else "trace"

    @property
    def origin(self) -> Literal["measured", "simulated"]:
        """Simulated as soon as a part of it is."""
        if self.run is not None:
            return "simulated" if self.run.is_simulated else "measured"
        parts = [one.data_origin for one in self.results.benchmarks] if self.results is not None else []
        return "simulated" if "simulated" in parts else "measured"

    def trace(self, rank: int | None = None) -> Trace | None:
        """The rank whose calls are compared: the one asked for, else the first that has calls of the host and kernels,
        else the first with kernels; where the model runs on the CPU, the first with calls. None: there is none."""
        if self.run is None:
            return None
        traces = [t for t in self.run.traces if rank is None or t.meta.rank == rank]
        with_kernels = [t for t in traces if len(t[KERNELS])]
        calls = next((t for t in with_kernels or traces if len(t[HOST_OPS])), None)
        return calls if calls is not None else next(iter(with_kernels), None)


def machine(fingerprint: dict[str, Fact], device: str = "") -> DeviceSpec | None:
    """The device of a fingerprint: its chip by the names of the device table."""
    name = fingerprint.get("chip")
    kind = fingerprint.get("kind") or device
    if not isinstance(name, str):
        return None
    if name in device_specs():
        return device_specs()[name]
    families: dict[object, Literal["npu", "gpu", "cpu"]] = {
        "npu": "npu", "cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "rocm": "gpu", "hip": "gpu",
    }  # fmt: skip
    return spec_for(Device(name=name, kind=families.get(kind)))


def matched(sides: list[ResultSet]) -> list[tuple[str, list[Benchmark | None]]]:
    """Benchmarks of all sides with the same work on any device: by workload, preset, variant and world size, else by
    workload, preset and variant where that is unique on each side."""
    keyed = [{(b.workload, b.preset, b.variant, b.world_size): b for b in side.benchmarks} for side in sides]
    made: list[tuple[str, list[Benchmark | None]]] = []
    for key in dict.fromkeys(key for side in keyed for key in side):
        name = "/".join(str(part) for part in key if part not in (None, ""))
        made.append((name, [side.get(key) for side in keyed]))
    return made
