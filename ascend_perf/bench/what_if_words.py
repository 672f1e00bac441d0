"""What is said of estimates: the answer, the best configuration of each chip, what to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ascend_perf.model.finding import Words
from ascend_perf.model.what_if import Outcome, Verdict
from ascend_perf.units import significant

MAX_RIVALS: Final = 3
"""Configurations that are named beside the best one."""


def verdict_words(verdict: Verdict, outcomes: Sequence[Outcome]) -> Words:
    """Which configuration is best on a chip, or that it cannot be told."""
    where = f"{verdict.soc} x {verdict.world_size}"
    if verdict.best is None:
        tried = [one for one in outcomes if verdict.judges(one) and one.kind != "does-not-fit"]
        if tried and all(one.kind == "out-of-memory" for one in tried):
            return Words(
                f"{where}: out of memory in every configuration that was tried",
                f"{where}：所有尝试的配置均内存不足",
            )
        return Words(f"{where}: no configuration has an estimate", f"{where}：没有可用的估计结果")
    best = outcomes[verdict.best]
    assert best.estimate is not None
    name, rate = best.configuration.words, _rate_words(best)
    if not verdict.rivals:
        if sum(one.estimate is not None and verdict.judges(one) for one in outcomes) == 1:
            return Words(f"{where}: {name.en}, {rate.en}; nothing else to compare with",
                         f"{where}：{name.zh}，{rate.zh}；没有其他可比较的配置")  # fmt: skip
        return Words(f"{where}: {name.en} is best, {rate.en}", f"{where}：{name.zh} 最优，{rate.zh}")
    names = [outcomes[index].configuration.words for index in verdict.rivals]
    more = len(names) - MAX_RIVALS
    shown = [name, *names[:MAX_RIVALS]]
    english = [one.en for one in shown]
    english_list = f"{', '.join(english)} and {more} more" if more > 0 else _listed(english)
    chinese = "、".join(one.zh for one in shown) + (f" 等 {len(names) + 1} 种" if more > 0 else "")
    return Words(
        f"{where}: cannot tell between {english_list} within the error of the model; {name.en} is modelled at "
        f"{rate.en}",
        f"{where}：在模型误差范围内无法区分 {chinese}；{name.zh} 的建模值为{rate.zh}",
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _range(outcome: Outcome) -> tuple[float, float, float]:
    """Items a second on each device: the modelled ones, the least and the most."""
    estimate, world = outcome.estimate, outcome.configuration.world_size
    assert estimate is not None
    return (
        estimate.per_s_per_device(world), estimate.per_s_per_device(world, estimate.high_ns),
        estimate.per_s_per_device(world, estimate.low_ns),
    )  # fmt: skip


def _rate_words(outcome: Outcome) -> Words:
    assert outcome.estimate is not None
    rate, least, most = (significant(value, 3) for value in _range(outcome))
    item = outcome.estimate.item
    return Words(
        f"{rate} {item}/s on each device ({least} to {most})", f"每卡 {rate} {item}/s（{least} 至 {most}）"
    )


def whole_words(
    workload: str, preset: str, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]
) -> tuple[Words, Words, tuple[Words, ...]]:
    """How the answer begins, the answer, and what to know of it."""
    lead = Words(f"{workload} {preset}, estimated:", f"{workload} {preset} 估计结果：")
    known = [verdict for verdict in verdicts if verdict.best is not None]
    if not known:
        return lead, verdicts[0].said if verdicts else Words("nothing was run", "没有运行任何配置"), _notes(outcomes)
    main = known[0].said if len(verdicts) == 1 else _over_all(known, outcomes)
    return lead, main, _notes(outcomes)


def _over_all(verdicts: Sequence[Verdict], outcomes: Sequence[Outcome]) -> Words:
    """The chip and number of ranks with the most items a second on each device, if the ranges tell it.

    Errors on different chips are not the same, so that here the ranges themselves are compared.
    """
    ranges = [(_range(outcomes[verdict.best or 0]), verdict) for verdict in verdicts]
    (_, least, _), first = max(ranges, key=lambda row: row[0][0])
    best = outcomes[first.best or 0]
    rate = _rate_words(best)
    near = [f"{one.soc} x {one.world_size}" for (_, _, most), one in ranges if one is not first and most >= least]
    where, name = f"{first.soc} x {first.world_size}", best.configuration.words
    lead = Words(
        f"most on each device with {where}, {name.en}: {rate.en}", f"每卡吞吐最高为 {where}（{name.zh}）：{rate.zh}"
    )
    if not near:
        return lead
    return Words(
        f"{lead.en}; {_listed(near)} may do as well within the error of the model",
        f"{lead.zh}；在模型误差范围内，{'、'.join(near)} 可能相当",
    )


def _notes(outcomes: Sequence[Outcome]) -> tuple[Words, ...]:
    estimates = [one.estimate for one in outcomes if one.estimate is not None]
    notes = [] if not estimates else [
        Words(
            "ranges: between them lies the real value in about 80 of 100 cases, by the errors of the cost model; the "
            "error of a class of operators is common to all layouts of a chip, so that layouts differ more surely than "
            "their ranges suggest",
            "区间：按代价模型误差，约 80 % 的情况下实际值落在其中；同类算子的误差对同一芯片的各布局是相同的，"
            "因此布局之间的差别比区间所示更可靠",
        ),
        Words(
            "one process stands for all ranks: waiting for slower ranks is not in it",
            "由一个进程代表所有 Rank：不包含等待慢 Rank 的时间",
        ),
    ]
    if any(one.parts.get("bubble") for one in estimates):
        notes.append(Words(
            "pipelines: what was run is the first stage; the bubble is added by formula, (stages - 1) / micro-batches "
            "of the step, and other stages are taken to be as long",
            "流水线并行：运行的是第一个 stage；气泡按公式（stage 数 - 1）/ micro-batch 数计入，其余 stage 视为耗时相同",
        ))  # fmt: skip
    if any(one.kind == "out-of-memory" for one in outcomes):
        notes.append(Words(
            "out of memory was found by the real allocator of torch_npu on the memory of the chip, not by a formula",
            "内存不足由 torch_npu 真实的内存分配器按芯片内存容量判定，而非公式推算",
        ))  # fmt: skip
    if len({one.items_per_step for one in estimates}) > 1:
        notes.append(Words(
            "a step is not the same work in all layouts: compare items a second, not step times",
            "不同布局的单步工作量不同：请比较每秒吞吐，而不是单步耗时",
        ))  # fmt: skip
    return tuple(notes)
