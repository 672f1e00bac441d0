"""`report.md`: the answer, the findings, the steps, the data; nothing of a trace read as markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.trace import Trace
from ascend_perf.reports.markdown import text, write_markdown
from ascend_perf.reports.payload import build
from ascend_perf.reports.texts import markdown, markdown_code
from tests.reports import _samples


def test_it_opens_on_the_answer() -> None:
    lines = text(_samples.payload()).splitlines()

    assert lines[0] == "# The step takes 136.6 ms (median of 2)."
    assert lines[2].startswith("**98.1 ms of the step is waiting for rank 5")
    assert lines[4] == "At most 3.57x (72 % of the step)"  # 1 / (1 - 0.72), two ranks


def test_a_finding_has_its_bound_evidence_and_remedy() -> None:
    said = text(_samples.payload())

    assert "`N-05` · critical · cause: rank 5 · loses time: rank 0-1" in said
    assert "- true transit: 3.68 ms — communication.json, Transit Time" in said
    assert "   export CPU_AFFINITY_CONF=1" in said
    assert "The share of the step is not known, so there is no bound." in said


def test_steps_and_data_quality_are_tables() -> None:
    said = text(_samples.payload())

    assert "| 0 | 50 | 136.6 ms | 8.874 ms | 102 ms | 4.029 ms | 25.74 ms | 0 ns | 17.9 ms |" in said
    assert "| differs | Idle (free) | 0 | 25744.05 | 25644.05 | 100 | us | 0.5 | step 50 |" in said
    assert "truncated JSON at byte 1024" in said
    assert "ValueError: boom (thing.py:7)" in said
    assert "M-03 (Low L2 hit rate): L2 hit rates were not collected" in said


def test_the_figures_of_a_run_are_there_and_without_a_run_there_are_none() -> None:
    manifest = Manifest(
        workload="llm-serve", device="cpu", data_origin="measured", created="2026-01-01T00:00:00+00:00",
        metrics=(
            Metric(name="ttft_p50", value=38_070_000, unit="ns", better="lower"),
            Metric(name="memory_cache", value=1_048_576, unit="bytes", better="lower"),
            Metric(name="energy", value=None, unit="joule", better="lower"),
        ),
    )  # fmt: skip
    said = text(replace(_samples.payload(), manifest=manifest))

    assert "### Figures of the run, without the profiler" in said
    assert "| ttft_p50 | 38.07 ms |\n| memory_cache | 1 MiB |\n\n" in said
    assert "energy" not in said
    assert "Figures of the run" not in text(replace(_samples.payload(), manifest=None))


def test_names_of_a_trace_are_no_markup() -> None:
    said = text(_samples.payload())

    assert "<script" not in said.replace("\\<script", "")
    assert "\\</script\\>\\<script\\>alert('x')" in said


def test_chinese_has_chinese_heads() -> None:
    said = text(_samples.payload("zh"))

    assert said.startswith("# 单步耗时 136.6 ms（2 个样本的中位数）。")
    assert "## 优先处理" in said
    assert "## 数据质量" in said


def test_an_empty_run_says_that_nothing_could_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "report.md"

    write_markdown(build(Run(traces=(Trace(),)), [], [], lang="en"), path)

    said = path.read_text("utf-8")
    assert said.startswith("# This profile has no step time.")
    assert "Nothing could be judged from this data" in said


def test_a_run_that_measures_the_machine_is_not_judged_as_a_model() -> None:
    made = _samples.payload()
    assert made.manifest is not None
    said = text(replace(made, manifest=replace(made.manifest, workload="comm-bench")))

    assert said.split("\n")[2].startswith("**This run measures the machine, not a model: its figures are the result.")
    assert made.findings[0].code in said  # what was found is still there


def test_markup_characters_are_escaped_and_lines_joined() -> None:
    assert markdown("a|b\n# c *d* a_b _e_") == "a\\|b \\# c \\*d\\* a_b \\_e\\_"
    assert markdown("[x](javascript:1) & `y`") == "\\[x\\](javascript:1) &amp; \\`y\\`"


def test_a_fence_is_longer_than_any_in_the_code() -> None:
    assert markdown_code("a\n````\nb").splitlines()[0] == "`````"
