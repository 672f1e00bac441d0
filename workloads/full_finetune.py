"""full-finetune: all weights of a decoder trained on instructions, the loss on the answers alone.

    record -> template -> tokens, prompt masked -> padded or packed row
    for each step: for each micro-batch: rows -> copy -> forward -> loss -> backward; then norm, clip -> AdamW

Records are in `_instructions.py`, the step in `_trainer.py`, the net in `_decoder.py`. Read top to bottom: settings,
prediction, data, the program. `lora_finetune.py` shares settings and data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _traffic
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, at_least, workload
from ascend_perf.workloads._training import Training

if TYPE_CHECKING:
    from ascend_perf.workloads._instructions import InstructionRows


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """A group of settings: how instructions become rows of tokens."""

    rows: Literal["padded", "packed"] = "padded"
    """padded: a record a row; packed: as many as fit, which do not see each other."""
    records: int = 512
    """How many are made where `--data` names none."""
    tokenizer: str | None = None
    """A tokenizer.json; None: bytes."""
    start_from: str | None = None
    """Folder of a saved state of llm-pretrain or full-finetune with the weights to start from; None: drawn ones."""

    def __post_init__(self) -> None:
        at_least(self, 1, "records")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model, one step of its training, the layout over ranks, the operators, the instructions."""

    shape: ModelShape = field(default_factory=ModelShape)
    training: Training = field(default_factory=Training)
    layout: Layout = field(default_factory=Layout)
    operators: FusedSettings = field(default_factory=FusedSettings)
    instructions: Instructions = field(default_factory=Instructions)

    def __post_init__(self) -> None:
        self.training.check_layout(self.layout)


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory and communication of the rank that needs most."""
    return _traffic.predict(
        config.shape, config.layout, config.training, world_size, target=target, operators=config.operators,
        all_count=False,
    )  # fmt: skip


def instruction_rows(
    settings: Instructions, *, vocabulary: int, tokens: int, place: Place, seed: int
) -> InstructionRows:
    """Rows of the records that `--data` names, or of made ones."""
    from ascend_perf.workloads._instructions import (
        InstructionRows,
        read_instructions,
        synthetic_instructions,
        tokenised,
    )
    from ascend_perf.workloads._text_data import tokenizer_of

    tokenizer = tokenizer_of(settings.tokenizer, vocabulary)
    records = synthetic_instructions(settings.records, seed) if place.data is None else read_instructions(place.data)
    made = [tokenised(pieces, tokenizer) for pieces in records]
    return InstructionRows(made, tokens=tokens, rows=settings.rows, pad=tokenizer.pad, seed=seed)


def data_metrics(rows: InstructionRows) -> Callable[[], Sequence[Metric]]:
    """What the rows hold: the share of padding, and records that were cut or left out."""

    def metrics() -> Sequence[Metric]:
        return (
            Metric(name="padding_ratio", value=rows.padding_ratio, unit="ratio", better="lower"),
            Metric(name="records_shortened", value=rows.shortened, unit="count", better="lower"),
            Metric(name="records_left_out", value=rows.left_out, unit="count", better="lower"),
        )

    return metrics


@workload(
    name="full-finetune",
    about=Words(
        "all weights of a decoder trained on instructions: prompt masked out of the loss, padded or packed rows",
        "全参数指令微调：提示部分不计入损失，填充或打包样本",
    ),
    config=Config,
    predict=predict,
)
def full_finetune(config: Config, place: Place, seed: int) -> Program:
    """The training step on this rank; made records and drawn weights depend on the seed alone."""
    from ascend_perf.workloads._trainer import make_trainer, training_program

    rows = instruction_rows(
        config.instructions, vocabulary=config.shape.vocabulary, tokens=config.training.tokens, place=place, seed=seed
    )
    trainer = make_trainer(
        config.shape, config.training, config.layout, config.operators, place=place, seed=seed, rows=rows,
        segments=config.instructions.rows == "packed", all_count=False, start_from=config.instructions.start_from,
    )  # fmt: skip
    return training_program(trainer, config.shape, metrics=data_metrics(rows))
