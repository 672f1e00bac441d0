"""The contract check on the real torch_npu wheel: all our own sources, and what its operators themselves say."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, contract, variables
from ascend_perf.collectors.virtual_npu._contract_calls import fits, literal
from ascend_perf.collectors.virtual_npu._contract_names import Facts
from tests._virtual_npu import ready_npu

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel() -> tuple[Facts, Prepared]:
    """What torch_npu offers."""
    ready_npu()
    return contract.facts_of()


def test_our_own_sources_call_what_is_there(wheel: tuple[Facts, Prepared]) -> None:
    folders = [ROOT / name for name in ("ascend_perf", "analyzers", "collectors", "reports", "workloads", "benchmarks",
                                        "examples", "docs", "recipes")]  # fmt: skip
    files = [path for path in contract.python_files([one for one in folders if any(one.rglob("*.py"))])
             if "npu" in path.read_text("utf-8")]  # fmt: skip

    found = {
        f"{path.relative_to(ROOT)}:{one.line}: {one.said.en}"
        for path in files for one in contract.check_file(path, wheel[0]) if one.level != "note"
    }  # fmt: skip

    assert len(files) > 50
    assert found == set()


PLANTED = """
import torch, torch_npu
torch_npu.npu_rms_norm(x, w, eps=1e-6)
torch_npu.npu_rms_nrom(x, w)
torch_npu.npu_swiglu(x, axis=-1)
torch_npu.profiler.ProfilerLevel.Level5
torch_npu.optim.NpuFusedAdamW(p, momentum=0.9)
torch_npu.profiler.profile(activites=[])
torch.npu.synchronise()
torch_npu.npu_fusion_attention(q, k, v, "BNSD")
torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", atten_mask=m, sparse_mode="causal")
torch_npu.npu_grouped_matmul(x, w, groups=g)
torch_npu.npu_moe_gating_top_k_softmax(x, None, "2")
torch_npu.npu_rotary_mul(x, cos, sin, interleaved=True)
torch_npu.profiler.AiCMetrics.PipeUtilisation
torch_npu.profiler.schedule(1, 2, 3, 4, 5, 6, 7)
torch_npu.npu_quant_matmul(x, w)
torch.npu.set_devices(0)
torch.npu_rms_norm(x, w)
torch.ops.npu.npu_rms_norm.out(x, w)
from torch_npu.contrib.module import LinearA8W8Quantt
torch_npu.npu_format_cast(x, "FRACTAL_NZ")
"""
CORRECT = """
import torch, torch_npu
torch_npu.npu_rms_norm(x, w, epsilon=1e-6)[0]
torch_npu.npu_swiglu(x, dim=-1)
torch_npu.npu_rotary_mul(x, cos, sin)
torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", atten_mask=m, scale=0.1, sparse_mode=3, actual_seq_qlen=[1, 2])
torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, input_layout="BSH", scale=0.1)
torch_npu.npu_grouped_matmul([x], [w], group_list=g, split_item=2, group_type=0, group_list_type=1)
torch_npu.npu_moe_gating_top_k_softmax(x, None, k=2)
torch_npu.optim.NpuFusedAdamW(p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
torch.npu.set_device(0)
torch.npu.synchronize()
torch.npu.current_stream().synchronize()
torch.npu.Stream(device=0).wait_stream(torch.npu.current_stream())
torch.npu.Event(enable_timing=True).record()
torch.npu.max_memory_allocated()
torch.npu.memory_stats()["x"]
torch.npu.config.allow_internal_format = False
torch.npu.matmul.allow_hf32 = True
torch.npu.amp.GradScaler(enabled=False)
torch.npu.mstx.range_start("a")
torch.npu.set_compile_mode(jit_compile=False)
with torch_npu.profiler.profile(
    activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
    schedule=torch_npu.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("out", analyse_flag=False),
    experimental_config=torch_npu.profiler._ExperimentalConfig(
        profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
        aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
        export_type=[torch_npu.profiler.ExportType.Text], host_sys=[torch_npu.profiler.HostSystem.CPU], mstx=True,
    ),
) as prof:
    prof.step()
from torch_npu.contrib import transfer_to_npu
from torch_npu.profiler.profiler import analyse
analyse(profiler_path="x", max_process_number=1)
"""


def test_planted_errors_are_found_and_correct_calls_accepted(wheel: tuple[Facts, Prepared]) -> None:
    facts, _ = wheel
    planted = PLANTED.count("\n") - 2  # every line but the empty first and the import

    wrong = [one for one in contract.check_text(PLANTED, facts) if one.level == "error"]

    assert sorted({one.line for one in wrong}) == list(range(3, 3 + planted))
    # It trains with an optimizer, and some of the operators are for inference: that is told, nothing else.
    assert {one.rule for one in contract.check_text(CORRECT, facts)} == {"no-gradient"}


def test_facts_are_kept_beside_the_wheel(
    wheel: tuple[Facts, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("torch_npu was started again")

    monkeypatch.setattr(contract, "_ask", refuse)

    facts, prepared = contract.facts_of()

    assert facts.torch_npu == prepared.torch_npu_version
    # As the wheel registers them: 66 by formula, 2 through another operator; 4 that only raise are not among them.
    own = [name for name, rows in facts.operators.items() for one in rows.values() if one["gradient"] == "own"]
    assert 60 <= len(own) <= 120
    assert facts.gradient("npu_rms_norm") == "own"
    assert facts.gradient("npu_add_rms_norm") == "refuses"
    assert facts.gradient("npu_grouped_matmul") == "none"


LITERALS = ["1", "1.5", "-2", "True", "None", "'a'", "[1, 2]", "(1, 2)", "[1.5]", "['a']", "[]", "[None]", "{}"]
SCHEMAS = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "Tensor": "Tensor", "Tensor?": "Optional[Tensor]",
    "int?": "Optional[int]", "int[]": "List[int]", "int[]?": "Optional[List[int]]", "float[]": "List[float]",
    "Tensor[]": "List[Tensor]", "str?": "Optional[str]", "Scalar": "number",
}  # fmt: skip


@pytest.mark.slow
def test_literals_and_gradients_are_as_torch_has_them(wheel: tuple[Facts, Prepared], tmp_path: Path) -> None:
    facts, prepared = wheel
    cases = [(schema, text) for schema in SCHEMAS for text in LITERALS]
    environment = {**os.environ, **variables(VirtualNpu(), prepared, tmp_path)}

    done = subprocess.run(
        [str(prepared.python), "-m", "tests.collectors.virtual_npu._contract_child"], input=json.dumps(cases),
        env=environment, capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])

    ours = []
    for schema, text in cases:
        value = literal(ast.parse(text, mode="eval").body)
        ours.append(value is None or fits(SCHEMAS[schema], value))
    differ = {case for case, theirs, mine in zip(cases, told["takes"], ours, strict=True) if theirs and not mine}
    passed_over = {case for case, theirs, mine in zip(cases, told["takes"], ours, strict=True) if mine and not theirs}
    assert differ == set()  # what torch takes is never called wrong
    assert passed_over == set()
    known = {name: facts.gradient(name) for name in told["gradients"]}
    assert {name: "own" if kind == "composite" else kind for name, kind in known.items()} == told["gradients"]
