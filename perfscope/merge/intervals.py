"""Half-open intervals [start, end) of int64 nanoseconds as pairs of arrays, and questions about them, vectorised."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FAR = 1 << 61
"""No time of a recording lies beyond +-FAR ns (73 years): bounding by it keeps sums of two times within int64."""


class Intervals(NamedTuple):
    """Disjoint intervals in time order. row: the input row each one came from."""

    start: Ints
    end: Ints
    row: npt.NDArray[np.intp]


def bounded(times: npt.ArrayLike) -> Ints:
    """int64 times, those beyond +-FAR moved there: damaged input must not overflow into a plausible time."""
    return np.clip(np.asarray(times, np.int64), -FAR, FAR)


def earliest_wins(start: Ints, end: Ints) -> Intervals:
    """Makes intervals disjoint: where several cover a moment, the one that started first (then: stood first) has it."""
    row = np.argsort(start, kind="stable")
    start, end = start[row], end[row]
    if len(row) > 1:
        covered_to = np.maximum.accumulate(end)[:-1]
        start = start.copy()
        np.maximum(start[1:], covered_to, out=start[1:])
    return nonempty(start, end, row)


def latest_wins(start: Ints, end: Ints) -> Intervals:
    """Makes intervals disjoint: each lasts to its end or to the start of the next, whichever comes first."""
    row = np.argsort(start, kind="stable")
    start, end = start[row], end[row].copy()
    np.minimum(end[:-1], start[1:], out=end[:-1])
    return nonempty(start, end, row)


def nonempty(start: Ints, end: Ints, row: npt.NDArray[np.intp]) -> Intervals:
    """Those of the intervals that hold a moment; they must be disjoint and in time order already."""
    keep = end > start
    return Intervals(start[keep], end[keep], row[keep])


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """The parts of the intervals that lie in [low, high)."""
    near = slice(np.searchsorted(intervals.end, low, "right"), np.searchsorted(intervals.start, high))
    start, end, row = (column[near] for column in intervals)
    return nonempty(np.clip(start, low, high), np.clip(end, low, high), row)


def row_at(intervals: Intervals, times: Ints) -> npt.NDArray[np.intp]:
    """For each time the input row whose interval holds it, or -1."""
    if not len(intervals.start):
        return np.full(len(times), -1, np.intp)
    index = np.searchsorted(intervals.start, times, "right") - 1
    return np.where((index >= 0) & (times < intervals.end[index]), intervals.row[index], -1)


def index_at_bounds(start: Ints, bounds: Ints) -> npt.NDArray[np.intp]:
    """For each of the ascending `bounds` the index of the last of the ascending starts not after it, or -1.

    Counting: cheaper than a search for each bound where these are many.
    """
    first = np.searchsorted(bounds, start)
    counts = np.bincount(first, minlength=len(bounds) + 1)[: len(bounds)]
    return np.cumsum(counts) - 1


def distinct(values: Ints) -> Ints:
    """The distinct values, ascending: by sorting, which beats np.unique's hashing here by far."""
    values = np.sort(values)
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return values[new]
