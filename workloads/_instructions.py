"""Instructions for fine-tuning: records of a .jsonl file or made ones, as rows whose loss counts in the answers alone.

    record -> template -> tokens, prompt masked -> padded or packed rows
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.workloads._text_data import IGNORED, Ints, Row, Tokenizer, json_lines, walk

# T tokens

ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a record's text; only answers are learnt."""

    text: str
    is_answer: bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record as tokens; `is_answer_T` marks those that the model shall learn to say."""

    tokens_T: Ints
    is_answer_T: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def read_instructions(path: Path) -> list[list[Piece]]:
    """Records of a .jsonl file, or of every one in a folder by name.

    A line is an object with `instruction`, `output` and perhaps `input` (Alpaca), or with `messages`: a list of
    objects with `role` (system, user, assistant) and `content`, at least one by the assistant.

    Raises:
        InputError: no such file, or a line that is neither; with the line's number.
    """
    if not path.exists():
        raise InputError(f"no data at {path.name}: the file or folder does not exist")
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    records = [_pieces(record, f"{file.name} line {line}") for file in files for line, record in json_lines(file)]
    if not records:
        raise InputError(f"no instructions in {path.name}", hint="give a .jsonl file or a folder of them")
    return records


def _pieces(record: Mapping[str, object], where: str) -> list[Piece]:
    if "messages" in record:
        return list(_conversation(record["messages"], where))
    for field in ("instruction", "output"):
        if not isinstance(record.get(field), str):
            fields = ", ".join(sorted(map(str, record))[:8])
            raise InputError(f"{where}: no field {field!r} that is text (fields: {fields})", hint=_FIELDS)
    extra = record.get("input")
    if not isinstance(extra, (str, type(None))):
        raise InputError(f"{where}: field 'input' is not text", hint=_FIELDS)
    return alpaca(str(record["instruction"]), extra or "", str(record["output"]))


_FIELDS: Final = "each line is an object with instruction, output and perhaps input; or with messages"


def _conversation(messages: object, where: str) -> Iterator[Piece]:
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages is not a list of messages", hint=_FIELDS)
    if not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages):
        raise InputError(f"{where}: no message by the role assistant, so there is nothing to learn")
    for number, message in enumerate(messages, 1):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            roles = ", ".join(ROLES)
            raise InputError(f"{where}: message {number} needs role (one of {roles}) and content that is text")
        yield Piece(text=f"### {role}:\n", is_answer=False)
        yield Piece(text=content, is_answer=role == "assistant")
        if role != "assistant":
            yield Piece(text="\n\n", is_answer=False)


def alpaca(instruction: str, extra: str, output: str) -> list[Piece]:
    """Prompt and answer by the short template of Alpaca."""
    given = f"### Input:\n{extra}\n\n" if extra else ""
    prompt = f"### Instruction:\n{instruction}\n\n{given}### Response:\n"
    return [Piece(text=prompt, is_answer=False), Piece(text=output, is_answer=True)]


def synthetic_instructions(count: int, seed: int) -> list[list[Piece]]:
    """Small tasks on letters and numbers whose answers follow from the text: a model that learns shows it."""
    random = np.random.default_rng(seed)
    letters = np.array(list(string.ascii_lowercase))
    records = []
    for _ in range(count):
        word = "".join(random.choice(letters, int(random.integers(3, 12))))
        first, second = (int(number) for number in random.integers(0, 100, 2))
        tasks = (
            ("Repeat the word.", word, word),
            ("Write the word in capitals.", word, word.upper()),
            ("Write the word backwards.", word, word[::-1]),
            (f"Which is larger, {first} or {second}?", "", str(max(first, second))),
            ("Spell the word.", word, " ".join(word)),
        )
        records.append(alpaca(*tasks[int(random.integers(len(tasks)))]))
    return records


def tokenised(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Record:
    """Tokens of a record. Each answer is closed by the token that ends a text, which is learnt as well."""
    parts: list[Ints] = []
    marks = []
    for piece in pieces:
        tokens = tokenizer.encode(piece.text)
        if piece.is_answer:
            tokens = np.append(tokens, tokenizer.end)
        parts.append(tokens)
        marks.append(np.full(len(tokens), piece.is_answer))
    return Record(tokens_T=np.concatenate(parts), is_answer_T=np.concatenate(marks))


class InstructionRows:
    """Rows of records: one to a row and padded, or packed as many as fit.

    A record longer than the row is cut at its end; one whose answer is cut off whole is left out. `shortened`,
    `left_out` and `padding_ratio` count that. Packed records do not see each other (segments, positions from 0).
    Padding is a segment of its own; it is no target.
    """

    def __init__(
        self, records: Sequence[Record], *, tokens: int, rows: Literal["padded", "packed"], pad: int, seed: int
    ) -> None:
        self.tokens, self.pad, self.seed = tokens, pad, seed
        # A record of n tokens gives n - 1 inputs and as many targets.
        kept = [record for record in records if record.is_answer_T[1 : tokens + 1].any()]
        self.left_out = len(records) - len(kept)
        self.shortened = sum(len(record.tokens_T) > tokens + 1 for record in kept)
        if not kept:
            raise InputError(
                f"none of {len(records)} records has an answer within {tokens} tokens", hint="set tokens to more"
            )
        self.records = kept
        lengths = [min(len(record.tokens_T) - 1, tokens) for record in kept]
        self.plan = [[place] for place in range(len(kept))] if rows == "padded" else first_fit(lengths, tokens, seed)
        self.padding_ratio = 1 - sum(lengths) / (len(self.plan) * tokens)

    def __len__(self) -> int:
        return len(self.plan)

    def row(self, number: int) -> Row:
        tokens_T = np.full(self.tokens, self.pad, np.int64)
        targets_T = np.full(self.tokens, IGNORED, np.int64)
        positions_T = np.zeros(self.tokens, np.int64)
        segments_T = np.zeros(self.tokens, np.int64)
        start = 0
        members = self.plan[walk(number, len(self.plan), self.seed)]
        for segment, place in enumerate(members):
            record = self.records[place]
            length = min(len(record.tokens_T) - 1, self.tokens)
            span = slice(start, start + length)
            tokens_T[span] = record.tokens_T[:length]
            following = slice(1, length + 1)
            targets_T[span] = np.where(record.is_answer_T[following], record.tokens_T[following], IGNORED)
            positions_T[span] = np.arange(length)
            segments_T[span] = segment
            start += length
        segments_T[start:] = len(members)
        positions_T[start:] = np.arange(self.tokens - start)
        return Row(tokens_T=tokens_T, targets_T=targets_T, positions_T=positions_T, segments_T=segments_T)


def first_fit(lengths: Sequence[int], room: int, seed: int) -> list[list[int]]:
    """Members of each row: every length, in an order by the seed, goes into the first row where it fits.

    Only the last 64 rows are looked at, so that the work grows with the records alone.
    """
    rows: list[list[int]] = []
    left: list[int] = []
    for place in np.random.default_rng(seed).permutation(len(lengths)).tolist():
        for row in range(max(0, len(rows) - 64), len(rows)):
            if left[row] >= lengths[place]:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(place)
        left[row] -= lengths[place]
    return rows
