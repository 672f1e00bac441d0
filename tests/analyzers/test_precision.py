"""What the run's own figures say, on series that are made here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._precision_events import SERIES_POINTS, thinned
from ascend_perf.analyzers._precision_ranks import tail
from ascend_perf.analyzers._series import series_of
from ascend_perf.analyzers.precision import precision
from ascend_perf.model.finding import Finding, Outcome, Severity
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.trace import Device, Meta, Source, Trace
from tests.conftest import Rows, build_table

Change = Callable[[int], Mapping[str, object]]


def rows_of(seed: int, count: int = 200, change: Change = lambda step: {}, noise: float = 0.01) -> Rows:
    rng = np.random.default_rng(seed)
    wave = rng.normal(0, noise, count)
    losses = [(2 + 8 * math.exp(-step / 50)) * math.exp(wave[step - 1]) for step in range(1, count + 1)]
    return [{"step": step, "loss": loss, "grad_norm": 1.0, **change(step)} for step, loss in enumerate(losses, 1)]


def log(rows: Rows, name: str = "train.log", environment: Mapping[str, str] | None = None) -> Trace:
    meta = Meta(
        label=name, environment=environment or {}, sources=(Source(path=name, format="training log"),),
    )  # fmt: skip
    return Trace({"training_series": build_table("training_series", rows)}, meta)


def judge(*traces: Trace) -> Outcome:
    return precision.run_on_run(Run(traces=traces))


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {judged.code: judged.verdict for judged in outcome.judged}


def only(outcome: Outcome) -> Finding:
    (found,) = outcome.findings
    return found


def value_of(found: Finding, name: str) -> object:
    return next(item.value for item in found.evidence if item.name.en == name)


def test_without_a_series_each_row_says_what_would_be_needed() -> None:
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": "a"}])
    outcome = judge(Trace({"kernels": kernels}, Meta(rank=0)))
    assert verdicts(outcome) == dict.fromkeys(("Q-01", "Q-02", "Q-03", "Q-05"), "not_judged")
    assert all(judged.reason is not None and "trainer_state.json" in judged.reason.en for judged in outcome.judged)
    assert outcome.tables == ()


def test_a_workload_that_does_not_train_is_not_asked_for_its_log() -> None:
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": "a"}])
    manifest = Manifest(workload="llm-serve", device="cpu", data_origin="measured", created="2026-01-01T00:00:00+00:00")
    outcome = precision.run_on_run(Run(traces=(Trace({"kernels": kernels}, Meta(rank=0)),), manifest=manifest))
    reasons = {judged.reason.en for judged in outcome.judged if judged.reason is not None}
    assert reasons == {"the workload wrote no losses; where it trains, put its log beside the profile"}


def test_one_healthy_run() -> None:
    outcome = judge(log(rows_of(1)))
    assert verdicts(outcome) == {"Q-01": "clean", "Q-02": "not_judged", "Q-03": "not_judged", "Q-05": "not_judged"}
    assert outcome.findings == ()
    (table,) = outcome.tables
    assert (table.name, len(table)) == ("training-series", 200)
    assert table.column("loss")[0] == pytest.approx(rows_of(1)[0]["loss"])


# ---- Q-01 ------------------------------------------------------------------------------------------------------------


def test_nan_to_the_end_is_critical_and_names_its_step() -> None:
    outcome = judge(log(rows_of(1, change=lambda s: {"loss": None, "loss_nonfinite": True} if s > 150 else {})))
    found = only(outcome)
    assert (found.code, found.severity) == ("Q-01", Severity.CRITICAL)
    assert found.title.en == "The loss is NaN or infinite from step 151 to the end"
    assert value_of(found, "rows with NaN or infinity") == 50
    events = next(table for table in outcome.tables if table.name == "training-events")
    assert [events.column(name)[0] for name in ("step", "last_step", "kind", "rows")] == [
        151, None, "loss not finite", 50,
    ]  # fmt: skip


def test_nan_that_passes_is_high() -> None:
    found = only(judge(log(rows_of(1, change=lambda s: {"grad_norm": None, "grad_norm_nonfinite": s in (70, 71)}))))
    assert (found.code, found.severity) == ("Q-01", Severity.HIGH)
    assert "2 rows" in found.title.en and "gradient norm of step 70" in found.title.en


def test_an_overflow_that_the_scaler_met_is_none() -> None:
    def scaler(step: int) -> Mapping[str, object]:
        is_over = step == 100
        return {
            "loss_scale": 65536.0 if step < 100 else 32768.0, "skipped": int(is_over), "grad_norm_nonfinite": is_over,
            "grad_norm": None if is_over else 1.0,
        }  # fmt: skip

    outcome = judge(log(rows_of(1, change=scaler)))
    assert verdicts(outcome)["Q-01"] == "clean"
    events = next(table for table in outcome.tables if table.name == "training-events")
    assert events.column("kind") == ("overflow, handled by the loss scale",)


def test_a_scale_that_keeps_falling() -> None:
    def scaler(step: int) -> Mapping[str, object]:
        falls, rest = divmod(max(0, step - 60), 30)
        return {"loss_scale": 2.0 ** (16 - falls), "skipped": int(falls > 0 and rest == 0)}

    trace = log(rows_of(1, change=scaler), environment={"INF_NAN_MODE_ENABLE": "0"})
    names = ("NPUGetFloatStatusV2", "NPUClearFloatStatusV2", "MatMul")
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": name} for name in names])
    profile = Trace({"kernels": kernels}, Meta(rank=0, device=Device(kind="npu")))
    found = only(judge(trace, profile))
    # 140 steps after step 60 make four falls; the scale settles at the start.
    assert value_of(found, "halvings since it had settled") == 4.0
    assert value_of(found, "loss scale at the end") == 4096.0
    assert value_of(found, "INF_NAN_MODE_ENABLE") == "0"
    assert value_of(found, "kernels that check for overflow") == 2
    assert found.severity is Severity.CRITICAL
    assert any("INF_NAN_MODE_ENABLE" in remedy.code for remedy in found.remedies)


def test_updates_that_are_skipped_again_and_again() -> None:
    def scaler(step: int) -> Mapping[str, object]:
        return {"loss_scale": 1024.0 if step % 25 else 512.0, "skipped": int(step % 25 == 0)}

    found = only(judge(log(rows_of(1, change=scaler))))
    assert found.title.en.startswith("8 of 200 updates were skipped")
    assert found.severity is Severity.HIGH


def test_a_scale_without_a_place_yet_is_not_judged() -> None:
    def scaler(step: int) -> Mapping[str, object]:
        return {"loss_scale": 2.0 ** (32 - step // 8), "skipped": int(step % 8 == 0)}

    outcome = judge(log(rows_of(1, count=60, change=scaler)))
    assert verdicts(outcome)["Q-01"] == "not_judged"


# ---- Q-02, Q-03 ------------------------------------------------------------------------------------------------------


def varied(rows: Rows, factor: Callable[[int], float]) -> Rows:
    return [{**row, "loss": row["loss"] * factor(i)} for i, row in enumerate(rows)]  # type: ignore[operator]


def test_equal_runs_are_clean() -> None:
    rows = rows_of(1)
    outcome = judge(log(rows, "a.log"), log(varied(rows, lambda i: 1 + 5e-4 * (-1) ** i), "b.log"))
    assert verdicts(outcome) == {"Q-01": "clean", "Q-02": "clean", "Q-03": "clean", "Q-05": "not_judged"}


def test_runs_that_part_at_some_step() -> None:
    rows = rows_of(1)
    other = varied(rows, lambda i: 1.0 if i < 79 else 1 + 0.02 * (-1) ** i)
    environment = {"HCCL_DETERMINISTIC": "false (default)"}
    outcome = judge(log(rows, "a.log", environment), log(other, "b.log"))
    found = only(outcome)
    assert (found.code, found.severity) == ("Q-02", Severity.HIGH)
    assert "from step 80 on" in found.title.en and "first common step" not in found.title.en
    assert value_of(found, "largest deviation") == pytest.approx(1 / 0.98 - 1)
    assert value_of(found, "HCCL_DETERMINISTIC") == "false (default)"
    assert value_of(found, "--seed") == "not recorded"
    assert verdicts(outcome)["Q-03"] == "clean"


def test_runs_that_differ_from_the_start_have_another_cause() -> None:
    found = only(judge(log(rows_of(1), "a.log"), log(rows_of(2), "b.log")))
    assert found.code == "Q-02"
    assert "initial weights, seed or data order" in found.cause.en


def test_a_drop_against_the_reference() -> None:
    rows = rows_of(1)
    kernels = build_table(
        "kernels",
        [
            {"start_ns": 0, "dur_ns": 5, "name": "aclnnConvolution_Conv2D_Conv2D", "hf32_eligible": "YES"},
            {"start_ns": 5, "dur_ns": 5, "name": "FastGelu", "hf32_eligible": "NO"},
        ],
    )
    profile = Trace({"kernels": kernels}, Meta(rank=0))
    worse = log(varied(rows, lambda i: 1.01), "new.log")
    outcome = judge(worse, log(rows, "reference/train.log"), profile)
    found = only(outcome)
    assert found.code == "Q-03"
    assert found.title.en == "The loss of new.log ends 1 % above that of reference/train.log"
    assert value_of(found, "mean deviation in the last quarter") == pytest.approx(0.01)
    assert value_of(found, "convolutions that may run in HF32") == 1
    assert value_of(found, "FastGelu kernels: another formula than GELU") == 1
    assert verdicts(outcome)["Q-02"] == "not_judged"
    # Better than the reference is no drop, yet the runs differ.
    better = judge(log(varied(rows, lambda i: 0.99), "new.log"), log(rows, "reference/train.log"))
    assert [found.code for found in better.findings] == ["Q-02"]


def test_a_difference_within_its_chance_is_no_drop() -> None:
    rows = rows_of(1)
    rng = np.random.default_rng(5)
    wander = 0.02 * np.sin(np.arange(200) / 8) + rng.normal(0, 0.01, 200)
    outcome = judge(log(rows, "a.log"), log(varied(rows, lambda i: float(np.exp(wander[i]))), "b.log"))
    assert [found.code for found in outcome.findings] == ["Q-02"]


def test_runs_of_other_settings_are_not_compared() -> None:
    rows, other = rows_of(1), rows_of(2)
    rates = [{**row, "learning_rate": 1e-4} for row in rows], [{**row, "learning_rate": 2e-4} for row in other]
    outcome = judge(log(rates[0], "a.log"), log(rates[1], "b.log"))
    assert outcome.findings == () and verdicts(outcome)["Q-02"] == verdicts(outcome)["Q-03"] == "not_judged"
    seeds = judge(log(rows, "a.log", {"--seed": "1"}), log(other, "b.log", {"--seed": "2"}))
    assert seeds.findings == ()
    assert next(j.reason.en for j in seeds.judged if j.code == "Q-02" and j.reason) == "no equal runs: --seed differ"


def test_few_common_steps_tell_nothing() -> None:
    outcome = judge(log(rows_of(1, count=19), "a.log"), log(rows_of(2, count=19), "b.log"))
    assert outcome.findings == () and verdicts(outcome)["Q-02"] == "not_judged"


def test_a_lower_accuracy_at_the_last_common_step() -> None:
    def evaluated(accuracy: float) -> Rows:
        return rows_of(1, change=lambda s: {"accuracy": accuracy} if s == 200 else {})

    outcome = judge(log(evaluated(0.80), "base.log"), log(evaluated(0.79), "int8.log"))
    found = only(outcome)
    assert (found.code, found.subject) == ("Q-03", "accuracy")
    assert value_of(found, "deviation") == pytest.approx(0.8 / 0.79 - 1)
    assert judge(log(evaluated(0.79), "base.log"), log(evaluated(0.80), "int8.log")).findings == ()


def test_a_loss_that_swings() -> None:
    wave = varied(rows_of(1, count=400), lambda i: 1 + 0.2 * (1 - math.cos(2 * math.pi * i / 80)))
    found = only(judge(log(wave)))
    assert (found.code, found.subject) == ("Q-02", "oscillation")
    swings = value_of(found, "swings")
    assert isinstance(swings, int) and 3 <= swings <= 5


# ---- Q-05 ------------------------------------------------------------------------------------------------------------


def ranks(events: Mapping[int, list[int]], count: int = 4) -> list[Trace]:
    made = []
    for rank in range(count):
        rows = [
            {**row, "rank": rank, **({"loss": 40.0} if row["step"] in events.get(rank, ()) else {})}
            for row in rows_of(rank)
        ]
        made.append(log(rows, f"rank_{rank}/train.log"))
    return made


def test_spikes_of_one_card_alone() -> None:
    outcome = judge(*ranks({2: [60, 90, 120, 150], 0: [100], 1: [100], 3: [100]}))
    found = only(outcome)
    assert (found.code, found.ranks, found.severity) == ("Q-05", (2,), Severity.CRITICAL)
    assert found.title.en.startswith("Rank 2 has 4 of the 4 NaN or spikes")
    assert "steps 60, 90, 120, 150" in found.title.en
    assert value_of(found, "chance, if they fell on the ranks at random") == pytest.approx(4 / 4**4)


def test_events_on_all_ranks_or_on_now_one_and_now_another_are_of_the_data() -> None:
    shared = judge(*ranks({rank: [60, 90, 120, 150] for rank in range(4)}))
    assert (shared.findings, verdicts(shared)["Q-05"]) == ((), "clean")
    spread = judge(*ranks({0: [60], 1: [90], 2: [120, 150], 3: [170]}))
    assert (spread.findings, verdicts(spread)["Q-05"]) == ((), "clean")


def test_nan_of_one_card_is_its_fault_and_no_overflow() -> None:
    made = ranks({})
    bad = [
        {**row, "rank": 1, **({"loss": None, "loss_nonfinite": True} if row["step"] in (70, 90, 110, 130) else {})}
        for row in rows_of(1)
    ]  # fmt: skip
    outcome = judge(made[0], log(bad, "rank_1/train.log"), *made[2:])
    assert [(found.code, found.ranks) for found in outcome.findings] == [("Q-05", (1,))]
    assert verdicts(outcome)["Q-01"] == "clean"


@given(st.integers(0, 7), st.integers(2, 4), st.integers(0, 8))
def test_the_tail_is_that_of_all_ways(count: int, ranks: int, least: int) -> None:
    ways = list(product(range(ranks), repeat=count))
    assert tail(count, 1 / ranks, least) == pytest.approx(sum(way.count(0) >= least for way in ways) / len(ways))


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_long_series_is_thinned_and_keeps_its_extremes() -> None:
    rows = rows_of(1, count=20_000)
    rows[12_345]["loss"] = 99.0  # type: ignore[index]
    (series,) = series_of(Run(traces=(log(rows),)))
    kept = thinned(series)
    assert len(kept) <= SERIES_POINTS and kept[0] == 0 and kept[-1] == 19_999
    assert 12_345 in kept and int(np.argmin(series.loss)) in kept
