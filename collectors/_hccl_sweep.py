"""What hccl_test is to measure: sizes and options, whether the tool takes them, and the command line.

Source: collector reference, sections 4.1 to 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ascend_perf.errors import UsageError

Mpi = Literal["mpich", "openmpi"]

BUS: Final[Mapping[str, str]] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gatherv": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatterv": "reduce_scatter", "scatter": "all_gather",
    "alltoall": "all_to_all", "alltoallv": "all_to_all", "alltoallvc": "all_to_all", "broadcast": "broadcast",
    "reduce": "broadcast",
}  # fmt: skip
"""Tests, and the collective whose ratio of bus to algorithm bandwidth they have. Source: reference, section 4.3."""
DTYPES: Final = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp16", "fp32", "fp64", "bfp16", "int128",
    "hif8", "fp8e4m3", "fp8e5m2", "fp8e8m0",
)  # fmt: skip
REDUCTIONS: Final = ("sum", "prod", "max", "min")
PER_NODE: Final = {"A2": 8, "A3": 16}
"""Most NPUs of a node that `-p` takes, by generation."""
MAX_ROWS: Final = 10_000
MAX_BYTES: Final = (1 << 63) - 1
MAX_CALLS: Final = (1 << 31) - 1
"""What the tool's own numbers hold: it does not say when one is larger. Status: assumed."""
MAX_DEVICE_TIMED: Final = 100
"""Most iterations, and warm-up ones, that the device can time (`-t 1`). Source: reference, section 4.1."""

