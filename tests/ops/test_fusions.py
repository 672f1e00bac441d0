"""The catalogue of fused operators: each row finds its sequence, no row finds what is fused, and what rows may say."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from ascend_perf.model.trace import Trace
from ascend_perf.ops.fusion_words import ascend_code, compiled, host_alphabet, kernel_alphabet
from ascend_perf.ops.fusions import Fusion, cann_version, forbidden, fusion, fusions, is_older, unmatched
from tests.ops._fusion_samples import TYPES, host_name, on_host, on_kernels, required, samples

Make = Callable[..., Trace]

HOST = [(row, pattern) for row in fusions() for pattern in row.host]
KERNEL = [(row, pattern) for row in fusions() for pattern in row.kernels]
NAMES_H = [f"{row.id}: {pattern}" for row, pattern in HOST]
NAMES_K = [f"{row.id}: {pattern}" for row, pattern in KERNEL]


def test_an_op_type_stands_for_its_symbol() -> None:
    alphabet = kernel_alphabet()
    assert set(TYPES) == set(alphabet.symbols)
    assert {symbol: ascend_code(kind) for symbol, kind in TYPES.items()} == {
        symbol: alphabet.code(symbol) for symbol in alphabet.symbols
    }


@pytest.mark.parametrize("size", ["few", "many"])
@pytest.mark.parametrize(("row", "pattern"), KERNEL, ids=NAMES_K)
def test_kernels_of_a_row_are_found(make_trace: Make, row: Fusion, pattern: str, size: str) -> None:
    types = [TYPES[symbol] for symbol in samples(pattern)[size]]

    found = on_kernels(make_trace, ["Relu6", *types, "Relu6", *types], row)

    assert found is not None
    assert found.occurrences == 2
    assert found.rows.tolist() == [*range(1, 1 + len(types)), *range(2 + len(types), 2 + 2 * len(types))]


@pytest.mark.parametrize(("row", "pattern"), KERNEL, ids=NAMES_K)
def test_a_sequence_with_a_kernel_missing_is_another(make_trace: Make, row: Fusion, pattern: str) -> None:
    symbols = samples(pattern)["few"]
    for gone in (0, len(symbols) - 1):
        types = [TYPES[symbol] for i, symbol in enumerate(symbols) if i != gone]
        found = on_kernels(make_trace, types, row)
        # A shorter pattern of the row may still be there, this one may not.
        assert found is None or found.lengths.max() < required(pattern)


@pytest.mark.parametrize(("row", "pattern"), KERNEL, ids=NAMES_K)
def test_kernels_that_are_fused_are_not_found(make_trace: Make, row: Fusion, pattern: str) -> None:
    types = [TYPES[symbol] for symbol in samples(pattern)["few"]]

    assert on_kernels(make_trace, [row.fused[0] if row.fused else TYPES["fused"]] * 4, row) is None
    assert on_kernels(make_trace, [types[0], TYPES["fused"], *types[1:]], row) is None


@pytest.mark.parametrize("size", ["few", "many"])
@pytest.mark.parametrize(("row", "pattern"), HOST, ids=NAMES_H)
def test_operators_of_a_row_are_found_with_their_kernels(
    make_trace: Make, row: Fusion, pattern: str, size: str
) -> None:
    names = [host_name(symbol) for symbol in samples(pattern)[size]]

    found = on_host(make_trace, ["aten::special", *names, *["aten::special"] * 5, *names], row)

    assert found is not None
    assert found.occurrences == 2
    assert found.rows.tolist() == [*range(1, 1 + len(names)), *range(6 + len(names), 6 + 2 * len(names))]
    assert found.host.tolist() == [1, 6 + len(names)]


@pytest.mark.parametrize(("row", "pattern"), HOST, ids=NAMES_H)
def test_operators_that_launch_a_fused_kernel_are_not_found(make_trace: Make, row: Fusion, pattern: str) -> None:
    names = [host_name(symbol) for symbol in samples(pattern)["few"]]
    for kind in row.fused:
        assert on_host(make_trace, names, row, {len(names) - 1: kind}) is None


@pytest.mark.parametrize(("row", "pattern"), HOST, ids=NAMES_H)
def test_views_and_casts_do_not_break_a_row(make_trace: Make, row: Fusion, pattern: str) -> None:
    names = [host_name(symbol) for symbol in samples(pattern)["few"]]
    spaced = [name for item in names for name in (item, "aten::view", "aten::unsqueeze", "aten::to", "aten::expand")]

    found = on_host(make_trace, spaced[:-4], row)

    assert found is not None and found.occurrences == 1
    views = ("aten::view", "aten::unsqueeze", "aten::expand")
    assert found.rows.tolist() == [i for i, name in enumerate(spaced[:-4]) if name not in views]


def test_nothing_is_recommended_that_is_deprecated_or_not_real() -> None:
    for row in fusions():
        texts = [row.elsewhere.code if row.elsewhere else ""]
        texts += [text for api in row.apis for text in (api.name, api.code, api.text.en, api.text.zh)]
        for name in forbidden():
            assert not any(re.search(rf"(?<!\w){name}(?!\w)", text) for text in texts), (row.id, name)
    assert "npu_confusion_transpose" in forbidden() and "npu_fused_layer_norm" in forbidden()


def test_what_holds_on_gpus_and_cpus_names_no_npu_operator() -> None:
    for row in fusions():
        if set(row.kinds) - {"npu"}:
            assert row.elsewhere is not None, row.id
            assert "npu" not in row.elsewhere.code + row.elsewhere.text.en, row.id


def test_rows_say_what_the_reference_says_of_gradients() -> None:
    none = {
        "torch_npu.npu_add_rms_norm", "torch_npu.npu_fused_infer_attention_score", "torch_npu.npu_gemma_rms_norm",
        "torch_npu.npu_apply_rotary_pos_emb", "torch_npu.npu_gelu_mul", "torch_npu.npu_group_norm_silu",
        "torch_npu.npu_ffn", "torch_npu.npu_quant_matmul", "torch_npu.npu_top_k_top_p",
        "torch_npu.npu_mm_all_reduce_base", "torch_npu.npu_moe_gating_top_k_softmax",
    }  # fmt: skip
    has = {
        "torch_npu.npu_fusion_attention", "torch_npu.npu_scaled_masked_softmax", "torch_npu.npu_rms_norm",
        "torch_npu.npu_add_layer_norm", "torch_npu.npu_rotary_mul", "torch_npu.npu_swiglu", "torch_npu.npu_geglu",
        "torch_npu.npu_group_norm_swish", "torch_npu.npu_deep_norm", "torch_npu.npu_cross_entropy_loss",
        "torch_npu.npu_moe_token_permute", "torch_npu.npu_moe_token_unpermute", "torch_npu.npu_moe_gating_top_k",
    }  # fmt: skip
    gradients = {api.name: api.gradient for row in fusions() for api in row.apis}
    assert {name for name, value in gradients.items() if name in none | has and value == "yes"} == has
    assert {name for name in none if gradients[name] == "no"} == none
    for row in fusions():
        assert all(api.gradient != "no" for api in row.choose(is_training=True)), row.id


@pytest.mark.parametrize(
    ("name", "training", "expected"),
    [
        ("attention", True, ["torch_npu.npu_fusion_attention"]),
        ("attention", False, ["torch_npu.npu_fused_infer_attention_score", "torch_npu.npu_prompt_flash_attention"]),
        ("add-rms-norm", True, []),
        ("add-rms-norm", False, ["torch_npu.npu_add_rms_norm"]),
        ("group-norm-silu", True, ["torch_npu.npu_group_norm_swish"]),
        ("group-norm-silu", False, ["torch_npu.npu_group_norm_silu"]),
        ("all-gather-matmul", True, ["torch_npu.npu_all_gather_base_mm"]),
        ("matmul-all-reduce", True, ["--use-ascend-coc"]),
    ],
)
def test_training_gets_what_has_a_gradient(name: str, training: bool, expected: list[str]) -> None:
    assert [api.name for api in fusion(name).choose(is_training=training)] == expected


def test_versions_compare_in_order_of_release() -> None:
    order = ["7.0.RC1", "7.0.0", "8.0.RC1", "8.0.RC2", "8.0.RC3", "8.0.0", "8.0.1", "8.1.RC1", "8.2.RC1", "8.3.RC1"]
    for before, after in pairwise(order):
        assert is_older(before, after) is True and is_older(after, before) is False, (before, after)
    assert is_older("8.0.RC2", "8.0.RC2") is False
    assert is_older(None, "8.0.RC1") is None
    assert is_older("unknown", "8.0.RC1") is None
    assert is_older(None, "") is False
    assert cann_version("CANN-8.2.RC1.alpha003") == (8, 2, 0, 1)
    assert cann_version("8.5") == (8, 5, 1, 0)


def test_patterns_that_say_nothing_are_refused() -> None:
    for pattern in ("", "mul?", "mul{3,1}", "mul{0,99}", "no_such_symbol", "mul !add mul", "mul +"):
        with pytest.raises(ValueError):
            compiled(pattern, host_alphabet())


def test_rows_that_are_not_searched_for_say_why() -> None:
    assert all(words.en and words.zh for _, words in unmatched())
