"""Versions of CANN in their order, which is not that of Python packages; names of chips that begin alike."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.device import compatibility

IN_ORDER = (
    "7.0.0", "8.0.RC3.alpha003", "8.0.RC3", "8.0.0", "8.1.RC1", "8.2.RC1.alpha002", "8.2.RC1", "8.3.RC1",
    "8.5.0.alpha001", "8.5.0", "8.5.1", "9.0.0-beta.2", "9.0.0", "9.1.0", "9.2",
)  # fmt: skip


def test_versions_of_cann_are_in_order() -> None:
    for earlier, later in itertools.combinations(IN_ORDER, 2):
        assert compatibility.version_key(earlier) < compatibility.version_key(later), (earlier, later)


@given(st.text(max_size=20))
def test_any_text_has_a_place(text: str) -> None:
    numbers, stage, after = compatibility.version_key(text)
    assert len(numbers) >= 3
    assert 0 <= stage <= 3
    assert sorted([(numbers, stage, after), compatibility.version_key("8.2.RC1")])


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("Ascend910B1", "A2"), ("Ascend910B2C", "A2"), ("Ascend910B4-1", "A2"), ("Ascend910_9392", "A3"),
        ("Ascend910_9363", "A3"), ("Ascend910B", "910"), ("Ascend910A", "910"), ("Ascend910ProB", "910"),
        ("Ascend310P3", "310P"), ("Ascend310B4", "310B"), ("Ascend910Z9", None), ("Ascend9", None),
    ],
)
def test_a_name_that_begins_another_is_another_chip(name: str, generation: str | None) -> None:
    soc = compatibility.soc_of(name)
    assert (None if soc is None else soc.generation) == generation


def test_a_package_of_torch_npu_names_its_torch_and_its_cann() -> None:
    assert compatibility.torch_of("2.7.1.post8") == "2.7.1"
    release = compatibility.release_of("2.7.1.post8")
    assert release is not None
    assert (release.release, release.cann) == ("26.1.0", "9.1.0")
    assert compatibility.release_of("2.13.0") is None  # published, not in the matrix: unverified, no error
    assert compatibility.cann_fits("8.5.0", "2.13.0") == "unverified"
