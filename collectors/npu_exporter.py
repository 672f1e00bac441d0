"""Metrics of npu-exporter (MindCluster) as Prometheus text, from an address that the user names.

A metric that a device cannot answer is simply absent, some have the placeholder 1, and each line ends with the time in
milliseconds. Source: collector reference, section 3.5. No real endpoint was at hand.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ascend_perf.collectors.npu_smi import Reading
from ascend_perf.errors import InputError

TIMEOUT_S: Final = 5.0
"""Status: assumed; the exporter answers from memory."""
MAX_BYTES: Final = 16 << 20
"""A longer answer is refused. Status: assumed; a server of 16 chips gives a few hundred kB."""

_LINE: Final = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+(?P<value>\S+)"
    r"(?:\s+(?P<time>-?\d+))?\s*"
)
_LABEL: Final = re.compile(r"(\w+)=\"((?:[^\"\\]|\\.)*)\"")
_RATIOS: Final = {
    "npu_chip_info_utilization": "ai_core_ratio", "npu_chip_info_vector_utilization": "vector_ratio",
    "npu_chip_info_cube_utilization": "cube_ratio", "npu_chip_info_overall_utilization": "npu_ratio",
    "npu_chip_info_hbm_bandwidth_utilization": "memory_bandwidth_ratio",
}  # fmt: skip
_PLAIN: Final = {"npu_chip_info_power": "power_w", "npu_chip_info_temperature": "temperature_c"}
_FREQUENCY: Final = "npu_chip_info_aicore_current_freq"
_MEMORY: Final = (
    ("npu_chip_info_hbm_used_memory", "npu_chip_info_hbm_total_memory"),
    ("npu_chip_info_used_memory", "npu_chip_info_total_memory"),
)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the text."""

    name: str
    labels: Mapping[str, str]
    value: float
    time_ns: int | None


@dataclass(frozen=True, kw_only=True)
class ExportedChip:
    """The figures of one chip; `id` counts chips of the server, as frameworks do."""

    id: int
    model: str
    time_ns: int | None
    reading: Reading


def fetch(url: str) -> str:
    """The text of an endpoint such as http://127.0.0.1:8082/metrics.

    Raises:
        InputError: the address is none of http, nothing answers, or the answer is too long.
    """
    if not re.match(r"https?://", url):
        raise InputError(f"{url!r} is no http address", hint="example: http://127.0.0.1:8082/metrics")
    # Proxies of the environment would send the question out of the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            body = response.read(MAX_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        hint = "is npu-exporter running, and its port open?"
        raise InputError(f"{url} does not answer: {reason}", hint=hint) from error
    if len(body) > MAX_BYTES:
        raise InputError(f"{url} answers more than {MAX_BYTES >> 20} MiB")
    return bytes(body).decode("utf-8", "replace")


def metrics(text: str) -> list[Metric]:
    """Lines that are metrics; comments and lines that are cut are passed over."""
    found = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(match["labels"] or "")}
        time = match["time"]
        found.append(
            Metric(name=match["name"], labels=labels, value=value, time_ns=int(time) * 10**6 if time else None)
        )
    return found


def read(text: str) -> list[ExportedChip]:
    """Figures by chip, in order of their ids."""
    values: dict[int, dict[str, float]] = {}
    models: dict[int, str] = {}
    times: dict[int, int] = {}
    for metric in metrics(text):
        number = metric.labels.get("id", "")
        if not (metric.name.startswith("npu_chip_info_") and number.isdecimal()):
            continue
        key = int(number)
        values.setdefault(key, {})[metric.name] = metric.value
        models.setdefault(key, metric.labels.get("model_name", ""))
        if metric.time_ns is not None:
            times[key] = max(times.get(key, 0), metric.time_ns)
    return [
        ExportedChip(id=key, model=models[key], time_ns=times.get(key), reading=_reading(key, values[key]))
        for key in sorted(values)
    ]


def _reading(key: int, values: Mapping[str, float]) -> Reading:
    figures: dict[str, float] = {}
    for name, field in _RATIOS.items():
        if 0 <= values.get(name, -1) <= 100:
            figures[field] = values[name] / 100
    for name, field in _PLAIN.items():
        if name in values and values[name] >= 0:  # -1: the call failed
            figures[field] = values[name]
    if values.get(_FREQUENCY, 0) > 0:
        figures["frequency_hz"] = values[_FREQUENCY] * 1e6
    used, total = next(
        ((values.get(used), values[total]) for used, total in _MEMORY if values.get(total, 0) > 0), (None, None)
    )
    return Reading(
        npu=key, chip=0, memory_used_bytes=None if used is None or used < 0 else round(used * 2**20),
        memory_total_bytes=None if total is None else round(total * 2**20), **figures,
    )  # fmt: skip


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else str(found[1]), text)
