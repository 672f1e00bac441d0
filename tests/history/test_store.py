"""What a history keeps, in SQLite and in PostgreSQL: adding, asking, deciding, removing, several writers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from ascend_perf.errors import InputError, UsageError
from ascend_perf.history.database import Database, url_of
from ascend_perf.history.reduced import MAX_TEXT, machine_of
from ascend_perf.history.schema import METADATA, POINTS, REVISION, SERIES
from ascend_perf.history.store import Filter, Store
from ascend_perf.result_files import read_results
from tests.conftest import ROOT
from tests.history import _samples

MIGRATIONS = ROOT / "ascend_perf" / "history" / "migrations"


def _rows(store: Store, table: sa.Table) -> int:
    with store.database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_the_migrations_make_the_tables_that_the_code_uses(store: Store) -> None:
    with store.database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_newest_migration_is_the_one_that_the_code_expects() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == REVISION


def test_opening_again_changes_nothing(store: Store, url: str, tmp_path: Path) -> None:
    store.add(_samples.write(tmp_path, _samples.results()))

    again = Store(Database(url))

    assert [one.suite for one in again.sets()] == ["nightly"]
    again.database.close()


def test_a_history_of_a_newer_version_is_refused(store: Store, url: str) -> None:
    with store.database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(InputError, match="newer ascend-perf"):
        Database(url)


# ---- adding ---------------------------------------------------------------------------------------------------------


def test_a_value_is_the_median_of_the_complete_runs_with_their_range(store: Store, tmp_path: Path) -> None:
    one = _samples.results(step_ns=(3e8, 1e8, 2e8, 9e8), failed=1)

    added = store.add(_samples.write(tmp_path, one))

    values = {series.key.metric: value for series, value in store.values(added.id)}
    step = values["step_time_median"]
    assert (step.value, step.low, step.high, step.launches) == (2.5e8, 1e8, 9e8, 4)  # (2 + 3) / 2, one failed
    assert values["kernels"].value == 420
    assert sorted(values) == ["kernels", "peak_device_memory", "step_time_median", "tokens_per_s"]
    (stored,) = store.sets()
    assert (stored.launches, stored.failed, stored.benchmarks) == (5, 1, 1)
    assert stored.machine == machine_of(_samples.MACHINE)


def test_adding_again_changes_nothing_however_the_file_is_written(store: Store, tmp_path: Path) -> None:
    path = _samples.write(tmp_path, _samples.results())
    first = store.add(path)
    points = _rows(store, POINTS)

    _samples.other_spacing(path)
    second = store.add(path)

    assert (first.state, second.state) == ("added", "present")
    assert first.id == second.id
    assert (len(store.sets()), _rows(store, POINTS)) == (1, points)


def test_a_file_that_grew_is_replaced_when_asked_to_and_refused_otherwise(store: Store, tmp_path: Path) -> None:
    store.add(_samples.write(tmp_path, _samples.results(step_ns=(1e8,))))
    grown = _samples.write(tmp_path, _samples.results(step_ns=(1e8, 3e8)))

    with pytest.raises(InputError, match="other content than the result set 1"):
        store.add(grown)
    done = store.add(grown, replace_other=True)

    assert (done.id, done.state) == (1, "replaced")
    (value,) = [value for series, value in store.values(1) if series.key.metric == "step_time_median"]
    assert (value.value, value.launches) == (2e8, 2)
    assert len(read_results(_written(store, 1, tmp_path)).benchmarks[0].launches) == 2


def _written(store: Store, identifier: int, folder: Path) -> Path:
    path = folder / "out.json"
    path.write_bytes(store.document(identifier))
    return path


def test_the_file_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    path = _samples.write(tmp_path, _samples.results())

    added = store.add(path)

    assert store.document(added.id) == path.read_bytes()


def test_snapshots_of_operators_are_kept_with_the_file(store: Store, tmp_path: Path) -> None:
    path = _samples.write(tmp_path, _samples.results(op_stream="streams/a.ops"))
    missing = store.add(path)
    assert store.attachments(missing.id) == {}
    assert "cannot be read" in missing.notes[0]

    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "a.ops").write_bytes(b"aten::mm\n" * 100)
    path = _samples.write(tmp_path, _samples.results(1, op_stream="streams/a.ops"))
    added = store.add(path)

    assert added.notes == ()
    assert store.attachments(added.id) == {"streams/a.ops": b"aten::mm\n" * 100}


def test_a_snapshot_that_leads_out_of_the_folder_is_not_kept(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    path = _samples.write(tmp_path / "results", _samples.results(op_stream="a.ops"))
    (tmp_path / "results" / "a.ops").symlink_to(tmp_path / "secret")

    added = store.add(path)

    assert store.attachments(added.id) == {}
    assert "does not lie beside the file" in added.notes[0]


def test_simulated_figures_are_refused_and_never_mixed_with_measured_ones(store: Store, tmp_path: Path) -> None:
    path = _samples.write(tmp_path, _samples.results(simulated=True))
    with pytest.raises(InputError, match="simulated"):
        store.add(path)

    store.add(path, allow_simulated=True)
    store.add(_samples.write(tmp_path, _samples.results(1)))

    kinds = [one.key.is_simulated for one in store.series(Filter(metric="kernels"))]
    assert sorted(kinds) == [False, True]
    assert [one.is_simulated for one in store.sets()] == [False, True]


def test_other_work_other_machine_and_other_branch_are_other_series(store: Store, tmp_path: Path) -> None:
    variants = [
        _samples.results(0),
        _samples.results(1, config={"layers": 8, "batch": 8}),
        _samples.results(2, fingerprint={**_samples.MACHINE, "chip": "Ascend 910B4"}),
        _samples.results(3, branch="dev"),
        _samples.results(4, fingerprint={**_samples.MACHINE, "driver": "25.0.0"}),  # same hardware: the same series
    ]
    for one in variants:
        store.add(_samples.write(tmp_path, one))

    counts = sorted(len(one) for one in store.points([s.id for s in store.series(Filter(metric="kernels"))]).values())

    assert counts == [1, 1, 1, 2]


def test_hostile_names_are_kept_apart_and_harmless(store: Store, tmp_path: Path) -> None:
    long = "x" * 5000
    names = (f"{long}a", f"{long}b", "nul\0here", "half\ud800pair", "'; DROP TABLE points; --", "100%_\\name")
    store.add(_samples.write(tmp_path, _samples.results(names=names, suite="\0suite", branch="\ud800")))

    series = store.series(Filter(metric="kernels"))

    assert len({one.key.identity for one in series}) == len({one.id for one in series}) == len(names)
    assert all(len(one.key.benchmark) <= MAX_TEXT + 1 for one in series)
    assert [one.key.benchmark for one in store.series(Filter(metric="kernels", benchmark="%_\\"))] == ["100%_\\name"]
    assert _rows(store, SERIES) == 4 * len(names)
    assert store.sets(Filter(suite="\0suite"))[0].suite == "\ufffdsuite"


def test_a_damaged_file_leaves_nothing(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"schema_version": 1, "suite": "s", "benchmarks": []}')

    with pytest.raises(InputError, match="no benchmarks"):
        store.add(path)

    assert store.count() == 0


# ---- asking ---------------------------------------------------------------------------------------------------------


def test_values_come_in_the_order_of_their_time_not_of_their_adding(store: Store, tmp_path: Path) -> None:
    for number in (2, 0, 1):
        store.add(_samples.write(tmp_path, _samples.results(number, step_ns=((number + 1) * 1e8,))))
    (series,) = store.series(Filter(metric="step_time_median"))

    points = store.points([series.id])[series.id]

    assert points.value.tolist() == [1e8, 2e8, 3e8]
    assert points.result_set.tolist() == [2, 3, 1]
    assert store.points([series.id], last=2)[series.id].value.tolist() == [2e8, 3e8]
    assert [one.id for one in store.sets()] == [1, 3, 2]
    assert [one.id for one in store.sets(limit=1)] == [1]


def test_results_are_found_by_suite_branch_machine_and_commit(store: Store, tmp_path: Path) -> None:
    other = {**_samples.MACHINE, "chip": "Ascend 310P"}
    foreign = _samples.results(1, branch=None, fingerprint=other)
    for one in (_samples.results(0), foreign, _samples.results(2, suite="x")):
        store.add(_samples.write(tmp_path, one))

    def ids(**wanted: str) -> list[int]:
        return [one.id for one in store.sets(Filter(**wanted))]

    assert ids(suite="x") == [3]
    assert ids(branch="main") == [3, 1]
    assert ids(branch="") == [2]
    assert ids(machine=machine_of(other)[:5]) == [2]
    assert ids(commit="0001c0ffee") == [2]
    assert ids(commit="%") == []
    with pytest.raises(UsageError, match="no result set 9"):
        store.result_set(9)


# ---- baselines ------------------------------------------------------------------------------------------------------


def test_the_baseline_is_the_newest_whole_result_of_a_machine_like_this_one(store: Store, tmp_path: Path) -> None:
    other = {**_samples.MACHINE, "driver": "25.0.0"}
    for one in (
        _samples.results(0),
        _samples.results(1),
        _samples.results(2, failed=1),
        _samples.results(3, fingerprint=other),
        _samples.results(4, branch="dev"),
    ):
        store.add(_samples.write(tmp_path, one))
    main = Filter(suite="nightly", branch="main")

    assert store.baseline(main, _samples.MACHINE).id == 2
    assert store.baseline(main).id == 4
    assert store.baseline(main, {"driver": None, "chip": "Ascend 910B3"}).id == 4  # an unknown fact disagrees with none
    assert store.baseline(main, _samples.MACHINE, not_commit=_samples.results(1).commit).id == 1
    with pytest.raises(InputError, match="differs in: chip"):
        store.baseline(main, {"chip": "Ascend 310P"})
    with pytest.raises(InputError, match="no measured result of suite 'weekly'"):
        store.baseline(Filter(suite="weekly"))
    with pytest.raises(InputError, match="has runs that failed"):
        store.baseline(Filter(commit=_samples.results(2).commit))


# ---- deciding, removing ---------------------------------------------------------------------------------------------


def test_a_decision_is_kept_replaced_and_forgotten(store: Store, tmp_path: Path) -> None:
    store.add(_samples.write(tmp_path, _samples.results()))
    (series,) = store.series(Filter(metric="step_time_median"))

    store.decide(series.id, 1, "accepted", "li", "fused kernels")
    store.decide(series.id, 1, "dismissed", "wang", "noisy night")

    (decision,) = store.decisions()
    assert (decision.verdict, decision.owner, decision.note) == ("dismissed", "wang", "noisy night")
    with pytest.raises(UsageError, match="no value of the result set 7"):
        store.decide(series.id, 7, "accepted", "li", "")
    assert store.undecide(series.id, 1)
    assert not store.undecide(series.id, 1)
    assert store.decisions() == []


def test_old_results_go_but_not_those_that_were_decided_on(store: Store, tmp_path: Path) -> None:
    for number in range(6):
        store.add(_samples.write(tmp_path, _samples.results(number)))
    store.add(_samples.write(tmp_path, _samples.results(0, branch="dev")))
    (series, *_) = store.series(Filter(branch="main", metric="kernels"))
    store.decide(series.id, 2, "accepted", "li", "")
    everything = Filter()

    assert sorted(one.id for one in store.prunable(everything, keep=3)) == [1, 3]
    before = store.result_set(4).at_s
    assert sorted(one.id for one in store.prunable(everything, before_s=before)) == [1, 3, 7]
    assert [one.id for one in store.prunable(Filter(branch="dev"), before_s=before)] == [7]

    store.remove([1, 3, 7])

    assert sorted(one.id for one in store.sets()) == [2, 4, 5, 6]
    assert {one.key.branch for one in store.series()} == {"main"}  # the series of dev had no value left
    assert _rows(store, POINTS) == 4 * 4
    assert len(store.decisions()) == 1


# ---- several at once ------------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from ascend_perf.history.database import Database
from ascend_perf.history.store import Store
store = Store(Database(sys.argv[1]))
for number, path in enumerate(sys.argv[3:]):
    if number == int(sys.argv[2]):
        sys.stdin.read()
    print(store.add(Path(path)).state, flush=True)
"""


