"""What is installed of Ascend: CANN, driver, firmware and device nodes, read from their files.

Source: collector reference, sections 5.1 and 5.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend_perf.collectors._machine import Machine

ROOTS: Final = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
_HOME_ROOTS: Final = ("Ascend/cann", "Ascend/ascend-toolkit/latest")
_FOLDERS: Final = ("aarch64-linux", "x86_64-linux", "arm64-linux")
_COMPONENTS: Final = ("runtime", "toolkit", "compiler", "hccl", "opp")
NODES: Final = ("davinci_manager", "devmm_svm", "hisi_hdc")
NPU_SMI: Final = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
MOUNTS: Final = (
    "/dev/davinci*, /dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc, /usr/local/dcmi, /usr/local/bin/npu-smi, "
    "/usr/local/Ascend/driver/lib64, /usr/local/Ascend/driver/version.info, /etc/ascend_install.info"
)


@dataclass(frozen=True, kw_only=True)
class Cann:
    """One installation of the toolkit."""

    root: Path
    version: str | None
    inner: str | None = None
    """Branch of the sources, such as V100R001C25SPC001B212."""
    compatible: tuple[str, ...] = ()
    """Branches of drivers that it works with, as it says itself."""
    architecture: str | None = None
    has_ops: bool = False
    is_sourced: bool = False
    """Whether set_env.sh of it was sourced in this shell."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """Driver or firmware."""

    version: str | None
    inner: str | None = None
    firmware_range: tuple[str, str] | None = None
    """Of a driver: the firmware that it works with, as it says itself."""


def cann_roots(machine: Machine) -> list[Path]:
    """Places of CANN in the order in which they are searched, whether something is there or not."""
    named = (machine.named(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
    places = [place for place in named if place is not None]
    places += [machine.path(root) for root in ROOTS]
    places += [machine.home() / root for root in _HOME_ROOTS]
    return list(dict.fromkeys(places))


def find_cann(machine: Machine) -> Cann | None:
    """The first installation of CANN; None when there is none."""
    for root in cann_roots(machine):
        cann = _cann_at(machine, root)
        if cann is not None:
            return cann
    return None


def _cann_at(machine: Machine, root: Path) -> Cann | None:
    if not root.is_dir():
        return None
    sourced = machine.named("ASCEND_HOME_PATH") == root
    for folder in _FOLDERS:
        for name in ("toolkit", "ops", "nnae"):
            facts = facts_of(machine.text(root / folder / f"ascend_{name}_install.info"))
            if "version" in facts:
                return Cann(
                    root=root, version=facts["version"], inner=facts.get("innerversion"),
                    compatible=_in_brackets(facts.get("compatible_version", "")), architecture=facts.get("arch"),
                    has_ops=(root / folder / "ascend_ops_install.info").is_file(), is_sourced=sourced,
                )  # fmt: skip
    version = facts_of(machine.text(root / "version.cfg")).get("version")
    for component in _COMPONENTS:
        # The component has a number of its own (7.7.0.1.238); the folder is named after CANN.
        version = version or facts_of(machine.text(root / component / "version.info")).get("version_dir")
    is_there = version is not None or (root / "set_env.sh").is_file() or (root / "lib64").is_dir()
    return Cann(root=root, version=version, is_sourced=sourced) if is_there else None


def find_driver(machine: Machine) -> Package | None:
    """The driver by its own file; None when there is none."""
    facts = facts_of(machine.text(machine.path("/usr/local/Ascend/driver/version.info")))
    if not facts:
        return None
    limits = re.fullmatch(r"\[([\d.]+)\s*,\s*([\d.]+)\]", facts.get("compatible_version_fw", ""))
    return Package(
        version=facts.get("version"), inner=facts.get("innerversion"),
        firmware_range=(limits[1], limits[2]) if limits else None,
    )  # fmt: skip


def find_firmware(machine: Machine) -> Package | None:
    """The firmware by its own file; None when there is none."""
    facts = facts_of(machine.text(machine.path("/usr/local/Ascend/firmware/version.info")))
    return Package(version=facts.get("version"), inner=facts.get("innerversion")) if facts else None


def device_nodes(machine: Machine) -> list[str]:
    """Names of /dev/davinci<number>."""
    return [path.name for path in machine.found("/dev", "davinci*") if re.fullmatch(r"davinci\d+", path.name)]


def facts_of(text: str | None) -> dict[str, str]:
    """Lines `key=value` of an install or version file, keys in lower case; the first of a key counts."""
    facts: dict[str, str] = {}
    for line in (text or "").splitlines()[:500]:
        key, equals, value = line.partition("=")
        if equals and value.strip():
            facts.setdefault(key.strip().lower(), value.strip()[:300])
    return facts


def branch_fits(inner: str, compatible: tuple[str, ...]) -> bool | None:
    """Whether a branch is among those that another package names; None when that names none."""
    if not compatible:
        return None
    branch = re.match(r"V\d+R\d+C\d+", inner)
    return bool(branch) and any(name == branch[0] or inner.startswith(name) for name in compatible if branch)


def _in_brackets(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in re.findall(r"\[([^\]]{1,60})\]", text))
