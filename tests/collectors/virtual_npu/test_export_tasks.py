"""Tasks of a capture: what belongs to it, times that add up to the nanosecond, links of collectives, counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu._export_capture import Capture, Collective, CommGroup, capture_of, captures_of
from ascend_perf.collectors.virtual_npu._export_counters import Chip, counters_of
from ascend_perf.collectors.virtual_npu._export_links import slices, transfers
from ascend_perf.collectors.virtual_npu._export_tasks import CommOp, Tasks, tasks_of
from ascend_perf.collectors.virtual_npu._export_trace import overlap_of
from ascend_perf.collectors.virtual_npu.record import read_record
from ascend_perf.errors import InputError
from tests.collectors.virtual_npu._records import BF16, F32, MAIN, OFFSET, PID, QUEUE, RAW0, RecordText, small_job, t

CHIP = Chip(cube_cores=24, vector_cores=48, frequency_hz=1_800_000_000)


def capture(text: RecordText, folder: Path) -> Capture:
    record = read_record(text.write(folder))
    ((_, begin, end),) = captures_of(record)
    return capture_of(record, begin, end)


def tasks(text: RecordText, folder: Path) -> Tasks:
    return tasks_of(capture(text, folder), cube_cores=24, vector_cores=48)


def at(time: int) -> int:
    """Epoch of a time of the test."""
    return RAW0 + OFFSET + time


# ---- captures ----------------------------------------------------------------------------------------------------


def test_a_capture_holds_what_was_launched_inside(tmp_path: Path) -> None:
    found = capture(small_job(rank=3), tmp_path)
    assert (found.rank, found.world_size, found.pid, found.device_id, found.soc) == (3, 8, PID + 3, 3, "Ascend910B2")
    assert (found.begin_ns, found.end_ns, found.offset_ns) == (at(1_000_000), at(4_000_000), OFFSET)
    assert len(found.launches["host"]) == 6  # without the launch before the start and the one after the stop
    assert {call.name for call in found.calls.values()} == {"aclnnMatmul", "aclnnRmsNorm", "aclnnMaxPool2dWithMask"}
    assert found.launches["start"].min() == at(2_005_000)
    assert found.memory["time"].tolist() == [at(n) for n in (1_000_000, 2_004_500, 2_006_500, 3_004_500, 3_006_500)]
    assert found.memory["used"].tolist() == [n << 20 for n in (2, 6, 2, 6, 2)]
    assert found.groups[0] == CommGroup(name="group_of_all", size=8, rank=3, ranks=tuple(range(8)))


def test_captures_by_their_folders(tmp_path: Path) -> None:
    text = RecordText()
    for number in range(2):
        text.profiler(1000 + number * 10_000, "init", f"/x/run_{number}_ascend_pt")
        text.profiler(2000 + number * 10_000, "start")
        text.profiler(3000 + number * 10_000, "stop")
        text.profiler(3500 + number * 10_000, "finalize")
    found = captures_of(read_record(text.write(tmp_path)))
    assert found == [
        ("/x/run_0_ascend_pt", RAW0 + 2000, RAW0 + 3000), ("/x/run_1_ascend_pt", RAW0 + 12_000, RAW0 + 13_000)
    ]  # fmt: skip


def test_a_capture_that_was_not_stopped_ends_with_the_last_launch(tmp_path: Path) -> None:
    text = RecordText()
    text.profiler(1000, "init", "/x/a_ascend_pt")
    text.profiler(2000, "start")
    text.kernel("aclnnAbs", [t(F32, [4]), t(F32, [4])], 9000, 12_000, 500)
    assert captures_of(read_record(text.write(tmp_path, is_truncated=True))) == [
        ("/x/a_ascend_pt", RAW0 + 2000, RAW0 + 9000)
    ]


def test_the_modelled_clock_cannot_be_exported(tmp_path: Path) -> None:
    text = small_job()
    text.clock = "modelled"
    with pytest.raises(InputError, match="modelled clock"):
        capture(text, tmp_path)


@pytest.mark.parametrize("kind", ["D", "G"])
def test_calls_and_groups_without_definition_are_damage(tmp_path: Path, kind: str) -> None:
    text = small_job()
    text.lines = [line for line in text.lines if not line.startswith(f"{kind}\t")]
    with pytest.raises(InputError, match="does not define"):
        capture(text, tmp_path)


# ---- kernels -----------------------------------------------------------------------------------------------------


def test_a_call_of_several_kernels_is_divided_without_a_gap(tmp_path: Path) -> None:
    found = tasks(small_job(), tmp_path)
    pool = [row for row in range(len(found.kernels["kind"])) if "Pool2d" in name(found, row)][:3]
    start, end = (found.kernels[key][pool].tolist() for key in ("start", "end"))
    # 10003 ns by shares 1, 2, 1: a quarter is 2500.75, three quarters are 7502.25.
    assert start == [at(2_600_000), at(2_602_500), at(2_607_502)]
    assert end == [at(2_602_500), at(2_607_502), at(2_610_003)]
    assert [name(found, row).split("_")[1] for row in pool] == [
        "TransDataSpecial", "MaxPoolWithArgmaxV1AiCore", "TransDataSpecial"
    ]  # fmt: skip


def name(found: Tasks, row: int) -> str:
    return found.kinds[int(found.kernels["kind"][row])].kernel.name


OPS = ("aclnnMaxPool2dWithMask", "aclnnEmbeddingDenseBackward", "aclnnAdd", "aclnnNLLLoss", "aclnnWhatever")


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(OPS), st.integers(1, 3_000_000), st.integers(0, 5000), st.integers(2, 5)), max_size=30
    )
)
def test_kernels_of_any_calls_take_the_time_of_the_calls(
    calls: list[tuple[str, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = RecordText()
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    expected: dict[int, list[tuple[int, int]]] = {}
    tails = dict.fromkeys(range(2, 6), 0)
    for number, (op, dur, gap, stream) in enumerate(calls):
        start = tails[stream] + gap
        tails[stream] = start + dur
        text.kernel(op, [t(F32, [64]), t(F32, [64])], 2 + number, start, dur, stream=stream)
        expected.setdefault(stream, []).append((at(start), at(start + dur)))
    text.profiler(10**10, "stop")
    found = tasks(text, tmp_path_factory.mktemp("record"))
    kernels = found.kernels
    assert int((kernels["end"] - kernels["start"]).sum()) == sum(dur for _, dur, _, _ in calls)
    assert len(np.unique(found.calls.columns["connection"])) == len(found.calls.columns["connection"])
    for stream, spans in expected.items():
        own = kernels["stream"] == stream
        mine = sorted(zip(*(kernels[key][own].tolist() for key in ("start", "end")), strict=True))
        inner = iter(mine)
        for begin, end in spans:  # the kernels of a call are neighbours and cover it
            edge = begin
            while edge < end:
                first, last = next(inner)
                assert first == edge <= last <= end
                edge = last
        assert kernels["task"][kernels["stream"] == stream].tolist() == list(range(len(mine)))


def test_host_calls_begin_when_they_did_and_waits_keep_their_length(tmp_path: Path) -> None:
    calls = tasks(small_job(), tmp_path).calls
    rows = [
        (calls.names[n], calls.layers[la], start - at(0), end - start, thread)
        for n, la, start, end, thread in zip(
            *(calls.columns[key].tolist() for key in ("name", "layer", "start", "end", "thread")), strict=True
        )
    ]
    assert ("aclnnMatmul", "acl", 2_000_000, 20, QUEUE) in rows
    assert ("launch", "node", 2_000_000, 20, QUEUE) in rows
    assert ("hcom_allReduce_", "communication", 2_002_000, 20, QUEUE) in rows
    assert ("aclrtMemcpyAsync", "acl", 2_008_000, 20, QUEUE) in rows
    assert ("aclrtSynchronizeStreamWithTimeout", "acl", 2_009_000, 621_000, MAIN) in rows
    assert sum(row[0] == "launch" for row in rows) == 2 * (1 + 1 + 3 + 1)  # kernels and collectives
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)


def test_a_launch_is_no_longer_than_until_the_next_one(tmp_path: Path) -> None:
    text = RecordText()
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    for host in (1000, 1012, 9000):
        text.kernel("aclnnAbs", [t(F32, [4]), t(F32, [4])], host, 20_000 + host, 10)
    text.profiler(30_000, "stop")
    columns = tasks(text, tmp_path).calls.columns
    pairs = sorted(set(zip((columns["start"] - at(0)).tolist(), (columns["end"] - at(0)).tolist(), strict=True)))
    assert pairs == [(1000, 1012), (1012, 1032), (9000, 9020)]


# ---- collectives -------------------------------------------------------------------------------------------------


def group(size: int, rank: int, *, stride: int = 1) -> CommGroup:
    return CommGroup(name="g", size=size, rank=rank, ranks=tuple(range(0, size * stride, stride)))


def call(name: str, nbytes: int, peer: int | None = None) -> Collective:
    return Collective(name=name, dtype=11, count=nbytes // 2, nbytes=nbytes, peer=peer)


def test_slices_of_a_real_all_reduce() -> None:
    # Sizes of the tasks in a real profile of eight cards: 4097000 elements of 4 bytes.
    assert slices(16_388_000, 8) == [2_064_384] * 7 + [1_937_312]


@given(nbytes=st.integers(0, 10**10), parts=st.integers(1, 64))
def test_slices_add_up(nbytes: int, parts: int) -> None:
    found = slices(nbytes, parts)
    assert len(found) == parts
    assert sum(found) == nbytes
    assert found == sorted(found, reverse=True)


def test_an_all_reduce_in_a_node_reduces_and_gathers_with_each_other_rank() -> None:
    found = transfers(call("AllReduce", 16_388_000), group(8, 1), 8)
    assert [(piece.src, piece.dst, piece.nbytes, piece.is_reduced) for piece in found] == [
        (1, peer, 1_937_312 if peer == 7 else 2_064_384, is_reduced)
        for is_reduced in (True, False) for peer in range(8) if peer != 1
    ]  # fmt: skip
    assert {piece.transport for piece in found} == {"HCCS"}


def test_between_nodes_ranks_talk_to_those_of_their_place() -> None:
    found = transfers(call("AllGather", 1000), group(16, 11), 8)
    near = {(piece.dst, piece.nbytes) for piece in found if piece.transport == "HCCS"}
    far = {(piece.dst, piece.nbytes) for piece in found if piece.transport == "RDMA"}
    assert near == {(peer, 2000) for peer in range(8, 16) if peer != 11}
    assert far == {(3, 1000)}
    # Ranks 0, 8, 16, 24 of the job: one in each node.
    one_each = transfers(call("ReduceScatter", 4096), group(4, 2, stride=8), 8)
    assert {(piece.dst, piece.transport, piece.nbytes, piece.is_reduced) for piece in one_each} == {
        (peer, "RDMA", 4096, True) for peer in (0, 1, 3)
    }


@given(size=st.integers(2, 40), rank=st.integers(0, 39), per_node=st.integers(1, 16), part=st.integers(1, 10**6))
def test_what_a_gather_moves_is_enough_for_everybody(size: int, rank: int, per_node: int, part: int) -> None:
    """Each rank gets the parts of all: of its node's ranks, and through their places those of the other nodes."""
    ranks = [r for r in range(size) if r < size - size % per_node or size < per_node] or list(range(size))
    me = rank % len(ranks)
    whole = CommGroup(name="g", size=len(ranks), rank=me, ranks=tuple(ranks))
    if len(ranks) < 2:
        return
    nodes = len({r // per_node for r in ranks})
    mates = sum(r // per_node == ranks[me] // per_node for r in ranks) - 1
    found = transfers(call("AllGather", part), whole, per_node)
    assert sum(piece.nbytes for piece in found if piece.transport == "HCCS") == mates * nodes * part
    assert sum(piece.nbytes for piece in found if piece.transport == "RDMA") == (nodes - 1) * part


def test_point_to_point_and_all_to_all() -> None:
    (sent,) = transfers(call("Send", 512, peer=9), group(16, 3), 8)
    assert (sent.src, sent.dst, sent.transport, sent.nbytes) == (3, 9, "RDMA", 512)
    (received,) = transfers(call("Recv", 512, peer=2), group(16, 3), 8)
    assert (received.src, received.dst, received.transport) == (2, 3, "HCCS")
    assert transfers(call("BatchSendRecv", 512), group(4, 0), 8) == ()  # peers are not known
    assert len(transfers(call("BatchSendRecv", 512), group(2, 0), 8)) == 1
    found = transfers(call("AlltoAll", 1600), group(16, 0), 8)
    assert [(piece.dst, piece.transport, piece.nbytes) for piece in found] == [
        (peer, "HCCS" if peer < 8 else "RDMA", 100) for peer in range(1, 16)
    ]
    assert transfers(call("Barrier", 0), group(8, 0), 8) == ()
    assert transfers(call("AllReduce", 512), group(1, 0), 8) == ()


def ops(text: RecordText, folder: Path) -> tuple[CommOp, ...]:
    return tasks(text, folder).comm


def test_a_collective_waits_on_plane_0_and_moves_on_the_others(tmp_path: Path) -> None:
    first, second = ops(small_job(), tmp_path)
    hash_id = first.hash_id
    assert (first.name, second.name) == (f"hcom_allReduce__{hash_id[-3:]}_0_1", f"hcom_allReduce__{hash_id[-3:]}_1_1")
    wait, *moves = first.tasks
    assert (wait.kind, wait.plane, wait.start_ns, wait.end_ns) == ("Notify_Wait", 0, at(2_006_000), at(2_106_000))
    assert [(task.kind, task.plane) for task in moves] == [
        (kind, plane) for kind in ("Reduce_Inline", "Memcpy") for plane in range(1, 8)
    ]
    # 394007 ns in two halves: the first ends after 197003.
    assert {(task.start_ns, task.end_ns) for task in moves} == {
        (at(2_106_000), at(2_303_003)), (at(2_303_003), at(2_500_007))
    }  # fmt: skip


def test_more_transfers_than_planes_follow_each_other(tmp_path: Path) -> None:
    text = RecordText(world_size=12, ranks_per_node=12)
    text.group(0, "g", 12, 0, list(range(12)))
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    text.collective("AllGather", 1000, 5, 100, 100, 1101)
    text.profiler(10, "stop")
    (op,) = ops(text, tmp_path)
    assert [(task.plane, task.start_ns - at(0), task.end_ns - at(0)) for task in op.tasks] == [
        *((plane, 100, 600) for plane in range(1, 9)), *((plane, 600, 1101) for plane in range(1, 4))
    ]  # fmt: skip


def test_links_between_nodes_have_a_round_of_their_own(tmp_path: Path) -> None:
    text = RecordText(world_size=16)
    text.group(0, "g", 16, 0, list(range(16)))
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    # Each rank of the node gets both nodes' parts, 2 x 1400 bytes at 28 GB/s: 100 ns; the other node 1400 at 25: 56.
    text.collective("AllGather", 700, 5, 100, 100, 256)
    text.profiler(10, "stop")
    (op,) = ops(text, tmp_path)
    assert [(task.kind, task.plane, task.start_ns - at(0), task.end_ns - at(0)) for task in op.tasks] == [
        *(("Memcpy", plane, 100, 200) for plane in range(1, 8)), ("RDMASend", 1, 200, 256)
    ]  # fmt: skip


# ---- overlap -----------------------------------------------------------------------------------------------------


@given(
    calls=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(2, 4)), max_size=12),
    comm=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=4),
)
def test_the_overlap_lines_are_unions_in_every_nanosecond(
    calls: list[tuple[int, int, int]], comm: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = RecordText(world_size=2)
    text.group(0, "g", 2, 0, [0, 1])
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    for start, dur, stream in calls:
        text.kernel("aclnnAbs", [t(F32, [4]), t(F32, [4])], 2, start, dur, stream=stream)
    for start, dur in comm:
        text.collective("AllReduce", 100, 3, start, start, start + dur)
    text.profiler(1000, "stop")
    lines = dict(overlap_of(tasks(text, tmp_path_factory.mktemp("record"))))
    computing = {at(n) for start, dur, _ in calls for n in range(start, start + dur)}
    talking = {at(n) for start, dur in comm for n in range(start, start + dur)}
    busy = computing | talking
    wanted = {
        "Computing": computing, "Communication": talking, "Communication(Not Overlapped)": talking - computing,
        "Free": set(range(min(busy), max(busy))) - busy if busy else set(),
    }  # fmt: skip
    for name, spans in lines.items():
        covered = [n for start, end in spans for n in range(start, end)]
        assert len(covered) == len(set(covered))
        assert set(covered) == wanted[name], name
    # A row begins wherever a task begins while no other runs, also right behind the one before it.
    begins = {at(start) for start, _, _ in calls}
    alone = {n for n in begins if not any(at(s) < n < at(s + d) for s, d, _ in calls)}
    assert {start for start, _ in lines["Computing"]} == alone


# ---- counters ----------------------------------------------------------------------------------------------------


def test_counters_give_back_the_flops_and_stay_below_the_core_time(tmp_path: Path) -> None:
    found = tasks(small_job(), tmp_path)
    counters = counters_of(found, CHIP)
    row = next(row for row in range(len(found.kernels["kind"])) if "Matmul" in name(found, row))
    assert counters.aic_ns[row] == 400_001 - 1500
    assert counters.aic_cycles[row] == round((400_001 - 1500) * 1.8 * 24)
    # 8192 FLOP per cycle and core for 16-bit operands: cycles x ratio x 8192 is the work again.
    ratio = counters.mac_ns[row] / counters.aic_ns[row]
    assert counters.aic_cycles[row] * ratio * 8192 == pytest.approx(2 * 4096**3, rel=1e-5)
    assert counters.cube_utilization[row] == pytest.approx(100 * (400_001 - 1500) / 400_001)
    assert counters.aiv_ns[row] == counters.vec_ns[row] == 0
    # Two of three tensors are read, one is written.
    assert (counters.aic_read_ns[row], counters.aic_write_ns[row]) == (46_667, 23_333)
    norm = next(row for row in range(len(found.kernels["kind"])) if "RmsNorm" in name(found, row))
    assert counters.aic_ns[norm] == counters.mac_ns[norm] == 0
    assert (counters.aiv_ns[norm], counters.vec_ns[norm]) == (50_003 - 1500, 20_000)
    assert counters.aiv_cycles[norm] == round((50_003 - 1500) * 1.8 * 48)
    for part in (counters.mac_ns, counters.aic_read_ns, counters.aic_write_ns):
        assert (part <= counters.aic_ns).all()


def test_kernels_without_counters(tmp_path: Path) -> None:
    text = RecordText()
    text.profiler(0, "init", "/x/a_ascend_pt")
    text.profiler(1, "start")
    text.kernel("aclnnRandperm", [t(9, [1024])], 5, 100, 5000)
    text.kernel("aclnnInplaceUniform", [t(BF16, [1024])], 6, 6000, 0)
    text.kernel("aclnnAdd", [t(BF16, [1024]), t(BF16, [1024])], 7, 7000, 0, vector_ns=50)
    text.profiler(10, "stop")
    found = tasks(text, tmp_path)
    counters = counters_of(found, CHIP)
    assert [kind.kernel.core for kind in found.kinds] == ["AI_CPU", "DSA_SQE", "AI_VECTOR_CORE"]
    assert counters.has_any.tolist() == [False, False, True]
    assert counters.vec_ns.tolist() == [0, 0, 0]  # a kernel of no length has no busy unit
