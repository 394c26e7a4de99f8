"""The thread that samples at the asked rate, within its budget of CPU time."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque

from perfscope.collectors.nvml.sampler import Sampler
from perfscope.collectors.nvml.values import ValueFile

BUDGET = 0.0085
"""Share of one core that sampling at up to 10 Hz may cost; a higher rate, being asked for, may cost more in proportion.
"""

_BURST_NS = 3_000_000
"""CPU time that may be spent ahead of its share."""

_SLOWEST_NS = 1_000_000_000
_SLOWEST_SHARE = 1 / 3
"""A full pass is made this often even when overspent, if that takes no more than this part of the budget."""

_FIRST_S = 2.0

_LONGEST_NS = 500_000_000
"""Longest pause, however much was overspent. A call made while the target holds the driver's lock, as when it creates
its context, can cost tens of ms of CPU: the kernel spins for the lock. To make up for that in silence would take
seconds, in which the target goes unseen."""


class Pacer:
    """Makes passes at `rate_hz`: full ones as far as the budget goes, else their cheap part.

    A pass begins no earlier than a full period after the GPM samples of the last: at 10 Hz they may not be closer.
    Where even the cheap part would take more than half of the budget, passes are rarer, and counted as late.
    """

    def __init__(self, sampler: Sampler, values: ValueFile, rate_hz: int) -> None:
        self.error: Exception | None = None
        self._sampler = sampler
        self._values = values
        self._period_ns = 1_000_000_000 // rate_hz
        self._share = BUDGET * max(rate_hz / 10, 1)
        self._stopping = threading.Event()
        self._warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfscope-nvml-sampler", daemon=True)

    def start(self) -> None:
        """Returns when the first pass is over, or _FIRST_S later: a driver that hangs doesn't hold up the target."""
        self._thread.start()
        self._warm.wait(_FIRST_S)

    def stop(self, timeout_s: float) -> bool:
        """True if the thread ended; it can't while a call of the driver hangs."""
        self._stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        sampler = self._sampler
        costs: dict[bool, deque[int]] = {full: deque(maxlen=9) for full in (True, False)}
        try:
            due = sampler.warm_up() + self._period_ns
            self._warm.set()
            start = last_full = time.monotonic_ns()
            cpu = time.thread_time_ns()
            while not self._stopping.wait(max(0, due - time.monotonic_ns()) / 1e9):
                now, spent = time.monotonic_ns(), time.thread_time_ns() - cpu
                dear = statistics.median(costs[True] or [0]) / (self._share * _SLOWEST_SHARE)
                full = spent <= self._share * (now - start) + _BURST_NS or now - last_full >= max(_SLOWEST_NS, dear)
                due = sampler.sample(full) + self._period_ns
                self._values.flush()
                sampler.cpu_ns = time.thread_time_ns() - cpu
                costs[full].append(sampler.cpu_ns - spent)
                if full:
                    last_full = now
                else:
                    rest = min(int(2 * statistics.median(costs[False]) / self._share), _LONGEST_NS) - self._period_ns
                    sampler.late += rest > self._period_ns // 10
                    due += max(rest, 0)
        except Exception as error:  # noqa: BLE001 (a full disk, or a defect: it ends the sampling, and is said)
            self.error = error
            self._warm.set()
