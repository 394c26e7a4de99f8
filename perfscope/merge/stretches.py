"""Scheduler records of one thread -> its stretches off the CPU, a part of its time after the other.

Working on a part at a time keeps memory to that of one part, however many records the thread has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfscope.merge.intervals import FAR, Intervals, bounded, clip, earliest_wins
from perfscope.merge.tables import NEVER, Columns

PART_ROWS = 1 << 18
"""Scheduler records of a part."""


@dataclass(frozen=True)
class Stretches:
    """Stretches off the CPU in [low, high): none crosses either end. Their rows index the scheduler records `off`."""

    low: int
    high: int
    spans: Intervals
    off: Columns


def stretches(off: Columns, low: int, high: int) -> Iterator[Stretches]:
    """The parts of [low, high), one at least; off: scheduler records by start (see sources.Sources.sched).

    A record without an end lasts to the thread's next record: a thread id used again, or an event that was lost. A
    newborn has not run before its first record, however long its parent took to let it go.
    """
    count = len(off["off"])
    begin, covered_to = low, -FAR
    for first in range(0, max(count, 1), PART_ROWS):
        part = {name: values[first : first + PART_ROWS] for name, values in off.items()}
        following = int(off["off"][first + PART_ROWS]) if first + PART_ROWS < count else FAR
        start = np.maximum(part["off"], covered_to)
        end = np.where(part["on"] == NEVER, np.append(part["off"][1:], following)[: len(start)], bounded(part["on"]))
        if first == 0 and count and part["newborn"][0]:
            start[0] = min(low, start[0])
        spans = earliest_wins(start, end)
        covered_to = max(covered_to, int(end.max(initial=covered_to)))
        # Behind what this part covers, the next one's first stretch is the first thing that happens.
        until = high if following == FAR else min(max(begin, following, covered_to), high)
        yield Stretches(begin, until, clip(spans, low, high), part)
        begin = until


class InForce:
    """Rows of one thread by start, as time passes: those that are in force somewhere in each of successive parts."""

    def __init__(self, rows: Columns) -> None:
        self._rows = rows
        self._seen = 0
        self._open: Columns = {name: values[:0] for name, values in rows.items()}

    def until(self, high: int) -> Columns:
        """Rows that started before `high` and had not ended at the one asked for before; an empty dict if none did."""
        if not self._rows:
            return {}
        stop = int(np.searchsorted(self._rows["start"], high))
        rows = {
            name: np.concatenate([self._open[name], values[self._seen : stop]]) for name, values in self._rows.items()
        }
        self._seen = stop
        lasting = rows["end"] > high
        self._open = {name: values[lasting] for name, values in rows.items()}
        return rows if len(lasting) else {}
