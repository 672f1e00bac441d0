"""The charts of the page as plotly figures, for notebooks and other pages. plotly is imported when one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ascend_perf.reports import _plots_kernels, _plots_ranks, _plots_time
from ascend_perf.reports._plots import NotInData, Sheet
from ascend_perf.reports.palette import Theme
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.texts import Lang

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIGURES: Final[Mapping[str, Callable[[Sheet], go.Figure]]] = {
    "step-bar": _plots_time.step_bar,
    "timeline": _plots_time.timeline,
    "counters": _plots_time.counters,
    "critical-path": _plots_time.critical_path,
    "job-critical-path": _plots_time.job_critical_path,
    "op-types": _plots_kernels.op_types,
    "wasted-time": _plots_kernels.wasted_time,
    "roofline": _plots_kernels.roofline,
    "flame-device-module": _plots_kernels.flame_device_module,
    "flame-device-stack": _plots_kernels.flame_device_stack,
    "flame-device-op": _plots_kernels.flame_device_op,
    "comm-groups": _plots_ranks.comm_groups,
    "comm-waits": _plots_ranks.comm_waits,
    "comm-links": _plots_ranks.comm_links,
    "link-matrix": _plots_ranks.link_matrix,
    "size-bandwidth": _plots_ranks.size_bandwidth,
    "idle-causes": _plots_time.idle_causes,
    "flame-host": _plots_kernels.flame_host,
    "memory": _plots_time.memory,
    "rank-strip": _plots_ranks.rank_strip,
    "rank-waits": _plots_ranks.rank_waits,
    "loss": _plots_time.loss,
    "gradient-norm": _plots_time.gradient_norm,
    "loss-scale": _plots_time.loss_scale,
}
"""Every figure by name, in the order of the page's sections. Each raises NotInData where the data is not there."""


def figure(
    payload: Payload, name: str, *, rank: int | None = None, lang: Lang = "en", theme: Theme = "light"
) -> go.Figure:
    """One figure by name; of the first rank that has it when `rank` is None.

    Raises:
        KeyError: there is no such figure; `NotInData`, a KeyError: the profile does not hold what it needs.
    """
    if name not in FIGURES:
        raise KeyError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    try:
        return FIGURES[name](Sheet(payload=payload, rank=rank, lang=lang, theme=theme))
    except NotInData as error:
        raise NotInData(f"the figure {name!r} is not in this data: {error.args[0]}") from None


def figures(
    payload: Payload, *, rank: int | None = None, lang: Lang = "en", theme: Theme = "light"
) -> dict[str, go.Figure]:
    """Every figure that the data has, by name and in the order of the page."""
    sheet = Sheet(payload=payload, rank=rank, lang=lang, theme=theme)
    made = {}
    for name, draw in FIGURES.items():
        try:
            made[name] = draw(sheet)
        except NotInData:
            continue
    return made


def step_bar(payload: Payload, *, lang: Lang = "en") -> go.Figure:
    """Where the step goes: one stacked bar per rank, in ms."""
    return figure(payload, "step-bar", lang=lang)


def roofline(payload: Payload, *, rank: int | None = None, lang: Lang = "en") -> go.Figure:
    """Kernels of one rank by arithmetic intensity and achieved rate, with the roofs of the device.

    Raises:
        KeyError: the rank has no roofline.
    """
    return figure(payload, "roofline", rank=rank, lang=lang)


def memory(payload: Payload, *, rank: int | None = None, lang: Lang = "en") -> go.Figure:
    """Allocated and reserved memory of one rank over the step, in GiB and ms.

    Raises:
        KeyError: the rank has no memory timeline.
    """
    return figure(payload, "memory", rank=rank, lang=lang)
