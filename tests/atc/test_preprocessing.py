"""Preprocessing in graphs of many shapes: the right AIPP file or the right refusal, proved by numbers each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

from ascend_perf.atc.graph import graph_of, read_model
from ascend_perf.atc.picture import Window
from ascend_perf.atc.preprocessing import Host
from tests.atc._models import MEAN, OUTPUT, STD, Net, plan, rank

NHWC, NCHW = (2, 20, 24, 3), (2, 3, 20, 24)
MIN = {f"min_chn_{c}": float(each) for c, each in enumerate(MEAN)}
SCALE = {f"var_reci_chn_{c}": 1 / float(each) for c, each in enumerate(STD)}


def _swap_gather(net: Net, axis: int) -> Net:
    net.add("Gather", net.constant([2, 1, 0], np.int64), axis=axis)
    return net


def _swap_split(net: Net) -> Net:
    net.add("Split", outputs=["r", "g", "b"], axis=1)
    net.add("Concat", "g", "r", first="b", axis=1)
    return net


def _swap_slice(net: Net, axis: int) -> Net:
    net.add("Slice", *(net.constant([each], np.int64) for each in (-1, -(1 << 62), axis, -1)))
    return net


def _by_channel() -> Net:
    """`transform_input` of torchvision's Inception: each channel taken out, scaled and joined again."""
    net = Net(NCHW, TensorProto.FLOAT)
    parts = []
    for channel, (low, scale) in enumerate(zip(MEAN, STD, strict=True)):
        net.add("Gather", net.constant(channel, np.int64), first="input", axis=1)
        net.add("Unsqueeze", net.constant([1], np.int64))
        net.add("Mul", net.constant(1 / scale))
        parts.append(net.add("Add", net.constant(-low / scale)))
    net.add("Concat", *parts[1:], first=parts[0], axis=1)
    return net


def _batch_norm() -> Net:
    net = Net(NCHW).cast()
    variance = STD.astype(np.float64) ** 2 - 1e-3
    values = [net.constant(each) for each in (np.ones(3), np.zeros(3), MEAN, variance)]
    net.add("BatchNormalization", *values, epsilon=1e-3)
    return net


def _fused(net: Net, shape: tuple[int, ...]) -> Net:
    """(x - mean) / std as one Mul and one Add."""
    net.add("Mul", net.constant(np.reshape(1 / STD, shape)))
    net.add("Add", net.constant(np.reshape(-MEAN / STD, shape)))
    return net


def _computed_constants() -> Net:
    """255 x mean is made by nodes of constants."""
    net = Net(NCHW).cast()
    net.nodes.append(helper.make_node("Mul", [net.constant(MEAN / 255), net.constant(255.0)], ["m"]))
    net.nodes.append(helper.make_node("Unsqueeze", ["m", net.constant([1, 2], np.int64)], ["m3"]))
    net.add("Sub", "m3")
    net.add("Div", net.constant(STD.reshape(3, 1, 1)))
    return net


def _to_tensor() -> Net:
    """/255 first, then mean and std of values 0..1."""
    net = Net(NHWC).turn().cast()
    net.add("Div", net.constant(255.0))
    return net.normalise(mean=MEAN / 255, std=STD / 255)


