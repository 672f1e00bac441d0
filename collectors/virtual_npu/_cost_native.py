"""The compiled cost model, called from Python: for calibration and tests. The virtual device links cost.c itself."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from ascend_perf.errors import MachineError

_NATIVE: Final = Path(__file__).parent / "native"
MAX_RANK: Final = 8
"""Dimensions of a tensor that a call can carry."""
ACL_DTYPES: Final[dict[str, int]] = {
    "float": 0, "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8,
    "int64": 9, "uint64": 10, "double": 11, "bool": 12, "bf16": 27, "bfloat16": 27, "int4": 29,
}  # fmt: skip
"""aclDataType by the dtype names of profiles, as `ops.shapes.plain_dtype` writes them."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32), ("format", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK), ("stride", ctypes.c_int64 * MAX_RANK),
    )  # fmt: skip


class _Arg(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char), ("tensors", ctypes.POINTER(_Tensor)), ("count", ctypes.c_int),
        ("dtype", ctypes.c_int32), ("number", ctypes.c_double), ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("reals", ctypes.POINTER(ctypes.c_double)), ("text", ctypes.c_char_p),
    )  # fmt: skip


class _Cost(ctypes.Structure):
    _fields_ = (
        ("ns", ctypes.c_double), ("flops", ctypes.c_double), ("bytes", ctypes.c_double), ("cube_ns", ctypes.c_double),
        ("vector_ns", ctypes.c_double), ("memory_ns", ctypes.c_double), ("fixed_ns", ctypes.c_double),
        ("klass", ctypes.c_char_p),
    )  # fmt: skip


