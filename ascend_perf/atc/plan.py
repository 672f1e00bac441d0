"""From an ONNX file to AIPP's file, the stripped model, the `atc` command and the proof."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ascend_perf.atc.command import OPSETS, atc_command, checked_soc
from ascend_perf.atc.graph import Graph, graph_of, read_model
from ascend_perf.atc.preprocessing import Head, Host, Source, Values, find_heads
from ascend_perf.atc.proof import Proof, prove
from ascend_perf.atc.strip import stripped
from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Words

AIPP_FILE: Final = "aipp.cfg"
COMMAND_FILE: Final = "atc.sh"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for; see the options of `ascend-perf aipp`."""

    path: Path
    soc: str
    output: Path | None = None
    shapes: str = ""
    """As `atc --input_shape`."""
    values: Values = "auto"
    layout: Literal["auto", "NCHW", "NHWC"] = "auto"
    source: Source = "rgb"
    host: Host | None = None
    only: str | None = None
    precision: str = "fp16"
    rounds: int = 2
    seed: int = 0
    tolerance: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was found, written and proved."""

    model: str
    soc: str
    source: Source
    heads: tuple[Head, ...]
    aipp_text: str
    command: tuple[str, ...]
    """Empty where AIPP can take nothing over."""
    files: tuple[Path, ...]
    proof: Proof | None
    bytes_before: int
    """Of all pictures of a call, as the model takes them now."""
    bytes_after: int
    notes: tuple[Words, ...]

    @property
    def is_done(self) -> bool:
        """Whether AIPP takes something over, and the proof holds."""
        return self.proof is not None and self.proof.holds


def make_plan(request: Request) -> Plan:
    """Find, write and prove.

    Raises:
        InputError: the file is no ONNX model, or takes no pictures.
        MachineError: onnx or onnxruntime is not installed.
        UsageError: the options do not fit the model.
    """
    checked_soc(request.soc)  # before a large file is read
    try:
        return plan_of(read_model(request.path), request)
    except UnicodeDecodeError as error:  # protobuf decodes a text only when it is read
        raise InputError(
            f"{request.path.name} is damaged: a name in it is no text (UTF-8)", hint="export the model again"
        ) from error


def plan_of(model: Any, request: Request, *, net_file: str | None = None) -> Plan:
    """As `make_plan`, of a model that is read already.

    Args:
        model: changed where shapes are given.
        request: its path gives the names.
        net_file: the model without preprocessing is there already, under this name; it is not written.
    """
    notes = checked_soc(request.soc)
    shapes = shapes_of(request.shapes)
    graph = graph_of(model, shapes)
    heads = find_heads(
        graph, values=request.values, layout=request.layout, source=request.source, host=request.host, only=request.only
    )
    if not heads:
        said = "; ".join(f"{each.name[:40]} {list(each.shape)}" for each in graph.inputs[:8]) or "none"
        raise InputError(
            f"no input of {request.path.name} takes pictures (three or four dimensions, 1, 3 or 4 channels): {said}",
            hint="AIPP is for models of images",
        )
    if graph.opset not in OPSETS:
        notes.append(Words(
            f"ATC reads opsets {OPSETS[0]} to {OPSETS[-1]} of ONNX, the model has {graph.opset}: export it again",
            f"ATC 支持 ONNX opset {OPSETS[0]} 至 {OPSETS[-1]}，该模型为 {graph.opset}：请重新导出",
        ))  # fmt: skip
    cut_heads = [head for head in heads if head.cut is not None]
    if not cut_heads:
        return Plan(
            model=request.path.name, soc=request.soc, source=request.source, heads=tuple(heads), aipp_text="",
            command=(), files=(), proof=None, bytes_before=0, bytes_after=0, notes=tuple(notes),
        )  # fmt: skip
    _check_static(graph)
    cuts = {head.input.name: head.cut for head in cut_heads if head.cut is not None}
    rest = stripped(graph, cuts)
    text = "".join(cut.config.text() for cut in cuts.values())
    proof = prove(
        graph, cut_heads, rest, host=request.host, rounds=request.rounds, seed=request.seed,
        tolerance=request.tolerance,
    )  # fmt: skip
    name = net_file or f"{request.path.stem}.aipp.onnx"
    command = atc_command(
        model=name, output=f"{request.path.stem}.aipp", soc=request.soc, shapes=_shapes(rest),
        precision=request.precision, aipp=AIPP_FILE, small_channel=_begins_with_conv(rest, cuts),
    )  # fmt: skip
    contents = {AIPP_FILE: text.encode(), COMMAND_FILE: f"{shlex.join(command)}\n".encode()}
    if net_file is None:
        contents[name] = rest.SerializeToString()
    files = _written(request.output or Path(f"{request.path.stem}-aipp"), contents, request.path)
    before, after = _bytes(cut_heads)
    return Plan(
        model=request.path.name, soc=request.soc, source=request.source, heads=tuple(heads), aipp_text=text,
        command=tuple(command), files=files, proof=proof, bytes_before=before, bytes_after=after, notes=tuple(notes),
    )  # fmt: skip


def shapes_of(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by input from `a:1,3,224,224;b:1,16`, as `atc --input_shape` writes them.

    Raises:
        UsageError: it is not written so, or a size is not a positive number.
    """
    made = {}
    for entry in (each.strip() for each in text.split(";")):
        if not entry:
            continue
        name, _, sizes = entry.rpartition(":")
        words = [each.strip() for each in sizes.split(",")]
        if not name or any(not each.isdecimal() or not 0 < int(each) < 1 << 31 for each in words):
            raise UsageError(
                f"--input-shape {entry[:60]!r} is not a name and positive sizes", hint='like "input:1,3,224,224"'
            )
        made[name] = tuple(map(int, words))
    return made


