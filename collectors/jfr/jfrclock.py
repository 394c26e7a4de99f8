"""JFR ticks on CLOCK_MONOTONIC, measured by what the headers of the chunks say beside our own readings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from perfscope.clock import ClockMap
from perfscope.collectors.jfr.chunk import Header, parse_header
from perfscope.collectors.jfr.varint import MalformedError
from perfscope.errors import InputError


class Anchor(Protocol):
    """[before_ns, after_ns] on our clock, in which the JVM began chunks, and REALTIME - MONOTONIC measured then."""

    @property
    def before_ns(self) -> int: ...
    @property
    def after_ns(self) -> int: ...
    @property
    def wall_offset_ns(self) -> int: ...
    @property
    def error_ns(self) -> int: ...


def headers(path: Path) -> list[Header]:
    """Headers of all chunks as far as they follow one another. Raises InputError if there is not even one."""
    found: list[Header] = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = 0
            while offset < size:
                file.seek(offset)
                head = file.read(128)
                header = parse_header(head, 0, len(head))
                found.append(header)
                if header.size_bytes <= 68:
                    break
                offset += header.size_bytes
    except MalformedError as error:
        if not found:
            raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
    if not found:
        raise InputError(f"{path}: empty")
    return found


MOST_DRIFT = 500e-6
"""Fastest that CLOCK_MONOTONIC is slewed against the counter that a JVM's ticks come from."""


def measure(path: Path, anchors: Sequence[Anchor], resolution_ns: int, until_ns: int = 0) -> ClockMap:
    """ClockMap of a recording: `mono = ticks * 1e9 / ticks per second + K`.

    A chunk's header holds its beginning in ticks and on the wall clock. Chunks that began within an anchor give
    `K = wall - (REALTIME - MONOTONIC at that anchor) - ticks`; no other chunk's wall time is used, so a step of the
    wall clock moves nothing. K is the median over the first anchor's chunks. The error bound is the farthest that any K
    (those at the end of the recording too: that is the drift) lies from it, and the error of the offset itself; with
    one reading only, how far the chunk's beginning may lie within the anchor at most. Ticks that aren't nanoseconds
    come from the CPU's counter, which may drift: after the last reading, until `until_ns`, it is taken to have drifted
    on as fast as between the readings (without any a second apart: as fast as the clock is ever slewed).
    """
    chunks = headers(path)
    scale = 1e9 / chunks[0].ticks_per_second
    readings: list[list[int]] = []
    seen: list[int] = []
    for anchor in anchors:
        found = []
        for chunk in chunks:
            mono = chunk.start_ns - anchor.wall_offset_ns
            if anchor.before_ns <= mono <= anchor.after_ns:
                found.append(mono - round(chunk.start_ticks * scale))
                seen.append(mono)
        readings.append(found)
    offset_error = max((a.error_ns for a in anchors), default=0)
    first = next((r for r in readings if r), None)
    if first is None:
        raise InputError(f"{path}: no chunk began when this recording did, so its clock is unknown")
    k = round(statistics.median(first))
    every = [value for found in readings for value in found]
    if len(every) > 1:
        error = max(abs(value - k) for value in every) + offset_error
        method = f"{len(every)} chunk headers against CLOCK_MONOTONIC at start and stop; bound: farthest of them"
    else:
        anchor = anchors[readings.index(first)]
        mono = k + round(chunks[0].start_ticks * scale)
        error = max(mono - anchor.before_ns, anchor.after_ns - mono)
        method = "one chunk header against CLOCK_MONOTONIC; bound: the bracket around JFR.start"
    if scale != 1.0 and until_ns > max(seen):
        apart = max(seen) - min(seen)
        rate = (max(every) - min(every)) / apart if apart > 10**9 else MOST_DRIFT
        error += round(rate * (until_ns - max(seen)))
        method += ", and the drift since the last"
    return ClockMap("jfr-ticks", k, error, scale, resolution_ns, method)
