"""Estimates on the real torch_npu: out of memory by its own allocator, figures as a run of its own gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf import manifest as manifests
from ascend_perf.cli import cli
from ascend_perf.collectors.virtual_npu import VirtualNpu
from tests.workloads.test_on_virtual_npu import needs_virtual_npu as needs_virtual_npu

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_what_if_from_the_command_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.bench import what_if

    monkeypatch.setattr(what_if, "kept_of", lambda machinery: what_if.Kept(tmp_path / "kept", machinery.identity))
    # HCCL takes 400 MiB for its buffers. Of the rest, 7.2 M parameters of 16 bytes and their activations do not fit
    # 240 MiB; an eighth of the parameters does.
    words = ["what-if", "llm-pretrain", "--world-size", "8", "--layouts", "ddp,fsdp", "--hbm", "640MiB"]

    first = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "out")])

    assert first.exit_code == 0, first.output
    body = json.loads((tmp_path / "out" / "what-if.json").read_text("utf-8"))
    full, fits = body["configurations"]
    assert (full["layout"], full["state"]) == ("ddp 8", "out-of-memory")
    assert "NPU out of memory. Tried to allocate" in full["problem"]  # torch_npu's own words
    assert full["what_fits"].startswith("what would fit 640 MiB, by the modelled memory: --set ")
    one = fits["estimate"]
    assert sum(one["parts_ns"].values()) == pytest.approx(one["step_ns"])
    assert one["step_low_ns"] < one["step_ns"] < one["step_high_ns"]
    assert 400 << 20 < one["used_device_bytes"] <= 640 << 20
    assert 0 < one["peak_device_bytes"] < one["used_device_bytes"] - (400 << 20)
    assert one["parts_ns"]["communication"] + one["hidden_communication_ns"] > 0
    assert body["verdicts"][0]["best"] == 1

    # A run of the same configuration, in another process.
    run = tmp_path / "run"
    done = CliRunner().invoke(cli, [
        "run", "llm-pretrain", "--device", "virtual-npu", "--clock", "modelled", "--world-size", "8", "--hbm", "640MiB",
        "--set", "data_parallel=fsdp", *(word for text in what_if.STEPS for word in ("--set", text)), "--no-report",
        "-o", str(run),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    figures = {metric.name: metric.value for metric in manifests.read_manifest(run).metrics}
    assert one["step_ns"] == pytest.approx(figures["step_time_median"], rel=0.02)
    assert one["items_per_s_per_device"] == pytest.approx(figures["tokens_per_s_per_device"], rel=0.02)
    assert one["mfu"] == pytest.approx(figures["mfu"], rel=0.02)

    def refuse(case: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(what_if, "run_case", refuse)
    again = CliRunner().invoke(cli, words)
    assert again.exit_code == 0, again.output
    assert "2 of them known" in again.output


def test_the_peak_has_the_buckets_of_ddp_once() -> None:
    """DDP makes its buckets anew in the second step; how long torch_npu keeps the first ones, real time decides."""
    from ascend_perf.bench import what_if

    wide = (
        "layers=3", "width=1024", "heads=8", "kv_heads=8", "hidden=2816", "vocabulary=8192", "tokens=256", "batch=1",
        "accumulate=1", "dtype=bf16",
    )  # fmt: skip
    request = what_if.Request(
        workload="llm-pretrain", overrides=wide, layouts="tp2+ddp", devices=(VirtualNpu(world_size=4),)
    )
    (case,) = what_if.plan(request).cases
    settings = case.workload.settings("tiny", (*request.overrides, *case.configuration.overrides))
    assert case.workload.predict is not None
    predicted = case.workload.predict(settings.config, 4)
    peak = what_if.run_case(case).peak_device_bytes
    # The allocator rounds up by as much as 1 MiB a tensor; a second set of buckets is a fifth of all.
    assert 0 <= peak - predicted.peak_bytes < 0.05 * predicted.peak_bytes
    assert predicted.memory_bytes["gradients"] > 0.15 * predicted.peak_bytes
