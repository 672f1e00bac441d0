"""micro: what the device really reaches: matrix products, attention, normalisation, copies, memory streams.

    for each part: for each case: warm up -> `iterations` calls -> one time per call

The best rates are the measured ceilings that a roofline draws beside the vendor's peaks. Read top to bottom: settings,
cases of each part with their work, one step, rows and ceilings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads._spec import Place, Program, Value, at_least, did_you_mean, workload

if TYPE_CHECKING:
    import torch

# M, N, K sizes of a matrix product, B batch, H heads, T tokens, D head width, W width, E elements

Part = Literal["gemm", "attention", "norm", "copy", "stream"]
PARTS: Final[tuple[Part, ...]] = ("gemm", "attention", "norm", "copy", "stream")
DTYPE_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured; lists are separated by commas, matrix shapes are MxNxK (or one number for a square)."""

    parts: str = ",".join(PARTS)
    dtypes: str = "auto"
    """auto: fp16, bf16 and fp32 on an NPU or GPU, fp32 and bf16 on a CPU."""
    gemm_shapes: str = "256,512,256x1024x512"
    attention_tokens: str = "256"
    attention_heads: int = 8
    head_width: int = 64
    norm_rows: int = 1024
    norm_width: int = 1024
    copy_bytes: int = 1 << 22
    stream_bytes: int = 1 << 24
    """Of one array: several times the last-level cache, or the cache is measured."""
    iterations: int = 5

    def __post_init__(self) -> None:
        at_least(self, 1, "attention_heads", "norm_rows", "norm_width", "iterations")
        at_least(self, 64, "copy_bytes", "stream_bytes")
        for name in _words(self.parts):
            if name not in PARTS:
                raise ValueError(f"no part {name!r}{did_you_mean(name, PARTS)}; there are {', '.join(PARTS)}")
        for name in _words(self.dtypes):
            if name not in DTYPE_BYTES and self.dtypes != "auto":
                raise ValueError(f"no dtype {name!r}; there are auto, {', '.join(DTYPE_BYTES)}")
        for text in (*_words(self.gemm_shapes), *_words(self.attention_tokens)):
            _shape(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _shape(text: str) -> tuple[int, int, int]:
    """MxNxK, or one number for all three."""
    sizes = text.split("x")
    if len(sizes) not in (1, 3) or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"shape {text!r} must be MxNxK or one number, each 1 or more")
    m, n, k = (int(size) for size in (sizes if len(sizes) == 3 else sizes * 3))
    return m, n, k


@dataclass(frozen=True)
class Case:
    """One measured call: what it works on, and the FLOPs or bytes that its time is divided by."""

    part: Part
    name: str
    dtype: str
    shape: str
    flops: int
    size_bytes: int
    run: Callable[[], object]


def gemm_cases(config: Config, dtypes: Sequence[str], device: str) -> Iterator[Case]:
    """Products of M x K and K x N matrices: 2 M N K FLOPs; bytes of both inputs and the output, once each."""
    import torch

    for dtype in dtypes:
        for text in _words(config.gemm_shapes):
            m, n, k = _shape(text)
            a_MK = torch.randn(m, k, device=device).to(_torch_dtype(dtype))
            b_KN = torch.randn(k, n, device=device).to(_torch_dtype(dtype))
            out_MN = torch.empty(m, n, device=device, dtype=a_MK.dtype)
            moved = (m * k + k * n + m * n) * DTYPE_BYTES[dtype]
            yield Case(
                "gemm", "matmul", dtype, f"{m}x{n}x{k}", 2 * m * n * k, moved,
                partial(torch.mm, a_MK, b_KN, out=out_MN),
            )  # fmt: skip


