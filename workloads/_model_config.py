"""A Hugging Face `config.json` as the shape of a model: no weights are needed, nothing is downloaded.

The file is foreign: its size is bounded, every value is checked, and what it asks for that our models have not is said
in notes. Key names are those of the configuration classes of the transformers library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ascend_perf.errors import InputError, first_line
from ascend_perf.model.finding import Words
from ascend_perf.workloads._encoder_shape import EncoderShape
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import Value, did_you_mean, values_of

MAX_BYTES: Final = 4 << 20
"""A configuration with the names of thousands of classes stays below 1 MB."""
_MOST: Final = 1 << 30
_MOST_LAYERS: Final = 10_000

REFUSED: Final[Mapping[str, str]] = {
    "gemma": "it scales the embedding, norms by (1 + weight) and gates with GELU",
    "gemma2": "it has four norms a layer, soft caps and alternating windows",
    "gemma3_text": "it has four norms a layer and alternating windows",
    "gpt2": "it has learnt positions and an MLP without gate",
    "opt": "it has learnt positions and an MLP without gate",
    "bloom": "it has ALiBi positions and an MLP without gate",
    "falcon": "its attention and MLP run in parallel, without gate",
    "mamba": "it is a state-space model",
    "t5": "it is an encoder with a decoder",
}
"""Architectures that people will try, with what our models lack for them."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a configuration file says, in our words."""

    model_type: str
    shape: ModelShape | EncoderShape
    notes: tuple[Words, ...]
    """What the file asks for and the shape leaves out."""
    routing: Mapping[str, Value] = field(default_factory=dict)
    """How the router of experts chooses and weighs, by the settings of `_routing.Routing`; empty for others."""
    raw: Mapping[str, Any] = field(repr=False)
    """The file as it was read."""
    used: frozenset[str] = field(repr=False)
    """Keys that were looked at."""

    @property
    def values(self) -> dict[str, Value]:
        """All settings of the shape by name: also those at their default, so that nothing of a preset stays."""
        return values_of(self.shape)

    def settings_for(self, known: Container[str]) -> dict[str, Value]:
        """The same, with those of the router that a workload has, by the names of its settings."""
        return {**self.values, **{name: value for name, value in self.routing.items() if name in known}}


def settings_of(path: Path) -> dict[str, Value]:
    """Values of the settings of a model's shape (`ModelShape`, or `EncoderShape` for BERT), from its config.json.

    Raises:
        InputError: as `read_config`.
    """
    return read_config(path).values


def read_config(path: Path) -> ModelConfig:
    """Read a config.json, or the one in a folder.

    Raises:
        InputError: it is missing, too large, not JSON, of an architecture that we have no model for, or a value is
            missing, of the wrong type or out of range.
    """
    path = path / "config.json" if path.is_dir() else path
    raw = _load(path)
    return parse_config(raw, path.name)


def parse_config(raw: Mapping[str, Any], name: str = "config.json") -> ModelConfig:
    """As `read_config`, for what the file says already read. `name` stands in the messages."""
    keys = _Keys(raw, name)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(
            f"{name}: model_type is missing or not a text{_close('model_type', raw)}",
            hint="expected the config.json of a Hugging Face model",
        )
    keys.used.add("model_type")
    model_type = model_type[:60]
    if model_type not in _READERS:
        raise _unsupported(name, model_type, raw)
    shape = _READERS[model_type](keys)
    return ModelConfig(
        model_type=model_type, shape=shape, notes=tuple(keys.notes), routing=keys.routing, raw=raw,
        used=frozenset(keys.used),
    )  # fmt: skip


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{path}: {reason}", hint="name a config.json, or a folder that has one") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{path.name}: more than {MAX_BYTES >> 20} MiB, so not a model's configuration")
    try:
        raw = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = first_line(error, 120) if not isinstance(error, RecursionError) else "nested too deeply"
        raise InputError(f"{path.name}: not JSON: {reason}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path.name}: expected an object, found {type(raw).__name__}")
    return raw