_SIZE: Final = re.compile(r"(\d{1,15})([KMG]?)B?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to measure."""

    test: str = "all_reduce"
    least_bytes: int = 8 << 10
    most_bytes: int = 1 << 30
    factor: int = 2
    """Each size is so many times the one before; 0: `step_bytes` apart."""
    step_bytes: int = 0
    iterations: int = 20
    warmup: int = 10
    dtype: str = "fp32"
    reduction: str = "sum"
    root: int = 0
    per_node: int = 8
    nodes: int = 1
    check: int = 1
    hostfile: Path | None = None
    zero_copy: bool = False
    """A3 only."""
    symmetric_memory: bool = False
    device_time: bool = False
    """Time of the device alone, without launches."""

    @property
    def ranks(self) -> int:
        """NPUs of the whole job: one process each."""
        return self.per_node * self.nodes

    def sizes(self) -> list[int]:
        """The sizes whose rows must be in the output."""
        sizes: list[int] = []
        size = self.least_bytes
        while size <= self.most_bytes and len(sizes) < MAX_ROWS:
            sizes.append(size)
            size = size * self.factor if self.factor else size + self.step_bytes
        return sizes


def size_of(text: str) -> int:
    """Bytes of 8K, 64M, 1G or a number.

    Raises:
        UsageError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size", hint="examples: 4096, 8K, 64M, 1G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def checked(sweep: Sweep, generation: str | None = None) -> Sweep:
    """The sweep, when the tool would take it.

    Args:
        sweep: what to measure.
        generation: A2 or A3, which limits the NPUs of a node; None: not known.

    Raises:
        UsageError: with what is wrong and what is right.
    """

    def refuse(what: str, hint: str) -> None:
        raise UsageError(what, hint=hint)

    if sweep.test not in BUS:
        refuse(f"no test {sweep.test!r}", f"tests: {', '.join(BUS)}")
    if not 0 < sweep.least_bytes <= sweep.most_bytes:
        refuse("the least size must be above 0 and not above the most", "example: --min 8K --max 1G")
    if sweep.most_bytes > MAX_BYTES:
        refuse(f"the most is larger than {MAX_BYTES} bytes", "example: --min 8K --max 1G")
    if sweep.factor == 0 and sweep.step_bytes <= 0:
        refuse("a step of 0 repeats the first size for ever", "use --factor 2, or --step 64M")
    if sweep.factor == 1 or sweep.factor < 0:
        refuse(f"--factor {sweep.factor} must be more than 1", "example: --factor 2")
    if len(sweep.sizes()) >= MAX_ROWS:
        refuse(f"more than {MAX_ROWS} sizes", "use a larger --step, or --factor")
    if sweep.iterations < 1 or sweep.warmup < 0:
        refuse("iterations must be at least 1, warm-up at least 0", "example: --iterations 20 --warmup 10")
    if max(sweep.iterations, sweep.warmup) > MAX_CALLS:
        refuse(f"iterations and warm-up are at most {MAX_CALLS}", "example: --iterations 20 --warmup 10")
    if sweep.dtype not in DTYPES:
        meant = "bfp16" if sweep.dtype in ("bf16", "bfloat16") else None
        refuse(f"no type {sweep.dtype!r}", f"hccl_test spells it {meant}" if meant else f"types: {', '.join(DTYPES)}")
    if sweep.reduction not in REDUCTIONS:
        refuse(f"no reduction {sweep.reduction!r}", f"reductions: {', '.join(REDUCTIONS)}")
    most = PER_NODE.get(generation or "", max(PER_NODE.values()))
    if not 1 <= sweep.per_node <= most:
        refuse(f"{sweep.per_node} NPUs per node", f"1 to {most}" + (f" on {generation}" if generation else ""))
    if sweep.nodes < 1 or (sweep.nodes > 1 and sweep.hostfile is None):
        refuse(f"{sweep.nodes} nodes need a host file", "one line for each node, see docs/hccl.md")
    if not 0 <= sweep.root < sweep.ranks:
        refuse(f"root {sweep.root} of {sweep.ranks} ranks", f"0 to {sweep.ranks - 1}")
    if sweep.zero_copy and sweep.symmetric_memory:
        refuse("zero copy and symmetric memory exclude each other", "leave one of them out")
    if sweep.zero_copy and generation not in (None, "A3"):
        refuse(f"zero copy is for A3, this is {generation}", "leave it out")
    if sweep.device_time and max(sweep.iterations, sweep.warmup) > MAX_DEVICE_TIMED:
        refuse(
            f"the device times {MAX_DEVICE_TIMED} calls at most, after {MAX_DEVICE_TIMED} of warm-up",
            "example: --iterations 100 --warmup 10",
        )
    return sweep


def command(
    sweep: Sweep, mpirun: str, mpi: Mpi, *, binary: str = "", is_root: bool = False, names: tuple[str, ...] = ()
) -> list[str]:
    """Words of the command; it is started in the folder that holds `bin`.

    Args:
        sweep: what to measure.
        mpirun: the launcher.
        mpi: its kind, whose options differ.
        binary: the name of the test's file; empty: as the newest sources have it.
        is_root: whether the user is root, which Open MPI refuses unless it is told.
        names: variables that Open MPI hands to the other nodes.
    """
    words = [mpirun]
    if mpi == "openmpi" and is_root:
        words.append("--allow-run-as-root")
    if sweep.hostfile is not None:
        words += ["-hostfile" if mpi == "openmpi" else "-f", str(sweep.hostfile)]
    words += ["-n", str(sweep.ranks)]
    if mpi == "openmpi" and sweep.nodes > 1:
        words += [word for name in names for word in ("-x", name)]
    words += [f"./bin/{binary or f'{sweep.test}_test'}", "-p", str(sweep.per_node), "-b", _size(sweep.least_bytes)]
    words += ["-e", _size(sweep.most_bytes)]
    words += ["-f", str(sweep.factor)] if sweep.factor else ["-i", str(sweep.step_bytes)]
    words += ["-d", sweep.dtype]
    if sweep.test in ("all_reduce", "reduce_scatter", "reduce_scatterv", "reduce"):
        words += ["-o", sweep.reduction]
    if sweep.test in ("broadcast", "reduce", "scatter"):
        words += ["-r", str(sweep.root)]
    words += ["-n", str(sweep.iterations), "-w", str(sweep.warmup), "-c", str(sweep.check)]
    for letter, is_on in (("-z", sweep.zero_copy), ("-m", sweep.symmetric_memory), ("-t", sweep.device_time)):
        words += [letter, "1"] if is_on else []
    return words


def _size(count: int) -> str:
    for shift, letter in ((30, "G"), (20, "M"), (10, "K")):
        if count % (1 << shift) == 0:
            return f"{count >> shift}{letter}"
    return str(count)
