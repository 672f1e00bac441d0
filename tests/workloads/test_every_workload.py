"""Every workload through the command: the smallest preset on a CPU, its run directory and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascend_perf.manifest import read_manifest
from ascend_perf.workloads._spec import load_workloads

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

NAMES = tuple(load_workloads().parts)
IN_TWO = {
    "llm-pretrain": ("tensor_ranks=2", "sequence_parallel=true"), "moe-pretrain": ("expert_ranks=2",),
    "full-finetune": ("data_parallel=fsdp",), "lora-finetune": (), "bert-clue": (), "resnet50-train": (),
}  # fmt: skip
"""Workloads that run in several processes, each with a layout of its own."""
CPU_ADVICE = frozenset({"C-10", "C-13", "C-14", "D-01", "D-03", "H-04", "H-09", "H-10", "M-05", "V-01", "V-02", "V-04"})
"""Rows that can be true of these runs on a CPU; N, L, P and E rows, and those of an NPU's counters, cannot."""


def run(name: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ascend_perf", "run", name, "--device", "cpu", "-o", str(folder), *more],
        capture_output=True, text=True, check=False, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    print(f"{name} {' '.join(more)}: {time.monotonic() - begin:.1f} s")  # for people: no test asserts on time
    return done


def check(name: str, folder: Path, done: subprocess.CompletedProcess[str], ranks: int) -> None:
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(folder)
    metrics = {metric.name: metric.value for metric in manifest.metrics}
    assert manifest.data_origin == "measured"
    assert manifest.status == "complete"
    assert manifest.device_facts["world_size"] == ranks
    rate = next(metric for metric in manifest.metrics if metric.unit == "items_per_s")  # the throughput comes first
    assert rate.value is not None
    assert metrics[f"{rate.name}_per_device"] == pytest.approx(rate.value / ranks)
    assert len(manifest.timings_ns["measured"]) == manifest.config["measured_steps"]

    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    codes = {finding["code"] for finding in report["findings"]}
    assert codes <= CPU_ADVICE, codes
    assert not [outcome for outcome in report["outcomes"] if outcome["status"] == "failed"]
    assert (folder / "report" / "report.html").stat().st_size < 3_000_000
    predicted = [name for name in metrics if name.startswith("predicted_memory_")]
    for component in (name.removeprefix("predicted_") for name in predicted):
        measured, by_formula = metrics.get(component), metrics[f"predicted_{component}"]
        if measured and by_formula and component in ("memory_weights", "memory_gradients", "memory_optimizer"):
            assert measured == pytest.approx(by_formula, rel=0.01), component


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_preset_runs_and_its_report_is_right(name: str, tmp_path: Path) -> None:
    ranks = load_workloads().parts[name].min_ranks
    done = run(name, tmp_path / "run")

    check(name, tmp_path / "run", done, ranks)


@pytest.mark.parametrize("name", IN_TWO)
def test_two_processes_run_and_send_what_was_predicted(name: str, tmp_path: Path) -> None:
    settings = [word for setting in IN_TWO[name] for word in ("--set", setting)]
    done = run(name, tmp_path / "run", "--nproc", "2", *settings)

    check(name, tmp_path / "run", done, 2)
    metrics = {metric.name: metric.value for metric in read_manifest(tmp_path / "run").metrics}
    sent, predicted = metrics["communication_per_step"], metrics["predicted_communication_per_step"]
    # What goes to the experts of a rank depends on the router: the prediction is the mean over ranks.
    assert sent == pytest.approx(predicted, rel=0.3 if name == "moe-pretrain" else 0.01)


def test_workloads_in_several_processes_are_all_tried() -> None:
    parts = load_workloads().parts
    several = {name for name, part in parts.items() if part.predict is not None and part.min_ranks == 1}
    alone = {"resnet50-infer", "llm-generate", "llm-serve"}  # they predict memory; more than one process is refused
    assert several - alone == set(IN_TWO)
