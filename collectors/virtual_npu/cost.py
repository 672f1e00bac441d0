"""The cost model of the virtual NPU: its constants (`cost_model.yaml`), the table that `native/cost.c` reads for one
device, and how far its times may be off.

The formulas are implemented once, in `native/cost*.c`; docs/virtual-npu-cost.md explains them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, cast

from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from ascend_perf.device.specs import DeviceSpec
from ascend_perf.errors import InputError, UsageError

Status = Literal["measured", "fitted", "assumed"]

FILE: Final = Path(__file__).with_name("cost_model.yaml")
SCHEMA_VERSION: Final = 1
DEFAULT_CLASS: Final = "other"
"""Class of an operator that no pattern names."""

RULES: Final = (
    "tensors", "matmul", "grouped", "conv", "conv_backward", "attention", "attention_backward", "attention_inference",
    "gather", "scatter", "scatter_out", "scatter_grad", "copy",
)  # fmt: skip
"""How work follows from arguments; implemented in native/cost_work.c."""
_STATUSES: Final = ("measured", "fitted", "assumed")
_SWITCHED: Final = "Ascend910_93"
"""Chips of which every card reaches every other through a switch at its whole rate (Atlas A3); others are a mesh."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One constant with where it comes from. The unit is the end of its key."""

    value: float
    status: Status
    sources: tuple[str, ...] = ()
    uncertainty: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Real time over modelled time: its 10th and 90th percentile, and from how many kernels (0: assumed)."""

    low: float
    high: float
    kernels: int


@dataclass(frozen=True, kw_only=True)
class CostClass:
    """A class of operators whose time follows one formula with one set of constants."""

    name: str
    kind: str
    """What the analyzers call it (values of `ops.classify.KernelClass`)."""
    what: str
    constants: Mapping[str, Constant]
    ratio: Ratio


@dataclass(frozen=True, kw_only=True)
class Operators:
    """Operators by patterns of their names, their class and the rule for their work."""

    patterns: tuple[str, ...]
    class_name: str
    rule: str
    written: str = ""
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """All of `cost_model.yaml`."""

    sources: Mapping[str, str]
    device: Mapping[str, Constant]
    launch: Mapping[str, Constant]
    copies: Mapping[str, Constant]
    links: Mapping[str, Constant]
    classes: Mapping[str, CostClass]
    operators: tuple[Operators, ...]

    def class_of(self, operator: str) -> str | None:
        """Class of an aclnn operator or of the type of a CANN kernel; None when no pattern names it."""
        name = plain_name(operator)
        for group in self.operators:
            if any(fnmatchcase(name, pattern) for pattern in group.patterns):
                return group.class_name
        return None

    def uncertainty(self, class_name: str) -> tuple[float, float]:
        """Factors between which the real time of a kernel lies in 80 of 100 cases, over the modelled one."""
        ratio = self.classes.get(class_name, self.classes[DEFAULT_CLASS]).ratio
        return ratio.low, ratio.high

    def uncertainty_of_sum(self, ns_by_class: Mapping[str, float]) -> tuple[float, float]:
        """Factors for a sum of kernels.

        Errors within a class are taken as common to all its kernels (a wrong efficiency hits each of them), those of
        different classes as independent: deviations add up within a class, their squares across classes.

        Args:
            ns_by_class: modelled time by class; classes that the model lacks count as "other".
        """
        total = math.fsum(ns_by_class.values())
        if total <= 0:
            return 1.0, 1.0
        below, above = 0.0, 0.0
        for name, ns in ns_by_class.items():
            low, high = self.uncertainty(name)
            below += (ns * min(low - 1, 0.0)) ** 2
            above += (ns * max(high - 1, 0.0)) ** 2
        return max(1 - math.sqrt(below) / total, 0.0), 1 + math.sqrt(above) / total


def plain_name(operator: str) -> str:
    """Name that patterns are compared with: `aclnnInplaceAdd` -> `Add`."""
    for prefix in ("aclnn", "aclop"):
        if operator.startswith(prefix):
            operator = operator[len(prefix) :]
            break
    return operator.removeprefix("Inplace")


def uncertainty(class_name: str) -> tuple[float, float]:
    """As `CostModel.uncertainty`, of the model that comes with the package."""
    return cost_model().uncertainty(class_name)


def uncertainty_of_sum(ns_by_class: Mapping[str, float]) -> tuple[float, float]:
    """As `CostModel.uncertainty_of_sum`, of the model that comes with the package."""
    return cost_model().uncertainty_of_sum(ns_by_class)


def cost_lines(settings: VirtualNpu) -> list[str]:
    """The table for `native/cost.c`: tab-separated lines, without the `cost` field of the config file.

    Raises:
        UsageError: the device table lacks what a model needs of this chip.
    """
    if settings.spec is None:
        raise UsageError(f"the device table has no row for {settings.soc}", hint="choose a chip that it has")
    link, node_link = settings.links()
    return table_lines(cost_model(), settings.spec, link_bytes_per_s=link, node_link_bytes_per_s=node_link)


def table_lines(
    model: CostModel, spec: DeviceSpec, *, link_bytes_per_s: float | None, node_link_bytes_per_s: float | None
) -> list[str]:
    """The lines of a model for a device: `value KEY NUMBER`, `class NAME KEY=NUMBER...`, `op PATTERN CLASS RULE ...`.

    Args:
        model: the constants.
        spec: peaks, cores and memory.
        link_bytes_per_s: inside a node, per card and direction; None: collectives take their fixed costs only.
        node_link_bytes_per_s: between nodes, per card and direction; None: as above.

    Raises:
        UsageError: the device table does not know the matrix peak, the vector peak or the memory rate of the chip.
    """
    lines = [f"value\t{key}\t{number!r}" for key, number in _values(model, spec).items()]
    is_switched = spec.name.startswith(_SWITCHED)
    peers = 1.0 if is_switched else model.links["mesh_peers"].value
    lines += [
        f"value\tpeer_bytes_per_s\t{(link_bytes_per_s or 0.0) / peers!r}",
        f"value\tis_switched\t{float(is_switched)!r}",
        f"value\tnode_bytes_per_s\t{node_link_bytes_per_s or 0.0!r}",
    ]
    for name, kind in model.classes.items():
        constants = "\t".join(f"{key}={constant.value!r}" for key, constant in kind.constants.items())
        lines.append(f"class\t{name}\t{constants}")
    for group in model.operators:
        end = f"{group.class_name}\t{group.rule}\t{group.written or '-'}\t{group.skipped}"
        lines += [f"op\t{pattern}\t{end}" for pattern in group.patterns]
    return lines


def _values(model: CostModel, spec: DeviceSpec) -> dict[str, float]:
    hbm, fp16 = spec.memory_bytes_per_s.value, spec.matrix_peak("fp16")
    cores, frequency, lanes = spec.cube_cores, spec.frequency_hz, spec.vector_peak("fp32")
    needed = {
        "the rate of the memory": hbm, "the FP16 peak of the cube": fp16, "the FP32 peak of the vector cores": lanes,
        "the number of cube cores": cores, "the frequency": frequency,
    }  # fmt: skip
    missing = [what for what, figure in needed.items() if not figure]
    if missing:
        raise UsageError(
            f"times cannot be modelled for {spec.name}: the device table does not know {'; '.join(missing)}",
            hint="choose a chip of which it does, such as Ascend910B2",
        )
    assert hbm is not None and fp16 is not None and cores is not None and frequency is not None and lanes is not None
    values = {
        "cube_cores": float(cores), "frequency_hz": float(frequency), "cube_fp16": fp16,
        # Chips without bf16 or int8 rates never see such products from the real software, or see them as fp16.
        "cube_bf16": spec.matrix_peak("bf16") or fp16, "cube_int8": spec.matrix_peak("int8") or fp16,
        "cube_fp32": spec.matrix_peak("fp32") or fp16 * model.device["fp32_cube_ratio"].value,
        # The peak counts a multiply-add as two; a lane does one operation per cycle.
        "lanes_per_s": lanes / 2,
        "hbm_bytes_per_s": hbm, "l2_bytes": spec.l2_bytes.value or 0.0,
    }  # fmt: skip
    for key, constant in model.device.items():
        if key != "fp32_cube_ratio":
            values[key] = constant.value
    for key, constant in {**model.launch, **model.copies, **model.links}.items():
        if key == "mesh_peers":
            continue
        if key.endswith("_hbm_efficiency"):
            values[key.removesuffix("_hbm_efficiency") + "_bytes_per_s"] = constant.value * hbm
        else:
            values[key] = constant.value
    return values


@lru_cache(maxsize=1)
def cost_model() -> CostModel:
    """The model that comes with the package."""
    return read_model(FILE)


def read_model(path: Path) -> CostModel:
    """Read and check a model.

    Raises:
        InputError: the file is not a model, or one of its entries contradicts another.
    """
    # Imported here: yaml costs 15 ms that commands without a virtual NPU need not pay.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(path.read_text("utf-8"), Loader=loader)
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path.name} is no cost model of schema version {SCHEMA_VERSION}")
    sources = {str(key): str(text) for key, text in cast("dict[object, object]", document["sources"]).items()}
    classes = {
        str(name): _class(str(name), cast("dict[str, object]", body), sources)
        for name, body in cast("dict[object, object]", document["classes"]).items()
    }
    if DEFAULT_CLASS not in classes:
        raise InputError(f"{path.name} has no class {DEFAULT_CLASS}")
    groups = []
    for row in cast("list[dict[str, object]]", document["operators"]):
        group = Operators(
            patterns=tuple(str(item) for item in cast("list[object]", row["match"])),
            class_name=str(row["class"]),
            rule=str(row["rule"]),
            written=str(row.get("written", "")),
            skipped=int(cast("int", row.get("skipped", 0))),
        )
        if group.class_name not in classes or group.rule not in RULES:
            raise InputError(f"{path.name}: operators {', '.join(group.patterns)} name no known class or rule")
        groups.append(group)
    return CostModel(
        sources=sources,
        device=_constants(document["device"], sources, "device"),
        launch=_constants(document["launch"], sources, "launch"),
        copies=_constants(document["copies"], sources, "copies"),
        links=_constants(document["links"], sources, "links"),
        classes=classes,
        operators=tuple(groups),
    )


def _class(name: str, body: Mapping[str, object], sources: Mapping[str, str]) -> CostClass:
    ratio = cast("dict[str, float]", body["ratio"])
    figures = {key: value for key, value in body.items() if key not in ("kind", "what", "ratio")}
    return CostClass(
        name=name,
        kind=str(body["kind"]),
        what=str(body["what"]),
        constants=_constants(figures, sources, name),
        ratio=Ratio(low=float(ratio["low"]), high=float(ratio["high"]), kernels=int(ratio.get("kernels", 0))),
    )


def _constants(block: object, sources: Mapping[str, str], where: str) -> dict[str, Constant]:
    found = {}
    for key, entry in cast("dict[str, dict[str, object]]", block).items():
        named = tuple(str(item) for item in cast("list[object]", entry.get("source", [])))
        status = str(entry.get("status"))
        if status not in _STATUSES or any(item not in sources for item in named):
            raise InputError(f"cost model: {where}.{key} has no known status or source")
        found[key] = Constant(
            value=float(cast("float", entry["value"])),
            status=cast("Status", status),
            sources=named,
            uncertainty=str(entry.get("uncertainty", "")),
            note=str(entry.get("note", "")),
        )
    return found
