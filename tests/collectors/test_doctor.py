"""doctor on described machines: a plain one, one with CUDA, and three Ascend installations that fit or clash."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ascend_perf.collectors import _doctor_host
from ascend_perf.collectors._doctor_ascend import look
from ascend_perf.collectors._doctor_tools import ABSENT
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.devices import Inventory, SeenDevice
from ascend_perf.collectors.doctor import COLLECTORS, Diagnosis, Line, diagnose, lacking
from ascend_perf.errors import UsageError
from tests.collectors._ascend_tree import Install, build, tool, write
from tests.collectors._npu_smi_texts import A2, A3, P310
from tests.collectors.test_device_telemetry import endpoint, exported

CPU = SeenDevice(type="cpu", index=0, name="a processor", cores=2)
ARM = Install(chips=A2)
SMI = """
import sys
assert sys.argv[1:] == ["--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader,nounits"]
print("0, NVIDIA A100-SXM4-80GB, 550.54.15, 81920"); print("1, NVIDIA A100-SXM4-80GB, 550.54.15, 81920")
"""


def of(diagnosis: Diagnosis, name: str) -> list[Line]:
    return [line for line in diagnosis.lines if line.name == name]


def bad(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    return [(line.name, line.level, line.status) for line in diagnosis.lines if line.level != "ok"]


def plain(root: Path, torch: str | None = "2.13.0+cpu", **variables: str) -> Machine:
    packages = {"psutil": "7.0.0", **({"torch": torch} if torch else {})}
    return Machine(
        root=root, environment={"PATH": str(root / "bin"), **variables}, package=packages.get,
        torch=lambda: Inventory(devices=(CPU,), torch_version=torch, torch_npu_version=None), python="3.11.7",
        architecture="x86_64", is_here=False,
    )  # fmt: skip


# ---- machines without Ascend ----------------------------------------------------------------------------------------


def test_a_plain_machine_says_that_there_is_nothing_of_ascend(tmp_path: Path) -> None:
    found = diagnose(plain(tmp_path))

    assert bad(found) == []
    (line,) = of(found, "ascend")
    assert line.status == "missing"
    assert line.said.en.startswith("nothing of Ascend is on this machine")
    assert line.said.zh.startswith("本机没有任何昇腾组件")
    assert line.cure is not None
    # No line of a tool that only such a machine would have.
    assert {line.name for line in found.lines} == {
        "python", "torch", "cuda", "ascend", "nvidia", "rapl", "psutil", "environment", "clock"
    }  # fmt: skip
    assert of(found, "nvidia")[0].said == ABSENT["nvidia"]
    assert of(found, "rapl")[0].said == ABSENT["rapl"]


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    (line,) = of(diagnose(plain(tmp_path, torch=None)), "torch")

    assert (line.level, line.status) == ("warning", "missing")
    assert line.cure is not None
    assert "ascend-perf[torch]" in line.cure.en


def test_a_machine_with_cuda(tmp_path: Path) -> None:
    gpus = tuple(SeenDevice(type="cuda", index=n, name="NVIDIA A100-SXM4-80GB") for n in range(2))
    tool(tmp_path / "bin", "nvidia-smi", SMI)
    machine = replace(
        plain(tmp_path, torch="2.13.0+cu126"),
        torch=lambda: Inventory(devices=(*gpus, CPU), torch_version="2.13.0+cu126", torch_npu_version=None),
    )

    found = diagnose(machine)

    assert bad(found) == []
    assert of(found, "cuda")[0].said.en == "2 x NVIDIA A100-SXM4-80GB"
    assert of(found, "nvidia")[0].said.en == "2 x NVIDIA A100-SXM4-80GB, driver 550.54.15"


def test_a_gpu_with_a_torch_for_the_cpu_and_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", "import sys; print('NVIDIA-SMI has failed'); sys.exit(9)")

    found = diagnose(plain(tmp_path))

    assert bad(found) == [("cuda", "warning", "clash"), ("nvidia", "warning", "broken")]
    assert of(found, "nvidia")[0].said.en == "nvidia-smi does not work: the driver is not loaded"


def test_energy_counters_that_only_root_may_read_have_a_cure(tmp_path: Path) -> None:
    folder = "/sys/class/powercap/intel-rapl:0"
    write(tmp_path, f"{folder}/name", "package-0\n")
    (locked,) = of(diagnose(plain(tmp_path)), "rapl")
    assert locked.cure is not None
    assert "chmod" in locked.cure.en

    write(tmp_path, f"{folder}/energy_uj", "5\n")
    write(tmp_path, f"{folder}/max_energy_range_uj", "99\n")
    assert of(diagnose(plain(tmp_path)), "rapl")[0].said.en == "energy counters of 1 packages"


# ---- installations that fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "chip"),
    [
        (Install(chips=A2), "2 x Ascend910B2, 2 cards, generation A2"),
        (
            Install(
                chips=A3, cann="9.0.0", packages={"torch": "2.8.0", "torch_npu": "2.8.0.post4", "psutil": "7.0.0"}
            ),
            "4 x Ascend910_9392, 2 cards, generation A3",
        ),
        (
            Install(
                chips=P310, cann="8.3.RC1", arch="x86_64", has_ops=False,
                packages={"torch": "2.1.0+cpu", "torch_npu": "2.1.0.post17", "psutil": "7.0.0"},
            ),
            "2 x Ascend310P3, 2 cards, generation 310P",
        ),
    ],
    ids=["A2", "A3", "310P"],
)  # fmt: skip
def test_an_installation_that_fits(tmp_path: Path, made: Install, chip: str) -> None:
    found = diagnose(build(tmp_path, made))

    assert bad(found) == []
    assert of(found, "chip")[0].said.en == chip
    assert of(found, "versions")[0].said.en.startswith(f"torch_npu {made.packages['torch_npu']} fits torch")
    assert of(found, "cann")[0].said.en == f"CANN {made.cann}"
    assert of(found, "driver")[0].said.en == "driver 25.5.0"
    assert of(found, "firmware")[0].said.en == "firmware 7.8.0.1.220"
    assert of(found, "health")[0].said.en == f"all {len(made.chips)} chips are healthy"
    assert of(found, "msprof")[0].status == "ok"
    # An inference card has no port and no HCCS.
    assert bool(of(found, "ports")) == bool(of(found, "links")) == (made.chips is not P310)
    assert found.facts["SoC"] == chip.split()[2].rstrip(",")
    for name in ("hccl-test", "atc", "ascend-dmi"):
        assert of(found, name)[0].said == ABSENT[name]


def test_training_on_an_inference_card_is_told(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, Install(chips=P310)))

    assert any("inference product" in line.said.en for line in of(found, "chip"))


# ---- installations that clash ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "name", "level", "said", "cure"),
    [
        (
            replace(ARM, packages={"torch": "2.8.0", "torch_npu": "2.9.0"}), "versions", "error",
            "torch_npu 2.9.0 needs torch 2.9.0, here is 2.8.0", "pip install torch==2.9.0",
        ),
        (
            replace(ARM, cann="8.3.RC1"), "versions", "error",
            "torch_npu 2.9.0 (release 7.3.0) needs CANN 8.5.0, here is 8.3.RC1",
            "install CANN 8.5.0, or the torch_npu of CANN 8.3.RC1",
        ),
        (
            replace(ARM, cann="9.1.0"), "versions", "warning",
            "torch_npu 2.9.0 is tested with CANN 8.5.0, here is the newer 9.1.0", "the torch_npu of CANN 9.1.0",
        ),
        (
            replace(ARM, packages={"torch": "2.13.0", "torch_npu": "2.13.0"}), "versions", "warning",
            "torch_npu 2.13.0 with CANN 8.5.0: not in our table, unverified", "README",
        ),
        (
            replace(ARM, packages={"torch": "2.9.0+cu126", "torch_npu": "2.9.0"}), "versions", "error",
            "torch 2.9.0+cu126 is built for CUDA", "torch==2.9.0",
        ),
        (
            replace(ARM, python="3.9.2"), "python", "warning",
            "Python 3.9.2 is outside of what torch 2.9.0+cpu is built for: 3.10 to 3.13", "Python 3.13",
        ),
        (
            replace(ARM, firmware="7.1.0.3.220"), "firmware", "error",
            "firmware 7.1.0.3.220 is outside of what driver 25.5.0 works with: 7.7.0 to 7.8.99", "then reboot",
        ),
        (
            replace(ARM, driver_inner="V100R001C10SPC002"), "driver", "warning",
            "driver 25.5.0 (V100R001C10SPC002) is not among those that CANN 8.5.0 names: V100R001C15, V100R001C25",
            "the driver of the same release",
        ),
        (
            replace(ARM, has_ops=False), "cann", "warning", "the operator package (ops) of the chip is not installed",
            "ops of Ascend910B2",
        ),
        (
            replace(ARM, is_sourced=False), "cann", "warning", "CANN 8.5.0 is installed, its environment is not set",
            "set_env.sh",
        ),
        (replace(ARM, nodes=("davinci_manager", "hisi_hdc")), "device", "error", "no /dev/devmm_svm", "container"),
        (replace(ARM, down=frozenset({1})), "ports", "warning", "ports that are not up: 1: DOWN", "cable"),
        (
            replace(ARM, chips=(A2[0], replace(A2[1], health="Critical", error_code="0x80E01801"))), "health", "error",
            "NPU 1 chip 0: Critical, 0x80E01801, node type=SoC, sensor type=Memory", "error code",
        ),
        (
            replace(ARM, problem="libhccl.so: cannot open shared object file"), "torch-npu", "error",
            "torch_npu 2.9.0 does not load: libhccl.so: cannot open shared object file", "set_env.sh in this shell",
        ),
        (replace(ARM, sees=0), "torch-npu", "error", "torch_npu 2.9.0 loads and sees no device", "/dev/davinci*"),
        (
            replace(ARM, packages={"torch": "2.9.0"}), "torch-npu", "warning", "torch_npu is not installed",
            "the release that fits (CANN 8.5.0)",
        ),
        (
            replace(ARM, chips=tuple(replace(chip, name="Ascend 910Z9") for chip in A2)), "chip", "warning",
            "2 x Ascend910Z9: not among the known names of chips", "peaks",
        ),
        (
            replace(ARM, variables={"HCCL_ALGO": "Ring"}), "environment", "error", "HCCL_ALGO=Ring: the form is",
            "write HCCL_ALGO=level0:NA;level1:ring",
        ),
        (
            replace(ARM, variables={"NPU_MEMORY_OPTIMIZE": "1"}), "environment", "error", "no such variable",
            "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
        ),
        (
            replace(ARM, variables={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}), "environment", "warning",
            "not supported together with profiling", "container",
        ),
        (
            replace(ARM, variables={"HCCL_OP_EXPANSION_MODE": "CCU_MS"}), "environment", "error",
            "HCCL_OP_EXPANSION_MODE=CCU_MS: on A2 it must be one of HOST", "write HCCL_OP_EXPANSION_MODE=HOST",
        ),
        (
            replace(ARM, variables={"TORCH_NPU_WARNING_DISABLE": "1"}), "environment", "warning",
            "hides that the profiler of torch_npu changed an option", "unset TORCH_NPU_WARNING_DISABLE",
        ),
        (
            replace(ARM, variables={"VLLM_TORCH_PROFILER_DIR": "/p"}), "environment", "warning",
            "works before vllm-ascend 0.14.0rc1 only", """--profiler-config '{"profiler":"torch",""",
        ),
        (
            replace(ARM, variables={"VLLM_TORCH_PROFILER_DIR": "/p"},
                    packages={"torch": "2.9.0+cpu", "torch_npu": "2.9.0", "vllm_ascend": "0.14.0rc1"}),
            "environment", "warning", "is ignored by vllm-ascend 0.14.0rc1", "--profiler-config",
        ),
        (
            replace(ARM, cann="9.2.0", variables={"ASCEND_SLOG_PRINT_TO_STDOUT": "1"},
                    packages={"torch": "2.13.0", "torch_npu": "2.13.0"}),
            "environment", "warning", "ASCEND_SLOG_PRINT_TO_STDOUT is not read by CANN 9.2.0",
            "write ASCEND_LOG_PRINT_TO_STDOUT=1",
        ),
        (
            replace(ARM, variables={"ASCEND_HOME_PATH": "/gone"}), "cann", "error",
            "ASCEND_HOME_PATH names a folder that does not exist", "source set_env.sh",
        ),
        (
            replace(ARM, variables={"PROFILER_SAMPLECONFIG": "{}"}), "environment", "error", "runs under msprof",
            "unset",
        ),
    ],
)  # fmt: skip
def test_an_installation_that_clashes(
    tmp_path: Path, made: Install, name: str, level: str, said: str, cure: str
) -> None:
    found = diagnose(build(tmp_path, made))

    lines = [line for line in of(found, name) if line.level == level]
    assert any(said in line.said.en and line.cure is not None and cure in line.cure.en for line in lines), found.lines
    # Nothing else is blamed for it, but what follows from the same fault.
    follows = {"torch-npu": {"versions"}, "versions": {"python"}, "chip": {"chip"}}
    if made.cann == "9.2.0":
        follows["environment"] = {"versions", "python"}  # not in the matrix
    assert {one for one, _, _ in bad(found)} <= {name} | follows.get(name, set())


