"""The order of a pipeline: every pass once, nothing before its input, no rank waiting for ever, few under way."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.workloads._schedule import Action, interleaved, most_under_way, one_forward_one_backward

Message = tuple[str, int, int]
"""Kind, stage that takes it, micro-batch."""


def words(actions: list[Action]) -> str:
    return " ".join(f"{action.kind[0].upper()}{action.micro}" for action in actions)


def test_the_schedule_of_two_ranks_is_that_of_the_docstring() -> None:
    assert words(one_forward_one_backward(0, 2, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert words(one_forward_one_backward(1, 2, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaving_goes_through_both_stages_in_rounds() -> None:
    actions = interleaved(0, 2, 2, 2)

    # Ahead: 2 x (2 - 1 - 0) + (2 - 1) x 2 = 4, all of the 2 x 2 forward passes.
    assert [(action.kind[0], action.slot, action.micro) for action in actions] == [
        ("f", 0, 0), ("f", 0, 1), ("f", 1, 0), ("f", 1, 1), ("b", 1, 0), ("b", 1, 1), ("b", 0, 0), ("b", 0, 1),
    ]  # fmt: skip


def run(ranks: int, slots: int, schedules: list[list[Action]]) -> int:
    """Play the schedules against each other; messages arrive in the order of their way, as in `_pipeline.channels`.

    Returns the turns it took, in each of which every rank that has its input does one pass.
    """
    last = ranks * slots - 1
    ways: dict[tuple[int, str, bool], deque[Message]] = {}
    queues = [deque(actions) for actions in schedules]
    forwarded: set[tuple[int, int]] = set()
    turns = 0
    while any(queues):
        turns += 1
        done: list[tuple[int, Action]] = []
        for rank, queue in enumerate(queues):
            if not queue:
                continue
            action = queue[0]
            stage = action.slot * ranks + rank
            needs_input = stage > 0 if action.kind == "forward" else stage < last
            wraps = rank == (0 if action.kind == "forward" else ranks - 1)
            way = ways.setdefault((rank, action.kind, wraps), deque())
            if needs_input and not way:
                continue
            if needs_input:
                assert way.popleft() == (action.kind, stage, action.micro), "a message out of order"
            if action.kind == "backward":
                assert (stage, action.micro) in forwarded, "backward before forward"
            done.append((rank, queue.popleft()))
        assert done, f"all ranks wait: {[list(queue)[:1] for queue in queues]}"
        for rank, action in done:
            stage = action.slot * ranks + rank
            if action.kind == "forward":
                forwarded.add((stage, action.micro))
            target = stage + (1 if action.kind == "forward" else -1)
            if 0 <= target <= last:
                wraps = rank == (ranks - 1 if action.kind == "forward" else 0)
                way = ways.setdefault((target % ranks, action.kind, wraps), deque())
                way.append((action.kind, target, action.micro))
    assert not any(ways.values()), "a message that nobody takes"
    return turns


def passes(slots: int, micro_batches: int) -> list[tuple[str, int, int]]:
    return sorted((kind, slot, micro) for kind in ("backward", "forward") for slot in range(slots)
                  for micro in range(micro_batches))  # fmt: skip


@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_never_waits_for_ever_and_takes_as_long_as_its_bubble_says(ranks: int, micro_batches: int) -> None:
    schedules = [one_forward_one_backward(rank, ranks, micro_batches) for rank in range(ranks)]

    turns = run(ranks, 1, schedules)

    for rank, actions in enumerate(schedules):
        assert sorted((action.kind, action.slot, action.micro) for action in actions) == passes(1, micro_batches)
        assert most_under_way(actions) == min(ranks - rank, micro_batches)
    assert turns == 2 * (micro_batches + ranks - 1)  # passes of one turn each; the bubble is 2 (ranks - 1)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4))
def test_interleaved_never_waits_for_ever_and_has_a_smaller_bubble(ranks: int, slots: int, rounds: int) -> None:
    micro_batches = ranks * rounds
    schedules = [interleaved(rank, ranks, slots, micro_batches) for rank in range(ranks)]

    turns = run(ranks, slots, schedules)

    for rank, actions in enumerate(schedules):
        assert sorted((action.kind, action.slot, action.micro) for action in actions) == passes(slots, micro_batches)
        limit = 2 * (ranks - 1 - rank) + (slots - 1) * ranks + 1
        assert most_under_way(actions) == min(limit, slots * micro_batches)
    # A pass is 1 / slots as long as without interleaving, whose bubble would be 2 (ranks - 1) slots of these turns.
    assert turns - 2 * slots * micro_batches <= 2 * (ranks - 1) * slots


def test_interleaved_needs_whole_rounds() -> None:
    with pytest.raises(ValueError, match=r"^5 micro-batches do not divide into rounds of 2$"):
        interleaved(0, 2, 2, 5)
