"""What a step on the virtual NPU consists of: time by class of operators, exposed communication, the host; and how far
the sum may be off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.bench.virtual import step_windows
from ascend_perf.collectors.virtual_npu.cost import cost_model
from ascend_perf.errors import InputError
from ascend_perf.model.what_if import BUBBLE, COMMUNICATION, HOST, Estimate, PartKind

if TYPE_CHECKING:
    from ascend_perf.collectors.virtual_npu.record import Record

COPIES: Final = "(copies)"
RATIOS: Final[Mapping[str, tuple[float, float]]] = {
    # 0.56 to 0.65 of the link where 0.643 is taken, and waiting that one process does not see.
    COMMUNICATION: (0.9, 1.25),
    # 5.7 to 19 us a launch where 10 us are taken.
    HOST: (0.57, 1.9),
    # Later stages hold the output layer, which the formula takes as no longer than the first.
    BUBBLE: (1.0, 1.5),
    COPIES: (0.8, 1.5),
}
"""Real by modelled time of what is no operator. Source: `uncertainty` of launch, links and copies in
cost_model.yaml. Status: assumed."""
ACROSS_NODES: Final = (0.9, 1.5)
"""Of communication that leaves the machine: 0.7 to 0.97 of the port where 0.97 is taken. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """One step of a record."""

    step_ns: int
    parts: Mapping[PartKind, float]
    hidden_communication_ns: int
    classes_ns: Mapping[str, float]
    launches: int
    crosses_nodes: bool


def shares_of(record: Record) -> Shares:
    """The last measured step of a record.

    Reads:
        K, C, P of the record: what was launched in the step; D: the class of each operator.

    Raises:
        InputError: no measured step is marked in it.
    """
    windows = step_windows(record)
    if not windows:
        raise InputError("the record of the virtual NPU has no whole step", hint="measured_steps=2 gives it room")
    begin, end = windows[-1]

    def inside(kind: str, *names: str) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        table = record.tables[kind]
        chosen = (table["host_ns"] >= begin) & (table["host_ns"] < end)
        return [table[name][chosen] for name in names]

    definitions, starts, ends = inside("K", "def", "start_ns", "end_ns")
    busy = intervals.clip(intervals.merged(starts, ends), begin, end)
    copies = intervals.clip(intervals.merged(*inside("P", "start_ns", "end_ns")), begin, end)
    groups, sent_from, sent_to = inside("C", "comm", "start_ns", "end_ns")
    sent = intervals.clip(intervals.merged(sent_from, sent_to), begin, end)
    copies = intervals.difference(copies, busy)
    exposed = intervals.difference(intervals.difference(sent, busy), copies)
    computing, copying, sending = (intervals.total(one) for one in (busy, copies, exposed))
    host = end - begin - computing - copying - sending
    classes = _by_class(record, definitions, ends - starts, computing)
    for name, ns in ((COPIES, copying), (COMMUNICATION, sending), (HOST, host)):
        if ns:
            classes[name] = float(ns)
    parts: dict[PartKind, float] = {
        "computing": float(computing), "copies": float(copying), "communication": float(sending), "host": float(host),
    }  # fmt: skip
    return Shares(
        step_ns=end - begin, parts=parts, hidden_communication_ns=intervals.total(sent) - sending, classes_ns=classes,
        launches=len(definitions), crosses_nodes=_crosses(record, groups),
    )  # fmt: skip


def _by_class(
    record: Record, definitions: np.ndarray[tuple[int], np.dtype[np.int64]],
    durations: np.ndarray[tuple[int], np.dtype[np.int64]], computing_ns: int,
) -> dict[str, float]:  # fmt: skip
    """ns of kernels by class; where kernels of several streams overlap, all are shortened alike."""
    ids, where = np.unique(definitions, return_inverse=True)
    sums = np.bincount(where, weights=durations, minlength=len(ids))
    scale = computing_ns / sums.sum() if sums.sum() else 0.0
    found: dict[str, float] = {}
    for number, ns in zip(ids.tolist(), sums.tolist(), strict=True):
        name = str(record.definitions[number][2].get("class", "other"))
        found[name] = found.get(name, 0.0) + float(ns * scale)
    return found


