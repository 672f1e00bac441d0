"""How figures are written."""

from __future__ import annotations

import pytest

from ascend_perf.units import amdahl_bound, counted, format_bound, format_quantity, format_range, significant

THIN = "\u2009"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (136_581_009, "ns", "136.6 ms"),
        (98_000_000, "ns", "98 ms"),
        (1_478_180, "ns", "1.478 ms"),
        (999_960, "ns", "1 ms"),
        (2_500, "ns", "2.5 us"),
        (12, "ns", "12 ns"),
        (9_999_500_000, "ns", f"10{THIN}000 ms"),
        (12_345_678_901, "ns", "12.35 s"),
        (0, "ns", "0 ns"),
        (-1_500, "ns", "-1.5 us"),
        (0.7175, "ratio", "72 %"),
        (0.0345, "ratio", "3.5 %"),
        (0.1, "ratio", "10 %"),
        (1_522_532_352, "bytes", "1.418 GiB"),
        (15.6539e9, "bytes_per_s", "15.65 GB/s"),
        (353.9e12, "flops_per_s", "353.9 TFLOPS"),
        (1.8e9, "hertz", "1.8 GHz"),
        (3.571, "x", "3.57x"),
        (1.0042, "x", "1.004x"),  # near 1 the distance to it is what counts
        (0.99614, "x", "0.9961x"),
        (1.104, "x", "1.1x"),
        (1234567, "count", f"1{THIN}234{THIN}567"),
        (None, "ns", "—"),
        (float("nan"), "ratio", "—"),
    ],
)
def test_quantities_have_four_digits_and_a_unit(value: float | None, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text  # type: ignore[arg-type]


def test_no_exponent_and_no_trailing_zeros() -> None:
    assert significant(0.000012345) == "0.00001234" or significant(0.000012345) == "0.00001235"
    assert significant(1200) == f"1{THIN}200"


def test_a_small_bound_does_not_read_one() -> None:
    assert [format_bound(b) for b in (1.0048, 1.0836, 1.1, 3.5300, 12.345)] == ["1.005", "1.084", "1.1", "3.53", "12.3"]


def test_a_range_says_what_is_written_alike_once() -> None:
    assert format_range("9.121 ms", "22.72 ms") == "9.121 ms – 22.72 ms"
    assert format_range("3 ms", "3 ms") == "3 ms"


def test_amdahl_bound() -> None:
    assert amdahl_bound(0.5) == 2.0
    assert amdahl_bound(0.0) == 1.0
    assert amdahl_bound(1.0) is None
    with pytest.raises(ValueError, match="0 or more"):
        amdahl_bound(-0.1)


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (1, ("matrix product",), "1 matrix product"),
        (2, ("matrix product",), "2 matrix products"),
        (0, ("gap",), "0 gaps"),
        (1.0, ("kernel runs", "kernels run"), "1 kernel runs"),
        (1.5, ("kernel runs", "kernels run"), "1.5 kernels run"),
        (1.00001, ("kernel",), "1 kernel"),
        (123456, ("launch", "launches"), "123456 launches"),
    ],
)
def test_a_noun_agrees_with_the_number_as_it_is_written(count: float, nouns: tuple[str, ...], text: str) -> None:
    assert counted(count, *nouns) == text
