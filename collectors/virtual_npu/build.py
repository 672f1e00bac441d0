"""The stand-in CANN libraries for one torch-npu wheel: generated, compiled and kept in the cache.

What is needed is read from the wheel: functions that its libraries import and nobody but CANN defines, and the aclnn
operators that it looks up by name. The hand-written C defines what has to do something; every other import gets a
function that returns 0, every operator gets its two entry points. All of it is libascendcl.so; the other names that
torch_npu loads are links to that file.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend_perf.collectors.virtual_npu import call_sites, elf, signatures
from ascend_perf.collectors.virtual_npu._cache import file_hash, locked, new_folder, prune, used
from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.collectors.virtual_npu.wheel import COMPLETE, Interpreter, Site
from ascend_perf.errors import MachineError

Say = Callable[[str], None]

NATIVE: Final = Path(__file__).parent / "native"
MAIN_LIBRARY: Final = "libascendcl.so"
OTHER_LIBRARIES: Final = (
    # imported
    "libacl_op_compiler.so", "libacl_tdt_channel.so", "libge_runner.so", "libgraph.so", "libhccl.so",
    # opened by name while torch_npu runs
    "libopapi.so", "libopapi_math.so", "libopapi_nn.so", "libopapi_cv.so", "libopapi_transformer.so",
    "libmsprofiler.so", "libnnopbase.so", "libascend_hal.so", "libms_tools_ext.so", "libhcomm.so",
)  # fmt: skip
LOG: Final = "build.log"
HOME_FOLDERS: Final = ("lib64", "runtime", "compiler", "opp")
"""What torch_npu looks for in an installation of CANN (ASCEND_HOME_PATH) before it starts."""

_FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-fno-strict-aliasing")
_SYSTEM: Final = (
    "libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1",
)  # fmt: skip
_C_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Libraries that are complete."""

    home: Path
    """Stands in for an installation of CANN (ASCEND_HOME_PATH)."""
    hash: str

    @property
    def folder(self) -> Path:
        """For LD_LIBRARY_PATH."""
        return self.home / "lib64"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a wheel wants from CANN."""

    functions: tuple[str, ...]
    operators: Mapping[str, str | None]
    """Operator -> kinds of its arguments; None: nobody knows them."""
    from_calls: tuple[str, ...] = ()
    """Operators that the table does not have and whose calls in this wheel say their kinds."""
    disputed: tuple[str, ...] = ()
    """Operators whose calls in this wheel seem to say something else than the table, which is gone by."""


def libraries_for(
    site: Site, interpreter: Interpreter, cache: Path, say: Say, seconds: dict[str, float]
) -> Libraries:
    """Libraries for the wheel in `site`, from the cache or built now.

    Raises:
        MachineError: there is no C compiler, it fails, or the cache cannot be written.
    """
    compiler = find_compiler()
    source = source_hash(site, interpreter)
    key = f"{source}-{_identity(compiler)}" if compiler else None
    ready = _ready(cache, source, key)
    if ready is not None:
        return ready
    if compiler is None:
        raise MachineError(
            "the virtual NPU builds small C libraries once, and there is no C compiler",
            hint="apt-get install gcc libc6-dev (or dnf install gcc glibc-devel)",
        )
    assert key is not None
    with locked(cache, say):
        ready = _ready(cache, source, key)
        if ready is not None:
            return ready
        say(f"building the stand-in CANN libraries for torch-npu {site.version} (once)")
        began = time.perf_counter()
        with new_folder(cache, cache / "libraries" / key) as folder:
            needs = needs_of(site, interpreter)
            build(folder, needs, compiler, build_id=f"torch_npu {site.version} {source}", notes=_notes(needs, site))
            told = {MAIN_LIBRARY: file_hash(folder / "lib64" / MAIN_LIBRARY)}
            (folder / COMPLETE).write_text(json.dumps(told), "utf-8")
        prune(cache, f"libraries/*/{COMPLETE}")
        seconds["build"] = time.perf_counter() - began
        unknown = sum(kinds is None for kinds in needs.operators.values())
        more = f"; a run stops at {unknown} of them, whose arguments nobody knows: {LOG}" if unknown else ""
        say(f"built them in {seconds['build']:.1f} s ({len(needs.operators)} operators{more})")
    ready = _ready(cache, source, key)
    if ready is None:
        raise MachineError("the libraries were built but cannot be read back", hint="is the disk sound?")
    return ready


def find_compiler() -> str | None:
    """The C compiler: CC, else gcc, else cc."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def source_hash(site: Site, interpreter: Interpreter) -> str:
    """Hash over all that the libraries are made from, but for the compiler."""
    digest = hashlib.sha256(f"{site.hash} {interpreter.torch} {interpreter.machine}".encode())
    for path in (*sources(), Path(__file__), Path(elf.__file__), Path(call_sites.__file__), signatures.FILE):
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources() -> list[Path]:
    """Hand-written C, headers and assembler, sorted."""
    return sorted(path for path in NATIVE.iterdir() if path.suffix in {".c", ".h", ".S"})


