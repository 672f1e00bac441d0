"""Result tables of the sample payload. Figures come from formulas of the row number, so tests know what to expect."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.units import Unit

START_NS = 1_736_413_971_558_972_912
"""Start of the step; beyond 2^53, as real time stamps are."""
STEP_NS = 136_581_009
HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"
"""What a trace could put into a name."""


def table(
    name: str, en: str, zh: str, columns: Sequence[tuple[str, str, str, Unit]], rows: Sequence[Sequence[Cell]]
) -> ResultTable:
    """A result table from rows; columns are (name, English, Chinese, unit)."""
    return ResultTable(
        name=name,
        title=Words(en, zh),
        columns=tuple(ResultColumn(name=n, title=Words(e, z), unit=u) for n, e, z, u in columns),
        data=tuple(tuple(row[i] for row in rows) for i in range(len(columns))),
    )


def steps_table(rank: int) -> ResultTable:
    """One step; figures of rank 1 are a little smaller."""
    less = rank * 4.669
    columns: list[tuple[str, str, str, Unit]] = [("step_id", "Step", "Step", "none")]
    titles = {
        "span_us": ("Step time", "单步耗时"),
        "computing_us": ("Computing", "计算"),
        "communication_us": ("Communication", "通信"),
        "overlapped_us": ("Overlapped", "计算通信掩盖"),
        "communication_not_overlapped_us": ("Not overlapped", "未被掩盖的通信"),
        "free_us": ("Free", "空闲（Free）"),
        "bubble_us": ("Bubble", "流水线气泡（Bubble）"),
        "preparing_us": ("Preparing", "迭代准备时间"),
        "copy_not_overlapped_us": ("Copies not overlapped", "未被掩盖的拷贝"),
        "wait_us": ("Waiting", "等待"),
    }
    columns += [(name, en, zh, "us") for name, (en, zh) in titles.items()]
    columns.append(("source", "Source", "来源", "none"))
    row: list[Cell] = [
        50,
        136581.009 - less,
        8873.756,
        105991.876,
        4028.675,
        101963.203,
        25744.05 - less,
        0.0,
        17902.502,
        None,
        98_063.2,
        "events",
    ]
    return table("steps", "Steps", "各 step", columns, [row])


BAR = (
    ("cube", 2_805_855),
    ("vector", 5_823_400),
    ("aicpu", 105_300),
    ("other compute", 139_201),
    ("comm-transfer", 3_680_000),
    ("comm-wait", 98_283_203),
    ("copy", 1_200_000),
    ("preparing", 17_902_502),
    ("data loader", 3_900_000),
    ("dispatch", 2_741_548),
)
"""Parts of the step bar of rank 0; they add up to the step."""


def bar(rank: int) -> ResultTable:
    """The parts of the step."""
    rows: list[list[Cell]] = [[n, t - (4_669 if rank and n == "dispatch" else 0), t / STEP_NS] for n, t in BAR]
    return table(
        "step-bar",
        "Where the step goes",
        "单步耗时去向",
        [
            ("component", "Component", "组成", "none"),
            ("time_ns", "Time", "耗时", "ns"),
            ("share_ratio", "Share", "占比", "ratio"),
        ],
        rows,
    )


def timeline(rank: int, events: int = 3000) -> ResultTable:
    """Host, two streams, communication and copies."""
    rows: list[list[Cell]] = []
    for i in range(events // 3):
        at = START_NS + 18_000_000 + int(i * 118_000_000 / (events // 3))
        rows.append(["Thread 4211 (main)", "host op", f"aten::op_{i % 17}", at - 17_000_000, 60_000 + i % 7 * 9000])
        rows.append(["Stream 2", "kernel", f"MatMulV2_{i % 11}" if i % 3 else "Cast_12", at, 12_000 + i % 13 * 4000])
        rows.append(["Stream 11", "kernel", f"Add_{i % 5}", at + 3000, 9000 + i % 5 * 2000])
    for i in range(4):
        at = START_NS + 20_000_000 + i * 28_000_000
        rows.append(["Communication group dp", "wait", f"wait for rank 5 (allReduce {i})", at, 24_500_000])
        rows.append(["Communication group dp", "communication", f"hcom_allReduce__586_{i}_1", at + 24_500_000, 920_000])
    rows.append(["Copies", "copy", "H2D 38.5 MB", START_NS + 3_000_000, 1_200_000])
    rows.append(["Stream 2", "kernel", HOSTILE, START_NS + 135_000_000, 900_000])
    columns: list[tuple[str, str, str, Unit]] = [
        ("lane", "Lane", "泳道", "none"),
        ("kind", "Kind", "类型", "none"),
        ("name", "Name", "名称", "none"),
        ("start_ns", "Start", "开始", "ns"),
        ("dur_ns", "Duration", "时长", "ns"),
    ]
    return table("timeline", "Timeline of step 50", "Step 50 的时间线", columns, rows)


def operators() -> tuple[ResultTable, ...]:
    """Kernels, operator types, core types."""
    kernels: list[list[Cell]] = [
        [
            HOSTILE if i == 0 else f"aclnnMatmul_MatMulV2_MatMulCommon_{i}",
            "MatMulV2" if i % 2 else "TransData",
            "AI_CORE",
            8 - i % 5,
            921_498 // (i + 1),
            0.104 / (i + 1),
            min(1.0, 0.2 + 0.02 * i),
            None if i % 4 == 3 else 0.02 * (i % 40),
            "32,256,6,6;9216,4096" if i % 2 else "32,3,224,224",
        ]
        for i in range(60)
    ]
    types: list[list[Cell]] = [
        ["ForeachAddList", 3, 1_959_079, 0.2208],
        ["TransData", 57, 1_423_202, 0.1604],
        ["MatMulV2", 8, 921_498, 0.1038],
        ["Conv2D", 5, 723_434, 0.0815],
        ["Cast", 31, 204_002, 0.023],
    ]
    cores: list[list[Cell]] = [["AI_CORE", 23, 2_805_855], ["AI_VECTOR_CORE", 149, 5_823_400], ["MIX_AIV", 13, 238_962]]
    return (
        table(
            "top-kernels",
            "Top kernels",
            "耗时最长的 Kernel",
            [
                ("name", "Kernel", "Kernel", "none"),
                ("op_type", "Type", "类型", "none"),
                ("core", "Core", "核类型", "none"),
                ("count", "Count", "次数", "count"),
                ("time_ns", "Time", "耗时", "ns"),
                ("share_ratio", "Share", "占比", "ratio"),
                ("cumulative_ratio", "Cumulative", "累计", "ratio"),
                ("mac_ratio", "MAC", "MAC 占比", "ratio"),
                ("shapes", "Shapes", "Shape", "none"),
            ],
            kernels,
        ),
        table(
            "op-types",
            "Operator types",
            "算子类型",
            [
                ("op_type", "Type", "类型", "none"),
                ("count", "Count", "次数", "count"),
                ("time_ns", "Time", "耗时", "ns"),
                ("share_ratio", "Share", "占比", "ratio"),
            ],
            types,
        ),
        table(
            "core-types",
            "Core types",
            "核类型",
            [
                ("core", "Core", "核类型", "none"),
                ("count", "Count", "次数", "count"),
                ("time_ns", "Time", "耗时", "ns"),
            ],
            cores,
        ),
    )


def mac() -> tuple[ResultTable, ...]:
    """Roofline with its roofs, and ratios."""
    marks: list[list[Cell]] = []
    for i in range(80):
        intensity = 10 ** (-0.6 + i * 0.04)
        roof = min(88.5e12, intensity * 1.6e12)
        vector = i < 30
        marks.append(
            [
                f"kernel_{i}",
                "Add" if vector else "MatMulV2",
                intensity,
                roof * (0.25 + 0.6 * abs(math.sin(i))),
                30_000 + (i * 7919) % 900_000,
                "vector fp32" if vector else "cube fp32",
            ]
        )
    return (
        table(
            "roofline",
            "Roofline",
            "Roofline（屋顶线）",
            [
                ("name", "Kernel", "Kernel", "none"),
                ("op_type", "Type", "类型", "none"),
                ("intensity_flops_per_byte", "Intensity (FLOP/B)", "计算访存比（FLOP/B）", "none"),
                ("achieved_flops_per_s", "Achieved", "实际算力", "flops_per_s"),
                ("time_ns", "Time", "耗时", "ns"),
                ("roof", "Roof", "屋顶", "none"),
            ],
            marks,
        ),
        table(
            "roofs",
            "Roofs",
            "屋顶",
            [("name", "Name", "名称", "none"), ("kind", "Kind", "类型", "none"), ("value", "Value", "值", "none")],
            [["cube fp32", "compute", 88.5e12], ["vector fp32", "compute", 11.1e12], ["HBM", "bandwidth", 1.6e12]],
        ),
        table(
            "mac",
            "MAC utilisation",
            "MAC 利用率",
            [("name", "Figure", "指标", "none"), ("value_ratio", "Value", "值", "ratio")],
            [["MAC ratio, weighted by time", 0.412], ["cube utilisation", 0.873]],
        ),
    )


def communication() -> tuple[ResultTable, ...]:
    """Waits, links, ops."""
    waits: list[list[Cell]] = [[0, 5, 94_600_000, 4], [0, 3, 2_200_000, 2], [0, 1, 400_000, 1], [1, 5, 90_100_000, 4]]
    links: list[list[Cell]] = [
        [src, dst, "HCCS", (15.6 if 5 not in (src, dst) else 6.2) * 1e9 + src * 1e8]
        for src in range(8)
        for dst in range(8)
        if src != dst
    ]
    ops: list[list[Cell]] = [["allReduce", "dp", 4, 105_991_876, 98_283_203, 3_680_000, 427_596_096, 15.6539e9]]
    return (
        table(
            "comm-waits",
            "Who waits for whom",
            "等待关系",
            [
                ("waiter", "Waiting", "等待方", "none"),
                ("peer", "Waited for", "被等待方", "none"),
                ("wait_ns", "Wait", "等待", "ns"),
                ("count", "Calls", "次数", "count"),
            ],
            waits,
        ),
        table(
            "comm-links",
            "Links",
            "链路",
            [
                ("src", "From", "源", "none"),
                ("dst", "To", "目的", "none"),
                ("transport", "Transport", "链路类型", "none"),
                ("bandwidth", "Bandwidth", "带宽", "bytes_per_s"),
            ],
            links,
        ),
        table(
            "comm-ops",
            "Communication by op",
            "按算子统计的通信",
            [
                ("op", "Op", "算子", "none"),
                ("group", "Group", "通信域", "none"),
                ("count", "Count", "次数", "count"),
                ("time_ns", "Time", "耗时", "ns"),
                ("wait_ns", "Wait", "等待", "ns"),
                ("transit_ns", "Transit", "传输", "ns"),
                ("size_bytes", "Size", "数据量", "bytes"),
                ("bandwidth", "Bandwidth", "带宽", "bytes_per_s"),
            ],
            ops,
        ),
    )


def memory() -> tuple[ResultTable, ...]:
    """Allocator over time, and peaks."""
    rows: list[list[Cell]] = []
    for i in range(400):
        at = START_NS + i * STEP_NS // 400
        held = (300 << 20) + int((880 << 20) * math.sin(math.pi * i / 400))
        rows.append(["PTA", at, held, 1452 << 20 if i > 60 else 900 << 20])
        if i % 4 == 0:
            rows.append(["GE", at, 96 << 20, 128 << 20])
    return (
        table(
            "memory-timeline",
            "Memory over time",
            "内存变化",
            [
                ("component", "Component", "组件", "none"),
                ("time_ns", "Time", "时间", "ns"),
                ("allocated_bytes", "Allocated", "已分配", "bytes"),
                ("reserved_bytes", "Reserved", "已预留", "bytes"),
            ],
            rows,
        ),
        table(
            "memory-peaks",
            "Peaks",
            "峰值",
            [
                ("component", "Component", "组件", "none"),
                ("time_ns", "When", "时间", "ns"),
                ("reserved_bytes", "Reserved", "已预留", "bytes"),
            ],
            [["PTA", START_NS + 40_000_000, 1452 << 20], ["APP", START_NS, 9 << 30]],
        ),
    )


def ranks_table(count: int = 8) -> ResultTable:
    """Components per rank; rank 5 computes longer than the others."""
    rows: list[list[Cell]] = [
        [
            rank,
            136.6e6 - rank * 1e5,
            8.9e6 + rank * 2e4 + (4.1e6 if rank == 5 else 0),
            101.9e6 - 3e5 * (rank % 3) - (90e6 if rank == 5 else 0),
            25.7e6 + rank * 1e5,
        ]
        for rank in range(count)
    ]
    return table(
        "ranks",
        "Ranks",
        "各卡对比",
        [
            ("rank", "Rank", "Rank", "none"),
            ("span_ns", "Step", "单步", "ns"),
            ("computing_ns", "Computing", "计算", "ns"),
            ("exposed_ns", "Not overlapped", "未掩盖通信", "ns"),
            ("free_ns", "Free", "空闲", "ns"),
        ],
        rows,
    )
