"""Which layouts fit which models and worlds, what is said of the others, and which ranks talk to which."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.workloads._layout import Axes, Layout, check, stages_of
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._rank_weights import owners

SHAPE = ModelShape(layers=4, width=64, heads=8, kv_heads=4, hidden=96, vocabulary=120)
EXPERTS = replace(SHAPE, experts=6, experts_per_token=2)
LATENT = replace(SHAPE, attention="mla")
TWO_STAGES = {"pipeline_schedule": "interleaved", "pipeline_stages_per_rank": 2}


def checked(shape: ModelShape, world_size: int, **layout: object) -> Axes:
    chosen = Layout(**layout)  # type: ignore[arg-type]
    return check(chosen, shape, world_size=world_size, tokens=24, accumulate=4)


@pytest.mark.parametrize(
    ("shape", "world", "layout", "said"),
    [
        (SHAPE, 8, {"tensor_ranks": 3}, "tensor_ranks 3 does not divide 8 heads; valid here: 1, 2, 4"),
        (SHAPE, 8, {"tensor_ranks": 8}, "tensor_ranks 8 does not divide 4 kv_heads; valid here: 1, 2, 4"),
        (replace(SHAPE, kv_heads=8, vocabulary=122), 8, {"tensor_ranks": 4},
         "tensor_ranks 4 does not divide 122 vocabulary; valid here: 1, 2"),
        (replace(SHAPE, hidden=97), 2, {"tensor_ranks": 2}, "tensor_ranks 2 does not divide 97 hidden; valid here: 1"),
        (replace(SHAPE, kv_heads=1), 2, {"tensor_ranks": 2},
         "tensor_ranks 2 does not divide 1 kv_heads; valid here: 1"),
        (SHAPE, 6, {"tensor_ranks": 2, "pipeline_ranks": 2},
         "world of 6 = pipeline 2 x tensor 2 leaves 1.5 data ranks; valid world sizes: 4, 8, 12, 16, ..."),
        (SHAPE, 1, {"tensor_ranks": 2},
         "world of 1 = tensor 2 leaves 0.5 data ranks; valid world sizes: 2, 4, 6, 8, ..."),
        (SHAPE, 10, {"context_ranks": 2, "tensor_ranks": 2, "pipeline_ranks": 2},
         "world of 10 = pipeline 2 x context 2 x tensor 2 leaves 1.25 data ranks; "
         "valid world sizes: 8, 16, 24, 32, ..."),
        (SHAPE, 8, {"context_ranks": 8}, "context_ranks 8 does not divide 4 kv_heads; valid here: 1, 2, 4"),
        (SHAPE, 8, {"context_ranks": 4, "tensor_ranks": 2},
         "context_ranks 4 does not divide 2 kv_heads on each of 2 tensor ranks; valid here: 1, 2"),
        (replace(SHAPE, heads=16, kv_heads=16), 16, {"context_ranks": 16},
         "context_ranks 16 does not divide 24 tokens; valid here: 1, 2, 4, 8"),
        (replace(SHAPE, heads=16, kv_heads=16, vocabulary=128), 16, {"tensor_ranks": 16, "sequence_parallel": True},
         "tensor_ranks with sequence_parallel 16 does not divide 24 tokens; valid here: 1, 2, 4, 8"),
        (replace(SHAPE, heads=16, kv_heads=16, vocabulary=128), 32,
         {"tensor_ranks": 8, "sequence_parallel": True, "context_ranks": 2},
         "tensor_ranks with sequence_parallel 8 does not divide 12 tokens on each of 2 context ranks; "
         "valid here: 1, 2, 4"),
        (SHAPE, 8, {"pipeline_ranks": 8},
         "pipeline_ranks 8 are more stages than the 4 layers; valid pipeline_ranks here: 1, 2, 3, 4"),
        (SHAPE, 4, {"pipeline_ranks": 4, **TWO_STAGES},
         "pipeline_ranks 4 x pipeline_stages_per_rank 2 are more stages than the 4 layers; "
         "valid pipeline_ranks here: 1, 2"),
        (SHAPE, 3, {"pipeline_ranks": 1, **TWO_STAGES},
         "pipeline_schedule interleaved needs pipeline_ranks of 2 or more"),
        (replace(SHAPE, layers=6), 3, {"pipeline_ranks": 3, **TWO_STAGES},
         "accumulate 4 does not divide into rounds of 3 micro-batches, which interleaved needs; "
         "valid accumulate here: 3, 6, 9, ..."),
        (replace(SHAPE, tied=True), 2, {"pipeline_ranks": 2},
         "a tied model has one table at both ends of the pipeline; set pipeline_ranks 1 or tied false"),
        (SHAPE, 2, {"expert_ranks": 2}, "expert_ranks 2 needs a model with experts; valid here: 1"),
        (EXPERTS, 4, {"expert_ranks": 4}, "expert_ranks 4 does not divide 6 experts; valid here: 1, 2, 3, 6"),
        (EXPERTS, 4, {"expert_ranks": 3},
         "world of 4 = no other axis leaves 4 data ranks, which do not share out expert_ranks 3; "
         "valid world sizes: 3, 6, 9, 12, ..."),
        (EXPERTS, 6, {"expert_ranks": 6, "context_ranks": 2, "tensor_ranks": 1, "pipeline_ranks": 3},
         "world of 6 = pipeline 3 x context 2 leaves 1 data ranks, which with context_ranks do not share out "
         "expert_ranks 6; valid world sizes: 18, 36, 54, 72, ..."),
        (EXPERTS, 2, {"tensor_ranks": 2},
         "experts with tensor_ranks need sequence_parallel: each tensor rank routes tokens of its own"),
        (LATENT, 2, {"tensor_ranks": 2}, "tensor_ranks cuts attention gqa only, not mla; valid here: 1"),
        (replace(LATENT, heads=6), 4, {"context_ranks": 4},
         "context_ranks 4 does not divide 6 heads; valid here: 1, 2, 3, 6"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused_with_the_choices_that_do(
    shape: ModelShape, world: int, layout: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError) as refused:
        checked(shape, world, **layout)

    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"sequence_parallel": True}, "sequence_parallel needs tensor_ranks of 2 or more"),
        ({"tensor_ranks": 0}, "tensor_ranks must be 1 or more, got 0"),
        ({"pipeline_ranks": 2, "pipeline_stages_per_rank": 2},
         "pipeline_stages_per_rank is 2 or more with pipeline_schedule interleaved, 1 with 1f1b"),
        ({"pipeline_ranks": 2, "pipeline_schedule": "interleaved"},
         "pipeline_stages_per_rank is 2 or more with pipeline_schedule interleaved, 1 with 1f1b"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(layout: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        Layout(**layout)  # type: ignore[arg-type]

    assert str(refused.value) == said


def test_what_is_left_of_the_world_is_the_data_axis() -> None:
    axes = checked(SHAPE, 16, pipeline_ranks=2, context_ranks=2, tensor_ranks=2)

    assert axes == Axes(pipeline=2, data=2, context=2, tensor=2, expert=1)
    assert (axes.world_size, axes.replicas) == (16, 4)


def test_mla_ignores_key_value_heads_when_the_context_is_cut() -> None:
    assert checked(replace(LATENT, kv_heads=1), 8, context_ranks=8).context == 8


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
def test_groups_of_each_axis_share_out_the_ranks(p: int, d: int, c: int, t: int, expert: int) -> None:
    expert = expert if (d * c) % expert == 0 else 1
    axes = Axes(pipeline=p, data=d, context=c, tensor=t, expert=expert)
    sizes = {
        "pipeline": p, "data": d, "context": c, "tensor": t, "replica": d * c, "expert": expert,
        "expert replica": d * c // expert,
    }  # fmt: skip

    for axis, size in sizes.items():
        groups = axes.groups(axis)  # type: ignore[arg-type]
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(axes.world_size))
    # Of two ranks in one group of an axis, only the place on that axis differs.
    for number, axis in enumerate(("pipeline", "data", "context", "tensor")):
        for group in axes.groups(axis):  # type: ignore[arg-type]
            places = [axes.place(rank) for rank in group]
            assert [place[number] for place in places] == list(range(len(group)))
            assert len({place[:number] + place[number + 1 :] for place in places}) == 1


def test_rank_numbers_count_tensor_fastest_and_pipeline_slowest() -> None:
    axes = Axes(pipeline=2, data=2, context=2, tensor=2)

    assert [axes.place(rank) for rank in range(16)] == list(product(range(2), repeat=4))
    assert axes.groups("tensor")[0] == [0, 1]
    assert axes.groups("context")[:2] == [[0, 2], [1, 3]]
    assert axes.groups("data")[0] == [0, 4]
    assert axes.groups("pipeline")[0] == [0, 8]
    assert axes.groups("replica")[0] == [0, 2, 4, 6]


def test_experts_lie_on_neighbours_of_the_replica_axis() -> None:
    axes = Axes(data=4, context=2, expert=4)

    assert axes.groups("expert") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert axes.groups("expert replica") == [[0, 4], [1, 5], [2, 6], [3, 7]]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_stages_hold_every_layer_once_and_differ_by_at_most_one(layers: int, ranks: int, each: int) -> None:
    schedule = "interleaved" if each > 1 else "1f1b"
    layout = Layout(pipeline_ranks=ranks, pipeline_stages_per_rank=each, pipeline_schedule=schedule)  # type: ignore[arg-type]

    stages = stages_of(layout, layers)

    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert len(stages) == ranks * each
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 6))
def test_the_distributed_optimizer_gives_each_weight_to_the_rank_with_least(sizes: list[int], ranks: int) -> None:
    load = [0] * ranks
    expected = [-1] * len(sizes)
    for size, place in sorted(((size, -place) for place, size in enumerate(sizes)), reverse=True):
        least = load.index(min(load))
        expected[-place] = least
        load[least] += size

    assert owners(sizes, ranks) == expected


def test_every_setting_of_a_layout_has_a_row_in_the_documentation() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")

    assert [field.name for field in fields(Layout) if f"`{field.name}`" not in text] == []
