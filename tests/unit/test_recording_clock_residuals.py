"""A known clock error is found again, to within the bound that is stated with it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.recording.clock_marks import FUNCTIONS, QUANTUM_NS
from perfscope.recording.clock_residuals import bracket_errors, lateness
from perfscope.recording.clock_result import ClockResult

MS = 1_000_000


@given(
    error=st.integers(-100_000, 100_000),
    delays=st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000)), min_size=1, max_size=50),
)
def test_bracketed_errors_are_right_to_within_their_bounds(error: int, delays: list[tuple[int, int]]) -> None:
    before = 10 * MS * np.arange(1, len(delays) + 1)
    after = before + 2 * MS
    lead, trail = np.array(delays).T
    errors, bounds = bracket_errors(before, after, before + lead + error, after - trail + error)
    assert len(errors) == len(delays)
    assert (abs(errors - error) <= bounds + 1).all()
    assert (bounds == (lead + trail) // 2).all()


def test_a_bracket_with_two_stamps_in_it_says_nothing() -> None:
    before, after = np.array([0, 100 * MS]), np.array([50 * MS, 150 * MS])
    start = np.array([1 * MS, 30 * MS, 101 * MS, 170 * MS])  # two in the first, one in the second, one in none
    errors, bounds = bracket_errors(before, after, start, start + 10 * MS)
    assert errors.tolist() == [(1 * MS - 39 * MS) // 2]
    assert bounds.tolist() == [20 * MS]


@given(st.integers(0, 2**60), st.integers(-200 * MS, 299 * MS))
def test_lateness_is_told_from_the_functions_number(time_ns: int, late_ns: int) -> None:
    began = time_ns // QUANTUM_NS * QUANTUM_NS
    number = time_ns // QUANTUM_NS % FUNCTIONS
    assert lateness(np.array([began + late_ns]), np.array([number])).tolist() == [late_ns]


def test_a_bound_that_did_not_hold_is_called_so() -> None:
    residuals = {"median": 10.0, "p95": 60.0, "max": 73.4}
    held = ClockResult("austin", 3, 4, residuals, 3.5, 70.0, 10_000.0)
    exceeded = ClockResult("austin", 3, 4, residuals, 3.5, 54.5, 10_000.0)
    assert held.within_bound and "stated bound 70.0: holds" in held.to_text()
    assert exceeded.to_json()["within_bound"] is False and "stated bound 54.5: EXCEEDED" in exceeded.to_text()
    assert all(len(line) <= 80 for line in exceeded.to_text().splitlines())
    assert ClockResult("jfr", 0, 0, None, None, None, None, "no JVM").to_json()["within_bound"] is None
