"""Tables -> ThreadSlices, one thread at a time: what it did and where, at every nanosecond it was observed.

Scheduler records cut a thread's time into stretches on and off the CPU. A stack can't change while its thread is off
the CPU, so such a stretch has one stack, and a blocked one has one cause: those in force at its middle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from perfscope.merge import waits
from perfscope.merge.gpu_sync import Syncs
from perfscope.merge.intervals import (
    Intervals,
    Ints,
    bounded,
    clip,
    index_at_bounds,
    latest_wins,
    nonempty,
    row_at,
)
from perfscope.merge.slices import (
    DISK,
    GC,
    GIL,
    GPU_SYNC,
    LOCK,
    RUNNABLE,
    RUNNING,
    SLEEP,
    TORN,
    UNKNOWN,
    ThreadSlices,
    joined,
)
from perfscope.merge.sources import Sources, disjoint
from perfscope.merge.stretches import InForce, stretches
from perfscope.merge.tables import NEVER, Columns, ThreadInfo, matches, thread_keys, threads
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame, StackTable

REACH_PERIODS = 5
"""A sample without a duration speaks for the time up to this many periods around it. One period would do for a
steady sampler; JFR looks at some of the runnable threads only, in turn, so a thread's own looks lie further apart."""

RUNNING_REACH_PERIODS = 100
"""Between two looks a thread can wake, run and sleep again unseen. What it ran then is told by the nearest look that
found it running, at most this many periods away. A look that found it asleep by its own will (for work, a lock, a disk)
says nothing about what it runs; one that found it kept from running (no CPU, no GIL) does."""

_MOST_LOOKS = 1 << 22
"""Single looks that the rows of one thread are taken apart into."""

PAUSE_LEAD_NS = 1_000_000
"""A thread that blocks up to this long before a collector's pause is on its way into it (the time to the safepoint)."""


def slices_of(session: Session, *, thread: str | None = None) -> Iterator[ThreadSlices]:
    """Slices of every thread, or of those whose name or tid the shell-style pattern `thread` meets, by pid and tid.

    Loads each table once, without what the merge doesn't need, and holds the slices of one thread at a time; to hold
    those of a part of its time only, see Merge.parts.
    Adds the frame "[torn stack]" to `session.stacks`. Raises SessionError for a damaged table.
    """
    chosen = [info for info in threads(session) if matches(thread, info.name, info.tid)]
    for _, parts in groupby(Merge(session, chosen).parts(), lambda part: part[0]):
        yield joined([slices for _, slices in parts])


def torn_stack(stacks: StackTable) -> int:
    """stack_id that stands for every torn sample."""
    return stacks.stack([Frame("state", TORN)])


@dataclass(frozen=True)
class _Looks:
    """Samples of one thread. spans: when each is in force; its rows index stack, at (when it was seen), count (looks of
    a row; one at that moment for those without a duration) and period (of its sampler). time: of the samples not torn,
    ascending."""

    spans: Intervals
    stack: npt.NDArray[np.int32]
    at: Ints
    count: Ints
    period: Ints
    time: Ints
    time_stack: npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Blocked:
    """Stretches off the CPU in [low, high), a part of a thread's time: blocked by `cause` until `wake`."""

    low: int
    high: int
    spans: Intervals
    wake: Ints
    cause: npt.NDArray[np.uint8]
    stack: npt.NDArray[np.int32]


