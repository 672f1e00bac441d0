"""Message size against bandwidth: rates of the bus, the vendor peak of the link, what is said where it is not known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._communication import calls_in_steps
from ascend_perf.analyzers._size_bandwidth import MAX_POINTS, size_bandwidth
from ascend_perf.analyzers.communication import communication
from ascend_perf.model.finding import ResultTable
from ascend_perf.model.trace import Device, Group, Meta, Trace
from tests.conftest import build_table

MakeTrace = Callable[..., Trace]
B3 = Device(kind="npu", vendor="ascend", name="Ascend910B3")
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 10_000_000}]


def meta(device: Device = B3, ranks: int = 8) -> Meta:
    groups = (Group(name="g", label="dp", ranks=tuple(range(ranks))),)
    return Meta(rank=0, world_size=16, device=device, groups=groups)


def call(number: int, op: str = "allReduce", **more: object) -> dict[str, object]:
    row: dict[str, object] = {
        "start_ns": number * 10_000, "dur_ns": 1000, "name": f"c{number}", "op": op, "group": "g", "step_id": 1,
    }  # fmt: skip
    return row | more


def sent(number: int, size: int, transport: str = "HCCS") -> dict[str, object]:
    return {"name": f"c{number}", "step_id": 1, "transport": transport, "size_bytes": size, "time_ns": 1000}


def of(trace: Trace) -> ResultTable:
    made = size_bandwidth(calls_in_steps(trace))
    assert made is not None
    return made


def test_each_call_stands_against_the_peak_of_its_link(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=meta(), steps=STEP,
        comm_ops=[call(0, size_bytes=80_000), call(1, "broadcast", size_bytes=5_000, dur_ns=500)],
        comm_transfers=[sent(0, 1000, "RDMA"), sent(0, 139_000), sent(1, 5_000, "RDMA")],
    )  # fmt: skip

    table = of(trace)

    # All-reduce over 8: 80 kB x 2 x 7/8 / 1 us = 140 GB/s on HCCS of 196 GB/s. Broadcast: 5 kB / 0.5 us on RDMA.
    assert table.column("op") == ("allReduce", "broadcast")
    assert table.column("transport") == ("HCCS", "RDMA")
    assert table.column("group_size") == (8, 8)
    assert table.column("size_bytes") == (80_000, 5_000)
    assert table.column("bus_bytes_per_s") == pytest.approx((140e9, 10e9))
    assert table.column("peak_bytes_per_s") == (196e9, 25e9)
    assert table.column("peak_ratio") == pytest.approx((140 / 196, 0.4))
    assert table.note is not None
    assert "vendor peaks" in table.note.en and "HCCS 196 GB/s" in table.note.en and "RDMA 25 GB/s" in table.note.en
    assert "厂商峰值" in table.note.zh and "No ceiling" not in table.note.en
    assert table in communication.run_on_trace(trace).tables


def test_a_small_group_of_a_mesh_has_its_part_of_the_links(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=meta(ranks=2), steps=STEP, comm_ops=[call(0, size_bytes=14_000)], comm_transfers=[sent(0, 14_000)]
    )

    table = of(trace)

    assert table.column("peak_bytes_per_s")[0] == pytest.approx(196e9 / 7)  # one link of seven
    assert table.column("bus_bytes_per_s")[0] == pytest.approx(14e9)  # 2 x 1/2 of it


def test_waiting_does_not_count_and_sub_tasks_tell_the_link(make_trace: MakeTrace) -> None:
    wait = {"start_ns": 0, "dur_ns": 600, "kind": "Notify_Wait", "comm_op": 0, "plane": 0, "src": 0, "dst": 1}
    move = {
        "start_ns": 600, "dur_ns": 400, "kind": "Memcpy", "comm_op": 0, "plane": 0, "src": 0, "dst": 1,
        "transport": "SDMA", "link": "HCCS", "size_bytes": 3_000,
    }  # fmt: skip
    on_chip = move | {"link": "ON_CHIP", "size_bytes": 9_000}
    trace = make_trace(
        meta=meta(), steps=STEP, comm_ops=[call(0, size_bytes=8_000)], comm_tasks=[wait, move, on_chip]
    )

    table = of(trace)

    assert table.column("transport") == ("HCCS",)
    assert table.column("time_ns") == (400,)
    assert table.column("bus_bytes_per_s")[0] == pytest.approx(8_000 * 1.75 / 400e-9)


def test_without_the_size_of_the_group_what_was_moved_counts(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=Meta(rank=0, world_size=16, device=B3), steps=STEP,
        comm_ops=[call(0, size_bytes=8_000), call(1), call(2, size_bytes=8_000)],
        comm_transfers=[sent(0, 12_000), sent(1, 6_000)],
    )  # fmt: skip

    table = of(trace)

    # The third has neither: it is counted out.
    assert table.column("size_bytes") == (8_000, 6_000)
    assert table.column("bus_bytes_per_s") == pytest.approx((12e9, 6e9))
    assert table.column("group_size") == (None, None)
    assert table.note is not None
    assert table.note.en.endswith("which are not here: 1.")


@pytest.mark.parametrize(
    ("device", "transport", "en", "zh"),
    [
        (Device(kind="npu", name="Ascend910B"), "HCCS", "does not tell which device", "未说明具体的设备型号"),
        (B3, "SIO", "the device table gives no peak", "设备表中没有适用于该设备的峰值"),
        # 24 cores at 1800 MHz: parts of the table with and without a known rate of the link.
        (Device(kind="npu", cube_cores=24, frequency_hz=1_800_000_000), "HCCS", "gives no peak", "没有适用于该设备"),
    ],
)
def test_an_unknown_ceiling_is_said_in_words(
    make_trace: MakeTrace, device: Device, transport: str, en: str, zh: str
) -> None:
    trace = make_trace(
        meta=meta(device), steps=STEP, comm_ops=[call(0, size_bytes=8_000), call(1, size_bytes=8_000)],
        comm_transfers=[sent(0, 8_000, transport)],
    )  # fmt: skip

    table = of(trace)

    assert table.column("peak_bytes_per_s") == table.column("peak_ratio") == (None, None)
    assert table.note is not None
    assert f"No ceiling for {transport}: " in table.note.en and en in table.note.en and zh in table.note.zh
    assert "whose link the profile does not tell" in table.note.en  # the second call
    assert "vendor peaks" not in table.note.en


def test_a_derived_device_has_the_links_that_all_its_parts_share(make_trace: MakeTrace) -> None:
    # 20 cores at 1800 MHz: a 910B3 or a die of a 910C, both with 196 GB/s of HCCS; only one of them is a mesh.
    device = Device(kind="npu", cube_cores=20, frequency_hz=1_800_000_000)
    trace = make_trace(
        meta=meta(device, ranks=2), steps=STEP, comm_ops=[call(0, size_bytes=8_000)], comm_transfers=[sent(0, 8_000)]
    )

    assert of(trace).column("peak_bytes_per_s") == (196e9,)


def test_nothing_of_known_size_is_no_table(make_trace: MakeTrace) -> None:
    trace = make_trace(meta=meta(), steps=STEP, comm_ops=[call(0), call(1, dur_ns=0, size_bytes=1)])

    assert size_bandwidth(calls_in_steps(trace)) is None


@given(st.lists(st.integers(1, 1 << 40), min_size=MAX_POINTS - 2, max_size=MAX_POINTS + 40))
def test_many_calls_are_put_together_and_none_is_lost(sizes: list[int]) -> None:
    rows = [call(number, size_bytes=size, dur_ns=1000 + number) for number, size in enumerate(sizes)]
    steps = build_table("steps", [STEP[0] | {"dur_ns": 10**8}])
    trace = Trace({"comm_ops": build_table("comm_ops", rows), "steps": steps}, meta())

    table = of(trace)

    count = np.array(table.column("count"), np.int64)
    assert len(table) <= MAX_POINTS
    assert count.sum() == len(sizes)
    assert sum(int(total or 0) for total in table.column("total_ns")) == sum(1000 + at for at in range(len(sizes)))
    assert (np.array(table.column("size_bytes"), float) * count).sum() == pytest.approx(sum(sizes))
    rates, totals = (np.array(table.column(name), float) for name in ("bus_bytes_per_s", "total_ns"))
    assert (rates * totals).sum() / 1e9 == pytest.approx(1.75 * sum(sizes))
    if len(sizes) <= MAX_POINTS:
        assert set(count.tolist()) == {1}
    else:
        # Half octaves: no more than two per bit of the largest size.
        assert len(table) <= 2 * 41
        assert table.note is not None and "put together" in table.note.en
