"""Versions and environment variables of a run: what a reader needs to repeat it, without names of people or hosts."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from collections.abc import Mapping
from typing import Final

from ascend_perf import __version__
from ascend_perf.collectors.devices import installed_version

PACKAGES: Final = ("torch", "torch_npu", "numpy", "pillow", "psutil", "triton")

ALLOWED: Final = frozenset({
    "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_LAUNCH_BLOCKING",
    "TASK_QUEUE_ENABLE", "PER_STREAM_QUEUE", "CPU_AFFINITY_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "MULTI_STREAM_MEMORY_REUSE", "STREAMS_PER_DEVICE", "COMBINED_ENABLE",
    "INF_NAN_MODE_ENABLE", "ACL_OP_COMPILER_CACHE_MODE", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
    "ASCEND_ENHANCE_ENABLE", "OOM_SNAPSHOT_ENABLE", "P2P_HCCL_BUFFSIZE",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_LOGS",
    "LD_PRELOAD", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
})  # fmt: skip
"""Variables that change what is measured. Source: format reference for collectors, sections 2.2 and 5.6."""

ALLOWED_PREFIXES: Final = ("HCCL_", "NCCL_", "VLLM_")
DENIED: Final = frozenset({"HCCL_IF_IP", "HCCL_WHITELIST_FILE", "NCCL_HOSTID", "VLLM_HOST_IP", "VLLM_API_KEY"})
"""They hold addresses, host names, secrets or paths and tell nothing about speed."""
VIRTUAL_NPU: Final = "ASCEND_PERF_VIRTUAL_NPU"
"""Set in a process that runs on a virtual NPU."""
SIMULATED_FILE: Final = "ASCEND_PERF_SIMULATED_FILE"
"""Path of the file that a program of ours makes as soon as it simulates: who started it takes figures from its log, and
must know what they are."""
_SECRET: Final = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)(?:_|$)")

_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^/\s:;,]+/)*(?=[^/\s:;,]*)")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b")


def versions() -> dict[str, str]:
    """Version per package or tool that is installed; imports nothing that is not imported already."""
    found: dict[str, str | None] = {
        "ascend-perf": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        **{package: installed_version(package) for package in PACKAGES},
    }
    return {name: version for name, version in found.items() if version}


def backend_versions() -> dict[str, str]:
    """Versions that torch itself knows: CUDA, ROCm, cuDNN, CANN. Imports torch."""
    import torch

    found: dict[str, object] = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "cann")}
    found["cudnn"] = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {name: str(version) for name, version in found.items() if version and version != "not known"}


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of the allow-list that are set; folders, addresses, user and host names are masked."""
    variables = os.environ if variables is None else variables
    # On a virtual NPU it names what stands in for CANN, which tells a reader nothing.
    left_out = DENIED | {"ASCEND_HOME_PATH"} if VIRTUAL_NPU in variables else DENIED
    allowed = (name for name in variables if name in ALLOWED or name.startswith(ALLOWED_PREFIXES))
    return {
        name: masked(variables[name])
        for name in sorted(allowed) if name not in left_out and not _SECRET.search(name)
    }  # fmt: skip


def masked(text: str) -> str:
    """`text` with the folders of absolute paths, network addresses, the user and the host taken out."""
    text = _FOLDERS.sub("", text)
    text = _ADDRESS.sub("<address>", text)
    for name, mask in ((_user(), "<user>"), (socket.gethostname(), "<host>")):
        if len(name) > 2:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", mask, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no entry in the user database, as in many containers
        return ""
