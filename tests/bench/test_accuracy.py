"""check-accuracy on a workload: equal runs agree, a planted error is named, what it needs is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ascend_perf.bench import accuracy
from ascend_perf.bench.accuracy import Request, compare
from ascend_perf.cli.check_accuracy import command, text_of
from ascend_perf.errors import UsageError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SIZES = (
    "layers=2", "width=32", "heads=4", "kv_heads=2", "hidden=48", "vocabulary=64", "tokens=16", "batch=2",
    "accumulate=2", "recompute=full",
)  # fmt: skip


def request(*more: str, **other: Any) -> Request:
    return Request(workload="llm-pretrain", device="cpu", overrides=(*SIZES, *more), **other)


def test_fp32_agrees_with_fp32_and_what_was_changed_is_said() -> None:
    seen = compare(request("dtype=fp32"))

    assert seen.divergence is None
    assert seen.value == seen.reference_value
    assert max(row.mean_relative_error for row in (*seen.free, *seen.alone)) == 0.0
    assert seen.changed == {"recompute": "none", "accumulate": 1}
    assert "every module alone is within 1.00e-04" in text_of(seen, 3)
    # Every weight of the model has its gradient compared: 9 a layer, embedding, norm, output.
    assert sum(row.kind == "weight_gradient" for row in seen.alone) == 2 * 9 + 3


def test_a_planted_error_is_named_among_the_rounding_of_bf16() -> None:
    def plant(model: Any) -> None:
        model.blocks["1"].attention.v.register_forward_hook(lambda module, args, output: output * 1.1)

    seen = compare(request("dtype=bf16"), prepare=plant)

    assert seen.divergence is not None
    assert (seen.divergence.module, seen.divergence.place) == ("blocks.1.attention.v", "inside")
    assert seen.sensitive[0].module == "blocks.1.attention.v"
    text = text_of(seen, 3, "zh")
    assert "最先偏离的模块：blocks.1.attention.v（Linear）" in text


def test_without_room_the_modules_are_compared_as_they_run() -> None:
    seen = compare(request("dtype=fp32", keep_bytes=1000))

    assert seen.alone == ()
    assert "errors added up" in text_of(seen, 3)


def test_what_a_model_asks_for_and_no_case_does_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "vocab_size": 64, "mlp_bias": True,
    }))  # fmt: skip
    seen = compare(request("dtype=fp32", model_config=path))

    assert seen.divergence is None
    assert "--model-config: mlp_bias: the MLP is run without bias" in text_of(seen, 3).splitlines()
    assert "--model-config: mlp_bias：MLP 不带偏置运行" in text_of(seen, 3, "zh").splitlines()
    assert compare(request("dtype=fp32")).notes == ()


def test_a_workload_without_a_model_says_so() -> None:
    with pytest.raises(UsageError, match="no model whose modules could be compared"):
        compare(Request(workload="micro", device="cpu", overrides=("parts=norm",)))


def test_the_command_ends_with_1_where_the_tolerance_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["llm-pretrain", "--device", "cpu", "--format", "json", "--tolerance", "1e-9", "--set", "dtype=bf16"]
    for text in SIZES:
        arguments += ["--set", text]

    done = CliRunner().invoke(command, arguments, standalone_mode=False)

    assert done.return_value == 1
    body = json.loads(done.output)
    assert (body["schema_version"], body["dtype"], body["tolerance"]) == (1, "bf16", 1e-9)
    assert body["divergence"]["module"] == "blocks.0.attention.q"  # the first product; the embedding and norm are fp32
    assert accuracy.PLAIN["dtype"] == "fp32"
