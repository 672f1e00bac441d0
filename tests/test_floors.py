"""Modules import from lower floors only, and parts do not see each other (import-linter's contract)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_modules_import_from_lower_floors_only() -> None:
    pytest.importorskip("importlinter", reason="import-linter is in the dev extra")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
