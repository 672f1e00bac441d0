"""One process that stands for all ranks of a job: rank 0 of N, without the others.

On a virtual NPU nothing is sent, so the other ranks, which do the same at the same time, need not run. What a program
still wants of them is answered here, by symmetry: a rendezvous meets no one, waiting for a key of the store ends at
once, collectives of Python objects give what this rank put in, and the check that all ranks built the same model has
nothing to compare. Collectives of tensors on the device are HCCL's and go to the virtual device; those on the CPU go
to torch's process group `fake`, which moves nothing.

HCCL is not told which ranks of the job a group has, only how many. With all ranks running the library sees who they
are; here it is told, so that a group across machines takes their links.

`activate` is called before the program imports torch (by `ascend-perf collect`), `install` after that (by our own
harness).
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

VARIABLE: Final = "ASCEND_PERF_ONE_RANK"
"""Set to 1 in a process that stands for all ranks of its job."""
LIBRARY: Final = "libascendcl.so"
COMMUNICATOR: Final = "group_name_"
"""What torch_npu puts before the name of a group to name its communicator."""
_stores: Final[list[Any]] = []
"""torch keeps the C++ part of a store only: without the other, its methods would be gone."""


def variables(world_size: int, ranks_per_node: int) -> dict[str, str]:
    """What a launcher would set for rank 0 of the job, and our own word that it is alone."""
    return {
        VARIABLE: "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(min(world_size, ranks_per_node)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def is_alone() -> bool:
    """Whether this process stands for all ranks of its job."""
    return os.environ.get(VARIABLE) == "1"


def activate() -> None:
    """Wait for torch to be imported, then `install`."""
    from ascend_perf.collectors import _activation

    _activation.after_import("torch", install)


def install() -> None:
    """Replace what needs the other ranks. Twice is once."""
    import torch.distributed as dist

    if not dist.is_available() or getattr(dist, "_ascend_perf_one_rank", False):
        return
    dist._ascend_perf_one_rank = True
    from torch.distributed import distributed_c10d, utils
    from torch.nn.parallel import distributed as data_parallel

    init = distributed_c10d.init_process_group
    _replace("init_process_group", functools.wraps(init)(functools.partial(_init, init)))
    new_group = distributed_c10d.new_group
    _replace("new_group", functools.wraps(new_group)(functools.partial(_new_group, new_group)))
    for function in (all_gather_object, gather_object, scatter_object_list, broadcast_object_list, monitored_barrier):
        _replace(function.__name__, function)
    for module in (utils, data_parallel):
        if hasattr(module, "_verify_param_shape_across_processes"):
            module._verify_param_shape_across_processes = _verified


def _replace(name: str, function: Callable[..., Any]) -> None:
    """Wherever torch itself keeps the name."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for module in (dist, distributed_c10d):
        if hasattr(module, name):
            setattr(module, name, function)


