"""The tables of a trace: names, columns, kinds and units. The only vocabulary between readers and analyzers.

Times are int64 ns on one clock per trace. `*_ns` of an interval table: [start_ns, start_ns + dur_ns).
"""

from __future__ import annotations

import copyreg
from typing import Final

from ascend_perf.model.table import Column, Kind, TableSpec


def _int(name: str, unit: str = "", doc: str = "", *, required: bool = False) -> Column:
    return Column(name=name, kind=Kind.INT, unit=unit, doc=doc, required=required)


def _float(name: str, unit: str = "", doc: str = "") -> Column:
    return Column(name=name, kind=Kind.FLOAT, unit=unit, doc=doc)


def _bool(name: str, doc: str = "") -> Column:
    return Column(name=name, kind=Kind.BOOL, doc=doc)


def _text(name: str, doc: str = "", *, required: bool = False) -> Column:
    return Column(name=name, kind=Kind.TEXT, doc=doc, required=required)


_START: Final = _int("start_ns", "ns", required=True)
_DUR: Final = _int("dur_ns", "ns", required=True)

STEPS: Final = TableSpec(
    name="steps",
    row="one training or decode iteration of the rank",
    columns=(
        _int("step_id", doc="number of the step; unknown when the trace has no step markers"),
        _START,
        _DUR,
        _int("host_start_ns", "ns", "start of the host's ProfilerStep"),
        _int("host_dur_ns", "ns", "duration of the host's ProfilerStep"),
    ),
)

KERNELS: Final = TableSpec(
    name="kernels",
    row="one task on the compute engines of the device; no communication",
    open=True,
    columns=(
        _int("start_ns", "ns", "unknown where the file's time stamps are unusable", required=True),
        _DUR,
        _text("name", required=True),
        _text("op_type", "operator type (Ascend) or op family; unknown at Level0"),
        _text("core", "AIC, AIV, MIX_AIC, MIX_AIV, AICPU, DSA, SM (GPU), CPU; unknown at Level0"),
        _int("stream"),
        _int("step_id", doc="the exporter's Step Id or the window that holds the start; unknown outside of steps"),
        _int("task_id"),
        _int("model_id", doc="graph mode only"),
        _int("block_num", doc="blocks of the main core type"),
        _int("mix_block_num", doc="blocks of the secondary core of MIX kernels"),
        _text("op_state", "dynamic or static"),
        _text("hf32_eligible", "YES or NO"),
        _text("input_shapes", "tensors separated by ';', dims by ','"),
        _text("input_dtypes", "separated by ';'"),
        _text("input_formats", "separated by ';'"),
        _text("output_shapes"),
        _text("output_dtypes"),
        _text("output_formats"),
        _int("wait_ns", "ns", "the exporter's Wait Time: gap on the whole device before this row"),
        _int("correlation", doc="id that joins the task to its launch call"),
        _int("host_op", doc="row of host_ops: innermost framework op that launched it"),
        _int("launch_start_ns", "ns", "start of the host's launch call"),
        _int("launch_end_ns", "ns", "end of the host's launch call"),
        # PipeUtilization counters of the split architecture (A2/A3); other metrics come as further float columns.
        _int("aic_time_ns", "ns"),
        _int("aic_total_cycles"),
        _float("aic_mac_ratio", "ratio"),
        _float("aic_scalar_ratio", "ratio"),
        _float("aic_mte1_ratio", "ratio"),
        _float("aic_mte2_ratio", "ratio"),
        _float("aic_fixpipe_ratio", "ratio"),
        _float("aic_icache_miss_ratio", "ratio"),
        _int("aiv_time_ns", "ns"),
        _int("aiv_total_cycles"),
        _float("aiv_vec_ratio", "ratio"),
        _float("aiv_scalar_ratio", "ratio"),
        _float("aiv_mte2_ratio", "ratio"),
        _float("aiv_mte3_ratio", "ratio"),
        _float("aiv_icache_miss_ratio", "ratio"),
        _float("cube_utilization_ratio", "ratio", "core occupancy over the task time, not MAC efficiency"),
    ),
)

