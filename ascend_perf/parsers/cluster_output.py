"""`cluster_analysis_output` of msprof-analyze and MindStudio Insight: the exporter's summary of all ranks of a job.

It holds no kernels: the split of each step, and figures of the collectives. Each rank becomes a trace, so that ranks
can be compared where their own profiles are not at hand. Where they are, discovery leaves the summary alone.

Source: format reference, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import Check, Device, Group, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.parsers import _ascend_calls as calls
from ascend_perf.parsers import _ascend_comm as comm
from ascend_perf.parsers import _cluster_read as read
from ascend_perf.parsers._cluster_groups import JobGroups, job_groups, local
from ascend_perf.parsers._cluster_read import ClusterData, Kind
from ascend_perf.parsers._numbers import wholes
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "msprof-analyze cluster"

TOLERANCE_NS: Final = 350
"""Stage is computed in float us of epoch size and quantised to 0.25 us. Source: format reference, 1.7; measured 331."""

_READERS: Final[dict[Kind, Callable[[Path, ClusterData], int]]] = {
    Kind.DATABASE: read.read_cluster_database,
    Kind.STEPS: read.read_steps,
    Kind.COMMUNICATION: read.read_communication,
    Kind.MATRIX: read.read_matrix,
    Kind.GROUPS: read.read_groups,
}
"""In the order of reading: what the database holds is not read again from text."""

IN_DATABASE: Final = "not read: cluster_analysis.db holds these data"
SECOND: Final = "not read: a second file of this kind"
NO_KERNELS: Final = (
    "this is the exporter's summary of the ranks, without kernels and operators: analyze the ranks' own profiles for"
    " their causes"
)
ONLY_GROUPS: Final = "the folder holds the groups of a job only, without any figures of its ranks"


def find(folder: Folder) -> list[Unit]:
    """The files of a cluster analysis in one folder are one unit.

    Raises:
        InputError: it holds nothing but the list of groups.
    """
    found = [(entry.path, kind) for entry in folder.files if (kind := read.kind_of(entry)) is not None]
    if not found:
        return []
    if all(kind is Kind.GROUPS for _, kind in found):
        known = {path for path, _ in found}
        if all(entry.path in known or entry.path.name.startswith("profiler_") for entry in folder.files):
            raise InputError(
                ONLY_GROUPS, hint="give the folder with cluster_step_trace_time.csv, or the ranks' profiles"
            )
        return []
    paths = tuple(path for path, _ in sorted(found, key=lambda item: list(_READERS).index(item[1])))
    label = folder.path.name if folder.path.is_dir() else paths[0].name
    return [Unit(parser="cluster_output", label=label, files=paths)]


def parse(unit: Unit) -> list[Trace]:
    """A trace for each rank that the files name.

    Raises:
        InputError: no file can be read, or none names a rank.
    """
    data = ClusterData()
    sources, errors = _read_all(unit, data)
    ranks = sorted({*data.steps, *data.figures, *(int(link["src"] or 0) for link, _ in data.links)})
    if not ranks:
        if errors:
            raise errors[0]
        raise InputError(f"{unit.label}: the files of the cluster analysis name no rank", hint=read.AGAIN)
    groups = job_groups(data)
    _distribute_links(data, groups)
    checks = _stage_checks(data)
    label = unit.label if len(unit.files) > 1 else unit.label.rpartition("/")[0] or unit.label
    return [_trace(data, groups, rank, f"{label} (rank {rank})", sources, checks.get(rank, ())) for rank in ranks]


def _read_all(unit: Unit, data: ClusterData) -> tuple[tuple[Source, ...], list[InputError]]:
    sources: list[Source] = []
    errors: list[InputError] = []
    seen: set[Kind] = set()
    for path in unit.files:
        kind = read.kind_of(FileEntry(path, path.stat().st_size))
        if kind is None:
            continue
        place = unit.label if unit.label.rpartition("/")[2] == path.name else f"{unit.label}/{path.name}"
        rows, problem = 0, None
        if kind in seen:
            problem = SECOND
        elif _is_known(kind, data):
            problem = IN_DATABASE
        else:
            try:
                rows = _READERS[kind](path, data)
            except InputError as error:
                errors.append(error)
                problem = error.what.replace(str(path), path.name)
            else:
                seen.add(kind)
        sources.append(
            Source(
                path=place, format=kind.value, rows=rows, size_bytes=path.stat().st_size, problem=problem,
                is_held_elsewhere=problem == IN_DATABASE,
            )
        )
    return tuple(sources), errors


def _is_known(kind: Kind, data: ClusterData) -> bool:
    """Whether a file read before holds what a file of this kind would tell."""
    return bool(
        {
            Kind.STEPS: data.steps,
            Kind.COMMUNICATION: any(figures.calls for figures in data.figures.values()),
            Kind.MATRIX: data.links,
            Kind.GROUPS: data.groups,
        }.get(kind)
    )


def _distribute_links(data: ClusterData, groups: JobGroups) -> None:
    """Links go to the rank that sends; their ends become places in the group, as in the ranks' own files."""
    places = {key: {rank: place for place, rank in enumerate(group.ranks)} for key, group in groups.groups.items()}
    for link, _ in data.links:
        src, dst = link["src"], link["dst"]
        place = places.get(str(link["group"]), {})
        data.of(int(src or 0)).links.append({**link, "src": local(place, src), "dst": local(place, dst)})


