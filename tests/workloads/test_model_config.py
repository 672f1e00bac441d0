"""config.json of public models as shapes: their published sizes come out; bad files end in a message.

The dictionaries are written by hand from the models' published configurations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.reports.phrases import phrase
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_parameters
from ascend_perf.workloads._model_config import MAX_BYTES, parse_config, read_config, settings_of
from ascend_perf.workloads._model_shape import ModelShape, parameter_count
from ascend_perf.workloads._spec import find_workload, values_of

LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
    "vocab_size": 32000, "torch_dtype": "float16",
}  # fmt: skip
LLAMA_3_1_8B = LLAMA_2_7B | {
    "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
    "attention_bias": False, "mlp_bias": False, "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "vocab_size": 32000,
}  # fmt: skip
QWEN2_5_HALF_B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "use_sliding_window": False, "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
}  # fmt: skip
QWEN1_5_MOE = {
    "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 5632,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_attention_heads": 16,
    "num_hidden_layers": 24, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "v_head_dim": 128, "vocab_size": 102400,
    "rope_scaling": {"type": "yarn", "factor": 40},
}  # fmt: skip
DEEPSEEK_V3 = DEEPSEEK_V2_LITE | {
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "vocab_size": 129280, "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
BERT_BASE = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 768,
    "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads": 12,
    "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_1_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN2_5_HALF_B, 494_032_768),
        (QWEN3_8B, 8_190_735_360),
        (QWEN3_30B_A3B, 30_532_122_624),
        (MIXTRAL_8X7B, 46_702_792_704),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
        (QWEN1_5_MOE, 14_315_784_192 - 24 * 2048),  # the checkpoint has the gate of the shared expert besides
    ],
)
def test_published_models(raw: dict[str, Any], published: int) -> None:
    shape = parse_config(raw).shape
    assert isinstance(shape, ModelShape)
    assert parameter_count(shape) == published


def test_how_the_router_chooses() -> None:
    known = find_workload("moe-pretrain").fields()
    grouped = DEEPSEEK_V3 | {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
    chosen = parse_config(grouped).settings_for(known)
    names = ("score", "normalise", "weight_scale", "expert_groups", "expert_groups_kept")
    assert [chosen[name] for name in names] == ["sigmoid", True, 2.5, 8, 4]
    settings = find_workload("moe-pretrain").settings("tiny", between=chosen).as_dict()
    assert (settings["experts"], settings["expert_groups"]) == (256, 8)
    lite = parse_config(DEEPSEEK_V2_LITE).settings_for(known)
    assert [lite[name] for name in names] == ["softmax", False, 1.0, 1, 1]
    assert parse_config(QWEN1_5_MOE).routing == {"score": "softmax", "normalise": False}
    assert parse_config(MIXTRAL_8X7B).routing == {"score": "softmax", "normalise": True}
    dense = find_workload("llm-pretrain").fields()
    assert parse_config(grouped).settings_for(dense) == parse_config(grouped).values
    with pytest.raises(InputError, match="scoring_func must be softmax or sigmoid, got 'tanh'"):
        parse_config(DEEPSEEK_V3 | {"scoring_func": "tanh"})


def test_bert_is_an_encoder() -> None:
    config = parse_config(BERT_BASE)
    assert isinstance(config.shape, EncoderShape)
    assert encoder_parameters(config.shape) == 109_482_240
    assert config.notes == ()


@pytest.mark.parametrize(
    ("raw", "notes"),
    [
        (LLAMA_2_7B, []),
        (LLAMA_3_1_8B, ["rope_scaling"]),
        (MISTRAL_7B, ["attention within a window of 4096 tokens"]),
        (QWEN2_5_HALF_B, []),  # the window is switched off
        (QWEN1_5_MOE, ["gate of the shared expert"]),
        (DEEPSEEK_V3, ["rope_scaling", "multi-token prediction (1 layers)", "quantization_config"]),
        (LLAMA_2_7B | {"partial_rotary_factor": 0.5}, ["rotary embedding of a part (0.5)"]),
        (LLAMA_2_7B | {"hidden_act": "relu", "mlp_bias": True}, ["hidden_act 'relu': SiLU", "mlp_bias"]),
        (LLAMA_2_7B | {"attention_bias": True}, ["attention_bias: run on q, k and v"]),
        (BERT_BASE | {"hidden_act": "relu", "position_embedding_type": "relative_key"}, ["position_emb", "hidden_act"]),
    ],
)
def test_what_is_left_out_is_said(raw: dict[str, Any], notes: list[str]) -> None:
    found = parse_config(raw).notes
    assert len(found) == len(notes)
    for note, start in zip(found, notes, strict=True):
        assert note.en.startswith(start)
        assert phrase(note.en) == note  # as a report says it, which knows the English only


def test_settings_name_every_field_of_the_shape(tmp_path: Path) -> None:
    """So that nothing of a preset stays, like experts in a dense model."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
    values = settings_of(tmp_path)
    assert values == settings_of(tmp_path / "config.json")
    assert values.keys() == values_of(ModelShape()).keys()
    assert (values["kv_heads"], values["experts"], values["rope_base"]) == (8, 0, 500000.0)
    chosen = find_workload("llm-pretrain").settings("0.6b", ["layers=2"], between=values)
    shape = chosen.as_dict()
    assert (shape["layers"], shape["width"], shape["head_width"], shape["qk_norm"]) == (2, 4096, None, False)