def test_an_older_vllm_ascend_reads_the_variable(tmp_path: Path) -> None:
    packages = {"torch": "2.9.0+cpu", "torch_npu": "2.9.0", "vllm_ascend": "0.13.0"}
    made = replace(ARM, variables={"VLLM_TORCH_PROFILER_DIR": "/p"}, packages=packages)
    assert bad(diagnose(build(tmp_path, made))) == []


def test_an_environment_without_the_operators(tmp_path: Path) -> None:
    machine = build(tmp_path, ARM)
    variables = {name: value for name, value in machine.environment.items() if name != "ASCEND_OPP_PATH"}
    found = diagnose(replace(machine, environment=variables))
    assert [line.said.en for line in of(found, "environment")] == [
        "ASCEND_OPP_PATH is not set: operators are not found, programs end with it"
    ]


def test_segments_that_a_killed_program_has_left(tmp_path: Path) -> None:
    machine = build(tmp_path, ARM)
    assert of(diagnose(machine), "shared memory") == []
    write(tmp_path, "/dev/shm/DynamicProfileNpuShm2026040710")
    write(tmp_path, "/dev/shm/sem.mine")

    (line,) = of(diagnose(machine), "shared memory")

    assert (line.level, line.status) == ("warning", "broken")
    assert "/dev/shm/DynamicProfileNpuShm2026040710. Where no program uses them" in line.said.en
    assert line.cure is not None
    assert line.cure.en == "when no such program runs: rm /dev/shm/DynamicProfileNpuShm2026040710"


