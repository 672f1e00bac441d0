"""bert-clue: classify Chinese texts with BERT, in training or in inference, on one rank or many (data parallel).

    train:  take a batch -> pad -> copy -> forward -> loss -> backward -> clip -> AdamW
    infer:  take a batch -> pad -> copy -> forward

The net is in `_bert.py`, texts in `_clue.py`, tokens in `_wordpiece.py`, batches in `_encoded_texts.py`, the training
step in `_classifying.py`. Read top to bottom: settings, prediction, lengths, build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _batches, _bert_memory
from ascend_perf.workloads._encoded_texts import Encoded, Ints, PaddedBatches, read_or_make
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_flops, encoder_parameters, encoder_train_flops
from ascend_perf.workloads._fused import Fused, FusedSettings
from ascend_perf.workloads._gradient_traffic import gradient_traffic
from ascend_perf.workloads._model_shape import VALUE_BYTES
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, at_least, workload
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    import torch

# B batch, N samples


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


def texts(config: Config, place: Place, seed: int) -> tuple[Encoded, Encoded]:
    """Texts to train on and texts held out, read from `--data` or made; see `_encoded_texts.read_or_make`."""
    return read_or_make(
        place.data, samples=config.samples, held_out=config.held_out_samples, classes=config.classes,
        tokens=config.tokens, vocabulary=config.shape.vocabulary, vocabulary_file=config.vocabulary_file, seed=seed,
    )  # fmt: skip


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
    batches = PaddedBatches(place, partial(padded_length, config))
    common: dict[str, Any] = {
        "item": "samples",
        "items_per_step": config.batch * place.world_size,
        "flops_per_step": step_flops(config, source.lengths_N, place.world_size, seed),
        "dtype": dtype,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "model": model,
        "tables": lambda: {"fused_operators": fused.rows()},
        "start_measuring": batches.forget,
    }
    if config.mode == "infer":
        return _inference(config, place, seed, model, dtype, held_out, batches, common)

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
    order = _order(config, place, seed, train, start=training.steps_done)

    def step() -> None:
        _, rows = next(order)
        training.step(*batches.of(rows, train))

    def metrics() -> list[Metric]:
        told = batches.metrics()
        if computes_nothing(place.kind):
            return told
        found = training.evaluate([batches.of(rows, held_out) for rows in held_out.by_length(config.batch)])
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
    config: Config, place: Place, seed: int, model: Any, dtype: Literal["fp32", "bf16", "fp16"], held_out: Encoded,
    batches: PaddedBatches, common: dict[str, Any],
) -> Program:  # fmt: skip
    """The program of `mode: infer`: the weights are those of a training run (`--resume`), or untrained."""
    import torch
    from torch.profiler import record_function

    from ascend_perf.workloads import _classifying

    if place.resume is not None:
        _classifying.load_weights(model, place.resume, place.device)
    model.eval().to(_classifying.TORCH_DTYPES[dtype])
    order = _order(config, place, seed, held_out)
    surest: list[torch.Tensor] = []

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def step() -> None:
        _, rows = next(order)
        inputs, _ = batches.of(rows, held_out)
        with record_function("inference"):
            surest[:] = [model(*inputs).float().log_softmax(-1).max(-1).values.mean()]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def metrics() -> list[Metric]:
        told, right = batches.metrics(), 0
        if computes_nothing(place.kind):
            return told
        for rows in held_out.by_length(config.batch):
            inputs, labels_B = batches.of(rows, held_out)
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


def _order(
    config: Config, place: Place, seed: int, data: Encoded, *, start: int = 0
) -> Iterator[tuple[int, Sequence[int]]]:
    """Epoch and texts of this rank's batch of each step."""
    return _batches.endless(
        len(data.labels_N), batch=config.batch, ranks=place.world_size, rank=place.rank, seed=seed, start=start,
        lengths=_sorting(config, data.lengths_N),
    )  # fmt: skip
