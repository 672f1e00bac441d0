"""Runs on virtual NPUs as far as they need none: options, the shape of the job, what would fit, what a record tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ascend_perf.bench import virtual
from ascend_perf.bench.figures import RankJson, Said
from ascend_perf.cli import _virtual
from ascend_perf.cli.collect import command as collect_command
from ascend_perf.cli.run import command as run_command
from ascend_perf.collectors import step_marks
from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.collectors.virtual_npu.record import read_folder, read_record
from ascend_perf.errors import UsageError
from ascend_perf.reports.phrases import phrase
from ascend_perf.workloads import _spec
from tests.collectors.virtual_npu._records import PID, small_job

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [("32GiB", 32 * GIB), ("64GB", 64 * 10**9), ("34359738368B", 32 * GIB), ("1.5 gib", 3 * GIB // 2)],
)
def test_sizes(text: str, expected: int) -> None:
    assert _virtual.bytes_of(text, "--hbm") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("25GB/s", 25e9), ("200Gbit/s", 25e9), ("1.96e+11B/s", 1.96e11), ("8Kbit/s", 1000.0)]
)
def test_rates(text: str, expected: float) -> None:
    assert _virtual.rate_of(text, "--link-speed") == expected


@pytest.mark.parametrize("text", ["32", "GiB", "0GB", "-1GB", "32 qB", "1e9", "25Gb/s", ""])
def test_what_is_no_size_or_rate_is_refused(text: str) -> None:
    for rate in (text, f"{text}/s", "25GB"):
        with pytest.raises(UsageError):
            _virtual.rate_of(rate, "--link-speed")
    with pytest.raises(UsageError):
        _virtual.bytes_of(text, "--hbm")


def test_options_that_were_written_make_the_same_devices_again() -> None:
    settings = VirtualNpu(
        world_size=16, ranks_per_node=4, hbm_bytes=32 * GIB, link_bytes_per_s=1.5e11, node_link_bytes_per_s=25e9,
        clock="modelled",
    )  # fmt: skip
    words = virtual.words_of(settings)
    given = dict(zip(words[::2], words[1::2], strict=True))
    made = _virtual.Options(
        soc=given["--soc"], world_size=int(given["--world-size"]), ranks_per_node=int(given["--ranks-per-node"]),
        hbm=given["--hbm"], link_speed=given["--link-speed"], node_link_speed=given["--node-link-speed"],
        clock="modelled", wheel=None,
    ).settings()  # fmt: skip
    assert made == settings
    assert virtual.words_of(VirtualNpu()) == ["--soc", "Ascend910B2", "--world-size", "1"]


@pytest.mark.parametrize(
    ("world", "nproc", "min_ranks", "expected"),
    [(1, None, 1, (1, 1, False)), (64, None, 1, (64, 1, True)), (1, 4, 1, (4, 4, False)), (4, 4, 1, (4, 4, False)),
     (1, None, 2, (2, 1, True)), (8, 1, 1, (8, 1, True))],
)  # fmt: skip
def test_either_all_ranks_run_or_one_stands_for_all(
    world: int, nproc: int | None, min_ranks: int, expected: tuple[int, int, bool]
) -> None:
    job = virtual.job_of(VirtualNpu(world_size=world), nproc, 1, min_ranks)
    assert (job.settings.world_size, job.processes, job.is_alone) == expected


def test_part_of_a_job_and_several_machines_are_refused() -> None:
    with pytest.raises(UsageError, match="--nproc 2 of --world-size 8"):
        virtual.job_of(VirtualNpu(world_size=8), 2, 1)
    with pytest.raises(UsageError, match="one machine"):
        virtual.job_of(VirtualNpu(), None, 2)


@pytest.mark.parametrize(
    ("command", "expected"),
    [("python train.py", None), ("torchrun --nproc-per-node 8 train.py", 8), ("torchrun --nproc_per_node=4 t.py", 4),
     ("python -m torch.distributed.run --nproc-per-node=2 t.py", 2), ("accelerate launch --num_processes 3 t.py", 3),
     ("torchrun --nproc-per-node gpu t.py", None), ("python train.py --nproc-per-node 9", None)],
)  # fmt: skip
def test_processes_of_a_launcher(command: str, expected: int | None) -> None:
    assert virtual.launched(command.split()) == expected


def test_the_interpreter_of_a_command(tmp_path: Path) -> None:
    for name in ("python", "torchrun"):
        (tmp_path / name).write_text("#!/bin/sh\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    assert virtual.python_of([str(tmp_path / "torchrun"), "t.py"]) == str(tmp_path / "python")
    assert virtual.python_of([str(tmp_path / "python"), "t.py"]) == str(tmp_path / "python")
    assert virtual.python_of(["bash", "run.sh"]) == sys.executable
    assert virtual.python_of(["no-such-program"]) == sys.executable


def test_what_would_fit_is_what_the_workload_predicts() -> None:
    workload = _spec.find_workload("llm-pretrain")
    settings = workload.settings("7b", ["data_parallel=ddp"])
    choices = virtual.choices_that_fit(workload, settings, 1, 32 * GIB)
    assert choices and len(choices) <= virtual.MAX_CHOICES
    assert workload.predict is not None
    for world, changes, needed in choices:
        config = workload.from_dict({**settings.as_dict(), **changes}).config
        # Room for the buffers of HCCL and for what the allocator adds.
        assert needed == workload.predict(config, world).peak_bytes <= (32 * GIB - 400 * 2**20) / 1.01
        assert world > 1  # 16 bytes a parameter never fit one device
    words = virtual.fitting_words(choices, 1, 32 * GIB)
    assert words.startswith("what would fit 32 GiB, by the modelled memory: --world-size ")
    assert "--set data_parallel=fsdp" in words
    # A job of 8 stays one of 8; one that fits as it is has nothing to change.
    assert {world for world, _, _ in virtual.choices_that_fit(workload, settings, 8, 32 * GIB)} == {8}
    assert virtual.choices_that_fit(workload, settings, 1, 200 * GIB)[0][:2] == (1, {})
    assert virtual.fitting_words([], 1, GIB).startswith("no layout")


def record(**more: Any) -> Any:
    """As `record.read_record` gives it: two marked steps, calls between them and after."""
    columns = {"def": [1, 2, 1, 2, 2, 3, 1], "comm": [7] * 7, "host_ns": [50, 110, 150, 210, 260, 270, 310]}
    return SimpleNamespace(
        rank=0,
        marks=[(100, "mark", step_marks.BEGIN, 1), (120, "mark", "the program's own", 1),
               (200, "mark", step_marks.BEGIN, 1), (300, "mark", step_marks.END, 1)],
        tables={"C": {name: np.array(values) for name, values in columns.items()}},
        definitions={1: ("comm", "HcclAllReduce", {"bytes": 10}), 2: ("comm", "HcclAllGather", {"bytes": 3}),
                     3: ("comm", "HcclBarrier", {"bytes": 0})},
        groups={7: ("world", 8, 0, [])}, **more,
    )  # fmt: skip


def test_traffic_is_that_of_the_marked_steps() -> None:
    assert virtual.step_windows(record()) == [(100, 200), (200, 300)]
    # In two steps: one all_reduce of 10 bytes, three all_gathers of 8 x 3 bytes.
    assert virtual.traffic_of(record()) == {
        "collectives": [
            {"collective": "all_gather", "bytes_per_step": 36.0, "calls_per_step": 1.5},
            {"collective": "all_reduce", "bytes_per_step": 5.0, "calls_per_step": 0.5},
        ],
        "unknown_calls_per_step": 0,
    }
    unmarked = record()
    unmarked.marks = []
    assert virtual.traffic_of(unmarked) is None


def test_the_modelled_clock_gives_the_times_of_steps() -> None:
    measurement: Any = {
        "warmup_ns": [9], "measured_ns": [9, 9], "profiled_ns": [9], "peak_rss_bytes": 5, "peak_device_bytes": 6,
        "trace_name": "", "last_value": None, "measured_from_ns": 0, "measured_to_ns": 1,
    }  # fmt: skip
    rank: RankJson = {
        "rank": 0, "measurement": measurement, "memory": {}, "latencies": {}, "traffic": None, "device_joules": None,
    }  # fmt: skip
    wall = virtual.completed(Said(ranks=(rank,)), [record()], "wall")
    assert wall.measurement is not None and wall.measurement["measured_ns"] == [9, 9]
    modelled = virtual.completed(Said(ranks=(rank,)), [record()], "modelled")
    assert modelled.measurement is not None and modelled.measurement["measured_ns"] == [100, 100]
    assert modelled.measurement["profiled_ns"] == []  # the profiler was not on that clock
    assert modelled.ranks[0]["traffic"] is not None


@pytest.mark.parametrize("option", ["--world-size=8", "--hbm=32GiB", "--clock=wall", "--link-speed=1GB/s", "--soc=X",
                                    "--snapshot=x", "--ranks-per-node=4"])  # fmt: skip
def test_options_of_virtual_devices_are_refused_for_real_ones(option: str) -> None:
    done = CliRunner().invoke(run_command, ["llm-pretrain", "--device", "cpu", option])
    assert isinstance(done.exception, UsageError) and option.split("=")[0] in done.exception.what
    if not option.startswith("--soc"):  # msprof has it too
        done = CliRunner().invoke(collect_command, [option, "--", "python", "x.py"])
        assert isinstance(done.exception, UsageError) and "virtual NPUs only" in done.exception.what


def test_a_shell_with_virtual_devices_of_its_own_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.bench import before
    from ascend_perf.bench.job import Ranks

    monkeypatch.setenv("ASCEND_PERF_VIRTUAL_NPU", "/tmp/x")
    with pytest.raises(UsageError, match="pass for a measured one"):
        before.environment_of("npu", Ranks(), (), {})
    environment, _ = before.environment_of("virtual-npu", Ranks(), (), {"npu": {"TASK_QUEUE_ENABLE": "2"}})
    assert environment["TASK_QUEUE_ENABLE"] == "2"


def test_collect_plans_for_virtual_devices_and_refuses_what_cannot_be(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["--device", "virtual-npu", "--world-size", "8", "--dry-run", "-o", str(tmp_path / "x")]
    done = CliRunner().invoke(collect_command, [*words, "--", "python", "train.py"])
    assert done.exit_code == 0, done.output
    assert "torch-npu" in done.output and "npu_analysis" in done.output
    for more, what in (("--clock=modelled", "no profile to collect"), ("--with=msprof", "does not know virtual")):
        done = CliRunner().invoke(collect_command, [more, *words, "--", "python", "train.py"])
        assert isinstance(done.exception, UsageError) and what in done.exception.what


def test_a_place_that_takes_no_snapshot_is_said_before_anything_runs(tmp_path: Path) -> None:
    words = ["--device", "virtual-npu", "-o", str(tmp_path / "run")]
    for place, what in ((tmp_path, "it is a folder"), (tmp_path / "no" / "x.txt", "its folder cannot be written")):
        for command, more in ((run_command, ["llm-pretrain"]), (collect_command, ["--", "python", "x.py"])):
            done = CliRunner().invoke(command, [*words, "--snapshot", str(place), *more])
            assert isinstance(done.exception, UsageError) and what in done.exception.what
    assert not (tmp_path / "run").exists()


def test_json_of_facts() -> None:
    job = virtual.job_of(VirtualNpu(world_size=8, hbm_bytes=GIB), None, 1)
    facts = json.loads(json.dumps(virtual.facts_of(job)))
    assert facts["soc"] == "Ascend910B2" and facts["memory_bytes"] == GIB and facts["processes"] == 1


def test_profiles_that_the_program_made_itself_are_marked_and_the_record_keeps_no_path(tmp_path: Path) -> None:
    run, own = tmp_path / "run", tmp_path / "own" / f"host_{PID}_20260101000000000_ascend_pt"
    (run / "record-SIMULATED").mkdir(parents=True)
    own.mkdir(parents=True)
    (own / "profiler_info.json").write_text('{"config": {}}')
    text = small_job()
    text.lines = [line.replace("/somewhere/", f"{own.parent}/") for line in text.lines]
    path = text.write(run / "record-SIMULATED")
    devices = object.__new__(virtual.VirtualDevices)
    devices.record_folder = run / "record-SIMULATED"

    assert devices.mark_own_profiles(devices.records()) == (virtual.OWN_PROFILES,)
    devices.clean()

    for name in ("profiler_info.json", "profiler_metadata.json"):
        assert json.loads((own / name).read_text("utf-8"))["data_origin"] == "simulated"
    content = path.read_text("utf-8")
    assert str(tmp_path) not in content and f"\tinit\t{PID}_20260101000000000_ascend_pt\n" in content
    assert devices.mark_own_profiles(devices.records()) == ()  # no folder that is still known


def test_operators_that_the_cost_model_does_not_know_are_named_with_their_launches(tmp_path: Path) -> None:
    for rank, unknown in enumerate((["aclnnRmsNorm"], ["aclnnMaxPool2dWithMask", "aclnnRmsNorm", "aclnnNever"])):
        job = small_job(rank)
        for name in unknown:
            job.put("U", name)
        job.write(tmp_path)
    records = read_folder(tmp_path)
    assert [record.unclassed for record in records] == [
        ("aclnnRmsNorm",), ("aclnnMaxPool2dWithMask", "aclnnRmsNorm", "aclnnNever"),
    ]  # fmt: skip
    (note,) = virtual.without_class(records)  # two steps each
    assert note.endswith(": aclnnRmsNorm (4), aclnnMaxPool2dWithMask (2), aclnnNever (0)")
    assert phrase(note).zh == (
        "成本模型中没有单独类别的算子（按 other 类计时）及下发次数：aclnnRmsNorm (4), aclnnMaxPool2dWithMask (2), "
        "aclnnNever (0)"
    )
    assert virtual.without_class([read_record(small_job(2).write(tmp_path))]) == ()


def test_who_takes_figures_from_the_log_is_told_that_they_are_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setattr(virtual.virtual_npu, "prepare", lambda *args, **named: None)
    monkeypatch.setenv("ASCEND_PERF_SIMULATED_FILE", str(mark))
    job = virtual.job_of(VirtualNpu(), None, 1)
    virtual.VirtualDevices(job, tmp_path)
    assert mark.read_bytes() == b""

    # A place where nothing can be made is no reason to fail.
    monkeypatch.setenv("ASCEND_PERF_SIMULATED_FILE", str(tmp_path / "none" / "mark"))
    (tmp_path / "other").mkdir()
    virtual.VirtualDevices(job, tmp_path / "other")
