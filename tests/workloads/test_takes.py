"""Options that a workload does not read are refused, and those that it says it reads are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.bench.launch import Ranks, Request, launch
from ascend_perf.errors import InputError, UsageError
from ascend_perf.manifest import read_manifest
from ascend_perf.workloads._spec import TAKES, Place, find_workload, load_workloads

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAIRS = [(name, option) for name in load_workloads().parts for option in sorted(TAKES)]


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, option in PAIRS if option in find_workload(name).takes]
)
def test_a_path_that_holds_nothing_is_noticed(name: str, option: str, tmp_path: Path) -> None:
    """A workload that passed over its path would be built."""
    workload = find_workload(name)
    settings = workload.settings("tiny")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    place = Place(data=empty) if option == "data" else Place(resume=tmp_path)
    with pytest.raises(InputError):
        workload.build(settings.config, place, 0).close()


@pytest.mark.parametrize(("name", "option"), [("micro", "data"), ("llm-generate", "resume"), ("comm-bench", "resume")])
def test_a_path_that_is_not_read_is_refused(name: str, option: str, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("words " * 900, "utf-8")
    ranks = Ranks(per_node=find_workload(name).min_ranks)
    data, resume = (path, None) if option == "data" else (None, path)
    with pytest.raises(UsageError, match=f"{name} takes no --{option}"):
        launch(Request(workload=name, device="cpu", ranks=ranks, data=data, resume=resume), folder=tmp_path / "run")
    assert read_manifest(tmp_path / "run").status == "failed"


def test_what_is_not_taken_is_said_by_name() -> None:
    for workload in load_workloads().parts.values():
        assert workload.takes <= TAKES, workload.name
