"""llm-pretrain: a dense decoder-only language model in training, on synthetic or real text.

    for each step: for each micro-batch: rows -> copy -> forward -> loss -> backward; then norm, clip -> AdamW

The net is in `_decoder.py`, the step in `_trainer.py`, rows of tokens in `_text_data.py`, layouts in `_parallel.py`.
Read top to bottom: settings, prediction, data, the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ascend_perf.model.finding import Words
from ascend_perf.workloads import _traffic
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, at_least, workload
from ascend_perf.workloads._training import Training

if TYPE_CHECKING:
    from ascend_perf.workloads._text_data import CorpusRows


@dataclass(frozen=True, kw_only=True)
class Text:
    """A group of settings: how text becomes rows of tokens."""

    rows: Literal["joined", "packed"] = "joined"
    """joined: a row runs over the ends of documents; packed: a token sees its own document only."""
    mean_document: int = 200
    """Mean length of the synthetic documents."""
    tokenizer: str | None = None
    """A tokenizer.json for text that `--data` names; None: bytes."""
    token_type: Literal["auto", "uint16", "uint32"] = "auto"
    """How a .bin file of tokens was written; auto: uint16 where the vocabulary allows."""
    end_of_text: int | None = None
    """The token that ends a document in a .bin file."""

    def __post_init__(self) -> None:
        at_least(self, 2, "mean_document")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model, one step of its training, the layout over ranks, the operators, the text."""

    shape: ModelShape = field(default_factory=ModelShape)
    training: Training = field(default_factory=Training)
    layout: Layout = field(default_factory=Layout)
    operators: FusedSettings = field(default_factory=FusedSettings)
    text: Text = field(default_factory=Text)

    def __post_init__(self) -> None:
        self.training.check_layout(self.layout)


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory and communication of the rank that needs most."""
    all_count = config.text.rows == "joined"
    return _traffic.predict(
        config.shape, config.layout, config.training, world_size, target=target, operators=config.operators,
        all_count=all_count,
    )  # fmt: skip


def text_rows(config: Config, place: Place, seed: int) -> CorpusRows:
    """Rows of the corpus that `--data` names, or of a synthetic one."""
    from ascend_perf.workloads._text_data import CorpusRows, read_corpus, synthetic_corpus

    text, vocabulary = config.text, config.shape.vocabulary
    if place.data is None:
        corpus = synthetic_corpus(vocabulary, seed, mean_document=text.mean_document)
    else:
        corpus = read_corpus(
            place.data, vocabulary=vocabulary, tokenizer_path=text.tokenizer, token_type=text.token_type,
            end_of_text=text.end_of_text,
        )  # fmt: skip
    return CorpusRows(
        corpus, tokens=config.training.tokens, vocabulary=vocabulary, packed=text.rows == "packed", seed=seed
    )


@workload(
    name="llm-pretrain",
    about=Words(
        "decoder language model in training: GQA, RMSNorm, RoPE, SwiGLU, AdamW, gradient accumulation",
        "Decoder 语言模型预训练：GQA、RMSNorm、RoPE、SwiGLU、AdamW、梯度累积",
    ),
    config=Config,
    predict=predict,
)
def llm_pretrain(config: Config, place: Place, seed: int) -> Program:
    """The training step on this rank; weights and data depend on the seed alone."""
    from ascend_perf.workloads._trainer import make_trainer, training_program

    is_packed = config.text.rows == "packed"
    trainer = make_trainer(
        config.shape, config.training, config.layout, config.operators, place=place, seed=seed,
        rows=text_rows(config, place, seed), segments=is_packed, all_count=not is_packed,
    )  # fmt: skip
    return training_program(trainer, config.shape)
