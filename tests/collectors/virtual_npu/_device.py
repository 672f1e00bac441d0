"""The virtual device's C core without torch_npu: built once with a cost model of exact numbers, called by ctypes.

Each `Device` loads a copy of the library of its own, so that tests do not see each other's state.
"""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ascend_perf.collectors.virtual_npu.record import Record, read_record

NATIVE: Final = Path(__file__).parents[3] / "collectors" / "virtual_npu" / "native"
VARIABLE: Final = "ASCEND_PERF_VIRTUAL_NPU"  # as in environment.py, whose imports the ranks of a test do not need
HOST_LAUNCH_NS: Final = 1000
LATENCY_NS: Final = 300
COPY_NS: Final = 50
"""Costs of the test's own model: a copy takes COPY_NS times its kind + 1, plus a ns for each byte."""

KINDS: Final[Mapping[str, str | None]] = {
    "aclnnAdd": "ttst", "aclnnAdds": "tsst", "aclnnCast": "tmt", "aclnnCat": "lnt", "aclnnConstantPadNd": "tist",
    "aclnnEqTensor": "ttt", "aclnnGtScalar": "tst", "aclnnGtTensor": "ttt", "aclnnInplaceCopy": "tt",
    "aclnnInplaceFillScalar": "ts", "aclnnInplaceOne": "t", "aclnnInplaceZero": "t", "aclnnLeTensor": "ttt",
    "aclnnMany": "tlzsifbcnmydet", "aclnnMul": "ttt", "aclnnReduceSum": "tiymt", "aclnnSub": "ttst",
    "aclnnNLLLoss": "tttnntt", "aclnnTimed": "n", "aclnnUnary": "tt", "aclnnUnknown": None,
}  # fmt: skip
"""Operators of the test; aclnnTimed takes as many ns as its argument says, the others 2000."""

_COST: Final = """
#include <string.h>
#include "cost.h"
static int unknown, is_wrong;
void vn_cost_load_line(char *line) { is_wrong |= !strcmp(line, "wrong"); }
const char *vn_cost_problem(void) { return is_wrong ? "kind of line: wrong" : NULL; }
int vn_cost_unknown_count(void) { return unknown; }
const char *vn_cost_unknown(int index, int64_t *calls) { (void)index, (void)calls; return "aclnnInplaceOne"; }
double vn_cost_value(const char *key) { return strcmp(key, "host_launch_ns") ? 4321.4 : 8765.5; }
double vn_cost_kernel(const char *op, const vn_arg *args, int n, vn_cost *out)
{ (void)n; unknown |= !strcmp(op, "aclnnInplaceOne");
  return out->ns = strcmp(op, "aclnnTimed") ? 2000 : args[0].number; }
double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node, vn_cost *out)
{ return out->ns = bytes + 1000 * ranks + 10 * ranks_per_node + (strcmp(op, "Send") && strcmp(op, "Recv") ? 0 : 7); }
double vn_cost_copy(int kind, double bytes) { return %d * (kind + 1) + bytes; }
"""


@lru_cache(maxsize=1)
def library() -> Path:
    """The core as a shared library; kept for the session in a folder of the interpreter's own."""
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="virtual-npu-core-"))
    owner = os.getpid()

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:  # not a fork of this process
            shutil.rmtree(folder, ignore_errors=True)

    rows = ",".join(
        f'{{"{name}", {"NULL" if kinds is None else f"{chr(34)}{kinds}{chr(34)}"}}}' for name, kinds in KINDS.items()
    )
    (folder / "table.c").write_text(
        '#include <stddef.h>\n#include "virtual_npu.h"\n'
        f"const vn_signature vn_signatures[] = {{{rows}}};\nconst int vn_signature_count = {len(KINDS)};\n"
        'const char vn_build_id[] = "test";\n' + _COST % COPY_NS
    )
    sources = [path for path in sorted(NATIVE.glob("*.c")) if not path.stem.startswith("cost")]
    subprocess.run(
        ["gcc", "-std=gnu11", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I", NATIVE, "-o",
         folder / "core.so", *sources, folder / "table.c", "-lpthread", "-lm"],
        check=True,
    )  # fmt: skip
    return folder / "core.so"


def config(folder: Path, **settings: object) -> Path:
    """The settings file of a device that records into `folder`."""
    faults: Any = settings.pop("faults", ())
    told = {
        "version": 1, "soc": "Ascend910B2", "device_count": 2, "hbm_bytes": 1 << 30, "clock": "modelled",
        "record": folder, "host_launch_ns": HOST_LAUNCH_NS, "launch_latency_ns": LATENCY_NS, "ranks_per_node": 2,
        "meet": folder / "meet", **settings,
    }  # fmt: skip
    path = folder / "virtual_npu.tsv"
    lines = [f"{key}\t{value}" for key, value in told.items() if value is not None]
    lines += ["\t".join(("fault", *map(str, fault))) for fault in faults]
    path.write_text("\n".join(lines) + "\n")
    return path


