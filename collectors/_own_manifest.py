"""The manifest of a run directory that a user's own loop wrote."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from ascend_perf.collectors import _step_times, in_process
from ascend_perf.collectors.environment import backend_versions, environment, masked, versions
from ascend_perf.manifest import write_manifest
from ascend_perf.model.run import Fact, Manifest


def write(
    settings: in_process.Settings, session: in_process.Session, started: datetime, error: BaseException | None
) -> None:
    """Write manifest.json; a full disk does not end the loop's program."""
    folder = Path(settings.folder)
    notes = [what for what, _ in session.told.problems]
    if not session.written and not notes:
        notes.append(too_few_steps(session.steps, settings))
    traces = sorted(path.name for path in (folder / in_process.TRACE_FOLDER).glob("*"))
    is_stop = isinstance(error, KeyboardInterrupt)
    problem = ""
    if error is not None:
        problem = "stopped by Ctrl-C" if is_stop else masked(f"{type(error).__name__}: {error}")[:300]
    elif not traces:
        problem = "nothing was recorded"
    device, facts = device_facts()
    manifest = Manifest(
        workload=Path(sys.argv[0] or "python").name, preset=settings.level, device=device, device_facts=facts,
        data_origin="measured", created=started.isoformat(timespec="seconds"),
        config=config_of(settings), command=tuple(masked(word) for word in ("python", *sys.argv)),
        versions={**versions(), **backend_versions()}, environment=environment(),
        metrics=_step_times.metrics_of(session.times),
        files={"trace": tuple(f"{in_process.TRACE_FOLDER}/{name}" for name in traces)} if traces else {},
        notes=tuple(notes), status="complete" if not problem else "interrupted" if is_stop else "failed",
        problem=problem,
    )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_manifest(folder, manifest)
    except OSError as failed:
        print(f"ascend-perf: manifest.json could not be written: {failed.strerror}", file=sys.stderr)


def too_few_steps(steps: int, settings: in_process.Settings) -> str:
    """Why a program that ended in good order has no trace."""
    return (
        f"nothing was recorded: {steps} steps were seen, recording begins after {settings.skip} and needs "
        f"{settings.warmup + 1} more"
    )


def config_of(settings: in_process.Settings) -> dict[str, Fact]:
    """The settings that decide what is recorded, as a manifest has them."""
    plain: dict[str, Fact] = {
        "collector": settings.backend, "level": settings.level, "skip": settings.skip, "warmup": settings.warmup,
        "active": settings.active, "wait": settings.wait, "repeat": settings.repeat,
        "ranks": "all" if settings.ranks is None else ",".join(map(str, settings.ranks)),
        "step_of": settings.step_of,
    }  # fmt: skip
    return {**plain, **{f"option.{name}": _fact(value) for name, value in settings.options.items()}}


def device_facts() -> tuple[str, dict[str, Fact]]:
    """Kind and facts of what this process works on."""
    torch: Any = sys.modules.get("torch")
    from ascend_perf.collectors.devices import cpu

    for kind in ("npu", "cuda"):
        module = None if torch is None else getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            index = module.current_device()
            properties = module.get_device_properties(index)
            return kind, {
                "index": index, "name": getattr(properties, "name", None),
                "memory_bytes": getattr(properties, "total_memory", None),
            }  # fmt: skip
    seen = cpu()
    return "cpu", {"index": 0, "name": seen.name, "memory_bytes": seen.memory_bytes, "cores": seen.cores}


def _fact(value: object) -> Fact:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
