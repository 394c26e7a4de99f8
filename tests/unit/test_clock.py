"""The clock map: exact where it says so, and the measured offset of the wall clock is within its own bound."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.clock import MONOTONIC, ClockMap, realtime_offset

stamps = st.integers(-(2**52), 2**52)


@given(stamps, st.integers(-(2**61), 2**61), st.sampled_from([1.0, 1000.0, 0.5, 1e9 / 24e6, 1e9 / 2.4e9]))
def test_a_stamp_is_mapped_to_the_nanosecond(stamp: int, offset: int, scale: float) -> None:
    clock = ClockMap("x", offset, 0, scale)
    exact = Fraction(stamp) * Fraction(scale) + offset
    # A float product of 53 bits is off by half a unit in its last place at most.
    allowed = Fraction(1, 2) + abs(Fraction(stamp) * Fraction(scale)) * Fraction(1, 2**53)
    assert abs(clock.to_mono(stamp) - exact) <= allowed


@given(st.lists(stamps, max_size=20), st.sampled_from([1.0, 1000.0, 1e9 / 24e6]))
def test_an_array_is_mapped_as_its_elements_are(values: list[int], scale: float) -> None:
    clock = ClockMap("x", 12_345, 0, scale)
    mapped = clock.to_mono(np.array(values, np.int64))
    assert mapped.dtype == np.int64
    assert mapped.tolist() == [clock.to_mono(value) for value in values]


def test_the_monotonic_source_is_left_alone() -> None:
    now = time.monotonic_ns()
    assert MONOTONIC.to_mono(now) == now
    assert MONOTONIC.error_ns == 0


def test_the_wall_clocks_offset_holds_within_its_error() -> None:
    offset, error = realtime_offset()
    assert error > 0
    # A read of the wall clock between two monotonic ones bounds the true offset from both sides, independently.
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    assert wall - after - error <= offset <= wall - before + error
