"""Arithmetic on sets of half-open time intervals, as arrays. All times in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """n intervals [start_ns, end_ns), each of one thread (index into Facts.threads); int64[n] each.

    Those of one thread don't overlap each other.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64

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

    def where(self, mask: npt.NDArray[np.bool_]) -> Intervals:
        return Intervals(self.start_ns[mask], self.end_ns[mask], self.thread[mask])

    def within(self, starts: Int64, ends: Int64) -> Intervals:
        """The parts that lie within disjoint, ordered intervals [starts, ends)."""
        first = np.searchsorted(ends, self.start_ns, side="right")
        count = np.maximum(np.searchsorted(starts, self.end_ns, side="left") - first, 0)
        mine = np.repeat(np.arange(len(self)), count)
        other = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        return Intervals(
            np.maximum(self.start_ns[mine], starts[other]),
            np.minimum(self.end_ns[mine], ends[other]),
            self.thread[mine],
        )

    def by_thread(self) -> dict[int, int]:
        """Thread -> total length of its intervals, longest first."""
        if not len(self):
            return {}
        threads, index = np.unique(self.thread, return_inverse=True)
        totals = np.zeros(len(threads), np.int64)
        np.add.at(totals, index, self.end_ns - self.start_ns)
        order = np.argsort(-totals, kind="stable")
        return {int(threads[i]): int(totals[i]) for i in order}

    def window(self) -> tuple[int, int] | None:
        """From the first start to the last end."""
        return (int(self.start_ns.min()), int(self.end_ns.max())) if len(self) else None


def joined(parts: list[Intervals]) -> Intervals:
    """All intervals of all parts."""
    if not parts:
        return Intervals.of([])
    return Intervals(
        np.concatenate([p.start_ns for p in parts]),
        np.concatenate([p.end_ns for p in parts]),
        np.concatenate([p.thread for p in parts]),
    )


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """The same instants as disjoint intervals in order."""
    keep = end_ns > start_ns
    start_ns, end_ns = start_ns[keep], end_ns[keep]
    if not len(start_ns):
        return start_ns, end_ns
    order = np.argsort(start_ns, kind="stable")
    start, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


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

    return covered_until(end_ns) - covered_until(start_ns)


def shared_ns(part: Intervals, whole: Intervals) -> float:
    """Integral over time of (part's depth / depth of part and whole together): each instant shared by all in it.

    `part` and `whole` must not overlap within a thread.
    """
    times = np.concatenate((part.start_ns, part.end_ns, whole.start_ns, whole.end_ns))
    if not len(times):
        return 0.0
    up, down = np.ones(len(part), np.int64), np.ones(len(whole), np.int64)
    zeros = np.zeros(2 * len(whole), np.int64)
    in_part = np.concatenate((up, -up, zeros))
    in_both = np.concatenate((up, -up, down, -down))
    order = np.argsort(times, kind="stable")
    times = times[order]
    depth_part = np.cumsum(in_part[order])[:-1]
    depth_both = np.cumsum(in_both[order])[:-1]
    lengths = np.diff(times)
    live = (depth_part > 0) & (lengths > 0)
    return float((lengths[live] * depth_part[live] / depth_both[live]).sum())
