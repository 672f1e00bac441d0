"""An analysis of some analyzers only, and parts that could not be loaded: what did not look is never called clean."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import ascend_perf as ap
from ascend_perf import pipeline
from ascend_perf.analyzers import _rules
from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.finding import Judged, Outcome, Words
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import load_analyzers
from ascend_perf.reports.judged import judged_rows
from ascend_perf.reports.payload import build
from tests._support import Said
from tests.conftest import traces_folder
from tests.faults.evaluate import ALL_KINDS, plant
from tests.faults.planting import Kind

ANALYZERS = load_analyzers().parts

SMALL = ("timeline/trace_view.json", "ascend-cluster/msprof-analyze-8rank", "msprof-cli/op_summary_1.csv")
LARGE = ("ascend-pytorch/qwen3-0.6b-pp2-dp2-level2", "ascend-pytorch/db/level1", "kernel-details", "kineto/mi300",
         "ascend-cluster/msinsight-16rank", "kineto/inference-mi300")  # fmt: skip


def fresh(run: Run) -> Run:
    """The run with traces of its own: nothing that an analyzer keeps of a trace is there yet."""
    return replace(run, traces=tuple(Trace(dict(trace.tables), trace.meta) for trace in run.traces))


@cache
def real(name: str) -> tuple[Run, dict[str, str]]:
    folder = traces_folder()
    if folder is None:
        pytest.skip("real traces are not at hand: set ASCEND_PERF_TRACES")
    run = ap.load(folder / name, jobs=1)
    return run, said(ap.analyze(fresh(run)).outcomes)


@cache
def planted(kind: str, folder: Path) -> tuple[Run, dict[str, str]]:
    plant(next(k for k in ALL_KINDS if k.name == kind), "strong", 3, folder)
    run = ap.load(folder, jobs=1)
    return run, said(ap.analyze(fresh(run)).outcomes)


def said(outcomes: tuple[Outcome, ...]) -> dict[str, str]:
    """What each analyzer said, every cell of it."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        found[outcome.analyzer] = found.get(outcome.analyzer, "") + repr(outcome)
    return found


def check_alone(name: str, run: Run, whole: dict[str, str]) -> None:
    analysis = ap.analyze(fresh(run), only=[name])

    alone = said(tuple(o for o in analysis.outcomes if o.status != "left_out"))
    assert alone == {name: whole[name]}
    assert "status='failed'" not in whole[name]
    assert set(analysis.left_out) == set(ANALYZERS) - {name}
    assert {finding.analyzer for finding in analysis.findings} <= {name}


@pytest.mark.parametrize("name", list(ANALYZERS))
def test_every_analyzer_alone_says_what_it_says_among_all(name: str, folder: Path) -> None:
    for kind in ("late-compute", "dispatch-slow"):
        check_alone(name, *planted(kind, folder / kind))
    if traces_folder() is not None:
        for path in SMALL:
            check_alone(name, *real(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ANALYZERS))
