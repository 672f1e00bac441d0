"""cluster_analysis_output: reference values of real sets, and a generated database and text of one job."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.analyzers.ranks import ranks as ranks_analyzer
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import _cluster_read as cluster
from ascend_perf.parsers import cluster_output
from ascend_perf.parsers._ascend_comm import group_hash
from ascend_perf.parsers._cluster_groups import job_groups
from ascend_perf.parsers._source import FileEntry, Folder
from ascend_perf.parsers.discover import IN_FULL, find_units
from tests._support import Said
from tests.parsers._ascend_profile import kernel_header, kernel_row

STEP_HEADER = (
    "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)"
)


def read(folder: Path) -> list[Trace]:
    entries = tuple(FileEntry(path, path.stat().st_size) for path in sorted(folder.iterdir()))
    (unit,) = cluster_output.find(Folder(folder, entries, ()))
    return cluster_output.parse(unit)


def one(trace: Trace, column: str) -> int:
    (value,) = trace[t.EXPORTED_STEPS].ints(column).tolist()
    return int(value)


# ---- real sets; figures of the trace collection's README, section 2.4 ----


def test_sixteen_ranks_in_two_pipeline_stages(traces: Path) -> None:
    found = read(traces / "ascend-cluster" / "msinsight-16rank")

    assert [trace.meta.rank for trace in found] == list(range(16))
    assert {trace.meta.world_size for trace in found} == {16}
    assert one(found[8], "stage_ns") == 195_753_485
    assert one(found[8], "bubble_ns") == 178_320_265
    assert one(found[0], "step_id") == 2
    for stage, computing, exposed, length in (
        (found[:8], 76_310_940, 160_813_120, 304_017_500), (found[8:], 80_072_450, 231_698_200, 203_701_736),
    ):  # fmt: skip
        assert max(one(trace, "computing_ns") for trace in stage) == computing
        assert max(one(trace, "communication_not_overlapped_ns") for trace in stage) == exposed
        assert max(one(trace, "stage_ns") for trace in stage) == length
    checks = [check for trace in found for check in trace.meta.checks]
    identity = [abs(check.ours - check.theirs) for check in checks if "Bubble" in check.name]
    assert len(identity) == 16
    assert max(identity) == pytest.approx(0.118, abs=0.002)
    maxima = [check for check in checks if "maximum" in check.name]
    assert len(maxima) == 8
    assert all(check.holds for check in checks)


def test_pipeline_groups_of_sixteen_ranks_are_inferred_and_said(traces: Path) -> None:
    found = read(traces / "ascend-cluster" / "msinsight-16rank")

    pipelines = [[g.ranks for g in trace.meta.groups if g.label == "pp"] for trace in found]
    assert pipelines == [[(rank % 8, rank % 8 + 8)] for rank in range(16)]
    assert any("taken for pipeline groups" in warning for warning in found[0].meta.warnings)
    assert found[0].meta.parallel == {"pipeline_model_parallel": 2}


def test_calls_and_links_of_sixteen_ranks(traces: Path) -> None:
    first, *others = read(traces / "ascend-cluster" / "msinsight-16rank")

    assert first[t.COMM_OPS].text("op").to_list() == ["broadcast", "broadcast", "send"]
    assert first[t.COMM_OPS].ints("group_size").tolist() == [8, 8, NULL]
    moved = first[t.COMM_TRANSFERS]
    send = moved.text("op").equals("send")
    assert moved.text("transport").take(send).to_list() == ["RDMA"]
    assert moved.ints("size_bytes")[send].tolist() == [20_971_520]
    links = first[t.COMM_LINKS]
    over = links.text("transport").equals("RDMA")
    # The link 0 -> 8: places in the group of the ranks that were seen.
    (group,) = [g for g in first.meta.groups if g.hash_id == "13337953553061386822"]
    assert [group.ranks[i] for i in (links.ints("src")[over][0], links.ints("dst")[over][0])] == [0, 8]
    assert others[8][t.COMM_LINKS].text("op").to_list() == ["receive"]  # rank 9


def test_eight_ranks_without_step(traces: Path) -> None:
    found = read(traces / "ascend-cluster" / "msprof-analyze-8rank")

    assert [one(found[0], name) for name in ("computing_ns", "communication_not_overlapped_ns", "free_ns")] == [
        80_309_687, 683_731_290, 990_605_104,
    ]  # fmt: skip
    assert [one(found[5], name) for name in ("computing_ns", "communication_not_overlapped_ns", "free_ns")] == [
        81_367_620, 756_374_860, 892_836_900,
    ]  # fmt: skip
    assert (one(found[0], "stage_ns"), one(found[5], "stage_ns")) == (1_754_645_750, 1_730_579_250)
    assert one(found[0], "step_id") == NULL
    exposed = [one(trace, "communication_not_overlapped_ns") for trace in found]
    assert (round(min(exposed) / 1e6), round(max(exposed) / 1e6)) == (133, 756)
    identity = [c for trace in found for c in trace.meta.checks if "Bubble" in c.name]
    assert max(abs(c.ours - c.theirs) for c in identity) == pytest.approx(0.331, abs=0.002)
    assert all(c.holds for trace in found for c in trace.meta.checks)
    moved = found[0][t.COMM_TRANSFERS]
    mine = np.flatnonzero(moved.text("name").equals("hcom_broadcast__501_0"))
    assert dict(zip(moved.text("transport").take(mine), moved.ints("size_bytes")[mine].tolist(), strict=True)) == {
        "HCCS": 63_936, "PCIE": 21_376,
    }  # fmt: skip
    (group,) = found[1].meta.groups
    assert group.ranks == (0, 1)


def test_groups_of_a_real_job_are_named_and_hash_to_their_names(traces: Path) -> None:
    data = cluster.ClusterData()
    cluster.read_groups(traces / "ascend-cluster" / "communication-group" / "communication_group.json", data)

    assert len([g for g in data.groups if g.hash_id]) == 21
    assert all(group_hash(g.communicator or "") == g.hash_id for g in data.groups if g.hash_id)
    groups = job_groups(data)
    default = groups.groups["212011646445595226"]
    assert (default.label, default.ranks, groups.world_size) == ("default_group", tuple(range(8)), 8)
    # The communicator's name holds an address: only its hash is shown.
    assert default.name == "212011646445595226"
    assert sorted(g.ranks for g in groups.groups.values() if g.label == "pp") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_groups_alone_are_no_profile(traces: Path) -> None:
    with pytest.raises(InputError, match="holds the groups of a job only"):
        find_units(traces / "ascend-cluster" / "communication-group")


@pytest.mark.parametrize("name", ["msinsight-16rank", "msprof-analyze-8rank"])
def test_ranks_are_compared_and_no_analyzer_fails(
    traces: Path, tmp_path: Path, command: Callable[..., Said], name: str
) -> None:
    said = command("analyze", traces / "ascend-cluster" / name, "-o", tmp_path, "--format", "json")

    assert said.code == 0, said.err
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [o for o in report["outcomes"] if o["status"] == "failed"] == []
    codes = [finding["code"] for finding in report["findings"]]
    assert ("L-01" in codes) == (name == "msinsight-16rank")


# ---- generated ----


def call(elapse: float, sync: float, start: float) -> dict[str, object]:
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": start, "Elapse Time(ms)": elapse, "Transit Time(ms)": 0.5, "Wait Time(ms)": sync,
            "Synchronization Time(ms)": sync, "Idle Time(ms)": elapse - 0.5 - sync,
        },
        "Communication Bandwidth Info": {
            "HCCS": {"Transit Size(MB)": 8.0, "Transit Time(ms)": 0.5, "Large Packet Ratio": 0.0,
                     "Size Distribution": {"1.0": [8, 0.5]}},
        },
    }  # fmt: skip


KEY = "hcom_allReduce__226_0_1@212011646445595226"
CALLS = {"0": call(5.0, 4.0, 1000.0), "1": call(1.0, 0.0, 5000.0)}
LINK = {
    "Transport Type": "HCCS",
    "Transit Size(MB)": 8.0,
    "Transit Time(ms)": 0.5,
    "Op Name": "hcom_allReduce__226_0_1",
}


def write_text(folder: Path) -> Path:
    """Two ranks: rank 1 computes longer, rank 0 waits for it."""
    folder.mkdir(parents=True)
    rows = [
        STEP_HEADER, "7,rank,0,100.0,50.0,10.0,60.0,20.5,170.5,0.0,50.0",
        "7,rank,1,140.0,10.0,10.0,20.0,20.5,170.5,0.0,10.0",
        '7,stage,"(0, 1)",140.0,50.0,10.0,60.0,20.5,170.5,0,50.0',
    ]  # fmt: skip
    (folder / "cluster_step_trace_time.csv").write_text("\n".join(rows) + "\n")
    groups = {"p2p": {}, "(0, 1)": {"step7": {KEY: CALLS, "Total Op Info": CALLS}}}
    (folder / "cluster_communication.json").write_text(json.dumps(groups))
    matrix = {"p2p": {}, "(0, 1)": {"step7": {"allreduce-top1@212011646445595226": {"0-1": LINK, "1-0": LINK}}}}
    (folder / "cluster_communication_matrix.json").write_text(json.dumps(matrix))
    info = {
        "type": "collective",
        "rank_set": [0, 1],
        "group_name": "212011646445595226",
        "group_id": "x",
        "pg_name": "dp",
    }
    (folder / "communication_group.json").write_text(
        json.dumps({"collective": [[0, 1]], "p2p": [[0, 1]], "comm_group_parallel_info": [info]})
    )
    return folder


def write_database(folder: Path) -> Path:
    """The same job as a database."""
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "cluster_analysis.db")) as connection, connection:
        tables: dict[str, tuple[str, list[tuple[object, ...]]]] = {
            "ClusterStepTraceTime": (
                "step, type, [index], computing, communication_not_overlapped, overlapped, communication, free, stage, "
                "bubble, communication_not_overlapped_and_exclude_receive, preparing",
                [("7", "rank", "0", 100.0, 50.0, 10.0, 60.0, 20.5, 170.5, 0.0, 50.0, None),
                 ("7", "rank", "1", 140.0, 10.0, 10.0, 20.0, 20.5, 170.5, 0.0, 10.0, None),
                 ("7", "stage", "(0, 1)", 140.0, 50.0, 10.0, 60.0, 20.5, 170.5, 0.0, 50.0, None)],
            ),
            "ClusterCommunicationTime": (
                "step, rank_id, hccl_op_name, group_name, start_timestamp, elapsed_time, transit_time, wait_time, "
                "synchronization_time, idle_time",
                [("step7", 0, "hcom_allReduce__226_0_1", "212011646445595226", 1000.0, 5.0, 0.5, 4.0, 4.0, 0.5),
                 ("step7", 1, "hcom_allReduce__226_0_1", "212011646445595226", 5000.0, 1.0, 0.5, 0.0, 0.0, 0.5)],
            ),
            "ClusterCommunicationBandwidth": (
                "step, rank_id, hccl_op_name, group_name, band_type, transit_size, transit_time, bandwidth, "
                "large_packet_ratio, package_size, count, total_duration",
                [("step7", rank, "hcom_allReduce__226_0_1", "212011646445595226", "HCCS", 8.0, 0.5, 16.0, 0.0, 1.0, 8,
                  0.5) for rank in (0, 1)],
            ),
            "ClusterCommunicationMatrix": (
                "step, hccl_op_name, group_name, src_rank, dst_rank, transit_size, transit_time, bandwidth, "
                "transport_type, op_name",
                [("step7", "allreduce-top1", "212011646445595226", a, 1 - a, 8.0, 0.5, 16.0, "HCCS",
                  "hcom_allReduce__226_0_1") for a in (0, 1)],
            ),
            "CommunicationGroupMapping": (
                "type, rank_set, group_name, group_id, pg_name",
                [("collective", "(0, 1)", "212011646445595226", "x", "dp")],
            ),
            "RankDeviceMap": ("rankId, deviceId, hostUid, profilePath", [(0, 4, "u", "/a/secret"),
                                                                         (1, 5, "u", "/a/secret")]),
            "HostInfo": ("hostUid, hostName", [("u", "secret-host")]),
            "ClusterBaseInfo": (
                "key, value",
                [("distributed_args", '{"tensor_model_parallel_size": 1, "rank": 0, "world_size": 2}')],
            ),
            "FreqAnalysis": ("a, b", [(1, 2)]),
        }  # fmt: skip
        for name, (columns, rows) in tables.items():
            connection.execute(f"create table {name} ({columns})")
            for row in rows:
                connection.execute(f"insert into {name} values ({', '.join('?' * len(row))})", row)
    return folder


@pytest.mark.parametrize("write", [write_text, write_database])
def test_text_and_database_of_one_job_say_the_same(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    first, second = read(write(tmp_path / "cluster_analysis_output"))

    assert [one(x, "computing_ns") for x in (first, second)] == [100_000, 140_000]
    assert one(first, "step_id") == 7
    calls = first[t.COMM_OPS]
    assert calls.text("name").to_list() == ["hcom_allReduce__226_0_1"]
    assert calls.text("group_label").to_list() == ["dp"]
    assert (calls.ints("dur_ns").tolist(), calls.ints("sync_ns").tolist()) == ([5_000_000], [4_000_000])
    assert second[t.COMM_OPS].ints("start_ns").tolist() == [5_000_000]
    assert first[t.COMM_TRANSFERS].ints("size_bytes").tolist() == [8_000_000]
    assert first[t.COMM_PACKETS].ints("count").tolist() == [8]
    ends = [(x[t.COMM_LINKS].ints("src").tolist(), x[t.COMM_LINKS].ints("dst").tolist()) for x in (first, second)]
    assert ends == [([0], [1]), ([1], [0])]
    assert first[t.COMM_LINKS].text("pick").to_list() == ["top1"]
    assert first.meta.world_size == 2
    assert all(c.holds for c in first.meta.checks) and len(first.meta.checks) == 5
    assert "secret" not in repr([first.meta, second.meta])


def test_the_database_counts_where_both_are_there(tmp_path: Path) -> None:
    folder = write_database(tmp_path / "cluster_analysis_output")
    for path in write_text(tmp_path / "text").iterdir():
        path.rename(folder / path.name)

    first, _ = read(folder)

    assert len(first[t.COMM_OPS]) == 1
    assert [s.problem for s in first.meta.sources] == [None] + [cluster_output.IN_DATABASE] * 4
    assert not any(s.is_unusable for s in first.meta.sources)
    assert first.meta.device.device_id == 4


def test_removing_a_file_takes_only_what_it_holds(tmp_path: Path) -> None:
    for kind, gone in (
        ("cluster_step_trace_time.csv", t.EXPORTED_STEPS), ("cluster_communication.json", t.COMM_OPS),
        ("cluster_communication_matrix.json", t.COMM_LINKS),
    ):  # fmt: skip
        folder = write_text(tmp_path / kind / "cluster_analysis_output")
        (folder / kind).unlink()
        first, _ = read(folder)
        assert not first.has(gone)
        others = [spec for spec in (t.EXPORTED_STEPS, t.COMM_OPS, t.COMM_LINKS) if spec is not gone]
        assert all(first.has(spec) for spec in others)


def test_a_damaged_file_is_named_and_the_others_count(tmp_path: Path) -> None:
    folder = write_text(tmp_path / "cluster_analysis_output")
    text = (folder / "cluster_communication.json").read_text()
    (folder / "cluster_communication.json").write_text(text[:-40])

    first, _ = read(folder)

    (problem,) = [s.problem for s in first.meta.sources if s.is_unusable]
    assert problem is not None and problem.startswith("cluster_communication.json is not what the format says")
    assert first.has(t.EXPORTED_STEPS) and not first.has(t.COMM_OPS)


def test_a_database_with_a_schema_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    folder = write_database(tmp_path / "cluster_analysis_output")
    path = folder / "cluster_analysis.db"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TABLE HostInfo", b"CREATE \xb0\xffBLE HostInfo"))

    with pytest.raises(InputError, match="damaged SQLite database"):
        read(folder)


def test_the_ranks_analyzer_works_on_it(tmp_path: Path) -> None:
    found = read(write_text(tmp_path / "cluster_analysis_output"))

    outcome = ranks_analyzer.run_on_run(Run(traces=tuple(found)))

    assert outcome.status == "done"
    (table,) = [x for x in outcome.tables if x.name == "ranks"]
    columns = {c.name: d for c, d in zip(table.columns, table.data, strict=True)}
    assert list(columns["computing_ns"]) == [100_000, 140_000]


def test_with_the_profiles_of_the_ranks_beside_it_the_summary_is_left_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "cluster_analysis_output")
    profile = tmp_path / "host_1_20260101000000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    profile.mkdir(parents=True)
    header, row = kernel_header("G3"), kernel_row(1)
    lines = [",".join(header), ",".join(row.get(name, "") for name in header)]
    (profile / "kernel_details.csv").write_text("\n".join(lines) + "\n")

    units, problems = find_units(tmp_path)

    assert [unit.parser for unit in units] == ["ascend_pt"]
    assert [problem.problem for problem in problems] == [IN_FULL]


def test_nothing_is_taken_from_the_other_readers(tmp_path: Path) -> None:
    write_text(tmp_path / "a")
    write_database(tmp_path / "b")
    assert [unit.parser for unit in find_units(tmp_path)[0]] == ["cluster_output"] * 2
    own = tmp_path / "c"
    own.mkdir()
    (own / "communication.json").write_text(json.dumps({"step7": {"p2p": {}, "collective": {KEY: CALLS["0"]}}}))
    (own / "step_trace_time.csv").write_text("Step,Computing,Communication,Free,Stage\n1,1,1,1,1\n")
    entries = tuple(FileEntry(path, path.stat().st_size) for path in own.iterdir())
    assert cluster_output.find(Folder(own, entries, ())) == []


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("(0, 1, 2)", (0, 1, 2)), ("[11, 3]", (3, 11)), ("{4}", (4,)), ("(7,)", (7,)), ("p2p", ()), ("(1; drop)", ())],
)
def test_printed_groups(text: str, ranks: tuple[int, ...]) -> None:
    assert cluster.ranks_in(text) == ranks