def test_cann_below_the_folder_of_either_spelling(tmp_path: Path) -> None:
    machine = build(tmp_path, ARM)
    root = tmp_path / "usr/local/Ascend/cann"
    (root / "aarch64-linux").rename(root / "arm64-linux")
    assert diagnose(machine).facts["CANN"] == "8.5.0"


def test_the_line_of_the_version_counts_wherever_it_stands(tmp_path: Path) -> None:
    machine = build(tmp_path, ARM)
    path = tmp_path / "usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert diagnose(machine).facts["CANN"] == "8.5.0"


# ---- this process ---------------------------------------------------------------------------------------------------


def here(root: Path) -> Machine:
    """An installation on a machine whose limits are those of this process."""
    return replace(build(root, ARM), is_here=True)


@pytest.mark.parametrize(
    ("soft", "said"),
    [
        (1024, "a process may open 1024 files; HCCL of larger jobs needs 65535"),
        (65534, "a process may open 65534 files; HCCL of larger jobs needs 65535"), (65535, None), (-1, None),
    ],
)  # fmt: skip
def test_how_many_files_a_process_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, said: str | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, 1 << 20))
    lines = of(diagnose(here(tmp_path)), "limits")
    assert [line.said.en for line in lines] == ([] if said is None else [said])
    assert all(line.cure is not None and line.cure.en == "ulimit -n 65535" for line in lines)
    assert of(diagnose(replace(plain(tmp_path / "cpu"), is_here=True)), "limits") == []  # no HCCL there


