"""Interval arithmetic, against counting instants one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.diagnosis import intervals
from perfscope.diagnosis.intervals import (
    Growth,
    Intervals,
    depth,
    groups,
    overlap_ns,
    union,
    union_ns,
    without,
)

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


@settings(deadline=None)
@given(any_intervals, any_intervals)
def test_without_leaves_the_instants_outside(pairs, others):
    spans, cut = (union(array(some, 0), array(some, 1)) for some in (pairs, others))
    left = without(spans, cut)
    expected = instants(*(a.tolist() for a in spans)) - instants(*(a.tolist() for a in cut))
    assert instants(*(a.tolist() for a in left)) == expected
    assert int((left[1] - left[0]).sum()) == len(expected)
    assert (left[0][1:] > left[1][:-1]).all()


def rows(threads, letter):
    """Unit intervals of every instant at which a thread shows the letter."""
    return Intervals.of([(t, t + 1, n) for n, line in enumerate(threads) for t, c in enumerate(line) if c == letter])


@pytest.fixture(autouse=True, params=[2, intervals.BLOCK], ids=["in small blocks", "in one block"], scope="module")
def block(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK", request.param)
        yield


@settings(deadline=None)
@given(any_intervals)
def test_depth_counts_the_intervals_at_each_instant(pairs):
    times, count = depth(array(pairs, 0), array(pairs, 1))
    assert (np.diff(times) > 0).all()
    for instant in range(-1, LENGTH + 2):
        i = int(np.searchsorted(times, instant, side="right")) - 1
        assert (int(count[i]) if i >= 0 else 0) == sum(a <= instant < b for a, b in pairs)


@settings(deadline=None)
@given(any_intervals, any_intervals)
def test_growth_adds_up_the_rates_of_the_instants_within(pairs, others):
    far = 1 << 61  # whole nanoseconds, however late
    grown = Growth(*depth(array(pairs, 0) + far, array(pairs, 1) + far))
    got = grown.within(array(others, 0) + far, array(others, 1) + far)
    assert got.tolist() == pytest.approx([sum(a <= t < b for t in range(*o) for a, b in pairs) for o in others])


@given(st.lists(st.integers(-2, 3), max_size=9))
def test_groups_are_the_rows_of_each_key(keys):
    rows = np.arange(len(keys))
    found = [(key, rows[mine].tolist()) for key, mine in groups(np.asarray(keys, np.int64))]
    assert found == [(k, [i for i, key in enumerate(keys) if key == k]) for k in sorted(set(keys))]


@settings(deadline=None)
@given(instants_of_threads)
def test_union_of_threads_is_when_any_is_in_it(threads):
    assert union_ns(rows(threads, "p")) == sum("p" in column for column in zip(*threads, strict=True))


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
