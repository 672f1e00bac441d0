"""Unfused operator sequences on a device stream: attention, RMSNorm, rotary embedding, SwiGLU.

Each kernel becomes one letter, each stream of a step one word; patterns are regular expressions over these words.
Matches of a pattern never overlap, so a kernel counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.model.table import Ints, Table, Text
from ascend_perf.ops.classify import MAX_NAME, op_type_of_name

_SEPARATOR: Final = "|"
_OTHER: Final = "."

_ASCEND_LETTERS: Final = (
    ("B", r"^batchmatmul"),
    ("M", r"^matmul"),
    ("S", r"^(scaledmasked)?softmax(v2)?$"),
    ("G", r"^softmaxgrad"),
    ("Q", r"^rsqrt$"),
    ("P", r"^(pow|pows|square)$"),
    ("R", r"^reducemean"),
    ("N", r"^neg$"),
    ("K", r"^concat"),
    ("L", r"^(slice|stridedslice|split)"),
    ("W", r"^(silu|swish)$"),
    ("*", r"^(mul|muls)$"),
    ("+", r"^(add|adds|sub)$"),
    ("C", r"^cast$"),
    ("D", r"^(dropout|dsa|statelessdropout)"),
    ("E", r"^(maskedfill|select|selectv2|where|realdiv|div|muls|tril|triu|masked\w*|axpy\w*|broadcastto)"),
)
_GPU_LETTERS: Final = (
    ("S", r"softmax.*forward|softmax_warp_forward|softmaxforward"),
    ("G", r"softmax.*backward"),
    ("B", r"gemm|cijk_|nvjet|cutlass::kernel|gemv"),
    ("Q", r"rsqrt_kernel"),
    ("P", r"pow_tensor|square"),
    ("R", r"meanops"),
    ("N", r"neg_kernel"),
    ("K", r"catarray"),
    ("W", r"silu_kernel"),
    ("D", r"dropout"),
    ("E", r"masked_fill|where_kernel|divfunctor|div_true|clamp"),
    ("*", r"mulfunctor"),
    ("+", r"addfunctor|functor_add|functoronself_add|functoronother_add"),
    ("C", r"direct_copy|copy_kernel"),
)


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A sequence that one fused operator replaces."""

    name: str
    code: str
    regex: re.Pattern[str]
    skipped: str = ""
    """Letters that may lie inside a match but are no part of it."""


PATTERNS: Final = (
    Pattern(name="attention", code="C-12", regex=re.compile(r"[BM][*+ECD]{0,6}S[*+ECD]{0,4}[BM]")),
    Pattern(name="rms-norm", code="C-13", regex=re.compile(r"C?PC?RC?\*?\+C?Q[C*]{1,4}")),
    Pattern(name="rotary", code="C-13", regex=re.compile(r"\*?L{0,2}NL?K[*C]{1,2}\+")),
    # The second product of the gate may run between the activation and the multiplication.
    Pattern(name="swiglu", code="C-13", regex=re.compile(r"L{0,2}WC?[BM]?C?\*"), skipped="BM"),
)
"""Sequences and the row of the troubleshooting table they belong to.

Source: fused operators, sections 2 and 3 (patterns of the vendor's advisor, as kernels).
"""


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Matches of one pattern: rows of the kernel table in order, and where each match begins among them."""

    rows: Ints
    firsts: Ints

    def __len__(self) -> int:
        return len(self.firsts)


def find_patterns(kernels: Table, steps: Ints) -> dict[str, Matches]:
    """Matches of every pattern, by name.

    Args:
        kernels: kernels with start_ns, stream, op_type, name and core.
        steps: step of each kernel, -1 outside of all (such kernels are left out).

    Reads:
        kernels: start_ns, stream, op_type, name, core.
    """
    rows = np.flatnonzero(steps >= 0)
    stream = kernels.ints("stream")[rows]
    rows = rows[np.lexsort((kernels.ints("start_ns")[rows], stream, steps[rows]))]
    if not len(rows):
        return {}
    letters = _letters(kernels)[rows]
    stream = kernels.ints("stream")[rows]
    breaks = np.flatnonzero((np.diff(stream) != 0) | (np.diff(steps[rows]) != 0)) + 1
    # Markers between words take positions of their own; `at` maps positions back to rows.
    spaced = np.insert(letters, breaks, _SEPARATOR)
    word = "".join(spaced.tolist())
    codes = np.frombuffer(word.encode("ascii"), np.uint8)
    at = np.insert(rows, breaks, -1)
    found = {}
    for pattern in PATTERNS:
        spans = [match.span() for match in pattern.regex.finditer(word)]
        if spans:
            lengths = np.array([end - start for start, end in spans], np.int64)
            match_of = np.repeat(np.arange(len(spans)), lengths)
            begins = np.array([start for start, _ in spans], np.int64)
            positions = begins[match_of] + np.arange(len(match_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            if pattern.skipped:
                own = ~np.isin(codes[positions], [ord(letter) for letter in pattern.skipped])
                positions, match_of = positions[own], match_of[own]
            firsts = np.searchsorted(match_of, np.arange(len(spans)))
            found[pattern.name] = Matches(rows=at[positions], firsts=firsts)
    return found


def _letters(kernels: Table) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """A letter per kernel, from its op type, or from its name where the type is not known or on a GPU."""
    is_gpu = bool(kernels.text("core").equals("SM").any())
    names, types = kernels.text("name"), kernels.text("op_type")
    rules = [
        (letter, re.compile(regex, re.IGNORECASE)) for letter, regex in (_GPU_LETTERS if is_gpu else _ASCEND_LETTERS)
    ]

    def letter_of(text: str) -> str:
        text = text[:MAX_NAME]
        return next((letter for letter, regex in rules if regex.search(text)), _OTHER)

    def table(text: Text, typed: bool) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
        letters = [letter_of(value if typed or is_gpu else op_type_of_name(value)) for value in text.values]
        return np.array([*letters, _OTHER])[text.codes]

    by_name = table(names, typed=False)
    return by_name if is_gpu else np.where(types.codes >= 0, table(types, typed=True), by_name)
