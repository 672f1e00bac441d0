"""The catalogue of faults, and the healthy jobs beside them.

A fault gets a target in ns per step. What it really costs is measured on the simulator, as the step of the job with the
fault less the step of its healthy twin: that is the truth of the gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults import model
from tests.faults import plants_experts as moe
from tests.faults import plants_host as host
from tests.faults import plants_kernels as kernels
from tests.faults import plants_ranks as ranks
from tests.faults.machine import Job, Op
from tests.faults.model import vector
from tests.faults.planting import Kind, Strength, added, rows, vector_of

KINDS: Final[tuple[Kind, ...]] = (
    # Host.
    Kind(
        name="dispatch-slow",
        make=model.card,
        plant=host.slow_dispatch,
        twin=host.fast_dispatch,
        codes=rows("H-01 H-03"),
        also=rows("H-02 C-06"),
        note="60 small operators, dispatched one by one; the rows share the idle time between them",
        is_split=True,
    ),
    Kind(name="python-before-step", make=model.card, plant=host.python_between, codes=rows("D-01 H-01")),
    Kind(name="python-after-step", make=model.card, plant=host.after_step, codes=rows("H-01 D-01")),
    Kind(name="sync-item", make=model.card, plant=host.syncing("aten::_local_scalar_dense"), codes=rows("H-05")),
    Kind(
        name="sync-nonzero",
        make=model.card,
        codes=rows("H-05"),
        also=rows("C-07"),
        plant=host.syncing(
            "aten::nonzero", before=(Op(name="aten::nonzero", kernels=(vector("NonZero", (2048, 64)),)),)
        ),
    ),
    Kind(name="sync-explicit", make=model.card, plant=host.syncing("", "aclrtSynchronizeDevice"), codes=rows("H-05")),
    Kind(name="sync-cpu", make=model.card, plant=host.to_cpu, codes=rows("H-05"), also=rows("D-02")),
    Kind(name="launch-blocking", make=model.card, plant=host.launch_blocking, codes=rows("H-04"), also=rows("H-05")),
    Kind(name="compile", make=model.card, plant=host.compiling, codes=rows("H-06")),
    Kind(name="gc", make=model.card, plant=host.collecting, codes=rows("H-07")),
    Kind(
        name="log-level", make=model.card, plant=host.verbose_log, codes=rows("H-09"), also=rows("H-01"), has_gain=False
    ),
    Kind(name="queue-slow", make=model.card, plant=host.slow_queue, codes=rows("H-02 H-01")),
    # Kernels.
    Kind(name="operand-bound", make=model.card, plant=kernels.operand_bound, codes=rows("C-02")),
    Kind(name="idle-pipes-cube", make=model.card, plant=kernels.idle_pipes_cube, codes=rows("C-03"), also=rows("C-01")),
    Kind(
        name="idle-pipes-vector",
        make=model.card,
        codes=rows("C-03"),
        gain_part=0.6,
        plant=added(lambda dur: (vector_of("LayerNormV4", dur, vec=0.4, mte2=0.3, mte3=0.2),), "aten::layer_norm"),
        note="of the planted kernels 0.6 could be saved: their busiest pipe runs 0.4",
    ),
    Kind(name="tail-blocks", make=model.card, plant=kernels.tail_blocks, codes=rows("C-04"), also=rows("C-01")),
    Kind(name="aicpu-index", make=model.card, plant=kernels.on_ai_cpu("IndexPutV2", "INT64"), codes=rows("C-07")),
    Kind(name="aicpu-dtype", make=model.card, plant=kernels.on_ai_cpu("Mul", "INT16"), codes=rows("C-07")),
    Kind(
        name="attention-padded",
        make=model.card,
        plant=kernels.padded_attention,
        twin=kernels.full_attention,
        codes=rows("C-05"),
    ),
    Kind(
        name="attention-vector",
        make=model.card,
        plant=kernels.vector_attention,
        twin=kernels.cube_attention,
        codes=rows("C-05"),
    ),
    Kind(
        name="vector-chain",
        make=model.card,
        codes=rows("C-06"),
        also=rows("H-03"),
        gain_part=0.75,
        plant=added(
            lambda dur: tuple(vector_of(t, dur // 4) for t in ("Mul", "Add", "Muls", "Add")), "aten::chain", count=8
        ),
        note="one of four passes stays",
    ),
    Kind(name="changing-shapes", make=model.card, plant=kernels.changing_shapes, codes=rows("C-08 H-06")),
    Kind(name="trans-data", make=model.card, plant=kernels.trans_data, codes=rows("C-09")),
    Kind(
        name="autocast-casts",
        make=model.card,
        codes=rows("C-10"),
        plant=added(lambda dur: (vector_of("Cast", dur, moved=6, dtype="FLOAT", out_dtype="DT_BF16"),), "aten::to"),
    ),
    Kind(
        name="layout-copies",
        make=model.card,
        codes=rows("C-10"),
        plant=added(lambda dur: (vector_of("Transpose", dur),), "aten::contiguous"),
    ),
    Kind(
        name="view-copies",
        make=model.card,
        codes=rows("C-10"),
        plant=added(lambda dur: (vector_of("AsStrided", dur // 2), vector_of("ViewCopy", dur // 2)), "aten::copy_"),
    ),
    Kind(name="full-fp32", make=model.card, plant=kernels.full_fp32, codes=rows("C-11"), also=rows("C-01")),
    Kind(
        name="unfused-attention",
        make=model.card,
        plant=kernels.unfused_attention,
        twin=kernels.fused_attention,
        codes=rows("C-12"),
        also=rows("C-06"),
    ),
    Kind(
        name="unfused-rms-norm",
        make=model.card,
        codes=rows("C-13"),
        also=rows("C-06 H-03"),
        plant=kernels.RMS[0],
        twin=kernels.RMS[1],
    ),
    Kind(
        name="unfused-rotary",
        make=model.card,
        codes=rows("C-13"),
        also=rows("C-06 H-03"),
        plant=kernels.ROTARY[0],
        twin=kernels.ROTARY[1],
    ),
    Kind(
        name="unfused-swiglu",
        make=model.card,
        codes=rows("C-13"),
        also=rows("C-06"),
        plant=kernels.SWIGLU[0],
        twin=kernels.SWIGLU[1],
    ),
    Kind(
        name="loop-optimizer", make=model.card, plant=kernels.loop_optimizer, codes=rows("C-14"), also=rows("C-06 H-03")
    ),
    # Memory, input.
    Kind(name="memory-roof", make=model.card, plant=host.at_the_roof, codes=rows("M-01"), also=rows("C-06")),
    Kind(name="loader-slow", make=model.card, plant=host.slow_loader, codes=rows("D-01")),
    Kind(name="copies-blocking", make=model.card, plant=host.many_copies, codes=rows("D-02"), also=rows("H-05 D-01")),
    Kind(
        name="preprocess-host",
        make=model.images,
        plant=host.preprocess_host,
        codes=rows("D-03 D-01"),
        also=rows("H-01"),
    ),
    Kind(
        name="preprocess-device",
        make=model.images,
        plant=host.preprocess_device,
        codes=rows("D-03"),
        also=rows("C-06 C-09 C-10"),
    ),
    Kind(name="driver-memory", make=model.card, plant=host.driver_memory, codes=rows("K-04")),
    Kind(name="fragmentation", make=model.card, plant=host.fragmented, codes=rows("K-01"), has_gain=False),
    Kind(name="leak", make=model.card, plant=host.leaking, codes=rows("K-02"), has_gain=False),
    Kind(name="clock-throttled", make=model.card, codes=rows("P-01"), plant=ranks.throttled),
    Kind(
        name="clock-constant",
        make=model.card,
        codes=rows("P-01"),
        plant=lambda j, t, s: ranks.slow_clock(j, t, s, (0,)),
        note="one card at one clock: nothing to compare with",
    ),
    # Ranks.
    Kind(
        name="late-loader",
        make=model.data_parallel,
        plant=ranks.late_loader,
        codes=rows("N-05 D-01"),
        also=rows("N-01 N-10"),
        ranks=(ranks.LATE,),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-gc",
        make=model.data_parallel,
        plant=ranks.late_gc,
        codes=rows("N-05 H-07"),
        also=rows("N-01 N-10"),
        ranks=(ranks.LATE,),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-python",
        make=model.data_parallel,
        plant=ranks.late_python,
        codes=rows("N-05 D-01 H-01"),
        also=rows("N-01 N-10"),
        ranks=(ranks.LATE,),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-sync",
        make=model.data_parallel,
        plant=ranks.late_sync,
        codes=rows("N-05 H-05"),
        also=rows("N-01 N-10"),
        ranks=(ranks.LATE,),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-compute",
        make=model.data_parallel,
        plant=ranks.late_compute,
        codes=rows("N-05"),
        ranks=(ranks.LATE,),
        also=rows("N-01 N-10"),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-clock",
        make=model.data_parallel,
        plant=ranks.slow_clock,
        codes=rows("N-05 P-01"),
        ranks=(ranks.LATE,),
        also=rows("N-01 N-10"),
        affected=(0, 1, 3),
    ),
    Kind(
        name="late-not-there",
        make=model.data_parallel,
        plant=ranks.hidden_late,
        codes=rows("N-05"),
        ranks=(ranks.LATE,),
        also=rows("N-01 N-10"),
        affected=(0, 1, 3),
        note="the files of the late rank are missing",
    ),
    Kind(
        name="late-two-of-eight",
        make=lambda s: model.data_parallel(s, ranks=8),
        plant=ranks.two_late,
        ranks=(2, 5),
        codes=rows("N-05 D-01 H-01"),
        also=rows("N-01 N-10"),
        affected=(0, 1, 3, 4, 6, 7),
    ),
    # Communication.
    Kind(
        name="reduce-blocking",
        make=model.data_parallel,
        plant=ranks.no_overlap,
        twin=ranks.no_calls,
        codes=rows("N-01 N-10"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="reduce-at-end",
        make=model.data_parallel,
        plant=ranks.reduce_at_end,
        twin=ranks.no_calls,
        codes=rows("N-01 N-10"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="tensor-exchanges",
        make=model.tensor_parallel,
        plant=ranks.tensor_exchanges,
        twin=ranks.no_calls,
        codes=rows("N-01 N-09"),
        also=rows("N-02"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="packets-small",
        make=lambda s: model.data_parallel(s, ranks=2, steps=2),
        plant=ranks.small_packets,
        twin=ranks.one_packet,
        codes=rows("N-02"),
        also=rows("N-01 N-10"),
        ranks=(0, 1),
    ),
    Kind(
        name="unaligned",
        make=model.data_parallel,
        plant=ranks.unaligned,
        twin=ranks.aligned_twin,
        codes=rows("N-03"),
        also=rows("N-01 N-02 N-10"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="link-slow",
        make=model.data_parallel,
        plant=ranks.slow_exposed_link,
        twin=ranks.exposed_base,
        codes=rows("N-06"),
        also=rows("N-01 N-10"),
        ranks=(1, 2),
    ),
    Kind(
        name="rdma-stall",
        make=lambda s: model.data_parallel(s, ranks=16, layers=1, steps=2),
        plant=ranks.rdma_stall,
        codes=rows("N-04"),
        also=rows("N-01 N-10"),
        ranks=tuple(range(16)),
        has_gain=False,
    ),
    Kind(
        name="algorithm-fixed",
        make=model.data_parallel,
        plant=ranks.fixed_algorithm,
        codes=rows("N-08"),
        has_gain=False,
        ranks=(0, 1, 2, 3),
    ),
    # Pipeline and experts.
    Kind(
        name="late-in-pipeline",
        make=model.pipeline,
        plant=ranks.late_first_stage,
        codes=rows("N-05 D-01 H-01"),
        also=rows("L-01 N-01 N-10"),
        ranks=(0,),
        affected=(1, 2, 3),
        note="rank 2, behind the late one in its pipeline, is late to its own collectives as well",
    ),
    Kind(
        name="stage-uneven",
        make=model.pipeline,
        plant=lambda j, t, s: ranks.uneven_stage(j, 2 * t, s),
        twin=lambda j, t, s: ranks.even_stages(j, 2 * t, s),
        codes=rows("L-02"),
        also=rows("L-01"),
        ranks=(2, 3),
        affected=(0, 1),
    ),
    Kind(
        name="experts-one-by-one",
        make=model.mixture,
        plant=moe.expert_loop,
        codes=rows("E-02"),
        also=rows("M-01 C-02 C-03 N-01 E-03"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="experts-uneven",
        make=model.mixture,
        plant=moe.uneven_experts,
        twin=moe.even_experts,
        codes=rows("E-01"),
        also=rows("N-05 N-01 E-03"),
        ranks=(ranks.LATE,),
        affected=(0, 1, 3),
    ),
    Kind(
        name="exchange-exposed",
        make=model.mixture,
        plant=moe.exposed_exchange,
        twin=ranks.no_calls,
        codes=rows("E-03 N-01"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="permutation-unfused",
        make=model.mixture,
        plant=moe.separate_permutation,
        codes=rows("E-04"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="batch-norm-synchronised",
        make=model.data_parallel,
        plant=moe.batch_norms,
        twin=moe.without_exchange,
        codes=rows("N-11"),
        also=rows("N-01 N-02 N-10 H-01 H-02 H-03 N-12"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="collectives-issued-late",
        make=model.data_parallel,
        plant=moe.slow_issue,
        twin=moe.quick_issue,
        codes=rows("N-12"),
        also=rows("N-05 N-01 N-10 H-01 H-02"),
        ranks=(0, 1, 2, 3),
    ),
    Kind(
        name="memory-rate-low",
        make=model.card,
        codes=rows("M-02"),
        also=rows("C-03"),
        gain_part=0.6,
        plant=added(
            lambda dur: (vector_of("LayerNormV4", dur, moved=10, mte2=0.95, mte3=0.2, vec=0.2),), "aten::layer_norm"
        ),
        note="the kernels reach 0.24 of the memory rate where 0.6 is usual",
    ),
    Kind(name="memory-static", make=model.card, plant=host.static_memory, codes=rows("K-05"), has_gain=False),
    Kind(name="memory-workspace", make=model.card, plant=host.workspace, codes=rows("K-06"), has_gain=False),
)

FEW_MICRO: Final[dict[Strength, int]] = {"weak": 10, "medium": 6, "strong": 2}
"""Micro-batches of the kind `micro-batches-few`."""

CONTROLS: Final[dict[str, Callable[[int], Job]]] = {
    "card": model.card,
    "data-parallel-4": model.data_parallel,
    "data-parallel-8": lambda seed: model.data_parallel(seed, ranks=8),
    "data-parallel-16": lambda seed: model.data_parallel(seed, ranks=16, steps=3),
    "tensor-parallel-4": model.tensor_parallel,
    "pipeline-2x2": model.pipeline,
    "pipeline-4x1": lambda seed: model.pipeline(seed, stages=4, replicas=1, micro=32, steps=2),
    "mixture-4": model.mixture,
    "images": model.images,
    "decode": model.decode,
}
