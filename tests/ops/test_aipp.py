"""AIPP: the file as ATC reads it, the arithmetic value by value, and what it does not take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.ops.aipp import AippConfig, normalising

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PLAIN = AippConfig(src_image_size_w=6, src_image_size_h=4)


def test_the_file_of_imagenet() -> None:
    config = normalising(source_px=(256, 320), crop_px=224, mean=MEAN, std=STD)

    # 255 x mean and 1 / (255 x std); the middle of 320 x 256 starts at (320 - 224) / 2 and (256 - 224) / 2.
    assert config.text() == (
        "aipp_op {\n"
        "  aipp_mode: static\n"
        "  related_input_rank: 0\n"
        "  input_format: RGB888_U8\n"
        "  src_image_size_w: 320\n"
        "  src_image_size_h: 256\n"
        "  crop: true\n"
        "  load_start_pos_w: 48\n"
        "  load_start_pos_h: 16\n"
        "  crop_size_w: 224\n"
        "  crop_size_h: 224\n"
        "  csc_switch: false\n"
        "  rbuv_swap_switch: false\n"
        "  mean_chn_0: 0\n"
        "  mean_chn_1: 0\n"
        "  mean_chn_2: 0\n"
        "  min_chn_0: 123.675\n"
        "  min_chn_1: 116.28\n"
        "  min_chn_2: 103.53\n"
        "  var_reci_chn_0: 0.0171247538\n"
        "  var_reci_chn_1: 0.0175070028\n"
        "  var_reci_chn_2: 0.0174291939\n"
        "}\n"
    )
    assert config.output_size == (224, 224)


def test_without_a_crop_its_lines_are_left_out() -> None:
    assert "crop_size" not in PLAIN.text()
    assert "load_start" not in PLAIN.text()
    assert PLAIN.output_size == (4, 6)


def _by_hand(config: AippConfig, pixels_BHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
    """One value after another, each operation done in fp64 and rounded to fp16 (exact: fp64 holds sum and product)."""
    height, width = config.output_size
    made = np.empty((len(pixels_BHWC), 3, height, width), np.float16)
    top, left = (config.load_start_pos_h, config.load_start_pos_w) if config.crop else (0, 0)
    for b, c, y, x in np.ndindex(*made.shape):
        pixel = float(pixels_BHWC[b, top + y, left + x, 2 - c if config.rbuv_swap_switch else c])
        centred = float(np.float16(pixel - config.mean_chn[c]))
        low = float(np.float16(centred - float(np.float16(config.min_chn[c]))))
        made[b, c, y, x] = np.float16(low * float(np.float16(config.var_reci_chn[c])))
    return made


CONFIGS = st.builds(
    lambda swap, crop, mean, low, scale: AippConfig(
        src_image_size_w=6, src_image_size_h=4, crop=crop, load_start_pos_w=2, load_start_pos_h=1, crop_size_w=3,
        crop_size_h=2, rbuv_swap_switch=swap, mean_chn=mean, min_chn=low, var_reci_chn=scale,
    ),
    st.booleans(),
    st.booleans(),
    st.tuples(*[st.integers(0, 255)] * 3),
    st.tuples(*[st.floats(-300, 300)] * 3),
    st.tuples(*[st.floats(-1, 1)] * 3),
)  # fmt: skip


@given(CONFIGS, st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_every_value_is_what_the_formula_gives(config: AippConfig, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 4, 6, 3), np.uint8)

    assert np.array_equal(config.emulate(pixels), _by_hand(config, pixels), equal_nan=True)


@pytest.mark.torch
@given(CONFIGS, st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_torch_computes_the_same_bits(config: AippConfig, seed: int) -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._preprocessing import Aipp

    pixels = np.random.default_rng(seed).integers(0, 256, (2, 4, 6, 3), np.uint8)

    made = Aipp(config, dtype=torch.float16)(torch.from_numpy(pixels))

    assert np.array_equal(made.numpy(), config.emulate(pixels), equal_nan=True)


def test_fp16_moves_a_normalised_pixel_by_less_than_three_thousandths() -> None:
    every = np.arange(256, dtype=np.uint8)
    pixels = np.repeat(every, 3).reshape(1, 16, 16, 3)
    exact = (every[:, None] / 255 - np.array(MEAN)) / np.array(STD)

    made = normalising(source_px=(16, 16), crop_px=None, mean=MEAN, std=STD).emulate(pixels)

    worst = np.abs(made[0].reshape(3, 256).T - exact).max()
    assert 1e-3 < worst < 3e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src_image_size_w": 1}, "AIPP takes pictures of 2 to 4096"),
        ({"src_image_size_h": 4097}, "AIPP takes pictures of 2 to 4096"),
        ({"crop": True, "crop_size_w": 7, "crop_size_h": 1}, "cannot cut 7 pixels from position 0 of 6"),
        ({"crop": True, "crop_size_w": 1, "crop_size_h": 2, "load_start_pos_h": 3}, "from position 3 of 4"),
        ({"crop": True}, "cannot cut 0 pixels"),
        ({"mean_chn": (0, 0, 256)}, "mean_chn must be 0 to 255"),
        ({"min_chn": (0.0, 1e6, 0.0)}, "must be numbers of fp16"),
    ],
)
def test_what_atc_would_refuse_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message), np.errstate(over="ignore"):
        replace(PLAIN, **change)  # type: ignore[arg-type]  # fields of the class


def test_pictures_of_another_size_or_type_are_refused() -> None:
    with pytest.raises(ValueError, match="expected uint8 pictures of"):
        PLAIN.emulate(np.zeros((1, 6, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="float32"):
        PLAIN.emulate(np.zeros((1, 4, 6, 3), np.float32))
