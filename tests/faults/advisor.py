"""The advisor of msprof-analyze on the same planted jobs, where that package is installed in an environment of its own.

`python -m tests.faults.evaluate --advisor PATH` runs the command PATH on one job of each kind and strength. Its issues
have no row ids: `ROWS` says which rows each of them may speak of, in its favour where in doubt.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.evaluate import ALL_KINDS, plant
from tests.faults.kinds import CONTROLS
from tests.faults.machine import simulate
from tests.faults.planting import Kind, Strength
from tests.faults.writer import write_job

MAX_SECONDS: Final = 300
NO_PROFILE: Final = "the job has no profile"

ROWS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("environment variable", ("H-04", "H-09", "H-02", "N-08", "K-01", "C-08")),
    ("slow rank", ("N-05", "L-02", "E-01")),
    ("slow link", ("N-06",)),
    ("cube operator perf", ("C-02", "C-03", "M-01")),
    ("fa operator perf", ("C-05",)),
    ("vector operator perf", ("C-06", "C-03", "M-01", "M-02", "M-04")),
    ("operator no bound", ("C-03", "M-02")),
    ("block dim", ("C-04",)),
    ("dynamic shape", ("C-08", "H-06")),
    ("aicpu", ("C-07",)),
    ("ai core frequency", ("P-01", "P-02")),
    ("operator dispatch", ("H-06",)),
    ("synchronizestream", ("H-04", "H-05")),
    ("syncbatchnorm", ("N-11",)),
    ("dataloader", ("D-01",)),
    ("gc analysis", ("H-07",)),
    ("which will lead to large amount of free time", ("K-04",)),
    ("memory operator", ("K-04",)),
    ("affinity api", ("C-12", "C-13", "C-14", "E-04")),
    ("affinity optimizer", ("C-14",)),
    ("fusible operator", ("H-03", "C-06", "C-12", "C-13", "H-01")),
    ("operator sequence analysis", ("H-03", "C-06", "C-13")),
    ("packet analysis", ("N-02",)),
    ("byte alignment", ("N-03",)),
    ("retransmission", ("N-04",)),
    ("bandwidth contention", ("N-07",)),
    ("fusion issues", ("C-12", "C-13")),
    ("free time", ("H-01",)),
)
"""Words of an issue, and the rows it may be about. Source: rule files of msprof-analyze 26.2.0."""
_LINE: Final = re.compile(r"^\| *\d+ *\|([^|]*)\|([^|]*)\|")
_NO_ISSUE: Final = re.compile(r"^(Kernel|Api) compare of|^Overall Summary", re.IGNORECASE)
"""Lists beside the issues: two ranks compared, the split of the step."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the advisor said of one job."""

    kind: str
    strength: str
    place: int | None
    """Place of the first issue that may be about the planted rows, from 1."""
    issues: tuple[str, ...]
    false: tuple[str, ...]
    """Issues about other rows only."""
    problem: str | None = None
    """Why there is no answer."""


def advise(command: Path, folder: Path) -> tuple[list[tuple[str, tuple[str, ...]]], str | None]:
    """The issues in its order, each with its rows; and why there are none."""
    ranks = sorted(folder.glob("*_ascend_pt"))
    if not ranks:
        return [], NO_PROFILE
    with tempfile.TemporaryDirectory() as out:
        try:
            said = subprocess.run(
                [str(command), "advisor", "all", "-d", str(ranks[0] if len(ranks) == 1 else folder), "-o", out, "-l",
                 "en", "--force"],
                capture_output=True, text=True, timeout=MAX_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [], f"took longer than {MAX_SECONDS} s"
    issues = []
    for line in said.stdout.splitlines():
        match = _LINE.match(line)
        if match is None or _NO_ISSUE.match(match[1].strip()):
            continue
        text = f"{match[1].strip()} {match[2].strip()}".casefold()
        rows = tuple(sorted({row for words, rows in ROWS if words in text for row in rows}))
        issues.append((match[1].strip(), rows))
    return issues, None if issues or said.returncode == 0 else f"ended with {said.returncode}"


def judge(command: Path, name: str, strength: Strength) -> Advice:
    """The advisor on one planted job."""
    kind = next(kind for kind in ALL_KINDS if kind.name == name)
    with tempfile.TemporaryDirectory() as place:
        truth = plant(kind, strength, 1, Path(place))
        issues, problem = advise(command, Path(place))
    places = [at for at, (_, rows) in enumerate(issues, 1) if {*rows} & {*truth.codes}]
    true = {*truth.codes, *truth.also}
    return Advice(
        kind=name, strength=strength, place=places[0] if places else None,
        issues=tuple(issue for issue, _ in issues),
        false=tuple(issue for issue, rows in issues if not {*rows} & true), problem=problem,
    )  # fmt: skip


def judge_control(command: Path, name: str) -> Advice:
    """The advisor on a healthy job: all that it says is false."""
    with tempfile.TemporaryDirectory() as place:
        job = CONTROLS[name](1)
        write_job(job, simulate(job), Path(place))
        issues, problem = advise(command, Path(place))
    said = tuple(issue for issue, _ in issues)
    return Advice(kind=name, strength="healthy", place=None, issues=said, false=said, problem=problem)


def is_asked(kind: Kind) -> bool:
    """Whether the advisor reads what the kind writes: profiles, no logs of services or of losses."""
    return not {code[0] for code in kind.codes} <= {"Q", "V"}


def advices(
    command: Path, strengths: Sequence[Strength], kinds: Sequence[str], workers: int
) -> tuple[list[Advice], list[Advice]]:
    """What it says of all planted jobs, and of the healthy ones."""
    tasks = [
        (kind.name, strength)
        for kind in ALL_KINDS
        for strength in strengths
        if is_asked(kind) and (not kinds or kind.name in kinds)
    ]
    with ThreadPoolExecutor(workers) as pool:
        planted = pool.map(lambda task: judge(command, *task), tasks)
        healthy = pool.map(lambda name: judge_control(command, name), [n for n in CONTROLS if not kinds or n in kinds])
        return list(planted), [advice for advice in healthy if advice.problem != NO_PROFILE]
