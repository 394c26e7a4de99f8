"""Compressed integers of a JFR chunk, many at once: see varint.py for one of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.collectors.jfr.varint import MalformedError

LONGEST = 9
"""Bytes of an integer at most."""


def decoded(
    byte: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Values of integers of `length` (1 to LONGEST) bytes from `start` on, the last of which is below 128."""
    values = (byte[start] & 127).astype(np.uint64)
    for nth in range(1, int(length.max(initial=0))):
        longer = np.flatnonzero(length > nth)
        values[longer] |= (byte[start[longer] + nth] & 127).astype(np.uint64) << np.uint64(7 * nth)
    return values


def all_unsigned(data: bytes) -> list[int]:
    """Values of bytes that hold integers one after the other; one that isn't whole at the end is left out."""
    byte = np.frombuffer(data, np.uint8)
    end = np.flatnonzero(byte < 128)
    length = np.diff(end, prepend=-1)
    if length.max(initial=0) > LONGEST:
        raise MalformedError(f"integer of more than {LONGEST} bytes", 0)
    values: list[int] = decoded(byte, end + 1 - length, length).tolist()
    return values
