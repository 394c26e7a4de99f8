"""Sessions and diagnoses as text: aligned at 80 columns, plain where piped, coloured on a terminal.

Every name from outside goes through `printable` and into rich as Text, never as markup.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from perfscope.merge.tables import thread_keys
from perfscope.model.finding import Diagnosis, Evidence, Finding, Severity, Verdict, Where
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.reports.units import clock_words, clocks, count, duration, measure, percent, plural, printable, size

_WIDTH = 110
"""Nothing is set wider than this, so that a line can still be followed on a wide terminal."""

_PROCESSES = 12
"""Rows of the process table."""

_SHORT_NS = 1_000_000_000
"""A recording shorter than this is attaching and detaching for the most part."""

_STATUS_STYLE = {"ok": "green", "partial": "yellow", "failed": "red", "unavailable": "dim"}
_SEVERITY_STYLE = {
    Severity.INFO: "cyan",
    Severity.LOW: "blue",
    Severity.MEDIUM: "yellow",
    Severity.HIGH: "red",
    Severity.CRITICAL: "bold white on red",
}


def print_session(session: Session, console: Console) -> None:
    """What a session holds and how far each part can be trusted."""
    info = session.info
    print_headline(session, console)
    facts = _grid(2)
    facts.add_row(_dim("ended"), _text(_ending(info)))
    facts.add_row(_dim("recorded"), _text(", ".join(_origin(info)) or "unknown"))
    options = _options(info)
    if options:
        facts.add_row(_dim("options"), _text(options))
    _show(console, facts)
    console.print()
    _show(console, _processes(session))
    console.print()
    _show(console, _collectors(info))
    console.print()
    _show(console, _tables(info))


def print_headline(session: Session, console: Console) -> None:
    """Name, duration and what ran; the clocks with their error bounds; losses and own cost."""
    info = session.info
    head = Text.assemble(
        (printable(session.path.name or session.path.resolve().name), "bold"),
        "   ",
        duration(info.stop_ns - info.start_ns),
        "   ",
        printable(_what_ran(session)),
    )
    _show(console, head)
    line = _grid(2)
    line.add_row(_dim("clocks"), _text(clocks(info)))
    line.add_row(_dim("lost"), _text(_losses(info)))
    line.add_row(_dim("own cost"), _text(_own_cost(info)))
    _show(console, line)


def print_diagnosis(diagnosis: Diagnosis, session: Session, console: Console, show_all: bool = False) -> None:
    """Ranked findings with the values that decided, then the rules that found nothing.

    show_all: also the stack, all other values, where each threshold comes from, and why each of those rules found
    nothing.
    """
    print_headline(session, console)
    if gaps := gap_words(session.info):
        table = _grid(2)
        for number, gap in enumerate(gaps):
            table.add_row(Text("" if number else "missing", style="yellow"), _text(gap))
        _show(console, table)
    console.print()
    for number, finding in enumerate(diagnosis.findings, 1):
        _print_finding(number, finding, console, show_all)
    if not diagnosis.findings:
        judged = any(verdict.verdict == "ok" for verdict in diagnosis.verdicts)
        _show(console, Text(outcome_words(diagnosis), style="bold green" if judged else "bold yellow"))
        console.print()
    groups = {kind: [v for v in diagnosis.verdicts if v.verdict == kind] for kind in ("ok", "not_evaluable")}
    if show_all:
        for kind, verdicts in groups.items():
            if verdicts:
                _show(console, _verdicts(kind, verdicts))
        return
    summary = Text.assemble(("ok", "green"), "  ", plural(len(groups["ok"]), "rule"), "    ")
    summary.append("not evaluable", "yellow").append(f"  {len(groups['not_evaluable'])}")
    if groups["not_evaluable"]:
        summary.append(f" ({', '.join(v.rule for v in groups['not_evaluable'])})")
    _show(console, summary.append("    details: --all", "dim"))


def outcome_words(diagnosis: Diagnosis) -> str:
    """What a diagnosis without findings means."""
    if any(verdict.verdict == "ok" for verdict in diagnosis.verdicts):
        return "no bottleneck found by the rules that could be evaluated"
    return "nothing could be judged: no rule had the data that it needs"


def gap_words(info: SessionInfo) -> list[str]:
    """What was to be recorded here and wasn't, or not whole: one text a collector."""
    return [
        _short(f"{name} {report.status}{f': {report.why}' if report.why else ''}", 200)
        for name, report in info.collectors.items()
        if report.status in ("partial", "failed")
    ]


