"""Environment variables of a launch: wrong forms are refused with the right one, right forms are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.device import launch_settings
from ascend_perf.device.launch_settings import HCCL_LEVELS, check_environment, default_of, known_variables, spoilers
from ascend_perf.errors import UsageError
from ascend_perf.reports.phrases import phrase
from ascend_perf.workloads._launch_settings import refuse_wrong
from ascend_perf.workloads._spec import load_workloads

RULES = Path(__file__).parents[2] / "analyzers" / "rules"


@pytest.mark.parametrize(
    ("name", "value", "right", "said"),
    [
        # The invalid settings of the source articles.
        ("HCCL_ALGO", "Ring", "HCCL_ALGO=level0:NA;level1:ring", "the form is level0:NA;level1:<algorithm>"),
        (
            "NPU_MEMORY_OPTIMIZE", "1", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
            "no such variable, it is ignored",
        ),
        (
            "HCCL_PROTOCOL", "PCIE",
            "HCCL_INTRA_PCIE_ENABLE, HCCL_INTRA_ROCE_ENABLE (Box16 class) or HCCL_INTER_HCCS_DISABLE (A3)",
            "PCIe is the slowest path",
        ),
        ("HCCL_RDAM_TC", "132", "HCCL_RDMA_TC=132", "misspelling in a public tool"),
        # Forms of algorithms.
        ("HCCL_ALGO", "h-d_r", "HCCL_ALGO=level0:NA;level1:H-D_R", "the form is"),
        ("HCCL_ALGO", "level1:ring", "HCCL_ALGO=level0:NA;level1:ring", "level0 and level1 are both needed"),
        ("HCCL_ALGO", "level0:NA;level1:RING", "HCCL_ALGO=level0:NA;level1:ring", "case counts"),
        ("HCCL_ALGO", "level0:ring;level1:NHR", "HCCL_ALGO=level0:NA;level1:ring", "level0 must be one of NA"),
        (
            "HCCL_ALGO", "level0:NA;level1:NHR;level2:pairwise", "HCCL_ALGO=level0:NA;level1:NHR;level2:ring",
            "level2 must be one of ring",
        ),
        (
            "HCCL_ALGO", "allreduce=level0:NA;level1:ring/level0:NA;level1:NHR",
            "HCCL_ALGO=allreduce=level0:NA;level1:ring/others=level0:NA;level1:NHR", "needs its collective",
        ),
        ("HCCL_ALGO", "AllReduce=level0:NA;level1:ring", "HCCL_ALGO=allreduce=level0:NA;level1:ring", "allreduce="),
        # Numbers and words.
        ("TASK_QUEUE_ENABLE", "3", "TASK_QUEUE_ENABLE=1", "must be one of 0, 1, 2"),
        ("HCCL_RDMA_TC", "130", "HCCL_RDMA_TC=128", "from 0 to 255, a multiple of 4"),
        ("HCCL_RDMA_SL", "1000", "HCCL_RDMA_SL=7", "from 0 to 7"),
        ("HCCL_BUFFSIZE", "0", "HCCL_BUFFSIZE=1", "whole number from 1"),
        ("HCCL_BUFFSIZE", "200MB", "HCCL_BUFFSIZE=1", "whole number from 1"),
        ("HCCL_CONNECT_TIMEOUT", "60", "HCCL_CONNECT_TIMEOUT=120", "from 120 to 7200"),
        ("HCCL_DETERMINISTIC", "True", "HCCL_DETERMINISTIC=true", "false, true, strict"),
        ("HCCL_OP_EXPANSION_MODE", "aiv", "HCCL_OP_EXPANSION_MODE=AIV", "must be one of HOST"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0, 1", "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3", "not of the form 0,1,2,3"),
        ("ASCEND_RT_VISIBLE_DEVICES", "1,0,3", "ASCEND_RT_VISIBLE_DEVICES=0,1,3", "in ascending order"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0,1,1", "ASCEND_RT_VISIBLE_DEVICES=0,1", "each once"),
        ("CPU_AFFINITY_CONF", "fine", "CPU_AFFINITY_CONF=1", "not of the form <0|1|2>"),
        ("CPU_AFFINITY_CONF", "2,force=1", "CPU_AFFINITY_CONF=2", "not of the form <0|1|2>"),
        # The allocator.
        (
            "PYTORCH_NPU_ALLOC_CONF", "expandable_segments=True", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:",
            "is not key:value of",
        ),
        (
            "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:true", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
            "expandable_segments must be one of True, False",
        ),
        (
            "PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:20", "PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:21",
            "max_split_size_mb must be a whole number from 21",
        ),
        (
            "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:256",
            "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "does not work together with max_split_size_mb",
        ),
        # Names.
        ("TASK_QUEUE_ENABEL", "2", "TASK_QUEUE_ENABLE=2", "did you mean TASK_QUEUE_ENABLE?"),
        ("HCCL_BUFSIZE", "400", "HCCL_BUFFSIZE=400", "did you mean HCCL_BUFFSIZE?"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_the_right_form(name: str, value: str, right: str, said: str) -> None:
    (problem,) = check_environment({name: value}, "npu")
    assert problem.level == "error"
    assert said in problem.words.en
    assert re.search(r"[\u4e00-\u9fff]", problem.words.zh)
    assert problem.right == right or (right.endswith(":") and problem.right.startswith(right))
    with pytest.raises(UsageError) as caught:
        refuse_wrong({name: value}, "npu")
    assert caught.value.hint == f"write {problem.right}"


@pytest.mark.parametrize(
    "variables",
    [
        {"HCCL_ALGO": "level0:NA;level1:H-D_R;level2:NHR"},
        {"HCCL_ALGO": "allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:NHR/others=level0:NA;level1:NB"},
        {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:256,garbage_collection_threshold:0.8"},
        {"PYTORCH_NPU_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:8],page_size:1g"},
        {"CPU_AFFINITY_CONF": "2,force:1,npu_affine:1,npu0:0-19"},
        # The line of public training scripts.
        {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
            "TASK_QUEUE_ENABLE": "2", "CPU_AFFINITY_CONF": "1", "HCCL_CONNECT_TIMEOUT": "1800",
            "HCCL_EXEC_TIMEOUT": "3600", "HCCL_BUFFSIZE": "400", "NPU_ASD_ENABLE": "0", "STREAMS_PER_DEVICE": "32",
            "MULTI_STREAM_MEMORY_REUSE": "2",
        },
        {"HOME": "/root", "MY_TASK": "x", "PATH": "/bin", "NCCL_ALGO": "Ring", "TORCH_LOGS": "+dynamo"},
    ],
)  # fmt: skip
def test_right_settings_are_not_refused(variables: dict[str, str]) -> None:
    assert [problem for problem in check_environment(variables, "npu") if problem.level == "error"] == []


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("HCCL_OP_EXPANSION_MODE", "AIV", {"910", "A2", "A3", "950", "310P", None}),
        ("HCCL_OP_EXPANSION_MODE", "HOST", {"910", "A2", "310P", None}),
        ("HCCL_OP_EXPANSION_MODE", "AICPU_CacheDisable", {"910", "A3", "310P", None}),
        ("HCCL_OP_EXPANSION_MODE", "CCU_MS", {"910", "950", "310P", None}),
        ("HCCL_RDMA_TIMEOUT", "20", {"A2", "A3", "910", "950", "310P", None}),
        ("HCCL_RDMA_TIMEOUT", "24", {"910", "950", "310P", None}),
        ("HCCL_EXEC_TIMEOUT", "1800", {"A2", "A3", "950", "310P", None}),  # no multiple of 68
        ("HCCL_EXEC_TIMEOUT", "17408", {"A2", "A3", "950", "310P", None}),
        ("HCCL_EXEC_TIMEOUT", "1836", {"A2", "A3", "910", "950", "310P", None}),
    ],
)
def test_values_that_a_generation_of_chips_does_not_take(name: str, value: str, takes: set[str | None]) -> None:
    for generation in ("A2", "A3", "910", "950", "310P", None):
        problems = check_environment({name: value}, "npu", generation)
        if generation in takes:
            assert problems == []
            continue
        (problem,) = problems
        assert f"{name}={value}: on {generation} it must be " in problem.words.en
        right_name, _, right = problem.right.partition("=")
        assert check_environment({right_name: right}, "npu", generation) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PYTORCH_NPU_ALLOC_CONF": "page_size:1g", "PYTORCH_ALLOC_CONF": "page_size:1g"}, "both together abort"),
        ({"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "1"}, "not both may be 1"),
        ({"HCCL_INTRA_PCIE_ENABLE": "0"}, "0 for one needs 1 for the other"),
        ({"HCCL_EXEC_TIMEOUT": "3600", "HCCL_EVENT_TIMEOUT": "3600"}, "the second must be more than the first"),
    ],
)
def test_pairs_that_contradict_each_other(variables: dict[str, str], said: str) -> None:
    (problem,) = check_environment(variables, "npu")
    assert problem.level == "error"
    assert said in problem.words.en


def test_pairs_that_agree() -> None:
    pair = {"HCCL_INTRA_PCIE_ENABLE": "0", "HCCL_INTRA_ROCE_ENABLE": "1"}
    assert check_environment(pair | {"HCCL_EXEC_TIMEOUT": "100", "HCCL_EVENT_TIMEOUT": "200"}, "npu") == []


@pytest.mark.parametrize(
    ("variables", "kind", "spoiled"),
    [
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "npu", ("ASCEND_LAUNCH_BLOCKING=1",)),
        ({"ASCEND_LAUNCH_BLOCKING": "0"}, "npu", ()),
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "cpu", ()),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "0"}, "npu", ("ASCEND_GLOBAL_LOG_LEVEL=0",)),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "1"}, None, ("ASCEND_GLOBAL_LOG_LEVEL=1",)),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "3"}, "npu", ()),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "cuda", ("CUDA_LAUNCH_BLOCKING=1",)),
        ({"HCCL_DIAGNOSE_ENABLE": "1"}, "npu", ()),  # slows a run, and times of such runs can be compared
    ],
)
def test_settings_with_which_no_time_counts(
    variables: dict[str, str], kind: str | None, spoiled: tuple[str, ...]
) -> None:
    assert spoilers(variables, kind) == spoiled


def test_settings_that_spoil_figures_are_warned_of() -> None:
    problems = refuse_wrong(
        {"ASCEND_LAUNCH_BLOCKING": "1", "HCCL_ALGO": "level0:NA;level1:ring", "HCCL_UNHEARD": "1"}, "npu"
    )
    assert [(problem.name, problem.level) for problem in problems] == [
        ("ASCEND_LAUNCH_BLOCKING", "warning"), ("HCCL_ALGO", "warning"), ("HCCL_UNHEARD", "warning"),
    ]  # fmt: skip
    assert "no figure of such a run counts" in problems[0].words.en
    assert check_environment({"ASCEND_LAUNCH_BLOCKING": "0", "ASCEND_GLOBAL_LOG_LEVEL": "3"}, "npu") == []


def test_reports_say_each_doubt_in_chinese() -> None:
    """They know the English only."""
    path = Path(launch_settings.__file__).parent / "specs" / "launch_settings.yaml"
    said = [("HCCL_UNHEARD", "1")]
    for name, entry in yaml.safe_load(path.read_text("utf-8"))["variables"].items():
        values = entry.get("doubt", {}).get("values", [])
        said += [(name, value.replace("*", "level0:NA;level1:NHR")) for value in values]
    assert len(said) > 6
    for name, value in said:
        (problem,) = check_environment({name: value}, "cuda" if name.startswith("CUDA") else "npu")
        assert problem.level == "warning"
        if name != "HCCL_ALGO":  # texts are split at semicolons first
            assert phrase(problem.words.en) == problem.words


def test_a_device_reads_only_its_own_variables() -> None:
    wrong = {"TASK_QUEUE_ENABLE": "9", "CUDA_LAUNCH_BLOCKING": "9", "OMP_NUM_THREADS": "none"}
    assert [problem.name for problem in check_environment(wrong, "npu")] == ["OMP_NUM_THREADS", "TASK_QUEUE_ENABLE"]
    assert [problem.name for problem in check_environment(wrong, "cuda")] == ["CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"]
    assert [problem.name for problem in check_environment(wrong, "cpu")] == ["OMP_NUM_THREADS"]
    assert [problem.name for problem in check_environment({"NPU_MEMORY_OPTIMIZE": "1"}, "cpu")] == [
        "NPU_MEMORY_OPTIMIZE"
    ]


def test_several_errors_are_counted() -> None:
    with pytest.raises(UsageError, match=r"\(and 1 more\)") as caught:
        refuse_wrong({"HCCL_ALGO": "Ring", "TASK_QUEUE_ENABLE": "7"}, "npu")
    assert caught.value.hint == "write HCCL_ALGO=level0:NA;level1:ring; TASK_QUEUE_ENABLE=1"


@pytest.mark.parametrize("name", [name for name in known_variables() if default_of(name)])
def test_defaults_are_right(name: str) -> None:
    variables = {name: default_of(name)}
    if name == "HCCL_INTRA_ROCE_ENABLE":  # refused alone, says the documentation
        variables["HCCL_INTRA_PCIE_ENABLE"] = "1"
    assert [problem for problem in check_environment(variables, "npu") if problem.level == "error"] == []


@given(
    st.sampled_from(HCCL_LEVELS["level1"]), st.none() | st.sampled_from(HCCL_LEVELS["level2"]),
    st.lists(st.sampled_from(["allreduce", "allgather", "others"]), max_size=3, unique=True),
)  # fmt: skip
def test_every_algorithm_is_taken(one: str, two: str | None, collectives: list[str]) -> None:
    form = f"level0:NA;level1:{one}" + (f";level2:{two}" if two else "")
    value = "/".join(f"{name}={form}" for name in collectives) or form
    assert [problem.level for problem in check_environment({"HCCL_ALGO": value}, "npu")] == ["warning"]


@given(st.sampled_from(known_variables()), st.text(max_size=200))
def test_any_text_is_judged_and_the_right_form_is_right(name: str, value: str) -> None:
    for problem in check_environment({name: value}, "npu"):
        assert problem.words.en and problem.words.zh
        if problem.level == "error" and problem.right:
            again, _, written = problem.right.partition("=")
            assert len(problem.words.en) < 1000
            assert again == name
            # A right allocator line is only the nearest key; a path inside a server needs its partner.
            if "ALLOC_CONF" not in name and "HCCL_INTRA" not in name:
                assert [p for p in check_environment({name: written}, "npu") if p.level == "error"] == []


def test_rules_recommend_only_right_settings() -> None:
    """Each `export NAME=value` that a remedy prints."""
    found = []
    for path in sorted(RULES.glob("*.yaml")):
        for name, value in re.findall(r"export (\w+)=(\S+)", _texts(yaml.safe_load(path.read_text("utf-8")))):
            found.append(name)
            errors = [p for p in check_environment({name: value.strip("\"'")}, "npu") if p.level == "error"]
            assert errors == [], path.name
    assert {"TASK_QUEUE_ENABLE", "HCCL_ALGO", "PYTORCH_NPU_ALLOC_CONF"} <= set(found)


def _texts(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(_texts(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(_texts(item) for item in value)
    return str(value)


def test_presets_have_right_launch_settings() -> None:
    for name, workload in load_workloads().parts.items():
        for preset in workload.presets().values():
            for kind, variables in preset.environment.items():
                assert kind in ("npu", "cuda", "cpu"), (name, preset.name)
                assert check_environment(variables, kind) == [], (name, preset.name)