class _Work(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32), ("flops", ctypes.c_double), ("bytes", ctypes.c_double), ("written", ctypes.c_double),
        ("elements", ctypes.c_double), ("batch", ctypes.c_double), ("m", ctypes.c_double), ("n", ctypes.c_double),
        ("k", ctypes.c_double), ("pairs", ctypes.c_double), ("extras", ctypes.c_double), ("both_outer", ctypes.c_int32),
        ("kernels", ctypes.c_int32), ("copied", ctypes.c_double),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor argument; dense in the order of its shape unless strides (in elements) say otherwise."""

    shape: tuple[int, ...]
    dtype: int = 0
    format: int = 2
    stride: tuple[int, ...] | None = None


Arg = Tensor | Sequence[Tensor] | int | float | str | tuple[int, ...] | None
"""An argument of a call: tensor, list of tensors, integer, real, string, tuple of integers (aclIntArray), or null."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a kernel, as `vn_work` of native/cost.h."""

    dtype: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    written: float = 0.0
    elements: float = 0.0
    batch: float = 0.0
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    pairs: float = 0.0
    extras: float = 0.0
    both_outer: bool = False
    kernels: int = 1
    copied: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Time of a kernel in ns, where it comes from, and its class."""

    ns: float
    flops: float
    bytes: float
    cube_ns: float
    vector_ns: float
    memory_ns: float
    fixed_ns: float
    class_name: str


@lru_cache(maxsize=1)
def _compiled() -> bytes:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise MachineError("no C compiler is here", hint="install gcc")
    with tempfile.TemporaryDirectory(prefix="vnpu-cost-") as folder:
        library = Path(folder) / "libcost.so"
        command = [
            compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library),
            *map(str, sorted(_NATIVE.glob("cost*.c"))), "-lm",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MachineError(f"the cost model does not compile: {done.stderr.strip()[:2000]}")
        return library.read_bytes()


class NativeCost:
    """The C files of the model, compiled once in a process; each object has a table of its own.

    Raises:
        MachineError: there is no C compiler, or it refuses the files.
    """

    def __init__(self) -> None:
        # Loading one file twice gives one table; a copy gives another. Once loaded, its name is no longer needed.
        with tempfile.NamedTemporaryFile(suffix=".so") as copy:
            copy.write(_compiled())
            copy.flush()
            self._library = ctypes.CDLL(copy.name)
        for name in ("vn_cost_kernel", "vn_cost_time", "vn_cost_collective", "vn_cost_copy", "vn_cost_value"):
            getattr(self._library, name).restype = ctypes.c_double
        for name in ("vn_cost_work", "vn_cost_algorithm", "vn_cost_problem", "vn_cost_unknown"):
            getattr(self._library, name).restype = ctypes.c_char_p

    def load(self, lines: Iterable[str]) -> None:
        """Forget what was loaded and load a table.

        Raises:
            ValueError: a line was not understood.
        """
        self._library.vn_cost_reset()
        for line in lines:
            self._library.vn_cost_load_line(ctypes.create_string_buffer(line.encode()))
        problem = self._library.vn_cost_problem()
        if problem:
            raise ValueError(problem.decode())

    def set_class(self, name: str, values: Mapping[str, float]) -> None:
        """Change some constants of a class that is loaded."""
        line = "\t".join(["class", name, *(f"{key}={value!r}" for key, value in values.items())])
        self._library.vn_cost_load_line(ctypes.create_string_buffer(line.encode()))

    def kernel(self, operator: str, args: Sequence[Arg]) -> Cost:
        """Time of a call of an operator."""
        keep: list[object] = []
        out = _Cost()
        self._library.vn_cost_kernel(operator.encode(), _arguments(args, keep), len(args), ctypes.byref(out))
        return _cost(out)

    def work(self, operator: str, args: Sequence[Arg]) -> tuple[str, Work]:
        """Class and work of a call of an operator."""
        keep: list[object] = []
        out = _Work()
        name = self._library.vn_cost_work(operator.encode(), _arguments(args, keep), len(args), ctypes.byref(out))
        figures = {key: getattr(out, key) for key, _ in _Work._fields_}
        return name.decode(), Work(**{**figures, "both_outer": bool(out.both_outer)})

    def time(self, class_name: str, work: Work) -> Cost:
        """Time of work of a class."""
        given = _Work(*(getattr(work, key) for key, _ in _Work._fields_))
        out = _Cost()
        self._library.vn_cost_time(class_name.encode(), ctypes.byref(given), ctypes.byref(out))
        return _cost(out)

    def collective(self, op: str, size: float, ranks: int, ranks_per_node: int) -> Cost:
        """Time of a collective; `size` in bytes as `vn_cost_collective` (native/virtual_npu.h) counts them."""
        out = _Cost()
        self._library.vn_cost_collective(
            op.encode(), ctypes.c_double(size), ranks, ranks_per_node, ctypes.byref(out)
        )  # fmt: skip
        return _cost(out)

    def algorithm(self, op: str, ranks: int, ranks_per_node: int) -> str:
        """How HCCL would run it, as profiles spell it."""
        return str(self._library.vn_cost_algorithm(op.encode(), ranks, ranks_per_node).decode())

    def copy(self, kind: int, size: float) -> float:
        """ns of a copy; kinds as aclrtMemcpyKind, 4 is memset."""
        return float(self._library.vn_cost_copy(kind, ctypes.c_double(size)))

    def value(self, key: str) -> float:
        """A constant of the table; NaN when there is none of that name."""
        return float(self._library.vn_cost_value(key.encode()))

    def unknown(self) -> dict[str, int]:
        """Operators that no line names, and how often each was asked for."""
        found = {}
        for index in range(self._library.vn_cost_unknown_count()):
            calls = ctypes.c_int64()
            name = self._library.vn_cost_unknown(index, ctypes.byref(calls))
            found[name.decode()] = calls.value
        return found


def _cost(out: _Cost) -> Cost:
    figures = {key: getattr(out, key) for key, _ in _Cost._fields_ if key != "klass"}
    return Cost(**figures, class_name=out.klass.decode() if out.klass else "")


def _arguments(args: Sequence[Arg], keep: list[object]) -> ctypes.Array[_Arg]:
    array = (_Arg * max(len(args), 1))()
    for slot, arg in zip(array, args, strict=False):
        _fill(slot, arg, keep)
    keep.append(array)
    return array


def _fill(slot: _Arg, arg: Arg, keep: list[object]) -> None:
    if arg is None:
        slot.kind = b"0"
    elif isinstance(arg, Tensor):
        _fill_tensors(slot, b"t", [arg], keep)
    elif isinstance(arg, str):
        slot.kind, slot.text = b"c", arg.encode()
    elif isinstance(arg, int):
        slot.kind, slot.number = b"n", float(arg)
    elif isinstance(arg, float):
        slot.kind, slot.number = b"d", arg
    elif isinstance(arg, tuple):
        values = (ctypes.c_int64 * max(len(arg), 1))(*arg)
        keep.append(values)
        slot.kind, slot.count = b"i", len(arg)
        slot.ints = ctypes.cast(values, ctypes.POINTER(ctypes.c_int64))
    else:
        _fill_tensors(slot, b"l", list(arg), keep)


def _fill_tensors(slot: _Arg, kind: bytes, tensors: list[Tensor], keep: list[object]) -> None:
    array = (_Tensor * max(len(tensors), 1))()
    for cell, tensor in zip(array, tensors, strict=False):
        cell.dtype, cell.format, cell.rank = tensor.dtype, tensor.format, len(tensor.shape)
        stride = dense_strides(tensor.shape) if tensor.stride is None else tensor.stride
        for at, (size, step) in enumerate(zip(tensor.shape, stride, strict=True)):
            cell.shape[at], cell.stride[at] = size, step
    keep.append(array)
    slot.kind, slot.count = kind, len(tensors)
    slot.tensors = ctypes.cast(array, ctypes.POINTER(_Tensor))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a tensor whose last dimension is contiguous."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
