"""Estimate a workload on chips, ranks and layouts that are not there: each is run once on the virtual NPU.

One process stands for all ranks of a job, with the modelled clock. Operators, memory and collectives are those of the
real software, times are modelled; memory that is not enough is found by the real allocator. What was computed once is
kept, so that a call that was stopped goes on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ascend_perf import __version__
from ascend_perf.bench import before, layout_choices, step_shares
from ascend_perf.bench.what_if_words import verdict_words, whole_words
from ascend_perf.collectors.virtual_npu import VirtualNpu, cache_folder
from ascend_perf.errors import AscendPerfError, Interrupted, MachineError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.model.what_if import Configuration, Estimate, Outcome, Verdict, WhatIf
from ascend_perf.workloads import _spec

FORMAT: Final = 3
"""Of a kept estimate."""
STEPS: Final = ("warmup_steps=2", "measured_steps=2", "profiled_steps=1")
"""Steps with the modelled clock repeat exactly after the first, their memory after the second, in which DDP makes its
buckets anew beside those of the first: two that warm up and two are enough."""
ASSUMED_SECONDS: Final = 40.0
"""For a configuration, where none has been run yet. Status: assumed; tiny ones take 15 s, a 7B model 60 s."""
MAX_CONFIGURATIONS: Final = 400
"""More are a mistake of the user. Status: assumed."""

Runner = Callable[["Case"], Estimate]
"""Runs one configuration. Raises an AscendPerfError where it does not come to its end."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks."""

    workload: str
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    """`KEY=V1,V2`: each value is a configuration of its own."""
    devices: tuple[VirtualNpu, ...] = (VirtualNpu(),)
    """Chips with their number of ranks; their clock is not looked at."""
    layouts: str = "auto"
    most: int = layout_choices.MOST
    """Layouts of a chip and world, where the user names none."""
    model_config: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration with what runs it."""

    configuration: Configuration
    workload: _spec.Workload
    preset: str
    device: VirtualNpu


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be run, and what will not."""

    request: Request
    cases: tuple[Case, ...]
    unfit: tuple[Outcome, ...]
    left_out: Mapping[str, tuple[str, ...]]
    notes: tuple[Words, ...] = ()
    """What the configuration file of the model asks for and no case does."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Told before each configuration, and at the end."""

    done: int
    total: int
    case: Case | None
    seconds_left: float
    outcome: Outcome | None = None
    """Of the one before."""


def plan(request: Request) -> Plan:
    """The configurations of a request.

    Raises:
        UsageError: workload, preset, settings or layouts are wrong, or there is nothing to run.
    """
    workload = _spec.find_workload(request.workload)
    wanted = layout_choices.parse_layouts(request.layouts)
    model, notes = _model_overrides(request, workload)
    given = (*model, *request.overrides)
    cases: list[Case] = []
    unfit: list[Outcome] = []
    left_out: dict[str, tuple[str, ...]] = {}
    pairs = list(itertools.product(request.devices, _variations(request.varied)))
    _check_count(len(pairs))
    for device, varied in pairs:
        overrides = (*STEPS, *given, *varied)
        found = layout_choices.choices(workload, request.preset, overrides, device, wanted)
        chosen = found if wanted is not None or request.layouts == "all" else layout_choices.first(found, request.most)
        where = f"{device.soc} x {device.world_size}"
        names = tuple(one.name for one in found if one not in chosen)
        if names:
            left_out[where] = names
        for choice in chosen:
            configuration = Configuration(
                soc=device.soc, world_size=device.world_size, layout=choice.name, varied=varied,
                overrides=(*given, *varied, *choice.overrides),
            )  # fmt: skip
            if choice.problem:
                unfit.append(Outcome(configuration=configuration, kind="does-not-fit", problem=choice.problem))
            else:
                modelled = replace(device, clock="modelled")
                cases.append(
                    Case(configuration=configuration, workload=workload, preset=request.preset, device=modelled)
                )
    _check_count(len(cases))
    if not cases:
        alone = replace(request.devices[0], world_size=1)
        of_one = layout_choices.choices(workload, request.preset, (*STEPS, *given), alone, wanted)
        runs = any(not choice.problem for choice in of_one)
        raise UsageError(
            f"no configuration fits: {unfit[0].problem}",
            hint="it runs with --world-size 1" if runs else "see `ascend-perf what-if --help`",
        )
    return Plan(request=request, cases=tuple(cases), unfit=tuple(unfit), left_out=left_out, notes=notes)


