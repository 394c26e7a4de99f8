"""Streaming reader of JFR files (format 2.0 and 2.1): one self-contained chunk after the other, in bounded memory.

A chunk is a header, then sized events: type 0 is metadata (the types of all others), type 1 a checkpoint (constants:
threads, stacks, methods, ...), all others what was recorded. The events are walked once in file order, so chains of
checkpoints need not be followed, and a file that was cut off or whose header was never completed is read as far as
it is sound.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from perfscope.collectors.jfr import metadata as types
from perfscope.collectors.jfr.columns import FEW, Layout, Piece
from perfscope.collectors.jfr.compiler import compile_reader
from perfscope.collectors.jfr.integers import PIECE, Bytes
from perfscope.collectors.jfr.metadata import Metadata, Reader
from perfscope.collectors.jfr.varint import Buffer, MalformedError, unsigned
from perfscope.collectors.jfr.walk import MAGIC, Events, extent, walk
from perfscope.errors import InputError

_HEADER = struct.Struct(">4sHHqqqqqqqI")
_METADATA, _CHECKPOINT = 0, 1
COPY_LIMIT = 64 << 20
"""Chunks up to this many bytes are copied to memory, which reads faster than the mapped file; HotSpot's have ~12 MB."""
LATEST_NS = 1 << 62
"""Times beyond, in the year 2116, are damage: sums of them would not fit into 64 bits."""
POOL_LIMIT = 4_000_000
"""Constants kept a chunk; what goes beyond is lost and said so."""
LOSSES_LIMIT = 1000
"""Damage of a chunk, and of a file, after which the rest of it is left out. A JVM that is killed leaves one or two."""


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
    bytes: Bytes
    metadata: Metadata = field(default_factory=Metadata)
    losses: list[str] = field(default_factory=list)
    damaged_events: int = 0
    _events: dict[int, Events] = field(default_factory=dict)
    _pools: dict[int, dict[int, tuple[Any, ...]]] = field(default_factory=dict)

    def count(self, name: str) -> int:
        """Events of a type, e.g. "jdk.ExecutionSample"."""
        type_ = self.metadata.by_name.get(name)
        return len(self._events.get(type_.id, ())) if type_ else 0

    def event_names(self) -> list[str]:
        """Names of all types that have events in the chunk."""
        return [self.metadata.types[i].name for i in self._events if i in self.metadata.types]

    def rows(self, name: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """As `columns`, but a tuple an event."""
        return chain.from_iterable(piece.rows() for piece in self.columns(name, wanted))

    def columns(self, name: str, wanted: Sequence[str]) -> Iterator[Piece]:
        """Events of a type in file order, some thousands after the other: a column for each field in `wanted`.

        Constants are keys for `pool`. Events that can't be read are counted in `damaged_events`.
        """
        type_ = self.metadata.by_name.get(name)
        events = self._events.get(type_.id) if type_ else None
        if type_ is None or not events:
            return
        present = [f.name for f in type_.fields]
        if len(set(present)) != len(present):
            self.losses.append(f"{name}: two fields of one name; its {len(events)} events are left out")
            return
        try:
            read = compile_reader(self.metadata, type_, wanted)
        except MalformedError as error:
            self.losses.append(f"{name}: {error}; its {len(events)} events are left out")
            return
        layout = Layout(self.metadata, type_)
        for first in range(0, len(events), PIECE):
            piece = events[first : first + PIECE]
            together = None
            if layout.together and len(piece) >= FEW:
                with suppress(MalformedError):
                    together = layout.read(self.bytes, piece, wanted)
            if together is None:
                together = layout.transposed(list(self._one_by_one(read, piece)), wanted)
            yield together

    def _one_by_one(self, read: Reader, events: Events) -> Iterator[tuple[Any, ...]]:
        b = self.bytes.raw
        for start, end in events.spans():
            try:
                values, p = read(b, start)
            except (MalformedError, IndexError, struct.error):
                p = end + 1
            if p > end:
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
        self.events = None if events is None else frozenset(events)
        self.constants = constants
        self.losses: list[str] = []
        self.damaged_events = 0

    def __iter__(self) -> Iterator[Chunk]:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size == 0:
                    raise InputError(f"{self.path}: empty", hint="a JVM that was killed leaves such a file")
                # Unmapped with the last chunk that looks into it, which may be kept longer than this iteration.
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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
            if len(self.losses) >= LOSSES_LIMIT:
                # First, as reports name the first few.
                self.losses.insert(0, f"too much is damaged before offset {offset}; {size - offset} bytes left out")
                return
            end = offset + header.size_bytes
            sound = header.size_bytes >= _HEADER.size and (end == size or data[end : end + len(MAGIC)] == MAGIC)
            length = header.size_bytes if sound else _length(data, offset, size)
            buffer: Buffer = data
            base = offset
            if length <= COPY_LIMIT:
                buffer, base = data[offset : offset + length], 0
            chunk = Chunk(header, Bytes(buffer))
            self._read(chunk, base, base + length)
            if not sound:
                what = "is cut off" if header.size_bytes > length else "was never finished"
                chunk.losses.append(f"chunk at offset {offset} {what}: read as far as its events go")
            yield chunk
            if chunk.damaged_events:
                chunk.losses.append(f"chunk at offset {offset}: {chunk.damaged_events} damaged events left out")
                self.damaged_events += chunk.damaged_events
            self.losses += chunk.losses
            offset += length

    def _read(self, chunk: Chunk, start: int, end: int) -> None:
        """Fills a chunk as far as its events are sound."""
        b = chunk.bytes
        chunk._events, stop = walk(b, start + _HEADER.size, end)
        if stop < end and b.raw[stop : stop + len(MAGIC)] != MAGIC:
            chunk.losses.append(
                f"no sound event at offset {chunk.header.offset + stop - start}: {end - stop} bytes left out"
            )
        metadata, checkpoints = (chunk._events.pop(kind, None) for kind in (_METADATA, _CHECKPOINT))
        for first, last in reversed(list(metadata[-LOSSES_LIMIT:].spans()) if metadata else []):
            try:
                chunk.metadata = types.parse(b.raw[first:last], self.events)
                break
            except (MalformedError, IndexError) as error:
                chunk.losses.append(f"metadata at offset {chunk.header.offset + first - start}: {_say(error)}")
        else:
            chunk.losses.append(
                f"chunk at offset {chunk.header.offset} has no readable metadata: "
                f"its {sum(map(len, chunk._events.values()))} events are left out"
            )
            chunk._events.clear()
            return
        if self.events is not None:
            keep = {t.id for n in self.events if (t := chunk.metadata.by_name.get(n))}
            chunk._events = {i: p for i, p in chunk._events.items() if i in keep}
        unknown = [i for i in chunk._events if i not in chunk.metadata.types]
        if unknown:
            chunk.damaged_events += sum(len(chunk._events.pop(i)) for i in unknown)
        for first, last in checkpoints.spans() if checkpoints else ():
            if len(chunk.losses) >= LOSSES_LIMIT:
                chunk.losses.insert(0, f"constants from offset {chunk.header.offset + first - start} on are left out")
                break
            try:
                self._checkpoint(chunk, first, last)
            except (MalformedError, IndexError, struct.error) as error:
                chunk.losses.append(f"constants at offset {chunk.header.offset + first - start}: {_say(error)}")

    def _checkpoint(self, chunk: Chunk, p: int, end: int) -> None:
        """Adds the constants of one checkpoint: newer ones of a key replace older ones."""
        b = chunk.bytes.raw
        for _ in range(3):  # start, duration, distance to the one before
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
        type_ = chunk.metadata.types.get(type_id)
        if type_ is None:
            raise MalformedError(f"constants of type {type_id}, which the metadata lacks", 0)
        if self.constants is None:
            return compile_reader(chunk.metadata, type_, None), True
        return compile_reader(chunk.metadata, type_, self.constants.get(type_.name, ())), type_.name in self.constants


def _length(data: mmap.mmap, offset: int, size: int) -> int:
    """Bytes of a chunk whose header doesn't tell: up to where its events end, and on to the next chunk.

    A chunk that was being written has 0 there, or its size at the last flush (one a second). Looks no farther than
    the chunk goes, so that a file of many of them is gone through once.
    """
    stop = extent(data, offset + _HEADER.size, size)
    if stop < size and data[stop : stop + len(MAGIC)] != MAGIC:
        following = data.find(MAGIC + b"\0\2", stop)
        stop = following if following > 0 else size
    return stop - offset


def parse_header(data: mmap.mmap | bytes, offset: int, size: int) -> Header:
    """Header of the chunk at `offset` of a file of `size` bytes. Raises MalformedError."""
    if size - offset < _HEADER.size:
        raise MalformedError(f"{size - offset} bytes are too few for a chunk's header", offset)
    magic, major, minor, length, _, _, start_ns, duration_ns, start_ticks, ticks, _ = _HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise MalformedError("no chunk begins here", offset)
    if major != 2:
        raise MalformedError(f"JFR format {major}.{minor} (this reads 2.x, of JDK 8u262, 11 and newer)", offset)
    if ticks <= 0 or length < 0 or not 0 <= start_ns < LATEST_NS or abs(start_ticks) * 10**9 >= LATEST_NS * ticks:
        raise MalformedError("impossible values in the chunk's header", offset)
    return Header(offset, major, minor, length, start_ns, duration_ns, start_ticks, ticks)


def _say(error: Exception) -> str:
    return str(error) if isinstance(error, MalformedError) else "it ends too early"
