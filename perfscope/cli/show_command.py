"""perfscope show"""

from __future__ import annotations

from pathlib import Path

import click


@click.command("show")
@click.argument("session", type=click.Path(path_type=Path))
def command(session: Path) -> None:
    """Say what a session holds and how far it can be trusted."""
    from rich.console import Console

    from perfscope.model.session import Session
    from perfscope.reports import terminal

    opened = Session.open(session)
    opened.check()
    terminal.print_session(opened, Console(highlight=False))
