"""From measurement to verdict on this machine: equal sides pass, planted slowdowns fail with their node named."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.bench.snapshot import Request, take
from ascend_perf.bench.suite import VARIES, run_suite
from ascend_perf.cli import cli
from ascend_perf.model.result import Benchmark
from ascend_perf.op_streams import changes
from ascend_perf.result_files import read_results, write_results
from tests._support import Said

Command = Callable[..., Said]

PROGRAM = """
import pathlib, random, sys
# A virtual clock, so that a busy machine does not decide the test: steps of 20 ms, launches differ by 1 %, steps 2 %.
started = pathlib.Path(__file__).with_name("started")
count = len(started.read_text()) if started.exists() else 0
started.write_text("x" * (count + 1))
draw = random.Random(int(sys.argv[1]) * 1000 + count)
launch = draw.lognormvariate(0, 0.01)
for step in range(20):
    print(f"step {step} took {20 * launch * draw.lognormvariate(0, 0.02) + float(sys.argv[2]):.3f} ms", flush=True)
"""

# Steps are few: counts do not scatter. The four sleeps of a step are 40 times a step of a machine at rest: one that is
# ten times as slow because others use it hides nothing. One thread, so that they share the cores in the same way.
SUITE = """
name: planted
device: cpu
snapshot: false
env: {OMP_NUM_THREADS: "1"}
benchmarks:
  - workload: llm-pretrain
    runs: 1
    set: {layers: 2, width: 64, heads: 2, kv_heads: 1, hidden: 64, vocabulary: 256, tokens: 32, batch: 2,
          accumulate: 1, measured_steps: 1, warmup_steps: 1, profiled_steps: 3}
    variants: {old: {}, again: {}, planted: {env: {PYTHONPATH: "%(products)s"}}}
  - workload: lora-finetune
    runs: 1
    set: {layers: 1, width: 64, heads: 8, kv_heads: 8, hidden: 64, tokens: 512, batch: 4, accumulate: 1,
          measured_steps: 1, warmup_steps: 1, profiled_steps: 3}
    variants: {old: {}, again: {}, planted: {env: {PYTHONPATH: "%(unfused)s"}}}
  - workload: bert-clue
    runs: 3
    set: {batch: 8, samples: 64, held_out_samples: 8, measured_steps: 3, warmup_steps: 1, profiled_steps: 1}
    variants: {old: {}, again: {}, planted: {env: {PYTHONPATH: "%(sleep)s"}}}
"""

# Counts exactly, and of times a step that takes five times as long: what a launch beside other work does not do. Three
# launches of each side are enough for a decision of this confidence (C(6, 3) = 20 orders, 10 % in a tail), and each is
# an interpreter with torch. What the gate promises at 99 %, test_monte_carlo.py and `make eval-gate` show.
POLICY = """
schema_version: 1
confidence: 0.8
metrics:
  - {match: step_time_median, benchmark: "bert-clue/*", fail: 4.0, tolerance: 0.5}
  - {match: "*", fail: null}
"""

HOOK = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def planted(module):
            run(module)
            plant(module)
        spec.loader.exec_module = planted
        return spec
sys.meta_path.insert(0, Finder())
"""

MORE_PRODUCTS = """
MODULE = "ascend_perf.workloads._decoder"
def plant(decoder):
    import torch
    forward = decoder.Block.forward
    extra = torch.ones(1280, 1280)
    def slower(self, *args, **kwargs):
        with torch.no_grad():
            torch.mm(extra, extra)
        return forward(self, *args, **kwargs)
    decoder.Block.forward = slower
"""

LOST_FUSION = """
MODULE = "torch.nn.functional"
def plant(functional):
    import math, torch
    def unfused(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
        scores = query @ key.transpose(-1, -2) * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1).to(value.dtype) @ value
    functional.scaled_dot_product_attention = unfused
"""

SLEEP = """
MODULE = "ascend_perf.workloads._encoded_texts"
def plant(texts):
    import time
    copy = texts._on
    def slower(values, place):
        time.sleep(0.6)
        return copy(values, place)
    texts._on = slower
"""


