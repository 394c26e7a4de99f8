"""Arithmetic on sets of half-open time intervals, as arrays. All times in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

BLOCK = 1 << 18
"""Intervals worked on at a time, so that what is computed on the way takes little memory beside them."""


@dataclass(frozen=True)
class Intervals:
    """n intervals [start_ns, end_ns), int64[n] each. thread: index into Facts.threads of each, int32[n] or int64[n].

    Those of one thread don't overlap each other.
    """

    start_ns: Int64
    end_ns: Int64
    thread: npt.NDArray[np.integer[Any]]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> Intervals:
        """From (start, end, thread) rows."""
        columns = np.asarray(rows, np.int64).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """Sum of all lengths, overlaps counted as often as they occur."""
        return int((self.end_ns - self.start_ns).sum())

    def where(self, rows: npt.NDArray[np.bool_ | np.intp] | slice) -> Intervals:
        return Intervals(self.start_ns[rows], self.end_ns[rows], self.thread[rows])

    def within(self, starts: Int64, ends: Int64) -> Intervals:
        """The parts that lie within disjoint, ordered intervals [starts, ends)."""
        parts = []
        for at in range(0, len(self), BLOCK):
            start, end, thread = (c[at : at + BLOCK] for c in (self.start_ns, self.end_ns, self.thread))
            first = np.searchsorted(ends, start, side="right")
            count = np.maximum(np.searchsorted(starts, end, side="left") - first, 0)
            if not count.any():
                continue
            mine = np.repeat(np.arange(len(start)), count)
            other = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
            parts.append(
                Intervals(np.maximum(start[mine], starts[other]), np.minimum(end[mine], ends[other]), thread[mine])
            )
        return joined(parts)

    def split(self) -> dict[int, Intervals]:
        """Thread -> its intervals, in their order."""
        return {thread: self.where(rows) for thread, rows in groups(self.thread)}

    def by_thread(self) -> dict[int, int]:
        """Thread -> total length of its intervals, longest first."""
        totals = np.bincount(self.thread, self.end_ns - self.start_ns)  # whole numbers: exact up to 2**53
        threads = np.flatnonzero(np.bincount(self.thread))
        order = np.argsort(-totals[threads], kind="stable")
        return {int(thread): int(totals[thread]) for thread in threads[order]}

    def window(self) -> tuple[int, int] | None:
        """From the first start to the last end."""
        return (int(self.start_ns.min()), int(self.end_ns.max())) if len(self) else None


def groups(keys: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Each distinct key (signed integers), ascending, and the rows that have it, in their order."""
    rows = None if np.all(keys[1:] >= keys[:-1]) else np.argsort(keys, kind="stable")
    ordered = keys if rows is None else keys[rows]
    edges = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1, append=ordered[-1:] + 1)).tolist()
    for first, last in pairwise(edges):
        yield int(ordered[first]), slice(first, last) if rows is None else rows[first:last]


def joined(parts: list[Intervals]) -> Intervals:
    """All intervals of all parts."""
    if not parts:
        return Intervals.of([])
    if len(parts) == 1:
        return parts[0]
    return Intervals(
        np.concatenate([p.start_ns for p in parts]),
        np.concatenate([p.end_ns for p in parts]),
        np.concatenate([p.thread for p in parts]),
    )


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """The same instants as disjoint intervals in order."""
    keep = end_ns > start_ns
    start, end = start_ns[keep], end_ns[keep]
    for times in (start, end):
        times.sort(kind="stable")  # runs of a thread are merged
    # Nothing covers the moment before the i-th start if as many have ended before it as have begun.
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > end[:-1]
    return start[first], end[np.roll(first, -1)]


def union_ns(intervals: Intervals) -> int:
    """How long at least one of the intervals lasted."""
    start, end = union(intervals.start_ns, intervals.end_ns)
    return int((end - start).sum())


def overlap_ns(start_ns: Int64, end_ns: Int64, within: tuple[Int64, Int64]) -> Int64:
    """int64[n]: how much of each interval lies within disjoint, ordered intervals."""
    starts, ends = within
    if not len(starts):
        return np.zeros(len(start_ns), np.int64)
    before = np.concatenate(([0], np.cumsum(ends - starts)))

    def covered_until(time: Int64) -> Int64:
        index = np.searchsorted(starts, time, side="right")
        past = np.where(index > 0, np.maximum(ends[index - 1] - time, 0), 0)
        covered: Int64 = before[index] - past
        return covered

    found = np.empty(len(start_ns), np.int64)
    for at in range(0, len(found), BLOCK):
        rows = slice(at, at + BLOCK)
        found[rows] = covered_until(end_ns[rows]) - covered_until(start_ns[rows])
    return found


def without(spans: tuple[Int64, Int64], cut: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """What of disjoint, ordered intervals lies outside of others."""
    bounds = np.unique(np.concatenate([*spans, *cut]))
    start, end = bounds[:-1], bounds[1:]
    keep = (overlap_ns(start, end, spans) > 0) & (overlap_ns(start, end, cut) == 0)
    return union(start[keep], end[keep])


def depth(start_ns: Int64, end_ns: Int64) -> tuple[Int64, npt.NDArray[np.int32]]:
    """Distinct times, ascending, and how many of the intervals hold each moment from there to the next; at the end 0.

    Times must lie within +-2**62.
    """
    edges = np.concatenate((start_ns << 1 | 1, end_ns << 1))  # the lowest bit says that one begins
    edges.sort(kind="stable")  # runs of a thread are merged
    count = np.cumsum((edges & 1).astype(np.int8) * 2 - 1, dtype=np.int32)
    edges >>= 1
    last = np.ones(len(edges), bool)
    last[:-1] = edges[1:] != edges[:-1]
    return edges[last], count[last]


class Growth:
    """A total that grows at an even rate from each of `times` (ascending, distinct) to the next.

    rates: per ns; the last one, from the last time on, is 0, and so is what is before the first.
    """

    def __init__(self, times: Int64, rates: npt.NDArray[np.number]) -> None:
        self._first = times[:1].sum()
        self._times = (times - self._first).astype(np.float64)  # exact up to 2**53 ns
        self._totals = np.zeros(len(times))
        np.cumsum(np.diff(self._times) * rates[:-1], out=self._totals[1:])

    def within(self, start_ns: Int64, end_ns: Int64) -> npt.NDArray[np.float64]:
        """float64[n]: by how much it grew in each interval."""
        return self.until(end_ns) - self.until(start_ns)

    def until(self, times: Int64) -> npt.NDArray[np.float64]:
        """float64[n]: what it has grown to at each time."""
        if not len(self._times):
            return np.zeros(len(times))
        totals: npt.NDArray[np.float64] = np.interp(times - self._first, self._times, self._totals)
        return totals
