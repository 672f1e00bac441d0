"""How often Python looks for garbage that refers to itself.

A trace is some large arrays; analyses make many small objects that live as long as it and hardly any cycle. Looking
at them over and over took 4 to 5 % of the CPU time of an analysis, and found nothing.
"""

from __future__ import annotations

import gc
from typing import Final

OBJECTS: Final = 500_000
"""New objects after which a search is due; Python's own value is 700. Status: measured."""


def collect_rarely() -> None:
    """For a process of our own: not for a program that uses this package as a library."""
    gc.set_threshold(OBJECTS, 10, 10)
