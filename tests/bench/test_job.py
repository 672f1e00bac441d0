"""Jobs of several processes: figures of the slowest and the neediest rank, and what is said when a rank fails."""

from __future__ import annotations

import csv
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.bench.launch import Notice, Ranks, Request, launch
from ascend_perf.bench.prediction import predicted
from ascend_perf.collectors import devices
from ascend_perf.errors import InputError, MachineError, UsageError
from ascend_perf.manifest import read_manifest
from ascend_perf.model.run import Manifest
from ascend_perf.workloads._spec import find_workload
from tests.bench import _fake

TWO = Ranks(per_node=2)


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package `fake` is installed; the folder of its news."""
    _fake.install(tmp_path, monkeypatch)
    return tmp_path / "news"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def values_of(manifest: Manifest) -> dict[str, float | None]:
    return {metric.name: metric.value for metric in manifest.metrics}


@pytest.mark.torch
def test_two_processes_give_one_manifest_two_traces_and_the_figures_of_both(tmp_path: Path, fake: Path) -> None:
    pytest.importorskip("torch")
    notices: list[Notice] = []
    request = Request(workload="fake", device="cpu", ranks=TWO, overrides=("width=6", "slow_rank=1"))

    where, manifest = launch(request, folder=tmp_path / "run", on_notice=notices.append)

    assert manifest.files["trace"] == ("trace/rank0.pt.trace.json.gz", "trace/rank1.pt.trace.json.gz")
    assert (manifest.device_facts["world_size"], manifest.device_facts["dtype"]) == (2, "fp32")
    assert manifest.command[-2:] == ("--nproc", "2")
    values = values_of(manifest)
    # 16 words a step on both; the slow rank sleeps 50 ms in each.
    median_ns = sorted(manifest.timings_ns["measured"])[1]
    assert median_ns >= 50_000_000
    assert values["words_per_s"] == pytest.approx(16 / median_ns * 1e9)
    assert values["words_per_s_per_device"] == pytest.approx(8 / median_ns * 1e9)
    assert values["hardware_flops_per_step"] == 150
    assert values["sum"] == 12  # two ranks of six ones
    # Rank 1 has 24 bytes of weights and 28 of activations, rank 0 has 24 and 14.
    assert (values["memory_weights"], values["memory_activations"]) == (24, 28)
    assert values["communication_per_step"] == 24  # one all_reduce of six fp32
    assert (values["predicted_memory"], values["predicted_communication_per_step"]) == (128, 24)
    assert (values["e2e_p50"], values["e2e_mean"]) == (1050, 1050)  # 100, 200 ... 2000 on each rank
    assert "e2e: 40 samples, too few for p99 (100)" in manifest.notes
    assert (
        "measured by predicted: memory weights 0.24; memory activations 1; communication all_reduce 1" in manifest.notes
    )
    assert rows_of(where / "results" / "by_size.csv") == [{"size": "1", "rate": "2.5"}, {"size": "2", "rate": ""}]
    assert [row["measured_by_predicted"] for row in rows_of(where / "results" / "prediction.csv")] == [
        "0.24", "1.0", "1.0",
    ]  # fmt: skip
    ranks = rows_of(where / "results" / "ranks.csv")
    assert [(row["rank"], row["memory_activations_bytes"]) for row in ranks] == [("0", "14"), ("1", "28")]
    assert {notice.phase for notice in notices} >= {"start", "device", "forecast", "build", "export"}
    assert sorted(path.name for path in fake.iterdir()) == ["closed0", "closed1"]
    run = pipeline.load(where, jobs=1)
    assert [(trace.meta.rank, trace.meta.world_size) for trace in run.traces if trace.meta.rank is not None] == [
        (0, 2), (1, 2),
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    ("faults", "kind", "message"),
    [
        pytest.param(
            ("fault=known", "at=measured"), InputError, "rank 1 of 2: planted input\n  hint: do otherwise",
            marks=pytest.mark.slow,
        ),
        (("fault=kill", "at=measured"), MachineError, "rank 1 of 2 was ended by SIGKILL"),
        pytest.param(
            ("fault=memory", "at=build"), MachineError, "rank 1 of 2: DefaultCPUAllocator: not enough memory",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("fault=bug", "at=profiled"), RuntimeError, "rank 1 of 2: KeyError: 'planted'", marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_a_rank_that_fails_ends_the_job_with_one_message_that_names_it(
    tmp_path: Path, faults: tuple[str, ...], kind: type[Exception], message: str
) -> None:
    pytest.importorskip("torch")
    request = Request(workload="fake", device="cpu", ranks=TWO, overrides=(*faults, "on_rank=1"))

    with pytest.raises(kind, match=message):
        launch(request, folder=tmp_path / "run")

    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "failed"
    assert manifest.problem.startswith("rank 1 of 2")
    reached = {"build": 0, "measured": 0, "profiled": 3}[faults[1].removeprefix("at=")]
    assert len(manifest.timings_ns.get("measured", ())) == reached
    analysis = pipeline.analyze(tmp_path / "run")
    assert analysis.run.traces[0].meta.warnings[0].startswith("the run failed: rank 1 of 2")


@pytest.mark.torch
@pytest.mark.parametrize("fault", ["kill", "stubborn"])
@pytest.mark.parametrize("ranks", [Ranks(), TWO], ids=["one", "two"])
def test_how_a_process_ends_when_all_was_told_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, ranks: Ranks
) -> None:
    """Threads of a back end abort the interpreter, or keep it from ending: the run is complete."""
    pytest.importorskip("torch")
    monkeypatch.setattr("ascend_perf.bench.job.END_S", 0.5)
    faults = (f"fault={fault}", "at=exit", f"on_rank={ranks.world_size - 1}")

    _, manifest = launch(
        Request(workload="fake", device="cpu", ranks=ranks, overrides=faults), folder=tmp_path / "run"
    )

    assert (manifest.status, manifest.problem) == ("complete", "")
    assert len(manifest.timings_ns["profiled"]) == 2
    assert len(manifest.files["trace"]) == ranks.world_size


@pytest.mark.torch
def test_modules_of_the_working_directory_are_not_taken_for_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    for name in ("http", "profile", "queue", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')", "utf-8")
    monkeypatch.chdir(tmp_path)

    _, manifest = launch(Request(workload="fake", device="cpu", ranks=TWO), folder=tmp_path / "run")

    assert manifest.status == "complete"
    assert devices.probe().problems == ()


def test_what_does_not_fit_so_many_processes_is_refused_before_any_starts(tmp_path: Path) -> None:
    request = Request(workload="fake", device="cpu", ranks=TWO, overrides=("cut=3",))
    with pytest.raises(UsageError, match="fake on 2 processes: cut 3 does not divide 2; choices: 1, 2"):
        launch(request, folder=tmp_path / "run")
    assert read_manifest(tmp_path / "run").status == "failed"

    alone = replace(find_workload("fake"), predict=None)
    with pytest.raises(UsageError, match="fake runs in one process only, got 2"):
        predicted(alone, alone.settings("tiny"), 2)
    assert predicted(alone, alone.settings("tiny"), 1) is None


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_saves_its_state_and_another_goes_on_from_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "data.txt").write_text("abcde", "utf-8")
    first = Request(
        workload="fake", preset="tuned", device="cpu", save_checkpoint=True, data=tmp_path / "data.txt",
        variables=("MALLOC_ARENA_MAX=3",),
    )  # fmt: skip

    where, manifest = launch(first, folder=tmp_path / "first")

    assert manifest.files["checkpoint"] == ("checkpoint",)
    assert (where / "checkpoint" / "rank0.txt").read_text("utf-8") == "4"  # 1 + 1 + the profiler's + 1
    assert values_of(manifest)["letters"] == 5
    assert (manifest.environment["OMP_NUM_THREADS"], manifest.environment["MALLOC_ARENA_MAX"]) == ("1", "3")
    assert manifest.command[-5:] == ("--data", "data.txt", "--env", "MALLOC_ARENA_MAX=3", "--save-checkpoint")

    second = Request(workload="fake", preset="tuned", device="cpu", resume=where)
    _, manifest = launch(second, folder=tmp_path / "second")

    lines = (tmp_path / "second" / "training.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 4
    assert '"loss": 0.0' in lines[3]  # the state that was loaded comes first
    assert manifest.command[-2:] == ("--resume", "first")

    with pytest.raises(InputError, match="has no checkpoint"):
        launch(Request(workload="fake", device="cpu", resume=tmp_path / "second"), folder=tmp_path / "third")


@pytest.mark.slow
@pytest.mark.torch
def test_two_machines_each_leave_a_run_directory_with_the_figures_of_the_whole_job(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["run", "fake", "--device", "cpu", "--nnodes", "2", "--master-port", str(port), "--no-report"]

    nodes = []
    for node in (0, 1):
        own = ["--node-rank", str(node), "-o", str(tmp_path / f"node{node}")]
        command = [sys.executable, "-m", "ascend_perf", *words, *own]
        nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [node.communicate(timeout=300) for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], said
    manifests = [read_manifest(tmp_path / f"node{node}") for node in (0, 1)]
    assert [manifest.files["trace"] for manifest in manifests] == [
        ("trace/rank0.pt.trace.json.gz",), ("trace/rank1.pt.trace.json.gz",),
    ]  # fmt: skip
    assert [manifest.device_facts["node_rank"] for manifest in manifests] == [0, 1]
    assert manifests[0].timings_ns == manifests[1].timings_ns
    assert {values_of(manifest)["sum"] for manifest in manifests} == {8}
    run = pipeline.load([tmp_path / "node0", tmp_path / "node1"], jobs=1)
    assert {trace.meta.rank for trace in run.traces} - {None} == {0, 1}


@pytest.mark.slow
@pytest.mark.torch
def test_a_job_ends_with_the_command_that_started_it(tmp_path: Path, fake: Path) -> None:
    pytest.importorskip("torch")
    psutil = pytest.importorskip("psutil")
    words = ["run", "fake", "--device", "cpu", "--nproc", "2", "--set", "fault=sleep", "-o", str(tmp_path / "run")]
    command = subprocess.Popen(
        [sys.executable, "-m", "ascend_perf", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (fake / "asleep").exists():
        assert command.poll() is None
        time.sleep(0.05)
    started = psutil.Process(command.pid).children(recursive=True)
    assert len(started) >= 3  # torchrun and two ranks

    command.kill()
    command.wait()

    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


@pytest.mark.slow
@pytest.mark.torch
def test_memory_that_is_modelled_too_large_is_warned_of_and_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    notices: list[Notice] = []
    request = Request(workload="fake", preset="tuned", device="cpu", overrides=("need_bytes=900000000000000",))

    _, manifest = launch(request, folder=tmp_path / "run", on_notice=notices.append)

    (warning,) = (notice.warning for notice in notices if notice.warning is not None)
    assert warning.en.startswith("the modelled memory is 838\u2009200 GiB, the device has")  # 9e14 / 2^30
    assert warning.en in manifest.notes
