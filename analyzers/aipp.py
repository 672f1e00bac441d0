"""The share of preprocessing in an inference step, and what AIPP or DVPP could take over at most. Row D-03."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._python_stages import SAID, TAKERS, python_stages, told_calls
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import (
    StepWindows,
    membership,
    step_total_ns,
    step_windows,
    union_total_ns,
    unions_by_step,
)
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import COMM_OPS, HOST_EVENTS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import amdahl_bound, format_ns, format_ratio, significant

ANALYZER: Final = "aipp"

HOST_MIN_RATIO: Final = threshold("D-03", "min_host_ratio")
DEVICE_MIN_RATIO: Final = threshold("D-03", "min_device_ratio")

Taker = Literal["DVPP", "AIPP", "none", "not known"]

_RANGE: Final = re.compile(r"^(preprocess(ing)?|transform|aug(ment)?|data)\s*(::|/|\.)\s*(?P<stage>.+)$", re.IGNORECASE)
_PLAIN: Final = re.compile(r"^(preprocess(ing)?|decode|resize|crop|normali[sz]e|(dvpp|aipp)\w*)$", re.IGNORECASE)
_TAKERS: Final[tuple[tuple[Taker, re.Pattern[str]], ...]] = (
    ("none", re.compile(r"copy|h2d|to_device|load|read", re.IGNORECASE)),
    ("DVPP", re.compile(r"decode|jpe?g|resize|crop|scale", re.IGNORECASE)),
    ("AIPP", re.compile(r"normali[sz]e|colou?r|csc|pad|cast|float|layout|mean|std", re.IGNORECASE)),
)
"""What takes a stage over: DVPP decodes, resizes and crops; AIPP converts colours, pads, normalises and casts."""

_PROLOGUE: Final = frozenset(
    kind.value
    for kind in (
        KernelClass.CAST, KernelClass.TRANSPOSE, KernelClass.FORMAT, KernelClass.ELEMENTWISE, KernelClass.COPY,
    )
)  # fmt: skip
_CONV_OPS: Final = re.compile(r"aten::(_?conv(olution|2d|_transpose2d)?$|cudnn_conv|miopen_conv|mkldnn_conv|thnn_conv)")
_BACKWARD: Final = re.compile(r"backward|autograd::engine", re.IGNORECASE)

_LOADER: Final = "dataloader"

_TAKER_WORDS: Final[dict[Taker, Words]] = {
    "DVPP": Words("DVPP", "DVPP"),
    "AIPP": Words("AIPP", "AIPP"),
    "none": Words("none", "无"),
    "not known": Words("not known", "未知"),
}


@dataclass(frozen=True, kw_only=True)
class _Stage:
    name: str
    where: Literal["host", "device"]
    taker: Taker
    count: int
    unions: list[IntervalSet]
    source: Literal["host_events", "kernels", "python_calls"] = "host_events"


@analyzer(name=ANALYZER, needs=(), order=90, section="aipp")
def aipp(trace: Trace) -> Result:
    """Stages of preprocessing per step, what could take them over, and the bound of doing so.

    Host stages are the user's ranges (`preprocess::decode` ...), else the Python calls of image libraries, transforms
    and image processors, and the data loader; device stages are casts,
    transposes, conversions and element-wise kernels in front of the first convolution of a step. Host time counts
    only while the device is idle: what it hides costs nothing.

    Reads:
        steps, host_events (kind user, dataloader, optimizer), host_ops (name), python_calls, kernels, comm_ops.

    Source:
        troubleshooting table, D-03; Amdahl's law.
    """
    if not len(trace[HOST_EVENTS]) and not len(trace[KERNELS]) and not len(trace[HOST_OPS]):
        raise NoData(Words("no host events and no kernels", "没有 Host 事件，也没有 Kernel"))
    reason = _not_applicable(trace)
    if reason is not None:
        return Result(judged=(Judged(code="D-03", verdict="clean", reason=reason),))
    windows = step_windows(trace)
    whole = step_total_ns(trace, windows)
    stages = [*_host_stages(trace, windows), *_device_stages(trace, windows)]
    if whole <= 0 or not stages:
        return Result(judged=(Judged(code="D-03", verdict="not_judged", reason=_NO_RANGES),))
    return _result(trace, windows, whole, stages)


_NO_RANGES: Final = Words(
    "no preprocessing is marked, and no call of an image library is recorded: wrap it in "
    "torch.profiler.record_function('preprocess::decode') and so on, or profile with with_stack=True",
    "未标注预处理，也没有图像库的 Python 调用：请用 torch.profiler.record_function('preprocess::decode') 等包裹各阶段，"
    "或以 with_stack=True 采集",
)


def _not_applicable(trace: Trace) -> Words | None:
    """Why preprocessing of images is no question for this trace, None when it is one."""
    events, ops, kernels = trace[HOST_EVENTS], trace[HOST_OPS], trace[KERNELS]
    marked = events.text("name").flags(lambda name: bool(_RANGE.match(name) and name.lower().startswith("preproc")))
    convolves = bool(
        ops.text("name").flags(lambda name: bool(_CONV_OPS.search(name))).any()
        or kernel_classes(kernels).equals(KernelClass.CONV.value).any()
    )
    if not marked.any() and not convolves:
        return Words(
            "not applicable: the model takes no images (no convolution in the trace)",
            "不适用：模型输入不是图像（数据中没有卷积）",
        )
    trains = bool(
        events.text("kind").equals("optimizer").any()
        or ops.text("name").flags(lambda name: bool(_BACKWARD.search(name))).any()
        or kernels.text("op_type").flags(lambda name: "Backprop" in name or name.endswith("Grad")).any()
        or kernel_classes(kernels).equals(KernelClass.OPTIMIZER.value).any()
    )
    if trains:
        return Words(
            "not applicable: this is a training step; AIPP exists only in offline inference models (rows D-01, D-02)",
            "不适用：这是训练 step；AIPP 仅存在于离线推理模型（见 D-01、D-02）",
        )
    return None


def _host_stages(trace: Trace, windows: StepWindows) -> list[_Stage]:
    events = trace[HOST_EVENTS]
    stage = events.text("name").relabel(_stage_of)
    is_loader = events.text("kind").equals("dataloader")
    stages = []
    for code, name in enumerate(stage.values):
        rows = (stage.codes == code) & ~is_loader
        stages.append(_host_stage(trace, windows, rows, name, _taker_of(name)))
    if not any(item.count for item in stages):
        stages = [
            _Stage(
                name=item.name, where="host", taker=TAKERS.get(item.name, "not known"), count=item.count,
                unions=item.unions, source="python_calls",
            )
            for item in python_stages(trace, windows)
        ]  # fmt: skip
    if is_loader.any():
        loader = _host_stage(trace, windows, is_loader, _LOADER, "not known")
        seen = [item.unions for item in stages if item.source == "python_calls"]
        if seen:
            # What Python shows of its work is a stage already.
            known = [intervals.union(*steps) for steps in zip(*seen, strict=True)]
            rest = [intervals.difference(a, b) for a, b in zip(loader.unions, known, strict=True)]
            loader = replace(loader, unions=rest)
        stages.append(loader)
    return [item for item in stages if item.count]


def _host_stage(trace: Trace, windows: StepWindows, rows: Bools, name: str, taker: Taker) -> _Stage:
    events = trace[HOST_EVENTS]
    return _Stage(
        name=name,
        where="host",
        taker=taker,
        count=int((rows & (membership(trace, events, windows) >= 0)).sum()),
        unions=unions_by_step(trace, events, rows, windows),
    )


def _stage_of(name: str) -> str | None:
    """Stage that a user's range is about; None for ranges of other things."""
    if match := _RANGE.match(name):
        return match["stage"].strip().lower()[:40]
    return name.lower()[:40] if _PLAIN.match(name) else None


