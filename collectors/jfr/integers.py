"""Compressed integers of a JFR chunk, many at once: see varint.py for one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.collectors.jfr.varint import Buffer, MalformedError

LONGEST = 9
"""Bytes of an integer at most."""
PIECE = 1 << 13
"""Positions that are best read together: what is known of them stays in the processor's cache."""

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.uint64]

_LAST = np.uint64(0x8080808080808080)
"""The bit of each byte that is clear in the last one of an integer."""
_SQUEEZE = tuple(
    (np.uint64(low), np.uint64(low << unit), np.uint64(unit // 8))
    for low, unit in ((0x007F007F007F007F, 8), (0x00003FFF00003FFF, 16), (0x000000000FFFFFFF, 32))
)
"""How 7 bits of each of 8 bytes are put together: by pairs, then pairs of pairs, ..."""


class Bytes:
    """A buffer that is read at many positions at once, each with LONGEST bytes behind it: up to `last`."""

    def __init__(self, b: Buffer) -> None:
        self.raw = b
        self.last = len(b) - LONGEST
        self.byte: npt.NDArray[np.uint8] = self.each("u1")
        self._word: Values = self.each("<u8")

    def each(self, kind: str) -> npt.NDArray[Any]:
        """What there would be of a numpy type of a fixed size at each byte; nothing is copied."""
        count = max(len(self.raw) - np.dtype(kind).itemsize + 1, 0)
        return np.ndarray(count, kind, self.raw if count else None, strides=(1,))

    def integers(self, at: Positions) -> tuple[Values, Positions]:
        """Unsigned integers at these positions, and the positions behind them."""
        first = self.byte[at]
        if first.max(initial=0) < 128:
            return first.astype(np.uint64), at + 1
        word = self._word[at]
        last = ~word & _LAST
        last &= ~last + np.uint64(1)  # the lowest such bit; none where the integer has nine bytes
        value = word & ~_LAST & ((last << np.uint64(1)) - np.uint64(1))
        for low, high, by in _SQUEEZE:
            value = value & low | (value & high) >> by
        length = (last.astype(np.float64).view(np.int64) >> 52) - 1022 >> 3  # by the exponent
        longest = np.flatnonzero(last == 0)
        value[longest] |= self.byte[at[longest] + 8].astype(np.uint64) << np.uint64(56)
        length[longest] = LONGEST
        return value, at + length


def all_unsigned(data: bytes) -> list[int]:
    """Values of bytes that hold integers one after the other; one that isn't whole at the end is left out."""
    end = np.flatnonzero(np.frombuffer(data, np.uint8) < 128)
    start = np.concatenate([[0], end + 1])[:-1]
    if (end - start).max(initial=0) >= LONGEST:
        raise MalformedError(f"integer of more than {LONGEST} bytes", 0)
    b = Bytes(data + bytes(LONGEST))
    values: list[int] = []
    for first in range(0, len(start), PIECE):
        values += b.integers(start[first : first + PIECE])[0].tolist()
    return values
