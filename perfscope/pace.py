"""When perfscope's own threads wake up beside a target."""

from __future__ import annotations

import time


def until_beat_s(period_s: float) -> float:
    """Seconds until CLOCK_MONOTONIC is a multiple of `period_s`.

    Threads that wait so wake up together: the target's CPUs and caches are disturbed once, not once for each.
    """
    return period_s - time.monotonic() % period_s
