"""Reference values of the real torch_npu profiles, computed independently of this project (README of the traces)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, TableSpec
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import ascend_pt
from ascend_perf.parsers._source import FileEntry, Folder


def folder_of(path: Path) -> Folder:
    entries = sorted(path.iterdir())
    files = tuple(FileEntry(p, p.stat().st_size) for p in entries if p.is_file())
    return Folder(path, files, tuple(p for p in entries if p.is_dir()))


@lru_cache(maxsize=32)
def read(path: Path) -> Trace:
    (unit,) = ascend_pt.find(folder_of(path))
    (trace,) = ascend_pt.parse(unit)
    return trace


def read_file(path: Path) -> Trace:
    (unit,) = ascend_pt.find(Folder(path.parent, (FileEntry(path, path.stat().st_size),), ()))
    (trace,) = ascend_pt.parse(unit)
    return trace


def us(trace: Trace, table: TableSpec, rows: np.ndarray | None = None, column: str = "dur_ns") -> float:
    values = trace[table].ints(column)
    values = values[values != NULL] if rows is None else values[rows]
    return int(values.sum()) / 1e3


def by_value(trace: Trace, column: str) -> dict[str, tuple[int, float]]:
    """Count and sum of the kernels by a text column."""
    kernels = trace[t.KERNELS]
    text = kernels.text(column)
    return {
        value: (int(rows.sum()), us(trace, t.KERNELS, rows))
        for value in text.compact().values
        for rows in [text.equals(value)]
    }


ALEXNET = {
    # set: sum compute, sum communication, Computing, CNO, Overlapped, Free, Stage, span, Preparing
    "level0/rank0": (8827.454, 85516.886, 8827.473, 81515.607, 4001.282, 25908.102, 116251.25, 116251.182, 19358.0),
    "level1/rank0": (8873.737, 105991.876, 8873.756, 101963.203, 4028.675, 25744.050, 136581.0, 136581.009, 17902.5),
    "level1/rank1": (8878.275, 100375.284, 8878.295, 96359.047, 4016.239, 26675.274, 131912.5, 131912.616, 20433.25),
    "level2/rank0": (8868.215, 99973.276, 8868.240, 95962.016, 4011.262, 25032.619, 129862.75, 129862.875, 17483.75),
    "level2/rank1": (8902.276, 97455.326, 8902.301, 93411.782, 4043.544, 26441.689, 128755.75, 128755.772, 18325.5),
}

ALEXNET_CORES = {
    "level1/rank0": {"AIC": (23, 2805.855), "AIV": (149, 5823.400), "MIX_AIV": (13, 238.962), "DSA": (2, 5.520)},
    "level1/rank1": {"AIC": (23, 2837.357), "AIV": (149, 5802.755), "MIX_AIV": (13, 232.683), "DSA": (2, 5.480)},
    "level2/rank0": {"AIC": (23, 2839.876), "AIV": (149, 5789.577), "MIX_AIV": (13, 233.102), "DSA": (2, 5.660)},
    "level2/rank1": {"AIC": (23, 2859.338), "AIV": (149, 5810.736), "MIX_AIV": (13, 226.742), "DSA": (2, 5.460)},
}

ALEXNET_TYPES = {
    "level1/rank0": (1959.079, 1423.202, 921.498, 723.434, 645.433),
    "level1/rank1": (1954.139, 1416.001, 947.559, 722.494, 652.433),
    "level2/rank0": (1954.719, 1393.321, 938.298, 721.854, 663.134),
    "level2/rank1": (1949.120, 1418.641, 958.439, 722.194, 660.294),
}
TOP_TYPES = {"ForeachAddList": 3, "TransData": 57, "MatMulV2": 8, "Conv2D": 5, "Conv2DBackpropFilter": 5}

ALEXNET_COMM = {
    # set: op_statistic sum, sum elapse ms, HCCS time ms
    "level1/rank0": (8873.751, 105.991878, 27.315706),
    "level1/rank1": (8878.293, 100.375285, 27.583971),
    "level2/rank0": (8868.233, 99.973277, 28.469589),
    "level2/rank1": (8902.294, 97.455327, 28.345726),
}


def alexnet(traces: Path, name: str) -> Trace:
    return read(traces / "ascend-pytorch" / "text" / f"{name}_ascend_pt" / "ASCEND_PROFILER_OUTPUT")


@pytest.mark.parametrize("name", ALEXNET)
def test_alexnet_text_sums(traces: Path, name: str) -> None:
    compute, communication, computing, cno, overlapped, free, stage, span, preparing = ALEXNET[name]
    trace = alexnet(traces, name)

    assert len(trace[t.KERNELS]) == 187
    assert us(trace, t.KERNELS) == compute
    assert len(trace[t.COMM_OPS]) == 4
    assert us(trace, t.COMM_OPS) == communication
    exported = trace[t.EXPORTED_STEPS]
    columns = {
        "computing_ns": computing, "communication_not_overlapped_ns": cno, "overlapped_ns": overlapped,
        "free_ns": free, "stage_ns": stage, "preparing_ns": preparing, "bubble_ns": 0.0,
    }  # fmt: skip
    assert {key: exported.ints(key).tolist() for key in columns} == {k: [round(v * 1e3)] for k, v in columns.items()}
    steps = trace[t.STEPS]
    assert steps.ints("step_id").tolist() == [50]
    # kernel_details cuts durations to 3 decimals, so the window may end one ns away from the exact one.
    assert steps.ints("dur_ns")[0] / 1e3 == pytest.approx(span, abs=0.0011)
    assert trace.meta.rank == int(name[-1])


@pytest.mark.parametrize("name", ALEXNET)
def test_alexnet_overlap_analysis_is_exact(traces: Path, name: str) -> None:
    overlap = alexnet(traces, name)[t.OVERLAP]
    kinds = overlap.text("kind")

    sums = {kind: us(alexnet(traces, name), t.OVERLAP, kinds.equals(kind)) for kind in kinds.values}
    counts = {kind: int(kinds.equals(kind).sum()) for kind in kinds.values}

    _, _, computing, cno, _, free, _, span, _ = ALEXNET[name]
    assert counts == {"Computing": 187, "Communication": 4, "Communication(Not Overlapped)": 101, "Free": 90}
    assert (sums["Computing"], sums["Communication(Not Overlapped)"], sums["Free"]) == (computing, cno, free)
    assert (overlap.ends_ns().max() - overlap.ints("start_ns").min()) / 1e3 == span


@pytest.mark.parametrize("name", ALEXNET_CORES)
def test_alexnet_core_types_and_op_types(traces: Path, name: str) -> None:
    trace = alexnet(traces, name)

    assert by_value(trace, "core") == ALEXNET_CORES[name]
    types = by_value(trace, "op_type")
    assert [types[op] for op in TOP_TYPES] == list(zip(TOP_TYPES.values(), ALEXNET_TYPES[name], strict=True))


@pytest.mark.parametrize("name", ALEXNET_COMM)
def test_alexnet_exported_sums_and_communication(traces: Path, name: str) -> None:
    statistic, elapse_ms, hccs_ms = ALEXNET_COMM[name]
    trace = alexnet(traces, name)

    assert len(trace[t.EXPORTED_OPS]) == 33
    assert int(trace[t.EXPORTED_OPS].ints("count").sum()) == 187
    assert us(trace, t.EXPORTED_OPS, column="total_ns") == statistic
    (check,) = [c for c in trace.meta.checks if c.name == "communication"]
    assert check.theirs / 1e3 == pytest.approx(elapse_ms, abs=2e-6)  # four values in ms, rounded to ns
    transfers = trace[t.COMM_TRANSFERS]
    assert transfers.text("transport").to_list() == ["HCCS"] * 4
    assert int(transfers.ints("size_bytes").sum()) == 427_596_096
    assert int(transfers.ints("time_ns").sum()) / 1e6 == pytest.approx(hccs_ms, abs=2e-6)
    assert len(trace[t.COMM_TASKS]) == 296
    assert np.bincount(trace[t.COMM_TASKS].ints("comm_op")).tolist() == [74] * 4
    assert len(trace[t.EXPORTED_APIS]) == (57 if "level1" in name else 75)


@pytest.mark.parametrize("name", ALEXNET)
def test_alexnet_other_files(traces: Path, name: str) -> None:
    trace = alexnet(traces, name)

    rows = {source.format: source.rows for source in trace.meta.sources}
    assert rows["operator_details.csv"] == 859 == len(trace[t.HOST_OPS])
    assert rows["l2_cache.csv"] == 179
    blocks = trace[t.MEMORY_BLOCKS]
    assert (len(blocks), int((blocks.ints("free_ns") == NULL).sum())) == (184, 24)
    assert len(trace[t.MODULE_MEMORY].text("component").compact().values) == 77
    memory = trace[t.MEMORY]
    component = memory.text("component")
    counts = {name: int(component.equals(name).sum()) for name in component.values}
    assert counts.pop("APP") in (13, 14)
    assert counts == {"GE": 114, "PTA": 381, "PTA+GE": 495}
    pta = component.equals("PTA")
    assert memory.ints("reserved_bytes")[pta].max() / 2**20 == 1452.0
    assert memory.ints("allocated_bytes")[pta].max() / 2**20 == 1187.9814453125


def test_alexnet_every_kernel_is_linked_to_its_launch_and_operator(traces: Path) -> None:
    for name in ALEXNET:
        trace = alexnet(traces, name)
        for table, count in ((t.KERNELS, 187), (t.COMM_OPS, 4)):
            rows = trace[table]
            assert int((rows.ints("host_op") != NULL).sum()) == count
            assert int((rows.ints("launch_start_ns") != NULL).sum()) == count
    names = alexnet(traces, "level1/rank0")[t.HOST_OPS].text("name")
    kernels = alexnet(traces, "level1/rank0")[t.KERNELS]
    first = {kernels.text("name")[row]: names[int(kernels.ints("host_op")[row])] for row in (2, 4)}
    assert first == {"Conv2D1": "Conv2D", "aclnnInplaceRelu_Relu_Relu": "aclnnInplaceRelu"}


def test_alexnet_device_is_derived_but_not_named(traces: Path) -> None:
    device = alexnet(traces, "level1/rank0").meta.device

    assert (device.cube_cores, device.vector_cores, device.frequency_hz) == (24, 48, 1_800_000_000)
    assert device.spec is None  # two parts have 24 cores at 1800 MHz
    assert device.derivation is not None and "43.2 GHz-cores" in device.derivation


def test_alexnet_files_agree_and_nothing_private_is_kept(traces: Path) -> None:
    trace = alexnet(traces, "level2/rank0")

    assert [check.name for check in trace.meta.checks if not check.holds] == []
    stacks = "\n".join(trace[t.HOST_OPS].text("stack").values)
    assert "torch/_ops.py(692): __call__" in stacks
    assert "/home" not in stacks and "user0" not in stacks


DB = {
    # set: compute ns, communication ns, StepTraceTime computing/CNO/overlapped/communication, free/stage/preparing,
    # TASK rows are not kept; CANN_API rows
    "level0/rank0": (
        8843910, 89880576, (8843.910, 85881.122, 3999.454, 89880.576), (25900.158, 120625.190, 16681.808), 713,
    ),
    "level0/rank1": (
        8831637, 93993858, (8831.637, 90000.781, 3993.077, 93993.858), (26748.231, 125580.649, 18002.802), 712,
    ),
    "level1/rank0": (
        8903431, 102108100, (8903.431, 98071.947, 4036.153, 102108.100), (25258.144, 132233.522, 18055.693), 710,
    ),
    "level1/rank1": (
        8915634, 98590190, (8915.634, 94556.050, 4034.140, 98590.190), (25840.499, 129312.183, 17512.827), 709,
    ),
    "level2/rank0": (
        8900456, 94107521, (8900.456, 90080.699, 4026.822, 94107.521), (25238.587, 124219.742, 17894.588), 1133,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DB)
def test_alexnet_db(traces: Path, name: str) -> None:
    compute, communication, split, rest, calls = DB[name]
    trace = read(traces / "ascend-pytorch" / "db" / f"{name}_ascend_pt" / "ASCEND_PROFILER_OUTPUT")

    assert (len(trace[t.KERNELS]), len(trace[t.COMM_OPS]), len(trace[t.COMM_TASKS])) == (187, 4, 296)
    assert np.bincount(trace[t.COMM_TASKS].ints("comm_op")).tolist() == [74] * 4
    assert int(trace[t.KERNELS].ints("dur_ns").sum()) == compute
    assert int(trace[t.COMM_OPS].ints("dur_ns").sum()) == communication
    exported = trace[t.EXPORTED_STEPS]
    columns = ("computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage", "preparing")
    assert [int(exported.ints(f"{name}_ns")[0]) for name in columns] == [round(v * 1e3) for v in (*split, *rest)]
    assert trace[t.STEPS].ints("step_id").tolist() == [50]
    assert trace[t.STEPS].ints("dur_ns").tolist() == [round(rest[1] * 1e3)]
    assert len(trace[t.RUNTIME_CALLS]) == calls
    for table in (t.KERNELS, t.COMM_OPS):
        assert (trace[table].ints("host_op") != NULL).all()
        assert (trace[table].ints("launch_end_ns") != NULL).all()
    assert trace[t.KERNELS].has("aic_mac_ratio") == ("level0" not in name)
    assert trace.meta.rank == int(name[-1])
    assert trace.meta.device.name == "Ascend910B"
    assert [check.name for check in trace.meta.checks if not check.holds] == []


def test_alexnet_db_hides_addresses_in_group_names(traces: Path) -> None:
    trace = read(traces / "ascend-pytorch" / "db" / "level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT")

    assert trace[t.COMM_OPS].text("group").compact().values == ["17148521525495523210"]  # the hash ends as the names do
    assert trace[t.COMM_OPS].text("name")[0] == "hcom_allReduce__210_0_1"
    assert trace[t.COMM_OPS].has("idle_ns")  # analysis.db was joined


QWEN = {
    # rank: Computing, Communication, Free, Stage db, Preparing db, p2p ops, sum elapse ms, collectives, sum ms
    0: (231290.10, 420174.26, 158558.00, 810022.36, 206.09, 3, 313.87780, 12, 106.29646),
    1: (230903.72, 441708.38, 136819.56, 809431.66, 205.16, 3, 322.98056, 12, 118.72782),
    2: (400448.26, 277649.66, 131705.28, 809803.20, 189.13, 3, 72.66366, 20, 204.98600),
    3: (401131.70, 261498.44, 147520.20, 810150.34, 278.68, 3, 74.98674, 20, 186.51170),
}
QWEN_HCCS = {
    0: ((16.777216, 0.80238), (1749.777184, 92.17104)),
    1: ((16.777216, 0.80250), (1749.777208, 92.13192)),
    2: ((16.777216, 0.80264), (1749.780304, 92.22106)),
    3: ((16.777216, 0.80272), (1749.780336, 92.17918)),
}


def qwen(traces: Path, rank: int) -> Trace:
    place = traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2" / f"rank_{rank}_ascend_pt"
    return read(place / "ASCEND_PROFILER_OUTPUT")


@pytest.mark.parametrize("rank", QWEN)
def test_qwen_steps_and_communication(traces: Path, rank: int) -> None:
    computing, communication, free, stage, preparing, p2p, p2p_ms, collectives, collective_ms = QWEN[rank]
    trace = qwen(traces, rank)

    exported = trace[t.EXPORTED_STEPS]
    values = {
        "computing_ns": computing, "communication_ns": communication, "communication_not_overlapped_ns": communication,
        "overlapped_ns": 0.0, "free_ns": free, "stage_ns": stage, "preparing_ns": preparing, "bubble_ns": 0.0,
    }  # fmt: skip
    assert {key: exported.ints(key).tolist() for key in values} == {k: [round(v * 1e3)] for k, v in values.items()}
    calls = trace[t.COMM_OPS]
    is_p2p = calls.text("op").equals("batchSendRecv")
    assert (int(is_p2p.sum()), int((~is_p2p).sum())) == (p2p, collectives)
    assert us(trace, t.COMM_OPS, is_p2p) == round(p2p_ms * 1e3, 3)
    assert us(trace, t.COMM_OPS, ~is_p2p) == round(collective_ms * 1e3, 3)
    transfers = trace[t.COMM_TRANSFERS]
    p2p_rows = transfers.text("op").equals("batchSendRecv")
    for rows, (size_mb, time_ms) in ((p2p_rows, QWEN_HCCS[rank][0]), (~p2p_rows, QWEN_HCCS[rank][1])):
        assert int(transfers.ints("size_bytes")[rows].sum()) == round(size_mb * 1e6)
        assert int(transfers.ints("time_ns")[rows].sum()) == round(time_ms * 1e6)
    assert (trace.meta.rank, trace.meta.world_size) == (rank, 4)
    assert dict(trace.meta.parallel)["pipeline_model_parallel"] == 2
    assert dict(trace.meta.versions) == {"torch_npu": "2.7.1", "cann": "8.3.RC1"}
    assert trace.meta.settings.generation == "G3"
    assert [check.name for check in trace.meta.checks if not check.holds] == []


def test_qwen_groups_are_named_by_the_hash_rule(traces: Path) -> None:
    trace = qwen(traces, 2)

    calls = trace[t.COMM_OPS]
    assert calls.text("group_label").codes.min() >= 0  # every call's group is in the metadata
    by_group = {
        (calls.text("group")[row], calls.text("group_label")[row], int(calls.ints("group_size")[row]))
        for row in range(len(calls))
    }
    assert ("group_name_19", "pp", 2) in by_group and ("group_name_0", "default_group", 4) in by_group
    (pipeline,) = [group for group in trace.meta.groups if group.name == "group_name_19"]
    assert (pipeline.ranks, pipeline.hash_id) == ((0, 2), "3985310405473756128")


QWEN_KERNELS = {
    0: (
        2448,
        {"AIC": (336, 58022.86), "AIV": (1857, 68795.30), "MIX_AIC": (56, 87847.32), "MIX_AIV": (199, 16624.62)},
        {
            "FlashAttentionScoreGrad": (28, 63128.66), "MatMulV3": (280, 48000.78),
            "FlashAttentionScore": (28, 24718.66),
        },
        (35, 2448, 231290.10), (10372.0, 10282.749, 11925.016, 1241.699), (3103, 1), 18659, 91,
    ),
    2: (
        2564,
        {"AIC": (340, 84415.56), "AIV": (1961, 168357.62), "MIX_AIC": (58, 124287.36), "MIX_AIV": (205, 23387.72)},
        {"MatMulV3": (284, 99557.38), "FlashAttentionScoreGrad": (28, 62998.88), "Cast": (302, 26745.14)},
        (46, 2564, 400448.26), (10868.0, 10818.063, 12675.371, 1488.961), (3226, 5), 19396, 109,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rank", QWEN_KERNELS)
def test_qwen_kernels_and_memory(traces: Path, rank: int) -> None:
    count, cores, types, statistic, peaks, blocks, records, apis = QWEN_KERNELS[rank]
    trace = qwen(traces, rank)

    assert len(trace[t.KERNELS]) == count
    assert by_value(trace, "core") == cores
    found = by_value(trace, "op_type")
    assert {op: found[op] for op in types} == types
    ops = trace[t.EXPORTED_OPS]
    assert (len(ops), int(ops.ints("count").sum()), us(trace, t.EXPORTED_OPS, column="total_ns")) == statistic
    memory, component = trace[t.MEMORY], trace[t.MEMORY].text("component")
    pta, app = component.equals("PTA"), component.equals("APP")
    modules = trace[t.MODULE_MEMORY]
    hccl = modules.ints("reserved_bytes")[modules.text("component").equals("HCCL")].max()
    seen = (
        memory.ints("reserved_bytes")[pta].max(), memory.ints("allocated_bytes")[pta].max(),
        memory.ints("reserved_bytes")[app].max(), hccl,
    )  # fmt: skip
    assert [round(value / 2**20, 3) for value in seen] == list(peaks)
    table = trace[t.MEMORY_BLOCKS]
    assert (len(table), int((table.ints("free_ns") == NULL).sum())) == blocks
    assert (len(memory), len(modules), len(trace[t.EXPORTED_APIS])) == (records, 3465, apis)
    assert trace[t.STEPS].ints("dur_ns").tolist() == trace[t.EXPORTED_STEPS].ints("stage_ns").tolist()
    device = trace.meta.device
    assert (device.cube_cores, device.vector_cores, device.frequency_hz) == (20, 40, 1_650_000_000)
    assert device.device_id == {0: 0, 2: 4}[rank]


def test_arithmetic_utilization_of_2023(traces: Path) -> None:
    trace = read_file(traces / "kernel-details" / "kernel_details_2023_arithmetic_gpt.csv")

    assert by_value(trace, "core") == {
        "AIV": (520, 33091.80), "AIC": (13, 14252.72), "DSA": (7, 2176.58), "AICPU": (7, 785.18),
        "MIX_AIV": (25, 102.02),
    }  # fmt: skip
    assert (len(trace[t.COMM_OPS]), us(trace, t.COMM_OPS)) == (19, 346398.74)
    types = by_value(trace, "op_type")
    assert (types["MatMul"], types["ApplyAdamW"]) == ((9, 14070.56), (28, 12939.38))
    assert round(us(trace, t.KERNELS) + us(trace, t.COMM_OPS), 2) == 396807.04
    kernels = trace[t.KERNELS]
    first = int(np.flatnonzero(kernels.text("op_type").equals("MatMul"))[0])
    assert kernels.text("input_shapes")[first] == "4096,12288;4608,12288"
    assert kernels.text("input_formats")[first] == "ND;ND"
    assert int(kernels.ints("dur_ns")[first]) == 1_478_180
    work = kernels.floats("aic_cube_fops")[first]
    cycles = kernels.ints("aic_total_cycles")[first] * kernels.floats("aic_mac_fp16_ratio")[first]
    assert work / cycles == pytest.approx(8192, rel=1e-3)
    assert trace.meta.settings.generation == "G1"
    assert trace.meta.device.frequency_hz == 1_850_000_000


def test_pipe_utilization_of_2025(traces: Path) -> None:
    trace = read_file(traces / "kernel-details" / "kernel_details_2025_pipe_llm_29rows.csv")

    assert (len(trace[t.KERNELS]), us(trace, t.KERNELS)) == (29, 10061.159)
    assert (trace.meta.device.cube_cores, trace.meta.device.frequency_hz) == (20, 1_800_000_000)
    assert "81920,4096;8192,512" in trace[t.KERNELS].text("input_shapes").values


def test_level0_of_2023(traces: Path) -> None:
    trace = read_file(traces / "kernel-details" / "kernel_details_2023_level0_4rows.csv")

    kernels = trace[t.KERNELS]
    assert len(kernels) == 8
    assert not kernels.has("op_type") and not kernels.has("core")
    assert int(kernels.ints("start_ns")[0]) == 1_702_866_902_796_675_000
    assert int(kernels.ints("dur_ns")[0]) == 932_050  # 932.0498 us
    assert trace[t.STEPS].ints("step_id").tolist() == [NULL]


def test_op_summary_of_2023(traces: Path) -> None:
    trace = read_file(traces / "msprof-cli" / "op_summary_1.csv")

    expected = {
        "AIC": (4, 506.3683), "AICPU": (2, 145.0223), "AIV": (2, 2.6393), "DSA": (2, 5344.2105),
        "MIX_AIC": (4, 21114.6921), "MIX_AIV": (3, 19.495),
    }  # fmt: skip
    found = by_value(trace, "core")
    assert {core: count for core, (count, _) in found.items()} == {core: count for core, (count, _) in expected.items()}
    for core, (count, total) in expected.items():
        assert found[core][1] == pytest.approx(total, abs=0.0005 * count + 1e-9)  # 4 decimals do not fit into ns
    assert (len(trace[t.COMM_OPS]), us(trace, t.COMM_OPS)) == (4, 10238.538)
    assert trace[t.KERNELS].has("aic_l0a_read_bw_bytes_per_s")


def test_several_kernel_files_in_one_folder_are_units_of_their_own(traces: Path) -> None:
    units = ascend_pt.find(folder_of(traces / "kernel-details"))

    assert [len(unit.files) for unit in units] == [1, 1, 1]


def test_timeline_alone(traces: Path) -> None:
    trace = read(traces / "timeline")

    kernels, overlap = trace[t.KERNELS], trace[t.OVERLAP]
    copies = trace[t.COPIES]
    # 276 slices on Ascend Hardware: 274 kernels and 2 copies; two AI CPU kernels.
    assert (len(kernels), len(copies)) == (274, 2)
    assert round((us(trace, t.KERNELS) + us(trace, t.COPIES)), 3) == pytest.approx(1790.441, abs=0.14)
    aicpu = kernels.text("core").equals("AICPU")
    assert sorted((kernels.ints("dur_ns")[aicpu] / 1e3).round(3).tolist()) == [139.419, 188.148]
    kind = overlap.text("kind")
    assert (int(kind.equals("Computing").sum()), int(kind.equals("Free").sum())) == (274, 273)
    assert us(trace, t.OVERLAP, kind.equals("Computing")) == pytest.approx(1788.2505, abs=0.14)  # 274 values to ns
    assert us(trace, t.OVERLAP, kind.equals("Free")) == pytest.approx(9481.667, abs=0.14)
    assert (len(trace[t.RUNTIME_CALLS]), len(trace[t.HOST_OPS])) == (382, 710)
    steps = trace[t.STEPS]
    assert (steps.ints("step_id").tolist(), steps.ints("host_dur_ns").tolist()) == ([1], [14_091_970])
    assert (kernels.ints("host_op") != NULL).sum() >= 272  # the two AI CPU kernels have no flow


def test_msprof_database(traces: Path) -> None:
    trace = read_file(traces / "msprof-cli" / "msprof_0.db")

    assert (len(trace[t.KERNELS]), int(trace[t.KERNELS].ints("dur_ns").sum())) == (11, 663872)
    assert len(trace[t.RUNTIME_CALLS]) == 4
    assert len(trace[t.OVERLAP]) == 22
    assert int(trace[t.HOST_EVENTS].text("kind").equals("user").sum()) == 13
    assert trace.meta.rank is None


def test_step_times_of_several_devices(traces: Path) -> None:
    exported = read_file(traces / "msprof-cli" / "multi-device" / "analysis.dat")[t.EXPORTED_STEPS]

    assert exported.ints("device").tolist() == [0, 1, 2, 3]
    assert exported.ints("step_id").tolist() == [NULL] * 4
    assert (exported.ints("computing_ns") / 1e3).tolist() == [75.72, 72.70, 73.36, 76.52]
    assert (exported.ints("free_ns") / 1e3).tolist() == [271016.82, 255711.60, 218716.66, 296825.18]
