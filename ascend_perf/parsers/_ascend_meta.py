"""Facts about a torch_npu profile: profiler_info*.json, profiler_metadata.json, groups, device, generation.

Source: format reference, sections 1.2, 1.3, 5.1, 5.4 and 10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import DataOrigin, Device, Group, ProfilerSettings
from ascend_perf.parsers._ascend_comm import group_hash
from ascend_perf.parsers._ascend_files import PRODUCER
from ascend_perf.parsers._numbers import whole

MAX_FACTS_BYTES: Final = 64 << 20
"""A JSON file of facts beyond this is refused. Status: assumed; real ones have a few kB."""

ENVIRONMENT: Final = frozenset(
    {
        "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
        "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
    }
)  # fmt: skip
"""The variables that the profiler records; others may hold private text and are not read."""

AIC_METRICS: Final = {
    "ACL_AICORE_PIPE_UTILIZATION": "PipeUtilization",
    "ACL_AICORE_ARITHMETIC_UTILIZATION": "ArithmeticUtilization",
    "ACL_AICORE_MEMORY_BANDWIDTH": "Memory",
    "ACL_AICORE_L0B_AND_WIDTH": "MemoryL0",
    "ACL_AICORE_MEMORY_UB": "MemoryUB",
    "ACL_AICORE_RESOURCE_CONFLICT_RATIO": "ResourceConflictRatio",
    "ACL_AICORE_L2_CACHE": "L2Cache",
    "ACL_AICORE_MEMORY_ACCESS": "MemoryAccess",
    "ACL_AICORE_NONE": "AiCoreNone",
}

VIRTUAL: Final = " (virtual)"
"""Ends the name of a simulated device. Source: collectors/virtual_npu/settings.py."""

MIN_FREQUENCY_KERNEL_NS: Final = 20_000
"""Kernels shorter than this are not used to derive frequency and cores: rounding dominates. Status: assumed."""

MIN_AGREEING_KERNELS: Final = 3
"""So many kernels must use the largest number of blocks before it is taken for the number of cores. Status: assumed."""

FAST_QUANTILE: Final = 0.9
"""Kernels that show the frequency: a core that runs several blocks shows a fraction of it. Status: assumed."""

CORE_TOLERANCE_RATIO: Final = 0.01
"""A derived number of cores must be this near to an integer. Status: measured (below 0.3 % on three sets)."""

FREQUENCY_TOLERANCE_RATIO: Final = 0.01
"""A frequency this near to the rated one of a device table entry is the same. Status: assumed."""


class _Common(msgspec.Struct):
    schedule: dict[str, object] | None = None
    record_shapes: bool | None = None
    profile_memory: bool | None = None
    with_stack: bool | None = None
    activities: list[str] | None = None


class _Experimental(msgspec.Struct):
    level: str | None = msgspec.field(name="_profiler_level", default=None)
    aic_metrics: str | None = msgspec.field(name="_aic_metrics", default=None)
    export_type: str | list[str] | None = msgspec.field(name="_export_type", default=None)
    l2_cache: bool | None = msgspec.field(name="_l2_cache", default=None)
    gc_threshold: float | None = msgspec.field(name="_gc_detect_threshold", default=None)
    sys_io: bool | None = msgspec.field(name="_sys_io", default=None)
    sys_interconnection: bool | None = msgspec.field(name="_sys_interconnection", default=None)


class _Config(msgspec.Struct):
    common: _Common = msgspec.field(name="common_config", default_factory=_Common)
    experimental: _Experimental = msgspec.field(name="experimental_config", default_factory=_Experimental)


class _Info(msgspec.Struct):
    config: _Config = msgspec.field(default_factory=_Config)
    torch_npu: str | None = msgspec.field(name="torch_npu_version", default=None)
    cann: str | None = msgspec.field(name="cann_version", default=None)
    rank_id: int | str | None = None
    data_origin: object = None


class _ParallelGroup(msgspec.Struct):
    label: str | None = msgspec.field(name="group_name", default=None)
    group_rank: int | None = None
    global_ranks: list[int] = msgspec.field(default_factory=list)


@dataclass
class Facts:
    """What is known about the profile beside its tables."""

    rank: int | None = None
    world_size: int | None = None
    device_id: int | None = None
    device_name: str | None = None
    settings: ProfilerSettings = field(default_factory=lambda: ProfilerSettings(producer=PRODUCER))
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    parallel: dict[str, int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    """Groups by their name in the metadata."""
    has_schedule: bool | None = None
    l2_cache: bool | None = None
    sys_interconnection: bool | None = None
    cube_cores: int | None = None
    vector_cores: int | None = None
    frequency_hz: int | None = None
    """Cores and rated frequency as the profile's own description of the device has them (info.json of msprof)."""
    data_origin: DataOrigin = "measured"
    """`simulated` as soon as one file says so."""
    warnings: list[str] = field(default_factory=list)

    def by_hash(self) -> dict[str, Group]:
        """The groups by the id that communication.json uses."""
        return {group_hash(name): group for name, group in self.groups.items()}

    def set_origin(self, value: object) -> None:
        """Take over where the data come from: files of the virtual NPU say `simulated`, all others say nothing."""
        if value == "simulated":
            self.data_origin = "simulated"

    def set_rank(self, value: object, where: str) -> None:
        """Take over a rank; -1 and text that is no number are unknown, and a contradiction is reported."""
        rank = rank_of(value)
        if rank is None:
            return
        if self.rank is None:
            self.rank = rank
        elif self.rank != rank:
            self.warnings.append(f"{where} says rank {rank}, others say rank {self.rank}: files of two ranks are mixed")


