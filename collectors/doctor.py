"""Is this machine fit to measure? Versions and whether they belong together, devices, links, variables, tools, disk.

`diagnose` looks at a `Machine`; nothing is changed, and no context of a device is opened but in a child process.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ascend_perf import __version__
from ascend_perf.collectors import _doctor_ascend, _doctor_host, _doctor_software, _doctor_tools
from ascend_perf.collectors._doctor_line import Level, Line, Status
from ascend_perf.collectors._machine import Machine, here
from ascend_perf.collectors.environment import environment
from ascend_perf.errors import UsageError

__all__ = ["COLLECTORS", "Diagnosis", "Level", "Line", "Status", "diagnose", "lacking"]

COLLECTORS: Final = (
    "npu", "cann", "torch-npu", "torch", "cuda", "msprof", "npu-smi", "nvidia", "rapl", "hccl-test", "atc", "mspti",
    "ascend-dmi", "exporter", "psutil",
)  # fmt: skip
"""What a user can say that he needs."""
_LINES_OF: Final = {"npu": ("device", "torch-npu", "ascend"), "npu-smi": ("npu-smi", "chip")}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All lines, and facts for a report of an issue."""

    lines: tuple[Line, ...]
    facts: dict[str, str] = field(default_factory=dict)
    """Versions by name, SoC."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that change what is measured, masked."""

    def count(self, level: Level) -> int:
        """Lines of a level."""
        return sum(line.level == level for line in self.lines)


def diagnose(machine: Machine | None = None, *, folder: Path = Path(), exporter: str | None = None) -> Diagnosis:
    """Look at everything.

    Args:
        machine: what is looked at; None: this machine.
        folder: where runs would be written.
        exporter: address of an npu-exporter; it is only asked when it is given.
    """
    machine = machine or here()
    seen = _doctor_ascend.look(machine)
    lines = [
        *_doctor_software.lines(machine, seen),
        *_doctor_ascend.lines(machine, seen),
        *_doctor_tools.lines(machine, seen),
        *([_doctor_tools.exporter(exporter)] if exporter is not None else []),
        *_doctor_host.lines(machine, seen, folder),
    ]
    facts = {
        "ascend-perf": __version__, "python": machine.python, "system": _system(machine),
        "torch": machine.package("torch"), "torch_npu": seen.torch_npu,
        "CANN": None if seen.cann is None else seen.cann.version,
        "driver": None if seen.driver is None else seen.driver.version,
        "firmware": None if seen.firmware is None else seen.firmware.version,
        "SoC": seen.soc, "NPUs": str(len(seen.chips)) if seen.chips else None,
    }  # fmt: skip
    return Diagnosis(
        lines=tuple(lines), facts={name: value for name, value in facts.items() if value},
        environment=environment(machine.environment),
    )  # fmt: skip


def _system(machine: Machine) -> str:
    if not machine.is_here:
        return machine.architecture
    return f"{platform.system()} {platform.release()} {machine.architecture}"


def lacking(diagnosis: Diagnosis, needed: Sequence[str]) -> list[str]:
    """Collectors that the user needs and that do not work here.

    Raises:
        UsageError: there is no such collector.
    """
    unknown = [name for name in needed if name not in COLLECTORS]
    if unknown:
        raise UsageError(f"no collector {unknown[0]!r}", hint=f"collectors: {', '.join(COLLECTORS)}")
    return [name for name in needed if not _works(diagnosis, name)]


def _works(diagnosis: Diagnosis, name: str) -> bool:
    """At least one line of it is there, and none says that it is absent or broken."""
    names = _LINES_OF.get(name, (name,))
    own = [line for line in diagnosis.lines if line.name in names]
    return bool(own) and all(line.status not in ("missing", "broken") for line in own)


def first_lines(path: Path, count: int = 50) -> str:
    """The first lines of a log, without colours.

    Raises:
        OSError: it cannot be read.
    """
    lines = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\r\n"))[:500])
            if len(lines) == count:
                break
    return "\n".join(lines)

