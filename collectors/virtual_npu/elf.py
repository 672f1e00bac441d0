"""Reads what a build needs to know of ELF files: which symbols they want, which they offer, which libraries they load.

64-bit little-endian files of x86_64 and aarch64, shared objects and object files. Files are mapped, not read whole,
and everything they say of sizes and places is checked first: a damaged file is an InputError, never a crash.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ascend_perf.errors import InputError

Machine = Literal["x86_64", "aarch64"]

_MACHINES: Final[dict[int, Machine]] = {62: "x86_64", 183: "aarch64"}
_DYNAMIC, _NOTE_BITS, _RELA, _SYMTAB, _DYNSYM = 6, 8, 4, 2, 11
_GNU_VERSYM: Final = 0x6FFFFFFF
_NEEDED, _SONAME = 1, 14
_ALLOCATED: Final = 2
"""Flag of a section that is in memory while the program runs."""

_RELATIVE: Final[dict[Machine, int]] = {"x86_64": 8, "aarch64": 1027}
"""Relocation that stores an address of the library itself: R_X86_64_RELATIVE, R_AARCH64_RELATIVE."""

MAX_SECTIONS: Final = 100_000
MAX_SYMBOLS: Final = 20_000_000

_SYMBOL: Final = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8"),
])  # fmt: skip
_ENTRY: Final = np.dtype([("tag", "<i8"), ("value", "<u8")])
_RELOCATION: Final = np.dtype([("place", "<u8"), ("info", "<u8"), ("addend", "<i8")])

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Section:
    """A section: `address` is where it lies in memory, `offset` where in the file."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int

    @property
    def is_loaded(self) -> bool:
        """Whether its bytes are in the file and in memory."""
        return bool(self.flags & _ALLOCATED) and self.kind != _NOTE_BITS


