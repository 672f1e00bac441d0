"""Generated jobs of many ranks: what was continued in time is a consistent profile, and the late rank is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS, EXPORTED_STEPS, KERNELS, STEPS
from ascend_perf.pipeline import load
from benchmarks.make_job import Made, Template, layout_of, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, Run]:
    folder = tmp_path_factory.mktemp("made") / "job"
    result = make(folder, ranks=4, total_bytes=8_000_000)
    return result, load(folder, jobs=1)


def test_numbers_grow_with_each_repetition() -> None:
    template = Template('{"ts":"100.5","id":7} 100%\n3,x\n4,y\n', [(r'"ts":"(\d+)\.', 50), (r"^(\d+),", 2)])
    assert template.at(0) == '{"ts":"100.5","id":7} 100%\n3,x\n4,y\n'
    assert template.at(3) == '{"ts":"250.5","id":7} 100%\n9,x\n10,y\n'


@pytest.mark.parametrize(("ranks", "sizes"), [(1, (1, 1, 1)), (2, (1, 2, 1)), (4, (1, 2, 2)), (64, (4, 8, 2))])
def test_a_layout_has_all_ranks_in_its_groups(ranks: int, sizes: tuple[int, int, int]) -> None:
    layout = layout_of(ranks)
    assert (layout.tensor, layout.data, layout.pipeline) == sizes
    assert [layout.rank(*layout.place(rank)) for rank in range(ranks)] == list(range(ranks))
    for label, size in zip(("tp", "dp", "pp"), sizes, strict=True):
        members = [rank for group in layout.groups().values() if group.label == label for rank in group.ranks]
        assert sorted(members) == (list(range(ranks)) if size > 1 else [])


def test_each_rank_has_all_steps_and_its_share_of_the_bytes(made: tuple[Made, Run]) -> None:
    result, run = made
    assert run.ranks == (0, 1, 2, 3)
    assert result.steps > 2
    for trace in run.traces:
        steps = trace[STEPS].ints("step_id")
        assert np.diff(steps).tolist() == [1] * (result.steps - 1)
        assert trace[EXPORTED_STEPS].ints("step_id").tolist() == steps.tolist()
    read = sum(source.size_bytes for trace in run.traces for source in trace.meta.sources)
    assert 0.8 * 8_000_000 < read <= result.bytes < 1.2 * 8_000_000


def test_the_files_of_a_rank_agree(made: tuple[Made, Run]) -> None:
    for trace in made[1].traces:
        assert trace.meta.checks
        assert [check.name for check in trace.meta.checks if not check.holds] == []
        assert [source.problem for source in trace.meta.sources if source.problem] == []
        for spec in (KERNELS, COMM_OPS):
            assert (trace[spec].ints("launch_start_ns") != NULL).all()  # flows find their events in each repetition


def test_collectives_of_all_repetitions_end_together_on_their_ranks(made: tuple[Made, Run]) -> None:
    ends: dict[tuple[str | None, str | None], list[int]] = {}
    for trace in made[1].traces:
        table = trace[COMM_OPS]
        names = list(zip(table.text("group"), table.text("name"), strict=True))
        assert len(set(names)) == len(names)
        for key, end in zip(names, table.ends_ns().tolist(), strict=True):
            if "allReduce" in str(key[1]):
                ends.setdefault(key, []).append(end)
    assert ends
    assert {len(found) for found in ends.values()} == {2}  # groups of two
    assert max(max(found) - min(found) for found in ends.values()) < 1000


def test_a_light_job_replicates_its_replicas_but_not_the_late_rank(tmp_path: Path) -> None:
    result = make(tmp_path / "job", ranks=32, total_bytes=1_000_000, light=True)
    run = load(tmp_path / "job", jobs=1)
    assert run.ranks == tuple(range(32))
    computing = np.array([int(trace[KERNELS].ints("dur_ns").sum()) for trace in run.traces])
    assert result.late == layout_of(32).late == int(np.argmax(computing))
    assert (computing > 1.2 * np.median(computing)).sum() == 1
    for trace in run.traces:
        assert {len(group.ranks) for group in trace.meta.groups} == {2, 4}  # pp 2, tp 4, dp 4
        assert trace.meta.world_size == 32
