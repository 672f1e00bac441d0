"""A job of several processes inside a test: gloo over a file store, one process and one torch thread per rank."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import multiprocessing
import multiprocessing.connection
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


def run_ranks(function: Callable[..., Any], world_size: int, *args: object, timeout_s: float = 120) -> list[Any]:
    """Call `function(*args)` in `world_size` processes of one initialised job; the results in rank order.

    `function` stands at the top level of its module, reads rank and size from torch.distributed, and gives something
    that can be pickled (tensors as well). Warnings are errors in it, as they are in tests.

    Raises:
        AssertionError: a rank raised (the text has its traceback), died, or is not done within `timeout_s`.
    """
    if function.__qualname__ != function.__name__:
        raise TypeError(f"{function.__qualname__} does not stand at the top level of its module")
    path, arguments = inspect.getfile(function), pickle.dumps(args)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, contextlib.ExitStack() as stack:
        processes: list[BaseProcess] = []
        lines: dict[Connection, int] = {}
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            stack.callback(ours.close)
            job = (path, function.__module__, function.__name__, arguments, rank, world_size, folder, timeout_s, theirs)
            process = context.Process(target=_rank, args=job)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)  # called before the join: nothing is left behind, whatever happened
            processes.append(process)
            lines[ours] = rank
        return _gathered(lines, processes, time.monotonic() + timeout_s)


def _gathered(lines: dict[Connection, int], processes: list[BaseProcess], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while lines:
        ready = multiprocessing.connection.wait(list(lines), max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {sorted(lines.values())} of {len(processes)} are not done within the time limit"
        for line in ready:
            assert isinstance(line, Connection)
            rank = lines.pop(line)
            try:
                is_good, answer = pickle.loads(line.recv_bytes())
            except EOFError:
                processes[rank].join()
                raise AssertionError(f"rank {rank} died with exit code {processes[rank].exitcode}") from None
            if not is_good and (dead := _dead(processes)) is not None:
                # What the others then meet is a broken connection.
                raise AssertionError(f"rank {dead} died with exit code {processes[dead].exitcode}")
            assert is_good, f"rank {rank} of {len(processes)} failed:\n{answer}"
            results[rank] = answer
    for process in processes:
        process.join()
    return [results[rank] for rank in range(len(processes))]


def _dead(processes: list[BaseProcess]) -> int | None:
    """A rank that a signal ended; its end may reach us later than the complaint of a rank that talked to it."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            if process.exitcode is not None and process.exitcode < 0:
                return rank
        time.sleep(0.05)
    return None


def _rank(
    path: str, module: str, name: str, arguments: bytes, rank: int, world_size: int, folder: str, timeout_s: float,
    line: Connection,
) -> None:  # fmt: skip
    """The process of one rank. It leaves the job after its answer, so that the first to fail is the first to tell."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works without a name for this host
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        store = (Path(folder) / "store").as_uri()
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s + 60)
        )
        function = getattr(_module(path, module), name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = pickle.dumps((True, function(*pickle.loads(arguments))))
    except BaseException:
        line.send_bytes(pickle.dumps((False, traceback.format_exc())))
        os._exit(1)
    line.send_bytes(answer)
    dist.destroy_process_group()


def _module(path: str, name: str) -> object:
    """The module of a file, under the name that pytest gave it: what it defines can then be pickled both ways."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
