"""WordPiece: texts cut as BERT cuts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.workloads._wordpiece import SPECIAL, WordPiece, words

TOKENS = [*SPECIAL, "中", "国", "un", "##aff", "##able", "runn", "##ing", ",", "!", "##!", "caf", "##e"]
TOKENIZER = WordPiece({token: number for number, token in enumerate(TOKENS)})


def cut(text: str) -> list[str]:
    return [TOKENS[number] for number in TOKENIZER.cut(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("中国", ["中", "国"]),
        ("ah中un国", ["[UNK]", "中", "un", "国"]),
        # The example of BERT's own documentation.
        ("unaffable", ["un", "##aff", "##able"]),
        ("UNaffable running!", ["un", "##aff", "##able", "runn", "##ing", "!"]),
        ("unwanted", ["[UNK]"]),
        ("Café,un", ["caf", "##e", ",", "un"]),
        ("un\u200baffable\x00", ["un", "##aff", "##able"]),  # characters without a picture fall out
        ("  \t\n", []),
        ("u" * 101, ["[UNK]"]),
    ],
)
def test_a_text_is_cut_by_the_longest_pieces(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_words_are_spaced_at_chinese_characters_and_punctuation() -> None:
    assert words("Hello,世界!a$b 3.5元") == ["hello", ",", "世", "界", "!", "a", "$", "b", "3", ".", "5", "元"]


def test_one_and_two_texts_with_their_segments() -> None:
    numbers, segments = TOKENIZER.encode("中国", None, 8)
    assert [TOKENS[n] for n in numbers] == ["[CLS]", "中", "国", "[SEP]"]
    assert segments == [0, 0, 0, 0]

    numbers, segments = TOKENIZER.encode("中国", "un", 8)
    assert [TOKENS[n] for n in numbers] == ["[CLS]", "中", "国", "[SEP]", "un", "[SEP]"]
    assert segments == [0, 0, 0, 0, 1, 1]


@given(st.text("中国un!", max_size=30), st.none() | st.text("中国!", max_size=30), st.integers(4, 20))
@settings(max_examples=200, deadline=None)
def test_no_text_is_longer_than_asked_for_and_of_a_pair_the_longer_loses(
    first: str, second: str | None, room: int
) -> None:
    numbers, segments = TOKENIZER.encode(first, second, room)

    a, b = TOKENIZER.cut(first), TOKENIZER.cut(second or "")
    whole = len(a) + len(b) + (2 if second is None else 3)
    assert len(numbers) == len(segments) == min(room, whole)
    kept_b = segments.count(1) - (second is not None)
    kept_a = segments.count(0) - 2
    if whole > room and second is not None:
        assert abs(kept_a - kept_b) <= 1 or min(kept_a, kept_b) == min(len(a), len(b))
    assert numbers[1 : 1 + kept_a] == a[:kept_a]


def test_a_vocabulary_of_texts_holds_their_commonest_characters() -> None:
    made = WordPiece.from_texts(["中中中国", "中ab", "国"], size=8)

    # 中 4 times, 国 twice, then a and ##b once each: three places are left.
    assert list(made.tokens) == [*SPECIAL, "中", "国", "##b"]
    assert made.cut("国美") == [made.tokens["国"], made.tokens["[UNK]"]]


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(TOKENS) + "\n", "utf-8")
    assert WordPiece.from_file(path).tokens == TOKENIZER.tokens

    path.write_text("[PAD]\n[UNK]\n中\n", "utf-8")
    with pytest.raises(InputError, match=r"vocab.txt is no vocabulary of BERT: it has no \[CLS\]"):
        WordPiece.from_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is no UTF-8 text"):
        WordPiece.from_file(path)
    with pytest.raises(InputError, match="the vocabulary is not readable: No such file"):
        WordPiece.from_file(tmp_path / "none.txt")
