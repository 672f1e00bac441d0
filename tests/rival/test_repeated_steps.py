"""Section 2.1.2, row 15 and section 8, 3: more of the same steps changes nothing, on a real recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ascend_perf.model.finding import Finding
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, HOST_OPS, KERNELS, RUNTIME_CALLS, STEPS
from ascend_perf.pipeline import Analysis, analyze
from tests.rival._repeat_text import Repeater
from tests.rival._said import number, rows, verdicts

TIMES = 5
RANK = "ascend-pytorch/text/level1/rank0_ascend_pt"


@pytest.fixture(scope="module")
def both(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Analysis]:
    """The step once and five times, both by the editor."""
    folder = tmp_path_factory.mktemp("steps")
    found = [analyze(Repeater(traces / RANK, times).write(folder / str(times))) for times in (1, TIMES)]
    return found[0], found[1]


def test_the_editor_repeats_all_that_the_step_holds(traces: Path, both: tuple[Analysis, Analysis]) -> None:
    """8, 3: five times the rows, the same links from kernels to launches, and once nothing is changed."""
    real = analyze(traces / RANK).run.traces[0]
    once, often = (analysis.run.traces[0] for analysis in both)

    for spec in (KERNELS, COMM_OPS, COMM_TASKS):
        assert len(real[spec]) == len(once[spec])
        assert len(often[spec]) == TIMES * len(once[spec])
    assert often[STEPS].ints("step_id").tolist() == [50, 51, 52, 53, 54]
    assert len(once[HOST_OPS]) == len(real[HOST_OPS])
    assert len(often[HOST_OPS]) >= TIMES * (len(once[HOST_OPS]) - 1)
    assert len(often[RUNTIME_CALLS]) > (TIMES - 1) * len(once[RUNTIME_CALLS])
    for name in ("host_op", "launch_start_ns"):
        linked = [int((trace[KERNELS].ints(name) >= 0).sum()) for trace in (real, once, often)]
        assert linked == [linked[0], linked[0], TIMES * linked[0]]
    spans = often[STEPS].ints("dur_ns")
    assert np.ptp(spans) == 0 and spans[0] == real[STEPS].ints("dur_ns")[0]


BEHIND_A_STEP = {("H-05", "sync"): 1, ("D-01", "between steps"): -1}
"""What a value that is read behind a step costs shows where another step follows: more for the one, less left for the
other."""


def _by_key(analysis: Analysis) -> dict[tuple[str, str], Finding]:
    return {(f.code, f.subject): f for f in analysis.findings}


def test_the_alexnet_step_five_times_says_what_it_says_once(both: tuple[Analysis, Analysis]) -> None:
    """2.1.2, row 15: the same findings with the same shares, causes and places; none switches on by itself."""
    once, often = both

    assert not once.failed and not often.failed
    first, second = _by_key(once), _by_key(often)
    assert second.keys() == first.keys()
    assert {"N-05", "H-01", "H-06", "D-01", "C-02", "C-03", "C-04", "C-09"} <= {code for code, _ in first}
    for key, found in first.items():
        again = second[key]
        assert (again.ranks, again.affected_ranks) == (found.ranks, found.affected_ranks)
        if found.share_ratio is not None and key in BEHIND_A_STEP:
            assert again.share_ratio is not None
            assert (again.share_ratio - found.share_ratio) * BEHIND_A_STEP[key] > 0
            continue
        assert again.severity is found.severity
        if found.share_ratio is None:
            assert again.share_ratio is None
        else:
            assert again.share_ratio == pytest.approx(found.share_ratio, rel=0.01, abs=2e-4), key


def test_figures_per_step_do_not_grow(both: tuple[Analysis, Analysis]) -> None:
    """2.1.2, row 15: the study's thresholds are absolute sums over the capture; ours are shares and means."""
    once, often = both
    (step,), steps = (rows(analysis.outcomes, "steps", 0) for analysis in (once, often))

    assert len(steps) == TIMES
    columns = ("span_us", "computing_us", "communication_us", "overlapped_us", "free_us", "preparing_us", "wait_us")
    for column in columns:
        for row in steps:
            assert number(row[column]) == pytest.approx(number(step[column]), abs=0.01), column
    bars = [
        {row["component"]: number(row["share_ratio"]) for row in rows(analysis.outcomes, "step-bar", 0)}
        for analysis in (once, often)
    ]
    assert bars[1] == pytest.approx(bars[0], abs=1e-6)
    for name in ("communication_wait_ns", "communication_longest_peer_wait_ns"):
        values = [next(m.value for m in a.metrics if m.name == name and m.rank == 0) for a in both]
        assert values[1] == pytest.approx(values[0]), name
    # The table of waits sums over the capture, and its share is that of the steps.
    before, after = (rows(analysis.outcomes, "comm-waits", 0) for analysis in both)
    assert [row["peer"] for row in after] == [row["peer"] for row in before]
    for one, many in zip(before, after, strict=True):
        assert number(many["exposed_ns"]) == pytest.approx(TIMES * number(one["exposed_ns"]))
        assert number(many["share_ratio"]) == pytest.approx(number(one["share_ratio"]))


def test_what_was_judged_once_is_judged_five_times(both: tuple[Analysis, Analysis]) -> None:
    """8, 3: more steps may settle what one could not (growth, changing shapes); nothing becomes less certain."""
    once, often = both
    seen = {j.code for o in once.outcomes for j in o.judged}

    for code in sorted(seen):
        before, after = verdicts(once, code), verdicts(often, code)
        assert after == before or (before == {"not_judged"} and after == {"clean"}), (code, before, after)
    assert verdicts(once, "C-08") == {"not_judged"} and verdicts(often, "C-08") == {"clean"}
    assert verdicts(often, "K-02") == {"clean"}
