"""ONNX files that are none, damaged, odd or too much: one clear message, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

from ascend_perf.atc.plan import Request, make_plan, shapes_of
from ascend_perf.cli import cli
from ascend_perf.errors import AscendPerfError, InputError, MachineError, UsageError
from tests.atc._models import Net


def _good() -> Any:
    return Net((1, 3, 8, 8)).cast().normalise().model()


def _run(path: Path, **options: Any) -> Any:
    return make_plan(Request(path=path, soc="Ascend910B2", output=path.parent / "out", rounds=1, **options))


def _cycle() -> Any:
    net = Net((1, 3, 8, 8))
    net.nodes.append(helper.make_node("Add", ["input", "b"], ["a"], name="first"))
    net.nodes.append(helper.make_node("Relu", ["a"], ["b"], name="second"))
    net.last = "b"
    return net.model()


def _twice() -> Any:
    model = _good()
    model.graph.node.append(helper.make_node("Relu", ["input"], [model.graph.node[0].output[0]]))
    return model


def _nothing_makes() -> Any:
    model = _good()
    model.graph.node[1].input[0] = "nowhere"
    return model


def _external(place: str) -> Callable[[], Any]:
    def made() -> Any:
        model = _good()
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        return model

    return made


def _deep() -> Any:
    graph = flat = helper.make_graph([helper.make_node("Identity", ["input"], ["y"])], "g", [], [])
    for level in range(20):
        inner = helper.make_node("If", ["input"], [f"o{level}"], then_branch=graph, else_branch=flat)
        graph = helper.make_graph([inner], "g", [], [])
    return helper.make_model(graph)


DAMAGED: dict[str, tuple[Callable[[], Any], str]] = {
    "cycle": (_cycle, "cycle|topologically"),
    "two makers": (_twice, "two nodes make|not a valid|SSA"),
    "nothing makes an input": (_nothing_makes, "nothing makes|not a valid"),
    "external data absent": (_external("weights.bin"), "weights.bin, which is not there"),
    "external data elsewhere": (_external("../../etc/passwd"), "outside of the model's folder"),
    "external data by full path": (_external("/etc/passwd"), "outside of the model's folder"),
    "graphs in graphs": (_deep, "more than 16 deep"),
    "text model": (lambda: Net((1, 128), TensorProto.INT64).model(), "takes pictures"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_models_are_named(tmp_path: Path, name: str) -> None:
    make, message = DAMAGED[name]
    (tmp_path / "m.onnx").write_bytes(make().SerializeToString())

    with pytest.raises(InputError, match=message):
        _run(tmp_path / "m.onnx")


@pytest.mark.parametrize("content", [b"", b"hello, not a model", b"\x00" * 64, b"PK\x03\x04zip"])
def test_other_files_are_no_models(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)

    with pytest.raises(InputError, match="not an ONNX model"):
        _run(tmp_path / "m.onnx")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file m\.onnx"):
        _run(tmp_path / "m.onnx")


WHOLE = _good().SerializeToString()


@example(9, b"\x80")  # no UTF-8: under Python 3.10 onnx raises an error without a text
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_and_altered_files_end_in_an_error_of_ours_or_in_a_plan(tmp_path: Path, at: int, new: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(WHOLE[:at] + new + (WHOLE[at + len(new) :] if new else b""))

    try:
        _run(tmp_path / "m.onnx")
    except AscendPerfError as error:
        assert error.what


def test_open_shapes_are_asked_for_and_then_taken(tmp_path: Path) -> None:
    onnx.save(Net(("batch", 3, 8, 8)).cast().normalise().model(), tmp_path / "m.onnx")

    (head,) = _run(tmp_path / "m.onnx").heads
    assert head.refusal is not None
    assert "?,3,8,8" in head.refusal.en

    found = _run(tmp_path / "m.onnx", shapes="input:4,3,8,8")
    assert found.is_done
    assert "--input_shape=input:4,3,8,8" in found.command
    with pytest.raises(UsageError, match=r"has the shape \?,3,8,8, not 1,3,9,8"):
        _run(tmp_path / "m.onnx", shapes="input:1,3,9,8")
    with pytest.raises(UsageError, match="has no input other"):
        _run(tmp_path / "m.onnx", shapes="other:1,3,8,8")


def test_pictures_beyond_aipp_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    onnx.save(Net((1, 3, 90000, 90000)).cast().normalise().model(), tmp_path / "m.onnx")

    (head,) = _run(tmp_path / "m.onnx").heads

    assert head.refusal is not None
    assert "2 to 4096" in head.refusal.en


def test_a_batch_too_large_for_the_proof_is_said(tmp_path: Path) -> None:
    onnx.save(Net((10**6, 3, 224, 224)).cast().normalise().model(), tmp_path / "m.onnx")

    with pytest.raises(UsageError, match="too much for the proof"):
        _run(tmp_path / "m.onnx")


def test_constants_do_not_grow_without_bound(tmp_path: Path) -> None:
    net = Net((1, 3, 8, 8)).cast()
    row, column = (net.constant(np.ones(shape)) for shape in ((4000, 1), (1, 4000)))
    net.nodes.append(helper.make_node("Mul", [row, column], ["wide"]))
    net.nodes.append(helper.make_node("ReduceSum", ["wide"], ["one"]))
    net.add("Add", "one")
    onnx.save(net.model(), tmp_path / "m.onnx")

    found = _run(tmp_path / "m.onnx")

    assert [each.kind for each in found.heads[0].absorbed] == ["Cast"]


@pytest.mark.parametrize(
    ("text", "message"), [("input", "not a name"), ("input:1,x", "not a name"), ("input:0,3,8,8", "not a name")]
)
def test_shapes_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shapes_of(text)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_an_absent_package_gives_the_step(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(_good(), tmp_path / "m.onnx")
    monkeypatch.setitem(__import__("sys").modules, package, None)

    with pytest.raises(MachineError) as error:
        _run(tmp_path / "m.onnx")

    assert "pip install" in error.value.hint


def _call(*words: str) -> Result:
    return CliRunner().invoke(cli, ["aipp", *words], standalone_mode=False)


def test_the_command_says_what_it_did_in_both_languages(tmp_path: Path) -> None:
    onnx.save(_good(), tmp_path / "m.onnx")
    words = (str(tmp_path / "m.onnx"), "--soc", "Ascend310P3", "--output", str(tmp_path / "out"))

    english, chinese, data = _call(*words), _call(*words, "--lang", "zh"), _call(*words, "--format", "json")

    assert [each.return_value for each in (english, chinese, data)] == [0, 0, 0]
    assert "agree" in english.output
    assert "--soc_version=Ascend310P3" in english.output
    assert "原预处理与 AIPP 一致" in chinese.output
    body = json.loads(data.output)
    assert body["passed"] is True
    assert body["proof"]["cuts"][0]["worst"] <= body["proof"]["cuts"][0]["bound"]
    assert [each["op"] for each in body["inputs"][0]["absorbed"]] == ["Cast", "Sub", "Div"]


def test_nothing_to_take_over_ends_with_one(tmp_path: Path) -> None:
    net = Net((1, 8, 8, 3))
    net.add("Resize", "", net.constant([1, 2, 2, 1]), mode="nearest")
    onnx.save(net.cast().turn().model(), tmp_path / "m.onnx")

    done = _call(str(tmp_path / "m.onnx"), "--soc", "Ascend310P3")

    assert done.return_value == 1
    assert "DVPP" in done.output


@pytest.mark.parametrize(
    ("soc", "hint"),
    [("910B2", "Ascend910B2"), ("Ascend310P", "Ascend310P3"), ("Ascend910C", "Ascend910_9392"), ("H200", "npu-smi")],
)
def test_chips_that_atc_does_not_take_are_refused(tmp_path: Path, soc: str, hint: str) -> None:
    onnx.save(_good(), tmp_path / "m.onnx")

    done = _call(str(tmp_path / "m.onnx"), "--soc", soc)

    assert isinstance(done.exception, UsageError)
    assert hint in done.exception.hint


def test_the_workload_s_own_description_gives_the_workload_s_own_file(tmp_path: Path) -> None:
    from ascend_perf.bench.workload_aipp import workload_plan
    from ascend_perf.workloads.resnet50_infer import Config, aipp_config

    request = Request(path=Path("m.onnx"), soc="Ascend310P3", output=tmp_path, rounds=1)

    found = workload_plan("resnet50-infer", "tiny", ["batch=1", "crop_px=64", "preprocess=host"], request)

    assert found.plan.is_done, found.plan.proof
    cut = found.plan.heads[0].cut
    assert cut is not None
    ours, theirs = cut.config, aipp_config(Config(batch=1, crop_px=64, preprocess="aipp"))
    assert np.allclose(ours.min_chn, theirs.min_chn)
    assert np.allclose(ours.var_reci_chn, theirs.var_reci_chn)
    assert (ours.load_start_pos_w, ours.output_size) == (theirs.load_start_pos_w, theirs.output_size)
    assert [row["could_be"] for row in found.stages][:2] == ["DVPP (JPEGD)", "DVPP (VPC), crop AIPP"]
    with pytest.raises(UsageError, match="prepares no pictures"):
        workload_plan("llm-pretrain", "tiny", [], request)
