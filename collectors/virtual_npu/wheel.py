"""The torch-npu wheel that fits an interpreter: from the cache, from a given file, or fetched by pip.

pip runs as the user set it up (index, proxy, certificates) and only downloads; nothing is installed anywhere. The
wheel is unpacked into a folder of the cache, each file checked against the wheel's own RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ascend_perf.collectors.virtual_npu import _interpreter_facts
from ascend_perf.collectors.virtual_npu._cache import file_hash, locked, new_folder
from ascend_perf.device.compatibility import torch_of
from ascend_perf.errors import InputError, MachineError

Say = Callable[[str], None]

MACHINES: Final = ("x86_64", "aarch64")
MAX_FILES: Final = 50_000
MAX_BYTES: Final = 4 << 30
COMPLETE: Final = "complete.json"
_INSTALLED_NAMES: Final = {"yaml": "pyyaml"}

_WHEEL: Final = re.compile(
    r"torch_npu-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_NO_NETWORK: Final = re.compile(
    r"Retrying \(|connection broken|Connection(Error| refused)|Temporary failure in name resolution|ProxyError|"
    r"Max retries exceeded|Network is unreachable|Could not fetch URL|SSLError|Read timed out|is being ignored"
)

NO_CUDA_BUILD_FROM: Final = (2, 13, 0)
"""From this torch on, a CUDA build and torch_npu cannot be in one process: both register settings of the allocator by
the same name (pinned_reserve_segment_size_mb), which torch refuses. Source: c10/core/AllocatorConfig.h, and seen with
2.13.0; older ones were not tried."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that the child runs in."""

    executable: Path
    python: str
    python_tag: str
    """cp311"""
    abi_tag: str
    machine: str
    torch: str
    """Its torch, as installed (2.13.0+cpu)."""
    torch_folder: Path
    has_pip: bool

    @property
    def torch_release(self) -> str:
        """The first three numbers of its torch: torch-npu of the same numbers fits."""
        return torch_of(self.torch) or self.torch


@dataclass(frozen=True, kw_only=True)
class Site:
    """An unpacked wheel."""

    folder: Path
    """For PYTHONPATH: holds torch_npu."""
    version: str
    hash: str
    """SHA-256 over the wheel's libraries, as its RECORD has them."""

    @property
    def package(self) -> Path:
        return self.folder / "torch_npu"

    @property
    def main_library(self) -> Path:
        return self.package / "lib" / "libtorch_npu.so"

    def libraries(self) -> list[Path]:
        """Libraries that `import torch_npu` loads."""
        lib = self.package / "lib"
        found = [self.main_library, *(lib / name for name in ("libnpu_profiler.so", "libtensorpipe.so"))]
        return [path for path in (*found, *sorted(self.package.glob("_C*.so"))) if path.is_file()]


def interpreter_of(python: Path) -> Interpreter:
    """Facts about an interpreter, which is asked in a process of its own unless it is this one.

    Raises:
        MachineError: it does not run, is no CPython on Linux, or lacks torch, numpy or pyyaml.
    """
    facts: dict[str, Any] = _interpreter_facts.facts() if str(python) == sys.executable else _ask(python)
    name = python.name
    if facts["system"] != "Linux" or facts["machine"] not in MACHINES or facts["implementation"] != "CPython":
        raise MachineError(
            f"the virtual NPU runs in CPython on Linux (x86_64, aarch64), not in {facts['implementation']} on "
            f"{facts['system']} {facts['machine']}",
            hint="run it in a Linux container",
        )
    if not facts["torch"]:
        raise MachineError(
            f"{name} has no torch", hint="pip install torch (the CPU build is enough: kernels compute nothing)"
        )
    release = torch_of(str(facts["torch"]))
    if release is None:
        raise MachineError(f"torch {facts['torch']} has no version number that torch-npu could be chosen by")
    if facts["is_cuda_build"] and tuple(map(int, release.split("."))) >= NO_CUDA_BUILD_FROM:
        raise MachineError(
            f"torch {facts['torch']} of {name} is a CUDA build, in which torch_npu ends the process as it is imported",
            hint="install the CPU build of the same torch, into a virtual environment of its own; pytorch.org names "
            "the command",
        )
    if facts["missing"]:
        packages = " ".join(_INSTALLED_NAMES.get(module, module) for module in facts["missing"])
        raise MachineError(f"torch_npu needs {packages}, which {name} does not have", hint=f"pip install {packages}")
    return Interpreter(
        executable=python, python=facts["python"], python_tag=facts["python_tag"], abi_tag=facts["abi_tag"],
        machine=facts["machine"], torch=facts["torch"], torch_folder=Path(facts["torch_folder"]),
        has_pip=bool(facts["has_pip"]),
    )  # fmt: skip


