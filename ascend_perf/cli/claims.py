"""Headline claims about 910B: what arithmetic says of them, and the suite that tests each on hardware."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

import click

if TYPE_CHECKING:
    from ascend_perf.bench.claims import Claim

_SAY: Final = {
    "en": {
        "suite": "test it  ascend-perf bench {}", "none": "test it  no benchmark can", "rows": "see      {}",
        "note": "note     {}",
        "head": "None of these has been measured by us: the verdict is by arithmetic and public documents alone.",
    },
    "zh": {
        "suite": "验证方法  ascend-perf bench {}", "none": "验证方法  无法用基准测试验证", "rows": "参见      {}",
        "note": "说明      {}",
        "head": "以下主张均未经本工具实测：结论仅依据算术与公开文档。",
    },
}  # fmt: skip


@click.command()
@click.argument("claim_id", required=False)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language.")
def command(claim_id: str | None, form: Literal["text", "json"], lang: Literal["en", "zh"]) -> None:
    """List claims about 910B with their plausibility; with CLAIM_ID (CL-10) the arithmetic of one.

    \b
    ascend-perf claims
    ascend-perf claims CL-10
    ascend-perf bench clue-910b-vs-a100 -o results/910b
    """
    from ascend_perf.bench import claims

    chosen = claims.claims() if claim_id is None else (claims.find_claim(claim_id),)
    if form == "json":
        click.echo(json.dumps([_document(claim) for claim in chosen], indent=1, ensure_ascii=False))
        return
    click.echo(_SAY[lang]["head"])
    for claim in chosen:
        click.echo("\n" + (_line(claim, lang) if claim_id is None else _whole(claim, lang)))


def _line(claim: Claim, lang: Literal["en", "zh"]) -> str:
    from ascend_perf.bench.claims import VERDICTS

    first = claim.arithmetic[:1]
    why = "; ".join(f"{part.formula} = {part.value:g}: {getattr(part.words, lang)}" for part in first)
    why = why or (getattr(claim.note, lang) if claim.note else "")
    suite = claim.suite or "—"
    verdict = getattr(VERDICTS[claim.verdict], lang)
    return f"{claim.id}  {getattr(claim.claim, lang)}\n       {verdict} · {why}\n       {suite}"


def _whole(claim: Claim, lang: Literal["en", "zh"]) -> str:
    from ascend_perf.bench.claims import VERDICTS

    say = _SAY[lang]
    lines = [f"{claim.id}  {getattr(claim.claim, lang)}", f"  {getattr(VERDICTS[claim.verdict], lang)}"]
    lines += [f"  {part.formula} = {part.value:g}: {getattr(part.words, lang)}" for part in claim.arithmetic]
    if claim.note is not None:
        lines.append(f"  {say['note'].format(getattr(claim.note, lang))}")
    if claim.rows:
        lines.append(f"  {say['rows'].format(', '.join(claim.rows))}")
    lines.append(f"  {say['none'] if claim.suite is None else say['suite'].format(claim.suite)}")
    return "\n".join(lines)


def _document(claim: Claim) -> dict[str, object]:
    return {
        "id": claim.id, "claim": claim.claim.en, "claim_zh": claim.claim.zh, "verdict": claim.verdict,
        "arithmetic": [
            {"formula": part.formula, "value": part.value, "what": part.words.en} for part in claim.arithmetic
        ],
        "rows": list(claim.rows), "suite": claim.suite, "measured": False,
    }  # fmt: skip
