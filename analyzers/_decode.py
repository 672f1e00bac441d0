"""Decode steps of a language model in a device trace: where they lie, how they are launched, and what idles in them.

A step is told by ranges that the serving framework marks, else by its attention kernels and the rows of its products.
Training has none. Row H-01 leaves the idle time to V-01 that V-01 claims, so it is found here for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Cause, Idle
from ascend_perf.analyzers._steps import StepWindows, membership, step_windows
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.flops import parse_shapes

MAX_BUSY_RATIO: Final = threshold("V-01", "max_busy_ratio")
MAX_DECODE_ROWS: Final = threshold("V-01", "max_product_rows")
MIN_PAUSE: Final = threshold("H-01", "min_idle_between_steps_ns")
MIN_PER_EXECUTION: Final = threshold("V-08", "min_per_execution")
MIN_LOAD_RATIO: Final = threshold("V-08", "min_share_ratio")
MIN_EXECUTIONS: Final = threshold("V-08", "min_executions")

StepKind = Literal["decode", "prefill", "mixed"]

_TRAINING_KERNEL: Final = re.compile(
    r"grad(?!ient)|backward|_bwd|dgrad|wgrad|^Apply(Adam|Momentum|SGD|Lamb|RMS)|adamw?_", re.IGNORECASE
)
_TRAINING_OP: Final = re.compile(r"Backward\d|^autograd::engine|^Optimizer\.step")
_VLLM: Final = re.compile(r"execute_\w*?context_(\d+).*?generation_(\d+)", re.IGNORECASE)
_DECODE_RANGE: Final = re.compile(r"(?<![a-z])(decode|decoding|generation)(?![a-z])", re.IGNORECASE)
_PREFILL_RANGE: Final = re.compile(r"(?<![a-z])(prefill|extend|prompt)(?![a-z])", re.IGNORECASE)
_MIXED_RANGE: Final = re.compile(r"(?<![a-z])mixed(?![a-z])", re.IGNORECASE)
_PREFILL_KERNEL: Final = re.compile(
    r"promptflash|prefill|flashattentionscore|flash_fwd_kernel|unpadflash|varlen|fmha_fwd", re.IGNORECASE
)
_DECODE_KERNEL: Final = re.compile(
    r"increflash|paged_?attention|flash_?decod|splitkv|decode|flash_?mla|unified_attention_3d|mqa_logits", re.IGNORECASE
)
_BY_QUERY: Final = re.compile(r"fusedinferattention", re.IGNORECASE)
_GRAPH_CALL: Final = re.compile(
    r"graphlaunch|aclmdlri(execute|launch)|aclmdlexecute|rtmodelexecute|aclgraph.*replay", re.IGNORECASE
)
LAUNCHING: Final = (Cause.LAUNCH, Cause.OP, Cause.PYTHON, Cause.NOTHING)
"""Idle time in which the host issues work, or nothing that the profile records."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """The decode steps of a rank: windows [starts[i], ends[i]) in ns in order of start, without overlap."""

    starts: Ints
    ends: Ints
    step_ids: tuple[int | None, ...]
    by: Literal["range", "attention", "products"]
    """What the steps were told by."""
    prefills: int
    """Steps that are a prefill, or hold one."""
    graph_launches: int
    """Launches of a captured graph inside the decode steps."""
    has_model_ids: bool
    """Whether kernels of the decode steps carry the id of a graph."""

    @property
    def windows(self) -> IntervalSet:
        """The windows as a merged set."""
        return intervals.merged(self.starts, self.ends)

    @property
    def step_ns(self) -> int:
        """Length of all decode steps."""
        return int((self.ends - self.starts).sum())

    @property
    def steps(self) -> int:
        """Number of decode steps."""
        return len(self.starts)

    @property
    def has_graph(self) -> bool:
        """Whether a captured graph is replayed."""
        return self.graph_launches > 0 or self.has_model_ids

    def holds(self, table: Table) -> Ints:
        """Decode step of each row of an interval table by its start, -1 outside of all."""
        at = table.ints("start_ns")
        index = np.searchsorted(self.starts, at, side="right") - 1
        inside = (index >= 0) & (at != NULL) & (at < self.ends[np.clip(index, 0, None)])
        return np.where(inside, index, -1).astype(np.int64)


@once
def trains(trace: Trace) -> bool:
    """Whether the trace holds a backward pass or an optimizer."""
    events, ops, kernels = trace[HOST_EVENTS], trace[HOST_OPS], trace[KERNELS]
    if events.text("kind").equals("optimizer").any() or _any(ops, "name", _TRAINING_OP):
        return True
    column = "op_type" if kernels.has("op_type") else "name"
    return _any(kernels, column, _TRAINING_KERNEL)


def _any(table: Table, column: str, pattern: re.Pattern[str]) -> bool:
    return bool(table.text(column).flags(lambda text: bool(pattern.search(text[:512]))).any())


@once
def decode_of(trace: Trace) -> Decode | None:
    """The decode steps of a rank; None when the trace holds training, or no step that can be told to be one.

    Reads:
        steps; kernels: start_ns, dur_ns, op_type, name, core, input_shapes, launch_start_ns, model_id; host_events:
        kind user; host_ops: name; runtime_calls: api.
    """
    kernels = trace[KERNELS]
    if not len(kernels) or trains(trace):
        return None
    windows = step_windows(trace)
    marked = _marked(trace)
    by: Literal["range", "attention", "products"]
    kinds: Sequence[StepKind | None]
    if marked and len(windows) and int(windows.ids[0]) == NULL:
        starts, ends, kinds = _windows_of_ranges(trace, marked)
        ids: tuple[int | None, ...] = (None,) * len(starts)
        by = "range"
    else:
        if len(windows) == 1 and int(windows.ids[0]) == NULL:
            windows = _pieces(kernels, windows)
        starts, ends = windows.starts, windows.ends
        ids = tuple(windows.step_id(i) for i in range(len(windows)))
        kinds, by = _kinds_of_steps(trace, windows, marked)
    chosen = [i for i, kind in enumerate(kinds) if kind == "decode" and ends[i] > starts[i]]
    if not chosen:
        return None
    starts, ends = starts[chosen], ends[chosen]
    # Windows of ranges can overlap where steps are launched ahead: each ends where the next begins.
    ends = np.minimum(ends, np.append(starts[1:], np.iinfo(np.int64).max))
    inside = intervals.contains(intervals.merged(starts, ends), kernels.ints("start_ns"))
    return Decode(
        starts=starts, ends=ends, step_ids=tuple(ids[i] for i in chosen), by=by,
        prefills=sum(kind in ("prefill", "mixed") for kind in kinds),
        graph_launches=_graph_launches(trace, starts, ends),
        has_model_ids=_has_model_ids(kernels, inside),
    )  # fmt: skip


def _pieces(kernels: Table, whole: StepWindows) -> StepWindows:
    """A capture without steps, cut where no kernel runs for a while: there the service waits for requests."""
    start, end = kernels.ints("start_ns"), kernels.ends_ns()
    known = (start != NULL) & (end != NULL)
    pause = MIN_PAUSE.whole
    pieces = intervals.merged(start[known], end[known] + pause)
    if not len(pieces.starts):
        return whole
    return StepWindows(
        ids=np.full(len(pieces.starts), NULL, np.int64), starts=pieces.starts, ends=pieces.ends - pause
    )


def _has_model_ids(kernels: Table, inside: Bools) -> bool:
    return bool((_in_graph(kernels) & inside).any())


def _in_graph(kernels: Table) -> Bools:
    """Kernels that carry the id of a graph; 4294967295 stands for none."""
    ids = kernels.ints("model_id")
    rows: Bools = (ids >= 0) & (ids < 4294967295)
    return rows


def _between_of_graph(kernels: Table) -> IntervalSet:
    """From each kernel of a graph to the next one of the same graph: the host launches nothing in between."""
    rows = np.flatnonzero(_in_graph(kernels) & (kernels.ints("start_ns") != NULL) & (kernels.ends_ns() != NULL))
    rows = rows[np.argsort(kernels.ints("start_ns")[rows], kind="stable")]
    ids, start, end = kernels.ints("model_id")[rows], kernels.ints("start_ns")[rows], kernels.ends_ns()[rows]
    same = (ids[1:] == ids[:-1]) & (start[1:] > end[:-1])
    return intervals.merged(end[:-1][same], start[1:][same])


def _graph_launches(trace: Trace, starts: Ints, ends: Ints) -> int:
    """Graph launches whose work can lie in the windows: called from the step before a window's start to its end."""
    calls = trace[RUNTIME_CALLS]
    rows = calls.text("api").flags(lambda api: bool(_GRAPH_CALL.search(api)))
    at = calls.ints("start_ns")[rows]
    length = int(np.median(ends - starts)) if len(starts) else 0
    return int(intervals.contains(intervals.merged(starts - length, ends), at).sum())


