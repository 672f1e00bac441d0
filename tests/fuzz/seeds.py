"""Small valid profiles of every format, written by the writers of the tests: what the fuzzer damages."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from ascend_perf.analyzers._rules import rule, rule_codes
from ascend_perf.manifest import write_manifest
from tests.faults import model, plants_precision, service
from tests.faults.machine import simulate
from tests.faults.writer import write_job
from tests.parsers import test_ascend_db, test_cluster_output, test_hccl_test, test_kineto, test_mindspore, test_nsys
from tests.parsers import test_msprof as msprof
from tests.parsers import test_plog as plog
from tests.parsers import test_vllm_bench as vllm_bench
from tests.parsers._msprof_profile import Prof, summary_comm, summary_row
from tests.test_manifest import FULL

RULES: Final = "rules.yaml"
"""A file of this name beside a profile is given to the analysis as the user's thresholds."""


def _ascend_text(folder: Path) -> None:
    """Two ranks of a job with all files of the text export."""
    job = model.data_parallel(1, ranks=2, steps=2, layers=1)
    write_job(job, simulate(job), folder)


def _ascend_db(folder: Path) -> None:
    out = folder / "rank_0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    out.mkdir(parents=True)
    test_ascend_db.write_database(out)


def _kineto(folder: Path) -> None:
    op, launch, kernel, python = test_kineto.op, test_kineto.launch, test_kineto.kernel, test_kineto.python
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 90, "dur": 400}
    group = {"Collective name": "allreduce", "Group size": 2, "In msg nelems": 1024, "dtype": "Float",
             "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    events = [
        step, python("train.py(1): main", 95, 300), op("aten::linear", 100, 50, 1), op("aten::addmm", 110, 30, 2),
        launch(120, 5, 77), kernel("gemm", 200, 10, 77, **{"External id": 2}),
        launch(140, 5, 78), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 215, 40, 78, **group),
        launch(180, 5, 79, api="cudaMemcpyAsync"),
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 260,
         "dur": 5, "args": {"device": 0, "stream": 7, "correlation": 79, "bytes": 4096}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 130, "s": "t",
         "args": {"Total Allocated": 1000, "Total Reserved": 2000, "Device Type": 1, "Device Id": 0, "Bytes": 512,
                  "Addr": 77}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]  # fmt: skip
    facts = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
             "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85 << 30}]}  # fmt: skip
    (folder / "x.pt.trace.json").write_text(json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}))


def _msprof(folder: Path) -> None:
    msprof.whole(folder)


def _nsys(folder: Path) -> None:
    test_nsys.export(folder / "run.sqlite")


def _cluster_text(folder: Path) -> None:
    test_cluster_output.write_text(folder / "cluster_analysis_output")


def _cluster_db(folder: Path) -> None:
    test_cluster_output.write_database(folder / "cluster_analysis_output")


def _hccl_test(folder: Path) -> None:
    command = "+ mpirun -f hostfile -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp16 -o sum -p 8"
    lines = (command, test_hccl_test.PREFACE, test_hccl_test.HEADER, *test_hccl_test.ROWS)
    (folder / "out.log").write_text("\n".join(lines) + "\n")


def _plog(folder: Path) -> None:
    (folder / "plog-4321_20260102030405001.log").write_text("\n".join([*plog.LINES, *plog.ERRORS]) + "\n")


