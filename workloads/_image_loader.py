"""Batches of training pictures: decoded, cropped and mirrored by worker processes ahead of the step."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ascend_perf.errors import InputError
from ascend_perf.workloads._batches import endless
from ascend_perf.workloads._images import Pictures, as_pixels, decode_one, normalise, random_crop

# B images, C channels, H height, W width

Sample = tuple[Any, int]
"""Epoch and number of a picture: what it becomes depends on both and the seed, not on the process that makes it."""


class RandomCrops(Dataset):  # type: ignore[misc]  # torch is not type-checked here
    """Pictures as training sees them. What cannot be decoded is handed on as its error: see `_collate`."""

    def __init__(self, pictures: Pictures, *, crop_px: int, seed: int) -> None:
        self.pictures, self.crop_px, self.seed = pictures, crop_px, seed

    def __len__(self) -> int:
        return len(self.pictures.files)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, index = key
        random = np.random.default_rng((self.seed, epoch, index))
        try:
            picture = decode_one(self.pictures.read(index), self.pictures.name_of(index))
        except InputError as error:
            return error, -1
        return random_crop(picture, self.crop_px, random), self.pictures.labels[index]


class Collate:
    """Joins samples to a batch; `on_host` normalises there (fp32, B x C x H x W), else uint8, B x H x W x C."""

    def __init__(self, *, on_host: bool) -> None:
        self.on_host = on_host

    def __call__(self, samples: list[Sample]) -> tuple[torch.Tensor | InputError, torch.Tensor]:
        # An exception would reach the other process as text with a traceback; a value arrives whole.
        broken = [made for made, _ in samples if isinstance(made, InputError)]
        labels_B = torch.tensor([label for _, label in samples])
        if broken:
            return broken[0], labels_B
        pixels_BHWC = as_pixels([made for made, _ in samples])
        return normalise(pixels_BHWC) if self.on_host else torch.from_numpy(pixels_BHWC), labels_B


class ImageLoader:
    """An endless iterator over the batches of one rank.

    Workers are started by a fork server: forking this process itself would copy it with the threads of the device's
    runtime. `close` ends them; when this process dies, they end by themselves.
    """

    def __init__(
        self,
        pictures: Pictures,
        *,
        batch: int,
        ranks: int,
        rank: int,
        crop_px: int,
        seed: int,
        workers: int,
        prefetch: int,
        on_host: bool,
        pin_memory: bool,
        start: int = 0,
    ) -> None:
        keys = _Keys(len(pictures.files), batch=batch, ranks=ranks, rank=rank, seed=seed, start=start)
        more: dict[str, Any] = {}
        if workers:
            more = {"prefetch_factor": prefetch, "multiprocessing_context": "forkserver", "worker_init_fn": _end_with}
        loader = DataLoader(
            RandomCrops(pictures, crop_px=crop_px, seed=seed),
            batch_sampler=keys,
            num_workers=workers,
            collate_fn=Collate(on_host=on_host),
            pin_memory=pin_memory,
            generator=torch.Generator().manual_seed(seed),
            **more,
        )
        self._batches = iter(loader)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures and classes of the next step.

        Raises:
            InputError: a picture is broken.
        """
        pictures, labels_B = next(self._batches)
        if isinstance(pictures, InputError):
            raise pictures
        return pictures, labels_B

    def close(self) -> None:
        """End the workers. May be called twice."""
        batches, self._batches = self._batches, iter(())
        stop = getattr(batches, "_shutdown_workers", None)  # no public call exists
        if stop is not None:
            stop()


def _end_with(_: int) -> None:
    """In a worker: end when the process dies that wants the batches.

    The loader's own watchdog looks at the parent, which is the fork server, and that lives as long as its children.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Keys:
    """Keys of `RandomCrops`, a list per step."""

    def __init__(self, count: int, *, batch: int, ranks: int, rank: int, seed: int, start: int) -> None:
        self.all = endless(count, batch=batch, ranks=ranks, rank=rank, seed=seed, start=start)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch, indices in self.all:
            yield [(epoch, index) for index in indices]
