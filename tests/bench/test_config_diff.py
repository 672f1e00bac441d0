"""Configurations compared: figures and effects of single settings against arithmetic in the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ascend_perf.bench import config_diff
from ascend_perf.bench.config_diff import as_document, compare
from ascend_perf.cli import cli
from ascend_perf.cli.diff_config import render
from ascend_perf.errors import InputError, UsageError
from ascend_perf.manifest import write_manifest
from ascend_perf.model.run import Manifest
from ascend_perf.workloads._spec import find_workload

SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "vocab_size": 100,
}  # fmt: skip


def written(folder: Path, name: str, **change: Any) -> str:
    path = folder / name
    path.write_text(json.dumps({**SMALL, **change}))
    return str(path)


def test_two_models_by_hand(tmp_path: Path) -> None:
    """One more layer: q and out 2 x 64 x 64, k and v 2 x 64 x 32, MLP 3 x 64 x 96, two norms."""
    a, b = written(tmp_path, "a.json"), written(tmp_path, "b.json", num_hidden_layers=4)
    difference = compare(a, b, overrides=["tokens=32", "batch=5"])
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96
    layer = matrices + 128
    whole = 2 * 100 * 64 + 3 * layer + 64
    assert difference.a.figures["parameters"] == whole
    assert difference.b.figures["parameters"] == whole + layer
    # 6 N + 12 W T a token for the layer; 5 rows of 32 tokens.
    flops = (6 * matrices + 12 * 64 * 32) * 5 * 32
    assert difference.b.figures["model_flops_per_step"] - difference.a.figures["model_flops_per_step"] == flops
    assert difference.a.figures["cache_per_token"] == 2 * 3 * 32 * 2
    assert difference.a.figures["memory_weights"] == 4 * whole
    assert difference.a.figures["communication_per_step"] == 0
    (setting,) = difference.settings
    assert (setting.name, setting.a, setting.b) == ("layers", 3, 4)
    assert setting.effects is not None
    assert setting.effects.keys() == {"parameters", "model_flops_per_step", "memory"}
    assert setting.effects["parameters"] == layer
    assert setting.effects["model_flops_per_step"] == flops
    held = difference.b.figures["memory"] - difference.a.figures["memory"]
    assert setting.effects["memory"] == held > 16 * layer


def test_effects_of_single_settings(tmp_path: Path) -> None:
    """The base of the rotary embedding does nothing; a width that the heads do not divide cannot go alone."""
    a = written(tmp_path, "a.json")
    b = written(tmp_path, "b.json", rope_theta=5e5, hidden_size=66, num_attention_heads=6, head_dim=16)
    found = {one.name: one for one in compare(a, b).settings}
    assert found.keys() == {"width", "heads", "head_width", "rope_base"}
    assert found["rope_base"].effects == {}
    assert found["width"].effects is None
    assert found["heads"].effects is None
    assert found["head_width"].effects == {}  # 64 / 4 already


def test_other_keys_have_no_effect_that_is_known(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", bos_token_id=1, use_cache=True, torch_dtype="float16", rope_scaling=None)
    b = written(tmp_path, "b.json", bos_token_id=2, use_cache=True, strange={"x": [1]}, rope_scaling={"factor": 2})
    difference = compare(a, b)
    assert difference.other_keys == (
        ("bos_token_id", 1, 2), ("strange", None, {"x": [1]}), ("torch_dtype", "float16", None),
    )  # fmt: skip
    assert difference.settings == ()
    assert [note.en[:12] for note in difference.b.notes] == ["rope_scaling"]
    assert difference.a.notes == ()


def test_presets_and_communication() -> None:
    """DDP over 4 ranks sends every gradient once: 4 bytes a parameter, besides loss and norm."""
    difference = compare("llm-pretrain:tiny", "llm-pretrain:125m", world_size=4)
    for side in (difference.a, difference.b):
        assert side.figures["communication_per_step_all_reduce"] == 4 * side.figures["parameters"] + 8
    lone = compare("llm-pretrain:tiny", "llm-pretrain:tiny")
    assert lone.settings == ()
    assert lone.a.figures == lone.b.figures
    assert difference.a.figures["model_flops_per_step"] == 4 * lone.a.figures["model_flops_per_step"]


def test_a_model_takes_the_job_of_the_preset(tmp_path: Path) -> None:
    path = written(tmp_path, "config.json")
    difference = compare("llm-pretrain:tiny", str(tmp_path))
    assert difference.b.name == f"{tmp_path.name}/"
    names = {one.name for one in difference.settings}
    assert names == {"layers", "width", "heads", "hidden", "vocabulary", "norm_epsilon"} - (
        set() if difference.a.settings.as_dict()["norm_epsilon"] != 1e-5 else {"norm_epsilon"}
    )
    assert difference.b.settings.as_dict()["tokens"] == difference.a.settings.as_dict()["tokens"]
    again = compare(path, "llm-pretrain:tiny")
    assert again.a.figures == difference.b.figures


def test_a_layout_that_does_not_fit_is_said() -> None:
    difference = compare("llm-pretrain:tiny", "llm-pretrain:tiny", overrides=["tensor_ranks=2"], world_size=3)
    assert difference.a.problem.startswith("memory and communication are unknown: world of 3")
    (told,) = as_document(difference)["a"]["notes"]
    assert told == difference.a.problem
    assert "A: 内存与通信未知：world size 3 = tensor 2，剩余数据并行数 1.5；可用的 world size：2, 4, 6, 8 等" in (
        render(difference, "text", "zh")
    )
    assert "memory" not in difference.a.figures
    assert "model_flops_per_step" not in difference.a.figures


def test_encoders(tmp_path: Path) -> None:
    raw = {
        "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    difference = compare(str(tmp_path), str(tmp_path), overrides=["classes=3", "tokens=128", "mode=train", "batch=2"])
    assert difference.a.workload.name == "bert-clue"
    assert difference.a.figures["parameters"] == 109_482_240 + 3 * 769
    assert difference.a.figures["model_flops_per_step"] == 3 * 2 * difference.a.figures["forward_flops"]


def test_settings_of_one_workload_only_have_no_effect_alone() -> None:
    difference = compare("llm-pretrain:tiny", "resnet50-infer:tiny")
    found = {one.name: one for one in difference.settings}
    assert (found["layers"].b, found["image_width_px"].a) == (None, None)
    assert found["layers"].effects is found["image_width_px"].effects is None


def test_a_model_with_experts_is_trained_by_the_workload_for_them(tmp_path: Path) -> None:
    """It takes the job of the other side; the settings that both workloads have are followed one by one."""
    raw = {
        **SMALL, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    difference = compare("llm-pretrain:tiny", str(tmp_path), overrides=["tokens=64"])
    assert difference.b.workload.name == "moe-pretrain"
    assert difference.b.settings.as_dict()["normalise"] is True
    assert difference.b.figures["active_parameters"] < difference.b.figures["parameters"]
    layers = next(one for one in difference.settings if one.name == "layers")
    assert layers.effects is not None and layers.effects["parameters"] < 0
    lone = compare(str(tmp_path), str(tmp_path))
    assert lone.a.workload.name == "moe-pretrain"
    assert lone.settings == ()


def run_directory(folder: Path, name: str, *overrides: str, world_size: int = 1) -> str:
    settings = find_workload("llm-pretrain").settings("tiny", overrides)
    manifest = Manifest(
        workload="llm-pretrain", preset="tiny", device="cpu", device_facts={"world_size": world_size},
        config=settings.as_dict(), versions={}, environment={}, timings_ns={}, metrics=(), files={}, notes=(),
        created="2026-01-01T00:00:00+00:00", data_origin="measured", command=(), seed=0,
    )  # fmt: skip
    (folder / name).mkdir()
    write_manifest(folder / name, manifest)
    return str(folder / name)


def test_runs_are_compared_as_they_ran(tmp_path: Path) -> None:
    a = run_directory(tmp_path, "before")
    b = run_directory(tmp_path, "after", "batch=4", "recompute=full", world_size=2)
    difference = compare(a, f"{b}/manifest.json")
    assert (difference.a.name, difference.b.name) == ("before/", "after/")
    assert (difference.a.world_size, difference.b.world_size) == (1, 2)
    assert [one.name for one in difference.settings] == ["batch", "recompute"]
    assert difference.b.figures["model_flops_per_step"] == 4 * difference.a.figures["model_flops_per_step"]
    assert difference.settings[1].effects is not None
    assert difference.settings[1].effects["memory"] < 0
    assert compare(a, b, world_size=1).b.world_size == 1


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("nothing/here", InputError, "nothing/here: neither a file or folder nor WORKLOAD:PRESET"),
        ("llm-pretrain:99b", UsageError, "llm-pretrain has no preset '99b'"),
        ("llm-pretran:7b", UsageError, "no workload 'llm-pretran': did you mean 'llm-pretrain'"),
    ],
)
def test_what_cannot_be_compared(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compare("llm-pretrain:tiny", text)


def test_a_setting_that_neither_has() -> None:
    with pytest.raises(UsageError, match="llm-pretrain has no setting 'layer': did you mean 'layers'"):
        compare("llm-pretrain:tiny", "llm-pretrain:tiny", overrides=["layer=2"])


# The command


def test_the_command_in_three_forms(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", bos_token_id=1)
    b = written(tmp_path, "b.json", num_hidden_layers=6, bos_token_id="a|b\x1b[31m", sliding_window=8)
    arguments = ["diff-config", a, b, "--tokens", "32", "--batch", "1", "--world", "2"]
    text = CliRunner().invoke(cli, arguments)
    assert text.exit_code == 0, text.output
    lines = text.output.replace("\u2009", " ").replace("\u202f", " ").splitlines()
    assert lines[:2] == [
        "A: a.json (config.json, llm-pretrain, processes 2)", "B: b.json (config.json, llm-pretrain, processes 2)",
    ]  # fmt: skip
    (parameters,) = (line for line in lines if line.startswith("  parameters  "))
    assert parameters.split("  ")[-1] == "+87.8 %"  # 105 408 and 92 544 more
    assert any(line.startswith("  layers   3  6  parameters +92 544, model FLOPs") for line in lines)
    assert any(line.split() == ["bos_token_id", "1", "a|b", "[31m"] for line in lines)
    assert "- B: attention within a window of 8 tokens: counted and run over all tokens" in lines
    markdown = CliRunner().invoke(cli, [*arguments, "--format", "md", "--lang", "zh"]).output
    markdown = markdown.replace("\u2009", " ").replace("\u202f", " ")
    assert "## 指标（公式计算）" in markdown
    assert "| layers | 3 | 6 | 参数量 +92 544, 每步模型计算量" in markdown
    assert "a\\|b [31m" in markdown
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--format", "json"]).output)
    assert document["schema_version"] == 1
    assert document["a"] == {
        "name": "a.json", "kind": "config.json", "workload": "llm-pretrain", "world_size": 2, "notes": [],
    }  # fmt: skip
    (figure,) = (one for one in document["figures"] if one["name"] == "parameters")
    assert figure["difference"] == 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 128) == 92_544
    assert document["settings"][0]["effects"]["parameters"] == 92_544
    assert document["other_keys"] == [{"name": "bos_token_id", "a": 1, "b": "a|b\x1b[31m"}]


def test_every_figure_has_words_and_a_unit() -> None:
    for workload in ("llm-pretrain:tiny", "bert-clue:tiny", "resnet50-infer:tiny"):
        difference = compare(workload, workload, world_size=1)
        for name in difference.figures:
            assert config_diff.figure_words(name).zh
            assert config_diff.figure_unit(name) in ("count", "flops", "bytes")


def test_many_other_keys_are_cut(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", **{f"key_{number}": 1 for number in range(250)})
    difference = compare(a, written(tmp_path, "b.json"))
    assert (len(difference.other_keys), difference.other_keys_left_out) == (200, 50)
    assert "50 more keys differ" in CliRunner().invoke(cli, ["diff-config", a, str(tmp_path / "b.json")]).output
