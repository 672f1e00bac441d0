"""From a call of an aclnn operator to the CANN kernels of a profile: a model, its rows with status in kernels.yaml.

What a call does is known from the record; which kernels CANN would have picked for it is not. Names and types follow
profiles of real chips, so that every tool that reads profiles finds what it looks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import yaml

Core = Literal["AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "DSA_SQE"]
Status = Literal["seen", "inferred", "unlisted"]

CORES: Final[tuple[Core, ...]] = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "DSA_SQE")
CONDITIONS: Final = ("cast", "strided", "unaligned", "else")

DATA_TYPES: Final[Mapping[int, str]] = {
    0: "FLOAT", 1: "FLOAT16", 2: "INT8", 3: "INT32", 4: "UINT8", 6: "INT16", 7: "UINT16", 8: "UINT32", 9: "INT64",
    10: "UINT64", 11: "DOUBLE", 12: "BOOL", 13: "STRING", 16: "COMPLEX64", 17: "COMPLEX128", 27: "DT_BF16",
    29: "INT4", 30: "UINT1", 33: "COMPLEX32", 34: "HIFLOAT8", 35: "FLOAT8_E5M2", 36: "FLOAT8_E4M3FN",
    37: "FLOAT8_E8M0", 40: "FLOAT4_E2M1", 41: "FLOAT4_E1M2",
}  # fmt: skip
"""aclDataType as profiles write it. Source: acl_base.h (torch_npu/include/acl); spelling: format reference, 1.4b."""
BYTES: Final[Mapping[str, float]] = {
    "FLOAT": 4, "FLOAT16": 2, "INT8": 1, "INT32": 4, "UINT8": 1, "INT16": 2, "UINT16": 2, "UINT32": 4, "INT64": 8,
    "UINT64": 8, "DOUBLE": 8, "BOOL": 1, "COMPLEX64": 8, "COMPLEX128": 16, "DT_BF16": 2, "INT4": 0.5, "COMPLEX32": 4,
    "HIFLOAT8": 1, "FLOAT8_E5M2": 1, "FLOAT8_E4M3FN": 1, "FLOAT8_E8M0": 1, "FLOAT4_E2M1": 0.5, "FLOAT4_E1M2": 0.5,
}  # fmt: skip
FORMATS: Final[Mapping[int, str]] = {
    -1: "NULL", 0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NC1HWC0_C04", 16: "HWCN",
    27: "NDHWC", 29: "FRACTAL_NZ", 30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 35: "NC", 47: "NCL",
}  # fmt: skip
"""aclFormat. Source: acl_base.h."""
UNKNOWN_TYPE: Final = "DT_UNDEFINED"

_ALIGNED_BYTES: Final = 512
"""A 16-bit matmul whose innermost axis is no multiple of this becomes MIX_AIC. Source: format reference, 1.4a."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor argument of a call."""

    dtype: str
    format: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; those of unknown data types count 4 each."""
        return int(self.elements * BYTES.get(self.dtype, 4))

    @property
    def is_contiguous(self) -> bool:
        """Whether the strides are those of a dense tensor; unknown strides count as dense."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= max(size, 1)
        return True


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel behind a call."""

    name: str
    op_type: str
    core: Core
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """The kernels of a call in their order, and how well that is known."""

    kernels: tuple[Kernel, ...]
    status: Status


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """How much data a core gets before another core takes part."""

    vector_bytes: int
    cube_elements: int


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """kernels.yaml: operator -> condition -> (inner, type, core, share) each."""

    seen: Mapping[str, Mapping[str, tuple[tuple[str, str, Core, float], ...]]]
    inferred: Mapping[str, Mapping[str, tuple[tuple[str, str, Core, float], ...]]]
    outputs: Mapping[str, int]
    blocks: Blocks

    def results(self, op: str, tensors: int, last_list: int = 0) -> int:
        """How many tensors at the end of a call's are results of their own, 0 where it changes its first in place.

        Args:
            op: `aclnnMatmul`.
            tensors: tensors of the call, those in lists as well.
            last_list: length of the list that is its last tensor argument; a list is a result as a whole.
        """
        count = 0 if op.startswith("aclnnInplace") else self.outputs.get(op, 1)
        count = last_list if count == 1 and last_list else count
        return count if tensors > count else 0

    def operands(
        self, op: str, tensors: Sequence[Tensor], last_list: int = 0
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and results among the tensors of a call; arguments as of `results`."""
        count = self.results(op, len(tensors), last_list)
        if count == 0:
            return tuple(tensors), tuple(tensors[:1])
        return tuple(tensors[:-count]), tuple(tensors[-count:])

    def expand(self, op: str, tensors: Sequence[Tensor], *, has_cube: bool, has_vector: bool) -> Expansion:
        """The kernels of a call.

        Args:
            op: as the record has it, `aclnnMatmul`.
            tensors: tensor arguments in their order, outputs last.
            has_cube: the cost model gives the call time on the cube cores.
            has_vector: and on the vector cores.
        """
        for status, rows in (("seen", self.seen), ("inferred", self.inferred)):
            cases = rows.get(op)
            if cases is not None:
                parts = next((cases[name] for name in CONDITIONS if name in cases and _holds(name, tensors)), ())
                if parts:
                    kernels = tuple(
                        Kernel(name=f"{op}_{inner}_{kind}", op_type=kind, core=core, share=share)
                        for inner, kind, core, share in parts
                    )
                    return Expansion(kernels=kernels, status="seen" if status == "seen" else "inferred")
        kind = type_of(op)
        core: Core = "AI_VECTOR_CORE" if not has_cube else "MIX_AIC" if has_vector else "AI_CORE"
        # Operators of the old route (aclop) have their type alone for a name.
        name = f"{op}_{kind}AiCore_{kind}" if op.startswith("aclnn") else kind
        return Expansion(kernels=(Kernel(name=name, op_type=kind, core=core),), status="unlisted")


