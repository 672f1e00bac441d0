"""ONNX export: onnxruntime gives what torch gives; the ATC command belongs to the file."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.errors import MachineError, UsageError
from ascend_perf.workloads import _onnx
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.resnet50_infer import Config, aipp_config, resnet50_infer

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("PIL")

SMALL = Config(
    batch=2, image_width_px=64, image_height_px=48, distinct_images=3, crop_px=32, base_width=4, classes=10,
    export_onnx=True,
)  # fmt: skip
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)


def exported(config: Config, folder: Path) -> tuple[object, object]:
    """The net and a session over its file."""
    runtime = pytest.importorskip("onnxruntime")
    program = resnet50_infer.build(config, Place(results=folder), 0)
    for norm in (module for module in program.model.modules() if isinstance(module, torch.nn.BatchNorm2d)):  # type: ignore[attr-defined]
        norm.running_mean.normal_(0, 0.1)  # not the trivial statistics of an untrained net
        norm.running_var.uniform_(0.5, 2)
    resnet50_infer_export(config, folder, program.model)
    return program.model, runtime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])


def resnet50_infer_export(config: Config, folder: Path, net: object) -> None:
    from ascend_perf.workloads import resnet50_infer as module

    module._export(config, Place(results=folder), net)


def test_the_plain_file_takes_floats(tmp_path: Path) -> None:
    net, session = exported(SMALL, tmp_path)
    x_BCHW = np.random.default_rng(1).normal(size=(2, 3, 32, 32)).astype(np.float32)

    (seen,) = session.run(None, {"input": x_BCHW})  # type: ignore[attr-defined]

    with torch.no_grad():
        expected = net(torch.from_numpy(x_BCHW)).numpy()  # type: ignore[operator]
    assert expected.std() > 0.05
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["atc.sh", "model.onnx"]


def test_the_file_with_preprocessing_takes_pixels_and_any_batch(tmp_path: Path) -> None:
    net, session = exported(replace(SMALL, preprocess="graph", onnx_dynamic_batch=True), tmp_path)
    from ascend_perf.workloads._images import normalise

    (about,) = session.get_inputs()  # type: ignore[attr-defined]
    assert (about.type, about.shape) == ("tensor(uint8)", ["batch", 32, 32, 3])
    for batch in (1, 2):
        (seen,) = session.run(None, {"input": PIXELS[:batch]})  # type: ignore[attr-defined]
        with torch.no_grad():
            expected = net(normalise(PIXELS[:batch])).numpy()  # type: ignore[operator]
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)
    words = shlex.split((tmp_path / "atc.sh").read_text())
    assert "--input_shape=input:-1,32,32,3" in words
    assert "--dynamic_batch_size=1,2" in words
    assert "--input_format=ND" in words


def test_the_file_for_aipp_gives_with_aipp_what_the_workload_computes(tmp_path: Path) -> None:
    config = replace(SMALL, preprocess="aipp")
    net, session = exported(config, tmp_path)
    from ascend_perf.workloads._preprocessing import Aipp

    pixels = np.random.default_rng(2).integers(0, 256, (2, 37, 37, 3), np.uint8)  # 32 x 256 / 224

    (seen,) = session.run(None, {"input": aipp_config(config).emulate(pixels).astype(np.float32)})  # type: ignore[attr-defined]

    with torch.no_grad():
        expected = net(Aipp(aipp_config(config), dtype=torch.float32)(torch.from_numpy(pixels))).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)
    assert (tmp_path / "aipp.cfg").read_text() == aipp_config(config).text()
    assert shlex.split((tmp_path / "atc.sh").read_text()) == [
        "atc", "--model=model.onnx", "--framework=5", "--output=model", "--soc_version=Ascend910B2",
        "--input_format=NCHW", "--input_shape=input:2,3,32,32", "--precision_mode_v2=fp16",
        "--insert_op_conf=aipp.cfg", "--enable_small_channel=1", "--log=error",
    ]  # fmt: skip


def test_the_opset_is_one_that_atc_reads(tmp_path: Path) -> None:
    resnet50_infer.build(SMALL, Place(results=tmp_path), 0)

    model = onnx.load(tmp_path / "model.onnx")

    onnx.checker.check_model(model, full_check=True)
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 13)]


def test_outside_of_a_run_there_is_nowhere_to_write() -> None:
    with pytest.raises(UsageError, match="export_onnx writes into the run directory"):
        resnet50_infer.build(SMALL, Place(), 0)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)

    with pytest.raises(MachineError, match="needs onnx"):
        _onnx.resnet_model(None, batch=1, crop_px=32)
