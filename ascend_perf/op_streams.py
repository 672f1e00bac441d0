"""Snapshots of the operators of one step: a text file that a diff reads, and a gate without any hardware.

    ascend-perf op-stream 1
    workload: llm-pretrain
    preset: tiny
    world_size: 1
    mode: fake
    torch: 2.13.0
    setting layers: 4

    [totals]
    12 aten.mm.default(bf16[512,256], bf16[256,1024]) -> bf16[512,1024]
    ...

    [stream]
    aten.embedding.default(bf16[4096,256], i64[4,128]) -> bf16[4,128,256]
    3 x aten.detach.default(bf16[512,256]) -> bf16[512,256]

Version 1, UTF-8. The first line names format and version. Lines of the head are `key: value`; `setting NAME: VALUE` is
a setting, its value as JSON. `[totals]` has each distinct operator with its count, in the order of the text; `[stream]`
the operators in the order of the step, equal neighbours as one line with their number. A stream of more than
`MAX_STREAM_LINES` lines is left out, and the head says so (`stream: omitted`); totals are always whole.

An operator is `NAME(OPERANDS) -> RESULTS`: the name as the dispatcher spells it (`aten.mm.default`,
`npu.npu_rms_norm.default`, `c10d.allreduce_.default`), each tensor as `dtype[sizes]`, lists of tensors in `[...]`,
other operands as `NAME=VALUE` where they are plain numbers, truth values or words, and left out otherwise. Who writes
it (the dispatch recorder, a simulated device) says so in `mode`; streams of different modes are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError
from ascend_perf.model.run import Fact
from ascend_perf.result_files import write_text

SCHEMA_VERSION: Final = 1
MAX_STREAM_LINES: Final = 200_000
"""Lines of a stream that are written. A step of a model of 80 layers has about 40 000. Status: assumed."""
MAX_CALLS: Final = 50_000_000
"""Calls of a stream that are read: a line may stand for any number of them. Status: assumed (400 MB of memory)."""
MAX_BYTES: Final = 256 * 2**20
"""A larger file is refused. Status: assumed."""

_MAGIC: Final = "ascend-perf op-stream "
_TOTAL: Final = re.compile(r"([1-9]\d{0,17}) (\S.*)")
_REPEATED: Final = re.compile(r"([1-9]\d{0,17}) x (\S.*)")


@dataclass(frozen=True, kw_only=True)
class OpStream:
    """The operators of one step of one rank."""

    workload: str
    preset: str | None = None
    world_size: int = 1
    mode: str
    """fake (dispatch recorder, tensors without values), real (the same with values), npu-virtual ..."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and what else the writer tells: torch, device."""
    settings: Mapping[str, Fact] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    """Operator with operands -> calls in the step."""
    stream: tuple[str, ...] | None = None
    """The same in order; None: it was too long to be kept."""

    @property
    def count(self) -> int:
        """Calls of the step."""
        return sum(self.totals.values())


@dataclass(frozen=True, kw_only=True)
class Changed:
    """An operator that two streams hold in different numbers."""

    operator: str
    a: int
    b: int


def counted(stream: Iterable[str]) -> dict[str, int]:
    """Each distinct operator and its calls, in the order of the text."""
    totals: dict[str, int] = {}
    for line in stream:
        totals[line] = totals.get(line, 0) + 1
    return dict(sorted(totals.items()))


def changes(a: OpStream, b: OpStream) -> tuple[Changed, ...]:
    """Operators whose number differs: those with the largest difference first, equal ones by text."""
    names = a.totals.keys() | b.totals.keys()
    found = [Changed(operator=name, a=a.totals.get(name, 0), b=b.totals.get(name, 0)) for name in names]
    return tuple(sorted((one for one in found if one.a != one.b), key=lambda one: (-abs(one.b - one.a), one.operator)))


def is_reordered(a: OpStream, b: OpStream) -> bool | None:
    """Whether equal totals come in another order; None where a stream is not known."""
    if a.stream is None or b.stream is None:
        return None
    return a.totals == b.totals and a.stream != b.stream


