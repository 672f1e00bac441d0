"""Texts of npu-smi: key and value by chip, the summary box, the mapping, the endless watch, links between NPUs.

A query that a product does not know is answered with a sentence and exit code 0, so only the text decides. Some
queries name the chip before its values, some behind them, and all end with the board's controller (MCU), no chip.

Source: collector reference, sections 3.1 to 3.3. No real device was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

UNSUPPORTED: Final = re.compile(r"This device does not support querying (.{1,60}?)\.?\s*$", re.MULTILINE)
FAILED: Final = re.compile(
    r"^.*(?:Failed to query .*|Error parameter of .*|This command must input .*|Command or option is not found.*"
    r"|dcmi module initialize failed.*|There is no NPU card on this server.*)$",
    re.MULTILINE,
)
_PAIR: Final = re.compile(r"^\s*(.+?)\s+:(?:\s(.*))?$")
_NOTHING: Final = frozenset({"", "NA", "N/A", "-", "--"})
_CODES: Final = {1: "invalid parameter", 5: "inner error", 13: "not allowed in a container", 20: "resource occupied",
                 255: "not supported"}  # fmt: skip

AI_CORE: Final = "Aicore Usage Rate(%)"
NPU: Final = "NPU Utilization(%)"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Keys and values of one chip, as printed; None is a value that is not available."""

    npu: int | None
    chip: int | None
    values: Mapping[str, str | None]

    def number(self, *keys: str) -> float | None:
        """The first of these keys that holds a number."""
        for key in keys:
            try:
                return float(self.values.get(key) or "")
            except ValueError:
                continue
        return None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a query gave."""

    status: Literal["ok", "unsupported", "failed"]
    blocks: tuple[Block, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one chip tells of itself at a moment; None is unknown. Ratios lie in 0..1."""

    npu: int
    chip: int
    ai_core_ratio: float | None = None
    """Share of time in which the AI Core had work: no efficiency. 0 while any profiler runs."""
    vector_ratio: float | None = None
    cube_ratio: float | None = None
    npu_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_bandwidth_ratio: float | None = None
    power_w: float | None = None
    """Of the chip; of the board on inference products; on A3 of the card, named at its first die."""
    temperature_c: float | None = None
    frequency_hz: float | None = None
    rated_frequency_hz: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One row of `npu-smi info -m`; the controller has no logic id and is no chip."""

    npu: int
    chip: int
    logic_id: int
    phy_id: int | None
    name: str


@dataclass(frozen=True, kw_only=True)
class BoxChip:
    """One chip of the summary box."""

    npu: int
    chip: int
    phy_id: int | None
    name: str
    health: str
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Box:
    """The summary box (`npu-smi info`)."""

    driver_version: str | None
    chips: tuple[BoxChip, ...] = ()
    processes: tuple[tuple[int, int, int, str, float | None], ...] = ()
    """NPU, chip, pid, name, MB."""


def answer(text: str) -> Answer:
    """What `npu-smi info -t <type> -i <npu> [-c <chip>]` says."""
    if found := UNSUPPORTED.search(text):
        return Answer(status="unsupported", problem=found[0].strip())
    if found := FAILED.search(text):
        return Answer(status="failed", problem=found[0].strip())
    # A last line without an end was cut, and its number with it.
    blocks = tuple(_blocks(text if text.endswith("\n") else text.rpartition("\n")[0]))
    if not blocks:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing was printed")
        return Answer(status="failed", problem=first[:200])
    return Answer(status="ok", blocks=blocks)


def exit_meaning(code: int) -> str:
    """What a negative code, seen modulo 256, stands for; empty when it is none of the known ones."""
    for base, who in ((8000, "DCMI"), (9000, "npu-smi")):
        for number, meaning in _CODES.items():
            if code == -(base + number) % 256:
                return f"{who}: {meaning}"
    return ""


def ids(text: str) -> list[int]:
    """NPU ids of `npu-smi info -l`; chips follow from the mapping."""
    return [int(value) for key, value in _pairs(text) if key == "NPU ID" and value and value.isdecimal()]


def mapping(text: str) -> list[Chip]:
    """Chips of `npu-smi info -m`."""
    has_phy = False
    chips = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if "Chip Logic ID" in cells:
            has_phy = "Chip Phy-ID" in cells
        elif len(cells) >= 4 + has_phy and all(cell.isdecimal() for cell in cells[:3]):
            phy_id = int(cells[3]) if has_phy and cells[3].isdecimal() else None
            chips.append(
                Chip(npu=int(cells[0]), chip=int(cells[1]), logic_id=int(cells[2]), phy_id=phy_id, name=cells[-1])
            )
    return chips


def soc_name(chip_name: str, npu_name: str | None = None) -> str:
    """The name as `aclrtGetSocName` and atc spell it: Ascend910B2; on A3 and 950 <chip>_<NPU name>: Ascend910_9392."""
    name = re.sub(r"\s+", "", chip_name)
    name = name if name.lower().startswith("ascend") else f"Ascend{name}"
    return f"{name}_{npu_name.strip()}" if npu_name and npu_name.strip() not in _NOTHING else name


def reading(npu: int, chip: int, *blocks: Block) -> Reading:
    """The figures of one chip from its blocks of the queries usages, common, power, temp and memory."""
    values: dict[str, str | None] = {}
    for block in blocks:
        values.update({key: value for key, value in block.values.items() if value is not None})
    one = Block(npu=npu, chip=chip, values=values)

    def ratio(*keys: str) -> float | None:
        value = one.number(*keys)
        return value / 100 if value is not None and 0 <= value <= 100 else None

    # On training products the DDR lines are constant 0: the memory is HBM.
    kind = next((kind for kind in ("HBM", "Memory", "DDR") if one.number(f"{kind} Capacity(MB)")), None)
    total = one.number(f"{kind} Capacity(MB)")
    used = ratio(f"{kind} Usage Rate(%)")
    total_bytes = None if total is None else round(total * 2**20)
    frequency, rated = one.number("Aicore curFreq(MHZ)"), one.number("Aicore Freq(MHZ)")
    return Reading(
        npu=npu, chip=chip,
        ai_core_ratio=ratio(AI_CORE),
        vector_ratio=ratio("Aivector Usage Rate(%)", "Vectorcore Usage Rate(%)"),
        cube_ratio=ratio("Aicube Usage Rate(%)"),
        npu_ratio=ratio(NPU),
        memory_used_bytes=None if total_bytes is None or used is None else round(total_bytes * used),
        memory_total_bytes=total_bytes,
        memory_bandwidth_ratio=ratio(f"{kind} Bandwidth Usage Rate(%)"),
        # "Rated Power Dissipation" of the 310 family is a rating, not what is drawn.
        power_w=one.number("NPU Real-time Power(W)", "Power Dissipation(W)"),
        temperature_c=one.number("NPU Temperature (C)", "Temperature (C)", "Temperature(C)"),
        frequency_hz=None if frequency is None else frequency * 1e6,
        rated_frequency_hz=None if rated is None else rated * 1e6,
    )  # fmt: skip


# ---- watch ----------------------------------------------------------------------------------------------------------

_WATCHED: Final = {
    "Pwr(W)": ("power_w", 1.0), "Temp(C)": ("temperature_c", 1.0), "AI Core(%)": ("ai_core_ratio", 0.01),
    "NPU Util(%)": ("npu_ratio", 0.01), "AI Cube(%)": ("cube_ratio", 0.01),
    "Memory BW(%)": ("memory_bandwidth_ratio", 0.01),
}  # fmt: skip
_WATCH_COLUMN: Final = re.compile(r"[A-Za-z][A-Za-z ]*\([^)]*\)")


class Watch:
    """Lines of `npu-smi info watch`, one after the other; a head line may come again."""

    def __init__(self, memory_bytes: Mapping[tuple[int, int], int] | None = None) -> None:
        """`memory_bytes`: capacity by (NPU, chip), to turn the share that is in use into bytes."""
        self._memory = memory_bytes or {}
        self._columns: list[str] = []

    def take(self, line: str) -> Reading | None:
        """The reading of a line; None for a head line, a cut line and other text."""
        if "NpuID(Idx)" in line:
            # Every name ends with its unit in brackets; the last columns are shifted by a blank.
            self._columns = [" ".join(name.split()) for name in _WATCH_COLUMN.findall(line)]
            return None
        cells = line.split()
        if not self._columns or len(cells) != len(self._columns):
            return None
        row = dict(zip(self._columns, cells, strict=True))
        if not (row["NpuID(Idx)"].isdecimal() and row.get("ChipId(Idx)", "").isdecimal()):
            return None
        npu, chip = int(row["NpuID(Idx)"]), int(row["ChipId(Idx)"])
        values: dict[str, float] = {}
        for name, (key, factor) in _WATCHED.items():
            value = _number(row.get(name))
            if value is not None and not (factor != 1.0 and not 0 <= value <= 100):
                values[key] = value * factor
        total, share = self._memory.get((npu, chip)), _number(row.get("Memory(%)"))
        used = None if total is None or share is None else round(total * share / 100)
        return Reading(npu=npu, chip=chip, memory_used_bytes=used, memory_total_bytes=total, **values)


# ---- summary box ----------------------------------------------------------------------------------------------------

_BUS: Final = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA")
_VERSION: Final = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")


def box(text: str) -> Box:
    """The summary box."""
    version = _VERSION.search(text)
    chips: list[BoxChip] = []
    processes = []
    first: list[str] | None = None
    has_npu_ratio = False
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        has_npu_ratio = has_npu_ratio or "NPU Util(%)" in line
        head = cells[0].split()
        if len(cells) == 4 and all(word.isdecimal() for word in [*head, cells[1]]) and len(head) >= 2:
            processes.append((int(head[0]), int(head[1]), int(cells[1]), cells[2], _number(cells[3])))
        elif len(cells) == 3 and head and head[0].isdecimal():
            if _BUS.fullmatch(cells[1]) and first is not None:
                chips.append(_box_chip(first, cells, has_npu_ratio))
            elif len(head) == 2:
                first = cells
    return Box(
        driver_version=version[1] if version else None, chips=tuple(chips), processes=tuple(processes)
    )  # fmt: skip


def _box_chip(first: list[str], second: list[str], has_npu_ratio: bool) -> BoxChip:
    npu, name = first[0].split()
    chip, *phy_id = second[0].split()
    upper, lower = first[2].split(), second[2].split()
    # used / total; DDR of training products is 0 / 0, and HBM comes last.
    used, total = next(
        ((used, total) for used, total in reversed(re.findall(r"(\d+)\s*/\s*(\d+)", second[2])) if int(total)),
        (None, None),
    )
    busy = _number(lower[0]) if lower else None
    ratio = None if busy is None else busy / 100
    return BoxChip(
        npu=int(npu), chip=int(chip), phy_id=int(phy_id[0]) if phy_id and phy_id[0].isdecimal() else None, name=name,
        health=first[1],
        reading=Reading(
            npu=int(npu), chip=int(chip),
            ai_core_ratio=None if has_npu_ratio else ratio, npu_ratio=ratio if has_npu_ratio else None,
            power_w=_number(upper[0]) if upper else None, temperature_c=_number(upper[1]) if len(upper) > 1 else None,
            memory_used_bytes=None if used is None else int(used) << 20,
            memory_total_bytes=None if total is None else int(total) << 20,
        ),
    )  # fmt: skip


# ---- links ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Kinds of links between NPUs (`npu-smi info -t topo`)."""

    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """HCCS, SIO, PIX ... by pair of names, both directions."""
    cores: Mapping[str, str] = field(default_factory=dict)
    """Cores near an NPU, such as 0-23."""

    def kinds(self) -> tuple[str, ...]:
        """Kinds of links that occur, in order of their number."""
        counts: dict[str, int] = {}
        for kind in self.links.values():
            counts[kind] = counts.get(kind, 0) + 1
        return tuple(sorted(counts, key=lambda kind: (-counts[kind], kind)))


