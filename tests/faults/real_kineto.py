"""Faults planted into traces of GPUs, as PyTorch's own profiler writes them: one file of events, nothing derived."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any, Final

from tests.faults.real_text import Cut, Event, TimeMap

DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "memcpy", "memset"})
OPS: Final = frozenset({"cpu_op", "operator"})
RUNTIME: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime"})
PER_STEP: Final = 12
PROMPT_NS: Final = 60_000
"""A kernel that starts so soon after its launch found an idle device."""


def _is(event: Event, kinds: frozenset[str]) -> bool:
    return event["ph"] == "X" and str(event.get("cat", "")).lower() in kinds


class KinetoTrace:
    """One file, with "ns" for "ts"."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self.content = content
        self.events: list[Event] = content["traceEvents"]
        places = set()
        for event in self.events:
            event["ns"] = round(event["ts"] * 1000)
            if event["ph"] == "X":
                event["device"] = _is(event, DEVICE)
                if event["device"]:
                    places.add((event["pid"], str(event["tid"])))
        for event in self.events:
            event.setdefault("device", (event["pid"], str(event["tid"])) in places and event["ph"] == "f")

    @classmethod
    def read(cls, path: Path) -> KinetoTrace:
        """From a `.json.gz`."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return cls(path.name.removesuffix(".gz"), json.load(file))

    def write(self, folder: Path) -> None:
        """Uncompressed."""
        ours = ("ns", "device")
        events = [{k: v for k, v in e.items() if k not in ours} | {"ts": e["ns"] / 1000} for e in self.events]
        (folder / self.name).write_text(json.dumps(self.content | {"traceEvents": events}), encoding="utf-8")

    @property
    def steps(self) -> list[Event]:
        """Steps on the host, in order."""
        found = [e for e in self.events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#") and not e["device"]]
        return sorted(found, key=lambda e: int(e["ns"]))

    @property
    def step_ns(self) -> float:
        """Mean length of a step."""
        return statistics.fmean(e["dur"] * 1000 for e in self.steps)

    def insert(self, cuts: list[Cut]) -> tuple[TimeMap, TimeMap]:
        """Maps all times of the host and of the device; both maps."""
        host, device = TimeMap(cuts, "host:0"), TimeMap(cuts, "device")
        for event in self.events:
            time = device if event["device"] else host
            if event["ph"] == "X":
                event["dur"] += time.inside(event["ns"], event["ns"] + round(event["dur"] * 1000)) / 1000
            event["ns"] = time(event["ns"])
        return host, device

    def prompt(self) -> list[tuple[int, int, int]]:
        """Kernels that found the device idle: start of the outermost operator, launch, kernel; of the main thread."""
        main = str(self.steps[0]["tid"])
        kernels = {e["args"]["correlation"]: e["ns"] for e in self.events if _is(e, frozenset({"kernel"}))}
        mine = [e for e in self.events if e["ph"] == "X" and str(e["tid"]) == main]
        ops = sorted((e for e in mine if _is(e, OPS) and e["name"].startswith("aten::")),
                     key=lambda e: (e["ns"], -e["dur"]))  # fmt: skip
        tops: list[tuple[int, int]] = []
        for op in ops:
            if not tops or op["ns"] >= tops[-1][1]:
                tops.append((op["ns"], op["ns"] + round(op["dur"] * 1000)))
        launches = sorted((e["ns"], kernels[e["args"]["correlation"]]) for e in mine
                          if _is(e, RUNTIME) and e["args"].get("correlation") in kernels)  # fmt: skip
        made, place = [], 0
        for start, end in tops:
            while place < len(launches) and launches[place][0] < start:
                place += 1
            if place < len(launches):
                launch, kernel = launches[place]
                if launch < end and kernel - launch < PROMPT_NS:
                    made.append((start, launch, kernel))
        return made


def _chosen(trace: KinetoTrace, target: int) -> list[Cut]:
    found = trace.prompt()
    cuts = []
    for step in trace.steps:
        own = [p for p in found if step["ns"] <= p[0] < step["ns"] + step["dur"] * 1000]
        own = [own[(2 * i + 1) * len(own) // (2 * PER_STEP)] for i in range(PER_STEP)] if len(own) > PER_STEP else own
        cuts += [Cut(amount=target // len(own), host=op, device=kernel) for op, _, kernel in own]
    return cuts


def _per_step(trace: KinetoTrace, cuts: list[Cut]) -> float:
    return sum(cut.amount for cut in cuts) / len(trace.steps)


def gaps(trace: KinetoTrace, target: int) -> float:
    """The host comes late to some operators."""
    cuts = _chosen(trace, target)
    trace.insert(cuts)
    return _per_step(trace, cuts)


def synchronised(trace: KinetoTrace, target: int) -> float:
    """`.item()` in front of some operators."""
    cuts = _chosen(trace, target)
    host, _ = trace.insert(cuts)
    step = trace.steps[0]
    kinds = {str(e.get("cat", "")).lower(): e["cat"] for e in trace.events if e["ph"] == "X" and e.get("cat")}
    operator = next(kinds[k] for k in OPS if k in kinds)
    runtime = next(kinds[k] for k in ("cuda_runtime", "runtime") if k in kinds)
    key = 900_000_000
    for number in range(len(cuts)):
        start, end = host.window(number)
        for depth, (name, cat) in enumerate((("aten::item", operator), ("aten::_local_scalar_dense", operator),
                                             ("cudaStreamSynchronize", runtime)), 1):  # fmt: skip
            key += 1
            args = {"cbid": 131, "correlation": key} if cat == runtime else {"External id": key}
            trace.events.append({
                "ph": "X", "cat": cat, "name": name, "pid": step["pid"], "tid": step["tid"], "ns": start + depth * 1000,
                "dur": (end - start) / 1000 - 2 * depth, "args": args, "device": False,
            })  # fmt: skip
    return _per_step(trace, cuts)


def loader(trace: KinetoTrace, target: int) -> float:
    """The loader of each step waits for its worker; the device comes to the step's first task as much later."""
    tasks = {e["args"]["correlation"]: e["ns"] for e in trace.events if e["device"] and e["ph"] == "X"}
    cuts = []
    for op in (e for e in trace.events if _is(e, OPS) and e["name"].startswith("enumerate(DataLoader)")):
        launched = [tasks[e["args"]["correlation"]] for e in trace.events
                    if _is(e, RUNTIME) and e["ns"] > op["ns"] and e["args"].get("correlation") in tasks]  # fmt: skip
        cuts.append(Cut(amount=target, host=op["ns"] + round(op["dur"] * 500), device=min(launched)))
    trace.insert(cuts)
    return _per_step(trace, cuts)


def stretched(trace: KinetoTrace, target: int) -> float:
    """Matrix products take longer; the host is held up at its next operator, as by a full queue."""
    meant = [e for e in trace.events if _is(e, frozenset({"kernel"})) and "gemm" in e["name"].lower()]
    whole = sum(e["dur"] for e in meant)
    step = trace.steps[0]
    ops = sorted(e["ns"] for e in trace.events
                 if _is(e, OPS) and e["name"].startswith("aten::") and e["tid"] == step["tid"])  # fmt: skip
    cuts = []
    for kernel in meant:
        time = kernel["ns"] + round(kernel["dur"] * 500)
        host = next((op for op in ops if op >= time), ops[-1])
        cuts.append(Cut(amount=round(target * kernel["dur"] / whole), host=host, device=time))
    trace.insert(cuts)
    return _per_step(trace, cuts)