def where_words(where: Where) -> str:
    """The place of a finding in one line, as far as it is known."""
    parts = []
    if where.thread is not None or where.tid is not None:
        name = where.thread if where.thread is not None else "thread"
        parts.append(f"{name} (tid {where.tid})" if where.tid is not None else name)
    if where.process is not None or where.pid is not None:
        name = where.process if where.process is not None else "process"
        parts.append(f"in {name} (pid {where.pid})" if where.pid is not None else f"in {name}")
    if where.file is not None:
        parts.append(f"{where.file}:{where.line}" if where.line is not None else where.file)
    parts += [text for text in (where.function, where.kernel, where.device) if text is not None]
    return "  ".join(parts)


def evidence_words(item: Evidence) -> tuple[str, str]:
    """Value and threshold with their unit; no threshold is an empty text."""
    return measure(item.value, item.unit), "" if item.threshold is None else measure(item.threshold, item.unit)


def _print_finding(number: int, finding: Finding, console: Console, show_all: bool) -> None:
    title, _, detail = finding.title.partition(": ")
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(width=3, justify="right")
    head.add_column(width=8)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    gives = "" if finding.gives_back_pct is None else f"gives back up to {percent(finding.gives_back_pct)}"
    head.add_row(
        str(number),
        Text(str(finding.severity).upper(), style=_SEVERITY_STYLE[finding.severity]),
        Text(printable(title), style="bold"),
        Text(gives, style="bold"),
    )
    _show(console, head)
    body = _grid(2)
    if detail:
        body.add_row("", _text(detail))
    if place := where_words(finding.where):
        body.add_row(_dim("at"), _text(place))
    if show_all and finding.where.stack:
        names = [printable(name) for name in finding.where.stack]
        body.add_row(_dim("stack"), Text("\n".join(names), style="dim", overflow="fold"))
    judged = [item for item in finding.evidence if item.threshold is not None]
    if shown := list(finding.evidence) if show_all or not judged else judged:
        body.add_row(_dim("why"), _evidence(shown, show_all))
    body.add_row(Text("try", style="green"), _text(finding.advice))
    _show(console, Padding(body, (0, 0, 0, 5)))
    if finding.see:  # unwrapped: it is there to be copied
        label = "see".ljust(5 if show_all and finding.where.stack else 3)
        console.print(Text.assemble("     ", (label, "green"), "  ", printable(finding.see)), soft_wrap=True)
    console.print()


