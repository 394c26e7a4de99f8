"""Streaming reader of JFR files (format 2.0 and 2.1): one self-contained chunk after the other, in bounded memory.

A chunk is a header, then sized events: type 0 is metadata (the types of all others), type 1 a checkpoint (constants:
threads, stacks, methods, ...), all others what was recorded. The events are walked once in file order, so chains of
checkpoints need not be followed, and a file that was cut off or whose header was never completed is read as far as
it is sound.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.collectors.jfr import metadata as types
from perfscope.collectors.jfr.columns import FEW, Columns
from perfscope.collectors.jfr.compiler import Reader, compile_reader
from perfscope.collectors.jfr.metadata import Metadata
from perfscope.collectors.jfr.varint import Buffer, MalformedError, unsigned
from perfscope.errors import InputError

MAGIC = b"FLR\0"
_HEADER = struct.Struct(">4sHHqqqqqqqI")
COPY_LIMIT = 64 << 20
"""Chunks up to this many bytes are copied to memory, which reads faster than the mapped file; HotSpot's have ~12 MB."""
POOL_LIMIT = 4_000_000
"""Constants kept a chunk; what goes beyond is lost and said so."""


@dataclass(frozen=True)
class Header:
    """Header of a chunk. size_bytes is 0 while the JVM writes it. Ticks are the JVM's own clock."""

    offset: int
    major: int
    minor: int
    size_bytes: int
    start_ns: int
    duration_ns: int
    start_ticks: int
    ticks_per_second: int


