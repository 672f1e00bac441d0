"""A PostgreSQL server of the tests: Debian's programs, data in a temporary folder, on the loopback interface."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_S: Final = 60
"""Longest wait for the server."""


def programs() -> Path | None:
    """The folder with initdb and postgres (Debian keeps them off the PATH); None when PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in folders if (one / "initdb").exists() and (one / "postgres").exists()), None)


def _user() -> str | None:
    """PostgreSQL refuses to run as root; somebody else then."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("neither postgres nor nobody is a user here")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start a server; gives its URL without a database. It ends with the block, its data is removed."""
    user = _user()
    # Not below pytest's own folder, into which another user may not look.
    home = Path(tempfile.mkdtemp(prefix="ascend-perf-postgres-"))
    try:
        if user is not None:
            shutil.chown(home, user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        data = home / "data"
        plain = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}
        subprocess.run(
            [folder / "initdb", "-D", data, "-U", "tester", "--auth=trust", "--encoding=UTF8", "--no-sync"],
            user=user, cwd=home, env=plain, check=True, capture_output=True,
        )  # fmt: skip
        with open(home / "log", "wb") as log:
            process = subprocess.Popen(
                [folder / "postgres", "-D", data, "-p", str(port), "-k", home, "-c", "listen_addresses=127.0.0.1"],
                user=user, cwd=home, env=plain, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            _wait(process, port, home / "log")
            yield f"postgresql://tester@127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGQUIT)  # at once, without writing out what is thrown away
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg

    end = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(f"postgresql://tester@127.0.0.1:{port}/postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text('utf-8', 'replace')[-2000:]}") from None
            time.sleep(0.1)
