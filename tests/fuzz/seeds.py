"""Small valid profiles of every format, written by the writers of the tests: what the fuzzer damages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.faults import model
from tests.faults.machine import simulate
from tests.faults.writer import write_job
from tests.parsers import test_ascend_db, test_cluster_output, test_hccl_test, test_kineto, test_mindspore, test_nsys
from tests.parsers import test_msprof as msprof
from tests.parsers import test_plog as plog


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


def _mindspore(folder: Path) -> None:
    test_mindspore.write_pipeline(test_mindspore.profile(folder))


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
}
"""Target: how its folder is written. A new parser gets a line here."""
