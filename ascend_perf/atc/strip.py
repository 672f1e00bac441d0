"""The model without what AIPP takes over: what ATC is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ascend_perf.atc.graph import Graph, used_names
from ascend_perf.atc.preprocessing import Cut


def stripped(graph: Graph, cuts: Mapping[str, Cut]) -> Any:
    """The model with the inputs moved to the cuts: NCHW, of the type of the tensor there.

    An ONNX model for ATC has NCHW inputs. Where the tensor at the cut is NHWC, a Transpose is put in front of what is
    left.

    Args:
        graph: of the whole model, which stays as it is.
        cuts: by the name of the input.
    """
    import onnx

    helper, whole = onnx.helper, graph.model
    stops = frozenset(cut.tensor for cut in cuts.values()) | {each.name for each in graph.inputs}
    kept = sorted(graph.needed(list(graph.outputs), stops))
    names: dict[str, str] = {}
    nodes, inputs = [], []
    taken = {name for node in graph.nodes for name in (*node.input, *node.output)}
    infos = {each.name: each for each in whole.graph.input}
    for each in graph.inputs:
        cut = cuts.get(each.name)
        if cut is None:
            inputs.append(infos[each.name])
            continue
        picture = cut.picture
        shape = [picture.batch, len(picture.channels), picture.rows.total, picture.columns.total]
        inputs.append(helper.make_tensor_value_info(each.name, picture.elem_type, shape))
        names[cut.tensor] = each.name
        if picture.axes == "NHWC":
            turned = f"{each.name}_nhwc"
            while turned in taken:
                turned += "_"
            nodes.append(helper.make_node("Transpose", [each.name], [turned], name=turned, perm=[0, 2, 3, 1]))
            names[cut.tensor] = turned
    for index in kept:
        node = onnx.NodeProto()
        node.CopyFrom(graph.nodes[index])
        _rename(node, names)
        nodes.append(node)
    used = {name for node in nodes for name in used_names(node)} | set(graph.outputs)
    made = onnx.ModelProto()
    made.CopyFrom(_without_graph(whole))
    made.graph.name = whole.graph.name or "model"
    made.graph.node.extend(nodes)
    made.graph.input.extend(inputs)
    made.graph.output.extend(whole.graph.output)
    made.graph.initializer.extend(each for each in whole.graph.initializer if each.name in used)
    made.graph.sparse_initializer.extend(each for each in whole.graph.sparse_initializer if each.values.name in used)
    own = {each.name for each in made.graph.initializer}
    for index in sorted(graph.folded):
        name = graph.nodes[index].output[0]
        if name in used and name not in own:
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(graph.constants[name]), name))
    made_names = {name for node in nodes for name in node.output}
    made.graph.value_info.extend(each for each in whole.graph.value_info if each.name in made_names)
    onnx.checker.check_model(made)
    return made


def part(graph: Graph, targets: Sequence[str], source: str) -> Any:
    """The nodes from one input to some tensors as a model of its own, unchanged."""
    import onnx

    helper, whole = onnx.helper, graph.model
    kept = [graph.nodes[index] for index in _all_needed(graph, targets, source)]
    used = {name for node in kept for name in used_names(node)}
    made = onnx.ModelProto()
    made.CopyFrom(_without_graph(whole))
    made.graph.name = "head"
    made.graph.node.extend(kept)
    made.graph.input.extend(each for each in whole.graph.input if each.name == source)
    made.graph.initializer.extend(each for each in whole.graph.initializer if each.name in used)
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in targets)
    return made


def _all_needed(graph: Graph, targets: Sequence[str], source: str) -> list[int]:
    """As `Graph.needed`, with the nodes of constants."""
    found: set[int] = set()
    open_names = list(targets)
    while open_names:
        index = graph.producer.get(open_names.pop())
        if index is not None and index not in found:
            found.add(index)
            open_names.extend(name for name in used_names(graph.nodes[index]) if name != source)
    return sorted(found)


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Put new names of tensors into a node and the graphs inside of it."""
    for position, name in enumerate(node.input):
        if name in names:
            node.input[position] = names[name]
    for attribute in node.attribute:
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            hidden = {each.name for each in (*inner.input, *inner.initializer)}
            hidden |= {name for each in inner.node for name in each.output}
            seen = {old: new for old, new in names.items() if old not in hidden}
            for each in inner.node:
                _rename(each, seen)


def _without_graph(model: Any) -> Any:
    import onnx

    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, producer_name=model.producer_name,
        producer_version=model.producer_version, domain=model.domain, functions=model.functions,
        model_version=model.model_version, metadata_props=model.metadata_props,
    )  # fmt: skip