def needs_of(site: Site, interpreter: Interpreter) -> Needs:
    """What the libraries of a wheel want from CANN."""
    libraries = [Elf(path) for path in site.libraries()]
    torch = (Elf(path) for path in sorted((interpreter.torch_folder / "lib").glob("*.so*")) if path.is_file())
    functions = wanted_functions(libraries, torch)
    main = Elf(site.main_library)
    rows = signatures.table().rows
    names = call_sites.operators_of(main)
    kinds: dict[str, str | None] = {name: rows[name].kinds if name in rows else None for name in names}
    settled: dict[str, str] = {}
    if site.version not in signatures.table().versions:
        # CANN does not change an operator, so the table holds for versions that it was not checked with; what it does
        # not have, the calls of this very wheel may say.
        settled = call_sites.read_call_sites(main).settled()
    found = {name: told for name, told in settled.items() if name in kinds and kinds[name] is None}
    disputed = [name for name, told in settled.items() if kinds.get(name) not in (None, told)]
    return Needs(functions=functions, operators=kinds | found, from_calls=tuple(sorted(found)),
                 disputed=tuple(sorted(disputed)))  # fmt: skip


def wanted_functions(libraries: Sequence[Elf], others: Iterable[Elf]) -> tuple[str, ...]:
    """Functions that `libraries` import and that neither they, `others`, Python nor the system define."""
    wanted = set().union(*(library.unversioned for library in libraries))
    wanted -= set().union(*(library.defined for library in libraries))
    for other in others:
        wanted -= other.defined
    wanted = {name for name in wanted if not name.startswith(("Py", "_Py"))}
    return tuple(sorted(wanted - _defined_by_system(wanted)))


def _defined_by_system(names: Iterable[str]) -> set[str]:
    loaded = []
    for name in _SYSTEM:
        try:
            loaded.append(ctypes.CDLL(name))
        except OSError:
            continue  # not in every system; what it would define is in libc there
    return {name for name in names if any(hasattr(library, name) for library in loaded)}


