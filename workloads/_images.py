"""Pictures for the vision workloads: files made by seed or found in a folder, and what is done to them on the host.

Imports neither torch nor Pillow on its own: both come in with the functions that need them.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ascend_perf.errors import InputError, first_line

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

# B images, C channels, H height, W width

MEAN_RGB: Final = (0.485, 0.456, 0.406)
STD_RGB: Final = (0.229, 0.224, 0.225)
"""Channel statistics of ImageNet for values 0..1. Source: the reference training code of torchvision."""
RESIZE_RATIO: Final = 256 / 224
"""The short side is resized to this multiple of the crop. Source: the evaluation protocol of ResNet on ImageNet."""
CROP_AREA: Final = (0.08, 1.0)
CROP_ASPECT: Final = (3 / 4, 4 / 3)
CROP_TRIES: Final = 10
"""Random crops for training. Source: Inception (Szegedy et al., 2014), as in torchvision's RandomResizedCrop."""
SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png"})
MAX_PIXELS: Final = 1 << 28
"""Larger pictures are refused. Status: assumed."""
HELD_OUT_EVERY: Final = 10
"""Of a folder without `val`, every tenth picture of a class is held out. Status: assumed."""
_HUES: Final = 12

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Files of pictures with their classes. Of `files` each is the file's bytes, or the path of one."""

    files: Sequence[bytes | Path]
    labels: Sequence[int]
    root: Path | None = None
    """Messages name paths relative to this folder."""
    names: Sequence[str] = ()
    """Names of files that were read before; none: bytes are synthetic."""

    def name_of(self, index: int) -> str:
        """The picture in words."""
        file = self.files[index]
        if isinstance(file, bytes):
            return self.names[index] if self.names else f"synthetic picture {index}"
        return str(file.relative_to(self.root)) if self.root else file.name

    def read(self, index: int) -> bytes:
        """Bytes of the file.

        Raises:
            InputError: it cannot be read.
        """
        file = self.files[index]
        if isinstance(file, bytes):
            return file
        try:
            return file.read_bytes()
        except OSError as error:
            raise InputError(f"{self.name_of(index)} is not readable: {error.strerror}") from error


def synthetic_jpegs(*, count: int, width_px: int, height_px: int, quality: int, seed: int) -> list[bytes]:
    """JPEG files in memory: noise of four scales, so that size and decode time come near those of photographs."""
    random = np.random.default_rng(seed)
    return [_jpeg(_noise(random, width_px, height_px), quality) for _ in range(count)]


