"""What a workload does not take (settings, layouts, numbers of processes, a config.json) is said in Chinese too."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ascend_perf.errors import AscendPerfError
from ascend_perf.reports.phrases import phrase, spoken
from ascend_perf.workloads import _spec
from ascend_perf.workloads._layout import Layout, check
from ascend_perf.workloads._model_shape import ModelShape
from tests._support import Said
from tests.conftest import ROOT
from tests.reports import _literals
from tests.reports.test_phrases import english

SETTINGS = (
    "_spec", "_layout", "_training", "_model_shape", "_encoder_shape", "_routing", "_lora_shape", "_fused", "_serving",
    "_batches", "_schedule", "_model_config", "bert_clue", "comm_bench", "llm_generate", "llm_serve", "lora_finetune",
    "micro", "resnet50_infer", "resnet50_train", "_parallel", "_text_data",
)  # fmt: skip
"""Modules of workloads/ whose refusals are of settings; those of others are of data, and of requests to a server."""
BENCH = ("what_if", "layout_choices", "prediction", "before", "launch", "virtual", "folder", "config_diff")
COMMANDS = ("what_if", "run", "_virtual")


def names() -> set[str]:
    """Names of settings, and the words that they take: they are the same in both languages."""
    found = {
        "and", "set", "about", "en", "zh", "key", "value", "as", "world", "size", "torch", "workloads", "true", "false",
        "shell", "manifest", "modelled", "checkpoint", "all", "pipeline", "context", "tensor", "tp", "pp", "cp", "ep",
        "ddp", "fsdp", "npu", "cuda", "token", "micro", "batch", "stage", "head",
    }  # fmt: skip
    for workload in _spec.load_workloads().parts.values():
        found |= set(workload.name.split("-")) | workload.fields().keys()
        for part in (workload.config, _spec.Plan):
            for kind, _ in _spec._leaves(part).values():
                found |= {str(word) for word in get_args(kind)}
    return found


def left_in_english(text: str) -> list[str]:
    """Words of the Chinese that are no names, and in no command to copy."""
    known = names()
    return [word for word in english(re.sub("`.*?`", "", phrase(text).zh)) if word not in known]


def refusals() -> set[str]:
    """Every text that the modules can refuse something with, and its hint."""
    modules = [ROOT / "workloads" / f"{name}.py" for name in SETTINGS]
    modules += [ROOT / "ascend_perf" / "bench" / f"{name}.py" for name in BENCH]
    modules += [ROOT / "ascend_perf" / "cli" / f"{name}.py" for name in COMMANDS]
    texts: set[str] = set()
    for module in modules:
        for call, known in _literals.calls(module):
            if _literals.name_of(call) not in ("ValueError", "UsageError", "MachineError", "InputError"):
                continue
            for node in (_literals.argument(call, "", 0), _literals.argument(call, "hint")):
                texts |= set() if node is None else set(_literals.expanded(node, known))
    return texts


def test_every_refusal_of_the_sources_has_its_chinese() -> None:
    # What a name may be followed by (": did you mean ...?") is computed as well.
    texts = {re.sub(r"(?<=[a-z?])7$", "", text) for text in refusals() if english(text)}
    assert len(texts) > 120
    # A computed rest of a sentence ("leaves 1.5 data ranks") is looked at where layouts are tried.
    left = {text: words for text in texts if (words := left_in_english(text)) and not text.startswith("world of")}
    assert left == {}


SHAPE = ModelShape(layers=4, width=64, heads=8, kv_heads=4, hidden=96, vocabulary=160)
EXPERTS = replace(SHAPE, experts=6, experts_per_token=2, expert_hidden=32)


def layout_refusals() -> set[str]:
    """What layouts of small numbers are refused with, for dense models and such with experts."""
    found = set()
    for tensor, context, pipeline, expert, stages, sequence, world, tokens in itertools.product(
        (1, 2, 3), (1, 2, 5), (1, 3, 8), (1, 2, 4), (1, 2), (False, True), (1, 6, 8, 24), (30, 32)
    ):
        try:
            layout = Layout(
                tensor_ranks=tensor, context_ranks=context, pipeline_ranks=pipeline, expert_ranks=expert,
                pipeline_stages_per_rank=stages, sequence_parallel=sequence,
                pipeline_schedule="interleaved" if stages > 1 else "1f1b",
            )  # fmt: skip
            for shape in (SHAPE, EXPERTS, replace(SHAPE, tied=True)):
                try:
                    check(layout, shape, world_size=world, tokens=tokens, accumulate=4)
                except ValueError as error:
                    found.add(str(error))
        except ValueError as error:
            found.add(str(error))
    return found


def test_layouts_that_do_not_fit_say_so_in_chinese() -> None:
    texts = layout_refusals()
    assert len(texts) > 30
    assert {text: words for text in texts if (words := left_in_english(text))} == {}
    assert all(re.search("[\u4e00-\u9fff]", phrase(text).zh) for text in texts)
    # The figures stay, in whatever order.
    assert all(sorted(re.findall(r"\d+", text)) == sorted(re.findall(r"\d+", phrase(text).zh)) for text in texts)


@pytest.mark.parametrize(("text", "chinese"), [
    ("tensor_ranks 3 does not divide 8 heads; valid here: 1, 2, 4",
     "tensor_ranks 3 不能整除 heads 8；此处可取：1, 2, 4"),
    ("llm-pretrain on 8 processes: world of 8 = tensor 3 leaves 2.667 data ranks; valid world sizes: 3, 6, 9, 12, ...",
     "llm-pretrain，8 个进程：world size 8 = tensor 3，剩余数据并行数 2.667；可用的 world size：3, 6, 9, 12 等"),
    ("settings of micro: iterations must be 1 or more, got 0", "micro 的设置：iterations 应不小于 1，实际为 0"),
    ("no workload 'llm-pretrian': did you mean 'llm-pretrain'?",
     "没有工作负载 'llm-pretrian'：是否指 'llm-pretrain'？"),
    ("config.json: no model for 'mamba': it is a state-space model",
     "config.json：没有适合 'mamba' 的模型：它是状态空间模型"),
    ("runs/a exists", "runs/a 已存在"),
    ("text.txt line 3 is not a JSON object but list", "text.txt 第 3 行不是 JSON 对象，而是 list"),
    ("the model's vocabulary of 64 is too small for bytes and their special tokens: 259 tokens",
     "模型词表大小 64 不足以容纳字节及其特殊 token：259 个 token"),
    ("no chip named 'Ascend999' is known", "没有名为 'Ascend999' 的芯片"),
    ("data_parallel fsdp needs torch 2.6 or newer, here is 2.5.1",
     "data_parallel fsdp 需要 torch 2.6 或更新，当前为 2.5.1"),
])  # fmt: skip
def test_a_refusal_in_words(text: str, chinese: str) -> None:
    assert spoken(text, "zh") == chinese
    assert spoken(text, "en") == text


def test_settings_that_are_refused_by_their_configuration() -> None:
    """The texts as they really come, through the workloads."""
    for name, overrides in (
        ("llm-pretrain", ("width=65",)), ("llm-pretrain", ("sequence_parallel=true",)),
        ("llm-pretrain", ("recompute=som",)), ("llm-pretrain", ("learning_rate=0",)),
        ("moe-pretrain", ("experts_per_token=99",)), ("micro", ("parts=gem",)), ("comm-bench", ("max_bytes=1",)),
        ("llm-generate", ("top_p=2",)), ("lora-finetune", ("lora_alpha=0",)), ("llm-pretrain", ("fused_ops=x=on",)),
    ):  # fmt: skip
        with pytest.raises(AscendPerfError) as refused:
            _spec.find_workload(name).settings("tiny", overrides)
        for text in (refused.value.what, refused.value.hint):
            # Lists of names of ours stay as they are.
            rest = [word for word in left_in_english(text.partition("there are")[0]) if f"'{word}" not in text]
            assert rest == [], (text, phrase(text).zh)


def test_the_command_says_so(command: Callable[..., Said], tmp_path: Path) -> None:
    words = ("run", "llm-pretrain", "--set", "tensor_ranks=2", "--nproc", "3", "--lang", "zh", "-o", tmp_path / "out")
    said = command(*words)
    assert said.code == 2
    refusal = "llm-pretrain，3 个进程：world size 3 = tensor 2，剩余数据并行数 1.5；可用的 world size：2, 4, 6, 8 等"
    assert said.err.splitlines()[-1] == f"ascend-perf: {refusal}"
