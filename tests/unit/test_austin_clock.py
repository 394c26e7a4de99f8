"""Austin's time: readings of its stamps laid over the sums of its file."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.collectors.pyspy.austinclock import Stamps, align, boot_offset
from perfscope.collectors.pyspy.austinfile import Piece

ZERO = 12_000_000_000
"""Some time since boot, in microseconds."""


def looks(count: int, seed: int = 1) -> np.ndarray:
    """Differences between looks, as measured: 10 ms and some, seldom much more."""
    return np.random.default_rng(seed).integers(10_050, 10_400, count)


def test_all_readings_fit_in_one_way() -> None:
    elapsed = np.cumsum(looks(1000))
    readings = ZERO + elapsed[5::10]
    assert align(elapsed, readings, ZERO - 4_000, ZERO + 4_000) == [Piece(0, 1000, ZERO)]


def test_few_readings_tell_where_they_fit_in_one_way_only() -> None:
    elapsed = np.cumsum(looks(50))
    one, two = ZERO + elapsed[7:8], ZERO + elapsed[7:18:10]
    assert align(elapsed, one, ZERO - 9_000, ZERO) == [Piece(0, 50, ZERO)]
    assert align(elapsed, one, ZERO - 100_000, ZERO) == []  # it may be any of ten looks
    assert align(elapsed, two, ZERO - 100_000, ZERO + 100_000) == [Piece(7, 50, ZERO)]  # what was before isn't known
    assert align(elapsed, one + 500, ZERO, ZERO + 3) == []  # none that fits


def test_looks_that_are_all_equally_far_apart_tell_nothing() -> None:
    elapsed = np.arange(1, 200) * 10_000
    assert align(elapsed, ZERO + elapsed[4:150:10], ZERO - 100_000, ZERO + 100_000) == []


@given(
    missing=st.integers(1, 990), size=st.integers(0, 3), seed=st.integers(0, 99), every=st.integers(4, 60),
    spread=st.integers(100, 400), early=st.integers(0, 40_000), late=st.integers(0, 40_000),
)  # fmt: skip
@settings(max_examples=300, deadline=None, derandomize=True)
def test_each_look_that_is_given_a_time_has_its_own(
    missing: int, size: int, seed: int, every: int, spread: int, early: int, late: int
) -> None:
    deltas = np.random.default_rng(seed).integers(10_050, 10_050 + spread, 1000)
    true, gone = ZERO + np.cumsum(deltas), slice(missing, missing + size)
    kept, elapsed = np.delete(np.arange(1000), gone), np.cumsum(np.delete(deltas, gone))
    pieces = align(elapsed, true[every::every], ZERO - early, ZERO + late)
    for piece in pieces:
        assert (piece.zero_us + elapsed[piece.first : piece.end] == true[kept[piece.first : piece.end]]).all()
    if spread > 200 and every < 20 and 14 * every < missing < 900 - 14 * every:  # readings enough on both sides
        assert sum(piece.end - piece.first for piece in pieces) >= len(elapsed) - 5 * every


def test_a_look_too_many_moves_nothing_after_it() -> None:
    deltas = looks(600)
    true = np.cumsum(deltas)
    elapsed = np.cumsum(np.insert(deltas, 300, deltas[300]))
    first, second = align(elapsed, ZERO + true[4::10], ZERO - 2_000, ZERO + 2_000)
    assert first.first == 0 and 270 < first.end <= 301 and first.zero_us == ZERO
    assert second.end == 601 and second.first < 320 and second.zero_us == ZERO - deltas[300]


def test_a_reading_of_a_look_that_never_reached_the_file_changes_nothing() -> None:
    deltas = looks(100)
    elapsed, true = np.cumsum(deltas[:90]), np.cumsum(deltas)
    assert align(elapsed, ZERO + true[3::8], ZERO - 3000, ZERO + 3000) == [Piece(0, 90, ZERO)]


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
    assert stamps.sampling_us == stamps.first_us
    assert [now + 2, now + 5] in [list(values) for values in stamps.readings()]


def test_the_memory_of_no_process_gives_no_reading() -> None:
    stamps = Stamps(2**22 + 1, 0)
    stamps.read()
    assert stamps.first_us is None and stamps.readings() == []


def test_boot_time_is_never_behind_monotonic_time() -> None:
    assert boot_offset() >= -1000
