"""`ascend-perf collect` around real programs that know nothing of it, recorded on the CPU with torch.profiler."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.bench import collect as bench
from ascend_perf.bench.collect import Collected, collect
from ascend_perf.collectors.collect_plan import CollectRequest, Here
from ascend_perf.manifest import read_manifest
from tests._support import Said
from tests.collectors import _fake_torch_npu

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

HEAD = """
import os, signal, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(16, 4)
def forward(): return model(torch.randn(8, 16)).sum()
"""
TRAINS = HEAD + """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(14):
    optimizer.zero_grad(); forward().backward(); optimizer.step()
"""


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 0)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def record(tmp_path: Path, source: str, *words: str, here: Here | None = None, **given: Any) -> Collected:
    program = tmp_path / "own_loop.py"
    program.write_text(source)
    command = (*(words or (sys.executable,)), str(program))
    here = Here(variables=dict(os.environ), has_npu=False) if here is None else here
    return collect(CollectRequest(command=command, **given), folder=tmp_path / "run", here=here)


def steps_in(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sorted({event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")})


def names_in(path: Path) -> set[str]:
    return {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}


def processes(done: Collected) -> list[dict[str, Any]]:
    found = json.loads((done.folder / "collect" / "collected.json").read_text())["processes"]
    assert isinstance(found, list)
    return found


def test_a_loop_that_knows_nothing_of_us_gets_a_report(tmp_path: Path, command: Any) -> None:
    program = tmp_path / "own_loop.py"
    program.write_text(TRAINS + "assert os.environ['PYTHONPATH'].endswith('/mine'); sys.exit(5)")
    os.environ["PYTHONPATH"] = "/mine"
    try:
        said: Said = command(
            "collect", "--with", "torch", "-o", tmp_path / "run", "--format", "md", "--steps", "2", "--",
            sys.executable, program,
        )  # fmt: skip
    finally:
        del os.environ["PYTHONPATH"]

    assert said.code == 5  # the program's own
    assert "the command ended with code 5" in said.err
    report = (tmp_path / "run" / "report" / "report.md").read_text("utf-8")
    assert "own_loop.py" in report
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.workload, manifest.data_origin, manifest.device) == ("own_loop.py", "measured", "cpu")
    assert manifest.files["trace"] == ("trace/rank0.pt.trace.json.gz",)
    figures = {metric.name: metric.value for metric in manifest.metrics}
    assert figures["step_count"] == 6  # steps 9 to 14: 5 skipped, 1 of warm-up, 2 recorded, up to the end of step 14
    assert steps_in(tmp_path / "run" / "trace" / "rank0.pt.trace.json.gz") == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_crash_while_recording_leaves_the_trace(tmp_path: Path) -> None:
    done = record(tmp_path, TRAINS.replace("forward().backward()", "forward().backward(); 1 // (9 - step)"), steps=50)

    assert (done.code, done.manifest.status) == (1, "failed")
    assert done.has_trace
    assert processes(done)[0]["recorded"] == 3  # steps 7 to 9 of the program; the tenth raised
    assert read_manifest(done.folder).status == "failed"


@pytest.mark.slow
def test_a_kill_while_recording_is_told_from_other_ends(tmp_path: Path) -> None:
    done = record(tmp_path, TRAINS + "os.kill(os.getpid(), signal.SIGKILL)", steps=50)

    assert done.code == 137
    assert "ended by signal 9" in done.manifest.problem
    assert "rank 0 ended while it was recorded (killed?): its trace is lost" in done.manifest.notes
    assert not done.has_trace


@pytest.mark.slow
def test_a_termination_while_recording_keeps_the_trace_and_the_signal(tmp_path: Path) -> None:
    done = record(tmp_path, TRAINS + "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", steps=50)

    assert done.code == 143
    assert done.has_trace
    assert processes(done)[0]["recorded"] == 8  # steps 7 to 14


def test_batches_are_steps_where_no_optimizer_is_and_the_own_sitecustomize_is_loaded(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("MINE = 'mine'\n")
    source = HEAD + """
import sitecustomize
assert sitecustomize.MINE == "mine"
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(48, 16))
with torch.no_grad():
    for epoch in range(2):
        for (batch,) in DataLoader(data, batch_size=8):
            model(batch)
