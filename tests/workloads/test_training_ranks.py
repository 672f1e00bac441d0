"""Training in jobs of several processes: the distributed optimizer, and states that go from one layout to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads._training import Training
from ascend_perf.workloads.llm_pretrain import Config, Text, llm_pretrain
from tests.workloads._ranks import run_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Four rows a step in every layout: batch x accumulate x data ranks.
ONE = Config(
    shape=ModelShape(layers=2, width=32, heads=4, kv_heads=2, hidden=48, vocabulary=64),
    training=Training(tokens=16, batch=2, accumulate=2, dtype="fp32", learning_rate=0.01),
)
TWO = replace(ONE, training=replace(ONE.training, accumulate=1))
TOLERANCE = 1e-5
"""Relative; sums in another order."""


def train(jobs: list[tuple[Config, int, Path | None, Path | None]]) -> list[dict[str, Any]]:
    """Programs one after the other in one job, so that processes start once."""
    import torch.distributed as dist

    there = dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
    results = []
    for config, steps, resume, save in jobs:
        program = llm_pretrain.build(config, Place(rank=rank, world_size=world_size, resume=resume), 0)
        for _ in range(steps):
            program.step()
        if save is not None:
            assert program.save is not None
            program.save(save)
        results.append({**program.series(), "memory": dict(program.memory_bytes())})
    return results


@pytest.mark.slow
def test_two_ranks_share_the_optimizer_skip_together_and_pass_states_between_layouts(tmp_path: Path) -> None:
    zero = replace(TWO, training=replace(TWO.training, distributed_optimizer=True))
    packed = replace(zero, text=Text(rows="packed", mean_document=9))
    tensor = replace(ONE, layout=Layout(tensor_ranks=2))
    fsdp = replace(TWO, layout=Layout(data_parallel="fsdp"))
    fp16 = replace(TWO, training=replace(TWO.training, dtype="fp16", loss_scale=2.0**24))
    (whole, straight, text) = train([(ONE, 3, None, tmp_path / "one"), (ONE, 6, None, None),
                                     (replace(ONE, text=packed.text), 3, None, None)])  # fmt: skip
    ranks = run_ranks(train, 2, [
        (zero, 3, None, tmp_path / "zero"), (packed, 3, None, None),
        (zero, 3, tmp_path / "one", None), (tensor, 3, tmp_path / "zero", tmp_path / "tensor"),
        (fsdp, 3, tmp_path / "one", tmp_path / "fsdp"), (fp16, 14, None, None),
    ])  # fmt: skip
    after = train([(ONE, 2, tmp_path / "tensor", None), (ONE, 2, tmp_path / "fsdp", None)])
    longer = train([(ONE, 8, None, None)])[0]

    for sharded, packed_run, from_one, from_zero, to_fsdp, _ in ranks:
        assert sharded["loss"] == pytest.approx(whole["loss"], rel=TOLERANCE)
        assert packed_run["loss"] == pytest.approx(text["loss"], rel=TOLERANCE)
        for resumed in (from_one, from_zero, to_fsdp):
            assert resumed["loss"] == pytest.approx(straight["loss"][3:], rel=TOLERANCE)
            assert resumed["grad_norm"] == pytest.approx(straight["grad_norm"][3:], rel=1e-3)
    for again in after:
        assert again["loss"] == pytest.approx(longer["loss"][6:], rel=TOLERANCE)
    # Both ranks skip the steps that overflow, until the scale fits, and then learn.
    first, second = (rank[-1] for rank in ranks)
    assert first["loss_scale"] == second["loss_scale"]
    assert first["loss_scale"][:3] == [2.0**24, 2.0**23, 2.0**22]
    assert first["loss_scale"][-1] == first["loss_scale"][-2] < 2.0**20
    assert first["loss"] == second["loss"]
    # Each moment lies on one of the two ranks, and so does the step count of each of the 21 weights.
    memory = [rank[0]["memory"] for rank in ranks]
    assert sum(part["optimizer"] for part in memory) == whole["memory"]["optimizer"]
    assert max(part["optimizer"] for part in memory) < 0.6 * whole["memory"]["optimizer"]
    assert all(part["weights"] == whole["memory"]["weights"] for part in memory)


def test_whole_weights_go_to_the_rank_that_has_least() -> None:
    from ascend_perf.workloads._rank_weights import owners

    # 7 to rank 0, 5 to rank 1, 4 to rank 1 (5 < 7), 3 to rank 0 (7 < 9), 1 to rank 1 (9 < 10).
    assert owners([3, 7, 4, 1, 5], 2) == [0, 0, 1, 1, 1]
    assert owners([], 3) == []
