"""Tables of a run as CSV: cells, columns and names that are safe on any disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.bench.results import Rows, write_tables


def test_tables_are_written_by_name_with_the_columns_of_all_rows(tmp_path: Path) -> None:
    tables: dict[str, Rows] = {
        "b": [{"size": 1, "say": 'a,"b"'}, {"size": None, "ok": True}], "a-1_x": [{"x": 0.5}], "empty": [],
    }  # fmt: skip

    assert write_tables(tmp_path, tables) == ("results/a-1_x.csv", "results/b.csv")
    assert (tmp_path / "results" / "b.csv").read_bytes() == b'size,say,ok\r\n1,"a,""b""",\r\n,,True\r\n'
    assert not (tmp_path / "results" / "empty.csv").exists()


@pytest.mark.parametrize("name", ["", "../a", "a/b", "A", ".a", "a.csv", "a" * 65, "ä", "a\n"])
def test_a_name_that_is_no_plain_word_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="lower case"):
        write_tables(tmp_path, {name: [{"x": 1}]})
    assert list(tmp_path.iterdir()) == []
