"""Two runs of one step side by side: each module's output and gradients against those of a reference.

The tested step runs twice. Free: as it is, so that errors add up from module to module, as they do in use. Alone: every
innermost module gets the reference's inputs, the code after it the reference's outputs, and in the backward pass both
the reference's gradients. What differs at a module's output arose in it, and at its input in the plain code before it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

Kind = Literal["input", "output", "output_gradient", "input_gradient", "weight_gradient"]
FORWARD: Final = ("input", "output")

MAX_SAMPLES: Final = 1 << 16
"""A tensor of more elements is compared at this many, evenly spread. Status: assumed."""
SENSITIVE_TIMES: Final = 3.0
"""A module whose own error is this many times the median is sensitive to precision. Status: assumed."""
TOLERANCES: Final = {"fp32": 1e-4, "fp16": 8 * 2.0**-11, "bf16": 8 * 2.0**-8}
"""Mean relative error of one module alone that rounding explains: eight units of the last place. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far one tensor is from the reference's.

    `mean_relative_error` is mean |x - r| over mean |r|, `max_relative_error` largest |x - r| over largest |r|, both 0
    for equal tensors; `cosine` of the angle between them, None where one of them is all zero. An infinite or NaN
    element that the reference does not have makes both errors infinite.
    """

    module: str
    type: str
    kind: Kind
    max_relative_error: float
    mean_relative_error: float
    cosine: float | None
    elements: int
    is_sampled: bool


@dataclass
class Recording:
    """What one step left at each module: first call only, in the order in which the modules finished."""

    order: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, list[Tensor | None]] = field(default_factory=dict)
    """Floating-point arguments by place; None where it is no such tensor."""
    tensors: dict[tuple[str, Kind], Tensor] = field(default_factory=dict)
    whole: dict[tuple[str, Kind], Tensor] = field(default_factory=dict)
    """Of innermost modules, not cut to samples: what the run alone gets."""
    elements: dict[tuple[str, Kind], int] = field(default_factory=dict)
    kept_bytes: int = 0
    is_whole: bool = True
    """All innermost modules are in `whole` and `inputs`; else the limit was met, and no run alone is possible."""


def innermost(model: nn.Module) -> dict[str, nn.Module]:
    """Modules without parts, by name."""
    return {name: module for name, module in model.named_modules() if name and not any(module.children())}


class _Forced(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Goes on with other values, and lets the gradient through as if they were the old ones."""

    @staticmethod
    def forward(context: Any, seen: Tensor, wanted: Tensor) -> Tensor:
        return wanted.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@contextmanager
def recorded(
    model: nn.Module,
    *,
    reference: Recording | None = None,
    keep_bytes: int = 0,
    gradient_scale: Callable[[], float] = lambda: 1.0,
) -> Iterator[Recording]:
    """Record the next forward and backward pass of a model.

    Args:
        reference: run alone: each innermost module gets this recording's inputs and output gradients.
        keep_bytes: keep whole tensors of innermost modules up to this many bytes, for a run alone later.
        gradient_scale: factor of the loss; gradients are divided by it.
    """
    seen = Recording()
    leaves = innermost(model)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not name:
                continue
            watch = _Watch(name, seen, name in leaves, reference, keep_bytes, gradient_scale)
            for handle in (
                module.register_forward_pre_hook(watch.before, with_kwargs=True),
                module.register_forward_hook(watch.after),
            ):
                hooks.callback(handle.remove)
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                hooks.callback(weight.register_hook(_keeper(seen, name, "weight_gradient", gradient_scale)).remove)
        yield seen


