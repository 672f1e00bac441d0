"""What a step on the virtual NPU consists of, by hand and against a count of every nanosecond."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.bench import step_shares
from ascend_perf.bench.step_shares import ACROSS_NODES, COPIES, RATIOS, Shares, bounds, shares_of
from ascend_perf.collectors import step_marks
from ascend_perf.collectors.virtual_npu.cost import cost_model
from ascend_perf.collectors.virtual_npu.record import Record
from ascend_perf.errors import InputError
from ascend_perf.model.what_if import BUBBLE, COMMUNICATION, HOST, Estimate

Span = tuple[int, int]


def record_of(
    kernels: list[tuple[str, int, int]], collectives: list[Span], copies: list[Span], *, windows: list[int],
    ranks: tuple[int, ...] | None = (0, 1), size: int = 2,
) -> Record:  # fmt: skip
    """A record whose things are launched when they start: kernels with their class; the windows of its steps."""
    import numpy as np

    classes = sorted({name for name, _, _ in kernels})
    definitions = {number: ("op", "aclnnAny", {"class": name}) for number, name in enumerate(classes)}

    def columns(**named: list[int]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        return {name: np.array(values, np.int64) for name, values in named.items()}

    tables = {
        "K": columns(**{"def": [classes.index(name) for name, _, _ in kernels]},
                     host_ns=[start for _, start, _ in kernels], start_ns=[start for _, start, _ in kernels],
                     end_ns=[end for _, _, end in kernels]),
        "C": columns(host_ns=[start for start, _ in collectives], start_ns=[start for start, _ in collectives],
                     end_ns=[end for _, end in collectives], comm=[0 for _ in collectives]),
        "P": columns(host_ns=[start for start, _ in copies], start_ns=[start for start, _ in copies],
                     end_ns=[end for _, end in copies]),
    }  # fmt: skip
    marks = [(time, "mark", step_marks.BEGIN, 1) for time in windows[:-1]]
    marks += [(time, "mark", step_marks.END, 1) for time in windows[-1:]]
    return Record(
        path=Path("rank0.1.vnpu"), header={"ranks_per_node": "8"}, definitions=definitions, tables=tables,
        groups={0: ("group", size, 0, ranks)}, profiler=(), marks=tuple(marks), errors=(), is_truncated=False,
        peak_bytes=0,
    )  # fmt: skip


def test_the_last_step_is_split_by_hand() -> None:
    # Step from 100 to 200. matmul 100-140 and, beside it on another stream, cast 120-150: 50 ns of computing, 70 ns of
    # kernels, so matmul counts 40 x 50/70. Communication 145-165: 5 hidden, 15 exposed. Copy 165-170. 30 ns: the host.
    record = record_of(
        [("matmul", 0, 90), ("matmul", 100, 140), ("cast", 120, 150)], [(145, 165)], [(165, 170)],
        windows=[0, 100, 200],
    )  # fmt: skip

    shares = shares_of(record)

    assert shares.step_ns == 100
    assert shares.parts == {"computing": 50, "copies": 5, "communication": 15, "host": 30}
    assert shares.hidden_communication_ns == 5
    assert shares.classes_ns == pytest.approx({
        "matmul": 40 * 50 / 70, "cast": 30 * 50 / 70, COPIES: 5, COMMUNICATION: 15, HOST: 30,
    })  # fmt: skip
    assert shares.launches == 2
    assert not shares.crosses_nodes


@pytest.mark.parametrize(("size", "ranks", "crosses"), [
    (2, (0, 1), False), (2, (0, 8), True), (8, None, False), (16, None, True), (8, tuple(range(8, 16)), False),
])  # fmt: skip
def test_communication_that_leaves_the_machine(size: int, ranks: tuple[int, ...] | None, crosses: bool) -> None:
    record = record_of([], [(0, 5)], [], windows=[0, 10], ranks=ranks, size=size)

    assert shares_of(record).crosses_nodes is crosses


def test_a_record_without_a_whole_step_is_told() -> None:
    with pytest.raises(InputError, match="no whole step"):
        shares_of(record_of([], [], [], windows=[]))


_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_SPANS, _SPANS, _SPANS, st.lists(st.sampled_from(["matmul", "cast"]), min_size=6, max_size=6))
def test_parts_are_those_of_a_count_of_each_ns(
    kernels: list[Span], sent: list[Span], copied: list[Span], classes: list[str]
) -> None:
    length = 60
    record = record_of(
        [(name, *span) for name, span in zip(classes, kernels, strict=False)], sent, copied, windows=[0, length]
    )

    def at(spans: list[Span], ns: int) -> bool:
        return any(start <= ns < end for start, end in spans)

    count = dict.fromkeys(("computing", "copies", "communication", "host", "hidden"), 0)
    for ns in range(length):
        busy = at(kernels, ns)
        part = "computing" if busy else "copies" if at(copied, ns) else "communication" if at(sent, ns) else "host"
        count[part] += 1
        count["hidden"] += part != "communication" and at(sent, ns)

    shares = shares_of(record)

    assert shares.hidden_communication_ns == count.pop("hidden")
    assert shares.parts == count
    assert math.fsum(shares.classes_ns.values()) == pytest.approx(length)


# How far a sum may be off


def test_bounds_add_squares_of_classes() -> None:
    low, high = cost_model().uncertainty("matmul")
    host_low, host_high = RATIOS[HOST]

    least, most = bounds({"matmul": 600.0, HOST: 400.0})

    assert least == pytest.approx(1000 - math.hypot(600 * (1 - low), 400 * (1 - host_low)))
    assert most == pytest.approx(1000 + math.hypot(600 * (high - 1), 400 * (host_high - 1)))


def test_communication_between_machines_is_less_certain() -> None:
    near, far = (bounds({COMMUNICATION: 100.0}, crosses_nodes=crosses) for crosses in (False, True))

    assert near[1] == pytest.approx(100 * RATIOS[COMMUNICATION][1])
    assert far[1] == pytest.approx(100 * ACROSS_NODES[1])


def test_hidden_communication_surfaces_where_nothing_hides_more_of_it() -> None:
    # 200 ns hidden behind 210 ns of computing; a quarter longer is 50 ns more, of which 10 ns are hidden as well.
    high = RATIOS[COMMUNICATION][1]
    model_high = cost_model().uncertainty("matmul")[1]

    _, most = bounds({"matmul": 210.0}, hidden_communication_ns=200.0)

    assert most == pytest.approx(210 + math.hypot(210 * (model_high - 1), 200 * (high - 1) - 10))


def test_the_bubble_of_a_pipeline_is_by_formula() -> None:
    shares = Shares(
        step_ns=800, parts={"computing": 800.0}, hidden_communication_ns=0, classes_ns={"matmul": 800.0}, launches=1,
        crosses_nodes=False,
    )  # fmt: skip

    # 4 stages, 8 micro-batches: (4 - 1) / 8 of 800.
    piped = step_shares.with_bubble(shares, pipeline_ranks=4, rounds=8)

    assert (piped.step_ns, piped.parts["bubble"], piped.classes_ns[BUBBLE]) == (1100, 300, 300)
    assert step_shares.with_bubble(shares, pipeline_ranks=1, rounds=8) is shares


def estimate(items: int = 100, hidden: float = 0.0, **classes: float) -> Estimate:
    """An estimate of a step that consists of these classes."""
    named = {{"host": HOST, "communication": COMMUNICATION}.get(name, name): ns for name, ns in classes.items()}
    total = math.fsum(named.values())
    low, high = bounds(named, hidden_communication_ns=hidden)
    return Estimate(
        step_ns=total, low_ns=low, high_ns=high, item="tokens", items_per_step=items, flops_per_step=1, mfu=None,
        peak_device_bytes=1, used_device_bytes=1, device_bytes=2, parts={},
        hidden_communication_ns=hidden, classes_ns=named, launches=1,
    )  # fmt: skip


def test_errors_of_a_class_are_common_to_both() -> None:
    # The ranges of 1000 and 1050 ns overlap widely, but all of the difference is communication that one has not.
    first, second = estimate(matmul=1000), estimate(matmul=1000, communication=50)

    assert first.high_ns > second.low_ns
    assert step_shares.is_surely_faster(first, second)
    assert not step_shares.is_surely_faster(second, first)


def test_differences_that_may_be_the_other_way_round_are_not_told() -> None:
    # 100 ns more of matmul against 110 ns more of the host, which may be 0.57 of it.
    assert not step_shares.is_surely_faster(estimate(matmul=1100, host=100), estimate(matmul=1000, host=210))


def test_time_per_item_counts() -> None:
    # A step that is 1.5 times as long and holds twice the items.
    assert step_shares.is_surely_faster(estimate(items=200, matmul=1500), estimate(items=100, matmul=1000))


def test_hidden_communication_is_a_risk_of_its_own() -> None:
    # Alike, but all of the first one's communication is hidden by as much computing: a quarter of it may surface.
    sure, risky = estimate(matmul=1000), estimate(matmul=1000, hidden=1000)

    assert step_shares.is_surely_faster(sure, estimate(matmul=1000, communication=100))
    assert not step_shares.is_surely_faster(risky, estimate(matmul=1000, communication=100))
