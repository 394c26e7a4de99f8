"""The container of an .ncu-rep file: how much of it is sound.

NVIDIA's reader stops without a word where a file is cut off or damaged. The container is simple enough to count what
should be there: "NVR\\0", a sized header, and blocks. A block is a sized protobuf message that says how many sources
(field 1) and results (field 2) of what total size (field 5) follow it, each with its own size. Sizes are 32 bits,
little endian. Worked out from files of ncu 2025.3; of another version that differs only `end` can be wrong, which
costs a note.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_SIZE = struct.Struct("<I")
MAGIC = b"NVR\0"


@dataclass(frozen=True)
class Container:
    """results: launches in whole blocks. damaged_at: offset of the first block that isn't whole; None if all are."""

    results: int
    damaged_at: int | None


def examine(path: Path) -> Container:
    """Walks the blocks of a file. Raises OSError or ValueError if it can't be mapped."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        if size < 8:
            return Container(0, 0)
        at, results = 8 + _SIZE.unpack_from(data, 4)[0], 0
        while at < size:
            if at + 4 > size:
                return Container(results, at)
            head = at + 4
            payload = head + _SIZE.unpack_from(data, at)[0]
            fields = _numbers(data[head:payload]) if payload <= size else None
            if fields is None:
                return Container(results, at)
            end = payload + fields.get(5, 0)
            if end > size or not _items(data, payload, end, fields.get(1, 0) + fields.get(2, 0)):
                return Container(results, at)
            results += fields.get(2, 0)
            at = end
        return Container(results, None if at == size else at)


def _items(data: mmap.mmap, at: int, end: int, count: int) -> bool:
    """True if exactly `count` sized items fill [at, end)."""
    for _ in range(count):
        if at + 4 > end:
            return False
        at += 4 + _SIZE.unpack_from(data, at)[0]
    return at == end


def _numbers(message: bytes) -> dict[int, int] | None:
    """The integer fields of a protobuf message; None if it isn't one."""
    fields: dict[int, int] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            fields[tag >> 3] = value
        elif kind == 2:
            length, at = _varint(message, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return None
    return fields if at == len(message) else None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A base-128 number and where it ends; one that runs over the message's end ends beyond it."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    return value, len(message) + 1
