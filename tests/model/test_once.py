"""What is kept within `sharing`, and that nothing is kept outside of it."""

from __future__ import annotations

import gc
import weakref

import pytest

from ascend_perf.model.once import once, sharing


class Thing:
    """Has an identity, and equals every other one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment] # arguments need not be hashable


calls: list[str] = []


@once
def made(thing: Thing, extra: object = None) -> list[str]:
    calls.append("made")
    return []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_the_same_object_is_worked_on_once() -> None:
    thing = Thing()
    with sharing():
        assert made(thing) is made(thing)
    assert calls == ["made"]


def test_equal_objects_are_told_apart() -> None:
    with sharing():
        assert made(Thing()) is not made(Thing())
    assert calls == ["made", "made"]


def test_each_argument_counts() -> None:
    thing = Thing()
    with sharing():
        first, second, third = made(thing), made(thing, extra=1), made(thing, 1)
    assert len({id(first), id(second), id(third)}) == 3


def test_objects_that_went_away_are_not_mistaken_for_new_ones() -> None:
    with sharing():
        results = [made(Thing()) for _ in range(50)]
    assert len({id(result) for result in results}) == 50


def test_nothing_is_kept_outside() -> None:
    thing = Thing()
    made(thing), made(thing)
    with sharing():
        made(thing)
    with sharing():
        made(thing)
    assert calls == ["made"] * 4


def test_an_inner_block_has_results_of_its_own() -> None:
    thing = Thing()
    with sharing():
        outer = made(thing)
        with sharing():
            assert made(thing) is not outer
        assert made(thing) is outer


def test_errors_are_not_kept() -> None:
    @once
    def fails(thing: Thing) -> None:
        calls.append("fails")
        raise ValueError

    thing = Thing()
    with sharing():
        for _ in range(2):
            with pytest.raises(ValueError):
                fails(thing)
    assert calls == ["fails", "fails"]


def test_everything_is_given_back() -> None:
    thing = Thing()
    known = weakref.ref(thing)
    with sharing():
        made(thing)
    del thing
    gc.collect()
    assert known() is None
