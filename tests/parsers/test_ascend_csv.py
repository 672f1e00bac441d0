"""Cells of the exporters' CSV files: quoting, damage, exact numbers."""

from __future__ import annotations

import csv
import gzip
import io
import math
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL
from ascend_perf.parsers import _ascend_csv
from ascend_perf.parsers._ascend_csv import MISSING_WORDS, header, read_csv
from ascend_perf.parsers._numbers import decimal_scaled

ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path, newline: str, bom: bytes) -> None:
    text = newline.join(["Name,Start Time(us),Size", 'a,1736412474730135.222\t,"""1,2;3"""', "b,N/A,", ""])

    file = read_csv(write(tmp_path, bom + text.encode()), numbers=("Start Time(us)",))

    assert file.names == ("Name", "Start Time(us)", "Size")
    assert file.text("Name").to_list() == ["a", "b"]
    assert file.scaled(3, "Start Time(us)").tolist() == [1736412474730135222, NULL]
    assert file.text("Size").to_list() == ['"1,2;3"', None]


def test_rows_with_more_cells_are_refused_and_shorter_ones_are_filled(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "a,b,c\n1,2,3\n4,5,6,7\n8,9\n"))

    assert file.scaled(0, "a").tolist() == [1, 8]
    assert file.scaled(0, "c").tolist() == [3, NULL]
    assert [(d.reason, d.count) for d in file.dropped] == [("row with more cells than the header", 1)]


def test_a_file_that_ends_within_a_row_loses_that_row_and_says_so(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "a,b,c\n1,2,3\n8,53.7"))  # of 53.742, say: half a number is no number

    assert file.scaled(0, "a").tolist() == [1]
    assert [(d.reason, d.count) for d in file.dropped] == [("last row is cut", 1)]


def test_fields_of_several_lines_stay_one_field(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, 'Name,Call Stack\r\nop,"a.py(1): f;\r\nb.py(2): g"\r\nother,\r\n'))

    assert file.text("Call Stack").to_list() == ["a.py(1): f;\r\nb.py(2): g", None]


def test_a_quote_that_never_closes_costs_only_the_rows_behind_it(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, 'a,b\n1,x\n2,"y\n3,z\n'))

    assert file.scaled(0, "a").tolist()[:1] == [1]


def test_invalid_utf8_is_replaced_quietly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = read_csv(write(tmp_path, b"a,b\n\xff\xfe,1\n2,\xff,3\n"))

    assert file.text("a").to_list() == ["\ufffd\ufffd"]
    assert file.ragged == 1
    assert capfd.readouterr().err == ""


def test_a_column_named_twice_is_found_twice() -> None:
    assert header(b"Step,Reduce Start(us),Reduce Start(us)\n") == ("Step", "Reduce Start(us)", "Reduce Start(us).1")


def test_a_file_without_a_header_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.csv"):
        read_csv(write(tmp_path, "one\n"))


def test_a_header_alone_is_no_rows(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "a,b\n"), numbers=("a",))

    assert (file.rows, file.scaled(3, "a").tolist(), file.text("b").to_list()) == (0, [], [])


def test_absent_columns_are_unknown(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "a,b\n1,2\n"))

    assert file.scaled(3, "c").tolist() == [NULL]
    assert file.text("c").to_list() == [None]
    assert math.isnan(file.floats("c")[0])


@ONE_FILE
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
            st.integers(-(10**17), 10**17),
        ),
        max_size=8,
    ),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_what_a_csv_writer_writes_is_read_back(tmp_path: Path, rows: list[tuple[str, int]], newline: str) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=newline, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["word", "number"])
    writer.writerows(rows)

    file = read_csv(write(tmp_path, out.getvalue()), numbers=("number",))

    assert file.ragged == 0
    assert file.scaled(0, "number").tolist() == [number for _, number in rows]
    # White space at the ends is stripped, and the words for "unknown" are unknown.
    assert file.text("word").to_list() == [None if w.strip() in MISSING_WORDS else w.strip() for w, _ in rows]


