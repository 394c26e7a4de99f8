"""austin's text: one line a thread and look.

    P<pid>;T<interpreter>:<tid>;<file>:<function>:<line>;...;<file>:<function>:<line> <microseconds>

The number is the time since the process's look before, and the same for all threads of a look, so that its sum over the
looks is the time since the sampler's start (measured: equal to its own stamps to the microsecond). A look isn't marked:
the next one begins where the number changes, or after the oldest thread, which stands last. (Not where a thread comes
again: that happens within a look, too, when the list of threads changes while austin walks along it.) A thread without
frames is one that only just begins, often still under the id of the thread that started it: no look at anything.
`:INVALID:` is a stack that could not be read, now and then of a thread that never was.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfscope.collectors.pyspy import frames as fr
from perfscope.collectors.pyspy.slices import I32, I64, Slices, ThreadKey
from perfscope.collectors.pyspy.textstream import MAX_JUNK, MAX_ROWS, MAX_STACKS, Unsound, chunks, open_binary
from perfscope.model.stacks import ROOT, StackTable

MAX_LINE = 1 << 20
MAX_TID = 1 << 22
"""The kernel's PID_MAX_LIMIT: what is larger was read from a dying thread's memory."""
UNREAD = -2
"""Stands for the stack of a look that failed."""
_THREAD = re.compile(rb"P(\d{1,10});T(?:\d{1,10}:)?(\d{1,20})$")
_FRAME = re.compile(r"(.*):([^:]*|<.*>):(\d{1,9})$", re.DOTALL)
_META = re.compile(rb"# (austin|interval|mode|duration): (\S+)")
_INVALID = b":INVALID:"
_MARK = b":GC:"
UNNAMED = b"::"
"""In a frame whose function austin could not read, as its name isn't ASCII. Its file and line are right."""
_CACHE = 200_000
"""Distinct stacks as text that are kept to be known again; some 100 MB."""


