"""The manifest of a run directory: manifest.json <-> `model.run.Manifest`.

A run directory holds

    manifest.json    this file: what ran, on what, how it was measured, and the figures
    trace/           what the profiler wrote, one file or folder per rank, as the parsers read it
    device_telemetry.csv    use, power, temperature, frequency and memory of devices while it ran (where a tool tells)
    telemetry.csv    samples of the process of rank 0 while it ran (absent when psutil is not installed)
    training.jsonl   loss and gradient norm of each step of rank 0 (workloads that train)
    results/         tables of the workload and of the run, one CSV file each
    checkpoint/      state to go on from (with --save-checkpoint)
    record-SIMULATED/    what virtual NPUs recorded, a file per process (data_origin is then "simulated")

manifest.json, schema_version 1 (keys that we do not know are ignored on reading; null is unknown):

| key | value |
| --- | --- |
| schema_version | 1 |
| created | local time of the start, ISO 8601 with offset |
| data_origin | "measured" or "simulated" |
| status | "complete", "interrupted" or "failed"; absent is complete. What was not reached is absent below |
| problem | why the run did not come to its end; absent in a complete one |
| workload, preset | names |
| command | words of the command that repeats the run, without output folders |
| configuration | every setting of workload and plan |
| seed | of weights and data |
| device | {"type": "npu" / "cuda" / "cpu", ...facts: name, memory_bytes, host_threads, dtype, world_size, nodes} |
| versions | package or tool -> version |
| environment | variables of the allow-list that were set; folders and addresses are masked |
| timings_ns | phase ("warmup", "measured", "profiled": under the profiler) -> each step, as on its slowest rank |
| metrics | [{"name", "value", "unit", "better"}]; throughput comes from "measured" alone |
| files | part ("trace", "telemetry", "series", "results", "checkpoint", "record") -> paths in the run directory |
| notes | what a reader must know: what was not measured and why |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast, get_args

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.units import Better, Unit

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "manifest.json"
MAX_BYTES: Final = 16 * 2**20
"""A larger manifest is refused: ours take a few kilobytes. Status: assumed."""


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write manifest.json into a run directory; returns its path."""
    document: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "created": manifest.created,
        "status": manifest.status,
        **({"problem": manifest.problem} if manifest.problem else {}),
        "data_origin": manifest.data_origin,
        "workload": manifest.workload,
        "preset": manifest.preset,
        "command": list(manifest.command),
        "configuration": dict(manifest.config),
        "seed": manifest.seed,
        "device": {"type": manifest.device, **manifest.device_facts},
        "versions": dict(manifest.versions),
        "environment": dict(manifest.environment),
        "timings_ns": {phase: list(times) for phase, times in manifest.timings_ns.items()},
        "metrics": [
            {"name": metric.name, "value": metric.value, "unit": metric.unit, "better": metric.better}
            for metric in manifest.metrics
        ],
        "files": {part: list(paths) for part, paths in manifest.files.items()},
        "notes": list(manifest.notes),
    }
    path = folder / FILE_NAME
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    return path


