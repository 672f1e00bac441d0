"""Texts of npu-smi in every layout of the collector reference (sections 3.1 and 3.2), made from figures of chips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FakeChip:
    """What a chip would tell. None is printed as NA."""

    npu: int = 0
    chip: int = 0
    logic_id: int = 0
    phy_id: int | None = None
    name: str = "Ascend 910B2"
    npu_name: str | None = None
    """A3: part of the SoC name."""
    bus: str = "0000:C1:00.0"
    health: str = "OK"
    error_code: str | None = None
    ai_core: int | None = 88
    vector: int | None = 35
    cube: int | None = 79
    busy: int | None = 91
    hbm_mb: int = 65536
    hbm_percent: int | None = 71
    hbm_bandwidth: int | None = 43
    power_w: float | None = 291.4
    temperature_c: int | None = 57
    frequency_mhz: int | None = 1650
    rated_mhz: int = 1800


A2 = tuple(FakeChip(npu=n, logic_id=n, bus=f"0000:{0xC1 + n:02X}:00.0") for n in range(2))
A3 = tuple(
    FakeChip(
        npu=n, chip=die, logic_id=2 * n + die, phy_id=2 * n + die, name="Ascend910", npu_name="9392",
        power_w=412.5 if die == 0 else None, bus=f"0000:{0xC1 + n:02X}:0{die}.0",
    )
    for n in range(2) for die in range(2)
)  # fmt: skip
P310 = tuple(
    FakeChip(
        npu=8 * n, chip=0, logic_id=n, name="Ascend 310P3", hbm_mb=21527, hbm_percent=5, power_w=18.3, ai_core=12,
        bus=f"0000:{0x81 + n:02X}:00.0", vector=4,
    )
    for n in range(2)
)  # fmt: skip


def pair(key: str, value: object) -> str:
    """The tool's own format: a tab, the key in 30 columns, a colon."""
    return f"\t{key:<30} : {'NA' if value is None else value}\n"


def header(npu: int, chips: int) -> str:
    return pair("NPU ID", npu) + pair("Chip Count", chips) + "\n"


def listing(chips: Sequence[FakeChip]) -> str:
    cards = sorted({chip.npu for chip in chips})
    text = pair("Total Count", len(cards)) + "\n"
    return text + "".join(header(npu, sum(chip.npu == npu for chip in chips)) for npu in cards)


def mapping(chips: Sequence[FakeChip]) -> str:
    has_phy = any(chip.phy_id is not None for chip in chips)
    names = ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if has_phy else []), "Chip Name"]
    lines = ["\t" + "".join(f"{name:<31}" for name in names)]
    for npu in sorted({chip.npu for chip in chips}):
        own = [chip for chip in chips if chip.npu == npu]
        for chip in own:
            cells = [chip.npu, chip.chip, chip.logic_id, *([chip.phy_id] if has_phy else []), chip.name]
            lines.append("\t" + "".join(f"{cell:<31}" for cell in cells))
        cells = [npu, len(own), "-", *(["-"] if has_phy else []), "Mcu"]
        lines.append("\t" + "".join(f"{cell:<31}" for cell in cells))
    return "\n".join(lines) + "\n"


def _usages(chip: FakeChip, *, is_old: bool = False) -> list[tuple[str, object]]:
    if "310" in chip.name:
        return [
            ("Memory Capacity(MB)", chip.hbm_mb), ("Memory Usage Rate(%)", chip.hbm_percent),
            ("Aicore Usage Rate(%)", chip.ai_core), ("Vectorcore Usage Rate(%)", chip.vector),
            ("Aicpu Usage Rate(%)", 0), ("Ctrlcpu Usage Rate(%)", 1),
            ("Memory Bandwidth Usage Rate(%)", chip.hbm_bandwidth), ("DVPP VDEC Usage Rate(%)", 0),
            ("DVPP VPC Usage Rate(%)", 7), ("DVPP VENC Usage Rate(%)", 0), ("DVPP JPEGE Usage Rate(%)", 0),
            ("DVPP JPEGD Usage Rate(%)", 11),
        ]  # fmt: skip
    rows: list[tuple[str, object]] = [
        ("DDR Capacity(MB)", 0), ("DDR Usage Rate(%)", 0), ("DDR Hugepages Total(page)", 0),
        ("DDR Hugepages Usage Rate(%)", 0), ("HBM Capacity(MB)", chip.hbm_mb), ("HBM Usage Rate(%)", chip.hbm_percent),
        ("Aicore Usage Rate(%)", chip.ai_core), ("Aivector Usage Rate(%)", chip.vector), ("Aicpu Usage Rate(%)", 0),
        ("Ctrlcpu Usage Rate(%)", 2), ("DDR Bandwidth Usage Rate(%)", 0),
        ("HBM Bandwidth Usage Rate(%)", chip.hbm_bandwidth), ("NPU Utilization(%)", chip.busy),
        ("Aicube Usage Rate(%)", chip.cube),
    ]  # fmt: skip
    newer = ("Aivector Usage Rate(%)", "NPU Utilization(%)", "Aicube Usage Rate(%)")
    return [row for row in rows if not (is_old and row[0] in newer)]


