"""Keeps py-spy's own CPU time in bounds by sampling less often."""

from __future__ import annotations

SHARE = 0.25
"""Most of one core that all py-spys of a recording may take together. At 100 Hz on 40 threads it took a whole core,
and the target 7 % of its throughput."""
_AIM = 0.2
_WINDOW_S = 1.0
_URGENT = 0.4


class Budget:
    """Judges the CPU time of all py-spys over windows of a second, and says at which rate they fit.

    last, highest: share of one core in the last full window, and in the worst one.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.highest = 0.0
        self.last = 0.0
        self._from: tuple[float, float] | None = None
        self._over = 0

    def restart(self) -> None:
        """Other py-spys than before are judged from now on."""
        self._from = None

    def judge(self, now_s: float, cpu_s: float) -> int | None:
        """Takes the CPU time used so far, in seconds, at a time; returns a new, lower rate, or None to go on.

        One window over 40 % of a core is enough, else two in a row over 25 %.
        """
        if self._from is None:
            self._from = now_s, cpu_s
            return None
        elapsed = now_s - self._from[0]
        if elapsed < _WINDOW_S:
            return None
        share = (cpu_s - self._from[1]) / elapsed
        self._from = now_s, cpu_s
        self.last, self.highest = share, max(self.highest, share)
        self._over = self._over + 1 if share > SHARE else 0
        if self._over < (1 if share > _URGENT else 2):
            return None
        lower = max(1, int(self.rate_hz * _AIM / share))
        if lower >= self.rate_hz:
            return None
        self.rate_hz = lower
        self._from, self._over = None, 0
        return lower
