"""List workloads, their presets and settings."""

from __future__ import annotations

import click

from ascend_perf.cli import _show


@click.command("workloads")
@click.argument("workload", required=False)
@click.option("--preset", help="Show the settings of this preset.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(workload: str | None, preset: str | None, lang: str) -> None:
    """List workloads and presets; with WORKLOAD its settings, which --set of `ascend-perf run` changes."""
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.workloads._spec import find_workload, load_workloads

    def words(about: object) -> str:
        return str(getattr(about, lang))

    if workload is None:
        found = load_workloads()
        for name, part in found.parts.items():
            click.echo(f"{name}\n  {words(part.about)}")
            rows = [(f"--preset {size.name}", words(size.about)) for size in part.presets().values()]
            click.echo(_show.columns(rows, "    "))
        for name, reason in found.broken.items():
            click.echo(f"{name}\n  {spoken(f'could not be imported: {reason}', 'zh' if lang == 'zh' else 'en')}")
        click.echo("\nascend-perf run WORKLOAD --preset PRESET")
        return
    part = find_workload(workload)
    names = [preset] if preset else list(part.presets())
    settings = [part.settings(name).as_dict() for name in names]
    click.echo(f"{part.name}\n  {words(part.about)}")
    table: list[tuple[str, ...]] = [("设置项" if lang == "zh" else "setting", *names)]
    table += [(key, *(_shown(values[key]) for values in settings)) for key in settings[0]]
    click.echo(_show.columns(table, "  "))
    click.echo(f"\nascend-perf run {part.name} --preset {names[0]} --set KEY=VALUE")


def _shown(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
