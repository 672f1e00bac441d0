"""Sequences that a fused operator would replace, and whether it can be recommended: gradient, version, shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from ascend_perf.analyzers._fusion_gain import floors
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._steps import membership
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.once import once
from ascend_perf.model.table import Bools, Floats, Ints, Text
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.find_fusions import Matches, chosen, find_fusions
from ascend_perf.ops.flops import matrix_dtype, parse_shapes
from ascend_perf.ops.fusion_words import kernel_alphabet, kernel_codes
from ascend_perf.ops.fusions import Api, Axis, Fusion, fusions, is_older

State = Literal["applicable", "inference only", "version", "limits"]
"""`inference only`: no API has the gradient that training needs; `version`: the installed CANN is too old; `limits`:
shapes, dtypes or the product contradict every API."""

PATTERN_MIN_COUNT: Final = threshold("C-13", "min_count")
MAX_WORD: Final = 400
"""Names are looked at up to here."""
CHAINED: Final = frozenset({"repeated-transpose"})
"""Sequences that count only where shapes show that one kernel takes what the one before wrote."""

_NO_SIZE: Final = ("cast", "cut")
"""Symbols of kernels whose tensors may be larger or smaller than those of the sequence."""
_PRODUCT: Final = re.compile(r"910_93|310P|910B(?=\d)")
_BACKWARD_TYPE: Final = ("grad", "backward", "_bwd", "wgrad", "dgrad", "applyadam", "multi_tensor_apply")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """All matches of one fusion in one state."""

    fusion: Fusion
    state: State
    matches: Matches
    apis: tuple[Api, ...]
    """What can be recommended, the best first; on a GPU or CPU empty (`fusion.elsewhere` holds there)."""
    needs: str = ""
    """Version that the state `version` lacks, or limit that the state `limits` breaks."""
    is_version_unknown: bool = False
    """The APIs need a version, and the trace does not tell which one is installed."""
    kept_ns: Floats
    """What the fused operator needs at least, per match."""


@dataclass(frozen=True, kw_only=True)
class Fusions:
    """Candidates of a rank. Each kernel is in one match at most."""

    candidates: tuple[Candidate, ...]
    is_training: bool

    def claimed(self, count: int) -> Bools:
        """Kernels of the sequences that a finding of the finder itself may count, shape (count,)."""
        claimed = np.zeros(count, bool)
        for item in self.candidates:
            if reports(item):
                claimed[item.matches.rows] = True
        return claimed

    def matched(self, count: int) -> Bools:
        """Kernels of all sequences, whether or not a fused operator can be recommended, shape (count,)."""
        matched = np.zeros(count, bool)
        for item in self.candidates:
            matched[item.matches.rows] = True
        return matched


def reports(item: Candidate) -> bool:
    """Whether the finder makes a finding of a candidate: applicable, often enough, and no other analyzer's row."""
    least = item.fusion.least or PATTERN_MIN_COUNT.value
    return item.state == "applicable" and not item.fusion.owner and item.matches.occurrences >= least


def fusions_of(time: KernelTime) -> Fusions:
    """Candidates of a rank.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name, core, host_op, shapes, dtypes; host_ops: start_ns, dur_ns,
        name, thread, sequence_number, input_shapes, input_dtypes; host_events: kind optimizer; meta: versions.
    """
    return _fusions_of(time.trace)


def product_of(device: str | None) -> str | None:
    """A2, A3 or 310P by the name of a device; None where it does not settle the product.

    "Ascend910B" without a digit is a family name in profiles (see `device.specs`).
    """
    found = _PRODUCT.search(device or "")
    return None if found is None else {"910_93": "A3", "310P": "310P"}.get(found[0], "A2")


def is_training(trace: Trace) -> bool:
    """Whether the capture holds an optimizer, the backward engine or backward kernels."""
    if trace[HOST_EVENTS].text("kind").equals("optimizer").any():
        return True
    if trace[HOST_OPS].text("name").flags(lambda name: name.startswith("autograd::engine")).any():
        return True
    kernels = trace[KERNELS]
    return any(
        bool(text.flags(lambda word: any(part in word[:MAX_WORD].lower() for part in _BACKWARD_TYPE)).any())
        for text in (kernels.text("op_type"), kernels.text("name"))
    )


