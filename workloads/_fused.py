"""Fused operators of torch_npu behind one switch, each beside plain torch that computes the same on any device.

    fused: auto          use an operator where the device is an NPU and the operator fits, else plain torch
    fused: on            as auto, but a device or a torch_npu without the operators is an error
    fused: off           plain torch everywhere
    fused_ops: rms_norm=off,attention=on      single operators, before `fused`

An operator without a gradient is used in inference only. Signatures and limits are those of op-plugin's schema and its
pages on custom APIs. Plain torch is what a GPU runs: where torch has a fused kernel of its own (attention, RMSNorm,
AdamW), that one.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ascend_perf.errors import UsageError, first_line
from ascend_perf.workloads._spec import Value, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# B batch, T tokens, S keys, H heads, G key-value heads, D head width, E experts, N tokens of all sequences, K experts
# of a token, R = N x K rows, W width, V vocabulary


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of the switch."""

    apis: tuple[str, ...]
    """What must be there, inside torch_npu."""
    in_training: bool = True
    in_inference: bool = True


# Those without a gradient are for inference only. lint-npu: ignore-file[no-gradient]
OPERATORS: Final[Mapping[str, Operator]] = {
    "rms_norm": Operator(apis=("npu_rms_norm",)),
    "add_rms_norm": Operator(apis=("npu_add_rms_norm",), in_training=False),
    "rotary": Operator(apis=("npu_rotary_mul",)),
    "swiglu": Operator(apis=("npu_swiglu",)),
    "attention": Operator(apis=("npu_fusion_attention",), in_inference=False),
    "infer_attention": Operator(apis=("npu_fused_infer_attention_score",), in_training=False),
    "add_layer_norm": Operator(apis=("npu_add_layer_norm",)),
    "gelu": Operator(apis=("npu_gelu",)),
    "scaled_masked_softmax": Operator(apis=("npu_scaled_masked_softmax",)),
    "cross_entropy": Operator(apis=("npu_cross_entropy_loss",)),
    "moe_permute": Operator(apis=("npu_moe_token_permute", "npu_moe_token_unpermute")),
    "moe_gating": Operator(apis=("npu_moe_gating_top_k_softmax",), in_training=False),
    "moe_group_gating": Operator(apis=("npu_moe_gating_top_k",)),
    "grouped_matmul": Operator(apis=("npu_grouped_matmul",)),
    "adamw": Operator(apis=("optim.NpuFusedAdamW",), in_inference=False),
}
"""By the names that `fused_ops` takes. `npu_grouped_matmul` has no gradient of its own; `_fused_plain` gives it one."""

COMPRESSED_MASK_SIZE: Final = 2048
"""Side of the triangle that sparse modes 2 and 3 of the attention operators want, whatever the length."""


@dataclass(frozen=True, kw_only=True)
class FusedSettings:
    """A group of settings (see `_spec.Workload`): which fused operators are used."""

    fused: Literal["auto", "on", "off"] = "auto"
    fused_ops: str = ""
    """Single operators that differ, as `rms_norm=off,attention=on`."""

    def __post_init__(self) -> None:
        self.overrides()

    def overrides(self) -> dict[str, str]:
        """Operator -> auto, on or off.

        Raises:
            ValueError: the text names no operator, or a word that is not auto, on or off.
        """
        chosen: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in self.fused_ops.split(","))):
            name, equals, mode = (word.strip() for word in part.partition("="))
            if name not in OPERATORS:
                raise ValueError(
                    f"fused_ops: no operator {name!r}{did_you_mean(name, OPERATORS)}; there are {', '.join(OPERATORS)}"
                )
            if not equals or mode not in ("auto", "on", "off"):
                raise ValueError(f"fused_ops: {part!r} is not {name}=auto, {name}=on or {name}=off")
            chosen[name] = mode
        return chosen


def operators_in_training(settings: FusedSettings, kind: str) -> frozenset[str]:
    """Operators of torch_npu that a training runs on a device of that kind, where its torch_npu has them all."""
    if kind != "npu":
        return frozenset()
    modes = dict.fromkeys(OPERATORS, settings.fused) | settings.overrides()
    return frozenset(name for name, mode in modes.items() if mode != "off" and OPERATORS[name].in_training)


