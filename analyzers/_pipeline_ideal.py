"""The bubble that a pipeline cannot avoid: (p - 1) / (m + p - 1) for p stages and m micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf.analyzers._communication import is_p2p
from ascend_perf.analyzers._stages import Job, RankView


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Stages and micro-batches of a pipeline."""

    stages: int
    micro_batches: int
    is_inferred: bool
    """The micro-batches were counted from the calls of the first and the last stage, not read from metadata."""

    @property
    def ideal_ratio(self) -> float:
        """Share of the step that every stage idles in a schedule without interleaving whose stages are equal."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)


def schedule_of(job: Job) -> Schedule | None:
    """Stages and micro-batches; None without a pipeline or where nothing tells the micro-batches.

    Metadata first (`num_micro_batches`, or global batch / (micro-batch x data parallel)). Else from the calls of
    1F1B without interleaving: the last stage receives once per micro-batch; with combined send-and-receive calls it
    makes m + 1, and the first stage m + p - 1. Both ends must agree where both are there.
    """
    stages = len(set(job.stages.values()))
    if stages < 2:
        return None
    for view in job.ranks:
        known = _stated(view)
        if known:
            return Schedule(stages=stages, micro_batches=known, is_inferred=False)
    counts = {count for view in job.ranks if (count := _counted(view, stages)) is not None}
    if len(counts) != 1:
        return None
    return Schedule(stages=stages, micro_batches=counts.pop(), is_inferred=True)


def _stated(view: RankView) -> int | None:
    parallel = view.trace.meta.parallel
    if parallel.get("num_micro_batches", 0) > 0:
        return parallel["num_micro_batches"]
    whole, micro, data = (parallel.get(name, 0) for name in ("global_batch", "micro_batch", "data_parallel"))
    if whole > 0 and micro > 0 and data > 0 and whole % (micro * data) == 0:
        return whole // (micro * data)
    return None


def _counted(view: RankView, stages: int) -> int | None:
    """Micro-batches by the calls of a rank of the first or the last stage, None for others."""
    if view.stage not in (0, stages - 1) or view.stage is None:
        return None
    ops = view.calls.table.text("op")
    receives = int(ops.equals("receive").sum())
    both = int((is_p2p(view.calls.table) & ops.equals("batchSendRecv")).sum())
    per_step = np.array([receives, both]) / max(1, view.steps)
    if (per_step != np.rint(per_step)).any() or (receives and both):
        return None
    if receives:
        return int(per_step[0])
    extra = 1 if view.stage == stages - 1 else stages - 1
    count = int(per_step[1]) - extra
    return count if count > 0 else None