@once
def _fusions_of(trace: Trace) -> Fusions:
    time = KernelTime.of(trace)
    kernels, kind = trace[KERNELS], trace.meta.device.kind or "npu"
    training = is_training(trace)
    wanted = [item for item in fusions() if kind in item.kinds and (item.kernels or item.host)]
    # On a CPU the operators are the kernels: their own track would find them twice.
    host_ops = trace[HOST_OPS] if kind != "cpu" else trace[HOST_OPS].select(slice(0, 0))
    found = find_fusions(kernels, host_ops, membership(trace, kernels, time.windows), wanted)
    judged = [
        part for item in wanted if item.id in found
        for part in _judged(time, item, _connected(trace, item, found[item.id]), kind == "npu", training)
    ]  # fmt: skip
    first = [part for part in judged if part.state == "applicable"]
    taken = np.zeros(len(kernels), bool)
    made: list[Candidate] = []
    for group in (first, [part for part in judged if part.state != "applicable"]):
        free = [(part, ~part.matches.touch(taken)) for part in group]
        left = [_narrowed(part, keep) for part, keep in free if keep.any()]
        kept = chosen(
            {part.fusion.id: part.matches for part in left}, {part.fusion.id: _saved(time, part) for part in left}
        )
        for part in left:
            if part.fusion.id in kept:
                matches = kept[part.fusion.id]
                made.append(_replaced(time, part, matches))
                taken[matches.rows] = True
    return Fusions(candidates=tuple(made), is_training=training)


def _judged(time: KernelTime, item: Fusion, matches: Matches, on_npu: bool, training: bool) -> list[Candidate]:
    """The matches of one fusion that can be replaced, or all of them with why they cannot."""
    if not matches.occurrences:
        return []
    kept = floors(time, item, matches)
    if not on_npu:
        return [Candidate(fusion=item, state="applicable", matches=matches, apis=(), kept_ns=kept)]
    offer = _offered(time.trace, item, training=training)
    if offer.state != "applicable":
        return [
            Candidate(fusion=item, state=offer.state, matches=matches, apis=offer.apis, kept_ns=kept, needs=offer.needs)
        ]  # fmt: skip
    admitted = [_admitted(time, api, matches) for api in offer.apis]
    good = np.logical_or.reduce(admitted)
    if not (good & matches.forward).any():
        first = offer.apis[0]
        needs = next((str(limit) for limit in first.limits), "") or " / ".join(first.dtypes)
        return [
            Candidate(fusion=item, state="limits", matches=matches, apis=offer.apis, kept_ns=kept, needs=needs)
        ]  # fmt: skip
    usable = tuple(api for api, rows in zip(offer.apis, admitted, strict=True) if (rows & matches.forward).any())
    version = time.trace.meta.versions.get("cann")
    return [
        Candidate(
            fusion=item, state="applicable", matches=matches.keep(good), apis=usable, kept_ns=kept[good],
            is_version_unknown=any(is_older(version, api.cann) is None for api in usable),
        )
    ]  # fmt: skip


class _Offer(NamedTuple):
    state: State
    apis: tuple[Api, ...]
    needs: str = ""


def _offered(trace: Trace, item: Fusion, *, training: bool) -> _Offer:
    """The APIs that have the gradient, the product and the versions that they need; else why there are none."""
    fitting = item.choose(is_training=training)
    if not fitting:
        return _Offer("inference only", item.apis)
    product = product_of(trace.meta.device.name)
    made = tuple(api for api in fitting if product is None or not api.products or product in api.products)
    if not made:
        return _Offer("limits", fitting, f"products {', '.join(fitting[0].products)}")
    versions = trace.meta.versions
    # The package of torch_npu bears the version of torch.
    torch = versions.get("torch_npu", versions.get("torch"))
    fresh = tuple(api for api in made if not (is_older(versions.get("cann"), api.cann) or is_older(torch, api.torch)))
    if not fresh:
        first = made[0]
        older = is_older(versions.get("cann"), first.cann)
        return _Offer("version", made, f"CANN {first.cann}" if older else f"torch {first.torch}")
    return _Offer("applicable", fresh)


def _admitted(time: KernelTime, api: Api, matches: Matches) -> Bools:
    """Matches whose first tensor does not contradict the limits and dtypes of an API; what is unknown does not."""
    shapes, dtypes = _first_tensors(time.trace, matches)
    good = np.ones(len(matches), bool)
    for limit in api.limits:
        sizes = shapes.numbers(lambda text, axis=limit.axis: _axis(text, axis))  # type: ignore[misc] # bound per limit
        good &= np.array([np.isnan(size) or limit.admits(int(size)) for size in np.unique(sizes).tolist()], bool)[
            np.unique(sizes, return_inverse=True)[1]
        ]
    if api.dtypes:
        good &= ~dtypes.flags(lambda text: (found := matrix_dtype(text)) is not None and found not in api.dtypes)
    return good | ~matches.forward


def _first_tensors(trace: Trace, matches: Matches) -> tuple[Text, Text]:
    """Shapes and dtypes of the inputs of each match's first kernel that is no cast, else of its first operator."""
    kernels, ops = trace[KERNELS], trace[HOST_OPS]
    cast = kernel_codes(kernels)[matches.rows] == kernel_alphabet().code("cast")
    place = np.arange(len(matches.rows))
    at = np.minimum.reduceat(np.where(cast, len(place), place), matches.firsts)
    rows = matches.rows[np.where(at < len(place), at, matches.firsts)]
    if kernels.has("input_shapes") or not len(ops):
        return kernels.text("input_shapes").take(rows), kernels.text("input_dtypes").take(rows)
    host = np.where(matches.host >= 0, matches.host, 0)
    shapes, dtypes = ops.text("input_shapes").take(host), ops.text("input_dtypes").take(host)
    unknown = np.where(matches.host >= 0, 0, 1).astype(bool)
    return _blank(shapes, unknown), _blank(dtypes, unknown)


