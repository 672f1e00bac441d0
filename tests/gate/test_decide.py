"""The verdict over two sides: each outcome, and what may hide a regression but must not."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from ascend_perf.gate.decide import decide, without_baseline
from ascend_perf.gate.inputs import Side
from ascend_perf.gate.outcome import Row, Verdict
from ascend_perf.gate.policy import Policy, parse_policy
from ascend_perf.gate.timing import judge
from ascend_perf.model.finding import Words
from ascend_perf.model.result import SPOILED, Launch
from ascend_perf.op_streams import OpStream, counted, write_op_stream
from ascend_perf.stats import RatioInterval
from tests.gate._results import CREATED, MACHINE, benchmark, launches, metric, side

TODAY = date(2026, 4, 8)


def judged(base: Side, head: Side, policy: str = "") -> Verdict:
    return decide(base, head, parse_policy(policy), today=TODAY)


def row(verdict: Verdict, name: str, benchmark_name: str | None = None) -> Row:
    (found,) = [
        one for one in verdict.rows if one.name == name and benchmark_name in (None, one.benchmark)
    ]  # fmt: skip
    return found


def test_a_slower_head_is_a_regression() -> None:
    verdict = judged(side(), side(benchmark(of=launches(10, 1.06e7))))
    found = row(verdict, "step_time_median")
    assert (verdict.outcome, verdict.exit_code, found.outcome) == ("regression", 1, "regression")
    # Every launch of both sides has the same wobble: the ratio is exactly 1.06.
    assert found.interval is not None and found.interval.estimate == pytest.approx(1.06)
    assert found.interval.lower > 1.055
    assert found.rank_test is not None and found.rank_test.effect == 1.0
    # Complete separation of 10 and 10: 2 / C(20, 10).
    assert found.rank_test.p_value == pytest.approx(2 / 184756)
    assert "6 % worse" in found.reason.en


def test_equal_sides_pass_and_a_faster_head_is_listed() -> None:
    assert judged(side(), side()).exit_code == 0
    verdict = judged(side(), side(benchmark(of=launches(10, 0.9e7))))
    assert (verdict.outcome, row(verdict, "step_time_median").outcome) == ("pass", "improved")


def test_a_slowdown_below_the_limit_passes_and_may_be_warned_of() -> None:
    head = side(benchmark(of=launches(10, 1.02e7)))
    assert row(judged(side(), head), "step_time_median").outcome == "pass"
    policy = "metrics: [{match: step_time_median, fail: 0.05, warn: 0.015}]"
    verdict = judged(side(), head, policy)
    assert (verdict.exit_code, row(verdict, "step_time_median").outcome) == (0, "warning")


def test_less_throughput_is_worse_and_more_memory_is() -> None:
    def of(rate: float, memory: float) -> Side:
        figures = (metric("tokens_per_s", rate), metric("peak_device_memory", memory, "bytes", "lower"))
        return side(benchmark(of=launches(5, metrics=figures)))

    verdict = judged(of(100.0, 1000), of(95.0, 1030))
    assert row(verdict, "tokens_per_s").outcome == "regression"
    assert row(verdict, "peak_device_memory").outcome == "regression"
    assert judged(of(100.0, 1000), of(98.0, 1010)).outcome == "pass"
    assert {one.outcome for one in judged(of(100.0, 1000), of(200.0, 500)).rows} == {"improved", "pass"}


def test_a_percentile_is_taken_from_the_latencies_of_each_launch() -> None:
    def of(slowest: int) -> Side:
        sample = (*range(1000, 1099), slowest)  # 100 latencies; p99 lies at place 98.01, near the last but one
        return side(benchmark(of=[
            Launch(index=index, started=CREATED, status="complete", samples_ns={"ttft": sample},
                   metrics=(metric("ttft_p99", 1.0, "ns", "lower"),))
            for index in range(5)
        ]))  # fmt: skip

    found = row(judged(of(1099), of(1099)), "ttft_p99")
    assert found.base == pytest.approx(1098 + 0.01 * 1)  # linear between 1098 and 1099, not the figure of the file
    assert found.fail_ratio == 0.05


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_launches_cannot_decide_and_say_how_many_would(count: int) -> None:
    verdict = judged(side(benchmark(of=launches(count))), side(benchmark(of=launches(count, 2e7))))
    found = row(verdict, "step_time_median")
    assert (verdict.outcome, verdict.exit_code, found.launches_needed) == ("inconclusive", 3, 5)
    assert f"{count} launch" in found.reason.en and "at least 5" in found.reason.en
    assert (found.interval is None) == (count == 1)


def test_a_noisy_machine_is_inconclusive_with_the_number_that_decides() -> None:
    noisy = benchmark(of=launches(6, wobble=0.3))
    verdict = judged(side(noisy), side(noisy))
    found = row(verdict, "step_time_median")
    assert verdict.exit_code == 3
    assert found.launches_needed is not None and found.launches_needed > 6
    assert str(found.launches_needed) in found.reason.en and str(found.launches_needed) in found.reason.zh


def _interval(estimate: float, lower: float, upper: float) -> RatioInterval:
    return RatioInterval(estimate=estimate, lower=lower, upper=upper, confidence=0.99, base_launches=10,
                         head_launches=10)  # fmt: skip


def _cases() -> list[ParameterSet]:
    return [
        pytest.param(1.05, 1.02, 1.08, "regression", id="beyond doubt"),
        pytest.param(1.05, 1.005, 1.09, "inconclusive", id="beyond the limit, within the tolerance"),
        pytest.param(1.02, 1.015, 1.025, "pass", id="certain and small"),
        pytest.param(1.0, 0.98, 1.02, "pass", id="no change"),
        pytest.param(1.029, 1.02, 1.04, "pass", id="just below the limit, a narrow interval"),
        pytest.param(1.0, 0.9, 1.1, "inconclusive", id="a regression could hide"),
        pytest.param(0.9, 0.7, 0.95, "improved", id="wide, but better beyond doubt"),
        pytest.param(0.95, 0.90, 1.02, "pass", id="wide, but no regression of that size"),
        pytest.param(0.95, 0.94, 0.96, "improved", id="better"),
        pytest.param(1.05, 1.05, 1.05, "regression", id="no scatter"),
    ]


@pytest.mark.parametrize(("estimate", "lower", "upper", "outcome"), _cases())
def test_the_rule(estimate: float, lower: float, upper: float, outcome: str) -> None:
    assert judge(_interval(estimate, lower, upper), fail=0.03, warn=None, tolerance=0.01).outcome == outcome


def test_counts_are_compared_exactly() -> None:
    base = side(benchmark(counts={"kernels": 100, "collectives": 4, "memory_peak": 1000, "host_syncs": 0, "gone": 1}))
    head = side(benchmark(counts={"kernels": 101, "collectives": 3, "memory_peak": 1010, "host_syncs": 2, "fresh": 1}))
    verdict = judged(base, head)
    assert {name: row(verdict, name).outcome for name in (
        "kernels", "collectives", "memory_peak", "host_syncs", "gone", "fresh",
    )} == {
        "kernels": "regression", "collectives": "improved", "memory_peak": "warning", "host_syncs": "regression",
        "gone": "not_comparable", "fresh": "new",
    }  # fmt: skip
    assert row(verdict, "kernels").change_ratio == pytest.approx(0.01)
    assert row(verdict, "host_syncs").change_ratio is None  # from 0
    assert verdict.exit_code == 1
    allowed = "counts: [{match: kernels, fail: 0.01}, {match: host_syncs, fail: null}]"
    assert {row(judged(base, head, allowed), name).outcome for name in ("kernels", "host_syncs")} == {"pass"}


def stream(folder: Path, name: str, ops: list[str], mode: str = "fake") -> str:
    write_op_stream(folder / name, OpStream(workload="w", mode=mode, totals=counted(ops), stream=tuple(ops)))
    return name


NORM = "npu.npu_rms_norm.default(bf16[4]) -> bf16[4]"
MM = "aten.mm.default(bf16[4,4], bf16[4,4]) -> bf16[4,4]"
MUL = "aten.mul.Tensor(bf16[4], bf16[4]) -> bf16[4]"
POW = "aten.pow.Tensor_Scalar(bf16[4]) -> bf16[4]"


@pytest.mark.parametrize(("head_ops", "more", "exact", "warn"), [
    ([MM, NORM, MM], "pass", "pass", "pass"),
    ([MM, POW, MUL, MM], "regression", "regression", "warning"),  # a fusion that was lost
    ([MM, MUL, MM], "regression", "regression", "warning"),  # another operator, as many
    ([MM, NORM], "improved", "regression", "warning"),
    ([NORM, MM, MM], "warning", "regression", "warning"),  # another order
])  # fmt: skip
def test_operators_are_compared(tmp_path: Path, head_ops: list[str], more: str, exact: str, warn: str) -> None:
    base = side(benchmark(op_stream=stream(tmp_path, "base.ops", [MM, NORM, MM])), folder=tmp_path)
    head = side(benchmark(op_stream=stream(tmp_path, "head.ops", head_ops)), folder=tmp_path)
    for rule, outcome in (("more", more), ("exact", exact), ("warn", warn)):
        assert row(judged(base, head, f"op_stream: {rule}"), "op_stream").outcome == outcome
    assert not [one for one in judged(base, head, "op_stream: ignore").rows if one.kind == "op_stream"]


def test_a_lost_fusion_is_named_with_its_place(tmp_path: Path) -> None:
    base = side(benchmark(op_stream=stream(tmp_path, "base.ops", [MM, NORM, MM])), folder=tmp_path)
    head = side(benchmark(op_stream=stream(tmp_path, "head.ops", [MM, POW, MUL, MM])), folder=tmp_path)
    found = row(judged(base, head), "op_stream")
    assert found.details == (
        f"+1 {MUL}", f"+1 {POW}", f"-1 {NORM}", "@@ operator 2 @@", f"-{NORM}", f"+{POW}", f"+{MUL}",
    )  # fmt: skip
    assert (found.base, found.head) == (3, 4)


def test_a_snapshot_that_is_gone_damaged_elsewhere_or_of_another_mode_is_no_pass(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    base = side(benchmark(op_stream=stream(folder, "base.ops", [MM])), folder=folder)
    (folder / "bad.ops").write_text("nonsense", "utf-8")
    stream(tmp_path, "outside.ops", [MM])
    (folder / "link.ops").symlink_to(tmp_path / "outside.ops")
    stream(folder, "real.ops", [MM], mode="real")
    for name in (None, "bad.ops", "link.ops", "none.ops", "real.ops"):
        verdict = judged(base, side(benchmark(op_stream=name), folder=folder))
        assert (row(verdict, "op_stream").outcome, verdict.exit_code) == ("not_comparable", 4), name
    assert row(judged(side(benchmark()), base), "op_stream").outcome == "new"


@pytest.mark.parametrize("fact", ["chip", "cann"])
def test_other_software_or_chip_is_not_comparable_at_all(fact: str) -> None:
    base = side(benchmark(counts={"kernels": 1}))
    head = side(benchmark(of=launches(10, 2e7), counts={"kernels": 2}), facts={**MACHINE, fact: "another"})
    verdict = judged(base, head)
    assert (verdict.outcome, verdict.exit_code) == ("not_comparable", 4)
    assert [one.kind for one in verdict.rows] == ["machine"]
    assert row(verdict, "fingerprint").details == (f"{fact}: {MACHINE[fact]} -> another",)


def test_on_another_host_counts_are_still_compared_and_times_are_not() -> None:
    base = side(benchmark(counts={"kernels": 1}))
    head = side(benchmark(of=launches(10, 2e7), counts={"kernels": 1}), facts={**MACHINE, "cpu": "EPYC"})
    verdict = judged(base, head)
    assert (verdict.exit_code, {one.kind for one in verdict.rows}) == (4, {"machine", "count"})
    without_times = judged(base, head, "timing: false")
    assert (without_times.exit_code, {one.kind for one in without_times.rows}) == (0, {"count"})
    assert any("cpu" in note.en for note in without_times.notes)
    assert judged(base, head, "ignore_facts: [cpu]").exit_code == 1  # and then the times decide


def test_facts_that_one_side_does_not_know_are_said() -> None:
    verdict = judged(side(), side(facts={key: value for key, value in MACHINE.items() if key != "cann"}))
    assert verdict.exit_code == 0
    assert any("cann" in note.en for note in verdict.notes)


@pytest.mark.parametrize("config", [{"layers": 5}, {}, {"layers": 4, "fused": True}, {"layers": True}])
def test_other_work_is_not_comparable(config: dict[str, int]) -> None:
    base = side(benchmark(config={"layers": 1} if config == {"layers": True} else None))
    verdict = judged(base, side(benchmark(config=config, of=launches(10, 2e7))))
    assert (verdict.exit_code, [one.name for one in verdict.rows]) == (4, ["config"])
    assert judged(base, side(benchmark(config=config)), "ignore_settings: [layers, fused]").exit_code == 0


def test_simulated_figures_are_refused_unless_the_policy_takes_them() -> None:
    simulated = side(benchmark(origin="simulated"))
    assert row(judged(side(), simulated), "data_origin").outcome == "not_comparable"
    assert judged(simulated, simulated).exit_code == 4
    verdict = judged(simulated, simulated, "simulated: true")
    assert verdict.exit_code == 0
    assert all(one.simulated for one in verdict.rows)
    assert judged(side(), simulated, "simulated: true").exit_code == 4  # still not against measured ones


def test_times_of_a_run_that_waits_for_each_launch_are_refused_and_counts_are_not() -> None:
    spoiled = replace(
        benchmark(of=launches(10, 1.5e7), counts={"kernels": 7}), notes=(f"{SPOILED}ASCEND_LAUNCH_BLOCKING=1",)
    )
    plain = benchmark(counts={"kernels": 7})
    for base, head, where in ((plain, spoiled, "head"), (spoiled, plain, "base")):
        verdict = judged(side(base), side(head))
        found = row(verdict, "environment")
        assert (verdict.exit_code, found.outcome) == (4, "not_comparable")
        assert found.reason.en == (
            f"times do not count ({where}: ASCEND_LAUNCH_BLOCKING=1): unset it and measure again"
        )
        assert not [one for one in verdict.rows if one.name == "step_time_median"]
        assert row(verdict, "kernels").outcome == "pass"


def test_removed_benchmarks_fail_unless_listed_and_new_ones_are_listed() -> None:
    both = side(benchmark("a"), benchmark("b"))
    verdict = judged(both, side(benchmark("a"), benchmark("c")))
    assert (row(verdict, "benchmark", "b").outcome, row(verdict, "benchmark", "c").outcome) == ("regression", "new")
    listed = judged(both, side(benchmark("a")), "removed: [b]")
    assert (listed.exit_code, row(listed, "benchmark", "b").outcome) == (0, "removed")


def failed(index: int, problem: str = "OutOfMemory") -> Launch:
    return Launch(index=index, started=CREATED, status="failed", problem=problem)


def test_a_benchmark_that_does_not_run_any_more_is_a_regression() -> None:
    verdict = judged(side(), side(benchmark(of=[failed(0), failed(1)])))
    assert (verdict.exit_code, row(verdict, "launches").details) == (1, ("OutOfMemory",))
    assert judged(side(benchmark(of=[failed(0)])), side()).exit_code == 4  # nothing to compare with
    stopped = replace(failed(0), status="interrupted")
    assert judged(side(), side(benchmark(of=[stopped]))).exit_code == 4
    some = judged(side(), side(benchmark(of=[*launches(10), failed(10)])))
    assert (some.exit_code, row(some, "launches").outcome) == (0, "warning")


def test_a_metric_that_vanished_is_no_pass() -> None:
    figures = (metric("tokens_per_s", 1.0), metric("note", 1.0, "none", "none"))
    with_rate = side(benchmark(of=launches(5, metrics=figures)))
    verdict = judged(with_rate, side(benchmark(of=launches(5))))
    assert (verdict.exit_code, row(verdict, "tokens_per_s").outcome) == (4, "not_comparable")
    assert row(verdict, "note").outcome == "pass"  # nothing that decides
    assert row(judged(side(benchmark(of=launches(5))), with_rate), "tokens_per_s").outcome == "new"


def test_zero_has_no_ratio() -> None:
    def of(value: float) -> Side:
        return side(benchmark(of=launches(5, metrics=(metric("tokens_per_s", value),))))

    assert row(judged(of(0.0), of(0.0)), "tokens_per_s").outcome == "pass"
    assert row(judged(of(0.0), of(1.0)), "tokens_per_s").outcome == "not_comparable"


def test_the_allow_list_excuses_until_its_date_and_is_told_when_unused() -> None:
    head = side(benchmark(of=launches(10, 1.2e7)))

    def policy(until: str, name: str = "step_*") -> str:
        return f"allow: [{{benchmark: '*', metric: '{name}', owner: Li Wei, until: {until}, reason: new data}}]"

    verdict = judged(side(), head, policy("2026-04-08"))
    found = row(verdict, "step_time_median")
    assert (verdict.exit_code, found.outcome, found.owner, found.until) == (0, "allowed", "Li Wei", TODAY)
    expired = judged(side(), head, policy("2026-04-07"))
    assert expired.exit_code == 1
    assert "Li Wei's allowance expired on 2026-04-07" in row(expired, "step_time_median").reason.en
    unused = judged(side(), head, policy("2026-12-31", "kernels"))
    assert unused.exit_code == 1
    assert any("excuses nothing" in note.en for note in unused.notes)


def test_a_regression_outweighs_what_cannot_be_compared_or_told() -> None:
    base = side(benchmark("a"), benchmark("b"), benchmark("c", of=launches(2)))
    head = side(benchmark("a", of=launches(10, 2e7)), benchmark("b", config={}), benchmark("c", of=launches(2)))
    assert judged(base, head).exit_code == 1
    assert judged(side(*base.results.benchmarks[1:]), side(*head.results.benchmarks[1:])).exit_code == 4
    warned = decide(base, head, Policy(), today=TODAY, warn_only=True)
    assert (warned.outcome, warned.exit_code) == ("regression", 0)


def test_no_baseline_is_not_comparable() -> None:
    what = Words("results.json does not exist", "results.json 不存在")
    verdict = without_baseline(what, side(), Policy(), today=TODAY)
    assert verdict.rows[0].reason == Words("no baseline: results.json does not exist", "缺少基线：results.json 不存在")
    assert (verdict.outcome, verdict.exit_code) == ("not_comparable", 4)


def test_the_gravest_rows_come_first() -> None:
    base = side(benchmark("a"), benchmark("b", of=launches(2)), benchmark("c"))
    head = side(benchmark("a"), benchmark("b", of=launches(2)), benchmark("c", of=launches(10, 2e7)))
    assert [one.outcome for one in judged(base, head).rows] == ["regression", "inconclusive", "pass"]
