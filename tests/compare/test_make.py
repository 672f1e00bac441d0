"""Comparisons as a whole: other work is refused with the reason, sums are exact, reports are in two languages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from ascend_perf import pipeline
from ascend_perf.cli.compare import labels
from ascend_perf.compare.inputs import Input
from ascend_perf.compare.make import NotComparable, compare
from ascend_perf.compare.pair import pair_of, step_bar
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import Benchmark, Launch, ResultSet
from ascend_perf.model.run import Fact, Manifest, Run
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.reports.compare import document, html_text, markdown_text
from ascend_perf.result_files import write_results
from tests._support import Said
from tests.conftest import build_table

H100 = Device(vendor="NVIDIA", name="NVIDIA H100 80GB HBM3", spec="h100-sxm", kind="gpu")
MI300X = Device(vendor="AMD", name="AMD Instinct MI300X", spec="mi300x", kind="gpu")


def layers(
    count: int, dur: int, *, device: Device = H100, tokens: int = 64, dtype: str = "c10::BFloat16",
    origin: str = "measured", kernel: str = "sm90_gemm", names: tuple[str, str] = ("aten::mm", "aten::add"),
    shaped: int = 99,
) -> Trace:  # fmt: skip
    """A step of `count` layers: a product of (tokens, 1024) x (1024, 1024), and a sum of (tokens, 1024).

    The first `shaped` layers have their shapes recorded.
    """
    ops: list[dict[str, object]] = []
    kernels: list[dict[str, object]] = []
    for layer in range(count):
        at = 1000 * layer
        for place, name in enumerate(names):
            shapes = f"[[{tokens},1024],[1024,1024]]" if place == 0 else f"[[{tokens},1024],[{tokens},1024]]"
            kernels.append({
                "name": kernel if place == 0 else "vectorized_elementwise_kernel", "start_ns": at + 400 * place + 10,
                "dur_ns": dur, "host_op": len(ops), "core": "SM",
            })  # fmt: skip
            ops.append({
                "name": name, "start_ns": at + 400 * place, "dur_ns": 300, "thread": 1,
                "input_shapes": shapes if layer < shaped else None, "input_dtypes": f"{dtype};{dtype}",
            })  # fmt: skip
    meta = Meta(device=device, rank=0, data_origin=origin)  # type: ignore[arg-type]
    return Trace({"host_ops": build_table("host_ops", ops), "kernels": build_table("kernels", kernels)}, meta)


def given(trace: Trace, label: str = "x") -> Input:
    return Input(label=label, run=Run(traces=(trace,), label=label))


def test_the_rooflines_say_what_to_expect() -> None:
    pair = pair_of(layers(3, 100), layers(3, 150, device=MI300X, kernel="Cijk_Alik"))
    table = pair.tables[1]
    rows = {name: i for i, name in enumerate(table.column("name"))}
    # 2 * 64 * 1024 * 1024 FLOP take less than the (2 * 64 + 1024) * 1024 * 2 bytes on both: the ratio of memory rates.
    assert 2 * 64 * 1024 * 1024 / 989.4e12 < 1152 * 1024 * 2 / 3.35e12
    for name in ("aten::mm", "aten::add"):
        assert table.column("expected_ratio")[rows[name]] == pytest.approx(3350 / 5300)
        assert table.column("time_ratio")[rows[name]] == 1.5
        assert table.column("shortfall_ratio")[rows[name]] == pytest.approx(1.5 * 5300 / 3350)
        assert table.column("basis")[rows[name]] == "work"
        assert table.column("beyond_ns")[rows[name]] == round(450 - 300 * 3350 / 5300)
    # Large products are bound by the peak.
    pair = pair_of(layers(3, 100, tokens=4096), layers(3, 150, device=MI300X, kernel="Cijk_Alik", tokens=4096))
    table = pair.tables[1]
    at = list(table.column("name")).index("aten::mm")
    assert table.column("expected_ratio")[at] == pytest.approx(989.4 / 1307.4)


def test_without_shapes_a_product_goes_by_the_peaks_and_the_rest_by_the_memory() -> None:
    # One layer of four tells the type of the products, and too little of the work.
    table = pair_of(layers(4, 100, shaped=1), layers(4, 150, device=MI300X, kernel="Cijk_Alik", shaped=1)).tables[1]
    said = dict(zip(table.column("name"), zip(table.column("expected_ratio"), table.column("basis"), strict=True),
                    strict=True))  # fmt: skip
    assert said["aten::mm"][0] == pytest.approx(989.4 / 1307.4)
    assert said["aten::add"][0] == pytest.approx(3350 / 5300)
    assert (said["aten::mm"][1], said["aten::add"][1]) == ("peak (assumed)", "memory rate (assumed)")


def test_the_parts_of_a_step_add_up() -> None:
    bar = step_bar(layers(4, 120), "A")
    assert bar is not None
    assert {part.key: part.time_ns for part in bar.parts} == {
        "computing": 8 * 120, "exposed communication": 0, "exposed copy": 0, "idle": 3410 + 120 - 10 - 8 * 120,
    }  # fmt: skip
    assert bar.total_ns == 3410 + 120 - 10


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (layers(6, 100, names=("npu::conv", "npu::relu")), "different models"),
        (layers(6, 100, tokens=128), "shapes"),
        (layers(6, 100, dtype="float"), "data types"),
        (layers(30, 100), "different models"),
    ],
)
def test_other_work_is_refused_with_the_reason(other: Trace, said: str) -> None:
    inputs = [given(layers(6, 100)), given(other)]
    with pytest.raises(NotComparable, match=said) as refused:
        compare(inputs)
    assert refused.value.exit_code == 4
    forced = compare(inputs, force=True)
    assert any(one.is_grave and said in one.what.en for one in forced.said)
    assert document(forced, "en")["comparable"] is False
    assert "--force" in markdown_text(forced, "en") and "--force" in markdown_text(forced, "zh")


def test_the_same_work_is_not() -> None:
    made = compare([given(layers(6, 100)), given(layers(6, 130, device=MI300X, kernel="Cijk"))])
    assert not any(one.is_grave for one in made.said)
    assert document(made, "en")["comparable"] is True


def test_simulated_data_are_refused_unless_asked_for() -> None:
    inputs = [given(layers(6, 100)), given(layers(6, 100, origin="simulated"))]
    with pytest.raises(NotComparable, match="B holds simulated data"):
        compare(inputs)
    made = compare(inputs, simulated=True)
    assert made.origin == "simulated"
    assert document(made, "en")["data_origin"] == "simulated"


def test_three_sides_are_each_compared_with_the_first() -> None:
    made = compare([given(layers(6, dur)) for dur in (100, 110, 90)])
    assert set(made.totals) == {"A/B", "A/C"}
    assert [totals["device_time_b_ns"] for totals in made.totals.values()] == [12 * 110, 12 * 90]
    assert len([section for section in made.sections if section.key.startswith("operators")]) == 2


def test_one_input_or_kinds_that_do_not_fit_are_wrong_usage() -> None:
    with pytest.raises(UsageError, match="1 given"):
        compare([given(layers(2, 5))])
    with pytest.raises(UsageError, match="result files"):
        compare([given(layers(2, 5)), Input(label="r", results=results(10))])


def results(tokens_per_s: float, *, batch: int = 4, chip: str = "NVIDIA A100-SXM4-80GB") -> ResultSet:
    launches = tuple(
        Launch(index=i, started="2026-01-01T00:00:00+00:00", status="complete", metrics=(
            Metric(name="tokens_per_s", value=tokens_per_s + i, unit="items_per_s", better="higher"),
            Metric(name="power_mean", value=300.0, unit="watt", better="lower"),
        ), steps_ns=(1000, 1001))
        for i in range(5)
    )  # fmt: skip
    benchmark = Benchmark(
        name="llm/tiny", workload="llm", preset="tiny", device="cuda", world_size=1,
        config={"batch": batch, "dtype": "bf16", "seed": int(tokens_per_s)}, launches=launches,
    )  # fmt: skip
    return ResultSet(
        suite="s", created="2026-01-01T00:00:00+00:00", tool_version="0", benchmarks=(benchmark,),
        fingerprint={"kind": "cuda", "chip": chip},
    )  # fmt: skip


def test_result_files_by_the_command(tmp_path: Path, command: Callable[..., Said]) -> None:
    a = write_results(tmp_path / "a.json", results(100))
    b = write_results(tmp_path / "b.json", results(200, chip="AMD Instinct MI300X"))
    said = command("compare", a, b, "-o", tmp_path / "out", "--format", "json,md")
    assert said.code == 0, said.err
    made = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    (section,) = made["sections"]
    figures, efficiency = section["tables"]
    first = figures["rows"][0]
    # Runs of 100 to 104 and of 200 to 204, without the first and the last of each.
    assert (first["quantity"], first["value_A"], first["value_B"]) == ("tokens_per_s", 102, 202)
    assert first["ratio_B"] == pytest.approx(202 / 102) and first["kind"] == "B"
    assert first["low_B"] < first["ratio_B"] < first["high_B"]
    per = {row["kind"]: row["ratio_B"] for row in efficiency["rows"]}
    assert per["watt"] == pytest.approx(202 / 102)
    assert per["peak TFLOPS"] == pytest.approx(202 / 102 * 312 / 1307.4)
    # The seed is how it was measured; the batch is the work.
    assert [one["is_grave"] for one in made["said"]] == [False]
    other = write_results(tmp_path / "c.json", results(100, batch=8))
    refused = command("compare", a, other)
    assert refused.code == 4
    assert "batch is 4 in A and 8 in B" in refused.err and "--force" in refused.err
    assert command("compare", a, other, "--force").code == 0
    assert command("compare", a).code == 2
    assert command("compare", a, tmp_path / "none.json").code == 3
    assert command("compare", a, b, "-o", tmp_path / "out", "--format", "md").code == 2


def test_the_answer_speaks_of_every_side(tmp_path: Path, command: Callable[..., Said]) -> None:
    files = [write_results(tmp_path / f"{n}.json", results(rate)) for n, rate in (("a", 100), ("b", 50), ("c", 100.5))]
    assert command("compare", *files, "-o", tmp_path / "out", "--format", "json").code == 0
    made = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    assert made["lead"] == "1 piece of work compared."
    # 52 and 102.5 over 102: a half that is certain, and half a percent that the scatter of 1 % hides.
    assert made["main"] == (
        "llm/tiny/1: tokens_per_s compared with A: B 0.51 times, C 1.005 times (not told apart)."
    )


def test_of_three_sides_the_one_that_differs_is_named(tmp_path: Path, command: Callable[..., Said]) -> None:
    files = [
        write_results(tmp_path / f"{n}.json", results(rate, batch=batch))
        for n, rate, batch in (("a", 100, 4), ("b", 100, 4), ("c", 100, 8))
    ]
    refused = command("compare", *files)
    assert refused.code == 4 and "llm/tiny/1: batch is 4 in A and 8 in C" in refused.err
    assert "llm/tiny/1：batch 在 A 中为 4，在 C 中为 8" in command("compare", *files, "--lang", "zh").err
    three = [given(layers(6, 100)), given(layers(6, 100)), given(layers(6, 100, names=("aten::mm", "aten::mul")))]
    forced = compare(three, force=True)
    assert {cell for section in forced.sections if section.key == "operators-c"
            for cell in section.tables[0].column("kind")} == {"both", "only A", "only C"}  # fmt: skip
    assert "仅 C" in markdown_text(forced, "zh")


def with_metrics(made: ResultSet, *names: str) -> ResultSet:
    """The results with only these metrics, in all launches."""
    of = {metric.name: metric for metric in made.benchmarks[0].launches[0].metrics}
    launches = tuple(
        replace(launch, metrics=tuple(replace(of["tokens_per_s"], name=name) for name in names))
        for launch in made.benchmarks[0].launches
    )  # fmt: skip
    return replace(made, benchmarks=(replace(made.benchmarks[0], launches=launches),))


def test_figures_that_a_side_lacks_are_said(tmp_path: Path, command: Callable[..., Said]) -> None:
    sides = [["tokens_per_s", "ttft", "mfu"], ["tokens_per_s", "goodput"], ["tokens_per_s", "ttft", "goodput"]]
    files = [
        write_results(tmp_path / f"{number}.json", with_metrics(results(100), *names))
        for number, names in enumerate(sides)
    ]  # fmt: skip
    said = command("compare", *files[:2])
    assert "  - llm/tiny/1: only the other side has, A lacks: goodput\n" in said.out, said.err
    assert "  - llm/tiny/1: only the other side has, B lacks: ttft, mfu\n" in said.out
    chinese = command("compare", *files[:2], "--lang", "zh").out
    assert "  - llm/tiny/1：B 缺少而其他侧具有的指标：ttft, mfu\n" in chinese
    # Of three sides a figure of two has a row; the third is named in it.
    assert command("compare", *files, "-o", tmp_path / "out", "--format", "json").code == 0
    made = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    assert [one["text"] for one in made["said"]] == [
        "llm/tiny/1: only the other sides have, A lacks: goodput",
        "llm/tiny/1: only the other sides have, B lacks: ttft, mfu",
        "llm/tiny/1: only the other sides have, C lacks: mfu",
    ]
    rows = {row["quantity"]: row for row in made["sections"][0]["tables"][0]["rows"]}
    assert (rows["ttft"]["kind"], rows["ttft"]["kind_C"]) == ("not in B", "not told apart")
    assert (rows["goodput"]["kind"], rows["goodput"]["kind_C"]) == ("not in A", "not in A")
    many = with_metrics(results(100), "tokens_per_s", *(f"m{number}" for number in range(10)))
    long = command("compare", files[1], write_results(tmp_path / "many.json", many)).out
    assert "A lacks: m0, m1, m2, m3, m4, m5, m6, m7 and 2 more\n" in long


def test_the_terminal_says_which_side_is_better(tmp_path: Path, command: Callable[..., Said]) -> None:
    files = [write_results(tmp_path / f"{n}.json", results(rate)) for n, rate in (("a", 100), ("b", 50), ("c", 100.5))]
    lines = command("compare", *files).out.splitlines()
    (heads,) = [line.split() for line in lines if line.split()[:1] == ["metric"]]
    (row,) = [line for line in lines if line.split()[:3] == ["tokens", "per", "second"]][:1]
    assert heads.count("better") == 2
    # 102, 52 and 102.5 per s; half a percent more than 1 is to be seen.
    assert " 0.51x " in row and " 1.005x " in row and " A " in row and "not told apart" in row
    chinese = command("compare", *files, "--lang", "zh").out
    assert "无法区分" in chinese and "not told apart" not in chinese and "每秒 tokens" in chinese


def test_no_name_begins_a_line_in_the_log(tmp_path: Path, command: Callable[..., Said]) -> None:
    files = []
    for name, rate in (("a", 100), ("b", 50)):
        made = results(rate, chip="chip\n::error::c\x1b[31m")
        config: dict[str, Fact] = {"k\n::error::k": rate}
        one = replace(made.benchmarks[0], name="x\n::error::n", workload="x\n::error::w", config=config)
        files.append(write_results(tmp_path / f"{name}.json", replace(made, benchmarks=(one,))))
    said = command("compare", *files, "--force")
    assert said.code == 0 and "::error::w" in said.out and "\x1b" not in said.out
    assert not [line for line in said.out.splitlines() if line.startswith("::")]


def test_no_name_is_a_command_in_a_message(tmp_path: Path, command: Callable[..., Said]) -> None:
    path = write_results(tmp_path / "a.json", results(100))
    document = json.loads(path.read_text("utf-8"))
    document["fingerprint"]["k\n ::error::fp ##[error]\x1b[31m"] = [1]
    path.write_text(json.dumps(document), "utf-8")
    said = command("compare", path, path)
    assert said.code == 3 and "error::fp # #[error]" in said.err and "\x1b" not in said.err
    assert not [line for line in said.err.splitlines() if line.strip().startswith("::")]


def test_labels_hold_no_names_of_users() -> None:
    assert labels([Path("/data/h100/x.json"), Path("/data/mi300/x.json")]) == ["h100/x.json", "mi300/x.json"]
    assert labels([Path("/home/alice/run"), Path("/home/bob/run")]) == ["run", "run"]
    assert labels([Path("/home/alice/a"), Path("/srv/b")]) == ["a", "b"]


@pytest.fixture(scope="module")
def h100_mi300(traces: Path) -> list[Input]:
    return [
        Input(label=chip, run=pipeline.load(
            traces / "kineto" / chip / "Falconsai_nsfw_image_detection__1016002.json.gz"
        ))
        for chip in ("h100", "mi300")
    ]  # fmt: skip


def test_tables_of_a_real_pair_add_up(h100_mi300: list[Input]) -> None:
    made = compare(h100_mi300)
    totals = made.totals["A/B"]
    # README of the traces, section 3: kernels of 1220.926 us and 1716.301 us; two copies of 4384 ns on the H100.
    assert (totals["device_time_a_ns"], totals["device_time_b_ns"]) == (1220926 + 4384, 1716301)
    tables = {table.name: table for section in made.sections for table in section.tables}
    for name in ("compare-classes", "compare-operators", "compare-calls"):
        table = tables[name]
        assert sum(int(str(cell)) for cell in table.column("time_a_ns")) == totals["device_time_a_ns"]
        assert sum(int(str(cell)) for cell in table.column("time_b_ns")) == totals["device_time_b_ns"]
        parts = zip(*(table.column(key) for key in ("delta_ns", "by_count_ns", "by_mean_ns")), strict=True)
        assert all(int(str(d)) == int(str(c)) + int(str(m)) for d, c, m in parts)
    # All but the convolution of each vendor's library, which meet at aten::_convolution.
    assert (totals["aligned_calls"], totals["calls_a"], totals["calls_b"]) == (464, 465, 465)
    first = tables["compare-operators"]
    assert first.column("name")[0] == "aten::_flash_attention_forward"
    assert set(tables["compare-calls"].column("kind")) == {"both"}


def test_cuda_against_ascend_of_unlike_models_is_refused(h100_mi300: list[Input], traces: Path) -> None:
    ascend = Input(label="ascend", run=pipeline.load(traces / "ascend-pytorch" / "db"))
    with pytest.raises(NotComparable, match="different models: 0 of 465 calls of A"):
        compare([h100_mi300[0], ascend])


def test_the_page_is_one_file_of_both_languages(h100_mi300: list[Input]) -> None:
    page = html_text(compare(h100_mi300), "zh")
    assert "<script src" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert "default-src 'none'" in unescape(page)
    text = page[page.index('id="data">') + len('id="data">') :]
    made = json.loads(text[: text.index("</script>")])
    assert made["lang"] == "zh" and all(len(point) == 2 for point in made["points"])
    assert np.isclose(sum(p["ns"] for p in made["bars"][0]["parts"]), made["bars"][0]["total_ns"])


def on_cpu(factor: int, step_ms: float) -> Input:
    """A run on the CPU: calls of the host alone, with the manifest of `run`."""
    trace = layers(6, 100)
    ops = [{"name": name, "start_ns": 1000 * at, "dur_ns": factor * 100, "thread": 1, "input_shapes": "[[2,2]]",
            "input_dtypes": "float"} for at, name in enumerate(("aten::mm", "aten::add") * 3)]  # fmt: skip
    tables = {"host_ops": build_table("host_ops", ops)}
    cpu = Trace(tables, replace(trace.meta, device=Device(kind="cpu"), data_origin="measured"))
    manifest = Manifest(
        created="2026-01-01T00:00:00+00:00", data_origin="measured", workload="llm-pretrain", preset="tiny",
        config={"layers": 3}, device="cpu", device_facts={"name": "Kunpeng 920"},
        metrics=(Metric(name="step_time_median", value=step_ms * 1e6, unit="ns", better="lower"),),
    )  # fmt: skip
    return Input(label="x", run=Run(traces=(cpu,), manifest=manifest, label="x"))


def test_two_runs_on_a_cpu_say_what_their_steps_take_and_where() -> None:
    made = compare([on_cpu(1, 20.0), on_cpu(2, 30.0)])
    assert made.lead.en == "The step takes 1.5 times as long in B as in A (20 ms → 30 ms, timed without the profiler)."
    assert made.lead.zh == "B 的单步耗时为 A 的 1.5 倍（20 ms → 30 ms，未采集时测得）。"
    assert made.main.en.startswith("Time of calls of the host is 2 times as long (600 ns → 1.2 us)")
    assert [side.device for side in made.sides] == ["Kunpeng 920", "Kunpeng 920"]
    tables = {section.key: section.tables[0] for section in made.sections}
    assert "operators" in tables and "classes" not in tables
    assert "CPU" in tables["operators"].note.en and "CPU" in tables["operators"].note.zh  # type: ignore[union-attr]
    names = [column.name for column in tables["calls"].columns]
    assert "kernels_a" not in names and names[:2] == ["name", "path"]
    assert set(tables["calls"].column("name")) <= {"aten::mm", "aten::add"}


def test_a_call_is_named_by_its_operator_and_has_its_path() -> None:
    (calls,) = [section.tables[0] for section in compare([given(layers(6, 100)), given(layers(6, 150))]).sections
                if section.key == "calls"]  # fmt: skip
    for name, path in zip(calls.column("name"), calls.column("path"), strict=True):
        assert str(path).split(" > ")[-1] == name
