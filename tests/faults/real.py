"""Faults planted into real profiles: what the analysis says of them beside what it says of the unedited profile.

A recorded job has findings of its own, so everything is judged by difference. A fault is found when a finding of its
row appears (or becomes one of weight), or when the time that such findings claim grows by the planted time, within
20 %. Findings of medium severity and above about other rows are false when they appear or grow by a fifth of the
planted time and 3 % of the step.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from ascend_perf.model.finding import Finding
from ascend_perf.pipeline import analyze
from tests.faults import real_kineto as kineto
from tests.faults import real_pipeline as pipeline
from tests.faults import real_plants as plants
from tests.faults.evaluate import FIRST, GAIN_TOLERANCE, GRADES
from tests.faults.planting import STRENGTHS, Strength, rows
from tests.faults.real_text import RealProfile

LEVEL1: Final = "ascend-pytorch/text/level1"
LEVEL2: Final = "ascend-pytorch/text/level2"
QWEN: Final = "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2"
LLM_GPU: Final = "kineto/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
IMAGES_GPU: Final = "kineto/v100/resnet50_num_workers_4.json.gz"
MEGAHERTZ: Final[dict[Strength, int]] = {"weak": 1600, "medium": 1200, "strong": 900}
NOTICED: Final = 0.03
"""Growth below this share of the step is told by no one."""


class Profile(Protocol):
    """A recorded job that was read and can be written."""

    def write(self, folder: Path) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RealKind:
    """A fault planted into recorded jobs."""

    name: str
    sources: tuple[str, ...]
    """Recorded jobs, each of which it is planted into."""
    plant: Callable[..., float]
    codes: frozenset[str]
    also: frozenset[str] = frozenset()
    ranks: tuple[int, ...] = ()
    """Ranks that the finding has to name; any when empty."""
    clocks: bool = False
    """Its strengths are clocks, not shares of the step."""
    is_split: bool = False
    """The rows each explain a part: what they claim on each rank adds up."""
    second: frozenset[str] = frozenset()
    """Rows of the other fault where two are planted: both have to be found."""
    note: str = ""


def _twice(name: str, first: RealKind, second: RealKind) -> RealKind:
    return RealKind(
        name=name, sources=first.sources, plant=plants.both(first.plant, second.plant), codes=first.codes,
        second=second.codes, also=first.also | second.also, ranks=first.ranks or second.ranks,
    )  # fmt: skip


def _kind(name: str, plant: Callable[..., float], codes: str, also: str = "",
          sources: tuple[str, ...] = (LEVEL1, LEVEL2), **more: object) -> RealKind:  # fmt: skip
    return RealKind(name=name, sources=sources, plant=plant, codes=rows(codes), also=rows(also), **more)  # type: ignore[arg-type]


_GAPS = _kind("gaps", plants.filled(12, None), "H-01 H-03", is_split=True)
_LOADER = _kind("loader-slow", plants.loader, "D-01")
_SYNC = _kind("sync-item", plants.filled(6, plants.synchronise), "H-05")
_COMPILE = _kind("compile", plants.filled(8, plants.compile_again), "H-06")
_GC = _kind("gc", plants.collecting, "H-07")
_AI_CPU = _kind("aicpu", plants.filled(12, plants.kernel_of(plants.index_put, "aten::index_put_", "AI_CPU")), "C-07")
_CASTS = _kind("casts", plants.filled(12, plants.kernel_of(plants.cast, "aten::to")), "C-10")
_STALLED = _kind("products-stalled", plants.stretched(), "C-03", also="C-11 C-04")
_LATE = _kind("late-peer", plants.late_peer, "N-05", ranks=(plants.LATE,))
_LINK = _kind("link-slow", plants.slow_link, "N-06", also="N-01 N-05 N-10", ranks=plants.LINK)

REAL_KINDS: Final[tuple[RealKind, ...]] = (
    _GAPS,
    _kind("python-before-step", plants.python_first, "D-01 H-01"),
    _LOADER,
    _SYNC,
    _COMPILE,
    _GC,
    _AI_CPU,
    _CASTS,
    _kind("trans-data", plants.filled(12, plants.kernel_of(plants.trans_data, "aten::npu_format_cast")), "C-09"),
    _STALLED,
    _kind("products-memory", plants.stretched(plants.memory_bound), "C-02", also="C-11 C-04"),
    _kind("clock-low", plants.throttled, "P-01", clocks=True,
          note="clocks of 1600, 1200 and 900 MHz where 1800 is rated"),
    _kind("copies-blocking", plants.filled(8, plants.copies), "D-02", also="H-05", sources=(LEVEL2,)),
    _LATE,
    _LINK,
    _kind("packets-small", plants.small_packets, "N-02", also="N-01 N-10"),
    _kind("stage-uneven", pipeline.uneven_stage, "L-01 L-02", also="C-03", sources=(QWEN,), ranks=(2, 3)),
    _kind("stage-products-stalled", pipeline.stalled_products, "C-03", also="L-01 L-02", sources=(QWEN,)),
    _kind("stage-products-memory", pipeline.memory_bound_products, "C-02", also="L-01 L-02", sources=(QWEN,)),
    _kind("stage-gaps", pipeline.gaps, "H-01", also="L-01 H-03", sources=(QWEN,)),
    _kind("gpu-gaps", kineto.gaps, "H-01 H-03", sources=(IMAGES_GPU,), is_split=True),
    _kind("gpu-sync", kineto.synchronised, "H-05", sources=(IMAGES_GPU,)),
    _kind("gpu-loader-slow", kineto.loader, "D-01", also="H-01", sources=(IMAGES_GPU,)),
    _kind("gpu-kernels-long", kineto.stretched, "", sources=(LLM_GPU,),
          note="Kineto names no counters: nothing can be said but that nothing else may be said"),
    _twice("loader-slow+late-peer", _LOADER, _LATE),
    _twice("sync-item+casts", _SYNC, _CASTS),
    _twice("compile+products-stalled", _STALLED, _COMPILE),
    _twice("gc+aicpu", _GC, _AI_CPU),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RealScore:
    """How one edited profile was judged."""

    kind: str
    source: str
    strength: str
    planted_ns: float
    step_ns: float
    is_found: bool
    place: int | None
    """Place among the findings that are new or grew, from 1."""
    gain_error: float | None
    names_ranks: bool
    right: int
    false: tuple[str, ...]
    failed: tuple[str, ...]
    grown: tuple[tuple[str, float], ...]
    """Codes and by how much the time they claim grew, in shares of the step."""


def open_profile(folder: Path, source: str) -> Profile:
    """Reads a recorded job for editing."""
    if source.startswith("kineto"):
        return kineto.KinetoTrace.read(folder / source)
    return RealProfile.read(folder / source)


def step_ns(profile: Profile) -> float:
    """Length of a step: Stage of step_trace_time, or the median of the steps of a Kineto trace."""
    if isinstance(profile, kineto.KinetoTrace):
        return profile.step_ns
    assert isinstance(profile, RealProfile)
    stages = [float(rank.tables["step_trace_time.csv"].rows[0]["Stage"]) for rank in profile.ranks]
    return statistics.fmean(stages) * 1000


def steps_of(profile: Profile) -> int:
    """How many were recorded."""
    return len(profile.steps) if isinstance(profile, kineto.KinetoTrace) else 1


def claimed(found: Finding, step: float, steps: int) -> float:
    """Time that a finding says could be gained, in ns per step: its share of what it divides by."""
    if found.share_ratio is None:
        return 0.0
    # Claims divide by all steps together.
    wholes = [claim.whole_ns / steps for claim in found.claims]
    return found.share_ratio * (statistics.fmean(wholes) if wholes else step)


def _by_key(findings: Sequence[Finding], step: float, steps: int) -> dict[tuple[str, str], float]:
    made: dict[tuple[str, str], float] = defaultdict(float)
    for found in findings:
        # Ranks that lose more are a finding of their own of the same subject: the step follows the slowest.
        key = found.code, found.subject
        made[key] = max(made[key], claimed(found, step, steps))
    return made


def together(findings: Sequence[Finding], codes: frozenset[str], step: float, steps: int) -> float:
    """Time per step that findings of some rows claim together, in ns: mean of the ranks."""
    ranks: dict[int | None, float] = defaultdict(float)
    for found in findings:
        for claim in found.claims if found.code in codes else ():
            ranks[claim.rank] += claim.gain_ns / steps
        if found.code in codes and not found.claims:
            ranks[None] += claimed(found, step, steps)
    return statistics.fmean(ranks.values()) if ranks else 0.0


@cache
def baseline(folder: Path, source: str) -> tuple[tuple[Finding, ...], float, int]:
    """Findings of the unedited job, read and written by the same editor; its step, and how many there are."""
    with tempfile.TemporaryDirectory() as place:
        profile = open_profile(folder, source)
        profile.write(Path(place))
        return tuple(analyze(Path(place)).findings), step_ns(profile), steps_of(profile)


def plant(kind: RealKind, source: str, strength: Strength, folder: Path, place: Path) -> tuple[float, float]:
    """Writes the edited job below `place`; the planted time and the step with it, in ns."""
    profile = open_profile(folder, source)
    before = step_ns(profile)
    share = STRENGTHS[strength]
    planted = kind.plant(profile, MEGAHERTZ[strength] if kind.clocks else round(share / (1 - share) * before))
    profile.write(place)
    return planted, step_ns(profile)


def run(kind: RealKind, source: str, strength: Strength, folder: Path) -> RealScore:
    """Plants, analyses, judges."""
    before, old_step, steps = baseline(folder, source)
    with tempfile.TemporaryDirectory() as place:
        planted, step = plant(kind, source, strength, folder, Path(place))
        analysis = analyze(Path(place))
    return judge(kind, source, strength, planted, before, old_step, analysis.findings, step, steps,
                 tuple(o.analyzer for o in analysis.failed))  # fmt: skip


def judge(
    kind: RealKind, source: str, strength: str, planted: float, before: Sequence[Finding], old_step: float,
    after: Sequence[Finding], step: float, steps: int = 1, failed: tuple[str, ...] = (),
) -> RealScore:  # fmt: skip
    """Compares the findings of an edited job with those of the unedited one."""
    old, new = _by_key(before, old_step, steps), _by_key(after, step, steps)
    old_codes = {f.code for f in before}
    weighty = {f.code for f in before if f.severity in GRADES}
    grown: dict[str, float] = defaultdict(float)
    for key in {*old, *new}:
        grown[key[0]] += new.get(key, 0.0) - old.get(key, 0.0)
    codes = kind.codes | kind.second
    changed = [f for f in after if f.code not in old_codes or new[f.code, f.subject] - old.get((f.code, f.subject), 0.0)
               > 0.2 * planted]  # fmt: skip
    right = [(place, f) for place, f in enumerate(changed, 1) if f.code in codes]
    halves = [kind.codes, kind.second] if kind.second else [kind.codes]
    share = planted / len(halves)
    errors = []
    is_found = True
    for half in halves:
        gains = [grown[code] for code in half]
        if kind.is_split:
            gains = [together(after, half, step, steps) - together(before, half, old_step, steps)]
        error = min((gain / share - 1 for gain in gains), key=abs, default=None)
        appears = any(f.code in half and (f.code not in old_codes or (f.severity in GRADES and f.code not in weighty))
                      for f in after)  # fmt: skip
        is_found &= not half or appears or (error is not None and abs(error) <= GAIN_TOLERANCE)
        if error is not None and any(f.code in half for f in after):
            errors.append(error)
    other = [f for f in changed if f.severity in GRADES and f.code not in codes | kind.also
             and (f.code not in old_codes or grown[f.code] > max(0.2 * planted, NOTICED * step))]  # fmt: skip
    good = [f for f in changed if f.severity in GRADES and f.code in codes | kind.also]
    named = not kind.ranks or any(set(kind.ranks) <= set(f.ranks) for _, f in right)
    return RealScore(
        kind=kind.name, source=source, strength=strength, planted_ns=planted, step_ns=step, is_found=is_found,
        place=right[0][0] if right else None, gain_error=max(errors, key=abs) if errors else None, names_ranks=named,
        right=len(good), false=tuple(f"{f.code} {f.severity.value} {f.title.en}" for f in other), failed=failed,
        grown=tuple((code, gain / step) for code, gain in sorted(grown.items()) if abs(gain) > 0.002 * step),
    )  # fmt: skip


def traces_at_hand() -> Path | None:
    """Folder of the recorded jobs; they are read when asked for and never kept."""
    named = os.environ.get("ASCEND_PERF_TRACES")
    folder = Path(named) if named else Path(__file__).parents[2].parent / "shared" / "traces"
    return folder if folder.is_dir() else None


def _run(task: tuple[str, str, Strength, Path]) -> RealScore:
    name, source, strength, folder = task
    return run(next(kind for kind in REAL_KINDS if kind.name == name), source, strength, folder)


def evaluate_real(strengths: Sequence[Strength], kinds: Sequence[str] = (), workers: int = 1) -> list[RealScore]:
    """All kinds in all strengths.

    Raises:
        SystemExit: the recorded jobs are not at hand.
    """
    folder = traces_at_hand()
    if folder is None:
        raise SystemExit("recorded jobs are not at hand: set ASCEND_PERF_TRACES")
    tasks = [(kind.name, source, strength, folder) for kind in REAL_KINDS if not kinds or kind.name in kinds
             for source in kind.sources for strength in strengths]  # fmt: skip
    if workers <= 1:
        return [_run(task) for task in tasks]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_run, tasks, chunksize=len(STRENGTHS)))


__all__ = ["FIRST", "REAL_KINDS", "RealKind", "RealScore", "baseline", "evaluate_real", "judge", "plant", "run"]