def timed(folder: Path, seed: int, data_ms: float) -> Path:
    """Two variants in turns: the second spends so much more in the data path of each step."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM, "utf-8")
    words = [sys.executable, str(program), str(seed)]
    entry = {
        "name": "model", "runs": 5, "command": [*words, "0"],
        "steps": {"regex": "took ([0-9.]+) ms", "unit": "ms"},
        "variants": {"old": None, "new": {"command": [*words, str(data_ms)]}},
    }  # fmt: skip
    suite = json.dumps({"name": "timed", "benchmarks": [entry]})
    # No torch is asked which devices there are: the program needs none.
    run_suite(suite, "suite.yaml", folder, folder / "out", machine=lambda device: {"kind": "cpu", "cpu": "of the test"})
    return folder / "out"


def judged(command: Command, results: Path, policy: Path) -> Said:
    return command("gate", results, results, "--base-variant", "old", "--head-variant", "new", "--policy", policy)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    # The command itself is what differs between the variants.
    path.write_text("ignore_settings: [command]\nmetrics: [{match: step_time_median, fail: 0.05}]\n", "utf-8")
    return path


@pytest.mark.slow
def test_equal_variants_pass_ten_times_of_ten(command: Command, tmp_path: Path, policy: Path) -> None:
    codes = [judged(command, timed(tmp_path / str(seed), seed, 0.0), policy).code for seed in range(10)]
    assert codes == [0] * 10


@pytest.mark.slow
def test_a_sleep_in_the_data_path_fails(command: Command, tmp_path: Path, policy: Path) -> None:
    said = judged(command, timed(tmp_path / "suite", 1, 2.0), policy)  # 2 of 20 ms: 10 %
    assert said.code == 1
    assert "model · step_time_median: regression" in said.out


def planted(folder: Path, plant: str) -> str:
    """PYTHONPATH of processes in which the plant replaces what is slower then."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(plant + HOOK, "utf-8")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite of three workloads, each as it was, again, and with a slowdown planted; as `ascend-perf bench` does."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("suite")
    plants = (("products", MORE_PRODUCTS), ("unfused", LOST_FUSION), ("sleep", SLEEP))
    paths = {name: planted(folder / name, plant) for name, plant in plants}
    (folder / "suite.yaml").write_text(SUITE % paths, "utf-8")
    (folder / "gate.yaml").write_text(POLICY, "utf-8")
    done = CliRunner().invoke(cli, ["bench", str(folder / "suite.yaml"), "-o", str(folder / "out")])
    assert done.exit_code == 0 and "15 of 15 runs complete" in done.output, done.output
    return folder


def only(measured: Path, name: str, *parts: str) -> Path:
    """A result file beside that of the suite with a part of its benchmarks."""
    results = read_results(measured / "out")
    chosen = tuple(one for one in results.benchmarks if one.name.startswith(parts))
    assert chosen
    return write_results(measured / "out" / name, replace(results, benchmarks=chosen))


def gated(command: Command, measured: Path, results: Path, head: str, out: Path | None = None) -> Said:
    words = ["--base-variant", "old", "--head-variant", head, "--policy", measured / "gate.yaml"]
    return command("gate", results, results, *words, *(["-o", out] if out else []))


# What the attention consists of where it is no single operator, forward and backward.
PARTS_OF_ATTENTION = re.compile(r"softmax|masked_fill|matmul|aten::mul|bmm|MulBackward|MaskedFill|BmmBackward", re.I)


