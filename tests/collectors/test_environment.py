"""What is recorded of the environment: the allow-list, without folders, addresses, people and hosts."""

from __future__ import annotations

import getpass
import platform
import socket

import pytest

from ascend_perf.collectors import environment


def test_only_variables_of_the_allow_list_are_recorded() -> None:
    seen = environment.environment({
        "OMP_NUM_THREADS": "4",
        "HCCL_BUFFSIZE": "200",
        "HCCL_IF_IP": "10.1.2.3",
        "HCCL_WHITELIST_FILE": "/etc/list",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/home/someone",
    })  # fmt: skip

    assert seen == {"HCCL_BUFFSIZE": "200", "OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/usr/local/Ascend/cann-8.5.0", "cann-8.5.0"),
        ("/home/ann/lib/libjemalloc.so.2:/opt/libx.so", "libjemalloc.so.2:libx.so"),
        ("expandable_segments:True,max_split_size_mb:128", "expandable_segments:True,max_split_size_mb:128"),
        ("1,npu0:0-19", "1,npu0:0-19"),
        ("=eth0,10.20.30.40:50000", "=eth0,<address>:50000"),
        ("fe80:0:0:1::2", "<address>::2"),
        ("level0:NA;level1:ring", "level0:NA;level1:ring"),
    ],
)
def test_folders_and_addresses_are_masked(text: str, masked: str) -> None:
    assert environment.masked(text) == masked


def test_user_and_host_are_masked_as_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")

    assert environment.masked("ann@node-17 annual") == "<user>@<host> annual"


def test_a_machine_without_user_names_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", absent)

    assert environment.masked("plain") == "plain"


def test_versions_hold_what_is_installed_and_nothing_else() -> None:
    seen = environment.versions()

    assert seen["python"] == platform.python_version()
    assert "torch_npu" not in seen or seen["torch_npu"]
    assert platform.node() not in seen.values()
