"""Collectives: ranks that are processes meet in time and exchange small contents; one process stands for all."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from ascend_perf.collectors.virtual_npu.record import Record
from tests.collectors.virtual_npu._device import HOST_LAUNCH_NS, LATENCY_NS, Device, run_ranks

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

HCCL = {
    "int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "uint8": 7, "uint16": 8, "float64": 10,
}  # fmt: skip
SUM, PROD, MAX, MIN = range(4)
BUFFERS = 2 * 200 << 20  # HCCL_BUFFSIZE is 200 MB, and a communicator has two

PRELUDE = """
import json, numpy as np
stream = device.stream()
def meet(key, size, number, library=device.lib):
    "The communicator `key` of `size` ranks, this process being rank `number` of it."
    root = ctypes.create_string_buffer(4108)
    root.value = key.encode()
    root[160:160 + len(key)] = key.encode()
    return device.made_last("HcclCommInitRootInfo", size, root, number)
def made_last(name, *arguments):
    place = ctypes.c_void_p()
    device.ok(name, *arguments, ctypes.byref(place))
    return place.value
device.made_last = made_last
def put(values):
    memory = device.memory(max(values.nbytes, 1))
    ctypes.memmove(memory, values.ctypes.data, values.nbytes)
    return memory
def get(memory, shape, dtype):
    device.ok("aclrtSynchronizeStream", stream)
    values = np.zeros(shape, dtype)
    ctypes.memmove(values.ctypes.data, memory, values.nbytes)
    return values.tolist()
def counts(*values):
    return (ctypes.c_uint64 * len(values))(*values)
said = {}
def end(**more):
    (device.folder / f"said{rank}.json").write_text(json.dumps({**said, **more}))
"""


def alone(folder: Path, size: int) -> tuple[Device, int, int]:
    """A device, a stream, and a communicator of `size` ranks of which only this one runs."""
    for old in folder.glob("*"):
        old.unlink()
    device = Device(folder, world_size=size, hbm_bytes=4 << 30)
    root, place = ctypes.create_string_buffer(4108), ctypes.c_void_p()
    device.ok("HcclGetRootInfo", root)
    device.ok("HcclCommInitRootInfo", size, root, 0, ctypes.byref(place))
    assert place.value
    return device, device.stream(), place.value


def put(device: Device, values: NDArray[np.generic]) -> int:
    memory = device.memory(max(values.nbytes, 1))
    ctypes.memmove(memory, values.ctypes.data, values.nbytes)
    return memory


def get(memory: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    values = np.zeros(shape, dtype)
    ctypes.memmove(values.ctypes.data, memory, values.nbytes)
    return values


def cost(nbytes: int, ranks: int, per_node: int) -> int:
    """The test's cost model, see _device.py."""
    return nbytes + 1000 * ranks + 10 * per_node


def rows(record: Record, *names: str) -> list[tuple[int, ...]]:
    table = record.tables["C"]
    return list(zip(*(table[name].tolist() for name in names), strict=True))


# ---- one process for all ranks ----


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_process_reduces_as_if_all_ranks_gave_the_same(tmp_path: Path, data: st.DataObject) -> None:
    dtype, size = data.draw(st.sampled_from(sorted(HCCL))), data.draw(st.integers(2, 9))
    is_real = dtype.startswith("float")
    bound = {"min_value": -30, "max_value": 30, "allow_subnormal": True} if is_real else None
    values = data.draw(hnp.arrays(dtype, st.integers(1, 6), elements=bound))
    device, stream, comm = alone(tmp_path, size)
    for op in (SUM, PROD, MAX, MIN):
        result = device.memory(values.nbytes)
        device.ok("HcclAllReduce", put(device, values), result, len(values), HCCL[dtype], op, comm, stream)
        with np.errstate(all="ignore"):  # overflow of halves to infinity, of integers around
            wide = values.astype("float64") if is_real else values
            expected = values
            if op == SUM:
                expected = (wide * size).astype(dtype) if is_real else np.add.reduce([values] * size, dtype=dtype)
            elif op == PROD:
                expected = (wide**size).astype(dtype) if is_real else np.multiply.reduce([values] * size, dtype=dtype)
        if is_real:
            # Rank after rank, rounded each time, against one product: a few of the last places.
            kind = np.finfo(dtype)
            np.testing.assert_allclose(
                get(result, values.shape, dtype), expected, rtol=16 * float(kind.eps), atol=float(kind.tiny)
            )
        else:
            np.testing.assert_array_equal(get(result, values.shape, dtype), expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40))