IMAGENET = {"input_format": "RGB888_U8", "crop": "false", "rbuv_swap_switch": "false", **MIN, **SCALE}
CROPPED = IMAGENET | {
    "crop": "true", "load_start_pos_w": 4, "load_start_pos_h": 2, "crop_size_w": 16, "crop_size_h": 12,
}  # fmt: skip
# BGR in: AIPP swaps first, so that the constants are those of the channels behind the swap.
SWAPPED = IMAGENET | {"rbuv_swap_switch": "true"}
PADDED = IMAGENET | {
    "padding": "true", "left_padding_size": 2, "right_padding_size": 4, "top_padding_size": 1, "bottom_padding_size": 3,
}  # fmt: skip
GRAPHS: dict[str, tuple[Callable[[], Net], dict[str, Any]]] = {
    "NHWC, cast, transpose, normalise": (lambda: Net(NHWC).cast().turn().normalise(), IMAGENET),
    "NHWC, normalised before the transpose": (lambda: Net(NHWC).cast().normalise((3,)).turn(), IMAGENET),
    "NHWC, transposed as uint8": (lambda: Net(NHWC).turn().cast().normalise(), IMAGENET),
    "NCHW": (lambda: Net(NCHW).cast().normalise(), IMAGENET),
    "NCHW float, pixels by its constants": (lambda: Net(NCHW, TensorProto.FLOAT).normalise(), IMAGENET),
    "values 0..1 by its constants": (
        lambda: Net(NCHW, TensorProto.FLOAT).normalise(mean=MEAN / 255, std=STD / 255), IMAGENET,
    ),
    "ToTensor and Normalize": (_to_tensor, IMAGENET),
    "one Mul and one Add": (lambda: _fused(Net(NHWC).cast(), (3,)).turn(), IMAGENET),
    "folded into batch norm": (_batch_norm, IMAGENET),
    "constants made by nodes": (_computed_constants, IMAGENET),
    "channel by channel": (_by_channel, IMAGENET),
    "BGR by gather, NHWC": (lambda: _swap_gather(Net(NHWC), 3).cast().turn().normalise(), SWAPPED),
    "BGR by split and concat": (lambda: _swap_split(Net(NCHW).cast()).normalise(), SWAPPED),
    "BGR by a backward slice": (lambda: _swap_slice(Net(NHWC), 3).cast().turn().normalise(), SWAPPED),
    "BGR behind the constants": (
        # The constants are given in the order before the swap, AIPP wants them behind it.
        lambda: _swap_gather(Net(NCHW).cast().normalise(mean=MEAN[::-1], std=STD[::-1]), 1), SWAPPED,
    ),
    "crop first": (lambda: Net(NHWC).crop([1, 2], [2, 4], [14, 20]).cast().turn().normalise(), CROPPED),
    "crop last": (lambda: Net(NCHW).cast().normalise().crop([2, 3], [2, 4], [14, -4]), CROPPED),
    "crop twice": (
        lambda: Net(NCHW).cast().crop([3, 2], [1, 1], [22, 18]).normalise().crop([2, 3], [1, 3], [13, 19]), CROPPED,
    ),
    "pad with zeros behind the constants": (
        lambda: Net(NCHW).cast().normalise().pad([0, 0, 1, 2, 0, 0, 3, 4]), PADDED | {"padding_value": 0},
    ),
    "pad before constants that are equal": (
        # (114 - 50) / 4 = 16 in all channels.
        lambda: Net(NCHW).cast().pad([0, 0, 1, 2, 0, 0, 3, 4], 114).normalise(mean=[50] * 3, std=[4] * 3),
        {"padding": "true", "padding_value": 16, "mean_chn_0": 50, "min_chn_0": 0, "var_reci_chn_2": 0.25},
    ),
    "pad, then crop what was padded": (
        lambda: Net(NCHW).cast().normalise().pad([0, 0, 4, 6, 0, 0, 8, 8]).crop([2, 3], [3, 4], [27, 34]),
        PADDED | {"padding_value": 0},
    ),
    "grey": (
        lambda: Net((2, 1, 20, 24)).cast().normalise((1,), mean=[127.5], std=[127.5]),
        {"input_format": "YUV400_U8", "min_chn_0": 127.5, "var_reci_chn_0": 1 / 127.5},
    ),
    "whole means": (
        lambda: Net(NHWC).cast().normalise((3,), mean=[104, 117, 123], std=[1, 1, 1]).turn(),
        {"mean_chn_0": 104, "mean_chn_1": 117, "mean_chn_2": 123, "min_chn_0": 0, "var_reci_chn_0": 1},
    ),
    "subtracted the other way round": (
        # (255 - x) / 255 = (x - 255) x (-1 / 255)
        lambda: _inverted(Net(NCHW).cast()), {"mean_chn_0": 255, "min_chn_0": 0, "var_reci_chn_1": -1 / 255},
    ),
    "HWC, the batch put in front": (lambda: _unbatched(), IMAGENET),
    "opset 11, parameters as attributes": (lambda: _old(), IMAGENET),
    "fp16 behind the constants": (lambda: _half(), IMAGENET),
}  # fmt: skip


def _inverted(net: Net) -> Net:
    net.nodes.append(helper.make_node("Sub", [net.constant(255.0), net.last], ["inverted"], name="inverted"))
    net.last = "inverted"
    net.add("Div", net.constant(255.0))
    return net


def _unbatched() -> Net:
    net = Net(NHWC[1:]).cast().turn((2, 0, 1))
    net.add("Unsqueeze", net.constant([0], np.int64))
    return net.normalise()


def _old() -> Net:
    net = Net(NHWC[1:], opset=11).cast().turn((2, 0, 1))
    net.add("Unsqueeze", axes=[0])
    return net.normalise()


