"""moe-pretrain: a decoder with experts behind routers in training, like DeepSeek-V2, Mixtral or Qwen3-MoE.

    for each step: for each micro-batch: rows -> copy -> forward -> loss -> backward; then norm, clip -> AdamW -> bias
    in each layer: norm -> attention (GQA or MLA) -> norm -> router -> to the experts -> their products -> back

The net is in `_decoder.py`, attention in `_mla.py`, experts in `_moe.py`, settings of the router in `_routing.py`; the
step, the text and the layouts are those of llm-pretrain. Read top to bottom: settings, prediction, the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ascend_perf.model.finding import Metric, Words
from ascend_perf.workloads import _traffic
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._routing import Routing, adjusted_traffic, load_metrics, load_rows, padded_flops
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Value, workload
from ascend_perf.workloads._training import Training
from ascend_perf.workloads._virtual import computes_nothing
from ascend_perf.workloads.llm_pretrain import Config as TextConfig
from ascend_perf.workloads.llm_pretrain import Text, text_rows

if TYPE_CHECKING:
    from ascend_perf.workloads._decoder import Decoder


EXPERTS: Final = ModelShape(experts=8)
"""What no preset says."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model, its routers, one step of its training, the layout over ranks, the operators, the text."""

    shape: ModelShape = EXPERTS
    routing: Routing = field(default_factory=Routing)
    training: Training = field(default_factory=Training)
    layout: Layout = field(default_factory=Layout)
    operators: FusedSettings = field(default_factory=FusedSettings)
    text: Text = field(default_factory=Text)

    def __post_init__(self) -> None:
        self.training.check_layout(self.layout)
        self.routing.check(self.shape)


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Memory and communication of the rank that needs most. What experts' ranks exchange is the mean over ranks."""
    all_count = config.text.rows == "joined"
    said = _traffic.predict(
        config.shape, config.layout, config.training, world_size, target=target, operators=config.operators,
        all_count=all_count,
    )  # fmt: skip
    traffic = adjusted_traffic(
        said.traffic, config.shape, config.routing, config.training, config.layout, world_size
    )
    return replace(said, traffic=traffic)


@workload(
    name="moe-pretrain",
    about=Words(
        "mixture-of-experts language model in training: MLA or GQA, shared and routed experts, expert parallelism",
        "混合专家语言模型预训练：MLA 或 GQA、共享专家与路由专家、专家并行",
    ),
    config=Config,
    predict=predict,
)
def moe_pretrain(config: Config, place: Place, seed: int) -> Program:
    """The training step on this rank; weights and data depend on the seed alone."""
    from ascend_perf.workloads._moe import MixtureOfExperts, RouterLoads
    from ascend_perf.workloads._trainer import make_trainer, training_program

    shape, training, layout = config.shape, config.training, config.layout

    def set_routing(part: Decoder) -> None:
        for layer in part.modules():
            if isinstance(layer, MixtureOfExperts):
                layer.routing = config.routing

    is_packed = config.text.rows == "packed"
    trainer = make_trainer(
        shape, training, layout, config.operators, place=place, seed=seed,
        rows=text_rows(TextConfig(shape=shape, training=training, text=config.text), place, seed),
        segments=is_packed, all_count=not is_packed, adapt=set_routing,
    )  # fmt: skip
    loads = RouterLoads(trainer.job.model, shape, config.routing, place.device)

    def step() -> None:
        trainer.step()
        loads.update_bias()

    def metrics() -> Sequence[Metric]:
        if computes_nothing(place.kind):
            return ()
        layers, balance = loads.read()
        return load_metrics(layers, layout.expert_ranks, balance)

    ranks = trainer.job.data_ranks
    executed = training.hardware_flops(shape, ranks) + padded_flops(shape, config.routing, training, layout, ranks)
    program = training_program(trainer, shape, hardware_flops=executed, metrics=metrics)

    def tables() -> Mapping[str, Sequence[Mapping[str, Value]]]:
        if computes_nothing(place.kind):
            return program.tables()
        return {**program.tables(), "router_load": list(load_rows(loads.read()[0], layout.expert_ranks))}

    return replace(program, step=step, tables=tables, start_measuring=loads.forget)
