"""Writes a job of many ranks as torch_npu exports it (text), of any size, with one rank that computes longer.

    python benchmarks/make_job.py FOLDER [--gb 2] [--ranks 64] [--light]

The job is tensor, pipeline and data parallel. A short one (a few steps, one process per rank that the layout needs) is
simulated by `tests/faults/machine.py` and written by `tests/faults/writer.py`; every file of it is then continued in
time until the rank has its share of the size: time stamps move on by a whole period, and step numbers, ordinals of
collectives, connection and flow ids stay unique. So all files of a rank agree with each other, and all ranks too.

`--light` leaves out host events, sub-tasks, memory and communication.json (as with Level0 and CPU events switched off)
and replicates data parallel replicas of a small job, for jobs of a thousand ranks and more.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults import model  # noqa: E402
from tests.faults.machine import (  # noqa: E402
    Await,
    Collective,
    Group,
    Instruction,
    Job,
    Join,
    Recording,
    group_hash,
    simulate,
)  # fmt: skip
from tests.faults.writer import write_job  # noqa: E402

MIB: Final = 1 << 20
OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
LATE_FACTOR: Final = 1.3
"""The kernels of the late rank have so much more to do."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks in the order of Megatron: tensor parallel innermost, pipeline outermost."""

    tensor: int
    data: int
    pipeline: int

    @property
    def world(self) -> int:
        return self.tensor * self.data * self.pipeline

    def rank(self, tensor: int, data: int, stage: int) -> int:
        return (stage * self.data + data) * self.tensor + tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        """Place in the tensor, data and pipeline parallel group."""
        rest, tensor = divmod(rank, self.tensor)
        stage, data = divmod(rest, self.data)
        return tensor, data, stage

    @property
    def late(self) -> int:
        """The rank that is made late: the last of the second replica's tensor group in the last stage."""
        return self.rank(self.tensor - 1, min(1, self.data - 1), self.pipeline - 1)

    def groups(self) -> dict[str, Group]:
        """All communicators; the number in the name tells kind and place."""
        found: dict[str, Group] = {}

        def add(label: str, number: int, ranks: Sequence[int]) -> None:
            name = f"group_name_{number}"
            found[name] = Group(name=name, label=label, ranks=tuple(ranks))

        for stage in range(self.pipeline):
            for data in range(self.data):
                add("tp", 100_000 + stage * self.data + data, [self.rank(t, data, stage) for t in range(self.tensor)])
            for tensor in range(self.tensor):
                add("dp", 200_000 + stage * self.tensor + tensor,
                    [self.rank(tensor, d, stage) for d in range(self.data)])  # fmt: skip
        for data in range(self.data):
            for tensor in range(self.tensor):
                add("pp", 300_000 + data * self.tensor + tensor,
                    [self.rank(tensor, data, s) for s in range(self.pipeline)])  # fmt: skip
        return {name: group for name, group in found.items() if len(group.ranks) > 1}

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "tensor_model_parallel_size": self.tensor, "pipeline_model_parallel_size": self.pipeline,
            "data_parallel_size": self.data,
        }  # fmt: skip


