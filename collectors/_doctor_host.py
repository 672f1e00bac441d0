"""What doctor says of the host: environment variables, limits, disk space, clock, container."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from ascend_perf.collectors import _vllm
from ascend_perf.collectors._doctor_ascend import Ascend
from ascend_perf.collectors._doctor_line import Line, Status, error, missing, ok, warning
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.devices import DeviceType
from ascend_perf.device import compatibility
from ascend_perf.device.launch_settings import check_environment
from ascend_perf.model.finding import Words
from ascend_perf.units import format_quantity

LITTLE_BYTES: Final = 10 << 30
"""A profile needs about 20 times its raw data while it is exported, and raw data of a few GB are common."""
NO_BYTES: Final = 512 << 20
"""msprof stops writing silently below 20 MB; a short trace needs more. Status: assumed."""
MANY_FILES: Final = 65535
"""Open files that hccl_test asks for. Source: collector reference, section 4.1."""
SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})
_OF_NPUS: Final = ("HCCL_", "ASCEND_", "PYTORCH_NPU_", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF")
SEGMENTS: Final = "DynamicProfileNpuShm*"
"""Segments of shared memory of torch_npu's dynamic profiling; the name ends with the hour of their start."""
STDOUT_RENAMED: Final = "9.2"
"""CANN that reads ASCEND_LOG_PRINT_TO_STDOUT in place of ASCEND_SLOG_PRINT_TO_STDOUT. Source: the same, section 4.7."""
OLD_LIBC: Final = (2, 34)
"""Below, a defect of static TLS can end the parser of profiles with memory data. Source: the same, section 2.5."""


def lines(machine: Machine, seen: Ascend, folder: Path) -> list[Line]:
    """All of the host; `folder` is where runs would be written."""
    found = variables(machine, seen)
    if machine.is_here:
        found += [*_limits(seen), _disk(folder), *_libc(seen)]
    return [*found, *_segments(machine), *_clock(machine)]


def kind_of(machine: Machine, seen: Ascend) -> DeviceType:
    """The kind of device whose variables count here."""
    if seen.is_there:
        return "npu"
    return "cuda" if machine.tool("nvidia-smi") is not None else "cpu"


def variables(machine: Machine, seen: Ascend) -> list[Line]:
    """Variables that are wrong, doubtful, or spoil a measurement."""
    kind = kind_of(machine, seen)
    found = []
    soc = None if seen.soc is None else compatibility.soc_of(seen.soc)
    for problem in check_environment(machine.environment, kind, None if soc is None else soc.generation):
        right = Words(f"write {problem.right}", f"应写作 {problem.right}") if problem.right else Words(
            f"unset {problem.name}", f"unset {problem.name}"
        )
        make = error if problem.level == "error" else warning
        found.append(make("environment", "clash", problem.words, right))
    for name in ("PROFILER_SAMPLECONFIG", "PROFILING_MODE"):
        if name in machine.environment:
            found.append(
                error(
                    "environment", "clash",
                    Words(f"{name} is set: this shell runs under msprof, which holds the only profiling channel",
                          f"已设置 {name}：当前在 msprof 之下，设备唯一的采集通道已被占用"),
                    Words("leave msprof, or unset it", "退出 msprof，或取消该变量"),
                )
            )  # fmt: skip
    if kind == "npu":
        if "ASCEND_RT_VISIBLE_DEVICES" in machine.environment:
            found.append(
                warning(
                    "environment", "unsupported",
                    Words("ASCEND_RT_VISIBLE_DEVICES is documented as not supported together with profiling",
                          "文档说明 ASCEND_RT_VISIBLE_DEVICES 不支持与性能采集同时使用"),
                    Words("choose devices by the program's own option, or in the container",
                          "通过程序自身的参数或容器配置选择设备"),
                )
            )  # fmt: skip
        for name in ("TORCH_NPU_DISABLED_WARNING", "TORCH_NPU_WARNING_DISABLE"):
            if machine.environment.get(name, "0") not in ("", "0"):
                found.append(
                    warning(
                        "environment", "clash",
                        Words(f"{name} hides that the profiler of torch_npu changed an option",
                              f"{name} 会隐藏 torch_npu profiler 修改选项的告警"),
                        Words(f"unset {name}", f"unset {name}"),
                    )
                )  # fmt: skip
        found += _of_cann(machine, seen)
        found += _affinity(machine)
    vllm = machine.package("vllm_ascend")
    if _vllm.VARIABLE in machine.environment and (said := _vllm.variable_words(vllm)) is not None:
        status: Status = "unverified" if vllm is None else "clash"
        found.append(warning("environment", status, said, Words(_vllm.INSTEAD, _vllm.INSTEAD)))
    if not found and kind != "npu" and any(name.startswith(_OF_NPUS) for name in machine.environment):
        return [ok(
            "environment", "no variable that counts here is wrong; those of NPUs (HCCL_*, ASCEND_*) were not judged",
            "对本机有效的环境变量无误；未检查 NPU 的变量（HCCL_*、ASCEND_*）",
        )]  # fmt: skip
    return found or [ok("environment", "no variable is wrong", "环境变量无误")]


