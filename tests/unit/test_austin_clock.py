"""Austin's time: readings of its stamps laid over the sums of its file."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.pyspy.austinclock import STAMP_US, Stamps, align, boot_offset
from perfscope.collectors.pyspy.austinfile import Piece

ZERO = 12_000_000_000
"""Some time since boot, in microseconds."""


def looks(count: int, seed: int = 1) -> np.ndarray:
    """Differences between looks, as measured: 10 ms and some, seldom much more."""
    return np.random.default_rng(seed).integers(10_050, 10_400, count)


def test_all_readings_fit_in_one_way() -> None:
    elapsed = np.cumsum(looks(1000))
    readings = ZERO + elapsed[5::10]
    assert align(elapsed, readings, ZERO - 500_000, ZERO + 500_000) == [Piece(0, 1000, ZERO)]


def test_one_reading_takes_the_latest_zero_allowed() -> None:
    elapsed = np.cumsum(looks(50))
    readings = ZERO + elapsed[7:8]
    assert align(elapsed, readings, ZERO - 100_000, ZERO) == [Piece(0, 50, ZERO)]
    assert align(elapsed, readings + 500, ZERO, ZERO + 3) == []  # none that fits


@given(missing=st.integers(30, 900), size=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_after_looks_that_the_file_lacks_times_are_right_again(missing: int, size: int, seed: int) -> None:
    true = np.cumsum(looks(1000, seed))
    deltas = np.delete(looks(1000, seed), slice(missing, missing + size))
    elapsed = np.cumsum(deltas)
    pieces = align(elapsed, ZERO + true[4::10], ZERO - 500_000, ZERO + 500_000)
    kept = np.delete(np.arange(1000), slice(missing, missing + size))
    assert len(pieces) == 2
    for piece in pieces:
        # Each look that is given a time has its own.
        error = piece.zero_us + elapsed[piece.first : piece.end] - (ZERO + true[kept[piece.first : piece.end]])
        assert np.abs(error).max() <= STAMP_US
    assert sum(piece.end - piece.first for piece in pieces) >= len(elapsed) - 22  # between two readings each


def test_a_look_too_many_moves_nothing_after_it() -> None:
    deltas = looks(600)
    true = np.cumsum(deltas)
    elapsed = np.cumsum(np.insert(deltas, 300, deltas[300]))
    first, second = align(elapsed, ZERO + true[4::10], ZERO - 500_000, ZERO + 500_000)
    assert first.first == 0 and 280 < first.end <= 301 and first.zero_us == ZERO
    assert second.end == 601 and second.first < 320 and second.zero_us == ZERO - deltas[300]


def test_a_reading_of_a_look_that_never_reached_the_file_changes_nothing() -> None:
    deltas = looks(100)
    elapsed, true = np.cumsum(deltas[:90]), np.cumsum(deltas)
    assert align(elapsed, ZERO + true[3::8], ZERO - 9000, ZERO + 9000) == [Piece(0, 90, ZERO)]


def test_nothing_to_lay_over_gives_no_pieces() -> None:
    assert align(np.cumsum(looks(10)), np.zeros(3, np.int64), 0, 2**40) == []
    assert align(np.zeros(0, np.int64), np.array([ZERO]), 0, 2**40) == []


HOLDER = """
import ctypes, sys, time
now = int(sys.stdin.readline())
stamps = (ctypes.c_int64 * 3)(now + 1, now + 2, 0)
while time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000 <= now + 2: pass
print(ctypes.addressof(stamps), flush=True)
stamps[1] = int(sys.stdin.readline())
print(flush=True)
sys.stdin.readline()
"""


def test_stamps_are_found_in_a_process_s_memory_and_followed() -> None:
    argv = [sys.executable, "-S", "-c", HOLDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        stamps = Stamps(holder.pid, now)
        print(now, file=holder.stdin, flush=True)
        place = int(holder.stdout.readline())
        stamps.read()
        print(now + 5, file=holder.stdin, flush=True)
        holder.stdout.readline()
        stamps.read()
        print(file=holder.stdin, flush=True)
    assert stamps.first_us is not None and stamps.first_us <= now + 1
    assert stamps.columns[place] == [now + 1, now + 1] and stamps.columns[place + 8] == [now + 2, now + 5]
    assert [now + 2, now + 5] in [list(values) for values in stamps.readings()]


def test_the_memory_of_no_process_gives_no_reading() -> None:
    stamps = Stamps(2**22 + 1, 0)
    stamps.read()
    assert stamps.first_us is None and stamps.readings() == []


def test_boot_time_is_never_behind_monotonic_time() -> None:
    assert boot_offset() >= -1000
