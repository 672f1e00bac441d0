"""How often the gate is wrong: simulated launches with a known slowdown, judged by its rule and by simpler ones.

`make eval-gate` prints the table; `--markdown PATH` writes it as a page. Steps are log-normal, one in twenty is an
outlier that takes 5 to 30 % longer, and launches differ by a log-normal factor of their own. In the last scenario one
launch in ten is disturbed as a whole.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf import stats
from ascend_perf.gate.policy import Policy
from ascend_perf.gate.timing import judge

STEPS: Final = 30
"""Steady steps of a launch."""
OUTLIER_SHARE: Final = 0.05
SLOWDOWNS: Final = (0.0, 0.03, 0.05, 0.10)
FAIL: Final = 0.03
RESAMPLES: Final = 2000
"""Fewer than the gate takes, so that thousands of trials end in minutes; the ends of an interval scatter more."""

Launches = list[stats.Floats]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How noisy the machine is, and how often each side is started."""

    launches: int
    step_cv: float
    launch_cv: float
    disturbed: float = 0.0
    """Chance of a launch to be 10 to 60 % slower as a whole: another job on the machine."""


SCENARIOS: Final = (
    *(
        Scenario(launches=launches, step_cv=step_cv, launch_cv=launch_cv)
        for launches in (5, 10) for step_cv in (0.01, 0.03) for launch_cv in (0.0, 0.01)
    ),
    Scenario(launches=10, step_cv=0.01, launch_cv=0.01, disturbed=0.1),
)  # fmt: skip


def simulate(random: np.random.Generator, scenario: Scenario, slowdown: float) -> Launches:
    """Steps of the launches of one side, in seconds around 1."""
    shape = (scenario.launches, STEPS)
    steps = np.exp(random.normal(0, scenario.step_cv, shape))
    slow = random.random(shape) < OUTLIER_SHARE
    steps *= np.where(slow, 1 + random.uniform(0.05, 0.30, shape), 1.0)
    steps *= np.exp(random.normal(0, scenario.launch_cv, (scenario.launches, 1))) * (1 + slowdown)
    hit = random.random((scenario.launches, 1)) < scenario.disturbed
    steps *= np.where(hit, 1 + random.uniform(0.1, 0.6, hit.shape), 1.0)
    return list(steps)


def gate_says(base: Launches, head: Launches) -> str:
    """The outcome of the gate with its defaults for step times."""
    interval = stats.ratio_interval(base, head, resamples=RESAMPLES)
    return judge(interval, fail=FAIL, warn=None, tolerance=Policy().tolerance).outcome


def mean_says(limit: float) -> Callable[[Launches, Launches], bool]:
    """The mean of all steps, against a limit."""
    return lambda base, head: float(np.mean(head) / np.mean(base)) > 1 + limit


def rank_test_says(base: Launches, head: Launches) -> bool:
    """Mann-Whitney over the steps of all launches, p below 0.01, head slower."""
    test = stats.rank_test(np.concatenate(base), np.concatenate(head))
    return test.p_value < 0.01 and test.effect > 0.5


def welch_says(base: Launches, head: Launches) -> bool:
    """Welch's test over the steps of all launches, p below 0.01 (normal law: the samples are large), head slower."""
    left, right = np.concatenate(base), np.concatenate(head)
    error = math.sqrt(left.var(ddof=1) / len(left) + right.var(ddof=1) / len(right))
    return float(right.mean() - left.mean()) / error > 2.576


RULES: Final[dict[str, Callable[[Launches, Launches], bool]]] = {
    "gate": lambda base, head: gate_says(base, head) == "regression",
    "mean > 3 %": mean_says(0.03),
    "mean > 7 %": mean_says(0.07),
    "Mann-Whitney p < 0.01": rank_test_says,
    "Welch p < 0.01": welch_says,
}


