"""What doctor says of Python, torch and torch_npu, and whether they belong together with CANN."""

from __future__ import annotations

from typing import Final

from ascend_perf.collectors._doctor_ascend import Ascend
from ascend_perf.collectors._doctor_line import Line, error, missing, ok, warning
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.devices import INSTALL_TORCH, Inventory
from ascend_perf.device import compatibility
from ascend_perf.model.finding import Words

MATRIX: Final = Words(
    "the matrix: README of the torch_npu repository", "配套表见 torch_npu 仓库的 README"
)


def lines(machine: Machine, seen: Ascend) -> list[Line]:
    """Python, torch, torch_npu, devices that torch sees, and the pairs of versions."""
    torch = machine.package("torch")
    if torch is None:
        return [
            ok("python", f"Python {machine.python}", f"Python {machine.python}"),
            missing(
                "torch", Words("torch is not installed: workloads cannot run, profiles can be read",
                               "未安装 torch：不能运行负载，仍可分析已有数据"),
                Words(INSTALL_TORCH, INSTALL_TORCH), is_needed=True,
            ),
        ]  # fmt: skip
    inventory = machine.torch()
    found = [_python(machine, torch), _torch(torch, inventory)]
    found += _torch_npu(seen, inventory)
    if seen.torch_npu is not None:
        found += _pairs(torch, seen.torch_npu, seen)
    found.append(_cuda(torch, inventory, machine))
    return found


def _python(machine: Machine, torch: str) -> Line:
    verdict = compatibility.python_fits(machine.python, torch)
    text = f"Python {machine.python}"
    if verdict == "unverified":
        return ok("python", f"{text}; torch {torch} is not in our table", f"{text}；torch {torch} 不在我们的配套表中")
    if verdict == "fits":
        return ok("python", text, text)
    limits = compatibility.python_range(torch)
    assert limits is not None
    least, most = limits
    return warning(
        "python", "clash",
        Words(f"{text} is outside of what torch {torch} is built for: {least} to {most}",
              f"{text} 不在 torch {torch} 支持的范围内：{least} 到 {most}"),
        Words(f"make an environment with Python {most}", f"使用 Python {most} 新建环境"),
    )  # fmt: skip


def _torch(torch: str, inventory: Inventory) -> Line:
    if inventory.torch_version is None or any("torch cannot be imported" in text for text in inventory.problems[:1]):
        # With torch_npu installed and CANN absent, torch is only well without automatic back ends.
        if inventory.environment:
            return ok("torch", f"torch {torch} (without torch_npu)", f"torch {torch}（不加载 torch_npu）")
        why = inventory.problems[0] if inventory.problems else "?"
        return error(
            "torch", "broken", Words(f"torch {torch}: {why}", f"torch {torch}：{why}"),
            Words(f"reinstall it: {INSTALL_TORCH}", f"重新安装：{INSTALL_TORCH}"),
        )  # fmt: skip
    return ok("torch", f"torch {torch}", f"torch {torch}")