def site_for(interpreter: Interpreter, cache: Path, wheel: Path | None, say: Say, seconds: dict[str, float]) -> Site:
    """The unpacked wheel for an interpreter.

    Args:
        wheel: a wheel file to take; None: the cache, else pip.
        say: gets a line for what takes time.
        seconds: gets `fetch` and `unpack`, when they were done.

    Raises:
        MachineError: there is no fitting wheel, or it cannot be fetched or unpacked.
        InputError: the given wheel is no torch-npu wheel for this interpreter, or damaged.
    """
    if wheel is not None:
        _check_given(wheel, interpreter)
    ready = _ready(interpreter, cache, wheel)
    if ready is not None:
        return ready
    with locked(cache, say):
        ready = _ready(interpreter, cache, wheel)  # another process may have made it while we waited
        if ready is not None:
            return ready
        kept = wheel or _kept(interpreter, cache)
        if kept is None:
            kept = _fetch(interpreter, cache, say, seconds)
        elif wheel is None:
            say(f"the unpacked copy of {kept.name} is damaged: unpacking it again")
        return _unpack(kept, cache, say, seconds)


def _ask(python: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), _interpreter_facts.__file__], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as problem:
        raise MachineError(f"{python.name} cannot be run: {problem.strerror}") from problem
    try:
        facts = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        facts = None
    if done.returncode or not isinstance(facts, dict):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MachineError(f"{python.name} does not say what it is: {last[:200]}", hint="is it a Python interpreter?")
    return facts


