"""Pictures: made by seed, found in folders, cropped; and what is said about broken ones."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.workloads._images import (
    as_pixels,
    decode_one,
    found_pictures,
    labelled_folder,
    random_box,
    random_crop,
    resize,
    source_px,
    synthetic_classes,
)

Image = pytest.importorskip("PIL.Image")
BANDS = [slice(0, 12), slice(12, 24), slice(24, 36)]


def save(path: Path, colour: tuple[int, int, int] = (255, 0, 0)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), colour).save(path)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_a_random_crop_lies_in_the_picture(width: int, height: int, seed: int) -> None:
    left, top, wide, high = random_box(width, height, np.random.default_rng(seed))

    assert wide >= 1 and high >= 1
    assert left >= 0 and left + wide <= width
    assert top >= 0 and top + high <= height


def test_random_crops_have_the_areas_and_aspects_asked_for() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([random_box(1000, 1000, random)[2:] for _ in range(500)])

    areas, aspects = boxes.prod(1) / 1e6, boxes[:, 0] / boxes[:, 1]
    assert 0.079 < areas.min() < 0.12 and 0.8 < areas.max() <= 1
    assert 0.74 < aspects.min() < 0.8 and 1.25 < aspects.max() < 1.34


def test_a_picture_too_long_for_any_crop_gives_its_middle() -> None:
    # 3000 x 10: no aspect of 3/4 to 4/3 with 8 % of the area fits 10 pixels; 13 x 10 is the widest that does.
    assert random_box(3000, 10, np.random.default_rng(0)) == ((3000 - 13) // 2, 0, 13, 10)


def test_half_of_the_crops_are_mirrored() -> None:
    # Left half black, right half white: the mean column of a crop rises, or falls when mirrored.
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, 32:] = 255
    picture = Image.fromarray(pixels)
    rises = []
    for seed in range(200):
        crop = np.asarray(random_crop(picture, 32, np.random.default_rng(seed)), np.float64)
        if crop[:, 0].mean() != crop[:, -1].mean():
            rises.append(crop[:, 0].mean() < crop[:, -1].mean())
    assert len(rises) > 100
    assert 0.35 < np.mean(rises) < 0.65


@given(st.integers(20, 90), st.integers(20, 90), st.integers(32, 50), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_middle_of_the_larger_square_is_the_square(width: int, height: int, crop: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    picture = Image.fromarray(pixels)
    start = (source_px(crop) - crop) // 2

    (square,), (larger,) = resize([picture], crop), resize([picture], crop, keep_px=source_px(crop))

    assert larger.size == (source_px(crop), source_px(crop))
    inner = np.asarray(larger)[start : start + crop, start : start + crop]
    assert np.array_equal(inner, np.asarray(square))


def test_synthetic_pictures_show_their_class() -> None:
    made = synthetic_classes(count=8, classes=4, width_px=48, height_px=36, quality=90, seed=0)
    again = synthetic_classes(count=8, classes=4, width_px=48, height_px=36, quality=90, seed=0)

    assert made == again
    assert list(made.labels) == [0, 1, 2, 3, 0, 1, 2, 3]
    colours = as_pixels([decode_one(made.read(index)) for index in range(8)]).mean((1, 2))
    distances = np.linalg.norm(colours[:, None] - colours[None], axis=-1)
    same = np.array(made.labels)[:, None] == np.array(made.labels)[None]
    assert distances[same].max() < distances[~same].min()  # the mean colour alone tells the class


def test_the_classes_beyond_the_twelfth_differ_in_their_bands() -> None:
    made = synthetic_classes(count=13 * 12, classes=13, width_px=48, height_px=36, quality=95, seed=0)
    first, last = (
        np.mean([np.asarray(decode_one(made.read(index))) for index in range(label, 13 * 12, 13)], axis=0)
        for label in (0, 12)
    )

    # One hue in the first and the third band, neighbouring hues in the second; a twelfth of a noisy picture is left.
    distances = [np.linalg.norm(first[rows].mean((0, 1)) - last[rows].mean((0, 1))) for rows in BANDS]
    assert distances[1] > 2 * max(distances[0], distances[2])


def test_a_folder_is_cut_into_what_is_trained_on_and_what_is_held_out(tmp_path: Path) -> None:
    for name, count in (("cat", 20), ("ant", 9)):
        for index in range(count):
            save(tmp_path / name / f"{index:02}.JPG")
    (tmp_path / "cat" / "notes.txt").write_text("no picture")

    train, held_out, names = labelled_folder(tmp_path)

    assert names == ["ant", "cat"]
    assert [str(file.relative_to(tmp_path)) for file in held_out.files if isinstance(file, Path)] == [
        "cat/09.JPG", "cat/19.JPG",
    ]  # fmt: skip
    assert list(held_out.labels) == [1, 1]
    assert (len(train.files), sum(train.labels)) == (27, 18)


def test_train_and_val_are_taken_where_they_are(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "1.png")
    save(tmp_path / "train" / "b" / "1.jpeg")
    save(tmp_path / "val" / "b" / "2.jpg")

    train, held_out, names = labelled_folder(tmp_path)

    assert (names, list(train.labels), list(held_out.labels)) == (["a", "b"], [0, 1], [1])

    save(tmp_path / "val" / "c" / "3.jpg")
    with pytest.raises(InputError, match="val has the class 'c', train does not"):
        labelled_folder(tmp_path)


def test_folders_without_pictures_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no folder of pictures"):
        found_pictures(tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match=r"no pictures \(.jpeg, .jpg, .png\)"):
        labelled_folder(tmp_path)
    save(tmp_path / "flat.jpg")
    (tmp_path / "a").rmdir()
    with pytest.raises(InputError, match="no folders of classes"):
        labelled_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="/a: no pictures"):
        labelled_folder(tmp_path)


def test_broken_pictures_are_named_with_the_reason() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(buffer, "JPEG")
    whole = buffer.getvalue()

    assert decode_one(whole).size == (64, 64)
    with pytest.raises(InputError, match=r"a/1.jpg is a broken picture: .*truncated"):
        decode_one(whole[: len(whole) // 2], "a/1.jpg")
    for data in (b"", b"not a picture", whole[:3]):
        with pytest.raises(InputError, match="picture is no picture that Pillow knows"):
            decode_one(data)


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_bytes_are_a_picture_or_an_input_error(data: bytes) -> None:
    try:
        decode_one(b"\xff\xd8\xff" + data)
    except InputError:
        return
