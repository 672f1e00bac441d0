"""moe-pretrain: it learns, does what its formulas say, and trains alike on one process and on several."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape, active_parameter_count, expert_parameters, parameter_count
from ascend_perf.workloads._routing import Routing, padded_flops
from ascend_perf.workloads._spec import Place, Program
from ascend_perf.workloads._training import Training
from ascend_perf.workloads.llm_pretrain import Text
from ascend_perf.workloads.moe_pretrain import Config, moe_pretrain, predict
from tests.workloads._ranks import run_ranks
from tests.workloads._threads import one_thread as one_thread

SHAPE = ModelShape(
    layers=2, width=32, heads=4, kv_heads=4, hidden=48, vocabulary=64, attention="mla", kv_rank=16, nope_width=8,
    rope_width=4, value_width=8, experts=4, experts_per_token=2, shared_experts=1, expert_hidden=24, dense_layers=1,
)  # fmt: skip
SMALL = Config(shape=SHAPE, training=Training(tokens=16, batch=4, accumulate=2, dtype="fp32", learning_rate=0.01))
LEARNING = replace(SMALL, training=replace(SMALL.training, tokens=32, batch=8))
SLOTS = replace(SMALL, routing=Routing(capacity_factor=1.0))
BIAS = replace(SMALL, routing=Routing(score="sigmoid", bias_rate=0.05, weight_scale=2.5, balance_loss=1e-4))

torch_only = pytest.mark.torch


def training(config: Config, **changes: Any) -> Config:
    return replace(config, training=replace(config.training, **changes))


def trained(config: Config, steps: int, place: Place | None = None) -> Program:
    program = moe_pretrain.build(config, place or Place(), 0)
    for _ in range(steps):
        program.step()
    return program


def losses(config: Config, steps: int) -> Sequence[float]:
    return trained(config, steps).series()["loss"]


def figures(program: Program) -> dict[str, float]:
    return {metric.name: metric.value for metric in program.metrics() if metric.value is not None}


def test_the_presets_have_the_published_sizes() -> None:
    """Parameters of the checkpoints' own indices; active ones as the authors round them, in billions."""
    published = {
        "v2-lite": (15_706_484_224, 2.66),  # with the embedding table, which DeepSeek's 2.4 B leave out
        "mixtral-8x7b": (46_702_792_704, 12.9),
        "qwen3-30b-a3b": (30_532_122_624, 3.35),
    }
    for name, (count, active) in published.items():
        config = moe_pretrain.settings(name).config
        assert isinstance(config, Config)
        assert parameter_count(config.shape) == count, name
        assert active_parameter_count(config.shape) / 1e9 == pytest.approx(active, rel=0.005), name


@pytest.mark.parametrize(("name", "devices"), [("1b", 1), ("v2-lite", 8), ("mixtral-8x7b", 16), ("qwen3-30b-a3b", 16)])
def test_the_presets_fit_the_devices_that_they_name(name: str, devices: int) -> None:
    config = moe_pretrain.settings(name).config
    assert isinstance(config, Config)

    assert predict(config, devices).peak_bytes < 59e9


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the model has no layer with experts: set experts"):
        replace(SMALL, shape=replace(SHAPE, experts=0))


GOLDEN = [4.15270, 3.65584, 3.00872, 2.55337]
"""Loss of every third step of LEARNING in fp32 on a CPU with torch 2.13."""


@torch_only
def test_the_loss_follows_the_golden_curve() -> None:
    seen = losses(LEARNING, 12)

    assert seen[0] == pytest.approx(np.log(64), abs=0.02)  # that of guessing
    assert seen[:10:3] == pytest.approx(GOLDEN, abs=3e-3)
    assert seen[-1] < 2.6


@torch_only
@pytest.mark.parametrize(
    "change",
    [{"recompute": "selective"}, {"recompute": "full"}, {"batch": 8, "accumulate": 1}, {"batch": 1, "accumulate": 8}],
    ids=str,
)
def test_recomputation_and_accumulation_change_neither_loss_nor_load(change: dict[str, Any]) -> None:
    plain, changed = trained(SMALL, 6), trained(training(SMALL, **change), 6)

    # fp32 sums in another order: relative differences of 1e-7 a step, which training multiplies.
    assert changed.series()["loss"] == pytest.approx(plain.series()["loss"], rel=2e-5)
    for name in ("router_imbalance", "router_load_entropy", "router_balance_loss"):
        assert figures(changed)[name] == pytest.approx(figures(plain)[name], rel=0.02), name
    rows = changed.tables()["router_load"]
    assert sum(int(row["tokens"] or 0) for row in rows) == 6 * 8 * 16 * 2


