"""What a PROF directory says about itself: info.json (device, rank), sample.json (switches), start_info and end_info.

Names of hosts and users, and the command line of the application, stand there too; they are not read.

Source: format reference, sections 4.1, 4.5 and 5.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.trace import ProfilerSettings
from ascend_perf.parsers._ascend_files import Kind, kind_of
from ascend_perf.parsers._ascend_meta import AIC_METRICS, MAX_FACTS_BYTES, Facts, rank_of, read_info
from ascend_perf.parsers._msprof_files import device_of_folder
from ascend_perf.parsers._source import FileEntry

PRODUCER: Final = "msprof"

PLATFORMS: Final = {1: "Ascend910A", 4: "Ascend310P", 7: "Ascend310B", 15: "Ascend950"}
"""Chips by platform_version. 5 is of several parts (910B, A2, A3) and 0 stands in a file of a 310B: neither names one.
Source: format reference, 4.1."""

SWITCHES: Final = {
    "hardware_mem": "--sys-hardware-mem=on",
    "interconnection_profiling": "--sys-interconnection-profiling=on",
    "io_profiling": "--sys-io-profiling=on",
    "l2CacheTaskProfiling": "--l2=on",
    "ai_core_profiling": "--ai-core=on",
    "acl": "--ascendcl=on",
    "runtimeApi": "--runtime-api=on",
    "hcclTrace": "--hccl=on",
    "aicpuTrace": "--aicpu=on",
    "msproftx": "--msproftx=on",
}
"""Keys of sample.json and the options that set them."""

MAX_MHZ: Final = 10_000
"""A frequency beyond is no MHz. Status: assumed."""
MAX_CORES: Final = 4096
"""More cores than this are damage. Status: assumed."""

ABORTED: Final = (
    "the collection was aborted (start_info without end_info): its end is unknown, and the tail of the data may be lost"
)


@dataclass
class DeviceFacts:
    """One device as info.json describes it. Unknown is None."""

    cube_cores: int | None = None
    vector_cores: int | None = None
    frequency_hz: int | None = None
    name: str | None = None
    rank: int | None = None


@dataclass
class ProcessFacts:
    """What the files of one PROF directory say beside their data."""

    devices: dict[int, DeviceFacts] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    """Every rank that a file names, once."""
    settings: ProfilerSettings = field(default_factory=lambda: ProfilerSettings(producer=PRODUCER))
    versions: dict[str, str] = field(default_factory=dict)
    sampled: bool | None = None
    """Whether engine counters were sampled over time instead of read per task."""
    switches: dict[str, bool] = field(default_factory=dict)
    """Options of msprof and whether they were on."""
    aborted: bool = False
    data_origin: object = None
    problems: list[tuple[Path, str]] = field(default_factory=list)

    def of(self, device: int | None, count: int) -> Facts:
        """The facts of one of `count` devices."""
        facts = Facts(settings=self.settings, versions=dict(self.versions), device_id=device)
        facts.set_origin(self.data_origin)
        known = self.devices.get(-1 if device is None else device)
        if known is None and device is None and len(self.devices) == 1:
            known = next(iter(self.devices.values()))
        if known is not None:
            facts.cube_cores, facts.vector_cores = known.cube_cores, known.vector_cores
            facts.frequency_hz, facts.device_name = known.frequency_hz, known.name
            facts.rank = known.rank
        if facts.rank is None and len(self.ranks) == 1 and count < 2:
            facts.rank = self.ranks[0]
        if len(self.ranks) > 1 and count < 2:
            facts.warnings.append(f"the files of one process name ranks {', '.join(map(str, self.ranks))}")
        if self.aborted:
            facts.warnings.append(ABORTED)
        return facts


def read_process_facts(paths: Sequence[Path]) -> ProcessFacts:
    """The facts of the files of one PROF directory; a file that cannot be read is noted."""
    facts = ProcessFacts()
    for path in paths:
        try:
            if path.name.startswith("info.json"):
                _take_info(_object(path), facts, device_of_folder(path))
            elif path.name.startswith("sample.json"):
                _take_sample(_object(path), facts)
            elif kind_of(FileEntry(path, path.stat().st_size)) is Kind.INFO:
                _take_torch(path, facts)
        except InputError as error:
            facts.problems.append((path, error.what.replace(str(path), path.name)))
        except OSError as error:
            facts.problems.append((path, f"it cannot be read: {error.strerror or error}"))
    facts.aborted = _aborted(paths)
    facts.ranks = list(dict.fromkeys(facts.ranks))
    return facts


def _object(path: Path) -> dict[str, object]:
    if path.stat().st_size > MAX_FACTS_BYTES:
        raise InputError(f"{path} is larger than {MAX_FACTS_BYTES >> 20} MiB, which no file of facts is")
    text = b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged JSON: {error}") from None


def _int(value: object, most: int) -> int | None:
    """A positive number as number or text, None for `NA`, 0 and what is beyond `most`."""
    try:
        number = round(float(str(value)))
    except (ValueError, OverflowError):
        return None
    return number if 0 < number <= most else None


def _take_info(values: dict[str, object], facts: ProcessFacts, folder_device: int | None) -> None:
    facts.data_origin = values.get("data_origin", facts.data_origin)
    rank = rank_of(values.get("rank_id"))
    if rank is not None:
        facts.ranks.append(rank)
    version = values.get("version")
    if isinstance(version, str) and re.fullmatch(r"[0-9][0-9A-Za-z.]{0,31}", version):
        facts.versions["msprof_data"] = version
    platform = _platform(values.get("platform_version"))
    listed = values.get("DeviceInfo")
    for item in listed if isinstance(listed, list) else []:
        if not isinstance(item, dict):
            continue
        number = rank_of(item.get("id"))
        number = folder_device if number is None else number
        if number is None:
            continue
        device = facts.devices.setdefault(number, DeviceFacts())
        mhz = _int(item.get("aic_frequency"), MAX_MHZ)
        device.cube_cores = _int(item.get("ai_core_num"), MAX_CORES) or device.cube_cores
        device.vector_cores = _int(item.get("aiv_num"), MAX_CORES) or device.vector_cores
        device.frequency_hz = device.frequency_hz if mhz is None else mhz * 10**6
        device.name = platform or device.name
    if folder_device is not None and rank is not None:
        facts.devices.setdefault(folder_device, DeviceFacts()).rank = rank


def _platform(value: object) -> str | None:
    number = rank_of(value)
    return None if number is None else PLATFORMS.get(number)


def _take_sample(values: dict[str, object], facts: ProcessFacts) -> None:
    metrics = values.get("ai_core_metrics")
    if isinstance(metrics, str) and metrics.strip() and values.get("ai_core_profiling") != "off":
        known = AIC_METRICS.get(metrics, metrics)
        if re.fullmatch(r"[A-Za-z0-9:,]{1,128}", known):
            facts.settings = replace(facts.settings, aic_metrics=known)
    mode = values.get("ai_core_profiling_mode")
    if mode in ("task-based", "sample-based"):
        facts.sampled = mode == "sample-based"
    for key, option in SWITCHES.items():
        if values.get(key) in ("on", "off"):
            facts.switches[option] = facts.switches.get(option, False) or values[key] == "on"


def _take_torch(path: Path, facts: ProcessFacts) -> None:
    """The framework's profiler made the raw data: its profiler_info*.json names the rank."""
    own = Facts()
    read_info(path, own)
    if own.rank is not None:
        facts.ranks.append(own.rank)
    if own.data_origin == "simulated":
        facts.data_origin = own.data_origin
    facts.versions.update(own.versions)
    facts.settings = replace(own.settings, producer=PRODUCER, aic_metrics=facts.settings.aic_metrics)


def _aborted(paths: Sequence[Path]) -> bool:
    """Whether a start has no end: `start_info`, `start_info.0` ... and the same names with `end`."""
    starts = {(path.parent, path.name.removeprefix("start_info")) for path in paths if path.name.startswith("start_")}
    ends = {(path.parent, path.name.removeprefix("end_info")) for path in paths if path.name.startswith("end_")}
    return bool(starts - ends)
