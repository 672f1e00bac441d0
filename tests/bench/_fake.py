"""A workload of another package, made for tests: small, and with faults on demand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ascend_perf import plugins

ROOT = Path(__file__).parents[2]

MODULE = '''
import atexit, os, signal, sys, time, warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads._spec import Place, Prediction, Program, Traffic, workload

@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int = 4

@dataclass(frozen=True, kw_only=True)
class Config:
    shape: Shape = field(default=Shape())
    # warned: and then a bug
    fault: Literal["none", "memory", "bug", "kill", "package", "sleep", "stubborn", "known", "warns", "warned"] = "none"
    at: Literal["build", "step", "measured", "warming", "profiled", "exit"] = "step"
    on_rank: int = 0
    slow_rank: int = -1
    need_bytes: int = 100
    cut: int = 1

def predict(config, world_size):
    if world_size % config.cut:
        raise ValueError(f"cut {config.cut} does not divide {world_size}; choices: 1, {world_size}")
    return Prediction(
        memory_bytes={"weights": config.need_bytes, "activations": 28},
        traffic=(Traffic(axis="data", collective="all_reduce", bytes_per_step=4 * config.shape.width,
                         calls_per_step=1),),
    )

@workload(name="fake", about=Words("a fake", "假"), config=Config, predict=predict)
def fake(config, place, seed):
    import torch
    import torch.distributed as dist

    def trip(where):
        if config.at != where or config.on_rank != place.rank or config.fault == "none":
            return
        if config.fault == "memory":
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes.")
        if config.fault in ("warns", "warned"):
            print("10 %\\r", end="", file=sys.stderr)
            warnings.warn(f"planted \\x1b[31mon\\x1b[0m rank {place.rank}")
            if config.fault == "warns":
                return
        if config.fault in ("bug", "warned"):
            raise KeyError("planted")
        if config.fault == "known":
            raise InputError("planted input", hint="do otherwise")
        if config.fault == "package":
            import no_such_package_anywhere
        if config.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        Path(os.environ["FAKE_NEWS"], "asleep").touch()
        while True:
            try:
                time.sleep(600)
            except BaseException:
                if config.fault == "sleep":
                    raise
                Path(os.environ["FAKE_NEWS"], "asked").touch()

    trip("build")
    atexit.register(trip, "exit")
    values = []
    count = {"steps": 0, "measured": 0}
    weight = torch.ones(config.shape.width)

    def step():
        count["steps"] += 1
        trip("step")
        if count["measured"]:
            place_in = count["steps"] - count["measured"]  # three measured steps, one of the profiler's own
            trip("measured" if place_in < 4 else "warming" if place_in == 4 else "profiled")
        total = weight.clone()
        if place.world_size > 1:
            dist.all_reduce(total)
        if place.rank == config.slow_rank:
            time.sleep(0.05)
        values.append(float(total.sum()))

    def start_measuring():
        count["measured"] = count["steps"]

    def save(folder):
        (folder / f"rank{place.rank}.txt").write_text(str(len(values)), "utf-8")

    if place.resume is not None:
        values += [0.0] * int((place.resume / f"rank{place.rank}.txt").read_text("utf-8"))
    text = "" if place.data is None else place.data.read_text("utf-8")
    return Program(
        step=step, item="words", items_per_step=8 * place.world_size, flops_per_step=100, hardware_flops_per_step=150,
        dtype="fp32", parameters=config.shape.width, value_name="sum", last_value=lambda: values[-1],
        series=lambda: {"loss": values},
        memory_bytes=lambda: {"weights": 4 * config.shape.width, "activations": 14 * (1 + place.rank)},
        latencies_ns=lambda: {"e2e": [100 * (i + 1) for i in range(20)]},
        metrics=lambda: [Metric(name="letters", value=len(text), unit="count", better="none")],
        tables=lambda: {"by_size": [{"size": 1, "rate": 2.5}, {"size": 2, "rate": None}]},
        start_measuring=start_measuring, save=save,
        close=lambda: Path(os.environ["FAKE_NEWS"], f"closed{place.rank}").touch(),
    )
'''

PRESETS = """
tiny:
  about: {en: small, zh: 小}
  set: {width: 4, warmup_steps: 1, measured_steps: 3, profiled_steps: 2}
tuned:
  about: {en: with variables, zh: 带变量}
  set: {width: 4, warmup_steps: 1, measured_steps: 1, profiled_steps: 1}
  environment: {cpu: {OMP_NUM_THREADS: "1", MALLOC_ARENA_MAX: "2"}, npu: {TASK_QUEUE_ENABLE: "2"}}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package `fake` for this process and those that it starts; it leaves empty files as news in `news`."""
    (folder / "news").mkdir()
    monkeypatch.setenv("FAKE_NEWS", str(folder / "news"))
    package = folder / "site"
    (package / "configs").mkdir(parents=True)
    (package / "fake_workload.py").write_text(MODULE, "utf-8")
    (package / "configs" / "fake.yaml").write_text(PRESETS, "utf-8")
    facts = package / "fake_workload-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-workload\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text("[ascend_perf.workloads]\nfake = fake_workload:fake\n", "utf-8")
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr(plugins, "_installed", plugins._installed.__wrapped__)  # it remembers what was there before
    monkeypatch.delitem(sys.modules, "fake_workload", raising=False)
    path = os.pathsep.join([str(package), str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
