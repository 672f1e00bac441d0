"""What a workload is: a name, a configuration with presets, and a function that builds it on a device.

Nothing here imports torch: a workload can be listed and its settings checked on a machine without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.plugins import Found, load_parts

_C = TypeVar("_C")
Value = str | int | float | bool | None


def text_of(value: Value) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)



def _nothing() -> None:
    """What a program does that has nothing to do here."""


def _one() -> float:
    return 1.0


TAKES: Final = frozenset({"data", "resume"})
"""Paths of `Place` that are the user's."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a workload is measured: steps thrown away, steps timed alone, steps timed under the profiler."""

    warmup_steps: int = 3
    measured_steps: int = 10
    profiled_steps: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "warmup_steps", "measured_steps", "profiled_steps")
        at_least(self, 0, "seed")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a program runs: its device, and its rank in a job of `world_size` processes.

    In a job of more than one process `torch.distributed` is initialised before a workload is built (hccl, nccl or
    gloo by the device), and left to the collector to end.
    """

    device: str = "cpu"
    """As torch names it: cpu, cuda:0, npu:0."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    data: Path | None = None
    """File or folder of real data that the user named; None: synthetic data by the seed."""
    checkpoints: Path | None = None
    """Folder into which a workload that trains saves its state; None: it does not save."""
    resume: Path | None = None
    """Folder of such a state, to go on from."""
    results: Path | None = None
    """Folder of the run directory for files that a workload leaves beside its figures (an exported model). It may not
    be there yet. None: there is no run directory."""

    @property
    def kind(self) -> str:
        """cpu, cuda or npu."""
        return self.device.split(":")[0]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one rank sends through one kind of collective, on one axis of the layout, in one step.

    `bytes_per_step` sums the sizes of the calls: a call's size is that of the input tensor of all_reduce,
    reduce_scatter, all_to_all, broadcast and send, and that of the output tensor of all_gather.
    """

    axis: str
    """data, tensor, pipeline, context, expert."""
    collective: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send."""
    bytes_per_step: int
    calls_per_step: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """The device that a prediction is made for."""

    kind: Literal["npu", "cuda", "cpu"] = "npu"
    has_bf16: bool = True
    """Whether it multiplies bf16 natively."""

    def auto_dtype(self, otherwise: Literal["fp32", "fp16"] = "fp32") -> Literal["bf16", "fp32", "fp16"]:
        """What `dtype: auto` stands for there: bf16, or without it fp32 on a CPU and `otherwise` on an accelerator."""
        if self.has_bf16:
            return "bf16"
        return "fp32" if self.kind == "cpu" else otherwise


NPU: Final = Target()
"""What predictions are made for where nothing else is said."""

