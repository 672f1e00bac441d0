"""Shapes and dtypes as profiles write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

Shape = tuple[int, ...]

BYTES_OF: Final[dict[str, float]] = {
    "float": 4, "float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "half": 2, "bf16": 2, "bfloat16": 2,
    "double": 8, "float64": 8, "int4": 0.5, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4,
    "int": 4, "uint32": 4, "int64": 8, "long": 8, "longint": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "hifloat8": 1, "signedchar": 1, "unsignedchar": 1, "short": 2, "char": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes per element by dtype name as `plain_dtype` writes it."""

_MATRIX_DTYPE: Final = {
    "float": "fp32", "float32": "fp32", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16",
    "double": "fp64", "float64": "fp64", "int8": "int8", "signedchar": "int8",
}  # fmt: skip
_NO_UNIT: Final = frozenset({"", "undefined", "null"})


@lru_cache(maxsize=65536)
def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Tensors of a shape text: `2,3;4` -> ((2, 3), (4,)); an empty tensor between semicolons is a scalar ().

    Text that is no shape list ("N/A", nested lists of tensor lists) gives ().
    """
    text = text.strip().strip('"')
    if text.startswith("["):
        if "[[[" in text.replace(" ", ""):
            return ()
        parts = re.findall(r"\[([^\[\]]*)\]", text[1:] if text.startswith("[[") or text == "[]" else text)
        text = ";".join(parts)
    if not re.fullmatch(r"[-\d,; ]*", text) or not text:
        return ()
    return tuple(tuple(int(dim) for dim in part.split(",") if dim.strip()) for part in text.split(";"))


def plain_dtype(name: str) -> str:
    """A dtype name in lower case without prefix: `DT_BF16` -> `bf16`, `c10::BFloat16` -> `bfloat16`."""
    name = name.strip().lower().rsplit("::", 1)[-1].replace("torch.", "")
    return re.sub(r"^dt_|\s", "", name)


def split_dtypes(text: str) -> list[str]:
    """The dtypes of a text, one per tensor: `A;B`, or a list of JSON."""
    return re.split(r"[;,]", re.sub(r"[\[\]\"']", "", text))


def unit_dtype(name: str) -> str | None:
    """Dtype as peaks name it (`fp32`, `bf16` ...); None for indexes, masks and what has no peak."""
    return _MATRIX_DTYPE.get(plain_dtype(name))


def matrix_dtype(dtypes: str) -> str | None:
    """Dtype of a product as peaks name it (`fp32`, `fp16`, `bf16`, `int8` ...): the first operand that has one.

    Index and size operands (INT32, INT64) are passed over: a backward convolution lists the size first.
    """
    names = (unit_dtype(name) for name in dtypes.split(";"))
    return next((name for name in names if name is not None), None)


def tensor_bytes(shapes: Sequence[Shape], dtypes: Sequence[str]) -> float:
    """Bytes of some tensors, NaN when the size of one is not known; scalars do not count."""
    if not shapes:
        return 0.0
    if len(shapes) != len(dtypes):
        return math.nan
    total = 0.0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        name = plain_dtype(dtype)
        if not shape:
            continue
        if name in _NO_UNIT or name not in BYTES_OF:
            return math.nan
        total += math.prod(shape) * BYTES_OF[name]
    return total
