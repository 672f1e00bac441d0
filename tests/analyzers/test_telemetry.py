"""Telemetry in the report: figures by phase and over the profiled steps, from the file that the collector writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers.telemetry import telemetry
from ascend_perf.collectors.device_telemetry import INVALID, DeviceSample, write_device_samples
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Result
from ascend_perf.model.run import Run
from ascend_perf.model.table import Table
from ascend_perf.model.tables import STEPS, TELEMETRY
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.parsers import device_telemetry as reader
from ascend_perf.parsers._source import FileEntry, Folder

S = 10**9
NOW = 1_790_000_000 * S


def sample(second: float, phase: str, power_w: float | None, **more: object) -> DeviceSample:
    figures: dict[str, object] = {"use_ratio": 0.5, "temperature_c": 50.0, **more}
    return DeviceSample(
        time_ns=NOW + int(second * S), phase=phase, source="npu-smi", device=str(figures.pop("device", "npu0")),
        power_w=power_w, **figures,  # type: ignore[arg-type]
    )  # fmt: skip


def read(folder: Path, samples: list[DeviceSample]) -> Trace:
    path = folder / "device_telemetry.csv"
    write_device_samples(path, samples)
    (unit,) = reader.find(Folder(folder, (FileEntry(path, path.stat().st_size),), ()))
    (trace,) = reader.parse(unit)
    return trace


def rows(result: Result) -> list[dict[str, object]]:
    (table,) = result.tables
    names = [column.name for column in table.columns]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*table.data, strict=True)]


def steps(start: float, *seconds: float) -> Trace:
    base = NOW - 1000 * S  # as a Kineto trace has one
    starts = 1000 * S + np.cumsum([start, *seconds[:-1]]) * S
    table = Table(
        STEPS,
        {
            "step_id": np.arange(len(seconds), dtype=np.int64), "start_ns": starts.astype(np.int64),
            "dur_ns": (np.array(seconds) * S).astype(np.int64),
        },
    )  # fmt: skip
    return Trace({STEPS.name: table}, Meta(label="rank 0", rank=0, clock_base_ns=base))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    first = sample(0, "measured", 100.5, frequency_hz=1.6e9, memory_used_bytes=7)
    trace = read(tmp_path, [first, sample(1, "profiled", None, use_ratio=None, invalid=INVALID)])

    table = trace[TELEMETRY]
    assert table.ints("time_ns").tolist() == [NOW, NOW + S]
    assert table.text("phase").to_list() == ["measured", "profiled"]
    assert table.floats("power_w")[0] == 100.5
    assert np.isnan(table.floats("power_w")[1])
    assert np.isnan(table.floats("use_ratio")[1])
    assert table.text("invalid").to_list()[1] == INVALID
    assert trace.meta.rank is None


def test_energy_by_phase_and_over_the_profiled_steps_by_hand(tmp_path: Path) -> None:
    measured = [sample(n, "measured", 100.0 + 10 * n, temperature_c=50.0 + n) for n in range(6)]
    profiled = [
        sample(n, "profiled", 200.0, use_ratio=None, invalid=INVALID, frequency_hz=1e9 * (2 - (n == 8)),
               rated_frequency_hz=2e9)
        for n in range(6, 11)
    ]  # fmt: skip
    trace = read(tmp_path, measured + profiled)

    result = telemetry.run_on_run(Run(traces=(steps(7.0, 1.0, 1.5), trace)))

    assert result.status == "done", result.reason
    found = {row["stage"]: row for row in rows(Result(tables=result.tables))}
    one = found["measured"]
    assert (one["device"], one["samples"], one["span_ns"]) == ("npu0", 6, 5 * S)
    assert one["energy_j"] == pytest.approx((100 + 150) / 2 * 5)
    assert one["power_w"] == pytest.approx(125)
    assert one["use_ratio"] == pytest.approx(0.5)
    assert one["temperature_c"] == 55
    assert one["frequency_hz"] is None
    inside = found["steps of the profile"]  # seconds 7 to 9.5, at the ends between samples
    assert inside["energy_j"] == pytest.approx(200 * 2.5)
    assert inside["use_ratio"] is None
    assert (inside["frequency_hz"], inside["rated_frequency_hz"]) == (1e9, 2e9)
    assert result.tables[0].note is not None
    assert result.tables[0].note.en == "5 samples of use read 0 because a profiler ran; they are left out"
    assert {metric.name: metric.value for metric in result.metrics} == {
        "energy_npu0": pytest.approx(625), "power_mean_npu0": pytest.approx(125),
    }  # fmt: skip


def test_gaps_are_said(tmp_path: Path) -> None:
    trace = read(tmp_path, [sample(n, "measured", 100.0) for n in (0, 1, 2, 3, 4, 5, 15)])

    (row,) = rows(Result(tables=telemetry.run_on_run(Run(traces=(trace,))).tables))

    assert row["energy_j"] == pytest.approx(500)
    assert row["covered_ratio"] == pytest.approx(5 / 15)


@given(st.text(max_size=200))
def test_odd_lines_are_counted_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "device_telemetry.csv"
        path.write_text(f"time_ns,device,power_w,use_ratio\n5,npu0,1,nan\n{text}", "utf-8", newline="")
        (unit,) = reader.find(Folder(path.parent, (FileEntry(path, path.stat().st_size),), ()))
        (trace,) = reader.parse(unit)
        assert trace[TELEMETRY].ints("time_ns")[0] == 5


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("time_ns,device,power_w,use_ratio\nx,,,\n", "utf-8")
    (unit,) = reader.find(Folder(tmp_path, (FileEntry(path, path.stat().st_size),), ()))
    with pytest.raises(InputError, match="no row is a sample"):
        reader.parse(unit)


def test_values_that_no_device_has_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, [sample(0, "measured", -5.0, use_ratio=1.5), sample(1, "measured", 7.0, frequency_hz=-1.0)])

    assert np.isnan(trace[TELEMETRY].floats("power_w")).tolist() == [True, False]
    assert np.isnan(trace[TELEMETRY].floats("use_ratio")).tolist() == [True, False]
    (source,) = trace.meta.sources
    assert [(one.reason, one.count) for one in source.dropped] == [(reader.ODD_VALUE, 3)]


def test_more_devices_than_are_shown_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, [sample(n, "measured", 1.0, device=f"npu{n}") for n in range(70)])

    (table,) = telemetry.run_on_run(Run(traces=(trace,))).tables

    assert len(table.data[0]) == 64
    assert table.note is not None
    assert table.note.en == "6 further devices are not shown"
