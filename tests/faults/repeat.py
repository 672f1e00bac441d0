"""The same recording several times over: what a longer capture of the same steps would hold."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.machine import Recording

PAUSE_NS = 5_000
"""Between two steps of the host, as the simulator leaves it."""


def repeated(recording: Recording, times: int) -> Recording:
    """All steps of a recording, `times` times one after the other."""
    span = recording.steps[-1][2] - recording.steps[0][1] + PAUSE_NS
    highest = 1 + max(
        [s.connection for s in recording.slices]
        + [t.connection for t in recording.tasks]
        + [c.connection for c in recording.calls]
    )
    result = Recording(rank=recording.rank)
    for number in range(times):
        shift, ids, steps = number * span, number * highest, number * len(recording.steps)
        result.slices += [
            replace(
                s,
                start=s.start + shift,
                end=s.end + shift,
                connection=s.connection + ids if s.connection >= 0 else s.connection,
            )
            for s in recording.slices
        ]
        result.tasks += [
            replace(t, start=t.start + shift, connection=t.connection + ids, host_ts=t.host_ts + shift)
            for t in recording.tasks
        ]
        calls_before = len({c.name for c in recording.calls}) * number
        result.calls += [
            replace(
                c,
                name=_renumbered(c.name, calls_before),
                start=c.start + shift,
                connection=c.connection + ids,
                host_ts=c.host_ts + shift,
                tasks=tuple(replace(t, start=t.start + shift) for t in c.tasks),
            )
            for c in recording.calls
        ]
        result.steps += [(step + steps, start + shift, end + shift) for step, start, end in recording.steps]
    return result


def _renumbered(name: str, offset: int) -> str:
    """`hcom_allReduce__612_3_1` with its ordinal moved: the library counts on over the steps."""
    head, ordinal, tail = name.rsplit("_", 2)
    return f"{head}_{int(ordinal) + offset}_{tail}"
