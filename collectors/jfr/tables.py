"""Events of a .jfr file -> rows of the session's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.clock import ClockMap
from perfscope.collectors.jfr.chunk import Chunk
from perfscope.collectors.jfr.columns import Column, Piece, listed
from perfscope.collectors.jfr.frames import ChunkNames
from perfscope.collectors.jfr.kinds import EVENTS, SAMPLES, Kind
from perfscope.model.session_writer import SessionWriter

_MIN = -(1 << 63)

_Times = npt.NDArray[np.int64]


@dataclass
class Tables:
    """Writes one JVM's chunks into a session; keeps what its report needs to say.

    pid: of the JVM; host_tid: thread id as the JVM knows it -> as the host does (the identity outside containers).
    window: events that end before its start or begin after its end are left out.
    """

    writer: SessionWriter
    pid: int
    host_tid: Mapping[int, int] | None = None
    window: tuple[int, int] = (_MIN, (1 << 63) - 1)
    rows: Counter[str] = field(default_factory=Counter)
    truncated_samples: int = 0
    unresolved: int = 0
    lost_bytes: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    _seen_threads: set[tuple[int, str]] = field(default_factory=set)

    def add(self, chunk: Chunk, clock: ClockMap) -> None:
        """All wanted events of one chunk."""
        names = ChunkNames(chunk)
        tids = {key: self._thread(names, values) for key, values in names.threads.items()}
        with np.errstate(invalid="ignore"):  # damaged ticks may be too large for nanoseconds
            for name in SAMPLES:
                self._samples(chunk, names, tids, clock, name)
            for name, kind in EVENTS.items():
                if chunk.count(name):
                    self._events(chunk, names, tids, clock, name, kind)
            self._counters(chunk, names, clock)
        for _, amount in chunk.rows("jdk.DataLoss", ("startTime", "amount")):
            self.lost_bytes += amount or 0

    def _thread(self, names: ChunkNames, values: tuple[Any, ...]) -> int | None:
        """Host's tid of a thread constant, noted by its Java name; None for what has no kernel thread."""
        if len(values) != 3:
            return None
        os_name, inner, java_name = values
        if not isinstance(inner, int) or not 0 < inner < 1 << 31:
            return None
        tid = inner if self.host_tid is None else self.host_tid.get(inner)
        if tid is None:
            return None
        name = names.text(java_name) or names.text(os_name)
        if name and (tid, name) not in self._seen_threads:
            self._seen_threads.add((tid, name))
            self.writer.note_thread(self.pid, tid, name=name, named_by="java")
        return tid

    def _inside(self, start: _Times, duration: _Times | int = 0) -> npt.NDArray[np.bool_]:
        """Which of them lie in the window; the earliest and the latest of these are noted."""
        end = start + duration
        keep = (end >= self.window[0]) & (start <= self.window[1])
        if keep.any():
            first, last = int(start[keep].min()), int(end[keep].max())
            self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
            self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        return keep

    def _samples(
        self, chunk: Chunk, names: ChunkNames, tids: dict[int, int | None], clock: ClockMap, event: str
    ) -> None:
        stack_of = cache(lambda key: names.stack(key, self.writer.stacks))
        for time_ns, piece in _timed(chunk, clock, event, ("stackTrace", "sampledThread")):
            known = np.array([stack is not None for stack in _each(stack_of, piece, 0)], bool)
            self.unresolved += piece.count - int(known.sum())
            time_ns, piece = time_ns[known], piece.where(known)
            inside = self._inside(time_ns)
            time_ns, piece = time_ns[inside], piece.where(inside)
            self.truncated_samples += sum(_each(cache(names.is_truncated), piece, 0))
            self.rows[event] += piece.count
            self.writer.append(
                "samples",
                {
                    "source": ["jfr"] * piece.count,
                    "pid": np.full(piece.count, self.pid, np.int32),
                    "tid": _each(tids.get, piece, 1),
                    "time_ns": time_ns,
                    "stack_id": _each(stack_of, piece, 0),
                    "count": np.ones(piece.count, np.int64),
                    "torn": np.zeros(piece.count, bool),
                },
            )

    def _events(
        self, chunk: Chunk, names: ChunkNames, tids: dict[int, int | None], clock: ClockMap, event: str, kind: Kind
    ) -> None:
        type_ = event.removeprefix("jdk.")
        thread = "thread" if type_ in ("ThreadStart", "ThreadEnd") else "eventThread"
        fields = ("duration", thread, "stackTrace", kind.subject, "port", kind.other, kind.bytes, kind.cause)
        stack_of = cache(lambda key: names.stack(key, self.writer.stacks))
        subject_of = cache(_subject(chunk, names, kind))
        cause_of = cache(_constant(chunk, names, "jdk.types.GCCause"))
        for time_ns, piece in _timed(chunk, clock, event, [name or "-" for name in fields]):
            lasted = _whole(piece.columns[0])
            lasted = np.zeros_like(time_ns) if lasted is None else np.maximum(lasted, 0)
            duration_ns = np.rint(lasted * clock.scale).astype(np.int64)
            inside = self._inside(time_ns, duration_ns)
            piece = piece.where(inside)
            size = _whole(piece.columns[6])
            self.rows[event] += piece.count
            self.writer.append(
                "jvm_events",
                {
                    "time_ns": time_ns[inside],
                    "duration_ns": duration_ns[inside],
                    "pid": np.full(piece.count, self.pid, np.int32),
                    "tid": _each(tids.get, piece, 1),
                    "type": [type_] * piece.count,
                    "stack_id": _each(stack_of, piece, 2),
                    "subject": _each(subject_of, piece, 3, 4),
                    "other_tid": _each(lambda key: tids.get(key) if key else None, piece, 5),
                    "bytes": None if size is None else pa.array(size, mask=size < 0),
                    "cause": _each(cause_of, piece, 7),
                },
            )

    def _counters(self, chunk: Chunk, names: ChunkNames, clock: ClockMap) -> None:
        when_of = cache(_constant(chunk, names, "jdk.types.GCWhen"))
        for time_ns, piece in _timed(chunk, clock, "jdk.GCHeapSummary", ("when", "heapUsed")):
            after = np.array([when == "After GC" for when in _each(when_of, piece, 0)], bool)
            self._counter(time_ns, clock, "jvm_heap_used_after_gc_bytes", piece.columns[1], after)
        for time_ns, piece in _timed(chunk, clock, "jdk.CPULoad", ("machineTotal", "jvmUser", "jvmSystem")):
            shares = [c * 100.0 if isinstance(c, np.ndarray) else None for c in piece.columns]
            if shares[0] is None:
                continue
            compared = shares[0] != 0  # the first reading of a JVM's life has nothing to compare with, and says 0
            for name, share in zip(("host_cpu_pct", "jvm_cpu_user_pct", "jvm_cpu_system_pct"), shares, strict=True):
                if share is not None:
                    sound = compared & (share >= 0) & (share <= 100)
                    self._counter(time_ns, clock, name, share, sound)
        for time_ns, piece in _timed(chunk, clock, "jdk.ExceptionStatistics", ("throwables",)):
            self._counter(time_ns, clock, "jvm_throwables_total", piece.columns[0], np.ones(piece.count, bool))

    def _counter(
        self, time_ns: _Times, clock: ClockMap, name: str, values: Column, where: npt.NDArray[np.bool_]
    ) -> None:
        if not isinstance(values, np.ndarray):
            return
        time_ns, values = time_ns[where], values[where]
        inside = self._inside(time_ns)
        count = int(inside.sum())
        self.writer.append(
            "counters",
            {
                "time_ns": time_ns[inside],
                "error_ns": np.full(count, clock.error_ns, np.int64),
                "source": ["jfr"] * count,
                "name": [name] * count,
                "pid": np.full(count, self.pid, np.int32),
                "value": values[inside].astype(np.float64),
            },
        )


