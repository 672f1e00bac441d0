"""Jobs of several processes for the tests of layouts: a small training under each layout, with its calls counted."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_perf.workloads._decoder import Decoder
from ascend_perf.workloads._distributed_optimizer import Shares
from ascend_perf.workloads._fused import Fused, FusedSettings
from ascend_perf.workloads._layout import check
from ascend_perf.workloads._measured_memory import SavedTensors
from ascend_perf.workloads._moe import MixtureOfExperts
from ascend_perf.workloads._parallel import Parallel, parallelise
from ascend_perf.workloads._routing import Routing
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads._text_data import IGNORED, Batch
from tests.workloads._layout_cases import Case, Outcome

# S steps, M micro-batches, B rows, T tokens

COLLECTIVES = {
    "allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all", "broadcast_": "broadcast", "send": "send",
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
    """Counts what is sent: the input of each call, of all_gather the output, as `Traffic` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and (name := func._schema.name.split("::")[1]) in COLLECTIVES:
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            if name in ("_reduce_scatter_base_", "alltoall_base_"):
                tensors = [args[1]]
            total = self.sent[COLLECTIVES[name]]
            total[0] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            total[1] += 1
        return func(*args, **(kwargs or {}))


def data_of(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Tokens, targets, positions and segments, S x M x B x T: counting sequences, which can be learnt."""
    random = torch.Generator().manual_seed(1)
    tokens, vocabulary = case.training.tokens, case.shape.vocabulary
    size = (case.steps, case.training.accumulate, case.rows)
    start = torch.randint(vocabulary, (*size, 1), generator=random)
    text = (start + torch.arange(tokens + 1)) % vocabulary
    given, targets = text[..., :-1], text[..., 1:].clone()
    if not case.packed:
        return given, targets, None, None
    border = torch.randint(1, tokens, (*size, 1), generator=random)
    place = torch.arange(tokens)
    segments = (place >= border).long()
    targets[torch.rand(targets.shape, generator=random) < 0.3] = IGNORED
    return given, targets, place - segments * border, segments


def train(case: Case) -> Outcome:
    """The training on this rank of the job that is there, or in one process without one."""
    is_job = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if is_job else (0, 1)
    fused = Fused(FusedSettings(fused="off"))
    axes = check(
        case.layout, case.shape, world_size=world, tokens=case.training.tokens, accumulate=case.training.accumulate
    )

    def part(layers: range, has_embedding: bool, has_output: bool) -> Decoder:
        made = Decoder(
            case.shape, fused=fused, recompute=case.training.recompute, layers=layers, has_embedding=has_embedding,
            has_output=has_output,
        )  # fmt: skip
        for layer in made.modules():
            if isinstance(layer, MixtureOfExperts):
                layer.routing = Routing(balance_loss=case.balance_loss)
        return made

    job = parallelise(
        part, layout=case.layout, axes=axes, place=Place(rank=rank, world_size=world), layers=case.shape.layers, seed=3,
        loss=lambda logits, targets: fused.cross_entropy(logits, targets, reduction="sum"),
        weights=DTYPES[case.training.weights], matmul=DTYPES[case.dtype], all_count=not case.packed,
    )  # fmt: skip
    outcome = Outcome(names={name: tuple(weight.shape) for name, weight in job.names.items()})
    outcome.local_values = sum(_local(weight).numel() for weight in job.names.values())
    # Plain gradient descent: unlike AdamW it does not blow a difference of rounding up to a whole step.
    weights = list(job.names.values())
    replicas = job.groups["replica"]
    shares = Shares(weights, replicas) if case.training.distributed_optimizer and replicas is not None else None
    mine = weights if shares is None else [weight for weight in weights if shares.is_mine(weight)]
    outcome.updated_values = sum(_local(weight).numel() for weight in mine)
    optimizer = torch.optim.SGD(mine, lr=0.5)
    data = data_of(case)
    for step in range(case.steps):
        with Counter() as counter, SavedTensors() as saved:
            outcome.losses.append(float(job.forward_backward(_batches(data, step, job))))
            outcome.norms.append(float(job.clip_grad_norm_(1.0)))
            optimizer.step()
            if shares is not None:
                shares.exchange()
            for weight in weights:
                weight.grad = None
        outcome.activation_bytes = saved.peak_bytes
        outcome.sent = {name: (size, calls) for name, (size, calls) in counter.sent.items()}
    job.groups.close()
    return outcome


def train_all(cases: dict[str, Case]) -> dict[str, Outcome]:
    """Each in turn."""
    return {name: train(case) for name, case in cases.items()}


def _batches(data: tuple[torch.Tensor | None, ...], step: int, job: Parallel) -> list[Batch]:
    def mine(whole: torch.Tensor | None, micro: int) -> torch.Tensor | None:
        return None if whole is None else whole[step, micro].chunk(job.data_ranks)[job.data_rank].clone()

    tokens = data[0]
    assert tokens is not None
    return [
        Batch(tokens_BT=mine(tokens, micro), targets_BT=mine(data[1], micro), positions_BT=mine(data[2], micro),
              segments_BT=mine(data[3], micro))
        for micro in range(tokens.shape[1])
    ]  # fmt: skip


def _local(weight: torch.Tensor) -> torch.Tensor:
    to_local = getattr(weight, "to_local", None)
    return weight if to_local is None else to_local()
