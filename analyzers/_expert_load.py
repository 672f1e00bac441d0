"""Grouped products of experts: which kernels they are, and how many tokens each multiplied."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._group_kinds import kind_of_label
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.analyzers._steps import membership
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import KERNELS

_GROUPED: Final = re.compile(r"grouped_?(mat_?mul|mm|gemm)|group_?gemm|fused_moe|moe_gemm", re.IGNORECASE)
_AXES: Final = re.compile(r"\d{1,18}(,\d{1,18}){0,7}")


def is_grouped(kernels: Table) -> Bools:
    """Kernels that multiply the tokens of several experts at once."""
    return kernels.text("op_type").flags(_is_grouped) | kernels.text("name").flags(_is_grouped)


def _is_grouped(name: str) -> bool:
    return bool(_GROUPED.search(name))


def tokens_of(shapes: str) -> float:
    """Rows of the first input tensor, all of its axes but the last; NaN when the shapes do not tell."""
    first = shapes.strip('"').split(";")[0]
    if not _AXES.fullmatch(first):
        return float("nan")
    axes = [int(axis) for axis in first.split(",")]
    return float(math.prod(axes[:-1] or axes))


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """What the grouped products of a rank cost in an average step."""

    view: RankView
    time_ns: float
    tokens: float | None
    """Rows of the inputs, summed over the kernels; None when no shape tells."""
    kernels: int


def load_of(view: RankView) -> ExpertLoad | None:
    """The load of a rank, None when no grouped product lies in a step.

    Reads:
        kernels: op_type, name, dur_ns, input_shapes, step_id, start_ns.
    """
    kernels = view.trace[KERNELS]
    rows = is_grouped(kernels) & (membership(view.trace, kernels, view.calls.windows) >= 0)
    rows &= kernels.ints("dur_ns") != NULL
    if not rows.any():
        return None
    tokens = kernels.text("input_shapes").numbers(tokens_of)[rows]
    steps = max(1, view.steps)
    return ExpertLoad(
        view=view, time_ns=int(kernels.ints("dur_ns")[rows].sum()) / steps, kernels=int(rows.sum()),
        tokens=None if np.isnan(tokens).all() else float(np.nansum(tokens)) / steps,
    )  # fmt: skip


def expert_groups(job: Job) -> dict[tuple[int, ...], bool]:
    """Ranks that share experts, and whether that is inferred: the groups named `ep`, else the ranks of a stage."""
    named: dict[tuple[int, ...], bool] = {}
    for view in job.ranks:
        for group in view.trace.meta.groups:
            if kind_of_label(group.label) == "ep" and view.rank in group.ranks and len(group.ranks) > 1:
                named[tuple(group.ranks)] = False
    if named:
        return named
    stages = sorted({view.stage for view in job.ranks}, key=lambda stage: -1 if stage is None else stage)
    return {tuple(v.rank for v in job.ranks if v.stage == stage): True for stage in stages}
