"""A run that is stopped by a signal in each of its phases: its exit code, what it leaves, and that nothing hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.manifest import read_manifest
from tests.bench import _fake

pytestmark = pytest.mark.torch
DEADLINE_S = 120


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(folder: Path, *faults: str, nproc: int = 1) -> subprocess.Popen[str]:
    words = [word for fault in faults for word in ("--set", fault)]
    command = ["run", "fake", "--device", "cpu", "--nproc", str(nproc), "-o", str(folder / "run"), *words]
    return subprocess.Popen(
        [sys.executable, "-m", "ascend_perf", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("at", "number", "nproc", "measured", "has_trace"),
    [
        ("measured", signal.SIGINT, 2, 0, False),
        pytest.param("profiled", signal.SIGTERM, 1, 3, True, marks=pytest.mark.slow),
        pytest.param("warming", signal.SIGTERM, 1, 3, False, marks=pytest.mark.slow),
        pytest.param("build", signal.SIGINT, 1, 0, False, marks=pytest.mark.slow),
        pytest.param("step", signal.SIGINT, 1, 0, False, marks=pytest.mark.slow),
        pytest.param("profiled", signal.SIGINT, 2, 3, True, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_closes_and_leaves_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, number: signal.Signals, nproc: int, measured: int,
    has_trace: bool,
) -> None:  # fmt: skip
    pytest.importorskip("torch")
    _fake.install(tmp_path, monkeypatch)
    process = start(tmp_path, "fault=sleep", f"at={at}", nproc=nproc)
    wait_for(tmp_path / "news" / "asleep", process)

    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert f"stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}" in err
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "interrupted"
    assert len(manifest.timings_ns.get("measured", ())) == measured
    assert ("trace" in manifest.files) == has_trace
    assert ("words_per_s" in {metric.name for metric in manifest.metrics}) == (measured > 0)
    assert (tmp_path / "news" / "closed0").exists() == (at != "build")
    run = pipeline.load(tmp_path / "run", jobs=1)
    assert run.traces[0].meta.warnings[0].startswith("the run was interrupted: stopped by")
    assert f"the run ended early: {measured} of 3 measured steps were done" in run.traces[0].meta.warnings or measured


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_before_it_has_built_anything_leaves_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    _fake.install(tmp_path, monkeypatch)
    process = start(tmp_path, nproc=2)
    wait_for(tmp_path / "run" / "trace", process)  # the processes start right after

    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.config["width"]) == ("interrupted", 4)
    assert pipeline.load(tmp_path / "run", jobs=1).traces[0].tables == {}


@pytest.mark.slow
def test_a_second_signal_ends_at_once_what_does_not_obey_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    _fake.install(tmp_path, monkeypatch)
    process = start(tmp_path, "fault=stubborn", "at=step")
    wait_for(tmp_path / "news" / "asleep", process)

    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "news" / "asked", process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 130
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "interrupted"
    assert "no trace: the run ended before the profiler wrote one" in manifest.notes
    assert not (tmp_path / "news" / "closed0").exists()  # it was killed