class Device:
    """One virtual device of this process, and shorthands for the calls of a test."""

    _numbers = itertools.count()

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        copy = folder / f"core{os.getpid()}_{next(self._numbers)}.so"
        shutil.copy(library(), copy)
        self.lib = ctypes.CDLL(str(copy))
        copy.unlink()
        self._names = {name: row for row, name in enumerate(KINDS)}
        self._rows = ctypes.addressof(ctypes.c_char.in_dll(self.lib, "vn_signatures"))
        for name in ("aclCreateTensor", "aclCreateScalar", "aclCreateIntArray", "aclCreateFloatArray",
                     "aclCreateBoolArray", "aclCreateTensorList", "aclCreateScalarList"):  # fmt: skip
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.aclGetRecentErrMsg.restype = ctypes.c_char_p
        os.environ[VARIABLE] = str(config(folder, **settings))
        try:
            self.call("aclrtGetDeviceCount", ctypes.byref(ctypes.c_uint32()))  # reads the settings, once and for all
        finally:
            del os.environ[VARIABLE]  # other tests of this process have no virtual NPU
        self.ok("aclrtSetDevice", 0)

    def call(self, name: str, *arguments: object) -> int:
        """Return code of a function; whole numbers go as 64 bits."""
        words = [ctypes.c_int64(one) if isinstance(one, int) else one for one in arguments]
        return int(getattr(self.lib, name)(*words))

    def ok(self, name: str, *arguments: object) -> None:
        code = self.call(name, *arguments)
        assert code == 0, (name, code, self.lib.aclGetRecentErrMsg())

    def message(self) -> str:
        return str(self.lib.aclGetRecentErrMsg().decode())

    def made(self, name: str, *arguments: object) -> int:
        """What a function writes through its first argument, a pointer."""
        place = ctypes.c_void_p()
        self.ok(name, ctypes.byref(place), *arguments)
        assert place.value
        return place.value

    def stream(self) -> int:
        return self.made("aclrtCreateStream")

    def event(self) -> int:
        return self.made("aclrtCreateEventExWithFlag", 0)

    def memory(self, size: int) -> int:
        return self.made("aclrtMalloc", size, 0)

    # ---- operators ----

    def tensor(self, address: int, shape: Sequence[int], dtype: int, strides: Sequence[int] | None = None) -> int:
        """A tensor handle; strides in elements (None: contiguous)."""
        dims = (ctypes.c_int64 * 9)(*shape)
        steps = None if strides is None else (ctypes.c_int64 * 9)(*strides)
        handle = self.lib.aclCreateTensor(
            dims, ctypes.c_uint64(len(shape)), dtype, steps, ctypes.c_int64(0), 2, dims, ctypes.c_uint64(len(shape)),
            ctypes.c_void_p(address or None),
        )  # fmt: skip
        return int(handle)

    def scalar(self, value: bytes, dtype: int) -> int:
        return int(self.lib.aclCreateScalar(ctypes.create_string_buffer(value, max(8, len(value))), dtype))

    def ints(self, values: Sequence[int]) -> int:
        array = (ctypes.c_int64 * (len(values) or 1))(*values)
        return int(self.lib.aclCreateIntArray(array, ctypes.c_uint64(len(values))))

    def handles(self, function: str, values: Sequence[int]) -> int:
        array = (ctypes.c_void_p * (len(values) or 1))(*values)
        return int(getattr(self.lib, function)(array, ctypes.c_uint64(len(values))))

    def prepare(self, name: str, *arguments: float | int, kinds: str | None = None) -> tuple[int, int | None]:
        """aclnnXGetWorkspaceSize by hand: registers and stack as x86_64 and aarch64 fill them.

        Returns:
            Return code and executor.
        """
        whole, real = (8, 8) if os.uname().machine == "aarch64" else (6, 8)
        workspace, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
        ends = (ctypes.addressof(workspace), ctypes.addressof(executor))
        ints: list[int] = []
        floats: list[int] = []
        stack: list[int] = []
        for letter, value in zip((kinds or KINDS[name] or "") + "nn", (*arguments, *ends), strict=True):
            if letter in "de":
                bits = struct.pack("<d", value) if letter == "d" else struct.pack("<f", value) + b"\xee" * 4
                (floats if len(floats) < real else stack).append(int.from_bytes(bits, "little"))
            else:
                (ints if len(ints) < whole else stack).append(int(value) & (2**64 - 1))
        words = [
            (ctypes.c_uint64 * 40)(*values, *[0xDEAD] * (40 - len(values))) for values in (ints, floats, stack)
        ]
        row = ctypes.c_void_p(self._rows + 16 * self._names[name])
        code = int(self.lib.vn_operator_prepare(row, *words))
        return code, executor.value

    def launch(self, name: str, executor: int | None, stream: int) -> int:
        row = ctypes.c_void_p(self._rows + 16 * self._names[name])
        return int(
            self.lib.vn_operator_launch(row, None, ctypes.c_uint64(0), ctypes.c_void_p(executor),
                                        ctypes.c_void_p(stream))
        )  # fmt: skip

    def run(self, name: str, stream: int, *arguments: float | int) -> None:
        code, executor = self.prepare(name, *arguments)
        assert code == 0, self.message()
        assert self.launch(name, executor, stream) == 0, self.message()

    # ---- the end ----

    def close(self) -> None:
        """As at the end of a process: the library is unloaded. Not where ranks meet: its thread may run in it."""
        _ctypes.dlclose(self.lib._handle)

    def record(self) -> Record:
        (path,) = self.folder.glob("rank*.vnpu")
        return read_record(path)


def run_ranks(script: str, folder: Path, count: int, *, expect: int = 0, **settings: object) -> list[Record]:
    """Runs `script` in `count` processes that are the ranks of a job, and reads what they recorded.

    `script` finds `device` (a Device) and `rank`.
    """
    config(folder, processes=count, world_size=count, **settings)
    library()
    source = (
        "import os, sys, ctypes\nfrom pathlib import Path\n"
        "from tests.collectors.virtual_npu import _device\n"
        f"_device.library = lambda: Path({str(library())!r})\n"
        f"_device.config = lambda folder, **settings: Path({str(folder / 'virtual_npu.tsv')!r})\n"
        f"device = _device.Device(Path({str(folder)!r}))\nrank = int(os.environ['RANK'])\n" + script
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", source], cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": str(count)},
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert all(code == expect for code in codes), "\n".join(errors)
    records = [read_record(path) for path in folder.glob("rank*.vnpu")]
    return sorted(records, key=lambda record: record.rank)
