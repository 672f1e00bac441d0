"""A payload with everything a report can show: two ranks of eight, every known result table, hostile names.

Figures are made by formulas from the row number, so that tests know what to expect.
"""

from __future__ import annotations

import math

import numpy as np

from ascend_perf.model.finding import (
    Cell,
    Evidence,
    Finding,
    Judged,
    Metric,
    Outcome,
    Remedy,
    ResultTable,
    Severity,
    Words,
)
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.table import Table, Text
from ascend_perf.model.tables import COMM_OPS, KERNELS, MEMORY, STEPS
from ascend_perf.model.trace import Check, Device, Dropped, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.reports.payload import Payload, build
from ascend_perf.reports.texts import Lang
from tests.reports import _sample_tables as tables
from tests.reports._sample_tables import HOSTILE, START_NS, STEP_NS


def trace(rank: int) -> Trace:
    """The tables that the payload itself reads."""
    kernels = Table(
        KERNELS,
        {
            "start_ns": np.array([START_NS + 1000, START_NS + 9000], np.int64),
            "dur_ns": np.array([8_873_000, 737], np.int64),
            "name": Text.of(["a", "b"]),
        },
    )
    comm = Table(
        COMM_OPS,
        {
            "start_ns": np.array([START_NS + 5000], np.int64),
            "dur_ns": np.array([105_991_876], np.int64),
            "name": Text.of(["hcom_allReduce__586_0_1"]),
        },
    )
    steps = Table(
        STEPS,
        {
            "step_id": np.array([50], np.int64),
            "start_ns": np.array([START_NS], np.int64),
            "dur_ns": np.array([STEP_NS], np.int64),
        },
    )
    memory = Table(
        MEMORY,
        {
            "time_ns": np.array([START_NS, START_NS + 10], np.int64),
            "component": Text.of(["PTA", "APP"]),
            "reserved_bytes": np.array([1452 << 20, 9 << 30], np.int64),
        },
    )
    meta = Meta(
        label=f"rank{rank}",
        rank=rank,
        world_size=8,
        device=Device(vendor="Huawei", name="Ascend 910B", kind="npu", memory_bytes=32 << 30),
        versions={"torch_npu": "2.1.0", "CANN": "8.0.RC3"},
        environment={"TASK_QUEUE_ENABLE": "1"},
        settings=ProfilerSettings(producer="torch_npu", level="Level1", aic_metrics="PipeUtilization", with_stack=True),
        sources=(
            Source(path=f"rank{rank}/kernel_details.csv", format="csv", rows=191, size_bytes=48_211),
            Source(
                path=f"rank{rank}/trace_view.json",
                format="json",
                rows=10_112,
                size_bytes=5_430_122,
                dropped=(Dropped(reason="negative duration", count=3), Dropped(reason=HOSTILE, count=1)),
            ),
        ),
        missing=(Missing(what="L2 cache hit rates", remedy="aic_metrics=AiCMetrics.L2Cache"),),
        checks=(
            Check(name="computing", ours=8873.756, theirs=8873.756, unit="us", tolerance=0.01, where="step 50"),
            Check(name="free", ours=25744.05, theirs=25644.05, unit="us", tolerance=0.5, where="step 50"),
        ),
        warnings=("12 of 400 kernels have no shapes; FLOPs are a lower bound",) if rank else (),
    )
    return Trace({"kernels": kernels, "comm_ops": comm, "steps": steps, "memory": memory}, meta)