@given(value=st.integers(-(2**62), 2**62), tail=st.sampled_from(["", "\t", " "]), quote=st.booleans())
def test_decimal_text_is_read_exactly(value: int, tail: str, quote: bool) -> None:
    sign = "-" if value < 0 else ""
    text = f"{sign}{abs(value) // 1000}.{abs(value) % 1000:03d}{tail}"
    cell = (f'"{text}"' if quote else text).encode()

    assert decimal_scaled(np.array([cell]), 3).tolist() == [value]


SIGNED = st.tuples(
    st.sampled_from(["", "-"]), st.text("0123456789", max_size=21), st.sampled_from(["", "."]),
    st.text("0123456789", max_size=21), st.sampled_from(["", "", "e0", "E+3", "e-7", "e12", "e400", "e-400"]),
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    cells=st.lists(st.tuples(SIGNED, st.sampled_from(["", "\t", " ", '"'])), min_size=1, max_size=6),
    decimals=st.sampled_from([0, 3]),
)
def test_columns_are_read_as_decimal_arithmetic_reads_them(cells: list[tuple[str, str]], decimals: int) -> None:
    def exact(text: str) -> int:
        try:
            number = Decimal(text)
        except InvalidOperation:
            return NULL
        if abs(number.adjusted()) > 30:
            return NULL if number and number.adjusted() > 0 else 0
        scaled = int(number.scaleb(decimals).to_integral_value(rounding=ROUND_HALF_UP))
        return scaled if abs(scaled) < 2**63 else NULL

    written = np.array([((end if end == '"' else "") + text + end).encode() for text, end in cells], np.bytes_)

    assert decimal_scaled(written, decimals).tolist() == [exact(text) for text, _ in cells]


@pytest.mark.parametrize("cell", [b"1\x002", b"12\x00.5", b"1\x00\x00-", b"\x001"])
def test_a_zero_byte_inside_of_a_number_makes_it_none(cell: bytes) -> None:
    assert decimal_scaled(np.array([cell, b"17.5"]), 3).tolist() == [NULL, 17_500]


@ONE_FILE
@given(
    rows=st.lists(st.lists(st.text(' ab1,;"\n\té', max_size=6), min_size=1, max_size=5), max_size=8),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_both_ways_of_splitting_find_the_same_cells(tmp_path: Path, rows: list[list[str]], newline: str) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=newline)
    writer.writerows([["a", "b", "c"], *rows])
    path = write(tmp_path, out.getvalue())

    quick = read_csv(path, numbers=("b",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ascend_csv, "_split", _refuse)
        slow = read_csv(path, numbers=("b",))

    assert (quick.rows, quick.ragged, quick.torn) == (slow.rows, slow.ragged, slow.torn)
    assert quick.rows == sum(len(row) <= 3 for row in rows)
    for name in ("a", "b", "c"):
        assert quick.cells(name).tolist() == slow.cells(name).tolist()


def _refuse(*_: object) -> None:
    raise _ascend_csv._Unsplittable("for the test")


@given(value=st.integers(2**63, 10**30))
def test_numbers_beyond_int64_are_unknown(value: int) -> None:
    assert decimal_scaled(np.array([str(value).encode()]), 0).tolist() == [NULL]


@given(text=st.text(alphabet="0123456789.-+eE \tNA/x", max_size=12))
def test_any_text_gives_a_number_or_unknown(text: str) -> None:
    (value,) = decimal_scaled(np.array([text.encode() or b" "]), 3).tolist()

    assert isinstance(value, int)


def test_a_compressed_table_reads_like_the_plain_one(tmp_path: Path) -> None:
    text = "Name,Duration(us)\n" + "".join(f"k{n},{n}.5\n" for n in range(50))
    plain = read_csv(write(tmp_path, text), numbers=("Duration(us)",))
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(text.encode()))

    read = read_csv(packed, numbers=("Duration(us)",))

    assert read.rows == plain.rows == 50
    assert read.text("Name").to_list() == plain.text("Name").to_list()
    assert read.scaled(3, "Duration(us)").tolist() == [n * 1000 + 500 for n in range(50)]
