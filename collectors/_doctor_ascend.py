"""What doctor says of the Ascend side: devices, driver, firmware, chips and their health, links, CANN."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ascend_perf.collectors import _ascend_install as install
from ascend_perf.collectors import npu_smi
from ascend_perf.collectors._doctor_line import Line, error, missing, ok, warning
from ascend_perf.collectors._machine import Machine
from ascend_perf.device import compatibility
from ascend_perf.model.finding import Words

GET_DRIVER = Words(
    "install driver and firmware of the card (https://www.hiascend.com/hardware/firmware-drivers), then reboot",
    "安装该卡的驱动与固件（https://www.hiascend.com/hardware/firmware-drivers），然后重启",
)
GET_CANN = Words(
    "CANN toolkit not found. Install it, then: source <CANN>/set_env.sh",
    "未找到 CANN toolkit。安装后执行：source <CANN>/set_env.sh",
)
NO_DEVICE = Words(
    "No Ascend NPU visible (no /dev/davinci*). In a container pass the devices and mount the driver files "
    f"({install.MOUNTS}).",
    f"看不到昇腾 NPU（没有 /dev/davinci*）。容器中需传入设备并挂载驱动文件（{install.MOUNTS}）。",
)
NO_NPU_SMI = Words(
    "npu-smi not found: driver not installed or not mounted; device telemetry disabled",
    "未找到 npu-smi：驱动未安装或未挂载；设备监测不可用",
)


@dataclass(kw_only=True)
class Ascend:
    """What was found of Ascend."""

    cann: install.Cann | None = None
    driver: install.Package | None = None
    firmware: install.Package | None = None
    nodes: list[str] = field(default_factory=list)
    smi: str | None = None
    """Where npu-smi lies."""
    chips: list[npu_smi.Chip] = field(default_factory=list)
    soc: str | None = None
    torch_npu: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is anything of Ascend here."""
        return any((self.cann, self.driver, self.firmware, self.nodes, self.smi, self.torch_npu))


def look(machine: Machine) -> Ascend:
    """Find what is there; tools are asked for chips only."""
    seen = Ascend(
        cann=install.find_cann(machine), driver=install.find_driver(machine),
        firmware=install.find_firmware(machine), nodes=install.device_nodes(machine),
        smi=machine.tool("npu-smi", *install.NPU_SMI), torch_npu=machine.package("torch_npu"),
    )  # fmt: skip
    if seen.smi is not None:
        seen.chips = npu_smi.mapping(machine.run([seen.smi, "info", "-m"]).text)
        seen.soc = _soc(machine, seen)
    return seen


def _soc(machine: Machine, seen: Ascend) -> str | None:
    """The SoC name of the first chip: on A3 and 950 the board's NPU name belongs to it."""
    if not seen.chips:
        return None
    assert seen.smi is not None
    first = seen.chips[0]
    board = npu_smi.answer(
        machine.run([seen.smi, "info", "-t", "board", "-i", str(first.npu), "-c", str(first.chip)]).text
    )
    values = board.blocks[0].values if board.blocks else {}
    npu_name = values.get("NPU Name")
    return npu_smi.soc_name(values.get("Chip Name") or first.name, npu_name) if npu_name else (
        npu_smi.soc_name(first.name)
    )


def lines(machine: Machine, seen: Ascend) -> list[Line]:
    """Lines of the Ascend side; a single one where there is nothing of it."""
    if not seen.is_there:
        said = Words(
            "nothing of Ascend is on this machine: no device, no driver, no CANN, no torch_npu. Reading profiles and "
            "baselines on CPU or CUDA work all the same",
            "本机没有任何昇腾组件：无设备、驱动、CANN、torch_npu。仍可分析已有数据，并在 CPU 或 CUDA 上运行基线",
        )
        cure = Words(
            f"to run on an NPU: {GET_DRIVER.en}; install CANN; pip install torch_npu",
            f"若要在 NPU 上运行：{GET_DRIVER.zh}；安装 CANN；pip install torch_npu",
        )
        return [missing("ascend", said, cure)]
    return [
        _device(machine, seen), _driver(machine, seen), *_firmware(machine, seen), *_chips(machine, seen),
        *_health(machine, seen), *_links(machine, seen), *_cann(machine, seen),
    ]  # fmt: skip


