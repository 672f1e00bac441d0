"""hccl_test: golden command lines, refusals, and runs of stand-ins whose exit codes lie as the real ones' do."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.cli import cli
from ascend_perf.collectors import _hccl_sweep, _machine, hccl_test
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.hccl_test import Row, Sweep, checked, command, fitted, judge, mpi_of, prepared, run, size_of
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.model.tables import COMM_BENCH
from ascend_perf.parsers.discover import find_units, parsers
from tests.collectors._ascend_tree import Install, build, tool, write
from tests.collectors._npu_smi_texts import A2, A3
from tests.collectors._processes import is_running

MPIRUN = """
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print({version!r}); sys.exit(0)
at = next(n for n, word in enumerate(words) if word.endswith("_test"))
ranks = int(words[words.index("-n") + 1])
assert at > words.index("-n")
sys.exit(subprocess.run(words[at:], env={{**os.environ, "FAKE_RANKS": str(ranks)}}).returncode)
"""

TEST = """
import os, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
fault = os.environ.get("FAKE_FAULT", "")
ranks = int(os.environ["FAKE_RANKS"])
if fault == "mpi":  # the loader, before any line of the test
    sys.stderr.write("./bin/all_reduce_test: error while loading shared libraries: libmpi.so.12: cannot open\\n")
    sys.exit(127)
if fault == "host":
    print("gethostbyname failed, node-b (errno 1)"); sys.exit(1)
if fault == "orted":
    sys.stderr.write("bash: orted: command not found\\n"); sys.exit(1)
if words.get("-z") == "1" == words.get("-m"):
    print("Error: [-z,--zero_copy 1] is invalid with -m 1."); sys.exit(1)  # errors of arguments are told
if words.get("-t") == "1" and max(int(words["-n"]), int(words["-w"])) > 100:
    print("Error: [-n,--iters %s] is invalid." % words["-n"]); sys.exit(1)
if int(words["-p"]) > 16:
    print("Error: [-p,--npus %s] is invalid." % words["-p"]); sys.exit(1)
def size(text):
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
low, high = size(words["-b"]), size(words["-e"])
print(f"the minbytes is {low}, maxbytes is {high}, iters is {words['-n']}, warmup_iters is {words['-w']}")
if fault == "devices":
    print("Error: The number of device is 0.Check whether the package is correct."); sys.exit(0)
if fault == "init":
    print("hccl interface return err common/src/hccl_test_common.cc:581, retcode: 7")
    print("This is an error in init_hcclComm."); sys.exit(0)
print("data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:")
at, n = low, 0
while at <= high:
    us = 20 + 2 * (ranks - 1) / ranks * at / 150e3  # 20 us and 150 GB/s on the bus
    check = "NULL" if words["-c"] == "0" else "success"
    if fault == "hang" and n == 1:
        sys.stdout.flush(); time.sleep(600)
    if fault == "stale" and n == 1:  # a rank that never ends and holds the output open
        import subprocess
        print(f"left {subprocess.Popen([sys.executable, '-SEc', 'import time; time.sleep(600)']).pid}")
    if fault == "silent" and n == 1:  # a rank that never ends, and whose output is not ours
        import subprocess
        none = subprocess.DEVNULL
        left = subprocess.Popen([sys.executable, "-SEc", "import time; time.sleep(600)"], stdout=none, stderr=none)
        print(f"left {left.pid}")
    if fault == "root" and n == 1:
        check = "failed"
    print(f"{at:<17d} | {us:<14.2f} | {at / us / 1e3:<20.5f} | {check}", flush=True)
    if fault == "rank" and n == 1:
        print(f"local rank_id 5, check result failed, {at:<17d} | {us:<14.2f} | {at / us / 1e3:<20.5f} | failed")
    if fault == "short" and n == 1:
        break
    at = at * int(words["-f"]) if "-f" in words else at + int(words["-i"])
    n += 1
