"""`trainer_state.json` of Hugging Face's Trainer: the figures that it logged, from `log_history`.

The loss of an entry is the mean since the entry before. Trainer replaces NaN and infinite losses by that mean unless
`logging_nan_inf_filter=False`, so a clean loss here does not prove that every step was.

Source: transformers, src/transformers/trainer_callback.py (TrainerState) and training_args.py. No real file was at
hand.
"""

from __future__ import annotations

import json
from typing import Final

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.parsers._training_series import Rows, checked_size, rank_of_path, trace_of

PRODUCER: Final = "Hugging Face Trainer"
_SUMMARY: Final = "train_runtime"
"""Key of the last entry, whose `train_loss` is the mean of the whole run."""
NO_ENTRY: Final = "entry that is no object"


def is_state(entry: FileEntry) -> bool:
    """Whether a file is a state of the Trainer, by its keys."""
    head = entry.head
    return head.lstrip()[:1] == b"{" and b'"log_history"' in head and b'"global_step"' in head


def find(folder: Folder) -> list[Unit]:
    """Each state of the folder is a unit of its own."""
    return [
        Unit(parser="trainer_state", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if entry.path.suffix.lower() == ".json" and is_state(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The trace of one state.

    Raises:
        InputError: it is too large, damaged, or has no entry with a step and a loss.
    """
    path = unit.files[0]
    checked_size(path, unit.label)
    try:
        document = json.loads(b"".join(files.blocks(path)).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise InputError(f"{unit.label} is no JSON to its end", hint="copy the file again") from None
    entries = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{unit.label}: log_history is no list")
    rows = Rows(rank=rank_of_path(path))
    for entry in entries:
        if not isinstance(entry, dict):
            rows.drop(NO_ENTRY)
        elif _SUMMARY not in entry:
            rows.add(entry)
    return [trace_of(rows, label=unit.label, path=path, form="trainer state", producer=PRODUCER)]


PARSER: Final = Parser(name="trainer_state", order=51, find=find, parse=parse)
