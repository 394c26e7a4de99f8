"""Where the events of a JFR chunk are. Each begins with its size and its type's number; nothing else leads from one
to the next, so this is the one step that goes through all events one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct

import numpy as np

from perfscope.collectors.jfr.integers import LONGEST, PIECE, Bytes, Positions, Values
from perfscope.collectors.jfr.varint import Buffer, unsigned

MAGIC = b"FLR\0"
"""What a chunk begins with."""
_SIZES = tuple(size if 2 <= size < 128 and size != MAGIC[0] else 0 for size in range(256))
"""An event's size by its first byte; 0 where a closer look is needed."""
_PADDED = Struct("<I")
"""Older JVMs write all sizes in four bytes, of which the third and fourth nearly always say 0."""


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
    positions = np.fromiter(_positions(b.raw, start, end), np.int64)
    if positions[-1] > end:  # the last event ran past it
        positions = positions[:-1]
    types, starts = _types(b, positions[:-1])
    positions = positions[: len(types) + 1]
    # numpy sorts numbers of 16 bits, as nearly all are, many times as fast.
    order = np.argsort(types.astype(np.uint16) if types.max(initial=0) < 1 << 16 else types, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(types[order])) + 1) if len(order) else []
    groups.sort(key=lambda group: int(group[0]))
    return {int(types[g[0]]): Events(starts[g], positions[g + 1]) for g in groups}, int(positions[-1])


def extent(b: Buffer, start: int, end: int) -> int:
    """Where the sound events in [start, end) stop, as `walk` finds it, without what they are."""
    stop = start
    for position in _positions(b, start, end):
        if position <= end:  # the last event may run past it
            stop = position
    return stop


def _positions(b: Buffer, p: int, end: int) -> Iterator[int]:
    """Where each event begins, and where the last one ends, which may be past the end."""
    view = memoryview(b)[:end]
    sizes, padded = _SIZES, _PADDED.unpack_from
    with suppress(IndexError):
        while True:
            while size := sizes[view[p]]:
                yield p
                p += size
            word = padded(view, p)[0] if end - p >= 4 else 0
            if word & 0xFFFF8080 == 0x00808080:
                size = word & 127 | word >> 1 & 127 << 7
            else:
                size, _ = unsigned(view, p)
            if size < 2 or size > end - p or (size == MAGIC[0] and view[p : p + len(MAGIC)] == MAGIC):
                break
            yield p
            p += size
    yield p


def _types(b: Bytes, at: Positions) -> tuple[Values, Positions]:
    """Numbers of types and the positions behind them, up to one that isn't whole."""
    types, behind = np.empty(len(at), np.uint64), np.empty(len(at), np.int64)
    count = int(np.searchsorted(at, b.last - LONGEST, "right"))
    for first in range(0, count, PIECE):
        piece = slice(first, min(first + PIECE, count))
        types[piece], behind[piece] = b.integers(b.integers(at[piece])[1])
    with suppress(IndexError):
        for p in at[count:].tolist():
            types[count], behind[count] = unsigned(b.raw, unsigned(b.raw, p)[1])
            count += 1
    return types[:count], behind[:count]
