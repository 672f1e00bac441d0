"""Tables as Parquet and CSV: exact cells, unknown as null, hostile texts, what may be overwritten."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from ascend_perf import pipeline
from ascend_perf.errors import InputError
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL, Kind, Table, Text
from ascend_perf.model.tables import ALL, KERNELS
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.exports._tables import MAX_CELL, is_ours
from ascend_perf.reports.exports.csv import guarded, quoted, write_csv
from ascend_perf.reports.exports.parquet import write_parquet
from tests._support import Said
from tests.conftest import build_table
from tests.reports._hostile import HOSTILE, hostile_trace

Command = Callable[..., Said]
Writer = Callable[[Request, Path], tuple[str, ...]]


def small() -> Trace:
    rows: list[dict[str, object]] = [
        {"start_ns": 1_700_000_000_000_000_001, "dur_ns": 5, "name": "a,\"b\"", "aic_mac_ratio": 0.1, "MyMetric": 1.5},
        {"start_ns": None, "dur_ns": 7, "name": "", "aic_mac_ratio": None, "MyMetric": None},
    ]
    series: list[dict[str, object]] = [{"step": 1, "loss_nonfinite": True}, {"step": 2, "loss_nonfinite": False}]
    tables = {"kernels": build_table("kernels", rows), "training_series": build_table("training_series", series),
              "copies": Table.empty(ALL["copies"])}  # fmt: skip
    return Trace(tables, Meta(label="small", rank=3, data_origin="simulated"))


def rows_of(path: Path) -> list[list[str]]:
    """Rows of a CSV file as Python's own reader sees them."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, strict=True))


def written(write: Writer, folder: Path, *traces: Trace, **more: Any) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    return write(Request(run=Run(traces=traces), **more), folder)


def test_parquet_holds_exact_cells_and_nulls(tmp_path: Path) -> None:
    said = written(write_parquet, tmp_path, small())

    table = pq.read_table(tmp_path / "rank3" / "kernels.parquet")
    assert said == ()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")) == [
        "rank3/kernels.parquet", "rank3/training_series.parquet", "tables.json",
    ]  # fmt: skip
    assert table.column_names == [*(column.name for column in KERNELS.columns), "MyMetric"]
    shown = {name: table[name].to_pylist() for name in ("start_ns", "dur_ns", "name", "aic_mac_ratio", "MyMetric")}
    assert shown == {
        "start_ns": [1_700_000_000_000_000_001, None], "dur_ns": [5, 7], "name": ['a,"b"', ""],
        "aic_mac_ratio": [0.1, None], "MyMetric": [1.5, None],
    }  # fmt: skip
    others = set(table.column_names) - set(shown)
    assert all(table[name].null_count == 2 for name in others)
    assert table.schema.field("start_ns").type == pa.int64()
    assert table.schema.field("dur_ns").metadata == {b"unit": b"ns"}
    series = pq.read_table(tmp_path / "rank3" / "training_series.parquet")
    assert series["loss_nonfinite"].to_pylist() == [True, False]
    assert series["grad_norm_nonfinite"].to_pylist() == [None, None]  # not given: unknown, not false


def test_csv_is_written_to_the_byte(tmp_path: Path) -> None:
    written(write_csv, tmp_path, small())

    text = (tmp_path / "rank3" / "training_series.csv").read_bytes()
    names = [column.name for column in ALL["training_series"].columns]
    at = names.index("loss_nonfinite")
    assert names[0] == "step"
    lines = [b"1" + b"," * at + b"true" + b"," * (len(names) - 1 - at),
             b"2" + b"," * at + b"false" + b"," * (len(names) - 1 - at)]  # fmt: skip
    assert text == b"\r\n".join([",".join(names).encode(), *lines, b""])
    header, first, second = rows_of(tmp_path / "rank3" / "kernels.csv")
    got = [{name: row[header.index(name)] for name in ("start_ns", "dur_ns", "name", "aic_mac_ratio", "MyMetric")}
           for row in (first, second)]  # fmt: skip
    assert got == [
        {"start_ns": "1700000000000000001", "dur_ns": "5", "name": 'a,"b"', "aic_mac_ratio": "0.1", "MyMetric": "1.5"},
        {"start_ns": "", "dur_ns": "7", "name": "", "aic_mac_ratio": "", "MyMetric": ""},
    ]
    raw = (tmp_path / "rank3" / "kernels.csv").read_text("utf-8").splitlines()[2]
    assert raw.startswith(',7,"",,')  # an empty text is quoted, unknown is nothing


