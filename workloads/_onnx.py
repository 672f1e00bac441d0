"""ResNet-50 as an ONNX file for ATC, node by node: torch's exporters differ by release, this graph does not.

    model.onnx   opset 13; input float NCHW, or uint8 NHWC with the preprocessing as its first nodes
    aipp.cfg     AIPP mode: ATC puts it in front of the float input, so that the .om takes uint8 NHWC
    atc.sh       the command that makes the .om
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ascend_perf.errors import MachineError
from ascend_perf.ops.aipp import AippConfig

OPSET: Final = 13
"""What ATC of CANN 7 and later reads (11 to 18), and the first with BatchNormalization as every runtime has it."""
IR_VERSION: Final = 8
"""Later ones are refused by runtimes of the time of opset 13."""
MODEL_FILE: Final = "model.onnx"
AIPP_FILE: Final = "aipp.cfg"
COMMAND_FILE: Final = "atc.sh"
INPUT: Final = "input"
OUTPUT: Final = "logits"


class Graph:
    """Nodes and constants in the making. Each call adds a node and gives the name of its output."""

    def __init__(self) -> None:
        import onnx

        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        """Add a node."""
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """Add a constant."""
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def convolution(self, x: str, conv: Any, norm: Any, name: str) -> str:
        """A convolution without bias and its batch norm, left apart: ATC joins them."""
        weight = self.constant(f"{name}.weight", _array(conv.weight))
        y = self.node(
            "Conv", [x, weight], name, kernel_shape=list(conv.kernel_size), strides=list(conv.stride),
            pads=[*conv.padding, *conv.padding], dilations=[1, 1], group=1,
        )  # fmt: skip
        parts = {"scale": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "variance": norm.running_var}
        names = [self.constant(f"{name}.norm.{part}", _array(value)) for part, value in parts.items()]
        return self.node("BatchNormalization", [y, *names], f"{name}.norm", epsilon=float(norm.eps))

    def normalise(self, pixels: str, mean: Sequence[float], std: Sequence[float]) -> str:
        """uint8 NHWC to float NCHW."""
        onnx = self._onnx
        x = self.node("Cast", [pixels], "preprocess.cast", to=onnx.TensorProto.FLOAT)
        low = self.constant("preprocess.mean", np.float32(255) * np.asarray(mean, np.float32))
        scale = self.constant("preprocess.scale", 1 / (np.float32(255) * np.asarray(std, np.float32)))
        x = self.node("Sub", [x, low], "preprocess.centred")
        x = self.node("Mul", [x, scale], "preprocess.scaled")
        return self.node("Transpose", [x], "preprocess.nchw", perm=[0, 3, 1, 2])


def resnet_model(
    net: Any, *, batch: int | None, crop_px: int, pixels: tuple[Sequence[float], Sequence[float]] | None = None
) -> Any:
    """The net of `_resnet.ResNet50` in inference as an ONNX model, in fp32.

    Args:
        batch: of the input; None: any (ATC then wants `--dynamic_batch_size`).
        crop_px: height and width of the input.
        pixels: mean and deviation per channel (of values 0..1): the input is uint8, NHWC; None: float, NCHW.

    Raises:
        MachineError: the package onnx is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MachineError(
            "the ONNX export needs onnx, not installed here", hint="pip install 'ascend-perf[onnx]'"
        ) from error
    graph = Graph()
    first: int | str = "batch" if batch is None else batch
    if pixels is None:
        x, kind, shape = INPUT, onnx.TensorProto.FLOAT, [first, 3, crop_px, crop_px]
    else:
        x, kind, shape = graph.normalise(INPUT, *pixels), onnx.TensorProto.UINT8, [first, crop_px, crop_px, 3]
    x = graph.node("Relu", [graph.convolution(x, net.stem, net.stem_norm, "stem")], "stem.relu")
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for index, block in enumerate(net.blocks):
        name, shortcut = f"blocks.{index}", x
        y = graph.node("Relu", [graph.convolution(x, block.conv1, block.norm1, f"{name}.conv1")], f"{name}.relu1")
        y = graph.node("Relu", [graph.convolution(y, block.conv2, block.norm2, f"{name}.conv2")], f"{name}.relu2")
        y = graph.convolution(y, block.conv3, block.norm3, f"{name}.conv3")
        if len(list(block.shortcut.children())):
            conv, norm = block.shortcut
            shortcut = graph.convolution(x, conv, norm, f"{name}.shortcut")
        x = graph.node("Relu", [graph.node("Add", [y, shortcut], f"{name}.add")], f"{name}.relu3")
    x = graph.node("GlobalAveragePool", [x], "mean")
    x = graph.node("Flatten", [x], "features", axis=1)
    weight = graph.constant("classifier.weight", _array(net.classifier.weight))
    bias = graph.constant("classifier.bias", _array(net.classifier.bias))
    graph.node("Gemm", [x, weight, bias], OUTPUT, transB=1)
    made = onnx.helper.make_graph(
        graph.nodes,
        "resnet50",
        [onnx.helper.make_tensor_value_info(INPUT, kind, shape)],
        [onnx.helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, [first, net.classifier.out_features])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ascend-perf"
    )
    onnx.checker.check_model(model)
    return model


