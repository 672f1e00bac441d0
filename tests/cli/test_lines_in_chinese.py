"""What `analyze` and `run` print beside their reports is in the language that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.bench.launch import Notice
from ascend_perf.cli import _show, analyze
from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.manifest import write_manifest
from ascend_perf.model.run import Manifest
from ascend_perf.reports.phrases import phrase
from tests._support import Said
from tests.conftest import ROOT
from tests.reports import _errors, _literals
from tests.test_pipeline import trace_file

Command = Callable[..., Said]

CHINESE = re.compile("[\u4e00-\u9fff]")
ENGLISH = re.compile(r"(?<![\w.-])(?:a|the|is|are|was|were|not|of|their|failed|read)(?![\w.-])")


def ranks(folder: Path) -> Path:
    """Traces of two ranks, one of them twice, one that tells no rank and one that is damaged."""
    for name, rank in (("a", 0), ("b", 0), ("c", 1), ("d", None)):
        trace_file(folder / f"{name}.json", rank)
    (folder / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\x00nonsense" * 9)
    return folder


def test_analyze_says_beside_its_report_what_to_know_in_chinese(command: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("C-14: {min_share_ratio: 0.08}\n", "utf-8")

    said = command("analyze", ranks(tmp_path / "in"), "-o", tmp_path / "out", "--lang", "zh", "--jobs", 1,
                   "--only", "step-breakdown", "--rules", rules)  # fmt: skip

    assert said.code == 0, said.err
    lines = said.err.splitlines()
    assert lines[:4] == [
        "ascend-perf: 未读取：bad.json.gz：损坏的 gzip 文件",
        "ascend-perf: Rank 0 被读取了 2 次（a.json, b.json）；Rank 间的比较使用第一次读取的数据",
        "ascend-perf: 4 个 trace 中有 1 个未标明 Rank，不参与比较",
        "ascend-perf: 已读取 8 个 Rank 中的 2 个；缺少：Rank 2-7",
    ]
    assert re.fullmatch(r"ascend-perf: --only 排除了 \d+ 个分析器：其对应条目未作判断", lines[4])
    assert re.fullmatch(r"ascend-perf: C-14 的 min_share_ratio 为 0\.08（默认 0\.\d+）", lines[5])
    assert [line for line in lines if ENGLISH.search(line)] == []


def test_analyze_says_the_same_in_english(command: Command, tmp_path: Path) -> None:
    said = command("analyze", ranks(tmp_path / "in"), "-o", tmp_path / "out", "--jobs", 1, "--only", "step-breakdown")

    assert said.code == 0, said.err
    assert said.err.splitlines()[:4] == [
        "ascend-perf: not read: bad.json.gz: it is a damaged gzip file",
        "ascend-perf: rank 0 was read 2 times (a.json, b.json); comparisons of ranks use the first",
        "ascend-perf: 1 of 4 traces do not tell their rank and are not compared",
        "ascend-perf: 2 of 8 ranks were read; not there: ranks 2-7",
    ]
    assert not CHINESE.search(said.err)


@pytest.mark.parametrize(
    ("status", "problem", "line"),
    [
        ("failed", "settings of llm-pretrain: batch must be 1 or more, got 0",
         "运行失败：llm-pretrain 的设置：batch 应不小于 1，实际为 0"),
        ("failed", "", "运行失败：未记录原因"),
        ("interrupted", "stopped by Ctrl-C", "运行被中断：被 Ctrl-C 停止"),
    ],
)  # fmt: skip
def test_analyze_says_in_chinese_why_a_run_failed(
    command: Command, tmp_path: Path, status: Literal["failed", "interrupted"], problem: str, line: str
) -> None:
    manifest = Manifest(
        workload="llm-pretrain", device="cpu", created="2026-01-01T00:00:00+00:00", data_origin="measured",
        status=status, problem=problem,
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    write_manifest(tmp_path / "run", manifest)

    said = command("analyze", tmp_path / "run", "-o", tmp_path / "out", "--lang", "zh")

    assert said.err.splitlines()[0] == f"ascend-perf: {line}"


def test_a_run_names_its_device_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    device = SeenDevice(type="npu", index=0, name="Ascend910B2 (virtual)", cores=24, memory_bytes=64 << 30)
    unnamed = SeenDevice(type="cpu", index=0, name=None)
    languages: tuple[Literal["en"], Literal["zh"]] = ("en", "zh")
    for lang in languages:
        with _show.progress(lang) as tell:
            tell(Notice(phase="device", device=device))
            tell(Notice(phase="device", device=unnamed))

    assert capsys.readouterr().err.splitlines() == [
        "device: npu:0 · Ascend910B2 (virtual) · 24 cores · 64 GiB",
        "device: cpu · name unknown",
        "设备：npu:0 · Ascend910B2 (virtual) · 24 核 · 64 GiB",
        "设备：cpu · 名称未知",
    ]


def test_lines_about_a_set_up_are_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    _show.aloud(shown.append, "zh")("built them in 3.4 s (300 operators)")
    _show.aloud(shown.append)("built them in 3.4 s (300 operators)")

    assert shown == ["编译完成，用时 3.4 s（300 个算子）", "built them in 3.4 s (300 operators)"]
    assert capsys.readouterr().err == "".join(f"ascend-perf: {line}\n" for line in shown)


@pytest.mark.parametrize("words", [_show._PHASES, _show._DEVICE, analyze._WORDS], ids=["phases", "device", "analyze"])
def test_the_words_of_both_languages_have_the_same_places(words: dict[str, dict[str, str]]) -> None:
    assert words["en"].keys() == words["zh"].keys()
    for key, english in words["en"].items():
        chinese = words["zh"][key]
        assert len(re.findall(r"\{[^}]*\}", english)) == len(re.findall(r"\{[^}]*\}", chinese))
        assert CHINESE.search(chinese) or not re.search("[a-z]{2}", re.sub(r"\{[^}]*\}", "", english))


# ---- what they refuse ------------------------------------------------------------------------------------------------

REFUSING = [
    *(ROOT / "ascend_perf" / f"{name}.py"
      for name in ("pipeline", "by_rank", "cli/_folder", "cli/export", "cli/explain", "cli/run", "bench/child")),
    *(ROOT / "analyzers" / f"{name}.py" for name in ("_choice", "_rules_file")),
    *(ROOT / "collectors" / f"{name}.py" for name in ("devices", "torch_profiler", "torch_npu")),
]  # fmt: skip


def test_every_text_with_which_they_refuse_has_its_chinese() -> None:
    errors = set(chain.from_iterable(_errors.of(module) for module in REFUSING))
    # What is put together from computed parts is tried below.
    texts = {text for error in errors for text in (error.what, error.hint) if len(re.findall("[a-z]{2,}", text)) > 2}
    texts = {text for text in texts if not re.match(f"{_literals.COMPUTED}(?:`| {_literals.COMPUTED})", text)}

    assert len(texts) > 60
    assert {text: phrase(text).zh for text in texts if not CHINESE.search(phrase(text).zh)} == {}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("- 1\n", "rules.yaml 的内容为列表，应为排查表的条目"),
        ("[1]: 2\n", "rules.yaml 以列表为键，应为排查表的条目"),
        ("C-14: {a: [1]}\n", "rules.yaml 第 1 行：C-14 的 a 为列表，应为数"),
        ("C-14: 3\n", "rules.yaml 第 1 行：C-14 的内容为'3'，应为阈值及其取值"),
        ("\nC-14: {min_share_ratio: 7}\n", "rules.yaml 第 2 行：C-14 的 min_share_ratio 为 7，应为 0 至 1 的数"),
        ("C-14: {min_share_ratio: 0.1, min_share_ratio: 0.2}\n",
         "rules.yaml 第 1 行：C-14 的 min_share_ratio 重复设置"),
        ("Z-99: {a: 1}\n", "rules.yaml 第 1 行：排查表中没有条目 'Z-99'"),
        ("C-14: {nothing: 1}\n", "rules.yaml 第 1 行：条目 C-14 没有阈值 'nothing'；"),
        ("C-14: {\n", "rules.yaml 第 2 行不是有效的 YAML："),
    ],
)  # fmt: skip
def test_rules_are_refused_in_chinese(command: Command, tmp_path: Path, rules: str, words: str) -> None:
    (tmp_path / "rules.yaml").write_text(rules, "utf-8")

    said = command("analyze", trace_file(tmp_path / "a.json", 0), "-o", tmp_path / "out", "--lang", "zh",
                   "--rules", tmp_path / "rules.yaml")  # fmt: skip

    assert said.code == 2
    what, hint = said.err.splitlines()
    assert what.startswith(f"ascend-perf: {words}")
    assert hint.startswith("  提示：")
    assert CHINESE.search(hint.removeprefix("  提示："))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--rank", 9), "数据中没有 Rank 9；现有：0"),
        (("--step", 9), "数据中没有 step 9；现有：1, 2"),
        (("--only", "memry"), "没有分析器 'memry'"),
        (("--format", "pdf"), "未知的报告格式 pdf；可用：html, json, md"),
        (("--format", "md", "--all-ranks"), "各 Rank 的页面属于 report.html"),
    ],
)  # fmt: skip
def test_wrong_options_of_analyze_are_refused_in_chinese(
    command: Command, tmp_path: Path, words: tuple[object, ...], line: str
) -> None:
    said = command("analyze", trace_file(tmp_path / "a.json", 0), "-o", tmp_path / "out", "--lang", "zh", *words)

    assert said.code == 2
    assert said.err.splitlines()[0] == f"ascend-perf: {line}"
    assert not re.search("did you mean|there are|add html", said.err)