def _taker_of(stage: str) -> Taker:
    return next((taker for taker, pattern in _TAKERS if pattern.search(stage)), "not known")


def _device_stages(trace: Trace, windows: StepWindows) -> list[_Stage]:
    """Kernels in front of the first convolution of each step that prepare its input."""
    kernels = trace[KERNELS]
    classes = kernel_classes(kernels)
    of, starts = membership(trace, kernels, windows), kernels.ints("start_ns")
    is_conv = classes.equals(KernelClass.CONV.value) & (of >= 0) & (starts != NULL)
    if not is_conv.any():
        return []
    first = np.full(len(windows), np.iinfo(np.int64).max)
    np.minimum.at(first, of[is_conv], starts[is_conv])
    has_conv = first < np.iinfo(np.int64).max
    inside = np.clip(of, 0, None)
    rows = (of >= 0) & (starts != NULL) & classes.isin(_PROLOGUE) & has_conv[inside] & (starts < first[inside])
    if not rows.any():
        return []
    unions = unions_by_step(trace, kernels, rows, windows)
    return [
        _Stage(
            name="kernels before the first conv", where="device", taker="AIPP", count=int(rows.sum()), unions=unions,
            source="kernels",
        )
    ]


def _result(trace: Trace, windows: StepWindows, whole: int, stages: list[_Stage]) -> Result:
    busy = [
        intervals.union(a, b)
        for a, b in zip(
            unions_by_step(trace, trace[KERNELS], windows=windows),
            unions_by_step(trace, trace[COMM_OPS], windows=windows),
            strict=True,
        )
    ]
    exposed = [_exposed(stage, busy) for stage in stages]
    takeable = [unions for stage, unions in zip(stages, exposed, strict=True) if stage.taker in ("DVPP", "AIPP")]
    share_all = _share(exposed, whole)
    share = _share(takeable, whole)
    # What a data loader does inside is not told: its waiting is row D-01.
    marked = [u for s, u in zip(stages, exposed, strict=True) if s.where == "host" and s.name != _LOADER]
    host_share = _share(marked, whole)
    device_share = _share([u for s, u in zip(stages, exposed, strict=True) if s.where == "device"], whole)
    table = _table(stages, exposed, whole, len(windows), share)
    metrics = (
        Metric(name="preprocessing_share", value=share_all, unit="ratio", better="lower", rank=trace.meta.rank),
        Metric(name="aipp_dvpp_bound", value=amdahl_bound(share), unit="x", better="none", rank=trace.meta.rank),
    )
    if host_share < HOST_MIN_RATIO.value and device_share < DEVICE_MIN_RATIO.value:
        reason = Words(
            f"preprocessing: {format_ratio(host_share)} of the step on the host, "
            f"{format_ratio(device_share)} on the device",
            f"预处理：Host 侧占单步 {format_ratio(host_share)}，设备侧占 {format_ratio(device_share)}",
        )
        return Result(metrics=metrics, tables=(table,), judged=(Judged(code="D-03", verdict="clean", reason=reason),))
    made = _finding(trace, windows, stages, exposed, share_all, share)
    return Result(findings=(made,), metrics=metrics, tables=(table,), judged=(Judged(code="D-03", verdict="found"),))


