"""An ONNX file as a checked graph: nodes in an order that can be run, constants, who uses what.

Files are untrusted: a truncated or foreign file, a cycle, two nodes with one output and absent external data end in an
`InputError`; nothing is run here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ascend_perf.errors import InputError, MachineError, UsageError, first_line

MAX_BYTES: Final = (1 << 31) - 1
"""Of the file and of its external data together: what protobuf can write again."""
MAX_NESTING: Final = 16
"""Graphs within graphs (If, Loop). Status: assumed."""
MAX_FOLDED_VALUES: Final = 4096
"""Constants larger than this are not computed with; shapes and channel statistics are far smaller. Status: assumed."""
_FOLDABLE: Final = frozenset({
    "Add", "Cast", "Concat", "Constant", "Div", "Gather", "Identity", "Mul", "Neg", "Pow", "Reciprocal", "Reshape",
    "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operations that are computed when all inputs are constants. None makes much out of little."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of the graph; `shape` has None where the file leaves a dimension open."""

    name: str
    elem_type: int
    shape: tuple[int | None, ...]


@dataclass
class Graph:
    """The top graph of a model. Nodes are known by their position in `nodes`."""

    model: Any
    nodes: list[Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Array]
    """Small ones, and those that were computed from them; large weights are in `weights` by name alone."""
    weights: frozenset[str]
    producer: dict[str, int]
    consumers: dict[str, list[int]]
    folded: set[int] = field(default_factory=set)
    """Nodes whose outputs are among the constants."""

    @property
    def opset(self) -> int:
        """Version of the operators of ONNX itself."""
        return next((each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx")), 0)

    def fold(self, index: int) -> bool:
        """Compute a node of constants; whether it could be."""
        from onnx.reference import ReferenceEvaluator

        node = self.nodes[index]
        names = [name for name in node.input if name]
        if node.op_type not in _FOLDABLE or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        if any(name not in self.constants for name in names):
            return False
        if sum(self.constants[name].size for name in names) > MAX_FOLDED_VALUES:
            return False
        if node.op_type == "Constant" and node.ByteSize() > 8 * MAX_FOLDED_VALUES:
            return False
        try:
            with np.errstate(all="ignore"):
                # Its own opset: the meaning of Squeeze and others changed.
                runner = ReferenceEvaluator(_single(node, self.opset))
                (value,) = runner.run(None, {name: self.constants[name] for name in names})
        except Exception:  # the evaluator raises whatever numpy does for wrong attributes; the node then stays
            return False
        self.set_constant(index, np.asarray(value))
        return True

    def set_constant(self, index: int, value: Array) -> None:
        """Note what a node always gives."""
        self.constants[self.nodes[index].output[0]] = value
        self.folded.add(index)

    def needed(self, targets: Sequence[str], stops: frozenset[str]) -> set[int]:
        """Nodes that the targets are computed from; beyond `stops` and constants nothing is looked for."""
        found: set[int] = set()
        open_names = deque(targets)
        while open_names:
            name = open_names.popleft()
            index = self.producer.get(name)
            if name in stops or name in self.constants or index is None or index in found:
                continue
            found.add(index)
            open_names.extend(used_names(self.nodes[index]))
        return found

    def is_gate(self, source: str, tensor: str) -> bool:
        """Whether all that `source` has to do with an output goes through `tensor`."""
        outputs = set(self.outputs)
        seen = {source, tensor}
        open_names = deque([source] if source != tensor else [])
        while open_names:
            name = open_names.popleft()
            if name in outputs:
                return False
            for index in self.consumers.get(name, ()):
                if index in self.folded:
                    continue
                for made in self.nodes[index].output:
                    if made and made not in seen:
                        seen.add(made)
                        open_names.append(made)
        return True


def used_names(node: Any) -> Iterator[str]:
    """Tensors that a node takes, those that its inner graphs take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        inner = ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
        for graph in inner:
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own |= {name for each in graph.node for name in each.output}
            names = (name for each in graph.node for name in used_names(each))
            yield from (name for name in (*names, *(each.name for each in graph.output)) if name not in own)


def attributes(node: Any) -> dict[str, Any]:
    """Values by name; text as str."""
    import onnx

    values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    return {name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for name, value in values.items()}  # fmt: skip


def read_model(path: Path) -> Any:
    """The model of a file, its external data included.

    Raises:
        InputError: the file is not there, not ONNX, damaged, too large, or its external data are not there.
        MachineError: the package onnx is not installed.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes with onnx
    except ImportError as error:
        raise MachineError(
            "ONNX files are read with the package onnx, not installed here", hint="pip install 'ascend-perf[onnx]'"
        ) from error
    if not path.is_file():
        raise InputError(f"no file {path.name or path}", hint="give the .onnx file of the model")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path.name} is larger than 2 GiB", hint="keep the weights of large models as external data")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise InputError(
            f"{path.name} is not an ONNX model, or is cut off: it cannot be read as protobuf", hint="export it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from error
    if not model.graph.node or not model.ir_version:
        raise InputError(f"{path.name} is not an ONNX model: it holds no graph", hint="export it again")
    _check_nesting(model.graph, path.name, 0)
    _load_external(model, path)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:  # ValueError: text that is not UTF-8
        first = first_line(error)
        if "topologically sorted" not in first:  # told below, with the names
            raise InputError(f"{path.name} is not a valid ONNX model: {first}", hint="export it again") from error
    return model


def graph_of(model: Any, shapes: dict[str, tuple[int, ...]] | None = None) -> Graph:
    """The graph of a model, its inputs set to `shapes` where given (the model changes).

    Raises:
        InputError: a cycle, an input that nothing makes, two nodes that make the same tensor.
        UsageError: a shape for an input that the model does not have, or with other sizes.
    """
    import onnx

    top = model.graph
    weights = {each.name for each in top.initializer} | {each.values.name for each in top.sparse_initializer}
    inputs = []
    for each in top.input:
        if each.name in weights:
            continue  # before IR 4 weights had to be listed among the inputs
        if not each.type.HasField("tensor_type"):
            inputs.append(Input(name=each.name, elem_type=0, shape=()))
            continue
        kind = each.type.tensor_type
        shape = tuple(size.dim_value if size.dim_value > 0 else None for size in kind.shape.dim)
        wanted = (shapes or {}).get(each.name)
        if wanted is not None:
            if len(wanted) != len(shape) or any(a not in (None, b) for a, b in zip(shape, wanted, strict=True)):
                raise UsageError(f"the input {each.name} has the shape {_said(shape)}, not {_said(wanted)}")
            for size, value in zip(kind.shape.dim, wanted, strict=True):
                size.dim_value = value
            shape = wanted
        inputs.append(Input(name=each.name, elem_type=kind.elem_type, shape=shape))
    unknown = set(shapes or ()) - {each.name for each in inputs}
    if unknown:
        raise UsageError(
            f"the model has no input {min(unknown)}", hint=f"inputs: {', '.join(each.name for each in inputs)}"
        )
    nodes = _in_order(list(top.node), {each.name for each in inputs} | weights)
    consumers: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for name in dict.fromkeys(used_names(node)):
            consumers[name].append(index)
    try:
        small = {
            each.name: onnx.numpy_helper.to_array(each)
            for each in top.initializer
            if _is_small(each) or _is_image(each)
        }
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"a constant of the model is damaged: {str(error)[:200]}", hint="export it again") from error
    return Graph(
        model=model,
        nodes=nodes,
        inputs=tuple(inputs),
        outputs=tuple(each.name for each in top.output),
        constants=small,
        weights=frozenset(weights),
        producer={name: index for index, node in enumerate(nodes) for name in node.output if name},
        consumers=dict(consumers),
    )