def _device(machine: Machine, seen: Ascend) -> Line:
    if not seen.nodes:
        return missing("device", Words("no /dev/davinci* here", "没有 /dev/davinci*"), NO_DEVICE, is_needed=True)
    absent = [name for name in install.NODES if not machine.path(f"/dev/{name}").exists()]
    if absent:
        names = ", ".join(f"/dev/{name}" for name in absent)
        return error(
            "device", "broken", Words(f"{len(seen.nodes)} devices, but no {names}",
                                      f"{len(seen.nodes)} 个设备，但缺少 {names}"),
            Words(
                f"in a container pass these: {install.MOUNTS}; on the host reinstall the driver",
                f"容器中需传入：{install.MOUNTS}；主机上请重装驱动",
            ),
        )  # fmt: skip
    count = len(seen.nodes)
    return ok("device", f"{count} device nodes (/dev/davinci*)", f"{count} 个设备节点（/dev/davinci*）")


def _driver(machine: Machine, seen: Ascend) -> Line:
    if seen.driver is None or seen.driver.version is None:
        if (version := _box_version(machine, seen)) is not None:
            return ok("driver", f"driver {version} (by npu-smi)", f"驱动 {version}（由 npu-smi 给出）")
        return missing(
            "driver", Words("no driver version found", "未找到驱动版本"),
            Words(f"{GET_DRIVER.en}; in a container mount {install.MOUNTS}",
                  f"{GET_DRIVER.zh}；容器中挂载 {install.MOUNTS}"),
            is_needed=True,
        )  # fmt: skip
    inner, cann = seen.driver.inner, seen.cann
    fits = install.branch_fits(inner, cann.compatible) if inner and cann is not None else None
    if inner and fits is False and cann is not None and not _same_branch(inner, cann.inner):
        names = ", ".join(cann.compatible)
        return warning(
            "driver", "clash",
            Words(
                f"driver {seen.driver.version} ({inner}) is not among those that CANN {cann.version} names: {names}",
                f"驱动 {seen.driver.version}（{inner}）不在 CANN {cann.version} 声明的兼容列表中：{names}",
            ),
            Words("install the driver of the same release as CANN", "安装与 CANN 同一版本配套的驱动"),
        )
    return ok("driver", f"driver {seen.driver.version}", f"驱动 {seen.driver.version}")


def _same_branch(one: str, other: str | None) -> bool:
    branches = [re.match(r"V\d+R\d+C\d+", name or "") for name in (one, other)]
    return all(branches) and branches[0][0] == branches[1][0]  # type: ignore[index]  # all are there


def _box_version(machine: Machine, seen: Ascend) -> str | None:
    if seen.smi is None:
        return None
    return npu_smi.box(machine.run([seen.smi, "info"]).text).driver_version


def _firmware(machine: Machine, seen: Ascend) -> list[Line]:
    version = None if seen.firmware is None else seen.firmware.version
    if version is None and seen.smi is not None and seen.chips:
        board = npu_smi.answer(machine.run([seen.smi, "info", "-t", "board", "-i", str(seen.chips[0].npu)]).text)
        version = next((block.values.get("Firmware Version") for block in board.blocks), None)
    if version is None:
        return []
    limits = None if seen.driver is None else seen.driver.firmware_range
    if limits is not None and seen.driver is not None:
        least, most = limits
        numbers = [compatibility.version_key(text)[0][:3] for text in (least, version, most)]
        if not numbers[0] <= numbers[1] <= numbers[2]:
            return [
                error(
                    "firmware", "clash",
                    Words(
                        f"firmware {version} is outside of what driver {seen.driver.version} works with: "
                        f"{least} to {most}",
                        f"固件 {version} 不在驱动 {seen.driver.version} 支持的范围内：{least} 到 {most}",
                    ),
                    Words(
                        "install driver and firmware of one release, firmware last, then reboot",
                        "安装同一版本的驱动与固件（固件最后安装），然后重启",
                    ),
                )
            ]  # fmt: skip
    return [ok("firmware", f"firmware {version}", f"固件 {version}")]


