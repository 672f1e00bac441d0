"""The steps of two ranks side by side as tables: operator classes, operators, calls by path, parts of the step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.compare.expected import BASES, Expected, expected_of, machine_of, main_class, task_work
from ascend_perf.compare.trees import NOT_ATTRIBUTED, Change, KernelSum, TreeDiff, changes, diff_traces, split
from ascend_perf.compare.work_tree import ROOT_LABEL, HostCalls
from ascend_perf.device.specs import DeviceSpec
from ascend_perf.model.comparison import SplitPart, StepBar, named, with_marks
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import Floats, Ints, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import computes
from ascend_perf.units import format_factor, format_ns, format_quantity

OF_BOTH: Final = (
    "delta_ns", "time_ratio", "shortfall_ratio", "beyond_ns", "by_count_ns", "by_mean_ns",
)
"""Columns of figures that are made of both sides. What the rooflines let expect is of data sheets alone."""
OF_HOST: Final = Words(
    "The model runs on the CPU: the time of a call is its own, without the calls inside it. By count: calls more or "
    "fewer, at their old mean; by mean: calls that take longer or shorter; both add up to the difference.",
    "模型在 CPU 上运行：耗时为调用自身的时间，不含内层调用。次数变化：调用增减乘以原均值；均值变化：单次耗时变化乘以"
    "新次数；二者之和等于差值。",
)
PATHS_OF_HOST: Final = Words(
    "Calls of the host, aligned from the outermost to the innermost; equal paths are one row.",
    "Host 调用由外到内对齐，相同路径合为一行。",
)
"""Notes of tables whose times are those of calls of the host."""

MIN_POINT_RATIO: Final = 0.02
"""Differences below this share of the longer side's device time are not told as points. Status: assumed."""
MAX_POINTS: Final = 3
"""Points of one sort. Status: assumed."""
MAX_NAME: Final = 90
"""Characters of a kernel's name in the list of a row; the whole name is in the report of its side."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two ranks side by side."""

    diff: TreeDiff
    rows: tuple[Change, ...]
    """Rows with time of their own, the largest difference first."""
    expected: Expected
    """For each row of the diff."""
    classes: Text
    """Class with most time of each row of the diff."""
    tables: tuple[ResultTable, ...]
    letters: tuple[str, str]
    points: tuple[Words, ...]
    is_host: bool = False
    """Whether times are those of calls of the host: the model runs on the CPU."""


def pair_of(
    a: Trace | HostCalls, b: Trace | HostCalls, *, letters: tuple[str, str] = ("A", "B"),
    simulated: Collection[str] = (),
) -> Pair:
    """Two ranks side by side, their median steps; `simulated` are the letters of sides that are."""
    a = a if isinstance(a, HostCalls) else HostCalls.of(a)
    b = b if isinstance(b, HostCalls) else HostCalls.of(b)
    diff = diff_traces(a, b)
    spec_a, spec_b = machine_of(a.trace), machine_of(b.trace)
    maker = _Maker(a, b, diff, spec_a, spec_b, letters, simulated)
    return maker.pair()


