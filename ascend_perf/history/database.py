"""The database of a history: SQLite in a file, or PostgreSQL by URL, brought to the newest version when opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from ascend_perf.errors import InputError, MachineError, UsageError
from ascend_perf.history.schema import REVISION

DEFAULT_FILE: Final = "ascend-perf-history.sqlite"
VARIABLE: Final = "ASCEND_PERF_HISTORY"
"""Names another database: a path, or a URL."""
LOCK_WAIT_S: Final = 60
"""Longest wait for another writer of a SQLite file; adding a result file takes well under a second. Status: assumed."""

_UPGRADE_LOCK: Final = 0x61736364
"""Key of PostgreSQL's advisory lock: of two that open an old database, one upgrades it."""
_WRITES: Final = "ascend_perf_writes"


def url_of(text: str | None) -> URL:
    """The database meant by a path or URL, else by ASCEND_PERF_HISTORY, else a file in the working directory.

    Raises:
        UsageError: a URL of another kind of database, or none.
    """
    text = text or os.environ.get(VARIABLE) or DEFAULT_FILE
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except ArgumentError:
        raise UsageError("the URL of the database cannot be read", hint=_URL_HINT) from None
    kind = url.drivername.split("+")[0]
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind == "sqlite":
        return url.set(drivername="sqlite")
    raise UsageError(f"a history is kept in SQLite or PostgreSQL, not in {kind}", hint=_URL_HINT)


_URL_HINT: Final = "a path, or postgresql://USER@HOST/DATABASE; the password may come from PGPASSWORD or ~/.pgpass"


class Database:
    """Connections to one database; `reading` and `writing` each give one in a transaction of its own."""

    def __init__(self, text: str | None = None, *, must_exist: bool = False) -> None:
        """Open, and bring the tables to the newest version.

        Raises:
            UsageError: no database that we know.
            InputError: it cannot be opened, is something else, or was written by a newer version.
            MachineError: the driver is not installed.
        """
        url = url_of(text)
        self.name = url.render_as_string(hide_password=True) if url.host else Path(url.database or "").name
        if url.drivername == "sqlite":
            _check_file(url, must_exist)
        with self._said():
            self.engine = _engine(url)
            self._writer = self.engine.execution_options(**{_WRITES: True})
            try:
                self._upgrade()
            except BaseException:
                self.engine.dispose()
                raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for questions."""
        with self._said(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection whose changes are committed, durably, when the block ends without an error."""
        with self._said(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Errors of the database as ours: what cannot be reached, is locked or no database."""
        try:
            yield
        except NoSuchModuleError:
            raise MachineError("this SQLAlchemy lacks the dialect", hint="pip install 'ascend-perf[history]'") from None
        except DBAPIError as error:
            reason = " ".join(str(error.orig).split())[:300]
            hint = "another writer holds it: try again" if "locked" in reason else ""
            raise InputError(f"the history {self.name} cannot be used: {reason}", hint=hint) from None
        except SQLAlchemyError as error:
            raise InputError(f"the history {self.name} cannot be used: {str(error)[:300]}") from None

    def _upgrade(self) -> None:
        with self.engine.begin() as connection:
            version = _version(connection)
        if version == REVISION:
            return
        if version is not None and version > REVISION:
            raise InputError(
                f"the history {self.name} was written by a newer ascend-perf (tables {version}, ours {REVISION})",
                hint="update ascend-perf",
            )
        from alembic import command
        from alembic.config import Config

        with self._writer.begin() as connection, as_file(files("ascend_perf.history") / "migrations") as folder:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
            if _version(connection) == REVISION:
                return  # another process was faster
            config = Config()
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            config.attributes["connection"] = connection
            command.upgrade(config, REVISION)


def _version(connection: sa.Connection) -> str | None:
    inspector = sa.inspect(connection)
    if not inspector.has_table("alembic_version"):
        return None
    version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if version is None else str(version)


def _check_file(url: URL, must_exist: bool) -> None:
    name = url.database
    if not name or name == ":memory:":
        raise UsageError("a history needs a file", hint="a path, or postgresql://USER@HOST/DATABASE")
    path = Path(name)
    if must_exist and not path.exists():
        raise InputError(f"there is no history {path.name} here", hint="ascend-perf history add results.json, or --db")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path.name} is a directory" if path.is_dir() else f"the folder of {path.name} is missing")
    if path.exists() and path.stat().st_size:
        with open(path, "rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise InputError(f"{path.name} is no SQLite file", hint="--db names the history, FILE the results")


def _engine(url: URL) -> Engine:
    try:
        if url.drivername != "sqlite":
            # The connection is made when it is needed; a server that does not answer is told after ten seconds.
            arguments = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
            return sa.create_engine(url, connect_args=arguments)
        engine = sa.create_engine(url, connect_args={"timeout": LOCK_WAIT_S})
    except ImportError as error:
        raise MachineError(f"the driver is missing: {error.name}", hint="pip install 'ascend-perf[history]'") from None

    # The sqlite3 module begins transactions late, at the first change: a reader would see two states, and of two
    # writers that read before they write one would fail. We begin them ourselves; writers take the lock at once and
    # wait for each other. The journal stays SQLite's own: its other one (WAL) fails on network file systems.
    def _connected(connection: object, record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # a sqlite3 connection
        connection.execute("PRAGMA foreign_keys = ON")  # type: ignore[attr-defined]
        connection.execute("PRAGMA synchronous = FULL")  # type: ignore[attr-defined]

    def _begun(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", _connected)
    sa.event.listen(engine, "begin", _begun)
    return engine
