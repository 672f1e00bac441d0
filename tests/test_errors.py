from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_perf.errors import first_line


@pytest.mark.parametrize(
    ("error", "length", "expected"),
    [
        (ValueError(), 300, "ValueError"), (KeyboardInterrupt(" \n"), 300, "KeyboardInterrupt"),
        (RuntimeError("\n  one\ntwo"), 300, "one"), (RuntimeError("abcdef\nx"), 4, "abcd"),
    ],
)  # fmt: skip
def test_an_error_is_quoted_by_its_first_line_or_its_kind(error: BaseException, length: int, expected: str) -> None:
    assert first_line(error, length) == expected


@pytest.mark.parametrize(("variable", "is_left_out"), [("1", True), ("", False)])
def test_the_current_folder_is_left_out_when_asked(tmp_path: Path, variable: str, is_left_out: bool) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('the wrong one')", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ascend_perf", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONSAFEPATH": variable},
    )  # fmt: skip
    assert (done.returncode == 0, "the wrong one" in done.stderr) == (is_left_out, not is_left_out)
