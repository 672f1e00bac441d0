"""Blocks of plain and gzip files: whole, cut, damaged, hostile."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ascend_perf import files
from ascend_perf.errors import InputError

TEXT = b"".join(b"line %d of a file\n" % n for n in range(20_000))


def test_plain_and_gzip_give_the_same_bytes(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(TEXT)
    packed.write_bytes(gzip.compress(TEXT))
    assert b"".join(files.blocks(plain, 1000)) == TEXT
    assert b"".join(files.blocks(packed, 1000)) == TEXT
    assert files.head(packed, 100) == files.head(plain, 100) == TEXT[:100]


def test_members_glued_together_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"first ") + gzip.compress(b"second") + b"\0" * 64)
    assert b"".join(files.blocks(path)) == b"first second"


def test_a_cut_file_gives_its_start_and_then_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    packed = gzip.compress(TEXT)
    path.write_bytes(packed[: len(packed) // 2])
    read = []
    with pytest.raises(InputError, match="ends too early"):
        for block in files.blocks(path, 1000):
            read.append(block)
    start = b"".join(read)
    assert len(start) > len(TEXT) // 4
    assert TEXT.startswith(start)


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gz"
    packed = bytearray(gzip.compress(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"bad\.gz is a (damaged gzip file|gzip file that ends)"):
        list(files.blocks(path))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_EXPANSION_BYTES", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"0" * (64 << 20)))
    given = 0
    with pytest.raises(InputError, match="300 times its size"):
        for block in files.blocks(path):
            given += len(block)
    assert given < 40 << 20


def test_missing_file_directory_and_permission_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        list(files.blocks(tmp_path / "none"))
    with pytest.raises(InputError, match="is a directory"):
        list(files.blocks(tmp_path))