class Merge:
    """The merge of some threads. unlisted_sched_rows: scheduler records of none of them, so in no slice."""

    def __init__(self, session: Session, infos: Sequence[ThreadInfo]) -> None:
        self.infos = infos
        self.stacks = session.stacks
        self.torn = torn_stack(session.stacks)
        self.sources = Sources(session, infos)
        self.syncs = Syncs(session, infos)
        self.unlisted_sched_rows = self.sources.sched.unlisted
        self._futex_states: dict[int, int] = {}

    def parts(self) -> Iterator[tuple[int, ThreadSlices]]:
        """Number of a thread and slices of a part of its time: the threads in their order, each with one at least."""
        for number, info in enumerate(self.infos):
            looks = self._looks(number)
            running = _RunningLooks(looks) if info.sched_complete else None
            undecided: deque[_Blocked] = deque()
            for latest in self._blocked(number, info, looks):
                undecided.append(latest)
                if running:
                    running.leave_out(latest)
                while undecided and (not running or undecided[0].high + running.reach <= latest.high):
                    yield number, self._slices(number, undecided.popleft(), looks, running)
            for part in undecided:
                yield number, self._slices(number, part, looks, running)

    def _slices(self, number: int, part: _Blocked, looks: _Looks, running: _RunningLooks | None) -> ThreadSlices:
        seen = running.nearest(part.low, part.high) if running else looks.spans
        return self.syncs.cut(number, _cut(self.infos[number], part, seen, looks), self.stacks)

    def _blocked(self, number: int, info: ThreadInfo, looks: _Looks) -> Iterator[_Blocked]:
        sources = self.sources
        off = sources.sched.rows(number)
        if not off:
            known = ({}, {}) if info.sched_complete else (sources.jvm.rows(number), sources.waits.rows(number))
            off = _off_cpu_by_events(*known)
        jvm_events, waits, requests = (InForce(t.rows(number)) for t in (sources.jvm, sources.waits, sources.block_io))
        for part in stretches(off, info.start_ns, info.end_ns):
            spans, off = part.spans, part.off
            jvm = jvm_events.until(part.high)
            wake = np.clip(off["wake"][spans.row], spans.start, spans.end)
            blocked_middle = spans.start + (wake - spans.start) // 2
            stack = self._off_stacks(spans, looks)
            if jvm:
                events = disjoint(jvm, (jvm["state"] >= 0) & (jvm["stack"] != ROOT))
                event = row_at(events, blocked_middle)
                stack = np.where(event >= 0, jvm["stack"][event], stack)
            cause = off["wait"][spans.row]
            asleep = np.flatnonzero((cause == SLEEP) & (wake > spans.start))
            cause[asleep] = self._causes(
                number, info, jvm, waits.until(part.high), requests.until(part.high),
                spans.start[asleep], blocked_middle[asleep], stack[asleep], off["waker"][spans.row[asleep]],
            )  # fmt: skip
            yield _Blocked(part.low, part.high, spans, wake, cause, stack)

    def _looks(self, number: int) -> _Looks:
        rows = self.sources.samples.rows(number)
        if rows:
            keep = (rows["time"] != NEVER) & (rows["period"] > 0)
            rows = {name: values[keep] for name, values in rows.items()}
        else:
            rows = {n: np.empty(0, np.int64) for n in ("time", "duration", "period", "stack", "torn", "count")}
        time, torn = bounded(rows["time"]), rows["torn"].astype(bool)
        stack = np.where(torn, self.torn, rows["stack"]).astype(np.int32)
        start, end = time.copy(), time + bounded(np.maximum(rows["duration"], 0))
        instants = np.flatnonzero(rows["duration"] == NEVER)
        if len(instants):
            start[instants], end[instants] = _nearest(time[instants], REACH_PERIODS * rows["period"][instants])
        count = np.where(rows["duration"] == NEVER, 1, rows["count"])
        return _Looks(
            latest_wins(start, end), stack, time, count, rows["period"], time[~torn], stack[~torn]
        )  # fmt: skip

    def _off_stacks(self, spans: Intervals, looks: _Looks) -> npt.NDArray[np.int32]:
        """The stack of each stretch off the CPU: in force at its middle, else the look in it nearest to that."""
        middle = spans.start + (spans.end - spans.start) // 2
        row = row_at(looks.spans, middle)
        stack = np.where(row >= 0, looks.stack[row], ROOT) if len(looks.stack) else np.full(len(row), ROOT)
        poor = np.flatnonzero((stack == ROOT) | (stack == self.torn))
        if len(poor) and len(looks.time):
            at = middle[poor]
            first, last = (np.searchsorted(looks.time, edge[poor]) for edge in (spans.start, spans.end))
            after = np.searchsorted(looks.time, at)
            before, after = (np.clip(look, first, np.maximum(last - 1, 0)) for look in (after - 1, after))
            nearest = np.where(np.abs(looks.time[after] - at) <= np.abs(looks.time[before] - at), after, before)
            stack[poor] = np.where(last > first, looks.time_stack[nearest], stack[poor])
        return stack.astype(np.int32)

    def _causes(
        self,
        number: int,
        info: ThreadInfo,
        jvm: Columns,
        futexes: Columns,
        requests: Columns,
        start: Ints,
        middle: Ints,
        stack: npt.NDArray[np.int32],
        waker: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.uint8]:
        """State of stretches asleep that start at `start`; the strongest evidence in force at their middle decides."""
        cause = np.full(len(start), SLEEP, np.uint8)
        if requests:
            cause[row_at(disjoint(requests, requests["waited"]), middle) >= 0] = DISK
        if futexes:
            in_futex = np.flatnonzero(row_at(disjoint(futexes, futexes["lock"]), middle) >= 0)
            cause[in_futex] = self._futex_causes(info.pid, stack[in_futex], waker[in_futex])
        pause = row_at(pauses := self.sources.pauses.get(info.pid, disjoint({})), middle)
        # A thread that was blocked well before the pause waits for something else.
        late = np.searchsorted(pauses.start, middle, "right") - 1
        paused = np.flatnonzero(pause >= 0)
        cause[paused[start[paused] >= pauses.start[late[paused]] - PAUSE_LEAD_NS]] = GC
        if jvm:
            event = row_at(disjoint(jvm, jvm["state"] >= 0), middle)
            cause = np.where(event >= 0, jvm["state"][event], cause).astype(np.uint8)
        if calls := self.syncs.of(number):
            cause[row_at(calls[0], middle) >= 0] = GPU_SYNC
        if futexes:
            cause[row_at(disjoint(futexes, futexes["gil"]), middle) >= 0] = GIL
        return cause

    def _futex_causes(
        self, pid: int, stack: npt.NDArray[np.int32], waker: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint8]:
        distinct, inverse = np.unique(stack, return_inverse=True)
        for stack_id in distinct.tolist():
            if stack_id not in self._futex_states:
                self._futex_states[stack_id] = waits.futex_state(self.stacks, stack_id)
        by_stack = np.array([self._futex_states[s] for s in distinct.tolist()], np.uint8)
        cause = by_stack[inverse] if len(distinct) else np.empty(0, np.uint8)
        # A lock of Python or Java code is released by such code: a thread that never ran any hands over native work.
        foreign = np.isin(thread_keys(pid, waker), self.sources.native)
        cause[(cause == LOCK) & foreign] = SLEEP
        return cause


