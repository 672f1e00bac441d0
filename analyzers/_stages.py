"""Ranks of a job: which traces may be compared, what each rank did, and which pipeline stage it is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import (
    Calls,
    Split,
    calls_in_steps,
    is_p2p,
    is_pipelined,
    split_of,
    stage_count,
)
from ascend_perf.model.finding import Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import (
    BESIDE,
    COMM_LINKS,
    COMM_OPS,
    COMM_PACKETS,
    COMM_TASKS,
    COMM_TRANSFERS,
    EXPORTED_STEPS,
    KERNELS,
    STEPS,
)
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import columns_of
from ascend_perf.units import counted

JOB_READS: Final = columns_of(STEPS, EXPORTED_STEPS, COMM_OPS, COMM_TASKS, COMM_TRANSFERS) | {
    KERNELS.name: frozenset({"start_ns", "dur_ns", "name", "step_id"}),
    COMM_PACKETS.name: frozenset({"group"}),
    COMM_LINKS.name: frozenset({"group"}),
}
"""What `job_of`, its views and their calls read of a rank."""


@dataclass(frozen=True, kw_only=True)
class P2P:
    """Point-to-point calls of a rank, all steps together."""

    calls: int
    duration_ns: int
    exposed_ns: int
    waiting_ns: int | None
    """Exposed time of the calls less the time that their data needed; None where the data do not tell."""
    need_ns: int | None
    """Time that the data needed; None where the data do not tell."""
    longest: tuple[str, int, int] | None
    """Name, start and duration in ns of the longest call."""
    ops: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One rank of the job in figures."""

    rank: int
    trace: Trace
    split: Split
    calls: Calls
    p2p: P2P | None
    stage: int | None

    @property
    def step_ns(self) -> int:
        """Length of all steps together."""
        return self.split.step_ns

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.split.steps

    @property
    def compute_per_step_ns(self) -> float:
        """Computing of an average step."""
        return self.split.computing_ns / max(1, self.split.steps)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The ranks that can be compared, and what was left out."""

    ranks: tuple[RankView, ...]
    notes: tuple[Words, ...]
    stages: dict[int, int]
    """Stage of each rank of the job as far as known, also of ranks whose files are not there."""
    missing: tuple[int, ...]
    """Ranks of the job without files."""

    def of_stage(self, stage: int) -> tuple[RankView, ...]:
        """The seen ranks of a pipeline stage."""
        return tuple(view for view in self.ranks if view.stage == stage)

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """All ranks of a stage, with or without files."""
        return tuple(sorted(rank for rank, of in self.stages.items() if of == stage))


_last: list[tuple[weakref.ref[Run], Job]] = []
"""The job that was made last: several analyzers ask for the same one. It goes with its run."""


def job_of(run: Run) -> Job:
    """The comparable ranks of a run: one trace per rank number, all of one job."""
    for known, job in _last:
        if known() is run:
            return job
    job = _job_of(run)
    _last[:] = [(weakref.ref(run, lambda _: _last.clear()), job)]
    return job


def _job_of(run: Run) -> Job:
    notes: list[Words] = []
    chosen: dict[int, Trace] = {}
    unknown = doubles = 0
    for trace in run.traces:
        rank = trace.meta.rank
        if rank is None:
            unknown += not BESIDE.issuperset(trace.tables)
        elif rank in chosen:
            doubles += 1
        else:
            chosen[rank] = trace
    if unknown:
        notes.append(
            Words(
                counted(
                    unknown,
                    "trace without a rank number is not compared",
                    "traces without a rank number are not compared",
                ),
                f"{unknown} 份没有卡号的 trace 未参与比较",
            )
        )
    if doubles:
        notes.append(
            Words(
                counted(
                    doubles,
                    "further trace of a rank number that was read already is left out",
                    "further traces of rank numbers that were read already are left out",
                ),
                f"{doubles} 份卡号重复的 trace 未参与比较",
            )
        )
    worlds = {t.meta.world_size for t in chosen.values() if t.meta.world_size is not None}
    if len(worlds) > 1:
        notes.append(
            Words(
                "the traces state different numbers of ranks: they may come from different jobs",
                "各 trace 的总卡数不一致：可能来自不同任务",
            )
        )
    stages = _stages(tuple(chosen.values()))
    views = []
    for rank, trace in sorted(chosen.items()):
        split = split_of(trace)
        if split is None or split.step_ns <= 0:
            notes.append(Words(f"rank {rank} has no device activity", f"Rank {rank} 没有设备活动"))
            continue
        calls = calls_in_steps(trace)
        views.append(
            RankView(
                rank=rank, trace=trace, split=split, calls=calls, p2p=_p2p(calls, trace), stage=stages.get(rank)
            )
        )  # fmt: skip
    world = max(worlds, default=None)
    missing = () if world is None else tuple(rank for rank in range(world) if rank not in chosen)
    return Job(ranks=tuple(views), notes=tuple(notes), stages=stages, missing=missing)


def _stages(traces: tuple[Trace, ...]) -> dict[int, int]:
    """Stage of each rank: its place in its pipeline group.

    Without such groups the stages are blocks of ranks, the order of Megatron (pipeline outermost). Status: assumed.
    """
    stages: dict[int, int] = {}
    for trace in traces:
        for group in trace.meta.groups:
            if group.label == "pp" and len(group.ranks) > 1:
                stages.update({rank: place for place, rank in enumerate(group.ranks)})
    count = max((stage_count(trace) for trace in traces), default=1)
    world = max((t.meta.world_size for t in traces if t.meta.world_size is not None), default=0)
    if count > 1 and world % count == 0 and world:
        block = world // count
        for rank in range(world):
            stages.setdefault(rank, rank // block)
    return stages


def _p2p(calls: Calls, trace: Trace) -> P2P | None:
    """What a pipeline's point-to-point calls cost; None where the trace is not of a pipeline or has none."""
    if not len(calls) or not is_pipelined(trace):
        return None
    rows = np.flatnonzero(is_p2p(calls.table))
    if not len(rows):
        return None
    duration = (calls.ends - calls.starts)[rows]
    waiting = calls.exposed_waiting_ns[rows]
    need = calls.transfer_ns[rows]
    longest = int(rows[np.argmax(duration)])
    names, ops = calls.table.text("name"), calls.table.text("op").take(rows).compact().values
    return P2P(
        calls=len(rows), duration_ns=int(duration.sum()), exposed_ns=int(calls.exposed_ns[rows].sum()),
        waiting_ns=int(waiting[waiting != NULL].sum()) if (waiting != NULL).any() else None,
        need_ns=int(need[need != NULL].sum()) if (need != NULL).any() else None,
        longest=(names[longest] or "", int(calls.starts[longest]), int(calls.ends[longest] - calls.starts[longest])),
        ops=tuple(ops),
    )  # fmt: skip
