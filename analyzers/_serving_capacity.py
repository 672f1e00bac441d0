"""The KV cache of an inference service: full while requests wait (V-04), and its transfer between instances (V-06)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._serving import Instance, known_floats, rows_known
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.table import NULL, Floats, Ints, Table
from ascend_perf.model.tables import BATCHES, KV_CACHE, KV_TRANSFERS, QUEUE_STATES, REQUESTS
from ascend_perf.units import counted, format_ns, format_ratio, significant

NAME: Final = "serving"
MAX_FREE_RATIO: Final = threshold("V-04", "max_free_ratio")
MIN_FULL_RATIO: Final = threshold("V-04", "min_full_ratio")
MIN_WAIT_RATIO: Final = threshold("V-04", "min_wait_ratio")
MIN_CORRELATION: Final = threshold("V-06", "min_correlation")
MIN_EXPOSED_RATIO: Final = threshold("V-06", "min_exposed_ratio")
MIN_TRANSFERS: Final = threshold("V-06", "min_transfers")

ROCE_BYTES_PER_S: Final = 25e9
"""Rate of one RoCE port of Atlas A2, per direction. Source: hardware table."""
HCCS_BYTES_PER_S: Final = 196e9
"""Rate of HCCS of one Atlas A2 card, per direction. Source: hardware table."""

Verdict = tuple[Finding | None, Judged]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Free blocks of an instance's KV cache over time."""

    times: Ints
    free_ratio: Floats
    total_blocks: int | None
    """None: the total is not recorded; the most free blocks that were seen stand for it."""
    need_ratio: float
    """Share of the blocks that the median allocation takes: with fewer free the next request does not fit."""

    @property
    def full(self) -> IntervalSet:
        """When next to no block is free, or fewer than a request takes: from a sample to the next."""
        if len(self.times) < 2:
            return EMPTY
        is_full = (self.free_ratio[:-1] <= MAX_FREE_RATIO.value) | (self.free_ratio[:-1] < self.need_ratio)
        return intervals.merged(self.times[:-1][is_full], self.times[1:][is_full])

    @property
    def span_ns(self) -> int:
        """From the first to the last sample."""
        return int(self.times[-1] - self.times[0]) if len(self.times) else 0


def pool_of(instance: Instance) -> Pool | None:
    """The KV cache of an instance, from its own table and from the schedulings; None when neither tells.

    Reads:
        kv_cache: time_ns, total_blocks, free_blocks, usage_ratio; batches: start_ns, total_blocks, free_blocks.

    Source:
        msServiceProfiler, exporter_kvcache.py: where the total is not recorded, usage counts from the most free blocks.
    """
    times, ratios, totals = [], [], []
    need = 0.0
    cache, batches = instance.trace[KV_CACHE], instance.trace[BATCHES]
    sources: tuple[tuple[Table, str, Floats], ...] = (
        (cache, "time_ns", cache.floats("usage_ratio")),
        (batches, "start_ns", np.full(len(batches), np.nan)),
    )
    for table, clock, usage in sources:
        free, total = known_floats(table.ints("free_blocks")), known_floats(table.ints("total_blocks"))
        if not len(table):
            continue
        known_total = total[np.isfinite(total) & (total > 0)]
        most = float(known_total.max()) if len(known_total) else float(np.nanmax(free, initial=0.0))
        if len(known_total):
            totals.append(int(most))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = free / most if most > 0 else np.full(len(free), np.nan)
        ratio = np.where(np.isfinite(ratio), ratio, 1 - usage)
        if table is cache and most > 0:
            need = _need(cache) / most
        rows = np.isfinite(ratio)
        times.append(table.ints(clock)[rows])
        ratios.append(ratio[rows])
    if not times or not sum(map(len, times)):
        return None
    time, ratio = np.concatenate(times), np.concatenate(ratios)
    order = np.argsort(time, kind="stable")
    return Pool(
        times=time[order], free_ratio=ratio[order], total_blocks=max(totals) if totals else None, need_ratio=need
    )


