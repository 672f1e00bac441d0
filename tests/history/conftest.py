"""Histories for the tests: each test that asks for one runs with SQLite and with PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is in the history extra")

from ascend_perf.history.database import Database
from ascend_perf.history.store import Store
from tests.history import _postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server; the test is skipped where PostgreSQL is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is in the history extra")
    folder = _postgres.programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with _postgres.server(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty history may be made."""
    if request.param == "sqlite":
        return str(tmp_path / "history.sqlite")
    import psycopg

    server = request.getfixturevalue("postgres")
    name = f"history_{uuid4().hex}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server}/{name}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty history."""
    database = Database(url)
    yield Store(database)
    database.close()
