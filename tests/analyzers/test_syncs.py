"""Synchronisations by API, operator and line of Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.analyzers.syncs import syncs
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
GPU = Meta(rank=0, device=Device(kind="gpu"))
US = 1000


def _rows(outcome: Outcome) -> list[dict[str, object]]:
    (table,) = outcome.tables
    return [dict(zip((c.name for c in table.columns), cells, strict=True)) for cells in zip(*table.data, strict=True)]


def _trace(make_trace: Make) -> Trace:
    """Two steps; in each `.item()` of line 12 waits 90 us for a kernel, then the device idles 100 us until the next."""
    kernels, calls, ops = [], [], []
    for step in range(2):
        at = step * 1000 * US
        kernels += [
            {"start_ns": at, "dur_ns": 100 * US, "name": "k", "launch_start_ns": at, "launch_end_ns": at + 5 * US},
            {"start_ns": at + 200 * US, "dur_ns": 800 * US, "name": "k", "launch_start_ns": at + 190 * US,
             "launch_end_ns": at + 200 * US},
        ]  # fmt: skip
        calls += [
            {"start_ns": at + 15 * US, "dur_ns": 90 * US, "api": "cudaStreamSynchronize", "thread": 1},
            {"start_ns": at + 190 * US, "dur_ns": 10 * US, "api": "cudaLaunchKernel", "thread": 1},
            {"start_ns": at + 500 * US, "dur_ns": 30 * US, "api": "cudaDeviceSynchronize", "thread": 1},
            # Within the one before: it waits once.
            {"start_ns": at + 505 * US, "dur_ns": 10 * US, "api": "cudaEventSynchronize", "thread": 1},
        ]
        stack = "torch/_tensor.py(1): item\nfolder/train.py(12): step"
        ops += [
            {"start_ns": at + 10 * US, "dur_ns": 100 * US, "name": "aten::item", "thread": 1, "stack": stack},
            {"start_ns": at + 12 * US, "dur_ns": 96 * US, "name": "aten::_local_scalar_dense", "thread": 1},
        ]
    return make_trace(
        meta=GPU, kernels=kernels, runtime_calls=calls, host_ops=ops,
        steps=[{"step_id": i, "start_ns": i * 1000 * US, "dur_ns": 1000 * US} for i in range(2)],
    )  # fmt: skip


def test_calls_are_grouped_by_what_caused_them(make_trace: Make) -> None:
    outcome = syncs.run_on_trace(_trace(make_trace))

    item, device = _rows(outcome)
    assert (item["api"], item["op"], item["line"]) == ("cudaStreamSynchronize", "aten::item", "train.py(12): step")
    assert item["per_step"] == 1
    assert item["blocked_ns"] == 90 * US
    assert item["idle_ns"] == 100 * US  # the gap of 100-200 us; the launch that ends it is over at 200
    assert item["longest_ns"] == 90 * US and item["start_ns"] == 15 * US
    assert (device["api"], device["op"], device["line"]) == ("cudaDeviceSynchronize", None, None)
    assert (device["idle_ns"], device["blocked_ns"]) == (0, 30 * US)
    assert {m.name: m.value for m in outcome.metrics} == {"syncs_per_step": 2}


def test_the_idle_time_of_the_table_is_that_of_the_finding(make_trace: Make) -> None:
    trace = _trace(make_trace)
    found = next(f for f in host_dispatch.run_on_trace(trace).findings if f.code == "H-05")

    (item, _) = _rows(syncs.run_on_trace(trace))

    assert found.evidence[0].value == item["idle_ns"]
    named = next(e for e in found.evidence if e.name.en == "line of Python that synchronises most")
    assert named.value == "train.py(12): step (aten::item, 2 x in 2 steps)"


def test_calls_outside_of_the_steps_do_not_count(make_trace: Make) -> None:
    trace = make_trace(
        meta=GPU, steps=[{"step_id": 0, "start_ns": 0, "dur_ns": 100}],
        kernels=[{"start_ns": 0, "dur_ns": 50, "name": "k"}],
        runtime_calls=[{"start_ns": 500, "dur_ns": 9, "api": "aclrtSynchronizeStream", "thread": 1}],
    )  # fmt: skip

    outcome = syncs.run_on_trace(trace)

    assert not outcome.tables
    assert {m.name: m.value for m in outcome.metrics} == {"syncs_per_step": 0}


def test_without_runtime_calls_there_is_no_data(make_trace: Make) -> None:
    assert syncs.run_on_trace(make_trace(kernels=[{"start_ns": 0, "dur_ns": 5, "name": "k"}])).status == "no_data"


@pytest.mark.parametrize(
    ("path", "line", "op"),
    [
        ("kineto/v100/resnet50_num_workers_0.json.gz", "resnet50_profiler_api.py(44): <module>", "aten::to"),
        (
            "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
            "base.py(1173): _ensure_tensor_on_device", "aten::to",
        ),
    ],
)  # fmt: skip
def test_real_captures_name_the_line_that_copies(traces: Path, path: str, line: str, op: str) -> None:
    rows = _rows(syncs.run_on_trace(pipeline.load(traces / path).traces[0]))

    assert (rows[0]["line"], rows[0]["op"]) == (line, op)
