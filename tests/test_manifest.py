"""manifest.json: what is written is read back; what is damaged is refused with the key and what was expected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.errors import InputError
from ascend_perf.manifest import is_run_directory, read_manifest, write_manifest
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Manifest

FULL = Manifest(
    workload="llm-pretrain",
    preset="tiny",
    device="cpu",
    device_facts={"name": "处理器", "cores": 2, "memory_bytes": None},
    data_origin="measured",
    created="2026-04-07T10:15:32+00:00",
    config={"layers": 4, "rate": 0.5, "fused": False, "limit": None, "dtype": "auto"},
    command=("ascend-perf", "run", "llm-pretrain"),
    versions={"torch": "2.13.0"},
    environment={"OMP_NUM_THREADS": "2"},
    metrics=(
        Metric(name="tokens_per_s", value=10.5, unit="items_per_s", better="higher"),
        Metric(name="step_time_iqr", value=None, unit="ns", better="lower"),
    ),
    timings_ns={"warmup": (5,), "measured": (3, 4)},
    seed=0,
    files={"trace": ("trace/rank0.pt.trace.json.gz",)},
    notes=("no telemetry",),
    path="manifest.json",
)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, FULL)

    assert read_manifest(tmp_path) == FULL
    assert read_manifest(path) == FULL
    assert json.loads(path.read_text("utf-8"))["schema_version"] == 1
    assert is_run_directory(tmp_path)


def test_unknown_keys_are_ignored_and_absent_parts_are_empty(tmp_path: Path) -> None:
    least = {
        "schema_version": 1, "workload": "w", "created": "", "data_origin": "simulated",
        "device": {"type": "npu"}, "invented": [1],
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(least), "utf-8")

    seen = read_manifest(tmp_path)

    assert (seen.preset, seen.seed, seen.metrics, seen.timings_ns) == (None, None, (), {})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 2, "has schema_version 2, this ascend-perf reads 1"),
        ("schema_version", None, "has schema_version None"),
        ("workload", 3, "workload must be text, got '3'"),
        ("preset", 3, "preset must be text or null"),
        ("seed", True, "seed must be a whole number or null"),
        ("data_origin", "guessed", "data_origin must be measured or simulated, got 'guessed'"),
        ("device", {"name": "x"}, "device.type must be text"),
        ("device", [], "device must be an object"),
        ("command", "ls", "command must be a list of texts"),
        ("configuration", {"a": [1]}, "configuration must be an object of plain values"),
        ("versions", {"torch": 2}, "versions must be an object of texts"),
        ("timings_ns", {"measured": [-1]}, "timings_ns must be"),
        ("timings_ns", {"measured": [1.5]}, "timings_ns must be"),
        ("metrics", {}, "metrics must be a list"),
        ("metrics", [3], "a metric must be"),
        ("metrics", [{"name": "a", "value": "3", "unit": "ns", "better": "lower"}], "a metric must be"),
        ("metrics", [{"name": "a", "value": 3, "unit": "parsec", "better": "lower"}], "a metric must be"),
        ("metrics", [{"name": "a", "value": 3, "unit": ["ns"], "better": "lower"}], "a metric must be"),
        ("files", {"trace": ["../../etc/passwd"]}, "paths inside the run directory"),
        ("files", {"trace": ["/etc/passwd"]}, "paths inside the run directory"),
        ("files", {"trace": "trace"}, "paths inside the run directory"),
        ("notes", [1], "notes must be a list of texts"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = write_manifest(tmp_path, FULL)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), key: value}), "utf-8")

    with pytest.raises(InputError) as caught:
        read_manifest(tmp_path)

    assert message in caught.value.what


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b'{"schema_version": 1', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "must be an object, got list"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema_version": NaN}', "NaN is no JSON number"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(InputError, match=message):
        read_manifest(tmp_path)
    assert not is_run_directory(tmp_path)


def test_a_missing_manifest_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no readable manifest\.json"):
        read_manifest(tmp_path)


def test_infinity_is_never_written(tmp_path: Path) -> None:
    metric = Metric(name="a", value=float("inf"), unit="ns", better="lower")

    with pytest.raises(ValueError):
        write_manifest(tmp_path, replace(FULL, metrics=(metric,)))
