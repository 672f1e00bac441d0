"""Entry points of operators: whatever the arguments, they arrive as they were given."""

from __future__ import annotations

import ctypes
import platform
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu.build import NATIVE, Needs, build
from ascend_perf.collectors.virtual_npu.environment import VARIABLE, config_text
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from ascend_perf.collectors.virtual_npu.signatures import KINDS
from tests.collectors.virtual_npu._calls import (
    C_TYPES,
    Case,
    c_program,
    call_by_ctypes,
    cases,
    expected,
    operator,
    python_program,
    recorded,
)

MACHINE = platform.machine()
OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"
FITTING = ("Fine", "FineNull")
NOT_FITTING = ("TooFew", "TooMany", "MoreTensors", "Swapped", "WrongHandle", "NotAlive")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

CAPTURE = """
#include <string.h>
#include "virtual_npu.h"
uint64_t seen_ints[8], seen_floats[8], seen_stack[64];
const vn_signature *seen_operator;
void *seen_workspace, *seen_executor, *seen_stream;
uint64_t seen_size;

int vn_operator_prepare(const vn_signature *row, const uint64_t *ints, const uint64_t *floats, const uint64_t *stack)
{
    seen_operator = row;
    memcpy(seen_ints, ints, VN_INT_REGISTERS * 8);
    memcpy(seen_floats, floats, VN_FLOAT_REGISTERS * 8);
    memcpy(seen_stack, stack, sizeof seen_stack);
    return 161002;
}

int vn_operator_launch(const vn_signature *row, void *workspace, uint64_t size, void *executor, void *stream)
{
    seen_operator = row, seen_workspace = workspace, seen_size = size, seen_executor = executor, seen_stream = stream;
    return 507000;
}
"""
NAMES = ("aclnnFirst", "aclnnSecond", "aclnnThird")


