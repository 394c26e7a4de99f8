"""Where the events of a JFR chunk are. Each begins with its size and its type's number; nothing else leads from one
to the next, so this is the one step that goes through all events one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from perfscope.collectors.jfr.integers import Bytes, Positions, Values
from perfscope.collectors.jfr.varint import Buffer, unsigned

MAGIC = b"FLR\0"
"""What a chunk begins with."""
_SIZES = tuple(size if 2 <= size < 128 and size != MAGIC[0] else 0 for size in range(256))
"""An event's size by its first byte; 0 where a closer look is needed."""


@dataclass(frozen=True)
class Events:
    """Where the events of one type are: what stands behind their type's number, and their ends."""

    start: Positions
    end: Positions

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, part: slice) -> Events:
        return Events(self.start[part], self.end[part])

    def spans(self) -> Iterator[tuple[int, int]]:
        """Each event's start and end."""
        return zip(self.start.tolist(), self.end.tolist(), strict=True)


def walk(b: Bytes, start: int, end: int) -> tuple[dict[int, Events], int]:
    """Events in [start, end) by their type's number, and where the sound ones stop."""
    positions, numbers_at, stop = _sizes(b.raw, start, end)
    types, starts = _types(b, numbers_at)
    if len(types) < len(positions):
        stop = int(positions[len(types)])
    ends = np.append(positions, stop)[1 : len(types) + 1]
    # numpy sorts numbers of 16 bits, as nearly all are, many times as fast.
    order = np.argsort(types.astype(np.uint16) if types.max(initial=0) < 1 << 16 else types, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(types[order])) + 1) if len(order) else []
    groups.sort(key=lambda group: int(group[0]))
    return {int(types[group[0]]): Events(starts[group], ends[group]) for group in groups}, stop


def _sizes(b: Buffer, p: int, end: int) -> tuple[Positions, Positions, int]:
    """Positions of the events, of their types' numbers, and the end of the last one."""
    found = array("q")
    append = found.append
    far: dict[int, int] = {}  # number of an event whose size takes several bytes -> where its type's number is
    sizes = _SIZES
    try:
        while p < end:
            size = sizes[b[p]]
            if not size:
                size, behind = unsigned(b, p)
                if size < 2 or size > end - p or b[p : p + len(MAGIC)] == MAGIC:
                    break
                far[len(found)] = behind
            append(p)
            p += size
    except IndexError:
        pass
    if p > end:
        p = found.pop()
    positions = np.array(found, np.int64)
    numbers = positions + 1
    numbers[list(far)] = list(far.values())
    return positions, numbers, p


def _types(b: Bytes, at: Positions) -> tuple[Values, Positions]:
    """Numbers of types and the positions behind them, up to one that isn't whole."""
    many = int(np.searchsorted(at, b.last, "right"))
    types, behind = b.integers(at[:many])
    rest = []
    with suppress(IndexError):
        rest = [unsigned(b.raw, p) for p in at[many:].tolist()]
    return (
        np.append(types, np.array([t for t, _ in rest], np.uint64)),
        np.append(behind, np.array([p for _, p in rest], np.int64)),
    )
