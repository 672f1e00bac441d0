"""Collectives of a rank: the calls of one file joined with the exporter's figures, groups and metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.trace import Group
from ascend_perf.parsers._ascend_comm import CallFigures, CommFigures, call_index, group_hash, group_suffix, op_of
from ascend_perf.parsers._ascend_meta import public_name
from ascend_perf.parsers._ascend_words import nearest

MAX_START_DIFFERENCE_NS: Final = 10_000
"""The exporter's start of a call is rounded to 0.25 us and, in databases, up to 14 us late. Status: measured."""

MAX_DUR_DIFFERENCE_NS: Final = 1000
"""A call whose figures have this duration is the same one, whatever their start says. Status: measured (1 ns)."""

APPROXIMATE: Final = (
    "calls come from the exporter's communication figures: their start times are rounded to 0.25 us, and there are no"
    " kernels to compare them with"
)


def calls_of_figures(figures: CommFigures) -> Table:
    """comm_ops of the exporter's figures alone, for a rank without any other data."""
    calls = sorted((call for call in figures.calls if call.elapse_ns != NULL), key=lambda call: call.start_ns)
    return Table(
        t.COMM_OPS,
        {
            "start_ns": _ints([call.start_ns for call in calls]),
            "dur_ns": _ints([call.elapse_ns for call in calls]),
            "name": Text.of([call.name for call in calls]),
            "op": Text.of([op_of(call.name) for call in calls]),
            "step_id": _ints([call.step_id for call in calls]),
        },
    )


def with_figures(comm: Table, figures: CommFigures, groups: Mapping[str, Group]) -> tuple[Table, tuple[Group, ...]]:
    """The calls with the exporter's times, their group and their place in it; and all groups that are named.

    Args:
        comm: comm_ops; `group` may hold raw communicator names already.
        figures: may be empty.
        groups: the metadata's groups by communicator name.
    """
    by_hash = {group_hash(name): group for name, group in groups.items()}
    found = _matches(comm, figures)
    known = comm.text("group").to_list()
    names = comm.text("name").to_list()
    resolved: list[Group | None] = []
    group: Group | None
    seen: dict[str, Group] = dict(groups)
    by_suffix: dict[str, list[Group]] = {}
    for hash_id, group in by_hash.items():
        by_suffix.setdefault(f"{int(hash_id) % 1000:03d}", []).append(group)
    for raw, name, call in zip(known, names, found, strict=True):
        group = _group(raw, name or "", call, groups, by_hash, by_suffix)
        if group is not None:
            group = seen.setdefault(group.name, group)
        resolved.append(group)
    sizes = comm.ints("group_size")
    sizes = np.where(sizes == NULL, _ints([NULL if g is None or g.size is None else g.size for g in resolved]), sizes)
    group_names = Text.of([None if g is None else g.name for g in resolved])
    columns: dict[str, Text | Ints] = {
        "group": group_names,
        "group_label": Text.of([None if g is None else g.label for g in resolved]),
        "group_size": sizes.astype(np.int64),
        "index_in_group": _index_in_group(comm, group_names),
    }
    if figures.calls:
        for target, source in _TIMES.items():
            columns[target] = _ints([NULL if call is None else getattr(call, source) for call in found])
        steps = comm.ints("step_id")
        if (steps == NULL).all():
            columns["step_id"] = _ints([NULL if call is None else call.step_id for call in found])
    for hash_id in dict.fromkeys(call.hash_id for call in figures.calls):
        if hash_id not in by_hash and not any(g.hash_id == hash_id for g in seen.values()):
            seen[hash_id] = Group(name=hash_id, hash_id=hash_id)
    return comm.with_columns(columns), tuple(seen.values())


