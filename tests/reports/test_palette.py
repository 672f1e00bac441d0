"""Text on the colours of categories can be read: WCAG AA for every shade, in both themes."""

from __future__ import annotations

import pytest

from ascend_perf.reports.palette import Theme, palette

DARK_ON = {"computing": (1, 3), "copy": (1, 3), "host": (1, 3)}
"""Shades that are pale: dark text stands on them, white on the others beside the first."""


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.1)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(kind: str, shade: int, theme: Theme) -> str:
    """The colour of text that the style sheet sets for a shade."""
    colours = {**palette("light"), **palette(theme)}
    if shade and kind in DARK_ON:
        return colours["on-pale"] if shade in DARK_ON[kind] else "#ffffff"
    if kind == "idle" and theme == "dark" and shade in (2, 4):
        return "#ffffff"
    return colours[f"on-{kind}"]


def test_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["computing", "transfer", "copy", "idle", "host"])
def test_text_on_every_shade_can_be_read(kind: str, theme: Theme) -> None:
    colours = {**palette("light"), **palette(theme)}

    for shade in range(5):
        paper = colours[f"k-{kind}-{shade}" if shade else f"k-{kind}"]
        assert contrast(paper, text_on(kind, shade, theme)) >= 4.5, (kind, shade)
