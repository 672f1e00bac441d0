"""`report.json`: the promised keys, unknown as null, right totals, both languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.table import Table
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Device, Meta, Source, Trace
from ascend_perf.reports.json_report import document, write_json
from ascend_perf.reports.payload import Payload, build
from tests.reports import _sample_tables, _samples

PROMISED = {
    "": {"schema_version", "data_origin", "sources", "ranks", "metrics", "outcomes", "findings"},
    "ranks": {"rank", "device", "kernels", "communication", "steps"},
    "metrics": {"name", "value", "unit", "better"},
    "outcomes": {"analyzer", "status", "reason"},
    "findings": {
        "code", "analyzer", "ranks", "affected_ranks", "severity", "share_ratio", "bound_speedup", "title", "evidence",
        "remedies", "source",
    },
}  # fmt: skip
STEP_KEYS = {
    "step_id", "span_us", "computing_us", "communication_us", "overlapped_us", "communication_not_overlapped_us",
    "free_us", "bubble_us", "preparing_us",
}  # fmt: skip


def written(tmp_path: Path, lang: Any = "en") -> dict[str, Any]:
    path = tmp_path / "report.json"
    write_json(_samples.payload(lang), path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return loaded


def made(payload: Payload) -> Any:
    """The document as a reader of the file gets it."""
    return json.loads(json.dumps(document(payload)))


def test_every_promised_key_is_there(tmp_path: Path) -> None:
    report = written(tmp_path)

    assert report.keys() >= PROMISED[""]
    for part in ("ranks", "metrics", "outcomes", "findings"):
        assert report[part]
        for item in report[part]:
            assert item.keys() >= PROMISED[part]
    for rank in report["ranks"]:
        assert rank["device"].keys() >= {"vendor", "name", "spec"}
        assert rank["kernels"].keys() >= {"count", "total_us"}
        assert all(step.keys() >= STEP_KEYS for step in rank["steps"])
    assert report["schema_version"] == 1


def test_totals_are_sums_of_the_durations(tmp_path: Path) -> None:
    rank = written(tmp_path)["ranks"][0]

    assert rank["kernels"] == {"count": 2, "total_us": 8873.737}  # 8 873 000 ns + 737 ns
    assert rank["communication"] == {"count": 1, "total_us": 105991.876}


def test_steps_come_from_the_table_of_their_rank(tmp_path: Path) -> None:
    first, second = written(tmp_path)["ranks"]

    assert first["steps"][0]["step_id"] == 50
    assert first["steps"][0]["span_us"] == 136581.009
    assert second["steps"][0]["span_us"] == pytest.approx(136576.34)  # 4.669 us less
    assert first["steps"][0]["bubble_us"] == 0.0
    assert first["steps"][0]["copy_not_overlapped_us"] is None


def test_a_figure_that_is_not_finite_is_null(tmp_path: Path) -> None:
    metrics = {m["name"]: m["value"] for m in written(tmp_path)["metrics"]}

    assert metrics["odd"] is None
    assert metrics["throughput"] == 234.3


def test_texts_are_in_the_chosen_language(tmp_path: Path) -> None:
    english, chinese = written(tmp_path), written(tmp_path, "zh")

    assert english["findings"][0]["title"].startswith("98.1 ms of the step")
    assert chinese["findings"][0]["title"].startswith("单步中有 98.1 ms")
    assert chinese["outcomes"][7]["reason"] == "数据中没有：没有看到预处理"
    assert chinese["findings"][0]["remedies"][1]["code"] == "export CPU_AFFINITY_CONF=1"


def test_findings_keep_their_order_their_bound_and_their_evidence(tmp_path: Path) -> None:
    first = written(tmp_path)["findings"][0]

    assert (first["code"], first["severity"]) == ("N-05", "critical")
    assert (first["ranks"], first["affected_ranks"]) == ([5], [0, 1])
    assert first["bound_speedup"] == pytest.approx(1 / 0.28)
    assert first["evidence"][0] == {
        "name": "waiting for rank 5 (union per peer)",
        "value": 94_600_000,
        "unit": "ns",
        "where": "trace_view.json, Notify_Wait of hcom_allReduce__586_0_1, plane 0",
        "start_ns": _sample_tables.START_NS + 20_000_000,
    }


def test_a_rank_without_kernels_and_without_steps_is_unknown_and_not_zero() -> None:
    (rank,) = made(build(Run(traces=(Trace(meta=Meta(rank=3)),)), [], [], lang="en"))["ranks"]

    assert rank["kernels"] == {"count": None, "total_us": None}
    assert rank["communication"] == {"count": None, "total_us": None}
    (step,) = rank["steps"]
    assert set(step.values()) == {None}


def test_a_reader_that_looked_and_found_no_kernels_counts_zero() -> None:
    trace = Trace({"kernels": Table.empty(KERNELS)}, Meta(rank=0))

    (rank,) = made(build(Run(traces=(trace,)), [], [], lang="en"))["ranks"]

    assert rank["kernels"] == {"count": 0, "total_us": 0.0}


def test_kernels_without_any_communication_mean_zero_communication(make_trace: Any) -> None:
    trace = make_trace(kernels=[{"start_ns": 0, "dur_ns": 1500, "name": "a"}])

    payload = build(Run(traces=(trace,)), [], [], lang="en")

    assert payload.ranks[0].communication.count == 0
    assert payload.ranks[0].kernels.total_us == 1.5


def test_steps_of_two_traces_without_a_rank_are_not_mixed_up() -> None:
    outcomes = [
        Outcome(analyzer="step-breakdown", status="done", trace_index=i, tables=(_sample_tables.steps_table(i),))
        for i in (1, 0)
    ]

    payload = build(Run(traces=(Trace(), Trace())), outcomes, [], lang="en")

    expected = [_sample_tables.steps_table(i).column("computing_us")[0] for i in (0, 1)]
    assert [rank.steps[0].computing_us for rank in payload.ranks] == expected


def test_one_trace_without_a_rank_has_its_steps() -> None:
    outcome = Outcome(analyzer="step-breakdown", status="done", trace_index=0, tables=(_sample_tables.steps_table(0),))

    payload = build(Run(traces=(Trace(),)), [outcome], [], lang="en")

    assert payload.ranks[0].steps[0].span_us == 136581.009


def test_broken_text_is_written_as_valid_utf8(tmp_path: Path) -> None:
    meta = Meta(
        rank=0,
        device=Device(name="bad \udc80 name\x00"),
        sources=(Source(path="/home/someone/in/x.json", format="json"),),
    )
    path = tmp_path / "report.json"

    write_json(build(Run(traces=(Trace(meta=meta),)), [], [], lang="en"), path)

    report = json.loads(path.read_text("utf-8"))
    assert report["ranks"][0]["device"]["name"] == "bad \ufffd name\ufffd"
    assert report["sources"][0]["path"] == "in/x.json"  # no folder of somebody's machine


def test_loading_the_writers_imports_neither_pandas_nor_plotly_nor_jinja2() -> None:
    import subprocess
    import sys

    code = (
        "import sys, ascend_perf.reports as r, ascend_perf.reports.figures\n"
        "print(sorted({'pandas', 'plotly', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_simulated_data_says_so() -> None:
    traces = (Trace(meta=Meta(rank=0)), Trace(meta=Meta(rank=1, data_origin="simulated")))

    assert made(build(Run(traces=traces), [], [], lang="en"))["data_origin"] == "simulated"
    assert made(build(Run(traces=traces[:1]), [], [], lang="en"))["data_origin"] == "measured"


def test_numpy_numbers_do_not_reach_the_document() -> None:
    payload = _samples.payload()

    def walk(node: object) -> None:
        assert not isinstance(node, np.generic)
        if isinstance(node, dict):
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document(payload))
