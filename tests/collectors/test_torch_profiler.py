"""The torch collector: order of the phases, what stands in the trace, and what must not stand there."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path

import pytest

from ascend_perf.collectors import torch_profiler
from ascend_perf.collectors.torch_profiler import Options, collect, compress_trace
from ascend_perf.errors import MachineError

HEAD = b'{\n "schemaVersion": 1,\n "host_name": "node-17",\n "displayTimeUnit": "ms",\n "traceEvents": [\n'
EVENT = b'{"ph": "X", "name": "a", "args": {"host_name": "kept", "traceName": "kept"}},\n'
TAIL = b'{"ph": "i", "name": "z"}\n ],\n "traceName": "/home/ann/runs]/t.json"\n}\n'


@pytest.mark.parametrize("events", [0, 1, 13_000, 26_215, 60_000])
def test_host_and_path_are_taken_out_of_a_trace_of_any_size(tmp_path: Path, events: int) -> None:
    plain, target = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_bytes(HEAD + EVENT * events + TAIL)

    compress_trace(plain, target)

    seen = gzip.decompress(target.read_bytes())
    document = json.loads(seen)
    assert (document["host_name"], document["traceName"]) == ("", "trace")
    assert seen.count(EVENT) == events  # events are text of the user: not touched


@pytest.mark.torch
def test_a_run_has_all_phases_and_its_trace_the_profiled_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(16, 16)
    seen: list[object] = []
    phases: list[tuple[str, int]] = []

    def step() -> None:
        with torch.profiler.record_function("preprocess::decode"):
            seen.append(weight @ weight)

    measurement = collect(
        step,
        last_value=lambda: float(len(seen)),
        device="cpu",
        folder=tmp_path,
        warmup_steps=2,
        measured_steps=4,
        profiled_steps=3,
        options=Options(),
        on_phase=lambda phase, steps: phases.append((phase, steps)),
    )

    assert phases == [("warmup", 2), ("measured", 4), ("profiler_warmup", 1), ("profiled", 3), ("export", 0)]
    lengths = [len(times) for times in (measurement.warmup_ns, measurement.measured_ns, measurement.profiled_ns)]
    assert lengths == [2, 4, 3]
    assert all(time_ns > 0 for time_ns in (*measurement.measured_ns, *measurement.profiled_ns))
    assert measurement.last_value == 6  # read after the measured steps
    assert len(seen) == 10  # 2 + 4 + profiler warm-up + 3
    assert measurement.peak_device_bytes is None
    assert (measurement.peak_rss_bytes or 0) > 10_000_000
    assert [path.name for path in tmp_path.iterdir()] == [measurement.trace_name]

    text = gzip.decompress((tmp_path / measurement.trace_name).read_bytes()).decode()
    document = json.loads(text)
    names = [event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [name for name in names if name.startswith("ProfilerStep")] == [f"ProfilerStep#{i}" for i in (1, 2, 3)]
    assert names.count("preprocess::decode") == 3
    assert document["record_shapes"] == document["profile_memory"] == 1
    assert document["host_name"] == ""
    assert str(tmp_path) not in text
    assert len(socket.gethostname()) < 4 or socket.gethostname() not in text


@pytest.mark.torch
def test_a_profiler_that_writes_nothing_is_the_machines_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_profiler.KinetoRecorder, "_export", lambda self, profiler: None)

    with pytest.raises(MachineError, match="wrote no trace"):
        collect(
            lambda: None,
            last_value=lambda: 0.0,
            device="cpu",
            folder=tmp_path,
            warmup_steps=1,
            measured_steps=1,
            profiled_steps=1,
            options=Options(),
        )


@pytest.mark.torch
def test_a_build_without_the_device_is_the_machines_matter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this build of torch profiles CUDA")

    with pytest.raises(MachineError, match="cannot profile CUDA"):
        torch_profiler.KinetoRecorder("cuda:0", tmp_path, 1, Options())