def _of_cann(machine: Machine, seen: Ascend) -> list[Line]:
    """Variables of CANN that its release does not read, or lacks."""
    found = []
    version = None if seen.cann is None else seen.cann.version
    is_new = version is not None and compatibility.version_key(version) >= compatibility.version_key(STDOUT_RENAMED)
    old, new = "ASCEND_SLOG_PRINT_TO_STDOUT", "ASCEND_LOG_PRINT_TO_STDOUT"
    if is_new and old in machine.environment and new not in machine.environment:
        found.append(
            warning(
                "environment", "clash",
                Words(f"{old} is not read by CANN {version}: logs go to files as ever",
                      f"CANN {version} 不再读取 {old}：日志仍写入文件"),
                Words(f"write {new}={machine.environment[old][:8]}", f"应写作 {new}={machine.environment[old][:8]}"),
            )
        )  # fmt: skip
    is_sourced = seen.cann is not None and seen.cann.is_sourced
    if is_sourced and "ASCEND_TOOLKIT_HOME" in machine.environment and "ASCEND_OPP_PATH" not in machine.environment:
        found.append(
            warning(
                "environment", "missing",
                Words("ASCEND_OPP_PATH is not set: operators are not found, programs end with it",
                      "未设置 ASCEND_OPP_PATH：找不到算子，程序会因此退出"),
                Words("source <CANN>/set_env.sh", "source <CANN>/set_env.sh"),
            )
        )  # fmt: skip
    return found


def _affinity(machine: Machine) -> list[Line]:
    """CPU_AFFINITY_CONF does nothing in a process that is bound already."""
    value = machine.environment.get("CPU_AFFINITY_CONF", "0")
    if not machine.is_here or not value.startswith(("1", "2")) or "force:1" in value:
        return []
    try:
        usable, cores = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    except AttributeError:  # not on Linux
        return []
    if usable >= cores:
        return []
    return [
        warning(
            "environment", "clash",
            Words(f"CPU_AFFINITY_CONF={value} is skipped: this process is bound to {usable} of {cores} cores already",
                  f"CPU_AFFINITY_CONF={value} 不生效：当前进程已绑定到 {cores} 个核中的 {usable} 个"),
            Words("bind by one of them: leave numactl out, or add force:1", "二者择一：去掉 numactl，或加上 force:1"),
        )
    ]  # fmt: skip


def _segments(machine: Machine) -> list[Line]:
    """What a killed program with dynamic profiling has left: the next start of it on the same hour fails."""
    there = machine.found("/dev/shm", SEGMENTS)
    if not there:
        return []
    names = ", ".join(f"/dev/shm/{path.name}" for path in there[:4])
    return [
        warning(
            "shared memory", "broken",
            Words(
                f"segments of torch_npu's dynamic profiling: {names}. Where no program uses them, one was killed, and "
                "the next start of dynamic profiling fails",
                f"torch_npu 动态采集的共享内存段：{names}。若无程序使用，则为程序被强制终止后的残留，"
                "会使下次动态采集启动失败",
            ),
            Words(f"when no such program runs: rm {names.replace(', ', ' ')}",
                  f"确认没有此类程序运行后：rm {names.replace(', ', ' ')}"),
        )
    ]  # fmt: skip