def findings() -> tuple[Finding, ...]:
    """Seven findings, so that some are folded; the first names a rank whose files are not there."""
    first = Finding(
        code="N-05",
        analyzer="communication",
        subject="rank 5",
        ranks=(5,),
        affected_ranks=(0, 1),
        severity=Severity.CRITICAL,
        share_ratio=0.72,
        title=Words(
            "98.1 ms of the step is waiting for rank 5, which arrives late at 2 of 4 all-reduces",
            "单步中有 98.1 ms 在等待 Rank 5：它在 4 次 AllReduce 中有 2 次迟到",
        ),
        cause=Words(
            "Rank 5 reaches the collectives late: a slower host, uneven data, a lower frequency or a faulty card. "
            "If the wait follows the card after a swap, it is the card; if not, it is the rank's data or host.",
            "Rank 5 到达集合通信较晚：可能是 Host 较慢、数据不均、降频或硬件故障。"
            "换卡后若等待跟随卡移动，则为卡的问题；若仍在该 Rank，则为数据或 Host 的问题。",
        ),
        confirm=Words(
            "Profile rank 5 and compare its computing time and its host with those of rank 0.",
            "采集 Rank 5 的性能数据，与 Rank 0 比较计算时间与 Host。",
        ),
        evidence=(
            Evidence(
                name=Words("waiting for rank 5 (union per peer)", "等待 Rank 5（按对端取并集）"),
                value=94_600_000,
                unit="ns",
                where="trace_view.json, Notify_Wait of hcom_allReduce__586_0_1, plane 0",
                start_ns=START_NS + 20_000_000,
            ),
            Evidence(
                name=Words("waiting for rank 5, second call", "等待 Rank 5，第二次"),
                value=3_500_000,
                unit="ns",
                where="trace_view.json, Notify_Wait of hcom_allReduce__586_1_1",
                start_ns=START_NS + 48_000_000,
            ),
            Evidence(
                name=Words("true transit", "真实传输时间"),
                value=3_680_000,
                unit="ns",
                where="communication.json, Transit Time",
            ),
            Evidence(
                name=Words("data moved", "数据量"), value=427_596_096, unit="bytes", where="communication.json, HCCS"
            ),
        ),
        remedies=(
            Remedy(
                text=Words(
                    "Profile rank 5 alone and look at its data loader and host first.",
                    "单独采集 Rank 5，先看数据加载与 Host。",
                ),
                code="ascend-perf run llm-pretrain --set profile.ranks=5",
            ),
            Remedy(
                text=Words("Bind the launching threads to cores near the device.", "将下发线程绑定到靠近设备的核。"),
                code="export CPU_AFFINITY_CONF=1",
            ),
        ),
        formula="wait / step; bound = 1 / (1 - share)",
        source="troubleshooting table N-05; msprof-analyze slow_rank",
        bands=((START_NS + 20_000_000, START_NS + 44_500_000), (START_NS + 48_000_000, START_NS + 72_500_000)),
        step_ids=(50,),
    )
    others = [
        (
            "H-01",
            "host-dispatch",
            Severity.HIGH,
            0.188,
            "The device is idle for 25.7 ms (19 % of the step)",
            "设备空闲 25.7 ms（占单步 19 %）",
        ),
        (
            "C-09",
            "operators",
            Severity.LOW,
            0.0104,
            "TransData takes 1.42 ms, 16 % of the kernel time",
            "TransData 耗时 1.42 ms，占 Kernel 时间 16 %",
        ),
        (
            "C-11",
            "mac-utilisation",
            Severity.LOW,
            0.0067,
            "8 matmuls run in fp32 (921 us)",
            "8 个 MatMul 以 fp32 运行（921 us）",
        ),
        (
            "H-06",
            "host-dispatch",
            Severity.LOW,
            0.008,
            f"Just-in-time compilation of {HOSTILE} costs 1.1 ms",
            f"在线编译 {HOSTILE} 耗时 1.1 ms",
        ),
        ("M-01", "dma", Severity.LOW, 0.02, "ForeachAddList is bound by memory traffic", "ForeachAddList 受访存限制"),
        (
            "K-01",
            "memory",
            Severity.MEDIUM,
            None,
            "22 % of the reserved memory is unused at the peak",
            "峰值时 22 % 的已预留内存未使用",
        ),
    ]
    rest = [
        Finding(
            code=code,
            analyzer=analyzer,
            severity=severity,
            share_ratio=share,
            title=Words(en, zh),
            ranks=(0, 1),
            affected_ranks=(0, 1),
            cause=Words("Because of the shapes and formats of this model.", "由该模型的 Shape 与格式引起。"),
            evidence=(
                Evidence(
                    name=Words("time", "耗时"),
                    value=share and share * STEP_NS,
                    unit="ns",
                    where=f"kernel_details.csv, {HOSTILE}",
                ),
            ),
            remedies=(
                Remedy(
                    text=Words("Set the option.", "设置该选项。"),
                    code="torch_npu.npu.config.allow_internal_format = False",
                ),
            ),
            source="troubleshooting table",
        )
        for code, analyzer, severity, share, en, zh in others
    ]
    return (first, *rest)


