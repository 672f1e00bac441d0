"""Groups and pipeline stages of a job from what a cluster analysis says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ascend_perf.model.trace import Group
from ascend_perf.parsers._ascend_comm import group_hash
from ascend_perf.parsers._ascend_meta import public_name
from ascend_perf.parsers._cluster_read import ClusterData, NamedGroup

INFERRED_STAGES: Final = (
    "pipeline stages are the ranks of the exporter's stage rows, the one with the lowest rank first; groups with one"
    " rank of each stage are taken for pipeline groups"
)
SEEN_MEMBERS: Final = "members of groups that no file lists are those whose links the matrix holds: there may be more"


@dataclass(frozen=True)
class JobGroups:
    """The groups of a job by hash or name, its world size and what was inferred."""

    groups: dict[str, Group]
    world_size: int | None
    stages: int
    """Pipeline stages, 1 when none are known."""
    notes: tuple[str, ...]

    def of_rank(self, rank: int) -> tuple[Group, ...]:
        """The groups that a rank is in, and those whose members are not known."""
        return tuple(group for group in self.groups.values() if not group.ranks or rank in group.ranks)


def job_groups(data: ClusterData) -> JobGroups:
    """The groups of the job.

    Labels come from communication_group.json; without them the exporter's stage rows tell which groups are pipelines.
    """
    notes: list[str] = []
    groups: dict[str, Group] = {}
    for named in data.groups:
        _add(groups, named)
    for hash_id, ranks in data.members.items():
        if hash_id not in groups:
            # A list without names holds it too: by its ranks.
            groups.pop(_by_ranks(ranks), None)
            groups[hash_id] = Group(name=hash_id, ranks=ranks, size=len(ranks), hash_id=hash_id)
    _from_links(groups, data, notes)
    stages = _stages(data)
    if len(stages) > 1 and not any(group.label == "pp" for group in groups.values()):
        _label_pipelines(groups, stages)
        notes.append(INFERRED_STAGES)
    return JobGroups(groups, _world(data), max(1, len(stages)), tuple(notes))


def _add(groups: dict[str, Group], named: NamedGroup) -> None:
    """Take a listed group; one without a hash is named by its ranks, and is left out when it is only one rank."""
    ranks, size = named.ranks, len(named.ranks)
    if named.hash_id is None:
        if size > 1:
            key = _by_ranks(ranks)
            groups.setdefault(key, Group(name=key, label=named.label, ranks=ranks, size=size))
        return
    name = named.hash_id
    if named.communicator and group_hash(named.communicator) == named.hash_id:
        name = public_name(named.communicator)
    groups[named.hash_id] = Group(
        name=name, label=named.label, ranks=ranks, size=size or None, hash_id=named.hash_id
    )  # fmt: skip


def _by_ranks(ranks: Sequence[int]) -> str:
    """A name for a group without one: `ranks 0-7`, `ranks 3, 11`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return "ranks " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _from_links(groups: dict[str, Group], data: ClusterData, notes: list[str]) -> None:
    """Members of groups without a list, from the ends of their links: what the places of the links refer to."""
    seen: dict[str, set[int]] = {}
    for link, _ in data.links:
        hash_id = str(link["group"])
        if hash_id not in groups or not groups[hash_id].ranks:
            seen.setdefault(hash_id, set()).update((int(link["src"] or 0), int(link["dst"] or 0)))
    for hash_id, ranks in seen.items():
        groups[hash_id] = Group(name=hash_id, ranks=tuple(sorted(ranks)), hash_id=hash_id)
    if seen:
        notes.append(SEEN_MEMBERS)


def _stages(data: ClusterData) -> tuple[tuple[int, ...], ...]:
    """Ranks of each stage: by PP Index where the file has it, else by the rows of type `stage`."""
    if data.pipeline:
        by_index: dict[int, list[int]] = {}
        for rank, index in sorted(data.pipeline.items()):
            by_index.setdefault(index, []).append(rank)
        return tuple(tuple(by_index[index]) for index in sorted(by_index))
    stages = sorted({row.ranks for row in data.stages})
    all_ranks = [rank for ranks in stages for rank in ranks]
    # Stages of several steps may differ when ranks are missing: then they tell nothing.
    return tuple(stages) if len(set(all_ranks)) == len(all_ranks) else ()


def _label_pipelines(groups: dict[str, Group], stages: tuple[tuple[int, ...], ...]) -> None:
    stage_of = {rank: place for place, ranks in enumerate(stages) for rank in ranks}
    for key, group in groups.items():
        places = sorted(stage_of.get(rank, -1) for rank in group.ranks)
        if group.label is None and places == list(range(len(stages))):
            ordered = tuple(sorted(group.ranks, key=stage_of.__getitem__))
            groups[key] = Group(
                name=group.name, label="pp", ranks=ordered, size=group.size, hash_id=group.hash_id
            )  # fmt: skip


def _world(data: ClusterData) -> int | None:
    """Number of ranks of the job: as stated, or the size of the group that holds every rank that was seen."""
    if data.facts.world_size is not None:
        return data.facts.world_size
    seen = {*data.steps, *data.figures}
    listed = [group.ranks for group in data.groups]
    widest = max(listed, key=len, default=())
    if widest and seen <= set(widest) and widest == tuple(range(len(widest))):
        return len(widest)
    return None


def local(place: Mapping[int, int], rank: object) -> int | None:
    """Place of a global rank in its group, None when it is not known to be in it."""
    return place.get(rank) if isinstance(rank, int) else None