class _RunningLooks:
    """The looks that didn't find their thread asleep; a row of several is taken apart, evenly over its time.

    reach: ns, how far from a part a look may be that tells of it.
    """

    def __init__(self, looks: _Looks) -> None:
        row, length = looks.spans.row, looks.spans.end - looks.spans.start
        most = np.minimum(
            length // np.maximum(looks.period[row] // 100, 1) + 1, max(_MOST_LOOKS // max(len(row), 1), 1)
        )
        count = np.clip(looks.count[row], 0, most)
        index = np.repeat(np.arange(len(row)), count)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
        time = looks.at[row[index]] + length[index] // count[index] * nth
        order = np.argsort(time, kind="stable")
        self._time, self._row = time[order], row[index[order]]
        self._reach = RUNNING_REACH_PERIODS * looks.period
        self._running = np.ones(len(time), bool)
        self.reach = int(self._reach.max(initial=0))

    def leave_out(self, part: _Blocked) -> None:
        """Takes out the looks of a part of the time that found the thread asleep by its own will."""
        willing = np.isin(part.cause, (SLEEP, LOCK, DISK))
        looks = slice(*np.searchsorted(self._time, (part.low, part.high)))
        asleep = Intervals(*(column[willing] for column in part.spans))
        self._running[looks] = row_at(asleep, self._time[looks]) < 0

    def nearest(self, low: int, high: int) -> Intervals:
        """When each look is the nearest one, in [low, high) at least; rows index the looks.

        All parts up to `high` + reach must have been left out. A look further than two reaches away is no neighbour of
        one that reaches into [low, high).
        """
        first, last = np.searchsorted(self._time, (low - 2 * self.reach, high + 2 * self.reach))
        near = first + np.flatnonzero(self._running[first:last])
        row = self._row[near]
        return nonempty(*_nearest(self._time[near], self._reach[row]), row)


