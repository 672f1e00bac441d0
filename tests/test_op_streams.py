"""Snapshots of operators: what is written is read back, and what differs is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import op_streams
from ascend_perf.errors import InputError
from ascend_perf.op_streams import Changed, OpStream, changes, counted, is_reordered, read_op_stream, write_op_stream

MM, ADD = "aten.mm.default(f32[2,3], f32[3,4]) -> f32[2,4]", "aten.add.Tensor(f32[2,4], alpha=1) -> f32[2,4]"


def of(*stream: str) -> OpStream:
    return OpStream(
        workload="w", preset="tiny", mode="fake", facts={"torch": "2.13.0"}, settings={"layers": 2, "dtype": "bf16"},
        totals=counted(stream), stream=stream,
    )  # fmt: skip


def test_the_text_is_as_documented(tmp_path: Path) -> None:
    path = write_op_stream(tmp_path / "s.txt", of(MM, ADD, ADD, MM))

    assert path.read_text("utf-8") == (
        "ascend-perf op-stream 1\nworkload: w\npreset: tiny\nworld_size: 1\nmode: fake\ntorch: 2.13.0\n"
        'setting dtype: "bf16"\nsetting layers: 2\n\n'
        f"[totals]\n2 {ADD}\n2 {MM}\n\n[stream]\n{MM}\n2 x {ADD}\n{MM}\n"
    )
    assert read_op_stream(path) == of(MM, ADD, ADD, MM)


_operator = st.from_regex(r"[a-z]{1,3}\.[a-z]{1,2}\([a-z0-9,]{0,3}\) -> f32\[\]", fullmatch=True)
_fact = st.none() | st.booleans() | st.integers(-9, 9) | st.from_regex(r"[a-z:\" ]{0,6}", fullmatch=True)


@settings(max_examples=50, deadline=None)
@given(
    a=st.lists(_operator, max_size=12), b=st.lists(_operator, max_size=12),
    facts=st.dictionaries(st.from_regex(r"[a-z]{5}_x", fullmatch=True), _fact, max_size=3),
)  # fmt: skip
def test_any_stream_comes_back_and_changes_are_the_differences_of_the_counts(
    a: list[str], b: list[str], facts: dict[str, str | int | bool | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    one = OpStream(workload="w", mode="real", world_size=3, settings=facts, totals=counted(a), stream=tuple(a))

    assert read_op_stream(write_op_stream(tmp_path_factory.mktemp("s") / "s", one)) == one
    found = {change.operator: change.b - change.a for change in changes(of(*a), of(*b))}
    before, after = Counter(a), Counter(b)
    assert found == {name: after[name] - before[name] for name in before | after if after[name] != before[name]}


def test_the_largest_change_comes_first_and_order_alone_is_told() -> None:
    assert changes(of(MM, ADD), of(MM, MM, MM)) == (
        Changed(operator=MM, a=1, b=3), Changed(operator=ADD, a=1, b=0),
    )  # fmt: skip
    assert is_reordered(of(MM, ADD), of(ADD, MM)) is True
    assert is_reordered(of(MM, ADD), of(MM, ADD)) is False
    assert is_reordered(of(MM), OpStream(workload="w", mode="fake", totals={MM: 1})) is None


def test_a_long_stream_is_left_out_and_its_totals_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_streams, "MAX_STREAM_LINES", 2)
    path = write_op_stream(tmp_path / "s", of(MM, ADD, MM))

    seen = read_op_stream(path)

    assert "stream: omitted" in path.read_text("utf-8")
    assert (seen.stream, seen.totals, seen.count) == (None, {ADD: 1, MM: 2}, 3)
    # Equal neighbours are one line.
    assert read_op_stream(write_op_stream(path, of(MM, MM, MM, ADD))).stream == (MM, MM, MM, ADD)


def test_what_is_not_consistent_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="totals are not those"):
        write_op_stream(tmp_path / "s", OpStream(workload="w", mode="fake", totals={MM: 2}, stream=(MM,)))
    with pytest.raises(ValueError, match="line break"):
        write_op_stream(tmp_path / "s", OpStream(workload="a\nb", mode="fake"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("op-stream 1", "op-stream 2", "is of version '2', this ascend-perf reads 1"),
        ("ascend-perf op", "something op", "is no snapshot of operators"),
        ("mode: fake\n", "", "has no mode"),
        ("world_size: 1", "world_size: 0", "world_size must be a whole number of 1 or more, got '0'"),
        ("mode: fake", "mode", "line 5: expected a line `key: value`"),
        ("preset: tiny", "workload: tiny", "line 3: expected a line `key: value`, each key once"),
        ("setting layers: 2", "setting layers: {", "line 8: expected a setting with its value as JSON"),
        ("setting layers: 2", "setting layers: [1]", "line 8: expected a setting with a plain value"),
        (f"1 {ADD}", f"0 {ADD}", "line 11: expected a count and an operator"),
        (f"1 {ADD}", f"-1 {ADD}", "line 11: expected a count and an operator"),
        (f"1 {ADD}", f"1 {ADD}\n1 {ADD}", "line 12: expected a count and an operator, each once"),
        (f"1 {ADD}", f"2 {ADD}", "[totals] are not those of [stream]"),
        (f"\n{MM}\n{ADD}", f"\n{MM}\n99999999999 x {ADD}", "line 16: expected as many operators as [totals] counts"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = write_op_stream(tmp_path / "s", of(MM, ADD))
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")

    with pytest.raises(InputError) as caught:
        read_op_stream(path)

    assert message in caught.value.what


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_op_stream(tmp_path / "none")
    with pytest.raises(InputError, match="is no file"):
        read_op_stream(tmp_path)
    (tmp_path / "s").write_bytes(b"\xff")
    with pytest.raises(InputError, match="no UTF-8"):
        read_op_stream(tmp_path / "s")
    monkeypatch.setattr(op_streams, "MAX_BYTES", 0)
    with pytest.raises(InputError, match="more than 0 bytes"):
        read_op_stream(tmp_path / "s")
