"""From aclnn calls to kernels: the table, its conditions, what is not listed, operands, blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ascend_perf.collectors.virtual_npu import kernels
from ascend_perf.collectors.virtual_npu.kernels import Tensor, kernel_table, type_of
from ascend_perf.ops.classify import KernelClass, ascend_class


def tensor(*shape: int, dtype: str = "DT_BF16", strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(dtype=dtype, format="ND", shape=shape, strides=strides)


def names(op: str, *tensors: Tensor, has_cube: bool = False, has_vector: bool = True) -> list[tuple[str, str]]:
    found = kernel_table().expand(op, tensors, has_cube=has_cube, has_vector=has_vector)
    return [(kernel.name, kernel.core) for kernel in found.kernels]


def test_every_row_of_the_table_makes_kernels() -> None:
    table = kernel_table()
    document = yaml.safe_load((Path(kernels.__file__).parent / "kernels.yaml").read_text())
    assert len(table.seen) == len(document["seen"]) > 50
    assert not table.seen.keys() & table.inferred.keys()
    for op in (*table.seen, *table.inferred):
        found = table.expand(op, [], has_cube=False, has_vector=False)
        assert found.status == ("seen" if op in table.seen else "inferred")
        assert all(re.fullmatch(rf"{op}_\w+_{kernel.op_type}", kernel.name) for kernel in found.kernels)


def test_known_triples() -> None:
    # Of real profiles (kernel_details.csv of an Ascend 910B, as the README of the prototype names them).
    assert names("aclnnAdd") == [("aclnnAdd_AddAiCore_Add", "AI_VECTOR_CORE")]
    assert names("aclnnFlashAttentionScore") == [
        ("aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore", "MIX_AIC")
    ]
    assert [name for name, _ in names("aclnnMaxPool2dWithMask")] == [
        "aclnnMaxPool2dWithMask_TransDataSpecial_TransData",
        "aclnnMaxPool2dWithMask_MaxPoolWithArgmaxV1AiCore_MaxPoolWithArgmaxV1",
        "aclnnMaxPool2dWithMask_TransDataSpecial_TransData",
    ]


def test_a_copy_casts_slices_or_moves() -> None:
    dense, half = tensor(4, 8), tensor(4, 8, dtype="FLOAT")
    turned = tensor(4, 8, strides=(1, 4))
    assert names("aclnnInplaceCopy", dense, half) == [("aclnnInplaceCopy_CastAiCore_Cast", "AI_VECTOR_CORE")]
    assert names("aclnnInplaceCopy", dense, turned) == [("aclnnInplaceCopy_SliceAiCore_Slice", "AI_VECTOR_CORE")]
    assert names("aclnnInplaceCopy", dense, dense) == [
        ("aclnnInplaceCopy_TensorMoveAiCore_TensorMove", "AI_VECTOR_CORE")
    ]


@pytest.mark.parametrize(("inner", "core"), [(256, "AI_CORE"), (255, "MIX_AIC"), (4096, "AI_CORE"), (4097, "MIX_AIC")])
def test_a_matmul_of_an_unaligned_axis_is_mixed(inner: int, core: str) -> None:
    assert names("aclnnMatmul", tensor(64, inner), tensor(inner, 512), tensor(64, 512)) == [
        ("aclnnMatmul_MatMulV3Common_MatMulV3", core)
    ]
    # Rows of four bytes an element are not what the rule is about.
    single = [tensor(64, inner, dtype="FLOAT"), tensor(inner, 512, dtype="FLOAT"), tensor(64, 512, dtype="FLOAT")]
    assert names("aclnnMatmul", *single)[0][1] == "AI_CORE"


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aclnnSigmoidBackward", "SigmoidGrad"), ("aclnnInplaceSqrt", "Sqrt"), ("aclnnDynamicQuantV2", "DynamicQuant"),
        ("aclnnGeluBackwardV2", "GeluGrad"), ("aclnnBackward", "Backward"), ("aclopConv2D", "Conv2D"), ("V2", "V2"),
    ],
)  # fmt: skip
def test_type_of_an_operator_that_is_not_listed(op: str, expected: str) -> None:
    assert type_of(op) == expected


def test_an_operator_that_is_not_listed_runs_where_its_time_is() -> None:
    assert names("aclnnFFNV2", has_cube=True, has_vector=False) == [("aclnnFFNV2_FFNAiCore_FFN", "AI_CORE")]
    assert names("aclnnFFNV2", has_cube=True)[0][1] == "MIX_AIC"
    assert names("aclnnFFNV2")[0][1] == "AI_VECTOR_CORE"
    assert names("aclopConv2D", has_cube=True, has_vector=False) == [("Conv2D", "AI_CORE")]
    assert kernel_table().expand("aclnnFFNV2", [], has_cube=True, has_vector=True).status == "unlisted"


def test_types_of_common_operators_have_their_class() -> None:
    classes = {
        "aclnnMatmul": KernelClass.MATMUL, "aclnnSwiGlu": KernelClass.ELEMENTWISE, "aclnnRmsNorm": KernelClass.NORM,
        "aclnnFlashAttentionScoreGrad": KernelClass.ATTENTION, "aclnnSoftmax": KernelClass.SOFTMAX,
        "aclnnApplyAdamWV2": KernelClass.OPTIMIZER, "aclnnInplaceCopy": KernelClass.COPY,
        "aclnnConvolution": KernelClass.CONV, "aclnnInplaceUniform": KernelClass.RANDOM,
        "aclnnRotaryPositionEmbedding": KernelClass.ROPE, "aclnnSilu": KernelClass.ELEMENTWISE,
    }  # fmt: skip
    found = {op: kernel_table().expand(op, [], has_cube=False, has_vector=True).kernels[0].op_type for op in classes}
    assert {op: ascend_class(kind) for op, kind in found.items()} == classes


def test_results_stand_at_the_end_or_are_the_first() -> None:
    table = kernel_table()
    a, b, c, d = (tensor(n, n) for n in (1, 2, 3, 4))
    assert table.operands("aclnnMatmul", [a, b, c]) == ((a, b), (c,))
    assert table.operands("aclnnRmsNorm", [a, b, c, d]) == ((a, b), (c, d))
    assert table.operands("aclnnInplaceAdd", [a, b]) == ((a, b), (a,))
    assert table.operands("aclnnForeachSqrt", [a, b, c, d], 2) == ((a, b), (c, d))
    assert table.operands("aclnnAbs", [a]) == ((a,), (a,))
    assert table.operands("aclnnAbs", []) == ((), ())


def test_sizes_and_strides_of_tensors() -> None:
    assert tensor(2, 3).nbytes == 12
    assert tensor(dtype="DOUBLE").nbytes == 8
    assert tensor(3, dtype="INT4").nbytes == 1
    assert tensor(4, 0, 8).elements == 0
    assert tensor(2, 3, strides=(3, 1)).is_contiguous
    assert tensor(2, 1, 3, strides=(3, 99, 1)).is_contiguous  # the stride of an axis of one says nothing
    assert not tensor(2, 3, strides=(1, 2)).is_contiguous
    assert not tensor(2, 3, strides=(4, 1)).is_contiguous


@pytest.mark.parametrize(
    "text", ["AddAiCore/Add", "AddAiCore/Add/CUBE", "A/B/AI_CORE*0", "A/B/AI_CORE+C/D/AI_CORE", ""]
)
def test_a_damaged_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="aclnnX"):
        kernels._rows({"aclnnX": text})


@pytest.mark.parametrize("cases", [{"cast": "A/B/AI_CORE"}, {"never": "A/B/AI_CORE", "else": "A/B/AI_CORE"}, 3])
def test_conditions_need_else_and_known_names(cases: object) -> None:
    with pytest.raises(ValueError, match="aclnnX takes kernels"):
        kernels._rows({"aclnnX": cases})
