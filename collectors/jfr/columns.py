"""Events of one type as columns: a field of thousands of events is read at once, then the next one behind it.

Reading value by value takes most of its time in Python's own steps. Types with arrays are left to the readers of
compiler.py, as are events that are few or damaged, or hold a text of UTF-16 units beyond ASCII: their rows are turned
into the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from perfscope.collectors.jfr.integers import Bytes, Values
from perfscope.collectors.jfr.metadata import STRING, Field, Metadata, Type
from perfscope.collectors.jfr.varint import MalformedError, StringRef, string
from perfscope.collectors.jfr.walk import Events

FEW = 100
"""Of fewer events, reading each alone is quicker."""

Column = Union[npt.NDArray[Any], Sequence[Any], "Piece", None]
"""A field of many events: numbers, a list of texts or arrays, the fields of a structure; None if the type lacks it."""

_KEY = "key of a constant"
_INTEGERS: dict[str, Callable[[Values], npt.NDArray[Any]]] = {
    _KEY: lambda v: v,
    "long": lambda v: v.view(np.int64),
    "int": lambda v: v.astype(np.uint32).view(np.int32),
    "short": lambda v: v.astype(np.uint16).view(np.int16),
    "char": lambda v: v,
}
_UNITS = 4
"""Encoding of a text as UTF-16 units, each an integer: one byte in ASCII, and so the text's length is that in bytes."""
_FIXED = {"boolean": "u1", "byte": "i1", "float": ">f4", "double": ">f8"}
_NUMBERS: dict[Any, Any] = {
    _KEY: np.uint64,
    "long": np.int64,
    "int": np.int32,
    "short": np.int16,
    "char": np.uint64,
    "boolean": np.bool_,
    "byte": np.int8,
    "float": np.float64,
    "double": np.float64,
}
"""Types of the columns of numbers; all others are lists."""

_Kind = str | tuple["_Kind", ...] | None
"""Name of a primitive type, STRING or _KEY; those of all fields of a structure; None for what can't be read so."""


@dataclass(frozen=True)
class Piece:
    """Some events of a type in file order: their number, and a column for each field asked for."""

    count: int
    columns: list[Column]

    def where(self, keep: npt.NDArray[np.bool_]) -> Piece:
        """Those events for which `keep` is true."""
        return self if keep.all() else Piece(int(keep.sum()), [_where(column, keep) for column in self.columns])

    def rows(self) -> list[tuple[Any, ...]]:
        """The same, a tuple an event."""
        if not self.columns:
            return [()] * self.count
        return list(zip(*(listed(column, self.count) for column in self.columns), strict=True))


def _where(column: Column, keep: npt.NDArray[np.bool_]) -> Column:
    if isinstance(column, np.ndarray):
        return column[keep]
    if isinstance(column, Piece):
        return column.where(keep)
    return None if column is None else list(compress(column, keep))


def listed(column: Column, count: int) -> Sequence[Any]:
    """Values of a column, one an event, as Python has them."""
    if isinstance(column, np.ndarray):
        values: list[Any] = column.tolist()
        return values
    if isinstance(column, Piece):
        return column.rows()
    return [None] * count if column is None else column


class Layout:
    """How the fields of a type are read as columns."""

    def __init__(self, metadata: Metadata, type_: Type) -> None:
        """type_: one that compile_reader takes, so neither endless nor too large."""
        self.kinds = {field.name: _kind(metadata, field) for field in type_.fields}
        self.together = None not in self.kinds.values()

    def read(self, b: Bytes, events: Events, wanted: Sequence[str]) -> Piece:
        """Raises MalformedError if one of the events can't be read together with the others."""
        if events.end[-1] > b.last:
            raise MalformedError("too near the end", b.last)
        cursor = _Cursor(b, events)
        read = {name: cursor.column(kind, name in wanted) for name, kind in self.kinds.items()}
        return Piece(len(events), [read.get(name) for name in wanted])

    def transposed(self, rows: list[tuple[Any, ...]], wanted: Sequence[str]) -> Piece:
        """The same of rows that were read one by one."""
        columns = zip(*rows, strict=True) if rows else repeat((), len(wanted))
        made = [
            _column(self.kinds[name], values) if name in self.kinds else None
            for name, values in zip(wanted, columns, strict=True)
        ]
        return Piece(len(rows), made)


def _column(kind: _Kind, values: Sequence[Any]) -> Column:
    if isinstance(kind, tuple):
        parts = zip(*values, strict=True) if values else repeat((), len(kind))
        return Piece(len(values), [_column(part, of_part) for part, of_part in zip(kind, parts, strict=True)])
    number = _NUMBERS.get(kind)
    return values if number is None else np.array(values, number)


def _kind(metadata: Metadata, field: Field) -> _Kind:
    type_ = metadata.types[field.type_id]
    if field.array:
        return None
    if field.pooled:
        return _KEY
    if type_.name == STRING or (type_.name in _NUMBERS and type_.name != _KEY):
        return type_.name
    parts = tuple(_kind(metadata, part) for part in type_.fields)
    return parts if parts and None not in parts else None


class _Cursor:
    """A position in each of many events, moved on field by field."""

    def __init__(self, b: Bytes, events: Events) -> None:
        self.b = b
        self.at = events.start
        self.end = events.end
        self._check()

    def column(self, kind: _Kind, keep: bool) -> Column:
        """The next field of all events; None unless it is to be kept."""
        if isinstance(kind, tuple):
            parts = [self.column(part, keep) for part in kind]
            return Piece(len(self.at), parts) if keep else None
        if kind == STRING:
            return self._texts(keep)
        assert kind is not None, "the layout can't be read together"
        if kind in _FIXED:
            fixed = self.b.each(_FIXED[kind])[self.at]
            self.at = self.at + fixed.itemsize
            self._check()
            return fixed.astype(_NUMBERS[kind]) if keep else None
        values, self.at = self.b.integers(self.at)
        self._check()
        return _INTEGERS[kind](values) if keep else None

    def _texts(self, keep: bool) -> list[str | StringRef | None] | None:
        start = self.at
        encoding = self.b.byte[start]
        self.at = start + 1
        self._check()
        if (encoding > 5).any():
            raise MalformedError("text of unknown encoding", 0)
        number, behind = self.b.integers(self.at)  # a length, or a key
        length = np.where(encoding > 2, number, 0)
        if (length > len(self.b.byte)).any():
            raise MalformedError("text runs past the end", 0)
        self.at = np.where(encoding < 2, self.at, behind + length.astype(np.int64))
        self._check()
        if not keep and not (encoding == _UNITS).any():
            return None
        raw, known = self.b.raw, _Texts()
        return [known[raw[first:last]] for first, last in zip(start.tolist(), self.at.tolist(), strict=True)]

    def _check(self) -> None:
        if (self.at > self.end).any():
            raise MalformedError("event runs past its end", 0)


class _Texts(dict[bytes, str | StringRef | None]):
    """Texts by their bytes: most are alike, and each is read once."""

    def __missing__(self, raw: bytes) -> str | StringRef | None:
        if raw[0] == _UNITS and not raw.isascii():
            raise MalformedError("UTF-16 units of several bytes", 0)
        text = self[raw] = string(raw, 0)[0]
        return text
