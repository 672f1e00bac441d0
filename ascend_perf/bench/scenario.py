"""One run of a program of somebody else: a command whose log has the figures, or load on a server that is running."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from ascend_perf.bench.figures import percentiles_of
from ascend_perf.bench.suite_file import External, LogMetric, Served, Take, figures_in, in_ns
from ascend_perf.collectors import telemetry
from ascend_perf.collectors._patience import patience
from ascend_perf.collectors.environment import SIMULATED_FILE, VIRTUAL_NPU, masked
from ascend_perf.errors import InputError, MachineError
from ascend_perf.model.finding import Metric
from ascend_perf.result_files import LARGEST, SIGNED_UNITS
from ascend_perf.workloads._load import Target, first_model, round_from
from ascend_perf.workloads._load_figures import figures_of, percentile

LOG_FILE: Final = "log.txt"
TELEMETRY_FILE: Final = "telemetry.csv"
LOAD_FILE: Final = "load.json"
FILES: Final = (LOG_FILE, TELEMETRY_FILE, LOAD_FILE)
"""What a run leaves: no trace is among it."""
MARK_FILE: Final = "simulated"
"""There while a command runs that has told that it simulates."""
MAX_LOG_BYTES: Final = 256 << 20
"""Of a log that is searched. Status: assumed."""
SEARCH_S: Final = 10.0
"""An expression may take so long on a log, and a second more for each `SEARCH_BYTES`. Status: assumed."""
SEARCH_BYTES: Final = 2 << 20
"""Status: assumed; a sound expression takes 10 to 100 MB/s."""
STOP_S: Final = 10.0
"""Between asking a program to end and ending it. Status: assumed."""
_TAKE: Final[Mapping[Take, Callable[[Sequence[float]], float]]] = {
    "last": lambda values: values[-1], "first": lambda values: values[0], "median": statistics.median,
    "mean": statistics.fmean, "min": min, "max": max, "sum": sum,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gave."""

    metrics: tuple[Metric, ...] = ()
    steps_ns: tuple[int, ...] = ()
    samples_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_simulated: bool = False
    """Whether the command ran on virtual NPUs: `ascend-perf run` or `collect` with them is a command as any other."""


