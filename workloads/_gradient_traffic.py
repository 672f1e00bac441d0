"""What DistributedDataParallel sends: gradients in buckets, by formula. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ascend_perf.workloads._spec import Traffic

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""Sizes at which DistributedDataParallel closes its first and its other buckets. Source: its default arguments."""
FP32_BYTES: Final = 4


def bucket_count(sizes_bytes: Sequence[int]) -> int:
    """Buckets that hold tensors of these sizes, given in the order in which their gradients are ready.

    A bucket is closed when it has reached its limit, with the tensor that reached it inside.
    """
    count, held, limit = 0, 0, FIRST_BUCKET_BYTES
    for size in sizes_bytes:
        held += size
        if held >= limit:
            count, held, limit = count + 1, 0, BUCKET_BYTES
    return count + (held > 0)


def gradient_traffic(values: Sequence[int], *, world_size: int, numbers: int = 0) -> tuple[Traffic, ...]:
    """All-reduce of the gradients, in fp32, of tensors of `values` in the order of the module; none on one rank.

    Args:
        numbers: further values in fp32 that each step averages in one call (the loss); 0: none.
    """
    if world_size == 1:
        return ()
    sizes_bytes = [FP32_BYTES * count for count in reversed(values)]
    return (
        Traffic(
            axis="data",
            collective="all_reduce",
            bytes_per_step=sum(sizes_bytes) + FP32_BYTES * numbers,
            calls_per_step=bucket_count(sizes_bytes) + (numbers > 0),
        ),
    )