def _analysis_db(folder: Path) -> None:
    """Collectives of a rank: their intervals in a database, the exporter's figures in another."""
    _ascend_db(folder)
    name, group = "hcom_allReduce__612_4_1", "10.1.2.3%eth0_60000_0_1"
    tables: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "CommAnalyzerTime": (
            "hccl_op_name, group_name, start_timestamp, elapse_time, transit_time, wait_time, synchronization_time, "
            "idle_time, step, type",
            [(name, group, 1000.5, 0.05, 0.01, 0.03, 0.02, 0.01, "step9", "collective"),
             ("hcom_send__612_5_1", group, 2000.5, 0.05, 0.01, 0.03, 0.02, 0.01, "step9", "p2p")],
        ),
        "CommAnalyzerBandwidth": (
            "hccl_op_name, group_name, transport_type, transit_size, transit_time, bandwidth, large_packet_ratio, "
            "package_size, count, total_duration, step, type",
            [(name, group, band, 8.0, 0.01, 16.0, 0.5, 1.0, 8, 0.01, "step9", "collective")
             for band in ("HCCS", "RDMA", "PCIE", "SDMA", "SIO")],
        ),
        "CommAnalyzerMatrix": (
            "hccl_op_name, group_name, src_rank, dst_rank, transport_type, transit_size, transit_time, bandwidth, "
            "step, type, op_name",
            [(name, group, str(a), str(1 - a), "HCCS", 8.0, 0.01, 16.0, "step9", "collective", name) for a in (0, 1)],
        ),
        "StepTraceTime": (
            "deviceId, step, computing, communication_not_overlapped, overlapped, communication, free, stage, bubble, "
            "communication_not_overlapped_and_exclude_receive, preparing",
            [(6, "9", 30.0, 50.0, 0.0, 50.0, 20.5, 330.0, 0.0, 50.0, 1.0)],
        ),
    }  # fmt: skip
    with closing(sqlite3.connect(folder / "rank_0_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "analysis.db")) as out, out:
        for table, (columns, rows) in tables.items():
            out.execute(f"create table {table} ({columns})")
            out.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)


def _rank_of_gpus(rank: int, ranks: int, steps: int = 3, layers: int = 3) -> bytes:
    """The Kineto trace of a rank: steps, stacks of Python, operators with shapes, kernels, collectives, memory."""
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    correlation, at = 0, 1_000.0
    for step in range(steps):
        begin = at
        kernel_at = at + 40
        for layer in range(layers):
            for part, (name, dur) in enumerate((("linear", 30), ("gelu", 10), ("nccl", 25))):
                correlation += 1
                stack = {"Call stack": "/home/me/train.py(9): main;torch/nn/modules/module.py(1518): _call_impl"}
                op: dict[str, object] = test_kineto.op(f"aten::{name}", at + 1, 14, correlation)
                op["args"] = {"External id": correlation, "Sequence number": correlation, "Ev Idx": correlation,
                              "Input Dims": [[64, 128], [128, 128], []], "Input type": ["float", "float", "Scalar"],
                              "Record function id": 0, **stack}  # fmt: skip
                events += [
                    test_kineto.python(f"/home/me/train.py({layer + 10}): block_{layer}", at, 18),
                    test_kineto.python("nn.Module: Linear_0", at + 0.5, 16.5), op,
                    test_kineto.launch(at + 5, 5, correlation),
                ]  # fmt: skip
                if part < 2:
                    args: dict[str, object] = {"External id": correlation, "grid": [64, 1, 1], "block": [128, 1, 1],
                                               "est. achieved occupancy %": 50, "registers per thread": 32,
                                               "shared memory": 1024}  # fmt: skip
                    events.append(test_kineto.kernel(f"{name}_kernel", kernel_at, dur, correlation, **args))
                else:
                    args = {
                        "Collective name": "allreduce", "Group size": ranks, "In msg nelems": 65536,
                        "Out msg nelems": 65536, "dtype": "Float", "Process Group Name": "0",
                        "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(ranks))),
                    }  # fmt: skip
                    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                    made = test_kineto.kernel(name, kernel_at, dur + rank, correlation, **args)
                    events.append({**made, "tid": 20})
                kernel_at += dur + (rank if part == 2 else 0)
                at += 20
        correlation += 1
        events += [
            test_kineto.launch(at, 40, correlation, api="cudaMemcpyAsync"),
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": 7,
             "ts": kernel_at, "dur": 5, "args": {"device": 0, "stream": 7, "correlation": correlation, "bytes": 4}},
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "s": "t",
             "args": {"Total Allocated": 1000 + step, "Total Reserved": 2000, "Device Type": 1, "Device Id": 0,
                      "Bytes": 512, "Addr": 77 + step}},
        ]  # fmt: skip
        at = max(at + 45, kernel_at + 10)
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step + 4}", "pid": 1, "tid": 1}
        events.append({**mark, "ts": begin, "dur": at - begin})
        at += 1
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks,
               "ranks": list(range(ranks))}]  # fmt: skip
    facts = {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": groups},
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85 << 30, "numSms": 108,
                              "computeMajor": 8, "computeMinor": 0}],
        "with_stack": 1, "record_shapes": 1, "profile_memory": 1,
    }  # fmt: skip
    return json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}).encode()


def _kineto_gz(folder: Path) -> None:
    (folder / "host_4711.1780000000000000000.pt.trace.json.gz").write_bytes(gzip.compress(_rank_of_gpus(0, 1), 1))


def _kineto_ranks(folder: Path) -> None:
    for rank in range(3):
        (folder / f"rank{rank}.pt.trace.json").write_bytes(_rank_of_gpus(rank, 3))


def _msprof_devices(folder: Path) -> None:
    prof = Prof(folder).raw(0, 1).info(0, 1)
    for device in (0, 1):
        prof.info(device, rank=8 + device, place=f"device_{device}")
    prof.summary([summary_row(n, device=n % 2) for n in range(6)] + [summary_comm(n, device=n % 2) for n in (6, 7)])
    header = ["Device_id", "Metric", "Read(MB/s)", "Write(MB/s)"]
    prof.csv("hbm", header, [[str(d), "0", f"{d}.5", "3"] for d in (0, 1)])
    header = ["Device_id", "OP Type", "Core Type", "Count", "Total Time(us)"]
    prof.csv("op_statistic", header, [[str(d), "Add", "AI_VECTOR_CORE", "3", "9"] for d in (0, 1)])
    other = Prof(folder, "PROF_000002_20260102030406000_ABCDEF").raw(0, 3)
    other.database([0, 3])


def _mindspore(folder: Path) -> None:
    test_mindspore.write_pipeline(test_mindspore.profile(folder))


