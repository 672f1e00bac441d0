"""bert-clue: classify Chinese texts with BERT, in training or in inference, on one rank or many (data parallel).

    train:  take a batch -> pad -> copy -> forward -> loss -> backward -> clip -> AdamW
    infer:  take a batch -> pad -> copy -> forward

The net is in `_bert.py`, texts in `_clue.py`, tokens in `_wordpiece.py`, the training step in `_classifying.py`. Read
top to bottom: settings, prediction, batches, build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _batches, _bert_memory, _clue, _wordpiece
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_flops, encoder_parameters, encoder_train_flops
from ascend_perf.workloads._fused import Fused, FusedSettings
from ascend_perf.workloads._gradient_traffic import gradient_traffic
from ascend_perf.workloads._model_shape import VALUE_BYTES
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, at_least, workload
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    import torch

# B batch, T tokens, K classes, N samples

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the model and of one step. `batch` is that of one rank.

    `dtype` auto is bf16 where the device multiplies it, else fp16 with a scaled loss; on a CPU without bf16 units fp32.
    """

    shape: EncoderShape = field(default_factory=EncoderShape)
    operators: FusedSettings = field(default_factory=FusedSettings)
    mode: Literal["train", "infer"] = "train"
    classes: int = 15
    tokens: int = 128
    """Longest text; what is longer is cut."""
    batch: int = 32
    padding: Literal["fixed", "longest", "bucket"] = "bucket"
    """Up to `tokens`, to the longest text of the batch, or to the next multiple of `bucket_tokens`."""
    bucket_tokens: int = 16
    """Fewer lengths mean fewer shapes to compile for."""
    sort_by_length: bool = True
    """Batches hold texts of like length (not with padding: fixed)."""
    samples: int = 4096
    """Synthetic texts to train on."""
    held_out_samples: int = 512
    """Texts that accuracy is taken from, and that inference classifies, at most."""
    vocabulary_file: str = ""
    """A vocab.txt; without, that of the folder of data, else one is made of the texts."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    dropout: float = 0.1
    learning_rate: float = 5e-5
    learning_rate_warmup: int = 20
    """Steps over which the rate rises to `learning_rate`."""
    learning_rate_steps: int = 1000
    """Step at which the rate has fallen to nothing, along a line."""
    weight_decay: float = 0.01
    """Of matrices; norms and biases have none."""
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "bucket_tokens", "samples", "held_out_samples", "learning_rate_steps")
        at_least(self, 2, "classes")
        at_least(self, 4, "tokens")
        at_least(self, 0, "learning_rate", "learning_rate_warmup", "weight_decay")
        if self.tokens > self.shape.positions:
            raise ValueError(f"tokens {self.tokens} are more than the model has positions ({self.shape.positions})")
        if self.shape.segments < 2:
            raise ValueError("segments must be 2 or more: the second text of a pair has its own")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be 0 to below 1, got {self.dropout}")
        if self.max_grad_norm <= 0:
            raise ValueError(f"max_grad_norm must be above 0, got {self.max_grad_norm}")


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory of one rank at the longest batch, and traffic of its data axis.

    In training weights, gradients and the two moments of AdamW are fp32; in inference ranks do not talk to each other.
    """
    shape = config.shape
    value_bytes = VALUE_BYTES[target.auto_dtype("fp16") if config.dtype == "auto" else config.dtype]
    sizes = {"batch": config.batch, "tokens": config.tokens, "bytes_per_value": value_bytes}
    if config.mode == "infer":
        return Prediction(
            memory_bytes={
                "weights": _bert_memory.weight_bytes(shape, config.classes, value_bytes),
                "activations": _bert_memory.inference_bytes(shape, **sizes),
            }
        )
    weights = encoder_parameters(shape, config.classes)
    return Prediction(
        memory_bytes={
            "weights": 4 * weights,
            "gradients": 4 * weights,
            "optimizer": 8 * weights,
            "activations": _bert_memory.saved_bytes(
                shape, classes=config.classes, dropout=config.dropout > 0, **sizes
            ),
        },
        traffic=gradient_traffic(
            _bert_memory.tensor_sizes(shape, config.classes), world_size=world_size, numbers=2
        ),
    )  # fmt: skip