def left_out(comm: Table, figures: CommFigures) -> Bools:
    """Which calls the exporter left out when it gave its figures to steps: those that start outside of all of them.

    It does so when its steps are those of the host (ProfilerStep) and the device, or the task queue, lags behind.

    Args:
        comm: comm_ops with the figures' times.
        figures: of the same rank.

    Source: split_comm_op_by_step and StepInfoDbParser of torch_npu 2.13.
    """
    if all(call.step_id == NULL for call in figures.calls):
        return np.zeros(len(comm), bool)
    without = np.ones(len(comm), bool)
    for time in _TIMES:
        without &= comm.ints(time) == NULL
    # Figures can lack their times, or say them so otherwise that no call is theirs: such a call was not left out.
    names, listed = comm.text("name"), Counter(call.name for call in figures.calls)
    codes = np.where(names.codes < 0, len(names.values), names.codes)
    rows = np.bincount(codes, minlength=len(names.values) + 1)
    return without & (rows > _ints([*(listed[name] for name in names.values), 0]))[codes]


_TIMES: Final = {"transit_ns": "transit_ns", "wait_ns": "wait_ns", "sync_ns": "sync_ns", "idle_ns": "idle_ns"}


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _matches(comm: Table, figures: CommFigures) -> list[CallFigures | None]:
    """The exporter's figures of each call: same name, same duration or start; the nearest start of several."""
    by_name: dict[str, list[CallFigures]] = {}
    for call in sorted(figures.calls, key=lambda call: call.start_ns):
        by_name.setdefault(call.name, []).append(call)
    starts = {name: [call.start_ns for call in calls] for name, calls in by_name.items()}
    result: list[CallFigures | None] = []
    columns = (comm.text("name").to_list(), comm.ints("start_ns").tolist(), comm.ints("dur_ns").tolist())
    for word, start, dur in zip(*columns, strict=True):
        name = word or ""
        candidates = by_name.get(name, [])
        if start == NULL:
            result.append(candidates[0] if len(candidates) == 1 else None)
            continue
        place = nearest(starts.get(name, []), start)
        near = None if place is None else candidates[place]
        if near is not None and abs(near.start_ns - start) > MAX_START_DIFFERENCE_NS:
            alike = [call for call in candidates if abs(call.elapse_ns - dur) <= MAX_DUR_DIFFERENCE_NS]
            near = min(alike, key=lambda call: abs(call.start_ns - start), default=None)
        result.append(near)
    return _once(result, columns[1])


def _once(found: list[CallFigures | None], starts: list[int]) -> list[CallFigures | None]:
    """The same, each figures with one call only: calls of two groups can share a name. The nearest start has them."""
    result = list(found)
    rows: dict[int, int] = {}
    for row, call in enumerate(found):
        if call is not None and (other := rows.setdefault(id(call), row)) != row:
            is_nearer = abs(starts[row] - call.start_ns) < abs(starts[other] - call.start_ns)
            rows[id(call)], lost = (row, other) if is_nearer else (other, row)
            result[lost] = None
    return result


def _group(
    raw: str | None,
    name: str,
    call: CallFigures | None,
    groups: Mapping[str, Group],
    by_hash: Mapping[str, Group],
    by_suffix: Mapping[str, list[Group]],
) -> Group | None:
    if raw is not None:
        hash_id = raw if raw.isdecimal() else group_hash(raw)
        return groups.get(raw) or by_hash.get(hash_id) or Group(name=public_name(raw), hash_id=hash_id)
    if call is not None:
        return by_hash.get(call.hash_id) or Group(name=call.hash_id, hash_id=call.hash_id)
    suffix = group_suffix(name)
    if suffix is None:
        return None
    fitting = by_suffix.get(suffix, [])
    # Without the hash only its last three digits are known: they name the group when one alone fits.
    return fitting[0] if len(fitting) == 1 else Group(name=suffix)


def _index_in_group(comm: Table, group: Text) -> Ints:
    """Ordinal of each call in its group: the one in its name, else the order of starts (the table is in that order)."""
    named = comm.text("name")
    ordinals = np.array([*(call_index(value) for value in named.values), NULL], np.int64)[named.codes]
    result = np.full(len(comm), NULL, np.int64)
    for code in np.unique(group.codes).tolist():
        rows = np.flatnonzero(group.codes == code)
        own = ordinals[rows]
        distinct = len(np.unique(own)) == len(own) and bool((own != NULL).all())
        result[rows] = own if distinct else np.arange(len(rows))
    return result
