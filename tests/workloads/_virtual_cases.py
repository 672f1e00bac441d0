"""Workloads one after the other in one process on a virtual NPU: each is built, stepped, read and closed.

    python -m tests.workloads._virtual_cases < cases.json

Cases are [[workload, [setting, ...]], ...]; WORLD_SIZE and ASCEND_PERF_ONE_RANK say for how many ranks the process
stands. Each third step lies between two marks of the record; the last line of the output is JSON: what each said, or
its error.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tests.workloads import _virtual_job

BEGIN, END = "case {} begins", "case {} ends"


def main() -> None:
    import torch

    from ascend_perf.collectors.step_marks import marker
    from ascend_perf.workloads import _spec

    with _virtual_job.joined() as world:
        mark = marker()
        said: list[dict[str, Any]] = []
        for number, (name, settings) in enumerate(json.loads(sys.stdin.read())):
            try:
                workload = _spec.find_workload(name)
                chosen = workload.settings("tiny", settings)
                with tempfile.TemporaryDirectory() as folder:
                    place = _spec.Place(device="npu:0", world_size=world, results=Path(folder))
                    program = workload.build(chosen.config, place, 0)
                    try:
                        for _ in range(2):
                            program.step()
                        program.start_measuring()
                        torch.npu.synchronize()
                        mark(BEGIN.format(number))
                        program.step()
                        torch.npu.synchronize()
                        mark(END.format(number))
                        made = {
                            "memory": dict(program.memory_bytes()),
                            "metrics": [metric.name for metric in program.metrics()],
                            "tables": {table: len(rows) for table, rows in program.tables().items()},
                        }
                    finally:
                        program.close()
                said.append(made)
            except Exception as error:
                traceback.print_exc()
                said.append({"error": f"{type(error).__name__}: {error}"[:300]})
        _virtual_job.answer(said)


if __name__ == "__main__":
    main()
