"""Rows of tokens: corpora, windows, packing, order, batches; and what is said about damaged files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.errors import InputError, MachineError
from ascend_perf.workloads._instructions import (
    InstructionRows,
    Piece,
    alpaca,
    first_fit,
    read_instructions,
    synthetic_instructions,
    tokenised,
)
from ascend_perf.workloads._text_data import (
    IGNORED,
    Batches,
    ByteTokenizer,
    Corpus,
    CorpusRows,
    json_lines,
    read_corpus,
    synthetic_corpus,
    text_ends,
    tokenizer_of,
    walk,
)

END = 256


def corpus(values: list[int], end: int | None = 0) -> Corpus:
    return Corpus(tokens=np.array(values), end=end, name="corpus")


def rows_of(values: list[int], *, tokens: int, packed: bool, vocabulary: int = 100) -> CorpusRows:
    return CorpusRows(corpus(values), tokens=tokens, vocabulary=vocabulary, packed=packed, seed=0)


# Order


@given(length=st.integers(1, 400), seed=st.integers(0, 2**32), turn=st.integers(0, 3))
def test_a_walk_visits_every_place_once_in_each_pass(length: int, seed: int, turn: int) -> None:
    assert sorted(walk(turn * length + place, length, seed) for place in range(length)) == list(range(length))


def test_passes_differ_in_their_order() -> None:
    passes = [[walk(turn * 100 + place, 100, 0) for place in range(100)] for turn in range(3)]

    assert passes[0] != passes[1] != passes[2]
    assert passes[0] != list(range(100))


# Rows of a corpus


def test_a_joined_row_predicts_the_next_token_over_ends_of_documents() -> None:
    row = rows_of([5, 6, 0, 7, 8], tokens=4, packed=False).row(0)

    assert row.tokens_T.tolist() == [5, 6, 0, 7]
    assert row.targets_T.tolist() == [6, 0, 7, 8]
    assert row.positions_T.tolist() == [0, 1, 2, 3]


def test_a_packed_row_restarts_at_each_document_and_predicts_none_across_an_end() -> None:
    row = rows_of([5, 6, 0, 7, 0, 0, 8, 9, 4], tokens=8, packed=True).row(0)

    assert row.tokens_T.tolist() == [5, 6, 0, 7, 0, 0, 8, 9]
    assert row.targets_T.tolist() == [6, 0, IGNORED, 0, IGNORED, IGNORED, 9, 4]
    assert row.segments_T.tolist() == [0, 0, 0, 1, 1, 2, 3, 3]
    assert row.positions_T.tolist() == [0, 1, 2, 0, 1, 0, 0, 1]


@given(st.lists(st.integers(0, 3), min_size=5, max_size=60), st.integers(1, 4))
def test_packed_rows_agree_with_a_walk_over_the_tokens(values: list[int], tokens: int) -> None:
    rows = rows_of(values, tokens=tokens, packed=True)
    for number in range(len(rows)):
        row = rows.row(number)
        segment = position = 0
        for place, token in enumerate(row.tokens_T.tolist()):
            assert (row.segments_T[place], row.positions_T[place]) == (segment, position)
            assert (row.targets_T[place] == IGNORED) == (token == 0)
            position += 1
            if token == 0:
                segment, position = segment + 1, 0


def test_windows_lie_one_behind_the_other_and_each_is_seen_once_a_pass() -> None:
    rows = rows_of(list(range(1, 14)), tokens=3, packed=False)

    assert len(rows) == 4  # 13 tokens: windows at 0, 3, 6 and 9, the last with 12 as its last target
    assert sorted(rows.row(number).tokens_T[0] for number in range(4)) == [1, 4, 7, 10]


def test_too_little_data_and_unknown_ends_are_refused() -> None:
    with pytest.raises(InputError, match="has 3 tokens, fewer than one row of 3"):
        rows_of([1, 2, 3], tokens=3, packed=False)
    with pytest.raises(InputError, match="packed rows need to know where documents end"):
        CorpusRows(corpus([1, 2, 3, 4], None), tokens=2, vocabulary=9, packed=True, seed=0)


def test_ends_of_texts_count_over_all_rows() -> None:
    assert text_ends([np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), np.array([0, 1, 2, 2])]) == (2, 4, 8, 9, 10, 12)


# Corpora


def test_the_synthetic_corpus_is_a_markov_chain_of_documents() -> None:
    made = synthetic_corpus(64, 3, tokens=1 << 16, mean_document=50)
    tokens = np.asarray(made.tokens)
    ends = np.flatnonzero(tokens == 0)

    assert len(tokens) == 1 << 16
    assert tokens.min() == 0 and tokens.max() == 63
    assert np.diff(ends).mean() == pytest.approx(50, rel=0.1)
    # The likeliest successor of a token follows it in 0.9 x 0.5 of all cases, more where two of four are the same.
    pairs = np.zeros((64, 64))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    common = pairs[pairs.sum(1) > 500]
    assert (common.max(1) / common.sum(1)).min() > 0.4
    assert np.array_equal(synthetic_corpus(64, 3, tokens=999).tokens, synthetic_corpus(64, 3, tokens=999).tokens)
    assert not np.array_equal(synthetic_corpus(64, 3, tokens=999).tokens, synthetic_corpus(64, 4, tokens=999).tokens)


def test_text_files_become_bytes_with_an_end_after_each_document(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("hé", "utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "xy"}\n\n{"text": "z", "n": 1}\n', "utf-8")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")

    whole = read_corpus(tmp_path, vocabulary=300)

    assert whole.tokens.tolist() == [120, 121, END, 122, END, 104, 0xC3, 0xA9, END]
    assert read_corpus(tmp_path / "b.txt", vocabulary=300).tokens.tolist() == [104, 0xC3, 0xA9, END]


@pytest.mark.parametrize(("kind", "vocabulary"), [("<u2", 1000), ("<u4", 70_000)])
def test_a_file_of_tokens_is_read_as_its_vocabulary_says(tmp_path: Path, kind: str, vocabulary: int) -> None:
    np.arange(100, dtype=kind).tofile(tmp_path / "t.bin")

    made = read_corpus(tmp_path / "t.bin", vocabulary=vocabulary, end_of_text=9)

    assert np.asarray(made.tokens).tolist() == list(range(100))
    assert made.end == 9


def test_a_token_beyond_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    np.array([1, 2, 700, 3, 4], "<u2").tofile(tmp_path / "t.bin")
    rows = CorpusRows(read_corpus(tmp_path / "t.bin", vocabulary=512), tokens=4, vocabulary=512, packed=False, seed=0)

    with pytest.raises(InputError, match=r"t\.bin has token 700, beyond the vocabulary of 512"):
        rows.row(0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "a.jsonl line 2: no field 'text' that is text"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl line 2 is not JSON: Expecting value"),
        ("a.jsonl", b"[1]\n", "a.jsonl line 1 is not a JSON object but list"),
        ("a.jsonl", b'{"text": "\xff"}\n', "a.jsonl line 1 is not JSON: UnicodeDecodeError"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1 is not JSON"),
        ("a.jsonl", b"\n \n", "a.jsonl holds no text"),
        ("a.bin", b"", "a.bin has 0 bytes, not a whole number of uint16 tokens"),
        ("a.bin", b"abc", "a.bin has 3 bytes, not a whole number of uint16 tokens"),
        ("a.txt", b"", "a.txt holds no text"),
    ],
)
def test_damaged_text_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InputError) as caught:
        read_corpus(tmp_path / name, vocabulary=300)

    assert message in caught.value.what


def test_missing_data_and_a_small_vocabulary_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data at nothing"):
        read_corpus(tmp_path / "nothing", vocabulary=300)
    with pytest.raises(InputError, match="no text in"):
        read_corpus(tmp_path, vocabulary=300)
    with pytest.raises(InputError, match="vocabulary of 256 is too small for bytes and their special tokens: 258"):
        tokenizer_of(None, 256)


def test_a_tokenizer_file_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(MachineError) as caught:
        tokenizer_of(str(tmp_path / "tokenizer.json"), 300)

    assert "pip install tokenizers" in caught.value.hint


def test_a_tokenizer_file_is_used(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"</s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))

    tokenizer = tokenizer_of(str(tmp_path / "tokenizer.json"), 10)

    assert (tokenizer.size, tokenizer.end) == (4, 0)
    assert tokenizer.encode("b a c").tolist() == [2, 1, 3]


@given(st.text(max_size=50))
def test_bytes_are_read_back(text: str) -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.decode([*tokenizer.encode(text).tolist(), tokenizer.end, tokenizer.pad]) == text


def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83d"}\n', "utf-8")

    tokens = read_corpus(tmp_path / "a.jsonl", vocabulary=300).tokens.tolist()

    assert ByteTokenizer().decode(tokens) == "a\ufffd"


def test_lines_are_numbered_from_one_and_empty_ones_count(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}')

    assert list(json_lines(tmp_path / "a.jsonl")) == [(1, {"a": 1}), (3, {"a": 2})]


# Instructions


def text_of(pieces: list[Piece]) -> tuple[str, str]:
    return "".join(piece.text for piece in pieces), "|".join(piece.text for piece in pieces if piece.is_answer)


def test_records_become_prompts_and_answers(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Hi", "input": None, "output": "Ho"},
        {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"},
                      {"role": "user", "content": "c?"}, {"role": "assistant", "content": "d"}]},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")

    records = [text_of(pieces) for pieces in read_instructions(tmp_path)]

    assert records[0] == ("### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n3", "3")
    assert records[1] == ("### Instruction:\nHi\n\n### Response:\nHo", "Ho")
    assert records[2][1] == "b|d"
    assert records[2][0].startswith("### user:\na?\n\n### assistant:\nb")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "a.jsonl line 2 is not JSON"),
        ("3", "a.jsonl line 2 is not a JSON object but int"),
        ('{"instruction": "x"}', "a.jsonl line 2: no field 'output' that is text (fields: instruction)"),
        ('{"output": "x", "a": "y"}', "a.jsonl line 2: no field 'instruction' that is text (fields: a, output)"),
        ('{"instruction": "x", "output": "y", "input": 3}', "a.jsonl line 2: field 'input' is not text"),
        ('{"messages": "x"}', "a.jsonl line 2: messages is not a list"),
        ('{"messages": []}', "a.jsonl line 2: messages is not a list"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "a.jsonl line 2: no message by the role assistant"),
        ('{"messages": [{"role": "assistant", "content": 1}]}', "a.jsonl line 2: message 1 needs role"),
        ('{"messages": [3, {"role": "assistant", "content": "x"}]}', "a.jsonl line 2: message 1 needs role"),
    ],
)
def test_a_damaged_record_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"instruction": "x", "output": "y"}\n' + line, "utf-8")

    with pytest.raises(InputError) as caught:
        read_instructions(tmp_path / "a.jsonl")

    assert message in caught.value.what


def test_no_records_at_all_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no instructions in"):
        read_instructions(tmp_path)
    with pytest.raises(InputError, match="no data at nothing"):
        read_instructions(tmp_path / "nothing")


def records_of(*texts: tuple[str, str]) -> list[Any]:
    return [tokenised([Piece(text=prompt, is_answer=False), Piece(text=answer, is_answer=True)], ByteTokenizer())
            for prompt, answer in texts]  # fmt: skip


def test_a_padded_row_by_hand() -> None:
    rows = InstructionRows(records_of(("ab", "c")), tokens=5, rows="padded", pad=257, seed=0)
    row = rows.row(0)

    # a b c end: the model reads a b c and shall say c after b and the end after c.
    assert row.tokens_T.tolist() == [97, 98, 99, 257, 257]
    assert row.targets_T.tolist() == [IGNORED, 99, END, IGNORED, IGNORED]
    assert row.positions_T.tolist() == [0, 1, 2, 0, 1]
    assert row.segments_T.tolist() == [0, 0, 0, 1, 1]
    assert rows.padding_ratio == pytest.approx(0.4)


def test_a_packed_row_by_hand() -> None:
    rows = InstructionRows(records_of(("a", "b"), ("a", "b")), tokens=5, rows="packed", pad=257, seed=0)
    row = rows.row(0)

    assert len(rows) == 1
    assert row.tokens_T.tolist() == [97, 98, 97, 98, 257]
    assert row.targets_T.tolist() == [98, END, 98, END, IGNORED]
    assert row.positions_T.tolist() == [0, 1, 0, 1, 0]
    assert row.segments_T.tolist() == [0, 0, 1, 1, 2]


def test_long_records_are_cut_and_those_without_an_answer_left_out() -> None:
    rows = InstructionRows(
        records_of(("abc", "defg"), ("abcdefgh", "x"), ("a", "b")), tokens=5, rows="padded", pad=257, seed=0
    )

    assert (rows.shortened, rows.left_out, len(rows)) == (1, 1, 2)
    cut = next(row for row in map(rows.row, range(2)) if row.tokens_T[1] == 98 and row.tokens_T[2] == 99)
    assert cut.targets_T.tolist() == [IGNORED, IGNORED, 100, 101, 102]
    with pytest.raises(InputError, match="none of 1 records has an answer within 5 tokens"):
        InstructionRows(records_of(("abcdefgh", "x")), tokens=5, rows="padded", pad=257, seed=0)


@given(st.lists(st.integers(1, 20), max_size=120), st.integers(0, 99))
def test_first_fit_places_each_length_once_and_never_too_many(lengths: list[int], seed: int) -> None:
    rows = first_fit(lengths, 20, seed)

    assert sorted(place for row in rows for place in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[place] for place in row) <= 20 for row in rows)
    # No two rows are both at most half full: the second would have gone into the first (64 rows back).
    if len(rows) <= 64:
        assert sum(sum(lengths[place] for place in row) <= 10 for row in rows) <= 1


def test_made_instructions_have_the_answer_that_follows_from_the_text() -> None:
    for pieces in synthetic_instructions(200, 1):
        text, answer = text_of(pieces)
        prompt = text.removesuffix(answer)
        word = prompt.partition("### Input:\n")[2].partition("\n")[0]
        if "larger" in prompt:
            numbers = [int(part) for part in prompt.partition("larger, ")[2].partition("?")[0].split(" or ")]
            assert answer == str(max(numbers))
        else:
            assert answer in {word, word.upper(), word[::-1], " ".join(word)}
    assert synthetic_instructions(5, 1) == synthetic_instructions(5, 1) != synthetic_instructions(5, 2)
    assert alpaca("i", "", "o")[0].text == "### Instruction:\ni\n\n### Response:\n"


# Batches


@pytest.mark.torch
def test_the_rows_of_a_step_do_not_depend_on_how_they_are_spread() -> None:
    pytest.importorskip("torch")
    rows = rows_of(list(range(1, 90)), tokens=2, packed=False)

    def step(batch: int, accumulate: int, ranks: int) -> list[int]:
        parts = [Batches(rows, batch=batch, accumulate=accumulate, data_rank=rank, data_ranks=ranks)
                 for rank in range(ranks)]  # fmt: skip
        made = [part.batch_at(3, micro) for part in parts for micro in range(accumulate)]
        return sorted(int(first) for batch in made for first in batch.tokens_BT[:, 0])

    assert len(step(8, 1, 1)) == 8
    assert step(8, 1, 1) == step(2, 4, 1) == step(2, 2, 2) == step(1, 2, 4)


@pytest.mark.torch
def test_a_batch_has_segments_only_when_asked() -> None:
    pytest.importorskip("torch")
    rows = rows_of([5, 6, 0, 7, 8, 9, 3, 2, 1], tokens=4, packed=True)

    plain = Batches(rows, batch=2, accumulate=1).batch_at(0, 0).to("cpu")
    packed = Batches(rows, batch=2, accumulate=1, segments=True).batch_at(0, 0).to("cpu")

    assert plain.positions_BT is plain.segments_BT is plain.ends is None
    assert packed.segments_BT is not None and packed.positions_BT is not None
    ends = {(3, 4, 8), (4, 7, 8)}  # by which of the two windows comes first
    assert packed.ends in ends