def synthetic_classes(
    *, count: int, classes: int, width_px: int, height_px: int, quality: int, seed: int
) -> Pictures:  # fmt: skip
    """Pictures that show their class: half of a pixel is noise, half the hues of the class, so that a net can learn.

    Classes follow each other (0, 1, 2, ... 0, 1, ...). A class is three bands of hue, one below the other: cropping
    and mirroring leave it what it is. The first twelve classes have one hue in all bands.
    """
    random = np.random.default_rng(seed)
    files, labels = [], []
    for index in range(count):
        label = index % classes
        picture_HWC = 0.5 * _noise(random, width_px, height_px)
        for band, rows in enumerate(np.array_split(np.arange(height_px), 3)):
            hue = (label + (0, label // _HUES, label // _HUES**2)[band]) % _HUES
            picture_HWC[rows] += 127 * np.array(colorsys.hsv_to_rgb(hue / _HUES, 0.8, 1.0), np.float32)
        files.append(_jpeg(picture_HWC, quality))
        labels.append(label)
    return Pictures(files=files, labels=labels)


def found_pictures(folder: Path) -> list[Path]:
    """Every picture below a folder, sorted.

    Raises:
        InputError: it is no folder, or has no pictures.
    """
    if not folder.is_dir():
        raise InputError(f"{folder.name}: no folder of pictures", hint="give one with --data FOLDER")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise InputError(
            f"{folder.name}: no pictures ({', '.join(sorted(SUFFIXES))})", hint="one folder per class below it"
        )
    return files


def labelled_folder(folder: Path) -> tuple[Pictures, Pictures, list[str]]:
    """Pictures to train on, pictures held out, and the names of the classes, of a folder with one folder per class.

    Where the folder has `train` and `val`, those are the two parts; else every tenth picture of a class is held out.

    Raises:
        InputError: no pictures, no class folders, or classes of `val` that `train` lacks.
    """
    found_pictures(folder)
    parts = (folder / "train", folder / "val")
    if all(part.is_dir() for part in parts):
        names = _classes(parts[0])
        if more := sorted(set(_classes(parts[1])) - set(names)):
            raise InputError(f"{folder.name}: val has the class {more[0]!r}, train does not")
        train, held_out = (_labelled(part, names) for part in parts)
        return train, held_out, names
    names = _classes(folder)
    whole = _labelled(folder, names)
    seen = dict.fromkeys(range(len(names)), 0)
    chosen: tuple[list[int], list[int]] = ([], [])
    for index, label in enumerate(whole.labels):
        seen[label] += 1
        chosen[seen[label] % HELD_OUT_EVERY == 0].append(index)
    train, held_out = (
        Pictures(files=[whole.files[i] for i in rows], labels=[whole.labels[i] for i in rows], root=folder)
        for rows in chosen
    )
    return train, held_out, names


def decode_one(data: bytes, name: str = "picture") -> Image:
    """A picture in RGB.

    Raises:
        InputError: the bytes are no picture, a broken one, or one beyond `MAX_PIXELS`.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(f"{name}: {picture.width} x {picture.height} pixels are more than we decode")
            return picture.convert("RGB")
    except Image.UnidentifiedImageError as error:
        raise InputError(f"{name} is no picture that Pillow knows", hint="remove it from the folder") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = first_line(error, 200)
        raise InputError(f"{name} is a broken picture: {reason}", hint="remove it from the folder") from error


def decode(files: Sequence[bytes]) -> list[Image]:
    """Pictures in RGB."""
    return [decode_one(data) for data in files]


def resize(pictures: Sequence[Image], crop_px: int, *, keep_px: int | None = None) -> list[Image]:
    """Short side to 256/224 of `crop_px`, bilinear, then the square in the middle.

    Args:
        keep_px: side of the square that is cut out, around the same middle; None: `crop_px`. With the side that
            `AippConfig` crops from, its crop is the square that this function gives without.
    """
    from PIL import Image

    cropped = []
    short_px = source_px(crop_px)
    side = crop_px if keep_px is None else keep_px
    for picture in pictures:
        scale = short_px / min(picture.size)
        width, height = (round(length * scale) for length in picture.size)
        margin = (side - crop_px) // 2
        left, top = (width - crop_px) // 2 - margin, (height - crop_px) // 2 - margin
        scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
        cropped.append(scaled.crop((left, top, left + side, top + side)))
    return cropped


def source_px(crop_px: int) -> int:
    """Short side of a picture before the middle is cut out."""
    return round(crop_px * RESIZE_RATIO)


def random_crop(picture: Image, crop_px: int, random: np.random.Generator) -> Image:
    """A random part of a picture, 8 % to all of its area, resized to a square and mirrored half of the time."""
    from PIL import Image

    left, top, width, height = random_box(picture.width, picture.height, random)
    box = (left, top, left + width, top + height)
    square = picture.resize((crop_px, crop_px), Image.Resampling.BILINEAR, box=box)
    return square.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else square


def random_box(width_px: int, height_px: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random crop; after ten tries that do not fit, the middle."""
    for _ in range(CROP_TRIES):
        area = width_px * height_px * random.uniform(*CROP_AREA)
        aspect = float(np.exp(random.uniform(*np.log(CROP_ASPECT))))
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < width <= width_px and 0 < height <= height_px:
            left, top = (int(random.integers(0, room + 1)) for room in (width_px - width, height_px - height))
            return left, top, width, height
    width = min(width_px, max(1, round(height_px * CROP_ASPECT[1])))
    height = min(height_px, max(1, round(width_px / CROP_ASPECT[0])))
    return (width_px - width) // 2, (height_px - height) // 2, width, height


def as_pixels(pictures: Sequence[Image]) -> Pixels:
    """Batch B x H x W x C in uint8; the pictures have one size."""
    return np.stack([np.asarray(picture) for picture in pictures])


def normalise(pixels_BHWC: Pixels) -> torch.Tensor:
    """Batch B x C x H x W in fp32, mean 0 and deviation 1 per channel over ImageNet."""
    import torch

    x_BHWC = torch.from_numpy(pixels_BHWC).float() / 255
    x_BHWC = (x_BHWC - torch.tensor(MEAN_RGB)) / torch.tensor(STD_RGB)
    return x_BHWC.permute(0, 3, 1, 2).contiguous()


def _noise(random: np.random.Generator, width_px: int, height_px: int) -> npt.NDArray[np.float32]:
    from PIL import Image

    picture_HWC = np.zeros((height_px, width_px, 3), np.float32)
    for cells, weight in ((4, 0.4), (16, 0.25), (64, 0.15), (256, 0.2)):
        coarse = random.integers(0, 256, (cells * 3 // 4, cells, 3), np.uint8)
        layer = Image.fromarray(coarse).resize((width_px, height_px), Image.Resampling.BICUBIC)
        picture_HWC += weight * np.asarray(layer, np.float32)
    return picture_HWC


def _jpeg(picture_HWC: npt.NDArray[np.float32], quality: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture_HWC.astype(np.uint8)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _classes(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise InputError(f"{folder.name}: no folders of classes", hint="expected FOLDER/<class>/<picture>.jpg")
    return names


def _labelled(folder: Path, names: Sequence[str]) -> Pictures:
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if (folder / name).is_dir():
            try:
                found = found_pictures(folder / name)
            except InputError as error:
                raise InputError(f"{folder.name}/{error.what}", hint=error.hint) from error
            files += found
            labels += [label] * len(found)
    return Pictures(files=files, labels=labels, root=folder)
