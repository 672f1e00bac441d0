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
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.plugins import Found, load_parts

_C = TypeVar("_C")
Value = str | int | float | bool | None


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
class Program:
    """A workload that is ready to run on one device.

    `step` does one step and may return before the device has finished; the collector synchronises.
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


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named size of a workload."""

    name: str
    about: Words
    values: Mapping[str, Value]


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
    """A reference job. `config` is a frozen dataclass; `build` takes it, a torch device and a seed."""

    name: str
    about: Words
    config: type
    build: Callable[[object, str, int], Program]
    presets_path: Path
    needs: tuple[str, ...] = ()
    """Python packages beside torch, by import name."""

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
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: {name} needs about: {{en, zh}} and set: {{key: value}}") from error
        return Preset(name=name, about=words, values={str(key): value for key, value in values.items()})

    def fields(self) -> dict[str, Value]:
        """Names of all settings with the value that holds when no preset says otherwise."""
        known = (*dataclasses.fields(self.config), *dataclasses.fields(Plan))
        return {field.name: _plain(field.default) for field in known}

    def settings(self, preset: str, overrides: Sequence[str] = ()) -> Settings:
        """The settings of a preset, changed by `key=value` texts.

        Raises:
            UsageError: no such preset or key, or a value of the wrong type or range.
        """
        presets = self.presets()
        if preset not in presets:
            raise UsageError(
                f"{self.name} has no preset {preset!r}{did_you_mean(preset, presets)}",
                hint=f"presets: {', '.join(presets)}",
            )
        changes: dict[str, Value] = dict(presets[preset].values)
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
        kinds = get_type_hints(self.config) | get_type_hints(Plan)
        for key in changes:
            if key not in kinds:
                raise UsageError(
                    f"{self.name} has no setting {key!r}{did_you_mean(key, kinds)}",
                    hint=f"settings: {', '.join(kinds)}",
                )
        checked = {key: _checked(key, value, kinds[key]) for key, value in changes.items()}
        plan_names = {field.name for field in dataclasses.fields(Plan)}
        try:
            return Settings(
                config=self.config(**{k: v for k, v in checked.items() if k not in plan_names}),
                plan=Plan(**{k: v for k, v in checked.items() if k in plan_names}),  # type: ignore[arg-type]  # checked
            )
        except ValueError as error:
            raise UsageError(f"{self.name}: {error}", hint=f"see `ascend-perf workloads {self.name}`") from error


def workload(
    *, name: str, about: Words, config: type[_C], needs: Sequence[str] = ()
) -> Callable[[Callable[[_C, str, int], Program]], Workload]:
    """Turn `build(config, device, seed)` into a `Workload`; presets lie in configs/<name>.yaml beside its module."""

    def wrap(function: Callable[[_C, str, int], Program]) -> Workload:
        def build(settings: object, device: str, seed: int) -> Program:
            if not isinstance(settings, config):
                raise TypeError(f"{name} is built from {config.__name__}, got {type(settings).__name__}")
            return function(settings, device, seed)

        path = Path(inspect.getfile(function)).parent / "configs" / f"{name}.yaml"
        return Workload(name=name, about=about, config=config, build=build, presets_path=path, needs=tuple(needs))

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
    """Fields of a flat dataclass."""
    assert dataclasses.is_dataclass(config)
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


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
