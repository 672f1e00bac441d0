"""Settings of a virtual NPU, its configuration file and what a child gets in its environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, cache_folder, variables
from ascend_perf.collectors.virtual_npu import environment as environment_module
from ascend_perf.collectors.virtual_npu.build import Libraries
from ascend_perf.collectors.virtual_npu.environment import WHEEL_VARIABLE, config_text, prepare
from ascend_perf.collectors.virtual_npu.wheel import Interpreter, Site
from ascend_perf.errors import UsageError


def prepared(folder: Path) -> Prepared:
    return Prepared(
        site=folder / "site", libraries=folder / "home" / "lib64", home=folder / "home", torch_npu_version="2.13.0",
        torch_version="2.13.0+cpu", python=Path("/usr/bin/python3"), library_hash="abc", seconds={},
    )  # fmt: skip


def test_the_defaults_are_one_910b2_of_a_node_of_eight() -> None:
    settings = VirtualNpu()
    assert settings.memory_bytes == 64 * 2**30
    assert settings.device_count == 8
    assert settings.links() == (196e9, 25e9)
    assert settings.device_name == "Ascend910B2 (virtual)"


@pytest.mark.parametrize(
    ("world", "per_node", "devices"), [(1, 8, 8), (2, 8, 2), (8, 8, 8), (64, 8, 8), (64, 16, 16), (384, 384, 32)]
)
def test_a_process_sees_the_devices_of_its_node(world: int, per_node: int, devices: int) -> None:
    assert VirtualNpu(world_size=world, ranks_per_node=per_node).device_count == devices


def test_given_figures_win() -> None:
    settings = VirtualNpu(hbm_bytes=123, link_bytes_per_s=5e9, node_link_bytes_per_s=1e9)
    assert settings.memory_bytes == 123
    assert settings.links() == (5e9, 1e9)


def test_memory_that_nobody_knows_must_be_given() -> None:
    with pytest.raises(UsageError, match="memory of Ascend910B2C is not known"):
        _ = VirtualNpu(soc="Ascend910B2C").memory_bytes
    assert VirtualNpu(soc="Ascend910B2C", hbm_bytes=7).memory_bytes == 7


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"soc": "H100"}, "no chip named 'H100'"),
        ({"clock": "sundial"}, "wall or modelled"),
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 100_000_000}, "world_size is 100000000, expected 131072 at most"),
        ({"hbm_bytes": 1 << 60}, "expected 70368744177664 at most"),
        ({"ranks_per_node": -1}, "ranks_per_node is -1"),
        ({"hbm_bytes": 2.5}, "hbm_bytes is 2.5"),
        ({"world_size": True}, "world_size is True"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s"),
        ({"node_link_bytes_per_s": float("inf")}, "node_link_bytes_per_s"),
        ({"link_bytes_per_s": float("nan")}, "link_bytes_per_s"),
        ({"faults": {"meteor": [(1.0,)]}}, "no fault named 'meteor'"),
        ({"faults": {"slow_rank": [(1.5,)]}}, "takes 2 values, not 1"),
        ({"faults": {"op_factor": [("aclnnAdd\tx", 2.0)]}}, "a tab or a line break"),
        ({"faults": {"slow_link": [(-1.0,)]}}, "at least 0"),
        ({"faults": {"op_factor": [("aclnnAdd", "fast")]}}, "at least 0"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError) as failed:
        VirtualNpu(**wrong)  # type: ignore[arg-type]
    assert what in failed.value.what


def test_the_fingerprint_follows_what_the_device_does() -> None:
    base = VirtualNpu()
    assert base.fingerprint() == VirtualNpu(wheel=Path("a.whl")).fingerprint()
    others = [
        VirtualNpu(soc="Ascend910B4"), VirtualNpu(world_size=2), VirtualNpu(ranks_per_node=16), VirtualNpu(hbm_bytes=1),
        VirtualNpu(clock="modelled"), VirtualNpu(faults={"slow_link": [(2.0,)]}), VirtualNpu(link_bytes_per_s=1.0),
    ]  # fmt: skip
    assert len({one.fingerprint() for one in (base, *others)}) == 8


def test_the_configuration_file(tmp_path: Path) -> None:
    settings = VirtualNpu(
        world_size=16, hbm_bytes=1000, clock="modelled", link_bytes_per_s=2e9, node_link_bytes_per_s=1e9,
        faults={"slow_rank": [(3, 1.5)], "op_factor": [("aclnnMatmul", 2.0), ("aclnnAdd", 0.5)]},
    )  # fmt: skip
    text = config_text(
        settings, tmp_path, processes=2, host_launch_ns=1500, cost_lines=["value\tx\t1.0", "op\t*\tother"]
    )
    assert text.splitlines() == [
        "version\t1", "soc\tAscend910B2", "device_count\t8", "world_size\t16", "ranks_per_node\t8", "hbm_bytes\t1000",
        "link_bytes_per_s\t2000000000", "node_link_bytes_per_s\t1000000000", "clock\tmodelled", f"record\t{tmp_path}",
        "processes\t2", f"meet\t{tmp_path}/meet", "host_launch_ns\t1500", "cube_cores\t24",
        "vector_cores\t48", "l2_bytes\t201326592", "cost\tvalue\tx\t1.0", "cost\top\t*\tother",
        "fault\top_factor\taclnnMatmul\t2.0", "fault\top_factor\taclnnAdd\t0.5", "fault\tslow_rank\t3\t1.5",
    ]  # fmt: skip


@pytest.mark.parametrize(("processes", "line"), [(None, "processes\tself"), ("env", "processes\tenv")])
def test_how_many_processes_there_are(tmp_path: Path, processes: str | None, line: str) -> None:
    assert line in config_text(VirtualNpu(), tmp_path, processes=processes).splitlines()  # type: ignore[arg-type]


def test_a_folder_that_would_break_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a tab or a line break"):
        config_text(VirtualNpu(), tmp_path / "a\tb")


def test_variables_of_a_child(tmp_path: Path) -> None:
    base = {"PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/lib:/more", "HOME": "/home/x"}
    found = variables(VirtualNpu(), prepared(tmp_path), tmp_path, base=base)
    assert found == {
        "ASCEND_PERF_VIRTUAL_NPU": str(tmp_path / "virtual_npu.tsv"),
        "PYTHONPATH": f"{tmp_path}/site:/mine",
        "LD_LIBRARY_PATH": f"{tmp_path}/home/lib64:/lib:/more",
        "ASCEND_HOME_PATH": f"{tmp_path}/home",
        "ASCEND_OPP_PATH": f"{tmp_path}/home/opp",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }
    assert (tmp_path / "virtual_npu.tsv").read_text("utf-8") == config_text(VirtualNpu(), tmp_path)
    alone = variables(VirtualNpu(), prepared(tmp_path), tmp_path, base={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert alone["PYTHONPATH"] == f"{tmp_path}/site"
    assert alone["LD_LIBRARY_PATH"] == f"{tmp_path}/home/lib64"
    assert alone["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"ASCEND_PERF_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/virtual-npu"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/ascend-perf/virtual-npu"),
        ({}, f"{Path.home()}/.cache/ascend-perf/virtual-npu"),
        ({"ASCEND_PERF_CACHE": "", "XDG_CACHE_HOME": ""}, f"{Path.home()}/.cache/ascend-perf/virtual-npu"),
    ],
)
def test_where_the_cache_is(given: dict[str, str], folder: str) -> None:
    assert str(cache_folder(given)) == folder


@pytest.mark.parametrize(
    ("setting", "variable", "taken"), [(None, None, None), (None, "b.whl", "b.whl"), ("a.whl", "b.whl", "a.whl")]
)
def test_the_wheel_of_the_settings_goes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, variable: str | None, taken: str | None
) -> None:
    given: list[Path | None] = []

    def interpreter_of(python: Path) -> Interpreter:
        return Interpreter(
            executable=python, python="3.11.7", python_tag="cp311", abi_tag="cp311", machine=os.uname().machine,
            torch="2.9.9+cpu", torch_folder=tmp_path, has_pip=True,
        )  # fmt: skip

    def site_for(_: Interpreter, cache: Path, wheel: Path | None, *__: object) -> Site:
        assert cache == tmp_path / "virtual-npu"
        given.append(wheel)
        return Site(folder=tmp_path / "site", version="2.9.9.post1", hash="0")

    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path))
    if variable is None:
        monkeypatch.delenv(WHEEL_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(WHEEL_VARIABLE, variable)
    monkeypatch.setattr(environment_module, "interpreter_of", interpreter_of)
    monkeypatch.setattr(environment_module, "site_for", site_for)
    monkeypatch.setattr(
        environment_module, "libraries_for", lambda *_: Libraries(home=tmp_path / "home", hash="0-1")
    )

    ready = prepare(VirtualNpu(wheel=Path(setting) if setting else None), python="/opt/python")

    assert given == [Path(taken) if taken else None]
    assert (ready.torch_npu_version, ready.torch_version, ready.python) == (
        "2.9.9.post1", "2.9.9+cpu", Path("/opt/python"),
    )  # fmt: skip
    assert (ready.libraries, ready.library_hash) == (tmp_path / "home" / "lib64", "0-1")
