"""Runs hccl_test (all_reduce_test and its sisters): the command line, what must hold before, and whether a run counts.

The tool's exit code lies: a failed measurement usually ends with 0, and the table of the root rank says "success" while
another rank failed. A run counts when all expected rows are there and no line tells of an error.

Source: collector reference, sections 4.1 to 4.3.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.collectors import npu_smi
from ascend_perf.collectors._ascend_install import NPU_SMI, cann_roots
from ascend_perf.collectors._doctor_tools import ABSENT, find_hccl_tests
from ascend_perf.collectors._hccl_surroundings import checked_hostfile, disturbances
from ascend_perf.collectors._hccl_sweep import BUS, MAX_ROWS, Mpi, Sweep, checked, command, size_of
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors._process_group import end_group
from ascend_perf.device import compatibility
from ascend_perf.device.bus import bus_ratio
from ascend_perf.device.launch_settings import check_environment
from ascend_perf.device.specs import Figure, spec_for
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.model.finding import Words
from ascend_perf.model.trace import Device

__all__ = [
    "BUS", "MAX_ROWS", "Mpi", "Prepared", "Row", "Sweep", "Verdict", "checked", "command", "fitted", "judge", "link_of",
    "mpi_of", "prepared", "run", "size_of", "soc_here",
]  # fmt: skip

LEAST_BUFFER_MB: Final = 101
"""HCCL_BUFFSIZE below which hccl_test itself sets `-t` back to 0. Source: reference, section 4.1."""
PASSED_ON: Final = ("LD_LIBRARY_PATH", "PATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH")
"""Variables that Open MPI must be told to hand to other machines, besides those of HCCL."""

_BAD: Final = re.compile(
    r"check result failed|hccl interface return err|This is an error in|Error: \[|The number of device is 0"
    r"|error while loading shared libraries|gethostbyname failed|orted: .*not found|BAD TERMINATION"
)
_HINTS: Final = (
    ("libmpi", Words("put the lib folder of MPI into LD_LIBRARY_PATH", "将 MPI 的 lib 目录加入 LD_LIBRARY_PATH")),
    ("gethostbyname", Words("write the names of all nodes into /etc/hosts", "将各节点名写入 /etc/hosts")),
    ("orted", Words("Open MPI must be installed at the same place on all nodes", "各节点须在相同位置安装 Open MPI")),
    (
        "init_hcclComm",
        Words(
            "the other side, or a stale process of an earlier run: end it (npu-smi info lists it) and try again",
            "对端异常或有残留进程：结束它（npu-smi info 可列出）后重试",
        ),
    ),
    (
        "number of device is 0",
        Words(
            "check npu-smi info; HCCL_TEST_USE_DEVS=0,1,2,3 chooses devices", "检查 npu-smi info；"
            "HCCL_TEST_USE_DEVS=0,1,2,3 用于选择设备"
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that a run needs of the machine."""

    words: tuple[str, ...]
    folder: Path
    """Holds `bin`; the run starts there."""
    environment: Mapping[str, str]
    doubts: tuple[Words, ...]
    soc: str | None


def soc_here(machine: Machine) -> str | None:
    """The SoC name by npu-smi; None without it."""
    tool = machine.tool("npu-smi", *NPU_SMI)
    if tool is None:
        return None
    chips = npu_smi.mapping(machine.run([tool, "info", "-m"]).text)
    if not chips:
        return None
    at = ["-i", str(chips[0].npu), "-c", str(chips[0].chip)]
    board = npu_smi.answer(machine.run([tool, "info", "-t", "board", *at]).text)
    npu_name = board.blocks[0].values.get("NPU Name") if board.blocks else None
    return npu_smi.soc_name(chips[0].name, npu_name)


def prepared(
    machine: Machine, sweep: Sweep, variables: Mapping[str, str], *, soc: str | None = None, is_root: bool = False,
    is_dry: bool = False,
) -> Prepared:  # fmt: skip
    """Look for the tools, check the sweep and the variables, and write the command.

    Args:
        machine: where it would run.
        sweep: what to measure.
        variables: those of the user for this run.
        soc: the chip; None: as npu-smi says.
        is_root: whether the user is root.
        is_dry: the command is only shown: tools may be absent.

    Raises:
        UsageError: the sweep or a variable is wrong.
        MachineError: hccl_test is not built, or there is no mpirun.
    """
    soc = soc or soc_here(machine)
    known = None if soc is None else compatibility.soc_of(soc)
    generation = None if known is None else known.generation
    sweep = checked(sweep, generation)
    doubts = _checked_variables({**machine.environment, **variables}, variables, generation)
    _check_own_variables({**machine.environment, **variables}, sweep)
    folder, mpirun = _folder(machine), machine.tool("mpirun")
    binary = f"{sweep.test}_test" if folder is None else _binary(folder, sweep.test)
    if folder is None or mpirun is None:
        if not is_dry:
            absent = ABSENT["hccl-test"].en if folder is None else "mpirun is not on PATH"
            raise MachineError(absent, hint="ascend-perf doctor tells what else is missing")
        doubts = (*doubts, ABSENT["hccl-test"])
    mpi: Mpi = "mpich" if mpirun is None else mpi_of(machine, mpirun)
    if mpirun is not None:
        checked_hostfile(sweep.hostfile, mpi, nodes=sweep.nodes, per_node=sweep.per_node)
    doubts = (*doubts, *disturbances(machine, nodes=sweep.nodes))
    environment = _environment(machine, variables, mpirun)
    named = [name for name in environment if name.startswith("HCCL_")]
    names = tuple(name for name in (*PASSED_ON, *sorted(named)) if name in environment)
    return Prepared(
        words=tuple(command(sweep, mpirun or "mpirun", mpi, binary=binary, is_root=is_root, names=names)),
        folder=folder or Path("<CANN>/tools/hccl_test"), environment=environment, doubts=doubts, soc=soc,
    )  # fmt: skip


