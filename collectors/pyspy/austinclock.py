"""Where austin's time lies on CLOCK_MONOTONIC.

austin counts on CLOCK_BOOTTIME, in whole microseconds, and its file holds differences only. But the stamp of its latest
look lies in its memory. It is found there once, by its value (a time since austin began), and read five to ten times
a second. Each such reading is the stamp of one look; which one, the file's sums say: they differ from look to look by
some random microseconds, so that a few readings fit in one way only. Where the file lacks a look (austin then writes
nothing, and counts its time to no look at all) or holds one too many, the readings after that fit in another way: the
looks between the last reading but one that fits the one way, and the second that fits the other, have no known time
(one reading may fit by chance).
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
"""Readings, half of those looked at, and twice as many as fit in any other way, that must fit: some do by chance."""
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

    @property
    def sampling_us(self) -> int | None:
        """The stamp that stood still while others moved: of when austin began to sample. None where there is none."""
        still = [column[0] for column in self.columns.values() if len(set(column)) == 1 < len(column)]
        return min(still) if 0 < len(still) < len(self.columns) else None

    def readings(self) -> list[I64]:
        """Those places whose value changed, or the latest ones where there is one reading only."""
        series = [np.array(column, np.int64) for column in self.columns.values()]
        return [values for values in series if len(values) == 1 or (values != values[0]).any()]


def align(elapsed: I64, readings: I64, earliest_us: int, latest_us: int) -> list[Piece]:
    """Which looks have which time: pieces of the file, each with the time of its zero, within which all readings fit.

    elapsed: the file's sums. readings: stamps read from one place. [earliest_us, latest_us]: of the zero of a file that
    lacks nothing. Empty if no reading fits, or too few to tell.
    """
    pieces: list[Piece] = []
    readings = readings[readings > 0]
    bounds, end, whole = (earliest_us, latest_us), 0, True
    # A look that is missing before the first reading would bring the zero out of bounds that are so close.
    sure = len(elapsed) < 3 or latest_us - earliest_us < np.diff(elapsed)[1:].min()
    while len(readings) and len(pieces) < _MOST_PIECES:
        zero = _zero(elapsed[end:], readings[:_TOGETHER], *bounds, whole=whole)
        if zero is None:  # it fits nothing else: looks before it, and between it and others, are missing
            readings = readings[1:]
            bounds = (earliest_us - _APART_US, latest_us + _APART_US) if whole else bounds
            whole = False
            continue
        at = np.searchsorted(elapsed, readings - zero)
        fits = (at < len(elapsed)) & (elapsed[np.minimum(at, len(elapsed) - 1)] == readings - zero)
        good = int(np.argmin(np.append(fits, False)))
        # The first and the last reading that fit may do so by chance, from the other side of a shift.
        first = (0 if sure else int(at[0])) if whole else int(at[min(1, good - 1)])
        if good == len(readings) or readings[good] - zero > elapsed[-1]:
            pieces.append(Piece(first, len(elapsed), zero))  # the last look may be in austin's memory alone
            break
        end = int(at[max(0, good - 2)]) + 1
        pieces.append(Piece(first, end, zero))
        readings, bounds, whole = readings[good:], (zero - _APART_US, zero + _APART_US), False
    return [piece for piece in pieces if piece.first < piece.end]


def _zero(elapsed: I64, readings: I64, earliest: int, latest: int, *, whole: bool) -> int | None:
    """The zero within bounds that more readings fit than any other, the first of them among these.

    None if too few fit to tell: another look's sum is as far from the next by chance. whole: nothing is known to be
    missing, so that the few readings of a short file are enough where they all fit, and in one way only.
    """
    if not len(elapsed):
        return None
    from_ = np.searchsorted(elapsed, readings[0] - latest)
    to = np.searchsorted(elapsed, readings[0] - earliest, side="right")
    candidates = readings[0] - elapsed[from_:to]
    if not len(candidates):
        return None
    wanted = readings[None, :] - candidates[:, None]
    at = np.minimum(np.searchsorted(elapsed, wanted), len(elapsed) - 1)
    votes = (elapsed[at] == wanted).sum(axis=1)
    enough = max(_FEWEST, len(readings) / 2)
    if votes.max() < (min(enough, len(readings)) if whole else enough):
        return None
    best = int(votes.argmax())
    others = np.delete(votes, best).max(initial=0)
    return int(candidates[best]) if votes[best] >= 2 * others else None


def clock_map(zero_us: int, error_us: int, offsets: tuple[int, int], resolution_ns: int, method: str) -> ClockMap:
    """Clock of a file whose times count from `zero_us`. offsets: boot_offset() before and after."""
    apart = abs(offsets[1] - offsets[0])
    if apart > _SUSPENDED_NS:
        method += f"; this machine was suspended for {apart / 1e9:.1f} s meanwhile"
    return ClockMap("austin-start", zero_us * 1000 - offsets[0], error_us * 1000 + apart, 1000.0, resolution_ns, method)