class _Watch:
    """The hooks of one module."""

    def __init__(
        self, name: str, seen: Recording, is_leaf: bool, reference: Recording | None, keep_bytes: int,
        gradient_scale: Callable[[], float],
    ) -> None:  # fmt: skip
        self.name, self.seen, self.is_leaf, self.reference = name, seen, is_leaf, reference
        self.keep_bytes, self.gradient_scale = keep_bytes, gradient_scale
        self.is_first = True

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the arguments; alone, put the reference's in their place."""
        if not (self.is_first and self.is_leaf):
            return None
        known = None if self.reference is None else self.reference.inputs.get(self.name)
        if self.reference is None:
            self._keep_inputs([value if _is_real(value) else None for value in args])
        given: list[Any] = []
        for at, value in enumerate(args):
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                given.append(value)
                continue
            name = _argument(self.name, at)
            self._keep(name, "input", value, type(module).__name__)
            # An edge of its own: the gradient of a tensor that several modules read is the sum of theirs.
            edge = _edge(value, None if known is None or at >= len(known) else known[at])
            if edge.requires_grad:
                edge.register_hook(partial(self._gradient, name, "input_gradient"))
            given.append(edge)
        return tuple(given), kwargs

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Record the output, and have its gradient recorded; alone, go on with the reference's."""
        if not self.is_first:
            return None
        self.is_first = False
        real = (value for value in _flat(output) if isinstance(value, Tensor) and value.is_floating_point())
        tensor = next(real, None)
        if tensor is None:
            return None
        self.seen.order.append(self.name)
        self._keep(self.name, "output", tensor, type(module).__name__)
        if tensor.requires_grad:
            tensor.register_hook(partial(self._gradient, self.name, "output_gradient"))
        if not (self.is_leaf and tensor is output):
            return None
        if self.reference is None:
            self._keep_whole(self.name, "output", tensor)
            return None
        return _force(tensor, self.reference.whole.get((self.name, "output")))

    def _gradient(self, name: str, kind: Kind, gradient: Tensor) -> Tensor | None:
        """Record a gradient; alone, go on with the reference's."""
        scale = self.gradient_scale()
        _keeper(self.seen, name, kind, self.gradient_scale)(gradient)
        if not self.is_leaf:
            return None
        if self.reference is None:
            self._keep_whole(name, kind, gradient / scale)
            return None
        known = self.reference.whole.get((name, kind))
        if known is None or known.shape != gradient.shape:
            return None
        return known.to(gradient.device, gradient.dtype) * scale

    def _keep(self, name: str, kind: Kind, tensor: Tensor, type_name: str) -> None:
        self.seen.types[name] = type_name
        _keep(self.seen, name, kind, tensor)

    def _keep_inputs(self, tensors: list[Tensor | None]) -> None:
        size = sum(tensor.numel() * 4 for tensor in tensors if tensor is not None)
        if self.seen.kept_bytes + size > self.keep_bytes:
            self.seen.is_whole = False
            return
        self.seen.kept_bytes += size
        self.seen.inputs[self.name] = [None if tensor is None else _on_host(tensor) for tensor in tensors]

    def _keep_whole(self, name: str, kind: Kind, tensor: Tensor) -> None:
        if self.seen.kept_bytes + tensor.numel() * 4 > self.keep_bytes:
            self.seen.is_whole = False
            return
        self.seen.kept_bytes += tensor.numel() * 4
        self.seen.whole[name, kind] = _on_host(tensor)


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where a step first leaves the reference."""

    module: str
    type: str
    place: Literal["inside", "before", "backward_inside", "backward_after"]
    """inside: the module itself; before: the plain code between the modules before it and it (attention's products,
    a residual sum); backward_inside: its own gradients; backward_after: the gradient of the plain code after it."""
    mean_relative_error: float


def first_divergence(alone: list[Difference], tolerance: float) -> Divergence | None:
    """The first tensor of a run alone that is off by more than `tolerance`, in the order in which they came to be."""
    for row in alone:
        if row.mean_relative_error > tolerance:
            places: dict[Kind, Literal["inside", "before", "backward_inside", "backward_after"]] = {
                "input": "before", "output": "inside", "output_gradient": "backward_after",
                "input_gradient": "backward_inside", "weight_gradient": "backward_inside",
            }  # fmt: skip
            return Divergence(
                module=row.module, type=row.type, place=places[row.kind], mean_relative_error=row.mean_relative_error
            )
    return None


def sensitive(alone: list[Difference], *, times: float = SENSITIVE_TIMES) -> list[Difference]:
    """Outputs of innermost modules whose own error is `times` the median of all, largest first: what to keep in higher
    precision."""
    outputs = [row for row in alone if row.kind == "output"]
    if not outputs:
        return []
    middle = statistics.median(row.mean_relative_error for row in outputs)
    found = [row for row in outputs if row.mean_relative_error > 0 and row.mean_relative_error >= times * middle]
    return sorted(found, key=lambda row: -row.mean_relative_error)


def only_innermost(rows: list[Difference], model: nn.Module) -> list[Difference]:
    """The rows of innermost modules and of the weights: those that a run alone tells apart."""
    leaves = innermost(model)
    return [row for row in rows if row.kind == "weight_gradient" or row.module.split("[")[0] in leaves]


def differences(seen: Recording, reference: Recording) -> list[Difference]:
    """Every tensor that both recordings have, in the order in which it came to be."""
    return [
        _difference(name, seen.types.get(name, ""), kind, tensor, reference, seen.elements[name, kind])
        for (name, kind), tensor in seen.tensors.items()
        if (name, kind) in reference.tensors
    ]


def _difference(
    name: str, type_name: str, kind: Kind, x: Tensor, reference: Recording, elements: int
) -> Difference:
    r = reference.tensors[name, kind]
    same = x.shape == r.shape and elements == reference.elements[name, kind]
    x, r = x.double(), r.double()
    if not same or not bool((torch.isfinite(x) | ~torch.isfinite(r)).all()):
        worst, mean, cosine = float("inf"), float("inf"), None
    else:
        is_known = torch.isfinite(r)
        x, r = x[is_known], r[is_known]
        gap = (x - r).abs()
        worst = _ratio(float(gap.max()) if len(gap) else 0.0, float(r.abs().max()) if len(r) else 0.0)
        mean = _ratio(float(gap.sum()), float(r.abs().sum()))
        lengths = float(x.norm()) * float(r.norm())
        cosine = float(x @ r) / lengths if lengths else None
    return Difference(
        module=name, type=type_name, kind=kind, max_relative_error=worst, mean_relative_error=mean, cosine=cosine,
        elements=elements, is_sampled=elements > MAX_SAMPLES,
    )  # fmt: skip


def _argument(name: str, at: int) -> str:
    """Name of an argument's tensor: the first goes by the module's own."""
    return name if at == 0 else f"{name}[{at}]"


def _ratio(error: float, size: float) -> float:
    return 0.0 if error == 0 else error / size if size else float("inf")


def _keeper(
    seen: Recording, name: str, kind: Kind, gradient_scale: Callable[[], float]
) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        if (name, kind) not in seen.tensors:
            _keep(seen, name, kind, gradient / gradient_scale())

    return keep


def _keep(seen: Recording, name: str, kind: Kind, tensor: Tensor) -> None:
    flat = tensor.detach().reshape(-1)
    count = flat.numel()
    if count > MAX_SAMPLES:
        flat = flat[torch.linspace(0, count - 1, MAX_SAMPLES, dtype=torch.float64).long().to(flat.device)]
    seen.tensors[name, kind] = flat.float().cpu().clone()
    seen.elements[name, kind] = count


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().clone()


def _edge(value: Tensor, wanted: Tensor | None) -> Tensor:
    return value.view_as(value) if wanted is None else _force(value, wanted)


def _force(value: Tensor, wanted: Tensor | None) -> Tensor:
    if wanted is None or wanted.shape != value.shape:
        return value
    wanted = wanted.to(value.device, value.dtype)
    return _Forced.apply(value, wanted) if value.requires_grad else wanted


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, Mapping):
        yield from _flat(list(value.values()))
    else:
        yield value
