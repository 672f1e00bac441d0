"""Estimates of a workload on devices that are not there: one outcome per configuration, and which is best.

Everything here is simulated: operators, memory and collectives are those of the real software on virtual NPUs, times
are modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ascend_perf.model.finding import Words

Kind = Literal["estimated", "out-of-memory", "failed", "does-not-fit"]
PartKind = Literal["computing", "copies", "communication", "host", "bubble"]
PARTS: Final[tuple[PartKind, ...]] = ("computing", "copies", "communication", "host", "bubble")
COMMUNICATION: Final = "(communication)"
HOST: Final = "(host)"
BUBBLE: Final = "(bubble)"
"""Classes of time that are none of operators."""
ONE_DEVICE: Final = "one device"
AS_PRESET: Final = "as the preset has it"
"""Layouts that are no product of axes."""
_CHINESE: Final = {ONE_DEVICE: "单卡", AS_PRESET: "按预设"}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One case: a chip, ranks, a layout, and changed settings."""

    soc: str
    world_size: int
    layout: str
    """As it is shown: `fsdp 64`, `tp 8 x ddp 8`; `one device`."""
    overrides: tuple[str, ...]
    """`KEY=VALUE` over the preset: the user's, those that vary, those of the layout."""
    varied: tuple[str, ...] = ()
    """Those among them that differ between configurations, beside the layout."""

    @property
    def group(self) -> tuple[str, int]:
        """Chip and number of ranks: configurations that agree in them are weighed against each other."""
        return self.soc, self.world_size

    @property
    def label(self) -> str:
        """What tells it from the others of its chip and world."""
        return ", ".join((self.layout, *self.varied))

    @property
    def words(self) -> Words:
        """The same for readers."""
        return Words(self.label, "，".join((_CHINESE.get(self.layout, self.layout), *self.varied)))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What is expected of one step. Times are modelled, for the rank that was run."""

    step_ns: float
    low_ns: float
    high_ns: float
    """Between these the real step lies in about 80 of 100 cases, by the errors of the cost model."""
    item: str
    items_per_step: int
    """Of the whole job."""
    flops_per_step: int
    mfu: float | None
    """None: the device table has no peak for the type."""
    peak_device_bytes: int
    """Most that tensors took, by the real allocator."""
    used_device_bytes: int
    """Most that was taken of the device: segments of the allocator and buffers of HCCL. It decides whether it fits."""
    device_bytes: int
    parts: Mapping[PartKind, float]
    """ns that add up to the step: computing, copies outside of it, exposed communication, the host, and the bubble of a
    pipeline, which is by formula."""
    hidden_communication_ns: float
    classes_ns: Mapping[str, float]
    """The same sum by class of the cost model, with COMMUNICATION, HOST and BUBBLE."""
    launches: int
    """Kernels launched in a step."""
    crosses_nodes: bool = False
    """Whether a collective of the step leaves the machine."""

    def share(self, part: PartKind) -> float:
        """A part of the step as a ratio."""
        return self.parts.get(part, 0.0) / self.step_ns

    def per_s_per_device(self, world_size: int, step_ns: float | None = None) -> float:
        """Items a second on each device."""
        return self.items_per_step / (self.step_ns if step_ns is None else step_ns) * 1e9 / world_size


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a configuration."""

    configuration: Configuration
    kind: Kind
    estimate: Estimate | None = None
    problem: str = ""
    """Why there is no estimate, in English; of the real allocator where memory ran out."""
    fits: str = ""
    """What would fit instead, by the modelled memory."""
    seconds: float = 0.0
    """How long finding it took; 0 where nothing was run."""
    is_cached: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which configuration of a chip and world is best: that with the most items a second on each device."""

    soc: str
    world_size: int
    best: int | None
    """Index of the outcome; None: none has an estimate."""
    rivals: tuple[int, ...] = ()
    """Outcomes that the model cannot tell from the best one: their difference may be the other way round."""
    said: Words = field(default_factory=lambda: Words("not judged", "未判定"))

    def judges(self, outcome: Outcome) -> bool:
        """Whether an outcome is one of this chip and number of ranks."""
        return outcome.configuration.group == (self.soc, self.world_size)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """All of it."""

    workload: str
    preset: str
    outcomes: tuple[Outcome, ...]
    verdicts: tuple[Verdict, ...]
    lead: Words
    main: Words
    notes: tuple[Words, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`chip x ranks` -> layouts that would fit the model and were not tried."""
