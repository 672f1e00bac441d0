"""Collectives of one step of llm-pretrain over torch's process group `fake`, on tensors without values.

    python -m tests.workloads._fake_group WORLD PRESET SETTING...

The last line is JSON: operator of c10d -> calls. It knows nothing of NPUs: a second count for what a virtual one sees.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from typing import Any


def main(world: int, preset: str, *settings: str) -> None:
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ascend_perf.collectors.op_recorder import fake_tensors, record
    from ascend_perf.workloads import _decoder, _parallel, _spec

    warnings.simplefilter("ignore")
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    parallel: Any = _parallel
    make_groups = parallel.make_groups

    def with_values(*args: Any) -> Any:
        with unset_fake_temporarily():  # a mesh reads its own ranks
            return make_groups(*args)

    parallel.make_groups = with_values
    decoder: Any = _decoder
    decoder.initialise = lambda *args, **options: None
    workload = _spec.find_workload("llm-pretrain")
    chosen = workload.settings(preset, settings)
    with fake_tensors():
        program = workload.build(chosen.config, _spec.Place(device="cpu", world_size=world), 0)
        stream = record(program.step)
    counted = Counter(line.partition("(")[0] for line in stream if line.startswith("c10d."))
    print("\n" + json.dumps(counted), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # destructors of fake tensors are not what is tested