def range_kind(name: str) -> StepKind | None:
    """Kind of the step that a range of a serving framework marks; None for any other range.

    Source:
        vLLM: `execute_32_context_0(...)_generation_32(...)`; SGLang: `step[DECODE bs=32]`, `step[EXTEND bs=4]`.
    """
    if match := _VLLM.search(name):
        context, generation = int(match[1]), int(match[2])
        return "mixed" if context and generation else "prefill" if context else "decode" if generation else None
    decodes, prefills = bool(_DECODE_RANGE.search(name)), bool(_PREFILL_RANGE.search(name))
    if _MIXED_RANGE.search(name) and (decodes or prefills or name.lower().startswith("step")):
        return "mixed"
    return "mixed" if decodes and prefills else "decode" if decodes else "prefill" if prefills else None


def _marked(trace: Trace) -> list[tuple[int, int, StepKind]]:
    """Start, end and kind of the ranges that name a prefill or a decode step; of nested ones the outermost."""
    events = trace[HOST_EVENTS]
    names = events.text("name")
    rows = events.text("kind").equals("user") & names.flags(lambda name: range_kind(name) is not None)
    rows &= (events.ints("start_ns") != NULL) & (events.ends_ns() != NULL)
    found: list[tuple[int, int, StepKind]] = []
    starts, ends = events.ints("start_ns"), events.ends_ns()
    for row in sorted(np.flatnonzero(rows).tolist(), key=lambda row: (int(starts[row]), -int(ends[row]))):
        kind = range_kind(names[row] or "")
        if kind is not None and (not found or int(starts[row]) >= found[-1][1]):
            found.append((int(starts[row]), int(ends[row]), kind))
    return found


