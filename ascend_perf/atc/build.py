"""Run an ATC command and judge it: by its last line, its exit code and the .om that is there afterwards.

The .om is called as `--output` says, or has the system and the architecture behind that: `m.om`, `m_linux_aarch64.om`.

Source: format reference for collectors, section 6.1. Tested against a stand-in; not yet run with CANN.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend_perf.model.finding import Words

TIMEOUT_S: Final = 3600
"""A build that takes longer hangs. Status: assumed."""
MAX_TEXT: Final = 1 << 20
SUCCESS: Final = "ATC run success"
FAILURE: Final = "ATC run failed"

_ERROR: Final = re.compile(r"^(?:\[ERROR\]\s*)?((?:E\d{5}|EZ\d{4}|W\d{5}):?.*|.*(?:\[ERROR\]|rror:).*)$", re.MULTILINE)
_CURES: Final = (
    (
        r"soc_version|ops package|\bopp\b|no supported Ops kernel",
        Words(
            "from CANN 8.5 on the ops package of the chip that --soc names (Ascend-cann-*-ops) must lie beside the "
            "toolkit",
            "CANN 8.5 起需在 toolkit 之外安装 --soc 所指芯片的 ops 包（Ascend-cann-*-ops）",
        ),
    ),
    (
        r"error while loading shared libraries|lib\w+\.so",
        Words("source <CANN>/set_env.sh", "source <CANN>/set_env.sh"),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Built:
    """What became of a build."""

    om: Path | None
    problem: str = ""
    """Why there is none that counts; empty when there is."""
    cure: Words | None = None

    @property
    def is_done(self) -> bool:
        return self.om is not None and not self.problem


def build(words: Sequence[str], folder: Path, variables: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> Built:
    """Run ATC in a folder.

    Args:
        words: the command, its first word the tool; it holds `--output=NAME`.
        folder: where it runs, and where the .om comes to lie.
        variables: all of its variables.
        timeout_s: seconds after which it is ended.
    """
    name = next((word.partition("=")[2] for word in words if word.startswith("--output=")), "")
    before = {path: _stamp(path) for path in models_of(folder, name)}
    try:
        done = subprocess.run(
            list(words), cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Built(om=None, problem=f"atc did not end within {timeout_s:g} s")
    except OSError as error:
        return Built(om=None, problem=f"atc cannot be started: {error.strerror}")
    text = done.stdout.decode("utf-8", "replace")[-MAX_TEXT:]
    made = [path for path in models_of(folder, name) if before.get(path) != _stamp(path)]
    om = max(made, key=_stamp, default=None)
    if done.returncode or FAILURE in text or SUCCESS not in text:
        said = reason(text) or f"it ended with code {done.returncode}"
        return Built(om=om, problem=f"atc failed: {said}", cure=cure(text))
    if om is None:
        return Built(om=None, problem=f"atc tells of success, but there is no new {name}.om")
    return Built(om=om)


def models_of(folder: Path, name: str) -> list[Path]:
    """The .om files that a build with `--output=NAME` leaves, of both spellings."""
    stem = re.escape(Path(name).name)
    place = (folder / name).parent
    pattern = re.compile(rf"{stem}(?:_[a-z0-9]+_[a-z0-9_]+)?\.om")
    try:
        return sorted(path for path in place.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def reason(text: str) -> str:
    """The first error that ATC printed; its last line where there is none."""
    if found := _ERROR.search(text):
        return found[1].strip()[:300]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def cure(text: str) -> Words | None:
    """The next step for what ATC printed; None where none is known."""
    return next((words for pattern, words in _CURES if re.search(pattern, text)), None)


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size
