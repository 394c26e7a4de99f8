"""Files that py-spy, austin (or, for speedscope and folded stacks, any tool) wrote elsewhere."""

from __future__ import annotations

import re
import shlex
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.clock import ClockMap
from perfscope.collectors.base import ImportResult
from perfscope.collectors.pyspy.austinimport import HEAD, import_austin
from perfscope.collectors.pyspy.chrometrace import read_chrometrace
from perfscope.collectors.pyspy.rawfile import read_raw
from perfscope.collectors.pyspy.rows import Timed, place, write_timed
from perfscope.collectors.pyspy.slices import I64, Slices
from perfscope.collectors.pyspy.speedscope import Profile, read_speedscope
from perfscope.errors import InputError
from perfscope.model.info import CollectorReport
from perfscope.model.session_writer import SessionWriter

Mask = npt.NDArray[np.bool_]
TAIL_US = 1_000_000
"""Without a change for longer than this up to the file's end, a thread may as well have died."""
_WAITING = re.compile(
    r"(_?wait\w*|acquire\w*|join|get|put|sleep|select|e?poll|kqueue|accept|recv\w*|read\w*|flush|communicate|pause|_worker)$"
)
_MOJO = b"MOJ"
"""What austin's binary format begins with (https://github.com/P403n1x87/austin/wiki/The-MOJO-file-format)."""
_UNJUDGED = "torn stacks were not looked for: that needs the sources as they were loaded"


def sniff(head: bytes, path: Path) -> bool:
    """Whether these first bytes are those of a chrometrace, raw, speedscope or austin file, plain or gzipped.

    austin's binary format too: `import_file` says how to get text instead.
    """
    return _kind(head) is not None


def _kind(head: bytes) -> str | None:
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 1 << 16)
        except zlib.error:
            return None
    if head.startswith(_MOJO):
        return "mojo"
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("["):
        return "chrometrace" if '"ph"' in text or text.strip() == "[]" else None
    if text.startswith("{"):
        if '"traceEvents"' in text:
            return "chrometrace"
        return "speedscope" if "speedscope" in text or '"profiles"' in text or '"shared"' in text else None
    if text.startswith(HEAD):
        return "austin"
    first, newline, _ = text.partition("\n")
    if "\0" in text or "\ufffd" in first[:-4]:
        return None
    if re.search(r"\S \d+\r?$", first) or (not newline and ";" in first):
        return "raw"
    return None


def import_file(path: Path, writer: SessionWriter) -> ImportResult:
    """Reads one file into `samples`, as far as it is sound. Raises InputError if nothing of it can be read."""
    head = _head(path)
    kind = _kind(head)
    if kind == "chrometrace":
        return _chrometrace(path, writer)
    if kind == "speedscope":
        return _speedscope(path, writer)
    if kind == "raw":
        return _raw(path, writer)
    if kind == "austin":
        return import_austin(path, writer, _UNJUDGED)
    if kind == "mojo":
        raise InputError(f"{path}: austin's binary format (MOJO), but only its text is read", hint=_as_text(path))
    raise InputError(f"{path}: no chrometrace, raw, speedscope or austin file")


def _as_text(path: Path) -> str:
    text = path.with_name(f"{path.name.removesuffix('.mojo')}.austin")
    convert = f"mojo2austin {shlex.quote(str(path))} {shlex.quote(str(text))}"
    return f"run austin without -b, or convert the file: pip install austin-python && {convert}"


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(4096)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None


def _chrometrace(path: Path, writer: SessionWriter) -> ImportResult:
    slices = read_chrometrace(path, writer.stacks)
    where = "" if slices.cut_at is None else f": {slices.cut_why} at byte {slices.cut_at}"
    if not len(slices.start):
        raise InputError(f"{path}: no stack can be read from it{where}")
    report = CollectorReport(events=len(slices.start), lost_events=slices.lost_events)
    if slices.lost_events or where:
        report.status = "partial"
        report.why = f"{slices.lost_events} events fit into no stack" if slices.lost_events else "cut short"
        report.why += where
    if slices.shared_handles:
        report.status = "partial"
        report.why = (f"{report.why}; " if report.why else "") + (
            f"{slices.shared_handles} threads of a parent and its fork share handles, which py-spy --subprocesses "
            "mixes up: told apart by the process that each look names; the last look interval of each is missing"
        )
        report.hint = "record each process with a py-spy of its own: perfscope record does"
    ends, tails = _without_tails(slices)
    rows = place(slices, {}, slices.start * 1000, ends * 1000)
    tids, unnamed = _numbered(slices)
    rows.tid = tids[slices.thread]
    write_timed(writer, "import", rows, np.ones(len(ends), np.int64), np.zeros(len(ends), bool))
    for number, key in enumerate(slices.threads):
        mine = slices.thread == number
        if mine.any():
            _note(writer, key[0], int(tids[number]), slices.names.get(key), rows, mine)
    report.notes.append(_UNJUDGED)
    report.notes.append("the file holds changes of stacks only: its sample counts are changes, its times are whole")
    if tails:
        report.notes.append(
            f"{tails} threads show one stack up to the file's end, as py-spy writes for dead threads too: cut, as "
            "whether they lived can't be told"
        )
    if unnamed:
        report.notes.append(f"{unnamed} threads without a kernel thread id are numbered as they come")
    clock = ClockMap(
        "pyspy-instant", 0, 0, 1000.0, int(np.median(ends - slices.start)) * 1000,
        "the file's own time: nothing in it ties it to a host's clock",
    )  # fmt: skip
    return ImportResult("import", slices.first_ts * 1000, slices.last_ts * 1000, report, clock)


