"""Run a workload, profile it and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ascend_perf.cli import _show, _virtual
from ascend_perf.errors import UsageError


@click.command("run")
@click.argument("workload")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads WORKLOAD`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--device",
    type=click.Choice(["auto", "npu", "cuda", "cpu", _virtual.DEVICE]),
    default="auto",
    show_default=True,
    help="auto takes the first that is there of npu, cuda, cpu; virtual-npu needs none: torch_npu runs, kernels do "
    "not.",
)
@_virtual.options()
@click.option(
    "--snapshot", type=click.Path(path_type=Path), metavar="FILE",
    help="virtual-npu: write the operators of a measured step as text, for `ascend-perf diff-snapshot` and `gate`.",
)
@click.option(
    "--nproc", type=click.IntRange(min=1), help="Processes on this machine.  [default: 1; comm-bench: 2]"
)
@click.option("--nnodes", type=click.IntRange(min=1), default=1, show_default=True, help="Machines of the job.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, help="Number of this machine.")
@click.option("--master-addr", default="127.0.0.1", show_default=True, help="Address of machine 0, of several.")
@click.option(
    "--master-port", type=click.IntRange(1, 65535), default=29500, show_default=True, help="Port of machine 0."
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="File or folder of real data. [default: synthetic, by the seed]"
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="A config.json of Hugging Face: the shape of the model, between the preset and --set.",
)
@click.option("--save-checkpoint", is_flag=True, help="Save the state at the end, in the run directory.")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on from the checkpoint of another run."
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="KEY=VALUE",
    help="Environment variable of the processes, over those of the preset; may be repeated.",
)
@click.option(
    "--npu-exporter", metavar="URL", help="Take telemetry of NPUs from this npu-exporter instead of npu-smi."
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="Run directory.  [default: runs/WORKLOAD-PRESET-TIMESTAMP]",
)
@click.option("--force", is_flag=True, help="Replace a run directory that is there.")
@click.option("--with-stack", is_flag=True, help="Record Python call stacks: a larger trace, a slower profiled part.")
@click.option("--no-report", is_flag=True, help="Measure only; the run directory can be analysed later.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
@click.option(
    "--format", "formats", default="html,json,md", show_default=True, help="Reports to write, separated by commas."
)
def command(
    workload: str,
    preset: str,
    overrides: tuple[str, ...],
    device: str,
    npu: _virtual.Options,
    snapshot: Path | None,
    nproc: int | None,
    nnodes: int,
    node_rank: int,
    master_addr: str,
    master_port: int,
    data: Path | None,
    model_config: Path | None,
    save_checkpoint: bool,
    resume: Path | None,
    variables: tuple[str, ...],
    npu_exporter: str | None,
    folder: Path | None,
    force: bool,
    with_stack: bool,
    no_report: bool,
    lang: Literal["en", "zh"],
    formats: str,
) -> None:
    """Run WORKLOAD, profile it and write a report.

    Steps are first timed alone, then under the profiler; throughput comes from the first. Everything that was
    measured is in the run directory, which `ascend-perf analyze` reads again on any machine. A run that fails or is
    stopped (Ctrl-C) leaves one as well, with the reason.

    \b
    ascend-perf run llm-pretrain
    ascend-perf run resnet50-infer --preset small --set batch=16 --device cuda
    ascend-perf run llm-pretrain --nproc 2 --set tensor_ranks=2
    ascend-perf run llm-pretrain --preset 7b --device virtual-npu --world-size 64
    """
    from ascend_perf.bench.launch import Ranks, Request, launch
    from ascend_perf.workloads._spec import find_workload

    chosen_formats = _show.formats_of(formats)
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank} of --nnodes {nnodes}", hint="machines are numbered from 0")
    job = None
    if device == _virtual.DEVICE:
        from ascend_perf.bench.virtual import job_of

        _virtual.check_snapshot(snapshot)
        job = job_of(npu.settings(), nproc, nnodes, find_workload(workload).min_ranks)
        nproc = job.processes
    else:
        npu.refuse()
        if snapshot is not None:
            raise UsageError("--snapshot is of virtual NPUs only", hint="`ascend-perf snapshot` needs no device")
    ranks = Ranks(
        per_node=find_workload(workload).min_ranks if nproc is None else nproc,
        nodes=nnodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port,
    )  # fmt: skip
    request = Request(
        workload=workload, preset=preset, overrides=overrides, device=device, with_stack=with_stack, ranks=ranks,
        data=data, model_config=model_config, save_checkpoint=save_checkpoint, resume=resume, variables=variables,
        npu_exporter=npu_exporter, virtual=job, snapshot=snapshot,
    )  # fmt: skip
    with _show.progress(lang) as on_notice:
        where, manifest = launch(request, folder=folder, force=force, on_notice=on_notice)
    click.echo(_show.summary_of(manifest, lang))
    if no_report or (job is not None and "trace" not in manifest.files):  # its notes say why there is none
        click.echo(str(where))
        return
    from ascend_perf import pipeline

    with _show.working(_show.READING[lang]) as update:
        result = pipeline.report(
            [where], out=where / "report", formats=chosen_formats, lang=lang, force=True, progress=update
        )
    click.echo(result.summary)
    click.echo(str(result.paths[chosen_formats[0]]))