def _need(cache: Table) -> float:
    """Blocks of the median allocation, as recorded, else from the free blocks before and after it; 0 when unknown."""
    allocates = cache.text("name").flags(lambda name: "alloc" in name.lower())
    taken = cache.ints("allocated_blocks")[allocates]
    taken = taken[taken > 0]
    if not len(taken):
        order = np.argsort(cache.ints("time_ns"), kind="stable")
        free = known_floats(cache.ints("free_blocks")[order])
        drops = -np.diff(free)[allocates[order][1:]]
        taken = drops[np.isfinite(drops) & (drops > 0)].astype(np.int64)
    return float(np.median(taken)) if len(taken) else 0.0


def full_cache(instances: Sequence[Instance]) -> Verdict:
    """V-04: requests wait while the KV cache is full."""
    pools = [(instance, pool) for instance in instances if (pool := pool_of(instance)) is not None]
    if not pools:
        reason = Words(
            'no blocks of the KV cache in this data: collect with the domain "KVCache" (kvcache.csv)',
            "数据中没有 KV Cache 块信息：请采集 KVCache 域（kvcache.csv）",
        )
        return None, Judged(code="V-04", verdict="not_judged", reason=reason)
    waited = total = behind = full_ns = span_ns = 0.0
    least = 1.0
    known = False
    for instance, pool in pools:
        requests = instance.trace[REQUESTS]
        start, queue, execution = (requests.ints(n) for n in ("start_ns", "queue_wait_ns", "execution_ns"))
        rows = rows_known(start, queue, execution)
        known |= bool(rows.any())
        full = pool.full
        full_ns += intervals.total(full)
        span_ns += pool.span_ns
        least = min(least, float(pool.free_ratio.min()))
        waited += float(queue[rows].sum())
        total += float(execution[rows].sum())
        behind += float(intervals.covered(full, start[rows], start[rows] + queue[rows]).sum())
    if not known:
        reason = Words(
            'the waiting time of requests is not in this data: collect with the domain "Request" (request.csv)',
            "数据中没有请求排队时间：请采集 Request 域（request.csv）",
        )
        return None, Judged(code="V-04", verdict="not_judged", reason=reason)
    full_ratio = full_ns / span_ns if span_ns else 0.0
    share = min(1.0, behind / total) if total else 0.0
    hit = _hit_ratio(instances)
    if full_ratio < MIN_FULL_RATIO.value or share < MIN_WAIT_RATIO.value:
        told = "" if hit is None else f"; the prefix cache serves {format_ratio(hit)} of the prompts"
        told_zh = "" if hit is None else f"；前缀缓存命中 {format_ratio(hit)}"
        reason = Words(
            f"the KV cache is full {format_ratio(full_ratio)} of the time (least {format_ratio(least)} free), and "
            f"waiting then takes {format_ratio(share)} of the requests' time{told}; whether prompts repeat is not in "
            "this data",
            f"KV Cache 有 {format_ratio(full_ratio)} 的时间处于满状态（最少空闲 {format_ratio(least)}），期间排队占请求"
            f"耗时的 {format_ratio(share)}{told_zh}；数据中没有提示词是否重复的信息",
        )
        return None, Judged(code="V-04", verdict="clean", reason=reason)
    evidence = [
        Evidence(
            name=Words("time without blocks for a request", "空闲块不足以容纳请求的时间占比"), value=full_ratio,
            unit="ratio", where=f"kv_cache and batches: at most {format_ratio(MAX_FREE_RATIO.value)} of the blocks "
            "free, or fewer than the median allocation takes",
        ),
        Evidence(
            name=Words("waiting of the requests meanwhile", "期间请求的排队时间"), value=behind, unit="ns",
            where=f"requests: queue_wait_ns, of {format_ns(waited)} in all",
        ),
    ]
    if any(pool.total_blocks for _, pool in pools):
        evidence.append(
            Evidence(
                name=Words("blocks of the KV cache", "KV Cache 块总数"),
                value=sum(pool.total_blocks or 0 for _, pool in pools), unit="count", where="kv_cache: total_blocks",
            )
        )
    swapped = sum(_most_swapped(instance) for instance in instances)
    if swapped:
        evidence.append(
            Evidence(
                name=Words("requests swapped out at once, at most", "同时被换出的请求数（最多）"), value=swapped,
                unit="count", where="queue_states: swapped",
            )
        )
    if hit is not None:
        evidence.append(
            Evidence(
                name=Words("prefix cache hit rate, mean", "前缀缓存命中率（平均）"), value=hit, unit="ratio",
                where="requests: cache_hit_ratio",
            )
        )
    found = finding(
        "V-04", analyzer=NAME, trace_rank=None, vendor=instances[0].trace.meta.device.kind, share_ratio=share,
        subject="kv cache", evidence=evidence,
        title=Words(
            f"The KV cache is full {format_ratio(full_ratio)} of the time, and requests then wait "
            f"{format_ns(behind / max(1, _count(instances)))} each on average ({format_ratio(share)} of their time)",
            f"KV Cache 有 {format_ratio(full_ratio)} 的时间处于满状态，期间每个请求平均排队 "
            f"{format_ns(behind / max(1, _count(instances)))}（占其耗时的 {format_ratio(share)}）",
        ),
        formula="waiting of the requests while the KV cache is full / sum(time of the requests)",
    )  # fmt: skip
    return found, Judged(code="V-04", verdict="found")


