"""Training of a classifier on one rank or many: one step, its schedule, its record, its state on disk.

    forward -> loss -> backward (gradients averaged over ranks as they come) -> clip -> optimizer
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from ascend_perf.errors import InputError
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._fused import is_packed, zero_grad
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads._virtual import computes_nothing

# B samples, K classes

STATE_FILE: Final = "state.pt"
TORCH_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def training_dtype(dtype: str, kind: str) -> Literal["fp32", "bf16", "fp16"]:
    """The type that `auto` stands for: bf16 where the device multiplies it natively, else fp16, on a CPU fp32."""
    return target_here(kind).auto_dtype("fp16") if dtype == "auto" else dtype  # type: ignore[return-value]


def rate_factor(step: int, *, warmup: int, total: int, shape: Literal["cosine", "linear", "constant"]) -> float:
    """Learning rate of a step (from 0) by its peak: linear up over `warmup` steps, then down to 0 at `total`."""
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1.0 - done


def on_all_ranks(model: nn.Module, place: Place, *, packed: bool = False) -> nn.Module:
    """The model wrapped so that backward averages gradients; itself in a job of one.

    Args:
        packed: the optimizer keeps all gradients in one buffer of its own: they cannot lie in those of DDP as well.
    """
    if place.world_size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    devices = None if place.kind == "cpu" else [torch.device(place.device)]
    # Running statistics are each rank's own: broadcasting them would add a collective to every forward.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # from torch 2.13
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=not packed, **{buffers: False})


class Training:
    """A model in training. `step` is one optimizer step; loss, accuracy and rate of all steps are kept on the device.

    Args:
        model: on the device; what it is called with gives logits B x K.
        optimizer: made of the model's parameters.
        rate: factor of the learning rate by step.
        max_grad_norm: gradients are scaled down to it; None: not.
        clip, zero: how the optimizer wants its gradients clipped and forgotten.
    """

    def __init__(
        self,
        model: nn.Module,
        place: Place,
        *,
        dtype: Literal["fp32", "bf16", "fp16"],
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
        label_smoothing: float = 0.0,
        max_grad_norm: float | None = None,
        clip: Callable[..., Tensor] | None = None,
        zero: Callable[[torch.optim.Optimizer], None] | None = None,
    ) -> None:
        self.model, self.place, self.dtype, self.optimizer = model, place, dtype, optimizer
        self.smoothing, self.max_grad_norm = label_smoothing, max_grad_norm
        self._rate = rate
        self._clip = clip or (lambda optimizer, weights, norm: nn.utils.clip_grad_norm_(weights, norm))
        self._zero = zero or zero_grad
        self._wrapped = on_all_ranks(model, place, packed=is_packed(optimizer))
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._scaler = _scaler(place.kind, enabled=dtype == "fp16")
        self.steps_done = 0
        self._first = 0
        self._saved_bytes = 0
        self._results: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._rates: list[float] = []
        self._scales: list[float] = []

    def autocast(self) -> Any:
        """The context in which the model runs."""
        if self.dtype == "fp32":
            return nullcontext()
        return torch.autocast(self.place.kind, TORCH_DTYPES[self.dtype])

    def step(self, inputs: Sequence[Tensor], labels_B: Tensor) -> None:
        """One step on this rank's samples."""
        factor = self._rate(self.steps_done)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        # Not after the step: so the gradients are there to be measured.
        self._zero(self.optimizer)
        counting = _SavedBytes(self.model) if self.steps_done == self._first else None
        with record_function("forward"), self.autocast(), counting or nullcontext():
            logits_BK = self._wrapped(*inputs).float()
            loss = F.cross_entropy(logits_BK, labels_B, label_smoothing=self.smoothing)
        if counting is not None:
            self._saved_bytes = counting.total
        with record_function("backward"):
            self._scaler.scale(loss).backward()
        with record_function("optimizer"):
            if self.max_grad_norm is not None:
                self._scaler.unscale_(self.optimizer)
                norm = self._clip(self.optimizer, self.model.parameters(), self.max_grad_norm)
                self._norms.append(norm.detach())
            if self._scaler.is_enabled():
                self._scales.append(self._scaler.get_scale())
            self._scaler.step(self.optimizer)
            self._scaler.update()
        hits = (logits_BK.detach().argmax(-1) == labels_B).float().mean()
        self._results.append(self._mean_over_ranks(torch.stack((loss.detach(), hits))))
        self._rates.append(self._peaks[0] * factor)
        self.steps_done += 1

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        if self.place.world_size > 1:
            dist.all_reduce(values)
            values /= self.place.world_size
        return values

    def gradient_scale(self) -> float:
        """Factor of the loss in the next step."""
        return float(self._scaler.get_scale())

    def last_loss(self) -> float:
        """Loss of the last step over all ranks."""
        return float(self._results[-1][0])

    def series(self) -> Mapping[str, Sequence[float]]:
        """Loss, accuracy on the samples trained on and learning rate of each step; gradient norm, scale of the loss."""
        results = torch.stack(self._results).cpu().tolist() if self._results else []
        named: dict[str, Sequence[float]] = {
            "loss": [loss for loss, _ in results],
            "accuracy": [hits for _, hits in results],
            "learning_rate": self._rates,
        }
        if self._norms:
            named["grad_norm"] = torch.stack(self._norms).cpu().tolist()
        if self._scales:
            named["loss_scale"] = self._scales
        return named

    def memory_bytes(self) -> dict[str, int]:
        """Measured bytes by component; activations are what the first forward kept for backward."""
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        return {
            "weights": _bytes([*self.model.parameters(), *self.model.buffers()]),
            "gradients": _bytes([weight.grad for weight in self.model.parameters() if weight.grad is not None]),
            "optimizer": _bytes([value for value in state if isinstance(value, Tensor)]),
            "activations": self._saved_bytes,
        }

    def evaluate(self, batches: Sequence[tuple[Sequence[Tensor], Tensor]]) -> float:
        """Share of samples whose likeliest class is theirs. Every rank computes all; weights do not change."""
        self.model.eval()
        right = total = 0
        with torch.no_grad(), self.autocast():
            for inputs, labels_B in batches:
                right += int((self.model(*inputs).argmax(-1) == labels_B).sum())
                total += len(labels_B)
        self.model.train()
        return right / total

    def save(self, folder: Path) -> None:
        """Write the state; every rank has the same, so rank 0 writes and the others wait."""
        if self.place.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{STATE_FILE}.part"
            torch.save(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scaler": self._scaler.state_dict(),
                    "steps_done": self.steps_done,
                },
                part,
            )
            os.replace(part, folder / STATE_FILE)
        if self.place.world_size > 1:
            dist.barrier()

    def resume(self, folder: Path) -> None:
        """Go on from a state that `save` wrote.

        Raises:
            InputError: there is none, it is damaged, or it is of another model.
        """
        state = read_state(folder, self.place.device)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._scaler.load_state_dict(state["scaler"] if self._scaler.is_enabled() else {})
            self.steps_done = self._first = int(state["steps_done"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{folder.name}/{STATE_FILE} is the state of another model: {_first_lines(error)}",
                hint="resume with the preset and the settings of the run that saved it",
            ) from error


def read_state(folder: Path, device: str) -> dict[str, Any]:
    """The state that `Training.save` wrote.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise InputError(f"no {STATE_FILE} in {folder.name}", hint="name the folder of checkpoints of an earlier run")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a damaged archive ends in any of a dozen types
        raise InputError(f"{folder.name}/{STATE_FILE} is damaged: {_first_lines(error)}") from error
    if not isinstance(state, dict):
        raise InputError(f"{folder.name}/{STATE_FILE} is no state of a training run")
    return state


def load_weights(model: nn.Module, folder: Path, device: str) -> None:
    """Take the weights of a state that `Training.save` wrote.

    Raises:
        InputError: there is none, it is damaged, or it is of another model.
    """
    state = read_state(folder, device)
    try:
        model.load_state_dict(state["model"])
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{folder.name} holds another model: {reason}", hint="use the settings of the run that saved it"
        ) from error


class _SavedBytes:
    """Counts the memory that forward keeps for backward, the model's own left out; views of one tensor count once."""

    def __init__(self, model: nn.Module) -> None:
        own = [*model.parameters(), *model.buffers()]
        self._known = {tensor.untyped_storage().data_ptr() for tensor in own}
        self.total = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # A tensor that is kept stays alive through forward, so its address is its own.
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)


def _scaler(kind: str, *, enabled: bool) -> Any:
    if kind != "npu":
        return torch.amp.GradScaler(kind, enabled=enabled)
    if not computes_nothing(kind):
        return torch.npu.amp.GradScaler(enabled=enabled)

    class Scaler(torch.npu.amp.GradScaler):  # type: ignore[misc]  # torch is not type-checked here
        """Waits for the device as ever, and takes no gradient for infinite whatever it read."""

        def _maybe_opt_step(self, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
            for found in state["found_inf_per_device"].values():
                found.item()
            self._has_overflow = False
            return optimizer.step(*args, **kwargs)

    return Scaler(enabled=enabled)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