def test_the_description_names_every_column_with_its_unit(tmp_path: Path) -> None:
    written(write_csv, tmp_path, small(), steps=(4,))

    document = json.loads((tmp_path / "tables.json").read_text("utf-8"))
    assert (document["schema_version"], document["unknown"], document["steps"]) == (1, "empty", [4])
    assert document["traces"] == [{
        "folder": "rank3", "rank": 3, "data_origin": "simulated",
        "tables": [{"name": "kernels", "file": "rank3/kernels.csv", "rows": 2},
                   {"name": "training_series", "file": "rank3/training_series.csv", "rows": 2}],
    }]  # fmt: skip
    kernels = document["tables"]["kernels"]
    assert kernels["row"] == KERNELS.row
    assert [c["name"] for c in kernels["columns"]] == rows_of(tmp_path / "rank3" / "kernels.csv")[0]
    by_name = {c["name"]: c for c in kernels["columns"]}
    assert by_name["wait_ns"] == {
        "name": "wait_ns", "kind": "int", "unit": "ns",
        "doc": "the exporter's Wait Time: gap on the whole device before this row",
    }  # fmt: skip
    assert by_name["MyMetric"] == {"name": "MyMetric", "kind": "float", "unit": None, "doc": None}


def test_every_column_with_a_unit_has_it_in_its_name() -> None:
    ends = {"ns": "_ns", "bytes": "_bytes", "ratio": "_ratio", "bytes/s": "_bytes_per_s", "items/s": "_per_s",
            "FLOP/s": "flops_per_s", "W": "_w", "C": "_c", "Hz": "_hz"}  # fmt: skip
    for spec in ALL.values():
        for column in spec.columns:
            assert not column.unit or column.name.endswith(ends[column.unit]), (spec.name, column.name)


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_folders_are_named_by_ranks_alone(tmp_path: Path, write: Writer) -> None:
    def of(rank: int | None) -> Trace:
        return small().replace(meta=Meta(label="../../evil", rank=rank))

    written(write, tmp_path, of(0), of(0), of(12), of(None))

    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank0", "rank0-2", "rank12", "tables.json", "trace4"]
    assert "evil" not in (tmp_path / "tables.json").read_text("utf-8")


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_run_without_rows_is_said(tmp_path: Path, write: Writer) -> None:
    with pytest.raises(InputError, match="bare: no table in it has rows"):
        written(write, tmp_path, Trace({}, Meta(label="bare")))


def expected(text: str) -> str:
    """A text as the files hold it, by a rule of its own."""
    kept = "".join(
        "\ufffd" if (ord(c) < 32 and c not in "\t\n\r") or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000
        or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff" else c
        for c in text
    )  # fmt: skip
    return kept if len(kept) <= MAX_CELL else kept[:MAX_CELL] + "…"


def test_hostile_texts_in_parquet(tmp_path: Path) -> None:
    trace = hostile_trace()

    said = written(write_parquet, tmp_path, trace)

    columns = 0
    for spec in ALL.values():
        table = pq.read_table(tmp_path / "trace1" / f"{spec.name}.parquet")
        for place, column in enumerate(spec.columns):
            if column.kind is Kind.TEXT:
                columns += 1
                want = [expected(HOSTILE[(row + place) % len(HOSTILE)]) for row in range(len(HOSTILE))]
                assert table[column.name].to_pylist() == want
    assert said == (f"{columns} texts cut at {MAX_CELL} characters",)
    assert all(p.suffix in (".parquet", ".json") for p in tmp_path.rglob("*") if p.is_file())


def test_hostile_texts_in_csv(tmp_path: Path) -> None:
    trace = hostile_trace()

    written(write_csv, tmp_path, trace)

    for spec in ALL.values():
        header, *rows = rows_of(tmp_path / "trace1" / f"{spec.name}.csv")
        assert all(len(row) == len(header) for row in rows)
        for place, column in enumerate(spec.columns):
            if column.kind is Kind.TEXT:
                want = [expected(HOSTILE[(row + place) % len(HOSTILE)]) for row in range(len(HOSTILE))]
                assert [row[place] for row in rows] == [f"'{t}" if t[:1] and t[0] in "=+-@\t\r\n" else t for t in want]
    assert rows_of(tmp_path / "trace1" / "kernels.csv")[0][-1].startswith("'=counter")


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=8))
def test_python_reads_back_every_field(texts: list[str]) -> None:
    if sys.version_info < (3, 11):  # whose csv reads no NUL
        texts = [text.replace("\0", "0") for text in texts]
    line = ",".join(quoted(text) for text in texts)

    assert list(csv.reader(io.StringIO(line + "\r\n", newline=""), strict=True)) == [texts]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("=1", "'=1"), ("+a", "'+a"), ("-1", "'-1"), ("@x", "'@x"), ("\t=1", "'\t=1"), ("a=1", "a=1"), ("", ""),
     ("'=", "'=")],
)  # fmt: skip
def test_formulas_get_an_apostrophe(text: str, shown: str) -> None:
    assert guarded(text) == shown


