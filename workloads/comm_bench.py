"""comm-bench: collectives over message sizes: time, algorithm and bus bandwidth, every result checked.

    for each collective: for each size: fill -> barrier -> `iterations` calls -> time of the slowest rank -> check

A call's size is that of the whole message: the input of all_reduce, reduce_scatter, all_to_all, broadcast and send, the
output of all_gather. Read top to bottom: sizes, values and their check, the calls, one step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ascend_perf.device.bus import BUS_FACTORS, bus_ratio
from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads._spec import Place, Prediction, Program, Traffic, Value, at_least, did_you_mean, workload
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    import torch

# N elements of a message, R ranks

COLLECTIVES: Final = tuple(BUS_FACTORS)
ELEMENT_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}
VALUES: Final = 200
"""Elements are 1..200: whole numbers that fp16 and bf16 hold exactly."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is sent: collectives separated by commas, in sizes from `min_bytes` to `max_bytes` by `factor`."""

    collectives: str = ",".join(COLLECTIVES)
    min_bytes: int = 1024
    max_bytes: int = 1 << 20
    factor: int = 4
    iterations: int = 5
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    check: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "min_bytes", "iterations")
        at_least(self, 2, "factor")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes {self.max_bytes} is less than min_bytes {self.min_bytes}")
        for name in chosen(self):
            if name not in COLLECTIVES:
                known = ", ".join(COLLECTIVES)
                raise ValueError(f"no collective {name!r}{did_you_mean(name, COLLECTIVES)}; there are {known}")


def chosen(config: Config) -> tuple[str, ...]:
    """The collectives of a configuration, once each."""
    return tuple(dict.fromkeys(name.strip() for name in config.collectives.split(",")))


