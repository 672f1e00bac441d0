"""Logs of Megatron-LM and MindSpeed-LLM: the figures that the training loop prints for its iterations.

    [2026-04-07 10:15:32] iteration 20/ 2000 | consumed samples: 320 | lm loss: 9.87E+00 | loss scale: 1.0 | ... |

The lines lie between others of any kind; several ranks may write into one file behind prefixes such as `[rank7]:`.
Of the listing of arguments at the start a few that decide whether two runs are equal are kept. Validation lines give
the validation loss of their iteration.

Source: collector reference, section 7.2, and Megatron-LM, megatron/training/training.py (training_log). No log of a
real Ascend job was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.parsers._training_series import Rows, checked_size, figure_of, number, rank_of_path, trace_of

PRODUCER: Final = "training log (Megatron-LM, MindSpeed-LLM)"
SUFFIXES: Final = frozenset({".log", ".txt", ".out", ".stdout", ""})
TAIL_BYTES: Final = 64 << 10
"""What is read of the end of a log whose start has no iteration yet. Status: assumed."""
MAX_LINE: Final = 16 << 10
"""Longer lines are cut: they are no lines of iterations. Status: assumed."""

_ITERATION: Final = re.compile(
    r"(?:\[(?P<date>\d{4}-\d\d-\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)"
    r"(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]\s*)?"
    r"\biteration\s+(?P<step>\d{1,15})\s*/\s*\d{1,15}\s*\|(?P<rest>.*:.*)"
)
_VALIDATION: Final = re.compile(
    r"(?<!extra )validation loss at iteration\s+(?P<step>\d{1,15})\b.*?\|\s*(?:lm )?loss value:"
    r"\s*(?P<value>[^|\s]{1,40})"
)
_RANK: Final = re.compile(r"\[rank ?(\d{1,6})\]", re.IGNORECASE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
_ARGUMENT: Final = re.compile(r"\b([a-z][a-z0-9_]{1,60}) \.{3,}\s?(\S{1,64})\s*$")
ARGUMENTS: Final = frozenset({
    "bf16", "fp16", "seed", "lr", "min_lr", "lr_decay_style", "global_batch_size", "micro_batch_size", "seq_length",
    "num_layers", "hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "world_size", "npu_deterministic", "initial_loss_scale",
    "loss_scale", "loss_scale_window", "clip_grad", "recompute_granularity", "attention_softmax_in_fp32",
})  # fmt: skip
"""Arguments that are kept, as `--name`; folders and names of the user are not among them."""


def is_log(entry: FileEntry) -> bool:
    """Whether a file holds lines of iterations, near its start or its end."""
    head = entry.head
    if _has_iteration(head):
        return True
    return entry.size > len(head) and b"\0" not in head and _has_iteration(log_tail(entry))


def _has_iteration(block: bytes) -> bool:
    if b"iteration" not in block or b"|" not in block:
        return False
    for line in block.decode("utf-8", "replace").splitlines():
        found = _ITERATION.search(line[:MAX_LINE])
        if found and sum(figure_of(name) is not None for name, _ in _fields(found["rest"])) >= 1:
            return True
    return False


def log_tail(entry: FileEntry) -> bytes:
    """The end of a log, empty when it is compressed or cannot be read."""
    try:
        with files.open_binary(entry.path) as file:
            if file.read(2) == b"\x1f\x8b":
                return b""
            file.seek(max(0, entry.size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except (InputError, OSError):
        return b""


def find(folder: Folder) -> list[Unit]:
    """Each log of the folder is a unit of its own."""
    return [
        Unit(parser="training_log", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if entry.path.suffix.lower() in SUFFIXES and is_log(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The trace of one log.

    Raises:
        InputError: it is too large, or no iteration has a loss, a gradient norm or a loss scale.
    """
    path = unit.files[0]
    checked_size(path, unit.label)
    rows, arguments = Rows(rank=rank_of_path(path)), dict[str, str]()
    for line in log_lines(path):
        _read(line, rows, arguments)
    return [
        trace_of(rows, label=unit.label, path=path, form="training log", producer=PRODUCER, environment=arguments)
    ]


def log_lines(path: Path) -> Iterator[str]:
    """Lines that are not empty; what is beyond `MAX_LINE` of one is cut."""
    rest = b""
    for block in files.blocks(path):
        *whole, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
        yield from (line[:MAX_LINE].decode("utf-8", "replace") for line in whole if line)
        rest = rest[:MAX_LINE]  # what never ends is no line
    if rest:
        yield rest.decode("utf-8", "replace")


def _read(line: str, rows: Rows, arguments: dict[str, str]) -> None:
    if "iteration" in line:
        line = _COLOUR.sub("", line)
        if found := _ITERATION.search(line):
            values: dict[str, object] = {"step": found["step"], **dict(_fields(found["rest"]))}
            rank = _RANK.search(line, 0, found.start("step"))
            rows.add(values, time_ns=_time_ns(found), rank=int(rank[1]) if rank else None)
        elif found := _VALIDATION.search(line):
            value = number(found["value"])
            if value is not None:
                rows.take({"step": float(found["step"]), "eval_loss": value})
    elif "..." in line and (found := _ARGUMENT.search(_COLOUR.sub("", line))) and found[1] in ARGUMENTS:
        arguments.setdefault(f"--{found[1].replace('_', '-')}", found[2])


def _fields(rest: str) -> Iterator[tuple[str, str]]:
    """`name: value` between bars. A line into which another process wrote gives its whole fields."""
    for part in rest.split("|")[:64]:
        name, colon, value = part.rpartition(":")
        if colon and name.strip() and value.strip():
            yield name.strip(), value.split("/")[0].strip()  # some add the mean over the run: 13372.8/13364.7


def _time_ns(found: re.Match[str]) -> int | None:
    if not found["date"]:
        return None
    try:
        moment = datetime.strptime(f"{found['date']} {found['clock']}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 10**9


PARSER: Final = Parser(name="training_log", order=50, find=find, parse=parse)
