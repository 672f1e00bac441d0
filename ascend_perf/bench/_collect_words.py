"""A user's command in words that may be read by others: its name, and its words without what is private."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ascend_perf.collectors.environment import masked
from ascend_perf.model.run import Fact

_SECRET: Final = re.compile(r"(--?[\w-]*(?:token|secret|password|passwd|api-?key|access-?key)[\w-]*)(?:=(.*))?", re.I)


def name_of(words: Sequence[str]) -> str:
    """The program of a command as people call it: its script, else its first word."""
    for word in words:
        if word.endswith((".py", ".sh")):
            return re.sub(r"[^\w.-]", "-", Path(word).name)[:60]
    for index, word in enumerate(words[:-1]):
        if word == "-m" and re.fullmatch(r"[\w.]+", words[index + 1]):
            return words[index + 1][:60]
    return re.sub(r"[^\w.-]", "-", Path(words[0]).name)[:60] or "command"


def masked_command(words: Sequence[str]) -> tuple[str, ...]:
    """Words of a command without folders, names of people and hosts, and values of secrets."""
    shown: list[str] = []
    hides_next = False
    for word in words:
        found = _SECRET.fullmatch(word)
        if hides_next and not word.startswith("-"):
            shown.append("<secret>")
        elif found is not None and found[2] is not None:
            shown.append(f"{found[1]}=<secret>")
        else:
            shown.append(masked(word))
        hides_next = found is not None and found[2] is None
    return tuple(shown)


def plain(value: object) -> Fact:
    """A value of an option as a manifest holds it."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
