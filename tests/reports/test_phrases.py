"""Plain texts of analyzers and parsers are said in Chinese, in the sources and in the reports of real profiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf import pipeline
from ascend_perf.bench.prediction import Compared, note_of
from ascend_perf.model.finding import ResultColumn, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta
from ascend_perf.ops.classify import KernelClass
from ascend_perf.reports import markdown
from ascend_perf.reports import phrases as book
from ascend_perf.reports.json_report import document
from ascend_perf.reports.page import PHRASE_COLUMNS, page, table_document
from ascend_perf.reports.phrases import phrase, phrases, spoken
from ascend_perf.reports.texts import MAX_TEXT
from ascend_perf.units import THIN_SPACE
from tests.conftest import ROOT
from tests.reports import _literals, _samples

ANALYZERS = sorted((ROOT / "analyzers").glob("*.py"))
PARSERS = sorted((ROOT / "ascend_perf" / "parsers").glob("*.py"))

CHINESE = re.compile("[\u4e00-\u9fff]")

LOCATORS = (
    r"\bvoid [\w:]+.*",  # signatures of CUDA kernels, which the analyzers cut
    r"[\w:]+(?:<.*>)?\([^()]*\*[^()]*\)",  # other signatures
    r"\(anonymous namespace\)",
    r"\b(?:msprof(?:-analyze)?|nsys)(?: (?:profile|export|cluster))?(?: --?[\w-]+(?:[ =][\w,]+)?)*",  # commands
    r"\b[\w.]+\((?:[^()]|\([^()]*\))*\)",  # calls with their arguments
    r"\"?python -c .*?\"",
    r"\b\w+(?:[_.:/@#%*-]+\w+)+\(?\)?",  # identifiers, paths, columns, options
    r"\b\w+\(",  # calls
    r"--?[\w-]+(?:=\S+)?",
    r"\*[\w.]+\[\.gz\]",
    r"\b(?:kernels|operators|copies|memory|counters|metadata|dst|step|trace|profile|us|ms|ns|mean|max|ceil|events|version)\b",
    r"\b(?:tensor_cast|docs|advisor|nvtx|range|environment_variable|analyse|sqlite)\b",
    r"\b(?:frequency|cycles) ?(?=[*/])",
)
"""What stays as it is in both languages."""

_LOCATOR = re.compile("|".join(f"(?:{pattern})" for pattern in LOCATORS))
_WORD = re.compile(r"(?<![\w.:/-])[a-z]{2,}(?![\w.:/-])")


def english(text: str) -> list[str]:
    """Words that a reader of Chinese should not meet."""
    return _WORD.findall(_LOCATOR.sub("·", text))


def untranslated(texts: Iterable[str]) -> dict[str, str]:
    """Texts whose Chinese still holds two words of English, with that Chinese."""
    return {text: said for text in texts if len(english(said := phrase(text).zh)) >= 2}


# ---- patterns -------------------------------------------------------------------------------------------------------


def test_parts_of_a_phrase_are_kept_in_their_order() -> None:
    assert phrase("runtime_calls: 19 x aclopCompile, union").zh == "runtime_calls：19 次 aclopCompile，时间并集"
    assert phrase("kernels: 38 rows in 2 step(s)").zh == "kernels：2 个迭代中的 38 行"
    assert phrase("kernels: 38 rows in 2 step(s)").en == "kernels: 38 rows in 2 step(s)"


def test_a_part_that_is_a_phrase_is_said_in_its_language() -> None:
    assert phrase("rank 3: 5 ms (union of kernels)").zh == "Rank 3：5 ms（Kernel 的时间并集）"


def test_phrases_joined_by_semicolons_are_looked_up_one_by_one() -> None:
    assert phrase("3 calls; longest 5 ms").zh == "3 次调用；最长 5 ms"
    assert phrase("3 calls; something new").zh == "3 次调用；something new"
    assert phrase("a; b") == Words("a; b", "a; b")


def test_the_hint_of_an_error_is_said_too() -> None:
    said = phrase("it is empty\n  hint: collect the profile again")

    assert said == Words("it is empty (hint: collect the profile again)", "文件为空（提示：请重新采集 profile）")


def test_marks_in_a_part_are_text() -> None:
    name = "{1!}*{2}\\1"

    assert phrase(f"{name}, thread 7").zh == f"{name}，线程 7"


def test_text_of_a_trace_costs_little_whatever_it_is() -> None:
    for hostile in ("kernels: " * 5000, "a; " * (MAX_TEXT // 3), ", thread " * (MAX_TEXT // 9), "*" * MAX_TEXT):
        assert phrase(hostile).en == hostile


def test_english_is_what_was_written() -> None:
    assert spoken("3 calls", "en") == "3 calls"
    assert spoken("3 calls", "zh") == "3 次调用"
    assert spoken("", "zh") == ""


def test_a_phrase_with_a_meaning_of_its_own_in_a_column_has_its_english() -> None:
    """`unit/count` is how the book finds it, and no word that a reader should see."""
    keys = re.compile("(?:{})/".format("|".join(map(re.escape, {*PHRASE_COLUMNS, "unit"}))))
    assert phrase("count", "unit") == Words("count", "个")
    assert {key: words.en for key, words in phrases().items() if keys.match(key) and words.en == key} == {}


def test_every_place_for_a_part_has_its_part() -> None:
    assert len(book._patterns()) > 100  # it checks them
    for key, words in phrases().items():
        assert not ("*" in key and "; " in key and "*" in words.zh), f"{key}: texts are split at '; ' first"


def test_a_rank_of_a_change_is_said_and_names_of_a_trace_are_not() -> None:
    columns = tuple(ResultColumn(name=name, title=Words(name, name)) for name in ("kind", "name"))
    table = ResultTable(
        name="job-critical-path-what-if", title=Words("t", "t"), columns=columns,
        data=(("rank twice as fast", "twice as fast", "twice as fast"), ("rank 12", "rank 1 x", "metadata")),
    )  # fmt: skip

    columns_made: Any = table_document(table, "ranks", 3, table)["columns"]
    kind, name = columns_made

    assert kind["texts"][0] == ["host and computing of a rank twice as fast", "某卡的 Host 与计算耗时减半"]
    assert name["texts"] == [["rank 12", "Rank 12"], "rank 1 x", "metadata"]


def test_what_was_measured_beside_what_was_predicted() -> None:
    parts = ("weights", "gradients", "optimizer", "activations", "cache", "peak", "temporary")
    rows = [Compared(what="memory", part=part, predicted_bytes=2, measured_bytes=3) for part in parts]
    rows.append(Compared(what="communication", part="all_reduce", predicted_bytes=3, measured_bytes=4000))

    note = note_of(rows)

    # The names of collectives, and of what a workload of others calls its own, stay.
    assert note is not None and spoken(note, "zh") == (
        "实测与建模之比：权重内存 1.5；梯度内存 1.5；优化器状态内存 1.5；激活内存 1.5；KV 缓存内存 1.5；内存峰值 1.5；"
        f"内存 temporary 1.5；通信 all_reduce 1{THIN_SPACE}330"
    )


# ---- what the sources can write -------------------------------------------------------------------------------------

Fields = dict[str, tuple[tuple[str, int | None], ...]]

FIELDS_OF_PARSERS: Fields = {
    "Missing": (("what", 0), ("remedy", 1)),
    "Check": (("name", 0), ("where", 5)),
    "Dropped": (("reason", 0),),
    "InputError": (("what", 0),),
    "warnings.append": (("", 0),),
    "problems.append": (("", 0),),
    "notes.append": (("", 0),),
    "drop": (("", 0),),
    "_drop": (("", 0),),
    "_note": (("", 0),),
    "": (("problem", None), ("reason", None)),
}


def texts_of(modules: list[Path], fields: Fields) -> set[str]:
    """Texts given to fields: arguments (keyword, place) by the name of what is called; "" is whatever is called."""
    found = set()
    for module in modules:
        for call, known in _literals.calls(module):
            name = _literals.name_of(call)
            names = (name, f"{_literals.owner_of(call)}.{name}", "")
            for keyword, place in (field for given in names for field in fields.get(given, ())):
                node = _literals.argument(call, keyword, place)
                if node is not None:
                    found |= set(_literals.expanded(node, known))
    return found


def test_every_formula_of_an_analyzer_has_its_chinese() -> None:
    texts = {text for text in texts_of(ANALYZERS, {"": (("formula", None),)}) if " " in text}
    assert len(texts) > 30
    assert {text for text in texts if phrase(text).zh == text} == set()
    assert untranslated(texts) == {}


def test_every_share_that_an_analyzer_writes_down_has_its_chinese() -> None:
    """Formulas that reach `formula=` through other functions."""
    marks = re.compile(r"\bunion\(|/ step\b|/ length of|/ device memory$")
    found = set()
    for module in ANALYZERS:
        for call, known in _literals.calls(module):
            for node in call.args:
                if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp):
                    found |= {text for text in _literals.expanded(node, known) if marks.search(text)}
    assert len(found) > 3
    assert {text for text in found if phrase(text).zh == text} == set()


def test_every_place_of_evidence_has_its_chinese() -> None:
    texts = texts_of(ANALYZERS, {"Evidence": (("where", 3),)})
    assert len(texts) > 80
    assert untranslated(texts) == {}


def test_what_parsers_say_of_their_input_has_its_chinese() -> None:
    # Where nothing at all was found the command ends, and there is no report.
    texts = {text for text in texts_of(PARSERS, FIELDS_OF_PARSERS) if not text.startswith("no profile in")}
    assert len(texts) > 120
    assert untranslated(texts) == {}


def test_a_general_phrase_does_not_stand_for_one_of_the_set_up() -> None:
    assert spoken("pip's package index has no torch-npu wheel for Python 3.9.1 on aarch64", "zh") == (
        "pip 的软件包索引中没有适用于 aarch64 上 Python 3.9.1 的 torch-npu wheel"
    )


def test_sources_of_the_troubleshooting_table_have_their_chinese() -> None:
    from ascend_perf.analyzers._rules import rule, rule_codes

    assert untranslated(rule(code).source for code in rule_codes()) == {}


# ---- what reports of real and generated profiles say ----------------------------------------------------------------

INPUTS = (
    "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "ascend-pytorch/text/level0",
    "ascend-pytorch/text/level1",
    "ascend-pytorch/text/level2",
    "ascend-pytorch/db/level0",
    "ascend-pytorch/db/level1",
    "ascend-pytorch/db/level2",
    "ascend-cluster/msprof-analyze-8rank",
    "ascend-cluster/msinsight-16rank",
    "kernel-details",
    "timeline",
    "msprof-cli",
    "kineto/a100",
    "kineto/h100",
    "kineto/v100",
    "kineto/mi2xx",
    "kineto/mi300",
    "kineto/multi-rank-128",
    "kineto/edge-cases",
    "kineto/inference-mi300",
)


def said_in(run: Run) -> set[str]:
    """Plain texts of a run and its analysis that readers see."""
    analysis = pipeline.analyze(run)
    findings = [finding for outcome in analysis.outcomes for finding in outcome.findings]
    texts: set[str | None] = {text for finding in findings for text in (finding.formula, finding.source)}
    texts |= {item.where for finding in findings for item in finding.evidence}
    for meta in (trace.meta for trace in run.traces):
        texts |= {meta.device.derivation, *meta.warnings}
        texts |= {text for item in meta.missing for text in (item.what, item.remedy)}
        texts |= {text for check in meta.checks for text in (check.name, check.where)}
    sources = [*run.skipped, *(source for trace in run.traces for source in trace.meta.sources)]
    texts |= {source.problem for source in sources} | {drop.reason for source in sources for drop in source.dropped}
    return {text for text in texts if text}


@pytest.mark.parametrize("name", INPUTS)
def test_a_report_of_a_real_profile_says_all_of_it_in_chinese(name: str, traces: Path) -> None:
    assert untranslated(said_in(pipeline.load(traces / name))) == {}


def test_a_report_of_generated_ranks_says_all_of_it_in_chinese() -> None:
    bare = [trace.replace(meta=Meta(rank=trace.meta.rank, device=trace.meta.device)) for trace in _samples.run().traces]
    assert untranslated(said_in(Run(traces=tuple(bare)))) == {}


def test_cells_of_ours_have_their_chinese(traces: Path) -> None:
    analysis = pipeline.analyze(pipeline.load(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2"))
    plain = set()
    for outcome in analysis.outcomes:
        for table in outcome.tables:
            for column, cells in zip(table.columns, table.data, strict=True):
                if column.name in PHRASE_COLUMNS:
                    texts = {cell for cell in cells if isinstance(cell, str) and english(cell)}
                    plain |= {(column.name, text) for text in texts if phrase(text, column.name).zh == text}
    assert {pair for pair in plain if not re.fullmatch(r"[A-Z][\w+]*|\w*_\w*", pair[1])} == set()


def test_every_class_of_operators_has_its_chinese() -> None:
    plain = {item.value for item in KernelClass if phrase(item.value, "class").zh == item.value}
    assert plain == set()


def test_the_writers_use_the_language_of_the_report() -> None:
    payload = _samples.payload("zh")
    formula = "union(kernels) / step * mean(1 - mac_ratio)"
    finding = replace(payload.findings[0], formula=formula)
    payload = replace(payload, findings=(finding,))

    said: Any = phrase(formula).zh
    in_json: Any = document(payload)
    in_page: Any = page(payload)
    assert in_json["findings"][0]["formula"] == said
    assert said in markdown.text(payload)
    assert in_page["findings"][0]["formula"] == [formula, said]
