"""The helper that runs a job of several processes in a test."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import pytest

from tests.workloads._ranks import run_ranks

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Said:
    rank: int
    total: float


def add_ranks(offset: int) -> Said:
    import torch
    import torch.distributed as dist

    assert torch.get_num_threads() == 1
    value = torch.tensor([float(dist.get_rank() + offset)])
    dist.all_reduce(value)
    return Said(dist.get_rank(), float(value))


def fail_on_one(how: str) -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        if how == "raise":
            raise ValueError("planted in rank one")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    dist.all_reduce(torch.zeros(1))  # waits for the other rank


def test_results_come_in_rank_order_and_ranks_talk_to_each_other() -> None:
    pytest.importorskip("torch")

    assert run_ranks(add_ranks, 2, 10) == [Said(0, 21.0), Said(1, 21.0)]


@pytest.mark.parametrize(
    ("how", "message", "timeout_s"),
    [
        ("raise", r"(?s)rank 1 of 2 failed:.*in fail_on_one.*ValueError: planted in rank one", 120),
        ("die", "rank 1 died with exit code -9", 120),
        pytest.param("sleep", r"ranks .*1\] of 2 are not done", 15, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_ends_the_test_and_names_itself(how: str, message: str, timeout_s: float) -> None:
    pytest.importorskip("torch")

    with pytest.raises(AssertionError, match=message):
        run_ranks(fail_on_one, 2, how, timeout_s=timeout_s)


def test_a_function_that_a_process_could_not_find_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(TypeError, match="top level"):
        run_ranks(inner, 2)
