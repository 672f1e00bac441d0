"""What one rank recorded: columnar tables and the facts beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ascend_perf.model.table import Table, TableSpec
from ascend_perf.model.tables import ALL

DataOrigin = Literal["measured", "simulated"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device as the trace describes it. Unknown is None.

    `spec` is an id of `device/specs/hardware.yaml`; it is set only where the trace settles it. `cube_cores` and
    `frequency_hz` may be derived from counters when no spec can be named; `derivation` then says how.
    """

    vendor: str | None = None
    name: str | None = None
    spec: str | None = None
    kind: Literal["npu", "gpu", "cpu"] | None = None
    device_id: int | None = None
    cube_cores: int | None = None
    vector_cores: int | None = None
    frequency_hz: int | None = None
    memory_bytes: int | None = None
    derivation: str | None = None
    compute_capability: tuple[int, int] | None = None
    """CUDA's (major, minor) of an NVIDIA GPU: which number formats its matrix units know."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communication group: `ranks` are global ranks in group order, empty when not known."""

    name: str
    label: str | None = None
    ranks: tuple[int, ...] = ()
    size: int | None = None
    hash_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Rows of a file that were not used, and why."""

    reason: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that was read (or could not be). `path` is relative to the input: no host or user names."""

    path: str
    format: str
    rows: int = 0
    size_bytes: int = 0
    dropped: tuple[Dropped, ...] = ()
    problem: str | None = None
    """Why it was not read."""
    is_held_elsewhere: bool = False
    """Not read since another file of the same capture holds its data: nothing is missing."""

    @property
    def is_unusable(self) -> bool:
        """Whether data are missing because of it."""
        return self.problem is not None and not self.is_held_elsewhere


@dataclass(frozen=True, kw_only=True)
class Check:
    """A figure that two files (or a file and our own computation) must agree on."""

    name: str
    ours: float
    theirs: float
    unit: str
    tolerance: float
    where: str

    @property
    def holds(self) -> bool:
        """Whether both agree within the tolerance."""
        return abs(self.ours - self.theirs) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Data that this profile does not hold, and what would have collected it."""

    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class ProfilerSettings:
    """How the profile was taken. Unknown is None."""

    producer: str | None = None
    level: str | None = None
    aic_metrics: str | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_memory: bool | None = None
    generation: str | None = None
    gc_detect_threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Facts about the trace beside its tables."""

    label: str = ""
    rank: int | None = None
    world_size: int | None = None
    device: Device = Device()
    groups: tuple[Group, ...] = ()
    parallel: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: ProfilerSettings = ProfilerSettings()
    data_origin: DataOrigin = "measured"
    sources: tuple[Source, ...] = ()
    missing: tuple[Missing, ...] = ()
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()
    clock_base_ns: int = 0
    """Unix time at which the times of the tables are 0: those of a Kineto trace count from a base of its own."""
    waits_each_step: bool = False
    """Whether the loop that measured waits for the device behind each step, as that of `ascend-perf run` does."""


class Trace:
    """Tables of one rank and their meta. A table that was not given is empty.

    Raises:
        ValueError: a table does not fit its specification.
    """

    __slots__ = ("__weakref__", "_tables", "meta")

    def __init__(self, tables: Mapping[str, Table] | None = None, meta: Meta | None = None) -> None:
        self.meta = meta or Meta()
        self._tables: dict[str, Table] = {}
        for name, table in (tables or {}).items():
            if ALL.get(name) is not table.spec:
                raise ValueError(f"{name!r} is not a table of the model, or has another specification")
            self._tables[name] = table

    def __getitem__(self, spec: TableSpec) -> Table:
        """The table of a specification, empty when the trace has none."""
        table = self._tables.get(spec.name)
        return Table.empty(spec) if table is None else table

    def has(self, *specs: TableSpec) -> bool:
        """Whether all of the tables have rows."""
        return all(len(self[spec]) for spec in specs)

    def absent(self, specs: tuple[TableSpec, ...]) -> tuple[str, ...]:
        """Names of the tables that have no rows."""
        return tuple(spec.name for spec in specs if not len(self[spec]))

    def replace(self, *, meta: Meta | None = None, tables: Mapping[str, Table] | None = None) -> Trace:
        """A copy with another meta, or with tables added or replaced."""
        return Trace({**self._tables, **(tables or {})}, meta or self.meta)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables that were given, by name."""
        return self._tables
