"""AIPP for a workload that preprocesses pictures: its own description as a graph, planned and proved as any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ascend_perf.atc.plan import Plan, Request, plan_of
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.workloads._spec import Value, find_workload

WORKLOADS: Final = ("resnet50-infer",)
"""Workloads of inference on pictures. AIPP is in offline models only, which do not train."""
_TAKERS: Final = {
    "decode": "DVPP (JPEGD)", "resize and crop": "DVPP (VPC), crop AIPP", "normalise": "AIPP", "copy": "uint8",
}  # fmt: skip
"""Who could do a stage of the workload; of the copy, what it could carry."""


@dataclass(frozen=True, kw_only=True)
class WorkloadPlan:
    """The plan, and what the workload itself says about its preprocessing."""

    plan: Plan
    stages: tuple[dict[str, Value], ...]
    """As the workload is set: a row per stage, and what could do it (`could_be`)."""
    export_command: str
    """Writes the model that the `atc` command takes."""


def workload_plan(name: str, preset: str, overrides: Sequence[str], request: Request) -> WorkloadPlan:
    """What AIPP can take over of a workload's preprocessing.

    Args:
        name: of the workload.
        preset: its size.
        overrides: `key=value`.
        request: its path is not read.

    Raises:
        MachineError: onnx or onnxruntime is not installed.
        UsageError: no such workload, or a setting that it does not take.
    """
    from ascend_perf.workloads import resnet50_infer

    if name not in WORKLOADS:
        raise UsageError(f"the workload {name!r} prepares no pictures for inference", hint=", ".join(WORKLOADS))
    config = find_workload(name).settings(preset, overrides).config
    assert isinstance(config, resnet50_infer.Config)
    asked = replace(config, preprocess="aipp", onnx_dynamic_batch=False)
    model = _model_of(asked)
    plan = plan_of(model, replace(request, path=Path(f"{name}.onnx")), net_file="model.onnx")
    settings = " ".join(f"--set {each}" for each in (*overrides, "preprocess=aipp", "export_onnx=true"))
    return WorkloadPlan(
        plan=plan,
        stages=tuple({**row, "could_be": _TAKERS[str(row["stage"])]} for row in resnet50_infer.stages(config)),
        export_command=f"ascend-perf run {name} --preset {preset} {settings}",
    )


def _model_of(config: Any) -> Any:
    """Crop and normalisation of the workload as a graph on uint8, with a convolution in the place of the net."""
    from ascend_perf.workloads import _images, _onnx

    try:
        import onnx
    except ImportError as error:
        raise MachineError(
            "ONNX models are made with the package onnx, not installed here", hint="pip install 'ascend-perf[onnx]'"
        ) from error
    graph = _onnx.Graph()
    x, size, start = _onnx.INPUT, config.sent_px, (config.sent_px - config.crop_px) // 2
    if size != config.crop_px:
        end = start + config.crop_px
        parts = {"starts": [start, start], "ends": [end, end], "axes": [1, 2]}
        names = [graph.constant(f"crop.{part}", np.array(values, np.int64)) for part, values in parts.items()]
        x = graph.node("Slice", [x, *names], "preprocess.crop")
    x = graph.normalise(x, _images.MEAN_RGB, _images.STD_RGB)
    weight = graph.constant("net.weight", np.random.default_rng(0).standard_normal((8, 3, 7, 7)).astype(np.float32))
    graph.node("Conv", [x, weight], _onnx.OUTPUT, kernel_shape=[7, 7], strides=[4, 4])
    helper, kinds = onnx.helper, onnx.TensorProto
    made = helper.make_graph(
        graph.nodes, "preprocessing",
        [helper.make_tensor_value_info(_onnx.INPUT, kinds.UINT8, [config.batch, size, size, 3])],
        [helper.make_tensor_value_info(_onnx.OUTPUT, kinds.FLOAT, [config.batch, 8, None, None])], graph.constants,
    )  # fmt: skip
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid("", _onnx.OPSET)], ir_version=_onnx.IR_VERSION
    )  # fmt: skip
