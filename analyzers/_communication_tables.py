"""Result tables of the `communication` analyzer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import Calls, PeerWait, group_members, is_move
from ascend_perf.analyzers._group_kinds import group_kinds
from ascend_perf.analyzers._steps import membership
from ascend_perf.model.distinct import distinct
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import COMM_LINKS, COMM_OPS, COMM_PACKETS, COMM_TASKS, COMM_TRANSFERS
from ascend_perf.model.trace import Trace
from ascend_perf.units import Unit

TOP_CALLS: Final = 20
"""Calls listed among the hotspots."""

BUS_FACTORS: Final = {"allReduce": 2.0, "allGather": 1.0, "reduceScatter": 1.0, "alltoall": 1.0, "alltoallv": 1.0}
"""Bus bandwidth = factor * (n - 1) / n * algorithm bandwidth; 1 for other ops. Source: NCCL tests, hccl_test."""

_MAX_NAME: Final = 32
"""Communicator names longer than this are addresses and counters, not names. Status: assumed."""

ColumnData = tuple[str, Words, Unit, Sequence[Cell]]


def build(name: str, title: Words, columns: Sequence[ColumnData], note: Words | None = None) -> ResultTable:
    """A result table from (name, title, unit, cells) per column."""
    return ResultTable(
        name=name,
        title=title,
        columns=tuple(ResultColumn(name=key, title=words, unit=unit) for key, words, unit, _ in columns),
        data=tuple(tuple(cells) for *_, cells in columns),
        note=note,
    )


def group_names(trace: Trace) -> dict[str | None, str]:
    """What readers see of a communicator: its label, or its name unless that holds the address of a host."""
    labels = {name: g.label for g in trace.meta.groups if g.label for name in (g.name, g.hash_id) if name is not None}
    shown: dict[str | None, str] = {None: "?"}
    for spec in (COMM_OPS, COMM_TRANSFERS, COMM_PACKETS, COMM_LINKS):
        for name in trace[spec].text("group").compact().values:
            is_plain = len(name) <= _MAX_NAME and not set(name) & set("%:/")
            shown.setdefault(name, labels.get(name) or (name if is_plain else f"group {len(shown)}"))
    return shown


def ops_by_group(calls: Calls) -> list[tuple[str | None, str | None, Bools]]:
    """(op, group, mask of its calls), the most exposed first."""
    ops, groups = calls.table.text("op"), calls.table.text("group")
    keys, index = distinct(ops.codes, groups.codes)
    parts = [
        (
            None if op < 0 else ops.values[op],
            None if group < 0 else groups.values[group],
            np.asarray(index == key),
        )
        for key, (op, group) in enumerate(keys.T.tolist())
    ]
    return sorted(parts, key=lambda part: -calls.exposed_union_ns(part[2]))


def tables(calls: Calls, waits: Sequence[PeerWait]) -> tuple[ResultTable, ...]:
    """Every table of the section that has rows."""
    names = group_names(calls.trace)
    built = (
        _ops(calls, names),
        _groups(calls, names),
        _hotspots(calls, names),
        _waits(calls, waits, names),
        _links(calls, names),
        _packets(calls),
        _transports(calls),
    )
    return tuple(table for table in built if len(table))


def total(values: Ints, mask: Bools | None = None) -> int | None:
    """Sum of the known values, None when none is known."""
    values = values if mask is None else values[mask]
    known = values[values != NULL]
    return int(known.sum()) if len(known) else None


def _rate(size: int | None, time: int | None) -> float | None:
    return size / time * 1e9 if size and time else None


def _ops(calls: Calls, names: dict[str | None, str]) -> ResultTable:
    rows = ops_by_group(calls)
    members = group_members(calls.trace)
    sizes, duration = calls.table.ints("size_bytes"), calls.ends - calls.starts
    algorithm, bus = [], []
    for op, group, mask in rows:
        waiting = np.where(calls.waiting_ns == NULL, 0, calls.waiting_ns)
        # Calls of unknown size would make the rate too low.
        sized = mask & (sizes != NULL) & (sizes > 0)
        rate = _rate(total(sizes, sized), int((duration - waiting)[sized].sum()))
        known = calls.table.ints("group_size")[mask]
        count = len(members.get(group, ())) or (int(known.max()) if known.max() != NULL else 0)
        algorithm.append(rate)
        factor = BUS_FACTORS.get(op or "")
        bus.append(rate if rate is None or factor is None else rate * factor * (count - 1) / count if count else None)
    return build(
        "comm-ops",
        Words("Communication by op and group", "按算子与通信域统计的通信"),
        (
            ("op", Words("Op", "通信算子"), "none", [op for op, _, _ in rows]),
            ("group", Words("Group", "通信域"), "none", [names.get(group, group) for _, group, _ in rows]),
            ("count", Words("Calls", "次数"), "count", [int(mask.sum()) for *_, mask in rows]),
            ("total_ns", Words("Time", "耗时"), "ns", [int(duration[mask].sum()) for *_, mask in rows]),
            ("exposed_ns", Words("Not overlapped", "未掩盖"), "ns", [calls.exposed_union_ns(m) for *_, m in rows]),
            ("wait_ns", Words("Waiting", "等待"), "ns", [total(calls.waiting_ns, m) for *_, m in rows]),
            ("transit_ns", Words("Moving data", "传输"), "ns", [total(calls.transfer_ns, m) for *_, m in rows]),
            ("size_bytes", Words("Message size", "数据量"), "bytes", [total(sizes, mask) for *_, mask in rows]),
            ("algo_bytes_per_s", Words("Algorithm bandwidth", "算法带宽"), "bytes_per_s", algorithm),
            ("bus_bytes_per_s", Words("Bus bandwidth", "总线带宽"), "bytes_per_s", bus),
            (
                "share_ratio",
                Words("Not overlapped, share of step", "未掩盖占迭代比例"),
                "ratio",
                [min(1.0, calls.exposed_union_ns(m) / calls.step_ns) if calls.step_ns else None for *_, m in rows],
            ),
        ),
        note=Words(
            "Algorithm bandwidth is message size / time without waiting; bus bandwidth multiplies it by 2(n-1)/n "
            "(all-reduce) or (n-1)/n (all-gather, reduce-scatter, all-to-all).",
            "算法带宽 = 数据量 ÷ 去除等待后的耗时；总线带宽再乘以 2(n-1)/n（AllReduce）或 "
            "(n-1)/n（AllGather、ReduceScatter、AlltoAll）。",
        ),
    )


def _groups(calls: Calls, names: dict[str | None, str]) -> ResultTable:
    groups = calls.table.text("group")
    members = group_members(calls.trace)
    codes = np.unique(groups.codes).tolist()
    masks = [groups.codes == code for code in codes]
    raw = [None if code < 0 else groups.values[code] for code in codes]
    duration = calls.ends - calls.starts
    kinds = group_kinds(calls.trace)
    return build(
        "comm-groups",
        Words("Communication by group", "按通信域统计的通信"),
        (
            ("group", Words("Group", "通信域"), "none", [names.get(name, name) for name in raw]),
            (
                "parallel",
                Words("Parallelism", "并行维度"),
                "none",
                [kinds[name][0] if name in kinds else None for name in raw],
            ),
            (
                "parallel_from",
                Words("Known from", "依据"),
                "none",
                [("inferred" if kinds[name][1] else "named") if name in kinds else None for name in raw],
            ),
            (
                "ranks",
                Words("Ranks", "Rank"),
                "none",
                [", ".join(map(str, members[name])) if name in members else None for name in raw],
            ),
            ("count", Words("Calls", "次数"), "count", [int(mask.sum()) for mask in masks]),
            ("total_ns", Words("Time", "耗时"), "ns", [int(duration[mask].sum()) for mask in masks]),
            ("exposed_ns", Words("Not overlapped", "未掩盖"), "ns", [calls.exposed_union_ns(m) for m in masks]),
            ("wait_ns", Words("Waiting", "等待"), "ns", [total(calls.waiting_ns, m) for m in masks]),
            ("transit_ns", Words("Moving data", "传输"), "ns", [total(calls.transfer_ns, m) for m in masks]),
            (
                "size_bytes",
                Words("Message size", "数据量"),
                "bytes",
                [total(calls.table.ints("size_bytes"), m) for m in masks],
            ),
        ),
    )


def _hotspots(calls: Calls, names: dict[str | None, str]) -> ResultTable:
    top = np.argsort(-calls.exposed_ns, kind="stable")[:TOP_CALLS].tolist()
    text = {key: calls.table.text(key) for key in ("name", "op", "group")}
    duration, sizes, streams = calls.ends - calls.starts, calls.table.ints("size_bytes"), calls.table.ints("stream")
    return build(
        "comm-hotspots",
        Words("Calls with the longest exposed time", "未掩盖时间最长的通信"),
        (
            ("name", Words("Call", "通信算子"), "none", [text["name"][i] for i in top]),
            ("op", Words("Op", "类型"), "none", [text["op"][i] for i in top]),
            ("group", Words("Group", "通信域"), "none", [names.get(text["group"][i]) for i in top]),
            ("start_ns", Words("Start", "开始时间"), "none", [int(calls.starts[i]) for i in top]),
            ("dur_ns", Words("Time", "耗时"), "ns", [int(duration[i]) for i in top]),
            ("exposed_ns", Words("Not overlapped", "未掩盖"), "ns", [int(calls.exposed_ns[i]) for i in top]),
            ("wait_ns", Words("Waiting", "等待"), "ns", [_cell(calls.waiting_ns[i]) for i in top]),
            ("transit_ns", Words("Moving data", "传输"), "ns", [_cell(calls.transfer_ns[i]) for i in top]),
            ("size_bytes", Words("Message size", "数据量"), "bytes", [_cell(sizes[i]) for i in top]),
            ("stream", Words("Stream", "流"), "none", [_cell(streams[i]) for i in top]),
        ),
    )


def _waits(calls: Calls, waits: Sequence[PeerWait], names: dict[str | None, str]) -> ResultTable:
    return build(
        "comm-waits",
        Words("Waiting by peer", "对各对端的等待"),
        (
            ("waiter", Words("Waiting rank", "等待的 Rank"), "none", [calls.trace.meta.rank for _ in waits]),
            ("peer", Words("Peer", "对端"), "none", [w.label.en if w.peer is None else w.peer for w in waits]),
            ("group", Words("Group", "通信域"), "none", [names.get(w.group, w.group) for w in waits]),
            ("wait_ns", Words("Waiting (union)", "等待（并集）"), "ns", [w.union_ns for w in waits]),
            ("exposed_ns", Words("Not overlapped", "未掩盖"), "ns", [w.exposed_ns for w in waits]),
            (
                "share_ratio",
                Words("Share of step", "占迭代比例"),
                "ratio",
                [min(1.0, w.exposed_ns / calls.step_ns) if calls.step_ns else None for w in waits],
            ),
            ("calls", Words("Calls with a wait", "有等待的通信次数"), "count", [w.calls for w in waits]),
            ("late_calls", Words("Calls it came late to", "迟到次数"), "count", [w.late_calls for w in waits]),
            ("longest_ns", Words("Longest wait", "最长等待"), "ns", [w.longest_ns for w in waits]),
            ("longest_call", Words("in call", "所在通信算子"), "none", [w.longest_call for w in waits]),
            ("longest_start_ns", Words("at", "开始时间"), "none", [w.longest_start_ns for w in waits]),
            ("plane", Words("Plane", "Plane"), "none", [w.longest_plane for w in waits]),
            (
                "link_bytes_per_s",
                Words("Own transfers to the peer", "本卡到对端的传输速率"),
                "bytes_per_s",
                [w.link_bytes_per_s for w in waits],
            ),
        ),
        note=Words(
            "Waits for several peers run at the same time: the rows do not add up.",
            "对多个对端的等待同时进行，各行不可相加。",
        ),
    )


def _links(calls: Calls, names: dict[str | None, str]) -> ResultTable:
    links = calls.trace[COMM_LINKS]
    if len(links):
        pick = links.text("pick")
        whole = pick.equals("total")
        chosen = links.select(whole) if whole.any() else links
        group, transport = chosen.text("group"), chosen.text("transport")
        src, dst = chosen.ints("src"), chosen.ints("dst")
        sizes, times = chosen.ints("size_bytes"), chosen.ints("time_ns")
    else:
        tasks = calls.trace[COMM_TASKS]
        chosen = tasks.select(is_move(tasks) & (tasks.ints("src") != NULL) & (tasks.ints("dst") != NULL))
        owner = chosen.ints("comm_op")
        group = calls.trace[COMM_OPS].text("group").take(owner)
        transport = chosen.text("link")
        src, dst = chosen.ints("src"), chosen.ints("dst")
        sizes, times = chosen.ints("size_bytes"), chosen.ints("dur_ns")
    members = group_members(calls.trace)
    keys, index = np.unique(
        np.stack((group.codes, src, dst, transport.codes)).astype(np.int64), axis=1, return_inverse=True
    )
    size, time = np.zeros(keys.shape[1], np.int64), np.zeros(keys.shape[1], np.int64)
    np.add.at(size, index.reshape(-1), np.where(sizes == NULL, 0, sizes))
    np.add.at(time, index.reshape(-1), np.where(times == NULL, 0, times))
    raw = [None if code < 0 else group.values[code] for code in keys[0].tolist()]

    def rank_of(position: int) -> list[Cell]:
        return [
            None if local == NULL else members[name][local] if local < len(members.get(name, ())) else local
            for name, local in zip(raw, keys[position].tolist(), strict=True)
        ]

    return build(
        "comm-links",
        Words("Traffic by link", "按链路统计的传输"),
        (
            ("group", Words("Group", "通信域"), "none", [names.get(name, name) for name in raw]),
            ("src", Words("From rank", "源 Rank"), "none", rank_of(1)),
            ("dst", Words("To rank", "目的 Rank"), "none", rank_of(2)),
            (
                "transport",
                Words("Link", "链路"),
                "none",
                [None if code < 0 else transport.values[code] for code in keys[3].tolist()],
            ),
            ("size_bytes", Words("Data", "数据量"), "bytes", size.tolist()),
            ("time_ns", Words("Transfer time", "传输时间"), "ns", time.tolist()),
            (
                "bytes_per_s",
                Words("Bandwidth", "带宽"),
                "bytes_per_s",
                [_rate(s, t) for s, t in zip(size.tolist(), time.tolist(), strict=True)],
            ),
        ),
        note=Words(
            "Ranks are global where the members of the group are known, else places in the group.",
            "已知通信域成员时为全局卡号，否则为通信域内序号。",
        ),
    )


def packets_in_steps(calls: Calls) -> Table:
    """comm_packets of the steps; from the sub-tasks where the exporter's histogram is absent. All figures are known."""
    packets = calls.trace[COMM_PACKETS]
    if len(packets):
        return _with_figures(packets)
    tasks = calls.trace[COMM_TASKS]
    moved = tasks.select(is_move(tasks) & tasks.text("transport").isin({"SDMA", "RDMA"}) & crosses(tasks))
    inside = membership(calls.trace, moved, calls.windows) >= 0
    moved = moved.select(inside)
    packets = Table(
        COMM_PACKETS,
        {
            "name": calls.trace[COMM_OPS].text("name").take(moved.ints("comm_op")),
            "transport": moved.text("link"),
            "packet_bytes": moved.ints("size_bytes"),
            "count": np.ones(len(moved), np.int64),
            "time_ns": moved.ints("dur_ns"),
        },
    )
    return _with_figures(packets)


