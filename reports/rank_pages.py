"""Pages of single ranks beside the report of their job: `ranks/rank-00017.html`, linked both ways.

A page holds what the rank's own tables tell, with the findings as all ranks together settle them: a wait that one rank
alone would blame on the wrong peer is said here as the job says it. So pages are written when all ranks are analyzed;
each is made and written by itself, in processes where that pays, and no more than one per process is held.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ascend_perf.findings import merge_findings, rank_findings, settle
from ascend_perf.gains import with_added
from ascend_perf.model.finding import Finding, Outcome
from ascend_perf.parsers._parallel import share_out
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import Payload, RankPages

FOLDER: Final = "ranks"
"""Folder of the pages, beside `report.html`."""

MIN_PAGES: Final = 8
"""A further process must have so many pages to write. Status: assumed; a process starts in a third of a second."""

_NAME: Final = re.compile(r"rank-(?:-?\d+|unknown)\.html")
_WORK: Final = f"{__name__}:write_page"


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page to write."""

    payload: Payload
    path: Path


def page_name(rank: int | None) -> str:
    """File name of a rank's page; five digits, so that names sort like ranks."""
    return "rank-unknown.html" if rank is None else f"rank-{rank:05d}.html"


def pages_in(folder: Path) -> tuple[Path, ...]:
    """Pages of ranks that lie in a folder."""
    return tuple(sorted(path for path in folder.glob("rank-*.html") if _NAME.fullmatch(path.name)))


def ranks_of(payload: Payload) -> tuple[int | None, ...]:
    """Ranks of a report, each once."""
    return tuple(dict.fromkeys(rank.rank for rank in payload.ranks))


def linked(payload: Payload) -> Payload:
    """The payload of a job whose page links to those of its ranks."""
    return replace(payload, pages=RankPages(ranks=ranks_of(payload)))


def of_rank(payload: Payload, rank: int | None) -> Payload:
    """What the page of one rank says: its own outcomes, and the findings of the job that are about it."""
    own = tuple(o for o in payload.outcomes if o.scope == "rank" and o.rank == rank)
    metrics = [*(payload.manifest.metrics if payload.manifest else ()), *(m for o in own for m in o.metrics)]
    return replace(
        payload,
        label=f"{payload.label} · Rank {'?' if rank is None else rank}",
        ranks=tuple(item for item in payload.ranks if item.rank == rank),
        sources=tuple(item for item in payload.sources if item.rank == rank),
        metrics=tuple(metrics),
        outcomes=own,
        findings=_findings(own, [o for o in payload.outcomes if o.scope == "job"], rank),
        pages=RankPages(ranks=ranks_of(payload), of=rank, is_rank=True),
    )


def _findings(own: Sequence[Outcome], job: Sequence[Outcome], rank: int | None) -> tuple[Finding, ...]:
    """Findings of the rank, less what findings of the job explain, and those of the job that name it."""
    known = {id(finding) for outcome in job for finding in outcome.findings}
    mine = [
        replace(finding, claims=tuple(claim for claim in finding.claims if claim.rank == rank))
        for finding in settle([*own, *job])
        if id(finding) not in known or (rank is not None and rank in {*finding.ranks, *finding.affected_ranks})
    ]
    return with_added(rank_findings(merge_findings(mine)))


def write_rank_pages(
    payload: Payload, folder: Path, *, jobs: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> tuple[Path, ...]:
    """Write the page of every rank into a folder, and remove those of ranks that are not there any more.

    Args:
        payload: the job.
        folder: where to; made when it is not there.
        jobs: processes that write; None: as many as pay.
        progress: told what is being written.

    Raises:
        OSError: a page cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = [Page(payload=of_rank(payload, rank), path=folder / page_name(rank)) for rank in ranks_of(payload)]
    paths = tuple(page.path for page in pages)
    for old in set(pages_in(folder)) - set(paths):
        old.unlink()

    def told(index: int, count: int) -> None:
        progress(f"writing {FOLDER}/{paths[index].name} ({count} of {len(paths)})")

    workers = min(jobs or _processors(), max(1, len(pages) // MIN_PAGES))
    written: list[object] = [None] * len(pages)
    if workers > 1:
        written = share_out(_WORK, pages, [0] * len(pages), workers=workers, done=told)
    for index, page in enumerate(pages):
        if written[index] is not True:  # not begun, or its process ended: here the reason comes up
            told(index, index + 1)
            write_page(page)
    return paths


def write_page(page: Page) -> bool:
    """Write one page; what a worker process does."""
    write_html(page.payload, page.path)
    return True


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