def _blank(text: Text, rows: Bools) -> Text:
    return Text(np.where(rows, -1, text.codes).astype(np.int32), text.values)


def _axis(text: str, axis: Axis) -> float:
    shapes = [shape for shape in parse_shapes(text) if shape]
    least = 1 if axis == "last" else 2
    if not shapes or len(shapes[0]) < least:
        return float("nan")
    return float(shapes[0][-least])


def _connected(trace: Trace, item: Fusion, matches: Matches) -> Matches:
    """Sequences less those that cannot be one by their shapes; transposes are parted where none takes the other's."""
    if not len(matches):
        return matches
    if item.alike:
        return matches.keep(_alike(trace, matches))
    if item.id not in CHAINED:
        return matches
    kernels = trace[KERNELS]
    both = Text.concat([
        kernels.text("output_shapes").relabel(_first_shape), kernels.text("input_shapes").relabel(_first_shape),
    ])  # fmt: skip
    gives, takes = both.codes[: len(kernels)][matches.rows], both.codes[len(kernels) :][matches.rows]
    heads = np.zeros(len(matches.rows), bool)
    heads[1:] = (gives[:-1] < 0) | (gives[:-1] != takes[1:])
    heads[matches.firsts] = True
    part = matches.of[heads]
    parts = Matches(
        rows=matches.rows, firsts=np.flatnonzero(heads).astype(np.int64), host=matches.host[part],
        forward=matches.forward[part], behind=matches.behind,
    )  # fmt: skip
    return parts.keep(parts.lengths >= 2)


def _alike(trace: Trace, matches: Matches) -> Bools:
    """Matches whose first and last kernels work on tensors of one size, as far as shapes are known."""
    kernels, ops = trace[KERNELS], trace[HOST_OPS]
    if kernels.has("input_shapes"):
        sizes = kernels.text("input_shapes").take(matches.rows).numbers(_elements)
    elif ops.has("input_shapes") and kernels.has("host_op"):
        row = kernels.ints("host_op")[matches.rows]
        known = (row >= 0) & (row < len(ops))
        sizes = ops.text("input_shapes").take(np.where(known, row, 0)).numbers(_elements)
        sizes = np.where(known, sizes, np.nan)
    else:
        return np.ones(len(matches), bool)
    alphabet = kernel_alphabet()
    codes = kernel_codes(kernels)[matches.rows]
    counted = ~np.isin(codes, [alphabet.code(name) for name in _NO_SIZE]) & ~matches.behind & ~np.isnan(sizes)
    place = np.arange(len(codes))
    first = np.minimum.reduceat(np.where(counted, place, len(codes)), matches.firsts)
    last = np.maximum.reduceat(np.where(counted, place, -1), matches.firsts)
    known = last >= 0
    same = sizes[np.where(known, first, 0)] == sizes[np.where(known, last, 0)]
    good: Bools = ~known | same | ~matches.forward
    return good


def _elements(text: str) -> float:
    sizes = [math.prod(shape) for shape in parse_shapes(text)]
    return float(max(sizes)) if sizes else math.nan


def _first_shape(text: str) -> str | None:
    shapes = parse_shapes(text)
    return ",".join(map(str, shapes[0])) if shapes and shapes[0] else None


def _saved(time: KernelTime, part: Candidate) -> Floats:
    total = np.add.reduceat(time.duration[part.matches.rows], part.matches.firsts)
    saved: Floats = total - part.kept_ns
    return saved


def _narrowed(part: Candidate, keep: Bools) -> Candidate:
    return Candidate(
        fusion=part.fusion, state=part.state, matches=part.matches.keep(keep), apis=part.apis, needs=part.needs,
        is_version_unknown=part.is_version_unknown, kept_ns=part.kept_ns[keep],
    )  # fmt: skip


def _replaced(time: KernelTime, part: Candidate, matches: Matches) -> Candidate:
    return Candidate(
        fusion=part.fusion, state=part.state, matches=matches, apis=part.apis, needs=part.needs,
        is_version_unknown=part.is_version_unknown, kept_ns=floors(time, part.fusion, matches),
    )  # fmt: skip


def lengths_ns(time: KernelTime, matches: Matches) -> Ints:
    """Time of the kernels of each match, shape (matches,)."""
    total: Ints = np.add.reduceat(time.duration[matches.rows], matches.firsts)
    return total


def ordered(items: Sequence[Candidate], time: KernelTime) -> list[Candidate]:
    """Candidates by what they could save in all, the most first; those that do not apply at the end."""
    return sorted(items, key=lambda item: (item.state != "applicable", -float(_saved(time, item).sum())))
