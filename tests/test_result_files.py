"""Result files: what is written is read back; what is damaged is refused with its place and what was expected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import result_files
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import Benchmark, Launch, ResultSet
from ascend_perf.result_files import is_result_file, read_results, write_results
from ascend_perf.units import Better, Unit

FULL = ResultSet(
    suite="nightly",
    created="2026-04-07T10:15:32+08:00",
    tool_version="0.1.0",
    fingerprint={"kind": "npu", "chip": "910B2", "chip_count": 8, "clock_hz": None, "container": False},
    commit="0123abcd",
    branch="main",
    notes=("旧驱动",),
    benchmarks=(
        Benchmark(
            name="llm-pretrain/tiny/npu/8/fused",
            workload="llm-pretrain",
            preset="tiny",
            device="npu",
            world_size=8,
            variant="fused",
            data_origin="simulated",
            config={"layers": 4, "rate": 0.5, "fused": "on", "limit": None, "flag": True},
            counts={"kernels": 120, "host_syncs": 0},
            op_stream="streams/0.txt",
            notes=("one run failed",),
            launches=(
                Launch(
                    index=3, started="2026-04-07T10:15:40+08:00", status="complete",
                    metrics=(
                        Metric(name="tokens_per_s", value=10.5, unit="items_per_s", better="higher"),
                        Metric(name="loss", value=-0.25, unit="none", better="none"),
                        Metric(name="energy", value=None, unit="joule", better="lower"),
                        Metric(name="peak_rss", value=4, unit="bytes", better="lower", rank=1),
                        Metric(name="peak_rss", value=5, unit="bytes", better="lower", rank=2),
                    ),
                    steps_ns=(3, 4), warmup_ns=(9,), samples_ns={"ttft": (1, 2), "e2e": ()}, folder="runs/0003",
                ),
                Launch(index=5, started="2026-04-07T10:16:40+08:00", status="failed", problem="out of memory"),
            ),
        ),
    ),
)  # fmt: skip


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = write_results(tmp_path, FULL)

    assert path == tmp_path / "results.json"
    assert read_results(path) == FULL
    assert read_results(tmp_path) == FULL
    assert is_result_file(path) and is_result_file(tmp_path)
    assert not is_result_file(tmp_path / "none") and not is_result_file(tmp_path.parent)


_word = st.text(min_size=1, max_size=8)
_finite = st.floats(allow_nan=False, allow_infinity=False)
_time = st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat())
_ns = st.lists(st.integers(1, 2**63 - 1), max_size=4).map(tuple)
_fact = st.none() | st.booleans() | st.text(max_size=8) | _finite | st.integers(-9, 2**62)
_facts = st.dictionaries(_word, _fact, max_size=3)
_path = st.lists(st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True), min_size=1, max_size=3).map("/".join)
_metric = st.builds(
    Metric, name=_word, value=st.none() | st.just(0.0) | st.floats(1e-100, 1e100) | st.integers(0, 2**62),
    unit=st.sampled_from(get_args(Unit)), better=st.sampled_from(get_args(Better)), rank=st.none() | st.integers(0, 9),
)  # fmt: skip
_launch = st.builds(
    Launch, index=st.integers(0, 10**6), started=_time, status=st.sampled_from(["failed", "interrupted"]),
    problem=st.text(max_size=8), metrics=st.lists(_metric, max_size=3, unique_by=lambda m: (m.name, m.rank)).map(tuple),
    steps_ns=_ns, warmup_ns=_ns, samples_ns=st.dictionaries(_word, _ns, max_size=2), folder=st.none() | _path,
).map(lambda one: replace(one, status="complete") if one.steps_ns else one)  # fmt: skip
_benchmark = st.builds(
    Benchmark, name=_word, workload=_word, preset=st.none() | _word, device=st.text(max_size=4),
    world_size=st.integers(1, 999), variant=st.text(max_size=4), data_origin=st.sampled_from(["measured", "simulated"]),
    config=_facts, counts=st.dictionaries(_word, st.integers(0, 2**63 - 1), max_size=3), op_stream=st.none() | _path,
    launches=st.lists(_launch, max_size=3, unique_by=lambda one: one.index).map(tuple),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)  # fmt: skip
_results = st.builds(
    ResultSet, suite=_word, created=_time, tool_version=st.text(max_size=6), fingerprint=_facts,
    commit=st.none() | _word, branch=st.none() | _word,
    benchmarks=st.lists(_benchmark, min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(results=_results)
def test_any_results_come_back(results: ResultSet, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_results(tmp_path_factory.mktemp("r") / "r.json", results)

    assert read_results(path) == results


def _changed(change: Callable[[dict[str, Any]], object]) -> str:
    folder = FULL
    document: dict[str, Any] = json.loads(json.dumps(result_files._document_of(folder)))
    change(document)
    return json.dumps(document)


def _benchmark_set(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["benchmarks"][0].__setitem__(key, value)


def _launch_set(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["benchmarks"][0]["launches"][0].__setitem__(key, value)


def _metric_set(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["benchmarks"][0]["launches"][0]["metrics"][0].__setitem__(key, value)


LAUNCH = "benchmarks[0].launches[0]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("suite"), "results.json has no suite"),
        (lambda d: d.pop("benchmarks"), "results.json has no benchmarks"),
        (lambda d: d.update(benchmarks=[]), "results.json has no benchmarks: an empty suite can be neither"),
        (lambda d: d.update(benchmarks={}), "benchmarks must be a list, got an object"),
        (lambda d: d.update(benchmarks=[3]), "benchmarks[0] must be an object, got 3"),
        (lambda d: d.update(schema_version=2), "has schema_version 2, this ascend-perf reads result files of"),
        (lambda d: d.update(schema_version="1"), "has schema_version the text '1', this"),
        (lambda d: d.update(schema_version=True), "has schema_version true, this"),
        (lambda d: d.update(schema_version=1.0), "has schema_version 1.0, this"),
        (lambda d: d.pop("schema_version"), "has no schema_version, this"),
        (lambda d: d.update(created="yesterday"), "created must be a time with its offset"),
        (lambda d: d.update(created="2026-04-07T10:15:32"), "created must be a time with its offset"),
        (lambda d: d.update(suite=""), "suite is an empty text"),
        (lambda d: d.update(fingerprint={"chip": [1]}), "fingerprint.chip must be a plain value"),
        (lambda d: d["benchmarks"].append(d["benchmarks"][0]), "benchmarks[1] repeats the name 'llm-pretrain/tiny"),
        (_benchmark_set("name", None), "benchmarks[0].name must be text, got null"),
        (_benchmark_set("world_size", 0), "benchmarks[0].world_size is 0, it must be 1 or more"),
        (_benchmark_set("counts", {"kernels": -1}), "benchmarks[0].counts.kernels is negative (-1), it must be 0 or"),
        (_benchmark_set("counts", {"kernels": 1.5}), "benchmarks[0].counts.kernels must be a whole number, got 1.5"),
        (_benchmark_set("counts", {"kernels": "12"}), "kernels must be a whole number, got the text '12'"),
        (_benchmark_set("counts", {"kernels": True}), "kernels must be a whole number, got true"),
        (_benchmark_set("data_origin", "guessed"), "data_origin must be one of measured, simulated, got the text"),
        (lambda d: d["benchmarks"][0].pop("data_origin"), "benchmarks[0] has no 'data_origin'"),
        (_benchmark_set("op_stream", "../x"), "op_stream must be a path below the folder of the result file"),
        (_launch_set("folder", "/etc"), f"{LAUNCH}.folder must be a path below"),
        (_launch_set("steps_ns", [5, 0]), f"{LAUNCH}.steps_ns[1] is 0, it must be 1 or more"),
        (_launch_set("steps_ns", [-5]), f"{LAUNCH}.steps_ns[0] is negative (-5), it must be 1 or more"),
        (_launch_set("steps_ns", ["5"]), f"{LAUNCH}.steps_ns[0] must be a whole number, got the text '5'"),
        (_launch_set("steps_ns", [None]), f"{LAUNCH}.steps_ns[0] must be a whole number, got null"),
        (_launch_set("steps_ns", [2**70]), f"{LAUNCH}.steps_ns[0] is beyond 64 bits"),
        (_launch_set("samples_ns", {"ttft": [0]}), f"{LAUNCH}.samples_ns.ttft[0] is 0"),
        (_launch_set("status", "fine"), f"{LAUNCH}.status must be one of complete, failed, interrupted"),
        (_launch_set("status", ["complete"]), f"{LAUNCH}.status must be one of complete"),
        (_launch_set("index", 5), "launches[1] repeats the index '5'"),
        (lambda d: d["benchmarks"][0]["launches"][0].update(metrics=[], steps_ns=[], samples_ns={}),
         f"{LAUNCH} is complete and has no figures"),
        (_metric_set("value", "10"), f"{LAUNCH}.metrics[0].value must be a number or null, got the text '10'"),
        (_metric_set("value", True), f"{LAUNCH}.metrics[0].value must be a number or null, got true"),
        (_metric_set("value", -1), f"{LAUNCH}.metrics[0].value is negative (-1), which no figure in items_per_s can"),
        (_metric_set("value", 10**400), f"{LAUNCH}.metrics[0].value is beyond 64 bits"),
        (_metric_set("value", 1e308), f"{LAUNCH}.metrics[0].value is 1e+308, a figure is 0 or between 1e-100"),
        (_metric_set("value", 5e-324), f"{LAUNCH}.metrics[0].value is 4.94066e-324, a figure is 0 or"),
        (_metric_set("unit", "parsec"), f"{LAUNCH}.metrics[0].unit must be one of ns, us"),
        (_metric_set("name", "loss"), f"{LAUNCH}.metrics[1] repeats the metric of one rank"),
        (lambda d: d["benchmarks"][0]["launches"][0]["metrics"][0].pop("value"), f"{LAUNCH}.metrics[0] has no 'value'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text(_changed(change), "utf-8")

    with pytest.raises(InputError) as caught:
        read_results(tmp_path)

    assert message in caught.value.what


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "results.json is empty"),
        (b"[1]", "results.json must be an object, got a list"),
        (b"{", "is not JSON that we read"),
        (b'{"schema_version": 1, "value": NaN}', "NaN is no JSON number; a figure that is not known is null"),
        (b'{"schema_version": 1, "value": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": 1, "a": 2}', "the key 'a' stands twice"),
        (b"\xff\xfe", "is no UTF-8 text, first at byte 0"),
        (b"[" * 200_000, "is not JSON that we read"),
        (b'{"a": ' + b"9" * 6000 + b"}", "is not JSON that we read"),
        (b'{"schema_version": 1, "suite": "s", "created": "2026-01-01T00:00:00Z", "tool_version": "", "fingerprint":'
         b' {"clock_hz": 1e999}, "benchmarks": [{"name": "n", "workload": "w", "data_origin": "measured",'
         b' "launches": []}]}', "fingerprint.clock_hz is not finite"),
    ],
)  # fmt: skip
def test_what_is_no_result_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(content)

    with pytest.raises(InputError, match=r"(?s)" + message.replace("[", r"\[")):
        read_results(tmp_path)


def test_missing_odd_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"results\.json does not exist"):
        read_results(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no file"):
        read_results(tmp_path / "pipe")
    path = write_results(tmp_path, FULL)
    monkeypatch.setattr(result_files, "MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(InputError, match="a result file has at most"):
        read_results(path)


def test_keys_of_later_writers_are_ignored_and_optional_parts_may_be_absent(tmp_path: Path) -> None:
    least = {
        "schema_version": 1, "suite": "s", "created": "2026-01-01T00:00:00Z", "tool_version": "9", "later": [1],
        "benchmarks": [{"name": "n", "workload": "w", "data_origin": "measured", "launches": [], "later": {}}],
    }  # fmt: skip
    (tmp_path / "results.json").write_text("\ufeff" + json.dumps(least), "utf-8")

    seen = read_results(tmp_path)

    assert seen == ResultSet(
        suite="s", created="2026-01-01T00:00:00Z", tool_version="9", benchmarks=(Benchmark(name="n", workload="w"),)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_what_could_not_be_read_is_not_written(value: float, tmp_path: Path) -> None:
    path = write_results(tmp_path, FULL)
    before = path.read_bytes()
    bad = replace(FULL.benchmarks[0].launches[0], metrics=(Metric(name="t", value=value, unit="ns", better="lower"),))
    with pytest.raises(ValueError, match=r"metrics\[0\]\.value"):
        write_results(path, replace(FULL, benchmarks=(replace(FULL.benchmarks[0], launches=(bad,)),)))

    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_results(tmp_path, FULL)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_results(path, replace(FULL, suite="other"))

    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]


def test_half_a_surrogate_pair_is_written_as_an_escape(tmp_path: Path) -> None:
    path = write_results(tmp_path, replace(FULL, notes=("file \udc80",)))

    assert b"file \\udc80" in path.read_bytes()
    assert read_results(path).notes == ("file \udc80",)