@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What formulas say of a run before it starts, for the rank that needs most. Modelled, never measured."""

    memory_bytes: Mapping[str, int]
    """Component -> most bytes of it in a step: weights, gradients, optimizer, activations, cache; temporary is what
    the peak holds beyond them."""
    traffic: tuple[Traffic, ...] = ()
    step_peak_bytes: int | None = None
    """Most that is held at one time, where the components are not all there at once; None: they are."""

    @property
    def peak_bytes(self) -> int:
        """Most that is held at one time."""
        return sum(self.memory_bytes.values()) if self.step_peak_bytes is None else self.step_peak_bytes


@dataclass(frozen=True, kw_only=True)
class Program:
    """A workload that is ready to run on one rank.

    `step` does one step and may return before the device has finished; the collector synchronises. Sizes
    (`items_per_step`, `flops_per_step`, `parameters`) are those of the whole job, the same on every rank.
    """

    step: Callable[[], None]
    item: str
    """What throughput counts, in plural: tokens, images."""
    items_per_step: int
    flops_per_step: int
    """Model work of one step, multiply and add counted as two; recomputation does not count."""
    dtype: str
    """Type in which the matrix products run: fp32, bf16 or fp16."""
    parameters: int
    value_name: str
    """What `last_value` is: loss, mean_log_probability."""
    last_value: Callable[[], float]
    """Result of the last step in one number: finite, and equal for equal seeds on one device."""
    series: Callable[[], Mapping[str, Sequence[float]]] = dict
    """What each step so far gave, by names that `parsers/training_metrics` knows (loss, grad_norm); empty where steps
    give nothing that changes. Read once, after the last step: it may wait for the device."""
    hardware_flops_per_step: int | None = None
    """Work that is executed, recomputation included; None: the same as `flops_per_step`."""
    memory_bytes: Callable[[], Mapping[str, int]] = dict
    """Measured bytes on this rank by the components of `Prediction.memory_bytes`, summed over the tensors themselves.
    Read once, after the measured steps."""
    latencies_ns: Callable[[], Mapping[str, Sequence[int]]] = dict
    """Single latencies of the measured steps by name (ttft, tpot, itl, e2e, prefill, decode), from which percentiles
    are made. Read once, after the measured steps."""
    metrics: Callable[[], Sequence[Metric]] = tuple
    """Figures that only this workload has (accuracy, goodput, router load). Read once, after the measured steps."""
    tables: Callable[[], Mapping[str, Sequence[Mapping[str, Value]]]] = dict
    """Results that are rows (bandwidth by size, load by expert), by name: each becomes results/<name>.csv of the run
    directory. Read once, after the measured steps."""
    start_measuring: Callable[[], None] = _nothing
    """Called between warm-up and the measured steps: forget latencies and counts so far."""
    save: Callable[[Path], None] | None = None
    """Writes the state into a folder, on all ranks together; None where there is nothing to go on from."""
    model: object | None = None
    """The torch module that a step runs, whose parts `check-accuracy` compares; None where there is none."""
    gradient_scale: Callable[[], float] = _one
    """Factor of the loss in the next step: gradients inside the backward pass carry it (loss scaling of fp16)."""
    close: Callable[[], None] = _nothing
    """Stops servers, loaders and threads. Called once at the end, also after an error or a signal."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named size of a workload."""

    name: str
    about: Words
    values: Mapping[str, Value]
    environment: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Variables for the processes by kind of device (npu, cuda, cpu): launch settings that belong to the size."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides what is run and how it is measured."""

    config: object
    plan: Plan

    def as_dict(self) -> dict[str, Value]:
        """Configuration and plan as one flat mapping."""
        return {**values_of(self.config), **values_of(self.plan)}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A reference job. `config` is a frozen dataclass; `build` takes it, the place and a seed.

    Fields of `config` that are frozen dataclasses themselves are groups of settings: their fields are set by their own
    names (`layers`, not `model.layers`), which are unique over the whole configuration.
    """

    name: str
    about: Words
    config: type
    build: Callable[[object, Place, int], Program]
    presets_path: Path
    needs: tuple[str, ...] = ()
    """Python packages beside torch, by import name."""
    predict: Callable[..., Prediction] | None = None
    """`(config, world_size, target=NPU)`: what formulas say of a run of so many processes on such devices; imports
    no torch. Raises ValueError, with the valid choices, when the configuration does not fit that many. None: the
    workload runs in one process only."""
    min_ranks: int = 1
    """Processes that it needs at least; what a run has where the user says nothing."""
    takes: frozenset[str] = TAKES
    """Which of `Place`'s paths it reads: data, resume. The options of the others are refused, not passed over."""

    def presets(self) -> dict[str, Preset]:
        """Presets by name, in the order of the file.

        Raises:
            InputError: the file of presets is missing or says something that the workload does not know.
        """
        import yaml

        try:
            document = yaml.safe_load(self.presets_path.read_text("utf-8"))
        except (OSError, yaml.YAMLError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"presets of {self.name} ({self.presets_path.name}) are not readable: {reason}") from error
        where = f"presets of {self.name} ({self.presets_path.name})"
        if not isinstance(document, dict) or not document:
            raise InputError(f"{where}: expected a mapping from preset to about and set")
        return {str(name): self._preset(str(name), body, where) for name, body in document.items()}

    def _preset(self, name: str, body: object, where: str) -> Preset:
        try:
            assert isinstance(body, dict)
            about, values = body["about"], body["set"]
            words = Words(str(about["en"]), str(about["zh"]))
            assert isinstance(values, dict)
            variables = {
                str(kind): {str(key): str(value) for key, value in named.items()}
                for kind, named in body.get("environment", {}).items()
            }
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: {name} needs about: {{en, zh}} and set: {{key: value}}") from error
        return Preset(
            name=name, about=words, values={str(key): value for key, value in values.items()}, environment=variables
        )

    def fields(self) -> dict[str, Value]:
        """Names of all settings with the value that holds when no preset says otherwise."""
        return {name: default for part in (self.config, Plan) for name, (_, default) in _leaves(part).items()}

    def settings(
        self, preset: str, overrides: Sequence[str] = (), *, between: Mapping[str, Value] | None = None
    ) -> Settings:
        """The settings of a preset, changed by `between` (a model's configuration file), then by `key=value` texts.

        Raises:
            UsageError: no such preset or key, or a value of the wrong type or range.
        """
        presets = self.presets()
        if preset not in presets:
            raise UsageError(
                f"{self.name} has no preset {preset!r}{did_you_mean(preset, presets)}",
                hint=f"presets: {', '.join(presets)}",
            )
        changes: dict[str, Value] = {**presets[preset].values, **(between or {})}
        for text in overrides:
            key, value = _assignment(text)
            changes[key] = value
        return self._settings(changes)

    def from_dict(self, values: Mapping[str, Value]) -> Settings:
        """The settings that `Settings.as_dict` gave.

        Raises:
            UsageError: no such key, or a value of the wrong type or range.
        """
        return self._settings(values)

    def _settings(self, changes: Mapping[str, Value]) -> Settings:
        kinds = {name: kind for part in (self.config, Plan) for name, (kind, _) in _leaves(part).items()}
        for key in changes:
            if key not in kinds:
                raise UsageError(
                    f"{self.name} has no setting {key!r}{did_you_mean(key, kinds)}",
                    hint=f"settings: {', '.join(kinds)}",
                )
        checked = {key: _checked(key, value, kinds[key]) for key, value in changes.items()}
        try:
            plan = _built(Plan, checked)
            assert isinstance(plan, Plan)
            return Settings(config=_built(self.config, checked), plan=plan)
        except ValueError as error:
            raise UsageError(
                f"settings of {self.name}: {error}", hint=f"see `ascend-perf workloads {self.name}`"
            ) from error


