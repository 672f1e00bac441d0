"""The two sides of a gate: result files, the folders that hold them, run directories, or snapshots of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from ascend_perf import files
from ascend_perf.errors import InputError, UsageError
from ascend_perf.manifest import is_run_directory, read_manifest
from ascend_perf.model.result import Benchmark, Launch, ResultSet
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.op_streams import read_op_stream
from ascend_perf.result_files import FILE_NAME, is_result_file, read_results

Kind = Literal["results", "run", "snapshot", "snapshots"]
"""A result file, a run directory, a snapshot, or a folder of snapshots."""
SAID_AS: Final[Mapping[Kind, str]] = {
    "results": "a result file", "run": "a run directory", "snapshot": "a snapshot of operators",
    "snapshots": "a folder of snapshots",
}  # fmt: skip

_MAGIC: Final = b"ascend-perf op-stream "
_DECIDING: Final = ("torch", "torch_npu", "rank")
"""Facts of a snapshot that decide which operators a step has."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side, as it is compared."""

    results: ResultSet
    folder: Path
    """What paths of the results are relative to."""
    label: str
    kind: Kind = "results"

    @property
    def is_one_run(self) -> bool:
        """A run directory: one launch, so that nothing is known of the variation between launches."""
        return self.kind == "run"


class MissingBaseline(InputError):
    """There is nothing to compare with: no failure of the input, and no pass."""


def read_side(path: Path, variant: str | None = None, *, is_base: bool = False) -> Side:
    """The benchmarks of a result file, of the folder that holds it, or of a run directory.

    Args:
        path: where to look.
        variant: only benchmarks of this variant, whose names lose it.
        is_base: whether absence is a missing baseline.

    Raises:
        MissingBaseline: nothing lies at the path of the base.
        InputError: it is damaged, of another schema version, or neither of the two.
        UsageError: it has no such variant.
    """
    if not path.exists():
        kind = MissingBaseline if is_base else InputError
        raise kind(f"{path.name or path} does not exist", hint="`ascend-perf bench SUITE.yaml` writes result files")
    has_results = path.is_dir() and (path / FILE_NAME).is_file()
    if path.is_dir() and is_run_directory(path) and not (has_results and is_result_file(path)):
        side = Side(results=results_of_run(read_manifest(path)), folder=path, label=path.name, kind="run")
    elif not has_results and (snapshots := _snapshots(path)):
        folder = path if path.is_dir() else path.parent
        side = Side(results=results_of_snapshots(snapshots, named=path.is_dir()), folder=folder, label=path.name,
                    kind="snapshots" if path.is_dir() else "snapshot")  # fmt: skip
    elif path.is_dir() and not has_results:
        raise InputError(
            f"{path.name or path} holds no {FILE_NAME}, no manifest of a run, and no snapshots of operators",
            hint="give a result file, the folder that holds it, a run directory, or snapshots",
        )
    else:
        folder = path if path.is_dir() else path.parent
        side = Side(results=read_results(path), folder=folder, label=path.name or FILE_NAME)
    return side if variant is None else replace(side, results=_only(side.results, variant, side.label))


def check_kinds(base: Side, head: Side) -> None:
    """Snapshots have no launches, and a folder of them names them by file: nothing of theirs would meet the other side.

    Raises:
        UsageError: the sides are of kinds that have no benchmark in common.
    """
    kinds = {base.kind, head.kind}
    if len(kinds) == 1 or kinds <= {"results", "run"}:
        return
    hint = "give two snapshots, or two folders of them"
    if kinds & {"results", "run"}:
        hint = "give two result files, two run directories, or two snapshots; DIR/streams of a suite has its snapshots"
    raise UsageError(
        f"{base.label} is {SAID_AS[base.kind]} and {head.label} is {SAID_AS[head.kind]}: they cannot be compared",
        hint=hint,
    )


def _only(results: ResultSet, variant: str, label: str) -> ResultSet:
    chosen = [benchmark for benchmark in results.benchmarks if benchmark.variant == variant]
    if not chosen:
        there = sorted({benchmark.variant for benchmark in results.benchmarks if benchmark.variant})
        raise UsageError(
            f"{label} has no variant {variant!r}", hint=f"variants: {', '.join(there)}" if there else "it has none"
        )
    return replace(results, benchmarks=tuple(
        replace(benchmark, name=benchmark.name.removesuffix(f"/{variant}"), variant="") for benchmark in chosen
    ))  # fmt: skip


def _snapshots(path: Path) -> list[Path]:
    """The file, or the files of a folder, that are snapshots of operators by their first line."""
    there = sorted(path.iterdir()) if path.is_dir() else [path]
    return [one for one in there if one.is_file() and not one.is_symlink() and files.head(one, 64).startswith(_MAGIC)]


def results_of_snapshots(paths: Sequence[Path], *, named: bool) -> ResultSet:
    """Snapshots as a suite of benchmarks without launches.

    Args:
        paths: of snapshots.
        named: by their file, as in a folder; else by workload, preset, mode and processes.

    Raises:
        InputError: one of them is damaged.
    """
    benchmarks = []
    for path in paths:
        stream = read_op_stream(path)
        parts = (stream.workload, stream.preset, stream.mode, str(stream.world_size))
        # Versions are not settings, but of each file: a folder may hold snapshots of several machines.
        facts = {f"snapshot.{name}": stream.facts[name] for name in _DECIDING if name in stream.facts}
        benchmarks.append(Benchmark(
            name=path.stem if named else "/".join(part for part in parts if part), workload=stream.workload,
            preset=stream.preset, device=stream.mode, world_size=stream.world_size,
            config={**stream.settings, **facts}, op_stream=path.name,
        ))  # fmt: skip
    if len({benchmark.name for benchmark in benchmarks}) < len(benchmarks):
        raise InputError("two snapshots of a folder differ in the end of their names only", hint="rename one")
    return ResultSet(suite="snapshots", created="", tool_version="", benchmarks=tuple(benchmarks))


def results_of_run(manifest: Manifest) -> ResultSet:
    """A run as a suite of one benchmark with one launch."""
    world = manifest.device_facts.get("world_size")
    size = world if isinstance(world, int) and not isinstance(world, bool) and world > 0 else 1
    steps = tuple(step for step in manifest.timings_ns.get("measured", ()) if step > 0)
    launch = Launch(
        index=0, started=manifest.created, status=manifest.status, problem=manifest.problem,
        metrics=tuple(metric for metric in manifest.metrics if metric.rank is None),
        steps_ns=steps, warmup_ns=manifest.timings_ns.get("warmup", ()), folder=".",
    )  # fmt: skip
    config: dict[str, Fact] = {
        key: value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
        for key, value in manifest.config.items()
    }
    parts = (manifest.workload, manifest.preset, manifest.device, str(size))
    benchmark = Benchmark(
        name="/".join(part for part in parts if part), workload=manifest.workload, preset=manifest.preset,
        device=manifest.device, world_size=size, config=config, launches=(launch,), notes=manifest.notes,
        data_origin="simulated" if manifest.data_origin == "simulated" else "measured",
    )  # fmt: skip
    return ResultSet(
        suite=manifest.workload, created=manifest.created, tool_version="", fingerprint=_fingerprint(manifest),
        benchmarks=(benchmark,),
    )  # fmt: skip


def _fingerprint(manifest: Manifest) -> Mapping[str, Fact]:
    facts: dict[str, Fact] = {"kind": manifest.device, "chip": manifest.device_facts.get("name")}
    for name in ("torch", "torch_npu", "cann", "cuda", "driver", "firmware"):
        facts[name] = manifest.versions.get(name)
    return facts
