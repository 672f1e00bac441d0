"""Faults of precision and stability: logs of training runs and of CANN, written beside the profiles of a job.

The logs are made from a curve (a decay with noise) by the formats' references; nothing here is known to the analyzers.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.faults.machine import Job
from tests.faults.planting import Strength
from tests.faults.plants_ranks import LATE

STEPS: Final = 400
DEVICE_MIB: Final = 65_536
"""Memory of the simulated device."""


@dataclass(kw_only=True)
class Row:
    """What one iteration logs."""

    loss: float
    grad: float
    scale: float = 1.0
    skipped: int = 0
    nans: int = 0


def curve(seed: int, *, noise: float = 0.01, steps: int = STEPS) -> list[Row]:
    """A healthy run: the loss decays from 10 towards 2."""
    rng = random.Random(seed)
    rows = []
    for step in range(steps):
        loss = (2 + 8 * math.exp(-step / 80)) * math.exp(rng.gauss(0, noise))
        grad = (0.8 + 4 * math.exp(-step / 50)) * math.exp(rng.gauss(0, 0.15))
        rows.append(Row(loss=loss, grad=grad))
    return rows


def megatron(rows: Sequence[Row], *, arguments: Mapping[str, object] | None = None, seed: int = 1234) -> str:
    """The log of Megatron's training loop, with what else such a log holds."""
    lines = ["using world size: 1, data-parallel size: 1", "---------------------- arguments ----------------------"]
    for name, value in {"bf16": True, "seed": seed, "lr": 0.0003, **(arguments or {})}.items():
        lines.append(f"  {name} {'.' * (48 - len(name))} {value}")
    lines.append("[W compiler_depend.ts:615] Warning: EZ9999: some warning of the device")
    for number, row in enumerate(rows, 1):
        parts = [
            f"iteration {number:8d}/{len(rows):8d}",
            f"consumed samples: {number * 16:12d}",
            "elapsed time per iteration (ms): 1842.7",
            f"learning rate: {3e-4 * min(1.0, number / 20):.6E}",
            "global batch size:    16",
        ]
        if row.loss > 0 and not math.isnan(row.loss):  # as Megatron does, NaN is left out
            parts.append(f"lm loss: {row.loss:.6E}")
        parts += [
            f"loss scale: {row.scale:.1f}",
            f"grad norm: {row.grad:.3f}",
            f"number of skipped iterations: {row.skipped:3d}",
            f"number of nan iterations: {row.nans:3d}",
        ]
        minute, second = divmod(2 * number, 60)
        lines.append(f" [2026-05-29 {10 + minute // 60:02d}:{minute % 60:02d}:{second:02d}] {' | '.join(parts)} |")
        if number % 100 == 0:
            lines.append("time (ms) | forward-backward: 1500.1 | optimizer: 90.2")
    return "\n".join(lines) + "\n"


def json_lines(rows: Sequence[Row]) -> str:
    """A line for each step."""

    def number(value: float) -> float | str:
        return value if math.isfinite(value) else "NaN"

    return "".join(
        json.dumps({"step": step, "loss": number(row.loss), "grad_norm": number(row.grad)}) + "\n"
        for step, row in enumerate(rows, 1)
    )


# ---- K-03 ------------------------------------------------------------------------------------------------------------


def _swing(job: Job, ratio: float) -> float:
    """Activations with which a rank of the job reserves this part of the device (2 % are the allocator's)."""
    return ratio * DEVICE_MIB / 1.02 - job.memory_base_mib


def full_stage(job: Job, target: int, strength: Strength) -> None:
    ratio = {"weak": 0.92, "medium": 0.95, "strong": 0.99}[strength]
    job.memory_swing_mib = dict.fromkeys((0, 1), _swing(job, ratio))


def full_stages(job: Job) -> Job:
    """Healthy: every stage uses its device alike."""
    job.memory_swing_mib = dict.fromkeys(job.programs, _swing(job, 0.93))
    return job


# ---- Q-01 ------------------------------------------------------------------------------------------------------------


def scaled(rows: list[Row], *, top: float = 2.0**16, grows: int = 1000) -> None:
    """A dynamic loss scale: from 2^24 down to its place, and there a skipped update each `grows` steps."""
    scale = 2.0**24
    for number, row in enumerate(rows):
        if scale > top or (number and number % grows == 0):
            row.scale, row.skipped, row.grad = scale / 2, 1, math.inf
            scale /= 2
        else:
            row.scale = scale
        if number and number % grows == grows // 2:
            scale *= 2