def run_command(body: External, folder: Path) -> Outcome:
    """Run the command to its end and read its log; telemetry of its first process lies beside it.

    Args:
        body: the command; it is no shell that runs it.
        folder: run directory, which gets log.txt and telemetry.csv.

    Raises:
        MachineError: it cannot be started.
        InputError: it failed, took too long, or its log lacks a figure.
    """
    started_log = None if body.log is None else _stamp(body.log)
    mark = (folder / MARK_FILE).resolve()
    variables = {**os.environ, **dict(body.variables), SIMULATED_FILE: str(mark)}
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / LOG_FILE, "wb"))
        stack.callback(mark.unlink, missing_ok=True)
        try:
            # A session of its own, so that whatever it starts ends with it.
            process = subprocess.Popen(
                list(body.command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=body.folder,
                env=variables, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise MachineError(
                f"{Path(body.command[0]).name} cannot be started: {error.strerror or error}", hint="check `command:`"
            ) from None
        stack.callback(_end, process)
        samples = _sampled(stack, process.pid)
        try:
            code = process.wait(timeout=body.timeout_s)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"the command did not end within {body.timeout_s:g} s", hint="raise timeout_s, see its log.txt"
            ) from None
        is_simulated = bool(variables.get(VIRTUAL_NPU)) or mark.exists()
    if samples is not None and samples.samples:
        telemetry.write_samples(folder / TELEMETRY_FILE, samples.samples)
    if code:
        raise InputError(f"the command ended with {_ended(code)}: {_last_line(folder / LOG_FILE)}", hint="see log.txt")
    if body.log is not None and _stamp(body.log) == started_log:
        raise InputError(f"the command wrote no {body.log.name}", hint="check `log:`")
    text = _text(folder / LOG_FILE if body.log is None else body.log)
    return replace(figures_of_log(body, text), is_simulated=is_simulated)


def figures_of_log(body: External, text: str) -> Outcome:
    """The figures of a log.

    Raises:
        InputError: one is missing, or is no number, or its expression takes too long.
    """
    metrics = tuple(_metric(metric, text) for metric in body.metrics)
    steps: tuple[int, ...] = ()
    if body.steps is not None:
        pattern, unit = body.steps
        steps = tuple(in_ns(value, unit) for value in _numbers("steps", pattern, text))
        if min(steps) < 1:
            raise InputError(f"steps: the log has a step of {min(steps)} ns", hint="check the unit")
    return Outcome(metrics=metrics, steps_ns=steps)


def _numbers(name: str, pattern: str, text: str) -> list[float]:
    limit_s = SEARCH_S + len(text) / SEARCH_BYTES
    values: list[float] = []
    try:
        with patience(limit_s) as own:
            for log in own.of((text,)):
                values = figures_in(log, pattern)
    except InputError as error:  # of the timer alone
        raise InputError(f"{name}: its regex takes more than {limit_s:g} s on this log", hint=error.hint) from None
    except ValueError as error:
        raise InputError(f"{name}: {error}", hint="check the group of `regex:`") from None
    if not values:
        raise InputError(f"{name}: nothing in the log fits its regex", hint="see log.txt, and check `regex:`")
    return values


def _metric(metric: LogMetric, text: str) -> Metric:
    value = float(_TAKE[metric.take](_numbers(metric.name, metric.regex, text)))
    # The result file would refuse it, and with it every run of the suite.
    if value < 0 and metric.unit not in SIGNED_UNITS:
        raise InputError(f"{metric.name}: the log has {value:g}, no figure in {metric.unit} is negative",
                         hint="check `regex:` and `unit:`")  # fmt: skip
    if value and not 1 / LARGEST <= abs(value) <= LARGEST:
        raise InputError(f"{metric.name}: the log has {value:g}, which is no figure", hint="check `regex:`")
    return Metric(name=metric.name, value=value, unit=metric.unit, better=metric.better)


def run_load(body: Served, folder: Path) -> Outcome:
    """Send one round of requests from a process of its own; what came back lies beside it as load.json.

    Raises:
        MachineError: aiohttp is absent, or the key is not in the environment.
        InputError: the server cannot be reached, or answers no request.
    """
    import asyncio
    import importlib.util

    if importlib.util.find_spec("aiohttp") is None:
        raise MachineError("load on a server needs aiohttp", hint='pip install "ascend-perf[serve]"')
    key = None
    if body.api_key_env is not None:
        key = os.environ.get(body.api_key_env)
        if not key:
            raise MachineError(f"the variable {body.api_key_env} is not set", hint="it holds the key of the server")
    target = Target(url=body.url, model=body.model or "", api_key=key, verify_tls=body.verify_tls)
    if body.model is None:
        target = Target(**{**asdict(target), "model": asyncio.run(first_model(target))})
    asked = {
        "load": asdict(body.load), "seed": body.seed, "target": asdict(target),
        "trace": None if body.trace is None else str(body.trace.resolve()),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "ascend_perf.workloads._load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, problem = process.communicate(json.dumps(asked) + "\n")
    finally:
        _end(process)
    if process.returncode or not out.strip():
        lines = problem.strip().splitlines()
        raise InputError(f"the load could not be sent: {masked(lines[-1])[:200] if lines else 'no reason was given'}")
    round_ = round_from(json.loads(out.splitlines()[0]))
    figures = figures_of(body.load, round_.records)
    if not figures.completed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in figures.failed.items())
        raise InputError(f"the server completed no request: {reasons}", hint="try `ascend-perf load` on it")
    (folder / LOAD_FILE).write_text(json.dumps(asdict(round_)), "utf-8")
    return _of_round(body, figures, [float(delay) for delay in round_.probe_delays_ns])


def _of_round(body: Served, figures: object, delays_ns: list[float]) -> Outcome:
    from ascend_perf.workloads._load_figures import Figures

    assert isinstance(figures, Figures)
    seconds = max(figures.duration_ns, 1) / 1e9
    latencies = {
        name: tuple(int(value) for value in values if value > 0) for name, values in figures.latencies_ns.items()
    }  # fmt: skip
    percentiles, notes = percentiles_of(latencies)
    metrics = [
        Metric(name="requests_per_s", value=figures.completed / seconds, unit="items_per_s", better="higher"),
        Metric(name="tokens_per_s", value=figures.output_tokens / seconds, unit="items_per_s", better="higher"),
        Metric(name="failed_requests", value=sum(figures.failed.values()), unit="count", better="lower"),
        Metric(name="requests_in_flight_peak", value=figures.most_in_flight, unit="count", better="none"),
        Metric(name="client_late_p99", value=percentile(delays_ns, 99), unit="ns", better="none"),
        *percentiles,
    ]
    if figures.good is not None:
        metrics.append(Metric(name="goodput", value=figures.good / seconds, unit="items_per_s", better="higher"))
    if figures.uncounted:
        notes += (f"{figures.uncounted} answers came without a count of tokens: pieces were counted instead",)
    return Outcome(metrics=tuple(metrics), samples_ns=latencies, notes=notes)


def _sampled(stack: ExitStack, pid: int) -> telemetry.Sampler | None:
    if not telemetry.is_available():
        return None
    import psutil

    try:
        sampler = stack.enter_context(telemetry.Sampler(pid))
    except psutil.Error:  # it has ended already
        return None
    sampler.phase = "command"
    return sampler


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End the program and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        if process.poll() is None:
            try:
                process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_LOG_BYTES:
        raise InputError(f"{path.name} has more than {MAX_LOG_BYTES} bytes", hint="let the program write less")
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def _last_line(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return masked(lines[-1].strip())[:200] if lines else "it said nothing"


def _ended(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
