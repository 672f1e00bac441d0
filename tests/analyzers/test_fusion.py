"""Fused operators: what a sequence could gain at most, when it may be recommended, and what real profiles show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.fusion import fusion
from ascend_perf.analyzers.vector_chains import vector_chains
from ascend_perf.model.finding import Finding, Outcome, ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
DEVICE = Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_800_000_000)
NPU = Meta(rank=3, device=DEVICE, versions={"cann": "8.3.RC1"})
GPU = Meta(rank=0, device=Device(kind="gpu", name="NVIDIA A100-SXM4-80GB"))
CPU = Meta(rank=0, device=Device(kind="cpu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
GRADIENT = {"start_ns": 999_000, "dur_ns": 10, "name": "aclnn", "op_type": "SwiGluGrad", "core": "AIV", "stream": 9}


def _rows(layer: Sequence[tuple[str, int]], times: int = 2, **more: object) -> list[dict[str, object]]:
    rows = []
    for n in range(times):
        at = n * 1_000_000 // times
        for op_type, dur in layer:
            rows.append(
                {"start_ns": at, "dur_ns": dur, "name": f"aclnn_{op_type}", "op_type": op_type, "core": "AIV"}
                | {"stream": 2}
                | more
            )
            at += dur
    return rows


def _finding(outcome: Outcome) -> Finding:
    (found,) = outcome.findings
    return found


def _table(outcome: Outcome, name: str = "fusion-candidates") -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _verdict(outcome: Outcome, code: str) -> str:
    (judged,) = [judged for judged in outcome.judged if judged.code == code]
    return judged.verdict


def _codes(found: Finding) -> str:
    return "\n".join(remedy.code for remedy in found.remedies)


ATTENTION = [("BatchMatMul", 40_000), ("Muls", 10_000), ("SoftmaxV2", 20_000), ("BatchMatMul", 30_000)]
RMS = [("Pows", 10_000), ("ReduceMean", 5_000), ("Adds", 5_000), ("Rsqrt", 5_000), ("Mul", 10_000), ("Mul", 15_000)]


def test_without_shapes_a_sequence_gains_all_but_its_longest_kernel(make_trace: Make) -> None:
    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=_rows(ATTENTION)))

    found = _finding(outcome)
    assert (found.code, found.subject) == ("C-12", "attention")
    assert found.share_ratio == pytest.approx(0.2 * 60 / 100)  # 100 us per layer, 40 us of it stays
    assert found.evidence[0].value == 2
    assert (_verdict(outcome, "C-12"), _verdict(outcome, "C-13")) == ("found", "clean")


def test_of_attention_the_products_stay_where_the_scores_take_longer(make_trace: Make) -> None:
    layer = [("BatchMatMul", 10_000), ("Muls", 20_000), ("SoftmaxV2", 60_000), ("BatchMatMul", 10_000)]

    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=_rows(layer)))

    assert _finding(outcome).share_ratio == pytest.approx(0.2 * 80 / 100)


@pytest.mark.parametrize(("mask", "part"), [("Muls", 1.0), ("MaskedFill", 0.5)])
def test_with_shapes_attention_needs_its_products_at_the_peak(make_trace: Make, mask: str, part: float) -> None:
    heads, length, width = 32, 512, 64
    q, scores = f"{heads},{length},{width}", f"{heads},{length},{length}"
    shapes = [(f"{q};{heads},{width},{length}", scores), (scores, scores), (scores, scores), (f"{scores};{q}", q)]
    rows = _rows([("BatchMatMul", 40_000), (mask, 30_000), ("SoftmaxV2", 60_000), ("BatchMatMul", 40_000)])
    for i, row in enumerate(rows):
        given, made = shapes[i % 4]
        dtypes = ";".join(["FLOAT16"] * (given.count(";") + 1))
        row |= {"input_shapes": given, "output_shapes": made, "input_dtypes": dtypes, "output_dtypes": "FLOAT16"}

    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows))

    # Two products of 2 * 512 * 512 * 64 * 32 FLOP, on 20 cores of 8192 FLOP per cycle at 1.8 GHz.
    least_ns = part * 2 * 2 * length * length * width * heads / (20 * 8192 * 1.8e9) * 1e9
    assert _finding(outcome).share_ratio == pytest.approx(0.34 * (1 - least_ns / 170_000), rel=1e-3)


def test_with_shapes_a_norm_needs_two_tensors_at_the_best_rate(make_trace: Make) -> None:
    # The square reads and writes 2 x 2 MB in 10 us; the last product, of the same size, takes 15 us.
    rows = _rows(RMS, input_shapes="1024,1024", output_shapes="1024,1024", input_dtypes="FLOAT16",
                 output_dtypes="FLOAT16")  # fmt: skip
    for row in rows:
        if row["op_type"] in ("ReduceMean", "Adds", "Rsqrt"):
            row |= {"input_shapes": "1024,1", "output_shapes": "1024,1"}

    found = _finding(fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows)))

    assert (found.code, found.subject) == ("C-13", "rms-norm")
    assert found.share_ratio == pytest.approx(0.1 * (1 - 10 / 50))  # 50 us per layer, of which 10 stay
    assert "torch_npu.npu_rms_norm" in _codes(found)


def test_one_sequence_alone_is_no_layer(make_trace: Make) -> None:
    rows = _rows([("Swish", 300_000), ("Mul", 300_000)], times=1)

    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows))

    assert outcome.findings == () and _verdict(outcome, "C-13") == "clean"


@pytest.mark.parametrize(
    ("rows", "subject", "api"),
    [
        ([], "attention", "npu_fused_infer_attention_score"),
        ([GRADIENT], "attention", "npu_fusion_attention"),
    ],
)
def test_training_and_inference_get_their_own_operator(
    make_trace: Make, rows: list[dict[str, object]], subject: str, api: str
) -> None:
    trace = make_trace(meta=NPU, steps=STEP, kernels=[*_rows(ATTENTION), *rows])

    found = _finding(fusion.run_on_trace(trace))

    assert found.subject == subject
    assert f"torch_npu.{api}(" in found.remedies[0].code


def test_what_has_no_gradient_is_not_recommended_in_training(make_trace: Make) -> None:
    kernels = _rows([("Add", 20_000), *RMS], times=4)
    inference = _finding(fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels)))
    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[*kernels, GRADIENT]))
    training = _finding(outcome)

    assert (inference.subject, training.subject) == ("add-rms-norm", "rms-norm")
    assert "npu_add_rms_norm" in _codes(inference)
    assert "npu_add_rms_norm" not in _codes(training) and "npu_rms_norm" in _codes(training)


def test_a_sequence_without_a_trainable_operator_is_listed_as_inference_only(make_trace: Make) -> None:
    kernels = _rows([("Add", 50_000), ("RmsNorm", 50_000)], times=4)

    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[*kernels, GRADIENT]))

    assert outcome.findings == ()
    table = _table(outcome)
    assert (table.column("fusion"), table.column("state")) == (("add-rms-norm",), ("inference only",))
    (judged,) = [row for row in outcome.judged if row.code == "C-13"]
    assert judged.reason is not None and "inference only" in judged.reason.en


def test_an_older_cann_is_told_what_it_lacks(make_trace: Make) -> None:
    kernels = _rows([("Add", 50_000), ("LayerNormV4", 50_000)], times=4)
    old = Meta(rank=3, device=DEVICE, versions={"cann": "7.0.0"})
    unknown = Meta(rank=3, device=DEVICE)

    outcome = fusion.run_on_trace(make_trace(meta=old, steps=STEP, kernels=kernels))
    assert outcome.findings == ()
    assert _table(outcome).column("state") == ("needs CANN 8.0.RC1",)
    found = _finding(fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels)))
    assert found.subject == "add-layer-norm" and not any("installed CANN" in e.name.en for e in found.evidence)
    found = _finding(fusion.run_on_trace(make_trace(meta=unknown, steps=STEP, kernels=kernels)))
    assert [e.value for e in found.evidence if e.name.en == "installed CANN (needed: 8.0.RC1)"] == [None]


def test_another_product_or_an_older_torch_leaves_out_what_needs_them(make_trace: Make) -> None:
    attention = _rows(ATTENTION)
    for name, expected in (
        ("Ascend310P3", ["npu_prompt_flash_attention"]),
        ("Ascend910B4", ["npu_fused_infer_attention_score"]),
        ("Ascend910_9391", ["npu_fused_infer_attention_score"]),
        ("Ascend910B", ["npu_fused_infer_attention_score", "npu_prompt_flash_attention"]),
    ):
        meta = Meta(rank=3, device=Device(kind="npu", name=name))
        found = _finding(fusion.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=attention)))
        assert [remedy.code.split("torch_npu.")[1].split("(")[0] for remedy in found.remedies[:-1]] == expected

    gate = _rows([("Gelu", 50_000), ("Mul", 50_000)], times=4)
    for torch, expected in (("2.1.0", ["npu_geglu"]), ("2.7.1", ["npu_geglu", "npu_gelu_mul"])):
        meta = Meta(rank=3, device=DEVICE, versions={"cann": "8.3.RC1", "torch_npu": torch})
        found = _finding(fusion.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=gate)))
        assert [remedy.code.split("torch_npu.")[1].split("(")[0] for remedy in found.remedies[:-1]] == expected


def test_a_product_without_any_of_the_operators_is_told_which_have_them(make_trace: Make) -> None:
    meta = Meta(rank=3, device=Device(kind="npu", name="Ascend310P3"))
    kernels = _rows([("LogSoftmaxV2", 100_000), ("NLLLoss", 100_000)])

    outcome = fusion.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=kernels))

    assert outcome.findings == ()
    assert _table(outcome).column("state") == ("outside its limits: products A2, A3",)


def test_shapes_that_contradict_a_limit_are_no_finding(make_trace: Make) -> None:
    layer = [("Mul", 20_000), ("Slice", 20_000), ("Neg", 20_000), ("ConcatD", 20_000), ("Mul", 20_000), ("Add", 20_000)]
    wide = _rows(layer, input_shapes="1,128,8,1024", input_dtypes="FLOAT16")
    fitting = _rows(layer, input_shapes="1,128,8,128", input_dtypes="FLOAT16")
    double = _rows(RMS, input_shapes="1,128,1024", input_dtypes="DOUBLE")

    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[*wide, GRADIENT]))
    assert outcome.findings == ()
    assert _table(outcome).column("state") == ("outside its limits: last axis <= 895, multiple of 2",)
    found = _finding(fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[*fitting, GRADIENT])))
    assert found.subject == "rotary"
    outcome = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[*double, GRADIENT]))
    assert outcome.findings == ()


def test_transposes_count_only_where_one_takes_what_the_other_wrote(make_trace: Make) -> None:
    rows = _rows([("Transpose", 50_000), ("Transpose", 50_000)], times=4)
    for i, row in enumerate(rows):
        given, made = ("2,3,4", "3,2,4") if i % 2 == 0 else ("3,2,4", "4,2,3")
        row |= {"input_shapes": given, "output_shapes": made}
    connected = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows))
    for row in rows:
        row |= {"input_shapes": "2,3,4", "output_shapes": "3,2,4"}
    parallel = fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows))

    assert _table(connected).column("fusion") == ("repeated-transpose",)
    assert _table(connected).column("count") == (4.0,)
    assert connected.findings == ()  # row C-10 counts the time
    assert not any(table.name == "fusion-candidates" for table in parallel.tables)


def test_tensors_of_another_size_are_no_gate(make_trace: Make) -> None:
    rows = _rows([("Sigmoid", 50_000), ("Mul", 50_000), ("Mul", 50_000)], times=4)
    for row in rows:
        row["input_shapes"] = "64,32" if row["op_type"] == "Sigmoid" else "64,64;64,64"
    assert fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows)).findings == ()
    for row in rows:
        row["input_shapes"] = "64,64"
    assert _finding(fusion.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=rows))).subject == "swiglu"


def test_chains_leave_out_what_a_fused_operator_takes(make_trace: Make) -> None:
    more = {"input_shapes": "64,64", "output_shapes": "64,64", "input_dtypes": "FLOAT16", "output_dtypes": "FLOAT16"}
    rows = _rows([("Sigmoid", 50_000), ("Mul", 50_000), ("Mul", 50_000)], times=4, **more)
    trace = make_trace(meta=NPU, steps=STEP, kernels=rows)

    assert _finding(fusion.run_on_trace(trace)).subject == "swiglu"
    assert vector_chains.run_on_trace(trace).findings == ()
    assert not any(table.name == "repeated-kernels" for table in fusion.run_on_trace(trace).tables)


def test_a_gpu_gets_torch_and_never_npu_calls(make_trace: Make) -> None:
    names = ["silu_kernel", "binary_internal::MulFunctor<float>"]
    rows = [
        {"start_ns": 100_000 * i + 50_000 * k, "dur_ns": 50_000, "name": name, "core": "SM", "stream": 7}
        for i in range(8) for k, name in enumerate(names)
    ]  # fmt: skip

    found = _finding(fusion.run_on_trace(make_trace(meta=GPU, steps=STEP, kernels=rows)))

    assert "torch.compile" in _codes(found) and "npu" not in _codes(found)
    assert found.share_ratio == pytest.approx(0.4)


def test_a_model_on_the_cpu_is_judged_by_its_operators(make_trace: Make) -> None:
    norm = ["aten::pow", "aten::mean", "aten::add", "aten::rsqrt", "aten::mul", "aten::mul"]
    ops = [
        {"name": name, "start_ns": 10 * n, "dur_ns": 10, "thread": 1} for n, name in enumerate([*norm, "aten::mm"] * 10)
    ]
    trace = make_trace(meta=CPU, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}], host_ops=ops)

    found = _finding(fusion.run_on_trace(trace))

    # Ten norms of six operators of 10 ns: 600 of 1000 ns, of which a fused one still needs its longest sixth.
    assert found.share_ratio == pytest.approx(0.6 * 5 / 6)
    assert "10 times per step" in found.title.en and "operators" in found.title.en
    assert "F.rms_norm" in _codes(found) and "torch_npu" not in _codes(found)


def test_layers_are_named_by_their_modules(make_trace: Make) -> None:
    ops, kernels, events = [], [], []
    for n in range(4):
        at = 200_000 * n
        name = f"nn.Module: LlamaMLP_{n}"
        events.append({"start_ns": at, "dur_ns": 1000, "name": name, "kind": "python", "thread": 1})
        for k, name in enumerate(["silu", "mul"]):
            ops.append({"start_ns": at + 100 * k, "dur_ns": 50, "name": f"aten::{name}", "thread": 1})
            kernels.append(
                {"start_ns": at + 50_000 * k, "dur_ns": 50_000, "name": "k", "op_type": "Special", "core": "AIV",
                 "stream": 1, "host_op": 2 * n + k}
            )  # fmt: skip
    trace = make_trace(meta=NPU, steps=STEP, host_ops=ops, kernels=kernels, host_events=events)

    outcome = fusion.run_on_trace(trace)

    assert [e.value for e in _finding(outcome).evidence if e.name.en == "layers"] == ["LlamaMLP (4 x)"]
    # 100 us of each layer are kernels without a gap between them: nothing idle.
    assert _table(outcome).column("idle_ns") == (0.0,)
    assert _table(outcome).column("launches") == (4.0,)


def test_a_device_trace_without_kernels_is_not_judged_by_its_host(make_trace: Make) -> None:
    ops = [{"name": "aten::mm", "start_ns": 0, "dur_ns": 10, "thread": 1}]
    assert fusion.run_on_trace(make_trace(meta=NPU, host_ops=ops)).status == "no_data"
    assert fusion.run_on_trace(make_trace(meta=NPU)).status == "no_data"


def _real(traces: Path, name: str) -> Outcome:
    (trace,) = pipeline.load(traces / name).traces
    outcome = fusion.run_on_trace(trace)
    assert outcome.status == "done", outcome.reason
    return outcome


def test_a_net_without_attention_or_norms_has_no_finding(traces: Path) -> None:
    outcome = _real(traces, "ascend-pytorch/text/level1/rank0_ascend_pt")

    assert outcome.findings == ()
    # The layers of the classifier could be one operator in inference; this is training.
    table = _table(outcome)
    assert dict(zip(table.column("fusion"), table.column("state"), strict=True)) == {
        "cross-entropy": "applicable", "feed-forward": "inference only",
    }  # fmt: skip


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_fused_is_not_reported(traces: Path, rank: int) -> None:
    outcome = _real(traces, f"ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_{rank}_ascend_pt")

    # RmsNorm, FlashAttentionScore, SwiGlu and RotaryPositionEmbedding are there.
    assert outcome.findings == ()
    assert set(_table(outcome).column("fusion")) <= {"add-rms-norm", "repeated-transpose"}
    assert "applicable" not in _table(outcome).column("state")


@pytest.mark.parametrize("device", ["h100", "mi300"])
def test_an_llm_with_separate_kernels_shows_its_sequences(traces: Path, device: str) -> None:
    outcome = _real(traces, f"kineto/{device}/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")

    assert {f.subject for f in outcome.findings} == {"rms-norm", "rotary", "swiglu"}
    # Attention is fused there.
    assert _verdict(outcome, "C-12") == "clean"
    layers = {f.subject: next(str(e.value) for e in f.evidence if e.name.en == "layers") for f in outcome.findings}
    assert layers["rms-norm"].startswith("Qwen2RMSNorm (") and layers["swiglu"].startswith("Qwen2MLP (")
    assert not any("npu" in _codes(f) for f in outcome.findings)


def test_each_attention_of_a_vision_model_is_found(traces: Path) -> None:
    outcome = _real(traces, "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz")

    found = _finding(outcome)
    # Five inferences with 24 layers of vision and 12 of text: 180 softmax kernels, one per attention.
    assert (found.code, found.evidence[0].value) == ("C-12", 180.0)
    assert "scaled_dot_product_attention" in _codes(found)
