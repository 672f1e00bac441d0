"""What a user asks of the virtual NPU: which chip, how many, how fast its links, whose clock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from ascend_perf.device.compatibility import soc_of
from ascend_perf.device.specs import DeviceSpec, spec_for
from ascend_perf.errors import UsageError
from ascend_perf.model.trace import Device

Clock = Literal["wall", "modelled"]

FAULT_FIELDS: Final[Mapping[str, int]] = {"slow_rank": 2, "slow_link": 1, "launch_latency": 1, "op_factor": 2}
"""Planted faults and how many values each takes: RANK FACTOR, FACTOR, NANOSECONDS, OPERATOR FACTOR."""
LIMITS: Final[Mapping[str, int]] = {"world_size": 131_072, "ranks_per_node": 131_072, "hbm_bytes": 1 << 46}
"""torch keeps lists of all ranks: a hundred million of them fill the host's memory."""
MAX_DEVICES: Final = 32
"""Devices that a process can see. Source: an assertion of torch_npu 2.13 (NPUStream.cpp)."""


@dataclass(frozen=True, kw_only=True)
class VirtualNpu:
    """The virtual device and the job that it stands for.

    Raises:
        UsageError: a value is out of range, or the chip is not known.
    """

    soc: str = "Ascend910B2"
    """Chip name as `torch.npu.get_device_name` gives it."""
    world_size: int = 1
    ranks_per_node: int = 8
    hbm_bytes: int | None = None
    """None: what the chip has."""
    link_bytes_per_s: float | None = None
    """Inside a node, per card and direction; None: what the chip has."""
    node_link_bytes_per_s: float | None = None
    """Between nodes (RoCE), per card and direction; None: what the chip has."""
    clock: Clock = "wall"
    """`wall`: device time is the machine's clock and waits really sleep. `modelled`: nothing sleeps, times repeat."""
    wheel: Path | None = None
    """A torch-npu wheel to take instead of the one that pip finds."""
    faults: Mapping[str, Sequence[tuple[str | float, ...]]] = field(default_factory=dict)
    """Planted faults: {"slow_rank": [(3, 1.5)], "op_factor": [("aclnnMatmul", 2.0)], ...}; see FAULT_FIELDS."""

    def __post_init__(self) -> None:
        if _spec(self.soc) is None and soc_of(self.soc) is None:
            raise UsageError(
                f"no chip named {self.soc!r} is known",
                hint="name it as torch.npu.get_device_name() does, for example Ascend910B2 or Ascend910_9391",
            )
        if self.clock not in ("wall", "modelled"):
            raise UsageError(f"the clock is {self.clock!r}, expected wall or modelled")
        for name in ("world_size", "ranks_per_node", "hbm_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is {value!r}, expected a whole number of at least 1")
            if value is not None and value > LIMITS[name]:
                raise UsageError(f"{name} is {value}, expected {LIMITS[name]} at most")
        for name in ("link_bytes_per_s", "node_link_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise UsageError(f"{name} is {rate!r}, expected a number above zero")
        _check_faults(self.faults)

    @property
    def spec(self) -> DeviceSpec | None:
        """What the device table knows of the chip; None when it has no row for it."""
        return _spec(self.soc)

    @property
    def device_name(self) -> str:
        """How the device is called wherever it is shown, so that nobody takes it for a real one."""
        return f"{self.soc} (virtual)"

    @property
    def memory_bytes(self) -> int:
        """HBM of one device.

        Raises:
            UsageError: the table does not know the memory of this chip and none was given.
        """
        if self.hbm_bytes is not None:
            return self.hbm_bytes
        known = self.spec.memory_bytes.value if self.spec else None
        if known is None:
            raise UsageError(f"the memory of {self.soc} is not known", hint="give it: --hbm 64GiB, or hbm_bytes=")
        return int(known)

    @property
    def device_count(self) -> int:
        """Devices that a process sees: those of one node, as far as torch_npu takes them."""
        there = min(self.ranks_per_node, self.world_size) if self.world_size > 1 else self.ranks_per_node
        return min(there, MAX_DEVICES)

    def links(self) -> tuple[float | None, float | None]:
        """Bytes per second inside a node and between nodes, per card and direction; None where nothing is known."""
        known = self.spec.links_bytes_per_s if self.spec else {}

        def rate(kind: str) -> float | None:
            return known[kind].value if kind in known else None

        return self.link_bytes_per_s or rate("hccs"), self.node_link_bytes_per_s or rate("roce")

    def fault_lines(self) -> list[tuple[str, ...]]:
        """The planted faults as fields of lines, in a fixed order."""
        return [
            (name, *(str(value) for value in values)) for name in sorted(self.faults) for values in self.faults[name]
        ]

    def fingerprint(self) -> str:
        """Short hash over everything that changes what the device does (not over the wheel's place)."""
        facts = {
            "soc": self.soc, "world_size": self.world_size, "ranks_per_node": self.ranks_per_node,
            "hbm_bytes": self.hbm_bytes, "link": self.link_bytes_per_s, "node_link": self.node_link_bytes_per_s,
            "clock": self.clock, "faults": self.fault_lines(),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _spec(soc: str) -> DeviceSpec | None:
    return spec_for(Device(kind="npu", name=soc))


def _check_faults(faults: Mapping[str, Sequence[tuple[str | float, ...]]]) -> None:
    for name, entries in faults.items():
        if name not in FAULT_FIELDS:
            raise UsageError(f"no fault named {name!r}", hint=f"choose one of these: {', '.join(FAULT_FIELDS)}")
        for values in entries:
            if len(values) != FAULT_FIELDS[name]:
                raise UsageError(f"fault {name} takes {FAULT_FIELDS[name]} values, not {len(values)}")
            if any(set(str(value)) & set("\t\n\r") for value in values):
                raise UsageError(f"fault {name} holds a tab or a line break")
            last = values[-1]
            if isinstance(last, str) or not 0 <= float(last) < float("inf"):
                raise UsageError(f"fault {name} ends in {last!r}, expected a number of at least 0")
