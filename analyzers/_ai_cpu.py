"""Operators on the AI CPU one by one: what probably put them there, and what replaces them (row C-07)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime, group_kernels
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.ops.classify import computes, op_type_of_name
from ascend_perf.ops.flops import plain_dtype

MAX_ROWS: Final = 100

_VERSION: Final = re.compile(r"(\d{1,3})\.(\d{1,3})")
_BOOLEAN: Final = re.compile(r"^(index(put)?(v\d)?|nonzero(v\d)?|maskedselect|where)$", re.IGNORECASE)
_ARGMIN: Final = re.compile(r"^argmin", re.IGNORECASE)
_ARITHMETIC: Final = re.compile(
    r"^(mul|muls|add|sub|div|realdiv|floordiv|mod|pow|equal|notequal|tensorequal)$", re.IGNORECASE
)

FLOAT64_OLD: Final = "float64 inputs: not on the AI Core before CANN 8.0; cast to float32"
FLOAT64: Final = "float64 inputs: the AI Core has no float64 arithmetic; cast to float32"
COMPLEX: Final = "complex inputs: compute with the real and the imaginary part"
INT16: Final = "int16 inputs: cast to int32"
INT64: Final = "int64 inputs: cast to int32 where the values allow it"
BOOLEAN: Final = "indexing by a mask: use torch.where, index_select or a product with the mask"
ARGMIN: Final = "ArgMin before CANN 7.0: upgrade CANN"
OTHER: Final = "no cause by dtype: look up the operator for the installed CANN version"
NO_DTYPES: Final = "dtypes are not in this data: profile at Level1"
CAUSES: Final = (FLOAT64_OLD, FLOAT64, COMPLEX, INT16, INT64, BOOLEAN, ARGMIN, OTHER, NO_DTYPES)
"""What the table says; each has its Chinese in the catalogue of phrases.

Source: troubleshooting table C-07 (msprof-analyze, advisor, computation/aicpu): Mul with int16 and complex128, Equal
with int16, int64 and complex, float64 before 8.0, Index, IndexPut, NonZero, ArgMin before 7.0.RC1.
"""


def ai_cpu_table(time: KernelTime) -> ResultTable | None:
    """Operators on the AI CPU by type and dtypes, the longest first; None where there are none.

    Reads:
        kernels: core, op_type, name, input_dtypes, input_shapes, start_ns, dur_ns; meta.versions.
    """
    kernels = time.trace[KERNELS]
    rows = np.flatnonzero(kernels.text("core").equals("AICPU") & computes(kernels))
    if not len(rows):
        return None
    chosen = kernels.select(rows)
    types = chosen.text("op_type") if kernels.has("op_type") else chosen.text("name").relabel(op_type_of_name)
    dtypes = chosen.text("input_dtypes")
    groups = group_kernels(chosen, [types.codes, dtypes.codes])
    top = slice(0, MAX_ROWS)
    first, longest = groups.first[top], groups.longest[top]
    shown_types, shown_dtypes = types.take(first), dtypes.take(first)
    version = cann_version(time.trace.meta.versions.get("cann"))
    causes = [
        cause_of(kind or "", (inputs or "").split(";"), version)
        for kind, inputs in zip(shown_types, shown_dtypes, strict=True)
    ]
    alone = []
    for at in range(len(first)):
        mask = np.zeros(len(kernels), bool)
        mask[rows[groups.of == at]] = True
        alone.append(time.alone_ns(mask) / time.steps)
    return result_table(
        "ai-cpu",
        Words("Operators on the AI CPU", "AI CPU 算子"),
        (
            Col("op_type", "Type", "类型", _known(shown_types)),
            Col("input_dtypes", "Input dtypes", "输入数据类型", shown_dtypes),
            Col("input_shapes", "Input shapes of the longest", "最长一次的输入 Shape",
                chosen.text("input_shapes").take(longest)),
            Col("count", "Count", "次数", groups.count[top], "count"),
            Col("total_ns", "Total", "总耗时", groups.total_ns[top], "ns"),
            Col("max_ns", "Longest", "最长", groups.max_ns[top], "ns"),
            Col("alone_ns", "Alone, per step", "独占（每步）", alone, "ns"),
            Col("cause", "Cause and replacement", "原因与替代方法", causes),
            Col("start_ns", "Longest one at", "最长一次的时刻", chosen.ints("start_ns")[longest]),
        ),
        Words(
            "Causes are read from operator and dtypes (inferred): the lists of supported dtypes belong to each CANN "
            "release. Alone: while no other kernel runs.",
            "原因由算子与数据类型推断：各 CANN 版本支持的数据类型以其算子清单为准。独占：期间没有其他 Kernel 执行。",
        ),
    )  # fmt: skip


def cause_of(op_type: str, dtypes: Sequence[str], version: tuple[int, int] | None) -> str:
    """Why an operator is probably on the AI CPU, one of `CAUSES`.

    Args:
        op_type: its type.
        dtypes: of its inputs, as the profile writes them.
        version: of CANN, None where it is not known.
    """
    names = {plain_dtype(name) for name in dtypes}
    if names & {"complex64", "complex128"}:
        return COMPLEX
    if names & {"double", "float64"}:
        return FLOAT64_OLD if version is not None and version < (8, 0) else FLOAT64
    if _BOOLEAN.match(op_type):
        return BOOLEAN
    if _ARGMIN.match(op_type) and (version is None or version < (7, 0)):
        return ARGMIN
    if names & {"int16", "uint16"}:
        return INT16
    if names & {"int64", "long", "uint64"} and _ARITHMETIC.match(op_type):
        return INT64
    return OTHER if names - {""} else NO_DTYPES


def cann_version(text: str | None) -> tuple[int, int] | None:
    """Major and minor version of CANN, None where the text holds none."""
    found = _VERSION.search(text or "")
    return None if found is None else (int(found[1]), int(found[2]))


def _known(types: Text) -> list[str | None]:
    return [name or None for name in types]