COMM_OPS: Final = TableSpec(
    name="comm_ops",
    row="one collective or point-to-point call of the rank",
    columns=(
        _int("start_ns", "ns", required=True),
        _DUR,
        _text("name", "as in the file, e.g. hcom_allReduce__586_0_1", required=True),
        _text("op", "allReduce, allGather, reduceScatter, broadcast, alltoall, alltoallv, send, receive, "
                    "batchSendRecv, reduce, scatter, gather, barrier; 'other' when the name tells nothing"),
        _text("group", "communicator as named in the file"),
        _text("group_label", "dp, tp, pp, ... when metadata names the group"),
        _int("group_size"),
        _int("index_in_group", doc="ordinal of the call in its group, from 0"),
        _int("step_id"),
        _int("stream"),
        _int("size_bytes", "bytes", "message size by the op's convention"),
        _text("dtype"),
        _text("algorithm"),
        _int("transit_ns", "ns", "the exporter's Transit Time (master plane)"),
        _int("wait_ns", "ns", "the exporter's Wait Time (master plane)"),
        _int("sync_ns", "ns", "the exporter's Synchronization Time"),
        _int("idle_ns", "ns", "the exporter's Idle Time: what is neither; not an idle network"),
        _int("correlation"),
        _int("host_op", doc="row of host_ops"),
        _int("launch_start_ns", "ns"),
        _int("launch_end_ns", "ns"),
    ),
)  # fmt: skip

COMM_TASKS: Final = TableSpec(
    name="comm_tasks",
    row="one HCCL sub-task (a wait, a copy, a record) of a collective",
    columns=(
        _START,
        _DUR,
        _text("kind", "Notify_Wait, Notify_Record, Memcpy, Reduce_Inline, RDMASend ...", required=True),
        _int("comm_op", doc="row of comm_ops", required=True),
        _int("plane"),
        _int("src", doc="rank inside the group; unknown when local"),
        _int("dst", doc="rank inside the group; the peer that a Notify_Wait waits for"),
        _text("transport", "SDMA, RDMA, LOCAL"),
        _text("link", "HCCS, PCIE, ROCE, SIO, ON_CHIP ..."),
        _int("size_bytes", "bytes"),
    ),
)

COMM_TRANSFERS: Final = TableSpec(
    name="comm_transfers",
    row="data moved by one call over one transport (communication.json, analysis.db)",
    columns=(
        _text("name", "name of the call, as in comm_ops", required=True),
        _text("op"),
        _text("group"),
        _int("step_id"),
        _text("transport", "HCCS, RDMA, PCIE, SIO; SDMA is their sum and left out", required=True),
        _int("size_bytes", "bytes"),
        _int("time_ns", "ns", "sum over planes and tasks, not wall time"),
        _float("large_packet_ratio", "ratio"),
    ),
)

COMM_PACKETS: Final = TableSpec(
    name="comm_packets",
    row="packets of one size of one call over one transport",
    columns=(
        _text("name", required=True),
        _text("op"),
        _text("group"),
        _int("step_id"),
        _text("transport", required=True),
        _int("packet_bytes", "bytes"),
        _int("count"),
        _int("time_ns", "ns"),
    ),
)

COMM_LINKS: Final = TableSpec(
    name="comm_links",
    row="one src -> dst transport of an op type (communication_matrix.json)",
    columns=(
        _text("op", required=True),
        _text("pick", "top1, middle, bottom1-3 or total: which call of the type"),
        _text("name", "name of the call"),
        _text("group"),
        _int("step_id"),
        _int("src", doc="rank inside the group"),
        _int("dst", doc="rank inside the group"),
        _text("transport", required=True),
        _int("size_bytes", "bytes"),
        _int("time_ns", "ns"),
    ),
)

COPIES: Final = TableSpec(
    name="copies",
    row="one memory copy or set on the device",
    columns=(
        _START,
        _DUR,
        _text("kind", "H2D, D2H, D2D, H2H, P2P, MEMSET; unknown when the file does not tell", required=True),
        _text("name"),
        _int("size_bytes", "bytes"),
        _int("stream"),
        _int("step_id"),
        _int("correlation"),
        _int("launch_start_ns", "ns"),
        _int("launch_end_ns", "ns"),
        _text("api", "host call that issued it, when known"),
    ),
)

HOST_OPS: Final = TableSpec(
    name="host_ops",
    row="one framework operator call on a thread",
    columns=(
        _START,
        _DUR,
        _text("name", required=True),
        _int("thread"),
        _text("input_shapes"),
        _text("input_dtypes"),
        _text("arguments", "JSON list of the arguments as texts; of convolutions and attention alone"),
        _int("sequence_number"),
        _int("correlation", doc="External id (Kineto) or connection id"),
        _text("stack", "innermost frame first, separated by newlines"),
    ),
)