@torch_only
@pytest.mark.parametrize(
    ("change", "loss", "norm"),
    [({"dtype": "bf16"}, 1e-2, 0.1), ({"dtype": "fp16"}, 1e-2, 0.1), ({"dtype": "bf16", "weights": "bf16"}, 3e-2, 0.3)],
    ids=["bf16", "fp16", "weights"],
)  # fmt: skip
def test_narrow_products_give_nearly_the_same_curve(change: dict[str, Any], loss: float, norm: float) -> None:
    # Rounding sends some pairs to other experts. The auxiliary loss is strong here: with fp16 its gradient is scaled.
    config = replace(SMALL, routing=Routing(balance_loss=0.1))
    plain, narrow = trained(config, 8), trained(training(config, **change), 8)

    assert narrow.series()["loss"] == pytest.approx(plain.series()["loss"], rel=loss)
    assert narrow.series()["grad_norm"] == pytest.approx(plain.series()["grad_norm"], rel=norm)
    assert figures(narrow)["router_imbalance"] == pytest.approx(figures(plain)["router_imbalance"], rel=0.05)


@torch_only
def test_the_load_is_that_of_the_measured_steps() -> None:
    program = trained(SMALL, 2)
    program.start_measuring()
    assert figures(program) == {}
    program.start_measuring()
    program.step()
    rows = program.tables()["router_load"]

    names = ("layer", "expert", "expert_rank")
    assert [tuple(row[name] for name in names) for row in rows] == [(1, expert, 0) for expert in range(4)]
    assert sum(int(row["tokens"] or 0) for row in rows) == 2 * 4 * 16 * 2


@torch_only
def test_the_balance_loss_balances() -> None:
    without, strong = (
        figures(trained(replace(SMALL, routing=Routing(balance_loss=factor)), 15)) for factor in (0.0, 0.3)
    )

    assert strong["router_imbalance"] < without["router_imbalance"] - 0.1
    assert "router_balance_loss" not in without


@torch_only
def test_the_bias_balances() -> None:
    steady = replace(BIAS.routing, balance_loss=0.0)
    without, biased = (
        figures(trained(replace(BIAS, routing=routing), 15)) for routing in (replace(steady, bias_rate=0.0), steady)
    )

    assert biased["router_imbalance"] < without["router_imbalance"] - 0.1


@torch_only
def test_a_resumed_run_goes_on_exactly_with_the_bias_of_its_routers(tmp_path: Path) -> None:
    straight = trained(BIAS, 3)
    assert straight.save is not None
    straight.save(tmp_path / "state")
    straight.step()
    straight.step()
    resumed = trained(BIAS, 2, Place(resume=tmp_path / "state"))
    unbiased = replace(BIAS, routing=replace(BIAS.routing, bias_rate=0.0))
    forgetful = trained(unbiased, 2, Place(resume=tmp_path / "state"))

    assert resumed.series()["loss"] == straight.series()["loss"][3:]
    assert forgetful.series()["loss"] != straight.series()["loss"][3:]  # the bias matters here