def _without_tails(slices: Slices) -> tuple[I64, int]:
    """Ends of the slices, with the last one of a thread that may be dead cut to one usual look; and how many were.

    py-spy lets a dead thread's stack run on to the end of the file. Only the main thread, and a thread seen waiting by
    the name of its innermost function, are believed to be still alive where nothing changed for over a second.
    """
    ends = slices.end.copy()
    last = slices.end >= slices.last_ts
    long = slices.end - slices.start > TAIL_US
    seen = ends[~last] - slices.start[~last]
    look = int(np.median(seen)) if len(seen) else 10_000  # py-spy's default rate
    cut = 0
    for row in np.flatnonzero(last & long):
        pid, tid = slices.threads[slices.thread[row]]
        main = tid == pid or len(slices.threads) == 1
        if not main and not _WAITING.match(slices.leaf(int(row)).rsplit(".", 1)[-1]):
            ends[row] = min(ends[row], slices.start[row] + look)
            cut += 1
    return ends, cut


def _numbered(slices: Slices) -> tuple[npt.NDArray[np.int32], int]:
    """A tid for each thread: the kernel's, else its number among those without (a file's only thread has its pid)."""
    without = [key for key in slices.threads if key[1] < 0]
    if len(slices.threads) == 1 and without:
        return np.array([slices.threads[0][0]], np.int32), 1
    return np.array([tid if tid >= 0 else 1 + without.index((pid, tid)) for pid, tid in slices.threads], np.int32), len(
        without
    )


def _note(writer: SessionWriter, pid: int, tid: int, name: str | None, rows: Timed, mine: Mask) -> None:
    start, end = int(rows.start_ns[mine].min()), int(rows.end_ns[mine].max())
    writer.note_process(pid, name="python", runtime="python", start_ns=start, end_ns=end)
    writer.note_thread(pid, tid, name=name, named_by="python", start_ns=start, end_ns=end)


def _speedscope(path: Path, writer: SessionWriter) -> ImportResult:
    profiles = read_speedscope(path, writer.stacks)
    whys = [f"{p.name}: {p.why} ({p.lost} lost)" for p in profiles if p.lost]
    usable = [p for p in profiles if len(p.rows)]
    if not usable:
        raise InputError(f"{path}: no stack can be read from it" + (f": {whys[0]}" if whys else ""))
    report = CollectorReport(events=sum(len(p.rows) // 4 for p in usable), lost_events=sum(p.lost for p in profiles))
    if whys:
        report.status, report.why = "partial", "; ".join(whys[:5])
    spans: list[tuple[int, int]] = []
    for number, profile in enumerate(usable, 1):
        spans += _profile(writer, profile, number, path)
    if any(p.timed and p.tid is None for p in usable):
        report.notes.append("its profiles name no kernel threads: they are numbered as they come, under process 0")
    report.notes.append(_UNJUDGED)
    if not spans:
        report.notes.append("the file holds counts only, no times")
        return ImportResult("import", 0, 0, report)
    clock = ClockMap("file", 0, 0, method="the file's own time: nothing in it ties it to a host's clock")
    return ImportResult("import", min(s for s, _ in spans), max(e for _, e in spans), report, clock)


def _profile(writer: SessionWriter, profile: Profile, number: int, path: Path) -> list[tuple[int, int]]:
    table = np.frombuffer(profile.rows, np.int64).reshape(-1, 4)
    if not profile.timed:
        stacks, index = np.unique(table[:, 2], return_inverse=True)
        counts = np.zeros(len(stacks), np.int64)
        np.add.at(counts, index, table[:, 3])
        _write_counts(
            writer, [profile.pid] * len(stacks), [profile.tid] * len(stacks), stacks.tolist(), counts.tolist()
        )
        return []
    pid, tid = profile.pid or 0, profile.tid or number
    size = len(table)
    rows = Timed(
        np.full(size, pid, np.int32),
        np.full(size, tid, np.int32),
        table[:, 0],
        table[:, 1],
        table[:, 2].astype(np.int32),
    )
    write_timed(writer, "import", rows, table[:, 3], np.zeros(size, bool))
    start, end = int(table[:, 0].min()), int(table[:, 1].max())
    writer.note_process(pid, name=path.name, start_ns=start, end_ns=end)
    writer.note_thread(pid, tid, name=profile.name, named_by="python", start_ns=start, end_ns=end)
    return [(start, end)]


def _raw(path: Path, writer: SessionWriter) -> ImportResult:
    counts = read_raw(path, writer.stacks)
    if not counts.stack:
        raise InputError(f"{path}: no stack can be read from it" + (f": {counts.cut_why}" if counts.cut_why else ""))
    _write_counts(writer, counts.pid, counts.tid, counts.stack, counts.count)
    report = CollectorReport(events=len(counts.stack), lost_events=counts.lost_lines, notes=[_UNJUDGED])
    report.notes.append("the file holds counts only, no times")
    if counts.lost_lines or counts.cut_at is not None:
        report.status, report.why = "partial", f"{counts.lost_lines} lines hold no stack and its count"
        if counts.cut_at is not None:
            report.why += f"; cut at byte {counts.cut_at}: {counts.cut_why}"
    return ImportResult("import", 0, 0, report)


def _write_counts(
    writer: SessionWriter, pids: list[int | None], tids: list[int | None], stacks: list[int], counts: list[int]
) -> None:
    columns = {"source": ["import"] * len(stacks), "pid": pids, "tid": tids, "stack_id": stacks, "count": counts}
    writer.append("samples", {**columns, "torn": [False] * len(stacks)})
