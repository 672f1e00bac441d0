"""SUITE.yaml: what to measure. docs/bench.md describes it; every error names its place in the file."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, cast, get_args

import yaml

from ascend_perf.bench.launch import Ranks, Request
from ascend_perf.bench.prediction import predicted
from ascend_perf.bench.suite_node import NAME, Node, Strict
from ascend_perf.collectors.environment import masked
from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.model.run import Fact
from ascend_perf.units import BETTER, Better, Unit
from ascend_perf.workloads import _spec
from ascend_perf.workloads._load import Load

DEFAULT_RUNS: Final = 5
"""Source: comparison of decision rules: with fewer runs of each side no strict rule can decide."""
MAX_RUNS: Final = 1000
MAX_CELLS: Final = 1000
MAX_BYTES: Final = 1 << 20
"""Of the file. Status: assumed."""
SHIPPED: Final = Path(__file__).parent / "suites"

Take = Literal["last", "first", "median", "mean", "min", "max", "sum"]
Keep = Literal["all", "first", "none"]
Device = Literal["auto", "npu", "cuda", "cpu"]
_TIME_NS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, kw_only=True)
class LogMetric:
    """A figure that a program writes into its log."""

    name: str
    regex: str
    """With one group, the number."""
    unit: Unit = "none"
    better: Better = "none"
    take: Take = "last"


@dataclass(frozen=True, kw_only=True)
class External:
    """A program of somebody else, whose log has the figures."""

    command: tuple[str, ...]
    metrics: tuple[LogMetric, ...] = ()
    steps: tuple[str, str] | None = None
    """Pattern and unit of the time of a step."""
    log: Path | None = None
    """A file that it writes; None: what it prints."""
    folder: Path | None = None
    """Where it runs; None: where we run."""
    variables: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server with OpenAI's completions that is already running."""

    url: str
    load: Load
    model: str | None = None
    api_key_env: str | None = None
    trace: Path | None = None
    seed: int = 0
    verify_tls: bool = True


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One benchmark: what runs, how often."""

    name: str
    workload: str
    preset: str | None = None
    device: str = ""
    world_size: int = 1
    variant: str = ""
    runs: int = DEFAULT_RUNS
    seconds: float | None = None
    """What a run is expected to take, as the suite says."""
    body: Request | External | Served

    def settings(self) -> dict[str, Fact]:
        """What decides the work, as far as it is known before a run."""
        body = self.body
        if isinstance(body, External):
            variables = {f"env.{name}": masked(value) for name, value in body.variables}
            return {"command": masked(shlex.join(body.command)), **variables}
        if isinstance(body, Served):
            facts: dict[str, Fact] = {one.name: getattr(body.load, one.name) for one in fields(Load)}
            trace = None if body.trace is None else body.trace.name
            return {**facts, "model": body.model, "seed": body.seed, "trace": trace}
        return {}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What a suite measures: groups of cells, those of a group are interleaved."""

    name: str
    groups: tuple[tuple[Cell, ...], ...]
    keep: Keep = "all"
    snapshot: bool = True
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All benchmarks in the order of the file."""
        return tuple(itertools.chain.from_iterable(self.groups))


def find_suite(text: str) -> Path:
    """The file that a path, or the name of a suite that is shipped, means.

    Raises:
        InputError: there is neither.
    """
    path = Path(text)
    if path.is_file():
        return path
    shipped = {one.stem: one for one in sorted(SHIPPED.glob("*.yaml"))}
    name = path.name.removesuffix(".yaml")
    if path.parent in (Path("."), Path("suites")) and name in shipped:
        return shipped[name]
    raise InputError(
        f"{text}: there is no such file, and no suite of that name{_spec.did_you_mean(name, shipped)}",
        hint=f"suites that are shipped: {', '.join(shipped)}",
    )


def read_suite(path: Path) -> Suite:
    """Read and check a suite: workloads, presets, settings, layouts, patterns.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
    """
    return suite_of(_text(path), path.name, path.parent)


def suite_of(text: str, file: str, folder: Path) -> Suite:
    """The suite of a text.

    Args:
        text: YAML.
        file: name for messages.
        folder: where relative paths in it begin.

    Raises:
        InputError: see `read_suite`.
    """
    try:
        document = yaml.load(text, Loader=Strict)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        lines = " ".join(str(error).split())
        raise InputError(f"{file} is not YAML that we read: {lines[:300]}") from None
    node = Node(document, file, "")
    known = node.keys("name", "about", "runs", "keep", "snapshot", "device", "env", "benchmarks")
    if "benchmarks" not in known or known["benchmarks"].value in (None, []):
        raise node.wrong("has no benchmarks", "list at least one below `benchmarks:`")
    entries = known["benchmarks"].items()
    defaults = _Defaults(
        runs=known["runs"].whole(1, MAX_RUNS) if "runs" in known else DEFAULT_RUNS,
        device=cast(Device, known["device"].one_of(get_args(Device))) if "device" in known else "auto",
        variables=known["env"].variables() if "env" in known else {},
        folder=folder,
    )
    groups = [group for entry in entries for group in _groups_of(entry, defaults)]
    names: dict[str, str] = {}
    count = 0
    for place, group in groups:
        for cell in group:
            count += 1
            if cell.name in names:
                raise InputError(f"{file}: {place} measures {cell.name}, as {names[cell.name]} does",
                                 hint="give one of them a `name:`, or make them variants of one entry")  # fmt: skip
            names[cell.name] = place
    if count > MAX_CELLS:
        raise node.wrong(f"has {count} benchmarks, at most {MAX_CELLS} are measured in one suite")
    return Suite(
        name=known["name"].name() if "name" in known else Path(file).stem,
        groups=tuple(group for _, group in groups),
        keep=cast(Keep, known["keep"].one_of(get_args(Keep))) if "keep" in known else "all",
        snapshot=known["snapshot"].flag() if "snapshot" in known else True,
        about={lang: text.text() for lang, text in known["about"].keys("en", "zh").items()} if "about" in known else {},
    )


@dataclass(frozen=True, kw_only=True)
class _Defaults:
    runs: int
    device: Device
    variables: Mapping[str, str]
    folder: Path


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError(f"{path} is no file", hint="name a SUITE.yaml")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name} has more than {MAX_BYTES} bytes, which no suite has")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is no UTF-8 text, first at byte {error.start}") from None


_COMMON: Final = ("name", "runs", "seconds", "variants", "env")


def _groups_of(node: Node, defaults: _Defaults) -> list[tuple[str, tuple[Cell, ...]]]:
    """The groups of an entry: one for each workload, preset, device and world size, its variants in it."""
    if not isinstance(node.value, dict):
        raise node.is_no("a mapping with workload, command or server")
    kinds = [key for key in ("workload", "command", "server") if key in node.value]
    if len(kinds) != 1:
        unknown = [str(key) for key in node.value if _spec.did_you_mean(str(key), ("workload", "command", "server"))]
        close = f" ({unknown[0]!r}{_spec.did_you_mean(unknown[0], ('workload', 'command', 'server'))})" if (
            unknown and not kinds) else ""  # fmt: skip
        seen = " and ".join(kinds) or "none of them"
        raise node.wrong(f"needs one of workload, command and server, has {seen}{close}")
    read = {"workload": _workloads, "command": _commands, "server": _servers}[kinds[0]]
    return [(node.place, group) for group in read(node, defaults)]


def _variants(known: Mapping[str, Node], *keys: str) -> list[tuple[str, dict[str, Node]]]:
    """Names of the variants with what they change; one without a name where the entry has none."""
    if "variants" not in known:
        return [("", {})]
    node = known["variants"]
    named = node.named()
    if not named:
        raise node.wrong("is empty")
    found = []
    for name, body in named.items():
        if not NAME.fullmatch(name):
            raise node.wrong(f"has a variant {name[:60]!r}: names are letters, digits and . _ - + = , @")
        found.append((name, {} if body.value is None else body.keys(*keys)))
    return found


def _runs(known: Mapping[str, Node], defaults: _Defaults) -> int:
    return known["runs"].whole(1, MAX_RUNS) if "runs" in known else defaults.runs


def _seconds(known: Mapping[str, Node]) -> float | None:
    return known["seconds"].seconds() if "seconds" in known else None


def _path(node: Node, folder: Path) -> Path:
    return folder / Path(node.text()).expanduser()


def _workloads(node: Node, defaults: _Defaults) -> list[tuple[Cell, ...]]:
    assert isinstance(node.value, dict)
    for key in ("nnodes", "nodes", "node_rank"):
        if key in node.value:
            raise node.wrong(f"has {key}: on how many machines it runs is said by the command",
                             "ascend-perf bench SUITE --nnodes N --node-rank R --master-addr ADDRESS")  # fmt: skip
    known = node.keys(*_COMMON, "workload", "preset", "device", "world_size", "set", "data", "model_config")

    def found(item: Node) -> str:
        try:
            return _spec.find_workload(item.text()).name
        except UsageError as error:
            raise item.wrong(f"names {error.what}", error.hint) from None

    names = known["workload"].one_or_more(found)
    presets = known["preset"].one_or_more(Node.text) if "preset" in known else ["tiny"]
    devices = (
        known["device"].one_or_more(lambda item: item.one_of(get_args(Device))) if "device" in known
        else [defaults.device]
    )  # fmt: skip
    sizes: list[int | None] = [None]
    if "world_size" in known:
        sizes = list(known["world_size"].one_or_more(lambda item: item.whole(1, 4096)))
    if "name" in known and len(names) * len(presets) * len(devices) * len(sizes) > 1:
        raise known["name"].wrong("names an entry of several benchmarks", "take it out, or split the entry")
    groups = []
    for name, preset, device, size in itertools.product(names, presets, devices, sizes):
        workload = _spec.find_workload(name)
        world = workload.min_ranks if size is None else size
        base = known["name"].name() if "name" in known else f"{name}/{preset}/{device}/{world}"
        cells = []
        for variant, changed in _variants(known, "set", "env", "data", "model_config"):
            values = {**_set(known), **_set(changed)}
            overrides = tuple(f"{key}={value}" for key, value in values.items())
            place = changed.get("set", known.get("set", node))
            model = changed.get("model_config", known.get("model_config"))
            data = changed.get("data", known.get("data"))
            if model is None:  # else its settings come in between, and the run checks them
                _check(workload, preset, overrides, world, place, known.get("preset", node))
            variables = {**defaults.variables, **_env(known), **_env(changed)}
            request = Request(
                workload=name, preset=preset, overrides=overrides, device=device, ranks=Ranks(per_node=world),
                data=None if data is None else _path(data, defaults.folder),
                model_config=None if model is None else _path(model, defaults.folder),
                variables=tuple(f"{key}={value}" for key, value in variables.items()),
            )  # fmt: skip
            cells.append(Cell(
                name=f"{base}/{variant}" if variant else base, workload=name, preset=preset, device=device,
                world_size=world, variant=variant, runs=_runs(known, defaults), seconds=_seconds(known), body=request,
            ))  # fmt: skip
        groups.append(tuple(cells))
    return groups


def _set(known: Mapping[str, Node]) -> dict[str, str]:
    return known["set"].settings() if "set" in known else {}


def _env(known: Mapping[str, Node]) -> dict[str, str]:
    return known["env"].variables() if "env" in known else {}


def _check(
    workload: _spec.Workload, preset: str, overrides: Sequence[str], world: int, place: Node, of_preset: Node
) -> None:
    """Preset, settings and layout."""
    try:
        if preset not in workload.presets():
            place = of_preset
        if world < workload.min_ranks:
            raise UsageError(f"{workload.name} needs {workload.min_ranks} processes or more, not {world}")
        predicted(workload, workload.settings(preset, overrides), world)
    except UsageError as error:
        raise place.wrong(f"cannot be measured: {error.what}", error.hint) from None


def _commands(node: Node, defaults: _Defaults) -> list[tuple[Cell, ...]]:
    inner = ("command", "env", "folder")
    known = node.keys(*_COMMON, "command", "metrics", "steps", "log", "folder", "timeout_s")
    if "name" not in known:
        raise node.wrong("needs a name: the command does not tell one")
    if "metrics" not in known and "steps" not in known:
        raise node.wrong("needs metrics or steps: patterns of the figures in its log")
    name = known["name"].name()
    metrics = _metrics(known["metrics"]) if "metrics" in known else ()
    cells = []
    for variant, changed in _variants(known, *inner):
        variables = {**defaults.variables, **_env(known), **_env(changed)}
        folder = changed.get("folder", known.get("folder"))
        body = External(
            command=_words(changed.get("command", known["command"])), metrics=metrics,
            steps=_steps(known["steps"]) if "steps" in known else None,
            log=_path(known["log"], defaults.folder) if "log" in known else None,
            folder=None if folder is None else _path(folder, defaults.folder),
            variables=tuple(variables.items()),
            timeout_s=known["timeout_s"].seconds() if "timeout_s" in known else 3600.0,
        )  # fmt: skip
        cells.append(Cell(
            name=f"{name}/{variant}" if variant else name, workload=name, variant=variant,
            runs=_runs(known, defaults), seconds=_seconds(known), body=body,
        ))  # fmt: skip
    return [tuple(cells)]


def _words(node: Node) -> tuple[str, ...]:
    """A command as a list of words, or as a line that is split as a shell would, without a shell."""
    if isinstance(node.value, list):
        return tuple(str(item.value) if type(item.value) in (int, float) else item.text() for item in node.items())
    try:
        return tuple(shlex.split(node.text()))
    except ValueError as error:
        raise node.wrong(f"is no line of words: {error}") from None


def _pattern(node: Node) -> str:
    text = node.text()
    try:
        pattern = re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise node.wrong(f"is no regular expression: {error}") from None
    if pattern.groups != 1:
        raise node.wrong(f"must have one group, the number; it has {pattern.groups}", "others are written (?:...)")
    return text


def _metrics(node: Node) -> tuple[LogMetric, ...]:
    found = []
    for item in node.items():
        known = item.keys("name", "regex", "unit", "better", "take")
        for key in ("name", "regex"):
            if key not in known:
                raise item.wrong(f"needs a {key}")
        unit = cast(Unit, known["unit"].one_of(get_args(Unit))) if "unit" in known else "none"
        found.append(LogMetric(
            name=known["name"].name(), regex=_pattern(known["regex"]), unit=unit,
            better=cast(Better, known["better"].one_of(get_args(Better))) if "better" in known else BETTER[unit],
            take=cast(Take, known["take"].one_of(get_args(Take))) if "take" in known else "last",
        ))  # fmt: skip
    names = [metric.name for metric in found]
    if not found or len(set(names)) < len(names):
        raise node.wrong("names a metric twice" if found else "is empty")
    return tuple(found)


def _steps(node: Node) -> tuple[str, str]:
    known = node.keys("regex", "unit")
    if "regex" not in known:
        raise node.wrong("needs a regex")
    return _pattern(known["regex"]), known["unit"].one_of(tuple(_TIME_NS)) if "unit" in known else "ms"


def _servers(node: Node, defaults: _Defaults) -> list[tuple[Cell, ...]]:
    known = node.keys(*_COMMON, "server", "model", "api_key_env", "load", "trace", "seed", "verify_tls")
    url = known["server"].text()
    if not re.fullmatch(r"https?://[^\s@]+", url):
        raise known["server"].wrong("must be an http or https address without user and password")
    if "name" not in known:
        raise node.wrong("needs a name: the address of the server does not go into results")
    name = known["name"].name()
    cells = []
    for variant, changed in _variants(known, "load", "model", "server"):
        body = Served(
            url=changed["server"].text() if "server" in changed else url,
            load=_load([part["load"] for part in (known, changed) if "load" in part], node),
            model=(changed.get("model") or known["model"]).text() if "model" in {**known, **changed} else None,
            api_key_env=known["api_key_env"].text() if "api_key_env" in known else None,
            trace=_path(known["trace"], defaults.folder) if "trace" in known else None,
            seed=known["seed"].whole(0, 2**31) if "seed" in known else 0,
            verify_tls=known["verify_tls"].flag() if "verify_tls" in known else True,
        )
        if body.load.mode == "replay" and body.trace is None:
            raise node.wrong("replays a trace and names none", "add `trace: FILE.jsonl`")
        cells.append(Cell(
            name=f"{name}/{variant}" if variant else name, workload=name, variant=variant,
            runs=_runs(known, defaults), seconds=_seconds(known), body=body,
        ))  # fmt: skip
    return [tuple(cells)]


def _load(nodes: Sequence[Node], entry: Node) -> Load:
    """What is asked of the server; types and ranges as `--set` of llm-serve checks them."""
    names = [one.name for one in fields(Load)]
    values: dict[str, str] = {}
    for node in nodes:
        node.keys(*names)
        values |= node.settings()
    carrier = _spec.Workload(
        name="load", about=_LOAD_WORDS, config=Load, build=_never, presets_path=Path("load.yaml")
    )
    try:
        parsed = {key: yaml.safe_load(value) for key, value in values.items()}
        config = carrier.from_dict(parsed).config
    except UsageError as error:
        raise (nodes[-1] if nodes else entry).wrong(f"is not right: {error.what}", error.hint) from None
    assert isinstance(config, Load)
    return config


def _never(config: object, place: _spec.Place, seed: int) -> _spec.Program:
    raise AssertionError("it carries settings only")


_LOAD_WORDS: Final = Words("load of a server", "服务负载")


def figures_in(text: str, pattern: str) -> list[float]:
    """All numbers that a pattern finds in a log, in order; thousands may be set off by commas.

    Raises:
        ValueError: what it finds is no finite number.
    """
    found = []
    for match in re.finditer(pattern, text, re.MULTILINE):
        word = (match[1] or "").replace(",", "").replace("_", "")
        value = float(word)
        if not math.isfinite(value):
            raise ValueError(f"{match[1]!r} is no finite number")
        found.append(value)
    return found


def in_ns(value: float, unit: str) -> int:
    """A time of a log in ns."""
    return round(value * _TIME_NS[unit])
