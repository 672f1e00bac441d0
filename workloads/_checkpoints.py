"""State of a training in a folder, by torch.distributed.checkpoint: saved by one layout, loaded by any other.

Every tensor is saved by its full name in the model as the pieces that ranks hold, each with its place in the whole; a
rank loads what its own piece needs. Beside weights and moments there are the steps done, which give the place in the
data as well, the loss scale, and each rank's random state.

A saved state is read by pickle: load your own only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from ascend_perf.errors import InputError
from ascend_perf.workloads._decoder import Cut, local_part

if TYPE_CHECKING:
    from ascend_perf.workloads._trainer import Trainer

PROGRESS: Final = "progress"
"""Steps done, loss scale, good steps since it changed, skipped steps."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a rank holds of a tensor, and where that lies in the whole; torch calls such an object checkpointable."""

    values: Tensor
    offsets: torch.Size
    whole: torch.Size

    def size(self) -> torch.Size:
        """Of the whole tensor."""
        return self.whole

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(offsets=self.offsets, sizes=self.values.size())

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()] if self.values.numel() else []

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        if not self.values.numel():
            return []
        data = TensorWriteData(
            chunk=self._chunk(), properties=TensorProperties.create_from_tensor(self.values), size=self.whole
        )
        return [WriteItem(index=MetadataIndex(name, self.offsets), type=WriteItemType.SHARD, tensor_data=data)]


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]  # torch is not type-checked here
    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].values


class _LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]  # torch is not type-checked here
    def set_up_planner(self, state_dict: dict[str, Any], metadata: Any = None, is_coordinator: bool = False) -> None:
        # The planner's own drops what is no tensor.
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].values


def piece(values: Tensor, like: Tensor, cut: Cut | None) -> Piece:
    """`values`, laid out as the weight `like` is: whole, sharded (DTensor), cut by tensor parallelism, or both."""
    _, offsets = local_part(like)
    size = list(like.shape)
    if cut is not None:
        offsets[cut.axis] += cut.index * size[cut.axis]
        size[cut.axis] *= cut.count
    return Piece(values=local_part(values)[0].detach(), offsets=torch.Size(offsets), whole=torch.Size(size))


def _plain(values: Tensor) -> Piece:
    return Piece(values=values, offsets=torch.Size([0] * values.dim()), whole=values.size())


def save(trainer: Trainer, folder: Path) -> None:
    """Write the state, on all ranks together."""
    state = _weights(trainer) | _buffers(trainer) | _moments(trainer, make=False)
    scale = trainer.scale
    numbers = [trainer.steps_done] + ([] if scale is None else [scale.value, scale.good, scale.skipped])
    state[PROGRESS] = _plain(torch.tensor(numbers, dtype=torch.float64))
    state[f"random/{trainer.place.rank}"] = _plain(torch.get_rng_state())
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet():
        planner = _SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=planner)


def load(trainer: Trainer, folder: Path) -> None:
    """Go on from a state that `save` wrote, in this or another layout.

    Raises:
        InputError: there is none, or it is of another model or optimizer.
    """
    known = _known(folder)
    if PROGRESS not in known:
        raise InputError(f"{folder.name} holds weights, but no state of a training to go on from")
    scale = trainer.scale
    progress = torch.zeros(tuple(known[PROGRESS].size), dtype=torch.float64)
    state = _weights(trainer) | _buffers(trainer) | _moments(trainer, make=True)
    state[PROGRESS] = _plain(progress)
    random, own = torch.get_rng_state(), f"random/{trainer.place.rank}"
    if own in known:
        state[own] = _plain(random)
    _read(state, known, folder)
    _put_moments(trainer, state)
    trainer.steps_done = int(progress[0])
    if scale is not None and len(progress) == 4:
        scale.value, scale.good, scale.skipped = float(progress[1]), int(progress[2]), int(progress[3])
    if own in known:
        torch.set_rng_state(random)


def load_weights(named: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut], folder: Path) -> None:
    """Fill weights from a state, by name: what it holds besides is left alone.

    Raises:
        InputError: there is none, or it lacks one of them, or has it in another size.
    """
    known = _known(folder)
    state = {f"weights/{name}": piece(weight, weight, cuts.get(name)) for name, weight in named.items()}
    _read(state, known, folder)


def _read(state: dict[str, Piece], known: dict[str, Any], folder: Path) -> None:
    for name, part in state.items():
        if name not in known:
            raise InputError(f"the state in {folder.name} has no {name}", hint=_SAME)
        if tuple(known[name].size) != tuple(part.whole):
            sizes = f"{tuple(known[name].size)}, here it is {tuple(part.whole)}"
            raise InputError(f"{name} in {folder.name} has size {sizes}", hint=_SAME)
    with _quiet():
        planner = _LoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=planner)


_SAME: Final = "resume with the settings of the model and the optimizer that the state was saved with"


def _known(folder: Path) -> dict[str, Any]:
    """What a folder holds, by name."""
    try:
        return dict(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata)
    except Exception as error:  # pickle and the file system raise many kinds
        raise InputError(f"no saved state in {folder.name}: {type(error).__name__}") from error


def _weights(trainer: Trainer) -> dict[str, Piece]:
    """Those that are trained: frozen ones come from where they came from at the start."""
    cuts = trainer.job.cuts
    return {f"weights/{name}": piece(weight, weight, cuts.get(name)) for name, weight in trainer.trained.items()}


def _buffers(trainer: Trainer) -> dict[str, Piece]:
    """What a model keeps beside weights, whole on every rank that has the layer: the bias that balances a router."""
    kept: dict[str, Piece] = {}
    for part in trainer.job.model:
        lasting = part.state_dict().keys()
        kept |= {f"buffers/{name}": _plain(values) for name, values in part.named_buffers() if name in lasting}
    return kept


def _moments(trainer: Trainer, *, make: bool) -> dict[str, Piece]:
    """State of the optimizer as pieces, by the names of the weights; `make`: empty ones, to be filled."""
    made: dict[str, Piece] = {}
    for name, weight in trainer.owned.items():
        kept = trainer.optimizer.state.get(weight, {})
        if make:
            kept = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            kept["step"] = torch.zeros((), dtype=torch.float32)
        for key, value in kept.items():
            if not torch.is_tensor(value):
                value = torch.tensor(float(value))
            if value.dim():
                made[f"optimizer/{name}/{key}"] = piece(value, weight, trainer.job.cuts.get(name))
            else:
                made[f"optimizer/{name}/{key}"] = _plain(value.detach().clone().cpu())
    return made


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
def _put_moments(trainer: Trainer, state: dict[str, Piece]) -> None:
    """Give the optimizer what was loaded, by its own way of taking a state."""
    names = {id(weight): name for name, weight in trainer.owned.items()}
    known = trainer.optimizer.state_dict()
    kept: dict[int, dict[str, Tensor]] = {}
    number = 0
    for group in trainer.optimizer.param_groups:
        for weight in group["params"]:
            name = names[id(weight)]
            kept[number] = {"step": state[f"optimizer/{name}/step"].values}
            for key in ("exp_avg", "exp_avg_sq"):
                moment = torch.zeros_like(weight)
                local_part(moment)[0].copy_(state[f"optimizer/{name}/{key}"].values)
                kept[number][key] = moment
            number += 1
    trainer.optimizer.load_state_dict({"state": kept, "param_groups": known["param_groups"]})


@contextmanager
def _quiet() -> Iterator[None]:
    """Outside of a job torch warns that it saves from one process, which is meant."""
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message="torch.distributed is")
        yield