def outcomes(rank: int) -> tuple[Outcome, ...]:
    """All analyzers of one rank: most done, one without data, one failed."""
    clean = Judged(code="C-02", verdict="clean")
    unjudged = Judged(
        code="M-03",
        verdict="not_judged",
        reason=Words(
            "L2 hit rates were not collected: use aic_metrics=AiCMetrics.L2Cache",
            "未采集 L2 命中率：使用 aic_metrics=AiCMetrics.L2Cache",
        ),
    )
    gaps: list[list[Cell]] = [
        [START_NS + i * 1_000_000, 400_000 - i * 9000, ["dispatch", "data loader", "sync call"][i % 3], f"aten::op_{i}"]
        for i in range(20)
    ]
    idle = tables.table(
        "idle-gaps",
        "Longest gaps",
        "最长的空闲",
        [
            ("start_ns", "Start", "开始", "ns"),
            ("dur_ns", "Duration", "时长", "ns"),
            ("cause", "Cause", "原因", "none"),
            ("host", "Host", "Host 事件", "none"),
        ],
        gaps,
    )
    copies = tables.table(
        "copies",
        "Copies",
        "拷贝",
        [
            ("kind", "Direction", "方向", "none"),
            ("count", "Count", "次数", "count"),
            ("size_bytes", "Size", "数据量", "bytes"),
            ("time_ns", "Time", "耗时", "ns"),
        ],
        [["H2D", 12, 38_535_168, 1_200_000], ["D2H", 3, 24, 31_000]],
    )
    found = findings()
    mine = {name: tuple(f for f in found if f.analyzer == name) for name in {f.analyzer for f in found}}

    def done(
        name: str, *made: ResultTable, judged: tuple[Judged, ...] = (), metrics: tuple[Metric, ...] = ()
    ) -> Outcome:
        return Outcome(
            analyzer=name,
            status="done",
            rank=rank,
            trace_index=rank,
            findings=mine.get(name, ()),
            tables=made,
            judged=judged,
            metrics=metrics,
        )

    return (
        done(
            "step-breakdown",
            tables.steps_table(rank),
            tables.bar(rank),
            tables.timeline(rank),
            metrics=(Metric(name="step_time", value=1.0, unit="ns", better="lower", rank=rank),),
        ),
        done("operators", *tables.operators(), judged=(clean,)),
        done(
            "mac-utilisation",
            *tables.mac(),
            judged=(unjudged,),
            metrics=(
                Metric(name="mac_ratio", value=0.412, unit="ratio", better="higher", rank=rank),
                Metric(name="odd", value=math.nan, unit="none", better="none", rank=rank),
            ),
        ),
        done("dma", copies),
        done("communication", *tables.communication()),
        done("host-dispatch", idle),
        done("memory", *tables.memory()),
        Outcome(
            analyzer="aipp",
            status="no_data",
            rank=rank,
            reason=Words("not in this data: no preprocessing was seen", "数据中没有：没有看到预处理"),
        ),
        Outcome(
            analyzer="plugin-thing",
            status="failed",
            rank=rank,
            reason=Words("ValueError: boom (thing.py:7)", "ValueError: boom (thing.py:7)"),
        ),
    )


def job_outcomes() -> tuple[Outcome, ...]:
    """Outcomes of the job."""
    return (Outcome(analyzer="ranks", status="done", scope="job", tables=(tables.ranks_table(),)),)


def run() -> Run:
    """Two ranks of a job of eight."""
    return Run(
        traces=(trace(0), trace(1)),
        label="alexnet-level1",
        manifest=Manifest(
            workload="alexnet",
            device="npu",
            data_origin="measured",
            created="2025-01-09T09:12:51Z",
            metrics=(Metric(name="throughput", value=234.3, unit="items_per_s", better="higher"),),
            versions={"torch": "2.1.0"},
        ),
        skipped=(Source(path="rank2", format="torch_npu text", problem="truncated JSON at byte 1024"),),
    )


def payload(lang: Lang = "en") -> Payload:
    """Everything at once."""
    return build(
        run(),
        (*outcomes(0), *outcomes(1), *job_outcomes()),
        findings(),
        lang=lang,
        broken={"half_done": "ImportError: no module named x"},
        rules={
            "C-02": Words("Cube kernels limited by loading", "Cube Kernel 受搬入限制"),
            "M-03": Words("Low L2 hit rate", "L2 命中率低"),
        },
    )


def one_rank(lang: Lang = "en") -> Payload:
    """A job of one rank with every table of a rank."""
    return build(Run(traces=(trace(0),), label="one"), outcomes(0), findings(), lang=lang)


def many_ranks(count: int = 64, lang: Lang = "en") -> Payload:
    """A big job: every rank with all tables, to see that the page stays small."""
    traces = tuple(trace(rank) for rank in range(count))
    all_outcomes = [outcome for rank in range(count) for outcome in outcomes(rank)]
    job = Outcome(analyzer="ranks", status="done", scope="job", tables=(tables.ranks_table(count),))
    return build(Run(traces=traces, label="big"), [*all_outcomes, job], findings(), lang=lang)