def _crosses(record: Record, groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Whether ranks of a used communicator are on several machines."""
    each = int(record.header.get("ranks_per_node", "8"))
    for number in np.unique(groups).tolist():
        _, size, _, ranks = record.groups[number]
        if size > each or (ranks is not None and len({rank // each for rank in ranks}) > 1):
            return True
    return False


def ratio_of(name: str, crosses_nodes: bool) -> tuple[float, float]:
    """Factors between which the real time of a class lies in about 80 of 100 cases, over the modelled one."""
    if name == COMMUNICATION and crosses_nodes:
        return ACROSS_NODES
    return RATIOS[name] if name in RATIOS else cost_model().uncertainty(name)


def bounds(
    classes_ns: Mapping[str, float], *, hidden_communication_ns: float = 0.0, crosses_nodes: bool = False
) -> tuple[float, float]:
    """Between which ns a step lies, of which the classes are the modelled parts.

    As `CostModel.uncertainty_of_sum`: deviations within a class are common, those of different classes independent.
    Communication that is hidden becomes visible where it takes longer than what hides it.
    """
    total = math.fsum(classes_ns.values())
    below = above = 0.0
    for name, ns in classes_ns.items():
        low, high = ratio_of(name, crosses_nodes)
        below += (ns * min(low - 1, 0.0)) ** 2
        more = ns * max(high - 1, 0.0)
        if name == COMMUNICATION:
            more = max(more, _surfacing(classes_ns, hidden_communication_ns, high))
        above += more**2
    if COMMUNICATION not in classes_ns and hidden_communication_ns:
        above += _surfacing(classes_ns, hidden_communication_ns, ratio_of(COMMUNICATION, crosses_nodes)[1]) ** 2
    return max(total - math.sqrt(below), 0.0), total + math.sqrt(above)


def _surfacing(classes_ns: Mapping[str, float], hidden_ns: float, high: float) -> float:
    """How much longer a step gets when all its communication takes `high` times as long."""
    exposed = classes_ns.get(COMMUNICATION, 0.0)
    computing = math.fsum(ns for name, ns in classes_ns.items() if not name.startswith("("))
    return max((exposed + hidden_ns) * (high - 1) - max(computing - hidden_ns, 0.0), exposed * (high - 1))


def with_bubble(shares: Shares, *, pipeline_ranks: int, rounds: int) -> Shares:
    """A step with the time in which a pipeline fills and drains, which one process does not see.

    Args:
        rounds: micro-batches times stages of a rank.

    Source:
        Narayanan et al., 2021 (Megatron-LM), section 2.2: (p - 1) / m of the time of the micro-batches; the optimizer
        counts as if it were part of them.
    """
    if pipeline_ranks < 2:
        return shares
    bubble = shares.step_ns * (pipeline_ranks - 1) / rounds
    return replace(
        shares, step_ns=shares.step_ns + round(bubble), parts={**shares.parts, "bubble": bubble},
        classes_ns={**shares.classes_ns, BUBBLE: bubble},
    )  # fmt: skip


def is_surely_faster(first: Estimate, second: Estimate) -> bool:
    """Whether `first` takes less time per item than `second` on the same chip, whatever the errors of the model are.

    Errors within a class are common to both: a wrong efficiency of matrix products hits each of them. So the
    difference of each class is what may be off, not the two sums.
    """
    names = first.classes_ns.keys() | second.classes_ns.keys()
    difference = deviation = 0.0
    for name in names:
        mine = first.classes_ns.get(name, 0.0) / first.items_per_step
        theirs = second.classes_ns.get(name, 0.0) / second.items_per_step
        difference += theirs - mine
        ratios = [ratio_of(name, one.crosses_nodes) for one in (first, second)]
        low, high = min(low for low, _ in ratios), max(high for _, high in ratios)
        less = (theirs - mine) * max(1 - low, 0.0) if theirs > mine else (mine - theirs) * max(high - 1, 0.0)
        if name == COMMUNICATION:
            less = max(less, _hidden_risk(first, high) / first.items_per_step)
        deviation += less**2
    if COMMUNICATION not in names:
        risk = _hidden_risk(first, ratio_of(COMMUNICATION, first.crosses_nodes)[1]) / first.items_per_step
        deviation += risk**2
    return difference > math.sqrt(deviation)


def _hidden_risk(estimate: Estimate, high: float) -> float:
    """What hidden communication adds to a step at worst, beyond what exposed communication does."""
    exposed = estimate.classes_ns.get(COMMUNICATION, 0.0)
    return _surfacing(estimate.classes_ns, estimate.hidden_communication_ns, high) - exposed * (high - 1)
