"""What torch_npu passes to each aclnn operator, read from the calls in its own library.

torch_npu calls an operator through a macro that hands name and arguments to a C++ template, `hit_cache<types...>`. The
compiler left the template's types in the library: each instance holds a lambda, and the lambda's type name spells them
out. So the way from operator to types is: where code takes the address of the text "aclnnX" and then calls an instance
of the template; which function in that instance looks at a type's record; which name the record has. All of it is
found by the addresses that instructions refer to. Calls by the macros that leave out the check of formats have no such
instance; those operators are not found here.

The library is machine code of somebody else: nothing is taken from it but kinds of arguments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.errors import InputError

Ints = npt.NDArray[np.int64]

_OPERATOR: Final = re.compile(rb"(?<![A-Za-z0-9_])(acl[A-Za-z0-9_]{1,120}?)GetWorkspaceSize\0")
_TEXT: Final = re.compile(rb"(?<![^\0])(acl[A-Za-z0-9_]{1,140})\0")
_TYPE: Final = re.compile(rb"(?<![^\0*])(Z9hit_cacheI[ -~]{1,8000})\0")

_KINDS: Final[Mapping[str, str]] = {
    "at::Tensor": "t", "std::optional<at::Tensor>": "t", "c10::optional<at::Tensor>": "t", "TensorWrapper": "t",
    "aclTensor*": "t",
    "c10::ArrayRef<at::Tensor>": "l", "TensorListWrapper": "l", "aclTensorList*": "l",
    "c10::Scalar": "s", "std::optional<c10::Scalar>": "s", "c10::optional<c10::Scalar>": "s", "aclScalar*": "s",
    "c10::ArrayRef<c10::Scalar>": "z", "aclScalarList*": "z",
    "c10::ArrayRef<long>": "i", "c10::OptionalArrayRef<long>": "i", "std::optional<c10::ArrayRef<long>>": "i",
    "c10::optional<c10::ArrayRef<long>>": "i", "c10::ArrayRef<c10::SymInt>": "i",
    "c10::OptionalArrayRef<c10::SymInt>": "i", "aclIntArray*": "i",
    "c10::ArrayRef<bool>": "b", "aclBoolArray*": "b", "aclFloatArray*": "f",
    "long": "n", "unsigned long": "n",
    "int": "m", "unsigned int": "m", "aclDataType": "m", "c10::ScalarType": "m", "aclFormat": "m",
    "bool": "y", "signed char": "y", "unsigned char": "y", "std::optional<bool>": "y",
    "double": "d", "float": "e",
    "char*": "c", "std::string": "c",
    "decltype(nullptr)": "0",
}  # fmt: skip
"""Type of an argument of the template -> kind of what the operator gets (op_api_common_base.h, ConvertType).

