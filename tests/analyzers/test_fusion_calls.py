"""Collectives beside a product: which count, and how much overlap could hide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers._fusion_calls import CallPair, calls_beside_products
from ascend_perf.analyzers.fusion import fusion
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"), versions={"cann": "8.3.RC1"})
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]


def _trace(make_trace: Make, op: str, label: str, *, product: str = "MatMulV3", before: bool = True,
           gap: int = 0, meta: Meta = NPU) -> Trace:  # fmt: skip
    """Two layers: a product of 40 us and a call of 100 us beside it, of which a vector kernel hides 20 us."""
    kernels, calls = [], []
    for at in (0, 500_000):
        first, second = (at, at + 40_000 + gap) if before else (at + 100_000 + gap, at)
        kernels.append({"start_ns": first, "dur_ns": 40_000, "name": "mm", "op_type": product, "core": "AIC",
                        "stream": 1})  # fmt: skip
        calls.append({"start_ns": second, "dur_ns": 100_000, "name": f"hcom_{op}_", "op": op, "group": "g",
                      "group_label": label, "stream": 5})  # fmt: skip
        kernels.append({"start_ns": second + 50_000, "dur_ns": 20_000, "name": "add", "op_type": "Add", "core": "AIV",
                        "stream": 1})  # fmt: skip
    return make_trace(meta=meta, steps=STEP, kernels=kernels, comm_ops=calls)


def _only(pairs: list[CallPair]) -> CallPair:
    (pair,) = pairs
    return pair


@pytest.mark.parametrize(
    ("op", "before", "label", "product", "expected"),
    [
        ("allReduce", True, "tp", "MatMulV3", "matmul-all-reduce"),
        ("allGather", False, "tp", "MatMulV3", "all-gather-matmul"),
        ("reduceScatter", True, "tp", "MatMulV3", "matmul-reduce-scatter"),
        ("alltoallv", False, "ep", "GroupedMatmul", "all-to-all-grouped-matmul"),
        ("alltoallv", True, "ep", "GroupedMatmul", "grouped-matmul-all-to-all"),
    ],
)
def test_a_call_beside_its_product_is_found(
    make_trace: Make, op: str, before: bool, label: str, product: str, expected: str
) -> None:
    trace = _trace(make_trace, op, label, product=product, before=before)

    pair = _only(calls_beside_products(trace, is_training=False))

    assert (pair.fusion.id, pair.count, pair.time_ns) == (expected, 2, 200_000)
    assert pair.bound_ns == 2 * 40_000  # 80 us are exposed, but the product is 40 us long
    assert pair.state == "applicable"


def test_the_exposed_part_limits_what_can_be_hidden(make_trace: Make) -> None:
    trace = _trace(make_trace, "allReduce", "tp")
    more = [
        {"start_ns": at + 40_000, "dur_ns": 90_000, "name": "mul", "op_type": "Mul", "core": "AIV", "stream": 3}
        for at in (0, 500_000)
    ]
    kernels = [
        {"start_ns": at, "dur_ns": 40_000, "name": "mm", "op_type": "MatMulV3", "core": "AIC", "stream": 1}
        for at in (0, 500_000)
    ]
    hidden = make_trace(meta=NPU, steps=STEP, kernels=[*kernels, *more])
    trace = trace.replace(tables={"kernels": hidden.tables["kernels"]})

    assert _only(calls_beside_products(trace, is_training=False)).bound_ns == 2 * 10_000


@pytest.mark.parametrize("label", ["dp", "pp", ""])
def test_gradients_and_unknown_groups_do_not_count(make_trace: Make, label: str) -> None:
    assert calls_beside_products(_trace(make_trace, "allReduce", label), is_training=True) == []


def test_a_product_far_away_or_of_another_kind_does_not_count(make_trace: Make) -> None:
    assert calls_beside_products(_trace(make_trace, "allReduce", "tp", gap=300_000), is_training=True) == []
    assert calls_beside_products(_trace(make_trace, "allReduce", "tp", product="Add"), is_training=True) == []
    assert calls_beside_products(_trace(make_trace, "alltoallv", "ep"), is_training=True) == []


def test_training_and_old_versions_get_what_they_can_use(make_trace: Make) -> None:
    trace = _trace(make_trace, "allReduce", "tp")
    assert _only(calls_beside_products(trace, is_training=True)).apis[0].name == "--use-ascend-coc"
    assert _only(calls_beside_products(trace, is_training=False)).apis[0].name == "torch_npu.npu_mm_all_reduce_base"
    old = Meta(rank=0, device=Device(kind="npu"), versions={"cann": "7.0.0"})
    pair = _only(calls_beside_products(_trace(make_trace, "allReduce", "tp", meta=old), is_training=False))
    assert pair.state == "needs CANN 8.0.RC2"
    exchange = _trace(make_trace, "alltoallv", "ep", product="GroupedMatmul")
    assert _only(calls_beside_products(exchange, is_training=True)).state == "inference only"


def test_pairs_are_rows_of_the_table_and_no_findings(make_trace: Make) -> None:
    outcome = fusion.run_on_trace(_trace(make_trace, "allReduce", "tp"))

    assert outcome.findings == ()  # rows N-09 and E-03 count the time
    (table,) = outcome.tables
    row = {column.name: cells[0] for column, cells in zip(table.columns, table.data, strict=True)}
    assert (row["fusion"], row["row"], row["count"], row["saved_ns"]) == ("matmul-all-reduce", "N-09", 2.0, 80_000.0)


def test_a_gpu_has_no_such_operators(make_trace: Make) -> None:
    gpu = Meta(rank=0, device=Device(kind="gpu"))
    assert calls_beside_products(_trace(make_trace, "allReduce", "tp", meta=gpu), is_training=True) == []
