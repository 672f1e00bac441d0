"""From measurement to verdict on this machine: equal sides pass, planted slowdowns fail with their node named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.bench.suite import run_suite
from ascend_perf.model.result import ResultSet
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

TRAINING = """
name: planted
runs: 1
keep: all
benchmarks:
  - workload: llm-pretrain
    preset: tiny
    device: cpu
    set: {layers: 1, warmup_steps: 1, measured_steps: 2, profiled_steps: 1}
"""

HOOK = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.nn.functional":
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
def plant(functional):
    import torch
    linear = functional.linear
    def slower(x, weight, bias=None):
        flat = x.detach().reshape(-1, x.shape[-1])
        for _ in range(5):
            torch.mm(flat, weight.detach().t().to(flat.dtype))
        return linear(x, weight, bias)
    functional.linear = slower
"""

LOST_FUSION = """
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
    run_suite(json.dumps({"name": "timed", "benchmarks": [entry]}), "suite.yaml", folder, folder / "out")
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


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, plant: str = "") -> ResultSet:
    folder.mkdir()
    if plant:
        (folder / "sitecustomize.py").write_text(plant + HOOK, "utf-8")
        monkeypatch.setenv("PYTHONPATH", str(folder))
    results = run_suite(TRAINING, "suite.yaml", folder, folder / "out")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert all(launch.status == "complete" for launch in results.benchmarks[0].launches)
    return results


@pytest.mark.slow
@pytest.mark.torch
def test_planted_operators_fail_and_are_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    policy = tmp_path / "policy.yaml"
    policy.write_text("timing: false\n", "utf-8")
    for name, plant in (("base", ""), ("again", ""), ("products", MORE_PRODUCTS), ("unfused", LOST_FUSION)):
        trained(tmp_path / name, monkeypatch, plant)

    def gate(head: str) -> Said:
        return command("gate", tmp_path / "base" / "out", tmp_path / head / "out", "--policy", policy,
                       "-o", tmp_path / head / "gate")  # fmt: skip

    assert gate("again").code == 0
    for head, operator, node in (("products", "aten.mm.default", "aten::mm"), ("unfused", "aten._softmax", "softmax")):
        said = gate(head)
        assert said.code == 1, said.out
        document = json.loads((tmp_path / head / "gate" / "gate.json").read_text("utf-8"))
        rows = {row["name"]: row for row in document["rows"]}
        assert rows["op_stream"]["outcome"] == "regression"
        assert rows["host_ops"]["outcome"] == "regression"
        assert any(line.startswith("+") and operator in line for line in rows["op_stream"]["details"])
        (explanation,) = document["explanations"]
        assert node in " ".join(one["name"] for one in explanation["nodes"])
    products = json.loads((tmp_path / "products" / "gate" / "gate.json").read_text("utf-8"))
    assert products["explanations"][0]["nodes"][0]["name"].endswith("aten::mm")
