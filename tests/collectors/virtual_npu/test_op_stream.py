"""Records as snapshots of operators: the text of each call, what is left out, what differs."""

from __future__ import annotations

from pathlib import Path

from ascend_perf.collectors.virtual_npu.op_stream import MODE, Difference, differences, op_stream
from ascend_perf.collectors.virtual_npu.record import Record, read_record
from ascend_perf.op_streams import OpStream, counted, read_op_stream, write_op_stream
from tests.collectors.virtual_npu._records import BF16, F32, I64, RAW0, RecordText, small_job, t


def read(text: RecordText, folder: Path) -> Record:
    return read_record(text.write(folder))


def line(folder: Path, name: str, *args: list[object] | None) -> str:
    text = RecordText()
    text.kernel(name, [*args], 10, 20, 5)
    (found,) = op_stream(read(text, folder), workload="w").stream or ()
    return found


def test_the_stream_of_a_record(tmp_path: Path) -> None:
    found = op_stream(read(small_job(), tmp_path), workload="tiny-job", preset="tiny", settings={"layers": 2})
    assert (found.workload, found.preset, found.mode, found.world_size) == ("tiny-job", "tiny", MODE, 8)
    step = (
        "aclnnMatmul(bf16[4096,4096], bf16[4096,4096]) -> bf16[4096,4096]",
        "HcclAllReduce(bf16[8194000], ranks=8)",
        "aclnnRmsNorm(bf16[4096,4096], bf16[4096]) -> bf16[4096,4096], f32[4096,1]",
        "aclnnMaxPool2dWithMask(f32[8,64,56,56]) -> f32[8,64,28,28], i8[8,64,28,28]",
        "copy.d2h(bytes=4)",
        "wait.stream()",
    )
    fill = "aclnnInplaceOne(f32[512]) -> f32[512]"
    assert found.stream == (fill, *step, *step, fill)
    assert found.totals == counted(found.stream)
    assert found.facts["launches"] == "8"
    assert (found.facts["collectives"], found.facts["copies"], found.facts["waits"]) == ("2", "2", "2")
    assert found.facts["memory_peak_bytes"] == str(6 << 20)
    assert (found.facts["memory_segments"], found.facts["memory_segment_bytes"]) == ("3", str(10 << 20))
    assert found.facts["device"] == "Ascend910B2 (virtual)"


def test_one_step_of_it(tmp_path: Path) -> None:
    record = read(small_job(), tmp_path)
    step = op_stream(record, workload="w", between=(RAW0 + 3_000_000, RAW0 + 3_999_999))
    assert step.stream is not None
    assert len(step.stream) == 6
    # What was in use when the step began counts for its peak, too.
    assert step.facts["memory_peak_bytes"] == str(6 << 20)
    empty = op_stream(record, workload="w", between=(RAW0 + 1_100_000, RAW0 + 1_200_000))
    assert empty.stream == ()
    assert empty.facts["memory_peak_bytes"] == str(2 << 20)


def test_a_snapshot_is_written_and_read(tmp_path: Path) -> None:
    found = op_stream(read(small_job(), tmp_path), workload="w", facts={"torch_npu": "2.13.0"})
    assert read_op_stream(write_op_stream(tmp_path / "a.ops", found)) == found


def test_the_order_is_that_of_the_launches(tmp_path: Path) -> None:
    text = RecordText()
    text.kernel("aclnnAbs", [t(F32, [1]), t(F32, [1])], 10, 90, 5)
    text.kernel("aclnnExp", [t(F32, [2]), t(F32, [2])], 20, 30, 5, stream=4)
    text.lines[-3], text.lines[-1] = text.lines[-1], text.lines[-3]  # the device came to know the second one first
    text.lines.sort(key=lambda one: not one.startswith("D"))
    assert op_stream(read(text, tmp_path), workload="w").stream == (
        "aclnnAbs(f32[1]) -> f32[1]", "aclnnExp(f32[2]) -> f32[2]"
    )  # fmt: skip


def test_arguments(tmp_path: Path) -> None:
    assert line(tmp_path, "aclnnAdd", t(BF16, [4]), t(BF16, [4]), ["s", 0, 1.5], t(BF16, [4])) == (
        "aclnnAdd(bf16[4], bf16[4], 1.5) -> bf16[4]"
    )
    assert line(tmp_path, "aclnnPermuteLike", t(BF16, [2, 3]), ["i", [1, 0]], None, t(BF16, [3, 2])) == (
        "aclnnPermuteLike(bf16[2,3], [1,0]) -> bf16[3,2]"
    )
    assert line(tmp_path, "aclnnX", t(F32, []), ["c", "BSND"], ["n", 5], ["d", 0.1], ["b", [True, False]]) == (
        "aclnnX(f32[], BSND, 5, 0.1, [True,False]) -> f32[]"
    )


def test_layout_of_tensors(tmp_path: Path) -> None:
    assert line(tmp_path, "aclnnAbs", t(F32, [4, 8], [1, 4]), t(F32, [4, 8], [8, 1])) == (
        "aclnnAbs(f32[4,8]@1,4) -> f32[4,8]"
    )
    assert line(tmp_path, "aclnnAbs", t(1, [16, 16], None, 29), t(1, [16, 16])) == (
        "aclnnAbs(f16[16,16]:FRACTAL_NZ) -> f16[16,16]"
    )


