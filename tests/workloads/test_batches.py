"""Batches: every sample once an epoch, ranks share out what one process would take, like lengths together."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._batches import endless, epoch_batches


@given(
    count=st.integers(1, 200), batch=st.integers(1, 9), ranks=st.integers(1, 4), seed=st.integers(0, 9),
    by_length=st.booleans(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_an_epoch_takes_each_sample_at_most_once_and_leaves_less_than_a_batch(
    count: int, batch: int, ranks: int, seed: int, by_length: bool
) -> None:
    if count < batch * ranks:
        with pytest.raises(ValueError, match=f"{count} samples are fewer"):
            epoch_batches(count, batch=batch, ranks=ranks, seed=seed, epoch=0)
        return
    lengths = np.random.default_rng(seed).integers(1, 50, count) if by_length else None

    made = epoch_batches(count, batch=batch, ranks=ranks, seed=seed, epoch=3, lengths=lengths)

    assert made.shape == (count // (batch * ranks), ranks, batch)
    assert len(np.unique(made)) == made.size
    assert made.min() >= 0 and made.max() < count


def test_two_ranks_take_the_halves_of_what_one_takes() -> None:
    whole = endless(37, batch=8, ranks=1, rank=0, seed=5)
    halves = [endless(37, batch=4, ranks=2, rank=rank, seed=5) for rank in (0, 1)]

    for (epoch, rows), (_, first), (_, second) in islice(zip(whole, *halves, strict=True), 12):
        assert [*first, *second] == rows
        assert epoch in (0, 1, 2)


def test_a_resumed_order_goes_on_where_it_was() -> None:
    straight = list(islice(endless(20, batch=3, ranks=1, rank=0, seed=1), 17))

    assert list(islice(endless(20, batch=3, ranks=1, rank=0, seed=1, start=8), 9)) == straight[8:]
    assert straight[0][0] == 0 and straight[6][0] == 1  # 20 samples fill six batches
    assert straight[0][1] != straight[6][1]


def test_sorting_saves_most_of_the_padding() -> None:
    lengths = np.random.default_rng(0).integers(10, 129, 1024)

    def padded(with_lengths: bool) -> int:
        made = epoch_batches(
            1024, batch=16, ranks=1, seed=0, epoch=0, lengths=lengths if with_lengths else None
        )  # fmt: skip
        return int((lengths[made].max(-1) * 16).sum() - lengths.sum())

    # Unsorted: the longest of 16 is near 122, the mean 69: over 40 % is padding. Sorted: a batch spans 1/16.
    assert padded(True) < 1024 * 119 / 16
    assert padded(False) > 0.4 * 1024 * 122
