"""What a kind of fault is, and the ways in which programs are changed to plant one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from tests.faults.machine import Instruction, Job, Kernel, Op
from tests.faults.model import vector

Strength = Literal["weak", "medium", "strong"]
STRENGTHS: Final[dict[Strength, float]] = {"weak": 0.04, "medium": 0.12, "strong": 0.35}
"""Planted time as a share of the step with the fault."""

Plant = Callable[[Job, int, Strength], None]
Served = Callable[[int, Strength], tuple[Job, float]]
"""A job of services with a fault by seed and strength, and its cost as a share of what its row divides by."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    `codes`: rows of which any is the right answer (several where the data cannot tell them apart).
    `also`: rows that are true of the job as well, as consequences; they are no false findings.
    """

    name: str
    make: Callable[[int], Job]
    plant: Plant
    codes: frozenset[str]
    also: frozenset[str] = frozenset()
    ranks: tuple[int, ...] = (0,)
    affected: tuple[int, ...] = ()
    has_gain: bool = True
    """Whether its cost is time of the step (settings and memory are not)."""
    gain_part: float = 1.0
    note: str = ""
    is_split: bool = False
    """The rows each explain a part of the time: their gains add up."""
    twin: Plant | None = None
    """What the healthy twin gets; nothing when None."""
    served: Served | None = None
    """A fault of services, which do not run on the simulator of jobs: stands for `make` and `plant`."""


def rows(text: str) -> frozenset[str]:
    """Rows of the table, from a text with blanks between."""
    return frozenset(text.split())


def at_start(job: Job, made: Callable[[], list[Instruction]], ranks: tuple[int, ...] | None = None) -> None:
    """Instructions in front of the first operator of each step: the device is idle there."""
    for rank, steps in job.programs.items():
        if ranks is None or rank in ranks:
            for step in steps:
                step[0:0] = made()


def spread(
    job: Job, count: int, made: Callable[[int], list[Instruction]], ranks: tuple[int, ...] | None = None
) -> None:
    """Puts `count` lots of instructions behind operators, evenly over the step."""
    for rank, steps in job.programs.items():
        if ranks is not None and rank not in ranks:
            continue
        for number, step in enumerate(steps):
            places = [place for place, item in enumerate(step) if isinstance(item, Op) and item.tag in ("fwd", "bwd")]
            chosen = [places[(2 * index + 1) * len(places) // (2 * count)] for index in range(count)]
            result: list[Instruction] = []
            for place, item in enumerate(step):
                result.append(item)
                for index in [i for i, at in enumerate(chosen) if at == place]:
                    result += made(index)
            steps[number] = result


def stretched(job: Job, target: int, is_meant: Callable[[Kernel], bool], change: Callable[[Kernel, float], Kernel],
               most: float, ranks: tuple[int, ...] | None = None) -> None:  # fmt: skip
    """Makes some kernels longer until the step has grown by the target: by a factor of at most `most` each."""
    for rank, steps in job.programs.items():
        if ranks is not None and rank not in ranks:
            continue
        meant = sum(
            kernel.dur_ns for item in steps[0] if isinstance(item, Op) for kernel in item.kernels if is_meant(kernel)
        )
        part = min(1.0, target / (meant * (most - 1)))
        for number, step in enumerate(steps):
            left = part * meant
            made: list[Instruction] = []
            for item in step:
                if isinstance(item, Op):
                    kernels = []
                    for kernel in item.kernels:
                        if is_meant(kernel) and left > kernel.dur_ns / 2:
                            left -= kernel.dur_ns
                            kernels.append(change(kernel, most))
                        else:
                            kernels.append(kernel)
                    made.append(replace(item, kernels=tuple(kernels)))
                else:
                    made.append(item)
            steps[number] = made


def is_product(kernel: Kernel) -> bool:
    return kernel.op_type == "MatMulV3"


def added(kernels: Callable[[int], tuple[Kernel, ...]], name: str, count: int = 24) -> Plant:
    """Additional kernels, `count` lots per step of together the target."""

    def plant(job: Job, target: int, strength: Strength) -> None:
        spread(job, count, lambda _: [Op(name=name, kernels=kernels(target // count), tag="added")])

    return plant


def vector_of(op_type: str, dur: int, *, moved: int = 4, width: int = 4096, **changes: object) -> Kernel:
    """A vector kernel of a given duration that reads and writes what it can in that time at 58 % of the memory rate.

    Args:
        op_type: of the kernel.
        dur: in ns.
        moved: bytes read and written per element.
        width: last axis of its tensors.
        changes: other fields of the kernel.
    """
    rows = max(64, round(dur * 1600 * 0.58 / (moved * width)))
    base = vector(op_type, (rows, width), name=f"aclnn{op_type}_{op_type}AiCore_{op_type}")
    return base.longer(1.0, dur_ns=dur, **changes)