0: always null there, so the kind is not known. An optional bool is two bytes, read as its first."""

MAX_NAME_DISTANCE: Final = 2000
"""Bytes between the instruction that takes the name and the call. Status: measured, 52 in the median."""


@dataclass(frozen=True, kw_only=True)
class CallSites:
    """What was found: how often each operator is called with which kinds, and all operators that the library names."""

    operators: tuple[str, ...]
    kinds: Mapping[str, Mapping[str, int]]

    def settled(self) -> dict[str, str]:
        """Operators whose calls agree; a position that is null in some calls has the kind of the others."""
        found = {}
        for operator, seen in self.kinds.items():
            joined = _joined(seen)
            if joined is not None:
                found[operator] = joined
        return found


def operators_of(library: Elf) -> list[str]:
    """Operators that the library looks up by name, sorted."""
    return sorted({
        match[1].decode()
        for _, raw in _read_only(library)
        for match in _OPERATOR.finditer(raw)
    })  # fmt: skip


def read_call_sites(library: Elf) -> CallSites:
    """Read the calls of libtorch_npu.so (about 2 s).

    Raises:
        InputError: the library is damaged.
    """
    texts: dict[int, str] = {}
    types: dict[int, str] = {}
    for address, raw in _read_only(library):
        texts |= {address + match.start(1): match[1].decode() for match in _TEXT.finditer(raw)}
        types |= {address + match.start(1): match[1].decode() for match in _TYPE.finditer(raw)}
        # The names of types local to a library begin with a star, and are referred to with it.
        types |= {a - 1: name for a, name in types.items() if raw[a - 1 - address : a - address] == b"*"}
    operators = operators_of(library)
    wanted = set(operators)
    names = {address: text for address, text in texts.items() if text in wanted}
    places, addresses = library.relative_relocations()
    is_type = np.isin(addresses, np.array(sorted(types), np.int64))
    # A type's record is two pointers: to its table of functions, then to its name.
    records = {
        int(place) - 8: types[int(address)] for place, address in zip(places[is_type], addresses[is_type], strict=True)
    }
    kinds: dict[str, Counter[str]] = {}
    for operator, spelled in _linked(library, names, records):
        told = kinds_of(spelled)
        if told is not None:
            kinds.setdefault(operator, Counter())[told] += 1
    return CallSites(operators=tuple(operators), kinds=kinds)


def kinds_of(spelled: str) -> str | None:
    """Kinds from the mangled name of the template's lambda; None when a type is not known.

    "Z9hit_cacheIJRN2at6TensorES2_EEb..." is hit_cache<at::Tensor&, at::Tensor&>: "tt".
    """
    try:
        arguments = _Mangled(spelled).pack()
    except (IndexError, ValueError, KeyError):
        return None
    letters = [_kind(argument) for argument in arguments]
    return None if None in letters else "".join(letter for letter in letters if letter)


def _kind(argument: str) -> str | None:
    plain = argument.replace(" const", "").removesuffix("&").removesuffix("&")
    if plain.startswith("char["):
        return "c"
    if plain.startswith("std::array<bool,"):
        return "b"
    return _KINDS.get(plain)


def _joined(seen: Mapping[str, int]) -> str | None:
    lengths = {len(kinds) for kinds in seen}
    if len(lengths) != 1:
        return None
    letters = []
    for column in zip(*seen, strict=True):
        known = set(column) - {"0"}
        if len(known) != 1:
            return None
        letters.append(known.pop())
    return "".join(letters)


def _read_only(library: Elf) -> Iterator[tuple[int, bytes]]:
    for section in library.sections:
        if section.is_loaded and section.name.startswith(".rodata"):
            yield section.address, library.bytes_of(section).tobytes()


def _linked(library: Elf, names: Mapping[int, str], records: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """(operator, mangled type) for each call of an instance of the template."""
    text = library.section(".text")
    code = library.bytes_of(text)
    if library.machine == "x86_64":
        at, to = _x86_references(code, text.address)
        call_at, call_to = _x86_calls(code, text.address)
    else:
        at, to = _arm_references(code, text.address)
        call_at, call_to = _arm_calls(code, text.address)
    starts = _function_starts(library)

    def function(address: Ints) -> Ints:
        found: Ints = starts[np.maximum(np.searchsorted(starts, address, "right") - 1, 0)]
        return found

    def referring(targets: Ints) -> tuple[Ints, Ints]:
        chosen = np.isin(to, targets)
        return at[chosen], to[chosen]

    # The function that knows the type's record -> the instance of the template that holds the lambda.
    of_manager: dict[int, str] = {}
    where, what = referring(np.array(sorted(records), np.int64))
    for owner, record in zip(function(where).tolist(), what.tolist(), strict=True):
        of_manager[owner] = records[record]
    # Some compilers load the manager's address from a table of constants instead of making it.
    places, addresses = library.relative_relocations()
    is_manager = np.isin(addresses, np.array(sorted(of_manager), np.int64))
    of_manager |= {
        int(place): of_manager[int(address)]
        for place, address in zip(places[is_manager], addresses[is_manager], strict=True)
    }
    of_instance: dict[int, str] = {}
    where, what = referring(np.array(sorted(of_manager), np.int64))
    for owner, manager in zip(function(where).tolist(), what.tolist(), strict=True):
        of_instance[owner] = of_manager[manager]

    name_at, name_to = referring(np.array(sorted(names), np.int64))
    is_instance = np.isin(call_to, np.array(sorted(of_instance), np.int64))
    sites, instances = call_at[is_instance], call_to[is_instance]
    before = np.searchsorted(name_at, sites) - 1
    for site, instance, index in zip(sites.tolist(), instances.tolist(), before.tolist(), strict=True):
        if index >= 0 and site - int(name_at[index]) <= MAX_NAME_DISTANCE:
            yield names[int(name_to[index])], of_instance[instance]


def _x86_references(code: npt.NDArray[np.uint8], base: int) -> tuple[Ints, Ints]:
    """(where, to) of instructions that take an address relative to their own: lea and mov with REX.W, loads of 16
    bytes (movaps, movdqa, movdqu, movups)."""
    if len(code) < 10:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, second, third = code[:-9], code[1:-8], code[2:-7]
    is_move = ((first & 0xFB) == 0x48) & ((second == 0x8D) | (second == 0x8B)) & ((third & 0xC7) == 5)
    is_load = (first == 0x0F) & ((second == 0x28) | (second == 0x6F) | (second == 0x10)) & ((third & 0xC7) == 5)
    at = np.flatnonzero(is_move | is_load)
    return base + at, base + at + 7 + _signed(code, at + 3)


def _x86_calls(code: npt.NDArray[np.uint8], base: int) -> tuple[Ints, Ints]:
    if len(code) < 8:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.flatnonzero(code[:-7] == 0xE8)
    return base + at, base + at + 5 + _signed(code, at + 1)


def _signed(code: npt.NDArray[np.uint8], at: Ints) -> Ints:
    value = np.zeros(len(at), np.int64)
    for byte in range(4):
        value |= code[at + byte].astype(np.int64) << (8 * byte)
    return np.where(value >= 1 << 31, value - (1 << 32), value)


def _arm_words(code: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    return np.frombuffer(code[: len(code) // 4 * 4].tobytes(), "<u4")


def _arm_references(code: npt.NDArray[np.uint8], base: int) -> tuple[Ints, Ints]:
    """(where, to) of adr; of adrp and, within 12 instructions, an add or a load that goes on from the same register."""
    words = _arm_words(code)
    near = np.flatnonzero((words & 0x9F000000) == 0x10000000)
    at, to = [base + 4 * near], [base + 4 * near + _arm_immediate(words[near])]
    pages = np.flatnonzero((words & 0x9F000000) == 0x90000000)
    page = ((base + 4 * pages) & ~0xFFF) + (_arm_immediate(words[pages]) << 12)
    register = words[pages].astype(np.int64) & 31
    alive = np.ones(len(pages), bool)
    for step in range(1, 13):
        inside = alive & (pages + step < len(words))
        following = words[np.minimum(pages + step, len(words) - 1)].astype(np.int64)
        is_same = inside & ((following >> 5 & 31) == register)
        taken = np.zeros(len(pages), bool)
        for operation, scale in _ARM_OPERATIONS:
            chosen = is_same & ((following & 0xFFC00000) == operation)
            at.append(base + 4 * (pages[chosen] + step))
            to.append(page[chosen] + scale * (following[chosen] >> 10 & 0xFFF))
            taken |= chosen
        alive = inside & ~taken
    order = np.argsort(np.concatenate(at), kind="stable")
    return np.concatenate(at)[order], np.concatenate(to)[order]


def _arm_immediate(words: npt.NDArray[np.uint32]) -> Ints:
    """The signed 21 bits of adr and adrp."""
    word = words.astype(np.int64)
    found = ((word >> 5 & 0x7FFFF) << 2) | (word >> 29 & 3)
    return np.where(found >= 1 << 20, found - (1 << 21), found)


_ARM_OPERATIONS: Final = ((0x91000000, 1), (0xF9400000, 8), (0x3DC00000, 16))
"""add Xd, Xn, #i; ldr Xt, [Xn, #i]; ldr Qt, [Xn, #i]: bits of the operation, unit of the immediate."""


