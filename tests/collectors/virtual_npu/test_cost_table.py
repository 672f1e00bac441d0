"""The table of the cost model: its lines, its names, what it counts; copies and collectives; the file of constants."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu._cost_native import NativeCost
from ascend_perf.collectors.virtual_npu.cost import (
    DEFAULT_CLASS,
    FILE,
    cost_lines,
    cost_model,
    plain_name,
    read_model,
    table_lines,
    uncertainty,
    uncertainty_of_sum,
)
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from ascend_perf.device.specs import device_specs
from ascend_perf.errors import InputError, UsageError
from ascend_perf.ops.classify import KernelClass, ascend_class
from ascend_perf.ops.formulas import per_element
from tests.collectors.virtual_npu._cost import BF16, CLASSES, VALUES, lines, native, tensor


@pytest.fixture(scope="module")
def real() -> NativeCost:
    """The model that comes with the package, on an Ascend910B2."""
    compiled = NativeCost()
    compiled.load(cost_lines(VirtualNpu()))
    return compiled


def test_values_arrive_as_they_were_written(real: NativeCost) -> None:
    for key, value in VALUES.items():
        assert native().value(key) == value
    model, spec = cost_model(), device_specs()["ascend-910b2"]
    assert real.value("cube_bf16") == spec.matrix_peak("bf16")
    assert real.value("lanes_per_s") == spec.vector_peak("fp32") / 2  # type: ignore[operator]
    assert real.value("host_launch_ns") == model.launch["host_launch_ns"].value
    assert real.value("d2d_bytes_per_s") == model.copies["d2d_hbm_efficiency"].value * 1.6e12
    assert real.value("peer_bytes_per_s") == 196e9 / 7
    assert math.isnan(real.value("nonsense"))


def test_links_that_a_user_gives_count(real: NativeCost) -> None:
    compiled = NativeCost()
    compiled.load(cost_lines(VirtualNpu(link_bytes_per_s=70e9, node_link_bytes_per_s=10e9)))
    assert compiled.value("peer_bytes_per_s") == pytest.approx(10e9)
    assert compiled.value("node_bytes_per_s") == 10e9
    compiled.load(cost_lines(VirtualNpu(soc="Ascend910_9392")))
    assert (compiled.value("peer_bytes_per_s"), compiled.value("is_switched")) == (196e9, 1)


@pytest.mark.parametrize("line", [
    "value\tcube_cores\tmany", "value\tnonsense\t1", "class\tmatmul\tfixed_ns=x", "class\tmatmul\tnonsense=1",
    "op\tAdd\tnonsense\ttensors\t-\t0", "op\tAdd\tmatmul\tnonsense\t-\t0", "nonsense\t1", "nonsense", "",
    "value\tcube_cores\tinf", "op\t" + "x" * 200 + "\tmatmul\ttensors\t-\t0",
])  # fmt: skip
def test_a_line_that_is_not_understood_is_told(line: str) -> None:
    compiled = NativeCost()
    with pytest.raises(ValueError, match=r"."):
        compiled.load([*lines(), line])
    # What was understood still holds.
    assert compiled.value("hbm_bytes_per_s") == VALUES["hbm_bytes_per_s"]


def test_the_first_pattern_decides() -> None:
    t = tensor(4)
    for name, expected in {
        "aclnnAdd": "elementwise", "aclnnInplaceAdd": "elementwise", "aclopAdd": "elementwise", "Add": "elementwise",
        "aclnnAbs": "cast", "aclnnAddmm": "matmul", "MatMulV3": "matmul", "aclnnMatmulV": "other",
    }.items():  # fmt: skip
        assert native().kernel(name, [t, t, t]).class_name == expected, name


def test_unknown_operators_cost_what_others_do_and_are_counted() -> None:
    compiled = NativeCost()
    compiled.load(lines())
    t = tensor(1000)
    for _ in range(3):
        assert compiled.kernel("aclnnNobodyKnows", [t, t]).class_name == DEFAULT_CLASS
    cost = compiled.kernel("aclnnNorThis", [t])
    assert cost.ns == pytest.approx(CLASSES["other"]["fixed_ns"] + 4000 / 0.5 / 1e12 * 1e9)
    compiled.kernel("aclnnAdd", [t, t, None, t])
    assert compiled.unknown() == {"aclnnNobodyKnows": 3, "aclnnNorThis": 1}
    compiled.load(lines())
    assert compiled.unknown() == {}


def test_more_unknown_names_than_fit_still_have_a_cost() -> None:
    compiled = NativeCost()
    compiled.load(lines())
    t = tensor(10)
    for at in range(4000):
        assert compiled.kernel(f"aclnnUnknown{at}", [t]).class_name == DEFAULT_CLASS
    assert compiled.kernel("aclnn" + "x" * 500, [t]).class_name == DEFAULT_CLASS
    assert compiled.kernel("aclnnAdd", [t, t, None, t]).class_name == "elementwise"
    assert len(compiled.unknown()) == 3072


def test_copies() -> None:
    assert [native().copy(kind, 8000) for kind in range(5)] == pytest.approx(
        [30 + 2000, 10 + 8000, 20 + 4000, 40 + 1000, 50 + 500]
    )


def test_collectives_in_a_node() -> None:
    ask = native().collective
    # Eight parts of 1 MB: over each link one part for the sums, one for the results.
    assert ask("AllReduce", 8e6, 8, 8).ns == pytest.approx(1000 + 2 * (100 + 1e6 / (10e9 * 0.5) * 1e9))
    assert ask("AllGather", 1e6, 8, 8).ns == pytest.approx(2000 + 100 + 1e6 / (10e9 * 0.8) * 1e9)
    assert ask("ReduceScatter", 1e6, 8, 16).ns == pytest.approx(2000 + 100 + 1e6 / (10e9 * 0.4) * 1e9)
    assert ask("AlltoAll", 8e6, 8, 8).ns == pytest.approx(1000 + 100 + 1e6 / (10e9 * 0.9) * 1e9)
    assert ask("Send", 1e6, 2, 2).ns == pytest.approx(3000 + 100 + 1e6 / (10e9 * 0.9) * 1e9)
    # Broadcast: two phases of an eighth beat the whole over one link.
    assert ask("Broadcast", 8e6, 8, 8).ns == pytest.approx(1000 + 2 * (100 + 1e6 / (10e9 * 0.8) * 1e9))
    assert ask("Broadcast", 8, 8, 8).ns == pytest.approx(1000 + 100 + 8 / (10e9 * 0.9) * 1e9)
    assert ask("AllReduce", 8e6, 1, 1).ns == 7
    assert ask("Barrier", 0, 8, 8).ns == 1000 + 200


def test_collectives_across_nodes() -> None:
    ask = native().collective
    rate = 5e9 * 0.75
    # Four nodes of two: two phases inside, then 2 x 2 rounds over the half that each card holds.
    inside = 2 * (100 + 4e6 / (10e9 * 0.5) * 1e9)
    between = 4 * 400 + 2 * 3 / 4 * 4e6 / rate * 1e9
    assert ask("AllReduce", 8e6, 8, 2).ns == pytest.approx(1000 + inside + between)
    # One card in each node: no phase inside.
    assert ask("AllReduce", 8e6, 8, 1).ns == pytest.approx(1000 + 6 * 400 + 2 * 7 / 8 * 8e6 / rate * 1e9)
    gathered = 100 + 4e6 / (10e9 * 0.8) * 1e9 + 2 * 400 + 3e6 / rate * 1e9
    assert ask("AllGather", 1e6, 8, 2).ns == pytest.approx(2000 + gathered)
    assert ask("Send", 1e6, 2, 1).ns == pytest.approx(3000 + 400 + 1e6 / rate * 1e9)
    # Each rank sends an eighth to each; six of them are in other nodes, three rounds.
    assert ask("AlltoAllV", 8e6, 8, 2).ns == pytest.approx(1000 + 3 * 400 + 6e6 / rate * 1e9)


def test_behind_a_switch_peers_share_the_rate() -> None:
    compiled = NativeCost()
    compiled.load(lines(is_switched=1))
    assert compiled.collective("AllGather", 1e6, 8, 8).ns == pytest.approx(2000 + 100 + 7e6 / (10e9 * 0.8) * 1e9)


def test_names_of_algorithms() -> None:
    ask = native().algorithm
    assert [ask("AllReduce", 1, 1), ask("AllReduce", 8, 8), ask("AllReduce", 64, 8), ask("AllReduce", 8, 1)] == [
        "NULL", "MESH", "MESH-NHR", "NHR",
    ]  # fmt: skip
    assert [ask("AlltoAllV", 16, 8), ask("Send", 2, 2)] == ["MESH-PAIRWISE", "NULL"]


@settings(max_examples=100, deadline=None)
@given(
    op=st.sampled_from(["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Scatter", "AlltoAll",
                        "AlltoAllV", "Send", "Recv", "BatchSendRecv"]),
    ranks=st.integers(2, 64), per_node=st.integers(1, 16), size=st.integers(0, 10**9), more=st.integers(0, 10**9),
)  # fmt: skip
def test_larger_messages_never_take_less(op: str, ranks: int, per_node: int, size: int, more: int) -> None:
    cost = native().collective(op, size, ranks, per_node)
    assert cost.class_name == "communication"
    assert cost.ns == pytest.approx(cost.fixed_ns + cost.memory_ns)
    assert 0 < cost.ns <= native().collective(op, size + more, ranks, per_node).ns


def test_every_constant_says_where_it_comes_from() -> None:
    model = cost_model()
    blocks = [model.device, model.launch, model.copies, model.links, *(c.constants for c in model.classes.values())]
    for block in blocks:
        for key, constant in block.items():
            assert constant.sources, key
            # What is counted by definition (operations per element) is exact.
            assert constant.uncertainty or constant.note, key
    used = {source for block in blocks for constant in block.values() for source in constant.sources}
    assert used <= set(model.sources)


def test_classes_are_known_to_the_analyzers() -> None:
    model = cost_model()
    assert {c.kind for c in model.classes.values()} <= {kind.value for kind in KernelClass}
    for name, kind in model.classes.items():
        assert 0 < kind.ratio.low <= 1 <= kind.ratio.high, name
    for name, formula in {"norm": "norm", "norm_backward": "norm-backward", "softmax": "softmax", "rope": "rope",
                          "elementwise": "elementwise", "optimizer": "adamw"}.items():  # fmt: skip
        assert model.classes[name].constants["flops_per_element"].value == per_element(formula)


@pytest.mark.parametrize("op_type", [
    "MatMulV3", "MatMul", "BatchMatMulV2", "GroupedMatmul", "Conv2D", "Conv2DBackpropFilter", "FlashAttentionScore",
    "FlashAttentionScoreGrad", "PromptFlashAttention", "LayerNormV3", "RmsNormGrad", "AddRmsNorm", "BNTrainingReduce",
    "SoftmaxV2", "ScaledMaskedSoftmax", "Add", "Muls", "RealDiv", "Exp", "Relu", "ReluGrad", "FastGelu", "SwiGlu",
    "SwiGluGrad", "Greater", "LogicalNot", "DropOutDoMask", "ReduceSum", "ArgMaxWithValue", "LpNormV2", "Cast",
    "TensorMove", "BroadcastTo", "ZerosLike", "Fill", "Range", "MemSet", "Tril", "Transpose", "AsStrided", "TransData",
    "Slice", "StridedSliceD", "ConcatD", "SplitV", "Pack", "Tile", "GatherV2", "Index", "IndexPutV2", "NonZero",
    "EmbeddingDenseGradV2", "ApplyAdamW", "ApplyAdamWV2", "RotaryPositionEmbedding", "DSAGenBitMask", "MaxPoolV3",
    "AdaptiveAvgPool3d", "TopKV2", "Sort", "NLLLoss", "DynamicQuant", "AscendQuant", "MoeTokenPermute",
])  # fmt: skip
def test_kinds_of_kernels_are_those_of_the_analyzers(op_type: str) -> None:
    model = cost_model()
    found = model.class_of(op_type)
    assert found is not None
    assert model.classes[found].kind == ascend_class(op_type).value


def test_most_operators_of_torch_npu_have_a_class(real: NativeCost) -> None:
    path = FILE.with_name("signatures.csv")
    names = re.findall(r"^(aclnn\w+),", path.read_text("utf-8"), re.MULTILINE)
    model = cost_model()
    unknown = [name for name in names if model.class_of(name) is None]
    assert len(names) > 800
    assert len(unknown) < 0.05 * len(names), unknown
    # C and Python find the same one; a call without arguments has no tensors, and still a cost.
    for name in names:
        cost = real.kernel(name, [])
        assert cost.class_name == (model.class_of(name) or DEFAULT_CLASS), name
        assert cost.ns > 0


def test_names() -> None:
    assert [plain_name(n) for n in ("aclnnInplaceAdd", "aclopAdd", "MatMulV3")] == ["Add", "Add", "MatMulV3"]


def test_uncertainty_of_a_sum() -> None:
    model = cost_model()
    low, high = uncertainty("matmul")
    assert uncertainty_of_sum({"matmul": 5.0}) == pytest.approx((low, high))
    assert uncertainty("nobody knows") == uncertainty(DEFAULT_CLASS)
    assert uncertainty_of_sum({}) == (1.0, 1.0)
    a, b = model.classes["matmul"].ratio, model.classes["cast"].ratio
    expected_high = 1 + math.hypot(300 * (a.high - 1), 100 * (b.high - 1)) / 400
    expected_low = 1 - math.hypot(300 * (1 - a.low), 100 * (1 - b.low)) / 400
    assert uncertainty_of_sum({"matmul": 300.0, "cast": 100.0}) == pytest.approx((expected_low, expected_high))


def test_every_chip_of_the_table_has_lines_or_a_reason() -> None:
    compiled = NativeCost()
    refused = []
    for spec in device_specs().values():
        if spec.kind != "npu":
            continue
        try:
            table = cost_lines(VirtualNpu(soc=spec.name, hbm_bytes=1 << 35))
        except UsageError as error:
            refused.append(spec.name)
            # Ascend910B is a family in profiles: no row of the table may stand for it.
            assert "does not know" in error.what or spec.name == "Ascend910B"
            continue
        compiled.load(table)
        t = tensor(256, 256, dtype=BF16)
        assert compiled.kernel("aclnnMatmul", [t, t, t, 0]).ns > 0
    assert "Ascend910B2C" in refused
    assert "Ascend910B2" not in refused


def test_lines_follow_the_device() -> None:
    specs = device_specs()
    slow, fast = (
        table_lines(cost_model(), specs[name], link_bytes_per_s=None, node_link_bytes_per_s=None)
        for name in ("ascend-910b4", "ascend-910b1")
    )
    compiled, times = NativeCost(), []
    t = tensor(8192, 8192, dtype=BF16)
    for table in (slow, fast):
        compiled.load(table)
        times.append([compiled.kernel("aclnnMatmul", [t, t, t, 0]).ns, compiled.kernel("aclnnAdd", [t, t, None, t]).ns])
    # Peak 363.7 over 245.8 TFLOPS, memory 1600 over 800 GB/s: about these ratios.
    assert 1.3 < times[0][0] / times[1][0] < 1.7
    assert 1.5 < times[0][1] / times[1][1] < 2.6


@pytest.mark.parametrize("before, after, what", [
    ("schema_version: 1", "schema_version: 2", "schema version"),
    ("class: reduction, rule: tensors}", "class: nonsense, rule: tensors}", "no known class"),
    ("class: reduction, rule: tensors}", "class: reduction, rule: nonsense}", "no known class or rule"),
    ("status: assumed, source: [table]", "status: guessed, source: [table]", "status"),
    ("source: [table]", "source: [nowhere]", "source"),
    ("\n  other:\n", "\n  others:\n", "no class other"),
])  # fmt: skip
def test_a_model_that_contradicts_itself_is_refused(tmp_path: Path, before: str, after: str, what: str) -> None:
    text = FILE.read_text("utf-8")
    assert before in text
    path = tmp_path / "model.yaml"
    path.write_text(text.replace(before, after, 1), "utf-8")
    with pytest.raises(InputError, match=what):
        read_model(path)
