"""Options of the virtual NPU, the same for every command that has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ascend_perf.errors import UsageError

if TYPE_CHECKING:
    from ascend_perf.collectors.virtual_npu import VirtualNpu

DEVICE: Final = "virtual-npu"
_SIZES: Final = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user gave. None: not given."""

    soc: str | None
    world_size: int | None
    ranks_per_node: int | None
    hbm: str | None
    link_speed: str | None
    node_link_speed: str | None
    clock: Literal["wall", "modelled"] | None
    wheel: Path | None

    def refuse(self, *, but: tuple[str, ...] = ()) -> None:
        """Refuse them where the device is a real one.

        Raises:
            UsageError: one was given.
        """
        for name, value in vars(self).items():
            if value is not None and name not in but:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} is of virtual NPUs only", hint=f"add --device {DEVICE}, or leave it out")

    def settings(self) -> VirtualNpu:
        """The virtual NPU that they describe.

        Raises:
            UsageError: one of them cannot be.
        """
        from ascend_perf.collectors.virtual_npu import VirtualNpu

        if self.wheel is not None and not self.wheel.is_file():
            raise UsageError(f"--wheel {self.wheel}: there is no such file")
        given: dict[str, Any] = {
            "soc": self.soc, "world_size": self.world_size, "ranks_per_node": self.ranks_per_node,
            "hbm_bytes": None if self.hbm is None else bytes_of(self.hbm, "--hbm"),
            "link_bytes_per_s": None if self.link_speed is None else rate_of(self.link_speed, "--link-speed"),
            "node_link_bytes_per_s":
                None if self.node_link_speed is None else rate_of(self.node_link_speed, "--node-link-speed"),
            "clock": self.clock, "wheel": self.wheel,
        }  # fmt: skip
        return VirtualNpu(**{name: value for name, value in given.items() if value is not None})


def options(*, soc: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command, which gets them as one argument, `npu`.

    Args:
        soc: add --soc too; a command that has one of its own tells in its help that it counts here, and gets it itself
            as well.
    """
    made: list[Callable[[Any], Any]] = [
        click.option("--soc", metavar="NAME", help="virtual-npu: the chip.  [default: Ascend910B2]"),
        click.option(
            "--world-size", type=click.IntRange(min=1), metavar="RANKS",
            help="virtual-npu: ranks of the job; one process stands for all, unless more are started.  [default: 1]",
        ),
        click.option(
            "--ranks-per-node", type=click.IntRange(min=1), help="virtual-npu: devices of a machine.  [default: 8]"
        ),
        click.option("--hbm", metavar="SIZE", help="virtual-npu: memory of a device, as 32GiB.  [default: the chip's]"),
        click.option(
            "--link-speed", metavar="RATE",
            help="virtual-npu: links inside a machine, per device and direction, as 196GB/s.  [default: the chip's]",
        ),
        click.option(
            "--node-link-speed", metavar="RATE",
            help="virtual-npu: links between machines, per device and direction, as 25GB/s.  [default: the chip's]",
        ),
        click.option(
            "--clock", type=click.Choice(["wall", "modelled"]),
            help="virtual-npu: wall: the host's time is real and the device's runs beside it; modelled: both are "
            "modelled, nothing waits, figures repeat exactly, no profile.  [default: wall]",
        ),
        click.option(
            "--wheel", type=click.Path(path_type=Path), metavar="FILE",
            help="virtual-npu: a torch-npu wheel to use instead of fetching one.",
        ),
    ]  # fmt: skip

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def taking(**values: Any) -> None:
            npu = Options(**{part.name: values[part.name] for part in fields(Options)})
            for part in fields(Options):
                if soc or part.name != "soc":
                    del values[part.name]
            function(npu=npu, **values)

        for option in reversed(made if soc else made[1:]):
            taking = option(taking)
        return taking

    return add


def check_snapshot(path: Path | None) -> None:
    """Refuse a place for a snapshot that cannot take it, before anything runs.

    Raises:
        UsageError: it is a folder, or in a folder that is not there or may not be written.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"--snapshot {path}: it is a folder", hint="name a file, such as head.ops.txt")
    if not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"--snapshot {path}: its folder cannot be written", hint="make the folder first")


def bytes_of(text: str, option: str, *, hint: str = "write 32GiB or 64GB") -> int:
    """Bytes of a size such as 32GiB or 64GB; kB, MB, GB and TB are decimal.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,6})?)\s*([A-Za-z]{1,3})", text.strip())
    factor = None if found is None else _SIZES.get(found[2].lower())
    if found is None or factor is None or not float(found[1]):
        raise UsageError(f"{option} {text!r} is no size", hint=hint)
    return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def rate_of(text: str, option: str) -> float:
    """Bytes per second of a rate such as 25GB/s or 200Gbit/s.

    Raises:
        UsageError: it is none.
    """
    value = text.strip()
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)bit/s", value):
        rate = float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}[found[2]] / 8
    elif found := re.fullmatch(r"(\d{1,20}(?:\.\d{1,6})?(?:e\+?\d{1,2})?)\s*([A-Za-z]{1,3})/s", value):
        factor = _SIZES.get(found[2].lower()) if found[2].endswith("B") else None
        rate = 0.0 if factor is None else float(found[1]) * factor
    else:
        rate = 0.0
    if not rate:
        raise UsageError(f"{option} {text!r} is no rate", hint="write 25GB/s or 200Gbit/s")
    return rate
