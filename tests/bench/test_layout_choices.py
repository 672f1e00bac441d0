"""Which layouts are tried: those that the workload's own check takes, named by what they are."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from ascend_perf.bench.layout_choices import Choice, choices, first, name_of, parse_layouts
from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.errors import UsageError
from ascend_perf.workloads._layout import Layout, check
from ascend_perf.workloads._spec import Value, find_workload

PRETRAIN = find_workload("llm-pretrain")
SMALL = ("layers=4", "heads=8", "kv_heads=4", "hidden=96", "width=64", "vocabulary=64", "tokens=32", "accumulate=2")


@pytest.mark.parametrize(("text", "expected"), [
    ("auto", None),
    ("all", None),
    ("fsdp", [{"data_parallel": "fsdp"}]),
    ("tp8+pp2+ddp, EP4", [{"tensor_ranks": 8, "pipeline_ranks": 2, "data_parallel": "ddp"}, {"expert_ranks": 4}]),
    ("cp 2", [{"context_ranks": 2}]),
])  # fmt: skip
def test_layouts_are_read_as_users_write_them(text: str, expected: object) -> None:
    assert parse_layouts(text) == expected


@pytest.mark.parametrize("text", ["", "tp", "zero3", "tp8+tp2", "fsdp+ddp", "tp8 pp2"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--layouts"):
        parse_layouts(text)


def test_the_choices_are_exactly_those_that_fit() -> None:
    world = 8
    found = choices(PRETRAIN, "tiny", SMALL, VirtualNpu(world_size=world))

    # All products of the axes, held against the check that the workload itself makes.
    shape = PRETRAIN.settings("tiny", SMALL).config.shape  # type: ignore[attr-defined]  # llm_pretrain.Config
    expected = set()
    for data, tensor, pipeline in itertools.product(("ddp", "fsdp"), (1, 2, 4, 8), (1, 2, 4, 8)):
        if tensor * pipeline > world:
            continue
        layout = Layout(data_parallel=data, tensor_ranks=tensor, pipeline_ranks=pipeline)  # type: ignore[arg-type]
        try:
            check(layout, shape, world_size=world, tokens=32, accumulate=2)
        except ValueError:
            continue
        rest = world // (tensor * pipeline)
        parts = [f"tp {tensor}"] * (tensor > 1) + [f"pp {pipeline}"] * (pipeline > 1)
        parts += [f"{data} {rest}"] * (rest > 1)
        expected.add(" x ".join(parts))

    assert {one.name for one in found} == expected
    assert len(found) == len(expected)
    assert all(not one.problem for one in found)


@pytest.mark.parametrize(("setting", "names"), [
    # Eight ranks in pairs of tensor ranks: one, two or four stages of the four layers.
    ("tensor_ranks=2", {"tp 2 x ddp 4", "tp 2 x fsdp 4", "tp 2 x pp 2 x ddp 2", "tp 2 x pp 2 x fsdp 2", "tp 2 x pp 4"}),
    # Heads of keys: four, so tensor and context ranks together are four at most.
    ("context_ranks=2", {
        "cp 2 x ddp 4", "cp 2 x fsdp 4", "cp 2 x pp 2 x ddp 2", "cp 2 x pp 2 x fsdp 2", "cp 2 x pp 4",
        "tp 2 x cp 2 x ddp 2", "tp 2 x cp 2 x fsdp 2", "tp 2 x cp 2 x pp 2",
    }),
])  # fmt: skip
def test_an_axis_that_the_user_set_is_kept(setting: str, names: set[str]) -> None:
    found = choices(PRETRAIN, "tiny", (*SMALL, setting), VirtualNpu(world_size=8))
    assert {one.name for one in found} == names and not any(one.problem for one in found)


def test_an_axis_that_cannot_be_is_said_and_not_replaced() -> None:
    (one,) = choices(PRETRAIN, "tiny", (*SMALL, "tensor_ranks=3"), VirtualNpu(world_size=8))
    assert "tensor_ranks 3 does not divide 8 heads" in one.problem
    with pytest.raises(UsageError, match="tensor_ranks is part of the layout"):
        choices(PRETRAIN, "tiny", ("tensor_ranks=2",), VirtualNpu(world_size=8), parse_layouts("fsdp"))


def test_each_choice_uses_all_ranks() -> None:
    for one in choices(PRETRAIN, "tiny", SMALL, VirtualNpu(world_size=16)):
        assert math.prod(int(count) for count in re.findall(r"\d+", one.name)) == 16


def test_those_that_fit_the_memory_come_first() -> None:
    found = choices(PRETRAIN, "7b", (), VirtualNpu(world_size=8))

    fits = [one.memory_bytes <= 64 << 30 for one in found]
    assert fits == sorted(fits, reverse=True)
    assert not fits[[one.name for one in found].index("ddp 8")]  # 108 GB of weights, gradients and AdamW


def test_overrides_say_only_what_differs() -> None:
    by_name = {one.name: one.overrides for one in choices(PRETRAIN, "7b", (), VirtualNpu(world_size=8))}

    assert by_name["fsdp 8"] == ()  # the preset's own
    assert by_name["ddp 8"] == ("data_parallel=ddp",)
    assert by_name["tp 8"] == ("tensor_ranks=8", "data_parallel=ddp")


def test_a_layout_of_the_user_that_does_not_fit_says_why() -> None:
    (one,) = choices(PRETRAIN, "tiny", (), VirtualNpu(world_size=8), parse_layouts("tp3"))

    assert one.name == "tp 3"
    assert "tensor_ranks 3 does not divide 8 heads" in one.problem


def test_experts_with_tensor_ranks_cut_the_tokens() -> None:
    moe = find_workload("moe-pretrain")
    found = {one.name: one for one in choices(moe, "tiny", ("attention=gqa",), VirtualNpu(world_size=4))}

    assert "ep" in " ".join(found)
    cut = [one for name, one in found.items() if name.startswith("tp")]
    assert cut
    assert all("sequence_parallel=true" in one.overrides for one in cut)


@pytest.mark.parametrize(("workload", "preset", "world", "names"), [
    ("micro", "tiny", 1, ["one device"]),
    ("llm-pretrain", "tiny", 1, ["one device"]),
    ("resnet50-train", "tiny", 4, ["ddp 4"]),
])  # fmt: skip
def test_workloads_with_one_layout(workload: str, preset: str, world: int, names: list[str]) -> None:
    assert [one.name for one in choices(find_workload(workload), preset, (), VirtualNpu(world_size=world))] == names


def test_a_workload_of_one_process_does_not_fit_two() -> None:
    (one,) = choices(find_workload("llm-generate"), "tiny", (), VirtualNpu(world_size=2))

    assert "1 process" in one.problem


def test_wrong_settings_are_the_users() -> None:
    with pytest.raises(UsageError, match="no setting 'layer'"):
        choices(PRETRAIN, "tiny", ("layer=3",), VirtualNpu())


def test_plain_data_parallelism_is_among_the_first() -> None:
    found = [Choice(name=name, overrides=()) for name in ("tp 2 x ddp 4", "tp 4 x ddp 2", "fsdp 8", "tp 8", "ddp 8")]

    assert [one.name for one in first(found, 3)] == ["tp 2 x ddp 4", "fsdp 8", "ddp 8"]
    assert [one.name for one in first(found, 9)] == [one.name for one in found]


def test_names_of_layouts() -> None:
    values: dict[str, Value] = {
        "tensor_ranks": 4, "pipeline_ranks": 2, "data_parallel": "fsdp", "expert_ranks": 2, "context_ranks": 2,
    }  # fmt: skip

    assert name_of(values, 32) == "tp 4 x cp 2 x pp 2 x fsdp 2 x ep 2"
    assert name_of({}, 8) == "ddp 8"
    assert name_of({"tensor_ranks": 8}, 8) == "tp 8"
