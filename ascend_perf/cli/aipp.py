"""Move a model's image preprocessing into AIPP: config, atc command, proof."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import MachineError, UsageError
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.atc.build import Built
    from ascend_perf.atc.plan import Plan
    from ascend_perf.atc.preprocessing import Head, Host, Node
    from ascend_perf.atc.proof import Proof
    from ascend_perf.bench.workload_aipp import WorkloadPlan
    from ascend_perf.model.finding import Words

_WORDS: Final = {
    "en": {
        "input": "input {}: {}, {}",
        "uint8": "uint8 pixels",
        "pixels": "pixels 0..255",
        "unit": "values 0..1",
        "normalised": "normalised by the host (--mean, --std)",
        "assumed": "{} (concluded from the constants of the graph; --input-values says otherwise)",
        "absorbed": "  AIPP takes over",
        "nothing": "  AIPP takes over: no node, only the conversion from uint8",
        "host": "  AIPP takes over the host's normalisation too: send uint8",
        "refused": "  AIPP takes nothing over: {}",
        "left": "  stays out of AIPP",
        "lost": "  why AIPP does not reach further: {}",
        "DVPP": "DVPP",
        "host_taker": "host",
        "model": "stays in the model",
        "behind": "  behind it, absorbable once DVPP does the resize: {}",
        "dvpp": "  DVPP decodes (JPEGD) and resizes (VPC); its output is YUV420SP with padded rows: --source "
        "yuv420sp-jpeg converts it in AIPP, crop cuts the padding off",
        "caller": "  the caller now gives {}, {} a call instead of {}",
        "shape": "uint8 NHWC pictures of {}",
        "yuv": "YUV420SP (NV12) pictures of {} x {}",
        "note": "note: {}",
        "file": "AIPP file",
        "command": "command",
        "proof": "proof: {} random pictures, seed {}",
        "cut": "  {}: AIPP's tensor is off by {} at most, {} allowed (fp16 roundings of its formula); {} of 256 pixel "
        "values seen: {}",
        "same": "  {}: the stripped model alone is off by {} of the largest value ({} allowed)",
        "output": "  {}: with AIPP off by {} of the largest value, {} in root mean square ({} allowed): {}",
        "classes": "  {}: {} of the values change without AIPP (none allowed), {} with it: {}",
        "holds": "agrees",
        "fails": "DIFFERS",
        "not_run": "  outputs not compared: {}",
        "proved": "the original preprocessing and AIPP agree",
        "not_proved": "NOT proved: do not use these files unseen",
        "written": "written",
        "note_atc": "AIPP is emulated here in numpy; the .om was not built and not run.",
        "built": "atc built {}; AIPP is emulated here in numpy, the .om was not run.",
        "not_built": "NOT built: {}",
        "model_file": "{} has float NCHW input, as ATC needs it; the input of the .om is uint8 NHWC.",
        "stages": "preprocessing of the workload as it is set",
        "stage_columns": "stage,where,by,could be",
        "export": "the model for the command: {}",
    },
    "zh": {
        "input": "输入 {}：{}，{}",
        "uint8": "uint8 像素",
        "pixels": "0..255 的像素",
        "unit": "0..1 的值",
        "normalised": "由 Host 归一化（--mean、--std）",
        "assumed": "{}（由图中常量推断，可用 --input-values 指定）",
        "absorbed": "  由 AIPP 承担",
        "nothing": "  由 AIPP 承担：无节点，仅 uint8 类型转换",
        "host": "  Host 上的归一化也由 AIPP 承担：改传 uint8",
        "refused": "  AIPP 无法承担任何部分：{}",
        "left": "  AIPP 之外",
        "lost": "  AIPP 未能覆盖更多的原因：{}",
        "DVPP": "DVPP",
        "host_taker": "Host",
        "model": "留在模型中",
        "behind": "  其后的节点，在 DVPP 承担缩放后可由 AIPP 承担：{}",
        "dvpp": "  DVPP 负责解码（JPEGD）与缩放（VPC），输出为行对齐的 YUV420SP："
        "--source yuv420sp-jpeg 在 AIPP 中做色域转换，crop 去掉对齐部分",
        "caller": "  调用方改传 {}，每次 {}，原为 {}",
        "shape": "uint8 NHWC 图像，{}",
        "yuv": "YUV420SP（NV12）图像，{} x {}",
        "note": "说明：{}",
        "file": "AIPP 配置文件",
        "command": "命令",
        "proof": "验证：{} 张随机图像，种子 {}",
        "cut": "  {}：AIPP 输出最大偏差 {}，允许 {}（其公式的 fp16 舍入）；覆盖 256 个像素值中的 {} 个：{}",
        "same": "  {}：仅去掉节点后的模型，偏差为最大值的 {}（允许 {}）",
        "output": "  {}：加上 AIPP，偏差为最大值的 {}，均方根 {}（允许 {}）：{}",
        "classes": "  {}：不含 AIPP 时 {} 的值改变（不允许），含 AIPP 时 {}：{}",
        "holds": "一致",
        "fails": "不一致",
        "not_run": "  未比较输出：{}",
        "proved": "原预处理与 AIPP 一致",
        "not_proved": "未通过验证：请勿直接使用这些文件",
        "written": "已写入",
        "note_atc": "此处以 numpy 仿真 AIPP；未转换、未运行 .om。",
        "built": "atc 已生成 {}；此处以 numpy 仿真 AIPP，未运行 .om。",
        "not_built": "未生成：{}",
        "model_file": "{} 的输入为浮点 NCHW（ATC 所需）；.om 的输入为 uint8 NHWC。",
        "stages": "该负载当前设置的预处理",
        "stage_columns": "阶段,位置,实现,可改由",
        "export": "导出该命令所需模型：{}",
    },
}
Lang = Literal["en", "zh"]


@click.command("aipp")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--soc", required=True, help="Chip for atc: 'Ascend' and the Name of npu-smi info, like Ascend910B2.")
@click.option(
    "--workload", help="Instead of MODEL: the preprocessing of a workload of inference on pictures (resnet50-infer).",
)  # fmt: skip
@click.option("--preset", default="tiny", show_default=True, help="Size of the workload.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting of the workload.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for aipp.cfg, the stripped model and atc.sh.  [default: <MODEL>-aipp]",
)  # fmt: skip
@click.option(
    "--input-shape", default="", metavar="NAME:SIZES",
    help="Sizes of inputs that the file leaves open, as atc takes them: 'input:1,3,224,224;other:1,16'.",
)  # fmt: skip
@click.option("--input", "only", metavar="NAME", help="Look at this input alone.")
@click.option(
    "--layout", type=click.Choice(["auto", "NCHW", "NHWC"]), default="auto", show_default=True,
    help="Of the model's inputs.",
)  # fmt: skip
@click.option(
    "--input-values", type=click.Choice(["auto", "pixels", "unit"]), default="auto", show_default=True,
    help="What a float input takes now: pixels 0..255, or values 0..1; auto concludes it from the graph's constants.",
)  # fmt: skip
@click.option("--mean", metavar="M,M,M", help="What the host subtracts now, of values 0..1 (torchvision's Normalize).")
@click.option("--std", metavar="S,S,S", help="What the host divides by after that.")
@click.option(
    "--source", type=click.Choice(["rgb", "yuv420sp-jpeg", "yuv420sp-video"]), default="rgb", show_default=True,
    help="What the caller will give: pixels as the model has them now, or what DVPP decodes from JPEG or BT.601 video.",
)  # fmt: skip
@click.option(
    "--precision", default="fp16", show_default=True,
    type=click.Choice(["fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "mixed_hif8"]),
    help="Of the .om, for atc --precision_mode_v2.",
)  # fmt: skip
@click.option(
    "--tolerance", default=1e-2, show_default=True, type=click.FloatRange(min=0, min_open=True),
    help="What outputs may be off by with AIPP, root mean square relative to the output.",
)  # fmt: skip
@click.option("--build", is_flag=True, help="Run atc too (CANN must be here), and judge what it leaves.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 1000), help="Random batches.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the random pictures.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    model: Path | None,
    soc: str,
    workload: str | None,
    preset: str,
    overrides: tuple[str, ...],
    output: Path | None,
    input_shape: str,
    only: str | None,
    layout: Literal["auto", "NCHW", "NHWC"],
    input_values: Literal["auto", "pixels", "unit"],
    mean: str | None,
    std: str | None,
    source: Literal["rgb", "yuv420sp-jpeg", "yuv420sp-video"],
    precision: str,
    tolerance: float,
    build: bool,
    rounds: int,
    seed: int,
    form: str,
    lang: Lang,
) -> int:
    """Find the image preprocessing in MODEL (ONNX) that AIPP can do, and write what atc needs for it.

    Cast, mean and std, channel swap, layout, crop and pad are taken out of the graph and written as an AIPP file; what
    AIPP cannot do is named, with who can (DVPP resizes). AIPP, emulated in numpy, and the stripped model are compared
    with the original in onnxruntime. Ends with 1 when AIPP can take nothing over, when the proof or the build fails.

    \b
    ascend-perf aipp resnet50.onnx --soc Ascend910B2
    ascend-perf aipp net.onnx --soc Ascend310P3 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
    ascend-perf aipp --workload resnet50-infer --soc Ascend310P3
    """
    from ascend_perf.atc.plan import Request, make_plan

    if (model is None) == (workload is None):
        raise UsageError("give either a MODEL or --workload", hint="ascend-perf aipp model.onnx --soc Ascend910B2")
    request = Request(
        path=model or Path("model.onnx"), soc=soc, output=output, shapes=input_shape, values=input_values,
        layout=layout, source=source, host=_host(mean, std), only=only, precision=precision, rounds=rounds, seed=seed,
        tolerance=tolerance,
    )  # fmt: skip
    described: WorkloadPlan | None = None
    with _show.working("comparing"):
        if workload is not None:
            from ascend_perf.bench.workload_aipp import workload_plan

            described = workload_plan(workload, preset, overrides, request)
            plan = described.plan
        else:
            plan = make_plan(request)
    built = _built(plan) if build and plan.is_done else None
    click.echo(_json(plan, described, built) if form == "json" else text_of(plan, described, lang, built))
    return 0 if plan.is_done and (built is None or built.is_done) else 1


def _built(plan: Plan) -> Built:
    """Run the plan's command where its files lie.

    Raises:
        MachineError: atc is not here.
        UsageError: the model is not there yet.
    """
    from ascend_perf.atc.build import build
    from ascend_perf.collectors._doctor_tools import ABSENT, tool_in_cann
    from ascend_perf.collectors._machine import here

    machine = here()
    tool = tool_in_cann(machine, "atc", "bin/atc", "compiler/bin/atc")
    if tool is None:
        raise MachineError(ABSENT["atc"].en, hint="without --build only the files and the command are written")
    folder = plan.files[0].parent
    model = next(word.partition("=")[2] for word in plan.command if word.startswith("--model="))
    if not (folder / model).is_file():
        raise UsageError(f"{model} is not in {folder}", hint="export it first, as the command without --build says")
    with _show.working("atc"):
        return build([tool, *plan.command[1:]], folder, machine.environment)


def _host(mean: str | None, std: str | None) -> Host | None:
    from ascend_perf.atc.preprocessing import Host

    if mean is None and std is None:
        return None
    values = []
    for name, text in (("--mean", mean), ("--std", std)):
        try:
            values.append(tuple(float(word) for word in (text or "").split(",")))
        except ValueError:
            raise UsageError(
                f"{name} needs numbers, one per channel", hint="--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
            ) from None
    if any(not 0 < each < 1e3 for each in values[1]) or any(not abs(each) < 1e3 for each in values[0]):
        raise UsageError("--mean and --std must be of values 0..1, and --std positive")
    return Host(mean=values[0], std=values[1])


def text_of(plan: Plan, described: WorkloadPlan | None, lang: Lang, built: Built | None = None) -> str:
    """The plan in words."""
    from ascend_perf.reports.phrases import spoken

    words = _WORDS[lang]
    lines: list[str] = []
    if described is not None:
        head = tuple(words["stage_columns"].split(","))
        rows = [tuple(str(row[name]) for name in ("stage", "where", "by", "could_be")) for row in described.stages]
        lines += [words["stages"], _show.columns([head, *rows], "  "), ""]
    for head_found in plan.heads:
        lines += [*_head_lines(head_found, plan, lang), ""]
    lines += [words["note"].format(_say(note, lang)) for note in plan.notes]
    if not plan.command or plan.proof is None:
        return "\n".join(lines).rstrip()
    lines += [words["file"], *(f"  {line}" for line in plan.aipp_text.splitlines()), ""]
    lines += [words["command"], f"  {shlex.join(plan.command)}", ""]
    lines += [*_proof_lines(plan.proof, lang), "", words["written"], *(f"  {path}" for path in plan.files)]
    if described is None:
        model = next(path.name for path in plan.files if path.suffix == ".onnx")
        lines.append(words["model_file"].format(model))
    else:
        lines.append(words["export"].format(described.export_command))
    if built is None:
        lines.append(words["note_atc"])
    elif built.is_done and built.om is not None:
        lines.append(words["built"].format(built.om))
    else:
        lines.append(words["not_built"].format(_plain(spoken(built.problem, lang))))
        if built.cure is not None:
            lines.append(words["note"].format(_say(built.cure, lang)))
    lines.append(words["proved" if plan.is_done else "not_proved"])
    return "\n".join(lines)


def _head_lines(head: Head, plan: Plan, lang: Lang) -> list[str]:
    words = _WORDS[lang]
    values = "-" if head.values is None else words[head.values]
    if head.is_assumed and head.values is not None:
        values = words["assumed"].format(values)
    shape = "x".join("?" if size is None else str(size) for size in head.input.shape)
    lines = [words["input"].format(_plain(head.input.name), shape, values)]
    if head.cut is None:
        assert head.refusal is not None
        lines.append(words["refused"].format(_say(head.refusal, lang)))
    elif head.absorbed:
        rows = [(_plain(each.kind), _plain(each.name)) for each in head.absorbed]
        lines += [words["absorbed"], _show.columns(rows, "    ")]
    else:
        lines.append(words["nothing"])
    if head.cut is not None and head.values == "normalised":
        lines.append(words["host"])
    if head.cut is not None:
        lines += [words["lost"].format(_say(why, lang)) for why in head.lost]
    if head.left:
        lines += [words["left"], _show.columns([_left_row(each, lang) for each in head.left], "    ")]
    if head.behind:
        behind = ", ".join(f"{_plain(each.kind)} {_plain(each.name)}" for each in head.behind)
        lines.append(words["behind"].format(behind))
    if any(each.taker == "DVPP" for each in head.left):
        lines.append(words["dvpp"])
    if head.cut is not None:
        config = head.cut.config
        if config.input_format == "YUV420SP_U8":
            said = words["yuv"].format(config.src_image_size_w, config.src_image_size_h)
        else:
            said = words["shape"].format("x".join(map(str, config.source_shape)))
        before, after = (format_quantity(count, "bytes") for count in (plan.bytes_before, plan.bytes_after))
        lines.append(words["caller"].format(said, after, before))
    return lines


def _left_row(each: Node, lang: Lang) -> tuple[str, ...]:
    taker = _WORDS[lang]["host_taker" if each.taker == "host" else each.taker]
    why = "" if each.why is None else _say(each.why, lang)
    return _plain(each.kind), _plain(each.name), taker, why


def _proof_lines(proof: Proof, lang: Lang) -> list[str]:
    words = _WORDS[lang]
    lines = [words["proof"].format(proof.pictures, proof.seed)]
    for cut in proof.cuts:
        verdict = words["holds" if cut.is_within else "fails"]
        lines.append(words["cut"].format(
            _plain(cut.input), f"{cut.worst:.2e}", f"{cut.bound:.2e}", cut.values_seen, verdict
        ))  # fmt: skip
    for each in proof.outputs:
        name, verdict = _plain(each.output), words["holds" if each.is_within else "fails"]
        if each.is_whole:
            same, worst = (f"{100 * ratio:.2f} %" for ratio in (each.same, each.worst))
            lines.append(words["classes"].format(name, same, worst, verdict))
            continue
        lines.append(words["same"].format(name, f"{each.same:.2e}", f"{each.same_allowed:.0e}"))
        lines.append(words["output"].format(
            name, f"{each.worst:.2e}", f"{each.typical:.2e}", f"{proof.tolerance:.2g}", verdict
        ))  # fmt: skip
    if proof.not_run is not None:
        lines.append(words["not_run"].format(_say(proof.not_run, lang)))
    return lines


def _say(words: Words, lang: Lang) -> str:
    return _plain(words.zh if lang == "zh" else words.en)


def _plain(text: str) -> str:
    """A name of the file as one harmless line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:400]


