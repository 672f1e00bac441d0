"""What a path consists of: kinds of time, and named elements of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from ascend_perf.model.table import Ints


class Kind(Enum):
    """What time on a path is; the values are the cells of the report's tables (catalogues/phrases.yaml)."""

    DISPATCH = "host dispatch"
    PYTHON = "host Python"
    DATALOADER = "host data loading"
    SYNC = "host synchronisation"
    UNRECORDED = "host, nothing recorded"
    LAUNCH = "launch delay"
    COMPUTE = "computing"
    COPY = "copy"
    COMM_WAIT = "collective wait"
    COMM_TRANSFER = "collective transfer"
    COMM = "collective, wait and transfer"
    GAP = "gap between queued tasks"
    EVENT = "after another stream"
    BEFORE = "before the rank's step"
    UNKNOWN = "idle, unknown"


KINDS: Final[tuple[Kind, ...]] = tuple(Kind)
CODE: Final[dict[Kind, int]] = {kind: code for code, kind in enumerate(KINDS)}
HOST: Final = frozenset({Kind.DISPATCH, Kind.PYTHON, Kind.DATALOADER, Kind.SYNC, Kind.UNRECORDED})
"""Time of a host thread."""
COLLECTIVE: Final = frozenset({Kind.COMM_WAIT, Kind.COMM_TRANSFER, Kind.COMM})
DEVICE: Final = COLLECTIVE | {Kind.COMPUTE, Kind.COPY}
"""Tasks of the device."""


@dataclass
class Elements:
    """Named pieces of a path; each (kind, name, class) has one number."""

    kinds: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """Class of kernels, empty for everything else."""
    _numbers: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def number(self, kind: Kind, name: str = "", of_class: str = "") -> int:
        """Number of an element."""
        key = CODE[kind], name, of_class
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.names)
            self.kinds.append(key[0])
            self.names.append(name)
            self.classes.append(of_class)
        return found

    def numbers(self, kind: Kind, names: Sequence[str]) -> Ints:
        """Numbers of elements of one kind."""
        return np.array([self.number(kind, name) for name in names], np.int64)

    def kind_codes(self) -> Ints:
        """Kind of each element, as its place in `KINDS`."""
        return np.array(self.kinds, np.int64)

    def __len__(self) -> int:
        return len(self.names)
