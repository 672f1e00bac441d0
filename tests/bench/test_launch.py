"""A run of one process from request to run directory, and what is left when it fails."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from ascend_perf.bench import before
from ascend_perf.bench.folder import RESERVE_BYTES, RESERVE_FILE
from ascend_perf.bench.launch import Notice, Ranks, Request, default_folder, launch
from ascend_perf.collectors import devices
from ascend_perf.collectors.environment import environment
from ascend_perf.errors import InputError, MachineError, UsageError
from ascend_perf.manifest import read_manifest, write_manifest
from ascend_perf.model.run import Manifest
from ascend_perf.workloads._spec import load_workloads

FAST_LLM = (
    "layers=1", "width=16", "heads=2", "kv_heads=1", "hidden=16", "vocabulary=32", "tokens=8", "batch=1",
    "accumulate=1", "warmup_steps=1", "measured_steps=2", "profiled_steps=2", "dtype=fp32", "seed=5",
)  # fmt: skip
FAST_RESNET = (
    "batch=1", "image_width_px=40", "image_height_px=40", "distinct_images=1", "crop_px=32", "base_width=4",
    "classes=4", "warmup_steps=1", "measured_steps=2", "profiled_steps=2",
)  # fmt: skip


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages are there, as far as the launcher can tell."""
    monkeypatch.setattr(before, "check_packages", lambda workload: None)


def ranges(folder: Path, name: str) -> list[str]:
    document = json.loads(gzip.decompress((folder / name).read_bytes()))
    return [event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"]


@pytest.mark.torch
def test_llm_pretrain_leaves_manifest_trace_and_telemetry(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    notices: list[Notice] = []
    folder = tmp_path / "run"
    meanwhile: set[tuple[str, str]] = set()

    def on_notice(notice: Notice) -> None:
        notices.append(notice)
        there = read_manifest(folder)
        meanwhile.add((there.status, there.problem))

    where, manifest = launch(
        Request(workload="llm-pretrain", overrides=FAST_LLM, device="cpu"), folder=folder, on_notice=on_notice
    )

    # Who kills the command leaves this.
    assert meanwhile == {("interrupted", "killed before it could say more, or still running")}

    assert where == folder
    assert read_manifest(folder) == replace(manifest, path="manifest.json")
    assert (manifest.device, manifest.seed, manifest.data_origin) == ("cpu", 5, "measured")
    assert {phase: len(times) for phase, times in manifest.timings_ns.items()} == {
        "warmup": 1, "measured": 2, "profiled": 2,
    }  # fmt: skip
    values = {metric.name: metric.value for metric in manifest.metrics}
    # Median of two is their mean; 8 tokens a step.
    assert values["tokens_per_s"] == pytest.approx(8 / (sum(manifest.timings_ns["measured"]) / 2) * 1e9)
    assert manifest.command[:3] == ("ascend-perf", "run", "llm-pretrain")
    assert manifest.config["tokens"] == 8
    phases = [notice.phase for notice in notices if notice.phase not in ("forecast", "warning")]
    assert phases == [
        "start", "device", "build", "warmup", "measured", "profiler_warmup", "profiled", "export",
    ]  # fmt: skip
    (trace,) = manifest.files["trace"]
    names = ranges(folder, trace)
    assert [name for name in names if name.startswith("ProfilerStep")] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert {"data::copy", "forward", "backward", "optimizer"} <= set(names)
    with open(folder / "telemetry.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["phase"] == "start"
    assert all(int(row["process_rss_bytes"]) > 0 for row in rows)
    assert str(tmp_path) not in (folder / "manifest.json").read_text("utf-8")
    assert manifest.files["series"] == ("training.jsonl",)
    steps = [json.loads(line) for line in (folder / "training.jsonl").read_text("utf-8").splitlines()]
    # One warm-up, two measured, one of the profiler's own, two profiled.
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[2]["loss"] == pytest.approx(values["loss"])  # the manifest has that of the last measured step
    assert all(step["grad_norm"] > 0 for step in steps)
    assert [step.get("iteration_ns") for step in steps[1:3]] == list(manifest.timings_ns["measured"])


@pytest.mark.torch
def test_resnet50_infer_shows_its_preprocessing_in_the_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    request = Request(workload="resnet50-infer", overrides=FAST_RESNET, device="cpu", with_stack=True)

    where, manifest = launch(request, folder=tmp_path / "run")

    names = ranges(where, manifest.files["trace"][0])
    stages = ["preprocess::decode", "preprocess::resize", "preprocess::normalise", "preprocess::copy", "inference"]
    assert [names.count(stage) for stage in stages] == [2] * 5
    assert manifest.command[-1] == "--with-stack"


def test_a_wrong_setting_is_found_before_anything_is_made(tmp_path: Path, packages: None) -> None:
    with pytest.raises(UsageError, match="did you mean 'layers'"):
        launch(Request(workload="llm-pretrain", overrides=("layer=3",)), folder=tmp_path / "run")

    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.config, manifest.files) == ("failed", {}, {})
    assert manifest.problem == "llm-pretrain has no setting 'layer': did you mean 'layers'?"


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MachineError) as caught:
        launch(Request(workload="resnet50-infer"), folder=tmp_path / "run")

    assert caught.value.what == "resnet50-infer needs torch, pillow, not installed here"
    assert caught.value.hint == 'pip install "ascend-perf[torch]"'


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path, packages: None) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    request = Request(workload="llm-pretrain", device="cpu")

    with pytest.raises(UsageError, match="exists"):
        launch(request, folder=tmp_path)
    with pytest.raises(UsageError, match="no run directory of ours"):
        launch(request, folder=tmp_path, force=True)
    with pytest.raises(UsageError, match="no run directory of ours"):
        launch(request, folder=tmp_path / "notes.txt", force=True)

    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine"


