"""What is checked and set before the processes of a workload start: packages, back ends, environment variables."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ascend_perf.bench.job import Ranks
from ascend_perf.collectors import devices
from ascend_perf.collectors.environment import ALLOWED, ALLOWED_PREFIXES, VIRTUAL_NPU, masked
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.workloads import _spec
from ascend_perf.workloads._launch_settings import refuse_wrong
from ascend_perf.workloads._model_config import read_config


def model_settings(path: Path, workload: _spec.Workload) -> tuple[dict[str, _spec.Value], tuple[Words, ...]]:
    """What a model's config.json sets of a workload, and what it asks for that the workload leaves out.

    Raises:
        InputError: as `read_config`.
        UsageError: the workload is for models of another kind.
    """
    model, known = read_config(path), workload.fields()
    values = model.settings_for(known)
    if missing := values.keys() - known.keys():
        raise UsageError(
            f"--model-config describes a {model.model_type}, {workload.name} has no {min(missing)}",
            hint="choose a workload of that kind of model",
        )
    return values, model.notes


def check_packages(workload: _spec.Workload) -> None:
    absent = [name for name in ("torch", *workload.needs) if importlib.util.find_spec(name) is None]
    if absent:
        names = ", ".join("pillow" if name == "PIL" else name for name in absent)
        is_serving = any(name in ("aiohttp", "fastapi", "uvicorn") for name in absent)
        hint = 'pip install "ascend-perf[torch,serve]"' if is_serving else devices.INSTALL_TORCH
        raise MachineError(f"{workload.name} needs {names}, not installed here", hint=hint)


def environment_of(
    requested: str, ranks: Ranks, texts: Sequence[str], presets: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, str], tuple[Words, ...]]:
    """Variables for the processes (ours, those of the preset for this kind of device, those of the user), and doubts
    about them.

    Args:
        requested: npu, virtual-npu, cuda, cpu or auto.
        ranks: processes that share the cores of this machine.
        texts: `KEY=VALUE` of the user.
        presets: variables of the preset by kind of device.

    Raises:
        UsageError: a variable of the user is not KEY=VALUE, or one is known to be wrong.
        MachineError: as `_back_end`.
    """
    given = dict(_assigned(text) for text in texts)
    environment, kind = _back_end(requested, needs_kind=bool(presets or given))
    chosen = {**(presets.get(kind, {}) if kind is not None else {}), **given}
    doubts = () if kind is None else _checked({**environment, **chosen}, given, kind)
    doubts += _replaced(environment, {name: value for name, value in chosen.items() if name not in given})
    environment |= devices.safe_path()
    if ranks.world_size > 1:
        threads = max(1, (devices.usable_cores() or 1) // ranks.per_node)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        if ranks.nodes == 1 and Path("/sys/class/net/lo").exists():
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works without a name for this host
    return {**environment, **chosen}, doubts


def _assigned(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--env {text!r} is not KEY=VALUE", hint="example: --env TASK_QUEUE_ENABLE=2")
    return name.strip(), value


def _replaced(before: Mapping[str, str], preset: Mapping[str, str]) -> tuple[Words, ...]:
    """Variables of the shell that those of the preset replace by another value."""
    return tuple(
        Words(
            f"{name}={masked(before[name])} of the shell is replaced by {name}={value} of the preset; to keep it: "
            f"--env {name}={masked(before[name])}",
            f"预设的 {name}={value} 替换了 shell 中的 {name}={masked(before[name])}；"
            f"如需保留：--env {name}={masked(before[name])}",
        )
        for name, value in preset.items()
        if before.get(name, value) != value
    )


def _checked(variables: Mapping[str, str], given: Mapping[str, str], kind: str) -> tuple[Words, ...]:
    """Doubts about variables for a kind of device; those that the user gave are wrong on every kind when on one.

    Raises:
        UsageError: a variable is known not to exist, or not to take its value.
    """
    for other in devices.ORDER:
        if other != kind:
            refuse_wrong(given, other)
    told = {name: value for name, value in variables.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)}
    return tuple(problem.words for problem in refuse_wrong({**told, **given}, kind))


def refuse_virtual(variables: Mapping[str, str]) -> None:
    """Refuse to measure on virtual devices that the shell has set up by itself: nobody would see that they are.

    Raises:
        UsageError: its variable is set.
    """
    if variables.get(VIRTUAL_NPU):
        raise UsageError(
            f"{VIRTUAL_NPU} is set: NPUs are virtual in this shell, and a run would pass for a measured one",
            hint="unset it; --device virtual-npu sets all that it needs itself",
        )


def _back_end(requested: str, *, needs_kind: bool) -> tuple[dict[str, str], str | None]:
    """Our variables, without automatic back ends when they are not wanted or cannot be loaded; and the kind of device
    where it is known.

    With torch_npu installed but CANN absent, `import torch` fails. A run on another device must not die of that.

    Raises:
        UsageError: the shell has set up virtual devices by itself.
        MachineError: two profilers would share the device, or an NPU was asked for and its back end does not load.
    """
    environment = dict(os.environ)
    if requested == "virtual-npu":  # its torch_npu is not the one that is installed here, if any is
        return environment, "npu"
    refuse_virtual(environment)
    kind = None if requested == "auto" else requested
    if devices.installed_version("torch_npu") is None:
        if kind is None and needs_kind:
            kind = devices.choose("auto", devices.probe()).type
        return environment, kind
    for name in ("PROFILER_SAMPLECONFIG", "PROFILING_MODE"):
        if name in environment and requested in ("auto", "npu"):
            raise MachineError(
                f"{name} is set: this runs under msprof, which shares the device's single profiling channel with us",
                hint="start `ascend-perf run` without msprof",
            )
    if requested in ("cpu", "cuda"):
        return {**environment, devices.AUTOLOAD: "0"}, kind
    inventory = devices.probe()
    kind = devices.choose(requested, inventory).type
    return {**environment, **inventory.environment}, kind
