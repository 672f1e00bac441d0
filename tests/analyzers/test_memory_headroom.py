"""Device memory against its size: K-05, workspaces of K-06, K-07."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.memory_headroom import memory_headroom
from ascend_perf.model.finding import Outcome, Severity
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Row = dict[str, object]
GIB = 2**30
NPU = Meta(rank=0, device=Device(kind="npu", memory_bytes=64 * GIB))
STEPS = [{"step_id": i, "start_ns": i * 1_000_000, "dur_ns": 1_000_000} for i in range(3)]
BUSY = [{"start_ns": 0, "dur_ns": 3_000_000, "name": "k", "stream": 1}]
# Thirty kernels of 60 us, 40 us apart: the device waits 40 % of the time.
STARVED = [{"start_ns": i * 100_000, "dur_ns": 60_000, "name": "k", "stream": 1} for i in range(30)]


def _samples(allocated: float, reserved: float, component: str = "PTA") -> list[Row]:
    """One sample per step, in GiB."""
    return [
        {
            "time_ns": i * 1_000_000 + 10, "component": component, "allocated_bytes": int(allocated * GIB),
            "reserved_bytes": int(reserved * GIB),
        }
        for i in range(3)
    ]  # fmt: skip


def _run(
    make_trace: Make, memory: list[Row], *, kernels: list[Row] = BUSY, meta: Meta = NPU, **more: list[Row]
) -> Outcome:
    return memory_headroom.run_on_trace(make_trace(meta=meta, steps=STEPS, kernels=kernels, memory=memory, **more))


def _verdicts(outcome: Outcome) -> dict[str, str]:
    return {row.code: row.verdict for row in outcome.judged}


@pytest.mark.parametrize(("reserved", "severity"), [(50.0, Severity.MEDIUM), (60.0, Severity.HIGH)])
def test_static_memory_above_60_percent_is_found(make_trace: Make, reserved: float, severity: Severity) -> None:
    (found,) = _run(make_trace, _samples(40.0, reserved)).findings

    assert (found.code, found.subject, found.severity, found.share_ratio) == ("K-05", "static", severity, None)
    assert found.evidence[0].value == 40 * GIB


def test_static_memory_of_half_the_device_is_clean(make_trace: Make) -> None:
    assert _verdicts(_run(make_trace, _samples(32.0, 50.0))) == {"K-05": "clean", "K-07": "clean"}


def test_blocks_of_the_loss_count_while_they_live_together(make_trace: Make) -> None:
    blocks = [
        {"name": "aten::_log_softmax", "size_bytes": 5 * GIB, "alloc_ns": 10, "free_ns": 100},
        {"name": "aten::nll_loss_forward", "size_bytes": 3 * GIB, "alloc_ns": 50, "free_ns": 100},
        {"name": "aten::cross_entropy_loss", "size_bytes": 6 * GIB, "alloc_ns": 100, "free_ns": 200},
        {"name": "aten::mm", "size_bytes": 20 * GIB, "alloc_ns": 10, "free_ns": 100},
    ]
    (found,) = _run(make_trace, _samples(20.0, 40.0), memory_blocks=blocks).findings

    assert (found.code, found.subject) == ("K-05", "loss")
    assert found.evidence[0].value == 8 * GIB


def test_small_losses_are_clean(make_trace: Make) -> None:
    blocks = [{"name": "aten::_log_softmax", "size_bytes": 5 * GIB, "alloc_ns": 10 + i * 100, "free_ns": 110 + i * 100}
              for i in range(9)]  # fmt: skip
    assert _verdicts(_run(make_trace, _samples(20.0, 40.0), memory_blocks=blocks))["K-05"] == "clean"


def test_large_workspaces_are_found(make_trace: Make) -> None:
    memory = [*_samples(20.0, 40.0), *_samples(4.0, 4.0, "WORKSPACE")]
    (found,) = _run(make_trace, memory).findings

    assert (found.code, found.subject) == ("K-06", "workspace")
    assert not _run(make_trace, [*_samples(20.0, 40.0), *_samples(3.0, 3.0, "WORKSPACE")]).findings


def test_unused_memory_of_a_starved_device_is_found(make_trace: Make) -> None:
    (found,) = _run(make_trace, _samples(8.0, 15.0), kernels=STARVED).findings

    assert (found.code, found.share_ratio) == ("K-07", None)
    assert found.evidence[2].value == pytest.approx(30 * 40_000 / 3_000_000)


@pytest.mark.parametrize(
    ("reserved", "kernels"),
    [
        (15.0, BUSY),  # the device computes all the time
        (33.0, STARVED),  # more than half is in use
        (15.0, [BUSY[0] | {"dur_ns": 1_000_000}]),  # one long pause: a larger batch does not fill it
    ],
)
def test_memory_that_could_not_help_is_clean(make_trace: Make, reserved: float, kernels: list[Row]) -> None:
    assert _verdicts(_run(make_trace, _samples(8.0, reserved), kernels=kernels))["K-07"] == "clean"


def test_the_whole_process_counts_as_used(make_trace: Make) -> None:
    memory = [*_samples(8.0, 15.0), *_samples(0.0, 40.0, "APP")]
    assert _verdicts(_run(make_trace, memory, kernels=STARVED))["K-07"] == "clean"


def test_without_a_size_nothing_is_judged(make_trace: Make) -> None:
    outcome = _run(make_trace, _samples(8.0, 15.0), meta=Meta(rank=0, device=Device(kind="npu")))

    assert _verdicts(outcome) == {"K-05": "not_judged", "K-07": "not_judged"}


def test_a_named_device_has_its_size(make_trace: Make) -> None:
    meta = Meta(rank=0, device=Device(kind="npu", name="Ascend910B4"))  # 32 GB
    (found,) = _run(make_trace, _samples(25.0, 28.0), meta=meta).findings

    assert (found.code, found.evidence[1].value) == ("K-05", 32 * GIB)
