"""Layouts of a workload that are worth trying on so many devices: those that its own prediction takes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ascend_perf.bench.prediction import target_of
from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.errors import UsageError
from ascend_perf.model.what_if import AS_PRESET, ONE_DEVICE
from ascend_perf.workloads import _spec

Changes = Mapping[str, _spec.Value]
"""Settings of a layout."""
MOST: Final = 6
"""Layouts per chip and number of ranks that are tried unless the user wants more."""
EFFICIENCY: Final = 0.5
"""Of the peak, for the order in which layouts are tried, where computing is set against communication. Assumed."""
_AXES: Final = {"tp": "tensor_ranks", "pp": "pipeline_ranks", "cp": "context_ranks", "ep": "expert_ranks"}
_PLAIN: Final[Changes] = {
    **dict.fromkeys(_AXES.values(), 1), "sequence_parallel": False, "pipeline_schedule": "1f1b",
    "pipeline_stages_per_rank": 1,
}  # fmt: skip
"""Axes that a layout does not name."""
_PART: Final = re.compile(r"(ddp|fsdp)|(tp|pp|cp|ep)\s*(\d{1,4})")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout."""

    name: str
    overrides: tuple[str, ...]
    problem: str = ""
    """Why it does not fit the model or the ranks; empty: it does."""
    memory_bytes: int = 0
    """Modelled, of the rank that needs most."""
    cost_s: float = 0.0
    """By formula, for the order only: seconds of a device for a constant amount of work."""


def parse_layouts(text: str) -> list[Changes] | None:
    """Layouts as the user writes them: `fsdp,tp8,tp4+pp2+ddp`; None for auto and all.

    Raises:
        UsageError: a part is no layout.
    """
    if text.strip() in ("auto", "all"):
        return None
    layouts: list[Changes] = []
    for word in filter(None, (part.strip().lower() for part in text.split(","))):
        changes: dict[str, _spec.Value] = {}
        for part in re.split(r"\s*\+\s*", word):
            found = _PART.fullmatch(part)
            if found is None:
                raise UsageError(
                    f"--layouts: {part!r} is no layout",
                    hint="write auto, all, or some of ddp, fsdp, tp8, pp4, cp2, ep8, joined by +, as tp8+fsdp",
                )
            key = "data_parallel" if found[1] else _AXES[found[2]]
            if key in changes:
                raise UsageError(f"--layouts: {word!r} says {part} twice")
            changes[key] = found[1] or int(found[3])
        layouts.append(changes)
    if not layouts:
        raise UsageError("--layouts names none", hint="write auto, all, or layouts such as fsdp,tp8+ddp")
    return layouts


def choices(
    workload: _spec.Workload, preset: str, overrides: Sequence[str], device: VirtualNpu,
    wanted: Sequence[Changes] | None = None,
) -> list[Choice]:  # fmt: skip
    """Layouts for the world of a device, the most promising first; that of the preset as it is among them.

    Args:
        overrides: the user's settings, the same for all; axes of the layout among them are kept as they are.
        device: chip, ranks, links.
        wanted: as `parse_layouts` gives them: these alone, in their order, with those that do not fit and why.

    Raises:
        UsageError: the user's settings are wrong, or set an axis that `wanted` sets as well.
    """
    base = workload.settings(preset, overrides).as_dict()
    axes = {"data_parallel", *_AXES.values()}
    fixed = [name for name in dict.fromkeys(text.partition("=")[0] for text in overrides) if name in axes]
    if wanted is not None and fixed:
        raise UsageError(
            f"{fixed[0]} is part of the layout, and --layouts names those", hint="leave --layouts or the setting out"
        )
    kept_as_they_are = {name: base[name] for name in fixed if name in base}
    tried: list[Changes] = [{}, *({**one, **kept_as_they_are} for one in _candidates(base, device))]
    made: list[Choice] = []
    for changes in tried if wanted is None else _whole(wanted):
        missing = [name for name, value in changes.items() if name not in base and value != _PLAIN.get(name)]
        if missing:
            problem = f"{workload.name} has no {missing[0]}"
            made.append(Choice(name=_written(changes), overrides=_texts(changes, base), problem=problem))
            continue
        one = _choice(workload, base, device, {name: value for name, value in changes.items() if name in base})
        if wanted is not None or not one.problem or not changes:
            made.append(one)
    distinct: dict[str, Choice] = {}
    for one in made:
        distinct.setdefault(one.name, one)
    kept = list(distinct.values())
    if wanted is not None:
        return kept
    fitting = [one for one in kept if not one.problem]
    there = device.memory_bytes
    return sorted(fitting, key=lambda one: (one.memory_bytes > there, one.cost_s)) or kept


def first(found: Sequence[Choice], most: int) -> list[Choice]:
    """The most promising, in their order; plain data parallelism both ways is among them, since readers look for it."""
    plain = [one for one in found if re.fullmatch(r"(?:ddp|fsdp) \d+", one.name)][:most]
    rest = [one for one in found if one not in plain][: most - len(plain)]
    return [one for one in found if one in plain or one in rest]