def _serving(folder: Path) -> None:
    _serve(folder, is_old=False)


def _serving_old(folder: Path) -> None:
    _serve(folder, is_old=True)


def _serve(folder: Path, *, is_old: bool) -> None:
    asks = tuple(service.asks(3, 12))
    outcome = service.serve(service.Service(asks=asks, dp=2, transfer_ns=1000))
    _write(folder, service.tables(outcome, is_old=is_old))


def _write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def _vllm_bench(folder: Path) -> None:
    results = [json.dumps(vllm_bench.result([0.5, 0.25, 0.125, 0.3])), json.dumps(vllm_bench.result([0.1]))]
    _write(folder, {"one.json": results[0], "several.jsonl": "\n".join(results) + "\n"})


def _training_log(folder: Path) -> None:
    for rank in range(2):
        rows = plants_precision.curve(rank, steps=30)
        _write(folder, {f"rank_{rank}.log": plants_precision.megatron(rows)})


def _mindformers_log(folder: Path) -> None:
    text = "".join(
        f"2025-04-07 15:34:{20 + step},308 - [mindformers/core/callback/callback.py:529] - INFO - "
        f"{{ Epoch:[  1/  2], step:[ {step:4}/   19], loss: {10.6 - step / 4}, per_step_time: 1752ms, lr: 1e-05, "
        f"overflow cond: False, loss_scale: 65536.0, global_norm: [1.508834], train_throughput_per_npu: 170.738T\n"
        for step in range(1, 20)
    )
    _write(folder, {"worker_0.log": text})


def _trainer_state(folder: Path) -> None:
    history = [{"epoch": 0.1, "grad_norm": 2.5, "learning_rate": 5e-05, "loss": 3.25 - step / 20, "step": step}
               for step in range(1, 30)]  # fmt: skip
    history += [{"epoch": 0.1, "eval_loss": 3.0, "step": 10}, {"epoch": 1.0, "train_runtime": 99.0, "step": 29}]
    _write(folder, {"trainer_state.json": json.dumps({"global_step": 29, "log_history": history})})


def _training_metrics(folder: Path) -> None:
    rows = plants_precision.curve(2, steps=20)
    table = "".join(f"{n},{row.loss},{row.grad},1e-4\n" for n, row in enumerate(rows))
    _write(folder, {"m.jsonl": plants_precision.json_lines(rows), "m.csv": "step,loss,grad_norm,lr\n" + table})


def _device_telemetry(folder: Path) -> None:
    head = "time_ns,phase,source,device,use_ratio,invalid,power_w,temperature_c,frequency_hz,memory_used_bytes\n"
    rows = "".join(
        f"{1_790_000_000_000_000_000 + n * 10**9},{'measured' if n < 20 else 'profiled'},npu-smi,npu{n % 2},"
        f"{'' if n >= 20 else 0.5},{'hidden' if n >= 20 else ''},{250.5 + n},{40 + n},1.65e9,{n << 30}\n"
        for n in range(40)
    )
    _write(folder, {"device_telemetry.csv": head + rows})


def _run_directory(folder: Path) -> None:
    """What a workload leaves: manifest, trace, telemetry and series."""
    (folder / "trace").mkdir()
    (folder / "trace" / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(_rank_of_gpus(0, 1), 1))
    write_manifest(folder, FULL)
    lines = plants_precision.json_lines(plants_precision.curve(1, steps=12))
    _write(folder, {"training.jsonl": lines, "telemetry.csv": "time_ns,cpu_percent,rss_bytes\n1,50.0,1000\n"})


def _rules(folder: Path) -> None:
    """A job and thresholds of a user: all that there are, with their defaults."""
    _ascend_text(folder)
    lines = ["# ours"]
    for code in rule_codes():
        if own := rule(code).thresholds:
            lines += [f"{code}:", *(f"  {item.name}: {item.value:.12g}" for item in own)]
    _write(folder, {RULES: "\n".join(lines) + "\n"})


SEEDS: Final[dict[str, Callable[[Path], None]]] = {
    "ascend-text": _ascend_text,
    "ascend-db": _ascend_db,
    "kineto": _kineto,
    "msprof": _msprof,
    "mindspore": _mindspore,
    "nsys": _nsys,
    "cluster-text": _cluster_text,
    "cluster-db": _cluster_db,
    "hccl-test": _hccl_test,
    "plog": _plog,
    "analysis-db": _analysis_db,
    "kineto-gz": _kineto_gz,
    "kineto-ranks": _kineto_ranks,
    "msprof-devices": _msprof_devices,
    "serving": _serving,
    "serving-old": _serving_old,
    "vllm-bench": _vllm_bench,
    "training-log": _training_log,
    "mindformers-log": _mindformers_log,
    "trainer-state": _trainer_state,
    "training-metrics": _training_metrics,
    "device-telemetry": _device_telemetry,
    "run-directory": _run_directory,
    "rules": _rules,
}
"""Target: how its folder is written. A new parser gets a line here."""
