"""A small training loop on virtual NPUs under the profiler of torch_npu. Run by the tests in processes of their own.

    python _profiled_job.py TRACES STORE STEPS [item]
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch_npu
from torch import nn

profiler = torch_npu.profiler
BATCH, WIDTH = 65_536, 8192


def main(traces: str, store: str, steps: str, mode: str = "") -> None:
    """Train a small model; with `item` the loss is read back in each step."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.npu.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world > 1:
        dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=world)
    # Large matrices, which cost nothing here and keep the device busy for as long as a loaded machine needs to launch.
    with torch.device("npu"):
        model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        x_BF = torch.ones(BATCH, WIDTH)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        # The first steps of DistributedDataParallel synchronise for reasons of their own.
        schedule=profiler.schedule(wait=2, warmup=1, active=int(steps), repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(traces, analyse_flag=False),
        record_shapes=True, profile_memory=True, with_stack=True,
        experimental_config=profiler._ExperimentalConfig(
            profiler_level=profiler.ProfilerLevel.Level1, aic_metrics=profiler.AiCMetrics.PipeUtilization,
            data_simplification=False,
        ),
    ) as profile:  # fmt: skip
        for _ in range(3 + int(steps)):
            loss = model(x_BF).square().mean()
            if mode == "item":
                loss.item()  # THE LINE
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    torch.npu.synchronize()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