class Fused:
    """The operators of one program, as chosen for its device.

    Raises:
        UsageError: `on` was asked for an operator that this device, this torch_npu or this use (training) has not.
    """

    def __init__(self, settings: FusedSettings | None = None, kind: str = "cpu", training: bool = True) -> None:
        settings = FusedSettings() if settings is None else settings
        self.kind, self.training = kind, training
        self.skipped: dict[str, str] = {}
        """Operators that were wanted but could not take what they were given, with the first reason."""
        from ascend_perf.workloads import _fused_plain

        self._plain = _fused_plain
        self._modes = dict.fromkeys(OPERATORS, settings.fused) | settings.overrides()
        self._named = frozenset(settings.overrides())
        self._npu = self._module()
        self._chosen = {name for name in OPERATORS if self._is_chosen(name)}
        self._mask: Tensor | None = None

    def _module(self) -> Any:
        wanted = [name for name, mode in self._modes.items() if mode == "on"]
        if self.kind != "npu":
            if wanted:
                raise UsageError(
                    f"fused operators are on ({', '.join(wanted[:3])}{', ...' if len(wanted) > 3 else ''}), "
                    f"but the device is {self.kind}: they exist on an NPU only",
                    hint="use fused: auto, which takes plain torch here",
                )
            return None
        if all(mode == "off" for mode in self._modes.values()):
            return None
        try:
            return importlib.import_module("torch_npu")
        except (ImportError, RuntimeError, OSError) as error:
            reason = first_line(error, 200)
            raise UsageError(f"torch_npu cannot be imported: {reason}", hint="see `ascend-perf doctor`") from error

    def _is_chosen(self, name: str) -> bool:
        operator, mode = OPERATORS[name], self._modes[name]
        if self._npu is None or mode == "off":
            return False
        if not (operator.in_training if self.training else operator.in_inference):
            if mode == "on" and name in self._named:
                use = "inference only: it has no gradient" if self.training else "training only"
                raise UsageError(f"fused_ops: {name} is for {use}", hint=f"leave {name} out of fused_ops")
            return False
        missing = [api for api in operator.apis if _member(self._npu, api) is None]
        if missing and mode == "on":
            raise UsageError(
                f"fused operator {name} is on, but this torch_npu has no {missing[0]}",
                hint=f"use fused_ops: {name}=auto, or a newer torch_npu",
            )
        return not missing

    def uses(self, name: str) -> bool:
        """Whether the operator of torch_npu stands behind the function of that name."""
        return name in self._chosen

    def used(self) -> dict[str, str]:
        """For the record: operator -> the API of torch_npu, or `torch`, with the reason where one was skipped."""
        said = {}
        for name, operator in OPERATORS.items():
            api = f"torch_npu.{operator.apis[0]}" if name in self._chosen else "torch"
            said[name] = f"{api} (not always: {self.skipped[name]})" if name in self.skipped else api
        return said

    def rows(self) -> list[dict[str, Value]]:
        """The same as rows of a table; none where no NPU is in use."""
        if self.kind != "npu":
            return []
        return [{"operator": name, "runs": said} for name, said in self.used().items()]

    def _fits(self, name: str, **limits: bool) -> bool:
        """Whether to call the operator: it is chosen, and every limit holds; `limits` are named by what they want."""
        if name not in self._chosen:
            return False
        broken = [words.replace("_", " ") for words, holds in limits.items() if not holds]
        if not broken:
            return True
        if name in self._named and self._modes[name] == "on":
            raise UsageError(f"fused operator {name} is on, but needs: {broken[0]}", hint=f"fused_ops: {name}=auto")
        self.skipped.setdefault(name, f"needs {broken[0]}")
        return False

    # Norms and activations

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) x weight over the last axis, in x's type; the mean is taken in fp32."""
        weight = weight.to(x.dtype)
        if self._fits("rms_norm"):
            return self._npu.npu_rms_norm(x, weight, epsilon)[0]
        return self._plain.rms_norm(x, weight, epsilon)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and that sum, which is the next residual."""
        if self._fits("add_rms_norm"):
            y, _, added = self._npu.npu_add_rms_norm(x, residual, weight.to(x.dtype), epsilon)
            return y, added
        added = x + residual
        return self.rms_norm(added, weight, epsilon), added

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """LayerNorm over the last axis: one kernel everywhere, so there is nothing to choose."""
        import torch.nn.functional as F

        return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), epsilon)

    def add_layer_norm(self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """LayerNorm of x + residual, as after each half of a BERT layer."""
        if self._fits("add_layer_norm"):
            weight, bias = weight.to(x.dtype), bias.to(x.dtype)
            return self._npu.npu_add_layer_norm(x, residual, weight, bias, epsilon, False)[0]
        return self.layer_norm(x + residual, weight, bias, epsilon)

    def gelu(self, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
        """GELU, exact or by tanh. Never the fast one, which is another approximation."""
        import torch
        import torch.nn.functional as F

        if self._fits("gelu", fp16_or_fp32=x.dtype in (torch.float16, torch.float32)):
            return self._npu.npu_gelu(x, approximate=approximate)
        return F.gelu(x, approximate=approximate)

    def swiglu(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """silu(gate) x up. Without `up` the last axis of `gate` holds both, the gate first.

        The operator wants both in one tensor: two are copied together first, 4 values moved per value of the result
        besides its own 3; plain torch moves 5. A model that makes both with one product saves the copy.
        """
        import torch

        if self._fits("swiglu"):
            both = gate if up is None else torch.cat((gate, up), dim=-1)
            return self._npu.npu_swiglu(both.contiguous(), dim=-1)
        return self._plain.swiglu(gate, up)

    def scaled_masked_softmax(self, x_BHTS: Tensor, masked: Tensor, scale: float) -> Tensor:
        """softmax(x x scale) over the last axis, with nothing where `masked` is True."""
        fits = all(32 <= size <= 4096 and size % 32 == 0 for size in x_BHTS.shape[-2:])
        if self._fits("scaled_masked_softmax", last_two_axes_of_32_to_4096_in_steps_of_32=fits):
            return self._npu.npu_scaled_masked_softmax(x_BHTS, masked, scale, False)
        return self._plain.masked_softmax(x_BHTS, masked, scale)

    # Attention

    def rotary(self, x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn each pair of channels (i, i + D/2) by its angle; cos and sin are broadcast, with both halves alike."""
        cos, sin = cos.to(x_BHTD.dtype), sin.to(x_BHTD.dtype)
        width = x_BHTD.shape[-1]
        if self._fits("rotary", an_even_head_width_below_896=width < 896 and width % 2 == 0):
            return self._npu.npu_rotary_mul(x_BHTD, cos, sin)
        return self._plain.rotary(x_BHTD, cos, sin)

    def attention(
        self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, *, mask_B1TS: Tensor | None = None, causal: bool = True,
        scale: float | None = None, ends: Sequence[int] | None = None, key_lengths: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """softmax(q k' x scale) v, H query heads sharing G key-value heads. The width of values may differ from keys'.

        Args:
            mask_B1TS: True where a token may look (as SDPA has it; the operators' masks are the opposite). It decides
                alone, `causal` is not looked at.
            causal: the T tokens are the last of the S keys, and each sees the keys up to its own.
            scale: None: D^-0.5.
            ends: several texts are packed into the B x T tokens: where each ends, counted over all rows. A token sees
                only its own text. T and S are equal.
            key_lengths: how many of the S keys are real, per row; the T tokens are the last of them.
        """
        scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
        name = "attention" if self.training else "infer_attention"
        if self._fits(name, **self._attention_limits(q_BHTD)):
            call = self._train_attention if self.training else self._infer_attention
            return call(q_BHTD, k_BGSD, v_BGSD, mask_B1TS, causal, scale, ends, key_lengths)
        return self._plain.attention(q_BHTD, k_BGSD, v_BGSD, mask_B1TS, causal, scale, ends, key_lengths)

    def _attention_limits(self, q_BHTD: Tensor) -> dict[str, bool]:
        import torch

        half = q_BHTD.dtype in (torch.float16, torch.bfloat16)
        if self.training:
            return {"heads_at_most_768_wide": q_BHTD.shape[-1] <= 768, "at_most_256_heads": q_BHTD.shape[1] <= 256}
        return {"fp16_or_bf16": half, "heads_at_most_512_wide": q_BHTD.shape[-1] <= 512}

    def _train_attention(
        self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask_B1TS: Tensor | None, causal: bool, scale: float,
        ends: Sequence[int] | None, key_lengths: Sequence[int] | None,
    ) -> Tensor:  # fmt: skip
        B, H, T, _ = q_BHTD.shape
        width = v_BGSD.shape[-1]
        v_BGSD = self._plain.padded(v_BGSD, q_BHTD.shape[-1])
        flash = self._npu.npu_fusion_attention
        if mask_B1TS is None and key_lengths is not None:
            mask_B1TS = self._plain.length_mask(T, k_BGSD.shape[2], key_lengths, causal, q_BHTD.device)
        if mask_B1TS is not None:
            y_BHTD = flash(q_BHTD, k_BGSD, v_BGSD, H, "BNSD", atten_mask=~mask_B1TS, scale=scale, sparse_mode=0)[0]
        elif ends is not None:
            q_NHD, k_NGD, v_NGD = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTD, k_BGSD, v_BGSD))
            y_NHD = flash(
                q_NHD, k_NGD, v_NGD, H, "TND", scale=scale, actual_seq_qlen=list(ends), actual_seq_kvlen=list(ends),
                **self._sparse(q_BHTD.device, causal),
            )[0]  # fmt: skip
            y_BHTD = y_NHD.unflatten(0, (B, T)).transpose(1, 2)
        else:
            y_BHTD = flash(q_BHTD, k_BGSD, v_BGSD, H, "BNSD", scale=scale, **self._sparse(q_BHTD.device, causal))[0]
        return y_BHTD[..., :width]

    def _infer_attention(
        self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask_B1TS: Tensor | None, causal: bool, scale: float,
        ends: Sequence[int] | None, key_lengths: Sequence[int] | None,
    ) -> Tensor:  # fmt: skip
        B, H, T, _ = q_BHTD.shape
        if mask_B1TS is None and ends is not None:
            mask_B1TS = self._plain.packed_mask(B, T, ends, causal, q_BHTD.device)
        known: dict[str, Any] = {}
        if mask_B1TS is not None:
            known = {"atten_mask": ~mask_B1TS, "sparse_mode": 0}
        elif T > 1:
            known = self._sparse(q_BHTD.device, causal)
        if mask_B1TS is None and key_lengths is not None:
            known |= {"actual_seq_lengths": [T] * B, "actual_seq_lengths_kv": list(key_lengths)}
        width = v_BGSD.shape[-1]
        v_BGSD = self._plain.padded(v_BGSD, q_BHTD.shape[-1])
        y_BHTD, _ = self._npu.npu_fused_infer_attention_score(
            q_BHTD, k_BGSD, v_BGSD, num_heads=H, num_key_value_heads=k_BGSD.shape[1], scale=scale,
            input_layout="BNSD", **known,
        )  # fmt: skip
        return y_BHTD[..., :width]

    def _sparse(self, device: torch.device, causal: bool) -> dict[str, Any]:
        """Causal, aligned at the last token and the last key: sparse mode 3 with the compressed triangle."""
        import torch

        if not causal:
            return {}
        if self._mask is None or self._mask.device != device:
            ones = torch.ones((COMPRESSED_MASK_SIZE, COMPRESSED_MASK_SIZE), dtype=torch.bool, device=device)
            self._mask = ones.triu(1)
        return {"atten_mask": self._mask, "sparse_mode": 3}

    # Loss

    def cross_entropy(
        self, logits_NV: Tensor, targets_N: Tensor, *, ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
    ) -> Tensor:  # fmt: skip
        """Cross entropy in fp32, whatever the type of the logits."""
        import torch.nn.functional as F

        logits_NV = logits_NV.float()
        if self._fits("cross_entropy", at_most_200000_rows=len(logits_NV) <= 200_000):
            loss = self._npu.npu_cross_entropy_loss(
                logits_NV, targets_N, reduction=reduction, ignore_index=ignore_index
            )[0]
            return loss if reduction == "none" else loss.reshape(())
        return F.cross_entropy(logits_NV, targets_N, ignore_index=ignore_index, reduction=reduction)

    # Mixture of experts

    def moe_permute(self, x_NW: Tensor, experts_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens repeated for each of their experts and sorted by expert, and where each (token, choice) went to."""
        if self._fits("moe_permute"):
            x_RW, rows_R = self._npu.npu_moe_token_permute(x_NW, experts_NK)
            return x_RW, rows_R
        return self._plain.permute(x_NW, experts_NK)

    def moe_unpermute(self, x_RW: Tensor, rows_R: Tensor, weights_NK: Tensor) -> Tensor:
        """Rows back in the order of the tokens, those of one token summed by its weights."""
        weights_NK = weights_NK.to(x_RW.dtype)
        if self._fits("moe_permute"):
            return self._npu.npu_moe_token_unpermute(x_RW, rows_R, probs=weights_NK)
        return self._plain.unpermute(x_RW, rows_R, weights_NK)

    def moe_gating(
        self, logits_NE: Tensor, k: int, *, score: Literal["softmax", "sigmoid"] = "softmax",
        bias_E: Tensor | None = None, groups: int = 1, groups_kept: int = 1, normalise: bool = False,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Weights and numbers of the k experts of each token, best first.

        Args:
            bias_E: added to the scores for the choice only, as DeepSeek-V3 balances its load.
            groups: experts are cut into so many groups, and only those of the `groups_kept` best are chosen from: by
                the best score of a group, with sigmoid by the sum of its best two.
            normalise: weights of a token sum to one, before `scale`.
        """
        plain = score == "softmax" and bias_E is None and groups == 1
        if plain and self._fits("moe_gating"):
            weights_NK, experts_NK, _ = self._npu.npu_moe_gating_top_k_softmax(logits_NE, None, k)
            return self._plain.scaled(weights_NK.float(), normalise, scale), experts_NK.long()
        gating_limits = {
            "256_experts_in_8_groups_of_which_4_are_kept": (logits_NE.shape[-1], groups, groups_kept) == (256, 8, 4),
            "at_most_32_experts_per_token": k <= 32,
        }
        deepseek = score == "sigmoid" and bias_E is not None and normalise
        if deepseek and self._fits("moe_group_gating", **gating_limits):
            assert bias_E is not None
            weights_NK, experts_NK, _ = self._npu.npu_moe_gating_top_k(
                logits_NE, k, bias=bias_E.to(logits_NE.dtype), k_group=groups_kept, group_count=groups,
                group_select_mode=1, renorm=0, norm_type=1, routed_scaling_factor=scale, eps=1e-20,
            )  # fmt: skip
            return weights_NK.float(), experts_NK.long()
        return self._plain.gating(logits_NE, k, score, bias_E, groups, groups_kept, normalise, scale)

    def grouped_matmul(self, x_RW: Tensor, weight_EWK: Tensor, counts_E: Tensor) -> Tensor:
        """Rows times the matrix of their expert; the first `counts_E[0]` rows are expert 0's, and so on."""
        if self._fits("grouped_matmul", inner_axes_below_65536=max(weight_EWK.shape[1:]) < 65_536):
            operator = self._npu.npu_grouped_matmul
            if self.training:
                return self._plain.GroupedMatmul.apply(x_RW, weight_EWK, counts_E, operator)
            return self._plain.grouped(operator, x_RW, weight_EWK, counts_E)
        return self._plain.grouped_matmul(x_RW, weight_EWK, counts_E)

    # Optimizer

    def adamw(
        self, groups: Iterable[Mapping[str, Any]], *, lr: float, betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8, sharded: bool = False,
    ) -> torch.optim.Optimizer:  # fmt: skip
        """AdamW over parameter groups that lie on the device already.

        On an NPU `NpuFusedAdamW`, which packs parameters and gradients in one buffer each: not for sharded ones
        (FSDP), and for fp32 and fp16 only. Else torch's AdamW, fused unless all is off.
        """
        import torch

        groups = [dict(group) for group in groups]
        kinds = {weight.dtype for group in groups for weight in group["params"]}
        limits = {
            "parameters_that_are_not_sharded": not sharded,
            "fp32_or_fp16_weights": kinds <= {torch.float32, torch.float16},
        }
        if self._fits("adamw", **limits):
            quiet_about_storage()
            return self._npu.optim.NpuFusedAdamW(groups, lr=lr, betas=betas, eps=eps)
        fused = self.kind in ("cpu", "cuda") and self._modes["adamw"] != "off"
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused or None)

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """As the function of that name."""
        zero_grad(optimizer)

    def clip_grad_norm(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], max_norm: float
    ) -> Tensor:
        """Scale gradients so that their norm (of all, order 2) is at most `max_norm`; the norm before."""
        import torch

        if is_packed(optimizer):
            return optimizer.clip_grad_norm_fused_(max_norm, 2)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def _member(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def quiet_about_storage() -> None:
    """torch_npu's optimizers ask for storages in a way that torch calls deprecated: no news for whoever runs us."""
    warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)


def is_packed(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch_npu's, which keep all gradients in one buffer."""
    return hasattr(optimizer, "clip_grad_norm_fused_")


def zero_grad(optimizer: torch.optim.Optimizer) -> None:
    """Forget gradients: the packed buffer of an optimizer of torch_npu must stay, others are freed."""
    optimizer.zero_grad(set_to_none=not is_packed(optimizer))