@pytest.mark.parametrize("path", LARGE)
def test_every_analyzer_alone_says_the_same_of_large_profiles(name: str, path: str) -> None:
    check_alone(name, *real(path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("path", [*SMALL, *LARGE])
def test_the_order_of_the_analyzers_does_not_matter(path: str, seed: int) -> None:
    run, whole = real(path)
    names = list(ANALYZERS)
    random.Random(seed).shuffle(names)
    mixed = fresh(run)
    outcomes: dict[str, list[Outcome]] = {}
    for name in names:
        part = ANALYZERS[name]
        outcomes[name] = (
            [part.run_on_run(mixed)] if part.scope == "job" else
            [replace(part.run_on_trace(trace), trace_index=i) for i, trace in enumerate(mixed.traces)]
        )  # fmt: skip
    assert said(tuple(o for name in names for o in outcomes[name])) == whole


# ---- rows that nobody looked for -------------------------------------------------------------------------------------


def judged_codes(outcomes: tuple[Outcome, ...]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for outcome in outcomes:
        codes = {judged.code for judged in outcome.judged} | {finding.code for finding in outcome.findings}
        found.setdefault(outcome.analyzer, set()).update(codes)
    return found


def check_rows(outcomes: tuple[Outcome, ...]) -> None:
    """The table knows who judges a row: what it does not name, `--only` could not call not judged."""
    for name, codes in judged_codes(outcomes).items():
        assert codes <= set(_rules.rows_of(name)), f"judged_by in analyzers/rules/ does not name {name}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_rows_name_the_analyzers_that_judge_them(tmp_path: Path, kind: Kind) -> None:
    plant(kind, "medium", 3, tmp_path)
    check_rows(ap.analyze(tmp_path).outcomes)


@pytest.mark.parametrize("path", SMALL)
def test_rows_name_the_analyzers_that_judge_them_in_real_profiles(traces: Path, path: str) -> None:
    check_rows(ap.analyze(traces / path).outcomes)


def test_rows_of_analyzers_that_were_left_out_are_not_judged(tmp_path: Path) -> None:
    kind = next(kind for kind in ALL_KINDS if "N-05" in kind.codes)
    plant(kind, "strong", 3, tmp_path / "job")

    analysis = pipeline.report([tmp_path / "job"], out=tmp_path / "out", only=["ranks", "operators"]).analysis

    assert analysis.left_out == tuple(name for name in ANALYZERS if name not in ("ranks", "operators"))
    document = json.loads((tmp_path / "out/report.json").read_text("utf-8"))
    left_out = [o for o in document["outcomes"] if o["status"] == "left_out"]
    assert [o["analyzer"] for o in left_out] == list(analysis.left_out)
    for outcome in left_out:
        assert outcome["reason"] == "left out by --only"
        assert [j["code"] for j in outcome["judged"]] == list(_rules.rows_of(outcome["analyzer"]))
        assert {j["verdict"] for j in outcome["judged"]} <= {"not_judged"}
    run = ap.load(tmp_path / "job", jobs=1)
    rows = {row.code: row for row in judged_rows(build(run, analysis.outcomes, analysis.findings, lang="en"))}
    for code in _rules.rule_codes():
        others = set(_rules.rule(code).judged_by) - {"ranks", "operators"}
        if others:
            assert rows[code].verdict in ("found", "not_judged"), code
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert f"{len(analysis.left_out)} other analyzers left out" in text
    assert "The step breakdown was left out." in text
    clean = next((line for line in text.splitlines() if line.startswith("Checked and clean")), "")
    for code in _rules.rule_codes():
        assert code not in clean or set(_rules.rule(code).judged_by) <= {"ranks", "operators"}


def test_a_row_that_another_analyzer_calls_clean_is_not_clean_where_one_was_left_out() -> None:
    run = Run(traces=())

    def verdict(*outcomes: Outcome) -> tuple[str, str | None]:
        (row,) = judged_rows(build(run, outcomes, (), lang="en"))
        return row.verdict, row.reason.en if row.reason else None

    clean = Outcome(analyzer="a", status="done", judged=(Judged(code="C-10", verdict="clean"),))
    found = Outcome(analyzer="a", status="done", judged=(Judged(code="C-10", verdict="found"),))
    why = Words("left out by --only", "-")
    left = Outcome(analyzer="b", status="left_out", judged=(Judged(code="C-10", verdict="not_judged", reason=why),))
    for order in ((clean, left), (left, clean)):
        assert verdict(*order) == ("not_judged", "left out by --only")
    assert verdict(found, left) == ("found", None)
    assert verdict(clean) == ("clean", None)


@pytest.mark.parametrize(
    ("name", "said"),
    [("link", "no analyzer 'link'\n  hint: did you mean links"),
     ("memory_headroom", "did you mean memory-headroom"),
     ("Ranks", "did you mean ranks"),
     ("zzzzzz", "hint: there are aipp, ")],
)  # fmt: skip
def test_an_unknown_analyzer_is_refused_with_those_that_there_are(
    name: str, said: str, tmp_path: Path, command: Callable[..., Said]
) -> None:
    with pytest.raises(UsageError) as refused:
        ap.analyze(Run(traces=()), only=["links", name])
    assert said in str(refused.value)
    assert all(known in str(refused.value) for known in ANALYZERS)

    # Before anything is read: the path need not be a profile.
    ended = command("analyze", tmp_path, "-o", tmp_path / "out", "--only", name)
    assert ended.code == 2
    assert said in ended.err


def test_the_command_runs_only_what_it_was_told(tmp_path: Path, command: Callable[..., Said]) -> None:
    ended = command("analyze", kernel_trace(tmp_path), "-o", tmp_path / "out", "--only", "operators", "--only", "links")

    assert ended.code == 0
    assert f"{len(ANALYZERS) - 2} analyzers left out by --only" in ended.err
    outcomes = json.loads((tmp_path / "out/report.json").read_text("utf-8"))["outcomes"]
    assert {o["analyzer"] for o in outcomes if o["status"] != "left_out"} == {"operators", "links"}


@pytest.mark.parametrize("name", list(ANALYZERS))
def test_every_analyzer_alone_makes_a_whole_report(name: str, tmp_path: Path) -> None:
    pipeline.report([kernel_trace(tmp_path)], out=tmp_path / "out", only=[name])
    for kind in ("html", "md", "json"):
        assert (tmp_path / f"out/report.{kind}").stat().st_size > 1000


def kernel_trace(folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"stream": 7}},
    ]}))  # fmt: skip
    return path