def layout_of(ranks: int) -> Layout:
    """Two stages where the ranks divide by two, tensor groups of four at most.

    Raises:
        SystemExit: not a power of two.
    """
    if ranks < 1 or ranks & (ranks - 1):
        raise SystemExit("the number of ranks must be a power of two")
    pipeline = 2 if ranks >= 4 else 1
    tensor = min(4, max(1, ranks // pipeline // 2))
    return Layout(tensor=tensor, data=ranks // pipeline // tensor, pipeline=pipeline)


def job_of(layout: Layout, *, late: int | None, steps: int, seed: int = 1, layers: int = 2, micro: int = 3) -> Job:
    """A healthy job, but for one rank that has more to compute."""
    groups = layout.groups()
    tokens = 1024
    programs = {}
    for rank in range(layout.world):
        mine = {group.label: name for name, group in groups.items() if rank in group.ranks}
        step = _step(layout, rank, mine, layers=layers, micro=micro, tokens=tokens)
        programs[rank] = [list(step) for _ in range(steps)]
    job = Job(
        world=layout.world, groups=groups, programs=programs, seed=seed, parallel=layout.sizes,
        has_pipeline=layout.pipeline > 1,
    )  # fmt: skip
    if late is not None:
        job.map_ops(
            lambda op: replace(op, kernels=tuple(kernel.heavier(LATE_FACTOR) for kernel in op.kernels)), (late,)
        )
    return job


def _step(
    layout: Layout, rank: int, mine: dict[str, str], *, layers: int, micro: int, tokens: int
) -> list[Instruction]:
    tensor, data, stage = layout.place(rank)
    size = tokens * model.HIDDEN * 2

    def reduce(label: str, mib: int) -> list[Instruction]:
        if label not in mine:
            return []
        members = layout.tensor if label == "tp" else layout.data
        return [Collective(group=mine[label], op="allReduce", size=mib * members * MIB, is_blocking=label == "tp")]

    def receive(other: int, number: int) -> list[Instruction]:
        if not 0 <= other < layout.pipeline or number >= micro:
            return []
        peer = layout.rank(tensor, data, other)
        return [Collective(group=mine["pp"], op="receive", size=size, peer=peer, tag=f"{other}/{number}")]

    def send(other: int) -> list[Instruction]:
        if not 0 <= other < layout.pipeline:
            return []
        return [Collective(group=mine["pp"], op="send", size=size, peer=layout.rank(tensor, data, other))]

    step: list[Instruction] = [*model.head()]
    for direction, build in ((1, model.layer), (-1, model.layer_backward)):
        source, target = stage - direction, stage + direction
        step += receive(source, 0)
        for number in range(micro):
            step += receive(source, number + 1)
            if 0 <= source < layout.pipeline:
                step.append(Await(tag=f"{source}/{number}"))
            for place in range(layers):
                ops = build(tokens, place)
                step += [*ops[:5], *reduce("tp", 1), *ops[5:], *reduce("tp", 1)]
                if direction < 0 and number == micro - 1:
                    step += reduce("dp", 8)
            step += send(target)
    return [*step, Join(), *model.optimizer(), *model.logging()]


# ---- continuing files in time ----------------------------------------------------------------------------------------


class Template:
    """Text in which some whole numbers grow by a fixed amount with every repetition."""

    def __init__(self, text: str, rules: Sequence[tuple[str, int]]) -> None:
        """`rules`: a pattern whose only group is a number, and what it grows by."""
        pattern = re.compile("|".join(f"(?:{rule})" for rule, _ in rules), re.MULTILINE)
        growth = [by for _, by in rules]
        pieces: list[str] = []
        self.first: list[int] = []
        self.growth: list[int] = []
        at = 0
        for match in pattern.finditer(text):
            which = match.lastindex
            assert which is not None
            pieces.append(text[at : match.start(which)].replace("%", "%%"))
            self.first.append(int(match[which]))
            self.growth.append(growth[which - 1])
            at = match.end(which)
        self.format = "%d".join([*pieces, text[at:].replace("%", "%%")])

    def at(self, repetition: int) -> str:
        """The text of a repetition; the first is 0."""
        if not repetition:
            return self.format % tuple(self.first)
        return self.format % tuple(n + repetition * by for n, by in zip(self.first, self.growth, strict=True))


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What grows by how much from one period of the job to the next, on one rank."""

    period_us: int
    steps: int
    connections: int
    calls: dict[str, int]
    """Calls per suffix of the names of a group."""

    def call_rules(self) -> list[tuple[str, int]]:
        return [(rf"hcom_\w+?__{suffix}_(\d+)_1(?!\d)", count) for suffix, count in self.calls.items()]


def growth_of(recording: Recording, period_us: int) -> Growth:
    """The growth of a rank's files."""
    calls: dict[str, int] = {}
    for call in recording.calls:
        suffix = f"{int(group_hash(call.group.name)) % 1000:03d}"
        calls[suffix] = calls.get(suffix, 0) + 1
    ids = [piece.connection for piece in recording.slices] + [call.connection for call in recording.calls]
    return Growth(period_us=period_us, steps=len(recording.steps), connections=max(ids) + 1, calls=calls)


_STAMP: Final = r"(?<![\d.])(\d{16})(?=\.\d)"


def trace_view(text: str, grow: Growth, repetitions: int, keep: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """Parts of the continued trace_view.json."""
    events: list[dict[str, Any]] = [event for event in json.loads(text) if event["ph"] == "M" or keep(event)]
    dump = json.JSONEncoder(separators=(",", ":")).encode
    wide = 1 << 32
    rules = [
        (r'"ts":"(\d+)\.', grow.period_us),
        # A flow of torch_npu is named by its time in ns; the period is whole microseconds.
        (r'"id":(\d{16})\d{3}(?!\d)', grow.period_us),
        (r'"name":"HostToDevice(\d{11,})"', grow.connections * wide),
        (r'"name":"HostToDevice(\d{1,10})"', grow.connections),
        (r'"id":"(\d{11,})"', grow.connections * wide),
        (r'"id":"(\d{1,10})"', grow.connections),
        (r'"cat":"async_task_queue","id":(\d+)', grow.connections),
        (r'"(?:connection|correlation)_id":(\d+)', grow.connections),
        (r'"name":"ProfilerStep#(\d+)"', grow.steps),
        *((rf'"name":"{rule}', by) for rule, by in grow.call_rules()),
    ]
    template = Template(",\n".join(dump(event) for event in events if event["ph"] != "M"), rules)
    yield "[" + ",\n".join(dump(event) for event in events if event["ph"] == "M")
    for number in range(repetitions):
        yield ",\n" + template.at(number)
    rest = _rest(events, grow.period_us)
    if rest is not None:
        template = Template(dump(rest), rules)
        for number in range(repetitions - 1):
            yield ",\n" + template.at(number)
    yield "]"


def _rest(events: Sequence[dict[str, Any]], period_us: int) -> dict[str, Any] | None:
    """The Free interval of Overlap Analysis from the last task of a period to the first of the next."""
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == names.get("Overlap Analysis")]
    free = next((e for e in mine if e["name"] == "Free"), None)
    starts = [int(e["ts"].replace(".", "")) for e in mine]
    if free is None:
        return None
    end = max(start + round(e["dur"] * 1000) for start, e in zip(starts, mine, strict=True))
    return {**free, "ts": _us(end), "dur": (min(starts) + period_us * 1000 - end) / 1000}


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def rows(text: str, rules: Sequence[tuple[str, int]], repetitions: int) -> Iterator[str]:
    """Parts of a continued CSV file."""
    header, _, body = text.partition("\n")
    template = Template(body, rules)
    yield header + "\n"
    for number in range(repetitions):
        yield template.at(number)


def summed(text: str, repetitions: int, count: str, total: str) -> Iterator[str]:
    """A CSV file of sums with a number of repetitions in it."""
    lines = text.splitlines()
    names = lines[0].split(",")
    at, time = names.index(count), names.index(total)
    yield lines[0] + "\n"
    for line in lines[1:]:
        cells = line.split(",")
        cells[at] = str(int(cells[at]) * repetitions)
        cells[time] = _us(int(cells[time].replace(".", "")) * repetitions)
        yield ",".join(cells) + "\n"


def by_step(text: str, grow: Growth, repetitions: int) -> Iterator[str]:
    """A continued JSON file whose top level names steps."""
    body = text.strip()[1:-1]
    template = Template(body, [(r'"step(\d+)":', grow.steps), (_STAMP, grow.period_us), *grow.call_rules()])
    yield "{"
    for number in range(repetitions):
        yield (", " if number else "") + template.at(number)
    yield "}"


def info(text: str, grow: Growth, repetitions: int) -> Iterator[str]:
    """profiler_info of the longer recording."""
    data = json.loads(text)
    data["config"]["common_config"]["schedule"]["active"] *= repetitions
    data["end_info"]["collectionTimeEnd"] += grow.period_us * 1000 * (repetitions - 1)
    yield json.dumps(data, indent=4)


def continued(folder: Path, target: Path, grow: Growth, repetitions: int, *, light: bool) -> int:
    """Write the files of a rank, continued; returns their bytes."""
    stamp = (_STAMP, grow.period_us)
    kernel_rules = [(r"^(\d+),", grow.steps), stamp, *grow.call_rules()]
    step_rules = [(r"^\d+,(\d+),", grow.steps)]
    written = 0
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        text, name = path.read_text(), path.name
        parts: Iterator[str]
        if light and name in LEFT_OUT:
            continue
        if name == "trace_view.json":
            parts = trace_view(text, grow, repetitions, _is_light if light else lambda event: True)
        elif name == "kernel_details.csv":
            parts = rows(text, kernel_rules, repetitions)
        elif name == "step_trace_time.csv":
            parts = rows(text, step_rules, repetitions)
        elif name in ("memory_record.csv", "operator_memory.csv"):
            parts = rows(text, [stamp], repetitions)
        elif name == "op_statistic.csv":
            parts = summed(text, repetitions, "Count", "Total Time(us)")
        elif name == "api_statistic.csv":
            parts = summed(text, repetitions, "Count", "Time(us)")
        elif name in ("communication.json", "communication_matrix.json"):
            parts = by_step(text, grow, repetitions)
        elif name.startswith("profiler_info"):
            parts = info(text, grow, repetitions)
        else:
            parts = iter((text,))
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "w", newline="") as file:
            for part in parts:
                written += file.write(part)
    return written


LEFT_OUT: Final = (
    "communication.json", "communication_matrix.json", "memory_record.csv", "operator_memory.csv", "op_statistic.csv",
    "api_statistic.csv",
)  # fmt: skip


def _is_light(event: dict[str, Any]) -> bool:
    """Kernels, calls and steps: no host events, no flows, no sub-tasks."""
    if event["ph"] != "X":
        return False
    args = event.get("args", {})
    return event["name"].startswith(("ProfilerStep#", "hcom_")) or "Physic Stream Id" in args


# ---- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Made:
    """What was written."""

    ranks: int
    late: int
    steps: int
    bytes: int


def make(
    folder: Path, *, ranks: int = 64, total_bytes: int = 2_000_000_000, light: bool = False, base_steps: int = 2,
    say: Callable[[str], None] = lambda text: None,
) -> Made:  # fmt: skip
    """Write the job.

    Args:
        folder: one directory per rank goes here.
        ranks: a power of two.
        total_bytes: about the size of all files together.
        light: see the module.
        base_steps: steps that are simulated.
        say: told how far it is.
    """
    layout = layout_of(ranks)
    small = replace(layout, data=min(layout.data, 2)) if light else layout
    job = job_of(small, late=small.late, steps=base_steps)
    say(f"simulating {small.world} ranks")
    recordings = simulate(job)
    first = min(recording.steps[0][1] for recording in recordings.values())
    last = max(recording.steps[-1][2] for recording in recordings.values())
    period_us = (last - first) // 1000 + 20
    written = 0
    repetitions = 0
    with tempfile.TemporaryDirectory() as scratch:
        for rank in range(layout.world):
            tensor, data, stage = layout.place(rank)
            twin = small.rank(tensor, data if data < small.data else 0, stage)
            recording = recordings[twin]
            place = Path(scratch) / f"{rank}"
            if small is layout:
                write_job(job, {rank: recording}, place)
            else:
                write_job(*_as_rank(job, layout, recording, rank), place)
            source = next(place.iterdir())
            grow = growth_of(recording, period_us)
            if not repetitions:
                # The first rank tells how large one repetition is.
                base = continued(source, Path(scratch) / "size", grow, 1, light=light)
                repetitions = max(1, round(total_bytes / layout.world / base))
            written += continued(source, folder / source.name, grow, repetitions, light=light)
            for path in sorted(place.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            say(f"rank {rank}: {written / 1e6:.0f} MB so far")
    return Made(ranks=layout.world, late=layout.late, steps=base_steps * repetitions, bytes=written)


def _as_rank(job: Job, layout: Layout, recording: Recording, rank: int) -> tuple[Job, dict[int, Recording]]:
    """A recording of the small job as that of a rank of the large one: its groups, its numbers."""
    groups = {name: group for name, group in layout.groups().items() if rank in group.ranks}
    by_label = {group.label: group for group in groups.values()}
    calls = []
    for call in recording.calls:
        group = by_label[call.group.label]
        op, _, rest = call.name.partition("__")
        suffix = int(group_hash(group.name)) % 1000
        calls.append(replace(call, group=group, name=f"{op}__{suffix:03d}_{rest.split('_', 1)[1]}", tasks=()))
    changed = Recording(
        rank=rank, slices=recording.slices, tasks=recording.tasks, calls=calls, steps=recording.steps
    )  # fmt: skip
    large = Job(
        world=layout.world, groups=groups, programs={}, seed=job.seed, parallel=layout.sizes,
        has_pipeline=job.has_pipeline,
    )  # fmt: skip
    return large, {rank: changed}


def main() -> None:
    """Write a job and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--light", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    made = make(
        options.folder, ranks=options.ranks, total_bytes=round(options.gb * 1e9), light=options.light,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(
        f"{made.ranks} ranks, {made.steps} steps, {made.bytes / 1e9:.2f} GB in {options.folder}; rank {made.late} "
        "computes longer than the others"
    )


if __name__ == "__main__":
    main()