@dataclass(kw_only=True)
class Figures:
    """What came out for one scenario."""

    scenario: Scenario
    flagged: dict[str, dict[float, float]] = field(default_factory=dict)
    """Rule and slowdown to the share of trials that were flagged."""
    inconclusive: dict[float, float] = field(default_factory=dict)
    covered: float = 0.0
    """Share of the gate's intervals that hold the true ratio."""


def evaluate(scenario: Scenario, trials: int, slowdowns: Sequence[float] = SLOWDOWNS, seed: int = 7) -> Figures:
    """Shares over `trials` pairs of sides for each slowdown."""
    random = np.random.default_rng([seed, scenario.launches, int(scenario.step_cv * 1000),
                                    int(scenario.launch_cv * 1000), int(scenario.disturbed * 1000)])  # fmt: skip
    figures = Figures(scenario=scenario, flagged={name: {} for name in RULES})
    covered = 0
    for slowdown in slowdowns:
        hits, unsure = dict.fromkeys(RULES, 0), 0
        for _ in range(trials):
            base, head = simulate(random, scenario, 0.0), simulate(random, scenario, slowdown)
            interval = stats.ratio_interval(base, head, resamples=RESAMPLES)
            covered += interval.lower <= 1 + slowdown <= interval.upper
            outcome = judge(interval, fail=FAIL, warn=None, tolerance=Policy().tolerance).outcome
            unsure += outcome == "inconclusive"
            hits["gate"] += outcome == "regression"
            for name, rule in RULES.items():
                if name != "gate":
                    hits[name] += rule(base, head)
        for name, count in hits.items():
            figures.flagged[name][slowdown] = count / trials
        figures.inconclusive[slowdown] = unsure / trials
    figures.covered = covered / (trials * len(slowdowns))
    return figures


def table(results: Sequence[Figures], trials: int) -> str:
    """The figures as Markdown."""
    lines = [
        f"Share of {trials} trials that are flagged, in percent, for a true slowdown of "
        f"{' / '.join(f'{slowdown:.0%}' for slowdown in SLOWDOWNS)}. The first figure of a cell is false alarms. "
        f"Limit 3 %, tolerance 1 %, {STEPS} steps a launch.",
        "",
        f"| launches | step noise | launch noise | disturbed | {' | '.join(RULES)} | gate cannot tell "
        "| interval covers |",
        "| ---: | ---: | ---: | ---: |" + " --- |" * len(RULES) + " --- | ---: |",
    ]

    def shares(by_slowdown: dict[float, float]) -> str:
        return " / ".join(f"{share * 100:.3g}" for share in by_slowdown.values())

    for one in results:
        scenario = one.scenario
        cells = [f"{scenario.launches} + {scenario.launches}", f"{scenario.step_cv:.0%}", f"{scenario.launch_cv:.0%}",
                 f"{scenario.disturbed:.0%}"]  # fmt: skip
        cells += [shares(one.flagged[name]) for name in RULES]
        lines.append(f"| {' | '.join([*cells, shares(one.inconclusive), f'{one.covered:.1%}'])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Prints the figures; exit code 1 when they are not what docs/gate.md promises."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well")
    chosen = parser.parse_args(arguments)
    started, results = time.perf_counter(), []
    for scenario in SCENARIOS:
        results.append(evaluate(scenario, chosen.trials))
        print(f"{len(results)} of {len(SCENARIOS)} scenarios, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    text = table(results, chosen.trials)
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text + "\n", "utf-8")
    promised = [one for one in results if one.scenario.launches >= 10 and not one.scenario.disturbed]
    false_alarms = max(one.flagged["gate"][0.0] for one in results)
    found = min(one.flagged["gate"][0.05] for one in promised)
    print(f"\nat most {false_alarms:.2%} false alarms; with 10 launches a side at least {found:.1%} of 5 % found")
    for one in results:
        if one.scenario.disturbed:
            print(f"with {one.scenario.disturbed:.0%} of the launches disturbed {one.flagged['gate'][0.05]:.1%} found, "
                  f"{one.inconclusive[0.05]:.1%} inconclusive")  # fmt: skip
    return 0 if false_alarms <= 0.01 and found >= 0.90 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