def _half() -> Net:
    net = Net(NCHW).cast().normalise().cast(TensorProto.FLOAT16)
    return net


def _model(name: str) -> Any:
    net = GRAPHS[name][0]()
    if "fp16" in name:
        net.add("Conv", net.constant(np.ones((4, 3, 3, 3)), np.float16), kernel_shape=[3, 3])
        net.cast().add("GlobalAveragePool", outputs=[OUTPUT])
        return net.finished([helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [None, 4, 1, 1])])
    return net.model(1 if name == "grey" else 3)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_whole_preprocessing_is_taken_over_and_proved(tmp_path: Path, name: str) -> None:
    found = plan(tmp_path, _model(name))

    assert found.is_done, found.proof
    assert found.proof is not None
    assert [each.values_seen for each in found.proof.cuts] == [256]
    written = rank(found)
    for field, expected in GRAPHS[name][1].items():
        if isinstance(expected, str):
            assert written[field] == expected, field
        else:
            assert float(written[field]) == pytest.approx(expected, rel=2e-6, abs=1e-9), field
    stripped = onnx.load(tmp_path / "out" / "model.aipp.onnx")
    # Nothing is left in front of the convolution.
    assert stripped.graph.node[0].op_type == "Conv"
    assert (tmp_path / "out" / "aipp.cfg").read_text("utf-8") == found.aipp_text


def _resize(net: Net, axes: int = 2) -> Net:
    scales = [1, 1, 1, 1]
    scales[axes], scales[axes + 1] = 2, 2
    net.add("Resize", "", net.constant(scales), mode="nearest")
    return net


def _data_dependent() -> Net:
    net = Net(NCHW).cast()
    mean = net.add("ReduceMean", first=net.last, axes=[2, 3])
    net.add("Sub", mean, first="t0")
    return net


def _mean_image() -> Net:
    net = Net(NCHW).cast()
    net.add("Sub", net.constant(np.random.default_rng(0).uniform(0, 255, (1, 3, 20, 24))))
    return net


def _pads_image_value() -> Net:
    return Net(NCHW).cast().pad([0, 0, 1, 1, 0, 0, 1, 1], 114).normalise()


REFUSALS: dict[str, tuple[Callable[[], Net], str, list[str]]] = {
    # name: graph, part of a reason, operators that AIPP still takes over
    "resized first": (lambda: _resize(Net(NHWC), 1).cast().turn().normalise(), "resizes", []),
    "resized behind the cast": (lambda: _resize(Net(NCHW).cast()).normalise(), "resizes", ["Cast"]),
    "depends on the data": (_data_dependent, "depends on the data", ["Cast"]),
    "mean image": (_mean_image, "from pixel to pixel", ["Cast"]),
    "padded before it is normalised": (_pads_image_value, "pads before it normalises", ["Cast", "Pad"]),
    "padded by more than 32": (
        lambda: Net(NCHW).cast().normalise().pad([0, 0, 33, 0, 0, 0, 0, 0]), "pads 0 to 32", ["Cast", "Sub", "Div"],
    ),
    "flipped": (lambda: _swap_slice(Net(NCHW).cast(), 3).normalise(), "flips", ["Cast"]),
    "uint8 arithmetic wraps": (
        lambda: _wrapping(), "small whole numbers", [],
    ),
    "channels in a ring": (
        lambda: _ring(), "only swap the first and the last", ["Cast"],
    ),
    "scale that fp16 does not hold": (
        lambda: Net(NCHW).cast().normalise(std=[1e6] * 3), "loses its digits", ["Cast", "Sub"],
    ),
    "offset that fp16 does not hold": (
        lambda: Net(NCHW).cast().normalise(mean=[-5000.3] * 3, std=[1] * 3), "offset is so large", ["Cast"],
    ),
    "beyond fp16": (lambda: Net(NCHW).cast().normalise(std=[1e-3] * 3), "range of fp16", ["Cast", "Sub"]),
}  # fmt: skip


def _wrapping() -> Net:
    net = Net(NCHW)
    net.add("Sub", net.constant(np.full((1, 3, 1, 1), 3), np.uint8))
    # onnxruntime has no Sub of uint8; nothing is run, as AIPP takes nothing over.
    return net.cast()


def _ring() -> Net:
    net = Net(NCHW).cast()
    net.add("Gather", net.constant([1, 2, 0], np.int64), axis=1)
    return net