def test_lists_of_tensors(tmp_path: Path) -> None:
    two = [[F32, 2, [4], None], [F32, 2, [8], None]]
    assert line(tmp_path, "aclnnCat", ["l", two], ["n", 0], t(F32, [12])) == "aclnnCat([f32[4], f32[8]], 0) -> f32[12]"
    assert line(tmp_path, "aclnnForeachSqrt", ["l", two], ["l", two]) == (
        "aclnnForeachSqrt([f32[4], f32[8]]) -> f32[4], f32[8]"
    )


def test_what_differs_from_run_to_run_is_left_out(tmp_path: Path) -> None:
    assert line(tmp_path, "aclnnInplaceUniform", t(F32, [4]), ["n", 7800420026903224], ["n", 12], ["d", 0.5]) == (
        "aclnnInplaceUniform(f32[4]) -> f32[4]"
    )
    text = RecordText()
    text.wait("query", 10, 20)
    text.wait("device", 30, 40)
    assert op_stream(read(text, tmp_path), workload="w").stream == ("wait.device()",)


def test_point_to_point_names_the_other_end(tmp_path: Path) -> None:
    text = RecordText()
    text.group(1, "pp", 4, 0)
    text.collective("Send", 256, 1, 2, 3, 4, comm=1, peer=3, dtype=4, size=4)
    assert op_stream(read(text, tmp_path), workload="w").stream == ("HcclSend(f32[256], peer=3, ranks=4)",)


# ---- differences -------------------------------------------------------------------------------------------------


def stream(*lines: str, **facts: str) -> OpStream:
    return OpStream(workload="w", mode=MODE, facts=facts, totals=counted(lines), stream=lines)


def test_equal_streams_differ_in_nothing() -> None:
    one = stream("aclnnAdd(f32[1]) -> f32[1]", memory_peak_bytes="5")
    assert differences(one, one) == ()


def test_each_kind_of_difference() -> None:
    a = stream(
        *["aclnnAdd(f32[1]) -> f32[1]"] * 3, "aclnnCast(f32[2]) -> bf16[2]", "aclnnMm(f32[2,2], f32[2,2]) -> f32[2,2]",
        "HcclAllReduce(f32[8], ranks=8)", "wait.stream()", "copy.h2d(bytes=8)", memory_peak_bytes="100",
        memory_segments="3",
    )  # fmt: skip
    b = stream(
        "aclnnAdd(f32[1]) -> f32[1]", "aclnnMm(f32[2,4], f32[4,2]) -> f32[2,2]", "HcclAllReduce(f32[16], ranks=8)",
        "wait.stream()", "wait.stream()", "aclnnSwiGlu(f32[4]) -> f32[2]", memory_peak_bytes="80", memory_segments="3",
    )  # fmt: skip
    assert differences(a, b) == (
        Difference(kind="operators", name="aclnnAdd(f32[1]) -> f32[1]", a=3, b=1),
        Difference(kind="operators", name="aclnnCast(f32[2]) -> bf16[2]", a=1, b=0),
        Difference(kind="operators", name="aclnnSwiGlu(f32[4]) -> f32[2]", a=0, b=1),
        Difference(
            kind="shapes", name="aclnnMm(f32[2,2], f32[2,2]) -> f32[2,2]  =>  aclnnMm(f32[2,4], f32[4,2]) -> f32[2,2]",
            a=1, b=1,
        ),
        Difference(kind="collectives", name="HcclAllReduce(f32[16], ranks=8)", a=0, b=1),
        Difference(kind="collectives", name="HcclAllReduce(f32[8], ranks=8)", a=1, b=0),
        Difference(kind="copies", name="copy.h2d(bytes=8)", a=1, b=0),
        Difference(kind="waits", name="wait.stream()", a=1, b=2),
        Difference(kind="memory", name="memory_peak_bytes", a=100, b=80),
    )  # fmt: skip


def test_other_shapes_in_other_numbers_are_operators_of_their_own() -> None:
    a = stream(*["aclnnMm(f32[2]) -> f32[2]"] * 2, "aclnnMm(f32[3]) -> f32[3]")
    b = stream(*["aclnnMm(f32[4]) -> f32[4]"] * 3)
    assert [(one.kind, one.a, one.b) for one in differences(a, b)] == [
        ("operators", 0, 3), ("operators", 2, 0), ("operators", 1, 0)
    ]  # fmt: skip


def test_a_random_operator_is_none_because_of_a_part_of_its_name(tmp_path: Path) -> None:
    assert line(tmp_path, "aclnnNorm", t(F32, [4]), ["n", 2], t(F32, [])) == "aclnnNorm(f32[4], 2) -> f32[]"
    assert line(tmp_path, "aclnnOneHot", t(I64, [4]), ["n", 9], t(F32, [4, 9])) == "aclnnOneHot(i64[4], 9) -> f32[4,9]"