"""
    here = Here(variables={**os.environ, "PYTHONPATH": str(own)}, has_npu=False)

    done = record(tmp_path, source, here=here, skip=2, steps=2)

    assert done.code == 0
    assert done.manifest.problem == ""
    assert processes(done)[0]["steps"] == 12  # six batches, twice
    assert done.has_trace


@pytest.mark.slow
def test_calls_of_the_program_are_its_steps(tmp_path: Path) -> None:
    source = TRAINS.replace("optimizer.step()", "optimizer.step(); optimizer.step(); hooks.step()")
    done = record(tmp_path, source.replace("import torch\n", "import torch\nfrom ascend_perf import hooks\n", 1))
    assert processes(done)[0]["steps"] == 14


@pytest.mark.slow
def test_a_program_without_steps_is_recorded_from_start_to_end(tmp_path: Path) -> None:
    done = record(tmp_path, HEAD + "forward()", step_of="process")
    assert done.manifest.problem == ""
    assert "aten::linear" in names_in(done.folder / "trace" / "rank0.pt.trace.json.gz")


@pytest.mark.parametrize(
    ("source", "words", "problem", "hint"),
    [
        (HEAD + "forward()", (), "no step was seen: no optimizer stepped, and no DataLoader", "--step-of process"),
        (TRAINS.replace("14", "6"), (), "6 steps were seen, recording begins after 5 and needs 2 more", "--skip 2"),
        ("print('hello')", (), "no process of the command imported torch", "--with msprof"),
        ("", ("true",), "no Python process of the command loaded our hook", "hooks.profile"),
    ],
)
def test_why_nothing_was_recorded_is_said(
    tmp_path: Path, source: str, words: tuple[str, ...], problem: str, hint: str
) -> None:
    done = record(tmp_path, source, *words)
    assert done.code == 0  # the program did nothing wrong
    assert done.manifest.status == "failed"
    assert problem in done.manifest.problem
    assert hint in done.hint


@pytest.mark.slow
def test_torch_npu_is_recorded_raw_and_parsed_in_a_process_of_its_own(tmp_path: Path) -> None:
    site = _fake_torch_npu.install(tmp_path / "site")
    source = TRAINS.replace(
        "torch.set_num_threads(1)\n",
        "torch.npu = type('npu', (), {'is_available': lambda: True, 'is_initialized': lambda: True, "
        "'synchronize': lambda: None})\n",
    )
    binary = tmp_path / "bin" / "msprof"  # the parser looks for it
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    variables = {**os.environ, "PYTHONPATH": str(site), "TORCH_NPU_WARNING_DISABLE": "1", "RANK": "2"}
    variables |= {"PATH": f"{binary.parent}:{os.environ['PATH']}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    here = Here(variables=variables, has_npu=True, has_cann=True, torch_npu_version="2.7.1.post8", cann_version="9.1.0")

    done = record(tmp_path, source, here=here)

    folder = done.folder / "trace" / "rank2_20260407101532881_ascend_pt"
    assert (folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").is_file()
    assert done.manifest.status == "complete"
    assert (done.manifest.device, done.manifest.versions["cann"]) == ("npu", "9.1.0")
    assert (processes(done)[0]["rank"], processes(done)[0]["recorded"]) == (2, 3)

    silent = replace(here, variables={**variables, "FAKE_NPU_SILENT": "1"})
    done = collect(
        CollectRequest(command=(sys.executable, str(tmp_path / "own_loop.py"))), folder=tmp_path / "second", here=silent
    )
    assert done.code == 0
    assert "torch_npu's profiler left no raw data: Failed to start profiler" in done.manifest.problem
    assert any("the profiler warned: Failed to start profiler" in note for note in done.manifest.notes)


# The model goes before the interpreter ends: a thread of gloo that drops its last work while Python shuts down takes
# the whole process with it ("terminate called without an active exception").
RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad(); model(torch.randn(8, 16)).sum().backward(); optimizer.step()
    del model, optimizer
    dist.destroy_process_group()
main()
"""


