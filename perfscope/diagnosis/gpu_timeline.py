"""One GPU's time in the steady part of a recording: what ran, the gaps, and what the host did in these."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.intervals import Int64, overlap_ns, union
from perfscope.merge.gpu_activity import KERNEL, Activity, activity_of, divide
from perfscope.merge.slices import GIL, GPU_SYNC, LOCK, RUNNABLE, RUNNING, UNKNOWN
from perfscope.merge.tables import NEVER
from perfscope.model.stacks import ROOT

BUSY_HOST = (RUNNING, RUNNABLE, GIL, LOCK, GPU_SYNC, UNKNOWN)
"""States of a thread that is on its way to its next launch. In the others it waits for work: then the GPU has none."""

MEASURED = "gpu_activity (CUPTI, exact)"


@dataclass(frozen=True)
class Gaps:
    """g stretches in which the GPU had nothing to do, each ended by row `next` of the activity (clipped to the part).

    launch: entry of the call that ended it, where known, else start.
    """

    start: Int64
    end: Int64
    next: Int64
    launch: Int64

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Gpu:
    """One GPU in [start_ns, end_ns), the steady part. rows: its activity that overlaps it. left_out: what lies before.

    kernels: disjoint intervals in which at least one ran, clipped to the part.
    """

    device: int
    pid: int
    start_ns: int
    end_ns: int
    left_out: str
    rows: Activity
    gaps: Gaps
    kernels: tuple[Int64, Int64]

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        return int((self.gaps.end - self.gaps.start).sum())

    @property
    def busy_pct(self) -> float:
        return 100 * (1 - self.idle_ns / self.length_ns) if self.length_ns else 0.0

    def pct(self, ns: float) -> float:
        """Share of the steady part."""
        return 100 * ns / self.length_ns if self.length_ns else 0.0

    def clipped(self, mask: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
        """The disjoint intervals in which some of the rows ran."""
        start, end = (np.clip(t[mask], self.start_ns, self.end_ns) for t in (self.rows.start, self.rows.end))
        return union(start, end)

    def without_kernels(self, spans: tuple[Int64, Int64]) -> Int64:
        """How much of each of the disjoint intervals no kernel ran in."""
        return spans[1] - spans[0] - overlap_ns(*spans, self.kernels)


_known: WeakKeyDictionary[Facts, list[Gpu]] = WeakKeyDictionary()


def gpus(facts: Facts) -> list[Gpu]:
    """Every GPU that the session has activity of; kept with the facts."""
    if facts not in _known:
        activity = activity_of(facts.session)
        found = [_gpu(activity, number) for number in range(len(activity.devices))]
        _known[facts] = [gpu for gpu in found if gpu.length_ns > 0]
    return _known[facts]


def missing(facts: Facts) -> tuple[str, str] | None:
    """Why there is no GPU timeline to judge, and what mends it; None if there is one."""
    if len(activity_of(facts.session)):
        return None
    if gap := facts.collector_gap("cuda"):
        return f"no GPU timeline: {gap[0]}", gap[1]
    return "no GPU activity was recorded", "perfscope record -- CMD, with a CMD that uses a GPU"


def _gpu(activity: Activity, device: int) -> Gpu:
    rows = activity.where(activity.device == device)
    start, why = _steady_start(rows)
    end = int(rows.end.max())
    rows = rows.where(rows.end > start)
    if end <= start:
        return Gpu(device, activity.devices[device][0], start, start, why, rows, _no_gaps(), (rows.start, rows.end))
    division = divide(rows.start, rows.end, np.array([start, end], np.int64))
    ended = division.next_row >= 0
    next_row = division.next_row[ended]
    gap_start, gap_end = division.idle_start[ended], division.idle_end[ended]
    launch = rows.launch[next_row]
    launch = np.where(launch == NEVER, gap_start, np.clip(launch, gap_start, gap_end))
    kernels = rows.kind == KERNEL
    clipped = union(np.clip(rows.start[kernels], start, end), np.clip(rows.end[kernels], start, end))
    gaps = Gaps(gap_start, gap_end, next_row, launch)
    return Gpu(device, activity.devices[device][0], start, end, why, rows, gaps, clipped)


def _no_gaps() -> Gaps:
    none = np.empty(0, np.int64)
    return Gaps(none, none, none, none)


def _steady_start(rows: Activity) -> tuple[int, str]:
    """When the steady part begins, and what was left out before it.

    It begins after the last kernel that ran for the first time in the first half of the device's activity: loading,
    autotuning and the first pass run kernels not seen before. Later newcomers are phases of the work itself.
    """
    first, last = int(rows.start.min()), int(rows.end.max())
    kernels = np.flatnonzero(rows.kind == KERNEL)
    _, debut = np.unique(rows.name[kernels], return_index=True)
    started = rows.start[kernels][debut]
    early = started[started <= first + (last - first) // 2]
    start = int(early.max(initial=first))
    return start, f"{(start - first) / 1e9:.2f} s of warm-up left out (until no new kernel appeared)"


@dataclass(frozen=True)
class HostParts:
    """What threads did in some intervals: k parts. index: which interval. whole_ns: int64[k], length of that interval.
    state, stack: see slices; UNKNOWN and ROOT where the thread wasn't observed."""

    index: Int64
    start: Int64
    end: Int64
    state: Int64
    stack: npt.NDArray[np.int32]
    whole_ns: Int64

    @property
    def ns(self) -> Int64:
        return self.end - self.start

    def busy(self, unseen_gap_ns: float) -> npt.NDArray[np.bool_]:
        """Which parts are of a thread on its way to its next launch.

        Where no source says what it did, it may as well have waited for work in one longer than `unseen_gap_ns`.
        """
        known = (self.state != UNKNOWN) | (self.whole_ns <= unseen_gap_ns)
        busy: npt.NDArray[np.bool_] = known & np.isin(self.state, BUSY_HOST)
        return busy


