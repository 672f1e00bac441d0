"""Facts of a Kineto file beside its events: rank, device, process groups, versions, profiler settings."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
import numpy as np

from ascend_perf.device.specs import spec_for
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import Device, Dropped, Group, Meta, ProfilerSettings, Source
from ascend_perf.parsers import _kineto_comm as comm
from ascend_perf.parsers._events import EventFile
from ascend_perf.parsers._source import Unit

MAX_DIGITS: Final = 9
"""Ranks and numbers of ranks with more digits are damage. Status: assumed."""

_D = TypeVar("_D")


class _DeviceProperty(msgspec.Struct, gc=False):
    id: int | None = None
    name: str | None = None
    memory: int | None = msgspec.field(name="totalGlobalMem", default=None)
    major: int | None = msgspec.field(name="computeMajor", default=None)
    minor: int | None = msgspec.field(name="computeMinor", default=None)


def meta_of(
    file: EventFile,
    unit: Unit,
    facts: dict[str, msgspec.Raw],
    device: int | None,
    made: dict[str, Table],
    *,
    several: bool,
) -> Meta:
    """Facts of one device's trace: rank, device, groups, versions, settings, and how the file was read."""
    info = _decoded(facts.get("distributedInfo"), dict) or {}
    rank, world = _count(info.get("rank")), _count(info.get("world_size"))
    properties = _decoded(facts.get("deviceProperties"), list[_DeviceProperty]) or []
    chosen = _property_of(properties, device)
    name = chosen.name if chosen else None
    has_device = "kernels" in made or "copies" in made or "comm_ops" in made
    spec = spec_for(Device(kind="gpu", name=name)) if has_device and name else None
    hip = "hip_runtime_version" in facts or "roctracer_version" in facts
    dropped = tuple(Dropped(reason=r, count=n) for r, n in sorted(file.dropped.items()))
    return Meta(
        label=f"{unit.label} (device {device})" if several else unit.label,
        rank=None if several else rank,
        world_size=world or None,
        clock_base_ns=_base_ns(facts),
        device=Device(
            vendor=_vendor(name, hip=hip) if has_device or name else None,
            name=name or None,
            spec=None if spec is None else spec.id,
            kind="gpu" if has_device else "cpu",
            device_id=device,
            memory_bytes=chosen.memory if chosen and chosen.memory else None,
            compute_capability=_capability(chosen, hip=hip),
        ),
        groups=_groups(info, made.get("comm_ops")),
        versions=_versions(facts, info),
        settings=ProfilerSettings(
            producer="torch.profiler",
            with_stack=_flag(facts.get("with_stack")),
            record_shapes=_flag(facts.get("record_shapes")),
            profile_memory=_flag(facts.get("profile_memory")),
        ),
        sources=(
            Source(
                path=unit.label,
                format="kineto",
                rows=file.events,
                size_bytes=file.size_bytes,
                dropped=dropped,
                problem="; ".join(file.problems) or None,
            ),
        ),
    )


def _property_of(properties: list[_DeviceProperty], device: int | None) -> _DeviceProperty | None:
    """Properties of the device. ROCm numbers devices otherwise in events: then all must be alike to be used."""
    for one in properties:
        if one.id == device:
            return one
    alike = {(p.name, p.memory) for p in properties}
    return properties[0] if len(alike) == 1 else None


def _capability(chosen: _DeviceProperty | None, *, hip: bool) -> tuple[int, int] | None:
    """CUDA's number of the architecture; ROCm writes its own there."""
    if chosen is None or chosen.major is None or chosen.minor is None or _vendor(chosen.name, hip=hip) != "NVIDIA":
        return None
    return chosen.major, chosen.minor


def _base_ns(facts: dict[str, msgspec.Raw]) -> int:
    """The base of the trace's times; 0 where it is not told: older traces count from 1970."""
    base = _decoded(facts.get("baseTimeNanoseconds"), int)
    return base if base is not None and 0 <= base < 1 << 62 else 0


def _decoded(raw: msgspec.Raw | None, kind: type[_D]) -> _D | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _count(value: object) -> int | None:
    """A number from 0 on, written as a number or as text; anything else is unknown."""
    if isinstance(value, str) and value.isdecimal() and len(value) < MAX_DIGITS:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**MAX_DIGITS
    return value if is_count and isinstance(value, int) else None


def _flag(raw: msgspec.Raw | None) -> bool | None:
    value = _decoded(raw, int)
    return None if value is None else bool(value)


def _vendor(name: str | None, *, hip: bool) -> str:
    if name and re.search(r"AMD|Radeon|Instinct|\bMI\d", name):
        return "AMD"
    return "AMD" if hip else "NVIDIA"


def _versions(facts: dict[str, msgspec.Raw], info: dict[str, object]) -> dict[str, str]:
    versions = {}
    cuda = _decoded(facts.get("cuda_runtime_version"), int)
    if cuda:
        versions["CUDA"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    hip = _decoded(facts.get("hip_runtime_version"), int)
    if hip:
        versions["HIP"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}"
    if isinstance(nccl := info.get("nccl_version"), str):
        versions["NCCL"] = nccl[:20]
    return versions


def _groups(info: dict[str, object], comm_ops: Table | None) -> tuple[Group, ...]:
    """Process groups that were used: members from pg_config, names from the collectives' own arguments."""
    config = info.get("pg_config")
    known: dict[str, Group] = {}
    if isinstance(config, list):
        for entry in config:
            if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
                ranks = entry.get("ranks")
                is_list = isinstance(ranks, list) and all(isinstance(r, int) for r in ranks)
                known[entry["pg_name"]] = Group(
                    name=entry["pg_name"],
                    label=comm.group_label(entry.get("pg_desc")),
                    ranks=tuple(ranks) if is_list and isinstance(ranks, list) else (),
                    size=entry["pg_size"] if isinstance(entry.get("pg_size"), int) else None,
                )
    if comm_ops is None:
        return tuple(known.values())
    groups, labels, sizes = comm_ops.text("group"), comm_ops.text("group_label"), comm_ops.ints("group_size")
    for code, name in enumerate(groups.values):
        rows = np.flatnonzero(groups.codes == code)
        if len(rows) and name not in known:
            size = int(sizes[rows[0]])
            known[name] = Group(name=name, label=labels[int(rows[0])], size=None if size == NULL else size)
    return tuple(known.values())
