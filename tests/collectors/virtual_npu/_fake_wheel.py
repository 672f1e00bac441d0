"""A small wheel that is named and laid out like torch-npu's, and a Python whose pip hands it out."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ascend_perf.collectors.virtual_npu.wheel import Interpreter

MACHINE = platform.machine()
FILES: Mapping[str, bytes] = {
    "torch_npu/__init__.py": b"name = 'torch_npu'\n",
    "torch_npu/lib/libtorch_npu.so": b"\x7fELF and so on",
    "torch_npu/version.py": b"__version__ = '2.9.9'\n",
}


def wheel_name(version: str = "2.9.9", tag: str = "cp311", machine: str = MACHINE) -> str:
    return f"torch_npu-{version}-{tag}-{tag}-manylinux_2_28_{machine}.whl"


def make_wheel(
    folder: Path, files: Mapping[str, bytes] = FILES, *, name: str = "", wrong: str = "", record: bool = True
) -> Path:
    """Write a wheel; the file `wrong` gets another hash in RECORD than it has."""
    path = folder / (name or wheel_name())
    lines = []
    for member, content in files.items():
        digest = hashlib.sha256(content + (b"!" if member == wrong else b"")).digest()
        lines.append(f"{member},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(content)}")
    info = "torch_npu-2.9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        if record:
            archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return path


PIP = """#!/bin/sh
echo "$@" >> "{calls}"
while [ $# -gt 0 ]; do
  if [ "$1" = --dest ]; then shift; target="$1"; fi
  shift
done
{action}
"""


def interpreter_with_pip(folder: Path, action: str, *, has_pip: bool = True, torch: str = "2.9.9+cpu") -> Interpreter:
    """An interpreter that is a shell script: `-m pip download` notes its arguments in `calls`, then does `action`."""
    script = folder / "python"
    script.write_text(PIP.format(calls=folder / "calls", action=action), "utf-8")
    os.chmod(script, 0o755)
    return Interpreter(
        executable=script, python="3.11.7", python_tag="cp311", abi_tag="cp311", machine=MACHINE, torch=torch,
        torch_folder=folder / "torch", has_pip=has_pip,
    )  # fmt: skip


def pip_calls(folder: Path) -> list[str]:
    calls = folder / "calls"
    return calls.read_text("utf-8").splitlines() if calls.exists() else []