@dataclass
class Chunk:
    """One chunk in memory. `losses` says what of it could not be read, each sentence with its offset in the file."""

    header: Header
    buffer: Buffer
    metadata: Metadata = field(default_factory=Metadata)
    losses: list[str] = field(default_factory=list)
    damaged_events: int = 0
    events_total: int = 0
    _positions: dict[int, array[int]] = field(default_factory=dict)
    _pools: dict[int, dict[int, tuple[Any, ...]]] = field(default_factory=dict)

    def count(self, name: str) -> int:
        """Events of a type, e.g. "jdk.ExecutionSample"."""
        type_ = self.metadata.by_name.get(name)
        return len(self._positions.get(type_.id, ())) if type_ else 0

    def event_names(self) -> list[str]:
        """Names of all types that have events in the chunk."""
        return [self.metadata.types[i].name for i in self._positions if i in self.metadata.types]

    def rows(self, name: str, wanted: Collection[str]) -> Iterator[tuple[Any, ...]]:
        """Events of a type in file order, as tuples of the fields in `wanted` in that order; None for one it lacks.

        Constants are keys for `pool`. Events that can't be read are counted in `damaged_events`.
        """
        type_ = self.metadata.by_name.get(name)
        positions = self._positions.get(type_.id) if type_ else None
        if type_ is None or not positions:
            return
        present = [f.name for f in type_.fields if f.name in wanted]
        if len(set(present)) != len(present):
            self.losses.append(f"{name}: two fields of one name; its {len(positions)} events are left out")
            return
        try:
            read = compile_reader(self.metadata, type_, present)
        except MalformedError as error:
            self.losses.append(f"{name}: {error}; its {len(positions)} events are left out")
            return
        rows = self._rows(read, Columns.of(self.metadata, type_, present) if len(positions) >= FEW else None, positions)
        order = [present.index(w) if w in present else len(present) for w in wanted]
        if order == list(range(len(present))):
            yield from rows
        else:
            for values in rows:
                values += (None,)
                yield tuple([values[i] for i in order])

    def _rows(self, read: Reader, columns: Columns | None, positions: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        if columns is None:
            yield from self._one_by_one(read, positions)
            return
        for piece, rows in columns.rows(self.buffer, positions):
            yield from self._one_by_one(read, piece) if rows is None else rows

    def _one_by_one(self, read: Reader, positions: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        b = self.buffer
        for position in positions:
            try:
                size, p = unsigned(b, position)
                _, p = unsigned(b, p)
                values, p = read(b, p)
                if p > position + size:
                    raise MalformedError("event runs past its end", position)
            except (MalformedError, IndexError, struct.error):
                self.damaged_events += 1
                continue
            yield values

    def pool(self, name: str) -> dict[int, tuple[Any, ...]]:
        """Constants of a type by key, as tuples of the fields asked for when the file was opened."""
        type_ = self.metadata.by_name.get(name)
        return self._pools.get(type_.id, {}) if type_ else {}

    def field_names(self, name: str) -> list[str]:
        """All fields of a type, in order; empty if the chunk has no such type."""
        type_ = self.metadata.by_name.get(name)
        return [f.name for f in type_.fields] if type_ else []


class JfrFile:
    """A .jfr file. Iterating gives its chunks, one in memory at a time.

    events: names of the events to be read (None: all). constants: type name -> fields kept of its constants (None:
        all fields); constants of other types are skipped; None: all of all types.
    losses: what of the file could not be read; complete after the iteration.
    """

    def __init__(
        self,
        path: Path,
        events: Collection[str] | None = None,
        constants: dict[str, tuple[str, ...] | None] | None = None,
    ) -> None:
        self.path = path
        self.events = events
        self.constants = constants
        self.losses: list[str] = []
        self.damaged_events = 0
        self._readers: dict[int, tuple[Metadata, dict[int, Reader | None]]] = {}

    def __iter__(self) -> Iterator[Chunk]:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size == 0:
                    raise InputError(f"{self.path}: empty", hint="a JVM that was killed leaves such a file")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    yield from self._chunks(data, size)
        except OSError as error:
            raise InputError(f"{self.path}: can't be read: {error.strerror or error}") from None

    def _chunks(self, data: mmap.mmap, size: int) -> Iterator[Chunk]:
        offset = 0
        while offset < size:
            try:
                header = parse_header(data, offset, size)
            except MalformedError as error:
                if offset == 0:
                    raise InputError(f"{self.path}: not a JFR file: {error} at offset {error.offset}") from None
                self.losses.append(f"{error} at offset {offset}; {size - offset} bytes left out")
                return
            end = offset + header.size_bytes
            sound = header.size_bytes > _HEADER.size and (end == size or data[end : end + len(MAGIC)] == MAGIC)
            # A chunk that was being written has 0 there, or its size at the last flush (one a second): its events
            # then tell how far it goes.
            length = header.size_bytes if sound else size - offset
            buffer: Buffer = data
            base = offset
            if length <= COPY_LIMIT:
                buffer, base = data[offset : offset + length], 0
            chunk = Chunk(header, buffer)
            walked = self._read(chunk, base, base + length) - base
            if not sound:
                if offset + walked < size and data[offset + walked : offset + walked + len(MAGIC)] != MAGIC:
                    following = data.find(MAGIC + b"\0\2", offset + walked)
                    length = (following if following > 0 else size) - offset
                else:
                    length = walked
                what = "is cut off" if header.size_bytes > length else "was never finished"
                chunk.losses.append(f"chunk at offset {offset} {what}: read as far as its events go")
            yield chunk
            if chunk.damaged_events:
                chunk.losses.append(f"chunk at offset {offset}: {chunk.damaged_events} damaged events left out")
                self.damaged_events += chunk.damaged_events
            self.losses += chunk.losses
            offset += length

    def _read(self, chunk: Chunk, start: int, end: int) -> int:
        """Fills a chunk; the position at which its sound events end."""
        metadata_at, checkpoints, stop = self._walk(chunk, start, end)
        b = chunk.buffer
        for position in reversed(metadata_at):
            try:
                size, _ = unsigned(b, position)
                chunk.metadata = types.parse(bytes(b[position : position + size]))  # type: ignore[index]  # any buffer
                break
            except (MalformedError, IndexError) as error:
                chunk.losses.append(f"metadata at offset {chunk.header.offset + position - start}: {_say(error)}")
        else:
            chunk.losses.append(
                f"chunk at offset {chunk.header.offset} has no readable metadata: "
                f"its {chunk.events_total} events are left out"
            )
            chunk._positions.clear()
            return stop
        if self.events is not None:
            keep = {t.id for n in self.events if (t := chunk.metadata.by_name.get(n))}
            chunk._positions = {i: p for i, p in chunk._positions.items() if i in keep}
        unknown = [i for i in chunk._positions if i not in chunk.metadata.types]
        if unknown:
            chunk.damaged_events += sum(len(chunk._positions.pop(i)) for i in unknown)
        for position in checkpoints:
            try:
                self._checkpoint(chunk, position)
            except (MalformedError, IndexError, struct.error) as error:
                chunk.losses.append(f"constants at offset {chunk.header.offset + position - start}: {_say(error)}")

        return stop

    @staticmethod
    def _walk(chunk: Chunk, start: int, end: int) -> tuple[list[int], array[int], int]:
        """Positions of metadata and checkpoints; those of all other events go into the chunk by type id."""
        b, p = chunk.buffer, start + _HEADER.size
        metadata_at: list[int] = []
        checkpoints = array("q")
        positions = chunk._positions
        total, magic = 0, MAGIC[0]
        while p < end:
            try:
                size = b[p]
                q = p + 1
                if size > 127:
                    size, q = unsigned(b, p)
                type_ = b[q]
                if type_ > 127:
                    high = b[q + 1]
                    type_ = type_ & 127 | high << 7 if high < 128 else unsigned(b, q)[0]
            except IndexError:
                size = 0
            if size == magic and bytes(b[p : p + len(MAGIC)]) == MAGIC:  # type: ignore[index]  # any buffer
                break
            if size < 2 or size > end - p:
                chunk.losses.append(
                    f"no sound event at offset {chunk.header.offset + p - start}: {end - p} bytes left out"
                )
                break
            if type_ > 1:
                known = positions.get(type_)
                if known is None:
                    known = positions[type_] = array("q")
                known.append(p)
                total += 1
            elif type_ == 1:
                checkpoints.append(p)
            else:
                metadata_at.append(p)
            p += size
        chunk.events_total = total
        return metadata_at, checkpoints, p

    def _checkpoint(self, chunk: Chunk, position: int) -> None:
        """Adds the constants of one checkpoint: newer ones of a key replace older ones."""
        b = chunk.buffer
        size, p = unsigned(b, position)
        end = position + size
        for _ in range(4):  # type id 1, start, duration, distance to the one before
            _, p = unsigned(b, p)
        segments, p = unsigned(b, p + 1)  # behind the byte that says which kind of checkpoint it is
        for _ in range(segments):
            type_id, p = unsigned(b, p)
            count, p = unsigned(b, p)
            if count > end - p:
                raise MalformedError(f"{count} constants in {end - p} bytes", p)
            read, keep = self._constant_reader(chunk, type_id)
            pool = chunk._pools.setdefault(type_id, {}) if keep else {}
            if keep and len(pool) + count > POOL_LIMIT:
                raise MalformedError(f"more than {POOL_LIMIT} constants of one type", p)
            for _ in range(count):
                key = b[p]
                p += 1
                if key > 127:
                    key, p = unsigned(b, p - 1)
                value, p = read(b, p)
                if keep:
                    pool[key] = value
            if p > end:
                raise MalformedError("constants run past the end of their checkpoint", p)

    def _constant_reader(self, chunk: Chunk, type_id: int) -> tuple[Reader, bool]:
        known = self._readers.get(id(chunk.metadata))
        if known is None or known[0] is not chunk.metadata:
            known = self._readers[id(chunk.metadata)] = (chunk.metadata, {})
        type_ = chunk.metadata.types.get(type_id)
        if type_ is None:
            raise MalformedError(f"constants of type {type_id}, which the metadata lacks", 0)
        keep = self.constants is None or type_.name in self.constants
        readers = known[1]
        found = readers.get(type_id)
        if found is None:
            wanted = self.constants.get(type_.name, ()) if self.constants is not None else None
            found = readers[type_id] = compile_reader(chunk.metadata, type_, wanted)
        return found, keep


def parse_header(data: mmap.mmap | bytes, offset: int, size: int) -> Header:
    """Header of the chunk at `offset` of a file of `size` bytes. Raises MalformedError."""
    if size - offset < _HEADER.size:
        raise MalformedError(f"{size - offset} bytes are too few for a chunk's header", offset)
    magic, major, minor, length, _, _, start_ns, duration_ns, start_ticks, ticks, _ = _HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise MalformedError("no chunk begins here", offset)
    if major != 2:
        raise MalformedError(f"JFR format {major}.{minor} (this reads 2.x, of JDK 8u262, 11 and newer)", offset)
    if ticks <= 0 or start_ns < 0 or length < 0:
        raise MalformedError("impossible values in the chunk's header", offset)
    return Header(offset, major, minor, length, start_ns, duration_ns, start_ticks, ticks)


def _say(error: Exception) -> str:
    return str(error) if isinstance(error, MalformedError) else "it ends too early"