RUNTIME_CALLS: Final = TableSpec(
    name="runtime_calls",
    row="one CANN, CUDA or HIP call of the host",
    columns=(
        _START,
        _DUR,
        _text("api", required=True),
        _text("layer", "acl, model, node, hccl, runtime, cuda, hip"),
        _int("thread"),
        _int("correlation"),
    ),
)

HOST_EVENTS: Final = TableSpec(
    name="host_events",
    row="one host event that is no framework operator",
    columns=(
        _START,
        _DUR,
        _text("name", required=True),
        _text("kind", "step, dataloader, optimizer, gc, python, user, enqueue, dequeue, sync", required=True),
        _int("thread"),
        _int("correlation"),
    ),
)

PYTHON_CALLS: Final = TableSpec(
    name="python_calls",
    row="one call of a Python function, or of a module (`nn.Module: Linear_0`); calls under 10 us are left out",
    columns=(
        _START,
        _DUR,
        _text("name", "file.py(line): function, or nn.Module: X_0; without folders of users and addresses",
              required=True),
        _int("thread", doc="as in host_ops"),
    ),
)  # fmt: skip

MEMORY: Final = TableSpec(
    name="memory",
    row="one sample of an allocator or of the process",
    columns=(
        _int("time_ns", "ns", required=True),
        _text("component", "PTA (framework allocator), GE, PTA+GE, APP (process), WORKSPACE, CUDA, CPU", required=True),
        _int("allocated_bytes", "bytes"),
        _int("reserved_bytes", "bytes"),
        _int("active_bytes", "bytes"),
    ),
)

MEMORY_BLOCKS: Final = TableSpec(
    name="memory_blocks",
    row="one block of the framework allocator",
    columns=(
        _text("name", required=True),
        _int("size_bytes", "bytes"),
        _int("alloc_ns", "ns", "unknown: allocated before the capture"),
        _int("free_ns", "ns", "unknown: freed after the capture"),
        _int("thread", doc="that allocated, as in host_ops"),
    ),
)

MODULE_MEMORY: Final = TableSpec(
    name="module_memory",
    row="memory of one driver component at one time (npu_module_mem)",
    columns=(
        _text("component", required=True),
        _int("time_ns", "ns", required=True),
        _int("reserved_bytes", "bytes"),
    ),
)

COUNTERS: Final = TableSpec(
    name="counters",
    row="one sample of a device counter",
    columns=(
        _int("time_ns", "ns", "unknown: a figure of the whole capture", required=True),
        _text("counter", "AI Core Freq, HBM, LLC, HCCS, power ...", required=True),
        _text("unit"),
        _float("value"),
    ),
)

EXPORTED_STEPS: Final = TableSpec(
    name="exported_steps",
    row="the exporter's own split of a step (step_trace_time.csv, StepTraceTime)",
    columns=(
        _int("step_id"),
        _int("device"),
        _int("computing_ns", "ns"),
        _int("communication_ns", "ns"),
        _int("overlapped_ns", "ns"),
        _int("communication_not_overlapped_ns", "ns"),
        _int("free_ns", "ns"),
        _int("stage_ns", "ns"),
        _int("bubble_ns", "ns"),
        _int("preparing_ns", "ns"),
    ),
)

EXPORTED_OPS: Final = TableSpec(
    name="exported_ops",
    row="the exporter's own sum per op type and core (op_statistic.csv)",
    columns=(_text("op_type", required=True), _text("core"), _int("count"), _int("total_ns", "ns")),
)

EXPORTED_APIS: Final = TableSpec(
    name="exported_apis",
    row="the exporter's own sum per host API (api_statistic.csv)",
    columns=(_text("api", required=True), _text("layer"), _int("count"), _int("total_ns", "ns"), _int("max_ns", "ns")),
)

OVERLAP: Final = TableSpec(
    name="overlap",
    row="one interval of the exporter's Overlap Analysis track",
    columns=(
        _START,
        _DUR,
        _text("kind", "Computing, Communication, Communication(Not Overlapped), Free", required=True),
    ),
)

COMM_BENCH: Final = TableSpec(
    name="comm_bench",
    row="one message size of one collective, measured alone (hccl_test)",
    columns=(
        _text("op", "as in comm_ops; 'other' when the text does not tell", required=True),
        _int("size_bytes", "bytes", required=True),
        _int("time_ns", "ns", "average over the iterations", required=True),
        _float("algorithm_bytes_per_s", "bytes/s", "size / time, as printed"),
        _text("check", "success, failed; unknown when the check was off"),
        _int("ranks"),
        _text("dtype"),
        _int("iterations"),
    ),
)

