"""SUITE.yaml: the matrix that it spans, and errors that name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.bench import suite_file
from ascend_perf.bench.launch import Request
from ascend_perf.bench.machines import Place, at_run, spread
from ascend_perf.bench.suite import Left, expected_seconds, plan_of, time_left
from ascend_perf.bench.suite_file import External, LogMetric, Served, figures_in, in_ns, read_suite, suite_of
from ascend_perf.errors import InputError, UsageError

HERE = Path("/suites")


def test_an_entry_spans_workloads_presets_devices_and_sizes() -> None:
    suite = suite_of(
        """
name: night
runs: 6
keep: first
device: cpu
env: {A: 1}
benchmarks:
  - workload: [llm-pretrain, bert-clue]
    preset: [tiny, small]
    world_size: [1, 2]
  - workload: micro
    device: [npu, cuda]
    runs: 2
    set: {iterations: 3}
    env: {B: x}
    variants:
      base:
      big: {set: {iterations: 9, copy_bytes: 64}, env: {A: 2}}
""",
        "s.yaml", HERE,
    )  # fmt: skip

    names = [[cell.name for cell in group] for group in suite.groups]
    assert names == [
        ["llm-pretrain/tiny/cpu/1"], ["llm-pretrain/tiny/cpu/2"], ["llm-pretrain/small/cpu/1"],
        ["llm-pretrain/small/cpu/2"], ["bert-clue/tiny/cpu/1"], ["bert-clue/tiny/cpu/2"], ["bert-clue/small/cpu/1"],
        ["bert-clue/small/cpu/2"], ["micro/tiny/npu/1/base", "micro/tiny/npu/1/big"],
        ["micro/tiny/cuda/1/base", "micro/tiny/cuda/1/big"],
    ]  # fmt: skip
    big = suite.groups[-1][1]
    assert isinstance(big.body, Request)
    assert big.body.overrides == ("iterations=9", "copy_bytes=64")
    assert big.body.variables == ("A=2", "B=x")
    assert (big.body.device, big.variant, big.runs, suite.keep, suite.snapshot) == ("cuda", "big", 2, "first", True)
    second = suite.cells[1]
    assert isinstance(second.body, Request)
    assert (second.body.ranks.per_node, second.runs) == (2, 6)
    # 8 benchmarks of 6 runs, then twice base big big base.
    plan = plan_of(suite)
    assert [one.index for one in plan] == list(range(8 * 6 + 2 * 4))
    assert [one.cell.variant for one in plan[48:]] == ["base", "big", "big", "base"] * 2


def test_values_of_yaml_reach_the_settings_as_they_are_meant() -> None:
    suite = suite_of(
        "benchmarks: [{workload: llm-pretrain, set: {fused: off, tied: true, learning_rate: 3e-4, layers: 2}}]",
        "a b.yaml", HERE,
    )  # fmt: skip

    body = suite.cells[0].body
    assert isinstance(body, Request)
    assert body.overrides == ("fused=false", "tied=true", "learning_rate=3e-4", "layers=2")
    assert suite.cells[0].runs == 5


def test_programs_and_servers_are_read(tmp_path: Path) -> None:
    text = r"""
name: others
benchmarks:
  - name: train
    command: python train.py --name "a b"
    folder: work
    timeout_s: 5
    metrics:
      - {name: speed, regex: 'speed ([\d.]+)', unit: items_per_s, take: median}
      - {name: loss, regex: 'loss=(\S+)', better: lower}
    steps: {regex: 'step (\d+) us', unit: us}
    variants: {old: {}, new: {command: [python, train.py, 3], env: {N: '1'}}}
  - name: chat
    server: http://127.0.0.1:8000/v1
    model: m
    load: {clients: 4, requests: 10}
    variants: {one: {load: {clients: 1}}, four: {}}
