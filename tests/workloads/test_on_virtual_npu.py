"""Every workload on a virtual NPU: the real torch_npu runs its code for NPUs to the end, and says nothing against it.

A process costs ten seconds, a workload in it one: all of them share a few processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ascend_perf.bench.library_warnings import LibraryWarning, library_warnings
from ascend_perf.collectors.virtual_npu.op_stream import op_stream
from ascend_perf.collectors.virtual_npu.record import Record, read_folder
from ascend_perf.op_streams import OpStream
from ascend_perf.workloads import _spec
from tests._virtual_npu import ready_npu
from tests.workloads._virtual_cases import BEGIN, END
from tests.workloads._virtual_job import played

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).parents[2]

Case = tuple[str, tuple[str, ...]]

ONE: Final[tuple[Case, ...]] = (
    ("llm-pretrain", ()), ("llm-pretrain", ("fused=off",)), ("llm-pretrain", ("dtype=fp16", "recompute=full")),
    ("llm-pretrain", ("weights=bf16", "recompute=selective")),
    ("full-finetune", ()), ("full-finetune", ("fused=off",)), ("lora-finetune", ()), ("lora-finetune", ("fused=off",)),
    ("moe-pretrain", ()), ("moe-pretrain", ("fused=off",)), ("moe-pretrain", ("capacity_factor=1.25",)),
    ("bert-clue", ()), ("bert-clue", ("fused=off",)), ("bert-clue", ("fused=off", "dtype=fp16")),
    ("bert-clue", ("mode=infer",)),
    ("resnet50-train", ("workers=0",)), ("resnet50-train", ("workers=0", "fused_optimizer=off")),
    ("resnet50-train", ("workers=0", "fused_optimizer=off", "dtype=fp16")), ("resnet50-infer", ()),
    ("llm-generate", ()), ("llm-generate", ("fused=off",)), ("llm-generate", ("fused=off", "cache=dynamic")),
    ("llm-serve", ()), ("llm-serve", ("fused=off",)), ("micro", ()),
)  # fmt: skip
EIGHT: Final[tuple[Case, ...]] = (
    ("llm-pretrain", ()), ("llm-pretrain", ("fused=off",)), ("llm-pretrain", ("data_parallel=fsdp",)),
    ("llm-pretrain", ("data_parallel=fsdp", "fused=off")), ("llm-pretrain", ("tensor_ranks=2",)),
    ("llm-pretrain", ("tensor_ranks=2", "sequence_parallel=true")), ("llm-pretrain", ("tensor_ranks=2", "fused=off")),
    ("llm-pretrain", ("tensor_ranks=2", "data_parallel=fsdp")), ("llm-pretrain", ("context_ranks=2",)),
    ("llm-pretrain", ("pipeline_ranks=2",)), ("llm-pretrain", ("distributed_optimizer=true",)),
    ("full-finetune", ()), ("full-finetune", ("fused=off",)), ("full-finetune", ("data_parallel=fsdp",)),
    ("full-finetune", ("data_parallel=fsdp", "fused=off")), ("full-finetune", ("tensor_ranks=2",)),
    ("full-finetune", ("tensor_ranks=2", "fused=off")),
    ("lora-finetune", ()), ("lora-finetune", ("fused=off",)),
    ("moe-pretrain", ()), ("moe-pretrain", ("fused=off",)), ("moe-pretrain", ("data_parallel=fsdp",)),
    ("moe-pretrain", ("data_parallel=fsdp", "fused=off")), ("moe-pretrain", ("expert_ranks=2", "fused=off")),
    ("moe-pretrain", ("expert_ranks=2", "data_parallel=fsdp")),
    ("bert-clue", ()), ("bert-clue", ("fused=off",)), ("resnet50-train", ("workers=0", "sync_batch_norm=true")),
    ("resnet50-train", ("workers=0",)), ("resnet50-train", ("workers=0", "fused_optimizer=off")),
    ("resnet50-infer", ()), ("micro", ()), ("comm-bench", ()),
)  # fmt: skip
AGAIN: Final[tuple[Case, ...]] = (
    ("llm-pretrain", ()), ("llm-pretrain", ("fused=off",)), ("moe-pretrain", ()), ("bert-clue", ()),
    ("resnet50-train", ("workers=0",)), ("llm-generate", ()),
)  # fmt: skip
"""Those of `ONE` that are run in every mode of the task queue."""

@pytest.fixture(autouse=True)
def needs_virtual_npu() -> None:
    ready_npu()


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a process of cases left."""

    said: Sequence[Mapping[str, Any]]
    record: Record
    output: str

    def stream(self, number: int) -> OpStream:
        """The operators of the marked step of a case."""
        times = {text: time for time, _, text, _ in self.record.marks}
        window = times[BEGIN.format(number)], times[END.format(number)] - 1
        return op_stream(self.record, workload=str(number), between=window)