def _exposed(stage: _Stage, busy: list[IntervalSet]) -> list[IntervalSet]:
    """Host time while the device is idle; device time as it is."""
    if stage.where == "device":
        return stage.unions
    return [intervals.difference(union, device) for union, device in zip(stage.unions, busy, strict=True)]


def _share(parts: list[list[IntervalSet]], whole: int) -> float:
    """Share of the steps that the parts cover together (union, so stages that run at once count once)."""
    if not parts:
        return 0.0
    together = [intervals.union(*steps) for steps in zip(*parts, strict=True)]
    return min(1.0, union_total_ns(together) / whole)


def _table(stages: list[_Stage], exposed: list[list[IntervalSet]], whole: int, steps: int, share: float) -> ResultTable:
    spent = [union_total_ns(unions) for unions in exposed]
    order = sorted(range(len(stages)), key=lambda i: -spent[i])
    bound = amdahl_bound(share)
    limit = "—" if bound is None else f"{significant(bound, 3)}x"
    return result_table(
        "aipp-stages",
        Words("Preprocessing by stage", "预处理各阶段"),
        [
            Col("stage", "Stage", "阶段", [stages[i].name for i in order]),
            Col("where", "On", "位置", [stages[i].where for i in order]),
            Col(
                "time_ns", "Time per step", "每步耗时", [union_total_ns(stages[i].unions) / steps for i in order], "ns"
            ),
            Col("exposed_ns", "While the device is idle", "设备空闲时的部分", [spent[i] / steps for i in order], "ns"),
            Col("share_ratio", "Share of the step", "占单步比例", [spent[i] / whole for i in order], "ratio"),
            Col("count", "Count", "次数", [stages[i].count for i in order], "count"),
            Col("taken_by", "Could be taken over by", "可由其承担", [_TAKER_WORDS[stages[i].taker].en for i in order]),
        ],
        Words(
            f"What DVPP and AIPP could take over is {format_ratio(share)} of the step: at most {limit}. "
            "AIPP runs on the AI Core and takes time there, which is not subtracted; it exists only in .om models.",
            f"DVPP 与 AIPP 可承担的部分占单步 {format_ratio(share)}：理论上限 {limit}。AIPP 在 AI Core 上执行，"
            "其自身耗时未扣除；且仅存在于 .om 模型。",
        ),
    )