def _writer(url: str, paths: list[Path], *, stops_after: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, str(stops_after), *map(str, paths)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_two_writers_at_once_lose_and_double_nothing(url: str, tmp_path: Path) -> None:
    paths = [_samples.write(tmp_path / str(n), _samples.results(n, names=("a", "b", "c"))) for n in range(12)]
    # Both make the tables, both add the four files in the middle, in opposite orders.
    writers = [_writer(url, paths[:8]), _writer(url, paths[:3:-1])]

    said = [word for writer in writers for word in writer.communicate(timeout=120)[0].split()]

    assert [writer.returncode for writer in writers] == [0, 0]
    assert (said.count("added"), said.count("present")) == (12, 4)
    store = Store(Database(url))
    assert store.count() == 12
    series = store.series()
    assert len(series) == 3 * 4
    assert {len(points) for points in store.points([one.id for one in series]).values()} == {12}
    store.database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_writer_that_is_killed_loses_nothing_that_it_reported(url: str, tmp_path: Path) -> None:
    paths = [_samples.write(tmp_path / str(n), _samples.results(n, names=("a", "b"))) for n in range(40)]
    # On a busy machine it may be far ahead of us when we kill it, but never at the end.
    writer = _writer(url, paths, stops_after=30)
    assert writer.stdout is not None
    for _ in range(5):
        assert writer.stdout.readline() == "added\n"
    writer.send_signal(signal.SIGKILL)  # in the middle of the sixth, or of a later one
    reported = 5 + writer.communicate(timeout=60)[0].count("added\n")

    store = Store(Database(url))
    kept, points = store.sets(), store.points([one.id for one in store.series()])
    while len(kept) != store.count():  # the server was still at the last commit of the dead
        kept, points = store.sets(), store.points([one.id for one in store.series()])

    # Files are whole or absent; at most one was committed and not yet reported.
    assert reported <= len(kept) <= reported + 1 < 40
    assert {len(one) for one in points.values()} == {len(kept)}
    assert [store.add(path).state for path in paths].count("added") == 40 - len(kept)
    assert store.count() == 40
    store.database.close()


DIES = """
import os, signal
import sqlalchemy as sa
seen = []
def dies(connection, cursor, statement, *rest):
    seen.extend([statement] if statement.startswith("INSERT INTO points") else [])
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
sa.event.listen(sa.Engine, "before_cursor_execute", dies)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_file_whose_writer_dies_halfway_is_not_there(url: str, tmp_path: Path) -> None:
    paths = [_samples.write(tmp_path / str(n), _samples.results(n)) for n in range(4)]
    # It dies with the third file's row written and none of its values.
    command = [sys.executable, "-c", DIES + WRITER, url, "-1", *map(str, paths)]
    writer = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (writer.returncode, writer.stdout) == (-signal.SIGKILL, "added\nadded\n"), writer.stderr

    store = Store(Database(url))
    assert store.count() == 2
    assert {len(one) for one in store.points([one.id for one in store.series()]).values()} == {2}
    assert [store.add(path).state for path in paths] == ["present", "present", "added", "added"]
    store.database.close()


# ---- addresses ------------------------------------------------------------------------------------------------------


def test_addresses_of_databases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ASCEND_PERF_HISTORY", raising=False)
    assert url_of(None).database == "ascend-perf-history.sqlite"
    assert url_of("postgres://a@b/c").drivername == "postgresql+psycopg"
    monkeypatch.setenv("ASCEND_PERF_HISTORY", str(tmp_path / "x.db"))
    assert url_of(None).database == str(tmp_path / "x.db")
    with pytest.raises(UsageError, match="not in mysql"):
        url_of("mysql://a@b/c")


def test_what_is_no_database_is_said_and_left_alone(tmp_path: Path) -> None:
    path = _samples.write(tmp_path, _samples.results())
    before = path.read_bytes()

    with pytest.raises(InputError, match="no SQLite file"):
        Database(str(path))
    with pytest.raises(InputError, match="is a directory"):
        Database(str(tmp_path))
    with pytest.raises(InputError, match="there is no history"):
        Database(str(tmp_path / "none.sqlite"), must_exist=True)
    with pytest.raises(InputError, match=r"folder of x\.sqlite"):
        Database(str(tmp_path / "none" / "x.sqlite"))

    assert path.read_bytes() == before
    assert not (tmp_path / "none.sqlite").exists()


def test_a_server_that_does_not_answer_is_said_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(InputError) as caught:
        Database("postgresql://me:secret@127.0.0.1:9/none")

    assert "cannot be used" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_result_set_without_values_is_kept(store: Store, tmp_path: Path) -> None:
    one = _samples.results(step_ns=(), failed=2)
    one = replace(one, benchmarks=(replace(one.benchmarks[0], counts={}),))

    added = store.add(_samples.write(tmp_path, one))

    assert store.values(added.id) == []
    assert store.sets()[0].failed == 2