def ran(cases: Sequence[Case], folder: Path, *, world_size: int = 1, **variables: str) -> Ran:
    made = played("tests.workloads._virtual_cases", cases, folder, world_size=world_size, **variables)
    (record,) = read_folder(made.record_folder)
    return Ran(said=made.said, record=record, output=made.output)


def warnings_of(output: str) -> Sequence[LibraryWarning]:
    """What the library complains of; not the lines that it prints in every program."""
    return library_warnings(output.splitlines()[:-1])


def errors_of(cases: Sequence[Case], said: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {
        " ".join((name, *settings)): str(one["error"])
        for (name, settings), one in zip(cases, said, strict=True) if "error" in one
    }  # fmt: skip


def needed(world_size: int) -> set[tuple[str, frozenset[str]]]:
    """Each workload that so many ranks can run, fused and not, with each layout of DDP, FSDP2 and TP that it offers."""
    cases = set()
    for workload in _spec.load_workloads().parts.values():
        offered = _spec.values_of(workload.settings("tiny", ()).config).keys()
        layouts = [(), ("data_parallel=fsdp",), ("tensor_ranks=2",)] if world_size > 1 else [()]
        switches = [(), *((f"{switch}=off",) for switch in ("fused", "fused_optimizer") if switch in offered)]
        for settings in [(*layout, *switch) for layout in layouts for switch in switches]:
            if all(setting.partition("=")[0] in offered for setting in settings):
                config = workload.settings("tiny", settings).config
                with contextlib.suppress(ValueError):  # a layout or a number of ranks that it refuses
                    if workload.predict is not None:
                        workload.predict(config, world_size)
                    cases.add((workload.name, frozenset(settings)))
    return cases


@pytest.mark.parametrize(("cases", "world_size"), [(ONE, 1), (EIGHT, 8)])
def test_the_cases_leave_out_no_workload_and_no_layout(cases: tuple[Case, ...], world_size: int) -> None:
    assert needed(world_size) - {(name, frozenset(settings) - {"workers=0"}) for name, settings in cases} == set()


def test_every_workload_on_one_device_and_its_snapshot_in_every_mode_of_the_task_queue(tmp_path: Path) -> None:
    first = ran(ONE, _made(tmp_path / "first"), TASK_QUEUE_ENABLE="2")
    assert errors_of(ONE, first.said) == {}
    assert warnings_of(first.output) == ()
    values = {"accuracy", "router_imbalance", "loss", "router_balance_loss"}
    assert not any(values & set(one["metrics"]) for one in first.said)  # nothing that follows from values
    fused = dict(zip(ONE, (first.stream(number) for number in range(len(ONE))), strict=True))
    names = {line.partition("(")[0] for line in fused["llm-pretrain", ()].totals}
    plain = {line.partition("(")[0] for line in fused["llm-pretrain", ("fused=off",)].totals}
    wanted = {"aclnnRmsNorm", "aclnnSwiGlu", "aclnnRotaryPositionEmbeddingV2", "aclnnCrossEntropyLoss"}
    assert wanted <= names and not wanted & plain

    for mode in ("0", "1"):
        again = ran(AGAIN, _made(tmp_path / mode), TASK_QUEUE_ENABLE=mode)
        assert errors_of(AGAIN, again.said) == {}
        for number, case in enumerate(AGAIN):
            assert again.stream(number).totals == fused[case].totals, case
            assert again.stream(number).stream == fused[case].stream, case


def test_every_layout_on_eight_ranks_in_one_process(tmp_path: Path) -> None:
    done = ran(EIGHT, tmp_path, world_size=8)
    assert errors_of(EIGHT, done.said) == {}
    assert warnings_of(done.output) == ()
    streams = dict(zip(EIGHT, (done.stream(number) for number in range(len(EIGHT))), strict=True))

    def collectives(*settings: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for line, count in streams["llm-pretrain", settings].totals.items():
            if line.startswith("Hccl"):
                name = line.partition("(")[0]
                found[name] = found.get(name, 0) + count
        return found

    workload = _spec.find_workload("llm-pretrain")
    assert workload.predict is not None
    for settings, counted in (
        (("data_parallel=fsdp",), {"HcclAllGather": "all_gather", "HcclReduceScatter": "reduce_scatter"}),
        (("tensor_ranks=2", "fused=off"), {"HcclAllReduce": "all_reduce"}),
    ):
        predicted = workload.predict(workload.settings("tiny", settings).config, 8).traffic
        for ours, theirs in counted.items():
            calls = sum(part.calls_per_step for part in predicted if part.collective == theirs)
            assert collectives(*settings)[ours] == calls, (settings, ours)
    # Rank 0 of two pipeline ranks sends activations forward and gets gradients back, once for each micro-batch.
    pipeline = collectives("pipeline_ranks=2")
    assert (pipeline["HcclSend"], pipeline["HcclRecv"]) == (2, 2)
    for number, (name, _) in enumerate(EIGHT):
        if name == "comm-bench":
            assert done.said[number]["tables"]["bandwidth"] > 0


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