def sizes_bytes(config: Config, ranks: int) -> list[int]:
    """Message sizes, rounded up so that each rank's part is a whole number of elements."""
    part = ELEMENT_BYTES[config.dtype] * ranks
    sizes, size = [], config.min_bytes
    while size <= config.max_bytes:
        sizes.append(-(-size // part) * part)
        size *= config.factor
    return list(dict.fromkeys(sizes))


def predict(config: Config, world_size: int) -> Prediction:
    """Bytes of the calls, and the three buffers of the largest message: what is sent, received and expected.

    Raises:
        ValueError: the job has one rank only.
    """
    if world_size < 2:
        raise ValueError("collectives need 2 ranks or more: add --nproc 2")
    sizes = sizes_bytes(config, world_size)
    traffic = tuple(
        Traffic(
            axis="data", collective=name, bytes_per_step=sum(sizes) * config.iterations,
            calls_per_step=len(sizes) * config.iterations,
        )
        for name in chosen(config)
    )  # fmt: skip
    return Prediction(memory_bytes={"activations": 3 * max(sizes)}, traffic=traffic)


def values(count: int, start: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """N whole numbers, element i being 37 (start + i) mod 200 + 1: exact in every dtype that is offered."""
    import torch

    # One period, repeated: whole numbers of 8 bytes for each element would not fit beside the largest messages.
    factors_N = torch.arange(start, start + VALUES, device=device) * 37
    period_N = (torch.fmod(factors_N, VALUES) + 1).to(dtype)  # torch_npu has warnings to give for %
    return period_N.repeat(-(-count // VALUES))[:count]


@dataclass(frozen=True)
class Call:
    """A collective on buffers: `run` does it once, `wrong` counts elements that are not what they must be."""

    fill: Callable[[], None]
    run: Callable[[], None]
    wrong: Callable[[], int]


def call_of(name: str, size_bytes: int, place: Place, dtype: torch.dtype) -> Call:
    """The collective on fresh buffers of a message of `size_bytes`.

    all_reduce and reduce_scatter add up numbers of which exactly one rank's is not zero, so that the sum is exact in
    any dtype and a missing, doubled or swapped part shows. The others are told apart by sender and receiver.
    """
    import torch
    import torch.distributed as dist

    from ascend_perf.workloads._collectives import all_gather_whole, reduce_scatter_part

    rank, ranks, device = place.rank, place.world_size, place.device
    count = size_bytes // dtype.itemsize
    part = count // ranks
    if name == "send":
        out_N, sent_N = torch.empty(count, dtype=dtype, device=device), values(count, rank, device, dtype)
        before, after = (rank - 1) % ranks, (rank + 1) % ranks

        def pass_on() -> None:
            pair = [dist.P2POp(dist.isend, sent_N, after), dist.P2POp(dist.irecv, out_N, before)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return Call(out_N.zero_, pass_on, _wrong(out_N, values(count, before, device, dtype)))
    if name == "all_to_all":
        out_N = torch.empty(count, dtype=dtype, device=device)
        sent_N = torch.cat([values(part, rank * ranks + to, device, dtype) for to in range(ranks)])
        expected_N = torch.cat([values(part, source * ranks + rank, device, dtype) for source in range(ranks)])
        return Call(out_N.zero_, lambda: dist.all_to_all_single(out_N, sent_N), _wrong(out_N, expected_N))
    whole_N = values(count, 0, device, dtype)

    if name == "all_reduce":
        x_N, mine_N = torch.empty_like(whole_N), _only_mine(whole_N, place)
        return Call(lambda: _copy(x_N, mine_N), lambda: dist.all_reduce(x_N), _wrong(x_N, whole_N))
    if name == "broadcast":
        x_N = torch.empty_like(whole_N)
        start_N = whole_N if rank == 0 else torch.zeros_like(whole_N)
        return Call(lambda: _copy(x_N, start_N), lambda: dist.broadcast(x_N, src=0), _wrong(x_N, whole_N))
    if name == "all_gather":
        mine_N, out_N = whole_N[rank * part : (rank + 1) * part].clone(), torch.empty_like(whole_N)
        return Call(out_N.zero_, lambda: all_gather_whole(out_N, mine_N), _wrong(out_N, whole_N))
    assert name == "reduce_scatter"
    out_N = torch.empty(part, dtype=dtype, device=device)
    mine_N = _only_mine(whole_N, place)
    expected_N = whole_N[rank * part : (rank + 1) * part]
    return Call(out_N.zero_, lambda: reduce_scatter_part(out_N, mine_N), _wrong(out_N, expected_N))


def _only_mine(whole_N: torch.Tensor, place: Place) -> torch.Tensor:
    mine_N = whole_N.new_zeros(whole_N.shape)
    mine_N[place.rank :: place.world_size] = whole_N[place.rank :: place.world_size]
    return mine_N


def _wrong(seen_N: torch.Tensor, expected_N: torch.Tensor) -> Callable[[], int]:
    return lambda: int((seen_N != expected_N).sum())


def _copy(target_N: torch.Tensor, source_N: torch.Tensor) -> None:
    # A collective in place changes its input: without this the second call would add up sums.
    target_N.copy_(source_N)


def rows_of(times_ns: Mapping[tuple[str, int], Sequence[int]], ranks: int) -> list[dict[str, Value]]:
    """One row per collective and size: median time of a call on the slowest rank, and the two bandwidths.

    Source:
        NCCL tests, PERFORMANCE.md: algorithm bandwidth = size / time, bus bandwidth = that x `bus_ratio`.
    """
    rows: list[dict[str, Value]] = []
    for (name, size), times in times_ns.items():
        median_ns = statistics.median(times)
        rate = size / median_ns * 1e9
        rows.append({
            "collective": name, "size_bytes": size, "ranks": ranks, "samples": len(times),
            "time_us": median_ns / 1e3, "time_min_us": min(times) / 1e3, "time_max_us": max(times) / 1e3,
            "algorithm_bandwidth_bytes_per_s": rate, "bus_bandwidth_bytes_per_s": rate * bus_ratio(name, ranks),
        })  # fmt: skip
    return rows


@workload(
    name="comm-bench",
    about=Words(
        "collectives and point-to-point over message sizes: algorithm and bus bandwidth, results checked",
        "按消息大小测试集合通信与点对点通信：算法带宽、总线带宽，并校验结果",
    ),
    config=Config,
    takes=(),
    predict=predict,
    min_ranks=2,
)
def comm_bench(config: Config, place: Place, seed: int) -> Program:
    """One pass over all collectives and sizes; the seed changes nothing."""
    import torch
    import torch.distributed as dist
    from torch.profiler import record_function

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.dtype]
    backend = None if place.kind == "cpu" else getattr(torch, place.kind)
    devices = None if backend is None else [torch.device(place.device).index]
    sizes = sizes_bytes(config, place.world_size)
    times_ns: dict[tuple[str, int], list[int]] = {(name, size): [] for name in chosen(config) for size in sizes}
    wrong_elements = 0
    checks = config.check and not computes_nothing(place.kind)

    def timed(call: Call) -> int:
        if backend is not None:
            backend.synchronize()
        start_ns = time.perf_counter_ns()
        call.run()
        if backend is not None:
            backend.synchronize()
        return time.perf_counter_ns() - start_ns

    def step() -> None:
        nonlocal wrong_elements
        for (name, size), all_ns in times_ns.items():
            call = call_of(name, size, place, dtype)  # not all at once: the largest messages fill the memory
            mine: list[int] = []
            with record_function(f"{name}::{size}"):
                for _ in range(config.iterations):
                    call.fill()
                    dist.barrier(device_ids=devices)
                    mine.append(timed(call))
                    if checks:
                        wrong_elements += call.wrong()
            mine_ns = torch.tensor(mine, device=place.device)
            # The call ends when the last rank has its part.
            dist.all_reduce(mine_ns, op=dist.ReduceOp.MAX)
            all_ns += mine_ns.tolist()

    def forget() -> None:
        for times in times_ns.values():
            times.clear()

    def all_wrong() -> float:
        total = torch.tensor(wrong_elements, device=place.device)
        dist.all_reduce(total)
        return float(total)

    def metrics() -> tuple[Metric, ...]:
        best: dict[str, float] = {}
        for row in rows_of(times_ns, place.world_size):
            name, rate = str(row["collective"]), row["bus_bandwidth_bytes_per_s"]
            assert isinstance(rate, float)
            best[name] = max(best.get(name, 0.0), rate)
        return tuple(
            Metric(name=f"{name}_bus_bandwidth_best", value=rate, unit="bytes_per_s", better="higher")
            for name, rate in best.items()
        )

    return Program(
        step=step,
        item="collectives",
        items_per_step=len(times_ns) * config.iterations,
        flops_per_step=0,
        dtype=config.dtype,
        parameters=0,
        value_name="wrong_elements",
        last_value=all_wrong,
        start_measuring=forget,
        metrics=metrics,
        tables=lambda: {"bandwidth": rows_of(times_ns, place.world_size)},
    )