@pytest.mark.parametrize(
    ("free", "level"), [(20 << 30, "ok"), ((10 << 30) - 1, "warning"), ((512 << 20) - 1, "error")]
)
def test_room_for_a_profile_and_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    (line,) = of(diagnose(here(tmp_path), folder=tmp_path / "not" / "yet"), "disk")
    assert line.level == level
    assert ("20 times its raw data" in line.said.en) == (level != "ok")


@pytest.mark.parametrize(("version", "is_old"), [("2.28", True), ("2.33", True), ("2.34", False), ("2.39", False)])
def test_a_glibc_with_the_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_old: bool
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", version))
    lines = of(diagnose(here(tmp_path)), "libc")
    assert [(line.level, line.status) for line in lines] == [("warning", "unverified")] * is_old


@pytest.mark.parametrize(
    ("value", "usable", "is_skipped"),
    [("1", 4, True), ("2,npu0:0-19", 4, True), ("2,force:1", 4, False), ("0", 4, False), ("1", 8, False)],
)
def test_a_binding_that_is_skipped_since_the_process_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, usable: int, is_skipped: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(usable)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    machine = replace(build(tmp_path, replace(ARM, variables={"CPU_AFFINITY_CONF": value})), is_here=True)
    said = [line.said.en for line in of(diagnose(machine), "environment")]
    skipped = f"CPU_AFFINITY_CONF={value} is skipped: this process is bound to 4 of 8 cores already"
    assert said == ([skipped] if is_skipped else ["no variable is wrong"])


