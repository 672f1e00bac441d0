"""The tables in the docstrings of this folder name tests elsewhere: each must be there, and every row must be held."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
NODE = re.compile(r"\btests/[\w/]+\.py::\w+")


def _named() -> Iterator[tuple[str, str]]:
    """Row and node id of each line of the tables."""
    for module in sorted(FOLDER.glob("test_*.py")):
        text = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
        for line in text.splitlines():
            if node := NODE.search(line):
                yield line.split("|")[1].strip(), node.group()


def _tests_of(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }  # fmt: skip


def test_every_test_that_a_table_names_is_there() -> None:
    named = list(_named())
    assert len(named) > 90
    missing = [
        node for _, node in named
        if not (ROOT / node.partition("::")[0]).is_file()
        or node.partition("::")[2] not in _tests_of(ROOT / node.partition("::")[0])
    ]  # fmt: skip
    assert missing == []


def _rows_held() -> str:
    """All that names a row: the tables, and the docstrings of the tests of this folder."""
    said = [row for row, _ in _named()]
    for module in sorted(FOLDER.glob("test_*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                said.append(ast.get_docstring(node) or "")
    return "\n".join(said)


ROWS = (
    *(f"2.1.2, row {n}" for n in range(1, 16)),
    *(
        f"3, {row}" for row in (
            "slow rank", "slow link", "choice of rank", "overall summary", "environment", "dynamic shape", "AICPU",
            "no bound", "block dim", "graph fusion", "frequency", "cube", "FA", "vector", "dispatch", "sync stream",
            "SyncBatchNorm", "dataloader", "GC", "conjectured GC", "memory operators", "affinity API",
            "fusible sequence", "packet", "retransmission", "contention", "byte alignment", "missing",
        )
    ),
    *(
        f"4, {row}" for row in (
            "slow_rank", "slow_link", "communication_bottleneck", "free_analysis", "freq_analysis", "ep_load_balance",
            "computational_op_masking", "cluster_time_summary", "operator_mfu", "pp_chart", "module statistics",
            "cann_api_sum", "hccl_sum",
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_study_is_held_by_a_test(row: str) -> None:
    # A docstring may name several rows of a section: "4, freq_analysis and 6".
    section, _, name = row.partition(", ")
    held = _rows_held()
    assert re.search(rf"{re.escape(section)},[^\n:]*\b{re.escape(name.removeprefix('row '))}\b", held), row


def test_each_test_of_this_folder_says_which_row_it_holds() -> None:
    for module in sorted(FOLDER.glob("test_*.py")):
        if module.name == Path(__file__).name:
            continue
        for node in ast.parse(module.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert re.match(r"\D{0,8}\d", ast.get_docstring(node) or ""), f"{module.name}::{node.name}"