# ---- parts that cannot be loaded -------------------------------------------------------------------------------------


@pytest.fixture
def half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a module that cannot be imported into the folder of a part, for this test."""

    def put(part: str) -> None:
        folder = tmp_path / f"more-{part}"
        folder.mkdir()
        (folder / "half_done.py").write_text(f"raise ImportError('no library in {folder}/lib.so')")
        package = sys.modules[f"ascend_perf.{part}"]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    return put


def test_a_reader_that_cannot_be_loaded_is_said(
    tmp_path: Path, half_done: Callable[[str], None], command: Callable[..., Said]
) -> None:
    trace = kernel_trace(tmp_path)
    half_done("parsers")
    why = "ImportError: no library in lib.so"

    assert ap.load(trace).broken_readers == {"half_done": why}
    ended = command("analyze", trace, "-o", tmp_path / "out")

    assert ended.code == 0
    assert f"the reader half_done could not be loaded, its files were not recognised: {why}" in ended.err
    document = json.loads((tmp_path / "out/report.json").read_text("utf-8"))
    assert document["broken_readers"] == [{"name": "half_done", "reason": why}]
    text = (tmp_path / "out/report.md").read_text("utf-8").replace("\\_", "_")
    assert "### Readers that could not be loaded" in text
    assert f"| half_done | {why} |" in text
    assert str(tmp_path) not in text


def test_where_nothing_can_be_read_the_reader_that_is_missing_is_named(
    tmp_path: Path, half_done: Callable[[str], None]
) -> None:
    half_done("parsers")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("nothing")
    for path in (tmp_path / "folder", tmp_path / "folder/notes.txt"):
        with pytest.raises(InputError, match=r"the reader half_done could not be loaded \(ImportError"):
            ap.load(path)


def test_an_analyzer_that_cannot_be_loaded_is_a_failure_and_cannot_be_chosen(
    tmp_path: Path, half_done: Callable[[str], None]
) -> None:
    run = ap.load(kernel_trace(tmp_path))
    half_done("analyzers")

    (failed,) = ap.analyze(run).failed

    assert (failed.analyzer, failed.reason) == (
        "half_done", Words("ImportError: no library in lib.so", "ImportError: no library in lib.so")
    )  # fmt: skip
    for name in ("half_done", "half-done"):
        with pytest.raises(UsageError, match=f"the analyzer '{name}' could not be loaded: ImportError"):
            ap.analyze(run, only=[name])
