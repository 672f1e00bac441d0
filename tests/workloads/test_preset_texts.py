"""What presets say of themselves agrees with the formulas: memory before activations, parameters, devices."""

from __future__ import annotations

import re

import pytest

from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape, active_parameter_count, parameter_count
from ascend_perf.workloads._spec import Preset, Workload, load_workloads, values_of

_SCALE = {"k": 1e3, "M": 1e6, "B": 1e9, "GB": 1e9, "TB": 1e12}
_DEVICES = {"two": 2, "four": 4, "eight": 8, "16": 16, "32": 32}
_PARAMETERS = r"([\d.]+) ([kMB]) (?:frozen )?parameters(?: of which ([\d.]+) B run)?"
_MEMORY = r"([\d.]+) (GB|TB) before activations"
_DEVICES_OF = r"(two|four|eight|16|32) devices of (\d+) GB"
PRESETS = [(workload, preset) for workload in load_workloads().parts.values() for preset in workload.presets().values()]


def saying(pattern: str) -> list[tuple[Workload, Preset, re.Match[str]]]:
    """The presets that say it, and what they say."""
    matches = ((workload, preset, re.search(pattern, preset.about.en)) for workload, preset in PRESETS)
    return [(workload, preset, said) for workload, preset, said in matches if said]


def name(value: object) -> str:
    """Of a case."""
    return value.name if isinstance(value, (Workload, Preset)) else value[0] if isinstance(value, re.Match) else ""


def near(said: str, scale: str, value: float) -> None:
    """`value` written with as many digits as `said` has."""
    digits = len(said.partition(".")[2])
    assert f"{value / _SCALE[scale]:.{digits}f}" == said


def shape_of(config: object) -> ModelShape | None:
    parts = [getattr(config, name) for name in getattr(config, "__dataclass_fields__", {})]
    return next((part for part in parts if isinstance(part, ModelShape)), None)


@pytest.mark.parametrize(("workload", "preset", "said"), saying(_MEMORY), ids=name)
def test_memory_before_activations(workload: Workload, preset: Preset, said: re.Match[str]) -> None:
    assert workload.predict is not None
    # Of the whole model: on one process, without what the layout would cut.
    whole = [f"{name}=1" for name in ("tensor_ranks", "expert_ranks") if name in workload.fields()]
    flags = [f"{name}=false" for name in ("sequence_parallel",) if name in workload.fields()]
    memory = workload.predict(workload.settings(preset.name, [*whole, *flags]).config, 1).memory_bytes
    near(said[1], said[2], sum(memory[part] for part in ("weights", "gradients", "optimizer")))
    assert f"不含激活{'值' if '不含激活值' in preset.about.zh else ''} {said[1]} {said[2]}" in preset.about.zh


@pytest.mark.parametrize(
    ("workload", "preset", "said", "shape"),
    [
        (workload, preset, said, shape)
        for workload, preset, said in saying(_PARAMETERS)
        if (shape := shape_of(workload.settings(preset.name).config)) is not None
    ],
    ids=name,
)
def test_parameters(workload: Workload, preset: Preset, said: re.Match[str], shape: ModelShape) -> None:
    near(said[1], said[2], parameter_count(shape))
    if said[3]:
        # As published: with the embedding table (Mixtral, Qwen) or without (DeepSeek), rounded or cut.
        active = active_parameter_count(shape) / 1e9
        without_table = active - shape.vocabulary * shape.width / 1e9
        assert any(0 <= one - float(said[3]) + 0.05 < 0.15 for one in (active, without_table))


@pytest.mark.parametrize(("workload", "preset", "said"), saying(_DEVICES_OF), ids=name)
def test_the_devices_that_are_named_have_the_memory(workload: Workload, preset: Preset, said: re.Match[str]) -> None:
    """With 8 % of 64 GB left for what the formulas do not know: buffers of HCCL, rounding of the allocator."""
    assert workload.predict is not None
    config = workload.settings(preset.name).config
    assert workload.predict(config, _DEVICES[said[1]]).peak_bytes < 0.92 * int(said[2]) * 1e9


@pytest.mark.parametrize(
    ("workload", "preset"),
    [
        (workload, preset)
        for workload, preset in PRESETS
        if workload.predict is not None and not re.search(r"devices? of \d+ GB", preset.about.en)
    ],
    ids=name,
)
def test_a_preset_without_named_devices_fits_one_of_64_gb(workload: Workload, preset: Preset) -> None:
    assert workload.predict is not None
    config = workload.settings(preset.name).config
    assert all(value == 1 for name, value in values_of(config).items() if name in Layout.__dataclass_fields__
               and name.endswith("_ranks"))  # fmt: skip
    assert workload.predict(config, workload.min_ranks).peak_bytes < 0.92 * 64e9
