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

    ROW_ID is the id that findings carry, such as N-05. A letter lists the rows of its group, nothing lists all.
    """
    from ascend_perf.analyzers import _rules

    code = (row_id or "").strip().upper()
    listed = [known for known in _rules.rule_codes() if not code or code == known[0]]
    for known in listed:
        title = _rules.rule(known).title
        click.echo(f"{known}  {title.zh if lang == 'zh' else title.en}")
    if listed:
        return
    try:
        text = _rules.explain(code, lang)
    except KeyError:
        close = difflib.get_close_matches(code, _rules.rule_codes(), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        what = f"no row {row_id!r} in the troubleshooting table"
        raise UsageError(what, hint=f"{hint}`ascend-perf explain` lists all rows") from None
    click.echo(text, nl=False)
