"""The decision on simulated launches: a small version of `make eval-gate`, with a fixed seed and room to spare."""

from __future__ import annotations

import pytest

from tests.gate.evaluate import Scenario, evaluate


@pytest.mark.slow
@pytest.mark.parametrize("launch_cv", [0.0, 0.01])
def test_the_gate_finds_slowdowns_without_false_alarms(launch_cv: float) -> None:
    figures = evaluate(Scenario(launches=10, step_cv=0.01, launch_cv=launch_cv), 150, slowdowns=(0.0, 0.05))
    assert figures.flagged["gate"][0.0] <= 0.01
    assert figures.flagged["gate"][0.05] >= 0.90
    assert figures.inconclusive[0.0] <= 0.05
    assert figures.covered >= 0.97


@pytest.mark.slow
def test_means_and_p_values_alone_do_worse() -> None:
    noisy = evaluate(Scenario(launches=10, step_cv=0.01, launch_cv=0.01), 150, slowdowns=(0.0, 0.05))
    assert noisy.flagged["Mann-Whitney p < 0.01"][0.0] >= 0.08  # steps of a launch are no independent samples
    assert noisy.flagged["mean > 7 %"][0.05] <= 0.10
    disturbed = evaluate(
        Scenario(launches=10, step_cv=0.01, launch_cv=0.01, disturbed=0.1), 150, slowdowns=(0.0, 0.05)
    )
    assert disturbed.flagged["mean > 3 %"][0.0] >= 0.10
    assert disturbed.flagged["gate"][0.0] <= 0.01
