"""Trees of files and stand-in tools that look like an installation of Ascend (reference, sections 3 and 5)."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.devices import Inventory, SeenDevice
from tests.collectors import _npu_smi_texts as texts
from tests.collectors._npu_smi_texts import FakeChip

NPU_SMI = """
import json, sys, time
answers = json.load(open({answers!r}))
words = sys.argv[1:]
key = " ".join(words)
if words[:2] == ["info", "watch"]:
    while True:
        sys.stdout.write(answers["watch head"] + answers["watch"]); sys.stdout.flush(); time.sleep(0.05)
if key in answers:
    sys.stdout.write(answers[key])
elif words[:2] == ["info", "-t"] and len(words) > 2:
    if "-i" not in words:
        sys.stdout.write("This command must input card id.\\n"); sys.exit(-9001 % 256)
    if words[words.index("-i") + 1] not in answers["ids"]:
        sys.stdout.write("Error parameter of -i\\n"); sys.exit(-9001 % 256)
    sys.stdout.write("This device does not support querying " + words[2] + ".\\n")
else:
    sys.stdout.write("Command or option is not found.\\n"); sys.exit(-9001 % 256)
"""
"""Answers from a table; a type that the product does not know is a sentence and exit code 0."""

HCCN = """
import sys
words = sys.argv[1:]
down = {down!r}
if words[2:] == ["-link", "-g"]:
    print("link status: " + ("DOWN" if int(words[1]) in down else "UP"))
else:
    print("Command or option is not found."); sys.exit(1)
"""

MSPROF = """
import sys
print("Usage:\\n      ./msprof [--options]\\nOptions:\\n  --output    <Optional> Specify the directory\\n"
      "  --type      <Optional> text(which will also export the database)")
sys.exit(255)
"""


def tool(folder: Path, name: str, source: str) -> Path:
    """An executable Python script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable} -SE\n{source}", "utf-8")  # starts in a third of the time
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@dataclass(frozen=True, kw_only=True)
class Install:
    """One installation."""

    chips: Sequence[FakeChip]
    cann: str = "8.5.0"
    cann_inner: str = "V100R001C25SPC001B212"
    cann_compatible: str = "[V100R001C15],[V100R001C25]"
    arch: str = "aarch64"
    driver: str = "25.5.0"
    driver_inner: str = "V100R001C25SPC002B220"
    firmware: str = "7.8.0.1.220"
    firmware_range: str = "[7.7.0,7.8.99]"
    has_ops: bool = True
    packages: Mapping[str, str] = field(
        default_factory=lambda: {"torch": "2.9.0+cpu", "torch_npu": "2.9.0", "psutil": "7.0.0"}
    )
    python: str = "3.11.4"
    variables: Mapping[str, str] = field(default_factory=dict)
    is_sourced: bool = True
    down: frozenset[int] = frozenset()
    nodes: Sequence[str] = ("davinci_manager", "devmm_svm", "hisi_hdc")
    sees: int | None = None
    """Devices that torch_npu sees; None: all."""
    problem: str = ""
    """Why torch_npu does not load."""


def write(root: Path, path: str, text: str = "") -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, "utf-8")
    return place


def answers_of(made: Install) -> dict[str, str]:
    """What this installation's npu-smi prints, by its arguments."""
    chips = made.chips
    found: dict[str, str] = {
        "info": texts.box(chips, made.driver), "info -l": texts.listing(chips), "info -m": texts.mapping(chips),
        "watch head": texts.watch_head(), "watch": "".join(texts.watch_line(chip) for chip in chips),
    }  # fmt: skip
    if len(chips) > 1 and "310" not in chips[0].name:
        found["info -t topo"] = texts.topology(len(chips))
    for npu in {chip.npu for chip in chips}:
        own = [chip for chip in chips if chip.npu == npu]
        found[f"info -t usages -i {npu}"] = texts.usages(own)
        found[f"info -t common -i {npu}"] = texts.common(own)
        found[f"info -t board -i {npu}"] = texts.board_of_card(own[0], made.driver, made.firmware)
        for chip in own:
            at = f"-i {npu} -c {chip.chip}"
            found[f"info -t usages {at}"] = texts.usages_of_one(chip)
            found[f"info -t common {at}"] = texts.common_of_one(chip)
            found[f"info -t health {at}"] = texts.health_of_one(chip)
            found[f"info -t board {at}"] = texts.board_of_chip(chip, made.firmware)
    return found


