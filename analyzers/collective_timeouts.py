"""Time-outs of collectives (Q-04): which rank the others waited for, from the logs of all ranks.

The rank that is to blame rarely reports a time-out itself. In this order the logs name it:

1. a heartbeat message names it;
2. its own first error, before the first time-out of anybody, is no time-out (out of memory, a failed task);
3. it has a log without any time-out, while the others waited;
4. it has no log, while all the others waited (as long as these are the majority of the job).

Else every rank timed out, and only the first to report is known. Times are local times of the hosts, which may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._precision_hints import setting, vendor_of
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import LOG_EVENTS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, columns_of, job_analyzer
from ascend_perf.units import counted

NAME: Final = "collective-timeouts"
CODE: Final = "Q-04"

CONNECTING: Final = frozenset({"EI0006", "EI0015", "connect timeout"})
"""Names of errors while links and communicators are set up. Source: collector reference, 4.7."""
WAITING: Final = frozenset({"EI0002", "timeout"})
"""Names of errors while a collective waits for a peer."""
TIMEOUTS: Final = CONNECTING | WAITING
HEARTBEAT: Final = "heartbeat lost"
MAX_ROWS: Final = 256
"""Processes in the table; the others are counted. Status: assumed."""
_MAX_WORLD: Final = 1 << 17

NO_LOGS: Final = Words(
    "no logs of CANN: put the plog files of all ranks ($HOME/ascend/log/debug/plog and run/plog) beside the profile",
    "没有 CANN 日志：请将所有 Rank 的 plog 文件（$HOME/ascend/log/debug/plog 与 run/plog）放在 profile 旁",
)
NO_NCCL: Final = Words("logs of NCCL are not read", "暂不读取 NCCL 日志")


@dataclass(frozen=True, kw_only=True)
class Process:
    """The errors of one process in order of time."""

    label: str
    rank: int | None
    world: int | None
    names: tuple[str, ...]
    times: tuple[int, ...]
    named: tuple[int, ...]
    """Ranks that its messages name as the first to fail."""

    @property
    def timeout(self) -> int | None:
        """Index of its first time-out."""
        return next((i for i, name in enumerate(self.names) if name in TIMEOUTS), None)

    @property
    def own(self) -> int | None:
        """Index of its first error when that is neither a time-out nor about another rank."""
        if not self.names or self.names[0] in TIMEOUTS or self.names[0] == HEARTBEAT:
            return None
        return 0


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Who it was, how that is known, and the message that tells."""

    ranks: tuple[int, ...]
    how: Words
    process: Process | None
    index: int = 0


