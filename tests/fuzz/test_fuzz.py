"""The fuzzer itself, and what it found: each case that ended wrong once must end well."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from ascend_perf.errors import InputError
from ascend_perf.pipeline import load
from tests.fuzz.mutate import damage
from tests.fuzz.run import fault
from tests.fuzz.seeds import SEEDS

FOUND: tuple[tuple[str, int], ...] = (
    ("analysis-db", 7), ("analysis-db", 1051), ("ascend-db", 20), ("ascend-db", 63), ("ascend-db", 167),
    ("ascend-db", 5028), ("ascend-db", 5065), ("kineto-ranks", 9004),
    ("ascend-text", 82), ("cluster-db", 1019), ("cluster-db", 1042), ("cluster-text", 34), ("cluster-text", 1027),
    ("mindspore", 38), ("nsys", 19), ("nsys", 51), ("nsys", 1041), ("run-directory", 5117),
)  # fmt: skip
"""(target, case) of what a run found; what was wrong has a test of its own beside the parser's."""
FIRST = 6
"""Cases of each target that are run with every test run."""


@pytest.mark.parametrize("target", SEEDS)
def test_the_undamaged_profile_can_be_read(tmp_path: Path, target: str) -> None:
    SEEDS[target](tmp_path)
    run = load(tmp_path, jobs=1)
    assert run.traces and not run.skipped


@pytest.mark.parametrize("target", SEEDS)
def test_one_case_does_the_same_damage_each_time(tmp_path: Path, target: str) -> None:
    said = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        SEEDS[target](folder)
        said.append([damage(folder, random.Random(f"{target} 7")) for _ in range(3)])
    assert said[0] == said[1] and said[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("target", SEEDS)
@pytest.mark.parametrize("number", range(FIRST))
def test_damaged_profiles_end_well(tmp_path: Path, target: str, number: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    assert fault(target, number, folder) is None


@pytest.mark.parametrize("depth", [1200, 100_000])
@pytest.mark.parametrize("target", ["ascend-text", "cluster-text", "kineto", "mindspore", "msprof"])
def test_values_nested_without_end_end_well(tmp_path: Path, target: str, depth: int) -> None:
    """Deeper than a decoder follows: in each JSON file, in its first value, one in the middle and the last."""
    SEEDS[target](tmp_path)
    deep = b"[" * depth + b"]" * depth
    files = [path for path in sorted(tmp_path.rglob("*.json")) if b'":' in path.read_bytes()]
    whole = {path: path.read_bytes() for path in files}
    for part in (0, 0.5, 1):
        for path, data in whole.items():
            places = [match.end() for match in re.finditer(rb'":', data)]
            at = places[round(part * (len(places) - 1))]
            path.write_bytes(data[:at] + deep + b', "more":' + data[at:])
        try:
            assert load(tmp_path, jobs=1).traces
        except InputError:
            continue
    assert files


@pytest.mark.parametrize(("target", "number"), FOUND)
def test_found_once(tmp_path: Path, target: str, number: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    assert fault(target, number, folder) is None