def _count(instances: Sequence[Instance]) -> int:
    return sum(len(instance.trace[REQUESTS]) for instance in instances)


def _hit_ratio(instances: Sequence[Instance]) -> float | None:
    values = np.concatenate([instance.trace[REQUESTS].floats("cache_hit_ratio") for instance in instances])
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def _most_swapped(instance: Instance) -> int:
    swapped = instance.trace[QUEUE_STATES].ints("swapped")
    swapped = swapped[swapped != NULL]
    return int(swapped.max()) if len(swapped) else 0


# ---- V-06 ------------------------------------------------------------------------------------------------------------


def slow_transfers(instances: Sequence[Instance]) -> Verdict:
    """V-06: transfers of the KV cache that grow with the sequence and that the prefill does not hide."""
    tables = [instance.trace[KV_TRANSFERS] for instance in instances if instance.trace.has(KV_TRANSFERS)]
    if not tables:
        reason = Words(
            "no transfers of the KV cache in this data: prefill and decode are not split, or collect with the domain "
            '"KVCache" on every node (pd_split_kvcache.csv)',
            "数据中没有 KV 传输：未采用 PD 分离，或请在各节点采集 KVCache 域（pd_split_kvcache.csv）",
        )
        return None, Judged(code="V-06", verdict="not_judged", reason=reason)
    transfers = Table.concat(KV_TRANSFERS, tables)
    tokens, duration = transfers.ints("tokens"), transfers.ints("dur_ns")
    rows = rows_known(tokens, duration)
    if int(rows.sum()) < MIN_TRANSFERS.value or len(np.unique(tokens[rows])) < 3:
        reason = Words(
            f"{counted(int(rows.sum()), 'transfer')} of known length are too few for a trend",
            f"长度已知的传输仅 {int(rows.sum())} 次，不足以判断趋势",
        )
        return None, Judged(code="V-06", verdict="not_judged", reason=reason)
    x, y = tokens[rows].astype(np.float64), duration[rows].astype(np.float64)
    slope, fixed = np.polyfit(x, y, 1)
    correlation = float(np.corrcoef(x, y)[0, 1]) if y.std() > 0 else 0.0
    start, end = transfers.ints("start_ns"), transfers.ends_ns()
    prefill, arrival = transfers.ints("prefill_end_ns"), _arrivals(instances, transfers)
    exposed_from = np.where(prefill == NULL, start, np.maximum(start, np.where(prefill == NULL, start, prefill)))
    timed = rows_known(start, end, arrival)
    if not timed.any():
        reason = Words(
            'the arrival of the requests is not in this data: collect with the domain "Communication" '
            "(pd_split_communication.csv)",
            "数据中没有请求到达时间：请采集 Communication 域（pd_split_communication.csv）",
        )
        return None, Judged(code="V-06", verdict="not_judged", reason=reason)
    exposed = np.clip(end - exposed_from, 0, None)[timed].astype(np.float64)
    whole = np.clip(end - arrival, 1, None)[timed].astype(np.float64)
    share = float(min(1.0, exposed.sum() / whole.sum()))
    if correlation < MIN_CORRELATION.value or slope <= 0 or share < MIN_EXPOSED_RATIO.value:
        reason = Words(
            f"transfers that the prefill does not hide take {format_ratio(share)} of the time to the first decode "
            f"(correlation of time and length {significant(correlation, 2)})",
            f"未被 Prefill 掩盖的传输占首次 Decode 前耗时的 {format_ratio(share)}（耗时与长度的相关系数为 "
            f"{significant(correlation, 2)}）",
        )
        return None, Judged(code="V-06", verdict="clean", reason=reason)
    median = float(np.median(y))
    found = finding(
        "V-06", analyzer=NAME, trace_rank=None, vendor=instances[0].trace.meta.device.kind, share_ratio=share,
        subject="transfers",
        title=Words(
            f"{counted(int(rows.sum()), 'transfer')} of the KV cache take {format_ns(median)} (median) and grow with "
            f"the sequence: what the prefill does not hide is {format_ratio(share)} of the time to the first decode",
            f"{int(rows.sum())} 次 KV 传输耗时 {format_ns(median)}（中位数）且随序列增长：未被 Prefill 掩盖的部分"
            f"占首次 Decode 前耗时的 {format_ratio(share)}",
        ),
        evidence=[
            Evidence(
                name=Words("time per token of the sequence", "每 token 的传输耗时"), value=float(slope), unit="ns",
                where=f"kv_transfers: line through time and length, correlation {significant(correlation, 2)}; "
                f"{format_ns(max(0.0, float(fixed)))} of each transfer does not depend on the length",
            ),
            Evidence(
                name=Words("KV bytes per token that RoCE carries in that time", "RoCE 同时间可传的每 token 字节数"),
                value=float(slope) * ROCE_BYTES_PER_S / 1e9, unit="bytes",
                where="25 GB/s of one port of Atlas A2: a model with fewer KV bytes per token does not use the link",
            ),
            Evidence(
                name=Words("KV bytes per token that HCCS carries in that time", "HCCS 同时间可传的每 token 字节数"),
                value=float(slope) * HCCS_BYTES_PER_S / 1e9, unit="bytes", where="196 GB/s of one card of Atlas A2",
            ),
            Evidence(
                name=Words("exposed part of a transfer, mean", "单次传输的暴露部分（平均）"),
                value=float(exposed.mean()), unit="ns",
                where="from the later of its start and the end of the prefill to its end"
                if (prefill != NULL).any() else "the whole transfer: the end of the prefill is not in this data",
            ),
        ],
        formula="sum(transfer behind the end of the prefill) / sum(arrival of the request to the end of its transfer)",
    )  # fmt: skip
    return found, Judged(code="V-06", verdict="found")


def _arrivals(instances: Sequence[Instance], transfers: Table) -> Ints:
    """Arrival of each transfer's request: joined by the reader, else from the requests."""
    arrival = transfers.ints("arrival_ns").copy()
    starts: dict[str, int] = {}
    for instance in instances:
        requests = instance.trace[REQUESTS]
        for name, start in zip(requests.text("request").to_list(), requests.ints("start_ns").tolist(), strict=True):
            if name is not None and start != NULL:
                starts[name] = start
    names = transfers.text("request")
    known = np.array([*(starts.get(name, NULL) for name in names.values), NULL], np.int64)[names.codes]
    return np.where(arrival == NULL, known, arrival).astype(np.int64)
