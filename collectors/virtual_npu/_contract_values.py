"""Values that torch_npu's profiler does not take: it raises nothing, prints a line and goes on with another value.

Source: `_check_params` and its neighbours in torch_npu/profiler (experimental_config.py, scheduler.py,
profiler_interface.py) of 2.13; recorded from aclprofCreateConfig on the virtual NPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ascend_perf.collectors.virtual_npu._contract_calls import Complaint, Literally, literal
from ascend_perf.collectors.virtual_npu._contract_names import Facts, Found
from ascend_perf.model.finding import Words

_PROFILER: Final = "torch_npu.profiler"
CHOSEN: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("torch_npu.profiler.experimental_config", "_ExperimentalConfig"): {
        "profiler_level": f"{_PROFILER}.ProfilerLevel", "aic_metrics": f"{_PROFILER}.AiCMetrics",
        "export_type": f"{_PROFILER}.ExportType", "host_sys": f"{_PROFILER}.HostSystem",
    },
    ("torch_npu.profiler.profiler", "profile"): {"activities": f"{_PROFILER}.ProfilerActivity"},
}  # fmt: skip
"""Class -> argument -> the class whose members it takes."""
_CHOOSERS: Final = frozenset(path.rpartition(".")[2] for rows in CHOSEN.values() for path in rows.values())
BOOLEAN: Final = frozenset({
    "l2_cache", "msprof_tx", "mstx", "data_simplification", "record_op_args", "op_attr", "sys_io",
    "sys_interconnection",
})  # fmt: skip
"""Arguments of _ExperimentalConfig that are reset where they are no bool."""
LEAST: Final[Mapping[str, int]] = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0}
"""Arguments of schedule that are reset where they are less, or no whole number."""


def wrong_values(
    facts: Facts, found: Found, given: Mapping[str, ast.expr], paths: Mapping[int, str]
) -> list[Complaint]:
    """What is wrong with the values of a call of a class of torch_npu's profiler.

    Args:
        found: the class.
        given: argument -> expression.
        paths: id of an expression -> what it stands for.
    """
    named = (str(found.body.get("module")), str(found.body.get("name")))
    complaints: list[Complaint] = []
    for argument, chooses in CHOSEN.get(named, {}).items():
        if argument in given:
            for node in _parts(given[argument]):
                complaints += _choice(facts, argument, chooses, node, paths)
    if named == ("torch_npu.profiler.experimental_config", "_ExperimentalConfig"):
        complaints += _booleans(given)
        complaints += _metrics_without_level(facts, given, paths)
    if named == ("torch_npu.profiler.scheduler", "Schedule"):
        complaints += _least(given)
    return complaints


def without_annotations_of_choices(
    found: Found, given: Mapping[str, ast.expr], complaints: Sequence[Complaint]
) -> list[Complaint]:
    """Leaves out complaints that an argument in `CHOSEN` is not of its annotated type.

    torch_npu annotates levels and metrics as int while the members are texts: `wrong_values` knows which it takes.
    """
    chosen = CHOSEN.get((str(found.body.get("module")), str(found.body.get("name"))), {})
    nodes = {id(given[argument]) for argument in chosen if argument in given}
    return [one for one in complaints if one.is_certain or one.rule != "wrong-type" or id(one.node) not in nodes]


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        yield from node.elts
    else:
        yield node


def _choice(facts: Facts, argument: str, chooses: str, node: ast.expr, paths: Mapping[int, str]) -> list[Complaint]:
    there = facts.resolve(chooses)
    if not isinstance(there, Found) or there.kind != "class":
        return []
    short = chooses.removeprefix("torch_npu.")
    values = facts.members(chooses)
    members = ", ".join(there.body.get("enumerated") or values)
    given, path = literal(node), paths.get(id(node))
    if given is None and path is not None:
        owner = path.rpartition(".")[0]
        found = facts.resolve(owner)
        is_other = owner in ("torch.profiler.ProfilerActivity", "torch.autograd.ProfilerActivity")
        if isinstance(found, Found) and found.kind == "class":
            is_other = found.body["name"] != there.body["name"] and found.body["name"] in _CHOOSERS
        if not is_other:
            return []
        shown = path.removeprefix("torch_npu.")
    else:
        if given is None or given.kind in ("None", "list", "other"):
            return []
        if any(type(given.value) is type(value) and given.value == value for value in values.values()):
            return []
        shown = given.shown
    return [Complaint(rule="wrong-value", node=node, said=Words(
        f"{argument}={shown} is not taken: torch_npu goes on with its default; choose from {short}: {members}",
        f"{argument}={shown} 无效：torch_npu 会改用默认值；可选 {short}：{members}",
    ))]  # fmt: skip


def _booleans(given: Mapping[str, ast.expr]) -> Iterator[Complaint]:
    for argument in BOOLEAN & given.keys():
        value = literal(given[argument])
        if value is not None and value.kind not in ("bool", *(("None",) if argument == "data_simplification" else ())):
            yield Complaint(rule="wrong-value", node=given[argument], said=Words(
                f"{argument}={value.shown} is not taken: torch_npu goes on with its default; write True or False",
                f"{argument}={value.shown} 无效：torch_npu 会改用默认值；请写 True 或 False",
            ))  # fmt: skip


def _least(given: Mapping[str, ast.expr]) -> Iterator[Complaint]:
    for argument, least in LEAST.items():
        value = literal(given[argument]) if argument in given else None
        if value is not None and not (value.kind in ("int", "bool") and value.value >= least):
            yield Complaint(rule="wrong-value", node=given[argument], said=Words(
                f"{argument}={value.shown} is not taken: torch_npu goes on with {least}",
                f"{argument}={value.shown} 无效：torch_npu 会改用 {least}",
            ))  # fmt: skip


def _metrics_without_level(facts: Facts, given: Mapping[str, ast.expr], paths: Mapping[int, str]) -> list[Complaint]:
    """Counters need Level1 or Level2; at the default level they are dropped."""
    if "aic_metrics" not in given:
        return []
    levels = facts.members(f"{_PROFILER}.ProfilerLevel")
    metrics = facts.members(f"{_PROFILER}.AiCMetrics")
    level = _value(given.get("profiler_level"), levels, "Level0", paths)
    chosen = _value(given["aic_metrics"], metrics, "", paths)
    if level not in ("Level0", "Level_none") or chosen in ("", "AiCoreNone") or "Level1" not in levels:
        return []
    return [Complaint(rule="wrong-value", node=given["aic_metrics"], is_certain=False, said=Words(
        f"aic_metrics={chosen} is dropped at {level}: counters need profiler_level=ProfilerLevel.Level1 or Level2",
        f"aic_metrics={chosen} 在 {level} 下会被丢弃：采集计数器需要 profiler_level=ProfilerLevel.Level1 或 Level2",
    ))]  # fmt: skip


def _value(node: ast.expr | None, members: Mapping[str, object], default: str, paths: Mapping[int, str]) -> str:
    """The member that an argument names; empty where that is not known."""
    if node is None:
        return default
    given: Literally | None = literal(node)
    if given is not None:
        return next((name for name, value in members.items() if value == given.value), "")
    name = paths.get(id(node), "").rpartition(".")[2]
    return name if name in members else ""
