"""Profiles of MindSpore (`*_ascend_ms`): the tree of torch_npu with files of the data pipeline beside it.

The files that both write are read by the reader of torch_npu; what differs is put right afterwards. A folder that holds
databases of both frameworks counts as one of torch_npu.

Source: format reference, section 8.1. No real sample was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import Table
from ascend_perf.model.trace import Device, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.parsers import _minddata as minddata
from ascend_perf.parsers import ascend_pt
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "mindspore.profiler"

_DATABASE: Final = re.compile(r"ascend_mindspore_profiler(_\d+)?\.db")
_TORCH_DATABASE: Final = re.compile(r"ascend_pytorch_profiler(_\d+)?\.db")
_PLACE: Final = re.compile(r".*_ascend_ms")
_RANK: Final = re.compile(r"_(\d{1,7})\.(?:csv|json|db)$")

RAW_HINT: Final = (
    "on a machine with MindSpore and CANN run: "
    "python -c \"from mindspore.profiler.profiler import analyse; analyse('FOLDER')\", then analyze the folder again"
)
NOT_RECORDED: Final = frozenset({"input shapes of the operators", "garbage collections of Python"})
"""What torch_npu can record and MindSpore cannot."""


def _is_place(path: Path) -> bool:
    return bool(_PLACE.fullmatch(path.name)) or (
        path.name == ascend_pt.OUTPUT and bool(_PLACE.fullmatch(path.parent.name))
    )


def find(folder: Folder) -> list[Unit]:
    """The ranks of one folder of MindSpore's tree, with the files of the data pipeline.

    Raises:
        InputError: it holds raw data only, or files that are damaged.
    """
    names = [entry.path.name for entry in folder.files]
    if any(_TORCH_DATABASE.fullmatch(name) for name in names):
        return []
    extra = [entry.path for entry in folder.files if minddata.kind_of(entry) is not None]
    if not extra and not any(_DATABASE.fullmatch(name) for name in names) and not _is_place(folder.path):
        return []
    rest = Folder(folder.path, tuple(e for e in folder.files if e.path not in extra), folder.folders)
    try:
        units = ascend_pt.find(rest)
    except InputError as error:
        if not extra:
            hint = RAW_HINT if error.hint == ascend_pt.RAW_HINT else (error.hint or "")
            raise InputError(error.what, hint=hint) from None
        units = []
    units = [replace(unit, parser="mindspore") for unit in units]
    if not extra:
        return units
    if len(units) == 1:
        return [replace(units[0], files=(*units[0].files, *extra))]
    label = folder.path.name if folder.path.is_dir() else extra[0].name
    by_rank: dict[int | None, list[Path]] = {}
    for path in extra:
        by_rank.setdefault(_rank_of((path,)), []).append(path)
    for place, unit in enumerate(units):
        units[place] = replace(unit, files=(*unit.files, *by_rank.pop(_rank_of(unit.files), [])))
    return units + [
        Unit(parser="mindspore", label=label if rank is None else f"{label}/rank {rank}", files=tuple(paths))
        for rank, paths in by_rank.items()
    ]


def _rank_of(paths: Sequence[Path]) -> int | None:
    """The rank at the end of the files' names, when they agree."""
    found = {int(match[1]) for path in paths if (match := _RANK.search(path.name))}
    return found.pop() if len(found) == 1 else None


def parse(unit: Unit) -> list[Trace]:
    """The trace of one rank (several, when a file mixes devices).

    Raises:
        InputError: none of the files can be read.
    """
    kinds = {path: kind for path in unit.files if (kind := _minddata_kind(path)) is not None}
    rest = tuple(path for path in unit.files if path not in kinds)
    label = ascend_pt.private(unit.label)
    tables, sources = _data_pipeline(kinds, label)
    if not rest:
        if not tables:
            raise InputError(f"{unit.label}: {next(iter(s.problem for s in sources if s.problem), 'nothing to read')}")
        meta = Meta(
            label=label, rank=_rank_of(unit.files), device=Device(vendor="Huawei", kind="npu"),
            settings=ProfilerSettings(producer=PRODUCER), sources=sources,
        )  # fmt: skip
        return [Trace({t.DATA_PIPELINE.name: Table.concat(t.DATA_PIPELINE, tables)}, meta)]
    traces = ascend_pt.parse(replace(unit, files=rest))
    return [_of_mindspore(trace, tables, sources) for trace in traces]


def _minddata_kind(path: Path) -> str | None:
    try:
        return minddata.kind_of(FileEntry(path, path.stat().st_size))
    except OSError:
        return None


def _data_pipeline(kinds: dict[Path, str], label: str) -> tuple[list[Table], tuple[Source, ...]]:
    tables: list[Table] = []
    sources: list[Source] = []
    operators = False
    for path, kind in sorted(kinds.items(), key=lambda item: minddata.ORDER.index(item[1])):
        place = label if label.rpartition("/")[2] == path.name else f"{label}/{path.name}"
        rows, problem = 0, None
        if kind != "dataset" and operators:
            problem = SAME
        else:
            try:
                table = minddata.read(path, kind)
            except InputError as error:
                problem = error.what.replace(str(path), path.name)
            else:
                operators = operators or kind != "dataset"
                rows = len(table)
                tables.append(table)
        sources.append(
            Source(path=place, format=_FORMATS[kind], rows=rows, size_bytes=path.stat().st_size, problem=problem)
        )
    return tables, tuple(sources)


SAME: Final = "not read: another file of the data pipeline holds the same operators"
_FORMATS: Final = {
    "dataset": "dataset.csv",
    "raw": "minddata_pipeline_raw.csv",
    "summary": "minddata_pipeline_summary.csv",
    "summary_json": "minddata_pipeline_summary.json",
}


def _of_mindspore(trace: Trace, tables: list[Table], sources: tuple[Source, ...]) -> Trace:
    """The trace with the data pipeline, and with MindSpore's names in its facts and remedies."""
    meta = trace.meta
    settings = replace(meta.settings, producer=PRODUCER)
    missing = tuple(
        Missing(what=one.what, remedy=one.remedy.replace("torch_npu.profiler", "mindspore.profiler"))
        for one in meta.missing
        if one.what not in NOT_RECORDED
    )
    meta = replace(meta, settings=settings, missing=missing, sources=(*meta.sources, *sources))
    more = {t.DATA_PIPELINE.name: Table.concat(t.DATA_PIPELINE, tables)} if tables else {}
    return trace.replace(meta=meta, tables=more)


PARSER: Final = Parser(name="mindspore", order=4, find=find, parse=parse)
