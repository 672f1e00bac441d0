"""Classified texts: read from files of CLUE, or made by seed. Imports no torch.

    train.json, dev.json   a JSON object per line: {"sentence": ..., "label": ...}   (TNEWS, IFLYTEK)
                           or {"sentence1": ..., "sentence2": ..., "label": ...}     (AFQMC, CMNLI, OCNLI)
    labels.json            a JSON object per line: {"label": ..., "label_desc": ...}; may be absent
    vocab.txt              a token per line; may be absent
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.workloads._spec import did_you_mean

MAX_LINE_BYTES: Final = 1 << 20
MAX_SAMPLES: Final = 5_000_000
"""Limits of what is read. Status: assumed."""
HELD_OUT_EVERY: Final = 10
"""Of a file without dev.json beside it every tenth text is held out. Status: assumed."""
NO_LABEL: Final = "-"
"""What CMNLI and OCNLI write where the annotators did not agree: such lines are left out."""

FIRST_CHARACTER: Final = 0x4E00
"""Synthetic texts use the characters from here on."""
KEYWORDS: Final = 4
KEYWORD_CHARACTERS: Final = 2
KEYWORD_EVERY: Final = 6


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text or a pair of texts, and the number of its class."""

    first: str
    second: str | None
    label: int


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts to train on, texts held out, the names of the classes, and lines without a label."""

    train: Sequence[Sample]
    held_out: Sequence[Sample]
    labels: Sequence[str]
    unlabelled: int = 0
    vocabulary: Path | None = None


def synthetic_texts(*, count: int, held_out: int, classes: int, characters: int, tokens: int, seed: int) -> Texts:
    """Texts of random Chinese characters with words of their class here and there, so that a model can learn.

    Characters are drawn with a frequency that falls as 1 / rank; a third to all of `tokens` of them make a text. Each
    class has four words of two characters, which are made by the seed as well; every sixth place starts one, often
    over the end of another.
    """
    random = np.random.default_rng(seed)
    alphabet = [chr(FIRST_CHARACTER + index) for index in range(characters)]
    chance = 1 / np.arange(1, characters + 1)
    chance /= chance.sum()
    # Of rare characters: the common ones are in every text.
    rare = random.permutation(np.arange(characters // 2, characters))
    if len(rare) < classes * KEYWORDS * KEYWORD_CHARACTERS:
        rare = random.integers(0, characters, classes * KEYWORDS * KEYWORD_CHARACTERS)
    words = rare[: classes * KEYWORDS * KEYWORD_CHARACTERS].reshape(classes, KEYWORDS, KEYWORD_CHARACTERS)
    longest = max(KEYWORD_CHARACTERS + 1, tokens - 2)
    samples = []
    for index in range(count + held_out):
        label = index % classes
        length = int(random.integers(max(KEYWORD_CHARACTERS + 1, longest // 3), longest + 1))
        text = random.choice(characters, length, p=chance)
        for at in random.integers(0, length - KEYWORD_CHARACTERS + 1, 1 + length // KEYWORD_EVERY):
            text[at : at + KEYWORD_CHARACTERS] = words[label, random.integers(0, KEYWORDS)]
        samples.append(Sample(first="".join(alphabet[i] for i in text), second=None, label=label))
    return Texts(train=samples[:count], held_out=samples[count:], labels=[str(label) for label in range(classes)])


def read_texts(path: Path) -> Texts:
    """Texts of a folder of CLUE, or of one file, whose every tenth line is then held out.

    Raises:
        InputError: a file is missing or not readable, or a line is not what CLUE has there; the line is named.
    """
    if path.is_dir():
        files = {name: path / f"{name}.json" for name in ("train", "dev", "labels")}
        if not files["train"].is_file():
            raise InputError(f"{path.name} has no train.json", hint="a folder of CLUE: train.json, dev.json")
        names = _label_names(files["labels"]) if files["labels"].is_file() else None
        train, labels, skipped = _samples(files["train"], names)
        vocabulary = path / "vocab.txt"
        found = vocabulary if vocabulary.is_file() else None
        if files["dev"].is_file():
            held_out, _, more = _samples(files["dev"], labels)
            return Texts(train=train, held_out=held_out, labels=labels, unlabelled=skipped + more, vocabulary=found)
    elif path.is_file():
        train, labels, skipped = _samples(path, None)
        found = None
    else:
        raise InputError(f"{path.name}: no such file or folder", hint="a folder of CLUE, or one file of JSON lines")
    held_out = train[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    rest = [sample for index, sample in enumerate(train) if (index + 1) % HELD_OUT_EVERY]
    if not held_out:
        raise InputError(f"{path.name} has {len(train)} texts: too few to hold one out", hint="add a dev.json")
    return Texts(train=rest, held_out=held_out, labels=labels, unlabelled=skipped, vocabulary=found)


def _samples(path: Path, labels: Sequence[str] | None) -> tuple[list[Sample], list[str], int]:
    """Texts of a file, the classes (those found, sorted, where none are given) and the lines without one."""
    rows: list[tuple[int, str, str | None, str]] = []
    skipped = 0
    for number, row in _rows(path):
        label = _text(path, number, row, "label")
        if label == NO_LABEL:
            skipped += 1
            continue
        if "sentence" in row:
            rows.append((number, _text(path, number, row, "sentence"), None, label))
        elif "sentence1" in row:
            pair = (_text(path, number, row, name) for name in ("sentence1", "sentence2"))
            rows.append((number, *pair, label))  # type: ignore[arg-type]  # two texts
        else:
            raise InputError(
                f"{path.name}, line {number}: neither sentence nor sentence1; its keys are {_keys(row)}",
                hint="see docs/workloads.md for the format",
            )
    if not rows:
        raise InputError(f"{path.name} has no labelled text")
    names = list(labels) if labels is not None else sorted({label for _, _, _, label in rows})
    known = {name: index for index, name in enumerate(names)}
    samples = []
    for number, first, second, label in rows:
        if label not in known:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(
                f"{path.name}, line {number}: unknown label {label[:40]!r}{did_you_mean(label, names)}",
                hint=f"labels: {shown}",
            )
        samples.append(Sample(first=first, second=second, label=known[label]))
    return samples, names, skipped


def _label_names(path: Path) -> list[str]:
    names = [_text(path, number, row, "label") for number, row in _rows(path)]
    if len(set(names)) < len(names):
        raise InputError(f"{path.name} names a label twice")
    return [name for name in names if name != NO_LABEL]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Number (from 1) and object of each line that is not empty."""
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(f"{path.name}, line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
                if number > MAX_SAMPLES:
                    raise InputError(f"{path.name} has more than {MAX_SAMPLES} lines")
                if line.strip():
                    yield number, _object(path, number, line)
    except OSError as error:
        raise InputError(f"{path.name} is not readable: {error.strerror}") from error


def _object(path: Path, number: int, line: bytes) -> Mapping[str, object]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}, line {number}: no UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.name}, line {number}: no JSON: {str(error)[:120]}", hint="CLUE has a JSON object per line"
        ) from error
    if not isinstance(row, dict):
        raise InputError(f"{path.name}, line {number}: expected a JSON object, got {type(row).__name__}")
    return row


def _text(path: Path, number: int, row: Mapping[str, object], key: str) -> str:
    value = row.get(key)
    if key == "label" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        said = "no" if value is None else f"a {type(value).__name__} as"
        raise InputError(f"{path.name}, line {number}: {said} {key}; its keys are {_keys(row)}")
    return value


def _keys(row: Mapping[str, object]) -> str:
    return ", ".join(str(key)[:30] for key in list(row)[:8]) or "none"