@torch_only
def test_slots_do_fixed_work_and_drop_tokens() -> None:
    program = trained(SLOTS, 4)
    seen = figures(program)

    assert program.series()["loss"][-1] < program.series()["loss"][0] - 0.1
    assert seen["router_dropped_tokens"] > 0
    assert seen["router_dropped_ratio"] == seen["router_dropped_tokens"] / (4 * 8 * 16 * 2)
    # At a factor of 1 there is a slot for each pair; at 1.5 half as many more: forward and two products backward.
    assert program.hardware_flops_per_step == program.flops_per_step
    wide = Routing(capacity_factor=1.5)
    more = padded_flops(SHAPE, wide, SMALL.training, Layout(), 1)
    assert more == 3 * 2 * expert_parameters(SHAPE) * (64 * 2 // 2) * 2
    assert padded_flops(SHAPE, Routing(), SMALL.training, Layout(), 1) == 0


@torch_only
@pytest.mark.parametrize("config", [SMALL, replace(SLOTS, routing=Routing(capacity_factor=1.5))], ids=["rows", "slots"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_work_is_what_torch_counts(config: Config, recompute: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    program = trained(training(config, recompute=recompute), 1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        program.step()

    assert counter.get_total_flops() == program.hardware_flops_per_step


# Several processes

JOBS: dict[str, tuple[Config, int]] = {
    # Name -> settings, and rows of a micro-batch for each of two data ranks: in all the 4 of one process.
    "ep2": (replace(SMALL, layout=Layout(expert_ranks=2)), 2),
    "ep2-fsdp": (replace(SMALL, layout=Layout(expert_ranks=2, data_parallel="fsdp")), 2),
    "ep2-full": (replace(training(SMALL, recompute="full"), layout=Layout(expert_ranks=2)), 2),
    "ep2-bias": (replace(BIAS, layout=Layout(expert_ranks=2)), 2),
    "ep2-packed": (
        replace(SMALL, layout=Layout(expert_ranks=2), text=Text(rows="packed", mean_document=9)), 2
    ),
    "dp2-fsdp": (replace(SMALL, layout=Layout(data_parallel="fsdp")), 2),
    "pp2": (replace(SMALL, layout=Layout(pipeline_ranks=2)), 4),
}  # fmt: skip
EXCEPT_BALANCE = replace(SMALL, routing=Routing(balance_loss=0.0))
GQA = replace(EXCEPT_BALANCE, shape=replace(SHAPE, attention="gqa"))
JOBS |= {
    # Where a row is cut, so is the row within which the auxiliary loss balances.
    "cp2-ep2": (replace(EXCEPT_BALANCE, layout=Layout(context_ranks=2, expert_ranks=2)), 4),
    "sp2": (replace(GQA, layout=Layout(tensor_ranks=2, sequence_parallel=True)), 4),
}
FOUR: dict[str, tuple[Config, int]] = {
    "dp4-ep2": (replace(SMALL, layout=Layout(expert_ranks=2)), 1),
    "dp4-ep2-fsdp": (replace(SMALL, layout=Layout(expert_ranks=2, data_parallel="fsdp")), 1),
    "dp4-ep4": (replace(SMALL, layout=Layout(expert_ranks=4)), 1),
    "dp2-pp2-ep2": (replace(SMALL, layout=Layout(pipeline_ranks=2, expert_ranks=2)), 2),
    "dp2-cp2-ep4-fsdp": (
        replace(EXCEPT_BALANCE, layout=Layout(context_ranks=2, expert_ranks=4, data_parallel="fsdp")), 2
    ),
    "dp2-sp2-ep2": (replace(GQA, layout=Layout(tensor_ranks=2, sequence_parallel=True, expert_ranks=2)), 2),
}  # fmt: skip


def train(jobs: dict[str, Config]) -> dict[str, Any]:
    """Programs one after the other in one job, so that processes start once."""
    import torch.distributed as dist

    from tests.workloads._layout_jobs import Counter

    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    results = {}
    for name, config in jobs.items():
        program = trained(config, 3, Place(rank=rank, world_size=world_size))
        with Counter() as counter:
            program.step()
        sent = {collective: tuple(total) for collective, total in counter.sent.items()}
        results[name] = {**program.series(), "figures": figures(program), "sent": sent,
                         "load": [row["tokens"] for row in program.tables()["router_load"]]}  # fmt: skip
    return results


SLOT_JOB = replace(training(SLOTS, batch=2), layout=Layout(expert_ranks=2))
SLOT_JOBS = {"slots": SLOT_JOB, "slots-full": training(SLOT_JOB, recompute="full")}
NARROW_JOBS = {
    "ep2-bf16": training(JOBS["ep2"][0], dtype="bf16"),
    "ep2-bf16-weights": training(JOBS["ep2"][0], dtype="bf16", weights="bf16"),
    "ep2-bf16-fsdp": training(JOBS["ep2-fsdp"][0], dtype="bf16"),
}


@cache
def of_two() -> list[dict[str, Any]]:
    jobs = {name: training(config, batch=rows) for name, (config, rows) in JOBS.items()}
    narrow = {name: training(config, batch=2) for name, config in NARROW_JOBS.items()}
    return run_ranks(train, 2, jobs | SLOT_JOBS | narrow)


@cache
def of_four() -> list[dict[str, Any]]:
    jobs = {name: training(config, batch=rows) for name, (config, rows) in FOUR.items()}
    return run_ranks(train, 4, jobs, timeout_s=600)


def assert_as_one(name: str, config: Config, ranks: list[dict[str, Any]]) -> None:
    one = train({name: replace(config, layout=Layout())})[name]
    for rank in (rank[name] for rank in ranks):
        assert rank["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert rank["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
        assert rank["load"] == ranks[0][name]["load"]
        # A tie or a rounding may send a pair elsewhere.
        assert np.abs(np.subtract(rank["load"], one["load"])).sum() <= 4
        for figure, value in one["figures"].items():
            if figure != "router_imbalance_per_call":  # which is of a rank's own tokens
                assert rank["figures"][figure] == pytest.approx(value, rel=0.02), figure


@torch_only
@pytest.mark.parametrize("name", JOBS)
def test_two_processes_train_as_one(name: str) -> None:
    assert_as_one(name, JOBS[name][0], of_two())


@torch_only
@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR)
def test_four_processes_train_as_one(name: str) -> None:
    assert_as_one(name, FOUR[name][0], of_four())


@torch_only
@pytest.mark.parametrize("name", ["ep2", "ep2-fsdp", "ep2-full", "ep2-bias", "cp2-ep2", *NARROW_JOBS])
def test_what_experts_exchange_is_predicted_in_the_mean_of_the_ranks(name: str) -> None:
    config, rows = JOBS[name] if name in JOBS else (NARROW_JOBS[name], 2)
    said: dict[str, list[int]] = {}
    for one in predict(training(config, batch=rows), 2).traffic:
        total = said.setdefault(one.collective, [0, 0])
        total[0], total[1] = total[0] + one.bytes_per_step, total[1] + one.calls_per_step

    sent = [rank[name]["sent"] for rank in of_two()]
    assert all(rank.keys() == said.keys() for rank in sent)
    for kind, (size, calls) in said.items():
        assert [rank[kind][1] for rank in sent] == [calls, calls], kind
        sizes = [rank[kind][0] for rank in sent]
        assert sum(sizes) == 2 * size, kind
        if kind != "all_to_all":
            assert sizes == [size, size], kind


@torch_only
def test_slots_over_ranks_send_what_is_predicted_and_compute_what_one_process_does() -> None:
    # One process drops by the queue of its own micro-batch: two ranks are as two micro-batches of half as many rows.
    one = train({"one": replace(training(SLOTS, batch=2, accumulate=4), layout=Layout())})["one"]

    for rank in of_two():
        for name, config in SLOT_JOBS.items():
            assert rank[name]["loss"] == pytest.approx(one["loss"], rel=1e-5)
            assert rank[name]["figures"]["router_dropped_tokens"] == one["figures"]["router_dropped_tokens"] > 0
            (expert,) = (said for said in predict(config, 2).traffic if said.axis == "expert")
            assert rank[name]["sent"]["all_to_all"] == (expert.bytes_per_step, expert.calls_per_step)


@torch_only
@pytest.mark.slow
def test_a_job_of_two_leaves_the_load_of_its_experts_and_a_report(tmp_path: Path) -> None:
    small = [f"--set={text}" for text in (
        "layers=2", "width=32", "heads=2", "kv_heads=2", "hidden=48", "vocabulary=64", "tokens=16", "dtype=fp32",
        "expert_hidden=16", "warmup_steps=1", "measured_steps=3", "profiled_steps=2", "expert_ranks=2",
    )]  # fmt: skip
    command = [sys.executable, "-m", "ascend_perf", "run", "moe-pretrain", "--nproc", "2", *small, "--device", "cpu",
               "-o", str(tmp_path), "--format", "json,md"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "results" / "router_load.csv").read_text("utf-8").splitlines()))
    # 3 steps x 2 ranks x 2 micro-batches of 2 rows of 16 tokens, two experts each; 8 experts on two ranks.
    assert sum(int(row["tokens"]) for row in rows) == 3 * 2 * 2 * 2 * 16 * 2
    assert [row["expert_rank"] for row in rows] == ["0"] * 4 + ["1"] * 4
    by_name = {metric["name"]: metric["value"] for metric in json.loads(
        (tmp_path / "manifest.json").read_text("utf-8")
    )["metrics"]}  # fmt: skip
    counts = [int(row["tokens"]) for row in rows]
    assert by_name["router_imbalance"] == pytest.approx(max(counts) * 8 / sum(counts))
    halves = sum(counts[:4]), sum(counts[4:])
    assert by_name["expert_rank_imbalance"] == pytest.approx(max(halves) * 2 / sum(counts))
    assert by_name["communication_per_step"] > by_name["predicted_communication_per_step"] * 0.8
    assert "moe-pretrain" in (tmp_path / "report" / "report.md").read_text("utf-8")


@torch_only
def test_operators_switched_off_compute_the_same() -> None:
    off = replace(SMALL, operators=FusedSettings(fused="off"))

    assert losses(off, 3) == pytest.approx(losses(SMALL, 3), rel=1e-6)
