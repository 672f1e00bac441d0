"""Inference services as their profiler recorded them: one instance per trace, and what analyzers ask of it.

Latency: TTFT = first_token_ns; TPOT = (execution - first token) / (output tokens - 1), unknown for one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table
from ascend_perf.model.tables import (
    BATCH_REQUESTS,
    BATCHES,
    KV_CACHE,
    KV_TRANSFERS,
    QUEUE_STATES,
    REQUESTS,
    SERVICE_FIGURES,
    SERVICE_SPANS,
)
from ascend_perf.model.trace import Trace

SPECS: Final = (REQUESTS, BATCHES, KV_CACHE, KV_TRANSFERS, QUEUE_STATES, SERVICE_SPANS, SERVICE_FIGURES)


@dataclass(frozen=True)
class Instance:
    """One instance of a service."""

    number: int
    trace: Trace

    @property
    def name(self) -> Words:
        """How texts call it."""
        return Words(f"instance {self.number}", f"实例 {self.number}")

    @cached_property
    def batches(self) -> Table:
        """All rows of batches, as in the trace (rows of batch_requests point into it)."""
        return self.trace[BATCHES]

    @cached_property
    def executions(self) -> Ints:
        """Rows of batches that are executions: of one card per DP rank, in order of start.

        A batch is executed on all cards of its DP rank at once; counting each would count its time several times.
        """
        phases = self.batches.text("phase")
        rows = phases.equals("execute")
        return self._one_card(rows if rows.any() else phases.equals("forward"))

    @cached_property
    def forwards(self) -> Ints:
        """Rows of batches that are forwards of a known DP rank: of one card each, in order of start."""
        return self._one_card(
            self.batches.text("phase").equals("forward") & (self.batches.text("dp_rank").codes >= 0)
        )

    def _one_card(self, rows: Bools) -> Ints:
        """Of each DP rank the rows of the card that has most."""
        table = self.batches
        chosen = np.flatnonzero(rows)
        if not len(chosen):
            return chosen
        ranks, cards = table.text("dp_rank").codes[chosen], table.text("card").codes[chosen]
        keep = np.zeros(len(chosen), bool)
        for rank in np.unique(ranks).tolist():
            own = ranks == rank
            counts = np.bincount(cards[own] + 1)
            keep |= own & (cards == int(np.argmax(counts)) - 1)
        chosen = chosen[keep]
        return chosen[np.argsort(table.ints("start_ns")[chosen], kind="stable")]

    @cached_property
    def executing(self) -> IntervalSet:
        """When at least one card executes."""
        phases = self.batches.text("phase")
        rows = phases.isin({"execute", "forward"})
        union = intervals.merged(self.batches.ints("start_ns")[rows], self.batches.ends_ns()[rows])
        spans = self.trace[SERVICE_SPANS]
        own = spans.text("name").flags(is_execution)
        return intervals.union(union, intervals.merged(spans.ints("start_ns")[own], spans.ends_ns()[own]))

    @cached_property
    def composition(self) -> Composition:
        """Which requests each execution holds."""
        return _composition(self)


def is_execution(name: str) -> bool:
    """Whether a span is the model's own work on the device."""
    return name.lower() in {"forward", "modelexec", "modelexecute", "execute_model", "specdecoding"}


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Requests of executions: one entry per request and execution, executions in order."""

    execution: Ints
    """Index into `Instance.executions`."""
    request: Ints
    """Row of `requests`, -1 when its request is not in the data."""
    iteration: Ints
    """Tokens generated before; `NULL` when the file does not tell."""
    tokens: Ints
    """Length of the sequence: prompt and what was generated before; `NULL` when unknown."""


def instances_of(run: Run) -> tuple[Instance, ...]:
    """The traces that hold a table of the service profiler, numbered from 1."""
    chosen = [trace for trace in run.traces if any(trace.has(spec) for spec in SPECS)]
    return tuple(Instance(number, trace) for number, trace in enumerate(chosen, 1))


def _composition(instance: Instance) -> Composition:
    items, requests = instance.trace[BATCH_REQUESTS], instance.trace[REQUESTS]
    holder = _holders(instance)
    batch = items.ints("batch")
    # Several executions may share a row of scheduling; each execution is looked up by its holder.
    order = np.argsort(batch, kind="stable")
    lows = np.searchsorted(batch[order], holder, side="left")
    highs = np.searchsorted(batch[order], holder, side="right")
    counts = np.where(holder >= 0, highs - lows, 0)
    execution = np.repeat(np.arange(len(holder), dtype=np.int64), counts)
    starts = np.repeat(lows, counts)
    offset = np.arange(len(execution)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = order[starts + offset] if len(execution) else np.empty(0, np.int64)
    names = items.text("request")
    row_of = {name: row for row, name in enumerate(requests.text("request").to_list()) if name is not None}
    known = np.array([*(row_of.get(name, -1) for name in names.values), -1], np.int64)
    request = known[names.codes[rows]]
    iteration = items.ints("iteration")[rows]
    prompt = np.append(requests.ints("input_tokens"), NULL)[request]
    tokens = np.where(prompt == NULL, NULL, prompt + np.where(iteration == NULL, 0, iteration))
    return Composition(
        execution=execution, request=request.astype(np.int64), iteration=iteration, tokens=tokens.astype(np.int64)
    )


def _holders(instance: Instance) -> Ints:
    """Per execution the row of batches that lists its requests: its own, else the scheduling before it; -1: none."""
    batches, items = instance.batches, instance.trace[BATCH_REQUESTS]
    executions = instance.executions
    listed = np.zeros(len(batches), bool)
    listed[items.ints("batch")] = True
    holder = np.where(listed[executions], executions, -1)
    missing = holder < 0
    if not missing.any():
        return holder.astype(np.int64)
    start, ranks = batches.ints("start_ns"), batches.text("dp_rank").codes
    schedules = np.flatnonzero(batches.text("phase").equals("schedule") & listed)
    for rank in np.unique(ranks[executions[missing]]).tolist():
        own = schedules[(ranks[schedules] == rank) | (ranks[schedules] < 0)]
        own = own[np.argsort(start[own], kind="stable")]
        here = missing & (ranks[executions] == rank)
        at = np.searchsorted(start[own], start[executions[here]], side="right") - 1
        holder[here] = np.where(at >= 0, own[np.clip(at, 0, None)], -1) if len(own) else -1
    return holder.astype(np.int64)


def joined(instances: Sequence[Instance]) -> Table:
    """The requests of all instances."""
    return Table.concat(REQUESTS, [instance.trace[REQUESTS] for instance in instances])


def tpot_ns(requests: Table) -> Floats:
    """Time per output token after the first, per request; NaN where unknown."""
    execution, first = known_floats(requests.ints("execution_ns")), known_floats(requests.ints("first_token_ns"))
    tokens = known_floats(requests.ints("output_tokens"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(tokens > 1, (execution - first) / (tokens - 1), np.nan)


def known_floats(values: Ints) -> Floats:
    """An int column as floats, unknown as NaN."""
    return np.where(values == NULL, np.nan, values.astype(np.float64))


def covered_share(inner: IntervalSet, outer: IntervalSet) -> float:
    """Part of `outer` that lies in `inner`; 0 when `outer` is empty."""
    whole = intervals.total(outer)
    return intervals.total(intervals.intersection(inner, outer)) / whole if whole else 0.0


def rows_known(*columns: Ints) -> Bools:
    """Rows in which all columns are known."""
    known: Bools = np.ones(len(columns[0]), bool)
    for column in columns:
        known &= column != NULL
    return known