LOG_EVENTS: Final = TableSpec(
    name="log_events",
    row="one line of a log that says something about communication, or an error (plog)",
    columns=(
        _int("time_ns", "ns", "local time of the host, written as if it were UTC", required=True),
        _text("level", "INFO, WARNING, ERROR, EVENT ..."),
        _text("kind", "communicator, call, error", required=True),
        _text("name", "create, destroy; the op of a call; the code of an error", required=True),
        _text("group", "communicator"),
        _int("size_bytes", "bytes", "count of a call times the size of its type"),
        _text("dtype"),
        _int("thread"),
        _int("rank", doc="rank of the process in its largest communicator"),
        _int("named_rank", doc="rank that the message names as the first to fail"),
    ),
)

TELEMETRY: Final = TableSpec(
    name="telemetry",
    row="one sample of a device beside the run, at its Unix time (device_telemetry.csv of a run directory)",
    columns=(
        _int("time_ns", "ns", required=True),
        _text("device", "npu<logic id>, cuda<index>, package (all processor packages)", required=True),
        _text("phase", "of the run: warmup, measured, profiled ..."),
        _float("use_ratio", "ratio", "share of time with work on the device; unknown where it is invalid"),
        _text("invalid", "why use_ratio was taken out; empty where it was not"),
        _int("memory_used_bytes", "bytes"),
        _float("power_w", "W"),
        _float("temperature_c", "C"),
        _float("frequency_hz", "Hz"),
        _float("rated_frequency_hz", "Hz"),
    ),
)

DATA_PIPELINE: Final = TableSpec(
    name="data_pipeline",
    row="one operator, stage or total of the input pipeline, summed up over the capture (MindSpore)",
    columns=(
        _text("kind", "operator, stage, total", required=True),
        _text("name", required=True),
        _text("stage"),
        _int("count"),
        _int("average_ns", "ns", "average time of a stage, or per batch of a total"),
        _int("op_id"),
        _int("parent", doc="op_id of the operator that takes this one's output"),
        _int("workers"),
        _float("queue_average", doc="elements in the output queue, on average"),
        _int("queue_capacity"),
        _float("queue_utilization_ratio", "ratio"),
        _float("queue_empty_ratio", "ratio", "share of samples with an empty output queue"),
        _float("cpu_ratio", "ratio", "load of the CPU by the operator's threads"),
    ),
)

TRAINING_SERIES: Final = TableSpec(
    name="training_series",
    row="what a training run logged about one of its iterations (or the last of several that it sums up)",
    columns=(
        _int("step", doc="number of the iteration as logged; begins again after a restart", required=True),
        _int("time_ns", "ns", "local time of the host, written as if it were UTC"),
        _int("rank", doc="rank that wrote the row; unknown: the file does not tell, or it speaks for the whole job"),
        _float("loss", doc="unknown where it is not finite: see loss_nonfinite"),
        _bool("loss_nonfinite", "the loss was logged as NaN or infinite"),
        _float("learning_rate"),
        _float("grad_norm", doc="unknown where it is not finite: see grad_norm_nonfinite"),
        _bool("grad_norm_nonfinite", "the gradient norm was logged as NaN or infinite"),
        _float("loss_scale", doc="factor of the loss in fp16 training"),
        _int("skipped", doc="iterations since the row before whose update was skipped"),
        _int("nan_iterations", doc="iterations since the row before with NaN"),
        _int("iteration_ns", "ns", "time of an iteration"),
        _float("items_per_s", "items/s", "tokens or samples per second, as logged"),
        _float("flops_per_s", "FLOP/s", "per device"),
        _float("eval_loss"),
        _float("accuracy"),
    ),
)

REQUESTS: Final = TableSpec(
    name="requests",
    row="one request to an inference service",
    columns=(
        _text("request", "id of the request", required=True),
        _int("start_ns", "ns", "arrival"),
        _int("execution_ns", "ns", "arrival to last token"),
        _int("queue_wait_ns", "ns", "waiting and pending time, all of it"),
        _int("first_token_ns", "ns", "arrival to first token (TTFT)"),
        _int("input_tokens"),
        _int("output_tokens"),
        _float("cache_hit_ratio", "ratio", "share of the prompt found in the prefix cache"),
    ),
)