class _Maker:
    def __init__(
        self, a: HostCalls, b: HostCalls, diff: TreeDiff, spec_a: DeviceSpec | None, spec_b: DeviceSpec | None,
        letters: tuple[str, str], simulated: Collection[str],
    ) -> None:  # fmt: skip
        self.diff, self.letters, self.simulated = diff, letters, simulated
        self.is_host = a.is_host and b.is_host
        self.spec_a, self.spec_b = spec_a, spec_b
        self.work_a = task_work(a.trace, diff.a, spec_a, spec_b)
        self.work_b = task_work(b.trace, diff.b, spec_a, spec_b)
        self.rows = tuple(changes(diff))
        count = len(diff.rows)
        self.expected = self._expected(diff.row_a, diff.row_b, count)
        # What was launched before the recording is not the same work on both sides.
        self.expected.ratio[1], self.expected.basis[1] = np.nan, len(BASES) - 1
        first = main_class(diff.row_a, diff.a, self.work_a, count)
        second = main_class(diff.row_b, diff.b, self.work_b, count)
        both = Text.concat([first, second])
        self.classes = Text(
            np.where(both.codes[:count] >= 0, both.codes[:count], both.codes[count:]).astype(np.int32), both.values
        )

    def pair(self) -> Pair:
        return Pair(
            diff=self.diff, rows=self.rows, expected=self.expected, classes=self.classes, letters=self.letters,
            tables=(self._classes(), self._operators(), self._calls()), points=self._points(), is_host=self.is_host,
        )  # fmt: skip

    def _expected(self, rows_a: Ints, rows_b: Ints, count: int) -> Expected:
        """By the work of A; where that is not known, by the work of B."""
        one = expected_of(rows_a, self.diff.a, self.work_a, count, self.spec_a, self.spec_b)
        other = expected_of(rows_b, self.diff.b, self.work_b, count, self.spec_a, self.spec_b)
        second = (one.basis != 0) & ((other.basis == 0) | (one.basis == len(BASES) - 1))
        return Expected(
            ratio=np.where(second, other.ratio, one.ratio), basis=np.where(second, other.basis, one.basis)
        )

    def _table(self, name: str, title: Words, columns: Sequence[Col], note: Words) -> ResultTable:
        """A table whose columns say which side is simulated."""
        a, b = self.letters
        of: dict[str, Sequence[str]] = dict.fromkeys(OF_BOTH, (a, b))
        for letter, end in ((a, "a"), (b, "b")):
            of |= dict.fromkeys((f"time_{end}_ns", f"count_{end}", f"kernels_{end}"), (letter,))
        return with_marks(result_table(name, title, columns, note), of, self.simulated)

    def _classes(self) -> ResultTable:
        both = Text.concat([self.work_a.classes, self.work_b.classes]).compact()
        names = both.values
        of_a, of_b = (codes.astype(np.int64) for codes in np.split(both.codes, [len(self.work_a.classes)]))
        known = [np.where(of >= 0, of, len(names)) for of in (of_a, of_b)]
        count = len(names) + 1
        counts = [np.bincount(of, minlength=count) for of in known]
        times = []
        for of, tree in zip(known, (self.diff.a, self.diff.b), strict=True):
            time = np.zeros(count, np.int64)
            np.add.at(time, of, tree.tasks.dur_ns)
            times.append(time)
        expected = self._expected(known[0], known[1], count)
        shown = np.flatnonzero((counts[0] > 0) | (counts[1] > 0))
        shown = shown[np.argsort(-np.abs(times[1] - times[0])[shown], kind="stable")]
        columns = [Col("class", "class", "类别", [[*names, "other"][row] for row in shown.tolist()])]
        columns += self._figures(
            counts[0][shown], counts[1][shown], times[0][shown], times[1][shown], expected.ratio[shown],
            expected.basis[shown], ("kernels", "任务数"),
        )  # fmt: skip
        return self._table(
            "compare-classes", Words("By class of operator", "按算子类别"), columns,
            Words(
                "All tasks of the device in the step, matched by what kind of work they do, whatever their names. The "
                "times of a side add up to its device time.",
                "step 内 Device 上的全部任务，按工作类别匹配，与名称无关。每侧各行之和等于其 Device 总耗时。",
            ),
        )  # fmt: skip

    def _figures(
        self, count_a: Ints, count_b: Ints, time_a: Ints, time_b: Ints, expected: Floats, basis: Ints,
        what: tuple[str, str],
    ) -> list[Col]:  # fmt: skip
        a, b = self.letters
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(time_a > 0, time_b / time_a, np.nan)
            ratio = np.where(time_b > 0, ratio, np.nan)
            short = ratio / expected
        parts = [
            split(*row) for row in zip(
                count_a.tolist(), time_a.tolist(), count_b.tolist(), time_b.tolist(), strict=True
            )
        ]  # fmt: skip
        beyond = np.where(np.isnan(ratio), np.nan, time_b - time_a * expected)
        return [
            Col("time_a_ns", f"time {a}", f"{a} 耗时", time_a, "ns"),
            Col("time_b_ns", f"time {b}", f"{b} 耗时", time_b, "ns"),
            Col("delta_ns", f"{b} - {a}", f"{b} - {a}", time_b - time_a, "ns"),
            Col("time_ratio", f"{b} / {a}", f"{b} / {a}", ratio, "x"),
            Col("expected_ratio", "expected by the rooflines", "按 Roofline 预期", expected, "x"),
            Col("shortfall_ratio", "actual / expected", "实际 / 预期", short, "x"),
            Col("beyond_ns", f"{b} beyond expected", f"{b} 超出预期", np.round(beyond), "ns"),
            Col("basis", "expected from", "预期依据", [BASES[at] or None for at in basis.tolist()]),
            Col("by_count_ns", "of it by count", "其中次数变化", [p.count_ns for p in parts], "ns"),
            Col("by_mean_ns", "of it by mean", "其中均值变化", [p.mean_ns for p in parts], "ns"),
            Col("count_a", f"{what[0]} {a}", f"{a} {what[1]}", count_a, "count"),
            Col("count_b", f"{what[0]} {b}", f"{b} {what[1]}", count_b, "count"),
        ]

    def _operators(self) -> ResultTable:
        """Rows of equal label together: an operator wherever it is called."""
        rows = self.diff.rows
        own = np.array([row.row for row in self.rows], np.int64)
        names = rows.label.take(own).compact()
        count = len(names.values)
        of = np.full(len(rows), count, np.int64)
        of[own] = names.codes
        sums = [np.zeros(count, np.int64) for _ in range(4)]
        for total, amounts in zip(sums, (rows.calls_a, rows.calls_b, rows.self_a_ns, rows.self_b_ns), strict=True):
            np.add.at(total, names.codes, amounts[own])
        expected = self._expected(of[self.diff.row_a], of[self.diff.row_b], count + 1)
        lost = of[1]
        expected.ratio[lost], expected.basis[lost] = np.nan, len(BASES) - 1
        order = np.argsort(-np.abs(sums[3] - sums[2]), kind="stable")
        lead = [Col("name", "operator or module", "算子或模块", names_of(names, order))]
        side = [self._side(bool(a), bool(b)) for a, b in zip(
            sums[2][order].tolist(), sums[3][order].tolist(), strict=True
        )]  # fmt: skip
        lead.append(Col("kind", "on", "所在侧", side))
        return self._table(
            "compare-operators", Words("By operator", "按算子"),
            [*lead, *self._figures(
                sums[0][order], sums[1][order], sums[2][order], sums[3][order], expected.ratio[order],
                expected.basis[order], ("calls", "调用次数"),
            )],
            OF_HOST if self.is_host else Words(
                "Each task counts to the innermost call that both sides have, wherever kernels of two vendors have the "
                "same cause. By count: calls more or fewer, at their old mean; by mean: calls that take longer or "
                "shorter; both add up to the difference. Expected: what the peaks of the machines let expect of this "
                "work, B over A; kernels of a few us are bound by their start, not by a peak.",
                "每个任务计入两侧共有的最内层调用，不同厂商的 Kernel 由此对应。次数变化：调用增减乘以原均值；"
                "均值变化：单次耗时变化乘以新次数；二者之和等于差值。预期：两机峰值对该工作给出的 B / A 耗时比；"
                "几微秒的 Kernel 受启动开销限制，与峰值无关。",
            ),
        )  # fmt: skip

    def _side(self, has_a: bool, has_b: bool) -> str:
        """The cell that says who has a row."""
        return "both" if has_a and has_b else f"only {self.letters[0] if has_a else self.letters[1]}"

    def _calls(self) -> ResultTable:
        rows = np.array([row.row for row in self.rows], np.int64)
        a, b = self.letters
        of = self.diff.rows
        columns = [
            Col("name", "operator or module", "算子或模块", [(row.path or (ROOT_LABEL,))[-1] for row in self.rows]),
            Col("path", "call", "调用路径", [" > ".join(row.path or (ROOT_LABEL,)) for row in self.rows]),
            Col("kind", "on", "所在侧", [self._side(row.side != "b", row.side != "a") for row in self.rows]),
            Col("class", "class", "类别", self.classes.take(rows)),
            *self._figures(
                of.calls_a[rows], of.calls_b[rows], of.self_a_ns[rows], of.self_b_ns[rows],
                self.expected.ratio[rows], self.expected.basis[rows], ("calls", "调用次数"),
            ),
        ]  # fmt: skip
        if not self.is_host:
            columns += [
                Col("kernels_a", f"kernels {a}", f"{a} 的 Kernel", [_kernels(row.kernels_a) for row in self.rows]),
                Col("kernels_b", f"kernels {b}", f"{b} 的 Kernel", [_kernels(row.kernels_b) for row in self.rows]),
            ]
        return self._table(
            "compare-calls", Words("Call by call", "逐调用对比"), columns,
            PATHS_OF_HOST if self.is_host else Words(
                "Calls of the host, aligned from the outermost to the innermost; equal paths are one row. Tasks whose "
                "launch was not recorded are the row 'not attributed'. The times of a side add up to its device time.",
                "Host 调用由外到内对齐，相同路径合为一行；未记录下发的任务列入 not attributed 行。"
                "每侧各行之和等于其 Device 总耗时。",
            ),
        )  # fmt: skip

    def _points(self) -> tuple[Words, ...]:
        a, b = (_spaced(named(letter, self.simulated)) for letter in self.letters)
        least = MIN_POINT_RATIO * max(self.diff.total_a_ns, self.diff.total_b_ns, 1)
        table = self._operators()
        cells = {c.name: table.column(c.name) for c in table.columns}
        said: list[Words] = []
        beyond = [
            (float(value), i) for i, value in enumerate(cells["beyond_ns"])
            if isinstance(value, int | float) and value >= least and cells["name"][i] != NOT_ATTRIBUTED
        ]  # fmt: skip
        for value, i in sorted(beyond, key=lambda item: -item[0])[:MAX_POINTS]:
            ratio, expected = _number(cells["time_ratio"][i]), _number(cells["expected_ratio"][i])
            assumed = "" if cells["basis"][i] == "work" else " (assumed from its class)"
            zh_assumed = "" if cells["basis"][i] == "work" else "（按类别假定）"
            said.append(Words(
                f"{cells['name'][i]} takes {format_factor(ratio)}x as long on {b.en}; the rooflines let expect "
                f"{format_factor(expected)}x{assumed}: {format_ns(value)} beyond that.",
                f"{cells['name'][i]} 在 {b.zh}上耗时为 {a.zh}的 {format_factor(ratio)} 倍，按 Roofline 预期为 "
                f"{format_factor(expected)} 倍{zh_assumed}：超出 {format_ns(value)}。",
            ))  # fmt: skip
        better = [
            (int(_number(value)), i) for i, value in enumerate(cells["delta_ns"]) if _number(value) <= -least
            and cells["name"][i] != NOT_ATTRIBUTED
        ]  # fmt: skip
        for delta, i in sorted(better)[:MAX_POINTS]:
            said.append(Words(
                f"{cells['name'][i]} takes {format_ns(-delta)} less on {b.en}.",
                f"{cells['name'][i]} 在 {b.zh}上少用 {format_ns(-delta)}。",
            ))  # fmt: skip
        for letter, time, total in (
            (a, int(self.diff.rows.self_a_ns[1]), self.diff.total_a_ns),
            (b, int(self.diff.rows.self_b_ns[1]), self.diff.total_b_ns),
        ):
            if time > MIN_POINT_RATIO * total:
                share = format_quantity(time / total, "ratio")
                said.append(Words(
                    f"{share} of the device time of {letter.en} is not attributed: the launch was not recorded (before "
                    "the recording began, or by a graph).",
                    f"{letter.zh}的 Device 耗时有 {share} 未归属：没有记录到下发（早于采集开始，或由图下发）。",
                ))  # fmt: skip
        return tuple(said)