def _with_figures(packets: Table) -> Table:
    """The rows that say how many packets of which size took how long: the others can be in no sum."""
    known = np.ones(len(packets), bool)
    for name in ("packet_bytes", "count", "time_ns"):
        known &= packets.ints(name) != NULL
    return packets if known.all() else packets.select(known)


def crosses(tasks: Table) -> Bools:
    """Transfers that leave the device."""
    crosses: Bools = ~tasks.text("link").equals("ON_CHIP") & (tasks.ints("src") != tasks.ints("dst"))
    return crosses


def _packets(calls: Calls) -> ResultTable:
    packets = packets_in_steps(calls)
    transport = packets.text("transport")
    keys, index = np.unique(
        np.stack((transport.codes, packets.ints("packet_bytes"))).astype(np.int64), axis=1, return_inverse=True
    )
    count, time = np.zeros(keys.shape[1], np.int64), np.zeros(keys.shape[1], np.int64)
    np.add.at(count, index.reshape(-1), packets.ints("count"))
    np.add.at(time, index.reshape(-1), packets.ints("time_ns"))
    moved = (keys[1] * count).tolist()
    spent = max(1, int(time.sum()))
    return build(
        "packets",
        Words("Packet sizes", "数据包大小分布"),
        (
            (
                "transport",
                Words("Link", "链路"),
                "none",
                [None if code < 0 else transport.values[code] for code in keys[0].tolist()],
            ),
            ("packet_bytes", Words("Packet", "包大小"), "bytes", keys[1].tolist()),
            ("count", Words("Packets", "包数"), "count", count.tolist()),
            ("size_bytes", Words("Data", "数据量"), "bytes", moved),
            ("time_ns", Words("Transfer time", "传输时间"), "ns", time.tolist()),
            (
                "bytes_per_s",
                Words("Bandwidth", "带宽"),
                "bytes_per_s",
                [_rate(s, t) for s, t in zip(moved, time.tolist(), strict=True)],
            ),
            ("time_ratio", Words("Share of transfer time", "占传输时间比例"), "ratio", (time / spent).tolist()),
        ),
    )