def host_parts(facts: Facts, pid: int, tids: Int64, start: Int64, end: Int64) -> HostParts:
    """What thread tids[i] of a process did in the disjoint, ascending intervals [start[i], end[i])."""
    parts = []
    for tid in np.unique(tids).tolist():
        mine = np.flatnonzero((tids == tid) & (end > start))
        number = facts.index.get((pid, tid))
        if number is None:
            parts.append((mine, start[mine], end[mine], np.full(len(mine), UNKNOWN), np.full(len(mine), ROOT)))
            continue
        t = facts.threads[number]
        edges = np.concatenate([t.start_ns, t.end_ns[-1:]])
        bounds = np.unique(np.concatenate([edges, start[mine], end[mine]]))
        gap = np.searchsorted(start[mine], bounds, "right") - 1
        inside = np.flatnonzero((gap >= 0) & (bounds < end[mine][gap])) if len(mine) else np.empty(0, np.int64)
        begin = bounds[inside]
        at = np.searchsorted(t.start_ns, begin, "right") - 1
        seen = (at >= 0) & (begin < t.end_ns[at])
        parts.append(
            (
                mine[gap[inside]], begin, bounds[inside + 1],
                np.where(seen, t.state[at], UNKNOWN), np.where(seen, t.stack_id[at], ROOT),
            )
        )  # fmt: skip
    if not parts:
        none = np.empty(0, np.int64)
        return HostParts(none, none, none, none, none.astype(np.int32), none)
    index, begin, until, state, stack = (np.concatenate(column) for column in zip(*parts, strict=True))
    whole = (end - start)[index]
    return HostParts(index, begin, until, state.astype(np.int64), stack.astype(np.int32), whole)


def after_sync(facts: Facts, gpu: Gpu) -> Int64:
    """int64[gaps]: row of the blocking call that the gap followed (the GPU ran dry in it); -1 where the launching
    thread wasn't held up by one, as what ran next was launched before the call, or before the gap."""
    calls, gaps = facts.gpu_waits, gpu.gaps
    found = np.full(len(gaps), -1, np.int64)
    launched = gpu.rows.launch[gaps.next]
    late = (launched == NEVER) | (launched > gaps.start)
    launcher = gpu.rows.tid[gaps.next]
    for tid in np.unique(launcher).tolist():
        rows = np.flatnonzero((calls.pid == gpu.pid) & (calls.tid == tid))
        mine = np.flatnonzero(launcher == tid)
        if not len(rows):
            continue
        # the last call of the thread begun before the launch that ended the gap
        last = np.searchsorted(calls.start[rows], gaps.launch[mine]) - 1
        end = calls.end[rows[last]]
        held = (last >= 0) & late[mine] & (end >= gaps.start[mine]) & (end <= gaps.end[mine])
        found[mine[held]] = rows[last[held]]
    return found
