"""Options of the profilers inside a process: typos and values that torch_npu would replace in silence are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors import _torch_options as options
from ascend_perf.collectors._torch_options import choose, release_key, release_of
from ascend_perf.errors import UsageError


def test_the_standard_level_of_torch_npu() -> None:
    assert dict(choose("torch-npu", "standard", {}, release="26.1.0").values) == {
        "cpu": True, "record_shapes": True, "profile_memory": True, "profiler_level": "Level1",
        "aic_metrics": "PipeUtilization", "export_type": "Text", "data_simplification": False,
        "gc_detect_threshold": 1.0,
    }  # fmt: skip


def test_the_quick_level_names_its_counters_since_level0_would_warn_of_the_default() -> None:
    values = choose("torch-npu", "quick", {}, release="26.1.0").values
    assert (values["profiler_level"], values["aic_metrics"]) == ("Level0", "AiCoreNone")


@pytest.mark.parametrize(
    ("release", "absent"),
    [
        ("5.0.0", {"export_type", "gc_detect_threshold", "sys_io", "sys_interconnection", "mstx"}),
        ("6.0.rc1", {"gc_detect_threshold", "sys_io", "sys_interconnection", "mstx"}),
        ("7.0.0", {"sys_io", "sys_interconnection"}),
        ("7.1.0", set()),
        ("26.1.0", set()),
        (None, set()),
    ],
)
def test_what_a_release_has_not_is_left_out_of_a_level_and_said(release: str | None, absent: set[str]) -> None:
    full = set(choose("torch-npu", "deep", {}).values)

    chosen = choose("torch-npu", "deep", {}, release=release)

    assert full - set(chosen.values) == absent
    assert {note.split(",")[0].removeprefix("left out: ") for note in chosen.notes} == absent


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"profiler_lvl": "Level1"}, "did you mean profiler_level?"),
        ({"aic_metric": "Memory"}, "did you mean aic_metrics?"),
        ({"profiler_level": "Level3"}, "Level_none | Level0 | Level1 | Level2"),
        ({"aic_metrics": "PipeUtilisation"}, "unknown value"),
        ({"l2_cache": "maybe"}, "expected true or false"),
        ({"gc_detect_threshold": "-1"}, "0 or more"),
        ({"gc_detect_threshold": "nan"}, "0 or more"),
        ({"gc_detect_threshold": True}, "0 or more"),
        ({"sys_io": "true"}, "needs torch_npu 7.1.0 or newer, here is 7.0.0"),
        ({"aic_metrics": "Memory", "profiler_level": "Level0"}, "no effect unless profiler_level is Level1 or Level2"),
        ({"op_attr": "true"}, "no effect unless export_type is Db"),
        ({"gc_detect_threshold": "1", "cpu": "false"}, "no effect unless cpu is true"),
        ({"host_sys": "CPU"}, "needs torch_npu 7.1.0"),
        ({"aic_metrics": "Memory,MemoryL0"}, "unknown value"),
    ],
)
def test_what_torch_npu_would_change_or_ignore_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as error:
        choose("torch-npu", "standard", given, release="7.0.0")
    assert words in f"{error.value.what}|{error.value.hint}"


def test_marks_to_keep_and_to_leave_out_are_not_given_together() -> None:
    """torch_npu would take the first, and say so in a line."""
    given = {"mstx": True, "mstx_domain_include": "a", "mstx_domain_exclude": "b"}
    with pytest.raises(UsageError, match="exclude each other"):
        choose("torch-npu", "standard", given, release="7.2.0")


def test_names_and_values_are_taken_as_people_write_them() -> None:
    values = choose(
        "torch-npu", "standard",
        {
            "profiler-level": "ProfilerLevel.level2", "msprof_tx": "on", "host_sys": "cpu,Mem",
            "gc_detect_threshold": None,
        },
        release="7.2.0",
    ).values  # fmt: skip
    assert values["profiler_level"] == "Level2"
    assert values["mstx"] is True
    assert values["host_sys"] == ("CPU", "MEM")
    assert values["gc_detect_threshold"] is None


def test_a_lower_level_of_the_user_takes_the_counters_of_the_preset_with_it() -> None:
    values = choose("torch-npu", "standard", {"profiler_level": "Level0"}).values
    assert values["aic_metrics"] == "AiCoreNone"
    without_host = choose("torch-npu", "standard", {"cpu": False}).values
    assert "gc_detect_threshold" not in without_host


def test_level_none_records_marks() -> None:
    assert choose("torch-npu", "quick", {"profiler_level": "Level_none"}).values["mstx"] is True


def test_tools_that_a_value_needs_are_looked_for() -> None:
    with pytest.raises(UsageError, match="needs perf and ltrace"):
        choose("torch-npu", "standard", {"host_sys": "OSRT"}, find_tool=lambda name: None)


def test_options_of_torch_are_its_own() -> None:
    assert dict(choose("torch", "deep", {}).values) == {
        "cpu": True, "record_shapes": True, "profile_memory": True, "with_stack": True, "with_flops": True,
    }  # fmt: skip
    with pytest.raises(UsageError, match="has no option 'l2_cache'"):
        choose("torch", "standard", {"l2_cache": True})


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("2.1.0", "5.0.0"), ("2.1.0.post8", "6.0.rc3"), ("2.1.0.post9", "6.0.rc3"), ("2.1.0.post13", "7.1.0"),
        ("2.6.0", "7.1.0"), ("2.6.0.post4", "7.2.0"), ("2.7.1.post8", "26.1.0"), ("2.8.0", "7.2.0"), ("2.13.0", None),
        ("2.6.0+git", "7.1.0"),
    ],
)  # fmt: skip
def test_the_release_of_a_package(package: str, release: str | None) -> None:
    assert release_of(package) == release


def test_releases_are_in_order() -> None:
    names = ["5.0.0", "6.0.rc1", "6.0.rc2", "6.0.rc3", "6.0.0", "7.0.0", "7.1.0", "7.3.0", "26.0.0", "26.1.0"]
    assert sorted(names, key=release_key) == names
    for spec in options.known_options("torch-npu").values():
        release_key(spec["since"])  # each is one


@given(
    st.dictionaries(
        st.sampled_from(sorted(options.known_options("torch-npu"))),
        st.one_of(st.booleans(), st.none(), st.text(max_size=10), st.floats()), max_size=4,
    )
)  # fmt: skip
def test_whatever_is_given_is_an_answer_or_a_usage_error(given: dict[str, object]) -> None:
    try:
        chosen = choose("torch-npu", "standard", given, find_tool=lambda name: name)
    except UsageError as error:
        assert str(error)
    else:
        assert set(given) <= set(chosen.values)