@pytest.mark.slow
def test_a_job_of_torchrun_is_wrapped_once_and_each_rank_records_itself(tmp_path: Path, command: Any) -> None:
    program = tmp_path / "own_job.py"
    program.write_text(RANKS)
    said: Said = command(
        "collect", "--with", "torch", "-o", tmp_path / "run", "--format", "json", "--", sys.executable, "-m",
        "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program,
    )  # fmt: skip

    assert said.code == 0, said.err
    manifest = read_manifest(tmp_path / "run")
    assert manifest.files["trace"] == ("trace/rank0.pt.trace.json.gz", "trace/rank1.pt.trace.json.gz")
    assert manifest.device_facts["recorded_ranks"] == 2
    report = json.loads((tmp_path / "run" / "report" / "report.json").read_text("utf-8"))
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]


FAILS = """
import os, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    if os.environ["RANK"] == "1" and step == 12:
        time.sleep(1)
        sys.exit(3)
    optimizer.zero_grad(); model(torch.randn(8, 16)).sum().backward(); optimizer.step()
    if os.environ["RANK"] == "0" and step > 12: time.sleep(0.2)
"""


@pytest.mark.slow
def test_the_trace_of_a_rank_survives_the_failure_of_another(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = record(tmp_path, FAILS, *launcher, steps=300)

    assert (done.code, done.manifest.status) == (1, "failed")
    by_rank = {process["rank"]: process for process in processes(done)}
    assert by_rank[1]["recorded"] == 6  # steps 7 to 12 of the program
    assert by_rank[0]["recorded"] > 6  # torchrun ended it with SIGTERM
    assert [path.name for path in sorted((done.folder / "trace").iterdir())] == [
        "rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"
    ]  # fmt: skip


OWN_PROFILER = HEAD + """
from torch.profiler import ProfilerActivity, profile, schedule
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def train(steps, profiler=None):
    for step in range(steps):
        optimizer.zero_grad(); forward().backward(); optimizer.step()
        if profiler is not None: profiler.step()
def ready(profiler): print("own rows", len(profiler.key_averages()) > 10)
cpu = [ProfilerActivity.CPU]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        "with profile(activities=cpu, on_trace_ready=ready): train(14)",  # on before ours is due
        "train(7)\nwith profile(activities=cpu, on_trace_ready=ready): train(7)",  # begins while ours records
        "train(5)\nwith profile(activities=cpu, on_trace_ready=ready): train(7)",  # begins while ours warms up
        # Theirs warms up while ours begins.
        "train(3)\nwith profile(activities=cpu, schedule=schedule(wait=0, warmup=4, active=2, repeat=1), "
        "on_trace_ready=ready) as p: train(9, p)",
        "train(7)\nwith torch.autograd.profiler.profile() as p: train(5)\nready(p)",
    ],
)
def test_a_profiler_of_the_program_itself_goes_first(
    tmp_path: Path, own: str, capfd: pytest.CaptureFixture[str]
) -> None:
    done = record(tmp_path, OWN_PROFILER + own)

    assert "own rows True" in capfd.readouterr().out
    assert (done.code, done.has_trace) == (0, False)
    assert done.manifest.problem == "the program records itself with a profiler of its own"


def test_a_profiler_of_the_program_before_and_after_ours_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = "with profile(activities=cpu, on_trace_ready=ready): train(2)"
    done = record(tmp_path, f"{OWN_PROFILER}{alone}\ntrain(12)\n{alone}")

    assert capfd.readouterr().out.count("own rows True") == 2
    assert (done.code, done.has_trace, done.manifest.problem) == (0, True, "")


@pytest.mark.parametrize("code", [1, 127, 128, 193, 255])
def test_codes_of_the_program_are_no_signals(code: int) -> None:
    assert bench._code_words(code) == f"the command ended with code {code}"


@pytest.mark.parametrize("number", [1, 6, 9, 11, 64])
def test_codes_of_shells_for_signals_are(number: int) -> None:
    assert f"ended by signal {number}" in bench._code_words(128 + number)


def test_a_limit_of_file_sizes_is_told_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    limited = TRAINS.replace("for step", """import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
for step""")
    done = record(tmp_path, limited)

    assert done.code == 0
    assert done.manifest.problem == "the profiler could not write its trace"
    assert "ulimit -f" in done.hint
    assert not done.has_trace
    assert list((done.folder / "trace").iterdir()) == []
