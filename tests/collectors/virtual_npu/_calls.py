"""Calls of made-up operators with known arguments: by ctypes, and by a C program that a compiler makes of them."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu.environment import VARIABLE, config_text
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu

Value = int | float | str | None

C_TYPES: Mapping[str, tuple[str, Any]] = {
    "n": ("int64_t", ctypes.c_int64), "m": ("int32_t", ctypes.c_int32), "y": ("bool", ctypes.c_bool),
    "d": ("double", ctypes.c_double), "e": ("float", ctypes.c_float), "c": ("const char *", ctypes.c_char_p),
}  # fmt: skip
"""Kinds whose values need no handle: declared as the headers of CANN do, so that a compiler lays them out."""


@dataclass(frozen=True)
class Case:
    """One call: an operator of `kinds` gets `values`."""

    kinds: str
    values: tuple[Value, ...]


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


_VALUES: dict[str, st.SearchStrategy[Value]] = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "m": st.integers(-(2**31), 2**31 - 1),
    "y": st.integers(0, 1),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "e": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "c": st.one_of(st.none(), st.text("abcdefghijklmnopqrstuvwxyz_0123456789", max_size=30)),
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A sequence of kinds, up to far more than there are registers, and a value for each."""
    kinds = draw(st.text("nmyde", max_size=40))
    for _ in range(draw(st.integers(0, 3))):  # few operators take more texts than that
        place = draw(st.integers(0, len(kinds)))
        kinds = f"{kinds[:place]}c{kinds[place:]}"
    return Case(kinds, tuple(draw(_VALUES[kind]) for kind in kinds))


def operator(number: int) -> str:
    return f"aclnnMadeUp{number}"


def call_by_ctypes(library: ctypes.CDLL, name: str, case: Case) -> tuple[int, list[int | float | bytes | None]]:
    """First half of a call: the code that it returns, and the values, whose texts live on as long as that list."""
    function = library[f"{name}GetWorkspaceSize"]
    types = [C_TYPES[kind][1] for kind in case.kinds]
    function.argtypes = [*types, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_int
    size, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
    values = [value.encode() if isinstance(value, str) else value for value in case.values]
    return int(function(*values, ctypes.addressof(size), ctypes.addressof(executor))), values


CHILD = """
import ctypes, json, sys
from tests.collectors.virtual_npu._calls import C_TYPES
library = ctypes.CDLL(sys.argv[1])
stream = ctypes.c_void_p()
assert library.aclrtSetDevice(0) == 0
assert library.aclrtCreateStream(ctypes.byref(stream)) == 0
for number, (kinds, values) in enumerate(json.load(open(sys.argv[2]))):
    prepare, launch = library[f"aclnnMadeUp{number}GetWorkspaceSize"], library[f"aclnnMadeUp{number}"]
    prepare.argtypes = [*(C_TYPES[kind][1] for kind in kinds), ctypes.c_void_p, ctypes.c_void_p]
    launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    size, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
    values = [value.encode() if isinstance(value, str) else value for value in values]
    code = prepare(*values, ctypes.addressof(size), ctypes.addressof(executor))
    assert code == 0, (kinds, code)
    assert launch(None, size, executor, stream) == 0
assert library.aclrtSynchronizeDevice() == 0
"""


def recorded(folder: Path, command: Sequence[str]) -> dict[str, list[object]]:
    """Run a program on the libraries; arguments by operator, as its record has them."""
    folder.mkdir()
    config = folder / "settings.tsv"
    config.write_text(config_text(VirtualNpu(clock="modelled"), folder), "utf-8")
    environment = {"PATH": "/usr/bin:/bin", VARIABLE: str(config), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = folder.glob("*.vnpu")
    found: dict[str, list[object]] = {}
    for line in record.read_text("utf-8").splitlines():
        fields = line.split("\t")
        if fields[0] == "D" and fields[2] == "op":
            found[fields[3]] = json.loads(fields[4])["args"]
    return found


def expected(case: Case) -> list[object]:
    """What the record should have for a case."""
    found: list[object] = []
    for kind, value in zip(case.kinds, case.values, strict=True):
        if value is None:
            found.append(None)
        elif kind == "c":
            found.append(["c", value])
        else:
            found.append(["d" if kind in "de" else "n", value])
    return found


def python_program(library: Path, folder: Path, made: Sequence[Case]) -> list[str]:
    """Command that makes the calls through ctypes."""
    file = folder / "cases.json"
    file.write_text(json.dumps([(case.kinds, case.values) for case in made]), "utf-8")
    return [sys.executable, "-c", CHILD, str(library), str(file)]


def c_program(compiler: str, home: Path, folder: Path, made: Sequence[Case], runner: Sequence[str] = ()) -> list[str]:
    """Command that makes the calls as compiled C."""
    lines = [
        "#include <stdbool.h>", "#include <stdint.h>", "#include <stddef.h>", "#include <stdlib.h>",
        "int aclrtSetDevice(int32_t);", "int aclrtCreateStream(void **);", "int aclrtSynchronizeDevice(void);",
    ]  # fmt: skip
    body = ["    void *stream;", "    if (aclrtSetDevice(0) || aclrtCreateStream(&stream)) return 1;"]
    for number, case in enumerate(made):
        name = operator(number)
        types = [C_TYPES[kind][0] for kind in case.kinds]
        lines.append(f"int {name}GetWorkspaceSize({', '.join([*types, 'uint64_t *', 'void **'])});")
        lines.append(f"int {name}(void *, uint64_t, void *, void *);")
        values = [_literal(kind, value) for kind, value in zip(case.kinds, case.values, strict=True)]
        body += [
            "    {", "        uint64_t size = 0;", "        void *executor = NULL;",
            f"        if ({name}GetWorkspaceSize({', '.join([*values, '&size', '&executor'])})) return 2;",
            f"        if ({name}(NULL, size, executor, stream)) return 3;", "    }",
        ]  # fmt: skip
    body.append("    return aclrtSynchronizeDevice();")
    source, program = folder / "calls.c", folder / "calls"
    source.write_text("\n".join([*lines, "int main(void)", "{", *body, "}", ""]), "utf-8")
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-w", "-o", str(program), str(source), f"-L{home / 'lib64'}", "-lascendcl",
         f"-Wl,-rpath,{home / 'lib64'}"],
        check=True,
    )  # fmt: skip
    return [*runner, str(program)]


def _literal(kind: str, value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{_single(value).hex()}f" if kind == "e" else value.hex()
    return {"n": f"(int64_t){value % 2**64}u", "m": f"(int32_t){value % 2**32}u", "y": str(value)}[kind]
