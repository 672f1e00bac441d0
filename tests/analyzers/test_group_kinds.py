"""What groups are for: every group of every layout of Megatron from 8 to 64 ranks, and what cannot be told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from ascend_perf.analyzers._group_kinds import GroupKind, group_kinds, kind_of_members
from ascend_perf.analyzers.communication import communication
from ascend_perf.model.trace import Device, Group, Meta, Trace

MakeTrace = Callable[..., Trace]
Layout = tuple[int, int, int, int, int]
"""Ranks of tp, cp, ep, dp, pp."""


def layouts() -> Iterator[Layout]:
    """Every way to share out 8, 16, 32 or 64 ranks; experts over the context and data parallel ranks."""
    powers = (1, 2, 4, 8, 16)
    for tp, cp, dp, pp in itertools.product(powers, repeat=4):
        if tp * cp * dp * pp in (8, 16, 32, 64):
            for ep in powers:
                if (cp * dp) % ep == 0:
                    yield tp, cp, ep, dp, pp


def rank_of(layout: Layout, t: int, c: int, d: int, p: int) -> int:
    tp, cp, _, dp, _ = layout
    return t + tp * (c + cp * (d + dp * p))


def groups_of(layout: Layout) -> dict[str, set[tuple[int, ...]]]:
    """The groups of each kind by walking the coordinates, as Megatron's rank generator does."""
    tp, cp, ep, dp, pp = layout
    found: dict[str, set[tuple[int, ...]]] = {kind: set() for kind in ("tp", "cp", "dp", "dp_cp", "pp", "ep", "edp")}
    for t, c, d, p in itertools.product(range(tp), range(cp), range(dp), range(pp)):
        found["tp"].add(tuple(rank_of(layout, x, c, d, p) for x in range(tp)))
        found["cp"].add(tuple(rank_of(layout, t, x, d, p) for x in range(cp)))
        found["dp"].add(tuple(rank_of(layout, t, c, x, p) for x in range(dp)))
        found["pp"].add(tuple(rank_of(layout, t, c, d, x) for x in range(pp)))
    for t, p in itertools.product(range(tp), range(pp)):
        both = [rank_of(layout, t, n % cp, n // cp, p) for n in range(cp * dp)]
        found["dp_cp"].add(tuple(both))
        for block in range(0, cp * dp, ep):
            found["ep"].add(tuple(both[block : block + ep]))
        for first in range(ep):
            found["edp"].add(tuple(both[first::ep]))
    return {kind: {ranks for ranks in groups if len(ranks) > 1} for kind, groups in found.items()}


@pytest.mark.parametrize("layout", list(layouts()))
def test_every_group_of_a_layout_is_told(layout: Layout) -> None:
    tp, cp, ep, dp, pp = layout
    world = tp * cp * dp * pp
    sizes: dict[GroupKind, int | None] = {"tp": tp, "cp": cp, "ep": ep, "dp": dp, "pp": pp}
    groups = groups_of(layout)
    for kind, members in groups.items():
        for ranks in members:
            got = kind_of_members(ranks, world, sizes, has_exchange=kind == "ep")
            wanted = {"dp_cp": "dp", "edp": "dp"}.get(kind, kind)
            if kind in ("dp_cp", "edp") and ranks in groups["cp"]:
                wanted = "cp"  # one data parallel rank: both kinds are the same ranks
            assert got == wanted, (kind, ranks)


@pytest.mark.parametrize("ranks", [(0, 3), (1, 2), (0, 1, 4, 5), (0,), (0, 1, 3)])
def test_ranks_of_no_kind_stay_unknown(ranks: tuple[int, ...]) -> None:
    # tp 2, dp 2, pp 2 of 8: tensor (0, 1), data (0, 2), stages (0, 4); (1, 2) reaches over a border.
    sizes: dict[GroupKind, int | None] = {"tp": 2, "cp": None, "ep": None, "dp": 2, "pp": 2}
    assert kind_of_members(ranks, 8, sizes) is None


def test_sizes_that_do_not_divide_the_job_tell_nothing() -> None:
    assert kind_of_members((0, 1), 10, {"tp": 4}) is None


def trace(make_trace: MakeTrace, ops: dict[str, str], parallel: dict[str, int]) -> Trace:
    return make_trace(
        meta=Meta(
            rank=0, world_size=8, device=Device(kind="npu"), parallel=parallel,
            groups=(Group(name="x", ranks=(0, 2, 4, 6)), Group(name="t", label="tp", ranks=(0, 1))),
        ),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        kernels=[{"start_ns": 0, "dur_ns": 10, "name": "k"}],
        comm_ops=[
            {"start_ns": 100 * n, "dur_ns": 50, "name": g, "op": op, "group": g}
            for n, (g, op) in enumerate(ops.items())
        ],
    )  # fmt: skip


@pytest.mark.parametrize(("op", "kind"), [("alltoallv", "ep"), ("reduceScatter", "dp")])
def test_all_to_all_tells_experts_from_data_where_both_are_the_same_ranks(
    op: str, kind: str, make_trace: MakeTrace
) -> None:
    made = trace(make_trace, {"x": op, "t": "allReduce"}, {"expert_model_parallel_size": 4})
    assert group_kinds(made) == {"x": (kind, True), "t": ("tp", False)}
    groups = next(t for t in communication.run_on_trace(made).tables if t.name == "comm-groups")
    assert dict(zip(groups.column("parallel"), groups.column("parallel_from"), strict=True)) == {
        kind: "inferred", "tp": "named",
    }  # fmt: skip


def test_without_sizes_only_explicit_sends_and_receives_tell(make_trace: MakeTrace) -> None:
    assert group_kinds(trace(make_trace, {"x": "send"}, {})) == {"x": ("pp", True)}
    assert group_kinds(trace(make_trace, {"x": "allReduce"}, {})) == {}
