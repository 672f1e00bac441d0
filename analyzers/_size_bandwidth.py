"""Message size against bandwidth of a rank's collectives, with what the device table gives for their link."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.analyzers._collective_rates import bus_factor, link_peak
from ascend_perf.analyzers._communication import Calls, call_of, group_members, is_move
from ascend_perf.analyzers._communication_tables import crosses, group_names
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.device.specs import spec_for
from ascend_perf.model.distinct import distinct
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import NULL, Floats, Ints
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, COMM_TRANSFERS
from ascend_perf.units import format_quantity

NAME: Final = "size-bandwidth"

MAX_POINTS: Final = 400
"""Calls up to this many have a point each; more are put together, and then those of most time are kept."""

_BINS_PER_OCTAVE: Final = 2
"""Sizes within half an octave are one point where calls are put together."""

_ONE_WAY: Final = frozenset({"broadcast", "reduce", "send", "receive", "batchSendRecv"})
"""Operations whose bus bandwidth is the algorithm bandwidth. Source: NCCL tests."""


def size_bandwidth(calls: Calls) -> ResultTable | None:
    """One row per call whose size and rate are known, or per op, group, link and half octave of size where many.

    The bandwidth is that of the bus, so that it can stand against a link: message x factor of the op / time without
    waiting; where the size of the group is not known, what the rank moved over its links / the same time.

    Reads:
        comm_ops, comm_tasks, comm_transfers; meta: groups, device.
    """
    sent, links, names = _traffic(calls)
    ranks, factor = _groups(calls)
    message = calls.table.ints("size_bytes")
    is_sized = (message != NULL) & (message > 0)
    known = is_sized & np.isfinite(factor)
    bus = np.where(known, message * factor, sent)
    size = np.where(is_sized, message, np.rint(sent).astype(np.int64))
    waiting = np.where(calls.waiting_ns == NULL, 0, calls.waiting_ns)
    time = calls.ends - calls.starts - waiting
    rows = np.flatnonzero((size > 0) & (bus > 0) & (time > 0))
    if not len(rows):
        return None
    ops, groups = calls.table.text("op"), calls.table.text("group")
    columns: list[NDArray[np.integer]] = [ops.codes[rows], groups.codes[rows], links[rows], ranks[rows]]
    if len(rows) > MAX_POINTS:
        columns.append(np.floor(np.log2(size[rows]) * _BINS_PER_OCTAVE).astype(np.int64))
    else:
        columns.append(np.arange(len(rows)))
    keys, index = distinct(*columns)
    count = np.bincount(index)
    total = np.bincount(index, weights=time[rows]).astype(np.int64)
    mean_size = np.bincount(index, weights=size[rows]) / count
    rate = np.bincount(index, weights=bus[rows]) / total * 1e9
    kept = np.argsort(-total, kind="stable")[:MAX_POINTS]
    peaks = _peaks(calls, keys, names)
    op, group, link, of = (part[kept].tolist() for part in keys[:4])
    shown = group_names(calls.trace)
    peak = [peaks[one, n] for one, n in zip(link, of, strict=True)]
    return result_table(
        NAME,
        Words("Message size against bandwidth", "数据量与带宽"),
        (
            Col("op", "Op", "通信算子", [None if code < 0 else ops.values[code] for code in op]),
            Col("group", "Group", "通信域", [shown.get(None if g < 0 else groups.values[g]) for g in group]),
            Col("group_size", "Ranks", "卡数", np.array(of, np.int64), "count"),
            Col("transport", "Link", "链路", [None if code < 0 else names[code] for code in link]),
            Col("count", "Calls", "次数", count[kept], "count"),
            Col("size_bytes", "Message size", "数据量", mean_size[kept], "bytes"),
            Col("time_ns", "Time without waiting, mean", "去除等待后的耗时（平均）", total[kept] / count[kept], "ns"),
            Col("total_ns", "Sum", "合计", total[kept], "ns"),
            Col("bus_bytes_per_s", "Bus bandwidth", "总线带宽", rate[kept], "bytes_per_s"),
            Col("peak_bytes_per_s", "Vendor peak of the link", "链路厂商峰值", peak, "bytes_per_s"),
            Col(
                "peak_ratio", "Share of the link peak", "占链路峰值",
                [None if top is None else float(one) / top for one, top in zip(rate[kept], peak, strict=True)], "ratio",
            ),
        ),
        note=_note(calls, peaks, names, len(rows), len(calls) - len(rows), keys.shape[1] - len(kept)),
    )  # fmt: skip


def _groups(calls: Calls) -> tuple[Ints, Floats]:
    """Size of each call's group (`NULL`: not known) and bus over algorithm bandwidth (NaN: not known)."""
    members = group_members(calls.trace)
    ops, groups = calls.table.text("op"), calls.table.text("group")
    keys, index = distinct(ops.codes, groups.codes, calls.table.ints("group_size"))
    ranks = np.full(keys.shape[1], NULL, np.int64)
    factors = np.full(keys.shape[1], np.nan)
    for at, (op, group, stated) in enumerate(keys.T.tolist()):
        size = len(members.get(None if group < 0 else groups.values[group], ())) or (stated if stated > 0 else NULL)
        ranks[at] = size
        name = "" if op < 0 else ops.values[op]
        known = 1.0 if name in _ONE_WAY else None if size == NULL else bus_factor(name, size)
        factors[at] = np.nan if known is None else known
    return ranks[index], factors[index]