def topology(text: str) -> Topology:
    """The matrix of links; rows and columns have the same names."""
    name = re.compile(r"[A-Za-z][A-Za-z-]*\d+")
    columns: list[str] = []
    links, cores = dict[tuple[str, str], str](), dict[str, str]()
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and not columns and all(name.fullmatch(word) for word in words[:2]):
            columns = [word for word in words if name.fullmatch(word)]
        elif columns and words and words[0] in columns and len(words) > len(columns):
            links |= {
                (words[0], other): kind
                for other, kind in zip(columns, words[1:], strict=False) if other != words[0] and kind != "X"
            }  # fmt: skip
            if len(words) > len(columns) + 1:
                cores[words[0]] = words[len(columns) + 1]
    return Topology(links=links, cores=cores)


_PROCESS: Final = re.compile(r"Process id\s*:\s*(\d+)\s+Process name\s*:\s*(.+?)\s+Process memory\(MB\)\s*:\s*(\d+)")


def processes(text: str) -> list[tuple[int, str, int]]:
    """Pid, name and MB of `npu-smi info -t proc-mem`."""
    return [(int(found[1]), found[2], int(found[3])) for found in _PROCESS.finditer(text)]


# ---- keys and values ------------------------------------------------------------------------------------------------


def _pairs(text: str) -> Iterator[tuple[str, str | None]]:
    for line in text.splitlines():
        if found := _PAIR.match(line.rstrip()):
            value = (found[2] or "").strip()
            yield found[1].strip(), None if value in _NOTHING else value


