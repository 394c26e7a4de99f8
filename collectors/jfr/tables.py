"""Events of a .jfr file -> rows of the session's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfscope.clock import ClockMap
from perfscope.collectors.jfr.chunk import Chunk
from perfscope.collectors.jfr.frames import ChunkNames
from perfscope.collectors.jfr.kinds import EVENTS, SAMPLES, Kind
from perfscope.model.session_writer import SessionWriter

BATCH = 50_000
_MIN = -(1 << 63)


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

    def _inside(self, start: int, duration: int = 0) -> bool:
        if start + duration < self.window[0] or start > self.window[1]:
            return False
        if self.first_ns is None or start < self.first_ns:
            self.first_ns = start
        if self.last_ns is None or start + duration > self.last_ns:
            self.last_ns = start + duration
        return True

    def _samples(
        self, chunk: Chunk, names: ChunkNames, tids: dict[int, int | None], clock: ClockMap, event: str
    ) -> None:
        stacks = self.writer.stacks
        batch: list[tuple[int | None, int, int]] = []
        for ticks, thread, trace in chunk.rows(event, ("startTime", "sampledThread", "stackTrace")):
            stack = names.stack(trace, stacks)
            if stack is None:
                self.unresolved += 1
                continue
            time_ns = clock.to_mono(ticks)
            if not self._inside(time_ns):
                continue
            self.truncated_samples += names.is_truncated(trace)
            batch.append((tids.get(thread), time_ns, stack))
            if len(batch) >= BATCH:
                self._write_samples(event, batch)
                batch = []
        self._write_samples(event, batch)

    def _write_samples(self, event: str, batch: list[tuple[int | None, int, int]]) -> None:
        count = len(batch)
        if not count:
            return
        tid, time_ns, stack = zip(*batch, strict=True)
        self.rows[event] += count
        self.writer.append(
            "samples",
            {
                "source": ["jfr"] * count,
                "pid": np.full(count, self.pid, np.int32),
                "tid": list(tid),
                "time_ns": np.asarray(time_ns, np.int64),
                "stack_id": np.asarray(stack, np.int32),
                "count": np.ones(count, np.int64),
                "torn": np.zeros(count, bool),
            },
        )

    def _events(
        self, chunk: Chunk, names: ChunkNames, tids: dict[int, int | None], clock: ClockMap, event: str, kind: Kind
    ) -> None:
        fields = ("startTime", "duration", "eventThread", "stackTrace", kind.subject or "-", kind.other or "-",
                  kind.bytes or "-", kind.cause or "-", "port", "thread")  # fmt: skip
        subject_of = _subject(chunk, names, kind)
        cause_of = _constant(chunk, names, "jdk.types.GCCause")
        type_ = event.removeprefix("jdk.")
        thread_event = type_ in ("ThreadStart", "ThreadEnd")
        batch: list[tuple[Any, ...]] = []
        for ticks, lasted, thread, trace, subject, other, size, cause, port, about in chunk.rows(event, fields):
            start = clock.to_mono(ticks)
            duration = round(lasted * clock.scale) if lasted and lasted > 0 else 0
            if not self._inside(start, duration):
                continue
            batch.append(
                (
                    start,
                    duration,
                    tids.get(about if thread_event else thread),
                    type_,
                    names.stack(trace, self.writer.stacks),
                    subject_of(subject, port),
                    tids.get(other) if other else None,
                    size if size is None or size >= 0 else None,
                    cause_of(cause),
                )
            )
            if len(batch) >= BATCH:
                self._write_events(event, batch)
                batch = []
        self._write_events(event, batch)

    def _write_events(self, event: str, batch: list[tuple[Any, ...]]) -> None:
        if not batch:
            return
        columns = ("time_ns", "duration_ns", "tid", "type", "stack_id", "subject", "other_tid", "bytes", "cause")
        data: dict[str, Any] = {n: list(v) for n, v in zip(columns, zip(*batch, strict=True), strict=True)}
        data["pid"] = np.full(len(batch), self.pid, np.int32)
        self.rows[event] += len(batch)
        self.writer.append("jvm_events", data)

    def _counters(self, chunk: Chunk, names: ChunkNames, clock: ClockMap) -> None:
        found: list[tuple[int, str, float]] = []
        when_of = _constant(chunk, names, "jdk.types.GCWhen")
        for ticks, when, used in chunk.rows("jdk.GCHeapSummary", ("startTime", "when", "heapUsed")):
            if when_of(when) == "After GC" and used is not None:
                found.append((clock.to_mono(ticks), "jvm_heap_used_after_gc_bytes", used))
        fields = ("startTime", "jvmUser", "jvmSystem", "machineTotal")
        for ticks, *shares in chunk.rows("jdk.CPULoad", fields):
            if not shares[-1]:  # the first reading of a JVM's life has nothing to compare with, and says 0
                continue
            time_ns = clock.to_mono(ticks)
            for name, share in zip(("jvm_cpu_user_pct", "jvm_cpu_system_pct", "host_cpu_pct"), shares, strict=True):
                if share is not None and 0 <= share <= 1:
                    found.append((time_ns, name, share * 100.0))
        for ticks, thrown in chunk.rows("jdk.ExceptionStatistics", ("startTime", "throwables")):
            if thrown is not None:
                found.append((clock.to_mono(ticks), "jvm_throwables_total", thrown))
        found = [row for row in found if self._inside(row[0])]
        if found:
            times, counter, values = zip(*found, strict=True)
            self.writer.append(
                "counters",
                {
                    "time_ns": np.asarray(times, np.int64),
                    "error_ns": np.full(len(found), clock.error_ns, np.int64),
                    "source": ["jfr"] * len(found),
                    "name": list(counter),
                    "pid": np.full(len(found), self.pid, np.int32),
                    "value": np.asarray(values, np.float64),
                },
            )


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
