"""`report.json`, schema version 1: what other tools read. Documented in docs/report-data.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ascend_perf.gains import together
from ascend_perf.model.finding import Finding, Metric, Outcome, Words
from ascend_perf.reports.payload import (
    STEP_FIGURES,
    Amount,
    Payload,
    RankSummary,
    ReadSource,
    StepRow,
    finite,
    shown_path,
)
from ascend_perf.reports.phrases import spoken
from ascend_perf.reports.texts import Json, Lang, safe, said

SCHEMA_VERSION: Final = 1


def write_json(payload: Payload, path: Path) -> None:
    """Write `report.json`. An existing file is replaced; whether that is wanted, the caller has asked."""
    path.write_text(_lines(document(payload)), "utf-8", newline="\n")


def _lines(whole: dict[str, Json]) -> str:
    """JSON with a line per item of each list: readable, and written by the encoder in C (with `indent` it is not)."""
    dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    parts = []
    for key, value in whole.items():
        is_listed = isinstance(value, list) and value
        text = "[\n  " + ",\n  ".join(map(dump, value)) + "\n ]" if is_listed else dump(value)  # type: ignore[arg-type]
        parts.append(f" {dump(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def document(payload: Payload) -> dict[str, Json]:
    """The document of schema version 1, texts in the payload's language. Unknown is None, never NaN."""
    lang = payload.lang
    return {
        "schema_version": SCHEMA_VERSION,
        "data_origin": payload.data_origin,
        "language": lang,
        "generator": f"ascend-perf {payload.version}",
        "label": safe(payload.label),
        "sources": [_source(item, lang) for item in payload.sources],
        "ranks": [_rank(rank) for rank in payload.ranks],
        "metrics": [_metric(metric) for metric in payload.metrics],
        "outcomes": [_outcome(outcome, lang) for outcome in payload.outcomes],
        "findings": [_finding(finding, lang) for finding in payload.findings],
        "all_findings_share_ratio": together(payload.findings),
        "broken_analyzers": [
            {"name": name, "reason": safe(spoken(why, lang))} for name, why in sorted(payload.broken.items())
        ],
        "broken_readers": [
            {"name": name, "reason": safe(spoken(why, lang))} for name, why in sorted(payload.broken_readers.items())
        ],
        "thresholds": [
            {"code": o.code, "name": o.name, "unit": o.unit, "default": o.default, "given": o.given}
            for o in payload.overrides
        ],
    }


def _source(item: ReadSource, lang: Lang) -> Json:
    source = item.source
    return {
        "path": safe(shown_path(source.path)),
        "rank": item.rank,
        "format": safe(source.format),
        "rows": source.rows,
        "size_bytes": source.size_bytes,
        "dropped": [{"reason": safe(spoken(drop.reason, lang)), "count": drop.count} for drop in source.dropped],
        "problem": None if source.problem is None else safe(spoken(source.problem, lang)),
    }


def _rank(rank: RankSummary) -> Json:
    device = rank.meta.device
    return {
        "rank": rank.rank,
        "device": {"vendor": _text(device.vendor), "name": _text(device.name), "spec": _text(device.spec)},
        "kernels": _amount(rank.kernels),
        "communication": _amount(rank.communication),
        "steps": [_step(step) for step in rank.steps],
    }


def _amount(amount: Amount) -> Json:
    return {"count": amount.count, "total_us": finite(amount.total_us)}


def _step(step: StepRow) -> Json:
    figures: dict[str, Json] = {name: finite(getattr(step, name)) for name in STEP_FIGURES}
    return {"step_id": step.step_id, **figures, "source": _text(step.source)}


def _metric(metric: Metric) -> Json:
    return {
        "name": metric.name,
        "value": finite(metric.value),
        "unit": metric.unit,
        "better": metric.better,
        "rank": metric.rank,
    }


def _outcome(outcome: Outcome, lang: Lang) -> Json:
    return {
        "analyzer": outcome.analyzer,
        "status": outcome.status,
        "reason": _said(outcome.reason, lang),
        "rank": outcome.rank,
        "scope": outcome.scope,
        "judged": [
            {"code": judged.code, "verdict": judged.verdict, "reason": _said(judged.reason, lang)}
            for judged in outcome.judged
        ],
    }


def _finding(finding: Finding, lang: Lang) -> Json:
    return {
        "code": finding.code,
        "analyzer": finding.analyzer,
        "ranks": [*finding.ranks],
        "affected_ranks": [*finding.affected_ranks],
        "severity": finding.severity.value,
        "share_ratio": finite(finding.share_ratio),
        "bound_speedup": finite(finding.bound_speedup),
        "added_ratio": finite(finding.added_ratio),
        "title": said(finding.title, lang),
        "cause": said(finding.cause, lang),
        "confirm": _said(finding.confirm, lang),
        "evidence": [
            {
                "name": said(item.name, lang),
                "value": safe(item.value) if isinstance(item.value, str) else finite(item.value),
                "unit": item.unit,
                "where": safe(spoken(item.where, lang)),
                "start_ns": item.start_ns,
            }
            for item in finding.evidence
        ],
        "remedies": [{"text": said(item.text, lang), "code": safe(item.code)} for item in finding.remedies],
        "formula": safe(spoken(finding.formula, lang)),
        "source": safe(spoken(finding.source, lang)),
        "subject": safe(finding.subject),
        "step_ids": [*finding.step_ids],
    }


def _said(text: Words | None, lang: Lang) -> str | None:
    return None if text is None else said(text, lang)


def _text(value: str | None) -> str | None:
    return None if value is None else safe(value)