def few_files() -> Words | None:
    """What is said when a process here may open too few files for HCCL; None when it may open enough."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, ValueError, OSError):
        return None
    if soft == -1 or soft >= MANY_FILES:
        return None
    return Words(
        f"a process may open {soft} files; HCCL of larger jobs needs {MANY_FILES}",
        f"进程可打开文件数为 {soft}；较大规模任务的 HCCL 需要 {MANY_FILES}",
    )


def _limits(seen: Ascend) -> list[Line]:
    said = few_files() if seen.is_there else None
    if said is None:
        return []
    return [warning("limits", "clash", said, Words(f"ulimit -n {MANY_FILES}", f"ulimit -n {MANY_FILES}"))]


def _disk(folder: Path) -> Line:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as failed:
        why = failed.strerror or str(failed)
        return error("disk", "broken", Words(f"the folder for runs: {why}", f"运行目录：{why}"))
    said = format_quantity(free, "bytes")
    if not os.access(place, os.W_OK):
        return error(
            "disk", "broken", Words("the folder for runs may not be written", "运行目录不可写"),
            Words("start in a folder of yours, or use -o", "在自己的目录中启动，或使用 -o"),
        )  # fmt: skip
    if free >= LITTLE_BYTES:
        return ok("disk", f"{said} free", f"剩余 {said}")
    make = error if free < NO_BYTES else warning
    return make(
        "disk", "clash",
        Words(f"{said} free: a profile needs about 20 times its raw data while it is exported",
              f"剩余 {said}：导出时约需原始数据 20 倍的空间"),
        Words("make room, or write the run to another disk with -o", "清理空间，或用 -o 写到其他磁盘"),
    )  # fmt: skip


def _libc(seen: Ascend) -> list[Line]:
    import platform

    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name != "glibc" or not seen.is_there or len(numbers) < 2 or numbers >= OLD_LIBC:
        return []
    return [
        warning(
            "libc", "unverified",
            Words(f"glibc {version}: below 2.34 the parser of profiles with memory data can crash",
                  f"glibc {version}：低于 2.34 时，解析带内存数据的 profile 可能崩溃"),
            Words("profile without memory if it does", "若崩溃，请关闭内存采集"),
        )
    ]  # fmt: skip


def _clock(machine: Machine) -> list[Line]:
    """The source of the clock (a slow one costs on every event), and whether it is set by a time server."""
    found = []
    place = machine.path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    source = (machine.text(place) or "").strip()
    if source in SLOW_CLOCKS:
        found.append(
            warning(
                "clock", "clash",
                Words(f"the clock of the kernel is {source}: each time stamp of a profiler is slow",
                      f"内核时钟源为 {source}：profiler 的每个时间戳都很慢"),
                Words("boot with the processor's own counter (tsc, arch_sys_counter)",
                      "改用处理器计数器（tsc、arch_sys_counter）启动"),
            )
        )  # fmt: skip
    elif source:
        found.append(ok("clock", f"clock source {source}", f"时钟源 {source}"))
    if machine.is_here:
        now = time.time()
        newest = Path(__file__).stat().st_mtime
        if now < newest - 86400:
            found.append(
                error(
                    "clock", "broken",
                    Words("the clock is before the time at which this program was installed",
                          "系统时间早于本程序的安装时间"),
                    Words("set the clock (chronyc makestep)", "校准时钟（chronyc makestep）"),
                )
            )  # fmt: skip
    tool = machine.tool("timedatectl")
    done = None if tool is None else machine.run([tool, "show", "-p", "NTPSynchronized", "--value"], timeout_s=5)
    answer = "" if done is None else done.text.strip()
    if answer == "yes":
        found.append(ok("clock", "set by a time server", "已与时间服务器同步"))
    elif answer == "no":
        found.append(
            warning(
                "clock", "unverified",
                Words("not set by a time server: ranks of several machines cannot be compared by their times",
                      "未与时间服务器同步：多机各卡的时间不可直接比较"),
                Words("start chronyd or systemd-timesyncd on all machines",
                      "在所有机器上启动 chronyd 或 systemd-timesyncd"),
            )
        )  # fmt: skip
    elif not found:
        found.append(missing("clock", Words("nothing tells of the clock", "无法获知时钟信息")))
    return found
