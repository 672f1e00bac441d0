"""Policies: what a file may say, and how a slip is told."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from ascend_perf.errors import UsageError
from ascend_perf.gate.policy import Policy, parse_policy, read_policy

FULL = """
schema_version: 1
confidence: 0.95
tolerance: 0.02
timing: false
op_stream: exact
simulated: true
metrics:
  - {match: step_time_median, benchmark: "llm-*", fail: 0.08, warn: 0.04, tolerance: 0.03}
  - {match: loss, fail: null}
counts:
  - {match: kernels, fail: 0.01}
removed: ["old/*"]
ignore_facts: [cpu]
ignore_settings: [seed]
allow:
  - {benchmark: "llm-*", metric: "*", owner: Li Wei, until: 2026-06-30, reason: new attention}
"""


def test_every_key_is_read() -> None:
    policy = parse_policy(FULL)
    limit = policy.metric_limit("llm-pretrain/tiny", "step_time_median")
    assert (policy.confidence, policy.tolerance, policy.timing, policy.simulated) == (0.95, 0.02, False, True)
    assert (policy.op_stream, policy.removed, policy.ignore_facts) == ("exact", ("old/*",), ("cpu",))
    assert policy.ignore_settings == ("seed",)
    assert (limit.fail, limit.warn, limit.tolerance) == (0.08, 0.04, 0.03)
    assert policy.metric_limit("resnet", "step_time_median").fail == 0.03  # the pattern of benchmarks does not fit
    assert policy.metric_limit("llm-x", "loss").fail is None
    assert policy.count_limit("llm-x", "kernels").fail == 0.01
    assert policy.count_limit("llm-x", "launches").fail == 0.0
    allowance = policy.allow[0]
    assert (allowance.owner, allowance.until, allowance.reason) == ("Li Wei", date(2026, 6, 30), "new attention")


def test_the_defaults_are_those_of_the_issue() -> None:
    for policy in (Policy(), parse_policy("")):
        limits = {name: policy.metric_limit("b", name).fail for name in (
            "tokens_per_s", "step_time_median", "ttft_p99", "peak_device_memory", "memory_cache", "mfu",
            "tokens_per_s_per_device", "model_flops_per_s",
        )}  # fmt: skip
        assert limits == {
            "tokens_per_s": 0.03, "step_time_median": 0.03, "ttft_p99": 0.05, "peak_device_memory": 0.02,
            "memory_cache": 0.02, "mfu": None, "tokens_per_s_per_device": None, "model_flops_per_s": None,
        }  # fmt: skip
        assert (policy.confidence, policy.count_limit("b", "kernels").fail) == (0.99, 0.0)
        assert policy.count_limit("b", "memory_peak").fail == 0.02


@pytest.mark.parametrize(("text", "message"), [
    ("metrcs: []", "no key 'metrcs'\n  hint: did you mean metrics?"),
    ("metrics:\n- {match: a, fial: 0.1}", "metrics[0] has no key 'fial'\n  hint: did you mean fail?"),
    ("metrics:\n- {fail: 0.1}", "metrics[0] has no match"),
    ("metrics:\n- {match: a}", "metrics[0] has neither fail nor warn"),
    ("metrics:\n- {match: a, fail: 3 %}", "metrics[0].fail must be a ratio, got '3 %'\n  hint: 0.03 is 3 %"),
    ("metrics:\n- {match: a, fail: 30}", "metrics[0].fail must lie from 0 to 10, got 30"),
    ("metrics:\n- {match: a, fail: -0.1}", "must lie from 0 to 10"),
    ("metrics:\n- {match: a, fail: .nan}", "must lie from 0 to 10"),
    ("metrics:\n- {match: a, fail: true}", "must be a ratio"),
    ("metrics:\n- {match: a, fail: 0.01, warn: 0.02}", "warn must not exceed fail"),
    ("counts:\n- {match: a, fail: 0, tolerance: 0.1}", "counts[0] has no key 'tolerance'"),
    ("metrics: {match: a}", "metrics must be a list, got dict"),
    ("confidence: 99", "confidence must lie from 0 to 10"),
    ("confidence: 1", "confidence must lie from 0.5 to 0.9999"),
    ("op_stream: exakt", "did you mean exact?"),
    ("timing: maybe", "timing must be true or false"),
    ("ignore_facts: [drivr]", "did you mean driver?"),
    ("removed: [3]", "removed[0] must be a text"),
    ("schema_version: 2", "schema_version is 2, this ascend-perf reads policies of version 1"),
    ("allow:\n- {benchmark: a, metric: b, until: 2026-06-30}", "allow[0] has no owner"),
    ("allow:\n- {benchmark: a, metric: b, owner: c}", "allow[0] has no until"),
    ("allow:\n- {benchmark: a, metric: b, owner: c, until: June}", "allow[0].until must be a date as 2026-12-31"),
    ("allow:\n- {benchmark: a, metric: b, owner: '', until: 2026-06-30}", "allow[0].owner must be a text"),
    ("timing: true\ntiming: false", "line 2: the key 'timing' stands twice"),
    ("- 1", "must be a mapping, got list"),
    ("a: [", "is not YAML that we read"),
    ("a: !!python/object/apply:os.system [ls]", "is not YAML that we read"),
])  # fmt: skip
def test_a_slip_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_policy(text, "gate.yaml")
    assert message in str(found.value)
    assert str(found.value).startswith("gate.yaml")


def test_a_file_that_is_no_text_or_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "gate.yaml").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(UsageError, match="no UTF-8"):
        read_policy(tmp_path / "gate.yaml")


def test_an_allowance_holds_through_its_last_day() -> None:
    policy = parse_policy(FULL)
    valid, expired = policy.allowance("llm-x", "kernels", date(2026, 6, 30))
    assert (valid, expired) == (policy.allow[0], None)
    valid, expired = policy.allowance("llm-x", "kernels", date(2026, 7, 1))
    assert (valid, expired) == (None, policy.allow[0])
    assert policy.allowance("resnet", "kernels", date(2026, 1, 1)) == (None, None)
