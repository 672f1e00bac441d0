"""Typed access to SUITE.yaml: each mismatch names its place in the file and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import yaml

from ascend_perf.errors import InputError
from ascend_perf.workloads._spec import did_you_mean

NAME: Final = re.compile(r"[\w][\w.@+=,-]{0,79}")
"""Of a suite, an entry and a variant: a part of the name of a folder, too."""
_T = TypeVar("_T")


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """As its parent, with that check."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = node.value[index][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"the key {str(key)[:60]!r} stands twice", mark)
        return super().construct_mapping(node, deep)


class Node:
    """A value of the file and its place; each method checks, and names the place when it is wrong."""

    def __init__(self, value: object, file: str, place: str) -> None:
        self.value, self.file, self.place = value, file, place

    def wrong(self, problem: str, hint: str = "") -> InputError:
        """The error to raise."""
        return InputError(f"{self.file}: {self.place} {problem}" if self.place else f"{self.file} {problem}", hint=hint)

    def is_no(self, expected: str, close: str = "") -> InputError:
        """The error of a value that is something else; `close` names the word that may have been meant."""
        is_plain = not isinstance(self.value, (dict, list))
        shown = repr(self.value)[:60] if is_plain else "a mapping" if isinstance(self.value, dict) else "a list"
        return self.wrong(f"must be {expected}, got {shown}{close}")

    def keys(self, *allowed: str) -> dict[str, Node]:
        """Of a mapping that has none but these keys."""
        if not isinstance(self.value, dict):
            raise self.is_no("a mapping")
        for key in self.value:
            if key not in allowed:
                close = did_you_mean(str(key), allowed)
                raise self.wrong(f"has an unknown key {str(key)[:60]!r}{close}", f"keys: {', '.join(allowed)}")
        return {key: self.below(str(key)) for key in self.value}

    def below(self, key: str) -> Node:
        """The value of a key."""
        assert isinstance(self.value, dict)
        return Node(self.value[key], self.file, f"{self.place}.{key}" if self.place else key)

    def named(self) -> dict[str, Node]:
        """Of a mapping whose keys are names."""
        if not isinstance(self.value, dict):
            raise self.is_no("a mapping")
        for key in self.value:
            if not isinstance(key, str):
                raise self.wrong(f"has a key {str(key)[:60]!r} that is no text", "put it into quotes")
        return {key: self.below(key) for key in self.value}

    def items(self) -> list[Node]:
        """Of a list."""
        if not isinstance(self.value, list):
            raise self.is_no("a list")
        return [Node(item, self.file, f"{self.place}[{index}]") for index, item in enumerate(self.value)]

    def one_or_more(self, read: Callable[[Node], _T]) -> list[_T]:
        """A value, or a list of them, each once."""
        found = [read(item) for item in self.items()] if isinstance(self.value, list) else [read(self)]
        if not found or len(set(found)) < len(found):
            raise self.wrong("is an empty list" if not found else "names something twice")
        return found

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip() or "\0" in self.value:
            raise self.is_no("text")
        return self.value

    def name(self) -> str:
        """A word that can stand in the name of a benchmark and of a folder."""
        text = str(self.value) if type(self.value) in (int, float) else self.text()
        if not NAME.fullmatch(text):
            raise self.is_no("a name of letters, digits and . _ - + = , @ (80 at most)")
        return text

    def one_of(self, choices: Sequence[str]) -> str:
        """One of few words."""
        if not isinstance(self.value, str) or self.value not in choices:
            raise self.is_no(f"one of {', '.join(choices)}", did_you_mean(str(self.value), choices))
        return self.value

    def flag(self) -> bool:
        """A truth value."""
        if not isinstance(self.value, bool):
            raise self.is_no("true or false")
        return self.value

    def whole(self, least: int, most: int) -> int:
        """A whole number."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.is_no(f"a whole number from {least} to {most}")
        return self.value

    def seconds(self) -> float:
        """A positive number."""
        if type(self.value) not in (int, float) or not 0 < cast(float, self.value) < 1e7:
            raise self.is_no("a number of seconds, more than 0")
        return float(cast(float, self.value))

    def variables(self) -> dict[str, str]:
        """Environment variables."""
        found = {}
        for name, node in self.named().items():
            if isinstance(node.value, bool) or not isinstance(node.value, (str, int, float)):
                raise node.is_no("text (put it into quotes)")
            found[name] = str(node.value)
        return found

    def settings(self) -> dict[str, str]:
        """Values of `set`, as texts of `--set`."""
        found = {}
        for name, node in self.named().items():
            if isinstance(node.value, (dict, list)):
                raise node.is_no("a plain value")
            value = node.value
            found[name] = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return found
