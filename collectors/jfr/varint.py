"""Primitive values of a JFR chunk: compressed integers (7 bits a byte, low bits first, the 9th whole), strings."""

from __future__ import annotations

from mmap import mmap

from perfscope.errors import PerfscopeError

Buffer = bytes | mmap
"""What is read from: a copy, or a mapped file that is too large to copy."""


class MalformedError(PerfscopeError):
    """Bytes that can't be what they should be. offset: within the chunk."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class StringRef(int):
    """Key of a string in the chunk's string pool, where an event refers to it instead of holding it."""


def unsigned(b: Buffer | memoryview, p: int) -> tuple[int, int]:
    """`(value, position behind it)` of a compressed unsigned 64-bit integer. IndexError behind the end."""
    value = b[p]
    if value < 128:
        return value, p + 1
    second = b[p + 1]
    if second < 128:
        return value - 128 + (second << 7), p + 2
    value += (second << 7) - 128 - (128 << 7)
    p += 2
    for shift in (14, 21, 28, 35, 42, 49):
        byte = b[p]
        p += 1
        if byte < 128:
            return value | byte << shift, p
        value |= (byte & 127) << shift
    return value | b[p] << 56, p + 1


def signed64(b: Buffer, p: int) -> tuple[int, int]:
    value, p = unsigned(b, p)
    return (value - (1 << 64) if value >> 63 else value), p


def signed32(b: Buffer, p: int) -> tuple[int, int]:
    value, p = unsigned(b, p)
    if value < 1 << 31:
        return value, p
    value &= 0xFFFFFFFF
    return (value - (1 << 32) if value >> 31 else value), p


def signed16(b: Buffer, p: int) -> tuple[int, int]:
    value, p = unsigned(b, p)
    value &= 0xFFFF
    return (value - (1 << 16) if value >> 15 else value), p


def signed8(b: Buffer, p: int) -> tuple[int, int]:
    value = b[p]
    return (value - 256 if value > 127 else value), p + 1


def string(b: Buffer, p: int) -> tuple[str | StringRef | None, int]:
    """A string in one of its encodings: null, empty, pool reference, UTF-8, UTF-16 units, Latin-1."""
    encoding = b[p]
    p += 1
    if encoding == 0:
        return None, p
    if encoding == 1:
        return "", p
    if encoding == 2:
        key, p = unsigned(b, p)
        return StringRef(key), p
    length = b[p]
    p += 1
    if length > 127:
        length, p = unsigned(b, p - 1)
    if length > len(b) - p:
        raise MalformedError(f"string of {length} bytes or characters where {len(b) - p} are left", p)
    if encoding in (3, 4, 5):
        raw = b[p : p + length]
        if raw.isascii():  # in UTF-16 units too: then each unit is one byte
            return raw.decode("ascii"), p + length
    if encoding in (3, 5):
        return raw.decode("utf-8" if encoding == 3 else "latin-1", "replace"), p + length
    if encoding == 4:
        units = bytearray()
        for _ in range(length):
            unit, p = unsigned(b, p)
            units += (unit & 0xFFFF).to_bytes(2, "little")
        return units.decode("utf-16-le", "replace"), p
    raise MalformedError(f"string of unknown encoding {encoding}", p)