"""
    (tmp_path / "s.yaml").write_text(text, "utf-8")

    suite = read_suite(tmp_path / "s.yaml")

    (old, new), (one, four) = suite.groups
    assert isinstance(old.body, External) and isinstance(new.body, External)
    assert (old.name, old.body.command) == ("train/old", ("python", "train.py", "--name", "a b"))
    assert (new.body.command, new.body.variables) == (("python", "train.py", "3"), (("N", "1"),))
    assert old.body.folder == tmp_path / "work"
    assert old.body.metrics == (
        LogMetric(name="speed", regex=r"speed ([\d.]+)", unit="items_per_s", better="higher", take="median"),
        LogMetric(name="loss", regex=r"loss=(\S+)", unit="none", better="lower", take="last"),
    )
    assert old.body.steps == (r"step (\d+) us", "us")
    assert isinstance(one.body, Served) and isinstance(four.body, Served)
    assert (one.body.load.clients, one.body.load.requests, four.body.load.clients) == (1, 10, 4)
    assert old.settings() == {"command": "python train.py --name 'a b'"}
    assert one.settings()["clients"] == 1


W = "benchmarks: [{workload: micro, %s}]"
C = "benchmarks: [{name: n, command: x, %s}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml must be a mapping, got None"),
        ("a: [", "s.yaml is not YAML that we read"),
        ("name: a\nname: b", "the key 'name' stands twice"),
        ("name: a", "s.yaml has no benchmarks"),
        ("benchmarks: []", "s.yaml has no benchmarks"),
        ("benchmark: []", "s.yaml has an unknown key 'benchmark': did you mean 'benchmarks'?"),
        ("benchmarks: 3", "s.yaml: benchmarks must be a list, got 3"),
        ("benchmarks: [3]", "benchmarks[0] must be a mapping with workload, command or server, got 3"),
        ("benchmarks: [{workloads: micro}]", "needs one of workload, command and server, has none of them "
         "('workloads': did you mean 'workload'?)"),
        ("benchmarks: [{workload: micro, command: x}]", "has workload and command"),
        ("benchmarks: [{workload: llm-pretrian}]", "benchmarks[0].workload names no workload 'llm-pretrian': did "
         "you mean 'llm-pretrain'?"),
        ("runs: 0\nbenchmarks: [{workload: micro}]", "s.yaml: runs must be a whole number from 1 to 1000, got 0"),
        ("keep: some\nbenchmarks: [{workload: micro}]", "keep must be one of all, first, none, got 'some'"),
        (W % "presets: tiny", "benchmarks[0] has an unknown key 'presets': did you mean 'preset'?"),
        (W % "preset: tini", "benchmarks[0].preset cannot be measured: micro has no preset 'tini': did you mean"),
        (W % "preset: []", "benchmarks[0].preset is an empty list"),
        (W % "preset: [tiny, tiny]", "benchmarks[0].preset names something twice"),
        (W % "device: gpu", "benchmarks[0].device must be one of auto, npu, cuda, cpu"),
        (W % "set: {iteration: 3}", "benchmarks[0].set cannot be measured: micro has no setting 'iteration': did "
         "you mean 'iterations'?"),
        (W % "set: {iterations: [3]}", "benchmarks[0].set.iterations must be a plain value, got a list"),
        (W % "set: {iterations: 0}", "benchmarks[0].set cannot be measured"),
        (W % "variants: {}", "benchmarks[0].variants is empty"),
        (W % "variants: {a: {sett: {}}}", "benchmarks[0].variants.a has an unknown key 'sett': did you mean 'set'?"),
        (W % "variants: {a: {set: {iterations: x}}}", "benchmarks[0].variants.a.set cannot be measured"),
        (W % "variants: {a/b: {}}", "has a variant 'a/b'"),
        (W % "world_size: 0", "benchmarks[0].world_size must be a whole number from 1 to 4096"),
        (W % "env: {A: true}", "benchmarks[0].env.A must be text (put it into quotes)"),
        ("benchmarks: [{workload: comm-bench, world_size: 1}]", "comm-bench needs 2 processes or more, not 1"),
        ("benchmarks: [{workload: llm-pretrain, world_size: 3, set: {tensor_ranks: 2}}]", "cannot be measured"),
        ("benchmarks: [{workload: micro}, {workload: micro}]", "benchmarks[1] measures micro/tiny/auto/1, as "
         "benchmarks[0] does"),
        ("benchmarks: [{command: x, steps: {regex: '(x)'}}]", "benchmarks[0] needs a name"),
        (C % "runs: 2", "benchmarks[0] needs metrics or steps"),
        (C % "metrics: []", "benchmarks[0].metrics is empty"),
        (C % "metrics: [{name: a}]", "benchmarks[0].metrics[0] needs a regex"),
        (C % "metrics: [{name: a, regex: '('}]", "benchmarks[0].metrics[0].regex is no regular expression"),
        (C % "metrics: [{name: a, regex: 'x'}]", "must have one group, the number; it has 0"),
        (C % "metrics: [{name: a, regex: '(x)', unit: tokens}]", "benchmarks[0].metrics[0].unit must be one of ns, us"),
        (C % "steps: {regex: '(x)', unit: h}", "benchmarks[0].steps.unit must be one of ns, us, ms, s"),
        ("benchmarks: [{name: n, command: 'a \"b', steps: {regex: '(x)'}}]", "benchmarks[0].command is no line of"),
        ("benchmarks: [{name: n, server: 'ftp://x'}]", "benchmarks[0].server must be an http or https address"),
        ("benchmarks: [{name: n, server: 'http://u:p@x'}]", "benchmarks[0].server must be an http or https address"),
        ("benchmarks: [{server: 'http://x'}]", "benchmarks[0] needs a name"),
        ("benchmarks: [{name: n, server: 'http://x', load: {client: 3}}]", "benchmarks[0].load has an unknown key "
         "'client': did you mean 'clients'?"),
        ("benchmarks: [{name: n, server: 'http://x', load: {clients: 0}}]", "benchmarks[0].load is not right: "
         "settings of load: clients must be 1 or more"),
        ("benchmarks: [{name: n, server: 'http://x', load: {mode: replay}}]", "replays a trace and names none"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        suite_of(text, "s.yaml", HERE)

    assert message in caught.value.what


def test_files_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is no file"):
        read_suite(tmp_path)
    (tmp_path / "s.yaml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="is no UTF-8"):
        read_suite(tmp_path / "s.yaml")
    monkeypatch.setattr(suite_file, "MAX_BYTES", 0)
    with pytest.raises(InputError, match="which no suite has"):
        read_suite(tmp_path / "s.yaml")


def test_figures_are_found_in_a_log() -> None:
    log = "step 1: 1,234.5 ms\nstep 2: 3e2 ms\n"

    assert figures_in(log, r"^step \d+: (\S+) ms$") == [1234.5, 300.0]
    assert in_ns(1.5, "us") == 1500
    with pytest.raises(ValueError, match="could not convert"):
        figures_in("step 1: x ms", r"^step \d+: (\S+) ms$")
    with pytest.raises(ValueError, match="no finite number"):
        figures_in("step 1: inf ms", r"^step \d+: (\S+) ms$")


def test_time_left_is_measured_then_told_then_assumed_then_unknown() -> None:
    suite = suite_of(
        "runs: 2\nbenchmarks: [{workload: micro}, {workload: llm-pretrain, preset: 1b}, "
        "{name: n, command: x, steps: {regex: '(x)'}, seconds: 7}]", "s.yaml", HERE,
    )  # fmt: skip
    micro, llm, other = (cell.name for cell in suite.cells)

    first = expected_seconds(suite, {})
    later = expected_seconds(suite, {micro: [2.0, 4.0], llm: [50.0], other: [9.0]})

    assert first == {micro: 20.0, llm: None, other: 7.0}
    assert time_left(plan_of(suite), first) == Left(seconds=2 * 20 + 2 * 7, is_least=True)
    assert time_left(plan_of(suite), later) == Left(seconds=2 * 3 + 2 * 50 + 2 * 9)
    assert time_left(plan_of(suite)[4:], first) == Left(seconds=14)
    assert time_left(plan_of(suite)[2:4], first) == Left(seconds=None, is_least=True)
    # Another variant is the guess for one that was not run; what the suite says of it goes before.
    text = "benchmarks: [{name: n, command: x, steps: {regex: '(x)'}, variants: {a: {}, b: {}}%s}]"
    two, told = suite_of(text % "", "s.yaml", HERE), suite_of(text % ", seconds: 7", "s.yaml", HERE)
    assert expected_seconds(two, {"n/a": [4.0]}) == {"n/a": 4.0, "n/b": 4.0}
    assert expected_seconds(told, {"n/a": [4.0]}) == {"n/a": 4.0, "n/b": 7.0}


def test_a_suite_is_spread_over_machines() -> None:
    suite = suite_of("benchmarks: [{workload: llm-pretrain, world_size: 4}]", "s.yaml", HERE)
    place = Place(nodes=2, node_rank=1, master_addr="first", master_port=4000)
    (cell,) = spread(suite, place).cells
    assert isinstance(cell.body, Request)
    ranks = cell.body.ranks
    assert (ranks.per_node, ranks.world_size, list(ranks.here), ranks.master_addr) == (2, 4, [2, 3], "first")
    # Runs that do not belong together do not meet: each has its port, until they begin anew.
    assert [at_run(cell.body, index).ranks.master_port for index in (0, 1, 99, 100)] == [4000, 4001, 4099, 4000]
    assert spread(suite, Place()) == suite and at_run(suite.cells[0].body, 5) == suite.cells[0].body  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has 4 processes, which --nnodes 3 machines cannot share alike"):
        spread(suite, Place(nodes=3))
    with pytest.raises(InputError, match=r"benchmarks\[0\] has nnodes: .* said by the command"):
        suite_of("benchmarks: [{workload: llm-pretrain, nnodes: 2}]", "s.yaml", HERE)
    other = suite_of("benchmarks: [{name: n, command: x, steps: {regex: '(x)'}}]", "s.yaml", HERE)
    with pytest.raises(UsageError, match="n is a command or a server"):
        spread(other, place)
