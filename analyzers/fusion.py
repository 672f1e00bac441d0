"""Sequences of operators that a fused operator replaces: which, where, by what, and what that gives at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ascend_perf.analyzers._fusion_calls import calls_beside_products
from ascend_perf.analyzers._fusion_gain import FORMULAS
from ascend_perf.analyzers._fusion_tables import candidates_table, layers_of, mined_table
from ascend_perf.analyzers._fusions import Candidate, Fusions, fusions_of, lengths_ns, reports
from ascend_perf.analyzers._kernels import LEVEL1, STEP_MIN_RATIO, KernelTime, kernel_place
from ascend_perf.analyzers._mined import mined
from ascend_perf.analyzers._rules import finding
from ascend_perf.model.finding import Evidence, Finding, Judged, Remedy, Result, ResultTable, Words
from ascend_perf.model.table import Bools
from ascend_perf.model.tables import HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.cpu_ops import operators_as_kernels
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "fusion"
CODES: Final = ("C-12", "C-13")
"""Rows that this analyzer judges; what it finds for row C-06 stands beside that of `vector-chains`."""


@analyzer(name=NAME, needs=(), order=31, section="operators")
def fusion(trace: Trace) -> Result:
    """Report sequences that a fused operator replaces (C-12, C-13, C-06), and list all of them with their APIs.

    Sequences are looked for among the framework's operators and confirmed by the kernels that these launched, else
    among the kernels of a stream. A fused operator without a gradient is not recommended in training, nor one that
    needs a later CANN, nor one whose limits the shapes contradict; on a GPU or CPU the counterpart of torch is.

    Reads:
        everything that `fusions_of`, `mined` and `calls_beside_products` read.

    Returns:
        Findings, one per fused operator: the union of its sequences over the steps, less what the fused operator
        still needs. Tables `fusion-candidates` and `repeated-kernels`; these claim no time.
    """
    on_host = not len(trace[KERNELS])
    if on_host:
        if not len(trace[HOST_OPS]) or trace.meta.device.kind != "cpu" or len(trace[RUNTIME_CALLS]):
            raise NoData(Words("not in this data: kernels", "数据中没有：kernels"))
        trace = trace.replace(tables={KERNELS.name: operators_as_kernels(trace[HOST_OPS])})
        if not len(trace[KERNELS]):
            raise NoData(Words("no operator that computes", "没有执行计算的算子"))
    kernels = trace[KERNELS]
    if not kernels.has("op_type") and not kernels.has("name"):
        return Result(judged=tuple(Judged(code=code, verdict="not_judged", reason=LEVEL1) for code in CODES))
    time = KernelTime.of(trace)
    found = fusions_of(time)
    findings = tuple(_findings(time, found))
    calls = calls_beside_products(trace, is_training=found.is_training)
    tables = [candidates_table(time, found.candidates, calls, {item.subject: item for item in findings})]
    repeated = mined(time, found.matched(len(kernels)))
    tables += [mined_table(time, repeated)] if repeated else []
    return Result(
        findings=findings, tables=tuple(table for table in tables if isinstance(table, ResultTable) and len(table)),
        judged=tuple(_verdict(code, found, findings) for code in CODES),
    )  # fmt: skip


def _findings(time: KernelTime, found: Fusions) -> Iterator[Finding]:
    for item in found.candidates:
        if reports(item) and (made := _finding(time, item)) is not None:
            yield made


def _finding(time: KernelTime, item: Candidate) -> Finding | None:
    matches = item.matches
    rows = np.zeros(len(time.trace[KERNELS]), bool)
    rows[matches.rows] = True
    matched, kept = int(lengths_ns(time, matches).sum()), float(item.kept_ns.sum())
    union = time.step_share(rows)
    share = None if union is None else union * max(0.0, 1 - kept / matched) if matched else 0.0
    if share is not None and share < STEP_MIN_RATIO.value:
        return None
    what = item.fusion.what
    count = matches.occurrences / time.steps
    spent = format_ns(time.per_step_ns(rows))
    of = ("", "") if union is None else (f" ({format_ratio(union)} of the step)", f"（占单步 {format_ratio(union)}）")
    kind = time.trace.meta.device.kind
    made = finding(
        item.fusion.row, analyzer=NAME, trace_rank=time.trace.meta.rank, share_ratio=share, subject=item.fusion.id,
        title=Words(
            f"{what.en} runs as separate {time.unit.en}s {count:.3g} times per step: {spent}{of[0]}",
            f"{what.zh}每步以分离的算子执行 {count:.3g} 次：耗时 {spent}{of[1]}",
        ),
        evidence=_evidence(time, item, rows), vendor=kind, bands=time.bands(rows), step_ids=time.steps_seen(rows),
        where=time.where(rows), whole_ns=time.whole_ns,
        formula=FORMULAS[item.fusion.floor.products],
        cause=Words(
            f"{what.en} is written operator by operator: each kernel reads its tensors and writes them back to memory.",
            f"{what.zh}逐个算子书写，每个 Kernel 都从内存读入张量并写回。",
        ),
    )  # fmt: skip
    return replace(made, remedies=remedies_of(item))


def _evidence(time: KernelTime, item: Candidate, rows: Bools) -> list[Evidence]:
    trace, matches = time.trace, item.matches
    kernels = trace[KERNELS]
    best = int(np.argmax(lengths_ns(time, matches) * matches.forward))
    first = int(matches.rows[matches.firsts[best]])
    evidence = [
        Evidence(
            name=Words("sequences per step", "每步序列数"), value=matches.occurrences / time.steps, unit="count",
            where="host_ops: operators in order of start, confirmed by their kernels; matches do not overlap"
            if (matches.host >= 0).any()
            else f"{time.unit.en}s in order of start, per stream or thread; matches do not overlap",
        ),
        Evidence(
            name=Words("costliest sequence", "耗时最长的序列"), value=shown_types(trace, item, best),
            where=kernel_place(kernels, first, on_host=trace.meta.device.kind == "cpu"),
            start_ns=int(kernels.ints("start_ns")[first]),
        ),
    ]  # fmt: skip
    if layers := layers_of(trace, matches):
        evidence.append(
            Evidence(name=Words("layers", "所在层"), value=layers, where="host_events: modules around the operators")
        )
    evidence += [
        *time.evidence(rows, item.fusion.what),
        Evidence(
            name=Words("time that the fused operator needs at least, per step", "融合算子每步至少需要的时间"),
            value=float(item.kept_ns.sum()) / time.steps, unit="ns", where="inferred: see the formula",
        ),
    ]  # fmt: skip
    if item.is_version_unknown:
        least = ", ".join(sorted({api.cann for api in item.apis if api.cann}))
        evidence.append(
            Evidence(
                name=Words(f"installed CANN (needed: {least})", f"已安装的 CANN（需要 {least}）"), value=None,
                where="not in this data",
            )
        )  # fmt: skip
    return evidence


MAX_TYPES: Final = 12
MAX_TYPE: Final = 60
"""Names of kernels in a sequence are cut after this many characters: GPU kernels bear long names."""


def shown_types(trace: Trace, item: Candidate, at: int) -> str:
    """Kernels of one match in order: their op types, else the operators that launched them, else their names."""
    kernels = trace[KERNELS]
    begin = int(item.matches.firsts[at])
    rows = item.matches.rows[begin : begin + int(item.matches.lengths[at])]
    types, names, ops = kernels.text("op_type"), kernels.text("name"), trace[HOST_OPS].text("name")
    launched = kernels.ints("host_op")
    shown = []
    for row in rows[:MAX_TYPES].tolist():
        operator = ops[int(launched[row])] if 0 <= launched[row] < len(ops) else None
        shown.append((types[row] or operator or names[row] or "?")[:MAX_TYPE])
    return " - ".join(shown) + (" ..." if len(rows) > MAX_TYPES else "")


def remedies_of(item: Candidate) -> tuple[Remedy, ...]:
    """What to write: the APIs that hold for this trace with what they need, on a GPU or CPU torch's counterpart."""
    if not item.apis:
        other = item.fusion.elsewhere
        return () if other is None else (Remedy(text=other.text, code=other.code),)
    made = []
    for api in item.apis:
        needs = [f"CANN {api.cann}" if api.cann else "", f"torch {api.torch}" if api.torch else ""]
        least = ", ".join(part for part in needs if part)
        parts = ", ".join(api.products)
        text = Words(
            api.text.en + (f" From {least}." if least else "") + (f" Products: {parts}." if parts else "")
            + (f" Published elsewhere: {api.gain.en} ({api.gain_source})." if api.gain else ""),
            api.text.zh + (f"需 {least} 及以上。" if least else "") + (f"适用产品：{parts}。" if parts else "")
            + (f"他处公布的收益：{api.gain.zh}（{api.gain_source}）。" if api.gain else ""),
        )  # fmt: skip
        made.append(Remedy(text=text, code=api.code))
    made.append(
        Remedy(
            text=Words(
                "Then compare loss or logits with the fused operator on and off: it sums in another order.",
                "替换后请对比开关融合算子时的 loss 或 logits：其累加顺序不同。",
            )
        )
    )
    return tuple(made)


def _verdict(code: str, found: Fusions, findings: tuple[Finding, ...]) -> Judged:
    if any(item.code == code for item in findings):
        return Judged(code=code, verdict="found")
    others = [item for item in found.candidates if item.fusion.row == code and item.state != "applicable"]
    if others:
        names = ", ".join(dict.fromkeys(f"{item.fusion.id} ({_why(item)[0]})" for item in others))
        said = "、".join(dict.fromkeys(f"{item.fusion.id}（{_why(item)[1]}）" for item in others))
        reason = Words(f"no fused operator can be recommended for: {names}", f"以下序列没有可推荐的融合算子：{said}")
    else:
        reason = Words(
            "no such sequence repeats on a device stream with a notable share of the step",
            "设备流上没有占比可观的重复未融合序列",
        )
    return Judged(code=code, verdict="clean", reason=reason)


def _why(item: Candidate) -> tuple[str, str]:
    return {
        "inference only": ("no gradient: inference only", "无反向，仅用于推理"),
        "version": (f"needs {item.needs}", f"需要 {item.needs}"),
        "limits": (f"outside its limits: {item.needs}", f"超出其限制：{item.needs}"),
        "applicable": ("", ""),
    }[item.state]
