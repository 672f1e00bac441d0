"""Both languages are complete and use the words of the glossary."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

from ascend_perf.model.finding import Words
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.phrases import phrase, phrases
from ascend_perf.reports.sections import ORDER, SECTION_OF_TABLE

REPORTS = Path(__file__).parent.parent.parent / "reports"

GLOSSARY = {
    "column.span_us": "单步耗时",
    "column.computing_us": "计算",
    "column.communication_us": "通信",
    "column.communication_not_overlapped_us": "未被掩盖的通信",
    "tile.exposed": "未掩盖通信",
    "column.overlapped_us": "计算通信掩盖",
    "column.free_us": "空闲（Free）",
    "column.bubble_us": "流水线气泡（Bubble）",
    "column.preparing_us": "迭代准备时间",
    "kind.wait": "等待",
    "kind.transfer": "传输",
    "severity.critical": "严重",
    "severity.high": "高",
    "severity.medium": "中",
    "severity.low": "低",
    "status.no_data": "无数据",
    "ui.not_judged": "无法判断",
    "origin.measured": "实测",
    "origin.simulated": "仿真",
    "gain.bound": "理论上限",
    "ui.evidence": "证据",
    "ui.remedy": "优化建议",
    "section.timeline": "时间线",
    "section.mac": "MAC 利用率",
    "section.dma": "数据搬运",
    "section.host": "下发",
    "chart.roofline": "屋顶线",
    "chart.intensity": "计算访存比",
    "chart.allocated": "已分配",
    "chart.reserved": "已预留",
    "section.aipp": "预处理",
    "tile.kernel_mfu": "算子级 MFU",
}
"""Chinese words that the glossary fixes, by the key that must use them."""


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_no_key_is_missing_on_either_side() -> None:
    assert catalogue("en").keys() == catalogue("zh").keys()


def test_both_sides_fill_in_the_same_values() -> None:
    for key, text in catalogue("en").items():
        assert placeholders(text) == placeholders(catalogue("zh")[key]), key


def test_no_text_is_empty() -> None:
    for lang in ("en", "zh"):
        assert all(text.strip() for text in catalogue(lang).values())


@pytest.mark.parametrize(("key", "word"), GLOSSARY.items())
def test_chinese_uses_the_words_of_the_glossary(key: str, word: str) -> None:
    assert word in catalogue("zh")[key]


PERCENT = re.compile(r"[0-9]%(?![0-9A-Fa-f]{2})|:\.[0-9]f?%\}|[0-9]\s*％")
"""A percent sign right behind its number, written or formatted (not %E4 of an address)."""


def test_chinese_writes_percent_as_figures_do() -> None:
    """`format_ratio` and the scripts of the page leave a space before the sign; so do fixed texts beside them."""
    root = REPORTS.parent
    places = [root / name for name in ("analyzers", "ascend_perf", "collectors", "reports", "workloads")]
    files = [path for place in places for path in place.rglob("*") if path.suffix in (".py", ".yaml", ".js")]
    lines = [
        (path, line) for path in files if path.is_file() for line in path.read_text(encoding="utf-8").splitlines()
        if "%" in line or "％" in line
    ]  # fmt: skip
    chinese = [(path, line) for path, line in lines if re.search("[\u4e00-\u9fff]", line)]

    assert len(chinese) > 50
    assert [f"{path.name}: {line.strip()}" for path, line in chinese if PERCENT.search(line)] == []


def test_a_bound_is_never_called_an_expected_gain() -> None:
    assert not any("预计提升" in text for text in catalogue("zh").values())
    assert all("At most" in catalogue("en")[key] for key in ("gain.bound",))


def test_every_section_has_its_title_and_a_reason_for_being_empty() -> None:
    for section in ORDER:
        assert f"section.{section}" in catalogue("en")
    for section in set(ORDER) - {"more", "quality", "method"}:
        assert f"reason.{section}" in catalogue("en")
    assert set(SECTION_OF_TABLE.values()) <= set(ORDER)


def test_every_text_that_a_script_asks_for_exists() -> None:
    asked = set()
    for script in (REPORTS / "assets").glob("*.js"):
        asked |= set(re.findall(r'AP\.t\("([\w.]+)"[,)]', script.read_text("utf-8")))
    assert len(asked) > 50
    assert asked <= catalogue("en").keys()


def test_every_text_that_python_asks_for_exists() -> None:
    calls = [
        node
        for module in REPORTS.glob("*.py")
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "words" and node.args
    ]
    asked = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert len(asked) > 20
    assert asked <= catalogue("en").keys()


def test_values_are_filled_in_for_each_language() -> None:
    inner = Words("idle", "空闲")

    said = words("gain.bound", bound="3.6", part=inner)

    assert said == Words("At most 3.6x (idle)", "理论上限 3.6 倍（空闲）")


def test_an_unknown_phrase_stays_as_it_is() -> None:
    assert phrase("aten::copy_") == Words("aten::copy_", "aten::copy_")
    assert phrase("comm-wait").zh == "通信等待"
    assert all(isinstance(both, Words) for both in phrases().values())
