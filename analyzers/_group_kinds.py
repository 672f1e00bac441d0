"""What a communication group is for: data, tensor, context, expert or pipeline parallelism, named or inferred."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
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


_SIZES: Final[dict[GroupKind, tuple[str, ...]]] = {
    "tp": ("tensor_model_parallel", "tensor_parallel", "tp"),
    "cp": ("context_parallel", "cp"),
    "ep": ("expert_model_parallel", "expert_parallel", "ep"),
    "dp": ("data_parallel", "dp"),
    "pp": ("pipeline_model_parallel", "pipeline_parallel", "pp"),
}
"""Names of a size in metadata, each also with `_size` behind it."""


def stated_size(trace: Trace, kind: GroupKind) -> int | None:
    """Ranks of a kind of parallelism as the metadata state it; None where they do not."""
    for key in _SIZES[kind]:
        for name in (key, f"{key}_size"):
            if trace.meta.parallel.get(name, 0) > 0:
                return int(trace.meta.parallel[name])
    return None


def parallel_size(trace: Trace, kind: GroupKind) -> int | None:
    """Ranks of a kind of parallelism: as the metadata state it, else the size of a group that they label so."""
    stated = stated_size(trace, kind)
    if stated is not None:
        return stated
    return next((len(group.ranks) for group in trace.meta.groups if group.ranks and group.label == kind), None)


def group_kinds(trace: Trace) -> dict[str | None, tuple[GroupKind, bool]]:
    """Kind of the groups of a trace's calls, and whether it is inferred; groups of unknown kind are left out.

    A label in the metadata or the trace decides. Without one: from the members and the sizes in the metadata
    (`kind_of_members`), or, where those are not there, pipeline for a group of explicit sends and receives.

    Reads:
        comm_ops: op, group, group_label; meta: groups, parallel, world size.
    """
    labels = {
        name: group.label for group in trace.meta.groups for name in (group.name, group.hash_id) if name is not None
    }
    table = trace[COMM_OPS]
    groups, written, ops = table.text("group"), table.text("group_label"), table.text("op")
    members = group_members(trace)
    kinds: dict[str | None, tuple[GroupKind, bool]] = {}
    for name in groups.compact().values:
        rows = groups.equals(name)
        label = labels.get(name)
        if label is None and rows.any():
            label = written[int(rows.nonzero()[0][0])]
        kind = kind_of_label(label)
        if kind is not None:
            kinds[name] = (kind, False)
        elif label is None:
            inferred = _inferred(trace, members.get(name, ()), frozenset(ops.take(rows).compact().values))
            if inferred is not None:
                kinds[name] = (inferred, True)
    return kinds


def _inferred(trace: Trace, ranks: tuple[int, ...], ops: frozenset[str]) -> GroupKind | None:
    world = trace.meta.world_size
    if trace.meta.parallel and world is not None:
        sizes = {kind: parallel_size(trace, kind) for kind in _SIZES}
        sizes["pp"] = max(stage_count(trace), sizes["pp"] or 1)
        return kind_of_members(ranks, world, sizes, has_exchange=bool(ops & _EXCHANGES))
    if ops and ops <= _EXPLICIT_P2P and trace.meta.device.kind == "npu":
        return "pp"
    return None


_EXCHANGES: Final = frozenset({"alltoall", "alltoallv"})
_EXPLICIT_P2P: Final = frozenset({"send", "receive"})


def kind_of_members(
    ranks: tuple[int, ...], world: int, sizes: Mapping[GroupKind, int | None], *, has_exchange: bool = False
) -> GroupKind | None:
    """What a group of equally spaced ranks is for, in the layout of Megatron; None where its place is no kind's.

    rank = tp + TP * (cp + CP * (dp + DP * pp)): tensor parallel ranks are next to each other, then context, then data
    parallel ones, and stages are blocks of ranks. Expert parallel ranks lie among the context and data parallel ones
    (TP apart); where those are the same ranks as a context or data parallel group, all-to-all calls tell experts.

    Args:
        ranks: members in ascending order.
        world: ranks of the job.
        sizes: ranks of each kind; 1 where not stated, data parallel from the others then.
        has_exchange: the group runs all-to-all calls.

    Source:
        Megatron-LM, parallel_state.RankGenerator, order tp-cp-ep-dp-pp. Status: assumed of the job at hand.
    """
    spaces = {after - before for before, after in itertools.pairwise(ranks)}
    if len(ranks) < 2 or len(spaces) != 1:
        return None
    count, space = len(ranks), spaces.pop()
    if ranks[0] // space % count:
        return None  # a group begins at the first coordinate of its kind
    tensor, context, experts, stages = (max(1, sizes.get(kind) or 1) for kind in ("tp", "cp", "ep", "pp"))
    if world % (tensor * context * stages):
        return None
    data = world // (tensor * context * stages)
    if stages > 1 and (count, space) == (stages, world // stages):
        return "pp"
    if tensor > 1 and (count, space) == (tensor, 1):
        return "tp"
    is_of_experts = experts > 1 and (count, space) == (experts, tensor)
    is_of_data = (count, space) in (
        (data, tensor * context),
        (data * context, tensor),
        (data * context // experts, tensor * experts),
    )
    is_of_context = context > 1 and (count, space) == (context, tensor)
    if is_of_experts and (has_exchange or not (is_of_data or is_of_context)):
        return "ep"
    if is_of_context:
        return "cp"
    return "dp" if is_of_data else None
