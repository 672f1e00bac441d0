"""Faults planted into recorded training steps (AlexNet on 8 devices, two ranks at hand).

Time is inserted in the forward pass, before the first collective, on all ranks alike, as a fault of the program would;
or inside collectives, as a fault of one rank or link would. Each returns the time that a step got longer, in ns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults.real_parts import (
    MICRO,
    add_api,
    add_collections,
    add_copy,
    add_kernel,
    add_op,
    add_queued,
    after,
    compute_rows,
    lengthen,
    of_task,
    phase,
    prompt,
    quiet,
    sites,
    spread,
    stretch,
    waiting,
)  # fmt: skip
from tests.faults.real_text import (
    Cut,
    Event,
    RealProfile,
    RealRank,
    Row,
    end_of,
    slower_clock,
    to_ns,
    waiting_for_memory,
)  # fmt: skip

RealPlant = Callable[[RealProfile, int], float]
Fill = Callable[[RealRank, tuple[int, int], tuple[int, int], tuple[int, int]], None]
"""Fills inserted time: on the main thread, on the thread of the queue, on the device; ns."""

LATE: Final = 3
LINK: Final = (0, 4)
PIECES: Final = 64


def filled(count: int, fill: Fill | None) -> RealPlant:
    """The target in `count` parts, each in front of an operator, with something in it."""

    def plant(profile: RealProfile, target: int) -> float:
        for rank in profile.ranks:
            places = spread(prompt(sites(rank)), count)
            cuts = [site.cut(rank, target // count) for site in places]
            maps = rank.insert(cuts)
            for number in range(count) if fill else ():
                lanes = (f"host:{rank.main}", f"host:{rank.queue}", "device")
                fill(rank, *(maps[lane].window(number) for lane in lanes))  # type: ignore[misc]
        return count * (target // count)

    return plant


Window = tuple[int, int]


def synchronise(rank: RealRank, main: Window, queue: Window, device: Window) -> None:
    """`.item()` of a sum: the host waits for its kernel, is woken late, and the device has nothing else to do."""
    start, end = main
    add_op(rank, "aten::sum", start + MICRO, start + 20 * MICRO)
    task = max(queue[0], device[0] - 30 * MICRO) + MICRO
    add_queued(rank, "aclnnReduceSum", start + 4 * MICRO, (task, task + 12 * MICRO))
    row = _small(rank, "ReduceSum", Name="aclnnReduceSum_ReduceSumOpAiCore_ReduceSum")
    begin = max(device[0], task + 8 * MICRO)
    span = (begin, begin + 10 * MICRO)
    launch = (task + MICRO, task + 10 * MICRO)
    add_kernel(rank, _busy_vector(row, 10 * MICRO), "MIX_AIV", span, launch, start + 2 * MICRO)
    add_op(rank, "aten::item", start + 22 * MICRO, end - MICRO)
    add_op(rank, "aten::_local_scalar_dense", start + 23 * MICRO, end - 2 * MICRO)
    add_api(rank, "acl", "aclrtSynchronizeStreamWithTimeout", start + 25 * MICRO, end - 5 * MICRO, rank.main)


def _small(rank: RealRank, op_type: str, like: str | None = None, **cells: str) -> Row:
    """A row as another kernel of the profile has it."""
    found = [r for r in rank.compute() if r["Type"] == (like or op_type)]
    row = dict(max(found, key=lambda r: to_ns(r["Duration(us)"])))
    return row | {"Type": op_type} | {key.replace("_", " "): value for key, value in cells.items()}


def _busy_vector(row: Row, dur_ns: int, load: float = 0.85) -> Row:
    """Counters of a vector kernel that memory bounds."""
    core = 0.97 * dur_ns / MICRO
    for pipe, ratio in (("aiv_vec", 0.3), ("aiv_scalar", 0.05), ("aiv_mte2", load), ("aiv_mte3", 0.7)):
        row[f"{pipe}_ratio"], row[f"{pipe}_time(us)"] = str(ratio), str(round(ratio * core, 3))
    return row | {"aiv_time(us)": str(round(core, 3)), "aiv_total_cycles": str(round(core * 1800 * 24))}


def compile_again(rank: RealRank, main: Window, queue: Window, device: Window) -> None:
    """`aclopCompileAndExecute` of an operator that was not compiled yet; its kernel comes at the end."""
    add_op(rank, "aten::mul", main[0] + MICRO, main[0] + 20 * MICRO)
    start, end = queue[0] + 8 * MICRO, queue[1] - 4 * MICRO
    add_queued(rank, "Mul", main[0] + 4 * MICRO, (start - MICRO, end + MICRO))
    add_api(rank, "acl", "aclopCompileAndExecute", start, end, rank.queue)
    add_api(rank, "acl", "opCompile", start + 2 * MICRO, end - 30 * MICRO, rank.queue)
    row = _small(rank, "Mul", Name="aclnnMul_MulAiCore_Mul") | {"Duration(us)": "2"}
    add_kernel(rank, _busy_vector(row, 2 * MICRO), "AI_CORE", (device[1] - 3 * MICRO, device[1] - MICRO),
               (end - 20 * MICRO, end - 10 * MICRO), main[0] + 2 * MICRO)  # fmt: skip


def kernel_of(made: Callable[[RealRank, int], Row], op: str, task_type: str = "AI_CORE") -> Fill:
    """A kernel for nearly all of the inserted time."""

    def fill(rank: RealRank, main: Window, queue: Window, device: Window) -> None:
        add_op(rank, op, main[0] + MICRO, main[0] + 18 * MICRO)
        task = queue[0] + 8 * MICRO
        add_queued(rank, op.rpartition(":")[2], main[0] + 4 * MICRO, (task, task + 8 * MICRO))
        span = (max(device[0], task + 4 * MICRO), device[1])
        add_kernel(rank, made(rank, span[1] - span[0]), task_type, span, (task + MICRO, task + 6 * MICRO),
                   main[0] + 2 * MICRO)  # fmt: skip

    return fill


def index_put(rank: RealRank, dur: int) -> Row:
    """On the AI CPU: no counters."""
    row = _small(rank, "IndexPutV2", "DSAGenBitMask", Name="aclnnIndexPutImpl_IndexPutV2_IndexPutV2")
    return row | {"Accelerator Core": "AI_CPU", "Block Dim": "1", "Input Shapes": '"4096,1024;4096;4096,1024"',
                  "Input Data Types": "FLOAT;INT64;FLOAT", "Input Formats": "ND;ND;ND",
                  "Output Shapes": '"4096,1024"', "Output Data Types": "FLOAT", "Output Formats": "ND"}  # fmt: skip


def _elements(dur: int, bytes_each: int) -> int:
    """As many as move at 58 % of 1.6 TB/s in the time."""
    return max(1024, round(dur * 1600 * 0.58 / bytes_each / 1024) * 1024)


def cast(rank: RealRank, dur: int) -> Row:
    """From FLOAT to FLOAT16, at a usual rate."""
    count = f'"{_elements(dur, 6)}"'
    row = _small(rank, "Cast", Name="aclnnCast_CastAiCore_Cast")
    row |= {"Block Dim": "48", "Input Shapes": count, "Output Shapes": count, "Input Data Types": "FLOAT",
            "Output Data Types": "FLOAT16", "Input Formats": "ND", "Output Formats": "ND"}  # fmt: skip
    return _busy_vector(row, dur)


def trans_data(rank: RealRank, dur: int) -> Row:
    """From NCHW to NC1HWC0."""
    batch = max(1, _elements(dur, 8) // (64 * 56 * 56))
    row = _small(rank, "TransData", Name="trans_TransData_90")
    row |= {"Block Dim": "48", "Input Shapes": f'"{batch},64,56,56"', "Output Shapes": f'"{batch},8,56,56,8"',
            "Input Data Types": "FLOAT", "Output Data Types": "FLOAT", "Input Formats": "NCHW",
            "Output Formats": "NC1HWC0"}  # fmt: skip
    return _busy_vector(row, dur)


def copies(rank: RealRank, main: Window, queue: Window, device: Window) -> None:
    """`.to(device)` from pageable memory: the call returns when the copy is done."""
    start, end = main
    add_op(rank, "aten::to", start + MICRO, end - MICRO)
    add_op(rank, "aten::copy_", start + 2 * MICRO, end - 2 * MICRO)
    span = (max(device[0], start + 8 * MICRO), device[1] - 8 * MICRO)
    add_copy(rank, round((span[1] - span[0]) * 12), span, (start + 4 * MICRO, end - 4 * MICRO), start + 3 * MICRO)


def loader(profile: RealProfile, target: int) -> float:
    """The worker's batch comes late: the loader of the training loop waits."""
    for rank in profile.ranks:
        op = next(e for e in rank.ops() if e["name"].startswith("enumerate(DataLoader)"))
        rank.insert([Cut(amount=target, host=op["ns"] + 300 * MICRO, device=op["ns"] + 300 * MICRO)])
    return target


