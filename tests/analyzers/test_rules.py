"""The troubleshooting table is complete, in both languages, and names only things that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ascend_perf.analyzers import _rules
from ascend_perf.model.finding import Evidence, Finding, Severity, Words

ROWS = {"H": 9, "C": 14, "M": 4, "N": 12, "D": 3, "K": 7, "P": 2, "E": 4, "L": 2, "V": 8, "Q": 5}
"""Rows per group of the troubleshooting document; ids are stable and never reused."""
EXPECTED = [f"{group}-{number:02}" for group, count in ROWS.items() for number in range(1, count + 1)]

NOT_REAL = (
    "npu_fused_layer_norm",
    "NPU_MEMORY_OPTIMIZE",
    "HCCL_PROTOCOL",
    "mindspeed.nn",
    "NpuFlashAttention",
    "mindspeed.moe",
    "NpuMoELayer",
    "enable_token_reshuffle",
    "aic-metrics=true",
    "hccl_analyzer",
    "allow_fp32_to_fp16",
    "DynamicLossScaleManager",
    "amp_level",
    "BISH",
    "npu_confusion_transpose",
    "npu_fused_attention_score",
)
"""Names of the source articles that no public source has, or that the vendor has scrapped."""
WRONG_FORM = (
    re.compile(r"HCCL_ALGO=\"?[A-Z]"),  # the valid form names levels
    re.compile(r"soc_version=Ascend910B\b"),  # a first-generation chip; the model number is missing
    re.compile(r"npu_rotary_mul\(\w+, *k\b"),  # one tensor per call
)
FORECAST = re.compile(r"\b(will gain|expected gain|you will|speeds? up by)\b|预计提升|可提升|将提升", re.IGNORECASE)
CJK = re.compile(r"[\u4e00-\u9fff]")


def _texts(rule: _rules.Rule) -> Iterator[Words]:
    yield from (rule.title, rule.symptom, rule.cause, rule.confirm, rule.effect)
    yield from (remedy.text for remedy in rule.remedies)


def test_the_table_holds_the_rows_of_the_document_and_no_others() -> None:
    assert list(_rules.rule_codes()) == EXPECTED


def test_a_group_file_holds_no_id_twice() -> None:
    for path in _rules._FOLDER.glob("*.yaml"):
        ids = re.findall(r"^- id: (\S+)$", path.read_text("utf-8"), re.MULTILINE)
        assert len(ids) == len(set(ids)) == ROWS[path.stem]


@pytest.mark.parametrize("code", EXPECTED)
def test_a_row_is_complete_in_both_languages(code: str) -> None:
    rule = _rules.rule(code)

    assert rule.sources
    assert rule.remedies
    for words in _texts(rule):
        assert CJK.search(words.zh), words.zh
        assert not CJK.search(words.en), words.en
        assert words.en == words.en.strip() and words.zh == words.zh.strip()


@pytest.mark.parametrize("code", EXPECTED)
def test_a_row_names_only_what_exists_and_forecasts_nothing(code: str) -> None:
    rule = _rules.rule(code)
    texts = [text for words in _texts(rule) for text in (words.en, words.zh)]
    codes = [remedy.code for remedy in rule.remedies]

    for text in texts + codes:
        assert not [name for name in NOT_REAL if name in text]
        assert not [form for form in WRONG_FORM if form.search(text)]
    for text in (rule.effect.en, rule.effect.zh):
        assert not FORECAST.search(text)
    if re.search(r"[+-]\d|\d ?%", rule.effect.en):  # a figure is somebody's measurement or a bound
        assert re.search(r"Reported elsewhere|Bound", rule.effect.en)
        assert re.search(r"他处报告|理论上限", rule.effect.zh)


@pytest.mark.parametrize("code", EXPECTED)
def test_code_to_copy_is_given_whole_or_left_out(code: str) -> None:
    raw = (_rules._FOLDER / f"{code[0]}.yaml").read_text("utf-8")
    assert not re.search(r'^\s+code: *(""|\'\')? *$', raw, re.MULTILINE)
    for remedy in _rules.rule(code).remedies:
        assert remedy.code == remedy.code.rstrip()
        assert "\t" not in remedy.code


@pytest.mark.parametrize("code", EXPECTED)
def test_every_row_has_a_remedy_for_the_npu(code: str) -> None:
    assert _rules.remedies_for(code, "npu")


@pytest.mark.parametrize("vendor", ["gpu", "cpu"])
@pytest.mark.parametrize(
    "code", ["H-01", "H-03", "H-05", "H-06", "H-07", "C-09", "C-10", "C-12", "C-13", "N-05", "D-01", "D-02", "D-03"]
)
def test_general_rows_help_on_gpus_and_cpus_without_ascend_names(code: str, vendor: _rules.Vendor) -> None:
    remedies = _rules.remedies_for(code, vendor)

    assert remedies
    assert not [r for r in remedies if re.search(r"torch_npu|_NPU_|TASK_QUEUE|MindSpeed|HCCL", r.text.en + r.code)]


def test_without_a_known_vendor_all_remedies_come_with_their_kind_of_device() -> None:
    remedies = _rules.remedies_for("H-04", None)

    assert [r.text.en.split("]")[0] for r in remedies] == ["[NPU", "[GPU", "[GPU"]


def test_an_unknown_row_is_a_key_error() -> None:
    for code in ("X-01", "H-99", "", "../H"):
        with pytest.raises(KeyError):
            _rules.rule(code)


def _finding(share_ratio: float | None, **more: object) -> Finding:
    return _rules.finding(
        "H-07",
        analyzer="host-dispatch",
        trace_rank=3,
        title=Words("GC takes 5 %.", "GC 占 5 %。"),
        share_ratio=share_ratio,
        evidence=[Evidence(name=Words("GC", "GC"), value=1, unit="ms")],
        vendor="npu",
        **more,  # type: ignore[arg-type] # passed on as they are
    )


def test_a_finding_takes_words_from_the_table_and_severity_from_the_share() -> None:
    found = _finding(0.31)

    rule = _rules.rule("H-07")
    assert (found.code, found.cause, found.confirm) == ("H-07", rule.cause, rule.confirm)
    assert found.remedies == _rules.remedies_for("H-07", "npu")
    assert found.severity is Severity.CRITICAL  # 31 % of the step
    assert (found.ranks, found.affected_ranks) == ((3,), (3,))
    assert found.source.startswith("troubleshooting table H-07; ")


def test_without_a_share_the_row_s_own_severity_holds() -> None:
    assert _finding(None).severity is Severity.MEDIUM
    assert _finding(None, severity=Severity.LOW).severity is Severity.LOW


def test_ranks_of_cause_and_loss_can_differ() -> None:
    found = _finding(0.5, ranks=[5], affected_ranks=[0, 1])
    assert (found.ranks, found.affected_ranks) == ((5,), (0, 1))


def test_rounding_above_the_whole_is_forgiven_but_a_wrong_sum_is_not() -> None:
    assert _finding(1 + 1e-12).share_ratio == 1
    with pytest.raises(ValueError, match="claims a share"):
        _finding(1.01)


@pytest.mark.parametrize("code", EXPECTED)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_explain_fits_the_terminal_and_loses_nothing(code: str, lang: _rules.Lang) -> None:
    text = _rules.explain(code, lang)

    squeezed = re.sub(r"\s", "", text)
    rule = _rules.rule(code)
    for words in _texts(rule):
        assert re.sub(r"\s", "", words.zh if lang == "zh" else words.en) in squeezed
    codes = {line for remedy in rule.remedies for line in remedy.code.splitlines()} | set(rule.sources)
    for line in text.splitlines():
        columns = sum(2 if sign > "\u2e7f" else 1 for sign in line)
        assert columns <= 104 or line.strip() in codes, line


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_row_that_no_profile_tells_says_what_would(lang: _rules.Lang) -> None:
    assert [code for code in _rules.rule_codes() if _rules.rule(code).needs_data is not None] == ["H-08"]
    needs = _rules.rule("H-08").needs_data
    assert needs is not None
    said = "".join(_rules.explain("H-08", lang).split())
    assert "".join((needs.en if lang == "en" else needs.zh).split()) in said
