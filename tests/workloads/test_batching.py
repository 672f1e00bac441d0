"""Continuous batching over a runner that keeps what it is fed in slots, and answers by all that it reads there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._batching import (
    Batcher,
    BlockPool,
    Draining,
    Event,
    Limits,
    QueueFull,
    Request,
    Row,
    Sampling,
)
from tests.workloads._slots import SlotRunner, alone

LIMITS = Limits(blocks=12, block_tokens=4, max_batch=3, max_queue=100, max_context=48, prefill_tokens=8)


def batcher(limits: Limits = LIMITS) -> tuple[Batcher, SlotRunner, list[Event]]:
    runner, events = SlotRunner(limits.block_tokens), list[Event]()
    return Batcher(runner, limits, events.extend), runner, events


def run_all(one: Batcher) -> None:
    one.run(lambda: not one.waiting and not one.running)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=1, max_size=20),
            st.integers(1, 12),
            st.none() | st.integers(0, 1 << 20),
            st.integers(0, 12),
        ),
        min_size=1, max_size=12,
    ),
    st.integers(1, 4), st.integers(1, 16), st.integers(8, 20),
)  # fmt: skip
def test_answers_do_not_depend_on_what_runs_beside_them(
    asked: list[tuple[list[int], int, int | None, int]], max_batch: int, prefill_tokens: int, blocks: int
) -> None:
    limits = replace(LIMITS, max_batch=max_batch, prefill_tokens=prefill_tokens, blocks=blocks)
    one, runner, events = batcher(limits)
    requests = []
    for prompt, max_tokens, seed, steps_before in asked:
        for _ in range(steps_before):  # they arrive while others run
            one.step()
        sampling = Sampling() if seed is None else Sampling(temperature=1.0, seed=seed)
        requests.append(Request(prompt=prompt, max_tokens=max_tokens, sampling=sampling))
        one.submit(requests[-1])
    run_all(one)

    for request, (prompt, max_tokens, seed, _) in zip(requests, asked, strict=True):
        assert request.output == alone(prompt, max_tokens, seed=seed)
        assert [event.token for event in events if event.request is request] == request.output
    assert sum(event.reason == "length" for event in events) == len(asked) == one.counts.finished
    assert one.pool.free == blocks
    assert one.counts.output_tokens == sum(len(request.output) for request in requests)
    assert one.counts.prefill_tokens == sum(len(prompt) for prompt, *_ in asked)
    assert max(len(rows) for rows in runner.rows) <= max_batch
    for rows in runner.rows:  # padded to the longest row, a step of prompts stays within its budget
        longest = max(len(row.tokens) for row in rows)
        assert longest == 1 or longest * len(rows) <= prefill_tokens


def test_a_long_prompt_is_fed_in_chunks_while_others_go_on() -> None:
    one, runner, _ = batcher(replace(LIMITS, blocks=20))
    short, long = Request(prompt=[1], max_tokens=6), Request(prompt=list(range(20)), max_tokens=2)
    one.submit(short)
    one.step()
    one.submit(long)
    run_all(one)

    # Steps of the model: the short prompt; then each chunk of 8, 8, 4 beside a token of the short one.
    assert [[(row.start, len(row.tokens)) for row in rows] for rows in runner.rows[:7]] == [
        [(0, 1)], [(0, 8)], [(1, 1)], [(8, 8)], [(2, 1)], [(16, 4)], [(3, 1)],
    ]  # fmt: skip
    assert long.output == alone(list(range(20)), 2)


def test_a_request_waits_until_blocks_for_all_of_it_are_free_and_none_overtakes() -> None:
    one, _, _ = batcher()  # 12 blocks of 4
    large = [Request(prompt=[1] * 20, max_tokens=13) for _ in range(2)]  # 32 fed tokens: 8 blocks each
    small = Request(prompt=[1], max_tokens=1)
    for request in (*large, small):
        one.submit(request)
    one.step()

    assert (one.running, one.waiting, one.pool.free) == (1, 2, 4)  # the small one stays behind the second large one
    run_all(one)
    assert [len(request.output) for request in (*large, small)] == [13, 13, 1]
    assert one.counts.peak_blocks == 9  # 8, and the small one beside the second


def test_the_token_that_stops_is_the_last() -> None:
    stop = alone([5, 5], 10)[3]
    one, _, events = batcher()
    request = Request(prompt=[5, 5], max_tokens=10, should_stop=lambda token: token == stop)
    one.submit(request)
    run_all(one)

    assert request.output == alone([5, 5], 10, should_stop=stop)
    assert [event.reason for event in events][-1] == "stop"


def test_a_cancelled_request_gives_its_blocks_back_running_or_waiting() -> None:
    one, _, events = batcher(replace(LIMITS, max_batch=1))
    running, waiting, third = (Request(prompt=[n], max_tokens=20) for n in range(3))
    for request in (running, waiting, third):
        one.submit(request)
    one.step()
    one.cancel(waiting)
    one.cancel(running)
    one.step()

    assert {event.request for event in events if event.reason == "cancelled"} == {running, waiting}
    assert (one.running, one.waiting) == (1, 0)
    run_all(one)
    assert third.output == alone([2], 20)
    assert one.pool.free == LIMITS.blocks
    one.cancel(third)  # it has ended: of no effect
    one.step()
    assert one.counts.cancelled == 2


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        (0, 1, "a prompt and one token"),
        (1, 0, "a prompt and one token"),
        (40, 9, "more than the context of 48"),
        (32, 16, "cannot hold the request"),
    ],
)
def test_what_can_never_run_is_refused(prompt: int, max_tokens: int, message: str) -> None:
    one, _, _ = batcher(replace(LIMITS, blocks=11))  # 44 tokens

    with pytest.raises(ValueError, match=message):
        one.submit(Request(prompt=[1] * prompt, max_tokens=max_tokens))


def test_the_largest_request_that_fits_runs() -> None:
    one, _, _ = batcher(replace(LIMITS, blocks=11, max_context=45))
    request = Request(prompt=[1] * 32, max_tokens=13)  # the 45th token is never fed: 44 slots
    one.submit(request)
    run_all(one)

    assert len(request.output) == 13


def test_a_full_queue_and_a_draining_batcher_refuse() -> None:
    one, _, _ = batcher(replace(LIMITS, max_queue=1))
    first = Request(prompt=[1], max_tokens=3)
    one.submit(first)
    with pytest.raises(QueueFull):
        one.submit(Request(prompt=[1], max_tokens=3))
    one.drain()
    with pytest.raises(Draining):
        one.submit(Request(prompt=[1], max_tokens=3))

    run_all(one)  # what was here goes on
    assert first.output == alone([1], 3)
    assert one.counts.refused == 1


def test_the_end_gives_up_what_is_left() -> None:
    one, _, events = batcher(replace(LIMITS, max_batch=1))
    requests = [Request(prompt=[1], max_tokens=20) for _ in range(2)]
    for request in requests:
        one.submit(request)
    one.step()
    one.end()

    assert {event.request for event in events if event.reason == "cancelled"} == set(requests)
    assert one.pool.free == LIMITS.blocks


def test_when_the_model_fails_those_that_run_are_told() -> None:
    class Broken:
        def run(self, rows: Sequence[Row]) -> list[tuple[int, float]]:
            raise RuntimeError("no memory")

    events: list[Event] = []
    one = Batcher(Broken(), LIMITS, events.extend)
    request = Request(prompt=[1], max_tokens=3)
    one.submit(request)

    with pytest.raises(RuntimeError, match="no memory"):
        one.step()
    assert [(event.request, event.reason) for event in events] == [(request, "error")]
    assert one.pool.free == LIMITS.blocks


def test_a_sleeping_batcher_wakes_for_what_another_thread_submits() -> None:
    one, _, events = batcher()
    thread = threading.Thread(target=one.run, args=(lambda: bool(events and events[-1].reason),))
    thread.start()
    request = Request(prompt=[3], max_tokens=4)
    one.submit(request)
    thread.join(10)

    assert not thread.is_alive()
    assert request.output == alone([3], 4)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=20))
def test_blocks_are_never_given_twice(sizes: list[int]) -> None:
    pool, held = BlockPool(10), list[list[int]]()
    for size in sizes:
        if (taken := pool.take(size)) is None:
            assert size > pool.free
            if held:
                pool.give(held.pop(0))
            continue
        held.append(taken)
        every = [block for blocks in held for block in blocks]
        assert len(every) == len(set(every)) and set(every) <= set(range(1, 11))
        assert pool.free == 10 - len(every)