def _windows_of_ranges(trace: Trace, marked: list[tuple[int, int, StepKind]]) -> tuple[Ints, Ints, list[StepKind]]:
    """From the first to the last kernel that each range launched."""
    kernels = trace[KERNELS]
    launch, start, end = kernels.ints("launch_start_ns"), kernels.ints("start_ns"), kernels.ends_ns()
    known = np.flatnonzero((launch != NULL) & (start != NULL) & (end != NULL))
    known = known[np.argsort(launch[known], kind="stable")]
    windows = []
    for first, last, kind in marked:
        low, high = np.searchsorted(launch[known], (first, last))
        rows = known[low:high]
        if len(rows):
            windows.append((int(start[rows].min()), int(end[rows].max()), kind))
    windows.sort()
    return (
        np.array([w[0] for w in windows], np.int64), np.array([w[1] for w in windows], np.int64),
        [w[2] for w in windows],
    )  # fmt: skip


def _kinds_of_steps(
    trace: Trace, windows: StepWindows, marked: list[tuple[int, int, StepKind]]
) -> tuple[list[StepKind | None], Literal["range", "attention", "products"]]:
    if marked:
        held: list[set[StepKind]] = [set() for _ in range(len(windows))]
        for first, last, kind in marked:
            at = int(np.searchsorted(windows.starts, (first + last) // 2, side="right")) - 1
            if at >= 0:
                held[at].add(kind)
        if any(held):
            return [next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else None for kinds in held], "range"
    kernels = trace[KERNELS]
    of = membership(trace, kernels, windows)
    decode, prefill, unsure = _attention(kernels)
    count = len(windows)

    def per_step(rows: Bools) -> Ints:
        return np.bincount(of[rows & (of >= 0)], minlength=count)

    decodes, prefills, unsures = per_step(decode), per_step(prefill), per_step(unsure)
    kinds: list[StepKind | None] = []
    by: Literal["attention", "products"] = "attention"
    few_rows = _few_rows(kernels, of, count) if unsures.any() else np.zeros(count, bool)
    for i in range(count):
        if decodes[i] and prefills[i]:
            kinds.append("mixed")
        elif decodes[i] or prefills[i]:
            kinds.append("decode" if decodes[i] else "prefill")
        elif unsures[i]:
            by = "products"
            kinds.append("decode" if few_rows[i] else "prefill")
        else:
            kinds.append(None)
    return kinds, by


def _attention(kernels: Table) -> tuple[Bools, Bools, Bools]:
    """Attention kernels of decoding, of prefills, and those that do not tell."""
    classes = kernel_classes(kernels)
    is_attention = classes.equals(KernelClass.ATTENTION.value) | kernels.text("name").flags(
        lambda name: bool(_PREFILL_KERNEL.search(name[:512]))
    )
    kinds = (kernels.text("op_type"), kernels.text("name"))

    def matching(pattern: re.Pattern[str]) -> Bools:
        rows: Bools = np.zeros(len(kernels), bool)
        for text in kinds:
            rows |= text.flags(lambda name: bool(pattern.search(name[:512])))
        return rows & is_attention

    prefill, decode, by_query = matching(_PREFILL_KERNEL), matching(_DECODE_KERNEL), matching(_BY_QUERY)
    one = kernels.text("input_shapes").flags(_has_one_query)
    many = kernels.text("input_shapes").flags(_has_many_queries)
    decode = (decode & ~prefill & ~by_query) | (by_query & one)
    prefill = (prefill & ~by_query) | (by_query & many & ~one)
    return decode, prefill, by_query & ~one & ~many


def _query(shapes: str) -> tuple[int, ...]:
    parsed = parse_shapes(shapes)
    return parsed[0] if parsed else ()


def _has_one_query(shapes: str) -> bool:
    """Layouts B,1,H and B,1,N,D or B,N,1,D: one query per sequence."""
    query = _query(shapes)
    return (len(query) == 3 and query[1] == 1) or (len(query) == 4 and 1 in query[1:3])


def _has_many_queries(shapes: str) -> bool:
    """Four dimensions of which neither may be a query length of 1. Three are B,S,H or T,N,D: they do not tell."""
    query = _query(shapes)
    return len(query) == 4 and min(query[1:3]) > 1


def _few_rows(kernels: Table, of: Ints, count: int) -> Bools:
    """Steps whose products have few rows, by the median product."""
    is_product = kernel_classes(kernels).equals(KernelClass.MATMUL.value) & (of >= 0)
    rows = kernels.text("input_shapes").numbers(lambda text: float(rows_of(text)) if rows_of(text) else np.nan)
    result = np.zeros(count, bool)
    for step in np.unique(of[is_product]).tolist():
        known = rows[is_product & (of == step)]
        known = known[np.isfinite(known)]
        result[step] = bool(len(known)) and float(np.median(known)) <= MAX_DECODE_ROWS.value
    return result


def rows_of(shapes: str) -> int:
    """Rows of a product: elements of its first operand over its inner axis; 0 when unknown."""
    first = _query(shapes)
    if len(first) < 2:
        return 0
    rows = 1
    for size in first[:-1]:
        rows *= max(0, size)
    return rows


def decode_idle(trace: Trace, idle: Idle) -> IntervalSet:
    """Idle time of the device inside decode steps in which the host was launching, where row V-01 holds; else empty."""
    decode = decode_of(trace)
    if decode is None:
        return EMPTY
    lost = launching_idle(trace, decode, idle)
    return lost if is_limited(decode, lost) else EMPTY


def launching_idle(trace: Trace, decode: Decode, idle: Idle) -> IntervalSet:
    """Idle time inside decode steps that faster dispatch could fill.

    Behind a launched task the device waits for the launch to arrive; inside a replayed graph that wait is not the
    host's.
    """
    causes = LAUNCHING if decode.has_graph else (*LAUNCHING, Cause.DEVICE)
    parts = intervals.intersection(intervals.union(*(idle.parts[cause] for cause in causes)), decode.windows)
    return intervals.difference(parts, _between_of_graph(trace[KERNELS])) if decode.has_model_ids else parts


def is_limited(decode: Decode, lost: IntervalSet) -> bool:
    """Whether dispatch alone leaves less than 0.7 of the decode steps."""
    return decode.step_ns > 0 and 1 - intervals.total(lost) / decode.step_ns < MAX_BUSY_RATIO.value


# ---- models that are loaded ------------------------------------------------------------------------------------------

_EXECUTE: Final = re.compile(r"aclmdlExecute(?!Async?Callback)", re.IGNORECASE)
_LOAD: Final = re.compile(r"aclmdl(Load|Unload|QuerySize|CreateDesc|GetDesc|DestroyDesc)", re.IGNORECASE)
_ALLOCATE: Final = re.compile(r"aclrt(Malloc|Free)(?!Host)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ModelCalls:
    """Calls of an offline model after its first execution (calls before it are the start of the service)."""

    executions: int
    counts: Mapping[str, int]
    """Calls that load or allocate, by name."""
    loads: int
    allocations: int
    spent: IntervalSet
    window: tuple[int, int]


def model_calls(trace: Trace) -> ModelCalls | None:
    """What an offline model's host does between its executions; None when none is executed at known times.

    Reads:
        runtime_calls: start_ns, dur_ns, api.
    """
    calls = trace[RUNTIME_CALLS]
    apis = calls.text("api")
    start, end = calls.ints("start_ns"), calls.ends_ns()
    known = (start != NULL) & (end != NULL)
    executes = apis.flags(lambda api: bool(_EXECUTE.search(api))) & known
    if not executes.any():
        return None
    first = int(start[executes].min())
    later = known & (start > first)
    loads = apis.flags(lambda api: bool(_LOAD.search(api))) & later
    allocations = apis.flags(lambda api: bool(_ALLOCATE.search(api))) & later
    rows = loads | allocations
    counts: dict[str, int] = {}
    for api in apis.take(rows).to_list():
        counts[api or "?"] = counts.get(api or "?", 0) + 1
    return ModelCalls(
        executions=int(executes.sum()), counts=counts, allocations=int(allocations.sum()),
        loads=int((apis.flags(lambda api: "aclmdlload" in api.lower()) & later).sum()),
        spent=intervals.merged(start[rows], end[rows]),
        window=(first, int(end[executes | rows].max())),
    )  # fmt: skip


def is_reloaded(calls: ModelCalls | None) -> bool:
    """Whether row V-08 holds: the model is loaded, or memory taken, about once per execution, and that costs time."""
    if calls is None or calls.executions < MIN_EXECUTIONS.value:
        return False
    length = calls.window[1] - calls.window[0]
    often = max(calls.loads, calls.allocations) >= MIN_PER_EXECUTION.value * (calls.executions - 1)
    return often and length > 0 and intervals.total(calls.spent) >= MIN_LOAD_RATIO.value * length


@once
def reloading(trace: Trace) -> IntervalSet:
    """When the host loads the model or takes memory for it, where row V-08 holds; else empty."""
    calls = model_calls(trace)
    return calls.spent if calls is not None and is_reloaded(calls) else EMPTY


def reloading_idle(trace: Trace, idle: Idle) -> IntervalSet:
    """Idle time of the device while the host loads the model or takes memory for it, where row V-08 holds."""
    spent = reloading(trace)
    if not len(spent.starts):
        return EMPTY
    # Memory calls are row K-04's; other causes keep their own idle time too.
    parts = intervals.union(*(idle.parts[cause] for cause in (*LAUNCHING, Cause.COPY, Cause.DEVICE)))
    return intervals.intersection(parts, spent)
