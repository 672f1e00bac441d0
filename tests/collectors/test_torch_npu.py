"""The torch_npu recorder against a stand-in with the signatures of three generations of its profiler."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ascend_perf.collectors.torch_npu import NpuRecorder, experimental_config
from ascend_perf.collectors.torch_profiler import Options
from ascend_perf.errors import MachineError


class Level(enum.Enum):
    Level1 = "Level1"


class Config2023:
    def __init__(
        self, profiler_level: object = None, aic_metrics: object = None, l2_cache: bool = False,
        data_simplification: bool | None = None, record_op_args: bool = False,
    ) -> None:  # fmt: skip
        self.given = {name: value for name, value in locals().items() if name != "self"}


class Config2026:
    def __init__(
        self, profiler_level: object = None, aic_metrics: object = None, l2_cache: bool = False,
        data_simplification: bool = True, record_op_args: bool = False, export_type: object = None,
        gc_detect_threshold: float | None = None, mstx: bool = False,
    ) -> None:  # fmt: skip
        self.given = {name: value for name, value in locals().items() if name != "self"}


class Profile:
    def __init__(self, **given: object) -> None:
        self.given = given


def stand_in(monkeypatch: pytest.MonkeyPatch, config: type, *, has_export_type: bool) -> None:
    profiler = SimpleNamespace(
        profile=Profile,
        schedule=lambda wait, active, warmup=0, repeat=0, skip_first=0: (wait, warmup, active, repeat),
        tensorboard_trace_handler=lambda dir_name, worker_name=None, analyse_flag=True: (dir_name, worker_name),
        ProfilerActivity=SimpleNamespace(CPU="cpu", NPU="npu"),
        ProfilerLevel=Level,
        AiCMetrics=SimpleNamespace(PipeUtilization="ACL_AICORE_PIPE_UTILIZATION"),
        _ExperimentalConfig=config,
    )
    if has_export_type:
        profiler.ExportType = SimpleNamespace(Text="text")
    module = ModuleType("torch_npu")
    module.profiler = profiler  # type: ignore[attr-defined]  # stand-in
    monkeypatch.setitem(sys.modules, "torch_npu", module)


def test_an_old_release_is_given_only_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Config2023, has_export_type=False)

    config = experimental_config()

    assert isinstance(config, Config2023)
    assert config.given["profiler_level"] is Level.Level1
    assert config.given["data_simplification"] is False


def test_a_new_release_also_exports_text_and_records_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Config2026, has_export_type=True)

    config = experimental_config()

    assert isinstance(config, Config2026)
    assert (config.given["export_type"], config.given["gc_detect_threshold"]) == ("text", 1.0)


def test_steps_activities_and_folder_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, Config2026, has_export_type=True)

    recorder = NpuRecorder(tmp_path, 3, Options(with_stack=True))

    assert isinstance(recorder.profiler, Profile)
    given = recorder.profiler.given
    assert given["activities"] == ["cpu", "npu"]
    assert given["schedule"] == (0, 1, 3, 1)
    assert given["on_trace_ready"] == (str(tmp_path), "rank0")  # not the host name
    assert (given["record_shapes"], given["profile_memory"], given["with_stack"]) == (True, True, True)


def test_silence_of_the_profiler_is_not_taken_for_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, Config2026, has_export_type=True)
    recorder = NpuRecorder(tmp_path, 3, Options())

    with pytest.raises(MachineError, match=r"wrote no \*_ascend_pt directory"):
        recorder.written()

    (tmp_path / "rank0_20260407101532881_ascend_pt").mkdir()
    with pytest.raises(MachineError, match="could not parse it"):
        recorder.written()

    (tmp_path / "rank0_20260407101532881_ascend_pt" / "ASCEND_PROFILER_OUTPUT").mkdir()
    assert recorder.written() == "rank0_20260407101532881_ascend_pt"
