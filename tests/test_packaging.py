"""The folders, the links, the list in pyproject.toml and what the package ships must agree."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

TOML = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parent.parent
PARTS = ("collectors", "analyzers", "reports", "workloads")
PROJECT = TOML.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def _packages(folder: Path, name: str) -> set[str]:
    """Names of the packages on disk. A folder reached through a link counts at its own place only."""
    found = {name}
    for init in folder.rglob("__init__.py"):
        relative = init.parent.relative_to(folder)
        if name == "ascend_perf" and relative.parts[:1] and relative.parts[0] in PARTS:
            continue
        found.add(".".join((name, *relative.parts)))
    return found


def test_every_package_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    on_disk = _packages(ROOT / "ascend_perf", "ascend_perf")
    for part in PARTS:
        on_disk |= _packages(ROOT / part, f"ascend_perf.{part}")
    assert listed == on_disk


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_linked_into_the_package(part: str) -> None:
    link = ROOT / "ascend_perf" / part
    if not link.is_symlink():
        pytest.skip("checkout without symbolic links")
    assert link.resolve() == (ROOT / part).resolve()


def test_every_data_file_of_a_package_is_shipped() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    homes = [ROOT / "ascend_perf", *(ROOT / part for part in PARTS)]
    missing = []
    for home in homes:
        for path in home.rglob("*"):
            relative = path.relative_to(home)
            if home.name == "ascend_perf" and relative.parts[0] in PARTS:
                continue
            if not path.is_file() or path.suffix in {".py", ".pyc"} or "__pycache__" in relative.parts:
                continue
            package = next(p for p in path.parents if (p / "__init__.py").exists())
            if not any(path.relative_to(package).match(pattern) for pattern in patterns):
                missing.append(str(path.relative_to(ROOT)))
    assert missing == []


def test_the_licence_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text.splitlines()[1]
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md"])
def test_documents_name_only_commands_and_targets_that_exist(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = {path.stem.replace("_", "-") for path in (ROOT / "ascend_perf" / "cli").glob("[a-z]*.py")}

    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    assert set(re.findall(r"\bmake ([a-z-]+)", code)) <= targets
    assert set(re.findall(r"\bascend-perf ([a-z][a-z-]*)", code)) <= commands


def test_continuous_integration_runs_the_readme_s_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test", "make slow", "make lint types floors"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "make test" in readme
    assert "make slow" in readme
