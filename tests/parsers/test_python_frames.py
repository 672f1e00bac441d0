"""Calls of Python in Kineto files, trace_view.json and databases: which are kept, and under which names."""

from __future__ import annotations

import json
import shutil
import sqlite3
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ascend_perf import pipeline
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import HOST_OPS, PYTHON_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._numbers import decimal_scaled
from ascend_perf.parsers._python_frames import frame, frames


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((f"/{home}/main.py(3): f", "main.py(3): f") for home in ("home/someone", "root")),
        ("/home/someone/job/src/main.py(3): f", "src/main.py(3): f"),
        ("/Users/someone/job/main.py(3): f", "job/main.py(3): f"),
        ("C:\\Users\\someone\\job\\main.py(3): f", "job/main.py(3): f"),
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py(1): forward",
         "torch/nn/modules/linear.py(1): forward"),
        ("/usr/lib/python3.11/runpy.py(86): _run_code", "runpy.py(86): _run_code"),
        ("/data/somebody/job/main.py(3): f", "job/main.py(3): f"),
        ("<built-in method to of Tensor object at 0x7cc1559c5310>", "<built-in method to of Tensor object>"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("torch/nn/functional.py(9): linear", "torch/nn/functional.py(9): linear"),
    ],
)  # fmt: skip
def test_frames_name_no_folder_of_a_user(name: str, said: str) -> None:
    assert frame(name) == said


def test_a_stack_has_one_frame_per_line() -> None:
    assert frames("/home/a/x.py(1): f; y.py(2): g;\r\n") == "x.py(1): f\ny.py(2): g"
    assert frames(" ;\n") is None


def rows(trace: Trace) -> list[tuple[str | None, int, int, int]]:
    calls = trace[PYTHON_CALLS]
    return list(
        zip(
            calls.text("name").to_list(), calls.ints("start_ns").tolist(), calls.ints("dur_ns").tolist(),
            calls.ints("thread").tolist(), strict=True,
        )
    )  # fmt: skip


def test_calls_of_a_kineto_file_from_ten_microseconds_of_threads_that_work(tmp_path: Path) -> None:
    def python(name: str, ts: float | str, dur: float | str, tid: object = 7) -> dict[str, object]:
        return {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}

    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": 0, "dur": 1, "args": {}}
    late = {**op, "tid": 8}
    events = [
        op, late, python("/home/me/a.py(1): main", 100.5, 50), python("nn.Module: Net_0", 101, 10),
        python("short", 102, 9.999), python("one", 103, 3), python("nothing", 104, 0),
        python("text", 105.25, 12.5, "8"),
        python("monitor", 0, 900, tid=9), python("negative", 1, -20), python("", 110, 11),
    ]  # fmt: skip
    (tmp_path / "a.pt.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))

    (trace,) = pipeline.load(tmp_path / "a.pt.trace.json").traces

    assert rows(trace) == [
        ("a.py(1): main", 100_500, 50_000, 7), ("nn.Module: Net_0", 101_000, 10_000, 7), ("text", 105_250, 12_500, 8),
        ("unnamed", 110_000, 11_000, 7),
    ]  # fmt: skip


def test_stacks_of_operators_in_kineto_files_name_no_user(tmp_path: Path) -> None:
    stack = "/home/usr03/env/lib/python3.7/site-packages/torch/optim/sgd.py(5): step;/home/usr03/train.py(9): main"
    op = {"ph": "X", "cat": "Operator", "name": "aten::add_", "pid": 1, "tid": 7, "ts": 0, "dur": 1,
          "args": {"Call stack": stack}}  # fmt: skip
    (tmp_path / "a.pt.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [op]}))

    (trace,) = pipeline.load(tmp_path / "a.pt.trace.json").traces

    assert trace[HOST_OPS].text("stack").to_list() == ["torch/optim/sgd.py(5): step\ntrain.py(9): main"]


def _of_json(path: Path) -> list[tuple[str, int, int, int]]:
    """Calls of a trace_view.json by plain arithmetic."""
    found = []
    for event in json.loads(path.read_text("utf-8"), parse_float=Decimal):
        if event.get("cat") == "python_function" and Decimal(event["dur"]) >= 10:
            name = frame(event["name"])
            ns = (Decimal(event["dur"]) * 1000).quantize(Decimal(1), ROUND_HALF_UP)
            found.append((name, int(Decimal(event["ts"]) * 1000), int(ns), event["tid"]))
    return found


def test_calls_of_a_trace_view(traces: Path) -> None:
    folder = traces / "ascend-pytorch/text/level1/rank0_ascend_pt"

    (trace,) = pipeline.load(folder).traces

    expected = _of_json(folder / "ASCEND_PROFILER_OUTPUT/trace_view.json")
    assert len(expected) == 394
    assert sorted(rows(trace)) == sorted(expected)
    (source,) = [s for s in trace.meta.sources if s.path.endswith("trace_view.json")]
    short = {d.reason: d.count for d in source.dropped}
    assert short["Python call under 10 us (its time counts with its caller)"] == 1282 - 394


def test_calls_of_a_database(traces: Path, tmp_path: Path) -> None:
    folder = traces / "ascend-pytorch/db/level1/rank0_ascend_pt"
    (database,) = (folder / "ASCEND_PROFILER_OUTPUT").glob("ascend_pytorch_profiler_*.db")
    copy = tmp_path / "copy.db"
    shutil.copy(database, copy)
    connection = sqlite3.connect(copy)
    query = (
        "select value, cast(startNs as integer), cast(endNs as integer), globalTid from PYTORCH_API join STRING_IDS "
        "on PYTORCH_API.name = STRING_IDS.id where type = 50003"
    )
    every = connection.execute(query).fetchall()
    connection.close()

    (trace,) = pipeline.load(folder).traces

    expected = [(frame(n), s, e - s, tid & 0xFFFFFFFF) for n, s, e, tid in every if e - s >= 10_000]
    assert expected
    assert sorted(rows(trace)) == sorted(expected)


# At most 15 digits, so that the result fits whatever the decimals are.
stamps = st.integers(1, 15).flatmap(
    lambda digits: st.lists(st.integers(10 ** (digits - 1), 10**digits - 1), min_size=1, max_size=6)
)


@settings(max_examples=300, deadline=None)
@given(
    numbers=stamps, decimals=st.sampled_from([0, 1, 3]), quoted=st.booleans(),
    odd=st.sampled_from(["", "-1", "x", "1e3"]),
)  # fmt: skip
def test_numbers_of_one_layout_are_read_as_decimal_arithmetic_reads_them(
    numbers: list[int], decimals: int, quoted: bool, odd: str
) -> None:
    texts = [f"{Decimal(n).scaleb(-decimals):f}" for n in numbers] + ([odd] if odd else [])
    cells = np.array([(f'"{t}"' if quoted else t).encode() for t in texts], np.bytes_)

    read = decimal_scaled(cells, 3).tolist()

    assert read == [NULL if t == "x" else int(Decimal(t) * 1000) for t in texts]