def padded_length(config: Config, longest: int) -> int:
    """Tokens that a batch is padded to whose longest text has so many."""
    if config.padding == "fixed":
        return config.tokens
    if config.padding == "longest":
        return longest
    return min(config.tokens, -(-longest // config.bucket_tokens) * config.bucket_tokens)


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Texts as tokens: rows padded to `tokens` with `padding` (segments with 0)."""

    tokens_NT: Ints
    segments_NT: Ints
    lengths_N: Ints
    labels_N: Ints


def encoded(config: Config, samples: Sequence[_clue.Sample], tokenizer: _wordpiece.WordPiece) -> Encoded:
    """The texts cut into tokens, and what is too long cut off."""
    tokens_NT = np.full((len(samples), config.tokens), tokenizer.tokens[_wordpiece.PAD], np.int64)
    segments_NT = np.zeros_like(tokens_NT)
    lengths_N = np.zeros(len(samples), np.int64)
    for row, sample in enumerate(samples):
        numbers, segments = tokenizer.encode(sample.first, sample.second, config.tokens)
        lengths_N[row] = len(numbers)
        tokens_NT[row, : len(numbers)] = numbers
        segments_NT[row, : len(numbers)] = segments
    labels_N = np.array([sample.label for sample in samples], np.int64)
    return Encoded(tokens_NT=tokens_NT, segments_NT=segments_NT, lengths_N=lengths_N, labels_N=labels_N)


def texts(config: Config, place: Place, seed: int) -> tuple[Encoded, Encoded]:
    """Texts to train on and texts held out, the same on every rank.

    Raises:
        InputError: a file is not readable or malformed, or has more classes or tokens than the model.
    """
    if place.data is None:
        found = _clue.synthetic_texts(
            count=config.samples, held_out=config.held_out_samples, classes=config.classes,
            characters=max(64, min(4096, config.shape.vocabulary - len(_wordpiece.SPECIAL))), tokens=config.tokens,
            seed=seed,
        )  # fmt: skip
    else:
        found = _clue.read_texts(place.data)
    if len(found.labels) > config.classes:
        raise InputError(
            f"the data has {len(found.labels)} classes, the model {config.classes}",
            hint=f"use --set classes={len(found.labels)}",
        )
    path = Path(config.vocabulary_file) if config.vocabulary_file else found.vocabulary
    if path is not None:
        tokenizer = _wordpiece.WordPiece.from_file(path)
        if len(tokenizer.tokens) > config.shape.vocabulary:
            raise InputError(
                f"{path.name} has {len(tokenizer.tokens)} tokens, the model {config.shape.vocabulary}",
                hint=f"use --set vocabulary={len(tokenizer.tokens)}",
            )
    else:
        every = (text for sample in found.train for text in (sample.first, sample.second or ""))
        tokenizer = _wordpiece.WordPiece.from_texts(every, config.shape.vocabulary)
    held_out = found.held_out[: config.held_out_samples]
    return encoded(config, found.train, tokenizer), encoded(config, held_out, tokenizer)


def step_flops(config: Config, lengths_N: Ints, world_size: int, seed: int) -> int:
    """Model FLOPs of one step of the whole job, padding included: the mean over the batches of an epoch, where batches
    differ in length."""
    count = encoder_flops if config.mode == "infer" else encoder_train_flops
    batches = _epoch(config, lengths_N, world_size, seed, 0)
    longest = lengths_N[batches].max(-1).ravel()
    flops = [count(config.shape, padded_length(config, int(length)), config.classes) for length in longest]
    return round(sum(flops) * config.batch / len(batches))


def _epoch(config: Config, lengths_N: Ints, ranks: int, seed: int, epoch: int) -> Ints:
    return _batches.epoch_batches(
        len(lengths_N), batch=config.batch, ranks=ranks, seed=seed, epoch=epoch, lengths=_sorting(config, lengths_N)
    )


def _sorting(config: Config, lengths_N: Ints) -> Ints | None:
    return lengths_N if config.sort_by_length and config.padding != "fixed" else None


@workload(
    name="bert-clue",
    about=Words(
        "Chinese text classification with BERT on CLUE-format data: training or inference, DDP, length buckets",
        "BERT 中文文本分类（CLUE 格式数据）：训练或推理、DDP、按长度分桶",
    ),
    config=Config,
    predict=predict,
)
def bert_clue(config: Config, place: Place, seed: int) -> Program:
    """A step on `device`; weights, texts and their order depend on the seed alone."""
    import torch
    from torch.profiler import record_function

    from ascend_perf.workloads import _classifying
    from ascend_perf.workloads._bert import Bert

    train, held_out = texts(config, place, seed)
    source = train if config.mode == "train" else held_out
    if len(source.labels_N) < config.batch * place.world_size:
        raise InputError(
            f"{len(source.labels_N)} texts are fewer than one step takes: "
            f"batch {config.batch} on {place.world_size} ranks",
            hint="use a smaller --set batch=..., or more texts",
        )
    torch.manual_seed(seed)
    fused = Fused(config.operators, place.kind, training=config.mode == "train")
    model = Bert(config.shape, classes=config.classes, dropout=config.dropout, fused=fused).to(place.device)
    torch.manual_seed(seed + 1 + place.rank)  # from here on dropout: other values are lost on each rank
    dtype = _classifying.training_dtype(config.dtype, place.kind)
    flops = step_flops(config, source.lengths_N, place.world_size, seed)
    count = {"seen": 0, "real": 0, "steps": 0}

    def batch(rows: Sequence[int], data: Encoded) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Tokens, segments and mask (none where nothing is padded) of some texts, and their classes."""
        with record_function("data::pad"):
            lengths_B = data.lengths_N[rows]
            length = padded_length(config, int(lengths_B.max()))
            parts: list[npt.NDArray[Any]] = [data.tokens_NT[rows, :length], data.segments_NT[rows, :length]]
            if int(lengths_B.min()) < length:
                parts.append(np.arange(length) < lengths_B[:, None])
            count["seen"] += len(lengths_B) * length
            count["real"] += int(lengths_B.sum())
            count["steps"] += 1
        with record_function("data::copy"):
            moved = [_on(part, place) for part in (*parts, data.labels_N[rows])]
        return tuple(moved[:-1]), moved[-1]

    common: dict[str, Any] = {
        "item": "samples",
        "items_per_step": config.batch * place.world_size,
        "flops_per_step": flops,
        "dtype": dtype,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "model": model,
        "tables": lambda: {"fused_operators": fused.rows()},
        "start_measuring": lambda: count.update(seen=0, real=0, steps=0),
    }
    if config.mode == "infer":
        return _inference(config, place, seed, model, dtype, held_out, batch, count, common)

    decayed = [weight for weight in model.parameters() if weight.dim() >= 2]
    other = [weight for weight in model.parameters() if weight.dim() < 2]
    optimizer = fused.adamw(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": other, "weight_decay": 0.0}],
        lr=config.learning_rate, betas=(0.9, 0.999),
    )  # fmt: skip
    training = _classifying.Training(
        model, place, dtype=dtype, optimizer=optimizer, max_grad_norm=config.max_grad_norm,
        clip=fused.clip_grad_norm, zero=fused.zero_grad,
        rate=lambda step: _classifying.rate_factor(
            step, warmup=config.learning_rate_warmup, total=config.learning_rate_steps, shape="linear"
        ),
    )  # fmt: skip
    if place.resume is not None:
        training.resume(place.resume)
    order = _batches.endless(
        len(train.labels_N), batch=config.batch, ranks=place.world_size, rank=place.rank, seed=seed,
        start=training.steps_done, lengths=_sorting(config, train.lengths_N),
    )  # fmt: skip

    def step() -> None:
        _, rows = next(order)
        training.step(*batch(rows, train))

    def metrics() -> list[Metric]:
        told = _padding_metrics(count)
        if computes_nothing(place.kind):
            return told
        found = training.evaluate([batch(rows, held_out) for rows in _slices(held_out, config.batch)])
        return [Metric(name="accuracy", value=found, unit="ratio", better="higher"), *told]

    return Program(
        **common,
        step=step,
        value_name="loss",
        last_value=training.last_loss,
        series=training.series,
        memory_bytes=training.memory_bytes,
        metrics=metrics,
        save=training.save,
        gradient_scale=training.gradient_scale,
    )


def _inference(
    config: Config,
    place: Place,
    seed: int,
    model: Any,
    dtype: Literal["fp32", "bf16", "fp16"],
    held_out: Encoded,
    batch: Callable[[Sequence[int], Encoded], tuple[tuple[torch.Tensor, ...], torch.Tensor]],
    count: dict[str, int],
    common: dict[str, Any],
) -> Program:
    """The program of `mode: infer`: the weights are those of a training run (`--resume`), or untrained."""
    import torch
    from torch.profiler import record_function

    from ascend_perf.workloads import _classifying

    if place.resume is not None:
        state = _classifying.read_state(place.resume, place.device)
        try:
            model.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{place.resume.name} holds another model: {reason}", hint="use the settings of the run that saved it"
            ) from error
    model.eval().to(_classifying.TORCH_DTYPES[dtype])
    order = _batches.endless(
        len(held_out.labels_N), batch=config.batch, ranks=place.world_size, rank=place.rank, seed=seed,
        lengths=_sorting(config, held_out.lengths_N),
    )  # fmt: skip
    surest: list[torch.Tensor] = []

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def step() -> None:
        _, rows = next(order)
        inputs, _ = batch(rows, held_out)
        with record_function("inference"):
            surest[:] = [model(*inputs).float().log_softmax(-1).max(-1).values.mean()]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def metrics() -> list[Metric]:
        told, right = _padding_metrics(count), 0
        if computes_nothing(place.kind):
            return told
        for rows in _slices(held_out, config.batch):
            inputs, labels_B = batch(rows, held_out)
            right += int((model(*inputs).argmax(-1) == labels_B).sum())
        share = right / len(held_out.labels_N)
        return [Metric(name="accuracy", value=share, unit="ratio", better="higher"), *told]

    weights = list(model.parameters())
    return Program(
        **common,
        step=step,
        value_name="mean_log_probability",
        last_value=lambda: float(surest[-1]),
        memory_bytes=lambda: {"weights": sum(weight.numel() * weight.element_size() for weight in weights)},
        metrics=metrics,
    )


def _slices(data: Encoded, batch: int) -> list[list[int]]:
    """Numbers of all texts in batches, those of like length together."""
    order = np.argsort(data.lengths_N, kind="stable").tolist()
    return [order[at : at + batch] for at in range(0, len(order), batch)]


def _padding_metrics(count: dict[str, int]) -> list[Metric]:
    """Padding among the tokens of this rank's measured steps, and tokens of a step."""
    if not count["steps"]:
        return []
    padded = 1 - count["real"] / count["seen"]
    tokens = count["seen"] / count["steps"]
    return [
        Metric(name="padding_ratio", value=padded, unit="ratio", better="lower"),
        Metric(name="tokens_per_step_per_device", value=tokens, unit="count", better="none"),
    ]


def _on(values: npt.NDArray[Any], place: Place) -> torch.Tensor:
    """The values on the device."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return (tensor.pin_memory() if place.kind == "cuda" else tensor).to(place.device, non_blocking=True)
