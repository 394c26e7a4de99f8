"""perfscope diagnose"""

from __future__ import annotations

import json
from pathlib import Path

import click

from perfscope.cli._place import here
from perfscope.cli._streams import write_data
from perfscope.model.finding import Severity


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option(
    "--fail-on",
    type=click.Choice([str(s) for s in Severity]),
    help="Exit with status 1 if a finding is of this severity or above.",
)
@click.option("--all", "show_all", is_flag=True, help="Also say what was measured and found fine, or can't be judged.")
def command(session: Path, form: str, fail_on: str | None, show_all: bool) -> int:
    """Rank the bottlenecks of SESSION, with evidence.

    Thresholds are those of perfscope.toml or pyproject.toml's [tool.perfscope] of the current directory or the nearest
    above it, and the defaults for the rest.
    """
    from perfscope.diagnosis.engine import diagnose
    from perfscope.diagnosis.thresholds import load
    from perfscope.model.session import Session

    opened = Session.open(session)
    diagnosis = diagnose(opened, load(here()))
    if form == "json":
        write_data(json.dumps(diagnosis.to_json(), indent=1, ensure_ascii=False) + "\n")
    elif form == "markdown":
        from perfscope.reports.markdown import diagnosis as as_markdown

        write_data(as_markdown(diagnosis, opened) + "\n")
    else:
        from rich.console import Console

        from perfscope.reports.terminal import print_diagnosis

        print_diagnosis(diagnosis, opened, Console(), show_all)
    worst = max((f.severity for f in diagnosis.findings), default=None)
    return int(fail_on is not None and worst is not None and worst >= Severity.parse(fail_on))
