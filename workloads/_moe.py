"""Mixture of experts: a router sends each token through k of E small gated MLPs, and through the shared ones.

    x -> router -> weights, experts -> sort rows by expert [-> to the ranks of the experts] -> gate, up, SwiGLU, down
      -> [back] -> each token's rows, weighed and summed -> + shared experts -> y

No token is dropped unless a capacity is set. The experts' products run as one grouped product each, or one after the
other, and sorting as one operator or as torch's own, by the switch of `_fused.py`. Over an expert group rows travel by
all_to_all of uneven parts; the host waits for their sizes. With a capacity every expert has a fixed number of slots:
nothing waits, but slots stay empty and tokens are dropped.

Source:
    DeepSeekMoE, 2024; the loss that balances: DeepSeek-V2, 2024, equations 23 to 25, within each row; the bias that
    balances: DeepSeek-V3, 2024, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from ascend_perf.workloads._decoder import SwiGLU
from ascend_perf.workloads._fused_plain import sorted_order, unpermute
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._routing import LayerLoad, Routing
from ascend_perf.workloads._virtual import computes_nothing, even_parts

if TYPE_CHECKING:
    from ascend_perf.workloads._fused import Fused

# B batch, T tokens of a row, N tokens of all rows, W width, E experts (of this rank inside `Experts`), K experts of a
# token, R = N x K rows, Q rows that came from other ranks, C slots of an expert, X inputs
# and O outputs of a product


class Experts(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """The weights of the routed experts that this rank holds, and nothing else.

    Rows of all experts lie in the first axis, one expert after the other: FSDP cuts that axis, and there are often more
    ranks than experts.
    """

    def __init__(self, shape: ModelShape, fused: Fused) -> None:
        super().__init__()
        self.fused, self.width, self.hidden = fused, shape.width, shape.expert_hidden
        self.gate = nn.Parameter(torch.empty(shape.experts * self.hidden, self.width))
        self.up = nn.Parameter(torch.empty(shape.experts * self.hidden, self.width))
        self.down = nn.Parameter(torch.empty(shape.experts * self.width, self.hidden))

    def forward(self, x: Tensor, counts_E: Tensor | None = None) -> Tensor:
        """Rows after their expert: x_RW in the order of the experts, `counts_E` for each; or without counts x_ECW."""
        if counts_E is not None and not self.fused.uses("grouped_matmul"):
            counts_E = counts_E.cpu()  # once for three products, each of which asks for them
            if computes_nothing(x.device.type):
                counts_E = torch.tensor(even_parts(len(x), len(counts_E)))
        gate, up = (self._product(x, weight, self.hidden, counts_E) for weight in (self.gate, self.up))
        return self._product(self.fused.swiglu(gate, up), self.down, self.width, counts_E)

    def _product(self, x: Tensor, weight: Tensor, outputs: int, counts_E: Tensor | None) -> Tensor:
        weight_EXO = weight.to(x.dtype).unflatten(0, (-1, outputs)).transpose(1, 2)
        return torch.bmm(x, weight_EXO) if counts_E is None else self.fused.grouped_matmul(x, weight_EXO, counts_E)


class MixtureOfExperts(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Router, routed experts and shared experts of one layer."""

    def __init__(self, shape: ModelShape, *, layer: int, fused: Fused, routing: Routing | None = None) -> None:
        super().__init__()
        self.shape, self.layer, self.fused = shape, layer, fused
        self.routing = Routing() if routing is None else routing
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = Experts(shape, fused)
        hidden = shape.shared_experts * shape.expert_hidden
        self.shared = SwiGLU(shape.width, hidden, fused) if hidden else None
        self.expert_group: dist.ProcessGroup | None = None
        """Ranks that share out the experts, in order; set by `_parallel.share_out_experts`."""
        self.balance_weight = 0.0
        """Factor of this layer's auxiliary loss in the gradient; set by `_parallel` before each step."""
        # Counts, not values: whatever type the weights get, these stay exact. Only the bias belongs to a saved state.
        self.register_buffer("chosen_E", torch.zeros(shape.experts, dtype=torch.int64), persistent=False)
        self.register_buffer("numbers_3", torch.zeros(3, dtype=torch.int64), persistent=False)
        """Dropped pairs, sum over calls of the fullest expert's pairs, calls."""
        self.register_buffer("bias_steps_E", torch.zeros(shape.experts, dtype=torch.int64))
        """The bias of each expert's score in units of `bias_rate`."""
        self.balance_sum: Tensor | None = None

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Transformed tokens."""
        x_BTW = as_product(x_BTW)
        # Before the others: full recomputation ends where the last saved tensor is there again, which is theirs.
        shared_BTW = None if self.shared is None else self.shared(x_BTW)
        x_NW = x_BTW.flatten(0, 1)
        slots = self.routing.slots(self.shape, len(x_NW))
        with record_function("moe::route"):
            weights_NK, experts_NK, counts_E = self._routed(x_NW, len(x_BTW), slots)
        if slots:
            y_NW = self._through_slots(x_NW, weights_NK, experts_NK, counts_E, slots)
        else:
            x_RW, rows_R = self.fused.moe_permute(x_NW, experts_NK)
            y_RW = self.experts(x_RW, counts_E) if self.expert_group is None else self._elsewhere(x_RW, counts_E)
            y_NW = self.fused.moe_unpermute(y_RW, rows_R, weights_NK)
        y_BTW = y_NW.view_as(x_BTW)
        return y_BTW if shared_BTW is None else y_BTW + shared_BTW

    def _routed(self, x_NW: Tensor, batch: int, slots: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and numbers of each token's experts, and how many pairs each expert got."""
        routing, E, K = self.routing, self.shape.experts, self.shape.experts_per_token
        logits_NE = self.router(x_NW)
        bias_E = self.bias_steps_E * routing.bias_rate if routing.bias_rate else None
        weights_NK, experts_NK = self.fused.moe_gating(
            logits_NE, K, score=routing.score, bias_E=bias_E, groups=routing.expert_groups,
            groups_kept=routing.expert_groups_kept, normalise=routing.normalise, scale=routing.weight_scale,
        )  # fmt: skip
        chosen_BX = experts_NK.view(batch, -1)
        counts_BE = chosen_BX.new_zeros(batch, E).scatter_add_(1, chosen_BX, torch.ones_like(chosen_BX))
        counts_E = counts_BE.sum(0)
        if not torch.is_grad_enabled():
            return weights_NK, experts_NK, counts_E
        balance = balance_loss(logits_NE, counts_BE, routing.score) if routing.balance_loss else None
        return _Recorded.apply(weights_NK, balance, self, counts_E, slots), experts_NK, counts_E

    def _elsewhere(self, x_RW: Tensor, counts_E: Tensor) -> Tensor:
        """Rows after their expert, which lies on one of the ranks of the expert group."""
        group = self.expert_group
        ranks = dist.get_world_size(group)
        received_E = torch.empty_like(counts_E)  # by rank that sends, then by expert that lies here
        dist.all_to_all_single(received_E, counts_E, group=group)
        sums = torch.stack((counts_E, received_E)).view(2, ranks, -1).sum(-1)
        sent, received = sums.tolist()  # the host waits
        if computes_nothing(x_RW.device.type):
            sent = received = even_parts(len(x_RW), ranks)
        x_QW = _AllToAll.apply(x_RW, sent, received, group)
        local = len(received_E) // ranks
        expert_Q = torch.arange(local, device=x_RW.device).repeat(ranks)
        expert_Q = expert_Q.repeat_interleave(received_E, output_size=sum(received))
        x_QW, rows_Q = self.fused.moe_permute(x_QW, expert_Q.unsqueeze(1))
        y_QW = self.experts(x_QW, received_E.view(ranks, local).sum(0))
        return _AllToAll.apply(y_QW.index_select(0, rows_Q), received, sent, group)

    def _through_slots(
        self, x_NW: Tensor, weights_NK: Tensor, experts_NK: Tensor, counts_E: Tensor, slots: int
    ) -> Tensor:
        """Sum of each token's experts, of which each takes its first `slots` tokens."""
        (N, W), E, K = x_NW.shape, self.shape.experts, self.shape.experts_per_token
        expert_R = experts_NK.flatten()
        place_R = sorted_order(sorted_order(expert_R))
        place_R = place_R - (counts_E.cumsum(0) - counts_E)[expert_R]  # in the queue of its expert
        # One slot behind the last takes what is dropped, and one row behind the last token is what empty slots hold.
        slot_R = torch.where(place_R < slots, expert_R * slots + place_R, E * slots)
        token_R = torch.arange(N, device=x_NW.device).repeat_interleave(K)
        token_S = slot_R.new_full((E * slots + 1,), N).index_copy(0, slot_R, token_R)[:-1]
        x_ECW = torch.cat((x_NW, x_NW.new_zeros(1, W))).index_select(0, token_S).view(E, slots, W)
        if self.expert_group is None:
            y_ECW = self.experts(x_ECW)
        else:
            ranks = dist.get_world_size(self.expert_group)
            even = [E // ranks * slots] * ranks
            x_QW = _AllToAll.apply(x_ECW.flatten(0, 1), even, even, self.expert_group)
            x_EQW = x_QW.view(ranks, -1, slots, W).transpose(0, 1).flatten(1, 2)
            y_QW = self.experts(x_EQW).unflatten(1, (ranks, slots)).transpose(0, 1).reshape(-1, W)
            y_ECW = _AllToAll.apply(y_QW, even, even, self.expert_group)
        y_SW = torch.cat((y_ECW.reshape(-1, W), y_ECW.new_zeros(1, W)))
        return unpermute(y_SW, slot_R, weights_NK.to(y_SW.dtype))

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def record(self, counts_E: Tensor, slots: int, balance: Tensor | None) -> None:
        """Add the choices of one micro-batch, in which each expert took at most `slots` tokens (0: all)."""
        fullest = counts_E.max()
        dropped = (counts_E - slots).clamp(min=0).sum() if slots else torch.zeros_like(fullest)
        self.chosen_E += counts_E
        self.numbers_3 += torch.stack((dropped, fullest, torch.ones_like(fullest)))
        if balance is not None:
            self.balance_sum = balance if self.balance_sum is None else self.balance_sum + balance

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def forget(self) -> None:
        """Begin counting again."""
        self.chosen_E.zero_()
        self.numbers_3.zero_()
        self.balance_sum = None


def as_product(x: Tensor) -> Tensor:
    """In the type to which autocast would turn it, so that rows are sorted and sent in that."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def balance_loss(logits_NE: Tensor, counts_BE: Tensor, score: str) -> Tensor:
    """E x sum over experts of (share of the choices x mean score) within each row, mean over rows: 1 in balance.

    Scores of a token sum to one. Rows count for themselves, so that it does not matter how rows are spread over
    micro-batches and ranks.
    """
    B, E = counts_BE.shape
    logits_NE = logits_NE.float()
    if score == "softmax":
        score_NE = logits_NE.softmax(-1)
    else:
        score_NE = logits_NE.sigmoid()
        score_NE = score_NE / score_NE.sum(-1, keepdim=True)
    mean_BE = score_NE.view(B, -1, E).mean(1)
    share_BE = counts_BE.to(mean_BE.dtype) / counts_BE.sum(-1, keepdim=True)
    return E * (share_BE * mean_BE).sum(-1).mean()


class _Recorded(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Lets weights through, and in the backward pass records the choices and gives the auxiliary loss its gradient.

    In the backward pass, because that runs once where recomputation runs the forward pass twice.
    """

    @staticmethod
    def forward(
        ctx: Any, weights_NK: Tensor, balance: Tensor | None, layer: MixtureOfExperts, counts_E: Tensor, slots: int
    ) -> Tensor:
        ctx.layer, ctx.counts_E, ctx.slots = layer, counts_E, slots
        ctx.balance = None if balance is None else balance.detach()
        return weights_NK.view_as(weights_NK)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.layer.record(ctx.counts_E, ctx.slots, ctx.balance)
        if ctx.balance is None:
            return gradient, None, None, None, None
        weight = ctx.layer.balance_weight * ctx.layer.routing.balance_loss
        return gradient, torch.full_like(ctx.balance, weight), None, None, None


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Rows to other ranks: `sent[r]` consecutive ones to rank r, `received[r]` from it. Gradients go back."""

    @staticmethod
    def forward(
        ctx: Any, x_RW: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(x_RW, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchanged(x_RW: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    y_QW = x_RW.new_empty((sum(received), x_RW.shape[1]))
    dist.all_to_all_single(y_QW, x_RW.contiguous(), received, sent, group=group)
    return y_QW


# The load of a whole job


class RouterLoads:
    """What the routers of a training chose, over all ranks; and the bias that follows from it.

    Counts stay on the device until they are asked for. All ranks ask together.
    """

    def __init__(self, parts: Iterable[nn.Module], shape: ModelShape, routing: Routing, device: str) -> None:
        self.layers = [layer for part in parts for layer in part.modules() if isinstance(layer, MixtureOfExperts)]
        self.shape, self.routing, self.device = shape, routing, device
        self._before_LE: Tensor | None = None
        self._read: tuple[list[LayerLoad], float | None] | None = None

    def forget(self) -> None:
        """Begin counting again."""
        for layer in self.layers:
            layer.forget()
        self._before_LE = self._read = None

    def update_bias(self) -> None:
        """After a step: less bias for experts that had more than the mean load in it, more for those that had less."""
        if not self.routing.bias_rate:
            return
        with torch.no_grad(), record_function("moe::bias"):
            now_LE = self._chosen()
            step_LE = now_LE if self._before_LE is None else now_LE - self._before_LE
            self._before_LE = now_LE.clone()
            if dist.is_initialized():
                dist.all_reduce(step_LE)
            for layer in self.layers:
                step_E = step_LE[layer.layer - self.shape.dense_layers]
                layer.bias_steps_E += torch.sign(step_E.sum() - step_E * len(step_E))

    def read(self) -> tuple[list[LayerLoad], float | None]:
        """The load of every layer of the model since `forget`, and the mean auxiliary loss."""
        if self._read is None:
            self._read = self._gathered()
        return self._read

    def _chosen(self) -> Tensor:
        """Pairs by layer with experts and expert; layers of other pipeline ranks have none here."""
        all_LE = torch.zeros(self.shape.moe_layers, self.shape.experts, dtype=torch.int64, device=self.device)
        for layer in self.layers:
            all_LE[layer.layer - self.shape.dense_layers] = layer.chosen_E
        return all_LE

    def _gathered(self) -> tuple[list[LayerLoad], float | None]:
        chosen_LE = self._chosen()
        numbers_L3 = chosen_LE.new_zeros(len(chosen_LE), 3)
        balance = torch.zeros((), dtype=torch.float32, device=chosen_LE.device)
        for layer in self.layers:
            numbers_L3[layer.layer - self.shape.dense_layers] = layer.numbers_3
            balance += 0.0 if layer.balance_sum is None else layer.balance_sum
        if dist.is_initialized():
            for counts in (chosen_LE, numbers_L3, balance):
                dist.all_reduce(counts)
        numbers = numbers_L3.tolist()
        loads = [
            LayerLoad(layer=self.shape.dense_layers + place, chosen_E=chosen, dropped=dropped, fullest=fullest)
            for place, (chosen, (dropped, fullest, _)) in enumerate(zip(chosen_LE.tolist(), numbers, strict=True))
        ]
        calls: Sequence[int] = [one[2] for one in numbers]
        return loads, float(balance) / sum(calls) if self.routing.balance_loss and sum(calls) else None