def test_halves_are_rounded_as_numpy_rounds(tmp_path: Path, numbers: list[float]) -> None:
    # The largest of two equal halves is itself: what is read and written again must not change.
    with np.errstate(over="ignore"):
        values = np.array(numbers).astype("float16")
    device, stream, comm = alone(tmp_path, 2)
    memory = put(device, values)
    device.ok("HcclAllReduce", memory, memory, len(values), HCCL["float16"], MAX, comm, stream)
    np.testing.assert_array_equal(get(memory, values.shape, "float16"), values)
    # The sum of two equal halves is exact unless it overflows, and half of the sum of bfloat16 too.
    device.ok("HcclAllReduce", memory, memory, len(values), HCCL["float16"], SUM, comm, stream)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(get(memory, values.shape, "float16"), values + values)


def test_one_process_gathers_and_times_alone(tmp_path: Path) -> None:
    device, stream, comm = alone(tmp_path, 4)
    values = np.arange(3, dtype="int32") + 1
    gathered, scattered = device.memory(48), device.memory(4)
    device.run("aclnnTimed", stream, 5000)
    device.ok("HcclAllGather", put(device, values), gathered, 3, HCCL["int32"], comm, stream)
    device.ok("HcclReduceScatter", gathered, scattered, 1, HCCL["int32"], SUM, comm, stream)
    device.ok("HcclAllReduce", gathered, gathered, 1 << 20, HCCL["float32"], SUM, comm, stream)  # too large to be real
    assert get(gathered, (4, 3), "int32").tolist() == [[1, 2, 3]] * 4
    assert get(scattered, (1,), "int32").tolist() == [4]
    device.close()
    record = device.record()
    # ranks_per_node is 2, the communicator is the whole job: 2 of its 4 ranks share the node.
    first, second, third = cost(12, 4, 2), cost(4, 4, 2), cost(4 << 20, 4, 2)
    end = LATENCY_NS + 5000
    assert rows(record, "arrive_ns", "start_ns", "end_ns", "index") == [
        (end, end, end + first, 0),
        (end + first, end + first, end + first + second, 1),
        (end + first + second, end + first + second, end + first + second + third, 2),
    ]
    assert record.groups == {0: ("virtual_0_0", 4, 0, (0, 1, 2, 3))}
    assert [(name, body["bytes"], body["count"], body["ranks_per_node"]) for _, name, body in
            record.definitions.values() if name.startswith("Hccl")] == [
        ("HcclAllGather", 12, 3, 2), ("HcclReduceScatter", 4, 1, 2), ("HcclAllReduce", 4 << 20, 1 << 20, 2),
    ]  # fmt: skip


def test_a_communicator_takes_its_buffers_from_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, _, comm = alone(tmp_path, 2)
    monkeypatch.setenv("HCCL_BUFFSIZE", "100")
    root, place = ctypes.create_string_buffer(4108), ctypes.c_void_p()
    device.ok("HcclCommInitRootInfo", 2, root, 0, ctypes.byref(place))
    device.ok("HcclCommDestroy", comm)
    monkeypatch.setenv("HCCL_BUFFSIZE", "3000")
    assert device.call("HcclCommInitRootInfo", 2, root, 0, ctypes.byref(place)) == 24
    device.close()
    assert device.record().tables["M"]["delta_bytes"].tolist() == [BUFFERS, BUFFERS // 2, -BUFFERS]


def test_ranks_of_a_group_that_the_program_told(tmp_path: Path) -> None:
    device, stream, _ = alone(tmp_path, 8)
    device.lib.virtual_npu_group(b"virtual_0_1", (ctypes.c_int32 * 3)(0, 1, 6), 3)
    place = ctypes.c_void_p()
    for size in (3, 4):  # the second: nobody told
        root = ctypes.create_string_buffer(4108)
        device.ok("HcclGetRootInfo", root)
        device.ok("HcclCommInitRootInfo", size, root, 0, ctypes.byref(place))
        device.ok("HcclBarrier", place.value, stream)
    device.close()
    record = device.record()
    assert [group[3] for group in record.groups.values()] == [tuple(range(8)), (0, 1, 6), None]
    table = record.tables["C"]
    assert (table["end_ns"] - table["start_ns"]).tolist() == [cost(0, 3, 2), cost(0, 4, 2)]  # 0 and 1 share a node


def test_whom_a_transfer_is_with_that_the_program_told(tmp_path: Path) -> None:
    device, stream, _ = alone(tmp_path, 8)
    buffer = device.memory(40)
    for peer in (5, 1):
        device.lib.virtual_npu_peer(ctypes.c_int32(peer))
        root, place = ctypes.create_string_buffer(4108), ctypes.c_void_p()
        device.ok("HcclGetRootInfo", root)
        device.ok("HcclCommInitRootInfo", 2, root, 0, ctypes.byref(place))
        device.ok("HcclSend", buffer, 10, 4, 1, place.value, stream)
    device.close()
    record = device.record()
    assert [group[3] for group in record.groups.values()] == [tuple(range(8)), (0, 5), (0, 1)]
    table = record.tables["C"]
    # A node has two ranks: 5 is in another one, 1 in the same.
    assert (table["end_ns"] - table["start_ns"]).tolist() == [cost(40, 2, 1) + 7, cost(40, 2, 2) + 7]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("HcclAllReduce", 0, 0, 1, 99, 0, "comm", "stream"), 1),  # no such type
        (("HcclAllReduce", 0, 0, 1, 4, 0, None, "stream"), 2),
        (("HcclSend", 0, 1, 4, 2, "comm", "stream"), 1),  # no such rank
        (("HcclBarrier", "comm", "comm"), 1),  # no stream
        (("HcclGroupEnd",), 1),
    ],
)
def test_wrong_calls(tmp_path: Path, call: tuple[object, ...], code: int) -> None:
    device, stream, comm = alone(tmp_path, 2)
    handles = {"comm": comm, "stream": stream}
    arguments = [handles.get(str(one), one) for one in call[1:]]
    assert device.call(str(call[0]), *arguments) == code
    assert len(device.record().errors) == 1