def falling_scale(job: Job, target: int, strength: Strength) -> None:
    halvings = {"weak": 4, "medium": 8, "strong": 16}[strength]
    rows = curve(job.seed)
    scaled(rows)
    every = (STEPS - 100) // halvings
    for count in range(halvings):
        first = 80 + count * every
        rows[first].skipped, rows[first].grad = 1, math.inf
        for row in rows[first:]:
            row.scale /= 2
    job.files["train.log"] = megatron(rows, arguments={"fp16": True, "bf16": False})


def nan_gradients(job: Job, target: int, strength: Strength) -> None:
    rows = curve(job.seed)
    last = {"weak": 201, "medium": 205, "strong": STEPS}[strength]
    for row in rows[200:last]:
        row.grad = math.nan
        if strength == "strong":
            row.loss, row.nans = math.nan, 1
    job.files["train.log"] = megatron(rows)


def skipping(job: Job, target: int, strength: Strength) -> None:
    """The scale keeps its place (it grows back at once), yet updates are skipped."""
    rows = curve(job.seed)
    scaled(rows)
    every = {"weak": 25, "medium": 12, "strong": 4}[strength]
    for number, row in enumerate(rows):
        if number > 60 and number % every == 0:
            row.skipped, row.grad, row.scale = 1, math.inf, row.scale / 2
    job.files["train.log"] = megatron(rows, arguments={"fp16": True, "bf16": False})


def healthy_log(job: Job) -> Job:
    """fp16 with a usual scaler; one batch that is a little harder than others."""
    rows = curve(job.seed)
    scaled(rows, grows=200)
    rows[250].loss *= 1.05
    job.files["logs/train.log"] = megatron(rows, arguments={"fp16": True, "bf16": False})
    return job


# ---- Q-02, Q-03 ------------------------------------------------------------------------------------------------------


def _varied(rows: Sequence[Row], seed: int, noise: float, first: int = 0, shift: float = 0.0) -> list[Row]:
    rng = random.Random(seed)

    def factor(step: int) -> float:
        return math.exp(rng.gauss(0, noise)) * (1 + shift * min(1, (step - first) / 100)) if step >= first else 1.0

    return [Row(loss=row.loss * factor(step), grad=row.grad) for step, row in enumerate(rows)]


def differing_runs(job: Job, target: int, strength: Strength) -> None:
    noise = {"weak": 0.002, "medium": 0.01, "strong": 0.05}[strength]
    rows = curve(job.seed)
    job.files["run-a/train.log"] = megatron(rows)
    job.files["run-b/train.log"] = megatron(_varied(rows, job.seed + 1, noise, first=30))


def equal_runs(job: Job) -> Job:
    """Two runs that are equal to the digits in which sums in another order differ, and a saved state of the first."""
    rows = curve(job.seed)
    job.files["run-a/train.log"] = megatron(rows)
    job.files["run-b/train.log"] = megatron(_varied(rows, job.seed + 1, 2e-5))
    history = [{"step": n, "loss": round(row.loss, 4), "grad_norm": row.grad} for n, row in enumerate(rows, 1)]
    state = {"epoch": 1.0, "global_step": STEPS, "log_history": [*history, {"step": STEPS, "train_runtime": 9.0}]}
    job.files["run-a/checkpoint-400/trainer_state.json"] = json.dumps(state, indent=2)
    return job


def oscillating(job: Job, target: int, strength: Strength) -> None:
    height = {"weak": 0.12, "medium": 0.25, "strong": 0.7}[strength]
    rows = curve(job.seed)
    for number, row in enumerate(rows[100:]):
        row.loss *= 1 + height * (1 - math.cos(2 * math.pi * number / 50)) / 2
    job.files["train.log"] = megatron(rows)


def drop(job: Job, target: int, strength: Strength) -> None:
    shift = {"weak": 0.01, "medium": 0.03, "strong": 0.15}[strength]
    rows = curve(job.seed)
    job.files["reference_fp32/train.log"] = megatron(rows, arguments={"bf16": False})
    job.files["converted/train.log"] = megatron(_varied(rows, job.seed + 1, 0.003, first=20, shift=shift))


# ---- Q-04 ------------------------------------------------------------------------------------------------------------

WORLD: Final = 4
COMM: Final = "10.20.30.40%eth0_60000_0_1779962400000000"


