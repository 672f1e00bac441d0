"""Settings of workloads: presets, overrides and what is said about mistakes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.workloads._spec import (
    Place,
    Plan,
    Program,
    Workload,
    _leaves,
    find_workload,
    load_workloads,
    values_of,
)

ROOT = Path(__file__).parents[2]
ALL = load_workloads()


@dataclass(frozen=True, kw_only=True)
class Config:
    width: int = 4
    rate: float = 0.5
    fused: bool = False
    dtype: Literal["auto", "fp32"] = "auto"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be 1 or more, got {self.width}")


def build(config: object, place: Place, seed: int) -> Program:
    raise NotImplementedError


@pytest.fixture
def toy(tmp_path: Path) -> Workload:
    path = tmp_path / "toy.yaml"
    path.write_text("tiny:\n  about: {en: small, zh: 小}\n  set: {width: 8, measured_steps: 2}\n", "utf-8")
    return Workload(name="toy", about=Words("a toy", "玩具"), config=Config, build=build, presets_path=path)


def test_a_preset_sets_workload_and_plan_and_an_override_wins(toy: Workload) -> None:
    settings = toy.settings("tiny", ["rate=0.25", "profiled_steps=1", "width=16"])

    assert settings.config == Config(width=16, rate=0.25)
    assert settings.plan == Plan(measured_steps=2, profiled_steps=1)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rate=1", "rate", 1.0),
        ("rate=3e-4", "rate", 3e-4),  # text in YAML 1.1
        ("width=1e2", "width", 100),
        ("fused=true", "fused", True),
        ("limit=5", "limit", 5),
        ("limit=null", "limit", None),
        ("dtype=fp32", "dtype", "fp32"),
        (" rate =2", "rate", 2.0),
    ],
)
def test_values_are_read_as_the_type_of_their_setting(toy: Workload, text: str, name: str, value: object) -> None:
    seen = toy.settings("tiny", [text]).as_dict()[name]

    assert seen == value
    assert type(seen) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht=3", "toy has no setting 'widht': did you mean 'width'?"),
        ("width=wide", "width must be a whole number, got 'wide'"),
        ("width=1.5", "width must be a whole number, got 1.5"),
        ("width=true", "width must be a whole number, got True"),
        ("rate=fast", "rate must be a number, got 'fast'"),
        ("fused=1", "fused must be true or false, got 1"),
        ("dtype=pf32", "dtype must be one of auto, fp32, got 'pf32': did you mean 'fp32'?"),
        ("width=0", "settings of toy: width must be 1 or more, got 0"),
        ("measured_steps=0", "settings of toy: measured_steps must be 1 or more, got 0"),
        ("width", "--set 'width' is not key=value"),
        ("=3", "--set '=3' is not key=value"),
        ("width=[", "--set width: '[' is not a plain value"),
        ("width=[1]", "width must be a whole number, got [1]"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(toy: Workload, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        toy.settings("tiny", [text])

    assert caught.value.what == message


@dataclass(frozen=True, kw_only=True)
class Model:
    depth: int = 2
    heads: int = 1


@dataclass(frozen=True, kw_only=True)
class Cut:
    parts: int = 1
    schedule: Literal["plain", "woven"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Grouped:
    model: Model = Model(depth=5)
    cut: Cut = field(default_factory=Cut)
    batch: int = 3

    def __post_init__(self) -> None:
        if self.batch % self.cut.parts:
            raise ValueError(f"batch {self.batch} does not divide into {self.cut.parts} parts")


@pytest.fixture
def grouped(tmp_path: Path) -> Workload:
    path = tmp_path / "grouped.yaml"
    path.write_text(
        "tiny:\n  about: {en: small, zh: 小}\n  set: {heads: 4, parts: 3}\n"
        "  environment: {npu: {TASK_QUEUE_ENABLE: 2}, cpu: {OMP_NUM_THREADS: '1'}}\n",
        "utf-8",
    )
    return Workload(name="grouped", about=Words("g", "组"), config=Grouped, build=build, presets_path=path)


def test_settings_of_groups_have_flat_names_and_the_defaults_of_their_group(grouped: Workload) -> None:
    plan = values_of(Plan())
    assert grouped.fields() == {"depth": 5, "heads": 1, "parts": 1, "schedule": "plain", "batch": 3, **plan}

    settings = grouped.settings("tiny", ["batch=6", "schedule=woven", "seed=4"])

    assert settings.config == Grouped(model=Model(depth=5, heads=4), cut=Cut(parts=3, schedule="woven"), batch=6)
    assert settings.plan == Plan(seed=4)
    assert grouped.from_dict(settings.as_dict()) == settings
    assert list(settings.as_dict()) == ["depth", "heads", "parts", "schedule", "batch", *plan]


def test_a_models_file_stands_between_the_preset_and_the_words_of_the_user(grouped: Workload) -> None:
    between = {"heads": 8, "depth": 9}

    assert grouped.settings("tiny", ["depth=7"], between=between).config == Grouped(
        model=Model(depth=7, heads=8), cut=Cut(parts=3)
    )
    with pytest.raises(UsageError, match="grouped has no setting 'hads': did you mean 'heads'"):
        grouped.settings("tiny", between={"hads": 8})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dept=1", "grouped has no setting 'dept': did you mean 'depth'?"),  # of a group
        ("sede=1", "grouped has no setting 'sede': did you mean 'seed'?"),  # of the plan
        ("bach=1", "grouped has no setting 'bach': did you mean 'batch'?"),  # of the configuration itself
        ("model=1", "grouped has no setting 'model'"),  # a group is no setting
        ("model.depth=1", "grouped has no setting 'model.depth': did you mean 'depth'?"),
        ("schedule=weven", "schedule must be one of plain, woven, got 'weven': did you mean 'woven'?"),
        ("batch=4", "settings of grouped: batch 4 does not divide into 3 parts"),
    ],
)
def test_a_wrong_setting_of_a_group_is_named_as_any_other(grouped: Workload, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        grouped.settings("tiny", [text])

    assert caught.value.what.startswith(message)


def test_two_groups_with_a_setting_of_one_name_are_a_mistake_of_the_workload(grouped: Workload) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Twice:
        model: Model = field(default_factory=Model)
        heads: int = 2

    with pytest.raises(TypeError, match="Twice has two settings 'heads'"):
        _leaves(Twice)


def test_a_preset_has_variables_by_kind_of_device(grouped: Workload, toy: Workload) -> None:
    assert grouped.presets()["tiny"].environment == {
        "npu": {"TASK_QUEUE_ENABLE": "2"}, "cpu": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    assert toy.presets()["tiny"].environment == {}
    text = grouped.presets_path.read_text("utf-8").replace("{npu: {TASK_QUEUE_ENABLE: 2}, cpu: ", "{cpu: [3], npu: ")
    grouped.presets_path.write_text(text, "utf-8")
    with pytest.raises(InputError, match="tiny needs about"):
        grouped.presets()


def test_an_unknown_preset_names_the_known_ones(toy: Workload) -> None:
    with pytest.raises(UsageError) as caught:
        toy.settings("tinny")

    assert caught.value.what == "toy has no preset 'tinny': did you mean 'tiny'?"
    assert caught.value.hint == "presets: tiny"


@pytest.mark.parametrize("text", ["", "- a", "tiny: 3", "tiny: {set: {}}", "tiny: {about: {en: a}, set: {}}", "a: ["])
def test_a_damaged_file_of_presets_is_an_input_error(toy: Workload, text: str) -> None:
    toy.presets_path.write_text(text, "utf-8")

    with pytest.raises(InputError, match=r"presets of toy \(toy.yaml\)"):
        toy.presets()


def test_settings_survive_the_way_to_the_other_process(toy: Workload) -> None:
    settings = toy.settings("tiny", ["rate=0.25", "seed=7"])

    assert toy.from_dict(settings.as_dict()) == settings


def test_an_unknown_workload_is_answered_with_the_closest() -> None:
    with pytest.raises(UsageError) as caught:
        find_workload("llm-pretrian")

    assert caught.value.what == "no workload 'llm-pretrian': did you mean 'llm-pretrain'?"


def test_the_first_two_workloads_are_found() -> None:
    assert {"llm-pretrain", "resnet50-infer"} <= set(ALL.parts)
    assert ALL.broken == {}


@pytest.mark.parametrize("part", ALL.parts.values(), ids=lambda part: part.name)
def test_every_preset_is_valid_and_tiny_is_there(part: Workload) -> None:
    presets = part.presets()

    assert next(iter(presets)) == "tiny"
    for name in presets:
        part.settings(name)


@pytest.mark.parametrize("part", ALL.parts.values(), ids=lambda part: part.name)
def test_has_a_row_in_the_docs(part: Workload) -> None:
    assert f"| {part.name} |" in (ROOT / "docs" / "workloads.md").read_text("utf-8")


def test_listing_workloads_imports_neither_torch_nor_pandas_nor_jinja2() -> None:
    code = (
        "import sys; from ascend_perf.workloads._spec import load_workloads;"
        "[part.settings('tiny') for part in load_workloads().parts.values()];"
        "print([name for name in ('torch', 'pandas', 'jinja2', 'PIL', 'plotly') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
