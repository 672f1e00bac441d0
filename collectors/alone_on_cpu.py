"""What torch needs to record one process of a job on the CPU, without the others and, if asked for, without values.

Beside `one_rank` (torch's process group `fake`, which sends nothing): gradients of DistributedDataParallel go through a
hook of ours, since the work that `fake` gives has no result; a DeviceMesh computes with numbers of ranks, which have
values also while other tensors have none; and whole numbers that are exchanged are those of this rank.

For a process of its own: what is replaced stays so.
"""

from __future__ import annotations

import functools
import os
from types import FunctionType
from typing import Any

from ascend_perf.collectors import one_rank


def join(world_size: int) -> None:
    """Be the first of so many processes."""
    os.environ.update(one_rank.variables(world_size, world_size))
    one_rank.install()
    import torch.distributed as dist
    from torch.distributed import device_mesh
    from torch.distributed.tensor import _utils as sharding
    from torch.nn.parallel import DistributedDataParallel

    device_mesh.init_device_mesh = dist.init_device_mesh = _on_values(device_mesh.init_device_mesh)
    mesh = device_mesh.DeviceMesh
    for name, member in list(vars(mesh).items()):
        if isinstance(member, FunctionType):
            setattr(mesh, name, _on_values(member))
        elif isinstance(member, staticmethod):
            setattr(mesh, name, staticmethod(_on_values(member.__func__)))
    if hasattr(sharding, "_compute_local_shape_and_global_offset"):  # where a shard begins, in torch 2.13 by tensors
        sharding._compute_local_shape_and_global_offset = _on_values(sharding._compute_local_shape_and_global_offset)
    init = DistributedDataParallel.__init__

    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        # torch would compare annotations, which are texts here; a lambda has none.
        self.register_comm_hook(self.process_group, lambda group, bucket: _mean(group, bucket))

    DistributedDataParallel.__init__ = hooked
    dist.all_to_all_single = _exchanging(dist.all_to_all_single)
    dist.init_process_group("gloo")


def _mean(group: Any, bucket: Any) -> Any:
    """What DistributedDataParallel does by itself: a bucket of gradients over the ranks, then all-reduced."""
    import torch
    import torch.distributed as dist

    gradients = bucket.buffer()
    gradients.div_(group.size())
    dist.all_reduce(gradients, group=group)
    done: Any = torch.futures.Future()
    done.set_result(gradients)
    return done


def _exchanging(exchange: Any) -> Any:
    """`all_to_all_single`, after which whole numbers are there: the others send what this rank sends. Sizes of what
    comes next would else be what memory held."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    @functools.wraps(exchange)
    def exchanged(output: Any, input: Any, *args: Any, **options: Any) -> Any:
        work = exchange(output, input, *args, **options)
        if output.shape == input.shape and not output.is_floating_point() and type(output) is torch.Tensor:
            with _disable_current_modes():  # no operator of the step
                output.copy_(input)
        return work

    return exchanged


def _on_values(function: Any) -> Any:
    """The function, whose tensors have values."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    @functools.wraps(function)
    def within(*args: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **options)

    return within
