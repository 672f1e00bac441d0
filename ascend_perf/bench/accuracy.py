"""One step of a workload against a reference: which module leaves it first, and which suffer most from low precision.

Three steps are done on the same weights and data: the reference (fp32, no fused operators), the tested one as it is,
and the tested one with the reference's inputs and gradients at each innermost module (see `workloads/_accuracy.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.bench import before
from ascend_perf.collectors import devices
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words
from ascend_perf.workloads import _spec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ascend_perf.workloads._accuracy import Difference, Divergence, Recording

Reference = Literal["cpu-fp32", "device-fp32"]

KEEP_BYTES: Final = 4 << 30
"""Host memory for the reference's whole tensors; beyond it modules are compared as they run, not alone."""
CALM: Final[Mapping[str, _spec.Value]] = {"recompute": "none", "accumulate": 1, "dropout": 0.0}
"""Settings that a comparison needs: a module runs once in a step, and chance plays no part."""
PLAIN: Final[Mapping[str, _spec.Value]] = {"dtype": "fp32", "weights": "fp32", "fused": "off", "fused_ops": ""}
"""Settings of the reference."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is compared with what."""

    workload: str
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    reference: Reference = "cpu-fp32"
    model_config: Path | None = None
    tolerance: float | None = None
    """Mean relative error of a module alone that is let pass; None: what rounding in the dtype explains."""
    keep_bytes: int = KEEP_BYTES


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was found. `alone` is empty when the reference's tensors did not fit in `keep_bytes`."""

    workload: str
    preset: str
    device: str
    dtype: str
    reference: str
    value_name: str
    value: float
    reference_value: float
    tolerance: float
    free: tuple[Difference, ...]
    """Every module and weight of the step as it is, errors added up from the modules before."""
    alone: tuple[Difference, ...]
    """Innermost modules and weights, each with the reference's inputs."""
    divergence: Divergence | None
    sensitive: tuple[Difference, ...]
    changed: Mapping[str, _spec.Value]
    """Settings that were changed for the comparison."""
    notes: tuple[Words, ...] = ()
    """What the model's config.json asks for that the workload leaves out."""


def compare(request: Request, *, prepare: Callable[[nn.Module], None] = lambda model: None) -> Comparison:
    """Do the three steps and compare them.

    Args:
        prepare: done to the tested model before its step (a user's patch; tests plant errors with it).

    Raises:
        UsageError: no such workload, preset or setting, or the workload has no model.
        MachineError: torch or the device is not there.
    """
    workload = _spec.find_workload(request.workload)
    known = workload.fields()
    between, notes = before.model_settings(request.model_config, workload) if request.model_config else (None, ())
    asked = workload.settings(request.preset, request.overrides, between=between).as_dict()
    changed = {name: value for name, value in CALM.items() if name in known}
    tested = workload.from_dict({**asked, **changed})
    plain = workload.from_dict({**asked, **changed, **{n: v for n, v in PLAIN.items() if n in known}})
    changed = {name: value for name, value in changed.items() if asked[name] != value}
    device = devices.choose(request.device, devices.seen_here()).torch_name
    from ascend_perf.workloads._accuracy import TOLERANCES, differences, first_divergence, only_innermost, sensitive

    origin = device if request.reference == "device-fp32" else "cpu"
    reference, base, start = _step(workload, plain, origin, keep_bytes=request.keep_bytes)
    free, program, _ = _step(workload, tested, device, prepare=prepare, start=start)
    tolerance = TOLERANCES[program.dtype] if request.tolerance is None else request.tolerance
    alone: list[Difference] = []
    if reference.is_whole:
        recording, forced, _ = _step(workload, tested, device, prepare=prepare, start=start, reference=reference)
        alone = only_innermost(differences(recording, reference), _model(workload.name, forced))
    rows = differences(free, reference)
    return Comparison(
        workload=workload.name, preset=request.preset, device=device, dtype=program.dtype, reference=request.reference,
        value_name=program.value_name, value=program.last_value(), reference_value=base.last_value(),
        tolerance=tolerance, free=tuple(rows), alone=tuple(alone),
        divergence=first_divergence(alone or rows, tolerance), sensitive=tuple(sensitive(alone)), changed=changed,
        notes=notes,
    )  # fmt: skip


def _step(
    workload: _spec.Workload,
    settings: _spec.Settings,
    device: str,
    *,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    start: Mapping[str, Tensor] | None = None,
    reference: Recording | None = None,
    keep_bytes: int = 0,
) -> tuple[Recording, _spec.Program, Mapping[str, Tensor]]:
    """Build, record one step, and give the state that the model started from: that of `start` where it is given."""
    from ascend_perf.workloads._accuracy import recorded

    program = workload.build(settings.config, _spec.Place(device=device), settings.plan.seed)
    try:
        model = _model(workload.name, program)
        if start is None:
            start = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        else:
            model.load_state_dict(start)
        prepare(model)
        with recorded(
            model, reference=reference, keep_bytes=keep_bytes, gradient_scale=program.gradient_scale
        ) as recording:
            program.step()
    finally:
        program.close()
    return recording, program, start


def _model(name: str, program: _spec.Program) -> nn.Module:
    from torch import nn

    if not isinstance(program.model, nn.Module):
        raise UsageError(
            f"{name} has no model whose modules could be compared",
            hint="take one that trains or classifies: llm-pretrain, moe-pretrain, bert-clue, resnet50-infer ...",
        )
    return program.model