def is_run_directory(folder: Path) -> bool:
    """Whether a folder holds a manifest of ours (by content)."""
    try:
        document = _document(folder / FILE_NAME)
    except InputError:
        return False
    return "schema_version" in document and "workload" in document


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest, given as the file or as the run directory that holds it.

    Raises:
        InputError: it is missing, damaged, of a newer schema, or a value has the wrong type.
    """
    path = path / FILE_NAME if path.is_dir() else path
    document = _document(path)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path.name} has schema_version {version!r}, this ascend-perf reads {SCHEMA_VERSION}",
            hint="use the version of ascend-perf that wrote it, or a newer one",
        )
    read = _Reader(document)
    device = read.facts("device")
    kind = device.pop("type", None)
    if not isinstance(kind, str):
        raise InputError(f"{FILE_NAME}: device.type must be text, got {kind!r}")
    origin = read.text("data_origin")
    if origin not in ("measured", "simulated"):
        raise InputError(f"{FILE_NAME}: data_origin must be measured or simulated, got {origin!r}")
    seed = document.get("seed")
    if seed is not None and type(seed) is not int:
        raise InputError(f"{FILE_NAME}: seed must be a whole number or null, got {seed!r}")
    preset = document.get("preset")
    if preset is not None and not isinstance(preset, str):
        raise InputError(f"{FILE_NAME}: preset must be text or null, got {preset!r}")
    status = document.get("status", "complete")
    if status not in ("complete", "interrupted", "failed"):
        raise InputError(f"{FILE_NAME}: status must be complete, interrupted or failed, got {str(status)[:80]!r}")
    return Manifest(
        workload=read.text("workload"),
        preset=preset,
        device=kind,
        device_facts=device,
        data_origin=origin,
        created=read.text("created"),
        config=read.facts("configuration"),
        command=read.texts("command"),
        versions=read.named_texts("versions"),
        environment=read.named_texts("environment"),
        metrics=read.metrics(),
        timings_ns=read.timings(),
        seed=seed,
        files=read.files(),
        notes=read.texts("notes"),
        status=status,
        problem=read.text("problem") if "problem" in document else "",
        path=path.name,
    )


def _document(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name} has {path.stat().st_size} bytes, a manifest has less than {MAX_BYTES}")
        document = json.loads(path.read_text("utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise InputError(f"no readable {path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path.name} must be an object, got {type(document).__name__}")
    return document


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON number")


class _Reader:
    """Typed access to the document; each mismatch names the key and what was expected."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document

    def _wrong(self, key: str, expected: str) -> InputError:
        return InputError(f"{FILE_NAME}: {key} must be {expected}, got {str(self.document.get(key))[:80]!r}")

    def text(self, key: str) -> str:
        value = self.document.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.document.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def _mapping(self, key: str) -> dict[str, object]:
        value = self.document.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value

    def named_texts(self, key: str) -> dict[str, str]:
        value = self._mapping(key)
        if not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(key, "an object of texts")
        return cast(dict[str, str], value)

    def facts(self, key: str) -> dict[str, Fact]:
        value = self._mapping(key)
        if not all(item is None or isinstance(item, (str, int, float, bool)) for item in value.values()):
            raise self._wrong(key, "an object of plain values")
        return cast(dict[str, Fact], value)

    def timings(self) -> dict[str, tuple[int, ...]]:
        value = self._mapping("timings_ns")
        timings = {}
        for phase, times in value.items():
            if not isinstance(times, list) or not all(type(item) is int and item >= 0 for item in times):
                raise self._wrong("timings_ns", "an object of lists of whole numbers, 0 or more")
            timings[phase] = tuple(times)
        return timings

    def files(self) -> dict[str, tuple[str, ...]]:
        value = self._mapping("files")
        files = {}
        for part, paths in value.items():
            if not isinstance(paths, list) or not all(isinstance(item, str) and _is_inside(item) for item in paths):
                raise self._wrong("files", "an object of lists of paths inside the run directory")
            files[part] = tuple(paths)
        return files

    def metrics(self) -> tuple[Metric, ...]:
        value = self.document.get("metrics", [])
        if not isinstance(value, list):
            raise self._wrong("metrics", "a list")
        return tuple(self._metric(item) for item in value)

    def _metric(self, item: object) -> Metric:
        expected = '{"name", "value", "unit", "better"} with a unit and a direction that we know'
        if not isinstance(item, dict):
            raise InputError(f"{FILE_NAME}: a metric must be {expected}, got {str(item)[:80]!r}")
        name, number, unit, better = (item.get(key) for key in ("name", "value", "unit", "better"))
        is_number = number is None or (isinstance(number, (int, float)) and not isinstance(number, bool))
        if not isinstance(name, str) or not is_number or unit not in get_args(Unit) or better not in get_args(Better):
            raise InputError(f"{FILE_NAME}: a metric must be {expected}, got {str(item)[:80]!r}")
        # `unit` and `better` were checked against the same literals.
        return Metric(name=name, value=number, unit=cast(Unit, unit), better=cast(Better, better))


def _is_inside(path: str) -> bool:
    parts = path.replace("\\", "/").split("/")
    return bool(path) and not path.startswith(("/", "\\")) and ".." not in parts and ":" not in parts[0]
