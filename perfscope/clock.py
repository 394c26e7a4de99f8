"""One clock for everything: int64 nanoseconds on CLOCK_MONOTONIC of the recorded host.

A source that stamps on another clock brings a `ClockMap`, measured in that very recording, whose error bound is
kept and printed. Nothing here assumes that two clocks agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class ClockMap:
    """Maps a source's own stamps to CLOCK_MONOTONIC: `mono = stamp * scale + offset_ns`.

    domain: what the source stamps on, e.g. "monotonic", "realtime", "jfr-ticks", "pyspy-instant".
    scale: nanoseconds per unit of the source's stamp (1.0 for nanoseconds).
    error_ns: bound on |mapped - true|, as measured in this recording; 0 only where the source reads
        CLOCK_MONOTONIC itself.
    resolution_ns: how far apart the source's looks are (a sampler's period). Not a clock error: an event can
        be placed no better than this however good the clock. 0 for sources that stamp the event itself.
    method: how offset and error were measured, for people.
    """

    domain: str
    offset_ns: int
    error_ns: int
    scale: float = 1.0
    resolution_ns: int = 0
    method: str = ""

    def to_mono(self, stamp: T) -> T:
        """Nanoseconds on CLOCK_MONOTONIC of one stamp or an int64 array of stamps.

        Exact where scale is a whole number; else a float product, good to 1 ns while stamps stay below 2**53.
        """
        if self.scale == 1.0:
            return stamp + self.offset_ns
        if self.scale >= 1.0 and float(self.scale).is_integer():
            return stamp * int(self.scale) + self.offset_ns
        if isinstance(stamp, int):
            return round(stamp * self.scale) + self.offset_ns
        scaled: npt.NDArray[np.int64] = np.rint(stamp * self.scale).astype(np.int64) + self.offset_ns
        return scaled


MONOTONIC = ClockMap("monotonic", 0, 0, method="stamped on CLOCK_MONOTONIC by the source itself")


def realtime_offset(tries: int = 20) -> tuple[int, int]:
    """`(REALTIME - MONOTONIC in ns, error bound in ns)`, now.

    Brackets a realtime read between two monotonic ones and keeps the tightest of `tries`; the error is half
    of that bracket. Take it again at the end of a recording: a difference is a step or slew of the wall clock.
    """
    best: tuple[int, int] | None = None
    for _ in range(tries):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[1]:
            best = (wall - (before + after) // 2, after - before)
    assert best is not None
    return best[0], best[1] // 2 + 1
