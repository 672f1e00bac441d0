"""Flame graphs: known trees of small traces, and sums that must hold for any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ascend_perf import intervals, pipeline
from ascend_perf.analyzers import _host_nest
from ascend_perf.analyzers._flame_tree import CLASSES, CODE, Rows, Tree, depths, pruned, tree_of
from ascend_perf.analyzers._host_nest import host_nest
from ascend_perf.analyzers.flame import flame, views
from ascend_perf.model.table import Text
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
Node = tuple[int, int, int]
"""Self and total time in ns, and count."""


def call(name: str, start: int, end: int, thread: int = 1, **more: object) -> dict[str, object]:
    return {"name": name, "start_ns": start, "dur_ns": end - start, "thread": thread, **more}


def api(name: str, start: int, end: int, thread: int = 1, **more: object) -> dict[str, object]:
    return {"api": name, "start_ns": start, "dur_ns": end - start, "thread": thread, **more}


def event(kind: str, name: str, start: int, end: int, thread: int = 1, **more: object) -> dict[str, object]:
    return {"kind": kind, "name": name, "start_ns": start, "dur_ns": end - start, "thread": thread, **more}


def task(name: str, start: int, dur: int, **more: object) -> dict[str, object]:
    return {"name": name, "start_ns": start, "dur_ns": dur, **more}


def nodes(tree: Tree) -> dict[str, Node]:
    """Nodes by their path, frames joined by " > "."""
    paths: list[str] = []
    for row, parent in enumerate(tree.parent.tolist()):
        name = tree.name[row] or ""
        paths.append(name if parent < 0 else f"{paths[parent]} > {name}")
    figures = zip(tree.self_ns.tolist(), tree.total_ns.tolist(), tree.count.tolist(), strict=True)
    made = dict(zip(paths, figures, strict=True))
    assert len(made) == len(tree)
    return made


def of(trace: Trace) -> dict[str, dict[str, Node]]:
    return {view.name: nodes(view.tree) for view in views(trace)}


ONE_STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]


def test_the_host_tree_has_the_time_of_each_call_without_its_callees(make_trace: Make) -> None:
    trace = make_trace(
        steps=ONE_STEP,
        python_calls=[call("train.py(1): main", 0, 100), call("nn.Module: Linear_0", 10, 90)],
        host_ops=[call("aten::linear", 20, 60), call("aten::linear", 70, 80), call("aten::add", 200, 230)],
        runtime_calls=[api("cudaLaunchKernel", 30, 40), api("cudaFree", 300, 310, thread=2)],
    )

    assert of(trace)["host"] == {
        "thread 1": (0, 130, 1),  # main and aten::add; what lies between was not recorded
        "thread 1 > train.py(1): main": (20, 100, 1),
        "thread 1 > train.py(1): main > Linear_0": (30, 80, 1),  # 80 - 40 - 10
        "thread 1 > train.py(1): main > Linear_0 > aten::linear": (40, 50, 2),  # 30 and 10 of its own
        "thread 1 > train.py(1): main > Linear_0 > aten::linear > cudaLaunchKernel": (10, 10, 1),
        "thread 1 > aten::add": (30, 30, 1),
        "thread 2": (0, 10, 1),
        "thread 2 > cudaFree": (10, 10, 1),
    }


def test_host_time_counts_inside_of_the_hosts_own_steps_only(make_trace: Make) -> None:
    trace = make_trace(
        steps=[
            {"step_id": 1, "start_ns": 900, "dur_ns": 50, "host_start_ns": 100, "host_dur_ns": 100},
            {"step_id": 2, "start_ns": 960, "dur_ns": 50, "host_start_ns": 300, "host_dur_ns": 50},
        ],
        host_events=[event("step", "ProfilerStep#1", 100, 200), event("user", "train", 0, 1000)],
        host_ops=[call("aten::mm", 150, 310), call("aten::relu", 210, 290), call("aten::add", 50, 60)],
    )

    assert of(trace)["host"] == {
        "thread 1": (0, 150, 1),
        "thread 1 > train": (90, 150, 1),
        "thread 1 > train > aten::mm": (60, 60, 1),  # 150..200 and 300..310; aten::relu lies between the steps
    }


def test_a_range_that_begins_in_a_short_call_belongs_to_what_goes_on_after_it(make_trace: Make) -> None:
    # record_function: the range begins inside of __enter__ and ends inside of __exit__.
    trace = make_trace(
        steps=ONE_STEP,
        python_calls=[
            call("main", 0, 500), call("__enter__", 100, 110), call("forward", 120, 380), call("__exit__", 390, 400),
        ],
        host_events=[event("user", "## forward ##", 105, 395)],
    )  # fmt: skip

    assert of(trace)["host"] == {
        "thread 1": (0, 500, 1),
        "thread 1 > main": (205, 500, 1),  # 500 - 10 - 280 - 5
        "thread 1 > main > __enter__": (10, 10, 1),
        "thread 1 > main > ## forward ##": (20, 285, 1),  # 110..395, without forward and __exit__
        "thread 1 > main > ## forward ## > forward": (260, 260, 1),
        "thread 1 > main > ## forward ## > __exit__": (5, 5, 1),  # the rest of it is within 1 us: it counts with main
    }


def test_calls_without_a_time_or_a_thread_and_marks_of_steps_are_in_no_frame(make_trace: Make) -> None:
    trace = make_trace(
        steps=ONE_STEP,
        host_ops=[
            call("good", 0, 10), {"name": "no thread", "start_ns": 0, "dur_ns": 900},
            {"name": "no time", "thread": 1}, {"name": "backwards", "thread": 1, "start_ns": 50, "dur_ns": -3},
        ],
        host_events=[event("step", "ProfilerStep#1", 0, 1000), event("python", "kept once only", 0, 900)],
        python_calls=[call("f", 0, 20)],
    )  # fmt: skip

    assert of(trace)["host"] == {
        "thread 1": (0, 20, 1), "thread 1 > f": (10, 20, 1), "thread 1 > f > good": (10, 10, 1),
    }  # fmt: skip


def test_device_time_lies_under_the_module_the_stack_and_the_operators_that_launched_it(make_trace: Make) -> None:
    trace = make_trace(
        steps=ONE_STEP,
        python_calls=[
            call("main", 0, 500), call("nn.Module: Net_0", 10, 300), call("net.py(5): forward", 20, 290),
            call("nn.Module: Linear_0", 30, 100),
        ],
        host_ops=[
            call("aten::linear", 40, 90), call("aten::addmm", 50, 80), call("aten::relu", 200, 250),
            call("aten::item", 400, 450),
        ],
        runtime_calls=[
            api("cudaMemcpyAsync", 410, 420, correlation=9), api("cudaLaunchKernel", 700, 710, correlation=8),
        ],
        kernels=[
            task("gemm", 100, 70, host_op=1), task("relu", 250, 5, host_op=2), task("relu", 260, 6, host_op=2),
            task("lost", 800, 11), task("bare", 720, 3, correlation=8), task("later", 5000, 99, host_op=1),
        ],
        comm_ops=[{**task("hcom_allReduce__586_0_1", 500, 40, host_op=0), "op": "allReduce"}],
        copies=[{"start_ns": 420, "dur_ns": 30, "kind": "D2H", "correlation": 9}],
    )  # fmt: skip

    made = of(trace)

    whole = "(0, 165, 7): 70 + 5 + 6 + 11 + 3 + 40 + 30; `later` is in no step"
    assert made["device-module"] == {
        "Net_0": (0, 121, 4),
        "Net_0 > Linear_0": (0, 110, 2),
        "Net_0 > Linear_0 > aten::linear": (0, 110, 2),  # the outermost operator, not aten::addmm
        "Net_0 > Linear_0 > aten::linear > gemm": (70, 70, 1),
        "Net_0 > Linear_0 > aten::linear > hcom_allReduce": (40, 40, 1),
        "Net_0 > aten::relu": (0, 11, 2),
        "Net_0 > aten::relu > relu": (11, 11, 2),
        "aten::item": (0, 30, 1),
        "aten::item > copy D2H": (30, 30, 1),
        "not attributed": (0, 14, 2),
        "not attributed > lost": (11, 11, 1),
        "not attributed > bare": (3, 3, 1),
    }, whole
    stack = "main > Net_0 > net.py(5): forward"
    assert made["device-stack"] == {
        "main": (0, 151, 5),
        "main > Net_0": (0, 121, 4),
        stack: (0, 121, 4),
        f"{stack} > Linear_0": (0, 110, 2),
        f"{stack} > Linear_0 > aten::linear": (0, 110, 2),
        f"{stack} > Linear_0 > aten::linear > gemm": (70, 70, 1),
        f"{stack} > Linear_0 > aten::linear > hcom_allReduce": (40, 40, 1),
        f"{stack} > aten::relu": (0, 11, 2),
        f"{stack} > aten::relu > relu": (11, 11, 2),
        "main > aten::item": (0, 30, 1),
        "main > aten::item > copy D2H": (30, 30, 1),
        "not attributed": (0, 14, 2),
        "not attributed > lost": (11, 11, 1),
        "not attributed > bare": (3, 3, 1),
    }
    assert made["device-op"] == {
        "aten::linear": (0, 110, 2),
        "aten::linear > aten::addmm": (0, 70, 1),
        "aten::linear > aten::addmm > gemm": (70, 70, 1),
        "aten::linear > hcom_allReduce": (40, 40, 1),
        "aten::relu": (0, 11, 2),
        "aten::relu > relu": (11, 11, 2),
        "aten::item": (0, 30, 1),
        "aten::item > copy D2H": (30, 30, 1),
        "not attributed": (0, 14, 2),
        "not attributed > lost": (11, 11, 1),
        "not attributed > bare": (3, 3, 1),
    }


def test_what_the_task_queue_launches_belongs_to_the_operator_that_put_it_there(make_trace: Make) -> None:
    trace = make_trace(
        steps=ONE_STEP,
        host_ops=[call("aten::copy_", 0, 50), call("aten::other", 100, 150)],
        host_events=[
            event("enqueue", "Enqueue@copy", 10, 20, correlation=5),
            event("enqueue", "Enqueue@other", 110, 120, correlation=6),
            event("dequeue", "Dequeue@copy", 100, 200, thread=2, correlation=5),
        ],
        runtime_calls=[api("aclrtMemcpyAsync", 120, 130, thread=2, correlation=77)],
        copies=[{"start_ns": 300, "dur_ns": 40, "kind": "H2D", "correlation": 77}],
    )

    assert of(trace)["device-op"] == {"aten::copy_": (0, 40, 1), "aten::copy_ > copy H2D": (40, 40, 1)}


def test_the_backward_pass_lies_with_the_module_of_the_operator_of_its_sequence_number(make_trace: Make) -> None:
    trace = make_trace(
        steps=ONE_STEP,
        python_calls=[call("nn.Module: A_0", 0, 50), call("nn.Module: B_0", 50, 100)],
        host_ops=[
            call("aten::view", 40, 45, sequence_number=8),  # records nothing: the number goes to the next one
            call("aten::linear", 60, 90, sequence_number=8),
            call("autograd::engine::evaluate_function: AddmmBackward0", 200, 300, thread=2),
            call("AddmmBackward0", 210, 290, thread=2, sequence_number=8),
            call("aten::mm", 220, 280, thread=2, sequence_number=0),
            call("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 300, 320, thread=2),
            call("MulBackward0", 400, 410, thread=2, sequence_number=99),  # its forward was not recorded
        ],
        kernels=[
            task("forward", 100, 10, host_op=1), task("grad", 310, 25, host_op=4), task("add", 330, 3, host_op=5),
            task("mul", 420, 4, host_op=6),
        ],
    )  # fmt: skip

    node = "autograd::engine::evaluate_function: AddmmBackward0"
    assert of(trace)["device-module"] == {
        "B_0": (0, 35, 2),
        "B_0 > aten::linear": (0, 10, 1),
        "B_0 > aten::linear > forward": (10, 10, 1),
        "B_0 > (backward)": (0, 25, 1),
        f"B_0 > (backward) > {node}": (0, 25, 1),
        f"B_0 > (backward) > {node} > grad": (25, 25, 1),
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad": (0, 3, 1),
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad > add": (3, 3, 1),
        "MulBackward0": (0, 4, 1),
        "MulBackward0 > mul": (4, 4, 1),
    }


def test_stacks_of_operators_serve_where_calls_of_python_were_not_recorded(make_trace: Make) -> None:
    stack = "net.py(9): forward\ntrain.py(2): main"  # innermost first
    trace = make_trace(
        steps=ONE_STEP,
        host_ops=[
            call("aten::linear", 0, 50, sequence_number=3, stack=stack),
            call("aten::addmm", 10, 40, sequence_number=3),
            call("AddmmBackward0", 100, 150, thread=2, sequence_number=3),
            call("aten::zero_", 200, 210),
        ],
        kernels=[
            task("gemm", 60, 7, host_op=1), task("grad", 160, 9, host_op=2), task("fill", 220, 1, host_op=3),
        ],
    )  # fmt: skip

    made = of(trace)

    at = "train.py(2): main > net.py(9): forward"
    assert made["device-stack"] == {
        "train.py(2): main": (0, 16, 2),
        at: (0, 16, 2),
        f"{at} > aten::linear": (0, 7, 1),
        f"{at} > aten::linear > gemm": (7, 7, 1),
        f"{at} > (backward)": (0, 9, 1),
        f"{at} > (backward) > AddmmBackward0": (0, 9, 1),
        f"{at} > (backward) > AddmmBackward0 > grad": (9, 9, 1),
        "aten::zero_": (0, 1, 1),
        "aten::zero_ > fill": (1, 1, 1),
    }
    assert "device-module" not in made


def test_views_without_data_are_left_out(make_trace: Make) -> None:
    only_device = make_trace(steps=ONE_STEP, kernels=[task("k", 0, 5)])

    assert of(only_device) == {}
    assert flame.run_on_trace(only_device).status == "no_data"


def chain(parents: Sequence[int], names: Sequence[str], own: Sequence[int], kind: str = "op") -> Tree:
    kinds = np.full(len(parents), CODE[kind], np.int64)
    rows = Rows(parent=np.array(parents, np.int64), name=Text.of(list(names)), kind=kinds)
    return tree_of(rows, np.array(own, np.int64), np.ones(len(parents), np.int64))


def test_small_nodes_are_taken_together_and_a_lonely_one_keeps_its_name() -> None:
    tree = chain([-1, 0, 0, 0, 0, 1], ["a", "b", "c", "d", "e", "f"], [0, 900, 2, 3, 95, 1])

    cut, count, share = pruned(tree, share_ratio=0.01)

    assert nodes(cut) == {
        "a": (0, 1001, 1), "a > b": (900, 901, 1), "a > b > f": (1, 1, 1), "a > e": (95, 95, 1),
        "a > (2 smaller)": (5, 5, 2),
    }  # fmt: skip
    assert CLASSES[int(cut.kind[list(nodes(cut)).index("a > (2 smaller)")])] == "rest"
    assert count == 2
    assert share == pytest.approx(0.01, abs=1e-4)


def test_the_share_rises_until_the_nodes_fit() -> None:
    tree = chain([-1] * 100, [f"k{i}" for i in range(100)], range(1, 101))

    cut, count, share = pruned(tree, share_ratio=0, most=20)

    # At first 20 nodes and the rest; then those above the 18th (20 * 7 // 8 = 17, counted from 0).
    assert sorted(cut.self_ns[cut.kind == CODE["op"]].tolist()) == list(range(83, 101))
    assert cut.self_ns[cut.kind == CODE["rest"]].tolist() == [82 * 83 // 2]
    assert count == 82
    assert share == pytest.approx(83 / 5050)
    assert len(cut) == 19


def test_nodes_of_one_size_that_do_not_fit_are_all_taken_together() -> None:
    cut, count, _ = pruned(chain([-1] * 30, [f"k{i}" for i in range(30)], [7] * 30), most=10)

    assert nodes(cut) == {"(30 smaller)": (210, 210, 30)}
    assert count == 30


def test_rows_deeper_than_the_limit_count_with_their_ancestor() -> None:
    depth = 300
    tree = chain(range(-1, depth - 1), ["f"] * depth, [1] * depth)

    assert len(tree) == 128
    assert int(tree.self_ns[depths(tree.parent) == 127][0]) == depth - 127
    assert tree.whole_ns == depth


def _brute(calls: Sequence[tuple[int, int, str]]) -> Counter[str]:
    """Self time by path, nanosecond by nanosecond, for calls that nest."""
    order = sorted(calls, key=lambda c: (c[0], -c[1]))
    counted: Counter[str] = Counter()
    for at in range(max((end for _, end, _ in calls), default=0)):
        inside = [name for start, end, name in order if start <= at < end]
        if inside:
            counted[" > ".join(inside)] += 1
    return counted


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int, str]]:
    """Calls of one thread that nest and start at different times, so that who encloses whom is not in doubt."""
    made: list[tuple[int, int, str]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while depth and high - at >= 3 and len(made) < 25 and draw(st.booleans()):
            start = draw(st.integers(at, high - 2))
            end = draw(st.integers(start + 1, high))
            made.append((start, end, draw(st.sampled_from("abc"))))
            fill(start + 1, end - 1, depth - 1)
            at = end

    fill(0, 60, 4)
    return made


@settings(max_examples=150, deadline=None)
@given(calls=nested())
def test_self_times_are_those_of_a_count_by_nanosecond(calls: list[tuple[int, int, str]]) -> None:
    trace = Trace({"host_ops": build_table("host_ops", [call(name, s, e) for s, e, name in calls])})
    made = of(trace).get("host", {})

    own = {path.removeprefix("thread 1 > "): ns for path, (ns, _, _) in made.items() if ns}
    assert own == _brute(calls)
    for path, (ns, total, _) in made.items():
        children = [t for p, (_, t, _) in made.items() if p.rpartition(" > ")[0] == path]
        assert total == ns + sum(children)


anything = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3000), st.sampled_from("ab")), max_size=25)


@settings(max_examples=300, deadline=None)
@given(first=anything, second=anything)
def test_time_of_a_thread_is_the_union_of_its_calls_however_they_cross(
    first: list[tuple[int, int, str]], second: list[tuple[int, int, str]]
) -> None:
    rows = [call(n, s, s + d, thread=1) for s, d, n in first] + [call(n, s, s + d, thread=2) for s, d, n in second]
    trace = Trace({"host_ops": build_table("host_ops", rows)})
    nest = host_nest(trace)
    made = of(trace).get("host", {})

    for thread, calls in ((1, first), (2, second)):
        starts, lengths = (np.array([c[i] for c in calls], np.int64) for i in (0, 1))
        union = intervals.total(intervals.from_durations(starts, lengths))
        assert made.get(f"thread {thread}", (0, 0, 0))[1] == union
    assert nest.cut_ns == 0  # 25 calls do not cross 50 times over
    inner = nest.parent >= 0
    up = nest.parent[inner]
    assert (nest.starts[inner] >= nest.starts[up]).all()
    assert (nest.ends[inner] <= nest.ends[up]).all()
    assert all(ns >= 0 for ns, _, _ in made.values())
    # Rows and `last` say the same as parents do.
    rows_ = np.arange(len(nest))
    assert (nest.within(rows_) == nest.parent).all()


def test_calls_that_cross_again_and_again_are_cut_and_the_loss_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_nest, "MAX_ROUNDS", 0)
    trace = Trace({"host_ops": build_table("host_ops", [call("a", 0, 100), call("b", 40, 130), call("c", 50, 60)])})

    view = next(views(trace))

    assert nodes(view.tree) == {
        "thread 1": (0, 100, 1), "thread 1 > a": (40, 100, 1), "thread 1 > a > b": (50, 60, 1),
        "thread 1 > a > b > c": (10, 10, 1),
    }  # fmt: skip
    assert view.cut_ns == 30
    (table,) = flame.run_on_trace(trace).tables
    assert table.note is not None
    assert "30 ns of calls that cross" in table.note.en


times = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300), st.integers(-1, 6)), max_size=20)


@settings(max_examples=100, deadline=None)
@given(kernels=times, ops=st.lists(st.tuples(st.integers(0, 800), st.integers(0, 400), st.integers(1, 2)), max_size=7))
def test_device_time_is_the_sum_of_the_durations(
    kernels: list[tuple[int, int, int]], ops: list[tuple[int, int, int]]
) -> None:
    rows = [task(f"k{i % 3}", s, d, **({} if op < 0 else {"host_op": op})) for i, (s, d, op) in enumerate(kernels)]
    tables = {
        "steps": build_table("steps", [{"step_id": 1, "start_ns": 0, "dur_ns": 2000}]),
        "kernels": build_table("kernels", rows),
        "host_ops": build_table("host_ops", [call("op", s, s + d, thread=t) for s, d, t in ops]),
    }
    for view in views(Trace({name: table for name, table in tables.items() if len(table)})):
        if view.name != "host":
            assert view.tree.whole_ns == sum(d for _, d, _ in kernels)
            assert int(view.tree.count[view.tree.parent < 0].sum()) == sum(d > 0 for _, d, _ in kernels)


@pytest.mark.parametrize(
    "name",
    ["ascend-pytorch/text/level1/rank0_ascend_pt", "ascend-pytorch/db/level1/rank0_ascend_pt",
     "kineto/h100/gaunernst_bert-small-uncased__1016001.json.gz", "kineto/v100/ns_resolution_rank0.json.gz",
     "kineto/v100/resnet50_num_workers_0.json.gz"],
)  # fmt: skip
def test_sums_hold_on_real_profiles(traces: Path, name: str) -> None:
    from ascend_perf.analyzers import _steps

    trace = pipeline.load(traces / name).traces[0]
    windows = _steps.step_windows(trace)
    expected = 0
    for spec in (KERNELS, COMM_OPS, COPIES):
        table = trace[spec]
        expected += int(table.ints("dur_ns")[_steps.membership(trace, table, windows) >= 0].sum())

    made = {view.name: view.tree for view in views(trace)}
    nest = host_nest(trace)

    assert {"host", "device-op"} <= set(made)
    for view, tree in made.items():
        small, _, _ = pruned(tree)
        assert small.whole_ns == tree.whole_ns
        assert len(small) <= 5000
        if view != "host":
            assert tree.whole_ns == expected
    roots = made["host"].parent < 0
    whole = {
        f"thread {thread}": intervals.total(
            intervals.intersection(
                intervals.merged(nest.starts[nest.thread == thread], nest.ends[nest.thread == thread]),
                _host_windows(trace),
            )
        )
        for thread in np.unique(nest.thread).tolist()
    }
    host = dict(zip(made["host"].name.take(roots).to_list(), made["host"].total_ns[roots].tolist(), strict=True))
    assert host == {name: ns for name, ns in whole.items() if ns}


def _host_windows(trace: Trace) -> intervals.IntervalSet:
    from ascend_perf.model.table import NULL
    from ascend_perf.model.tables import STEPS

    steps = trace[STEPS]
    start, dur = ("host_start_ns", "host_dur_ns") if (steps.ints("host_start_ns") != NULL).all() else (
        "start_ns", "dur_ns")  # fmt: skip
    return intervals.from_durations(steps.ints(start), steps.ints(dur))


def test_all_of_the_alexnet_step_is_attributed_and_its_backward_lies_with_its_layers(traces: Path) -> None:
    trace = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces[0]

    made = of(trace)

    assert "not attributed" not in made["device-module"]
    net = "DistributedDataParallel_0 > DistributedDataParallel.forward > AlexNet_0"
    conv = made["device-module"][f"{net} > Sequential_0 > Conv2d_0 > (backward)"]
    # ConvolutionBackward0 of the first layer: the gradient of its weight, casts and format conversions; no input's.
    assert conv[2] == 9
    kernels = {path.rpartition(" > ")[2] for path in made["device-module"] if "Conv2d_0 > (backward)" in path}
    assert any(name.startswith("Conv2DBackpropFilter") for name in kernels)
    assert not any(name.startswith("Conv2DBackpropInput") for name in kernels)