def _unsupported(name: str, model_type: str, raw: Mapping[str, Any]) -> InputError:
    supported = f"supported: {', '.join(_READERS)}"
    if model_type in REFUSED:
        return InputError(f"{name}: no model for {model_type!r}: {REFUSED[model_type]}", hint=supported)
    inner = raw.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type") in _READERS:
        return InputError(
            f"{name}: no model for {model_type!r}, which has several parts",
            hint=f"its text_config is {inner['model_type']!r}: save that part as a file of its own",
        )
    return InputError(f"{name}: no model for {model_type!r}{did_you_mean(model_type, _READERS)}", hint=supported)


def _close(wanted: str, raw: Mapping[str, Any]) -> str:
    """`: did you mean ...?` when the file has a key like the wanted one; keys are shown cut and quoted."""
    return did_you_mean(wanted, [key[:60] for key in list(raw)[:1000] if key != wanted])


class _Keys:
    """Checked values of a file, with what was looked at and what must be said."""

    def __init__(self, raw: Mapping[str, Any], name: str) -> None:
        self.raw, self.name = raw, name
        self.used: set[str] = set()
        self.notes: list[Words] = []
        self.routing: dict[str, Value] = {}

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int = _MOST) -> int:
        """A whole number. No default: it must be there."""
        value = self._value(key)
        if value is None:
            if default is None:
                raise InputError(f"{self.name}: {key} is missing{_close(key, self.raw)}")
            return default
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"{self.name}: {key} must be a whole number from {least} to {most}, got {_shown(value)}")
        return value

    def optional(self, key: str) -> int | None:
        """A whole number, or None when it is null or not there."""
        return None if self._value(key) is None else self.number(key)

    def real(self, key: str, default: float) -> float:
        """A positive number."""
        return self._real(key, self._value(key), default)

    def _real(self, key: str, value: object, default: float) -> float:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(f"{self.name}: {key} must be a positive number, got {_shown(value)}")
        return float(value)

    def truth(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.name}: {key} must be true or false, got {_shown(value)}")
        return value

    def rope_base(self) -> float:
        """Base of the rotary embedding: rope_theta, or where transformers 5 writes it."""
        inner = self._value("rope_parameters")
        if isinstance(inner, dict) and "rope_theta" in inner:
            return self._real("rope_parameters.rope_theta", inner["rope_theta"], 10_000.0)
        return self.real("rope_theta", 10_000.0)

    def note(self, en: str, zh: str) -> None:
        """Say what is left out."""
        self.notes.append(Words(en, zh))

    def _value(self, key: str) -> Any:
        self.used.add(key)
        return self.raw.get(key)

    def refuse(self, what: str) -> InputError:
        """The error that our models lack something."""
        return InputError(f"{self.name}: {what}", hint="our models have no layers like that")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


# Decoders


def _decoder(keys: _Keys, *, key_heads: int | None, **more: Any) -> ModelShape:
    """What Llama and all that follow it share.

    `key_heads`: kv_heads when the file has none (0: as many as heads); None: it must have them.
    """
    heads = keys.number("num_attention_heads")
    _say_what_is_left_out(keys)
    shape: dict[str, Any] = {
        "layers": keys.number("num_hidden_layers", most=_MOST_LAYERS),
        "width": keys.number("hidden_size"),
        "heads": heads,
        "kv_heads": keys.number("num_key_value_heads", heads if key_heads == 0 else key_heads),
        "head_width": keys.optional("head_dim"),
        "hidden": keys.number("intermediate_size"),
        "vocabulary": keys.number("vocab_size", least=2),
        "tied": keys.truth("tie_word_embeddings"),
        "rope_base": keys.rope_base(),
        "norm_epsilon": keys.real("rms_norm_eps", 1e-6),
        **more,
    }
    try:
        return ModelShape(**shape)
    except ValueError as error:
        raise InputError(f"{keys.name}: {error}") from error


