"""What every test may use: where the real traces are, and builders of small traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from ascend_perf.model.table import NULL, Kind, Table, Text, Values
from ascend_perf.model.tables import ALL
from ascend_perf.model.trace import Meta, Trace
from tests._support import Said
from tests.reports._browser import Browser, chromium

# No test asserts on time: on a loaded machine the default limits of an example would be such assertions.
# Checks of a change draw the same examples for everybody, so that they judge the change; `make explore` draws new ones.
settings.register_profile(
    "explore", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)  # fmt: skip
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

ROOT = Path(__file__).parent.parent
TELLING = ("ASCEND", "CUDA", "HCCL", "HOME", "LOCAL_RANK", "PATH", "PYTHON", "PYTORCH", "RANK", "WORLD_SIZE", "XDG")
"""How the names of variables begin that our programs read. Libraries set others of their own as they are imported."""
Rows = Sequence[Mapping[str, object]]


def traces_folder() -> Path | None:
    """The folder of real profiles: ASCEND_PERF_TRACES, else ../shared/traces; None when neither is there."""
    named = os.environ.get("ASCEND_PERF_TRACES")
    folder = Path(named) if named else ROOT.parent / "shared" / "traces"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def traces() -> Path:
    """Folder of real profiles; the test is skipped where they are not at hand."""
    folder = traces_folder()
    if folder is None:
        pytest.skip("real traces are not at hand: set ASCEND_PERF_TRACES")
    return folder


@pytest.fixture(autouse=True)
def environment_of_its_own() -> Iterator[None]:
    """No test leaves a variable behind that changes what the next one of its process sees."""
    before = _variables()
    yield
    assert _variables() == before


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(TELLING)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium of 1280 by 900 px; the test is skipped where it is not installed."""
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as made:
        made.size(1280, 900)
        yield made


def build_table(name: str, rows: Rows) -> Table:
    """A table from rows given as dicts; a key left out is unknown."""
    spec = ALL[name]
    columns: dict[str, Values] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        kind = spec.column(key).kind
        cells = [row.get(key) for row in rows]
        if kind is Kind.TEXT:
            columns[key] = Text.of([None if c is None else str(c) for c in cells])
        elif kind is Kind.INT:
            columns[key] = np.array([NULL if c is None else c for c in cells], np.int64)
        elif kind is Kind.FLOAT:
            columns[key] = np.array([np.nan if c is None else c for c in cells], np.float64)
        else:
            columns[key] = np.array([bool(c) for c in cells], bool)
    return Table(spec, columns)


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """Build a trace: make_trace(kernels=[{"start_ns": 0, "dur_ns": 5, "name": "a"}], meta=Meta(rank=0))."""

    def make(*, meta: Meta | None = None, **tables: Rows) -> Trace:
        return Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta)

    return make


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run `ascend-perf` in this process: command("analyze", path) -> Said(code, out, err)."""

    def run(*args: object) -> Said:
        from ascend_perf.cli import main

        monkeypatch.setattr("sys.argv", ["ascend-perf", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Said(code=int(ended.value.code or 0), out=said.out, err=said.err)

    return run
