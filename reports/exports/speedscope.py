"""speedscope's JSON: one profile per flame graph, with its exact nanoseconds.

Source: https://www.speedscope.app/file-format-schema.json, profiles of type "sampled".
"""

from __future__ import annotations

import json
from typing import BinaryIO, Final

from ascend_perf import __version__
from ascend_perf.analyzers.flame import View
from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.exports._flames import FLAME_VIEWS, flames, shown_name, stacks, trace_of
from ascend_perf.reports.texts import safe
from ascend_perf.units import format_ns

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(request: Request, target: BinaryIO) -> tuple[str, ...]:
    """Write one view of one rank, or all that the profile has data for.

    Samples are the stacks of the graph, largest frame first, weights their own time in ns. They are not in the order of
    time: of its three views "Left Heavy" and "Sandwich" are meant.

    Raises:
        InputError: the profile has no data for the view.
    """
    trace = trace_of(request)
    made = flames(trace, FLAME_VIEWS if request.view is None else (request.view,))
    index: dict[str, int] = {}
    document = {
        "$schema": SCHEMA,
        "shared": {"frames": []},
        "profiles": [_profile(view, index) for view in made],
        "name": safe(trace.meta.label) + (" (SIMULATED)" if trace.meta.data_origin == "simulated" else ""),
        "activeProfileIndex": 0,
        "exporter": f"ascend-perf {__version__}",
    }
    document["shared"] = {"frames": [{"name": name} for name in index]}
    target.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    return tuple(
        f"calls that cross each other are left out: {format_ns(view.cut_ns)}" for view in made if view.cut_ns
    )


def _profile(view: View, index: dict[str, int]) -> dict[str, object]:
    frames = [index.setdefault(shown_name(name), len(index)) for name in view.tree.name.to_list()]
    samples, weights = [], []
    for rows, own_ns in stacks(view.tree):
        samples.append([frames[row] for row in rows])
        weights.append(own_ns)
    return {
        "type": "sampled",
        "name": view.name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


EXPORTER: Final = Exporter(
    name="speedscope",
    suffix="speedscope.json",
    summary="flame graphs for speedscope.app, which works offline",
    write=write_speedscope,
    views=FLAME_VIEWS,
    all_views=True,
    one_rank=True,
)
