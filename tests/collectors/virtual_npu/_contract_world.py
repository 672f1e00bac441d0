"""A small torch_npu as facts, written by hand: what tests of the contract check need without the wheel."""

from __future__ import annotations

from typing import Any

from ascend_perf.collectors.virtual_npu._contract_names import Facts

Json = dict[str, Any]


def argument(name: str, kind: str = "Tensor", **more: bool) -> Json:
    """An argument of a schema."""
    return {"name": name, "type": kind, **more}


def parameter(name: str, kind: str = "POSITIONAL_OR_KEYWORD", has_default: bool = False, **more: str) -> Json:
    """A parameter of a Python function."""
    return {"name": name, "kind": kind, "has_default": has_default, **more}


def operator(*arguments: Json, gradient: str = "own", returns: tuple[str, ...] = ("Tensor",), **more: str) -> Json:
    """One overload."""
    return {"arguments": list(arguments), "gradient": gradient, "returns": list(returns), **more}


def small_facts() -> Facts:
    """A wheel with a handful of operators, a profiler and an optimizer."""
    objects: list[Json] = []

    def put(body: Json) -> int:
        objects.append(body)
        return len(objects) - 1

    operators = {
        "npu_rms_norm": {"": operator(
            argument("input"), argument("gamma"), argument("epsilon", "float", has_default=True),
            returns=("Tensor", "Tensor"),
        )},
        "npu_add_rms_norm": {"": operator(argument("x1"), argument("x2"), argument("gamma"), gradient="refuses")},
        "npu_ffn": {"": operator(
            argument("x"), argument("weight1"), argument("weight2"), argument("activation", "str"),
            argument("inner_precise", "int", keyword_only=True, has_default=True), gradient="none",
        )},
        "npu_format_cast": {
            "": operator(argument("self"), argument("acl_format", "int"), gradient="none"),
            "Tensor": operator(argument("self"), argument("dst"), gradient="none"),
        },
        "_npu_format_cast": {"": operator(argument("self"), argument("acl_format", "int"))},
        "npu_transpose": {"": operator(
            argument("self"), argument("perm", "List[int]"), argument("require_contiguous", "bool", has_default=True),
            gradient="none", deprecated="torch_npu.npu_transpose is deprecated. Use torch.permute instead.",
        )},
        "npu_rms_norm_backward": {"": operator(argument("dy"), gradient="none")},
        "get_npu_format": {"": operator(argument("self"), gradient="none", returns=("int",))},
    }  # fmt: skip
    numbers = {name: put({"kind": "operator", "operator": name}) for name in operators}
    step = put({"kind": "function", "name": "step", "signature": [parameter("self")], "is_method": True})
    profile = put({
        "kind": "class", "name": "profile", "module": "torch_npu.profiler.profiler", "enters_itself": True,
        "members": {"step": step, "start": None}, "attributes": ["metadata"],
        "signature": [parameter(name, "KEYWORD_ONLY", True) for name in ("activities", "schedule", "with_stack")],
    })  # fmt: skip
    schedule = put({
        "kind": "class", "name": "Schedule", "module": "torch_npu.profiler.scheduler", "enters_itself": False,
        "members": {}, "attributes": [],
        "signature": [parameter("wait"), parameter("active"), *(parameter(name, has_default=True) for name in
                                                              ("warmup", "repeat", "skip_first"))],
    })  # fmt: skip
    config = put({
        "kind": "class", "name": "_ExperimentalConfig", "module": "torch_npu.profiler.experimental_config",
        "enters_itself": False, "members": {}, "attributes": [],
        # The real package annotates levels and metrics as int although their members are texts.
        "signature": [*(parameter(name, has_default=True, annotation="int") for name in
                        ("profiler_level", "aic_metrics")),
                      *(parameter(name, has_default=True) for name in ("l2_cache", "export_type", "host_sys"))],
    })  # fmt: skip

    def chooser(name: str, **values: object) -> int:
        members = {key: put({"kind": "value", "value": value}) for key, value in values.items()}
        return put({"kind": "class", "name": name, "module": "torch_npu.profiler.experimental_config",
                    "members": members, "attributes": [], "enters_itself": False, "signature": []})  # fmt: skip

    activity = put({
        "kind": "class", "name": "ProfilerActivity", "module": "torch_npu._C._profiler", "attributes": [],
        "members": {"CPU": None, "NPU": None}, "enumerated": ["CPU", "NPU"], "enters_itself": False, "signature": None,
    })  # fmt: skip
    adamw = put({
        "kind": "class", "name": "NpuFusedAdamW", "module": "torch_npu.optim.npu_fused_adamw", "attributes": None,
        "members": {"step": None}, "enters_itself": False,
        "signature": [parameter("params"), parameter("lr", has_default=True, annotation="float")],
    })  # fmt: skip
    synchronize = put({"kind": "function", "name": "synchronize", "signature": [parameter("device", has_default=True)]})
    cached = put({
        "kind": "function", "name": "memory_cached", "signature": [], "deprecated": "renamed to memory_reserved",
    })  # fmt: skip
    levels = chooser("ProfilerLevel", Level0=0, Level1=1, Level2=2, Level_none=-1)
    document = {
        "version": 1, "torch": "2.13.0", "torch_npu": "2.13.0", "operators": operators, "objects": objects,
        "on_torch": sorted(operators),
        "modules": {
            "torch_npu": {"loaded": True, "names": {
                **numbers, "npu": "torch_npu.npu", "profiler": "torch_npu.profiler", "optim": "torch_npu.optim",
                "contrib": "torch_npu.contrib", "torch": None,
            }},
            "torch_npu.npu": {"loaded": True, "names": {
                "synchronize": synchronize, "memory_cached": cached, "Stream": None, "is_available": None,
            }},
            "torch_npu.profiler": {"loaded": True, "names": {
                "profile": profile, "schedule": schedule, "_ExperimentalConfig": config, "ProfilerActivity": activity,
                "ProfilerLevel": levels, "AiCMetrics": chooser("AiCMetrics", PipeUtilization=0, AiCoreNone=255),
                "ExportType": chooser("ExportType", Db="db", Text="text"),
                "HostSystem": chooser("HostSystem", CPU="cpu", MEM="mem"),
            }},
            "torch_npu.optim": {"loaded": True, "names": {"NpuFusedAdamW": adamw}},
            "torch_npu.contrib": {"loaded": True, "names": {"transfer_to_npu": "torch_npu.contrib.transfer_to_npu"}},
            "torch_npu.contrib.transfer_to_npu": {"loaded": False, "names": {"amp": None}},
        },
    }  # fmt: skip
    return Facts(document)
