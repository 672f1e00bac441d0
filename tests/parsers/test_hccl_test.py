"""Output of hccl_test, written here by its line grammar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers.comm_bench import comm_bench
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import hccl_test
from ascend_perf.parsers.discover import find_units, parsers
from tests._support import Said

HEADER = "data_size(Bytes):  | aveg_time(us): | alg_bandwidth(GB/s): | check_result: "
PREFACE = "the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5"


def row(size: int, time_us: float, check: str = "success") -> str:
    """As the tool prints it: "%-17llu | %-14.2f | %-20.5f | %s"."""
    return f"{size:<17d} | {time_us:<14.2f} | {size / time_us / 1e3:<20.5f} | {check}"


ROWS = [row(8192, 20.25), row(1 << 20, 40.0), row(64 << 20, 1000.0)]


def read(path: Path, *lines: str) -> Trace:
    path.write_text("\n".join(lines) + "\n")
    units, _ = find_units(path)
    assert [unit.parser for unit in units] == ["hccl_test"]
    (trace,) = parsers()["hccl_test"].parse(units[0])
    return trace


def test_rows_with_the_command_line(tmp_path: Path) -> None:
    command = "+ mpirun -f hostfile -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp16 -o sum -p 8"

    table = read(tmp_path / "out.log", command, PREFACE, HEADER, *ROWS)[t.COMM_BENCH]

    assert table.text("op").to_list() == ["allReduce"] * 3
    assert table.ints("size_bytes").tolist() == [8192, 1 << 20, 64 << 20]
    assert table.ints("time_ns").tolist() == [20_250, 40_000, 1_000_000]
    assert table.floats("algorithm_bytes_per_s").tolist() == [0.40454e9, 26.2144e9, 67.10886e9]
    assert table.ints("ranks").tolist() == [8] * 3
    assert table.text("dtype").to_list() == ["fp16"] * 3
    assert table.ints("iterations").tolist() == [20] * 3


def test_bus_bandwidth_of_the_analyzer(tmp_path: Path) -> None:
    trace = read(tmp_path / "out.log", "mpirun -n 8 ./all_reduce_test -p 8", HEADER, row(64 << 20, 1000.0))

    outcome = comm_bench.run_on_trace(trace)

    columns = {c.name: d for c, d in zip(outcome.tables[0].columns, outcome.tables[0].data, strict=True)}
    # 2 (n - 1) / n with 8 ranks is 1.75.
    assert list(columns["bus_bytes_per_s"]) == pytest.approx([67.10886e9 * 1.75])
    assert {m.name: m.value for m in outcome.metrics} == {
        "bench_allReduce_bytes_per_s": 67.10886e9, "bench_allReduce_min_ns": 1_000_000.0,
    }  # fmt: skip


def test_prefixes_of_mpi_other_spelling_and_text_between(tmp_path: Path) -> None:
    header = HEADER.replace("aveg", "avg")
    lines = [f"[1,0]<stdout>:{line}" for line in (header, ROWS[0], "some warning of somebody", ROWS[1])]

    trace = read(tmp_path / "all_gather_test.txt", *lines, "12 | 3.0 |\x1b garbled | row | here")

    assert trace[t.COMM_BENCH].text("op").to_list() == ["allGather"] * 2
    assert trace[t.COMM_BENCH].ints("ranks").tolist() == [NULL] * 2
    assert [d.count for d in trace.meta.sources[0].dropped] == [1]


def test_failed_and_unchecked_messages(tmp_path: Path) -> None:
    lines = [row(8192, 20.0, "failed"), "local rank_id 3, check result failed, index 5", row(16384, 20.0, "NULL"),
             "Warning: The calculation result overflows, No verification is performed."]  # fmt: skip

    trace = read(tmp_path / "out.log", HEADER, *lines)

    assert trace[t.COMM_BENCH].text("check").to_list() == ["failed", None]
    assert trace.meta.warnings[:2] == (
        "1 of 2 messages came out wrong: the results of the check failed", "ranks whose check failed: 3",
    )  # fmt: skip
    assert any("overflowed" in warning for warning in trace.meta.warnings)
    assert any("which test" in warning for warning in trace.meta.warnings)
    note = comm_bench.run_on_trace(trace).tables[0].note
    assert note is not None and "wrong" in note.en


def test_several_tests_in_one_text(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "all.log", "mpirun -n 8 ./all_reduce_test -d fp32", PREFACE, HEADER, ROWS[0],
        "mpirun -n 16 ./alltoallv_test", PREFACE, HEADER, ROWS[1],
    )  # fmt: skip

    assert trace[t.COMM_BENCH].text("op").to_list() == ["allReduce", "alltoallv"]
    assert trace[t.COMM_BENCH].ints("ranks").tolist() == [8, 16]


def test_bandwidth_is_checked_against_size_and_time(tmp_path: Path) -> None:
    good = read(tmp_path / "a.log", HEADER, *ROWS)
    bad = read(tmp_path / "b.log", HEADER, ROWS[2].replace("67.10886", "70.00000"))

    assert [check.holds for check in (*good.meta.checks, *bad.meta.checks)] == [True, False]


def test_numbers_beyond_reason_are_no_rows(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "out.log", HEADER, ROWS[0], f"64 | {'9' * 25} | 1.0 | success", f"{'9' * 30} | 1 | 1 | NULL"
    )

    assert len(trace[t.COMM_BENCH]) == 1
    assert [d.count for d in trace.meta.sources[0].dropped] == [2]


@pytest.mark.parametrize("digits", ["9" * 30, "9" * 5000])
def test_counts_beyond_reason_are_unknown(tmp_path: Path, digits: str) -> None:
    lines = (f"iters is {digits}", f"local rank_id {digits}, check result failed")

    trace = read(tmp_path / "out.log", *lines, HEADER, ROWS[0])

    assert trace[t.COMM_BENCH].ints("iterations").tolist() == [NULL]
    assert not any("check failed" in warning for warning in trace.meta.warnings)


def test_a_header_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no rows"):
        read(tmp_path / "out.log", PREFACE, HEADER)


def test_the_whole_analysis_shows_the_table(tmp_path: Path, command: Callable[..., Said]) -> None:
    (tmp_path / "out.log").write_text("\n".join(["mpirun -n 8 ./all_reduce_test", HEADER, *ROWS]))
    said = command("analyze", tmp_path / "out.log", "-o", tmp_path / "report", "--format", "html")
    assert said.code == 0, said.err
    assert "Bus bandwidth" in (tmp_path / "report" / "report.html").read_text("utf-8")


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), max_size=8))
def test_any_text_around_the_rows_is_passed_over(lines: list[str]) -> None:
    around = [line.replace("|", "") for line in lines if "_test" not in line and "iters is" not in line]
    output = hccl_test._read("\n".join([HEADER, *around, ROWS[0]]), hccl_test._Test())
    assert [r[1] for r in output.rows] == [8192]
