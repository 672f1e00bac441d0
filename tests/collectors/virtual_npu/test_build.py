"""The libraries: what a wheel needs, what is generated, when they are built again."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import build as build_module
from ascend_perf.collectors.virtual_npu import signatures
from ascend_perf.collectors.virtual_npu.build import (
    LOG,
    MAIN_LIBRARY,
    OTHER_LIBRARIES,
    Needs,
    libraries_for,
    needs_of,
    sources,
    table_source,
    trampoline_source,
    zero_source,
)
from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.collectors.virtual_npu.wheel import COMPLETE, Interpreter, Site
from ascend_perf.errors import MachineError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

MAIN = """
#include <pthread.h>
#include <stdio.h>
int aclrtOnlyImported(int); int aclrtInHandWritten(void); int torch_has_it(void); int other_part(void);
int PyLong_Fake(void); int rtWeak(void) __attribute__((weak));
static const char *const names[] = {
    "aclnnAdd", "aclnnAddGetWorkspaceSize", "aclnnNotInTheTable", "aclnnNotInTheTableGetWorkspaceSize",
    "call aclnnSay failed", "aclnnNoSuffix",
};
pthread_spinlock_t lock;
int use(int i)
{
    puts(names[i]);
    pthread_spin_lock(&lock);
    return aclrtOnlyImported(i) + aclrtInHandWritten() + torch_has_it() + other_part() + PyLong_Fake()
           + (rtWeak ? rtWeak() : 0);
}
"""


def shared(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source, "utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(path), str(text)], check=True)
    return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, Interpreter, Path]:
    """A small wheel, a small torch, and two lines of hand-written C instead of ours."""
    package = tmp_path / "site" / "torch_npu"
    shared(package / "lib" / "libtorch_npu.so", MAIN)
    shared(package / "_C.so", "int other_part(void) { return 5; }")
    shared(tmp_path / "torch" / "lib" / "libtorch.so", "int torch_has_it(void) { return 4; }")
    native = tmp_path / "native"
    native.mkdir()
    for name in ("virtual_npu.h", f"trampoline_{platform.machine()}.S"):
        shutil.copy(build_module.NATIVE / name, native)
    (native / "hand.c").write_text(
        '#include "virtual_npu.h"\n'
        "int aclrtInHandWritten(void) { return 40; }\n"
        "int vn_operator_prepare(const vn_signature *row, const uint64_t *i, const uint64_t *f, const uint64_t *s)\n"
        "{ (void)i, (void)f, (void)s; return row->kinds ? 0 : 161002; }\n"
        "int vn_operator_launch(const vn_signature *r, void *w, uint64_t n, void *e, void *s)\n"
        "{ (void)r, (void)w, (void)n, (void)e, (void)s; return 0; }\n",
        "utf-8",
    )
    monkeypatch.setattr(build_module, "NATIVE", native)
    monkeypatch.delenv("CC", raising=False)
    site = Site(folder=tmp_path / "site", version=signatures.table().versions[0], hash="0" * 64)
    interpreter = Interpreter(
        executable=Path("/usr/bin/python3"), python="3.11.7", python_tag="cp311", abi_tag="cp311",
        machine=platform.machine(), torch="2.9.9+cpu", torch_folder=tmp_path / "torch", has_pip=True,
    )  # fmt: skip
    return site, interpreter, tmp_path / "cache"


World = tuple[Site, Interpreter, Path]


def made(world: World) -> tuple[Path, list[str], dict[str, float]]:
    said: list[str] = []
    seconds: dict[str, float] = {}
    site, interpreter, cache = world
    return libraries_for(site, interpreter, cache, said.append, seconds).home, said, seconds


def test_what_a_wheel_needs(world: World) -> None:
    needs = needs_of(world[0], world[1])
    assert needs.functions == ("aclrtInHandWritten", "aclrtOnlyImported")
    assert needs.operators == {"aclnnAdd": signatures.table().rows["aclnnAdd"].kinds, "aclnnNotInTheTable": None}


def test_libraries_that_nobody_used_for_thirty_days_go_when_new_ones_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = made(world)
    days = {"unused": 31, "recent": 29, "unfinished": 31}
    for name, age in days.items():
        folder = first.parent / name
        folder.mkdir()
        mark = folder / (COMPLETE if name != "unfinished" else "other")
        mark.write_text("{}")
        os.utime(mark, (time.time() - age * 86400,) * 2)
    os.utime(first / COMPLETE, (time.time() - 31 * 86400,) * 2)
    second, _, _ = made(world)  # nothing is made: nothing goes, and these libraries are noted as used
    assert second == first
    assert {path.name for path in first.parent.iterdir()} == {first.name, *days}
    monkeypatch.setattr(build_module, "source_hash", lambda *of: "another")
    third, _, _ = made(world)
    assert {path.name for path in first.parent.iterdir()} == {first.name, third.name, "recent", "unfinished"}
    assert not list(first.parent.parent.glob("unfinished-*"))


def test_the_libraries_are_laid_out_like_an_installation_of_cann(world: World) -> None:
    home, said, seconds = made(world)

    assert {path.name for path in home.iterdir() if path.is_dir()} == {"lib64", "runtime", "compiler", "opp"}
    assert {path.name for path in (home / "lib64").iterdir()} == {MAIN_LIBRARY, *OTHER_LIBRARIES}
    for name in OTHER_LIBRARIES:
        assert (home / "lib64" / name).resolve() == (home / "lib64" / MAIN_LIBRARY).resolve()
    assert Elf(home / "lib64" / MAIN_LIBRARY).soname == MAIN_LIBRARY
    library = ctypes.CDLL(str(home / "lib64" / MAIN_LIBRARY))
    assert library.aclrtOnlyImported(3) == 0
    assert library.aclrtInHandWritten() == 40
    assert library.aclnnAddGetWorkspaceSize() == 0
    assert library.aclnnNotInTheTableGetWorkspaceSize() == 161002
    assert not hasattr(library, "torch_has_it")
    assert said[0].startswith("building the stand-in CANN libraries")
    assert said[1].endswith("(2 operators; a run stops at 1 of them, whose arguments nobody knows: build.log)")
    assert set(seconds) == {"build"}


def test_the_log_says_what_returns_zero_and_what_is_not_known(world: World) -> None:
    home, _, _ = made(world)
    lines = (home / LOG).read_text("utf-8").splitlines()
    assert "functions of CANN that the wheel imports: 2" in lines
    assert lines[lines.index("of these, made to return 0: 1") + 1] == "  aclrtOnlyImported"
    assert lines[lines.index("operators: 2; with unknown arguments: 1") + 1] == "  aclnnNotInTheTable"


def test_a_second_time_nothing_is_built(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = made(world)
    monkeypatch.setattr(build_module, "build", lambda *_, **__: pytest.fail("built again"))
    home, said, seconds = made(world)
    assert (home, said, seconds) == (first, [], {})


@pytest.mark.parametrize("damage", ["library", "link", "marker", "folder"])
def test_damaged_libraries_are_built_again(world: World, damage: str) -> None:
    home, _, _ = made(world)
    library = home / "lib64" / MAIN_LIBRARY
    good = library.read_bytes()
    if damage == "library":
        library.write_bytes(good[:-1] + b"!")
    elif damage == "link":
        (home / "lib64" / "libhccl.so").unlink()
    elif damage == "marker":
        (home / COMPLETE).write_text("[]", "utf-8")
    else:
        shutil.rmtree(home / "runtime")
    again, said, _ = made(world)
    assert again == home
    assert len(said) == 2
    assert (home / "lib64" / "libhccl.so").exists()
    assert Elf(library).defined >= {"aclnnAdd", "aclrtOnlyImported"}


def test_changed_sources_wheel_torch_or_compiler_make_others(world: World, tmp_path: Path) -> None:
    site, interpreter, cache = world
    seen = {made(world)[0]}

    def another(changed: World) -> None:
        home = made(changed)[0]
        assert home not in seen
        seen.add(home)

    another((Site(folder=site.folder, version=site.version, hash="1" * 64), interpreter, cache))
    another((site, Interpreter(**{**vars(interpreter), "torch": "2.9.8"}), cache))
    with (build_module.NATIVE / "hand.c").open("a") as file:
        file.write("/* changed */\n")
    another(world)
    compiler = tmp_path / "another-cc"
    compiler.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo another 1.0; exit; fi\nexec gcc "$@"\n', "utf-8")
    compiler.chmod(0o755)
    os.environ["CC"] = str(compiler)
    try:
        another(world)
    finally:
        del os.environ["CC"]


def test_without_a_compiler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    with pytest.raises(MachineError, match="no C compiler") as failed:
        made(world)
    assert "apt-get install gcc" in failed.value.hint
    monkeypatch.undo()
    monkeypatch.setattr(build_module, "NATIVE", world[2].parent / "native")
    home, _, _ = made(world)
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    assert made(world)[0] == home


@pytest.mark.parametrize(
    ("says", "what"),
    [
        ("x.c:1:2: error: this does not compile", "x.c:1:2: error: this does not compile"),
        ("fatal error: write failed: No space left on device", "no space is left"),
        ("hand.c:1:10: fatal error: stdint.h: No such file or directory", "finds no headers"),
    ],
)
def test_a_compiler_that_fails(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, what: str
                               ) -> None:  # fmt: skip
    compiler = tmp_path / "broken-cc"
    compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then exit; fi\necho "{says}" >&2\nexit 1\n', "utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(MachineError, match=what):
        made(world)
    assert not list((world[2] / "libraries").glob("*"))
    assert not list(world[2].glob("unfinished-*"))


def test_our_own_sources_compile_without_a_warning(tmp_path: Path) -> None:
    """With the flags of the product, but no warning is let through."""
    (tmp_path / "table.c").write_text(table_source({"aclnnAdd": "ttst", "aclnnOdd": None}, "a test"), "utf-8")
    (tmp_path / "zero.c").write_text(zero_source(["aclrtOne", "printf", "_ZN4odd"]), "utf-8")
    written = [path for path in sources() if path.suffix == ".c"]
    assert len(written) > 5
    done = subprocess.run(
        ["gcc", *build_module._FLAGS, "-Werror", "-O1", "-fsyntax-only", "-I", str(build_module.NATIVE),
         *map(str, written), str(tmp_path / "table.c"), str(tmp_path / "zero.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


def test_generated_sources() -> None:
    operators: dict[str, str | None] = {"aclnnB": None, "aclnnA": "tn"}
    table = table_source(operators, 'version "1"').splitlines()
    assert table[3:6] == ['    {"aclnnA", "tn"},', '    {"aclnnB", NULL},', "    {NULL, NULL},"]
    assert "const int vn_signature_count = 2;" in table
    assert r'const char vn_build_id[] = "version \"1\"";' in table
    assert trampoline_source(operators, "x86_64").splitlines() == [
        '#include "trampoline_x86_64.S"', "    OPERATOR aclnnA, 0", "    OPERATOR aclnnB, 16",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ['a"b', "a b", "", "1a", "a;b", "ä"])
def test_names_that_are_none_never_reach_a_compiler(name: str) -> None:
    with pytest.raises(MachineError):
        zero_source([name])
    with pytest.raises(MachineError):
        table_source({name: "t"}, "")
    with pytest.raises(MachineError):
        trampoline_source([name], "x86_64")


def test_a_wheel_of_another_version_is_read_itself(world: World) -> None:
    site, interpreter, _ = world
    other = Site(folder=site.folder, version="2.99.0", hash=site.hash)
    needs = needs_of(other, interpreter)
    assert needs.from_calls == ()  # its two operators leave no types at their calls
    assert needs.operators["aclnnAdd"] == signatures.table().rows["aclnnAdd"].kinds
    assert Needs(functions=(), operators={}).from_calls == ()
