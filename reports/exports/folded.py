"""Folded stacks (flamegraph.pl, inferno): one line per stack, frames separated by `;`, then its microseconds."""

from __future__ import annotations

from typing import BinaryIO, Final

from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.exports._flames import FLAME_VIEWS, flames, frame_name, stacks, trace_of
from ascend_perf.units import format_ns


def write_folded(request: Request, target: BinaryIO) -> tuple[str, ...]:
    """Write one view of one rank. A `;` in a name becomes `:`, since it separates frames.

    Weights are whole microseconds, rounded half up; stacks under 0.5 us are left out, and how much that is is returned.

    Raises:
        InputError: the profile has no data for the view.
    """
    assert request.view is not None
    trace = trace_of(request)
    (view,) = flames(trace, (request.view,))
    root = ["SIMULATED"] if trace.meta.data_origin == "simulated" else []  # the only place that such a file has for it
    names = [frame_name(name) for name in view.tree.name.to_list()]
    weights: dict[str, int] = {}
    for rows, own_ns in stacks(view.tree):
        path = ";".join(root + [names[row] for row in rows])
        weights[path] = weights.get(path, 0) + own_ns
    lost_ns = 0
    for path in sorted(weights):
        us = (weights[path] + 500) // 1000
        if us:
            target.write(f"{path} {us}\n".encode())
        else:
            lost_ns += weights[path]
    notices = [] if not lost_ns else [f"stacks under 0.5 us are left out: {format_ns(lost_ns)} together"]
    if view.cut_ns:
        notices.append(f"calls that cross each other are left out: {format_ns(view.cut_ns)}")
    return tuple(notices)


EXPORTER: Final = Exporter(
    name="folded",
    suffix="folded",
    summary="folded stacks of one flame graph, for flamegraph.pl and others",
    write=write_folded,
    views=FLAME_VIEWS,
    one_rank=True,
)
