"""The device table: peaks, memory rate and core counts by device, each with its source and confidence.

The facts are data (`specs/hardware.yaml`), read once and only when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, cast

from ascend_perf.model.trace import Device

Basis = Literal["table", "derived"]
Confidence = Literal["high", "medium", "low", "unknown"]

CUBE_FLOP_PER_CYCLE: Final[dict[str, int]] = {"fp16": 8192, "bf16": 8192, "int8": 16384, "fp32": 2048}
"""FLOP per cycle and cube core of A2/A3: 16*16*16 multiply-adds (int8: 16*32*16); fp32 a quarter of fp16.

Source: CANN platform files (fp16, int8: vendor); fp32 inferred from vendor totals. HF32: no public rate.
"""
VECTOR_FLOP_PER_CYCLE: Final[dict[str, int]] = {"fp16": 256, "fp32": 128}
"""FLOP per cycle and vector core: 128 fp16 lanes, 64 fp32 lanes, an FMA counts two.

Source: CANN platform files.
"""

SAME_FREQUENCY_RATIO: Final = 0.01
"""Derived frequencies differ by up to this from the rated one. Status: measured (format reference, 5.4)."""

_FILE: Final = Path(__file__).parent / "specs" / "hardware.yaml"
_BYTES_GIB: Final = 2**30
_BYTES_MIB: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure in SI units (FLOP/s, bytes/s, bytes, Hz, cores), None when not known."""

    value: float | None
    confidence: Confidence
    sources: tuple[str, ...] = ()
    note: str = ""


UNKNOWN: Final = Figure(value=None, confidence="unknown")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """What a device can do at most. Peaks are dense; "matrix" is cube or tensor cores, "vector" the rest.

    `basis` is "derived" when the peaks come from core count and frequency that counters of the trace imply.
    """

    id: str
    vendor: str
    kind: Literal["npu", "gpu", "cpu"]
    name: str
    per: str
    basis: Basis
    matrix_flops_per_s: Mapping[str, Figure] = field(default_factory=dict)
    vector_flops_per_s: Mapping[str, Figure] = field(default_factory=dict)
    memory_bytes_per_s: Figure = UNKNOWN
    memory_bytes: Figure = UNKNOWN
    l2_bytes: Figure = UNKNOWN
    links_bytes_per_s: Mapping[str, Figure] = field(default_factory=dict)
    """By kind of link (hccs, roce, pcie, nvlink ...): per direction and device, all of its links together."""
    cube_cores: int | None = None
    vector_cores: int | None = None
    frequency_hz: int | None = None
    alike: tuple[str, ...] = ()
    """Parts of the table that a derived device can be, by id."""
    note: str = ""

    def matrix_peak(self, dtype: str) -> float | None:
        """Dense peak of the matrix units in FLOP/s by dtype (fp16, bf16, fp32, tf32, int8 ...)."""
        return self.matrix_flops_per_s.get(dtype, UNKNOWN).value

    def vector_peak(self, dtype: str) -> float | None:
        """Peak of the vector units in FLOP/s.

        On GPUs the table's fp32 figure is that of the ordinary cores, so it stands for them; None: unknown.
        """
        if self.kind == "gpu" and dtype == "fp32":
            return self.matrix_peak("fp32")
        return self.vector_flops_per_s.get(dtype, UNKNOWN).value


def spec_for(device: Device) -> DeviceSpec | None:
    """What is known of the device of a trace: by spec id, by name (GPU, CPU), or derived from its counters.

    Args:
        device: as the reader described it. "Ascend910B" settles nothing: in a profile it is a family,
            in CANN's files a first-generation part. Only an exact bin name (`Ascend910B4`) does.

    Returns:
        None when neither settles it: the peak is not known for this device.
    """
    specs = device_specs()
    if device.spec is not None and device.spec in specs:
        return specs[device.spec]
    if device.kind == "cpu":
        return None
    if device.kind == "npu" or (device.vendor or "").lower() in ("huawei", "ascend"):
        return _derived(device) or _ascend_bin(device.name)
    return _by_name(device.name) if device.name else None


@lru_cache(maxsize=1)
def device_specs() -> dict[str, DeviceSpec]:
    """Every device of the table by id."""
    return {spec.id: spec for spec in (_parse(row) for row in _rows())}


@lru_cache(maxsize=1)
def source_titles() -> dict[str, str]:
    """What the source keys of the figures stand for."""
    sources = _document()["sources"]
    assert isinstance(sources, dict)
    return {str(key): str(text) for key, text in sources.items()}


def ridge_flop_per_byte(spec: DeviceSpec, dtype: str) -> float | None:
    """Arithmetic intensity at which matrix units and memory balance; None when either is not known."""
    peak, rate = spec.matrix_peak(dtype), spec.memory_bytes_per_s.value
    return None if peak is None or not rate else peak / rate


