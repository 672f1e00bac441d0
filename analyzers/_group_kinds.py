"""What a communication group is for: data, tensor, context, expert or pipeline parallelism, named or inferred."""

from __future__ import annotations

import itertools
import re
from typing import Final, Literal

from ascend_perf.analyzers._communication import group_members, stage_count
from ascend_perf.model.tables import COMM_OPS
from ascend_perf.model.trace import Trace

GroupKind = Literal["dp", "tp", "cp", "ep", "pp"]

_WORDS: Final[dict[str, GroupKind]] = {
    "dp": "dp", "fsdp": "dp", "hsdp": "dp", "data": "dp", "zero": "dp", "ddp": "dp",
    "ep": "ep", "exp": "ep", "expert": "ep", "experts": "ep",
    "cp": "cp", "context": "cp", "sp": "cp", "sequence": "cp", "ulysses": "cp", "ring": "cp",
    "tp": "tp", "tensor": "tp",
    "pp": "pp", "pipeline": "pp",
}  # fmt: skip
_ORDER: Final[tuple[GroupKind, ...]] = ("dp", "ep", "cp", "tp", "pp")
"""Of a mixed name (`dp_cp`, `tp_ep`) the first counts: gradients are reduced over `dp_cp`, tokens go over `tp_ep`."""


def kind_of_label(label: str | None) -> GroupKind | None:
    """The kind that a group's label names: `tp`, `dp_cp`, `mesh_tp`, `TENSOR_MODEL_PARALLEL_GROUP`; else None."""
    words = [word for word in re.split(r"[^a-z]+", (label or "").lower()) if word]
    kinds = {_WORDS[word] for word in words if word in _WORDS}
    return next((kind for kind in _ORDER if kind in kinds), None)


def group_kinds(trace: Trace) -> dict[str | None, tuple[GroupKind, bool]]:
    """Kind of the groups of a trace's calls, and whether it is inferred; groups of unknown kind are left out.

    Inferred from the sizes in the metadata and the members, in the order of Megatron: tensor parallel ranks are next
    to each other, pipeline stages are blocks of ranks, data parallel ranks lie between. Status: assumed.
    """
    labels = {
        name: group.label for group in trace.meta.groups for name in (group.name, group.hash_id) if name is not None
    }
    table = trace[COMM_OPS]
    groups, written = table.text("group"), table.text("group_label")
    members = group_members(trace)
    kinds: dict[str | None, tuple[GroupKind, bool]] = {}
    for name in groups.compact().values:
        label = labels.get(name)
        if label is None and (rows := groups.equals(name).nonzero()[0]).size:
            label = written[int(rows[0])]
        kind = kind_of_label(label)
        if kind is not None:
            kinds[name] = (kind, False)
        elif label is None and (inferred := _inferred(trace, members.get(name, ()))) is not None:
            kinds[name] = (inferred, True)
    return kinds


def _inferred(trace: Trace, ranks: tuple[int, ...]) -> GroupKind | None:
    world = trace.meta.world_size
    strides = {after - before for before, after in itertools.pairwise(ranks)}
    if len(ranks) < 2 or world is None or len(strides) != 1:
        return None
    stride = strides.pop()
    tensor = max(1, trace.meta.parallel.get("tensor_model_parallel", 1))
    stages = stage_count(trace)
    if not trace.meta.parallel:
        return None
    if tensor > 1 and len(ranks) == tensor and stride == 1:
        return "tp"
    if stages > 1 and len(ranks) == stages and stride == world // stages:
        return "pp"
    if stride == tensor and len(ranks) * tensor * stages == world:
        return "dp"
    return None
