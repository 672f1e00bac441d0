"""Compare two measurements and fail on a regression."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ascend_perf.errors import InputError, UsageError

if TYPE_CHECKING:
    from ascend_perf.gate.outcome import Verdict
    from ascend_perf.gate.policy import Policy


@click.command("gate")
@click.argument("base", type=click.Path(path_type=Path, readable=False))
@click.argument("head", type=click.Path(path_type=Path, readable=False))
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="YAML file with limits and the "
              "allow-list.  [default: 3 % of throughput, 5 % of tail latency, 2 % of memory, no count may grow]")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for gate.json, gate.xml (JUnit), gate.md "
              "(the comment), gate.sarif, gate-codequality.json, gate-gitcode.json.  [default: nothing is written]")
@click.option("--warn-only", is_flag=True, help="Say everything, but end with 0.")
@click.option("--simulated", is_flag=True, help="Judge simulated figures too, also against measured ones; each then "
              "says so.")
@click.option("--base-variant", metavar="NAME", help="Only benchmarks of this variant of BASE.")
@click.option("--head-variant", metavar="NAME", help="Only benchmarks of this variant of HEAD.")
@click.option("--explain/--no-explain", default=True, show_default=True, help="On a regression of times compare the "
              "traces of both sides, where they were kept, and name the nodes behind it.")
@click.option("--annotations", type=click.Choice(["auto", "github", "none"]), default="auto", show_default=True,
              help="Print workflow commands for annotations; auto does so within GitHub Actions.")
@click.option("--annotate", "where", metavar="PATH", help="File of the repository at which SARIF, code quality and "
              "annotations point.  [default: the policy]")
@click.option("--html-url", default="", metavar="URL", help="Address of the full report, for the comment.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    base: Path,
    head: Path,
    policy_file: Path | None,
    out: Path | None,
    warn_only: bool,
    simulated: bool,
    base_variant: str | None,
    head_variant: str | None,
    explain: bool,
    annotations: Literal["auto", "github", "none"],
    where: str | None,
    html_url: str,
    lang: Literal["en", "zh"],
) -> None:
    """Compare HEAD with BASE: counts and operators exactly, then times with their scatter between launches.

    BASE and HEAD are result files of `ascend-perf bench`, folders that hold one, run directories, or snapshots of
    `ascend-perf snapshot` (a file, or a folder of them).

    Exit codes: 0 pass, 1 regression, 2 wrong usage or input that cannot be read, 3 cannot tell (the number of launches
    that would decide is named), 4 not comparable: another machine, other work, or no baseline.

    \b
    ascend-perf gate baseline/results.json results.json --policy gate.yaml -o gate
    ascend-perf gate results.json results.json --base-variant old --head-variant new
    ascend-perf gate snapshots/base snapshots/head
    """
    from ascend_perf.gate import comment, outputs
    from ascend_perf.gate.policy import Policy, read_policy

    if html_url and not html_url.startswith(("https://", "http://")):
        raise UsageError(f"--html-url must start with https://, got {html_url[:80]!r}")
    policy = Policy() if policy_file is None else read_policy(policy_file)
    if simulated:
        policy = replace(policy, simulated=True, mixed=True)
    try:
        verdict = _verdict(base, head, policy, base_variant, head_variant, warn_only, explain)
    except UsageError:
        raise
    except InputError as error:
        # 3 is `cannot tell` here, which a pipeline may choose to pass.
        raise UsageError(error.what, hint=error.hint) from None
    verdict = replace(verdict, html_url=html_url)
    at = where or _at(policy_file)
    if out is not None:
        outputs.write(verdict, out, at, lang)
    click.echo(comment.summary(verdict, lang))
    is_github = annotations == "github" or (annotations == "auto" and os.environ.get("GITHUB_ACTIONS") == "true")
    if is_github and (lines := comment.log_annotations(verdict, at, lang)):
        click.echo(lines)
    if out is not None:
        click.echo(out / "gate.md")
    raise click.exceptions.Exit(verdict.exit_code)


def _verdict(
    base: Path, head: Path, policy: Policy, base_variant: str | None, head_variant: str | None, warn_only: bool,
    explain: bool,
) -> Verdict:
    from ascend_perf.cli._progress import spinner
    from ascend_perf.gate.decide import decide, without_baseline
    from ascend_perf.gate.inputs import MissingBaseline, check_kinds, read_side
    from ascend_perf.reports.phrases import phrase

    after = read_side(head, head_variant)
    today = date.today()
    try:
        before = read_side(base, base_variant, is_base=True)
    except MissingBaseline as error:
        return without_baseline(phrase(error.what), after, policy, today=today, warn_only=warn_only)
    check_kinds(before, after)
    verdict = decide(before, after, policy, today=today, warn_only=warn_only)
    if not explain:
        return verdict
    from ascend_perf.cli._causes import explanations

    with spinner() as progress:
        return replace(verdict, explanations=explanations(verdict, before, after, progress=progress))


def _at(policy_file: Path | None) -> str:
    """The policy as a path of the repository, where it lies below the working directory."""
    if policy_file is None:
        return "README.md"
    path = policy_file if not policy_file.is_absolute() else Path(os.path.relpath(policy_file))
    return path.name if ".." in path.parts else path.as_posix()
