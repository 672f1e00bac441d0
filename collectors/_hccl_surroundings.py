"""What around a run of hccl_test spoils it: the host file of another MPI, limits of the system, telemetry.

Source: collector reference, sections 3.3 and 4.1.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from ascend_perf.collectors._doctor_host import few_files
from ascend_perf.collectors._machine import Machine
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words

LARGE_NODES: Final = 16
"""Nodes from which the queues of connections matter. Status: assumed; the reference says "large clusters"."""
MANY_CONNECTIONS: Final = 65535
QUEUES: Final = ("net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog")
MAX_HOSTS: Final = 100_000

_OF_MPICH: Final = re.compile(r"[^\s:]+:(\d+)")
_OF_OPENMPI: Final = re.compile(r"\S+\s.*\bslots\s*=\s*(\d+).*")


def checked_hostfile(
    hostfile: Path | None, mpi: Literal["mpich", "openmpi"], *, nodes: int, per_node: int
) -> None:
    """That a host file is one of this MPI and has room for the ranks.

    Raises:
        UsageError: its lines are those of the other MPI, or there are too few hosts or places.
    """
    if hostfile is None or not hostfile.is_file():
        return
    text = hostfile.read_text("utf-8", "replace")
    if "\0" in text or "\ufffd" in text:
        raise UsageError("the host file is no text", hint="one line for each node")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()[:MAX_HOSTS]]
    hosts = [line for line in lines if line]
    own, other = (_OF_MPICH, _OF_OPENMPI) if mpi == "mpich" else (_OF_OPENMPI, _OF_MPICH)
    name, right = ("MPICH", f"10.0.0.1:{per_node}") if mpi == "mpich" else ("Open MPI", f"10.0.0.1 slots={per_node}")
    if any(other.fullmatch(host) for host in hosts):
        raise UsageError(f"the host file is not one of {name}, whose mpirun is here", hint=f"write lines like {right}")
    if len(hosts) < nodes:
        raise UsageError(f"the host file has {len(hosts)} hosts for {nodes} nodes", hint="one line for each node")
    places = [int(found[1]) for host in hosts if (found := own.fullmatch(host))]
    if places and min(places) < per_node:
        raise UsageError(
            f"a host of the host file has {min(places)} places for {per_node} NPUs", hint=f"write lines like {right}"
        )


def disturbances(machine: Machine, *, nodes: int) -> tuple[Words, ...]:
    """What of this machine would spoil the figures or the start of a run."""
    found = []
    names = ((machine.text(path) or "").strip() for path in machine.found("/proc", "[0-9]*/comm"))
    if "npu-exporter" in names:
        found.append(Words(
            "npu-exporter runs here: its telemetry disturbs bandwidths of PCIe and HCCS, end it for the run",
            "npu-exporter 正在运行：其采样会干扰 PCIe 与 HCCS 带宽，请在测试期间停止",
        ))  # fmt: skip
    if machine.is_here and (files := few_files()) is not None:
        found.append(files)
    if nodes >= LARGE_NODES:
        for queue in QUEUES:
            text = (machine.text(machine.path(f"/proc/sys/{queue}")) or "").strip()
            if text.isdecimal() and int(text) < MANY_CONNECTIONS:
                name = queue.replace("/", ".")
                found.append(Words(
                    f"{name} is {text}: {nodes} nodes may not all connect, set {MANY_CONNECTIONS}",
                    f"{name} 为 {text}：{nodes} 个节点可能无法全部建链，请设为 {MANY_CONNECTIONS}",
                ))  # fmt: skip
    return tuple(found)
