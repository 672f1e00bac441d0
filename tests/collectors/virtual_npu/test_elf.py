"""The ELF reader, on files that a compiler makes here, and on damaged ones."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.errors import InputError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

SOURCE = """
#include <stdio.h>
extern int from_cann(int);
extern int also_from_cann(void);
extern int maybe_there(void) __attribute__((weak));
static int hidden(void) { return 7; }
int offered_data = 3;
const char *const table[] = {"first", "second"};
int offered(int x)
{
    printf("%d", x);
    return from_cann(x) + also_from_cann() + (maybe_there ? maybe_there() : hidden());
}
"""


def compiled(folder: Path, *arguments: str, name: str = "lib.so", compiler: str = "gcc") -> Path:
    source, target = folder / "source.c", folder / name
    source.write_text(SOURCE, "utf-8")
    subprocess.run([compiler, *arguments, "-o", str(target), str(source)], check=True)
    return target


SHARED: Sequence[str] = ("-shared", "-fPIC", "-O1", "-Wl,-soname,libsmall.so.4")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("elf"), *SHARED)


def test_a_shared_library(library: Path) -> None:
    elf = Elf(library)

    assert elf.soname == "libsmall.so.4"
    assert elf.needed == ("libc.so.6",)
    assert elf.undefined == {"from_cann", "also_from_cann", "printf"}
    assert elf.unversioned == {"from_cann", "also_from_cann"}
    assert elf.defined == {"offered", "offered_data", "table"}
    assert not elf.is_object


def test_an_object_file(tmp_path: Path) -> None:
    elf = Elf(compiled(tmp_path, "-c", "-fPIC", name="one.o"))

    assert elf.is_object
    assert elf.defined == {"offered", "offered_data", "table"}
    assert {"from_cann", "also_from_cann", "printf"} <= elf.undefined
    assert elf.needed == ()
    assert elf.soname is None


def test_relative_relocations_point_at_the_texts_of_a_table(library: Path) -> None:
    elf = Elf(library)
    table = elf.symbol_addresses()["table"]

    places, addresses = elf.relative_relocations()
    at = dict(zip(places.tolist(), addresses.tolist(), strict=True))

    texts = []
    for entry in (at[table], at[table + 8]):
        section = next(s for s in elf.sections if s.is_loaded and s.address <= entry < s.address + s.size)
        raw = elf.bytes_of(section).tobytes()[entry - section.address :]
        texts.append(raw[: raw.index(0)])
    assert texts == [b"first", b"second"]


def test_the_same_symbols_as_nm(library: Path) -> None:
    """A second reader: binutils, on a library with thousands of symbols that is on every machine with numpy."""
    big = next(Path(np.__file__).parent.glob("*core/_multiarray_umath*.so"))  # core, from numpy 2 on _core
    for path in (library, big):
        said = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True).stdout
        rows = [line.split()[-2:] for line in said.splitlines()]
        plain = [(kind, name.partition("@")[0]) for kind, name in rows]
        versioned = {name.partition("@")[0] for kind, name in rows if kind == "U" and "@" in name}
        elf = Elf(path)

        assert elf.undefined == {name for kind, name in plain if kind == "U"}
        assert elf.unversioned == {name for kind, name in plain if kind == "U"} - versioned
        assert elf.defined == {name for kind, name in plain if kind not in "Uwv"}


def test_a_file_for_aarch64(tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no aarch64-linux-gnu-gcc: `make cross` installs it")
    elf = Elf(compiled(tmp_path, *SHARED, compiler="aarch64-linux-gnu-gcc"))

    assert elf.machine == "aarch64"
    assert elf.unversioned == {"from_cann", "also_from_cann"}
    assert len(elf.relative_relocations()[0]) >= 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an ELF file"),
        (b"!<arch>\n" + b"\0" * 100, "not an ELF file"),
        (b"\x7fELF\x01\x01" + b"\0" * 100, "not a 64-bit little-endian file"),
        (b"\x7fELF\x02\x01" + b"\0" * 12 + b"\x08\0" + b"\0" * 100, "for another processor"),
        (b"\x7fELF\x02\x01" + b"\0" * 12 + b"\x3e\0" + b"\0" * 100, "no section headers"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "odd.so"
    path.write_bytes(content)
    with pytest.raises(InputError, match=why):
        Elf(path)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read gone\.so"):
        Elf(tmp_path / "gone.so")


def read_all(path: Path) -> None:
    elf = Elf(path)
    assert elf.undefined >= elf.unversioned
    for names in (elf.defined, elf.needed):
        assert all(isinstance(name, str) for name in names)
    elf.relative_relocations()
    elf.symbol_addresses()
    assert elf.soname is None or isinstance(elf.soname, str)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(library: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    table = int.from_bytes(content[0x28:0x30], "little")
    # Half of the damage goes where it matters most: into the headers.
    places = st.one_of(st.integers(0, len(content) - 1), st.integers(0, 63), st.integers(table, len(content) - 1))
    for place in data.draw(st.lists(places, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    path = tmp_path / "damaged.so"
    path.unlink(missing_ok=True)
    path.write_bytes(bytes(content[:cut]))
    with contextlib.suppress(InputError):
        read_all(path)