def _traffic(calls: Calls) -> tuple[Floats, Ints, tuple[str, ...]]:
    """Bytes that the rank moved over its links in each call, and the link that carried most of them.

    Returns:
        Bytes and codes of links, shape (calls,), 0 and -1 where no file tells; and the names of the links.
    """
    transfers, tasks = calls.trace[COMM_TRANSFERS], calls.trace[COMM_TASKS]
    if len(transfers):
        link = transfers.text("transport")
        per_link = _from_transfers(calls, len(link.values))
    else:
        moved = tasks.select(is_move(tasks) & crosses(tasks) & (tasks.ints("size_bytes") > 0))
        link = moved.text("link")
        call = call_of(calls.rows, len(calls.trace[COMM_OPS]), moved)
        per_link = np.zeros((len(calls), len(link.values) + 1))
        np.add.at(per_link, (call[call >= 0], link.codes[call >= 0]), moved.ints("size_bytes")[call >= 0])
    named = per_link[:, : len(link.values)]
    most = named.argmax(axis=1) if named.shape[1] else np.zeros(len(calls), np.int64)
    is_known = named.max(axis=1) > 0 if named.shape[1] else np.zeros(len(calls), bool)
    return per_link.sum(axis=1), np.where(is_known, most, -1), tuple(link.values)


def _from_transfers(calls: Calls, links: int) -> Floats:
    """Bytes per call and link, the last column for unnamed ones; rows without a step hold for every step."""
    transfers = calls.trace[COMM_TRANSFERS]
    theirs, ours = transfers.text("name").compact(), calls.table.text("name").compact()
    code_of = {name: code for code, name in enumerate(theirs.values)}
    renamed = np.array([*(code_of.get(name, -2) for name in ours.values), -2], np.int64)
    name = renamed[ours.codes]
    rows, count = len(transfers), len(calls)
    _, index = distinct(
        np.concatenate((theirs.codes.astype(np.int64), name, name)),
        np.concatenate((transfers.ints("step_id"), calls.table.ints("step_id"), np.full(count, NULL, np.int64))),
    )
    sums = np.zeros((int(index.max(initial=-1)) + 1, links + 1))
    sizes = np.clip(transfers.ints("size_bytes"), 0, None)
    np.add.at(sums, (index[:rows], transfers.text("transport").codes), sizes)
    own, any_step = index[rows : rows + count], index[rows + count :]
    times = np.maximum(1, np.bincount(own, minlength=len(sums)))
    in_step, in_any = sums[own] / times[own][:, None], sums[any_step]
    return np.asarray(np.where(in_step.sum(axis=1)[:, None] > 0, in_step, in_any), np.float64)


def _peaks(calls: Calls, keys: Ints, names: tuple[str, ...]) -> dict[tuple[int, int], float | None]:
    """Vendor peak by link and size of the group, None where the device table gives none."""
    made: dict[tuple[int, int], float | None] = {}
    for link, ranks in dict.fromkeys(zip(keys[2].tolist(), keys[3].tolist(), strict=True)):
        found = None if link < 0 else link_peak(calls.trace, names[link], 0 if ranks == NULL else ranks)
        made[link, ranks] = None if found is None else found[0]
    return made


def _note(
    calls: Calls, peaks: dict[tuple[int, int], float | None], names: tuple[str, ...], drawn: int, without: int, cut: int
) -> Words:
    """How the figures are made, where the ceilings are from or why there is none, and what is not here."""
    en = [
        "Bus bandwidth: message size x factor of the op / time without waiting; where the size of the group is not "
        "known, what the rank moved over its links / the same time.",
    ]
    zh = ["总线带宽 = 数据量 × 算子系数 ÷ 去除等待后的耗时；通信域大小未知时，取本卡经链路传输的数据量 ÷ 同一耗时。"]
    tops: dict[int, float] = {}
    for (link, _), top in peaks.items():
        if top is not None:
            tops[link] = max(top, tops.get(link, 0.0))
    if tops:
        known = ", ".join(f"{names[link]} {format_quantity(top, 'bytes_per_s')}" for link, top in sorted(tops.items()))
        en.append(
            "Ceilings are vendor peaks of the device table, per direction, all links of a device together, and not "
            f"measured: {known}; a group that uses part of a full mesh has its part of it."
        )
        zh.append(
            f"上限为设备表中的厂商峰值（单向、每设备全部链路合计），并非实测：{known}；"
            "仅使用全互联部分链路的通信域按比例计。"
        )
    lacking = sorted({names[link] for (link, _), top in peaks.items() if link >= 0 and top is None})
    if lacking:
        device = calls.trace.meta.device
        links = ", ".join(lacking)
        if spec_for(device) is None:
            en.append(f"No ceiling for {links}: the profile does not tell which device this is.")
            zh.append(f"{links} 没有上限：profile 未说明具体的设备型号。")
        else:
            en.append(f"No ceiling for {links}: the device table gives no peak of it that holds for this device.")
            zh.append(f"{links} 没有上限：设备表中没有适用于该设备的峰值。")
    if any(link < 0 for link, _ in peaks):
        en.append("No ceiling for calls whose link the profile does not tell.")
        zh.append("profile 未说明链路的通信没有上限。")
    if drawn > MAX_POINTS:
        en.append(f"{_count(drawn)} calls are put together by op, group, link and size.")
        zh.append(f"{_count(drawn)} 次通信已按算子、通信域、链路与数据量合并。")
    if cut:
        en.append(f"{_count(cut)} of these points, those of least time, are left out.")
        zh.append(f"其中耗时最短的 {_count(cut)} 个点未列出。")
    if without:
        en.append(f"Calls without a known size or a time of their own, which are not here: {_count(without)}.")
        zh.append(f"{_count(without)} 次通信的数据量或耗时未知，未列出。")
    return Words(" ".join(en), "".join(zh))


def _count(value: int) -> str:
    return format_quantity(value, "count")
