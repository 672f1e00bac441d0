"""What `analyze` and `run` print beside their reports is in the language that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.bench.launch import Notice
from ascend_perf.cli import _show, analyze
from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.manifest import write_manifest
from ascend_perf.model.run import Manifest
from tests._support import Said
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