@job_analyzer(name=NAME, needs=(), order=241, section="communication", reads=columns_of(LOG_EVENTS))
def collective_timeouts(run: Run) -> Result:
    """Name the rank that the others waited for when collectives ran into their time limit.

    Reads:
        log_events: time_ns, kind, name, rank, named_rank; meta.world_size, meta.environment.

    Returns:
        Finding Q-04 without a share (the job stopped); table `first-errors`.

    Raises:
        NoData: the run has no table at all.
    """
    if not any(len(table) for trace in run.traces for table in trace.tables.values()):
        raise NoData(Words("not in this data: log_events", "数据中没有：log_events"))
    processes = [_process(trace) for trace in run.traces if trace.has(LOG_EVENTS)]
    if not processes:
        reason = NO_NCCL if vendor_of(run) == "gpu" else NO_LOGS
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
    failed = [process for process in processes if process.names]
    tables = (_table(failed),) if failed else ()
    late = [process for process in failed if process.timeout is not None]
    if not late:
        names = sorted({name for process in failed for name in process.names})
        other = Words(f"; other errors: {', '.join(names[:6])}", f"；其他错误：{', '.join(names[:6])}")
        told = counted(len(processes), "log", "logs")
        reason = Words(
            f"no time-out in {told}" + (other.en if names else ""),
            f"{len(processes)} 份日志中没有超时" + (other.zh if names else ""),
        )
        return Result(tables=tables, judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    found = _finding(run, processes, late, _blame(processes, late))
    return Result(findings=(found,), tables=tables, judged=(Judged(code=CODE, verdict="found"),))


def _process(trace: Trace) -> Process:
    table = trace[LOG_EVENTS]
    rows = np.flatnonzero(table.text("kind").equals("error"))
    times = table.ints("time_ns")[rows]
    rows = rows[np.argsort(np.where(times == NULL, np.iinfo(np.int64).max, times), kind="stable")]
    named, names = table.ints("named_rank")[rows], table.text("name").take(rows).to_list()
    ranks = np.unique(table.ints("rank"))
    return Process(
        label=trace.meta.label, rank=int(ranks[-1]) if ranks[-1] != NULL else None, world=trace.meta.world_size,
        names=tuple(name or "" for name in names), times=tuple(table.ints("time_ns")[rows].tolist()),
        named=tuple(int(rank) for rank in named if rank != NULL),
    )  # fmt: skip


def _blame(processes: Sequence[Process], late: Sequence[Process]) -> Blame:
    named = Counter(rank for process in processes for rank in process.named)
    if named:
        (rank, count), *_ = sorted(named.items(), key=lambda item: (-item[1], item[0]))
        teller = next(process for process in processes if rank in process.named)
        return Blame(
            ranks=(rank,), process=teller, index=teller.names.index(HEARTBEAT) if HEARTBEAT in teller.names else 0,
            how=Words(f"{counted(count, 'heartbeat names it', 'heartbeats name it')}", f"{count} 条心跳消息指明"),
        )  # fmt: skip
    began = min(_first(process.times[process.timeout or 0]) for process in late)
    own = [process for process in processes if process.own is not None and _first(process.times[0]) <= began]
    if own:
        first = min(own, key=lambda process: _first(process.times[0]))
        return Blame(
            ranks=() if first.rank is None else (first.rank,), process=first,
            how=Words(f"it failed first, with {first.names[0]}", f"其最先报错：{first.names[0]}"),
        )  # fmt: skip
    waiting = {process.rank for process in late}
    quiet = tuple(
        sorted({p.rank for p in processes if p.timeout is None and p.rank is not None and p.rank not in waiting})
    )
    reporter = min(late, key=lambda process: _first(process.times[process.timeout or 0]))
    if quiet and len(quiet) < len(late):
        return Blame(
            ranks=quiet, process=None,
            how=Words("its log has no time-out: the others waited for it", "其日志中没有超时，其余卡在等待它"),
        )  # fmt: skip
    absent = _absent(processes)
    if absent and len(absent) < len(late):
        return Blame(
            ranks=absent, process=None,
            how=Words("it has no log, and all the others waited", "没有它的日志，其余卡均在等待"),
        )  # fmt: skip
    return Blame(
        ranks=(), process=reporter, index=reporter.timeout or 0,
        how=Words(
            "every rank timed out; the logs do not tell which one was late", "所有卡均超时，日志无法指明迟到的卡"
        ),
    )  # fmt: skip


def _absent(processes: Sequence[Process]) -> tuple[int, ...]:
    """Ranks of the job without a log; none where the size of the job or a rank is unknown."""
    world = max((process.world for process in processes if process.world is not None), default=0)
    known = {process.rank for process in processes}
    if None in known or not 1 < world <= _MAX_WORLD:
        return ()
    return tuple(rank for rank in range(world) if rank not in known)


def _first(time_ns: int) -> int:
    return int(np.iinfo(np.int64).max) if time_ns == NULL else time_ns


def _finding(run: Run, processes: Sequence[Process], late: Sequence[Process], blame: Blame) -> Finding:
    first = min(late, key=lambda process: _first(process.times[process.timeout or 0]))
    index = first.timeout or 0
    is_connect = first.names[index] in CONNECTING
    what = Words("Setting up links", "建链") if is_connect else Words("A collective", "集合通信")
    waiting = tuple(sorted({process.rank for process in late if process.rank is not None} - set(blame.ranks)))
    who = ranks_words(blame.ranks) if blame.ranks else None
    known = [time for process in late if (time := process.times[process.timeout or 0]) != NULL]
    evidence = [
        Evidence(
            name=Words("first time-out", "首个超时"), value=first.names[index],
            where=f"{first.label}, {_clock(first.times[index])}",
        ),
        Evidence(
            name=Words("logs with a time-out", "出现超时的日志"), value=len(late), unit="count",
            where=f"{counted(len(processes), 'log', 'logs')} read",
        ),
    ]  # fmt: skip
    if blame.process is not None and (blame.process, blame.index) != (first, index):
        evidence.insert(
            0,
            Evidence(
                name=Words("message that names the rank", "指明该卡的消息"), value=blame.process.names[blame.index],
                where=f"{blame.process.label}, {_clock(blame.process.times[blame.index])}",
            ),
        )  # fmt: skip
    if len(known) > 1:
        spread = Words("from the first time-out to the last", "首个与最后一个超时的间隔")
        evidence.append(Evidence(name=spread, value=max(known) - min(known), unit="ns", where="log_events"))
    evidence.append(setting(run, "HCCL_CONNECT_TIMEOUT" if is_connect else "HCCL_EXEC_TIMEOUT"))
    unnamed = Words(counted(len(late), "process", "processes"), f"{len(late)} 个进程")
    waited = ranks_words(waiting) if waiting else unnamed
    return finding(
        CODE, analyzer=NAME, trace_rank=None, ranks=blame.ranks, affected_ranks=waiting, share_ratio=None,
        vendor="npu", subject="connect" if is_connect else "wait",
        title=Words(
            f"{what.en} timed out on {waited.en}"
            + (f"; the cause lies with {who.en}: {blame.how.en}" if who else f": {blame.how.en}"),
            f"{what.zh}超时（{waited.zh}）" + (f"，原因在 {who.zh}：{blame.how.zh}" if who else f"：{blame.how.zh}"),
        ),
        evidence=evidence,
        formula="first error in time over the logs of all ranks; their clocks may differ",
    )  # fmt: skip


def _clock(time_ns: int) -> str:
    if time_ns == NULL:
        return "time unknown"
    moment = datetime.fromtimestamp(time_ns // 10**9, timezone.utc)
    return f"{moment:%H:%M:%S}.{time_ns % 10**9 // 10**6:03d}"


def _table(failed: Sequence[Process]) -> ResultTable:
    """The first error of each process, earliest first."""
    ordered = sorted(failed, key=lambda process: _first(process.times[0]))
    shown = ordered[:MAX_ROWS]
    more = len(ordered) - len(shown)
    start = _first(ordered[0].times[0])
    return result_table(
        "first-errors",
        Words("First error of each log", "各日志的首个错误"),
        (
            Col("log", "Log", "日志", [process.label for process in shown]),
            Col("rank", "Rank", "Rank", [process.rank for process in shown]),
            Col("error", "First error", "首个错误", [process.names[0] for process in shown]),
            Col("time", "Local time", "本地时间", [_clock(process.times[0]) for process in shown]),
            Col(
                "after_ns", "After the first of all", "距最早的错误",
                [None if p.times[0] == NULL else p.times[0] - start for p in shown], "ns",
            ),
            Col("errors", "Errors", "错误数", [len(process.names) for process in shown], "count"),
        ),
        note=Words(
            "Clocks of hosts may differ." + (f" {more} more logs are not listed." if more else ""),
            "各 Host 的时钟可能不一致。" + (f"另有 {more} 份日志未列出。" if more else ""),
        ),
    )  # fmt: skip