def _say_what_is_left_out(keys: _Keys) -> None:
    window = keys.raw.get("sliding_window")
    if window is not None and keys.raw.get("use_sliding_window", True):
        keys.note(
            f"attention within a window of {_shown(window)} tokens: counted and run over all tokens",
            f"滑动窗口注意力（{_shown(window)} 个 token）：按全部 token 计算和运行",
        )
    part = keys.raw.get("partial_rotary_factor")
    if part not in (None, 1, 1.0):
        keys.note(
            f"rotary embedding of a part ({_shown(part)}) of a head: run over the whole head",
            f"部分旋转位置编码（{_shown(part)}）：按整个 head 运行",
        )
    scaling = keys.raw.get("rope_scaling")
    if scaling is not None:
        keys.note("rope_scaling: not applied, no effect on work or memory", "rope_scaling：未应用，不影响计算量和内存")
    extra = keys.raw.get("num_nextn_predict_layers")
    if extra not in (None, 0):
        keys.note(
            f"multi-token prediction ({_shown(extra)} layers): left out",
            f"多 token 预测（{_shown(extra)} 层）：不包含",
        )
    activation = keys.raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        keys.note(f"hidden_act {_shown(activation)}: SiLU is run", f"hidden_act {_shown(activation)}：按 SiLU 运行")
    if keys.raw.get("mlp_bias") is True:
        keys.note("mlp_bias: the MLP is run without bias", "mlp_bias：MLP 不带偏置运行")
    if keys.raw.get("quantization_config") is not None:
        keys.note(
            "quantization_config: not applied, weights have the type that the workload is set to",
            "quantization_config：未应用，权重类型由负载设置决定",
        )
    keys.used |= {
        "sliding_window", "use_sliding_window", "max_window_layers", "partial_rotary_factor", "rope_scaling",
        "num_nextn_predict_layers", "hidden_act", "mlp_bias", "quantization_config",
    }  # fmt: skip


def _qkv_bias(keys: _Keys) -> bool:
    """attention_bias of Llama is on all four products; ours has it on three."""
    if not keys.truth("attention_bias"):
        return False
    keys.note(
        "attention_bias: run on q, k and v, not on the output of attention",
        "attention_bias：用于 q、k、v，注意力输出不带偏置",
    )
    return True


def _llama(keys: _Keys) -> ModelShape:
    return _decoder(keys, key_heads=0, qkv_bias=_qkv_bias(keys))


def _mistral(keys: _Keys) -> ModelShape:
    return _decoder(keys, key_heads=8)


def _qwen2(keys: _Keys) -> ModelShape:
    return _decoder(keys, key_heads=None, qkv_bias=True)


def _qwen3(keys: _Keys) -> ModelShape:
    return _decoder(keys, key_heads=None, qkv_bias=_qkv_bias(keys), qk_norm=True)


def _mixtral(keys: _Keys) -> ModelShape:
    keys.routing = {"score": "softmax", "normalise": True}
    return _decoder(
        keys, key_heads=8, experts=keys.number("num_local_experts"),
        experts_per_token=keys.number("num_experts_per_tok"), expert_hidden=keys.number("intermediate_size"),
    )  # fmt: skip