def _blocks(text: str) -> Iterator[Block]:
    pairs = list(_pairs(text))
    npu = next((int(value) for key, value in pairs if key == "NPU ID" and value and value.isdecimal()), None)
    body = [(key, value) for key, value in pairs if key not in ("NPU ID", "Chip Count")]
    places = [place for place, (key, _) in enumerate(body) if key == "Chip ID"]
    if not places:
        values = dict(body)
        if values and not _is_mcu(values):
            yield Block(npu=npu, chip=None, values=values)
        return
    # Where the chip is named first, it is the first key, but for a name of the NPU before it (board of A3).
    is_leading = places[0] == 0 or [key for key, _ in body[: places[0]]] == ["NPU Name"]
    part: dict[str, str | None] = {}
    parts = []
    for key, value in body:
        starts = is_leading and (key == "Chip ID" or (key == "Chip Name" and (value or "").upper() == "MCU"))
        if starts and ("Chip ID" in part or _is_mcu(part)):
            parts.append(part)
            part = {}
        part[key] = value
        ends = not is_leading and (key == "Chip ID" or (key == "Chip Name" and (value or "").upper() == "MCU"))
        if ends:
            parts.append(part)
            part = {}
    if is_leading and part:
        parts.append(part)  # behind the last name of the other layout there is only a text that was cut
    for values in parts:
        if not _is_mcu(values):
            chip = values.pop("Chip ID", None)
            yield Block(npu=npu, chip=int(chip) if chip and chip.isdecimal() else None, values=values)


def _is_mcu(values: Mapping[str, str | None]) -> bool:
    return (values.get("Chip Name") or "").upper() == "MCU"


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
