"""Numbers and foreign names, made fit to read: the same words in every report."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this first of all: nothing heavy, and no threads before the target's fork
    from perfscope.clock import ClockMap
    from perfscope.model.info import SessionInfo

_TIME_UNITS = (
    (7200 * 10**9, 3600 * 10**9, "h"),
    (120 * 10**9, 60 * 10**9, "min"),
    *((unit, unit, name) for unit, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))),
)
"""From what on, nanoseconds of the unit, its name."""
_BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_NS_PER = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def printable(text: str) -> str:
    """`text` with everything that could steer a terminal or hide in a page written as an escape (\\x1b, \\u202e).

    Controls, bidirectional and other format characters, line separators and lone surrogates are escaped; letters of
    every script, marks and spaces stay. Joiners (U+200C, U+200D) stay too: scripts and emoji need them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if _hidden(c) else c for c in text)


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\u200c\u200d"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def duration(ns: float) -> str:
    """A time in its natural unit with three significant digits: 12.3 ms. Seconds up to two minutes."""
    for least, unit, name in _TIME_UNITS:
        if abs(ns) >= least:
            return f"{significant(ns / unit)} {name}"
    return "0 s" if ns == 0 else f"{ns:.3g} ns"


def significant(value: float) -> str:
    """Three significant digits, never fewer than the whole part: 1.23, 12.3, 123, 1,234."""
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def count(value: int) -> str:
    """A count: exact up to 99,999, then 1.23 M."""
    if abs(value) < 100_000:
        return f"{value:,}"
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= size:
            return f"{significant(value / size)} {unit}"
    raise AssertionError("unreachable")


def percent(value: float) -> str:
    """A percentage given in 0..100. A small one that is not zero never shows as 0."""
    if value and abs(value) < 0.1:
        return "< 0.1 %" if value > 0 else "> -0.1 %"
    return f"{value:.1f} %" if abs(value) < 99.95 else f"{value:.0f} %"


def measure(value: float, unit: str) -> str:
    """A value in `unit`: times, bytes, percentages and counts in the form people read."""
    if unit in _NS_PER:
        return duration(value * _NS_PER[unit])
    if unit in ("%", "pct", "percent"):
        return percent(value)
    if unit in ("bytes", "B"):
        return size(value)
    if unit in ("bytes/s", "B/s"):
        return size(value) + "/s"
    number = (
        count(int(value)) if float(value).is_integer() else significant(value) if abs(value) >= 1 else f"{value:.3g}"
    )
    return f"{number} {unit}".strip()


def size(value: float) -> str:
    """Bytes: 1.23 MiB."""
    for unit, name in _BYTE_UNITS:
        if abs(value) >= unit:
            return f"{significant(value / unit)} {name}"
    return f"{value:.0f} B"


def plural(number: int, noun: str, several: str = "") -> str:
    """`1 thread`, `14 threads`; `several`: the noun of more than one, where it isn't that with an s."""
    return f"{count(number)} {noun if number == 1 else several or noun + 's'}"


def clock_words(source: str, clock: ClockMap) -> str:
    """`pyspy ±640 us (a look every 10.0 ms)`, `ebpf exact`, `jfr by its own clock` (a file from elsewhere)."""
    error = f"±{duration(clock.error_ns)}"
    if clock.error_ns == 0:
        error = "exact" if clock.domain == "monotonic" else "by its own clock"
    looks = f" (a look every {duration(clock.resolution_ns)})" if clock.resolution_ns else ""
    return f"{source} {error}{looks}"


def clocks(info: SessionInfo) -> str:
    """The clocks of the sources that have something in the session."""
    silent = {name for name, report in info.collectors.items() if report.status in ("failed", "unavailable")}
    words = [clock_words(name, clock) for name, clock in info.clocks.items() if name not in silent]
    return ", ".join(words) or "none recorded"