sys.exit(0)  # also after a failed measurement: the cleanup overwrites the result
"""


def machine(
    root: Path, *, mpi: str = "mpirun (Open MPI) 4.1.5", chips: tuple[object, ...] = A2, **variables: str
) -> Machine:
    made = build(root, Install(chips=chips, variables=variables))  # type: ignore[arg-type]
    tool(root / "bin", "mpirun", MPIRUN.format(version=mpi))
    for name in ("all_reduce", "all_gather", "all_gather_v", "alltoall", "broadcast"):
        tool(root / "usr/local/Ascend/cann/tools/hccl_test/bin", f"{name}_test", TEST)
    return replace(made, environment={**made.environment, "PATH": f"{root}/bin"})


SMALL = Sweep(least_bytes=8 << 10, most_bytes=64 << 20, factor=8)


# ---- command lines --------------------------------------------------------------------------------------------------


def test_the_command_of_the_reference_on_one_node() -> None:
    sweep = Sweep(dtype="bfp16")

    assert " ".join(command(sweep, "mpirun", "mpich")) == (
        "mpirun -n 8 ./bin/all_reduce_test -p 8 -b 8K -e 1G -f 2 -d bfp16 -o sum -n 20 -w 10 -c 1"
    )


def test_the_command_of_the_reference_on_two_nodes() -> None:
    sweep = Sweep(dtype="bfp16", nodes=2, hostfile=Path("hosts"))

    assert " ".join(command(sweep, "mpirun",
        "openmpi", is_root=True, names=("LD_LIBRARY_PATH", "HCCL_SOCKET_IFNAME"))) == (
        "mpirun --allow-run-as-root -hostfile hosts -n 16 -x LD_LIBRARY_PATH -x HCCL_SOCKET_IFNAME "
        "./bin/all_reduce_test -p 8 -b 8K -e 1G -f 2 -d bfp16 -o sum -n 20 -w 10 -c 1"
    )
    assert " ".join(command(sweep, "mpirun", "mpich", names=("LD_LIBRARY_PATH",))).startswith(
        "mpirun -f hosts -n 16 ./bin/all_reduce_test"
    )


def test_options_that_are_on_are_given_and_no_others() -> None:
    sweep = Sweep(zero_copy=True, device_time=True)
    assert command(checked(sweep, "A3"), "mpirun", "mpich")[-4:] == ["-z", "1", "-t", "1"]
    assert command(replace(Sweep(), symmetric_memory=True), "mpirun", "mpich")[-2:] == ["-m", "1"]
    assert not {"-z", "-m", "-t"} & set(command(Sweep(), "mpirun", "mpich"))


def test_options_that_a_test_does_not_know_are_left_out() -> None:
    gather = command(Sweep(test="all_gather", factor=0, step_bytes=1 << 20, most_bytes=4 << 20), "mpirun", "mpich")
    assert gather[gather.index("-e") :] == [
        "-e", "4M", "-i", "1048576", "-d", "fp32", "-n", "20", "-w", "10", "-c", "1"
    ]  # fmt: skip
    broadcast = command(Sweep(test="broadcast", root=3), "mpirun", "mpich")
    assert broadcast[broadcast.index("-r") + 1] == "3"
    assert "-o" not in broadcast


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 40), st.integers(2, 9), st.integers(0, 1 << 30))
def test_sizes_by_brute_force(least: int, most: int, factor: int, step: int) -> None:
    by_factor = Sweep(least_bytes=least, most_bytes=most, factor=factor).sizes()
    assert by_factor == [least * factor**n for n in range(60) if least * factor**n <= most]
    step += most // 1000 + 1
    by_step = Sweep(least_bytes=least, most_bytes=most, factor=0, step_bytes=step).sizes()
    assert by_step == list(range(least, most + 1, step))


@given(st.integers(0, 1 << 45))
def test_sizes_are_written_so_that_they_are_read_again(count: int) -> None:
    assert size_of(_hccl_sweep._size(count)) == count


def test_words_of_sizes() -> None:
    assert [size_of(text) for text in ("4096", "8K", "64m", "1GB")] == [4096, 8192, 64 << 20, 1 << 30]
    for text in ("", "8T", "-1", "1.5M", "K"):
        with pytest.raises(UsageError, match="is no size"):
            size_of(text)


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"test": "allreduce"}, "no test 'allreduce'", "all_reduce"),
        ({"dtype": "bf16"}, "no type 'bf16'", "bfp16"),
        ({"factor": 0, "step_bytes": 0}, "repeats the first size for ever", "--factor 2"),
        ({"factor": 1}, "must be more than 1", "--factor 2"),
        ({"least_bytes": 2 << 30}, "not above the most", "--min"),
        ({"least_bytes": 1, "factor": 0, "step_bytes": 1}, "more than 10000 sizes", "larger"),
        ({"iterations": 0}, "at least 1", "20"),
        ({"reduction": "avg"}, "no reduction", "sum"),
        ({"per_node": 16}, "16 NPUs per node", "1 to 8 on A2"),
        ({"nodes": 2}, "need a host file", "docs/hccl.md"),
        ({"root": 8}, "root 8 of 8 ranks", "0 to 7"),
        ({"zero_copy": True, "symmetric_memory": True}, "exclude each other", "leave one"),
        ({"zero_copy": True}, "zero copy is for A3, this is A2", "leave it out"),
        ({"device_time": True, "iterations": 101}, "times 100 calls at most", "--iterations 100"),
        ({"device_time": True, "warmup": 101}, "after 100 of warm-up", "--warmup 10"),
        ({"most_bytes": 1 << 63}, "larger than 9223372036854775807 bytes", "--max 1G"),
        ({"iterations": 1 << 31}, "at most 2147483647", "--iterations 20"),
        ({"warmup": 1 << 31}, "at most 2147483647", "--warmup 10"),
    ],
)
def test_a_sweep_that_the_tool_refuses_or_never_ends_is_refused(
    changes: dict[str, object], said: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        checked(replace(Sweep(), **changes), "A2")  # type: ignore[arg-type]

    assert said in caught.value.what
    assert hint in caught.value.hint
    assert checked(Sweep(per_node=16), "A3").ranks == 16


# ---- what must hold before ------------------------------------------------------------------------------------------


def test_whose_mpirun_and_variables_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    sweep = Sweep(nodes=2, hostfile=Path("h"))
    made = prepared(machine(tmp_path, HCCL_SOCKET_IFNAME="eth0"), sweep, {"HCCL_BUFFSIZE": "400"})

    assert made.words[:4] == (str(tmp_path / "bin/mpirun"), "-hostfile", "h", "-n")
    handed = [made.words[n + 1] for n, word in enumerate(made.words) if word == "-x"]
    assert {"LD_LIBRARY_PATH", "HCCL_SOCKET_IFNAME", "HCCL_BUFFSIZE"} <= set(handed)
    assert made.environment["LD_LIBRARY_PATH"].split(os.pathsep) == [
        str(tmp_path / "usr/local/Ascend/cann/lib64"), str(tmp_path / "lib"),
    ]  # fmt: skip
    assert made.soc == "Ascend910B2"
    mpich = machine(tmp_path / "other", mpi="HYDRA build details:\n    Version: 3.2.1")
    assert mpi_of(mpich, str(tmp_path / "other/bin/mpirun")) == "mpich"


def test_wrong_variables_of_hccl_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="HCCL_ALGO=Ring") as caught:
        prepared(machine(tmp_path, HCCL_ALGO="Ring"), Sweep(), {})
    assert "level0:NA;level1:ring" in caught.value.hint
    with pytest.raises(UsageError, match="must be a whole number from 0 to 7"):
        prepared(machine(tmp_path / "b"), Sweep(), {"HCCL_RDMA_SL": "1000"})
    doubt = prepared(machine(tmp_path / "c", HCCL_DIAGNOSE_ENABLE="1"), Sweep(), {}).doubts
    assert ["diagnosis slows the run" in words.en for words in doubt] == [True]


def test_devices_of_the_tests_own_variable_are_as_many_as_its_ranks(tmp_path: Path) -> None:
    here = machine(tmp_path, HCCL_TEST_USE_DEVS="4,5,6,7")
    with pytest.raises(UsageError, match="names 4 devices, the run has 8 NPUs per node") as caught:
        prepared(here, Sweep(), {})
    assert caught.value.hint == "--npus 4, or unset HCCL_TEST_USE_DEVS"
    assert prepared(here, Sweep(per_node=4), {}).environment["HCCL_TEST_USE_DEVS"] == "4,5,6,7"
    with pytest.raises(UsageError, match="HCCL_TEST_USE_DEVS=4-7: not of the form 0,1"):
        prepared(here, Sweep(), {"HCCL_TEST_USE_DEVS": "4-7"})


def test_a_small_buffer_takes_the_time_of_the_device_away(tmp_path: Path) -> None:
    here = machine(tmp_path)
    sweep = Sweep(device_time=True)
    with pytest.raises(UsageError, match="HCCL_BUFFSIZE=100 hccl_test times with the host's clock"):
        prepared(here, sweep, {"HCCL_BUFFSIZE": "100"})
    prepared(here, sweep, {"HCCL_BUFFSIZE": "101"})
    prepared(here, Sweep(), {"HCCL_BUFFSIZE": "100"})


def test_a_test_that_profiles_itself_is_doubted(tmp_path: Path) -> None:
    doubts = prepared(machine(tmp_path), Sweep(), {"HCCL_TEST_PROFILING": "1"}).doubts
    assert ["hccl_test profiles itself" in words.en for words in doubts] == [True]


@pytest.mark.parametrize(
    ("mpi", "text", "said", "hint"),
    [
        ("Open MPI 4.1.5", "10.0.0.1:8\n10.0.0.2:8\n", "not one of Open MPI", "10.0.0.1 slots=8"),
        ("HYDRA", "# nodes\n10.0.0.1 slots=8\n10.0.0.2 slots=8\n", "not one of MPICH", "10.0.0.1:8"),
        ("HYDRA", "10.0.0.1:8\n\n# 10.0.0.2:8\n", "has 1 hosts for 2 nodes", "one line for each node"),
        ("Open MPI 4.1.5", "a slots=8\nb slots=4\n", "has 4 places for 8 NPUs", "slots=8"),
        ("HYDRA", "a\0\nb\0\n", "is no text", "one line for each node"),
    ],
)
def test_a_host_file_of_the_other_mpi_is_refused(tmp_path: Path, mpi: str, text: str, said: str, hint: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        prepared(machine(tmp_path / "root", mpi=mpi), Sweep(nodes=2, hostfile=hosts), {})
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("mpi", "text"),
    [
        ("Open MPI 4.1.5", "node-a slots=8\nnode-b max_slots=9 slots=8 # x\n"), ("HYDRA", "10.0.0.1:8\n10.0.0.2:16\n"),
        ("HYDRA", "node-a\nnode-b\n"),
    ],
)  # fmt: skip
def test_a_host_file_of_this_mpi_is_taken(tmp_path: Path, mpi: str, text: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(text)
    made = prepared(machine(tmp_path / "root", mpi=mpi), Sweep(nodes=2, hostfile=hosts), {})
    assert str(hosts) in made.words


def test_what_would_spoil_the_run_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(tmp_path)
    assert prepared(here, Sweep(), {}).doubts == ()
    write(tmp_path, "/proc/41/comm", "npu-exporter\n")
    write(tmp_path, "/proc/sys/net/core/somaxconn", "4096\n")
    write(tmp_path, "/proc/sys/net/ipv4/tcp_max_syn_backlog", "65535\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))

    (exporter,) = prepared(here, Sweep(), {}).doubts
    large = prepared(replace(here, is_here=True), Sweep(nodes=16, hostfile=Path("hosts")), {}).doubts

    assert exporter.en.startswith("npu-exporter runs here: its telemetry disturbs bandwidths")
    assert [words.en for words in large] == [
        exporter.en, "a process may open 1024 files; HCCL of larger jobs needs 65535",
        "net.core.somaxconn is 4096: 16 nodes may not all connect, set 65535",
    ]  # fmt: skip


def test_no_telemetry_runs_beside_a_test_of_bandwidths(tmp_path: Path) -> None:
    """npu-smi is asked for the chip before the run, and never watched during it."""
    log = tmp_path / "asked"
    here = machine(tmp_path)
    own = tmp_path / "usr/local/bin/npu-smi"
    heard = f"words = sys.argv[1:]\nopen({str(log)!r}, 'a').write(' '.join(words) + chr(10))"
    own.write_text(own.read_text().replace("words = sys.argv[1:]", heard))
    made = prepared(here, SMALL, {})
    before = log.read_text()
    run(made, tmp_path / "all_reduce_test.txt", timeout_s=60)
    assert log.read_text() == before
    assert "watch" not in before


def test_what_is_absent_is_said_with_the_step_that_builds_it(tmp_path: Path) -> None:
    nothing = Machine(root=tmp_path / "x", environment={"PATH": ""}, is_here=False)
    with pytest.raises(MachineError, match=r"make MPI_HOME=<mpi> ASCEND_DIR=<CANN>"):
        prepared(nothing, Sweep(), {})
    assert prepared(nothing, Sweep(), {}, is_dry=True).words[0] == "mpirun"
    there = machine(tmp_path)
    (tmp_path / "bin/mpirun").unlink()
    with pytest.raises(MachineError, match="mpirun is not on PATH"):
        prepared(there, Sweep(), {})
    built = machine(tmp_path / "b")
    with pytest.raises(MachineError, match="reduce_test is not among the tests"):
        prepared(built, Sweep(test="reduce"), {})
    assert "./bin/all_gather_v_test" in prepared(built, Sweep(test="all_gatherv"), {}).words


# ---- runs -----------------------------------------------------------------------------------------------------------


def measured(root: Path, sweep: Sweep, fault: str = "", timeout_s: float = 60) -> tuple[hccl_test.Verdict, Path]:
    made = prepared(machine(root), sweep, {})
    made = replace(made, environment={**made.environment, "FAKE_FAULT": fault})
    output = root / f"{sweep.test}_test.txt"
    code = run(made, output, timeout_s=timeout_s)
    return judge(sweep, output.read_text("utf-8"), code, made.soc), output


def test_a_run_that_counts_has_bus_bandwidth_and_the_share_of_the_link(tmp_path: Path) -> None:
    verdict, output = measured(tmp_path, SMALL)

    assert verdict.problems == ()
    assert [row.size_bytes for row in verdict.rows] == [8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20]
    last = verdict.rows[-1]
    time_us = 20 + 1.75 * (32 << 20) / 150e3
    assert last.time_ns == pytest.approx(time_us * 1000, abs=5)
    assert last.bus_bytes_per_s == pytest.approx(1.75 * (32 << 20) / time_us * 1e6, rel=1e-4)
    assert (verdict.link, verdict.peak and verdict.peak.value) == ("hccs", 196e9)
    assert last.peak_ratio == pytest.approx(last.bus_bytes_per_s / 196e9)
    assert verdict.fit is not None
    assert list(verdict.fit) == pytest.approx([20_000, 150e9], rel=1e-3)
    assert verdict.half_bytes == 4 << 20
    # The reader of profiles knows test and ranks from the first line.
    units, _ = find_units(output)
    (trace,) = parsers()["hccl_test"].parse(units[0])
    table = trace[COMM_BENCH]
    assert (table.text("op")[0], table.ints("ranks")[0], len(table)) == ("allReduce", 8, 5)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("rank", ["the check failed on rank 5, although the table is the root's"]),
        ("root", ["the results of 1 sizes are wrong"]),
        ("short", ["2 of 5 sizes were measured"]),
        ("init", ["0 of 5 sizes were measured",
            "hccl interface return err common/src/hccl_test_common.cc:581, retcode: 7"]),
    ],
)
def test_runs_that_end_with_0_and_do_not_count(tmp_path: Path, fault: str, said: list[str]) -> None:
    verdict, _ = measured(tmp_path, SMALL, fault)

    assert [problem.en for problem in verdict.problems] == said
    if fault == "init":
        assert "stale process" in verdict.hints[0].en


@pytest.mark.parametrize(
    ("fault", "code", "said", "hint"),
    [
        ("mpi", 127, "error while loading shared libraries: libmpi.so.12", "LD_LIBRARY_PATH"),
        ("host", 1, "gethostbyname failed", "/etc/hosts"),
        ("orted", 1, "bash: orted: command not found", "at the same place on all nodes"),
        ("devices", 0, "The number of device is 0", "HCCL_TEST_USE_DEVS=0,1,2,3 chooses devices"),
    ],
)
def test_errors_of_the_reference_have_their_cure(tmp_path: Path, fault: str, code: int, said: str, hint: str) -> None:
    made = prepared(machine(tmp_path), SMALL, {})
    made = replace(made, environment={**made.environment, "FAKE_FAULT": fault})
    output = tmp_path / "out.txt"

    assert run(made, output, timeout_s=60) == code
    verdict = judge(SMALL, output.read_text("utf-8"), code, made.soc)

    assert verdict.problems[0].en == "0 of 5 sizes were measured"
    assert said in verdict.problems[1].en
    assert [hint in words.en for words in verdict.hints] == [True]


def test_errors_of_arguments_are_told_whatever_the_code(tmp_path: Path) -> None:
    """Our own check comes first; another release may refuse more."""
    sweep = replace(SMALL, zero_copy=True, symmetric_memory=True)
    made = prepared(machine(tmp_path), SMALL, {})
    made = replace(made, words=(*made.words, "-z", "1", "-m", "1"))
    code = run(made, tmp_path / "out.txt", timeout_s=60)
    verdict = judge(sweep, (tmp_path / "out.txt").read_text("utf-8"), 0, made.soc)
    assert code == 1
    assert "Error: [-z,--zero_copy 1] is invalid with -m 1." in [problem.en for problem in verdict.problems]


def test_a_run_that_hangs_is_ended_with_its_ranks(tmp_path: Path) -> None:
    verdict, _ = measured(tmp_path, SMALL, "hang", timeout_s=2)

    said = [problem.en for problem in verdict.problems]
    assert said == ["1 of 5 sizes were measured", "it ran into the time limit"]


def test_a_rank_that_outlives_mpirun_is_ended_too(tmp_path: Path) -> None:
    verdict, output = measured(tmp_path, SMALL, "stale", timeout_s=5)

    pid = int(output.read_text("utf-8").partition("left ")[2].split()[0])
    assert not is_running(pid)
    assert [problem.en for problem in verdict.problems] == ["it ran into the time limit"]
    assert len(verdict.rows) == 5


def test_a_rank_that_stays_behind_a_good_run_is_ended_and_the_run_counts(tmp_path: Path) -> None:
    verdict, output = measured(tmp_path, SMALL, "silent")

    assert not is_running(int(output.read_text("utf-8").partition("left ")[2].split()[0]))
    assert verdict.problems == ()


def test_without_a_check_rows_count_and_say_so(tmp_path: Path) -> None:
    verdict, _ = measured(tmp_path, replace(SMALL, check=0, test="all_gather"))

    assert verdict.problems == ()
    assert {row.check for row in verdict.rows} == {None}
    assert verdict.rows[0].bus_bytes_per_s == pytest.approx(verdict.rows[0].algorithm_bytes_per_s * 7 / 8)


@pytest.mark.parametrize(
    ("soc", "sweep", "link", "peak"),
    [
        ("Ascend910B2", Sweep(), "hccs", 196e9),
        ("Ascend910B2", Sweep(nodes=2, hostfile=Path("h")), "roce", 25e9),
        ("Ascend910_9392", Sweep(per_node=2), "sio", 224e9),
        ("Ascend910_9392", Sweep(per_node=4), "hccs", 196e9),
        ("Ascend910B2C", Sweep(), "hccs", None),
        ("Ascend910B", Sweep(), None, None),
        (None, Sweep(), None, None),
    ],
)
def test_the_slowest_link_that_the_ranks_share(
    soc: str | None, sweep: Sweep, link: str | None, peak: float | None
) -> None:
    kind, figure = hccl_test.link_of(soc, sweep)
    assert (kind, None if figure is None else figure.value) == (link, peak)


@given(st.floats(1e3, 1e6), st.floats(1e9, 1e12), st.sampled_from([1.75, 0.875, 1.0]))
def test_the_fit_finds_what_made_the_times(start_ns: float, rate: float, ratio: float) -> None:
    rows = tuple(
        Row(
            size_bytes=1 << n, time_ns=round(start_ns + (1 << n) * ratio / rate * 1e9), algorithm_bytes_per_s=1.0,
            bus_bytes_per_s=1.0, peak_ratio=None, check=None,
        )
        for n in range(12, 36, 2)
    )  # fmt: skip

    found = fitted(rows, ratio)

    assert found is not None
    assert found[0] == pytest.approx(start_ns, rel=2e-3, abs=2)
    assert found[1] == pytest.approx(rate, rel=2e-3)
    assert fitted(rows[:3], ratio) is None


# ---- command --------------------------------------------------------------------------------------------------------


def called(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["hccl-test", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def test_the_command_writes_table_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(tmp_path / "root", chips=A3)
    monkeypatch.setattr(_machine, "here", lambda: here)
    sizes = ("--min", "8K", "--max", "64M", "--factor", "8", "--npus", "16")

    code, text = called("all_reduce", *sizes, "-o", str(tmp_path / "out"))

    assert code == 0
    assert "bus bandwidth" in text
    assert "link: hccs, peak 196 GB/s per NPU and direction" in text
    body = json.loads((tmp_path / "out/result.json").read_text("utf-8"))
    assert (body["counts"], body["ranks"], body["soc"], len(body["rows"])) == (True, 16, "Ascend910_9392", 5)
    assert body["rows"][0]["bus_bytes_per_s"] == pytest.approx(body["rows"][0]["algorithm_bytes_per_s"] * 30 / 16)

    monkeypatch.setattr(
        _machine, "here", lambda: replace(here, environment={**here.environment, "FAKE_FAULT": "rank"})
    )  # fmt: skip
    code, text = called("all_reduce", *sizes, "-o", str(tmp_path / "bad"), "--lang", "zh")
    assert code == 1
    assert "本次运行无效：Rank 5 校验失败" in text

    code, text = called("all_reduce", "--dry-run", "--env", "HCCL_BUFFSIZE=400")
    assert code == 0
    assert "export HCCL_BUFFSIZE=400" in text
    assert text.rstrip().endswith("-p 8 -b 8K -e 1G -f 2 -d fp32 -o sum -n 20 -w 10 -c 1")
