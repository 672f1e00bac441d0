"""Rows of experts on generated layers: none in a dense model whatever its layout, those of a mixture and no others.

The generator writes the kernels of a transformer's step as torch_npu launches them. Its products that belong to experts
are marked where they are made, so the expected figures come from the generator and not from the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers.expert_kernels import expert_kernels
from ascend_perf.analyzers.experts import experts
from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from tests.conftest import build_table

DURATION = 1_000_000
"""Far more than any of these products needs at the peaks of the device, so that nothing is too small to be told."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes and habits of a dense decoder."""

    layers: int = 4
    tokens: int = 4096
    width: int = 4096
    hidden: int = 11008
    kv_width: int = 4096
    shards: int = 1
    is_batched: bool = True
    is_fused: bool = True
    is_recomputed: bool = True
    trains: bool = True


@dataclass
class Step:
    """Kernels in order, and which of them are products of experts."""

    model: Model
    rows: list[tuple[str, str]] = field(default_factory=list)
    is_expert: list[bool] = field(default_factory=list)

    def add(self, op_type: str, shapes: str = "8,8", *, expert: bool = False) -> None:
        self.rows.append((op_type, shapes))
        self.is_expert.append(expert)

    def product(self, rows: int, inner: int, columns: int, *, expert: bool = False) -> None:
        """rows x inner by inner x columns; activations of the dense part carry the batch's axis."""
        batch = "1," if self.model.is_batched and not expert and rows == self.model.tokens else ""
        self.add("MatMulV3", f"{batch}{rows},{inner};{inner},{columns}", expert=expert)

    def linear_back(self, tokens: int, inner: int, columns: int) -> None:
        """Gradients of a linear layer's weight and input."""
        self.product(columns, tokens, inner)
        self.product(tokens, columns, inner)

    def norm(self) -> None:
        for op in ("RmsNorm",) if self.model.is_fused else ("Pows", "ReduceMean", "Adds", "Rsqrt", "Mul", "Mul"):
            self.add(op)

    def attend(self) -> None:
        for _ in range(2):
            rope = ("RotaryPositionEmbedding",)
            plain = ("GatherV2", "GatherV2", "Slice", "Slice", "Neg", "ConcatD", "Mul", "Mul", "Add")
            for op in rope if self.model.is_fused else plain:
                self.add(op)
        fused = ("FlashAttentionScore", "Slice")
        for op in fused if self.model.is_fused else ("BatchMatMulV2", "Muls", "Add", "SoftmaxV2", "BatchMatMulV2"):
            self.add(op)

    def attention(self) -> None:
        m = self.model
        self.product(m.tokens, m.width, m.width // m.shards)
        self.product(m.tokens, m.width, m.kv_width // m.shards)
        self.product(m.tokens, m.width, m.kv_width // m.shards)
        self.attend()
        self.product(m.tokens, m.width // m.shards, m.width)
        self.add("Add")

    def attention_back(self) -> None:
        m = self.model
        self.linear_back(m.tokens, m.width // m.shards, m.width)
        self.add("FlashAttentionScoreGrad" if m.is_fused else "BatchMatMulV2")
        for columns in (m.width, m.kv_width, m.kv_width):
            self.add("Slice")
            self.linear_back(m.tokens, m.width, columns // m.shards)
        for op in ("Add", "Add", "RmsNormGrad"):
            self.add(op)

    def mlp(self) -> None:
        m = self.model
        for _ in range(2):
            self.product(m.tokens, m.width, m.hidden // m.shards)
        self.add("ConcatD")
        self.add("SwiGlu")
        self.product(m.tokens, m.hidden // m.shards, m.width)

    def mlp_back(self) -> None:
        m = self.model
        self.linear_back(m.tokens, m.hidden // m.shards, m.width)
        self.add("SwiGluGrad")
        for _ in range(2):
            self.add("Slice")
            self.linear_back(m.tokens, m.width, m.hidden // m.shards)
        for op in ("Add", "RmsNormGrad"):
            self.add(op)

    def loop(self, tokens: Sequence[int], hidden: int, around: tuple[str, ...] = ()) -> None:
        """Experts one by one."""
        for count in tokens:
            for op in around:
                self.add(op)
            for _ in range(2):
                self.product(count, self.model.width, hidden, expert=True)
            self.add("SwiGlu")
            self.product(count, hidden, self.model.width, expert=True)


def dense(model: Model, mlp: Callable[[Step, int], None] | None = None) -> Step:
    """A step: embedding, layers, loss, backward with recomputation, the embedding's gradient by a sort, optimizer."""
    step = Step(model)
    step.add("GatherV2")
    for layer in range(model.layers):
        step.norm()
        step.attention()
        step.norm()
        step.mlp() if mlp is None else mlp(step, layer)
        step.add("Add")
    step.norm()
    step.product(model.tokens, model.width, 32_000)
    if not model.trains:
        for op in ("TopKV2", "Sort", "SoftmaxV2", "GatherV2"):  # sampling
            step.add(op)
        return step
    step.add("CrossEntropyLoss")
    step.add("CrossEntropyLossGrad")
    step.linear_back(model.tokens, model.width, 32_000)
    for _ in range(model.layers):
        step.add("RmsNormGrad")
        if model.is_recomputed:
            step.norm()
            step.attention()
            step.norm()
            step.mlp()
        step.mlp_back()
        step.attention_back()
    step.add("Sort")
    step.add("EmbeddingDenseGradV2")
    for _ in range(5):  # Newton-Schulz of an optimizer: equal square products
        for _ in range(3):
            step.product(model.width, model.width, model.width)
        step.add("Add")
    return step


def trace_of(step: Step, groups: tuple[Group, ...] = (), steps: int = 2) -> Trace:
    rows = step.rows * steps
    return Trace(
        {
            "kernels": build_table("kernels", [
                {"start_ns": at * DURATION, "dur_ns": DURATION, "op_type": op, "name": f"aclnn_{op}_{op}",
                 "input_shapes": shapes, "stream": 0, "input_dtypes": "DT_BF16;DT_BF16", "output_dtypes": "DT_BF16",
                 "output_shapes": f"{shapes.split(';')[0].rsplit(',', 1)[0]},{shapes.rsplit(',', 1)[1]}"}
                for at, (op, shapes) in enumerate(rows)
            ]),
            "steps": build_table("steps", [
                {"step_id": at, "start_ns": at * len(step.rows) * DURATION, "dur_ns": len(step.rows) * DURATION}
                for at in range(steps)
            ]),
        },
        Meta(rank=0, world_size=8, device=Device(kind="npu", name="Ascend910B3"), groups=groups),
    )  # fmt: skip


def judge(step: Step, groups: tuple[Group, ...] = ()) -> Outcome:
    outcome = expert_kernels.run_on_trace(trace_of(step, groups))
    assert outcome.status == "done", outcome.reason
    return outcome


LAYOUTS = {
    "7b": Model(),
    "unfused": Model(is_fused=False),
    "tensor-parallel": Model(shards=4),
    "grouped-query-heads": Model(kv_width=1024),
    "grouped-query-heads-unfused-flat": Model(kv_width=1024, is_fused=False, is_batched=False),
    "not-recomputed": Model(is_recomputed=False, kv_width=1024),
    "hidden-is-four-widths": Model(hidden=4 * 4096, is_batched=False),
    "long-and-shallow": Model(tokens=11008, layers=2),
    "deep": Model(layers=40, tokens=2048),
    "decode": Model(trains=False, tokens=16, is_batched=False),
    "prefill-unfused": Model(trains=False, tokens=777, is_fused=False),
}


@pytest.mark.parametrize("model", LAYOUTS.values(), ids=LAYOUTS)
def test_a_dense_model_has_no_experts(model: Model) -> None:
    step = dense(model)
    square = sum(op == "MatMulV3" and shapes.endswith("4096,4096") for op, shapes in step.rows)
    assert model.shards > 1 or square >= 2 * model.layers  # equal products are there to be mistaken
    # A dense job of Megatron has groups of experts too, of one rank each.
    outcome = judge(step, (Group(name="e", label="expert_model_parallel_group", ranks=(0,)),))
    assert outcome.findings == ()
    assert {j.code: j.verdict for j in outcome.judged} == {"E-02": "clean", "E-04": "clean"}
    assert experts.run_on_run(Run(traces=(trace_of(step),))).status == "no_data"


@settings(max_examples=40)
@given(
    st.builds(
        Model, layers=st.integers(1, 6), tokens=st.sampled_from((1, 64, 1024, 4096, 11008)),
        width=st.sampled_from((1024, 4096)), hidden=st.sampled_from((1024, 4096, 11008)),
        kv_width=st.sampled_from((1024, 4096)), shards=st.sampled_from((1, 2, 8)), is_batched=st.booleans(),
        is_fused=st.booleans(), is_recomputed=st.booleans(), trains=st.booleans(),
    )
)  # fmt: skip
def test_no_size_of_a_dense_model_makes_experts_of_it(model: Model) -> None:
    assert judge(dense(model)).findings == ()


def varied(step: Step, layer: int) -> None:
    step.loop([(31 * expert + 17 * layer) % 97 + 8 for expert in range(8)], 1408)


def padded(step: Step, layer: int) -> None:
    """A capacity pads every expert to as many tokens; the router is seen."""
    step.product(step.model.tokens, step.model.width, 8)
    for op in ("SoftmaxV2", "TopKV2", "Sort", "GatherV2"):
        step.add(op)
    step.loop([512] * 8, 1408)
    for op in ("GatherV2", "Mul", "ReduceSum"):
        step.add(op)


def gathered(step: Step, layer: int) -> None:
    """A loop that gathers and scatters each expert's tokens, after a router that a border parts from them."""
    for op in ("SoftmaxV2", "TopKV2", "RmsNorm"):
        step.add(op)
    step.loop([512] * 6, 1408, around=("NonZero", "Index"))


@pytest.mark.parametrize("mlp", [varied, padded, gathered])
@pytest.mark.parametrize("model", [Model(), Model(is_fused=False), Model(kv_width=1024)], ids=["mha", "plain", "gqa"])
def test_of_a_mixture_only_the_products_of_experts_are_counted(model: Model, mlp: Callable[[Step, int], None]) -> None:
    # Attention's equal products and the dense layers of the backward are in the same trace.
    step = dense(replace(model, layers=3), mlp)
    (found,) = [f for f in judge(step).findings if f.code == "E-02"]
    count = sum(step.is_expert)
    runs = 2 * 3  # up and down of three layers
    assert f"{count} products in {runs} rows of" in found.title.en
    spent = next(e for e in found.evidence if e.unit == "ns" and "products of single experts" in e.name.en)
    assert spent.value == count * DURATION


def test_the_backward_of_a_padded_loop_is_of_experts_too() -> None:
    # Gradients of the inputs have the shapes of the forward's other product, with no router near.
    step = dense(Model(layers=2), padded)
    for _ in range(2):
        step.add("RmsNormGrad")
        for _ in range(8):
            step.product(512, 4096, 1408, expert=True)
            step.product(4096, 512, 1408)  # of the weight: its number of rows is the width of the model
            step.add("SwiGluGrad")
            for _ in range(2):
                step.product(512, 1408, 4096, expert=True)
                step.product(1408, 512, 4096)
    (found,) = [f for f in judge(step).findings if f.code == "E-02"]
    assert f"{sum(step.is_expert)} products in 8 rows of" in found.title.en


def test_a_group_of_experts_is_no_evidence_against_attention() -> None:
    # The rank of a mixture whose experts run in grouped products: query, key, value and output stay what they are.
    def grouped(step: Step, layer: int) -> None:
        for op in ("MoeGatingTopKSoftmax", "MoeTokenPermute"):
            step.add(op)
        step.add("GroupedMatmul", "8192,4096;8,4096,2816")
        step.add("SwiGlu")
        step.add("GroupedMatmul", "8192,1408;8,1408,4096")
        step.add("MoeTokenUnpermute")

    outcome = judge(dense(Model(), grouped), (Group(name="e", label="ep", ranks=(0, 1, 2, 3)),))
    assert outcome.findings == ()


def test_halves_that_are_joined_beside_an_expert_are_no_permutation() -> None:
    # Slice and ConcatD copy whole blocks: of the kernels beside the grouped products only sort and gather move tokens.
    def grouped(step: Step, layer: int) -> None:
        step.add("Sort")
        step.add("GatherV2")
        for op, shapes in (("GroupedMatmul", "8192,4096;8,4096,2816"), ("Slice", "8,8"), ("ConcatD", "8,8")):
            step.add(op, shapes)

    step = dense(Model(layers=4, is_recomputed=False), grouped)
    (found,) = [f for f in judge(step).findings if f.code == "E-04"]
    assert found.share_ratio == pytest.approx(2 * 4 / len(step.rows))
    assert "ConcatD" not in found.title.en and "Slice" not in found.title.en