BATCHES: Final = TableSpec(
    name="batches",
    row="one scheduling or one execution of a batch of requests",
    columns=(
        _START,
        _DUR,
        _text("phase", "schedule, execute, forward (one card of an execution)", required=True),
        _text("kind", "prefill, decode, mixed"),
        _int("size", doc="requests"),
        _int("prefill_size"),
        _int("decode_size"),
        _int("prefill_tokens"),
        _int("decode_tokens"),
        _int("total_blocks", doc="blocks of the KV cache"),
        _int("free_blocks", doc="after scheduling"),
        _int("bubble_ns", "ns", "gap before this forward on its card"),
        _text("dp_rank"),
        _text("card"),
    ),
)

BATCH_REQUESTS: Final = TableSpec(
    name="batch_requests",
    row="one request in one row of batches",
    columns=(
        _int("batch", doc="row of batches", required=True),
        _text("request", required=True),
        _int("iteration", doc="tokens generated before: 0 is the prefill"),
    ),
)

KV_CACHE: Final = TableSpec(
    name="kv_cache",
    row="one change of the KV cache of an inference service",
    columns=(
        _int("time_ns", "ns", required=True),
        _text("name", "Allocate, AppendSlot, Free ..."),
        _text("request"),
        _int("total_blocks"),
        _int("free_blocks", doc="after the change"),
        _int("allocated_blocks", doc="taken by the change; unknown in older releases"),
        _float("usage_ratio", "ratio"),
    ),
)

KV_TRANSFERS: Final = TableSpec(
    name="kv_transfers",
    row="one transfer of a request's KV cache from prefill to decode",
    columns=(
        _START,
        _DUR,
        _text("request"),
        _int("rank", doc="device that receives"),
        _int("tokens", doc="length of the sequence"),
        _int("blocks"),
        _int("arrival_ns", "ns", "arrival of the request"),
        _int("prefill_end_ns", "ns"),
    ),
)

QUEUE_STATES: Final = TableSpec(
    name="queue_states",
    row="requests of an inference service by state at one time",
    columns=(_int("time_ns", "ns", required=True), _int("waiting"), _int("running"), _int("swapped")),
)

SERVICE_SPANS: Final = TableSpec(
    name="service_spans",
    row="one span of a stage of an inference service",
    columns=(_START, _DUR, _text("name", required=True), _int("process"), _text("host", "host 1, host 2 ...")),
)

SERVICE_FIGURES: Final = TableSpec(
    name="service_figures",
    row="one figure that a benchmark of an inference service wrote about all of its requests",
    columns=(_text("name", "as in the file, e.g. p99_ttft_ms", required=True), _float("value")),
)

ALL: Final[dict[str, TableSpec]] = {
    spec.name: spec
    for spec in (
        STEPS, KERNELS, COMM_OPS, COMM_TASKS, COMM_TRANSFERS, COMM_PACKETS, COMM_LINKS, COPIES, HOST_OPS,
        RUNTIME_CALLS, HOST_EVENTS, PYTHON_CALLS, MEMORY, MEMORY_BLOCKS, MODULE_MEMORY, COUNTERS, EXPORTED_STEPS,
        EXPORTED_OPS, EXPORTED_APIS, OVERLAP, COMM_BENCH, DATA_PIPELINE, LOG_EVENTS, TELEMETRY,
        TRAINING_SERIES,
        REQUESTS, BATCHES, BATCH_REQUESTS, KV_CACHE, KV_TRANSFERS, QUEUE_STATES, SERVICE_SPANS,
        SERVICE_FIGURES,
    )
}  # fmt: skip
"""Every table by name."""

BESIDE: Final = frozenset({"comm_bench", "log_events", "telemetry", "training_series"})
"""Tables of logs and tests that lie beside profiles: a trace of these alone is no profile of a rank."""


def spec_named(name: str) -> TableSpec:
    """The table of a name.

    Raises:
        KeyError: the model has no such table.
    """
    return ALL[name]


def _travelling(spec: TableSpec) -> tuple[object, ...]:
    """How a specification is pickled: one of the model by its name, since a trace knows its tables by identity."""
    if ALL.get(spec.name) is spec:
        return spec_named, (spec.name,)
    return _rebuilt, (spec.name, spec.row, spec.columns, spec.open)


def _rebuilt(name: str, row: str, columns: tuple[Column, ...], is_open: bool) -> TableSpec:
    return TableSpec(name=name, row=row, columns=columns, open=is_open)


copyreg.pickle(TableSpec, _travelling)  # type: ignore[arg-type]  # the stubs want a str or a callable of no arguments
