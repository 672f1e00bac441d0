"""`ascend_perf.hooks` in a user's own loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_perf import hooks, pipeline
from ascend_perf.errors import UsageError
from ascend_perf.manifest import read_manifest
from tests.collectors import _fake_torch_npu

LOOP = """
import sys
from ascend_perf import hooks
heavy = {"pandas", "jinja2", "plotly", "torch", "numpy", "yaml", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import torch
before = set(sys.modules)
with hooks.profile(sys.argv[1], skip=2, active=2, options={"with_flops": True}) as profiler:
    for step in range(9):
        torch.randn(4, 4) @ torch.randn(4, 4)
        profiler.step()
assert len(profiler.traces) == 1 and profiler.problems == ()
new = {"pandas", "jinja2", "plotly", "rich"} & (set(sys.modules) - before)
assert not new, new
"""


@pytest.mark.torch
def test_a_loop_is_recorded_into_a_run_directory_without_pandas_or_jinja2(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.data_origin, manifest.device) == ("complete", "measured", "cpu")
    assert manifest.config["option.with_flops"] is True
    run = pipeline.load(tmp_path / "run")
    assert run.manifest is not None
    assert len(run.steps) == 2


def test_a_loop_that_fails_leaves_a_manifest_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    with pytest.raises(KeyError), hooks.profile(tmp_path / "run", skip=3) as profiler:
        profiler.step()
        raise KeyError("planted")

    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.problem) == ("failed", "KeyError: 'planted'")
    assert manifest.notes == ("nothing was recorded: 1 steps were seen, recording begins after 3 and needs 2 more",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"skip": -1}, "skip must be a whole number, 0 or more"),
        ({"warmup": 0}, "warmup must be a whole number, 1 or more"),
        ({"active": 0}, "active must be"),
        ({"active": 2.5}, "active must be"),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"analysis": "never"}, "no analysis 'never'"),
        ({"level": "full"}, "no level 'full'"),
        ({"device": "npu", "options": {"profiler_lvl": "Level1"}}, "has no option 'profiler_lvl'"),
        ({"device": "cpu", "options": {"l2_cache": True}}, "has no option 'l2_cache'"),
        ({"options": {"l2_cach": True}}, "has no option 'l2_cach'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_loop(tmp_path: Path, given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as error:
        hooks.profile(tmp_path, **given)  # type: ignore[arg-type]  # wrong on purpose
    assert words in error.value.what


def test_an_option_of_either_profiler_is_taken_while_the_device_is_open(tmp_path: Path) -> None:
    hooks.profile(tmp_path, options={"l2_cache": True})


def test_a_step_without_collect_does_nothing() -> None:
    hooks.step()


@pytest.mark.slow
@pytest.mark.torch
def test_an_npu_is_recorded_raw_and_parsed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    site = _fake_torch_npu.install(tmp_path / "site")
    source = f"""
import sys
sys.path.insert(0, {str(site)!r})
from ascend_perf import hooks
with hooks.profile({str(tmp_path / "run")!r}, device="npu", skip=1, active=2) as profiler:
    for step in range(6):
        profiler.step()
print(profiler.problems)
"""
    environment = {**os.environ, "PYTHONPATH": str(site), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": "/usr/bin:/bin"}

    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment
    )

    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run" / "trace" / "rank0_20260407101532881_ascend_pt"
    assert (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").is_file()
    assert "the parser of the device's data (msprof) was not found" in done.stdout  # there is no CANN here
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "complete"
