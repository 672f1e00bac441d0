"""Findings say where their time lies: no more of it than there is, and all together no more than the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf import intervals
from ascend_perf.gains import together
from ascend_perf.pipeline import Analysis, analyze
from tests.faults.evaluate import ALL_KINDS, plant
from tests.faults.planting import Kind


def check(analysis: Analysis) -> None:
    for outcome in analysis.outcomes:
        assert outcome.status != "failed", (outcome.analyzer, outcome.reason)
    for finding in analysis.findings:
        for claim in finding.claims:
            there = intervals.total(claim.where)
            assert claim.gain_ns <= there * (1 + 1e-6) + 1, (finding.code, finding.title.en, claim.gain_ns, there)
    assert sum(f.added_ratio or 0.0 for f in analysis.findings) <= 1 + 1e-9
    assert together(analysis.findings) <= 1


REAL = (
    "ascend-pytorch/text/level1/rank0_ascend_pt",
    "ascend-pytorch/text/level1",
    "ascend-pytorch/db/level1",
    "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "ascend-cluster/msinsight-16rank",
    "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "kineto/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "kineto/inference-mi300/sglang_Qwen3-8B_decode.json.gz",
    "kineto/v100/resnet50_num_workers_0.json.gz",
    "kineto/multi-rank-128",
    "timeline/trace_view.json",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_profiles(traces: Path, name: str) -> None:
    check(analyze(traces / name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_planted_faults(tmp_path: Path, kind: Kind) -> None:
    plant(kind, "strong", 3, tmp_path)
    check(analyze(tmp_path))