def _evidence(items: list[Evidence], show_sources: bool) -> Table:
    """A line a value: `54.0 %  waiting for the GIL, of working time (threshold 15.0 %; eBPF futex, exact)`."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for item in items:
        value, threshold = evidence_words(item)
        basis = "; ".join(text for text in (f"threshold {threshold}" if threshold else "", item.measured_by) if text)
        words = Text(printable(item.what), overflow="fold")
        words.append(f"  ({printable(basis)})" if basis else "", style="dim")
        if show_sources and item.threshold_source:
            words.append(f"\nthreshold: {printable(item.threshold_source)}", style="dim")
        table.add_row(Text(printable(value), style="bold"), words)
    return table


def _verdicts(kind: str, verdicts: list[Verdict]) -> Table:
    style, word = ("green", "ok") if kind == "ok" else ("yellow", "not evaluable")
    table = _grid(3)
    for verdict in verdicts:
        table.add_row(Text(word, style=style), Text(printable(verdict.rule), style="bold"), _text(verdict.why))
    return table


def _what_ran(session: Session) -> str:
    """`python serve.py (pid 4121, 14 threads), java Gateway (pid 4098, 3 threads)`: the first processes."""
    info = session.info
    threads: dict[int, int] = {}
    for pid in session.table("threads").column("pid").to_pylist():
        threads[pid] = threads.get(pid, 0) + 1
    processes = session.table("processes").select(["pid", "name", "command", "runtime"]).to_pylist()
    named = [p for p in processes if p["pid"] in info.pids or p["runtime"] != "native"]
    named.sort(key=lambda p: (p["pid"] not in info.pids, -threads.get(p["pid"], 0)))
    words = [
        f"{_short(p['command'] or p['name'])} (pid {p['pid']}, {plural(threads.get(p['pid'], 0), 'thread')})"
        for p in named[:3]
    ]
    if len(processes) > len(words):
        words.append(f"{len(processes) - len(words)} more")
    return ", ".join(words) or " ".join(info.command) or "no process was seen"


def _short(command: str, limit: int = 48) -> str:
    return command if len(command) <= limit else command[: limit - 1] + "…"


def _losses(info: SessionInfo) -> str:
    known = {n: c for n, c in info.collectors.items() if c.lost_events is not None}
    unknown = [n for n, c in info.collectors.items() if c.lost_events is None and c.status in ("ok", "partial")]
    words = []
    if known:
        lost = sum(c.lost_events or 0 for c in known.values())
        counted = [c.events for c in known.values() if c.events is not None]
        words.append(f"{count(lost)} of {plural(lost + sum(counted), 'event')}" if counted else plural(lost, "event"))
    if unknown:
        words.append(f"not known for {', '.join(unknown)}")
    late = sum(c.late_samples or 0 for c in info.collectors.values())
    if late:
        words.append(plural(late, "late sample"))
    return ", ".join(words) or "nothing was watching"


def _own_cost(info: SessionInfo) -> str:
    span = info.stop_ns - info.start_ns
    if info.own_cpu_ns is None or span <= 0:
        return "not measured"
    if span < _SHORT_NS:
        return f"{duration(info.own_cpu_ns)} of CPU time"
    return f"{percent(100 * info.own_cpu_ns / span)} of one CPU ({duration(info.own_cpu_ns)})"


def _ending(info: SessionInfo) -> str:
    ending = info.stopped_by or "not said"
    return f"{ending}, exit status {info.exit_status}" if info.exit_status is not None else ending


def _origin(info: SessionInfo) -> list[str]:
    words = [info.started_at] if info.started_at else []
    if info.tool_version:
        words.append(f"perfscope {info.tool_version}")
    for key, value in info.host.items():
        if key.endswith("_bytes") and isinstance(value, int):
            words.append(f"{key.removesuffix('_bytes')} {size(value)}")
        elif isinstance(value, str | int | float) and not key.endswith("_ns"):
            words.append(f"{key.replace('_', ' ')} {value}")
    return words


def _options(info: SessionInfo) -> str:
    """The options that say something: what is off or was not given is left out."""
    given = {key: value for key, value in info.options.items() if value not in (None, False, [], "")}
    return ", ".join(
        f"{key} {' '.join(map(str, value))}" if isinstance(value, list) else key if value is True else f"{key} {value}"
        for key, value in given.items()
    )


def _processes(session: Session) -> Table:
    """The processes that used most CPU time, those of known runtimes first; the rest as a count."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, right in (("pid", True), ("runtime", False), ("threads", True), ("CPU time", True), ("command", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name != "command")
    cpu: dict[int, list[int | None]] = {}
    threads = session.table("threads").to_pylist()
    unread = [t for t in threads if t["cpu_ns"] is None and t["sched_complete"]]  # ended before /proc could be asked
    for thread, spent in zip(unread, _on_cpu_ns(session, unread) if unread else (), strict=True):
        thread["cpu_ns"] = spent
    for thread in threads:
        cpu.setdefault(thread["pid"], []).append(thread["cpu_ns"])
    known = {pid: [ns for ns in own if ns is not None] for pid, own in cpu.items()}
    processes = session.table("processes").to_pylist()
    processes.sort(key=lambda p: (p["runtime"] == "native", -sum(known.get(p["pid"], []))))
    for process in processes[:_PROCESSES]:
        own, measured = cpu.get(process["pid"], []), known.get(process["pid"], [])
        time = duration(sum(measured)) if measured else "unknown"
        if measured and len(measured) < len(own):
            time = f"≥ {time}"
        command = _short(process["command"] or process["name"], 200)
        table.add_row(str(process["pid"]), _text(process["runtime"]), str(len(own)), time, _text(command))
    if len(processes) > _PROCESSES:
        table.add_row("", "", "", "", _dim(f"and {len(processes) - _PROCESSES} more"))
    return table


