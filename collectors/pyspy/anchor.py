"""Where py-spy's zero lies on CLOCK_MONOTONIC: the moment from which the stamps of a chrometrace count.

py-spy (0.4.2 and newer) takes that moment, an `Instant`, between two lines that it logs with the wall clock's time:
its configuration, and the memory maps of its target. They are the bracket. An Instant is a reading of CLOCK_MONOTONIC
itself, so it is then looked for in py-spy's own memory: seconds (64 bits) and nanoseconds (32 bits) side by side,
within the bracket. If there is exactly one such value, that is the zero; else the middle of the bracket is taken, good
to half of it.
"""

from __future__ import annotations

import datetime
import os
import re

import numpy as np

from perfscope.clock import ClockMap
from perfscope.collectors.pyspy.memory import writable

STAMP_NS = 1_000
"""Stamps are whole microseconds, cut off."""
STEP_NS = 100_000
"""Two measurements of the wall clock's offset this far apart have a step between them (slewing moves it far less)."""
_MOST_BYTES = 64 << 20
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z INFO +(py_spy::\w+)\] ")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def log_stamp(line: str) -> tuple[int, str] | None:
    """`(ns on the wall clock, module)` of a line of py-spy's log; None for what it prints otherwise."""
    match = _LINE.match(line)
    if match is None:
        return None
    whole = datetime.datetime.fromisoformat(match[1] + "+00:00") - _EPOCH
    return (whole.days * 86400 + whole.seconds) * 10**9 + int(match[2]), match[3]


def measure(
    pid: int,
    walls: tuple[int, int],
    offsets: tuple[tuple[int, int], tuple[int, int]],
    life: tuple[int, int],
    resolution_ns: int,
) -> ClockMap:
    """Clock map of the py-spy with that pid, which has just written the second of the two lines.

    walls: the stamps of both. offsets: REALTIME - MONOTONIC and its error in ns, before py-spy began and now. life:
    when it began and now. The lines were written in between: where the wall clock steps just then, only the offset from
    the right side of the step puts them there.
    """
    fitting = [
        (walls[0] - offset - error, walls[1] - offset + error)
        for offset, error in offsets
        if life[0] - error <= walls[0] - offset and walls[1] - offset <= life[1] + error
    ]
    moved = abs(offsets[0][0] - offsets[1][0])
    if len(fitting) == 1 or (fitting and moved < STEP_NS):
        slack = moved if moved < STEP_NS else 0
        first, last, between = fitting[0][0] - slack, fitting[0][1] + slack, "two of py-spy's log lines"
    else:
        first, last, between = life[0], life[1], "its start and its first words (the wall clock stepped meanwhile)"
    zero = _instant(pid, first, last)
    if zero is not None:
        method = f"the Instant py-spy counts from, read in its memory: the only one between {between}"
        return ClockMap("pyspy-instant", zero, STAMP_NS, 1000.0, resolution_ns, method)
    method = f"middle of the time between {between}; bound: half of it"
    error = (last - first) // 2 + 1 + STAMP_NS
    return ClockMap("pyspy-instant", (first + last) // 2, error, 1000.0, resolution_ns, method)


def _instant(pid: int, first_ns: int, last_ns: int) -> int | None:
    """The one Instant within [first_ns, last_ns] in the writable memory of a process; None if there isn't just one."""
    found: set[int] = set()
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _, words in writable(pid, memory, _MOST_BYTES):
            for second in {first_ns // 10**9, last_ns // 10**9}:
                at = np.flatnonzero(words[:-1] == second) + 1
                nanoseconds = words[at] & 0xFFFF_FFFF
                found |= {second * 10**9 + int(ns) for ns in nanoseconds[nanoseconds < 10**9]}
    except OSError:
        return None
    finally:
        os.close(memory)
    inside = [value for value in found if first_ns <= value <= last_ns]
    return inside[0] if len(inside) == 1 else None