class Elf:
    """One ELF file, mapped.

    Args:
        path: a shared object (symbols from .dynsym) or an object file (symbols from .symtab).

    Raises:
        InputError: not such a file, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as problem:
            raise InputError(f"cannot read {path.name}: {problem.strerror or problem}") from problem
        self.data: Bytes = np.frombuffer(self._map, np.uint8)
        if len(self.data) < 64 or self._raw(0, 4) != b"\x7fELF":
            raise self._bad("it is not an ELF file")
        if self._raw(4, 2) != b"\x02\x01":
            raise self._bad("it is not a 64-bit little-endian file")
        kind, machine = struct.unpack("<HH", self._raw(16, 4))
        if machine not in _MACHINES:
            raise self._bad(f"it is for another processor (ELF machine {machine})")
        self.machine: Machine = _MACHINES[machine]
        self.is_object = kind == 1
        self.sections = self._sections()

    def section(self, name: str) -> Section:
        """The first section of that name."""
        for section in self.sections:
            if section.name == name:
                return section
        raise self._bad(f"it has no section {name}")

    def bytes_of(self, section: Section) -> Bytes:
        """The bytes of a section, a view into the mapped file."""
        if section.kind == _NOTE_BITS:
            return self.data[:0]
        if section.offset + section.size > len(self.data):
            raise self._bad(f"section {section.name or '(no name)'} reaches beyond its end")
        return self.data[section.offset : section.offset + section.size]

    @cached_property
    def soname(self) -> str | None:
        """The name that the library gives itself."""
        names = list(self._dynamic_texts(_SONAME))
        return names[0] if names else None

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Libraries that the loader opens first, in order."""
        return tuple(self._dynamic_texts(_NEEDED))

    @cached_property
    def undefined(self) -> frozenset[str]:
        """Symbols that must come from elsewhere (weak ones need not)."""
        return self._names(self._is_undefined & ~self._is_weak)

    @cached_property
    def unversioned(self) -> frozenset[str]:
        """Those of `undefined` that ask for no version. libc, libstdc++ and the compiler's libraries have versions."""
        table = [s for s in self.sections if s.kind == _GNU_VERSYM]
        symbols = self._symbols
        if not table or self.is_object:
            return self.undefined
        raw = self.bytes_of(table[0])
        if len(raw) != 2 * len(symbols):
            raise self._bad("its symbols and their versions differ in number")
        version = raw.view("<u2") & 0x7FFF if raw.flags.aligned else np.frombuffer(raw.tobytes(), "<u2") & 0x7FFF
        return self._names(self._is_undefined & ~self._is_weak & (version < 2))

    @cached_property
    def defined(self) -> frozenset[str]:
        """Symbols that others can use: not those local to the file."""
        return self._names(~self._is_undefined & ((self._symbols["info"] >> 4) != 0))

    def symbol_addresses(self) -> dict[str, int]:
        """Address of each defined symbol."""
        chosen = np.flatnonzero(~self._is_undefined & (self._symbols["name"] != 0))
        names = self._texts(self._symbols["name"][chosen].astype(np.int64))
        return dict(zip(names, self._symbols["value"][chosen].tolist(), strict=True))

    def relative_relocations(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """(places, addresses): the loader writes each address of the library itself at its place."""
        places, addresses = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for section in self.sections:
            if section.kind == _RELA and section.is_loaded:
                rows = self._records(section, _RELOCATION)
                own = (rows["info"] & 0xFFFFFFFF) == _RELATIVE[self.machine]
                places.append(rows["place"][own])
                addresses.append(rows["addend"][own])
        return np.concatenate(places), np.concatenate(addresses)

    def _sections(self) -> list[Section]:
        table, = struct.unpack("<Q", self._raw(0x28, 8))
        size, number, names_at = struct.unpack("<HHH", self._raw(0x3A, 6))
        if number == 0:
            raise self._bad("it has no section headers")
        if size < 64 or number > MAX_SECTIONS or table + size * number > len(self.data) or names_at >= number:
            raise self._bad("its section headers are damaged")
        rows = [struct.unpack("<IIQQQQIIQQ", self._raw(table + i * size, 64)) for i in range(number)]
        names = rows[names_at]
        if names[4] + names[5] > len(self.data):
            raise self._bad("its section names are damaged")
        texts = self._raw(names[4], names[5])
        return [
            Section(
                name=_text_at(texts, row[0]), kind=row[1], flags=row[2], address=row[3], offset=row[4], size=row[5],
                link=row[6],
            )
            for row in rows
        ]  # fmt: skip

    @cached_property
    def _symbol_section(self) -> Section | None:
        wanted = _SYMTAB if self.is_object else _DYNSYM
        found = [section for section in self.sections if section.kind == wanted]
        return found[0] if found else None

    @cached_property
    def _symbols(self) -> npt.NDArray[Any]:
        section = self._symbol_section
        if section is None:
            return np.empty(0, _SYMBOL)
        if section.size // _SYMBOL.itemsize > MAX_SYMBOLS:
            raise self._bad("it names too many symbols")
        return self._records(section, _SYMBOL)

    @cached_property
    def _is_undefined(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self._symbols["section"] == 0)

    @cached_property
    def _is_weak(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self._symbols["info"] >> 4) == 2)

    def _names(self, chosen: npt.NDArray[np.bool_]) -> frozenset[str]:
        return frozenset(self._texts(self._symbols["name"][chosen & (self._symbols["name"] != 0)].astype(np.int64)))

    @cached_property
    def _strings(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The names' table and where its names end."""
        assert self._symbol_section is not None
        raw = self._linked(self._symbol_section)
        return raw.tobytes(), np.flatnonzero(raw == 0)

    def _texts(self, offsets: npt.NDArray[np.int64]) -> list[str]:
        """Names that begin at these offsets of the names' table."""
        if not len(offsets):
            return []
        raw, ends = self._strings
        index = np.searchsorted(ends, offsets)
        if int(index.max()) >= len(ends):
            raise self._bad("a name reaches beyond the table of names")
        text = raw.decode("latin-1")  # one character per byte: names of symbols are ASCII, and a damaged one is kept
        return [text[start:end] for start, end in zip(offsets.tolist(), ends[index].tolist(), strict=True)]

    def _dynamic_texts(self, tag: int) -> Iterator[str]:
        for section in self.sections:
            if section.kind != _DYNAMIC:
                continue
            rows = self._records(section, _ENTRY)
            end = np.flatnonzero(rows["tag"] == 0)
            rows = rows[: end[0]] if len(end) else rows
            texts = self._linked(section).tobytes()
            for value in rows["value"][rows["tag"] == tag].tolist():
                if value >= len(texts):
                    raise self._bad("a name reaches beyond the table of names")
                yield _text_at(texts, value)

    def _linked(self, section: Section) -> Bytes:
        if section.link >= len(self.sections):
            raise self._bad(f"section {section.name} points at a section that is not there")
        return self.bytes_of(self.sections[section.link])

    def _records(self, section: Section, record: np.dtype[Any]) -> npt.NDArray[Any]:
        raw = self.bytes_of(section)
        return np.frombuffer(raw[: len(raw) // record.itemsize * record.itemsize].tobytes(), record)

    def _raw(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def _bad(self, why: str) -> InputError:
        return InputError(f"{self.path.name} is damaged or of no use here: {why}")


def _text_at(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    return table[start : end if end >= 0 else len(table)].decode("latin-1") if start < len(table) else ""
