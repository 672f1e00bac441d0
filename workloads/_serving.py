"""A decoder of random weights as a service: model, paged cache, batcher and HTTP server put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.workloads._batching import Batcher, Limits
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._model_shape import ModelShape, cache_bytes_per_token, parameter_count
from ascend_perf.workloads._spec import Place, Prediction, Target, at_least
from ascend_perf.workloads._text_data import ByteTokenizer

if TYPE_CHECKING:
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._server import HttpServer

BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """A group of settings (see `_spec.Workload`): the batcher's sizes and the server."""

    max_batch: int = 16
    """Requests that run at once."""
    max_queue: int = 256
    """Requests that wait; one more is refused with 429."""
    max_context: int = 512
    """Tokens of prompt and answer together."""
    prefill_tokens: int = 256
    """Tokens of prompts in one step: longer prompts are cut, so that those that run do not wait."""
    block_tokens: int = 16
    """Tokens of a block of the cache."""
    cache_tokens: int = 4096
    """Tokens that the cache holds: a request is admitted when blocks for its longest text are free."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of weights, products and cache."""
    drain_s: float = 30.0
    """What requests in flight have to end when the server ends."""

    def __post_init__(self) -> None:
        at_least(self, 1, "max_batch", "max_queue", "prefill_tokens", "block_tokens", "cache_tokens")
        at_least(self, 2, "max_context")
        if not 0 <= self.drain_s < float("inf"):
            raise ValueError(f"drain_s must be 0 or more and finite, got {self.drain_s}")
        if self.blocks < 1:
            raise ValueError(f"cache_tokens {self.cache_tokens} is less than one block of {self.block_tokens}")

    @property
    def blocks(self) -> int:
        """Blocks of the cache."""
        return self.cache_tokens // self.block_tokens

    def limits(self) -> Limits:
        """What the batcher wants to know."""
        return Limits(
            blocks=self.blocks, block_tokens=self.block_tokens, max_batch=self.max_batch, max_queue=self.max_queue,
            max_context=self.max_context, prefill_tokens=self.prefill_tokens,
        )  # fmt: skip


def check_vocabulary(shape: ModelShape) -> None:
    """Whether bytes and their special tokens fit.

    Raises:
        ValueError: the vocabulary is too small.
    """
    if shape.vocabulary < ByteTokenizer.size:
        raise ValueError(f"vocabulary must be {ByteTokenizer.size} or more (bytes and their special tokens)")


def predicted(shape: ModelShape, settings: ServeSettings, target: Target) -> Prediction:
    """Weights and the whole cache, its spare block included."""
    size = BYTES[target.auto_dtype() if settings.dtype == "auto" else settings.dtype]
    tokens = (settings.blocks + 1) * settings.block_tokens
    return Prediction(
        memory_bytes={
            "weights": parameter_count(shape) * size,
            "cache": tokens * cache_bytes_per_token(shape, size),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Served:
    """A service that answers while somebody runs its batcher."""

    batcher: Batcher
    server: HttpServer
    fused: Fused
    dtype: str
    weight_bytes: int
    cache_bytes: int


def serve(
    shape: ModelShape, settings: ServeSettings, operators: FusedSettings, place: Place, seed: int, *, model_name: str,
    host: str = "127.0.0.1", port: int = 0,
) -> Served:  # fmt: skip
    """Build the model and listen. Port 0: any free one, see `server.url`.

    On a CPU the model leaves one of torch's threads to the HTTP server and the clients: at a barrier of the others
    every step would wait for them.

    Raises:
        MachineError: the address cannot be used.
    """
    import torch

    from ascend_perf.workloads._cache import PagedCache, cache_parts
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._paged_runner import PagedRunner
    from ascend_perf.workloads._server import HttpServer, Service
    from ascend_perf.workloads._training import Training, matmul_dtype

    if place.kind == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    dtype = matmul_dtype(Training(dtype=settings.dtype), place)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    fused = Fused(operators, place.kind, training=False)
    with torch.device("meta"):
        model = Decoder(shape, fused=fused)
    materialise(model, seed=seed, device=place.device, dtype=torch_dtype)
    model.eval()
    cache = PagedCache(
        cache_parts(shape), layers=shape.layers, blocks=settings.blocks, block_tokens=settings.block_tokens,
        dtype=torch_dtype, device=place.device,
    )  # fmt: skip
    service = Service(model_name, shape.vocabulary)
    # Only bytes and the end of a text are answered: the tokenizer knows no others.
    runner = PagedRunner(model, cache, vocabulary=ByteTokenizer.end + 1)
    service.batcher = Batcher(runner, settings.limits(), service.deliver)
    server = HttpServer(service, host=host, port=port)
    server.start()
    return Served(
        batcher=service.batcher, server=server, fused=fused, dtype=dtype, cache_bytes=cache.size_bytes,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in model.parameters()),
    )  # fmt: skip
