"""Row N-03 against the rate of aligned transfers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.communication import communication
from ascend_perf.model.trace import Device, Meta, Trace


def _move(start: int, dur: int, dst: int, size: int) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "kind": "Memcpy", "comm_op": 0, "plane": 1, "src": 0, "dst": dst,
        "transport": "SDMA", "link": "HCCS", "size_bytes": size,
    }  # fmt: skip


def test_unaligned_transfers_lose_what_aligned_ones_are_faster(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        meta=Meta(rank=0, device=Device(kind="npu")),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        kernels=[{"start_ns": 400, "dur_ns": 100, "name": "k"}],
        comm_ops=[{"start_ns": 0, "dur_ns": 500, "name": "ar", "op": "allReduce", "group": "g"}],
        comm_tasks=[*(_move(n * 10, 10, 2, 4096) for n in range(10)), _move(200, 300, 1, 12_000)],
    )

    found = [f for f in communication.run_on_trace(trace).findings if f.code == "N-03"]

    # 300 ns, 100 of them behind a kernel; 40 bytes/ns against 409.6 of the aligned ones.
    assert [f.share_ratio for f in found] == [pytest.approx(0.2 * (1 - 40 / 409.6), abs=0.001)]