def _torch_npu(seen: Ascend, inventory: Inventory) -> list[Line]:
    """Not installed, installed without CANN, or without a device: three different things."""
    version = seen.torch_npu
    if version is None:
        if not seen.is_there:
            return []
        said = Words("torch_npu is not installed", "未安装 torch_npu")
        release = "" if seen.cann is None or seen.cann.version is None else f" (CANN {seen.cann.version})"
        return [
            missing(
                "torch-npu", said,
                Words(f"pip install torch_npu of the release that fits{release}; {MATRIX.en}",
                      f"pip install 配套版本的 torch_npu{release}；{MATRIX.zh}"),
                is_needed=True,
            )
        ]  # fmt: skip
    npus = [device for device in inventory.devices if device.type == "npu"]
    if npus:
        return [ok("torch-npu", f"torch_npu {version}, {len(npus)} devices",
            f"torch_npu {version}，{len(npus)} 个设备")]
    why = next((text.removeprefix("npu: ") for text in inventory.problems if text.startswith("npu: ")), "")
    if inventory.environment or "cannot be imported" in why:
        cure = Words(
            "install CANN, then source <CANN>/set_env.sh; until then start other programs with "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0, since import torch fails",
            "安装 CANN 并 source <CANN>/set_env.sh；在此之前 import torch 会失败，"
            "其他程序请设 TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        )
        if seen.cann is not None:
            cure = Words("source <CANN>/set_env.sh in this shell", "在当前 shell 中 source <CANN>/set_env.sh")
        text = f"torch_npu {version} does not load: {why}"
        return [error("torch-npu", "broken", Words(text, f"torch_npu {version} 无法加载：{why}"), cure)]
    return [
        error(
            "torch-npu", "broken",
            Words(f"torch_npu {version} loads and sees no device", f"torch_npu {version} 可加载，但看不到设备"),
            Words("check the driver and /dev/davinci* (npu-smi info), and ASCEND_RT_VISIBLE_DEVICES",
                  "检查驱动与 /dev/davinci*（npu-smi info），以及 ASCEND_RT_VISIBLE_DEVICES"),
        )
    ]  # fmt: skip


def _pairs(torch: str, torch_npu: str, seen: Ascend) -> list[Line]:
    found = []
    if compatibility.torch_fits(torch, torch_npu) == "other":
        needed = compatibility.torch_of(torch_npu)
        found.append(
            error(
                "versions", "clash",
                Words(f"torch_npu {torch_npu} needs torch {needed}, here is {torch}",
                      f"torch_npu {torch_npu} 需要 torch {needed}，当前为 {torch}"),
                Words(f"pip install torch=={needed}", f"pip install torch=={needed}"),
            )
        )  # fmt: skip
    if "+cu" in torch:
        found.append(
            error(
                "versions", "clash",
                Words(f"torch {torch} is built for CUDA: two accelerators cannot be used at the same time",
                      f"torch {torch} 是 CUDA 版本：不能同时使用两种加速器"),
                Words(f"pip install torch=={compatibility.public(torch)} from the CPU index of PyTorch",
                      f"从 PyTorch 的 CPU 源安装 torch=={compatibility.public(torch)}"),
            )
        )  # fmt: skip
    cann = None if seen.cann is None else seen.cann.version
    if cann is None:
        return found
    release = compatibility.release_of(torch_npu)
    verdict = compatibility.cann_fits(cann, torch_npu)
    if release is None:
        found.append(
            warning(
                "versions", "unverified",
                Words(f"torch_npu {torch_npu} with CANN {cann}: not in our table, unverified",
                      f"torch_npu {torch_npu} 与 CANN {cann}：不在我们的配套表中，未验证"),
                MATRIX,
            )
        )  # fmt: skip
    elif verdict == "older":
        found.append(
            error(
                "versions", "clash",
                Words(f"torch_npu {torch_npu} (release {release.release}) needs CANN {release.cann}, here is {cann}",
                      f"torch_npu {torch_npu}（{release.release}）需要 CANN {release.cann}，当前为 {cann}"),
                Words(f"install CANN {release.cann}, or the torch_npu of CANN {cann}; {MATRIX.en}",
                      f"安装 CANN {release.cann}，或与 CANN {cann} 配套的 torch_npu；{MATRIX.zh}"),
            )
        )  # fmt: skip
    elif verdict == "newer":
        found.append(
            warning(
                "versions", "clash",
                Words(f"torch_npu {torch_npu} is tested with CANN {release.cann}, here is the newer {cann}",
                      f"torch_npu {torch_npu} 的配套版本为 CANN {release.cann}，当前为更新的 {cann}"),
                Words(f"install the torch_npu of CANN {cann}; {MATRIX.en}",
                      f"安装与 CANN {cann} 配套的 torch_npu；{MATRIX.zh}"),
            )
        )  # fmt: skip
    elif not found:
        text = f"torch_npu {torch_npu} fits torch {torch} and CANN {cann} (release {release.release})"
        zh = f"torch_npu {torch_npu} 与 torch {torch}、CANN {cann} 配套（{release.release}）"
        found.append(ok("versions", text, zh))
    return found


def _cuda(torch: str, inventory: Inventory, machine: Machine) -> Line:
    gpus = [device for device in inventory.devices if device.type == "cuda"]
    if gpus:
        names = ", ".join(dict.fromkeys(device.name or "?" for device in gpus))
        return ok("cuda", f"{len(gpus)} x {names}", f"{len(gpus)} x {names}")
    if machine.tool("nvidia-smi") is not None and "+cpu" in torch:
        return warning(
            "cuda", "clash",
            Words(f"there is an NVIDIA driver, but torch {torch} is built for the CPU only",
                  f"有 NVIDIA 驱动，但 torch {torch} 仅支持 CPU"),
            Words("install a CUDA build of torch", "安装 CUDA 版 torch"),
        )  # fmt: skip
    return missing(
        "cuda", Words("No CUDA device; baseline collectors limited to CPU", "没有 CUDA 设备；基线采集仅限 CPU")
    )
