"""GPU counters as series in time: what the rules on sampled GPUs ask of the table `counters`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfscope.diagnosis.describe import flame
from perfscope.diagnosis.facts import Facts

MEASURED = "counters (NVML, sampled)"
GPM = "counters (NVML GPM, mean of each interval)"
_GAP = 3
"""Samples further apart than this many usual distances don't follow each other: some between them are missing."""
_WINDOW_NS = 1_000_000_000
"""nvmlDeviceGetUtilizationRates looks back up to one second: only values that far apart are different looks."""


@dataclass(frozen=True)
class Series:
    """One counter of one device, ascending in time. time_ns and error_ns: each value holds in time_ns ± error_ns."""

    time_ns: npt.NDArray[np.int64]
    error_ns: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]

    @property
    def step_ns(self) -> float:
        """Usual distance of two samples; 0 for fewer than two."""
        return float(np.median(np.diff(self.time_ns))) if len(self.time_ns) > 1 else 0.0

    def lengths_ns(self) -> npt.NDArray[np.float64]:
        """Time that each sample stands for: up to the next, but no more than where some are missing."""
        step = self.step_ns
        lengths: npt.NDArray[np.float64] = np.minimum(np.append(np.diff(self.time_ns), step), _GAP * step)
        return lengths

    def runs(self, mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """[first, last] of each run of samples in the mask that follow each other."""
        found: list[tuple[int, int]] = []
        for i in np.flatnonzero(mask).tolist():
            if found and found[-1][1] == i - 1 and self.time_ns[i] - self.time_ns[i - 1] <= _GAP * self.step_ns:
                found[-1] = (found[-1][0], i)
            else:
                found.append((i, i))
        return found

    def near(self, times: npt.NDArray[np.int64], within_ns: float) -> npt.NDArray[np.float64]:
        """The value nearest to each time; NaN where none lies `within_ns`."""
        if not len(self.time_ns):
            return np.full(len(times), np.nan)
        after = np.clip(np.searchsorted(self.time_ns, times), 1, max(len(self.time_ns) - 1, 1))
        after = np.minimum(after, len(self.time_ns) - 1)
        before = np.maximum(after - 1, 0)
        closer = np.abs(times - self.time_ns[before]) <= np.abs(self.time_ns[after] - times)
        nearest = np.where(closer, before, after)
        return np.where(np.abs(self.time_ns[nearest] - times) <= within_ns, self.value[nearest], np.nan)

    def highest(self, times: npt.NDArray[np.int64], within_ns: int) -> npt.NDArray[np.float64]:
        """The highest value within `within_ns` of each time; NaN where there is none."""
        first = np.searchsorted(self.time_ns, times - within_ns)
        last = np.searchsorted(self.time_ns, times + within_ns, side="right")
        spans = zip(first.tolist(), last.tolist(), strict=True)
        return np.asarray([self.value[a:b].max() if b > a else np.nan for a, b in spans], np.float64)

    def thinned(self, distance_ns: int) -> Series:
        """Samples at least `distance_ns` apart."""
        keep, last = [], None
        for i, time in enumerate(self.time_ns.tolist()):
            if last is None or time - last >= distance_ns:
                keep.append(i)
                last = time
        return Series(self.time_ns[keep], self.error_ns[keep], self.value[keep])


class Counters:
    """The counters of all GPUs of a session."""

    def __init__(self, facts: Facts, names: Iterable[str]) -> None:
        self.facts = facts
        table = facts.rows("counters", source="nvml", name=list(names)).sort_by("time_ns")
        columns = {name: _texts(table[name]) for name in ("device", "name")}
        self._columns = tuple(table[name].to_numpy() for name in ("time_ns", "error_ns", "value"))
        self._rows: dict[tuple[str, str], list[int]] = {}
        for row, key in enumerate(zip(columns["device"], columns["name"], strict=True)):
            self._rows.setdefault(key, []).append(row)

    @property
    def devices(self) -> list[str]:
        return sorted({device for device, _ in self._rows})

    def series(self, device: str, *names: str) -> Series | None:
        """The first of these counters that the device has; None if it has none of them."""
        for name in names:
            if rows := self._rows.get((device, name)):
                time, error, value = (column[rows] for column in self._columns)
                return Series(time, error, value)
        return None

    def busy(self, device: str) -> tuple[Series, str] | None:
        """How busy a device was, in percent of the time, and what measured it; by GPM where it has that."""
        if exact := self.series(device, "gpu_busy_pct"):
            return exact, GPM
        coarse = self.series(device, "gpu_utilization_pct")
        return (coarse.thinned(_WINDOW_NS), f"{MEASURED}, the driver's window of up to 1 s") if coarse else None

    def parent(self, device: str) -> str:
        """The GPU that a MIG instance belongs to, where power, clocks and the link are told; itself for a whole GPU."""
        return device.partition("/")[0]


def missing(facts: Facts, what: str) -> tuple[str, str | None]:
    """Why there is no such counter, and what gets it."""
    if gap := facts.collector_gap("nvml"):
        return f"no {what}: {gap[0]}", gap[1]
    absent = facts.info.collectors["nvml"].details.get("absent")
    reasons = [
        f"{device}: {call}: {reason}"
        for device, calls in (absent.items() if isinstance(absent, dict) else ())
        for call, reason in (calls.items() if isinstance(calls, dict) else ())
    ]
    return f"no {what}: the driver doesn't tell it" + (f" ({'; '.join(reasons)})" if reasons else ""), None


def see(facts: Facts) -> str:
    """The command that shows what the GPU ran; empty where that wasn't recorded."""
    return flame(facts, "gpu") if facts.info.tables.get("gpu_activity") else ""


def _texts(column: pa.ChunkedArray) -> list[str]:
    found: list[str] = column.cast(pa.string()).to_pylist()
    return found
