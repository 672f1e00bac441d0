"""Which devices torch can use here, and the choice among them.

Everything that imports torch runs in the process of the workload or in a child: a broken accelerator back end can make
`import torch` itself fail, and a command that only lists devices must survive that.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

import ascend_perf
from ascend_perf.errors import MachineError, first_line

DeviceType = Literal["npu", "cuda", "cpu"]
ORDER: Final[tuple[DeviceType, ...]] = ("npu", "cuda", "cpu")
"""The order in which `auto` tries."""

AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Set to 0, torch starts without back ends of other packages. Source: torch 2.5, torch/__init__.py."""

INSTALL_TORCH: Final = 'pip install "ascend-perf[torch]"'
PROBE_TIMEOUT_S: Final = 180
"""An `import torch` that takes longer hangs, as it does on a driver that does not answer. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class SeenDevice:
    """One device as torch (or the operating system) describes it. Unknown is None."""

    type: DeviceType
    index: int
    name: str | None
    memory_bytes: int | None = None
    cores: int | None = None
    """Cube cores, multiprocessors or CPU cores that this process may use."""

    @property
    def torch_name(self) -> str:
        """What torch calls it: cpu, cuda:0, npu:0."""
        return "cpu" if self.type == "cpu" else f"{self.type}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What was seen, and why something was not."""

    devices: tuple[SeenDevice, ...]
    torch_version: str | None
    torch_npu_version: str | None
    problems: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that a process must set to use these devices."""


def choose(requested: str, inventory: Inventory) -> SeenDevice:
    """The device asked for; `auto` takes the first of npu, cuda, cpu that is there.

    Raises:
        MachineError: it is not there.
    """
    wanted = ORDER if requested == "auto" else (requested,)
    for kind in wanted:
        for device in inventory.devices:
            if device.type == kind:
                return device
    seen = ", ".join(dict.fromkeys(device.type for device in inventory.devices)) or "none"
    reasons = f" ({'; '.join(inventory.problems)})" if inventory.problems else ""
    hints = {
        "npu": "install the driver, CANN and torch_npu, and source set_env.sh; or use --device auto",
        "cuda": "install a CUDA build of torch and check nvidia-smi; or use --device auto",
    }
    raise MachineError(
        f"no {requested} device here, torch sees: {seen}{reasons}", hint=hints.get(requested, "use --device auto")
    )


def cpu() -> SeenDevice:
    """The host processor, without torch."""
    return SeenDevice(type="cpu", index=0, name=_cpu_name(), memory_bytes=_host_memory_bytes(), cores=usable_cores())


def usable_cores() -> int | None:
    """Logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def installed_version(package: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def seen_here() -> Inventory:
    """Devices of this process; imports torch.

    Raises:
        MachineError: torch is absent or cannot be imported.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise MachineError(f"torch cannot be imported: {error}", hint=INSTALL_TORCH) from error
        raise MachineError("torch is not installed", hint=INSTALL_TORCH) from error
    except (ImportError, RuntimeError, OSError) as error:
        raise MachineError(
            f"torch cannot be imported: {first_line(error)}",
            hint="source set_env.sh of the CANN toolkit, or use --device cpu",
        ) from error
    devices: list[SeenDevice] = []
    problems: list[str] = []
    for kind in ("npu", "cuda"):
        backend = getattr(torch, kind, None)
        if backend is None:
            continue
        try:
            count = backend.device_count() if backend.is_available() else 0
            devices += [_accelerator(backend, kind, index) for index in range(count)]
        except (RuntimeError, OSError) as error:
            problems.append(f"{kind}: {first_line(error)}")
            continue
        if kind == "npu" and not count:
            problems.append("npu: torch_npu is there but sees no device: check the driver and /dev/davinci*")
    return Inventory(
        devices=(*devices, cpu()),
        torch_version=str(torch.__version__),
        torch_npu_version=installed_version("torch_npu"),
        problems=tuple(problems),
    )


def probe() -> Inventory:
    """Devices that a child process sees; works without torch and with a back end that cannot be loaded.

    torch_npu without a working CANN makes `import torch` fail. Then the child is asked again without automatic back
    ends, and the failure is among the problems.
    """
    torch_version, npu_version = installed_version("torch"), installed_version("torch_npu")
    if torch_version is None:
        return Inventory(
            devices=(cpu(),),
            torch_version=None,
            torch_npu_version=npu_version,
            problems=(f"torch is not installed: {INSTALL_TORCH}",),
        )
    first = _ask_child({})
    if isinstance(first, Inventory):
        return first
    if npu_version is not None:
        second = _ask_child({AUTOLOAD: "0"})
        if isinstance(second, Inventory):
            return Inventory(
                devices=second.devices,
                torch_version=second.torch_version,
                torch_npu_version=npu_version,
                problems=(f"npu: {first}", *second.problems),
                environment={AUTOLOAD: "0"},
            )
    return Inventory(devices=(cpu(),), torch_version=torch_version, torch_npu_version=npu_version, problems=(first,))


def safe_path() -> dict[str, str]:
    """Variable for processes of ours: a http.py or profile.py in the user's folder is not taken for Python's own.

    Python 3.10 does not know it; `ascend_perf/__init__.py` obeys it there. A checkout of ours that is not installed is
    found by its folder, which then must stay in.
    """
    is_checkout = Path(ascend_perf.__file__).parents[1] == Path.cwd()
    return {} if is_checkout else {"PYTHONSAFEPATH": "1"}


def _ask_child(environment: Mapping[str, str]) -> Inventory | str:
    command = [sys.executable, "-m", "ascend_perf.collectors.devices"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **safe_path(), **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch did not answer within {PROBE_TIMEOUT_S} s"
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return lines[-1] if lines else f"the process that imports torch ended with code {done.returncode}"
    return from_json(lines[-1])


def to_json(inventory: Inventory) -> str:
    """One line of JSON."""
    return json.dumps(asdict(inventory))


def from_json(line: str) -> Inventory:
    """The inventory that `to_json` wrote."""
    body = json.loads(line)
    devices = tuple(SeenDevice(**device) for device in body.pop("devices"))
    problems = tuple(body.pop("problems"))
    return Inventory(devices=devices, problems=problems, **body)


def _accelerator(backend: object, kind: Literal["npu", "cuda"], index: int) -> SeenDevice:
    properties = backend.get_device_properties(index)  # type: ignore[attr-defined]  # module of torch
    names = ("cube_core_num", "multi_processor_count")
    cores = next((getattr(properties, name) for name in names if getattr(properties, name, None)), None)
    return SeenDevice(
        type=kind,
        index=index,
        name=getattr(properties, "name", None),
        memory_bytes=getattr(properties, "total_memory", None),
        cores=cores,
    )


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip() or None
    except OSError:
        pass  # not Linux
    return platform.processor() or None


def _host_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None


def main(arguments: Sequence[str] = ()) -> int:
    """Print the inventory of this process as the last line; the reason when there is none."""
    try:
        print(to_json(seen_here()))
    except MachineError as error:
        print(error.what)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
