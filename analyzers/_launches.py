"""How the host launches device tasks: cost of a launch, delay until the task starts, length of the queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf.model.table import NULL, Floats, Ints
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Device tasks whose launch is known, in order of launch; arrays hold one entry per task."""

    cost_ns: Ints
    """Length of the launch call."""
    delay_ns: Ints
    """From the end of the launch call to the start of the task; 0 where the clocks disagree."""
    device_ns: Ints
    queue: Ints
    """Tasks launched and not finished when the launch call returns, this one included."""
    negative: int
    """Tasks that seem to start before their launch call ends, clamped to a delay of 0."""
    total: int
    """Device tasks with or without a known launch."""

    def __len__(self) -> int:
        return len(self.cost_ns)


def launches_of(trace: Trace) -> Launches:
    """Launch statistics of a rank.

    Reads:
        kernels, comm_ops, copies: start_ns, dur_ns, launch_start_ns, launch_end_ns.

    Source:
        rivals-and-methods, method 5.3. Negative delays come from clock calibration (format reference, 9.5).
    """
    parts: list[Ints] = []
    total = 0
    for spec in (KERNELS, COMM_OPS, COPIES):
        table = trace[spec]
        columns = np.stack(
            (
                table.ints("start_ns"), table.ends_ns(), table.ints("launch_start_ns"), table.ints("launch_end_ns"),
            )
        )  # fmt: skip
        total += len(table)
        parts.append(columns[:, (columns != NULL).all(axis=0)])
    starts, ends, first, last = np.concatenate(parts, axis=1)
    order = np.argsort(last, kind="stable")
    starts, ends, first, last = starts[order], ends[order], first[order], last[order]
    delay = starts - last
    finished = np.searchsorted(np.sort(ends), last, side="right")
    return Launches(
        cost_ns=last - first, delay_ns=np.maximum(delay, 0), device_ns=ends - starts,
        queue=np.maximum(np.arange(1, len(last) + 1) - finished, 0).astype(np.int64),
        negative=int((delay < 0).sum()), total=total,
    )  # fmt: skip


def quantiles(values: Ints) -> tuple[float, float, float]:
    """Median, 95th percentile and maximum.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("no values")
    cuts: Floats = np.quantile(values, (0.5, 0.95, 1.0))
    return float(cuts[0]), float(cuts[1]), float(cuts[2])
