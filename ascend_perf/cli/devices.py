"""List the devices that torch can use here."""

from __future__ import annotations

import click

from ascend_perf.cli import _show


@click.command("devices")
@click.option("--known", is_flag=True, help="List the devices whose peaks we know instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(known: bool, as_json: bool) -> None:
    """List npu, cuda and cpu devices; works without torch and with a back end that does not load."""
    if known:
        _list_known()
        return
    from ascend_perf.collectors import devices

    with _show.working("asking torch"):
        inventory = devices.probe()
    if as_json:
        click.echo(devices.to_json(inventory))
        return
    for device in inventory.devices:
        click.echo(_show.device_words(device))
    versions = [f"torch {inventory.torch_version or 'not installed'}"]
    if inventory.torch_npu_version:
        versions.append(f"torch_npu {inventory.torch_npu_version}")
    click.echo(", ".join(versions))
    for problem in inventory.problems:
        click.echo(f"not usable: {problem}")
    click.echo(f"--device auto takes {devices.choose('auto', inventory).torch_name}")


def _list_known() -> None:
    from ascend_perf.device.specs import DeviceSpec, device_specs
    from ascend_perf.units import format_quantity

    def peak(spec: DeviceSpec, dtype: str) -> str:
        return format_quantity(spec.matrix_peak(dtype), "flops_per_s")

    table: list[tuple[str, ...]] = [("id", "name", "memory", "fp16", "bf16", "fp32")]
    for spec in device_specs().values():
        memory = format_quantity(spec.memory_bytes.value, "bytes")
        table.append((spec.id, spec.name, memory, *(peak(spec, dtype) for dtype in ("fp16", "bf16", "fp32"))))
    click.echo(_show.columns(table))
    click.echo("dense peaks of the matrix units; — is not known; figures with sources: device/specs/hardware.yaml")