def rank_of(value: object) -> int | None:
    """A rank as number or text; unknown values (-1, "", no number) are None."""
    try:
        rank = int(str(value).strip())
    except ValueError:
        return None
    return rank if 0 <= rank < 1 << 31 else None


def rank_in_name(path: Path) -> int | None:
    """The rank that the producer appends to the names of profiler_info and of databases."""
    match = re.search(r"(?:profiler_info|profiler)_(\d{1,7})\.(?:json|db)$", path.name)
    return int(match[1]) if match else None


def _object(path: Path) -> bytes:
    if path.stat().st_size > MAX_FACTS_BYTES:
        raise InputError(f"{path} is larger than {MAX_FACTS_BYTES >> 20} MiB, which no file of facts is")
    return b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf")


def read_info(path: Path, facts: Facts) -> None:
    """Take over a profiler_info*.json.

    Raises:
        InputError: the file is damaged.
    """
    try:
        info = msgspec.json.decode(_object(path), type=_Info, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is not what the format says: {error}") from None
    common, experimental = info.config.common, info.config.experimental
    generation = None
    if any(key.startswith("_") for key in common.schedule or {}):
        generation = "G1"
    elif info.torch_npu or info.cann or isinstance(experimental.export_type, list):
        generation = "G3"
        if "skip_first_wait" in (common.schedule or {}):
            generation = "G4"
    elif experimental.export_type:
        generation = "G2"
    metrics = experimental.aic_metrics
    facts.settings = ProfilerSettings(
        producer=PRODUCER,
        level=experimental.level,
        aic_metrics=None if metrics is None else AIC_METRICS.get(metrics, metrics),
        with_stack=common.with_stack,
        record_shapes=common.record_shapes,
        profile_memory=common.profile_memory,
        generation=generation,
        gc_detect_threshold=experimental.gc_threshold,
    )
    facts.set_origin(info.data_origin)
    facts.has_schedule = common.schedule is not None
    facts.l2_cache = experimental.l2_cache
    facts.sys_interconnection = experimental.sys_interconnection
    if info.torch_npu:
        facts.versions["torch_npu"] = info.torch_npu
    if info.cann:
        facts.versions["cann"] = info.cann
    facts.set_rank(info.rank_id if info.rank_id is not None else rank_in_name(path), path.name)


def read_metadata(path: Path, facts: Facts) -> None:
    """Take over a profiler_metadata.json.

    Raises:
        InputError: the file is damaged.
    """
    try:
        members = msgspec.json.decode(_object(path), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged JSON: {error}") from None
    for key, raw in members.items():
        take_metadata(key, bytes(raw), facts, path.name)


def take_metadata(key: str, text: bytes, facts: Facts, where: str) -> None:
    """Take over one member of the metadata (also a row of META_DATA in a database)."""
    try:
        if key == "ENV_VARIABLES":
            values = msgspec.json.decode(text, type=dict[str, str], strict=False)
            facts.environment.update({k: v for k, v in values.items() if k in ENVIRONMENT and v})
        elif key == "distributed_args":
            _take_parallel(msgspec.json.decode(text, type=dict[str, object]), facts, where)
        elif key == "parallel_group_info":
            _take_groups(msgspec.json.decode(text, type=dict[str, _ParallelGroup]), facts)
        elif key == "data_origin":
            facts.set_origin(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError) as error:
        facts.warnings.append(f"{where}: {key} is not what the format says ({error}): it was not used")


def _take_parallel(values: Mapping[str, object], facts: Facts, where: str) -> None:
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and name.endswith("_size") and name != "world_size":
            facts.parallel[name.removesuffix("_size")] = value
    world = values.get("world_size")
    if isinstance(world, int) and world > 0:
        facts.world_size = world
    facts.set_rank(values.get("rank"), where)


_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}|[0-9a-fA-F:]{2,}:[0-9a-fA-F:]+%")


def public_name(communicator: str) -> str:
    """A communicator's name; its hash, which other files use, where the name holds the address of a host (G2)."""
    return group_hash(communicator) if _ADDRESS.search(communicator) else communicator


def _take_groups(values: Mapping[str, _ParallelGroup], facts: Facts) -> None:
    for name, value in values.items():
        ranks = tuple(value.global_ranks)
        hash_id = group_hash(name)
        facts.groups[name] = Group(
            name=public_name(name), label=value.label, ranks=ranks, size=len(ranks) or None, hash_id=hash_id
        )
        if value.label == "default_group" and ranks and facts.world_size is None:
            facts.world_size = len(ranks)


def derive_device(facts: Facts, kernels: Table, counter_hz: int | None) -> Device:
    """The device as far as the profile tells it.

    Cores and frequency come from the counters: frequency = cycles / core time / blocks, and
    frequency x cores = cycles / (duration x cube_utilization).

    Args:
        facts: what the files say.
        kernels: with counters, or without.
        counter_hz: the AI Core Freq counter, when it was constant.

    Source:
        Format reference, section 5.4, verified on three sets.
    """
    device = Device(vendor="Huawei", name=facts.device_name, kind="npu", device_id=facts.device_id)
    cycles = kernels.ints("aic_total_cycles").astype(np.float64)
    utilization = kernels.floats("cube_utilization_ratio")
    dur, core_ns = kernels.ints("dur_ns"), kernels.ints("aic_time_ns")
    blocks = kernels.ints("block_num")
    usable = (cycles > 0) & (dur >= MIN_FREQUENCY_KERNEL_NS)
    notes = []
    frequency = counter_hz
    if frequency is not None:
        notes.append(f"frequency {frequency / 1e6:g} MHz from the AI Core Freq counter")
    elif facts.frequency_hz is not None:
        frequency = facts.frequency_hz
        notes.append(f"frequency {frequency / 1e6:g} MHz from info.json")
    else:
        # With more blocks than cores a core runs several, and the quotient is a fraction: the largest one counts.
        rows = usable & (core_ns > 0) & (blocks > 0)
        if rows.any():
            hertz = cycles[rows] / core_ns[rows] / blocks[rows] * 1e9
            frequency = round(float(np.quantile(hertz, FAST_QUANTILE)) / 1e6) * 10**6
            notes.append(f"frequency {frequency / 1e6:g} MHz = aic_total_cycles / aicore_time / blocks")
    rows = usable & (utilization > 0.02)
    cores = facts.cube_cores
    if cores is not None:
        notes.append(f"{cores} cube cores from info.json")
    elif frequency and rows.any():
        # Where the clock changed, frequency and product must be those of the same kernels.
        at = 0.5 if counter_hz is not None else FAST_QUANTILE
        product = float(np.quantile(cycles[rows] / (dur[rows] * utilization[rows]), at)) * 1e9
        exact = product / frequency
        if round(exact) >= 1 and abs(exact - round(exact)) <= CORE_TOLERANCE_RATIO * exact:
            cores = round(exact)
            notes.append(
                f"{cores} cube cores = {product / 1e9:.1f} GHz-cores by"
                " aic_total_cycles / (duration x cube_utilization), over the frequency"
            )
    elif frequency and usable.any():
        cores = _cores_by_blocks(kernels, frequency, notes)
    stated = cores
    if cores is not None and frequency is not None and (usable_cores := _usable_cores(cores, frequency)) != cores:
        cores = usable_cores
        notes.append(f"{cores} of them usable: no part at this frequency has more")
    device = replace(device, frequency_hz=frequency, cube_cores=cores, derivation="; ".join(notes) or None)
    vector_cores = facts.vector_cores or _vector_cores(kernels, cores)
    if cores is not None and cores != stated and vector_cores is not None:
        vector_cores = min(vector_cores, 2 * cores)
    return replace(device, spec=_spec_of(device), vector_cores=vector_cores)


def _usable_cores(stated: int, frequency: int) -> int:
    """Cube cores that programs can use: some devices count one more, which would overstate their peak.

    Source:
        device table, 910B1: some readings give 25 physical cores, 24 are usable (25 x 1850 MHz is 4 % too much).
    """
    from ascend_perf.device.specs import device_specs

    parts = {
        spec.cube_cores
        for spec in device_specs().values()
        if spec.vendor == "Huawei" and spec.frequency_hz is not None
        and abs(spec.frequency_hz - frequency) <= FREQUENCY_TOLERANCE_RATIO * spec.frequency_hz
    }  # fmt: skip
    return stated - 1 if stated not in parts and stated - 1 in parts else stated


def _cores_by_blocks(kernels: Table, frequency: int, notes: list[str]) -> int | None:
    """Cube cores by the largest number of blocks that ran at once, when several kernels agree on it.

    With more blocks than cores, cycles / core time / blocks is a fraction of the frequency: those kernels are left out.
    """
    cycles, core_ns = kernels.ints("aic_total_cycles"), kernels.ints("aic_time_ns")
    blocks = kernels.ints("block_num")
    rows = (cycles > 0) & (core_ns > 0) & (blocks > 0) & kernels.text("core").isin(("AIC", "MIX_AIC"))
    hertz = cycles[rows] / core_ns[rows] / blocks[rows] * 1e9
    at_once = blocks[rows][hertz > frequency * (1 - 2 * FREQUENCY_TOLERANCE_RATIO)]
    if not len(at_once):
        return None
    most = int(at_once.max())
    agreeing = int((at_once == most).sum())
    if agreeing < MIN_AGREEING_KERNELS:
        return None
    notes.append(f"{most} cube cores (at least): the most blocks that ran at once, in {agreeing} kernels")
    return most


def with_cube_utilization(kernels: Table, device: Device) -> Table:
    """Kernels with cube_utilization, which databases do not hold: cycles / (frequency x cores x duration).

    Source:
        Format reference, section 5.4, verified on three sets.
    """
    cycles, dur = kernels.ints("aic_total_cycles"), kernels.ints("dur_ns")
    if kernels.has("cube_utilization_ratio") or not device.cube_cores or not device.frequency_hz:
        return kernels
    rows = (cycles != NULL) & (dur > 0)
    if not rows.any():
        return kernels
    values = np.full(len(kernels), np.nan)
    values[rows] = cycles[rows] / (device.frequency_hz * device.cube_cores * dur[rows] / 1e9)
    return kernels.with_columns({"cube_utilization_ratio": values})


def _vector_cores(kernels: Table, cube_cores: int | None) -> int | None:
    """Twice the cube cores on the split architecture: so it is on all parts of the device table that have one."""
    if cube_cores is None or not kernels.text("core").equals("AIV").any():
        return None
    return 2 * cube_cores


def _spec_of(device: Device) -> str | None:
    """The id of the device table entry, when exactly one has these cores, this frequency and this name."""
    if device.cube_cores is None or device.frequency_hz is None:
        return None
    from ascend_perf.device.specs import device_specs

    family = re.sub(r"[^a-z0-9]", "", (device.name or "").removesuffix(VIRTUAL).lower())
    fitting = []
    for spec in device_specs().values():
        if spec.vendor != "Huawei" or spec.cube_cores != device.cube_cores or spec.frequency_hz is None:
            continue
        if abs(spec.frequency_hz - device.frequency_hz) > FREQUENCY_TOLERANCE_RATIO * spec.frequency_hz:
            continue
        known = re.sub(r"[^a-z0-9]", "", spec.id.lower())
        if family and known == family:
            return spec.id
        if family and not known.startswith(family):
            continue
        fitting.append(spec.id)
    return fitting[0] if len(fitting) == 1 else None


def constant_frequency(hertz: list[float]) -> int | None:
    """The frequency when all samples agree, else None (dynamic frequency)."""
    distinct = set(hertz)
    frequency = whole(distinct.pop()) if len(distinct) == 1 else NULL
    return None if frequency == NULL else frequency
