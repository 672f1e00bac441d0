"""The set-up on the real torch-npu wheel, fetched as a user's is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, build, prepare, signatures, variables
from ascend_perf.collectors.virtual_npu.call_sites import read_call_sites
from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.collectors.virtual_npu.wheel import Site, interpreter_of
from tests._virtual_npu import ready_npu

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def npu() -> Prepared:
    return ready_npu()


def site_of(npu: Prepared) -> Site:
    return Site(folder=npu.site, version=npu.torch_npu_version, hash="")


def test_the_second_time_there_is_nothing_to_do(npu: Prepared) -> None:
    said: list[str] = []
    again = prepare(VirtualNpu(), said.append)
    assert said == []
    assert set(again.seconds) == {"look"}
    assert replace(again, seconds=npu.seconds) == npu


def test_the_wheel_fits_the_installed_torch_and_is_not_installed(npu: Prepared) -> None:
    assert npu.torch_npu_version.split(".")[:3] == npu.torch_version.partition("+")[0].split(".")[:3]
    assert npu.site not in map(Path, sys.path)
    assert (npu.site / "torch_npu" / "__init__.py").is_file()


def test_every_operator_and_every_import_of_the_wheel_is_supplied(npu: Prepared) -> None:
    needs = build.needs_of(site_of(npu), interpreter_of(Path(sys.executable)))
    assert len(needs.operators) > 900
    assert [name for name, kinds in needs.operators.items() if kinds is None] == []
    assert {"aclrtMalloc", "aclrtCreateStreamWithConfig", "MsprofRegisterCallback"} <= set(needs.functions)
    made = Elf(npu.libraries / build.MAIN_LIBRARY).defined
    assert set(needs.functions) <= made
    assert {f"{name}{half}" for name in needs.operators for half in ("", "GetWorkspaceSize")} <= made


@pytest.mark.slow
def test_the_table_is_what_the_wheel_s_own_calls_say(npu: Prepared) -> None:
    """The library is read once more. The few that its calls leave open are known from elsewhere."""
    rows = signatures.table().rows
    settled = read_call_sites(Elf(site_of(npu).main_library)).settled()
    assert len(settled) > 800
    assert {name: kinds for name, kinds in settled.items() if rows[name].kinds != kinds} == {}


TRAINS = """
import torch, torch_npu
x = torch.ones(2, 3, device="npu")
print(torch.npu.get_device_name(0), torch.npu.device_count())
try:
    x + x
    torch.npu.synchronize()
    print("went through")
except RuntimeError as problem:
    print("161002" in str(problem), "aclnnAdd" in str(problem))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "said"), [("", "went through"), ("tst", "True True"), ("ttstt", "True True")])
def test_a_wrong_table_stops_the_run_with_the_operator_s_name(
    npu: Prepared, tmp_path: Path, wrong: str, said: str
) -> None:
    home = npu.home
    if wrong:
        needs = build.needs_of(site_of(npu), interpreter_of(Path(sys.executable)))
        home = tmp_path / "home"
        home.mkdir()
        compiler = build.find_compiler()
        assert compiler is not None
        changed = replace(needs, operators={**needs.operators, "aclnnAdd": wrong})
        build.build(home, changed, compiler, build_id="a wrong table")
    environment = variables(VirtualNpu(), replace(npu, home=home, libraries=home / "lib64"), tmp_path)
    done = subprocess.run(
        [str(npu.python), "-c", TRAINS], env={**os.environ, **environment, "TASK_QUEUE_ENABLE": "0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Ascend910B2 8", said]
    assert ("aclnnAdd of torch_npu (a wrong table)" in done.stderr) == bool(wrong)