def attention_cases(config: Config, dtypes: Sequence[str], device: str) -> Iterator[Case]:
    """Causal attention of one sequence, forward: 4 H T^2 D FLOPs (the mask is not subtracted); q, k, v and output."""
    import torch
    import torch.nn.functional as F

    for dtype in dtypes:
        for text in _words(config.attention_tokens):
            tokens = _shape(text)[0]
            shape = (1, config.attention_heads, tokens, config.head_width)
            q_BHTD, k_BHTD, v_BHTD = (torch.randn(shape, device=device).to(_torch_dtype(dtype)) for _ in range(3))
            elements = config.attention_heads * tokens * config.head_width
            yield Case(
                "attention", "causal", dtype, "x".join(map(str, shape)), 4 * elements * tokens,
                4 * elements * DTYPE_BYTES[dtype],
                partial(F.scaled_dot_product_attention, q_BHTD, k_BHTD, v_BHTD, is_causal=True),
            )  # fmt: skip


def norm_cases(config: Config, dtypes: Sequence[str], device: str) -> Iterator[Case]:
    """Layer norm and RMSNorm of rows x W: bytes of input and output; the weights are small beside them."""
    import torch
    import torch.nn.functional as F

    width = config.norm_width
    for dtype in dtypes:
        x_BW = torch.randn(config.norm_rows, width, device=device).to(_torch_dtype(dtype))
        weight_W, bias_W = torch.ones_like(x_BW[0]), torch.zeros_like(x_BW[0])
        moved = 2 * config.norm_rows * width * DTYPE_BYTES[dtype]
        shape = f"{config.norm_rows}x{width}"
        calls: dict[str, Callable[[], object]] = {
            "layer_norm": partial(F.layer_norm, x_BW, (width,), weight_W, bias_W),
            "rms_norm": partial(F.rms_norm, x_BW, (width,), weight_W),
        }
        for name, call in calls.items():
            yield Case("norm", name, dtype, shape, 0, moved, call)


def copy_cases(config: Config, device: str) -> Iterator[Case]:
    """Copies of `copy_bytes` between host and device, from pageable and from pinned memory, and on the device.

    Bytes are those copied, once. On a CPU there is only one memory, so only the copy within it.
    """
    import torch

    count = config.copy_bytes
    here = torch.zeros(count, dtype=torch.uint8)
    there, other = torch.zeros_like(here, device=device), torch.zeros_like(here, device=device)
    pairs = {"device_to_device": (other, there)}
    if device != "cpu":
        pinned = here.pin_memory()
        pairs |= {
            "host_to_device": (there, here), "device_to_host": (here, there),
            "host_to_device_pinned": (there, pinned), "device_to_host_pinned": (pinned, there),
        }  # fmt: skip
    for name, (target, source) in pairs.items():
        call = partial(target.copy_, source, non_blocking=True)
        yield Case("copy", name, "uint8", str(count), 0, count, call)


def stream_cases(config: Config, device: str) -> Iterator[Case]:
    """The four kernels of STREAM over fp32 arrays: bytes read and written as STREAM counts them.

    Source:
        McCalpin, STREAM: copy and scale move 2 arrays, add and triad 3; write-allocate is not counted.
    """
    import torch

    count = config.stream_bytes // 4
    a_E, b_E, c_E = (torch.full((count,), value, device=device) for value in (1.0, 2.0, 0.0))
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: c_E.copy_(a_E)),
        "scale": (2, lambda: torch.mul(a_E, 3.0, out=c_E)),
        "add": (3, lambda: torch.add(a_E, b_E, out=c_E)),
        "triad": (3, lambda: torch.add(a_E, b_E, alpha=3.0, out=c_E)),
    }
    for name, (arrays, call) in calls.items():
        yield Case("stream", name, "fp32", str(count), 0, arrays * count * 4, call)


def rows_of(cases: Sequence[Case], times_ns: Sequence[Sequence[int]]) -> dict[str, list[dict[str, Value]]]:
    """Rows by part, one per case: median and best time, and rates by the median; FLOPs or bytes that are not counted
    leave their rate out."""
    tables: dict[str, list[dict[str, Value]]] = {}
    for case, times in zip(cases, times_ns, strict=True):
        median_ns = statistics.median(times)
        row: dict[str, Value] = {
            "name": case.name, "dtype": case.dtype, "shape": case.shape, "samples": len(times),
            "time_us": median_ns / 1e3, "time_min_us": min(times) / 1e3,
        }  # fmt: skip
        if case.flops:
            row["flops_per_s"] = case.flops / median_ns * 1e9
        row["bytes_per_s"] = case.size_bytes / median_ns * 1e9
        tables.setdefault(case.part, []).append(row)
    return tables


