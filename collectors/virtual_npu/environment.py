"""From settings to a child process that sees virtual NPUs: what is to be set up once, and its variables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ascend_perf.collectors.environment import VIRTUAL_NPU
from ascend_perf.collectors.virtual_npu.build import libraries_for
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from ascend_perf.collectors.virtual_npu.wheel import interpreter_of, site_for
from ascend_perf.errors import UsageError

Say = Callable[[str], None]
"""Takes one line about what the set-up does; called only when it does something that takes time."""

CONFIG_FILE: Final = "virtual_npu.tsv"
"""Name of the file in the record folder that tells the libraries what to be."""
MEET_FILE: Final = "meet"
"""Name of the file beside it by which the processes of a job meet; with holes, as large as it could ever become."""

VARIABLE: Final = VIRTUAL_NPU
"""Environment variable that holds the path of the configuration file."""

WHEEL_VARIABLE: Final = "ASCEND_PERF_TORCH_NPU_WHEEL"
"""Environment variable that names a torch-npu wheel, as --wheel does."""

@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is ready for children."""

    site: Path
    """Folder that holds the torch_npu package; it goes on PYTHONPATH of the child."""
    libraries: Path
    """Folder of the stand-in CANN libraries; it goes on LD_LIBRARY_PATH of the child."""
    torch_npu_version: str
    torch_version: str
    python: Path
    home: Path
    """Stands in for an installation of CANN: ASCEND_HOME_PATH of the child."""
    library_hash: str
    seconds: Mapping[str, float]
    """How long each part took: look, fetch, unpack, build (absent when there was nothing to do)."""


def cache_folder(variables: Mapping[str, str] | None = None) -> Path:
    """Where wheels and libraries are kept: under ASCEND_PERF_CACHE, else XDG_CACHE_HOME, else ~/.cache."""
    given = os.environ if variables is None else variables
    if given.get("ASCEND_PERF_CACHE"):
        root = Path(given["ASCEND_PERF_CACHE"])
    elif given.get("XDG_CACHE_HOME"):
        root = Path(given["XDG_CACHE_HOME"], "ascend-perf")
    else:
        root = Path.home() / ".cache" / "ascend-perf"
    return root / "virtual-npu"


def prepare(settings: VirtualNpu, say: Say = lambda _: None, *, python: Path | str = sys.executable) -> Prepared:
    """Find or fetch the torch-npu wheel for the torch of `python`, find or build the libraries for it.

    Args:
        say: gets a line before and after each part that takes time; nothing when all is in the cache.
        python: interpreter of the child.

    Raises:
        MachineError: something is missing (torch, a wheel, the network, gcc, space); the hint names the cure.
    """
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    interpreter = interpreter_of(Path(python))
    seconds["look"] = time.perf_counter() - began
    cache = cache_folder()
    given = settings.wheel or (Path(os.environ[WHEEL_VARIABLE]) if os.environ.get(WHEEL_VARIABLE) else None)
    site = site_for(interpreter, cache, given, say, seconds)
    built = libraries_for(site, interpreter, cache, say, seconds)
    return Prepared(
        site=site.folder, libraries=built.folder, torch_npu_version=site.version, torch_version=interpreter.torch,
        python=interpreter.executable, home=built.home, library_hash=built.hash, seconds=seconds,
    )  # fmt: skip


def variables(
    settings: VirtualNpu,
    prepared: Prepared,
    record_folder: Path,
    *,
    processes: int | Literal["env"] | None = None,
    host_launch_ns: int | None = None,
    cost_lines: Iterable[str] = (),
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write the configuration file into `record_folder` and return what to set in the child's environment.

    Args:
        record_folder: must exist; every process of the job writes its record there.
        processes: how many processes of the job really run; "env": as WORLD_SIZE of the child says; None: one stands
            for all ranks.
        host_launch_ns: modelled clock: host time of a launch; None: that of the cost model.
        cost_lines: lines of the cost model, without their `cost` field.
        base: environment of the child so far (default: ours); paths are added to what it holds.
    """
    base = os.environ if base is None else base
    config = record_folder / CONFIG_FILE
    config.write_text(
        config_text(
            settings, record_folder, processes=processes, host_launch_ns=host_launch_ns, cost_lines=cost_lines
        ),
        "utf-8",
    )
    return {
        VARIABLE: str(config.absolute()),
        "PYTHONPATH": _joined(prepared.site, base.get("PYTHONPATH")),
        "LD_LIBRARY_PATH": _joined(prepared.libraries, base.get("LD_LIBRARY_PATH")),
        "ASCEND_HOME_PATH": str(prepared.home),
        "ASCEND_OPP_PATH": str(prepared.home / "opp"),
        # torch imports torch_npu by itself, as it does where the package is installed.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": base.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1"),
    }


def config_text(
    settings: VirtualNpu,
    record_folder: Path,
    *,
    processes: int | Literal["env"] | None = None,
    host_launch_ns: int | None = None,
    cost_lines: Iterable[str] = (),
) -> str:
    """The configuration file: a key and its values per line, tabs between them."""
    folder = str(record_folder.absolute())
    if set(folder) & set("\t\n\r"):
        raise UsageError("the folder of the record has a tab or a line break in its name")
    link, node_link = settings.links()
    rows: list[tuple[object, ...]] = [
        ("version", 1),
        ("soc", settings.soc),
        ("device_count", settings.device_count),
        ("world_size", settings.world_size),
        ("ranks_per_node", settings.ranks_per_node),
        ("hbm_bytes", settings.memory_bytes),
        *((("link_bytes_per_s", f"{link:.0f}"),) if link else ()),
        *((("node_link_bytes_per_s", f"{node_link:.0f}"),) if node_link else ()),
        ("clock", settings.clock),
        ("record", folder),
        ("processes", "self" if processes is None else processes),
        ("meet", str(Path(folder, MEET_FILE))),
        *((("host_launch_ns", host_launch_ns),) if host_launch_ns is not None else ()),
        *_parts(settings),
        *(("cost", line) for line in cost_lines),
        *(("fault", *line) for line in settings.fault_lines()),
    ]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _parts(settings: VirtualNpu) -> list[tuple[str, int]]:
    """What the device table knows of the chip's inside."""
    spec = settings.spec
    if spec is None:
        return []
    cache = spec.l2_bytes.value
    found = {
        "cube_cores": spec.cube_cores, "vector_cores": spec.vector_cores,
        "l2_bytes": None if cache is None else int(cache),
    }  # fmt: skip
    return [(key, value) for key, value in found.items() if value]


def _joined(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)
