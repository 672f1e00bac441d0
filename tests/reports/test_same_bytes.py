"""The same profile gives the same files, byte for byte, whatever order Python's hashes put sets in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import SEEDS

HASH_SEEDS = ("1", "4242")


def analyzed(profile: Path, out: Path, hash_seed: str) -> dict[str, bytes]:
    """Files of a report made by a process of its own, by their path in it."""
    done = subprocess.run(
        [sys.executable, "-m", "ascend_perf", "analyze", str(profile), "-o", str(out)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_the_seeds_order_sets_differently() -> None:
    orders = {
        subprocess.run(
            [sys.executable, "-c", "print(list({f'name{i}' for i in range(50)}))"],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in HASH_SEEDS
    }  # fmt: skip

    assert len(orders) == 2


@pytest.mark.parametrize("kind", ["ascend-text", "kineto-ranks", "ascend-db"])
def test_a_report_does_not_depend_on_the_order_of_hashes(tmp_path: Path, kind: str) -> None:
    profile = tmp_path / "job"
    profile.mkdir()
    SEEDS[kind](profile)

    first, second = (analyzed(profile, tmp_path / seed, seed) for seed in HASH_SEEDS)

    assert {"report.html", "report.json", "report.md"} <= set(first)
    assert first.keys() == second.keys()
    # Neither holds a time or a path of its own: every byte counts.
    assert [name for name in first if first[name] != second[name]] == []
