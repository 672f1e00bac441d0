"""Options of msprof: what it would refuse or ignore is refused by us, with the right form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors._msprof_options import choose, known_options, series_of
from ascend_perf.errors import UsageError


def refused(**given: str) -> str:
    with pytest.raises(UsageError) as error:
        options = {name.replace("_", "-"): value for name, value in given.items()}
        choose("standard", options, find_tool=lambda name: None)
    return f"{error.value.what}|{error.value.hint}"


def test_the_standard_level_is_the_command_that_the_reference_recommends() -> None:
    chosen = choose("standard", {})

    assert dict(chosen.options) == {
        "ascendcl": "on", "runtime-api": "on", "task-time": "l1", "ai-core": "on", "aic-mode": "task-based",
        "aic-metrics": "PipeUtilization", "aicpu": "on",
    }  # fmt: skip
    assert chosen.notes == ()


def test_the_quick_level_reads_no_counters_and_the_deep_one_links_and_caches() -> None:
    assert dict(choose("quick", {}).options) == {"task-time": "l0", "ai-core": "off", "ascendcl": "on"}
    deep = choose("deep", {}).options
    for name in ("l2", "sys-hardware-mem", "sys-interconnection-profiling", "sys-io-profiling", "dvpp-profiling"):
        assert deep[name] == "on"
    assert deep["host-sys"] == "cpu,mem"  # disk and osrt would ask for root


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"aic_metrics": "true"}, "PipeUtilization | ArithmeticUtilization"),  # the mission's own mistake
        ({"aic_metrics": "pipeutilization"}, "did you mean PipeUtilization?"),
        ({"aic_metrics": "PipeUtilization,Memory"}, "one group of counters in a run"),
        ({"aic_metrics": "PipelineExecuteUtilization"}, "is for 310B"),
        ({"aic_metrics": "Custom:0x49,"}, "write Custom:0x49,0x8"),
        ({"aic_metrics": "Custom:" + ",".join(["1"] * 9)}, "up to 8 counter ids"),
        ({"aic_metrics": "Custom:0x80000000"}, "up to 8 counter ids"),
        ({"aicpu": "true"}, "it takes on | off"),
        ({"aicpuu": "on"}, "did you mean aicpu?"),
        ({"runtime_api": "On"}, "it takes on | off"),
        ({"task_time": "l4"}, "on | off | l0 | l1 | l2 | l3"),
        ({"aic_freq": "50"}, "without --aic-mode=sample-based"),
        ({"llc_profiling": "read"}, "without --sys-hardware-mem=on"),
        ({"sys_io_profiling": "on", "sys_io_sampling_freq": "101"}, "it takes 1 to 100"),
        ({"sys_io_profiling": "on", "sys_io_sampling_freq": "0"}, "it takes 1 to 100"),
        ({"mstx_domain_include": "a"}, "without --msproftx=on"),
        ({"msproftx": "on", "mstx_domain_include": "a", "mstx_domain_exclude": "b"}, "does not go together"),
        ({"instr_profiling": "on", "l2": "on"}, "does not go together with --l2"),
        ({"ai_core": "off", "aic_metrics": "Memory"}, "--aic-metrics has no effect with --ai-core=off"),
        ({"npu_events": "0x1,0x2,0x3,0x4,0x5,0x6,0x7,0x8,0x9"}, "up to 8 event ids"),
        ({"npu_events": "HA:12"}, "up to 8 event ids"),
        ({"host_sys": "cpu,gpu"}, "cpu | mem | disk"),
        ({"host_sys": "osrt"}, "needs perf and ltrace, not on this machine|install it, and have root rights"),
        ({"host_sys": "disk"}, "needs iotop"),
        ({"host_sys_usage_freq": "50"}, "has no effect without --host-sys-usage"),
        ({"sys_lp": "on"}, "for 950 only"),
        ({"aicore_shape": "on"}, "only the newest releases have it"),
        ({"output": "x"}, "give -o FOLDER"),
        ({"delay": "3"}, "give --delay SECONDS"),
        ({"application": "python train.py"}, "the command behind --"),
        ({"dynamic": "on"}, "records one command"),
        ({"sys_devices": "all"}, "records one command"),
        ({"clear": "on"}, "exports by itself"),
        ({"type": "db"}, "exports by itself"),
        ({"mstx_domain_include": "a\"b"}, "quotes and control characters"),
    ],
)  # fmt: skip
def test_what_msprof_refuses_or_ignores_is_refused_with_the_right_form(given: dict[str, str], words: str) -> None:
    assert words in refused(**given)


def test_an_option_that_help_does_not_name_is_left_out_of_a_level_and_refused_when_given() -> None:
    text = " ".join(f"--{name}" for name in known_options() if name not in ("ge-api", "task-memory"))

    chosen = choose("deep", {}, help_text=text)

    assert "ge-api" not in chosen.options
    assert "l2" in chosen.options
    assert chosen.notes == (
        "left out: --ge-api, `msprof --help` does not name it",
        "left out: --task-memory, `msprof --help` does not name it",
    )  # fmt: skip
    with pytest.raises(UsageError, match="does not name it"):
        choose("standard", {"ge-api": "l0"}, help_text=text)
    assert choose("standard", {"aicore-shape": "on"}, help_text=text).options["aicore-shape"] == "on"


def test_a_name_that_begins_another_is_not_taken_for_it() -> None:
    with pytest.raises(UsageError, match="does not name it"):
        choose("standard", {"l2": "on"}, help_text="--output --l2-cache --ascendcl")


def test_counters_of_another_chip_are_refused() -> None:
    assert choose("standard", {"aic-metrics": "L2Cache"}, series="A2").options["aic-metrics"] == "L2Cache"
    with pytest.raises(UsageError, match="is for A2, A3, 950, this is 310P"):
        choose("standard", {"aic-metrics": "L2Cache"}, series="310P")


def test_counters_are_switched_off_with_what_belongs_to_them() -> None:
    options = choose("deep", {"ai-core": "off"}).options

    assert options["ai-core"] == "off"
    assert not [name for name in options if name.startswith("aic-")]


def test_instruction_profiling_replaces_what_it_excludes() -> None:
    assert dict(choose("standard", {"instr-profiling": "on"}).options) == {"instr-profiling": "on"}


def test_what_is_announced_for_removal_is_noted() -> None:
    assert choose("standard", {"hccl": "on"}).notes == (
        "--hccl will be gone from later releases of msprof: communication comes with --task-time=l1",
    )


@pytest.mark.parametrize(
    ("soc", "series"),
    [
        ("Ascend910B2", "A2"), ("Ascend 910B2C", "A2"), ("Ascend910B4-1", "A2"), ("Ascend910_9392", "A3"),
        ("Ascend310P3", "310P"), ("Ascend310B1", "310B"), ("Ascend910B", "910"), ("Ascend910A", "910"),
        ("Ascend910ProB", "910"), ("Ascend950PR", "950"), ("H200", None),
    ],
)  # fmt: skip
def test_the_series_of_a_chip(soc: str, series: str | None) -> None:
    assert series_of(soc) == series


@given(st.dictionaries(st.sampled_from(known_options()), st.text(max_size=12), max_size=4))
def test_whatever_is_given_is_an_answer_or_a_usage_error(options: dict[str, str]) -> None:
    try:
        chosen = choose("standard", options, find_tool=lambda name: name)
    except UsageError as error:
        assert str(error)
        return
    for name, value in options.items():
        assert chosen.options[name] == value  # never changed in silence