# ---- several processes ----


def test_ranks_meet_in_time_and_exchange_what_they_have(tmp_path: Path) -> None:
    script = PRELUDE + """
comm = meet("w", 3, rank)
device.run("aclnnTimed", stream, 10_000 * (rank + 1))
a = put(np.array([rank + 1, 10 * rank], "int64"))
device.ok("HcclAllReduce", a, a, 2, 5, 0, comm, stream)
said["reduced"] = get(a, 2, "int64")
b = put(np.arange(2, dtype="float32") + rank)
g = device.memory(24)
device.ok("HcclAllGather", b, g, 2, 4, comm, stream)
said["gathered"] = get(g, 6, "float32")
device.run("aclnnTimed", stream, 30_000 - 10_000 * rank)
o = put(np.array([7 + rank], "int32"))
device.ok("HcclBroadcast", o, 1, 2, 2, comm, stream)
said["broadcast"] = get(o, 1, "int32")
t = put(np.arange(3, dtype="int16") + 100 * rank)
r = device.memory(6)
device.ok("HcclAlltoAll", t, 1, 1, r, 1, 1, comm, stream)
said["exchanged"] = get(r, 3, "int16")
v = put(np.arange(4, dtype="int32") + 100 * rank)     # rank r sends 1 to itself, 0 to r-1, 3 to r+1
w = device.memory(16)
sent = [0, 0, 0]; sent[rank] = 1; sent[(rank + 1) % 3] = 3
got = [0, 0, 0]; got[rank] = 1; got[(rank - 1) % 3] = 3
starts = lambda n: counts(0, n[0], n[0] + n[1])
device.ok("HcclAlltoAllV", v, counts(*sent), starts(sent), 2, w, counts(*got), starts(got), 2, comm, stream)
said["uneven"] = get(w, 4, "int32")
s = put(np.arange(6, dtype="float64") * (rank + 1))
p = device.memory(16)
device.ok("HcclReduceScatter", s, p, 2, 10, 0, comm, stream)
said["scattered"] = get(p, 2, "float64")
q = put(np.arange(3, dtype="int8") + 50 * (rank == 1))
u = device.memory(1)
device.ok("HcclScatter", q, u, 1, 0, 1, comm, stream)
said["from root"] = get(u, 1, "int8")
device.ok("HcclBarrier", comm, stream)
device.ok("aclrtSynchronizeStream", stream)
end()
"""
    records = run_ranks(script, tmp_path, 3)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in range(3)]
    assert [one["reduced"] for one in said] == [[1 + 2 + 3, 30]] * 3
    assert [one["gathered"] for one in said] == [[0, 1, 1, 2, 2, 3]] * 3
    assert [one["broadcast"] for one in said] == [[9]] * 3
    assert [one["exchanged"] for one in said] == [[rank, 100 + rank, 200 + rank] for rank in range(3)]
    # Rank r has its parts in the order of the ranks they are for; the one for r+1 is 3 long.
    for rank, one in enumerate(said):
        kept: list[tuple[int, list[int]]] = []
        passed: list[tuple[int, list[int]]] = []
        for other in range(3):
            values = [other * 100 + i for i in range(4)]
            order = sorted(((other, 1), ((other + 1) % 3, 3)))
            at = 0
            for to, count in order:
                if to == rank:
                    (kept if other == rank else passed).append((other, values[at : at + count]))
                at += count
        assert one["uneven"] == [value for _, part in sorted(kept + passed) for value in part]
    assert [one["scattered"] for one in said] == [[6.0 * (2 * rank), 6.0 * (2 * rank + 1)] for rank in range(3)]
    assert [one["from root"] for one in said] == [[50 + rank] for rank in range(3)]

    tables = [record.tables["C"] for record in records]
    assert all(table["index"].tolist() == list(range(8)) for table in tables)
    arrivals = np.array([table["arrive_ns"] for table in tables])
    starts = np.array([table["start_ns"] for table in tables])
    ends = np.array([table["end_ns"] for table in tables])
    assert (starts == arrivals.max(axis=0)).all()
    # Host and stream of each rank, computed apart: first kernel of 10, 20, 30 us, then all wait for rank 2.
    assert arrivals[:, 0].tolist() == [LATENCY_NS + 10_000 * (rank + 1) for rank in range(3)]
    assert starts[:, 0].tolist() == [LATENCY_NS + 30_000] * 3
    # One rank is alone in its node, two share one: the collective takes longer for them in this cost model.
    assert (ends - starts)[:, 0].tolist() == [cost(16, 3, 2), cost(16, 3, 2), cost(16, 3, 1)]
    assert [record.groups for record in records] == [{0: ("w", 3, rank, (0, 1, 2))} for rank in range(3)]


