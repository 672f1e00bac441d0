"""What collecting cost stands in the report: with its level, and with what was compared with what."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.model.trace import ProfilerSettings
from ascend_perf.reports import overhead
from ascend_perf.reports.markdown import text
from tests.reports import _samples

STEPS = {"step_time_median": 200.0, "step_time_iqr": 10.0, "step_count": 20.0}
COLLECT: dict[str, Fact] = {"collector": "torch", "level": "standard"}
BY_STEPS: dict[str, Fact] = {"collector": "msprof", "level": "standard", "overhead_basis": "steps"}
BY_COMMAND: dict[str, Fact] = {"collector": "msprof", "level": "standard", "overhead_basis": "command"}
SPAN = {"profiler_overhead": 0.52, "profiler_overhead_low": 0.49, "profiler_overhead_high": 0.55}
TORCH = ProfilerSettings(producer="torch.profiler")


def manifest(config: dict[str, Fact], **values: float) -> Manifest:
    metrics = tuple(Metric(name=name, value=value, unit="ratio", better="none") for name, value in values.items())
    return Manifest(
        workload="w", device="cpu", data_origin="measured", created="2026-01-01T00:00:00+00:00", metrics=metrics,
        config=config,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "values", "name", "said", "basis"),
    [
        (COLLECT, {"profiler_overhead": 0.28, **STEPS}, "profiler: torch standard", "28 %", "median of the 20 steps"),
        # The middle half of the steps without it spans 10 / 200: less than that is no figure, of either sign.
        (COLLECT, {"profiler_overhead": 0.04, **STEPS}, "profiler: torch standard", "< 5 %", "20 steps without"),
        (COLLECT, {"profiler_overhead": -0.04, **STEPS}, "profiler: torch standard", "< 5 %", "20 steps without"),
        (COLLECT, {"profiler_overhead": -0.3, **STEPS}, "profiler: torch standard", "not measured", "30 % shorter"),
        (COLLECT, STEPS, "profiler: torch standard", "not measured", "less than 3 steps"),
        (COLLECT, {}, "profiler: torch standard", "not measured", "`ascend-perf collect --measure-overhead`"),
        ({"collector": "msprof", "level": "deep"}, {}, "profiler: msprof deep", "not measured", "--measure-overhead"),
        # A run of its own without the collector: steps, lines of output that count them, or the whole command.
        (BY_STEPS, {**SPAN, **STEPS}, "profiler: msprof standard", "52 % (49 % to 55 %)", "of a run of its own"),
        ({**BY_STEPS, "overhead_basis": "lines"}, {**SPAN, **STEPS}, "profiler: msprof standard", "52 % (49 % to 55 %)",
         "between lines of output that count steps"),
        (BY_STEPS, {**SPAN, **STEPS, "profiler_overhead": 0.04}, "profiler: msprof standard", "< 5 %",
         "20 steps of a run of its own without"),
        ({**BY_STEPS, "overhead_basis": "lines"}, {**STEPS, "profiler_overhead": 0.04}, "profiler: msprof standard",
         "< 5 %", "as far as 20 times between lines"),
        (BY_STEPS, {**SPAN, **STEPS, "profiler_overhead": -0.3}, "profiler: msprof standard", "not measured",
         "something else slowed"),
        (BY_COMMAND, {"command_overhead": 0.31}, "profiler: msprof standard", "31 %", "such runs vary is not known"),
        (BY_COMMAND, {"command_overhead": -0.2}, "profiler: msprof standard", "not measured", "20 % less time under"),
        # `ascend-perf run`: the profile tells the profiler.
        ({}, {"profiler_overhead": 0.5, **STEPS}, "profiler: torch.profiler", "50 %", "in the same run"),
    ],
)
def test_the_profiler_with_its_level(
    config: dict[str, Fact], values: dict[str, float], name: str, said: str, basis: str
) -> None:
    row, *others = overhead.rows(manifest(config, **values), TORCH)
    assert (row[0].en, row[1].en) == (name, said)
    assert basis in row[2].en
    assert all(re.search(r"[\u4e00-\u9fff]|%", words.zh) for words in row[1:])
    # Telemetry has a row of its own wherever `ascend-perf collect` ran.
    assert [one[0].en for one in others] == (["telemetry"] if config else [])


def test_telemetry_that_was_not_sampled_is_said_with_the_step_that_brings_it() -> None:
    _, row = overhead.rows(manifest(COLLECT, profiler_overhead=0.28, **STEPS), TORCH)
    assert [one.en for one in row] == ["telemetry", "not measured", "nothing was sampled: pip install psutil"]


def test_telemetry_as_a_share_of_a_core() -> None:
    (row,) = overhead.rows(manifest({}, telemetry_overhead=0.00123), TORCH)
    assert (row[0].zh, row[1].en, row[1].zh) == ("遥测采样", "0.12 % of one core", "单核的 0.12 %")


def test_a_run_without_collectors_has_no_row() -> None:
    assert overhead.rows(manifest({}, **STEPS), TORCH) == []


@pytest.mark.parametrize(
    ("lang", "title", "row"),
    [
        ("en", "### Overhead of the collectors, measured in this run", "| profiler: torch standard | 28 % |"),
        ("zh", "### 采集工具的开销（本次运行实测）", "| Profiler：torch standard | 28 % |"),
    ],
)
def test_the_report_prints_it_apart_from_the_figures_without_the_profiler(lang: str, title: str, row: str) -> None:
    one = manifest(COLLECT, profiler_overhead=0.28, telemetry_overhead=0.001, **STEPS)
    said = text(replace(_samples.payload("zh" if lang == "zh" else "en"), manifest=one))
    assert title in said
    assert row in said
    assert "| profiler_overhead |" not in said
    assert "| telemetry_overhead |" not in said