def _on_cpu_ns(session: Session, threads: list[dict[str, Any]]) -> list[int]:
    """CPU time of each of these threads: its life without what the sched events say that it was off the CPU."""
    sched = session.table("sched").select(["pid", "tid", "off_ns", "on_ns"])
    sched = sched.filter(pc.is_in(sched["tid"], pa.array([t["tid"] for t in threads], sched["tid"].type)))
    sched = sched.sort_by([("pid", "ascending"), ("tid", "ascending")])
    pid, tid, off = (sched[name].to_numpy() for name in ("pid", "tid", "off_ns"))
    on = pc.fill_null(sched["on_ns"], session.info.stop_ns).to_numpy()
    keys = thread_keys(pid, tid)
    own = thread_keys([t["pid"] for t in threads], [t["tid"] for t in threads])
    spent = []
    for thread, first, last in zip(
        threads, np.searchsorted(keys, own), np.searchsorted(keys, own, "right"), strict=True
    ):
        start, end = thread["start_ns"], thread["end_ns"]
        away = np.clip(on[first:last], start, end) - np.clip(off[first:last], start, end)
        spent.append(end - start - int(away.sum()))
    return spent


def _collectors(info: SessionInfo) -> Table:
    table = _grid(3)
    order = ("ok", "partial", "failed", "unavailable")
    for name, report in sorted(info.collectors.items(), key=lambda item: order.index(item[1].status)):
        head = Text(report.status, style=_STATUS_STYLE[report.status])
        if report.version:
            head.append(f"   {printable(report.version)}", style="dim")
        table.add_row(Text(printable(name), style="bold"), "", head)
        clock = info.clocks.get(name)
        rows = [("why", report.why), ("try", report.hint), ("saw", ", ".join(_seen(report, info)))]
        if clock is not None:
            rows.append(("clock", clock_words("", clock).strip() + (f": {clock.method}" if clock.method else "")))
        rows += [("note", note) for note in report.notes]
        for label, text in rows:
            if text:
                table.add_row("", _dim(label), _text(text))
    return table


def _seen(report: CollectorReport, info: SessionInfo) -> list[str]:
    facts = []
    if report.events is not None:
        facts.append(plural(report.events, "event"))
    if report.status in ("ok", "partial"):
        facts.append("losses not known" if report.lost_events is None else f"{count(report.lost_events)} lost")
    if report.late_samples is not None:
        facts.append(f"{count(report.late_samples)} late")
    if report.covered_ns and info.stop_ns > info.start_ns:
        covered = sum(end - start for start, end in report.covered_ns)
        facts.append(f"watched {duration(covered)} of {duration(info.stop_ns - info.start_ns)}")
    if report.cpu_ns is not None:
        facts.append(f"own CPU {duration(report.cpu_ns)}")
    return facts


def _tables(info: SessionInfo) -> Table:
    """Rows of each table that has some; the empty ones in one line."""
    table = _grid(2)
    full = {name: rows for name, rows in info.tables.items() if rows}
    width = max((len(f"{rows:,}") for rows in full.values()), default=0)
    for number, (name, rows) in enumerate(full.items()):
        table.add_row(_dim("" if number else "rows"), _text(f"{rows:>{width},}  {name}"))
    empty = [name for name, rows in info.tables.items() if not rows]
    if empty:
        table.add_row(_dim("empty"), _text(", ".join(empty)))
    return table


def _show(console: Console, renderable: RenderableType) -> None:
    """Prints without the blanks that rich fills lines up with."""
    options = console.options.update(width=min(console.width, _WIDTH))
    for line in console.render_lines(renderable, options, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            last = line[-1]
            line[-1] = Segment(last.text.rstrip(), last.style, last.control)
        console.print(Segments([*line, Segment.line()]), end="")


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for column in range(columns):
        table.add_column(no_wrap=column < columns - 1, overflow="fold", justify="left")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")


def _dim(text: str) -> Text:
    return Text(text, style="dim")