# ---- what is absent -------------------------------------------------------------------------------------------------


def test_absent_tools_have_the_messages_of_the_reference(tmp_path: Path) -> None:
    """Section 8 and the sections that it names, word by word."""
    machine = build(tmp_path, replace(ARM, chips=(), nodes=()))
    for path in (
        "usr/local/Ascend/cann/tools/profiler/bin/msprof", "usr/local/Ascend/cann/lib64/libmspti.so",
        "usr/local/bin/npu-smi",
    ):  # fmt: skip
        (tmp_path / path).unlink()

    found = diagnose(machine)

    expected = {
        "msprof": 'msprof not found. Install the CANN toolkit and run "source <CANN>/set_env.sh" (looked in: PATH, '
        "$ASCEND_HOME_PATH, /usr/local/Ascend/cann, /usr/local/Ascend/ascend-toolkit/latest).",
        "npu-smi": "npu-smi not found: driver not installed or not mounted; device telemetry disabled",
        "atc": "atc not found (CANN toolkit plus the ops package of your chip)",
        "hccl-test": "hccl_test is not built. Build it once: cd <CANN>/tools/hccl_test && make MPI_HOME=<mpi> "
        "ASCEND_DIR=<CANN>; mpirun from MPICH or Open MPI is required.",
        "mspti": "msPTI not available (needs CANN with mspti and LD_PRELOAD of libmspti.so); falling back to "
        "torch_npu.profiler",
        "ascend-dmi": "ascend-dmi not found (MindCluster ToolBox not installed); measured peak bandwidth/FLOPS "
        "unavailable, using the specification table.",
        "nvidia": "NVIDIA driver/NVML not found; GPU telemetry disabled",
        "rapl": "Host energy counters not readable (root needed or not provided by this CPU)",
        "cuda": "No CUDA device; baseline collectors limited to CPU",
    }
    assert {name: of(found, name)[0].said.en for name in expected} == expected
    assert all(of(found, name)[0].status == "missing" for name in expected)
    (device,) = of(found, "device")
    assert device.cure is not None
    assert device.cure.en.startswith(
        "No Ascend NPU visible (no /dev/davinci*). In a container pass the devices and mount the driver files ("
    )
    shutil.rmtree(tmp_path / "usr/local/Ascend/cann")
    (cann,) = of(diagnose(machine), "cann")
    assert cann.cure is not None
    assert cann.cure.en == "CANN toolkit not found. Install it, then: source <CANN>/set_env.sh"


def test_a_driver_that_fails_its_query_breaks_msprof(tmp_path: Path) -> None:
    machine = build(tmp_path, ARM)
    tool(tmp_path / "usr/local/Ascend/cann/tools/profiler/bin", "msprof",
         "import sys; print('[ERROR] Init platform by driver failed!'); sys.exit(255)")
    (line,) = of(diagnose(machine), "msprof")
    assert (line.level, line.status) == ("error", "broken")
    assert line.said.en == "msprof does not print its options: [ERROR] Init platform by driver failed!"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (9, "the driver is not loaded"), (12, "the NVML library is missing"), (15, "a GPU fell off the bus"),
        (6, "No devices were found"), (255, "No devices were found"),
    ],
)  # fmt: skip
def test_codes_of_nvidia_smi(tmp_path: Path, code: int, why: str) -> None:
    tool(tmp_path / "bin", "nvidia-smi", f"import sys; print('No devices were found'); sys.exit({code})")
    (line,) = of(diagnose(plain(tmp_path)), "nvidia")
    assert line.said.en == f"nvidia-smi does not work: {why}"


def test_other_cann_of_one_line_and_versions_in_other_files(tmp_path: Path) -> None:
    machine = build(tmp_path, replace(ARM, cann="8.5.1"))
    assert "fits" in of(diagnose(machine), "versions")[0].said.en

    root = tmp_path / "usr/local/Ascend/cann"
    for name in ("toolkit", "ops"):
        (root / f"aarch64-linux/ascend_{name}_install.info").unlink()
    write(root, "runtime/version.info", "Version=7.7.0.1.238\nversion_dir=8.1.RC1\n")
    assert diagnose(machine).facts["CANN"] == "8.1.RC1"  # not the number of the component


def test_the_architecture_of_cann(tmp_path: Path) -> None:
    machine = replace(build(tmp_path, ARM), architecture="x86_64")

    assert ("cann", "error", "clash") in bad(diagnose(machine))


