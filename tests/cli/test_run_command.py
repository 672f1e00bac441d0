"""`ascend-perf run`, `workloads` and `devices` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.bench.prediction import Forecast
from ascend_perf.cli import _show
from ascend_perf.errors import UsageError
from ascend_perf.manifest import read_manifest
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Manifest
from ascend_perf.units import Unit
from ascend_perf.workloads._spec import Prediction, Traffic

FAST = [
    word
    for text in ("batch=1", "image_width_px=40", "image_height_px=40", "distinct_images=1", "crop_px=32",
                 "base_width=4", "classes=4", "warmup_steps=1", "measured_steps=2", "profiled_steps=1")
    for word in ("--set", text)
]  # fmt: skip


def ascend_perf(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_perf", *words]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False)


@pytest.mark.torch
def test_run_measures_and_prints_the_run_directory_last(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")

    done = ascend_perf("run", "resnet50-infer", *FAST, "--device", "cpu", "--no-report", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    where = tmp_path / lines[-1]
    assert where.parent == tmp_path / "runs"
    assert (where / "manifest.json").is_file()
    assert "images/s" in done.stdout
    assert "of 2, middle half within" in done.stdout
    assert done.stderr.startswith("device: cpu")
    assert "\x1b" not in done.stdout + done.stderr  # no terminal, no progress


@pytest.mark.torch
def test_run_writes_a_report_from_its_own_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    words = ("--device", "cpu", "-o", "here", "--format", "json,md", "--lang", "zh")

    done = ascend_perf("run", "resnet50-infer", *FAST, *words, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(Path("here/report/report.json"))
    report = json.loads((tmp_path / "here/report/report.json").read_text("utf-8"))
    assert report["data_origin"] == "measured"
    assert [step["step_id"] for step in report["ranks"][0]["steps"]] == [1]
    assert "images_per_s" in {metric["name"] for metric in report["metrics"]}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run"], 2, "Missing argument 'WORKLOAD'"),
        (["run", "lm-pretrain"], 2, "no workload 'lm-pretrain': did you mean 'llm-pretrain'?"),
        (["run", "llm-pretrain", "--device", "tpu"], 2, "'tpu' is not one of"),
        (["run", "llm-pretrain", "--format", "pdf"], 2, "unknown report format 'pdf'"),
        (["workloads", "resnet"], 2, "no workload 'resnet'"),
        (["workloads", "llm-pretrain", "--preset", "huge"], 2, "llm-pretrain has no preset 'huge'"),
    ],
)
def test_mistakes_end_with_a_message_and_code_2(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    done = ascend_perf(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "huge"], "llm-pretrain has no preset 'huge'"),
        (["--set", "layres=3"], "did you mean 'layers'?"),
        (["--node-rank", "1"], "--node-rank 1 of --nnodes 1"),
    ],
)
def test_a_wrong_setting_ends_with_code_2_and_a_folder_that_analyze_reads(
    words: list[str], message: str, tmp_path: Path
) -> None:
    done = ascend_perf("run", "llm-pretrain", "-o", "here", *words, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if words[0] == "--node-rank":  # the command line itself is wrong
        assert list(tmp_path.iterdir()) == []
        return
    assert "what there is of the run, with the reason: here" in done.stderr
    read = ascend_perf("analyze", "here", "-o", "report", "--format", "md", cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    report = (tmp_path / "report" / "report.md").read_text("utf-8")
    assert report.startswith("# The run failed: llm-pretrain has no")
    assert "no trace: the run ended before the profiler wrote one" in report


@pytest.mark.torch
def test_an_absent_device_ends_with_code_4_and_says_so_in_its_folder(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")

    done = ascend_perf("run", "llm-pretrain", "--device", "cuda", "-o", "here", cwd=tmp_path)

    assert done.returncode == 4
    assert "no cuda device here, torch sees: cpu" in done.stderr
    assert "no cuda device here" in read_manifest(tmp_path / "here").problem


def test_workloads_lists_presets_and_settings_in_both_languages() -> None:
    listed = ascend_perf("workloads").stdout
    settings = ascend_perf("workloads", "llm-pretrain", "--preset", "tiny", "--lang", "zh").stdout

    assert "llm-pretrain" in listed
    assert "--preset tiny" in listed
    assert "语言模型" in settings
    assert any(line.split() == ["layers", "4"] for line in settings.splitlines())


def test_devices_lists_what_is_here_and_what_is_known() -> None:
    here, known = ascend_perf("devices"), ascend_perf("devices", "--known")

    assert here.returncode == known.returncode == 0
    assert "cpu · " in here.stdout
    assert "torch " in here.stdout
    assert any(line.split()[:2] == ["ascend-910b4", "Ascend910B4"] for line in known.stdout.splitlines())


def test_formats_are_checked_and_not_repeated() -> None:
    assert _show.formats_of("json, html,json") == ("json", "html")
    for text, message in (("pdf", "unknown report format 'pdf'"), (" ,", "no report format given")):
        with pytest.raises(UsageError, match=message):
            _show.formats_of(text)


def test_the_summary_says_what_is_not_known() -> None:
    metrics = (
        Metric(name="tokens_per_s", value=4716.3, unit="items_per_s", better="higher"),
        Metric(name="step_time_median", value=2.5e8, unit="ns", better="lower"),
        Metric(name="step_time_iqr", value=None, unit="ns", better="lower"),
        Metric(name="step_count", value=1, unit="count", better="none"),
        Metric(name="profiler_overhead", value=0.04, unit="ratio", better="lower"),
    )
    manifest = Manifest(
        workload="w", preset="tiny", device="cpu", data_origin="measured", created="", metrics=metrics,
        device_facts={"name": "a processor", "dtype": "fp32"}, notes=("no\x1b[2J telemetry\r",),
    )  # fmt: skip

    lines = _show.summary_of(manifest).splitlines()

    assert lines[1] == "  throughput   4\u2009716 tokens/s"
    assert lines[2] == "  step         median 250 ms of 1, middle half within unknown"
    assert "MFU unknown: no peak of this device is known" in lines[3]
    assert lines[4] == "  host memory  unknown at most"
    assert lines[5] == "  profiler     makes steps 4 % longer; the figures above are without it"
    assert lines[-1] == "  note         no [2J telemetry "  # nothing that a terminal obeys


def test_the_summary_of_a_job_has_a_line_for_each_kind_of_figure() -> None:
    def metric(name: str, value: float, unit: Unit = "none") -> Metric:
        return Metric(name=name, value=value, unit=unit, better="none")

    metrics = (
        metric("tokens_per_s", 1000, "items_per_s"), metric("tokens_per_s_per_device", 500, "items_per_s"),
        metric("step_time_median", 1e9, "ns"), metric("step_time_iqr", 1e7, "ns"), metric("step_count", 3, "count"),
        metric("profiler_overhead", 0.5, "ratio"), metric("model_flops_per_s", 2e12, "flops_per_s"),
        metric("mfu", 0.4, "ratio"), metric("hfu", 0.5, "ratio"), metric("peak_rss", 2**30, "bytes"),
        metric("communication_per_step", 2**20, "bytes"), metric("ttft_p50", 2e6, "ns"), metric("ttft_p99", 3e6, "ns"),
        metric("ttft_mean", 2e6, "ns"), metric("energy", 60, "joule"), metric("power_mean", 20, "watt"),
        metric("tokens_per_joule", 50), metric("loss", 2.5), metric("predicted_memory", 5, "bytes"),
    )  # fmt: skip
    manifest = Manifest(
        workload="w", preset="tiny", device="npu", data_origin="measured", created="", metrics=metrics,
        device_facts={"name": "an NPU", "dtype": "bf16", "world_size": 2}, status="interrupted",
    )  # fmt: skip

    assert _show.summary_of(manifest).splitlines() == [
        "w tiny · npu · an NPU · interrupted",
        "  throughput   1\u2009000 tokens/s on 2 devices, 500 on each",
        "  step         median 1\u2009000 ms of 3, middle half within 10 ms",
        "  model        2 TFLOPS in bf16, MFU 40 %, HFU 50 %",
        "  host memory  1 GiB at most",
        "  sent         1 MiB a step, by the rank that sends most",
        "  latency      ttft p50 2 ms, p99 3 ms",
        "  energy       60 J over the measured steps, 20 W on average, 50 tokens/J",
        "  figures      loss 2.5",
        "  profiler     makes steps 50 % longer; the figures above are without it",
    ]
    assert "每卡 500" in _show.summary_of(manifest, "zh")


def test_a_prediction_is_a_small_table_in_both_languages() -> None:
    prediction = Prediction(
        memory_bytes={"weights": 3 * 2**20, "cache": 2**20},
        traffic=(Traffic(axis="data", collective="all_reduce", bytes_per_step=2048, calls_per_step=3),),
    )
    forecast = Forecast(prediction=prediction, world_size=4, device_bytes=2**34, sharing_ranks=4)

    lines = [line.split() for line in _show.forecast_words(forecast).splitlines()]

    assert lines == [
        ["modelled,", "for", "the", "rank", "that", "needs", "most", "of", "4:"],
        ["memory", "weights", "3", "MiB"],
        ["memory", "cache", "1", "MiB"],
        ["memory", "peak", "4", "x", "4", "MiB", "of", "16", "GiB", "on", "the", "device"],
        ["communication", "per", "step,", "data", "axis", "all_reduce", "2", "KiB", "in", "3", "calls"],
    ]
    assert _show._FORECAST["en"].keys() == _show._FORECAST["zh"].keys()
    assert [line.split() for line in _show.forecast_words(forecast, "zh").splitlines()] == [
        ["建模值（4", "卡中需求最大的一卡）："],
        ["内存", "权重", "3", "MiB"],
        ["内存", "KV", "cache", "1", "MiB"],
        ["内存", "峰值", "4", "x", "4", "MiB，设备共", "16", "GiB"],
        ["每步通信，data", "轴", "all_reduce", "2", "KiB，3", "次调用"],
    ]
    assert not forecast.is_too_large
    assert replace(forecast, sharing_ranks=4097).is_too_large  # 4097 x 4 MiB in 16 GiB


def test_the_summary_is_written_in_both_languages() -> None:
    assert _show._SUMMARY["en"].keys() == _show._SUMMARY["zh"].keys()
    for english, chinese in zip(_show._SUMMARY["en"].values(), _show._SUMMARY["zh"].values(), strict=True):
        assert english.count("{}") == chinese.count("{}")


@pytest.mark.parametrize(
    ("overhead", "words"),
    [
        (0.2, "makes steps 20 % longer"), (0.05, "changes steps less"), (-0.05, "changes steps less"),
        (-0.3, "unknown, the steps without it were slower"), (None, "unknown"),
    ],
)
def test_an_overhead_within_the_spread_of_the_steps_is_not_claimed(overhead: float | None, words: str) -> None:
    metrics = (
        Metric(name="step_time_median", value=100, unit="ns", better="lower"),
        Metric(name="step_time_iqr", value=10, unit="ns", better="lower"),  # a tenth of the median
        Metric(name="step_count", value=5, unit="count", better="none"),
        Metric(name="profiler_overhead", value=overhead, unit="ratio", better="lower"),
    )
    manifest = Manifest(workload="w", preset="tiny", device="cpu", data_origin="measured", created="", metrics=metrics)

    assert words in _show.summary_of(manifest)
