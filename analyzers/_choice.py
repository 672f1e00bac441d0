"""What an analysis was asked to do otherwise than by default: run only some analyzers, use other thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_perf.analyzers._rules import rows_of
from ascend_perf.analyzers._thresholds import Override, overridden
from ascend_perf.device.ceilings import Ceilings, ceilings_given, ceilings_of
from ascend_perf.errors import UsageError
from ascend_perf.manifest import read_manifest
from ascend_perf.model.finding import Judged, Outcome, Words
from ascend_perf.plugins import Analyzer, Found, load_analyzers

if TYPE_CHECKING:
    from ascend_perf.analyzers._rules_file import Rules


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The analyzers to run and the thresholds that the user states. It can be sent to another process."""

    only: frozenset[str] = frozenset()
    """Names of the analyzers to run; all when empty."""
    overrides: tuple[Override, ...] = ()
    ceilings: Ceilings | None = None
    """Measured ceilings of the device, for the roofline."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block analyzers see these thresholds and ceilings."""
        with overridden(self.overrides), ceilings_given(self.ceilings):
            yield

    def takes(self, name: str) -> bool:
        """Whether an analyzer runs."""
        return not self.only or name in self.only

    def left_out(self, part: Analyzer) -> Outcome:
        """The outcome of an analyzer that does not run: its rows are not judged, whatever others say of them."""
        why = Words("left out by --only", "因 --only 未运行")
        return Outcome(
            analyzer=part.name, status="left_out", reason=why, scope=part.scope,
            judged=tuple(Judged(code=code, verdict="not_judged", reason=why) for code in rows_of(part.name)),
        )  # fmt: skip

    def unjudged(self, failed: Outcome) -> Outcome:
        """The outcome of an analyzer that crashed, with its rows as not judged: a crash is no clean bill."""
        why = Words(f"{failed.analyzer} failed", f"{failed.analyzer} 分析失败")
        return replace(
            failed,
            judged=tuple(Judged(code=code, verdict="not_judged", reason=why) for code in rows_of(failed.analyzer)),
        )


def choice_of(only: Sequence[str] = (), rules: Rules | None = None, ceilings: str | Path | None = None) -> Choice:
    """A checked choice: names of analyzers to run (all when empty), a user's rules, a run that measured ceilings.

    Raises:
        InputError: the run of `ceilings` cannot be read.
        UsageError: it measured none; no analyzer has such a name, or it cannot be loaded; the rules are wrong
            (`overrides_of`).
    """
    overrides: tuple[Override, ...] = ()
    if rules is not None:
        from ascend_perf.analyzers._rules_file import overrides_of

        overrides = overrides_of(rules)
    if only:
        _check(only, load_analyzers())
    measured = None if ceilings is None else _ceilings(Path(ceilings))
    return Choice(only=frozenset(only), overrides=overrides, ceilings=measured)


def _ceilings(path: Path) -> Ceilings:
    manifest = read_manifest(path)
    found = ceilings_of(manifest)
    if found is None:
        is_measured = manifest.data_origin == "measured"
        what = f"is a run of {manifest.workload[:40]!r}" if is_measured else "is not measured"
        hint = "`ascend-perf run micro --preset device` measures them"
        raise UsageError(f"{path.name} {what}: no measured ceilings in it", hint=hint)
    return found


def _check(only: Sequence[str], found: Found[Analyzer]) -> None:
    for name in only:
        if name in found.parts:
            continue
        why = found.broken.get(name) or found.broken.get(name.replace("-", "_"))
        if why is not None:
            raise UsageError(f"the analyzer {name!r} could not be loaded: {why}")
        close = get_close_matches(name.lower().replace("_", "-"), found.parts, n=3, cutoff=0.5)
        meant = f"did you mean {', '.join(close)}? " if close else ""
        raise UsageError(f"no analyzer {name[:40]!r}", hint=f"{meant}there are {', '.join(sorted(found.parts))}")