def python_first(profile: RealProfile, target: int) -> float:
    """The training script does something else before it asks for the batch."""
    for rank in profile.ranks:
        op = next(e for e in rank.ops() if e["name"].startswith("enumerate(DataLoader)"))
        rank.insert([Cut(amount=target, host=op["ns"] - 20 * MICRO, device=op["ns"] - 20 * MICRO)])
    return target


def collecting(profile: RealProfile, target: int) -> float:
    """Three garbage collections between operators."""
    for rank in profile.ranks:
        maps = rank.insert([site.cut(rank, target // 3) for site in spread(prompt(sites(rank)), 3)])
        main = maps[f"host:{rank.main}"]
        add_collections(rank, [main.window(number) for number in range(3)])
    return 3 * (target // 3)


def _products(rank: RealRank) -> list[Row]:
    first = rank.calls()[0]["ns"]
    return [r for r in compute_rows(rank, 0, first) if r["Name"].startswith("aclnnAddmm") and "MatMul" in r["Type"]]


def stretched(counters: Callable[[Row], None] | None = None) -> RealPlant:
    """The products of the forward pass take longer, in proportion; without `counters` all their pipes stand still."""

    def plant(profile: RealProfile, target: int) -> float:
        done = 0
        for rank in profile.ranks:
            rows = _products(rank)
            whole = sum(to_ns(r["Duration(us)"]) for r in rows)
            cuts = [stretch(rank, r, target * to_ns(r["Duration(us)"]) // whole) for r in rows]
            rank.insert(cuts)
            for row in rows if counters else ():
                counters(row)  # type: ignore[misc]
            done = sum(cut.amount for cut in cuts)
        return done

    return plant


def memory_bound(row: Row) -> None:
    """The operands come slowly: MTE2 is busy all the time."""
    waiting_for_memory(row, "aic_mte2")


def throttled(profile: RealProfile, target: int) -> float:
    """The clock is low but during the collectives; kernels take longer by as much. `target`: the clock in MHz."""
    done = 0
    for rank in profile.ranks:
        calls = rank.calls()
        factor = 1800 / target
        rows = [*compute_rows(rank, 0, calls[0]["ns"]), *compute_rows(rank, end_of(calls[-1]), 1 << 62)]
        begin, end = waiting(rank)
        cuts = []
        for row in rows:
            start, dur = to_ns(row["Start Time(us)"]), to_ns(row["Duration(us)"])
            grown = round(dur * (factor - 1))
            if start < calls[0]["ns"]:
                cuts.append(stretch(rank, row, grown))
            else:
                # The host waits for the device; where it waits no longer, it is held up as long.
                middle = start + dur // 2
                cuts.append(Cut(amount=grown, host=max(begin + 1, min(end - 1, middle)), device=middle))
        rank.insert(cuts)
        for row in rows:
            slower_clock(row, factor)
        _clock(rank, target)
        done += sum(cut.amount for cut in cuts)
    return done / len(profile.ranks)


def _clock(rank: RealRank, mhz: int) -> None:
    calls = rank.calls()
    counters = [e for e in rank.events if e["ph"] == "C" and e["name"] == "AI Core Freq"]
    counters.sort(key=lambda e: int(e["ns"]))
    counters[0]["args"] = {"MHz": mhz}
    counters[-1]["args"] = {"MHz": mhz}
    for time, rate in ((calls[0]["ns"], 1800), (end_of(calls[-1]), mhz)):
        rank.events.append(counters[0] | {"ns": time, "args": {"MHz": rate}})


# Collectives.


def _before_moves(tasks: dict[str, list[Event]]) -> int:
    return min(int(own[2]["ns"]) for own in tasks.values()) - 500


def _wait(rank: RealRank, tasks: dict[str, list[Event]], peer: int, end: int) -> None:
    task = next(own[1] for own in tasks.values() if own[1]["args"]["dst rank"] == peer)
    lengthen(rank, task, end - 500 - end_of(task))


def late_peer(profile: RealProfile, target: int) -> float:
    """A rank whose files are not there comes late to the second collective: all wait for it."""
    for rank in profile.ranks:
        call = rank.calls()[1]
        tasks = phase(rank, call, 0)
        time = _before_moves(tasks)
        maps = rank.insert([quiet(rank, target, time)])
        _wait(rank, tasks, LATE, maps["comm"].window(0)[1])
    return target


def slow_link(profile: RealProfile, target: int) -> float:
    """Rank 0 reads slowly from one peer in three phases of the two large collectives; rank 1 waits for rank 0.

    The last phase is left as it was: what rank 0 loses there hides behind the rank that is late to the next collective.
    """
    src, dst = LINK
    parts = [(1, 0), (1, 1), (2, 0)]
    amount = target // len(parts)
    for rank in profile.ranks:
        calls = rank.calls()
        if rank.rank == src:
            cuts, moves = [], []
            for call, number in parts:
                tasks = phase(rank, calls[call], number)
                lane = next(lane for lane, own in tasks.items() if own[2]["args"]["dst rank"] == dst)
                time = max(end_of(own[4]) for own in tasks.values())
                lanes = after(tasks, 4) | {lane: end_of(tasks[lane][2])}
                cuts.append(quiet(rank, amount, time, lanes))
                moves.append(tasks[lane][2])
            rank.insert(cuts)
            for move in moves:
                _slower(rank, move, amount)
        else:
            # What rank 0 ends late, it begins late next time.
            waits = [phase(rank, calls[call + number], 1 - number) for call, number in parts]
            times = [_before_moves(tasks) for tasks in waits]
            maps = rank.insert([quiet(rank, amount, time) for time in times])
            for place, tasks in enumerate(waits):
                _wait(rank, tasks, src, maps["comm"].window(place)[1])
    return len(parts) * amount


def _slower(rank: RealRank, move: Event, amount: int) -> None:
    lengthen(rank, move, amount)
    move["args"]["bandwidth(GB/s)"] = move["args"]["size(Byte)"] / (move["dur"] * MICRO)


def small_packets(profile: RealProfile, target: int) -> float:
    """The two large collectives move their data in pieces of a 64th, which takes longer by the target."""
    parts = [(1, 0), (1, 1), (2, 0), (2, 1)]
    amount = target // len(parts)
    for rank in profile.ranks:
        calls = rank.calls()
        phases = [phase(rank, calls[call], number) for call, number in parts]
        cuts = []
        for tasks in phases:
            time = max(end_of(own[2]) for own in tasks.values())
            cuts.append(quiet(rank, amount, time, after(tasks, 2)))
        rank.insert(cuts)
        for tasks in phases:
            for own in tasks.values():
                _slower(rank, own[2], amount)
                _cut_up(rank, own[2])
    return len(parts) * amount


def _cut_up(rank: RealRank, move: Event) -> None:
    """Pieces one behind the other, on the plane and on its stream."""
    size = move["args"]["size(Byte)"] // PIECES // 512 * 512
    twin, whole = of_task(rank, move), move["args"]["size(Byte)"]
    edges = [move["ns"] + round(move["dur"] * MICRO * place / PIECES) for place in range(PIECES + 1)]
    for event in (move, twin):
        made = []
        for place in range(PIECES):
            own = whole - size * (PIECES - 1) if place == PIECES - 1 else size
            piece = event | {"ns": edges[place], "dur": (edges[place + 1] - edges[place]) / MICRO}
            if event is move:
                rate = own / (piece["dur"] * MICRO)
                piece["args"] = event["args"] | {"size(Byte)": own, "bandwidth(GB/s)": rate}
            made.append(piece)
        rank.events.remove(event)
        rank.events += made


def both(first: RealPlant, second: RealPlant) -> RealPlant:
    """Two faults in one job, of the target each."""

    def plant(profile: RealProfile, target: int) -> float:
        return first(profile, target) + second(profile, target)

    return plant

