"""The division of a device's time, against counting every nanosecond by hand."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.merge.gpu_activity import divide

times = st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 25)), max_size=12)
cuts = st.lists(st.integers(0, 50), min_size=2, max_size=5, unique=True)


@given(times, cuts)
def test_every_nanosecond_is_divided_and_none_is_lost(spans: list[tuple[int, int]], cut: list[int]) -> None:
    spans.sort(key=lambda span: span[0])
    start = np.array([a for a, _ in spans], np.int64)
    end = start + np.array([n for _, n in spans], np.int64)
    edges = np.array(sorted(cut), np.int64)
    found = divide(start, end, edges)

    by_window = np.zeros(len(edges) - 1, np.int64)
    np.add.at(by_window, found.window, found.ns)
    gaps = [(int(a), int(b)) for a, b in zip(found.idle_start, found.idle_end, strict=True)]
    low, high = int(edges[0]), int(edges[-1])
    assert int(found.ns.sum()) + sum(b - a for a, b in gaps) == high - low
    busy = {t for t in range(low, high) if any(a <= t < b for a, b in zip(start, end, strict=True))}
    assert {t for a, b in gaps for t in range(a, b)} == set(range(low, high)) - busy
    for window, (a, b) in enumerate(pairwise(edges)):
        assert by_window[window] == len(busy & set(range(int(a), int(b))))

    own = np.zeros(len(spans), np.int64)
    np.add.at(own, found.row, found.ns)
    moments = [t for a, b in zip(start, end, strict=True) if a < b for t in (a, b)]
    bounds = sorted({low, high, *(t for t in (*moments, *edges) if low < t < high)})
    fair = np.zeros(len(spans), np.int64)
    for a, b in pairwise(bounds):
        running = [i for i in range(len(spans)) if start[i] <= a < end[i]]
        for i in running:
            fair[i] += (b - a) // len(running)
        if running and (odd := (b - a) % len(running)):
            last = max(running, key=lambda i: (min(end[i], high), -i))
            fair[last] += odd
    assert own.tolist() == fair.tolist()
    for (a, b), row in zip(gaps, found.next_row.tolist(), strict=True):
        assert (row < 0) == (b == high)
        if row >= 0:
            assert start[row] == b and end[row] > b, (a, b, row)


def test_a_device_that_did_nothing_is_idle_throughout() -> None:
    found = divide(np.empty(0, np.int64), np.empty(0, np.int64), np.array([3, 7, 9]))
    assert (found.idle_start.tolist(), found.idle_end.tolist(), found.next_row.tolist()) == ([3], [9], [-1])