def workload(
    *,
    name: str,
    about: Words,
    config: type[_C],
    needs: Sequence[str] = (),
    predict: Callable[..., Prediction] | None = None,
    min_ranks: int = 1,
    takes: Sequence[str] = tuple(TAKES),
) -> Callable[[Callable[[_C, Place, int], Program]], Workload]:
    """Turn `build(config, place, seed)` into a `Workload`; presets lie in configs/<name>.yaml beside its module.

    Args:
        predict: `(config, world_size)`, with a third argument `target` where the device makes a difference.
    """
    knows_target = predict is not None and "target" in inspect.signature(predict).parameters

    def wrap(function: Callable[[_C, Place, int], Program]) -> Workload:
        def checked(settings: object) -> _C:
            if not isinstance(settings, config):
                raise TypeError(f"{name} is built from {config.__name__}, got {type(settings).__name__}")
            return settings

        def build(settings: object, place: Place, seed: int) -> Program:
            return function(checked(settings), place, seed)

        def predicted(settings: object, world_size: int, target: Target = NPU) -> Prediction:
            assert predict is not None
            known = {"target": target} if knows_target else {}
            return predict(checked(settings), world_size, **known)

        path = Path(inspect.getfile(function)).parent / "configs" / f"{name}.yaml"
        return Workload(
            name=name, about=about, config=config, build=build, presets_path=path, needs=tuple(needs),
            predict=None if predict is None else predicted, min_ranks=min_ranks, takes=frozenset(takes),
        )  # fmt: skip

    return wrap