def _check_static(graph: Graph) -> None:
    for each in graph.inputs:
        if any(size is None for size in each.shape):
            said = ",".join("?" if size is None else str(size) for size in each.shape)
            whole = ",".join("1" if size is None else str(size) for size in each.shape)
            raise UsageError(
                f"the input {each.name[:80]} has an open shape ({said})",
                hint=f'--input-shape "{each.name[:80]}:{whole}"',
            )


def _shapes(model: Any) -> dict[str, list[int]]:
    weights = {each.name for each in model.graph.initializer}
    return {
        each.name: [size.dim_value for size in each.type.tensor_type.shape.dim]
        for each in model.graph.input
        if each.name not in weights
    }


def _begins_with_conv(model: Any, names: Any) -> bool:
    """Whether the inputs with AIPP go into convolutions first."""
    first = [node for node in model.graph.node if any(name in names for name in node.input)]
    return bool(first) and all(node.op_type == "Conv" for node in first)


def _bytes(heads: list[Head]) -> tuple[int, int]:
    """Of the pictures of a call: now, and as uint8 for AIPP."""
    import onnx

    before = after = 0
    for head in heads:
        assert head.cut is not None
        assert head.first is not None
        sizes = [size or 0 for size in head.input.shape]
        before += int(np.prod(sizes)) * onnx.helper.tensor_dtype_to_np_dtype(head.input.elem_type).itemsize
        after += head.first.batch * int(np.prod(head.cut.config.source_shape))
    return before, after


def _written(folder: Path, contents: dict[str, bytes], original: Path) -> tuple[Path, ...]:
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            target = folder / name
            if target.exists() and target.samefile(original):
                raise UsageError(f"{name} would be written over the model itself", hint="choose another --output")
            target.write_bytes(content)
            made.append(target)
    except OSError as error:
        raise UsageError(
            f"cannot write into {folder}: {error.strerror}", hint="choose another folder with --output"
        ) from error
    return tuple(made)
