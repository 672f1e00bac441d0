"""Operators on the AI CPU, why they are there and what replaces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers import _ai_cpu as ai_cpu
from ascend_perf.analyzers.operators import operators
from ascend_perf.model.finding import ResultTable
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.reports.phrases import phrase

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"), versions={"cann": "7.0.RC1"})


def _table(trace: Trace) -> ResultTable:
    return next(table for table in operators.run_on_trace(trace).tables if table.name == "ai-cpu")


@pytest.mark.parametrize(
    ("op_type", "dtypes", "version", "cause"),
    [
        ("Mul", "COMPLEX128;COMPLEX128", (8, 0), ai_cpu.COMPLEX),
        ("Mul", "DOUBLE;DOUBLE", (7, 0), ai_cpu.FLOAT64_OLD),
        ("Mul", "DOUBLE;DOUBLE", (8, 3), ai_cpu.FLOAT64),
        ("Mul", "DT_DOUBLE", None, ai_cpu.FLOAT64),
        ("IndexPutV2", "FLOAT;INT64", (8, 0), ai_cpu.BOOLEAN),
        ("NonZero", "BOOL", None, ai_cpu.BOOLEAN),
        ("ArgMin", "FLOAT", (6, 3), ai_cpu.ARGMIN),
        ("ArgMin", "FLOAT", (7, 0), ai_cpu.OTHER),
        ("Mul", "INT16;INT16", None, ai_cpu.INT16),
        ("TensorEqual", "INT64;INT64", None, ai_cpu.INT64),
        # An index of int64 is usual: it is no cause elsewhere.
        ("ScatterElements", "FLOAT;INT64;FLOAT", None, ai_cpu.OTHER),
        ("Cast", "", None, ai_cpu.NO_DTYPES),
    ],
)
def test_causes_follow_from_operator_dtypes_and_version(
    op_type: str, dtypes: str, version: tuple[int, int] | None, cause: str
) -> None:
    assert ai_cpu.cause_of(op_type, dtypes.split(";"), version) == cause


@pytest.mark.parametrize("cause", ai_cpu.CAUSES)
def test_every_cause_is_said_in_chinese(cause: str) -> None:
    said = phrase(cause, "cause")

    assert said.en == cause
    assert said.zh != cause and "；" not in said.zh


@pytest.mark.parametrize(
    ("text", "version"), [("8.0.RC3", (8, 0)), ("7.0.RC1", (7, 0)), ("8.3.0", (8, 3)), ("", None), (None, None)]
)
def test_versions_of_cann(text: str | None, version: tuple[int, int] | None) -> None:
    assert ai_cpu.cann_version(text) == version


def test_operators_on_the_ai_cpu_by_type_and_dtype(make_trace: Make) -> None:
    def kernel(start: int, dur: int, kind: str, dtypes: str, core: str = "AICPU") -> dict[str, object]:
        return {
            "start_ns": start, "dur_ns": dur, "name": kind, "op_type": kind, "core": core, "input_dtypes": dtypes,
            "input_shapes": f"{dur}", "stream": 1,
        }  # fmt: skip

    trace = make_trace(
        meta=NPU, steps=[{"step_id": n, "start_ns": n * 1_000_000, "dur_ns": 1_000_000} for n in range(2)],
        kernels=[
            kernel(0, 100_000, "Mul", "DOUBLE;DOUBLE"), kernel(1_000_000, 60_000, "Mul", "DOUBLE;DOUBLE"),
            kernel(200_000, 30_000, "NonZero", "BOOL"),
            kernel(50_000, 100_000, "Add", "FLOAT;FLOAT", core="AIV"),
        ],
    )  # fmt: skip

    table = _table(trace)

    assert table.column("op_type") == ("Mul", "NonZero")
    assert table.column("count") == (2, 1)
    assert table.column("total_ns") == (160_000, 30_000)
    assert table.column("input_shapes") == ("100000", "30000")
    # Half of the first product runs beside the sum: (50 + 60) / 2 and 30 / 2 us per step.
    assert table.column("alone_ns") == (55_000.0, 15_000.0)
    assert table.column("cause") == (ai_cpu.FLOAT64_OLD, ai_cpu.BOOLEAN)
    found = next(f for f in operators.run_on_trace(trace).findings if f.code == "C-07")
    (claim,) = found.claims
    assert claim.whole_ns == 2_000_000
    assert claim.gain_ns == pytest.approx(2 * (55_000 + 15_000))


def test_casts_of_a_real_capture(traces: Path) -> None:
    path = traces / "kernel-details" / "kernel_details_2023_arithmetic_gpt.csv"

    table = _table(pipeline.load(path).traces[0])

    # Reference (traces/README): 7 AI CPU kernels, 785.18 us.
    assert table.column("count") == (7,)
    assert table.column("total_ns") == (785_180,)
