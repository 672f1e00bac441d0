"""Kernel classes by op type and by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import MAX_NAME, ascend_class, gpu_class, kernel_classes, op_type_of_name


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("MatMulV3", "matmul"),
        ("BatchMatMulV2", "matmul"),
        ("QuantBatchMatmulV3", "matmul"),
        ("GroupedMatmul", "matmul"),
        ("Conv2DBackpropFilter", "conv"),
        ("FlashAttentionScoreGrad", "attention"),
        ("RmsNormGrad", "norm"),
        ("LogSoftmaxV2", "softmax"),
        ("ForeachAddList", "elementwise"),
        ("SwiGluGrad", "elementwise"),
        ("DropOutDoMask", "elementwise"),
        ("ReduceSumD", "reduction"),
        ("LpNormV2", "reduction"),
        ("Cast", "cast"),
        ("Transpose", "transpose"),
        ("TransData", "format"),
        ("ApplyAdamWV2", "optimizer"),
        ("GatherV2", "index"),
        ("EmbeddingDenseGradV2", "index"),
        ("TensorMove", "copy"),
        ("ZerosLike", "fill"),
        ("DSAGenBitMask", "random"),
        ("MaxPoolWithArgmaxV1", "pooling"),
        ("NLLLoss", "loss"),
        ("TopKV2", "sort"),
        ("RotaryPositionEmbedding", "rope"),
        ("hcom_allReduce_", "communication"),
        ("SomethingNew", "other"),
    ],
)
def test_class_of_an_ascend_op_type(op_type: str, expected: str) -> None:
    assert ascend_class(op_type).value == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_sgemm_128x64_tn", "matmul"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>", "matmul"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "conv"),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>", "conv"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernel", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>", "norm"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8>", "softmax"),
        # A lambda is no LAMB optimizer.
        ("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel::{lambda()#1}>", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel", "index"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "copy"),
        ("triton_poi_fused__to_copy_1", "cast"),
        ("triton_red_fused_mean_2", "reduction"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>", "format"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
    ],
)
def test_class_of_a_gpu_kernel(name: str, expected: str) -> None:
    assert gpu_class(name).value == expected


def test_a_name_cut_inside_a_word_is_still_what_it_was() -> None:
    # The limit falls into "lambda": what is left of it looks like an optimizer.
    start = "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_kernel::{"
    name = start + "x" * (MAX_NAME - len(start) - 4) + "lambda()#1}>"

    assert gpu_class(name).value == "elementwise"


def test_the_type_is_read_from_the_name_where_it_is_not_known(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        kernels=[
            {"start_ns": 0, "dur_ns": 1, "name": "aclnnMatmul_MatMulV3Common_MatMulV3"},
            {"start_ns": 1, "dur_ns": 1, "name": "trans_TransData_0"},
            {"start_ns": 2, "dur_ns": 1, "name": "x", "op_type": "Cast"},
            {"start_ns": 3, "dur_ns": 1, "name": "ampere_sgemm_32x32_nn", "core": "SM"},
        ]
    )

    assert kernel_classes(trace[KERNELS]).to_list() == ["matmul", "format", "cast", "matmul"]


def test_op_type_of_a_name() -> None:
    assert op_type_of_name("aclnnInplaceCopy_CastAiCore_Cast") == "Cast"
    assert op_type_of_name("trans_TransData_24") == "TransData"
    assert op_type_of_name("Add") == "Add"


def test_no_kernels_have_no_classes(make_trace: Callable[..., Trace]) -> None:
    assert len(kernel_classes(make_trace()[KERNELS])) == 0
