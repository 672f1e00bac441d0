"""The verdict for machines: JSON of our own, JUnit XML, SARIF, GitLab's code quality; docs/gate.md describes them."""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Final

from ascend_perf import __version__
from ascend_perf.gate import texts
from ascend_perf.gate.outcome import Explanation, Kind, Row, SideFacts, Verdict
from ascend_perf.gate.texts import Lang
from ascend_perf.model.finding import Words
from ascend_perf.stats import RatioInterval

SCHEMA_VERSION: Final = 1
PAGE: Final = "https://github.com/ascend-perf/ascend-perf/blob/main/docs/gate.md"

RULES: Final[Mapping[Kind, Words]] = {
    "machine": Words("Both sides were measured on the same machine", "两侧在同一机器上测得"),
    "work": Words("Both sides did the same work", "两侧工作负载相同"),
    "status": Words("Every benchmark is there and runs", "所有基准均存在且可运行"),
    "count": Words("Counts of a step do not grow", "单步计数不增长"),
    "op_stream": Words("Operators of a step do not grow", "单步算子不增加"),
    "metric": Words("No metric got worse beyond its limit", "指标劣化不超过阈值"),
}
_LEVELS: Final = {"regression": "error", "not_comparable": "error", "inconclusive": "warning", "warning": "warning"}
_SEVERITIES: Final = {
    "regression": "critical", "not_comparable": "major", "inconclusive": "minor", "warning": "minor",
}  # fmt: skip


