"""`perfscope doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from perfscope.collectors.base import Check


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--clock", is_flag=True, help="Record a program that marks known instants, and say how far each is off.")
def command(as_json: bool, clock: bool) -> int:
    """Check what can be recorded on this machine, why the rest can't, and what mends it.

    --clock takes some 10 seconds. For each source it prints by how many microseconds the instants are off.
    """
    if clock:
        return _clock(as_json)
    from perfscope.recording.doctor import examine
    from perfscope.recording.environment import fingerprint

    rows = examine()
    if as_json:
        click.echo(json.dumps({"host": fingerprint(), "checks": [asdict(row) for row in rows]}, indent=1))
    else:
        _table(rows)
    return 0


def _table(rows: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("collector", "what", "state", "why"):
        table.add_column(heading, overflow="fold")
    colours = {"ok": "green", "degraded": "yellow", "unavailable": "red"}
    for row in rows:
        table.add_row(row.collector, Text(row.what), Text(row.state, style=colours.get(row.state, "")), Text(row.why))
    console = Console(highlight=False)
    console.print(table)
    fixes = list(dict.fromkeys((row.collector, row.fix) for row in rows if row.fix and row.state != "ok"))
    if fixes:
        console.print("\nwhat mends it", style="bold")
    for collector, fix in fixes:
        click.echo(f"  {collector}: {fix}")  # unwrapped: it is there to be copied


def _clock(as_json: bool) -> int:
    from perfscope.recording.clock_check import check_clocks

    sources = check_clocks()
    if as_json:
        click.echo(json.dumps({"sources": [source.to_json() for source in sources]}, indent=1))
    else:
        click.echo("residual: how far a known instant is off, in microseconds; resolution is apart from it")
        for source in sources:
            click.echo(source.to_text())
    return 0