def _init(
    init: Callable[..., Any], backend: str | None = None, init_method: str | None = None,
    timeout: timedelta | None = None, world_size: int = -1, rank: int = -1, store: Any = None, *args: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`torch.distributed.init_process_group` as rank 0 of the job, with a store that no one else uses."""
    del init_method, store
    _tell_groups()
    size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    if rank > 0:
        raise ValueError(
            f"this process stands for all {size} ranks and is rank 0: it cannot be rank {rank}. Where the program "
            "starts its ranks itself, leave --world-size out"
        )
    return init(_backend(backend), None, timeout, size, 0, make_store(), *args, **options)


def _new_group(
    new_group: Callable[..., Any], ranks: Any = None, timeout: Any = None, backend: str | None = None, *args: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`torch.distributed.new_group`; groups over gloo are fake ones."""
    return new_group(ranks, timeout, None if backend is None else _backend(backend), *args, **options)


def _tell_groups() -> None:
    """Tell the virtual device the ranks of every group that torch makes from now on, whichever function asks for it."""
    from torch.distributed import distributed_c10d

    # Looked up now and not in `install`: torch_npu has one of its own for some releases of torch.
    helper = distributed_c10d._new_process_group_helper
    if getattr(helper, "_ascend_perf", False):
        return
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def told(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        ranks = given["global_ranks_in_group"] or range(given["group_size"])  # empty: all of the job
        _tell_group(str(given["group_name"]), [int(rank) for rank in ranks])
        return helper(*args, **options)

    told._ascend_perf = True  # type: ignore[attr-defined]
    distributed_c10d._new_process_group_helper = told
    # Methods and not `dist.send`: a batch of transfers asks whether its operations are these very functions.
    kind = distributed_c10d.ProcessGroup
    for name in ("send", "recv"):
        setattr(kind, name, _telling_of_peer(getattr(kind, name), distributed_c10d.get_global_rank))


def _telling_of_peer(transfer: Callable[..., Any], global_rank: Callable[[Any, int], int]) -> Callable[..., Any]:
    """`ProcessGroup.send` or `recv` that says whom it is with: torch_npu makes a communicator without name for both."""
    if getattr(transfer, "_ascend_perf", False):
        return transfer

    @functools.wraps(transfer)
    def told(group: Any, tensors: Any, peer: int, *args: Any, **options: Any) -> Any:
        library = _library()
        if library is not None:
            library.virtual_npu_peer(ctypes.c_int32(global_rank(group, peer)))
        return transfer(group, tensors, peer, *args, **options)

    told._ascend_perf = True  # type: ignore[attr-defined]
    return told


def _tell_group(name: str, ranks: list[int]) -> None:
    """What torch_npu calls the communicator of a group, and the ranks of the job in it."""
    library = _library()
    if library is not None:
        numbers = (ctypes.c_int32 * len(ranks))(*ranks)
        library.virtual_npu_group(f"{COMMUNICATOR}{name}".encode(), numbers, ctypes.c_int32(len(ranks)))


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The virtual device; None in a process that runs on the CPU."""
    try:
        library = ctypes.CDLL(LIBRARY)
        return library if library.virtual_npu_group and library.virtual_npu_peer else None
    except (OSError, AttributeError):
        return None


def _backend(backend: str | None) -> str:
    """The back end with `fake` in place of what would look for other processes."""
    # It registers the back end.
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    if backend is None:
        return "cpu:fake,npu:hccl"
    chosen: dict[str, str] = {}
    for part in str(backend).lower().split(","):
        device, _, name = part.rpartition(":")
        chosen[device] = "fake" if name in ("gloo", "mpi") else name
    if set(chosen) == {""} and chosen[""] == "fake":
        return "fake"
    return ",".join(f"{device}:{name}" if device else name for device, name in chosen.items())


def make_store() -> Any:
    """A store of this process alone. What others would have written is there at once, and empty."""
    import torch.distributed as dist

    class LoneStore(dist.Store):  # type: ignore[misc]  # torch is not type-checked here
        """Keys in a dictionary. Waiting never waits."""

        def __init__(self) -> None:
            super().__init__()
            self._kept: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._kept[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self._kept.get(key, b"")

        def add(self, key: str, amount: int) -> int:
            total = int(self._kept.get(key, b"0") or b"0") + amount
            self._kept[key] = str(total).encode()
            return total

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            before = self._kept.get(key, b"")
            wanted = expected.encode() if isinstance(expected, str) else bytes(expected)
            if before == wanted:
                self.set(key, desired)
            return self._kept.get(key, wanted)

        def wait(self, keys: Any, timeout: timedelta | None = None) -> None:
            return None

        def check(self, keys: Any) -> bool:
            return True

        def delete_key(self, key: str) -> bool:
            return self._kept.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._kept)

        def set_timeout(self, timeout: timedelta) -> None:
            return None

        def append(self, key: str, value: str | bytes) -> None:
            self._kept[key] = self._kept.get(key, b"") + (value.encode() if isinstance(value, str) else bytes(value))

        def multi_get(self, keys: Any) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: Any, values: Any) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def has_extended_api(self) -> bool:
            return True

        def clone(self) -> Any:
            return self

    store = LoneStore()
    _stores.append(store)
    return store


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Every rank has what this one has."""
    object_list[:] = [obj] * len(object_list)


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None, **options: Any
) -> None:
    """As `all_gather_object`, where this rank is the one that gathers."""
    if object_gather_list is not None:
        all_gather_object(object_gather_list, obj)


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *args: Any,
    **options: Any,
) -> None:  # fmt: skip
    """This rank takes the first."""
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]


def broadcast_object_list(object_list: list[Any], *args: Any, **options: Any) -> None:
    """What is here is what everyone has."""


def monitored_barrier(*args: Any, **options: Any) -> None:
    """All have arrived."""


def _verified(*args: Any, **options: Any) -> bool:
    """That all ranks built the same model."""
    return True
