"""Which processes still run, by /proc: a zombie that nobody has taken note of does not."""

from __future__ import annotations

from pathlib import Path


def running_in_group(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member = place.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if int(member) == group and state not in "ZX":
            found.append(int(place.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
