"""Write docs/cli.md, the reference of the command line, from the commands themselves.

python docs/make_cli_reference.py            write it
python docs/make_cli_reference.py --check    say whether it is up to date (exit code 1 when it is not)
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

from ascend_perf.cli import cli

TARGET = Path(__file__).parent / "cli.md"

HEAD = """# Command line

Written by `docs/make_cli_reference.py` from the commands; do not edit.

Exit codes: 0 fine, 1 a gate failed, 2 wrong usage, 3 input that cannot be used, 4 the machine lacks something,
70 a bug of ours.
"""


def reference() -> str:
    """The whole page as Markdown."""
    context = click.Context(cli, info_name="ascend-perf")
    parts = [HEAD]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts += _sections(command, click.Context(command, parent=context, info_name=name))
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context) -> list[str]:
    """A command and, where it is a group, the commands in it."""
    parts = [_section(command, context)]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts += _sections(inner, click.Context(inner, parent=context, info_name=name))
    return parts


def _section(command: click.Command, context: click.Context) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    more = "COMMAND ..." if isinstance(command, click.Group) else ""
    usage = " ".join([context.command_path, "[OPTIONS]" if options else "", *map(_argument, arguments), more])
    lines = [f"## {context.command_path}", "", "```text", " ".join(usage.split()), "```", "", _help(command), ""]
    if options:
        lines += ["| option | says |", "| --- | --- |"]
        lines += [f"| {_names(option)} | {_says(option)} |" for option in options]
        lines.append("")
    return "\n".join(lines)


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    dots = "..." if argument.nargs == -1 and not name.endswith("...") else ""
    return f"{name}{dots}" if argument.required else f"[{name}{dots}]"


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        choices = " \\| ".join(map(str, option.type.choices))
        return f"{names} {choices}"
    return f"{names} {option.metavar or option.type.name.upper()}"


def _says(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    if option.show_default and not option.is_flag and option.default not in (None, ()):
        text += f" Default: `{option.default}`."
    if option.multiple and "repeat" not in text and "several" not in text:
        text += " May be repeated."
    return text.strip().replace("|", "\\|").replace("<", "&lt;")


def _help(command: click.Command) -> str:
    """Paragraphs of the help; those that click does not wrap (marked by a backspace) become code."""
    blocks = []
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].strip() == "\b":
            blocks.append("\n".join(["```sh", *lines[1:], "```"]))
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def main() -> None:
    """Write the page, or compare it."""
    text = reference()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, "utf-8")
        print(TARGET.relative_to(Path.cwd()) if TARGET.is_relative_to(Path.cwd()) else TARGET.name)
    elif not TARGET.is_file() or TARGET.read_text("utf-8") != text:
        print("docs/cli.md is not up to date: python docs/make_cli_reference.py")
        sys.exit(1)


if __name__ == "__main__":
    main()
