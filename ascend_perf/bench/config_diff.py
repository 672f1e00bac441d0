"""What differs between two configurations, and what it does to parameters, work, memory and communication.

A configuration is the config.json of a Hugging Face model, a preset of a workload, or a run directory. All become the
settings of a workload, from which formulas give the figures; nothing is run, and torch is not imported.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ascend_perf import manifest as manifests
from ascend_perf.errors import AscendPerfError, InputError
from ascend_perf.model.finding import Words
from ascend_perf.units import Unit
from ascend_perf.workloads import _model_shape as shapes
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_flops, encoder_parameters, encoder_train_flops
from ascend_perf.workloads._model_config import ModelConfig, read_config
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import Plan, Settings, Value, Workload, find_workload

DECODER_JOB: Final[Mapping[str, Value]] = {"tokens": 4096, "batch": 1, "accumulate": 1, "dtype": "bf16"}
"""The job of a model that comes without one, trained by `llm-pretrain`."""
_MAX_OTHER_KEYS: Final = 200
_PRESET: Final = re.compile(r"([a-z0-9][a-z0-9-]*):([\w.-]+)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a configuration; `main` ones are followed for each setting."""

    words: Words
    unit: Unit
    main: bool = False


FIGURES: Final[Mapping[str, Figure]] = {
    "parameters": Figure(words=Words("parameters", "参数量"), unit="count", main=True),
    "active_parameters": Figure(words=Words("parameters that a token passes", "每 token 激活参数量"), unit="count"),
    "forward_flops": Figure(words=Words("forward pass of one text", "一条文本的前向计算量"), unit="flops"),
    "model_flops_per_step": Figure(words=Words("model FLOPs of a step", "每步模型计算量"), unit="flops", main=True),
    "hardware_flops_per_step": Figure(words=Words("executed FLOPs of a step", "每步实际计算量"), unit="flops"),
    "cache_per_token": Figure(words=Words("KV cache of a token, bf16", "每 token 的 KV cache（bf16）"), unit="bytes"),
    "memory": Figure(words=Words("memory of a rank", "每个 rank 的内存"), unit="bytes", main=True),
    "communication_per_step": Figure(
        words=Words("communication of a rank and step", "每个 rank 每步通信量"), unit="bytes", main=True
    ),
}
_COMPONENTS: Final[Mapping[str, Words]] = {
    "weights": Words("weights", "权重"), "gradients": Words("gradients", "梯度"),
    "optimizer": Words("optimizer", "优化器状态"), "activations": Words("activations", "激活"),
    "cache": Words("cache", "KV cache"), "gathered": Words("gathered by FSDP", "FSDP 聚集的权重"),
    "temporary": Words("temporary", "临时张量"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two configurations."""

    name: str
    """As the user named it, a file by its last part."""
    kind: str
    """config.json, preset or run."""
    workload: Workload
    settings: Settings
    world_size: int
    figures: Mapping[str, float]
    """By the names of `FIGURES`, with memory_<component> and communication_<collective>; one is absent where no
    formula gives it."""
    notes: tuple[Words, ...] = ()
    problem: str = ""
    """Why figures of a rank are missing, in English; empty: none are."""
    other_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keys of a config.json that say nothing of these figures."""


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting in which the two differ."""

    name: str
    a: Value
    b: Value
    effects: Mapping[str, float] | None
    """Change of each main figure of A when this setting alone is taken from B; empty: none changes. None: A does not
    work with it alone, or only one of the two has it."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The whole comparison."""

    a: Side
    b: Side
    settings: tuple[SettingDifference, ...]
    other_keys: tuple[tuple[str, Any, Any], ...]
    """Keys of two config.json that differ, with no effect on these figures known. None: the key is not there."""
    other_keys_left_out: int = 0

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that either has."""
        names = [name for name in FIGURES if name in self.a.figures or name in self.b.figures]
        parts = sorted((set(self.a.figures) | set(self.b.figures)) - set(FIGURES))
        return tuple(whole for name in names for whole in (name, *(p for p in parts if p.startswith(f"{name}_"))))


def figure_words(name: str) -> Words:
    """What a figure is called; a component after the whole that it belongs to."""
    if name in FIGURES:
        return FIGURES[name].words
    part = name.removeprefix("memory_").removeprefix("communication_per_step_")
    return _COMPONENTS.get(part, Words(part, part))


def figure_unit(name: str) -> Unit:
    """Unit of a figure."""
    return FIGURES[name].unit if name in FIGURES else "bytes"


def compare(first: str, second: str, *, overrides: Sequence[str] = (), world_size: int | None = None) -> Difference:
    """Compare two configurations, each a path or `workload:preset`.

    Args:
        overrides: `key=value` texts for both.
        world_size: processes of both; None: those of a run, else one.

    Raises:
        UsageError: no such workload, preset or setting.
        InputError: a file is missing or not readable.
    """
    sources = [_read(text) for text in (first, second)]
    jobs = [_job(one, other, overrides) for one, other in (sources, sources[::-1])]
    a, b = (
        _side(source, *job, world_size or source.world_size) for source, job in zip(sources, jobs, strict=True)
    )  # fmt: skip
    other = _other_keys(a.other_keys, b.other_keys) if a.kind == b.kind == "config.json" else []
    return Difference(
        a=a, b=b, settings=tuple(_setting_differences(a, b)), other_keys=tuple(other[:_MAX_OTHER_KEYS]),
        other_keys_left_out=max(0, len(other) - _MAX_OTHER_KEYS),
    )  # fmt: skip


# Reading


@dataclass(frozen=True, kw_only=True)
class _Source:
    name: str
    kind: str
    config: ModelConfig | None = None
    workload: Workload | None = None
    preset: str | None = None
    values: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    world_size: int = 1


def _read(text: str) -> _Source:
    path = Path(text)
    if path.name == manifests.FILE_NAME or (path / manifests.FILE_NAME).is_file():
        return _run(path)
    if path.exists():
        name = path.name if path.is_file() else f"{path.resolve().name}/"
        return _Source(name=name, kind="config.json", config=read_config(path))
    named = _PRESET.fullmatch(text)
    if named is None:
        raise InputError(
            f"{text}: neither a file or folder nor WORKLOAD:PRESET",
            hint="name a config.json, a run directory, or a preset like llm-pretrain:7b",
        )
    workload = find_workload(named[1])
    return _Source(name=text, kind="preset", workload=workload, preset=named[2])


def _run(path: Path) -> _Source:
    manifest = manifests.read_manifest(path)
    workload = find_workload(manifest.workload)
    ranks = manifest.device_facts.get("world_size")
    name = path.parent.name if path.name == manifests.FILE_NAME else path.name
    values: dict[str, Value] = {}
    known = workload.fields()
    for key, value in manifest.config.items():
        if key in known and (value is None or isinstance(value, (str, int, float, bool))):
            values[key] = value
    return _Source(
        name=f"{name}/", kind="run", workload=workload, preset=manifest.preset, values=values,
        world_size=ranks if isinstance(ranks, int) and 0 < ranks <= 1 << 20 else 1,
    )  # fmt: skip


def _job(source: _Source, other: _Source, overrides: Sequence[str]) -> tuple[Workload, Settings]:
    """The workload of a configuration and its settings. A model takes the job of the other one where it can."""
    if source.workload is not None:
        presets = source.workload.presets()
        if source.kind == "preset":
            assert source.preset is not None
            return source.workload, source.workload.settings(source.preset, overrides)
        preset = source.preset if source.preset in presets else next(iter(presets))
        return source.workload, source.workload.settings(preset, overrides, between=source.values)
    assert source.config is not None
    own = _own_workload(source.config.shape)
    if other.workload is not None:
        workload, job = _job(other, source, overrides)
        if own != workload.name and "llm-pretrain" in (own, workload.name):
            # The two that train decoders share all settings but those of the router.
            workload = find_workload(own)
        known = workload.fields()
        values = source.config.settings_for(known)
        if source.config.values.keys() <= known.keys():
            shared = {key: value for key, value in job.as_dict().items() if key in known}
            return workload, workload.settings(_first(workload), overrides, between={**shared, **values})
    workload = find_workload(own)
    known = workload.fields()
    values = source.config.settings_for(known)
    job_values = {} if own == "bert-clue" else {key: value for key, value in DECODER_JOB.items() if key in known}
    return workload, workload.settings(_first(workload), overrides, between={**job_values, **values})


def _own_workload(shape: ModelShape | EncoderShape) -> str:
    if isinstance(shape, EncoderShape):
        return "bert-clue"
    return "moe-pretrain" if shape.moe_layers else "llm-pretrain"


def _first(workload: Workload) -> str:
    return next(iter(workload.presets()))


def _side(source: _Source, workload: Workload, settings: Settings, world_size: int) -> Side:
    figures, problem = _figures(workload, settings, world_size)
    other = {}
    if source.config is not None:
        other = {key: value for key, value in source.config.raw.items() if key not in source.config.used}
    return Side(
        name=source.name, kind=source.kind, workload=workload, settings=settings, world_size=world_size,
        figures=figures, notes=source.config.notes if source.config is not None else (), problem=problem,
        other_keys=other,
    )  # fmt: skip


# Figures


def _figures(workload: Workload, settings: Settings, world_size: int) -> tuple[dict[str, float], str]:
    """Figures by formula, and why those of a rank are missing."""
    assert dataclasses.is_dataclass(settings.config)
    groups = [getattr(settings.config, field.name) for field in dataclasses.fields(settings.config)]
    values = settings.as_dict()
    figures: dict[str, float] = {}
    problem = ""
    if workload.predict is not None:
        try:
            predicted = workload.predict(settings.config, world_size)
        except ValueError as error:
            problem = f"memory and communication are unknown: {error}"
        else:
            if predicted.memory_bytes:
                figures["memory"] = predicted.peak_bytes
                figures |= {f"memory_{part}": size for part, size in predicted.memory_bytes.items()}
            sent: dict[str, float] = {}
            for part in predicted.traffic:
                sent[part.collective] = sent.get(part.collective, 0) + part.bytes_per_step
            figures["communication_per_step"] = sum(sent.values())
            figures |= {f"communication_per_step_{name}": size for name, size in sent.items()}
    for group in groups:
        if isinstance(group, ModelShape):
            figures |= _decoder_figures(group, groups, values, world_size)
        elif isinstance(group, EncoderShape):
            figures |= _encoder_figures(group, values, world_size)
    return figures, problem


def _decoder_figures(
    shape: ModelShape, groups: Sequence[object], values: Mapping[str, Value], world_size: int
) -> dict[str, float]:
    from ascend_perf.workloads._layout import Layout, check
    from ascend_perf.workloads._training import Training

    tokens = _number(values, "tokens", "prompt_tokens")
    figures: dict[str, float] = {
        "parameters": shapes.parameter_count(shape),
        "cache_per_token": shapes.cache_bytes_per_token(shape, 2),
    }
    if shape.experts:
        figures["active_parameters"] = shapes.active_parameter_count(shape)
    if tokens:
        figures["forward_flops"] = shapes.forward_flops(shape, tokens, tokens)
    training = next((group for group in groups if isinstance(group, Training)), None)
    if training is None:
        return figures
    layout = next((group for group in groups if isinstance(group, Layout)), None)
    ranks = world_size
    if layout is not None:
        try:
            ranks = check(
                layout, shape, world_size=world_size, tokens=training.tokens, accumulate=training.accumulate
            ).data
        except ValueError:
            return figures  # `_figures` says why
    figures["model_flops_per_step"] = training.model_flops(shape, ranks)
    figures["hardware_flops_per_step"] = training.hardware_flops(shape, ranks)
    return figures


def _encoder_figures(shape: EncoderShape, values: Mapping[str, Value], world_size: int) -> dict[str, float]:
    classes = _number(values, "classes")
    tokens, batch = _number(values, "tokens"), _number(values, "batch")
    figures: dict[str, float] = {"parameters": encoder_parameters(shape, classes)}
    if tokens:
        figures["forward_flops"] = encoder_flops(shape, tokens, classes)
        if batch and values.get("mode") == "train":
            # Every text as long as the longest that is allowed.
            figures["model_flops_per_step"] = encoder_train_flops(shape, tokens, classes) * batch * world_size
    return figures


def _number(values: Mapping[str, Value], *names: str) -> int:
    return next((value for name in names if isinstance(value := values.get(name), int)), 0)


# Differences


def _setting_differences(a: Side, b: Side) -> list[SettingDifference]:
    mine, theirs = a.settings.as_dict(), b.settings.as_dict()
    plan = {field.name for field in dataclasses.fields(Plan)}
    names = [*mine, *(name for name in theirs if name not in mine)]
    found = []
    for name in names:
        both = name in mine and name in theirs
        if name in plan or (both and mine[name] == theirs[name]):
            continue
        effects = _effects(a, name, theirs[name]) if both else None
        found.append(SettingDifference(name=name, a=mine.get(name), b=theirs.get(name), effects=effects))
    return found


def _effects(side: Side, name: str, value: Value) -> dict[str, float] | None:
    try:
        changed = side.workload.from_dict({**side.settings.as_dict(), name: value})
    except AscendPerfError:
        return None
    figures, problem = _figures(side.workload, changed, side.world_size)
    if problem and problem != side.problem:
        return None
    return {
        figure: figures[figure] - side.figures[figure] for figure, kind in FIGURES.items()
        if kind.main and figure in figures and figure in side.figures and figures[figure] != side.figures[figure]
    }  # fmt: skip


def _other_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def as_document(difference: Difference) -> dict[str, Any]:
    """The comparison as plain values, for JSON."""

    def side(one: Side) -> dict[str, Any]:
        return {
            "name": one.name, "kind": one.kind, "workload": one.workload.name, "world_size": one.world_size,
            "notes": [*(note.en for note in one.notes), *([one.problem] if one.problem else [])],
        }  # fmt: skip

    figures = []
    for name in difference.figures:
        a, b = difference.a.figures.get(name), difference.b.figures.get(name)
        known = a is not None and b is not None
        figures.append({
            "name": name, "unit": figure_unit(name), "a": a, "b": b,
            "difference": b - a if known and a is not None and b is not None else None,
            "ratio": b / a if known and a and b is not None else None,
        })  # fmt: skip
    return {
        "schema_version": 1,
        "a": side(difference.a),
        "b": side(difference.b),
        "figures": figures,
        "settings": [
            {
                "name": one.name, "a": one.a, "b": one.b,
                "effects": None if one.effects is None else dict(one.effects),
            }
            for one in difference.settings
        ],
        "other_keys": [{"name": key, "a": a, "b": b} for key, a, b in difference.other_keys],
        "other_keys_left_out": difference.other_keys_left_out,
    }  # fmt: skip


def plain(value: object) -> str:
    """A value of a configuration as one short line."""
    if value is None:
        return "—"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= 60 else text[:60] + "..."
