"""Stages of preprocessing that show as Python calls: image libraries, transforms and image processors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._python_lines import longest_within, short_frame
from ascend_perf.analyzers._steps import StepWindows, unions_by_step
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import PYTHON_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.units import format_ratio

OTHER: Final = "other preprocessing"
MAX_CALLS: Final = 3
"""Calls that a text names. Status: assumed."""

_LIBRARY: Final = re.compile(
    r"(^|/)(PIL|torchvision/(transforms|io|datasets)|cv2|albumentations|imgaug|skimage|kornia/(augmentation|enhance)|"
    r"timm/data|decord|imageio|monai/transforms)/|(^|/)(image_processing|image_transforms|video_processing|"
    r"feature_extraction|image_processor)\w*\.py\(|^<built-in method \w+ of Imaging\w+ object"
)
_FUNCTION: Final = re.compile(r"\.py\(\d+\): (?P<name>.+)$|^<built-in method (?P<builtin>\w+)")
_AFTER: Final = re.compile(r"post_?process", re.IGNORECASE)
_STAGES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("normalize", re.compile(r"normali[sz]e", re.IGNORECASE)),
    ("rescale", re.compile(r"rescale|to_float|convert_image_dtype|to_dtype", re.IGNORECASE)),
    ("resize", re.compile(r"resize|zoom|thumbnail|interpolate|warp|affine|perspective|rotate", re.IGNORECASE)),
    ("crop", re.compile(r"crop", re.IGNORECASE)),
    ("pad", re.compile(r"^_?pad", re.IGNORECASE)),
    ("colour", re.compile(r"^convert$|rgb|cvtcolor|hue|saturation|brightness|contrast|gr[ae]y|jitter", re.IGNORECASE)),
    ("flip", re.compile(r"flip", re.IGNORECASE)),
    ("decode", re.compile(r"decode|imread|^open$|^load$|read_(image|file|video)|draft|pil_loader", re.IGNORECASE)),
    ("layout", re.compile(r"to_?tensor|to_numpy|to_pil|fromarray|frombytes|tobytes|channel", re.IGNORECASE)),
)
"""What a function does, by its name; the first that fits."""

TAKERS: Final[dict[str, Literal["DVPP", "AIPP", "not known"]]] = {
    "decode": "DVPP", "resize": "DVPP", "crop": "DVPP", "normalize": "AIPP", "rescale": "AIPP", "pad": "AIPP",
    "colour": "AIPP", "layout": "AIPP",
}  # fmt: skip
"""What takes a stage over on the device; the others stay on the host."""

SAID: Final = {
    "decode": "解码", "resize": "缩放", "crop": "裁剪", "normalize": "归一化", "rescale": "数值缩放", "pad": "补边",
    "colour": "色域转换", "layout": "排布转换", "flip": "翻转", OTHER: "其他预处理",
}  # fmt: skip
"""The stages in Chinese."""


@dataclass(frozen=True, kw_only=True)
class PythonStage:
    """One stage: its calls in the steps (those within others of a stage count with them), and their union per step."""

    name: str
    count: int
    unions: list[IntervalSet]


@lru_cache(maxsize=65536)
def stage_of(name: str) -> str | None:
    """Stage that a Python call belongs to, `OTHER` where an image library does something else; None for other code."""
    if not _LIBRARY.search(name):
        return None
    found = _FUNCTION.search(name)
    function = (found["name"] or found["builtin"] or "") if found else ""
    if _AFTER.search(function):
        return None
    return next((stage for stage, pattern in _STAGES if pattern.search(function)), OTHER)


def python_stages(trace: Trace, windows: StepWindows) -> list[PythonStage]:
    """Stages of preprocessing in the Python calls of the launching threads.

    The outermost call of a stage counts: what `resize` converts on its way is resizing. What the libraries do outside
    of any stage is `OTHER`.

    Reads:
        python_calls: start_ns, dur_ns, name, thread.
    """
    calls = trace[PYTHON_CALLS]
    if not len(calls):
        return []
    stages = calls.text("name").relabel(stage_of)
    usable = (calls.ints("start_ns") != NULL) & (calls.ints("dur_ns") != NULL) & (stages.codes >= 0)
    other = next((code for code, name in enumerate(stages.values) if name == OTHER), -1)
    specific = usable & (stages.codes != other)
    roots = _roots(calls, specific)
    named = [
        PythonStage(name=name, count=_inside(calls, windows, rows), unions=unions_by_step(trace, calls, rows, windows))
        for code, name in enumerate(stages.values)
        if code != other and (rows := roots & (stages.codes == code)).any()
    ]
    every = unions_by_step(trace, calls, usable, windows)
    told = [intervals.union(*(stage.unions[at] for stage in named)) for at in range(len(windows))]
    rest = [intervals.difference(a, b) for a, b in zip(every, told, strict=True)]
    if any(len(union.starts) for union in rest):
        count = _inside(calls, windows, _roots(calls, usable) & (stages.codes == other))
        named.append(PythonStage(name=OTHER, count=max(1, count), unions=rest))
    return [stage for stage in named if stage.count]


def told_calls(trace: Trace, where: IntervalSet) -> str:
    """The calls that take most of some time themselves, with their share of it: `zoom 87 %, clip 1.2 %`."""
    whole = intervals.total(where)
    found = longest_within(trace, where)[:MAX_CALLS] if whole else []
    return ", ".join(f"{short_frame(name)[:80]} {format_ratio(spent / whole)}" for name, spent in found)


def _roots(calls: Table, wanted: Bools) -> Bools:
    """Of some calls those that are not within another one of them on the same thread."""
    starts, ends, threads = calls.ints("start_ns"), calls.ends_ns(), calls.ints("thread")
    roots = np.zeros(len(calls), bool)
    for thread in np.unique(threads[wanted]).tolist():
        rows = np.flatnonzero(wanted & (threads == thread))
        rows = rows[np.lexsort((-ends[rows], starts[rows]))]
        roots[rows[intervals.parents(starts[rows], ends[rows]) < 0]] = True
    return roots


def _inside(calls: Table, windows: StepWindows, rows: Bools) -> int:
    at: Ints = calls.ints("start_ns")[rows]
    place = np.searchsorted(windows.starts, at, side="right") - 1
    return int(((place >= 0) & (at < windows.ends[np.clip(place, 0, None)])).sum()) if len(windows) else 0