def _json(plan: Plan, described: WorkloadPlan | None, built: Built | None = None) -> str:
    body: dict[str, Any] = {
        "schema_version": 1,
        "model": plan.model if described is None else None,
        "soc": plan.soc,
        "source": plan.source,
        "passed": plan.is_done,
        "inputs": [_head_json(head) for head in plan.heads],
        "aipp": plan.aipp_text or None,
        "command": list(plan.command),
        "files": [path.name for path in plan.files],
        "bytes_before": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "proof": None if plan.proof is None else _proof_json(plan.proof),
        "notes": [_both(note) for note in plan.notes],
    }
    if built is not None:
        body["build"] = {
            "done": built.is_done, "om": None if built.om is None else built.om.name, "problem": built.problem,
            "cure": None if built.cure is None else _both(built.cure),
        }  # fmt: skip
    if described is not None:
        body["stages"], body["export_command"] = list(described.stages), described.export_command
    return json.dumps(body, indent=1, ensure_ascii=False)


def _head_json(head: Head) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": head.input.name,
        "position": head.position,
        "shape": list(head.input.shape),
        "values": head.values,
        "values_assumed": head.is_assumed,
        "absorbed": [{"name": each.name, "op": each.kind} for each in head.absorbed],
        "left": [
            {"name": each.name, "op": each.kind, "by": each.taker, "why": None if each.why is None else _both(each.why)}
            for each in head.left
        ],
        "behind": [{"name": each.name, "op": each.kind} for each in head.behind],
        "refusal": None if head.refusal is None else _both(head.refusal),
        "not_further": [_both(why) for why in head.lost],
        "cut": None if head.cut is None else head.cut.tensor,
        "config": None if head.cut is None else asdict(head.cut.config),
    }


def _proof_json(proof: Proof) -> dict[str, Any]:
    from dataclasses import asdict

    def finite(value: object) -> object:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [finite(item) for item in value]
        return "infinite" if isinstance(value, float) and value == float("inf") else value

    body = asdict(proof)
    body["holds"] = proof.holds
    made = finite(body)
    assert isinstance(made, dict)
    return made


def _both(words: Words) -> dict[str, str]:
    return {"en": words.en, "zh": words.zh}
