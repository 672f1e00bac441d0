"""Result files of suites: results.json <-> `model.result.ResultSet`; docs/results.md describes the format."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar, cast, get_args

from ascend_perf.errors import InputError
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import Benchmark, Launch, ResultSet, Status
from ascend_perf.model.run import Fact
from ascend_perf.units import Better, Unit

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "results.json"
MAX_BYTES: Final = 256 * 2**20
"""A larger file is refused: a suite of 100 benchmarks with 20 runs of 1000 steps takes about 25 MB. Status: assumed."""

SIGNED_UNITS: Final = ("none", "ratio", "celsius")
"""Units of figures that may be negative."""

LARGEST: Final = 1e100
"""A figure beyond this, or nearer to zero than 1 over it, is damage: ratios of such overflow. Status: assumed."""

_LARGEST: Final = 2**63 - 1
_T = TypeVar("_T")


def write_results(path: Path, results: ResultSet) -> Path:
    """Write a result file in one move: a reader sees the old file or the new one, never a part; returns its path.

    Args:
        path: the file, or a folder that gets a `results.json`.

    Raises:
        ValueError: a value that the format does not allow (a bug of the caller); nothing was written.
        InputError: the file cannot be written.
    """
    path = path / FILE_NAME if path.is_dir() else path
    document = _document_of(results)
    try:
        # What cannot be read again must not be written: the same checks on both ways.
        _results_of(_Node(document, path.name, ""))
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except InputError as error:
        raise ValueError(error.what) from None
    write_text(path, text)
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file in one move, and durably.

    Raises:
        InputError: it cannot be written; the old one is as it was.
    """
    part = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        with open(part, "xb") as file:
            # Half of a surrogate pair (a file name that is no UTF-8) becomes the escape that JSON has for it.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def is_result_file(path: Path) -> bool:
    """Whether a file, or the results.json of a folder, looks like a result file (by its first bytes)."""
    path = path / FILE_NAME if path.is_dir() else path
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return b'"schema_version"' in head and b'"suite"' in head


def read_results(path: Path) -> ResultSet:
    """Read and check a result file, given as the file or as the folder that holds it as `results.json`.

    Raises:
        InputError: it is missing, damaged, too large, of another schema version, has no benchmarks, or a value is
            missing, of the wrong type, negative, zero or not finite where that cannot be. The message has the place.
    """
    path = path / FILE_NAME if path.is_dir() else path
    node = _Node(_load(path), path.name, "")
    version = node.value.get("schema_version") if isinstance(node.value, dict) else None
    if isinstance(node.value, dict) and (type(version) is not int or version != SCHEMA_VERSION):
        stated = "no schema_version" if version is None else f"schema_version {_shown(version)}"
        raise InputError(
            f"{path.name} has {stated}, this ascend-perf reads result files of version {SCHEMA_VERSION}",
            hint="measure again with this version, or use the version of ascend-perf that wrote the file",
        )
    return _results_of(node)


def _load(path: Path) -> object:
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise InputError(f"{path} is no file", hint="give the results.json of `ascend-perf bench`")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                f"{path.name} has {size} bytes, a result file has at most {MAX_BYTES}",
                hint="split the suite, or measure fewer steps",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="`ascend-perf bench SUITE.yaml` writes one") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is no UTF-8 text, first at byte {error.start}") from None
    if not text.strip():
        raise InputError(f"{path.name} is empty", hint="the run that should write it did not come to its first result")
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON that we read: {str(error)[:200]}") from None


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON number; a figure that is not known is null")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return json.dumps(value)[:60]


