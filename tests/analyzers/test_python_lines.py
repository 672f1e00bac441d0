"""Lines of Python, operators and modules around instants; time of calls without what they call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import intervals, pipeline
from ascend_perf.analyzers._python_lines import around, is_user_frame, longest_within, short_frame, user_line
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import HOST_OPS
from ascend_perf.model.trace import Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
STACK = (
    "torch/_ops.py(692): __call__\ntorch/nn/modules/linear.py(114): forward\nproject/model.py(40): forward\n"
    "main.py(9): run"
)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("imagenet_script/main.py(345): train", True),
        ("main.py(282): main_worker", True),
        ("transformers/models/owlv2/modeling_owlv2.py(410): forward", True),
        ("torchvision/transforms/functional.py(350): normalize", True),
        ("torch/nn/modules/module.py(1501): _call_impl", False),
        ("torch_npu/utils/_module.py(20): wrapper", False),
        ("multiprocessing/process.py(108): run", False),
        ("threading.py(892): run", False),
        ("patches/npu_patches.py(58): _npu_internal_format_repr", False),  # of torch_npu, in its call stacks
        ("profiler/_add_mstx_patch.py(28): wrapper", False),
        ("npu/mstx.py(101): range_start", False),
        ("utils/storage.py(47): _cpu", False),  # torch.save
        ("amp/grad_scaler.py(331): step", False),
        ("optim/npu_fused_optim_base.py(177): _clip_grad_norm_fused_", False),
        ("utils/storage.py(47): upload", True),
        ("optim/lamb.py(20): step", True),
        ("models/npu/utils.py(3): to_device", True),
        ("u/item.py(10): <module>", True),
        ("collectors/torch_profiler.py(242): _timed", False),  # of what measures
        ("collectors/_activation.py(180): told", False),
        ("ascend_perf/bench/child.py(180): _run", False),
        ("ascend_perf/workloads/resnet50_train.py(202): step", True),
        ("contextlib.py(75): inner", False),
        ("<built-in method item of Tensor object>", False),
        ("<string>(1): <module>", False),
        ("nn.Module: Linear_0", False),
        ("", False),
    ],
)
def test_frames_of_the_user_are_told_from_libraries(frame: str, expected: bool) -> None:
    assert is_user_frame(frame) is expected


def test_lines_are_named_without_folders() -> None:
    assert short_frame("a/b/main.py(3): run") == "main.py(3): run"
    assert short_frame("main.py(3): run") == "main.py(3): run"
    assert short_frame("<built-in function max>") == "<built-in function max>"
    assert user_line(STACK) == "model.py(40): forward"
    assert user_line("torch/_ops.py(692): __call__") is None


def _op(start: int, dur: int, name: str, **more: object) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": name, "thread": 1, **more}


def _call(start: int, dur: int, name: str, thread: int = 1) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": name, "thread": thread}


def test_the_stack_of_the_nearest_operator_comes_first(make_trace: Make) -> None:
    trace = make_trace(
        host_ops=[
            _op(0, 100, "aten::item", stack=STACK),
            _op(10, 50, "aten::_local_scalar_dense"),
            _op(200, 50, "aten::mm"),
            _op(210, 20, "mylib::inner"),
        ],
        python_calls=[
            _call(0, 300, "project/main.py(5): main"), _call(190, 90, "nn.Module: Linear_3"),
            _call(195, 70, "torch/nn/modules/linear.py(114): forward"), _call(0, 300, "other.py(1): run", thread=2),
        ],
    )  # fmt: skip

    found = around(trace, np.array([1, 1, 1, 2, NULL]), np.array([20, 215, 400, 215, 215]))

    assert found.op.tolist() == [1, 3, -1, -1, 3]
    # Only operators of the same library are the same call for the user.
    assert found.outer.tolist() == [0, 3, -1, -1, 3]
    # The last one asks all threads: of two lines that which began last; here both began at 0, the first thread stays.
    assert found.line.to_list() == [
        "model.py(40): forward", "main.py(5): main", None, "other.py(1): run", "main.py(5): main"
    ]  # fmt: skip
    assert found.module.to_list() == [None, "Linear_3", None, None, "Linear_3"]


def test_the_backward_pass_has_the_line_of_its_forward_operator(make_trace: Make) -> None:
    trace = make_trace(
        host_ops=[
            _op(0, 10, "aten::mm", sequence_number=7, stack=STACK),
            _op(20, 10, "aten::sum", sequence_number=8),
            _op(100, 50, "autograd::engine::evaluate_function: MmBackward0", thread=9, sequence_number=7),
            _op(110, 20, "aten::mm", thread=9),
            _op(160, 10, "SumBackward0", thread=9, sequence_number=8),
        ],
        python_calls=[_call(15, 20, "loss.py(3): forward"), _call(15, 20, "nn.Module: Loss_0")],
    )  # fmt: skip

    found = around(trace, np.array([9, 9]), np.array([115, 165]))

    assert found.op.tolist() == [3, 4]
    assert found.line.to_list() == ["model.py(40): forward", "loss.py(3): forward"]
    assert found.module.to_list() == [None, "Loss_0"]


def test_nothing_recorded_is_nothing_known(make_trace: Make) -> None:
    found = around(make_trace(), np.array([1, NULL]), np.array([5, 6]))

    assert found.op.tolist() == found.outer.tolist() == [-1, -1]
    assert found.line.to_list() == found.module.to_list() == [None, None]


def test_an_instant_without_rows_asks_nothing(make_trace: Make) -> None:
    none = np.empty(0, np.int64)

    assert len(around(make_trace(host_ops=[_op(0, 9, "a")]), none, none).line) == 0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 2)), max_size=12),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=4),
)
def test_own_time_against_single_nanoseconds(
    raw: list[tuple[int, int, int]], windows: list[tuple[int, int]]
) -> None:
    # Calls that nest: of those that cross an earlier one the end is cut to it.
    calls: list[tuple[int, int, int]] = []
    for start, dur, thread in sorted(raw):
        end = start + dur
        for a, b, t in calls:
            if t == thread and a <= start < b:
                end = min(end, b)
        if end > start and (start, end, thread) not in calls:
            calls.append((start, end, thread))
    trace = Trace({"python_calls": build_table("python_calls", [
        _call(a, b - a, f"f{i}.py(1): x", thread=t) for i, (a, b, t) in enumerate(calls)
    ])})  # fmt: skip
    where = intervals.merged(
        np.array([a for a, _ in windows], np.int64), np.array([a + d for a, d in windows], np.int64)
    )
    expected: dict[str, int] = {}
    for ns in range(80):
        if not any(a <= ns < a + d for a, d in windows):
            continue
        for thread in (1, 2):
            open_ = [(a, -b, i) for i, (a, b, t) in enumerate(calls) if t == thread and a <= ns < b]
            if open_:
                name = f"f{max(open_)[2]}.py(1): x"
                expected[name] = expected.get(name, 0) + 1

    assert dict(longest_within(trace, where)) == expected


def test_a_stack_of_a_real_capture_names_the_training_loop(traces: Path) -> None:
    trace = pipeline.load(traces / "kineto/v100/resnet50_num_workers_0.json.gz").traces[0]
    ops = trace[HOST_OPS]
    copies = np.flatnonzero(ops.text("name").equals("aten::to") & (ops.ints("dur_ns") > 1_000_000))[:5]

    found = around(trace, ops.ints("thread")[copies], ops.ints("start_ns")[copies])

    # The batch to the device in the loop, and images to tensors in the data loader.
    assert set(found.line.to_list()) == {"resnet50_profiler_api.py(44): <module>", "functional.py(138): to_tensor"}