def build(
    folder: Path,
    needs: Needs,
    compiler: str,
    *,
    build_id: str,
    native: Path | None = None,
    machine: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Compile the libraries into `folder`, laid out like an installation of CANN.

    Args:
        native: folder of the hand-written C; None: ours.
        machine: x86_64 or aarch64; "": this one.

    Raises:
        MachineError: the compiler fails; the message has its last lines.
    """
    native, machine = native or NATIVE, machine or os.uname().machine
    for name in (*HOME_FOLDERS, "work"):
        (folder / name).mkdir()
    work, target = folder / "work", folder / "lib64"
    (work / "operators.c").write_text(table_source(needs.operators, build_id), "utf-8")
    (work / "operators.S").write_text(trampoline_source(needs.operators, machine), "utf-8")
    sources = [*sorted(native.glob("*.c")), work / "operators.c", work / "operators.S"]
    include = ("-I", str(native))
    # A source of the same stem in both places must not overwrite the other's object.
    objects = [work / f"{i}_{source.stem}.o" for i, source in enumerate(sources)]
    commands = [
        (compiler, *_FLAGS, *include, "-c", "-o", str(made), str(source))
        for source, made in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        list(pool.map(_run, commands))
    defined = set().union(*(Elf(path).defined for path in objects))
    rest = [name for name in needs.functions if name not in defined]
    (work / "rest.c").write_text(zero_source(rest), "utf-8")
    link = (
        compiler, *_FLAGS, "-shared", f"-Wl,-soname,{MAIN_LIBRARY}", "-o", str(target / MAIN_LIBRARY),
        *map(str, objects), str(work / "rest.c"), "-lpthread", "-lm", "-ldl",
    )  # fmt: skip
    _run(link)
    for name in OTHER_LIBRARIES:
        (target / name).symlink_to(MAIN_LIBRARY)
    unknown = [name for name, kinds in needs.operators.items() if kinds is None]
    (folder / LOG).write_text(
        "\n".join([
            build_id,
            *notes,
            f"functions of CANN that the wheel imports: {len(needs.functions)}",
            f"of these, made to return 0: {len(rest)}",
            *(f"  {name}" for name in rest),
            f"operators: {len(needs.operators)}; with unknown arguments: {len(unknown)}",
            *(f"  {name}" for name in sorted(unknown)),
            "",
        ]),
        "utf-8",
    )
    shutil.rmtree(work)


def table_source(operators: Mapping[str, str | None], build_id: str) -> str:
    """C source of the table of operators, sorted by name."""
    rows = [
        f'    {{"{_name(name)}", {"NULL" if kinds is None else json.dumps(kinds)}}},'
        for name, kinds in sorted(operators.items())
    ]
    return "\n".join([
        "#include <stddef.h>",
        '#include "virtual_npu.h"',
        "const vn_signature vn_signatures[] = {",
        *rows,
        "    {NULL, NULL},",
        "};",
        f"const int vn_signature_count = {len(rows)};",
        f"const char vn_build_id[] = {json.dumps(build_id)};",
        "",
    ])


def trampoline_source(operators: Iterable[str], machine: str) -> str:
    """Assembler source of the entry points. A row of the table is two pointers."""
    lines = [f'#include "trampoline_{machine}.S"']
    lines += [f"    OPERATOR {_name(name)}, {16 * row}" for row, name in enumerate(sorted(operators))]
    return "\n".join(lines) + "\n"


def zero_source(names: Iterable[str]) -> str:
    """C source of functions that return 0, whatever they are given."""
    lines = ["/* Imported by the wheel, with nothing to do here. */"]
    for number, name in enumerate(names):
        if _C_NAME.fullmatch(name) is None:
            raise MachineError(f"the wheel imports a symbol that no C compiler takes: {name[:80]!r}")
        # By its label: the C name could be one that the compiler knows and checks the type of.
        lines.append(f'long vn_zero_{number}(void) __asm__("{name}");')
        lines.append(f"long vn_zero_{number}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def _name(name: str) -> str:
    if _C_NAME.fullmatch(name) is None:
        raise MachineError(f"an operator of the wheel has a name that is none: {name[:80]!r}")
    return name


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        problem = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-3:]
        if "No space left on device" in done.stderr:
            raise MachineError(
                "no space is left to build the libraries of the virtual NPU",
                hint="free some, also in the folder for temporary files (TMPDIR)",
            )
        if "No such file or directory" in done.stderr and ".h:" in done.stderr:
            raise MachineError(
                f"the C compiler finds no headers: {problem[0][-200:]}", hint="apt-get install libc6-dev"
            )
        raise MachineError(
            f"the C compiler failed on the libraries of the virtual NPU: {' | '.join(problem[:3])[-400:]}",
            hint="try another: CC=gcc-12",
        )


def _identity(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return hashlib.sha256(done.stdout.partition("\n")[0].encode()).hexdigest()[:8]


def _ready(cache: Path, source: str, key: str | None) -> Libraries | None:
    """A whole folder of libraries; without a compiler any that was made from the same sources."""
    for folder in sorted((cache / "libraries").glob(key or f"{source}-*")):
        used(folder / COMPLETE)  # first: who prunes must not take it away now
        try:
            told = json.loads((folder / COMPLETE).read_text("utf-8"))
            whole = all((folder / name).is_dir() for name in HOME_FOLDERS)
            whole = whole and all((folder / "lib64" / name).exists() for name in OTHER_LIBRARIES)
            if whole and told[MAIN_LIBRARY] == file_hash(folder / "lib64" / MAIN_LIBRARY):
                return Libraries(home=folder, hash=folder.name)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged: it is built again
    return None


def _notes(needs: Needs, site: Site) -> list[str]:
    checked = signatures.table().versions
    if site.version in checked:
        return []
    return [
        f"signatures.csv was checked with torch_npu {', '.join(checked)}, not with {site.version}: the calls in this "
        f"wheel were read; {len(needs.from_calls)} operators are taken from them",
        *(f"  {name}: {needs.operators[name]}" for name in needs.from_calls),
        f"operators whose calls do not look like the table: {len(needs.disputed)}",
        *(f"  {name}" for name in needs.disputed),
    ]