def usages(chips: Sequence[FakeChip], *, is_old: bool = False, has_mcu: bool = True) -> str:
    """All chips of one card: on servers `Chip ID` stands behind the values of its chip, on the 310 family before."""
    text = header(chips[0].npu, len(chips))
    for chip in chips:
        body = "".join(pair(*row) for row in _usages(chip, is_old=is_old))
        number = pair("Chip ID", chip.chip)
        text += number + body + "\n" if "310" in chip.name else body + number + "\n"
    mcu = pair("Aicore Usage Rate(%)", None) + pair("Chip Name", "MCU")
    return text + (("" if "310" in chips[0].name else mcu) if has_mcu else "")


def usages_of_one(chip: FakeChip, *, is_old: bool = False) -> str:
    """With -c: the values of the block, no header."""
    return "".join(pair(*row) for row in _usages(chip, is_old=is_old))


def common(chips: Sequence[FakeChip]) -> str:
    text = header(chips[0].npu, len(chips))
    for chip in chips:
        text += pair("Chip ID", chip.chip) + common_of_one(chip) + "\n"
    return text + pair("Chip Name", "mcu") + pair("Temperature(C)", 41)


def common_of_one(chip: FakeChip) -> str:
    rows: list[tuple[str, object]] = [
        ("Memory Usage Rate(%)", 0), ("HBM Usage Rate(%)", chip.hbm_percent), ("Aicore Usage Rate(%)", chip.ai_core),
        ("Aicore Freq(MHZ)", chip.rated_mhz), ("Aicore curFreq(MHZ)", chip.frequency_mhz), ("Aicore Count", 24),
        ("Temperature(C)", chip.temperature_c), ("NPU Real-time Power(W)", chip.power_w),
    ]  # fmt: skip
    return "".join(pair(*row) for row in rows)


def health_of_one(chip: FakeChip, *, key: str = "Health") -> str:
    fine = chip.health == "OK"
    return (
        pair(key, chip.health) + pair("Error Code", None if fine else chip.error_code)
        + pair("Error Information", None if fine else "node type=SoC, sensor type=Memory")
    )  # fmt: skip


def board_of_card(chip: FakeChip, driver: str, firmware: str) -> str:
    rows = [
        ("NPU ID", chip.npu), ("Product Name", "IT21"), ("Model", "NA"), ("Manufacturer", "Huawei"),
        ("Serial Number", "1023470015"), ("Software Version", driver), ("Firmware Version", firmware),
        ("Compatibility", "OK"), ("Board ID", "0x33"), ("PCB ID", "A"), ("BOM ID", "1"), ("PCIe Bus Info", chip.bus),
        ("Slot ID", chip.npu), ("Class ID", "NA"), ("PCI Vendor ID", "0x19E5"), ("PCI Device ID", "0xD802"),
        ("Chip Count", 1),
    ]  # fmt: skip
    return "".join(pair(*row) for row in rows)


def board_of_chip(chip: FakeChip, firmware: str) -> str:
    rows: list[tuple[str, object]] = [("NPU ID", chip.npu)]
    rows += [("NPU Name", chip.npu_name)] if chip.npu_name else []
    rows += [("Chip ID", chip.chip)] + ([] if chip.npu_name else [("Chip Type", "Ascend")])
    rows += [
        ("Chip Name", chip.name.removeprefix("Ascend ")), ("Chip Version", "V1"), ("Board ID", "0x33"),
        ("VDie ID", "5A1C20E0 40E05A83 9D8F5A1C"), ("Chip Position ID", chip.chip), ("PCIe Bus Info", chip.bus),
        ("Firmware Version", firmware),
    ]  # fmt: skip
    return "".join(pair(*row) for row in rows)


