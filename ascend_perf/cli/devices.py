"""List the devices that torch can use here."""

from __future__ import annotations

import click

from ascend_perf.cli import _show


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(as_json: bool) -> None:
    """List npu, cuda and cpu devices; works without torch and with a back end that does not load."""
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
