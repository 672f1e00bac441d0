"""The wheel in its cache: fetched once, checked, repaired; what is said when there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import _cache, wheel
from ascend_perf.collectors.virtual_npu.wheel import Site, interpreter_of, site_for
from ascend_perf.errors import InputError, MachineError
from tests.collectors.virtual_npu._fake_wheel import (
    FILES,
    MACHINE,
    interpreter_with_pip,
    make_wheel,
    pip_calls,
    wheel_name,
)


def quiet(_: str) -> None:
    return None


@pytest.fixture
def copying(tmp_path: Path) -> wheel.Interpreter:
    """Its pip finds the wheel."""
    (tmp_path / "index").mkdir()
    made = make_wheel(tmp_path / "index")
    return interpreter_with_pip(tmp_path, f'cp "{made}" "$target"')


def contents(site: Site) -> dict[str, bytes]:
    return {name: (site.folder / name).read_bytes() for name in FILES}


def test_it_is_fetched_and_unpacked_once(tmp_path: Path, copying: wheel.Interpreter) -> None:
    said: list[str] = []
    seconds: dict[str, float] = {}
    first = site_for(copying, tmp_path / "cache", None, said.append, seconds)

    assert contents(first) == FILES
    assert first.version == "2.9.9"
    assert set(seconds) == {"fetch", "unpack"}
    assert "torch 2.9.9" in said[0]
    assert said[1].startswith(f"fetched {wheel_name()} (0.0 MB) in")
    assert said[2].startswith("unpacked 4 files (0 MB) in")

    said.clear()
    seconds.clear()
    second = site_for(copying, tmp_path / "cache", None, said.append, seconds)

    assert second == first
    assert (said, seconds) == ([], {})
    (call,) = pip_calls(tmp_path)
    assert call.startswith("-m pip download --no-deps --only-binary=:all:")
    assert call.endswith("torch-npu==2.9.9.*")
    assert not list((tmp_path / "cache").glob("unfinished-*"))


@pytest.mark.parametrize("damage", ["changed", "shorter", "gone", "marker", "site"])
def test_a_damaged_copy_is_unpacked_again_without_network(
    tmp_path: Path, copying: wheel.Interpreter, damage: str
) -> None:
    site = site_for(copying, tmp_path / "cache", None, quiet, {})
    victim = site.folder / "torch_npu" / "__init__.py"
    if damage == "changed":
        victim.write_bytes(b"N" + FILES["torch_npu/__init__.py"][1:])
        os.utime(victim, ns=(1, 1))
    elif damage == "shorter":
        victim.write_bytes(b"x")
    elif damage == "gone":
        victim.unlink()
    elif damage == "marker":
        (site.folder.parent / wheel.COMPLETE).write_text("{", "utf-8")
    else:
        shutil.rmtree(site.folder)

    said: list[str] = []
    again = site_for(copying, tmp_path / "cache", None, said.append, {})

    assert contents(again) == FILES
    assert again.hash == site.hash
    assert "damaged" in said[0]
    assert len(pip_calls(tmp_path)) == 1


def test_a_copied_cache_has_other_times_and_stays_good(tmp_path: Path, copying: wheel.Interpreter) -> None:
    site = site_for(copying, tmp_path / "cache", None, quiet, {})
    for name in FILES:
        os.utime(site.folder / name, ns=(10**18, 10**18))
    said: list[str] = []
    assert site_for(copying, tmp_path / "cache", None, said.append, {}) == site
    assert said == []


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    made = make_wheel(tmp_path)
    interpreter = interpreter_with_pip(tmp_path, f'sleep 0.3; cp "{made}" "$target"')
    said: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        sites = list(pool.map(lambda _: site_for(interpreter, tmp_path / "cache", None, said.append, {}), range(2)))
    assert sites[0] == sites[1]
    assert len(pip_calls(tmp_path)) == 1


def test_what_a_killed_run_left_is_removed(tmp_path: Path, copying: wheel.Interpreter) -> None:
    left = tmp_path / "cache" / f"{_cache.TEMPORARY}abc"
    left.mkdir(parents=True)
    (left / "half").write_text("x", "utf-8")
    site_for(copying, tmp_path / "cache", None, quiet, {})
    assert not left.exists()


def test_a_given_wheel_needs_no_pip(tmp_path: Path) -> None:
    interpreter = interpreter_with_pip(tmp_path, "exit 1", has_pip=False)
    given = make_wheel(tmp_path)
    site = site_for(interpreter, tmp_path / "cache", given, quiet, {})
    assert contents(site) == FILES
    given.unlink()
    assert site_for(interpreter, tmp_path / "cache", None, quiet, {}) == site
    assert pip_calls(tmp_path) == []


def test_another_given_wheel_of_the_same_name_is_another(tmp_path: Path) -> None:
    interpreter = interpreter_with_pip(tmp_path, "exit 1")
    first = site_for(interpreter, tmp_path / "cache", make_wheel(tmp_path), quiet, {})
    changed = {**FILES, "torch_npu/lib/libtorch_npu.so": b"\x7fELF, patched"}
    second = site_for(interpreter, tmp_path / "cache", make_wheel(tmp_path, changed), quiet, {})
    assert first.folder != second.folder
    assert first.hash != second.hash
    assert contents(second) == changed


def test_the_highest_version_of_the_cache_is_taken(tmp_path: Path) -> None:
    interpreter = interpreter_with_pip(tmp_path, "exit 1")
    for version in ("2.9.9", "2.9.9.post2", "2.9.9.post10", "2.9.9rc1"):
        site_for(interpreter, tmp_path / "cache", make_wheel(tmp_path, name=wheel_name(version)), quiet, {})
    assert site_for(interpreter, tmp_path / "cache", None, quiet, {}).version == "2.9.9.post10"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("torch_npu.whl", "not named as a torch-npu wheel"),
        (wheel_name("2.8.0"), "is for torch 2.8.0, but python has torch 2.9.9"),
        (wheel_name(tag="cp312"), f"is not for cp311 on {MACHINE}"),
        (wheel_name(machine="riscv64"), f"is not for cp311 on {MACHINE}"),
    ],
)
def test_a_given_wheel_that_does_not_fit(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        site_for(
            interpreter_with_pip(tmp_path, "exit 1"), tmp_path / "cache", make_wheel(tmp_path, name=name), quiet, {}
        )


def test_a_given_wheel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        site_for(interpreter_with_pip(tmp_path, "exit 1"), tmp_path / "cache", tmp_path / wheel_name(), quiet, {})


NONE_FOUND = "ERROR: No matching distribution found for torch-npu==2.9.9.*"


@pytest.mark.parametrize(
    ("said", "what", "hint"),
    [
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\\n"
            "ERROR: Could not find a version that satisfies the requirement (from versions: none)\\n" + NONE_FOUND,
            "cannot reach its package index", "--wheel FILE",
        ),
        (
            "WARNING: The repository located at x is not a trusted or secure host and is being ignored.\\n"
            "ERROR: Could not find a version that satisfies the requirement (from versions: none)\\n" + NONE_FOUND,
            "cannot reach its package index", "--wheel FILE",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement torch-npu==2.9.9.* "
            "(from versions: 2.1.0.post8, 2.8.0, 2.8.0.post2, 2.10.0)\\n" + NONE_FOUND,
            "no torch-npu wheel for torch 2.9.9 and Python 3.11.7", "2.1.0, 2.8.0, 2.10.0",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement (from versions: none)\\n" + NONE_FOUND,
            f"no torch-npu wheel for Python 3.11.7 on {MACHINE}", "Python",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "no space is left", "ASCEND_PERF_CACHE",
        ),
        ("ERROR: Something new went wrong", "Something new went wrong", "by hand"),
        ("", "it said nothing", "by hand"),
    ],
)  # fmt: skip
def test_what_pip_says_becomes_an_error_with_a_cure(tmp_path: Path, said: str, what: str, hint: str) -> None:
    interpreter = interpreter_with_pip(tmp_path, f"printf '%b\\n' \"{said}\" >&2; exit 1")
    with pytest.raises(MachineError) as failed:
        site_for(interpreter, tmp_path / "cache", None, quiet, {})
    assert what in failed.value.what
    assert hint in failed.value.hint
    assert not list((tmp_path / "cache").glob("unfinished-*"))


def test_a_wheel_for_another_python_from_pip_is_not_taken(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, name=wheel_name(tag="cp312"))
    with pytest.raises(MachineError):
        site_for(interpreter_with_pip(tmp_path, f'cp "{made}" "$target"'), tmp_path / "cache", None, quiet, {})


def test_no_pip(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="has no pip") as failed:
        site_for(interpreter_with_pip(tmp_path, "exit 1", has_pip=False), tmp_path / "cache", None, quiet, {})
    assert "ensurepip" in failed.value.hint


@pytest.mark.parametrize(
    ("files", "wrong", "what"),
    [
        (FILES, "torch_npu/version.py", r"version\.py is not what RECORD says"),
        ({"torch_npu/__init__.py": b""}, "", r"holds no torch_npu/lib/libtorch_npu\.so"),
        ({**FILES, "../outside.py": b""}, "", "outside of its folder"),
        ({**FILES, "/tmp/outside.py": b""}, "", "outside of its folder"),
    ],
)
def test_a_wheel_that_is_not_sound_is_refused(
    tmp_path: Path, files: dict[str, bytes], wrong: str, what: str
) -> None:
    interpreter = interpreter_with_pip(tmp_path, "exit 1")
    with pytest.raises(InputError, match=what):
        site_for(interpreter, tmp_path / "cache", make_wheel(tmp_path, files, wrong=wrong), quiet, {})
    assert not list((tmp_path / "cache").glob("wheels/*"))
    assert not (tmp_path / "outside.py").exists()


def test_what_is_said_about_a_wheel_may_differ_from_record(tmp_path: Path) -> None:
    """As in torch-npu 2.5.1, whose METADATA the index has changed; pip takes it."""
    about = "torch_npu-2.9.9.dist-info/METADATA"
    made = make_wheel(tmp_path, {**FILES, about: b"Version: 2.9.9\n"}, wrong=about)
    site = site_for(interpreter_with_pip(tmp_path, "exit 1"), tmp_path / "cache", made, quiet, {})
    assert (site.folder / about).read_bytes() == b"Version: 2.9.9\n"


def test_a_wheel_without_record_and_one_that_is_cut_off(tmp_path: Path) -> None:
    interpreter = interpreter_with_pip(tmp_path, "exit 1")
    with pytest.raises(InputError, match="has no RECORD"):
        site_for(interpreter, tmp_path / "cache", make_wheel(tmp_path, record=False), quiet, {})
    whole = make_wheel(tmp_path)
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(InputError, match="is damaged"):
        site_for(interpreter, tmp_path / "cache", whole, quiet, {})


def test_a_wheel_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="more than a torch-npu wheel does"):
        site_for(interpreter_with_pip(tmp_path, "exit 1"), tmp_path / "cache", make_wheel(tmp_path), quiet, {})


def test_a_full_disk_while_unpacking(
    tmp_path: Path, copying: wheel.Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel, "_extract", full)
    with pytest.raises(MachineError, match="no space is left") as failed:
        site_for(copying, tmp_path / "cache", None, quiet, {})
    assert "ASCEND_PERF_CACHE" in failed.value.hint
    monkeypatch.undo()
    assert contents(site_for(copying, tmp_path / "cache", None, quiet, {})) == FILES


def test_a_cache_that_cannot_be_written(tmp_path: Path, copying: wheel.Interpreter) -> None:
    (tmp_path / "cache").write_text("a file", "utf-8")
    with pytest.raises(MachineError, match="cannot be written"):
        site_for(copying, tmp_path / "cache", None, quiet, {})


def test_a_cache_that_cannot_be_made(
    tmp_path: Path, copying: wheel.Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:  # as below /proc
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(MachineError, match="cannot be made: No such file or directory") as failed:
        site_for(copying, tmp_path / "cache", None, quiet, {})
    assert "ASCEND_PERF_CACHE" in failed.value.hint


def test_this_interpreter() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    found = interpreter_of(Path(sys.executable))
    assert found.python_tag == f"cp3{sys.version_info[1]}"
    assert (found.torch_folder / "lib").is_dir()
    assert found.torch.startswith(found.torch_release)
    assert found.machine == MACHINE


FACTS = {
    "implementation": "CPython", "python": "3.11.7", "python_tag": "cp311", "abi_tag": "cp311", "system": "Linux",
    "machine": "x86_64", "torch": "2.9.9+cpu", "torch_folder": "/opt/torch", "missing": [], "has_pip": True,
    "is_cuda_build": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "what", "hint"),
    [
        ({"torch": None}, "python has no torch", "pip install torch"),
        ({"missing": ["numpy", "yaml"]}, "needs numpy pyyaml", "pip install numpy pyyaml"),
        ({"system": "Darwin", "machine": "arm64"}, "not in CPython on Darwin arm64", "container"),
        ({"implementation": "PyPy"}, "not in PyPy", "container"),
        ({"torch": "nightly"}, "torch nightly has no version number", ""),
        ({"torch": "2.13.0", "is_cuda_build": True}, "torch 2.13.0 of python is a CUDA build", "install the CPU build"),
    ],
)
def test_what_an_interpreter_lacks(tmp_path: Path, changed: dict[str, object], what: str, hint: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho a greeting\necho '{json.dumps({**FACTS, **changed})}'\n", "utf-8")
    python.chmod(0o755)
    with pytest.raises(MachineError) as failed:
        interpreter_of(python)
    assert what in failed.value.what
    assert hint in failed.value.hint


def test_another_interpreter_is_asked_in_its_own_process(tmp_path: Path) -> None:
    python = tmp_path / "python"
    older = {**FACTS, "is_cuda_build": True}  # of torch 2.9
    python.write_text(f"#!/bin/sh\necho '{json.dumps(older)}'\n", "utf-8")
    python.chmod(0o755)
    found = interpreter_of(python)
    assert (found.torch, found.torch_release, found.torch_folder) == ("2.9.9+cpu", "2.9.9", Path("/opt/torch"))


@pytest.mark.parametrize("content", ["exit 3", "echo no facts here", "echo '[1]'"])
def test_what_is_no_interpreter(tmp_path: Path, content: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{content}\n", "utf-8")
    python.chmod(0o755)
    with pytest.raises(MachineError, match="does not say what it is"):
        interpreter_of(python)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be run"):
        interpreter_of(tmp_path / "python9")
