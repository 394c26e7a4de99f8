"""The command line: thin commands, imported only when used, so that `perfscope --help` is quick."""

from __future__ import annotations

import errno
import sys
from importlib import import_module

import click

from perfscope import __version__
from perfscope.cli._streams import lose_stdout, prepare, say
from perfscope.errors import PerfscopeError, RecordingError

COMMANDS = {
    "record": "Record a command or running processes into a session.",
    "show": "Say what a session holds and how far it can be trusted.",
    "flame": "Write the flame graph of a session.",
    "diagnose": "Rank the bottlenecks of a session, with evidence.",
    "import": "Turn files of other profilers into a session.",
    "doctor": "Check what can be recorded on this machine, and how good its clocks are.",
    "demo": "Record the example inference service and look at it.",
}
"""Command -> its one-line help. Each lives in perfscope.cli.<name>_command as `command`."""

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"perfscope.cli.{name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfscope")
def main() -> None:
    """One command that answers why inference is slow.

    \b
    perfscope record -- python serve.py    record a session
    perfscope diagnose serve.perfscope     what is slow, and why
    perfscope flame serve.perfscope        look at it
    """


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit status. The only place where PerfscopeError is caught."""
    prepare()
    try:
        result = main.main(arguments, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except PerfscopeError as error:
        say(f"perfscope: {error}" + (f"\n  try: {error.hint}" if error.hint else ""))
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        say((f"{context.get_usage()}\n" if context else "") + f"perfscope: {error.format_message()}")
        if context:
            say(f"  try: {context.command_path} --help")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (SystemExit, BrokenPipeError):  # click and rich exit with 1 from a closed pipe, and 1 means findings here
        return lose_stdout(141)
    except OSError as error:
        what = error.filename or ("the output can't be written" if error.errno in _OUTPUT_ERRORS else "can't go on")
        say(f"perfscope: {what}: {error.strerror or error}")
        return lose_stdout(PerfscopeError.exit_code)
    except MemoryError:
        say("perfscope: out of memory\n  try: ulimit -v unlimited, or a machine or container with more memory")
        return RecordingError.exit_code
    except ImportError as error:
        say(f"perfscope: a part of it can't be loaded: {error}\n  try: pip install --force-reinstall perfscope-cli")
        return RecordingError.exit_code