def _derived(device: Device) -> DeviceSpec | None:
    """A spec from core counts and frequency, marked as derived: peak = cores * frequency * FLOP per cycle."""
    if device.cube_cores is None or device.frequency_hz is None:
        return None
    why = device.derivation or "cores and frequency as the trace gives them"
    cube = {
        dtype: Figure(
            value=float(device.cube_cores * device.frequency_hz * per_cycle),
            confidence="medium" if dtype != "fp32" else "low",
            sources=("derived",),
            note=why,
        )
        for dtype, per_cycle in CUBE_FLOP_PER_CYCLE.items()
    }
    vector = {}
    if device.vector_cores is not None:
        vector = {
            dtype: Figure(
                value=float(device.vector_cores * device.frequency_hz * per_cycle),
                confidence="medium",
                sources=("derived",),
                note=why,
            )
            for dtype, per_cycle in VECTOR_FLOP_PER_CYCLE.items()
        }
    return DeviceSpec(
        id="derived",
        vendor="Huawei",
        kind="npu",
        name=device.name or "Ascend",
        per="package",
        basis="derived",
        matrix_flops_per_s=cube,
        vector_flops_per_s=vector,
        memory_bytes=Figure(value=float(device.memory_bytes), confidence="medium")
        if device.memory_bytes is not None
        else _agreed([part.memory_bytes for part in _alike(device)]),
        memory_bytes_per_s=_agreed([part.memory_bytes_per_s for part in _alike(device)]),
        links_bytes_per_s=_agreed_links(_alike(device)),
        cube_cores=device.cube_cores,
        vector_cores=device.vector_cores,
        frequency_hz=device.frequency_hz,
        alike=tuple(part.id for part in _alike(device)),
        note=why,
    )


def _alike(device: Device) -> list[DeviceSpec]:
    """Parts of the table with the cores and the frequency of a device: it is one of them, but not known which."""
    return [
        part
        for part in device_specs().values()
        if part.kind == "npu"
        and part.cube_cores == device.cube_cores
        and part.frequency_hz is not None
        and device.frequency_hz is not None
        and abs(part.frequency_hz - device.frequency_hz) <= SAME_FREQUENCY_RATIO * part.frequency_hz
    ]


def _agreed(figures: Sequence[Figure]) -> Figure:
    """The figure that all parts share, so that it holds whichever part it is; unknown when one lacks it or differs."""
    values = {figure.value for figure in figures}
    if len(values) != 1 or None in values:
        return UNKNOWN
    return replace(figures[0], confidence="medium", note="equal on all parts with these cores and this frequency")


def _agreed_links(parts: Sequence[DeviceSpec]) -> dict[str, Figure]:
    """The links whose rate all parts share, by kind."""
    kinds = dict.fromkeys(kind for part in parts for kind in part.links_bytes_per_s)
    agreed = {kind: _agreed([part.links_bytes_per_s.get(kind, UNKNOWN) for part in parts]) for kind in kinds}
    return {kind: figure for kind, figure in agreed.items() if figure.value is not None}


def _ascend_bin(name: str | None) -> DeviceSpec | None:
    # "Ascend910B" without a digit is a family name in profiles; everything else must match exactly.
    if not name or name.strip() in ("Ascend910B", "910B"):
        return None
    for row, spec in zip(_rows(), device_specs().values(), strict=True):
        if spec.kind == "npu" and name.strip().removesuffix(" (virtual)") in cast("list[str]", row["names"]):
            return spec
    return None


def _by_name(name: str) -> DeviceSpec | None:
    wanted = _plain(name)
    hits: list[tuple[int, DeviceSpec]] = []
    for row, spec in zip(_rows(), device_specs().values(), strict=True):
        if spec.kind != "gpu":
            continue
        for known in cast("list[str]", row["names"]):
            # Whole words only: "H20" must not match "H200", nor "MI300X" a partition called "MI300XYZ".
            if re.search(rf"(?<![a-z0-9]){re.escape(_plain(known))}(?![a-z0-9])", wanted):
                hits.append((len(known), spec))
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.lower()).strip()


@lru_cache(maxsize=1)
def _document() -> dict[str, object]:
    # Imported here: yaml costs 15 ms that commands without a trace need not pay.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(_FILE.read_text("utf-8"), Loader=loader)
    assert isinstance(document, dict)
    return document


def _rows() -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", _document()["devices"])


def _parse(row: dict[str, object]) -> DeviceSpec:
    names = cast("list[str]", row["names"])
    frequency = _figure(row.get("rated_frequency"), 1e6).value
    return DeviceSpec(
        id=str(row["id"]),
        vendor=str(row["vendor"]),
        kind=cast("Literal['npu', 'gpu', 'cpu']", row["kind"]),
        name=names[0],
        per=str(row.get("per", "package")),
        basis="table",
        matrix_flops_per_s=_figures(row.get("peak_dense"), 1e12),
        vector_flops_per_s=_figures(row.get("peak_vector"), 1e12),
        memory_bytes_per_s=_figure(row.get("hbm_bandwidth"), 1e9),
        memory_bytes=_figure(row.get("hbm_capacity"), _BYTES_GIB),
        l2_bytes=_figure(row.get("l2_mib"), _BYTES_MIB),
        links_bytes_per_s=_figures(row.get("links"), 1e9),
        cube_cores=_count(row.get("aic_cores")),
        vector_cores=_count(row.get("aiv_cores")),
        frequency_hz=None if frequency is None else round(frequency),
        note=str(row.get("note", "")),
    )


def _figures(block: object, scale: float) -> dict[str, Figure]:
    return {str(k): _figure(v, scale) for k, v in block.items()} if isinstance(block, dict) else {}


def _figure(entry: object, scale: float) -> Figure:
    if not isinstance(entry, dict):
        return UNKNOWN
    value = entry.get("value")
    return Figure(
        value=None if value is None else float(value) * scale,
        confidence=entry.get("confidence", "unknown"),
        sources=tuple(str(key) for key in entry.get("source", ())),
        note=str(entry.get("note", "")),
    )


def _count(entry: object) -> int | None:
    value = _figure(entry, 1).value
    return None if value is None else int(value)
