"""A module that stands in for torch_npu on a machine without an NPU: strict signatures, plain arithmetic, a record.

Signatures are those of op-plugin's schema (a star makes what follows keyword-only there too). Each function checks what
the operator demands of its input, and computes its result apart from `_fused_plain`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Call = tuple[str, dict[str, Any]]


def stand_in(*, without: Sequence[str] = ()) -> tuple[types.ModuleType, list[Call]]:
    """The module, and the list into which its functions write their name and arguments."""
    module, calls = types.ModuleType("torch_npu"), list[Call]()
    for function in _FUNCTIONS:
        if function.__name__ not in without:
            setattr(module, function.__name__, _recorded(function, calls))
    optim = types.ModuleType("torch_npu.optim")
    if "NpuFusedAdamW" not in without:
        optim.NpuFusedAdamW = NpuFusedAdamW  # type: ignore[attr-defined]  # a stand-in
    module.optim = optim  # type: ignore[attr-defined]  # a stand-in
    return module, calls


def _recorded(function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    import inspect

    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)  # raises TypeError for an argument that the schema has not
        calls.append((function.__name__, dict(bound.arguments)))
        return function(*args, **kwargs)

    return call


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
    assert gamma.dtype in (self.dtype, torch.float32)
    x = self.double()
    rstd = 1 / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return (x * rstd * gamma.double()).to(self.dtype), rstd.float()


def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    added = (x1 + x2).detach()  # no gradient goes through this operator
    y, rstd = npu_rms_norm(added, gamma.detach(), epsilon)
    return y, rstd, added


def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Any = None) -> Tensor:
    assert self.dim() == r1.dim() == r2.dim() == 4 and rotary_mode == "half" and rotate is None
    assert r1.dtype == r2.dtype == self.dtype and self.shape[-1] % 2 == 0 and self.shape[-1] < 896
    half = self.shape[-1] // 2
    first, second = self[..., :half], self[..., half:]
    return torch.cat(
        (first * r1[..., :half] - second * r2[..., :half], second * r1[..., half:] + first * r2[..., half:]), dim=-1
    )


def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    assert self.shape[dim] % 2 == 0 and self.is_contiguous()
    half = self.shape[dim] // 2
    gate, up = self.narrow(dim, 0, half), self.narrow(dim, half, half)
    return gate * torch.sigmoid(gate) * up


def npu_gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    assert self.dtype in (torch.float16, torch.float32)
    if approximate == "none":
        return self * 0.5 * (1 + torch.erf(self / 2**0.5))
    return self * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (self + 0.044715 * self**3)))


def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-05, additional_output: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = x1 + x2
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    y = (x - mean) / (variance + epsilon).sqrt() * gamma + beta
    return y, mean, 1 / (variance + epsilon).sqrt(), x if additional_output else torch.empty(0)


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    assert mask.dtype == torch.bool and not fixed_triu_mask
    assert all(32 <= size <= 4096 and size % 32 == 0 for size in x.shape[-2:])
    weights = torch.where(mask, 0.0, torch.exp(x * scale))
    return weights / weights.sum(-1, keepdim=True)


def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Any = None,
    padding_mask: Any = None, atten_mask: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0,
    pre_tockens: int = 2147483647, next_tockens: int = 2147483647, inner_precise: int = 0, prefix: Any = None,
    actual_seq_qlen: Sequence[int] | None = None, actual_seq_kvlen: Sequence[int] | None = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, softmax_layout: str = "", sink: Any = None,
    dropout_mask: Any = None, seed: int = 0, offset: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] <= 768
    if input_layout == "TND":
        assert actual_seq_qlen is not None and actual_seq_kvlen is not None
        assert query.shape[1] == head_num and actual_seq_qlen[-1] == len(query)
        parts, q0, k0 = [], 0, 0
        for q1, k1 in zip(actual_seq_qlen, actual_seq_kvlen, strict=True):
            q, k, v = (x.transpose(0, 1)[None] for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
            parts.append(_attend(q, k, v, atten_mask, scale, sparse_mode)[0].transpose(0, 1))
            q0, k0 = q1, k1
        y = torch.cat(parts)
    else:
        assert input_layout == "BNSD" and query.shape[1] == head_num and actual_seq_qlen is None
        y = _attend(query, key, value, atten_mask, scale, sparse_mode)
    return y, None, None, None, 0, 0, 0


def npu_fused_infer_attention_score(
    query: Tensor, key: Tensor, value: Tensor, *, pse_shift: Any = None, atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None, actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Any = None, num_heads: int = 1, scale: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647, input_layout: str = "BSH", num_key_value_heads: int = 0, sparse_mode: int = 0,
    inner_precise: int = 0, block_size: int = 0, softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    assert query.dtype in (torch.float16, torch.bfloat16) and input_layout == "BNSD"
    assert query.shape[1] == num_heads and key.shape[1] == num_key_value_heads
    rows = []
    for row in range(len(query)):
        keys = key.shape[2] if actual_seq_lengths_kv is None else actual_seq_lengths_kv[row]
        mask = atten_mask
        if mask is not None and sparse_mode == 0:
            mask = mask[row : row + 1] if len(mask) > 1 else mask
        q, k, v = (x[row : row + 1].detach() for x in (query, key[:, :, :keys], value[:, :, :keys]))
        rows.append(_attend(q, k, v, mask, scale, sparse_mode))
    return torch.cat(rows), torch.empty(0)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, sparse_mode: int) -> Tensor:
    """B x H x T x D, one head after the other; a mask is True where nothing is seen."""
    T, S = q.shape[2], k.shape[2]
    if sparse_mode == 3:
        assert mask is not None and mask.shape == (2048, 2048) and bool(mask.equal(torch.ones(2048, 2048).triu(1) > 0))
        hidden = torch.ones(T, S).triu(S - T + 1) > 0
    else:
        assert sparse_mode == 0
        hidden = torch.zeros(T, S, dtype=torch.bool) if mask is None else mask
    hidden = hidden.expand(len(q), q.shape[1], T, S)
    heads = []
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        scores = q[:, head].float() @ k[:, group].float().transpose(-1, -2) * scale
        heads.append(torch.softmax(scores.masked_fill(hidden[:, head], -1e30), -1) @ v[:, group].float())
    return torch.stack(heads, dim=1).to(q.dtype)


def npu_cross_entropy_loss(
    input: Tensor, target: Tensor, weight: Any = None, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, lse_square_scale_for_zloss: float = 0.0, return_zloss: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert input.dim() == 2 and target.dtype == torch.int64
    log = input - input.exp().sum(-1, keepdim=True).log()
    counted = target != ignore_index
    loss = torch.where(counted, -log.gather(1, target.clamp(min=0)[:, None])[:, 0], 0.0)
    if reduction == "mean":
        loss = (loss.sum() / counted.sum()).reshape(1)
    elif reduction == "sum":
        loss = loss.sum().reshape(1)
    return loss, log, torch.empty(0), torch.empty(0)


def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    assert num_out_tokens is None and not padded_mode
    pairs = sorted((int(expert), row) for row, expert in enumerate(indices.flatten()))
    went = {row: place for place, (_, row) in enumerate(pairs)}
    permuted = torch.stack([tokens[row // indices.shape[1]] for _, row in pairs])
    return permuted, torch.tensor([went[row] for row in range(len(pairs))], dtype=torch.int32)


def npu_moe_token_unpermute(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: Any = None,
) -> Tensor:  # fmt: skip
    assert probs is not None and probs.dtype == permuted_tokens.dtype
    tokens, k = probs.shape
    rows = [
        sum(permuted_tokens[int(sorted_indices[token * k + choice])] * probs[token, choice] for choice in range(k))
        for token in range(tokens)
    ]
    return torch.stack(rows)


def npu_moe_gating_top_k_softmax(x: Tensor, finished: Any = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    y, experts = torch.softmax(x.detach().float(), -1).topk(k)
    return y.to(x.dtype), experts.int(), torch.empty(0)


def npu_moe_gating_top_k(
    x: Tensor, k: int, *, bias: Tensor | None = None, k_group: int = 1, group_count: int = 1,
    routed_scaling_factor: float = 1.0, eps: float = 1e-20, group_select_mode: int = 0, renorm: int = 0,
    norm_type: int = 0, out_flag: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert bias is not None and (renorm, norm_type, group_select_mode, out_flag) == (0, 1, 1, False)
    assert (x.shape[1], group_count, k_group) == (256, 8, 4) and k <= 32
    weights, experts = [], []
    for scores in 1 / (1 + torch.exp(-x)):
        biased = scores.detach() + bias
        groups = [sorted(biased[32 * group : 32 * group + 32].tolist())[-2:] for group in range(8)]
        kept = sorted(range(8), key=lambda group: -sum(groups[group]))[:4]
        allowed = [32 * group + place for group in kept for place in range(32)]
        best = sorted(allowed, key=lambda expert: -float(biased[expert]))[:k]
        chosen = scores[best]
        weights.append(chosen / (chosen.sum() + eps) * routed_scaling_factor)
        experts.append(torch.tensor(best, dtype=torch.int32))
    return torch.stack(weights), torch.stack(experts), torch.empty(0)


def npu_grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, bias: Any = None, group_list: Tensor | None = None,
    split_item: int = 0, group_type: int | None = None, group_list_type: int = 0, act_type: int = 0,
) -> list[Tensor]:  # fmt: skip
    """Counts per group only (`group_list_type` 1): over rows (group type 0), or over the summed axis (2)."""
    assert group_list is not None and group_list.dtype == torch.int64 and group_list_type == 1
    (left,), (right,) = x, weight
    left, right = left.detach(), right.detach()
    ends = group_list.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    if group_type == 0:
        assert split_item in (2, 3) and right.dim() == 3
        parts = [left[a:b] @ right[group] for group, (a, b) in enumerate(zip(starts, ends, strict=True))]
        return [torch.cat(parts)]
    assert group_type == 2 and split_item == 3
    return [torch.stack([left[:, a:b] @ right[a:b] for a, b in zip(starts, ends, strict=True)])]


class NpuFusedAdamW(torch.optim.AdamW):  # type: ignore[misc]  # torch is not type-checked here
    """What matters of torch_npu's: keeps its gradients, clips by itself, takes fp32 and fp16 only."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.dtype not in (torch.float32, torch.float16):
                    raise TypeError(f"fused optimizer got {weight.dtype}")

    def zero_grad(self, set_to_none: bool = False) -> None:
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers")
        super().zero_grad(set_to_none=False)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> Tensor:
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        total = sum(float(weight.grad.double().square().sum()) for weight in weights) ** 0.5
        if total > max_norm:
            for weight in weights:
                weight.grad.mul_(max_norm / (total + 1e-6))
        return torch.tensor(total)


_FUNCTIONS = (
    npu_rms_norm, npu_add_rms_norm, npu_rotary_mul, npu_swiglu, npu_gelu, npu_add_layer_norm,
    npu_scaled_masked_softmax, npu_fusion_attention, npu_fused_infer_attention_score, npu_cross_entropy_loss,
    npu_moe_token_permute, npu_moe_token_unpermute, npu_moe_gating_top_k_softmax, npu_moe_gating_top_k,
    npu_grouped_matmul,
)  # fmt: skip