def _folder(machine: Machine) -> Path | None:
    built = find_hccl_tests(machine)
    return Path(built[0]).parent if built else None


def _binary(folder: Path, test: str) -> str:
    """The file of a test: sources spell two of them all_gatherv_test and all_gather_v_test.

    Raises:
        MachineError: it is not built.
    """
    for name in (f"{test}_test", f"{test[:-1]}_v_test" if test.endswith("v") else ""):
        if name and (folder / "bin" / name).is_file():
            return name
    there = ", ".join(sorted(path.name for path in (folder / "bin").glob("*_test")))
    raise MachineError(f"{test}_test is not among the tests that are built", hint=f"built: {there}")


def mpi_of(machine: Machine, mpirun: str) -> Mpi:
    """Whose mpirun this is."""
    text = machine.run([mpirun, "--version"]).text
    return "openmpi" if "Open MPI" in text or "OpenRTE" in text else "mpich"


def _checked_variables(
    variables: Mapping[str, str], given: Mapping[str, str], generation: str | None
) -> tuple[Words, ...]:
    """Doubts about variables of HCCL and those of the user.

    Raises:
        UsageError: one is known to be refused or ignored.
    """
    told = {name: value for name, value in variables.items() if name.startswith("HCCL_") or name in given}
    problems = check_environment(told, "npu", generation)
    for problem in problems:
        if problem.level == "error":
            raise UsageError(problem.words.en, hint=f"write {problem.right}" if problem.right else "unset it")
    return tuple(problem.words for problem in problems)


def _check_own_variables(variables: Mapping[str, str], sweep: Sweep) -> None:
    """What variables of hccl_test itself mean for a sweep.

    Raises:
        UsageError: they and the sweep contradict each other.
    """
    listed = [part for part in variables.get("HCCL_TEST_USE_DEVS", "").split(",") if part]
    if listed and len(listed) != sweep.per_node:
        raise UsageError(
            f"HCCL_TEST_USE_DEVS names {len(listed)} devices, the run has {sweep.per_node} NPUs per node",
            hint=f"--npus {len(listed)}, or unset HCCL_TEST_USE_DEVS",
        )
    buffer_mb = variables.get("HCCL_BUFFSIZE", "")
    if sweep.device_time and buffer_mb.isdecimal() and int(buffer_mb) < LEAST_BUFFER_MB:
        raise UsageError(
            f"with HCCL_BUFFSIZE={buffer_mb} hccl_test times with the host's clock, whatever it is told",
            hint=f"HCCL_BUFFSIZE={LEAST_BUFFER_MB} or more, or without --device-time",
        )


def _environment(machine: Machine, variables: Mapping[str, str], mpirun: str | None) -> dict[str, str]:
    environment = {**machine.environment, **variables}
    folders = [str(root / "lib64") for root in cann_roots(machine) if (root / "lib64").is_dir()][:1]
    if mpirun is not None:
        library = Path(mpirun).resolve().parent.parent / "lib"
        folders += [str(library)] if library.is_dir() else []
    already = [part for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*already, *(one for one in folders if one not in already)])
    return environment


# ---- run and judge --------------------------------------------------------------------------------------------------


