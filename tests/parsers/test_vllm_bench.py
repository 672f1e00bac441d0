"""Results of `vllm bench serve`, written here by the keys that the benchmark writes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.analyzers.serving import serving
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import vllm_bench
from ascend_perf.parsers.discover import find_units, parsers


def result(ttfts: list[float], *, is_detailed: bool = True, **more: object) -> dict[str, object]:
    figures: dict[str, object] = {
        "date": "20260601-120000", "endpoint_type": "openai", "model_id": "secret/model", "num_prompts": len(ttfts),
        "request_rate": "inf", "duration": 12.5, "completed": len(ttfts), "total_input_tokens": 300,
        "total_output_tokens": 90, "request_throughput": 4.25, "request_goodput": None, "output_throughput": 100.5,
        "total_token_throughput": 250.0, "mean_ttft_ms": 1e3 * statistics.fmean(ttfts),
        "median_ttft_ms": 1e3 * statistics.median(ttfts), "p99_ttft_ms": 900.0, "mean_tpot_ms": 25.0,
    }  # fmt: skip
    if is_detailed:
        figures |= {
            "input_lens": [100] * len(ttfts), "output_lens": [3] * len(ttfts), "ttfts": ttfts,
            "itls": [[0.02, 0.03]] * len(ttfts), "generated_texts": ["my secret"] * len(ttfts),
            "errors": [""] * len(ttfts),
        }  # fmt: skip
    return figures | more


def read(path: Path, text: str) -> list[Trace]:
    path.write_text(text)
    units, _ = find_units(path)
    assert [unit.parser for unit in units] == ["vllm_bench"]
    return parsers()["vllm_bench"].parse(units[0])


def test_requests_of_a_detailed_result(tmp_path: Path) -> None:
    (trace,) = read(tmp_path / "r.json", json.dumps(result([0.5, 0.25, 0.125])))

    table = trace[t.REQUESTS]
    assert table.ints("first_token_ns").tolist() == [500_000_000, 250_000_000, 125_000_000]
    assert table.ints("execution_ns").tolist() == [550_000_000, 300_000_000, 175_000_000]
    assert table.ints("input_tokens").tolist() == [100] * 3
    assert table.ints("output_tokens").tolist() == [3] * 3
    assert table.ints("start_ns").tolist() == [NULL] * 3
    assert [check.holds for check in trace.meta.checks] == [True, True]
    assert "secret" not in repr(trace.meta) + repr([list(x.text("name")) for x in (trace[t.SERVICE_FIGURES],)])


def test_the_report_opens_with_what_clients_saw(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps(result([0.5, 0.25, 0.125])), "utf-8")
    made = pipeline.report([path], out=tmp_path / "out", formats=("md",), lang="en", force=True)
    # A request ends two tokens, 50 ms, after its first: 550, 300 and 175 ms.
    figures = "4.25 requests/s · TTFT p50 250 ms, p99 495 ms · request p50 300 ms, p99 545 ms"
    text = made.paths["md"].read_text("utf-8")
    assert text.startswith(f"# Service under load: {figures}.\n")
    assert f"Service under load: {figures}." in made.summary and "no step time" not in text


def test_what_the_analyzer_says_of_it(tmp_path: Path) -> None:
    traces = read(tmp_path / "r.json", json.dumps(result([0.5, 0.25, 0.125])))

    outcome = serving.run_on_run(Run(traces=tuple(traces)))

    metrics = {metric.name: metric.value for metric in outcome.metrics}
    assert metrics["ttft_p50_ns"] == 250_000_000
    assert metrics["tpot_p50_ns"] == pytest.approx(25_000_000)
    assert metrics["request_throughput"] == 4.25
    assert metrics["output_token_throughput"] == 100.5
    assert not outcome.findings
    figures = next(table for table in outcome.tables if table.name == "serving-figures")
    assert dict(zip(figures.column("name"), figures.column("value"), strict=True))["p99_ttft_ms"] == 900.0


def test_figures_alone_and_what_would_give_the_requests(tmp_path: Path) -> None:
    (trace,) = read(tmp_path / "r.json", json.dumps(result([0.5], is_detailed=False)))

    assert not trace.has(t.REQUESTS)
    names = trace[t.SERVICE_FIGURES].text("name").to_list()
    assert "request_throughput" in names and not {"model_id", "date", "request_goodput"} & set(names)
    assert any("--save-detailed" in item.remedy for item in trace.meta.missing)


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    made = result([0.5, 0.0, 0.25], errors=["", "", "Traceback: /home/somebody"])

    (trace,) = read(tmp_path / "r.json", json.dumps(made))

    assert trace[t.REQUESTS].text("request").to_list() == ["0"]
    assert [(d.reason, d.count) for d in trace.meta.sources[0].dropped] == [("request that failed", 2)]
    assert "somebody" not in repr(trace.meta)


def test_printed_figures_that_the_requests_contradict(tmp_path: Path) -> None:
    (trace,) = read(tmp_path / "r.json", json.dumps(result([0.5, 0.25, 0.125], median_ttft_ms=260.0)))
    assert [check.holds for check in trace.meta.checks] == [False, True]


def test_results_that_were_appended_and_numbers_that_are_none(tmp_path: Path) -> None:
    lines = [json.dumps(result([0.5], std_ttft_ms=float("nan"))), '{"request_throughput": ', json.dumps(result([0.25]))]

    traces = read(tmp_path / "r.jsonl", "\n".join(lines))

    assert [trace.meta.label for trace in traces] == ["r.jsonl#1", "r.jsonl#2"]
    assert [trace[t.REQUESTS].ints("first_token_ns").tolist() for trace in traces] == [[500_000_000], [250_000_000]]
    assert traces[0].meta.sources[0].dropped[0].count == 1
    assert "std_ttft_ms" not in traces[0][t.SERVICE_FIGURES].text("name").to_list()


@pytest.mark.parametrize("gap", [1e300, -1.0])
def test_times_beyond_reason_are_unknown(tmp_path: Path, gap: float) -> None:
    (trace,) = read(tmp_path / "r.json", json.dumps(result([0.5], itls=[[gap, gap]])))
    assert trace[t.REQUESTS].ints("execution_ns").tolist() == [NULL]


def test_a_cut_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no result of a benchmark"):
        read(tmp_path / "r.json", json.dumps(result([0.5]))[:-20])


@given(st.lists(st.one_of(st.floats(allow_nan=False, min_value=-1, max_value=1e12), st.none()), max_size=20))
def test_any_times(ttfts: list[float | None]) -> None:
    table, dropped = vllm_bench._requests(vllm_bench._Result(ttfts=ttfts, itls=[[0.5]]))
    good = [value for value in ttfts if value is not None and 5e-10 < value < 1e9]
    assert len(table) == len(good)
    assert sum(drop.count for drop in dropped) == len(ttfts) - len(good)
    assert (table.ints("first_token_ns") > 0).all()


def figures_of(trace: Trace) -> dict[str | None, float]:
    table = trace[t.SERVICE_FIGURES]
    return dict(zip(table.text("name"), table.floats("value").tolist(), strict=True))


def test_results_of_throughput_and_latency(tmp_path: Path) -> None:
    throughput = {
        "elapsed_time": 20.5, "num_requests": 100, "total_num_tokens": 41000, "requests_per_second": 4.878,
        "tokens_per_second": 2000.0,
    }  # fmt: skip
    latency = {
        "avg_latency": 1.25, "latencies": [1.0, 1.5], "percentiles": {"10": 1.05, "50": 1.25, "99": 1.495, "x": 3.0},
    }  # fmt: skip

    (one,) = read(tmp_path / "throughput.json", json.dumps(throughput, indent=4))
    (other,) = read(tmp_path / "latency.json", json.dumps(latency))

    assert figures_of(one) == throughput
    assert figures_of(other) == {"avg_latency": 1.25, "p10_latency": 1.05, "p50_latency": 1.25, "p99_latency": 1.495}
    outcome = serving.run_on_run(Run(traces=(one,)))
    assert outcome.status == "done", outcome.reason
    (table,) = [table for table in outcome.tables if table.name == "serving-figures"]
    assert "tokens_per_second" in table.data[1]
