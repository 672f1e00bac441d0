"""Measure collectives between NPUs with CANN's hccl_test, and compare with the links."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import UsageError
from ascend_perf.units import format_quantity, format_ratio

if TYPE_CHECKING:
    from ascend_perf.collectors.hccl_test import Prepared, Sweep, Verdict

MAX_SECONDS: Final = 7 * 86400
_WORDS: Final = {
    "en": {
        "columns": "size,time,algorithm bandwidth,bus bandwidth,of the link's peak,check",
        "head": "{} over {} ranks, {}", "best": "best bus bandwidth {}, shortest call {}",
        "half": "half of the best from {} on", "fit": "fit: {} start-up, then {} on the bus",
        "peak": "link: {}, peak {} per NPU and direction ({} confidence)",
        "no_peak": "no peak to compare with: {}", "unknown_chip": "the chip is not known (--soc names it)",
        "no_link": "the table has no figure for {} of {}", "bad": "the run does not count: {}", "hint": "hint: {}",
        "off": "off",
    },
    "zh": {
        "columns": "数据量,耗时,算法带宽,总线带宽,占链路峰值,校验",
        "head": "{}，{} 卡，{}", "best": "最高总线带宽 {}，最短一次调用 {}",
        "half": "自 {} 起达到其一半", "fit": "拟合：启动 {}，此后总线 {}",
        "peak": "链路：{}，每 NPU 单向峰值 {}（可信度 {}）",
        "no_peak": "没有可比较的峰值：{}", "unknown_chip": "芯片未知（可用 --soc 指定）",
        "no_link": "设备表中没有 {1} 的 {0} 数据", "bad": "本次运行无效：{}", "hint": "提示：{}", "off": "未校验",
    },
}  # fmt: skip


@click.command("hccl-test")
@click.argument("test", default="all_reduce", required=False)
@click.option("--min", "least", default="8K", show_default=True, metavar="SIZE", help="Least message: 4096, 8K, 1G.")
@click.option("--max", "most", default="1G", show_default=True, metavar="SIZE", help="Largest message.")
@click.option("--factor", default=2, show_default=True, type=click.IntRange(min=0), help="Of a size to the one before.")
@click.option("--step", metavar="SIZE", help="Sizes so far apart instead of a factor.")
@click.option("--iterations", default=20, show_default=True, type=int, help="Calls that are timed, of each size.")
@click.option("--warmup", default=10, show_default=True, type=int, help="Calls before them.")
@click.option("--dtype", default="fp32", show_default=True, help="hccl_test's own names: bf16 is bfp16.")
@click.option("--reduction", default="sum", show_default=True, help="sum, prod, max or min.")
@click.option("--root", default=0, show_default=True, type=int, help="Of broadcast, reduce and scatter.")
@click.option("--npus", "per_node", default=8, show_default=True, type=int, help="NPUs of each node.")
@click.option("--nnodes", "nodes", default=1, show_default=True, type=int, help="Machines; several need --hostfile.")
@click.option("--hostfile", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Host file of mpirun.")
@click.option("--check", default=1, show_default=True, type=click.IntRange(0, 2), help="Of results: 0 off, 2 verbose.")
@click.option("--zero-copy", is_flag=True, help="Collectives read tensors in place (A3).")
@click.option("--symmetric-memory", is_flag=True, help="Symmetric memory; not with --zero-copy.")
@click.option("--device-time", is_flag=True, help="Time of the device alone, without launches; 100 iterations at most.")
@click.option("--soc", help="Chip whose links are compared, such as Ascend910B2.  [default: as npu-smi says]")
@click.option("--env", "variables", multiple=True, metavar="KEY=VALUE", help="Variable of the run; may be repeated.")
@click.option("--timeout", default=1800, show_default=True, type=click.IntRange(1, MAX_SECONDS), help="Seconds.")
@click.option("--dry-run", is_flag=True, help="Show the command and its checks, run nothing.")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the output.  [default: runs/hccl-test-TEST-TIMESTAMP]",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    test: str,
    least: str,
    most: str,
    factor: int,
    step: str | None,
    iterations: int,
    warmup: int,
    dtype: str,
    reduction: str,
    root: int,
    per_node: int,
    nodes: int,
    hostfile: Path | None,
    check: int,
    zero_copy: bool,
    symmetric_memory: bool,
    device_time: bool,
    soc: str | None,
    variables: tuple[str, ...],
    timeout: int,
    dry_run: bool,
    folder: Path | None,
    form: str,
    lang: Literal["en", "zh"],
) -> int:
    """Run hccl_test's TEST (all_reduce, all_gather, reduce_scatter, alltoall, broadcast ...) over message sizes.

    The command line is built for the mpirun that is here, HCCL_* variables are checked before, and the run counts only
    when all sizes came out right on all ranks: the tool's exit code does not tell. Bus bandwidth, which the tool does
    not print, is computed and compared with the peak of the link. `ascend-perf analyze` reads the output again.

    Exit codes: 0 the run counts; 1 it does not; 2 wrong usage; 4 hccl_test or mpirun is missing.

    \b
    ascend-perf hccl-test all_reduce --npus 8 --dtype bfp16
    ascend-perf hccl-test all_gather --min 1M --max 64M --env HCCL_OP_EXPANSION_MODE=AIV
    ascend-perf hccl-test alltoall --nnodes 2 --hostfile hosts --dry-run
    """
    from ascend_perf.collectors import hccl_test
    from ascend_perf.collectors._machine import here

    sweep = hccl_test.Sweep(
        test=test.removesuffix("_test"), least_bytes=hccl_test.size_of(least), most_bytes=hccl_test.size_of(most),
        factor=0 if step else factor, step_bytes=hccl_test.size_of(step) if step else 0, iterations=iterations,
        warmup=warmup, dtype=dtype, reduction=reduction, root=root, per_node=per_node, nodes=nodes, check=check,
        hostfile=None if hostfile is None else hostfile.resolve(), zero_copy=zero_copy,
        symmetric_memory=symmetric_memory, device_time=device_time,
    )  # fmt: skip
    given = dict(_assigned(text) for text in variables)
    made = hccl_test.prepared(
        here(), sweep, given, soc=soc, is_root=hasattr(os, "geteuid") and os.geteuid() == 0, is_dry=dry_run
    )
    for doubt in made.doubts:
        click.echo(f"ascend-perf: {doubt.zh if lang == 'zh' else doubt.en}", err=True)
    if dry_run:
        click.echo(_dry(made, given))
        return 0
    folder = folder or Path("runs") / f"hccl-test-{sweep.test}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", hint="choose another -o") from error
    output = folder / f"{sweep.test}_test.txt"
    with _show.working(f"{sweep.test}_test") as update:
        code = hccl_test.run(made, output, timeout_s=timeout, on_line=update)
    verdict = hccl_test.judge(sweep, output.read_text("utf-8", "replace"), code, made.soc)
    (folder / "result.json").write_text(_json(sweep, verdict, made), "utf-8")
    click.echo(_json(sweep, verdict, made) if form == "json" else text_of(sweep, verdict, made.soc, lang))
    click.echo(str(folder), err=True)
    return 1 if verdict.problems else 0


def _assigned(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--env {text!r} is not KEY=VALUE", hint="example: --env HCCL_BUFFSIZE=400")
    return name.strip(), value


def _dry(made: Prepared, given: dict[str, str]) -> str:
    lines = [f"cd {made.folder}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    return "\n".join([*lines, shlex.join(made.words)])


def text_of(sweep: Sweep, verdict: Verdict, soc: str | None, lang: Literal["en", "zh"] = "en") -> str:
    """The table of sizes, the figures of the sweep, and whether it counts."""
    words = _WORDS[lang]
    lines = [words["head"].format(sweep.test, sweep.ranks, sweep.dtype)]
    cells = [
        (
            format_quantity(row.size_bytes, "bytes"), format_quantity(row.time_ns, "ns"),
            format_quantity(row.algorithm_bytes_per_s, "bytes_per_s"),
            format_quantity(row.bus_bytes_per_s, "bytes_per_s"),
            "—" if row.peak_ratio is None else format_ratio(row.peak_ratio), row.check or words["off"],
        )
        for row in verdict.rows
    ]  # fmt: skip
    if cells:
        lines.append(_show.columns([tuple(words["columns"].split(",")), *cells], "  "))
        best = max(row.bus_bytes_per_s for row in verdict.rows)
        shortest = min(row.time_ns for row in verdict.rows)
        said = [words["best"].format(format_quantity(best, "bytes_per_s"), format_quantity(shortest, "ns"))]
        if verdict.half_bytes is not None:
            said.append(words["half"].format(format_quantity(verdict.half_bytes, "bytes")))
        lines.append(("，" if lang == "zh" else "; ").join(said))
        if verdict.fit is not None:
            start, rate = verdict.fit
            lines.append(words["fit"].format(format_quantity(start, "ns"), format_quantity(rate, "bytes_per_s")))
    if verdict.peak is not None:
        lines.append(
            words["peak"].format(
                verdict.link, format_quantity(verdict.peak.value, "bytes_per_s"), verdict.peak.confidence
            )
        )
    else:
        why = words["unknown_chip"] if verdict.link is None else words["no_link"].format(verdict.link, soc)
        lines.append(words["no_peak"].format(why))
    for problem in verdict.problems:
        lines.append(words["bad"].format(problem.zh if lang == "zh" else problem.en))
    for hint in verdict.hints if verdict.problems else ():
        lines.append(words["hint"].format(hint.zh if lang == "zh" else hint.en))
    return "\n".join(lines)


def _json(sweep: Sweep, verdict: Verdict, made: Prepared) -> str:
    body = {
        "schema_version": 1, "counts": not verdict.problems, "test": sweep.test, "ranks": sweep.ranks,
        "dtype": sweep.dtype, "soc": made.soc, "command": ["mpirun", *made.words[1:]],
        "link": verdict.link, "peak_bytes_per_s": None if verdict.peak is None else verdict.peak.value,
        "startup_ns": None if verdict.fit is None else verdict.fit[0],
        "fitted_bytes_per_s": None if verdict.fit is None else verdict.fit[1], "half_bytes": verdict.half_bytes,
        "problems": [{"en": one.en, "zh": one.zh} for one in verdict.problems],
        "rows": [asdict(row) for row in verdict.rows],
    }  # fmt: skip
    return json.dumps(body, indent=1, ensure_ascii=False)
