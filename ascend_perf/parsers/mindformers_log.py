"""Logs of MindFormers (MindSpore): the figures that its callback prints for each step.

    2025-04-07 15:34:29,173 - ... - INFO - { Epoch:[ 1/ 2], step:[ 2/ 19], loss: 10.633, per_step_time: 1752ms,
    lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: [1.5], train_throughput_per_npu: 170.738T

Steps count within their epoch; the step of the table counts through: (epoch - 1) x steps of an epoch + step. An update
with overflow is skipped.

Source: mindformers, mindformers/core/callback/callback.py (MFLossMonitor). No log of a real job was at hand.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

from ascend_perf.model.trace import Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.parsers._training_series import Rows, checked_size, number, rank_of_path, trace_of
from ascend_perf.parsers.training_log import SUFFIXES, log_lines, log_tail

PRODUCER: Final = "training log (MindFormers)"

_STEP: Final = re.compile(
    r"\bEpoch:\[\s*(?P<epoch>\d{1,9})\s*/\s*\d{1,9}\s*\],\s*step:\[\s*(?P<step>\d{1,12})\s*/\s*(?P<steps>\d{1,12})\s*\],"
    r"(?P<rest>.*\bloss:.*)"
)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\b")
_FIGURES: Final = {
    "loss": re.compile(r"\bloss:\s*\[?\s*([^\s,/\]]{1,40})"),
    "learning_rate": re.compile(r"\blr:\s*\[?\s*([^\s,\]]{1,40})"),
    "skipped": re.compile(r"\boverflow cond:\s*\[?\s*(True|False)"),
    "loss_scale": re.compile(r"\bloss_scale:\s*\[?\s*([^\s,\]]{1,40})"),
    "grad_norm": re.compile(r"\bglobal_norm:\s*\[\s*([^\s,\]]{1,40})\s*\]"),
    "iteration_ns": re.compile(r"\b(?:per_step_)?time:\s*([\d.]{1,20})\s*ms"),
    "flops_per_s": re.compile(r"\btrain_throughput_per_npu:\s*([\d.]{1,20})T"),
}
_FACTORS: Final = {"iteration_ns": 1e6, "flops_per_s": 1e12}
_WORKER: Final = re.compile(r"worker_(\d{1,6})\.log")
NO_NUMBER: Final = "value that is no number"


def is_log(entry: FileEntry) -> bool:
    """Whether a file holds lines of steps, near its start or its end."""
    head = entry.head
    return _has_step(head) or (entry.size > len(head) and b"\0" not in head and _has_step(log_tail(entry)))


def _has_step(block: bytes) -> bool:
    return b"Epoch:[" in block and any(_STEP.search(line) for line in block.decode("utf-8", "replace").splitlines())


def find(folder: Folder) -> list[Unit]:
    """Each log of the folder is a unit of its own."""
    return [
        Unit(parser="mindformers_log", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if entry.path.suffix.lower() in SUFFIXES and is_log(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The trace of one log.

    Raises:
        InputError: it is too large, or no step has a loss, a gradient norm or a loss scale.
    """
    path = unit.files[0]
    checked_size(path, unit.label)
    worker = _WORKER.fullmatch(path.name)
    rows = Rows(rank=int(worker[1]) if worker else rank_of_path(path))
    for line in log_lines(path):
        if "Epoch:[" in line and (found := _STEP.search(line)):
            _take(line, found, rows)
    return [trace_of(rows, label=unit.label, path=path, form="training log", producer=PRODUCER)]


def _take(line: str, found: re.Match[str], rows: Rows) -> None:
    row = {"step": float((int(found["epoch"]) - 1) * int(found["steps"]) + int(found["step"]))}
    for name, pattern in _FIGURES.items():
        if written := pattern.search(found["rest"]):
            value = number(written[1])
            if value is None:
                rows.drop(NO_NUMBER)
            else:
                row[name] = value * _FACTORS.get(name, 1.0)
    rows.take(row, time_ns=_time_ns(line[: found.start()]))


def _time_ns(before: str) -> int | None:
    found = _TIME.search(before)
    if found is None:
        return None
    try:
        moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp()) * 10**9 + int(found[2]) * 10**6


PARSER: Final = Parser(name="mindformers_log", order=53, find=find, parse=parse)