class _Node:
    """A value of the document and its place; each method checks, and names the place when it is wrong."""

    def __init__(self, value: object, file: str, place: str) -> None:
        self.value, self._file, self._place = value, file, place

    def wrong(self, problem: str, hint: str = "") -> InputError:
        """The error to raise."""
        where = f"{self._file}: {self._place}" if self._place else self._file
        return InputError(f"{where} {problem}", hint=hint)

    def _is_no(self, expected: str) -> InputError:
        return self.wrong(f"must be {expected}, got {_shown(self.value)}")

    def _mapping(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self._is_no("an object")
        return self.value

    def need(self, key: str) -> _Node:
        """The value of a key that must be there."""
        mapping = self._mapping()
        if key not in mapping:
            raise self.wrong(f"has no {key}" if not self._place else f"has no {key!r}")
        return self._below(mapping[key], key)

    def may(self, key: str) -> _Node | None:
        """The value of a key that may be absent or null."""
        value = self._mapping().get(key)
        return None if value is None else self._below(value, key)

    def _below(self, value: object, key: str) -> _Node:
        return _Node(value, self._file, f"{self._place}.{key}" if self._place else key)

    def items(self) -> list[_Node]:
        """Of a list."""
        if not isinstance(self.value, list):
            raise self._is_no("a list")
        return [_Node(item, self._file, f"{self._place}[{index}]") for index, item in enumerate(self.value)]

    def named(self) -> dict[str, _Node]:
        """Of an object whose keys are names."""
        return {key: self._below(value, key) for key, value in self._mapping().items()}

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self._is_no("text")
        return self.value

    def name(self) -> str:
        """A text that is not empty."""
        if not self.text():
            raise self.wrong("is an empty text, a name is needed")
        return self.text()

    def one_of(self, choices: Sequence[str]) -> str:
        """One of few words."""
        if self.value not in choices or not isinstance(self.value, str):
            raise self._is_no(f"one of {', '.join(choices)}")
        return self.value

    def time(self) -> str:
        """ISO 8601 with offset."""
        text = self.text()
        try:
            known = datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None
        except ValueError:
            known = False
        if not known:
            raise self._is_no("a time with its offset (2026-04-07T10:15:32+08:00)")
        return text

    def whole(self, at_least: int) -> int:
        """A whole number."""
        if type(self.value) is not int:
            raise self._is_no("a whole number")
        if self.value < at_least:
            why = f"is negative ({self.value})" if self.value < 0 else f"is {self.value}"
            raise self.wrong(f"{why}, it must be {at_least} or more")
        if self.value > _LARGEST:
            raise self.wrong("is beyond 64 bits")
        return self.value

    def number(self) -> float:
        """A finite number."""
        if type(self.value) is int:
            if abs(self.value) > _LARGEST:
                raise self.wrong("is beyond 64 bits")
        elif type(self.value) is not float:
            raise self._is_no("a number or null")
        elif not math.isfinite(self.value):
            raise self.wrong("is not finite; a figure that is not known is null")
        return self.value

    def fact(self) -> Fact:
        """A plain value."""
        if self.value is None or isinstance(self.value, (str, bool)):
            return self.value
        if isinstance(self.value, (int, float)):
            return self.number()
        raise self._is_no("a plain value (text, number, true, false or null)")

    def inside(self) -> str:
        """A path below the folder of the file."""
        text = self.name()
        parts = text.replace("\\", "/").split("/")
        if text.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in text:
            raise self._is_no("a path below the folder of the result file")
        return text


def _each(node: _Node | None, read: Callable[[_Node], _T]) -> tuple[_T, ...]:
    return () if node is None else tuple(read(item) for item in node.items())


def _by_name(node: _Node | None, read: Callable[[_Node], _T]) -> dict[str, _T]:
    return {} if node is None else {name: read(value) for name, value in node.named().items()}


def _times(node: _Node | None) -> tuple[int, ...]:
    """Durations: a step of 0 ns is a clock that stood still, no measurement."""
    return _each(node, lambda item: item.whole(1))


def _once(nodes: Sequence[_Node], keys: Sequence[object], what: str) -> None:
    seen = set()
    for node, key in zip(nodes, keys, strict=True):
        if key in seen:
            raise node.wrong(f"repeats the {what} {str(key)[:80]!r}")
        seen.add(key)


def _results_of(node: _Node) -> ResultSet:
    listed = node.need("benchmarks")
    benchmarks = _each(listed, _benchmark_of)
    if not benchmarks:
        raise node.wrong("has no benchmarks: an empty suite can be neither compared nor judged",
                         "run `ascend-perf bench SUITE.yaml`, and see that SUITE.yaml lists benchmarks")  # fmt: skip
    _once(listed.items(), [benchmark.name for benchmark in benchmarks], "name")
    commit, branch = node.may("commit"), node.may("branch")
    return ResultSet(
        suite=node.need("suite").name(),
        created=node.need("created").time(),
        tool_version=node.need("tool_version").text(),
        fingerprint=_by_name(node.may("fingerprint"), _Node.fact),
        commit=None if commit is None else commit.name(),
        branch=None if branch is None else branch.name(),
        benchmarks=benchmarks,
        notes=_each(node.may("notes"), _Node.text),
    )


def _benchmark_of(node: _Node) -> Benchmark:
    preset, stream, launches = node.may("preset"), node.may("op_stream"), node.need("launches")
    device, size, variant = node.may("device"), node.may("world_size"), node.may("variant")
    read = _each(launches, _launch_of)
    _once(launches.items(), [launch.index for launch in read], "index")
    return Benchmark(
        name=node.need("name").name(),
        workload=node.need("workload").name(),
        preset=None if preset is None else preset.text(),
        device="" if device is None else device.text(),
        world_size=1 if size is None else size.whole(1),
        variant="" if variant is None else variant.text(),
        # Required: simulated figures must not pass for measured ones because a word is missing.
        data_origin="measured" if node.need("data_origin").one_of(("measured", "simulated")) == "measured"
        else "simulated",
        config=_by_name(node.may("config"), _Node.fact),
        counts=_by_name(node.may("counts"), lambda item: item.whole(0)),
        op_stream=None if stream is None else stream.inside(),
        launches=read,
        notes=_each(node.may("notes"), _Node.text),
    )  # fmt: skip


def _launch_of(node: _Node) -> Launch:
    problem, folder, metrics = node.may("problem"), node.may("folder"), node.may("metrics")
    read = _each(metrics, _metric_of)
    if metrics is not None:
        _once(metrics.items(), [(metric.name, metric.rank) for metric in read], "metric of one rank")
    launch = Launch(
        index=node.need("index").whole(0),
        started=node.need("started").time(),
        status=cast(Status, node.need("status").one_of(get_args(Status))),
        problem="" if problem is None else problem.text(),
        metrics=read,
        steps_ns=_times(node.may("steps_ns")),
        warmup_ns=_times(node.may("warmup_ns")),
        samples_ns=_by_name(node.may("samples_ns"), _times),
        folder=None if folder is None else folder.inside(),
    )
    if launch.status == "complete" and not (launch.metrics or launch.steps_ns or launch.samples_ns):
        raise node.wrong("is complete and has no figures: metrics, steps_ns and samples_ns are missing or empty")
    return launch


def _metric_of(node: _Node) -> Metric:
    value, rank = node.need("value"), node.may("rank")
    unit = cast(Unit, node.need("unit").one_of(get_args(Unit)))
    number = None if value.value is None else value.number()
    if number and not 1 / LARGEST <= abs(number) <= LARGEST:
        raise value.wrong(f"is {number:g}, a figure is 0 or between {1 / LARGEST:g} and {LARGEST:g} in size")
    if number is not None and number < 0 and unit not in SIGNED_UNITS:
        raise value.wrong(f"is negative ({number:g}), which no figure in {unit} can be")
    return Metric(
        name=node.need("name").name(),
        value=number,
        unit=unit,
        better=cast(Better, node.need("better").one_of(get_args(Better))),
        rank=None if rank is None else rank.whole(0),
    )


def _document_of(results: ResultSet) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": results.suite,
        "created": results.created,
        "tool_version": results.tool_version,
        "commit": results.commit,
        "branch": results.branch,
        "fingerprint": dict(results.fingerprint),
        "notes": list(results.notes),
        "benchmarks": [_benchmark_document(benchmark) for benchmark in results.benchmarks],
    }


def _benchmark_document(benchmark: Benchmark) -> Mapping[str, object]:
    return {
        "name": benchmark.name,
        "workload": benchmark.workload,
        "preset": benchmark.preset,
        "device": benchmark.device,
        "world_size": benchmark.world_size,
        "variant": benchmark.variant,
        "data_origin": benchmark.data_origin,
        "config": dict(benchmark.config),
        "counts": dict(benchmark.counts),
        "op_stream": benchmark.op_stream,
        "notes": list(benchmark.notes),
        "launches": [_launch_document(launch) for launch in benchmark.launches],
    }


def _launch_document(launch: Launch) -> Mapping[str, object]:
    return {
        "index": launch.index,
        "started": launch.started,
        "status": launch.status,
        "problem": launch.problem,
        "folder": launch.folder,
        "metrics": [
            {"name": metric.name, "value": metric.value, "unit": metric.unit, "better": metric.better}
            | ({} if metric.rank is None else {"rank": metric.rank})
            for metric in launch.metrics
        ],
        "steps_ns": list(launch.steps_ns),
        "warmup_ns": list(launch.warmup_ns),
        "samples_ns": {name: list(times) for name, times in launch.samples_ns.items()},
    }
