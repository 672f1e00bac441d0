"""Diff of the host trees of two steps: known small ones, sums of any, and real pairs of two vendors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ascend_perf import pipeline
from ascend_perf.analyzers._flame_tree import CODE
from ascend_perf.compare.trees import NOT_ATTRIBUTED, TreeDiff, changes, diff_traces, split
from ascend_perf.model.trace import Device, Meta, Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
Call = tuple[str, tuple["Call", ...], tuple[int, ...]]
"""Name, calls below, durations of the kernels that it launches itself after those."""


def trace_of(calls: tuple[Call, ...], *, lost: tuple[int, ...] = (), vendor: str = "") -> Trace:
    """A trace in which each call lasts as long as its calls and launches."""
    ops: list[dict[str, object]] = []
    kernels: list[dict[str, object]] = []
    clock = 0

    def add(call: Call) -> None:
        nonlocal clock
        name, inner, own = call
        row = len(ops)
        ops.append({"name": name, "start_ns": clock, "thread": 1})
        clock += 1
        for one in inner:
            add(one)
        for dur in own:
            kernels.append({"name": f"{vendor}{name}_kernel", "start_ns": clock, "dur_ns": dur, "host_op": row})
            clock += 1
        ops[row]["dur_ns"] = clock + 1 - int(str(ops[row]["start_ns"]))
        clock += 2

    for one in calls:
        add(one)
    kernels += [{"name": "lost", "start_ns": clock, "dur_ns": dur} for dur in lost]
    return Trace({"host_ops": build_table("host_ops", ops), "kernels": build_table("kernels", kernels)})


def told(diff: TreeDiff) -> dict[tuple[str, ...], tuple[str, int, int, int, int]]:
    """Path -> (side, calls of A, calls of B, time of A, time of B) of the rows with time."""
    return {
        c.path: (c.side, c.calls_a, c.calls_b, c.time_a_ns, c.time_b_ns) for c in changes(diff)
    }  # fmt: skip


def leaf(name: str, *own: int) -> Call:
    return name, (), own


def test_kernels_of_two_vendors_meet_at_the_operator_that_both_have() -> None:
    a = trace_of((("aten::_convolution", (leaf("aten::cudnn_convolution", 70, 5),), (3,)),), vendor="sm90_")
    b = trace_of((("aten::_convolution", (leaf("npu::npu_conv2d", 50),), ()),), vendor="Conv2D_")
    diff = diff_traces(a, b)
    assert told(diff) == {("aten::_convolution",): ("both", 1, 1, 78, 50)}
    (change,) = changes(diff)
    assert [(k.via, k.count, k.time_ns) for k in change.kernels_a] == [("aten::cudnn_convolution", 2, 75), ("", 1, 3)]
    assert [(k.name, k.via, k.count, k.time_ns) for k in change.kernels_b] == [
        ("Conv2D_npu::npu_conv2d_kernel", "npu::npu_conv2d", 1, 50)
    ]


def test_calls_of_one_side_are_rows_of_their_own_and_what_is_lost_too() -> None:
    a = trace_of((leaf("add", 10), leaf("mul", 4), leaf("add", 10)), lost=(7,))
    b = trace_of((leaf("add", 15), leaf("add", 15), leaf("add", 15), leaf("gelu", 9)))
    diff = diff_traces(a, b)
    assert told(diff) == {
        ("add",): ("both", 2, 3, 20, 45), ("mul",): ("a", 1, 0, 4, 0), ("gelu",): ("b", 0, 1, 0, 9),
        (NOT_ATTRIBUTED,): ("a", 1, 0, 7, 0),
    }  # fmt: skip
    add = changes(diff)[0]
    # One call more at the old mean of 10; three calls each 5 longer.
    assert (add.parts.delta_ns, add.parts.count_ns, add.parts.mean_ns) == (25, 10, 15)
    assert (diff.total_a_ns, diff.total_b_ns) == (31, 54)


def test_a_step_of_several_holds_what_was_launched_in_it() -> None:
    steps = [
        {"step_id": n, "start_ns": at, "dur_ns": dur, "host_start_ns": at, "host_dur_ns": dur}
        for n, at, dur in ((1, 0, 100), (2, 100, 110), (3, 210, 120))
    ]
    ops = [{"name": f"op{n}", "start_ns": at + 90, "dur_ns": 5, "thread": 1} for n, at in ((1, 0), (2, 100), (3, 210))]
    # The kernel of step 2 begins after the step has ended on the host.
    kernels = [
        {"name": "k", "start_ns": start, "dur_ns": dur, "host_op": n}
        for n, (start, dur) in enumerate(((95, 3), (215, 8), (320, 5)))
    ]
    trace = Trace({
        "steps": build_table("steps", steps), "host_ops": build_table("host_ops", ops),
        "kernels": build_table("kernels", kernels),
    })  # fmt: skip
    diff = diff_traces(trace, trace, step_a=1, step_b=2)
    assert told(diff) == {("op2",): ("a", 1, 0, 8, 0), ("op3",): ("b", 0, 1, 0, 5)}


def test_kernels_without_calls_of_the_host_are_aligned_by_type() -> None:
    def table(*rows: tuple[str, int]) -> Trace:
        return Trace({"kernels": build_table("kernels", [
            {"name": f"k{i}", "op_type": kind, "start_ns": 100 * i, "dur_ns": dur, "core": "AIC"}
            for i, (kind, dur) in enumerate(rows)
        ])})  # fmt: skip

    a = table(("MatMulV3", 10), ("Cast", 3), ("MatMulV3", 10))
    b = table(("MatMulV3", 14), ("MatMulV3", 14), ("Add", 2))
    assert told(diff_traces(a, b)) == {
        ("MatMulV3",): ("both", 2, 2, 20, 28), ("Cast",): ("a", 1, 0, 3, 0), ("Add",): ("b", 0, 1, 0, 2),
    }  # fmt: skip


def test_a_model_on_the_cpu_is_compared_by_the_own_time_of_its_calls() -> None:
    def step(matmuls: int, sleep: int) -> Trace:
        # data (sleep) | forward: 5 before, `matmuls` products of 40 with 2 between them, in forward 3 after
        ops = [{"name": "aten::mm", "start_ns": sleep + 5 + 42 * i, "dur_ns": 40, "thread": 1} for i in range(matmuls)]
        end = sleep + 5 + 42 * matmuls + 3
        events = [
            {"name": "data::batch", "kind": "user", "start_ns": 0, "dur_ns": sleep, "thread": 1},
            {"name": "forward", "kind": "user", "start_ns": sleep, "dur_ns": end - sleep, "thread": 1},
        ]
        steps = [{"step_id": 1, "start_ns": 0, "dur_ns": end, "host_start_ns": 0, "host_dur_ns": end}]
        return Trace({
            "host_ops": build_table("host_ops", ops), "host_events": build_table("host_events", events),
            "steps": build_table("steps", steps),
        }, Meta(device=Device(kind="cpu")))  # fmt: skip

    # An extra product and a slow data path: both are the rows that explain it.
    diff = diff_traces(step(2, 10), step(3, 70))
    assert told(diff) == {
        ("data::batch",): ("both", 1, 1, 10, 70), ("forward", "aten::mm"): ("both", 2, 3, 80, 120),
        ("forward",): ("both", 1, 1, 5 + 2 * 2 + 3, 5 + 3 * 2 + 3),
    }  # fmt: skip
    top = [(change.path[-1], change.parts.count_ns, change.parts.mean_ns) for change in changes(diff, 2)]
    assert top == [("data::batch", 0, 60), ("aten::mm", 40, 0)]


def calls() -> st.SearchStrategy[tuple[Call, ...]]:
    names = st.sampled_from(["linear", "addmm", "copy_", "cudnn", "npu"])
    own = st.lists(st.integers(1, 1000), max_size=2).map(tuple)
    one = st.recursive(
        st.tuples(names, st.just(()), own),
        lambda inner: st.tuples(names, st.lists(inner, max_size=3).map(tuple), own),
        max_leaves=8,
    )
    return st.lists(one, max_size=4).map(tuple)


def total(calls: tuple[Call, ...]) -> int:
    return sum(sum(own) + total(inner) for _, inner, own in calls)


lost_tasks = st.lists(st.integers(1, 50), max_size=2).map(tuple)


@given(calls(), calls(), lost_tasks, lost_tasks)
@settings(max_examples=80, deadline=None)
def test_the_rows_of_a_side_add_up_to_the_time_of_its_tasks(
    a: tuple[Call, ...], b: tuple[Call, ...], lost_a: tuple[int, ...], lost_b: tuple[int, ...]
) -> None:
    diff = diff_traces(trace_of(a, lost=lost_a), trace_of(b, lost=lost_b))
    assert diff.total_a_ns == total(a) + sum(lost_a)
    assert diff.total_b_ns == total(b) + sum(lost_b)
    rows = changes(diff)
    assert sum(row.time_a_ns for row in rows) == diff.total_a_ns
    assert sum(row.time_b_ns for row in rows) == diff.total_b_ns
    assert all(row.parts.count_ns + row.parts.mean_ns == row.time_b_ns - row.time_a_ns for row in rows)
    # Where one side has no calls that led to kernels, the kernels themselves are aligned: nothing is left over.
    assert int(diff.rows.self_a_ns[1]) == (sum(lost_a) if diff.kinds else 0)
    # Totals with what is below: the step and what is not attributed hold everything.
    assert int(diff.rows.total_a_ns[:2].sum()) == diff.total_a_ns
    assert all(row.time_a_ns == 0 for row in rows if row.side == "b")
    assert all(row.time_b_ns == 0 for row in rows if row.side == "a")


@given(calls(), calls())
@settings(max_examples=80, deadline=None)
def test_the_mirror_image(a: tuple[Call, ...], b: tuple[Call, ...]) -> None:
    one, other = trace_of(a), trace_of(b)
    there, back = told(diff_traces(one, other)), told(diff_traces(other, one))
    turned = {"a": "b", "b": "a", "both": "both"}
    assert there == {path: (turned[s], nb, na, tb, ta) for path, (s, na, nb, ta, tb) in back.items()}


@given(calls(), lost_tasks)
@settings(max_examples=100, deadline=None)
def test_a_step_has_no_difference_to_itself(a: tuple[Call, ...], lost: tuple[int, ...]) -> None:
    trace = trace_of(a, lost=lost)
    rows = changes(diff_traces(trace, trace))
    assert all(row.side == "both" and row.time_a_ns == row.time_b_ns for row in rows)
    assert all(row.parts.count_ns == row.parts.mean_ns == 0 for row in rows)


@given(st.integers(0, 50), st.integers(0, 10**15), st.integers(0, 50), st.integers(0, 10**15))
def test_a_split_adds_up_and_is_the_formula(calls_a: int, time_a: int, calls_b: int, time_b: int) -> None:
    parts = split(calls_a, time_a, calls_b, time_b)
    assert parts.count_ns + parts.mean_ns == parts.delta_ns == time_b - time_a
    if calls_a:
        exact = Fraction(calls_b - calls_a) * Fraction(time_a, calls_a)
        assert abs(parts.count_ns - exact) <= Fraction(1, 2)
    if calls_a and calls_b:
        mean = (Fraction(time_b, calls_b) - Fraction(time_a, calls_a)) * calls_b
        assert abs(parts.mean_ns - mean) <= Fraction(1, 2)


PAIRS = {
    # Sum of the kernels of both files in ns, and their copies: README of the traces, section 3.
    "Falconsai_nsfw_image_detection__1016002": (1220926, 1716301),
    "Qwen_Qwen1.5-0.5B-Chat__1016005": (45432698, 43062042),
    "facebook_timesformer-base-finetuned-k400__1016002": (154855595, 118758892),
    "gaunernst_bert-small-uncased__1016001": (307197, 388344),
}


@pytest.fixture(scope="module", params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest, traces: Path) -> tuple[TreeDiff, tuple[int, int]]:
    """H100 against MI300X."""
    sides = [
        pipeline.load(traces / "kineto" / chip / f"{request.param}.json.gz").traces[0] for chip in ("h100", "mi300")
    ]
    return diff_traces(*sides), PAIRS[request.param]


def test_totals_of_real_pairs_add_up_to_the_reference(pair: tuple[TreeDiff, tuple[int, int]]) -> None:
    diff, reference = pair
    for tree, row, self_ns, kernels_ns in (
        (diff.a, diff.row_a, diff.rows.self_a_ns, reference[0]),
        (diff.b, diff.row_b, diff.rows.self_b_ns, reference[1]),
    ):
        kernel: Counter[int] = Counter()
        for kind, dur in zip(tree.tasks.kind.tolist(), tree.tasks.dur_ns.tolist(), strict=True):
            kernel[kind] += dur
        assert kernel[CODE["kernel"]] == kernels_ns
        assert int(self_ns.sum()) == tree.total_ns == sum(kernel.values())
        assert len(row) == len(tree.tasks.dur_ns)


def test_every_operator_that_both_vendors_have_is_aligned(pair: tuple[TreeDiff, tuple[int, int]]) -> None:
    diff, _ = pair
    count_a, count_b = Counter(diff.a.label.to_list()), Counter(diff.b.label.to_list())
    paired = Counter(diff.a.label.take(diff.alignment.a).to_list())
    assert paired == Counter(diff.b.label.take(diff.alignment.b).to_list())
    # Every call of an operator or a module that both sides made: as many as the side with fewer made.
    assert {name: paired[name] for name in count_a & count_b} == dict(count_a & count_b)
    assert sum(row.side != "both" for row in changes(diff)) <= 1
