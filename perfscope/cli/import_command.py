"""`perfscope import`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from perfscope.cli._streams import say


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Session directory. [default: named after the first file]",
)
@click.option("--force", is_flag=True, help="Replace an existing session.")
def command(files: tuple[Path, ...], output: Path | None, force: bool) -> int:
    """Turn files of other profilers into one session.

    Reads py-spy's chrometrace, raw and speedscope files, austin's text, JFR recordings, and Nsight Compute's .ncu-rep
    and CSV; what a file is, is told from its content.
    """
    from perfscope.recording.import_files import import_files
    from perfscope.recording.names import free_path

    path = output or free_path(files[0].name.split(".")[0])
    info = import_files(files, path, force=force)
    for name, report in info.collectors.items():
        got = "" if report.events is None else f", {report.events:,} events"
        lost = f", {report.lost_events:,} lost" if report.lost_events else ""
        say(f"  {name}: {report.status}{got}{lost}{f': {report.why}' if report.why else ''}")
    quoted = shlex.quote(str(path))
    say(f"next: perfscope diagnose {quoted}   perfscope flame {quoted}")
    click.echo(str(path))
    return 0