def _trace(
    data: ClusterData, groups: JobGroups, rank: int, label: str, sources: tuple[Source, ...], checks: tuple[Check, ...]
) -> Trace:
    figures = data.figures.get(rank, comm.CommFigures())
    own = groups.of_rank(rank)
    named = {group.hash_id: group for group in own if group.hash_id is not None}
    tables: dict[str, Table] = {"exported_steps": _exported_steps(data, rank)}
    if figures.calls:
        table, _ = calls.with_figures(calls.calls_of_figures(figures), figures, {})
        tables["comm_ops"] = _with_groups(table, named)
    tables.update(comm.figure_tables(figures, named))
    parallel = dict(data.facts.parallel)
    if groups.stages > 1:
        parallel.setdefault("pipeline_model_parallel", groups.stages)
    warnings = [NO_KERNELS, *groups.notes, *data.facts.warnings]
    if figures.calls:
        warnings.append(calls.APPROXIMATE)
    return Trace(
        {name: table for name, table in tables.items() if len(table)},
        Meta(
            label=label,
            rank=rank,
            world_size=groups.world_size,
            device=Device(vendor="Huawei", kind="npu", device_id=data.devices.get(rank)),
            groups=own,
            parallel=parallel,
            settings=ProfilerSettings(producer=PRODUCER),
            sources=sources,
            missing=(
                Missing(
                    what="kernels, operators and host calls of the ranks",
                    remedy="analyze the folder that holds the ranks' *_ascend_pt directories",
                ),
            ),
            checks=(*_identity_checks(data, rank), *checks),
            warnings=tuple(warnings),
        ),
    )


def _with_groups(table: Table, named: Mapping[str, Group]) -> Table:
    """The calls with the names, labels and sizes of their groups in place of the groups' hashes."""
    hashes = table.text("group")

    def size(hash_id: str) -> float:
        group = named.get(hash_id)
        return float("nan") if group is None or group.size is None else float(group.size)

    sizes = hashes.numbers(size)
    return table.with_columns(
        {
            "group": hashes.relabel(lambda word: named[word].name if word in named else word),
            "group_label": hashes.relabel(lambda word: named[word].label if word in named else None),
            "group_size": wholes(sizes),
        }
    )


def _exported_steps(data: ClusterData, rank: int) -> Table:
    rows = data.steps.get(rank, [])
    if not rows:
        return Table.empty(t.EXPORTED_STEPS)
    columns = {name: np.array([row[name] for row in rows], np.int64) for name in (*read.STEP_COLUMNS, "step_id")}
    columns["device"] = np.full(len(rows), data.devices.get(rank, NULL), np.int64)
    return Table(t.EXPORTED_STEPS, columns)


def _identity_checks(data: ClusterData, rank: int) -> list[Check]:
    """Computing + Communication(Not Overlapped) + Free = Stage + Bubble in each row of the rank."""
    checks = []
    for row in data.steps.get(rank, []):
        terms = [row[name] for name in _IDENTITY]
        if NULL in terms:
            continue
        checks.append(
            Check(
                name="Computing + Communication(Not Overlapped) + Free = Stage + Bubble",
                ours=sum(terms[:3]) / 1e3, theirs=sum(terms[3:]) / 1e3, unit="us", tolerance=TOLERANCE_NS / 1e3,
                where=f"cluster_step_trace_time, rank {rank}",
            )
        )  # fmt: skip
    return checks


_IDENTITY: Final = ("computing_ns", "communication_not_overlapped_ns", "free_ns", "stage_ns", "bubble_ns")


def _stage_checks(data: ClusterData) -> dict[int, tuple[Check, ...]]:
    """Rows of type `stage` are the maxima over their ranks, column by column; noted with the stage's first rank."""
    checks: dict[int, tuple[Check, ...]] = {}
    for stage in data.stages:
        rows = [row for rank in stage.ranks for row in data.steps.get(rank, []) if row["step_id"] == stage.step_id]
        if len(rows) != len(stage.ranks):
            continue  # ranks of the stage are missing
        found = []
        for name in ("computing_ns", "communication_not_overlapped_ns", "free_ns", "stage_ns"):
            values = [row[name] for row in rows]
            if NULL in values or stage.figures[name] == NULL:
                continue
            found.append(
                Check(
                    name=f"{read.STEP_COLUMNS[name][0]} of the stage is the maximum over its ranks",
                    ours=max(values) / 1e3, theirs=stage.figures[name] / 1e3, unit="us", tolerance=0.001,
                    where=f"cluster_step_trace_time, stage of rank {stage.ranks[0]}",
                )
            )  # fmt: skip
        checks[stage.ranks[0]] = (*checks.get(stage.ranks[0], ()), *found)
    return checks


PARSER: Final = Parser(
    name="cluster_output", order=5, find=find, parse=parse, repeats=frozenset({"ascend_pt", "mindspore", "msprof"})
)