def test_where_transformers_5_writes_the_base() -> None:
    raw = {key: value for key, value in QWEN3_8B.items() if key != "rope_theta"}
    assert parse_config(raw).values["rope_base"] == 10_000.0
    raw["rope_parameters"] = {"rope_theta": 5e6, "rope_type": "default"}
    assert parse_config(raw).values["rope_base"] == 5e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model_type is missing or not a text"),
        ({"model_type": 7}, "model_type is missing or not a text"),
        ({"model_type": "qwen22"}, "no model for 'qwen22': did you mean 'qwen2'"),
        ({"model_type": "gemma2"}, "no model for 'gemma2': it has four norms a layer"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "which has several parts"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number from 1 to 10000, got '32'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 10000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number"),
        ({"hidden_size": 2.5}, "hidden_size must be a whole number"),
        ({"hidden_size": [4096] * 100}, r"hidden_size must be .* got \[4096, 4096.*\.\.\.$"),
        ({"hidden_size": 4095}, "width 4095 does not divide into 32 heads"),
        ({"num_key_value_heads": 5}, "32 heads do not divide into 5 kv_heads"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number, got 'small'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta must be a positive number"),
        ({"rope_parameters": {"rope_theta": -1}}, r"rope_parameters\.rope_theta must be a positive number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"head_dim": 3}, "a head is 3 wide; rotary embedding needs an even width"),
    ],
)
def test_bad_values_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_config(LLAMA_2_7B | change, "mine.json")
    assert str(caught.value).startswith("mine.json: ")


def test_a_missing_key_names_one_like_it() -> None:
    raw = LLAMA_2_7B | {"num_hiden_layers": 32}
    del raw["num_hidden_layers"]
    with pytest.raises(InputError, match="num_hidden_layers is missing: did you mean 'num_hiden_layers'"):
        parse_config(raw)
    with pytest.raises(InputError, match="model_type is missing or not a text: did you mean 'modeltype'"):
        parse_config({"modeltype": "llama"})
    with pytest.raises(InputError, match="no model for 'phi3'") as caught:
        parse_config({"model_type": "phi3"})
    assert caught.value.hint.startswith("supported: llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, deep")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (QWEN1_5_MOE | {"shared_expert_intermediate_size": 5000}, "is not a multiple of moe_intermediate_size 1408"),
        (QWEN3_30B_A3B | {"decoder_sparse_step": 2}, "only every n-th layer has experts"),
        (QWEN3_30B_A3B | {"mlp_only_layers": [1, 3]}, r"mlp_only_layers \[1, 3\] are not the first layers"),
        (QWEN3_30B_A3B | {"mlp_only_layers": "all"}, "mlp_only_layers 'all' are not the first layers"),
        (QWEN3_30B_A3B | {"num_experts_per_tok": 200}, "experts_per_token 200 is more than the 128 experts"),
        (DEEPSEEK_V2_LITE | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK_V2_LITE | {"qk_rope_head_dim": 63}, "rope_width is 63"),
        (BERT_BASE | {"num_attention_heads": 7}, "width 768 does not divide into 7 heads"),
    ],
)
def test_layers_that_our_models_have_not_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config(raw)


def test_first_layers_without_experts() -> None:
    shape = parse_config(QWEN3_30B_A3B | {"mlp_only_layers": [0, 1]}).shape
    assert isinstance(shape, ModelShape)
    assert shape.dense_layers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{'model_type': 'llama'}", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "expected an object, found list"),
        (b"[" * 200_000, "not JSON: nested too deeply"),
        (b" " * (MAX_BYTES + 1), "more than 4 MiB"),
        (b'{"hidden_size": ' + b"9" * 6000 + b"}", "not JSON"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: No such file"):
        read_config(tmp_path / "absent.json")
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        read_config(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([LLAMA_3_1_8B, QWEN3_30B_A3B, DEEPSEEK_V3, QWEN1_5_MOE, BERT_BASE]),
    st.data(),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_gives_a_shape_or_a_message(raw: dict[str, Any], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(raw)), max_size=3))
    broken = raw | {key: data.draw(_JSON) for key in keys}
    try:
        config = parse_config(broken)
    except InputError as error:
        assert len(str(error)) < 1000
    else:
        assert config.values