def load_workloads() -> Found[Workload]:
    """Every workload by name, ours first."""
    return load_parts("workloads", Workload, lambda part: part.name)


def find_workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        UsageError: there is none, or its module cannot be imported.
    """
    found = load_workloads()
    if name in found.parts:
        return found.parts[name]
    broken = "".join(f"; {module} could not be imported: {reason}" for module, reason in found.broken.items())
    raise UsageError(
        f"no workload {name!r}{did_you_mean(name, found.parts)}{broken}",
        hint=f"workloads: {', '.join(found.parts)}",
    )


def at_least(values: object, minimum: int, *names: str) -> None:
    """Check numbers of a configuration.

    Raises:
        ValueError: one of them is below the minimum.
    """
    for name in names:
        if getattr(values, name) < minimum:
            raise ValueError(f"{name} must be {minimum} or more, got {getattr(values, name)}")


def values_of(config: object) -> dict[str, Value]:
    """Fields of a dataclass, those of its groups among them."""
    assert dataclasses.is_dataclass(config)
    values: dict[str, Value] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        values |= values_of(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return values


def _leaves(part: type) -> dict[str, tuple[object, Value]]:
    """Settings of a dataclass and of its groups: name -> type and default.

    Raises:
        TypeError: two settings share a name.
    """
    kinds, leaves = get_type_hints(part), dict[str, tuple[object, Value]]()
    for field in dataclasses.fields(part):
        kind = kinds[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            known = values_of(field.default) if dataclasses.is_dataclass(field.default) else {}
            more = {name: (leaf, known.get(name, default)) for name, (leaf, default) in _leaves(kind).items()}
        else:
            more = {field.name: (kind, _plain(field.default))}
        if twice := leaves.keys() & more.keys():
            raise TypeError(f"{part.__name__} has two settings {min(twice)!r}")
        leaves |= more
    return leaves


def _built(part: type, values: Mapping[str, Value]) -> object:
    """The dataclass with those of `values` that it or one of its groups knows; the others have their defaults."""
    kinds, chosen = get_type_hints(part), dict[str, object]()
    for field in dataclasses.fields(part):
        kind = kinds[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            start = values_of(field.default) if dataclasses.is_dataclass(field.default) else {}
            chosen[field.name] = _built(kind, {**start, **values})
        elif field.name in values:
            chosen[field.name] = values[field.name]
    return part(**chosen)


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """`: did you mean ...?` when a known name is close, else nothing."""
    close = difflib.get_close_matches(wanted, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _assignment(text: str) -> tuple[str, Value]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text!r} is not key=value", hint="example: --set batch=8")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {key.strip()}: {value!r} is not a plain value") from error
    # YAML 1.1 reads 3e-4 as text: a float needs a dot there.
    if isinstance(parsed, str):
        with contextlib.suppress(ValueError):
            parsed = float(parsed)
    return key.strip(), parsed


def _checked(name: str, value: object, kind: object) -> Value:
    origin = get_origin(kind)
    if origin is Literal:
        allowed = get_args(kind)
        if isinstance(value, bool) and {"on", "off"} <= set(allowed):
            value = "on" if value else "off"  # YAML 1.1 reads both as truth values
        if value in allowed and type(value) in {type(item) for item in allowed}:
            return value  # type: ignore[return-value]  # literals are plain values
        known = [str(item) for item in allowed]
        raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(str(value), known)}")
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (kind,) = (item for item in get_args(kind) if item is not type(None))
        return _checked(name, value, kind)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (str, int, float, bool)) and type(value) is kind:
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    expected = words.get(kind, str(kind)) if isinstance(kind, type) else str(kind)
    raise UsageError(f"{name} must be {expected}, got {value!r}")


def _plain(value: object) -> Value:
    return value if isinstance(value, (str, int, float, bool)) else None
