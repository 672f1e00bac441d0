"""Every layout that 2 and 4 processes allow trains as one process does, and sends and holds what the formulas say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ascend_perf.errors import MachineError
from ascend_perf.workloads._job import Job
from ascend_perf.workloads._layout import Axes, Layout
from ascend_perf.workloads._rank_memory import rank_memory
from ascend_perf.workloads._rank_weights import rank_weights
from ascend_perf.workloads._spec import Place, Target
from ascend_perf.workloads._traffic import predict, rank_traffic
from ascend_perf.workloads._training import Training
from tests.workloads._layout_cases import EXPERTS, LATENT_EXPERTS, SHAPE, Case, Outcome, every_layout
from tests.workloads._ranks import run_ranks

pytestmark = pytest.mark.torch

TOLERANCE = 2e-6
"""Of losses of about 4 and norms of about 1, in fp32: sums in another order."""
BF16_TOLERANCE = 1e-2
FEW_BYTES = 64
"""Kept by single operators: factors of the loss."""
TRAINING = Training(tokens=16, batch=4, accumulate=2, dtype="fp32")
FULL, SELECTIVE = replace(TRAINING, recompute="full"), replace(TRAINING, recompute="selective")
SHARED = replace(TRAINING, distributed_optimizer=True)
PLAIN = Case(layout=Layout(), shape=SHAPE, training=TRAINING)


def cases_of(world: int) -> dict[str, Case]:
    """Every layout; and some with recomputation, with packed rows in which not every target counts, with experts."""
    layouts = every_layout(world)
    cases = {name: replace(PLAIN, layout=layout) for name, layout in layouts.items()}
    products = ("dp2-sp2-fsdp", "pp2-cp2-fsdp", "vpp2-tp2", "cp2-sp2")
    chosen = ("sp2", "cp2") if world == 2 else products
    cases |= {f"{name}-full": replace(PLAIN, layout=layouts[name], training=FULL) for name in chosen}
    chosen = ("pp2", "cp2") if world == 2 else products
    cases |= {f"{name}-packed": replace(PLAIN, layout=layouts[name], packed=True) for name in chosen}
    if world == 2:
        cases["cp2-selective"] = replace(PLAIN, layout=layouts["cp2"], training=SELECTIVE)
        cases["dp2-zero"] = replace(PLAIN, layout=layouts["dp2"], training=SHARED)
        cases["tp2-full"] = replace(PLAIN, layout=layouts["tp2"], training=FULL)
        tied = replace(SHAPE, tied=True, qk_norm=False, qkv_bias=False, kv_heads=2, layers=1)
        cases |= {f"{name}-tied": replace(PLAIN, layout=layouts[name], shape=tied) for name in ("dp2-fsdp", "tp2")}
    return cases | {f"{name}-experts": case for name, case in expert_cases(world).items()}


def expert_cases(world: int) -> dict[str, Case]:
    """Layers with experts, whole on each rank or shared out; the balance of routers is a loss within rows."""
    routed = replace(PLAIN, shape=LATENT_EXPERTS, balance_loss=0.1)
    latent, grouped = every_layout(world, LATENT_EXPERTS), every_layout(world, EXPERTS)
    if world == 4:
        chosen = ("dp4-ep2", "dp4-ep2-fsdp", "dp4-ep4-fsdp", "dp2-pp2-ep2", "dp2-pp2-ep2-fsdp")
        cases = {name: replace(routed, layout=latent[name]) for name in chosen}
        routed = replace(routed, balance_loss=0.0)
        cases |= {name: replace(routed, layout=latent[name]) for name in ("dp2-cp2-ep4", "pp2-cp2-ep2")}
        cases["dp2-sp2-ep2-full"] = replace(PLAIN, shape=EXPERTS, layout=grouped["dp2-sp2-ep2"], training=FULL)
        return cases
    cases = {name: replace(routed, layout=latent[name]) for name in ("dp2", "dp2-ep2", "dp2-ep2-fsdp", "pp2")}
    cases["dp2-ep2-full"] = replace(routed, layout=latent["dp2-ep2"], training=FULL)
    cases["cp2-ep2"] = replace(routed, layout=latent["cp2-ep2"], balance_loss=0.0)
    cases["sp2"] = replace(PLAIN, shape=EXPERTS, layout=grouped["sp2"])
    return cases


def narrow_cases(world: int) -> dict[str, Case]:
    """Products in bf16 over fp32 weights, and all in bf16."""
    cases = {}
    for name, layout in every_layout(world).items():
        cases[f"{name}-bf16"] = replace(PLAIN, layout=layout, dtype="bf16", training=replace(TRAINING, dtype="auto"))
        weights = replace(TRAINING, dtype="auto", weights="bf16")
        cases[f"{name}-bf16-weights"] = replace(PLAIN, layout=layout, dtype="bf16", training=weights)
    return cases


@cache
def outcomes(world: int, make: Callable[[int], dict[str, Case]]) -> list[dict[str, Outcome]]:
    """Of each rank; one job runs all cases."""
    from tests.workloads._layout_jobs import train_all

    return run_ranks(train_all, world, make(world), timeout_s=900)


@cache
def alone(case: Case) -> Outcome:
    """A training in this process, with as many threads as a rank of a job has."""
    import torch

    from tests.workloads._layout_jobs import train

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(case)
    finally:
        torch.set_num_threads(threads)


def assert_as_alone(case: Case, ranks: list[Outcome], tolerance: float) -> None:
    one = alone(replace(case, layout=Layout()))
    assert one.losses[-1] < one.losses[0] - 0.1  # it learns, so that equal losses say something
    for outcome in ranks:
        assert outcome.losses == pytest.approx(one.losses, abs=tolerance)
        assert outcome.norms == pytest.approx(one.norms, abs=tolerance)
        assert outcome.losses == ranks[0].losses  # every rank says the same


def job_of(case: Case, world: int) -> Job:
    axes = case.axes(world)
    training = replace(case.training, batch=case.rows // axes.data)
    return Job(
        shape=case.shape, layout=case.layout, training=training, axes=axes, dtype=case.dtype,  # type: ignore[arg-type]
        all_count=not case.packed, target=Target(kind="cpu"),
    )  # fmt: skip


def assert_sent_as_predicted(case: Case, ranks: list[Outcome]) -> None:
    job = job_of(case, len(ranks))
    said = [sums(job, rank) for rank in range(len(ranks))]
    sent = [dict(outcome.sent) for outcome in ranks]
    if job.axes.expert > 1:
        # What a rank sends back depends on the router: the formula has the mean.
        routed = [(one.pop("all_to_all"), other.pop("all_to_all")) for one, other in zip(sent, said, strict=True)]
        assert sum(size for (size, _), _ in routed) == sum(size for _, (size, _) in routed)
        assert [calls for (_, calls), _ in routed] == [calls for _, (_, calls) in routed]
    assert sent == said


def sums(job: Job, rank: int) -> dict[str, tuple[int, int]]:
    """Bytes and calls by collective."""
    said: dict[str, tuple[int, int]] = {}
    for one in rank_traffic(job, rank):
        size, calls = said.get(one.collective, (0, 0))
        said[one.collective] = size + one.bytes_per_step, calls + one.calls_per_step
    return said


def assert_holds_as_predicted(case: Case, ranks: list[Outcome]) -> None:
    job = job_of(case, len(ranks))
    for rank, outcome in enumerate(ranks):
        weights = rank_weights(case.shape, case.layout, job.axes, job.axes.place(rank)[0])
        assert outcome.names == {weight.name: weight.size for weight in weights}
        held = rank_memory(job, rank)
        assert held["weights"] == held["gradients"] == outcome.local_values * job.weight_bytes
        assert held["optimizer"] == 2 * outcome.updated_values * job.weight_bytes
        if not (case.packed or case.shape.experts):  # masks, and what the router's choice makes, are not in the formula
            assert held["activations"] == pytest.approx(outcome.activation_bytes, abs=FEW_BYTES)


@pytest.mark.parametrize("name", cases_of(2))
def test_two_processes_train_as_one_and_send_what_was_predicted(name: str) -> None:
    case, ranks = cases_of(2)[name], [outcome[name] for outcome in outcomes(2, cases_of)]

    assert_as_alone(case, ranks, TOLERANCE)
    assert_sent_as_predicted(case, ranks)
    assert_holds_as_predicted(case, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases_of(4))
def test_four_processes_train_as_one_and_send_what_was_predicted(name: str) -> None:
    case, ranks = cases_of(4)[name], [outcome[name] for outcome in outcomes(4, cases_of)]

    assert_as_alone(case, ranks, TOLERANCE)
    assert_sent_as_predicted(case, ranks)
    assert_holds_as_predicted(case, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", narrow_cases(2))
def test_bf16_rounds_otherwise_but_sends_what_was_predicted(name: str) -> None:
    case, ranks = narrow_cases(2)[name], [outcome[name] for outcome in outcomes(2, narrow_cases)]

    assert_as_alone(case, ranks, BF16_TOLERANCE)
    assert_sent_as_predicted(case, ranks)
    assert_holds_as_predicted(case, ranks)


def test_all_axes_and_products_are_among_the_cases() -> None:
    assert list(every_layout(2)) == ["dp2", "dp2-fsdp", "tp2", "sp2", "cp2", "cp2-fsdp", "pp2", "vpp2"]
    four = set(every_layout(4))
    assert four >= {"dp4", "tp4", "sp4", "cp4", "pp4", "dp2-tp2-fsdp", "dp2-sp2", "pp2-cp2-fsdp", "vpp2-tp2", "cp2-sp2"}
    assert not {name for name in four if name.startswith(("ep", "vpp4"))}


def test_traffic_of_tensor_parallelism_by_hand() -> None:
    layout = Layout(tensor_ranks=2)
    training = Training(tokens=8, batch=1, accumulate=3, dtype="fp32")
    shape = replace(SHAPE, layers=5, qk_norm=False, qkv_bias=False)

    said = predict(shape, layout, training, 2)

    # 8 tokens of 32 values of 4 bytes are 1024 bytes. In 5 layers 4 sums each; one at either end; twice the loss
    # with 1 and 2 values of 4 bytes for each of 8 tokens: 32 + 64 bytes. All that for each of 3 micro-batches.
    assert [(one.axis, one.collective, one.bytes_per_step, one.calls_per_step) for one in said.traffic] == [
        ("job", "all_reduce", 8, 2),
        ("tensor", "all_reduce", 3 * (22 * 1024 + 96), 3 * 24),
    ]


def test_memory_of_fsdp_by_hand() -> None:
    shape = replace(SHAPE, layers=1, qk_norm=False, qkv_bias=False)
    training = Training(tokens=8, batch=1, accumulate=1, dtype="fp32")

    said = predict(shape, Layout(data_parallel="fsdp"), training, 2)

    # Embedding and output 2 x 64 x 32, last norm 32; the layer: 4 matrices of attention of 32 x 32, 3 of the MLP of
    # 32 x 48, two norms of 32. Everything divides by two.
    outside, layer = 2 * 64 * 32 + 32, 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    weights = (outside + layer) // 2 * 4
    assert said.memory_bytes["weights"] == said.memory_bytes["gradients"] == weights
    assert said.memory_bytes["optimizer"] == 2 * weights
    assert said.memory_bytes["gathered"] == (outside + layer) * 4


def test_a_layout_that_does_not_fit_is_refused_before_the_run() -> None:
    said = r"^world of 3 = tensor 2 leaves 1.5 data ranks; valid world sizes: 2, 4, 6, 8"
    with pytest.raises(ValueError, match=said):
        predict(SHAPE, Layout(tensor_ranks=2), TRAINING, 3)


@pytest.mark.torch
def test_fsdp_on_a_torch_without_it_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    from ascend_perf.workloads._parallel import parallelise

    monkeypatch.delattr(fsdp, "fully_shard", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.5.1")

    def refused(layout: Layout, replicas: int) -> None:
        parallelise(
            _never, layout=layout, axes=Axes(data=replicas), place=Place(device="cpu", world_size=replicas), layers=1,
            seed=0, loss=_never,
        )  # fmt: skip

    with pytest.raises(MachineError) as said:
        refused(Layout(data_parallel="fsdp"), 2)

    assert said.value.what == "data_parallel fsdp needs torch 2.6 or newer, here is 2.5.1"
    assert said.value.hint == "--set data_parallel=ddp, or install a newer torch"
    # On one rank there is nothing to shard.
    with pytest.raises(AssertionError, match="built"):
        refused(Layout(data_parallel="fsdp"), 1)


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("built")