def write_op_stream(path: Path, stream: OpStream) -> Path:
    """Write a snapshot in one move; returns its path.

    Raises:
        ValueError: a text has a line break, or `totals` are not those of `stream`.
        InputError: the file cannot be written.
    """
    if stream.stream is not None and counted(stream.stream) != dict(stream.totals):
        raise ValueError("totals are not those of the stream")
    lines = [f"{_MAGIC}{SCHEMA_VERSION}", f"workload: {stream.workload}"]
    if stream.preset is not None:
        lines.append(f"preset: {stream.preset}")
    lines += [f"world_size: {stream.world_size}", f"mode: {stream.mode}"]
    lines += [f"{name}: {value}" for name, value in sorted(stream.facts.items())]
    kept = None if stream.stream is None else [(line, sum(1 for _ in same)) for line, same in groupby(stream.stream)]
    if kept is not None and len(kept) > MAX_STREAM_LINES:
        kept = None
    if kept is None:
        lines.append("stream: omitted")
    lines += [
        f"setting {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(stream.settings.items())
    ]
    lines += ["", "[totals]", *(f"{count} {operator}" for operator, count in sorted(stream.totals.items()))]
    if kept is not None:
        lines += ["", "[stream]", *(line if count == 1 else f"{count} x {line}" for line, count in kept)]
    if any(len(line.splitlines()) > 1 or "\n" in line for line in lines):
        raise ValueError("a text of the snapshot has a line break")
    write_text(path, "\n".join(lines) + "\n")
    return path


def read_op_stream(path: Path) -> OpStream:
    """Read and check a snapshot.

    Raises:
        InputError: it is missing, too large, of another version, or a line does not fit. The message has the line.
    """
    lines = _lines(path)
    if not lines or not lines[0].startswith(_MAGIC):
        raise InputError(f"{path.name} is no snapshot of operators", hint="`ascend-perf snapshot WORKLOAD` writes one")
    if lines[0] != f"{_MAGIC}{SCHEMA_VERSION}":
        raise InputError(
            f"{path.name} is of version {lines[0].removeprefix(_MAGIC)[:20]!r}, this ascend-perf reads {SCHEMA_VERSION}"
        )
    head: dict[str, str] = {}
    settings: dict[str, Fact] = {}
    totals: dict[str, int] = {}
    stream: list[str] = []
    part = ""
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        if line in ("[totals]", "[stream]"):
            part = line
        elif part == "[totals]":
            found = _TOTAL.fullmatch(line)
            if found is None or found[2] in totals:
                raise _wrong(path, number, line, "a count and an operator, each once")
            totals[found[2]] = int(found[1])
        elif part == "[stream]":
            repeated = _REPEATED.fullmatch(line)
            times = 1 if repeated is None else int(repeated[1])
            if len(stream) + times > sum(totals.values()):
                raise _wrong(path, number, line, "as many operators as [totals] counts")
            if len(stream) + times > MAX_CALLS:
                raise InputError(f"{path.name} has more than {MAX_CALLS} calls, which no step has")
            stream += [line if repeated is None else repeated[2]] * times
        else:
            _take_head(path, number, line, head, settings)
    for name in ("workload", "world_size", "mode"):
        if name not in head:
            raise InputError(f"{path.name} has no {name}")
    is_omitted = head.pop("stream", "") == "omitted"
    if not is_omitted and counted(stream) != dict(sorted(totals.items())):
        raise InputError(f"{path.name}: [totals] are not those of [stream]: the file was changed or cut short")
    world = head.pop("world_size")
    if not re.fullmatch(r"[1-9]\d{0,8}", world):
        raise InputError(f"{path.name}: world_size must be a whole number of 1 or more, got {world[:40]!r}")
    return OpStream(
        workload=head.pop("workload"), preset=head.pop("preset", None), world_size=int(world), mode=head.pop("mode"),
        facts=head, settings=settings, totals=totals, stream=None if is_omitted else tuple(stream),
    )  # fmt: skip


def _lines(path: Path) -> Sequence[str]:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name} has more than {MAX_BYTES} bytes")
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is no UTF-8 text, first at byte {error.start}") from None


def _take_head(path: Path, number: int, line: str, head: dict[str, str], settings: dict[str, Fact]) -> None:
    name, colon, value = line.partition(": ")
    if not colon or name in head:
        raise _wrong(path, number, line, "a line `key: value`, each key once")
    if not name.startswith("setting "):
        head[name] = value
        return
    try:
        setting = json.loads(value)
    except (ValueError, RecursionError):
        raise _wrong(path, number, line, "a setting with its value as JSON") from None
    if not isinstance(setting, (str, int, float, bool, type(None))):
        raise _wrong(path, number, line, "a setting with a plain value")
    settings[name.removeprefix("setting ")] = setting


def _wrong(path: Path, number: int, line: str, expected: str) -> InputError:
    return InputError(f"{path.name} line {number}: expected {expected}, got {line[:80]!r}")
