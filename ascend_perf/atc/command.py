"""The `atc` command, and the names of chips that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words

OPSETS: Final = range(11, 19)
"""Opsets of ONNX that ATC reads. Source: ATC guide, supported operators."""
PRECISIONS: Final = (
    "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "mixed_hif8",
)  # fmt: skip
"""Values of `--precision_mode_v2`, the default first."""

_SOC: Final = re.compile(
    r"Ascend(310|310P[1-7]|310B[1-4]|910A|910B|910Pro[AB]|910PremiumA|910B[1-4]|910B2C|910B4-1|910_93\d\d|950\w*)"
)
"""Source: table of chips of torch_npu; ATC guide for Ascend310."""


def checked_soc(name: str) -> list[Words]:
    """What is to be said about the name of a chip.

    Raises:
        UsageError: `atc` knows no such chip.
    """
    if not _SOC.fullmatch(name):
        family = {"Ascend310P": "Ascend310P3", "Ascend310B": "Ascend310B4", "Ascend910": "Ascend910B2"}.get(name)
        like = family or next((each for each in (f"Ascend{name}", name.capitalize()) if _SOC.fullmatch(each)), None)
        hint = "A2: 'Ascend' and the Name that npu-smi info shows, like Ascend910B2; A3: like Ascend910_9392"
        if name in ("Ascend910C", "910C"):
            hint = "910C is a market name; the chip is called Ascend910_9392 or the like (npu-smi info -t board)"
        elif like is not None:
            hint = f"a name such as {like}; {hint}"
        raise UsageError(f"atc takes no chip {name[:40]!r}", hint=hint)
    if name == "Ascend910B":
        return [Words(
            "Ascend910B without a digit is the first generation of 910; the chips of A2 are Ascend910B1 to B4",
            "不带数字的 Ascend910B 是第一代 910；A2 的芯片为 Ascend910B1 至 B4",
        )]  # fmt: skip
    return []


def atc_command(
    *,
    model: str,
    output: str,
    soc: str,
    shapes: Mapping[str, Sequence[int]],
    precision: str,
    aipp: str | None,
    small_channel: bool,
) -> list[str]:
    """The words of an ATC call for an ONNX model whose inputs are NCHW.

    Args:
        model: file of the model.
        output: name of the .om without its ending.
        shapes: of all inputs. With AIPP the shape that AIPP makes, not that of the pictures.
        precision: one of `PRECISIONS`.
        aipp: file of AIPP.
        small_channel: the first convolution has four channels or fewer (static AIPP only).

    Source:
        ATC guide: framework 5 is ONNX.
    """
    said = ";".join(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items())
    # ND leaves inputs alone that are no pictures.
    layout = "NCHW" if any(len(shape) == 4 for shape in shapes.values()) else "ND"
    words = [
        "atc", f"--model={model}", "--framework=5", f"--output={output}", f"--soc_version={soc}",
        f"--input_format={layout}", f"--input_shape={said}", f"--precision_mode_v2={precision}",
    ]  # fmt: skip
    if aipp is not None:
        words.append(f"--insert_op_conf={aipp}")
        if small_channel:
            words.append("--enable_small_channel=1")
    return [*words, "--log=error"]
