"""Process groups of the axes of a layout, by torch.distributed's DeviceMesh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from ascend_perf.workloads._layout import Axes, Axis, Layout
from ascend_perf.workloads._pipeline import Channel, channels, connect
from ascend_perf.workloads._spec import Place


@dataclass(kw_only=True)
class Groups:
    """Process groups of this rank by axis; an axis of one rank has none."""

    axes: Axes
    rank: int
    by_axis: dict[Axis, dist.ProcessGroup] = field(default_factory=dict)
    meshes: dict[Axis, Any] = field(default_factory=dict)
    """One-dimensional DeviceMesh of the replica axis, as FSDP2 wants it."""
    channels: dict[Channel, dist.ProcessGroup] = field(default_factory=dict)
    peers: list[int] = field(default_factory=list)
    """Ranks of this rank's pipeline."""

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Index along (pipeline, data, context, tensor)."""
        return self.axes.place(self.rank)

    def __getitem__(self, axis: Axis) -> dist.ProcessGroup | None:
        return self.by_axis.get(axis)

    def close(self) -> None:
        """Leave all groups but that of the whole job, for one that goes on with another layout."""
        every = {id(group): group for group in (*self.by_axis.values(), *self.channels.values())}
        for group in every.values():
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)


def make_groups(axes: Axes, layout: Layout, place: Place) -> Groups:
    """Process groups of every axis with two or more ranks. All ranks call it together."""
    groups = Groups(axes=axes, rank=place.rank)
    if axes.world_size == 1:
        return groups
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    names: tuple[Axis, ...] = ("pipeline", "data", "context", "tensor")
    sizes = (axes.pipeline, axes.data, axes.context, axes.tensor)
    mesh = init_device_mesh(place.kind, sizes, mesh_dim_names=names)
    for name in names:
        if getattr(axes, name) > 1:
            groups.by_axis[name] = mesh[name].get_group()
    if axes.data > 1 and axes.context > 1:
        groups.by_axis["replica"] = _new_group(axes.groups("replica"), place.rank, "dp_cp")
    elif axes.replicas > 1:
        groups.by_axis["replica"] = groups.by_axis["data" if axes.data > 1 else "context"]
    if axes.expert > 1:
        groups.by_axis["expert"] = _new_group(axes.groups("expert"), place.rank, "ep")
        if axes.replicas > axes.expert:
            groups.by_axis["expert replica"] = _new_group(axes.groups("expert replica"), place.rank, "expert_dp")
    if layout.data_parallel == "fsdp" and axes.replicas > 1:
        groups.meshes["replica"] = DeviceMesh.from_group(groups.by_axis["replica"], place.kind)
        if axes.expert > 1:
            # FSDP2 takes experts that no other rank holds as sharded over one rank.
            group = groups.by_axis.get("expert replica")
            group = group or _new_group(axes.groups("expert replica"), place.rank, "expert_dp")
            groups.meshes["expert replica"] = DeviceMesh.from_group(group, place.kind)
    if axes.pipeline > 1:
        rows = axes.groups("pipeline")
        groups.peers = next(row for row in rows if place.rank in row)
        for channel in channels(layout.pipeline_stages_per_rank):
            groups.channels[channel] = _new_group(rows, place.rank, "pp")
        connect(groups.peers, groups.place[0], groups.channels, place.device)
    return groups


def _new_group(rows: Iterable[list[int]], rank: int, label: str) -> dist.ProcessGroup:
    """A group for each list of ranks, made by all ranks in the same order; this rank's. Traces carry the label."""
    mine: dist.ProcessGroup | None = None
    for row in rows:
        group = dist.new_group(row, group_desc=label)
        if rank in row:
            mine = group
    assert mine is not None
    return mine
