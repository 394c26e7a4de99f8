"""Standard streams that may be closed, full, broken or of any encoding, and foreign text on its way to a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import click

from perfscope.reports.units import printable


def prepare() -> None:
    """Opens closed standard streams on /dev/null, and lets no character end the program.

    Without the first, a file that we open later would be number 0, 1 or 2, and get what libraries print. What is
    opened here is closed in programs that we start, so they still find those streams as they were.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 (open to the end)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 (open to the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Writes to stderr what may hold foreign names; controls but line ends are escaped.

    A stderr that can't be written to (closed pipe, full disk, terminal gone) is no reason to fail: it is given up.
    """
    try:
        click.echo("\n".join(map(printable, text.split("\n"))), err=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def write_data(text: str) -> None:
    """Writes to stdout what programs read: always UTF-8, whatever the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def lose_stdout(status: int) -> int:
    """Gives up a stdout that can't be written to, so that the interpreter's end doesn't try again. Returns `status`."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status
