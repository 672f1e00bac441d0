"""A stand-in for a model and its paged cache: it keeps what it is fed in slots, and answers by all that is there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ascend_perf.workloads._batching import Request, Row, Sampling


def next_token(seen: Sequence[int], draw: float = 0.0) -> int:
    """The answer to a text: all of it decides."""
    return hashlib.sha256(f"{list(seen)} {draw}".encode()).digest()[0]


@dataclass
class SlotRunner:
    """Keeps tokens in slots by the block table, as a paged cache does, and reads the whole text from there."""

    block_tokens: int = 4
    slots: dict[int, int] = field(default_factory=dict)
    rows: list[list[Row]] = field(default_factory=list)
    pause_s: float = 0.0
    """How long a step takes."""

    def run(self, rows: Sequence[Row]) -> list[tuple[int, float]]:
        self.rows.append(list(rows))
        time.sleep(self.pause_s)
        held = [block for row in rows for block in row.blocks]
        assert len(held) == len(set(held)) and 0 not in held  # no two rows share a block
        answers = []
        for row in rows:
            places = range(row.start + len(row.tokens))
            slots = [row.blocks[place // self.block_tokens] * self.block_tokens + place % self.block_tokens
                     for place in places]  # fmt: skip
            for slot, token in zip(slots[row.start :], row.tokens, strict=True):
                self.slots[slot] = token
            answers.append((next_token([self.slots[slot] for slot in slots], row.draw), -1.0))
        return answers


def alone(prompt: Sequence[int], max_tokens: int, should_stop: int | None = None, seed: int | None = None) -> list[int]:
    """What a request's answer is without any batch."""
    request = Request(prompt=prompt, max_tokens=max_tokens, sampling=Sampling(seed=seed or 0))
    output: list[int] = []
    while len(output) < max_tokens and (not output or output[-1] != should_stop):
        output.append(next_token([*prompt, *output], 0.0 if seed is None else request.draw()))
    return output
