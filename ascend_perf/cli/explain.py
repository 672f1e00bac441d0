"""What a finding means, how to confirm it and what to do; without an id, the whole list."""

from __future__ import annotations

import difflib
from typing import Literal

import click

from ascend_perf.errors import UsageError


@click.command()
@click.argument("row_id", required=False)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language.")
def command(row_id: str | None, lang: Literal["en", "zh"]) -> None:
    """Explain a row of the troubleshooting table: symptom, cause, how to confirm, what to do.

    ROW_ID is the id that findings carry, such as N-05. Without it, all rows are listed.
    """
    from ascend_perf.analyzers import _rules

    if row_id is None:
        for code in _rules.rule_codes():
            title = _rules.rule(code).title
            click.echo(f"{code}  {title.zh if lang == 'zh' else title.en}")
        return
    code = row_id.strip().upper()
    try:
        text = _rules.explain(code, lang)
    except KeyError:
        close = difflib.get_close_matches(code, _rules.rule_codes(), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        what = f"no row {row_id!r} in the troubleshooting table"
        raise UsageError(what, hint=f"{hint}`ascend-perf explain` lists all rows") from None
    click.echo(text, nl=False)