def plog(rank: int, errors: Sequence[tuple[float, str]], calls: int = 3) -> str:
    """The log of one process: its communicator, some calls, then the errors at their seconds."""

    def line(second: float, level: str, text: str) -> str:
        whole, part = divmod(round(second * 1_000_000), 1_000_000)
        hours, rest = divmod(10 * 3600 + whole, 3600)
        clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}.{part // 1000:03d}.{part % 1000:03d}"
        return f"[{level}] HCCL({4000 + rank},python3):2026-05-29-{clock} [hccl.cc:{100 + rank}] [{5000 + rank}]{text}"

    lines = [
        line(0.1, "INFO", "[HCCL_ENV] HCCL_EXEC_TIMEOUT set by default to [1836]"),
        line(0.2, "INFO", f"Entry-HcclCommInitRootInfoInner:ranks[{WORLD}], rank[{rank}], rootinfo: "
                          f"host ip[10.20.30.40] port[60000] nicDeploy[1] identifier[{COMM}], deviceLogicId[{rank}]"),
    ]  # fmt: skip
    lines += [
        line(1 + call, "INFO", f"Entry-HcclAllReduce: tag[AllReduce_{COMM}], sendBuf[0x12], recvBuf[0x13], "
                               "count[1024], dataType[bfloat16], op[sum]")
        for call in range(calls)
    ]  # fmt: skip
    lines += [line(second, "ERROR", text) for second, text in errors]
    return "\n".join(lines) + "\n"


def _plogs(job: Job, errors: Callable[[int], Sequence[tuple[float, str]] | None]) -> None:
    for rank in range(WORLD):
        told = errors(rank)
        if told is not None:
            job.files[f"plog/plog-{4000 + rank}_20260529100000000.log"] = plog(rank, told)


def waiting_timeout(job: Job, target: int, strength: Strength) -> None:
    """Rank 2 never comes. Weak: its log is silent; medium: it failed first; strong: heartbeats name it."""

    def errors(rank: int) -> list[tuple[float, str]]:
        if rank == LATE:
            return [] if strength == "weak" else [(50.0, "EL0004: Failed to allocate memory. Possible Cause: ...")]
        told = [
            (1900.0 + rank, "[TaskExecStage][Timeout][Host]Task run failed, base information is streamID:[2], "
                            f"taskID[5], tag[AllReduce_{COMM}], AlgType(level 0-1-2):[fullmesh-ring-NHR]."),
            (1900.1 + rank, "EI0002: The wait execution of the Notify register times out."),
            (1901.0 + rank, "EE9999: Inner Error!"),
        ]  # fmt: skip
        if strength == "strong":
            beat = f"[HeartbeatAbnormal]local rank [10.20.30.40/{rank}]: crimer rank [10.20.30.40/{LATE}] status[LOST]"
            told.insert(0, (80.0 + rank, beat))
        return told

    _plogs(job, errors)


def connect_timeout(job: Job, target: int, strength: Strength) -> None:
    """Links to rank 2 cannot be set up. Weak: it has no log at all."""

    def errors(rank: int) -> list[tuple[float, str]] | None:
        if rank != LATE:
            return [(120.0 + rank / 10, "EI0006: Getting socket times out. Remote Rank did not send the data in time.")]
        if strength == "weak":
            return None
        return [] if strength == "medium" else [(20.0, "EJ0001: Failed to initialize the HCCP process.")]

    _plogs(job, errors)


def healthy_plogs(job: Job) -> Job:
    """Logs without an error; one rank warns."""
    _plogs(job, lambda rank: [])
    name = next(iter(job.files))
    job.files[name] += "[WARNING] GE(4000,python3):2026-05-29-10:00:09.000.000 [ge.cc:1] [1]a warning\n"
    return job


# ---- Q-05 ------------------------------------------------------------------------------------------------------------


def faulty_card(job: Job, target: int, strength: Strength) -> None:
    count, height = {"weak": (4, 1.4), "medium": (6, 2.0), "strong": (9, math.nan)}[strength]
    rng = random.Random(job.seed)
    wrong = sorted(rng.sample(range(60, STEPS, 7), count))
    shared = next(step for step in range(150, STEPS) if all(abs(step - other) > 3 for other in wrong))
    for rank in range(4):
        rows = curve(job.seed * 10 + rank)
        rows[shared].loss *= 1.6  # a hard batch, the same for all
        if rank == LATE:
            for step in wrong:
                rows[step].loss *= height
        job.files[f"rank_{rank}/metrics.jsonl"] = json_lines(rows)


def healthy_ranks(job: Job) -> Job:
    """Hard batches hit all ranks, or now one rank and now another."""
    for rank in range(4):
        rows = curve(job.seed * 10 + rank)
        rows[120].loss *= 1.7
        rows[160 + 30 * rank].loss *= 1.5
        rows[300 + 15 * (3 - rank)].loss *= 1.5
        job.files[f"rank_{rank}/metrics.jsonl"] = json_lines(rows)
    return job