def stand_in_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run `code` where the process of the workload would be; `say` appends a message."""
    say = (
        "import json, pathlib, sys\n"
        "def say(**message):\n"
        "    with open(pathlib.Path(sys.argv[1], 'rank0.jsonl'), 'a') as file:\n"
        "        file.write(json.dumps({'time_ns': 1, **message}) + chr(10))\n"
    )
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **kinds: real([sys.executable, "-c", say + code, command[-1]], **kinds)
    )


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", MachineError, "ended by SIGKILL"),
        ("raise KeyError('a bug')", RuntimeError, "KeyError: 'a bug'"),
        ("pass", RuntimeError, "ended with code 0"),
        (
            "say(event='error', kind='known', what='w', hint='h', exit_code=4,"
            " times={'warmup': [5], 'measured': [7], 'profiled': []}); sys.exit(4)",
            MachineError,
            "^w\n  hint: h$",
        ),
        (
            "say(event='error', kind='known', what='w', hint='h', exit_code=2,"
            " times={'warmup': [], 'measured': [], 'profiled': []}); sys.exit(2)",
            UsageError,
            "w",
        ),
    ],
)
def test_a_process_that_dies_leaves_a_folder_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: None, code: str, kind: type[Exception], message: str
) -> None:
    stand_in_child(monkeypatch, code)
    notices: list[Notice] = []

    with pytest.raises(kind, match=message):
        launch(Request(workload="llm-pretrain", device="cpu"), folder=tmp_path / "run", on_notice=notices.append)

    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.device) == ("failed", "cpu")
    assert manifest.problem
    assert manifest.notes[-1] == "no trace: the run ended before the profiler wrote one"
    assert manifest.timings_ns.get("measured") in ((7,), (), None)
    assert (notices[-1].phase, notices[-1].folder) == ("left", tmp_path / "run")


def test_room_for_the_manifest_is_kept_while_the_workload_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: None
) -> None:
    kept, seen = tmp_path / "run" / RESERVE_FILE, tmp_path / "seen"
    stand_in_child(monkeypatch, f"import os; open({str(seen)!r}, 'w').write(str(os.path.getsize({str(kept)!r})))")

    with pytest.raises(RuntimeError):
        launch(Request(workload="llm-pretrain", device="cpu"), folder=tmp_path / "run")

    assert int(seen.read_text()) == RESERVE_BYTES
    assert not kept.exists()
    assert read_manifest(tmp_path / "run").status == "failed"


def run_directory(folder: Path, status: str) -> None:
    folder.mkdir()
    manifest = Manifest(workload="w", device="cpu", data_origin="measured", created="before", status=status)  # type: ignore[arg-type]
    write_manifest(folder, manifest)


def test_a_run_that_fails_does_not_take_the_place_of_a_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: None
) -> None:
    stand_in_child(monkeypatch, "pass")
    run_directory(tmp_path / "run", "complete")
    notices: list[Notice] = []

    for _ in range(2):
        with pytest.raises(RuntimeError):
            launch(
                Request(workload="llm-pretrain", device="cpu"), folder=tmp_path / "run", force=True,
                on_notice=notices.append,
            )  # fmt: skip

    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.failed-1", "run.failed-2"]
    assert read_manifest(tmp_path / "run").created == "before"
    assert read_manifest(tmp_path / "run.failed-2").status == "failed"
    assert notices[-1].folder == tmp_path / "run.failed-2"


def test_a_run_that_fails_replaces_one_that_had_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: None
) -> None:
    stand_in_child(monkeypatch, "pass")
    run_directory(tmp_path / "run", "interrupted")

    with pytest.raises(RuntimeError):
        launch(Request(workload="llm-pretrain", device="cpu"), folder=tmp_path / "run", force=True)

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert read_manifest(tmp_path / "run").status == "failed"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("HCCL_ALGO=Ring",), "HCCL_ALGO=Ring"),
        (("NPU_MEMORY_OPTIMIZE=1",), "no such variable"),
        (("TASK_QUEUE_ENABLE",), "is not KEY=VALUE"),
    ],
)
def test_a_wrong_launch_setting_is_refused_before_anything_starts(
    tmp_path: Path, packages: None, texts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launch(Request(workload="llm-pretrain", device="cpu", variables=texts), folder=tmp_path / "run")

    assert read_manifest(tmp_path / "run").status == "failed"


def test_variables_of_the_user_win_over_the_presets_and_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "usable_cores", lambda: 7)
    presets = {"cpu": {"MALLOC_ARENA_MAX": "2", "OMP_PROC_BIND": "true"}, "npu": {"TASK_QUEUE_ENABLE": "2"}}

    seen, doubts = before.environment_of("cpu", Ranks(per_node=3), ("MALLOC_ARENA_MAX=4",), presets)

    assert (seen["MALLOC_ARENA_MAX"], seen["OMP_PROC_BIND"], seen["OMP_NUM_THREADS"]) == ("4", "true", "2")
    assert "TASK_QUEUE_ENABLE" not in seen
    assert doubts == ()


def test_a_variable_of_the_shell_that_the_preset_replaces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    presets = {"cpu": {"MALLOC_ARENA_MAX": "2", "OMP_PROC_BIND": "true"}}

    seen, doubts = before.environment_of("cpu", Ranks(), (), presets)
    kept, silent = before.environment_of("cpu", Ranks(), ("MALLOC_ARENA_MAX=8",), presets)

    assert seen["MALLOC_ARENA_MAX"] == "2"
    assert [doubt.en for doubt in doubts] == [
        "MALLOC_ARENA_MAX=8 of the shell is replaced by MALLOC_ARENA_MAX=2 of the preset; to keep it: "
        "--env MALLOC_ARENA_MAX=8"
    ]
    assert (kept["MALLOC_ARENA_MAX"], silent) == ("8", ())


def test_what_presets_set_is_recorded() -> None:
    """Each variable of each preset is in the manifest."""
    for workload in load_workloads().parts.values():
        for preset in workload.presets().values():
            for variables in preset.environment.values():
                assert environment(variables).keys() == variables.keys(), (workload.name, preset.name)


def test_two_profilers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: None) -> None:
    monkeypatch.setattr(devices, "installed_version", lambda package: "2.9.0")
    monkeypatch.setenv("PROFILING_MODE", "dynamic")

    with pytest.raises(MachineError, match="runs under msprof"):
        launch(Request(workload="llm-pretrain"), folder=tmp_path / "run")


def test_a_run_on_the_cpu_does_not_load_other_back_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed_version", lambda package: "2.9.0")
    monkeypatch.delenv("PROFILING_MODE", raising=False)

    assert before.environment_of("cpu", Ranks(), (), {})[0][devices.AUTOLOAD] == "0"


def test_the_default_folder_names_workload_preset_and_time() -> None:
    request = Request(workload="llm-pretrain", preset="1b")

    assert default_folder(request, datetime(2026, 4, 7, 10, 15, 32)) == Path("runs/llm-pretrain-1b-20260407-101532")


def test_the_manifest_of_a_run_is_not_the_run_to_go_on_from(tmp_path: Path, packages: None) -> None:
    run = tmp_path / "before"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    for number, (given, what, hint) in enumerate((
        (run / "manifest.json", "this is the manifest of a run, not the run", f"--resume {run}"),
        (run, "has no checkpoint", "--save-checkpoint"),
        (tmp_path / "nowhere", "there is nothing", "check the path"),
    )):
        with pytest.raises(InputError, match=what) as caught:
            launch(Request(workload="llm-pretrain", device="cpu", resume=given), folder=tmp_path / f"run{number}")
        assert hint in caught.value.hint