@pytest.mark.slow
@pytest.mark.torch
def test_a_planted_slowdown_of_each_workload_fails_with_its_node(command: Command, measured: Path) -> None:
    for workload, failing, top in (
        ("llm-pretrain/", "host_ops", re.compile(r"aten::mm$")),
        ("lora-finetune/", "host_ops", PARTS_OF_ATTENTION),
        ("bert-clue/", "step_time_median", re.compile(r"^data::copy")),
    ):
        out = measured / workload.strip("/")
        said = gated(command, measured, only(measured, "one.json", workload), "planted", out)
        assert said.code == 1, said.out
        document = json.loads((out / "gate.json").read_text("utf-8"))
        assert failing in {row["name"] for row in document["rows"] if row["outcome"] == "regression"}, said.out
        (explanation,) = document["explanations"]
        nodes = explanation["nodes"]
        assert nodes and top.search(nodes[0]["name"]), (workload, nodes)
        # The comment names it first.
        comment = unescape((out / "gate.md").read_text("utf-8")).split("Where the time of a step grew")[1]
        rows = [line.split(" | ")[0] for line in comment.splitlines() if line.startswith("| ")]
        assert rows[2] == f"| {nodes[0]['name']}", rows
    # The fused operator is gone, not slower.
    fused = json.loads((measured / "lora-finetune" / "gate.json").read_text("utf-8"))["explanations"][0]["nodes"]
    assert any(PARTS_OF_ATTENTION.search(node["name"]) and not node["base_count"] for node in fused)


@pytest.mark.slow
@pytest.mark.torch
def test_the_same_code_passes_ten_times_of_ten(command: Command, measured: Path) -> None:
    """Launches of `old` and `again` are of one code: each time half of them are the base, half the head."""
    results = read_results(measured / "out")
    known = {one.name: one for one in results.benchmarks}
    assert not [note for one in results.benchmarks for note in one.notes if note.startswith(VARIES)]
    draw, codes = random.Random(7), []
    for _ in range(10):
        made: list[Benchmark] = []
        for name in (name for name in known if name.endswith("/old")):
            sides = [known[name], known[name.removesuffix("old") + "again"]]
            pool = [launch for one in sides for launch in one.launches]
            draw.shuffle(pool)
            half = len(pool) // 2
            made += [
                replace(one, launches=tuple(part))
                for one, part in zip(sides, (pool[:half], pool[half:]), strict=True)
            ]  # fmt: skip
        path = write_results(measured / "out" / "same.json", replace(results, benchmarks=tuple(made)))
        codes.append(gated(command, measured, path, "again").code)
    assert codes == [0] * 10


@pytest.mark.slow
@pytest.mark.torch
def test_another_machine_is_not_comparable(command: Command, measured: Path) -> None:
    path = only(measured, "here.json", "llm-pretrain/", "lora-finetune/", "bert-clue/")
    results = read_results(path)
    facts = {**results.fingerprint, "chip": "another", "cpu": "another"}
    other = write_results(measured / "out" / "other.json", replace(results, fingerprint=facts))
    words = ["--base-variant", "old", "--head-variant", "again", "--policy", measured / "gate.yaml"]
    said = command("gate", other, path, *words)
    assert (said.code, said.out.splitlines()[0]) == (4, "Performance gate cannot compare"), said.out
    assert "fingerprint: not comparable; another machine or other software: chip, cpu" in said.out


@pytest.mark.slow
@pytest.mark.torch
def test_a_lost_fusion_shows_in_the_operators_without_hardware(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shape = ("layers=1", "width=64", "heads=8", "kv_heads=8", "tokens=64")
    cases: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("base", ()), ("head", (f"PYTHONPATH={planted(tmp_path / 'unfused', LOST_FUSION)}",)),
    )  # fmt: skip
    streams = [
        take(Request(workload="llm-pretrain", overrides=shape, mode="fake", variables=variables),
             tmp_path / f"{name}.ops.txt")
        for name, variables in cases
    ]  # fmt: skip
    said = command("gate", tmp_path / "base.ops.txt", tmp_path / "head.ops.txt", "-o", tmp_path / "gate")
    assert said.code == 1, said.out
    (row,) = json.loads((tmp_path / "gate" / "gate.json").read_text("utf-8"))["rows"]
    assert row["outcome"] == "regression"
    assert any(line.startswith("+") and "aten._softmax.default" in line for line in row["details"]), row["details"]
    gone = [one.operator for one in changes(*streams) if one.b == 0]
    assert any("scaled_dot_product" in operator for operator in gone), gone
