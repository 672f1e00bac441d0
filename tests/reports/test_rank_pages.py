"""`--all-ranks`: a page of each rank, what it says, its name, its size, and what becomes of old ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_perf import pipeline
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import HeldUp, Outcome, Words
from ascend_perf.reports import rank_pages
from ascend_perf.reports.html import render
from ascend_perf.reports.rank_pages import linked, of_rank, page_name, pages_in, write_rank_pages
from tests.reports import _job_samples as jobs
from tests.reports import _samples


def document(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def three_ranks(folder: Path) -> Path:
    for rank in range(3):
        events = [
            {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": 20 * n, "dur": 5 + rank,
             "args": {"device": 0, "stream": 7}}
            for n in range(4)
        ]  # fmt: skip
        path = folder / str(rank) / "t.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 3}}))
    return folder


@pytest.mark.parametrize(
    ("rank", "name"),
    [(0, "rank-00000.html"), (17, "rank-00017.html"), (123456, "rank-123456.html"), (None, "rank-unknown.html")],
)
def test_names_of_pages(rank: int | None, name: str, tmp_path: Path) -> None:
    assert page_name(rank) == name
    (tmp_path / name).write_text("")
    (tmp_path / "rank-notes.html").write_text("")
    assert pages_in(tmp_path) == (tmp_path / name,)


def test_a_page_holds_the_rank_and_nothing_of_others(tmp_path: Path) -> None:
    payload = jobs.job(16)

    paths = write_rank_pages(payload, tmp_path / "ranks", jobs=1)

    assert [path.name for path in paths] == [page_name(rank) for rank in range(16)]
    page = document(paths[3])
    assert page["ranks"] == [3]
    assert page["label"] == "big job · Rank 3"
    assert page["pages"] == {"ranks": list(range(16)), "of": 3, "is_rank": True}
    assert page["job"] is None
    about = {(table["scope"], table["rank"]) for table in page["tables"] if table["section"] != "quality"}
    assert about == {("rank", 3)}
    assert [(bar["rank"], bar["parts"][0]["ns"]) for bar in page["bars"]] == [(3, jobs.computing(3, 16))]
    said = [fact[1] for fact in page["facts"] if fact[0] == ["Ranks", "Rank"]]
    assert said == [["3 of 16 in the job; 16 seen", "3（作业共 16 张卡，已读取 16 张）"]]


def test_a_page_says_what_the_job_found_of_its_rank() -> None:
    payload = jobs.job(16)
    (job_finding,) = payload.outcomes[-1].findings
    elsewhere = replace(job_finding, subject="other", ranks=(5,), affected_ranks=(6,))
    *rest, job = payload.outcomes
    payload = replace(payload, outcomes=(*rest, replace(job, findings=(job_finding, elsewhere))))

    by_rank = {rank: of_rank(payload, rank).findings for rank in (5, 6, 7)}

    own = {found.code for outcome in _samples.outcomes(0) for found in outcome.findings}
    for rank, found in by_rank.items():
        assert own <= {one.code for one in found}
        assert {one.subject for one in found if one.code == "N-05"} == (
            {"rank 5", "other"} if rank in (5, 6) else {"rank 5"}
        )
    assert [f.code for f in by_rank[7]] == [f.code for f in sorted(by_rank[7], key=lambda f: -(f.share_ratio or 0))]


def test_a_wait_is_blamed_on_the_rank_that_the_job_names() -> None:
    """Rank 1 alone would blame rank 2; all ranks together tell that rank 0 made it late."""
    payload = jobs.job(4)
    (sample, *_) = _samples.findings()
    blamed = replace(sample, analyzer="communication", subject="rank 2", ranks=(2,), affected_ranks=(1,))
    note = Words("rank 2 was held up by rank 0", "Rank 2 被 Rank 0 拖慢")
    held = HeldUp(code="N-05", waiter=1, late=2, by=0, note=note)
    outcomes = (
        Outcome(analyzer="communication", status="done", rank=1, trace_index=1, findings=(blamed,)),
        Outcome(analyzer="ranks", status="done", scope="job", held_up=(held,)),
    )

    (found,) = of_rank(replace(payload, outcomes=outcomes), 1).findings

    assert found.ranks == (0,)
    assert found.title.en.endswith("; rank 2 was held up by rank 0")


def test_processes_write_the_same_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = jobs.job(16)
    told: list[str] = []
    one = write_rank_pages(payload, tmp_path / "one", jobs=1)
    two = write_rank_pages(payload, tmp_path / "two", jobs=2, progress=told.append)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert len(told) == 16
    assert told[-1].endswith("(16 of 16)") and told[0].startswith("writing ranks/rank-000")
    # A worker that fails costs nothing but time.
    monkeypatch.setattr(rank_pages, "_WORK", "json:not_there")
    three = write_rank_pages(payload, tmp_path / "three", jobs=2)
    assert [path.read_bytes() for path in three] == [path.read_bytes() for path in one]


def test_pages_of_ranks_that_are_gone_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("rank-00099.html", "rank-unknown.html", "notes.html", "rank-7.txt"):
        (tmp_path / name).write_text("old")
    write_rank_pages(jobs.job(4), tmp_path, jobs=1)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*(page_name(rank) for rank in range(4)), "notes.html", "rank-7.txt"])


def test_a_trace_without_a_rank_has_a_page_too(tmp_path: Path) -> None:
    payload = jobs.job(4)
    unknown = replace(payload.ranks[3], meta=replace(payload.ranks[3].meta, rank=None))
    payload = replace(payload, ranks=(*payload.ranks[:3], unknown))
    paths = write_rank_pages(payload, tmp_path, jobs=1)
    assert paths[-1].name == "rank-unknown.html"
    assert document(paths[-1])["pages"]["of"] is None


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [64, 1024])
def test_sizes_of_large_jobs(count: int, tmp_path: Path) -> None:
    payload = jobs.job(count)
    page = len(render(linked(payload)).encode())
    assert page < 8_000_000
    assert page > 500_000  # it holds something
    path = tmp_path / "page.html"
    rank_pages.write_page(rank_pages.Page(payload=of_rank(payload, count - 1), path=path))
    assert 300_000 < path.stat().st_size < 3_000_000


def test_a_rank_with_large_tables_stays_under_its_limit() -> None:
    payload = jobs.job(4)
    large = tuple(
        replace(
            outcome,
            tables=tuple(
                replace(table, data=tuple(tuple(cells) * 400 for cells in table.data))
                if table.name in ("top-kernels", "idle-gaps", "comm-ops") else table
                for table in outcome.tables
            ),
        )
        for outcome in payload.outcomes
    )  # fmt: skip
    page = len(render(of_rank(replace(payload, outcomes=large), 2)).encode())
    assert 1_000_000 < page < 3_000_000


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_and_names_the_pages(tmp_path: Path, command: Callable[..., Any]) -> None:
    folder = three_ranks(tmp_path / "in")

    said = command("analyze", folder, "-o", tmp_path / "out", "--all-ranks", "--format", "html")

    assert f"{tmp_path / 'out' / 'ranks'} (3 pages)" in said.out
    assert [path.name for path in pages_in(tmp_path / "out" / "ranks")] == [page_name(rank) for rank in range(3)]
    assert document(tmp_path / "out" / "report.html")["pages"] == {"ranks": [0, 1, 2], "of": None, "is_rank": False}


def test_without_the_option_there_are_no_pages_and_no_links(tmp_path: Path) -> None:
    result = pipeline.report([three_ranks(tmp_path / "in")], out=tmp_path / "out", formats=["html"])
    assert result.rank_pages == ()
    assert not (tmp_path / "out" / "ranks").exists()
    assert document(tmp_path / "out" / "report.html")["pages"] is None


def test_pages_need_the_page_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pages of all ranks belong to report\.html"):
        pipeline.report([tmp_path], out=tmp_path / "out", formats=["json", "md"], all_ranks=True)


def test_pages_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    folder, out = three_ranks(tmp_path / "in"), tmp_path / "out"
    (out / "ranks").mkdir(parents=True)
    (out / "ranks" / "rank-00007.html").write_text("mine")
    with pytest.raises(UsageError, match=r"rank-00007\.html exists"):
        pipeline.report([folder], out=out, all_ranks=True)
    assert (out / "ranks" / "rank-00007.html").read_text() == "mine"
    result = pipeline.report([folder], out=out, all_ranks=True, force=True)
    assert pages_in(out / "ranks") == result.rank_pages
    assert len(result.rank_pages) == 3


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    folder, out = three_ranks(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    (out / "ranks").write_text("")
    with pytest.raises(UsageError, match="ranks is a file, expected a folder for the pages"):
        pipeline.report([folder], out=out, all_ranks=True, force=True)


def test_a_page_that_cannot_be_written_is_an_error_of_use(tmp_path: Path) -> None:
    folder, out = three_ranks(tmp_path / "in"), tmp_path / "out"
    (out / "ranks" / "rank-00001.html").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        pipeline.report([folder], out=out, all_ranks=True, force=True)


def test_what_is_said_holds_for_chosen_ranks(tmp_path: Path) -> None:
    result = pipeline.report(
        [three_ranks(tmp_path / "in")], out=tmp_path / "out", formats=["html"], ranks=[2, 0], all_ranks=True
    )
    assert [path.name for path in result.rank_pages] == ["rank-00000.html", "rank-00002.html"]
