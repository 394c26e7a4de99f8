"""perfscope flame"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli._place import here, refuse_existing, write_file
from perfscope.cli._streams import say, write_data
from perfscope.errors import UsageError

if TYPE_CHECKING:
    from perfscope.merge.calltree import CallTree
    from perfscope.model.session import Session

FORMATS = {"html": ".html", "folded": ".folded", "speedscope": ".speedscope.json"}
WEIGHTS = ("wall", "cpu", "off-cpu", "gpu", "samples")
_SOURCES = {"samples": ("samples", "pyspy"), "gpu": ("GPU activity", "cuda")}


@click.command("flame")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="FILE", help="File to write; - is stdout. [default: SESSION's name in this directory]"
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(FORMATS)),
    default="html",
    help="What to write, see above. [default: html]",
)
@click.option("--weight", type=click.Choice(WEIGHTS), help="What widths stand for. [default: wall, or what there is]")
@click.option(
    "--from",
    "from_s",
    metavar="SECONDS",
    type=float,
    help="Only from this moment on, counted from the recording's start.",
)
@click.option("--to", "to_s", metavar="SECONDS", type=float, help="Only up to this moment.")
@click.option("--thread", metavar="PATTERN", help="Only threads whose name matches, e.g. 'worker-*'.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(
    session: Path,
    output: str | None,
    format_: str,
    weight: str | None,
    from_s: float | None,
    to_s: float | None,
    thread: str | None,
    force: bool,
) -> None:
    """Write the flame graph of a session.

    \b
    html        one page for any browser, with its viewer in it; needs no network
    folded      lines 'process;thread;frame;...;leaf weight', in nanoseconds
    speedscope  for https://www.speedscope.app
    """
    from perfscope.merge import build_tree, kernel_groups
    from perfscope.model.session import Session

    target = Path(output) if output is not None else Path(session.resolve().stem + FORMATS[format_])
    if output != "-":
        refuse_existing(target, force=force)
    opened = Session.open(session)
    _check_part(opened, from_s, to_s)
    tree = build_tree(opened, thread=thread, from_s=from_s, to_s=to_s, groups=kernel_groups.load(here()))
    if thread is not None and len(tree.parent) == 1:
        names = sorted({name for name in opened.table("threads").column("name").to_pylist() if name})
        raise UsageError(
            f"no thread matches {thread!r} in what is selected",
            hint=f"the threads are: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}",
        )
    text = _render(tree, format_, _weight(tree, weight, opened), opened)
    if output == "-":
        write_data(text)
        return
    write_file(target, text)
    say(f"wrote {target}")


def _check_part(session: Session, from_s: float | None, to_s: float | None) -> None:
    length = (session.info.stop_ns - session.info.start_ns) / 1e9
    for option, value, fits in (
        ("--from", from_s, from_s is None or 0 <= from_s < length),
        ("--to", to_s, to_s is None or 0 < to_s < math.inf),
    ):
        if not fits:
            raise UsageError(
                f"{option} {value:g} is no moment of the recording, which lasts {length:.3f} s",
                hint=f"seconds from its start: --from 0 --to {length:.3f}",
            )
    if from_s is not None and to_s is not None and from_s >= to_s:
        raise UsageError(f"--from {from_s:g} is not before --to {to_s:g}", hint=f"--from {to_s:g} --to {from_s:g}")


def _weight(tree: CallTree, wanted: str | None, session: Session) -> str:
    if wanted is None:
        wanted = next((name for name in WEIGHTS if name in tree.weights), None)
        if wanted is None:
            raise UsageError(
                f"{session.path} holds neither samples nor sched events, so there is nothing to draw",
                hint=f"perfscope show {session.path}",
            )
    if wanted not in tree.weights:
        lacking, source = _SOURCES.get(wanted, ("eBPF sched events", "ebpf"))
        report = session.info.collectors.get(source)
        why = f": {source} was {report.status}, {report.why}" if report and report.why else ""
        raise UsageError(
            f"--weight {wanted} needs {lacking}, and there are none in this session{why}",
            hint=(report.hint if report else None) or f"this session has: {', '.join(tree.weights)}",
        )
    return wanted


def _render(tree: CallTree, format_: str, weight: str, session: Session) -> str:
    from perfscope.reports import flame, folded, speedscope
    from perfscope.reports.units import clocks

    if format_ == "html":
        tree.notes.insert(0, f"clocks: {clocks(session.info)}")
        return flame.page(tree, weight=weight)
    if format_ == "speedscope":
        return speedscope.text(tree, weight) + "\n"
    return "".join(f"{line}\n" for line in folded.lines(tree, weight))
