"""Ranks read by several processes: the same traces and messages as by one, whatever happens to a process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ascend_perf as ap
from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.run import Run
from ascend_perf.model.table import Text
from ascend_perf.model.tables import ALL, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import _parallel
from ascend_perf.parsers._source import Unit
from ascend_perf.parsers.discover import find_units, parsers


def rank_file(path: Path, rank: int, kernels: int = 3) -> Path:
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": 20 * n, "dur": 5,
         "args": {"device": 0, "stream": 7}}
        for n in range(kernels)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 4}}))
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank in (2, 0, 1):
        rank_file(tmp_path / f"{rank}.json", rank, kernels=rank + 1)
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur')
    return tmp_path


def columns(trace: Trace) -> dict[str, dict[str, list[object]]]:
    return {
        name: {column: list(pair) for column, pair in table.to_pandas().astype(object).to_dict("list").items()}
        for name, table in trace.tables.items()
    }


def assert_same(one: Run, other: Run) -> None:
    assert [t.meta for t in one.traces] == [t.meta for t in other.traces]
    assert one.skipped == other.skipped
    assert repr([columns(t) for t in one.traces]) == repr([columns(t) for t in other.traces])


def test_several_processes_give_what_one_gives(job: Path) -> None:
    assert_same(ap.load(job, jobs=1), ap.load(job, jobs=3))


def test_an_error_names_the_same_file_with_the_same_hint(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}))
    said = []
    for jobs in (1, 2):
        with pytest.raises(InputError) as error:
            ap.load(tmp_path, jobs=jobs)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_an_error_keeps_its_hint_on_its_way() -> None:
    error = pickle.loads(pickle.dumps(InputError("what", hint="do this")))
    assert (type(error), error.what, error.hint) == (InputError, "what", "do this")


def test_a_trace_keeps_the_specifications_of_its_tables(job: Path) -> None:
    (trace,) = ap.load(job / "1.json").traces
    copied = pickle.loads(pickle.dumps(trace))
    assert all(table.spec is ALL[name] for name, table in copied.tables.items())
    assert copied.replace()[KERNELS].text("name").to_list() == ["k0", "k1"]


def test_columns_that_travelled_can_be_written_to() -> None:
    # Arrays arrive as buffers beside the pickle; a read-only one would fail later, far from here.
    parts: list[pickle.PickleBuffer] = []
    text = pickle.dumps(Text.of(["a", None]), protocol=5, buffer_callback=parts.append)
    copied = pickle.loads(text, buffers=[bytearray(part.raw()) for part in parts])
    copied.codes[0] = -1
    assert copied.to_list() == [None, None]
    assert np.dtype(np.int32) == copied.codes.dtype


def test_what_a_killed_worker_did_not_read_is_read_here(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ap.load(job, jobs=1)
    monkeypatch.setattr(_parallel, "_BOOT", "raise SystemExit(1)")
    assert_same(expected, ap.load(job, jobs=2))


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_a_wrong_number_of_processes_is_said(text: str, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_PERF_JOBS", text)
    with pytest.raises(UsageError):
        ap.load(job)


def workers(units: Sequence[Unit], jobs: int | None) -> int:
    return _parallel.workers_for(units, jobs)


def test_processes_are_bounded_by_units_and_by_what_pays(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units, _ = find_units(job)
    assert {unit.parser for unit in units} <= set(parsers())
    monkeypatch.setattr(_parallel, "_processors", lambda: 8)
    monkeypatch.setattr(_parallel, "_free_bytes", lambda: None)
    assert workers(units, None) == 1  # a few hundred bytes
    assert workers(units, 64) == len(units)
    assert workers(units[:1], 64) == 1
    monkeypatch.setattr(_parallel, "size_of", lambda unit: 100 << 20)
    assert workers([units[0]] * 20, None) == 8
    assert workers([units[0]] * 4, None) == 4
    # 4 x 100 MiB for each process, and half of 2 GiB to spend.
    monkeypatch.setattr(_parallel, "_free_bytes", lambda: 2 << 30)
    assert workers([units[0]] * 20, None) == 2
