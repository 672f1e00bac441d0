"""The colours of the page, read from its style sheet, so that a figure or a notebook cell means the same by blue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal

from ascend_perf.reports.bars import Bar, Kind

Theme = Literal["light", "dark"]

_BLOCKS: Final[dict[Theme, str]] = {"light": ":root {", "dark": ':root[data-theme="dark"] {'}
_COLOUR: Final = re.compile(r"--([\w-]+): (#[0-9a-f]{6})\b")

SHADES: Final = 5
"""Parts of one kind that have a colour of their own; the next one begins again, as in the page."""

FONT: Final = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "PingFang SC", "Microsoft YaHei", '
    '"Noto Sans CJK SC", sans-serif'
)
"""Fonts of the machine; the Chinese ones are for the Chinese texts."""


@lru_cache(maxsize=2)
def palette(theme: Theme = "light") -> Mapping[str, str]:
    """Colours by the name of their variable, e.g. `k-computing` (a category), `text`, `sev-high`, as `#rrggbb`."""
    sheet = (files("ascend_perf.reports") / "assets" / "report.css").read_text("utf-8")
    start = sheet.index(_BLOCKS[theme])
    return dict(_COLOUR.findall(sheet[start : sheet.index("\n}", start)]))


def category(kind: Kind, shade: int = 0, theme: Theme = "light") -> str:
    """The colour of a kind of time; `shade` counts the parts of that kind in a bar."""
    colours = palette(theme)
    if kind == "other":
        return colours["line"]
    place = shade % SHADES
    return colours.get(f"k-{kind}-{place}" if place else f"k-{kind}", colours[f"k-{kind}"])


def shades(bar: Bar) -> list[int]:
    """For each part of a bar which part of its kind it is, from 0."""
    seen: dict[Kind, int] = {}
    made = []
    for part in bar.parts:
        made.append(seen.get(part.kind, 0))
        seen[part.kind] = made[-1] + 1
    return made
