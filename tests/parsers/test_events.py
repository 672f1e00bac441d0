"""The event stream: any block size gives the same events; damage costs only what is damaged."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL
from ascend_perf.parsers import _events
from ascend_perf.parsers._events import EventFile
from ascend_perf.parsers._numbers import decimal_ns, decimal_scaled, json_ints

NASTY = st.sampled_from(
    ["a", "}", "{", "[", "]", '"', "\\", ",", '},{"ph":"X"', "}]}", "é", "\u2028", "\x00", "][", '"}],[{"', " "]
)
NAMES = st.lists(NASTY, max_size=6).map("".join)
ARGS = st.recursive(
    st.none() | st.integers(-5, 5) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ph", "a", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("XMsfiC"), "name": NAMES, "ts": st.integers(0, 10**15)},
        optional={"args": ARGS, "cat": NAMES, "dur": st.floats(0, 1e6, allow_nan=False), "id": st.integers(0, 9)},
    ),
    max_size=12,
)


def names_of(path: Path, block_bytes: int) -> tuple[list[str], EventFile]:
    file = EventFile(path, block_bytes=block_bytes)
    return [event.name for events in file.read() for event in events], file


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=EVENTS,
    block=st.integers(1, 400),
    indent=st.sampled_from([None, 1]),
    form=st.sampled_from(["array", "object"]),
)
def test_events_do_not_depend_on_blocks_layout_or_content(
    tmp_path: Path, events: list[dict[str, object]], block: int, indent: int | None, form: str
) -> None:
    document = events if form == "array" else {
        "schemaVersion": 1, "traceEvents": events, "deviceProperties": [{"id": 0}, {"id": 1}], "tail": "x",
    }  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document, indent=indent, ensure_ascii=False), "utf-8")
    names, file = names_of(path, block)
    assert names == [e["name"] for e in events]
    assert file.problems == [] and file.dropped == {}
    if form == "object":
        assert sorted(file.facts()) == ["deviceProperties", "schemaVersion", "tail"]


def some_events(count: int) -> list[dict[str, object]]:
    return [
        {"ph": "X", "name": f"op{n}", "ts": n, "dur": 1, "args": {"list": [{"a": 1}, {"b": n}]}} for n in range(count)
    ]


@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("damage", "kept", "said"),
    [
        (lambda text: text[:-1], 40, "closing bracket is missing"),
        (lambda text: text[:-1] + ",", 40, "closing bracket is missing"),
        (lambda text: text[:-1] + ",]", 40, None),
        (lambda text: text[:-20], 39, "1 event"),
        (lambda text: text + text, 80, "glued"),
        (lambda text: text + ",\n" + text, 80, "glued"),
        (lambda text: "\ufeff" + text, 40, None),
        (lambda text: text + "\0\0oops", 40, "4 bytes of something else"),
    ],
)
def test_damage_costs_only_what_is_damaged(tmp_path: Path, damage, kept: int, said: str | None, block: int) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace_view.json"
    path.write_text(damage(json.dumps(some_events(40))), "utf-8")
    names, file = names_of(path, block)
    assert len(names) == kept
    assert names[:39] == [f"op{n}" for n in range(39)]
    assert (file.problems == []) if said is None else any(said in p for p in file.problems)


def test_a_cut_gzip_keeps_its_start(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    packed = gzip.compress(json.dumps({"traceEvents": some_events(5000)}).encode(), mtime=0)
    path.write_bytes(packed[: len(packed) // 2])
    names, file = names_of(path, 10_000)
    assert 1000 < len(names) < 5000
    assert any("ends too early" in p for p in file.problems)


def test_invalid_utf8_is_replaced_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'[{"ph":"X","name":"a\xff\xfe","ts":1,"dur":1},{"ph":"X","name":"b","ts":2,"dur":1}]')
    names, file = names_of(path, 1 << 20)
    assert names == ["a\ufffd\ufffd", "b"]
    assert file.problems == ["invalid UTF-8 was replaced"]


@pytest.mark.parametrize("block", [64, 1 << 20])
@pytest.mark.parametrize("word", ["NaN", "-Infinity", "Infinity"])
def test_no_numbers_are_unknown_and_cost_no_event(tmp_path: Path, word: str, block: int) -> None:
    path = tmp_path / "t.json"
    args = f'"args":{{"occupancy":{word},"text":"a, NaN, b: Infinity"}}'
    events = f'{{"ph":"X","name":"k:NaN,","ts":1,"dur":{word},{args}}},{{"ph":"X","name":"b","ts":2,"dur":1,{args}}}'
    path.write_text(f'{{"scale": {word}, "rank": 3, "traceEvents":[{events}]}}')
    file = EventFile(path, block_bytes=block)
    read = [event for events in file.read() for event in events]
    assert [event.name for event in read] == ["k:NaN,", "b"]
    assert decimal_ns([event.dur for event in read]).tolist() == [NULL, 1000]
    assert msgspec.json.decode(read[1].args) == {"occupancy": None, "text": "a, NaN, b: Infinity"}
    assert bytes(file.facts()["rank"]) == b"3"
    assert file.dropped == {} and any("no numbers" in p for p in file.problems)


@pytest.mark.parametrize("block", [64, 1 << 20])
@pytest.mark.parametrize(
    ("damage", "kept", "said"),
    [
        (lambda text: "\ufeff" + text, 40, None),
        (lambda text: text + "\n\0\0", 40, None),
        (lambda text: text + "\0\0garbage", 40, "7 bytes of something else"),
        (lambda text: text + "}", 40, "1 bytes of something else"),
        (lambda text: text + text, 80, "several traces were glued"),
        (lambda text: text + "\n" + text + text, 120, "several traces were glued"),
    ],
)
def test_what_follows_an_object_is_read_or_said(  # type: ignore[no-untyped-def]
    tmp_path: Path, damage, kept: int, said: str | None, block: int
) -> None:
    path = tmp_path / "t.json"
    text = json.dumps({"schemaVersion": 1, "traceEvents": some_events(40), "rank": 3, "deep": {"a": [{"b": "]}"}]}})
    path.write_text(damage(text), "utf-8")
    names, file = names_of(path, block)
    assert len(names) == kept
    assert bytes(file.facts()["rank"]) == b"3"
    assert (file.problems == []) if said is None else any(said in p for p in file.problems)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(EVENTS.filter(len), min_size=2, max_size=5),
    block=st.integers(1, 400),
    form=st.sampled_from(["array", "object"]),
    between=st.sampled_from(["", "\n", ", ", "\n,\n"]),
)
def test_traces_glued_together_are_read_as_they_are_one_by_one(
    tmp_path: Path, documents: list[list[dict[str, object]]], block: int, form: str, between: str
) -> None:
    texts = [
        json.dumps(events if form == "array" else {"rank": n, "traceEvents": events, "deviceProperties": [{"id": n}]})
        for n, events in enumerate(documents)
    ]
    path = tmp_path / "t.json"
    path.write_text(between.join(texts), "utf-8")

    names, file = names_of(path, block)

    assert names == [event["name"] for events in documents for event in events]
    assert file.dropped == {}
    if form == "object":
        assert json.loads(bytes(file.facts()["rank"])) == 0
        assert json.loads(bytes(file.facts()["deviceProperties"])) == [{"id": 0}]


@pytest.mark.parametrize("form", ["array", "object"])
def test_many_traces_glued_together_are_decoded_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    events = [{**event, "args": {"Input Dims": [[64, 128], [128, 128]]}} for event in some_events(20)]
    text = json.dumps(events if form == "array" else {"schemaVersion": 1, "traceEvents": events, "deviceName": "x"})
    path = tmp_path / "t.json"
    path.write_text("\n".join([text] * 1500))  # as many as Python has no room for calls inside each other
    looked_at = 0
    decode = _events._Stream._decode

    def counted(stream: _events._Stream, part: bytes) -> list[_events.Event] | None:
        nonlocal looked_at
        looked_at += len(part)
        return decode(stream, part)

    monkeypatch.setattr(_events._Stream, "_decode", counted)
    names, file = names_of(path, 1 << 20)

    assert len(names) == 20 * 1500 and not file.dropped
    assert looked_at < 8 * path.stat().st_size


def test_an_event_nested_without_end_is_damage(tmp_path: Path) -> None:
    events = [json.dumps({"ph": "X", "name": f"e{n}", "args": {"n": n}}) for n in range(40)]
    events.insert(20, '{"ph": "X", "name": "deep", "args": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}")
    path = tmp_path / "t.json"
    path.write_text("[" + ",".join(events) + "]")
    names, file = names_of(path, 1 << 20)
    # The last event, whose stretch holds the closing bracket, goes with what is damaged near the end.
    assert names == [f"e{n}" for n in range(39)]
    assert file.dropped == {"event cut or damaged": 2}


def test_lists_of_lists_of_objects_in_args_are_no_border_of_arrays(tmp_path: Path) -> None:
    events: list[dict[str, object]] = [{"name": f"e{n}", "args": {"a": [[{"b": 1}], [{"c": 2}]]}} for n in range(5)]
    path = tmp_path / "t.json"
    one = json.dumps(events)
    for text, names in ((one, 5), (one * 2, 10), (json.dumps({"traceEvents": events}), 5)):
        path.write_text(text)
        found, file = names_of(path, 1 << 20)
        assert (len(found), file.dropped) == (names, {})


@pytest.mark.parametrize("block", [64, 1 << 20])
@pytest.mark.parametrize("bad", ['{"ph":"X","name":"a" "b"},', "null,", '{"ph":},{"name":"x",}, '])
def test_damage_inside_costs_only_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, block: int
) -> None:
    monkeypatch.setattr(_events, "SALVAGE_BYTES", 500)
    text = json.dumps({"traceEvents": some_events(400), "rank": 3})
    middle = text.index('{"ph"', len(text) // 2)
    path = tmp_path / "t.json"
    path.write_text(text[:middle] + bad + text[middle:])
    names, file = names_of(path, block)
    assert len(set(names)) >= 397  # events beside the damage go with it where no border parts them
    assert names == sorted(names, key=lambda name: int(name[2:]))
    assert bytes(file.facts()["rank"]) == b"3"
    assert 1 <= sum(file.dropped.values()) <= 8 and any("damaged" in p for p in file.problems)


def test_problems_do_not_tell_where_the_file_lies(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(some_events(100)).encode(), mtime=0)[:-20])
    _, file = names_of(path, 1 << 20)
    assert file.problems and not any(str(tmp_path) in p for p in file.problems)


def test_odd_types_are_taken_as_text(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph":"X","name":null,"ts":1},{"ph":"X","name":12,"cat":null,"ts":"2"}]')
    assert names_of(path, 1 << 20)[0] == ["", "12"]


@pytest.mark.parametrize("content", ['{"a": 1}', '"text"', "nothing", "{}"])
def test_json_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(InputError, match="holds no trace events"):
        names_of(path, 1 << 20)


def test_an_empty_array_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[]")
    assert names_of(path, 1 << 20)[0] == []


@given(
    st.lists(st.decimals(-(10**15), 10**15, places=6, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
)
def test_decimals_become_exact_nanoseconds(values: list[Decimal]) -> None:
    texts = [msgspec.Raw(format(v, "f").encode()) for v in values]
    expected = [
        int(v.copy_abs().scaleb(3).to_integral_value(ROUND_HALF_UP)) * (-1 if v.is_signed() else 1) for v in values
    ]
    assert decimal_ns(texts).tolist() == expected


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b'"1736412474730135.222\\t"', NULL),  # an escaped tab is no blank
        (b'"1736412474730135.222"', 1736412474730135222),
        (b"1419116104994.671", 1419116104994671),
        (b" 12 ", 12000),
        (b"55.1610625", 55161),
        (b"0.0005", 1),
        (b"1.5e3", 1500000),
        (b"1.69512E+15", 1695120000000000000),
        (b"-0.25", -250),
        (b"9223372036854775807", NULL),  # ns would leave int64
        (b"123456789012345678901234567890", NULL),
        (b"1e999", NULL),
        (b"null", NULL),
        (b"true", NULL),
        (b"NaN", NULL),
        (b'""', NULL),
        (b"", NULL),
        (b"1.2.3", NULL),
        (b"1-2", NULL),
        (b"12 34", NULL),
    ],
)
def test_time_text(text: bytes, ns: int) -> None:
    assert decimal_ns([msgspec.Raw(text), msgspec.Raw(b"1")]).tolist() == [ns, 1000]


def test_ids_are_exact_integers() -> None:
    raws = [msgspec.Raw(b) for b in (b"1736412474730135222", b'"4006882869110636543"', b'"stream 7"', b"7.0")]
    assert json_ints(raws).tolist() == [1736412474730135222, 4006882869110636543, NULL, 7]


def test_no_rows() -> None:
    assert len(decimal_scaled(np.array([], dtype="S1"), 3)) == 0


@pytest.mark.parametrize(
    ("place", "item"),
    [(0, "null"), (3, "null"), (6, "null"), (6, "null,null"), (3, '"x"'), (3, "5"), (3, '"x", null')],
)
@pytest.mark.parametrize("block", [1, 50, 4096])
def test_what_is_no_event_between_events_costs_no_event(tmp_path: Path, place: int, item: str, block: int) -> None:
    items = [json.dumps({"ph": "X", "name": f"k{i}", "ts": i, "dur": 1}) for i in range(6)]
    items.insert(place, item)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + ", ".join(items) + "]}")

    names, file = names_of(path, block)

    assert names == [f"k{i}" for i in range(6)]
    assert file.dropped == {"event cut or damaged": item.count(",") + 1}
    assert "damaged inside" in file.problems[0]