_PARTS: Final = re.compile(r"([A-Za-z0-9]+)/([A-Za-z0-9]+)/([A-Z_]+)(?:\*([0-9.]+))?")


def type_of(op: str) -> str:
    """The operator type that the name of a call suggests: `SigmoidGrad` for `aclnnSigmoidBackward`."""
    name = re.sub(r"^(aclnn|aclop)?(Inplace)?", "", op)
    name = re.sub(r"V\d+$", "", name)
    stem = name.removesuffix("Backward")
    return (f"{stem}Grad" if stem and stem != name else name) or op


@lru_cache(maxsize=1)
def kernel_table() -> KernelTable:
    """kernels.yaml, checked.

    Raises:
        ValueError: a row is not what the head of the file says.
    """
    path = Path(__file__).parent / "kernels.yaml"
    document = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(document, dict) or document.get("version") != 1:
        raise ValueError(f"{path.name} is not of version 1")
    blocks = document["blocks"]
    return KernelTable(
        seen=_rows(document["seen"]), inferred=_rows(document["inferred"]),
        outputs={str(op): int(count) for op, count in document["outputs"].items()},
        blocks=Blocks(vector_bytes=int(blocks["vector_bytes"]), cube_elements=int(blocks["cube_elements"])),
    )  # fmt: skip


def _rows(rows: Mapping[str, object]) -> dict[str, dict[str, tuple[tuple[str, str, Core, float], ...]]]:
    result = {}
    for op, cases in rows.items():
        given = {"else": cases} if isinstance(cases, str) else cases
        if not isinstance(given, dict) or "else" not in given or not given.keys() <= set(CONDITIONS):
            raise ValueError(f"kernels.yaml: {op} takes kernels, or conditions ({', '.join(CONDITIONS)}) with else")
        result[op] = {str(name): _kernels(op, str(text)) for name, text in given.items()}
    return result


def _kernels(op: str, text: str) -> tuple[tuple[str, str, Core, float], ...]:
    found: list[tuple[str, str, Core, float]] = []
    for part in text.split(" + "):
        match = _PARTS.fullmatch(part)
        core = next((core for core in CORES if match and core == match[3]), None)
        share = float(match[4] or 1) if match else 0.0
        if match is None or core is None or share <= 0:
            raise ValueError(f"kernels.yaml: {op}: {part!r} is no INNER/TYPE/CORE")
        found.append((match[1], match[2], core, share))
    return tuple(found)


def _holds(condition: str, tensors: Sequence[Tensor]) -> bool:
    if condition == "else":
        return True
    if condition == "cast":
        return len(tensors) > 1 and tensors[0].dtype != tensors[-1].dtype
    if condition == "strided":
        return any(not tensor.is_contiguous for tensor in tensors)
    return any(
        BYTES.get(tensor.dtype) == 2 and tensor.shape[-1] * 2 % _ALIGNED_BYTES != 0
        for tensor in tensors[:2]
        if tensor.shape
    )
