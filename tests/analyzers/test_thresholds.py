"""Thresholds: stated in the table with their source, asked for when they are needed, overridden by the user."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_perf as ap
from ascend_perf import pipeline
from ascend_perf.analyzers import _rules, _rules_file
from ascend_perf.analyzers._rules_file import highest, lowest, overrides_of
from ascend_perf.analyzers._thresholds import NOTHING, Override, Threshold, overridden, threshold
from ascend_perf.errors import UsageError
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.plugins import load_analyzers
from tests._support import Said
from tests.faults.evaluate import ALL_KINDS, plant
from tests.faults.planting import Kind

FOLDER = Path(_rules.__file__).parent
LIMITS = [(code, item) for code in _rules.rule_codes() for item in _rules.rule(code).thresholds]
IDS = [f"{code}-{item.name}" for code, item in LIMITS]
CJK = re.compile(r"[\u4e00-\u9fff]")


def modules() -> Iterator[ModuleType]:
    for path in sorted(FOLDER.glob("*.py")):
        yield importlib.import_module(f"ascend_perf.analyzers.{path.stem}")


def named_in_code() -> set[tuple[str, str]]:
    """The thresholds that modules hold, alone or as values of a mapping."""
    found = set()
    for module in modules():
        for value in vars(module).values():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, Threshold):
                    found.add((one.code, one.name))
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_states_the_thresholds_that_the_code_asks_for_and_no_others() -> None:
    assert named_in_code() == {(code, item.name) for code, item in LIMITS}


@pytest.mark.parametrize(("code", "item"), LIMITS, ids=IDS)
def test_a_threshold_says_what_it_does_in_which_unit_and_where_it_comes_from(code: str, item: _rules.Limit) -> None:
    assert [other.name for other in _rules.rule(code).thresholds].count(item.name) == 1
    assert lowest(item) <= item.value <= highest(item)
    for suffix, unit in (("_ns", "ns"), ("_bytes", "bytes"), ("_hertz", "hertz")):
        assert item.name.endswith(suffix) == (item.unit == unit), "the name ends with the unit"
    if item.unit == "ratio":
        assert item.name.endswith(("_ratio", "_correlation"))
    if item.unit in ("ns", "bytes", "count"):
        assert isinstance(item.value, int)
    assert CJK.search(item.text.zh) and not CJK.search(item.text.en + item.source)
    assert item.text.en.endswith(".") and item.text.zh.endswith("。")
    if item.status in ("source", "inferred"):
        assert item.source, "a value that was read or inferred names its source"
    assert code not in item.rows
    assert set(item.rows) <= set(_rules.rule_codes())


def test_no_value_is_asked_for_while_a_module_is_imported() -> None:
    """Neither at module level nor as a default argument: an override would come too late."""
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        names = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
            if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "threshold"
        } | {
            alias.name
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names if alias.name.isupper()
        }  # fmt: skip
        for node in _at_import(tree.body):
            if isinstance(node, ast.Attribute) and node.attr in ("value", "whole") and isinstance(node.value, ast.Name):
                assert node.value.id not in names, f"{path.name}:{node.lineno}"


def _at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from ast.walk(part)
        elif isinstance(node, ast.ClassDef):
            yield from _at_import(node.body)
        else:
            yield from ast.walk(node)


def test_an_unknown_threshold_is_a_key_error_when_it_is_asked_for() -> None:
    for code, name in (("C-14", "min_shares"), ("X-01", "min_share_ratio")):
        unknown = threshold(code, name)
        with pytest.raises(KeyError):
            _ = unknown.value


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("code", _rules.rule_codes())
def test_explain_lists_the_thresholds_that_rule_a_row(code: str, lang: _rules.Lang) -> None:
    text = _rules.explain(code, lang)
    squeezed = re.sub(r"\s", "", text)

    own = {(code, item.name): item for item in _rules.rule(code).thresholds}
    shared = {(owner, item.name): item for owner, item in LIMITS if code in item.rows}
    assert {(owner, item.name): item for owner, item in _rules.limits_of(code)} == own | shared
    for (owner, name), item in (own | shared).items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {name}: {item.shown}"))
        assert (owner in line) == (owner != code)
        assert re.sub(r"\s", "", item.text.zh if lang == "zh" else item.text.en) in squeezed
        status = _rules.STATUSES[item.status]
        assert re.sub(r"\s", "", status.zh if lang == "zh" else status.en) in squeezed
        assert re.sub(r"\s", "", item.source) in squeezed


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0.05, "ratio", "0.05 (5 %)"), (20_000, "ns", "20000 (20 us)"), (1 << 20, "bytes", "1048576 (1 MiB)"),
     (3, "count", "3"), (1.2, "x", "1.2"), (800e6, "hertz", "800000000 (800 MHz)"), (3.5, "none", "3.5")],
)  # fmt: skip
def test_a_value_is_shown_as_a_file_states_it_and_as_people_read_it(value: float, unit: str, shown: str) -> None:
    assert _rules.shown_value(value, unit) == shown  # type: ignore[arg-type] # a unit


# ---- the user's file -------------------------------------------------------------------------------------------------


def rules_file(folder: Path, text: str) -> Path:
    path = folder / "my.yaml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_and_a_mapping_state_the_same_in_the_order_of_the_table(tmp_path: Path) -> None:
    text = "N-05:\n  max_notify_ns: 3e4\nC-14: {min_calls: 1_000, min_share_ratio: .08}\n"
    expected = (
        Override(code="C-14", name="min_calls", unit="count", default=100, given=1000),
        Override(code="C-14", name="min_share_ratio", unit="ratio", default=0.05, given=0.08),
        Override(code="N-05", name="max_notify_ns", unit="ns", default=20_000, given=30_000),
    )

    assert overrides_of(rules_file(tmp_path, text)) == expected
    assert overrides_of(str(tmp_path / "my.yaml")) == expected
    given_rules: dict[str, dict[str, float]] = {
        "N-05": {"max_notify_ns": 30_000}, "C-14": {"min_calls": 1000, "min_share_ratio": 0.08},
    }  # fmt: skip
    assert overrides_of(given_rules) == expected
    assert isinstance(overrides_of(given_rules)[2].given, int)
    assert overrides_of(None) == overrides_of(rules_file(tmp_path, "# nothing\n")) == ()


WRONG = [
    ("C-14", "my.yaml holds 'C-14', expected rows"),
    ("[1, 2]", "my.yaml holds a list, expected rows"),
    ("C-14: 3", "my.yaml, line 1: C-14 states '3', expected thresholds"),
    ("C-14:", "my.yaml, line 1: C-14 states '', expected thresholds"),
    ("\n\nC-14: {min_share_ratio: [1]}", "my.yaml, line 3: min_share_ratio of C-14 is a list, expected a number"),
    ("C-14: {min_share_ratio: {a: 1}}", "min_share_ratio of C-14 is a mapping, expected a number"),
    ("C-14: {min_share_ratio: 1.2}", "is 1.2, expected a number from 0 to 1\n  hint: the default is 0.05 (5 %)"),
    ("C-14: {min_share_ratio: -0.1}", "is -0.1, expected a number from 0 to 1"),
    ("C-14: {min_share_ratio: true}", "is 'true', expected a number from 0 to 1"),
    ('C-14: {min_share_ratio: "0.1"}', "is '0.1', expected a number"),
    ("C-14: {min_share_ratio: 5%}", "is '5%', expected a number"),
    ("C-14: {min_share_ratio: nan}", "is 'nan', expected a number"),
    ("C-14: {min_share_ratio: }", "is '', expected a number"),
    ("C-14: {min_calls: 0.5}", "is 0.5, expected a whole number from 1 to 1e+12"),
    ("C-14: {min_calls: 0}", "is 0, expected a whole number from 1 to 1e+12"),
    ("C-14: {min_calls: 1:30}", "is '1:30', expected a whole number"),
    ("C-14: {min_calls: 2e12}", "is 2e+12, expected a whole number"),
    ("K-02: {min_steps: 1}", "is 1, expected a whole number from 2 to 1e+12\n  hint: the default is 3"),
    ("D-01: {min_loader_ns: 0.5}", "is 0.5, expected whole nanoseconds from 0 to 1e+12"),
    ("E-01: {max_over_mean: 0.9}", "is 0.9, expected a number from 1 to 1e+12"),
    ("C-15: {min_calls: 1}", "no row 'C-15' in the troubleshooting table\n  hint: did you mean C-1"),
    ("c-14: {min_calls: 1}", "no row 'c-14' in the troubleshooting table\n  hint: did you mean C-14"),
    ("C-14: {min_share: 1}", "row C-14 has no threshold 'min_share'; it has min_share_ratio, min_calls\n"
     "  hint: did you mean min_share_ratio"),
    ("C-02: {min_step_ratio: 0.1}", "row C-02 shares min_step_ratio with C-01\n  hint: state it there: C-01"),
    ("C-14: {min_calls: 5}\nC-14: {min_calls: 6}", "my.yaml, line 2: min_calls of C-14 is stated twice"),
    ("C-14: {min_calls: 5", "my.yaml, line 1 is no valid YAML"),
    ("C-14: {min_calls: 5}\n---\nC-14: {}", "my.yaml, line 2 is no valid YAML"),
    ("? [a]\n: 3", "my.yaml holds a list as a key"),
    ("[" * 30_000, "my.yaml is nested too deep"),
    ("a: &a [*a]", "a states a list"),
    ("\0", "my.yaml is no plain text in UTF-8"),
    ("#" * (1 << 16) + "#", "my.yaml is larger than 65536 bytes"),
    ("C-14: {min_calls: !!python/object/apply:os.getpid []}", "is a list, expected a number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_a_wrong_file_is_refused_with_its_place_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        overrides_of(rules_file(tmp_path, text))

    assert said in str(refused.value)
    assert "my.yaml" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"C-14: {min_calls: 5} # \xe9")
    for path, said in ((tmp_path / "none.yaml", "none.yaml cannot be read: No such file"), (tmp_path, "cannot be read"),
                       (tmp_path / "latin.yaml", "no plain text in UTF-8")):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            overrides_of(path)


@pytest.mark.parametrize(
    ("rules", "said"),
    [({"C-14": 3}, "C-14 states 3"), ({"C-14": {"min_calls": None}}, "is 'None', expected a whole number"),
     ({"C-14": {"min_calls": True}}, "is 'True', expected"), ({1: {"x": 1}}, "no row '1'")],
)  # fmt: skip
def test_a_wrong_mapping_is_refused(rules: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        overrides_of(rules)  # type: ignore[arg-type] # wrong on purpose


@given(st.data())
def test_every_permitted_value_is_taken_as_it_is_and_every_other_is_refused(data: st.DataObject) -> None:
    code, item = data.draw(st.sampled_from(LIMITS))
    whole = item.unit in ("ns", "bytes", "count")
    low, high = lowest(item), highest(item)
    number = st.integers(int(low), int(high)) if whole else st.floats(low, high)
    value = data.draw(number)
    with overridden(overrides_of({code: {item.name: value}})):
        assert threshold(code, item.name).value == (NOTHING if item.unit == "ratio" and value == 0 else value)
    assert threshold(code, item.name).value == item.value

    below, above = st.floats(max_value=low, exclude_max=True), st.floats(min_value=high, exclude_min=True)
    outside = data.draw(below | above | st.just(float("nan")))
    with pytest.raises(UsageError, match=f"{item.name} of {code} is "):
        overrides_of({code: {item.name: outside}})
    if whole:
        with pytest.raises(UsageError, match="whole"):
            overrides_of({code: {item.name: int(low) + 0.5}})


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_whatever_lies_in_the_file_is_rules_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("rules") / "my.yaml"
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    try:
        assert overrides_of(path) == ()
    except UsageError as error:
        assert "my.yaml" in str(error)


# ---- overrides in an analysis ----------------------------------------------------------------------------------------


def with_optimizer(make_trace: Callable[..., Trace], rank: int = 0) -> Run:
    """A step of 10 us with 150 optimizer kernels of 4 ns: 6 % of it."""
    kernels = [
        {"name": "Mul", "start_ns": 6_000 + 4 * n, "dur_ns": 4, "launch_start_ns": 5_000 + n,
         "launch_end_ns": 5_001 + n}
        for n in range(150)
    ]  # fmt: skip
    phase = {"name": "Optimizer.step#AdamW.step", "kind": "optimizer", "start_ns": 5_000, "dur_ns": 2_000, "thread": 1}
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 10_000}], host_events=[phase], kernels=kernels,
        meta=Meta(rank=rank, device=Device(kind="npu")),
    )  # fmt: skip
    return Run(traces=(trace,))


def codes(analysis: pipeline.Analysis) -> set[str]:
    return {finding.code for finding in analysis.findings}


def test_an_override_holds_for_one_call(make_trace: Callable[..., Trace]) -> None:
    run = with_optimizer(make_trace)

    def found(share: float) -> bool:
        return "C-14" in codes(ap.analyze(run, only=["optimizer"], rules={"C-14": {"min_share_ratio": share}}))

    assert "C-14" in codes(ap.analyze(run))
    assert found(0.06)  # 600 of 10,000 ns: not below
    assert not found(0.0601)
    assert "C-14" in codes(ap.analyze(run)), "the override of the last call is gone"
    with pytest.raises(UsageError):
        ap.analyze(run, rules={"C-14": {"min_share_ratio": 2}})
    assert "C-14" in codes(ap.analyze(run))


def test_overrides_of_threads_do_not_meet(make_trace: Callable[..., Trace]) -> None:
    run = with_optimizer(make_trace)
    shares = [0.01, 0.5] * 20

    def found(share: float) -> bool:
        return "C-14" in codes(ap.analyze(run, only=["optimizer"], rules={"C-14": {"min_share_ratio": share}}))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found, shares)) == [share < 0.06 for share in shares]


def test_overrides_nest_and_end_with_an_error() -> None:
    calls = threshold("C-14", "min_calls")
    with pytest.raises(RuntimeError), overridden(overrides_of({"C-14": {"min_calls": 7}})):
        with overridden(overrides_of({"C-14": {"min_share_ratio": 0.5}})):
            assert calls.value == 100
        assert calls.whole == 7
        raise RuntimeError
    assert calls.value == 100


def test_processes_that_analyze_the_ranks_use_the_overrides(tmp_path: Path) -> None:
    kind = next(kind for kind in ALL_KINDS if "N-05" in kind.codes)
    plant(kind, "strong", 3, tmp_path / "job")
    everything = {"N-05": {"min_wait_ratio": 1, "low_below_ratio": 1, "min_joint_wait_ratio": 1, "max_spread_ratio": 1}}

    for jobs in (1, 2):
        usual = pipeline.report([tmp_path / "job"], out=tmp_path / f"{jobs}-usual", formats=["json"], jobs=jobs)
        other = pipeline.report(
            [tmp_path / "job"], out=tmp_path / f"{jobs}-other", formats=["json"], jobs=jobs, rules=everything
        )
        assert "N-05" in codes(usual.analysis)
        assert "N-05" not in codes(other.analysis)
        assert not other.analysis.failed


def check_extremes(run: Run) -> None:
    """All thresholds at their lowest, all at their highest; and all that are a minimum low, the others high."""
    for pick in (
        lowest, highest, lambda item: (lowest if item.name.startswith("min") else highest)(item),
        lambda item: (highest if item.name.startswith("min") else lowest)(item),
    ):  # fmt: skip
        rules: dict[str, dict[str, float]] = {}
        for code, item in LIMITS:
            rules.setdefault(code, {})[item.name] = pick(item)
        analysis = ap.analyze(run, rules=rules)
        assert not analysis.failed, {(o.analyzer, o.reason.en if o.reason else "") for o in analysis.failed}
        assert len(analysis.overrides) == len(LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_no_permitted_value_makes_an_analyzer_fail(tmp_path: Path, kind: Kind) -> None:
    plant(kind, "medium", 3, tmp_path)
    check_extremes(ap.load(tmp_path, jobs=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ascend-pytorch/qwen3-0.6b-pp2-dp2-level2", "ascend-pytorch/db/level1", "ascend-cluster/msprof-analyze-8rank",
     "kernel-details", "kineto/v100", "kineto/mi300", "msprof-cli/op_summary_1.csv", "timeline/trace_view.json"],
)  # fmt: skip
def test_no_permitted_value_makes_an_analyzer_fail_on_real_profiles(traces: Path, name: str) -> None:
    check_extremes(ap.load(traces / name, jobs=1))


# ---- the report and the command --------------------------------------------------------------------------------------


def test_the_report_says_which_thresholds_are_the_user_s(
    tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    run = with_optimizer(make_trace)
    rules = {"C-14": {"min_share_ratio": 0.08}, "N-05": {"max_notify_ns": 1000}}

    for lang, words in (("en", "Thresholds that the user stated"), ("zh", "用户指定的阈值")):
        pipeline.report(run, out=tmp_path, force=True, rules=rules, lang=lang)  # type: ignore[arg-type] # one of Lang
        text = (tmp_path / "report.md").read_text("utf-8")
        assert words in text
        assert "| C-14 | min_share_ratio | 0.08 (8 %) | 0.05 (5 %) | " in text.replace("\\_", "_")
        assert "| N-05 | max_notify_ns | 1000 (1 us) | 20000 (20 us) | " in text.replace("\\_", "_")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["thresholds"] == [
        {"code": "C-14", "name": "min_share_ratio", "unit": "ratio", "default": 0.05, "given": 0.08},
        {"code": "N-05", "name": "max_notify_ns", "unit": "ns", "default": 20_000, "given": 1000},
    ]
    pipeline.report(run, out=tmp_path, force=True)
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["thresholds"] == []
    assert "Thresholds that the user stated" not in (tmp_path / "report.md").read_text("utf-8")


def test_the_command_takes_a_rules_file(tmp_path: Path, command: Callable[..., Said]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"stream": 7}},
    ]}))  # fmt: skip
    good = rules_file(tmp_path, "C-14: {min_share_ratio: 0.08}")

    said = command("analyze", trace, "-o", tmp_path / "out", "--rules", good)
    assert said.code == 0
    assert "min_share_ratio of C-14 is 0.08 (default 0.05)" in said.err

    said = command("analyze", trace, "-o", tmp_path / "bad", "--rules", rules_file(tmp_path, "C-14: {min_share: 1}"))
    assert said.code == 2
    assert "my.yaml, line 1: row C-14 has no threshold 'min_share'; it has min_share_ratio, min_calls" in said.err
    assert not (tmp_path / "bad").exists()


# ---- which analyzer judges a row -------------------------------------------------------------------------------------


def test_rows_name_analyzers_that_are_there() -> None:
    named = {name for code in _rules.rule_codes() for name in _rules.rule(code).judged_by}
    assert named <= set(load_analyzers().parts)


def test_the_rows_of_an_analyzer_are_those_that_name_it() -> None:
    assert _rules.rows_of("frequency") == ("P-01", "P-02")
    assert _rules.rows_of("timeline") == ()
    assert _rules_file.overrides_of({}) == ()
