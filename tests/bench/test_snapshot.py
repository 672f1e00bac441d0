"""Snapshots of the operators of a step: on tensors without values and with them, in a process of its own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.bench import snapshot
from ascend_perf.bench.snapshot import Mode, Request, take
from ascend_perf.cli import cli
from ascend_perf.errors import InputError, UsageError
from ascend_perf.op_streams import OpStream, changes, read_op_stream
from tests.bench._fake import install

LLM = (
    "layers=2", "width=16", "heads=2", "kv_heads=1", "hidden=24", "vocabulary=32", "tokens=8", "batch=1",
    "accumulate=1", "dtype=fp32", "recompute=none",
)  # fmt: skip


@pytest.mark.torch
def test_the_recorder_writes_what_torch_dispatches() -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.collectors.op_recorder import record

    x, w = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)

    stream = record(lambda: torch.mm(x, w).sum().backward())

    # The backward pass of x @ w needs the gradient of w alone: x^T @ dy.
    assert [line for line in stream if ".mm." in line] == [
        "aten.mm.default(f32[2,3], f32[3,4]) -> f32[2,4]",
        "aten.mm.default(f32[3,2], f32[2,4]) -> f32[3,4]",
    ]
    assert "aten.sum.default(f32[2,4]) -> f32[]" in stream
    assert record(lambda: torch.cat([x, x], 1)) == [
        "aten.cat.default([f32[2,3], f32[2,3]], dim=1) -> f32[2,6]"
    ]
    assert record(lambda: print(float(x.sum()))) == [
        "aten.sum.default(f32[2,3]) -> f32[]", "aten._local_scalar_dense.default(f32[]) -> float",
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.slow
def test_a_model_far_larger_than_memory_is_recorded_without_values(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    huge = (*LLM, "width=16384", "heads=128", "kv_heads=128", "hidden=65536")

    stream = take(Request(workload="llm-pretrain", overrides=huge, mode="fake"), tmp_path / "s")

    # 2 layers of 4 * 16384^2 + 3 * 16384 * 65536 weights: 34 GB in fp32, 137 GB with gradients and AdamW.
    assert "aten.mm.default(f32[8,16384], f32[16384,65536]) -> f32[8,65536]" in stream.totals


@pytest.mark.torch
@pytest.mark.slow
def test_equal_settings_give_equal_bytes_and_a_layer_more_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    one = take(Request(workload="llm-pretrain", overrides=LLM, mode="fake"), tmp_path / "1")
    take(Request(workload="llm-pretrain", overrides=LLM, mode="fake"), tmp_path / "2")
    three = ("layers=3", *LLM[1:])
    more = take(Request(workload="llm-pretrain", overrides=three, mode="fake"), tmp_path / "3")

    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert (one.mode, one.preset, one.settings["layers"]) == ("fake", "tiny", 2)
    gate = "aten.mm.default(f32[8,16], f32[16,24]) -> f32[8,24]"
    # Gate and up product of each layer; the backward pass of the down product has the same shape.
    found = {change.operator: (change.a, change.b) for change in changes(one, more)}
    assert found[gate] == (6, 9)


@pytest.mark.torch
@pytest.mark.slow
def test_what_reads_values_is_recorded_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    install(tmp_path, monkeypatch)
    request = Request(workload="fake")

    with pytest.raises(InputError, match="fake: DataDependentOutputException"):
        take(Request(workload="fake", mode="fake"), tmp_path / "s")
    stream = take(request, tmp_path / "s")

    assert stream.mode == "real"
    # A copy, its sum, and the sum read by the host.
    assert stream.stream == (
        "aten.clone.default(f32[4]) -> f32[4]", "aten.sum.default(f32[4]) -> f32[]",
        "aten._local_scalar_dense.default(f32[]) -> float",
    )  # fmt: skip
    monkeypatch.setattr(snapshot, "MAX_REAL_BYTES", 100)  # it says that it needs 128
    with pytest.raises(InputError, match="real: it needs 128 bytes, ask for it with --mode real"):
        take(request, tmp_path / "s")
    with pytest.raises(InputError, match="real: KeyError: 'planted'"):
        take(Request(workload="fake", overrides=("fault=bug",), mode="real"), tmp_path / "s")


def sent(stream: OpStream, call: str) -> dict[int, int]:
    """Numbers in the first operand of a collective -> calls of that size."""
    found: dict[int, int] = {}
    for operator, calls in stream.totals.items():
        if operator.startswith(f"c10d.{call}."):
            sizes = re.findall(r"[a-z]+\d+\[([\d,]*)\]", operator)[0]
            count = math.prod(int(size) for size in sizes.split(",") if size)
            found[count] = found.get(count, 0) + calls
    return found


# Weights of LLM: embedding and output of 32 x 16; a layer has query and output of 16 x 16, key and value of 8 x 16,
# three products of 16 x 24, two norms of 16; a norm at the end.
LAYER, ENDS = 2 * 256 + 2 * 128 + 3 * 384 + 2 * 16, 2 * 512 + 16


@pytest.mark.torch
@pytest.mark.slow
def test_collectives_of_a_layout_are_in_the_stream_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def taken(*layout: str, mode: Mode) -> OpStream:
        request = Request(workload="llm-pretrain", overrides=(*LLM, *layout), mode=mode, world_size=2)
        return take(request, tmp_path / "s")

    ddp = taken(mode="real")
    assert (ddp.world_size, read_op_stream(tmp_path / "s").world_size) == (2, 2)
    # Each gradient is in one bucket; two sums of one number are of the loss and of the norm, or of the tokens.
    buckets = {size: calls for size, calls in sent(ddp, "allreduce_").items() if size > 1}
    assert sum(size * calls for size, calls in buckets.items()) == 2 * LAYER + ENDS

    fsdp = taken("data_parallel=fsdp", mode="fake")
    # A half is held here. A layer is gathered forward and again backward, what is at the ends once.
    assert sent(fsdp, "_allgather_base_") == {LAYER: 4, ENDS: 1}
    assert sent(fsdp, "_reduce_scatter_base_") == {LAYER // 2: 2, ENDS // 2: 1}

    tensor = taken("tensor_ranks=2", "kv_heads=2", mode="fake")
    # 8 tokens of 16 in each layer after attention and after the MLP, backward before both; after the embedding, and
    # backward before the output, whose vocabularies are cut too.
    assert sent(tensor, "allreduce_")[8 * 16] == 2 * 4 + 2
    assert "aten.mm.default(f32[8,16], f32[16,12]) -> f32[8,12]" in tensor.totals  # half of 24


@pytest.mark.torch
@pytest.mark.slow
def test_experts_of_other_ranks_get_what_this_one_sends(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    request = Request(workload="moe-pretrain", overrides=("expert_ranks=2", "layers=2"), world_size=2)
    stream = take(request, tmp_path / "s")
    splits = [re.findall(r"_split_sizes=\[([\d,]+)\]", one) for one in stream.totals if "alltoall_base_" in one]
    splits = [pair for pair in splits if pair]
    assert splits and all(received == sent for received, sent in splits)


def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="comm-bench needs 2 processes or more") as told:
        take(Request(workload="comm-bench"), tmp_path / "s")
    assert told.value.hint == "add --nproc 2"
    with pytest.raises(UsageError, match="world of 3"):
        take(Request(workload="llm-pretrain", overrides=("tensor_ranks=2",), world_size=3), tmp_path / "s")


@pytest.mark.torch
def test_the_command_writes_the_file_and_says_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    install(tmp_path, monkeypatch)

    done = CliRunner().invoke(cli, ["snapshot", "fake", "-o", str(tmp_path / "s.txt"), "--lang", "zh"])

    assert done.exit_code == 0, done.output
    assert "共 3 个算子调用，3 种，张量含数值" in done.output
    assert read_op_stream(tmp_path / "s.txt").workload == "fake"
