"""What doctor says of tools that collectors use: profilers, tests, converters, sensors."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Final

from ascend_perf.collectors import _ascend_install as install
from ascend_perf.collectors._doctor_ascend import NO_NPU_SMI, Ascend
from ascend_perf.collectors._doctor_line import Line, error, missing, ok, warning
from ascend_perf.collectors._machine import Machine
from ascend_perf.model.finding import Words

_LOOKED_IN: Final = (
    "looked in: PATH, $ASCEND_HOME_PATH, /usr/local/Ascend/cann, /usr/local/Ascend/ascend-toolkit/latest"
)

ABSENT: Final = {
    "msprof": Words(
        f'msprof not found. Install the CANN toolkit and run "source <CANN>/set_env.sh" ({_LOOKED_IN}).',
        "未找到 msprof。安装 CANN toolkit 并执行 source <CANN>/set_env.sh（查找位置：PATH、$ASCEND_HOME_PATH、"
        "/usr/local/Ascend/cann、/usr/local/Ascend/ascend-toolkit/latest）。",
    ),
    "atc": Words(
        "atc not found (CANN toolkit plus the ops package of your chip)",
            "未找到 atc（需要 CANN toolkit 及芯片对应的 ops 包）"
    ),
    "hccl-test": Words(
        "hccl_test is not built. Build it once: cd <CANN>/tools/hccl_test && make MPI_HOME=<mpi> ASCEND_DIR=<CANN>; "
        "mpirun from MPICH or Open MPI is required.",
        "hccl_test 未编译。编译一次：cd <CANN>/tools/hccl_test && make MPI_HOME=<mpi> ASCEND_DIR=<CANN>；需要 MPICH 或 "
        "Open MPI 的 mpirun。",
    ),
    "mspti": Words(
        "msPTI not available (needs CANN with mspti and LD_PRELOAD of libmspti.so); falling back to torch_npu.profiler",
        "msPTI 不可用（需要带 mspti 的 CANN，并 LD_PRELOAD libmspti.so）；改用 torch_npu.profiler",
    ),
    "ascend-dmi": Words(
        "ascend-dmi not found (MindCluster ToolBox not installed); measured peak bandwidth/FLOPS unavailable, using "
        "the specification table.",
        "未找到 ascend-dmi（未安装 MindCluster ToolBox）；无法实测峰值带宽与算力，使用规格表。",
    ),
    "npu-smi": NO_NPU_SMI,
    "nvidia": Words(
        "NVIDIA driver/NVML not found; GPU telemetry disabled", "未找到 NVIDIA 驱动或 NVML；GPU 监测不可用"
    ),
    "rapl": Words(
        "Host energy counters not readable (root needed or not provided by this CPU)",
        "主机能耗计数器不可读（需要 root，或该 CPU 不提供）",
    ),
    "psutil": Words("psutil is not installed; no telemetry of the host", "未安装 psutil；无主机监测数据"),
    "exporter": Words("npu-exporter does not answer at this address", "npu-exporter 在该地址无响应"),
}
"""What is said of a collector that is absent, with the step that installs it. Source: reference, section 8."""


def tool_in_cann(machine: Machine, name: str, *below: str) -> str | None:
    """An executable on PATH or at a place below a root of CANN."""
    if (seen := machine.tool(name)) is not None:
        return seen
    for root in install.cann_roots(machine):
        for place in below:
            path = root / place
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return None


def find_msprof(machine: Machine) -> str | None:
    """The msprof of the toolkit."""
    return tool_in_cann(machine, "msprof", "tools/profiler/bin/msprof", "bin/msprof")


def lines(machine: Machine, seen: Ascend) -> list[Line]:
    """Tools of Ascend where there is anything of it, then those of every machine."""
    found = _of_ascend(machine, seen) if seen.is_there else []
    return [*found, *_nvidia(machine), _rapl(machine), _psutil(machine)]


def _of_ascend(machine: Machine, seen: Ascend) -> list[Line]:
    return [_msprof(machine, seen), _hccl_test(machine), _atc(machine), _mspti(machine), _ascend_dmi(machine)]


def _msprof(machine: Machine, seen: Ascend) -> Line:
    tool = find_msprof(machine)
    if tool is None:
        return missing(
            "msprof", ABSENT["msprof"],
            Words("until then torch_npu.profiler is taken", "在此之前使用 torch_npu.profiler"),
            is_needed=seen.cann is not None,
        )  # fmt: skip
    # Its own exit code says nothing: 255 for --help in one public source, 0 in another.
    done = machine.run([tool, "--help"])
    if "--output" not in done.text:
        text = f"msprof does not print its options: {done.first_line or done.problem}"
        zh = f"msprof 未打印选项：{done.first_line or done.problem}"
        return error(
            "msprof", "broken", Words(text, zh), Words("source <CANN>/set_env.sh again",
                                                       "重新 source <CANN>/set_env.sh")
        )
    return ok("msprof", "msprof answers", "msprof 可用")


def find_hccl_tests(machine: Machine) -> tuple[str, ...]:
    """Folders that hold built tests."""
    folders = []
    for root in install.cann_roots(machine):
        folder = root / "tools/hccl_test/bin"
        if (folder / "all_reduce_test").is_file():
            folders.append(str(folder))
    return tuple(folders)


def _hccl_test(machine: Machine) -> Line:
    built, mpirun = bool(find_hccl_tests(machine)), machine.tool("mpirun")
    if built and mpirun is not None:
        return ok("hccl-test", "hccl_test is built, mpirun is there", "hccl_test 已编译，mpirun 可用")
    said = ABSENT["hccl-test"]
    if built:
        said = Words("hccl_test is built, mpirun is not on PATH", "hccl_test 已编译，但 PATH 中没有 mpirun")
    cure = Words("apt-get install mpich, or put the bin folder of MPICH or Open MPI on PATH",
                 "apt-get install mpich，或将 MPICH、Open MPI 的 bin 目录加入 PATH")  # fmt: skip
    return missing("hccl-test", said, cure if mpirun is None else None)


def _atc(machine: Machine) -> Line:
    if tool_in_cann(machine, "atc", "bin/atc", "compiler/bin/atc") is None:
        return missing("atc", ABSENT["atc"])
    return ok("atc", "atc is there", "atc 可用")


def _mspti(machine: Machine) -> Line:
    if any((root / "lib64/libmspti.so").is_file() for root in install.cann_roots(machine)):
        return ok("mspti", "libmspti.so is there", "有 libmspti.so")
    return missing("mspti", ABSENT["mspti"])


def _ascend_dmi(machine: Machine) -> Line:
    if machine.tool("ascend-dmi") is None:
        return missing("ascend-dmi", ABSENT["ascend-dmi"])
    return ok("ascend-dmi", "ascend-dmi is there", "有 ascend-dmi")


_SMI_PROBLEMS: Final = {
    9: "the driver is not loaded", 12: "the NVML library is missing", 15: "a GPU fell off the bus",
}  # fmt: skip


def _nvidia(machine: Machine) -> list[Line]:
    tool = machine.tool("nvidia-smi")
    if tool is None:
        return [missing("nvidia", ABSENT["nvidia"])]
    done = machine.run([tool, "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in done.text.splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[0].isdecimal()]
    if done.code or not rows:
        why = _SMI_PROBLEMS.get(done.code) or done.first_line or done.problem
        said = Words(f"nvidia-smi does not work: {why}", f"nvidia-smi 不可用：{why}")
        cure = Words("install the driver of the GPU, or remove what is left of it", "安装 GPU 驱动，或清除其残留")
        return [warning("nvidia", "broken", said, cure)]
    names = ", ".join(dict.fromkeys(row[1] for row in rows))
    text = f"{len(rows)} x {names}, driver {rows[0][2]}"
    return [ok("nvidia", text, f"{len(rows)} x {names}，驱动 {rows[0][2]}")]


def _rapl(machine: Machine) -> Line:
    from ascend_perf.collectors.energy import packages

    there = packages(machine.path("/sys/class/powercap"))
    if there:
        return ok("rapl", f"energy counters of {len(there)} packages", f"{len(there)} 个处理器封装的能耗计数器")
    is_locked = bool(machine.found("/sys/class/powercap", "intel-rapl:*"))
    command = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
    cure = Words(command, command)
    return missing("rapl", ABSENT["rapl"], cure if is_locked else None)


def _psutil(machine: Machine) -> Line:
    version = machine.package("psutil")
    if version is None and not (machine.is_here and importlib.util.find_spec("psutil")):
        return missing("psutil", ABSENT["psutil"], Words("pip install psutil", "pip install psutil"), is_needed=True)
    return ok("psutil", f"psutil {version}", f"psutil {version}")


def exporter(url: str) -> Line:
    """The npu-exporter at an address that the user named."""
    from ascend_perf.collectors.npu_exporter import fetch, read
    from ascend_perf.errors import InputError

    try:
        chips = read(fetch(url))
    except InputError as failed:
        why = re.sub(r"https?://\S+", "it", failed.what)
        return warning(
            "exporter", "broken",
            Words(f"{ABSENT['exporter'].en}: {why}", f"{ABSENT['exporter'].zh}：{why}"),
            Words("start npu-exporter -ip <address> -port 8082", "启动 npu-exporter -ip <地址> -port 8082"),
        )  # fmt: skip
    return ok("exporter", f"npu-exporter tells of {len(chips)} chips", f"npu-exporter 给出 {len(chips)} 个芯片")
