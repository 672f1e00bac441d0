"""lora-finetune: narrow corrections (LoRA) beside the frozen matrices of a decoder, trained on instructions.

    y = W x + (alpha / rank) B (A x)        W frozen, A and B trained, B zero at the start
    for each step: for each micro-batch: rows -> copy -> forward -> loss -> backward; then norm, clip -> AdamW

Corrections are in `_lora.py`, their FLOPs in `_lora_shape.py`; data and settings of the instructions are those of
`full_finetune.py`. Ranks hold all weights and share out the rows (DDP): what they send is the corrections' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

from ascend_perf.model.finding import Words
from ascend_perf.workloads._fused import FusedSettings, operators_in_training
from ascend_perf.workloads._gradient_traffic import gradient_traffic
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._lora_shape import (
    layer_widths,
    lora_flops,
    lora_parameters,
    lora_recomputed_flops,
    targets_of,
)
from ascend_perf.workloads._model_shape import ModelShape, held_as, memory_prediction, parameter_count
from ascend_perf.workloads._rank_weights import owners
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Traffic, at_least, workload
from ascend_perf.workloads._training import Training
from ascend_perf.workloads.full_finetune import Instructions, data_metrics, instruction_rows

FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A group of settings: the corrections."""

    lora_rank: int = 8
    lora_alpha: float = 16.0
    """The correction counts alpha / rank."""
    lora_targets: str = "q,k,v,out,gate,up,down"
    """Layers of a block that get one."""

    def __post_init__(self) -> None:
        at_least(self, 1, "lora_rank")
        if not 0 < self.lora_alpha < float("inf"):
            raise ValueError(f"lora_alpha must be above 0 and finite, got {self.lora_alpha}")
        targets_of(self.lora_targets)

    @property
    def targets(self) -> frozenset[str]:
        """Names of the layers."""
        return targets_of(self.lora_targets)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model, its corrections, one step of their training, the operators, the instructions.

    `weights` is the type of the frozen weights; the corrections and their moments are in fp32.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    lora: Lora = field(default_factory=Lora)
    training: Training = field(default_factory=Training)
    operators: FusedSettings = field(default_factory=FusedSettings)
    instructions: Instructions = field(default_factory=Instructions)

    def __post_init__(self) -> None:
        if self.shape.attention == "mla" or self.shape.experts:
            raise ValueError("lora-finetune trains dense models with attention gqa, not mla or experts")

    @property
    def trained(self) -> int:
        """Weights of the corrections."""
        return lora_parameters(self.shape, self.lora.lora_rank, self.lora.targets)

    def flops(self, data_ranks: int) -> int:
        """Model work of one step of the whole job."""
        rows = self.training.batch * self.training.accumulate * data_ranks
        return lora_flops(self.shape, self.training.tokens, self.lora.lora_rank, self.lora.targets) * rows

    def hardware_flops(self, data_ranks: int) -> int:
        """Work of one step that is executed."""
        rows = self.training.batch * self.training.accumulate * data_ranks
        again = lora_recomputed_flops(
            self.shape, self.training.tokens, self.lora.lora_rank, self.lora.targets, self.training.recompute
        )
        return self.flops(data_ranks) + again * rows


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory and communication of each rank. Activations are an upper bound: those of training all weights."""
    training = config.training
    dtype = "bf16" if training.weights == "bf16" else training.dtype
    dtype = target.auto_dtype() if dtype == "auto" else dtype
    held = held_as(
        batch=training.batch, tokens=training.tokens, dtype=dtype, weights=training.weights,
        recompute=training.recompute, fused=operators_in_training(config.operators, target.kind),
    )  # fmt: skip
    whole = memory_prediction(config.shape, held, weights=training.weights)
    value = 2 if training.weights == "bf16" else FP32_BYTES
    rank, widths = config.lora.lora_rank, layer_widths(config.shape)
    sizes = [rank * width for _ in range(config.shape.layers) for name in widths if name in config.lora.targets
             for width in widths[name]]  # fmt: skip
    traffic, updated = gradient_traffic(sizes, world_size=world_size, numbers=3), config.trained
    if training.distributed_optimizer and world_size > 1:
        holders = owners(sizes, world_size)
        updated = max(sum(compress(sizes, (holder == member for holder in holders))) for member in range(world_size))
        broadcast = Traffic(axis="data", collective="broadcast", bytes_per_step=config.trained * FP32_BYTES,
                            calls_per_step=len(set(holders)))  # fmt: skip
        traffic = (*traffic, broadcast)
    return Prediction(
        memory_bytes={
            "weights": parameter_count(config.shape) * value + config.trained * FP32_BYTES,
            "gradients": config.trained * FP32_BYTES,
            "optimizer": updated * 2 * FP32_BYTES,
            "activations": whole["activations"],
        },
        traffic=traffic,
    )


@workload(
    name="lora-finetune",
    about=Words(
        "LoRA corrections beside the frozen weights of a decoder, trained on instructions",
        "LoRA 指令微调：冻结 Decoder 权重，仅训练低秩增量",
    ),
    config=Config,
    predict=predict,
)
def lora_finetune(config: Config, place: Place, seed: int) -> Program:
    """The training step on this rank; made records and drawn weights depend on the seed alone."""
    from ascend_perf.workloads._lora import add_lora
    from ascend_perf.workloads._trainer import make_trainer, training_program

    rows = instruction_rows(
        config.instructions, vocabulary=config.shape.vocabulary, tokens=config.training.tokens, place=place, seed=seed
    )
    lora = config.lora
    trainer = make_trainer(
        config.shape, config.training, Layout(), config.operators, place=place, seed=seed, rows=rows,
        segments=config.instructions.rows == "packed", all_count=False, start_from=config.instructions.start_from,
        adapt=lambda part: add_lora(part, rank=lora.lora_rank, alpha=lora.lora_alpha, targets=lora.targets),
    )  # fmt: skip
    ranks = trainer.job.data_ranks
    return training_program(
        trainer, config.shape, flops=config.flops(ranks), hardware_flops=config.hardware_flops(ranks),
        metrics=data_metrics(rows), parameters=parameter_count(config.shape) + config.trained,
    )  # fmt: skip