def run(made: Prepared, output: Path, *, timeout_s: float, on_line: Callable[[str], None] = lambda line: None) -> int:
    """Run it to its end, and end what is left of its ranks: one that stays blocks the next run.

    The output file begins with the command line, from which readers know test and ranks.

    Returns:
        The exit code, which says little; 124 when it ran into the time limit.
    """
    with open(output, "w", encoding="utf-8") as file, tempfile.TemporaryFile("w+") as noise:
        file.write(f"+ {shlex.join(('mpirun', *made.words[1:]))}\n")
        file.flush()
        process = subprocess.Popen(
            list(made.words), cwd=made.folder, env=dict(made.environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=noise, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        timer = _Timer(process, timeout_s)
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    file.write(line)
                    on_line(line.rstrip("\n"))
            process.wait()
        finally:
            timer.cancel()
            end_group(process)
        noise.seek(0)
        file.write(noise.read())
    return 124 if timer.has_fired else process.returncode


class _Timer:
    """Ends a process when its time is over."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self.has_fired = False
        self._process = process
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        self.has_fired = True
        end_group(self._process)

    def cancel(self) -> None:
        self._timer.cancel()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One message size. `time_ns` is the mean over the iterations at the root rank."""

    size_bytes: int
    time_ns: int
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    peak_ratio: float | None
    """Bus bandwidth by the peak of the link; None where no peak is known."""
    check: str | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came out of a run."""

    rows: tuple[Row, ...]
    problems: tuple[Words, ...] = ()
    """Why the run does not count; empty when it does."""
    peak: Figure | None = None
    link: str | None = None
    fit: tuple[float, float] | None = None
    """Start-up time in ns and bandwidth in bytes/s of time = start-up + bus traffic / bandwidth; see `fitted`."""
    half_bytes: int | None = None
    """The least size that reaches half of the best bus bandwidth."""
    hints: tuple[Words, ...] = field(default=())


def judge(sweep: Sweep, text: str, code: int, soc: str | None) -> Verdict:
    """Whether a run counts, its rows with bus bandwidth, and the comparison with the link.

    Args:
        sweep: what was measured.
        text: the whole output, of all ranks.
        code: the exit code; 0 says nothing.
        soc: the chip, for the peak of its links.
    """
    from ascend_perf.parsers import hccl_test as reader

    found = reader.rows_of(text)
    link, peak = link_of(soc, sweep)
    ratio = bus_ratio(BUS[sweep.test], sweep.ranks)
    top = None if peak is None else peak.value
    rows = tuple(
        Row(
            size_bytes=size, time_ns=time_ns, algorithm_bytes_per_s=rate, bus_bytes_per_s=rate * ratio,
            peak_ratio=rate * ratio / top if top and ratio else None, check=check,
        )
        for size, time_ns, rate, check in found
    )  # fmt: skip
    problems = _problems(sweep, rows, text, code)
    hints = tuple(words for word, words in _HINTS if word in text)
    best = max((row.bus_bytes_per_s for row in rows), default=0.0)
    half = next((row.size_bytes for row in rows if best and row.bus_bytes_per_s >= best / 2), None)
    return Verdict(
        rows=rows, problems=problems, peak=peak, link=link, fit=fitted(rows, ratio), half_bytes=half, hints=hints
    )


def _problems(sweep: Sweep, rows: tuple[Row, ...], text: str, code: int) -> tuple[Words, ...]:
    problems = []
    expected = len(sweep.sizes())
    if len(rows) != expected:
        problems.append(
            Words(f"{len(rows)} of {expected} sizes were measured", f"{expected} 个数据量中测得 {len(rows)} 个")
        )
    failed = [row.size_bytes for row in rows if row.check == "failed"]
    if failed:
        problems.append(
            Words(f"the results of {len(failed)} sizes are wrong", f"{len(failed)} 个数据量的结果校验失败")
        )
    ranks = sorted({int(number) for number in re.findall(r"local rank_id (\d{1,7}), check result failed", text)})
    if ranks:
        names = ", ".join(map(str, ranks[:16]))
        problems.append(
            Words(
                f"the check failed on rank {names}, although the table is the root's",
                f"Rank {names} 校验失败（表格只反映 root）",
            )
        )
    for line in text.splitlines():
        if _BAD.search(line) and "check result failed" not in line:
            said = line.strip()[:200]
            problems.append(Words(said, said))
            break
    if code == 124:
        problems.append(Words("it ran into the time limit", "超出时间限制"))
    elif code and not problems:
        problems.append(Words(f"mpirun ended with code {code}", f"mpirun 以代码 {code} 结束"))
    return tuple(problems)


def link_of(soc: str | None, sweep: Sweep) -> tuple[str | None, Figure | None]:
    """The slowest kind of link that the ranks share, and its peak per NPU and direction.

    Between nodes the RoCE port of each NPU; on one node HCCS; two dies of one A3 card have a link of their own.
    """
    spec = None if soc is None else spec_for(Device(vendor="Huawei", kind="npu", name=soc))
    if spec is None:
        return None, None
    known = None if soc is None else compatibility.soc_of(soc)
    kind = "hccs"
    if sweep.nodes > 1:
        kind = "roce"
    elif known is not None and known.dies_per_card == 2 and sweep.ranks == 2:
        kind = "sio"
    figure = spec.links_bytes_per_s.get(kind)
    return kind, figure if figure is not None and figure.value else None


def fitted(rows: tuple[Row, ...], ratio: float) -> tuple[float, float] | None:
    """Start-up time (ns) and bandwidth (bytes/s) of time = start-up + size x ratio / bandwidth.

    Least squares of relative errors, so that small messages count as much as large ones; None for fewer than four
    sizes, or where it gives no positive bandwidth.
    """
    if len(rows) < 4 or not ratio:
        return None
    time = np.array([row.time_ns for row in rows], np.float64)
    if (time <= 0).any():
        return None
    moved = np.array([row.size_bytes * ratio for row in rows], np.float64)
    left = np.column_stack((1 / time, moved / time))
    (start, per_byte), *_ = np.linalg.lstsq(left, np.ones(len(rows)), rcond=None)
    return (float(start), 1e9 / float(per_byte)) if per_byte > 0 and start >= 0 else None
