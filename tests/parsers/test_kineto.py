# ruff: noqa: E501  (the reference table reads better in one line per file)
"""Kineto traces: reference values of real files, and generated files for each kind of oddity."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from ascend_perf import intervals as iv
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import kineto
from ascend_perf.parsers._source import FileEntry, Folder


def read(path: Path) -> list[Trace]:
    (unit,) = kineto.find(Folder(path.parent, (FileEntry(path, path.stat().st_size),), ()))
    return kineto.parse(unit)


# Reference of the trace collection's README, section 3: file, rank, world, steps (duration us), all kernels (count,
# sum us), communication kernels (count, sum us), union of compute kernels, communication not overlapped, tolerance.
REFERENCE = [
    ("h100/Falconsai_nsfw_image_detection__1016002", None, None, [7894.065], 154, 1220.926, 0, 0, 1220.925, 0),
    ("h100/Qwen_Qwen1.5-0.5B-Chat__1016005", None, None, [47151.395], 1465, 45432.698, 0, 0, 45432.706, 0),
    ("h100/facebook_timesformer-base-finetuned-k400__1016002", None, None, [382535.558], 446, 154855.595, 0, 0, 154855.592, 0),
    ("h100/gaunernst_bert-small-uncased__1016001", None, None, [4426.114], 60, 307.197, 0, 0, 307.198, 0),
    ("h100/google_owlv2-large-patch14-ensemble__1016001", None, None, [1211182.252], 4330, 551451.628, 0, 0, 551451.612, 0),
    ("mi300/Falconsai_nsfw_image_detection__1016002", None, None, [7453.325], 155, 1716.301, 0, 0, 1716.299, 0),
    ("mi300/Qwen_Qwen1.5-0.5B-Chat__1016005", None, None, [42738.946], 1516, 43062.042, 0, 0, 43062.032, 0),
    ("mi300/facebook_timesformer-base-finetuned-k400__1016002", None, None, [390679.906], 447, 118758.892, 0, 0, 118758.896, 0),
    ("mi300/gaunernst_bert-small-uncased__1016001", None, None, [4007.334], 60, 388.344, 0, 0, 388.345, 0),
    ("a100/sixteen_rank_training_rank0", 0, 16, [209748, 216483, 216119, 215467, 216216], 6080, 401445, 80, 190345, 210998, 185317),
    ("a100/trace_diff_control_rank3", 3, 8, None, 8568, 446813, 60, 163535, 281336, 87921),
    ("a100/alexnet_single", 0, None, None, 79, 10692, 0, 0, 10630, 0),
    ("v100/two_rank_training_rank1", 1, 2, [345770, 365256, 346097, 344269, 336328], 19370, 977859, 2020, 357343, 620516, 357343),
    ("v100/trace_diff_test_rank1", 1, 2, None, 9876, 801858, 64, 251341, 548148, 73298),
    ("v100/ns_resolution_rank0", 0, 1, None, 4350, 468153.602, 0, 0, 468153.25, 0),
    ("v100/resnet50_num_workers_0", None, None, [176078, 173992, 176918, 181259, 176468, 164261], 8772, 591532, 0, 0, 591532, 0),
    ("v100/resnet50_num_workers_4", None, None, [181565, 123884, 126824, 126272, 163461, 116146], 8868, 594868, 0, 0, 594868, 0),
    ("mi2xx/mi210_gpu_only_trace", None, None, None, 562, 5343.422, 0, 0, 5343.370, 0),
    ("mi2xx/mi250_minitoy_train_ROCm6_2_kineto", None, None, None, 14, 110.881, 0, 0, 110.881, 0),
    ("inference-mi300/sglang_Qwen3-8B_decode", 0, 1, None, 555, 9765.437, 0, 0, 9759.752, 0),
    ("inference-mi300/sglang_Qwen3-8B_prefilldecode", 0, 1, None, 527, 492773.592, 0, 0, 492768.895, 0),
    ("inference-mi300/vllm_decode_full_graph_execution", 0, 1, None, 425, 10674.517, 0, 0, 10674.507, 0),
    ("multi-rank-128/sampled_rank-0", 0, 128, [607312, 622928], 1154, 606519, 10, 396199, 210320, 336983),
    ("multi-rank-128/sampled_rank-1", 1, 128, [607904, 630639], 1104, 651026, 10, 379053, 271973, 303523),
    ("edge-cases/triton_example_a100", None, None, None, 1, 1.76, 0, 0, 1.76, 0),
    ("edge-cases/torch_compile_triton_mi300", None, None, None, 12, 12549.021, 0, 0, 12549.021, 0),
]  # fmt: skip


def exact_union_us(events: list[tuple[Decimal, Decimal]]) -> Decimal:
    """Length of the union of (start, end) in us by sweeping sorted intervals, in decimal arithmetic."""
    total, reach = Decimal(0), None
    for start, end in sorted(events):
        total += max(Decimal(0), end - (start if reach is None else max(start, reach)))
        reach = end if reach is None else max(reach, end)
    return total


def ulp_us(path: Path) -> float:
    """What a double loses per time stamp of the file: the reference unions were made with doubles."""
    with gzip.open(path) as file:
        stamps = re.findall(rb'"ts":\s*(\d+\.?\d*)', file.read(1 << 20))
    return math.ulp(max(float(s) for s in stamps))


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: row[0].split("/")[1][:30])
def test_reference_values(traces: Path, row: tuple[object, ...]) -> None:
    name, rank, world, steps, kernels, sum_us, comm, comm_us, union_us, exposed_us = row
    path = traces / "kineto" / f"{name}.json.gz"
    (trace,) = read(path)
    k, c = trace[t.KERNELS], trace[t.COMM_OPS]
    compute = iv.from_durations(k.ints("start_ns"), k.ints("dur_ns"))
    communication = iv.from_durations(c.ints("start_ns"), c.ints("dur_ns"))
    tolerance = max(0.01, ulp_us(path) * len(k))
    assert (trace.meta.rank, trace.meta.world_size) == (rank, world)
    assert (len(k) + len(c), len(c)) == (kernels, comm)
    assert round((int(k.ints("dur_ns").sum()) + int(c.ints("dur_ns").sum())) / 1000, 3) == sum_us
    assert int(c.ints("dur_ns").sum()) / 1000 == comm_us
    assert iv.total(compute) / 1000 == pytest.approx(union_us, abs=tolerance)
    assert iv.total(iv.difference(communication, compute)) / 1000 == pytest.approx(exposed_us, abs=0.01)
    if steps is not None:
        assert (trace[t.STEPS].ints("dur_ns") / 1000).tolist() == steps


@pytest.mark.parametrize("name", [row[0] for row in REFERENCE if row[4] <= 5000], ids=lambda n: n.split("/")[1][:30])
def test_unions_equal_decimal_arithmetic_to_the_last_digit(traces: Path, name: str) -> None:
    path = traces / "kineto" / f"{name}.json.gz"
    with gzip.open(path) as file:
        events = json.loads(file.read(), parse_float=Decimal, parse_int=Decimal)["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" not in e["name"].lower()]
    (trace,) = read(path)
    k = trace[t.KERNELS]
    ours = iv.total(iv.from_durations(k.ints("start_ns"), k.ints("dur_ns")))
    assert ours == exact_union_us([(e["ts"], e["ts"] + e["dur"]) for e in kernels]) * 1000


def test_edge_cases_of_rank_and_device(traces: Path) -> None:
    folder = traces / "kineto" / "edge-cases"
    expected = {
        "cpu_only_rank34_of_300": 34,
        "rank_not_found": None,
        "rank_non_gpu": 0,
        "distributed_info_not_found": None,
    }
    for name, rank in expected.items():
        (trace,) = read(folder / f"{name}.json.gz")
        assert trace.meta.rank == rank
        assert not trace.has(t.KERNELS) and trace.has(t.HOST_OPS)
        assert trace.meta.device.kind == "cpu"


def test_device_names(traces: Path) -> None:
    (h100,) = read(traces / "kineto/h100/gaunernst_bert-small-uncased__1016001.json.gz")
    (mi300,) = read(traces / "kineto/mi300/gaunernst_bert-small-uncased__1016001.json.gz")
    assert (h100.meta.device.vendor, h100.meta.device.name) == ("NVIDIA", "NVIDIA H100 80GB HBM3")
    assert (mi300.meta.device.vendor, mi300.meta.device.name) == ("AMD", "AMD Instinct MI300X VF")
    assert h100.meta.versions["CUDA"] == "12.4"


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(events: list[dict[str, object]], name: str = "x.json", **facts: object) -> Path:
        path = tmp_path / name
        data = json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return make


def op(name: str, ts: float, dur: float, ident: int = 0, tid: int = 1) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"External id": ident},
    }


def launch(ts: float, dur: float, correlation: int, api: str = "cudaLaunchKernel", tid: int = 1) -> dict[str, object]:
    return {"ph": "X", "cat": "cuda_runtime", "name": api, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(name: str, ts: float, dur: object, correlation: object = 0, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation, **args}}  # fmt: skip


def test_a_kernel_finds_its_op_by_id_or_by_the_launch_inside_it(write: Write) -> None:
    (trace,) = read(
        write(
            [
                op("aten::linear", 100, 50, 1),
                op("aten::addmm", 110, 30, 2),
                launch(120, 5, 77),
                kernel("gemm", 200, 10, 77, **{"External id": 77}),  # an id that no op has, as PyTorch 1.x wrote it
                kernel("by_id", 220, 10, 0, **{"External id": 1}),
                kernel("alone", 240, 10, 99),
            ]
        )
    )
    names = trace[t.HOST_OPS].text("name").to_list()
    rows = trace[t.KERNELS].ints("host_op").tolist()
    assert [None if r == NULL else names[r] for r in rows] == ["aten::addmm", "aten::linear", None]
    assert trace[t.KERNELS].ints("launch_start_ns").tolist() == [120_000, NULL, NULL]
    assert trace[t.KERNELS].ints("launch_end_ns").tolist()[0] == 125_000


@pytest.mark.parametrize(
    "name",
    ["ncclKernel_AllReduce_RING_LL_Sum_float(x)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "nccldevkernel_generic",
     "ncclSymkDevKernel_AllReduce_RSxLD", "void rcclGenericKernel<1>"],
)  # fmt: skip
def test_every_generation_of_collective_names_is_communication(write: Write, name: str) -> None:
    group = {"Process Group Name": "51", "Process Group Description": "tp", "Process Group Ranks": "[0, 1, ..., 63]",
             "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1000, "Group size": 64}  # fmt: skip
    (trace,) = read(
        write(
            [
                kernel("gemm", 0, 10),
                kernel(name, 20, 5, **group),
                kernel(name, 30, 5, **group),
                {**kernel("nccl:all_reduce", 19, 7), "cat": "gpu_user_annotation"},
            ]
        )
    )
    comm = trace[t.COMM_OPS]
    assert (len(trace[t.KERNELS]), len(comm)) == (1, 2)
    assert comm.text("op").to_list() == ["allReduce"] * 2
    assert comm.ints("size_bytes").tolist() == [2000, 2000]
    assert comm.ints("index_in_group").tolist() == [0, 1]
    (found,) = trace.meta.groups
    assert (found.name, found.label, found.size, found.ranks) == ("51", "tp", 64, ())


def test_bad_times_are_dropped_and_counted(write: Write) -> None:
    (trace,) = read(
        write(
            [
                kernel("good", 1, 2),
                kernel("negative", 1, -2),
                kernel("absurd", 1, 10**12),
                kernel("huge", 10**40, 1),
                kernel("no duration", 1, None),
                kernel("text", 1, "soon"),
                kernel("long ago", -(2**61) // 1000 - 1, 1),
                kernel("far ahead", 2**62 // 1000 + 1, 1),
            ]
        )
    )
    assert trace[t.KERNELS].text("name").to_list() == ["good"]
    (source,) = trace.meta.sources
    assert {d.reason: d.count for d in source.dropped} == {
        "negative duration": 1,
        "duration over a day": 1,
        "time stamp or duration missing or unreadable": 3,
        "time stamp out of range": 2,
    }


def test_args_of_odd_types_do_not_lose_the_event(write: Write) -> None:
    events = [kernel("a", 1, 2, 5), kernel("b", 3, 2)]
    events[1]["args"] = {"device": "zero", "stream": 2**80, "correlation": None}
    events.append({**kernel("c", 6, 1), "args": None})
    (trace,) = read(write(events))
    assert trace[t.KERNELS].text("name").to_list() == ["a", "b", "c"]
    assert trace[t.KERNELS].ints("correlation").tolist() == [5, NULL, NULL]


def test_steps_hold_the_kernels_that_start_in_them(write: Write) -> None:
    steps = [{**op(f"ProfilerStep#{n}", ts, 100), "cat": "user_annotation"} for n, ts in ((7, 0), (8, 100), (9, 250))]
    (trace,) = read(
        write([*steps, kernel("a", 10, 5), kernel("b", 99, 50), kernel("between", 220, 1), kernel("c", 250, 1)])
    )
    assert trace[t.STEPS].ints("step_id").tolist() == [7, 8, 9]
    assert trace[t.KERNELS].ints("step_id").tolist() == [7, 7, NULL, 9]


def test_a_step_number_that_comes_again_is_another_step(write: Write) -> None:
    marks = [
        {**op("ProfilerStep#1", ts, dur, tid=tid), "cat": "user_annotation"}
        for ts, dur, tid in ((0, 100, 1), (5, 90, 2), (500, 100, 1))  # the second is the first on another thread
    ]
    (trace,) = read(write([*marks, kernel("a", 10, 5), kernel("b", 550, 5)]))
    steps = trace[t.STEPS]
    assert (steps.ints("step_id").tolist(), steps.ints("start_ns").tolist()) == ([1, 1], [0, 500_000])


def test_no_markers_is_one_step_over_the_device_events(write: Write) -> None:
    (trace,) = read(write([op("aten::mm", 0, 5), kernel("a", 10, 5), kernel("b", 40, 20)]))
    steps = trace[t.STEPS]
    assert (steps.ints("step_id").tolist(), steps.ints("start_ns").tolist(), steps.ints("dur_ns").tolist()) == (
        [NULL], [10_000], [50_000],
    )  # fmt: skip


def test_several_devices_of_one_process_are_several_traces(write: Write) -> None:
    second = kernel("b", 3, 4)
    second["args"] = {"device": 1, "stream": 7}
    first, other = read(write([kernel("a", 1, 2), second], distributedInfo={"rank": 0}))
    assert first[t.KERNELS].text("name").to_list() == ["a"]
    assert other[t.KERNELS].text("name").to_list() == ["b"]
    assert (first.meta.rank, other.meta.rank) == (None, None)


def test_categories_of_2021(write: Write) -> None:
    events = [
        {**op("aten::conv2d", 1, 5, 3), "cat": "Operator"},
        {**kernel("cudnn", 5, 2, 9), "cat": "Kernel", "args": {"device": 0, "correlation": 9, "external id": 3}},
        {**launch(2, 1, 9), "cat": "Runtime", "tid": "77"},
        {**kernel("Memcpy HtoD (Pageable -> Device)", 1, 1), "cat": "Memcpy", "args": {"bytes": 64}},
        {**op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 1), "cat": "Operator"},
    ]
    (trace,) = read(write(events))
    assert trace[t.KERNELS].ints("host_op").tolist() == [0]
    assert trace[t.COPIES].text("kind").to_list() == ["H2D"]
    assert trace[t.COPIES].ints("size_bytes").tolist() == [64]
    assert trace[t.HOST_EVENTS].text("kind").to_list() == ["dataloader"]
    assert trace[t.RUNTIME_CALLS].ints("thread").tolist() == [77]


def python(name: str, ts: float, dur: float, tid: object = 1) -> dict[str, object]:
    return {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def test_long_python_calls_of_launching_threads_are_kept(write: Write) -> None:
    events = [
        op("aten::mm", 10, 20), launch(12, 3, 7), kernel("k", 40, 5, 7),
        python("/home/someone/project/src/data/images.py(12): preprocess", 100, 500),
        python("<built-in method to of Tensor object at 0x7cc1559c5310>", 700, 100),
        python("short", 900, 99.999),
        python("threading.py(359): wait", 0, 5000, tid=2),
        python("gc.collect", 1000, 2000),
        {**op("Python GC", 4000, 300), "cat": "user_annotation"},
        python("negative", 1000, -200),
    ]  # fmt: skip
    (trace,) = read(write(events))
    seen = trace[t.HOST_EVENTS]
    rows = zip(seen.text("kind").to_list(), seen.text("name").to_list(), seen.ints("dur_ns").tolist(), strict=True)
    assert sorted(rows) == [
        ("gc", "Python GC", 300_000),
        ("gc", "gc.collect", 2_000_000),
        ("python", "<built-in method to of Tensor object>", 100_000),
        ("python", "data/images.py(12): preprocess", 500_000),
    ]


def test_facts_longer_than_the_head_come_before_the_events(write: Write) -> None:
    groups = [{"pg_name": str(n), "ranks": list(range(64)), "pg_size": 64} for n in range(2000)]
    path = write([kernel("k", 1, 2)], distributedInfo={"pg_config": groups, "rank": 5, "world_size": 64})
    path.write_bytes(
        path.read_bytes().replace(
            b'"schemaVersion": 1, "distributedInfo": {', b'"x": "' + b"y" * 300_000 + b'", "distributedInfo": {', 1
        )
    )
    (trace,) = read(path)
    assert (trace.meta.rank, len(trace[t.KERNELS])) == (5, 1)


@pytest.mark.parametrize(
    ("rank", "seen"),
    [(3, 3), ("3", 3), (-1, None), (True, None), ("x", None), (None, None), (1e3, None), (10**30, None)],
)
def test_ranks_of_odd_types(write: Write, rank: object, seen: int | None) -> None:
    (trace,) = read(write([kernel("k", 1, 2)], distributedInfo={"rank": rank, "world_size": "8"}))
    assert (trace.meta.rank, trace.meta.world_size) == (seen, 8)


def test_nothing_to_see_is_an_error(write: Write) -> None:
    with pytest.raises(InputError, match="no operator, kernel or runtime event among 1 events"):
        read(write([{"ph": "X", "cat": "else", "name": "a", "ts": 1, "dur": 1}]))


def test_memory_samples(write: Write) -> None:
    sample = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5}
    (trace,) = read(
        write(
            [
                op("aten::mm", 0, 5),
                {**sample, "args": {"Device Type": 0, "Device Id": -1, "Total Allocated": 64, "Total Reserved": 0}},
                {**sample, "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 10, "Total Reserved": 20}},
            ]
        )
    )
    memory = trace[t.MEMORY]
    assert memory.text("component").to_list() == ["CPU", "CUDA"]
    assert memory.ints("allocated_bytes").tolist() == [64, 10]
    assert memory.ints("reserved_bytes").tolist() == [NULL, 20]


def test_blocks_of_memory_by_address(write: Write) -> None:
    def event(at: float, size: int, address: int, kind: int = 1, tid: int = 7) -> dict[str, object]:
        args = {"Bytes": size, "Addr": address, "Device Type": kind, "Device Id": 0, "Total Allocated": 1}
        return {
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": at,
            "args": args,
        }  # fmt: skip

    within = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": 1, "dur": 10}
    (trace,) = read(write([
        within,
        event(2, 64, 100), event(5, -64, 100),  # taken within mm and given back
        event(6, 32, 100), event(8, 16, 100),  # the release between them is lost
        event(9, -8, 200),  # taken before the capture
        event(20, 4, 300),  # no operator, never given back
        event(3, 999, 400, kind=0),  # the host's
    ]))  # fmt: skip

    blocks = trace[t.MEMORY_BLOCKS]

    seen = list(zip(
        blocks.text("name").to_list(), *(blocks.ints(n).tolist() for n in ("size_bytes", "alloc_ns", "free_ns", "thread")),
        strict=True,
    ))  # fmt: skip
    assert seen == [
        ("aten::mm", 8, NULL, 9000, NULL),
        ("aten::mm", 64, 2000, 5000, 7),
        ("aten::mm", 32, 6000, 8000, 7),
        ("aten::mm", 16, 8000, NULL, 7),
        ("not within an operator", 4, 20000, NULL, 7),
    ]