def _in_order(nodes: list[Any], given: set[str]) -> list[Any]:
    """The nodes, each after those that it needs. ONNX asks for this order, not all writers keep it."""
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in producer or name in given):
                raise InputError(f"two nodes make the tensor {name[:80]!r}", hint="export the model again")
            producer[name] = index
    waits: list[set[int]] = []
    followers: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        names = set(used_names(node)) - given
        absent = sorted(name for name in names if name not in producer)
        if absent:
            raise InputError(
                f"node {_name(node)} takes {absent[0][:80]!r}, which nothing makes", hint="export the model again"
            )
        waits.append({producer[name] for name in names})
        for other in waits[-1]:
            followers[other].append(index)
    if all(other < index for index, others in enumerate(waits) for other in others):
        return nodes
    ready = deque(index for index, others in enumerate(waits) if not others)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        for other in followers[index]:
            waits[other].discard(index)
            if not waits[other]:
                ready.append(other)
    if len(order) < len(nodes):
        stuck = next(index for index, others in enumerate(waits) if others)
        raise InputError(f"the graph has a cycle through node {_name(nodes[stuck])}", hint="export the model again")
    return [nodes[index] for index in order]


def _check_nesting(graph: Any, name: str, depth: int) -> None:
    if depth > MAX_NESTING:
        raise InputError(f"{name}: graphs lie within graphs more than {MAX_NESTING} deep")
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _check_nesting(inner, name, depth + 1)


def _load_external(model: Any, path: Path) -> None:
    """Read weights that lie in files beside the model, and nowhere else."""
    import onnx

    total = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {each.key: each.value for each in tensor.external_data}
        place = Path(entries.get("location", ""))
        what = f"{path.name}: the weights of {tensor.name[:80]!r}"
        if not place.parts or place.is_absolute() or ".." in place.parts:
            raise InputError(f"{what} are said to lie outside of the model's folder, which is not followed")
        file = path.parent / place
        if not file.is_file() or not file.resolve().is_relative_to(path.parent.resolve()):
            raise InputError(f"{what} should be in {place}, which is not there", hint="copy it beside the model")
        total += file.stat().st_size if "length" not in entries else _whole(entries["length"], what)
        if total > MAX_BYTES:
            raise InputError(f"{path.name} has more than 2 GiB of external data, too much for a model of images")
    if total:
        try:
            onnx.load_external_data_for_model(model, str(path.parent))
        except (ValueError, OSError, onnx.checker.ValidationError) as error:
            raise InputError(f"{path.name}: external data cannot be read: {str(error)[:200]}") from error


def _whole(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{what} have no length that is a number: {text[:40]!r}") from None


def _single(node: Any, opset: int) -> Any:
    import onnx

    names = [name for name in node.input if name]
    value = onnx.helper.make_empty_tensor_value_info
    graph = onnx.helper.make_graph([node], "one", [value(name) for name in names], [value(node.output[0])])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def _is_small(tensor: Any) -> bool:
    return int(np.prod(np.array(tensor.dims, float))) <= MAX_FOLDED_VALUES


def _is_image(tensor: Any) -> bool:
    """Whether it may be a mean image."""
    sizes = [size for size in tensor.dims if size > 1]
    return len(sizes) <= 3 and any(size in (1, 3, 4) for size in tensor.dims) and len(tensor.dims) >= 3


def _name(node: Any) -> str:
    return f"{(node.name or (node.output[0] if node.output else ''))[:80]!r} ({node.op_type[:40]})"


def _said(shape: Sequence[int | None]) -> str:
    return ",".join("?" if size is None else str(size) for size in shape)