def _timed(chunk: Chunk, clock: ClockMap, event: str, fields: Sequence[str]) -> Iterator[tuple[_Times, Piece]]:
    """Events of a type, some after the other: when each began, and these fields."""
    for piece in chunk.columns(event, (*fields, "startTime")):
        *columns, start = piece.columns
        ticks = _whole(start)
        if ticks is None:
            chunk.damaged_events += piece.count
            continue
        yield clock.to_mono(ticks), Piece(piece.count, columns)


def _whole(column: Column) -> npt.NDArray[np.int64] | None:
    """Whole numbers, if it is such a column."""
    return column.astype(np.int64) if isinstance(column, np.ndarray) and column.dtype.kind in "iu" else None


def _each(of: Callable[..., Any], piece: Piece, *columns: int) -> list[Any]:
    """What `of` says of each event's value in one or several columns: of numbers and texts, and of None for others."""
    return list(map(of, *(_values(piece.columns[number], piece.count) for number in columns)))


def _values(column: Column, count: int) -> Sequence[Any]:
    if isinstance(column, np.ndarray):
        return listed(column, count)
    texts = isinstance(column, Sequence) and not (column and isinstance(column[0], list | tuple))
    return listed(column if texts else None, count)


def _constant(chunk: Chunk, names: ChunkNames, pool_name: str) -> Callable[[Any], str | None]:
    """Text of a constant that consists of one string; of the value itself where the field is a string."""
    pool = chunk.pool(pool_name)

    def text(value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        found = pool.get(value)
        return names.text(found[0]) if found else None

    return text


def _subject(chunk: Chunk, names: ChunkNames, kind: Kind) -> Callable[[Any, Any], str | None]:
    if kind.subject is None:
        return lambda value, port: None
    if kind.pool == "java.lang.Class":
        return lambda value, port: names.class_of(value) if value else None
    if kind.pool:
        of_pool = _constant(chunk, names, kind.pool)
        return lambda value, port: of_pool(value)
    if kind.subject == "host":
        return lambda value, port: f"{names.text(value) or '?'}:{port}" if port is not None else names.text(value)
    return lambda value, port: names.text(value)
