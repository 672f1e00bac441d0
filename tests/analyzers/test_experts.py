"""Mixture of experts: load over ranks, experts one by one, permutation of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from ascend_perf.analyzers.expert_kernels import expert_kernels
from ascend_perf.analyzers.experts import experts
from ascend_perf.device.specs import device_specs
from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace

MakeTrace = Callable[..., Trace]
STEP = 1_000_000


def loaded(make_trace: MakeTrace, rank: int, time: int, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Trace:
    """A rank whose two grouped products take `time` together; tokens follow the time."""
    return make_trace(
        meta=Meta(
            rank=rank, world_size=8, device=Device(kind="npu"), groups=(Group(name="e", label="ep", ranks=ranks),)
        ),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
        kernels=[
            {"start_ns": at * time, "dur_ns": time // 2, "name": f"aclnnGroupedMatmul_{at}", "op_type": "GroupedMatmul",
             "input_shapes": f"{time // 10},64;4,64,128"}
            for at in range(2)
        ],
    )  # fmt: skip


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {j.code: j.verdict for j in outcome.judged}


def test_the_fullest_rank_of_a_group_is_named(make_trace: MakeTrace) -> None:
    times = {0: 100_000, 1: 100_000, 2: 100_000, 3: 300_000}
    (found,) = experts.run_on_run(Run(traces=tuple(loaded(make_trace, r, t) for r, t in times.items()))).findings

    assert (found.code, found.ranks, found.affected_ranks) == ("E-01", (3,), (0, 1, 2))
    assert found.share_ratio == pytest.approx(0.15)  # (300 - 150) / 1000
    assert "2.00x" in found.title.en
    assert [e.value for e in found.evidence][-1] == pytest.approx(2.0)  # tokens


def test_even_loads_are_clean_and_groups_are_not_mixed(make_trace: MakeTrace) -> None:
    # Ranks 0, 1 hold few tokens, ranks 2, 3 many: two groups, each even.
    traces = [loaded(make_trace, r, 100_000 if r < 2 else 200_000, (0, 1) if r < 2 else (2, 3)) for r in range(4)]
    outcome = experts.run_on_run(Run(traces=tuple(traces)))
    assert outcome.findings == ()
    assert verdicts(outcome) == {"E-01": "clean"}
    assert outcome.tables[0].column("tokens") == (20_000, 20_000, 40_000, 40_000)


def test_twenty_percent_above_the_mean_is_allowed(make_trace: MakeTrace) -> None:
    times = {0: 100_000, 1: 100_000, 2: 100_000, 3: 124_000}
    outcome = experts.run_on_run(Run(traces=tuple(loaded(make_trace, r, t) for r, t in times.items())))
    assert verdicts(outcome) == {"E-01": "clean"}


def test_one_rank_cannot_tell_the_balance(make_trace: MakeTrace) -> None:
    assert verdicts(experts.run_on_run(Run(traces=(loaded(make_trace, 0, 100_000),)))) == {"E-01": "not_judged"}


def kernel(name: str, start: int, dur: int, shapes: str = "8,8") -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": name, "op_type": name, "input_shapes": shapes}


def on_rank(make_trace: MakeTrace, rows: Sequence[Mapping[str, object]]) -> Outcome:
    return expert_kernels.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="npu")), kernels=rows,
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
        )
    )  # fmt: skip


def loop(tokens: Sequence[int], start: int, per_product: int = 10_000) -> list[dict[str, object]]:
    """Experts one by one: product, activation, product back; each product takes as long however few its tokens."""
    rows = []
    for at, count in enumerate(tokens):
        begin = start + at * 3 * per_product
        rows += [
            kernel("MatMulV3", begin, per_product, f"{count},64;64,256"),
            kernel("SwiGlu", begin + per_product, per_product // 10, f"{count},256"),
            kernel("MatMulV3", begin + 2 * per_product, per_product, f"{count},256;256,64"),
        ]
    return rows


def test_experts_that_run_one_by_one_cost_what_the_best_of_them_would_save(make_trace: MakeTrace) -> None:
    # Two rows of 4 experts, twice 8 products; 100 tokens take 10 us as 10 do: 220 tokens in 4 products of 10 us,
    # at 100 tokens per 10 us 22 us. Two weight shapes and two rows: 4 x (40 - 22) = 72 us of 1000.
    rows = loop((100, 70, 40, 10), 0) + loop((10, 40, 70, 100), 300_000)
    # The rows lie 30 kernels apart.
    rows += [kernel("Add", 150_000 + at * 1000, 500) for at in range(30)]
    outcome = on_rank(make_trace, rows)
    (found,) = [f for f in outcome.findings if f.code == "E-02"]
    assert found.share_ratio == pytest.approx(0.072)
    assert "16 products in 4 rows of 4" in found.title.en


def test_layers_of_one_width_are_no_experts(make_trace: MakeTrace) -> None:
    # Eight products of one shape in a row: all of one number of tokens, and nothing routes.
    rows = [kernel("MatMulV3", at * 20_000, 10_000 + at * 100, "512,64;64,64") for at in range(8)]
    rows += [kernel("Add", 200_000 + at * 1000, 500) for at in range(30)]
    rows += [kernel("MatMulV3", 400_000 + at * 20_000, 10_000, "512,64;64,64") for at in range(8)]
    assert verdicts(on_rank(make_trace, rows))["E-02"] == "clean"


def test_three_projections_are_no_experts(make_trace: MakeTrace) -> None:
    rows = [
        kernel("MatMulV3", layer * 100_000 + at * 10_000, 5_000 + at, f"{64 + at},64;64,64")
        for layer in range(5)
        for at in range(3)
    ]
    rows += [kernel("Add", layer * 100_000 + 40_000 + at * 1000, 500) for layer in range(5) for at in range(20)]
    assert verdicts(on_rank(make_trace, rows))["E-02"] == "clean"


def test_experts_in_one_grouped_product_are_clean(make_trace: MakeTrace) -> None:
    rows = [kernel("GroupedMatmul", at * 20_000, 10_000, "220,64;4,64,256") for at in range(8)]
    assert verdicts(on_rank(make_trace, rows)) == {"E-02": "clean", "E-04": "clean"}


def permuted(dur: int, op: str = "GatherV2") -> list[dict[str, object]]:
    return [
        kernel("Sort", 0, dur), kernel(op, 20_000, dur), kernel("GroupedMatmul", 100_000, 50_000, "64,64;4,64,64"),
        kernel(op, 200_000, dur), kernel("Mul", 220_000, dur), kernel("ReduceSum", 240_000, dur),
        *(kernel("Add", 300_000 + at * 1000, 500) for at in range(40)),
        kernel("GatherV2", 400_000, 100_000),  # an embedding far from the experts
    ]  # fmt: skip


def test_permutation_around_the_experts_is_counted_and_the_rest_is_not(make_trace: MakeTrace) -> None:
    (found,) = on_rank(make_trace, permuted(10_000)).findings
    assert found.code == "E-04"
    assert found.share_ratio == pytest.approx(0.05)  # sort, two gathers, mul, sum: 5 x 10 us
    # One of the two sequences of the reference is whole: gather, mul, sum.
    fused = [e for e in found.evidence if e.where.startswith("fused operator")]
    assert [(e.value, e.where) for e in fused] == [(1.0, "fused operator: torch_npu.npu_moe_token_unpermute")]


@pytest.mark.parametrize("rows", [permuted(5_000), permuted(10_000, "MoeTokenPermute")], ids=["short", "fused"])
def test_short_or_fused_permutation_is_clean(rows: list[dict[str, object]], make_trace: MakeTrace) -> None:
    assert verdicts(on_rank(make_trace, rows))["E-04"] == "clean"


def test_gathers_without_experts_are_clean(make_trace: MakeTrace) -> None:
    rows = [kernel("GatherV2", at * 100_000, 50_000) for at in range(8)]
    assert verdicts(on_rank(make_trace, rows)) == {"E-02": "clean", "E-04": "clean"}


def test_without_shapes_experts_cannot_be_told(make_trace: MakeTrace) -> None:
    rows = [{"start_ns": 0, "dur_ns": 10, "name": "m", "op_type": "MatMulV3"}]
    assert verdicts(on_rank(make_trace, rows)) == {"E-02": "not_judged", "E-04": "clean"}


def test_products_of_one_shape_in_a_row_are_experts_where_tokens_are_routed(make_trace: MakeTrace) -> None:
    # Capacity pads every expert to 64 tokens. 2 x 16 products of 10 us; at the peaks of the device (2 x 64 x 1024 x
    # 1024 FLOP, 64.1 million per us at most; 2.4 MB) each needs microseconds of memory time.
    rows = [
        kernel("MatMulV3", layer * 400_000 + at * 10_000, 10_000, "64,1024;1024,1024")
        | {"input_dtypes": "DT_BF16;DT_BF16", "output_shapes": "64,1024", "output_dtypes": "DT_BF16"}
        for layer in range(2)
        for at in range(16)
    ]
    rows += [kernel("Add", 200_000 + at * 1000, 500) for at in range(30)]
    assert verdicts(on_rank(make_trace, rows))["E-02"] == "clean"  # a product that is measured again and again
    rows.append(kernel("MoeGatingTopKSoftmax", 240_000, 500))
    outcome = expert_kernels.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="npu", name="Ascend910B3")), kernels=rows,
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
        )
    )  # fmt: skip
    (found,) = [f for f in outcome.findings if f.code == "E-02"]
    spec = device_specs()["ascend-910b3"]
    size = 2 * (64 * 1024 + 1024 * 1024 + 64 * 1024)
    least = max(2 * 64 * 1024 * 1024 / (spec.matrix_peak("bf16") or 1), size / (spec.memory_bytes_per_s.value or 1))
    assert found.share_ratio == pytest.approx((320_000 - 32 * least * 1e9) / STEP)
    assert "at the peaks of the device" in found.title.en


def test_an_uneven_load_below_the_limit_is_of_low_severity_where_it_costs(make_trace: MakeTrace) -> None:
    times = {0: 300_000, 1: 300_000, 2: 300_000, 3: 360_000}  # 1.14x; 45 of 1000 us
    (found,) = experts.run_on_run(Run(traces=tuple(loaded(make_trace, r, t) for r, t in times.items()))).findings
    assert (found.ranks, found.severity.value) == ((3,), "low")
    assert found.share_ratio == pytest.approx(0.045)
