"""The plan of `ascend-perf collect`: exact command lines and variables, and the traps caught before a start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.collectors.collect_plan import INJECTED, CollectRequest, Here, make_plan
from ascend_perf.errors import AscendPerfError, MachineError, UsageError

RUN = Path("/runs/r1")
TRAIN = ("python", "train.py", "--lr", "0.1")
PLAIN = Here(variables={"PATH": "/bin"}, has_npu=False, torch_version="2.13.0")
NPU = Here(
    variables={"PATH": "/bin", "ASCEND_HOME_PATH": "/cann"}, has_npu=True, msprof=Path("/cann/bin/msprof"),
    cann_version="8.5.0", has_cann=True, torch_version="2.7.1", torch_npu_version="2.7.1.post4",
)  # fmt: skip


def request(*command: str, **given: object) -> CollectRequest:
    return CollectRequest(command=command or TRAIN, **given)  # type: ignore[arg-type]  # fields of the request


def refused(wanted: CollectRequest, here: Here = NPU) -> AscendPerfError:
    with pytest.raises(AscendPerfError) as error:
        make_plan(wanted, here, RUN)
    return error.value


def test_msprof_records_a_script_with_the_command_in_it() -> None:
    plan = make_plan(
        request(collector="msprof", storage_limit_bytes=2 * 10**9, delay_s=10, duration_s=60), NPU, RUN, umask=0o027
    )

    assert plan.words == (
        "/cann/bin/msprof", "--output=/runs/r1/trace", "--ascendcl=on", "--runtime-api=on", "--task-time=l1",
        "--ai-core=on", "--aic-mode=task-based", "--aic-metrics=PipeUtilization", "--aicpu=on",
        "--storage-limit=2000MB", "--delay=10", "--duration=60", "sh", "/runs/r1/collect/run.sh",
    )  # fmt: skip
    assert plan.script == (
        "#!/bin/sh\numask 0027\ntrap : INT TERM HUP USR1 USR2\npython train.py --lr 0.1\ncode=$?\n"
        "echo $code > /runs/r1/collect/exit-code\nexit $code\n"
    )
    assert plan.set_variables == {"PYTHONUNBUFFERED": "1"}
    assert plan.after[0] == ("/cann/bin/msprof", "--export=on", "--output=PROF_*")


def test_a_collector_inside_the_process_needs_two_variables_and_no_other_word() -> None:
    here = replace(NPU, variables={**NPU.variables, "PYTHONPATH": "/mine", "TORCH_NPU_DISABLED_WARNING": "1"})

    plan = make_plan(request(collector="torch-npu", ranks=(0, 3), skip=20, steps=2), here, RUN)

    assert plan.words == TRAIN
    assert plan.set_variables == {
        "ASCEND_PERF_COLLECT": "/runs/r1/collect/settings.json", "PYTHONPATH": f"{INJECTED}{os.pathsep}/mine",
    }  # fmt: skip
    assert plan.unset_variables == ("TORCH_NPU_DISABLED_WARNING",)  # it hides what the profiler has to say
    assert "TORCH_NPU_DISABLED_WARNING" not in plan.environment(here.variables)
    assert plan.settings is not None
    assert (plan.settings.ranks, plan.settings.skip, plan.settings.active) == ((0, 3), 20, 2)
    assert plan.settings.backend == "torch-npu"


@pytest.mark.parametrize(
    ("here", "collector", "why"),
    [
        (PLAIN, "torch", "no Ascend NPU visible"),
        (NPU, "torch-npu", "torch_npu are here"),
        (replace(NPU, torch_npu_version=None), "msprof", "torch_npu is not installed in this Python: msprof records"),
        (replace(NPU, has_cann=False), "msprof", "CANN is not found"),
        (replace(NPU, torch_npu_version=None, msprof=None), "torch", "msprof not found: only the host is recorded"),
        (replace(NPU, has_npu=False), "torch", "no Ascend NPU visible"),
    ],
)
def test_auto_falls_back_and_says_why(here: Here, collector: str, why: str) -> None:
    plan = make_plan(request(), here, RUN)
    assert plan.collector == collector
    assert why in plan.why


@pytest.mark.parametrize(
    ("here", "collector", "what", "hint"),
    [
        (PLAIN, "msprof", "msprof not found", 'run "source <CANN>/set_env.sh"'),
        (PLAIN, "torch-npu", "torch_npu is not installed", "pip install torch_npu"),
        (replace(PLAIN, torch_version=None, has_npu=True, has_cann=True, is_virtual=True), "torch-npu",
         "torch is not installed", "ascend-perf[torch]"),
        (replace(NPU, has_cann=False), "torch-npu", "CANN is missing", "source <CANN>/set_env.sh"),
        (replace(NPU, has_npu=False), "torch-npu", "no Ascend NPU visible", "/dev/davinci_manager"),
    ],
)
def test_what_was_asked_for_and_is_absent_is_said_with_the_step_that_installs_it(
    here: Here, collector: str, what: str, hint: str
) -> None:
    error = refused(request(collector=collector), here)
    assert isinstance(error, MachineError)
    assert what in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PROFILER_SAMPLECONFIG", "{}", "two profilers selected (msprof, torch_npu)"),
        ("PROFILING_MODE", "dynamic", "two profilers selected"),
        ("PROF_CONFIG_PATH", "/x", "dynamic profiling of torch_npu"),
        ("MSMONITOR_USE_DAEMON", "1", "the msmonitor daemon"),
        ("KINETO_USE_DAEMON", "1", "the dynolog daemon"),
        ("LD_PRELOAD", "/cann/lib64/libmspti.so", "LD_PRELOAD names libmspti"),
    ],
)
@pytest.mark.parametrize("collector", ["msprof", "torch-npu"])
def test_two_profilers_are_refused(collector: str, variable: str, value: str, words: str) -> None:
    here = replace(NPU, variables={**NPU.variables, variable: value})
    assert words in refused(request(collector=collector), here).what
    assert make_plan(request(collector="torch"), here, RUN).collector == "torch"  # it shares no channel


def test_a_launcher_is_wrapped_once_and_never_each_rank() -> None:
    for variables, rank in (
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3"}, "process 3 of 8"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "process 1 of 2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LOCALID": "0"}, "process 0 of 4"),
    ):
        error = refused(request(), replace(PLAIN, variables=variables))
        assert isinstance(error, UsageError)
        assert rank in error.what
        assert "torchrun --nproc-per-node" in error.hint
    # one task on each of two machines wraps a launcher on each of them
    make_plan(request(), replace(PLAIN, variables={"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}), RUN)
    assert "for each process" in refused(request("torchrun", "msprof", "--output=x", "python", "t.py")).what
    assert "for each process" in refused(request("torchrun", "ascend-perf", "collect", "--", "t.py")).what
    assert make_plan(request("torchrun", "--nproc-per-node", "8", "train.py"), PLAIN, RUN).words[0] == "torchrun"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("msprof", "--output=x", "python", "t.py"), "the command is msprof itself"),
        (("/cann/bin/msprof", "python", "t.py"), "the command is msprof itself"),
        (("ascend-perf", "run", "micro"), "the command is ascend-perf itself"),
        (("python", "a\0b"), "zero byte"),
        (("python", "-I", "t.py"), "python -I ignores PYTHONPATH"),
        (("python3.11", "-Es", "t.py"), "python -E ignores PYTHONPATH"),
        (("python", "-u", "-S", "t.py"), "python -S ignores PYTHONPATH"),
    ],
)
def test_commands_that_could_not_be_recorded_are_refused(command: tuple[str, ...], what: str) -> None:
    assert what in refused(CollectRequest(command=command), PLAIN).what


@pytest.mark.parametrize("command", [("python", "t.py", "-E"), ("python", "-m", "E", "-S"), ("python", "-W", "error")])
def test_words_behind_the_program_are_its_own(command: tuple[str, ...]) -> None:
    make_plan(CollectRequest(command=command), PLAIN, RUN)


def test_no_command_is_refused() -> None:
    assert "no command given" in refused(CollectRequest(command=()), PLAIN).what


@pytest.mark.parametrize(
    "given",
    [{"ranks": (0,)}, {"skip": 3}, {"steps": 3}, {"warmup": 1}, {"wait": 1}, {"repeat": 2}, {"step_of": "data"}],
)
def test_msprof_is_not_asked_for_steps_or_ranks_which_it_would_ignore(given: dict[str, object]) -> None:
    error = refused(request(collector="msprof", **given))
    assert "knows neither steps nor ranks" in error.what
    assert "--delay and --duration" in error.hint


@pytest.mark.parametrize("limit", [10**8, 5 * 10**15])
def test_a_storage_limit_that_msprof_does_not_take_is_refused(limit: int) -> None:
    assert "msprof takes 200 to 4294967295 MB" in refused(request(collector="msprof", storage_limit_bytes=limit)).what


@pytest.mark.parametrize("name", ["delay", "duration"])
def test_seconds_that_msprof_does_not_take_are_refused(name: str) -> None:
    wanted = request(collector="msprof", **{f"{name}_s": 2**32})
    assert refused(wanted).what == f"--{name} 4294967296: msprof takes 1 to 4294967295 seconds"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"soc": "Ascend910B2"}, "--soc is of msprof only"),
        ({"python": "/py"}, "--python is of msprof only"),
        ({"step_of": "process", "steps": 3}, "--steps has no effect"),
        ({"step_of": "process", "delay_s": 3}, "--delay has no effect"),
        ({"options": {"aic_metrics": "Memory"}}, "has no option 'aic_metrics'"),
    ],
)
def test_options_without_effect_are_refused(given: dict[str, object], what: str) -> None:
    assert what in refused(request(collector="torch", **given), PLAIN).what


def test_what_spoils_a_profile_is_noted() -> None:
    here = replace(
        NPU, variables={
            "ASCEND_RT_VISIBLE_DEVICES": "0,1", "ASCEND_LAUNCH_BLOCKING": "1", "HCCL_ALGO": "Ring", "PATH": "/bin",
        },
    )  # fmt: skip

    notes = make_plan(request("bash", "run.sh", "--profile", collector="msprof"), here, RUN).notes

    for words in (
        "ASCEND_RT_VISIBLE_DEVICES is set", "ASCEND_LAUNCH_BLOCKING=1", "HCCL_ALGO=Ring", "the command has --profile",
        "ASCEND_HOME_PATH is not set", "no --duration",
    ):  # fmt: skip
        assert any(words in note for note in notes), words


SERVE = ("vllm", "serve", "model", "--profiler-config", '{"profiler":"torch"}')


@pytest.mark.parametrize(
    ("command", "variable", "version", "words"),
    [
        (TRAIN, True, None, ["works before vllm-ascend 0.14.0rc1 only", "VLLM_TORCH_PROFILER_DIR is set"]),
        (TRAIN, True, "0.14.0rc1", ["is ignored by vllm-ascend 0.14.0rc1: nothing is profiled"]),
        (TRAIN, True, "0.15.0", ["is ignored by vllm-ascend 0.15.0"]),
        (TRAIN, True, "0.13.0", ["VLLM_TORCH_PROFILER_DIR is set: a profile that POST /start_profile starts"]),
        (SERVE, False, "0.14.0", ["the command has --profiler-config: a profile that POST /start_profile starts"]),
        (SERVE, False, None, ["the command has --profiler-config"]),
        (SERVE, False, "0.11.0rc3", ["vllm-ascend 0.11.0rc3 does not know --profiler-config"]),
        (SERVE[:3], False, "0.14.0", []),
        (("python", "train.py", "--profiler-config", "x"), False, "0.14.0", []),  # no server
    ],
)
def test_what_a_server_of_vllm_does_with_its_own_profiler_depends_on_the_release(
    command: tuple[str, ...], variable: bool, version: str | None, words: list[str]
) -> None:
    variables = {**NPU.variables, **({"VLLM_TORCH_PROFILER_DIR": "/p"} if variable else {})}
    here = replace(NPU, variables=variables, vllm_ascend_version=version)
    notes = [note for note in make_plan(request(*command), here, RUN).notes if "_profile" in note or "rofiler" in note]
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_two_bindings_of_one_program_are_noted() -> None:
    command = ("numactl", "--cpunodebind=0", "python", "train.py")
    bound = replace(PLAIN, variables={**PLAIN.variables, "CPU_AFFINITY_CONF": "1"})
    for here, wanted in ((bound, True), (PLAIN, False)):
        notes = make_plan(request(*command), here, RUN).notes
        assert any(note.startswith("numactl binds the program, and CPU_AFFINITY_CONF") for note in notes) == wanted
    assert not any("binds" in note for note in make_plan(request(), bound, RUN).notes)


def test_torch_npu_without_cann_does_not_end_a_program_on_the_cpu() -> None:
    here = replace(PLAIN, torch_npu_version="2.7.1")

    plan = make_plan(request(collector="torch"), here, RUN)

    assert plan.set_variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert any("TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set" in note for note in plan.notes)


def test_options_of_the_release_are_checked_before_the_start() -> None:
    old = replace(NPU, torch_npu_version="2.5.1")  # release 7.0.0

    assert "needs torch_npu 7.1.0" in refused(request(collector="torch-npu", options={"sys_io": "true"}), old).what
    assert "sys_io" not in make_plan(request(collector="torch-npu", level="deep"), old, RUN).options
    unknown = replace(NPU, torch_npu_version="2.13.0")
    notes = make_plan(request(collector="torch-npu"), unknown, RUN).notes
    assert any("not in our table of releases" in note for note in notes)


def test_a_chip_is_told_by_its_name() -> None:
    wanted = request(collector="msprof", soc="Ascend310P3", options={"aic-metrics": "MemoryAccess"})
    assert "is for A2, A3, this is 310P" in refused(wanted).what
    assert "no SoC that we know" in refused(replace(wanted, soc="H200")).what


def test_a_folder_with_letters_that_msprof_refuses_is_refused() -> None:
    with pytest.raises(UsageError, match="in the path of its output"):
        make_plan(request(collector="msprof"), NPU, Path("/runs/50%"))


def test_commands_that_lose_variables_are_noted() -> None:
    notes = make_plan(request("ssh", "host", "python", "t.py", collector="torch"), PLAIN, RUN).notes
    assert any("ssh does not hand variables on" in note for note in notes)


def test_a_duration_alone_ends_the_recording() -> None:
    settings = make_plan(request(collector="torch", duration_s=30), PLAIN, RUN).settings
    assert settings is not None and settings.active > 100_000
    both = make_plan(request(collector="torch", duration_s=30, steps=4), PLAIN, RUN).settings
    assert both is not None and (both.active, both.duration_s) == (4, 30)


def test_an_old_glibc_is_noted_where_memory_is_recorded() -> None:
    old = replace(NPU, glibc="2.28")
    new = replace(NPU, glibc="2.34")
    for here, level, is_noted in ((old, "standard", True), (old, "quick", False), (new, "deep", False)):
        notes = make_plan(request(collector="torch-npu", level=level), here, RUN).notes
        assert any("the parser of torch_npu may crash" in note for note in notes) == is_noted
