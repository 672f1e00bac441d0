"""Reading files that may be large, compressed, damaged or hostile: in blocks, bounded, with clear errors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ascend_perf.errors import InputError

BLOCK_BYTES: Final = 8 << 20
"""Bytes that are decoded at a time. Status: measured; 2 to 16 MiB are alike, memory grows with it."""

MAX_EXPANSION: Final = 300
"""Largest ratio of plain to gzip bytes that we follow beyond `FREE_EXPANSION_BYTES`. Real traces reach 10 to 30;
gzip's own limit is about 1030, which only repeated bytes reach. Status: assumed."""

FREE_EXPANSION_BYTES: Final = 256 << 20
"""Plain bytes that a gzip file may always expand to."""

_GZIP_MAGIC: Final = b"\x1f\x8b"


def open_binary(path: Path) -> BinaryIO:
    """The file opened for reading bytes.

    Raises:
        InputError: it is missing, is no file, or may not be read.
    """
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory, expected a file") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: permission denied", hint=f"chmod +r {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def is_gzip(path: Path) -> bool:
    """Whether the content is gzip, whatever the name says.

    Raises:
        InputError: the file cannot be opened.
    """
    with open_binary(path) as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def head(path: Path, size: int = 64 << 10) -> bytes:
    """The first `size` bytes of the content, decompressed when it is gzip; what can be had when it is damaged.

    Raises:
        InputError: the file cannot be opened.
    """
    with open_binary(path) as file:
        start = file.read(size)
        if not start.startswith(_GZIP_MAGIC):
            return start
        inflater = zlib.decompressobj(wbits=31)
        try:
            return inflater.decompress(start, size)
        except zlib.error:
            return b""


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The content of a file in blocks of about `size` bytes, decompressed when it is gzip (several members too).

    Raises:
        InputError: the file cannot be read, the gzip data is damaged or cut short, or it expands beyond reason.
            Blocks before the damage have been given by then, so that a reader may keep what it has.
    """
    with open_binary(path) as file:
        compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if not compressed:
            while block := file.read(size):
                yield block
            return
        yield from _inflated(file, path, size)


def _inflated(file: BinaryIO, path: Path, size: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    pending = b""
    read = given = 0
    while True:
        if len(pending) < len(_GZIP_MAGIC):
            more = file.read(1 << 20)
            read += len(more)
            pending += more
        if inflater.eof:
            if not pending.startswith(_GZIP_MAGIC):
                return  # padding after the last member
            inflater = zlib.decompressobj(wbits=31)
        try:
            block = inflater.decompress(pending, size)
        except zlib.error as error:
            raise InputError(f"{path} is a damaged gzip file: {error}", hint="copy or download it again") from None
        ended = not pending and not block
        pending = inflater.unconsumed_tail or inflater.unused_data
        given += len(block)
        if given > FREE_EXPANSION_BYTES and given > MAX_EXPANSION * read:
            raise InputError(
                f"{path} expands to more than {MAX_EXPANSION} times its size, which no real trace does",
                hint="if you trust the file, decompress it and analyze the plain file",
            )
        if block:
            yield block
        elif ended and not inflater.eof:
            raise InputError(f"{path} is a gzip file that ends too early", hint="copy or download it again")