@pytest.mark.parametrize("name", REFUSALS)
def test_what_aipp_cannot_do_stays_with_its_reason(tmp_path: Path, name: str) -> None:
    make, reason, absorbed = REFUSALS[name]

    found = plan(tmp_path, make().model())

    (head,) = found.heads
    said = [*(each.en for each in head.lost), *(each.why.en for each in head.left if each.why is not None)]
    assert any(reason in each for each in said), said
    assert [each.kind for each in head.absorbed] == absorbed
    if absorbed:
        # What is taken over is proved all the same.
        assert found.is_done, found.proof
    else:
        assert head.refusal is not None
        assert not found.command
        assert not (tmp_path / "out").exists()


def test_behind_a_resize_it_is_said_what_aipp_could_take_over(tmp_path: Path) -> None:
    found = plan(tmp_path, _resize(Net(NHWC), 1).cast().turn().normalise().model())

    (head,) = found.heads
    assert [(each.kind, each.taker) for each in head.left] == [("Resize", "DVPP")]
    assert [each.kind for each in head.behind] == ["Cast", "Transpose", "Sub", "Div"]


def test_a_tensor_that_is_used_twice_is_cut_before_it_parts(tmp_path: Path) -> None:
    net = Net(NCHW).cast()
    whole = net.last
    net.normalise()
    net.add("Add", whole)

    found = plan(tmp_path, net.model())

    assert [each.kind for each in found.heads[0].absorbed] == ["Cast"]
    assert found.is_done


def test_what_is_left_of_nhwc_gets_a_transpose_for_atc(tmp_path: Path) -> None:
    net = _resize(Net(NHWC).cast().normalise((3,)), 1).turn()

    found = plan(tmp_path, net.model())

    assert [each.kind for each in found.heads[0].absorbed] == ["Cast", "Sub", "Div"]
    assert found.is_done
    stripped = onnx.load(tmp_path / "out" / "model.aipp.onnx")
    assert [node.op_type for node in stripped.graph.node][:2] == ["Transpose", "Resize"]
    assert "--input_shape=input:2,3,20,24" in found.command


def test_the_command_names_chip_shape_and_file(tmp_path: Path) -> None:
    found = plan(tmp_path, Net(NHWC).cast().turn().normalise().model())

    assert found.command == (
        "atc", "--model=model.aipp.onnx", "--framework=5", "--output=model.aipp", "--soc_version=Ascend910B2",
        "--input_format=NCHW", "--input_shape=input:2,3,20,24", "--precision_mode_v2=fp16",
        "--insert_op_conf=aipp.cfg", "--enable_small_channel=1", "--log=error",
    )  # fmt: skip
    assert (found.bytes_before, found.bytes_after) == (2 * 20 * 24 * 3, 2 * 20 * 24 * 3)


def test_the_host_s_normalisation_moves_too_and_a_quarter_of_the_bytes_is_left(tmp_path: Path) -> None:
    host = Host(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

    found = plan(tmp_path, Net(NCHW, TensorProto.FLOAT).model(), host=host)

    assert found.is_done, found.proof
    assert float(rank(found)["min_chn_0"]) == pytest.approx(123.675)
    assert found.bytes_before == 4 * found.bytes_after


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("source", ["yuv420sp-jpeg", "yuv420sp-video"])
def test_pictures_of_dvpp_are_converted_within_two_levels(tmp_path: Path, source: str, swaps: bool) -> None:
    net = Net(NHWC).crop([1, 2], [2, 4], [14, 20]).cast().turn()
    net = (_swap_gather(net, 1) if swaps else net).normalise()

    found = plan(tmp_path, net.model(), source=source, tolerance=0.1)

    assert found.is_done, found.proof
    written = rank(found)
    assert written["csc_switch"] == "true"
    assert written["rbuv_swap_switch"] == "false"  # would swap U and V
    red_of_v = 359 if source == "yuv420sp-jpeg" else 409
    assert int(written["matrix_r2c2" if swaps else "matrix_r0c2"]) == red_of_v


def test_an_odd_crop_of_yuv_stays_in_the_model(tmp_path: Path) -> None:
    net = Net(NHWC).cast().turn().crop([2, 3], [1, 4], [13, 20]).normalise()

    found = plan(tmp_path, net.model(), source="yuv420sp-jpeg", tolerance=0.1)

    assert [each.kind for each in found.heads[0].absorbed] == ["Cast", "Transpose"]
    assert any("even crop positions" in each.en for each in found.heads[0].lost)


def test_two_pictures_get_a_description_each_and_another_input_none(tmp_path: Path) -> None:
    net = Net(NCHW).cast().normalise()
    left = net.last
    net.inputs.append(helper.make_tensor_value_info("right", TensorProto.UINT8, (2, 20, 24, 3)))
    net.inputs.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, (2, 3)))
    net.add("Cast", first="right", to=TensorProto.FLOAT)
    net.turn()
    net.add("Concat", net.last, first=left, axis=1)

    found = plan(tmp_path, net.model(6))

    assert found.is_done, found.proof
    assert [(each.input.name, len(each.absorbed)) for each in found.heads] == [("input", 3), ("right", 2)]
    assert found.aipp_text.count("aipp_op {") == 2
    assert "related_input_rank: 1" in found.aipp_text
    assert "--input_shape=input:2,3,20,24;right:2,3,20,24;bias:2,3" in found.command


