"""Many events of one type at once: the compressed integers of thousands of events read as columns.

Reading value by value takes most of its time in Python's own steps; most events hold nothing but such integers. Types
with arrays, bytes, floats or more text than one at the end are left to the readers of compiler.py, as are events that
are damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from perfscope.collectors.jfr.integers import LONGEST, decoded
from perfscope.collectors.jfr.metadata import STRING, Field, Metadata, Type
from perfscope.collectors.jfr.varint import Buffer, MalformedError, string

FEW = 100
"""Of fewer events, reading each alone is quicker."""
_PIECE = 1 << 18
"""Bytes looked at together: they take some 30 times as much memory."""
_HEADER = 2
"""Integers before an event's fields: its size and its type."""
_USUAL = 4
"""Bytes of an integer, on average over an event: nearly always at most."""

_TEXT = "text"

_Values = npt.NDArray[np.uint64]
_AS: dict[str, Callable[[_Values], npt.NDArray[Any]]] = {
    "long": lambda v: v.astype(np.int64),
    "int": lambda v: v.astype(np.uint32).astype(np.int32),
    "short": lambda v: v.astype(np.uint16).astype(np.int16),
    "char": lambda v: v,
    "boolean": lambda v: v != 0,
}


@dataclass
class Columns:
    """Where the wanted fields of a type are among its integers. wanted: a column and its kind, or those of a structure.

    width: integers of an event, its header included. single: those that are one byte, whatever it holds. text: whether
    a text follows them, whose column is _TEXT.
    """

    wanted: list[Any]
    width: int
    single: list[int]
    text: bool = False

    @classmethod
    def of(cls, metadata: Metadata, type_: Type, wanted: Collection[str]) -> Columns | None:
        """Those of the fields in `wanted`, in the type's order; None if it holds other things than these.

        type_: one that compile_reader takes, so neither endless nor too large.
        """
        found = cls([], _HEADER, [])
        for number, field in enumerate(type_.fields, 1):
            column = found._add(metadata, field)
            if number == len(type_.fields) and not (field.array or field.pooled):
                found.text = metadata.types[field.type_id].name == STRING
                column = _TEXT if found.text else column
            if column is None:
                return None
            if field.name in wanted:
                found.wanted.append(column)
        return found

    def _add(self, metadata: Metadata, field: Field) -> Any:
        type_ = metadata.types[field.type_id]
        if field.array:
            return None
        if field.pooled or type_.name in _AS:
            kind = "char" if field.pooled else type_.name
            if kind == "boolean":
                self.single.append(self.width)
            self.width += 1
            return self.width - 1, kind
        parts = [self._add(metadata, part) for part in type_.fields]
        return None if not parts or None in parts else parts

    def rows(self, b: Buffer, positions: Sequence[int]) -> Iterator[tuple[Sequence[int], list[tuple[Any, ...]] | None]]:
        """Positions of some events after the other, and their rows; None where one of them is not as it should be."""
        buffer = np.frombuffer(b, np.uint8)  # type: ignore[call-overload]  # any buffer
        events = max(_PIECE // (self.width * LONGEST), 1)
        for first in range(0, len(positions), events):
            piece = positions[first : first + events]
            yield piece, self._rows(b, buffer, np.asarray(piece, np.int64))

    def _rows(
        self, b: Buffer, buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]
    ) -> list[tuple[Any, ...]] | None:
        found = _integers(buffer, positions, self.width, self.single)
        if found is None:
            return None
        values, behind = found
        texts: list[Any] = []
        if self.text:
            try:
                texts = _texts(b, behind, positions + values[:, 0].astype(np.int64))
            except (MalformedError, IndexError):
                return None
        columns = [texts if column is _TEXT else _listed(values, column) for column in self.wanted]
        return list(zip(*columns, strict=True)) if columns else [()] * len(positions)


def _texts(b: Buffer, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> list[Any]:
    """Texts in [start, end) of the buffer, of which most are alike: each is read once."""
    known: dict[bytes, Any] = {}
    texts = []
    for first, last in zip(start.tolist(), end.tolist(), strict=True):
        raw = bytes(b[first:last])  # type: ignore[index]  # any buffer
        if raw not in known:
            known[raw] = string(raw, 0)[0]
        texts.append(known[raw])
    return texts


def _listed(values: _Values, column: Any) -> list[Any]:
    if isinstance(column, list):
        return list(zip(*(_listed(values, part) for part in column), strict=True))
    number, kind = column
    listed: list[Any] = _AS[kind](values[:, number]).tolist()
    return listed


def _integers(
    buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int, single: list[int]
) -> tuple[_Values, npt.NDArray[np.int64]] | None:
    """uint64[events, width]: the first integers of each event; int64[events]: positions behind these.

    None if some event is shorter than these or damaged, or so near the buffer's end that it might be.
    """
    for reach in (width * _USUAL, width * LONGEST):
        if positions[-1] + reach > len(buffer):
            return None
        byte = sliding_window_view(buffer, reach)[positions].ravel()
        last = byte < 128  # of an integer, but for those of nine bytes whose last one is any
        count = np.count_nonzero(last.reshape(-1, reach), axis=1)
        if count.min() >= width:
            break
    else:
        return None
    end = np.flatnonzero(last)[(np.cumsum(count) - count)[:, None] + np.arange(width)]
    row = np.arange(len(positions)) * reach
    start = np.column_stack([row, end[:, :-1] + 1])
    length = end - start + 1
    if length.max() > LONGEST or (length[:, single] > 1).any():
        return None
    table = decoded(byte, start.ravel(), length.ravel()).reshape(-1, width)
    read = end[:, -1] + 1 - row
    return (table, positions + read) if (read <= table[:, 0].astype(np.int64)).all() else None