def atc_command(
    *, shape: Sequence[int | str], layout: str, soc_version: str, precision: str, with_aipp: bool, sizes: Sequence[int]
) -> list[str]:
    """The words of the ATC call that makes an offline model of `model.onnx`.

    Args:
        shape: of the input; a word stands for the dynamic batch, whose sizes are then `sizes`.
        layout: NCHW, or ND where no dimension has a meaning for ATC (pixels that the graph transposes itself).
        precision: value of `--precision_mode_v2`.

    Source:
        ATC guide: framework 5 is ONNX; a dynamic batch is -1 in the shape.
    """
    dimensions = ",".join("-1" if isinstance(size, str) else str(size) for size in shape)
    words = [
        "atc", f"--model={MODEL_FILE}", "--framework=5", "--output=model", f"--soc_version={soc_version}",
        f"--input_format={layout}", f"--input_shape={INPUT}:{dimensions}", f"--precision_mode_v2={precision}",
    ]  # fmt: skip
    if any(isinstance(size, str) for size in shape):
        words.append(f"--dynamic_batch_size={','.join(map(str, sizes))}")
    if with_aipp:
        words += [f"--insert_op_conf={AIPP_FILE}", "--enable_small_channel=1"]
    return [*words, "--log=error"]


def export(
    net: Any,
    folder: Path,
    *,
    batch: int,
    dynamic_batch: bool,
    crop_px: int,
    pixels: tuple[Sequence[float], Sequence[float]] | None,
    aipp: AippConfig | None,
    soc_version: str,
    precision: str,
) -> tuple[str, ...]:
    """Write the model, the AIPP file where there is one, and the ATC command; the names of the files.

    Raises:
        MachineError: the package onnx is not installed.
    """
    model = resnet_model(net, batch=None if dynamic_batch else batch, crop_px=crop_px, pixels=pixels)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(model.SerializeToString())
    names = [MODEL_FILE]
    if aipp is not None:
        (folder / AIPP_FILE).write_text(aipp.text(), "utf-8")
        names.append(AIPP_FILE)
    first: int | str = "batch" if dynamic_batch else batch
    shape = [first, crop_px, crop_px, 3] if pixels is not None else [first, 3, crop_px, crop_px]
    words = atc_command(
        shape=shape, layout="NCHW" if pixels is None else "ND", soc_version=soc_version, precision=precision,
        with_aipp=aipp is not None, sizes=sorted({1, batch} if batch > 1 else {1, 2}),
    )  # fmt: skip
    (folder / COMMAND_FILE).write_text(f"{shlex.join(words)}\n", "utf-8")
    return (*names, COMMAND_FILE)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.detach().float().cpu().numpy())