def test_a_container_without_devices_is_told_what_to_mount(tmp_path: Path) -> None:
    machine = build(tmp_path, replace(ARM, chips=(), sees=0))
    tool(tmp_path / "usr/local/bin",
        "npu-smi", "import sys\nprint('dcmi module initialize failed. ret is -8005')\nsys.exit(187)")

    found = diagnose(machine)

    (device,) = of(found, "device")
    assert device.status == "missing"
    assert device.cure is not None
    assert "/usr/local/dcmi" in device.cure.en
    (smi,) = of(found, "npu-smi")
    assert smi.said.en == (
        "npu-smi names no chip: dcmi module initialize failed. ret is -8005 (DCMI: inner error)"
    )


def test_wheel_without_anything_else_says_three_different_things(tmp_path: Path) -> None:
    packages = {"torch": "2.13.0", "torch_npu": "2.13.0"}
    problem = "torch cannot be imported: libhccl.so: cannot open shared object file"
    machine = replace(
        plain(tmp_path), package=packages.get,
        torch=lambda: Inventory(
            devices=(CPU,), torch_version="2.13.0", torch_npu_version="2.13.0", problems=(f"npu: {problem}",),
            environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        ),
    )  # fmt: skip

    found = diagnose(machine)

    (line,) = of(found, "torch-npu")
    assert line.level == "error"
    assert line.cure is not None
    assert "install CANN" in line.cure.en
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in line.cure.en
    assert of(found, "torch")[0].said.en == "torch 2.13.0 (without torch_npu)"
    assert of(found, "npu-smi")[0].said == ABSENT["npu-smi"]
    assert of(found, "cann")[0].cure is not None


def test_a_tool_that_hangs_is_broken_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_perf.collectors._machine.TIMEOUT_S", 0.2)
    path = tool(tmp_path / "bin", "slow", "import time; time.sleep(60)")

    done = plain(tmp_path).run([str(path)], timeout_s=0.2)

    assert (done.code, done.problem) == (-1, "no answer within 0.2 s")


# ---- what the user needs --------------------------------------------------------------------------------------------


def test_collectors_that_are_needed(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, ARM))
    assert lacking(found, ["npu", "cann", "torch-npu", "msprof", "npu-smi", "psutil"]) == []
    assert lacking(found, ["npu", "atc", "exporter", "cuda"]) == ["atc", "exporter", "cuda"]
    with pytest.raises(UsageError, match="no collector 'gpu'"):
        lacking(found, ["gpu"])

    nothing = diagnose(plain(tmp_path / "other"))
    assert lacking(nothing, COLLECTORS) == [name for name in COLLECTORS if name not in ("torch", "psutil")]


def test_every_line_is_said_in_both_languages(tmp_path: Path) -> None:
    made = replace(ARM, down=frozenset({0}), firmware="1.0.0", has_ops=False, variables={"HCCL_ALGO": "Ring"})
    for line in diagnose(build(tmp_path, made)).lines:
        for words in filter(None, (line.said, line.cure)):
            assert not re.search("[\u4e00-\u9fff]", words.en)
            if re.search(r"\b(the|is|are|not|of)\b", words.en):
                assert re.search("[\u4e00-\u9fff]", words.zh), words


def test_the_exporter_is_asked_only_when_its_address_is_given(tmp_path: Path) -> None:
    with endpoint(lambda: (200, exported([0, 1]))) as url:
        found = diagnose(build(tmp_path, ARM), exporter=url)
        assert of(found, "exporter")[0].said.en == "npu-exporter tells of 2 chips"
        assert lacking(found, ["exporter"]) == []
    gone = diagnose(build(tmp_path / "b", ARM), exporter=url)
    (line,) = of(gone, "exporter")
    assert (line.level, line.status) == ("warning", "broken")
    assert "127.0.0.1" not in line.said.en
    assert lacking(gone, ["exporter"]) == ["exporter"]
    assert of(diagnose(build(tmp_path / "c", ARM)), "exporter") == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "no variable is wrong"),
        ({"HCCL_BUFFSIZE": "lots"}, "those of NPUs (HCCL_*, ASCEND_*) were not judged"),
        ({"TASK_QUEUE_ENABLE": "7"}, "were not judged"),
    ],
)
def test_variables_that_were_not_judged_are_not_called_right(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    machine = plain(tmp_path, **variables)
    (line,) = _doctor_host.variables(machine, look(machine))
    assert line.level == "ok"
    assert said in line.said.en