def test_a_wrong_constant_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.atc import preprocessing

    right = preprocessing._constants
    monkeypatch.setattr(
        preprocessing, "_constants", lambda picture: (right(picture)[0], (123.0, 116.28, 103.53), right(picture)[2])
    )

    found = plan(tmp_path, Net(NCHW).cast().normalise().model())

    assert found.proof is not None
    assert not found.proof.cuts[0].is_within
    assert not found.is_done


def test_operators_that_onnxruntime_does_not_know_leave_the_outputs_unproved(tmp_path: Path) -> None:
    net = Net(NCHW).cast().normalise()
    net.add("Whatever", domain="vendor.example")
    model = net.model()
    model.opset_import.append(helper.make_opsetid("vendor.example", 1))

    found = plan(tmp_path, model)

    assert found.proof is not None
    assert found.proof.cuts[0].is_within
    assert found.proof.not_run is not None
    assert not found.is_done


ORDERS = st.permutations(["cast", "turn", "normalise", "crop", "swap", "pad"])


@given(
    ORDERS,
    st.lists(st.floats(0, 255, width=32), min_size=3, max_size=3),
    st.lists(st.floats(1, 300, width=32), min_size=3, max_size=3),
    st.integers(0, 3),
    st.integers(0, 3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_in_any_order_what_is_taken_over_is_proved(
    tmp_path: Path, order: list[str], mean: list[float], std: list[float], top: int, left: int
) -> None:
    net = Net((1, 18, 20, 3))
    axes, is_cast = "NHWC", False
    for part in order:
        at = axes.index
        if part == "cast":
            net.cast()
            is_cast = True
        elif part == "turn":
            net.turn()
            axes = "NCHW"
        elif part == "normalise":
            if not is_cast:
                net.cast()
                is_cast = True
            net.normalise((3,) if axes == "NHWC" else (3, 1, 1), mean=mean, std=std)
        elif part == "crop":
            net.crop([at("H"), at("W")], [top, left], [-1, 19])
        elif part == "swap":
            net = _swap_gather(net, at("C"))
        elif is_cast:
            sizes = [0] * 8
            sizes[at("H")], sizes[4 + at("W")] = 2, 3
            net.pad(sizes, 0.0)

    found = plan(tmp_path, net.model(), tolerance=0.5)

    (head,) = found.heads
    assert found.proof is not None
    assert found.is_done, found.proof
    pads = order.index("pad") if "Pad" in [node.op_type for node in net.nodes] else -1
    if pads < 0 or pads > order.index("normalise") or pads < order.index("cast"):
        # Then the order is AIPP's, or can be written in it: nothing stays.
        assert [each.kind for each in head.left] == ["Conv"]


@given(st.integers(0, 30), st.integers(1, 30), st.data())
def test_a_window_cuts_and_pads_as_numpy_does(start: int, size: int, data: st.DataObject) -> None:
    cells = np.arange(start, start + size)
    window = Window(start=start, size=size)
    for _ in range(3):
        before, after = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
        cells, window = np.pad(cells, (before, after), constant_values=-1), window.widened(before, after)
        first = data.draw(st.integers(0, len(cells) - 1))
        end = data.draw(st.integers(first + 1, len(cells)))
        if not (cells[first:end] >= 0).any():
            return
        cells, window = cells[first:end], window.cut(first, end)
        expected = [-1] * window.before + list(range(window.start, window.start + window.size)) + [-1] * window.after
        assert cells.tolist() == expected


def test_nodes_in_a_wrong_order_are_put_right(tmp_path: Path) -> None:
    model = Net(NCHW).cast().normalise().model()
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "m.onnx")

    graph = graph_of(read_model(tmp_path / "m.onnx"))

    assert [node.op_type for node in graph.nodes] == ["Cast", "Sub", "Div", "Conv", "GlobalAveragePool"]
