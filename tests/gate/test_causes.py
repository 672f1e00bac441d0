"""What explains a regression: planted slowdowns in traces, and the node that is named first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.cli._causes import BETWEEN, explanations, growing_nodes
from ascend_perf.gate.decide import decide
from ascend_perf.gate.inputs import Side
from ascend_perf.gate.outcome import Node
from ascend_perf.gate.policy import Policy
from tests.gate._results import benchmark, launches, side

LAYERS = 4
Calls = list[tuple[str, str, float, float]]
"""Category, name, start within the step, and duration, in us."""


def healthy() -> Calls:
    """A data range, then layers: each a linear operator with a product inside and a fused norm, with gaps."""
    calls: Calls = [("user_annotation", "data::batch", 0.0, 500.0)]
    for layer in range(LAYERS):
        at = 1000.0 + 2000.0 * layer
        calls += [
            ("cpu_op", "aten::linear", at, 1000.0), ("cpu_op", "aten::mm", at + 100.0, 800.0),
            ("cpu_op", "npu::npu_rms_norm", at + 1200.0, 200.0),
        ]  # fmt: skip
    return calls


def slow_data() -> Calls:
    """A sleep of 3 ms in the data path: everything after it moves."""
    return [("user_annotation", "data::batch", 0.0, 3500.0)] + [
        (kind, name, start + 3000.0, dur) for kind, name, start, dur in healthy()[1:]
    ]


def more_products() -> Calls:
    """A second product of 700 us in each linear operator."""
    return [call for kind, name, start, dur in healthy() for call in (
        [(kind, name, start, dur + 700.0), ("cpu_op", "aten::addmm", start + 920.0, 700.0)] if name == "aten::linear"
        else [(kind, name, start + (700.0 if name == "npu::npu_rms_norm" else 0.0), dur)]
    )]  # fmt: skip


def lost_fusion() -> Calls:
    """The fused norm becomes operators of 250 and 260 us."""
    return [call for kind, name, start, dur in healthy() for call in (
        [("cpu_op", "aten::pow", start, 250.0), ("cpu_op", "aten::mul", start + 260.0, 260.0)]
        if name == "npu::npu_rms_norm" else [(kind, name, start, dur)]
    )]  # fmt: skip


def gap() -> Calls:
    """2 ms in which nothing that was recorded happens."""
    return [(kind, name, start + (2000.0 if start >= 1000 else 0.0), dur) for kind, name, start, dur in healthy()]


def write_trace(folder: Path, calls: Calls, steps: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    length = max(start + dur for _, _, start, dur in calls) + 1000.0
    events: list[dict[str, object]] = []
    for step in range(steps):
        origin = 1000.0 + step * length
        rows = [("user_annotation", f"ProfilerStep#{step}", 0.0, length - 1.0), *calls]
        events += [
            {"ph": "X", "cat": cat, "name": name, "ts": origin + start, "dur": dur, "pid": 1, "tid": 1,
             "args": {"External id": len(events) + place}}
            for place, (cat, name, start, dur) in enumerate(rows)
        ]  # fmt: skip
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), "utf-8")
    return folder


def nodes(tmp_path: Path, base: Calls, head: Calls) -> tuple[Node, ...]:
    traces = [pipeline.load(write_trace(tmp_path / name, calls), jobs=1).traces[0]
              for name, calls in (("base", base), ("head", head))]  # fmt: skip
    return growing_nodes(traces[0], traces[1])


@pytest.mark.parametrize(("plant", "name", "base_us", "head_us", "calls"), [
    (slow_data, "data::batch", 500, 3500, (1, 1)),
    (more_products, "aten::linear > aten::addmm", 0, 4 * 700, (0, 4)),
    (lost_fusion, "aten::mul", 0, 4 * 260, (0, 4)),
])  # fmt: skip
def test_the_planted_call_is_named_first(
    tmp_path: Path, plant: Callable[[], Calls], name: str, base_us: float, head_us: float, calls: tuple[int, int]
) -> None:
    found = nodes(tmp_path, healthy(), plant())
    assert (found[0].name, found[0].base_ns, found[0].head_ns) == (name, base_us * 1000, head_us * 1000)
    assert (found[0].base_count, found[0].head_count) == calls
    assert all(one.delta_ns > 0 for one in found)


def test_both_parts_of_a_lost_fusion_are_named(tmp_path: Path) -> None:
    assert {one.name for one in nodes(tmp_path, healthy(), lost_fusion())[:2]} == {"aten::mul", "aten::pow"}


def test_time_outside_of_calls_is_a_node(tmp_path: Path) -> None:
    found = nodes(tmp_path, healthy(), gap())
    assert (found[0].name, found[0].delta_ns) == (BETWEEN, 2_000_000)


def test_lines_that_moved_are_the_same_frame(tmp_path: Path) -> None:
    def framed(line: int, data_us: float) -> Calls:
        return [
            ("cuda_runtime", "cudaLaunchKernel", 20.0, 10.0),  # frames are kept of threads that launch
            ("python_function", f"model.py({line}): forward", 0.0, 5000.0),
            ("python_function", f"data.py({line}): read", 100.0, data_us),
        ]  # fmt: skip

    (found,) = nodes(tmp_path, framed(10, 1000.0), framed(25, 1500.0))
    assert found.name == "model.py: forward > data.py: read"
    assert (found.base_ns, found.head_ns) == (1_000_000, 1_500_000)


def test_equal_traces_have_nothing_that_grew(tmp_path: Path) -> None:
    assert nodes(tmp_path, healthy(), healthy()) == ()


def sides(tmp_path: Path, head_calls: Calls | None) -> tuple[Side, Side]:
    """Two suites whose launches name the folders of their traces; None: the folder of head is gone."""
    write_trace(tmp_path / "base" / "runs" / "0", healthy())
    if head_calls is not None:
        write_trace(tmp_path / "head" / "runs" / "0", head_calls)
    (tmp_path / "head").mkdir(exist_ok=True)
    return (
        side(benchmark(of=launches(5, folder="runs/0")), folder=tmp_path / "base"),
        side(benchmark(of=launches(5, 1.3e7, folder="runs/0")), folder=tmp_path / "head"),
    )


def test_a_regression_is_explained_from_the_kept_runs(tmp_path: Path) -> None:
    base, head = sides(tmp_path, slow_data())
    verdict = decide(base, head, Policy(), today=date(2026, 4, 8))
    (found,) = explanations(verdict, base, head)
    assert found.missing is None and found.nodes[0].name == "data::batch"
    assert explanations(decide(base, base, Policy(), today=date(2026, 4, 8)), base, base) == ()


def test_why_there_is_no_explanation_is_said(tmp_path: Path) -> None:
    base, head = sides(tmp_path, None)
    verdict = decide(base, head, Policy(), today=date(2026, 4, 8))
    (found,) = explanations(verdict, base, head)
    assert found.missing is not None and "no run directory of head" in found.missing.en
    base, head = sides(tmp_path / "damaged", healthy())
    (tmp_path / "damaged" / "head" / "runs" / "0" / "trace.json").write_text("{", "utf-8")
    (found,) = explanations(decide(base, head, Policy(), today=date(2026, 4, 8)), base, head)
    assert found.missing is not None and "cannot be compared" in found.missing.en
    base, head = sides(tmp_path / "none", healthy())
    run = tmp_path / "none" / "head" / "runs" / "0"
    (run / "trace.json").unlink()
    (run / "log.txt").write_text("step 1", "utf-8")
    (found,) = explanations(decide(base, head, Policy(), today=date(2026, 4, 8)), base, head)
    assert found.missing is not None
    # Short, with the next step; and the comment is public.
    assert found.missing.en.startswith("head kept no trace (commands and servers leave none): profile both sides with")
    (run / "other.txt").write_text("x", "utf-8")  # what else is there is looked at, and told as the readers see it
    (found,) = explanations(decide(base, head, Policy(), today=date(2026, 4, 8)), base, head)
    assert found.missing is not None
    assert "no profile in runs/0:" in found.missing.en and str(tmp_path) not in found.missing.en + found.missing.zh
    base, head = sides(tmp_path / "same", healthy())
    (found,) = explanations(decide(base, head, Policy(), today=date(2026, 4, 8)), base, head)
    assert found.missing is not None and "no node" in found.missing.en


def test_only_some_benchmarks_are_compared(tmp_path: Path) -> None:
    base, head = side(*(benchmark(f"b{place}") for place in range(12))), side(
        *(benchmark(f"b{place}", of=launches(10, 2e7)) for place in range(12))
    )
    found = explanations(decide(base, head, Policy(), today=date(2026, 4, 8)), base, replace(head, folder=tmp_path))
    assert len(found) == 12
    assert [one.missing is not None and "only the traces of 10" in one.missing.en for one in found] == (
        [False] * 10 + [True] * 2
    )
