"""Where austin's time lies on CLOCK_MONOTONIC.

austin counts on CLOCK_BOOTTIME, in whole microseconds, and its file holds differences only. But the stamp of its latest
look lies in its memory. It is found there once, by its value (a time since austin began), and read about ten times
a second. Each such reading is the stamp of one look; which one, the file's sums say: they differ from look to look by
some random microseconds, so that a few readings fit in one way only. Where the file lacks a look (austin then writes
nothing, and counts its time to no look at all) or holds one too many, the readings after that fit in another way: the
looks between the last reading that fits the one, and the first that fits the other, have no known time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np

from perfscope.clock import ClockMap
from perfscope.collectors.pyspy.austinfile import Piece
from perfscope.collectors.pyspy.memory import writable
from perfscope.collectors.pyspy.slices import I64

STAMP_US = 1
"""Stamps are whole microseconds, cut off. A reading and the sum that it belongs to are the same number."""
_TOGETHER = 12
"""Readings that are looked at together to find the way in which they fit."""
_FEWEST = 3
"""Readings, and half of those looked at, that must fit where the bounds are wide: two fit somewhere by chance."""
_APART_US = 300_000
"""Most that looks missing from the file, or double in it, may move the rest at once."""
_MOST_PIECES = 1000
_MOST_BYTES = 16 << 20
_SUSPENDED_NS = 100_000


def boot_offset() -> int:
    """CLOCK_BOOTTIME - CLOCK_MONOTONIC in ns: how long this machine was suspended since its start."""
    best = (1 << 62, 0)
    for _ in range(5):
        before = time.monotonic_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.monotonic_ns()
        best = min(best, (after - before, boot - (before + after) // 2))
    return best[1]


@dataclass
class Stamps:
    """Readings of austin's stamps in its memory, in microseconds on CLOCK_BOOTTIME. first_us: the least ever found.

    columns: one list of readings for each place where a stamp was found; a reading is 0 where it failed.
    """

    pid: int
    began_us: int
    first_us: int | None = None
    columns: dict[int, list[int]] = field(default_factory=dict)

    def read(self) -> None:
        """Takes one more reading; nothing where austin's memory can't be read."""
        try:
            memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if self.first_us is None:
                self._find(memory)
            else:
                for place, column in self.columns.items():
                    column.append(int.from_bytes(os.pread(memory, 8, place), "little"))
        except OSError:
            return
        finally:
            os.close(memory)

    def _find(self, memory: int) -> None:
        """Finds all values that are times since austin began: when it began to sample, and of its latest look."""
        found: dict[int, int] = {}
        for start, words in writable(self.pid, memory, _MOST_BYTES):
            now_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            for at in np.flatnonzero((words >= self.began_us) & (words <= now_us)):
                found[start + 8 * int(at)] = int(words[at])
        if len(set(found.values())) > 1:  # one alone is from before the first look
            self.first_us = min(found.values())
            self.columns = {place: [value] for place, value in found.items()}

    def readings(self) -> list[I64]:
        """Those places whose value changed, or the latest ones where there is one reading only."""
        series = [np.array(column, np.int64) for column in self.columns.values()]
        return [values for values in series if len(values) == 1 or (values != values[0]).any()]


def align(elapsed: I64, readings: I64, earliest_us: int, latest_us: int) -> list[Piece]:
    """Which looks have which time: pieces of the file, each with the time of its zero, within which all readings fit.

    elapsed: the file's sums. readings: stamps read from one place. [earliest_us, latest_us]: of the zero of the first
    piece. Empty if no reading fits.
    """
    pieces: list[Piece] = []
    readings = readings[readings > 0]
    zero, first = _zero(elapsed, readings[:_TOGETHER], earliest_us, latest_us), 0
    while zero is not None and len(pieces) < _MOST_PIECES:
        at = np.searchsorted(elapsed, readings - zero)
        fits = (at < len(elapsed)) & (elapsed[np.minimum(at, len(elapsed) - 1)] == readings - zero)
        good = int(np.argmin(np.append(fits, False)))
        if good == len(readings) or readings[good] - zero > elapsed[-1]:
            pieces.append(Piece(first, len(elapsed), zero))  # the last look may be in austin's memory alone
            break
        end, known = first, zero
        if good:
            end = int(at[good - 1]) + 1
            pieces.append(Piece(first, end, zero))
        zero, readings = None, readings[good:]
        while zero is None and len(readings):
            bounds = known - _APART_US, known + _APART_US
            zero = _zero(elapsed[end:], readings[:_TOGETHER], *bounds, near=known)
            if zero is None:
                readings = readings[1:]  # two shifts between three readings: it fits nothing else
            else:
                # The look after the one that fits: that one may be the last before the shift, its reading one beyond.
                first = end + int(np.searchsorted(elapsed[end:], readings[0] - zero)) + 1
    return [piece for piece in pieces if piece.first < piece.end]


def _zero(elapsed: I64, readings: I64, earliest: int, latest: int, near: int | None = None) -> int | None:
    """The zero within bounds that the most readings fit, the first of them among these; of equals that nearest `near`
    (the latest where that is None). None if none fits, or too few to tell."""
    if not len(readings) or not len(elapsed):
        return None
    from_ = np.searchsorted(elapsed, readings[0] - latest)
    to = np.searchsorted(elapsed, readings[0] - earliest, side="right")
    candidates = readings[0] - elapsed[from_:to]
    if not len(candidates):
        return None
    wanted = readings[None, :] - candidates[:, None]
    at = np.minimum(np.searchsorted(elapsed, wanted), len(elapsed) - 1)
    votes = (elapsed[at] == wanted).sum(axis=1)
    if near is not None and votes.max() < max(_FEWEST, len(readings) / 2):
        return None
    best = candidates[votes == votes.max()]
    return int(best[np.argmin(np.abs(best - (latest if near is None else near)))])


def clock_map(zero_us: int, error_us: int, offsets: tuple[int, int], resolution_ns: int, method: str) -> ClockMap:
    """Clock of a file whose times count from `zero_us`. offsets: boot_offset() before and after."""
    apart = abs(offsets[1] - offsets[0])
    if apart > _SUSPENDED_NS:
        method += f"; this machine was suspended for {apart / 1e9:.1f} s meanwhile"
    return ClockMap("austin-start", zero_us * 1000 - offsets[0], error_us * 1000 + apart, 1000.0, resolution_ns, method)
