"""ONNX models with preprocessing, node by node, and the original's arithmetic by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ascend_perf.atc.plan import Plan, Request, make_plan

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
OUTPUT = "y"


class Net:
    """Nodes one after another, each on the output of the last; ends in a convolution and a mean."""

    def __init__(self, shape: Sequence[int | str], kind: int = TensorProto.UINT8, *, opset: int = 13) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs = [helper.make_tensor_value_info("input", kind, shape)]
        self.opset = opset
        self.last = "input"

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, kind: str, *more: str, outputs: Sequence[str] = (), first: str | None = None, **settings: Any) -> str:
        made = list(outputs) or [f"t{len(self.nodes)}"]
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [first or self.last, *more], made, name=name, **settings))
        self.last = made[0]
        return self.last

    def cast(self, kind: int = TensorProto.FLOAT) -> Net:
        self.add("Cast", to=kind)
        return self

    def normalise(self, shape: Sequence[int] = (1, 3, 1, 1), *, mean: Any = MEAN, std: Any = STD) -> Net:
        self.add("Sub", self.constant(np.reshape(mean, shape)))
        self.add("Div", self.constant(np.reshape(std, shape)))
        return self

    def turn(self, order: Sequence[int] = (0, 3, 1, 2)) -> Net:
        self.add("Transpose", perm=list(order))
        return self

    def crop(self, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Net:
        self.add("Slice", *(self.constant(each, np.int64) for each in (starts, ends, axes)))
        return self

    def pad(self, sizes: Sequence[int], value: float = 0.0) -> Net:
        self.add("Pad", self.constant(sizes, np.int64), self.constant(value))
        return self

    def model(self, channels: int = 3) -> Any:
        weight = np.random.default_rng(7).standard_normal((4, channels, 3, 3))
        self.add("Conv", self.constant(weight), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        self.add("GlobalAveragePool", outputs=[OUTPUT])
        return self.finished([helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [None, 4, 1, 1])])

    def finished(self, outputs: list[Any]) -> Any:
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def plan(folder: Path, model: Any, **options: Any) -> Plan:
    """Write a model and plan it; the proof runs in onnxruntime."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return make_plan(Request(path=path, soc="Ascend910B2", output=folder / "out", rounds=1, **options))


def rank(found: Plan) -> dict[str, Any]:
    """AIPP's file as values by field."""
    return {
        line.split(": ")[0].strip(): line.split(": ")[1] for line in found.aipp_text.splitlines() if ": " in line
    }