def _joined(parts: Intervals) -> Intervals:
    """Disjoint intervals with those joined that touch."""
    first = np.ones(len(parts.start), bool)
    first[1:] = parts.start[1:] > parts.end[:-1]
    last = np.roll(first, -1)
    return Intervals(parts.start[first], parts.end[last], parts.row[first])


def _nearest(time: Ints, reach: Ints) -> tuple[Ints, Ints]:
    """When each of the ascending instants is the nearest one and at most `reach` away; ties go to the later."""
    middle = time[:-1] + (np.diff(time) + 1) // 2
    start = time - reach
    end = time + reach
    start[1:] = np.maximum(start[1:], middle)
    end[:-1] = np.minimum(end[:-1], middle)
    return start, end


def _off_cpu_by_events(jvm: Columns, futexes: Columns) -> Columns:
    """Waits that a JVM or futex(2) tells of, in the shape of scheduler records: for a thread that has none."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    if jvm:
        waiting = jvm["state"] >= 0
        starts.append(jvm["start"][waiting])
        ends.append(jvm["end"][waiting])
    if futexes:
        starts.append(futexes["start"])
        ends.append(futexes["end"])
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    count = len(end)
    return {
        "off": start,
        "wake": end,
        "on": end,
        "wait": np.full(count, SLEEP, np.uint8),
        "waker": np.full(count, -1, np.int32),
        "newborn": np.zeros(count, bool),
    }


def _cut(info: ThreadInfo, part: _Blocked, seen: Intervals, looks: _Looks) -> ThreadSlices:
    """Slices of a part of a thread's time from its stretches off the CPU and the looks in force otherwise (seen).

    Where no look at all is in force, nobody was watching, and nothing is claimed.
    """
    low, high, spans, wake = part.low, part.high, part.spans, part.wake
    seen = clip(seen, low, high)
    watched = _joined(clip(looks.spans, low, high))
    samples = np.concatenate([seen.start, seen.end, watched.start, watched.end])
    bounds = np.concatenate([[low], np.column_stack([spans.start, wake, spans.end]).ravel(), samples])
    bounds.sort(kind="stable")  # few ascending runs: close to linear
    keep = bounds < high
    keep[1:] &= bounds[1:] != bounds[:-1]
    bounds = bounds[keep]

    state = np.full(len(bounds), RUNNING if info.sched_complete else UNKNOWN, np.uint8)
    at = np.full(len(bounds), ROOT, np.int32)
    if len(seen.start):
        index = index_at_bounds(seen.start, bounds)
        in_force = (index >= 0) & (bounds < seen.end[index]) & (row_at(watched, bounds) >= 0)
        at[in_force] = looks.stack[seen.row[index[in_force]]]
    if len(spans.start):
        index = index_at_bounds(spans.start, bounds)
        inside = np.flatnonzero((index >= 0) & (bounds < spans.end[index]))
        index = index[inside]
        at[inside] = part.stack[index]
        state[inside] = np.where(bounds[inside] < wake[index], part.cause[index], RUNNABLE)

    new = np.ones(len(bounds), bool)
    new[1:] = (state[1:] != state[:-1]) | (at[1:] != at[:-1])
    edges = np.append(bounds[new], high)
    return ThreadSlices(info.pid, info.tid, info.name, info.process, edges[:-1], edges[1:], at[new], state[new])