def _check_count(count: int) -> None:
    if count > MAX_CONFIGURATIONS:
        raise UsageError(
            f"{count} configurations, at most {MAX_CONFIGURATIONS} are run", hint="name fewer layouts or values"
        )


def _model_overrides(request: Request, workload: _spec.Workload) -> tuple[tuple[str, ...], tuple[Words, ...]]:
    """What the configuration file of a model sets, as `KEY=VALUE`, and what it asks for that is left out."""
    if request.model_config is None:
        return (), ()
    values, notes = before.model_settings(request.model_config, workload)
    return tuple(f"{name}={_spec.text_of(value)}" for name, value in values.items() if value is not None), notes


def _variations(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`batch=1,2` and `recompute=none,full` as the four pairs of settings."""
    axes = []
    for text in texts:
        key, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",") if part.strip()]
        if not equals or not key.strip() or not parts:
            raise UsageError(f"--vary {text!r} is no KEY=V1,V2", hint="such as --vary batch=1,2,4")
        axes.append([f"{key.strip()}={part}" for part in dict.fromkeys(parts)])
    return itertools.product(*axes)


class Kept:
    """Estimates of earlier calls, one file each.

    Args:
        folder: made when something is written.
        machinery: what beside the configuration decides a result: versions, libraries, constants of the model.
    """

    def __init__(self, folder: Path, machinery: str) -> None:
        self._folder, self._machinery = folder, machinery

    def path(self, case: Case) -> Path:
        """Where the outcome of a case lies."""
        settings = case.workload.settings(case.preset, (*STEPS, *case.configuration.overrides))
        facts = {
            "format": FORMAT, "machinery": self._machinery, "workload": case.workload.name,
            "settings": settings.as_dict(), "device": case.device.fingerprint(),
        }  # fmt: skip
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        return self._folder / f"{case.workload.name}-{digest}.json"

    def read(self, case: Case) -> Outcome | None:
        """The outcome of an earlier call; None where there is none, or the file is damaged."""
        try:
            document: dict[str, Any] = json.loads(self.path(case).read_text("utf-8"))
            estimate = document["estimate"]
            return Outcome(
                configuration=case.configuration, kind=document["kind"], problem=str(document["problem"]),
                fits=str(document["fits"]), seconds=float(document["seconds"]), is_cached=True,
                estimate=None if estimate is None else Estimate(**estimate),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, case: Case, outcome: Outcome) -> None:
        """Keep an outcome. A folder that cannot be written is no error: the next call computes it again."""
        estimate = None if outcome.estimate is None else dataclasses.asdict(outcome.estimate)
        document = {
            "kind": outcome.kind, "problem": outcome.problem, "fits": outcome.fits, "seconds": outcome.seconds,
            "estimate": estimate,
        }  # fmt: skip
        path = self.path(case)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(document), "utf-8")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)


def seconds_of(made: Plan, kept: Kept, *, fresh: bool = False) -> tuple[float, int]:
    """How long a plan will take, and how many of its configurations are known already (`fresh`: none counts)."""
    known = [one for one in (kept.read(case) for case in made.cases) if one is not None]
    took = [one.seconds for one in known if one.seconds]
    each = statistics.fmean(took) if took else ASSUMED_SECONDS
    count = 0 if fresh else len(known)
    return each * (len(made.cases) - count), count


def estimate_all(
    made: Plan, run: Runner, kept: Kept, *, on_progress: Callable[[Progress], None] = lambda progress: None,
    fresh: bool = False, versions: Mapping[str, str] | None = None,
) -> WhatIf:  # fmt: skip
    """Run what is not known yet; one that fails is named and the others go on.

    Raises:
        Interrupted: somebody stopped it; what was computed is kept.
    """
    outcomes: list[Outcome] = []
    took: list[float] = []
    waiting = [None if fresh else kept.read(case) for case in made.cases]
    open_count = sum(one is None for one in waiting)
    took_before = [one.seconds for one in waiting if one is not None and one.seconds]
    for index, (case, known) in enumerate(zip(made.cases, waiting, strict=True)):
        each = statistics.fmean(took or took_before or [ASSUMED_SECONDS])
        last = outcomes[-1] if outcomes else None
        on_progress(Progress(
            done=index, total=len(made.cases), case=case, seconds_left=each * open_count, outcome=last
        ))  # fmt: skip
        if known is not None:
            outcomes.append(known)
            continue
        outcome = _outcome_of(case, run)
        took.append(outcome.seconds)
        open_count -= 1
        if outcome.kind != "failed":  # what failed may be the machine's fault
            kept.write(case, outcome)
        outcomes.append(outcome)
    on_progress(Progress(
        done=len(outcomes), total=len(outcomes), case=None, seconds_left=0, outcome=outcomes[-1] if outcomes else None
    ))  # fmt: skip
    return judged(made, outcomes, versions or {})


def _outcome_of(case: Case, run: Runner) -> Outcome:
    began = time.monotonic()
    try:
        outcome = Outcome(configuration=case.configuration, kind="estimated", estimate=run(case))
    except Interrupted:
        raise
    except MachineError as error:
        is_full = "out of memory" in error.what
        outcome = Outcome(
            configuration=case.configuration, kind="out-of-memory" if is_full else "failed",
            problem=error.what.strip(), fits=error.hint if is_full else "",
        )  # fmt: skip
    except AscendPerfError as error:
        outcome = Outcome(configuration=case.configuration, kind="failed", problem=error.what)
    except Exception as error:  # one that breaks must not lose the others
        problem = f"{type(error).__name__}: {error}"
        outcome = Outcome(configuration=case.configuration, kind="failed", problem=problem)
    return replace(outcome, seconds=time.monotonic() - began)


def judged(made: Plan, outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> WhatIf:
    """Everything with the best configuration of each chip and world."""
    whole = (*outcomes, *made.unfit)
    groups = dict.fromkeys(one.configuration.group for one in whole)
    verdicts = tuple(_verdict(whole, Verdict(soc=soc, world_size=world, best=None)) for soc, world in groups)
    request = made.request
    lead, main, notes = whole_words(request.workload, request.preset, whole, verdicts)
    return WhatIf(
        workload=request.workload, preset=request.preset, outcomes=whole, verdicts=verdicts, lead=lead, main=main,
        notes=(*made.notes, *notes), versions=versions, left_out=made.left_out,
    )  # fmt: skip


def _verdict(outcomes: Sequence[Outcome], verdict: Verdict) -> Verdict:
    """The verdict of a chip and world, with the best of its outcomes."""
    world_size = verdict.world_size
    estimates = {
        index: one.estimate for index, one in enumerate(outcomes) if one.estimate is not None and verdict.judges(one)
    }
    if estimates:
        best = max(estimates, key=lambda index: estimates[index].per_s_per_device(world_size))
        rivals = tuple(
            index for index, one in estimates.items()
            if index != best and not step_shares.is_surely_faster(estimates[best], one)
        )  # fmt: skip
        rivals = tuple(sorted(rivals, key=lambda index: -estimates[index].per_s_per_device(world_size)))
        verdict = replace(verdict, best=best, rivals=rivals)
    return replace(verdict, said=verdict_words(verdict, outcomes))


# ---- the real runner -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """The virtual NPU as it is set up here."""

    identity: str
    """Changes when anything that decides an estimate does."""
    versions: Mapping[str, str] = field(default_factory=dict)


def set_up(devices: Sequence[VirtualNpu], say: Callable[[str], None]) -> Machinery:
    """Prepare the virtual NPU.

    Raises:
        MachineError: it cannot be set up here.
        UsageError: the model does not know one of the chips.
    """
    from ascend_perf.collectors.virtual_npu import prepare
    from ascend_perf.collectors.virtual_npu.cost import cost_lines

    lines = [cost_lines(device) for device in devices]  # first: a chip that is not known costs no set-up
    prepared = prepare(devices[0], say)
    facts = [__version__, prepared.torch_version, prepared.torch_npu_version, prepared.library_hash, lines]
    return Machinery(
        identity=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        versions={"torch": prepared.torch_version, "torch_npu": prepared.torch_npu_version},
    )


def kept_of(machinery: Machinery) -> Kept:
    """Estimates beside the wheel and the libraries."""
    return Kept(cache_folder() / "what-if", machinery.identity)


def run_case(case: Case) -> Estimate:
    """Run a configuration once and read its record.

    Raises:
        AscendPerfError: it did not come to its end; a MachineError where memory was not enough.
    """
    from ascend_perf.bench import virtual
    from ascend_perf.bench.launch import Ranks, launch
    from ascend_perf.bench.launch import Request as RunRequest
    from ascend_perf.collectors.virtual_npu.record import read_folder

    with tempfile.TemporaryDirectory(prefix="ascend-perf-") as name:
        folder = Path(name, "run")
        request = RunRequest(
            workload=case.workload.name, preset=case.preset, overrides=(*STEPS, *case.configuration.overrides),
            device=virtual.DEVICE, ranks=Ranks(per_node=1), virtual=virtual.Job(settings=case.device, processes=1),
        )  # fmt: skip
        _, manifest = launch(request, folder=folder)
        records = read_folder(folder / virtual.RECORD_FOLDER)
        if not records:
            raise MachineError("the virtual NPU left no record")
        shares = step_shares.shares_of(records[0])
        used = records[0].peak_bytes or int(records[0].tables["M"]["used_bytes"].max())
        metrics = {metric.name: metric.value for metric in manifest.metrics}
    rate = next(metric for metric in manifest.metrics if metric.unit == "items_per_s")
    settings = case.workload.settings(case.preset, request.overrides).as_dict()
    item = rate.name.removesuffix("_per_s")
    return estimate_of(case, shares, metrics, item=item, settings=settings, used_bytes=used)


def estimate_of(
    case: Case, shares: step_shares.Shares, metrics: Mapping[str, float | None], *, item: str,
    settings: Mapping[str, _spec.Value], used_bytes: int,
) -> Estimate:  # fmt: skip
    """An estimate of a run's figures and the shares of its step."""
    step_ns, rate = metrics["step_time_median"], metrics[f"{item}_per_s"]
    assert step_ns is not None and rate is not None
    shares = step_shares.with_bubble(
        shares, pipeline_ranks=int(str(settings.get("pipeline_ranks", 1))), rounds=layout_choices.rounds_of(settings)
    )  # fmt: skip
    low, high = step_shares.bounds(
        shares.classes_ns, hidden_communication_ns=shares.hidden_communication_ns, crosses_nodes=shares.crosses_nodes
    )  # fmt: skip
    mfu = metrics.get("mfu")
    return Estimate(
        step_ns=float(shares.step_ns), low_ns=low, high_ns=high, item=item,
        items_per_step=round(rate * step_ns / 1e9), flops_per_step=int(metrics["model_flops_per_step"] or 0),
        mfu=None if mfu is None else mfu * step_ns / shares.step_ns,
        peak_device_bytes=int(metrics.get("peak_device_memory") or 0), used_device_bytes=used_bytes,
        device_bytes=case.device.memory_bytes,
        parts=dict(shares.parts), hidden_communication_ns=float(shares.hidden_communication_ns),
        classes_ns=dict(shares.classes_ns), launches=shares.launches, crosses_nodes=shares.crosses_nodes,
    )  # fmt: skip
