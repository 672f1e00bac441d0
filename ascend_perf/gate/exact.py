"""What has no noise is compared exactly: counts of a step, and the stream of its operators."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ascend_perf import op_streams
from ascend_perf.gate.outcome import Outcome, Row
from ascend_perf.gate.policy import Limit, OpStreamRule
from ascend_perf.model.finding import Words
from ascend_perf.op_streams import OpStream
from ascend_perf.units import Unit, format_ratio

MAX_DIFF_LINES: Final = 4000
"""Lines between the first and the last difference up to which a line-by-line difference is made (its cost grows with
the square); beyond, operators are only counted. Status: measured, a second on a slow core."""
MAX_DETAILS: Final = 40

_BYTES: Final = ("bytes", "memory")


def count_rows(
    benchmark: str, base: dict[str, int], head: dict[str, int], limit_of: dict[str, Limit], simulated: bool
) -> list[Row]:
    """One row per count of either side; `limit_of` has a limit for each."""
    return [
        _count_row(benchmark, name, base.get(name), head.get(name), limit_of[name], simulated)
        for name in sorted({*base, *head})
    ]


def count_unit(name: str) -> Unit:
    """The unit of a count, from its name."""
    if "flops" in name:
        return "flops"
    return "bytes" if any(part in name for part in _BYTES) else "count"


def _count_row(
    benchmark: str, name: str, base: int | None, head: int | None, limit: Limit, simulated: bool
) -> Row:
    outcome: Outcome
    if head is None:
        # A counter that is gone says nothing: it could have grown.
        outcome = "not_comparable" if limit.fail is not None else "warning"
        reason = Words("head does not have this count", "HEAD 没有该计数")
    elif base is None:
        outcome, reason = "new", Words("base does not have this count", "BASE 没有该计数")
    elif head == base:
        outcome, reason = "pass", Words("equal", "相等")
    elif head < base:
        outcome, reason = "improved", Words(f"{base - head} fewer", f"减少 {base - head}")
    else:
        more = head - base
        grown = more / base if base else float("inf")
        if limit.fail is not None and grown > limit.fail:
            outcome = "regression"
        elif limit.warn is not None and grown > limit.warn:
            outcome = "warning"
        else:
            outcome = "pass"
        allowed = f", {format_ratio(limit.fail)} allowed" if limit.fail else ""
        allowed_zh = f"，允许 {format_ratio(limit.fail)}" if limit.fail else ""
        reason = Words(f"{more} more{allowed}", f"增加 {more}{allowed_zh}")
    change = head / base - 1 if base and head is not None else None
    return Row(
        benchmark=benchmark, kind="count", name=name, outcome=outcome, reason=reason, unit=count_unit(name),
        better="lower", base=base, head=head, change_ratio=change, fail_ratio=limit.fail, simulated=simulated,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StreamDifference:
    """How the operators of two steps differ."""

    base_ops: int
    head_ops: int
    added: tuple[tuple[str, int], ...]
    """Operators (with operands) that head calls more often, and how much more; the largest difference first."""
    removed: tuple[tuple[str, int], ...]
    is_reordered: bool
    lines: tuple[str, ...]
    """The difference in the order of the step; empty where it is not known or would be too long."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, order included."""
        return not self.added and not self.removed and not self.is_reordered


def stream_difference(base: OpStream, head: OpStream) -> StreamDifference:
    """The difference of two snapshots."""
    found = op_streams.changes(base, head)
    return StreamDifference(
        base_ops=base.count, head_ops=head.count,
        added=tuple((one.operator, one.b - one.a) for one in found if one.b > one.a),
        removed=tuple((one.operator, one.a - one.b) for one in found if one.b < one.a),
        is_reordered=bool(op_streams.is_reordered(base, head)),
        lines=() if base.stream is None or head.stream is None else tuple(ordered_difference(base.stream, head.stream)),
    )  # fmt: skip


def ordered_difference(base: Sequence[str], head: Sequence[str]) -> list[str]:
    """Lines with +, - or a blank before them, each group under the place of its first operator in base."""
    start, most = 0, min(len(base), len(head))
    while start < most and base[start] == head[start]:
        start += 1
    end = 0
    while end < most - start and base[-1 - end] == head[-1 - end]:
        end += 1
    left, right = base[start : len(base) - end], head[start : len(head) - end]
    if not left and not right:
        return []
    if len(left) + len(right) > MAX_DIFF_LINES:
        return [f"from operator {start + 1} on: {len(left)} operators of base, {len(right)} of head differ"]
    lines = []
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for tag, low, high, low_head, high_head in matcher.get_opcodes():
        if tag != "equal":
            lines.append(f"@@ operator {start + low + 1} @@")
            lines += [f"-{line}" for line in left[low:high]] + [f"+{line}" for line in right[low_head:high_head]]
    return lines


def stream_row(benchmark: str, difference: StreamDifference, rule: OpStreamRule, simulated: bool) -> Row:
    """The row of a stream. With `more`, what fails is more operators, or others in the same number: a fusion that was
    lost, a cast that came in. Fewer are an improvement, another order is a warning."""
    delta = difference.head_ops - difference.base_ops
    outcome: Outcome
    if difference.is_equal:
        outcome, reason = "pass", Words("equal", "相同")
    elif not difference.added and not difference.removed:
        outcome = "regression" if rule == "exact" else "warning"
        reason = Words("the same operators in another order", "算子相同，顺序不同")
    else:
        if rule == "exact" or (rule == "more" and delta >= 0):
            outcome = "regression"
        else:
            outcome = "warning" if rule == "warn" else "improved"
        added, removed = (sum(count for _, count in side) for side in (difference.added, difference.removed))
        reason = Words(f"{added} operators came, {removed} went", f"新增 {added} 个算子，减少 {removed} 个")
    changes = [f"+{count} {name}" for name, count in difference.added]
    changes += [f"-{count} {name}" for name, count in difference.removed]
    lines = [*changes[:MAX_DETAILS], *difference.lines[:MAX_DETAILS]]
    left = len(changes) + len(difference.lines) - len(lines)
    return Row(
        benchmark=benchmark, kind="op_stream", name="op_stream", outcome=outcome, reason=reason, unit="count",
        better="lower", base=difference.base_ops, head=difference.head_ops,
        change_ratio=delta / difference.base_ops if difference.base_ops else None,
        details=(*lines, f"... {left} more lines") if left > 0 else tuple(lines), simulated=simulated,
    )  # fmt: skip
