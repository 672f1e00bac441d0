"""Compare each module of a workload with a reference in fp32."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.units import significant

if TYPE_CHECKING:
    from ascend_perf.bench.accuracy import Comparison
    from ascend_perf.workloads._accuracy import Difference

_WORDS: Final = {
    "en": {
        "head": "{} {}: {} on {} against {}",
        "value": "{}: {} (reference {})",
        "changed": "changed for the comparison: {}",
        "agrees": "every module alone is within {} of the reference (mean relative error)",
        "agrees_free": "every module is within {} of the reference (mean relative error, errors added up)",
        "inside": "first to diverge: {} ({}), its own output is off by {}",
        "before": "first to diverge: the code just before {} ({}): what reaches it is off by {}",
        "backward_inside": "first to diverge: the backward pass of {} ({}), its gradients are off by {}",
        "backward_after": "first to diverge: the backward pass of the code just after {} ({}), off by {}",
        "not_alone": "modules were compared as they run, errors added up: the reference's tensors do not fit the limit",
        "alone": "modules alone (with the reference's inputs), largest error first",
        "free": "modules as they run (errors added up), largest error first",
        "sensitive": "sensitive to precision (own error {}x the median or more): keep these in higher precision",
        "none": "none stands out",
        "columns": "module,type,what,mean rel. error,max rel. error,cosine",
    },
    "zh": {
        "head": "{} {}：{}（{}）对比 {}",
        "value": "{}：{}（基准 {}）",
        "changed": "为对比而改动的设置：{}",
        "agrees": "单独运行时，每个模块与基准的平均相对误差都在 {} 以内",
        "agrees_free": "每个模块与基准的平均相对误差（含累积误差）都在 {} 以内",
        "inside": "最先偏离的模块：{}（{}），其自身输出误差 {}",
        "before": "最先偏离处：{}（{}）之前的代码，输入误差 {}",
        "backward_inside": "最先偏离处：{}（{}）的反向，梯度误差 {}",
        "backward_after": "最先偏离处：{}（{}）之后代码的反向，误差 {}",
        "not_alone": "基准张量超出内存上限，只比较了整网运行（误差逐层累积）",
        "alone": "单独运行的模块（输入取自基准），误差从大到小",
        "free": "整网运行的模块（误差逐层累积），从大到小",
        "sensitive": "精度敏感（自身误差达到中位数的 {} 倍）：建议保持较高精度",
        "none": "没有明显突出的模块",
        "columns": "模块,类型,对象,平均相对误差,最大相对误差,余弦相似度",
    },
}
_KINDS: Final = {
    "en": {"input": "input", "output": "output", "output_gradient": "output gradient",
           "input_gradient": "input gradient", "weight_gradient": "weight gradient"},
    "zh": {"input": "输入", "output": "输出", "output_gradient": "输出梯度", "input_gradient": "输入梯度",
           "weight_gradient": "权重梯度"},
}  # fmt: skip


@click.command("check-accuracy")
@click.argument("workload")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads WORKLOAD`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--device", type=click.Choice(["auto", "npu", "cuda", "cpu"]), default="auto", show_default=True,
    help="What is tested; auto takes the first that is there of npu, cuda, cpu.",
)  # fmt: skip
@click.option(
    "--reference", type=click.Choice(["cpu-fp32", "device-fp32"]), default="cpu-fp32", show_default=True,
    help="fp32 without fused operators, on the CPU or on the same device.",
)  # fmt: skip
@click.option(
    "--model-config", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A config.json of Hugging Face: the shape of the model.",
)  # fmt: skip
@click.option(
    "--tolerance", type=click.FloatRange(min=0, min_open=True),
    help="Mean relative error that passes.  [default: eight units in the last place of the dtype; fp32: 1e-4]",
)  # fmt: skip
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows of each list.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    workload: str,
    preset: str,
    overrides: tuple[str, ...],
    device: str,
    reference: Literal["cpu-fp32", "device-fp32"],
    model_config: Path | None,
    tolerance: float | None,
    top: int,
    form: str,
    lang: Literal["en", "zh"],
) -> int:
    """Compare each module of WORKLOAD with a reference in fp32: outputs and gradients of one step.

    The step runs as it is, and once more with the reference's inputs at every innermost module, so that the module in
    which an error arises is named and not those after it. Ends with 1 when a module is off by more than the tolerance.

    \b
    ascend-perf check-accuracy llm-pretrain --device npu
    ascend-perf check-accuracy bert-clue --device npu --set dtype=fp16 --reference device-fp32
    """
    from ascend_perf.bench.accuracy import Request, compare

    request = Request(
        workload=workload, preset=preset, overrides=overrides, device=device, reference=reference,
        model_config=model_config, tolerance=tolerance,
    )  # fmt: skip
    with _show.working("comparing"):
        comparison = compare(request)
    click.echo(_json(comparison) if form == "json" else text_of(comparison, top, lang))
    return 1 if comparison.divergence else 0


def text_of(comparison: Comparison, top: int, lang: Literal["en", "zh"] = "en") -> str:
    """What was found, in words and two tables."""
    from ascend_perf.workloads._accuracy import SENSITIVE_TIMES

    words = _WORDS[lang]
    lines = [
        words["head"].format(
            comparison.workload, comparison.preset, comparison.dtype, comparison.device, comparison.reference
        ),
        words["value"].format(
            comparison.value_name, significant(comparison.value, 6), significant(comparison.reference_value, 6)
        ),
    ]  # fmt: skip
    if comparison.changed:
        said = ", ".join(f"{name}={value}" for name, value in comparison.changed.items())
        lines.append(words["changed"].format(said))
    lines += [f"--model-config: {note.zh if lang == 'zh' else note.en}" for note in comparison.notes]
    found = comparison.divergence
    if found is None:
        lines.append(words["agrees" if comparison.alone else "agrees_free"].format(_error(comparison.tolerance)))
    else:
        lines.append(words[found.place].format(found.module, found.type, _error(found.mean_relative_error)))
    if not comparison.alone:
        lines.append(words["not_alone"])
    for title, rows in (("alone", comparison.alone), ("free", comparison.free)):
        ranked = sorted(rows, key=lambda row: -row.mean_relative_error)[:top]
        if ranked:
            lines += ["", words[title], _table(ranked, lang)]
    if comparison.alone:
        lines += ["", words["sensitive"].format(significant(SENSITIVE_TIMES))]
        lines.append(_table(comparison.sensitive[:top], lang) if comparison.sensitive else f"  {words['none']}")
    return "\n".join(lines)


def _table(rows: list[Difference] | tuple[Difference, ...], lang: Literal["en", "zh"]) -> str:
    head = tuple(_WORDS[lang]["columns"].split(","))
    cells = [
        (
            row.module, row.type, _KINDS[lang][row.kind], _error(row.mean_relative_error),
            _error(row.max_relative_error), "-" if row.cosine is None else f"{row.cosine:.6f}",
        )
        for row in rows
    ]  # fmt: skip
    return _show.columns([head, *cells], "  ")


def _error(value: float) -> str:
    return f"{value:.2e}"


def _json(comparison: Comparison) -> str:
    body = asdict(comparison)

    def finite(value: object) -> object:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [finite(item) for item in value]
        # JSON has no infinity; here it means that a number is there where the reference has one, and this is none.
        return "infinite" if isinstance(value, float) and abs(value) == float("inf") else value

    return json.dumps({"schema_version": 1, **finite(body)}, indent=1, ensure_ascii=False)  # type: ignore[dict-item]