@pytest.fixture(scope="module")
def capturing(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Trampolines before a function that only notes what it was given."""
    folder = tmp_path_factory.mktemp("capture")
    native = folder / "native"
    native.mkdir()
    for name in ("virtual_npu.h", f"trampoline_{MACHINE}.S"):
        shutil.copy(NATIVE / name, native)
    (native / "capture.c").write_text(CAPTURE, "utf-8")
    home = folder / "home"
    home.mkdir()
    build(home, Needs(functions=(), operators=dict.fromkeys(NAMES, "n")), "gcc", build_id="a test", native=native)
    return ctypes.CDLL(str(home / "lib64" / "libascendcl.so"))


def words(library: ctypes.CDLL, name: str, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).in_dll(library, name))


def called(library: ctypes.CDLL) -> str:
    row = ctypes.c_void_p.in_dll(library, "seen_operator").value
    assert row is not None
    return (ctypes.string_at(ctypes.cast(row, ctypes.POINTER(ctypes.c_char_p))[0] or b"")).decode()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), name=st.sampled_from(NAMES))
def test_registers_and_stack_arrive_untouched(capturing: ctypes.CDLL, case: Case, name: str) -> None:
    """Where each argument must be follows from the two calling conventions, written down here once more.

    Whole numbers and pointers: 6 (x86_64) or 8 (aarch64) registers, real numbers: 8 registers, the rest in order on
    the stack, eight bytes each. Narrow values fill the low bytes only.
    """
    code, values = call_by_ctypes(capturing, name, case)

    assert code == 161002
    assert called(capturing) == name
    ints = words(capturing, "seen_ints", 8)[: 6 if MACHINE == "x86_64" else 8]
    floats = words(capturing, "seen_floats", 8)
    stack = words(capturing, "seen_stack", 64)
    for kind, value in zip(case.kinds, values, strict=True):
        registers = floats if kind in "de" else ints
        word = registers.pop(0) if registers else stack.pop(0)
        if kind == "c":
            assert (ctypes.string_at(word) if word else None) == value
        elif kind in "de":
            raw = struct.pack("<d" if kind == "d" else "<f", value)
            assert word.to_bytes(8, "little")[: len(raw)] == raw
        else:
            width = {"n": 8, "m": 4, "y": 1}[kind]
            assert isinstance(value, int)
            assert word % 2 ** (8 * width) == value % 2 ** (8 * width)


def test_the_second_half_passes_its_four_arguments(capturing: ctypes.CDLL) -> None:
    for name in NAMES:
        function = capturing[name]
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
        assert function(0x1111, 2**64 - 5, 0x3333, 0x4444) == 507000
        assert called(capturing) == name
        assert ctypes.c_void_p.in_dll(capturing, "seen_workspace").value == 0x1111
        assert words(capturing, "seen_size", 1) == [2**64 - 5]
        assert ctypes.c_void_p.in_dll(capturing, "seen_executor").value == 0x3333
        assert ctypes.c_void_p.in_dll(capturing, "seen_stream").value == 0x4444


FIXED = (
    Case("", ()),
    Case("n" * 20, tuple(range(-10, 10))),
    Case("d" * 12, tuple(i / 8 for i in range(12))),
    Case("e" * 12, tuple(i / 4 for i in range(12))),
    Case("nd" * 12, tuple(i if i % 2 == 0 else i / 2 for i in range(24))),
    Case("ymyn" * 6, (1, -1, 0, 2**40, 1, -(2**31), 0, -(2**63), 0, 5, 1, 7, 1, 0, 1, 0, 0, 1, 1, 2, 1, 3, 0, 4)),
    Case("cdncenc", ("BSND", 0.25, 8, None, 0.5, -1, "a_long_name_of_a_communicator_here")),
)


@seed(20261130)
@settings(max_examples=1, database=None, deadline=None, phases=[Phase.generate])
@given(more=st.lists(cases(), min_size=60, max_size=60))
def _collect(more: list[Case]) -> None:
    _MORE[:] = more


_MORE: list[Case] = []


@pytest.fixture(scope="module")
def made() -> list[Case]:
    _collect()
    chosen = random.Random(8)
    wide = [
        Case(kinds, tuple({"n": i * 7919 - 3, "m": -i, "y": i % 2, "d": i / 3, "e": i / 4}[kind]
                          for i, kind in enumerate(kinds)))
        for kinds in ("".join(chosen.choice("nmyde") for _ in range(chosen.randint(10, 60))) for _ in range(30))
    ]  # fmt: skip
    return [*FIXED, *_MORE, *wide]


def built(folder: Path, made: list[Case], compiler: str, machine: str) -> Path:
    """The real libraries with a table of made-up operators."""
    folder.mkdir()
    operators: dict[str, str | None] = {operator(i): case.kinds for i, case in enumerate(made)}
    operators |= {f"aclnn{name}": "ttn" for name in FITTING + NOT_FITTING}
    build(folder, Needs(functions=("aclNotWritten",), operators={**operators, "aclnnUnknown": None}), compiler,
          build_id="a test", machine=machine)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, made: list[Case]) -> Path:
    return built(tmp_path_factory.mktemp("own") / "home", made, "gcc", MACHINE)


@pytest.fixture(scope="module")
def other_home(tmp_path_factory: pytest.TempPathFactory, made: list[Case]) -> Path:
    """For the machine that this one is not."""
    compiler = shutil.which(f"{OTHER}-linux-gnu-gcc")
    if compiler is None:
        pytest.skip(f"no {OTHER}-linux-gnu-gcc: `make cross` installs it")
    return built(tmp_path_factory.mktemp("other") / "home", made, compiler, OTHER)


def test_the_recorder_gets_every_kind_of_argument(tmp_path: Path, made: list[Case], home: Path) -> None:
    found = recorded(tmp_path / "record", python_program(home / "lib64" / "libascendcl.so", tmp_path, made))
    assert found == {operator(i): expected(case) for i, case in enumerate(made)}


def test_all_is_compiled_and_assembled_for_the_other_machine(other_home: Path) -> None:
    said = subprocess.run(["readelf", "-hs", "--wide", str(other_home / "lib64" / "libascendcl.so")], text=True,
                          capture_output=True, check=True).stdout  # fmt: skip
    assert {"aarch64": "AArch64", "x86_64": "X86-64"}[OTHER] in said
    assert f"{operator(3)}GetWorkspaceSize" in said


def test_a_compiler_s_calls_on_the_other_machine(tmp_path: Path, made: list[Case], other_home: Path) -> None:
    """The same calls, laid out by a compiler for the other machine and run in an emulator."""
    emulator = shutil.which(f"qemu-{OTHER}")
    if emulator is None:
        pytest.skip(f"no qemu-{OTHER}: `make cross` installs it")
    program = c_program(f"{OTHER}-linux-gnu-gcc", other_home, tmp_path, made,
                        (emulator, "-L", f"/usr/{OTHER}-linux-gnu"))  # fmt: skip
    assert recorded(tmp_path / "record", program) == {operator(i): expected(case) for i, case in enumerate(made)}


REFUSALS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.aclCreateTensor.restype = library.aclGetRecentErrMsg.restype = ctypes.c_void_p
library.aclCreateIntArray.restype = ctypes.c_void_p
dims = (ctypes.c_int64 * 2)(2, 3)
two = ctypes.c_uint64(2)
tensor = library.aclCreateTensor(dims, two, 0, None, ctypes.c_int64(0), 2, dims, two, None)
array = library.aclCreateIntArray(dims, two)
size, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
ends = [ctypes.c_void_p(ctypes.addressof(size)), ctypes.c_void_p(ctypes.addressof(executor))]
t, i, number, null = ctypes.c_void_p(tensor), ctypes.c_void_p(array), ctypes.c_int64(5), ctypes.c_void_p(None)
for name, arguments in {
    "Fine": [t, t, number], "FineNull": [t, null, number],
    "TooFew": [t, t], "TooMany": [t, t, number, number], "MoreTensors": [t, t, number, t], "Swapped": [t, number, t],
    "WrongHandle": [t, i, number], "NotAlive": [t, ctypes.c_void_p(tensor + 8), number], "Unknown": [t],
}.items():
    executor.value = None
    code = library[f"aclnn{name}GetWorkspaceSize"](*arguments, *ends)
    text = ctypes.string_at(library.aclGetRecentErrMsg() or b"").decode() if code else ""
    print(name, code, text.replace("\\n", " ") or "-")
"""


def test_a_call_that_does_not_fit_the_table_is_refused(tmp_path: Path, home: Path) -> None:
    settings_file = tmp_path / "settings.tsv"
    settings_file.write_text(config_text(VirtualNpu(), tmp_path), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, str(home / "lib64" / "libascendcl.so")], capture_output=True, text=True,
        env={VARIABLE: str(settings_file)}, check=True,
    )  # fmt: skip

    told = {name: (int(code), text) for name, code, text in (line.split(" ", 2) for line in done.stdout.splitlines())}
    refused = (*NOT_FITTING, "Unknown")
    assert {name: code for name, (code, _) in told.items()} == {
        **dict.fromkeys(FITTING, 0), **dict.fromkeys(refused, 161002),
    }  # fmt: skip
    lines = [line.split("\t") for path in tmp_path.glob("*.vnpu") for line in path.read_text("utf-8").splitlines()]
    noted = {fields[2]: fields[3] for fields in lines if fields[0] == "X"}
    for name in refused:
        assert f"aclnn{name}" in told[name][1]
        assert f"aclnn{name} of torch_npu (a test)" in done.stderr
        assert noted[f"aclnn{name}"] == "161002"
    assert "its arguments are not known" in done.stderr


def test_every_kind_of_the_table_has_a_c_type_or_is_a_handle() -> None:
    assert set(KINDS) == set(C_TYPES) | set("tlszifb")
