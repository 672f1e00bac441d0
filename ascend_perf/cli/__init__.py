"""The `ascend-perf` command: one module of this folder per subcommand, imported when it is called.

A command module `cli/<name>.py` defines `command` (a click command) and a one-line module docstring, which is what
`ascend-perf --help` shows; it is read from the source so that `--help` imports no command.
"""

from __future__ import annotations

import ast
import errno
import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click

from ascend_perf import __version__
from ascend_perf.errors import AscendPerfError, InputError, not_obeyed
from ascend_perf.garbage import collect_rarely

EXIT_BUG = 70
_SYSTEM_SAYS_NO = {
    errno.ENAMETOOLONG: "give another path", errno.ELOOP: "give another path",
    errno.ENOSPC: "free disk space, or write to another disk",
    errno.EDQUOT: "free disk space, or write to another disk",
    errno.EROFS: "choose another folder", errno.EACCES: "choose another folder, or change its permissions",
    errno.EPERM: "choose another folder, or change its permissions",
}  # fmt: skip
"""What a user can do about a failure of the system that no command has named."""
ISSUES = "https://github.com/ascend-perf/ascend-perf/issues"


class _Commands(click.Group):
    """Subcommands from the modules of this folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(p.stem.replace("_", "-") for p in Path(__file__).parent.glob("[a-z]*.py"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"ascend_perf.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): no failure, though click would end with 1, a failed gate.
            # Python would complain at shutdown about what is still in the buffer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            source = (Path(__file__).parent / f"{name.replace('-', '_')}.py").read_text("utf-8")
            docstring = ast.get_docstring(ast.parse(source)) or ""
            rows.append((name, docstring.split("\n")[0]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ascend-perf")
def cli() -> None:
    """Benchmark, profile and diagnose PyTorch jobs on Ascend NPUs.

    \b
    ascend-perf run llm-pretrain          run a workload, profile it, write a report
    ascend-perf analyze PATH              find the bottlenecks in a profile
    ascend-perf explain N-05              what a finding means and what to do
    """


def _in_words(error: AscendPerfError) -> str:
    """What went wrong and the next step, in Chinese where it is asked for and the words are there."""
    from ascend_perf.cli._usage import language

    if language(sys.argv[1:]) == "en":
        return str(error)
    from ascend_perf.reports.phrases import spoken

    return spoken(error.what, "zh") + (f"\n  提示：{spoken(error.hint, 'zh')}" if error.hint else "")


def _end(error: AscendPerfError) -> NoReturn:
    """Say what a user can cure, and end with its code."""
    # Messages quote names of files: no escapes for the terminal, and no "::error::" that a CI server obeys.
    plain = re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", f"ascend-perf: {_in_words(error)}")
    click.echo(not_obeyed(plain), err=True)
    sys.exit(error.exit_code)


def main() -> None:
    """Entry point; turns errors that a user can cure into one message and an exit code."""
    collect_rarely()
    try:
        code = cli(standalone_mode=False, prog_name="ascend-perf")
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        from ascend_perf.cli._usage import language, shown

        click.echo(shown(error, language(sys.argv[1:])), err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        from ascend_perf.cli._usage import language

        click.echo(f"ascend-perf: {'已停止' if language(sys.argv[1:]) == 'zh' else 'stopped'}", err=True)
        sys.exit(130)
    except AscendPerfError as error:
        _end(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _SYSTEM_SAYS_NO:
            name = Path(os.fsdecode(error.filename)).name[:80] if isinstance(error.filename, (str, bytes)) else "output"
            _end(InputError(f"cannot use {name}: {os.strerror(error.errno)}", hint=_SYSTEM_SAYS_NO[error.errno]))
        traceback.print_exc()
        click.echo(f"ascend-perf: this is a bug of ours. Please report it with the lines above: {ISSUES}", err=True)
        sys.exit(EXIT_BUG)
