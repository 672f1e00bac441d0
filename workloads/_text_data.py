"""Text as rows of tokens for training: corpora, instructions, packing, and the batches of a step.

    corpus or instructions -> rows of T tokens with targets -> micro-batch (step, number, data rank) -> device

Everything is addressed by its number: row r is the same for every layout, and a resumed run goes on where it stopped.
Nothing here imports torch before a batch is made.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ascend_perf.errors import InputError, MachineError, first_line

if TYPE_CHECKING:
    import torch

# B batch, T tokens

Ints = NDArray[np.int64]
IGNORED: Final = -100
"""Target of a token that does not count in the loss (torch's default `ignore_index`)."""
SYNTHETIC_TOKENS: Final = 1 << 20
"""Length of the synthetic corpus; longer runs begin again."""
TEXT_FILES: Final = (".txt", ".md", ".jsonl")
END_NAMES: Final = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>")
MAX_TEXT_BYTES: Final = 4 << 30
"""Text is tokenised in memory; larger corpora belong into a token file."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch: T tokens, what each shall predict, its place in its own text and the number of that text."""

    tokens_T: Ints
    targets_T: Ints
    positions_T: Ints
    segments_T: Ints


class Rows(Protocol):
    """A source of rows; it begins again after the last."""

    def __len__(self) -> int:
        """Rows of one pass."""

    def row(self, number: int) -> Row:
        """Row of any number from 0 on."""


# Tokenizers


class Tokenizer(Protocol):
    """Text to numbers."""

    size: int
    end: int
    """Ends a text."""
    pad: int

    def encode(self, text: str) -> Ints:
        """Numbers of a text, without begin or end."""


class ByteTokenizer:
    """A token is a byte of UTF-8; behind them the end of a text and padding."""

    end, pad, size = 256, 257, 258

    def encode(self, text: str) -> Ints:
        """Bytes of the text; halves of surrogate pairs, which JSON may hold, become U+FFFD."""
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return np.frombuffer(whole.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; damaged characters become U+FFFD, special tokens nothing."""
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


class FileTokenizer:
    """A tokenizer.json of the `tokenizers` package."""

    def __init__(self, path: Path) -> None:
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError as error:
            raise MachineError(
                "a tokenizer.json needs the package tokenizers, which is not installed",
                hint="pip install tokenizers, or leave the setting tokenizer out: text is then read as bytes",
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            reason = first_line(error, 200)
            raise InputError(f"{path.name} is not a tokenizer that tokenizers reads: {reason}") from error
        self.size = int(self._tokenizer.get_vocab_size())
        ends = map(self._tokenizer.token_to_id, END_NAMES)
        found = next((number for number in ends if number is not None), None)
        if found is None:
            raise InputError(f"{path.name} has no token that ends a text: looked for {', '.join(END_NAMES)}")
        self.end = self.pad = int(found)

    def encode(self, text: str) -> Ints:
        """Numbers of the text."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


def tokenizer_of(path: str | None, vocabulary: int) -> Tokenizer:
    """The tokenizer of a file, or bytes.

    Raises:
        InputError: the model's vocabulary is too small for it, or the file is not a tokenizer.
        MachineError: the package that reads the file is missing.
    """
    tokenizer: Tokenizer = ByteTokenizer() if path is None else FileTokenizer(Path(path))
    if tokenizer.size > vocabulary:
        what = "bytes and their special tokens" if path is None else Path(path).name
        raise InputError(
            f"the model's vocabulary of {vocabulary} is too small for {what}: {tokenizer.size} tokens",
            hint=f"set vocabulary to {tokenizer.size} or more",
        )
    return tokenizer


# Corpora


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents one after the other, each closed by the token `end`; None: it is not known where documents end."""

    tokens: NDArray[np.integer]
    end: int | None
    name: str


def synthetic_corpus(vocabulary: int, seed: int, tokens: int = SYNTHETIC_TOKENS, mean_document: int = 200) -> Corpus:
    """A Markov chain that a model can learn: each token has four successors, likely to be followed by the first.

    Successors are drawn by Zipf's law, as words are; one token in ten is drawn anew instead. Token 0 ends a document,
    whose length is geometric with the given mean. A good model's loss lies far below ln(vocabulary).
    """
    random = np.random.default_rng(seed)
    zipf = 1.0 / np.arange(1, vocabulary)
    cumulated = np.cumsum(zipf / zipf.sum())

    def drawn(size: tuple[int, ...]) -> NDArray[np.int32]:
        return (1 + np.minimum(np.searchsorted(cumulated, random.random(size)), vocabulary - 2)).astype(np.int32)

    successors = drawn((vocabulary, 4))
    chains = 256
    length = -(-tokens // chains)
    stream = np.empty((chains, length), np.int32)
    now = drawn((chains,))
    for place in range(length):
        chance = random.random(chains)
        which = np.searchsorted((0.5, 0.75, 0.9), chance)
        follow = successors[now, np.minimum(which, 3)]
        now = np.where(random.random(chains) < 0.1, drawn((chains,)), follow)
        now = np.where(random.random(chains) < 1 / mean_document, 0, now).astype(np.int32)
        stream[:, place] = now
    flat = stream.reshape(-1)[:tokens]
    flat[-1] = 0
    return Corpus(tokens=flat, end=0, name="synthetic")


def read_corpus(
    path: Path, *, vocabulary: int, tokenizer_path: str | None = None,
    token_type: Literal["auto", "uint16", "uint32"] = "auto", end_of_text: int | None = None,
) -> Corpus:  # fmt: skip
    """Tokens of a file or folder: .bin holds them as numbers, everything else is text.

    A .bin file is a row of little-endian uint16 or uint32 (auto: uint16 where the vocabulary allows) and is mapped, not
    read. Of text, each .txt or .md file is a document and each line of a .jsonl file one, by its field `text`. A folder
    gives its text files by name.

    Raises:
        InputError: the path is missing, empty, damaged, or has tokens that the vocabulary does not have.
    """
    if not path.exists():
        raise InputError(f"no data at {path.name}: the file or folder does not exist")
    if path.suffix == ".bin":
        return _token_file(path, vocabulary, token_type, end_of_text)
    tokenizer = tokenizer_of(tokenizer_path, vocabulary)
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in TEXT_FILES)
    if not files:
        raise InputError(f"no text in {path.name}: looked for files named {', '.join('*' + end for end in TEXT_FILES)}")
    if (size := sum(file.stat().st_size for file in files)) > MAX_TEXT_BYTES:
        raise InputError(
            f"{path.name} holds {size} bytes of text; text is tokenised in memory, up to {MAX_TEXT_BYTES}",
            hint="tokenise it once into a .bin file of uint16 or uint32",
        )
    kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    parts: list[NDArray[np.integer]] = []
    end = np.asarray([tokenizer.end], kind)
    for file in files:
        for tokens in _documents(file, tokenizer):
            if len(tokens):
                parts += [tokens.astype(kind), end]
    if not parts:
        raise InputError(f"{path.name} holds no text")
    return Corpus(tokens=np.concatenate(parts), end=tokenizer.end, name=path.name)


def _token_file(path: Path, vocabulary: int, token_type: str, end_of_text: int | None) -> Corpus:
    wanted = token_type if token_type != "auto" else "uint16" if vocabulary <= 1 << 16 else "uint32"
    kind = np.dtype(wanted).newbyteorder("<")
    size = path.stat().st_size
    if size == 0 or size % kind.itemsize:
        raise InputError(
            f"{path.name} has {size} bytes, not a whole number of {wanted} tokens",
            hint="set token_type to uint16 or uint32, as the file was written",
        )
    tokens = np.memmap(path, kind, "r")
    return Corpus(tokens=tokens, end=end_of_text, name=path.name)


def _documents(file: Path, tokenizer: Tokenizer) -> Iterator[NDArray[np.integer]]:
    if file.suffix == ".jsonl":
        for line, record in json_lines(file):
            text = record.get("text")
            if not isinstance(text, str):
                raise InputError(f"{file.name} line {line}: no field 'text' that is text")
            yield tokenizer.encode(text)
    elif isinstance(tokenizer, ByteTokenizer):
        yield np.frombuffer(file.read_bytes(), np.uint8)
    else:
        try:
            yield tokenizer.encode(file.read_text("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{file.name} is not UTF-8: byte {error.start}") from error


def json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Objects of a .jsonl file with their line numbers from 1; empty lines are passed over.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except (ValueError, RecursionError) as error:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                    raise InputError(f"{path.name} line {number} is not JSON: {reason}") from error
                if not isinstance(record, dict):
                    raise InputError(f"{path.name} line {number} is not a JSON object but {type(record).__name__}")
                yield number, record
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from error


class CorpusRows:
    """Windows of T + 1 tokens, one behind the other, in an order that the seed gives.

    `packed`: a token sees only its own document (segments, positions from 0), and the first token of the next document
    is no target. A document that began in the window before starts again at position 0.
    """

    def __init__(self, corpus: Corpus, *, tokens: int, vocabulary: int, packed: bool, seed: int) -> None:
        if packed and corpus.end is None:
            raise InputError(
                f"packed rows need to know where documents end in {corpus.name}",
                hint="set end_of_text to the number of the token that ends a document, or rows to joined",
            )
        self.corpus, self.tokens, self.vocabulary, self.packed = corpus, tokens, vocabulary, packed
        self.windows = (len(corpus.tokens) - 1) // tokens
        if self.windows < 1:
            raise InputError(
                f"{corpus.name} has {len(corpus.tokens)} tokens, fewer than one row of {tokens} and its last target",
                hint="set tokens to fewer, or give more data",
            )
        self.seed = seed

    def __len__(self) -> int:
        return self.windows

    def row(self, number: int) -> Row:
        start = walk(number, self.windows, self.seed) * self.tokens
        window = np.asarray(self.corpus.tokens[start : start + self.tokens + 1]).astype(np.int64)
        if (largest := int(window.max())) >= self.vocabulary:
            raise InputError(
                f"{self.corpus.name} has token {largest}, beyond the vocabulary of {self.vocabulary}",
                hint="set vocabulary, or token_type to how the file was written (uint16, uint32)",
            )
        tokens_T, targets_T = window[:-1], window[1:]
        places_T = np.arange(self.tokens)
        if not self.packed:
            return Row(tokens_T=tokens_T, targets_T=targets_T, positions_T=places_T, segments_T=np.zeros_like(places_T))
        is_end_T = tokens_T == self.corpus.end
        segments_T = np.cumsum(is_end_T) - is_end_T
        starts_T = np.maximum.accumulate(np.where(np.diff(segments_T, prepend=-1) > 0, places_T, 0))
        return Row(
            tokens_T=tokens_T, targets_T=np.where(is_end_T, IGNORED, targets_T),
            positions_T=places_T - starts_T, segments_T=segments_T,
        )  # fmt: skip


def walk(number: int, length: int, seed: int) -> int:
    """Place of a number in a shuffled pass over `length` things: each once a pass, another order each pass."""
    turn, place = divmod(number, length)
    random = np.random.default_rng((seed, turn))
    # i -> a i + b mod n visits every place once when a and n have no common factor; it needs no list of n numbers.
    stride = int(random.integers(1, length + 1))
    while math.gcd(stride, length) != 1:
        stride += 1
    return (place * stride + int(random.integers(length))) % length


# Batches


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows on a device. Positions and segments are None where every row is one text."""

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor
    positions_BT: torch.Tensor | None = None
    segments_BT: torch.Tensor | None = None
    ends: tuple[int, ...] | None = None
    """On the host: where each text ends, counted over all rows."""

    def to(self, device: str) -> Batch:
        """The same on another device, without waiting for the copy."""

        def moved(values_BT: torch.Tensor | None) -> torch.Tensor | None:
            return None if values_BT is None else values_BT.to(device, non_blocking=True)

        return Batch(
            tokens_BT=self.tokens_BT.to(device, non_blocking=True),
            targets_BT=self.targets_BT.to(device, non_blocking=True),
            positions_BT=moved(self.positions_BT), segments_BT=moved(self.segments_BT), ends=self.ends,
        )  # fmt: skip


class Batches:
    """The micro-batches of one data rank.

    Step s takes rows s R to (s + 1) R, with R = batch x accumulate x data ranks, whatever the layout: the same rows
    train one process that accumulates and a job that spreads them.
    """

    def __init__(
        self, rows: Rows, *, batch: int, accumulate: int, data_rank: int = 0, data_ranks: int = 1,
        segments: bool = False, pin: bool = False,
    ) -> None:  # fmt: skip
        self.rows, self.batch, self.accumulate = rows, batch, accumulate
        self.data_rank, self.data_ranks = data_rank, data_ranks
        self.segments, self.pin = segments, pin

    def batch_at(self, step: int, micro: int) -> Batch:
        """Micro-batch of a step, in host memory."""
        import torch

        first = ((step * self.accumulate + micro) * self.data_ranks + self.data_rank) * self.batch
        rows = [self.rows.row(number) for number in range(first, first + self.batch)]

        def stacked(arrays: list[Ints]) -> torch.Tensor:
            values_BT = torch.from_numpy(np.stack(arrays))
            return values_BT.pin_memory() if self.pin else values_BT

        tokens_BT = stacked([row.tokens_T for row in rows])
        targets_BT = stacked([row.targets_T for row in rows])
        if not self.segments:
            return Batch(tokens_BT=tokens_BT, targets_BT=targets_BT)
        return Batch(
            tokens_BT=tokens_BT, targets_BT=targets_BT, positions_BT=stacked([row.positions_T for row in rows]),
            segments_BT=stacked([row.segments_T for row in rows]), ends=text_ends([row.segments_T for row in rows]),
        )  # fmt: skip


def text_ends(rows: Sequence[Ints]) -> tuple[int, ...]:
    """Where each text of the rows ends, counted over all rows: what attention over packed tokens wants."""
    ends: list[int] = []
    for number, segments_T in enumerate(rows):
        inner = np.flatnonzero(np.diff(segments_T)) + 1
        start = number * len(segments_T)
        ends += [*(start + inner).tolist(), start + len(segments_T)]
    return tuple(ends)