def _arm_calls(code: npt.NDArray[np.uint8], base: int) -> tuple[Ints, Ints]:
    words = _arm_words(code)
    at = np.flatnonzero((words & 0xFC000000) == 0x94000000)
    offset = words[at].astype(np.int64) & 0x3FFFFFF
    offset = np.where(offset >= 1 << 25, offset - (1 << 26), offset)
    return base + 4 * at, base + 4 * at + 4 * offset


def _function_starts(library: Elf) -> Ints:
    """First addresses of functions, sorted: the search table that exception handling uses."""
    section = library.section(".eh_frame_hdr")
    raw = library.bytes_of(section).tobytes()
    if len(raw) < 12 or raw[:4] != b"\x01\x1b\x03\x3b":
        raise InputError(f"{library.path.name} has a table of functions in a form that is not known")
    number = int.from_bytes(raw[8:12], "little")
    if 12 + 8 * number > len(raw):
        raise InputError(f"{library.path.name} is damaged: its table of functions reaches beyond its end")
    table = np.frombuffer(raw, "<i4", 2 * number, 12).astype(np.int64)
    return np.sort(table[::2] + section.address)


class _Mangled:
    """As much of the Itanium C++ name grammar as names of `hit_cache` instances need."""

    _BUILT_IN: Final[Mapping[str, str]] = {
        "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "i": "int", "j": "unsigned int",
        "l": "long", "m": "unsigned long", "f": "float", "d": "double", "x": "long", "y": "unsigned long",
    }  # fmt: skip
    _STANDARD: Final[Mapping[str, str]] = {"t": "std", "s": "std::string", "a": "std::allocator"}

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.known: list[str] = []

    def pack(self) -> list[str]:
        """The types between `hit_cacheIJ` and its E."""
        self._expect("Z9hit_cache")
        self.known.append("hit_cache")
        self._expect("IJ")
        found = []
        while self.text[self.at] != "E":
            found.append(self._type())
        return found

    def _expect(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise ValueError(text)
        self.at += len(text)

    def _take(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _remember(self, name: str) -> str:
        self.known.append(name)
        return name

    def _type(self) -> str:
        letter = self.text[self.at]
        if letter in "RPKO":
            self.at += 1
            inner = self._type()
            return self._remember(inner + {"R": "&", "O": "&&", "P": "*", "K": " const"}[letter])
        if letter == "A":
            self.at += 1
            size = self._number()
            self._expect("_")
            # "char[4]", and "char[4] const" for an array of constants
            inner = self._type()
            return self._remember(f"{inner.removesuffix(' const')}[{size}]")
        if letter == "D" and self.text[self.at + 1] == "n":
            self.at += 2
            return "decltype(nullptr)"
        if letter in self._BUILT_IN:
            self.at += 1
            return self._BUILT_IN[letter]
        return self._name()

    def _name(self) -> str:
        letter = self.text[self.at]
        if letter == "N":
            self.at += 1
            name = ""
            while self.text[self.at] != "E":
                name = self._part(name)
            self.at += 1
            return name
        if letter == "S":
            name = self._substitution()
            if name == "std":
                name = self._remember(f"std::{self._source_name()}")
        else:
            name = self._remember(self._source_name())
        if self.text[self.at] == "I":
            name = self._remember(name + self._arguments())
        return name

    def _part(self, before: str) -> str:
        letter = self.text[self.at]
        if letter == "S":
            name = self._substitution()
            return name
        if letter == "I":
            return self._remember(before + self._arguments())
        own = self._source_name()
        return self._remember(f"{before}::{own}" if before else own)

    def _arguments(self) -> str:
        self._expect("I")
        found = []
        while self.text[self.at] != "E":
            if self.text[self.at] == "L":  # a number, as in std::array<bool, 3ul>
                end = self.text.index("E", self.at)
                found.append(self.text[self.at + 2 : end])
                self.at = end + 1
            else:
                found.append(self._type())
        self.at += 1
        return f"<{', '.join(found)}>"

    def _substitution(self) -> str:
        self._expect("S")
        letter = self._take()
        if letter in self._STANDARD:
            return self._STANDARD[letter]
        if letter == "_":
            return self.known[0]
        digits = letter
        while self.text[self.at] != "_":
            digits += self._take()
        self.at += 1
        return self.known[int(digits, 36) + 1]

    def _source_name(self) -> str:
        size = self._number()
        if not 0 < size <= len(self.text) - self.at:
            raise ValueError(size)
        self.at += size
        return self.text[self.at - size : self.at]

    def _number(self) -> int:
        start = self.at
        while self.text[self.at].isdigit():
            self.at += 1
        return int(self.text[start : self.at])