def as_document(verdict: Verdict) -> dict[str, object]:
    """The whole verdict as JSON values, schema_version 1."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "ascend-perf gate",
        "tool_version": __version__,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "warn_only": verdict.warn_only,
        "judged_on": verdict.judged_on.isoformat(),
        "confidence": verdict.confidence,
        "tolerance": verdict.tolerance,
        "html_url": verdict.html_url or None,
        "base": _side(verdict.base),
        "head": _side(verdict.head),
        "notes": [_words(note) for note in verdict.notes],
        "rows": [_row(row) for row in verdict.rows],
        "explanations": [_explanation(one) for one in verdict.explanations],
    }


def _words(words: Words) -> dict[str, str]:
    return {"en": texts.say(words, "en"), "zh": texts.say(words, "zh")}


def _side(side: SideFacts) -> dict[str, object]:
    return {
        "label": side.label, "suite": side.suite, "created": side.created or None, "commit": side.commit,
        "branch": side.branch, "tool_version": side.tool_version, "launches": list(side.launches),
        "fingerprint": dict(side.fingerprint),
    }  # fmt: skip


def _row(row: Row) -> dict[str, object]:
    return {
        "benchmark": row.benchmark, "kind": row.kind, "name": row.name, "outcome": row.outcome,
        "reason": _words(row.reason), "unit": row.unit, "better": row.better, "base": row.base, "head": row.head,
        "change_ratio": row.change_ratio, "interval": _interval(row.interval), "fail_ratio": row.fail_ratio,
        "rank_test": None if row.rank_test is None else {
            "p_value": row.rank_test.p_value, "effect": row.rank_test.effect, "exact": row.rank_test.exact,
        },
        "launches_needed": row.launches_needed, "details": list(row.details), "owner": row.owner or None,
        "until": None if row.until is None else row.until.isoformat(), "simulated": row.simulated,
        "measured_side": row.measured_side,
    }  # fmt: skip


def _interval(interval: RatioInterval | None) -> dict[str, object] | None:
    if interval is None:
        return None
    return {
        "estimate": interval.estimate, "lower": interval.lower, "upper": interval.upper,
        "confidence": interval.confidence, "base_launches": interval.base_launches,
        "head_launches": interval.head_launches,
    }  # fmt: skip


def _explanation(one: Explanation) -> dict[str, object]:
    return {
        "benchmark": one.benchmark,
        "missing": None if one.missing is None else _words(one.missing),
        "simulated": one.simulated,
        "measured_side": one.measured_side,
        "nodes": [
            {"name": node.name, "base_ns": node.base_ns, "head_ns": node.head_ns, "delta_ns": node.delta_ns,
             "base_count": node.base_count, "head_count": node.head_count}
            for node in one.nodes
        ],
    }  # fmt: skip


def junit(verdict: Verdict, lang: Lang = "en") -> bytes:
    """JUnit XML, one suite per benchmark, one case per row.

    A regression is a failure; what could not be compared or told is an error. With `warn_only` both are skipped cases
    with their message, so that no server takes the build for broken.
    """
    root = ET.Element("testsuites", name="ascend-perf gate")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for benchmark in dict.fromkeys(row.benchmark for row in verdict.rows):
        rows = [row for row in verdict.rows if row.benchmark == benchmark]
        suite = ET.SubElement(root, "testsuite", name=texts.clean(benchmark) or "suite")
        counts = dict.fromkeys(totals, 0)
        for row in rows:
            case = ET.SubElement(suite, "testcase", classname=texts.clean(benchmark) or "suite",
                                 name=f"{row.kind}: {texts.clean(row.name)}")  # fmt: skip
            counts["tests"] += 1
            if row.outcome in ("regression", "not_comparable", "inconclusive"):
                tag = "failure" if row.outcome == "regression" else "error"
                tag = "skipped" if verdict.warn_only else tag
                counts[{"failure": "failures", "error": "errors"}.get(tag, tag)] += 1
                found = ET.SubElement(case, tag, message=texts.message(row, lang))
                if tag != "skipped":
                    found.set("type", row.outcome)
                found.text = "\n".join(texts.clean(line) for line in row.details)
            else:
                ET.SubElement(case, "system-out").text = (
                    f"{texts.say(texts.OUTCOMES[row.outcome], lang)}{texts.COLONS[lang]}{texts.message(row, lang)}"
                )
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
    for name, count in totals.items():
        root.set(name, str(count))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def sarif(verdict: Verdict, where: str, lang: Lang = "en") -> dict[str, object]:
    """SARIF 2.1.0: rows that do not pass, at `where` (a file of the repository: a gate has no lines of code).

    An allowed regression is a suppressed result with who answers for it.
    """
    kinds = list(RULES)
    results = []
    for row in verdict.rows:
        if row.outcome not in _LEVELS and row.outcome != "allowed":
            continue
        level = "warning" if verdict.warn_only else _LEVELS.get(row.outcome, "error")
        result: dict[str, object] = {
            "ruleId": f"gate/{row.kind}", "ruleIndex": kinds.index(row.kind), "level": level,
            "message": {"text": texts.sentence(row, lang)},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": _uri(where), "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 1},
            }}],
            "partialFingerprints": {"ascendPerfGate/v1": fingerprint(row)},
            "properties": {"outcome": row.outcome, "simulated": row.simulated, "measuredSide": row.measured_side},
        }  # fmt: skip
        if row.outcome == "allowed":
            until = "" if row.until is None else row.until.isoformat()
            result["suppressions"] = [{"kind": "external", "status": "accepted",
                                       "justification": texts.clean(f"{row.owner}, until {until}")}]  # fmt: skip
        results.append(result)
    rules = [
        {"id": f"gate/{kind}", "name": f"Gate{kind.title().replace('_', '')}",
         "shortDescription": {"text": texts.say(words, lang)}, "helpUri": PAGE,
         "defaultConfiguration": {"level": "error"}}
        for kind, words in RULES.items()
    ]  # fmt: skip
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "ascend-perf", "version": __version__, "informationUri": PAGE,
                                "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }  # fmt: skip


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path.replace("\\", "/").lstrip("/"), safe="/._-~")


def code_quality(verdict: Verdict, where: str, lang: Lang = "en") -> list[dict[str, object]]:
    """GitLab's code quality report: rows that do not pass; fingerprints stay the same from commit to commit."""
    return [
        {
            "type": "issue", "check_name": f"ascend-perf/gate/{row.kind}", "categories": ["Performance"],
            "description": texts.sentence(row, lang), "fingerprint": fingerprint(row),
            "severity": "info" if verdict.warn_only else _SEVERITIES[row.outcome],
            "location": {"path": where.replace("\\", "/").lstrip("/"), "lines": {"begin": 1}},
        }
        for row in verdict.rows if row.outcome in _SEVERITIES
    ]  # fmt: skip


def fingerprint(row: Row) -> str:
    """Names a row from commit to commit: what it is about, not what was measured."""
    return hashlib.sha256("\0".join((row.benchmark, row.kind, row.name)).encode("utf-8", "replace")).hexdigest()[:40]
