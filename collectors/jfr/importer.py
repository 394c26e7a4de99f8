"""Reads .jfr files recorded elsewhere into a session of their own."""

from __future__ import annotations

from pathlib import Path

from perfscope.clock import ClockMap
from perfscope.collectors.base import ImportResult
from perfscope.collectors.jfr.chunk import Chunk, Header, JfrFile
from perfscope.collectors.jfr.kinds import CONSTANTS, WANTED
from perfscope.collectors.jfr.tables import Tables
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter


def tick_clock(first: Header, wall_offset_ns: int, error_ns: int, method: str) -> ClockMap:
    """ClockMap of a recording's ticks by its first chunk: `mono = ticks * 1e9 / ticks per second + K`.

    wall_offset_ns: REALTIME - MONOTONIC when that chunk began. Later chunks go by their ticks alone.
    """
    scale = 1e9 / first.ticks_per_second
    offset = first.start_ns - wall_offset_ns - round(first.start_ticks * scale)
    return ClockMap("jfr-ticks", offset, error_ns, scale, method=method)


def fill_report(report: CollectorReport, tables: Tables, losses: list[str], damaged: int) -> None:
    """Adds what was read from one JVM, and what could not be."""
    report.events = (report.events or 0) + sum(tables.rows.values())
    report.lost_events = (report.lost_events or 0) + damaged + tables.unresolved
    reasons = list(losses[:5])
    if len(losses) > 5:
        reasons.append(f"and {len(losses) - 5} more losses")
    if tables.lost_bytes:
        reasons.append(f"the JVM itself dropped {tables.lost_bytes} bytes of events (its buffers were full)")
    if tables.unresolved:
        reasons.append(f"{tables.unresolved} samples whose stack is not in the file are left out")
    if reasons:
        report.status = "partial"
        report.why = "; ".join(([report.why] if report.why else []) + reasons)
    samples = sum(tables.rows[n] for n in ("jdk.ExecutionSample", "jdk.NativeMethodSample"))
    if tables.truncated_samples:
        report.notes.append(
            f"process {tables.pid}: {tables.truncated_samples} of {samples} Java samples are deeper than JFR recorded "
            "(64 frames unless the JVM runs with -XX:FlightRecorderOptions=stackdepth=N): their outermost "
            "frames are missing"
        )
    report.details[f"events of {tables.pid}"] = dict(tables.rows)


def import_file(path: Path, writer: SessionWriter) -> ImportResult:
    """Reads a .jfr file of any origin. Times are the recorded host's wall clock: nothing ties it to this host."""
    report = CollectorReport()
    pid = _pid(path)
    if pid is None:
        report.notes.append(f"{path.name} does not say which process it is of: shown as process 0")
    tables = Tables(writer, pid or 0)
    file = JfrFile(path, WANTED, CONSTANTS)
    clock: ClockMap | None = None
    first: Header | None = None
    for chunk in file:
        if first is None or clock is None or _other_run(first, chunk.header):
            first = chunk.header
            clock = tick_clock(first, 0, 0, "wall clock of the recorded host, by the file's first chunk; not measured")
        tables.add(chunk, clock)
    writer.note_process(tables.pid, runtime="java", name="java", start_ns=tables.first_ns, end_ns=tables.last_ns)
    fill_report(report, tables, file.losses, file.damaged_events)
    if not report.events and file.losses:
        report.status = "failed"
    report.notes.append("JFR looks at a few threads each period: samples times period is not CPU time")
    return ImportResult("jfr", tables.first_ns or 0, tables.last_ns or 0, report, clock)


def _other_run(first: Header, header: Header) -> bool:
    """True if a chunk is not of the same run of a JVM as an earlier one, so that its ticks have another origin."""
    return header.ticks_per_second != first.ticks_per_second or header.start_ticks < first.start_ticks


def _pid(path: Path) -> int | None:
    for chunk in JfrFile(path, {"jdk.JVMInformation"}, {}):
        for (pid,) in _pids(chunk):
            if isinstance(pid, int) and 0 < pid < 1 << 31:
                return pid
    return None


def _pids(chunk: Chunk) -> list[tuple[int | None]]:
    return list(chunk.rows("jdk.JVMInformation", ("pid",)))
