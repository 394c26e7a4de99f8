"""py-spy's raw format: one line a stack, frames joined by ";", a space, and how often it was seen. No time in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.collectors.pyspy import frames as fr
from perfscope.collectors.pyspy.textstream import MAX_JUNK, MAX_ROWS, MAX_STACKS, Unsound, chunks, open_binary
from perfscope.model.stacks import ROOT, StackTable

MAX_LINE = 1 << 20
_FRAME = re.compile(r"(.+) \((.*?)(?::(\d{1,9}))?\)$", re.DOTALL)


@dataclass
class Counts:
    """Rows of a raw file. pid, tid: as the pseudo frames say, else None. lost_lines: lines that hold no stack."""

    pid: list[int | None] = field(default_factory=list)
    tid: list[int | None] = field(default_factory=list)
    name: list[str | None] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    lost_lines: int = 0
    cut_at: int | None = None
    cut_why: str = ""


def read_raw(path: Path, stacks: StackTable) -> Counts:
    """Reads a raw (folded) file of py-spy or any other tool, as far as it is sound.

    Raises InputError if the file can't be opened, and nothing else.
    """
    result = Counts()
    rest = b""
    with open_binary(path) as stream:
        try:
            for piece in chunks(stream):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    _line(line, stacks, result)
                if result.lost_lines > max(MAX_JUNK, len(result.stack)):
                    raise Unsound("most of its lines hold no stack and its count", 0)
                if len(stacks.parents) > MAX_STACKS or len(result.stack) > MAX_ROWS:
                    raise Unsound(f"more than {MAX_STACKS:,} distinct stacks or {MAX_ROWS:,} lines", 0)
                if len(rest) > MAX_LINE:
                    raise Unsound(f"a line longer than {MAX_LINE >> 20} MiB", 0)
        except Unsound as error:
            result.cut_at, result.cut_why, rest = error.offset, str(error), b""
    if rest:
        _line(rest, stacks, result)
    return result


def _line(line: bytes, stacks: StackTable, result: Counts) -> None:
    text = line.decode("utf-8", "replace").rstrip("\r")
    if not text.strip():
        return
    body, _, number = text.rpartition(" ")
    if not body or not number.isascii() or not number.isdigit() or len(number) > 18 or len(body) > MAX_LINE:
        result.lost_lines += 1
        return
    pid = tid = name = None
    stack = ROOT
    for part in _parts(body):
        if stack == ROOT and (thread := fr.thread_frame(part)) is not None:
            tid, name = thread
        elif stack == ROOT and (process := fr.process_frame(part)) is not None:
            pid = process
        else:
            match = _FRAME.match(part)
            frame = fr.make_frame(match[1], match[2], int(match[3] or 0)) if match else fr.make_frame(part, "", None)
            frame_id = stacks.frame(frame)
            same = stack != ROOT and stacks.stack_frames[stack] == frame_id and fr.collapsed(frame)
            stack = stack if same else stacks.push(stack, frame_id)
    if stack == ROOT:
        result.lost_lines += 1
        return
    result.pid.append(pid)
    result.tid.append(tid)
    result.name.append(name)
    result.stack.append(stack)
    result.count.append(int(number))


def _parts(body: str) -> list[str]:
    """Frames of a line. A thread's or process's name may hold ";" itself: it goes on until what looks like a frame."""
    parts = body.split(";")
    found: list[str] = []
    for part in parts:
        open_name = bool(found) and len(found) <= 2 and _pseudo(found[-1])
        if open_name and not _FRAME.match(part) and not _pseudo(part) and any(_FRAME.match(p) for p in parts[1:]):
            found[-1] += ";" + part
        else:
            found.append(part)
    return found[: fr.MAX_NAME]


def _pseudo(part: str) -> bool:
    return fr.thread_frame(part) is not None or fr.process_frame(part) is not None