@dataclass
class Look:
    """Looks of one process. elapsed: microseconds from its first moment to each look. The others: an entry a line."""

    elapsed: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("i"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    look: array[int] = field(default_factory=lambda: array("i"))
    _delta: int = -1
    _latest: int = -1
    _latest_before: int = -1
    _oldest: int = -1

    def advance(self, delta: int) -> None:
        """A line with that number, whatever else it holds: where the number changes, the next look begins."""
        if delta != self._delta:
            self._next(delta)

    def add(self, thread: int, stack: int, delta: int) -> None:
        """Takes a thread's line. It is the next look's, too, where the walk so far was complete."""
        if delta != self._delta or self._latest == self._oldest:
            self._next(delta)
        self._latest = thread
        self.thread.append(thread)
        self.stack.append(stack)
        self.look.append(len(self.elapsed) - 1)

    def _next(self, delta: int) -> None:
        self.elapsed.append((self.elapsed[-1] if self.elapsed else 0) + delta)
        if self._latest == self._latest_before or self._oldest < 0:  # last twice in a row, or in the first look
            self._oldest = self._latest
        self._delta, self._latest_before, self._latest = delta, self._latest, -1


@dataclass
class AustinFile:
    """A file as far as it is sound. threads: (pid, tid) by index. duration_us: by its last line; None without it.

    lines: that hold a thread's look. invalid: of these, stacks that could not be read. lost_lines: that make no sense.
    """

    threads: list[ThreadKey] = field(default_factory=list)
    looks: dict[int, Look] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    lines: int = 0
    invalid: int = 0
    lost_lines: int = 0
    cut_at: int | None = None
    cut_why: str = ""

    @property
    def duration_us(self) -> int | None:
        text = self.meta.get("duration", "")
        return int(text) if text.isdigit() and len(text) < 18 else None


class _Reader:
    def __init__(self, stacks: StackTable) -> None:
        self.stacks = stacks
        self.result = AustinFile()
        self._threads: dict[bytes, tuple[Look, int | None] | None] = {}
        self._keys: dict[ThreadKey, int] = {}
        self._texts: dict[bytes, int] = {}
        self._frames: dict[str, int | None] = {}

    def line(self, line: bytes) -> None:
        head, _, number = line.rpartition(b" ")
        if not head.startswith(b"P"):
            self._other(line)
            return
        pid, _, rest = head.partition(b";")
        thread, _, text = rest.partition(b";")
        name = pid + b";" + thread
        try:
            place = self._threads[name]
        except KeyError:
            place = self._threads[name] = self._thread(name)
        if not number.isdigit() or len(number) > 15:
            self.result.lost_lines += 1
            return
        delta = int(number)
        if place is None:
            self.result.lost_lines += 1
            return
        self.result.lines += 1
        look, index = place
        if index is None:
            self.result.invalid += 1
            look.advance(delta)
            return
        stack = self._texts.get(text)
        if stack is None:
            stack = self._stack(text)
            if len(self._texts) >= _CACHE:
                self._texts.clear()
            self._texts[text] = stack
        if stack == ROOT:
            look.advance(delta)
            return
        self.result.invalid += stack == UNREAD
        look.add(index, stack, delta)

    def _other(self, line: bytes) -> None:
        if (meta := _META.match(line)) is not None:
            self.result.meta[meta[1].decode()] = meta[2][:100].decode("utf-8", "replace")
        elif line.strip() and not line.startswith(b"# "):
            self.result.lost_lines += 1

    def _thread(self, name: bytes) -> tuple[Look, int | None] | None:
        match = _THREAD.match(name)
        if match is None or not 0 < int(match[1]) <= MAX_TID:
            return None
        key = int(match[1]), int(match[2])
        if not 0 < key[1] <= MAX_TID:
            return self.result.looks.setdefault(key[0], Look()), None
        if key not in self._keys:
            self._keys[key] = len(self._keys)
            self.result.threads.append(key)
        return self.result.looks.setdefault(key[0], Look()), self._keys[key]

    def _stack(self, text: bytes) -> int:
        if _INVALID in text:
            return UNREAD
        stack, open_part = ROOT, ""
        for part in text.removesuffix(_MARK).decode("utf-8", "replace").split(";"):
            whole = open_part + part
            if not whole:
                continue
            frame = self._frame(whole)
            if frame is None:
                open_part = whole + ";"  # a name with ";" in it goes on
                continue
            open_part = ""
            stack = self.stacks.push(stack, frame)
        return stack if not open_part else UNREAD

    def _frame(self, text: str) -> int | None:
        if text not in self._frames:
            match = _FRAME.match(text)
            made = fr.make_frame(match[2] or "[name unread]", match[1], int(match[3])) if match else None
            self._frames[text] = None if made is None else self.stacks.frame(made._replace(layer="python", module=None))
        return self._frames[text]


def read_austin(path: Path, stacks: StackTable) -> AustinFile:
    """Reads austin's text as far as it is sound, interning its stacks. Memory is bounded by the number of lines.

    Raises InputError if the file can't be opened, and nothing else: what is unsound is in lost_lines and cut_at.
    """
    reader = _Reader(stacks)
    result, rest, done = reader.result, b"", 0
    with open_binary(path) as stream:
        try:
            for piece in chunks(stream):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    reader.line(line)
                done += len(piece)
                if result.lost_lines > max(MAX_JUNK, result.lines):
                    raise Unsound("most of its lines are none of austin's", done)
                if len(stacks.parents) > MAX_STACKS or result.lines > MAX_ROWS or len(result.threads) > MAX_JUNK:
                    raise Unsound(f"more than {MAX_STACKS:,} distinct stacks or {MAX_ROWS:,} looks", done)
                if len(rest) > MAX_LINE:
                    raise Unsound(f"a line longer than {MAX_LINE >> 20} MiB", done)
                if result.meta.get("mode", "wall") not in ("wall", "cpu"):
                    raise Unsound(f"mode {result.meta['mode']} holds no plain times", done)
        except Unsound as error:
            result.cut_at, result.cut_why, rest = error.offset, str(error), b""
    if rest or ("duration" not in result.meta and result.cut_at is None):
        # The last line has no end: what it holds may be half a stack.
        result.cut_at, result.cut_why = (
            done - len(rest),
            "austin's last line is missing: it was killed, or had no space",
        )
    return result


@dataclass(frozen=True)
class Piece:
    """Looks `first` up to but without `end` of a process, whose time counts from `zero_us`."""

    first: int
    end: int
    zero_us: int


def slices(file: AustinFile, pid: int, pieces: list[Piece], zero_us: int) -> Slices:
    """Slices of one process. Times count from `zero_us`; looks outside all pieces, whose time isn't known, are lost."""
    looks = file.looks[pid]
    elapsed: I64 = np.frombuffer(looks.elapsed, np.int64)
    thread, stack, look = (np.frombuffer(column, np.int32) for column in (looks.thread, looks.stack, looks.look))
    order = np.lexsort((np.arange(len(look)), look, thread))
    thread, stack, look = thread[order], stack[order], look[order].astype(np.int64)
    # A thread that came twice in one look counts once, as it was seen last.
    final = np.append((thread[1:] != thread[:-1]) | (look[1:] != look[:-1]), True)
    thread, stack, look = thread[final], stack[final], look[final]
    result = Slices(threads=file.threads, errors=file.invalid, cut_at=file.cut_at, cut_why=file.cut_why)
    result.lost_events = file.lost_lines
    parts = [_piece(thread, stack, look, elapsed, piece, zero_us) for piece in pieces]
    result.events = sum(int((stack[(look >= p.first) & (look < p.end)] >= 0).sum()) for p in pieces)
    result.lost_events += int((stack >= 0).sum()) - result.events
    if parts:
        result.thread, result.start, result.end, result.stack, result.looks = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        shift = [piece.zero_us - zero_us for piece in pieces]
        result.first_ts = int(elapsed[pieces[0].first]) + shift[0]
        result.last_ts = int(elapsed[pieces[-1].end - 1]) + shift[-1]
    return result


def _piece(
    thread: I32, stack: I32, look: I64, elapsed: I64, piece: Piece, zero_us: int
) -> tuple[I32, I64, I64, I32, I64]:
    """(thread, start, end, stack, looks) of the slices of one piece.

    A look that failed ends a slice: which stack it would have shown isn't known.
    """
    inside = (look >= piece.first) & (look < piece.end)
    thread, stack, look = thread[inside], stack[inside], look[inside]
    if not len(look):
        return thread, look, look, stack, look
    begins = np.append(True, (thread[1:] != thread[:-1]) | (stack[1:] != stack[:-1]) | (look[1:] != look[:-1] + 1))
    first = np.flatnonzero(begins)
    after = np.append(first[1:], len(look))
    time = elapsed + (piece.zero_us - zero_us)
    start, end = time[look[first]], time[np.minimum(look[after - 1] + 1, piece.end - 1)]
    kept = (stack[first] >= 0) & (end > start)
    return thread[first][kept], start[kept], end[kept], stack[first][kept], (after - first)[kept]
