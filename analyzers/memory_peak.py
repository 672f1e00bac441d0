"""What lives at the peak of the framework's memory: blocks by operator, module and line of Python."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._python_lines import around
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers.memory import components, framework
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import MEMORY_BLOCKS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_quantity, format_ratio

NAME: Final = "memory-peak"
MAX_ROWS: Final = 60


@analyzer(name=NAME, needs=(MEMORY_BLOCKS,), order=87, section="memory")
def memory_peak(trace: Trace) -> Result:
    """Blocks that live at the peak, grouped by the operator, module and line of Python that allocated them.

    Reads:
        memory: time_ns, component, allocated_bytes; memory_blocks: name, size_bytes, alloc_ns, free_ns, thread;
        host_ops: names, times, stack; python_calls.

    Returns:
        Table `peak-blocks`, and the share of the peak that its blocks are; the rest was allocated before the capture.
    """
    blocks = trace[MEMORY_BLOCKS]
    size = blocks.ints("size_bytes")
    usable = (size != NULL) & (size > 0)
    if not usable.any():
        raise NoData(Words("no block of memory has a size", "没有带大小的内存块"))
    when, peak = peak_of(trace, blocks)
    rows = np.flatnonzero(usable & alive_at(blocks, when))
    held = int(size[rows].sum())
    metrics: tuple[Metric, ...] = ()
    if peak:
        # The allocator rounds what it counts, the blocks need not be: never more than all of it.
        share = min(1.0, held / peak)
        metrics = (Metric(name="peak_blocks_known", value=share, unit="ratio", better="none", rank=trace.meta.rank),)
    if not len(rows):
        return Result(metrics=metrics)
    return Result(metrics=metrics, tables=(_table(trace, blocks, rows, peak, held),))


def peak_of(trace: Trace, blocks: Table) -> tuple[int, int | None]:
    """Time of the peak and what was allocated then: by the allocator's samples, else the most that blocks add up to."""
    own = framework(components(trace))
    found = None if own is None else own.peak(own.allocated)
    if found is not None and found[0] > 0:
        return found[1], found[0]
    return most_alive(blocks), None


def most_alive(blocks: Table) -> int:
    """Time at which the blocks with known sizes add up to most, the first of several."""
    size, alloc, free = (blocks.ints(name) for name in ("size_bytes", "alloc_ns", "free_ns"))
    known = np.flatnonzero((size != NULL) & (alloc != NULL))
    released = np.flatnonzero((size != NULL) & (free != NULL))
    if not len(known) and not len(released):
        return 0
    times, of = np.unique(np.concatenate((alloc[known], free[released])), return_inverse=True)
    # Blocks that end when others begin do not live together: all changes of one time happen at once.
    living = np.cumsum(np.bincount(of.reshape(-1), np.concatenate((size[known], -size[released]))))
    # Before the first change live those that were there before the capture.
    return int(times[int(np.argmax(living))]) if living.max() > 0 else int(times[0]) - 1


def alive_at(blocks: Table, when: int) -> Bools:
    """Blocks that are allocated at a time: from their allocation on, until they are freed."""
    alloc, free = blocks.ints("alloc_ns"), blocks.ints("free_ns")
    alive: Bools = ((alloc == NULL) | (alloc <= when)) & ((free == NULL) | (free > when))
    return alive


def _table(trace: Trace, blocks: Table, rows: Ints, peak: int | None, held: int) -> ResultTable:
    size, alloc, free = (blocks.ints(name)[rows] for name in ("size_bytes", "alloc_ns", "free_ns"))
    known = np.flatnonzero(alloc != NULL)
    found = around(trace, blocks.ints("thread")[rows[known]], alloc[known])
    line, module = _spread(found.line, known, len(rows)), _spread(found.module, known, len(rows))
    names = blocks.text("name").take(rows)
    keys, of = np.unique(np.stack((names.codes, module.codes, line.codes)), axis=1, return_inverse=True)
    of = of.reshape(-1)
    groups = keys.shape[1]
    total = np.bincount(of, size, groups).astype(np.int64)
    count = np.bincount(of, minlength=groups)
    top = np.argsort(-total, kind="stable")[:MAX_ROWS]
    life = np.where((alloc == NULL) | (free == NULL), NULL, free - alloc)
    first = [_least(alloc[of == group]) for group in top.tolist()]
    lives = [_median(life[of == group]) for group in top.tolist()]
    largest = [int(size[of == group].max()) for group in top.tolist()]
    return result_table(
        "peak-blocks",
        Words("Blocks alive at the peak", "峰值时存活的内存块"),
        (
            Col("name", "Operator", "算子", [_named(names, code) for code in keys[0][top].tolist()]),
            Col("module", "Module", "模块", [_named(module, code) for code in keys[1][top].tolist()]),
            Col("line", "Python", "Python 代码行", [_named(line, code) for code in keys[2][top].tolist()]),
            Col("blocks", "Blocks", "内存块数", count[top], "count"),
            Col("size_bytes", "Size", "大小", total[top], "bytes"),
            Col("share_ratio", "Of the peak", "占峰值", total[top] / (peak or held), "ratio"),
            Col("largest_bytes", "Largest", "最大一块", largest, "bytes"),
            Col("alloc_ns", "First allocated at", "最早分配时间", first),
            Col("held_ns", "Lives (median)", "存活时长（中位数）", lives, "ns"),
        ),
        _note(peak, held, rows, groups),
    )


def _note(peak: int | None, held: int, rows: Ints, groups: int) -> Words:
    cut = ("", "") if groups <= MAX_ROWS else (
        f" The {MAX_ROWS} largest of {groups} groups.", f"仅列出 {groups} 组中最大的 {MAX_ROWS} 组。"
    )  # fmt: skip
    if peak is None:
        return Words(
            f"{len(rows)} blocks live when the blocks of the capture add up to most, {format_quantity(held, 'bytes')}; "
            f"what was allocated before and never freed is not in the data.{cut[0]}",
            f"采集期间内存块合计最大时有 {len(rows)} 块存活，共 {format_quantity(held, 'bytes')}；"
            f"采集前分配且未释放的部分不在数据中。{cut[1]}",
        )
    share = format_ratio(min(1.0, held / peak))
    return Words(
        f"{len(rows)} blocks of {format_quantity(held, 'bytes')} live at the peak of {format_quantity(peak, 'bytes')} "
        f"({share}); the rest was allocated before the capture (weights, states) or is not recorded. Unknown lives end "
        f"beyond the capture. The line is the innermost one outside of PyTorch.{cut[0]}",
        f"峰值 {format_quantity(peak, 'bytes')} 时有 {len(rows)} 个内存块存活，共 {format_quantity(held, 'bytes')}"
        f"（{share}）；其余在采集前已分配（权重、优化器状态）或未记录。存活时长未知表示采集结束时仍未释放。"
        f"代码行为 PyTorch 之外最内层的一行。{cut[1]}",
    )


def _spread(text: Text, rows: Ints, length: int) -> Text:
    codes = np.full(length, -1, np.int32)
    codes[rows] = text.codes
    return Text(codes, text.values)


def _named(text: Text, code: int) -> str | None:
    return None if code < 0 else text.values[code]


def _least(values: Ints) -> int | None:
    known = values[values != NULL]
    return int(known.min()) if len(known) else None


def _median(values: Ints) -> float | None:
    known = values[values != NULL]
    return float(np.median(known)) if len(known) else None
