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


OF_THE_REFERENCE = (
    "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_LAUNCH_BLOCKING",
    "TASK_QUEUE_ENABLE", "PER_STREAM_QUEUE", "CPU_AFFINITY_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "MULTI_STREAM_MEMORY_REUSE", "STREAMS_PER_DEVICE", "COMBINED_ENABLE", "INF_NAN_MODE_ENABLE",
    "ACL_OP_COMPILER_CACHE_MODE", "HCCL_ALGO", "HCCL_BUFFSIZE", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "P2P_HCCL_BUFFSIZE",
    "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS", "VLLM_USE_V1", "TORCH_DEVICE_BACKEND_AUTOLOAD", "LD_PRELOAD",
    "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY", "ASCEND_ENHANCE_ENABLE", "OOM_SNAPSHOT_ENABLE",
)  # fmt: skip


def test_every_variable_that_the_reference_wants_is_recorded() -> None:
    assert sorted(environment.environment(dict.fromkeys(OF_THE_REFERENCE, "1"))) == sorted(OF_THE_REFERENCE)


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_S3_SECRET", "HCCL_MY_TOKEN"])
def test_secrets_among_them_are_not(name: str) -> None:
    assert environment.environment({name: "s3cret"}) == {}


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


def test_what_stands_in_for_cann_is_no_fact_of_a_run() -> None:
    variables = {"ASCEND_HOME_PATH": "/cache/5ac1", "TASK_QUEUE_ENABLE": "2"}
    assert environment.environment(variables) == {"ASCEND_HOME_PATH": "5ac1", "TASK_QUEUE_ENABLE": "2"}
    assert environment.environment({**variables, "ASCEND_PERF_VIRTUAL_NPU": "/x/config"}) == {"TASK_QUEUE_ENABLE": "2"}
