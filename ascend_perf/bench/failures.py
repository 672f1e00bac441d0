"""Why a job did not come to its end, in one message that names the rank that failed first."""

from __future__ import annotations

import signal
from typing import Final

from ascend_perf.bench.job import Heard, Message, Ranks
from ascend_perf.errors import (
    AscendPerfError,
    InputError,
    Interrupted,
    MachineError,
    Terminated,
    UsageError,
)

_KINDS: Final = {kind.exit_code: kind for kind in (UsageError, InputError, MachineError)}
_ASKED: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals with which torchrun and we end ranks that have done nothing wrong."""


def error_of(heard: Heard, ranks: Ranks) -> Exception | None:
    """The error of a job; None when it came to its end: there is a result, and every rank here has told all.

    How the processes end after that is not looked at: threads of torch's back ends now and then abort an interpreter
    that is being taken down.

    A rank that was killed is blamed first, then the rank that told of an error first; that a rank lost the connection
    to another is blamed only when nothing else is known. What is no error of the user or the machine is a RuntimeError
    with the last lines that were written: a bug of ours, or of the workload.
    """
    if heard.signal is not None:
        if heard.signal == signal.SIGINT:
            return Interrupted("stopped by Ctrl-C")
        return Terminated("stopped by SIGTERM")
    ended = {int(message["rank"]) for message in heard.of("end")}
    if heard.last("result") is not None and (heard.code == 0 or ended.issuperset(ranks.here)):
        return None
    told = sorted(heard.of("error"), key=lambda message: int(message["time_ns"]))
    spoke = {int(message["rank"]) for event in ("error", "stopped", "end") for message in heard.of(event)}
    for rank, code in heard.exit_codes.items():
        if code < 0 and rank not in spoke and -code not in _ASKED:
            return _killed(-code, f"rank {rank} of {ranks.world_size}", heard.tail)
    first = next((message for message in told if message["kind"] != "lost"), told[0] if told else None)
    if first is not None:
        return _told(first, ranks)
    if heard.code < 0 and ranks.world_size == 1:
        return _killed(-heard.code, "the process of the workload", heard.tail)
    return RuntimeError("\n  ".join([f"the process of the workload ended with code {heard.code}", *heard.tail]))


def _killed(number: int, who: str, tail: tuple[str, ...]) -> MachineError:
    name = signal.Signals(number).name
    hint = "often too little memory: choose a smaller preset" if name == "SIGKILL" else ""
    lines = "".join(f"\n  {line}" for line in tail[-3:])
    return MachineError(f"{who} was ended by {name}{lines}", hint=hint)


def _told(message: Message, ranks: Ranks) -> Exception:
    who = f"rank {message['rank']} of {ranks.world_size}: " if ranks.world_size > 1 else ""
    if message["kind"] == "known":
        return _KINDS.get(message["exit_code"], AscendPerfError)(f"{who}{message['what']}", hint=message["hint"])
    if message["kind"] == "lost":
        return MachineError(f"{who}lost the connection to another rank: {message['what']}")
    return RuntimeError("\n  ".join([f"{who}{message['what']}", *message["lines"]]))
