"""Texts of CLUE: what is read, what is said about lines that are not right, and texts made by seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.workloads._clue import Sample, read_texts, synthetic_texts


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    return path


def test_a_folder_of_tnews(tmp_path: Path) -> None:
    write(tmp_path / "labels.json", {"label": "109", "label_desc": "news_tech"}, {"label": "103"})
    write(
        tmp_path / "train.json",
        {"label": "103", "label_desc": "news_sports", "sentence": "国足 3:0", "keywords": ""},
        {"label": "109", "label_desc": "news_tech", "sentence": "新手机发布", "keywords": "手机"},
    )
    write(tmp_path / "dev.json", {"label": "109", "sentence": "芯片"})
    write(tmp_path / "test.json", {"id": 0, "sentence": "没有标签"})
    (tmp_path / "vocab.txt").write_text("[PAD]\n")

    found = read_texts(tmp_path)

    assert list(found.labels) == ["109", "103"]  # the order of labels.json
    assert found.train == [
        Sample(first="国足 3:0", second=None, label=1),
        Sample(first="新手机发布", second=None, label=0),
    ]
    assert found.held_out == [Sample(first="芯片", second=None, label=0)]
    assert found.vocabulary == tmp_path / "vocab.txt"


def test_pairs_with_labels_as_words_or_numbers_and_without(tmp_path: Path) -> None:
    write(
        tmp_path / "train.json",
        {"sentence1": "甲", "sentence2": "乙", "label": "neutral"},
        {"sentence1": "丙", "sentence2": "丁", "label": "entailment"},
        {"sentence1": "戊", "sentence2": "己", "label": "-"},
    )
    write(tmp_path / "dev.json", {"sentence1": "一", "sentence2": "二", "label": "neutral"})

    found = read_texts(tmp_path)

    assert (list(found.labels), found.unlabelled) == (["entailment", "neutral"], 1)
    assert found.train[0] == Sample(first="甲", second="乙", label=1)

    path = write(tmp_path / "one.json", *({"sentence": str(i), "label": i % 2} for i in range(20)))
    found = read_texts(path)
    assert [sample.first for sample in found.held_out] == ["9", "19"]
    assert (len(found.train), list(found.labels)) == (18, ["0", "1"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "a", "label": "0"', r"train.json, line 2: no JSON: Expecting ',' delimiter"),
        ('["a"]', "line 2: expected a JSON object, got list"),
        ('{"text": "a", "label": "0"}', "line 2: neither sentence nor sentence1; its keys are text, label"),
        ('{"sentence": "a"}', "line 2: no label; its keys are sentence"),
        ('{"sentence": 3, "label": "0"}', "line 2: a int as sentence"),
        ('{"sentence": "a", "label": true}', "line 2: a bool as label"),
        ('{"sentence1": "a", "label": "0"}', "line 2: no sentence2"),
        ('{"sentence": "a", "label": "neutrl"}', "line 2: unknown label 'neutrl': did you mean 'neutral'"),
        ("[" * 100_000, "line 2: no JSON"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "labels.json", {"label": "neutral"}, {"label": "0"})
    (tmp_path / "train.json").write_text('{"sentence": "a", "label": "0"}\n' + line + "\n", "utf-8")

    with pytest.raises(InputError, match=message):
        read_texts(tmp_path)


def test_a_label_that_only_dev_has_is_unknown(tmp_path: Path) -> None:
    write(tmp_path / "train.json", {"sentence": "a", "label": "0"}, {"sentence": "b", "label": "1"})
    write(tmp_path / "dev.json", {"sentence": "a", "label": "7"})

    with pytest.raises(InputError, match=r"dev.json, line 1: unknown label '7'") as caught:
        read_texts(tmp_path)
    assert caught.value.hint == "labels: 0, 1"


def test_files_that_are_not_there_empty_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        read_texts(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no train.json"):
        read_texts(tmp_path)
    (tmp_path / "train.json").write_text("\n\n")
    with pytest.raises(InputError, match=r"train.json has no labelled text"):
        read_texts(tmp_path)
    (tmp_path / "train.json").write_bytes('{"sentence": "中", "label": "0"}'.encode("gbk"))
    with pytest.raises(InputError, match=r"train.json, line 1: no UTF-8 text"):
        read_texts(tmp_path)
    (tmp_path / "train.json").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(InputError, match=r"train.json, line 1 is longer than 1 MiB"):
        read_texts(tmp_path)
    path = write(tmp_path / "few.json", {"sentence": "a", "label": 0})
    with pytest.raises(InputError, match=r"few.json has 1 texts: too few to hold one out"):
        read_texts(path)
    write(tmp_path / "labels.json", {"label": "0"}, {"label": "0"})
    with pytest.raises(InputError, match=r"labels.json names a label twice"):
        read_texts(tmp_path)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_texts_or_an_input_error(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.json"
        path.write_bytes(data)
        try:
            read_texts(path)
        except InputError:
            return


def test_synthetic_texts_tell_their_class_by_words_of_their_own() -> None:
    made = synthetic_texts(count=400, held_out=100, classes=4, characters=300, tokens=32, seed=0)
    assert made == synthetic_texts(count=400, held_out=100, classes=4, characters=300, tokens=32, seed=0)
    assert [sample.label for sample in made.train[:5]] == [0, 1, 2, 3, 0]

    def pairs(text: str) -> set[str]:
        return {text[at : at + 2] for at in range(len(text) - 1)}

    # Independent of how they are made: pairs of characters that only texts of one class have, in many of them.
    seen: dict[str, list[int]] = {}
    for sample in made.train:
        for pair in pairs(sample.first):
            seen.setdefault(pair, []).append(sample.label)
    telling = {pair: labels[0] for pair, labels in seen.items() if len(labels) > 30 and len(set(labels)) == 1}
    assert len(telling) == 16  # four words of each of four classes
    right = sum(
        {telling[pair] for pair in pairs(sample.first) if pair in telling} == {sample.label} for sample in made.held_out
    )
    assert right > 95
    lengths = [len(sample.first) for sample in made.train]
    assert (min(lengths), max(lengths)) == (10, 30)