def ceilings(tables: Mapping[str, Sequence[Mapping[str, Value]]]) -> dict[str, float]:
    """The best rate of each kind over the median times: `matmul_<dtype>` in FLOP/s, `memory` and copies in bytes/s."""
    best: dict[str, float] = {}
    kinds: dict[str, Callable[[Mapping[str, Value]], str]] = {
        "gemm": lambda row: f"matmul_{row['dtype']}", "attention": lambda row: f"attention_{row['dtype']}",
        "stream": lambda row: "memory", "copy": lambda row: f"copy_{row['name']}",
    }  # fmt: skip
    for part, name_of in kinds.items():
        column = "flops_per_s" if part in ("gemm", "attention") else "bytes_per_s"
        for row in tables.get(part, ()):
            rate, name = row[column], name_of(row)
            assert isinstance(rate, float)
            best[name] = max(best.get(name, 0.0), rate)
    return best


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def dtypes_of(config: Config, kind: str) -> list[str]:
    """The dtypes that are measured on a kind of device."""
    if config.dtypes != "auto":
        return list(dict.fromkeys(_words(config.dtypes)))
    return ["fp32", "bf16"] if kind == "cpu" else ["fp16", "bf16", "fp32"]


@workload(
    name="micro",
    about=Words(
        "measured ceilings: matrix products by dtype and shape, attention, normalisation, copies, memory streams",
        "实测上限：各精度与形状的矩阵乘、注意力、归一化、主机与设备间拷贝、显存带宽",
    ),
    config=Config,
    takes=(),
)
def micro(config: Config, place: Place, seed: int) -> Program:
    """One pass over all cases on `place`."""
    import torch
    from torch.profiler import record_function

    torch.manual_seed(seed)
    # fp32 means fp32: with TF32 or HF32 the row would be that of another type.
    torch.backends.cuda.matmul.allow_tf32 = False
    backend = None if place.kind == "cpu" else getattr(torch, place.kind)
    dtypes, device, wanted = dtypes_of(config, place.kind), place.device, _words(config.parts)
    makers: dict[Part, Callable[[], Iterator[Case]]] = {
        "gemm": lambda: gemm_cases(config, dtypes, device),
        "attention": lambda: attention_cases(config, dtypes, device),
        "norm": lambda: norm_cases(config, dtypes, device),
        "copy": lambda: copy_cases(config, device),
        "stream": lambda: stream_cases(config, device),
    }
    cases = [case for part, make in makers.items() if part in wanted for case in make()]
    times_ns: list[list[int]] = [[] for _ in cases]

    def timed(case: Case) -> int:
        if backend is not None:
            backend.synchronize()
        start_ns = time.perf_counter_ns()
        case.run()
        if backend is not None:
            backend.synchronize()
        return time.perf_counter_ns() - start_ns

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def step() -> None:
        for case, times in zip(cases, times_ns, strict=True):
            with record_function(f"{case.part}::{case.name}"):
                times += [timed(case) for _ in range(config.iterations)]

    def forget() -> None:
        for times in times_ns:
            times.clear()

    def metrics() -> tuple[Metric, ...]:
        return tuple(
            Metric(
                name=f"ceiling_{name}", value=rate, better="higher",
                unit="flops_per_s" if name.startswith(("matmul", "attention")) else "bytes_per_s",
            )
            for name, rate in ceilings(rows_of(cases, times_ns)).items()
        )  # fmt: skip

    return Program(
        step=step,
        item="calls",
        items_per_step=len(cases) * config.iterations,
        flops_per_step=sum(case.flops for case in cases) * config.iterations,
        dtype=dtypes[0],
        parameters=0,
        value_name="cases",
        last_value=lambda: float(len(cases)),
        start_measuring=forget,
        metrics=metrics,
        tables=lambda: rows_of(cases, times_ns),
    )