def test_numbers_are_never_guarded(tmp_path: Path) -> None:
    row_: dict[str, object] = {"name": "k", "start_ns": -5, "dur_ns": 1, "aic_mac_ratio": -0.5}
    trace = Trace({"kernels": build_table("kernels", [row_])})

    written(write_csv, tmp_path, trace)

    header, row = rows_of(tmp_path / "trace1" / "kernels.csv")
    assert (row[header.index("start_ns")], row[header.index("aic_mac_ratio")]) == ("-5", "-0.5")


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = [{"name": f"k{i % 5}", "start_ns": i, "dur_ns": i * i} for i in range(100)]
    trace = Trace({"kernels": build_table("kernels", rows)}, Meta(rank=0))
    written(write_csv, tmp_path / "a", trace)
    monkeypatch.setattr("ascend_perf.reports.exports.csv.BLOCK_ROWS", 7)
    written(write_csv, tmp_path / "b", trace)

    assert (tmp_path / "a/rank0/kernels.csv").read_bytes() == (tmp_path / "b/rank0/kernels.csv").read_bytes()


# ---- the command ----


def test_a_folder_of_ours_is_replaced_only_by_force_and_another_never(
    command: Command, tmp_path: Path
) -> None:
    profile = tmp_path / "a.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 1, "ts": 5, "dur": 30,
              "args": {"device": 0, "stream": 1, "correlation": 9}}  # fmt: skip
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}))
    target, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("keep")

    first = command("export", profile, "--format", "csv", "-o", target)
    (target / "old.txt").write_text("from before")
    again = command("export", profile, "--format", "csv", "-o", target)
    forced = command("export", profile, "--format", "parquet", "-o", target, "--force")
    refused = command("export", profile, "--format", "csv", "-o", mine, "--force")
    piped = command("export", profile, "--format", "csv", "-o", "-")

    assert (first.code, again.code, forced.code, refused.code, piped.code) == (0, 2, 0, 2, 2)
    assert "add --force" in again.err
    assert sorted(p.name for p in target.iterdir()) == ["tables.json", "trace1"]
    assert is_ours(target)
    assert "holds other files" in refused.err
    assert [p.read_text() for p in mine.iterdir()] == ["keep"]
    assert "give a folder with -o" in piped.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "mine", "out"]


def test_a_failure_leaves_the_earlier_folder_and_nothing_else(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "a.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 1, "ts": 5, "dur": 30, "args": {"stream": 1}}
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}))
    target = tmp_path / "out"
    assert command("export", profile, "--format", "csv", "-o", target).code == 0
    before = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ascend_perf.reports.exports.csv.content", full)
    failed = command("export", profile, "--format", "csv", "-o", target, "--force")

    assert failed.code == 2
    assert "No space left on device" in failed.err
    assert {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "out"]


# ---- real profiles ----


@pytest.mark.parametrize(
    "path", ["ascend-pytorch/text/level1", "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
             "kineto/inference-mi300/sglang_Qwen3-8B_decode.json.gz"],
)  # fmt: skip
def test_real_tables_read_back_as_they_are(traces: Path, tmp_path: Path, path: str) -> None:
    run = pipeline.load(traces / path)

    written(write_parquet, tmp_path, *run.traces)

    folders = [entry["folder"] for entry in json.loads((tmp_path / "tables.json").read_text("utf-8"))["traces"]]
    for folder, trace in zip(folders, run.traces, strict=True):
        files = {p.stem for p in (tmp_path / folder).iterdir()}
        assert files == {name for name, table in trace.tables.items() if len(table)}
        for name in files:
            back, table = pq.read_table(tmp_path / folder / f"{name}.parquet"), trace.tables[name]
            assert back.num_rows == len(table)
            for column in table.names:
                kind, got = table.spec.column(column).kind, back[column]
                if kind is Kind.INT:
                    assert np.array_equal(got.fill_null(NULL).to_numpy(), table.ints(column))
                elif kind is Kind.FLOAT:
                    assert np.array_equal(got.fill_null(np.nan).to_numpy(), table.floats(column), equal_nan=True)
                elif kind is Kind.TEXT:
                    assert got.to_pylist() == Text.to_list(table.text(column))
    assert str(traces) not in (tmp_path / "tables.json").read_text("utf-8")