def _finding(
    trace: Trace,
    windows: StepWindows,
    stages: list[_Stage],
    exposed: list[list[IntervalSet]],
    share_all: float,
    share: float,
) -> Finding:
    steps = max(1, len(windows))
    order = sorted(range(len(stages)), key=lambda i: -union_total_ns(exposed[i]))
    evidence = []
    for i in order[:5]:
        union = next((u for u in exposed[i] if len(u.starts)), None)
        evidence.append(
            Evidence(
                name=Words(
                    f"{stages[i].name} ({stages[i].where}), per step",
                    f"{_said(stages[i].name)}（{_WHERE[stages[i].where]}），每步",
                ),
                value=union_total_ns(exposed[i]) / steps,
                unit="ns",
                where=f"{stages[i].source}: {stages[i].count} rows",
                start_ns=None if union is None else int(union.starts[0]),
            )
        )
    in_python = intervals.union(*(u for s in stages if s.source == "python_calls" for u in s.unions))
    if told := told_calls(trace, in_python):
        evidence.append(
            Evidence(
                name=Words("Python calls that take most of it", "耗时最多的 Python 调用"), value=told,
                where="python_calls: time of their own",
            )
        )  # fmt: skip
    aipp_parts = [unions for stage, unions in zip(stages, exposed, strict=True) if stage.taker == "AIPP"]
    by_aipp = _share(aipp_parts, step_total_ns(trace, windows))
    if by_aipp > 0 and trace.meta.device.kind == "npu":
        bound = amdahl_bound(by_aipp)
        limit = "" if bound is None else significant(bound, 3)
        call = "`ascend-perf aipp MODEL.onnx --soc ...`"
        evidence.append(
            Evidence(
                name=Words(
                    f"AIPP's part, which {call} moves{limit and f': at most {limit}x'}",
                    f"AIPP 可承担的部分，用 {call} 迁移{limit and f'：理论上限 {limit} 倍'}",
                ),
                value=by_aipp, unit="ratio", where="stages taken over by AIPP",
            )
        )  # fmt: skip
    spent = format_ns(share_all * step_total_ns(trace, windows) / steps)
    biggest = stages[order[0]].name
    takes = ("DVPP and AIPP could absorb", "DVPP 与 AIPP 可承担")
    if trace.meta.device.kind != "npu":
        takes = (
            "work that a device can do (DVPP and AIPP on Ascend) is", "可由设备完成的部分（昇腾上为 DVPP 与 AIPP）占",
        )  # fmt: skip
    return finding(
        "D-03",
        analyzer=ANALYZER,
        trace_rank=trace.meta.rank,
        title=Words(
            f"Preprocessing takes {format_ratio(share_all)} of the step ({spent}), most of it in {biggest}; "
            f"{takes[0]} {format_ratio(share)} of the step at most.",
            f"预处理占单步 {format_ratio(share_all)}（{spent}），其中{_said(biggest)}最长；"
            f"{takes[1]} {format_ratio(share)}。",
        ),
        share_ratio=share,
        where=intervals.union(
            *(u for s, unions in zip(stages, exposed, strict=True) if s.taker in ("DVPP", "AIPP") for u in unions)
        ),
        whole_ns=step_total_ns(trace, windows),
        evidence=evidence,
        vendor=trace.meta.device.kind,
        formula="union(stages that DVPP or AIPP can take over, while the device is idle) / step",
    )


_WHERE: Final = {"host": "Host", "device": "设备"}
_NAMES: Final = {"dataloader": "数据加载", "kernels before the first conv": "首个卷积之前的算子", **SAID}


def _said(name: str) -> str:
    """A stage in Chinese; names from the trace stay."""
    return _NAMES.get(name, name)
