"""llm-pretrain: a decoder-only language model in training, on synthetic tokens.

    for each step: for each micro-batch: copy -> forward -> loss -> backward; then clip -> AdamW

The net is in `_llama.py`. Read top to bottom: sizes, model FLOPs, data, one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ascend_perf.model.finding import Words
from ascend_perf.workloads._spec import Place, Program, at_least, workload

if TYPE_CHECKING:
    import torch

# B batch, T tokens, V vocabulary, S micro-batches in the pool


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the model and of one step.

    `dtype` is the type of the matrix products (autocast over fp32 weights), or with `weights: bf16` of the weights as
    well: 16 bytes per parameter with AdamW in fp32, 8 in bf16.
    """

    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 2
    hidden: int = 704
    vocabulary: int = 8192
    tokens: int = 256
    batch: int = 2
    accumulate: int = 2
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    weights: Literal["fp32", "bf16"] = "fp32"
    recompute: bool = False
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        sizes = "layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "tokens", "batch", "accumulate"
        at_least(self, 1, *sizes)
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads")
        if (self.width // self.heads) % 2:
            raise ValueError(f"a head is {self.width // self.heads} wide; rotary embedding needs an even width")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into {self.kv_heads} kv_heads")
        if self.vocabulary < 2:
            raise ValueError("vocabulary must be 2 or more")
        if self.weights == "bf16" and self.dtype == "fp32":
            raise ValueError("weights: bf16 cannot be multiplied in dtype: fp32")


def matmul_parameters(config: Config) -> int:
    """Weights that take part in a matrix product for every token: all but the embedding table and the norms.

    Per layer: q and out are width x width, k and v are width x (kv_heads x head width), the MLP is three times
    width x hidden. Once: the output layer, width x vocabulary.
    """
    kv_width = config.kv_heads * (config.width // config.heads)
    layer = 2 * config.width**2 + 2 * config.width * kv_width + 3 * config.width * config.hidden
    return config.layers * layer + config.width * config.vocabulary


def parameters(config: Config) -> int:
    """All weights: the matrices, the embedding table, two norms a layer and the last norm."""
    return matmul_parameters(config) + config.vocabulary * config.width + (2 * config.layers + 1) * config.width


def step_flops(config: Config) -> int:
    """Model FLOPs of one optimizer step, multiply and add counted as two.

    Per token 6 N + 12 L W T: forward takes 2 FLOPs for each of the N matmul weights and 4 W T a layer for the two
    products of attention (W = heads x head width), backward twice as much. The causal mask is not subtracted,
    recomputation, softmax, norms and the optimizer do not count.

    Source:
        PaLM (Chowdhery et al., 2022), appendix B.
    """
    attention = 12 * config.layers * config.width * config.tokens
    return (6 * matmul_parameters(config) + attention) * config.batch * config.tokens * config.accumulate


def synthetic_tokens(config: Config, seed: int) -> torch.Tensor:
    """Pool of micro-batches, S x B x (T + 1): counting sequences with random start and stride, a tenth of it noise.

    The stride can be read off two tokens, so the loss falls and a broken model shows.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    shape = (2 * config.accumulate, config.batch, 1)
    start_SB1 = torch.randint(config.vocabulary, shape, generator=random)
    stride_SB1 = torch.randint(1, 8, shape, generator=random)
    counted_SBT = (start_SB1 + stride_SB1 * torch.arange(config.tokens + 1)) % config.vocabulary
    noise_SBT = torch.randint(config.vocabulary, counted_SBT.shape, generator=random)
    is_noise_SBT = torch.rand(counted_SBT.shape, generator=random) < 0.1
    return torch.where(is_noise_SBT, noise_SBT, counted_SBT)


def matmul_dtype(config: Config, device: str) -> Literal["bf16", "fp32"]:
    """The type that `auto` stands for: bf16 where the device multiplies it natively, else fp32."""
    import torch

    if config.weights == "bf16":
        return "bf16"
    if config.dtype != "auto":
        return config.dtype
    if device == "cpu":
        # No public question exists. Without AVX512_BF16 or AMX, bf16 on the CPU is emulated and slower than fp32.
        questions = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        return "bf16" if any(question is not None and question() for question in questions) else "fp32"
    question = getattr(getattr(torch, device.split(":")[0]), "is_bf16_supported", None)
    return "bf16" if question is not None and question() else "fp32"


@workload(
    name="llm-pretrain",
    about=Words(
        "decoder language model in training: GQA, RMSNorm, RoPE, SwiGLU, AdamW, gradient accumulation",
        "Decoder 语言模型预训练：GQA、RMSNorm、RoPE、SwiGLU、AdamW、梯度累积",
    ),
    config=Config,
)
def llm_pretrain(config: Config, place: Place, seed: int) -> Program:
    """The training step on `device`; weights and data depend on the seed alone."""
    import torch
    import torch.nn.functional as F
    from torch.profiler import record_function

    from ascend_perf.workloads._llama import Llama

    device = place.device
    torch.manual_seed(seed)
    dtype = matmul_dtype(config, device)
    kind = place.kind
    model = Llama(
        layers=config.layers, width=config.width, heads=config.heads, kv_heads=config.kv_heads,
        hidden=config.hidden, vocabulary=config.vocabulary, recompute=config.recompute,
    )  # fmt: skip
    model = model.to(device=device, dtype=torch.bfloat16 if config.weights == "bf16" else torch.float32)
    decayed = [weight for weight in model.parameters() if weight.dim() >= 2]
    other = [weight for weight in model.parameters() if weight.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": other, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(0.9, 0.95),
    )
    pool_SBT = synthetic_tokens(config, seed)
    if kind == "cuda":
        pool_SBT = pool_SBT.pin_memory()
    use_autocast = dtype == "bf16" and config.weights == "fp32"
    # Kept on the device: reading them in the step would make the host wait.
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    position = 0

    def step() -> None:
        nonlocal position
        total = torch.zeros((), device=device)
        for _ in range(config.accumulate):
            with record_function("data::copy"):
                tokens_BT = pool_SBT[position % len(pool_SBT)].to(device, non_blocking=True)
                position += 1
            with record_function("forward"), torch.autocast(kind, torch.bfloat16, enabled=use_autocast):
                logits_BTV = model(tokens_BT[:, :-1])
                loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten())
            with record_function("backward"):
                (loss / config.accumulate).backward()
            total += loss.detach() / config.accumulate
        with record_function("optimizer"):
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm).detach())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(total)

    return Program(
        step=step,
        item="tokens",
        items_per_step=config.batch * config.tokens * config.accumulate,
        flops_per_step=step_flops(config),
        dtype=dtype,
        parameters=parameters(config),
        value_name="loss",
        last_value=lambda: float(losses[-1]),
        series=lambda: {"loss": [float(x) for x in losses], "grad_norm": [float(x) for x in norms]},
    )