def test_a_slow_rank_makes_the_other_wait_for_exactly_what_it_takes_longer(tmp_path: Path) -> None:
    script = PRELUDE + """
comm = meet("w", 2, rank)
a = device.memory(8)
for _ in range(5):
    for _ in range(20):
        device.run("aclnnTimed", stream, 50_000)
    device.ok("HcclAllReduce", a, a, 2, 4, 0, comm, stream)
device.ok("aclrtSynchronizeStream", stream)
end()
"""
    slow = run_ranks(script, tmp_path, 2, faults=[("slow_rank", 1, 1.25)])
    waited = [(record.tables["C"]["start_ns"] - record.tables["C"]["arrive_ns"]).tolist() for record in slow]
    assert waited == [[20 * 12_500] * 5, [0] * 5]


def test_sub_communicators_and_point_to_point(tmp_path: Path) -> None:
    script = PRELUDE + """
world = meet("w", 4, rank)
pair = rank // 2
members = (ctypes.c_uint32 * 2)(2 * pair, 2 * pair + 1)
sub = made_last("HcclCreateSubCommConfig", ctypes.byref(ctypes.c_void_p(world)), 2, members, 70 + pair,
                rank % 2, None)
device.run("aclnnTimed", stream, 1000 * (rank + 1))
a = put(np.array([rank], "int32"))
device.ok("HcclAllReduce", a, a, 1, 2, 0, sub, stream)
said["pair"] = get(a, 1, "int32")
# A ring where everybody sends first: possible only because the two belong together.
s, r = put(np.array([rank * 11], "int32")), device.memory(4)
device.ok("HcclGroupStart")
device.ok("HcclSend", s, 1, 2, (rank + 1) % 4, world, stream)
device.ok("HcclRecv", r, 1, 2, (rank - 1) % 4, world, stream)
device.ok("HcclGroupEnd")
said["ring"] = get(r, 1, "int32")
device.run("aclnnTimed", stream, 500 * (rank + 1))
if rank == 3:
    for value in (5, 6, 7):
        device.ok("HcclSend", put(np.array([value], "int32")), 1, 2, 0, world, stream)
elif rank == 0:
    received = []
    for _ in range(3):
        device.ok("HcclRecv", r, 1, 2, 3, world, stream)
        received.append(get(r, 1, "int32")[0])
    said["three"] = received
device.ok("aclrtSynchronizeStream", stream)
end()
"""
    records = run_ranks(script, tmp_path, 4)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in range(4)]
    assert [one["pair"] for one in said] == [[1], [1], [5], [5]]
    assert [one["ring"] for one in said] == [[33], [0], [11], [22]]
    assert said[0]["three"] == [5, 6, 7]
    pairs = [rows(record, "arrive_ns", "start_ns")[0] for record in records]
    assert pairs == [(1300, 2300), (2300, 2300), (3300, 4300), (4300, 4300)]
    assert [record.groups[1] for record in records] == [
        (f"w_{70 + rank // 2}", 2, rank % 2, (rank // 2 * 2, rank // 2 * 2 + 1)) for rank in range(4)
    ]
    # In the ring a rank waits for both neighbours, not for all four.
    arrive, start = (np.array([rows(record, name)[1][0] for record in records]) for name in ("arrive_ns", "start_ns"))
    assert start.tolist() == [max(arrive[rank], arrive[rank - 1], arrive[(rank + 1) % 4]) for rank in range(4)]
    names = [[record.definitions[row[0]][1] for row in rows(record, "def")] for record in records]
    assert names[0] == ["HcclAllReduce", "HcclBatchSendRecv", "HcclRecv", "HcclRecv", "HcclRecv"]
    assert names[3] == ["HcclAllReduce", "HcclBatchSendRecv", "HcclSend", "HcclSend", "HcclSend"]
    assert [row[0] for row in rows(records[0], "start_ns")[2:]] == [row[0] for row in rows(records[3], "start_ns")[2:]]


def test_the_device_goes_on_while_the_program_does_not(tmp_path: Path) -> None:
    # Rank 0 launches two collectives and then only waits for a file of rank 1, which writes it after both. More of them
    # than the ring has slots, so that slots are used again.
    script = PRELUDE + """
import time
comm = meet("w", 2, rank)
a = device.memory(8)
for _ in range(40):
    device.ok("HcclAllReduce", a, a, 2, 4, 0, comm, stream)
done = device.folder / "done"
if rank:
    device.ok("aclrtSynchronizeStream", stream)
    done.touch()
while not done.exists():
    time.sleep(0.01)
device.ok("aclrtSynchronizeStream", stream)
end()
"""
    records = run_ranks(script, tmp_path, 2)
    assert [rows(record, "start_ns") for record in records[:1]] == [rows(record, "start_ns") for record in records[1:]]
    assert len(rows(records[0], "start_ns")) == 40


def test_work_behind_a_collective_waits_for_it(tmp_path: Path) -> None:
    script = PRELUDE + """
comm = meet("w", 2, rank)
other, event = device.stream(), device.event()
device.run("aclnnTimed", stream, 1_000_000 * rank)
a, b = put(np.array([rank + 1.0], "float32")), device.memory(4)
device.ok("HcclAllReduce", a, a, 1, 4, 0, comm, stream)
device.ok("aclrtRecordEvent", event, stream)
device.ok("aclrtStreamWaitEvent", other, event)
device.ok("aclrtMemcpyAsync", b, 4, a, 4, 3, other)
device.run("aclnnTimed", other, 10)
host = np.zeros(1, "float32")
device.ok("aclrtMemcpyAsync", ctypes.c_void_p(host.ctypes.data), 4, b, 4, 2, other)
device.ok("aclrtSynchronizeStream", other)
end(host=host.tolist())
"""
    records = run_ranks(script, tmp_path, 2)
    assert [json.loads((tmp_path / f"said{rank}.json").read_text())["host"] for rank in range(2)] == [[3.0]] * 2
    end = LATENCY_NS + 1_000_000 + cost(4, 2, 2)
    for record in records:
        assert rows(record, "end_ns") == [(end,)]
        assert record.tables["E"]["device_ns"].tolist() == [end, end]
        assert record.tables["P"]["start_ns"].tolist()[0] == end


def test_ranks_that_disagree(tmp_path: Path) -> None:
    script = PRELUDE + """
comm = meet("w", 2, rank)
a = device.memory(80)
device.ok("HcclAllReduce", a, a, 10 + rank, 4, 0, comm, stream)
said["code"] = device.call("aclrtSynchronizeStream", stream)
said["message"] = device.message()
state = ctypes.c_int()
device.ok("HcclGetCommAsyncError", comm, ctypes.byref(state))
end(state=state.value)
"""
    records = run_ranks(script, tmp_path, 2)
    for rank, record in enumerate(records):
        one = json.loads((tmp_path / f"said{rank}.json").read_text())
        assert (one["code"], one["state"]) == (507057, 4)
        assert "EI0005" in one["message"]
        assert "count 10 type 4" in one["message"] and "count 11 type 4" in one["message"]
        assert [code for _, _, code, _ in record.errors] == [507057]


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    script = PRELUDE + """
comm = meet("w", 2, rank)
a = device.memory(80)
device.ok("HcclAllReduce", a, a, 10, 4, 0, comm, stream)
if rank == 0:
    device.ok("HcclAllReduce", a, a, 10, 4, 0, comm, stream)
    said["code"] = device.call("aclrtSynchronizeStream", stream)
    said["message"] = device.message()
end()
"""
    run_ranks(script, tmp_path, 2)
    said = json.loads((tmp_path / "said0.json").read_text())
    assert said["code"] == 507057
    assert "rank 1 has ended and rank 0 waits for it in collective 1 (AllReduce" in said["message"]


def test_a_rank_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1")
    script = PRELUDE + """
place = ctypes.c_void_p()
root = ctypes.create_string_buffer(b"lonely", 4108)
said["code"] = device.call("HcclCommInitRootInfo", 2, root, 0, ctypes.byref(place)) if rank == 0 else 0
end(message=device.message())
"""
    run_ranks(script, tmp_path, 2)
    said = json.loads((tmp_path / "said0.json").read_text())
    assert said["code"] == 9
    assert "1 of 2 ranks came in 1 s" in said["message"]


FULL_DISK = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int posix_fallocate(int file, off_t offset, off_t length)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int is_meet = readlink(link, path, sizeof path - 1) > 0 && !strcmp(strrchr(path, '/'), "/meet");
    long only = atol(getenv("FULL_FOR"));     /* this many bytes; 0: any */
    if (is_meet && (!only || length == only)) return ENOSPC;
    return fallocate(file, 0, offset, length) ? errno : 0;
}
"""


def test_a_full_disk_ends_the_meeting_of_ranks_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full.c").write_text(FULL_DISK)
    library = tmp_path / "full.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "full.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    script = PRELUDE + """
place, root = ctypes.c_void_p(), ctypes.create_string_buffer(4108)
root.value = root[160:161] = b"w"
said["enter"] = device.call("HcclCommInitRootInfo", 2, root, rank, ctypes.byref(place))
said["why"] = device.message()
if not said["enter"]:
    a = put(np.arange(3, dtype="float32"))
    device.ok("HcclAllReduce", a, a, 3, 4, 0, place.value, stream)
    said["wait"] = device.call("aclrtSynchronizeStream", stream)
    said["why"] = device.message()
end()
"""
    for only, wanted in ((0, {"enter": 4}), (12, {"enter": 0, "wait": 507057})):  # 12: what the ranks exchange
        folder = tmp_path / str(only)
        folder.mkdir()
        monkeypatch.setenv("FULL_FOR", str(only))
        run_ranks(script, folder, 2)  # no process ends by a signal
        for rank in range(2):
            said = json.loads((folder / f"said{rank}.json").read_text())
            assert "No space left on device" in said.pop("why")
            assert said == wanted


def test_launches_cost_the_host_what_the_settings_say(tmp_path: Path) -> None:
    device, stream, comm = alone(tmp_path, 2)
    for _ in range(3):
        device.ok("HcclBarrier", comm, stream)
    device.close()
    assert rows(device.record(), "host_ns") == [(0,), (HOST_LAUNCH_NS,), (2 * HOST_LAUNCH_NS,)]


def test_launches_cost_what_the_cost_model_says_where_the_settings_do_not(tmp_path: Path) -> None:
    device = Device(tmp_path, host_launch_ns=None, launch_latency_ns=None)
    stream = device.stream()
    for _ in range(2):
        device.run("aclnnTimed", stream, 1)
    device.close()
    record = device.record()
    assert (record.header["host_launch_ns"], record.header["launch_latency_ns"]) == ("8766", "4321")
    table = record.tables["K"]
    assert (table["host_ns"].tolist(), table["ready_ns"].tolist()) == ([0, 8766], [4321, 8766 + 4321])


def test_a_cost_model_that_is_not_understood_ends_the_process_before_it_records(tmp_path: Path) -> None:
    assert len(run_ranks("device.stream()", tmp_path, 1, cost="right")) == 1
    for old in tmp_path.glob("*"):
        old.unlink()
    assert run_ranks("device.stream()", tmp_path, 1, expect=78, cost="wrong") == []
