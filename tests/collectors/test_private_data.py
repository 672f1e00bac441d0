"""Private data is masked wherever it stands; what is needed for help stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors.private_data import COMMON_NAMES, Masks

VARIABLES = {"USER": "mzhang",
    "HOME": "/home/mzhang", "HOSTNAME": "npu-node-17.lab.example.org", "MASTER_ADDR": "trainer-0"}


def masks() -> Masks:
    return Masks(VARIABLES, user="mzhang", host="npu-node-17")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("mzhang@npu-node-17:~$ python train.py", "<user>@<host>:~$ python train.py"),
        ("/home/mzhang/job/train.py:12", "train.py:12"),
        ("owner mzhang, host npu-node-17.lab.example.org", "owner <user>, host <host>"),
        ("/home/other.name/x.py by other.name", "x.py by <user>"),
        ("connect to trainer-0:29500", "connect to <host>:29500"),
        ("peer 10.20.30.40:16666 and fe80::1c2d:3eff:fe4f:5a6b", "peer <address>:16666 and <address>"),
        ("00:1A:2b:3c:4D:5e", "<address>"),
        ("host=node-42.corp.example.com, up", "host=<host>, up"),
        ('"server_id":"node-7","host_ip":"10.0.0.1"', '"server_id":"<host>","host_ip":"<address>"'),
        ("rdzv_endpoint: gpu17.cluster.local:29400", "rdzv_endpoint: <host>:29400"),
        ("export HF_TOKEN=hf_abcdefghijklmnop", "export HF_TOKEN=<secret>"),
        ('"api_key": "1234567890", x', '"api_key": "<secret>", x'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer <secret>"),
        ("git clone https://bob:pass@git.corp.example/a/b.git", "git clone https://<host>"),
        ("http://127.0.0.1:8082/metrics", "http://<host>:8082/metrics".removesuffix("/metrics")),
        ("mail me: ann.lee@example.com", "mail me: <mail>"),
        ("Serial Number                  : 1023470015", "Serial Number                  : <serial>"),
        (r"C:\Users\Anna\models\a.onnx", "a.onnx"),
        ("--model /data/models/qwen/config.json", "--model config.json"),
        (r"no \\server\somebody\x.bin", "no x.bin"),
        ("no ~somebody/x, no ../../home/somebody/y", "no x, no y"),
        ("cannot connect to [node17.example]:29500", "cannot connect to <host>:29500"),
        ("AKIAIOSFODNN7EXAMPLE", "<secret>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "<secret>"),
    ],
)
def test_private_data_is_masked(text: str, masked: str) -> None:
    assert masks().of(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "[ERROR] HCCL(4812,python3):2026-04-07-10:15:32.881.245 EI0006: timeout",
        "RuntimeError: Expected one of cpu, cuda, npu device type at start of device string: npu",
        "torch 2.9.0.post2, CANN 8.3.RC1, driver 25.2.0",
        "firmware 7.8.0.1.220 (V100R001C25SPC002B220)",
        "2026-04-07 10:15:32 iteration 20/2000 | lm loss: 9.871204E+00",
        "HCCL_ALGO=level0:NA;level1:ring",
        "tokens/s: 5321.8 | mfu: 0.41",
        "host: 12.5 ms, node: 3, hostname=localhost",
        "retcode: 7, data_size(Bytes): | aveg_time(us):",
        "torch::jit::Module std::vector",
        "pad_token_id 2, a ~ b, 1/2, aten::mul at 3:4",
        r"shape [2, 3]\n",
    ],
)
def test_what_is_needed_for_help_stays(text: str) -> None:
    assert masks().of(text) == text


PARTS = ("{u}", "{h}", "/home/{u}/run.log", "{u}@{h}", "at {h}:8000", "step 1", "='{u}'")


@given(
    # Hypothesis draws constants of our own code too, and with them the words that are no names (see below).
    st.text(alphabet="abcdefghijklmnop", min_size=5, max_size=12).filter(lambda user: user not in COMMON_NAMES),
    st.text(alphabet="qrstuvwxyz-", min_size=5, max_size=12), st.lists(st.sampled_from(PARTS), max_size=8),
)  # fmt: skip
def test_names_of_user_and_host_never_survive(user: str, host: str, parts: list[str]) -> None:
    host = f"n{host.strip('-')}9"
    text = " ".join(parts).format(u=user, h=host)

    said = Masks({"USER": user, "HOSTNAME": host}).of(text)

    assert user not in said
    assert host not in said
    assert said.count("step 1") == parts.count("step 1")


@pytest.mark.parametrize("user", sorted(COMMON_NAMES - {"localhost"}))
def test_common_words_are_no_names(user: str) -> None:
    text = f"{user} of the tree on localhost"

    assert Masks({"USER": user, "HOSTNAME": "localhost"}).of(text) == text
