"""CPython's code objects: what they are called, and which line an instruction is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """A Python code object. linetable: CPython's location table (3.11+)."""

    file: str
    name: str
    first_line: int
    linetable: bytes

    def line(self, instruction: int) -> int | None:
        """Source line of a code unit's index, or None where the table gives none."""
        line, at, unit = self.first_line, 0, 0
        table = self.linetable
        while at < len(table):
            head = table[at]
            form, length = head >> 3 & 15, (head & 7) + 1
            at += 1
            here: int | None = line
            if form == 15:
                here = None
            elif form >= 13:
                delta, at = _signed(table, at)
                line += delta
                here = line
                if form == 14:
                    for _ in range(3):
                        _, at = _unsigned(table, at)
            elif form >= 10:
                line += form - 10
                here = line
                at += 2
            else:
                at += 1
            if unit <= instruction < unit + length:
                return here
            unit += length
        return self.first_line


def _unsigned(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        if shift < 60:  # no line or column is larger: what claims to be is broken
            value |= (byte & 63) << shift
            shift += 6
        if not byte & 64:
            break
    return value, at


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(table, at)
    return (-(value >> 1) if value & 1 else value >> 1), at