def _transports(calls: Calls) -> ResultTable:
    transfers = calls.trace[COMM_TRANSFERS]
    if len(transfers):
        names, sizes, times = transfers.text("transport"), transfers.ints("size_bytes"), transfers.ints("time_ns")
    else:
        tasks = calls.trace[COMM_TASKS]
        moved = tasks.select(is_move(tasks) & crosses(tasks))
        names, sizes, times = moved.text("link"), moved.ints("size_bytes"), moved.ints("dur_ns")
    codes = [code for code in np.unique(names.codes).tolist() if (total(sizes, names.codes == code) or 0) > 0]
    size = [total(sizes, names.codes == code) for code in codes]
    time = [total(times, names.codes == code) for code in codes]
    return build(
        "comm-transports",
        Words("Traffic by transport", "按传输方式统计的传输"),
        (
            ("transport", Words("Link", "链路"), "none", [None if c < 0 else names.values[c] for c in codes]),
            ("size_bytes", Words("Data", "数据量"), "bytes", size),
            ("time_ns", Words("Transfer time", "传输时间"), "ns", time),
            (
                "bytes_per_s",
                Words("Bandwidth of one link", "单链路带宽"),
                "bytes_per_s",
                [_rate(s, t) for s, t in zip(size, time, strict=True)],
            ),
        ),
        note=Words(
            "Transfer times are summed over planes, so the rate is that of one link, not of all together.",
            "传输时间按各 Plane 累加，因此带宽是单条链路的速率，而非合计。",
        ),
    )


def _cell(value: np.int64) -> int | None:
    return None if value == NULL else int(value)


def exposed_waits(calls: Calls, mask: Bools) -> int:
    """Known exposed waiting of some calls, never more than their exposed time."""
    return min(total(calls.exposed_waiting_ns, mask) or 0, calls.exposed_union_ns(mask))
