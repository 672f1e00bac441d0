"""Write the operators of one step of a workload, for a gate without any hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("workload")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads WORKLOAD`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--mode",
    type=click.Choice(["auto", "fake", "real"]),
    default="auto",
    show_default=True,
    help="fake: tensors without values, so that a model of any size fits; real: on this CPU; auto: the first, else"
    " the second for a small model.",
)
@click.option("--nproc", type=click.IntRange(1, 4096), default=1, show_default=True, help="Processes of the job; the "
              "first is recorded with its collectives, and the others are not started.")
@click.option("--data", type=click.Path(path_type=Path), help="File or folder of real data.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File.  [default: WORKLOAD-PRESET.ops.txt]")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(
    workload: str,
    preset: str,
    overrides: tuple[str, ...],
    mode: Literal["auto", "fake", "real"],
    nproc: int,
    data: Path | None,
    output: Path | None,
    lang: Literal["en", "zh"],
) -> None:
    """Record the operators of one step of WORKLOAD as text, on the CPU, of one process.

    Names, shapes and types of the second step, forward and backward pass and optimizer, in order and counted. The file
    is stable and made for diffs; `ascend-perf gate` compares two of them exactly.

    \b
    ascend-perf snapshot llm-pretrain --preset 7b -o base.ops.txt
    ascend-perf snapshot resnet50-infer --set batch=16
    ascend-perf snapshot llm-pretrain --preset 7b --nproc 8 --set data_parallel=fsdp
    """
    from ascend_perf.bench.snapshot import Request, take
    from ascend_perf.cli import _show
    from ascend_perf.errors import InputError

    path = output or Path(f"{workload}-{preset}.ops.txt".replace("/", "-"))
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"{path} cannot be written: its folder is not there, or it is a folder")
    request = Request(workload=workload, preset=preset, overrides=overrides, mode=mode, data=data,
                      world_size=nproc)  # fmt: skip
    with _show.working("recording one step" if lang == "en" else "正在记录一个 step 的算子"):
        stream = take(request, path)
    said = {
        "en": "{} operators, {} distinct, tensors {}: {}",
        "zh": "共 {} 个算子调用，{} 种，张量{}：{}",
    }[lang]
    kind = {
        "en": {"fake": "without values", "real": "with values"}, "zh": {"fake": "不含数值", "real": "含数值"},
    }[lang]  # fmt: skip
    click.echo(said.format(stream.count, len(stream.totals), kind.get(stream.mode, stream.mode), path))
