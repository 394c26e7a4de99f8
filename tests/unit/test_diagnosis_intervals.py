"""Interval arithmetic, against counting instants one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.diagnosis import intervals
from perfscope.diagnosis.facts import subtract
from perfscope.diagnosis.intervals import Intervals, overlap_ns, shared_ns, union, union_ns

LENGTH = 40
any_intervals = st.lists(
    st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda p: (min(p), max(p))), max_size=12
)
instants_of_threads = st.lists(st.lists(st.sampled_from("pw."), min_size=LENGTH, max_size=LENGTH), max_size=5)


def array(pairs, column):
    return np.asarray([p[column] for p in pairs], np.int64)


def instants(start, end):
    return {t for a, b in zip(start, end, strict=True) for t in range(a, b)}


@settings(deadline=None)
@given(any_intervals)
def test_union_covers_the_same_instants_once(pairs):
    start, end = union(array(pairs, 0), array(pairs, 1))
    assert instants(start.tolist(), end.tolist()) == {t for a, b in pairs for t in range(a, b)}
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@settings(deadline=None)
@given(any_intervals, any_intervals)
def test_overlap_counts_the_instants_within(pairs, others):
    within = union(array(others, 0), array(others, 1))
    inside = instants(*(a.tolist() for a in within))
    got = overlap_ns(array(pairs, 0), array(pairs, 1), within)
    assert got.tolist() == [len(set(range(a, b)) & inside) for a, b in pairs]


def rows(threads, letter):
    """Unit intervals of every instant at which a thread shows the letter."""
    return Intervals.of([(t, t + 1, n) for n, line in enumerate(threads) for t, c in enumerate(line) if c == letter])


@pytest.fixture(autouse=True, params=[2, intervals.BLOCK], ids=["in small blocks", "in one block"], scope="module")
def block(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK", request.param)
        yield


@settings(deadline=None)
@given(instants_of_threads)
def test_shared_time_divides_each_instant_by_those_in_it(threads):
    expected = 0.0
    for column in zip(*threads, strict=True):
        part, whole = column.count("p"), column.count("w")
        expected += part / (part + whole) if part else 0
    assert shared_ns(rows(threads, "p"), rows(threads, "w")) == pytest.approx(expected)


@settings(deadline=None)
@given(instants_of_threads)
def test_union_of_threads_is_when_any_is_in_it(threads):
    assert union_ns(rows(threads, "p")) == sum("p" in column for column in zip(*threads, strict=True))


@settings(deadline=None)
@given(st.sets(st.integers(0, LENGTH)), any_intervals)
def test_subtract_leaves_what_is_outside(times, cut):
    whole = Intervals.of([(t, t + 1, 3) for t in sorted(times)])
    start, end = union(array(cut, 0), array(cut, 1))
    removed = Intervals(start, end, np.full(len(start), 3, np.int64))
    if not times:
        return
    rest = subtract(whole, removed)
    assert instants(rest.start_ns.tolist(), rest.end_ns.tolist()) == times - instants(start.tolist(), end.tolist())
    assert rest.total_ns == len(times - instants(start.tolist(), end.tolist()))
    assert set(rest.thread.tolist()) <= {3}


def test_threads_are_listed_longest_first():
    assert list(Intervals.of([(0, 5, 1), (0, 9, 2), (7, 9, 1)]).by_thread().items()) == [(2, 9), (1, 7)]


@settings(deadline=None)
@given(any_intervals, any_intervals)
def test_within_keeps_the_parts_inside(pairs, others):
    start, end = union(array(others, 0), array(others, 1))
    pieces = Intervals.of([(a, b, n) for n, (a, b) in enumerate(pairs)]).within(start, end)
    inside = instants(start.tolist(), end.tolist())
    for n, (a, b) in enumerate(pairs):
        mine = pieces.where(pieces.thread == n)
        assert mine.total_ns == len(instants(mine.start_ns.tolist(), mine.end_ns.tolist()))
        assert instants(mine.start_ns.tolist(), mine.end_ns.tolist()) == set(range(a, b)) & inside