def _chips(machine: Machine, seen: Ascend) -> list[Line]:
    if seen.smi is None:
        return [missing("npu-smi", NO_NPU_SMI, GET_DRIVER, is_needed=True)]
    if not seen.chips:
        done = machine.run([seen.smi, "info", "-m"])
        answer = npu_smi.answer(done.text)
        reason = answer.problem or done.problem or "no chip"
        meaning = npu_smi.exit_meaning(done.code)
        said = f"{reason} ({meaning})" if meaning else reason
        return [error("npu-smi", "broken", Words(f"npu-smi names no chip: {said}",
                                                 f"npu-smi 未列出芯片：{said}"), NO_DEVICE)]
    soc = None if seen.soc is None else compatibility.soc_of(seen.soc)
    count = len(seen.chips)
    cards = len({chip.npu for chip in seen.chips})
    if soc is None:
        return [
            warning(
                "chip", "unverified",
                Words(f"{count} x {seen.soc}: not among the known names of chips",
                      f"{count} x {seen.soc}：不在已知芯片名之列"),
                Words("figures that need peaks of the chip will be missing", "需要芯片峰值的数据将缺失"),
            )
        ]  # fmt: skip
    where = f"{count} x {soc.name}, {cards} cards, generation {soc.generation}"
    line = ok("chip", where, f"{count} x {soc.name}，{cards} 张卡，代际 {soc.generation}")
    if not soc.does_train and seen.torch_npu:
        return [
            line,
            ok(
                "chip", f"{soc.generation} is an inference product: training workloads and most of HCCL are not for it",
                f"{soc.generation} 为推理产品：不适用于训练负载和大部分 HCCL 功能",
            ),
        ]  # fmt: skip
    return [line]


def _health(machine: Machine, seen: Ascend) -> list[Line]:
    """Health of each chip in one line."""
    if seen.smi is None or not seen.chips:
        return []
    said = Counter[str]()
    details = []
    for chip in seen.chips:
        done = machine.run([seen.smi, "info", "-t", "health", "-i", str(chip.npu), "-c", str(chip.chip)])
        found = npu_smi.answer(done.text)
        values = found.blocks[0].values if found.blocks else {}
        state = values.get("Health") or values.get("Health Status") or found.problem or "UNKNOWN"
        said[state] += 1
        if state != "OK":
            code, text = values.get("Error Code"), values.get("Error Information")
            more = "".join(f", {part}" for part in (code, text) if part)
            details.append(f"NPU {chip.npu} chip {chip.chip}: {state}{more}")
    if not details:
        return [ok("health", f"all {len(seen.chips)} chips are healthy", f"{len(seen.chips)} 个芯片均健康")]
    text = "; ".join(details[:8])
    is_bad = any(state in ("Alarm", "Critical") for state in said)
    cure = Words(
        "look the error code up in the health management documentation of the product; take the chip out of the job",
        "在产品的健康管理文档中查询错误码；将该芯片移出任务",
    )
    return [(error if is_bad else warning)("health", "broken", Words(text, text), cure)]


