"""`ascend-perf --help` starts quickly: it imports no heavy package."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pandas", "plotly", "torch", "pyarrow", "numpy", "jinja2", "msgspec", "yaml", "rich")

_PROBE = """
import sys
from ascend_perf.cli import main
sys.argv = ["ascend-perf", *{arguments!r}]
try:
    main()
except SystemExit as stop:
    code = stop.code
print("loaded:", *sorted(name for name in {heavy!r} if name in sys.modules))
print("code:", code)
"""


def _probe(*arguments: str) -> list[str]:
    script = _PROBE.format(arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_no_heavy_package_is_imported(arguments: tuple[str, ...]) -> None:
    assert _probe(*arguments)[-2:] == ["loaded:", "code: 0"]


def test_help_lists_every_command_with_its_line() -> None:
    from pathlib import Path

    import ascend_perf.cli as cli

    text = "\n".join(_probe("--help"))

    for path in Path(cli.__file__).parent.glob("[a-z]*.py"):
        assert f"\n  {path.stem.replace('_', '-')} " in text


@pytest.mark.parametrize("module", ["ascend_perf", "ascend_perf.model.finding", "ascend_perf.plugins"])
def test_the_lower_floors_import_neither_pandas_nor_plotly_nor_torch(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({{'pandas', 'plotly', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
