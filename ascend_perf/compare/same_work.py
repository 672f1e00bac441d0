"""Whether two recordings did the same work: the calls that both made, and the shapes and types of their operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ascend_perf.analyzers._flame_tree import CODE
from ascend_perf.compare.trees import TreeDiff
from ascend_perf.compare.work_tree import WorkTree
from ascend_perf.model.comparison import Unlike
from ascend_perf.model.finding import Words
from ascend_perf.model.table import Ints, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.units import format_ratio

LIKE_RATIO: Final = 0.5
"""Below this share of calls with a partner two recordings are of different models. Status: measured: pairs of one model
on two vendors have 0.98 to 1, pairs of different models at most 0.01; a fused operator per layer leaves some 0.7."""
SAME_RATIO: Final = 0.95
"""Below this share of equal shapes (or types) among operators that are the same, the work differs in it. Status:
assumed: bookkeeping operators may have other shapes, the layers may not."""
MIN_CALLS: Final = 5
"""Fewer operators with shapes on both sides say nothing."""

SETTINGS_OF_HOW: Final = frozenset({
    "seed", "learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "measured_steps", "profiled_steps",
    "device", "devices", "threads", "workers", "out", "fused", "compile", "collect", "variant", "backend",
})  # fmt: skip
"""Settings that decide how the work is done or measured, not how much of it there is."""


def unlike_traces(
    diff: TreeDiff, a: Trace, b: Trace, letters: tuple[str, str] = ("A", "B")
) -> list[Unlike]:
    """Differences of the work of two steps, the gravest first; empty where it is the same as far as the data tell."""
    left, right = letters
    calls = len(diff.a) - 1, len(diff.b) - 1
    if not min(calls):
        return _unlike_kernels(a, b)
    pairs = len(diff.alignment.a) - 1
    alike = 2 * pairs / sum(calls)
    if alike < LIKE_RATIO:
        return [Unlike(is_grave=True, what=Words(
            f"different models: {pairs} of {calls[0]} calls of {left} and of {calls[1]} calls of {right} are the same "
            f"({format_ratio(alike)}); {left} calls {_first(diff, 'a')}, {right} calls {_first(diff, 'b')}",
            f"模型不同：{left} 的 {calls[0]} 次调用与 {right} 的 {calls[1]} 次调用中仅 {pairs} 次相同"
            f"（{format_ratio(alike)}）；{left} 调用 {_first(diff, 'a')}，{right} 调用 {_first(diff, 'b')}",
        ))]  # fmt: skip
    found = _unlike_operands(diff, a, b, letters)
    if alike < SAME_RATIO:
        found.append(Unlike(is_grave=False, what=Words(
            f"{format_ratio(1 - alike)} of the calls are on one side only (other operators, fused or not): their time "
            "is in rows of one side, or with the call around them",
            f"{format_ratio(1 - alike)} 的调用只在一侧出现（算子不同，或是否融合不同）："
            "其耗时列入单侧行，或计入外层调用",
        )))  # fmt: skip
    return found


def _first(diff: TreeDiff, side: str) -> str:
    """The outermost calls with most time: what a model is recognised by."""
    rows = diff.rows
    total, calls = (rows.total_a_ns, rows.calls_a) if side == "a" else (rows.total_b_ns, rows.calls_b)
    order = np.argsort(-total, kind="stable")
    names = [rows.label[row] or "" for row in order.tolist() if row > 1 and calls[row] and rows.parent[row] == 0]
    return ", ".join(name[:60] for name in names[:2]) or "—"


def _unlike_operands(diff: TreeDiff, a: Trace, b: Trace, letters: tuple[str, str]) -> list[Unlike]:
    spec, ops_a, ops_b = HOST_OPS, diff.a.op[diff.alignment.a], diff.b.op[diff.alignment.b]
    if not diff.kinds:
        spec, ops_a, ops_b = KERNELS, _kernel_rows(diff.a)[diff.alignment.a], _kernel_rows(diff.b)[diff.alignment.b]
    mine = (ops_a >= 0) & (ops_b >= 0)
    labels = diff.a.label.take(diff.alignment.a[mine])
    found = []
    for column, what_en, what_zh in (
        ("input_shapes", "shapes (batch, sequence length or sizes)", "形状（batch、序列长度或尺寸）"),
        ("input_dtypes", "data types (precision)", "数据类型（精度）"),
    ):
        left, right = a[spec].text(column).take(ops_a[mine]), b[spec].text(column).take(ops_b[mine])
        both = Text.concat([left.relabel(_plain_operands), right.relabel(_plain_operands)])
        one, other = both.codes[: len(left)], both.codes[len(left) :]
        known = (one >= 0) & (other >= 0)
        if known.sum() < MIN_CALLS:
            found.append(Unlike(is_grave=False, what=Words(
                f"{what_en} could not be compared: not recorded on both sides (record_shapes=True)",
                f"无法比较{what_zh}：两侧没有同时记录（record_shapes=True）",
            )))  # fmt: skip
            continue
        equal = float((one == other)[known].mean())
        if equal < SAME_RATIO:
            at = int(np.flatnonzero(known & (one != other))[0])
            name, x, y = labels[at], both[at], both[len(left) + at]
            found.append(Unlike(is_grave=True, what=Words(
                f"{what_en} differ in {format_ratio(1 - equal)} of the operators that are the same, "
                f"e.g. {name}: {_short(x)} in {letters[0]}, {_short(y)} in {letters[1]}",
                f"相同的算子中有 {format_ratio(1 - equal)} 的{what_zh}不同，"
                f"例如 {name}：{letters[0]} 为 {_short(x)}，{letters[1]} 为 {_short(y)}",
            )))  # fmt: skip
    return found


def _kernel_rows(tree: WorkTree) -> Ints:
    """Row of `kernels` of each node of a tree whose nodes are tasks, -1 for others."""
    rows = np.full(len(tree), -1, np.int64)
    rows[tree.node] = np.where(tree.tasks.kind == CODE["kernel"], tree.tasks.row, -1)
    return rows


def _plain_operands(text: str) -> str | None:
    """Without what only tells how an exporter writes lists; empty is unknown."""
    plain = text.replace(" ", "").replace('"', "").strip("[];,")
    return plain or None


def _short(text: str | None) -> str:
    text = text or "—"
    return text if len(text) <= 60 else f"{text[:60]}…"


def _unlike_kernels(a: Trace, b: Trace) -> list[Unlike]:
    """Without calls of the host: kernels by type and shape, where both exporters name them alike."""
    counts = []
    for trace in (a, b):
        kernels = trace[KERNELS]
        named = kernels.text("op_type") if kernels.has("op_type") else kernels.text("name")
        made: dict[tuple[str | None, str | None], int] = {}
        for key in zip(named.to_list(), kernels.text("input_shapes").to_list(), strict=True):
            made[key] = made.get(key, 0) + 1
        counts.append(made)
    one, other = counts
    whole = sum(one.values()) + sum(other.values())
    shared = sum(min(count, other.get(key, 0)) for key, count in one.items())
    alike = 2 * shared / whole if whole else 0.0
    if alike >= LIKE_RATIO:
        return []
    return [Unlike(is_grave=True, what=Words(
        "nothing shows that the work is the same: not both recordings hold the calls of the host, and "
        f"{format_ratio(alike)} of the kernels have the same name and shapes",
        f"没有依据表明工作相同：并非两侧都记录了 Host 调用，且名称与形状相同的 Kernel 只占 {format_ratio(alike)}",
    ))]  # fmt: skip


def unlike_settings(
    a: Mapping[str, object], b: Mapping[str, object], where: str = "", letters: tuple[str, str] = ("A", "B")
) -> list[Unlike]:
    """Settings that differ: grave where they decide how much work there is. A setting that one side lacks differs."""
    prefix, prefix_zh = (f"{where}: ", f"{where}：") if where else ("", "")
    one, other = letters
    found = []
    for name in sorted({*a, *b}):
        left, right = a.get(name, "—"), b.get(name, "—")
        if left == right and isinstance(left, bool) == isinstance(right, bool):
            continue
        found.append(Unlike(is_grave=name not in SETTINGS_OF_HOW, what=Words(
            f"{prefix}{name} is {_short(str(left))} in {one} and {_short(str(right))} in {other}",
            f"{prefix_zh}{name} 在 {one} 中为 {_short(str(left))}，在 {other} 中为 {_short(str(right))}",
        )))  # fmt: skip
    return sorted(found, key=lambda unlike: not unlike.is_grave)
