"""Damages profiles at random and analyses them: `python -m tests.fuzz.run --minutes 60`.

A case is a target and a number; the same case does the same damage each time: `--target kineto --case 17` repeats one.
What must hold: only `InputError` and `UsageError` come out, no analyzer fails, the report is written, and it ends in
time and memory.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError, UsageError
from ascend_perf.pipeline import Analysis, analyze, analyze_paths, load, write
from tests.fuzz.mutate import damage
from tests.fuzz.seeds import RULES, SEEDS

MAX_SECONDS: Final = 60
MAX_BYTES: Final = 6 << 30
_HTML_EVERY: Final = 10


class TooLong(Exception):
    """A case did not end in `MAX_SECONDS`."""


def prepare(target: str, number: int, folder: Path) -> list[str]:
    """The damaged profile of a case; what was done to it."""
    shutil.copytree(_seed(target), folder, dirs_exist_ok=True)
    return damage(folder, random.Random(f"{target} {number}"))


@cache
def _seed(target: str) -> Path:
    """The undamaged profile, written once in a process."""
    place = tempfile.TemporaryDirectory()
    _PLACES.append(place)
    SEEDS[target](Path(place.name))
    return Path(place.name)


_PLACES: Final[list[tempfile.TemporaryDirectory[str]]] = []
"""They are removed at the end of the process."""


def fault(target: str, number: int, folder: Path) -> str | None:
    """What is wrong with how a case ends, None when all is well."""
    prepare(target, number, folder)
    out = folder.parent / f"{folder.name}-report"
    try:
        rules = folder / RULES if (folder / RULES).exists() else None
        if number % 2:  # as the command does, rank by rank
            analysis = analyze_paths([folder], rules=rules, jobs=1)
        else:
            analysis = analyze(load(folder, jobs=1), rules=rules)
        failed = [f"{o.analyzer}: {o.reason.en if o.reason else ''}" for o in analysis.failed]
        if failed:
            return "failed " + "; ".join(sorted(set(failed)))
        if said := nonsense(analysis):
            return "says " + "; ".join(sorted(said)[:5])
        formats = ("json", "md", "html") if number % _HTML_EVERY == 0 else ("json",)
        write(analysis, {name: out / f"report.{name}" for name in formats})
    except (InputError, UsageError):
        return None
    except TooLong:
        return f"takes longer than {MAX_SECONDS} s"
    except Exception as error:  # every other one is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    return None


def nonsense(analysis: Analysis) -> set[str]:
    """Numbers that no report may show: not finite, unknown shown as a number, below zero where nothing can be."""
    found = {f"metric {m.name}: {_odd(m.value, m.unit)}" for m in analysis.metrics if _odd(m.value, m.unit)}
    for finding in analysis.findings:
        for item in finding.evidence:
            if not isinstance(item.value, str) and (odd := _odd(item.value, item.unit)):
                found.add(f"{finding.code} {item.name.en}: {odd}")
    for outcome in analysis.outcomes:
        for table in outcome.tables:
            for column, cells in zip(table.columns, table.data, strict=True):
                unit = "none" if column.name in _CHANGES else column.unit
                odds = {_odd(cell, unit) for cell in cells if not isinstance(cell, str)} - {""}
                found |= {f"{outcome.analyzer}, {table.name}.{column.name}: {odd}" for odd in odds}
    return found


_CHANGES: Final = ("grown_bytes",)
"""Columns of differences, which fall too."""
_NEVER_BELOW_ZERO: Final = ("bytes", "count", "hertz", "bytes_per_s", "flops", "flops_per_s", "items_per_s")


def _odd(value: float | int | None, unit: str) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if not math.isfinite(value):
        return "not finite"
    if isinstance(value, int) and abs(value) >= 1 << 62:
        return "beyond 62 bits"
    if value < 0 and unit in _NEVER_BELOW_ZERO:
        return f"{unit} below zero"
    return ""


def _alarm(*_: object) -> None:
    raise TooLong


def _work(target: str, first: int, stride: int, seconds: float, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    signal.signal(signal.SIGALRM, _alarm)
    # What numpy warns of is a number gone wrong that nobody looked at.
    warnings.simplefilter("error", RuntimeWarning)
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end:
        pipe.send(("at", number, ""))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "in"
            folder.mkdir()
            signal.alarm(MAX_SECONDS)
            try:
                wrong = fault(target, number, folder)
            except TooLong:
                wrong = f"takes longer than {MAX_SECONDS} s"
            signal.alarm(0)
        pipe.send(("wrong" if wrong else "well", number, wrong or ""))
        number += stride
    pipe.send(("end", number, ""))


def hunt(target: str, first: int, seconds: float) -> tuple[int, Counter[str], dict[str, int]]:
    """Cases of a target for some time, in a process that may die: how many, and what was wrong with an example."""
    count, wrongs, example = 0, Counter[str](), dict[str, int]()
    end = time.monotonic() + seconds
    number = first
    while (left := end - time.monotonic()) > 0:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_work, args=(target, number, 1, left, theirs))
        process.start()
        theirs.close()
        try:
            while True:
                kind, number, what = ours.recv()
                if kind in ("well", "wrong"):
                    count += 1
                if kind == "wrong":
                    wrongs[what] += 1
                    example.setdefault(what, number)
                if kind == "end":
                    break
        except EOFError:
            process.join()
            what = f"the process died ({process.exitcode})"
            wrongs[what] += 1
            example.setdefault(what, number)
        process.join()
        number += 1
    return count, wrongs, example


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="time for all targets together")
    parser.add_argument("--target", choices=sorted(SEEDS), action="append", help="only these")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="one case, with what was done")
    args = parser.parse_args()
    targets = args.target or sorted(SEEDS)
    if args.case is not None:
        with tempfile.TemporaryDirectory() as place:
            for name in ("in", "again"):
                (Path(place) / name).mkdir()
            for line in prepare(targets[0], args.case, Path(place) / "in"):
                print(line)
            warnings.simplefilter("error", RuntimeWarning)
            wrong = fault(targets[0], args.case, Path(place) / "again")
            print(wrong or "ends well")
        return int(wrong is not None)
    bad = 0
    for target in targets:
        count, wrongs, example = hunt(target, args.first, args.minutes * 60 / len(targets))
        bad += sum(wrongs.values())
        print(f"{target:14} {count:6} cases, {sum(wrongs.values())} wrong", flush=True)
        for what, times in wrongs.most_common():
            print(f"    {times:4}x e.g. case {example[what]}: {what[:300]}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