def _qwen2_moe(keys: _Keys) -> ModelShape:
    one = keys.number("moe_intermediate_size")
    shared = keys.number("shared_expert_intermediate_size", least=0)
    if shared % one:
        raise keys.refuse(f"shared_expert_intermediate_size {shared} is not a multiple of moe_intermediate_size {one}")
    if shared:
        keys.note(
            "gate of the shared expert (one weight vector a layer): left out",
            "共享专家门控（每层一个权重向量）：不包含",
        )
    return _decoder(keys, key_heads=None, qkv_bias=True, shared_experts=shared // one, **_qwen_experts(keys))


def _qwen3_moe(keys: _Keys) -> ModelShape:
    return _decoder(keys, key_heads=None, qkv_bias=_qkv_bias(keys), qk_norm=True, **_qwen_experts(keys))


def _qwen_experts(keys: _Keys) -> dict[str, Any]:
    if keys.number("decoder_sparse_step", 1) != 1:
        raise keys.refuse("decoder_sparse_step: only every n-th layer has experts")
    dense = keys.raw.get("mlp_only_layers") or []
    keys.used.add("mlp_only_layers")
    if dense != list(range(len(dense) if isinstance(dense, list) else 0)):
        raise keys.refuse(f"mlp_only_layers {_shown(dense)} are not the first layers")
    keys.routing = {"score": "softmax", "normalise": keys.truth("norm_topk_prob")}
    return {
        "experts": keys.number("num_experts"), "experts_per_token": keys.number("num_experts_per_tok"),
        "expert_hidden": keys.number("moe_intermediate_size"), "dense_layers": len(dense),
    }  # fmt: skip


def _deepseek(keys: _Keys) -> ModelShape:
    experts: dict[str, Any] = {}
    if keys.optional("n_routed_experts") is not None:
        if keys.number("moe_layer_freq", 1) != 1:
            raise keys.refuse("moe_layer_freq: only every n-th layer has experts")
        experts = {
            "experts": keys.number("n_routed_experts"),
            "experts_per_token": keys.number("num_experts_per_tok"),
            "shared_experts": keys.number("n_shared_experts", 0, least=0),
            "expert_hidden": keys.number("moe_intermediate_size"),
            "dense_layers": keys.number("first_k_dense_replace", 0, least=0),
        }
        keys.routing = _deepseek_routing(keys)
    latent = {
        "q_rank": keys.optional("q_lora_rank"), "kv_rank": keys.number("kv_lora_rank"),
        "nope_width": keys.number("qk_nope_head_dim"), "rope_width": keys.number("qk_rope_head_dim"),
        "value_width": keys.number("v_head_dim"),
    }  # fmt: skip
    keys.optional("head_dim")  # transformers writes the width of the rotary part, which stands in qk_rope_head_dim
    return _decoder(keys, key_heads=0, attention="mla", head_width=None, **latent, **experts)


def _deepseek_routing(keys: _Keys) -> dict[str, Value]:
    is_third = keys.raw.get("model_type") == "deepseek_v3"
    score = keys.raw.get("scoring_func", "sigmoid" if is_third else "softmax")
    keys.used.add("scoring_func")
    if score not in ("softmax", "sigmoid"):
        raise InputError(f"{keys.name}: scoring_func must be softmax or sigmoid, got {_shown(score)}")
    return {
        "score": score, "normalise": keys.truth("norm_topk_prob", is_third),
        "weight_scale": keys.real("routed_scaling_factor", 1.0),
        "expert_groups": keys.number("n_group", 1), "expert_groups_kept": keys.number("topk_group", 1),
    }  # fmt: skip


# Encoders


def _bert(keys: _Keys) -> EncoderShape:
    if keys.raw.get("position_embedding_type", "absolute") != "absolute":
        keys.note("position_embedding_type: learnt positions are run", "position_embedding_type：按可学习绝对位置运行")
    activation = keys.raw.get("hidden_act", "gelu")
    if activation not in ("gelu", "gelu_new"):
        keys.note(f"hidden_act {_shown(activation)}: GELU is run", f"hidden_act {_shown(activation)}：按 GELU 运行")
    keys.used |= {"position_embedding_type", "hidden_act"}
    try:
        return EncoderShape(
            layers=keys.number("num_hidden_layers", most=_MOST_LAYERS),
            width=keys.number("hidden_size"),
            heads=keys.number("num_attention_heads"),
            hidden=keys.number("intermediate_size"),
            vocabulary=keys.number("vocab_size", least=2),
            positions=keys.number("max_position_embeddings"),
            segments=keys.number("type_vocab_size"),
            norm_epsilon=keys.real("layer_norm_eps", 1e-12),
        )
    except ValueError as error:
        raise InputError(f"{keys.name}: {error}") from error


_READERS: Final[Mapping[str, Callable[[_Keys], ModelShape | EncoderShape]]] = {
    "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3, "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen3_moe, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek,
    "bert": _bert, "roberta": _bert, "xlm-roberta": _bert,
}  # fmt: skip