def npu_smi(folder: Path, made: Install) -> Path:
    """The stand-in npu-smi of an installation."""
    folder.mkdir(parents=True, exist_ok=True)
    answers = {**answers_of(made), "ids": [str(chip.npu) for chip in made.chips]}
    table = folder / "npu-smi.json"
    table.write_text(json.dumps(answers), "utf-8")
    return tool(folder, "npu-smi", NPU_SMI.format(answers=str(table)))


def build(root: Path, made: Install) -> Machine:
    """Write the tree and its tools; the machine that it describes."""
    home = "/usr/local/Ascend/cann"
    folder = f"{home}/{made.arch}-linux"
    info = (
        f"package_name=Ascend-cann-toolkit\nversion={made.cann}\ninnerversion={made.cann_inner}\n"
        f"compatible_version={made.cann_compatible}\narch={made.arch}\nos=linux\npath={home}\n"
    )
    write(root, f"{folder}/ascend_toolkit_install.info", info)
    if made.has_ops:
        write(root, f"{folder}/ascend_ops_install.info", info.replace("toolkit", "ops", 1))
    write(root, f"{home}/lib64/libmspti.so")
    tool(root / home.lstrip("/") / "tools/profiler/bin", "msprof", MSPROF)
    write(
        root, "/usr/local/Ascend/driver/version.info",
        f"Version={made.driver}\nascendhal_version=7.35.23\nInnerversion={made.driver_inner}\n"
        f"compatible_version=[V100R001C25]\ncompatible_version_fw={made.firmware_range}\n",
    )  # fmt: skip
    write(root, "/usr/local/Ascend/firmware/version.info", f"Version={made.firmware}\n")
    for number in range(len(made.chips)):
        write(root, f"/dev/davinci{number}")
    for node in made.nodes:
        write(root, f"/dev/{node}")
    write(root, "/sys/devices/system/clocksource/clocksource0/current_clocksource", "arch_sys_counter\n")
    npu_smi(root / "usr/local/bin", made)
    tool(root / "usr/local/Ascend/driver/tools", "hccn_tool", HCCN.format(down=set(made.down)))
    variables = {"PATH": str(root / "bin"), "HOME": "/root", **made.variables}
    if made.is_sourced:
        variables = {
            "ASCEND_HOME_PATH": home, "ASCEND_TOOLKIT_HOME": home, "ASCEND_OPP_PATH": f"{home}/opp", **variables
        }  # fmt: skip
    packages = {"psutil": "7.0.0", **made.packages}
    return Machine(
        root=root, environment=variables, package=packages.get, torch=inventory_of(made), python=made.python,
        architecture=made.arch, is_here=False,
    )  # fmt: skip


def inventory_of(made: Install) -> Callable[[], Inventory]:
    """What a child process that imports torch would tell."""
    cpu = SeenDevice(type="cpu", index=0, name="Kunpeng", cores=192)
    count = len(made.chips) if made.sees is None else made.sees
    npus = tuple(SeenDevice(type="npu", index=n, name="Ascend910B2") for n in range(count))
    torch, npu = made.packages.get("torch"), made.packages.get("torch_npu")

    def probe() -> Inventory:
        if npu is None:
            return Inventory(devices=(cpu,), torch_version=torch, torch_npu_version=None)
        if made.problem:
            return Inventory(
                devices=(cpu,), torch_version=torch, torch_npu_version=npu, problems=(f"npu: {made.problem}",),
                environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            )  # fmt: skip
        problems = () if count else ("npu: torch_npu is there but sees no device: check the driver and /dev/davinci*",)
        return Inventory(devices=(*npus, cpu), torch_version=torch, torch_npu_version=npu, problems=problems)

    return probe