def _candidates(base: Mapping[str, _spec.Value], device: VirtualNpu) -> Iterator[Changes]:
    world = device.world_size
    if "data_parallel" not in base or world == 1:
        return
    tensor = _powers(min(device.ranks_per_node, world))
    experts = _powers(world) if base.get("experts") else [1]
    for data, t, p, e in itertools.product(("ddp", "fsdp"), tensor, _powers(world), experts):
        if t * p > world or (data == "fsdp" and t * p == world):
            continue
        yield {
            **_PLAIN, "data_parallel": data, "tensor_ranks": t, "pipeline_ranks": p, "expert_ranks": e,
            "sequence_parallel": bool(base.get("sequence_parallel")) and t > 1,
        }  # fmt: skip


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]


def _whole(wanted: Sequence[Changes]) -> list[Changes]:
    """Layouts of the user with the axes that they do not name, which are 1."""
    return [{**_PLAIN, **one} for one in wanted]


def _choice(
    workload: _spec.Workload, base: Mapping[str, _spec.Value], device: VirtualNpu, changes: Changes
) -> Choice:
    problem = ""
    # Experts beside tensor parallelism need the tokens cut as well.
    for sequence in (False, True):
        if sequence:
            if "sequence_parallel" not in problem or "sequence_parallel" not in changes:
                break
            changes = {**changes, "sequence_parallel": True}
        try:
            settings = workload.from_dict({**base, **changes})
            if workload.predict is None:
                lone = "" if device.world_size == 1 else f"{workload.name} runs in one process only"
                return Choice(name=ONE_DEVICE, overrides=(), problem=lone)
            prediction = workload.predict(settings.config, device.world_size, target_of(device.spec))
        except ValueError as error:
            problem = str(error)
            continue
        except UsageError as error:
            problem = error.what
            continue
        return Choice(
            name=name_of(settings.as_dict(), device.world_size), overrides=_texts(changes, base),
            memory_bytes=prediction.peak_bytes, cost_s=_cost(settings, prediction, device),
        )  # fmt: skip
    return Choice(name=_written(changes), overrides=_texts(changes, base), problem=problem)


def name_of(values: Mapping[str, _spec.Value], world_size: int) -> str:
    """A layout as it is shown, from the settings: `tp 8 x fsdp 8`."""
    if world_size == 1:
        return ONE_DEVICE
    axes = {short: int(str(values.get(name, 1))) for short, name in _AXES.items()}
    data = world_size // (axes["tp"] * axes["pp"] * axes["cp"])
    parts = [f"{short} {axes[short]}" for short in ("tp", "cp", "pp") if axes[short] > 1]
    if data > 1 or not parts:
        parts.append(f"{values.get('data_parallel', 'ddp')} {data}")
    if axes["ep"] > 1:
        parts.append(f"ep {axes['ep']}")
    return " x ".join(parts)


def _written(changes: Changes) -> str:
    short = {name: key for key, name in _AXES.items()}
    parts = [f"{short[name]} {value}" for name, value in changes.items() if name in short and value != 1]
    parts += [str(value) for name, value in changes.items() if name == "data_parallel"]
    return " x ".join(parts) or AS_PRESET


def _texts(changes: Changes, base: Changes) -> tuple[str, ...]:
    """`KEY=VALUE` for what differs from the user's settings."""
    return tuple(
        f"{name}={_spec.text_of(value)}"
        for name, value in changes.items() if base.get(name) != value
    )  # fmt: skip


def rounds_of(values: Mapping[str, _spec.Value]) -> int:
    """Micro-batches times stages of a rank."""
    return int(str(values.get("accumulate", 1))) * int(str(values.get("pipeline_stages_per_rank", 1)))


def _cost(settings: _spec.Settings, prediction: _spec.Prediction, device: VirtualNpu) -> float:
    """Seconds of a device for the work of one data rank: computing, bubble and communication, none of it hidden."""
    values = settings.as_dict()
    tensor, pipeline, context = (int(str(values.get(_AXES[axis], 1))) for axis in ("tp", "pp", "cp"))
    ranks = tensor * pipeline * context
    link, node_link = device.links()
    link, node_link = link or 1e10, node_link or link or 1e10
    inner = {"tensor": tensor, "context": tensor * context}
    communication = 0.0
    for part in prediction.traffic:
        reach = inner.get(part.axis, device.world_size)
        communication += part.bytes_per_step / (link if reach <= device.ranks_per_node else node_link)
    bubble = (pipeline - 1) / rounds_of(values)
    return ranks * (communication + _computing(settings, device) / ranks * (1 + bubble))


def _computing(settings: _spec.Settings, device: VirtualNpu) -> float:
    """Seconds of one device for the work of a data rank in a step; 0 where the model's shape is not known."""
    from ascend_perf.workloads._model_shape import train_flops

    config: Any = settings.config
    shape, training = getattr(config, "shape", None), getattr(config, "training", None)
    peak = None if device.spec is None else device.spec.matrix_peak("bf16") or device.spec.matrix_peak("fp16")
    if shape is None or training is None or not peak:
        return 0.0
    rows = int(training.batch) * int(training.accumulate)
    return train_flops(shape, int(training.tokens)) * rows / (peak * EFFICIENCY)