def _spaced(name: Words) -> Words:
    """A name in a sentence in Chinese: a space behind Latin letters, none behind a full-width parenthesis."""
    return Words(name.en, name.zh if name.zh.endswith("）") else f"{name.zh} ")


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else float("nan")


def names_of(names: Text, order: Ints) -> list[str]:
    """Values of a text whose codes are 0, 1, 2 ... in another order."""
    return [names.values[code] for code in order.tolist()]


def _kernels(found: Sequence[KernelSum]) -> str | None:
    """The tasks of a row in one cell: `name x count`, separated by semicolons."""
    said = []
    for one in found:
        name = one.name if len(one.name) <= MAX_NAME else f"{one.name[:MAX_NAME]}…"
        via = f"{one.via}: " if one.via else ""
        said.append(f"{via}{name} x {one.count} ({format_ns(one.time_ns)})")
    return "; ".join(said) or None


_PARTS: Final = (
    ("computing", Words("computing", "计算"), "computing"),
    ("exposed communication", Words("communication not overlapped", "未被掩盖的通信"), "transfer"),
    ("exposed copy", Words("copies not overlapped", "未被掩盖的拷贝"), "copy"),
    ("idle", Words("idle", "空闲"), "idle"),
)  # fmt: skip


def step_bar(trace: Trace, letter: str, mark: Words | None = None) -> StepBar | None:
    """The parts of the median step of a rank; None where its kernels have no times.

    Source:
        rivals-and-methods, method 5.1: unions of intervals in the step's window, in whole ns.
    """
    windows = _steps.step_windows(trace)
    at = _steps.representative(trace, windows)
    if at is None or not trace.has(KERNELS):
        return None
    kernels = trace[KERNELS]
    computing = _steps.unions_by_step(trace, kernels, computes(kernels), windows)[at]
    communication = _steps.unions_by_step(trace, trace[COMM_OPS], windows=windows)[at]
    copies = _steps.unions_by_step(trace, trace[COPIES], windows=windows)[at]
    busy = intervals.union(computing, communication)
    times = [intervals.total(computing), intervals.total(intervals.difference(communication, computing))]
    times.append(intervals.total(intervals.difference(copies, busy)))
    times.append(windows.span_ns(at) - sum(times))
    return StepBar(letter=letter, mark=mark, parts=tuple(
        SplitPart(key=key, label=label, kind=kind, time_ns=time)  # type: ignore[arg-type]
        for (key, label, kind), time in zip(_PARTS, times, strict=True)
    ))  # fmt: skip
