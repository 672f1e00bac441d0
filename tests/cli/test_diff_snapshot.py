"""What two snapshots of a virtual NPU differ in, by kind, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.cli.diff_snapshot import command
from ascend_perf.errors import UsageError
from ascend_perf.op_streams import OpStream, counted, write_op_stream

MM = "aclnnMatmul(bf16[2,3], bf16[3,4], 0) -> bf16[2,4]"
WIDER = "aclnnMatmul(bf16[2,3], bf16[3,8], 0) -> bf16[2,8]"
SILU, SWIGLU = "aclnnSilu(bf16[2,4]) -> bf16[2,4]", "aclnnSwiGlu(bf16[2,8], -1) -> bf16[2,4]"
REDUCE, COPY, WAIT = "HcclAllReduce(f32[9], ranks=8)", "copy.h2d(bytes=64)", "wait.stream()"


def written(
    path: Path, *stream: str, mode: str = "virtual-npu", peak: int = 100, settings: dict[str, str | int] | None = None
) -> str:
    facts = {"launches": str(sum(line.startswith("aclnn") for line in stream)), "memory_peak_bytes": str(peak)}
    write_op_stream(path, OpStream(
        workload="w", mode=mode, facts=facts, settings=settings or {}, totals=counted(stream), stream=stream,
    ))  # fmt: skip
    return str(path)


def test_each_kind_of_difference_is_named(tmp_path: Path) -> None:
    base = written(tmp_path / "a", MM, MM, SWIGLU, REDUCE, COPY, WAIT, settings={"fused": "auto", "layers": 2})
    head = written(
        tmp_path / "b", WIDER, WIDER, SILU, SILU, REDUCE, REDUCE, COPY, COPY, COPY, WAIT, WAIT, peak=150,
        settings={"fused": "off", "layers": 2},
    )  # fmt: skip

    done = CliRunner().invoke(command, [base, head])

    assert done.exit_code == 1
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines == [
        "6 operators, collectives, copies and waits in BASE, 11 in HEAD",
        "settings", "fused auto -> off",
        "launches 3 -> 4",
        "operators", f"+2 (0 -> 2) {SILU}", f"-1 (1 -> 0) {SWIGLU}",
        "shapes", f"2 x {MM} => {WIDER}",
        "collectives", f"+1 (1 -> 2) {REDUCE}",
        "copies", f"+2 (1 -> 3) {COPY}",
        "waits", f"+1 (1 -> 2) {WAIT}",
        "memory of the allocator, bytes and segments", "+50 (100 -> 150) memory_peak_bytes",
    ]  # fmt: skip
    chinese = CliRunner().invoke(command, [base, head, "--lang", "zh"])
    assert "集合通信" in chinese.output and "下发次数" in chinese.output and "operators" not in chinese.output


def test_nothing_and_another_order(tmp_path: Path) -> None:
    base, same, other = (
        written(tmp_path / "a", MM, SILU), written(tmp_path / "b", MM, SILU), written(tmp_path / "c", SILU, MM),
    )  # fmt: skip
    done = CliRunner().invoke(command, [base, same])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "nothing differs")
    done = CliRunner().invoke(command, [base, other])
    assert (done.exit_code, done.output.splitlines()[-1]) == (1, "the same calls in another order")


def test_long_differences_are_cut_unless_all_are_wanted(tmp_path: Path) -> None:
    base = written(tmp_path / "a", *(f"aclnnAbs(f32[{size}]) -> f32[{size}]" for size in range(1, 21)))
    head = written(tmp_path / "b", MM)
    short, whole = (CliRunner().invoke(command, [base, head, *more]).output for more in ((), ("--all",)))
    assert "... 9 more (--all)" in short and "more" not in whole
    assert (short.count("aclnnAbs"), whole.count("aclnnAbs")) == (12, 20)  # the product comes last


def test_snapshots_of_other_modes_are_for_the_gate(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [written(tmp_path / "a", MM), written(tmp_path / "b", MM, mode="fake")])
    assert isinstance(done.exception, UsageError) and "of mode fake" in done.exception.what


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_no_snapshot_is_refused(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(command, [str(tmp_path / name), str(tmp_path / name)])
    assert done.exit_code != 0 and done.exception is not None and not isinstance(done.exception, OSError)
