"""What `ascend_perf.hooks.profile` does: a session in the user's loop, and a run directory around it."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.collectors import _torch_options, in_process, npu_analysis
from ascend_perf.errors import UsageError

PARSE_TIMEOUT_S: Final = 3600
"""The parser of torch_npu is given up after this. Status: assumed."""


class OwnLoop:
    """One loop of one process. In a program of `ascend-perf collect` it only tells that recording of its steps."""

    def __init__(
        self, folder: Path, *, device: str, level: str, skip: int, warmup: int, active: int, wait: int, repeat: int,
        ranks: Any, options: dict[str, Any], analysis: Literal["process", "later"],
    ) -> None:  # fmt: skip
        """Check what was asked for.

        Raises:
            UsageError: a number is out of range, or an option is wrong.
        """
        for name, value, least in (
            ("skip", skip, 0), ("warmup", warmup, 1), ("active", active, 1), ("wait", wait, 0), ("repeat", repeat, 0),
        ):  # fmt: skip
            if type(value) is not int or value < least:
                raise UsageError(f"{name} must be a whole number, {least} or more, got {value!r}")
        kind = device.split(":")[0]
        if kind not in ("auto", "npu", "cuda", "cpu"):
            raise UsageError(f"no device {device!r}", hint="npu, cuda, cpu or auto")
        if analysis not in ("process", "later"):
            raise UsageError(f"no analysis {analysis!r}", hint="process or later")
        backends: tuple[_torch_options.Backend, ...] = (
            ("torch-npu",) if kind == "npu" else ("torch",) if kind != "auto" else ("torch-npu", "torch")
        )
        wrong: list[UsageError] = []
        for backend in backends:
            try:
                _torch_options.choose(backend, level, options)
            except UsageError as error:
                wrong.append(error)
        if len(wrong) == len(backends):  # of none of the profilers that it could be
            raise wrong[0]
        self._settings = in_process.Settings(
            folder=str(folder.resolve()), level=level, options=options, skip=skip, warmup=warmup, active=active,
            wait=wait, repeat=repeat, ranks=None if ranks is None else tuple(int(rank) for rank in ranks),
        )  # fmt: skip
        self._device, self._analysis = device, analysis
        self._session: in_process.Session | None = None
        self._is_ours = True
        self._started = datetime.now().astimezone()
        self._parsing: list[tuple[Path, subprocess.Popen[bytes]]] = []
        self._parsed: set[Path] = set()

    def begin(self) -> None:
        """The loop begins."""
        activation = sys.modules.get("ascend_perf.collectors._activation")
        if activation is not None and activation.session is not None:
            self._session, self._is_ours = activation.session, False
            return
        if path := os.environ.get(in_process.VARIABLE):  # collect's, in a process that did not load its hook
            self._settings = in_process.read_settings(Path(path))
        self._session = in_process.Session(self._settings, device=self._device)
        self._session.begin()

    def step(self) -> None:
        """A step has ended."""
        if not self._is_ours:
            sys.modules["ascend_perf.collectors._activation"].step_called()
        elif self._session is not None:
            self._session.step()
            self._parse_new()

    def end(self, error: BaseException | None) -> None:
        """The loop has ended, with an error or without."""
        session = self._session
        if session is None or not self._is_ours:
            return
        session.close(is_orderly=error is None)
        self._parse_new()
        for folder, process in self._parsing:
            try:
                process.wait(PARSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            log = self._log(folder)
            text = log.read_text("utf-8", "replace") if log.is_file() else ""
            if not npu_analysis.is_parsed(folder) or npu_analysis.NO_MSPROF in text:
                what, hint = npu_analysis.problem_of(text)
                session.told("problem", rank=in_process.rank_here(), what=f"{folder.name}: {what}", hint=hint)
        if in_process.VARIABLE not in os.environ and self._is_first(in_process.rank_here()):
            from ascend_perf.collectors._own_manifest import write

            write(self._settings, session, self._started, error)

    @property
    def traces(self) -> tuple[Path, ...]:
        return () if self._session is None else tuple(self._session.written)

    @property
    def problems(self) -> tuple[str, ...]:
        return () if self._session is None else tuple(what for what, _ in self._session.told.problems)

    def _is_first(self, rank: int) -> bool:
        return rank == (min(self._settings.ranks) if self._settings.ranks else 0)

    def _parse_new(self) -> None:
        """Begin to parse what torch_npu has left since the last time."""
        if self._analysis == "later" or self._session is None:
            return
        for folder in self._session.written:
            if folder.is_dir() and folder not in self._parsed:
                self._parsed.add(folder)
                self._parsing.append((folder, npu_analysis.start(folder, os.environ, self._log(folder))))

    def _log(self, folder: Path) -> Path:
        return Path(self._settings.folder) / in_process.TOLD_FOLDER / f"analysis-{folder.name}.log"
