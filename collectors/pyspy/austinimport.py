"""austin's text made elsewhere, as tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfscope.clock import ClockMap
from perfscope.collectors.base import ImportResult
from perfscope.collectors.pyspy.austinfile import Piece, read_austin, slices
from perfscope.collectors.pyspy.rows import place, write_timed
from perfscope.errors import InputError
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter

HEAD = "# austin: "


def import_austin(path: Path, writer: SessionWriter, unjudged: str) -> ImportResult:
    """Reads the file into `samples`. Raises InputError if it holds no stack. unjudged: what to note of torn stacks."""
    file = read_austin(path, writer.stacks)
    where = "" if file.cut_at is None else f": {file.cut_why} at byte {file.cut_at}"
    report = CollectorReport(events=0, lost_events=file.invalid + file.lost_lines, notes=[unjudged])
    ends: list[int] = []
    for pid, looks in file.looks.items():
        if not looks.look:
            continue
        found = slices(file, pid, [Piece(0, len(looks.elapsed), 0)], 0)
        if found.looks is None or not len(found.start):
            continue
        rows = place(found, {}, found.start * 1000, found.end * 1000)
        write_timed(writer, "import", rows, found.looks, np.zeros(len(rows.pid), bool))
        report.events = (report.events or 0) + found.events
        ends.append(found.last_ts * 1000)
        writer.note_process(pid, name="python", runtime="python", start_ns=0, end_ns=ends[-1])
        for number in np.unique(found.thread):
            mine = found.thread == number
            start, end = int(rows.start_ns[mine].min()), int(rows.end_ns[mine].max())
            writer.note_thread(pid, found.threads[number][1], start_ns=start, end_ns=end)
    if not ends:
        raise InputError(f"{path}: no stack can be read from it{where}")
    if file.lost_lines or where:
        report.status, report.why = "partial", f"{file.lost_lines} lines are none of austin's{where}"
    if file.invalid:
        report.notes.append(f"{file.invalid} looks failed to read a stack")
    if len(ends) > 1:
        report.notes.append("each process's time counts from when austin found it: the file doesn't say when that was")
    interval = file.meta.get("interval", "")
    resolution = int(interval) * 1000 if interval.isdigit() and len(interval) < 12 else 0
    method = "the file's own time: nothing in it ties it to a host's clock"
    return ImportResult("import", 0, max(ends), report, ClockMap("austin-start", 0, 0, 1000.0, resolution, method))
