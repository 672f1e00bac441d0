"""Which samples make which batch: a function of the seed alone, whatever the ranks and the loader's workers.

The global batch of a step is cut into one slice per rank; so two ranks with batch 4 see what one with batch 8 sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SORTED_BATCHES: Final = 16
"""Global batches among which samples are sorted by length. Status: assumed."""


def epoch_batches(count: int, *, batch: int, ranks: int, seed: int, epoch: int, lengths: Ints | None = None) -> Ints:
    """Sample numbers of one epoch, steps x ranks x batch: a permutation, less what does not fill a global batch.

    Args:
        lengths: of each sample; with them, batches hold samples of like length. Samples are shuffled, sorted by length
            within chunks of 16 global batches, and the batches are shuffled.

    Raises:
        ValueError: there are fewer samples than one global batch.
    """
    whole = batch * ranks
    steps = count // whole
    if steps == 0:
        raise ValueError(f"{count} samples are fewer than one step takes: batch {batch} on {ranks} ranks")
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(count)
    if lengths is not None:
        chunk = SORTED_BATCHES * whole
        parts = [order[at : at + chunk] for at in range(0, count, chunk)]
        order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    made = order[: steps * whole].reshape(steps, ranks, batch)
    return made if lengths is None else made[random.permutation(steps)]


def endless(
    count: int, *, batch: int, ranks: int, rank: int, seed: int, start: int = 0, lengths: Ints | None = None
) -> Iterator[tuple[int, Sequence[int]]]:
    """Epoch and sample numbers of one rank's batch of each step from `start` on, without end."""

    @lru_cache(maxsize=1)
    def of(epoch: int) -> Ints:
        return epoch_batches(count, batch=batch, ranks=ranks, seed=seed, epoch=epoch, lengths=lengths)

    step, steps = start, len(of(0))
    while True:
        epoch, at = divmod(step, steps)
        yield epoch, of(epoch)[at, rank].tolist()
        step += 1
