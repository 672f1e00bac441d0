"""Calls of Python functions and modules: which are kept, and how they are named."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import Ints, Table, Text

MIN_CALL_NS: Final = 10_000
"""Shorter calls are not kept, their time counts with their caller: two thirds of the calls and 5 % of their own time
in a real profile with stacks; launching one kernel takes about as long. Status: measured on one profile."""

SHORT_CALLS: Final = "Python call under 10 us (its time counts with its caller)"

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_SITE: Final = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")
_HOME: Final = re.compile(r"^(?:[A-Za-z]:)?[/\\](?:home|Users|root)[/\\](?:[^/\\(]+[/\\])?")
_SEPARATOR: Final = re.compile(r"[/\\]")


def frame(name: str) -> str:
    """A call without addresses of objects and without the folders in which users and hosts are named.

    A path keeps what follows the folder of installed packages, else its last two parts below a user's folder.
    """
    name = _ADDRESS.sub("", name)
    if not name.startswith(("/", "\\")) and name[1:3] not in (":\\", ":/"):
        return name
    shorter = _SITE.sub("", name)
    if shorter != name:
        return shorter
    path, bracket, rest = name.partition("(")
    return "/".join(_SEPARATOR.split(_HOME.sub("", path))[-2:]).lstrip("/") + bracket + rest


def frames(stack: str) -> str | None:
    """A call stack, frames separated by `;` or by lines, with one frame per line; None when it is empty."""
    lines = (line.strip() for line in stack.replace(";", "\n").splitlines())
    return "\n".join(frame(line) for line in lines if line) or None


def python_calls(start: Ints, dur: Ints, names: Text, thread: Ints) -> Table:
    """The table of calls, in the order of time; empty without rows.

    Args:
        start: ns, shape (n,).
        dur: ns, shape (n,); those under `MIN_CALL_NS` are left out.
        names: as the file writes them.
        thread: as in host_ops.
    """
    rows = np.flatnonzero(dur >= MIN_CALL_NS)
    if not len(rows):
        return Table.empty(t.PYTHON_CALLS)
    rows = rows[np.argsort(start[rows], kind="stable")]
    called = Text.concat([names.take(rows).compact(), Text.full(1, "")]).relabel(lambda name: frame(name) or "unnamed")
    codes = np.where(called.codes < 0, called.codes[-1], called.codes)[:-1].astype(np.int32)
    return Table(
        t.PYTHON_CALLS,
        {
            "start_ns": start[rows],
            "dur_ns": dur[rows],
            "name": Text(codes, called.values).compact(),
            "thread": thread[rows],
        },
    )
