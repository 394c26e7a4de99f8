"""Arithmetic on sets of half-open time intervals, as arrays. All times in nanoseconds."""

from __future__ import annotations

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

    def where(self, mask: npt.NDArray[np.bool_]) -> Intervals:
        return Intervals(self.start_ns[mask], self.end_ns[mask], self.thread[mask])

    def within(self, starts: Int64, ends: Int64) -> Intervals:
        """The parts that lie within disjoint, ordered intervals [starts, ends)."""
        parts = []
        for at in range(0, len(self), BLOCK):
            start, end, thread = (c[at : at + BLOCK] for c in (self.start_ns, self.end_ns, self.thread))
            first = np.searchsorted(ends, start, side="right")
            count = np.maximum(np.searchsorted(starts, end, side="left") - first, 0)
            mine = np.repeat(np.arange(len(start)), count)
            other = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
            parts.append(
                Intervals(np.maximum(start[mine], starts[other]), np.minimum(end[mine], ends[other]), thread[mine])
            )
        return joined(parts)

    def split(self) -> dict[int, Intervals]:
        """Thread -> its intervals, in their order."""
        order = np.argsort(self.thread, kind="stable")
        threads, first = np.unique(self.thread[order], return_index=True)
        return {
            int(thread): Intervals(self.start_ns[rows], self.end_ns[rows], self.thread[rows])
            for thread, rows in zip(threads, np.split(order, first[1:]), strict=False)  # of none there is one part
        }

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
    start, end = (np.sort(times[keep], kind="stable") for times in (start_ns, end_ns))  # runs of a thread are merged
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


def shared_ns(part: Intervals, whole: Intervals) -> float:
    """Integral over time of (part's depth / depth of part and whole together): each instant shared by all in it.

    `part` and `whole` must not overlap within a thread.
    """
    edges = [np.sort(t, kind="stable") for t in (part.start_ns, part.end_ns, whole.start_ns, whole.end_ns)]
    blocks = np.unique(np.concatenate([times[::BLOCK] for times in edges] + [times[-1:] for times in edges]))
    shared = 0.0
    for low, high in pairwise(blocks.tolist()):
        # Of each kind the edges in the block, and how many came before it.
        rows = [slice(*np.searchsorted(times, (low, high))) for times in edges]
        counts = [r.stop - r.start for r in rows]
        times = np.concatenate([[low], *(times[r] for times, r in zip(edges, rows, strict=True))])
        in_part = np.repeat((rows[0].start - rows[1].start, 1, -1, 0, 0), [1, *counts])
        in_whole = np.repeat((rows[2].start - rows[3].start, 0, 0, 1, -1), [1, *counts])
        order = np.argsort(times, kind="stable")
        depth_part, depth_whole = np.cumsum(in_part[order]), np.cumsum(in_whole[order])
        lengths = np.diff(times[order], append=high)
        live = (depth_part > 0) & (lengths > 0)
        shared += float((lengths[live] * (depth_part[live] / (depth_part[live] + depth_whole[live]))).sum())
    return shared
