"""What is written: each format parses, says the same, and cannot be broken by a name."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.gate import comment, documents, outputs, texts
from ascend_perf.gate.decide import decide
from ascend_perf.gate.outcome import Explanation, Node, Verdict
from ascend_perf.gate.policy import parse_policy
from ascend_perf.model.finding import Words
from tests.gate._results import benchmark, launches, side

TODAY = date(2026, 4, 8)
HOSTILE = "a|b`<script>alert(1)</script>\x1b[31m\u202e @all #1 ![x](http://evil)\n::error::x ]]> </details> 100%"


def verdict_of(name: str = "llm/tiny", **changes: object) -> Verdict:
    """One regression, one count that grew, one that is allowed, one that is inconclusive, one pass."""
    policy = "allow: [{benchmark: '*', metric: bytes, owner: Li Wei, until: 2026-12-31}]"
    base = side(benchmark(name, counts={"kernels": 100, "bytes": 10}), benchmark("few", of=launches(2)))
    head = side(
        benchmark(name, of=launches(10, 1.2e7), counts={"kernels": 101, "bytes": 11}), benchmark("few", of=launches(2))
    )
    made = decide(base, head, parse_policy(policy), today=TODAY)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_all_files_are_written_and_say_the_same(tmp_path: Path) -> None:
    paths = outputs.write(verdict_of(), tmp_path / "gate", "perf/gate.yaml")
    assert tuple(path.name for path in paths) == outputs.FILES
    document = json.loads((tmp_path / "gate" / "gate.json").read_text("utf-8"))
    assert (document["schema_version"], document["outcome"], document["exit_code"]) == (1, "regression", 1)
    assert [(row["name"], row["outcome"]) for row in document["rows"]] == [
        ("kernels", "regression"), ("step_time_median", "regression"), ("step_time_median", "inconclusive"),
        ("bytes", "allowed"),
    ]  # fmt: skip
    step = document["rows"][1]
    assert step["interval"]["estimate"] == pytest.approx(1.2) and step["interval"]["base_launches"] == 10
    assert step["rank_test"]["effect"] == 1.0 and step["fail_ratio"] == 0.03
    assert document["rows"][2]["launches_needed"] == 5
    assert (document["rows"][3]["owner"], document["rows"][3]["until"]) == ("Li Wei", "2026-12-31")
    gitcode = json.loads((tmp_path / "gate" / "gate-gitcode.json").read_text("utf-8"))
    assert gitcode == {"body": (tmp_path / "gate" / "gate.md").read_text("utf-8")}


def test_junit_counts_failures_and_errors() -> None:
    root = ET.fromstring(documents.junit(verdict_of()))
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "2", "errors": "1", "skipped": "0",
    }  # fmt: skip
    assert [suite.get("name") for suite in root] == ["llm/tiny", "few"]
    assert len(root.findall(".//failure")) == 2
    (error,) = root.findall(".//error")
    assert error.get("type") == "inconclusive" and "measure at least 5" in (error.get("message") or "")
    warned = ET.fromstring(documents.junit(verdict_of(warn_only=True)))
    assert (warned.get("failures"), warned.get("errors"), warned.get("skipped")) == ("0", "0", "3")


def test_sarif_has_what_its_schema_requires() -> None:
    document = json.loads(json.dumps(documents.sarif(verdict_of(), "perf/gate policy.yaml")))
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    assert document["$schema"].endswith("sarif-2.1.0.json")
    run = document["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "ascend-perf"
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) == 4
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note", "none")
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "perf/gate%20policy.yaml"
        assert place["region"]["startLine"] >= 1
        assert re.fullmatch(r"[0-9a-f]{40}", result["partialFingerprints"]["ascendPerfGate/v1"])
    assert [bool(result.get("suppressions")) for result in run["results"]] == [False, False, False, True]
    assert {result["level"] for result in documents.sarif(verdict_of(warn_only=True), "g")["runs"][0]["results"]} == {  # type: ignore[index]
        "warning"
    }


def test_code_quality_has_what_gitlab_requires() -> None:
    issues = documents.code_quality(verdict_of(), "perf/gate.yaml")
    assert len(issues) == 3  # what is allowed is none
    for issue in issues:
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert issue["location"] == {"path": "perf/gate.yaml", "lines": {"begin": 1}}
        assert issue["description"] and issue["check_name"]
    assert len({issue["fingerprint"] for issue in issues}) == 3
    again = documents.code_quality(verdict_of(), "perf/gate.yaml")
    assert [one["fingerprint"] for one in again] == [one["fingerprint"] for one in issues]


def test_the_comment_shows_what_changed_and_folds_the_rest() -> None:
    base, head = side(), side(benchmark(of=launches(10, 1.2e7)))
    made = decide(
        replace(base, results=replace(base.results, commit="1" * 40)),
        replace(head, results=replace(head.results, commit="2" * 40, branch="fast")), parse_policy(""), today=TODAY,
    )  # fmt: skip
    made = replace(
        made, html_url="https://ci.example/report.html",
        explanations=(Explanation(benchmark="llm-pretrain/tiny/npu/1", nodes=tuple(
            Node(name=f"layer > op{place}", base_ns=1e6, head_ns=2e6 + place, base_count=4, head_count=8)
            for place in range(5)
        )),),
    )  # fmt: skip
    text = comment.comment(made)
    assert text.startswith(comment.MARKER)
    assert "**base** 111111111111 (main) → **head** 222222222222 (fast)" in text
    assert "machine: 8 x Ascend 910B3, CANN 8.0.RC2 · launches: 10 + 10 · interval: 99 %" in text
    assert "[Full report](https://ci.example/report.html)" in text
    table = [line for line in text.splitlines() if line.startswith("| llm-pretrain")]
    assert len(table) == 1 and "**regression**" in table[0] and "+20 %" in table[0]
    nodes = [line for line in text.splitlines() if "op" in line and line.startswith("| layer")]
    assert len(nodes) == 5
    assert nodes[0] == "| layer &#62; op0 | 1 ms | 2 ms | +1 ms | 4 → 8 |"
    passing = comment.comment(decide(side(), side(), parse_policy(""), today=TODAY))
    before, _, folded = passing.partition("<details>")
    assert "step_time_median" not in before and "step_time_median" in folded


def test_both_languages_say_the_verdict() -> None:
    assert "性能门禁未通过" in comment.comment(verdict_of(), "zh")
    assert "性能劣化" in comment.summary(verdict_of(), "zh")
    assert "Performance gate failed" in comment.summary(verdict_of(), "en")


@pytest.mark.parametrize("name", [HOSTILE, "\ud800", "名" * 400, "=cmd()"])
def test_a_hostile_name_breaks_nothing(tmp_path: Path, name: str) -> None:
    made = verdict_of(name)
    outputs.write(made, tmp_path, "gate.yaml")
    json.loads((tmp_path / "gate.json").read_text("utf-8"))
    ET.fromstring((tmp_path / "gate.xml").read_bytes())
    json.loads((tmp_path / "gate.sarif").read_text("utf-8"))
    text = (tmp_path / "gate.md").read_text("utf-8")
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert "@all" not in text and "](http" not in text and "http://evil" not in text
    assert text.count("<details>") == text.count("</details>")
    tables = [line for line in text.splitlines() if line.startswith("|") and "launches" not in line]
    assert {line.count("|") for line in tables} == {9}
    assert "\x1b" not in comment.summary(made)


def test_annotations_cannot_be_injected() -> None:
    text = comment.log_annotations(verdict_of(HOSTILE), "a,b:c.yaml")
    lines = text.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning"]
    assert all(line.startswith(("::error file=a%2Cb%3Ac.yaml,line=1,title=", "::warning file=")) for line in lines)
    assert all("%25" in line for line in lines[:2])  # the percent sign of the name
    assert set(re.findall(r"^::(\w+)", comment.log_annotations(verdict_of(warn_only=True), "p"), re.MULTILINE)) == {
        "warning"
    }


def test_a_long_comment_is_cut_and_stays_whole() -> None:
    rows = verdict_of().rows
    many = tuple(
        replace(row, benchmark=f"{'名' * 300}{place}", details=("x" * 200,) * 20)
        for place in range(200) for row in rows
    )  # fmt: skip
    text = comment.comment(verdict_of(rows=many))
    assert len(text.encode("utf-8")) <= comment.MAX_BYTES
    assert text.count("<details>") == text.count("</details>")
    assert "cut: the comment was too long" in text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_markdown_of_any_text_is_one_line_without_markup(text: str) -> None:
    shown = texts.markdown(text)
    assert "\n" not in shown and not re.search(r"[|<>`*\[\]~]", shown)
    assert not re.search(r"(?<!&)#", shown)
    ET.fromstring(f"<a>{texts.clean(text).replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</a>")


def test_missing_causes_are_said() -> None:
    made = verdict_of(explanations=(Explanation(benchmark="b", missing=Words("no trace was kept", "未保留轨迹")),))
    assert "no trace was kept" in comment.comment(made) and "未保留轨迹" in comment.summary(made, "zh")


def test_the_documented_policy_is_a_policy() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gate.md").read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse_policy(block, "docs/gate.md") and yaml.safe_load(block)


def test_no_name_is_a_command_in_the_log() -> None:
    name = "::error::pwn ##[add-mask]e ##vso[task.complete] \u061c"
    base, head = side(benchmark(name)), side(benchmark(name, of=launches(10, 2e7)))
    said = comment.summary(decide(base, head, parse_policy("schema_version: 1"), today=date(2026, 4, 8)))
    assert "error::pwn" in said and not [line for line in said.splitlines() if line.strip().startswith("::")]
    assert "##" not in said and "# #[add-mask]e # #vso[" in said and "\u061c" not in said
