"""Texts as rows of tokens, and the padded batches that an encoder takes of them.

Nothing here imports torch before a batch is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric
from ascend_perf.workloads import _clue, _wordpiece
from ascend_perf.workloads._spec import Place

if TYPE_CHECKING:
    import torch

# B batch, T tokens, N samples

Ints = npt.NDArray[np.int64]
CHARACTERS: Final = (64, 4096)
"""Fewest and most different characters of made texts."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Texts as tokens: rows padded to `tokens` with `padding` (segments with 0)."""

    tokens_NT: Ints
    segments_NT: Ints
    lengths_N: Ints
    labels_N: Ints

    def by_length(self, batch: int) -> list[list[int]]:
        """Numbers of all texts in batches, those of like length together."""
        order = np.argsort(self.lengths_N, kind="stable").tolist()
        return [order[at : at + batch] for at in range(0, len(order), batch)]


def encoded(samples: Sequence[_clue.Sample], tokenizer: _wordpiece.WordPiece, tokens: int) -> Encoded:
    """The texts cut into tokens, and what is too long cut off."""
    tokens_NT = np.full((len(samples), tokens), tokenizer.tokens[_wordpiece.PAD], np.int64)
    segments_NT = np.zeros_like(tokens_NT)
    lengths_N = np.zeros(len(samples), np.int64)
    for row, sample in enumerate(samples):
        numbers, segments = tokenizer.encode(sample.first, sample.second, tokens)
        lengths_N[row] = len(numbers)
        tokens_NT[row, : len(numbers)] = numbers
        segments_NT[row, : len(numbers)] = segments
    labels_N = np.array([sample.label for sample in samples], np.int64)
    return Encoded(tokens_NT=tokens_NT, segments_NT=segments_NT, lengths_N=lengths_N, labels_N=labels_N)


def read_or_make(
    path: Path | None, *, samples: int, held_out: int, classes: int, tokens: int, vocabulary: int,
    vocabulary_file: str, seed: int,
) -> tuple[Encoded, Encoded]:  # fmt: skip
    """Texts to train on and texts held out, the same on every rank.

    Args:
        path: of texts in CLUE's format; None: they are made.
        samples: made texts to train on.
        held_out: texts held out, at most.
        vocabulary: tokens of the model.
        vocabulary_file: a vocab.txt; empty: that of the folder of texts, else one is made of the texts.

    Raises:
        InputError: a file is not readable or malformed, or has more classes or tokens than the model.
    """
    if path is None:
        fewest, most = CHARACTERS
        found = _clue.synthetic_texts(
            count=samples, held_out=held_out, classes=classes,
            characters=max(fewest, min(most, vocabulary - len(_wordpiece.SPECIAL))), tokens=tokens, seed=seed,
        )  # fmt: skip
    else:
        found = _clue.read_texts(path)
    if len(found.labels) > classes:
        raise InputError(
            f"the data has {len(found.labels)} classes, the model {classes}",
            hint=f"use --set classes={len(found.labels)}",
        )
    tokenizer = _tokenizer(found, Path(vocabulary_file) if vocabulary_file else found.vocabulary, vocabulary)
    return encoded(found.train, tokenizer, tokens), encoded(found.held_out[:held_out], tokenizer, tokens)


def _tokenizer(found: _clue.Texts, path: Path | None, vocabulary: int) -> _wordpiece.WordPiece:
    if path is None:
        every = (text for sample in found.train for text in (sample.first, sample.second or ""))
        return _wordpiece.WordPiece.from_texts(every, vocabulary)
    tokenizer = _wordpiece.WordPiece.from_file(path)
    if len(tokenizer.tokens) > vocabulary:
        raise InputError(
            f"{path.name} has {len(tokenizer.tokens)} tokens, the model {vocabulary}",
            hint=f"use --set vocabulary={len(tokenizer.tokens)}",
        )
    return tokenizer


class PaddedBatches:
    """Batches of texts on the device of this rank, and how much of them was padding.

    Args:
        length_of: tokens that a batch is padded to whose longest text has so many.
    """

    def __init__(self, place: Place, length_of: Callable[[int], int]) -> None:
        self.place, self._length_of = place, length_of
        self.forget()

    def forget(self) -> None:
        """Begin counting again."""
        self._steps = self._seen = self._real = 0

    def of(self, rows: Sequence[int], data: Encoded) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Tokens, segments and mask (none where nothing is padded) of some texts, and their classes."""
        from torch.profiler import record_function

        with record_function("data::pad"):
            lengths_B = data.lengths_N[rows]
            length = self._length_of(int(lengths_B.max()))
            parts: list[npt.NDArray[Any]] = [data.tokens_NT[rows, :length], data.segments_NT[rows, :length]]
            if int(lengths_B.min()) < length:
                parts.append(np.arange(length) < lengths_B[:, None])
            self._seen += len(lengths_B) * length
            self._real += int(lengths_B.sum())
            self._steps += 1
        with record_function("data::copy"):
            moved = [_on(part, self.place) for part in (*parts, data.labels_N[rows])]
        return tuple(moved[:-1]), moved[-1]

    def metrics(self) -> list[Metric]:
        """Padding among the tokens of this rank's measured steps, and tokens of a step."""
        if not self._steps:
            return []
        padded = 1 - self._real / self._seen
        tokens = self._seen / self._steps
        return [
            Metric(name="padding_ratio", value=padded, unit="ratio", better="lower"),
            Metric(name="tokens_per_step_per_device", value=tokens, unit="count", better="none"),
        ]


def _on(values: npt.NDArray[Any], place: Place) -> torch.Tensor:
    """The values on the device."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return (tensor.pin_memory() if place.kind == "cuda" else tensor).to(place.device, non_blocking=True)