def topology(count: int, kind: str = "HCCS") -> str:
    names = [f"NPU{n}" for n in range(count)]
    lines = ["\t   " + "".join(f"{name:<11}" for name in names) + "CPU Affinity"]
    for row, name in enumerate(names):
        cells = ["X" if row == column else kind for column in range(count)]
        lines.append(f"{name:<11}" + "".join(f"{cell:<11}" for cell in cells) + f"{24 * row}-{24 * row + 23}")
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  HCCS = Connection traversing HCCS.\n"


def box(chips: Sequence[FakeChip], version: str, *, processes: Sequence[tuple[int, int, int, str, int]] = ()) -> str:
    """The summary box; with physical ids (A3) the second line of a chip has two numbers first."""
    has_phy = any(chip.phy_id is not None for chip in chips)
    rule = "+===========================+===============+=====================================================+"
    line = rule.replace("=", "-")
    names = "Chip  Phy-ID" if has_phy else "Chip"
    text = [
        "+" + "-" * (len(rule) - 2) + "+",
        f"| {f'npu-smi {version}                   Version: {version}':<{len(rule) - 4}} |",
        line,
        f"| {'NPU   Name':<25} | {'Health':<13} | {'Power(W)    Temp(C)           Hugepages-Usage(page)':<51} |",
        f"| {names:<25} | {'Bus-Id':<13} | {'AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)':<51} |",
        rule,
    ]
    for chip in chips:
        power = "-" if chip.power_w is None else chip.power_w
        upper = f"{power:<11} {chip.temperature_c:<17} 0     / 0"
        used = chip.hbm_mb * (chip.hbm_percent or 0) // 100
        busy = "NA" if chip.ai_core is None else chip.ai_core
        lower = f"{busy:<11} 0    / 0          {used:<5} / {chip.hbm_mb}"
        number = f"{chip.chip}     {chip.phy_id}" if has_phy else f"{chip.chip}"
        name = chip.name.removeprefix("Ascend ")
        text.append(f"| {f'{chip.npu:<5} {name}':<25} | {chip.health:<13} | {upper:<51} |")
        text.append(f"| {number:<25} | {chip.bus:<13} | {lower:<51} |")
        text.append(rule)
    names = f"| {'NPU     Chip':<25} | {'Process id':<13} | {'Process name':<24} | {'Process memory(MB)':<24} |"
    text += [line, names, rule]
    for npu in sorted({chip.npu for chip in chips}):
        own = [row for row in processes if row[0] == npu]
        if not own:
            text.append(f"| {f'No running processes found in NPU {npu}':<{len(rule) - 4}} |")
        for _, chip_id, pid, name, memory in own:
            text.append(f"| {f'{npu:<7} {chip_id}':<25} | {pid:<13} | {name:<24} | {memory:<24} |")
        text.append(rule)
    return "\n".join(text) + "\n"


WATCHED = (
    "NpuID(Idx)", "ChipId(Idx)", "Pwr(W)", "Temp(C)", "AI Core(%)", "AI Cpu(%)", "Ctrl Cpu(%)", "Memory(%)",
    "Memory BW(%)", "NPU Util(%)", "AI Cube(%)",
)  # fmt: skip


def watch_head(names: Sequence[str] = WATCHED) -> str:
    return "".join(f"{name:<12}" for name in names[:8]) + "".join(f" {name:<12}" for name in names[8:]) + "\n"


def watch_line(chip: FakeChip) -> str:
    cells = [
        chip.npu, chip.chip, chip.power_w, chip.temperature_c, chip.ai_core, 0, 2, chip.hbm_percent,
        chip.hbm_bandwidth, chip.busy, chip.cube,
    ]  # fmt: skip
    words = ["NA" if cell is None else str(cell) for cell in cells]
    return "".join(f"{word:<12}" for word in words[:8]) + "".join(f" {word:<12}" for word in words[8:]) + "\n"