def _links(machine: Machine, seen: Ascend) -> list[Line]:
    """Links between NPUs, and the ports to other machines."""
    found: list[Line] = []
    if seen.smi is not None and len(seen.chips) > 1:
        topology = npu_smi.topology(machine.run([seen.smi, "info", "-t", "topo"]).text)
        if kinds := topology.kinds():
            text = ", ".join(kinds)
            found.append(ok("links", f"between NPUs: {text}", f"NPU 之间：{text}"))
    tool = machine.tool("hccn_tool", "/usr/local/Ascend/driver/tools/hccn_tool", "/usr/local/bin/hccn_tool")
    soc = None if seen.soc is None else compatibility.soc_of(seen.soc)
    if soc is None or not soc.does_train:
        return found  # no port of its own
    if tool is None:
        said = Words("hccn_tool not found: ports to other machines were not looked at", "未找到 hccn_tool：未检查网口")
        return [*found, missing("ports", said, Words("it is part of the driver package", "它随驱动安装"))]
    states = dict[int, str]()
    for chip in seen.chips:
        number = chip.logic_id if chip.phy_id is None else chip.phy_id
        done = machine.run([tool, "-i", str(number), "-link", "-g"])
        state = re.search(r"link status\s*:\s*(\w+)", done.text, re.IGNORECASE)
        states[number] = state[1].upper() if state else done.first_line or "no answer"
    down = {number: state for number, state in states.items() if state != "UP"}
    if not down:
        return [*found, ok("ports", f"all {len(states)} ports are up", f"{len(states)} 个网口均 UP")]
    text = "; ".join(f"{number}: {state}" for number, state in list(down.items())[:8])
    return [
        *found,
        warning(
            "ports", "broken", Words(f"ports that are not up: {text}", f"未 UP 的网口：{text}"),
            Words(
                "jobs of several machines need them: check cable, optics and switch; hccn_tool -i <N> -net_health -g",
                "多机任务需要：检查线缆、光模块和交换机；hccn_tool -i <N> -net_health -g",
            ),
        ),
    ]  # fmt: skip


def _cann(machine: Machine, seen: Ascend) -> list[Line]:
    cann = seen.cann
    if cann is None:
        said = Words("CANN toolkit not found", "未找到 CANN toolkit")
        return [missing("cann", said, GET_CANN, is_needed=True)]
    found = []
    named = machine.named("ASCEND_HOME_PATH")
    if named is not None and not named.is_dir():
        found.append(
            error(
                "cann", "broken",
                Words("ASCEND_HOME_PATH names a folder that does not exist", "ASCEND_HOME_PATH 指向不存在的目录"),
                Words("source set_env.sh of the installed CANN in a new shell",
                      "在新的 shell 中 source 已安装 CANN 的 set_env.sh"),
            )
        )  # fmt: skip
    if cann.version is None:
        return [
            *found,
            warning(
                "cann", "broken", Words("CANN is there, its version is not told", "有 CANN，但无版本信息"),
                Words("reinstall the toolkit", "重新安装 toolkit"),
            ),
        ]  # fmt: skip
    if not cann.is_sourced:
        found.append(
            warning(
                "cann", "broken",
                Words(
                    f"CANN {cann.version} is installed, its environment is not set",
                    f"已安装 CANN {cann.version}，但未设置环境变量",
                ),
                Words("source <CANN>/set_env.sh", "source <CANN>/set_env.sh"),
            )
        )
    else:
        found.append(ok("cann", f"CANN {cann.version}", f"CANN {cann.version}"))
    if cann.architecture and machine.architecture and cann.architecture != machine.architecture:
        found.append(
            error(
                "cann", "clash",
                Words(
                    f"CANN is built for {cann.architecture}, this machine is {machine.architecture}",
                    f"CANN 面向 {cann.architecture}，本机为 {machine.architecture}",
                ),
                Words(f"install the {machine.architecture} package", f"安装 {machine.architecture} 版本的软件包"),
            )
        )
    if compatibility.needs_ops_package(cann.version) and not cann.has_ops:
        found.append(
            warning(
                "cann", "missing",
                Words("the operator package (ops) of the chip is not installed", "未安装该芯片的算子包（ops）"),
                Words(
                    f"from CANN 8.5 on install Ascend-cann-*-ops of {seen.soc or 'the chip'} beside the toolkit",
                    f"CANN 8.5 起需在 toolkit 之外安装 {seen.soc or '对应芯片'} 的 Ascend-cann-*-ops",
                ),
            )
        )
    return found
