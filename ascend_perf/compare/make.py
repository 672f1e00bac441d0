"""From inputs to a comparison: is the work the same, figures, steps, and where the time differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._utilisation import utilisation_of
from ascend_perf.compare.inputs import Input, machine, matched
from ascend_perf.compare.metrics import (
    Measured,
    Measurements,
    efficiency_table,
    is_other,
    metric_table,
    of_benchmark,
    of_metrics,
    ratio_bounds,
    score,
)
from ascend_perf.compare.pair import Pair, pair_of, step_bar
from ascend_perf.compare.same_work import unlike_settings, unlike_traces
from ascend_perf.compare.trees import NOT_ATTRIBUTED
from ascend_perf.compare.work_tree import HostCalls
from ascend_perf.device.specs import DeviceSpec, spec_for
from ascend_perf.errors import AscendPerfError, UsageError
from ascend_perf.model.comparison import Comparison, Section, SideFacts, Unlike, named, simulated_mark
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.run import Fact
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.units import counted, format_factor, format_ns, format_quantity

LETTERS = "ABCDEFGH"
"""Names of the sides; there are no more than these."""

MAX_LACKING = 8
"""Figures that a side lacks which are named. Status: assumed."""

MAX_SAID = 20
"""Differences of the work that are told one by one. Status: assumed."""


class NotComparable(AscendPerfError):
    """The sides did different work, or what they hold does not allow to compare them (exit code 4, as of the gate)."""

    exit_code = 4

    def __init__(self, reasons: Sequence[Unlike], hint: str, lang: Literal["en", "zh"] = "en") -> None:
        self.reasons = tuple(reasons)
        said = [reason.what.zh if lang == "zh" else reason.what.en for reason in reasons[:MAX_SAID]]
        lines = said if len(said) == 1 else [f"\n  - {line}" for line in said]
        super().__init__(f"{'不可比：' if lang == 'zh' else 'not comparable: '}{''.join(lines)}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class _Side:
    letter: str
    input: Input
    trace: Trace | None
    calls: HostCalls | None


def compare(
    inputs: Sequence[Input], *, force: bool = False, simulated: bool = False, rank: int | None = None
) -> Comparison:
    """The comparison of two or more inputs; the first is the baseline.

    Args:
        inputs: results, runs or traces.
        force: go on where the work differs; the differences are then said on every report.
        simulated: take simulated data too; that is then said.
        rank: whose calls are compared; None: the first rank that recorded some.

    Raises:
        UsageError: fewer than two inputs, too many, result files together with traces, or a rank that is not there.
        NotComparable: the work differs or cannot be checked, or data are simulated and that was not asked for.
    """
    if not 2 <= len(inputs) <= len(LETTERS):
        raise UsageError(f"2 to {len(LETTERS)} inputs can be compared, {len(inputs)} given")
    kinds = {one.kind == "results" for one in inputs}
    if len(kinds) > 1:
        raise UsageError(
            "result files cannot be compared with runs or traces",
            hint="compare two result files, or two runs or traces; a result file names the folders of its runs",
        )
    made_up = [letter for letter, one in zip(LETTERS, inputs, strict=False) if one.origin == "simulated"]
    if made_up and not simulated:
        raise NotComparable(
            [Unlike(is_grave=True, what=Words(
                f"{', '.join(made_up)} holds simulated data", f"{'、'.join(made_up)} 含仿真数据"
            ))],
            hint="add --simulated to compare simulated data; every report then says so",
        )  # fmt: skip
    if inputs[0].results is not None:
        return _results(inputs, force)
    return _runs(inputs, force, rank)


def _checked(unlike: Sequence[Unlike], force: bool) -> tuple[Unlike, ...]:
    grave = [one for one in unlike if one.is_grave]
    if grave and not force:
        raise NotComparable(grave, hint="add --force to compare them nevertheless; every report then says so")
    return tuple(unlike)[:MAX_SAID]


# ---- runs and traces -------------------------------------------------------------------------------------------------


def _runs(inputs: Sequence[Input], force: bool, rank: int | None) -> Comparison:
    sides = []
    for letter, one in zip(LETTERS, inputs, strict=False):
        trace = one.trace(rank)
        if rank is not None and trace is None:
            raise UsageError(f"rank {rank} has no kernels and no calls in {letter} ({one.label})")
        sides.append(_Side(letter=letter, input=one, trace=trace, calls=HostCalls.of(trace) if trace else None))
    unlike: list[Unlike] = []
    pairs: list[Pair] = []
    base = sides[0]
    simulated = [side.letter for side in sides if side.input.origin == "simulated"]
    for side in sides[1:]:
        both = base.letter, side.letter
        unlike += _unlike_runs(base, side)
        if base.calls is not None and side.calls is not None and base.trace is not None and side.trace is not None:
            if base.calls.is_host != side.calls.is_host:
                on = base.letter if base.calls.is_host else side.letter
                unlike.append(Unlike(is_grave=True, what=Words(
                    f"{on} ran on the CPU: its times are of calls of the host, the other side's of tasks of a device",
                    f"{on} 在 CPU 上运行：其耗时为 Host 调用耗时，另一侧为 Device 任务耗时",
                )))  # fmt: skip
            pair = pair_of(base.calls, side.calls, letters=both, simulated=simulated)
            unlike += unlike_traces(pair.diff, base.trace, side.trace, both)
            pairs.append(pair)
    said = _checked(sorted(unlike, key=lambda one: not one.is_grave), force)
    measured = [_measured(side) for side in sides]
    letters = [side.letter for side in sides]
    said += _one_sided(letters, measured)
    figures = [
        metric_table(letters, measured, "compare-metrics", Words("Figures", "指标")),
        efficiency_table(letters, measured, "compare-efficiency", Words("Efficiency", "效率")),
    ]
    bars = tuple(
        bar for side in sides if side.trace is not None
        and (bar := step_bar(side.trace, side.letter, simulated_mark([side.letter], simulated)))
    )
    sections = [_section("figures", Words("Figures", "指标"), figures, simulated_mark(letters, simulated))]
    for pair in pairs:
        mark, tables = simulated_mark(pair.letters, simulated), pair.tables
        suffix = "" if len(pairs) == 1 else f" · {pair.letters[0]} / {pair.letters[1]}"
        key = "" if len(pairs) == 1 else f"-{pair.letters[1].lower()}"
        sections += [
            None if pair.is_host else
            _section(f"classes{key}", Words(f"Classes of operators{suffix}", f"算子类别{suffix}"), tables[:1], mark),
            _section(f"operators{key}", Words(f"Operators{suffix}", f"算子{suffix}"), tables[1:2], mark),
            _section(f"calls{key}", Words(f"Call by call{suffix}", f"逐调用{suffix}"), tables[2:], mark),
        ]
    lead, main = _answer(sides, pairs, measured, simulated)
    return Comparison(
        sides=tuple(_facts(side) for side in sides), lead=lead, main=main, said=said,
        points=tuple(point for pair in pairs for point in pair.points), bars=bars,
        sections=tuple(section for section in sections if section is not None),
        totals={f"{pair.letters[0]}/{pair.letters[1]}": _totals(pair, simulated) for pair in pairs},
    )  # fmt: skip


def _one_sided(
    letters: Sequence[str], sides: Sequence[Measurements], name: str = "", there: Sequence[bool] | None = None
) -> tuple[Unlike, ...]:
    """For each side that lacks figures of another one: which, so that their absence is no agreement.

    Args:
        letters: of the sides.
        sides: what they measured.
        name: of the piece of work, where there are several.
        there: sides that have this piece of work at all; None: all of them.
    """
    every = dict.fromkeys(key for side in sides for key in side.metrics)
    found = []
    for place, (letter, side) in enumerate(zip(letters, sides, strict=True)):
        lacking = [key for key in every if key not in side.metrics]
        if not lacking or (there is not None and not there[place]):
            continue
        more = len(lacking) - MAX_LACKING
        keys = ", ".join(lacking[:MAX_LACKING])
        en, zh = (f"{keys} and {more} more", f"{keys} 等 {len(lacking)} 项") if more > 0 else (keys, keys)
        of, of_zh = (f"{name}: ", f"{name}：") if name else ("", "")
        found.append(Unlike(is_grave=False, what=Words(
            f"{of}only the other side{'s have' if len(sides) > 2 else ' has'}, {letter} lacks: {en}",
            f"{of_zh}{letter} 缺少而其他侧具有的指标：{zh}",
        )))  # fmt: skip
    return tuple(found)


def _section(
    key: str, title: Words, tables: Sequence[ResultTable | None], mark: Words | None = None
) -> Section | None:
    there = tuple(table for table in tables if table is not None and len(table))
    return Section(key=key, title=title, tables=there, mark=mark) if there else None


def _unlike_runs(a: _Side, b: _Side) -> list[Unlike]:
    run_a, run_b = a.input.run, b.input.run
    if run_a is None or run_b is None or run_a.manifest is None or run_b.manifest is None:
        return []
    one, other = run_a.manifest, run_b.manifest
    settings_a: dict[str, object] = {**one.config, "workload": one.workload, "preset": one.preset}
    settings_b: dict[str, object] = {**other.config, "workload": other.workload, "preset": other.preset}
    return unlike_settings(settings_a, settings_b, letters=(a.letter, b.letter))


def _totals(pair: Pair, simulated: Collection[str]) -> Mapping[str, Fact]:
    rows = pair.diff.rows
    origins = ["simulated" if letter in simulated else "measured" for letter in pair.letters]
    return {
        "data_origin_a": origins[0], "data_origin_b": origins[1],
        "device_time_a_ns": pair.diff.total_a_ns, "device_time_b_ns": pair.diff.total_b_ns,
        "rows_a_ns": int(rows.self_a_ns.sum()), "rows_b_ns": int(rows.self_b_ns.sum()),
        "not_attributed_a_ns": int(rows.self_a_ns[1]), "not_attributed_b_ns": int(rows.self_b_ns[1]),
        "aligned_calls": len(pair.diff.alignment.a) - 1,
        "calls_a": len(pair.diff.a) - 1, "calls_b": len(pair.diff.b) - 1,
    }  # fmt: skip


def _measured(side: _Side) -> Measurements:
    run = side.input.run
    assert run is not None
    metrics = dict(of_metrics(run.manifest.metrics)) if run.manifest is not None else {}
    spec, dtype = None, None
    if side.trace is not None:
        spec, dtype = spec_for(side.trace.meta.device), _dtype_of(side.trace)
        for name, measured in _of_trace(side.trace).items():
            metrics.setdefault(name, measured)
    return Measurements(
        metrics=metrics, cards=max(1, len(run.traces)), spec=spec, dtype=dtype,
        is_simulated=side.input.origin == "simulated",
    )


def _dtype_of(trace: Trace) -> str | None:
    """Type of the operands in which the matrix units spend most time."""
    use = utilisation_of(trace)
    codes = use.dtype.codes[use.is_cube]
    known = codes >= 0
    if not known.any():
        return None
    time = np.bincount(codes[known], use.duration[use.is_cube][known].astype(float), len(use.dtype.values))
    return use.dtype.values[int(time.argmax())]


def _of_trace(trace: Trace) -> dict[str, Measured]:
    """Figures of the steps of a trace: the time of each step is one value, but steps of one process are one run."""
    windows = _steps.step_windows(trace)
    bar = step_bar(trace, "")
    made: dict[str, Measured] = {}
    if bar is not None and bar.total_ns > 0:
        idle = next(part.time_ns for part in bar.parts if part.key == "idle")
        made["profiled_step_time"] = Measured(values=(float(bar.total_ns),), unit="ns", better="lower")
        made["steps_per_s"] = Measured(values=(1e9 / bar.total_ns,), unit="items_per_s", better="higher")
        made["device_idle_ratio"] = Measured(values=(idle / bar.total_ns,), unit="ratio", better="lower")
    at = _steps.representative(trace, windows)
    if bar is None and at is not None:
        made["profiled_step_time"] = Measured(values=(float(windows.span_ns(at)),), unit="ns", better="lower")
    steps = max(1, len(windows))
    kernels = trace[KERNELS]
    inside = _steps.membership(trace, kernels, windows) >= 0
    if len(kernels):
        made["kernels_per_step"] = Measured(values=(float(inside.sum()) / steps,), unit="count", better="lower")
    return made


def _facts(side: _Side) -> SideFacts:
    run, trace = side.input.run, side.trace
    assert run is not None
    facts: list[tuple[Words, Words]] = []
    spec = spec_for(trace.meta.device) if trace is not None else None
    facts += _machine_facts(spec, _dtype_of(trace) if trace is not None else None)
    if run.manifest is not None:
        name = run.manifest.workload + (f"/{run.manifest.preset}" if run.manifest.preset else "")
        facts.append((Words("workload", "工作负载"), Words(name, name)))
    if trace is not None and len(run.traces) > 1:
        rank = "?" if trace.meta.rank is None else str(trace.meta.rank)
        facts.append((Words("rank compared", "对比的卡"), Words(
            f"{rank} of {len(run.traces)}", f"{rank}（共 {len(run.traces)} 张）"
        )))  # fmt: skip
    if side.calls is not None and trace is not None:
        windows = _steps.step_windows(trace)
        at = _steps.representative(trace, windows)
        number = None if at is None else windows.step_id(at)
        if number is not None:
            facts.append((Words("step", "step"), Words(
                f"{number} of {len(windows)} (median length)" if len(windows) > 1 else f"{number}, the only one",
                f"{number}（共 {len(windows)} 个，取时长中位）" if len(windows) > 1 else f"{number}（唯一）",
            )))  # fmt: skip
    device = trace.meta.device.name if trace is not None else None
    if device is None and run.manifest is not None:
        device = _text(run.manifest.device_facts.get("name"))
    return SideFacts(
        letter=side.letter, label=side.input.label, kind=side.input.kind,
        device=device or (spec.name if spec else None),
        origin=side.input.origin, cards=max(1, len(run.traces)), facts=tuple(facts),
    )  # fmt: skip


def _machine_facts(spec: DeviceSpec | None, dtype: str | None) -> list[tuple[Words, Words]]:
    if spec is None:
        unknown = Words("not in the device table: no expected ratios", "设备表中没有，无法给出预期比值")
        return [(Words("peaks", "峰值"), unknown)]
    made = []
    peak = spec.matrix_peak(dtype or "bf16")
    if peak:
        text = format_quantity(peak, "flops_per_s")
        made.append((Words(f"peak {dtype or 'bf16'}", f"{dtype or 'bf16'} 峰值"), Words(text, text)))
    if spec.memory_bytes_per_s.value:
        text = format_quantity(spec.memory_bytes_per_s.value, "bytes_per_s")
        made.append((Words("memory rate", "显存带宽"), Words(text, text)))
    return made


STEPS: Final = (
    ("step_time_median", Words(", timed without the profiler", "，未采集时测得")),
    ("profiled_step_time", None),
)
"""Figures that say how long a step takes, the surest first, and what to know of them."""


def _answer(
    sides: Sequence[_Side], pairs: Sequence[Pair], measured: Sequence[Measurements], simulated: Collection[str]
) -> tuple[Words, Words]:
    lead_en, lead_zh, main_en, main_zh = [], [], [], []
    of = dict(zip((side.letter for side in sides), measured, strict=True))
    for pair in pairs:
        a, b = (named(letter, simulated) for letter in pair.letters)
        metrics = [of[letter].metrics for letter in pair.letters]
        key, how = next(
            ((key, how) for key, how in STEPS if all(key in one and score(one[key].values) > 0 for one in metrics)),
            (None, None),
        )
        if key is not None:
            how_en, how_zh = ("", "") if how is None else (how.en, how.zh)
            old, new = (score(one[key].values) for one in metrics)
            change = f"{format_ns(old)} → {format_ns(new)}"
            lead_en.append(f"The step takes {_times(new, old)} in {b.en} as in {a.en} ({change}{how_en}).")
            lead_zh.append(f"{b.zh} 的单步耗时为 {a.zh} 的 {_x(new, old)} 倍（{change}{how_zh}）。")
        diff = pair.diff
        if not diff.total_a_ns:
            continue
        table = pair.tables[1]
        most = [
            f"{name} {_signed(delta)}" for name, delta in zip(
                table.column("name"), table.column("delta_ns"), strict=True
            ) if isinstance(delta, int) and delta and name != NOT_ATTRIBUTED
        ][:2]  # fmt: skip
        more_en = f"; most of the difference: {', '.join(most)}" if most else ""
        more_zh = f"；差异主要来自：{'、'.join(most)}" if most else ""
        what, what_zh = ("Time of calls of the host", "Host 调用") if pair.is_host else ("Device time", "Device ")
        # The sides are named where there are several pairs, and where one of them is no measurement.
        of_en, of_zh = (f" of {b.en}", f"{b.zh} 的 ") if len(pairs) > 1 or len(b.en) > 1 or len(a.en) > 1 else ("", "")
        than_en, than_zh = (f" as of {a.en}", f" {a.zh} 的") if of_en else ("", "")
        main_en.append(
            f"{what}{of_en} is {_times(diff.total_b_ns, diff.total_a_ns)}{than_en} "
            f"({format_ns(diff.total_a_ns)} → {format_ns(diff.total_b_ns)}){more_en}."
        )
        main_zh.append(
            f"{of_zh}{what_zh}耗时为{than_zh} {_x(diff.total_b_ns, diff.total_a_ns)} 倍"
            f"（{format_ns(diff.total_a_ns)} → {format_ns(diff.total_b_ns)}）{more_zh}。"
        )
    if not main_en:
        main_en, main_zh = ["No rank of both sides has kernels to compare."], ["没有两侧都含 Kernel 的卡可供对比。"]
    names = ", ".join(f"{side.letter} = {side.input.label}" for side in sides)
    return Words(" ".join(lead_en) or names, _joined(lead_zh) or names), Words(" ".join(main_en), _joined(main_zh))


def _joined(sentences: Sequence[str]) -> str:
    """Sentences in Chinese; a full-width parenthesis has its space in itself."""
    return "".join(sentences).replace("） ", "）")


def _x(new: float, old: float) -> str:
    return format_factor(new / old)


def _times(new: float, old: float) -> str:
    return f"{_x(new, old)} times as long"


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '-'}{format_ns(abs(ns))}"


# ---- result files ----------------------------------------------------------------------------------------------------


def _results(inputs: Sequence[Input], force: bool) -> Comparison:
    sets = [one.results for one in inputs if one.results is not None]
    letters = list(LETTERS[: len(sets)])
    unlike: list[Unlike] = []
    sections: list[Section] = []
    single: list[Words] = []
    alone: list[Unlike] = []
    heads: list[tuple[str, list[Measurements]]] = []
    for name, row in matched(sets):
        there = [benchmark for benchmark in row if benchmark is not None]
        lacking = [letter for letter, benchmark in zip(letters, row, strict=True) if benchmark is None]
        if len(there) < 2:
            single.append(Words(f"{name} is not in {', '.join(lacking)}", f"{'、'.join(lacking)} 中没有 {name}"))
            continue
        base = there[0]
        first, *others = (letter for letter, benchmark in zip(letters, row, strict=True) if benchmark is not None)
        for letter, benchmark in zip(others, there[1:], strict=True):
            unlike += unlike_settings(base.config, benchmark.config, name, (first, letter))
        measured = [
            Measurements() if benchmark is None else Measurements(
                metrics=of_benchmark(benchmark), cards=max(1, benchmark.world_size),
                spec=machine(dict(results.fingerprint), benchmark.device), dtype=_dtype_setting(benchmark.config),
                is_simulated=benchmark.data_origin == "simulated",
            )
            for results, benchmark in zip(sets, row, strict=True)
        ]  # fmt: skip
        heads.append((name, measured))
        alone += _one_sided(letters, measured, name, there=[benchmark is not None for benchmark in row])
        number = len(heads)
        section = _section(f"benchmark-{number}", Words(name, name), [
            metric_table(letters, measured, f"compare-metrics-{number}", Words("Figures", "指标")),
            efficiency_table(letters, measured, f"compare-efficiency-{number}", Words("Efficiency", "效率")),
        ], simulated_mark(letters, _simulated(letters, measured)))  # fmt: skip
        if section is not None:
            sections.append(section)
    if not heads:
        nothing = Words("no benchmark is in two of the files", "没有同时出现在两个文件中的测试项")
        raise NotComparable(
            [Unlike(is_grave=True, what=nothing)],
            hint="compare results of the same suite: workload, preset, variant and world size must be equal",
        )
    said = _checked(sorted(unlike, key=lambda one: not one.is_grave), force)
    said += tuple(Unlike(is_grave=False, what=what) for what in single[:MAX_SAID])
    said += tuple(alone[:MAX_SAID])
    lead, main = _answer_results(letters, heads)
    facts = tuple(
        SideFacts(
            letter=letter, label=one.label, kind="results", device=_text(results.fingerprint.get("chip")),
            origin=one.origin, cards=max((b.world_size for b in results.benchmarks), default=1),
            facts=(
                (Words("suite", "测试集"), Words(results.suite or "—", results.suite or "—")),
                (Words("measured", "测量时间"), Words(results.created or "—", results.created or "—")),
                *_machine_facts(machine(dict(results.fingerprint)), None),
            ),
        )
        for letter, one, results in zip(letters, inputs, sets, strict=True)
    )  # fmt: skip
    return Comparison(sides=facts, lead=lead, main=main, said=said, sections=tuple(sections))


def _simulated(letters: Sequence[str], measured: Sequence[Measurements]) -> list[str]:
    return [letter for letter, one in zip(letters, measured, strict=True) if one.is_simulated]


def _text(value: Fact) -> str | None:
    return value if isinstance(value, str) else None


def _dtype_setting(config: Mapping[str, Fact]) -> str | None:
    value = config.get("dtype")
    return value if isinstance(value, str) and value != "auto" else None


def _answer_results(letters: Sequence[str], heads: Sequence[tuple[str, list[Measurements]]]) -> tuple[Words, Words]:
    """The first throughput of each piece of work, every other side against the first."""
    said_en, said_zh = [], []
    for name, measured in heads[:3]:
        first = measured[0].metrics
        others = list(zip(letters[1:], measured[1:], strict=True))
        key = next((
            k for k, m in first.items()
            if m.unit == "items_per_s" and any(k in side.metrics and not is_other(m, side.metrics[k])
                                               for _, side in others)
        ), None)  # fmt: skip
        if key is None or score(first[key].values) <= 0:
            continue
        simulated = _simulated(letters, measured)
        base = named(letters[0], simulated)
        ratios_en, ratios_zh = [], []
        for letter, side in others:
            if key not in side.metrics or is_other(first[key], side.metrics[key]):
                continue
            other = named(letter, simulated)
            a, b = first[key].values, side.metrics[key].values
            ratio, bounds = format_factor(score(b) / score(a)), ratio_bounds(a, b)
            doubt = bounds is not None and bounds[0] <= 1 <= bounds[1]
            ratios_en.append(f"{other.en} {ratio} times{' (not told apart)' if doubt else ''}")
            ratios_zh.append(f"{other.zh} 为 {ratio} 倍{'（无法区分）' if doubt else ''}")
        said_en.append(f"{name}: {key} compared with {base.en}: {', '.join(ratios_en)}.")
        said_zh.append(f"{name} 的 {key} 与 {base.zh} 相比：{'，'.join(ratios_zh)}。")
    count = len(heads)
    lead = Words(f"{counted(count, 'piece')} of work compared.", f"对比了 {count} 项工作。")
    none = ("No throughput is in both files; see the figures.", "两个文件没有共同的吞吐指标，见各项指标。")
    return lead, Words(" ".join(said_en) or none[0], _joined(said_zh) or none[1])