def _check_given(wheel: Path, interpreter: Interpreter) -> None:
    found = _WHEEL.fullmatch(wheel.name)
    if found is None:
        raise InputError(
            f"{wheel.name} is not named as a torch-npu wheel",
            hint="keep its name: torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        )
    if not wheel.is_file():
        raise InputError(f"{wheel.name} is not there")
    if torch_of(found["version"]) != interpreter.torch_release:
        raise InputError(
            f"{wheel.name} is for torch {torch_of(found['version'])}, but {interpreter.executable.name} has torch "
            f"{interpreter.torch}",
            hint="the first three numbers must be equal",
        )
    if not _fits(wheel.name, interpreter):
        raise InputError(
            f"{wheel.name} is not for {interpreter.abi_tag} on {interpreter.machine}",
            hint=f"take the wheel whose name holds {interpreter.abi_tag} and {interpreter.machine}",
        )


def _fits(name: str, interpreter: Interpreter) -> bool:
    found = _WHEEL.fullmatch(name)
    return (
        found is not None
        and torch_of(found["version"]) == interpreter.torch_release
        and interpreter.python_tag in found["python"].split(".")
        and interpreter.abi_tag in found["abi"].split(".")
        and found["platform"].endswith(interpreter.machine)
    )


def _ready(interpreter: Interpreter, cache: Path, wheel: Path | None) -> Site | None:
    """The newest unpacked wheel of the cache that fits and is whole; of `wheel`, when one is given."""
    wanted = f"{wheel.stem}-{file_hash(wheel)[:12]}" if wheel else None
    for folder in _folders(interpreter, cache):
        if wanted in (None, folder.name):
            site = _whole(folder)
            if site is not None:
                return site
    return None


def _folders(interpreter: Interpreter, cache: Path) -> list[Path]:
    """Folders of fitting wheels in the cache, the highest version first."""
    found = [folder for folder in cache.glob("wheels/*") if _fits(f"{folder.name.rpartition('-')[0]}.whl", interpreter)]
    return sorted(found, key=lambda folder: (_order(folder.name.split("-")[1]), folder.name), reverse=True)


def _order(version: str) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
    """Key of a torch-npu version: 2.9.0rc1 < 2.9.0 < 2.9.0.post2 < 2.9.0.post10."""
    release = re.match(r"[0-9.]*[0-9]", version)
    end = release.end() if release else 0
    numbers = tuple(map(int, re.findall(r"\d{1,9}", version[:end])))
    rest = version[end:]
    return numbers, not rest or "post" in rest, tuple(map(int, re.findall(r"\d{1,9}", rest)))


def _kept(interpreter: Interpreter, cache: Path) -> Path | None:
    """A wheel file of the cache whose unpacked copy was lost."""
    for folder in _folders(interpreter, cache):
        for wheel in folder.glob("*.whl"):
            if file_hash(wheel).startswith(folder.name.rpartition("-")[2]):
                return wheel
    return None


def _whole(folder: Path) -> Site | None:
    """The unpacked wheel of a folder, None when a file is missing or not what it was.

    Sizes and times of change are looked at; a file whose time differs (a copied cache) is hashed.
    """
    try:
        told = json.loads((folder / COMPLETE).read_text("utf-8"))
        version, of_libraries = str(told["version"]), str(told["hash"])
        for name, (size, changed_ns, digest) in told["files"].items():
            path = folder / "site" / name
            state = path.stat()
            if state.st_size != size or (state.st_mtime_ns != changed_ns and _record_hash(path) != digest):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Site(folder=folder / "site", version=version, hash=of_libraries)


def _fetch(interpreter: Interpreter, cache: Path, say: Say, seconds: dict[str, float]) -> Path:
    """Let pip download the wheel into a temporary folder of the cache."""
    if not interpreter.has_pip:
        raise MachineError(
            f"{interpreter.executable.name} has no pip to fetch torch-npu with",
            hint=f"python -m ensurepip; or fetch the wheel elsewhere and give it: {_OFFLINE}",
        )
    release = interpreter.torch_release
    say(f"fetching torch-npu for torch {release} with pip (about 45 MB, once, not installed)")
    began = time.perf_counter()
    target = cache / "unfinished-fetch"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    done = subprocess.run(
        [
            str(interpreter.executable), "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=2",
            "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(target),
            f"torch-npu=={release}.*",
        ],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    wheels = [path for path in target.glob("*.whl") if _fits(path.name, interpreter)]
    if done.returncode or not wheels:
        raise _pip_failed(done.stdout + done.stderr, interpreter)
    seconds["fetch"] = time.perf_counter() - began
    say(f"fetched {wheels[0].name} ({wheels[0].stat().st_size / 1e6:.1f} MB) in {seconds['fetch']:.1f} s")
    return wheels[0]


_OFFLINE: Final = "--wheel FILE, or ASCEND_PERF_TORCH_NPU_WHEEL=FILE"


def _pip_failed(said: str, interpreter: Interpreter) -> MachineError:
    release = interpreter.torch_release
    if "No space left on device" in said:
        return MachineError(
            "no space is left to fetch torch-npu (45 MB packed, 150 MB unpacked)",
            hint="free some, or name another folder: ASCEND_PERF_CACHE=/folder/with/space",
        )
    if _NO_NETWORK.search(said):
        return MachineError(
            f"torch-npu for torch {release} is not in the cache and pip cannot reach its package index",
            hint=f"connect once, or fetch the wheel elsewhere and give it: {_OFFLINE}",
        )
    offered = re.search(r"\(from versions: ([^)]*)\)", said)
    if offered is not None:
        versions = [text.strip() for text in offered[1].split(",") if text.strip() not in ("", "none")]
        if not versions:
            return MachineError(
                f"pip's package index has no torch-npu wheel for Python {interpreter.python} on {interpreter.machine}",
                hint="take a Python that torch-npu is built for (3.10 to 3.13), or an index that has it",
            )
        known = sorted({torch_of(v) or v for v in versions}, key=_order)
        return MachineError(
            f"there is no torch-npu wheel for torch {release} and Python {interpreter.python}",
            hint=f"install a torch that has one: {', '.join(known[-8:])}",
        )
    lines = [line for line in said.strip().splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return MachineError(
        f"pip could not fetch torch-npu for torch {release}: {errors[-1].removeprefix('ERROR:').strip()[:300]}",
        hint=f"try it by hand: python -m pip download --no-deps torch-npu=={release}.*; then {_OFFLINE}",
    )


def _unpack(wheel: Path, cache: Path, say: Say, seconds: dict[str, float]) -> Site:
    """Unpack a wheel into the cache, each file checked; the wheel itself is kept beside it for repairs."""
    began = time.perf_counter()
    digest = file_hash(wheel)
    final = cache / "wheels" / f"{wheel.stem}-{digest[:12]}"
    found = _WHEEL.fullmatch(wheel.name)
    assert found is not None
    with new_folder(cache, final) as folder:
        shutil.copyfile(wheel, folder / wheel.name)
        try:
            files = _extract(folder / wheel.name, folder / "site")
        except (zipfile.BadZipFile, EOFError, KeyError, ValueError, NotImplementedError, RuntimeError) as problem:
            raise InputError(f"{wheel.name} is damaged: {problem}", hint="fetch it again") from problem
        libraries = {name: entry[2] for name, entry in files.items() if name.endswith(".so")}
        if "torch_npu/lib/libtorch_npu.so" not in libraries:
            raise InputError(f"{wheel.name} holds no torch_npu/lib/libtorch_npu.so")
        text = json.dumps({
            "wheel": wheel.name, "sha256": digest, "version": found["version"],
            "hash": hashlib.sha256(json.dumps(sorted(libraries.items())).encode()).hexdigest(), "files": files,
        })  # fmt: skip
        (folder / COMPLETE).write_text(text, "utf-8")
    seconds["unpack"] = time.perf_counter() - began
    size = sum(int(entry[0]) for entry in files.values())
    say(f"unpacked {len(files)} files ({size / 1e6:.0f} MB) in {seconds['unpack']:.1f} s")
    site = _whole(final)
    if site is None:
        raise MachineError(f"{wheel.name} was unpacked but cannot be read back", hint="is the disk sound?")
    return site


def _extract(wheel: Path, target: Path) -> dict[str, tuple[int, int, str]]:
    """Unpack; {name: (size, time of change in ns, hash as in RECORD)}. ValueError for what a wheel must not hold."""
    files: dict[str, tuple[int, int, str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_BYTES:
            raise ValueError("it holds more than a torch-npu wheel does")
        records = [entry.filename for entry in entries if re.fullmatch(r"[^/]+\.dist-info/RECORD", entry.filename)]
        if len(records) != 1:
            raise ValueError("it has no RECORD")
        rows = csv.reader(archive.read(records[0]).decode("utf-8").splitlines())
        hashes = {row[0]: row[1].removeprefix("sha256=") for row in rows if len(row) == 3 and row[1]}
        for entry in entries:
            name = PurePosixPath(entry.filename)
            if name.is_absolute() or ".." in name.parts or "\\" in entry.filename:
                raise ValueError("a file in it would land outside of its folder")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with archive.open(entry) as source, path.open("wb") as sink:
                while block := source.read(1 << 20):
                    digest.update(block)
                    sink.write(block)
            seen = _encoded(digest.digest())
            # The index changed METADATA of torch-npu 2.5.1 and not RECORD; pip takes it, and nothing of it runs.
            is_about = name.parts[0].endswith(".dist-info")
            if entry.filename in hashes and seen != hashes[entry.filename] and not is_about:
                raise ValueError(f"{name.name} is not what RECORD says")
            if entry.filename not in hashes and entry.filename.endswith(".so"):
                raise ValueError(f"RECORD does not know {name.name}")
            state = path.stat()
            files[entry.filename] = (state.st_size, state.st_mtime_ns, seen)
    return files


def _record_hash(path: Path) -> str:
    return _encoded(bytes.fromhex(file_hash(path)))


def _encoded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
