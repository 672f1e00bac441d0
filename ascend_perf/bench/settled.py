"""Letting go of what the first steps of a training sent, on virtual devices whose clock real time does not move.

torch_npu keeps the tensors of a collective until its watchdog, which looks once a second of real time, has seen it done
and the next collective of the same group comes. DDP makes its buckets anew in the second step: the first ones, as large
as all gradients, are there beside them until then. With the modelled clock a step takes no time that means anything, so
whether measured steps have both would follow from how fast this machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

LOOK_S: Final = 1.2
"""The watchdog has looked at least once."""
MOST_LOOKS: Final = 3
"""What is held for longer is held by something else, and counts. Status: assumed."""
SLACK_BYTES: Final = 8 << 20
"""Masks, batches and what else is small."""


def settle(
    held: Mapping[str, int], requested_bytes: Callable[[], int], step: Callable[[], None], *,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:  # fmt: skip
    """Wait and do further steps until a training holds no more between two steps than what stays; whether it does.

    Args:
        held: measured bytes by component, as `Program.memory_bytes` gives them; without gradients there is nothing to
            wait for.
        requested_bytes: what tensors take on the device now.
        step: does one step.
    """
    if "gradients" not in held:
        return True
    stays = sum(size for part, size in held.items() if part != "activations") + SLACK_BYTES
    for _ in range(MOST_LOOKS):
        if requested_bytes() <= stays:
            return True
        sleep(LOOK_S)
        step()
    return requested_bytes() <= stays


def requested_on_npu() -> int:
    """Bytes that tensors asked for on this process's NPU."""
    import torch

    torch.npu.synchronize()
    torch.empty(1, device="npu")  # the allocator looks for blocks whose events have passed
    return int(torch.npu.memory_stats()["requested_bytes.all.current"])
